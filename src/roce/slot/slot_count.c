/* `count`: how many packets with payload, messages and bytes there were of each opcode, each counted once. */
#include "slots.h"

#include "roce/wire_op.h"

#include <stdio.h>
#include <stdlib.h>

struct opcode_count {
    uint64_t packets, messages, bytes;
};

struct count {
    struct opcode_count n[2][256]; /* received, sent */
};

static void *count_attach(const char *config, uint32_t qpn, char *err, size_t err_size)
{
    (void)qpn;
    if (config) {
        snprintf(err, err_size, "slot count: has no settings, but was given '%s'", config);
        return NULL;
    }
    return calloc(1, sizeof(struct count));
}

static enum slot_verdict count_beside(void *state, const struct slot_packet *p, const struct iovec *iov, int niov)
{
    struct count *c = state;
    struct opcode_count *n = &c->n[p->send][p->opcode];
    n->packets++;
    n->messages += p->last;
    for (int i = 0; i < niov; i++)
        n->bytes += iov[i].iov_len;
    return SLOT_ACCEPT;
}

static void count_stat(void *state, char *buf, size_t size)
{
    const struct count *c = state;
    struct slot_text t = {buf, size, 0};
    for (int send = 0; send < 2; send++) {
        for (int i = 0; i < 256; i++) {
            const struct opcode_count *n = &c->n[send][i];
            if (n->packets)
                slot_print(&t, "%s %s packets %llu messages %llu bytes %llu\n", send ? "sent" : "received",
                           wire_op_name((uint8_t)i), (unsigned long long)n->packets, (unsigned long long)n->messages,
                           (unsigned long long)n->bytes);
        }
    }
}

const struct slot_ops slot_count_ops = {
    .name = "count",
    .kind = SLOT_BESIDE,
    .max_ns = 500,
    .attach = count_attach,
    .detach = free,
    .beside = count_beside,
    .stat = count_stat,
};

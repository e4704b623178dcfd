/*
 * `sum`: the CRC-32C of each message in its completion (slot_value), at both ends: programs compare them, or store the
 * sum with the data, without reading the bytes once more.
 */
#include "slots.h"

#include "base/crc.h"

#include <stdio.h>
#include <stdlib.h>

struct stream {
    bool begun; /* a message was seen from its first byte on */
    uint32_t crc;
    uint64_t messages;
};

struct sum {
    struct stream streams[2][2]; /* received, sent; requests, responses: each a sequence of messages of its own */
};

static void *sum_attach(const char *config, uint32_t qpn, char *err, size_t err_size)
{
    (void)qpn;
    if (config) {
        snprintf(err, err_size, "slot sum: has no settings, but was given '%s'", config);
        return NULL;
    }
    return calloc(1, sizeof(struct sum));
}

static enum slot_verdict sum_stream(void *state, const struct slot_packet *p, const struct iovec *iov, int niov,
                                    uint64_t *ret_value, bool *ret_has_value)
{
    struct sum *m = state;
    struct stream *s = &m->streams[p->send][p->response];
    if (p->first) {
        s->begun = true;
        s->crc = 0;
    }
    for (int i = 0; i < niov; i++)
        s->crc = crc32c(s->crc, iov[i].iov_base, iov[i].iov_len);
    if (p->last && s->begun) {
        *ret_value = s->crc;
        *ret_has_value = true;
        s->begun = false;
        s->messages++;
    }
    return SLOT_ACCEPT;
}

static void sum_stat(void *state, char *buf, size_t size)
{
    const struct sum *m = state;
    struct slot_text t = {buf, size, 0};
    slot_print(&t, "summed: sent %llu received %llu, READ: answered %llu received %llu\n",
               (unsigned long long)m->streams[1][0].messages, (unsigned long long)m->streams[0][0].messages,
               (unsigned long long)m->streams[1][1].messages, (unsigned long long)m->streams[0][1].messages);
}

const struct slot_ops slot_sum_ops = {
    .name = "sum",
    .kind = SLOT_STREAM,
    .max_ns = 2000,
    .attach = sum_attach,
    .detach = free,
    .stream = sum_stream,
    .stat = sum_stat,
};

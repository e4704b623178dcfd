/* The chain of slots of one queue pair. See slot/slot.h for the order in which they are called. */
#include "slot/slot.h"

#include "base/util.h"
#include "slots.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Reading the clock costs as much as a small slot: one call in so many is timed. */
#define MEASURE_EVERY 16u
#define BOUND_BYTES   4096u

/*
 * A packet that a BESIDE slot dropped comes again. Those that had seen it before do not see it again: they are skipped
 * up to the one that dropped it.
 */
struct again {
    bool pending;
    uint32_t psn, offset;
    unsigned from; /* calls that were made */
};

struct attached {
    const struct slot_ops *ops;
    void *state;
    struct slot_counters n;
};

struct slot_chain {
    uint32_t qpn, overhead;
    unsigned nslots;
    struct attached slots[SLOT_MAX];
    struct again again[2]; /* requests, responses: two streams of PSNs */
};

static const struct slot_ops *const registry[] = {&slot_count_ops, &slot_sum_ops};

const struct slot_ops *slot_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(registry); i++)
        if (strcmp(registry[i]->name, name) == 0)
            return registry[i];
    return NULL;
}

int slot_chain_new(uint32_t qpn, struct slot_chain **ret)
{
    struct slot_chain *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->qpn = qpn;
    *ret = c;
    return 0;
}

void slot_chain_free(struct slot_chain *c)
{
    if (!c)
        return;
    while (c->nslots) {
        struct attached *a = &c->slots[--c->nslots];
        if (a->ops->detach)
            a->ops->detach(a->state);
    }
    free(c);
}

int slot_chain_attach(struct slot_chain *c, const char *spec, char *err, size_t err_size)
{
    char name[64];
    const char *colon = strchr(spec, ':');
    size_t n = colon ? (size_t)(colon - spec) : strlen(spec);
    const struct slot_ops *ops = NULL;
    if (n < sizeof name) {
        memcpy(name, spec, n);
        name[n] = 0;
        ops = slot_find(name);
    }
    if (!ops) {
        snprintf(err, err_size, "no service slot '%.*s'", (int)(n < 64 ? n : 64), spec);
        return -ENOENT;
    }
    return slot_chain_attach_ops(c, ops, colon ? colon + 1 : NULL, err, err_size);
}

int slot_chain_attach_ops(struct slot_chain *c, const struct slot_ops *ops, const char *config, char *err,
                          size_t err_size)
{
    uint32_t overhead = ops->kind == SLOT_PATH ? ops->overhead : 0;
    if (c->nslots == SLOT_MAX) {
        snprintf(err, err_size, "slot %s: a queue pair has at most %u slots", ops->name, SLOT_MAX);
        return -ENOSPC;
    }
    if (overhead % 4 || overhead > SLOT_OVERHEAD_MAX - c->overhead) {
        snprintf(err, err_size, "slot %s: adds %u bytes to a packet; %u are left, in steps of 4", ops->name, overhead,
                 SLOT_OVERHEAD_MAX - c->overhead);
        return -ENOSPC;
    }
    if (err_size)
        *err = 0;
    void *state = ops->attach(config, c->qpn, err, err_size);
    if (!state) {
        if (err_size && !*err)
            snprintf(err, err_size, "slot %s: out of memory", ops->name);
        return -EINVAL;
    }
    c->slots[c->nslots++] = (struct attached){.ops = ops, .state = state};
    c->overhead += overhead;
    return 0;
}

uint32_t slot_chain_overhead(const struct slot_chain *c)
{
    return c->overhead;
}

bool slot_chain_sees_payload(const struct slot_chain *c)
{
    for (unsigned i = 0; i < c->nslots; i++)
        if (c->slots[i].ops->kind != SLOT_PATH)
            return true;
    return false;
}

/* The slot that is called i-th: in the order of attachment, or on receive in the opposite one. */
static struct attached *nth(struct slot_chain *c, bool send, unsigned i)
{
    return &c->slots[send ? i : c->nslots - 1 - i];
}

static uint64_t begin(const struct attached *a)
{
    return a->n.packets % MEASURE_EVERY == 0 ? now_ns() : 0;
}

static void end(struct attached *a, uint64_t t0, size_t len)
{
    uint64_t bound = (uint64_t)a->ops->max_ns * (len ? (len + BOUND_BYTES - 1) / BOUND_BYTES : 1);
    a->n.packets++;
    a->n.bytes += len;
    if (t0) {
        a->n.measured++;
        a->n.over += now_ns() - t0 > bound;
    }
}

int slot_chain_path(struct slot_chain *c, const struct slot_packet *p, uint8_t *data, size_t len, size_t room)
{
    if (p->send ? room < len + c->overhead : len > room)
        return -ENOSPC;
    if (!p->send && len < c->overhead)
        return -EBADMSG;
    for (unsigned i = 0; i < c->nslots; i++) {
        struct attached *a = nth(c, p->send, i);
        if (a->ops->kind != SLOT_PATH)
            continue;
        uint64_t t0 = begin(a);
        int rc = a->ops->path(a->state, p, data, len);
        end(a, t0, len);
        if (rc) {
            a->n.dropped++;
            return rc;
        }
        len = p->send ? len + a->ops->overhead : len - a->ops->overhead;
    }
    return (int)len;
}

static size_t iov_bytes(const struct iovec *iov, int niov)
{
    size_t n = 0;
    for (int i = 0; i < niov; i++)
        n += iov[i].iov_len;
    return n;
}

/* The BESIDE slots, from the one on that dropped this packet before, if one did. */
static enum slot_verdict call_beside(struct slot_chain *c, const struct slot_packet *p, const struct iovec *iov,
                                     int niov, size_t len)
{
    struct again *g = &c->again[p->response];
    unsigned from = 0;
    if (!p->send) {
        from = g->pending && g->psn == p->psn && g->offset == p->offset ? g->from : 0;
        g->pending = false;
    }
    for (unsigned i = from; i < c->nslots; i++) {
        struct attached *a = nth(c, p->send, i);
        if (a->ops->kind != SLOT_BESIDE)
            continue;
        uint64_t t0 = begin(a);
        enum slot_verdict v = a->ops->beside(a->state, p, iov, niov);
        end(a, t0, len);
        if (v == SLOT_ACCEPT || p->send)
            continue;
        if (v == SLOT_DROP) {
            a->n.dropped++;
            *g = (struct again){true, p->psn, p->offset, i};
        } else {
            a->n.refused++;
        }
        return v == SLOT_DROP ? SLOT_DROP : SLOT_REFUSE;
    }
    return SLOT_ACCEPT;
}

static enum slot_verdict call_stream(struct slot_chain *c, const struct slot_packet *p, const struct iovec *iov,
                                     int niov, size_t len, uint64_t *ret_value, bool *ret_has_value)
{
    bool has = false;
    for (unsigned i = 0; i < c->nslots; i++) {
        struct attached *a = nth(c, p->send, i);
        uint64_t value = 0;
        bool mine = false;
        if (a->ops->kind != SLOT_STREAM)
            continue;
        uint64_t t0 = begin(a);
        enum slot_verdict v = a->ops->stream(a->state, p, iov, niov, &value, &mine);
        end(a, t0, len);
        if (v != SLOT_ACCEPT && !p->send) {
            a->n.refused++;
            return SLOT_REFUSE;
        }
        /* On receive the one attached first is called last. */
        if (mine && p->last && (!has || !p->send)) {
            *ret_value = value;
            *ret_has_value = has = true;
        }
    }
    return SLOT_ACCEPT;
}

enum slot_verdict slot_chain_payload(struct slot_chain *c, const struct slot_packet *p, const struct iovec *iov,
                                     int niov, uint64_t *ret_value, bool *ret_has_value)
{
    size_t len = iov_bytes(iov, niov);
    if (p->send) {
        call_stream(c, p, iov, niov, len, ret_value, ret_has_value);
        return call_beside(c, p, iov, niov, len);
    }
    enum slot_verdict v = call_beside(c, p, iov, niov, len);
    return v == SLOT_ACCEPT ? call_stream(c, p, iov, niov, len, ret_value, ret_has_value) : v;
}

int slot_chain_counters(const struct slot_chain *c, unsigned i, const char **ret_name, struct slot_counters *ret)
{
    if (i >= c->nslots)
        return -ENOENT;
    *ret_name = c->slots[i].ops->name;
    *ret = c->slots[i].n;
    return 0;
}

void slot_print(struct slot_text *t, const char *fmt, ...)
{
    va_list ap;
    if (t->used + 1 >= t->size)
        return;
    va_start(ap, fmt);
    int n = vsnprintf(t->buf + t->used, t->size - t->used, fmt, ap);
    va_end(ap);
    t->used += n < 0 ? 0 : min_u64((uint64_t)n, t->size - t->used - 1);
}

void slot_chain_stat(struct slot_chain *c, char *buf, size_t size)
{
    static const char *const kinds[] = {"path", "beside", "stream"};
    struct slot_text t = {buf, size, 0};
    if (!size)
        return;
    *buf = 0;
    for (unsigned i = 0; i < c->nslots; i++) {
        const struct attached *a = &c->slots[i];
        char own[4096] = "", *save = NULL;
        slot_print(&t, "%s (%s): packets %llu bytes %llu dropped %llu refused %llu over %u ns: %llu of %llu measured\n",
                   a->ops->name, kinds[a->ops->kind], (unsigned long long)a->n.packets, (unsigned long long)a->n.bytes,
                   (unsigned long long)a->n.dropped, (unsigned long long)a->n.refused, a->ops->max_ns,
                   (unsigned long long)a->n.over, (unsigned long long)a->n.measured);
        if (a->ops->stat)
            a->ops->stat(a->state, own, sizeof own);
        for (char *line = strtok_r(own, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
            slot_print(&t, "  %s\n", line);
    }
}

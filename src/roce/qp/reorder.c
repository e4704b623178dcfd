/*
 * Packets past a gap, kept until it closes (selective repeat). The buffers are the engine's, so that memory is bounded
 * however many queue pairs there are; a queue pair has a ring of indices by PSN.
 */
#include "impl.h"

static int pool_init(struct pkt_pool *p)
{
    if (p->buf)
        return 0;
    p->buf = calloc(QP_REORDER_POOL, sizeof *p->buf); /* untouched pages take no memory, and few are touched */
    p->free = malloc(QP_REORDER_POOL * sizeof *p->free);
    if (!p->buf || !p->free) {
        free(p->buf);
        free(p->free);
        *p = (struct pkt_pool){0};
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < QP_REORDER_POOL; i++)
        p->free[p->nfree++] = (uint16_t)(QP_REORDER_POOL - 1 - i);
    return 0;
}

int reorder_init(struct qp_engine *e, struct reorder *r)
{
    uint32_t n = 16;
    int rc;

    if (r->slot)
        return 0;
    rc = pool_init(&e->pool);
    if (rc)
        return rc;
    while (n < e->cfg.reorder_pkts)
        n *= 2;
    r->slot = calloc(n, sizeof *r->slot);
    if (!r->slot)
        return -ENOMEM;
    r->mask = n - 1;
    r->count = 0;
    return 0;
}

void reorder_clear(struct qp_engine *e, struct reorder *r)
{
    for (uint32_t i = 0; r->count && i <= r->mask; i++) {
        if (!r->slot[i])
            continue;
        reorder_done(e, &e->pool.buf[r->slot[i] - 1]);
        r->slot[i] = 0;
        r->count--;
    }
}

void reorder_free(struct qp_engine *e, struct reorder *r)
{
    reorder_clear(e, r);
    free(r->slot);
    r->slot = NULL;
}

bool reorder_put(struct qp_engine *e, struct reorder *r, psn24 next, const struct qp_rx *rx, bool *ret_dup)
{
    uint16_t *slot = &r->slot[rx->pkt.psn.v & r->mask];
    struct pkt_buf *b;

    *ret_dup = false;
    if (psn_dist(rx->pkt.psn, next) > r->mask || rx->pkt.payload_len > sizeof b->bytes)
        return false;
    if (*slot) {
        *ret_dup = true;
        return true;
    }
    if (!e->pool.nfree)
        return false;
    b = &e->pool.buf[e->pool.free[e->pool.nfree - 1]];
    if (rx_copy(rx, b->bytes, 0, rx->pkt.payload_len))
        return false;
    e->pool.nfree--;
    b->pkt = rx->pkt;
    *slot = (uint16_t)(b - e->pool.buf + 1);
    r->count++;
    return true;
}

struct pkt_buf *reorder_take(struct qp_engine *e, struct reorder *r, psn24 psn)
{
    uint16_t *slot = &r->slot[psn.v & r->mask];
    struct pkt_buf *b;

    if (!*slot)
        return NULL;
    b = &e->pool.buf[*slot - 1];
    *slot = 0;
    r->count--;
    if (b->pkt.psn.v != psn.v) { /* passed over: the packets up to there came another way */
        reorder_done(e, b);
        return NULL;
    }
    return b;
}

bool reorder_first(struct qp_engine *e, struct reorder *r, psn24 next, psn24 *ret)
{
    for (uint32_t i = 0; r->count && i <= r->mask; i++) {
        psn24 psn = psn_add(next, i);
        uint16_t *slot = &r->slot[psn.v & r->mask];
        if (!*slot)
            continue;
        if (e->pool.buf[*slot - 1].pkt.psn.v == psn.v) {
            *ret = psn;
            return true;
        }
        reorder_done(e, &e->pool.buf[*slot - 1]); /* passed over */
        *slot = 0;
        r->count--;
    }
    return false;
}

void reorder_done(struct qp_engine *e, struct pkt_buf *b)
{
    e->pool.free[e->pool.nfree++] = (uint16_t)(b - e->pool.buf);
}

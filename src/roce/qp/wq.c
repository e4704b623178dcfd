/* Rings of work requests, shared receive queues. */
#include "impl.h"

int ring_init(struct ring *r, uint32_t entries, uint32_t head_bytes, uint32_t max_sge, uint32_t inline_bytes)
{
    uint32_t n = 1, data = max_sge * (uint32_t)sizeof(struct uroce_sge);

    memset(r, 0, sizeof *r);
    if (!entries)
        return 0;
    while (n < entries)
        n *= 2;
    if (data < inline_bytes)
        data = inline_bytes;
    r->stride = (uint32_t)align_up(head_bytes + data, 8);
    r->mask = n - 1;
    r->max_sge = max_sge;
    r->mem = calloc(n, r->stride);
    return r->mem ? 0 : -ENOMEM;
}

void ring_free(struct ring *r)
{
    free(r->mem);
    r->mem = NULL;
}

int rq_post(struct ring *r, const struct uroce_recv_wr *wr)
{
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    struct rq_wqe *w;
    uint64_t len = 0;

    if (!r->mem || wr->num_sge < 0 || (uint32_t)wr->num_sge > r->max_sge)
        return -EINVAL;
    for (int i = 0; i < wr->num_sge; i++)
        len += wr->sg_list[i].length;
    if (len > UINT32_MAX)
        return -EINVAL;
    if (tail - atomic_load_explicit(&r->done, memory_order_acquire) > r->mask)
        return -ENOMEM;
    w = ring_at(r, tail);
    w->wr_id = wr->wr_id;
    w->len = (uint32_t)len;
    w->nsge = (uint32_t)wr->num_sge;
    if (w->nsge)
        memcpy(w->sge, wr->sg_list, w->nsge * sizeof *w->sge);
    atomic_store(&r->tail, tail + 1); /* seq_cst: see needs_doorbell */
    return 0;
}

bool rq_take(struct ring *r, struct recv_cur *ret)
{
    uint32_t done = atomic_load_explicit(&r->done, memory_order_relaxed);
    const struct rq_wqe *w;

    if (!r->mem || done == atomic_load(&r->tail))
        return false;
    w = ring_at(r, done);
    ret->valid = true;
    ret->begun = false;
    ret->done = 0;
    ret->wr_id = w->wr_id;
    ret->len = w->len;
    ret->nsge = w->nsge;
    memcpy(ret->sge, w->sge, w->nsge * sizeof *w->sge);
    atomic_store_explicit(&r->done, done + 1, memory_order_release);
    return true;
}

/* ---- shared receive queues ---- */

bool srq_take(struct qp_srq *srq, struct recv_cur *ret)
{
    uint32_t left;

    if (!rq_take(&srq->rq, ret))
        return false;
    left = atomic_load_explicit(&srq->rq.tail, memory_order_relaxed) -
           atomic_load_explicit(&srq->rq.done, memory_order_relaxed);
    if (srq->limit && left < srq->limit) {
        srq->limit = 0; /* told once (IBTA 10.2.9.2) */
        engine_event(srq->e, UROCE_EVENT_SRQ_LIMIT_REACHED, srq->user);
    }
    return true;
}

/* A number for an XRC SRQ: its place in the engine's table. */
static int xrc_number(struct qp_srq *srq)
{
    struct qp_engine *e = srq->e;
    struct qp_srq **t;
    uint32_t i, n;

    for (i = 1; i < e->xrc_cap; i++)
        if (!e->xrc_srqs[i])
            break;
    if (i >= e->xrc_cap) {
        n = e->xrc_cap ? e->xrc_cap * 2 : 16;
        if (n > QP_XRC_SRQS)
            return -ENOSPC;
        t = realloc(e->xrc_srqs, n * sizeof(struct qp_srq *));
        if (!t)
            return -ENOMEM;
        memset(t + e->xrc_cap, 0, (n - e->xrc_cap) * sizeof(struct qp_srq *));
        i = e->xrc_cap ? e->xrc_cap : 1;
        e->xrc_srqs = t;
        e->xrc_cap = n;
    }
    e->xrc_srqs[i] = srq;
    srq->num = i;
    return 0;
}

int qp_srq_new(struct qp_pd *pd, uint32_t max_wr, uint32_t max_sge, struct qp_xrcd *xrcd, struct qp_cq *cq, void *user,
               struct qp_srq **ret)
{
    struct qp_srq *s;
    int r;

    if (!max_wr || max_wr > UROCE_WR_MAX || max_sge > UROCE_SGE_MAX || !xrcd != !cq)
        return -EINVAL;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    *s = (struct qp_srq){.e = pd->e, .pd = pd, .xrcd = xrcd, .cq = cq, .user = user, .max_wr = max_wr};
    r = ring_init(&s->rq, max_wr, sizeof(struct rq_wqe), max_sge ? max_sge : 1, 0);
    if (!r && xrcd)
        r = xrc_number(s);
    if (r) {
        ring_free(&s->rq);
        free(s);
        return r;
    }
    pd->refs++;
    pd->e->objects++;
    if (xrcd) {
        xrcd->refs++;
        cq->refs++;
    }
    *ret = s;
    return 0;
}

/* XRC: queue pairs find it by number; none may be in the middle of a message for it. */
static bool xrc_leave(const struct qp_srq *srq)
{
    struct qp_engine *e = srq->e;

    for (int pass = 0; pass < 2; pass++) {
        list_for_each (it, &e->all) {
            struct qp *qp = list_entry(it, struct qp, all);
            if (qp->type != UROCE_QPT_XRC_RECV || qp->resp.srq != srq)
                continue;
            if (qp->resp.recv.valid)
                return false;
            if (pass)
                qp->resp.srq = NULL;
        }
    }
    return true;
}

int qp_srq_free(struct qp_srq *srq)
{
    if (srq->refs || (srq->xrcd && !xrc_leave(srq)))
        return -EBUSY;
    if (srq->xrcd) {
        srq->e->xrc_srqs[srq->num] = NULL;
        srq->xrcd->refs--;
        srq->cq->refs--;
    }
    srq->pd->refs--;
    srq->e->objects--;
    ring_free(&srq->rq);
    free(srq);
    return 0;
}

int qp_srq_modify(struct qp_srq *srq, bool set_limit, uint32_t limit, bool set_size, uint32_t max_wr)
{
    if (set_size && max_wr > srq->rq.mask + 1)
        return -EOPNOTSUPP; /* requests may be posted at the same time: the ring stays */
    if (set_limit && limit > (set_size ? max_wr : srq->max_wr))
        return -EINVAL;
    if (set_size)
        srq->max_wr = max_wr;
    if (set_limit)
        srq->limit = limit;
    return 0;
}

void qp_srq_query(const struct qp_srq *srq, uint32_t *ret_max_wr, uint32_t *ret_max_sge, uint32_t *ret_limit)
{
    *ret_max_wr = srq->rq.mask + 1;
    *ret_max_sge = srq->rq.max_sge;
    *ret_limit = srq->limit;
}

uint32_t qp_srq_num(const struct qp_srq *srq)
{
    return srq->num;
}

int qp_post_srq_recv(struct qp_srq *srq, const struct uroce_recv_wr *wr, const struct uroce_recv_wr **ret_bad)
{
    for (; wr; wr = wr->next) {
        int r = rq_post(&srq->rq, wr);
        if (r) {
            *ret_bad = wr;
            return r;
        }
    }
    return 0;
}

int qp_xrcd_new(struct qp_engine *e, struct qp_xrcd **ret)
{
    struct qp_xrcd *x = calloc(1, sizeof *x);

    if (!x)
        return -ENOMEM;
    x->e = e;
    e->objects++;
    *ret = x;
    return 0;
}

int qp_xrcd_free(struct qp_xrcd *xrcd)
{
    if (xrcd->refs)
        return -EBUSY;
    xrcd->e->objects--;
    free(xrcd);
    return 0;
}

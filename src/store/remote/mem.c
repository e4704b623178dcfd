/*
 * Memory that the server may reach: one registered arena, cut into runs, and the regions of the process's memory table,
 * registered here once each at first use.
 */
#include "queue.h"

#include "fabric/export.h"

#include <sys/mman.h>

static void wake(struct mem_holder *h)
{
    rq_wake(container_of(h, struct rqueue, holder));
}

/* Memory may be a memfd for the transport's sake alone. */
static struct rexport *new_export(struct rqueue *q, int memfd, uint64_t bytes)
{
    return rq_export_new(remote_takes_exports(q->r) ? memfd : -1, bytes);
}

int rq_mem_open(struct rqueue *q)
{
    void *p;
    int r;

    r = export_memory_or_private(remote_takes_exports(q->r) || fab_shares(q->way->fab), q->arena_bytes, &p,
                                 &q->arena_fd);
    if (r < 0)
        return r;
    q->arena = p;
    q->arena_export = new_export(q, q->arena_fd, q->arena_bytes);
    r = bitmap_init(&q->arena_used, q->arena_bytes / ARENA_GRAIN);
    if (r == 0)
        r = fab_mr_reg_memfd(q->shard, p, q->arena_bytes, FAB_REMOTE_READ | FAB_REMOTE_WRITE, q->arena_fd,
                             &q->arena_mr);
    if (r < 0)
        return r;
    q->mem_generation = mem_generation();
    q->holder.wake = wake;
    mem_holder_add(&q->holder);
    return 0;
}

static void drop_region(struct rqueue *q, uint32_t i)
{
    if (q->region[i].mr)
        fab_mr_close(q->region[i].mr);
    rq_export_free(q, q->region[i].export); /* no request names it: the daemon does not use it */
    mem_release(q->region[i].region);
    q->region[i] = q->region[--q->nregions];
}

void rq_mem_leave(struct rqueue *q)
{
    if (q->holder.wake)
        mem_holder_remove(&q->holder);
    q->holder.wake = NULL;
}

void rq_mem_close(struct rqueue *q)
{
    while (q->nregions)
        drop_region(q, 0);
    fab_mr_close(q->arena_mr);
    bitmap_done(&q->arena_used);
    rq_export_free(q, q->arena_export);
    if (q->arena)
        munmap(q->arena, q->arena_bytes);
    if (q->arena_fd >= 0)
        close(q->arena_fd);
    q->arena_mr = NULL;
    q->arena_export = NULL;
    q->arena = NULL;
    q->arena_fd = -1;
}

void rq_mem_check(struct rqueue *q)
{
    uint64_t now = mem_generation();

    if (now == q->mem_generation)
        return;
    q->mem_generation = now;
    for (uint32_t i = q->nregions; i-- > 0;)
        if (mem_closing(q->region[i].region))
            drop_region(q, i);
}

/* A region that the rop is a user of, registered; NULL: use the arena. */
static struct qregion *register_region(struct rqueue *q, struct mem_region *m)
{
    uint32_t access = FAB_REMOTE_READ | (m->source ? 0 : FAB_REMOTE_WRITE);
    struct fab_mr *mr = NULL;

    for (uint32_t i = 0; i < q->nregions; i++)
        if (q->region[i].region == m)
            return q->region[i].mr ? &q->region[i] : NULL;
    if (q->nregions == QREGIONS_MAX)
        return NULL;
    mem_hold(m);
    if (fab_mr_reg_memfd(q->shard, m->base, m->len, access, m->fd, &mr) < 0) {
        log_debug("%zu bytes cannot be registered: they are copied", m->len);
        mr = NULL;
    }
    q->region[q->nregions] = (struct qregion){m, mr, new_export(q, m->fd, m->len)};
    return q->region[q->nregions++].mr ? &q->region[q->nregions - 1] : NULL;
}

static void unuse(struct rop *p)
{
    while (p->nregions)
        mem_unuse(p->region[--p->nregions]);
}

static bool is_write(const struct pst_op *op)
{
    return op->kind == PST_OP_WRITE || op->kind == PST_OP_CHUNK_REPLACE;
}

/* All parts of the operation by registered regions; false: not possible. */
static bool direct(struct rqueue *q, struct rop *p, struct dp_request *req)
{
    const struct pst_op *op = p->op;
    struct dp_seg exported[DP_SEGS_MAX];
    uint32_t nexported = 0;

    req->nsegs = 0;
    if (op->iovcnt > DP_SEGS_MAX)
        return false;
    for (uint32_t i = 0; i < op->iovcnt; i++) {
        const struct iovec *v = &op->iov[i];
        struct dp_seg *seg = &req->seg[req->nsegs];
        struct mem_region *m;
        struct qregion *k;
        if (!v->iov_len)
            continue;
        m = mem_use(v->iov_base, v->iov_len);
        if (!m)
            break;
        p->region[p->nregions++] = m;
        k = m->source && !is_write(op) ? NULL : register_region(q, m);
        if (!k)
            break;
        fab_mr_remote(k->mr, v->iov_base, &seg->addr, &seg->key);
        seg->len = (uint32_t)v->iov_len;
        exported[req->nsegs].len = seg->len;
        nexported += rq_export_use(q, k->export, (uint64_t)((uint8_t *)v->iov_base - m->base), &exported[req->nsegs]);
        req->nsegs++;
        continue;
    }
    if (req->nsegs && req->nsegs == p->nregions) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < req->nsegs; i++)
            sum += req->seg[i].len;
        if (sum == op->length) {
            p->is_exported = nexported == req->nsegs;
            if (p->is_exported)
                memcpy(req->seg, exported, nexported * sizeof exported[0]);
            return true;
        }
    }
    unuse(p);
    req->nsegs = 0;
    return false;
}

uint8_t *rq_mem_run(struct rqueue *q, const struct rop *p)
{
    return q->arena + p->run * ARENA_GRAIN;
}

/* placement=exported: nothing crosses; third-party: not before that has been tried. */
static bool may_place(struct rqueue *q, const struct rop *p)
{
    return p->is_exported || (q->r->placement != PLACE_EXPORTED && !rq_third_is_pending(q));
}

static void note_placement(struct rqueue *q, struct rop *p, struct dp_request *ret)
{
    if (!p->is_exported) {
        rq_third_use(q, p, ret);
        return;
    }
    ret->flags |= DP_F_EXPORTED;
    atomic_fetch_add_explicit(&q->r->exported_bytes, p->op->length, memory_order_relaxed);
}

int rq_mem_prepare(struct rqueue *q, struct rop *p, struct dp_request *ret)
{
    uint64_t want = (p->op->length + ARENA_GRAIN - 1) / ARENA_GRAIN, start;
    uint8_t *to;

    p->is_exported = false;
    if (direct(q, p, ret)) {
        if (may_place(q, p)) {
            atomic_fetch_add_explicit(&q->r->direct_bytes, p->op->length, memory_order_relaxed);
            note_placement(q, p, ret);
            return 0;
        }
        unuse(p);
    }
    if (bitmap_find_clear(&q->arena_used, 0, want, &start) < want)
        return -EAGAIN;
    bitmap_set(&q->arena_used, start, want);
    p->run = (uint32_t)start;
    p->run_len = (uint32_t)want;
    to = rq_mem_run(q, p);
    p->is_exported = rq_export_use(q, q->arena_export, (uint64_t)(to - q->arena), &ret->seg[0]);
    if (!p->is_exported)
        fab_mr_remote(q->arena_mr, to, &ret->seg[0].addr, &ret->seg[0].key);
    if (!may_place(q, p)) { /* until the hand-over is done */
        rq_mem_release_rop(q, p);
        return -EAGAIN;
    }
    atomic_fetch_add_explicit(&q->r->copied_bytes, p->op->length, memory_order_relaxed);
    ret->seg[0].len = (uint32_t)p->op->length;
    ret->nsegs = 1;
    note_placement(q, p, ret);
    for (uint32_t i = 0; is_write(p->op) && i < p->op->iovcnt; to += p->op->iov[i].iov_len, i++)
        memcpy(to, p->op->iov[i].iov_base, p->op->iov[i].iov_len);
    return 0;
}

void rq_mem_release_rop(struct rqueue *q, struct rop *p)
{
    rq_third_unuse(q, p);
    unuse(p);
    if (p->run_len)
        bitmap_clear(&q->arena_used, p->run, p->run_len);
    p->run_len = 0;
}

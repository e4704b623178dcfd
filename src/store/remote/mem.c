/*
 * Memory that the server may reach: one registered arena, cut into runs, and the regions of the process's memory table,
 * registered here once each at first use.
 */
#include "queue.h"

#include <sys/mman.h>

static void wake(struct mem_holder *h)
{
    rq_wake(container_of(h, struct rqueue, holder));
}

int rq_mem_open(struct rqueue *q)
{
    void *p = mmap(NULL, q->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int r;

    if (p == MAP_FAILED)
        return -ENOMEM;
    q->arena = p;
    r = bitmap_init(&q->arena_used, q->arena_bytes / ARENA_GRAIN);
    if (r == 0)
        r = fab_mr_reg(q->shard, p, q->arena_bytes, FAB_REMOTE_READ | FAB_REMOTE_WRITE, &q->arena_mr);
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
    mem_release(q->region[i].region);
    q->region[i] = q->region[--q->nregions];
}

void rq_mem_leave(struct rqueue *q)
{
    if (q->holder.wake)
        mem_holder_remove(&q->holder);
}

void rq_mem_close(struct rqueue *q)
{
    while (q->nregions)
        drop_region(q, 0);
    if (q->arena_mr)
        fab_mr_close(q->arena_mr);
    bitmap_done(&q->arena_used);
    if (q->arena)
        munmap(q->arena, q->arena_bytes);
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

/* The registration of a region that the rop is a user of; NULL: not registered, use the arena. */
static struct fab_mr *register_region(struct rqueue *q, struct mem_region *m)
{
    struct fab_mr *mr = NULL;

    for (uint32_t i = 0; i < q->nregions; i++)
        if (q->region[i].region == m)
            return q->region[i].mr;
    if (q->nregions == QREGIONS_MAX)
        return NULL;
    mem_hold(m);
    if (fab_mr_reg(q->shard, m->base, m->len, FAB_REMOTE_READ | FAB_REMOTE_WRITE, &mr) < 0) {
        log_debug("%zu bytes cannot be registered: they are copied", m->len);
        mr = NULL;
    }
    q->region[q->nregions++] = (struct qregion){m, mr};
    return mr;
}

static void unuse(struct rop *p)
{
    while (p->nregions)
        mem_unuse(p->region[--p->nregions]);
}

/* All parts of the operation by registered regions; false: not possible. */
static bool direct(struct rqueue *q, struct rop *p, struct dp_request *req)
{
    const struct pst_op *op = p->op;

    req->nsegs = 0;
    if (op->iovcnt > DP_SEGS_MAX)
        return false;
    for (uint32_t i = 0; i < op->iovcnt; i++) {
        const struct iovec *v = &op->iov[i];
        struct dp_seg *seg = &req->seg[req->nsegs];
        struct mem_region *m;
        struct fab_mr *mr;
        if (!v->iov_len)
            continue;
        m = mem_use(v->iov_base, v->iov_len);
        if (!m)
            break;
        p->region[p->nregions++] = m;
        mr = register_region(q, m);
        if (!mr)
            break;
        fab_mr_remote(mr, v->iov_base, &seg->addr, &seg->key);
        seg->len = (uint32_t)v->iov_len;
        req->nsegs++;
        continue;
    }
    if (req->nsegs && req->nsegs == p->nregions) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < req->nsegs; i++)
            sum += req->seg[i].len;
        if (sum == op->length)
            return true;
    }
    unuse(p);
    req->nsegs = 0;
    return false;
}

uint8_t *rq_mem_run(struct rqueue *q, const struct rop *p)
{
    return q->arena + p->run * ARENA_GRAIN;
}

static bool is_write(const struct pst_op *op)
{
    return op->kind == PST_OP_WRITE || op->kind == PST_OP_CHUNK_REPLACE;
}

int rq_mem_prepare(struct rqueue *q, struct rop *p, struct dp_request *ret)
{
    uint64_t want = (p->op->length + ARENA_GRAIN - 1) / ARENA_GRAIN, start;
    uint8_t *to;

    if (direct(q, p, ret)) {
        atomic_fetch_add_explicit(&q->r->direct_bytes, p->op->length, memory_order_relaxed);
        return 0;
    }
    if (bitmap_find_clear(&q->arena_used, 0, want, &start) < want)
        return -EAGAIN;
    bitmap_set(&q->arena_used, start, want);
    p->run = (uint32_t)start;
    p->run_len = (uint32_t)want;
    to = rq_mem_run(q, p);
    atomic_fetch_add_explicit(&q->r->copied_bytes, p->op->length, memory_order_relaxed);
    fab_mr_remote(q->arena_mr, to, &ret->seg[0].addr, &ret->seg[0].key);
    ret->seg[0].len = (uint32_t)p->op->length;
    ret->nsegs = 1;
    for (uint32_t i = 0; is_write(p->op) && i < p->op->iovcnt; to += p->op->iov[i].iov_len, i++)
        memcpy(to, p->op->iov[i].iov_base, p->op->iov[i].iov_len);
    return 0;
}

void rq_mem_release_rop(struct rqueue *q, struct rop *p)
{
    unuse(p);
    if (p->run_len)
        bitmap_clear(&q->arena_used, p->run, p->run_len);
    p->run_len = 0;
}

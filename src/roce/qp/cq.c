/* Completion queues: a ring with the engine as producer and the poller as consumer. */
#include "impl.h"

static int alloc_ring(uint32_t cqe, struct uroce_wc **ret, uint32_t *ret_mask)
{
    uint32_t n = 16;

    if (!cqe || cqe > UROCE_CQE_MAX)
        return -EINVAL;
    while (n < cqe)
        n *= 2;
    *ret = calloc(n, sizeof **ret);
    if (!*ret)
        return -ENOMEM;
    *ret_mask = n - 1;
    return 0;
}

int qp_cq_new(struct qp_engine *e, uint32_t cqe, void *user, struct qp_cq **ret)
{
    struct qp_cq *cq = calloc(1, sizeof *cq);
    int r;

    if (!cq)
        return -ENOMEM;
    r = alloc_ring(cqe, &cq->ring, &cq->mask);
    if (r) {
        free(cq);
        return r;
    }
    cq->e = e;
    cq->user = user;
    e->objects++;
    *ret = cq;
    return 0;
}

int qp_cq_free(struct qp_cq *cq)
{
    if (cq->refs)
        return -EBUSY;
    cq->e->objects--;
    free(cq->ring);
    free(cq);
    return 0;
}

int qp_cq_resize(struct qp_cq *cq, uint32_t cqe)
{
    uint32_t cons = atomic_load(&cq->cons), n = atomic_load(&cq->prod) - cons, mask;
    struct uroce_wc *ring;
    int r = alloc_ring(cqe, &ring, &mask);

    if (r)
        return r;
    if (n > cqe) {
        free(ring);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < n; i++)
        ring[i] = cq->ring[(cons + i) & cq->mask];
    free(cq->ring);
    cq->ring = ring;
    cq->mask = mask;
    atomic_store(&cq->cons, 0);
    atomic_store(&cq->prod, n);
    return 0;
}

uint32_t qp_cq_size(const struct qp_cq *cq)
{
    return cq->mask + 1;
}

uint32_t qp_cq_told(const struct qp_cq *cq)
{
    return atomic_load_explicit(&cq->prod, memory_order_relaxed);
}

uint32_t qp_cq_taken(const struct qp_cq *cq)
{
    return atomic_load_explicit(&cq->cons, memory_order_acquire);
}

int qp_cq_poll(struct qp_cq *cq, int n, struct uroce_wc *ret)
{
    uint32_t cons = atomic_load_explicit(&cq->cons, memory_order_relaxed);
    uint32_t have = atomic_load_explicit(&cq->prod, memory_order_acquire) - cons;
    int i;

    for (i = 0; i < n && have; i++, have--)
        ret[i] = cq->ring[cons++ & cq->mask];
    if (i)
        atomic_store_explicit(&cq->cons, cons, memory_order_release);
    else if (n > 0 && atomic_load_explicit(&cq->overflow, memory_order_relaxed))
        return -EIO;
    return i;
}

bool qp_cq_arm(struct qp_cq *cq, bool solicited_only)
{
    int old = CQ_UNARMED;

    /* A stronger wish that was told before stays. */
    if (!solicited_only)
        atomic_store(&cq->armed, CQ_ARMED_ANY);
    else
        (void)atomic_compare_exchange_strong(&cq->armed, &old, CQ_ARMED_SOLICITED);
    /* Sequentially consistent, as is cq_push: either that one sees the arming or this one the completion. */
    return atomic_load(&cq->prod) != atomic_load(&cq->cons);
}

bool qp_cq_armed(const struct qp_cq *cq)
{
    return atomic_load_explicit(&cq->armed, memory_order_relaxed) != CQ_UNARMED;
}

bool qp_cq_left(struct qp_cq *cq)
{
    int armed = CQ_ARMED_ANY;
    return atomic_load_explicit(&cq->armed, memory_order_relaxed) == CQ_ARMED_ANY &&
           atomic_load(&cq->prod) != atomic_load(&cq->cons) &&
           atomic_compare_exchange_strong(&cq->armed, &armed, CQ_UNARMED);
}

void cq_push(struct qp_cq *cq, const struct uroce_wc *wc, bool solicited)
{
    uint32_t prod = atomic_load_explicit(&cq->prod, memory_order_relaxed);
    int armed;

    if (unlikely(atomic_load_explicit(&cq->overflow, memory_order_relaxed)))
        return;
    if (unlikely(prod - atomic_load_explicit(&cq->cons, memory_order_acquire) > cq->mask)) {
        atomic_store(&cq->overflow, true);
        cq->e->cq_broken = true;
        engine_event(cq->e, UROCE_EVENT_CQ_ERR, cq->user);
        return;
    }
    cq->ring[prod & cq->mask] = *wc;
    cq->ring[prod & cq->mask].timestamp_ns = cq->e->now;
    atomic_store(&cq->prod, prod + 1);
    armed = atomic_load(&cq->armed);
    if (armed == CQ_ARMED_ANY || (armed == CQ_ARMED_SOLICITED && (solicited || wc->status != UROCE_WC_SUCCESS))) {
        atomic_store(&cq->armed, CQ_UNARMED);
        if (cq->e->ops.cq_event)
            cq->e->ops.cq_event(cq->e->cfg.ctx, cq->user);
    }
}

void cq_purge(struct qp_cq *cq, uint32_t qpn)
{
    uint32_t cons = atomic_load(&cq->cons), prod = atomic_load(&cq->prod), to = cons;

    for (uint32_t i = cons; i != prod; i++)
        if (cq->ring[i & cq->mask].qp_num != qpn)
            cq->ring[to++ & cq->mask] = cq->ring[i & cq->mask];
    atomic_store(&cq->prod, to);
}

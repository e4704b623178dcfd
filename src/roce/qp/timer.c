/*
 * Deadlines of queue pairs: one heap, one place for each queue pair. Its key is at or before the true deadline: a timer
 * that moves on (as the ACK timer does with each ACK) leaves the heap alone, and a tick finds that it is not due yet.
 */
#include "impl.h"

int heap_reserve(struct qp_engine *e, uint32_t n)
{
    uint32_t cap = e->heap_cap ? e->heap_cap : 16;
    struct qp **h;

    while (cap < n)
        cap *= 2;
    if (cap == e->heap_cap)
        return 0;
    h = realloc(e->heap, cap * sizeof(struct qp *));
    if (!h)
        return -ENOMEM;
    e->heap = h;
    e->heap_cap = cap;
    return 0;
}

static void put(struct qp_engine *e, uint32_t i, struct qp *qp)
{
    e->heap[i] = qp;
    qp->heap_at = i + 1;
}

static void up(struct qp_engine *e, uint32_t i, struct qp *qp)
{
    while (i && e->heap[(i - 1) / 2]->heap_key > qp->heap_key) {
        put(e, i, e->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(e, i, qp);
}

static void down(struct qp_engine *e, uint32_t i, struct qp *qp)
{
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c + 1 < e->heap_n && e->heap[c + 1]->heap_key < e->heap[c]->heap_key)
            c++;
        if (c >= e->heap_n || e->heap[c]->heap_key >= qp->heap_key)
            break;
        put(e, i, e->heap[c]);
        i = c;
    }
    put(e, i, qp);
}

static uint64_t true_deadline(const struct qp *qp)
{
    uint64_t t = min_u64(min_u64(qp->req.timer, qp->req.rnr_until), qp->req.starve_until);

    if (qp->paced)
        t = min_u64(t, qp->pace_at);
    return min_u64(t, dcqcn_deadline(&qp->cc));
}

void timer_update(struct qp *qp)
{
    struct qp_engine *e = qp->e;
    uint64_t t = true_deadline(qp);

    if (likely(qp->heap_at ? qp->heap_key <= t : t == QP_NEVER))
        return;
    qp->heap_key = t;
    if (!qp->heap_at)
        up(e, e->heap_n++, qp); /* there is room for every queue pair */
    else
        up(e, qp->heap_at - 1, qp);
}

void timer_remove(struct qp *qp)
{
    struct qp_engine *e = qp->e;
    uint32_t i = qp->heap_at - 1;
    struct qp *last;

    if (!qp->heap_at)
        return;
    qp->heap_at = 0;
    last = e->heap[--e->heap_n];
    if (last == qp)
        return;
    if (i && e->heap[(i - 1) / 2]->heap_key > last->heap_key)
        up(e, i, last);
    else
        down(e, i, last);
}

uint64_t qp_engine_deadline(const struct qp_engine *e)
{
    return e->heap_n ? e->heap[0]->heap_key : QP_NEVER;
}

static void fire(struct qp *qp, uint64_t now)
{
    struct requester *r = &qp->req;

    if (dcqcn_deadline(&qp->cc) <= now)
        dcqcn_tick(&qp->cc, &qp->e->cfg.dcqcn, now);
    if (qp->paced && qp->pace_at <= now) {
        qp->paced = false;
        engine_kick(qp);
    }
    if (r->starve_until <= now)
        budget_timeout(qp, now);
    if (r->rnr_until <= now) {
        r->rnr_until = QP_NEVER;
        r->rnr_wait = false;
        req_go_back(qp);
        req_arm(qp, now);
    }
    if (r->timer <= now)
        req_timeout(qp, now);
}

void qp_engine_tick(struct qp_engine *e, uint64_t now_ns)
{
    e->now = now_ns;
    engine_settle(e);
    /* Each queue pair once at most: what fires now is due again later. */
    for (uint32_t n = e->heap_n; n && e->heap_n && e->heap[0]->heap_key <= now_ns; n--) {
        struct qp *qp = e->heap[0];
        timer_remove(qp);
        if (true_deadline(qp) <= now_ns)
            fire(qp, now_ns);
        timer_update(qp);
    }
    engine_settle(e);
}

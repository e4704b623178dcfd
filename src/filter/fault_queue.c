/*
 * Data operations through `delay` and `error`. An operation's frame is on one list:
 *
 *   submit --> early (waits to be passed on) --> below --> late (waits to be handed up) --> reap
 *         \--> late, without an effect (error, when=before)
 *
 * Both lists are in the order of their due times. One timer, readable when something of
 * them is due, is joined with the lower queue's descriptor in an epoll set.
 */
#include "fault.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

struct fault_queue {
    struct filter_queue fq;
    struct list early, late;
    uint32_t below; /* operations that the lower queue has */
    uint64_t armed_ns;
    int timer, epoll;
};

static struct fault_queue *queue_of(struct pst_queue *q)
{
    return container_of(q, struct fault_queue, fq.q);
}

static struct fault *fault_of_queue(const struct fault_queue *q)
{
    return container_of(q->fq.q.store, struct fault, f.st);
}

static uint64_t next_due(const struct fault_queue *q)
{
    uint64_t due = UINT64_MAX;

    if (!list_empty(&q->early))
        due = list_entry(q->early.next, struct filter_frame, link)->due_ns;
    if (!list_empty(&q->late))
        due = min_u64(due, list_entry(q->late.next, struct filter_frame, link)->due_ns);
    return due;
}

/* The timer fires at the next due time; due times are never 0, which would stop it. */
static void arm(struct fault_queue *q)
{
    uint64_t due = next_due(q);
    struct itimerspec t = {0};

    if (due == q->armed_ns)
        return;
    q->armed_ns = due;
    if (due != UINT64_MAX)
        t.it_value = (struct timespec){(time_t)(due / NSEC_PER_SEC), (long)(due % NSEC_PER_SEC)};
    timerfd_settime(q->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static void free_queue(struct fault_queue *q)
{
    if (q->fq.next)
        filter_queue_done(&q->fq);
    if (q->timer >= 0)
        close(q->timer);
    if (q->epoll >= 0)
        close(q->epoll);
    free(q);
}

static int fq_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    struct fault_queue *q = calloc(1, sizeof *q);
    int r;

    if (!q)
        return -ENOMEM;
    list_init(&q->early);
    list_init(&q->late);
    q->armed_ns = UINT64_MAX;
    q->epoll = epoll_create1(EPOLL_CLOEXEC);
    q->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    r = q->epoll < 0 || q->timer < 0 ? -errno : filter_queue_init(&q->fq, st, depth);
    if (r == 0)
        r = filter_watch(q->epoll, q->timer);
    if (r == 0)
        r = filter_watch(q->epoll, pst_queue_fd(q->fq.next));
    if (r < 0) {
        free_queue(q);
        return r;
    }
    *ret = &q->fq.q;
    return 0;
}

static void fq_close(struct pst_queue *q)
{
    free_queue(queue_of(q));
}

static int pass_on(struct fault_queue *q, struct filter_frame *f)
{
    int r = filter_frame_submit(&q->fq, f);

    if (r == 0)
        q->below++;
    return r;
}

/* Ready to be handed up at `due`. */
static void hold(struct fault_queue *q, struct filter_frame *f, uint64_t due)
{
    struct list *at = q->late.prev;

    f->due_ns = due;
    while (at != &q->late && list_entry(at, struct filter_frame, link)->due_ns > due)
        at = at->prev;
    list_insert(at, &f->link);
}

static int fq_submit(struct pst_queue *pq, struct pst_op *op)
{
    struct fault_queue *q = queue_of(pq);
    struct fault *ft = fault_of_queue(q);
    struct filter_frame *f = filter_frame_take(&q->fq, op);
    int r = 0;

    if (!f)
        return -EAGAIN;
    list_init(&f->link);
    if (!fault_hits(ft, op->kind)) {
        r = pass_on(q, f);
    } else if (ft->after) {
        f->due_ns = UINT64_MAX; /* marks it: to be held when it comes back */
        r = pass_on(q, f);
    } else if (ft->error) {
        op->result = ft->error;
        hold(q, f, now_ns());
    } else {
        f->due_ns = now_ns() + ft->delay_ns;
        list_push_back(&q->early, &f->link);
    }
    if (r < 0) {
        filter_frame_drop(&q->fq, f);
        return r;
    }
    arm(q);
    return 0;
}

/* Moves everything that can move. Fills ret_ops. */
static int sweep(struct fault_queue *q, struct pst_op **ret_ops, int max)
{
    struct fault *ft = fault_of_queue(q);
    uint64_t now = now_ns();
    int n = 0, out = 0;

    while (!list_empty(&q->early)) {
        struct filter_frame *f = list_entry(q->early.next, struct filter_frame, link);
        int r;
        if (f->due_ns > now)
            break;
        list_del(&f->link);
        f->due_ns = 0;
        r = pass_on(q, f);
        if (r < 0) { /* the lower queue is as deep as this one, so this is a real refusal */
            f->op->result = r;
            hold(q, f, now);
        }
    }
    /*
     * Until there is something for the caller, or nothing: only after that does the lower queue's descriptor tell of
     * more.
     */
    while (!out && q->below && (n = pst_queue_reap(q->fq.next, ret_ops, max, 0)) > 0) {
        for (int i = 0; i < n; i++) {
            struct filter_frame *f = filter_frame_back(ret_ops[i]);
            q->below--;
            if (f->due_ns != UINT64_MAX) {
                ret_ops[out++] = filter_frame_drop(&q->fq, f);
                continue;
            }
            if (ft->error)
                f->op->result = ft->error;
            hold(q, f, now + ft->delay_ns);
        }
    }
    while (out < max && !list_empty(&q->late)) {
        struct filter_frame *f = list_entry(q->late.next, struct filter_frame, link);
        if (f->due_ns > now)
            break;
        list_del(&f->link);
        ret_ops[out++] = filter_frame_drop(&q->fq, f);
    }
    arm(q);
    return out ? out : n < 0 ? n : 0;
}

static int fq_reap(struct pst_queue *pq, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    struct fault_queue *q = queue_of(pq);
    uint64_t start = now_ns();

    for (;;) {
        int n = sweep(q, ret_ops, max);
        uint64_t spent = now_ns() - start;
        if (n != 0 || spent >= timeout_ns || (!q->below && list_empty(&q->early) && list_empty(&q->late)))
            return n;
        filter_sleep(q->epoll, timeout_ns == UINT64_MAX ? UINT64_MAX : timeout_ns - spent);
    }
}

/* Held-back operations need not wait any longer; one that the lower queue has is its matter. */
static void fq_cancel(struct pst_queue *pq, struct pst_op *op)
{
    struct fault_queue *q = queue_of(pq);

    list_for_each_safe (it, &q->early) {
        struct filter_frame *f = list_entry(it, struct filter_frame, link);
        if (f->op != op)
            continue;
        list_del(&f->link);
        op->result = -ECANCELED;
        hold(q, f, now_ns());
        arm(q);
        return;
    }
    list_for_each_safe (it, &q->late) {
        struct filter_frame *f = list_entry(it, struct filter_frame, link);
        if (f->op != op)
            continue;
        list_del(&f->link);
        hold(q, f, now_ns());
        arm(q);
        return;
    }
    pst_queue_cancel(q->fq.next, op);
}

static int fq_fd(struct pst_queue *q)
{
    return queue_of(q)->epoll;
}

void fault_queue_ops(struct pst_store_ops *ops)
{
    ops->queue_open = fq_open;
    ops->queue_close = fq_close;
    ops->queue_submit = fq_submit;
    ops->queue_reap = fq_reap;
    ops->queue_fd = fq_fd;
    ops->queue_cancel = fq_cancel;
}

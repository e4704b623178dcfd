/* Protection domains, memory, completion queues, shared receive queues: the engine's, with locks around. */
#include "dev.h"

#include <errno.h>
#include <string.h>

/* Before each call that makes an object: dev->objects counts it. */
#define ENTER(dev)                                                                                                     \
    do {                                                                                                               \
        int enter_r = dev_check_fork(dev);                                                                             \
        if (enter_r)                                                                                                   \
            return enter_r;                                                                                            \
    } while (0)

int uroce_pd_alloc(struct uroce_device *dev, struct uroce_pd **ret)
{
    ENTER(dev);
    struct uroce_pd *pd = calloc(1, sizeof *pd);
    if (!pd)
        return -ENOMEM;
    pd->dev = dev;
    dev_lock(dev);
    int r = qp_pd_new(dev->engine, &pd->qp);
    dev_unlock(dev);
    if (r) {
        free(pd);
        return r;
    }
    atomic_fetch_add(&dev->objects, 1);
    *ret = pd;
    return 0;
}

/* The end of an object: the engine's call has succeeded. */
static int gone(struct uroce_device *dev, int r, void *object)
{
    if (r)
        return r;
    atomic_fetch_sub(&dev->objects, 1);
    free(object);
    return 0;
}

int uroce_pd_dealloc(struct uroce_pd *pd)
{
    struct uroce_device *dev = pd->dev;
    ENTER(dev);
    dev_lock(dev);
    int r = qp_pd_free(pd->qp);
    dev_unlock(dev);
    return gone(dev, r, pd);
}

int uroce_mr_reg(struct uroce_pd *pd, void *addr, uint64_t len, uint64_t iova, unsigned int access,
                 struct uroce_mr **ret)
{
    struct uroce_device *dev = pd->dev;
    ENTER(dev);
    struct dev_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return -ENOMEM;
    mr->dev = dev;
    dev_lock(dev);
    int r = qp_mr_reg(pd->qp, addr, len, iova, access, mr, &mr->handle.qp);
    dev_unlock(dev);
    if (r) {
        free(mr);
        return r;
    }
    atomic_fetch_add(&dev->objects, 1);
    *ret = &mr->handle;
    return 0;
}

int uroce_mr_dereg(struct uroce_mr *handle)
{
    struct dev_mr *mr = container_of(handle, struct dev_mr, handle);
    struct uroce_device *dev = mr->dev;
    ENTER(dev);
    dev_lock(dev);
    int r = qp_mr_dereg(handle->qp);
    dev_unlock(dev);
    return gone(dev, r, mr);
}

int uroce_mr_rereg(struct uroce_mr *handle, unsigned int flags, struct uroce_pd *pd, void *addr, uint64_t len,
                   uint64_t iova, unsigned int access)
{
    struct uroce_device *dev = container_of(handle, struct dev_mr, handle)->dev;
    ENTER(dev);
    dev_lock(dev);
    int r = qp_mr_rereg(handle->qp, flags, pd ? pd->qp : NULL, addr, len, iova, access);
    dev_unlock(dev);
    return r;
}

uint32_t uroce_mr_lkey(const struct uroce_mr *mr)
{
    return qp_mr_lkey(mr->qp);
}

uint32_t uroce_mr_rkey(const struct uroce_mr *mr)
{
    return qp_mr_rkey(mr->qp);
}

int uroce_mw_alloc(struct uroce_pd *pd, int type, struct uroce_mw **ret)
{
    struct uroce_device *dev = pd->dev;
    ENTER(dev);
    struct dev_mw *mw = calloc(1, sizeof *mw);
    if (!mw)
        return -ENOMEM;
    mw->dev = dev;
    dev_lock(dev);
    int r = qp_mw_alloc(pd->qp, type, &mw->handle.qp);
    dev_unlock(dev);
    if (r) {
        free(mw);
        return r;
    }
    atomic_fetch_add(&dev->objects, 1);
    *ret = &mw->handle;
    return 0;
}

int uroce_mw_dealloc(struct uroce_mw *handle)
{
    struct dev_mw *mw = container_of(handle, struct dev_mw, handle);
    struct uroce_device *dev = mw->dev;
    ENTER(dev);
    dev_lock(dev);
    int r = qp_mw_dealloc(handle->qp);
    dev_unlock(dev);
    return gone(dev, r, mw);
}

uint32_t uroce_mw_rkey(const struct uroce_mw *mw)
{
    return qp_mw_rkey(mw->qp);
}

/* ---- completion queues ---- */

int uroce_cq_create(struct uroce_device *dev, uint32_t cqe, void *context, struct uroce_channel *ch,
                    struct uroce_cq **ret)
{
    ENTER(dev);
    struct uroce_cq *cq = calloc(1, sizeof *cq);
    if (!cq)
        return -ENOMEM;
    *cq = (struct uroce_cq){.dev = dev, .channel = ch, .context = context};
    pthread_mutex_init(&cq->lock, NULL);
    pthread_cond_init(&cq->acked, NULL);
    list_init(&cq->ready_link);
    dev_subject_init(dev, &cq->subject);
    dev_lock(dev);
    int r = qp_cq_new(dev->engine, cqe, cq, &cq->qp);
    dev_unlock(dev);
    if (r) {
        dev_subject_done(&cq->subject);
        free(cq);
        return r;
    }
    if (ch)
        atomic_fetch_add(&ch->users, 1);
    atomic_fetch_add(&dev->objects, 1);
    *ret = cq;
    return 0;
}

int uroce_cq_resize(struct uroce_cq *cq, uint32_t cqe)
{
    ENTER(cq->dev);
    dev_lock(cq->dev);
    pthread_mutex_lock(&cq->lock);
    int r = qp_cq_resize(cq->qp, cqe);
    pthread_mutex_unlock(&cq->lock);
    dev_unlock(cq->dev);
    return r;
}

uint32_t uroce_cq_size(struct uroce_cq *cq)
{
    scoped_lock(&cq->lock);
    return qp_cq_size(cq->qp);
}

/* Takes the events that nobody has read yet out of the channel, and waits for those that were read. */
static void leave_channel(struct uroce_cq *cq)
{
    struct uroce_channel *ch = cq->channel;
    pthread_mutex_lock(&ch->lock);
    while (cq->events && dev_count_down(ch->counter))
        cq->events--;
    list_del(&cq->ready_link);
    while (cq->unacked)
        pthread_cond_wait(&cq->acked, &ch->lock);
    pthread_mutex_unlock(&ch->lock);
    atomic_fetch_sub(&ch->users, 1);
}

int uroce_cq_destroy(struct uroce_cq *cq)
{
    struct uroce_device *dev = cq->dev;
    ENTER(dev);
    dev_lock(dev);
    pthread_mutex_lock(&cq->lock);
    int r = qp_cq_free(cq->qp);
    pthread_mutex_unlock(&cq->lock);
    dev_unlock(dev);
    if (r)
        return r;
    if (cq->channel)
        leave_channel(cq);
    dev_subject_done(&cq->subject);
    pthread_mutex_destroy(&cq->lock);
    pthread_cond_destroy(&cq->acked);
    return gone(dev, 0, cq);
}

static int poll_once(struct uroce_cq *cq, int n, struct uroce_wc *ret)
{
    scoped_lock(&cq->lock);
    return qp_cq_poll(cq->qp, n, ret);
}

void uroce_cq_left(struct uroce_cq *cq)
{
    if (!cq->channel || dev_check_fork(cq->dev))
        return;
    scoped_lock(&cq->lock);
    if (qp_cq_left(cq->qp))
        dev_cq_event(cq->dev, cq);
}

int uroce_take_cq(struct uroce_cq *cq, int n, struct uroce_wc *ret)
{
    ENTER(cq->dev);
    return poll_once(cq, n, ret);
}

/* A program that was given something, or polls without having armed, does not sleep. */
static void awake(struct uroce_cq *cq, int given)
{
    atomic_bool *armed = &cq->dev->lead.armed;
    if (atomic_load_explicit(armed, memory_order_relaxed) && (given || !qp_cq_armed(cq->qp)))
        atomic_store(armed, false);
}

/*
 * Who always finds completions, which its posts brought, drives as well as who polls in vain, and the helper thread
 * stays out of the way. Not after it armed: then it means to sleep.
 */
static void still_polls(struct uroce_device *dev)
{
    uint_fast64_t since = atomic_load_explicit(&dev->polled_ns, memory_order_relaxed);
    uint64_t now = now_ns();
    if (since && now > since + DEV_STAND_BACK_NS / 4)
        atomic_compare_exchange_strong(&dev->polled_ns, &since, now);
}

int uroce_poll_cq(struct uroce_cq *cq, int n, struct uroce_wc *ret)
{
    ENTER(cq->dev);
    int r = poll_once(cq, n, ret);
    if (r != 0) {
        awake(cq, r);
        still_polls(cq->dev);
        return r;
    }
    /* Arm, poll, sleep: that poll is not one of a program that comes again by itself. */
    if (!dev_take_flag(&cq->just_armed))
        dev_drive_polled(cq->dev);
    else if (cq->channel && atomic_load(&cq->channel->leads))
        return 0; /* the arming looked, and its descriptor tells of packets */
    else
        dev_drive(cq->dev);
    r = poll_once(cq, n, ret);
    awake(cq, r);
    return r;
}

int uroce_req_notify_cq(struct uroce_cq *cq, int solicited_only)
{
    ENTER(cq->dev);
    pthread_mutex_lock(&cq->lock);
    bool waiting = qp_cq_arm(cq->qp, solicited_only);
    pthread_mutex_unlock(&cq->lock);
    atomic_store(&cq->just_armed, true);
    if (cq->channel && dev_lead_arm(cq->channel))
        return waiting;
    /* Whoever arms means to sleep: the helper thread need not stand back any longer. */
    if (atomic_exchange(&cq->dev->polled_ns, 0) && cq->dev->has_thread)
        dev_thread_wake(cq->dev);
    return waiting;
}

int uroce_wait_cq(struct uroce_cq *cq, int n, struct uroce_wc *ret, uint64_t timeout_ns)
{
    struct uroce_device *dev = cq->dev;
    ENTER(dev);
    uint64_t now = now_ns(), end = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
    uint64_t spin = min_u64(end, now + DEV_SPIN_NS);
    int r;
    do
        r = uroce_poll_cq(cq, n, ret);
    while (r == 0 && now_ns() < spin);
    if (r)
        return r;
    atomic_fetch_add(&dev->waiters, 1);
    pthread_cleanup_push(dev_forget_waiter, dev);
    while (r == 0 && now_ns() < end) {
        /* Completions that another thread's drive brings wake nobody here: look at least once a millisecond. */
        dev_sleep(dev, false, -1, min_u64(end, now_ns() + NSEC_PER_MSEC));
        r = poll_once(cq, n, ret);
    }
    pthread_cleanup_pop(true);
    return r;
}

/* ---- shared receive queues ---- */

int uroce_srq_create(struct uroce_pd *pd, uint32_t max_wr, uint32_t max_sge, struct uroce_xrcd *xrcd,
                     struct uroce_cq *cq, struct uroce_srq **ret)
{
    struct uroce_device *dev = pd->dev;
    ENTER(dev);
    struct uroce_srq *srq = calloc(1, sizeof *srq);
    if (!srq)
        return -ENOMEM;
    srq->dev = dev;
    pthread_mutex_init(&srq->lock, NULL);
    dev_subject_init(dev, &srq->subject);
    dev_lock(dev);
    int r = qp_srq_new(pd->qp, max_wr, max_sge, xrcd ? xrcd->qp : NULL, cq ? cq->qp : NULL, srq, &srq->qp);
    dev_unlock(dev);
    if (r) {
        dev_subject_done(&srq->subject);
        free(srq);
        return r;
    }
    atomic_fetch_add(&dev->objects, 1);
    *ret = srq;
    return 0;
}

int uroce_srq_set_limit(struct uroce_srq *srq, uint32_t limit)
{
    ENTER(srq->dev);
    dev_lock(srq->dev);
    pthread_mutex_lock(&srq->lock);
    int r = qp_srq_modify(srq->qp, true, limit, false, 0);
    pthread_mutex_unlock(&srq->lock);
    dev_unlock(srq->dev);
    return r;
}

int uroce_srq_resize(struct uroce_srq *srq, uint32_t max_wr)
{
    ENTER(srq->dev);
    dev_lock(srq->dev);
    pthread_mutex_lock(&srq->lock);
    int r = qp_srq_modify(srq->qp, false, 0, true, max_wr);
    pthread_mutex_unlock(&srq->lock);
    dev_unlock(srq->dev);
    return r;
}

int uroce_srq_query(struct uroce_srq *srq, uint32_t *ret_max_wr, uint32_t *ret_max_sge, uint32_t *ret_limit)
{
    ENTER(srq->dev);
    dev_lock(srq->dev);
    qp_srq_query(srq->qp, ret_max_wr, ret_max_sge, ret_limit);
    dev_unlock(srq->dev);
    return 0;
}

uint32_t uroce_srq_num(const struct uroce_srq *srq)
{
    return qp_srq_num(srq->qp);
}

int uroce_srq_destroy(struct uroce_srq *srq)
{
    struct uroce_device *dev = srq->dev;
    ENTER(dev);
    dev_lock(dev);
    int r = qp_srq_free(srq->qp);
    dev_unlock(dev);
    if (r)
        return r;
    dev_subject_done(&srq->subject);
    pthread_mutex_destroy(&srq->lock);
    return gone(dev, 0, srq);
}

int uroce_post_srq_recv(struct uroce_srq *srq, const struct uroce_recv_wr *wr, const struct uroce_recv_wr **ret_bad)
{
    ENTER(srq->dev);
    scoped_lock(&srq->lock);
    return qp_post_srq_recv(srq->qp, wr, ret_bad);
}

int uroce_xrcd_open(struct uroce_device *dev, struct uroce_xrcd **ret)
{
    ENTER(dev);
    struct uroce_xrcd *x = calloc(1, sizeof *x);
    if (!x)
        return -ENOMEM;
    x->dev = dev;
    dev_lock(dev);
    int r = qp_xrcd_new(dev->engine, &x->qp);
    dev_unlock(dev);
    if (r) {
        free(x);
        return r;
    }
    atomic_fetch_add(&dev->objects, 1);
    *ret = x;
    return 0;
}

int uroce_xrcd_close(struct uroce_xrcd *x)
{
    struct uroce_device *dev = x->dev;
    ENTER(dev);
    dev_lock(dev);
    int r = qp_xrcd_free(x->qp);
    dev_unlock(dev);
    return gone(dev, r, x);
}

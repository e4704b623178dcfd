/* Completion channels and asynchronous events: descriptors to poll, and lists behind them. */
#include "dev.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

struct dev_event {
    struct list link;
    struct uroce_async_event e;
};

/* ---- completion channels ---- */

/* From the engine, with dev->lock held; or from a poll, with cq->lock held. */
void dev_cq_event(void *ctx, void *cq_user)
{
    (void)ctx;
    struct uroce_cq *cq = cq_user;
    struct uroce_channel *ch = cq->channel;
    if (!ch)
        return;
    pthread_mutex_lock(&ch->lock);
    if (cq->events++ == 0)
        list_push_back(&ch->ready, &cq->ready_link);
    dev_count_up(ch->counter);
    pthread_mutex_unlock(&ch->lock);
}

static int open_channel(struct uroce_channel *ch)
{
    ch->counter = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    if (ch->counter < 0)
        return -errno;
    ch->fd = epoll_create1(EPOLL_CLOEXEC);
    if (ch->fd >= 0 && !epoll_ctl(ch->fd, EPOLL_CTL_ADD, ch->counter, &(struct epoll_event){.events = EPOLLIN}))
        return 0;
    int r = -errno;
    if (ch->fd >= 0)
        close(ch->fd);
    close(ch->counter);
    return r;
}

int uroce_channel_create(struct uroce_device *dev, struct uroce_channel **ret)
{
    int r = dev_check_fork(dev);
    if (r)
        return r;
    struct uroce_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return -ENOMEM;
    r = open_channel(ch);
    if (r) {
        free(ch);
        return r;
    }
    ch->dev = dev;
    pthread_mutex_init(&ch->lock, NULL);
    list_init(&ch->ready);
    atomic_fetch_add(&dev->objects, 1);
    *ret = ch;
    return 0;
}

int uroce_channel_destroy(struct uroce_channel *ch)
{
    int r = dev_check_fork(ch->dev);
    if (r)
        return r;
    if (atomic_load(&ch->users))
        return -EBUSY;
    dev_lock(ch->dev);
    if (ch->dev->lead.channel == ch)
        dev_lead_drop(ch->dev);
    dev_unlock(ch->dev);
    close(ch->fd);
    close(ch->counter);
    pthread_mutex_destroy(&ch->lock);
    atomic_fetch_sub(&ch->dev->objects, 1);
    free(ch);
    return 0;
}

int uroce_channel_fd(const struct uroce_channel *ch)
{
    return ch->fd;
}

static int take_cq_event(struct uroce_channel *ch, struct uroce_cq **ret_cq, void **ret_context)
{
    dev_uncancelled();
    scoped_lock(&ch->lock);
    if (list_empty(&ch->ready))
        return -EAGAIN;
    struct uroce_cq *cq = container_of(ch->ready.next, struct uroce_cq, ready_link);
    dev_count_down(ch->counter);
    cq->unacked++;
    if (--cq->events == 0)
        list_del(&cq->ready_link);
    else { /* in turn with the others */
        list_del(&cq->ready_link);
        list_push_back(&ch->ready, &cq->ready_link);
    }
    *ret_cq = cq;
    *ret_context = cq->context;
    return 0;
}

int uroce_get_cq_event(struct uroce_channel *ch, struct uroce_cq **ret_cq, void **ret_context)
{
    struct uroce_device *dev = ch->dev;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    if (atomic_load(&ch->leads))
        dev_drive_event(dev);
    else
        dev_drive(dev);
    r = take_cq_event(ch, ret_cq, ret_context);
    if (r != -EAGAIN || !dev_lead_blocks(ch))
        return r;
    atomic_fetch_add(&dev->waiters, 1);
    pthread_cleanup_push(dev_forget_waiter, dev);
    do
        dev_sleep(dev, false, ch->counter, UINT64_MAX);
    while ((r = take_cq_event(ch, ret_cq, ret_context)) == -EAGAIN);
    pthread_cleanup_pop(true);
    return r;
}

void uroce_ack_cq_events(struct uroce_cq *cq, unsigned int n)
{
    if (!cq->channel)
        return;
    scoped_lock(&cq->channel->lock);
    cq->unacked -= n < cq->unacked ? n : cq->unacked;
    pthread_cond_broadcast(&cq->acked);
}

/* ---- asynchronous events ---- */

static int new_queue(struct uroce_device *dev, int flags, struct uroce_events **ret)
{
    struct uroce_events *q = calloc(1, sizeof *q);
    if (!q)
        return -ENOMEM;
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE | flags);
    if (q->fd < 0) {
        int r = -errno;
        free(q);
        return r;
    }
    q->dev = dev;
    pthread_mutex_init(&q->lock, NULL);
    list_init(&q->waiting);
    list_init(&q->dev_link);
    *ret = q;
    return 0;
}

/* Of one object; NULL: all. */
static void forget(struct uroce_events *q, const void *element)
{
    dev_uncancelled();
    scoped_lock(&q->lock);
    list_for_each_safe (l, &q->waiting) {
        struct dev_event *ev = container_of(l, struct dev_event, link);
        if (element && ev->e.element != element)
            continue;
        list_del(l);
        dev_count_down(q->fd);
        free(ev);
    }
}

static void free_queue(struct uroce_events *q)
{
    forget(q, NULL);
    close(q->fd);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static void push(struct uroce_events *q, const struct uroce_async_event *e)
{
    struct dev_event *ev = malloc(sizeof *ev);
    if (!ev)
        return; /* the completions of the queue pair tell the same */
    ev->e = *e;
    pthread_mutex_lock(&q->lock);
    list_push_back(&q->waiting, &ev->link);
    dev_count_up(q->fd);
    pthread_mutex_unlock(&q->lock);
}

/* From the engine, with dev->lock held. Every object that it names begins with its subject. */
void dev_async_event(void *ctx, enum uroce_event_type type, void *user)
{
    struct uroce_device *dev = ctx;
    const struct dev_subject *s = user;
    struct uroce_async_event e = {.type = type, .element = user, .context = s ? s->context : NULL};
    if (s) {
        push(s->events, &e);
        return;
    }
    list_for_each (l, &dev->event_queues)
        push(container_of(l, struct uroce_events, dev_link), &e);
}

int dev_events_init(struct uroce_device *dev)
{
    int r = new_queue(dev, EFD_NONBLOCK, &dev->events);
    if (!r)
        list_push_back(&dev->event_queues, &dev->events->dev_link);
    return r;
}

void dev_events_done(struct uroce_device *dev)
{
    if (dev->events)
        free_queue(dev->events);
}

void dev_subject_init(struct uroce_device *dev, struct dev_subject *s)
{
    s->events = dev->events;
    atomic_fetch_add(&s->events->users, 1);
}

void dev_subject_done(struct dev_subject *s)
{
    forget(s->events, s);
    atomic_fetch_sub(&s->events->users, 1);
}

static int redirect(struct uroce_device *dev, struct dev_subject *s, struct uroce_events *events, void *context)
{
    int r = dev_check_fork(dev);
    if (r)
        return r;
    if (events && events->dev != dev)
        return -EINVAL;
    dev_lock(dev);
    if (events) {
        atomic_fetch_sub(&s->events->users, 1);
        atomic_fetch_add(&events->users, 1);
        s->events = events;
    }
    s->context = context;
    dev_unlock(dev);
    return 0;
}

int uroce_qp_set_events(struct uroce_qp *qp, struct uroce_events *events, void *context)
{
    return redirect(qp->dev, &qp->subject, events, context);
}

int uroce_cq_set_events(struct uroce_cq *cq, struct uroce_events *events, void *context)
{
    return redirect(cq->dev, &cq->subject, events, context);
}

int uroce_srq_set_events(struct uroce_srq *srq, struct uroce_events *events, void *context)
{
    return redirect(srq->dev, &srq->subject, events, context);
}

int uroce_events_create(struct uroce_device *dev, struct uroce_events **ret)
{
    struct uroce_events *q = NULL;
    int r = dev_check_fork(dev);
    if (!r)
        r = new_queue(dev, 0, &q);
    if (r)
        return r;
    dev_lock(dev);
    list_push_back(&dev->event_queues, &q->dev_link);
    dev_unlock(dev);
    atomic_fetch_add(&dev->objects, 1);
    *ret = q;
    return 0;
}

int uroce_events_destroy(struct uroce_events *q)
{
    struct uroce_device *dev = q->dev;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    if (atomic_load(&q->users))
        return -EBUSY;
    dev_lock(dev);
    list_del(&q->dev_link);
    dev_unlock(dev);
    free_queue(q);
    atomic_fetch_sub(&dev->objects, 1);
    return 0;
}

int uroce_events_fd(const struct uroce_events *q)
{
    return q->fd;
}

static int take_event(struct uroce_events *q, struct uroce_async_event *ret)
{
    dev_uncancelled();
    scoped_lock(&q->lock);
    struct list *l = list_pop_front(&q->waiting);
    if (!l)
        return -EAGAIN;
    struct dev_event *ev = container_of(l, struct dev_event, link);
    dev_count_down(q->fd);
    *ret = ev->e;
    free(ev);
    return 0;
}

int uroce_events_get(struct uroce_events *q, struct uroce_async_event *ret)
{
    int r = dev_check_fork(q->dev);
    return r ? r : take_event(q, ret);
}

int uroce_async_fd(struct uroce_device *dev)
{
    return dev->events->fd;
}

int uroce_get_async_event(struct uroce_device *dev, struct uroce_async_event *ret)
{
    int r = dev_check_fork(dev);
    return r ? r : take_event(dev->events, ret);
}

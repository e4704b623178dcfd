/* Completion channels and asynchronous events: descriptors to poll, and lists behind them. */
#include "dev.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

struct dev_event {
    struct list link;
    struct uroce_async_event e;
};

static void post(int fd)
{
    while (eventfd_write(fd, 1) == -1 && errno == EINTR)
        ;
}

/* One event less; -EAGAIN: none. */
static int take_one(int fd)
{
    eventfd_t v;
    return eventfd_read(fd, &v) == 0 ? 0 : -errno;
}

/* ---- completion channels ---- */

/* From the engine, with dev->lock held. */
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
    post(ch->fd);
    pthread_mutex_unlock(&ch->lock);
}

int uroce_channel_create(struct uroce_device *dev, struct uroce_channel **ret)
{
    int r = dev_check_fork(dev);
    if (r)
        return r;
    struct uroce_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return -ENOMEM;
    ch->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    if (ch->fd < 0) {
        r = -errno;
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
    close(ch->fd);
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
    scoped_lock(&ch->lock);
    if (list_empty(&ch->ready))
        return -EAGAIN;
    struct uroce_cq *cq = container_of(ch->ready.next, struct uroce_cq, ready_link);
    take_one(ch->fd);
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
    dev_drive(dev);
    r = take_cq_event(ch, ret_cq, ret_context);
    if (r != -EAGAIN || fcntl(ch->fd, F_GETFL) & O_NONBLOCK)
        return r;
    atomic_fetch_add(&dev->waiters, 1);
    do
        dev_sleep(dev, false, ch->fd, UINT64_MAX);
    while ((r = take_cq_event(ch, ret_cq, ret_context)) == -EAGAIN);
    atomic_fetch_sub(&dev->waiters, 1);
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

void dev_async_event(void *ctx, enum uroce_event_type type, void *user)
{
    struct uroce_device *dev = ctx;
    struct dev_event *ev = malloc(sizeof *ev);
    if (!ev)
        return; /* the completions of the queue pair tell the same */
    ev->e = (struct uroce_async_event){.type = type, .element = user};
    pthread_mutex_lock(&dev->events_lock);
    list_push_back(&dev->events, &ev->link);
    post(dev->events_fd);
    pthread_mutex_unlock(&dev->events_lock);
}

int uroce_async_fd(struct uroce_device *dev)
{
    return dev->events_fd;
}

int uroce_get_async_event(struct uroce_device *dev, struct uroce_async_event *ret)
{
    int r = dev_check_fork(dev);
    if (r)
        return r;
    scoped_lock(&dev->events_lock);
    struct list *l = list_pop_front(&dev->events);
    if (!l)
        return -EAGAIN;
    struct dev_event *ev = container_of(l, struct dev_event, link);
    take_one(dev->events_fd);
    *ret = ev->e;
    free(ev);
    return 0;
}

void dev_events_forget(struct uroce_device *dev, void *element)
{
    scoped_lock(&dev->events_lock);
    for (struct list *l = dev->events.next, *next; l != &dev->events; l = next) {
        struct dev_event *ev = container_of(l, struct dev_event, link);
        next = l->next;
        if (element && ev->e.element != element)
            continue;
        list_del(l);
        take_one(dev->events_fd);
        free(ev);
    }
}

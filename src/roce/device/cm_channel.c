/* Channels of connection events. */
#include "cm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

/* With the channel's lock: the descriptor counts what is in the list, so that this never waits. */
static struct cm_item *take(struct uroce_cm_channel *ch, struct list *l)
{
    list_del(l);
    dev_count_down(ch->fd);
    return container_of(l, struct cm_item, link);
}

int uroce_cm_channel_create(struct uroce_cm_channel **ret)
{
    struct uroce_cm_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return -ENOMEM;
    ch->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    if (ch->fd < 0) {
        int r = -errno;
        free(ch);
        return r;
    }
    pthread_mutex_init(&ch->lock, NULL);
    list_init(&ch->events);
    ch->fork_generation = dev_fork_generation();
    *ret = ch;
    return 0;
}

int uroce_cm_channel_destroy(struct uroce_cm_channel *ch)
{
    if (ch->fork_generation != dev_fork_generation())
        return -ECHILD;
    if (atomic_load(&ch->users))
        return -EBUSY;
    while (!list_empty(&ch->events)) /* the program's own */
        free(take(ch, ch->events.next));
    close(ch->fd);
    pthread_mutex_destroy(&ch->lock);
    free(ch);
    return 0;
}

void cm_channel_use(struct uroce_cm_channel *ch, struct uroce_device *dev, bool on)
{
    atomic_fetch_add(&ch->users, on ? 1u : -1u);
    if (dev->has_thread)
        return;
    scoped_lock(&ch->lock);
    int at = -1;
    for (int i = 0; i < CM_DRIVES; i++)
        if (ch->drives[i].dev == dev || (at < 0 && !ch->drives[i].dev))
            at = i;
    if (at < 0)
        return; /* the program drives it by other calls */
    ch->drives[at].ids += on ? 1u : -1u;
    ch->drives[at].dev = ch->drives[at].ids ? dev : NULL;
}

int uroce_cm_channel_fd(const struct uroce_cm_channel *ch)
{
    return ch->fd;
}

int cm_channel_put(struct uroce_cm_channel *ch, const struct uroce_cm_event *e)
{
    struct cm_item *i = malloc(sizeof *i);
    if (!i)
        return -ENOMEM;
    i->e = *e;
    pthread_mutex_lock(&ch->lock);
    list_push_back(&ch->events, &i->link);
    dev_count_up(ch->fd);
    pthread_mutex_unlock(&ch->lock);
    return 0;
}

int uroce_cm_post_event(struct uroce_cm_channel *ch, const struct uroce_cm_event *ev)
{
    return ch->fork_generation == dev_fork_generation() ? cm_channel_put(ch, ev) : -ECHILD;
}

void cm_channel_forget(struct uroce_cm_channel *ch, const struct uroce_cm_id *id, struct list *orphans)
{
    scoped_lock(&ch->lock);
    list_for_each_safe (it, &ch->events) {
        struct cm_item *i = container_of(it, struct cm_item, link);
        if (i->e.id == id)
            free(take(ch, it));
        else if (i->e.listener == id)
            list_push_back(orphans, &take(ch, it)->link);
    }
}

/* With dev->lock. A listener's requests that nobody has seen go with it. */
void cm_channel_move(struct uroce_cm_channel *from, struct uroce_cm_channel *to, const struct uroce_cm_id *id)
{
    struct list moved;
    list_init(&moved);
    pthread_mutex_lock(&from->lock);
    list_for_each_safe (it, &from->events) {
        struct cm_item *i = container_of(it, struct cm_item, link);
        if (i->e.id != id && i->e.listener != id)
            continue;
        if (i->e.id != id)
            i->e.id->channel = to;
        list_push_back(&moved, &take(from, it)->link);
    }
    pthread_mutex_unlock(&from->lock);
    list_for_each_safe (it, &moved) {
        struct cm_item *i = container_of(it, struct cm_item, link);
        if (i->e.id != id) {
            cm_channel_use(to, i->e.id->dev, true);
            cm_channel_use(from, i->e.id->dev, false);
        }
        list_del(it);
        pthread_mutex_lock(&to->lock);
        list_push_back(&to->events, it);
        dev_count_up(to->fd);
        pthread_mutex_unlock(&to->lock);
    }
}

static int get_one(struct uroce_cm_channel *ch, struct uroce_cm_event *ret)
{
    dev_uncancelled();
    struct cm_item *i = NULL;
    pthread_mutex_lock(&ch->lock);
    if (!list_empty(&ch->events))
        i = take(ch, ch->events.next);
    pthread_mutex_unlock(&ch->lock);
    if (!i)
        return -EAGAIN;
    *ret = i->e;
    free(i);
    struct uroce_cm_id *id = ret->id;
    if (ret->type == UROCE_CM_CONNECT_REQUEST && id && ret->listener) {
        dev_lock(id->dev);
        cm_taken(id->cm);
        dev_unlock(id->dev);
    }
    return 0;
}

/* One of them; NULL: all have helper threads. */
static struct uroce_device *drive(struct uroce_cm_channel *ch)
{
    struct uroce_device *devs[CM_DRIVES], *any = NULL;
    pthread_mutex_lock(&ch->lock);
    for (int i = 0; i < CM_DRIVES; i++)
        devs[i] = ch->drives[i].dev;
    pthread_mutex_unlock(&ch->lock);
    for (int i = 0; i < CM_DRIVES; i++)
        if (devs[i]) {
            any = devs[i];
            dev_drive(any);
        }
    return any;
}

int uroce_cm_get_event(struct uroce_cm_channel *ch, struct uroce_cm_event *ret)
{
    for (;;) {
        if (ch->fork_generation != dev_fork_generation())
            return -ECHILD;
        struct uroce_device *dev = drive(ch);
        int r = get_one(ch, ret);
        if (r != -EAGAIN || fcntl(ch->fd, F_GETFL) & O_NONBLOCK)
            return r;
        struct pollfd p = {.fd = ch->fd, .events = POLLIN};
        if (dev)
            dev_sleep(dev, false, ch->fd, now_ns() + 10 * NSEC_PER_MSEC); /* then the others */
        else if (poll(&p, 1, -1) < 0 && errno == EINTR)
            return -EINTR;
    }
}

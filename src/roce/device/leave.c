/*
 * The program ends, perhaps because of what it was just given: its peers are told of the disconnect, as by a kernel,
 * and are not to think that what they sent was lost. It may end in a signal handler, which has interrupted this very
 * thread in any call of ours, with its locks: so the device's own thread does it, and is waited for for a while. If
 * this thread was inside the device, what that is in the middle of never ends: peers learn of it as of one that was
 * killed, from the holder.
 */
#include "cm.h"

#define WAIT_NS NSEC_PER_SEC /* for the device's thread, which may wait for a lock that nobody gives back */

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list devices = {&devices, &devices};

void dev_leave_watch(struct uroce_device *dev, bool on)
{
    scoped_lock(&devices_lock);
    if (on)
        list_push_back(&devices, &dev->leave.link);
    else
        list_del(&dev->leave.link);
}

void dev_each(void (*fn)(struct uroce_device *dev, void *ctx), void *ctx)
{
    scoped_lock(&devices_lock);
    list_for_each (l, &devices)
        fn(container_of(l, struct uroce_device, leave.link), ctx);
}

void dev_leave_asked(struct uroce_device *dev)
{
    if (!atomic_exchange(&dev->leave.asked, false))
        return;
    dev_lock(dev);
    cm_leave(dev->cm, now_ns());
    for (int i = 0; i < DEV_ROUNDS && dev_work(dev, now_ns(), DEV_OTHER); i++)
        ;
    dev_unlock(dev);
    sem_post(&dev->leave.done);
}

static bool is_inside(struct uroce_device *dev)
{
    static const struct timespec past;
    int r = pthread_mutex_timedlock(&dev->lock, &past);
    if (r == 0)
        pthread_mutex_unlock(&dev->lock);
    return r == EDEADLK;
}

static void leave(struct uroce_device *dev)
{
    uint64_t end = now_ns() + WAIT_NS;
    struct timespec until = {.tv_sec = (time_t)(end / NSEC_PER_SEC), .tv_nsec = (long)(end % NSEC_PER_SEC)};
    if (dev_check_fork(dev) || !dev->has_thread || is_inside(dev))
        return;
    atomic_store(&dev->leave.asked, true);
    dev_thread_wake(dev);
    while (sem_clockwait(&dev->leave.done, CLOCK_MONOTONIC, &until) && errno == EINTR)
        ;
}

__attribute__((destructor)) static void at_exit(void)
{
    if (pthread_mutex_trylock(&devices_lock))
        return;
    list_for_each (l, &devices)
        leave(container_of(l, struct uroce_device, leave.link));
    pthread_mutex_unlock(&devices_lock);
}

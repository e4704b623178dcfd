/*
 * The helper thread: serves peers while the program computes. It sleeps on the ports, the next deadline and its wake
 * descriptor. While the program itself polls, or sleeps on the ports in a native wait, it stands back and only looks
 * once a millisecond whether that is still so.
 */
#define LOG_COMPONENT "uroce"
#include "dev.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

/* Until when the device is in other hands; 0: in ours. */
static uint64_t stand_back_until(struct uroce_device *dev, uint64_t now)
{
    uint64_t polled = atomic_load_explicit(&dev->polled_ns, memory_order_relaxed);
    if (atomic_load(&dev->waiters) > 0)
        return now + DEV_STAND_BACK_NS;
    return polled + DEV_STAND_BACK_NS > now ? polled + DEV_STAND_BACK_NS : 0;
}

static void drain(int fd)
{
    eventfd_t v;
    while (eventfd_read(fd, &v) == -1 && errno == EINTR)
        ;
}

static void *run(void *arg)
{
    struct uroce_device *dev = arg;
    while (!atomic_load(&dev->stop)) {
        uint64_t now = now_ns(), back = stand_back_until(dev, now);
        if (!back) {
            dev_sleep(dev, true, dev->wake_fd, UINT64_MAX);
            drain(dev->wake_fd);
            continue;
        }
        struct pollfd p = {.fd = dev->wake_fd, .events = POLLIN};
        struct timespec t = {.tv_nsec = (long)min_u64(back - now, NSEC_PER_SEC - 1)};
        if (ppoll(&p, 1, &t, NULL) > 0)
            drain(dev->wake_fd);
        /* Somebody may have made an earlier deadline than the thread that sleeps on the ports knows of. */
        if (atomic_load(&dev->deadline) <= now_ns())
            dev_drive_helper(dev);
    }
    return NULL;
}

int dev_thread_start(struct uroce_device *dev)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&dev->thread, NULL, run, dev);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err)
        return -err;
    pthread_setname_np(dev->thread, "uroce");
    dev->has_thread = true;
    return 0;
}

void dev_thread_wake(struct uroce_device *dev)
{
    while (eventfd_write(dev->wake_fd, 1) == -1 && errno == EINTR)
        ;
}

void dev_thread_stop(struct uroce_device *dev)
{
    if (!dev->has_thread)
        return;
    atomic_store(&dev->stop, true);
    dev_thread_wake(dev);
    pthread_join(dev->thread, NULL);
    dev->has_thread = false;
}

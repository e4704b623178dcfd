/*
 * The helper thread: serves peers while the program computes. It sleeps on the ports, the next deadline and its wake
 * descriptor, and tells counters to whoever asks. While the program itself polls, or sleeps on the ports in a native
 * wait, it stands back and only looks once a millisecond whether that is still so.
 */
#define LOG_COMPONENT "uroce"
#include "dev.h"

#include "base/util.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>

/* Until when the device is in other hands; 0: in ours. */
static uint64_t stand_back_until(struct uroce_device *dev, uint64_t now)
{
    uint64_t polled = atomic_load_explicit(&dev->polled_ns, memory_order_relaxed);
    if (atomic_load(&dev->waiters) > 0)
        return now + DEV_STAND_BACK_NS;
    if (!dev_lead_idle(dev) && dev_lead_trusted(dev, now))
        return now + DEV_STAND_BACK_NS;
    return polled + DEV_STAND_BACK_NS > now ? polled + DEV_STAND_BACK_NS : 0;
}

/* Whoever was told to wake us, or asks for counters. */
static void answer(struct uroce_device *dev)
{
    struct epoll_event e[DEV_STAT_READERS + 2];
    int n = epoll_wait(dev->helper_fd, e, ARRAY_SIZE(e), 0);
    for (int i = 0; i < n; i++)
        if (e[i].data.fd == dev->wake_fd)
            dev_count_down(dev->wake_fd);
        else
            dev_stat_serve(dev, e[i].data.fd);
}

/*
 * The next packets of a stream are waited for awake, for a little while: falling asleep and being woken costs both ends
 * more, and where others wait for the core, much more. Whoever else wants it has it meanwhile.
 */
static void linger(struct uroce_device *dev, uint64_t now)
{
    unsigned seen = atomic_load(&dev->bursts);
    uint64_t until = now + DEV_LINGER_NS, end = now + DEV_LINGER_MAX_NS;
    bool stream = seen != dev->bursts_lingered;
    while (stream && now < min_u64(until, end) && !stand_back_until(dev, now) && !atomic_load(&dev->stop)) {
        sched_yield();
        dev_drive_helper(dev);
        now = now_ns();
        if (atomic_load(&dev->bursts) != seen)
            until = now + DEV_LINGER_NS;
        seen = atomic_load(&dev->bursts);
    }
    dev->bursts_lingered = seen;
}

static void *run(void *arg)
{
    struct uroce_device *dev = arg;
    while (!atomic_load(&dev->stop)) {
        dev_leave_asked(dev);
        uint64_t now = now_ns(), back = stand_back_until(dev, now);
        if (!back) {
            dev_sleep(dev, true, dev->helper_fd, UINT64_MAX);
            answer(dev);
            linger(dev, now_ns());
            continue;
        }
        struct pollfd p = {.fd = dev->helper_fd, .events = POLLIN};
        struct timespec t = {.tv_nsec = (long)min_u64(back - now, NSEC_PER_SEC - 1)};
        bool called = ppoll(&p, 1, &t, NULL) > 0;
        if (called)
            answer(dev);
        /* Somebody may have made an earlier deadline than the thread that sleeps on the ports knows of, or polled and
         * not come again. */
        if (atomic_load(&dev->deadline) <= now_ns() || atomic_load(&dev->unfinished))
            dev_drive_helper(dev);
        else if (!called && dev_lead_trusted(dev, now_ns()))
            dev_lead_look(dev);
    }
    return NULL;
}

int dev_thread_start(struct uroce_device *dev)
{
    sigset_t all, old;
    struct epoll_event e = {.events = EPOLLIN, .data.fd = dev->wake_fd};
    if (epoll_ctl(dev->helper_fd, EPOLL_CTL_ADD, dev->wake_fd, &e))
        return -errno;
    int r = dev_stat_start(dev);
    if (r)
        return r;
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
    dev_count_up(dev->wake_fd);
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

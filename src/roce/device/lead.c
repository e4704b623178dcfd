/*
 * A program that sleeps on a channel's descriptor could be woken in two steps: a packet wakes the helper thread, which
 * drives the device and tells of an event. So one channel of a device leads: its descriptor (an epoll) holds, beside
 * the counter of its events, the sockets at which packets come. A packet wakes the program itself; it drives the device
 * by its next call, and may learn then that there is no event (-EAGAIN). Only where the descriptor is O_NONBLOCK:
 * others go from poll() into a uroce_get_cq_event that waits, so that theirs tells of events alone.
 *
 * Nobody knows whether a program that armed does sleep: it may compute. The helper thread stands back, and looks each
 * millisecond whether packets lie there that the program did not take; if so, it serves the device as without all this
 * until the program arms anew some time later. When nothing happens it sleeps on the sockets too.
 */
#include "dev.h"

#include <fcntl.h>
#include <sys/epoll.h>

#define TAKE_OVER_NS (100 * NSEC_PER_MSEC) /* whoever has not armed for so long may lose the lead */
#define DOUBT_NS     (10 * NSEC_PER_MSEC)
#define IDLE_LOOKS   4

/* op: EPOLL_CTL_ADD or EPOLL_CTL_DEL */
static bool watch(const struct uroce_channel *ch, int op, int fd)
{
    return fd >= 0 && epoll_ctl(ch->fd, op, fd, &(struct epoll_event){.events = EPOLLIN}) == 0;
}

/* Each socket of packets; false: one of them could not be. */
static bool watch_all(const struct uroce_channel *ch, int op)
{
    const struct uroce_device *dev = ch->dev;
    bool all = true;
    for (int i = 0; i < dev->nports; i++)
        all = watch(ch, op, port_rx_fd(dev->ports[i].port)) && all;
    for (int i = 0; i < dev->nlinks; i++)
        if (dev->links[i] && dev->links[i]->port.port)
            all = watch(ch, op, port_rx_fd(dev->links[i]->port.port)) && all;
    return all;
}

void dev_lead_fd(struct uroce_device *dev, int fd, bool comes)
{
    if (!dev->lead.channel)
        return;
    if (!watch(dev->lead.channel, comes ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd) && comes)
        dev_lead_never(dev);
}

/* What holds the sockets stays open elsewhere: they are taken out one by one. */
void dev_lead_drop(struct uroce_device *dev)
{
    struct uroce_channel *ch = dev->lead.channel;
    if (!ch)
        return;
    dev->lead.channel = NULL;
    atomic_store(&ch->leads, false);
    atomic_store(&dev->lead.armed, false);
    atomic_store(&dev->lead.armed_ns, 0);
    watch_all(ch, EPOLL_CTL_DEL);
}

void dev_lead_never(struct uroce_device *dev)
{
    atomic_store(&dev->lead.never, true);
    dev_lead_drop(dev);
}

/* dev->lock */
static void take_lead(struct uroce_device *dev, struct uroce_channel *ch)
{
    dev_lead_drop(dev);
    dev->lead.channel = ch;
    atomic_store(&ch->leads, true);
    if (!watch_all(ch, EPOLL_CTL_ADD))
        dev_lead_never(dev);
}

bool dev_lead_blocks(struct uroce_channel *ch)
{
    if (fcntl(ch->fd, F_GETFL) & O_NONBLOCK)
        return false;
    if (atomic_load(&ch->leads)) {
        dev_lock(ch->dev);
        if (ch->dev->lead.channel == ch)
            dev_lead_drop(ch->dev);
        dev_unlock(ch->dev);
    }
    return true;
}

bool dev_lead_arm(struct uroce_channel *ch)
{
    struct uroce_device *dev = ch->dev;
    if (!dev->has_thread || atomic_load(&dev->lead.never) || dev_lead_blocks(ch))
        return false;
    uint64_t now = now_ns(), armed = atomic_load(&dev->lead.armed_ns);
    if (!atomic_load(&ch->leads)) {
        if (now < armed + TAKE_OVER_NS)
            return false;
        dev_lock(dev);
        take_lead(dev, ch);
        dev_unlock(dev);
        if (!atomic_load(&ch->leads))
            return false;
    }
    atomic_store(&dev->lead.armed_ns, now);
    atomic_store(&dev->lead.armed, true);
    dev_drive_armed(dev);
    return now >= atomic_load(&dev->lead.doubted_ns);
}

bool dev_lead_trusted(struct uroce_device *dev, uint64_t now)
{
    uint64_t armed = atomic_load(&dev->lead.armed_ns);
    if (!armed || armed < atomic_load(&dev->lead.doubted_ns))
        return false;
    return atomic_load(&dev->lead.armed) || now < armed + DEV_STAND_BACK_NS;
}

bool dev_lead_idle(const struct uroce_device *dev)
{
    return dev->lead.idle >= IDLE_LOOKS;
}

void dev_lead_look(struct uroce_device *dev)
{
    struct dev_lead *l = &dev->lead;
    unsigned drives = atomic_load(&l->drives), received = atomic_load(&dev->received);
    if (drives != l->seen) {
        l->seen = drives;
        l->idle = 0;
        return;
    }
    dev_drive_helper(dev);
    if (atomic_load(&dev->received) == received)
        l->idle++;
    else if (atomic_load(&l->drives) == drives)
        atomic_store(&l->doubted_ns, now_ns() + DOUBT_NS);
}

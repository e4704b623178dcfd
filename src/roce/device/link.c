/*
 * Links: shared memory with other devices of this user on this machine, one for each of them and pair of addresses. A
 * queue pair moves to a link when both ends have said over it that they want to (hello.c). A link whose peer is gone
 * ends, and its queue pairs go back to their network path, where they get on or fail as without it.
 */
#define LOG_COMPONENT "uroce"
#include "dev.h"

#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#define LINK_BURST   16 /* packets of one recv */
#define LARGE        (64u << 10)
#define LINK_IDLE_NS NSEC_PER_SEC

static bool same_gid(const union uroce_gid *a, const union uroce_gid *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

struct dev_link *dev_link_find(struct uroce_device *dev, uint64_t instance, const union uroce_gid *local,
                               const union uroce_gid *remote)
{
    for (int i = 0; i < DEV_LINKS_MAX; i++) {
        struct dev_link *l = dev->links[i];
        if (l && l->port.port && l->instance == instance && same_gid(&l->local, local) && same_gid(&l->remote, remote))
            return l;
    }
    return NULL;
}

struct dev_link *dev_link_of(struct uroce_device *dev, uint8_t port_id)
{
    return port_id >= DEV_ADDRESSES_MAX && port_id < DEV_ADDRESSES_MAX + DEV_LINKS_MAX
               ? dev->links[port_id - DEV_ADDRESSES_MAX]
               : NULL;
}

struct dev_port *dev_port_of(struct uroce_device *dev, uint8_t port_id)
{
    struct dev_link *l = dev_link_of(dev, port_id);
    if (port_id < DEV_ADDRESSES_MAX)
        return &dev->ports[port_id];
    return l && l->port.port ? &l->port : NULL;
}

static int open_port(struct uroce_device *dev, struct dev_link *l, int sock, int index)
{
    char err[256];
    struct port_shm_config c = {
        .sock = sock,
        .local = {.gid = l->local, .udp_port = PORT_UDP},
        .remote = {.gid = l->remote, .udp_port = PORT_UDP},
        .peer_memory = true,
    };
    l->port.at = dev->ports[index].at;
    int r = port_shm_open(&c, &l->shm, err, sizeof err);
    if (r)
        return r;
    l->port.port = l->shm;
    r = dev_stack_port(dev, &l->port, err, sizeof err);
    if (r) {
        log_warn("%s", err);
        port_close(l->port.port);
        return r;
    }
    port_caps(l->port.port, &l->port.caps);
    epoll_ctl(dev->links_fd, EPOLL_CTL_ADD, port_fd(l->port.port), &(struct epoll_event){.events = EPOLLIN});
    dev_lead_fd(dev, port_rx_fd(l->port.port), true);
    return 0;
}

int dev_link_open(struct uroce_device *dev, int sock, uint64_t instance, const union uroce_gid *local,
                  const union uroce_gid *remote)
{
    int i = 0, index = dev_address_index(dev, local), r = -ENOSPC;
    while (i < DEV_LINKS_MAX && dev->links[i])
        i++;
    if (dev_link_find(dev, instance, local, remote))
        r = -EEXIST;
    else if (index < 0)
        r = index;
    struct dev_link *l = index >= 0 && i < DEV_LINKS_MAX && r != -EEXIST ? calloc(1, sizeof *l) : NULL;
    if (!l) {
        close(sock);
        return r;
    }
    l->instance = instance;
    l->local = *local;
    l->remote = *remote;
    l->id = (uint8_t)(DEV_ADDRESSES_MAX + i);
    l->idle_ns = now_ns();
    list_init(&l->port.held);
    r = open_port(dev, l, sock, index);
    if (r) {
        free(l);
        return r;
    }
    dev->links[i] = l;
    if (dev->nlinks <= i)
        dev->nlinks = i + 1;
    return 0;
}

/* A place stays taken as long as a queue pair's path names it. */
static void let_place(struct uroce_device *dev, struct dev_link *l)
{
    if (l->users || l->port.port)
        return;
    dev->links[l->id - DEV_ADDRESSES_MAX] = NULL;
    while (dev->nlinks && !dev->links[dev->nlinks - 1])
        dev->nlinks--;
    free(l);
}

static void end_link(struct uroce_device *dev, struct dev_link *l)
{
    list_for_each (q, &dev->qps) {
        struct uroce_qp *qp = container_of(q, struct uroce_qp, dev_link);
        if (qp->link == l)
            qp_leave_path(qp->qp);
    }
    dev_held_drop(&l->port);
    port_counters(l->port.port, &dev->counters);
    epoll_ctl(dev->links_fd, EPOLL_CTL_DEL, port_fd(l->port.port), NULL);
    dev_lead_fd(dev, port_rx_fd(l->port.port), false);
    port_close(l->port.port);
    l->port.port = l->shm = NULL;
    qp_engine_hold(dev->engine, l->id, false);
    let_place(dev, l);
}

void dev_link_leave(struct uroce_qp *qp)
{
    struct dev_link *l = qp->link;
    if (!l)
        return;
    qp->link = NULL;
    if (--l->users == 0) {
        l->idle_ns = now_ns();
        let_place(qp->dev, l);
    }
}

void dev_links_close(struct uroce_device *dev)
{
    for (int i = 0; i < dev->nlinks; i++)
        if (dev->links[i])
            end_link(dev, dev->links[i]);
}

/* Offers the peer the device's memory. What it has no place for is copied from elsewhere, until other memory goes. */
static void offer_all(struct uroce_device *dev, struct dev_link *l)
{
    uint64_t bit = 1ull << (l->id - DEV_ADDRESSES_MAX);
    int shown = port_shm_shown(l->shm), r = 0;
    bool some_wait = false;
    for (struct list *m = dev->memory.next; m != &dev->memory && r != -EAGAIN && r != -ENOSPC; m = m->next) {
        struct dev_mem *mem = container_of(m, struct dev_mem, link);
        if (mem->offered & bit)
            continue;
        if (mem->lent && shown != 1) { /* no peer gets to see what it could not read anyway */
            some_wait |= shown == -EAGAIN;
            continue;
        }
        r = port_shm_share(l->shm, mem->fd, mem->addr, mem->len);
        if (r == 0)
            mem->offered |= bit;
        else
            log_debug("memory is not shared: %s", strerror(-r));
    }
    l->offered = r != -EAGAIN && !some_wait; /* its socket is full, or it has not answered: again in a moment */
}

void dev_links_offer(struct uroce_device *dev)
{
    for (int i = 0; i < dev->nlinks; i++)
        if (dev->links[i] && dev->links[i]->ready && dev->links[i]->port.port)
            offer_all(dev, dev->links[i]);
}

void dev_links_withdraw(struct uroce_device *dev, const struct dev_mem *m)
{
    for (int i = 0; i < dev->nlinks; i++) {
        struct dev_link *l = dev->links[i];
        if (!l || !l->port.port)
            continue;
        port_shm_unshare(l->shm, m->addr);
        l->offered = false;
    }
}

static void forget_offers(struct uroce_device *dev, const struct dev_link *l)
{
    list_for_each (m, &dev->memory)
        container_of(m, struct dev_mem, link)->offered &= ~(1ull << (l->id - DEV_ADDRESSES_MAX));
}

/*
 * Packets of a link: each may be a mebibyte to copy. As long as such come, one at a time, so that a program that polls
 * has what is complete before more is copied (dev->copied).
 */
static int take_some(struct uroce_device *dev, struct dev_link *l, uint64_t now, bool *add_to_more)
{
    int max = l->large ? 1 : LINK_BURST;
    int n = port_recv(l->port.port, now, dev->rx, max);
    for (int i = 0; i < n; i++) {
        if (dev->rx[i].remote_len >= LARGE)
            l->large = LINK_BURST;
        else if (l->large)
            l->large--;
        dev->copied += dev->rx[i].remote_len;
        dev_take(dev, &l->port, l->id, &dev->rx[i], now);
    }
    *add_to_more |= n == max;
    return n;
}

bool dev_links_rx(struct uroce_device *dev, uint64_t now, int *add_to)
{
    bool look = dev_take_flag(&dev->links_ready), more = false;
    for (int i = 0; i < dev->nlinks; i++) {
        struct dev_link *l = dev->links[i];
        if (!l || !l->port.port)
            continue;
        if (look)
            port_shm_look(l->shm);
        int n = take_some(dev, l, now, &more);
        *add_to += n > 0 ? n : 0;
        if (n >= 0 && !l->ready && port_shm_ready(l->shm) == 1) {
            l->ready = true;
            forget_offers(dev, l);
            offer_all(dev, l);
            dev_hello_hurry(dev);
        }
        if (n >= 0 && l->ready && !l->offered)
            offer_all(dev, l);
        if (n < 0) {
            log_debug("the shared memory with another process has ended: %s", strerror(-n));
            end_link(dev, l);
        } else if (!l->users && now - l->idle_ns > LINK_IDLE_NS && now > l->idle_ns) {
            end_link(dev, l);
        }
    }
    return more;
}

void dev_links_room(struct uroce_device *dev, uint64_t now)
{
    for (int i = 0; i < dev->nlinks; i++) {
        struct dev_link *l = dev->links[i];
        if (!l || !l->port.port)
            continue;
        bool full = !dev_held_flush(dev, &l->port, now) || !port_shm_room(l->shm);
        if (full != l->full)
            qp_engine_hold(dev->engine, l->id, full);
        l->full = full;
    }
}

bool dev_links_arm(struct uroce_device *dev)
{
    bool waiting = false;
    for (int i = 0; i < dev->nlinks; i++)
        if (dev->links[i] && dev->links[i]->port.port)
            waiting |= port_arm(dev->links[i]->port.port);
    return waiting;
}

uint64_t dev_links_deadline(const struct uroce_device *dev)
{
    uint64_t d = UINT64_MAX;
    for (int i = 0; i < dev->nlinks; i++) {
        const struct dev_link *l = dev->links[i];
        if (!l || !l->port.port)
            continue;
        d = min_u64(d, port_deadline(l->port.port));
        if (!l->users)
            d = min_u64(d, l->idle_ns + LINK_IDLE_NS + 1);
        if (!l->offered && l->ready)
            d = min_u64(d, now_ns() + 10 * NSEC_PER_MSEC);
    }
    return d;
}

void dev_links_counters(const struct uroce_device *dev, struct uroce_counters *add_to)
{
    for (int i = 0; i < dev->nlinks; i++)
        if (dev->links[i] && dev->links[i]->port.port)
            port_counters(dev->links[i]->port.port, add_to);
}

void dev_let_go(void *ctx, void *qp_user, const void *base, size_t len)
{
    struct uroce_device *dev = ctx;
    const struct uroce_qp *qp = qp_user;
    struct port_taken what = {.base = base, .len = len};
    if (qp)
        what.dest_qpn = qp->dest_qpn;
    for (int i = 0; i < dev->nlinks; i++) {
        struct dev_link *l = dev->links[i];
        if (l && l->port.port && (!qp || qp->link == l))
            port_revoke(l->port.port, &what);
    }
}

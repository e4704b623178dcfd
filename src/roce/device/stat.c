/* The answering side of live counters (roce/device_stat.h). All but start and stop runs in the helper thread. */
#define LOG_COMPONENT "uroce"
#include "dev.h"

#include "base/log.h"
#include "base/rng.h"
#include "roce/device_stat.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#define SCAN 4096 /* queue pair numbers that are looked at while the device is held */

/* On edges: what waits and is not wanted now does not keep the helper thread awake. */
static int watch(struct uroce_device *dev, int fd)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.fd = fd};
    return epoll_ctl(dev->helper_fd, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

int dev_stat_start(struct uroce_device *dev)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    uint64_t number;
    rng_secret(&number, sizeof number);
    int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, STAT_PREFIX "%016llx", (unsigned long long)number);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    struct dev_stat *s = &dev->stat;
    s->opened_ns = now_ns();
    s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listener < 0)
        return -errno;
    if (bind(s->listener, (struct sockaddr *)&name, len) || listen(s->listener, 8))
        return -errno;
    return watch(dev, s->listener);
}

static void hang_up(struct dev_stat_reader *r)
{
    if (r->sock >= 0)
        close(r->sock);
    r->sock = -1;
}

void dev_stat_stop(struct uroce_device *dev)
{
    struct dev_stat *s = &dev->stat;
    for (int i = 0; i < DEV_STAT_READERS; i++)
        hang_up(&s->readers[i]);
    if (s->listener >= 0)
        close(s->listener);
    s->listener = -1;
}

static int tell(int sock, const void *data, size_t size)
{
    return send(sock, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size ? 0 : -errno;
}

static int tell_device(struct uroce_device *dev, int sock)
{
    struct stat_device d = {
        .magic = STAT_MAGIC,
        .gids = (uint32_t)dev->nports,
        .node_guid = dev_guid(&dev->ports[0].at, dev->index),
        .open_ns = now_ns() - dev->stat.opened_ns,
        .objects = atomic_load(&dev->objects),
    };
    _Static_assert(STAT_GIDS >= DEV_ADDRESSES_MAX, "all addresses are told");
    snprintf(d.name, sizeof d.name, "%s", dev->cfg.name);
    for (int i = 0; i < dev->nports; i++)
        d.gid[i] = dev->ports[i].at.addr.gid;
    uroce_device_counters(dev, &d.counters);
    return tell(sock, &d, sizeof d);
}

/* A place for one more: the one of whoever has read nothing for the longest time, if there is none. */
static struct dev_stat_reader *place(struct dev_stat *s)
{
    struct dev_stat_reader *r = &s->readers[0];
    for (int i = 0; i < DEV_STAT_READERS && r->sock >= 0; i++)
        if (s->readers[i].sock < 0 || s->readers[i].moved_ns < r->moved_ns)
            r = &s->readers[i];
    hang_up(r);
    return r;
}

/* False: nobody waits. */
static bool accept_reader(struct uroce_device *dev)
{
    cleanup_close int sock = accept4(dev->stat.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    uid_t uid;
    if (sock < 0)
        return false;
    if (holder_peer(sock, &uid, NULL))
        return true;
    if (uid != geteuid() && uid != 0) {
        log_debug("uid %u asked for the counters of uid %u's device", (unsigned)uid, (unsigned)geteuid());
        return true;
    }
    if (tell_device(dev, sock) || watch(dev, sock))
        return true;
    *place(&dev->stat) = (struct dev_stat_reader){.sock = sock, .moved_ns = now_ns()};
    sock = -1;
    return true;
}

static void fill_pair(struct uroce_qp *qp, struct stat_pair *ret)
{
    struct uroce_qp_transport t;
    struct uroce_qp_attr attr;
    struct qp_init init;
    qp_query(qp->qp, &attr, &init);
    *ret = (struct stat_pair){.qpn = qp_num(qp->qp),
                              .type = (uint32_t)qp->type,
                              .state = (uint32_t)attr.qp_state,
                              .connected = qp->connected};
    qp_counters(qp->qp, &ret->counters);
    if (dev_transport(qp, &t))
        return;
    ret->dest_qpn = qp->dest_qpn;
    ret->mtu_bytes = t.mtu_bytes;
    ret->selective_repeat = (uint32_t)t.selective_repeat;
    snprintf(ret->port, sizeof ret->port, "%s", t.port);
    ret->local = qp->path.local;
    ret->remote = qp->path.remote;
}

/* The next queue pairs from number s->next on; true: that was the end of the table. */
static bool collect(struct uroce_device *dev, uint32_t *next, struct stat_pairs *m)
{
    *m = (struct stat_pairs){.magic = STAT_MAGIC};
    while (m->n == 0 && *next < DEV_QPNS) {
        uint32_t end = (uint32_t)min_u64(*next + SCAN, DEV_QPNS);
        dev_lock(dev);
        for (; *next < end && m->n < STAT_PAIRS; ++*next)
            if (dev->by_qpn[*next])
                fill_pair(dev->by_qpn[*next], &m->at[m->n++]);
        dev_unlock(dev);
    }
    m->last = *next == DEV_QPNS;
    return m->last;
}

/* As much as the socket takes: the rest when it is writable again. */
static void go_on(struct uroce_device *dev, struct dev_stat_reader *r)
{
    while (r->sock >= 0) {
        struct stat_pairs m;
        uint32_t next = r->next;
        bool last = collect(dev, &next, &m);
        int e = tell(r->sock, &m, sizeof m);
        if (e == -EAGAIN)
            return;
        r->next = next;
        r->moved_ns = now_ns();
        if (e || last)
            hang_up(r);
    }
}

void dev_stat_serve(struct uroce_device *dev, int fd)
{
    struct dev_stat *s = &dev->stat;
    while (fd == s->listener && accept_reader(dev))
        ;
    for (int i = 0; i < DEV_STAT_READERS; i++)
        if (s->readers[i].sock == fd)
            go_on(dev, &s->readers[i]);
}

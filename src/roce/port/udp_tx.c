/* The UDP port, sending: many runs a system call, each one message that the kernel cuts into segments. */
#define LOG_COMPONENT "uroce"
#include "udp_priv.h"

#include "base/log.h"
#include "roce/wire_icrc.h"

#include <errno.h>
#include <linux/net_tstamp.h>
#include <string.h>

enum outcome { SENT, FULL, FULL_QUIET /* no poll tells the end */, UNSEGMENTED, LOST };

/* What an errno of sendmsg means for the run that it concerns. */
static enum outcome outcome_of(int err, bool segmented)
{
    switch (err) {
    case EAGAIN:
        return FULL;
    case ENOBUFS:
    case ENOMEM:
        return FULL_QUIET;
    case EIO: /* segmentation needs checksum offload by the device on older kernels */
    case EINVAL:
    case EOPNOTSUPP:
        return segmented ? UNSEGMENTED : LOST;
    default: /* EMSGSIZE, ENETUNREACH, EHOSTUNREACH, EPERM (a packet filter), .. */
        return LOST;
    }
}

static struct udp_tx_sock *socket_for(struct udp_port *u, uint16_t sport)
{
    if (sport == u->local.udp_port)
        return &u->main;
    for (uint32_t i = 0; i < UDP_POOL; i++)
        if (u->pool[i].fd >= 0 && u->pool[i].port == sport)
            return &u->pool[i];
    return NULL;
}

/* Traffic class and hop limit of the socket's packets from now on, multicast too. */
static void settle(const struct udp_port *u, struct udp_tx_sock *s, const struct port_tx *tx)
{
    int tc = tx->traffic_class, hops = tx->hop_limit ? tx->hop_limit : 64;
    int level = u->v6 ? IPPROTO_IPV6 : IPPROTO_IP;
    s->settled = true;
    if (setsockopt(s->fd, level, u->v6 ? IPV6_TCLASS : IP_TOS, &tc, sizeof tc) == 0)
        s->traffic_class = (uint8_t)tc;
    if (setsockopt(s->fd, level, u->v6 ? IPV6_MULTICAST_HOPS : IP_MULTICAST_TTL, &hops, sizeof hops) == 0 &&
        setsockopt(s->fd, level, u->v6 ? IPV6_UNICAST_HOPS : IP_TTL, &hops, sizeof hops) == 0)
        s->hop_limit = (uint8_t)hops;
}

/*
 * What is sent is copied into pages of the kernel's, which it takes again as soon as the receiver has read them. If
 * that is a process of this machine they then lie in the cache of another core, and to write them takes three times as
 * long as others. With a time stamp the kernel keeps a message for us, in its socket's queue of errors, until we read
 * that: so much later that the pages are in no core's cache. Not on the main socket, whose errors would wake who sleeps
 * on it.
 */
static bool keeps(const struct udp_port *u, const struct udp_tx_sock *s, const struct port_tx *tx)
{
    return !u->keeps_nothing && s != &u->main && run_total(tx) >= UDP_KEEP_BYTES;
}

/* Reads the oldest one of the socket's. */
static bool let_go(const struct udp_tx_sock *s)
{
    struct msghdr none = {0};
    return recvmsg(s->fd, &none, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0;
}

static bool let_go_oldest(struct udp_port *u)
{
    const struct udp_kept *k = &u->kept[u->kept_first++ % UDP_KEEP_RING];
    u->nkept--;
    u->kept_bytes -= k->bytes;
    return let_go(k->sock);
}

static void keep_nothing(struct udp_port *u)
{
    u->keeps_nothing = true;
    while (u->nkept)
        let_go_oldest(u);
}

/* Where the kernel keeps none, for its settings or the device, no more is asked. */
static void keep(struct udp_port *u, struct udp_tx_sock *s, const struct port_tx *tx, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t bytes = (uint32_t)run_total(&tx[i]);
        if (!keeps(u, s, &tx[i]))
            continue;
        u->kept[(u->kept_first + u->nkept++) % UDP_KEEP_RING] = (struct udp_kept){s, bytes};
        u->kept_bytes += bytes;
    }
    while (u->kept_bytes > UDP_KEEP)
        if (!let_go_oldest(u))
            keep_nothing(u);
}

/* The socket is waited for: it may have no error, which would wake at once. A full link leads out of the machine. */
static void wait_for_room(struct udp_port *u, const struct udp_tx_sock *s)
{
    keep_nothing(u);
    while (let_go(s))
        ;
    udp_wait_for_room(u, s->fd);
}

struct tx_msg {
    union udp_sockaddr to;
    uint8_t ctl[UDP_TX_CTL] __attribute__((aligned(16)));
};

static void put_cmsg(struct msghdr *h, int level, int type, const void *data, size_t len)
{
    struct cmsghdr *c = (struct cmsghdr *)((uint8_t *)h->msg_control + h->msg_controllen);
    c->cmsg_level = level;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(len); /* the padding behind is not looked at */
    memcpy(CMSG_DATA(c), data, len);
    h->msg_controllen += CMSG_SPACE(len);
}

static void put_source(struct msghdr *h, const struct port_tx *tx, bool v6)
{
    if (v6) {
        struct in6_pktinfo pi = {.ipi6_ifindex = tx->from.scope_id};
        memcpy(&pi.ipi6_addr, tx->from.gid.raw, 16);
        put_cmsg(h, IPPROTO_IPV6, IPV6_PKTINFO, &pi, sizeof pi);
    } else {
        struct in_pktinfo pi = {0};
        memcpy(&pi.ipi_spec_dst, tx->from.gid.raw + 12, 4);
        put_cmsg(h, IPPROTO_IP, IP_PKTINFO, &pi, sizeof pi);
    }
}

static void build(const struct udp_port *u, const struct udp_tx_sock *s, const struct port_tx *tx, struct msghdr *h,
                  struct tx_msg *m)
{
    int tc = tx->traffic_class, ttl = tx->hop_limit;
    socklen_t len;
    udp_to_sockaddr(&tx->to, u->v6, &m->to, &len);
    *h = (struct msghdr){.msg_name = &m->to, .msg_namelen = len, .msg_iov = (struct iovec *)tx->iov};
    h->msg_iovlen = (size_t)tx->niov;
    h->msg_control = m->ctl;
    if (tc != s->traffic_class)
        put_cmsg(h, u->v6 ? IPPROTO_IPV6 : IPPROTO_IP, u->v6 ? IPV6_TCLASS : IP_TOS, &tc, sizeof tc);
    if (ttl && ttl != s->hop_limit)
        put_cmsg(h, u->v6 ? IPPROTO_IPV6 : IPPROTO_IP, u->v6 ? IPV6_HOPLIMIT : IP_TTL, &ttl, sizeof ttl);
    if (u->any)
        put_source(h, tx, u->v6);
    if (tx->npkts > 1) {
        uint16_t seg = (uint16_t)tx->seg_bytes;
        put_cmsg(h, IPPROTO_UDP, UDP_SEGMENT, &seg, sizeof seg);
    }
    if (keeps(u, s, tx)) {
        uint32_t record = SOF_TIMESTAMPING_TX_SOFTWARE;
        put_cmsg(h, SOL_SOCKET, SO_TIMESTAMPING, &record, sizeof record);
    }
}

/*
 * Sends the packets of a run one by one: the device has no segmentation, or refused this. Each then has IPv4 id 0 and
 * not k, so the ICRC is made to fit. A packet that finds no room is lost, with those after it.
 */
static void send_singly(struct udp_port *u, const struct udp_tx_sock *s, const struct port_tx *tx)
{
    uint8_t buf[RUN_PACKET_MAX];
    struct iovec iov = {.iov_base = buf};
    struct port_tx one = *tx;
    struct msghdr h;
    struct tx_msg m;
    if (!u->icrc_tab) {
        u->icrc_tab = malloc(sizeof *u->icrc_tab);
        if (!u->icrc_tab) {
            u->tx_drops += tx->npkts;
            return;
        }
        wire_icrc_tab_init(u->icrc_tab);
    }
    one.iov = &iov;
    one.niov = 1;
    one.npkts = 1;
    for (uint32_t k = 0; k < tx->npkts; k++) {
        iov.iov_len = one.last_bytes = run_bytes(tx, k);
        run_copy(tx, k, buf);
        if (!u->v6)
            run_reid(u->icrc_tab, buf, one.last_bytes, (uint16_t)k, 0);
        build(u, s, &one, &h, &m);
        if (sendmsg(s->fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            continue;
        u->tx_drops++;
        if (outcome_of(errno, false) != LOST) {
            u->tx_drops += tx->npkts - k - 1;
            return;
        }
    }
}

static void stop_segmenting(struct udp_port *u, int err)
{
    if (err != EIO || !u->gso)
        return;
    u->gso = false;
    log_warn("a network device refuses UDP segmentation (%s): uroce sends packet by packet and is slower",
             strerror(err));
}

/* As sendmmsg: how many were sent, -1 if the first was not. */
static int transmit(int fd, struct mmsghdr *mm, int n)
{
    if (n > 1)
        return sendmmsg(fd, mm, (unsigned)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sendmsg(fd, &mm->msg_hdr, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 1;
}

/* tx[0..n) have one socket. Returns how many were taken; fewer: no room (the port then waits for some). */
static int send_batch(struct udp_port *u, uint64_t now_ns, struct udp_tx_sock *s, const struct port_tx *tx, int n)
{
    struct mmsghdr mm[UDP_TX_MSGS];
    struct tx_msg msgs[UDP_TX_MSGS];
    int done = 0, refused = 0;
    if (!s->settled)
        settle(u, s, tx);
    for (int i = 0; i < n; i++)
        build(u, s, &tx[i], &mm[i].msg_hdr, &msgs[i]);
    while (done < n) {
        int k = transmit(s->fd, mm + done, n - done);
        if (k > 0) {
            keep(u, s, tx + done, k);
            done += k;
            continue;
        }
        int err = k < 0 ? errno : EIO;
        /* ICMP's word on an earlier packet; told once. */
        if ((err == ECONNREFUSED || err == EINTR) && refused++ < 8)
            continue;
        switch (outcome_of(err, tx[done].npkts > 1)) {
        case FULL:
            wait_for_room(u, s);
            u->retry_ns = now_ns + 10 * UDP_RETRY_NS;
            return done;
        case FULL_QUIET:
            u->retry_ns = now_ns + UDP_RETRY_NS;
            return done;
        case UNSEGMENTED:
            stop_segmenting(u, err);
            send_singly(u, s, &tx[done]);
            break;
        default:
            log_debug("a run of %u packets of %u bytes was not sent: %s", tx[done].npkts, tx[done].seg_bytes,
                      strerror(err));
            u->tx_drops += tx[done].npkts;
            break;
        }
        done++;
    }
    return done;
}

static bool valid(struct udp_port *u, const struct port_tx *tx)
{
    return run_valid(tx, RUN_PACKET_MAX, PORT_SEGS_MAX) && run_total(tx) <= PORT_BATCH_BYTES &&
           tx->niov <= (int)PORT_IOV_MAX && wire_gid_is_v4(&tx->to.gid) == !u->v6 && socket_for(u, tx->from.udp_port);
}

int udp_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n)
{
    struct udp_port *u = udp_of(p);
    int done = 0;
    u->retry_ns = UINT64_MAX;
    udp_wait_for_room(u, -1);
    while (done < n) {
        if (!valid(u, &tx[done]))
            return done ? done : -EINVAL;
        struct udp_tx_sock *s = socket_for(u, tx[done].from.udp_port);
        int k = 1;
        if (tx[done].npkts > 1 && !u->gso) { /* formed before segmentation was found missing */
            send_singly(u, s, &tx[done++]);
            continue;
        }
        while (done + k < n && k < (int)UDP_TX_MSGS && tx[done + k].from.udp_port == tx[done].from.udp_port &&
               valid(u, &tx[done + k]))
            k++;
        int took = send_batch(u, now_ns, s, tx + done, k);
        done += took;
        if (took < k)
            break;
    }
    return done;
}

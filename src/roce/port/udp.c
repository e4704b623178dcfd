/* The UDP port: sockets and their options. udp_tx.c sends, udp_rx.c receives, udp_raw.c sees IPv4 ids. */
#define LOG_COMPONENT "uroce"
#include "udp_priv.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

void udp_to_sockaddr(const struct port_addr *a, bool v6, union udp_sockaddr *ret, socklen_t *ret_len)
{
    memset(ret, 0, sizeof *ret);
    if (v6) {
        ret->v6.sin6_family = AF_INET6;
        ret->v6.sin6_port = htons(a->udp_port);
        memcpy(&ret->v6.sin6_addr, a->gid.raw, 16);
        if (IN6_IS_ADDR_LINKLOCAL(&ret->v6.sin6_addr) || IN6_IS_ADDR_MC_LINKLOCAL(&ret->v6.sin6_addr))
            ret->v6.sin6_scope_id = a->scope_id;
        *ret_len = sizeof ret->v6;
    } else {
        ret->v4.sin_family = AF_INET;
        ret->v4.sin_port = htons(a->udp_port);
        memcpy(&ret->v4.sin_addr, a->gid.raw + 12, 4);
        *ret_len = sizeof ret->v4;
    }
}

void port_addr_from(const struct sockaddr *sa, struct port_addr *ret)
{
    memset(ret, 0, sizeof *ret);
    if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)sa;
        memcpy(ret->gid.raw, &in->sin6_addr, 16);
        ret->scope_id = in->sin6_scope_id;
        ret->udp_port = ntohs(in->sin6_port);
    } else {
        const struct sockaddr_in *in = (const void *)sa;
        ret->gid.raw[10] = ret->gid.raw[11] = 0xff;
        memcpy(ret->gid.raw + 12, &in->sin_addr, 4);
        ret->udp_port = ntohs(in->sin_port);
    }
}

static int set_int(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value) ? -errno : 0;
}

/*
 * DF, so that IPv4 ids are 0, and k in segment k: the ICRC covers them. PROBE rather than DO: only the link's own MTU
 * limits a packet, so that nobody can shrink a path by forged ICMP; RoCE's MTU is agreed end to end.
 */
static int send_options(int fd, bool v6, const struct port_addr *local)
{
    int err = 0;
    if (v6) {
        int scope = (int)local->scope_id;
        err = set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
        err = err ? err : set_int(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1);
        /* Soft-RoCE sends UDP checksum 0 over IPv6 too; the ICRC protects what that would (RFC 6935). */
        err = err ? err : set_int(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
        if (!err && scope)
            err = set_int(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, scope);
    } else {
        err = set_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
        if (!err && setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, local->gid.raw + 12, 4))
            err = errno == EADDRNOTAVAIL ? 0 : -errno;
    }
    return err;
}

int udp_socket(const struct port_addr *local, bool reuseport, bool reuseaddr)
{
    bool v6 = !wire_gid_is_v4(&local->gid);
    cleanup_close int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    union udp_sockaddr sa;
    socklen_t len;
    if (fd < 0)
        return -errno;
    int err = v6 ? set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) : 0;
    if (!err && reuseport)
        err = set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (!err && reuseaddr)
        err = set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (err)
        return err;
    udp_to_sockaddr(local, v6, &sa, &len);
    if (bind(fd, &sa.any, len))
        return -errno;
    int ret = fd;
    fd = -1;
    return ret;
}

/* The larger of what the limit allows and, for who may, what is wanted. */
static void buffer_size(int fd, int force, int plain, uint32_t bytes)
{
    int value = bytes > INT32_MAX / 2 ? INT32_MAX / 2 : (int)bytes;
    if (setsockopt(fd, SOL_SOCKET, force, &value, sizeof value))
        set_int(fd, SOL_SOCKET, plain, value);
}

/* Asks for what a receiving socket tells of each datagram. */
static int receive_options(struct udp_port *u, int fd, bool gro)
{
    int err;
    if (u->v6) {
        err = u->any ? set_int(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1) : 0;
        err = err ? err : set_int(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
        err = err ? err : set_int(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
        err = err ? err : set_int(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
    } else {
        err = u->any ? set_int(fd, IPPROTO_IP, IP_PKTINFO, 1) : 0;
        err = err ? err : set_int(fd, IPPROTO_IP, IP_RECVTOS, 1);
        err = err ? err : set_int(fd, IPPROTO_IP, IP_RECVTTL, 1);
    }
    if (err)
        return err;
    set_int(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
    if (gro && set_int(fd, IPPROTO_UDP, UDP_GRO, 1))
        return 1;
    return 0;
}

/* Whether the kernel lets a socket send segments. */
static bool can_segment(int fd)
{
    int seg;
    socklen_t len = sizeof seg;
    return getsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &seg, &len) == 0;
}

void udp_wait_for_room(struct udp_port *u, int fd)
{
    if (u->blocked_fd == fd)
        return;
    if (u->blocked_fd == u->fd)
        epoll_ctl(u->epfd, EPOLL_CTL_MOD, u->fd, &(struct epoll_event){.events = u->rawfd < 0 ? EPOLLIN : 0});
    else if (u->blocked_fd >= 0)
        epoll_ctl(u->epfd, EPOLL_CTL_DEL, u->blocked_fd, NULL);
    u->blocked_fd = fd;
    if (fd == u->fd)
        epoll_ctl(u->epfd, EPOLL_CTL_MOD, fd,
                  &(struct epoll_event){.events = EPOLLOUT | (u->rawfd < 0 ? EPOLLIN : 0u)});
    else if (fd >= 0)
        epoll_ctl(u->epfd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLOUT});
}

/* A socket that drops all that comes: it only sends, or another one receives for it. */
static int receive_nothing(int fd)
{
    struct sock_filter ret0 = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog prog = {.len = 1, .filter = &ret0};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof prog) ? -errno : 0;
}

/* Opens pool socket i with a source port near the wanted one. */
static int pool_open(struct udp_port *u, uint32_t i, uint16_t wanted)
{
    struct port_addr a = u->local;
    for (uint32_t t = 0; t < UDP_SPORT_TRYS; t++) {
        a.udp_port = (uint16_t)(UDP_SPORT_MIN | (wanted + t * UDP_POOL));
        int fd = udp_socket(&a, false, false);
        if (fd == -EADDRINUSE)
            continue;
        if (fd < 0)
            return fd;
        int err = send_options(fd, u->v6, &u->local);
        err = err ? err : receive_nothing(fd);
        if (err) {
            close(fd);
            return err;
        }
        buffer_size(fd, SO_SNDBUFFORCE, SO_SNDBUF, UDP_SNDBUF);
        buffer_size(fd, SO_RCVBUFFORCE, SO_RCVBUF, UDP_KEEP_BUF);
        u->pool[i] = (struct udp_tx_sock){.fd = fd, .port = a.udp_port};
        return 0;
    }
    return -EADDRINUSE;
}

uint16_t udp_sport(struct port *p, uint16_t wanted)
{
    struct udp_port *u = udp_of(p);
    uint32_t i = wanted % UDP_POOL;
    if (wanted == u->local.udp_port)
        return wanted;
    if (u->pool[i].fd == -1) {
        int err = pool_open(u, i, wanted);
        if (err) { /* the answer must stay: such flows use the main socket */
            log_debug("no socket for UDP source port %u: %s; the main port is used", wanted, strerror(-err));
            u->pool[i] = (struct udp_tx_sock){.fd = -2, .port = u->local.udp_port};
        }
    }
    return u->pool[i].port;
}

static int udp_join(struct port *p, const struct port_addr *group, bool join)
{
    struct udp_port *u = udp_of(p);
    uint32_t i = 0;
    if (!wire_gid_is_multicast(&group->gid) || wire_gid_is_v4(&group->gid) == u->v6)
        return -EINVAL;
    while (i < u->ngroups && memcmp(u->groups[i].gid.raw, group->gid.raw, 16))
        i++;
    if (!join) {
        if (i == u->ngroups)
            return -ENOENT;
        close(u->groups[i].fd); /* leaves the group and epfd */
        u->groups[i] = u->groups[--u->ngroups];
        return 0;
    }
    if (i < u->ngroups)
        return 0;
    if (i == UDP_GROUPS)
        return -ENOSPC;
    struct port_addr a = {.gid = group->gid, .scope_id = group->scope_id, .udp_port = u->local.udp_port};
    a.scope_id = a.scope_id ? a.scope_id : u->local.scope_id;
    cleanup_close int fd = udp_socket(&a, false, true);
    if (fd < 0)
        return fd;
    int err = receive_options(u, fd, u->gro);
    if (err >= 0 && u->rawfd >= 0)
        err = receive_nothing(fd);
    if (err < 0)
        return err;
    if (u->v6) {
        struct ipv6_mreq m = {.ipv6mr_interface = a.scope_id};
        memcpy(&m.ipv6mr_multiaddr, a.gid.raw, 16);
        err = setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &m, sizeof m);
    } else {
        struct ip_mreq m;
        memcpy(&m.imr_multiaddr, a.gid.raw + 12, 4);
        memcpy(&m.imr_interface, u->local.gid.raw + 12, 4);
        set_int(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
        err = setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof m);
    }
    if (err || epoll_ctl(u->epfd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}))
        return -errno;
    u->groups[u->ngroups++] = (struct udp_group){group->gid, fd};
    u->rx.overflow[2 + i] = 0;
    fd = -1;
    return 0;
}

static void udp_caps(const struct port *p, struct port_caps *ret)
{
    const struct udp_port *u = udp_of(p);
    *ret = (struct port_caps){
        .name = "udp",
        .ipv4_id = PORT_ID_ZERO_THEN_K,
        .packet_bytes_max = RUN_PACKET_MAX,
        .segs_max = u->gso ? PORT_SEGS_MAX : 1,
        .rcvbuf_bytes = u->rcvbuf_bytes,
    };
}

static int udp_fd(const struct port *p)
{
    return udp_of(p)->epfd;
}

static int udp_rx_fd(const struct port *p)
{
    const struct udp_port *u = udp_of(p);
    return u->rawfd >= 0 ? u->rawfd : u->fd;
}

static bool udp_arm(struct port *p)
{
    const struct udp_port *u = udp_of(p);
    return u->rx.msg < u->rx.nmsgs;
}

static uint64_t udp_deadline(const struct port *p)
{
    return udp_of(p)->retry_ns;
}

static void udp_revoke(struct port *p, const struct port_taken *what)
{
    (void)p, (void)what;
}

static void udp_counters(const struct port *p, struct uroce_counters *add_to)
{
    const struct udp_port *u = udp_of(p);
    add_to->tx_drops += u->tx_drops;
    add_to->rx_overruns += u->rx_overruns;
    add_to->drop_malformed += u->rx_malformed;
}

static void udp_close(struct port *p)
{
    struct udp_port *u = udp_of(p);
    for (uint32_t i = 0; i < UDP_POOL; i++)
        if (u->pool[i].fd >= 0)
            close(u->pool[i].fd);
    for (uint32_t i = 0; i < u->ngroups; i++)
        close(u->groups[i].fd);
    if (u->rawfd >= 0)
        close(u->rawfd);
    if (u->fd >= 0)
        close(u->fd);
    if (u->epfd >= 0)
        close(u->epfd);
    free(u->rx.buf);
    free(u->icrc_tab);
    free(u);
}

static const struct port_ops udp_ops = {
    .caps = udp_caps,
    .send = udp_send,
    .recv = udp_recv,
    .fd = udp_fd,
    .rx_fd = udp_rx_fd,
    .arm = udp_arm,
    .deadline = udp_deadline,
    .sport = udp_sport,
    .revoke = udp_revoke,
    .join = udp_join,
    .counters = udp_counters,
    .close = udp_close,
};

static struct udp_port *udp_new(const struct port_udp_config *cfg)
{
    struct udp_port *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->port.ops = &udp_ops;
    u->local = cfg->local;
    if (!u->local.udp_port)
        u->local.udp_port = PORT_UDP;
    u->v6 = !wire_gid_is_v4(&u->local.gid);
    u->epfd = u->fd = u->rawfd = u->blocked_fd = -1;
    u->retry_ns = UINT64_MAX;
    u->rx.ask = 1;
    for (uint32_t i = 0; i < UDP_POOL; i++)
        u->pool[i].fd = -1;
    static const union uroce_gid any4 = {.raw = {[10] = 0xff, [11] = 0xff}}, any6;
    u->any = memcmp(&u->local.gid, u->v6 ? &any6 : &any4, 16) == 0;
    u->rx.buf = malloc(UDP_RX_MSGS * UDP_RX_BYTES);
    if (!u->rx.buf) {
        free(u);
        return NULL;
    }
    return u;
}

/* Why the address could not be had, with what to do. */
static int say(const struct udp_port *u, int err, const char *what, char *msg, size_t size)
{
    char a[WIRE_GID_TEXT];
    const char *hint = "";
    if (err == -EADDRINUSE)
        hint = ": another RoCE program or the kernel's soft-RoCE driver holds it (ss -ulnp shows who); "
               "give this program an address of its own";
    else if (err == -EADDRNOTAVAIL)
        hint = ": no interface of this network namespace has that address";
    if (msg && size)
        snprintf(msg, size, "%s on %s UDP port %u: %s%s", what, wire_gid_text(&u->local.gid, a), u->local.udp_port,
                 strerror(-err), hint);
    return err;
}

static int set_up(struct udp_port *u, const struct port_udp_config *cfg, const char **ret_what)
{
    *ret_what = "cannot open a socket";
    u->fd = cfg->fd >= 0 ? cfg->fd : udp_socket(&u->local, false, false);
    if (u->fd < 0)
        return u->fd;
    u->main = (struct udp_tx_sock){.fd = u->fd, .port = u->local.udp_port};
    *ret_what = "cannot set socket options";
    int err = send_options(u->fd, u->v6, &u->local);
    if (err)
        return err;
    err = receive_options(u, u->fd, !cfg->no_segmentation);
    if (err < 0)
        return err;
    u->gro = !cfg->no_segmentation && err == 0;
    u->gso = !cfg->no_segmentation && can_segment(u->fd);
    if (!cfg->no_segmentation && (!u->gro || !u->gso))
        log_warn("this kernel has no UDP %s offload: uroce is slower", u->gso ? "receive" : "segmentation");
    buffer_size(u->fd, SO_RCVBUFFORCE, SO_RCVBUF, cfg->rcvbuf_bytes ? cfg->rcvbuf_bytes : UDP_RCVBUF);
    buffer_size(u->fd, SO_SNDBUFFORCE, SO_SNDBUF, UDP_SNDBUF);
    int got = 0;
    socklen_t len = sizeof got;
    if (getsockopt(u->fd, SOL_SOCKET, SO_RCVBUF, &got, &len))
        return -errno;
    u->rcvbuf_bytes = (uint64_t)got / 2; /* the kernel doubles it for its bookkeeping: socket(7) */
    *ret_what = "cannot open a raw socket (CAP_NET_RAW is needed)";
    if (cfg->raw && !u->v6) {
        u->rawfd = udp_raw_open(u);
        if (u->rawfd < 0)
            return u->rawfd;
        err = receive_nothing(u->fd);
        if (err)
            return err;
    }
    *ret_what = "cannot watch sockets";
    u->epfd = epoll_create1(EPOLL_CLOEXEC);
    if (u->epfd < 0)
        return -errno;
    struct epoll_event in = {.events = EPOLLIN}, none = {.events = 0};
    if (epoll_ctl(u->epfd, EPOLL_CTL_ADD, u->fd, u->rawfd < 0 ? &in : &none))
        return -errno;
    if (u->rawfd >= 0 && epoll_ctl(u->epfd, EPOLL_CTL_ADD, u->rawfd, &in))
        return -errno;
    return 0;
}

int port_udp_open(const struct port_udp_config *cfg, struct port **ret, char *err, size_t err_size)
{
    const char *what = "";
    struct udp_port *u = udp_new(cfg);
    if (!u) {
        if (cfg->fd >= 0)
            close(cfg->fd);
        return -ENOMEM;
    }
    int e = set_up(u, cfg, &what);
    if (e) {
        say(u, e, what, err, err_size);
        udp_close(&u->port);
        return e;
    }
    *ret = &u->port;
    return 0;
}

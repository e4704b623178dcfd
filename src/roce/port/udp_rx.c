/* The UDP port, receiving: datagrams that the kernel has joined (UDP_GRO) are handed out packet by packet. */
#include "udp_priv.h"

#include <errno.h>
#include <netinet/ip.h>
#include <string.h>

/* Control messages of one datagram, into r. */
static void read_control(struct udp_port *u, struct msghdr *h, struct port_rx *r, uint32_t *ret_seg)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        int v = 0;
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
            r->traffic_class = *CMSG_DATA(c);
            continue;
        }
        if (c->cmsg_len >= CMSG_LEN(sizeof v))
            memcpy(&v, CMSG_DATA(c), sizeof v);
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL)
            r->hop_limit = (uint8_t)v;
        else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS)
            r->traffic_class = (uint8_t)v;
        else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_HOPLIMIT)
            r->hop_limit = (uint8_t)v;
        else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO)
            memcpy(r->to.gid.raw + 12, CMSG_DATA(c) + offsetof(struct in_pktinfo, ipi_addr), 4);
        else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO)
            memcpy(r->to.gid.raw, CMSG_DATA(c), 16);
        else if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO && v > 0)
            *ret_seg = (uint32_t)v;
        else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
            uint32_t *seen = &u->rx.overflow[u->rx.source];
            u->rx_overruns += (uint32_t)v - *seen;
            *seen = (uint32_t)v;
        }
    }
}

/* Makes datagram rx.msg the one that is handed out. */
static void begin_msg(struct udp_port *u)
{
    struct udp_rx *x = &u->rx;
    struct mmsghdr *m = &x->mm[x->msg];
    uint8_t *data = x->buf + x->msg * UDP_RX_BYTES;
    x->seg_bytes = x->at = x->segment = 0;
    x->what = (struct port_rx){.data = data, .len = m->msg_len, .to = u->local, .ipv4_id_known = u->v6};
    x->what.to.gid = x->to; /* what the socket is bound to; a wildcard socket is told */
    if (m->msg_hdr.msg_flags & MSG_TRUNC) {
        x->what.len = 0;
        u->rx_malformed++;
    } else if (x->raw) {
        if (!udp_raw_take(u, &m->msg_hdr, data, m->msg_len, &x->what, &x->seg_bytes))
            x->what.len = 0;
    } else {
        read_control(u, &m->msg_hdr, &x->what, &x->seg_bytes);
        port_addr_from(&x->from[x->msg].any, &x->what.from);
    }
    if (!x->seg_bytes || x->seg_bytes > x->what.len)
        x->seg_bytes = x->what.len;
}

/*
 * One packet of what was read, or false. An IPv4 id that is known counts up from segment to segment. What all of them
 * have stays as it is: a processor waits for a copy of what it has just written in parts.
 */
static bool next_packet(struct udp_port *u, uint64_t now_ns, struct port_rx *ret)
{
    struct udp_rx *x = &u->rx;
    while (x->msg < x->nmsgs) {
        if (x->at >= x->what.len) {
            if (++x->msg < x->nmsgs)
                begin_msg(u);
            continue;
        }
        *ret = x->what;
        ret->time_ns = now_ns;
        ret->data += x->at;
        ret->len = (uint32_t)min_u64(x->what.len - x->at, x->seg_bytes);
        ret->ipv4_id = (uint16_t)(ret->ipv4_id + x->segment++);
        x->at += ret->len;
        return true;
    }
    return false;
}

/* Whoever waits for one packet looks for it by the cheaper call. */
static int receive(int fd, struct mmsghdr *mm, uint32_t n)
{
    if (n > 1)
        return recvmmsg(fd, mm, n, MSG_DONTWAIT, NULL);
    ssize_t len = recvmsg(fd, &mm->msg_hdr, MSG_DONTWAIT);
    if (len < 0)
        return -1;
    mm->msg_len = (unsigned)len;
    return 1;
}

/* source: 0 the main socket, 1 the raw one in its place, 2.. the groups. */
static int read_socket(struct udp_port *u, uint32_t source)
{
    struct udp_rx *x = &u->rx;
    int fd = source == 0 ? u->fd : source == 1 ? u->rawfd : u->groups[source - 2].fd;
    for (uint32_t i = 0; i < x->ask; i++) {
        x->iov[i] = (struct iovec){x->buf + i * UDP_RX_BYTES, UDP_RX_BYTES};
        x->mm[i].msg_hdr = (struct msghdr){
            .msg_name = &x->from[i],
            .msg_namelen = sizeof x->from[i],
            .msg_iov = &x->iov[i],
            .msg_iovlen = 1,
            .msg_control = x->ctl[i],
            .msg_controllen = sizeof x->ctl[i],
        };
    }
    x->nmsgs = x->msg = 0;
    int n = receive(fd, x->mm, x->ask);
    if (n <= 0) {
        x->ask = 1;
        /* ECONNREFUSED and the like speak of an earlier send; told once */
        return n < 0 && (errno == EBADF || errno == ENOTSOCK || errno == EFAULT) ? -errno : 0;
    }
    x->nmsgs = (uint32_t)n;
    uint32_t most = x->mm[0].msg_len > UDP_RX_BYTES / 4 ? UDP_RX_LARGE : UDP_RX_MSGS;
    x->ask = (uint32_t)min_u64(x->nmsgs == x->ask ? 2 * x->ask : x->nmsgs, most);
    x->source = source;
    x->raw = source == 1;
    x->to = source >= 2 ? u->groups[source - 2].gid : u->local.gid;
    begin_msg(u);
    return n;
}

/* The sockets in turn, until one has something. */
static int read_next(struct udp_port *u)
{
    uint32_t nsocks = u->rawfd < 0 ? 1 + u->ngroups : 1; /* the raw socket sees the groups too */
    for (uint32_t i = 0; i < nsocks; i++) {
        uint32_t which = u->rx.turn++ % nsocks;
        int k = read_socket(u, which ? 1 + which : u->rawfd >= 0);
        if (k)
            return k;
    }
    return 0;
}

int udp_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max)
{
    struct udp_port *u = udp_of(p);
    int n = 0;
    /* What is lent stays valid: sockets are read again only when nothing is left of the last time. */
    if (u->rx.msg >= u->rx.nmsgs) {
        int k = read_next(u);
        if (k <= 0)
            return k;
    }
    while (n < max && next_packet(u, now_ns, &ret[n]))
        n++;
    return n;
}

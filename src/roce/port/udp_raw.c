/*
 * IPv4 ids of what comes: a packet socket sees IP headers, which a UDP socket does not show. Large datagrams that are
 * to be segmented later, or that were joined, come whole; the virtio header in front tells the size of a segment, and
 * segment k has the id of the first plus k.
 */
#include "udp_priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <string.h>

/* UDP to the port, not a fragment, not what this host sends. Offsets from the IP header. */
static int filter(int fd, uint16_t udp_port)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PACKET_OUTGOING, 8, 0),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (uint32_t)(SKF_NET_OFF + 9)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 6),
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, (uint32_t)(SKF_NET_OFF + 6)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x3fff, 4, 0),
        BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, (uint32_t)(SKF_NET_OFF)),
        BPF_STMT(BPF_LD | BPF_H | BPF_IND, (uint32_t)(SKF_NET_OFF + 2)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, udp_port, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog prog = {.len = ARRAY_SIZE(code), .filter = code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof prog) ? -errno : 0;
}

int udp_raw_open(struct udp_port *u)
{
    int one = 1, size = (int)u->rcvbuf_bytes;
    /* Protocol 0 receives nothing: no packet passes before the filter is there. */
    cleanup_close int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_ll sa = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP)};
    if (fd < 0)
        return -errno;
    int err = filter(fd, u->local.udp_port);
    if (err)
        return err;
    if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one))
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof one);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa))
        return -errno;
    int ret = fd;
    fd = -1;
    return ret;
}

/* Bytes in front of the IP header, or -1: a kind of link that we do not know. A VLAN's tag is not in the data. */
static int link_bytes(const struct msghdr *m)
{
    const struct sockaddr_ll *sa = m->msg_name;
    if (m->msg_namelen < sizeof *sa - sizeof sa->sll_addr)
        return -1;
    switch (sa->sll_hatype) {
    case ARPHRD_ETHER:
    case ARPHRD_LOOPBACK:
        return ETH_HLEN;
    case ARPHRD_NONE: /* tun, WireGuard */
        return 0;
    default:
        return -1;
    }
}

static bool for_us(const struct udp_port *u, const uint8_t *daddr)
{
    if (u->any || memcmp(u->local.gid.raw + 12, daddr, 4) == 0)
        return true;
    for (uint32_t i = 0; i < u->ngroups; i++)
        if (memcmp(u->groups[i].gid.raw + 12, daddr, 4) == 0)
            return true;
    return false;
}

static void count_overflow(struct udp_port *u, struct msghdr *m)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        uint32_t v;
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_RXQ_OVFL)
            continue;
        memcpy(&v, CMSG_DATA(c), sizeof v);
        u->rx_overruns += v - u->rx.overflow[1];
        u->rx.overflow[1] = v;
    }
}

bool udp_raw_take(struct udp_port *u, struct msghdr *m, uint8_t *data, size_t len, struct port_rx *ret,
                  uint32_t *ret_seg_bytes)
{
    struct virtio_net_hdr vh;
    struct iphdr ip;
    struct udphdr uh;
    int link = link_bytes(m);
    count_overflow(u, m);
    if (link < 0 || len < sizeof vh + (size_t)link + sizeof ip + sizeof uh)
        return false;
    memcpy(&vh, data, sizeof vh);
    data += sizeof vh + (size_t)link;
    len -= sizeof vh + (size_t)link;
    memcpy(&ip, data, sizeof ip);
    size_t ip_bytes = ip.ihl * 4u, total = ntohs(ip.tot_len);
    if (ip.version != 4 || ip_bytes < sizeof ip || total < ip_bytes + sizeof uh || total > len ||
        !for_us(u, (const uint8_t *)&ip.daddr))
        return false;
    memcpy(&uh, data + ip_bytes, sizeof uh);
    *ret = (struct port_rx){
        .data = data + ip_bytes + sizeof uh,
        .len = (uint32_t)(total - ip_bytes - sizeof uh), /* not the padding of a short frame */
        .traffic_class = ip.tos,
        .hop_limit = ip.ttl,
        .ipv4_id_known = true,
        .ipv4_id = ntohs(ip.id),
        .from = {.gid.raw = {[10] = 0xff, [11] = 0xff}, .udp_port = ntohs(uh.source)},
        .to = {.gid.raw = {[10] = 0xff, [11] = 0xff}, .udp_port = ntohs(uh.dest)},
    };
    memcpy(ret->from.gid.raw + 12, &ip.saddr, 4);
    memcpy(ret->to.gid.raw + 12, &ip.daddr, 4);
    *ret_seg_bytes = vh.gso_type == VIRTIO_NET_HDR_GSO_NONE ? 0 : vh.gso_size;
    return true;
}

/* Inside of the UDP port: its sockets and what it has received and not yet handed out. */
#ifndef PORT_UDP_PRIV_H
#define PORT_UDP_PRIV_H

#include "base/util.h"
#include "port/port.h"
#include "run.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define UDP_POOL       16u    /* TX sockets beside the main one: source ports */
#define UDP_GROUPS     16u    /* multicast groups: a socket each */
#define UDP_TX_MSGS    32u    /* messages of one sendmmsg */
#define UDP_RX_MSGS    8u     /* datagrams of one recvmmsg, each perhaps many packets together */
#define UDP_RX_BYTES   66560u /* a datagram of 64 KiB with its headers (raw) */
#define UDP_RX_LARGE   2u     /* datagrams while they are large: what was read is still in the cache when it is used */
#define UDP_RCVBUF     (16u << 20)
#define UDP_SNDBUF     (4u << 20)
#define UDP_RETRY_NS   100000u /* after ENOBUFS, of which no poll tells the end */
#define UDP_TX_CTL     160u
#define UDP_RX_CTL     256u
#define UDP_KEEP       (2u << 20) /* of what was sent the kernel keeps for us: twice a core's cache */
#define UDP_KEEP_BYTES 16384u     /* smaller messages are not worth the calls */
#define UDP_KEEP_RING  256u       /* so many of those, with one sendmmsg's more; a power of two */
#define UDP_KEEP_BUF   (4u << 20) /* receive buffer of a socket that sends: the kept ones count there */
#define UDP_SPORT_MIN  0xC000u    /* RoCEv2 A17.9.2: source ports of flows */
#define UDP_SPORT_TRYS 64u

union udp_sockaddr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct udp_tx_sock {
    int fd; /* -1: not opened yet; -2: cannot be, the main socket stands in */
    uint16_t port;
    /* What the socket was told for all packets: those of its first one. Others are told with each packet, which costs.
     */
    bool settled;
    uint8_t traffic_class, hop_limit;
};

struct udp_group {
    union uroce_gid gid;
    int fd;
};

/* Datagrams of the last recvmmsg; packets are handed out from msg/at on. */
struct udp_rx {
    struct mmsghdr mm[UDP_RX_MSGS];
    struct iovec iov[UDP_RX_MSGS];
    union udp_sockaddr from[UDP_RX_MSGS];
    uint8_t ctl[UDP_RX_MSGS][UDP_RX_CTL] __attribute__((aligned(16)));
    uint8_t *buf; /* UDP_RX_MSGS * UDP_RX_BYTES */
    uint32_t nmsgs, msg;
    uint32_t turn; /* which socket is read first: a busy one starves no other */
    uint32_t ask;  /* datagrams to ask for: an empty look at the queue costs as much as a packet */
    union uroce_gid to;
    bool raw;            /* they came from the raw socket: with IP headers */
    struct port_rx what; /* of datagram `msg`, whole */
    uint32_t seg_bytes, at, segment; /* at: what was handed out of it, which were so many segments */
    uint32_t overflow[2 + UDP_GROUPS]; /* SO_RXQ_OVFL's last value of main, raw, groups */
    uint32_t source;                   /* index into overflow of the socket that was read */
};

struct udp_port {
    struct port port;
    struct port_addr local;
    bool v6, any; /* any: bound to the wildcard address */
    bool gso, gro;
    int epfd, fd, rawfd; /* fd: main.fd */
    int blocked_fd;      /* a send found no room there: in epfd for EPOLLOUT; -1 */
    uint64_t retry_ns;
    uint64_t rcvbuf_bytes;
    uint64_t tx_drops, rx_overruns, rx_malformed;
    struct udp_tx_sock main, pool[UDP_POOL];
    struct udp_group groups[UDP_GROUPS];
    uint32_t ngroups;
    /* Whose queues of errors have what the kernel keeps; the oldest is at kept_first. */
    struct udp_kept {
        const struct udp_tx_sock *sock;
        uint32_t bytes;
    } kept[UDP_KEEP_RING];
    uint32_t kept_first, nkept, kept_bytes;
    bool keeps_nothing;
    struct wire_icrc_tab *icrc_tab; /* made when a run first has to be sent packet by packet */
    struct udp_rx rx;
};

void udp_to_sockaddr(const struct port_addr *a, bool v6, union udp_sockaddr *ret, socklen_t *ret_len);
/* A socket bound to the address with the options of sending; or -errno. */
int udp_socket(const struct port_addr *local, bool reuseport, bool reuseaddr);
/* Sends that found no room go on when this fd has some; -1: none. */
void udp_wait_for_room(struct udp_port *u, int fd);

int udp_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n);
uint16_t udp_sport(struct port *p, uint16_t wanted);
int udp_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max);

/* A packet socket that sees the IP headers of what comes for the port, or -errno. */
int udp_raw_open(struct udp_port *u);
/* One datagram of it: fills the rx state. False: not for us. */
bool udp_raw_take(struct udp_port *u, struct msghdr *m, uint8_t *data, size_t len, struct port_rx *ret,
                  uint32_t *ret_seg_bytes);

static inline struct udp_port *udp_of(const struct port *p)
{
    return container_of((struct port *)p, struct udp_port, port);
}

#endif

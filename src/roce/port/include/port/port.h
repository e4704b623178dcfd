/*
 * Packet ports: what carries RoCEv2 packets. One ops table; udp, shm and sim implement it; capture and impairment stand
 * on any of them as ports with a port below (filters with `next`).
 *
 * A port moves whole packets from the BTH to the ICRC, IP and UDP headers apart: those are told by addresses and
 * numbers, since a socket adds them. It knows no queue pairs. One thread at a time uses a port (the device's lock).
 * After port_arm, port_fd is readable when port_recv has something or a send that was refused may go on.
 *
 * Whoever sends has put the ICRC where it belongs, computed for the IPv4 id that port_send says the packet will have
 * (see port_caps.ipv4_id); whoever receives checks it (wire/icrc.h).
 */
#ifndef PORT_PORT_H
#define PORT_PORT_H

#include "roce/wire_gid.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define PORT_UDP         4791u
#define PORT_SEGS_MAX    64u    /* packets of one segmented send */
#define PORT_BATCH_BYTES 65000u /* bytes of one segmented send: UDP's limit */
#define PORT_IOV_MAX     1024u  /* pieces of one segmented send: the system's limit */

struct port_addr {
    union uroce_gid gid; /* IPv4 as ::ffff:a.b.c.d */
    uint32_t scope_id;   /* of a link-local address */
    uint16_t udp_port;   /* host order */
};
struct sockaddr;
/* Of an AF_INET or AF_INET6 address. */
void port_addr_from(const struct sockaddr *sa, struct port_addr *ret);

/*
 * A run of packets to one peer: all of seg_bytes but the last, which may be shorter. iov covers them one after the
 * other (headers, payload pieces, pad and ICRC), so that payload is not copied before the port does.
 */
struct port_tx {
    struct port_addr from, to;
    const struct iovec *iov;
    int niov;
    uint32_t npkts, seg_bytes, last_bytes;
    /*
     * The payload stays where and as it is until the peer has answered (RC, XRC): shm may let the peer read it there.
     * False: all is copied before send returns. Headers always are.
     */
    bool stays;
    uint8_t traffic_class, hop_limit; /* ECN in the low two bits of the traffic class */
    uint32_t flow_label;              /* udp: the kernel chooses its own; the ICRC does not cover it */
    uint8_t qpn_slot;                 /* QPN[23:16] of the receiver: chooses nothing on a wire, a ring in shm */
};

struct port_rx {
    struct port_addr from, to;
    const uint8_t *data; /* BTH to ICRC; lent until the next port_recv; payload may be changed in place until then */
    uint32_t len;        /* of a datagram that is no packet, too: the receiver looks at it once, at its door */
    uint8_t traffic_class, hop_limit;
    /* The IPv4 id if the port can see it (a raw socket, sim, shm); ipv4_id_known is true on IPv6. */
    bool ipv4_id_known;
    uint16_t ipv4_id;
    uint64_t time_ns; /* when it came, by the port's clock */
    /*
     * shm, not NULL: data has the headers alone (len bytes: BTH and extension headers; wire_decode_far), and remote_len
     * bytes of payload lie elsewhere: fetched by copy before the next port_recv. 0 or -errno: then nothing that was
     * written to dst may be used, and the packet counts as lost.
     */
    int (*copy)(void *ctx, void *dst, size_t offset, size_t len);
    void *copy_ctx;
    uint32_t remote_len;
};

/* What packets name and nobody may read any more: payload in a piece of memory; base NULL: all of one queue pair's. */
struct port_taken {
    const void *base;
    size_t len;
    uint32_t dest_qpn;
};

enum port_id_rule {
    PORT_ID_ZERO_THEN_K, /* packet k of a run has IPv4 id k: an unconnected socket with DF, segments counted (udp) */
    PORT_ID_TOLD,        /* the port takes any: the sender says 0 (sim, shm) */
};

struct port_caps {
    const char *name; /* "udp", "shm", "sim" */
    enum port_id_rule ipv4_id;
    bool no_icrc;              /* shm: nothing to protect; icrc bytes are there and zero */
    uint32_t packet_bytes_max; /* BTH to ICRC */
    uint32_t segs_max;         /* packets of a run; 1: no segmentation */
    uint64_t rcvbuf_bytes;     /* what the receiving side can hold: windows are sized from it */
    uint64_t line_rate_bps;    /* 0: not known */
};

struct port;
struct port_ops {
    /* May change when a device turns out to have no segmentation: asked for again before each batch of runs. */
    void (*caps)(const struct port *p, struct port_caps *ret);
    /*
     * Number of runs taken (fewer: full; goes on when the fd is readable after arm, or at the deadline), or -errno for
     * the first one: -EINVAL only, a run that breaks the caps. A run that cannot be sent for another reason (no route,
     * longer than the link's MTU) is taken and lost, as on a wire, and counted (tx_drops).
     */
    int (*send)(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n);
    /* Number of packets, 0: none now, -errno: the port is broken for good. */
    int (*recv)(struct port *p, uint64_t now_ns, struct port_rx *ret, int max);
    int (*fd)(const struct port *p); /* to poll for POLLIN; -1: none (sim) */
    /*
     * The descriptor behind fd at which packets come: no epoll, for who has one of his own. It tells nothing of groups,
     * nor of room. It may stay open elsewhere when the port is closed: to be taken out of an epoll before.
     */
    int (*rx_fd)(const struct port *p);
    /* Whoever wants to sleep on fd says so. True: something waits already, recv or send again first. */
    bool (*arm)(struct port *p);
    uint64_t (*deadline)(const struct port *p); /* when recv or send may go on by itself; UINT64_MAX */
    /*
     * The source port that packets of a flow bear which would like `wanted`: a port has a bounded number of them. The
     * same answer for the life of the port; the sender puts it into port_tx.from, as the ICRC covers it.
     */
    uint16_t (*sport)(struct port *p, uint16_t wanted);
    /*
     * Memory that packets handed to send name is about to be used for something else although no answer came (a queue
     * pair went to ERR or away, a region was deregistered): those that the peer has not read yet are lost. Nothing to
     * do for udp and sim, which have copied.
     */
    void (*revoke)(struct port *p, const struct port_taken *what);
    int (*join)(struct port *p, const struct port_addr *group, bool join); /* multicast; -EOPNOTSUPP */
    void (*counters)(const struct port *p, struct uroce_counters *add_to);
    void (*close)(struct port *p);
};
struct port {
    const struct port_ops *ops;
};

static inline void port_caps(const struct port *p, struct port_caps *ret)
{
    p->ops->caps(p, ret);
}

static inline int port_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n)
{
    return p->ops->send(p, now_ns, tx, n);
}

static inline int port_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max)
{
    return p->ops->recv(p, now_ns, ret, max);
}

static inline int port_fd(const struct port *p)
{
    return p->ops->fd(p);
}

static inline int port_rx_fd(const struct port *p)
{
    return p->ops->rx_fd(p);
}

static inline bool port_arm(struct port *p)
{
    return p->ops->arm(p);
}

static inline uint64_t port_deadline(const struct port *p)
{
    return p->ops->deadline(p);
}

static inline uint16_t port_sport(struct port *p, uint16_t wanted)
{
    return p->ops->sport(p, wanted);
}

static inline void port_revoke(struct port *p, const struct port_taken *what)
{
    p->ops->revoke(p, what);
}

static inline int port_join(struct port *p, const struct port_addr *group, bool join)
{
    return p->ops->join(p, group, join);
}

static inline void port_counters(const struct port *p, struct uroce_counters *add_to)
{
    p->ops->counters(p, add_to);
}

static inline void port_close(struct port *p)
{
    if (p)
        p->ops->close(p);
}

/* ---- udp ---- */

struct port_udp_config {
    struct port_addr local; /* port 0: 4791 */
    uint32_t rcvbuf_bytes;  /* wanted; the kernel's limit may give less: port_caps tells. 0: default */
    bool raw;               /* also open a raw socket to see IPv4 ids (CAP_NET_RAW): the full ICRC check */
    int fd;                 /* >= 0: this bound socket, which the port then owns (handed over by the holder) */
    bool no_segmentation;   /* for comparison: one system call per packet batch without UDP_SEGMENT and UDP_GRO */
};
/* -errno and a line for people in err: names the address, the port and who may hold it. */
int port_udp_open(const struct port_udp_config *cfg, struct port **ret, char *err, size_t err_size);

/*
 * n bound sockets on one address (port 0: 4791) for n processes: a packet goes to number QPN[23:16] of its receiver, to
 * number 0 if there is none. As long as all of them stay open somewhere: when one is closed the kernel renumbers.
 * -EADDRINUSE: somebody else has the address.
 */
int port_udp_share(const struct port_addr *local, int n, int *ret_fds);

/* ---- sim: a network in virtual time ---- */

/*
 * A star: each port has a link to one switch and a link back. A packet passes the sender's `up`, then the receiver's
 * `down`. Time is what the callers say; what is due is done in any call that tells the time. All randomness comes from
 * the net's seed: the same calls give the same packets.
 */
struct port_sim_net;
struct port_sim_link {
    double loss, duplicate, reorder, corrupt, ecn_mark; /* probabilities per packet; corrupt: one bit is flipped */
    uint64_t delay_ns, jitter_ns;                       /* jitter: up to so much longer, order is kept */
    uint64_t reorder_ns;  /* reorder: that packet waits so much longer, later ones may pass it */
    uint64_t rate_bps;    /* of Ethernet frames with preamble and gap; 0: without limit */
    uint32_t queue_bytes; /* tail drop beyond; 0: without limit. Needs a rate, as ECN by queue does */
    /* Marks between, with ecn_pmax at kmax and always beyond (DCQCN's RED); kmax 0: off. Packets that are ECN capable.
     */
    uint32_t ecn_kmin_bytes, ecn_kmax_bytes;
    double ecn_pmax;
};
int port_sim_net_new(uint64_t seed, struct port_sim_net **ret);
void port_sim_net_free(struct port_sim_net *n); /* after its ports */
/*
 * One port per address (-EADDRINUSE); `link` is its way to the switch; the way from the switch has `down` (a bottleneck
 * for incast). NULL: a link without delay or fault.
 */
int port_sim_open(struct port_sim_net *n, const struct port_addr *local, const struct port_sim_link *up,
                  const struct port_sim_link *down, struct port **ret);
void port_sim_set_link(struct port *p, const struct port_sim_link *up, const struct port_sim_link *down);
/* What waits to be received is bounded by this (16 MiB): more is dropped. */
void port_sim_set_rcvbuf(struct port *p, uint64_t bytes);
/* When the next packet moves; the time of the last call if a port has packets that wait for its recv. */
uint64_t port_sim_net_deadline(const struct port_sim_net *n);

struct port_sim_stats {
    uint64_t sent, delivered; /* delivered: to a recv buffer */
    uint64_t lost, tail_dropped, duplicated, reordered, corrupted, marked;
    uint64_t unrouted, overrun; /* no such address; receive buffer full */
};
void port_sim_net_stats(const struct port_sim_net *n, struct port_sim_stats *ret);

/* ---- capture: pcapng, both directions in order ---- */

struct port_capture_config {
    const char *path;  /* created; "-": standard output */
    bool headers_only; /* payload is cut off (the original length is recorded) */
    /* NULL, or words as in impairment rules, by comma: "tx,qpn=0x11,opcode=4-10,addr=192.0.2.1": all must hold. */
    const char *filter;
    uint64_t max_bytes;    /* of the file: it ends before the packet that would go beyond; 0: none */
    const char *interface; /* name in the file */
    bool append;           /* behind what the file has, as a section of its own */
    struct port *share;    /* a capture port: into its file. Path, append, max_bytes and interface are that port's */
};
/*
 * Ethernet, IP and UDP headers are made up to look as on a wire (an IPv4 id that the port cannot see is solved for from
 * the ICRC), so that tshark and Wireshark decode it. Takes below (closed with it; on failure it is still the caller's).
 * A later failure to write stops the capture, not the traffic. -EBUSY: another process captures into that file.
 */
int port_capture_open(const struct port_capture_config *cfg, struct port *below, struct port **ret, char *err,
                      size_t err_size);
struct port_capture_stats {
    uint64_t packets, bytes; /* written */
    uint64_t missed;         /* that should have been, after a failure or beyond max_bytes */
    int error;               /* -errno of the failure that ended it; 0 */
};
int port_capture_stats(const struct port *p, struct port_capture_stats *ret); /* -EINVAL: no capture port */

/* ---- impairment: rules for tests and users ---- */

enum port_impair_action {
    PORT_IMPAIR_DROP,
    PORT_IMPAIR_DELAY,
    PORT_IMPAIR_DUPLICATE,
    PORT_IMPAIR_CORRUPT,
    PORT_IMPAIR_MARK
};
/*
 * Rules as text, one per line or ';', '#' begins a comment:
 *
 *     drop | delay us=N | duplicate | corrupt [byte=N] | mark      then words in any order, all of which must hold:
 *     rx | tx                 direction; neither: both
 *     qpn=A[-B]               destination queue pair
 *     psn=A[-B]               B < A: the range wraps
 *     opcode=X[|X...]         X: number, range, or name (RC_SEND_LAST, or SEND_LAST of any transport)
 *     addr=ADDRESS            source or destination
 *     nth=N | every=N         of those packets the N-th only, or each N-th
 *     prob=P                  with that probability
 *     shots=N                 at most so often
 *
 * "drop rx opcode=SEND_LAST psn=100-200 nth=3; delay tx us=500 prob=0.01". The first rule that acts on a packet is the
 * only one. corrupt flips one bit (of a random byte; over shm, which has no ICRC, nothing finds that out). mark sets
 * congestion experienced on ECN-capable packets. -EINVAL and a line in err that names the word.
 * Takes below; on failure it is still the caller's.
 */
int port_impair_open(const char *rules, uint64_t seed, struct port *below, struct port **ret, char *err,
                     size_t err_size);
/* How often rule i (from 0) matched and acted; -ENOENT: no such rule. */
int port_impair_counters(const struct port *p, int i, uint64_t *ret_matched, uint64_t *ret_acted);

/* ---- shm: two processes of one user on one machine ---- */

struct port_shm_config {
    int sock; /* a connected Unix socket, SOCK_SEQPACKET; owned, also on failure. Descriptors and wake-ups go over it */
    struct port_addr local, remote; /* what packets are told to come from and go to, whatever the peer says */
    uint32_t ring_packets;          /* 0: default */
    /*
     * The peer's memory may be read directly (process_vm_readv). A process that means harm can make such a read wait
     * (userfaultfd): not for peers of the same user that are not trusted not to. Without it, what does not lie in
     * shared memory is copied twice.
     */
    bool peer_memory;
};
/*
 * Does not wait: packets can be sent once the peer has opened its end too, and recv was called (until then send takes
 * none). -EPERM: another user's process. What such a peer may do wrong is lose packets; garbage ends the port
 * (recv: -EPROTO), its death too (-ECONNRESET, after what it had sent).
 */
int port_shm_open(const struct port_shm_config *cfg, struct port **ret, char *err, size_t err_size);
/* 1: the peer has opened its end; 0: not yet; -errno as recv. */
int port_shm_ready(const struct port *p);
/*
 * True: 64 packets with PORT_SHM_ROOM bytes of payload can be sent. False: not now, and it goes on as after a send that
 * was refused.
 */
#define PORT_SHM_ROOM (2u << 20)
bool port_shm_room(struct port *p);
/* The descriptor is readable: what the peer said is read (recv does so only now and then). */
void port_shm_look(struct port *p);
/*
 * Memory of the device's allocator: a memfd, mapped at base from its begin, with F_SEAL_SHRINK (-EINVAL else): both
 * sides map it, so that payload in it is copied once. -EAGAIN: the peer does not read its socket now; -ENOSPC: 64 there
 * are.
 */
int port_shm_share(struct port *p, int memfd, const void *base, size_t len);
/*
 * 1: the peer has shown that the kernel lets it read all of this process's memory, so that sharing any gives it no
 * right; 0: it has not; -EAGAIN: nothing is known yet.
 */
int port_shm_shown(const struct port *p);
/* That memory is about to go. The peer lets go of it when it next receives. */
void port_shm_unshare(struct port *p, const void *base);

#endif

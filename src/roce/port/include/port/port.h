/*
 * Packet ports: what carries RoCEv2 packets. One ops table; udp, shm and sim implement it; capture and impairment stand
 * on any of them as ports with a port below (filters with `next`).
 *
 * A port moves whole packets from the BTH to the ICRC, IP and UDP headers apart: those are told by addresses and
 * numbers, since a socket adds them. It knows no queue pairs. One thread at a time uses a port (the device's lock).
 * port_fd is readable when port_recv has something.
 *
 * Whoever sends has put the ICRC where it belongs, computed for the IPv4 id that port_send says the packet will have
 * (see port_caps.ipv4_id); whoever receives checks it (wire/icrc.h).
 */
#ifndef PORT_PORT_H
#define PORT_PORT_H

#include "uroce/types.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <sys/uio.h>

#define PORT_UDP         4791u
#define PORT_SEGS_MAX    64u    /* packets of one segmented send */
#define PORT_BATCH_BYTES 65000u /* bytes of one segmented send: UDP's limit */

struct port_addr {
    union uroce_gid gid; /* IPv4 as ::ffff:a.b.c.d */
    uint32_t scope_id;   /* of a link-local address */
    uint16_t udp_port;   /* host order */
};

/*
 * A run of packets to one peer: all of seg_bytes but the last, which may be shorter. iov covers them one after the
 * other (headers, payload pieces, pad and ICRC), so that payload is not copied before the port does.
 */
struct port_tx {
    struct port_addr from, to;
    const struct iovec *iov;
    int niov;
    uint32_t npkts, seg_bytes, last_bytes;
    uint8_t traffic_class, hop_limit; /* ECN in the low two bits of the traffic class */
    uint32_t flow_label;
    uint8_t qpn_slot; /* QPN[23:16] of the receiver: chooses nothing on a wire, a ring in shm */
};

struct port_rx {
    struct port_addr from, to;
    const uint8_t *data; /* BTH to ICRC; lent until the next port_recv */
    uint32_t len;
    uint8_t traffic_class, hop_limit;
    /* The IPv4 id if the port can see it (a raw socket, sim, shm); ipv4_id_known is true on IPv6. */
    bool ipv4_id_known;
    uint16_t ipv4_id;
    uint64_t time_ns; /* when it came, by the port's clock */
    /* shm: payload that lies in the peer's memory, in place of bytes in data; see qp_rx.copy */
    int (*copy)(void *ctx, void *dst, size_t offset, size_t len);
    void *copy_ctx;
    uint32_t remote_len;
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
    void (*caps)(const struct port *p, struct port_caps *ret);
    /* Number of runs taken (fewer: full, wait for writability or the deadline), or -errno for the first one. */
    int (*send)(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n);
    /* Number of packets, 0: none now, -errno: the port is broken for good. */
    int (*recv)(struct port *p, uint64_t now_ns, struct port_rx *ret, int max);
    int (*fd)(const struct port *p);            /* to poll for POLLIN; -1: none (sim) */
    uint64_t (*deadline)(const struct port *p); /* when recv or send may go on by itself; UINT64_MAX */
    int (*join)(struct port *p, const struct port_addr *group, bool join); /* multicast; -EOPNOTSUPP */
    void (*counters)(const struct port *p, struct uroce_counters *add_to);
    void (*close)(struct port *p);
};
struct port {
    const struct port_ops *ops;
};

/* ---- udp ---- */

struct port_udp_config {
    struct port_addr local; /* port 0: 4791 */
    uint32_t rcvbuf_bytes;  /* wanted; the kernel's limit may give less: port_caps tells. 0: default */
    bool raw;               /* also open a raw socket to see IPv4 ids (CAP_NET_RAW): the full ICRC check */
    bool reuseport;         /* several processes on one address (docs/roce.md, holder) */
    int fd;                 /* >= 0: this bound socket, which the port then owns (handed over by the holder) */
    bool no_segmentation;   /* for comparison: one system call per packet batch without UDP_SEGMENT and UDP_GRO */
};
/* -errno and a line for people in err: names the address, the port and who may hold it. */
int port_udp_open(const struct port_udp_config *cfg, struct port **ret, char *err, size_t err_size);

/* ---- sim: a network in virtual time ---- */

struct port_sim_net;
struct port_sim_link {
    double loss, duplicate, reorder, corrupt, ecn_mark; /* probabilities per packet */
    uint64_t delay_ns, jitter_ns, reorder_ns;           /* reorder: that packet waits so much longer */
    uint64_t rate_bps;                                  /* 0: without limit */
    uint32_t queue_bytes;                               /* tail drop beyond; 0: without limit */
    uint32_t ecn_kmin_bytes, ecn_kmax_bytes;            /* marks between, with ecn_pmax at kmax (DCQCN's RED); 0: off */
    double ecn_pmax;
};
int port_sim_net_new(uint64_t seed, struct port_sim_net **ret);
void port_sim_net_free(struct port_sim_net *n); /* after its ports */
/* One port per address; `link` is its way to the switch; the way from the switch has `down` (a bottleneck for incast).
 */
int port_sim_open(struct port_sim_net *n, const struct port_addr *local, const struct port_sim_link *up,
                  const struct port_sim_link *down, struct port **ret);
void port_sim_set_link(struct port *p, const struct port_sim_link *up, const struct port_sim_link *down);
uint64_t port_sim_net_deadline(const struct port_sim_net *n);

/* ---- capture: pcapng, both directions in order ---- */

struct port_capture_config {
    const char *path;      /* created; "-": standard output */
    bool headers_only;     /* payload is cut off (the original length is recorded) */
    const char *filter;    /* NULL, or "qpn=0x11,opcode=4-10,addr=192.0.2.1": all must match; grammar in docs/roce.md */
    uint64_t max_bytes;    /* stops then; 0: none */
    const char *interface; /* name in the file */
};
/* Takes below (closed with it, also on failure of a later write: capture stops and is counted, traffic goes on). */
int port_capture_open(const struct port_capture_config *cfg, struct port *below, struct port **ret, char *err,
                      size_t err_size);

/* ---- impairment: rules for tests and users ---- */

enum port_impair_action {
    PORT_IMPAIR_DROP,
    PORT_IMPAIR_DELAY,
    PORT_IMPAIR_DUPLICATE,
    PORT_IMPAIR_CORRUPT,
    PORT_IMPAIR_MARK
};
/*
 * Rules as text, one per line or ';': "drop rx qpn=0x12 opcode=SEND_LAST psn=100-200 addr=192.0.2.7 nth=3 every=10
 * prob=0.01 shots=2", "delay tx us=500 ..", "duplicate", "corrupt byte=40", "mark" (ECN). The first rule that matches
 * acts. docs/roce.md has the grammar; -EINVAL and a line in err that names the word.
 */
int port_impair_open(const char *rules, uint64_t seed, struct port *below, struct port **ret, char *err,
                     size_t err_size);
/* How often rule i (from 0) matched and acted; -ENOENT: no such rule. */
int port_impair_counters(const struct port *p, int i, uint64_t *ret_matched, uint64_t *ret_acted);

/* ---- shm: two processes on one machine ---- */

struct port_shm_config {
    int sock; /* a connected Unix socket to the peer: descriptors and wake-ups go over it; owned */
    struct port_addr local, remote;
    uint32_t ring_packets; /* 0: default */
    bool peer_memory;      /* the peer's memory may be read directly (same user; process_vm_readv) */
};
int port_shm_open(const struct port_shm_config *cfg, struct port **ret, char *err, size_t err_size);
/* Memory of the device's allocator: a memfd both sides map, so that payload in it is copied once. */
int port_shm_share(struct port *p, int memfd, const void *base, size_t len);

#endif

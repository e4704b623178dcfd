/*
 * The queue-pair engine: everything of a RoCE device that is not packets on a wire, clocks or threads.
 *
 * An engine holds the protection domains, memory regions and windows, completion queues, shared receive queues and
 * queue pairs of one device. It is pure: packets and the time go in, packets and the next deadline come out. It opens
 * no socket, reads no clock, starts no thread, keeps no globals, and allocates only when objects are made. The same
 * schedule of calls with the same seed gives the same packets (tests/sim).
 *
 *     qp_engine_rx      a packet came (its ICRC was checked, its headers decoded)
 *     qp_engine_tx      what wants to be sent now: up to n packets of ONE queue pair, in order
 *     qp_engine_tick    deadlines that have passed (time-outs, RNR waits, pacing, CNP and DCQCN timers)
 *     qp_engine_deadline  when to call tick next
 *
 * THREADS. Calls on an engine are serialised by the caller (the device's lock), with two exceptions, so that a program
 * need not wait for whoever drives the engine: qp_post_send/qp_post_recv/qp_post_srq_recv (serialised per queue by the
 * caller), and qp_cq_poll/qp_cq_arm (serialised per CQ by the caller). Queues between the two sides are rings with one
 * producer and one consumer, release on publish, acquire on take. A request that is posted is seen by the next
 * qp_engine_tx after qp_engine_doorbell; the post functions tell whether one is needed. Calls that take completions
 * out of a CQ or replace its ring (qp_destroy, qp_modify to RESET, qp_cq_resize, qp_cq_free) are also serialised with
 * poll and arm of the CQs they touch. The functions of qp_engine_ops must not call the engine.
 *
 * COST. No call's cost per packet depends on the number of queue pairs: those with something to send stand in a list
 * served in turn, QPNs and keys are found by tables, deadlines by a heap or wheel. An idle queue pair, its queues
 * apart, takes less than 4 KiB.
 *
 * MEMORY. Regions are the caller's memory: it stays mapped while registered. A request's memory is used until its
 * completion, or until qp_destroy/qp_mr_dereg returns. Nothing outside of a region that a key names, with the right
 * that is needed, in that queue pair's protection domain, is ever read or written. Every request is checked whole
 * before its first byte moves; READ and WRITE again at each packet, since a region may be gone meanwhile.
 *
 * RELIABILITY (RC, XRC; IBTA 9.7). Window in packets and bytes; ACKs coalesced; a PSN gap is told once by NAK; RNR NAK
 * waits; the local ACK timer and retries; duplicate WRITEs and SENDs answered again and not executed, READs replayed
 * from memory, atomics from responder resources. Toward a peer that said hello (qp_set_peer) packets past a gap are
 * kept and acknowledged selectively, and only what is missing is sent again; else go-back-N.
 *
 * All functions that can fail return 0 or -errno.
 */
#ifndef QP_QP_H
#define QP_QP_H

#include "roce/wire.h"
#include "uroce/types.h"

#include <stdbool.h>
#include <sys/uio.h>

struct qp_engine;
struct qp_pd;
struct qp_mr;
struct qp_mw;
struct qp_cq;
struct qp_srq;
struct qp_xrcd;
struct qp;

/* ---- paths: where packets go; resolved by the device from a GID index ---- */

struct qp_path {
    union uroce_gid local, remote;
    uint32_t flow_label;
    uint16_t udp_sport; /* source port of the packets: spreads queue pairs over paths and queues (RoCEv2 A17.9.2) */
    uint8_t traffic_class, hop_limit;
    uint8_t port_id;  /* which port of the device (udp, shm, ..) carries it */
    uint8_t overhead; /* bytes per packet that slots on the path add: taken from the payload, not from the MTU */
    uint16_t reserved;
};

/* ---- engine ---- */

/*
 * What a slot sees of a payload: one packet's, in the order of the message, each byte once: on receive when it is
 * accepted in order and before it is placed in memory; on send when the packet is built for the first time.
 */
struct qp_payload {
    uint32_t qpn;
    bool send, first, last;  /* send: it goes out */
    bool response;           /* of a READ */
    uint8_t opcode;          /* wire opcode of the packet */
    uint32_t offset;         /* in the message */
    const struct iovec *iov; /* the bytes; on receive one piece */
    int niov;
    size_t len;
};

enum qp_verdict {
    QP_ACCEPT,
    QP_DROP,   /* as if it was lost: it will come again (RC); receive only */
    QP_REFUSE, /* NAK remote operational error (RC), dropped (UC, UD); receive only */
};

struct qp_engine_ops {
    /* A completion queue that was armed has a (solicited) completion. From any engine call. */
    void (*cq_event)(void *ctx, void *cq_user);
    /* user: of the queue pair, SRQ or CQ that `type` concerns. */
    void (*async_event)(void *ctx, enum uroce_event_type type, void *user);
    /* A UD packet for QPN 1 (management datagrams) while no queue pair has that number. Lent for the call. */
    void (*mad)(void *ctx, const struct qp_path *from, const struct wire_pkt *pkt);
    /*
     * May be NULL. Payload of a queue pair that has a slot (qp_set_slots). ret_value (last packet of a message): put
     * into the completion (of the request at the sender, of the receive or READ at the receiver) as slot_value when it
     * is set and returns with *ret_has_value true.
     */
    enum qp_verdict (*payload)(void *ctx, void *qp_user, const struct qp_payload *p, uint64_t *ret_value,
                               bool *ret_has_value);
    /*
     * May be NULL. What packets name and a port has not copied yet may be something else when this returns: of a queue
     * pair with a second path, whose requests are about to complete though the peer did not answer; or (qp_user NULL)
     * of memory whose key ends.
     */
    void (*let_go)(void *ctx, void *qp_user, const void *base, size_t len);
    /* May be NULL. The last queue pair has left a multicast group. */
    void (*group_left)(void *ctx, const union uroce_gid *group);
    /* May be NULL. Each step of the state machines of a received packet, for tests and traces: "resp", "CHECK_PSN". */
    void (*trace)(void *ctx, uint32_t qpn, const char *machine, const char *state);
};

/* DCQCN (Zhu et al., SIGCOMM 2015), reaction point; the names of the paper. */
struct qp_dcqcn_config {
    bool enabled;
    uint64_t line_rate_bps, min_rate_bps;
    uint32_t alpha_timer_us, rate_timer_us; /* 55, 1500 */
    uint32_t byte_counter;                  /* bytes per increase stage */
    uint32_t g_shift;                       /* g = 1 / 2^g_shift; 8 */
    uint32_t rai_bps_m, rhai_bps_m;         /* additive and hyper increase, in Mbit/s */
    uint32_t fast_recovery_stages;          /* F, 5 */
    uint32_t cnp_interval_us;               /* notification point: at most one CNP per queue pair in that time; 50 */
};

struct qp_engine_config {
    uint64_t seed;         /* of keys, and of whatever else is random: from the kernel in a device, fixed in a test */
    uint32_t qpn_slot;     /* QPN[23:16] of the queue pairs made here: which process on this address (docs/roce.md) */
    uint32_t max_qps;      /* at most 65534 in a slot; 0: that many */
    uint32_t ud_mtu_bytes; /* payload of a UD message; 0: 4096 */
    uint32_t window_pkts;  /* per queue pair, unacknowledged; 0: default */
    uint32_t window_bytes; /* likewise; the device sizes it from the socket's buffer */
    /*
     * Of all queue pairs together, READ responses included: what the socket buffers hold. Beyond it queue pairs take
     * turns. When none gets on for 10 ms (their peers are silent), one that waits may send a packet. 0: no limit.
     */
    uint64_t total_bytes;
    uint32_t reorder_pkts; /* per queue pair, kept past a gap (selective repeat), 0: default */
    uint32_t ack_every;    /* packets between two ACK requests in a long message; 0: default */
    uint32_t ack_bytes;    /* likewise bytes, if they are more packets; 0: no matter */
    uint32_t run_bytes;    /* what a port sends at once: qp_engine_tx gives whole runs of a message; 0: no matter */
    struct qp_dcqcn_config dcqcn;
    const struct qp_engine_ops *ops;
    void *ctx;
};

int qp_engine_new(const struct qp_engine_config *cfg, struct qp_engine **ret);
/* All objects are gone before (-EBUSY else nothing is freed). */
int qp_engine_free(struct qp_engine *e);

/* Where a received packet comes from, and how to copy its payload. */
struct qp_rx {
    struct wire_pkt pkt; /* decoded; pkt.payload may be NULL if copy is set */
    struct qp_path path; /* local: the address it was sent to; remote: whence */
    bool ecn_ce;         /* IP header: congestion experienced */
    /*
     * NULL: the payload lies at pkt.payload. Else it is fetched by this (a peer's memory over shm): 0 or -errno, by
     * which the packet counts as lost.
     */
    int (*copy)(void *ctx, void *dst, size_t offset, size_t len);
    void *copy_ctx;
};
void qp_engine_rx(struct qp_engine *e, uint64_t now_ns, const struct qp_rx *rx);
/*
 * Packets of the middle of one message, which differ in PSN, each one further, and payload alone: they are taken in one
 * step, as qp_engine_rx would take one after the other. room: how many from rx on, `max` at most, may be given so; 0:
 * none. run: gives n of them; rx is the first, payload[i] that of the i-th, of rx's length. Returns how many it took:
 * all, if that is no more than there was room for.
 */
uint32_t qp_engine_rx_room(const struct qp_engine *e, const struct qp_rx *rx, uint32_t max);
uint32_t qp_engine_rx_run(struct qp_engine *e, uint64_t now_ns, const struct qp_rx *rx, const uint8_t *const *payload,
                          uint32_t n);

/* A packet to send. Pointers hold until the next call into the engine other than qp_engine_deadline. */
struct qp_tx {
    struct wire_pkt pkt; /* headers; no payload pointer */
    struct iovec iov[UROCE_SGE_MAX];
    int niov;
    uint32_t payload_len;       /* sum of iov; the pad is pkt's */
    const struct qp_path *path; /* of one call's packets: the queue pair's, or its second one */
    uint32_t qpn;               /* sender */
    bool retransmit, ecn_capable;
    bool follows; /* as the packet before it, with the next PSN and payload: its headers are the same else */
};
/*
 * Takes up to max packets of the next queue pair in turn, in the order in which they are to be sent; 0: nothing can be
 * sent now. A packet that is taken counts as sent: if the port cannot send it, it is lost as on a wire. Called until it
 * returns 0: UC and UD requests are complete only once their packets have left the caller's hands.
 */
int qp_engine_tx(struct qp_engine *e, uint64_t now_ns, struct qp_tx *ret, int max);
/*
 * on: acknowledgements (not the answers of READs and atomics, nor NAKs) wait until it is called again with false, then
 * behind the requests that are sent with them. True: some wait.
 */
bool qp_engine_put_off(struct qp_engine *e, bool on);
/* No packets of queue pairs whose second path has that port_id are given out while it is on: the port is full. */
void qp_engine_hold(struct qp_engine *e, uint8_t port_id, bool on);
/* Lets the engine look at the queues of a queue pair when a post function said that it needs it. */
void qp_engine_doorbell(struct qp_engine *e, uint64_t now_ns, struct qp *qp);
/* UINT64_MAX: none. */
uint64_t qp_engine_deadline(const struct qp_engine *e);
void qp_engine_tick(struct qp_engine *e, uint64_t now_ns);
void qp_engine_counters(const struct qp_engine *e, struct uroce_counters *ret);

/* ---- protection domains, regions, windows ---- */

int qp_pd_new(struct qp_engine *e, struct qp_pd **ret);
int qp_pd_free(struct qp_pd *pd); /* -EBUSY while something uses it */

/*
 * access: UROCE_ACCESS_*. iova: the address by which local and remote requests name the first byte (0 when ZERO_BASED).
 * Keys are random in all 32 bits and not used again soon. len 0 is allowed. addr NULL with len UINT64_MAX: the whole
 * address space (an implicit region, local access only).
 */
int qp_mr_reg(struct qp_pd *pd, void *addr, uint64_t len, uint64_t iova, unsigned int access, void *user,
              struct qp_mr **ret);
enum qp_rereg { QP_REREG_TRANSLATION = 1, QP_REREG_PD = 2, QP_REREG_ACCESS = 4 };
/*
 * Keys change with the translation: who has the old ones does not reach other memory. -EBUSY with a window bound to it;
 * on failure the region is as before.
 */
int qp_mr_rereg(struct qp_mr *mr, unsigned int flags, struct qp_pd *pd, void *addr, uint64_t len, uint64_t iova,
                unsigned int access);
/* -EBUSY while a window is bound to it. After it returns no byte of the region is touched any more. */
int qp_mr_dereg(struct qp_mr *mr);
uint32_t qp_mr_lkey(const struct qp_mr *mr);
uint32_t qp_mr_rkey(const struct qp_mr *mr);

int qp_mw_alloc(struct qp_pd *pd, int type /* 1 or 2 */, struct qp_mw **ret);
int qp_mw_dealloc(struct qp_mw *mw);
uint32_t qp_mw_rkey(const struct qp_mw *mw);

/* ---- completion queues ---- */

/* cqe: entries that are needed; ret may hold more. An overflow puts the CQ in error: CQ_ERR, its QPs go to ERR. */
int qp_cq_new(struct qp_engine *e, uint32_t cqe, void *user, struct qp_cq **ret);
int qp_cq_resize(struct qp_cq *cq, uint32_t cqe);              /* -EINVAL: more completions wait than that */
int qp_cq_free(struct qp_cq *cq);                              /* -EBUSY */
int qp_cq_poll(struct qp_cq *cq, int n, struct uroce_wc *ret); /* number of completions, or -EIO after an overflow */
/*
 * The next completion that comes (solicited_only: the next solicited or failed one) calls cq_event once. True:
 * completions wait already (the caller polls again before it sleeps).
 */
bool qp_cq_arm(struct qp_cq *cq, bool solicited_only);
bool qp_cq_armed(const struct qp_cq *cq);
/* After a poll: true, and no longer armed, if the CQ is armed for any completion and has more. */
bool qp_cq_left(struct qp_cq *cq);
uint32_t qp_cq_size(const struct qp_cq *cq);
/* How many completions there have been, and how many were polled; a resize and what ends a queue pair begin anew. */
uint32_t qp_cq_told(const struct qp_cq *cq);
uint32_t qp_cq_taken(const struct qp_cq *cq);

/* ---- shared receive queues ---- */

/* xrcd, cq: of an XRC SRQ, else NULL. */
int qp_srq_new(struct qp_pd *pd, uint32_t max_wr, uint32_t max_sge, struct qp_xrcd *xrcd, struct qp_cq *cq, void *user,
               struct qp_srq **ret);
int qp_srq_modify(struct qp_srq *srq, bool set_limit, uint32_t limit, bool set_size, uint32_t max_wr);
void qp_srq_query(const struct qp_srq *srq, uint32_t *ret_max_wr, uint32_t *ret_max_sge, uint32_t *ret_limit);
uint32_t qp_srq_num(const struct qp_srq *srq); /* XRC */
int qp_srq_free(struct qp_srq *srq);
/* Posts a chain; on failure *ret_bad is the first request that was not posted. */
int qp_post_srq_recv(struct qp_srq *srq, const struct uroce_recv_wr *wr, const struct uroce_recv_wr **ret_bad);

int qp_xrcd_new(struct qp_engine *e, struct qp_xrcd **ret);
int qp_xrcd_free(struct qp_xrcd *xrcd);

/* ---- queue pairs ---- */

struct qp_init {
    enum uroce_qp_type type;
    struct qp_pd *pd;                /* NULL for XRC_RECV */
    struct qp_cq *send_cq, *recv_cq; /* NULL where the type has no such queue */
    struct qp_srq *srq;              /* or NULL */
    struct qp_xrcd *xrcd;            /* XRC_RECV */
    struct uroce_qp_cap cap;         /* what is needed; the queue pair has that or more */
    bool sq_sig_all;                 /* every send request is signalled */
    uint32_t qpn;                    /* 0: the engine chooses; else that one (1: management), -EADDRINUSE */
    void *user;                      /* handed to ops */
};
int qp_create(struct qp_engine *e, const struct qp_init *init, struct qp **ret);
/*
 * attr members by mask, checked against IBTA table 96 (see uroce_qp_attr_mask): -EINVAL, and nothing has changed. path:
 * attr->ah_attr resolved by the caller; looked at with UROCE_QP_AV, and ends a second path.
 */
int qp_modify(struct qp *qp, uint64_t now_ns, const struct uroce_qp_attr *attr, unsigned int mask,
              const struct qp_path *path);
void qp_query(const struct qp *qp, struct uroce_qp_attr *ret, struct qp_init *ret_init);
/* Its completions are taken out of the CQs (so that no completion names a queue pair that is gone). */
int qp_destroy(struct qp *qp);
uint32_t qp_num(const struct qp *qp);
void qp_counters(const struct qp *qp, struct uroce_counters *ret);

/*
 * Posts a chain; on failure *ret_bad is the first request that was not posted: -EINVAL (state, opcode, SGEs, inline
 * length), -ENOMEM (queue full). ret_doorbell: qp_engine_doorbell is to be called for this queue pair. In state ERR
 * requests are taken and flushed.
 */
int qp_post_send(struct qp *qp, const struct uroce_send_wr *wr, const struct uroce_send_wr **ret_bad,
                 bool *ret_doorbell);
int qp_post_recv(struct qp *qp, const struct uroce_recv_wr *wr, const struct uroce_recv_wr **ret_bad,
                 bool *ret_doorbell);

/* How many send requests the queue would take now: more than before at most, if nobody else posts. */
uint32_t qp_send_room(const struct qp *qp);

/* What is learnt of the peer after the hello (RC, XRC). */
struct qp_peer {
    bool selective_repeat;
    uint32_t window_pkts; /* 0: the engine's */
    /*
     * A second path to the same peer (shm), or NULL. By it (wire_pkt.far) go requests, from the moment when none is
     * outstanding on the first, and what answers. A message that arrives by it has packets of mtu_bytes, a READ as
     * well, so that both ends name the same number; they need not do so at the same time. What is on its way does not
     * count in the engine's total_bytes, but in window_bytes.
     */
    const struct qp_path *path;
    uint32_t mtu_bytes, window_bytes;
};
/* May come at any time in RTR, RTS and SQD, also while data flows. */
int qp_set_peer(struct qp *qp, const struct qp_peer *peer);
/* The second path has ended: back to the first. Requests that are outstanding on the second are lost. */
void qp_leave_path(struct qp *qp);
/* From now on ops->payload is called for this queue pair. */
void qp_set_slots(struct qp *qp, bool on);

/*
 * What work requests name by handle. A device's objects begin with these (or are these). Looked at when a request is
 * posted only, which copies what it needs.
 */
struct uroce_ah { /* UD */
    struct qp_pd *pd;
    struct qp_path path;
};
struct uroce_mr {
    struct qp_mr *qp;
};
struct uroce_mw {
    struct qp_mw *qp;
};
int qp_attach_mcast(struct qp *qp, const union uroce_gid *gid);
int qp_detach_mcast(struct qp *qp, const union uroce_gid *gid);

/* A management datagram from QPN 1: 256 bytes, not acknowledged. */
int qp_send_mad(struct qp_engine *e, const struct qp_path *to, const void *mad, size_t len);

#endif

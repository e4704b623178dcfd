/* The engine's own structures. Only files of this folder include it. */
#ifndef QP_IMPL_H
#define QP_IMPL_H

#include "base/list.h"
#include "base/rng.h"
#include "base/util.h"
#include "dcqcn.h"
#include "limits.h"
#include "qp/qp.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* ---- keys: regions and windows (mem.c, mw.c) ---- */

struct qp_pd {
    struct qp_engine *e;
    uint32_t refs; /* regions, windows, queue pairs, SRQs */
};

enum mem_kind { MEM_MR, MEM_MW1, MEM_MW2 };

struct mem_key {
    uint32_t key;
    uint8_t kind;
    bool remote; /* the key may be used by a peer: registered or bound, and not invalidated */
    bool implicit;
    unsigned int access;
    struct qp_pd *pd;
    uint8_t *base;
    uint64_t len, iova;
    uint32_t qpn; /* MEM_MW2: the queue pair that it is bound on */
};

struct qp_mr {
    struct mem_key k;
    uint32_t windows; /* bound to it */
    void *user;
};

struct qp_mw {
    struct mem_key k;
    struct qp_mr *mr; /* NULL: not bound */
};

/* Open addressing, linear probing, at most half full; the place is given by the key's upper 24 bits. */
struct mem_table {
    struct mem_key **slot;
    uint32_t mask, used;
};

int mem_table_add(struct qp_engine *e, struct mem_key *k); /* chooses the key */
void mem_table_del(struct mem_table *t, const struct mem_key *k);
struct mem_key *mem_find(const struct mem_table *t, uint32_t key);
/* By the upper 24 bits, which two keys never share: the low byte of a window's key is free to change. */
struct mem_key *mem_find_index(const struct mem_table *t, uint32_t key);
/* Where `len` bytes at addr of the key lie; NULL: they may not be used so. len 0 always may. */
uint8_t *mem_local(struct qp_pd *pd, uint32_t lkey, uint64_t addr, uint64_t len, bool write);
uint8_t *mem_remote(const struct qp *qp, const struct qp_pd *pd, uint32_t rkey, uint64_t va, uint64_t len,
                    unsigned int access);
/* Its key ends, for peers at least. */
void mem_let_go(const struct qp_engine *e, const struct mem_key *k);
/* Local and remote invalidate: 0 or -EACCES. */
int mem_invalidate(struct qp *qp, struct qp_pd *pd, uint32_t rkey, bool by_peer);

/*
 * The payloads of a run, each of len bytes, to where they belong; `left` bytes of the message begin at dst. A line that
 * is written to is read first: those of MEM_FETCH_AHEAD bytes later are on their way from memory meanwhile.
 */
#define MEM_FETCH_AHEAD 4096u
void mem_put_run(uint8_t *dst, uint64_t left, const uint8_t *const *payload, uint32_t n, uint32_t len);

/* ---- completion queues (cq.c) ---- */

enum cq_armed { CQ_UNARMED, CQ_ARMED_SOLICITED, CQ_ARMED_ANY };

struct qp_cq {
    struct qp_engine *e;
    void *user;
    struct uroce_wc *ring;
    uint32_t mask, refs;
    _Atomic bool overflow;
    _Atomic uint32_t prod; /* engine */
    _Atomic uint32_t cons; /* poller */
    _Atomic int armed;
};

void cq_push(struct qp_cq *cq, const struct uroce_wc *wc, bool solicited);
void cq_purge(struct qp_cq *cq, uint32_t qpn);

/* ---- work queues (wq.c): rings with one producer (post) and one consumer (engine) ---- */

struct ring {
    uint8_t *mem;
    uint32_t mask, stride, max_sge;
    _Atomic uint32_t tail; /* producer */
    _Atomic uint32_t done; /* consumer: entries before it are free */
};

/* 0 or -ENOMEM. entries is rounded up to a power of two; 0: no ring. */
int ring_init(struct ring *r, uint32_t entries, uint32_t head_bytes, uint32_t max_sge, uint32_t inline_bytes);
void ring_free(struct ring *r);
static inline void *ring_at(const struct ring *r, uint32_t i)
{
    return r->mem + (size_t)(i & r->mask) * r->stride;
}

struct rq_wqe {
    uint64_t wr_id;
    uint32_t len, nsge;
    struct uroce_sge sge[];
};

struct sq_wqe {
    uint64_t wr_id;
    uint32_t len;   /* bytes of the message */
    uint32_t npkts; /* PSNs that it takes, 0: none (local operations); valid once begun */
    psn24 first;    /* likewise */
    uint32_t ssn;   /* likewise: send sequence number (IBTA 9.7.7.2) */
    uint32_t imm;   /* imm_data (network order) or invalidate_rkey */
    uint32_t srqn;
    uint8_t opcode; /* enum uroce_wr_opcode */
    uint8_t flags, nsge;
    uint8_t status; /* enum uroce_wc_status: an error found on this side */
    bool begun;
    bool has_value; /* a slot left `value` when the last packet was built */
    uint64_t value;
    union {
        struct {
            uint64_t va, compare_add, swap;
            uint32_t rkey;
        } rdma;
        struct {
            struct qp_path path;
            uint32_t qpn, qkey;
        } ud;
        struct {
            uint64_t addr, len;
            uint32_t mw_rkey, new_rkey, mr_lkey;
            unsigned int access;
        } bind;
    };
    struct uroce_sge sge[]; /* or the bytes of an inline request */
};

/* A receive taken out of its ring, since an SRQ's entry is free for another then. */
struct recv_cur {
    bool valid, begun;
    uint32_t nsge, len, done; /* done: bytes placed */
    uint64_t wr_id;
    struct uroce_sge sge[UROCE_SGE_MAX];
};

struct qp_srq {
    struct qp_engine *e;
    struct qp_pd *pd;
    struct qp_xrcd *xrcd;
    struct qp_cq *cq;
    void *user;
    struct ring rq;
    uint32_t limit, max_wr, refs, num;
};

struct qp_xrcd {
    struct qp_engine *e;
    uint32_t refs;
};

int rq_post(struct ring *r, const struct uroce_recv_wr *wr);
/* Takes the next receive; false: none. */
bool rq_take(struct ring *r, struct recv_cur *ret);
bool srq_take(struct qp_srq *srq, struct recv_cur *ret);

/* ---- pieces of memory (sge.c) ---- */

/* All pieces are usable: lkey, domain, range, LOCAL_WRITE if written to. */
bool sge_check(struct qp_pd *pd, const struct uroce_sge *sge, uint32_t n, bool write);
/* The iovec of len bytes from off on; number of pieces, or -EFAULT. */
int sge_iov(struct qp_pd *pd, const struct uroce_sge *sge, uint32_t n, uint64_t off, uint64_t len, bool write,
            struct iovec *ret);
/* Payload bytes [from, from + len) of a packet into memory: 0, -EFAULT (pieces) or -EIO (the port could not). */
int rx_copy(const struct qp_rx *rx, void *dst, size_t from, size_t len);
int rx_scatter(struct qp_pd *pd, const struct uroce_sge *sge, uint32_t n, uint64_t off, const struct qp_rx *rx);

/* ---- packets kept past a gap (reorder.c) ---- */

struct pkt_buf {
    struct wire_pkt pkt;
    uint8_t bytes[WIRE_PAYLOAD_MAX];
};

struct pkt_pool {
    struct pkt_buf *buf; /* QP_REORDER_POOL, allocated when a peer first does selective repeat */
    uint16_t *free;
    uint32_t nfree;
};

struct reorder {
    uint16_t *slot; /* by PSN; 0: empty, else index + 1 of the pool */
    uint32_t mask, count;
};

int reorder_init(struct qp_engine *e, struct reorder *r);
void reorder_clear(struct qp_engine *e, struct reorder *r);
void reorder_free(struct qp_engine *e, struct reorder *r);
/* Keeps a packet; next: the PSN that is awaited. False: no room, or it is there already (ret_dup). */
bool reorder_put(struct qp_engine *e, struct reorder *r, psn24 next, const struct qp_rx *rx, bool *ret_dup);
/* The packet with that PSN, or NULL. It goes back with reorder_done. */
struct pkt_buf *reorder_take(struct qp_engine *e, struct reorder *r, psn24 psn);
/* The PSN of the first that is kept from `next` on. False: none. */
bool reorder_first(struct qp_engine *e, struct reorder *r, psn24 next, psn24 *ret);
void reorder_done(struct qp_engine *e, struct pkt_buf *b);
static inline bool reorder_has(const struct reorder *r, psn24 psn)
{
    return r->count && r->slot[psn.v & r->mask];
}

/* ---- queue pairs ---- */

/* What the responder owes for a READ or atomic; kept after it was answered, for duplicates (IBTA 9.7.1.1). */
struct resp_res {
    bool atomic, pending, again;
    psn24 first;
    uint32_t npkts;
    uint32_t from, pos, end; /* packets to be sent: counted from first; [from, end), pos is next */
    uint32_t sent;           /* packets before it were sent once at least */
    uint32_t len, rkey, msn, mtu;
    bool far;
    uint64_t va, orig;
    struct qp_pd *pd;
};

struct rd_part {
    psn24 first;
    uint32_t npkts;
};

struct requester {
    psn24 next, una;        /* PSN of the next new packet; of the oldest that is not acknowledged */
    uint32_t wqe_next;      /* request that is being sent, and */
    uint32_t off_next;      /* how many of its PSNs were sent */
    uint32_t wqe_una;       /* oldest request that is not complete (ring's done) */
    uint32_t wqe_rtx;       /* where the search for rtx begins */
    psn24 rtx, rtx_end;     /* sent again: [rtx, rtx_end), if rtx_on */
    psn24 again, again_end; /* part of a READ to be asked for again, if again_on */
    psn24 guard;            /* una at which a READ was last asked for again, if guard_on */
    psn24 nak_una;          /* una at the last NAK, if nak_on */
    psn24 tried, tried_end; /* what the last time-out sent again, if try_on; what had been sent then */
    bool try_on;
    bool rtx_on, rtx_all, again_on, guard_on, nak_on;
    bool stop; /* a request failed here: nothing new is sent */
    bool rnr_wait, has_value, starved_long;
    uint64_t value;    /* of a slot, for the READ that is being completed */
    uint32_t ssn, lsn; /* of the next request; of the last that credits allow */
    bool credits_known;
    uint32_t since_ack;          /* packets since the last with AckReq */
    uint32_t bytes_out, charged; /* bytes that are not acknowledged; those that count in the engine's total */
    uint64_t starve_until, gives_seen;
    uint32_t need, turn; /* what it waits for; what it may still send in its turn */
    uint8_t retry_left, rnr_left, backoff;
    uint8_t rd_head, rd_count;
    struct rd_part rd[UROCE_RD_ATOMIC]; /* READ parts and atomics under way, oldest at rd_head */
    uint64_t timer, rnr_until;          /* QP_NEVER: off */
    /* Selective repeat. */
    uint64_t sacked[QP_SACK_RING / 64];
    uint32_t nsacked;
    psn24 sack_hi, scanned, recover; /* highest that arrived; sent again up to; first PSN new after that */
    struct reorder reorder;          /* READ responses */
};

struct responder {
    psn24 next, ack_psn; /* awaited; of the last SEND or WRITE packet that was done */
    uint32_t msn, ack_msn;
    bool in_msg, write, nak_sent, ack_due, nak_due, last_words, sack_dup, has_value, comm_est;
    uint8_t nak; /* syndrome */
    psn24 nak_psn, trigger;
    uint32_t left; /* of a WRITE */
    uint64_t va;
    uint32_t rkey, offset, dma_len, mtu;
    struct qp_srq *srq; /* of the message: the queue pair's, or XRC's */
    struct qp_pd *pd;
    uint64_t value;
    struct recv_cur recv;
    uint8_t res_head, res_count, res_pending; /* oldest, number, how many are to be sent */
    struct resp_res res[UROCE_RD_ATOMIC];
    struct reorder reorder;
};

struct qp {
    struct qp_engine *e;
    struct list all;
    struct list ready; /* in e->ready when something may be sent */
    struct list settle;
    struct list starved; /* in e->starved when it waits for its share of total_bytes */
    struct list put_off; /* in e->put_off when its acknowledgement waits (qp_engine_put_off) */
    uint32_t num, type;
    _Atomic int state;
    _Atomic bool sq_idle; /* the engine saw an empty send queue: the next post needs a doorbell */
    uint32_t heap_at;     /* index + 1 in e->heap; 0: not there */
    uint64_t heap_key;
    struct qp_path path, peer_path;
    /* has_peer_path: packets may come and answers go by peer_path; far_on: requests go by it, none by the other. */
    bool has_peer_path, far_on, selective, slots, sig_all, turn, drain_event, drained;
    uint32_t mtu; /* of our requests: path_mtu, or far_mtu with far_on */
    uint32_t path_mtu, far_mtu, far_window, dest, window_pkts, window_bytes, ack_every;
    struct qp_pd *pd;
    struct qp_cq *send_cq, *recv_cq;
    struct qp_srq *srq;
    struct qp_xrcd *xrcd;
    void *user;
    struct uroce_qp_attr attr;
    struct uroce_qp_cap cap;
    struct ring sq, rq;
    struct requester req;
    struct responder resp;
    struct dcqcn cc;
    uint64_t pace_at; /* earliest next data packet */
    uint64_t cnp_last;
    bool cnp_due, paced;
    uint32_t defer; /* UC, UD: requests sent and not yet told as complete */
    uint8_t sack_map[WIRE_SACK_BITMAP_MAX];
    struct uroce_counters cnt;
};

struct mcast_group {
    union uroce_gid gid;
    uint32_t n, cap;
    struct qp **qp;
};

struct mad_out {
    struct qp_path path;
    uint8_t bytes[256];
};

struct qp_engine {
    struct qp_engine_config cfg;
    uint64_t now; /* of the call: when completions come */
    struct qp_engine_ops ops;
    struct rng rng;
    struct mem_table keys;
    struct qp **qps; /* by QPN[15:0] */
    struct list all; /* queue pairs */
    struct qp *qp1;
    uint32_t nqps, next_qpn, objects;
    struct list ready, settle, starved, put_off;
    bool puts_off;
    struct list parked; /* by `ready`: their port is full */
    uint64_t held[4];   /* which ports are, by port_id */
    uint64_t charged, gives; /* bytes on their way, of all queue pairs; how often some came back */
    struct qp **heap;        /* of queue pairs by heap_key */
    uint32_t heap_n, heap_cap;
    bool cq_broken;
    struct qp_srq **xrc_srqs;
    uint32_t xrc_cap;
    struct mcast_group *groups;
    uint32_t ngroups;
    struct mad_out *mads;
    uint32_t mad_head, mad_n;
    psn24 mad_psn;
    struct pkt_pool pool;
    uint8_t *bounce;
    struct uroce_counters cnt;
};

#define COUNT_N(qp, field, n)                                                                                          \
    do {                                                                                                               \
        (qp)->cnt.field += (n);                                                                                        \
        (qp)->e->cnt.field += (n);                                                                                     \
    } while (0)
#define COUNT(qp, field) COUNT_N(qp, field, 1)

static inline int qp_state(const struct qp *qp)
{
    return atomic_load_explicit(&qp->state, memory_order_relaxed);
}

static inline bool qp_reliable(const struct qp *qp)
{
    return qp->type == UROCE_QPT_RC || qp->type == UROCE_QPT_XRC_SEND || qp->type == UROCE_QPT_XRC_RECV;
}

static inline const struct qp_path *qp_out_path(const struct qp *qp)
{
    return qp->has_peer_path ? &qp->peer_path : &qp->path;
}

static inline void qp_trace(const struct qp *qp, const char *machine, const char *state)
{
    if (unlikely(qp->e->ops.trace != NULL))
        qp->e->ops.trace(qp->e->cfg.ctx, qp->num, machine, state);
}

/* engine.c */
void engine_kick(struct qp *qp); /* it may have something to send */
void engine_event(struct qp_engine *e, enum uroce_event_type type, void *user);
void engine_settle(struct qp_engine *e); /* what earlier calls left: sent UC/UD requests, broken CQs */

/* timer.c */
int heap_reserve(struct qp_engine *e, uint32_t n);
/* The queue pair's deadline may have become earlier. */
void timer_update(struct qp *qp);
void timer_remove(struct qp *qp);

/* modify.c, flush.c */
void qp_to_error(struct qp *qp);
void qp_let_go(struct qp *qp);
/* Which path and packet size the next request has; it changes only while none is outstanding. False: wait for that. */
bool qp_choose_path(struct qp *qp);
/* An error of the send queue: ERR for RC and XRC, SQE for UC and UD. */
void qp_send_error(struct qp *qp);
void qp_flush(struct qp *qp);
void qp_reset(struct qp *qp);

/* req.c: builds the next request packet; 1 or 0. comp.c: takes what comes back. */
int req_tx(struct qp *qp, uint64_t now, struct qp_tx *tx);
/* Packets that follow of the message that is being sent, and of the answer of a READ; 0: none was begun. */
uint32_t req_left(const struct qp *qp);
uint32_t resp_left(const struct qp *qp);
/*
 * tx is the packet that was built last, from the middle of a message: how many of the next ones, `max` at most, are
 * like it (qp_tx.follows), asking for nothing and with payload right behind its own. They count as sent; engine.c
 * copies.
 */
uint32_t req_more(struct qp *qp, const struct qp_tx *tx, uint32_t max);
uint32_t resp_more(struct qp *qp, const struct qp_tx *tx, uint32_t max);
void req_go_back(struct qp *qp);
void req_ask_again(struct qp *qp);
void req_progress(struct qp *qp);
void req_timeout(struct qp *qp, uint64_t now);
void req_arm(struct qp *qp, uint64_t now);
uint32_t req_bytes(const struct qp *qp, const struct sq_wqe *w, uint32_t off);
/* budget.c: the total of bytes on their way. */
bool budget_allows(struct qp *qp, uint64_t now, uint32_t bytes);
void budget_take(struct qp *qp, uint32_t bytes);
void budget_give(struct qp *qp, uint32_t bytes);
void budget_timeout(struct qp *qp, uint64_t now);
/* After one more packet it may have to wait. */
bool budget_low(const struct qp *qp);
/* Bytes that may follow at once of who was just allowed some, without being low by that. */
uint64_t budget_room(const struct qp *qp);
/* Local operations: bind, invalidate. enum uroce_wc_status. */
int req_local(struct qp *qp, struct sq_wqe *w);
void comp_rx(struct qp *qp, uint64_t now, const struct qp_rx *rx);
/* As qp_engine_rx_room and qp_engine_rx_run: of a READ's answer; resp_room and resp_run: of a WRITE. */
uint32_t comp_room(struct qp *qp, const struct qp_rx *rx, uint32_t max, uint8_t **ret_dst);
uint32_t resp_room(const struct qp *qp, const struct qp_rx *rx, uint32_t max, uint8_t **ret_dst);
uint32_t comp_run(struct qp *qp, uint64_t now, const struct qp_rx *rx, const uint8_t *const *payload, uint32_t n);
uint32_t resp_run(struct qp *qp, const struct qp_rx *rx, const uint8_t *const *payload, uint32_t n);
/* Tells requests that need no more: local ones, and the one that failed here. */
void comp_settle(struct qp *qp);
void comp_fail(struct qp *qp, struct sq_wqe *w, enum uroce_wc_status status, uint32_t vendor);
void comp_sent(struct qp *qp); /* UC, UD */
/* sack.c */
void sack_rx(struct qp *qp, const struct wire_pkt *p);
void sack_advance(struct qp *qp, psn24 from, uint32_t n);
void sack_clear(struct qp *qp);
bool sack_test(const struct qp *qp, psn24 psn);
void sack_build(struct qp *qp, struct qp_tx *tx);

/* resp.c, resp_exec.c, resp_tx.c, ud.c, uc.c */
void resp_rx(struct qp *qp, uint64_t now, const struct qp_rx *rx);
int resp_tx(struct qp *qp, uint64_t now, struct qp_tx *tx);
void resp_cancel(struct qp *qp);
void uc_rx(struct qp *qp, const struct qp_rx *rx);
void ud_rx(struct qp *qp, const struct qp_rx *rx);
void ud_multicast(struct qp_engine *e, const struct qp_rx *rx);
int ud_build(struct qp *qp, struct sq_wqe *w, struct qp_tx *tx);
/* A receive's completion. */
void recv_complete(struct qp *qp, enum uroce_wc_status status, const struct wire_pkt *last, uint32_t len);
struct qp_cq *recv_cq(struct qp *qp);
bool recv_take(struct qp *qp, struct qp_srq *srq);
/* A slot's verdict on the payload of a packet. *rx may become tmp, whose payload is here (bounce). */
enum qp_verdict slot_rx(struct qp *qp, const struct qp_rx **rx, struct qp_rx *tmp, bool response, uint32_t offset,
                        bool first, bool last);
/* w: the request, whose completion gets the value; NULL: a READ response, which has none here. */
void slot_tx(struct qp *qp, const struct qp_tx *tx, struct sq_wqe *w, uint32_t offset, bool first, bool last);

#endif

/* Queue-pair engines joined by a lossy link in virtual time. Packets go through the codec. Repeatable by its seed. */
#ifndef TEST_QP_NET_H
#define TEST_QP_NET_H

#include "base/rng.h"
#include "qp/qp.h"

#define QPNET_NODES 9
#define QPNET_FAR   1 /* port_id of a second path: its packets are wire_pkt.far; they still fit a datagram */

struct qpnet_link {
    double loss, duplicate, reorder, late, mark; /* probabilities per packet */
    uint64_t delay_ns, jitter_ns;
    uint64_t late_ns;  /* a late packet takes so much longer */
    uint64_t rate_bps; /* 0: without limit; else each receiver has a queue of that rate */
    uint32_t queue_pkts,
        mark_pkts; /* of that queue, in packets of 4 KiB: dropped beyond; ECN-marked beyond (0: never) */
};

struct qpnet_pkt {
    uint64_t at, seq;
    int to;
    bool ce;
    struct qp_path path; /* as the receiver sees it */
    uint32_t len;
    uint8_t bytes[];
};

struct qpnet {
    struct rng rng;
    uint64_t now, seq, sent, delivered;
    uint64_t joined; /* delivered together with the packet before */
    struct qpnet_link link;
    struct qp_engine *e[QPNET_NODES];
    uint64_t busy[QPNET_NODES]; /* until when the receiver's queue drains */
    int n;
    struct qpnet_pkt **heap;
    size_t heap_n, heap_cap;
    /* May be NULL. False: this packet is lost. Called for each packet before chance decides. */
    bool (*filter)(void *ctx, int from, const struct qp_tx *tx);
    void *filter_ctx;
    int batch; /* packets per qp_engine_tx; 0: 16 */
    bool runs; /* packets that follow one another in the middle of a message are given to the engine together */
};

void qpnet_init(struct qpnet *n, uint64_t seed);
/* Frees packets; not the engines. */
void qpnet_done(struct qpnet *n);
int qpnet_add(struct qpnet *n, struct qp_engine *e); /* returns its number */
union uroce_gid qpnet_gid(int node);
struct qp_path qpnet_path(int from, int to);
/* Sends what wants to be sent. */
void qpnet_flush(struct qpnet *n);
/* To the next packet or deadline, not beyond `until`. False: nothing happens any more (until that time). */
bool qpnet_step(struct qpnet *n, uint64_t until);
/* Steps until nothing happens or virtual time `until`. */
void qpnet_run(struct qpnet *n, uint64_t until);

#endif

/* Two connected ends, a and b, for unit tests of the queue-pair engine. */
#ifndef ROCE_FIXTURE_H
#define ROCE_FIXTURE_H

#include "base/util.h"
#include "qp_end.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SECOND 1000000000ull

static struct qpnet net;
static struct qend a, b;
static int lose_packets;                                /* so many of the next packets are lost */
static bool (*watch)(int from, const struct qp_tx *tx); /* may be NULL; false: lost */

static inline bool fx_filter(void *ctx, int from, const struct qp_tx *tx)
{
    (void)ctx;
    if (lose_packets > 0) {
        lose_packets--;
        return false;
    }
    return !watch || watch(from, tx);
}

static inline void fx_open_both(const struct qend_opts *oa, const struct qend_opts *ob)
{
    qpnet_init(&net, 42);
    net.filter = fx_filter;
    lose_packets = 0;
    watch = NULL;
    qend_open(&a, &net, oa);
    qend_open(&b, &net, ob);
    qend_connect(&a, &b, net.now);
}

static inline void fx_open(const struct qend_opts *o)
{
    static const struct qend_opts none;
    fx_open_both(o ? o : &none, o ? o : &none);
}

static inline void fx_close(void)
{
    qend_close(&a);
    qend_close(&b);
    qpnet_done(&net);
}

/* Runs until nothing happens (ten virtual seconds at most). */
static inline void fx_run(void)
{
    qpnet_run(&net, net.now + 10 * SECOND);
}

static inline struct uroce_wc fx_one(struct qp_cq *cq)
{
    struct uroce_wc wc;
    assert_int_equal(qp_cq_poll(cq, 1, &wc), 1);
    return wc;
}

static inline void fx_none(struct qp_cq *cq)
{
    struct uroce_wc wc;
    assert_int_equal(qp_cq_poll(cq, 1, &wc), 0);
}

static inline void fx_fill(void *p, size_t n, uint64_t seed)
{
    struct rng r;
    rng_seed(&r, seed);
    rng_fill(&r, p, n);
}

/* A request that names b's memory. */
static inline struct uroce_send_wr fx_rdma(enum uroce_wr_opcode op, uint64_t wr_id, void *remote)
{
    struct uroce_send_wr wr = {.wr_id = wr_id, .opcode = op, .send_flags = UROCE_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = (uintptr_t)remote;
    wr.wr.rdma.rkey = qp_mr_rkey(b.mr);
    return wr;
}

static inline struct uroce_send_wr fx_send(uint64_t wr_id)
{
    return (struct uroce_send_wr){.wr_id = wr_id, .opcode = UROCE_WR_SEND, .send_flags = UROCE_SEND_SIGNALED};
}

static inline struct uroce_send_wr fx_atomic(enum uroce_wr_opcode op, uint64_t wr_id, void *remote,
                                             uint64_t compare_add, uint64_t swap)
{
    struct uroce_send_wr wr = {.wr_id = wr_id, .opcode = op, .send_flags = UROCE_SEND_SIGNALED};
    wr.wr.atomic.remote_addr = (uintptr_t)remote;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    wr.wr.atomic.rkey = qp_mr_rkey(b.mr);
    return wr;
}

static inline enum uroce_qp_state fx_state(const struct qend *q)
{
    struct uroce_qp_attr attr;
    qp_query(q->qp, &attr, NULL);
    return attr.qp_state;
}

#endif

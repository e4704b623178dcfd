#include "qp_end.h"

#include "qp_mask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(c)                                                                                                       \
    do {                                                                                                               \
        if (!(c))                                                                                                      \
            abort();                                                                                                   \
    } while (0)

static void on_cq(void *ctx, void *user)
{
    (void)user;
    struct qend *q = ctx;
    q->cq_events++;
    q->room = q->qp ? qp_send_room(q->qp) : 0;
}

static void on_event(void *ctx, enum uroce_event_type type, void *user)
{
    (void)user;
    ((struct qend *)ctx)->events[type]++;
}

static void on_mad(void *ctx, const struct qp_path *from, const struct wire_pkt *pkt)
{
    struct qend *q = ctx;
    if (q->mad)
        q->mad(q->mad_ctx, from, pkt);
}

static enum qp_verdict on_payload(void *ctx, void *user, const struct qp_payload *p, uint64_t *ret_value, bool *ret_has)
{
    struct qend *q = ctx;
    (void)user;
    return q->payload ? q->payload(q, p, ret_value, ret_has) : QP_ACCEPT;
}

static void on_trace(void *ctx, uint32_t qpn, const char *machine, const char *state)
{
    struct qend *q = ctx;
    (void)qpn;
    (void)machine;
    if (q->nstates < QEND_STATES)
        q->states[q->nstates++] = state;
}

bool qend_saw(const struct qend *q, const char *state)
{
    for (int i = 0; i < q->nstates; i++)
        if (!strcmp(q->states[i], state))
            return true;
    return false;
}

void qend_forget(struct qend *q)
{
    q->nstates = 0;
}

static void defaults(struct qend_opts *o)
{
#define D(m, v)                                                                                                        \
    if (!o->m)                                                                                                         \
    o->m = (v)
    D(type, UROCE_QPT_RC);
    D(mtu, UROCE_MTU_1024);
    D(wr, 64);
    D(rd_atomic, 4);
    D(timeout, 14);
    D(retry_cnt, 7);
    D(rnr_retry, 7);
    D(min_rnr_timer, 1);
    D(cqe, 1024);
    D(access, UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ |
                  UROCE_ACCESS_REMOTE_ATOMIC | UROCE_ACCESS_MW_BIND);
    D(qp_access, UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ | UROCE_ACCESS_REMOTE_ATOMIC);
#undef D
}

struct qp *qend_qp(struct qend *q)
{
    struct qp_init init = {.type = q->o.type,
                           .pd = q->pd,
                           .send_cq = q->scq,
                           .recv_cq = q->rcq,
                           .srq = q->srq,
                           .cap = {q->o.wr, q->o.srq ? 0 : q->o.wr, 4, 4, 128},
                           .sq_sig_all = !q->o.unsignalled,
                           .user = q};
    struct qp *qp;

    CHECK(!qp_create(q->e, &init, &qp));
    return qp;
}

static void on_let_go(void *ctx, void *qp_user, const void *base, size_t len)
{
    struct qend *q = ctx;

    (void)qp_user;
    if (q->let_go)
        q->let_go(q, base, len);
}

void qend_open(struct qend *q, struct qpnet *n, const struct qend_opts *o)
{
    static const struct qp_engine_ops ops = {.cq_event = on_cq,
                                             .async_event = on_event,
                                             .mad = on_mad,
                                             .payload = on_payload,
                                             .let_go = on_let_go,
                                             .trace = on_trace};
    struct qp_engine_config cfg = {.seed = rng_u64(&n->rng), .ops = &ops, .ctx = q};

    memset(q, 0, sizeof *q);
    q->o = *o;
    defaults(&q->o);
    cfg.window_pkts = q->o.window_pkts;
    cfg.window_bytes = q->o.window_bytes;
    cfg.total_bytes = q->o.total_bytes;
    cfg.run_bytes = q->o.run_bytes;
    cfg.dcqcn.enabled = q->o.dcqcn;
    q->mem = calloc(1, QEND_MEM);
    CHECK(q->mem && !qp_engine_new(&cfg, &q->e));
    q->node = qpnet_add(n, q->e);
    CHECK(!qp_pd_new(q->e, &q->pd));
    CHECK(!qp_mr_reg(q->pd, q->mem, QEND_MEM, (uintptr_t)q->mem, q->o.access, NULL, &q->mr));
    CHECK(!qp_cq_new(q->e, q->o.cqe, q, &q->scq) && !qp_cq_new(q->e, q->o.cqe, q, &q->rcq));
    if (q->o.srq)
        CHECK(!qp_srq_new(q->pd, q->o.wr, 4, NULL, NULL, q, &q->srq));
    q->qp = qend_qp(q);
}

int qend_connect_to(struct qend *q, struct qp *qp, uint64_t now, int node, uint32_t dest)
{
    struct qp_path path = qpnet_path(q->node, node);
    struct uroce_qp_attr a = {.qp_state = UROCE_QPS_INIT,
                              .port_num = 1,
                              .qkey = 0x1234,
                              .qp_access_flags = q->o.qp_access,
                              .path_mtu = q->o.mtu,
                              .rq_psn = q->o.rq_psn,
                              .sq_psn = q->o.sq_psn,
                              .dest_qp_num = dest,
                              .max_rd_atomic = q->o.rd_atomic,
                              .max_dest_rd_atomic = q->o.rd_atomic,
                              .min_rnr_timer = q->o.min_rnr_timer,
                              .timeout = q->o.timeout,
                              .retry_cnt = q->o.retry_cnt,
                              .rnr_retry = q->o.rnr_retry};
    int r;

    r = qp_modify(qp, now, &a, qp_mask(q->o.type, UROCE_QPS_INIT), &path);
    a.qp_state = UROCE_QPS_RTR;
    if (!r)
        r = qp_modify(qp, now, &a, qp_mask(q->o.type, UROCE_QPS_RTR), &path);
    a.qp_state = UROCE_QPS_RTS;
    if (!r)
        r = qp_modify(qp, now, &a, qp_mask(q->o.type, UROCE_QPS_RTS), &path);
    return r;
}

void qend_connect(struct qend *a, struct qend *b, uint64_t now)
{
    CHECK(!qend_connect_to(a, a->qp, now, b->node, qp_num(b->qp)));
    CHECK(!qend_connect_to(b, b->qp, now, a->node, qp_num(a->qp)));
}

void qend_close(struct qend *q)
{
    if (q->qp)
        CHECK(!qp_destroy(q->qp));
    if (q->srq)
        CHECK(!qp_srq_free(q->srq));
    if (q->mr)
        CHECK(!qp_mr_dereg(q->mr));
    CHECK(!qp_cq_free(q->scq) && !qp_cq_free(q->rcq) && !qp_pd_free(q->pd));
    CHECK(!qp_engine_free(q->e));
    free(q->mem);
}

int qend_send(struct qend *q, struct qpnet *n, struct uroce_send_wr *wr, void *addr, uint32_t len)
{
    struct uroce_sge sge = {(uintptr_t)addr, len, qp_mr_lkey(q->mr)};
    const struct uroce_send_wr *bad;
    bool bell;
    int r;

    if (addr) {
        wr->sg_list = &sge;
        wr->num_sge = 1;
    }
    r = qp_post_send(q->qp, wr, &bad, &bell);
    if (bell)
        qp_engine_doorbell(q->e, n->now, q->qp);
    return r;
}

int qend_recv(struct qend *q, struct qpnet *n, uint64_t wr_id, void *addr, uint32_t len)
{
    struct uroce_sge sge = {(uintptr_t)addr, len, qp_mr_lkey(q->mr)};
    struct uroce_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
    const struct uroce_recv_wr *bad;
    bool bell = false;
    int r;

    if (q->srq)
        return qp_post_srq_recv(q->srq, &wr, &bad);
    r = qp_post_recv(q->qp, &wr, &bad, &bell);
    if (bell)
        qp_engine_doorbell(q->e, n->now, q->qp);
    return r;
}

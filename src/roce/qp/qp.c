/* Queue pairs as objects: made, asked, destroyed. */
#include "impl.h"

_Static_assert(sizeof(struct qp) < 4096, "an idle queue pair, its queues apart, takes less than 4 KiB");

static bool init_ok(const struct qp_init *i)
{
    const struct uroce_qp_cap *c = &i->cap;

    if (c->max_send_wr > UROCE_WR_MAX || c->max_recv_wr > UROCE_WR_MAX || c->max_send_sge > UROCE_SGE_MAX ||
        c->max_recv_sge > UROCE_SGE_MAX || c->max_inline_data > UROCE_INLINE_MAX)
        return false;
    switch (i->type) {
    case UROCE_QPT_RC:
    case UROCE_QPT_UC:
    case UROCE_QPT_UD:
        return i->pd && i->send_cq && i->recv_cq && !i->xrcd && !(i->srq && i->srq->xrcd);
    case UROCE_QPT_XRC_SEND:
        return i->pd && i->send_cq && !i->srq && !i->xrcd && !c->max_recv_wr;
    case UROCE_QPT_XRC_RECV:
        return i->xrcd && !i->srq && !c->max_send_wr && !c->max_recv_wr;
    }
    return false;
}

static int choose_number(struct qp_engine *e, uint32_t want, uint32_t *ret)
{
    uint32_t slot = e->cfg.qpn_slot << 16;

    if (e->nqps >= e->cfg.max_qps)
        return -ENOSPC;
    if (want == WIRE_QPN_GSI) {
        *ret = want;
        return e->qp1 ? -EADDRINUSE : 0;
    }
    if (want) {
        uint32_t low = want & 0xffff;
        if (want >> 16 != e->cfg.qpn_slot || low < QP_NUM_FIRST || low >= QP_NUM_END)
            return -EINVAL;
        *ret = want;
        return e->qps[low] ? -EADDRINUSE : 0;
    }
    do { /* some number is free: there are fewer queue pairs than numbers */
        want = e->next_qpn++;
        if (e->next_qpn >= QP_NUM_END)
            e->next_qpn = QP_NUM_FIRST;
    } while (e->qps[want]);
    *ret = slot | want;
    return 0;
}

static int make_rings(struct qp *qp, const struct qp_init *i)
{
    struct uroce_qp_cap *c = &qp->cap;
    int r;

    *c = i->cap;
    if (c->max_send_wr && !c->max_send_sge)
        c->max_send_sge = 1;
    if (i->srq)
        c->max_recv_wr = c->max_recv_sge = 0;
    r = ring_init(&qp->sq, c->max_send_wr, sizeof(struct sq_wqe), c->max_send_sge, c->max_inline_data);
    if (!r)
        r = ring_init(&qp->rq, c->max_recv_wr, sizeof(struct rq_wqe), c->max_recv_sge, 0);
    if (c->max_send_wr) {
        /* Inline bytes lie where the pieces would: what holds those is given, as adapters give it. */
        uint32_t room = c->max_send_sge * (uint32_t)sizeof(struct uroce_sge);
        c->max_inline_data = (uint32_t)max_u64(c->max_inline_data, min_u64(room, UROCE_INLINE_MAX));
        c->max_send_wr = qp->sq.mask + 1;
    }
    if (c->max_recv_wr)
        c->max_recv_wr = qp->rq.mask + 1;
    return r;
}

static void use(struct qp *qp, int n)
{
    if (qp->pd)
        qp->pd->refs += (uint32_t)n;
    if (qp->send_cq)
        qp->send_cq->refs += (uint32_t)n;
    if (qp->recv_cq)
        qp->recv_cq->refs += (uint32_t)n;
    if (qp->srq)
        qp->srq->refs += (uint32_t)n;
    if (qp->xrcd)
        qp->xrcd->refs += (uint32_t)n;
    qp->e->objects += (uint32_t)n;
    qp->e->nqps += (uint32_t)n;
}

int qp_create(struct qp_engine *e, const struct qp_init *init, struct qp **ret)
{
    struct qp *qp;
    uint32_t num;
    int r;

    engine_settle(e);
    if (!init_ok(init))
        return -EINVAL;
    r = choose_number(e, init->qpn, &num);
    if (!r)
        r = heap_reserve(e, e->nqps + 1);
    if (r)
        return r;
    qp = calloc(1, sizeof *qp);
    if (!qp)
        return -ENOMEM;
    r = make_rings(qp, init);
    if (r) {
        ring_free(&qp->sq);
        ring_free(&qp->rq);
        free(qp);
        return r;
    }
    qp->e = e;
    qp->num = num;
    qp->type = init->type;
    qp->sig_all = init->sq_sig_all;
    qp->pd = init->pd;
    qp->send_cq = init->send_cq;
    qp->recv_cq = init->recv_cq;
    qp->srq = init->srq;
    qp->xrcd = init->xrcd;
    qp->user = init->user;
    list_init(&qp->ready);
    list_init(&qp->settle);
    list_init(&qp->starved);
    list_init(&qp->put_off);
    qp_reset(qp);
    use(qp, 1);
    list_push_back(&e->all, &qp->all);
    if (num == WIRE_QPN_GSI)
        e->qp1 = qp;
    else
        e->qps[num & 0xffff] = qp;
    *ret = qp;
    return 0;
}

static void leave_groups(struct qp *qp)
{
    struct qp_engine *e = qp->e;

    for (uint32_t i = e->ngroups; i-- > 0;) {
        union uroce_gid gid = e->groups[i].gid;
        (void)qp_detach_mcast(qp, &gid);
    }
}

int qp_destroy(struct qp *qp)
{
    struct qp_engine *e = qp->e;

    engine_settle(e);
    if (qp->type == UROCE_QPT_UD)
        leave_groups(qp);
    qp_reset(qp);
    if (qp->num == WIRE_QPN_GSI)
        e->qp1 = NULL;
    else
        e->qps[qp->num & 0xffff] = NULL;
    use(qp, -1);
    list_del(&qp->all);
    ring_free(&qp->sq);
    ring_free(&qp->rq);
    free(qp);
    return 0;
}

void qp_query(const struct qp *qp, struct uroce_qp_attr *ret, struct qp_init *ret_init)
{
    int state = qp_state(qp);

    *ret = qp->attr;
    ret->qp_state = ret->cur_qp_state = (enum uroce_qp_state)state;
    ret->cap = qp->cap;
    ret->rq_psn = qp->resp.next.v;
    ret->sq_psn = qp->req.next.v;
    ret->sq_draining = state == UROCE_QPS_SQD && !qp->drained;
    if (ret_init)
        *ret_init = (struct qp_init){.type = (enum uroce_qp_type)qp->type,
                                     .pd = qp->pd,
                                     .send_cq = qp->send_cq,
                                     .recv_cq = qp->recv_cq,
                                     .srq = qp->srq,
                                     .xrcd = qp->xrcd,
                                     .cap = qp->cap,
                                     .sq_sig_all = qp->sig_all,
                                     .qpn = qp->num,
                                     .user = qp->user};
}

uint32_t qp_num(const struct qp *qp)
{
    return qp->num;
}

void qp_counters(const struct qp *qp, struct uroce_counters *ret)
{
    *ret = qp->cnt;
}

void qp_set_slots(struct qp *qp, bool on)
{
    qp->slots = on && qp->e->ops.payload;
}

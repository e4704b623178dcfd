/* The states of a queue pair (IBTA 10.3.1): what a modify checks and does. */
#include "impl.h"
#include "table96.h"

static bool values_ok(const struct qp *qp, const struct uroce_qp_attr *a, unsigned int mask, const struct qp_path *path)
{
    if (mask & UROCE_QP_PKEY_INDEX && a->pkey_index != 0)
        return false;
    if (mask & UROCE_QP_PORT && a->port_num != 1)
        return false;
    if (mask & UROCE_QP_AV && (!path || path->overhead > WIRE_SLOT_ROOM))
        return false;
    if (mask & UROCE_QP_PATH_MTU && (a->path_mtu < UROCE_MTU_256 || a->path_mtu > UROCE_MTU_4096))
        return false;
    if ((mask & UROCE_QP_RQ_PSN && a->rq_psn > UROCE_PSN_MASK) ||
        (mask & UROCE_QP_SQ_PSN && a->sq_psn > UROCE_PSN_MASK))
        return false;
    if (mask & UROCE_QP_DEST_QPN && a->dest_qp_num > UROCE_QPN_MAX)
        return false;
    if ((mask & UROCE_QP_MAX_QP_RD_ATOMIC && a->max_rd_atomic > UROCE_RD_ATOMIC) ||
        (mask & UROCE_QP_MAX_DEST_RD_ATOMIC && a->max_dest_rd_atomic > UROCE_RD_ATOMIC))
        return false;
    if ((mask & UROCE_QP_TIMEOUT && a->timeout > 31) || (mask & UROCE_QP_RETRY_CNT && a->retry_cnt > 7) ||
        (mask & UROCE_QP_RNR_RETRY && a->rnr_retry > 7) || (mask & UROCE_QP_MIN_RNR_TIMER && a->min_rnr_timer > 31))
        return false;
    if (mask & UROCE_QP_CUR_STATE && (int)a->cur_qp_state != qp_state(qp))
        return false;
    return true;
}

static void take_values(struct qp *qp, const struct uroce_qp_attr *a, unsigned int mask, const struct qp_path *path)
{
    struct uroce_qp_attr *t = &qp->attr;

#define TAKE(bit, member)                                                                                              \
    if (mask & (bit))                                                                                                  \
    t->member = a->member
    TAKE(UROCE_QP_ACCESS_FLAGS, qp_access_flags);
    TAKE(UROCE_QP_PKEY_INDEX, pkey_index);
    TAKE(UROCE_QP_PORT, port_num);
    TAKE(UROCE_QP_QKEY, qkey);
    TAKE(UROCE_QP_AV, ah_attr);
    TAKE(UROCE_QP_PATH_MTU, path_mtu);
    TAKE(UROCE_QP_TIMEOUT, timeout);
    TAKE(UROCE_QP_RETRY_CNT, retry_cnt);
    TAKE(UROCE_QP_RNR_RETRY, rnr_retry);
    TAKE(UROCE_QP_RQ_PSN, rq_psn);
    TAKE(UROCE_QP_SQ_PSN, sq_psn);
    TAKE(UROCE_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
    TAKE(UROCE_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
    TAKE(UROCE_QP_MIN_RNR_TIMER, min_rnr_timer);
    TAKE(UROCE_QP_DEST_QPN, dest_qp_num);
    TAKE(UROCE_QP_RATE_LIMIT, rate_limit);
    TAKE(UROCE_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify);
#undef TAKE
    if (mask & UROCE_QP_AV)
        qp->path = *path;
}

static uint32_t path_bytes(const struct qp *qp)
{
    uint32_t mtu = qp->type == UROCE_QPT_UD ? qp->e->cfg.ud_mtu_bytes : 128u << qp->attr.path_mtu;

    return (mtu - qp->path.overhead) & ~3u;
}

static void size_window(struct qp *qp, uint32_t pkts)
{
    const struct qp_engine_config *c = &qp->e->cfg;

    qp->window_pkts = pkts ? pkts : c->window_pkts;
    qp->mtu = qp->far_on ? qp->far_mtu : qp->path_mtu;
    qp->window_bytes = qp->far_on ? qp->far_window : c->window_bytes;
    if (qp->selective && qp->window_pkts > QP_SACK_RING / 2)
        qp->window_pkts = QP_SACK_RING / 2;
    if (qp->window_bytes < qp->mtu)
        qp->window_bytes = qp->mtu;
    qp->ack_every = (uint32_t)max_u64(c->ack_every, min_u64(c->ack_bytes / qp->mtu, qp->window_pkts / 4));
}

static void enter_rtr(struct qp *qp)
{
    qp->path_mtu = path_bytes(qp);
    qp->dest = qp->attr.dest_qp_num;
    qp->resp.next = psn_make(qp->attr.rq_psn);
    qp->resp.ack_psn = psn_prev(qp->resp.next);
    qp->resp.srq = qp->srq;
    qp->resp.pd = qp->pd;
    size_window(qp, 0);
}

static void enter_rts_first(struct qp *qp)
{
    struct requester *r = &qp->req;

    r->next = r->una = r->scanned = r->tried_end = psn_make(qp->attr.sq_psn);
    r->wqe_next = r->wqe_una = r->wqe_rtx = atomic_load(&qp->sq.tail);
    r->ssn = 1;
    r->retry_left = qp->attr.retry_cnt;
    r->rnr_left = qp->attr.rnr_retry;
    dcqcn_init(&qp->cc, &qp->e->cfg.dcqcn);
}

static void enter(struct qp *qp, uint64_t now, enum uroce_qp_state from, enum uroce_qp_state to, unsigned int mask)
{
    if (to == UROCE_QPS_ERR) {
        qp_to_error(qp);
        return;
    }
    if (to == UROCE_QPS_RESET) {
        qp_reset(qp);
        return;
    }
    if (to == UROCE_QPS_RTR)
        enter_rtr(qp);
    if (to == UROCE_QPS_RTS && from == UROCE_QPS_RTR)
        enter_rts_first(qp);
    if (mask & UROCE_QP_AV)
        qp_leave_path(qp);
    if (to == UROCE_QPS_RTS) /* after SQE nothing of the send queue is left */
        qp->req.stop = false;
    if (to == UROCE_QPS_SQD && from == UROCE_QPS_RTS)
        qp->drained = false;
    atomic_store(&qp->state, (int)to);
    if (to == UROCE_QPS_SQD && qp->sq.mem)
        comp_settle(qp); /* it may be drained already */
    req_arm(qp, now);
    engine_kick(qp);
}

int qp_modify(struct qp *qp, uint64_t now_ns, const struct uroce_qp_attr *attr, unsigned int mask,
              const struct qp_path *path)
{
    enum uroce_qp_state from = (enum uroce_qp_state)qp_state(qp);
    enum uroce_qp_state to = mask & UROCE_QP_STATE ? attr->qp_state : from;
    int r;

    qp->e->now = now_ns;
    engine_settle(qp->e);
    if (mask & (UROCE_QP_ALT_PATH | UROCE_QP_CAP))
        return -EOPNOTSUPP;
    r = table96_check((enum uroce_qp_type)qp->type, from, to, mask);
    if (r)
        return r;
    if (!values_ok(qp, attr, mask, path))
        return -EINVAL;
    take_values(qp, attr, mask, path);
    enter(qp, now_ns, from, to, mask);
    engine_settle(qp->e);
    return 0;
}

int qp_set_peer(struct qp *qp, const struct qp_peer *peer)
{
    int r = 0;

    if (!qp_reliable(qp) || qp_state(qp) < UROCE_QPS_RTR || qp_state(qp) > UROCE_QPS_SQD ||
        (peer->path && (peer->mtu_bytes < WIRE_MTU_BYTES_MIN - WIRE_SLOT_ROOM || peer->mtu_bytes > WIRE_FAR_MAX ||
                        peer->mtu_bytes & 3)))
        return -EINVAL;
    engine_settle(qp->e);
    if (peer->selective_repeat && !qp->selective) {
        r = reorder_init(qp->e, &qp->req.reorder);
        if (!r)
            r = reorder_init(qp->e, &qp->resp.reorder);
        if (r)
            return r;
        qp->selective = true;
        qp->req.scanned = qp->req.una;
    }
    if (peer->path && !qp->far_on) { /* else: what is outstanding has that path's packet size */
        qp->peer_path = *peer->path;
        qp->far_mtu = peer->mtu_bytes;
        qp->far_window = peer->window_bytes;
        qp->has_peer_path = true;
    }
    size_window(qp, peer->window_pkts);
    engine_kick(qp);
    return r;
}

void qp_leave_path(struct qp *qp)
{
    qp->has_peer_path = false;
    engine_kick(qp);
}

bool qp_choose_path(struct qp *qp)
{
    const struct requester *r = &qp->req;

    if (likely(qp->far_on == qp->has_peer_path))
        return true;
    if (r->wqe_una != r->wqe_next || r->una.v != r->next.v)
        return false;
    qp->far_on = qp->has_peer_path;
    size_window(qp, qp->window_pkts);
    return true;
}

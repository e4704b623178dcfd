/*
 * Requests that are done: told in their order, and the window moved on. Acknowledgements are cumulative, but a READ or
 * an atomic is done only by its own response.
 */
#include "comp.h"

static enum uroce_wc_opcode wc_opcode(const struct sq_wqe *w)
{
    static const uint8_t of[] = {
        [UROCE_WR_RDMA_WRITE] = UROCE_WC_RDMA_WRITE,
        [UROCE_WR_RDMA_WRITE_WITH_IMM] = UROCE_WC_RDMA_WRITE,
        [UROCE_WR_SEND] = UROCE_WC_SEND,
        [UROCE_WR_SEND_WITH_IMM] = UROCE_WC_SEND,
        [UROCE_WR_RDMA_READ] = UROCE_WC_RDMA_READ,
        [UROCE_WR_ATOMIC_CMP_AND_SWP] = UROCE_WC_COMP_SWAP,
        [UROCE_WR_ATOMIC_FETCH_AND_ADD] = UROCE_WC_FETCH_ADD,
        [UROCE_WR_LOCAL_INV] = UROCE_WC_LOCAL_INV,
        [UROCE_WR_BIND_MW] = UROCE_WC_BIND_MW,
        [UROCE_WR_SEND_WITH_INV] = UROCE_WC_SEND,
    };

    return (enum uroce_wc_opcode)of[w->opcode];
}

bool comp_responds(const struct sq_wqe *w)
{
    return w->opcode == UROCE_WR_RDMA_READ || w->opcode == UROCE_WR_ATOMIC_CMP_AND_SWP ||
           w->opcode == UROCE_WR_ATOMIC_FETCH_AND_ADD;
}

/*
 * The oldest request is complete. Its place in the queue is free before that is told: who polls the completion, in
 * another thread, may post at once.
 */
static void retire(struct qp *qp, const struct sq_wqe *w, enum uroce_wc_status status, uint32_t vendor)
{
    struct requester *r = &qp->req;
    bool tell = status != UROCE_WC_SUCCESS || w->flags & UROCE_SEND_SIGNALED;
    struct uroce_wc wc = {.wr_id = w->wr_id,
                          .status = status,
                          .opcode = wc_opcode(w),
                          .vendor_err = vendor,
                          .byte_len = comp_responds(w) ? w->len : 0,
                          .qp_num = qp->num};
    if (r->has_value || w->has_value) { /* of a READ; of what was sent */
        wc.slot_value = r->has_value ? r->value : w->value;
        wc.wc_flags = UROCE_WC_SLOT_VALUE;
    }
    r->has_value = false;
    atomic_store_explicit(&qp->sq.done, ++r->wqe_una, memory_order_release);
    if (tell)
        cq_push(qp->send_cq, &wc, false);
}

void comp_fail(struct qp *qp, struct sq_wqe *w, enum uroce_wc_status status, uint32_t vendor)
{
    qp_let_go(qp);
    retire(qp, w, status, vendor);
    qp_send_error(qp);
}

void comp_settle(struct qp *qp)
{
    struct requester *r = &qp->req;
    struct sq_wqe *w = ring_at(&qp->sq, r->wqe_una);

    if (!qp_reliable(qp)) { /* later: what was sent is told first */
        if (list_empty(&qp->settle))
            list_push_back(&qp->e->settle, &qp->settle);
        return;
    }
    while (r->wqe_una != r->wqe_next && w->begun && !w->npkts) {
        retire(qp, w, UROCE_WC_SUCCESS, 0);
        w = ring_at(&qp->sq, r->wqe_una);
    }
    if (unlikely(r->stop) && r->wqe_una != atomic_load_explicit(&qp->sq.tail, memory_order_acquire) && w->status) {
        comp_fail(qp, w, (enum uroce_wc_status)w->status, 0);
        return;
    }
    if (unlikely(qp_state(qp) == UROCE_QPS_SQD) && r->wqe_una == r->wqe_next && !r->off_next && !qp->drained) {
        qp->drained = true;
        if (qp->attr.en_sqd_async_notify)
            engine_event(qp->e, UROCE_EVENT_SQ_DRAINED, qp->user);
    }
}

void comp_sent(struct qp *qp)
{
    struct requester *r = &qp->req;
    struct sq_wqe *w;

    list_del(&qp->settle);
    if (qp_reliable(qp) || !qp->sq.mem)
        return;
    while (r->wqe_una != r->wqe_next)
        retire(qp, ring_at(&qp->sq, r->wqe_una), UROCE_WC_SUCCESS, 0);
    w = ring_at(&qp->sq, r->wqe_una);
    if (r->stop && r->wqe_una != atomic_load_explicit(&qp->sq.tail, memory_order_acquire) && w->status) {
        comp_fail(qp, w, (enum uroce_wc_status)w->status, 0);
    } else if (qp_state(qp) == UROCE_QPS_SQD && !r->off_next && !qp->drained) {
        qp->drained = true;
        if (qp->attr.en_sqd_async_notify)
            engine_event(qp->e, UROCE_EVENT_SQ_DRAINED, qp->user);
    }
}

void comp_advance(struct qp *qp, const struct sq_wqe *w, uint32_t n)
{
    struct requester *r = &qp->req;
    uint32_t off = psn_dist(r->una, w->first), bytes = req_bytes(qp, w, off + n) - req_bytes(qp, w, off);

    r->bytes_out -= bytes;
    budget_give(qp, bytes);
    sack_advance(qp, r->una, n);
    r->una = psn_add(r->una, n);
    if (off + n == w->npkts)
        retire(qp, w, UROCE_WC_SUCCESS, 0);
    comp_settle(qp);
}

bool comp_ack_before(struct qp *qp, psn24 psn)
{
    struct requester *r = &qp->req;

    while (r->una.v != psn.v) {
        const struct sq_wqe *w = ring_at(&qp->sq, r->wqe_una);
        uint32_t left, to = psn_dist(psn, r->una);
        if (comp_responds(w))
            return false;
        left = w->npkts - psn_dist(r->una, w->first);
        comp_advance(qp, w, to < left ? to : left);
        if (qp_state(qp) == UROCE_QPS_ERR)
            return false;
    }
    return true;
}

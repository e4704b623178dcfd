/*
 * The completer: what comes back for requests. ACKs and NAKs are cumulative; a READ or an atomic is done only by its
 * own response, so that an acknowledgement beyond one says that its response was lost (IBTA 9.7.5.1.2).
 */
#include "impl.h"

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

static bool responds(const struct sq_wqe *w)
{
    return w->opcode == UROCE_WR_RDMA_READ || w->opcode == UROCE_WR_ATOMIC_CMP_AND_SWP ||
           w->opcode == UROCE_WR_ATOMIC_FETCH_AND_ADD;
}

/* The oldest request is complete. */
static void retire(struct qp *qp, const struct sq_wqe *w, enum uroce_wc_status status, uint32_t vendor)
{
    struct requester *r = &qp->req;

    if (status != UROCE_WC_SUCCESS || w->flags & UROCE_SEND_SIGNALED) {
        struct uroce_wc wc = {.wr_id = w->wr_id,
                              .status = status,
                              .opcode = wc_opcode(w),
                              .vendor_err = vendor,
                              .byte_len = responds(w) ? w->len : 0,
                              .qp_num = qp->num};
        if (r->has_value) {
            wc.slot_value = r->value;
            wc.wc_flags = UROCE_WC_SLOT_VALUE;
        }
        cq_push(qp->send_cq, &wc, false);
    }
    r->has_value = false;
    atomic_store_explicit(&qp->sq.done, ++r->wqe_una, memory_order_release);
}

void comp_fail(struct qp *qp, struct sq_wqe *w, enum uroce_wc_status status, uint32_t vendor)
{
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

/* n packets of the oldest request are done. */
static void advance(struct qp *qp, const struct sq_wqe *w, uint32_t n)
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

/* Everything before psn has arrived. False: a READ or atomic before it is not answered. */
static bool ack_before(struct qp *qp, psn24 psn)
{
    struct requester *r = &qp->req;

    while (r->una.v != psn.v) {
        const struct sq_wqe *w = ring_at(&qp->sq, r->wqe_una);
        uint32_t left, to = psn_dist(psn, r->una);
        if (responds(w))
            return false;
        left = w->npkts - psn_dist(r->una, w->first);
        advance(qp, w, to < left ? to : left);
        if (qp_state(qp) == UROCE_QPS_ERR)
            return false;
    }
    return true;
}

/* A response is missing: its READ (or atomic) is asked for again, once as long as nothing else moves. */
static void ask_again(struct qp *qp)
{
    struct requester *r = &qp->req;
    const struct rd_part *p = &r->rd[r->rd_head];

    if (!r->rd_count || r->rnr_wait || (r->guard_on && r->guard.v == r->una.v))
        return;
    r->guard = r->una;
    r->guard_on = true;
    if (!qp->selective) {
        req_go_back(qp);
        return;
    }
    r->again = r->una;
    r->again_end = psn_add(p->first, p->npkts);
    for (psn24 e = psn_next(r->una); psn_lt(e, r->again_end); e = psn_next(e))
        if (reorder_has(&r->reorder, e))
            r->again_end = e;
    r->again_on = true;
    engine_kick(qp);
}

static void credits(struct requester *r, const struct wire_pkt *p)
{
    uint8_t code = wire_ack_value(p->syndrome);

    r->credits_known = code != WIRE_CREDITS_NONE;
    r->lsn = (p->msn + wire_credits(code)) & UROCE_PSN_MASK;
}

/* The window moved: the peer lives. */
static void progress(struct qp *qp, uint64_t now)
{
    struct requester *r = &qp->req;

    if (qp_state(qp) == UROCE_QPS_ERR)
        return;
    r->retry_left = qp->attr.retry_cnt;
    r->rnr_left = qp->attr.rnr_retry;
    r->backoff = 0;
    req_arm(qp, now);
    engine_kick(qp);
}

/* ---- acknowledgements ---- */

static void nak_sequence(struct qp *qp, uint64_t now)
{
    struct requester *r = &qp->req;

    COUNT(qp, nak_seq_rx);
    if (r->rtx_on && r->rtx_all && r->nak_on && r->nak_una.v == r->una.v)
        return; /* the same once more: it is being sent */
    if (r->nak_on && r->nak_una.v == r->una.v) {
        if (!r->retry_left) {
            comp_fail(qp, ring_at(&qp->sq, r->wqe_una), UROCE_WC_RETRY_EXC_ERR, wire_syndrome_nak(WIRE_NAK_SEQ));
            return;
        }
        r->retry_left--;
    }
    r->nak_on = true;
    r->nak_una = r->una;
    req_go_back(qp);
    req_arm(qp, now);
}

static void nak_rnr(struct qp *qp, uint64_t now, uint8_t syndrome)
{
    struct requester *r = &qp->req;

    COUNT(qp, rnr_nak_rx);
    if (r->rnr_wait)
        return;
    if (qp->attr.rnr_retry != WIRE_RNR_FOREVER && !r->rnr_left) {
        comp_fail(qp, ring_at(&qp->sq, r->wqe_una), UROCE_WC_RNR_RETRY_EXC_ERR, syndrome);
        return;
    }
    if (qp->attr.rnr_retry != WIRE_RNR_FOREVER)
        r->rnr_left--;
    r->rnr_wait = true;
    r->rnr_until = now + wire_rnr_ns(wire_ack_value(syndrome));
    r->rtx_on = r->again_on = false;
    sack_clear(qp); /* the responder let what it kept go */
    req_arm(qp, now);
}

static void nak_fatal(struct qp *qp, uint8_t syndrome)
{
    static const enum uroce_wc_status of[] = {[WIRE_NAK_INVALID] = UROCE_WC_REM_INV_REQ_ERR,
                                              [WIRE_NAK_ACCESS] = UROCE_WC_REM_ACCESS_ERR,
                                              [WIRE_NAK_OPERATION] = UROCE_WC_REM_OP_ERR,
                                              [WIRE_NAK_RD] = UROCE_WC_REM_INV_RD_REQ_ERR};
    uint8_t nak = wire_ack_value(syndrome);

    COUNT(qp, nak_other_rx);
    if (nak <= WIRE_NAK_RD)
        comp_fail(qp, ring_at(&qp->sq, qp->req.wqe_una), of[nak], syndrome);
}

static void rx_nak(struct qp *qp, uint64_t now, const struct wire_pkt *p)
{
    struct requester *r = &qp->req;
    psn24 before = r->una;
    bool reached;

    if (psn_dist(p->psn, r->una) >= psn_dist(r->next, r->una)) {
        COUNT(qp, duplicates);
        return;
    }
    reached = ack_before(qp, p->psn);
    if (qp_state(qp) == UROCE_QPS_ERR)
        return;
    if (r->una.v != before.v)
        progress(qp, now);
    if (!reached)
        ask_again(qp);
    else if (wire_ack_kind(p->syndrome) == WIRE_ACK_RNR)
        nak_rnr(qp, now, p->syndrome);
    else if (wire_ack_value(p->syndrome) == WIRE_NAK_SEQ)
        nak_sequence(qp, now);
    else
        nak_fatal(qp, p->syndrome);
}

/* False: old, or of packets that were never sent. */
static bool rx_ack(struct qp *qp, uint64_t now, const struct wire_pkt *p)
{
    struct requester *r = &qp->req;
    psn24 before = r->una, next = psn_next(p->psn);

    if (psn_dist(next, r->una) > psn_dist(r->next, r->una)) {
        COUNT(qp, duplicates);
        return false;
    }
    credits(r, p);
    if (!ack_before(qp, next) && qp_state(qp) != UROCE_QPS_ERR)
        ask_again(qp);
    if (r->una.v != before.v)
        progress(qp, now);
    else
        engine_kick(qp); /* credits may have changed */
    return true;
}

/* ---- responses ---- */

/* What is placed for one response; false: it failed, or counts as lost. */
static bool place(struct qp *qp, const struct sq_wqe *w, const struct qp_rx *in)
{
    uint32_t off = psn_dist(in->pkt.psn, w->first), at = req_bytes(qp, w, off);
    struct sq_wqe *oldest = ring_at(&qp->sq, qp->req.wqe_una);
    struct qp_rx tmp;
    const struct qp_rx *rx = in;
    int r;

    if (in->pkt.payload_len != req_bytes(qp, w, off + 1) - at) {
        comp_fail(qp, oldest, UROCE_WC_BAD_RESP_ERR, 0);
        return false;
    }
    if (unlikely(qp->slots)) {
        enum qp_verdict v = slot_rx(qp, &rx, &tmp, true, at, !off, off + 1 == w->npkts);
        if (v == QP_DROP)
            return false;
        if (v == QP_REFUSE) {
            comp_fail(qp, oldest, UROCE_WC_GENERAL_ERR, 0);
            return false;
        }
    }
    r = rx_scatter(qp->pd, w->sge, w->nsge, at, rx);
    if (r == -EFAULT)
        comp_fail(qp, oldest, UROCE_WC_LOC_PROT_ERR, 0);
    return !r;
}

static bool place_old_value(struct qp *qp, struct sq_wqe *w, const struct wire_pkt *p)
{
    uint8_t *dst = mem_local(qp->pd, w->sge[0].lkey, w->sge[0].addr, 8, true);

    if (!dst) {
        comp_fail(qp, w, UROCE_WC_LOC_PROT_ERR, 0);
        return false;
    }
    memcpy(dst, &p->orig, 8);
    return true;
}

/* The response that is due. */
static void take_response(struct qp *qp, uint64_t now, const struct qp_rx *rx)
{
    struct requester *r = &qp->req;
    const struct wire_op *op = wire_op(rx->pkt.opcode);
    struct sq_wqe *w = ring_at(&qp->sq, r->wqe_una);
    struct rd_part *part = &r->rd[r->rd_head];

    if (!responds(w) || (op->verb == WIRE_VERB_READ) != (w->opcode == UROCE_WR_RDMA_READ) ||
        (op->aeth && wire_ack_kind(rx->pkt.syndrome) != WIRE_ACK_OK)) {
        comp_fail(qp, w, UROCE_WC_BAD_RESP_ERR, rx->pkt.syndrome);
        return;
    }
    if (!(op->verb == WIRE_VERB_READ ? place(qp, w, rx) : place_old_value(qp, w, &rx->pkt)))
        return;
    if (op->aeth)
        credits(r, &rx->pkt);
    if (psn_dist(r->una, part->first) + 1 == part->npkts) {
        r->rd_head = (r->rd_head + 1) % UROCE_RD_ATOMIC;
        r->rd_count--;
    }
    advance(qp, w, 1);
    progress(qp, now);
}

static void drain(struct qp *qp, uint64_t now)
{
    struct requester *r = &qp->req;
    struct pkt_buf *b;

    while (r->reorder.count && (b = reorder_take(qp->e, &r->reorder, r->una))) {
        struct qp_rx rx = {.pkt = b->pkt};
        psn24 una = r->una;
        rx.pkt.payload = b->bytes;
        take_response(qp, now, &rx);
        reorder_done(qp->e, b);
        if (r->una.v == una.v)
            return;
    }
}

static void rx_response(struct qp *qp, uint64_t now, const struct qp_rx *rx)
{
    struct requester *r = &qp->req;
    psn24 before = r->una;
    bool dup;

    if (psn_dist(rx->pkt.psn, r->una) >= psn_dist(r->next, r->una)) {
        COUNT(qp, duplicates);
        return;
    }
    if (ack_before(qp, rx->pkt.psn)) { /* a response says that all requests before it were done */
        take_response(qp, now, rx);
        drain(qp, now);
        if (qp_state(qp) != UROCE_QPS_ERR && r->reorder.count >= QP_REORDER_SLACK)
            ask_again(qp);
        return;
    }
    if (qp_state(qp) == UROCE_QPS_ERR)
        return;
    COUNT(qp, out_of_order);
    if (r->una.v != before.v)
        progress(qp, now);
    if (!qp->selective || !reorder_put(qp->e, &r->reorder, r->una, rx, &dup) || r->reorder.count >= QP_REORDER_SLACK ||
        psn_next(rx->pkt.psn).v == r->next.v)
        ask_again(qp);
}

void comp_rx(struct qp *qp, uint64_t now, const struct qp_rx *rx)
{
    const struct wire_pkt *p = &rx->pkt;

    if (wire_op(p->opcode)->kind == WIRE_KIND_RESPONSE) {
        rx_response(qp, now, rx);
    } else if (wire_op(p->opcode)->verb == WIRE_VERB_SACK) {
        if (!qp->selective || wire_ack_kind(p->syndrome) != WIRE_ACK_OK)
            COUNT(qp, drop_opcode);
        else if (rx_ack(qp, now, p) && qp_state(qp) != UROCE_QPS_ERR)
            sack_rx(qp, p);
    } else if (wire_ack_kind(p->syndrome) == WIRE_ACK_OK) {
        (void)rx_ack(qp, now, p);
    } else if (wire_ack_kind(p->syndrome) == WIRE_ACK_RESERVED) {
        COUNT(qp, drop_malformed);
    } else {
        rx_nak(qp, now, p);
    }
}

#include "resp.h"

static bool is_rdma_read(const struct wire_op *op)
{
    return op->verb == WIRE_VERB_READ;
}

static bool is_atomic(const struct wire_op *op)
{
    return op->verb == WIRE_VERB_CMP_SWAP || op->verb == WIRE_VERB_FETCH_ADD;
}

static enum resp_state check_psn(struct step *s)
{
    int32_t d = psn_diff(s->p->psn, s->qp->resp.next);

    if (likely(!d)) {
        s->qp->resp.nak_sent = false;
        return RESP_CHECK_SEQUENCE;
    }
    return d > 0 ? RESP_GAP : RESP_DUPLICATE;
}

static enum resp_state check_sequence(struct step *s)
{
    const struct responder *r = &s->qp->resp;

    if (!r->in_msg)
        return s->op->first ? RESP_CHECK_OPERATION : RESP_ERR_SEQUENCE;
    if (s->op->first || (s->op->verb == WIRE_VERB_WRITE) != r->write)
        return RESP_ERR_SEQUENCE;
    return RESP_CHECK_LENGTH;
}

/* XRC: the SRQ named by the packet, whose domain the keys are looked up in. */
static bool find_srq(struct step *s)
{
    struct qp *qp = s->qp;
    struct qp_srq *srq = s->p->srqn < qp->e->xrc_cap ? qp->e->xrc_srqs[s->p->srqn] : NULL;

    if (!srq || srq->xrcd != qp->xrcd || (qp->resp.recv.valid && srq != qp->resp.srq))
        return false;
    qp->resp.srq = srq;
    qp->resp.pd = srq->pd;
    return true;
}

static enum resp_state check_operation(struct step *s)
{
    struct qp *qp = s->qp;
    unsigned int need = 0;

    if (qp->type == UROCE_QPT_XRC_RECV && !find_srq(s))
        return RESP_ERR_OPERATION;
    if (s->op->verb == WIRE_VERB_WRITE)
        need = UROCE_ACCESS_REMOTE_WRITE;
    else if (is_rdma_read(s->op))
        need = UROCE_ACCESS_REMOTE_READ;
    else if (is_atomic(s->op))
        need = UROCE_ACCESS_REMOTE_ATOMIC;
    if ((qp->attr.qp_access_flags & need) != need)
        return RESP_ERR_OPERATION;
    if ((is_rdma_read(s->op) || is_atomic(s->op)) && !qp->attr.max_dest_rd_atomic)
        return RESP_ERR_OPERATION;
    return RESP_CHECK_LENGTH;
}

static enum resp_state check_length(struct step *s)
{
    struct qp *qp = s->qp;
    struct responder *r = &qp->resp;
    uint32_t len = s->p->payload_len;
    bool write = s->op->verb == WIRE_VERB_WRITE;

    if (s->op->first)
        r->mtu = s->p->far ? qp->far_mtu : qp->path_mtu;
    if (is_rdma_read(s->op))
        return s->p->dma_len > UROCE_MSG_MAX ? RESP_ERR_LENGTH : RESP_CHECK_KEY;
    if (is_atomic(s->op))
        return s->p->va & 7 ? RESP_ERR_LENGTH : RESP_CHECK_KEY;
    if (s->op->last ? len > r->mtu || (!len && !s->op->first) : len != r->mtu)
        return RESP_ERR_LENGTH;
    if (write) {
        uint32_t left = s->op->first ? s->p->dma_len : r->left;
        if (left > UROCE_MSG_MAX || (s->op->last ? left != len : left <= len))
            return RESP_ERR_LENGTH;
    }
    return !write || (s->op->last && s->op->imm) ? RESP_CHECK_RECEIVE : RESP_CHECK_KEY;
}

static enum resp_state acknowledge(struct step *s)
{
    struct responder *r = &s->qp->resp;

    if (unlikely(!r->comm_est) && qp_state(s->qp) == UROCE_QPS_RTR) {
        r->comm_est = true;
        engine_event(s->qp->e, UROCE_EVENT_COMM_EST, s->qp->user);
    }
    r->next = psn_add(r->next, s->npsn);
    if (!is_rdma_read(s->op) && !is_atomic(s->op)) {
        r->ack_psn = s->p->psn;
        r->ack_msn = r->msn;
        r->ack_due |= s->p->ackreq;
    }
    if (r->reorder.count) { /* a gap was closed: the peer learns how far */
        r->ack_due = true;
        r->trigger = s->p->psn;
    }
    if (r->ack_due || r->res_pending)
        engine_kick(s->qp);
    return RESP_DONE;
}

static void nak(struct qp *qp, uint8_t syndrome)
{
    struct responder *r = &qp->resp;

    r->nak_due = true;
    r->nak = syndrome;
    r->nak_psn = r->next;
    engine_kick(qp);
}

static void nak_sequence(struct qp *qp)
{
    if (qp->resp.nak_sent)
        return;
    qp->resp.nak_sent = true;
    nak(qp, wire_syndrome_nak(WIRE_NAK_SEQ));
}

/* Past a gap: kept (selective repeat), or the gap is told, once; so it is when a packet is too large to be kept. */
static enum resp_state gap(struct step *s)
{
    struct qp *qp = s->qp;
    struct responder *r = &qp->resp;
    bool dup;

    COUNT(qp, out_of_order);
    if (qp->selective && s->p->payload_len <= WIRE_PAYLOAD_MAX) {
        if (reorder_put(qp->e, &r->reorder, r->next, s->rx, &dup)) {
            r->trigger = s->p->psn;
            r->sack_dup = dup;
            r->ack_due = true;
            engine_kick(qp);
        }
    } else {
        nak_sequence(qp);
    }
    return RESP_DONE;
}

static enum resp_state rnr(struct step *s)
{
    COUNT(s->qp, rnr_nak_tx);
    s->qp->resp.nak_sent = true; /* what follows is past a gap, and the peer knows */
    nak(s->qp, wire_syndrome_rnr(s->qp->attr.min_rnr_timer));
    return RESP_DONE;
}

/* Of a payload that could not be fetched the peer learns at once: no gap may ever tell it. */
static enum resp_state lost(struct step *s)
{
    if (s->rx->copy)
        nak_sequence(s->qp);
    return RESP_DONE;
}

/* ---- errors ---- */

static enum resp_state fail(struct step *s, enum wire_nak code, enum uroce_wc_status status)
{
    struct qp *qp = s->qp;
    bool access = code == WIRE_NAK_ACCESS;

    COUNT(qp, nak_other_tx);
    nak(qp, wire_syndrome_nak(code));
    qp->resp.last_words = true;
    if (qp->resp.recv.valid && qp->resp.recv.begun)
        recv_complete(qp, status, s->p, 0);
    engine_event(qp->e, access ? UROCE_EVENT_QP_ACCESS_ERR : UROCE_EVENT_QP_REQ_ERR, qp->user);
    qp_to_error(qp);
    return RESP_DONE;
}

static enum resp_state err_request(struct step *s)
{
    return fail(s, WIRE_NAK_INVALID, UROCE_WC_REM_INV_REQ_ERR);
}

static enum resp_state err_too_long(struct step *s)
{
    return fail(s, WIRE_NAK_INVALID, UROCE_WC_LOC_LEN_ERR);
}

static enum resp_state err_local(struct step *s)
{
    return fail(s, WIRE_NAK_OPERATION, UROCE_WC_LOC_PROT_ERR);
}

static enum resp_state err_key(struct step *s)
{
    return fail(s, WIRE_NAK_ACCESS, UROCE_WC_LOC_ACCESS_ERR);
}

static enum resp_state err_slot(struct step *s)
{
    return fail(s, WIRE_NAK_OPERATION, UROCE_WC_LOC_QP_OP_ERR);
}

/* ---- the machine ---- */

static const struct {
    const char *name;
    enum resp_state (*run)(struct step *s);
} states[] = {
    [RESP_CHECK_PSN] = {"CHECK_PSN", check_psn},
    [RESP_CHECK_SEQUENCE] = {"CHECK_SEQUENCE", check_sequence},
    [RESP_CHECK_OPERATION] = {"CHECK_OPERATION", check_operation},
    [RESP_CHECK_LENGTH] = {"CHECK_LENGTH", check_length},
    [RESP_CHECK_RECEIVE] = {"CHECK_RECEIVE", resp_check_receive},
    [RESP_CHECK_KEY] = {"CHECK_KEY", resp_check_key},
    [RESP_CHECK_SLOT] = {"CHECK_SLOT", resp_check_slot},
    [RESP_EXECUTE] = {"EXECUTE", resp_execute},
    [RESP_COMPLETE] = {"COMPLETE", resp_complete},
    [RESP_ACKNOWLEDGE] = {"ACKNOWLEDGE", acknowledge},
    [RESP_DUPLICATE] = {"DUPLICATE", resp_duplicate},
    [RESP_GAP] = {"GAP", gap},
    [RESP_RNR] = {"RNR", rnr},
    [RESP_LOST] = {"LOST", lost},
    [RESP_ERR_SEQUENCE] = {"ERR_SEQUENCE", err_request},
    [RESP_ERR_OPERATION] = {"ERR_OPERATION", err_request},
    [RESP_ERR_LENGTH] = {"ERR_LENGTH", err_request},
    [RESP_ERR_TOO_LONG] = {"ERR_TOO_LONG", err_too_long},
    [RESP_ERR_LOCAL] = {"ERR_LOCAL", err_local},
    [RESP_ERR_KEY] = {"ERR_KEY", err_key},
    [RESP_ERR_RESOURCES] = {"ERR_RESOURCES", err_request},
    [RESP_ERR_SLOT] = {"ERR_SLOT", err_slot},
    [RESP_ERR_INVALIDATE] = {"ERR_INVALIDATE", err_key},
};

static void one(struct qp *qp, const struct qp_rx *rx)
{
    struct step s = {.qp = qp, .rx = rx, .p = &rx->pkt, .op = wire_op(rx->pkt.opcode), .npsn = 1};
    enum resp_state state = RESP_CHECK_PSN;

    while (state != RESP_DONE) {
        qp_trace(qp, "resp", states[state].name);
        state = states[state].run(&s);
    }
}

/* Packets as most are: of the middle of a WRITE, and awaited. What the states would do with them, in one step, or
 * nothing if any of them had a word on one. */
uint32_t resp_room(const struct qp *qp, const struct qp_rx *rx, uint32_t max, uint8_t **ret_dst)
{
    const struct responder *r = &qp->resp;
    const struct wire_pkt *p = &rx->pkt;

    if (p->opcode != WIRE_RC_WRITE_MIDDLE || p->psn.v != r->next.v || !r->in_msg || !r->write ||
        p->payload_len != r->mtu || r->left <= r->mtu || r->reorder.count || qp->slots || rx->copy)
        return 0;
    max = (uint32_t)min_u64(max, (r->left - 1) / r->mtu); /* the last is another */
    *ret_dst = mem_remote(qp, r->pd, r->rkey, r->va + r->offset, (uint64_t)max * r->mtu, UROCE_ACCESS_REMOTE_WRITE);
    return *ret_dst ? max : 0;
}

uint32_t resp_run(struct qp *qp, const struct qp_rx *rx, const uint8_t *const *payload, uint32_t n)
{
    struct responder *r = &qp->resp;
    uint8_t *dst;

    n = resp_room(qp, rx, n, &dst);
    if (!n)
        return 0;
    qp_trace(qp, "resp", "MIDDLE");
    mem_put_run(dst, r->left, payload, n, r->mtu);
    r->left -= n * r->mtu;
    r->offset += n * r->mtu;
    r->nak_sent = false;
    r->next = psn_add(r->next, n);
    r->ack_psn = psn_prev(r->next);
    r->ack_msn = r->msn;
    r->ack_due |= rx->pkt.ackreq;
    if (r->ack_due || r->res_pending)
        engine_kick(qp);
    return n;
}

void resp_rx(struct qp *qp, uint64_t now, const struct qp_rx *rx)
{
    struct responder *r = &qp->resp;
    psn24 before = r->next;
    struct pkt_buf *b;

    (void)now;
    if (likely(resp_run(qp, rx, &rx->pkt.payload, 1)))
        return;
    one(qp, rx);
    while (r->reorder.count && r->next.v != before.v && (b = reorder_take(qp->e, &r->reorder, r->next))) {
        struct qp_rx kept = {.pkt = b->pkt};
        kept.pkt.payload = b->bytes;
        before = r->next;
        one(qp, &kept);
        reorder_done(qp->e, b);
        r->ack_due = true;
    }
}

#include "comp.h"

static struct sq_wqe *oldest(struct qp *qp)
{
    return ring_at(&qp->sq, qp->req.wqe_una);
}

/* Nothing of the queue pair is left to look at. */
static bool over(const struct qp *qp)
{
    return qp_state(qp) == UROCE_QPS_ERR;
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

    if (over(qp))
        return;
    r->retry_left = qp->attr.retry_cnt;
    r->rnr_left = qp->attr.rnr_retry;
    r->backoff = 0;
    if (unlikely(r->try_on))
        req_progress(qp);
    req_arm(qp, now);
    engine_kick(qp);
}

/* Acknowledges all before psn. False: a response before it is missing, or the queue pair has ended. */
static bool acknowledge(struct comp_step *s, psn24 psn)
{
    struct requester *r = &s->qp->req;
    psn24 before = r->una;
    bool reached = comp_ack_before(s->qp, psn);

    if (r->una.v != before.v)
        progress(s->qp, s->now);
    return reached && !over(s->qp);
}

static enum comp_state check(struct comp_step *s)
{
    const struct requester *r = &s->qp->req;
    uint32_t out = psn_dist(r->next, r->una);
    enum wire_ack kind = wire_ack_kind(s->p->syndrome);

    if (s->op->kind == WIRE_KIND_RESPONSE)
        return psn_dist(s->p->psn, r->una) < out ? COMP_RESPONSE : COMP_OLD;
    if (kind == WIRE_ACK_RESERVED || (s->op->verb == WIRE_VERB_SACK && kind != WIRE_ACK_OK))
        return COMP_WRONG;
    if (kind != WIRE_ACK_OK)
        return psn_dist(s->p->psn, r->una) < out ? COMP_NAK : COMP_OLD;
    if (psn_dist(psn_next(s->p->psn), r->una) > out)
        return COMP_OLD;
    /* A peer may have learnt of selective repeat earlier than we: it is an ACK at least. */
    return s->op->verb == WIRE_VERB_SACK && s->qp->selective ? COMP_SACK : COMP_ACK;
}

/* ---- acknowledgements ---- */

static enum comp_state ack(struct comp_step *s)
{
    credits(&s->qp->req, s->p);
    if (!acknowledge(s, psn_next(s->p->psn)))
        return over(s->qp) ? COMP_DONE : COMP_MISSING;
    engine_kick(s->qp); /* credits may have changed */
    return COMP_DONE;
}

static enum comp_state sack(struct comp_step *s)
{
    enum comp_state next = ack(s);

    if (!over(s->qp))
        sack_rx(s->qp, s->p);
    return next;
}

static enum comp_state nak(struct comp_step *s)
{
    if (!acknowledge(s, s->p->psn))
        return over(s->qp) ? COMP_DONE : COMP_MISSING;
    if (wire_ack_kind(s->p->syndrome) == WIRE_ACK_RNR)
        return COMP_RNR;
    return wire_ack_value(s->p->syndrome) == WIRE_NAK_SEQ ? COMP_SEQUENCE : COMP_ERR_REMOTE;
}

static enum comp_state rnr(struct comp_step *s)
{
    struct qp *qp = s->qp;
    struct requester *r = &qp->req;

    COUNT(qp, rnr_nak_rx);
    if (r->rnr_wait)
        return COMP_DONE;
    if (qp->attr.rnr_retry != WIRE_RNR_FOREVER) {
        if (!r->rnr_left)
            return COMP_ERR_RNR;
        r->rnr_left--;
    }
    r->rnr_wait = true;
    r->rnr_until = s->now + wire_rnr_ns(wire_ack_value(s->p->syndrome));
    r->rtx_on = r->again_on = r->nak_on = false;
    sack_clear(qp); /* the responder let go what it kept of the message */
    req_arm(qp, s->now);
    return COMP_DONE;
}

static enum comp_state sequence(struct comp_step *s)
{
    struct qp *qp = s->qp;
    struct requester *r = &qp->req;
    bool same = r->nak_on && r->nak_una.v == r->una.v;

    COUNT(qp, nak_seq_rx);
    if (r->rnr_wait)
        return COMP_DONE; /* of packets that followed the one which found no receive: they go when the wait ends */
    if (same && r->rtx_on && r->rtx_all)
        return COMP_DONE; /* the same once more: it is being sent */
    if (same) {
        if (!r->retry_left)
            return COMP_ERR_RETRY;
        r->retry_left--;
    }
    r->nak_on = true;
    r->nak_una = r->una;
    req_go_back(qp);
    req_arm(qp, s->now);
    return COMP_DONE;
}

/* ---- responses ---- */

static enum comp_state response(struct comp_step *s)
{
    if (acknowledge(s, s->p->psn)) /* a response says that all requests before it were done */
        return COMP_TAKE;
    return over(s->qp) ? COMP_DONE : COMP_EARLY;
}

static enum comp_state early(struct comp_step *s)
{
    struct qp *qp = s->qp;
    struct requester *r = &qp->req;
    bool dup;

    COUNT(qp, out_of_order);
    if (!qp->selective || !reorder_put(qp->e, &r->reorder, r->una, s->rx, &dup) ||
        r->reorder.count >= QP_REORDER_SLACK || psn_next(s->p->psn).v == r->next.v)
        return COMP_MISSING;
    return COMP_DONE;
}

static enum comp_state missing(struct comp_step *s)
{
    struct qp *qp = s->qp;
    struct requester *r = &qp->req;

    if (!r->rd_count || r->rnr_wait || (r->guard_on && r->guard.v == r->una.v))
        return COMP_DONE;
    r->guard = r->una;
    r->guard_on = true;
    if (!qp->selective) {
        req_go_back(qp);
        return COMP_DONE;
    }
    req_ask_again(qp);
    return COMP_DONE;
}

/* A piece of a READ. */
static enum comp_state take_piece(struct comp_step *s, const struct sq_wqe *w)
{
    struct qp *qp = s->qp;
    uint32_t off = psn_dist(s->p->psn, w->first), at = req_bytes(qp, w, off);
    const struct qp_rx *rx = s->rx;
    struct qp_rx tmp;
    int r;

    if (s->p->payload_len != req_bytes(qp, w, off + 1) - at)
        return COMP_ERR_RESPONSE;
    if (unlikely(qp->slots)) {
        enum qp_verdict v = slot_rx(qp, &rx, &tmp, true, at, !off, off + 1 == w->npkts);
        if (v != QP_ACCEPT)
            return v == QP_DROP ? COMP_LOST : COMP_ERR_SLOT;
    }
    r = rx_scatter(qp->pd, w->sge, w->nsge, at, rx);
    if (r == -EFAULT)
        return COMP_ERR_MEMORY;
    return r ? COMP_MISSING : COMP_ADVANCE; /* the peer's memory could not be read: it is asked for again */
}

static enum comp_state take(struct comp_step *s)
{
    struct qp *qp = s->qp;
    const struct sq_wqe *w = oldest(qp);
    uint8_t *dst;

    if (!comp_responds(w) || (s->op->verb == WIRE_VERB_READ) != (w->opcode == UROCE_WR_RDMA_READ) ||
        (s->op->aeth && wire_ack_kind(s->p->syndrome) != WIRE_ACK_OK))
        return COMP_ERR_RESPONSE;
    if (s->op->verb == WIRE_VERB_READ)
        return take_piece(s, w);
    dst = mem_local(qp->pd, w->sge[0].lkey, w->sge[0].addr, 8, true);
    if (!dst)
        return COMP_ERR_MEMORY;
    memcpy(dst, &s->p->orig, 8);
    return COMP_ADVANCE;
}

static enum comp_state advance(struct comp_step *s)
{
    struct requester *r = &s->qp->req;
    const struct rd_part *part = &r->rd[r->rd_head];

    if (s->op->aeth)
        credits(r, s->p);
    if (psn_dist(r->una, part->first) + 1 == part->npkts) {
        r->rd_head = (r->rd_head + 1) % UROCE_RD_ATOMIC;
        r->rd_count--;
    }
    comp_advance(s->qp, oldest(s->qp), 1);
    progress(s->qp, s->now);
    return COMP_DONE;
}

/* ---- what leads nowhere ---- */

static enum comp_state old(struct comp_step *s)
{
    COUNT(s->qp, duplicates);
    return COMP_DONE;
}

static enum comp_state wrong(struct comp_step *s)
{
    COUNT(s->qp, drop_malformed);
    return COMP_DONE;
}

static enum comp_state lost(struct comp_step *s)
{
    (void)s;
    return COMP_DONE;
}

static enum comp_state fail(struct comp_step *s, enum uroce_wc_status status)
{
    comp_fail(s->qp, oldest(s->qp), status, s->op->aeth ? s->p->syndrome : 0);
    return COMP_DONE;
}

static enum comp_state err_remote(struct comp_step *s)
{
    static const enum uroce_wc_status of[] = {[WIRE_NAK_INVALID] = UROCE_WC_REM_INV_REQ_ERR,
                                              [WIRE_NAK_ACCESS] = UROCE_WC_REM_ACCESS_ERR,
                                              [WIRE_NAK_OPERATION] = UROCE_WC_REM_OP_ERR,
                                              [WIRE_NAK_RD] = UROCE_WC_REM_INV_RD_REQ_ERR};
    uint8_t code = wire_ack_value(s->p->syndrome);

    COUNT(s->qp, nak_other_rx);
    return code <= WIRE_NAK_RD ? fail(s, of[code]) : COMP_WRONG;
}

static enum comp_state err_rnr(struct comp_step *s)
{
    return fail(s, UROCE_WC_RNR_RETRY_EXC_ERR);
}

static enum comp_state err_retry(struct comp_step *s)
{
    return fail(s, UROCE_WC_RETRY_EXC_ERR);
}

static enum comp_state err_response(struct comp_step *s)
{
    return fail(s, UROCE_WC_BAD_RESP_ERR);
}

static enum comp_state err_slot(struct comp_step *s)
{
    return fail(s, UROCE_WC_GENERAL_ERR);
}

static enum comp_state err_memory(struct comp_step *s)
{
    return fail(s, UROCE_WC_LOC_PROT_ERR);
}

/* ---- the machine ---- */

static const struct {
    const char *name;
    enum comp_state (*run)(struct comp_step *s);
} states[] = {
    [COMP_CHECK] = {"CHECK", check},
    [COMP_ACK] = {"ACK", ack},
    [COMP_SACK] = {"SACK", sack},
    [COMP_NAK] = {"NAK", nak},
    [COMP_RNR] = {"RNR", rnr},
    [COMP_SEQUENCE] = {"SEQUENCE", sequence},
    [COMP_RESPONSE] = {"RESPONSE", response},
    [COMP_EARLY] = {"EARLY", early},
    [COMP_MISSING] = {"MISSING", missing},
    [COMP_TAKE] = {"TAKE", take},
    [COMP_ADVANCE] = {"ADVANCE", advance},
    [COMP_OLD] = {"OLD", old},
    [COMP_WRONG] = {"WRONG", wrong},
    [COMP_LOST] = {"LOST", lost},
    [COMP_ERR_REMOTE] = {"ERR_REMOTE", err_remote},
    [COMP_ERR_RNR] = {"ERR_RNR", err_rnr},
    [COMP_ERR_RETRY] = {"ERR_RETRY", err_retry},
    [COMP_ERR_RESPONSE] = {"ERR_RESPONSE", err_response},
    [COMP_ERR_SLOT] = {"ERR_SLOT", err_slot},
    [COMP_ERR_MEMORY] = {"ERR_MEMORY", err_memory},
};

static void run(struct qp *qp, uint64_t now, const struct qp_rx *rx, enum comp_state state)
{
    struct comp_step s = {.qp = qp, .now = now, .rx = rx, .p = &rx->pkt, .op = wire_op(rx->pkt.opcode)};

    while (state != COMP_DONE) {
        qp_trace(qp, "comp", states[state].name);
        state = states[state].run(&s);
    }
}

/* Responses that were kept and are due now. False: one before them is missing. */
static bool drain(struct qp *qp, uint64_t now)
{
    struct requester *r = &qp->req;
    psn24 psn;

    while (reorder_first(qp->e, &r->reorder, r->una, &psn)) {
        struct qp_rx rx = {.path = qp->path};
        struct pkt_buf *b;
        if (!comp_ack_before(qp, psn))
            return false;
        b = reorder_take(qp->e, &r->reorder, psn);
        rx.pkt = b->pkt;
        rx.pkt.payload = b->bytes;
        run(qp, now, &rx, COMP_TAKE);
        reorder_done(qp->e, b);
        if (r->una.v == psn.v)
            return true; /* not taken: it comes again */
    }
    return true;
}

/* Packets as most are: of the middle of a READ's answer, and awaited. */
uint32_t comp_room(struct qp *qp, const struct qp_rx *rx, uint32_t max, uint8_t **ret_dst)
{
    const struct requester *r = &qp->req;
    const struct wire_pkt *p = &rx->pkt;
    const struct rd_part *part = &r->rd[r->rd_head];
    const struct sq_wqe *w;
    uint32_t off, of_part;

    if (p->opcode != WIRE_RC_READ_RESP_MIDDLE || p->psn.v != r->una.v || r->una.v == r->next.v || !r->rd_count ||
        r->reorder.count || qp->slots || rx->copy || p->payload_len != qp->mtu)
        return 0;
    w = oldest(qp);
    off = psn_dist(r->una, w->first);
    of_part = psn_dist(r->una, part->first);
    if (w->opcode != UROCE_WR_RDMA_READ || w->nsge != 1 || off + 1 >= w->npkts || of_part + 1 >= part->npkts)
        return 0;
    /* The last of the READ and that of the part are others. */
    max = (uint32_t)min_u64(max, min_u64(w->npkts - off, part->npkts - of_part) - 1);
    *ret_dst = mem_local(qp->pd, w->sge[0].lkey, w->sge[0].addr + (uint64_t)off * qp->mtu,
                         (uint64_t)max * qp->mtu, true);
    return *ret_dst ? max : 0;
}

uint32_t comp_run(struct qp *qp, uint64_t now, const struct qp_rx *rx, const uint8_t *const *payload, uint32_t n)
{
    struct requester *r = &qp->req;
    const struct sq_wqe *w;
    uint8_t *dst;

    n = comp_room(qp, rx, n, &dst);
    if (!n)
        return 0;
    qp_trace(qp, "comp", "MIDDLE");
    w = oldest(qp);
    mem_put_run(dst, w->len - req_bytes(qp, w, psn_dist(r->una, w->first)), payload, n, qp->mtu);
    r->bytes_out -= n * qp->mtu;
    budget_give(qp, n * qp->mtu);
    sack_advance(qp, r->una, n);
    r->una = psn_add(r->una, n);
    progress(qp, now);
    return n;
}

void comp_rx(struct qp *qp, uint64_t now, const struct qp_rx *rx)
{
    struct requester *r = &qp->req;

    if (likely(comp_run(qp, now, rx, &rx->pkt.payload, 1)))
        return;
    run(qp, now, rx, COMP_CHECK);
    if (unlikely(r->reorder.count) && !drain(qp, now) && r->reorder.count >= QP_REORDER_SLACK)
        run(qp, now, rx, COMP_MISSING);
}

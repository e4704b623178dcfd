/*
 * The requester: which packet goes next. In this order: a part of a READ whose responses were lost, what is sent again
 * (go-back-N: all from the oldest unacknowledged on; selective repeat: what is missing), what is new.
 *
 *     new:  PICK -> BEGIN -> (LOCAL -> PICK) -> LIMITS -> BUILD          a failure stops here, until all before is done
 */
#include "req.h"

/* Bytes of the first `off` packets of a message. */
uint32_t req_bytes(const struct qp *qp, const struct sq_wqe *w, uint32_t off)
{
    return (uint32_t)min_u64((uint64_t)off * qp->mtu, w->len);
}

static uint32_t outstanding(const struct requester *r)
{
    return psn_dist(r->next, r->una);
}

/* The timer runs from the first packet on; from the last one, where packets are spaced out. */
static void sent(struct qp *qp, uint64_t now)
{
    if (qp->req.timer == QP_NEVER || unlikely(qp->cc.rate || qp->attr.rate_limit))
        req_arm(qp, now);
}

void req_arm(struct qp *qp, uint64_t now)
{
    struct requester *r = &qp->req;
    uint64_t t = wire_timeout_ns(qp->attr.timeout);

    if (r->una.v == r->next.v || r->rnr_wait || !qp_reliable(qp) || t == QP_NEVER)
        r->timer = QP_NEVER;
    else
        r->timer = now + (t << (r->backoff < 2 ? r->backoff : 2)); /* T to 4 T: IBTA 9.7.6.1.3 */
    timer_update(qp);
}

static struct sq_wqe *req_find(struct qp *qp, psn24 psn, uint32_t *ret_index)
{
    struct requester *r = &qp->req;
    uint32_t i = r->wqe_una;
    const struct sq_wqe *hint = ring_at(&qp->sq, r->wqe_rtx);

    if (r->wqe_rtx - r->wqe_una < r->wqe_next - r->wqe_una && psn_le(hint->first, psn))
        i = r->wqe_rtx;
    for (; i - r->wqe_una <= r->wqe_next - r->wqe_una; i++) {
        struct sq_wqe *w = ring_at(&qp->sq, i);
        if (i == r->wqe_next && !r->off_next)
            return NULL;
        if (psn_within(psn, w->first, w->npkts)) {
            r->wqe_rtx = *ret_index = i;
            return w;
        }
    }
    return NULL;
}

/* The part of a READ (or the atomic) that a PSN belongs to. */
static const struct rd_part *part_of(const struct requester *r, psn24 psn)
{
    for (uint32_t i = 0; i < r->rd_count; i++) {
        const struct rd_part *p = &r->rd[(r->rd_head + i) % UROCE_RD_ATOMIC];
        if (psn_within(psn, p->first, p->npkts))
            return p;
    }
    return NULL;
}

/* ---- sending again ---- */

void req_go_back(struct qp *qp)
{
    struct requester *r = &qp->req;

    r->again_on = false;
    r->rtx = r->una;
    r->rtx_end = r->next;
    r->rtx_on = r->una.v != r->next.v;
    r->rtx_all = true;
    engine_kick(qp);
}

/* Nothing more can be sent and no answer has been asked for: the last packet is sent once more, to ask. */
static void probe(struct qp *qp)
{
    struct requester *r = &qp->req;

    if (!r->since_ack || r->una.v == r->next.v || !qp_reliable(qp))
        return;
    r->since_ack = 0;
    r->rtx = psn_prev(r->next);
    r->rtx_end = r->next;
    r->rtx_on = r->rtx_all = true;
}

static void fail(struct qp *qp, struct sq_wqe *w, enum uroce_wc_status status)
{
    w->status = (uint8_t)status;
    qp->req.stop = true;
    qp->req.rtx_on = qp->req.again_on = false;
    comp_settle(qp);
}

static int send_again(struct qp *qp, uint64_t now, struct sq_wqe *w, psn24 psn, uint32_t npkts, struct qp_tx *tx)
{
    if (req_build(qp, w, psn_dist(psn, w->first), npkts, tx)) {
        fail(qp, w, UROCE_WC_LOC_PROT_ERR);
        return 0;
    }
    tx->retransmit = true;
    sent(qp, now);
    return 1;
}

static int tx_again(struct qp *qp, uint64_t now, struct qp_tx *tx)
{
    struct requester *r = &qp->req;
    struct sq_wqe *w;
    uint32_t i;

    r->again_on = false;
    if (psn_lt(r->again, r->una))
        r->again = r->una;
    w = psn_lt(r->again, r->again_end) ? req_find(qp, r->again, &i) : NULL;
    return w ? send_again(qp, now, w, r->again, psn_dist(r->again_end, r->again), tx) : 0;
}

static int tx_rtx(struct qp *qp, uint64_t now, struct qp_tx *tx)
{
    struct requester *r = &qp->req;

    for (;;) {
        const struct rd_part *part = NULL;
        struct sq_wqe *w;
        uint32_t n = 1, i;
        psn24 psn;

        if (psn_lt(r->rtx, r->una))
            r->rtx = r->una;
        psn = r->rtx;
        w = psn_lt(psn, r->rtx_end) ? req_find(qp, psn, &i) : NULL;
        if (!w) {
            r->rtx_on = false;
            return 0;
        }
        if (is_read(w)) {
            part = part_of(r, psn);
            if (!part) {
                r->rtx_on = false;
                return 0;
            }
            n = part->npkts - psn_dist(psn, part->first);
        }
        r->rtx = psn_add(psn, n);
        if (qp->selective && (sack_test(qp, psn) || (part && !r->rtx_all && n != part->npkts)))
            continue; /* it arrived; or a READ that is being answered */
        if (!send_again(qp, now, w, psn, n, tx))
            return 0;
        tx->pkt.ackreq =
            !is_read(w) && !is_atomic(w) &&
            (psn_dist(psn, w->first) + 1 == w->npkts || !psn_lt(r->rtx, r->rtx_end) || psn.v % qp->ack_every == 0);
        if (tx->pkt.ackreq && r->rtx.v == r->next.v)
            r->since_ack = 0;
        return 1;
    }
}

/*
 * The first time-out sends the oldest packet alone: a peer that was only slow has all the others and says so, when it
 * comes to this one. False: what was sent before the last such try is still not acknowledged.
 */
static bool try_one(struct qp *qp)
{
    struct requester *r = &qp->req;
    const struct sq_wqe *w = ring_at(&qp->sq, r->wqe_una);

    if (!qp->selective || psn_lt(r->una, r->tried_end))
        return false;
    r->tried = r->una;
    r->tried_end = r->next;
    r->try_on = true;
    r->rtx_on = r->again_on = false;
    if (is_read(w) || is_atomic(w)) {
        req_ask_again(qp);
    } else {
        r->rtx = r->una;
        r->rtx_end = psn_next(r->una);
        r->rtx_on = r->rtx_all = true;
    }
    engine_kick(qp);
    return true;
}

/* The window moved. If by the packet of the try alone, all that was sent before is lost. */
void req_progress(struct qp *qp)
{
    struct requester *r = &qp->req;
    const struct sq_wqe *w = ring_at(&qp->sq, r->wqe_una);

    r->try_on = false;
    if (r->una.v == psn_next(r->tried).v && psn_lt(r->una, r->tried_end) && !is_read(w) && !is_atomic(w))
        req_go_back(qp);
}

/* The answer of the oldest READ or atomic, up to what of it came out of order. */
void req_ask_again(struct qp *qp)
{
    struct requester *r = &qp->req;
    const struct rd_part *p = &r->rd[r->rd_head];

    r->again = r->una;
    r->again_end = psn_add(p->first, p->npkts);
    for (psn24 e = psn_next(r->una); psn_lt(e, r->again_end); e = psn_next(e))
        if (reorder_has(&r->reorder, e))
            r->again_end = e;
    r->again_on = true;
    engine_kick(qp);
}

void req_timeout(struct qp *qp, uint64_t now)
{
    struct requester *r = &qp->req;

    COUNT(qp, timeouts);
    if (!r->retry_left) {
        comp_fail(qp, ring_at(&qp->sq, r->wqe_una), UROCE_WC_RETRY_EXC_ERR, 0);
        return;
    }
    budget_give(qp, r->charged);
    r->retry_left--;
    r->backoff++;
    r->guard_on = r->nak_on = false;
    sack_clear(qp);
    if (!try_one(qp))
        req_go_back(qp);
    req_arm(qp, now);
}

/* ---- what is new ---- */

/* The queue is empty: the next post asks for a doorbell, unless it came at this moment. */
static bool idle(struct qp *qp)
{
    atomic_store(&qp->sq_idle, true);
    if (atomic_load(&qp->sq.tail) == qp->req.wqe_next)
        return true;
    atomic_store_explicit(&qp->sq_idle, false, memory_order_relaxed);
    return false;
}

static enum uroce_wc_status check_memory(const struct qp *qp, const struct sq_wqe *w)
{
    if ((is_read(w) || is_atomic(w)) && !qp->attr.max_rd_atomic)
        return UROCE_WC_LOC_QP_OP_ERR;
    if (!(w->flags & UROCE_SEND_INLINE) && !sge_check(qp->pd, w->sge, w->nsge, is_read(w) || is_atomic(w)))
        return UROCE_WC_LOC_PROT_ERR;
    return UROCE_WC_SUCCESS;
}

/* A request's first look. False: it has to wait, or it failed. */
static bool begin(struct qp *qp, struct sq_wqe *w)
{
    struct requester *r = &qp->req;
    enum uroce_wc_status status = (enum uroce_wc_status)w->status;

    if (qp_state(qp) == UROCE_QPS_SQD || (w->flags & UROCE_SEND_FENCE && r->rd_count) || !qp_choose_path(qp))
        return false;
    if (is_local(w)) {
        if (w->opcode == UROCE_WR_LOCAL_INV && r->wqe_una != r->wqe_next)
            return false; /* what was posted before may still need the key, to be sent again */
        status = (enum uroce_wc_status)req_local(qp, w);
    } else if (!status) {
        status = check_memory(qp, w);
    }
    if (status) {
        fail(qp, w, status);
        return false;
    }
    w->begun = true;
    w->first = r->next;
    w->npkts = is_local(w) ? 0 : (is_atomic(w) || !w->len) ? 1 : (w->len - 1) / qp->mtu + 1;
    if (w->npkts)
        w->ssn = r->ssn++ & UROCE_PSN_MASK;
    return true;
}

/* Credits (IBTA 9.7.7.2.5): beyond the limit one request may send its first packet, which asks. */
static bool credits_allow(const struct qp *qp, const struct sq_wqe *w)
{
    const struct requester *r = &qp->req;
    int32_t over = psn_diff(psn_make(w->ssn), psn_make(r->lsn));

    if (!r->credits_known || !takes_receive(w) || over <= 0 || r->una.v == r->next.v)
        return true;
    return !r->off_next && over == 1;
}

/* How many PSNs of the request may be used now: packets, or those of a part of a READ. 0: wait. */
static uint32_t limits(struct qp *qp, uint64_t now, const struct sq_wqe *w)
{
    const struct requester *r = &qp->req;
    uint32_t used = outstanding(r), n = 1, bytes;

    if (is_read(w) || is_atomic(w)) {
        if (r->rd_count >= qp->attr.max_rd_atomic)
            return 0;
        if (is_read(w)) {
            uint32_t parts = qp->attr.max_rd_atomic < QP_READ_PARTS ? qp->attr.max_rd_atomic : QP_READ_PARTS;
            n = (uint32_t)min_u64(qp->window_pkts, qp->window_bytes / qp->mtu) / parts;
            n = (uint32_t)min_u64(n ? n : 1, w->npkts - r->off_next);
        }
    } else if (!credits_allow(qp, w)) {
        return 0;
    }
    bytes = req_bytes(qp, w, r->off_next + n) - req_bytes(qp, w, r->off_next);
    if (used && (used + n > qp->window_pkts || r->bytes_out + bytes > qp->window_bytes))
        return 0;
    return budget_allows(qp, now, bytes) ? n : 0;
}

/* Each packet of the request asks, since only an answer lets more requests be sent. */
static bool at_credit_limit(const struct qp *qp, const struct sq_wqe *w)
{
    const struct requester *r = &qp->req;

    return r->credits_known && takes_receive(w) && psn_diff(psn_make(w->ssn), psn_make(r->lsn)) >= 0;
}

/* Does this packet ask for an acknowledgement? Coalesced: not each one; but the last before a wait does. */
static bool ask(const struct qp *qp, const struct sq_wqe *w, uint32_t off)
{
    const struct requester *r = &qp->req;
    bool last = off + 1 == w->npkts;

    if (r->since_ack + 1 >= qp->ack_every)
        return true;
    if (last &&
        (w->flags & UROCE_SEND_SIGNALED || atomic_load_explicit(&qp->sq.tail, memory_order_relaxed) == r->wqe_next + 1))
        return true;
    if (outstanding(r) + 1 >= qp->window_pkts || r->bytes_out + 2 * qp->mtu > qp->window_bytes || budget_low(qp))
        return true;
    return at_credit_limit(qp, w);
}

static void account(struct qp *qp, const struct sq_wqe *w, uint32_t n)
{
    struct requester *r = &qp->req;

    uint32_t bytes = req_bytes(qp, w, r->off_next + n) - req_bytes(qp, w, r->off_next);

    if (qp_reliable(qp)) {
        r->bytes_out += bytes;
        budget_take(qp, bytes);
    }
    if (is_read(w) || is_atomic(w)) {
        r->rd[(r->rd_head + r->rd_count++) % UROCE_RD_ATOMIC] = (struct rd_part){r->next, n};
        r->since_ack = 0;
    }
    r->next = psn_add(r->next, n);
    r->off_next += n;
    if (r->off_next == w->npkts) {
        r->wqe_next++;
        r->off_next = 0;
    }
}

static int tx_build(struct qp *qp, uint64_t now, struct sq_wqe *w, uint32_t n, struct qp_tx *tx)
{
    struct requester *r = &qp->req;
    uint32_t off = r->off_next;
    bool data = !is_read(w) && !is_atomic(w);

    if (qp->type == UROCE_QPT_UD ? ud_build(qp, w, tx) : req_build(qp, w, off, n, tx)) {
        fail(qp, w, UROCE_WC_LOC_PROT_ERR);
        return 0;
    }
    if (qp_reliable(qp)) {
        if (data) {
            tx->pkt.ackreq = ask(qp, w, off);
            r->since_ack = tx->pkt.ackreq ? 0 : r->since_ack + 1;
        }
    }
    if (unlikely(qp->slots) && data)
        slot_tx(qp, tx, w, req_bytes(qp, w, off), !off, off + 1 == w->npkts);
    account(qp, w, n);
    if (qp_reliable(qp)) {
        sent(qp, now);
    } else {
        r->una = r->next;
        if (list_empty(&qp->settle))
            list_push_back(&qp->e->settle, &qp->settle);
    }
    return 1;
}

static int tx_new(struct qp *qp, uint64_t now, struct qp_tx *tx)
{
    struct requester *r = &qp->req;

    while (!r->stop) {
        struct sq_wqe *w;
        uint32_t n;

        if (atomic_load_explicit(&qp->sq.tail, memory_order_acquire) == r->wqe_next && idle(qp))
            break;
        w = ring_at(&qp->sq, r->wqe_next);
        if (!w->begun && !begin(qp, w))
            break;
        if (!w->npkts) {
            r->wqe_next++;
            comp_settle(qp);
            continue;
        }
        n = limits(qp, now, w);
        if (!n)
            break;
        return tx_build(qp, now, w, n, tx);
    }
    probe(qp);
    return 0;
}

uint32_t req_more(struct qp *qp, const struct qp_tx *tx, uint32_t max)
{
    struct requester *r = &qp->req;
    const struct sq_wqe *w = ring_at(&qp->sq, r->wqe_next);
    uint32_t used = outstanding(r), n, bytes;
    struct iovec iov[UROCE_SGE_MAX];

    if (!r->off_next || r->rtx_on || r->again_on || tx->retransmit || tx->pkt.psn.v != psn_prev(r->next).v ||
        tx->payload_len != qp->mtu || w->flags & UROCE_SEND_INLINE || at_credit_limit(qp, w))
        return 0;
    /* Up to what `ask` and `limits` would have a word on; the last packet is another kind. */
    n = (uint32_t)min_u64(max, w->npkts - r->off_next - 1);
    if (qp_reliable(qp)) {
        uint64_t room =
            qp->window_bytes > r->bytes_out + 2 * qp->mtu ? qp->window_bytes - r->bytes_out - 2 * qp->mtu : 0;
        n = (uint32_t)min_u64(n, used + 2 < qp->window_pkts ? qp->window_pkts - used - 2 : 0);
        n = (uint32_t)min_u64(n, r->since_ack + 1 < qp->ack_every ? qp->ack_every - r->since_ack - 1 : 0);
        n = (uint32_t)min_u64(n, min_u64(room, budget_room(qp)) / qp->mtu);
    }
    bytes = n * qp->mtu;
    if (!n || sge_iov(qp->pd, w->sge, w->nsge, req_bytes(qp, w, r->off_next), bytes, false, iov) < 0 ||
        iov[0].iov_base != (uint8_t *)tx->iov[0].iov_base + tx->payload_len || tx->niov != 1)
        return 0;
    if (iov[0].iov_len < bytes)
        n = (uint32_t)(iov[0].iov_len / qp->mtu);
    account(qp, w, n);
    if (qp_reliable(qp))
        r->since_ack += n;
    else
        r->una = r->next;
    return n;
}

uint32_t req_left(const struct qp *qp)
{
    const struct requester *r = &qp->req;
    const struct sq_wqe *w;

    if (!r->off_next || r->rtx_on || r->again_on)
        return 0;
    w = ring_at(&qp->sq, r->wqe_next);
    return is_read(w) ? 0 : w->npkts - r->off_next;
}

int req_tx(struct qp *qp, uint64_t now, struct qp_tx *tx)
{
    struct requester *r = &qp->req;
    int state = qp_state(qp);

    if (!qp->sq.mem || (state != UROCE_QPS_RTS && state != UROCE_QPS_SQD) || r->rnr_wait)
        return 0;
    if (unlikely(r->again_on) && tx_again(qp, now, tx))
        return 1;
    if (unlikely(r->rtx_on) && tx_rtx(qp, now, tx))
        return 1;
    if (tx_new(qp, now, tx))
        return 1;
    return r->rtx_on && qp_state(qp) != UROCE_QPS_ERR ? tx_rtx(qp, now, tx) : 0; /* a probe */
}

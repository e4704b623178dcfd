/* The responder: what goes back. READ responses and atomics in the order of their PSNs, then a NAK or ACK. */
#include "impl.h"

/* An error of this side still answers what was asked before it; another end of the queue pair does not. */
void resp_cancel(struct qp *qp)
{
    struct responder *r = &qp->resp;

    r->in_msg = false;
    r->ack_due = false;
    if (r->last_words)
        return;
    r->nak_due = false;
    r->res_count = r->res_pending = 0;
}

static uint8_t credit_syndrome(const struct qp *qp)
{
    uint32_t n;

    if (qp->srq || qp->xrcd || !qp->rq.mem)
        return wire_syndrome_ack(WIRE_CREDITS_NONE);
    n = atomic_load_explicit(&qp->rq.tail, memory_order_relaxed) -
        atomic_load_explicit(&qp->rq.done, memory_order_relaxed) + qp->resp.recv.valid;
    return wire_syndrome_ack(wire_credit_code(n));
}

static void head(const struct qp *qp, struct qp_tx *tx, uint8_t rc_opcode, psn24 psn, uint8_t syndrome, uint32_t msn)
{
    tx->pkt = (struct wire_pkt){.opcode = (uint8_t)(qp->type == UROCE_QPT_RC ? rc_opcode : rc_opcode + 0xa0),
                                .migreq = true,
                                .pkey = WIRE_PKEY_DEFAULT,
                                .dest_qp = qp->dest,
                                .psn = psn,
                                .syndrome = syndrome,
                                .msn = msn,
                                .far = qp->has_peer_path};
    tx->path = qp_out_path(qp);
    tx->niov = 0;
    tx->payload_len = 0;
}

static void done(struct responder *r, struct resp_res *res)
{
    res->pending = false;
    r->res_pending--;
}

/* 1, or 0: the memory is not the peer's to read any more. */
static int tx_read(struct qp *qp, struct resp_res *res, struct qp_tx *tx)
{
    uint32_t i = res->pos, at = (uint32_t)min_u64((uint64_t)i * res->mtu, res->len);
    uint32_t len = (uint32_t)min_u64(res->mtu, res->len - at);
    bool first = i == res->from, last = i + 1 == res->end;
    uint8_t *src = mem_remote(qp, res->pd, res->rkey, res->va + at, len, UROCE_ACCESS_REMOTE_READ);

    if (!src)
        return 0;
    head(qp, tx,
         first ? (last ? WIRE_RC_READ_RESP_ONLY : WIRE_RC_READ_RESP_FIRST)
               : (last ? WIRE_RC_READ_RESP_LAST : WIRE_RC_READ_RESP_MIDDLE),
         psn_add(res->first, i), credit_syndrome(qp), res->msn);
    if (res->far) {
        tx->pkt.far = true;
        tx->path = &qp->peer_path;
    }
    tx->iov[0] = (struct iovec){src, len};
    tx->niov = len > 0;
    tx->payload_len = tx->pkt.payload_len = len;
    tx->retransmit = i < res->sent;
    if (!tx->retransmit) {
        res->sent = i + 1;
        if (unlikely(qp->slots))
            slot_tx(qp, tx, NULL, at, !i, i + 1 == res->npkts);
    }
    if (++res->pos == res->end)
        done(&qp->resp, res);
    return 1;
}

static void access_lost(struct qp *qp, const struct resp_res *res)
{
    struct responder *r = &qp->resp;

    COUNT(qp, nak_other_tx);
    r->nak_due = r->last_words = true;
    r->nak = wire_syndrome_nak(WIRE_NAK_ACCESS);
    r->nak_psn = psn_add(res->first, res->pos);
    r->res_count = r->res_pending = 0;
    engine_event(qp->e, UROCE_EVENT_QP_ACCESS_ERR, qp->user);
    qp_to_error(qp);
}

/* The place in res of what is answered next; -1: nothing. */
static int next_pending(const struct responder *r)
{
    for (uint32_t i = 0; r->res_pending && i < r->res_count; i++) {
        uint32_t at = (r->res_head + i) % UROCE_RD_ATOMIC;
        if (r->res[at].pending)
            return (int)at;
    }
    return -1;
}

static int tx_resource(struct qp *qp, struct qp_tx *tx)
{
    struct responder *r = &qp->resp;
    struct resp_res *res;
    int at = next_pending(r);

    if (at < 0)
        return 0;
    res = &r->res[at];
    if (res->atomic) {
        head(qp, tx, WIRE_RC_ATOMIC_ACK, res->first, credit_syndrome(qp), res->msn);
        tx->pkt.orig = res->orig;
        tx->retransmit = res->again;
        done(r, res);
        return 1;
    }
    if (tx_read(qp, res, tx))
        return 1;
    access_lost(qp, res);
    return 0;
}

uint32_t resp_more(struct qp *qp, const struct qp_tx *tx, uint32_t max)
{
    int at = next_pending(&qp->resp);
    struct resp_res *res = at < 0 ? NULL : &qp->resp.res[at];
    uint32_t n;

    if (!res || res->atomic || res->pos == res->from || tx->retransmit || res->sent != res->pos ||
        tx->pkt.psn.v != psn_add(res->first, res->pos - 1).v || tx->payload_len != res->mtu)
        return 0;
    n = (uint32_t)min_u64(max, res->end - res->pos - 1); /* the last is another kind */
    if (!n || (uint8_t *)tx->iov[0].iov_base + res->mtu != mem_remote(qp, res->pd, res->rkey,
                                                                      res->va + (uint64_t)res->pos * res->mtu,
                                                                      (uint64_t)n * res->mtu, UROCE_ACCESS_REMOTE_READ))
        return 0;
    res->sent = res->pos += n;
    return n;
}

uint32_t resp_left(const struct qp *qp)
{
    int at = next_pending(&qp->resp);
    const struct resp_res *res = at < 0 ? NULL : &qp->resp.res[at];

    return res && !res->atomic && res->pos > res->from ? res->end - res->pos : 0;
}

int resp_tx(struct qp *qp, uint64_t now, struct qp_tx *tx)
{
    struct responder *r = &qp->resp;
    int state = qp_state(qp);

    (void)now;
    if (state < UROCE_QPS_RTR || (state == UROCE_QPS_ERR && !r->last_words))
        return 0;
    if (tx_resource(qp, tx))
        return 1;
    if (r->nak_due) {
        head(qp, tx, WIRE_RC_ACK, r->nak_psn, r->nak, r->msn);
        if (r->nak == wire_syndrome_nak(WIRE_NAK_SEQ))
            COUNT(qp, nak_seq_tx);
        r->nak_due = r->ack_due = r->last_words = false;
        return 1;
    }
    if (!r->ack_due)
        return 0;
    if (unlikely(qp->e->puts_off) && !r->reorder.count && !r->sack_dup) {
        if (list_empty(&qp->put_off))
            list_push_back(&qp->e->put_off, &qp->put_off);
        return 0;
    }
    r->ack_due = false;
    if (qp->selective) {
        head(qp, tx, WIRE_RC_ACK, psn_prev(r->next), credit_syndrome(qp), r->msn);
        if (r->reorder.count || r->sack_dup)
            sack_build(qp, tx);
    } else {
        /* Soft-RoCE takes an ACK with an atomic's own PSN for its answer, whose value may have been lost before. */
        head(qp, tx, WIRE_RC_ACK, r->ack_psn, credit_syndrome(qp), r->ack_msn);
    }
    r->sack_dup = false;
    return 1;
}

/* The responder: what a request does to memory, receives and completions; duplicates. */
#include "resp.h"

struct qp_cq *recv_cq(struct qp *qp)
{
    return qp->type == UROCE_QPT_XRC_RECV ? qp->resp.srq->cq : qp->recv_cq;
}

bool recv_take(struct qp *qp, struct qp_srq *srq)
{
    if (qp->resp.recv.valid)
        return true;
    return srq ? srq_take(srq, &qp->resp.recv) : rq_take(&qp->rq, &qp->resp.recv);
}

void recv_complete(struct qp *qp, enum uroce_wc_status status, const struct wire_pkt *last, uint32_t len)
{
    struct responder *r = &qp->resp;
    const struct wire_op *op = wire_op(last->opcode);
    struct uroce_wc wc = {.wr_id = r->recv.wr_id,
                          .status = status,
                          .opcode = op->verb == WIRE_VERB_WRITE ? UROCE_WC_RECV_RDMA_WITH_IMM : UROCE_WC_RECV,
                          .byte_len = len,
                          .qp_num = qp->num};

    r->recv.valid = false;
    if (op->imm) {
        wc.imm_data = __builtin_bswap32(last->imm);
        wc.wc_flags |= UROCE_WC_WITH_IMM;
    } else if (op->ieth) {
        wc.invalidated_rkey = last->inv_rkey;
        wc.wc_flags |= UROCE_WC_WITH_INV;
    }
    if (r->has_value) {
        wc.slot_value = r->value;
        wc.wc_flags |= UROCE_WC_SLOT_VALUE;
    }
    if (qp->type == UROCE_QPT_XRC_RECV)
        wc.src_qp = r->srq->num;
    cq_push(recv_cq(qp), &wc, last->solicited);
}

enum resp_state resp_check_receive(struct step *s)
{
    struct qp *qp = s->qp;
    struct recv_cur *c = &qp->resp.recv;
    bool write = s->op->verb == WIRE_VERB_WRITE;

    if (!s->op->first && !write) /* the message has its receive */
        return s->p->payload_len > c->len - c->done ? RESP_ERR_TOO_LONG : RESP_CHECK_SLOT;
    if (!recv_take(qp, qp->resp.srq))
        return RESP_RNR;
    c->begun = true;
    c->done = 0;
    if (write)
        return RESP_CHECK_KEY;
    /* Its memory is looked at as far as bytes come for it: of an empty message none, whatever key the receive has. */
    return s->p->payload_len > c->len ? RESP_ERR_TOO_LONG : RESP_CHECK_SLOT;
}

/* Room to remember a READ or atomic: the oldest, which the peer has seen answered, is forgotten. */
static bool res_room(struct qp *qp)
{
    struct responder *r = &qp->resp;
    struct resp_res *oldest = &r->res[r->res_head];

    if (r->res_count < qp->attr.max_dest_rd_atomic)
        return true;
    if (oldest->pending && !oldest->again)
        return false;
    if (oldest->pending)
        r->res_pending--;
    r->res_head = (uint8_t)((r->res_head + 1) % UROCE_RD_ATOMIC);
    r->res_count--;
    return true;
}

enum resp_state resp_check_key(struct step *s)
{
    struct qp *qp = s->qp;
    const struct wire_pkt *p = s->p;
    unsigned int access = UROCE_ACCESS_REMOTE_ATOMIC;
    uint64_t len = 8;

    if (s->op->verb == WIRE_VERB_WRITE) {
        if (!s->op->first)
            return RESP_CHECK_SLOT; /* each piece again, when it is written */
        access = UROCE_ACCESS_REMOTE_WRITE;
        len = p->dma_len;
    } else if (s->op->verb == WIRE_VERB_READ) {
        access = UROCE_ACCESS_REMOTE_READ;
        len = p->dma_len;
    }
    if (!mem_remote(qp, qp->resp.pd, p->rkey, p->va, len, access))
        return RESP_ERR_KEY;
    if (s->op->verb == WIRE_VERB_WRITE)
        return RESP_CHECK_SLOT;
    return res_room(qp) ? RESP_EXECUTE : RESP_ERR_RESOURCES;
}

enum resp_state resp_check_slot(struct step *s)
{
    struct responder *r = &s->qp->resp;

    if (likely(!s->qp->slots))
        return RESP_EXECUTE;
    switch (slot_rx(s->qp, &s->rx, &s->bounced, false, s->op->first ? 0 : r->offset, s->op->first, s->op->last)) {
    case QP_DROP:
        return RESP_LOST;
    case QP_REFUSE:
        return RESP_ERR_SLOT;
    case QP_ACCEPT:
        break;
    }
    return RESP_EXECUTE;
}

static void res_add(struct step *s, bool atomic, uint32_t npkts)
{
    struct qp *qp = s->qp;
    struct responder *r = &qp->resp;

    r->res[(r->res_head + r->res_count++) % UROCE_RD_ATOMIC] = (struct resp_res){.atomic = atomic,
                                                                                 .pending = true,
                                                                                 .first = s->p->psn,
                                                                                 .npkts = npkts,
                                                                                 .end = npkts,
                                                                                 .len = s->p->dma_len,
                                                                                 .mtu = r->mtu,
                                                                                 .far = s->p->far,
                                                                                 .rkey = s->p->rkey,
                                                                                 .msn = (r->msn + 1) & UROCE_PSN_MASK,
                                                                                 .va = s->p->va,
                                                                                 .orig = s->orig,
                                                                                 .pd = r->pd};
    r->res_pending++;
    s->npsn = npkts;
}

static void atomic_do(struct step *s)
{
    const struct wire_pkt *p = s->p;
    uint64_t *m = (uint64_t *)(void *)mem_remote(s->qp, s->qp->resp.pd, p->rkey, p->va, 8, UROCE_ACCESS_REMOTE_ATOMIC);

    if ((uintptr_t)m & 7) { /* the region's own bytes do not lie as its addresses say: not one access for the machine */
        uint64_t old, new;
        memcpy(&old, m, 8);
        new = s->op->verb == WIRE_VERB_FETCH_ADD ? old + p->swap_add : old == p->compare ? p->swap_add : old;
        memcpy(m, &new, 8);
        s->orig = old;
    } else if (s->op->verb == WIRE_VERB_FETCH_ADD) {
        s->orig = __atomic_fetch_add(m, p->swap_add, __ATOMIC_SEQ_CST);
    } else {
        s->orig = p->compare;
        (void)__atomic_compare_exchange_n(m, &s->orig, p->swap_add, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
}

static enum resp_state write_piece(struct step *s)
{
    struct responder *r = &s->qp->resp;
    const struct wire_pkt *p = s->p;
    uint8_t *dst;

    if (s->op->first) {
        r->va = p->va;
        r->rkey = p->rkey;
        r->left = r->dma_len = p->dma_len;
        r->offset = 0;
    }
    dst = mem_remote(s->qp, r->pd, r->rkey, r->va + r->offset, p->payload_len, UROCE_ACCESS_REMOTE_WRITE);
    if (!dst)
        return RESP_ERR_KEY;
    if (rx_copy(s->rx, dst, 0, p->payload_len))
        return RESP_LOST;
    r->left -= p->payload_len;
    r->offset += p->payload_len;
    return RESP_COMPLETE;
}

static enum resp_state send_piece(struct step *s)
{
    struct responder *r = &s->qp->resp;
    int e = rx_scatter(r->pd, r->recv.sge, r->recv.nsge, r->recv.done, s->rx);

    if (e)
        return e == -EFAULT ? RESP_ERR_LOCAL : RESP_LOST;
    r->recv.done += s->p->payload_len;
    r->offset = r->recv.done;
    return RESP_COMPLETE;
}

enum resp_state resp_execute(struct step *s)
{
    switch (s->op->verb) {
    case WIRE_VERB_SEND:
        return send_piece(s);
    case WIRE_VERB_WRITE:
        return write_piece(s);
    case WIRE_VERB_READ:
        res_add(s, false, resp_read_pkts(s->qp->resp.mtu, s->p->dma_len));
        return RESP_COMPLETE;
    default:
        atomic_do(s);
        res_add(s, true, 1);
        return RESP_COMPLETE;
    }
}

enum resp_state resp_complete(struct step *s)
{
    struct responder *r = &s->qp->resp;
    bool write = s->op->verb == WIRE_VERB_WRITE, send = s->op->verb == WIRE_VERB_SEND;

    if (!s->op->last) {
        r->in_msg = true;
        r->write = write;
        return RESP_ACKNOWLEDGE;
    }
    r->in_msg = false;
    if (s->op->ieth && mem_invalidate(s->qp, r->pd, s->p->inv_rkey, true))
        return RESP_ERR_INVALIDATE;
    r->msn = (r->msn + 1) & UROCE_PSN_MASK;
    if (send)
        recv_complete(s->qp, UROCE_WC_SUCCESS, s->p, r->recv.done);
    else if (write && s->op->imm)
        recv_complete(s->qp, UROCE_WC_SUCCESS, s->p, r->dma_len);
    r->has_value = false;
    return RESP_ACKNOWLEDGE;
}

/* ---- duplicates (IBTA 9.7.1.1) ---- */

/* The READ again, from memory; it may begin later and end earlier than the first time. */
static void read_again(struct qp *qp, struct resp_res *res, const struct wire_pkt *p)
{
    uint32_t from = psn_dist(p->psn, res->first), end = from + resp_read_pkts(res->mtu, p->dma_len);
    uint64_t at = (uint64_t)from * res->mtu;

    if (res->atomic || p->rkey != res->rkey || p->va != res->va + at || at > res->len || p->dma_len > res->len - at ||
        end > res->npkts)
        return;
    if (!res->pending) {
        qp->resp.res_pending++;
        res->pending = res->again = true;
        res->from = res->pos = from;
        res->end = end;
    } else if (from < res->pos) { /* it is being answered, and the peer misses what was sent */
        res->again = true;
        res->from = res->pos = from;
        if (end > res->end)
            res->end = end;
    }
    engine_kick(qp);
}

enum resp_state resp_duplicate(struct step *s)
{
    struct qp *qp = s->qp;
    struct responder *r = &qp->resp;

    COUNT(qp, duplicates);
    if (s->op->verb == WIRE_VERB_SEND || s->op->verb == WIRE_VERB_WRITE) {
        r->ack_due = r->sack_dup = true;
        r->trigger = s->p->psn;
        engine_kick(qp);
        return RESP_DONE;
    }
    for (uint32_t i = 0; i < r->res_count; i++) {
        struct resp_res *res = &r->res[(r->res_head + i) % UROCE_RD_ATOMIC];
        if (!psn_within(s->p->psn, res->first, res->npkts))
            continue;
        if (s->op->verb == WIRE_VERB_READ) {
            read_again(qp, res, s->p);
        } else if (res->atomic && res->rkey == s->p->rkey && res->va == s->p->va && !res->pending) {
            res->pending = res->again = true;
            r->res_pending++;
            engine_kick(qp);
        }
    }
    return RESP_DONE;
}

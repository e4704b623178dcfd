/*
 * UC: no acknowledgements. A message with a packet missing is dropped whole (IBTA 9.8.2.2.3): its receive, if it has
 * one, is used by the next. What a bad packet would be NAKed for on RC is dropped here.
 */
#include "impl.h"

static void drop_message(struct qp *qp)
{
    qp->resp.in_msg = false;
    qp->resp.recv.begun = false;
    qp->resp.has_value = false;
}

static void local_error(struct qp *qp, enum uroce_wc_status status, const struct wire_pkt *p)
{
    recv_complete(qp, status, p, 0);
    qp_to_error(qp);
}

/* The PSN and the place in the message. False: dropped. */
static bool in_order(struct qp *qp, const struct wire_op *op, const struct wire_pkt *p)
{
    struct responder *r = &qp->resp;
    bool gap = p->psn.v != r->next.v;

    if (gap)
        COUNT(qp, out_of_order);
    if (gap || op->first || !r->in_msg || (op->verb == WIRE_VERB_WRITE) != r->write)
        drop_message(qp);
    if (!op->first && !r->in_msg)
        return false;
    r->next = psn_next(p->psn);
    return true;
}

static bool length_ok(const struct qp *qp, const struct wire_op *op, const struct wire_pkt *p)
{
    uint32_t len = p->payload_len, left = op->first ? p->dma_len : qp->resp.left;

    if (op->last ? len > qp->mtu || (!len && !op->first) : len != qp->mtu)
        return false;
    return op->verb != WIRE_VERB_WRITE || (left <= UROCE_MSG_MAX && (op->last ? left == len : left > len));
}

/* The receive that this packet needs; false: none. */
static bool receive_for(struct qp *qp, const struct wire_op *op)
{
    struct recv_cur *c = &qp->resp.recv;
    bool send = op->verb == WIRE_VERB_SEND;

    if (send ? !op->first : !(op->last && op->imm))
        return true;
    if (!recv_take(qp, qp->srq))
        return false;
    c->begun = true;
    c->done = 0;
    return true;
}

/* 0, -EFAULT: this side's memory, -EIO: dropped. */
static int place_send(struct qp *qp, const struct qp_rx *rx)
{
    struct recv_cur *c = &qp->resp.recv;
    int r;

    if (rx->pkt.payload_len > c->len - c->done)
        return -EMSGSIZE;
    r = rx_scatter(qp->pd, c->sge, c->nsge, c->done, rx);
    if (!r)
        c->done += rx->pkt.payload_len;
    return r;
}

static int place_write(struct qp *qp, const struct wire_op *op, const struct qp_rx *rx)
{
    struct responder *r = &qp->resp;
    const struct wire_pkt *p = &rx->pkt;
    uint8_t *dst;

    if (!(qp->attr.qp_access_flags & UROCE_ACCESS_REMOTE_WRITE))
        return -EIO;
    if (op->first) {
        if (!mem_remote(qp, qp->pd, p->rkey, p->va, p->dma_len, UROCE_ACCESS_REMOTE_WRITE))
            return -EIO;
        r->va = p->va;
        r->rkey = p->rkey;
        r->left = r->dma_len = p->dma_len;
        r->offset = 0;
    }
    dst = mem_remote(qp, qp->pd, r->rkey, r->va + r->offset, p->payload_len, UROCE_ACCESS_REMOTE_WRITE);
    if (!dst || rx_copy(rx, dst, 0, p->payload_len))
        return -EIO;
    r->left -= p->payload_len;
    r->offset += p->payload_len;
    return 0;
}

static void finish(struct qp *qp, const struct wire_op *op, const struct wire_pkt *p)
{
    struct responder *r = &qp->resp;

    r->in_msg = !op->last;
    r->write = op->verb == WIRE_VERB_WRITE;
    if (!op->last)
        return;
    if (!r->write)
        recv_complete(qp, UROCE_WC_SUCCESS, p, r->recv.done);
    else if (op->imm)
        recv_complete(qp, UROCE_WC_SUCCESS, p, r->dma_len);
    r->has_value = false;
}

void uc_rx(struct qp *qp, const struct qp_rx *rx)
{
    const struct wire_pkt *p = &rx->pkt;
    const struct wire_op *op = wire_op(p->opcode);
    struct qp_rx tmp;
    int r;

    if (!in_order(qp, op, p))
        return;
    if (!length_ok(qp, op, p)) {
        COUNT(qp, drop_length);
        drop_message(qp);
        return;
    }
    if (!receive_for(qp, op)) {
        COUNT(qp, drop_no_receive);
        drop_message(qp);
        return;
    }
    if (unlikely(qp->slots) &&
        slot_rx(qp, &rx, &tmp, false, op->first ? 0 : qp->resp.offset, op->first, op->last) != QP_ACCEPT) {
        drop_message(qp);
        return;
    }
    r = op->verb == WIRE_VERB_SEND ? place_send(qp, rx) : place_write(qp, op, rx);
    if (r == -EMSGSIZE) {
        local_error(qp, UROCE_WC_LOC_LEN_ERR, p);
    } else if (r == -EFAULT) {
        local_error(qp, UROCE_WC_LOC_PROT_ERR, p);
    } else if (r) {
        COUNT(qp, drop_other);
        drop_message(qp);
    } else {
        qp->resp.offset = op->verb == WIRE_VERB_SEND ? qp->resp.recv.done : qp->resp.offset;
        finish(qp, op, &rx->pkt);
    }
}

/* The requester: a packet of a request. */
#include "req.h"

/* FIRST, MIDDLE, LAST, ONLY; then the forms of LAST and ONLY that carry more. */
struct op_set {
    uint8_t first, middle, last, only, last_more, only_more;
};

static const struct op_set *op_set(uint8_t opcode)
{
    static const struct op_set send = {0x00, 0x01, 0x02, 0x04, 0x03, 0x05},
                               send_inv = {0x00, 0x01, 0x02, 0x04, 0x16, 0x17},
                               write = {0x06, 0x07, 0x08, 0x0a, 0x09, 0x0b};

    if (opcode == UROCE_WR_RDMA_WRITE || opcode == UROCE_WR_RDMA_WRITE_WITH_IMM)
        return &write;
    return opcode == UROCE_WR_SEND_WITH_INV ? &send_inv : &send;
}

static uint8_t op_base(const struct qp *qp)
{
    return qp->type == UROCE_QPT_RC ? 0x00 : qp->type == UROCE_QPT_UC ? 0x20 : 0xa0;
}

static void build_data_op(const struct qp *qp, const struct sq_wqe *w, uint32_t off, struct wire_pkt *p)
{
    const struct op_set *o = op_set(w->opcode);
    bool first = !off, last = off + 1 == w->npkts;
    bool imm = w->opcode == UROCE_WR_SEND_WITH_IMM || w->opcode == UROCE_WR_RDMA_WRITE_WITH_IMM;
    bool inv = w->opcode == UROCE_WR_SEND_WITH_INV;
    uint8_t op;

    if (!last)
        op = first ? o->first : o->middle;
    else if (imm || inv)
        op = first ? o->only_more : o->last_more;
    else
        op = first ? o->only : o->last;
    p->opcode = op_base(qp) + op;
    if (last) {
        p->solicited = w->flags & UROCE_SEND_SOLICITED && takes_receive(w);
        if (imm)
            p->imm = __builtin_bswap32(w->imm);
        if (inv)
            p->inv_rkey = w->imm;
    }
    if (first) {
        p->va = w->rdma.va;
        p->rkey = w->rdma.rkey;
        p->dma_len = w->len;
    }
}

static void build_read(const struct qp *qp, const struct sq_wqe *w, uint32_t off, uint32_t npkts, struct wire_pkt *p)
{
    p->opcode = op_base(qp) + WIRE_RC_READ_REQUEST;
    p->va = w->rdma.va + req_bytes(qp, w, off);
    p->rkey = w->rdma.rkey;
    p->dma_len = req_bytes(qp, w, off + npkts) - req_bytes(qp, w, off);
}

static void build_atomic(const struct qp *qp, const struct sq_wqe *w, struct wire_pkt *p)
{
    bool cas = w->opcode == UROCE_WR_ATOMIC_CMP_AND_SWP;

    p->opcode = (uint8_t)(op_base(qp) + (cas ? WIRE_RC_CMP_SWAP : WIRE_RC_FETCH_ADD));
    p->va = w->rdma.va;
    p->rkey = w->rdma.rkey;
    p->swap_add = cas ? w->rdma.swap : w->rdma.compare_add;
    p->compare = cas ? w->rdma.compare_add : 0;
}

int req_build(struct qp *qp, struct sq_wqe *w, uint32_t off, uint32_t npkts, struct qp_tx *tx)
{
    struct wire_pkt *p = &tx->pkt;
    uint32_t at, len;

    *p = (struct wire_pkt){.migreq = true,
                           .pkey = WIRE_PKEY_DEFAULT,
                           .dest_qp = qp->dest,
                           .psn = psn_add(w->first, off),
                           .srqn = w->srqn,
                           .far = qp->far_on};
    tx->path = qp->far_on ? &qp->peer_path : &qp->path;
    tx->niov = 0;
    tx->payload_len = 0;
    if (is_read(w)) {
        build_read(qp, w, off, npkts, p);
        return 0;
    }
    if (is_atomic(w)) {
        build_atomic(qp, w, p);
        return 0;
    }
    build_data_op(qp, w, off, p);
    at = req_bytes(qp, w, off);
    len = req_bytes(qp, w, off + 1) - at;
    if (w->flags & UROCE_SEND_INLINE) {
        tx->iov[0] = (struct iovec){(uint8_t *)w->sge + at, len};
        tx->niov = len > 0;
    } else {
        tx->niov = sge_iov(qp->pd, w->sge, w->nsge, at, len, false, tx->iov);
        if (tx->niov < 0)
            return tx->niov;
    }
    p->payload_len = tx->payload_len = len;
    return 0;
}

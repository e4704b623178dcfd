/* Posting: may run beside the engine. What can be told at once is checked here (IBTA 11.4.1.1), the rest when sent. */
#include "impl.h"

#define OP(x) (1u << UROCE_WR_##x)
#define OPS_SEND_WRITE                                                                                                 \
    (OP(SEND) | OP(SEND_WITH_IMM) | OP(RDMA_WRITE) | OP(RDMA_WRITE_WITH_IMM) | OP(LOCAL_INV) | OP(BIND_MW))
#define OPS_RC     (OPS_SEND_WRITE | OP(SEND_WITH_INV) | OP(RDMA_READ) | OPS_ATOMIC)
#define OPS_INLINE (OP(SEND) | OP(SEND_WITH_IMM) | OP(SEND_WITH_INV) | OP(RDMA_WRITE) | OP(RDMA_WRITE_WITH_IMM))
#define OPS_ATOMIC (OP(ATOMIC_CMP_AND_SWP) | OP(ATOMIC_FETCH_AND_ADD))

static unsigned int allowed(const struct qp *qp)
{
    switch (qp->type) {
    case UROCE_QPT_RC:
    case UROCE_QPT_XRC_SEND:
        return OPS_RC;
    case UROCE_QPT_UC:
        return OPS_SEND_WRITE;
    case UROCE_QPT_UD:
        return OP(SEND) | OP(SEND_WITH_IMM);
    }
    return 0;
}

static int check_send(const struct qp *qp, const struct uroce_send_wr *wr, uint64_t *ret_len)
{
    bool is_inline = wr->send_flags & UROCE_SEND_INLINE;
    uint64_t len = 0;

    if ((unsigned int)wr->opcode > 31 || !(allowed(qp) & 1u << wr->opcode) || wr->num_sge < 0 ||
        (uint32_t)wr->num_sge > (is_inline ? UROCE_SGE_MAX : qp->sq.max_sge))
        return -EINVAL;
    for (int i = 0; i < wr->num_sge; i++)
        len += wr->sg_list[i].length;
    if (is_inline && (!(OPS_INLINE & 1u << wr->opcode) || len > qp->cap.max_inline_data))
        return -EINVAL;
    if (OPS_ATOMIC & 1u << wr->opcode && (wr->num_sge != 1 || len != 8))
        return -EINVAL;
    if (qp->type == UROCE_QPT_UD &&
        (!wr->wr.ud.ah || wr->wr.ud.ah->pd != qp->pd || wr->wr.ud.remote_qpn > UROCE_QPN_MAX))
        return -EINVAL;
    if (wr->opcode == UROCE_WR_BIND_MW &&
        (!wr->bind_mw.mw || (wr->bind_mw.bind.length && !wr->bind_mw.bind.mr)))
        return -EINVAL;
    *ret_len = len;
    return 0;
}

static void fill_op(const struct qp *qp, struct sq_wqe *w, const struct uroce_send_wr *wr)
{
    switch (wr->opcode) {
    case UROCE_WR_BIND_MW:
        w->bind.addr = wr->bind_mw.bind.addr;
        w->bind.len = wr->bind_mw.bind.length;
        w->bind.access = wr->bind_mw.bind.access;
        w->bind.mw_rkey = qp_mw_rkey(wr->bind_mw.mw->qp);
        w->bind.new_rkey = wr->bind_mw.rkey;
        w->bind.mr_lkey = wr->bind_mw.bind.mr ? wr->bind_mw.bind.mr->qp->k.key : 0;
        break;
    case UROCE_WR_ATOMIC_CMP_AND_SWP:
    case UROCE_WR_ATOMIC_FETCH_AND_ADD:
        w->rdma.va = wr->wr.atomic.remote_addr;
        w->rdma.compare_add = wr->wr.atomic.compare_add;
        w->rdma.swap = wr->wr.atomic.swap;
        w->rdma.rkey = wr->wr.atomic.rkey;
        break;
    default:
        if (qp->type == UROCE_QPT_UD) {
            uint32_t qkey = wr->wr.ud.remote_qkey;
            w->ud.path = wr->wr.ud.ah->path;
            w->ud.qpn = wr->wr.ud.remote_qpn;
            w->ud.qkey = qkey & 0x80000000u ? qp->attr.qkey : qkey;
        } else {
            w->rdma.va = wr->wr.rdma.remote_addr;
            w->rdma.rkey = wr->wr.rdma.rkey;
        }
    }
}

static void copy_inline(struct sq_wqe *w, const struct uroce_send_wr *wr)
{
    uint8_t *p = (uint8_t *)w->sge;

    for (int i = 0; i < wr->num_sge; i++) {
        if (wr->sg_list[i].length)
            memcpy(p, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
        p += wr->sg_list[i].length;
    }
}

static int post_one(struct qp *qp, const struct uroce_send_wr *wr)
{
    uint32_t tail = atomic_load_explicit(&qp->sq.tail, memory_order_relaxed);
    uint64_t len;
    struct sq_wqe *w;
    int r = check_send(qp, wr, &len);

    if (r)
        return r;
    if (tail - atomic_load_explicit(&qp->sq.done, memory_order_acquire) > qp->sq.mask)
        return -ENOMEM;
    w = ring_at(&qp->sq, tail);
    w->wr_id = wr->wr_id;
    w->status = UROCE_WC_SUCCESS;
    w->begun = w->has_value = false;
    w->npkts = 0;
    if (len > UROCE_MSG_MAX || (qp->type == UROCE_QPT_UD && len > qp->e->cfg.ud_mtu_bytes)) {
        w->status = UROCE_WC_LOC_LEN_ERR;
        len = 0;
    }
    w->len = (uint32_t)len;
    w->imm = wr->imm_data;
    w->srqn = wr->xrc_remote_srqn & WIRE_QPN_MASK;
    w->opcode = (uint8_t)wr->opcode;
    w->flags = (uint8_t)(wr->send_flags | (qp->sig_all ? (unsigned int)UROCE_SEND_SIGNALED : 0));
    w->nsge = (uint8_t)wr->num_sge;
    fill_op(qp, w, wr);
    if (w->status != UROCE_WC_SUCCESS)
        w->nsge = 0;
    else if (w->flags & UROCE_SEND_INLINE)
        copy_inline(w, wr);
    else if (w->nsge)
        memcpy(w->sge, wr->sg_list, w->nsge * sizeof *w->sge);
    atomic_store(&qp->sq.tail, tail + 1);
    return 0;
}

/*
 * After requests were published: must the engine be told? The tail is stored before state and sq_idle are loaded, the
 * other sides (qp_to_error, idle) store theirs before they load the tail, all in one order (seq_cst): one of the two
 * sees the other.
 */
static bool needs_doorbell(struct qp *qp)
{
    int state = atomic_load(&qp->state);

    if (state == UROCE_QPS_ERR || state == UROCE_QPS_SQE)
        return true;
    return atomic_load(&qp->sq_idle) && atomic_exchange(&qp->sq_idle, false);
}

int qp_post_send(struct qp *qp, const struct uroce_send_wr *wr, const struct uroce_send_wr **ret_bad,
                 bool *ret_doorbell)
{
    bool posted = false;
    int r = 0;

    if (qp_state(qp) < UROCE_QPS_RTS || !qp->sq.mem)
        r = -EINVAL;
    for (; wr && !r; wr = r ? wr : wr->next) {
        r = post_one(qp, wr);
        posted |= !r;
    }
    if (r)
        *ret_bad = wr;
    *ret_doorbell = posted && needs_doorbell(qp);
    return r;
}

uint32_t qp_send_room(const struct qp *qp)
{
    uint32_t tail = atomic_load_explicit(&qp->sq.tail, memory_order_relaxed);

    return qp->sq.mem ? qp->sq.mask + 1 - (tail - atomic_load_explicit(&qp->sq.done, memory_order_acquire)) : 0;
}

int qp_post_recv(struct qp *qp, const struct uroce_recv_wr *wr, const struct uroce_recv_wr **ret_bad,
                 bool *ret_doorbell)
{
    bool posted = false;
    int r = 0;

    if (qp_state(qp) < UROCE_QPS_INIT || !qp->rq.mem)
        r = -EINVAL;
    for (; wr && !r; wr = r ? wr : wr->next) {
        r = rq_post(&qp->rq, wr);
        posted |= !r;
    }
    if (r)
        *ret_bad = wr;
    *ret_doorbell = posted && atomic_load(&qp->state) == UROCE_QPS_ERR;
    return r;
}

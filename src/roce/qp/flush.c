/* The end of a queue pair's work: errors, flush in order, reset. */
#include "impl.h"

static void flush_wc(struct qp *qp, struct qp_cq *cq, uint64_t wr_id, enum uroce_wc_opcode opcode)
{
    struct uroce_wc wc = {.wr_id = wr_id, .status = UROCE_WC_WR_FLUSH_ERR, .opcode = opcode, .qp_num = qp->num};

    cq_push(cq, &wc, true);
}

static void flush_send(struct qp *qp)
{
    uint32_t done = atomic_load_explicit(&qp->sq.done, memory_order_relaxed);

    if (!qp->sq.mem)
        return;
    while (done != atomic_load(&qp->sq.tail)) {
        uint64_t wr_id = ((const struct sq_wqe *)ring_at(&qp->sq, done))->wr_id;
        atomic_store_explicit(&qp->sq.done, ++done, memory_order_release); /* free before it is told, as ever */
        flush_wc(qp, qp->send_cq, wr_id, UROCE_WC_SEND);
    }
    qp->req.wqe_una = qp->req.wqe_next = qp->req.wqe_rtx = done;
    qp->req.off_next = 0;
    qp->req.una = qp->req.next;
    qp->req.bytes_out = 0;
    budget_give(qp, qp->req.charged);
    qp->req.rd_count = 0;
}

static void qp_flush_recv(struct qp *qp)
{
    struct recv_cur *c = &qp->resp.recv;

    if (c->valid) {
        c->valid = false;
        flush_wc(qp, recv_cq(qp), c->wr_id, UROCE_WC_RECV);
    }
    while (rq_take(&qp->rq, c)) {
        c->valid = false;
        flush_wc(qp, qp->recv_cq, c->wr_id, UROCE_WC_RECV);
    }
}

/* In ERR and SQE, also for what was posted since. */
void qp_flush(struct qp *qp)
{
    flush_send(qp);
    if (qp_state(qp) == UROCE_QPS_ERR)
        qp_flush_recv(qp);
}

/* Forgets all that is under way on the requester's side. */
static void req_forget(struct qp *qp)
{
    struct requester *r = &qp->req;

    r->rtx_on = r->again_on = r->guard_on = r->nak_on = r->rnr_wait = false;
    r->timer = r->rnr_until = r->starve_until = QP_NEVER;
    list_del(&qp->starved);
    r->backoff = 0;
    sack_clear(qp);
    reorder_clear(qp->e, &r->reorder);
}

void qp_send_error(struct qp *qp)
{
    if (qp_reliable(qp)) {
        qp_to_error(qp);
        return;
    }
    atomic_store(&qp->state, UROCE_QPS_SQE);
    qp->req.stop = true;
    req_forget(qp);
    flush_send(qp);
}

void qp_let_go(struct qp *qp)
{
    if ((qp->has_peer_path || qp->far_on) && qp->e->ops.let_go)
        qp->e->ops.let_go(qp->e->cfg.ctx, qp->user, NULL, 0);
}

/*
 * The state is stored before the queues are read, and a post stores its request before it reads the state, both in
 * sequentially consistent order: a request is flushed here, or its post asks for a doorbell, which flushes it.
 */
void qp_to_error(struct qp *qp)
{
    if (qp_state(qp) == UROCE_QPS_ERR)
        return;
    comp_sent(qp);
    qp_let_go(qp);
    atomic_store(&qp->state, UROCE_QPS_ERR);
    qp->req.stop = true;
    req_forget(qp);
    resp_cancel(qp);
    reorder_clear(qp->e, &qp->resp.reorder);
    qp_flush(qp);
    if (qp->srq)
        engine_event(qp->e, UROCE_EVENT_QP_LAST_WQE_REACHED, qp->user);
    timer_update(qp);
}

void qp_reset(struct qp *qp)
{
    struct requester *r = &qp->req;
    struct responder *s = &qp->resp;
    struct reorder a = r->reorder, b = s->reorder;

    qp_let_go(qp);
    list_del(&qp->ready);
    list_del(&qp->settle);
    list_del(&qp->starved);
    list_del(&qp->put_off);
    budget_give(qp, r->charged);
    timer_remove(qp);
    reorder_free(qp->e, &a);
    reorder_free(qp->e, &b);
    memset(r, 0, sizeof *r);
    memset(s, 0, sizeof *s);
    r->timer = r->rnr_until = r->starve_until = QP_NEVER;
    memset(&qp->attr, 0, sizeof qp->attr);
    qp->attr.port_num = 1;
    qp->has_peer_path = qp->far_on = qp->selective = qp->drained = qp->cnp_due = qp->paced = false;
    qp->pace_at = qp->cnp_last = 0;
    qp->defer = 0;
    atomic_store(&qp->sq_idle, true);
    atomic_store(&qp->state, UROCE_QPS_RESET);
    atomic_store(&qp->sq.done, atomic_load(&qp->sq.tail));
    atomic_store(&qp->rq.done, atomic_load(&qp->rq.tail));
    if (qp->send_cq)
        cq_purge(qp->send_cq, qp->num);
    if (qp->recv_cq && qp->recv_cq != qp->send_cq)
        cq_purge(qp->recv_cq, qp->num);
}

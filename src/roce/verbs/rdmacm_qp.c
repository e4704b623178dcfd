/* Queue pairs and shared receive queues of an id, and the states that a connection moves a queue pair through. */
#include "rdmacm_priv.h"

#include <string.h>

bool cma_is_ud(const struct cma_id *id)
{
    return id->id.qp_type == IBV_QPT_UD;
}

int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask)
{
    struct cma_id *c = cma_id(id);
    struct uroce_qp_attr attr = {.qp_state = (enum uroce_qp_state)qp_attr->qp_state};
    unsigned int mask;
    if (c->nnative != 1)
        return cma_fail(EINVAL);
    int r = uroce_cm_qp_attr(c->native[0], &attr, &mask);
    if (r)
        return cma_fail(-r);
    vb_qp_attr_back(&attr, 1, qp_attr);
    *qp_attr_mask = (int)mask;
    return 0;
}

/* depth: of max_dest_rd_atomic and max_rd_atomic; RDMA_MAX_INIT_DEPTH: as agreed. */
static int move(struct cma_id *c, enum ibv_qp_state state, uint8_t depth)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask;
    if (rdma_init_qp_attr(&c->id, &attr, &mask))
        return -1;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && depth != RDMA_MAX_INIT_DEPTH)
        attr.max_dest_rd_atomic = depth;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC && depth != RDMA_MAX_INIT_DEPTH)
        attr.max_rd_atomic = depth;
    int e = ibv_modify_qp(c->id.qp, &attr, mask);
    return e ? cma_fail(e) : 0;
}

int cma_qp_ready(struct cma_id *c, uint8_t responder_resources, uint8_t initiator_depth)
{
    if (!c->id.qp)
        return 0;
    return move(c, IBV_QPS_RTR, responder_resources) || move(c, IBV_QPS_RTS, initiator_depth) ? -1 : 0;
}

int cma_qp_error(struct cma_id *c)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    int e = c->id.qp ? ibv_modify_qp(c->id.qp, &attr, IBV_QP_STATE) : 0;
    return e ? cma_fail(e) : 0;
}

/* ---- completion queues that the program did not bring ---- */

static void destroy_cqs(struct rdma_cm_id *id)
{
    if (id->qp_type == IBV_QPT_XRC_RECV && id->srq)
        return;
    if (id->recv_cq)
        ibv_destroy_cq(id->recv_cq);
    if (id->send_cq && id->send_cq != id->recv_cq)
        ibv_destroy_cq(id->send_cq);
    if (id->recv_cq_channel)
        ibv_destroy_comp_channel(id->recv_cq_channel);
    if (id->send_cq_channel && id->send_cq_channel != id->recv_cq_channel)
        ibv_destroy_comp_channel(id->send_cq_channel);
    id->recv_cq = id->send_cq = NULL;
    id->recv_cq_channel = id->send_cq_channel = NULL;
}

static int create_cq(struct rdma_cm_id *id, uint32_t n, struct ibv_comp_channel **ret_channel, struct ibv_cq **ret_cq)
{
    *ret_channel = ibv_create_comp_channel(id->verbs);
    *ret_cq = *ret_channel ? ibv_create_cq(id->verbs, (int)n, id, *ret_channel, 0) : NULL;
    return *ret_cq ? 0 : -1;
}

static int create_cqs(struct rdma_cm_id *id, uint32_t send, uint32_t recv)
{
    int r = recv ? create_cq(id, recv, &id->recv_cq_channel, &id->recv_cq) : 0;
    if (!r && send)
        r = create_cq(id, send, &id->send_cq_channel, &id->send_cq);
    if (!r)
        return 0;
    int e = errno;
    destroy_cqs(id);
    return cma_fail(e);
}

/* ---- queue pairs ---- */

static int choose_pd(struct cma_id *c, struct ibv_qp_init_attr_ex *attr)
{
    if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) {
        attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr->pd = c->id.pd;
    } else if (attr->pd->context != c->id.verbs) {
        return cma_fail(EINVAL);
    }
    if (attr->comp_mask & IBV_QP_INIT_ATTR_XRCD && !attr->xrcd)
        return cma_fail(EINVAL);
    if (attr->qp_type == IBV_QPT_XRC_RECV && !(attr->comp_mask & IBV_QP_INIT_ATTR_XRCD)) {
        attr->xrcd = cma_xrcd(c->dev);
        if (!attr->xrcd)
            return -1;
        attr->comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    return 0;
}

static int to_first_state(struct cma_id *c)
{
    if (move(c, IBV_QPS_INIT, 0))
        return -1;
    if (!cma_is_ud(c))
        return 0;
    return move(c, IBV_QPS_RTR, 0) || move(c, IBV_QPS_RTS, 0) ? -1 : 0;
}

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
    struct cma_id *c = cma_id(id);
    if (id->qp || !id->verbs)
        return cma_fail(EINVAL);
    if (choose_pd(c, attr))
        return -1;
    if (create_cqs(id, attr->send_cq || id->send_cq ? 0 : attr->cap.max_send_wr,
                   attr->recv_cq || id->recv_cq ? 0 : attr->cap.max_recv_wr))
        return -1;
    /* A queue without requests needs a CQ all the same. */
    if (!attr->send_cq)
        attr->send_cq = id->send_cq ? id->send_cq : attr->recv_cq ? attr->recv_cq : id->recv_cq;
    if (!attr->recv_cq)
        attr->recv_cq = id->recv_cq ? id->recv_cq : attr->send_cq;
    if (id->srq && !attr->srq)
        attr->srq = id->srq;
    id->qp = ibv_create_qp_ex(id->verbs, attr);
    if (id->qp && to_first_state(c)) {
        int e = errno;
        ibv_destroy_qp(id->qp);
        id->qp = NULL;
        errno = e;
    }
    if (!id->qp) {
        int e = errno;
        destroy_cqs(id);
        return cma_fail(e);
    }
    id->pd = attr->pd;
    return 0;
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp_init_attr_ex ex = {
        .qp_context = attr->qp_context,
        .send_cq = attr->send_cq,
        .recv_cq = attr->recv_cq,
        .srq = attr->srq,
        .cap = attr->cap,
        .qp_type = attr->qp_type,
        .sq_sig_all = attr->sq_sig_all,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = pd ? pd : id->pd,
    };
    int r = rdma_create_qp_ex(id, &ex);
    memcpy(attr, &ex, sizeof *attr);
    return r;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
    ibv_destroy_qp(id->qp);
    id->qp = NULL;
    destroy_cqs(id);
}

/* ---- shared receive queues ---- */

int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
    struct cma_id *c = cma_id(id);
    bool xrc = attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && attr->srq_type == IBV_SRQT_XRC;
    if (id->srq || !id->verbs || (attr->comp_mask & IBV_SRQ_INIT_ATTR_PD && attr->pd && attr->pd->context != id->verbs))
        return cma_fail(EINVAL);
    if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
        attr->pd = id->pd;
        attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    if (xrc && (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) || !attr->xrcd)) {
        attr->xrcd = cma_xrcd(c->dev);
        if (!attr->xrcd)
            return -1;
        attr->comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
    }
    if (xrc && (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ) || !attr->cq)) {
        if (create_cqs(id, 0, attr->attr.max_wr))
            return -1;
        attr->cq = id->recv_cq;
        attr->comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    }
    id->srq = ibv_create_srq_ex(id->verbs, attr);
    if (!id->srq) {
        int e = errno;
        destroy_cqs(id);
        return cma_fail(e);
    }
    if (!id->pd)
        id->pd = attr->pd;
    return 0;
}

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    struct ibv_srq_init_attr_ex ex = {.srq_context = attr->srq_context,
                                      .attr = attr->attr,
                                      .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
                                      .srq_type = id->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC,
                                      .pd = pd ? pd : id->pd};
    int r = rdma_create_srq_ex(id, &ex);
    memcpy(attr, &ex, sizeof *attr);
    return r;
}

void rdma_destroy_srq(struct rdma_cm_id *id)
{
    ibv_destroy_srq(id->srq);
    id->srq = NULL;
    if (!id->qp)
        destroy_cqs(id);
}

/* Connections: listen, connect, accept, reject, disconnect. */
#include "rdmacm_priv.h"

#include <string.h>

#define DEFAULT_BACKLOG 1024
#define REASON_VENDOR   35 /* vendor option not supported */

static struct uroce_cm_id *native_of(struct rdma_cm_id *id)
{
    struct cma_id *c = cma_id(id);
    return c->nnative == 1 && c->dev ? c->native[0] : NULL;
}

/* Not bound yet: to any address. */
static int bind_somewhere(struct rdma_cm_id *id)
{
    struct sockaddr_storage any = {.ss_family = id->route.addr.src_storage.ss_family};
    if (any.ss_family != AF_INET6)
        any.ss_family = AF_INET;
    return rdma_bind_addr(id, (struct sockaddr *)&any);
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
    struct cma_id *c = cma_id(id);
    if (c->asked) /* to take any address instead would listen to others than the program means */
        return cma_fail(ENODEV);
    if (!c->nnative && bind_somewhere(id))
        return -1;
    for (int i = 0; i < c->nnative; i++) {
        int r = uroce_cm_listen(c->native[i], backlog > 0 ? backlog : DEFAULT_BACKLOG);
        if (r)
            return cma_fail(-r);
    }
    cma_show_addresses(c);
    return 0;
}

static uint8_t at_most(uint8_t wanted, uint8_t unlimited, uint8_t max)
{
    return wanted == unlimited ? max : wanted;
}

static bool too_deep(const struct cma_id *c, const struct rdma_conn_param *p)
{
    return p && !cma_is_ud(c) &&
           ((p->responder_resources != RDMA_MAX_RESP_RES && p->responder_resources > c->dev->max_responder_resources) ||
            (p->initiator_depth != RDMA_MAX_INIT_DEPTH && p->initiator_depth > c->dev->max_initiator_depth));
}

static struct uroce_cm_param param_of(struct cma_id *c, const struct rdma_conn_param *p)
{
    struct uroce_cm_param n = {
        .responder_resources = c->dev->max_responder_resources,
        .initiator_depth = c->dev->max_initiator_depth,
        .retry_count = 7,
        .rnr_retry_count = 7,
        .qkey = UROCE_UD_QKEY,
        .ece = c->ece,
    };
    if (p) {
        n.private_data = p->private_data;
        n.private_len = p->private_data ? p->private_data_len : 0;
        n.responder_resources = at_most(p->responder_resources, RDMA_MAX_RESP_RES, n.responder_resources);
        n.initiator_depth = at_most(p->initiator_depth, RDMA_MAX_INIT_DEPTH, n.initiator_depth);
        n.flow_control = p->flow_control;
        n.retry_count = p->retry_count & 7;
        n.rnr_retry_count = p->rnr_retry_count & 7;
        n.srq = p->srq;
        n.qp_num = p->qp_num & UROCE_QPN_MAX;
    }
    if (c->id.qp) {
        n.qp_num = c->id.qp->qp_num;
        n.srq = c->id.qp->srq != NULL;
    }
    return n;
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *conn_param)
{
    struct cma_id *c = cma_id(id);
    struct uroce_cm_id *native = native_of(id);
    if (!native || too_deep(c, conn_param))
        return cma_fail(EINVAL);
    struct uroce_cm_param p = param_of(c, conn_param);
    if (!p.private_len && c->connect_len) { /* of rdma_create_ep */
        p.private_data = c->connect;
        p.private_len = (uint8_t)min_u64(c->connect_len, UROCE_CM_CONNECT_PRIVATE);
    }
    if (id->qp_type == IBV_QPT_UC)
        p.qp_type = UROCE_QPT_UC;
    else if (id->qp_type == IBV_QPT_XRC_SEND)
        p.qp_type = UROCE_QPT_XRC_SEND;
    int r = uroce_cm_connect(native, &p);
    return r ? cma_fail(-r) : cma_complete(c);
}

/* No more than the peer has offered, nor than the device can. */
static void bound_by_request(const struct cma_id *c, const struct rdma_conn_param *given, struct uroce_cm_param *p)
{
    if (!given || given->responder_resources == RDMA_MAX_RESP_RES)
        p->responder_resources = (uint8_t)min_u64(c->responder_resources, c->dev->max_responder_resources);
    if (!given || given->initiator_depth == RDMA_MAX_INIT_DEPTH)
        p->initiator_depth = (uint8_t)min_u64(c->initiator_depth, c->dev->max_initiator_depth);
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *conn_param)
{
    struct cma_id *c = cma_id(id);
    struct uroce_cm_id *native = native_of(id);
    if (!native || too_deep(c, conn_param))
        return cma_fail(EINVAL);
    struct uroce_cm_param p = param_of(c, conn_param);
    if (cma_is_ud(c))
        return cma_result(uroce_cm_accept(native, &p));
    bound_by_request(c, conn_param, &p);
    if (cma_qp_ready(c, p.responder_resources, p.initiator_depth))
        return -1;
    int r = uroce_cm_accept(native, &p);
    if (r) {
        cma_qp_error(c);
        return cma_fail(-r);
    }
    return cma_complete(c);
}

static int reject(struct rdma_cm_id *id, int reason, const void *private_data, uint8_t len)
{
    struct uroce_cm_id *native = native_of(id);
    if (!native)
        return cma_fail(EINVAL);
    return cma_result(uroce_cm_reject(native, (enum uroce_cm_reason)reason, private_data, len));
}

int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
    return reject(id, UROCE_CM_REJ_CONSUMER, private_data, private_data_len);
}

int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
    return reject(id, REASON_VENDOR, private_data, private_data_len);
}

int rdma_establish(struct rdma_cm_id *id)
{
    struct uroce_cm_id *native = native_of(id);
    if (!native || id->qp) /* with a queue pair of the id's it happens by itself */
        return cma_fail(EINVAL);
    return cma_result(uroce_cm_establish(native, NULL, 0));
}

int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event)
{
    struct uroce_cm_id *native = native_of(id);
    if (!native)
        return cma_fail(EINVAL);
    return event == IBV_EVENT_COMM_EST ? cma_result(uroce_cm_establish(native, NULL, 0)) : 0;
}

int rdma_disconnect(struct rdma_cm_id *id)
{
    struct cma_id *c = cma_id(id);
    struct uroce_cm_id *native = native_of(id);
    if (!native)
        return cma_fail(EINVAL);
    if (cma_qp_error(c))
        return -1;
    int r = uroce_cm_disconnect(native, NULL, 0);
    return r ? cma_fail(-r) : cma_complete(c);
}

int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
    if (!id->qp && !native_of(id) && !ece)
        return cma_fail(EINVAL);
    if (!ece || ece->vendor_id > 0xffffff || ece->comp_mask)
        return cma_fail(EINVAL);
    cma_id(id)->ece = (struct uroce_cm_ece){.vendor_id = ece->vendor_id, .options = ece->options};
    return 0;
}

int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
    struct uroce_cm_id *native = native_of(id);
    struct uroce_cm_info info;
    if (!native || !ece)
        return cma_fail(EINVAL);
    uroce_cm_query(native, &info);
    *ece = (struct ibv_ece){.vendor_id = info.remote_ece.vendor_id, .options = info.remote_ece.options};
    return 0;
}

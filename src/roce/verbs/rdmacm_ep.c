/* Synchronous end points: address, id and queue pair in one call. */
#include "rdmacm_priv.h"

#include <string.h>

#define RESOLVE_MS 2000

/* A listener: its requests get a queue pair like that. */
static int passive(struct cma_id *c, const struct rdma_addrinfo *res, struct ibv_pd *pd,
                   const struct ibv_qp_init_attr *init)
{
    if (rdma_bind_addr(&c->id, res->ai_src_addr))
        return -1;
    if (pd)
        c->id.pd = pd;
    if (!init)
        return 0;
    c->qp_init = malloc(sizeof *c->qp_init);
    if (!c->qp_init)
        return cma_fail(ENOMEM);
    *c->qp_init = *init;
    c->qp_init->qp_type = (enum ibv_qp_type)res->ai_qp_type;
    return 0;
}

static int active(struct cma_id *c, const struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    if (rdma_resolve_addr(&c->id, res->ai_src_addr, res->ai_dst_addr, RESOLVE_MS) ||
        rdma_resolve_route(&c->id, RESOLVE_MS))
        return -1;
    if (init) {
        init->qp_type = (enum ibv_qp_type)res->ai_qp_type;
        if (rdma_create_qp(&c->id, pd, init))
            return -1;
    }
    if (res->ai_connect_len) {
        c->connect = malloc(res->ai_connect_len);
        if (!c->connect)
            return cma_fail(ENOMEM);
        memcpy(c->connect, res->ai_connect, res->ai_connect_len);
        c->connect_len = res->ai_connect_len;
    }
    return 0;
}

int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd,
                   struct ibv_qp_init_attr *qp_init_attr)
{
    struct rdma_cm_id *new;
    if (!res)
        return cma_fail(EINVAL);
    if (rdma_create_id(NULL, &new, NULL, (enum rdma_port_space)res->ai_port_space))
        return -1;
    struct cma_id *c = cma_id(new);
    if (res->ai_qp_type)
        new->qp_type = (enum ibv_qp_type)res->ai_qp_type;
    int r = res->ai_flags & RAI_PASSIVE ? passive(c, res, pd, qp_init_attr) : active(c, res, pd, qp_init_attr);
    if (r) {
        int e = errno;
        rdma_destroy_ep(new);
        return cma_fail(e);
    }
    *id = new;
    return 0;
}

void rdma_destroy_ep(struct rdma_cm_id *id)
{
    if (id->qp)
        rdma_destroy_qp(id);
    if (id->srq)
        rdma_destroy_srq(id);
    rdma_destroy_id(id);
}

int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
    struct cma_id *c = cma_id(listen);
    struct rdma_cm_event *event;
    if (!c->sync)
        return cma_fail(EINVAL);
    if (listen->event) {
        rdma_ack_cm_event(listen->event);
        listen->event = NULL;
    }
    if (rdma_get_cm_event(listen->channel, &event))
        return -1;
    if (event->status || event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
        int e = event->status < 0 ? -event->status : EINVAL;
        rdma_ack_cm_event(event);
        return cma_fail(e);
    }
    if (c->qp_init) {
        struct ibv_qp_init_attr init = *c->qp_init;
        if (rdma_create_qp(event->id, listen->pd, &init)) {
            int e = errno;
            struct rdma_cm_id *refused = event->id;
            rdma_ack_cm_event(event);
            rdma_reject(refused, NULL, 0);
            rdma_destroy_id(refused);
            return cma_fail(e);
        }
    }
    *id = event->id;
    (*id)->event = event;
    return 0;
}

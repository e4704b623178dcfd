/*
 * The tables of a context. Programs call most verbs through them, by functions that verbs.h inlines, some without
 * looking whether there is one: what we have not answers EOPNOTSUPP, and no entry is NULL.
 */
#include "verbs_priv.h"

#include <limits.h>

/* ---- of verbs_context: not there in a device without Ethernet queues ---- */

static int no_read_counters(struct ibv_counters *counters, uint64_t *values, uint32_t n, uint32_t flags)
{
    (void)counters, (void)values, (void)n, (void)flags;
    return vb_refuse("read_counters: flows and their counters are not there");
}

static int no_attach_counters(struct ibv_counters *counters, struct ibv_counter_attach_attr *attr,
                              struct ibv_flow *flow)
{
    (void)counters, (void)attr, (void)flow;
    return vb_refuse("attach_counters_point_flow: flows are not there");
}

static struct ibv_counters *no_create_counters(struct ibv_context *c, struct ibv_counters_init_attr *attr)
{
    (void)c, (void)attr;
    return vb_refuse_ptr("create_counters: flows and their counters are not there");
}

static int no_destroy_counters(struct ibv_counters *counters)
{
    (void)counters;
    return vb_refuse("destroy_counters: flows and their counters are not there");
}

static int no_modify_esp(struct ibv_flow_action *action, struct ibv_flow_action_esp_attr *attr)
{
    (void)action, (void)attr;
    return vb_refuse("modify_flow_action_esp: IPsec is not there");
}

static int no_destroy_action(struct ibv_flow_action *action)
{
    (void)action;
    return vb_refuse("destroy_flow_action: IPsec is not there");
}

static struct ibv_flow_action *no_create_esp(struct ibv_context *c, struct ibv_flow_action_esp_attr *attr)
{
    (void)c, (void)attr;
    return vb_refuse_ptr("create_flow_action_esp: IPsec is not there");
}

static int no_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad)
{
    (void)srq;
    *bad = op;
    return vb_refuse("post_srq_ops: tag matching is not there");
}

static int no_destroy_table(struct ibv_rwq_ind_table *table)
{
    (void)table;
    return vb_refuse("destroy_rwq_ind_table: Ethernet queues are not there");
}

static struct ibv_rwq_ind_table *no_create_table(struct ibv_context *c, struct ibv_rwq_ind_table_init_attr *attr)
{
    (void)c, (void)attr;
    return vb_refuse_ptr("create_rwq_ind_table: Ethernet queues are not there");
}

static int no_destroy_wq(struct ibv_wq *wq)
{
    (void)wq;
    return vb_refuse("destroy_wq: Ethernet queues are not there");
}

static int no_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attr)
{
    (void)wq, (void)attr;
    return vb_refuse("modify_wq: Ethernet queues are not there");
}

static struct ibv_wq *no_create_wq(struct ibv_context *c, struct ibv_wq_init_attr *attr)
{
    (void)c, (void)attr;
    return vb_refuse_ptr("create_wq: Ethernet queues are not there");
}

static int no_destroy_flow(struct ibv_flow *flow)
{
    (void)flow;
    return vb_refuse("destroy_flow: flows are not there");
}

static struct ibv_flow *no_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr)
{
    (void)qp, (void)attr;
    return vb_refuse_ptr("create_flow: flows are not there");
}

static struct ibv_qp *no_open_qp(struct ibv_context *c, struct ibv_qp_open_attr *attr)
{
    (void)c, (void)attr;
    return vb_refuse_ptr("open_qp: a queue pair cannot be opened twice");
}

static struct ibv_mr *no_null_mr(struct ibv_pd *pd)
{
    (void)pd;
    return vb_refuse_ptr("alloc_null_mr: not there");
}

static void placeholder(void)
{
}

/* ---- of ibv_context_ops ---- */

static void *no_compat(void)
{
    return vb_refuse_ptr("an entry of the context's table that programs of before 2007 called");
}

static int compat_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *ret)
{
    return (ibv_query_port)(c, port, ret);
}

static const struct ibv_context_ops context_ops = {
    ._compat_query_device = vb_query_device,
    ._compat_query_port = compat_query_port,
    ._compat_alloc_pd = no_compat,
    ._compat_dealloc_pd = no_compat,
    ._compat_reg_mr = no_compat,
    ._compat_rereg_mr = no_compat,
    ._compat_dereg_mr = no_compat,
    .alloc_mw = vb_alloc_mw,
    .bind_mw = vb_bind_mw,
    .dealloc_mw = vb_dealloc_mw,
    ._compat_create_cq = no_compat,
    .poll_cq = vb_poll_cq,
    .req_notify_cq = vb_req_notify_cq,
    ._compat_cq_event = no_compat,
    ._compat_resize_cq = no_compat,
    ._compat_destroy_cq = no_compat,
    ._compat_create_srq = no_compat,
    ._compat_modify_srq = no_compat,
    ._compat_query_srq = no_compat,
    ._compat_destroy_srq = no_compat,
    .post_srq_recv = vb_post_srq_recv,
    ._compat_create_qp = no_compat,
    ._compat_query_qp = no_compat,
    ._compat_modify_qp = no_compat,
    ._compat_destroy_qp = no_compat,
    .post_send = vb_post_send,
    .post_recv = vb_post_recv,
    ._compat_create_ah = no_compat,
    ._compat_destroy_ah = no_compat,
    ._compat_attach_mcast = no_compat,
    ._compat_detach_mcast = no_compat,
    ._compat_async_event = no_compat,
};

void vb_fill_ops(struct verbs_context *v)
{
    v->sz = sizeof *v;
    v->query_port = vb_query_port;
    v->advise_mr = vb_advise_mr;
    v->alloc_null_mr = no_null_mr;
    v->read_counters = no_read_counters;
    v->attach_counters_point_flow = no_attach_counters;
    v->create_counters = no_create_counters;
    v->destroy_counters = no_destroy_counters;
    v->reg_dm_mr = vb_reg_dm_mr;
    v->alloc_dm = vb_alloc_dm;
    v->free_dm = vb_free_dm;
    v->modify_flow_action_esp = no_modify_esp;
    v->destroy_flow_action = no_destroy_action;
    v->create_flow_action_esp = no_create_esp;
    v->modify_qp_rate_limit = vb_modify_qp_rate_limit;
    v->alloc_parent_domain = vb_alloc_parent_domain;
    v->dealloc_td = vb_dealloc_td;
    v->alloc_td = vb_alloc_td;
    v->modify_cq = vb_modify_cq;
    v->post_srq_ops = no_post_srq_ops;
    v->destroy_rwq_ind_table = no_destroy_table;
    v->create_rwq_ind_table = no_create_table;
    v->destroy_wq = no_destroy_wq;
    v->modify_wq = no_modify_wq;
    v->create_wq = no_create_wq;
    v->query_rt_values = vb_query_rt_values;
    v->create_cq_ex = vb_create_cq_ex;
    v->query_device_ex = vb_query_device_ex;
    v->ibv_destroy_flow = no_destroy_flow;
    v->ABI_placeholder2 = placeholder;
    v->ibv_create_flow = no_create_flow;
    v->ABI_placeholder1 = placeholder;
    v->open_qp = no_open_qp;
    v->create_qp_ex = vb_create_qp_ex;
    v->get_srq_num = vb_get_srq_num;
    v->create_srq_ex = vb_create_srq_ex;
    v->open_xrcd = vb_open_xrcd;
    v->close_xrcd = vb_close_xrcd;
    v->context.ops = context_ops;
}

/* ---- the end of a context ---- */

/* The public object of each kind lies in front of its struct vb_object. */
#define IBV_OF(type, o) (&container_of(o, struct type, obj)->ibv)

static int destroy(enum vb_kind kind, struct vb_object *o)
{
    switch (kind) {
    case VB_QP:
        return ibv_destroy_qp(IBV_OF(vb_qp, o));
    case VB_SRQ:
        return ibv_destroy_srq(IBV_OF(vb_srq, o));
    case VB_MW:
        return vb_dealloc_mw(IBV_OF(vb_mw, o));
    case VB_AH:
        return ibv_destroy_ah(IBV_OF(vb_ah, o));
    case VB_MR:
        return ibv_dereg_mr(IBV_OF(vb_mr, o));
    case VB_CQ:
        return ibv_destroy_cq(IBV_OF(vb_cq, o));
    case VB_CHANNEL:
        return ibv_destroy_comp_channel(IBV_OF(vb_channel, o));
    case VB_XRCD:
        return vb_close_xrcd(IBV_OF(vb_xrcd, o));
    case VB_DM:
        return vb_free_dm(IBV_OF(vb_dm, o));
    case VB_PD:
        return ibv_dealloc_pd(IBV_OF(vb_pd, o));
    case VB_TD:
        return vb_dealloc_td(IBV_OF(vb_td, o));
    case VB_KINDS:
        break;
    }
    return EINVAL;
}

/* A program that closes its context will not acknowledge events any more. */
static void acknowledge(enum vb_kind kind, struct vb_object *o)
{
    if (kind == VB_QP) {
        struct vb_qp *qp = container_of(o, struct vb_qp, obj);
        qp->async_given = qp->ibv.events_completed;
    } else if (kind == VB_SRQ) {
        struct vb_srq *srq = container_of(o, struct vb_srq, obj);
        srq->async_given = srq->ibv.events_completed;
    } else if (kind == VB_CQ) {
        struct vb_cq *cq = container_of(o, struct vb_cq, obj);
        cq->async_given = cq->ibv.async_events_completed;
        uroce_ack_cq_events(cq->native, UINT_MAX);
    }
}

/* Newest first, so that what borrows goes before its lender. What something of another context still uses stays. */
void vb_sweep(struct vb_context *ctx)
{
    for (int k = 0; k < VB_KINDS; k++) {
        for (struct list *l = ctx->objects[k].prev, *before; l != &ctx->objects[k]; l = before) {
            before = l->prev;
            struct vb_object *o = container_of(l, struct vb_object, link);
            acknowledge((enum vb_kind)k, o);
            if (destroy((enum vb_kind)k, o))
                list_del(&o->link);
        }
    }
}

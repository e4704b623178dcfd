/* Queue pairs: made, modified, asked, destroyed. */
#include "verbs_priv.h"

#include <string.h>

static struct vb_qp *qp_of(struct ibv_qp *qp)
{
    return container_of(qp, struct vb_qp, ibv);
}

static const char *state_name(int state)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return state >= 0 && state < (int)ARRAY_SIZE(names) ? names[state] : "?";
}

/* ---- made ---- */

/* What the type has not is left out, as adapters do. */
static void native_init(const struct ibv_qp_init_attr_ex *a, struct uroce_qp_init *ret)
{
    bool sends = a->qp_type != IBV_QPT_XRC_RECV, receives = sends && a->qp_type != IBV_QPT_XRC_SEND;
    *ret = (struct uroce_qp_init){.type = (enum uroce_qp_type)a->qp_type, .sq_sig_all = a->sq_sig_all};
    if (sends && a->send_cq) {
        ret->send_cq = container_of(a->send_cq, struct vb_cq, ibv)->native;
        ret->cap.max_send_wr = a->cap.max_send_wr;
        ret->cap.max_send_sge = a->cap.max_send_sge;
        ret->cap.max_inline_data = a->cap.max_inline_data;
    }
    if (receives && a->recv_cq) {
        ret->recv_cq = container_of(a->recv_cq, struct vb_cq, ibv)->native;
        ret->cap.max_recv_wr = a->cap.max_recv_wr;
        ret->cap.max_recv_sge = a->cap.max_recv_sge;
    }
    if (receives && a->srq)
        ret->srq = container_of(a->srq, struct vb_srq, ibv)->native;
    if (!sends && a->comp_mask & IBV_QP_INIT_ATTR_XRCD && a->xrcd)
        ret->xrcd = container_of(a->xrcd, struct vb_xrcd, ibv)->native;
}

static void fill(struct vb_qp *qp, struct ibv_context *c, const struct ibv_qp_init_attr_ex *a,
                 const struct uroce_qp_cap *cap)
{
    pthread_mutex_init(&qp->ibv.mutex, NULL);
    pthread_cond_init(&qp->ibv.cond, NULL);
    qp->ibv.context = c;
    qp->ibv.qp_context = a->qp_context;
    qp->ibv.pd = a->comp_mask & IBV_QP_INIT_ATTR_PD ? a->pd : NULL;
    qp->ibv.send_cq = a->send_cq;
    qp->ibv.recv_cq = a->recv_cq;
    qp->ibv.srq = a->srq;
    qp->ibv.qp_num = uroce_qp_num(qp->native);
    qp->ibv.state = IBV_QPS_RESET;
    qp->ibv.qp_type = a->qp_type;
    qp->init = (struct ibv_qp_init_attr){
        .qp_context = a->qp_context,
        .send_cq = a->send_cq,
        .recv_cq = a->recv_cq,
        .srq = a->srq,
        .cap = {cap->max_send_wr, cap->max_recv_wr, cap->max_send_sge, cap->max_recv_sge, cap->max_inline_data},
        .qp_type = a->qp_type,
        .sq_sig_all = a->sq_sig_all,
    };
}

static bool type_is_there(enum ibv_qp_type t)
{
    return t == IBV_QPT_RC || t == IBV_QPT_UC || t == IBV_QPT_UD || t == IBV_QPT_XRC_SEND || t == IBV_QPT_XRC_RECV;
}

/* The capabilities are told back: what was asked for, or more. */
static struct vb_qp *qp_new(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
    if (!type_is_there(a->qp_type))
        return vb_refuse_ptr("create_qp: type %d: RC, UC, UD and XRC are there, Ethernet and adapters' own are not",
                             (int)a->qp_type);
    struct vb_qp *qp = calloc(1, sizeof *qp);
    if (!qp)
        return vb_null(-ENOMEM);
    struct uroce_qp_init init;
    struct uroce_qp_attr now;
    native_init(a, &init);
    struct uroce_pd *pd =
        a->comp_mask & IBV_QP_INIT_ATTR_PD && a->pd ? container_of(a->pd, struct vb_pd, ibv)->native : NULL;
    int r = uroce_qp_create(pd, &init, &qp->native);
    if (r) {
        vb_debug("create_qp refused (%s): %u/%u requests (at most %u), %u/%u pieces (%u), %u bytes inline (%u)",
                 strerror(-r), a->cap.max_send_wr, a->cap.max_recv_wr, UROCE_WR_MAX, a->cap.max_send_sge,
                 a->cap.max_recv_sge, UROCE_SGE_MAX, a->cap.max_inline_data, UROCE_INLINE_MAX);
        free(qp);
        return vb_null(r);
    }
    uroce_qp_query(qp->native, &now);
    fill(qp, c, a, &now.cap);
    if (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        r = vb_qp_ex_init(qp, &now.cap, a->send_ops_flags);
    if (r) {
        uroce_qp_destroy(qp->native);
        free(qp);
        return vb_null(r);
    }
    uroce_qp_set_events(qp->native, vb_ctx(c)->events, qp);
    vb_add(vb_ctx(c), VB_QP, &qp->obj);
    qp->ibv.handle = qp->obj.handle;
    a->cap = qp->init.cap;
    return qp;
}

struct ibv_qp *vb_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
    const uint32_t known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if (a->comp_mask & ~known || (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && a->create_flags))
        return vb_refuse_ptr("create_qp_ex: comp_mask 0x%x (known: 0x%x), create_flags 0x%x (none is known)",
                             a->comp_mask, known, a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS ? a->create_flags : 0);
    struct vb_qp *qp = qp_new(c, a);
    return qp ? &qp->ibv : NULL;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
    struct ibv_qp_init_attr_ex ex = {.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
    memcpy(&ex, a, offsetof(struct ibv_qp_init_attr_ex, comp_mask)); /* they begin alike */
    struct vb_qp *qp = qp_new(pd->context, &ex);
    if (!qp)
        return NULL;
    a->cap = ex.cap;
    return &qp->ibv;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    return qp_of(qp)->build ? &qp_of(qp)->ex : NULL;
}

int ibv_destroy_qp(struct ibv_qp *ibv)
{
    struct vb_qp *qp = qp_of(ibv);
    int r = uroce_qp_destroy(qp->native);
    if (r)
        return vb_result(r);
    vb_await_acks(ibv->context, &qp->async_given, &ibv->mutex, &ibv->cond, &ibv->events_completed);
    vb_del(vb_ctx(ibv->context), &qp->obj);
    vb_qp_ex_done(qp);
    pthread_mutex_destroy(&ibv->mutex);
    pthread_cond_destroy(&ibv->cond);
    free(qp);
    return 0;
}

/* ---- modified ---- */

static int native_attr(const struct ibv_qp_attr *a, int mask, struct uroce_qp_attr *ret)
{
    *ret = (struct uroce_qp_attr){
        .qp_state = (enum uroce_qp_state)a->qp_state,
        .cur_qp_state = (enum uroce_qp_state)a->cur_qp_state,
        .path_mtu = (enum uroce_mtu)a->path_mtu,
        .qkey = a->qkey,
        .rq_psn = a->rq_psn,
        .sq_psn = a->sq_psn,
        .dest_qp_num = a->dest_qp_num,
        .qp_access_flags = a->qp_access_flags & ~VB_ACCESS_IGNORED,
        .pkey_index = a->pkey_index,
        .en_sqd_async_notify = a->en_sqd_async_notify,
        .max_rd_atomic = a->max_rd_atomic,
        .max_dest_rd_atomic = a->max_dest_rd_atomic,
        .min_rnr_timer = a->min_rnr_timer,
        .port_num = a->port_num,
        .timeout = a->timeout,
        .retry_cnt = a->retry_cnt,
        .rnr_retry = a->rnr_retry,
        .rate_limit = a->rate_limit,
    };
    return mask & IBV_QP_AV ? vb_ah_attr(&a->ah_attr, "modify_qp", &ret->ah_attr) : 0;
}

/* The kernel takes from XRC queue pairs what only the other kind has, and ignores it; perftest relies on that. */
static unsigned int attr_mask(enum ibv_qp_type type, int mask)
{
    int ignored = type == IBV_QPT_XRC_SEND   ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
                  : type == IBV_QPT_XRC_RECV ? IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
                                             : 0;
    return (unsigned int)(mask & ~ignored);
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
    struct uroce_qp_attr a;
    int r = native_attr(attr, mask, &a);
    if (!r)
        r = uroce_qp_modify(qp_of(ibv)->native, &a, attr_mask(ibv->qp_type, mask));
    if (r) {
        vb_debug("modify_qp of 0x%06x from %s%s%s refused: %s (attr_mask 0x%x)", ibv->qp_num,
                 state_name((int)ibv->state), mask & IBV_QP_STATE ? " to " : "",
                 mask & IBV_QP_STATE ? state_name((int)attr->qp_state) : "", strerror(-r), mask);
        return vb_result(r);
    }
    if (mask & IBV_QP_STATE)
        ibv->state = attr->qp_state;
    return 0;
}

int vb_modify_qp_rate_limit(struct ibv_qp *ibv, struct ibv_qp_rate_limit_attr *attr)
{
    const struct uroce_qp_attr a = {.rate_limit = attr->rate_limit};
    if (attr->comp_mask)
        return vb_refuse("modify_qp_rate_limit: comp_mask 0x%x is not known", attr->comp_mask);
    return vb_result(uroce_qp_modify(qp_of(ibv)->native, &a, UROCE_QP_RATE_LIMIT));
}

/* ---- asked ---- */

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *ret, int mask, struct ibv_qp_init_attr *ret_init)
{
    struct vb_qp *qp = qp_of(ibv);
    struct uroce_qp_attr a;
    (void)mask; /* which must be told at least: all are */
    int r = uroce_qp_query(qp->native, &a);
    if (r)
        return vb_result(r);
    vb_qp_attr_back(&a, a.port_num, ret);
    ret->path_mig_state = IBV_MIG_MIGRATED;
    ret->cap = qp->init.cap;
    *ret_init = qp->init;
    ibv->state = ret->qp_state;
    return 0;
}

/* Bytes of a message may become visible in any order. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
    (void)qp, (void)op, (void)flags;
    return 0;
}

/* Enhanced connection establishment is a matter between two adapters of one vendor. */
int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    (void)qp;
    return vb_refuse("set_ece: options of vendor 0x%x are not known", ece->vendor_id);
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    (void)qp;
    *ece = (struct ibv_ece){0};
    return 0;
}

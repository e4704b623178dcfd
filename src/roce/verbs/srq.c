/* Shared receive queues, XRC domains. */
#include "verbs_priv.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- shared receive queues ---- */

static struct vb_srq *srq_new(struct ibv_pd *pd, void *srq_context, struct ibv_srq_attr *attr, struct ibv_xrcd *xrcd,
                              struct ibv_cq *cq)
{
    struct vb_srq *srq = calloc(1, sizeof *srq);
    if (!srq)
        return vb_null(-ENOMEM);
    int r = uroce_srq_create(container_of(pd, struct vb_pd, ibv)->native, attr->max_wr, attr->max_sge,
                             xrcd ? container_of(xrcd, struct vb_xrcd, ibv)->native : NULL,
                             cq ? container_of(cq, struct vb_cq, ibv)->native : NULL, &srq->native);
    if (r) {
        vb_debug("create_srq refused: %u requests (at most %u) of %u pieces (at most %u)", attr->max_wr, UROCE_WR_MAX,
                 attr->max_sge, UROCE_SGE_MAX);
        free(srq);
        return vb_null(r);
    }
    uint32_t limit;
    uroce_srq_query(srq->native, &attr->max_wr, &attr->max_sge, &limit);
    uroce_srq_set_events(srq->native, vb_ctx(pd->context)->events, srq);
    srq->is_xrc = xrcd != NULL;
    srq->ibv.context = pd->context;
    srq->ibv.srq_context = srq_context;
    srq->ibv.pd = pd;
    pthread_mutex_init(&srq->ibv.mutex, NULL);
    pthread_cond_init(&srq->ibv.cond, NULL);
    vb_add(vb_ctx(pd->context), VB_SRQ, &srq->obj);
    srq->ibv.handle = srq->obj.handle;
    return srq;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    struct vb_srq *srq = srq_new(pd, attr->srq_context, &attr->attr, NULL, NULL);
    return srq ? &srq->ibv : NULL;
}

struct ibv_srq *vb_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr)
{
    uint32_t mask = attr->comp_mask;
    enum ibv_srq_type type = mask & IBV_SRQ_INIT_ATTR_TYPE ? attr->srq_type : IBV_SRQT_BASIC;
    (void)c;
    if (mask >= IBV_SRQ_INIT_ATTR_RESERVED || type == IBV_SRQT_TM)
        return vb_refuse_ptr("create_srq_ex: tag matching is not there (comp_mask 0x%x)", mask);
    if (!(mask & IBV_SRQ_INIT_ATTR_PD))
        return vb_null(-EINVAL);
    bool xrc = type == IBV_SRQT_XRC, has = mask & IBV_SRQ_INIT_ATTR_XRCD && mask & IBV_SRQ_INIT_ATTR_CQ;
    if (xrc && !has)
        return vb_null(-EINVAL);
    struct vb_srq *srq =
        srq_new(attr->pd, attr->srq_context, &attr->attr, xrc ? attr->xrcd : NULL, xrc ? attr->cq : NULL);
    return srq ? &srq->ibv : NULL;
}

int ibv_modify_srq(struct ibv_srq *ibv, struct ibv_srq_attr *attr, int mask)
{
    struct uroce_srq *native = container_of(ibv, struct vb_srq, ibv)->native;
    int r = mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) ? -EINVAL : 0;
    if (!r && mask & IBV_SRQ_MAX_WR)
        r = uroce_srq_resize(native, attr->max_wr);
    if (!r && mask & IBV_SRQ_LIMIT)
        r = uroce_srq_set_limit(native, attr->srq_limit);
    return vb_result(r);
}

int ibv_query_srq(struct ibv_srq *ibv, struct ibv_srq_attr *ret)
{
    int r =
        uroce_srq_query(container_of(ibv, struct vb_srq, ibv)->native, &ret->max_wr, &ret->max_sge, &ret->srq_limit);
    return vb_result(r);
}

int vb_get_srq_num(struct ibv_srq *ibv, uint32_t *ret)
{
    struct vb_srq *srq = container_of(ibv, struct vb_srq, ibv);
    if (!srq->is_xrc)
        return errno = EINVAL;
    *ret = uroce_srq_num(srq->native);
    return 0;
}

int ibv_destroy_srq(struct ibv_srq *ibv)
{
    struct vb_srq *srq = container_of(ibv, struct vb_srq, ibv);
    int r = uroce_srq_destroy(srq->native);
    if (r)
        return vb_result(r);
    vb_await_acks(ibv->context, &srq->async_given, &ibv->mutex, &ibv->cond, &ibv->events_completed);
    vb_del(vb_ctx(ibv->context), &srq->obj);
    pthread_mutex_destroy(&ibv->mutex);
    pthread_cond_destroy(&ibv->cond);
    free(srq);
    return 0;
}

/* ---- XRC domains: those of one file are one ---- */

static void *xrcd_of_file(struct vb_context *ctx, const void *arg)
{
    const struct stat *st = arg;
    list_for_each (l, &ctx->objects[VB_XRCD]) {
        struct vb_xrcd *x = container_of(l, struct vb_xrcd, obj.link);
        if (!x->of && x->inode == st->st_ino && x->device == st->st_dev)
            return x;
    }
    return NULL;
}

/* Another process that names the same file has a domain of its own: the kernel is not there to share it. */
struct ibv_xrcd *vb_open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *attr)
{
    const uint32_t needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    struct vb_xrcd *of = NULL;
    struct stat st = {0};
    if ((attr->comp_mask & needed) != needed || attr->comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED)
        return vb_null(-EINVAL);
    if (attr->fd >= 0) {
        if (fstat(attr->fd, &st))
            return NULL;
        of = vb_find(vb_ctx(c), xrcd_of_file, &st);
    }
    if (of && attr->oflags & O_EXCL)
        return vb_null(-EINVAL);
    if (!of && attr->fd >= 0 && !(attr->oflags & O_CREAT))
        return vb_null(-EAGAIN);
    struct vb_xrcd *x = calloc(1, sizeof *x);
    int r = !x ? -ENOMEM : of ? 0 : uroce_xrcd_open(vb_ctx(c)->native, &x->native);
    if (r) {
        free(x);
        return vb_null(r);
    }
    x->ibv.context = c;
    x->device = st.st_dev;
    x->inode = st.st_ino;
    if (of) {
        x->of = of;
        x->native = of->native;
        atomic_fetch_add(&of->users, 1);
    }
    vb_add(vb_ctx(c), VB_XRCD, &x->obj);
    return &x->ibv;
}

int vb_close_xrcd(struct ibv_xrcd *ibv)
{
    struct vb_xrcd *x = container_of(ibv, struct vb_xrcd, ibv);
    if (atomic_load(&x->users))
        return errno = EBUSY;
    int r = x->of ? 0 : uroce_xrcd_close(x->native);
    if (r)
        return vb_result(r);
    if (x->of)
        atomic_fetch_sub(&x->of->users, 1);
    vb_del(vb_ctx(ibv->context), &x->obj);
    free(x);
    return 0;
}

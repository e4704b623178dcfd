/* Memory windows. */
#include "verbs_priv.h"

struct ibv_mw *vb_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    struct vb_mw *mw = calloc(1, sizeof *mw);
    if (!mw)
        return vb_null(-ENOMEM);
    int r = uroce_mw_alloc(container_of(pd, struct vb_pd, ibv)->native, (int)type, &mw->native);
    if (r) {
        free(mw);
        return vb_null(r);
    }
    vb_add(vb_ctx(pd->context), VB_MW, &mw->obj);
    mw->ibv = (struct ibv_mw){
        .context = pd->context, .pd = pd, .rkey = uroce_mw_rkey(mw->native), .handle = mw->obj.handle, .type = type};
    return &mw->ibv;
}

int vb_dealloc_mw(struct ibv_mw *ibv)
{
    struct vb_mw *mw = container_of(ibv, struct vb_mw, ibv);
    int r = uroce_mw_dealloc(mw->native);
    if (r)
        return vb_result(r);
    vb_del(vb_ctx(ibv->context), &mw->obj);
    free(mw);
    return 0;
}

int vb_bind_info(struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info, struct uroce_send_wr *ret)
{
    if (!mw)
        return -EINVAL;
    ret->bind_mw.mw = container_of(mw, struct vb_mw, ibv)->native;
    ret->bind_mw.rkey = rkey;
    ret->bind_mw.bind = (struct uroce_mw_bind_info){
        .mr = info->mr ? container_of(info->mr, struct vb_mr, ibv)->native : NULL,
        .addr = info->addr,
        .length = info->length,
        .access = info->mw_access_flags,
    };
    return 0;
}

int vb_bind_wr(const struct ibv_send_wr *from, struct uroce_send_wr *ret)
{
    return vb_bind_info(from->bind_mw.mw, from->bind_mw.rkey, &from->bind_mw.bind_info, ret);
}

/* Type 1: the new key is chosen here, since the program has it when the call returns. */
int vb_bind_mw(struct ibv_qp *ibv, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    struct vb_qp *qp = container_of(ibv, struct vb_qp, ibv);
    uint32_t rkey = ibv_inc_rkey(mw->rkey);
    const struct uroce_send_wr *bad;
    struct uroce_send_wr wr = {.wr_id = bind->wr_id,
                               .opcode = UROCE_WR_BIND_MW,
                               .send_flags = bind->send_flags & ~(unsigned int)IBV_SEND_INLINE};
    int r = vb_bind_info(mw, rkey, &bind->bind_info, &wr);
    if (!r)
        r = uroce_post_send(qp->native, &wr, &bad);
    if (!r)
        mw->rkey = rkey;
    return vb_result(r);
}

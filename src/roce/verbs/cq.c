/* Completion queues. */
#include "verbs_priv.h"

#include <string.h>

#define BATCH 16 /* completions that are fetched at once */

/* struct ibv_wc is the first part of struct uroce_wc. */
#define WC_SAME(m)                                                                                                     \
    _Static_assert(offsetof(struct ibv_wc, m) == offsetof(struct uroce_wc, m) &&                                       \
                       sizeof(((struct ibv_wc *)0)->m) == sizeof(((struct uroce_wc *)0)->m),                           \
                   "completions are copied as they are")
WC_SAME(wr_id);
WC_SAME(status);
WC_SAME(opcode);
WC_SAME(vendor_err);
WC_SAME(byte_len);
WC_SAME(imm_data);
WC_SAME(invalidated_rkey);
WC_SAME(qp_num);
WC_SAME(src_qp);
WC_SAME(wc_flags);
WC_SAME(pkey_index);
WC_SAME(slid);
WC_SAME(sl);
WC_SAME(dlid_path_bits);
_Static_assert(sizeof(struct ibv_wc) <= offsetof(struct uroce_wc, slot_value), "and no more than that");

static struct vb_cq *cq_new(struct ibv_context *c, uint32_t cqe, void *cq_context, struct ibv_comp_channel *channel,
                            uint32_t comp_vector)
{
    if (!cqe || cqe > UROCE_CQE_MAX || comp_vector >= (uint32_t)c->num_comp_vectors) {
        vb_debug("create_cq refused: %u entries (at most %u), completion vector %u (of %d)", cqe, UROCE_CQE_MAX,
                 comp_vector, c->num_comp_vectors);
        return vb_null(-EINVAL);
    }
    struct vb_context *ctx = vb_ctx(c);
    struct vb_cq *cq = calloc(1, sizeof *cq);
    if (!cq)
        return vb_null(-ENOMEM);
    int r = uroce_cq_create(ctx->native, cqe, cq,
                            channel ? container_of(channel, struct vb_channel, ibv)->native : NULL, &cq->native);
    if (r) {
        free(cq);
        return vb_null(r);
    }
    uroce_cq_set_events(cq->native, ctx->events, cq);
    cq->ibv.context = c;
    cq->ibv.channel = channel;
    cq->ibv.cq_context = cq_context;
    cq->ibv.cqe = (int)uroce_cq_size(cq->native);
    pthread_mutex_init(&cq->ibv.mutex, NULL);
    pthread_cond_init(&cq->ibv.cond, NULL);
    pthread_mutex_init(&cq->poll_lock, NULL);
    if (channel) {
        scoped_lock(&c->mutex);
        channel->refcnt++;
    }
    vb_add(ctx, VB_CQ, &cq->obj);
    cq->ibv.handle = cq->obj.handle;
    return cq;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *cq_context, struct ibv_comp_channel *channel,
                             int comp_vector)
{
    struct vb_cq *cq = cq_new(c, cqe > 0 ? (uint32_t)cqe : 0, cq_context, channel, (uint32_t)comp_vector);
    return cq ? &cq->ibv : NULL;
}

#define WC_FLAGS                                                                                                       \
    ((uint64_t)IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |                                           \
     IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
#define CQ_FLAGS (IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)

struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr)
{
    if (attr->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) ||
        (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS && attr->flags & ~(uint32_t)CQ_FLAGS) ||
        attr->wc_flags & ~WC_FLAGS)
        return vb_refuse_ptr("create_cq_ex: of wc_flags 0x%llx not 0x%llx, comp_mask 0x%x, flags 0x%x",
                             (unsigned long long)attr->wc_flags, (unsigned long long)(attr->wc_flags & ~WC_FLAGS),
                             attr->comp_mask, attr->flags);
    struct vb_cq *cq = cq_new(c, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector);
    if (!cq)
        return NULL;
    vb_cq_ex_init(cq, attr);
    return &cq->ex;
}

int ibv_resize_cq(struct ibv_cq *ibv, int cqe)
{
    struct vb_cq *cq = container_of(ibv, struct vb_cq, ibv);
    int r = cqe > 0 ? uroce_cq_resize(cq->native, (uint32_t)cqe) : -EINVAL;
    if (!r)
        ibv->cqe = (int)uroce_cq_size(cq->native);
    return vb_result(r);
}

int vb_modify_cq(struct ibv_cq *ibv, struct ibv_modify_cq_attr *attr)
{
    (void)ibv;
    return vb_refuse("modify_cq: interrupts are not moderated (attr_mask 0x%x)", attr->attr_mask);
}

int ibv_destroy_cq(struct ibv_cq *ibv)
{
    struct vb_cq *cq = container_of(ibv, struct vb_cq, ibv);
    struct ibv_context *c = ibv->context;
    int r = uroce_cq_destroy(cq->native); /* waits for ibv_ack_cq_events */
    if (r)
        return vb_result(r);
    vb_await_acks(c, &cq->async_given, &ibv->mutex, &ibv->cond, &ibv->async_events_completed);
    if (ibv->channel) {
        scoped_lock(&c->mutex);
        ibv->channel->refcnt--;
    }
    vb_del(vb_ctx(c), &cq->obj);
    pthread_mutex_destroy(&ibv->mutex);
    pthread_cond_destroy(&ibv->cond);
    pthread_mutex_destroy(&cq->poll_lock);
    free(cq);
    return 0;
}

int vb_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *ret)
{
    struct uroce_cq *native = container_of(ibv, struct vb_cq, ibv)->native;
    struct uroce_wc wc[BATCH];
    int done = 0;
    while (done < n) {
        int want = n - done < BATCH ? n - done : BATCH;
        int got = done ? uroce_take_cq(native, want, wc) : uroce_poll_cq(native, want, wc);
        if (got < 0)
            return done ? done : got;
        for (int i = 0; i < got; i++) {
            memcpy(&ret[done], &wc[i], sizeof *ret);
            ret[done++].wc_flags &= ~(unsigned int)UROCE_WC_SLOT_VALUE;
        }
        if (got < want)
            return done;
    }
    uroce_cq_left(native);
    return done;
}

int vb_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
    int r = uroce_req_notify_cq(container_of(ibv, struct vb_cq, ibv)->native, solicited_only);
    return vb_result(r);
}

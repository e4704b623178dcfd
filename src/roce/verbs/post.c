/*
 * Posting. Requests have the layout of the native ones and are handed on as they are, but for the few that name
 * objects: those of UD queue pairs (address handles) and binds of windows.
 */
#include "verbs_priv.h"

#define BATCH 8 /* requests that are translated at once, on the stack */

#define SAME(a, b, m)                                                                                                  \
    _Static_assert(offsetof(struct a, m) == offsetof(struct b, m) &&                                                   \
                       sizeof(((struct a *)0)->m) == sizeof(((struct b *)0)->m),                                       \
                   "requests are handed on as they are")
#define SAME_AS(a, b, m, n)                                                                                            \
    _Static_assert(offsetof(struct a, m) == offsetof(struct b, n) &&                                                   \
                       sizeof(((struct a *)0)->m) == sizeof(((struct b *)0)->n),                                       \
                   "requests are handed on as they are")
SAME(ibv_sge, uroce_sge, addr);
SAME(ibv_sge, uroce_sge, length);
SAME(ibv_sge, uroce_sge, lkey);
_Static_assert(sizeof(struct ibv_sge) == sizeof(struct uroce_sge), "arrays of pieces");
SAME(ibv_recv_wr, uroce_recv_wr, wr_id);
SAME(ibv_recv_wr, uroce_recv_wr, next);
SAME(ibv_recv_wr, uroce_recv_wr, sg_list);
SAME(ibv_recv_wr, uroce_recv_wr, num_sge);
SAME(ibv_send_wr, uroce_send_wr, wr_id);
SAME(ibv_send_wr, uroce_send_wr, next);
SAME(ibv_send_wr, uroce_send_wr, sg_list);
SAME(ibv_send_wr, uroce_send_wr, num_sge);
SAME(ibv_send_wr, uroce_send_wr, opcode);
SAME(ibv_send_wr, uroce_send_wr, send_flags);
SAME(ibv_send_wr, uroce_send_wr, imm_data);
SAME(ibv_send_wr, uroce_send_wr, invalidate_rkey);
SAME(ibv_send_wr, uroce_send_wr, wr.rdma.remote_addr);
SAME(ibv_send_wr, uroce_send_wr, wr.rdma.rkey);
SAME(ibv_send_wr, uroce_send_wr, wr.atomic.remote_addr);
SAME(ibv_send_wr, uroce_send_wr, wr.atomic.compare_add);
SAME(ibv_send_wr, uroce_send_wr, wr.atomic.swap);
SAME(ibv_send_wr, uroce_send_wr, wr.atomic.rkey);
SAME_AS(ibv_send_wr, uroce_send_wr, qp_type.xrc.remote_srqn, xrc_remote_srqn);
_Static_assert(sizeof(struct uroce_send_wr) <= sizeof(struct ibv_send_wr), "nothing is read behind a request");

static int translate(const struct vb_qp *qp, const struct ibv_send_wr *from, struct uroce_send_wr *ret)
{
    memcpy(ret, from, offsetof(struct uroce_send_wr, bind_mw));
    if (from->opcode == IBV_WR_BIND_MW)
        return vb_bind_wr(from, ret);
    if (qp->ibv.qp_type == IBV_QPT_UD)
        ret->wr.ud.ah = from->wr.ud.ah ? container_of(from->wr.ud.ah, struct vb_ah, ibv)->native : NULL;
    return 0;
}

static int post_translated(struct vb_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **ret_bad)
{
    while (wr) {
        struct uroce_send_wr native[BATCH];
        struct ibv_send_wr *from[BATCH];
        const struct uroce_send_wr *bad = native;
        int n = 0, r = 0, bad_r = 0;
        for (; wr && n < BATCH; wr = wr->next) {
            bad_r = translate(qp, wr, &native[n]);
            if (bad_r)
                break;
            if (n)
                native[n - 1].next = &native[n];
            native[n].next = NULL;
            from[n++] = wr;
        }
        if (n)
            r = uroce_post_send(qp->native, native, &bad);
        if (r) {
            *ret_bad = from[bad - native];
            return vb_result(r);
        }
        if (bad_r) {
            *ret_bad = wr;
            return vb_result(bad_r);
        }
    }
    return 0;
}

int vb_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **ret_bad)
{
    struct vb_qp *qp = container_of(ibv, struct vb_qp, ibv);
    const struct uroce_send_wr *bad = (const struct uroce_send_wr *)(const void *)wr;
    bool names = ibv->qp_type == IBV_QPT_UD;
    for (const struct ibv_send_wr *w = wr; w && !names; w = w->next)
        names = w->opcode == IBV_WR_BIND_MW;
    if (names)
        return post_translated(qp, wr, ret_bad);
    int r = uroce_post_send(qp->native, bad, &bad);
    if (!r)
        return 0;
    *ret_bad = (struct ibv_send_wr *)(uintptr_t)bad;
    return vb_result(r);
}

int vb_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **ret_bad)
{
    const struct uroce_recv_wr *bad = (const struct uroce_recv_wr *)(const void *)wr;
    int r = uroce_post_recv(container_of(ibv, struct vb_qp, ibv)->native, bad, &bad);
    if (!r)
        return 0;
    *ret_bad = (struct ibv_recv_wr *)(uintptr_t)bad;
    return vb_result(r);
}

int vb_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **ret_bad)
{
    const struct uroce_recv_wr *bad = (const struct uroce_recv_wr *)(const void *)wr;
    int r = uroce_post_srq_recv(container_of(ibv, struct vb_srq, ibv)->native, bad, &bad);
    if (!r)
        return 0;
    *ret_bad = (struct ibv_recv_wr *)(uintptr_t)bad;
    return vb_result(r);
}

/* A queue pair of the kernel's soft-RoCE, through libibverbs: rxe_qp BUFFER-BYTES. Runs in the guest (rxe_guest.py). */
#include "lib/qp_lines.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)IBV_WR_SEND_WITH_INV == (int)UROCE_WR_SEND_WITH_INV, "");
_Static_assert((int)IBV_QP_DEST_QPN == (int)UROCE_QP_DEST_QPN, "");
_Static_assert((int)IBV_WC_GENERAL_ERR == (int)UROCE_WC_GENERAL_ERR, "");
_Static_assert((int)IBV_WC_RECV_RDMA_WITH_IMM == (int)UROCE_WC_RECV_RDMA_WITH_IMM, "");

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_ah *ah;
static struct ibv_mr *mr;
static struct ibv_mw *mw;

static int open_device(void *buf, size_t len, uint32_t *ret_lkey, uint32_t *ret_rkey)
{
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    ctx = n ? ibv_open_device(list[0]) : NULL;
    pd = ctx ? ibv_alloc_pd(ctx) : NULL;
    mr = pd ? ibv_reg_mr(pd, buf, len,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)
            : NULL;
    if (!mr)
        return -(errno ? errno : ENODEV);
    *ret_lkey = mr->lkey;
    *ret_rkey = mr->rkey;
    return 0;
}

static int gid(unsigned int index, union uroce_gid *ret)
{
    union ibv_gid g;
    if (ibv_query_gid(ctx, 1, (int)index, &g))
        return -ENOENT;
    memcpy(ret->raw, g.raw, sizeof g.raw);
    return 0;
}

static int create(enum uroce_qp_type type, uint32_t depth, uint32_t *ret_qpn)
{
    if (qp)
        ibv_destroy_qp(qp);
    if (ah)
        ibv_destroy_ah(ah);
    if (mw)
        ibv_dealloc_mw(mw);
    mw = NULL;
    if (cq)
        ibv_destroy_cq(cq);
    qp = NULL;
    ah = NULL;
    cq = ibv_create_cq(ctx, (int)(2 * depth), NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = (enum ibv_qp_type)type,
        .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1},
    };
    qp = cq ? ibv_create_qp(pd, &init) : NULL;
    if (!qp)
        return -errno;
    *ret_qpn = qp->qp_num;
    return 0;
}

static struct ibv_ah_attr ah_attr(const struct uroce_ah_attr *a)
{
    struct ibv_ah_attr r = {
        .is_global = 1, .port_num = 1, .grh = {.sgid_index = a->sgid_index, .hop_limit = a->hop_limit}};
    memcpy(r.grh.dgid.raw, a->dgid.raw, sizeof a->dgid.raw);
    return r;
}

static int modify(const struct uroce_qp_attr *a, unsigned int mask)
{
    struct ibv_qp_attr v = {
        .qp_state = (enum ibv_qp_state)a->qp_state,
        .path_mtu = (enum ibv_mtu)a->path_mtu,
        .qkey = a->qkey,
        .rq_psn = a->rq_psn,
        .sq_psn = a->sq_psn,
        .dest_qp_num = a->dest_qp_num,
        .qp_access_flags = a->qp_access_flags,
        .ah_attr = ah_attr(&a->ah_attr),
        .max_rd_atomic = a->max_rd_atomic,
        .max_dest_rd_atomic = a->max_dest_rd_atomic,
        .min_rnr_timer = a->min_rnr_timer,
        .port_num = a->port_num,
        .timeout = a->timeout,
        .retry_cnt = a->retry_cnt,
        .rnr_retry = a->rnr_retry,
    };
    return -ibv_modify_qp(qp, &v, (int)mask);
}

static int state(enum uroce_qp_state *ret)
{
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    int err = ibv_query_qp(qp, &a, IBV_QP_STATE, &init);
    if (!err)
        *ret = (enum uroce_qp_state)a.qp_state;
    return -err;
}

static int send_one(const struct uroce_send_wr *wr, const struct uroce_ah_attr *to)
{
    struct ibv_sge sge = {wr->sg_list->addr, wr->sg_list->length, wr->sg_list->lkey};
    struct ibv_send_wr v = {
        .wr_id = wr->wr_id,
        .sg_list = &sge,
        .num_sge = wr->num_sge,
        .opcode = (enum ibv_wr_opcode)wr->opcode,
        .send_flags = (wr->send_flags & UROCE_SEND_SIGNALED ? (unsigned int)IBV_SEND_SIGNALED : 0u) |
                      (wr->send_flags & UROCE_SEND_SOLICITED ? (unsigned int)IBV_SEND_SOLICITED : 0u),
        .imm_data = wr->imm_data, /* or the key to invalidate: a union on both sides */
    };
    struct ibv_send_wr *bad;
    if (to) {
        struct ibv_ah_attr a = ah_attr(to);
        if (!ah)
            ah = ibv_create_ah(pd, &a);
        if (!ah)
            return -errno;
        v.wr.ud.ah = ah;
        v.wr.ud.remote_qpn = wr->wr.ud.remote_qpn;
        v.wr.ud.remote_qkey = wr->wr.ud.remote_qkey;
    } else if (wr->opcode == UROCE_WR_ATOMIC_CMP_AND_SWP || wr->opcode == UROCE_WR_ATOMIC_FETCH_AND_ADD) {
        v.wr.atomic.remote_addr = wr->wr.atomic.remote_addr;
        v.wr.atomic.compare_add = wr->wr.atomic.compare_add;
        v.wr.atomic.swap = wr->wr.atomic.swap;
        v.wr.atomic.rkey = wr->wr.atomic.rkey;
    } else {
        v.wr.rdma.remote_addr = wr->wr.rdma.remote_addr;
        v.wr.rdma.rkey = wr->wr.rdma.rkey;
    }
    return -ibv_post_send(qp, &v, &bad);
}

static int recv_one(const struct uroce_recv_wr *wr)
{
    struct ibv_sge sge = {wr->sg_list->addr, wr->sg_list->length, wr->sg_list->lkey};
    struct ibv_recv_wr v = {.wr_id = wr->wr_id, .sg_list = &sge, .num_sge = wr->num_sge}, *bad;
    return -ibv_post_recv(qp, &v, &bad);
}

static int window(void *addr, size_t len, uint32_t *ret_rkey)
{
    mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    if (!mw)
        return -errno;
    struct ibv_send_wr v = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
    v.bind_mw.mw = mw;
    v.bind_mw.rkey = *ret_rkey = ibv_inc_rkey(mw->rkey);
    v.bind_mw.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)addr, len, IBV_ACCESS_REMOTE_WRITE};
    return -ibv_post_send(qp, &v, &bad);
}

static int poll_one(struct uroce_wc *ret)
{
    struct ibv_wc wc;
    int n = ibv_poll_cq(cq, 1, &wc);
    if (n == 1)
        *ret = (struct uroce_wc){
            .wr_id = wc.wr_id,
            .status = (enum uroce_wc_status)wc.status,
            .opcode = (enum uroce_wc_opcode)wc.opcode,
            .byte_len = wc.byte_len,
            .imm_data = wc.imm_data,
            .src_qp = wc.src_qp,
            .wc_flags = wc.wc_flags,
        };
    return n < 0 ? -EIO : n;
}

int main(int argc, char **argv)
{
    static const struct qp_api api = {
        .open = open_device,
        .gid = gid,
        .create = create,
        .modify = modify,
        .state = state,
        .send = send_one,
        .recv = recv_one,
        .window = window,
        .poll = poll_one,
    };
    return argc == 2 ? qp_lines_run(&api, strtoull(argv[1], NULL, 0)) : 2;
}

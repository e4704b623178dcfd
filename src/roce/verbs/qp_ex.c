/*
 * The extended interface of queue pairs (struct ibv_qp_ex). Between wr_start and wr_complete requests are built in
 * memory that was made with the queue pair, under its lock; wr_complete posts all or none.
 */
#include "verbs_priv.h"

#include <string.h>

static struct vb_qp *of(struct ibv_qp_ex *ex)
{
    return container_of(ex, struct vb_qp, ex);
}

/* The first error is told by wr_complete. */
static void fail(struct vb_builder *b, int err)
{
    if (!b->err)
        b->err = err;
}

/* A request more; NULL: none, and the error is noted. */
static struct uroce_send_wr *begin(struct ibv_qp_ex *ex, enum uroce_wr_opcode opcode)
{
    struct vb_builder *b = of(ex)->build;
    if (b->err)
        return NULL;
    if (b->n == b->max) {
        fail(b, ENOMEM);
        return NULL;
    }
    struct uroce_send_wr *w = &b->wr[b->n++];
    *w = (struct uroce_send_wr){
        .wr_id = ex->wr_id,
        .opcode = opcode,
        .send_flags = ex->wr_flags & (IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED),
    };
    return w;
}

/* The request that was begun last; NULL: after an error. */
static struct uroce_send_wr *current(struct vb_builder *b)
{
    if (!b->n)
        fail(b, EINVAL);
    return b->err ? NULL : &b->wr[b->n - 1];
}

/* ---- operations ---- */

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
    struct uroce_send_wr *w = begin(ex, UROCE_WR_ATOMIC_CMP_AND_SWP);
    if (!w)
        return;
    w->wr.atomic.remote_addr = addr;
    w->wr.atomic.rkey = rkey;
    w->wr.atomic.compare_add = compare;
    w->wr.atomic.swap = swap;
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
    struct uroce_send_wr *w = begin(ex, UROCE_WR_ATOMIC_FETCH_AND_ADD);
    if (!w)
        return;
    w->wr.atomic.remote_addr = addr;
    w->wr.atomic.rkey = rkey;
    w->wr.atomic.compare_add = add;
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
    struct uroce_send_wr *w = begin(ex, UROCE_WR_BIND_MW);
    if (w && vb_bind_info(mw, rkey, info, w))
        fail(of(ex)->build, EINVAL);
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
    struct uroce_send_wr *w = begin(ex, UROCE_WR_LOCAL_INV);
    if (w)
        w->invalidate_rkey = rkey;
}

static void begin_rdma(struct ibv_qp_ex *ex, enum uroce_wr_opcode opcode, uint32_t rkey, uint64_t addr, __be32 imm)
{
    struct uroce_send_wr *w = begin(ex, opcode);
    if (!w)
        return;
    w->wr.rdma.remote_addr = addr;
    w->wr.rdma.rkey = rkey;
    w->imm_data = imm;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
    begin_rdma(ex, UROCE_WR_RDMA_READ, rkey, addr, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
    begin_rdma(ex, UROCE_WR_RDMA_WRITE, rkey, addr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
    begin_rdma(ex, UROCE_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}

static void wr_send(struct ibv_qp_ex *ex)
{
    begin(ex, UROCE_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
    struct uroce_send_wr *w = begin(ex, UROCE_WR_SEND_WITH_IMM);
    if (w)
        w->imm_data = imm;
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
    struct uroce_send_wr *w = begin(ex, UROCE_WR_SEND_WITH_INV);
    if (w)
        w->invalidate_rkey = rkey;
}

/* Not among the operations that a queue pair may be made with. */
static void wr_send_tso(struct ibv_qp_ex *ex, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
    (void)hdr, (void)hdr_sz, (void)mss;
    fail(of(ex)->build, EOPNOTSUPP);
}

static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *value)
{
    (void)rkey, (void)addr, (void)value;
    fail(of(ex)->build, EOPNOTSUPP);
}

/* ---- their addresses and data ---- */

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
    struct uroce_send_wr *w = current(of(ex)->build);
    if (!w)
        return;
    w->wr.ud.ah = container_of(ah, struct vb_ah, ibv)->native;
    w->wr.ud.remote_qpn = qpn;
    w->wr.ud.remote_qkey = qkey;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
    struct uroce_send_wr *w = current(of(ex)->build);
    if (w)
        w->xrc_remote_srqn = srqn;
}

static struct uroce_sge *sges(struct vb_builder *b)
{
    return b->sge + (size_t)(b->n - 1) * b->max_sge;
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
    struct vb_builder *b = of(ex)->build;
    struct uroce_send_wr *w = current(b);
    size_t len = 0;
    if (!w)
        return;
    uint8_t *to = b->bytes + (size_t)(b->n - 1) * b->inline_bytes;
    for (size_t i = 0; i < n; i++) {
        if (list[i].length > b->inline_bytes - len) {
            fail(b, ENOMEM);
            return;
        }
        if (list[i].length)
            memcpy(to + len, list[i].addr, list[i].length);
        len += list[i].length;
    }
    w->send_flags |= UROCE_SEND_INLINE;
    w->sg_list = sges(b);
    w->num_sge = 1;
    w->sg_list[0] = (struct uroce_sge){.addr = (uintptr_t)to, .length = (uint32_t)len};
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
    wr_set_inline_data_list(ex, 1, &(struct ibv_data_buf){.addr = addr, .length = length});
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
    struct vb_builder *b = of(ex)->build;
    struct uroce_send_wr *w = current(b);
    if (!w)
        return;
    if (n > b->max_sge) {
        fail(b, ENOMEM);
        return;
    }
    w->sg_list = sges(b);
    w->num_sge = (int)n;
    if (n)
        memcpy(w->sg_list, list, n * sizeof *list);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
    wr_set_sge_list(ex, 1, &(struct ibv_sge){.addr = addr, .length = length, .lkey = lkey});
}

/* ---- the section ---- */

static void wr_start(struct ibv_qp_ex *ex)
{
    struct vb_builder *b = of(ex)->build;
    pthread_mutex_lock(&b->lock);
    b->n = 0;
    b->err = 0;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
    struct vb_qp *qp = of(ex);
    struct vb_builder *b = qp->build;
    const struct uroce_send_wr *bad;
    int r = -b->err;
    for (uint32_t i = 1; i < b->n; i++)
        b->wr[i - 1].next = &b->wr[i];
    if (!r && b->n > uroce_qp_send_room(qp->native))
        r = -ENOMEM;
    if (!r && b->n)
        r = uroce_post_send(qp->native, b->wr, &bad);
    pthread_mutex_unlock(&b->lock);
    return vb_result(r);
}

static void wr_abort(struct ibv_qp_ex *ex)
{
    pthread_mutex_unlock(&of(ex)->build->lock);
}

/* ---- made with the queue pair ---- */

#define OPS_UD ((uint64_t)IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)
#define OPS_UC                                                                                                         \
    (OPS_UD | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV |              \
     IBV_QP_EX_WITH_BIND_MW)
#define OPS_RC                                                                                                         \
    (OPS_UC | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |     \
     IBV_QP_EX_WITH_SEND_WITH_INV)

static uint64_t ops_of(enum ibv_qp_type type)
{
    switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_XRC_SEND:
        return OPS_RC;
    case IBV_QPT_UC:
        return OPS_UC;
    case IBV_QPT_UD:
        return OPS_UD;
    default:
        return 0;
    }
}

static void set_calls(struct ibv_qp_ex *ex)
{
    ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
    ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
    ex->wr_bind_mw = wr_bind_mw;
    ex->wr_local_inv = wr_local_inv;
    ex->wr_rdma_read = wr_rdma_read;
    ex->wr_rdma_write = wr_rdma_write;
    ex->wr_rdma_write_imm = wr_rdma_write_imm;
    ex->wr_send = wr_send;
    ex->wr_send_imm = wr_send_imm;
    ex->wr_send_inv = wr_send_inv;
    ex->wr_send_tso = wr_send_tso;
    ex->wr_set_ud_addr = wr_set_ud_addr;
    ex->wr_set_xrc_srqn = wr_set_xrc_srqn;
    ex->wr_set_inline_data = wr_set_inline_data;
    ex->wr_set_inline_data_list = wr_set_inline_data_list;
    ex->wr_set_sge = wr_set_sge;
    ex->wr_set_sge_list = wr_set_sge_list;
    ex->wr_start = wr_start;
    ex->wr_complete = wr_complete;
    ex->wr_abort = wr_abort;
    ex->wr_atomic_write = wr_atomic_write;
}

int vb_qp_ex_init(struct vb_qp *qp, const struct uroce_qp_cap *cap, uint64_t ops)
{
    if (ops & ~ops_of(qp->ibv.qp_type)) {
        vb_debug("create_qp_ex refused: operations 0x%llx are not there for this type",
                 (unsigned long long)(ops & ~ops_of(qp->ibv.qp_type)));
        return -EOPNOTSUPP;
    }
    struct vb_builder *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    pthread_mutex_init(&b->lock, NULL);
    b->max = cap->max_send_wr;
    b->max_sge = cap->max_send_sge ? cap->max_send_sge : 1;
    b->inline_bytes = cap->max_inline_data;
    b->wr = calloc((size_t)b->max + 1, sizeof *b->wr);
    b->sge = calloc((size_t)b->max + 1, b->max_sge * sizeof *b->sge);
    b->bytes = calloc((size_t)b->max + 1, (size_t)b->inline_bytes + 1);
    qp->build = b;
    if (!b->wr || !b->sge || !b->bytes) {
        vb_qp_ex_done(qp);
        return -ENOMEM;
    }
    set_calls(&qp->ex);
    return 0;
}

void vb_qp_ex_done(struct vb_qp *qp)
{
    struct vb_builder *b = qp->build;
    if (!b)
        return;
    pthread_mutex_destroy(&b->lock);
    free(b->wr);
    free(b->sge);
    free(b->bytes);
    free(b);
    qp->build = NULL;
}

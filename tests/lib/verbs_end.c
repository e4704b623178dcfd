#include "verbs_end.h"

#include "base/rng.h"
#include "base/util.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define RIGHTS                                                                                                         \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |            \
     IBV_ACCESS_MW_BIND)
#define QKEY 0x11111111u

uint8_t vend_timeout = 12;

static struct ibv_device *device_named(struct ibv_device **list, const char *name)
{
    for (int i = 0; list[i]; i++)
        if (!name || strcmp(ibv_get_device_name(list[i]), name) == 0)
            return list[i];
    fail_msg("no device %s", name ? name : "at all");
    return NULL;
}

void vend_open(struct vend *e, const char *device, size_t len)
{
    memset(e, 0, sizeof *e);
    struct ibv_device **list = ibv_get_device_list(NULL);
    assert_non_null(list);
    e->ctx = ibv_open_device(device_named(list, device));
    ibv_free_device_list(list);
    assert_non_null(e->ctx);
    e->pd = ibv_alloc_pd(e->ctx);
    e->channel = ibv_create_comp_channel(e->ctx);
    assert_non_null(e->pd);
    assert_non_null(e->channel);
    e->cq = ibv_create_cq(e->ctx, 4096, e, e->channel, 0);
    assert_non_null(e->cq);
    e->len = len;
    e->buf = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(e->buf, MAP_FAILED);
    e->mr = ibv_reg_mr(e->pd, e->buf, len, RIGHTS);
    assert_non_null(e->mr);
}

void vend_close(struct vend *e)
{
    assert_int_equal(ibv_dereg_mr(e->mr), 0);
    assert_int_equal(ibv_destroy_cq(e->cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(e->channel), 0);
    assert_int_equal(ibv_dealloc_pd(e->pd), 0);
    assert_int_equal(ibv_close_device(e->ctx), 0);
    munmap(e->buf, e->len);
}

struct ibv_qp *vend_qp(struct vend *e, enum ibv_qp_type type, uint32_t depth, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = e->cq, .recv_cq = e->cq, .srq = srq, .qp_type = type, .cap = {depth, srq ? 0 : depth, 2, 2, 64}};
    struct ibv_qp *qp = ibv_create_qp(e->pd, &init);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS, .qkey = QKEY};
    assert_non_null(qp);
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    mask |= type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    assert_int_equal(ibv_modify_qp(qp, &a, mask), 0);
    return qp;
}

struct vaddr vend_addr(const struct vend *e, const struct ibv_qp *qp, int gid_index)
{
    struct vaddr a = {
        .qpn = qp->qp_num, .psn = qp->qp_num * 77 & 0xffffff, .rkey = e->mr->rkey, .addr = (uintptr_t)e->buf};
    assert_int_equal(ibv_query_gid(e->ctx, 1, gid_index, &a.gid), 0);
    return a;
}

struct ibv_qp_attr vend_rtr(const struct vaddr *to, int gid_index, enum ibv_mtu mtu, int *ret_mask)
{
    *ret_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = to->qpn,
        .rq_psn = to->psn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = to->gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}},
    };
}

void vend_connect(struct ibv_qp *qp, const struct vaddr *to, int gid_index, enum ibv_mtu mtu, uint8_t rnr)
{
    int mask;
    struct ibv_qp_attr a = vend_rtr(to, gid_index, mtu, &mask);
    if (qp->qp_type == IBV_QPT_UC)
        mask &= ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    assert_int_equal(ibv_modify_qp(qp, &a, mask), 0);
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                             .timeout = vend_timeout,
                             .retry_cnt = 7,
                             .rnr_retry = rnr,
                             .sq_psn = qp->qp_num * 77 & 0xffffff,
                             .max_rd_atomic = 4};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type != IBV_QPT_UC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    assert_int_equal(ibv_modify_qp(qp, &a, mask), 0);
}

void vend_pair(struct vend *a, struct ibv_qp *qa, struct vend *b, struct ibv_qp *qb, int gid_index, uint8_t rnr)
{
    struct vaddr aa = vend_addr(a, qa, gid_index), ab = vend_addr(b, qb, gid_index);
    vend_connect(qa, &ab, gid_index, IBV_MTU_1024, rnr);
    vend_connect(qb, &aa, gid_index, IBV_MTU_1024, rnr);
}

int vend_send(struct vend *e, struct ibv_qp *qp, enum ibv_wr_opcode op, size_t offset, uint32_t len,
              const struct vaddr *to, uint64_t id)
{
    struct ibv_sge sge = {(uintptr_t)e->buf + offset, len, e->mr->lkey};
    struct ibv_send_wr *bad, wr = {
                                 .wr_id = id,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = op,
                                 .send_flags = IBV_SEND_SIGNALED,
                             };
    if (to) {
        wr.wr.rdma.remote_addr = to->addr + offset;
        wr.wr.rdma.rkey = to->rkey;
    }
    return ibv_post_send(qp, &wr, &bad);
}

int vend_recv(struct vend *e, struct ibv_qp *qp, size_t offset, uint32_t len, uint64_t id)
{
    struct ibv_sge sge = {(uintptr_t)e->buf + offset, len, e->mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
    return ibv_post_recv(qp, &wr, &bad);
}

void vend_wait(struct vend *e, int n, struct ibv_wc *ret)
{
    uint64_t until = now_ns() + 60 * NSEC_PER_SEC;
    for (int got = 0; got < n;) {
        int r = ibv_poll_cq(e->cq, n - got, ret + got);
        assert_true(r >= 0);
        got += r;
        if (r == 0 && now_ns() > until)
            fail_msg("%d of %d completions came", got, n);
    }
}

void vend_message(struct vend *e, struct ibv_qp *from, struct ibv_qp *to, uint64_t seed)
{
    size_t half = e->len / 2;
    struct ibv_wc wc[2];
    memcpy(e->buf, &seed, sizeof seed);
    memset(e->buf + half, 0, 64);
    assert_int_equal(vend_recv(e, to, half, 64, 1), 0);
    assert_int_equal(vend_send(e, from, IBV_WR_SEND, 0, 64, NULL, 2), 0);
    vend_wait(e, 2, wc);
    assert_int_equal(wc[0].status, IBV_WC_SUCCESS);
    assert_int_equal(wc[1].status, IBV_WC_SUCCESS);
    assert_memory_equal(e->buf, e->buf + half, 64);
}

void vend_quiet(struct vend *e)
{
    struct ibv_wc wc;
    for (uint64_t until = now_ns() + 50 * NSEC_PER_MSEC; now_ns() < until;)
        if (ibv_poll_cq(e->cq, 1, &wc))
            fail_msg("a completion too many: id %llu, status %d", (unsigned long long)wc.wr_id, wc.status);
}

void vend_fill(struct vend *e, uint64_t seed)
{
    struct rng r;
    rng_seed(&r, seed);
    rng_fill(&r, e->buf, e->len);
}

void vend_in_child(void)
{
    setenv("CMOCKA_TEST_ABORT", "1", 1);
}

pid_t vend_fork(int *ret_in, int *ret_out)
{
    int to[2], from[2];
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        vend_in_child();
    close(pid ? to[0] : to[1]);
    close(pid ? from[1] : from[0]);
    *ret_in = pid ? from[0] : to[0];
    *ret_out = pid ? to[1] : from[1];
    return pid;
}

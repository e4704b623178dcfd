#include "selftest.h"

#include "base/util.h"

#include <errno.h>
#include <string.h>

#define QKEY   0x11111111u
#define BYTES  64u
#define TRIES  5
#define TRY_NS (100 * NSEC_PER_MSEC)

struct test {
    struct uroce_pd *pd;
    struct uroce_cq *cq;
    struct uroce_mr *mr;
    struct uroce_qp *qp;
    struct uroce_ah *ah;
    uint8_t buf[BYTES + UROCE_GRH_BYTES + BYTES]; /* what is sent, and what comes */
};

static int open_pair(struct uroce_device *dev, struct test *t, unsigned int gid_index)
{
    struct uroce_ah_attr to = {.sgid_index = (uint8_t)gid_index, .hop_limit = 64};
    int r = uroce_query_gid(dev, gid_index, &to.dgid);
    r = r ? r : uroce_pd_alloc(dev, &t->pd);
    r = r ? r : uroce_cq_create(dev, 16, NULL, NULL, &t->cq);
    r = r ? r : uroce_mr_reg(t->pd, t->buf, sizeof t->buf, (uintptr_t)t->buf, UROCE_ACCESS_LOCAL_WRITE, &t->mr);
    struct uroce_qp_init init = {
        .type = UROCE_QPT_UD,
        .send_cq = t->cq,
        .recv_cq = t->cq,
        .cap = {.max_send_wr = TRIES, .max_recv_wr = TRIES, .max_send_sge = 1, .max_recv_sge = 1}};
    r = r ? r : uroce_qp_create(t->pd, &init, &t->qp);
    struct uroce_qp_attr a = {.qp_state = UROCE_QPS_INIT, .port_num = 1, .qkey = QKEY};
    r = r ? r : uroce_qp_modify(t->qp, &a, UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT | UROCE_QP_QKEY);
    a.qp_state = UROCE_QPS_RTR;
    r = r ? r : uroce_qp_modify(t->qp, &a, UROCE_QP_STATE);
    a.qp_state = UROCE_QPS_RTS;
    r = r ? r : uroce_qp_modify(t->qp, &a, UROCE_QP_STATE | UROCE_QP_SQ_PSN);
    return r ? r : uroce_ah_create(t->pd, &to, &t->ah);
}

static void close_pair(struct test *t)
{
    if (t->ah)
        uroce_ah_destroy(t->ah);
    if (t->qp)
        uroce_qp_destroy(t->qp);
    if (t->mr)
        uroce_mr_dereg(t->mr);
    if (t->cq)
        uroce_cq_destroy(t->cq);
    if (t->pd)
        uroce_pd_dealloc(t->pd);
}

static int post(struct test *t)
{
    struct uroce_sge in = {(uintptr_t)t->buf + BYTES, UROCE_GRH_BYTES + BYTES, uroce_mr_lkey(t->mr)};
    struct uroce_sge out = {(uintptr_t)t->buf, BYTES, uroce_mr_lkey(t->mr)};
    struct uroce_recv_wr recv = {.sg_list = &in, .num_sge = 1};
    const struct uroce_recv_wr *bad_recv;
    struct uroce_send_wr send = {.sg_list = &out, .num_sge = 1, .opcode = UROCE_WR_SEND};
    const struct uroce_send_wr *bad_send;
    send.wr.ud.ah = t->ah;
    send.wr.ud.remote_qpn = uroce_qp_num(t->qp);
    send.wr.ud.remote_qkey = QKEY;
    int r = uroce_post_recv(t->qp, &recv, &bad_recv);
    return r ? r : uroce_post_send(t->qp, &send, &bad_send);
}

/* Until the datagram came or the time is over. */
static int wait(struct test *t)
{
    struct uroce_wc wc;
    for (uint64_t end = now_ns() + TRY_NS, now; (now = now_ns()) < end;) {
        int r = uroce_wait_cq(t->cq, 1, &wc, end - now);
        if (r < 0)
            return r;
        if (r && wc.status == UROCE_WC_SUCCESS && (wc.opcode & UROCE_WC_RECV))
            return memcmp(t->buf, t->buf + BYTES + UROCE_GRH_BYTES, BYTES) ? -EBADMSG : 0;
    }
    return -ETIMEDOUT;
}

int selftest_address(struct uroce_device *dev, unsigned int gid_index)
{
    struct test t = {.pd = NULL};
    memset(t.buf, 0x5a, BYTES);
    int r = open_pair(dev, &t, gid_index);
    for (int i = 0; i < TRIES && (i == 0 || r == -ETIMEDOUT); i++) {
        r = r && r != -ETIMEDOUT ? r : post(&t);
        r = r ? r : wait(&t);
    }
    close_pair(&t);
    return r;
}

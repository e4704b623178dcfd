/* A queue pair of uroce, through its native API: uroce_qp BUFFER-BYTES. The environment configures the device. */
#include "lib/qp_lines.h"
#include "uroce/uroce.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static struct uroce_device *dev;
static struct uroce_pd *pd;
static struct uroce_mr *mr;
static struct uroce_cq *cq;
static struct uroce_qp *qp;
static struct uroce_ah *ah;
static struct uroce_mw *mw;

static int open_device(void *buf, size_t len, uint32_t *ret_lkey, uint32_t *ret_rkey)
{
    char err[256] = "";
    int r = uroce_open(NULL, &dev, err, sizeof err);
    if (r)
        fprintf(stderr, "uroce_qp: %s\n", err);
    r = r ? r : uroce_pd_alloc(dev, &pd);
    r = r ? r
          : uroce_mr_reg(pd, buf, len, (uintptr_t)buf,
                         UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ |
                             UROCE_ACCESS_REMOTE_ATOMIC | UROCE_ACCESS_MW_BIND,
                         &mr);
    if (r)
        return r;
    *ret_lkey = uroce_mr_lkey(mr);
    *ret_rkey = uroce_mr_rkey(mr);
    return 0;
}

static int gid(unsigned int index, union uroce_gid *ret)
{
    return uroce_query_gid(dev, index, ret);
}

static int destroy(void)
{
    int r = qp ? uroce_qp_destroy(qp) : 0;
    qp = r ? qp : NULL;
    r = r ? r : mw ? uroce_mw_dealloc(mw) : 0;
    mw = r ? mw : NULL;
    r = r ? r : ah ? uroce_ah_destroy(ah) : 0;
    ah = r ? ah : NULL;
    r = r ? r : cq ? uroce_cq_destroy(cq) : 0;
    cq = r ? cq : NULL;
    return r;
}

static int create(enum uroce_qp_type type, uint32_t depth, uint32_t *ret_qpn)
{
    int r = destroy();
    r = r ? r : uroce_cq_create(dev, 2 * depth, NULL, NULL, &cq);
    struct uroce_qp_init init = {
        .type = type,
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1},
    };
    r = r ? r : uroce_qp_create(pd, &init, &qp);
    if (!r)
        *ret_qpn = uroce_qp_num(qp);
    return r;
}

static int modify(const struct uroce_qp_attr *attr, unsigned int mask)
{
    return uroce_qp_modify(qp, attr, mask);
}

static int state(enum uroce_qp_state *ret)
{
    struct uroce_qp_attr a;
    int r = uroce_qp_query(qp, &a);
    if (!r)
        *ret = a.qp_state;
    return r;
}

static int send_one(const struct uroce_send_wr *wr, const struct uroce_ah_attr *to)
{
    struct uroce_send_wr v = *wr;
    const struct uroce_send_wr *bad;
    int r = to && !ah ? uroce_ah_create(pd, to, &ah) : 0;
    if (to)
        v.wr.ud.ah = ah;
    return r ? r : uroce_post_send(qp, &v, &bad);
}

static int recv_one(const struct uroce_recv_wr *wr)
{
    const struct uroce_recv_wr *bad;
    return uroce_post_recv(qp, wr, &bad);
}

static int window(void *addr, size_t len, uint32_t *ret_rkey)
{
    int r = uroce_mw_alloc(pd, 2, &mw);
    if (r)
        return r;
    uint32_t key = uroce_mw_rkey(mw);
    struct uroce_send_wr v = {.opcode = UROCE_WR_BIND_MW, .send_flags = UROCE_SEND_SIGNALED};
    const struct uroce_send_wr *bad;
    v.bind_mw.mw = mw;
    v.bind_mw.rkey = *ret_rkey = (key & ~0xffu) | ((key + 1) & 0xff);
    v.bind_mw.bind = (struct uroce_mw_bind_info){mr, (uintptr_t)addr, len, UROCE_ACCESS_REMOTE_WRITE};
    return uroce_post_send(qp, &v, &bad);
}

static int poll_one(struct uroce_wc *ret)
{
    return uroce_poll_cq(cq, 1, ret);
}

static int counters(struct uroce_counters *ret)
{
    uroce_device_counters(dev, ret);
    return 0;
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
        .counters = counters,
    };
    if (argc != 2)
        return 2;
    int r = qp_lines_run(&api, strtoull(argv[1], NULL, 0));
    if (dev && (destroy() || uroce_mr_dereg(mr) || uroce_pd_dealloc(pd) || uroce_close(dev))) {
        fprintf(stderr, "uroce_qp: the device does not close\n");
        return 1;
    }
    return r;
}

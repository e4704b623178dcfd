/*
 * The queue-pair engine alone: 4 KiB WRITEs between two engines in one thread, no wire, no codec, no copy (the payload
 * is taken as read by `copy`, as with shared memory). Packets per second with 1 and with 1,000 queue pairs, and their
 * ratio: the cost of a packet must not depend on the number of queue pairs.
 */
#include "qp_mask.h"
#include "qp_net.h"

#include "base/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QPS_MAX 1000
#define MSG     (16u * 4096u)
#define BATCH   16

struct side {
    struct qp_engine *e;
    struct qp_pd *pd;
    struct qp_mr *mr;
    struct qp_cq *cq;
    struct qp *qp[QPS_MAX];
    uint8_t *mem;
};
static struct side side[2];
static struct qp_rx rx;

static void must(int r)
{
    if (r < 0) {
        fprintf(stderr, "error %d\n", r);
        exit(1);
    }
}

static int no_copy(void *ctx, void *dst, size_t offset, size_t len)
{
    (void)ctx;
    (void)dst;
    (void)offset;
    (void)len;
    return 0;
}

static void connect_qp(struct side *s, int from, int i, uint32_t dest)
{
    struct qp_path path = qpnet_path(from, !from);
    struct uroce_qp_attr a = {.qp_state = UROCE_QPS_INIT,
                              .port_num = 1,
                              .qp_access_flags = UROCE_ACCESS_REMOTE_WRITE,
                              .path_mtu = UROCE_MTU_4096,
                              .dest_qp_num = dest,
                              .timeout = 14,
                              .retry_cnt = 7};

    must(qp_modify(s->qp[i], 0, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_INIT), NULL));
    a.qp_state = UROCE_QPS_RTR;
    must(qp_modify(s->qp[i], 0, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_RTR), &path));
    a.qp_state = UROCE_QPS_RTS;
    must(qp_modify(s->qp[i], 0, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_RTS), NULL));
}

static void open_side(struct side *s, int qps)
{
    struct qp_engine_config cfg = {.seed = 1};
    struct qp_init init = {.type = UROCE_QPT_RC, .cap = {16, 1, 1, 1, 0}, .sq_sig_all = true};

    must(qp_engine_new(&cfg, &s->e));
    must(qp_pd_new(s->e, &s->pd));
    must(qp_cq_new(s->e, 65536, NULL, &s->cq));
    s->mem = calloc(1, MSG);
    must(s->mem ? 0 : -1);
    must(qp_mr_reg(s->pd, s->mem, MSG, (uintptr_t)s->mem, UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE, NULL,
                   &s->mr));
    init.pd = s->pd;
    init.send_cq = init.recv_cq = s->cq;
    for (int i = 0; i < qps; i++)
        must(qp_create(s->e, &init, &s->qp[i]));
}

static void post(int i, uint64_t now)
{
    struct uroce_sge sge = {(uintptr_t)side[0].mem, MSG, qp_mr_lkey(side[0].mr)};
    struct uroce_send_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1, .opcode = UROCE_WR_RDMA_WRITE};
    const struct uroce_send_wr *bad;
    bool bell;

    wr.wr.rdma.remote_addr = (uintptr_t)side[1].mem;
    wr.wr.rdma.rkey = qp_mr_rkey(side[1].mr);
    must(qp_post_send(side[0].qp[i], &wr, &bad, &bell));
    if (bell)
        qp_engine_doorbell(side[0].e, now, side[0].qp[i]);
}

/* Moves what one side has to send to the other; returns packets. */
static int pump(int from, uint64_t now)
{
    static struct qp_tx tx[BATCH];
    int n, all = 0;

    while ((n = qp_engine_tx(side[from].e, now, tx, BATCH)) > 0) {
        for (int i = 0; i < n; i++) {
            rx.pkt = tx[i].pkt;
            rx.path.local = tx[i].path->remote;
            rx.path.remote = tx[i].path->local;
            qp_engine_rx(side[!from].e, now, &rx);
        }
        all += n;
        if (all >= 256)
            break;
    }
    return all;
}

/* Of this thread: other programs on the machine do not count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

static double run(int qps, double seconds)
{
    struct uroce_wc wc[64];
    uint64_t begin, t, pkts = 0;
    int n;

    for (int s = 0; s < 2; s++)
        open_side(&side[s], qps);
    for (int i = 0; i < qps; i++) {
        connect_qp(&side[0], 0, i, qp_num(side[1].qp[i]));
        connect_qp(&side[1], 1, i, qp_num(side[0].qp[i]));
    }
    rx.copy = no_copy;
    begin = t = cpu_ns();
    for (int i = 0; i < qps; i++)
        for (int k = 0; k < 4; k++)
            post(i, t);
    while (t - begin < (uint64_t)(seconds * 1e9)) {
        pkts += (uint64_t)pump(0, t);
        (void)pump(1, t);
        while ((n = qp_cq_poll(side[0].cq, 64, wc)) > 0)
            for (int i = 0; i < n; i++)
                post((int)wc[i].wr_id, t);
        t = cpu_ns();
        if (qp_engine_deadline(side[0].e) <= t)
            qp_engine_tick(side[0].e, t);
    }
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < qps; i++)
            must(qp_destroy(side[s].qp[i]));
        must(qp_mr_dereg(side[s].mr));
        must(qp_cq_free(side[s].cq));
        must(qp_pd_free(side[s].pd));
        must(qp_engine_free(side[s].e));
        free(side[s].mem);
    }
    return (double)pkts / ((double)(t - begin) / 1e9);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 2, one, many;

    one = run(1, seconds);
    many = run(QPS_MAX, seconds);
    printf(
        "4 KiB WRITE, both engines on one core, no copy: 1 QP %.2f M packets/s, %d QPs %.2f M packets/s, ratio %.2f\n",
        one / 1e6, QPS_MAX, many / 1e6, many / one);
    return 0;
}

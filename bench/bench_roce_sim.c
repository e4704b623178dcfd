/*
 * Engines over a simulated network, in virtual time: what the protocol does, apart from any machine's speed.
 *
 *   loss     one queue pair, WRITEs or READs of 64 KiB at depth 16 over 10 Gbit/s and 20 us, packets lost at random:
 * goodput of go-back-N and of selective repeat incast   8 senders to one receiver of 10 Gbit/s whose queue holds 256
 * packets and marks beyond 40: with and without DCQCN
 *
 * One line each, tab separated.
 */
#include "qp_mask.h"
#include "qp_net.h"

#include "base/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MSG    65536u
#define DEPTH  16
#define SENDER 8
#define RATE   10000000000ull

struct end {
    struct qp_engine *e;
    struct qp_pd *pd;
    struct qp_mr *mr;
    struct qp_cq *cq;
    struct qp *qp[SENDER];
    uint8_t *mem;
    int node;
};

static void must(int r)
{
    if (r < 0) {
        fprintf(stderr, "error %d\n", r);
        exit(1);
    }
}

static void open_end(struct end *x, struct qpnet *n, bool dcqcn, int qps)
{
    struct qp_engine_config cfg = {
        .seed = 1, .window_bytes = 4 * MSG, .dcqcn = {.enabled = dcqcn, .line_rate_bps = RATE}};
    struct qp_init init = {.type = UROCE_QPT_RC, .cap = {DEPTH, 1, 1, 1, 0}, .sq_sig_all = true};

    must(qp_engine_new(&cfg, &x->e));
    x->node = qpnet_add(n, x->e);
    must(qp_pd_new(x->e, &x->pd));
    must(qp_cq_new(x->e, 1024, NULL, &x->cq));
    x->mem = calloc(1, MSG);
    must(x->mem ? 0 : -1);
    must(qp_mr_reg(x->pd, x->mem, MSG, 0, 7, NULL, &x->mr));
    init.pd = x->pd;
    init.send_cq = init.recv_cq = x->cq;
    for (int i = 0; i < qps; i++)
        must(qp_create(x->e, &init, &x->qp[i]));
}

static void connect_end(struct end *x, int i, struct end *to, int k, bool sr)
{
    struct qp_path path = qpnet_path(x->node, to->node);
    struct qp_peer peer = {.selective_repeat = true};
    struct uroce_qp_attr a = {.qp_state = UROCE_QPS_INIT,
                              .port_num = 1,
                              .qp_access_flags = 7,
                              .path_mtu = UROCE_MTU_4096,
                              .dest_qp_num = qp_num(to->qp[k]),
                              .max_rd_atomic = 16,
                              .max_dest_rd_atomic = 16,
                              .timeout = 8, /* 1 ms */
                              .retry_cnt = 7,
                              .rnr_retry = 7};

    must(qp_modify(x->qp[i], 0, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_INIT), NULL));
    a.qp_state = UROCE_QPS_RTR;
    must(qp_modify(x->qp[i], 0, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_RTR), &path));
    a.qp_state = UROCE_QPS_RTS;
    must(qp_modify(x->qp[i], 0, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_RTS), NULL));
    if (sr)
        must(qp_set_peer(x->qp[i], &peer));
}

static void close_end(struct end *x, int qps)
{
    for (int i = 0; i < qps; i++)
        must(qp_destroy(x->qp[i]));
    must(qp_mr_dereg(x->mr));
    must(qp_cq_free(x->cq));
    must(qp_pd_free(x->pd));
    must(qp_engine_free(x->e));
    free(x->mem);
}

static void post(struct end *x, struct qpnet *n, const struct end *to, enum uroce_wr_opcode op)
{
    struct uroce_sge sge = {0, MSG, qp_mr_lkey(x->mr)};
    struct uroce_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = op};
    const struct uroce_send_wr *bad;
    bool bell;

    wr.wr.rdma.rkey = qp_mr_rkey(to->mr);
    must(qp_post_send(x->qp[0], &wr, &bad, &bell));
    if (bell)
        qp_engine_doorbell(x->e, n->now, x->qp[0]);
}

/* Messages that x completed since the last call; each is followed by a new one. */
static uint64_t again(struct end *x, struct qpnet *n, const struct end *to, enum uroce_wr_opcode op)
{
    struct uroce_wc wc[DEPTH];
    uint64_t done = 0;
    int k;

    while ((k = qp_cq_poll(x->cq, DEPTH, wc)) > 0)
        for (int i = 0; i < k; i++) {
            if (wc[i].status != UROCE_WC_SUCCESS) {
                fprintf(stderr, "status %d\n", (int)wc[i].status);
                exit(1);
            }
            done++;
            post(x, n, to, op);
        }
    return done;
}

static void loss(double p, bool sr, enum uroce_wr_opcode op, uint64_t ns)
{
    struct uroce_counters ca, cb;
    struct end a, b;
    struct qpnet n;
    uint64_t done = 0, begin;

    qpnet_init(&n, 7);
    n.link = (struct qpnet_link){.loss = p, .delay_ns = 20000, .rate_bps = RATE, .queue_pkts = 1000};
    open_end(&a, &n, false, 1);
    open_end(&b, &n, false, 1);
    connect_end(&a, 0, &b, 0, sr);
    connect_end(&b, 0, &a, 0, sr);
    begin = n.now;
    for (int i = 0; i < DEPTH; i++)
        post(&a, &n, &b, op);
    while (n.now < begin + ns && qpnet_step(&n, begin + ns))
        done += again(&a, &n, &b, op);
    qp_engine_counters(a.e, &ca);
    qp_engine_counters(b.e, &cb);
    printf("loss\t%s\t%s\t%g\t%.3f\t%.4f\n", op == UROCE_WR_RDMA_READ ? "READ" : "WRITE",
           sr ? "selective repeat" : "go-back-N", p, (double)(done * MSG) * 8 / (double)(n.now - begin),
           (double)(ca.retransmits + cb.retransmits) / (double)(ca.tx_pkts + cb.tx_pkts));
    fflush(stdout);
    close_end(&a, 1);
    close_end(&b, 1);
    qpnet_done(&n);
}

static void incast(bool dcqcn, bool sr, uint64_t ns)
{
    struct end s[SENDER], r;
    struct uroce_counters c;
    uint64_t done[SENDER] = {0}, all = 0, least = UINT64_MAX, most = 0, begin, retransmits = 0, pkts = 0;
    struct qpnet n;

    qpnet_init(&n, 7);
    n.link = (struct qpnet_link){.delay_ns = 5000, .rate_bps = RATE, .queue_pkts = 256, .mark_pkts = 40};
    open_end(&r, &n, dcqcn, SENDER);
    for (int i = 0; i < SENDER; i++) {
        open_end(&s[i], &n, dcqcn, 1);
        connect_end(&s[i], 0, &r, i, sr);
        connect_end(&r, i, &s[i], 0, sr);
    }
    begin = n.now;
    for (int i = 0; i < SENDER; i++)
        for (int k = 0; k < DEPTH; k++)
            post(&s[i], &n, &r, UROCE_WR_RDMA_WRITE);
    while (n.now < begin + ns && qpnet_step(&n, begin + ns))
        for (int i = 0; i < SENDER; i++)
            done[i] += again(&s[i], &n, &r, UROCE_WR_RDMA_WRITE);
    for (int i = 0; i < SENDER; i++) {
        qp_engine_counters(s[i].e, &c);
        retransmits += c.retransmits;
        pkts += c.tx_pkts;
        all += done[i];
        least = min_u64(least, done[i]);
        most = max_u64(most, done[i]);
        close_end(&s[i], 1);
    }
    printf("incast\t%s\t%s\t%.3f\t%.4f\t%.2f\n", dcqcn ? "DCQCN" : "none", sr ? "selective repeat" : "go-back-N",
           (double)(all * MSG) * 8 / (double)(n.now - begin), (double)retransmits / (double)pkts,
           (double)least / (double)(most ? most : 1));
    fflush(stdout);
    close_end(&r, SENDER);
    qpnet_done(&n);
}

int main(int argc, char **argv)
{
    static const double rates[] = {0, 1e-5, 1e-4, 1e-3, 1e-2};
    uint64_t ns = (uint64_t)((argc > 1 ? atof(argv[1]) : 200) * 1e6);

    printf("# loss\toperation\trecovery\tprobability\tgoodput Gbit/s\tsent again / sent\n");
    for (int op = 0; op < 2; op++)
        for (int sr = 0; sr < 2; sr++)
            for (size_t i = 0; i < ARRAY_SIZE(rates); i++)
                loss(rates[i], sr, op ? UROCE_WR_RDMA_READ : UROCE_WR_RDMA_WRITE, ns);
    printf("# incast\tcongestion control\trecovery\tgoodput Gbit/s\tsent again / sent\tslowest / fastest sender\n");
    for (int i = 0; i < 4; i++)
        incast(i & 1, i & 2, 5 * ns); /* rates need a while to meet */
    return 0;
}

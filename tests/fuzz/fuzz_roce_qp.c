/*
 * An engine that is fed arbitrary packets and calls. Whatever comes: no crash, memory that no key opens stays as it is,
 * no more completions than requests.
 */
#include "fuzz.h"

#include "base/rng.h"
#include "qp/qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MEM     16384u
#define OPEN    8192u /* the part of memory that is registered, in the middle */
#define BEGIN   4096u
#define QPS     5
#define FAR_MTU 6000u
#define ALL                                                                                                            \
    (UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ | UROCE_ACCESS_REMOTE_ATOMIC |    \
     UROCE_ACCESS_MW_BIND)

struct world {
    struct qp_engine *e;
    struct qp_pd *pd;
    struct qp_mr *mr;
    struct qp_mw *mw;
    struct qp_cq *cq;
    struct qp_srq *srq, *xsrq;
    struct qp_xrcd *xrcd;
    struct qp *qp[QPS];
    uint8_t mem[MEM];
    uint64_t now, posted, told;
    bool far;                  /* some queue pair has a second path */
    struct wire_pkt last[QPS]; /* that each sent */
    const uint8_t *in, *end;
};

static const enum uroce_qp_type types[QPS] = {UROCE_QPT_RC, UROCE_QPT_UC, UROCE_QPT_UD, UROCE_QPT_XRC_SEND,
                                              UROCE_QPT_XRC_RECV};

static uint32_t take(struct world *w, int bytes)
{
    uint32_t v = 0;

    while (bytes-- && w->in < w->end)
        v = v << 8 | *w->in++;
    return v;
}

static union uroce_gid gid(uint8_t last)
{
    return (union uroce_gid){.raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last}};
}

static struct qp_path path(void)
{
    return (struct qp_path){.local = gid(1), .remote = gid(2), .udp_sport = 0xc000};
}

/* All states and attributes; what the table does not allow is refused. */
static void move(struct world *w, struct qp *qp, enum uroce_qp_state to)
{
    struct uroce_qp_attr a = {.qp_state = to,
                              .port_num = 1,
                              .qp_access_flags = 15,
                              .path_mtu = UROCE_MTU_256,
                              .dest_qp_num = 77,
                              .max_rd_atomic = 3,
                              .max_dest_rd_atomic = 3,
                              .timeout = 5,
                              .retry_cnt = 2,
                              .rnr_retry = 2,
                              .qkey = 5};
    struct qp_path p = path();

    for (unsigned int i = 0; i < 16; i++) { /* one of these sets of attributes fits the type */
        unsigned int mask = UROCE_QP_STATE;
        if (to == UROCE_QPS_INIT)
            mask |= UROCE_QP_PKEY_INDEX | UROCE_QP_PORT | (i & 1 ? UROCE_QP_QKEY : UROCE_QP_ACCESS_FLAGS);
        if (to == UROCE_QPS_RTR && !(i & 1))
            mask |= UROCE_QP_AV | UROCE_QP_PATH_MTU | UROCE_QP_DEST_QPN | UROCE_QP_RQ_PSN;
        if (to == UROCE_QPS_RTR && i & 2)
            mask |= UROCE_QP_MAX_DEST_RD_ATOMIC | UROCE_QP_MIN_RNR_TIMER;
        if (to == UROCE_QPS_RTS && !(i & 8))
            mask |= UROCE_QP_SQ_PSN;
        if (to == UROCE_QPS_RTS && i & 2)
            mask |= UROCE_QP_TIMEOUT;
        if (to == UROCE_QPS_RTS && i & 4)
            mask |= UROCE_QP_RETRY_CNT | UROCE_QP_RNR_RETRY | UROCE_QP_MAX_QP_RD_ATOMIC;
        if (!qp_modify(qp, w->now, &a, mask, &p))
            return;
    }
}

static void open_world(struct world *w)
{
    struct qp_engine_config cfg = {.seed = 1, .dcqcn.enabled = true};

    CHECK(!qp_engine_new(&cfg, &w->e) && !qp_pd_new(w->e, &w->pd) && !qp_cq_new(w->e, 512, NULL, &w->cq));
    CHECK(!qp_mr_reg(w->pd, w->mem + BEGIN, OPEN, 0x10000, ALL, NULL, &w->mr) && !qp_mw_alloc(w->pd, 2, &w->mw));
    CHECK(!qp_xrcd_new(w->e, &w->xrcd) && !qp_srq_new(w->pd, 16, 2, NULL, NULL, NULL, &w->srq));
    CHECK(!qp_srq_new(w->pd, 16, 2, w->xrcd, w->cq, NULL, &w->xsrq));
    for (int i = 0; i < QPS; i++) {
        struct qp_init init = {
            .type = types[i], .pd = w->pd, .send_cq = w->cq, .recv_cq = w->cq, .cap = {16, 16, 2, 2, 64}};
        if (types[i] == UROCE_QPT_XRC_SEND || types[i] == UROCE_QPT_XRC_RECV)
            init.cap.max_recv_wr = 0;
        if (types[i] == UROCE_QPT_XRC_RECV) {
            init.cap.max_send_wr = 0;
            init.pd = NULL;
            init.send_cq = init.recv_cq = NULL;
            init.xrcd = w->xrcd;
        }
        CHECK(!qp_create(w->e, &init, &w->qp[i]));
        move(w, w->qp[i], UROCE_QPS_INIT);
        move(w, w->qp[i], UROCE_QPS_RTR);
        move(w, w->qp[i], UROCE_QPS_RTS);
    }
}

static void drain(struct world *w)
{
    static struct qp_tx tx[8];
    int n, all = 0;

    while (all < 200 && (n = qp_engine_tx(w->e, w->now, tx, 8)) > 0) {
        all += n;
        for (int i = 0; i < n; i++) {
            uint8_t head[WIRE_HEAD_MAX + 8];
            volatile uint8_t sum = 0;
            uint32_t len = 0;
            CHECK(wire_encode_head(&tx[i].pkt, head, sizeof head) > 0);
            for (int k = 0; k < tx[i].niov; k++) { /* what is sent may be read */
                const uint8_t *p = tx[i].iov[k].iov_base;
                for (size_t b = 0; b < tx[i].iov[k].iov_len; b++)
                    sum = (uint8_t)(sum + p[b]);
                len += (uint32_t)tx[i].iov[k].iov_len;
            }
            CHECK(len == tx[i].payload_len);
            for (int q = 0; q < QPS; q++)
                if (qp_num(w->qp[q]) == tx[i].qpn)
                    w->last[q] = tx[i].pkt;
        }
    }
}

/* A packet: any opcode, with a PSN and fields that are near to what is expected, or not. */
/* A peer's memory that can be fetched, sometimes. */
static int far_copy(void *ctx, void *dst, size_t offset, size_t len)
{
    const struct world *w = ctx;

    memset(dst, (int)offset, len);
    return (w->now + offset) % 5000 ? 0 : -EIO;
}

static void packet(struct world *w)
{
    static const uint8_t base[QPS] = {0x00, 0x20, 0x64, 0xa0, 0xa0};
    uint8_t bytes[512], sel = (uint8_t)take(w, 1);
    int q = sel % QPS;
    struct qp_rx rx = {.path = path(), .ecn_ce = sel & 0x80};
    struct uroce_qp_attr attr;
    const struct wire_op *op;
    size_t n;

    qp_query(w->qp[q], &attr, NULL);
    rx.pkt.opcode = (uint8_t)take(w, 1);
    if (sel & 0x40)
        rx.pkt.opcode = (uint8_t)(base[q] + rx.pkt.opcode % (q == 2 ? 2 : 0x18));
    op = wire_op(rx.pkt.opcode);
    if (!op)
        return; /* the decoder lets nothing else through */
    rx.pkt.dest_qp = sel & 0x20 ? take(w, 3) : qp_num(w->qp[q]);
    rx.pkt.pkey = sel == 0xff ? 1 : WIRE_PKEY_DEFAULT;
    rx.pkt.psn = psn_make((op->kind == WIRE_KIND_REQUEST ? attr.rq_psn : attr.sq_psn) + (uint32_t)(int8_t)take(w, 1));
    rx.pkt.solicited = sel & 1;
    rx.pkt.ackreq = sel & 2;
    rx.pkt.rkey = sel & 4 ? qp_mr_rkey(w->mr) : sel & 8 ? qp_mw_rkey(w->mw) : take(w, 4);
    rx.pkt.va = 0x10000u + (uint32_t)(int16_t)take(w, 2);
    rx.pkt.dma_len = take(w, sel & 16 ? 4 : 2);
    rx.pkt.imm = rx.pkt.inv_rkey = rx.pkt.rkey;
    rx.pkt.syndrome = (uint8_t)take(w, 1);
    rx.pkt.msn = take(w, 1);
    rx.pkt.qkey = 5;
    rx.pkt.srqn = qp_srq_num(w->xsrq);
    n = op->has_payload ? (sel & 16 ? take(w, 1) : 256) : 0;
    if (op->sack) {
        rx.pkt.sack_bits = (uint16_t)(take(w, 1) * 4);
        rx.pkt.sack_trigger = psn_make(take(w, 3));
        n = wire_sack_bytes(rx.pkt.sack_bits);
    }
    memset(bytes, sel, sizeof bytes);
    rx.pkt.payload = bytes;
    rx.pkt.payload_len = (uint32_t)n;
    if (w->far && sel & 1) {
        rx.path.port_id = 1;
        rx.pkt.far = true;
        if (n) {
            rx.pkt.payload_len = sel & 2 ? FAR_MTU : take(w, 2);
            rx.copy = far_copy;
            rx.copy_ctx = w;
            rx.pkt.payload = NULL;
        }
    }
    qp_engine_rx(w->e, w->now, &rx);
}

static void post(struct world *w)
{
    uint8_t sel = (uint8_t)take(w, 1);
    struct qp *qp = w->qp[sel % QPS];
    struct uroce_ah ah = {w->pd, path()};
    struct uroce_mw mw = {w->mw};
    struct uroce_mr mr = {w->mr};
    struct uroce_sge sge[2] = {{0x10000 + take(w, 2), take(w, 2), qp_mr_lkey(w->mr)},
                               {0x10000, take(w, 1), take(w, 1) ? qp_mr_lkey(w->mr) : 1}};
    struct uroce_send_wr wr = {
        .sg_list = sge, .num_sge = sel >> 6, .opcode = take(w, 1) % 10, .send_flags = take(w, 1) & 7};
    const struct uroce_send_wr *bad;
    bool bell;

    wr.num_sge = wr.num_sge > 2 ? 2 : wr.num_sge;
    if (types[sel % QPS] == UROCE_QPT_UD) {
        wr.wr.ud.ah = &ah;
        wr.wr.ud.remote_qpn = take(w, 3);
    } else if (wr.opcode == UROCE_WR_BIND_MW) {
        wr.bind_mw.mw = &mw;
        wr.bind_mw.rkey = qp_mw_rkey(w->mw) ^ take(w, 1);
        wr.bind_mw.bind = (struct uroce_mw_bind_info){&mr, 0x10000 + take(w, 2), take(w, 2), UROCE_ACCESS_REMOTE_WRITE};
    } else {
        wr.wr.rdma.remote_addr = take(w, 4);
        wr.wr.rdma.rkey = take(w, 4);
    }
    if (wr.opcode == UROCE_WR_LOCAL_INV)
        wr.invalidate_rkey = sel & 8 ? qp_mw_rkey(w->mw) : qp_mr_rkey(w->mr);
    if (!qp_post_send(qp, &wr, &bad, &bell))
        w->posted++;
    if (bell)
        qp_engine_doorbell(w->e, w->now, qp);
}

static void post_recv(struct world *w)
{
    uint8_t sel = (uint8_t)take(w, 1);
    struct uroce_sge sge = {0x10000 + take(w, 2), take(w, 2), qp_mr_lkey(w->mr)};
    struct uroce_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
    const struct uroce_recv_wr *bad;
    bool bell = false;
    int q = sel % (QPS + 1), r;

    if (q >= 3)
        r = qp_post_srq_recv(q == 3 ? w->srq : w->xsrq, &wr, &bad);
    else
        r = qp_post_recv(w->qp[q], &wr, &bad, &bell);
    w->posted += !r;
    if (bell)
        qp_engine_doorbell(w->e, w->now, w->qp[q]);
}

static void step(struct world *w)
{
    struct qp_path second = path();
    struct qp_peer peer = {.selective_repeat = true};
    struct uroce_wc wc[64];
    uint8_t op = (uint8_t)take(w, 1);
    int n;

    switch (op % 16) {
    case 0:
        w->now += (uint64_t)take(w, 2) * 1000;
        qp_engine_tick(w->e, w->now);
        break;
    case 1:
        move(w, w->qp[op / 16 % QPS], (enum uroce_qp_state)(take(w, 1) % 7));
        break;
    case 2:
        if (take(w, 1) & 1) {
            w->far = true;
            second.port_id = 1;
            peer = (struct qp_peer){.path = &second, .mtu_bytes = FAR_MTU, .window_bytes = 1 << 16};
        }
        (void)qp_set_peer(w->qp[op / 16 % QPS], &peer);
        break;
    case 3:
        if (op & 0x80)
            qp_engine_hold(w->e, 1, op & 0x40);
        else if (op & 0x40)
            qp_leave_path(w->qp[op / 16 % QPS]);
        else
            (void)qp_mr_rereg(w->mr, QP_REREG_ACCESS, NULL, NULL, 0, 0, ALL);
        break;
    case 4:
        n = qp_cq_poll(w->cq, 64, wc);
        w->told += n > 0 ? (uint64_t)n : 0;
        (void)qp_cq_arm(w->cq, op & 16);
        break;
    case 5:
    case 6:
        post(w);
        break;
    case 7:
    case 8:
        post_recv(w);
        break;
    case 9:
        drain(w);
        break;
    default:
        packet(w);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    struct uroce_wc wc[64];
    int n;

    memset(&w, 0, sizeof w);
    w.now = 1000000;
    w.in = data;
    w.end = data + size;
    open_world(&w);
    while (w.in < w.end)
        step(&w);
    drain(&w);
    while ((n = qp_cq_poll(w.cq, 64, wc)) > 0)
        w.told += (uint64_t)n;
    CHECK(w.told <= w.posted);
    for (uint32_t i = 0; i < MEM; i++)
        CHECK(!w.mem[i] || (i >= BEGIN && i < BEGIN + OPEN));
    for (int i = 0; i < QPS; i++)
        CHECK(!qp_destroy(w.qp[i]));
    CHECK(!qp_srq_free(w.srq) && !qp_srq_free(w.xsrq) && !qp_xrcd_free(w.xrcd));
    CHECK(!qp_mw_dealloc(w.mw) && !qp_mr_dereg(w.mr) && !qp_cq_free(w.cq) && !qp_pd_free(w.pd));
    CHECK(!qp_engine_free(w.e));
    return 0;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    struct rng r;
    size_t len;

    rng_seed(&r, n);
    len = (size_t)rng_below(&r, 400);
    len = len < cap ? len : cap;
    rng_fill(&r, buf, len);
    return len;
}

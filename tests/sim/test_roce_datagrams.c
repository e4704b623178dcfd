/*
 * Random programs of UC and UD queue pairs over a network that loses, reorders and duplicates. Every posted request and
 * receive completes exactly once and in order; what a receive tells is a message that was sent there, whole; no byte of
 * memory changes but those that a receive or a WRITE may; and over a network without faults nothing is missing.
 *
 * PENSTOCK_COUNT=1 PENSTOCK_SEED=n runs one program. PENSTOCK_EXTENDED=1: 100,000.
 */
#include "qp_net.h"
#include "seeds.h"

#include "base/util.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NODES  3
#define QPS    6
#define OPS    24
#define RECVS  30
#define MEM    (512 * 1024)
#define MSG    4000
#define UD_MTU 1024
#define QKEY   0x1234

struct op {
    enum uroce_wr_opcode opcode;
    uint32_t len, local, remote;
    int to; /* queue pair */
    bool signalled, is_inline, bad;
    int told; /* by receives */
};

struct pair {
    int node, peer; /* peer: UC */
    bool ud;
    struct qp *qp;
    struct op op[OPS];
    int nops, posted, done;
    bool dead;
    uint32_t recv_at[RECVS], recv_len[RECVS];
    int nrecvs, recvs_posted, recvs_told;
};

struct node {
    struct qp_engine *e;
    struct qp_pd *pd;
    struct qp_cq *cq;
    struct qp_mr *mr;
    uint8_t *mem, *shadow, *may, *other; /* may: 1 anything, 2 as before or as in `other` */
    uint32_t used;
};

struct program {
    uint64_t seed;
    struct rng rng;
    struct qpnet net;
    struct node node[NODES];
    struct pair pair[QPS];
    int nnodes, npairs;
    bool clean, repeats; /* nothing goes wrong; packets may come twice */
};

static struct {
    uint64_t sent, received, writes, failed, missing;
} totals;

static void fail_at(const struct program *p, const char *what, int line)
{
    fflush(stdout);
    fprintf(stderr, "line %d: %s is false, virtual time %llu ns\nagain: PENSTOCK_COUNT=1 PENSTOCK_SEED=%llu %s\n", line,
            what, (unsigned long long)p->net.now, (unsigned long long)p->seed, program_invocation_name);
    abort();
}
#define CHECK(c)                                                                                                       \
    do {                                                                                                               \
        if (!(c))                                                                                                      \
            fail_at(p, #c, __LINE__);                                                                                  \
    } while (0)

static uint32_t below(struct program *p, uint32_t n)
{
    return (uint32_t)rng_below(&p->rng, n);
}

static bool one_in(struct program *p, uint32_t n)
{
    return below(p, n) == 0;
}

static uint32_t take(struct program *p, struct node *n, uint32_t len)
{
    uint32_t at = n->used + 1 + below(p, 20);
    CHECK(at + len + 64 <= MEM);
    n->used = at + len;
    return at;
}

/* For one more message at least, and the place where it goes. */
static bool has_room(const struct node *n)
{
    return n->used + 2 * (MSG + 64) + 64 <= MEM;
}

/* ---- building ---- */

static void build_node(struct program *p, struct node *n)
{
    struct qp_engine_config cfg = {.seed = rng_u64(&p->rng), .ud_mtu_bytes = UD_MTU, .qpn_slot = below(p, 4)};
    unsigned int access = UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE;
    cfg.window_pkts = one_in(p, 2) ? 1 + below(p, 12) : 0;
    cfg.dcqcn.enabled = one_in(p, 3);
    n->mem = malloc(4 * MEM);
    CHECK(n->mem);
    n->shadow = n->mem + MEM;
    n->may = n->shadow + MEM;
    n->other = n->may + MEM;
    memset(n->may, 0, MEM);
    rng_fill(&p->rng, n->mem, MEM);
    n->used = 0;
    CHECK(!qp_engine_new(&cfg, &n->e) && !qp_pd_new(n->e, &n->pd) && !qp_cq_new(n->e, 2048, n, &n->cq));
    CHECK(!qp_mr_reg(n->pd, n->mem, MEM, (uintptr_t)n->mem, access, NULL, &n->mr));
    qpnet_add(&p->net, n->e);
}

static void build_op(struct program *p, struct pair *q, struct op *op)
{
    static const enum uroce_wr_opcode of[] = {UROCE_WR_SEND, UROCE_WR_SEND_WITH_IMM, UROCE_WR_RDMA_WRITE,
                                              UROCE_WR_RDMA_WRITE_WITH_IMM};
    *op = (struct op){.opcode = of[below(p, q->ud ? 2 : 4)], .signalled = !one_in(p, 4), .to = q->peer};
    op->len = one_in(p, 6) ? below(p, 2) : below(p, q->ud ? UD_MTU + 1 : MSG);
    op->is_inline = op->len <= 100 && one_in(p, 2);
    op->bad = one_in(p, 80) && op->len && !op->is_inline;
    while (q->ud && (op->to = (int)below(p, (uint32_t)p->npairs), !p->pair[op->to].ud))
        ;
    op->local = take(p, &p->node[q->node], op->len);
    if (op->opcode == UROCE_WR_RDMA_WRITE || op->opcode == UROCE_WR_RDMA_WRITE_WITH_IMM) {
        struct node *n = &p->node[p->pair[op->to].node];
        op->remote = take(p, n, op->len);
        memset(n->may + op->remote, 2, op->len);
        memcpy(n->other + op->remote, p->node[q->node].mem + op->local, op->len);
    }
}

static void build_pair(struct program *p, struct pair *q)
{
    struct node *n = &p->node[q->node];
    struct qp_init init = {.type = q->ud ? UROCE_QPT_UD : UROCE_QPT_UC,
                           .pd = n->pd,
                           .send_cq = n->cq,
                           .recv_cq = n->cq,
                           .cap = {OPS, RECVS, 2, 2, 100}};
    CHECK(!qp_create(n->e, &init, &q->qp));
    q->nrecvs = (int)below(p, RECVS + 1);
    for (int i = 0; i < q->nrecvs; i++) {
        if (!has_room(n)) {
            q->nrecvs = i;
            break;
        }
        uint32_t most = q->ud ? UD_MTU + UROCE_GRH_BYTES : MSG;
        q->recv_len[i] =
            q->ud && one_in(p, 10) ? below(p, most) : most; /* one that is too short is left for the next */
        q->recv_at[i] = take(p, n, q->recv_len[i]);
        memset(n->may + q->recv_at[i], 1, q->recv_len[i]);
    }
}

static void connect_pair(struct program *p, struct pair *q, uint32_t psn, uint32_t peer_psn, enum uroce_mtu mtu)
{
    struct uroce_qp_attr a = {.qp_state = UROCE_QPS_INIT, .port_num = 1, .qkey = QKEY, .path_mtu = mtu};
    struct qp_path path;
    unsigned int base = UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT;
    a.qp_access_flags = UROCE_ACCESS_REMOTE_WRITE;
    a.sq_psn = psn;
    a.rq_psn = peer_psn;
    CHECK(!qp_modify(q->qp, p->net.now, &a, base | (q->ud ? (unsigned)UROCE_QP_QKEY : (unsigned)UROCE_QP_ACCESS_FLAGS),
                     NULL));
    a.qp_state = UROCE_QPS_RTR;
    base = UROCE_QP_STATE;
    if (!q->ud) {
        path = qpnet_path(q->node, p->pair[q->peer].node);
        a.dest_qp_num = qp_num(p->pair[q->peer].qp);
        base |= UROCE_QP_AV | UROCE_QP_PATH_MTU | UROCE_QP_DEST_QPN | UROCE_QP_RQ_PSN;
    }
    CHECK(!qp_modify(q->qp, p->net.now, &a, base, q->ud ? NULL : &path));
    a.qp_state = UROCE_QPS_RTS;
    CHECK(!qp_modify(q->qp, p->net.now, &a, UROCE_QP_STATE | UROCE_QP_SQ_PSN, NULL));
}

static void build(struct program *p)
{
    struct qpnet_link *l = &p->net.link;
    p->nnodes = 2 + (int)below(p, NODES - 1);
    p->npairs = 2 * (1 + (int)below(p, QPS / 2));
    p->clean = one_in(p, 4);
    l->delay_ns = 500 + below(p, 50000);
    if (!p->clean) {
        l->loss = (double)below(p, 300) / 1000;
        l->duplicate = one_in(p, 2) ? 0 : (double)below(p, 100) / 1000;
        l->reorder = one_in(p, 2) ? 0 : (double)below(p, 300) / 1000;
        l->jitter_ns = 1 + below(p, 200000);
        p->repeats = l->duplicate > 0;
    }
    p->net.batch = 1 + (int)below(p, 20);
    for (int i = 0; i < p->nnodes; i++)
        build_node(p, &p->node[i]);
    for (int i = 0; i < p->npairs; i++) {
        struct pair *q = &p->pair[i];
        q->ud = i % 2 ? p->pair[i - 1].ud : one_in(p, 2);
        q->node = (int)below(p, (uint32_t)p->nnodes);
        q->peer = i ^ 1;
        build_pair(p, q);
    }
    for (int i = 0; i < p->npairs; i += 2) {
        uint32_t psn[2] = {UROCE_PSN_MASK - below(p, 60), below(p, 1u << 24)};
        enum uroce_mtu mtu = (enum uroce_mtu)(UROCE_MTU_256 + below(p, 3));
        for (int k = 0; k < 2; k++)
            connect_pair(p, &p->pair[i + k], psn[k], psn[!k], mtu);
    }
    for (int i = 0; i < p->npairs; i++) {
        struct pair *q = &p->pair[i];
        q->nops = (int)below(p, OPS + 1);
        for (int k = 0; k < q->nops; k++) {
            if (!has_room(&p->node[q->node]) || !has_room(&p->node[p->pair[q->peer].node])) {
                q->nops = k;
                break;
            }
            build_op(p, q, &q->op[k]);
        }
    }
    for (int i = 0; i < p->nnodes; i++)
        memcpy(p->node[i].shadow, p->node[i].mem, MEM);
}

/* ---- posting ---- */

static int pieces(struct program *p, struct node *n, uint32_t at, uint32_t len, struct uroce_sge *ret)
{
    uint32_t first = below(p, len + 1);
    ret[0] = (struct uroce_sge){(uintptr_t)n->mem + at, first, qp_mr_lkey(n->mr)};
    ret[1] = (struct uroce_sge){(uintptr_t)n->mem + at + first, len - first, qp_mr_lkey(n->mr)};
    return 2;
}

static void post(struct program *p, struct pair *q)
{
    struct node *n = &p->node[q->node];
    const struct op *op = &q->op[q->posted];
    struct uroce_ah ah = {.pd = n->pd, .path = qpnet_path(q->node, p->pair[op->to].node)};
    const struct uroce_send_wr *bad;
    struct uroce_sge sge[2];
    struct uroce_send_wr wr = {.wr_id = (uint64_t)q->posted, .sg_list = sge, .opcode = op->opcode};
    bool bell = false;
    wr.num_sge = pieces(p, n, op->local, op->len, sge);
    if (op->bad)
        sge[1] = (struct uroce_sge){(uintptr_t)n->mem, 1, 0x77777777};
    wr.send_flags = (op->signalled ? UROCE_SEND_SIGNALED : 0u) | (op->is_inline ? (unsigned)UROCE_SEND_INLINE : 0u);
    wr.imm_data = op->local;
    if (q->ud) {
        wr.wr.ud.ah = &ah;
        wr.wr.ud.remote_qpn = qp_num(p->pair[op->to].qp);
        wr.wr.ud.remote_qkey = QKEY;
    } else {
        const struct node *to = &p->node[p->pair[op->to].node];
        wr.wr.rdma.remote_addr = (uintptr_t)to->mem + op->remote;
        wr.wr.rdma.rkey = qp_mr_rkey(to->mr);
    }
    int r = qp_post_send(q->qp, &wr, &bad, &bell);
    CHECK(r == 0);
    q->posted++;
    if (bell)
        qp_engine_doorbell(n->e, p->net.now, q->qp);
}

static void post_recv(struct program *p, struct pair *q)
{
    struct node *n = &p->node[q->node];
    const struct uroce_recv_wr *bad;
    struct uroce_sge sge[2];
    struct uroce_recv_wr wr = {.wr_id = (uint64_t)q->recvs_posted, .sg_list = sge};
    bool bell = false;
    wr.num_sge = pieces(p, n, q->recv_at[q->recvs_posted], q->recv_len[q->recvs_posted], sge);
    CHECK(!qp_post_recv(q->qp, &wr, &bad, &bell));
    q->recvs_posted++;
    if (bell)
        qp_engine_doorbell(n->e, p->net.now, q->qp);
}

/* ---- completions ---- */

static void told_send(struct program *p, struct pair *q, const struct uroce_wc *wc)
{
    while (q->done < q->posted && (uint64_t)q->done < wc->wr_id)
        CHECK(!q->dead && !q->op[q->done++].signalled);
    CHECK(q->done < q->posted && wc->wr_id == (uint64_t)q->done);
    const struct op *op = &q->op[q->done++];
    totals.sent++;
    if (wc->status == UROCE_WC_SUCCESS) {
        CHECK(!q->dead && op->signalled && !op->bad);
        return;
    }
    totals.failed++;
    CHECK(q->dead ? wc->status == UROCE_WC_WR_FLUSH_ERR : op->bad && wc->status == UROCE_WC_LOC_PROT_ERR);
    q->dead = true;
}

/* The message that a receive tells: one that was sent to this queue pair, with these very bytes. */
static struct op *message_of(struct program *p, int to, const struct uroce_wc *wc, const uint8_t *bytes, uint32_t len)
{
    bool write = wc->opcode == UROCE_WC_RECV_RDMA_WITH_IMM, imm = wc->wc_flags & UROCE_WC_WITH_IMM;
    for (int i = 0; i < p->npairs; i++) {
        struct pair *from = &p->pair[i];
        for (int k = 0; k < from->posted; k++) {
            struct op *op = &from->op[k];
            const uint8_t *sent = p->node[from->node].shadow + op->local;
            bool same = op->opcode == (write ? UROCE_WR_RDMA_WRITE_WITH_IMM
                                       : imm ? UROCE_WR_SEND_WITH_IMM
                                             : UROCE_WR_SEND);
            if (op->to != to || !same || op->len != len || (imm && wc->imm_data != op->local) ||
                (!p->repeats && op->told))
                continue;
            if (!memcmp(write ? p->node[p->pair[to].node].mem + op->remote : bytes, sent, len))
                return op;
        }
    }
    return NULL;
}

static void told_recv(struct program *p, int index, const struct uroce_wc *wc)
{
    struct pair *q = &p->pair[index];
    CHECK(wc->wr_id == (uint64_t)q->recvs_told && q->recvs_told < q->recvs_posted);
    const uint8_t *bytes = p->node[q->node].mem + q->recv_at[q->recvs_told++];
    if (wc->status != UROCE_WC_SUCCESS) {
        CHECK(wc->status == UROCE_WC_WR_FLUSH_ERR);
        return;
    }
    uint32_t len = wc->byte_len;
    totals.received++;
    if (q->ud) {
        CHECK(wc->wc_flags & UROCE_WC_GRH && len >= UROCE_GRH_BYTES);
        bytes += UROCE_GRH_BYTES;
        len -= UROCE_GRH_BYTES;
    }
    struct op *op = message_of(p, index, wc, bytes, len);
    CHECK(op);
    op->told++;
}

static void poll_node(struct program *p, int node, int most)
{
    struct uroce_wc wc;
    for (; most && qp_cq_poll(p->node[node].cq, 1, &wc) == 1; most--) {
        int i = 0;
        while (i < p->npairs && (p->pair[i].node != node || qp_num(p->pair[i].qp) != wc.qp_num))
            i++;
        CHECK(i < p->npairs);
        if (wc.opcode & UROCE_WC_RECV)
            told_recv(p, i, &wc);
        else
            told_send(p, &p->pair[i], &wc);
    }
}

/* ---- the run ---- */

static void run_all(struct program *p)
{
    for (int step = 0; step < 400; step++) {
        struct pair *q = &p->pair[below(p, (uint32_t)p->npairs)];
        if (one_in(p, 2) && q->posted < q->nops && !q->dead)
            post(p, q);
        if ((p->clean || one_in(p, 2)) && q->recvs_posted < q->nrecvs)
            post_recv(p, q);
        for (int s = (int)below(p, 12); s > 0; s--)
            if (!qpnet_step(&p->net, p->net.now + 50000))
                p->net.now += 50000;
        if (one_in(p, 2))
            poll_node(p, (int)below(p, (uint32_t)p->nnodes), 1 + (int)below(p, 8));
    }
    qpnet_run(&p->net, p->net.now + NSEC_PER_SEC);
}

static void end_all(struct program *p)
{
    struct uroce_qp_attr a = {.qp_state = UROCE_QPS_ERR};
    for (int i = 0; i < p->nnodes; i++)
        poll_node(p, i, 1000);
    for (int i = 0; i < p->npairs; i++) { /* nothing is under way: all that is unsignalled is done */
        struct pair *q = &p->pair[i];
        for (; !q->dead && q->done < q->posted; q->done++)
            CHECK(!q->op[q->done].signalled && !q->op[q->done].bad);
        CHECK(q->done == q->posted);
        CHECK(!qp_modify(q->qp, p->net.now, &a, UROCE_QP_STATE, NULL));
    }
    for (int i = 0; i < p->nnodes; i++)
        poll_node(p, i, 1000);
    for (int i = 0; i < p->npairs; i++)
        CHECK(p->pair[i].recvs_told == p->pair[i].recvs_posted && p->pair[i].done == p->pair[i].posted);
}

/* Over a network without faults a message is missing only where there was no receive (long enough) for it. */
static void count_missing(struct program *p)
{
    uint64_t missing = 0, excused = 0;
    for (int i = 0; i < p->npairs; i++)
        for (int k = 0; k < p->pair[i].done; k++) {
            const struct op *op = &p->pair[i].op[k];
            if (op->opcode == UROCE_WR_RDMA_WRITE)
                totals.writes++;
            else if (!op->bad && !p->pair[i].dead && op->len >= 16) /* short ones may be taken for another's */
                missing += !op->told;
        }
    for (int i = 0; i < p->nnodes; i++) {
        struct uroce_counters c;
        qp_engine_counters(p->node[i].e, &c);
        excused += c.drop_no_receive + c.drop_length + c.drop_other;
    }
    totals.missing += missing;
    if (p->clean)
        CHECK(missing <= excused);
}

static void check_memory(struct program *p)
{
    for (int i = 0; i < p->nnodes; i++) {
        const struct node *n = &p->node[i];
        for (uint32_t k = 0; k < MEM; k++)
            CHECK(n->mem[k] == n->shadow[k] || n->may[k] == 1 || (n->may[k] == 2 && n->mem[k] == n->other[k]));
    }
}

static void close_all(struct program *p)
{
    for (int i = 0; i < p->npairs; i++)
        CHECK(!qp_destroy(p->pair[i].qp));
    for (int i = 0; i < p->nnodes; i++) {
        struct node *n = &p->node[i];
        CHECK(!qp_mr_dereg(n->mr) && !qp_cq_free(n->cq) && !qp_pd_free(n->pd) && !qp_engine_free(n->e));
        free(n->mem);
    }
    qpnet_done(&p->net);
}

static void run(uint64_t seed)
{
    static struct program program;
    struct program *p = &program;
    memset(p, 0, sizeof *p);
    p->seed = seed;
    rng_seed(&p->rng, seed);
    qpnet_init(&p->net, rng_u64(&p->rng));
    build(p);
    run_all(p);
    end_all(p);
    check_memory(p);
    count_missing(p);
    close_all(p);
}

static void random_datagrams_complete_once_and_arrive_whole_or_not_at_all(void **state)
{
    struct seeds s = seeds_wanted(500, 100000);
    (void)state;
    printf("seed %llu\n", (unsigned long long)s.base);
    for (uint64_t i = 0; i < s.n; i++)
        run(s.base + i);
    printf("%llu requests, %llu failed; %llu receives, %llu WRITEs, %llu messages lost\n",
           (unsigned long long)totals.sent, (unsigned long long)totals.failed, (unsigned long long)totals.received,
           (unsigned long long)totals.writes, (unsigned long long)totals.missing);
    if (s.many)
        assert_true(totals.sent && totals.failed && totals.received && totals.writes && totals.missing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_datagrams_complete_once_and_arrive_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Random engines, connections and programs. */
#include "roce_model.h"

#include "base/util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t below(struct rm *m, uint32_t n)
{
    return (uint32_t)rng_below(&m->rng, n);
}

static bool one_in(struct rm *m, uint32_t n)
{
    return below(m, n) == 0;
}

/* A piece of a node's arena with a gap before it. */
static uint32_t take(struct rm *m, struct rm_node *n, uint32_t len, uint32_t align)
{
    uint32_t at = (uint32_t)align_up(n->used + 1 + below(m, 40), align);

    RM_CHECK(m, at + len + 64 <= RM_MEM);
    n->used = at + len;
    return at;
}

/* Other bytes for each node and seed, without the cost of making them each time. */
static void fill(struct rm *m, uint8_t *mem)
{
    static uint8_t pattern[RM_MEM];
    static bool made;
    uint32_t at = below(m, RM_MEM);

    if (!made) {
        struct rng r;
        rng_seed(&r, 1);
        rng_fill(&r, pattern, RM_MEM);
        made = true;
    }
    memcpy(mem, pattern + at, RM_MEM - at);
    memcpy(mem + RM_MEM - at, pattern, at);
}

static void build_node(struct rm *m, struct rm_node *n)
{
    struct qp_engine_config cfg = {.seed = rng_u64(&m->rng), .qpn_slot = below(m, 4)};
    unsigned int access =
        UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ | UROCE_ACCESS_REMOTE_ATOMIC;

    cfg.window_pkts = one_in(m, 2) ? 1 + below(m, 12) : 0;
    cfg.window_bytes = one_in(m, 4) ? 1 + below(m, 8000) : 0;
    cfg.total_bytes = one_in(m, 3) ? 1 + below(m, 20000) : 0;
    cfg.ack_every = one_in(m, 3) ? 1 + below(m, 8) : 0;
    cfg.reorder_pkts = one_in(m, 3) ? 1 + below(m, 30) : 0;
    cfg.dcqcn.enabled = one_in(m, 3);
    n->mem = malloc(RM_MEM * 2);
    n->shadow = n->mem + RM_MEM;
    n->maybe = calloc(2, RM_MEM);
    RM_CHECK(m, n->mem && n->maybe);
    n->alt = n->maybe + RM_MEM;
    fill(m, n->mem);
    n->used = 0;
    RM_CHECK(m, !qp_engine_new(&cfg, &n->e) && !qp_pd_new(n->e, &n->pd));
    RM_CHECK(m, !qp_cq_new(n->e, 2048, n, &n->cq));
    RM_CHECK(m, !qp_mr_reg(n->pd, n->mem, RM_MEM, (uintptr_t)n->mem, access, NULL, &n->mr));
    n->srq = n->xrc = (struct rm_srq){0};
    if (one_in(m, 4))
        RM_CHECK(m, !qp_srq_new(n->pd, 2 * RM_CONNS * RM_RECVS, 3, NULL, NULL, n, &n->srq.q));
    RM_CHECK(m, !qp_xrcd_new(n->e, &n->xrcd));
    RM_CHECK(m, !qp_srq_new(n->pd, 2 * RM_CONNS * RM_RECVS, 3, n->xrcd, n->cq, n, &n->xrc.q));
    (void)qpnet_add(&m->net, n->e);
}

static uint32_t random_len(struct rm *m, uint32_t mtu)
{
    uint32_t n;

    switch (below(m, 8)) {
    case 0:
        return below(m, 2);
    case 1:
        n = mtu - 1 + below(m, 3);
        break;
    case 2:
        n = mtu * (1 + below(m, 6)) - 1 + below(m, 3);
        break;
    case 3:
        n = below(m, RM_MSG);
        break;
    default:
        n = below(m, 2 * mtu);
    }
    return n > RM_MSG ? RM_MSG : n;
}

static enum rm_kind random_kind(struct rm *m, bool wrong)
{
    static const enum rm_kind often[] = {RM_WRITE,     RM_WRITE, RM_SEND, RM_SEND,  RM_READ,
                                         RM_WRITE_IMM, RM_READ,  RM_FADD, RM_CSWAP, RM_SEND_IMM};

    if (wrong)
        return RM_BAD_KEY + below(m, 3);
    return often[below(m, ARRAY_SIZE(often))];
}

static void build_op(struct rm *m, struct rm_conn *c, int d, struct rm_op *op, uint32_t mtu, uint64_t *counter)
{
    struct rm_node *me = &m->node[c->end[d].node], *peer = &m->node[c->end[!d].node];
    struct rm_dir *dir = &c->dir[d];

    *op = (struct rm_op){.signalled = !one_in(m, 4), .fence = one_in(m, 8), .solicited = one_in(m, 3)};
    op->kind = random_kind(m, c->poisoned && one_in(m, RM_OPS));
    op->len = random_len(m, mtu);
    op->nsge = (int)below(m, 4);
    if (!op->nsge)
        op->len = 0;
    op->is_inline = op->len <= 100 && (op->kind <= RM_SEND_IMM) && one_in(m, 3);
    if (op->kind == RM_FADD || op->kind == RM_CSWAP) {
        op->len = 8;
        op->nsge = 1;
        op->solicited = false; /* here: a compare-and-swap that misses */
        op->local = take(m, me, 8, 1);
        op->remote = dir->counter;
        op->before = *counter;
        op->add = rng_u64(&m->rng);
        if (op->kind == RM_FADD)
            *counter += op->add;
        else if (one_in(m, 2)) /* one that hits; else one that misses */
            *counter = op->add;
        else
            op->solicited = true;
        return;
    }
    if (op->kind >= RM_BAD_KEY && !op->len) {
        op->len = 1 + below(m, 100);
        op->nsge = 1;
    }
    op->local = take(m, me, op->len, 1);
    if (op->kind != RM_SEND && op->kind != RM_SEND_IMM)
        op->remote = take(m, peer, op->len, 1);
}

static bool takes_receive(const struct rm_op *op)
{
    return op->kind == RM_SEND || op->kind == RM_SEND_IMM || op->kind == RM_WRITE_IMM;
}

static void build_dir(struct rm *m, struct rm_conn *c, int d, uint32_t mtu)
{
    struct rm_dir *dir = &c->dir[d];
    struct rm_end *to = &c->end[!d];
    struct rm_node *peer = &m->node[to->node];
    uint64_t counter;
    uint32_t most = 1;

    *dir = (struct rm_dir){.nops = c->xrc && d ? 0 : 1 + (int)below(m, RM_OPS), .counter = take(m, peer, 8, 8)};
    memcpy(&counter, peer->mem + dir->counter, 8);
    for (int i = 0; i < dir->nops; i++) {
        build_op(m, c, d, &dir->op[i], mtu, &counter);
        to->nrecvs += takes_receive(&dir->op[i]);
        if (takes_receive(&dir->op[i]) && dir->op[i].len > most)
            most = dir->op[i].len;
    }
    if (dir->nops)
        to->nrecvs += (int)below(m, 3);
    for (int i = 0; i < to->nrecvs; i++) {
        if (to->srq)
            to->srq->at[to->srq->n++] = take(m, peer, RM_MSG, 1);
        else
            to->recv_at[i] = take(m, peer, most, 1);
    }
    to->recvs_posted = to->recvs_told = 0;
}

/* selective: a bit for each end. */
static void modify(struct rm *m, struct rm_conn *c, const struct uroce_qp_attr attr[2], uint32_t selective)
{
    for (int i = 0; i < 2; i++) {
        struct uroce_qp_attr a = attr[i];
        struct qp *qp = c->end[i].qp;
        struct qp_path path = qpnet_path(c->end[i].node, c->end[!i].node);
        struct qp_peer peer = {.selective_repeat = true};

        a.dest_qp_num = qp_num(c->end[!i].qp);
        a.qp_state = UROCE_QPS_INIT;
        RM_CHECK(m, !qp_modify(qp, m->net.now, &a,
                               UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT | UROCE_QP_ACCESS_FLAGS, NULL));
        a.qp_state = UROCE_QPS_RTR;
        RM_CHECK(m, !qp_modify(qp, m->net.now, &a,
                               UROCE_QP_STATE | UROCE_QP_AV | UROCE_QP_PATH_MTU | UROCE_QP_DEST_QPN | UROCE_QP_RQ_PSN |
                                   (c->xrc && i == 0 ? 0u : UROCE_QP_MAX_DEST_RD_ATOMIC | UROCE_QP_MIN_RNR_TIMER),
                               &path));
        a.qp_state = UROCE_QPS_RTS;
        RM_CHECK(m,
                 !qp_modify(
                     qp, m->net.now, &a,
                     UROCE_QP_STATE | UROCE_QP_SQ_PSN | UROCE_QP_TIMEOUT |
                         (c->xrc && i == 1 ? 0u : UROCE_QP_RETRY_CNT | UROCE_QP_RNR_RETRY | UROCE_QP_MAX_QP_RD_ATOMIC),
                     NULL));
        if (selective >> i & 1)
            RM_CHECK(m, !qp_set_peer(qp, &peer));
    }
}

static void build_qp(struct rm *m, struct rm_conn *c, int i)
{
    struct rm_end *e = &c->end[i];
    struct rm_node *n = &m->node[e->node];
    struct qp_init init = {.type = UROCE_QPT_RC, .cap = {RM_OPS, RM_RECVS, 3, 3, 100}};

    if (!c->xrc || i == 0) {
        init.pd = n->pd;
        init.send_cq = n->cq;
    }
    if (c->xrc) {
        init.type = i ? UROCE_QPT_XRC_RECV : UROCE_QPT_XRC_SEND;
        init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
        if (i)
            init.cap = (struct uroce_qp_cap){0};
        init.xrcd = i ? n->xrcd : NULL;
        e->srq = &n->xrc;
    } else {
        init.recv_cq = n->cq;
        init.srq = n->srq.q;
        e->srq = n->srq.q ? &n->srq : NULL;
    }
    RM_CHECK(m, !qp_create(n->e, &init, &e->qp));
}

/* A second path, with packets of another size: as it is between processes that come to share memory. */
static void plan_move(struct rm *m, struct rm_conn *c, bool selective)
{
    c->far = one_in(m, 3);
    for (int i = 0; i < 2; i++) {
        c->path[i] = qpnet_path(c->end[i].node, c->end[!i].node);
        c->path[i].port_id = QPNET_FAR;
    }
    c->peer = (struct qp_peer){.selective_repeat = selective,
                               .mtu_bytes = 192 + below(m, 976) * 4,
                               .window_bytes = one_in(m, 3) ? below(m, 20000) : 1u << 20};
}

void rm_move(struct rm *m, struct rm_conn *c)
{
    c->moved = true;
    rm_totals.moved++;
    for (int i = 0; i < 2; i++) {
        struct uroce_qp_attr a;
        c->peer.path = &c->path[i];
        qp_query(c->end[i].qp, &a, NULL);
        RM_CHECK(m, qp_set_peer(c->end[i].qp, &c->peer) == (a.qp_state == UROCE_QPS_ERR ? -EINVAL : 0));
    }
}

static void build_conn(struct rm *m, struct rm_conn *c)
{
    uint32_t selective;
    struct uroce_qp_attr a[2];
    uint32_t psn[2];
    enum uroce_mtu mtu = (enum uroce_mtu)(UROCE_MTU_256 + below(m, 3));

    memset(c, 0, sizeof *c);
    c->poisoned = one_in(m, 6);
    c->xrc = one_in(m, 4);
    rm_totals.xrc += c->xrc;
    for (int i = 0; i < 2; i++) {
        c->end[i].node = (int)below(m, (uint32_t)m->nnodes);
        if (i && !one_in(m, 8))
            c->end[1].node = (c->end[0].node + 1) % m->nnodes;
        build_qp(m, c, i);
        psn[i] = one_in(m, 2) ? (UROCE_PSN_MASK - below(m, 60)) : below(m, 1u << 24);
    }
    for (int i = 0; i < 2; i++)
        build_dir(m, c, i, 128u << mtu);
    for (int i = 0; i < 2; i++) {
        a[i] = (struct uroce_qp_attr){.port_num = 1, .path_mtu = mtu, .sq_psn = psn[i], .rq_psn = psn[!i]};
        a[i].qp_access_flags = UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ | UROCE_ACCESS_REMOTE_ATOMIC;
        a[i].timeout = (uint8_t)(6 + below(m, 5)); /* 0.26 to 4.2 ms */
        a[i].retry_cnt = 7;
        a[i].rnr_retry = 7;
        a[i].min_rnr_timer = (uint8_t)(1 + below(m, 14));
        a[i].max_dest_rd_atomic = (uint8_t)(1 + below(m, 16));
    }
    a[0].max_rd_atomic = (uint8_t)(1 + below(m, a[1].max_dest_rd_atomic));
    a[1].max_rd_atomic = (uint8_t)(1 + below(m, a[0].max_dest_rd_atomic));
    selective = one_in(m, 2) ? 0 : one_in(m, 5) ? 1 + below(m, 2) : 3; /* an end may learn of it late */
    modify(m, c, a, selective);
    plan_move(m, c, selective == 3);
}

void rm_build(struct rm *m)
{
    struct qpnet_link *l = &m->net.link;

    m->nnodes = 2 + (int)below(m, RM_NODES - 1);
    m->nconns = 1 + (int)below(m, RM_CONNS);
    l->delay_ns = 500 + below(m, 50000);
    m->lossy = !one_in(m, 5);
    if (m->lossy) {
        l->loss = one_in(m, 3) ? 0 : (double)below(m, 300) / 1000;
        l->duplicate = one_in(m, 2) ? 0 : (double)below(m, 100) / 1000;
        l->reorder = one_in(m, 2) ? 0 : (double)below(m, 300) / 1000;
        l->jitter_ns = 1 + below(m, 200000);
        l->late = one_in(m, 2) ? 0 : (double)below(m, 30) / 1000;
        l->late_ns = below(m, 20000000);
        l->mark = one_in(m, 2) ? 0 : (double)below(m, 200) / 1000;
    }
    m->net.batch = 1 + (int)below(m, 20);
    m->net.runs = m->seed & 1;
    for (int i = 0; i < m->nnodes; i++)
        build_node(m, &m->node[i]);
    for (int i = 0; i < m->nconns; i++)
        build_conn(m, &m->conn[i]);
    for (int i = 0; i < m->nnodes; i++)
        memcpy(m->node[i].shadow, m->node[i].mem, RM_MEM);
}

/* ---- posting ---- */

static int split(struct rm *m, struct rm_node *n, uint32_t at, uint32_t len, int want, struct uroce_sge *ret)
{
    int k = 0;

    for (int i = 0; i < want; i++) {
        uint32_t part = i + 1 == want ? len : below(m, len + 1);
        ret[k++] = (struct uroce_sge){(uintptr_t)n->mem + at, part, qp_mr_lkey(n->mr)};
        at += part;
        len -= part;
    }
    return k;
}

static void fill_wr(struct rm *m, struct rm_conn *c, int d, const struct rm_op *op, struct uroce_send_wr *wr)
{
    static const enum uroce_wr_opcode of[] = {UROCE_WR_RDMA_WRITE,
                                              UROCE_WR_RDMA_WRITE_WITH_IMM,
                                              UROCE_WR_SEND,
                                              UROCE_WR_SEND_WITH_IMM,
                                              UROCE_WR_RDMA_READ,
                                              UROCE_WR_ATOMIC_FETCH_AND_ADD,
                                              UROCE_WR_ATOMIC_CMP_AND_SWP,
                                              UROCE_WR_RDMA_WRITE,
                                              UROCE_WR_RDMA_READ,
                                              UROCE_WR_SEND};
    struct rm_node *peer = &m->node[c->end[!d].node];
    uint32_t rkey = qp_mr_rkey(peer->mr);
    uint64_t addr = (uintptr_t)peer->mem + op->remote;

    wr->opcode = of[op->kind];
    wr->send_flags = (op->signalled ? UROCE_SEND_SIGNALED : 0u) | (op->fence ? UROCE_SEND_FENCE : 0u) |
                     (op->is_inline ? UROCE_SEND_INLINE : 0u) | (op->solicited ? UROCE_SEND_SOLICITED : 0u);
    wr->imm_data = op->local;
    if (c->xrc)
        wr->xrc_remote_srqn = qp_srq_num(peer->xrc.q);
    if (op->kind == RM_FADD || op->kind == RM_CSWAP) {
        wr->wr.atomic.remote_addr = addr;
        wr->wr.atomic.rkey = rkey;
        wr->wr.atomic.compare_add = op->kind == RM_FADD ? op->add : op->solicited ? op->before + 1 : op->before;
        wr->wr.atomic.swap = op->add;
        wr->send_flags &= ~(unsigned int)UROCE_SEND_SOLICITED;
    } else {
        wr->wr.rdma.remote_addr = op->kind == RM_BAD_RANGE ? (uintptr_t)peer->mem + RM_MEM - op->len + 1 : addr;
        wr->wr.rdma.rkey = op->kind == RM_BAD_KEY ? rkey ^ 0x5500 : rkey;
    }
}

void rm_post(struct rm *m, struct rm_conn *c, int d, int n)
{
    struct rm_dir *dir = &c->dir[d];
    struct rm_node *me = &m->node[c->end[d].node];
    struct uroce_send_wr wr[RM_OPS];
    struct uroce_sge sge[RM_OPS][3];
    const struct uroce_send_wr *bad;
    bool bell;

    if (n > dir->nops - dir->posted)
        n = dir->nops - dir->posted;
    if (!n)
        return;
    for (int i = 0; i < n; i++) {
        const struct rm_op *op = &dir->op[dir->posted + i];
        wr[i] = (struct uroce_send_wr){.wr_id = (uint64_t)(dir->posted + i), .next = i + 1 < n ? &wr[i + 1] : NULL};
        wr[i].sg_list = sge[i];
        wr[i].num_sge = split(m, me, op->local, op->len, op->nsge, sge[i]);
        fill_wr(m, c, d, op, &wr[i]);
        if (op->kind == RM_BAD_LKEY)
            sge[i][op->nsge - 1] = (struct uroce_sge){(uintptr_t)me->mem, 1, 0x77777777};
    }
    RM_CHECK(m, !qp_post_send(c->end[d].qp, wr, &bad, &bell));
    dir->posted += n;
    if (bell)
        qp_engine_doorbell(me->e, m->net.now, c->end[d].qp);
}

void rm_post_recvs(struct rm *m, struct rm_conn *c, int end, int n)
{
    struct rm_end *e = &c->end[end];
    struct rm_node *node = &m->node[e->node];
    struct rm_srq *srq = e->srq;
    const struct uroce_recv_wr *bad;
    bool bell = false;

    for (; n; n--) {
        struct uroce_sge sge[3];
        struct uroce_recv_wr wr = {.sg_list = sge};
        uint32_t len = RM_MSG;
        if (srq ? srq->posted == srq->n : e->recvs_posted == e->nrecvs)
            break;
        wr.wr_id = (uint64_t)(srq ? srq->posted++ : e->recvs_posted++);
        if (!srq) { /* its buffer is as long as the longest message of its peer */
            len = 1;
            for (int i = 0; i < c->dir[!end].nops; i++)
                if (takes_receive(&c->dir[!end].op[i]) && c->dir[!end].op[i].len > len)
                    len = c->dir[!end].op[i].len;
        }
        wr.num_sge = split(m, node, srq ? srq->at[wr.wr_id] : e->recv_at[wr.wr_id], len, 1 + (int)below(m, 3), sge);
        if (srq)
            RM_CHECK(m, !qp_post_srq_recv(srq->q, &wr, &bad));
        else
            RM_CHECK(m, !qp_post_recv(e->qp, &wr, &bad, &bell));
        if (bell)
            qp_engine_doorbell(node->e, m->net.now, e->qp);
    }
}

void rm_close(struct rm *m)
{
    for (int i = 0; i < m->nconns; i++)
        for (int k = 0; k < 2; k++)
            RM_CHECK(m, !qp_destroy(m->conn[i].end[k].qp));
    for (int i = 0; i < m->nnodes; i++) {
        struct rm_node *n = &m->node[i];
        if (n->srq.q)
            RM_CHECK(m, !qp_srq_free(n->srq.q));
        RM_CHECK(m, !qp_srq_free(n->xrc.q) && !qp_xrcd_free(n->xrcd));
        RM_CHECK(m, !qp_mr_dereg(n->mr) && !qp_cq_free(n->cq) && !qp_pd_free(n->pd) && !qp_engine_free(n->e));
        free(n->mem);
        free(n->maybe);
    }
    qpnet_done(&m->net);
}

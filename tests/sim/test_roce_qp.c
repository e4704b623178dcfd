/*
 * Random programs over engines that a lossy network joins (roce_model.h). Every posted request completes exactly once,
 * in order, with the right status and bytes; memory outside of its targets never changes; no atomic is applied twice;
 * once nothing is lost any more, all is done within a bound.
 *
 * PENSTOCK_COUNT=1 PENSTOCK_SEED=n runs one program. PENSTOCK_EXTENDED=1: 100,000.
 */
#include "roce_model.h"
#include "seeds.h"

#include "base/util.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHAOS_STEPS 400
#define CALM_NS     (100ull * 1000000000) /* virtual time in which all must be done once nothing is lost */
#define CALM_STEPS  200000

struct rm_totals rm_totals;

void rm_fail(const struct rm *m, const char *what, int line)
{
    fflush(stdout);
    fprintf(stderr, "line %d: %s is false, virtual time %llu ns\nagain: PENSTOCK_COUNT=1 PENSTOCK_SEED=%llu %s\n", line,
            what, (unsigned long long)m->net.now, (unsigned long long)m->seed, program_invocation_name);
    abort();
}

/* ---- what a completion says ---- */

static bool takes_receive(const struct rm_op *op)
{
    return op->kind == RM_SEND || op->kind == RM_SEND_IMM || op->kind == RM_WRITE_IMM;
}

static void expect(struct rm_node *to, uint32_t at, const void *bytes, uint32_t len)
{
    memcpy(to->shadow + at, bytes, len);
}

/* What the request did to memory, as far as its requester's completion proves it. */
static void apply(struct rm *m, struct rm_conn *c, int d, const struct rm_op *op)
{
    struct rm_node *me = &m->node[c->end[d].node], *peer = &m->node[c->end[!d].node];
    uint64_t v;

    switch (op->kind) {
    case RM_WRITE:
    case RM_WRITE_IMM:
        expect(peer, op->remote, me->shadow + op->local, op->len);
        RM_CHECK(m, !memcmp(peer->mem + op->remote, me->mem + op->local, op->len));
        break;
    case RM_READ:
        expect(me, op->local, peer->shadow + op->remote, op->len);
        break;
    case RM_FADD:
    case RM_CSWAP:
        expect(me, op->local, &op->before, 8);
        v = op->kind == RM_FADD ? op->before + op->add : op->solicited ? op->before : op->add;
        expect(peer, op->remote, &v, 8);
        break;
    case RM_SEND: /* the receive's completion tells */
    case RM_SEND_IMM:
        break;
    default:
        RM_CHECK(m, !"a request that must fail succeeded");
    }
}

static void check_error(struct rm *m, struct rm_conn *c, struct rm_dir *dir, const struct rm_op *op, uint32_t status)
{
    enum uroce_wc_status want = op->kind == RM_BAD_LKEY ? UROCE_WC_LOC_PROT_ERR : UROCE_WC_REM_ACCESS_ERR;

    if (dir->dead) {
        RM_CHECK(m, status == UROCE_WC_WR_FLUSH_ERR);
        return;
    }
    dir->dead = true;
    dir->first_error = status;
    rm_totals.dead++;
    if (status == UROCE_WC_RETRY_EXC_ERR) /* the peer is gone, or too much was lost */
        RM_CHECK(m, m->lossy || c->poisoned);
    else if (status == UROCE_WC_WR_FLUSH_ERR)
        RM_CHECK(m, m->ended || c->poisoned || c->dir[dir == &c->dir[0]].dead);
    else
        RM_CHECK(m, op->kind >= RM_BAD_KEY && status == want);
}

static void told_send(struct rm *m, struct rm_conn *c, int d, const struct uroce_wc *wc)
{
    struct rm_dir *dir = &c->dir[d];

    /* Requests in between were unsignalled: done without a word. */
    while (dir->told < dir->posted && (uint64_t)dir->told < wc->wr_id) {
        RM_CHECK(m, !dir->dead && !dir->op[dir->told].signalled);
        apply(m, c, d, &dir->op[dir->told++]);
    }
    RM_CHECK(m, dir->told < dir->posted && wc->wr_id == (uint64_t)dir->told);
    rm_totals.ops++;
    if (wc->status != UROCE_WC_SUCCESS) {
        rm_totals.failed++;
        check_error(m, c, dir, &dir->op[dir->told], wc->status);
    } else {
        RM_CHECK(m, !dir->dead && dir->op[dir->told].signalled);
        apply(m, c, d, &dir->op[dir->told]);
    }
    dir->told++;
}

static void told_recv(struct rm *m, struct rm_conn *c, int end, const struct uroce_wc *wc)
{
    struct rm_end *e = &c->end[end];
    struct rm_node *node = &m->node[e->node], *peer = &m->node[c->end[!end].node];
    struct rm_dir *dir = &c->dir[!end]; /* whose requests arrive here */
    uint32_t at = e->srq ? e->srq->at[wc->wr_id] : e->recv_at[wc->wr_id];
    const struct rm_op *op;

    if (!e->srq)
        RM_CHECK(m, wc->wr_id == (uint64_t)e->recvs_told);
    e->recvs_told++;
    if (wc->status != UROCE_WC_SUCCESS) {
        RM_CHECK(m, wc->status == UROCE_WC_WR_FLUSH_ERR && (m->ended || c->poisoned || c->dir[end].dead));
        return;
    }
    while (dir->arrived < dir->posted && !takes_receive(&dir->op[dir->arrived]))
        dir->arrived++;
    RM_CHECK(m, dir->arrived < dir->posted);
    op = &dir->op[dir->arrived++];
    RM_CHECK(m, wc->byte_len == op->len);
    RM_CHECK(m, (wc->opcode == UROCE_WC_RECV_RDMA_WITH_IMM) == (op->kind == RM_WRITE_IMM));
    RM_CHECK(m, !(wc->wc_flags & UROCE_WC_WITH_IMM) == (op->kind == RM_SEND));
    if (op->kind != RM_SEND)
        RM_CHECK(m, wc->imm_data == op->local);
    if (op->kind == RM_WRITE_IMM) { /* its bytes were there before the completion */
        expect(node, op->remote, peer->shadow + op->local, op->len);
        RM_CHECK(m, !memcmp(node->mem + op->remote, node->shadow + op->remote, op->len));
    } else {
        expect(node, at, peer->shadow + op->local, op->len);
        RM_CHECK(m, !memcmp(node->mem + at, node->shadow + at, op->len));
    }
}

static void poll_node(struct rm *m, struct rm_node *n, int most)
{
    struct uroce_wc wc;

    for (; most && qp_cq_poll(n->cq, 1, &wc) == 1; most--) {
        bool found = false;
        m->events++;
        for (int i = 0; i < m->nconns && !found; i++)
            for (int k = 0; k < 2 && !found; k++) {
                struct rm_conn *c = &m->conn[i];
                if (&m->node[c->end[k].node] != n || qp_num(c->end[k].qp) != wc.qp_num)
                    continue;
                found = true;
                if (wc.opcode & UROCE_WC_RECV)
                    told_recv(m, c, k, &wc);
                else
                    told_send(m, c, k, &wc);
            }
        RM_CHECK(m, found);
    }
}

/* ---- the run ---- */

static bool done(const struct rm *m)
{
    for (int i = 0; i < m->nconns; i++)
        for (int k = 0; k < 2; k++) {
            const struct rm_dir *d = &m->conn[i].dir[k];
            int last = d->nops;
            while (last && !d->op[last - 1].signalled)
                last--;
            if (!d->dead && d->told < last)
                return false;
        }
    return true;
}

static void chaos(struct rm *m)
{
    for (int i = 0; i < CHAOS_STEPS && !done(m); i++) {
        struct rm_conn *c = &m->conn[rng_below(&m->rng, (uint64_t)m->nconns)];
        int k = (int)rng_below(&m->rng, 2);
        if (rng_below(&m->rng, 3) == 0)
            rm_post(m, c, k, 1 + (int)rng_below(&m->rng, 4));
        if (rng_below(&m->rng, 3) == 0)
            rm_post_recvs(m, c, k, 1 + (int)rng_below(&m->rng, 3));
        for (int s = (int)rng_below(&m->rng, 12); s > 0; s--)
            if (!qpnet_step(&m->net, m->net.now + 50000))
                m->net.now += 50000;
        if (c->far && !c->moved && rng_below(&m->rng, 20) == 0)
            rm_move(m, c);
        if (m->lossy && rng_below(&m->rng, 10) == 0) /* full for a while: packets wait as long as lost ones */
            qp_engine_hold(m->node[c->end[k].node].e, QPNET_FAR, rng_below(&m->rng, 4) == 0);
        if (rng_below(&m->rng, 2) == 0)
            poll_node(m, &m->node[rng_below(&m->rng, (uint64_t)m->nnodes)], 1 + (int)rng_below(&m->rng, 8));
    }
}

static void calm(struct rm *m)
{
    uint64_t end = m->net.now + CALM_NS;

    m->net.link.loss = m->net.link.duplicate = m->net.link.reorder = m->net.link.late = m->net.link.mark = 0;
    for (int i = 0; i < m->nnodes; i++)
        qp_engine_hold(m->node[i].e, QPNET_FAR, false);
    for (int i = 0; i < m->nconns; i++)
        for (int k = 0; k < 2; k++) {
            rm_post_recvs(m, &m->conn[i], k, 1000);
            rm_post(m, &m->conn[i], k, RM_OPS);
        }
    for (int i = 0; !done(m); i++) {
        bool more = qpnet_step(&m->net, end);
        for (int k = 0; k < m->nnodes; k++)
            poll_node(m, &m->node[k], 1000);
        RM_CHECK(m, i < CALM_STEPS && (more || done(m)));
    }
    qpnet_run(&m->net, end); /* unsignalled requests, and what is late */
}

/* The last requests, if they are unsignalled, and all receives are flushed; no completion comes twice. */
static void end_all(struct rm *m)
{
    struct uroce_qp_attr a = {.qp_state = UROCE_QPS_ERR};

    for (int k = 0; k < m->nnodes; k++)
        poll_node(m, &m->node[k], 1000);
    m->ended = true;
    for (int i = 0; i < m->nconns; i++)
        for (int k = 0; k < 2; k++) {
            struct rm_dir *d = &m->conn[i].dir[k];
            RM_CHECK(m, !qp_modify(m->conn[i].end[k].qp, m->net.now, &a, UROCE_QP_STATE, NULL));
            for (; !d->dead && d->told < d->nops; d->told++)
                apply(m, &m->conn[i], k, &d->op[d->told]);
        }
    for (int k = 0; k < m->nnodes; k++)
        poll_node(m, &m->node[k], 4000);
    for (int i = 0; i < m->nconns; i++)
        for (int k = 0; k < 2; k++) {
            struct rm_end *e = &m->conn[i].end[k];
            RM_CHECK(m, m->conn[i].dir[k].told == m->conn[i].dir[k].nops);
            RM_CHECK(m, e->srq || e->recvs_told == e->recvs_posted);
        }
}

/* ---- memory ---- */

static void maybe(struct rm_node *n, uint32_t at, uint32_t len, const uint8_t *other)
{
    memset(n->maybe + at, other ? 2 : 1, len);
    if (other)
        memcpy(n->alt + at, other, len);
}

/* Where requests of a dead connection may or may not have been carried out. */
static void mark_unsure(struct rm *m, struct rm_conn *c, int d)
{
    struct rm_node *me = &m->node[c->end[d].node], *peer = &m->node[c->end[!d].node];
    struct rm_dir *dir = &c->dir[d];
    const struct rm_srq *srq = c->end[!d].srq;
    uint64_t now;

    for (int i = 0; i < dir->nops; i++) {
        const struct rm_op *op = &dir->op[i];
        if (op->kind == RM_WRITE || op->kind == RM_WRITE_IMM)
            maybe(peer, op->remote, op->len, me->shadow + op->local);
        if (op->kind == RM_BAD_RANGE) /* its first parts were right */
            maybe(me, op->local, op->len, NULL);
        if (op->kind == RM_READ)
            maybe(me, op->local, op->len, peer->shadow + op->remote);
        if (op->kind == RM_FADD || op->kind == RM_CSWAP)
            maybe(me, op->local, 8, (const uint8_t *)&op->before);
    }
    /* An atomic that was not told may have been done; none twice, none out of order. */
    memcpy(&now, peer->shadow + dir->counter, 8);
    for (int i = 0; i < dir->nops && memcmp(&now, peer->mem + dir->counter, 8); i++) {
        const struct rm_op *op = &dir->op[i];
        if ((op->kind == RM_FADD || op->kind == RM_CSWAP) && op->before == now)
            now = op->kind == RM_FADD ? now + op->add : op->solicited ? now : op->add;
    }
    expect(peer, dir->counter, &now, 8);
    for (int i = 0; i < c->end[!d].nrecvs && !srq; i++)
        maybe(peer, c->end[!d].recv_at[i], 1, NULL);
    for (int i = 0; i < c->end[!d].nrecvs && !srq; i++)
        for (int k = 0; k < dir->nops; k++)
            if (takes_receive(&dir->op[k]))
                maybe(peer, c->end[!d].recv_at[i], dir->op[k].len, NULL);
    for (int i = 0; srq && i < srq->n; i++)
        maybe(peer, srq->at[i], RM_MSG, NULL);
}

/* Says whose a byte is. */
static void explain(const struct rm *m, int node, uint32_t at)
{
    for (int i = 0; i < m->nconns; i++)
        for (int d = 0; d < 2; d++)
            for (int k = 0; k < m->conn[i].dir[d].nops; k++) {
                const struct rm_conn *c = &m->conn[i];
                const struct rm_op *op = &c->dir[d].op[k];
                if ((c->end[d].node == node && at - op->local < op->len) ||
                    (c->end[!d].node == node && op->remote && at - op->remote < op->len))
                    fprintf(stderr, "node %d byte %u: connection %d direction %d request %d kind %d len %u dead %d\n",
                            node, at, i, d, k, op->kind, op->len, c->dir[d].dead);
            }
    fprintf(stderr, "is %02x, was %02x\n", m->node[node].mem[at], m->node[node].shadow[at]);
}

static void check_memory(struct rm *m)
{
    for (int i = 0; i < m->nconns; i++)
        for (int d = 0; d < 2; d++)
            if (m->conn[i].dir[d].dead)
                mark_unsure(m, &m->conn[i], d);
    for (int i = 0; i < m->nnodes; i++) {
        struct rm_node *n = &m->node[i];
        if (!memcmp(n->mem, n->shadow, RM_MEM))
            continue;
        for (uint32_t k = 0; k < RM_MEM; k++) {
            if (n->mem[k] == n->shadow[k] || n->maybe[k] == 1 || (n->maybe[k] == 2 && n->mem[k] == n->alt[k]))
                continue;
            explain(m, i, k);
            RM_CHECK(m, !"memory is what it must be");
        }
    }
}

static void count(struct rm *m)
{
    rm_totals.joined += m->net.joined;
    for (int i = 0; i < m->nnodes; i++) {
        struct uroce_counters c;
        qp_engine_counters(m->node[i].e, &c);
        rm_totals.packets += c.tx_pkts;
        rm_totals.retransmits += c.retransmits;
        rm_totals.timeouts += c.timeouts;
        rm_totals.rnr += c.rnr_nak_rx;
        rm_totals.naks += c.nak_seq_rx;
        rm_totals.sacks += c.selective_acks_rx;
        rm_totals.dups += c.duplicates;
    }
}

void rm_run(uint64_t seed)
{
    static struct rm m;

    memset(&m, 0, sizeof m);
    m.seed = seed;
    rng_seed(&m.rng, seed);
    qpnet_init(&m.net, rng_u64(&m.rng));
    rm_build(&m);
    chaos(&m);
    calm(&m);
    end_all(&m);
    check_memory(&m);
    count(&m);
    rm_close(&m);
}

static void random_programs_complete_exactly_once_with_the_right_bytes(void **state)
{
    struct seeds s = seeds_wanted(2000, 100000);
    struct rm_totals *t = &rm_totals;

    (void)state;
    printf("seed %llu\n", (unsigned long long)s.base);
    for (uint64_t i = 0; i < s.n; i++)
        rm_run(s.base + i);
    printf("%llu connections by XRC, %llu that moved; %llu requests, %llu failed, %llu connections lost; %llu packets, "
           "%llu sent again, %llu time-outs, %llu RNR "
           "NAKs, "
           "%llu sequence NAKs, %llu selective acknowledgements, %llu duplicates, %llu taken with the one before\n",
           (unsigned long long)t->xrc, (unsigned long long)t->moved, (unsigned long long)t->ops,
           (unsigned long long)t->failed, (unsigned long long)t->dead, (unsigned long long)t->packets,
           (unsigned long long)t->retransmits, (unsigned long long)t->timeouts, (unsigned long long)t->rnr,
           (unsigned long long)t->naks, (unsigned long long)t->sacks, (unsigned long long)t->dups,
           (unsigned long long)t->joined);
    if (s.many)
        assert_true(t->timeouts && t->rnr && t->naks && t->sacks && t->dups && t->retransmits && t->xrc && t->moved &&
                    t->joined);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_complete_exactly_once_with_the_right_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

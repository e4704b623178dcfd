/*
 * Two communication managers over a network that loses, repeats and reorders, with programs at both ends that accept,
 * refuse, hesitate, disconnect or go away. Whatever happens: every attempt ends in exactly one way at each end, both
 * ends agree, and in the end nothing is left. PENSTOCK_SEED repeats a run; PENSTOCK_EXTENDED=1 makes it long.
 */
#include "base/rng.h"
#include "base/util.h"
#include "cm/cm.h"
#include "roce/wire_gid.h"
#include "seeds.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS       1000000ull
#define ATTEMPTS 24
#define PACKETS  4096
#define ACTIONS  512
#define PORT     7174

enum outcome { NONE, READY, REJECTED, UNREACHABLE, LEFT }; /* LEFT: the program freed its id before */

struct end {
    struct cm_id *id;
    enum outcome outcome;
    unsigned outcomes, requests, disconnected, exits;
    bool freed, refused_itself;
    uint32_t qpn, peer_qpn;
};

struct attempt {
    int side; /* of the end that connects */
    bool ud;
    struct end end[2]; /* active, passive */
};

enum what { CONNECT, ACCEPT, REFUSE, ESTABLISH, DISCONNECT, FREE };

struct action {
    uint64_t at;
    enum what what;
    int attempt, end; /* 0 active, 1 passive */
};

struct packet {
    uint64_t at;
    int to;
    struct cm_path path; /* as the receiver sees it */
    uint8_t mad[WIRE_MAD_BYTES];
};

struct world {
    struct rng r;
    struct cm_engine *e[2];
    struct cm_id *listener[2][2]; /* TCP, UDP */
    struct attempt a[ATTEMPTS];
    struct packet net[PACKETS];
    int npackets;
    struct action todo[ACTIONS];
    int nactions;
    uint64_t now;
    uint32_t loss, twice, jitter_ms; /* per cent */
};

struct side {
    struct world *w;
    int n;
};

static union uroce_gid gid_of(int side)
{
    union uroce_gid g = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = (uint8_t)(side + 1)}};
    return g;
}

static bool chance(struct world *w, uint32_t percent)
{
    return rng_below(&w->r, 100) < percent;
}

static void later(struct world *w, enum what what, int attempt, int end, uint64_t max_ms)
{
    assert_true(w->nactions < ACTIONS);
    w->todo[w->nactions++] = (struct action){w->now + rng_below(&w->r, max_ms * MS + 1), what, attempt, end};
}

static void post(struct world *w, int from, const struct cm_tx *tx)
{
    if (chance(w, w->loss))
        return;
    int copies = chance(w, w->twice) ? 2 : 1;
    for (int i = 0; i < copies && w->npackets < PACKETS; i++) {
        struct packet *p = &w->net[w->npackets++];
        p->at = w->now + 10000 + rng_below(&w->r, w->jitter_ms * MS + 1);
        p->to = !from;
        p->path = (struct cm_path){.local = tx->path.remote, .remote = tx->path.local, .hop_limit = 64};
        memcpy(p->mad, tx->mad, sizeof p->mad);
        assert_memory_equal(&tx->path.local, gid_of(from).raw, 16);
    }
}

static void outcome(struct end *e, enum outcome o)
{
    e->outcome = o;
    e->outcomes++;
}

static struct attempt *attempt_of(struct world *w, const struct cm_id *id, int *ret_end)
{
    for (int i = 0; i < ATTEMPTS; i++)
        for (int k = 0; k < 2; k++)
            if (w->a[i].end[k].id == id && !w->a[i].end[k].freed) { /* numbers of memory come again */
                *ret_end = k;
                return &w->a[i];
            }
    return NULL;
}

/* What a program does with a request. */
static bool on_request(struct world *w, struct cm_id *id, const struct uroce_cm_event *ev)
{
    int n = ev->private_data[0];
    struct attempt *a = &w->a[n];

    assert_true(n < ATTEMPTS);
    assert_int_equal(ev->private_len, a->ud ? UROCE_CM_UD_CONNECT_PRIVATE : UROCE_CM_CONNECT_PRIVATE);
    if (a->end[1].id) /* the first one was given up, and this REQ came late: refused, once more */
        return false;
    a->end[1] = (struct end){.id = id, .requests = 1, .qpn = 0x20000 + (uint32_t)n};
    a->end[1].peer_qpn = ev->qp_num;
    cm_id_set_user(id, a);
    later(w, chance(w, 70) ? ACCEPT : chance(w, 70) ? REFUSE : FREE, n, 1, chance(w, 20) ? 8000 : 20);
    return true;
}

static bool on_event(void *ctx, struct cm_id *id, struct cm_id *listener, const struct uroce_cm_event *ev)
{
    struct side *s = ctx;
    struct world *w = s->w;
    int k = 0;

    if (ev->type == UROCE_CM_CONNECT_REQUEST) {
        assert_true(listener == w->listener[s->n][0] || listener == w->listener[s->n][1]);
        return on_request(w, id, ev);
    }
    struct attempt *a = attempt_of(w, id, &k);
    assert_non_null(a);
    struct end *e = &a->end[k];
    int n = (int)(a - w->a);
    assert_false(e->freed);
    switch ((int)ev->type) {
    case UROCE_CM_CONNECT_RESPONSE:
        assert_int_equal(k, 0);
        e->peer_qpn = ev->qp_num;
        later(w, chance(w, 90) ? ESTABLISH : chance(w, 50) ? REFUSE : FREE, n, 0, chance(w, 20) ? 6000 : 5);
        break;
    case UROCE_CM_ESTABLISHED:
        outcome(e, READY);
        if (a->ud)
            e->peer_qpn = ev->qp_num;
        else if (chance(w, 70))
            later(w, DISCONNECT, n, k, 3000);
        break;
    case UROCE_CM_REJECTED:
        outcome(e, REJECTED);
        break;
    case UROCE_CM_UNREACHABLE:
        outcome(e, a->ud && ev->status > 0 ? REJECTED : UNREACHABLE);
        break;
    case UROCE_CM_DISCONNECTED:
        e->disconnected++;
        if (!e->outcomes) /* told of the response, and the peer went before this end was ready */
            outcome(e, REJECTED);
        break;
    case UROCE_CM_TIMEWAIT_EXIT:
        e->exits++;
        break;
    default:
        fail();
    }
    return true;
}

static void start(struct world *w, int n)
{
    struct attempt *a = &w->a[n];
    struct cm_path path = {.local = gid_of(a->side), .remote = gid_of(!a->side), .hop_limit = 64};
    uint8_t data[4] = {(uint8_t)n, 1, 2, 3};
    struct uroce_cm_param p = {.private_data = data,
                               .private_len = sizeof data,
                               .responder_resources = 4,
                               .initiator_depth = 2,
                               .retry_count = 7,
                               .rnr_retry_count = 7,
                               .qp_num = 0x10000 + (uint32_t)n};

    struct end *e = &a->end[0];
    *e = (struct end){.qpn = p.qp_num};
    assert_int_equal(cm_id_new(w->e[a->side], a->ud ? UROCE_CM_UDP : UROCE_CM_TCP, a, &e->id), 0);
    assert_int_equal(cm_route(e->id, &path, PORT), 0);
    assert_int_equal(cm_connect(e->id, w->now, &p, UROCE_MTU_4096, 14), 0);
    if (chance(w, 10))
        later(w, FREE, n, 0, 2000);
}

static void leave(struct world *w, struct end *e)
{
    if (e->freed || !e->id)
        return;
    e->freed = true;
    if (!e->outcomes)
        outcome(e, LEFT);
    cm_id_free(e->id, w->now);
}

static void act(struct world *w, const struct action *t)
{
    struct attempt *a = &w->a[t->attempt];
    struct end *e = &a->end[t->end];
    struct uroce_cm_param p = {.qp_num = e->qpn, .qkey = 7, .responder_resources = 2, .initiator_depth = 2};

    if (t->what == CONNECT) {
        start(w, t->attempt);
        return;
    }
    if (e->freed)
        return;
    switch (t->what) {
    case ACCEPT:
        if (cm_accept(e->id, w->now, &p) == 0 && a->ud)
            outcome(e, READY);
        break;
    case REFUSE:
        if (cm_reject(e->id, w->now, UROCE_CM_REJ_CONSUMER, "no", 2) == 0) {
            e->refused_itself = true;
            outcome(e, REJECTED);
        }
        break;
    case ESTABLISH: {
        struct cm_qp q;
        if (cm_establish(e->id, w->now, NULL, 0))
            break;
        assert_int_equal(cm_qp(e->id, &q), 0);
        assert_int_equal(q.dest_qpn, a->end[1].qpn);
        outcome(e, READY);
        if (chance(w, 70))
            later(w, DISCONNECT, t->attempt, t->end, 3000);
        break;
    }
    case DISCONNECT:
        cm_disconnect(e->id, w->now, NULL, 0);
        break;
    case FREE:
        leave(w, e);
        break;
    case CONNECT:
        break;
    }
}

static void drain(struct world *w)
{
    struct cm_tx tx;
    for (int s = 0; s < 2; s++)
        while (cm_tx(w->e[s], w->now, &tx))
            post(w, s, &tx);
}

static uint64_t next_time(const struct world *w)
{
    uint64_t t = min_u64(cm_deadline(w->e[0]), cm_deadline(w->e[1]));
    for (int i = 0; i < w->npackets; i++)
        t = min_u64(t, w->net[i].at);
    for (int i = 0; i < w->nactions; i++)
        t = min_u64(t, w->todo[i].at);
    return t;
}

static void run_until_quiet(struct world *w)
{
    for (;;) {
        drain(w);
        uint64_t t = next_time(w);
        if (t == UINT64_MAX)
            return;
        w->now = max_u64(w->now, t);
        for (int i = 0; i < w->npackets; i++)
            if (w->net[i].at <= w->now) {
                struct packet p = w->net[i];
                w->net[i--] = w->net[--w->npackets];
                cm_rx(w->e[p.to], w->now, &p.path, UROCE_MTU_4096, p.mad, sizeof p.mad);
            }
        for (int i = 0; i < w->nactions; i++)
            if (w->todo[i].at <= w->now) {
                struct action t2 = w->todo[i];
                w->todo[i--] = w->todo[--w->nactions];
                act(w, &t2);
            }
        for (int s = 0; s < 2; s++)
            cm_tick(w->e[s], w->now);
    }
}

static uint64_t running;           /* the seed */
static unsigned seen[LEFT + 1][2]; /* how often each outcome was at the active, the passive end */

static void show(const struct attempt *a)
{
    printf("seed %" PRIu64 "%s:", running, a->ud ? ", datagrams" : "");
    for (int k = 0; k < 2; k++)
        printf(" %s outcome %d (%u), requests %u, disconnected %u, exits %u%s", k ? "passive" : "active",
               a->end[k].outcome, a->end[k].outcomes, a->end[k].requests, a->end[k].disconnected, a->end[k].exits,
               a->end[k].freed ? ", freed;" : ";");
    printf("\n");
}

static bool attempt_ok(const struct attempt *a, bool lossy)
{
    const struct end *active = &a->end[0], *passive = &a->end[1];

    if (active->outcomes != 1 || passive->outcomes != passive->requests)
        return false;
    if (active->outcome == READY && (passive->requests != 1 || active->peer_qpn != passive->qpn))
        return false;
    if (a->ud)
        return active->outcome != READY || passive->outcome == READY;
    for (int k = 0; k < 2; k++) {
        const struct end *e = &a->end[k], *peer = &a->end[!k];
        if (e->disconnected > 1 || e->exits > e->disconnected)
            return false;
        if (e->outcome != READY || e->freed)
            continue;
        /*
         * A peer that is not there (any more) is known here: unless each of its messages was lost, which only traffic
         * on the queue pair shows.
         */
        bool alone = peer->outcome != READY || peer->freed || peer->disconnected;
        if ((alone && !e->disconnected && !lossy) || e->exits != e->disconnected)
            return false;
    }
    return true;
}

static void make(struct world *w, uint64_t seed, struct side sides[2])
{
    static const struct cm_ops ops = {.event = on_event};
    static const struct uroce_cm_addr any = {.port = PORT};

    memset(w, 0, sizeof *w);
    rng_seed(&w->r, seed);
    w->now = 1;
    w->loss = (uint32_t)rng_below(&w->r, 5) * 10;
    w->twice = (uint32_t)rng_below(&w->r, 3) * 10;
    w->jitter_ms = (uint32_t)rng_below(&w->r, 3) * 30;
    for (int s = 0; s < 2; s++) {
        sides[s] = (struct side){w, s};
        struct cm_config c = {
            .seed = rng_u64(&w->r), .ca_guid = 77 + (uint64_t)s, .id_slot = 3, .ops = &ops, .ctx = &sides[s]};
        assert_int_equal(cm_new(&c, &w->e[s]), 0);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(cm_id_new(w->e[s], k ? UROCE_CM_UDP : UROCE_CM_TCP, NULL, &w->listener[s][k]), 0);
            assert_int_equal(cm_bind(w->listener[s][k], &any, 0), 0);
            assert_int_equal(cm_listen(w->listener[s][k], 0), 0);
        }
    }
}

static void one_world(uint64_t seed)
{
    static struct world w;
    struct side sides[2];
    struct cm_stats st;

    make(&w, seed, sides);
    for (int i = 0; i < ATTEMPTS; i++) {
        w.a[i].side = (int)rng_below(&w.r, 2);
        w.a[i].ud = chance(&w, 20);
        later(&w, CONNECT, i, 0, 3000);
    }
    run_until_quiet(&w);
    for (int i = 0; i < ATTEMPTS; i++)
        if (!attempt_ok(&w.a[i], w.loss)) {
            show(&w.a[i]);
            fail();
        } else {
            seen[w.a[i].end[0].outcome][0]++;
            seen[w.a[i].end[1].outcome][1]++;
        }
    for (int i = 0; i < ATTEMPTS; i++)
        for (int k = 0; k < 2; k++)
            leave(&w, &w.a[i].end[k]);
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < 2; k++)
            cm_id_free(w.listener[s][k], w.now);
    run_until_quiet(&w);
    for (int s = 0; s < 2; s++) {
        cm_stats(w.e[s], &st);
        assert_int_equal(st.ids, 0);
        cm_free(w.e[s]);
    }
}

static void every_attempt_ends_in_one_way_at_both_ends(void **state)
{
    struct seeds s = seeds_wanted(4000, 100000);

    (void)state;
    printf("seed %" PRIu64 "\n", s.base);
    for (uint64_t i = 0; i < s.n; i++) {
        running = s.base + i;
        one_world(running);
    }
    for (int o = READY; o <= LEFT && s.many; o++) {
        printf("outcome %d: %u active, %u passive\n", o, seen[o][0], seen[o][1]);
        assert_true(seen[o][0] && seen[o][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_attempt_ends_in_one_way_at_both_ends)};
    setvbuf(stdout, NULL, _IONBF, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

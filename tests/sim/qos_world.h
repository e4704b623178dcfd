/*
 * For the tests of the scheduler: a server of a stated speed behind it, in virtual time. Lanes beside each other, each
 * with its part of the speed; a request takes its bytes and a fixed cost besides. Tenants keep so many requests
 * waiting, or come at random times.
 */
#ifndef TESTS_QOS_WORLD_H
#define TESTS_QOS_WORLD_H

#include "base/rng.h"
#include "qos/qos.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define TENANTS 8
#define DEPTH   24 /* requests of a backlogged tenant: more than the window takes */
#define ARRIVALS 1024
#define LANES   2
#define SECOND  NSEC_PER_SEC

struct request {
    struct qos_item item;
    uint64_t bytes, came_ns;
    struct user *by;
    bool busy;
};

/* One tenant and what it asks for. */
struct user {
    struct qos_tenant t;
    struct qos_limits limits;
    struct rng rng;
    uint64_t min, max; /* bytes */
    struct request req[ARRIVALS];
    unsigned nreq, next;  /* used of req; arrivals: the next one's number */
    bool paced;
    double mean_ns;       /* paced: between arrivals */
    uint64_t next_ns;
    uint64_t served;      /* cost of what ended, in bytes */
    uint64_t latency[ARRIVALS];
    unsigned nlatency;
};

struct lane {
    struct request *r; /* NULL: free */
    uint64_t end_ns;
};

struct world {
    struct qos q;
    uint64_t now, rate;
    uint64_t largest; /* bytes of a request, at most */
    unsigned lanes, nusers;
    struct lane lane[LANES];
    struct request *wait[256]; /* a ring: taken, and no lane free */
    unsigned head, nwait;
    uint64_t busy_ns;
    struct user u[TENANTS];
};

static uint64_t size_of(struct user *u)
{
    uint64_t pages = u->min / 4096 + rng_below(&u->rng, (u->max - u->min) / 4096 + 1);
    return pages * 4096;
}

static void ask(struct world *w, struct user *u, struct request *r)
{
    *r = (struct request){.bytes = size_of(u), .came_ns = w->now, .by = u, .busy = true};
    qos_put(&u->t, &r->item, r->bytes, w->now);
}

static uint64_t cost_of(const struct world *w, const struct request *r)
{
    return r->bytes + w->q.cfg.op_cost;
}

static void begin_lane(struct world *w, struct lane *l, struct request *r)
{
    uint64_t ns = (uint64_t)((double)cost_of(w, r) * w->lanes / (double)w->rate * 1e9);

    *l = (struct lane){r, w->now + max_u64(1, ns)};
    w->busy_ns += ns;
}

static void start_some(struct world *w)
{
    struct qos_item *it;

    while ((it = qos_take(&w->q, w->now))) {
        struct request *r = container_of(it, struct request, item);
        assert_true(it->bytes == r->bytes && !it->tenant);
        assert_true(w->nwait < ARRAY_SIZE(w->wait));
        w->wait[(w->head + w->nwait++) % ARRAY_SIZE(w->wait)] = r;
    }
    for (unsigned i = 0; i < w->lanes; i++)
        if (!w->lane[i].r && w->nwait > 0) {
            begin_lane(w, &w->lane[i], w->wait[w->head]);
            w->head = (w->head + 1) % ARRAY_SIZE(w->wait);
            w->nwait--;
        }
}

static void end_lane(struct world *w, struct lane *l)
{
    struct request *r = l->r;
    struct user *u = r->by;

    l->r = NULL;
    qos_end(&u->t, r->bytes);
    u->served += cost_of(w, r);
    r->busy = false;
    if (u->paced)
        u->latency[u->nlatency++] = w->now - r->came_ns;
    else
        ask(w, u, r);
}

static uint64_t gap(struct user *u)
{
    double x = ((double)(rng_u64(&u->rng) >> 11) + 1) / 9007199254740993.0;
    return (uint64_t)(-log(x) * u->mean_ns) + 1;
}

static void arrivals(struct world *w)
{
    for (unsigned i = 0; i < w->nusers; i++) {
        struct user *u = &w->u[i];
        while (u->paced && u->next < u->nreq && u->next_ns <= w->now) {
            ask(w, u, &u->req[u->next++]);
            u->next_ns += gap(u);
        }
    }
}

/* Nothing may run that does not: who waits is over his limit, or the window is full. */
static void check_not_idle(const struct world *w)
{
    const struct qos *q = &w->q;

    for (unsigned i = 0; i < w->nusers; i++) {
        const struct qos_tenant *t = &w->u[i].t;
        if (list_empty(&t->items))
            continue;
        assert_true(t->state != QOS_IDLE);
        if (t->state == QOS_THROTTLED)
            assert_true(t->key > w->now && qos_next(q) <= t->key);
        else
            assert_true(q->inflight_ops >= q->cfg.window_ops ||
                        (q->inflight_ops > 0 && q->inflight_cost + w->largest + q->cfg.op_cost > q->cfg.window_cost));
    }
    assert_true(q->inflight_ops <= q->cfg.window_ops);
    assert_true(q->inflight_ops == 1 || q->inflight_cost <= q->cfg.window_cost);
}

static void run_until(struct world *w, uint64_t end)
{
    for (;;) {
        uint64_t next;
        arrivals(w);
        start_some(w);
        check_not_idle(w);
        next = qos_next(&w->q);
        for (unsigned i = 0; i < w->lanes; i++)
            next = w->lane[i].r ? min_u64(next, w->lane[i].end_ns) : next;
        for (unsigned i = 0; i < w->nusers; i++)
            if (w->u[i].paced && w->u[i].next < w->u[i].nreq)
                next = min_u64(next, w->u[i].next_ns);
        if (next > end) {
            w->now = end == UINT64_MAX ? w->now : end;
            return;
        }
        w->now = max_u64(w->now, next);
        for (unsigned i = 0; i < w->lanes; i++)
            if (w->lane[i].r && w->lane[i].end_ns <= w->now)
                end_lane(w, &w->lane[i]);
    }
}

/* The window takes two of the largest requests. */
static struct world *world_new(struct rng *g, uint64_t rate, unsigned lanes, uint64_t largest, uint32_t op_cost)
{
    struct world *w = calloc(1, sizeof *w);
    const struct qos_config cfg = {2 * (largest + op_cost), 16, op_cost};

    assert_non_null(w);
    qos_init(&w->q, &cfg);
    w->q.vtime = w->q.swept = rng_u64(g); /* any: it wraps */
    w->rate = rate;
    w->lanes = lanes;
    w->largest = largest;
    w->now = rng_below(g, SECOND * 1000);
    return w;
}

static void world_free(struct world *w)
{
    qos_done(&w->q);
    free(w);
}

static struct user *add_user(struct world *w, struct rng *g, struct qos_limits l)
{
    struct user *u = &w->u[w->nusers++];

    rng_seed(&u->rng, rng_u64(g));
    u->limits = l;
    assert_int_equal(qos_tenant_add(&w->q, &u->t, &l, w->now), 0);
    u->min = 4096;
    u->max = 4096;
    return u;
}

/* Up to the world's largest. */
static void sizes(const struct world *w, struct user *u, struct rng *g)
{
    uint64_t pages = 1ull << rng_below(g, (uint64_t)(64 - __builtin_clzll(w->largest / 4096)));

    u->max = pages * 4096;
    u->min = rng_below(g, 2) ? u->max : 4096;
}

static void backlog(struct world *w, struct user *u)
{
    for (unsigned i = 0; i < DEPTH; i++)
        ask(w, u, &u->req[i]);
}

#endif

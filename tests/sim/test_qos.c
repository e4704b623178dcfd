/* The scheduler in virtual time, before the server of qos_world.h. Rates, weights, sizes and limits by a seed. */
#include "qos_world.h"
#include "seeds.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the properties ---- */

static void shares_once(uint64_t seed)
{
    struct rng g;
    struct world *w;
    uint64_t total = 0, weights = 0, start;
    unsigned n;

    rng_seed(&g, seed);
    w = world_new(&g, 100 * MiB + rng_below(&g, 200 * MiB), 1 + (unsigned)rng_below(&g, LANES), 128 * KiB, 32 * 1024);
    n = 2 + (unsigned)rng_below(&g, TENANTS - 1);
    for (unsigned i = 0; i < n; i++) {
        struct user *u = add_user(w, &g, (struct qos_limits){.weight = 1 + (uint32_t)rng_below(&g, 16)});
        sizes(w, u, &g);
        weights += u->limits.weight;
        backlog(w, u);
    }
    start = w->now;
    run_until(w, start + 10 * SECOND);
    for (unsigned i = 0; i < n; i++)
        total += w->u[i].served;
    assert_true((double)total > 0.999 * 10 * (double)w->rate - 2 * 160 * 1024);
    for (unsigned i = 0; i < n; i++) {
        double want = (double)total * w->u[i].limits.weight / (double)weights;
        if (fabs((double)w->u[i].served - want) > 0.05 * want)
            fail_msg("seed %" PRIu64 ": tenant %u of weight %u got %" PRIu64 ", its share is %.0f", seed, i,
                     w->u[i].limits.weight, w->u[i].served, want);
    }
    world_free(w);
}

/*
 * By pairs, at every moment: no two backlogged tenants are further apart than a request of each (the paper's theorem).
 */
static void apart_once(uint64_t seed)
{
    struct rng g;
    struct world *w;
    unsigned n;

    rng_seed(&g, seed);
    w = world_new(&g, 100 * MiB, 1, 4096ull << rng_below(&g, 8), (uint32_t)rng_below(&g, 65536));
    n = 2 + (unsigned)rng_below(&g, TENANTS - 1);
    for (unsigned i = 0; i < n; i++) {
        struct user *u = add_user(w, &g, (struct qos_limits){.weight = 1 + (uint32_t)rng_below(&g, 1000)});
        sizes(w, u, &g);
        backlog(w, u);
    }
    for (unsigned step = 0; step < 20; step++) {
        run_until(w, w->now + 2000000);
        for (unsigned i = 0; i < n; i++)
            for (unsigned k = 0; k < i; k++) {
                const struct qos_tenant *a = &w->u[i].t, *b = &w->u[k].t;
                double most = (double)(w->largest + w->q.cfg.op_cost);
                double d = (double)a->stats.cost / a->limits.weight - (double)b->stats.cost / b->limits.weight;
                assert_true(fabs(d) <= most / a->limits.weight + most / b->limits.weight + 1);
            }
    }
    world_free(w);
}

/* A limit that the server can serve and whose burst and largest request are a twentieth of ten seconds at most. */
static struct qos_limits any_limit(struct rng *g, uint64_t largest, bool of_ops)
{
    struct qos_limits l = {.weight = 1 + (uint32_t)rng_below(g, 4)};

    if (of_ops) {
        l.ops_per_s = 20 + rng_below(g, 500);
        l.burst_ops = 1 + rng_below(g, l.ops_per_s / 3);
    } else {
        l.bytes_per_s = 4 * largest + rng_below(g, 10 * MiB);
        l.burst_bytes = 1 + rng_below(g, l.bytes_per_s / 5);
    }
    return l;
}

static void check_limit(const struct user *u, uint64_t ops, uint64_t bytes, uint64_t seed)
{
    double got = (double)(u->limits.ops_per_s ? ops : bytes);
    double want = 10.0 * (double)(u->limits.ops_per_s ? u->limits.ops_per_s : u->limits.bytes_per_s);

    if (fabs(got - want) > 0.05 * want)
        fail_msg("seed %" PRIu64 ": %.0f %s in 10 s, the limit is %.0f", seed, got,
                 u->limits.ops_per_s ? "requests" : "bytes", want);
}

static void limits_once(uint64_t seed)
{
    uint64_t ops[TENANTS], bytes[TENANTS];
    struct rng g;
    struct world *w;
    struct user *rest;
    unsigned n;

    rng_seed(&g, seed);
    w = world_new(&g, 400 * MiB, 1 + (unsigned)rng_below(&g, LANES), 128 * KiB, 16 * 1024);
    n = 1 + (unsigned)rng_below(&g, 4);
    for (unsigned i = 0; i < n; i++) {
        bool of_ops = rng_below(&g, 2);
        struct user *u = add_user(w, &g, any_limit(&g, w->largest, of_ops));
        sizes(w, u, &g);
        backlog(w, u);
    }
    rest = add_user(w, &g, (struct qos_limits){.weight = 1});
    rest->min = rest->max = w->largest;
    backlog(w, rest);
    for (int part = 0; part < 3; part++) {
        uint64_t cost = 0, before = 0;
        for (unsigned i = 0; i <= n; i++) {
            struct user *u = &w->u[i];
            ops[i] = u->t.stats.ops;
            bytes[i] = u->t.stats.bytes;
            before += u->served;
        }
        run_until(w, w->now + 10 * SECOND);
        for (unsigned i = 0; i <= n; i++)
            cost += w->u[i].served;
        assert_true((double)(cost - before) > 0.99 * 10 * (double)w->rate); /* the unlimited one has the rest */
        for (unsigned i = 0; i < n; i++) {
            struct user *u = &w->u[i];
            check_limit(u, u->t.stats.ops - ops[i], u->t.stats.bytes - bytes[i], seed);
            u->limits = any_limit(&g, w->largest, u->limits.ops_per_s != 0);
            assert_int_equal(qos_tenant_set(&u->t, &u->limits, w->now), 0);
        }
    }
    world_free(w);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

struct paced {
    uint64_t seed, rate, min, max;
    uint32_t weight;
    double load; /* of its share */
    unsigned n;
};

/* The paced tenant's own latencies, in order of its requests' ends. */
static void pace(struct world *w, struct rng *g, const struct paced *p, double share)
{
    struct user *u = add_user(w, g, (struct qos_limits){.weight = p->weight});

    rng_seed(&u->rng, p->seed);
    u->paced = true;
    u->nreq = p->n;
    u->min = p->min;
    u->max = p->max;
    u->mean_ns = ((double)(p->min + p->max) / 2 + w->q.cfg.op_cost) / ((double)p->rate * share * p->load) * 1e9;
    u->next_ns = w->now + gap(u);
}

static void finish(struct world *w)
{
    while (w->u[0].nlatency < w->u[0].nreq)
        run_until(w, w->now + SECOND / 100);
}

/*
 * A flood beside a tenant that offers most of its share, in requests of any size, against the same requests alone on a
 * server of that share's speed. Beyond the double of the 99th percentile lies the bound of each single one.
 */
static void flood_once(uint64_t seed)
{
    struct rng g;
    struct paced p = {.seed = seed ^ 0x5a5a, .n = 600};
    struct world *alone, *with;
    uint64_t added, weights, largest = 128 * KiB, a99, b99;
    uint32_t op = 32 * 1024;
    unsigned floods;
    double share;

    rng_seed(&g, seed);
    p.rate = 50 * MiB + rng_below(&g, 400 * MiB);
    p.weight = 1 + (uint32_t)rng_below(&g, 4);
    p.max = 4096ull << rng_below(&g, 6);
    p.min = rng_below(&g, 2) ? p.max : 4096;
    p.load = 0.7 + 0.25 * (double)rng_below(&g, 1000) / 1000;
    floods = 1 + (unsigned)rng_below(&g, 3);
    weights = p.weight;
    with = world_new(&g, p.rate, 1, largest, op);
    for (unsigned i = 0; i < floods; i++)
        weights += p.weight + i;
    share = (double)p.weight / (double)weights;
    alone = world_new(&g, (uint64_t)((double)p.rate * share), 1, largest, op);
    pace(alone, &g, &p, share);
    pace(with, &g, &p, share);
    for (unsigned i = 0; i < floods; i++) {
        struct user *u = add_user(with, &g, (struct qos_limits){.weight = p.weight + i});
        sizes(with, u, &g);
        backlog(with, u);
    }
    finish(alone);
    finish(with);
    /* What was under way, one request of each other tenant, and the rounding of tags and of times. */
    added = (uint64_t)((double)(2 * (largest + op) + floods * (largest + op)) / (double)p.rate * 1e9) + 100000;
    for (unsigned i = 0; i < p.n; i++)
        if (with->u[0].latency[i] > alone->u[0].latency[i] + added)
            fail_msg("seed %" PRIu64 ": request %u took %" PRIu64 " ns, alone %" PRIu64 ", and the bound is %" PRIu64
                     " more", seed, i, with->u[0].latency[i], alone->u[0].latency[i], added);
    qsort(alone->u[0].latency, p.n, sizeof(uint64_t), by_value);
    qsort(with->u[0].latency, p.n, sizeof(uint64_t), by_value);
    a99 = alone->u[0].latency[p.n * 99 / 100];
    b99 = with->u[0].latency[p.n * 99 / 100];
    if (b99 > 2 * a99)
        fail_msg("seed %" PRIu64 ": p99 %" PRIu64 " ns, alone %" PRIu64 " (%.1f times)", seed, b99, a99,
                 (double)b99 / (double)a99);
    world_free(alone);
    world_free(with);
}

/* ---- anything at all: puts, drops, limits that change, reservations, ends in any order ---- */

struct any {
    struct world *w;
    struct request *out[64];
    unsigned nout;
};

static void any_take(struct any *a)
{
    struct qos_item *it;

    while ((it = qos_take(&a->w->q, a->w->now))) {
        assert_true(!it->tenant && a->nout < ARRAY_SIZE(a->out));
        a->out[a->nout++] = container_of(it, struct request, item);
    }
    check_not_idle(a->w);
}

static void any_end(struct any *a, unsigned i)
{
    struct request *r = a->out[i];

    a->out[i] = a->out[--a->nout];
    qos_end(&r->by->t, r->bytes);
    r->busy = false;
}

static void any_step(struct any *a, struct rng *g)
{
    struct world *w = a->w;
    struct user *u = &w->u[rng_below(g, w->nusers)];
    struct request *r = &u->req[rng_below(g, 16)];

    switch (rng_below(g, 10)) {
    case 0:
    case 1:
    case 2:
    case 3:
        if (!r->busy)
            ask(w, u, r);
        break;
    case 4:
    case 5:
    case 6:
        if (a->nout)
            any_end(a, (unsigned)rng_below(g, a->nout));
        break;
    case 7:
        if (r->busy && r->item.tenant) {
            qos_drop(&r->item, w->now);
            qos_drop(&r->item, w->now);
            r->busy = false;
        }
        break;
    case 8:
        u->limits.bytes_per_s = rng_below(g, 3) ? 1 + rng_below(g, 1 << 20) : 0;
        u->limits.ops_per_s = rng_below(g, 3) ? 1 + rng_below(g, 100) : 0;
        u->limits.burst_bytes = rng_below(g, 1 << 22);
        u->limits.weight = 1 + (uint32_t)rng_below(g, QOS_WEIGHT_MAX);
        assert_int_equal(qos_tenant_set(&u->t, &u->limits, w->now), 0);
        break;
    default:
        qos_reserve(&u->t, rng_below(g, 3), rng_below(g, 5000), w->now);
        break;
    }
    w->now += rng_below(g, 4) ? rng_below(g, 1000000) : rng_below(g, 10 * SECOND);
}

static void anything_once(uint64_t seed)
{
    struct any a = {0};
    struct rng g;
    unsigned n;

    rng_seed(&g, seed);
    a.w = world_new(&g, 1, 1, 4096ull << rng_below(&g, 9), (uint32_t)rng_below(&g, 65536));
    a.w->q.cfg.window_cost >>= rng_below(&g, 3); /* one alone may be larger than the window */
    n = 1 + (unsigned)rng_below(&g, TENANTS);
    for (unsigned i = 0; i < n; i++) {
        struct user *u = add_user(a.w, &g, (struct qos_limits){.weight = 1 + (uint32_t)rng_below(&g, 10)});
        sizes(a.w, u, &g);
    }
    for (unsigned i = 0; i < 150; i++) {
        any_step(&a, &g);
        any_take(&a);
    }
    /* Whatever waits goes in the end: nothing is lost, nothing starves. */
    while (a.nout || qos_next(&a.w->q) != UINT64_MAX) {
        while (a.nout)
            any_end(&a, 0);
        if (qos_next(&a.w->q) != UINT64_MAX)
            a.w->now = max_u64(a.w->now, qos_next(&a.w->q));
        any_take(&a);
    }
    for (unsigned i = 0; i < n; i++) {
        const struct qos_tenant *t = &a.w->u[i].t;
        assert_true(list_empty(&t->items) && t->state == QOS_IDLE && t->queued == 0);
        assert_true(t->inflight_cost == 0 && t->inflight_ops == 0);
        qos_tenant_remove(&a.w->u[i].t);
    }
    assert_int_equal(a.w->q.ntenants, 0);
    world_free(a.w);
}

/* ---- buckets ---- */

/* Beside one that counts in 1e-9 of a unit, in 128 bits. */
static void bucket_once(uint64_t seed)
{
    typedef __int128 i128;
    struct qos_bucket b;
    struct rng g;
    uint64_t now, rate, burst;
    i128 level;

    rng_seed(&g, seed);
    rate = 1 + (rng_u64(&g) >> (14 + rng_below(&g, 50)));
    burst = 1 + (rng_u64(&g) >> (14 + rng_below(&g, 50)));
    now = rng_u64(&g) >> (1 + rng_below(&g, 40));
    bucket_init(&b, rate, burst, now);
    level = (i128)burst * 1000000000;
    for (int i = 0; i < 50; i++) {
        uint64_t dt = rng_u64(&g) >> (20 + rng_below(&g, 44)), need = rng_u64(&g) >> (16 + rng_below(&g, 48)), when;
        i128 want = (i128)min_u64(need, burst) * 1000000000;
        now += dt;
        level = level + (i128)rate * dt > (i128)burst * 1000000000 ? (i128)burst * 1000000000 : level + (i128)rate * dt;
        when = bucket_when(&b, need, now);
        if (level >= want)
            assert_true(when <= now);
        else if (when != UINT64_MAX) /* the first nanosecond at which it is there */
            assert_true(level + (i128)rate * (when - now) >= want && level + (i128)rate * (when - 1 - now) < want);
        else
            assert_true(level + (i128)rate * (UINT64_MAX - 1 - now) < want);
        bucket_take(&b, need, now);
        level -= (i128)need * 1000000000;
        assert_true((i128)b.tokens * 1000000000 + b.rest == level);
        if (level < -((i128)1 << 80))
            break;
    }
}

static void no_limit_and_nonsense(void **state)
{
    struct qos q;
    struct qos_tenant t;
    struct qos_limits l = {.weight = 1};

    (void)state;
    qos_init(&q, &(struct qos_config){0});
    assert_int_equal(qos_tenant_add(&q, &t, &(struct qos_limits){.weight = 0}, 0), -EINVAL);
    assert_int_equal(qos_tenant_add(&q, &t, &(struct qos_limits){.weight = QOS_WEIGHT_MAX + 1}, 0), -EINVAL);
    assert_int_equal(qos_tenant_add(&q, &t, &l, 0), 0);
    l.weight = 0;
    assert_int_equal(qos_tenant_set(&t, &l, 0), -EINVAL);
    assert_int_equal(qos_reserve(&t, 1, 1 << 20, 5), 0); /* no limit: now */
    assert_true(qos_next(&q) == UINT64_MAX);
    qos_tenant_remove(&t);
    qos_done(&q);
}

/*
 * An idle tenant's tag, over more virtual time than half the range of tags, does not come to lie ahead of the others.
 */
static void long_idle_is_no_debt(void **state)
{
    struct qos q;
    struct qos_tenant a, b;
    struct qos_item it[2];

    (void)state;
    qos_init(&q, &(struct qos_config){.window_ops = 1});
    assert_int_equal(qos_tenant_add(&q, &a, &(struct qos_limits){.weight = 1}, 0), 0);
    assert_int_equal(qos_tenant_add(&q, &b, &(struct qos_limits){.weight = 1}, 0), 0);
    for (int i = 0; i < 300; i++) { /* 300 * 2^56 */
        qos_put(&a, &it[0], QOS_BYTES_MAX, 0);
        assert_ptr_equal(qos_take(&q, 0), &it[0]);
        qos_end(&a, QOS_BYTES_MAX);
        if (i % 7 == 0) {
            qos_put(&a, &it[0], 1, 0);
            qos_put(&b, &it[1], 1, 0);
            assert_ptr_equal(qos_take(&q, 0), &it[1]);
            qos_end(&b, 1);
            assert_ptr_equal(qos_take(&q, 0), &it[0]);
            qos_end(&a, 1);
        }
    }
    qos_done(&q);
}

static void many(void (*fn)(uint64_t seed), uint64_t usual, uint64_t extended)
{
    struct seeds s = seeds_wanted(usual, extended);
    uint64_t t0 = now_ns();

    print_message("PENSTOCK_SEED=%" PRIu64 ", %" PRIu64 " of them\n", s.base, s.n);
    for (uint64_t i = 0; i < s.n; i++)
        fn(s.base + i);
    print_message("%.0f a second\n", (double)s.n * 1e9 / (double)(now_ns() - t0 + 1));
}

#define MANY(fn, usual, extended)                                                                                      \
    static void fn(void **state)                                                                                       \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        many(fn##_once, usual, extended);                                                                              \
    }
MANY(anything, 3000, 300000)
MANY(bucket, 20000, 2000000)
MANY(apart, 1000, 50000)
MANY(shares, 100, 10000)
MANY(limits, 100, 10000)
MANY(flood, 200, 20000)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_limit_and_nonsense),
        cmocka_unit_test(long_idle_is_no_debt),
        {"a token bucket is exact over any time", bucket, NULL, NULL, NULL},
        {"whatever is asked for in whatever order goes, in its window, and nothing idles", anything, NULL, NULL, NULL},
        {"two backlogged tenants are never further apart than a request of each", apart, NULL, NULL, NULL},
        {"backlogged tenants have their shares within 5 % over 10 s", shares, NULL, NULL, NULL},
        {"limits hold within 5 % over 10 s, also when they change, and the rest is used", limits, NULL, NULL, NULL},
        {"a flood at most doubles another's p99 against running alone at its share", flood, NULL, NULL, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

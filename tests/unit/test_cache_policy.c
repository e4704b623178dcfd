/*
 * The cache's choice of what stays, in simulation, beside the least recently used and the best that a fixed choice can
 * do: epochs in order and shuffled, a small set among scans, another set after the first.
 */
#include "cache_policy.h"

#include "base/rng.h"
#include "../lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KEYS 65536u

/* A cache by the policy, and one that drops the least recently used, fed with the same keys. */
struct sim {
    struct pol p;
    uint32_t at[KEYS]; /* block + 1; 0: not there */
    uint64_t lru_used[KEYS];
    uint32_t lru_queue_n, n;
    uint64_t clock, hits, lru_hits, uses;
};

static struct sim *sim_new(uint32_t n)
{
    struct sim *s = calloc(1, sizeof *s);

    assert_non_null(s);
    assert_int_equal(pol_init(&s->p, n), 0);
    s->n = n;
    return s;
}

static void sim_free(struct sim *s)
{
    pol_done(&s->p);
    free(s);
}

static void lru_use(struct sim *s, uint32_t key)
{
    uint32_t old = 0;

    s->clock++;
    if (s->lru_used[key]) {
        s->lru_hits++;
    } else if (s->lru_queue_n == s->n) {
        for (uint32_t k = 0; k < KEYS; k++)
            if (s->lru_used[k] && (!s->lru_used[old] || s->lru_used[k] < s->lru_used[old]))
                old = k;
        s->lru_used[old] = 0;
    } else {
        s->lru_queue_n++;
    }
    s->lru_used[key] = s->clock;
}

static void use(struct sim *s, uint32_t key, bool lru)
{
    struct pol_gone gone;
    uint32_t i;

    s->uses++;
    if (lru)
        lru_use(s, key);
    if (s->at[key]) {
        s->hits++;
        pol_use(&s->p, s->at[key] - 1);
        return;
    }
    i = pol_take(&s->p, key + 1, false, &gone);
    assert_true(i < s->n);
    if (gone.gone) {
        assert_int_equal(s->at[gone.key - 1], i + 1);
        s->at[gone.key - 1] = 0;
    }
    s->at[key] = i + 1;
    s->p.blocks[i].pins--;
}

static void shuffle(struct rng *r, uint32_t *v, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)rng_below(r, i), t = v[i - 1];
        v[i - 1] = v[k];
        v[k] = t;
    }
}

/* The share of hits in the last epoch. */
static double epochs(struct sim *s, uint32_t first, uint32_t n, int count, bool shuffled, struct rng *r)
{
    uint32_t *order = malloc(n * sizeof *order);
    uint64_t before = 0;

    for (uint32_t i = 0; i < n; i++)
        order[i] = first + i;
    for (int e = 0; e < count; e++) {
        before = s->hits;
        if (shuffled)
            shuffle(r, order, n);
        for (uint32_t i = 0; i < n; i++)
            use(s, order[i], false);
    }
    free(order);
    return (double)(s->hits - before) / n;
}

static uint64_t seed_of(void)
{
    return seed_or(20261130);
}

static void a_set_that_fits_is_found_whole_in_the_second_epoch(void **state)
{
    struct sim *s = sim_new(1024);
    struct rng r;
    (void)state;

    rng_seed(&r, seed_of());
    assert_true(epochs(s, 0, 1024, 2, false, &r) == 1.0);
    assert_true(epochs(s, 0, 1024, 1, true, &r) == 1.0);
    sim_free(s);
}

/* For n blocks and a set of N the best is n/N; the window's part of the memory is not counted on. */
static void of_a_set_that_does_not_fit_nearly_the_share_that_fits_is_found(void **state)
{
    static const double times[] = {1.1, 1.5, 2, 4, 8};
    struct rng r;
    (void)state;

    rng_seed(&r, seed_of());
    for (size_t k = 0; k < sizeof times / sizeof *times; k++)
        for (int shuffled = 0; shuffled < 2; shuffled++) {
            uint32_t n = 4096, all = (uint32_t)(times[k] * n);
            struct sim *s = sim_new(n);
            double second = epochs(s, 0, all, 2, shuffled, &r), later = epochs(s, 0, all, 5, shuffled, &r);
            print_message("%g times the cache, %s: %.3f in the second epoch, %.3f later; best %.3f\n", times[k],
                          shuffled ? "shuffled" : "in order", second, later, 1 / times[k]);
            assert_true(second > 0.9 / times[k]);
            assert_true(later > 0.9 / times[k]);
            sim_free(s);
        }
}

/* A new set takes the old one's place in a few epochs, not never. */
static void another_set_takes_the_place_of_the_first(void **state)
{
    struct rng r;
    (void)state;

    rng_seed(&r, seed_of());
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        struct sim *s = sim_new(2048);
        double third, later;
        epochs(s, 0, 4096, 4, shuffled, &r);
        third = epochs(s, 10000, 2048, 4, shuffled, &r);
        later = epochs(s, 10000, 2048, 4, shuffled, &r);
        print_message("%s: %.3f in the fourth epoch of the new set, %.3f in the eighth\n",
                      shuffled ? "shuffled" : "in order", third, later);
        assert_true(later > 0.95);
        sim_free(s);
    }
}

/* A hundred blocks used all the time, while scans longer than the cache pass by. */
static void what_is_used_often_stays_while_scans_pass(void **state)
{
    struct sim *s = sim_new(1024);
    uint64_t hot_hits = 0, hot = 0;
    struct rng r;
    (void)state;

    rng_seed(&r, seed_of());
    for (uint32_t i = 0; i < 60000; i++) {
        use(s, 2000 + i % 50000, false);
        if (i % 4 == 0) {
            uint64_t before = s->hits;
            use(s, (uint32_t)rng_below(&r, 100), false);
            if (i > 30000) {
                hot++;
                hot_hits += s->hits - before;
            }
        }
    }
    print_message("%.3f of the hot blocks' uses found\n", (double)hot_hits / (double)hot);
    assert_true((double)hot_hits > 0.95 * (double)hot);
    sim_free(s);
}

/* Uneven popularity (a random walk's square): as good as the least recently used, or better. */
static void uneven_use_is_served_as_well_as_by_the_least_recently_used(void **state)
{
    struct sim *s = sim_new(256);
    struct rng r;
    (void)state;

    rng_seed(&r, seed_of());
    for (uint32_t i = 0; i < 20000; i++) {
        uint64_t x = rng_below(&r, 1000), y = rng_below(&r, 1000);
        use(s, (uint32_t)(x * y * rng_below(&r, 1000) / 500000), true);
    }
    print_message("%.3f found, by the least recently used %.3f\n", (double)s->hits / (double)s->uses,
                  (double)s->lru_hits / (double)s->uses);
    assert_true((double)s->hits > 0.95 * (double)s->lru_hits);
    sim_free(s);
}

static void the_least_recently_used_finds_nothing_of_a_loop(void **state)
{
    struct sim *s = sim_new(256);
    (void)state;

    for (int e = 0; e < 4; e++)
        for (uint32_t k = 0; k < 512; k++)
            use(s, k, true);
    assert_int_equal(s->lru_hits, 0);
    assert_true(s->hits > 3 * 150);
    sim_free(s);
}

/* Random uses, pins and losses: lists and counts stay right. */
static void pinned_blocks_stay_and_the_lists_are_whole(void **state)
{
    struct sim *s = sim_new(64);
    uint32_t pinned[16], npinned = 0;
    struct rng r;
    (void)state;

    rng_seed(&r, seed_of());
    for (int i = 0; i < 200000; i++) {
        uint32_t key = (uint32_t)rng_below(&r, 200), b;
        switch (rng_below(&r, 8)) {
        case 0:
            if (s->at[key] && npinned < 16) {
                s->p.blocks[s->at[key] - 1].pins++;
                pinned[npinned++] = key;
            }
            break;
        case 1:
            if (npinned)
                s->p.blocks[s->at[pinned[--npinned]] - 1].pins--;
            break;
        case 2:
            b = s->at[key];
            if (b && !s->p.blocks[b - 1].pins) {
                pol_give(&s->p, b - 1);
                s->at[key] = 0;
            }
            break;
        default:
            use(s, key, false);
        }
        for (uint32_t k = 0; k < npinned; k++)
            assert_true(s->at[pinned[k]]);
        assert_int_equal(
            s->p.list[POL_FREE].n + s->p.list[POL_AHEAD].n + s->p.list[POL_WINDOW].n + s->p.list[POL_MAIN].n, 64);
        assert_true(s->p.list[POL_MAIN].n <= s->p.main_cap);
    }
    sim_free(s);
}

/* No more than its part, and what nobody came for makes room for the next. */
static void what_is_read_ahead_keeps_to_its_part_and_does_not_stay_in_vain(void **state)
{
    uint64_t vain = 0, refused = 0, taken = 0;
    struct pol_gone gone;
    struct pol p;
    (void)state;

    assert_int_equal(pol_init(&p, 256), 0);
    for (uint64_t k = 1; k <= 4000; k++) {
        uint32_t i = pol_take(&p, k, k % 2, &gone);
        assert_true(k % 2 || i != POL_NONE);
        refused += i == POL_NONE;
        if (i == POL_NONE)
            continue;
        p.blocks[i].pins--;
        vain += gone.unused;
        taken += k % 2;
        assert_true(p.list[POL_AHEAD].n <= p.ahead_cap);
    }
    assert_true(refused > 0 && vain > 100);
    assert_int_equal(vain + p.list[POL_AHEAD].n, taken);
    assert_true(p.list[POL_MAIN].n == p.main_cap);
    pol_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_that_fits_is_found_whole_in_the_second_epoch),
        cmocka_unit_test(of_a_set_that_does_not_fit_nearly_the_share_that_fits_is_found),
        cmocka_unit_test(another_set_takes_the_place_of_the_first),
        cmocka_unit_test(what_is_used_often_stays_while_scans_pass),
        cmocka_unit_test(uneven_use_is_served_as_well_as_by_the_least_recently_used),
        cmocka_unit_test(the_least_recently_used_finds_nothing_of_a_loop),
        cmocka_unit_test(pinned_blocks_stay_and_the_lists_are_whole),
        cmocka_unit_test(what_is_read_ahead_keeps_to_its_part_and_does_not_stay_in_vain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

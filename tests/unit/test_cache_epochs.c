/*
 * Sets of files that are read again and again, through the cache; reading ahead; what memory and requests that takes.
 */
#include "cache_fixture.h"
#include "../lib/seed.h"

#define LISTED(x, place) (cache_of((x)->top)->pol.list[place].n)
#define KEPT(x)          (cache_of((x)->top)->nblocks - LISTED(x, POL_FREE))

static struct rng rng;

static void seed(void)
{
    rng_seed(&rng, seed_or(20261130));
}

struct set {
    uint32_t n;
    uint64_t bytes;
    uint64_t ino[512], size[512];
};

static void make_set(struct cx *x, struct set *s, uint32_t n, uint64_t from, uint64_t to)
{
    s->n = n;
    s->bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        char name[20];
        snprintf(name, sizeof name, "f%u", i);
        s->size[i] = from + rng_below(&rng, to - from + 1);
        s->bytes += s->size[i];
        s->ino[i] = cx_make(x, name, s->size[i]);
        pst_store_release(x->c, s->ino[i]);
    }
}

/* Each file once, in another order each time: opened, read, closed. Compared with what was written now and then. */
static void epoch(struct cx *x, struct set *s, uint64_t piece)
{
    for (uint32_t i = s->n; i > 1; i--) {
        uint32_t k = (uint32_t)rng_below(&rng, i);
        uint64_t ino = s->ino[i - 1], size = s->size[i - 1];
        s->ino[i - 1] = s->ino[k];
        s->size[i - 1] = s->size[k];
        s->ino[k] = ino;
        s->size[k] = size;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        static uint8_t p[MiB];
        uint64_t at = 0;
        cx_reopen(x, s->ino[i]);
        while (at < s->size[i]) {
            int64_t n = cx_io(x, PST_OP_READ, s->ino[i], at, p, piece);
            assert_int_equal(n, min_u64(piece, s->size[i] - at));
            for (int64_t k = 0; k < n; k += i % 8 ? 4093 : 1)
                assert_int_equal(p[k], cx_byte(0, at + (uint64_t)k));
            at += (uint64_t)n;
        }
        pst_store_release(x->c, s->ino[i]);
    }
}

static void the_second_epoch_of_a_set_that_fits_asks_the_store_for_no_byte(void **state)
{
    struct set s;
    struct cx x;
    uint64_t first, before;
    (void)state;

    seed();
    cx_open(&x, 32 * MiB, 0);
    make_set(&x, &s, 100, 1, 400000);
    before = cx_done(PST_OP_READ);
    epoch(&x, &s, MiB);
    first = cx_done(PST_OP_READ) - before;
    assert_true(first >= s.n);
    for (int e = 0; e < 2; e++)
        epoch(&x, &s, MiB);
    assert_int_equal(cx_done(PST_OP_READ) - before, first);
    assert_int_equal(cx_done(PST_OP_ATTR), 0);
    assert_int_equal(cx_counts(&x).hit_bytes, 2 * s.bytes);
    assert_int_equal(cx_counts(&x).miss_bytes, s.bytes);
    cx_close(&x);
}

static void of_a_set_of_twice_the_memory_nearly_half_is_found(void **state)
{
    struct cache_counts a, b;
    struct set s;
    struct cx x;
    double share;
    (void)state;

    seed();
    cx_open(&x, 32 * MiB, 0);
    make_set(&x, &s, 512, B + 1, 2 * B);
    epoch(&x, &s, MiB);
    a = cx_counts(&x);
    epoch(&x, &s, MiB);
    epoch(&x, &s, MiB);
    b = cx_counts(&x);
    share = (double)(b.hit_bytes - a.hit_bytes) / (2.0 * (double)s.bytes);
    print_message("%.3f of the bytes found, best 0.5\n", share);
    assert_true(share > 0.4);
    assert_true(KEPT(&x) <= 32 * MiB / B);
    assert_true(b.evicted > 0);
    /* And nothing is remembered of files that have nothing here. */
    assert_true(cache_of(x.top)->nobjs <= KEPT(&x));
    cx_close(&x);
}

/* ---- ahead ---- */

static void who_reads_in_order_finds_it_there(void **state)
{
    struct cache_counts n;
    struct memstore_counts m;
    struct cx x;
    uint64_t ino, before, size = 6 * MiB + 1234;
    (void)state;

    cx_open(&x, 32 * MiB, 2 * MiB);
    ino = cx_make(&x, "f", size);
    before = cx_done(PST_OP_READ);
    for (uint64_t at = 0; at < size; at += 16384)
        assert_int_equal(cx_check(&x, ino, at, 16384, 0), min_u64(16384, size - at));
    n = cx_counts(&x);
    memstore_counts(cx_mem, &m);
    print_message("%llu requests; %llu blocks ahead, %llu used\n", (unsigned long long)(m.ops[PST_OP_READ] - before),
                  (unsigned long long)n.ahead, (unsigned long long)n.ahead_used);
    assert_int_equal(n.ahead_used, n.ahead);
    assert_int_equal(n.ahead_wasted, 0);
    assert_true(n.ahead >= (size - MiB) / B);
    assert_true(n.ahead <= size / B + 1); /* none behind the end */
    assert_true(m.ops[PST_OP_READ] - before <= 20);
    assert_int_equal(n.passed, 0);
    cx_close(&x);
}

/* Two readers of a file are told apart; one that jumps about gets nothing ahead. */
static void two_readers_of_a_file_are_in_order_and_one_at_random_is_not(void **state)
{
    struct cache_counts n;
    struct cx x;
    uint64_t ino;
    (void)state;

    seed();
    cx_open(&x, 32 * MiB, MiB);
    ino = cx_make(&x, "f", 12 * MiB);
    for (uint64_t at = 0; at < 2 * MiB; at += 32768) {
        cx_check(&x, ino, at, 32768, 0);
        cx_check(&x, ino, 6 * MiB + at, 32768, 0);
    }
    n = cx_counts(&x);
    assert_true(n.ahead_used >= 2 * MiB / B);
    cx_close(&x);

    cx_open(&x, 32 * MiB, MiB);
    cx_reopen(&x, ino);
    for (int i = 0; i < 100; i++)
        cx_check(&x, ino, rng_below(&rng, 11 * MiB), 4096, 0);
    n = cx_counts(&x);
    assert_true(n.ahead <= 12);
    cx_close(&x);
}

/* Reads up to `to` in pieces of 64 KiB. */
static void read_up_to(struct cx *x, uint64_t ino, uint64_t to)
{
    for (uint64_t at = 0; at < to; at += B)
        assert_int_equal(cx_check(x, ino, at, B, 0), B);
}

static void an_error_ahead_is_told_to_nobody_unless_it_is_there_again(void **state)
{
    struct cx x;
    uint64_t ino;
    uint8_t p[10];
    (void)state;

    cx_open(&x, 32 * MiB, 2 * MiB);
    ino = cx_make(&x, "f", 8 * MiB);
    read_up_to(&x, ino, B);
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    {
        struct cx_op o;
        cx_begin(&x, x.q, &o, ino, B, B); /* the second in order: fetched, and some more ahead */
        cx_turn(x.q);
        memstore_hold(cx_mem, 0);
        cx_end(x.q, &o, B, 0);
    }
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    memstore_fail(cx_mem, BIT(PST_OP_READ), -EIO, 1000);
    read_up_to(&x, ino, 2 * B);
    memstore_release(cx_mem);
    cx_turn(x.q);
    memstore_fail(cx_mem, 0, 0, 0);
    for (uint64_t at = 2 * B; at < 8 * MiB; at += B) {
        if (at == 4 * MiB) /* all that is ahead of here fails */
            memstore_fail(cx_mem, BIT(PST_OP_READ), -EIO, 1);
        /* One that is waited for is another reader's; then it is read once more. */
        int64_t r = cx_io(&x, PST_OP_READ, ino, at, p, 10);
        if (r != 10) {
            assert_int_equal(r, -EIO);
            assert_true(at >= 4 * MiB);
            assert_int_equal(cx_io(&x, PST_OP_READ, ino, at, p, 10), 10);
        }
        assert_int_equal(p[3], cx_byte(0, at + 3));
    }
    memstore_fail(cx_mem, BIT(PST_OP_READ), -EIO, 1000);
    {
        struct cx y;
        cx_open(&y, 32 * MiB, 2 * MiB);
        cx_reopen(&y, ino);
        assert_int_equal(cx_io(&y, PST_OP_READ, ino, 0, p, 10), -EIO);
        memstore_fail(cx_mem, 0, 0, 0);
        cx_close(&y);
    }
    cx_close(&x);
}

static void what_is_ahead_keeps_to_its_part_of_memory_and_requests(void **state)
{
    struct memstore_counts m;
    struct cx x;
    uint64_t ino[8];
    (void)state;

    cx_open(&x, 16 * MiB, 64 * MiB);
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        ino[i] = cx_make(&x, name, 4 * MiB);
        for (uint64_t at = 0; at < MiB; at += MiB / 4)
            cx_check(&x, ino[i], at, MiB / 4, 0);
        assert_true(LISTED(&x, POL_AHEAD) <= cache_of(x.top)->pol.ahead_cap);
    }
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++) {
            struct cx_op o;
            cx_begin(&x, x.q, &o, ino[i], MiB + (uint64_t)k * 1000, 1000);
            pst_queue_cancel(x.q, &o.op);
            cx_end(x.q, &o, o.op.result == -ECANCELED ? -ECANCELED : 1000, 0);
        }
    memstore_counts(cx_mem, &m);
    assert_true(m.held <= CACHE_AHEAD + 8 * 4);
    assert_true(LISTED(&x, POL_AHEAD) <= cache_of(x.top)->pol.ahead_cap);
    memstore_release(cx_mem);
    cx_turn(x.q);
    cx_close(&x);
}

/* In vain: all of it is used or counted as wasted once it is gone. */
static void what_was_read_ahead_in_vain_is_counted(void **state)
{
    struct cache_counts n;
    struct cx x;
    uint64_t ino;
    (void)state;

    cx_open(&x, 16 * MiB, 2 * MiB);
    ino = cx_make(&x, "f", 8 * MiB);
    read_up_to(&x, ino, MiB);
    cx_write(&x, ino, 0, 10, 0);
    cx_turn(x.q);
    n = cx_counts(&x);
    assert_true(n.ahead > 0);
    assert_true(n.ahead_wasted > 0);
    assert_int_equal(n.ahead_used + n.ahead_wasted, n.ahead);
    cx_close(&x);
}

static void files_and_containers_close_while_something_is_read_ahead(void **state)
{
    struct cx_op o;
    struct cx x;
    uint64_t ino;
    (void)state;

    cx_open(&x, 16 * MiB, 2 * MiB);
    ino = cx_make(&x, "f", 8 * MiB);
    read_up_to(&x, ino, B);
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    cx_begin(&x, x.q, &o, ino, B, B);
    cx_turn(x.q);
    pst_queue_cancel(x.q, &o.op);
    cx_end(x.q, &o, -ECANCELED, 0);
    pst_store_release(x.c, ino);
    pst_cont_close(x.c);
    memstore_release(cx_mem);
    pst_queue_close(x.q);
    pst_store_close(x.top);
}

static void sizes_that_make_no_sense_are_refused(void **state)
{
    struct pst_store *st;
    (void)state;

    assert_int_equal(filter_cache(cx_base, FILTER_CACHE_MIN - 1, 0, &st), -EINVAL);
    assert_int_equal(filter_cache(cx_base, FILTER_CACHE_MAX + 1, 0, &st), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CX_TEST(the_second_epoch_of_a_set_that_fits_asks_the_store_for_no_byte),
        CX_TEST(of_a_set_of_twice_the_memory_nearly_half_is_found),
        CX_TEST(who_reads_in_order_finds_it_there),
        CX_TEST(two_readers_of_a_file_are_in_order_and_one_at_random_is_not),
        CX_TEST(an_error_ahead_is_told_to_nobody_unless_it_is_there_again),
        CX_TEST(what_is_ahead_keeps_to_its_part_of_memory_and_requests),
        CX_TEST(what_was_read_ahead_in_vain_is_counted),
        CX_TEST(files_and_containers_close_while_something_is_read_ahead),
        CX_TEST(sizes_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

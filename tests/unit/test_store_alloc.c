/* Space of the embedded engine: claims, quarantine, accounting. */
#define FX_BARE
#include "local_fixture.h"

static void free_extent(struct engine *e, uint64_t block, uint32_t n, uint64_t *ret_lsn)
{
    struct txn *t = txn_new(e);
    txn_set_reserved(t);
    txn_free_extent(t, block, n);
    assert_int_equal(txn_commit(t, ret_lsn), 0);
}

static uint64_t free_bytes(struct engine *e)
{
    uint64_t n, total;
    alloc_space(e, &n, &total);
    assert_int_equal(total, 64 * MiB);
    return n;
}

/* Claims all there is; returns the blocks. */
static uint64_t claim_all(struct engine *e, uint64_t *ret_first)
{
    uint64_t n = 0, block;
    int64_t k;
    while ((k = alloc_claim(e, 5000, &block)) > 0) {
        if (!n)
            *ret_first = block;
        n += (uint64_t)k;
    }
    assert_int_equal(k, -ENOSPC);
    return n;
}

static void claims_are_disjoint_and_counted(void **state)
{
    struct engine *e = fx_open();
    struct bitmap seen;
    uint64_t block = 0, free0 = free_bytes(e), n = 0;
    int64_t k;
    (void)state;
    assert_int_equal(free0, 64 * MiB);
    assert_int_equal(bitmap_init(&seen, 64 * MiB / PST_BLOCK), 0);
    for (uint32_t want = 1; (k = alloc_claim(e, want, &block)) > 0; want = want % 700 + 13) {
        assert_true(bitmap_range_clear(&seen, block, (uint64_t)k));
        bitmap_set(&seen, block, (uint64_t)k);
        n += (uint64_t)k;
        assert_int_equal(free_bytes(e), free0 - n * PST_BLOCK);
    }
    assert_int_equal(k, -ENOSPC);
    assert_int_equal(n * PST_BLOCK, 64 * MiB);
    alloc_unclaim(e, 100, 50);
    assert_int_equal(alloc_claim(e, 70, &block), 50);
    assert_int_equal(block, 100);
    assert_int_equal(alloc_claim(e, 0, &block), -EINVAL);
    bitmap_done(&seen);
    eng_close(e);
}

static void a_dropped_transaction_gives_its_claims_back(void **state)
{
    struct engine *e = fx_open();
    uint64_t block, free0 = free_bytes(e);
    int64_t k = alloc_claim(e, 40, &block);
    struct txn *t = txn_new(e);
    (void)state;
    assert_int_equal(k, 40);
    txn_claimed_extent(t, block, 40);
    txn_drop(t);
    assert_int_equal(free_bytes(e), free0);
    k = alloc_claim(e, 40, &block);
    t = txn_new(e);
    txn_claimed_extent(t, block, 40);
    assert_int_equal(txn_commit(t, NULL), 0);
    assert_int_equal(free_bytes(e), free0 - 40 * PST_BLOCK);
    eng_close(e);
}

static void freed_blocks_wait_for_the_log(void **state)
{
    struct engine *e = fx_open();
    uint64_t first = 0, block, lsn, total = claim_all(e, &first);
    (void)state;
    assert_int_equal(total * PST_BLOCK, 64 * MiB);
    free_extent(e, 7, 9, &lsn);
    assert_int_equal(free_bytes(e), 9 * PST_BLOCK); /* promised, though not there yet */
    /* Nothing else is free: the claim makes the log durable first. */
    assert_int_equal(alloc_claim(e, 9, &block), 9);
    assert_int_equal(block, 7);
    assert_true(sync_durable(e) >= lsn);
    eng_close(e);
}

static void freed_blocks_wait_for_reads_that_began_before(void **state)
{
    struct engine *e = fx_open();
    uint64_t first = 0, block, lsn, r1, r2, r3;
    (void)state;
    claim_all(e, &first);
    r1 = alloc_read_begin(e);
    free_extent(e, 10, 1, &lsn);
    r2 = alloc_read_begin(e);
    free_extent(e, 20, 1, &lsn);
    r3 = alloc_read_begin(e); /* began after both: holds nothing back */
    assert_int_equal(eng_sync(e, lsn), 0);
    assert_int_equal(alloc_claim(e, 1, &block), -ENOSPC);
    alloc_read_end(e, r1);
    assert_int_equal(alloc_claim(e, 1, &block), 1);
    assert_int_equal(block, 10);
    assert_int_equal(alloc_claim(e, 1, &block), -ENOSPC);
    alloc_read_end(e, r2);
    assert_int_equal(alloc_claim(e, 1, &block), 1);
    assert_int_equal(block, 20);
    alloc_read_end(e, r3);
    eng_close(e);
}

static void many_readers_of_many_epochs_end_in_any_order(void **state)
{
    struct engine *e = fx_open();
    enum { N = 500 };
    uint64_t first = 0, block, lsn, tickets[N];
    struct rng rng;
    (void)state;
    claim_all(e, &first);
    rng_seed(&rng, 5);
    for (int i = 0; i < N; i++) {
        tickets[i] = alloc_read_begin(e);
        free_extent(e, (uint64_t)i, 1, &lsn);
    }
    assert_int_equal(eng_sync(e, lsn), 0);
    for (int i = N - 1; i > 0; i--) {
        int j = (int)rng_below(&rng, (uint64_t)i + 1);
        uint64_t x = tickets[i];
        tickets[i] = tickets[j];
        tickets[j] = x;
    }
    for (int i = 0; i < N; i++)
        alloc_read_end(e, tickets[i]);
    for (int i = 0; i < N; i++)
        assert_int_equal(alloc_claim(e, 1, &block), 1);
    assert_int_equal(alloc_claim(e, 1, &block), -ENOSPC);
    eng_close(e);
}

static void marks_outside_or_twice_are_refused(void **state)
{
    struct engine *e = fx_open();
    uint64_t block;
    (void)state;
    assert_int_equal(alloc_claim(e, 1, &block), 1);
    assert_int_equal(alloc_mark(e, block, 1), -EEXIST);
    assert_int_equal(alloc_mark(e, 100, 10), 0);
    assert_int_equal(alloc_mark(e, 109, 10), -EEXIST);
    assert_int_equal(alloc_mark(e, UINT64_MAX, 10), -ERANGE);
    assert_int_equal(alloc_mark(e, alloc_file_blocks(e) - 1, 2), -ERANGE);
    assert_int_equal(alloc_mark(e, 200, 0), -ERANGE);
    eng_close(e);
}

struct churn {
    struct engine *e;
    uint64_t seed;
};

static void *churn(void *arg)
{
    struct churn *c = arg;
    struct rng rng;
    rng_seed(&rng, c->seed);
    for (int i = 0; i < 300; i++) {
        uint64_t block, ticket = alloc_read_begin(c->e);
        int64_t k = alloc_claim(c->e, 1 + (uint32_t)rng_below(&rng, 50), &block);
        struct txn *t = txn_new(c->e);
        assert_true(k > 0);
        txn_claimed_extent(t, block, (uint32_t)k);
        if (rng_below(&rng, 4)) {
            assert_int_equal(txn_commit(t, NULL), 0);
            free_extent(c->e, block, (uint32_t)k, NULL);
        } else {
            txn_drop(t);
        }
        alloc_read_end(c->e, ticket);
    }
    return NULL;
}

static void threads_claim_and_free_and_nothing_is_lost(void **state)
{
    struct engine *e = fx_open();
    struct churn c[3];
    pthread_t t[3];
    uint64_t block;
    (void)state;
    for (int i = 0; i < 3; i++) {
        c[i] = (struct churn){e, (uint64_t)i + 1};
        pthread_create(&t[i], NULL, churn, &c[i]);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(free_bytes(e), 64 * MiB);
    assert_int_equal(eng_sync(e, eng_last_lsn(e)), 0);
    assert_true(alloc_claim(e, 16384, &block) > 0);
    eng_close(e);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, fx_setup, fx_teardown)
    const struct CMUnitTest tests[] = {
        T(claims_are_disjoint_and_counted),
        T(a_dropped_transaction_gives_its_claims_back),
        T(freed_blocks_wait_for_the_log),
        T(freed_blocks_wait_for_reads_that_began_before),
        T(many_readers_of_many_epochs_end_in_any_order),
        T(marks_outside_or_twice_are_refused),
        T(threads_claim_and_free_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

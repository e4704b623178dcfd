/* Numbers of objects and containers: none twice, and none that tells of another container. */
#include "ns_fixture.h"

#include "local/local_store.h"

#define ROOT PST_ROOT_INO

static uint64_t made(struct pst_cont *c, const char *name)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_attr a;
    assert_int_equal(pst_store_make(c, &ctx, ROOT, name, &in, &a, NULL), 0);
    return a.ino;
}

static uint64_t made_nth(struct pst_cont *c, unsigned i)
{
    char name[16];
    snprintf(name, sizeof name, "n%u", i);
    return made(c, name);
}

static struct pst_cont *cont_made(const char *label)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_cont_props props = {.mode = 0777};
    struct pst_cont_info info;
    struct pst_cont *c;
    assert_int_equal(pst_cont_create(&nx_e->st, &ctx, "p", label, &props, &info), 0);
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", label, &c), 0);
    return c;
}

static int ascending(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void no_run_has_the_numbers_of_another(void **state)
{
    struct ino_mark m;
    static uint64_t first[4096];
    (void)state;
    ino_mark_begin(&m);
    for (uint64_t i = 0; i < ARRAY_SIZE(first); i++) {
        uint64_t run = i < 2048 ? i : NS_INO_RUNS - 1 - i, back;
        assert_int_equal(ino_of_run(&m, run, &first[i]), 0);
        assert_int_equal(first[i] >> 62, 1);
        assert_int_equal(first[i] % NS_INO_RUN, 0);
        assert_int_equal(ino_run_of(&m, first[i] + i % NS_INO_RUN, &back), 0);
        assert_int_equal(back, run);
    }
    qsort(first, ARRAY_SIZE(first), sizeof first[0], ascending);
    for (size_t i = 1; i < ARRAY_SIZE(first); i++)
        assert_true(first[i] != first[i - 1]);
}

/* What a tenant sees in its own container is the same whether others make objects or not. */
static void what_others_make_leaves_no_gap(void **state)
{
    struct pst_cont *other = cont_made("other");
    uint64_t mine = made(nx_c, "a"), theirs = made(other, "a");
    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(made_nth(nx_c, i), mine + i + 1);
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(made_nth(other, 3 * i + k), theirs + 3 * i + k + 1);
    }
    pst_cont_close(other);
}

/* With a plain counter the numbers of 64 containers would rise; by chance half of the steps do. */
static void the_place_of_a_run_does_not_tell_how_many_were_before(void **state)
{
    unsigned rises = 0, near = 0;
    uint64_t last = 0;
    (void)state;
    for (unsigned i = 0; i < 64; i++) {
        char label[16];
        snprintf(label, sizeof label, "c%u", i);
        struct pst_cont *c = cont_made(label);
        uint64_t n = made(c, "a"), apart = n > last ? n - last : last - n;
        rises += n > last;
        near += apart < 1ull << 30;
        last = n;
        pst_cont_close(c);
    }
    assert_in_range(rises, 8, 56); /* outside of it by chance: less than once in 10^9 runs */
    assert_int_equal(near, 0);     /* by chance once in 30 million runs */
}

static void a_run_that_is_used_up_is_followed_by_another(void **state)
{
    uint64_t first = made(nx_c, "first");
    (void)state;
    for (unsigned i = 0; i < NS_INO_RUN - 1; i++)
        assert_int_equal(made_nth(nx_c, i), first + i + 1);
    uint64_t next = made(nx_c, "next");
    assert_int_equal(first % NS_INO_RUN, 0);
    assert_int_equal(next % NS_INO_RUN, 0);
    assert_true(next != first);
}

/* Also of objects that are gone, and of a store whose process died before it wrote anything more. */
static void no_number_is_used_again_after_a_restart(void **state)
{
    uint64_t used[40];
    size_t n = 0;
    (void)state;
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < 4; i++)
            used[n++] = made_nth(nx_c, i);
        for (unsigned i = 0; i < 4; i++) {
            char name[16];
            snprintf(name, sizeof name, "n%u", i);
            assert_int_equal(nx_unlink(NULL, ROOT, name), 0);
        }
        nx_reopen();
    }
    qsort(used, n, sizeof used[0], ascending);
    for (size_t i = 1; i < n; i++)
        assert_true(used[i] != used[i - 1]);
}

/* More runs than may be taken past the durable mark. */
static void the_mark_is_never_behind(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3 * NS_INO_WINDOW; i++) {
        struct ino_mark durable;
        uint64_t n, run;
        eng_lock_ns(nx_e);
        assert_int_equal(ino_new(nx_e->ns, 0, &n), 0);
        eng_unlock_ns(nx_e);
        assert_int_equal(ino_mark_read(nx_e, &durable), 0);
        assert_int_equal(ino_run_of(&nx_e->ns->ino, n, &run), 0);
        assert_true(run < durable.next);
    }
}

/* Its numbers are the counter's; those of new objects are not, and no run has one of them. */
static void a_store_from_before_there_were_runs_goes_on(void **state)
{
    struct key k = key_begin(KEY_SYSTEM);
    uint8_t old[9] = {100, [8] = 1};
    struct ino_mark m;
    uint64_t run;
    (void)state;
    key_bytes(&k, "ino", 3);
    nx_e = fx_open();
    struct txn *t = txn_new(nx_e);
    txn_put(t, &k, old, sizeof old);
    assert_int_equal(txn_commit(t, NULL), 0);
    assert_int_equal(ino_mark_read(nx_e, &m), 0);
    assert_int_equal(m.next, 100);
    assert_int_equal(ino_run_of(&m, 99, &run), 0);
    assert_int_equal(run, 99);
    nx_e->ns->ino = m;

    struct pst_ctx ctx = as(NULL);
    struct pst_pool_info pool = {.label = "p", .mode = 0755};
    assert_int_equal(pst_pool_create(&nx_e->st, &ctx, &pool, &pool), 0);
    nx_c = cont_made("c");
    assert_int_equal(ino_run_of(&nx_e->ns->ino, nx_c->info.id, &run), 0);
    assert_int_equal(run, 100);
    for (uint64_t i = 101; i < 104; i++) {
        uint64_t n = made_nth(nx_c, (unsigned)i);
        assert_int_equal(ino_run_of(&nx_e->ns->ino, n, &run), 0);
        assert_int_equal(run, i);
        nx_reopen();
    }
    nx_close();
    assert_int_equal(pst_local_check(fx_dir, &(struct pst_check_opts){0}, fx_err, sizeof fx_err), 0);
}

#define STORE_TEST(f) cmocka_unit_test_setup_teardown(f, nx_setup, nx_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_run_has_the_numbers_of_another),
        STORE_TEST(what_others_make_leaves_no_gap),
        STORE_TEST(the_place_of_a_run_does_not_tell_how_many_were_before),
        STORE_TEST(a_run_that_is_used_up_is_followed_by_another),
        STORE_TEST(no_number_is_used_again_after_a_restart),
        STORE_TEST(the_mark_is_never_behind),
        cmocka_unit_test_setup_teardown(a_store_from_before_there_were_runs_goes_on, fx_setup, nx_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

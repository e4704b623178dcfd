/* fcntl and flock locks of a mount, against a model of one slot per byte. */
#include "fm.h"

#include "base/rng.h"
#include "../lib/seed.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define INO 7

static int set(struct lk_table *t, enum lk_kind kind, enum lk_type type, uint64_t owner, uint64_t start, uint64_t end)
{
    struct list granted = LIST_INIT(granted);
    int r = lk_set(t, INO, kind, type, owner, (struct lk_range){start, end}, (int)owner, NULL, &granted);

    assert_true(list_empty(&granted));
    return r;
}

static void shared_locks_share_and_exclusive_ones_exclude(void **state)
{
    struct lk_table *t = lk_new();
    struct lk_range range;
    int32_t pid;

    (void)state;
    assert_int_equal(set(t, LK_POSIX, LK_READ, 1, 0, 9), 0);
    assert_int_equal(set(t, LK_POSIX, LK_READ, 2, 5, 14), 0);
    assert_int_equal(set(t, LK_POSIX, LK_WRITE, 3, 14, 20), -EAGAIN);
    assert_int_equal(set(t, LK_POSIX, LK_WRITE, 3, 15, 20), 0);
    assert_int_equal(set(t, LK_FLOCK, LK_WRITE, 3, 0, UINT64_MAX), 0); /* the other kind does not care */
    assert_int_equal(lk_test(t, INO, LK_WRITE, 1, (struct lk_range){0, UINT64_MAX}, &range, &pid), LK_READ);
    assert_int_equal(range.start, 5);
    assert_int_equal(pid, 2);
    lk_free(t);
}

static void a_waiting_request_is_granted_when_the_holder_lets_go(void **state)
{
    struct lk_table *t = lk_new();
    struct list granted = LIST_INIT(granted);
    struct lk_range all = {0, UINT64_MAX};
    struct lk_wait w = {0}, w2 = {0};

    (void)state;
    assert_int_equal(set(t, LK_FLOCK, LK_WRITE, 1, 0, UINT64_MAX), 0);
    assert_int_equal(lk_set(t, INO, LK_FLOCK, LK_READ, 2, all, 2, &w, &granted), 1);
    assert_int_equal(lk_set(t, INO, LK_FLOCK, LK_READ, 3, all, 3, &w2, &granted), 1);
    assert_true(lk_cancel(t, &w2));
    assert_false(lk_cancel(t, &w2));
    assert_int_equal(lk_set(t, INO, LK_FLOCK, LK_NONE, 1, all, 1, NULL, &granted), 0);
    assert_ptr_equal(list_pop_front(&granted), &w.link);
    assert_true(list_empty(&granted));
    assert_int_equal(w.result, 0);
    assert_int_equal(set(t, LK_FLOCK, LK_WRITE, 1, 0, UINT64_MAX), -EAGAIN);
    lk_free(t);
}

static void a_circle_of_waits_is_edeadlk(void **state)
{
    struct lk_table *t = lk_new();
    struct list granted = LIST_INIT(granted);
    struct lk_wait w[3] = {0};

    (void)state;
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(set(t, LK_POSIX, LK_WRITE, i + 1, i, i), 0);
    for (uint64_t i = 0; i < 2; i++)
        assert_int_equal(lk_set(t, INO, LK_POSIX, LK_WRITE, i + 1, (struct lk_range){i + 1, i + 1}, 1, &w[i], &granted),
                         1);
    assert_int_equal(lk_set(t, INO, LK_POSIX, LK_WRITE, 3, (struct lk_range){0, 0}, 1, &w[2], &granted), -EDEADLK);
    lk_drain(t, &granted);
    lk_free(t);
}

/* model[owner][byte]: what the owner holds there. */
#define OWNERS 4
#define BYTES  24

static void random_locks_are_those_of_the_model(void **state)
{
    enum lk_type model[OWNERS][BYTES] = {0};
    struct lk_table *t = lk_new();
    struct rng rng;

    (void)state;
    rng_seed(&rng, seed_new());
    for (int i = 0; i < 50000; i++) {
        uint64_t owner = rng_below(&rng, OWNERS), a = rng_below(&rng, BYTES), b = rng_below(&rng, BYTES);
        uint64_t start = a < b ? a : b, end = a < b ? b : a;
        enum lk_type type = (enum lk_type)rng_below(&rng, 3);
        bool conflict = false;

        for (uint64_t o = 0; o < OWNERS; o++)
            for (uint64_t k = start; k <= end && o != owner && type != LK_NONE; k++)
                conflict |= model[o][k] == LK_WRITE || (model[o][k] == LK_READ && type == LK_WRITE);
        assert_int_equal(set(t, LK_POSIX, type, owner, start, end), conflict ? -EAGAIN : 0);
        for (uint64_t k = start; k <= end && !conflict; k++)
            model[owner][k] = type;
    }
    for (uint64_t o = 0; o < OWNERS; o++)
        assert_int_equal(set(t, LK_POSIX, LK_NONE, o, 0, UINT64_MAX), 0);
    assert_int_equal(set(t, LK_POSIX, LK_WRITE, 9, 0, UINT64_MAX), 0);
    lk_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_locks_share_and_exclusive_ones_exclude),
        cmocka_unit_test(a_waiting_request_is_granted_when_the_holder_lets_go),
        cmocka_unit_test(a_circle_of_waits_is_edeadlk),
        cmocka_unit_test(random_locks_are_those_of_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

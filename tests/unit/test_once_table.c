/*
 * The table of control/once.h: what is the newest, who waits for whom, over sessions of a client, from several threads.
 */
#include "control/once.h"
#include "control/session.h"

#include "base/util.h"
#include "store/types.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

static struct sess_table *t;
static const struct sess_ident alice = {.client = "alice"}, bob = {.client = "bob"};

static int setup(void **state)
{
    const struct sess_limits l = {.sessions = 8};
    const struct sess_hooks none = {0};
    (void)state;
    t = sess_table_new(&l, &none);
    return t ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    sess_table_free(t);
    return 0;
}

static struct sess *open_session(const struct sess_ident *who)
{
    struct sess *s = NULL;
    assert_int_equal(sess_open(t, who, 0, &s), 0);
    return s;
}

static void the_newest_try_counts(void **state)
{
    struct sess *s = open_session(&alice);
    struct once a = {0}, b = {0}, c = {0};
    (void)state;

    assert_int_equal(once_begin(&a, s, 5, 1, 10), 0);
    assert_int_equal(once_begin(&b, s, 5, 1, 11), 0); /* a was not in the store */
    assert_false(once_commit(&a));
    assert_true(once_commit(&b));
    once_end(&a); /* does not end b's */
    assert_int_equal(once_begin(&c, s, 5, 1, 12), -EAGAIN);
    assert_int_equal(once_begin(&a, s, 5, 1, 11), -ECONNABORTED); /* c's try was seen, though it waits */
    once_end(&b);
    once_end(&b);
    assert_int_equal(once_begin(&c, s, 5, 1, 12), 0);
    once_end(&c);
    assert_int_equal(once_begin(&a, s, 5, 1, 12), 0); /* the same try is none that is older */
    once_end(&a);
    assert_int_equal(once_begin(&a, s, 5, 2, 1), 0); /* tries count within a request */
    once_end(&a);
    assert_int_equal(once_begin(&a, s, 5, 1, 99), -ESTALE);
    assert_int_equal(once_begin(&a, s, PST_SLOTS_MAX, 1, 1), -ENOMEM);
    sess_put(s);
}

static void a_later_request_of_the_slot_waits_as_well(void **state)
{
    struct sess *s = open_session(&alice);
    struct once a = {0}, b = {0};
    (void)state;

    assert_int_equal(once_begin(&a, s, 0, 1, 1), 0);
    assert_true(once_commit(&a));
    assert_int_equal(once_begin(&b, s, 0, 2, 2), -EAGAIN);
    once_end(&a);
    assert_int_equal(once_begin(&b, s, 0, 2, 2), 0);
    once_end(&b);
    sess_put(s);
}

static void slots_and_clients_are_apart_and_sessions_of_a_client_are_not(void **state)
{
    struct sess *s = open_session(&alice), *next = open_session(&alice), *other = open_session(&bob);
    struct once a = {0}, b = {0};
    (void)state;

    assert_int_equal(once_begin(&a, s, 1023, 7, 1), 0);
    assert_true(once_commit(&a));
    assert_int_equal(once_begin(&b, other, 1023, 6, 1), 0);
    once_end(&b);
    assert_int_equal(once_begin(&b, s, 1022, 6, 1), 0);
    once_end(&b);
    assert_int_equal(once_begin(&b, next, 1023, 7, 2), -EAGAIN);
    once_end(&a);
    /* The session is over, but somebody holds it: what it has under way may still come. */
    assert_int_equal(sess_close(t, sess_id(next)), 0);
    sess_put(next);
    assert_int_equal(sess_close(t, sess_id(s)), 0);
    assert_int_equal(once_begin(&b, s, 1023, 7, 1), -ECONNABORTED);
    sess_put(s);
    s = open_session(&alice); /* nobody held one: it begins anew */
    assert_int_equal(once_begin(&b, s, 1023, 1, 1), 0);
    once_end(&b);
    sess_put(s);
    sess_put(other);
}

static void a_fence_ends_what_earlier_sessions_have_under_way(void **state)
{
    struct sess *s = open_session(&alice), *beside = open_session(&alice), *other = open_session(&bob), *next;
    struct once begun = {0}, stored = {0}, a = {0};
    (void)state;

    assert_int_equal(once_begin(&begun, s, 1, 1, 1), 0);
    assert_int_equal(once_begin(&stored, s, 2, 1, 1), 0);
    assert_true(once_commit(&stored));
    next = open_session(&alice);
    assert_int_equal(once_begin(&a, beside, 3, 1, 1), 0); /* without a fence all go on */
    once_end(&a);
    once_fence(next);
    assert_false(once_quiet(next));
    assert_true(once_quiet(other));
    assert_false(once_commit(&begun));
    assert_int_equal(once_begin(&a, s, 3, 2, 1), -ECONNABORTED);
    assert_int_equal(once_begin(&a, beside, 3, 2, 1), -ECONNABORTED);
    once_end(&begun);
    once_end(&stored);
    assert_true(once_quiet(next));
    assert_int_equal(once_begin(&a, next, 1, 1, 2), 0); /* the retry, in the next session */
    assert_true(once_commit(&a));
    once_end(&a);
    sess_put(beside);
    beside = open_session(&alice); /* a later one is of the newest era */
    assert_int_equal(once_begin(&a, beside, 3, 2, 1), 0);
    once_end(&a);
    sess_put(s);
    sess_put(beside);
    sess_put(other);
    sess_put(next);
}

static void without_a_part_there_is_nothing_to_do(void **state)
{
    struct once none = {0};
    (void)state;

    assert_true(once_commit(&none));
    once_end(&none);
}

/* ---- threads: never two in the store at once, none older after a newer one ---- */

#define THREADS 4
#define ROUNDS  2000

static struct sess *shared;
static atomic_int inside;
static atomic_uint_fast64_t attempts, last_in;

static void *try_often(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t mine = atomic_fetch_add(&attempts, 1) + 1;
        struct once o = {0};
        int r;
        while ((r = once_begin(&o, shared, 64, 1, mine)) == -EAGAIN)
            sched_yield();
        if (r == 0 && once_commit(&o)) {
            assert_int_equal(atomic_fetch_add(&inside, 1), 0);
            assert_true(atomic_exchange(&last_in, mine) < mine);
            atomic_fetch_sub(&inside, 1);
        } else {
            assert_true(r == 0 || r == -ECONNABORTED);
        }
        once_end(&o);
    }
    return NULL;
}

static void one_try_at_a_time_is_in_the_store_and_they_come_in_order(void **state)
{
    pthread_t id[THREADS];
    (void)state;

    shared = open_session(&alice);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&id[i], NULL, try_often, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(id[i], NULL);
    assert_true(atomic_load(&last_in) > 0);
    sess_put(shared);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(the_newest_try_counts),
        T(a_later_request_of_the_slot_waits_as_well),
        T(slots_and_clients_are_apart_and_sessions_of_a_client_are_not),
        T(a_fence_ends_what_earlier_sessions_have_under_way),
        T(without_a_part_there_is_nothing_to_do),
        T(one_try_at_a_time_is_in_the_store_and_they_come_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which syncs tell of lost changes, and which do not. */
#include "unsynced.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define H1 101u
#define H2 202u
#define H3 303u

static struct unsynced u;

static int setup(void **state)
{
    (void)state;
    un_init(&u);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    un_done(&u);
    assert_int_equal(u.n, 0);
    return 0;
}

/* One that covers all that was noted before. */
static bool sync_of(uint64_t ino, uint64_t history)
{
    return un_synced(&u, ino, un_mark(&u), history);
}

static bool sync_all(uint64_t history)
{
    return un_synced_all(&u, un_mark(&u), history);
}

static void what_a_sync_covered_is_not_lost(void **state)
{
    (void)state;
    un_note(&u, 5, H1, UN_DATA);
    un_note(&u, 1, H1, UN_NAME);
    assert_false(sync_of(5, H1)); /* the names too */
    assert_int_equal(u.n, 0);
    un_note(&u, 5, H1, UN_DATA);
    assert_false(sync_all(H1));
    assert_int_equal(u.n, 0);
    un_new_history(&u, H2);
    assert_false(sync_of(5, H2));
    assert_false(sync_all(H2));
}

static void a_lost_change_is_told_once_by_its_object_and_once_by_all(void **state)
{
    (void)state;
    un_note(&u, 5, H1, UN_DATA);
    un_note(&u, 6, H1, UN_DATA);
    assert_int_equal(un_new_history(&u, H2), 0);
    assert_false(sync_of(7, H2));
    assert_true(sync_all(H2));
    assert_false(sync_all(H2));
    assert_true(sync_of(5, H2));
    assert_false(sync_of(5, H2));
    assert_true(sync_of(6, H2));
    assert_int_equal(u.n, 0);
    /* Also when nobody has said that there is a new history. */
    un_note(&u, 5, H2, UN_DATA);
    assert_true(sync_of(5, H3));
    un_note(&u, 1, H2, UN_NAME);
    assert_false(sync_of(5, H3));
    assert_true(sync_of(1, H3));
}

static void a_new_change_does_not_tell_of_an_old_loss_again(void **state)
{
    uint64_t mark;

    (void)state;
    un_note(&u, 1, H1, UN_NAME);
    un_new_history(&u, H2);
    assert_true(sync_all(H2));
    un_note(&u, 1, H2, UN_NAME);
    assert_false(sync_all(H2));
    /* But of its own loss, unless a sync covered it. */
    un_new_history(&u, H3);
    assert_false(sync_all(H3));
    mark = un_mark(&u);
    un_note(&u, 1, H3, UN_NAME);
    assert_false(un_synced_all(&u, mark, H3));
    un_new_history(&u, H1);
    assert_true(sync_all(H1));
    assert_false(sync_all(H1));
}

static void changes_after_the_mark_stay(void **state)
{
    uint64_t mark;
    (void)state;
    un_note(&u, 5, H1, UN_DATA);
    mark = un_mark(&u);
    un_note(&u, 5, H1, UN_DATA);
    un_note(&u, 1, H1, UN_NAME);
    assert_false(un_synced(&u, 5, mark, H1));
    assert_int_equal(u.n, 2);
    un_new_history(&u, H2);
    assert_true(sync_of(5, H2));
    assert_true(sync_of(1, H2));
    /* An older change is lost and a newer one is not: told, and the newer one is still to be covered. */
    un_note(&u, 5, H2, UN_DATA);
    un_new_history(&u, H3);
    mark = un_mark(&u);
    un_note(&u, 5, H3, UN_DATA);
    assert_true(un_synced(&u, 5, mark, H3));
    assert_int_equal(u.n, 1);
    assert_false(sync_of(5, H3));
    assert_int_equal(u.n, 0);
}

static void who_is_found_under_a_lost_name_tells(void **state)
{
    uint64_t a = un_name(1, "a", 1), b = un_name(1, "b", 1);
    (void)state;
    assert_true(a != b && a != un_name(2, "a", 1) && a >> 63);
    un_note(&u, 1, H1, UN_NAME);
    un_note(&u, a, H1, UN_NAME);
    un_found(&u, a, 8); /* not lost: nothing */
    un_new_history(&u, H2);
    assert_true(un_has_lost(&u));
    un_found(&u, b, 9);
    un_found(&u, a, 8);
    un_found(&u, a, 9); /* once */
    assert_false(sync_of(9, H2));
    assert_true(sync_of(8, H2));
    assert_false(sync_of(8, H2));
    assert_true(sync_of(1, H2));
    assert_false(un_has_lost(&u));
}

static void a_lost_rename_is_said_for_those_that_are_open(void **state)
{
    (void)state;
    un_note(&u, un_name(1, "a", 1), H1, UN_NAME | UN_MOVED);
    assert_int_equal(un_new_history(&u, H2), H1);
    un_lose(&u, 5, H1);
    assert_true(sync_of(5, H2));
    assert_false(sync_of(5, H2));
}

static void more_than_there_is_room_for_is_told_by_anything(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 3 * UN_MAX; i++)
        un_note(&u, 10 + i, H1, UN_DATA);
    assert_int_equal(u.n, UN_MAX);
    assert_false(sync_of(5, H1));
    un_new_history(&u, H2);
    assert_true(sync_of(5, H2));
    assert_false(sync_of(5, H2));
    assert_true(sync_of(10 + 3 * UN_MAX - 1, H2));
    assert_true(sync_all(H2));
    /* Told ones go first, and nothing is said of them again. */
    for (uint64_t i = 0; i < UN_MAX; i++)
        un_note(&u, 100000 + i, H2, UN_DATA);
    assert_false(sync_of(5, H2));
    assert_false(sync_all(H2));
    un_new_history(&u, H3);
    assert_false(sync_of(5, H3));
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(what_a_sync_covered_is_not_lost),
        T(a_lost_change_is_told_once_by_its_object_and_once_by_all),
        T(a_new_change_does_not_tell_of_an_old_loss_again),
        T(changes_after_the_mark_stay),
        T(who_is_found_under_a_lost_name_tells),
        T(a_lost_rename_is_said_for_those_that_are_open),
        T(more_than_there_is_room_for_is_told_by_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

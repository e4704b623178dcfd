/* The mount's tables: handle numbers, and what the kernel may keep of an object. */
#include "fm.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define TTL NSEC_PER_SEC

static void handles_of_another_process_are_not_found(void **state)
{
    struct fm_files *one = fm_files_new(1), *two = fm_files_new(2);
    struct fm_file a = {.writable = true}, b = {0};
    uint64_t fa, fb;

    (void)state;
    assert_int_equal(fm_files_add(one, &a, &fa), 0);
    assert_int_equal(fm_files_add(two, &b, &fb), 0);
    assert_ptr_equal(fm_files_get(one, fa), &a);
    assert_null(fm_files_get(two, fa));
    assert_null(fm_files_get(one, fb));
    assert_null(fm_files_get(one, UINT64_MAX));
    assert_true(fm_fh_writable(fa));
    assert_false(fm_fh_writable(fb));
    assert_ptr_equal(fm_files_take(one, fa), &a);
    assert_null(fm_files_take(one, fa));
    assert_ptr_equal(fm_files_drain(two), &b);
    assert_null(fm_files_drain(two));
    fm_files_free(one);
    fm_files_free(two);
}

static void a_handle_of_another_process_is_adopted_once(void **state)
{
    struct fm_files *one = fm_files_new(1), *two = fm_files_new(2);
    struct fm_file a = {0}, b = {0}, c = {0};
    uint64_t fa;

    (void)state;
    assert_int_equal(fm_files_add(one, &a, &fa), 0);
    assert_ptr_equal(fm_files_adopt(two, fa, &b), &b);
    assert_ptr_equal(fm_files_adopt(two, fa, &c), &b);
    assert_ptr_equal(fm_files_get(two, fa), &b);
    assert_ptr_equal(fm_files_take(two, fa), &b);
    assert_null(fm_files_get(two, fa));
    assert_ptr_equal(fm_files_adopt(two, fa, &c), &c);
    assert_ptr_equal(fm_files_drain(two), &c);
    assert_null(fm_files_drain(two));
    assert_ptr_equal(fm_files_drain(one), &a);
    fm_files_free(one);
    fm_files_free(two);
}

static void many_handles_keep_their_files(void **state)
{
    struct fm_files *t = fm_files_new(1);
    static struct fm_file file[1000];
    uint64_t fh[1000];

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 1000; i++)
            assert_int_equal(fm_files_add(t, &file[i], &fh[i]), 0);
        for (int i = 0; i < 1000; i++)
            assert_ptr_equal(fm_files_take(t, fh[(i * 7) % 1000]), &file[(i * 7) % 1000]);
    }
    fm_files_free(t);
}

static struct fm_open_hint opened(struct fm_nodes *t, uint64_t ino, uint64_t change, enum fm_access access,
                                  uint64_t ttl)
{
    return fm_node_open(t, &(struct pst_attr){.ino = ino, .change = change, .mode = 0100644}, access, ttl);
}

static void seen(struct fm_nodes *t, uint64_t ino, uint64_t change)
{
    fm_node_seen(t, &(struct pst_attr){.ino = ino, .change = change, .mode = 0100644}, true);
}

static void pages_are_kept_only_for_the_version_that_was_seen_used(void **state)
{
    struct fm_nodes *t = fm_nodes_new(false);

    (void)state;
    assert_false(opened(t, 5, 10, FM_READS, TTL).keep_pages); /* first */
    assert_false(opened(t, 5, 10, FM_READS, TTL).keep_pages); /* the kernel may not have dropped its pages yet */
    fm_node_pages(t, 5, 10);
    assert_true(opened(t, 5, 10, FM_READS, TTL).keep_pages);
    assert_false(opened(t, 5, 11, FM_READS, TTL).keep_pages); /* changed */
    fm_node_pages(t, 5, 11);
    fm_node_pages(t, 5, 10); /* a late word of an older one */
    assert_true(opened(t, 5, 11, FM_READS, TTL).keep_pages);
    fm_nodes_free(t);
}

static void pages_of_an_exclusive_store_stay(void **state)
{
    struct fm_nodes *t = fm_nodes_new(true);

    (void)state;
    assert_false(opened(t, 5, 10, FM_READS, TTL).keep_pages); /* may be of a process that died and lost data */
    fm_node_pages(t, 5, 10);
    assert_true(opened(t, 5, 12, FM_READS, TTL).keep_pages);
    fm_nodes_free(t);
}

static void attributes_are_stale_when_the_version_differs_or_is_young(void **state)
{
    struct fm_nodes *t = fm_nodes_new(false);

    (void)state;
    assert_true(opened(t, 5, 10, FM_READS, TTL).stale_attrs); /* unknown */
    seen(t, 5, 10);
    assert_false(opened(t, 5, 10, FM_READS, TTL).stale_attrs);
    assert_true(opened(t, 5, 11, FM_READS, TTL).stale_attrs);
    seen(t, 5, 11);
    assert_true(opened(t, 5, 11, FM_READS, 60 * TTL).stale_attrs); /* the answer with 10 may arrive later */
    usleep(2000);
    assert_false(opened(t, 5, 11, FM_READS, NSEC_PER_MSEC).stale_attrs);
    fm_nodes_free(t);
}

/* Whether the handle goes around the kernel's pages. */
static bool around(struct fm_nodes *t, enum fm_access access)
{
    return opened(t, 5, 10, access, TTL).around;
}

static void nobody_uses_pages_of_what_is_written_around_them(void **state)
{
    struct fm_nodes *t = fm_nodes_new(false);

    (void)state;
    assert_true(around(t, FM_ONLY_WRITES));
    assert_true(around(t, FM_READS));
    assert_true(around(t, FM_WRITES)); /* so it cannot map the file */
    fm_node_release(t, 5, FM_ONLY_WRITES, true);
    assert_true(around(t, FM_READS)); /* one is left that may write */
    fm_node_release(t, 5, FM_WRITES, true);
    assert_false(around(t, FM_READS)); /* those that only read do not matter */
    assert_false(around(t, FM_ONLY_WRITES));
    assert_false(around(t, FM_WRITES));
    fm_nodes_free(t);
}

static void who_uses_pages_keeps_writers_from_going_around_them(void **state)
{
    struct fm_nodes *t = fm_nodes_new(false);

    (void)state;
    assert_false(around(t, FM_READS));
    assert_false(around(t, FM_ONLY_WRITES));
    assert_true(around(t, FM_APPENDS)); /* in any case */
    assert_false(around(t, FM_READS));
    fm_node_release(t, 5, FM_READS, false);
    fm_node_release(t, 5, FM_READS, false);
    assert_false(around(t, FM_ONLY_WRITES)); /* the one before */
    fm_node_release(t, 5, FM_ONLY_WRITES, false);
    fm_node_release(t, 5, FM_ONLY_WRITES, false);
    assert_true(around(t, FM_ONLY_WRITES)); /* beside an append */
    fm_nodes_free(t);
}

static void all_writers_of_an_exclusive_store_use_pages(void **state)
{
    struct fm_nodes *t = fm_nodes_new(true);

    (void)state;
    assert_false(around(t, FM_ONLY_WRITES));
    assert_false(around(t, FM_APPENDS));
    fm_nodes_free(t);
}

static void *release_soon(void *arg)
{
    usleep(5000);
    fm_node_release(arg, 5, FM_ONLY_WRITES, true);
    fm_node_closing(arg, 5, false);
    return NULL;
}

static void who_opens_what_was_just_closed_waits_for_its_release(void **state)
{
    struct fm_nodes *t = fm_nodes_new(false);
    pthread_t id;
    uint64_t start;

    (void)state;
    assert_true(around(t, FM_ONLY_WRITES));
    fm_node_closing(t, 5, true);
    assert_true(around(t, FM_READS)); /* the release does not come: another process has the handle still */
    assert_int_equal(pthread_create(&id, NULL, release_soon, t), 0);
    for (start = now_ns(); around(t, FM_READS); start = now_ns()) { /* a busy machine may run that thread late */
        assert_true(now_ns() - start >= 100 * NSEC_PER_MSEC); /* so it was waited for, to the end */
        fm_node_release(t, 5, FM_READS, true);
    }
    pthread_join(id, NULL);
    assert_false(around(t, FM_WRITES));
    fm_nodes_free(t);
}

static void pages_from_before_a_write_around_them_are_bad(void **state)
{
    struct fm_nodes *t = fm_nodes_new(false);

    (void)state;
    opened(t, 5, 10, FM_READS, TTL);
    fm_node_pages(t, 5, 10);
    fm_node_release(t, 5, FM_READS, false);
    assert_true(around(t, FM_ONLY_WRITES));
    fm_node_release(t, 5, FM_ONLY_WRITES, true);
    assert_false(opened(t, 5, 10, FM_READS, TTL).keep_pages); /* an answer from before the write */
    fm_nodes_free(t);
}

static void rights_to_take_away_are_known_by_the_newest_answers(void **state)
{
    struct pst_attr a = {.ino = 5, .change = 10, .mode = 0104755};
    struct fm_nodes *t = fm_nodes_new(false);
    uint64_t asked;

    (void)state;
    assert_true(fm_node_setid(t, 5) && fm_node_cap(t, 5)); /* unknown */
    fm_node_open(t, &a, FM_ONLY_WRITES, TTL);
    fm_node_set_nocap(t, 5, now_ns());
    assert_true(fm_node_setid(t, 5));
    assert_false(fm_node_cap(t, 5));
    a.mode = 0102745; /* locking, no set-id bit */
    fm_node_seen(t, &a, false);
    assert_false(fm_node_setid(t, 5));
    a.mode = 0102755;
    a.change = 12;
    fm_node_seen(t, &a, false);
    asked = now_ns();
    fm_node_set_cap(t, 5);
    assert_true(fm_node_setid(t, 5) && fm_node_cap(t, 5));
    a.mode = 0100755; /* answers from before */
    a.change = 11;
    fm_node_seen(t, &a, false);
    fm_node_open(t, &a, FM_READS, TTL);
    fm_node_set_nocap(t, 5, asked);
    assert_true(fm_node_setid(t, 5) && fm_node_cap(t, 5));
    fm_nodes_free(t);
}

static void writers_are_counted_and_forgetting_waits_for_them(void **state)
{
    struct fm_nodes *t = fm_nodes_new(false);

    (void)state;
    for (uint64_t ino = 1; ino <= 20000; ino++)
        seen(t, ino, ino);
    opened(t, 7, 1, FM_WRITES, TTL);
    opened(t, 7, 1, FM_READS, TTL);
    fm_node_forget(t, 7);
    assert_true(fm_node_writers(t, 7));
    fm_node_release(t, 7, FM_WRITES, false);
    assert_false(fm_node_writers(t, 7));
    fm_node_release(t, 7, FM_READS, false);
    for (uint64_t ino = 1; ino <= 20000; ino++)
        fm_node_forget(t, ino);
    fm_node_set_nocap(t, 7, now_ns());
    assert_true(fm_node_cap(t, 7)); /* gone */
    fm_nodes_free(t);
}

static void errors_are_converted_by_the_table(void **state)
{
    static const struct {
        int64_t in;
        int out;
    } table[] = {
        {0, 0}, {-ENOENT, ENOENT}, {-ESTALE, ESTALE}, {-ENOSPC, ENOSPC}, {-EDQUOT, EDQUOT}, {-EROFS, EROFS},
        {-ENOLCK, ENOLCK}, {-EAGAIN, EIO}, {-ENOSYS, EIO}, {-ECONNRESET, EIO}, {-EPROTO, EIO}, {-ETIMEDOUT, EIO},
        {-EOPNOTSUPP, EOPNOTSUPP}, {-511, 511}, {-512, EIO}, {-4096, EIO}, {5, EIO}, {INT64_MIN + 1, EIO},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        assert_int_equal(fm_errno(table[i].in), table[i].out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handles_of_another_process_are_not_found),
        cmocka_unit_test(a_handle_of_another_process_is_adopted_once),
        cmocka_unit_test(many_handles_keep_their_files),
        cmocka_unit_test(pages_are_kept_only_for_the_version_that_was_seen_used),
        cmocka_unit_test(pages_of_an_exclusive_store_stay),
        cmocka_unit_test(attributes_are_stale_when_the_version_differs_or_is_young),
        cmocka_unit_test(nobody_uses_pages_of_what_is_written_around_them),
        cmocka_unit_test(who_uses_pages_keeps_writers_from_going_around_them),
        cmocka_unit_test(all_writers_of_an_exclusive_store_use_pages),
        cmocka_unit_test(who_opens_what_was_just_closed_waits_for_its_release),
        cmocka_unit_test(pages_from_before_a_write_around_them_are_bad),
        cmocka_unit_test(rights_to_take_away_are_known_by_the_newest_answers),
        cmocka_unit_test(writers_are_counted_and_forgetting_waits_for_them),
        cmocka_unit_test(errors_are_converted_by_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

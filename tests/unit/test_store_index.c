/* The index and transactions of the embedded engine. */
#define FX_BARE
#include "local_fixture.h"

static void values_come_back_and_survive_a_clean_stop(void **state)
{
    struct engine *e = fx_open();
    uint64_t lsn = 0;
    (void)state;
    assert_int_equal(fx_put(e, 1, "one", &lsn), 0);
    assert_true(lsn > 0);
    assert_true(fx_is(e, 1, "one"));
    assert_true(fx_absent(e, 2));
    assert_int_equal(fx_put(e, 2, "", NULL), 0);
    assert_true(fx_is(e, 2, ""));
    eng_close(e);
    e = fx_open();
    assert_true(e->super.log_lsn >= lsn);
    assert_true(fx_is(e, 1, "one"));
    assert_true(fx_is(e, 2, ""));
    assert_int_equal(fx_put(e, 3, "three", NULL), 0);
    eng_close(e);
    e = fx_open();
    assert_true(fx_is(e, 3, "three"));
    eng_close(e);
}

static void a_transaction_happens_whole_or_not(void **state)
{
    struct engine *e = fx_open();
    struct txn *t = txn_new(e);
    struct key a = fx_key(1), b = fx_key(2);
    void *big = calloc(1, TXN_MAX);
    (void)state;
    txn_put(t, &a, "x", 1);
    txn_put(t, &b, "y", 1);
    txn_drop(t);
    assert_true(fx_absent(e, 1));
    t = txn_new(e);
    txn_put(t, &a, "x", 1);
    txn_put(t, &b, big, TXN_MAX);
    assert_int_equal(txn_commit(t, NULL), -E2BIG);
    assert_true(fx_absent(e, 1));
    t = txn_new(e);
    txn_put(t, &a, "x", 1);
    txn_put(t, &b, big, TXN_MAX - 2000);
    assert_int_equal(txn_commit(t, NULL), 0);
    assert_true(fx_is(e, 1, "x"));
    t = txn_new(e);
    txn_del(t, &a);
    assert_int_equal(txn_commit(t, NULL), 0);
    assert_true(fx_absent(e, 1));
    free(big);
    eng_close(e);
}

static void listings_keep_to_the_prefix_and_to_their_time(void **state)
{
    struct engine *e = fx_open();
    struct key prefix = key_begin(KEY_SYSTEM), from = fx_key(5);
    struct idx_snap *snap;
    struct idx_iter *it;
    size_t len;
    int n = 0;
    (void)state;
    key_bytes(&prefix, "test", 4);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(fx_put(e, i, "v", NULL), 0);
    snap = idx_snap_new(e);
    assert_int_equal(fx_put(e, 7, "later", NULL), 0);
    assert_int_equal(fx_put(e, 10, "later", NULL), 0);
    it = idx_iter_new(e, snap, &prefix, &from);
    while (idx_iter_next(it) == 1) {
        assert_memory_equal(idx_iter_value(it, &len), "v", 1);
        assert_int_equal(len, 1);
        assert_memory_equal(idx_iter_key(it, &len), prefix.b, prefix.len);
        n++;
    }
    assert_int_equal(n, 5);
    assert_int_equal(idx_iter_next(it), 0);
    idx_iter_free(it);
    idx_snap_free(e, snap);
    it = idx_iter_new(e, NULL, &prefix, NULL);
    for (n = 0; idx_iter_next(it) == 1;)
        n++;
    assert_int_equal(n, 11);
    idx_iter_free(it);
    eng_close(e);
}

static void a_damaged_table_file_is_an_error_never_a_wrong_value(void **state)
{
    struct engine *e = fx_open();
    char cmd[256], path[256] = "";
    struct stat st;
    struct key prefix = key_begin(KEY_SYSTEM);
    FILE *f;
    int fd;
    (void)state;
    for (uint64_t i = 0; i < 2000; i++)
        assert_int_equal(fx_put(e, i, "some value that is stored", NULL), 0);
    eng_close(e);
    snprintf(cmd, sizeof cmd, "ls -S %s/index/*.sst", fx_dir);
    f = popen(cmd, "r");
    assert_non_null(fgets(path, sizeof path, f));
    pclose(f);
    path[strcspn(path, "\n")] = 0;
    fd = open(path, O_RDWR);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(pwrite(fd, "\x55\xaa\x55", 3, st.st_size / 4), 3);
    close(fd);
    struct eng_opts o = fx_opts();
    int r = fx_try(&o, &e), damaged = 0;
    if (r) { /* the index library noticed by itself */
        assert_int_equal(r, -EIO);
        return;
    }
    for (uint64_t i = 0; i < 2000; i++) {
        struct wbuf w = {0};
        struct key k = fx_key(i);
        r = idx_get(e, NULL, &k, &w);
        if (r)
            damaged++;
        else
            assert_memory_equal(w.data, "some value that is stored", 25);
        assert_true(r == 0 || r == -EIO);
        wbuf_done(&w);
    }
    assert_true(damaged > 0);
    assert_true(atomic_load(&e->index_errors) > 0);
    struct idx_iter *it = idx_iter_new(e, NULL, &prefix, NULL);
    while ((r = idx_iter_next(it)) == 1)
        ;
    assert_int_equal(r, -EIO);
    idx_iter_free(it);
    eng_close(e);
}

static void open_refuses_what_is_not_its_own(void **state)
{
    struct eng_opts o = fx_opts();
    struct engine *e = NULL, *f = NULL;
    char path[128];
    int fd;
    (void)state;
    o.create = false;
    assert_int_equal(fx_try(&o, &e), -ENOENT);
    o.create = true;
    snprintf(path, sizeof path, "%s/foreign", fx_dir);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    close(fd);
    assert_int_equal(fx_try(&o, &e), -ENOTEMPTY);
    unlink(path);
    e = fx_open();
    assert_int_equal(fx_try(&o, &f), -EBUSY);
    assert_non_null(strstr(fx_err, "in use by process"));
    eng_close(e);
    /* The version field: both copies of another version. */
    snprintf(path, sizeof path, "%s/superblock", fx_dir);
    fd = open(path, O_RDWR);
    for (int i = 0; i < 2; i++) {
        uint8_t b[4096];
        uint32_t crc;
        assert_int_equal(pread(fd, b, sizeof b, i * 4096), 4096);
        b[8] = 77;
        crc = crc32c(0, b, 4092);
        memcpy(b + 4092, &crc, 4);
        assert_int_equal(pwrite(fd, b, sizeof b, i * 4096), 4096);
    }
    assert_int_equal(fx_try(&o, &e), -ENOTSUP);
    assert_non_null(strstr(fx_err, "77"));
    assert_non_null(strstr(fx_err, "version 1"));
    /* One damaged copy is no harm, two are. */
    assert_int_equal(pwrite(fd, "x", 1, 0), 1);
    assert_int_equal(fx_try(&o, &e), -ENOTSUP);
    assert_int_equal(pwrite(fd, "x", 1, 4096), 1);
    assert_int_equal(fx_try(&o, &e), -EIO);
    close(fd);
}

static void an_interrupted_creation_is_made_anew_on_request_only(void **state)
{
    struct eng_opts o = fx_opts();
    struct engine *e = NULL;
    char path[128];
    int fd;
    (void)state;
    e = fx_open();
    eng_close(e);
    snprintf(path, sizeof path, "%s/creating", fx_dir);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    close(fd);
    o.create = false;
    assert_int_equal(fx_try(&o, &e), -ENOENT);
    e = fx_open();
    assert_int_equal(fx_put(e, 1, "a", NULL), 0);
    eng_close(e);
    e = fx_open();
    assert_true(fx_is(e, 1, "a"));
    eng_close(e);
}

static void readonly_serves_a_clean_store_and_changes_nothing(void **state)
{
    struct eng_opts o = fx_opts();
    struct engine *e = fx_open();
    struct txn *t;
    struct key k = fx_key(1);
    (void)state;
    assert_int_equal(fx_put(e, 1, "a", NULL), 0);
    eng_close(e);
    o.readonly = true;
    e = fx_open_opts(o);
    assert_true(fx_is(e, 1, "a"));
    t = txn_new(e);
    txn_put(t, &k, "b", 1);
    assert_int_equal(txn_commit(t, NULL), -EROFS);
    assert_true(fx_is(e, 1, "a"));
    eng_close(e);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, fx_setup, fx_teardown)
    const struct CMUnitTest tests[] = {
        T(values_come_back_and_survive_a_clean_stop),
        T(a_transaction_happens_whole_or_not),
        T(listings_keep_to_the_prefix_and_to_their_time),
        T(a_damaged_table_file_is_an_error_never_a_wrong_value),
        T(open_refuses_what_is_not_its_own),
        T(an_interrupted_creation_is_made_anew_on_request_only),
        T(readonly_serves_a_clean_store_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

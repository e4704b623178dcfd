/* Copies of the embedded engine: backup in use, the second index, check. */
#define FX_BARE
#include "local_fixture.h"

#include "chunk.h"
#include "local/local_store.h"

static char other[96]; /* where the copy goes */

static int setup(void **state)
{
    int r = fx_setup(state);
    snprintf(other, sizeof other, "%s.work", fx_dir);
    return r;
}

static struct key chunk_key(uint64_t chunk)
{
    struct key k = key_begin(KEY_CHUNK);
    key_u64(&k, UINT64_MAX - 1); /* a container that the namespace does not have */
    key_u64(&k, 1);
    key_u64(&k, chunk);
    return k;
}

/* The blocks of a chunk and its stamp, as its record says. */
static bool chunk_load(struct engine *e, uint64_t chunk, struct chunk_map **ret)
{
    struct wbuf v = {0};
    struct key k = chunk_key(chunk);
    int r = idx_get(e, NULL, &k, &v);
    if (!r)
        assert_int_equal(chunk_decode(v.data, v.len, ret), 0);
    wbuf_done(&v);
    return r == 0;
}

/*
 * One chunk of 4 blocks := a pattern of the stamp, in new blocks; the old ones are freed by the same transaction.
 * 0 or -ENOSPC.
 */
static int chunk_store(struct engine *e, uint64_t chunk, uint32_t stamp)
{
    struct chunk_map *old = NULL, *map = NULL;
    struct wbuf v = {0};
    struct key k = chunk_key(chunk);
    uint32_t page[4 * 1024], crcs[4], n = 0;
    struct chunk_run runs[4];
    struct txn *t = txn_new(e);
    int r = 0;
    for (size_t i = 0; i < ARRAY_SIZE(page); i++)
        page[i] = stamp + (uint32_t)chunk * 1000003u;
    for (size_t i = 0; i < 4; i++)
        crcs[i] = crc32c(0, page + i * 1024, 4096);
    chunk_load(e, chunk, &old);
    for (size_t i = 0; n < 4; i++) {
        int64_t got = alloc_claim(e, 4 - n, &runs[i].phys);
        if (got < 0) { /* all that comes free waits for the backup */
            txn_drop(t);
            chunk_unref(old);
            return (int)got;
        }
        runs[i].n = (uint32_t)got;
        assert_int_equal(pwrite_all(e->data_fd, page, runs[i].n * 4096, runs[i].phys * 4096), 0);
        txn_claimed_extent(t, runs[i].phys, runs[i].n);
        n += runs[i].n;
        r = (int)i + 1;
    }
    eng_data_written(e);
    assert_int_equal(chunk_edit(NULL, 0, 4, runs, (size_t)r, crcs, NULL, NULL, &map), 0);
    map->version = stamp;
    map->in_use = 4 * 4096;
    chunk_encode(map, &v);
    txn_put(t, &k, v.data, v.len);
    for (uint32_t i = 0; old && i < old->nexts; i++)
        txn_free_extent(t, old->exts[i].phys, old->exts[i].n);
    r = txn_commit(t, NULL);
    chunk_unref(old);
    chunk_unref(map);
    wbuf_done(&v);
    return r;
}

/* The stamp of a chunk after its blocks were compared with it; 0: there is no such chunk. */
static uint32_t chunk_verify(struct engine *e, uint64_t chunk)
{
    struct chunk_map *m = NULL;
    uint32_t stamp = 0;
    if (!chunk_load(e, chunk, &m))
        return 0;
    stamp = (uint32_t)m->version;
    for (uint32_t i = 0; i < m->nexts; i++) {
        for (uint32_t b = 0; b < m->exts[i].n; b++) {
            uint32_t page[1024];
            assert_int_equal(pread_all(e->data_fd, page, 4096, (m->exts[i].phys + b) * 4096), 0);
            assert_int_equal(crc32c(0, page, 4096), m->crcs[m->exts[i].crc_at + b]);
            assert_int_equal(page[77], stamp + (uint32_t)chunk * 1000003u);
        }
    }
    chunk_unref(m);
    return stamp;
}

static struct engine *open_other(void)
{
    struct eng_opts o = fx_opts();
    struct errmsg m = {fx_err, sizeof fx_err};
    struct engine *e = NULL;
    int r;
    o.create = false;
    r = eng_open(other, &o, &e, &m);
    if (r)
        fail_msg("open of the copy: %s", fx_err);
    return e;
}

#define CHUNKS 40

struct writer {
    struct engine *e;
    _Atomic bool stop;
    uint32_t stamp;
};

static void *keep_writing(void *arg)
{
    struct writer *w = arg;
    while (!atomic_load(&w->stop)) {
        w->stamp++;
        for (uint64_t c = 0; c < CHUNKS; c++)
            while (chunk_store(w->e, c, w->stamp) == -ENOSPC && !atomic_load(&w->stop))
                usleep(1000);
    }
    return NULL;
}

static void a_backup_of_a_store_in_use_is_one_moment_of_it(void **state)
{
    struct engine *e = fx_open(), *copy;
    struct writer w = {.e = e};
    pthread_t t;
    uint32_t last;
    uint64_t used = 0, total = 0;
    (void)state;
    for (uint64_t c = 0; c < CHUNKS; c++)
        assert_int_equal(chunk_store(e, c, ++w.stamp), 0);
    pthread_create(&t, NULL, keep_writing, &w);
    for (int round = 0; round < 3; round++) {
        fx_remove_path(other);
        assert_int_equal(local_backup(&e->st, other), 0);
        copy = open_other();
        assert_memory_not_equal(copy->super.uuid, e->super.uuid, 16);
        last = UINT32_MAX;
        for (uint64_t c = 0; c < CHUNKS; c++) {
            uint32_t stamp = chunk_verify(copy, c);
            assert_true(stamp > 0);
            /* Written in order of the chunks: stamps only step down, by one, somewhere in the list. */
            if (round)
                assert_true(last == UINT32_MAX || stamp == last || stamp + 1 == last);
            last = stamp;
        }
        alloc_space(copy, &used, &total);
        assert_int_equal(total - used, CHUNKS * 4 * 4096);
        assert_int_equal(chunk_store(copy, 1, 5), 0);
        eng_close(copy);
        copy = open_other();
        assert_int_equal(chunk_verify(copy, 1), 5);
        eng_close(copy);
    }
    atomic_store(&w.stop, true);
    pthread_join(t, NULL);
    assert_int_equal(local_backup(&e->st, other), -ENOTEMPTY);
    eng_close(e);
    e = fx_open();
    for (uint64_t c = 0; c < CHUNKS; c++)
        assert_true(chunk_verify(e, c) > 0);
    eng_close(e);
}

/* ---- the second index ---- */

static char lines[4096];

static void collect(void *user, const char *line)
{
    (void)user;
    snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s\n", line);
}

static int64_t run_check(bool rebuild)
{
    struct pst_check_opts o = {.rebuild_index = rebuild, .report = collect};
    lines[0] = fx_err[0] = 0;
    return pst_local_check(fx_dir, &o, fx_err, sizeof fx_err);
}

/* Keys 1..n := their number, with ballast so that the log grows. */
static void fill(struct engine *e, uint64_t from, uint64_t to)
{
    char *big = calloc(1, 100000);
    for (uint64_t n = from; n <= to; n++) {
        struct txn *t = txn_new(e);
        struct key k = fx_key(n), b = fx_key(1000000 + n % 5);
        char v[32];
        snprintf(v, sizeof v, "%llu", (unsigned long long)n);
        txn_put(t, &k, v, strlen(v));
        txn_put(t, &b, big, 100000);
        assert_int_equal(txn_commit(t, NULL), 0);
        if (n % 50 == 0)
            assert_int_equal(sync_checkpoint(e), 0);
    }
    free(big);
}

static void assert_filled(struct engine *e, uint64_t n)
{
    for (uint64_t i = 1; i <= n; i++) {
        char v[32];
        snprintf(v, sizeof v, "%llu", (unsigned long long)i);
        assert_true(fx_is(e, i, v));
    }
    assert_true(fx_absent(e, n + 1));
}

static void damage_index(void)
{
    char cmd[256];
    snprintf(cmd, sizeof cmd,
             "for f in %s/index/*.sst %s/index/MANIFEST*; do dd if=/dev/urandom of=$f bs=1 seek=50 count=40 "
             "conv=notrunc; done 2>/dev/null",
             fx_dir, fx_dir);
    assert_int_equal(system(cmd), 0);
}

static void a_damaged_index_is_made_anew_from_the_log_alone(void **state)
{
    struct eng_opts o = fx_opts();
    struct engine *e = fx_open();
    (void)state;
    fill(e, 1, 10);
    eng_close(e);
    assert_int_equal(run_check(false), 0);
    damage_index();
    assert_true(fx_try(&o, &e) < 0);
    assert_non_null(strstr(fx_err, "--rebuild-index"));
    assert_true(run_check(false) < 0);
    assert_int_equal(run_check(true), 0);
    e = fx_open();
    assert_filled(e, 10);
    eng_close(e);
}

static void a_damaged_index_is_made_anew_from_its_copy_and_the_log(void **state)
{
    struct engine *e = fx_open();
    char path[128];
    (void)state;
    fill(e, 1, 400); /* 40 MB of log: kept at most 8 MiB of it */
    assert_true(e->super.copy_lsn > 0 && e->super.copy_lsn != COPY_NONE);
    assert_true(wal_bytes(e) < 16 * MiB);
    eng_close(e);
    snprintf(path, sizeof path, "%s/index.copy/CURRENT", fx_dir);
    assert_int_equal(access(path, R_OK), 0);
    for (int round = 0; round < 2; round++) {
        damage_index();
        assert_int_equal(run_check(true), 0);
        e = fx_open();
        assert_filled(e, 400 + (uint64_t)round * 60);
        fill(e, 401 + (uint64_t)round * 60, 460 + (uint64_t)round * 60);
        eng_close(e);
    }
    snprintf(path, sizeof path, "%s/index.damaged", fx_dir);
    assert_int_equal(access(path, F_OK), -1);
}

static void a_rebuild_that_cannot_be_whole_is_refused(void **state)
{
    struct engine *e = fx_open();
    char cmd[256];
    (void)state;
    fill(e, 1, 10);
    eng_close(e);
    damage_index();
    snprintf(cmd, sizeof cmd, "rm %s/log/*", fx_dir);
    assert_int_equal(system(cmd), 0);
    assert_int_equal(run_check(true), -EBADMSG);
    assert_non_null(strstr(fx_err, "restore a backup"));
    assert_true(run_check(true) < 0);
}

static void check_names_damaged_entries_and_shared_blocks(void **state)
{
    struct engine *e = fx_open();
    struct wbuf v = {0};
    struct key a = chunk_key(1), b = chunk_key(2);
    struct txn *t;
    struct eng_opts o = fx_opts();
    (void)state;
    assert_int_equal(chunk_store(e, 1, 1), 0);
    assert_int_equal(idx_get(e, NULL, &a, &v), 0);
    t = txn_new(e);
    txn_put(t, &b, v.data, v.len);
    assert_int_equal(txn_commit(t, NULL), 0);
    eng_close(e);
    wbuf_done(&v);
    assert_int_equal(fx_try(&o, &e), -EIO);
    assert_non_null(strstr(fx_err, "belong to two chunks"));
    assert_true(run_check(false) >= 1);
    assert_non_null(strstr(lines, "belong to two chunks"));
    assert_int_equal(pst_local_upgrade(fx_dir, fx_err, sizeof fx_err), -EIO);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, fx_teardown)
    const struct CMUnitTest tests[] = {
        T(a_backup_of_a_store_in_use_is_one_moment_of_it),
        T(a_damaged_index_is_made_anew_from_the_log_alone),
        T(a_damaged_index_is_made_anew_from_its_copy_and_the_log),
        T(a_rebuild_that_cannot_be_whole_is_refused),
        T(check_names_damaged_entries_and_shared_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

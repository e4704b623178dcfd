/*
 * Log, recovery, checkpoints of the embedded engine: processes that die, logs that are cut or damaged, disks that fill.
 */
#define FX_BARE
#define FX_LOG_ONLY
#include "local_fixture.h"

#include "log.h"
#include "../lib/seed.h"

#include <sys/mount.h>

static const char *self;

static int extended(int normal, int more)
{
    return getenv("PENSTOCK_EXTENDED") ? more : normal;
}

static void value_of(uint64_t n, char ret[64])
{
    snprintf(ret, 64, "value-%llu", (unsigned long long)(n * 2654435761u));
}

static int put_n(struct engine *e, uint64_t n, uint64_t *ret_lsn)
{
    char v[64];
    value_of(n, v);
    return fx_put(e, n, v, ret_lsn);
}

/* How many of the keys 1, 2, ... are there, each with its value; none may be behind the first missing one. */
static uint64_t prefix_length(struct engine *e, uint64_t upto)
{
    uint64_t n = 0;
    char v[64];
    for (uint64_t i = 1; i <= upto; i++) {
        value_of(i, v);
        if (fx_is(e, i, v)) {
            assert_int_equal(n, i - 1);
            n = i;
        } else {
            assert_true(fx_absent(e, i));
        }
    }
    return n;
}

/* ---- what children do; the number of the last synced key goes to the file `acked` beside the store ---- */

static void ack(uint64_t n)
{
    char path[96];
    int fd;
    snprintf(path, sizeof path, "%s/../%s.acked", fx_dir, strrchr(fx_dir, '/') + 1);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    if (fd < 0 || pwrite(fd, &n, sizeof n, 0) != sizeof n)
        _exit(50);
    close(fd);
}

static uint64_t acked(void)
{
    char path[96];
    uint64_t n = 0;
    snprintf(path, sizeof path, "%s/../%s.acked", fx_dir, strrchr(fx_dir, '/') + 1);
    int fd = open(path, O_RDONLY);
    if (fd >= 0) {
        assert_int_equal(read(fd, &n, sizeof n), sizeof n);
        close(fd);
    }
    return n;
}

static int teardown(void **state)
{
    char path[96];
    snprintf(path, sizeof path, "%s/../%s.acked", fx_dir, strrchr(fx_dir, '/') + 1);
    unlink(path);
    return fx_teardown(state);
}

/* Commits from the first missing key on; syncs, checkpoints and dies at random. */
static int child_random(uint64_t seed)
{
    struct engine *e = fx_open();
    struct rng r;
    uint64_t n = 0, lsn, left;
    char v[64];
    rng_seed(&r, seed);
    do
        value_of(++n, v);
    while (fx_is(e, n, v));
    for (left = 1 + rng_below(&r, 400); left; left--, n++) {
        if (put_n(e, n, &lsn))
            return 51;
        if (!rng_below(&r, 8)) {
            if (eng_sync(e, lsn))
                return 52;
            ack(n);
        }
        if (!rng_below(&r, 150) && sync_checkpoint(e))
            return 53;
    }
    _exit(0);
}

/* `count` transactions, each synced, then the end without a close. wait_mark: the log comes to rest before. */
static int child_synced(uint64_t count, bool wait_mark)
{
    struct eng_opts o = fx_opts();
    struct engine *e;
    uint64_t lsn;
    if (wait_mark)
        o.sync_ms = 10;
    e = fx_open_opts(o);
    for (uint64_t n = 1; n <= count; n++)
        if (put_n(e, n, &lsn) || eng_sync(e, lsn))
            return 51;
    if (wait_mark)
        usleep(300000);
    _exit(0);
}

#define RECYCLED 60u

/* Big records until segments were used several times over. */
static int child_recycle(void)
{
    struct engine *e = fx_open();
    char *big = malloc(300000);
    uint64_t lsn = 0;
    memset(big, 'x', 300000);
    for (uint64_t n = 1; n <= RECYCLED; n++) {
        struct txn *t = txn_new(e);
        struct key k = fx_key(1000000 + n % 10);
        char v[64];
        txn_put(t, &k, big, 300000);
        k = fx_key(n);
        value_of(n, v);
        txn_put(t, &k, v, strlen(v));
        if (txn_commit(t, &lsn) || (n % 15 == 0 && sync_checkpoint(e)))
            return 51;
    }
    if (eng_sync(e, lsn) || wal_bytes(e) > 20 * MiB)
        return 52;
    _exit(0);
}

static int child_main(char **argv)
{
    uint64_t n = strtoull(argv[3], NULL, 0);
    snprintf(fx_dir, sizeof fx_dir, "%s", argv[2]);
    log_set_sink(fx_quiet, NULL);
    if (!strcmp(argv[1], "random"))
        return child_random(n);
    if (!strcmp(argv[1], "synced"))
        return child_synced(n, false);
    if (!strcmp(argv[1], "marked"))
        return child_synced(n, true);
    if (!strcmp(argv[1], "recycle"))
        return child_recycle();
    return 98;
}

/* ---- tests ---- */

static void a_process_that_dies_loses_nothing_that_was_synced(void **state)
{
    uint64_t seed = seed_new();
    (void)state;
    for (int round = 0; round < extended(8, 200); round++) {
        char arg[32];
        struct engine *e;
        snprintf(arg, sizeof arg, "%llu", (unsigned long long)(seed + (uint64_t)round));
        assert_int_equal(fx_child(self, "random", arg), 0);
        e = fx_open();
        assert_true(prefix_length(e, acked() + 1000) >= acked());
        if (round % 3)
            eng_close(e);
        else {
            /* Replay after replay, without a clean stop in between, by a child each. */
            uint64_t n = prefix_length(e, acked() + 1000);
            eng_close(e);
            ack(n);
        }
    }
}

static void segments_are_used_again_and_do_not_confuse_recovery(void **state)
{
    struct engine *e;
    (void)state;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(fx_child(self, "recycle", "0"), 0);
        e = fx_open();
        assert_int_equal(prefix_length(e, RECYCLED + 20), RECYCLED);
        eng_close(e);
    }
}

/* A copy of the store that the test may damage. */
static void copy_store(const char *from, const char *to)
{
    char cmd[640];
    snprintf(cmd, sizeof cmd, "rm -rf '%s' && cp -r --sparse=always '%s' '%s' && rm -f '%s/reserve'", to, from, to, to);
    assert_int_equal(system(cmd), 0);
}

/* The segment with records, opened; *ret_end: where its last write ends. */
static int open_log(const char *dir, off_t *ret_end)
{
    for (int i = 0; i < 4; i++) {
        char path[128];
        uint8_t b[4096];
        int fd;
        off_t off = 0;
        snprintf(path, sizeof path, "%s/log/%08x", dir, i);
        fd = open(path, O_RDWR);
        if (fd < 0)
            continue;
        while (pread(fd, b, sizeof b, off) == sizeof b && (b[0] || b[1] || b[2]))
            off += 4096;
        if (off) {
            *ret_end = off;
            return fd;
        }
        close(fd);
    }
    fail_msg("no log segment has records");
    return -1;
}

static int open_damaged(const char *dir, struct engine **ret)
{
    struct eng_opts o = fx_opts();
    struct errmsg m = {fx_err, sizeof fx_err};
    return eng_open(dir, &o, ret, &m);
}

#define SYNCED 12

static void a_torn_tail_is_cut_at_any_byte(void **state)
{
    char work[96];
    off_t end, first;
    (void)state;
    assert_int_equal(fx_child(self, "synced", "12"), 0);
    snprintf(work, sizeof work, "%s.work", fx_dir);
    close(open_log(fx_dir, &end));
    first = end / 4096 - SYNCED; /* before: the segment's header and what the store wrote at its start */
    for (off_t at = end - extended(2, 11) * 4096; at < end; at += 512) {
        struct engine *e = NULL;
        uint8_t zero[11 * 4096] = {0};
        uint64_t n, last = (uint64_t)(at / 4096 - first + 1); /* the record whose block is hit first */
        int fd, r;
        copy_store(fx_dir, work);
        fd = open_log(work, &end);
        assert_int_equal(pwrite(fd, zero, (size_t)(end - at), at), end - at);
        close(fd);
        r = open_damaged(work, &e);
        if (r)
            fail_msg("cut at %lld: %s", (long long)at, fx_err);
        n = prefix_length(e, 20);
        assert_true(n == last - 1 || n == last); /* the padding of the record may be what was cut */
        /* New records go on from there and old ones do not come back. */
        assert_int_equal(fx_put(e, 500, "new", NULL), 0);
        eng_close(e);
        assert_int_equal(open_damaged(work, &e), 0);
        assert_int_equal(prefix_length(e, 20), n);
        assert_true(fx_is(e, 500, "new"));
        eng_close(e);
    }
}

static void damage_to_acknowledged_records_is_refused_not_cut(void **state)
{
    char work[96];
    off_t end, first;
    int refused = 0;
    (void)state;
    assert_int_equal(fx_child(self, "marked", "12"), 0);
    snprintf(work, sizeof work, "%s.work", fx_dir);
    close(open_log(fx_dir, &end)); /* header, records of the store's start, ours, mark */
    first = end / 4096 - SYNCED - 1;
    for (off_t at = 0; at < end; at += 512) {
        struct engine *e = NULL;
        uint8_t junk[512];
        int fd, r;
        if (!extended(0, 1) && at % 4096 >= 1024 && at < end - 2 * 4096)
            continue; /* padding */
        if (!extended(0, 1) && at >= 4096 && at < end - 3 * 4096)
            continue;
        copy_store(fx_dir, work);
        memset(junk, 0xa5, sizeof junk);
        fd = open_log(work, &end);
        assert_int_equal(pwrite(fd, junk, sizeof junk, at), sizeof junk);
        close(fd);
        r = open_damaged(work, &e);
        if (r) {
            assert_true(r == -EBADMSG || r == -ESTALE);
            assert_non_null(strstr(fx_err, "penstock check"));
            refused++;
            continue;
        }
        assert_int_equal(prefix_length(e, 20), SYNCED);
        eng_close(e);
    }
    /* The segment's header and the records; not the mark itself, nor padding. */
    assert_true(refused >= extended(3, (int)first + SYNCED));
}

static void an_older_index_is_refused(void **state)
{
    struct engine *e = fx_open();
    char cmd[256];
    struct eng_opts o = fx_opts();
    (void)state;
    put_n(e, 1, NULL);
    eng_close(e);
    snprintf(cmd, sizeof cmd, "cp -r %s/index %s/index.old", fx_dir, fx_dir);
    assert_int_equal(system(cmd), 0);
    e = fx_open();
    put_n(e, 2, NULL);
    eng_close(e);
    snprintf(cmd, sizeof cmd, "rm -r %s/index && mv %s/index.old %s/index", fx_dir, fx_dir, fx_dir);
    assert_int_equal(system(cmd), 0);
    assert_int_equal(fx_try(&o, &e), -ESTALE);
    assert_non_null(strstr(fx_err, "rebuild-index"));
}

struct waiter {
    struct sync_wait w;
    _Atomic int calls, err;
};

static void waited(struct sync_wait *w, int err)
{
    struct waiter *x = container_of(w, struct waiter, w);
    x->err = err;
    atomic_fetch_add(&x->calls, 1);
}

static void asynchronous_waits_are_called_once_when_durable(void **state)
{
    struct engine *e = fx_open();
    struct waiter w[3] = {0};
    uint64_t lsn;
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(put_n(e, (uint64_t)i + 1, &lsn), 0);
        w[i].w = (struct sync_wait){.lsn = lsn, .fn = waited};
        eng_sync_async(e, &w[i].w);
    }
    while (!atomic_load(&w[0].calls) || !atomic_load(&w[1].calls) || !atomic_load(&w[2].calls))
        usleep(1000);
    assert_true(sync_durable(e) >= lsn);
    assert_int_equal(eng_sync(e, lsn), 0);
    eng_close(e);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(w[i].calls, 1);
        assert_int_equal(w[i].err, 0);
    }
}

static void unsynced_records_become_durable_by_themselves(void **state)
{
    struct eng_opts o = fx_opts();
    struct engine *e;
    uint64_t lsn;
    (void)state;
    o.sync_ms = 20;
    e = fx_open_opts(o);
    assert_int_equal(put_n(e, 1, &lsn), 0);
    while (sync_durable(e) < lsn)
        usleep(1000);
    eng_close(e);
}

struct committer {
    struct engine *e;
    uint64_t base;
    int err;
};

static void *commit_many(void *arg)
{
    struct committer *c = arg;
    for (uint64_t i = 1; i <= 300 && !c->err; i++) {
        uint64_t lsn = 0;
        c->err = put_n(c->e, c->base + i, &lsn);
        if (!c->err && i % 7 == 0)
            c->err = eng_sync(c->e, lsn);
        if (!c->err && i % 7 == 0 && sync_durable(c->e) < lsn)
            c->err = -EPROTO;
    }
    return NULL;
}

static void threads_commit_sync_and_checkpoint_at_once(void **state)
{
    struct engine *e = fx_open();
    struct committer c[4] = {0};
    pthread_t t[4];
    char v[64];
    (void)state;
    for (int i = 0; i < 4; i++) {
        c[i] = (struct committer){e, (uint64_t)i * 1000, 0};
        pthread_create(&t[i], NULL, commit_many, &c[i]);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(sync_checkpoint(e), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(c[i].err, 0);
    }
    eng_close(e);
    e = fx_open();
    for (int i = 0; i < 4; i++) {
        for (uint64_t k = 1; k <= 300; k++) {
            value_of((uint64_t)i * 1000 + k, v);
            assert_true(fx_is(e, (uint64_t)i * 1000 + k, v));
        }
    }
    eng_close(e);
}

/* From now on what is written to fd fails. */
static void break_fd(int fd, const char *by)
{
    int bad = open(by, O_RDONLY);
    assert_true(bad >= 0);
    assert_int_equal(dup2(bad, fd), fd);
    close(bad);
}

static void a_log_that_cannot_be_written_makes_the_store_read_only(void **state)
{
    struct engine *e = fx_open();
    struct waiter w = {.w = {.fn = waited}};
    uint64_t lsn;
    (void)state;
    assert_int_equal(put_n(e, 1, &lsn), 0);
    assert_int_equal(eng_sync(e, lsn), 0);
    break_fd(e->wal->cur->fd, "/dev/null");
    assert_int_equal(put_n(e, 2, &lsn), 0);
    assert_int_equal(eng_sync(e, lsn), -EIO);
    assert_int_equal(put_n(e, 3, &lsn), -EIO);
    assert_int_equal(eng_writable(e), -EIO);
    assert_int_equal(sync_checkpoint(e), -EIO);
    w.w.lsn = lsn;
    eng_sync_async(e, &w.w);
    while (!atomic_load(&w.calls))
        usleep(1000);
    assert_int_equal(w.err, -EIO);
    assert_int_equal(prefix_length(e, 5), 2); /* reading goes on */
    eng_close(e);
    e = fx_open();
    assert_int_equal(prefix_length(e, 5), 1); /* the index was not flushed past the log */
    eng_close(e);
}

static void a_data_file_that_cannot_be_flushed_keeps_the_record_from_the_log(void **state)
{
    struct engine *e = fx_open();
    uint64_t lsn;
    int fds[2];
    (void)state;
    assert_int_equal(put_n(e, 1, &lsn), 0);
    assert_int_equal(eng_sync(e, lsn), 0);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(dup2(fds[1], e->data_fd), e->data_fd); /* fdatasync: EINVAL */
    eng_data_written(e);
    assert_int_equal(put_n(e, 2, &lsn), 0);
    assert_int_equal(eng_sync(e, lsn), -EIO);
    eng_close(e);
    close(fds[0]);
    close(fds[1]);
    e = fx_open();
    assert_int_equal(prefix_length(e, 5), 1);
    eng_close(e);
}

static void one_damaged_superblock_is_no_harm(void **state)
{
    char path[128];
    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        struct engine *e;
        int fd;
        assert_int_equal(fx_child(self, "recycle", "0"), 0);
        snprintf(path, sizeof path, "%s/superblock", fx_dir);
        fd = open(path, O_RDWR);
        assert_int_equal(pwrite(fd, "broken", 6, copy * 4096 + 100), 6);
        close(fd);
        e = fx_open();
        assert_int_equal(prefix_length(e, RECYCLED + 20), RECYCLED);
        eng_close(e);
    }
}

static int remove_keys(struct engine *e, uint64_t from, uint64_t to)
{
    for (uint64_t n = from; n < to; n++) {
        struct txn *t = txn_new(e);
        struct key k = fx_key(n);
        int r;
        txn_set_reserved(t);
        txn_del(t, &k);
        r = txn_commit(t, NULL);
        if (r)
            return r;
    }
    return 0;
}

static void a_full_file_system_refuses_new_data_and_still_deletes(void **state)
{
    struct eng_opts o = fx_opts();
    struct engine *e;
    char *big = malloc(200000);
    uint64_t n = 0, block, claimed = 0;
    int64_t k;
    int r = 0;
    (void)state;
    if (geteuid() || mount("tmpfs", fx_dir, "tmpfs", 0, "size=96m")) {
        print_message("skipped: mounting a tmpfs needs root\n");
        free(big);
        skip();
    }
    memset(big, 'x', 200000);
    o.size = 80 * MiB; /* more than there is: the file system is full first */
    e = fx_open_opts(o);
    while ((k = alloc_claim(e, 256, &block)) > 0)
        claimed += (uint64_t)k;
    assert_int_equal(k, -ENOSPC);
    assert_true(claimed > 2000);
    while (!r && n < 2000) {
        struct txn *t = txn_new(e);
        struct key key = fx_key(++n);
        txn_put(t, &key, big, 200000);
        r = txn_commit(t, NULL);
    }
    assert_int_equal(r, -ENOSPC);
    assert_int_equal(remove_keys(e, 1, n), 0);
    assert_int_equal(eng_sync(e, eng_last_lsn(e)), 0);
    assert_int_equal(eng_writable(e), 0);
    eng_close(e);
    e = fx_open_opts(o);
    for (uint64_t i = 1; i < n; i++)
        assert_true(fx_absent(e, i));
    eng_close(e);
    assert_int_equal(umount(fx_dir), 0);
    free(big);
}

int main(int argc, char **argv)
{
#define T(name) cmocka_unit_test_setup_teardown(name, fx_setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_process_that_dies_loses_nothing_that_was_synced),
        T(segments_are_used_again_and_do_not_confuse_recovery),
        T(a_torn_tail_is_cut_at_any_byte),
        T(damage_to_acknowledged_records_is_refused_not_cut),
        T(an_older_index_is_refused),
        T(asynchronous_waits_are_called_once_when_durable),
        T(unsynced_records_become_durable_by_themselves),
        T(a_log_that_cannot_be_written_makes_the_store_read_only),
        T(a_data_file_that_cannot_be_flushed_keeps_the_record_from_the_log),
        T(one_damaged_superblock_is_no_harm),
        T(threads_commit_sync_and_checkpoint_at_once),
        T(a_full_file_system_refuses_new_data_and_still_deletes),
    };
    self = argv[0];
    return argc > 3 ? child_main(argv) : cmocka_run_group_tests(tests, NULL, NULL);
}

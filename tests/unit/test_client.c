/* The client over a store in memory: paths, handles, write-behind, read-ahead, event queues, errors, fork. */
#include "api.h"
#include "base/rng.h"
#include "memstore.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define WRITES (1u << PST_OP_WRITE)
#define READS  (1u << PST_OP_READ)

static int setup(void **state)
{
    struct pst_options o;
    struct pst_fs *fs;

    pst_options_init(&o, sizeof o);
    o.write_behind = 8 * MiB;
    assert_int_equal(pst_connect("mem:?p/c", &o, &fs), 0);
    *state = fs;
    return 0;
}

static int teardown(void **state)
{
    assert_int_equal(pst_disconnect(*state), 0);
    return 0;
}

static struct memstore *mem(struct pst_fs *fs)
{
    return memstore_of(cl_store(fs->k->c));
}

static struct memstore_counts counts(struct pst_fs *fs)
{
    struct memstore_counts n;
    memstore_counts(mem(fs), &n);
    return n;
}

static struct pst_file *open_new(struct pst_fs *fs, const char *path, int flags)
{
    struct pst_file *f;
    assert_int_equal(pst_open(fs, path, O_RDWR | O_CREAT | flags, 0644, &f), 0);
    return f;
}

static void put(struct pst_fs *fs, const char *path, const char *text)
{
    struct pst_file *f = open_new(fs, path, O_TRUNC);
    assert_int_equal(pst_pwrite(f, text, strlen(text), 0), strlen(text));
    assert_int_equal(pst_close(f), 0);
}

static void expect_text(struct pst_fs *fs, const char *path, const char *text)
{
    char buf[256];
    struct pst_file *f;
    assert_int_equal(pst_open(fs, path, O_RDONLY, 0, &f), 0);
    assert_int_equal(pst_pread(f, buf, sizeof buf, 0), strlen(text));
    assert_memory_equal(buf, text, strlen(text));
    assert_int_equal(pst_close(f), 0);
}

static void paths_resolve_names_dots_and_links(void **state)
{
    struct pst_fs *fs = *state, *sub;
    struct stat st, st2;
    char name[300], target[32];

    assert_int_equal(pst_mkdir(fs, "/a", 0755), 0);
    assert_int_equal(pst_mkdir(fs, "a/b/", 0755), 0);
    put(fs, "/a/b/f", "hello");
    expect_text(fs, "//a/./b/../b//f", "hello");
    assert_int_equal(pst_symlink(fs, "b", "/a/rel"), 0);
    assert_int_equal(pst_symlink(fs, "/a/b", "/abs"), 0);
    assert_int_equal(pst_symlink(fs, "../../a/b/f", "/a/b/up"), 0);
    expect_text(fs, "/a/rel/f", "hello");
    expect_text(fs, "/abs/up", "hello");
    assert_int_equal(pst_lstat(fs, "/abs", &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(pst_lstat(fs, "/abs/", &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(pst_readlink(fs, "/abs", target, sizeof target), 4);
    assert_string_equal(target, "/a/b");
    assert_int_equal(pst_readlink(fs, "/abs", target, 4), -ERANGE);
    assert_int_equal(pst_readlink(fs, "/a", target, sizeof target), -EINVAL);
    assert_int_equal(pst_stat(fs, "/..", &st), 0);
    assert_int_equal(st.st_ino, PST_ROOT_INO);

    assert_int_equal(pst_workdir(fs, "/a/b", &sub), 0);
    expect_text(sub, "f", "hello");
    expect_text(sub, "/a/b/f", "hello");
    assert_int_equal(pst_rename(fs, "/a", "/moved", 0), 0);
    expect_text(sub, "f", "hello");
    assert_int_equal(pst_disconnect(sub), 0);
    assert_int_equal(pst_workdir(fs, "/moved/b/f", &sub), -ENOTDIR);

    assert_int_equal(pst_symlink(fs, "loop", "/loop"), 0);
    assert_int_equal(pst_stat(fs, "/loop", &st), -ELOOP);
    assert_int_equal(pst_stat(fs, "", &st), -ENOENT);
    assert_int_equal(pst_stat(fs, "/nothing/x", &st), -ENOENT);
    assert_int_equal(pst_stat(fs, "/moved/b/f/x", &st), -ENOTDIR);
    assert_int_equal(pst_stat(fs, "/moved/b/f/", &st), -ENOTDIR);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(pst_stat(fs, name, &st), -ENAMETOOLONG);
    name[255] = '\0';
    put(fs, name, "long name");
    assert_int_equal(pst_link(fs, name, "/hard"), 0);
    assert_int_equal(pst_stat(fs, "/hard", &st), 0);
    assert_int_equal(pst_stat(fs, name, &st2), 0);
    assert_int_equal(st.st_ino, st2.st_ino);
    assert_int_equal(st.st_nlink, 2);
    assert_non_null(strstr((pst_stat(fs, "/not/there", &st), pst_last_error()), "/not/there"));
}

static void wrong_targets_get_the_errno_of_posix(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f;

    assert_int_equal(pst_mkdir(fs, "/d", 0755), 0);
    put(fs, "/f", "x");
    assert_int_equal(pst_mkdir(fs, "/d", 0755), -EEXIST);
    assert_int_equal(pst_mkdir(fs, "/", 0755), -EEXIST);
    assert_int_equal(pst_mkdir(fs, "/f/", 0755), -ENOTDIR);
    assert_int_equal(pst_unlink(fs, "/d"), -EISDIR);
    assert_int_equal(pst_unlink(fs, "/"), -EISDIR);
    assert_int_equal(pst_rmdir(fs, "/f"), -ENOTDIR);
    assert_int_equal(pst_rmdir(fs, "/"), -EBUSY);
    assert_int_equal(pst_rmdir(fs, "/d/."), -EINVAL);
    assert_int_equal(pst_rmdir(fs, "/d/.."), -ENOTEMPTY);
    put(fs, "/d/x", "x");
    assert_int_equal(pst_rmdir(fs, "/d"), -ENOTEMPTY);
    assert_int_equal(pst_open(fs, "/d", O_RDONLY, 0, &f), -EISDIR);
    assert_int_equal(pst_open(fs, "/d/", O_RDWR | O_CREAT, 0644, &f), -EISDIR);
    assert_int_equal(pst_open(fs, "/new/", O_RDWR | O_CREAT, 0644, &f), -EISDIR);
    assert_int_equal(pst_open(fs, "/f", O_RDWR | O_CREAT | O_EXCL, 0644, &f), -EEXIST);
    assert_int_equal(pst_open(fs, "/f", O_RDWR | 0x40000000, 0644, &f), -EINVAL);
    assert_int_equal(pst_symlink(fs, "/f", "/l"), 0);
    assert_int_equal(pst_open(fs, "/l", O_RDONLY | O_NOFOLLOW, 0, &f), -ELOOP);
    assert_int_equal(pst_open(fs, "/l", O_RDWR | O_CREAT | O_EXCL, 0, &f), -EEXIST);
    assert_int_equal(pst_mknod(fs, "/fifo", S_IFIFO | 0644, 0), 0);
    assert_int_equal(pst_open(fs, "/fifo", O_RDONLY, 0, &f), -ENXIO);
    assert_int_equal(pst_rename(fs, "/f", "/d/", 0), -ENOTDIR);
    assert_int_equal(pst_rename(fs, "/f", "/l", PST_RENAME_KEEP), -EEXIST);
    assert_int_equal(pst_truncate(fs, "/d", 0), -EISDIR);
    /* A dangling link is created through. */
    assert_int_equal(pst_symlink(fs, "/d/made", "/dangling"), 0);
    put(fs, "/dangling", "through");
    expect_text(fs, "/d/made", "through");
}

static void attributes_are_set_and_read(void **state)
{
    struct pst_fs *fs = *state;
    struct timespec t[2] = {{-5, 7}, {1234567890, 987654321}};
    struct stat st;
    struct pst_file *f = open_new(fs, "/f", 0);

    assert_int_equal(pst_utimens(fs, "/f", t, 0), 0);
    assert_int_equal(pst_stat(fs, "/f", &st), 0);
    assert_int_equal(st.st_mtim.tv_sec, 1234567890);
    assert_int_equal(st.st_mtim.tv_nsec, 987654321);
    assert_int_equal(st.st_atim.tv_sec, -5);
    assert_int_equal(st.st_atim.tv_nsec, 7);
    t[0].tv_nsec = (long)NSEC_PER_SEC;
    assert_int_equal(pst_futimens(f, t), -EINVAL);
    t[0].tv_nsec = UTIME_OMIT;
    t[1].tv_nsec = UTIME_NOW;
    assert_int_equal(pst_futimens(f, t), 0);
    assert_int_equal(pst_chmod(fs, "/f", 0600), 0);
    assert_int_equal(pst_fchmod(f, 0640), 0);
    assert_int_equal(pst_ftruncate(f, 5000), 0);
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0640);
    assert_int_equal(st.st_size, 5000);
    assert_int_equal(pst_close(f), 0);
}

static void a_listing_is_complete_across_pages(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_dir *d;
    struct pst_entry e;
    char name[32];
    uint64_t middle = 0;
    int n = 0;

    assert_int_equal(pst_mkdir(fs, "/d", 0755), 0);
    for (int i = 0; i < 1300; i++) {
        snprintf(name, sizeof name, "/d/%d", i);
        assert_int_equal(pst_mknod(fs, name, S_IFREG | 0600, 0), 0);
    }
    assert_int_equal(pst_opendir(fs, "/d", PST_DIR_STAT, &d), 0);
    while (pst_readdir(d, &e) == 1) {
        assert_int_equal(e.st.st_ino, e.ino);
        assert_true(S_ISREG(e.type));
        if (++n == 700)
            middle = e.cookie;
    }
    assert_int_equal(n, 1300);
    assert_int_equal(pst_readdir(d, &e), 0);
    assert_int_equal(pst_seekdir(d, middle), 0);
    for (n = 0; pst_readdir(d, &e) == 1; n++)
        ;
    assert_int_equal(n, 600);
    assert_int_equal(pst_closedir(d), 0);
}

static void sequential_writes_become_large_operations(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = open_new(fs, "/f", 0);
    struct memstore_counts before = counts(fs), after;
    char block[4096];

    for (int i = 0; i < 1024; i++) {
        memset(block, i, sizeof block);
        assert_int_equal(pst_pwrite(f, block, sizeof block, (uint64_t)i * sizeof block), sizeof block);
    }
    assert_int_equal(pst_flush(f), 0);
    after = counts(fs);
    assert_int_equal(after.ops[PST_OP_WRITE] - before.ops[PST_OP_WRITE], 4);
    assert_int_equal(after.largest_write, MiB);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(counts(fs).ops[PST_OP_FSYNC], 1);
    assert_int_equal(counts(fs).opens, 0);
}

static void reads_and_stat_see_earlier_writes(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = open_new(fs, "/f", 0), *g;
    struct stat st;
    char buf[16];

    assert_int_equal(pst_pwrite(f, "abcdef", 6, 10), 6);
    assert_int_equal(pst_stat(fs, "/f", &st), 0);
    assert_int_equal(st.st_size, 16);
    assert_int_equal(pst_pwrite(f, "XY", 2, 12), 2);
    assert_int_equal(pst_pread(f, buf, 16, 0), 16);
    assert_memory_equal(buf, "\0\0\0\0\0\0\0\0\0\0abXYef", 16);
    assert_int_equal(pst_pwrite(f, "Z", 1, 20), 1);
    assert_int_equal(pst_open(fs, "/f", O_RDONLY, 0, &g), 0);
    assert_int_equal(pst_pread(g, buf, 1, 20), 1);
    assert_int_equal(buf[0], 'Z');
    assert_int_equal(pst_pwrite(g, buf, 1, 0), -EBADF);
    assert_int_equal(pst_pwrite(f, "Q", 1, 20), 1);
    assert_int_equal(pst_pread(g, buf, 1, 20), 1);
    assert_int_equal(buf[0], 'Q');
    assert_int_equal(pst_pwrite(f, "ghost", 5, 100), 5);
    assert_int_equal(pst_close(g), 0);
    /* A truncation after a write stays a truncation. */
    assert_int_equal(pst_open(fs, "/f", O_RDWR | O_CREAT | O_TRUNC, 0, &g), 0);
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(pst_pwrite(f, "ghost", 5, 100), 5);
    assert_int_equal(pst_ftruncate(g, 3), 0);
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_size, 3);
    assert_int_equal(pst_close(g), 0);
    assert_int_equal(pst_close(f), 0);
}

static void random_writes_and_reads_match_a_model(void **state)
{
    struct pst_fs *fs = *state;
    const char *s = getenv("PENSTOCK_SEED");
    uint64_t seed = s ? strtoull(s, NULL, 0) : (uint64_t)wall_ns();
    size_t max = 5 * MiB, size = 0;
    uint8_t *model = calloc(1, max), *buf = malloc(max);
    struct pst_file *f = open_new(fs, "/f", 0), *g = open_new(fs, "/f", 0);
    struct rng r;

    print_message("seed %llu\n", (unsigned long long)seed);
    rng_seed(&r, seed);
    for (int i = 0; i < 3000; i++) {
        struct pst_file *h = rng_below(&r, 2) ? f : g;
        size_t at = rng_below(&r, max), n = rng_below(&r, rng_below(&r, 20) ? 9000 : 2 * MiB);
        n = min_u64(n, max - at);
        switch (rng_below(&r, 8)) {
        case 0: case 1: case 2: case 3:
            rng_fill(&r, buf, n);
            memcpy(model + at, buf, n);
            size = n ? max_u64(size, at + n) : size;
            assert_int_equal(pst_pwrite(h, buf, n, at), n);
            break;
        case 4:
            if (rng_below(&r, 20) == 0) {
                size_t to = rng_below(&r, max);
                if (to < size)
                    memset(model + to, 0, size - to);
                size = to;
                assert_int_equal(pst_ftruncate(h, to), 0);
            }
            break;
        default: {
            size_t want = at < size ? min_u64(n, size - at) : 0;
            assert_int_equal(pst_pread(h, buf, n, at), want);
            assert_memory_equal(buf, model + at, want);
        }
        }
    }
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_close(g), 0);
    free(model);
    free(buf);
}

static void a_failed_write_is_reported_once(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = open_new(fs, "/f", 0), *g = open_new(fs, "/f", 0);

    memstore_fail(mem(fs), WRITES, -ENOSPC, 1);
    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    assert_int_equal(pst_flush(g), 0); /* another handle's writes */
    assert_int_equal(pst_pwrite(f, "x", 1, 0), -ENOSPC); /* nothing more is taken until it is reported */
    assert_int_equal(pst_fsync(f), -ENOSPC);
    assert_int_equal(pst_fsync(f), 0);
    memstore_fail(mem(fs), WRITES, -EIO, 1);
    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    assert_int_equal(pst_close(f), -EIO);
    assert_int_equal(pst_close(g), 0);
    assert_int_equal(counts(fs).opens, 0);
    memstore_fail(mem(fs), 1u << PST_OP_FSYNC, -EIO, 1);
    f = open_new(fs, "/f2", 0);
    assert_int_equal(pst_close(f), -EIO);
}

static void write_behind_memory_is_bounded(void **state)
{
    struct pst_fs *fs = *state; /* 8 MiB in all, 4 MiB for one file */
    struct pst_file *f[20];
    char name[16], *big = calloc(1, MiB);

    /* Many files with a little each, more than there is room for. */
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "/%d", i);
        f[i] = open_new(fs, name, 0);
        assert_int_equal(pst_pwrite(f[i], big, MiB - 1, 0), MiB - 1);
    }
    assert_true(counts(fs).ops[PST_OP_WRITE] >= 12);
    for (int i = 0; i < 20; i++)
        assert_int_equal(pst_close(f[i]), 0);
    free(big);
}

static void appends_keep_their_order(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = open_new(fs, "/log", O_APPEND), *g = open_new(fs, "/log", 0);
    uint64_t at = 0;

    assert_int_equal(pst_pwrite(f, "one ", 4, 999), 4);
    assert_int_equal(pst_append(g, "two ", 4, &at), 4);
    assert_int_equal(at, 4);
    assert_int_equal(pst_pwrite(g, "XXXX", 4, 8), 4); /* pending, not appended */
    assert_int_equal(pst_pwrite(f, "three", 5, 0), 5);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_close(g), 0);
    expect_text(fs, "/log", "one two XXXXthree");
}

static void direct_and_synchronous_handles_keep_nothing_back(void **state)
{
    struct pst_fs *fs = *state;
    int flags[] = {O_DIRECT, O_SYNC, O_DSYNC};

    for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
        struct pst_file *f = open_new(fs, "/f", flags[i]);
        uint64_t before = counts(fs).ops[PST_OP_WRITE];
        assert_int_equal(pst_pwrite(f, "x", 1, i), 1);
        assert_int_equal(counts(fs).ops[PST_OP_WRITE], before + 1);
        memstore_fail(mem(fs), WRITES, -ENOSPC, 1);
        assert_int_equal(pst_pwrite(f, "x", 1, i), -ENOSPC);
        assert_int_equal(pst_close(f), 0);
    }
}

static void sequential_reads_are_fetched_ahead_and_never_stale(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = open_new(fs, "/f", 0), *w = open_new(fs, "/f", 0);
    size_t size = 6 * MiB + 123;
    uint8_t *data = malloc(size), buf[65536];
    struct rng r;
    uint64_t before;

    rng_seed(&r, 7);
    rng_fill(&r, data, size);
    assert_int_equal(pst_pwrite(f, data, size, 0), size);
    assert_int_equal(pst_flush(f), 0);
    before = counts(fs).ops[PST_OP_READ];
    for (size_t at = 0; at < size;) {
        int64_t n = pst_pread(f, buf, sizeof buf, at);
        assert_int_equal(n, min_u64(sizeof buf, size - at));
        assert_memory_equal(buf, data + at, (size_t)n);
        at += (size_t)n;
        if (at == 2 * MiB) { /* change what was fetched ahead already */
            memset(data + at, 0xee, MiB);
            assert_int_equal(pst_pwrite(w, data + at, MiB, at), MiB);
        }
        if (at == 4 * MiB) {
            memset(data + at, 0xdd, 1000);
            struct pst_file *d = open_new(fs, "/f", O_DIRECT);
            assert_int_equal(pst_pwrite(d, data + at, 1000, at), 1000);
            assert_int_equal(pst_close(d), 0);
        }
    }
    assert_int_equal(pst_pread(f, buf, sizeof buf, size), 0);
    assert_in_range(counts(fs).ops[PST_OP_READ] - before, 7, 40);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_close(w), 0);
    free(data);
}

static void large_transfers_are_split_and_whole(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = open_new(fs, "/f", O_DIRECT);
    size_t size = 40 * MiB + 4097;
    uint8_t *a = malloc(size), *b = malloc(size);
    struct iovec iov[3] = {{a, 5}, {a + 5, 3 * MiB}, {a + 5 + 3 * MiB, size - 5 - 3 * MiB}};
    struct rng r;

    rng_seed(&r, 8);
    rng_fill(&r, a, size);
    assert_int_equal(pst_pwritev(f, iov, 3, 77), size);
    assert_int_equal(pst_pread(f, b, size, 77), size);
    assert_memory_equal(a, b, size);
    assert_int_equal(pst_pread(f, b, size, 77 + size / 2), size - size / 2);
    assert_memory_equal(a + size / 2, b, size - size / 2);
    assert_int_equal(pst_close(f), 0);
    free(a);
    free(b);
}

static void an_event_queue_delivers_and_its_descriptor_tells(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = open_new(fs, "/f", 0);
    struct pst_eq *eq;
    struct pst_event ev[4];
    struct pollfd fd;
    char buf[8] = {0};
    struct iovec w[2] = {{"abc", 3}, {"defgh", 5}}, rd = {buf, 8};

    assert_int_equal(pst_eq_create(fs, 2, &eq), 0);
    fd = (struct pollfd){.fd = pst_eq_fd(eq), .events = POLLIN};
    assert_int_equal(pst_eq_poll(eq, ev, 4, -1), 0); /* nothing under way */
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(pst_pwrite(f, "zzzzzzzz", 8, 0), 8); /* comes before the operation */
    assert_int_equal(pst_aio_write(f, w, 2, 0, eq, w), 0);
    assert_int_equal(poll(&fd, 1, 10000), 1);
    assert_int_equal(pst_eq_poll(eq, ev, 4, 0), 1);
    assert_ptr_equal(ev[0].cookie, w);
    assert_ptr_equal(ev[0].file, f);
    assert_int_equal(ev[0].result, 8);
    assert_int_equal(poll(&fd, 1, 0), 0);

    memstore_hold(mem(fs), READS);
    assert_int_equal(pst_aio_read(f, &rd, 1, 0, eq, &rd), 0);
    assert_int_equal(pst_aio_fsync(f, eq, NULL), 0);
    assert_int_equal(pst_aio_fsync(f, eq, NULL), -EAGAIN);
    assert_int_equal(pst_eq_poll(eq, ev, 1, 10000), 1);
    assert_int_equal(ev[0].kind, PST_AIO_FSYNC);
    assert_int_equal(pst_eq_poll(eq, ev, 1, 20), 0);
    assert_int_equal(pst_aio_cancel(eq, &rd), 1); /* this store cannot: the event still comes */
    assert_int_equal(pst_aio_cancel(eq, ev), 0);
    memstore_release(mem(fs));
    assert_int_equal(pst_eq_poll(eq, ev, 4, 10000), 1);
    assert_int_equal(ev[0].result, 8);
    assert_memory_equal(buf, "abcdefgh", 8);
    assert_int_equal(pst_aio_read(f, &rd, 1, 0, eq, NULL), 0);
    assert_int_equal(pst_close(f), 0); /* waits for it */
    pst_eq_destroy(eq);
}

static void operations_that_wait_for_room_can_be_cancelled(void **state)
{
    struct pst_options o;
    struct pst_fs *fs;
    struct pst_file *f;
    struct pst_eq *eq;
    struct pst_event ev[8];
    char buf[8];
    struct iovec iov = {buf, 8};
    int cookie[4];

    (void)state;
    pst_options_init(&o, sizeof o);
    o.threads = 1;
    o.depth = 1;
    assert_int_equal(pst_connect("mem:?p/c", &o, &fs), 0);
    f = open_new(fs, "/f", 0);
    assert_int_equal(pst_eq_create(fs, 8, &eq), 0);
    memstore_hold(mem(fs), READS);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pst_aio_read(f, &iov, 1, 0, eq, &cookie[i]), 0);
    assert_int_equal(pst_aio_cancel(eq, &cookie[3]), 1);
    assert_int_equal(pst_eq_poll(eq, ev, 8, 10000), 1);
    assert_ptr_equal(ev[0].cookie, &cookie[3]);
    assert_int_equal(ev[0].result, -ECANCELED);
    memstore_release(mem(fs));
    for (int n = 0; n < 3;) {
        int got = pst_eq_poll(eq, ev, 8, 10000);
        assert_true(got > 0);
        n += got;
    }
    pst_eq_destroy(eq);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
}

static void registered_memory_is_checked(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_buf *a, *b;
    uint8_t *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_int_equal(pst_buf_register(fs, p + 1, 4096, &a), -EINVAL);
    assert_int_equal(pst_buf_register(fs, p, 4095, &a), -EINVAL);
    assert_int_equal(pst_buf_register(fs, p, 65536, &a), 0);
    assert_int_equal(pst_buf_register(fs, p + 4096, 4096, &b), -EEXIST);
    assert_int_equal(pst_buf_unregister(a), 0);
    assert_int_equal(pst_buf_register(fs, p + 4096, 4096, &b), 0);
    assert_int_equal(pst_buf_unregister(b), 0);
    munmap(p, 65536);
}

static int child_checks(struct pst_fs *fs, struct pst_file *f)
{
    struct pst_fs *own;
    struct stat st;
    char c;

    if (pst_pread(f, &c, 1, 0) != -ECHILD || pst_pwrite(f, "c", 1, 0) != -ECHILD || pst_fsync(f) != -ECHILD)
        return 1;
    if (pst_stat(fs, "/f", &st) != -ECHILD || pst_mkdir(fs, "/child", 0755) != -ECHILD || pst_close(f) != -ECHILD)
        return 2;
    if (pst_disconnect(fs) != -ECHILD || !strstr(pst_last_error(), "parent"))
        return 3;
#ifdef __SANITIZE_THREAD__
    return 0; /* the tool cannot follow threads that a forked child starts */
#endif
    if (pst_connect("mem:?p/c", NULL, &own) != 0 || pst_mkdir(own, "/d", 0755) != 0 || pst_disconnect(own) != 0)
        return 4;
    return 0;
}

static void a_child_gets_errors_and_the_parent_goes_on(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = open_new(fs, "/f", 0);
    int status;
    pid_t pid;

    assert_int_equal(pst_pwrite(f, "parent", 6, 0), 6);
    pid = fork();
    if (pid == 0)
        _exit(child_checks(fs, f));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(pst_pwrite(f, "!", 1, 6), 1);
    assert_int_equal(pst_close(f), 0);
    expect_text(fs, "/f", "parent!");
}

static void unusable_urls_and_options_are_refused(void **state)
{
    struct pst_options o;
    struct pst_fs *fs;

    (void)state;
    assert_int_equal(pst_connect("nonsense:/x?p/c", NULL, &fs), -EPROTONOSUPPORT);
    assert_non_null(strstr(pst_last_error(), "mem:"));
    assert_int_equal(pst_connect("penstock://host", NULL, &fs), -EINVAL);
    assert_int_equal(pst_connect("penstock://host/pool", NULL, &fs), -EINVAL);
    assert_int_equal(pst_connect("mem:x?pool/..%/", NULL, &fs), -EINVAL);
    assert_int_equal(pst_connect(NULL, NULL, &fs), -EINVAL);
    pst_options_init(&o, sizeof o);
    o.flags = 1u << 31;
    assert_int_equal(pst_connect("mem:?p/c", &o, &fs), -EINVAL);
    pst_options_init(&o, sizeof o);
    o.store_options = "novalue";
    assert_int_equal(pst_connect("mem:?p/c", &o, &fs), -EINVAL);
    o.size = 0;
    assert_int_equal(pst_connect("mem:?p/c", &o, &fs), -EINVAL);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(paths_resolve_names_dots_and_links),
        T(wrong_targets_get_the_errno_of_posix),
        T(attributes_are_set_and_read),
        T(a_listing_is_complete_across_pages),
        T(sequential_writes_become_large_operations),
        T(reads_and_stat_see_earlier_writes),
        T(random_writes_and_reads_match_a_model),
        T(a_failed_write_is_reported_once),
        T(write_behind_memory_is_bounded),
        T(appends_keep_their_order),
        T(direct_and_synchronous_handles_keep_nothing_back),
        T(sequential_reads_are_fetched_ahead_and_never_stale),
        T(large_transfers_are_split_and_whole),
        T(an_event_queue_delivers_and_its_descriptor_tells),
        cmocka_unit_test(operations_that_wait_for_room_can_be_cancelled),
        T(registered_memory_is_checked),
        T(a_child_gets_errors_and_the_parent_goes_on),
        cmocka_unit_test(unusable_urls_and_options_are_refused),
    };

    pst_backend_register(&memstore_backend);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

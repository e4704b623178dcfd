/* What becomes of bytes: the other half of the cases. */
#include "api_cases.h"

#include "base/rng.h"
#include "base/util.h"
#include "store/types.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void reads_and_stat_see_earlier_writes(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0), *g;
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
    size_t max = 5 * MiB, size = 0;
    uint8_t *model = calloc(1, max), *buf = malloc(max);
    struct pst_file *f = api_open_new(fs, "/f", 0), *g = api_open_new(fs, "/f", 0);
    struct rng r;

    rng_seed(&r, seed_new());
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

static void appends_keep_their_order(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/log", O_APPEND), *g = api_open_new(fs, "/log", 0);
    uint64_t at = 0;

    assert_int_equal(pst_pwrite(f, "one ", 4, 999), 4);
    assert_int_equal(pst_append(g, "two ", 4, &at), 4);
    assert_int_equal(at, 4);
    assert_int_equal(pst_pwrite(g, "XXXX", 4, 8), 4); /* pending, not appended */
    assert_int_equal(pst_pwrite(f, "three", 5, 0), 5);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_close(g), 0);
    api_expect(fs, "/log", "one two XXXXthree");
}

static void large_transfers_are_split_and_whole(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", O_DIRECT);
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

static void holes_are_punched_found_and_reserved(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0);
    uint8_t *data = malloc(3 * MiB), *back = malloc(3 * MiB);
    struct stat st;

    memset(data, 7, 3 * MiB);
    assert_int_equal(pst_pwrite(f, data, 3 * MiB, 0), 3 * MiB);
    assert_int_equal(pst_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MiB - 5000, MiB + 10000), 0);
    memset(data + MiB - 5000, 0, MiB + 10000);
    assert_int_equal(pst_pread(f, back, 3 * MiB, 0), 3 * MiB);
    assert_memory_equal(data, back, 3 * MiB);
    assert_int_equal(pst_fallocate(f, 0, 3 * MiB, MiB), 0);
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_size, 4 * MiB);
    assert_int_equal(pst_fallocate(f, FALLOC_FL_KEEP_SIZE, 4 * MiB, MiB), 0);
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_size, 4 * MiB);
    assert_int_equal(pst_fallocate(f, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -EOPNOTSUPP);
    assert_int_equal(pst_seek(f, 0, SEEK_DATA), 0);
    assert_int_equal(pst_seek(f, 5 * MiB, SEEK_DATA), -ENXIO);
    assert_int_equal(pst_close(f), 0);
    free(data);
    free(back);
}

static void many_operations_are_under_way_at_once(void **state)
{
    enum { N = 200, SIZE = 12000 };
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0);
    uint8_t *w = malloc(N * SIZE), *r = calloc(N, SIZE);
    struct pst_eq *eq;
    struct pst_event ev[16];
    struct rng g;

    rng_seed(&g, 5);
    rng_fill(&g, w, N * SIZE);
    assert_int_equal(pst_eq_create(fs, N, &eq), 0);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < N; i++) { /* odd sizes and parts: some inline, some by memory */
            size_t len = i % 3 ? SIZE : 1000;
            uint8_t *p = (pass ? r : w) + i * SIZE;
            struct iovec iov[2] = {{p, 333}, {p + 333, len - 333}};
            assert_int_equal(pass ? pst_aio_read(f, iov, 2, (uint64_t)i * SIZE, eq, p)
                                  : pst_aio_write(f, iov, 2, (uint64_t)i * SIZE, eq, p), 0);
        }
        for (int left = N; left > 0;) {
            int n = pst_eq_poll(eq, ev, 16, 60000);
            assert_true(n > 0);
            for (int i = 0; i < n; i++)
                assert_in_set((uint64_t)ev[i].result, ((uint64_t[]){1000, SIZE}), 2);
            left -= n;
        }
    }
    for (int i = 0; i < N; i++)
        assert_memory_equal(w + i * SIZE, r + i * SIZE, i % 3 ? SIZE : 1000);
    assert_int_equal(pst_aio_fsync(f, eq, NULL), 0);
    assert_int_equal(pst_eq_poll(eq, ev, 16, 60000), 1);
    assert_int_equal(ev[0].result, 0);
    pst_eq_destroy(eq);
    assert_int_equal(pst_close(f), 0);
    free(w);
    free(r);
}

static void carry_bytes(struct pst_fs *fs, bool alloc)
{
    size_t size = 4 * MiB;
    uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *q = p,
            *copy = malloc(size);
    struct pst_file *f = api_open_new(fs, alloc ? "/a" : "/f", O_DIRECT);
    struct pst_buf *b;
    struct rng g;

    if (alloc)
        assert_int_equal(pst_buf_alloc(fs, size, &b, (void **)&p), 0);
    else
        assert_int_equal(pst_buf_register(fs, p, size, &b), 0);
    rng_seed(&g, 6);
    rng_fill(&g, p, size);
    memcpy(copy, p, size);
    assert_int_equal(pst_pwrite(f, p, size, 0), size);
    memset(p, 0, size);
    assert_int_equal(pst_pread(f, p, size, 0), size);
    assert_memory_equal(p, copy, size);
    assert_int_equal(pst_pread(f, p + 5, 100000, 4097), 100000); /* any place in it */
    assert_memory_equal(p + 5, copy + 4097, 100000);
    assert_int_equal(pst_buf_unregister(b), 0);
    assert_int_equal(pst_pread(f, q, size, 0), size);
    assert_memory_equal(q, copy, size);
    assert_int_equal(pst_close(f), 0);
    munmap(q, size);
    free(copy);
}

static void registered_memory_carries_the_bytes(void **state)
{
    carry_bytes(*state, false);
}

static void memory_of_the_library_carries_the_bytes(void **state)
{
    struct pst_buf *b;
    void *p;

    carry_bytes(*state, true);
    assert_int_equal(pst_buf_alloc(*state, 4095, &b, &p), -EINVAL);
    assert_int_equal(pst_buf_alloc(*state, 0, &b, &p), -EINVAL);
}

static void directories_and_the_whole_are_synced(void **state)
{
    struct pst_fs *fs = *state;
    struct statvfs st;

    assert_int_equal(pst_mkdir(fs, "/d", 0755), 0);
    api_put(fs, "/d/f", "x");
    assert_int_equal(pst_fsync_dir(fs, "/d"), 0);
    assert_int_equal(pst_fsync_dir(fs, "/d/f"), -ENOTDIR);
    assert_int_equal(pst_sync(fs), 0);
    assert_int_equal(pst_statvfs(fs, &st), 0);
    assert_true(st.f_blocks > 0 && st.f_bfree <= st.f_blocks);
}

#define T(f) cmocka_unit_test_setup_teardown(f, api_setup, api_teardown)

int api_run_data_cases(void)
{
    const struct CMUnitTest tests[] = {
        T(reads_and_stat_see_earlier_writes),
        T(random_writes_and_reads_match_a_model),
        T(appends_keep_their_order),
        T(large_transfers_are_split_and_whole),
        T(holes_are_punched_found_and_reserved),
        T(many_operations_are_under_way_at_once),
        T(registered_memory_carries_the_bytes),
        T(memory_of_the_library_carries_the_bytes),
        T(directories_and_the_whole_are_synced),
    };

    return cmocka_run_group_tests_name(api_base, tests, NULL, NULL);
}

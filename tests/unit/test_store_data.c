/* The data path of the embedded engine: every operation and its edges. */
#include "data_fixture.h"

#include "local/local_store.h"

#include <poll.h>

#define FILE_MAX_TEST (3 * 1024 * 1024)

static uint8_t model[FILE_MAX_TEST], bytes[FILE_MAX_TEST];

static int setup(void **state)
{
    memset(model, 0, sizeof model);
    dx_fill(bytes, sizeof bytes, 7);
    return dx_setup(state);
}

static int teardown(void **state)
{
    dx_check_space();
    return dx_teardown(state);
}

/* ---- WRITE and READ ---- */

static void what_is_written_is_read(void **state)
{
    uint64_t ino = dx_file("f");
    struct pst_op op;
    (void)state;

    assert_int_equal(dx_io(PST_OP_WRITE, ino, 0, bytes, 10000, 0, &op), 10000);
    assert_int_equal(op.attr.size, 10000);
    assert_int_equal(op.attr.used, 3 * PST_BLOCK);
    dx_expect(ino, bytes, 10000);
    assert_int_equal(nx_attr(ino).size, 10000);
    assert_true(nx_attr(ino).change == op.attr.change);
    dx_reopen();
    dx_expect(ino, bytes, 10000);
}

static void writes_at_any_offset_keep_their_neighbours(void **state)
{
    static const struct {
        uint64_t offset, length;
    } writes[] = {{0, 20000},      {100, 50},       {4096, 4096},     {4000, 200},   {8191, 2},
                  {1048000, 2000}, {1048576, 4096}, {2097152 - 1, 2}, {500000, 1},   {19999, 10000},
                  {1000, 1048576}, {0, 2097153},    {4095, 1},        {2500000, 77}, {0, 1}};
    uint64_t ino = dx_file("f"), size = 0;
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(writes); i++) {
        uint64_t o = writes[i].offset, n = writes[i].length;
        dx_fill(bytes, n, i);
        assert_int_equal(dx_write(ino, o, bytes, n), (int64_t)n);
        memcpy(model + o, bytes, n);
        size = max_u64(size, o + n);
        dx_expect(ino, model, size);
    }
    dx_reopen();
    dx_expect(ino, model, size);
}

static void reads_of_parts_and_past_the_end_are_cut(void **state)
{
    uint64_t ino = dx_file("f");
    uint8_t got[9000];
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 10000), 10000);
    assert_int_equal(dx_read(ino, 4097, got, 3), 3);
    assert_memory_equal(got, bytes + 4097, 3);
    assert_int_equal(dx_read(ino, 1, got, 9000), 9000);
    assert_memory_equal(got, bytes + 1, 9000);
    assert_int_equal(dx_read(ino, 9990, got, 100), 10);
    assert_memory_equal(got, bytes + 9990, 10);
    assert_int_equal(dx_read(ino, 10000, got, 100), 0);
    assert_int_equal(dx_read(ino, INT64_MAX - 100, got, 100), 0);
    assert_int_equal(dx_read(ino, 5, got, 0), 0);
}

static void holes_read_as_zero_and_take_no_space(void **state)
{
    uint64_t ino = dx_file("f");
    (void)state;

    assert_int_equal(dx_write(ino, 2500000, bytes, 100), 100);
    memcpy(model + 2500000, bytes, 100);
    dx_expect(ino, model, 2500100);
    assert_int_equal(nx_attr(ino).used, PST_BLOCK);
    assert_int_equal(dx_write(ino, 10 * GiB, bytes, 1), 1);
    assert_int_equal(nx_attr(ino).used, 2 * PST_BLOCK);
    memset(bytes, 1, 5000);
    assert_int_equal(dx_read(ino, 5 * GiB, bytes, 5000), 5000);
    assert_memory_equal(bytes, model, 5000);
}

static void appends_tell_where_they_went(void **state)
{
    uint64_t ino = dx_file("f"), at = 0, total = 0;
    (void)state;

    for (size_t n = 1; n < 40000; n = n * 3 + 1) {
        assert_int_equal(dx_append(ino, bytes + total, n, &at), (int64_t)n);
        assert_int_equal(at, total);
        total += n;
    }
    dx_expect(ino, bytes, total);
}

static void scattered_memory_is_written_and_read(void **state)
{
    uint64_t ino = dx_file("f");
    static struct iovec v[3000];
    struct pst_op op = dx_op(PST_OP_WRITE, ino, 3, 0);
    static uint8_t back[3000 * 7];
    (void)state;

    /* Fewer and more elements than are handed to the disk as they are. */
    for (uint32_t n = 200; n <= 3000; n += 2800) {
        for (uint32_t i = 0; i < n; i++)
            v[i] = (struct iovec){.iov_base = bytes + i * 7, .iov_len = i % 8};
        op = dx_op(PST_OP_WRITE, ino, 3, 0);
        op.iov = v;
        op.iovcnt = n;
        for (uint32_t i = 0, at = 3; i < n; at += i++ % 8) {
            memcpy(model + at, bytes + i * 7, i % 8);
            op.length += i % 8;
        }
        uint64_t length = op.length;
        assert_int_equal(pst_queue_run(dx_q, &op), (int64_t)length);
        dx_expect(ino, model, 3 + length);
        for (uint32_t i = 0; i < n; i++)
            v[i].iov_base = back + i * 7;
        op = dx_op(PST_OP_READ, ino, 3, length);
        op.iov = v;
        op.iovcnt = n;
        assert_int_equal(pst_queue_run(dx_q, &op), (int64_t)length);
        for (uint32_t i = 0; i < n; i++)
            assert_memory_equal(back + i * 7, bytes + i * 7, i % 8);
    }
}

static void only_regular_files_have_data(void **state)
{
    uint64_t dir = nx_made(NULL, PST_ROOT_INO, "d", S_IFDIR | 0755), fifo = nx_made(NULL, PST_ROOT_INO, "p", S_IFIFO);
    (void)state;

    assert_int_equal(dx_write(dir, 0, bytes, 1), -EISDIR);
    assert_int_equal(dx_read(dir, 0, bytes, 1), -EISDIR);
    assert_int_equal(dx_write(fifo, 0, bytes, 1), -EINVAL);
    assert_int_equal(dx_write(999999, 0, bytes, 1), -ENOENT);
    assert_int_equal(dx_range(PST_OP_SEEK_DATA, 999999, 0, 0, 0), -ENOENT);
    assert_int_equal(dx_range(PST_OP_PUNCH, dir, 0, 10, 0), -EISDIR);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, dir, 0, 10, 0), -EISDIR);
}

static void files_end_at_the_largest_size(void **state)
{
    uint64_t ino = dx_file("f"), at;
    struct pst_attr in = {.size = PST_FILE_MAX};
    (void)state;

    assert_int_equal(dx_write(ino, PST_FILE_MAX - 10, bytes, 10), 10);
    assert_int_equal(dx_append(ino, bytes, 1, &at), -EFBIG);
    assert_int_equal(dx_read(ino, PST_FILE_MAX - 10, model, 100), 10);
    assert_memory_equal(model, bytes, 10);
    assert_int_equal(dx_range(PST_OP_SEEK_DATA, ino, 0, 0, 0), (int64_t)(PST_FILE_MAX - PST_BLOCK));
    assert_int_equal(nx_set(NULL, ino, PST_SET_SIZE, &in), 0);
    assert_int_equal(dx_truncate(ino, 0), 0);
}

static void durable_writes_and_fsync_complete(void **state)
{
    uint64_t ino = dx_file("f"), before = eng_last_lsn(nx_e);
    (void)state;

    assert_int_equal(dx_io(PST_OP_WRITE, ino, 0, bytes, 5000, PST_OPF_DSYNC, NULL), 5000);
    assert_true(sync_durable(nx_e) > before);
    assert_int_equal(dx_write(ino, 5000, bytes, 100), 100);
    assert_int_equal(dx_range(PST_OP_FSYNC, ino, 0, 0, 0), 0);
    assert_int_equal(sync_durable(nx_e), eng_last_lsn(nx_e));
    assert_int_equal(dx_range(PST_OP_SYNCFS, ino, 0, 0, 0), 0);
}

/* ---- truncate ---- */

static void a_file_cut_and_grown_reads_zero_behind_the_cut(void **state)
{
    static const uint64_t cuts[] = {2000001, 2000000, 1048577, 1048576, 1048575, 40961, 40960, 40959, 4096, 1, 0};
    uint64_t ino = dx_file("f");
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(cuts); i++) {
        assert_int_equal(dx_write(ino, 0, bytes, 2100000), 2100000);
        assert_int_equal(dx_truncate(ino, cuts[i]), 0);
        memcpy(model, bytes, cuts[i]);
        memset(model + cuts[i], 0, sizeof model - cuts[i]);
        dx_expect(ino, model, cuts[i]);
        assert_int_equal(nx_attr(ino).used, align_up(cuts[i], PST_BLOCK));
        assert_int_equal(dx_truncate(ino, 2500000), 0);
        dx_expect(ino, model, 2500000);
        if (i % 4 == 0) {
            dx_reopen();
            dx_expect(ino, model, 2500000);
        }
        assert_int_equal(dx_truncate(ino, 0), 0);
        dx_check_space();
    }
}

static void a_file_of_many_chunks_is_cut_in_steps(void **state)
{
    struct pst_ctx ctx = as(NULL);
    uint64_t ino = dx_file("f"), used;
    (void)state;

    /* Every other chunk, and then some behind a gap. */
    for (uint64_t i = 0; i < 300; i++)
        assert_int_equal(dx_write(ino, i * 2 * MiB, bytes + i, 10), 10);
    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(dx_write(ino, GiB + i * MiB, bytes + i, 10), 10);
    assert_int_equal(nx_attr(ino).used, 500 * PST_BLOCK);
    assert_int_equal(dx_truncate(ino, 20 * MiB + 5), 0);
    used = nx_attr(ino).used;
    assert_int_equal(used, 11 * PST_BLOCK);
    dx_check_space();
    assert_int_equal(dx_truncate(ino, 2 * GiB), 0);
    assert_int_equal(dx_range(PST_OP_SEEK_DATA, ino, 20 * MiB + PST_BLOCK, 0, 0), -ENXIO);
    assert_int_equal(dx_read(ino, 20 * MiB, model, 10), 10);
    assert_memory_equal(model, bytes + 10, 5);
    assert_int_equal(model[5] | model[6] | model[7] | model[8] | model[9], 0);
    assert_int_equal(pst_store_open(nx_c, &ctx, ino, W_OK, true, &(struct pst_attr){0}), 0);
    pst_store_release(nx_c, ino);
    assert_int_equal(nx_attr(ino).used, 0);
}

static void deleted_files_give_their_space_back(void **state)
{
    uint64_t ino = dx_file("f"), before;
    (void)state;

    before = dx_free_space();
    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(dx_write(ino, i * MiB, bytes, 5000), 5000);
    assert_int_equal(dx_free_space(), before - 400 * PST_BLOCK);
    assert_int_equal(nx_unlink(NULL, PST_ROOT_INO, "f"), 0);
    nx_collect();
    assert_int_equal(dx_free_space(), before);
    assert_int_equal(dx_read(ino, 0, bytes, 1), -ENOENT);
    assert_int_equal(dx_write(ino, 0, bytes, 1), -ENOENT);
}

/* ---- PUNCH ---- */

static void punched_ranges_read_as_zero_and_free_whole_blocks(void **state)
{
    static const struct {
        uint64_t offset, length;
    } punches[] = {{4096, 4096}, {100, 50},        {4000, 200},        {10000, 20000},
                   {8192, 1},    {1040000, 20000}, {1048576, 1048576}, {2090000, INT64_MAX - 2090000},
                   {0, 1},       {5, 2000000}};
    uint64_t ino = dx_file("f");
    const uint64_t size = 2100000;
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(punches); i++) {
        uint64_t o = punches[i].offset, n = min_u64(punches[i].length, size - o);
        uint64_t whole = align_up(o, PST_BLOCK);
        uint64_t end = o + n == size ? align_up(size, PST_BLOCK) : align_down(o + n, PST_BLOCK);
        assert_int_equal(dx_write(ino, 0, bytes, size), (int64_t)size);
        uint64_t used = nx_attr(ino).used;
        memcpy(model, bytes, size);
        memset(model + o, 0, n);
        assert_int_equal(dx_range(PST_OP_PUNCH, ino, o, punches[i].length, 0), 0);
        dx_expect(ino, model, size);
        assert_int_equal(nx_attr(ino).used, used - (end > whole ? end - whole : 0));
        /* Once more: nothing is there to do. */
        used = nx_attr(ino).used;
        assert_int_equal(dx_range(PST_OP_PUNCH, ino, o, punches[i].length, 0), 0);
        dx_expect(ino, model, size);
        assert_int_equal(nx_attr(ino).used, used);
    }
    dx_reopen();
    dx_expect(ino, model, size);
}

static void a_punch_over_many_chunks_works_in_steps(void **state)
{
    uint64_t ino = dx_file("f");
    (void)state;

    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(dx_write(ino, i * MiB, bytes, 5000), 5000);
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 100, 199 * MiB, 0), 0);
    assert_int_equal(nx_attr(ino).used, 3 * PST_BLOCK);
    assert_int_equal(dx_read(ino, 199 * MiB, model, 5000), 5000);
    assert_memory_equal(model + 100, bytes + 100, 4900);
    assert_int_equal(model[99], 0);
    assert_int_equal(dx_read(ino, 0, model, 200), 200);
    assert_memory_equal(model, bytes, 100);
    assert_int_equal(model[100], 0);
}

/* ---- ALLOCATE ---- */

static void allocated_space_reads_as_zero_and_counts(void **state)
{
    uint64_t ino = dx_file("f");
    (void)state;

    assert_int_equal(dx_write(ino, 5000, bytes, 100), 100);
    memcpy(model + 5000, bytes, 100);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 1000, 2000000, PST_OPF_KEEP_SIZE), 0);
    assert_int_equal(nx_attr(ino).size, 5100);
    assert_int_equal(nx_attr(ino).used, align_up(2001000, PST_BLOCK));
    dx_expect(ino, model, 5100);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 2001001, 0), 0);
    assert_int_equal(nx_attr(ino).size, 2001001);
    dx_expect(ino, model, 2001001);
    /* It is still a hole for seekers, and a write into it takes no more space. */
    assert_int_equal(dx_range(PST_OP_SEEK_HOLE, ino, 0, 0, 0), 0);
    assert_int_equal(dx_range(PST_OP_SEEK_DATA, ino, 0, 0, 0), 4096);
    uint64_t used = nx_attr(ino).used;
    assert_int_equal(dx_write(ino, 1048000, bytes, 9999), 9999);
    memcpy(model + 1048000, bytes, 9999);
    assert_int_equal(nx_attr(ino).used, used);
    dx_reopen();
    dx_expect(ino, model, 2001001);
    assert_int_equal(dx_truncate(ino, 5000), 0);
    assert_int_equal(nx_attr(ino).used, 2 * PST_BLOCK);
}

static void writes_into_allocated_space_work_on_a_full_store(void **state)
{
    uint64_t ino = dx_file("f"), big = dx_file("big"), at = 0;
    (void)state;

    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 2 * MiB, PST_OPF_KEEP_SIZE), 0);
    for (size_t n = MiB; n >= PST_BLOCK;) {
        if (dx_write(big, at, bytes, n) == (int64_t)n)
            at += n;
        else
            n /= 2;
    }
    assert_int_equal(dx_write(big, at, bytes, 1), -ENOSPC);
    assert_int_equal(dx_write(ino, 0, bytes, MiB), MiB);
    for (uint64_t o = MiB; o < 2 * MiB; o += 100000) {
        size_t n = min_u64(100000, 2 * MiB - o);
        assert_int_equal(dx_write(ino, o, bytes + o, n), (int64_t)n);
    }
    dx_expect(ino, bytes, 2 * MiB);
    assert_int_equal(dx_write(ino, 2 * MiB, bytes, 1), -ENOSPC);
    assert_int_equal(nx_attr(ino).used, 2 * MiB);
}

static void a_full_store_keeps_what_it_has(void **state)
{
    uint64_t ino = dx_file("f"), big = dx_file("big"), at = 0, used;
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 2 * MiB), 2 * MiB);
    for (size_t n = MiB; n >= PST_BLOCK;) {
        if (dx_write(big, at, bytes, n) == (int64_t)n)
            at += n;
        else
            n /= 2;
    }
    used = nx_attr(ino).used;
    assert_int_equal(dx_write(ino, 2 * MiB, bytes + 5, 1), -ENOSPC);
    /* What replaces as much as it takes still works: here the reserve for that is 1 MiB. */
    assert_int_equal(dx_write(ino, 0, bytes + 5, 2 * MiB), -ENOSPC);
    dx_expect(ino, bytes, 2 * MiB);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(dx_write(ino, 70000, bytes + 5, 800000), 800000);
        assert_int_equal(dx_write(ino, 70000, bytes + 70000, 800000), 800000);
    }
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 40 * MiB, 0), -ENOSPC);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 3 * MiB, 0), -ENOSPC);
    assert_int_equal(nx_attr(ino).used, used);
    assert_int_equal(nx_attr(ino).size, 2 * MiB);
    dx_expect(ino, bytes, 2 * MiB);
    dx_check_space();
    /* Shorter, with a cut block, and with a hole: both work, and make room. */
    assert_int_equal(dx_truncate(big, at - MiB - 5), 0);
    assert_int_equal(dx_range(PST_OP_PUNCH, big, 100, MiB, 0), 0);
    assert_int_equal(dx_write(ino, 0, bytes + 5, MiB), MiB);
    assert_int_equal(nx_unlink(NULL, PST_ROOT_INO, "big"), 0);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 40 * MiB, 0), 0);
}

static void quotas_bound_data(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_cont_props props = {.quota_bytes = MiB, .mode = 0777, .chunk_size = 64 * KiB};
    struct pst_cont_info info;
    struct pst_cont *old = nx_c, *c;
    uint64_t ino;
    (void)state;

    assert_int_equal(pst_cont_create(&nx_e->st, &ctx, "p", "small", &props, &info), 0);
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", "small", &c), 0);
    nx_c = c;
    ino = dx_file("f");
    assert_int_equal(dx_write(ino, 0, bytes, MiB), MiB);
    assert_int_equal(dx_write(ino, MiB, bytes, 1), -EDQUOT);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 10 * MiB, 0), -EDQUOT);
    assert_int_equal(nx_attr(ino).used, MiB);
    assert_int_equal(dx_write(ino, 0, bytes + 1, MiB), MiB); /* it gives back what it takes */
    dx_expect(ino, bytes + 1, MiB);
    assert_int_equal(dx_truncate(ino, 1), 0);
    assert_int_equal(dx_write(ino, 4096, bytes, MiB - 4096), MiB - 4096);
    nx_c = old;
    pst_cont_close(c);
    assert_int_equal(pst_cont_destroy(&nx_e->st, &ctx, "p", "small"), 0);
}

/* ---- SEEK ---- */

static void data_and_holes_are_found(void **state)
{
    uint64_t ino = dx_file("f");
    (void)state;

    assert_int_equal(dx_range(PST_OP_SEEK_DATA, ino, 0, 0, 0), -ENXIO);
    assert_int_equal(dx_write(ino, 8192, bytes, 8192), 8192);
    assert_int_equal(dx_write(ino, 1048576 - 4096, bytes, 8192), 8192);
    assert_int_equal(dx_write(ino, 50 * MiB, bytes, 5), 5);
    assert_int_equal(dx_truncate(ino, 60 * MiB), 0);
    assert_int_equal(dx_range(PST_OP_SEEK_DATA, ino, 0, 0, 0), 8192);
    assert_int_equal(dx_range(PST_OP_SEEK_DATA, ino, 9000, 0, 0), 9000);
    assert_int_equal(dx_range(PST_OP_SEEK_HOLE, ino, 0, 0, 0), 0);
    assert_int_equal(dx_range(PST_OP_SEEK_HOLE, ino, 9000, 0, 0), 16384);
    assert_int_equal(dx_range(PST_OP_SEEK_DATA, ino, 16384, 0, 0), 1048576 - 4096);
    assert_int_equal(dx_range(PST_OP_SEEK_HOLE, ino, 1048576 - 4096, 0, 0), 1048576 + 4096);
    assert_int_equal(dx_range(PST_OP_SEEK_DATA, ino, 2 * MiB, 0, 0), 50 * MiB);
    assert_int_equal(dx_range(PST_OP_SEEK_HOLE, ino, 50 * MiB, 0, 0), 50 * MiB + 4096);
    assert_int_equal(dx_range(PST_OP_SEEK_DATA, ino, 50 * MiB + 4096, 0, 0), -ENXIO);
    assert_int_equal(dx_range(PST_OP_SEEK_HOLE, ino, 60 * MiB - 1, 0, 0), 60 * MiB - 1);
    assert_int_equal(dx_range(PST_OP_SEEK_HOLE, ino, 60 * MiB, 0, 0), -ENXIO);
    assert_int_equal(dx_truncate(ino, 1048576), 0);
    assert_int_equal(dx_range(PST_OP_SEEK_HOLE, ino, 1048576 - 4096, 0, 0), 1048576);
    assert_int_equal(dx_truncate(ino, 1048576 - 10), 0);
    assert_int_equal(dx_range(PST_OP_SEEK_HOLE, ino, 1048576 - 4096, 0, 0), 1048576 - 10);
}

/* ---- CHUNK_READ and CHUNK_REPLACE ---- */

static int64_t replace(uint64_t ino, uint64_t index, const void *p, size_t n, uint64_t version, uint32_t flags,
                       uint64_t new_size, const char *meta, uint64_t *ret_version)
{
    struct iovec v = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
    struct pst_op op = dx_op(PST_OP_CHUNK_REPLACE, ino, index, n);
    op.iov = &v;
    op.iovcnt = 1;
    op.flags = flags;
    op.version = version;
    op.new_size = new_size;
    op.meta_len = (uint32_t)strlen(meta);
    memcpy(op.meta, meta, op.meta_len);
    int64_t r = pst_queue_run(dx_q, &op);
    *ret_version = op.version;
    return r;
}

static int64_t chunk_read(uint64_t ino, uint64_t index, void *p, size_t n, struct pst_op *ret)
{
    return dx_io(PST_OP_CHUNK_READ, ino, index, p, n, 0, ret);
}

static void chunks_are_replaced_on_condition_of_their_version(void **state)
{
    uint64_t ino = dx_file("f"), v = 1, w;
    static uint8_t got[1048576];
    struct pst_op op;
    (void)state;

    assert_int_equal(chunk_read(ino, 0, got, sizeof got, &op), 0);
    assert_int_equal(op.version, 0);
    assert_int_equal(op.meta_len, 0);
    assert_int_equal(replace(ino, 0, bytes, 5000, 7, 0, 0, "", &v), -ESTALE);
    assert_int_equal(v, 0);
    assert_int_equal(replace(ino, 0, bytes, 5000, 0, PST_OPF_GROW, 4500, "meta", &v), 5000);
    assert_true(v > 0);
    assert_int_equal(nx_attr(ino).size, 4500);
    assert_int_equal(chunk_read(ino, 0, got, sizeof got, &op), 5000);
    assert_int_equal(op.version, v);
    assert_int_equal(op.meta_len, 4);
    assert_memory_equal(op.meta, "meta", 4);
    assert_memory_equal(got, bytes, 5000);
    assert_int_equal(replace(ino, 0, bytes + 1, 100, 0, 0, 0, "x", &w), -ESTALE);
    assert_int_equal(w, v);
    assert_int_equal(replace(ino, 0, bytes + 1, 1048576, v, PST_OPF_GROW, 100, "other meta", &w), 1048576);
    assert_true(w > v);
    assert_int_equal(nx_attr(ino).size, 4500);
    dx_reopen();
    assert_int_equal(chunk_read(ino, 0, got, sizeof got, &op), 1048576);
    assert_int_equal(op.version, w);
    assert_memory_equal(op.meta, "other meta", 10);
    assert_memory_equal(got, bytes + 1, 1048576);
    dx_expect(ino, bytes + 1, 4500);
    /* A short buffer gets a part; the answer is the whole. */
    memset(got, 0, sizeof got);
    assert_int_equal(chunk_read(ino, 0, got, 10, &op), 1048576);
    assert_memory_equal(got, bytes + 1, 10);
    assert_int_equal(got[10], 0);
    assert_int_equal(replace(ino, 0, bytes, 10, PST_VERSION_ANY, 0, 0, "", &v), 10);
    assert_int_equal(nx_attr(ino).used, PST_BLOCK);
}

static void writes_move_a_chunks_version(void **state)
{
    uint64_t ino = dx_file("f"), v;
    struct pst_op op;
    uint8_t got[100];
    (void)state;

    assert_int_equal(dx_write(ino, MiB + 10, bytes, 50), 50);
    assert_int_equal(chunk_read(ino, 1, got, sizeof got, &op), 60);
    v = op.version;
    assert_int_equal(dx_write(ino, 0, bytes, 50), 50);
    assert_int_equal(chunk_read(ino, 1, got, sizeof got, &op), 60);
    assert_int_equal(op.version, v);
    assert_int_equal(dx_write(ino, MiB, bytes, 50), 50);
    assert_int_equal(chunk_read(ino, 1, got, sizeof got, &op), 60);
    assert_true(op.version > v);
    /* Gone and written anew: never a version that was there before. */
    v = op.version;
    assert_int_equal(dx_truncate(ino, MiB), 0);
    assert_int_equal(chunk_read(ino, 1, got, sizeof got, &op), 0);
    assert_int_equal(op.version, 0);
    assert_int_equal(dx_write(ino, MiB, bytes, 50), 50);
    assert_int_equal(chunk_read(ino, 1, got, sizeof got, &op), 50);
    assert_true(op.version > v);
}

static void a_replaced_chunk_sets_the_size(void **state)
{
    uint64_t ino = dx_file("f"), v;
    (void)state;

    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(replace(ino, i, bytes + i, 4096, 0, PST_OPF_GROW, i * MiB + 4096, "m", &v), 4096);
    assert_int_equal(nx_attr(ino).size, 99 * MiB + 4096);
    assert_int_equal(replace(ino, 3, bytes, 100, PST_VERSION_ANY, PST_OPF_SET_SIZE, 2 * MiB, "m", &v), -EINVAL);
    assert_int_equal(replace(ino, 3, bytes, 100, PST_VERSION_ANY, PST_OPF_SET_SIZE, 3 * MiB + 50, "m", &v), 100);
    assert_int_equal(nx_attr(ino).size, 3 * MiB + 50);
    assert_int_equal(nx_attr(ino).used, 4 * PST_BLOCK);
    assert_int_equal(replace(ino, 0, bytes, MiB + 1, PST_VERSION_ANY, 0, 0, "m", &v), -EINVAL);
    assert_int_equal(replace(ino, 9, bytes, 0, PST_VERSION_ANY, 0, 0, "m", &v), -EINVAL);
    assert_int_equal(replace(ino, 2, bytes, 0, PST_VERSION_ANY, 0, 0, "m", &v), 0);
    assert_true(v > 0);
    assert_int_equal(replace(ino, 2, bytes, 0, v, 0, 0, "", &v), 0);
    assert_int_equal(v, 0);
}

/* ---- exactly once ---- */

static void a_repeated_request_has_its_effect_once(void **state)
{
    uint64_t ino = dx_file("f");
    struct iovec v = {.iov_base = bytes, .iov_len = 5000};
    struct pst_op op = dx_op(PST_OP_WRITE, ino, 0, 5000), first;
    (void)state;

    op.iov = &v;
    op.iovcnt = 1;
    op.flags = PST_OPF_APPEND;
    op.ctx.id = (struct pst_reqid){.client = "client", .slot = 3, .seq = 1};
    first = op;
    assert_int_equal(pst_queue_run(dx_q, &first), 5000);
    for (int i = 0; i < 3; i++) {
        struct pst_op again = op;
        assert_int_equal(pst_queue_run(dx_q, &again), 5000);
        assert_int_equal(again.offset, 0);
        assert_true(nx_same(&again.attr, &first.attr));
        if (i == 1)
            dx_reopen();
        op.cont = nx_c;
    }
    assert_int_equal(nx_attr(ino).size, 5000);
    op.ctx.id.seq = 2;
    struct pst_op second = op;
    assert_int_equal(pst_queue_run(dx_q, &second), 5000);
    assert_int_equal(second.offset, 5000);
    op.ctx.id.seq = 1;
    assert_int_equal(pst_queue_run(dx_q, &op), -ESTALE);
    assert_int_equal(nx_attr(ino).size, 10000);
    /* The number was used for something else. */
    op = dx_op(PST_OP_PUNCH, ino, 0, 100);
    op.ctx.id = (struct pst_reqid){.client = "client", .slot = 3, .seq = 2};
    assert_int_equal(pst_queue_run(dx_q, &op), -EINVAL);
    op = dx_op(PST_OP_CHUNK_REPLACE, ino, 0, 5000);
    op.iov = &v;
    op.iovcnt = 1;
    op.version = PST_VERSION_ANY;
    op.ctx.id = (struct pst_reqid){.client = "client", .slot = 3, .seq = 3};
    first = op;
    assert_int_equal(pst_queue_run(dx_q, &first), 5000);
    assert_int_equal(dx_write(ino, 0, bytes + 100, 100), 100);
    assert_int_equal(pst_queue_run(dx_q, &op), 5000);
    assert_int_equal(op.version, first.version);
    assert_int_equal(dx_read(ino, 0, model, 100), 100);
    assert_memory_equal(model, bytes + 100, 100);
}

/* ---- damage ---- */

/* Changes a byte of the data file where block `block` of the file is. */
static void damage(uint64_t ino, uint64_t block)
{
    struct pst_attr a = nx_attr(ino);
    struct chunk_map *m = NULL;
    const struct chunk_ext *x;
    uint32_t per_chunk = a.chunk_size / PST_BLOCK, at = (uint32_t)(block % per_chunk);
    uint8_t b;
    assert_int_equal(map_get(nx_e, nx_c->info.id, &a, block / per_chunk, true, &m), 0);
    x = chunk_find(m, at);
    assert_non_null(x);
    off_t where = (off_t)((x->phys + (at - x->first)) * PST_BLOCK + block % PST_BLOCK);
    assert_int_equal(pread(nx_e->data_fd, &b, 1, where), 1);
    b ^= 4;
    assert_int_equal(pwrite(nx_e->data_fd, &b, 1, where), 1);
    assert_int_equal(fsync(nx_e->data_fd), 0);
    chunk_unref(m);
}

static int found;
static void note_damage(void *user, const char *pool, const char *cont, uint64_t ino, uint64_t offset, uint64_t length)
{
    (void)user;
    assert_string_equal(pool, "p");
    assert_string_equal(cont, "c");
    assert_int_equal(ino, *(uint64_t *)user);
    assert_int_equal(offset, 300 * PST_BLOCK);
    assert_int_equal(length, PST_BLOCK);
    found++;
}

static void damaged_blocks_are_errors_and_scrub_finds_them(void **state)
{
    uint64_t ino = dx_file("f"), errors = nx_e->data_errors;
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 2 * MiB), 2 * MiB);
    assert_int_equal(pst_store_scrub(&nx_e->st, note_damage, &ino, NULL), 0);
    damage(ino, 300);
    assert_int_equal(dx_read(ino, 0, model, 2 * MiB), -EIO);
    assert_int_equal(dx_read(ino, 300 * PST_BLOCK + 5, model, 1), -EIO);
    assert_int_equal(nx_e->data_errors, errors + 2);
    assert_int_equal(dx_read(ino, 299 * PST_BLOCK, model, PST_BLOCK), PST_BLOCK);
    assert_int_equal(dx_read(ino, 301 * PST_BLOCK, model, PST_BLOCK), PST_BLOCK);
    assert_int_equal(chunk_read(ino, 1, model, MiB, &(struct pst_op){0}), -EIO);
    assert_int_equal(dx_write(ino, 300 * PST_BLOCK + 5, bytes, 5), -EIO);
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 300 * PST_BLOCK + 5, 5, 0), -EIO);
    assert_int_equal(dx_truncate(ino, 300 * PST_BLOCK + 5), -EIO);
    assert_int_equal(nx_attr(ino).size, 2 * MiB);
    found = 0;
    assert_int_equal(pst_store_scrub(&nx_e->st, note_damage, &ino, NULL), 1);
    assert_int_equal(found, 1);
    assert_int_equal(pst_store_scrub(&nx_e->st, note_damage, &ino, &(bool){true}), 0);
    /* Written anew it is whole again. */
    assert_int_equal(dx_write(ino, 300 * PST_BLOCK, bytes + 300 * PST_BLOCK, PST_BLOCK), PST_BLOCK);
    dx_expect(ino, bytes, 2 * MiB);
    assert_int_equal(pst_store_scrub(&nx_e->st, note_damage, &ino, NULL), 0);
}

static char lines[2000];

static void note_line(void *user, const char *line)
{
    (void)user;
    strncat(lines, line, sizeof lines - strlen(lines) - 2);
    strcat(lines, "\n");
}

/* Findings of an offline check; the store is opened again after it. */
static int64_t check(bool data)
{
    struct pst_check_opts o = {.data = data, .report = note_line};
    int64_t n;
    lines[0] = 0;
    pst_queue_close(dx_q);
    nx_close();
    n = pst_local_check(fx_dir, &o, fx_err, sizeof fx_err);
    nx_open();
    assert_int_equal(pst_queue_open(&nx_e->st, 8, &dx_q), 0);
    return n;
}

static void the_offline_check_compares_data_and_records(void **state)
{
    uint64_t ino = dx_file("f"), other = dx_file("g");
    struct key k = chunk_key(nx_c->info.id, ino, 1), none = chunk_key(nx_c->info.id, 4711, 3);
    struct wbuf v = {0};
    struct txn *t;
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 2 * MiB), 2 * MiB);
    assert_int_equal(dx_write(other, 0, bytes, 100), 100);
    if (check(true))
        fail_msg("%s", lines);
    damage(ino, 300);
    assert_int_equal(check(false), 0);
    assert_int_equal(check(true), 1);
    assert_non_null(strstr(lines, "4096 bytes at offset 1228800 are damaged"));
    /* A chunk goes, and one appears where no object is. */
    assert_int_equal(idx_get(nx_e, NULL, &k, &v), 0);
    t = txn_new(nx_e);
    txn_del(t, &k);
    txn_put(t, &none, v.data, v.len);
    assert_int_equal(txn_commit(t, NULL), 0);
    assert_true(check(false) >= 2);
    assert_non_null(strstr(lines, "its chunks have 1048576 bytes of space, its record says 2097152"));
    assert_non_null(strstr(lines, "chunks of object 4711, which does not exist"));
    k = chunk_key(nx_c->info.id, other, 0);
    t = txn_new(nx_e);
    txn_del(t, &k);
    txn_del(t, &none);
    assert_int_equal(txn_commit(t, NULL), 0);
    assert_true(check(false) >= 2);
    assert_non_null(strstr(lines, "all of its chunks are missing"));
    wbuf_done(&v);
}

/* ---- the queue ---- */

static void overwrites_at_once_on_a_full_store_wait_for_one_another(void **state)
{
    uint64_t ino = dx_file("f"), big = dx_file("big"), at = 0;
    struct iovec v[8];
    struct pst_op ops[8], *done[8];
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 2 * MiB), 2 * MiB);
    for (size_t n = MiB; n >= PST_BLOCK;) {
        if (dx_write(big, at, bytes, n) == (int64_t)n)
            at += n;
        else
            n /= 2;
    }
    for (int i = 0; i < 8; i++) {
        v[i] = (struct iovec){.iov_base = bytes + 1000 + i * 256 * 1024, .iov_len = 256 * KiB};
        ops[i] = dx_op(PST_OP_WRITE, ino, (uint64_t)i * 256 * KiB, 256 * KiB);
        ops[i].iov = &v[i];
        ops[i].iovcnt = 1;
        assert_int_equal(pst_queue_submit(dx_q, &ops[i]), 0);
    }
    for (int n = 0; n < 8;)
        n += pst_queue_reap(dx_q, done, 8, UINT64_MAX);
    for (int i = 0; i < 8; i++)
        assert_int_equal(ops[i].result, 256 * KiB);
    dx_expect(ino, bytes + 1000, 2 * MiB);
}

/* The end moves while an append is under way, so that it needs one block more than it has from the reserve. */
static void an_append_on_a_full_store_does_not_wait_for_itself(void **state)
{
    uint64_t ino = dx_file("f"), big = dx_file("big"), at = 0, taken[512];
    uint32_t n = 0;
    struct iovec v = {.iov_base = bytes, .iov_len = 100};
    struct pst_op op = dx_op(PST_OP_WRITE, ino, 0, 100), *done;
    struct swap_reserve *swap = &nx_e->data->swap;
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 100), 100);
    for (size_t k = MiB; k >= PST_BLOCK;) {
        if (dx_write(big, at, bytes, k) == (int64_t)k)
            at += k;
        else
            k /= 2;
    }
    swap->want = 17;
    while (swap->n > 17 && n < ARRAY_SIZE(taken))
        assert_int_equal(swap_take_one(nx_e, &taken[n++]), 0);
    nx_e->opt.direct = CHOICE_ALWAYS; /* no I/O of the append is over at once */
    nx_e->data->try_cached = false;
    op.iov = &v;
    op.iovcnt = 1;
    op.flags = PST_OPF_APPEND;
    assert_int_equal(pst_queue_submit(dx_q, &op), 0);
    assert_int_equal(dx_truncate(ino, 4090), 0);
    assert_int_equal(pst_queue_reap(dx_q, &done, 1, 10 * NSEC_PER_SEC), 1);
    assert_int_equal(op.result, -ENOSPC);
    assert_int_equal(nx_attr(ino).size, 4090);
    while (n > 0)
        alloc_unclaim(nx_e, taken[--n], 1);
}

static void a_full_queue_says_so(void **state)
{
    uint64_t ino = dx_file("f");
    struct iovec v = {.iov_base = bytes, .iov_len = PST_BLOCK};
    struct pst_op ops[9], *done[9];
    int n = 0;
    (void)state;

    for (int i = 0; i < 9; i++) {
        ops[i] = dx_op(PST_OP_WRITE, ino, (uint64_t)i * PST_BLOCK, PST_BLOCK);
        ops[i].iov = &v;
        ops[i].iovcnt = 1;
        assert_int_equal(pst_queue_submit(dx_q, &ops[i]), i < 8 ? 0 : -EAGAIN);
    }
    while (n < 8)
        n += pst_queue_reap(dx_q, done, 3, UINT64_MAX);
    assert_int_equal(n, 8);
    assert_int_equal(pst_queue_reap(dx_q, done, 3, UINT64_MAX), 0);
    assert_int_equal(pst_queue_reap(dx_q, done, 3, 0), 0);
}

static void the_queues_descriptor_tells_when_to_reap(void **state)
{
    uint64_t ino = dx_file("f");
    struct iovec v = {.iov_base = bytes, .iov_len = 100000};
    int fd = pst_queue_fd(dx_q);
    (void)state;

    assert_true(fd >= 0);
    for (int i = 0; i < 40; i++) {
        static const enum pst_op_kind kinds[] = {PST_OP_WRITE, PST_OP_READ, PST_OP_FSYNC, PST_OP_SEEK_HOLE};
        struct pollfd p = {.fd = fd, .events = POLLIN};
        struct pst_op op = dx_op(kinds[i % 4], ino, 0, 100000), *done = NULL;
        op.iov = &v;
        op.iovcnt = 1;
        op.flags = kinds[i % 4] == PST_OP_WRITE && i % 8 == 0 ? PST_OPF_DSYNC : 0;
        assert_int_equal(pst_queue_submit(dx_q, &op), 0);
        while (pst_queue_reap(dx_q, &done, 1, 0) == 0)
            assert_int_equal(poll(&p, 1, 10000), 1);
        assert_ptr_equal(done, &op);
        assert_true(op.result >= 0);
        assert_int_equal(poll(&p, 1, 0), 0);
    }
}

static void a_queue_with_operations_under_way_can_be_closed(void **state)
{
    struct pst_queue *q;
    uint64_t ino = dx_file("f");
    struct iovec v = {.iov_base = bytes, .iov_len = MiB};
    struct pst_op ops[4];
    (void)state;

    assert_int_equal(pst_queue_open(&nx_e->st, 4, &q), 0);
    for (int i = 0; i < 4; i++) {
        ops[i] = dx_op(i == 3 ? PST_OP_FSYNC : PST_OP_WRITE, ino, (uint64_t)i * MiB, MiB);
        ops[i].iov = &v;
        ops[i].iovcnt = 1;
        ops[i].flags = i == 1 ? PST_OPF_DSYNC : 0;
        assert_int_equal(pst_queue_submit(q, &ops[i]), 0);
    }
    pst_queue_close(q);
    assert_int_equal(nx_attr(ino).size, 3 * MiB);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(what_is_written_is_read),
        T(writes_at_any_offset_keep_their_neighbours),
        T(reads_of_parts_and_past_the_end_are_cut),
        T(holes_read_as_zero_and_take_no_space),
        T(appends_tell_where_they_went),
        T(scattered_memory_is_written_and_read),
        T(only_regular_files_have_data),
        T(files_end_at_the_largest_size),
        T(durable_writes_and_fsync_complete),
        T(a_file_cut_and_grown_reads_zero_behind_the_cut),
        T(a_file_of_many_chunks_is_cut_in_steps),
        T(deleted_files_give_their_space_back),
        T(punched_ranges_read_as_zero_and_free_whole_blocks),
        T(a_punch_over_many_chunks_works_in_steps),
        T(allocated_space_reads_as_zero_and_counts),
        T(writes_into_allocated_space_work_on_a_full_store),
        T(a_full_store_keeps_what_it_has),
        T(quotas_bound_data),
        T(data_and_holes_are_found),
        T(chunks_are_replaced_on_condition_of_their_version),
        T(writes_move_a_chunks_version),
        T(a_replaced_chunk_sets_the_size),
        T(a_repeated_request_has_its_effect_once),
        T(damaged_blocks_are_errors_and_scrub_finds_them),
        cmocka_unit_test_setup_teardown(the_offline_check_compares_data_and_records, setup, dx_teardown),
        T(overwrites_at_once_on_a_full_store_wait_for_one_another),
        T(an_append_on_a_full_store_does_not_wait_for_itself),
        T(a_full_queue_says_so),
        T(the_queues_descriptor_tells_when_to_reap),
        T(a_queue_with_operations_under_way_can_be_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

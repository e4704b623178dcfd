/* The data path of the embedded engine: reads and writes, sizes, holes, and their edges. */
#include "data_bytes.h"

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

static void a_punch_keeps_what_is_reserved_behind_its_range(void **state)
{
    uint64_t ino = dx_file("f");
    (void)state;

    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 3 * MiB, PST_OPF_KEEP_SIZE), 0);
    assert_int_equal(dx_write(ino, 0, bytes, 10000), 10000);
    assert_int_equal(nx_attr(ino).used, 3 * MiB);
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 0, 10000, 0), 0); /* up to the end: with the last block */
    assert_int_equal(nx_attr(ino).used, 3 * MiB - 3 * PST_BLOCK);
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 0, 2 * MiB + 1, 0), 0); /* past the end: what it covers */
    assert_int_equal(nx_attr(ino).used, MiB);
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 10100, 50, 0), 0);
    assert_int_equal(nx_attr(ino).used, MiB);
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 0, INT64_MAX, 0), 0);
    assert_int_equal(nx_attr(ino).used, 0);
    assert_int_equal(nx_attr(ino).size, 10000);
    dx_check_space();
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

/* ---- set-id bits ---- */

static int64_t change(uint64_t ino, enum pst_op_kind kind, uint32_t flags)
{
    bool has_bytes = kind == PST_OP_WRITE || kind == PST_OP_CHUNK_REPLACE;
    struct pst_op op = dx_op(kind, ino, 0, 100);
    struct iovec v = {.iov_base = bytes, .iov_len = 100};

    op.iov = &v;
    op.iovcnt = has_bytes;
    op.flags = flags;
    op.version = PST_VERSION_ANY;
    return pst_queue_run(dx_q, &op);
}

static void a_change_takes_set_id_bits_away_if_it_says_so(void **state)
{
    static const enum pst_op_kind kinds[] = {PST_OP_WRITE, PST_OP_PUNCH, PST_OP_ALLOCATE, PST_OP_CHUNK_REPLACE};
    static const struct {
        uint32_t is, becomes;
    } modes[] = {{06755, 0755}, {04711, 0711}, {02770, 0770}, {06744, 02744}, {01644, 01644}};
    uint64_t ino = dx_file("f");
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 200), 200);
    for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
        for (size_t m = 0; m < ARRAY_SIZE(modes); m++) {
            assert_int_equal(nx_chmod(NULL, ino, modes[m].is), 0);
            assert_true(change(ino, kinds[k], 0) >= 0);
            assert_int_equal(nx_attr(ino).mode & 07777, modes[m].is);
            assert_true(change(ino, kinds[k], PST_OPF_KILL_SETID) >= 0);
            assert_int_equal(nx_attr(ino).mode & 07777, modes[m].becomes);
        }
    }
    /* What fails changes nothing. */
    assert_int_equal(nx_chmod(NULL, ino, 06755), 0);
    struct pst_op op = dx_op(PST_OP_CHUNK_REPLACE, ino, 0, 0);
    op.flags = PST_OPF_KILL_SETID;
    op.version = 12345;
    assert_int_equal(pst_queue_run(dx_q, &op), -ESTALE);
    assert_int_equal(nx_attr(ino).mode & 07777, 06755);
    assert_int_equal(change(ino, PST_OP_WRITE, PST_OPF_KILL_SETID), 100);
    dx_reopen();
    assert_int_equal(nx_attr(ino).mode & 07777, 0755);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(a_change_takes_set_id_bits_away_if_it_says_so),
        DATA_TEST(what_is_written_is_read),
        DATA_TEST(writes_at_any_offset_keep_their_neighbours),
        DATA_TEST(reads_of_parts_and_past_the_end_are_cut),
        DATA_TEST(holes_read_as_zero_and_take_no_space),
        DATA_TEST(appends_tell_where_they_went),
        DATA_TEST(scattered_memory_is_written_and_read),
        DATA_TEST(only_regular_files_have_data),
        DATA_TEST(files_end_at_the_largest_size),
        DATA_TEST(durable_writes_and_fsync_complete),
        DATA_TEST(a_file_cut_and_grown_reads_zero_behind_the_cut),
        DATA_TEST(a_file_of_many_chunks_is_cut_in_steps),
        DATA_TEST(deleted_files_give_their_space_back),
        DATA_TEST(punched_ranges_read_as_zero_and_free_whole_blocks),
        DATA_TEST(a_punch_over_many_chunks_works_in_steps),
        DATA_TEST(a_punch_keeps_what_is_reserved_behind_its_range),
        DATA_TEST(allocated_space_reads_as_zero_and_counts),
        DATA_TEST(data_and_holes_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

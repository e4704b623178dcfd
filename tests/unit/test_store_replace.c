/* Chunks that are replaced on condition of their version, and requests that come again. */
#include "data_bytes.h"

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
    assert_int_equal(replace(ino, 0, bytes, 5000, 0, PST_OPF_GROW, 5000, "meta", &v), 5000);
    assert_true(v > 0);
    assert_int_equal(nx_attr(ino).size, 5000);
    assert_int_equal(chunk_read(ino, 0, got, sizeof got, &op), 5000);
    assert_int_equal(op.version, v);
    assert_int_equal(op.meta_len, 4);
    assert_memory_equal(op.meta, "meta", 4);
    assert_memory_equal(got, bytes, 5000);
    assert_int_equal(replace(ino, 0, bytes + 1, 100, 0, 0, 0, "x", &w), -ESTALE);
    assert_int_equal(w, v);
    assert_int_equal(replace(ino, 0, bytes + 1, 1048576, v, PST_OPF_GROW, 1048576, "other meta", &w), 1048576);
    assert_true(w > v);
    dx_reopen();
    assert_int_equal(chunk_read(ino, 0, got, sizeof got, &op), 1048576);
    assert_int_equal(op.version, w);
    assert_memory_equal(op.meta, "other meta", 10);
    assert_memory_equal(got, bytes + 1, 1048576);
    /* In a filter's form: its bytes are not those of the file. */
    assert_int_equal(dx_read(ino, 5, got, 10), -ENOTSUP);
    assert_int_equal(dx_write(ino, 5, got, 10), -ENOTSUP);
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 5, 10, 0), -ENOTSUP);
    assert_int_equal(dx_truncate(ino, 1000), -ENOTSUP);
    assert_int_equal(nx_attr(ino).size, 1048576);
    /* A short buffer gets a part; the answer is the whole. */
    memset(got, 0, sizeof got);
    assert_int_equal(chunk_read(ino, 0, got, 10, &op), 1048576);
    assert_memory_equal(got, bytes + 1, 10);
    assert_int_equal(got[10], 0);
    assert_int_equal(replace(ino, 0, bytes, 10, PST_VERSION_ANY, 0, 0, "", &v), 10);
    assert_int_equal(nx_attr(ino).used, PST_BLOCK);
}

/* For appends: the version is the object's change counter, which moves with everything. */
static void a_chunk_is_replaced_on_condition_that_nothing_of_the_object_changed(void **state)
{
    uint64_t ino = dx_file("f"), v;
    struct pst_op op;
    uint8_t got[10];
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 50), 50);
    assert_int_equal(chunk_read(ino, 0, got, 0, &op), 50);
    assert_int_equal(op.attr.size, 50);
    assert_int_equal(dx_write(ino, 3 * MiB, bytes, 50), 50); /* another chunk, and the end */
    assert_int_equal(replace(ino, 0, bytes, 60, op.attr.change, PST_OPF_IF_UNCHANGED, 0, "", &v), -ESTALE);
    assert_int_equal(v, nx_attr(ino).change);
    assert_int_equal(replace(ino, 0, bytes, 60, v, PST_OPF_IF_UNCHANGED, 0, "", &v), 60);
    assert_int_equal(v, nx_attr(ino).change);
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

/* What a file gets when it grows is zero: no replaced chunk leaves other bytes behind the end. */
static void a_replaced_chunk_has_no_bytes_past_the_end(void **state)
{
    uint64_t ino = dx_file("f"), v;
    static uint8_t want[2 * 1048576];
    (void)state;

    assert_int_equal(replace(ino, 0, bytes, 5000, 0, 0, 0, "", &v), -EINVAL);
    assert_int_equal(replace(ino, 1, bytes, 1, 0, PST_OPF_GROW, MiB, "", &v), -EINVAL);
    assert_int_equal(dx_write(ino, 0, bytes, 100), 100);
    assert_int_equal(replace(ino, 0, bytes, 5000, PST_VERSION_ANY, 0, 0, "", &v), -EINVAL);
    assert_int_equal(replace(ino, 0, bytes, 5000, PST_VERSION_ANY, PST_OPF_GROW, 4999, "", &v), -EINVAL);
    assert_int_equal(replace(ino, 0, bytes, 5000, PST_VERSION_ANY, PST_OPF_SET_SIZE, 4999, "", &v), -EINVAL);
    assert_int_equal(nx_attr(ino).size, 100);
    assert_int_equal(nx_attr(ino).used, PST_BLOCK);
    assert_int_equal(replace(ino, 0, bytes, 5000, PST_VERSION_ANY, PST_OPF_GROW, 6000, "", &v), 5000);
    assert_int_equal(dx_truncate(ino, 2 * MiB), 0);
    memcpy(want, bytes, 5000);
    dx_expect(ino, want, sizeof want);
}

static void a_replaced_chunk_sets_the_size(void **state)
{
    uint64_t ino = dx_file("f"), v;
    (void)state;

    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(replace(ino, i, bytes + i, 4096, 0, PST_OPF_GROW, i * MiB + 4096, "m", &v), 4096);
    assert_int_equal(nx_attr(ino).size, 99 * MiB + 4096);
    assert_int_equal(replace(ino, 3, bytes, 100, PST_VERSION_ANY, PST_OPF_SET_SIZE, 2 * MiB, "m", &v), -EINVAL);
    assert_int_equal(replace(ino, 3, bytes, 100, PST_VERSION_ANY, PST_OPF_SET_SIZE, 3 * MiB + 50, "m", &v), -EINVAL);
    assert_int_equal(replace(ino, 3, bytes, 100, PST_VERSION_ANY, PST_OPF_SET_SIZE, 3 * MiB + 150, "m", &v), 100);
    assert_int_equal(nx_attr(ino).size, 3 * MiB + 150);
    assert_int_equal(nx_attr(ino).used, 4 * PST_BLOCK);
    assert_int_equal(replace(ino, 0, bytes, MiB + 1, PST_VERSION_ANY, 0, 0, "m", &v), -EINVAL);
    assert_int_equal(replace(ino, 9, bytes, 0, PST_VERSION_ANY, 0, 0, "m", &v), -EINVAL);
    assert_int_equal(replace(ino, 2, bytes, 0, PST_VERSION_ANY, 0, 0, "m", &v), 0);
    assert_true(v > 0);
    assert_int_equal(replace(ino, 2, bytes, 0, v, 0, 0, "", &v), 0);
    assert_int_equal(v, 0);
}

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
    op = dx_op(PST_OP_CHUNK_REPLACE, ino, 0, 5000); /* the file has 10000 bytes */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(chunks_are_replaced_on_condition_of_their_version),
        DATA_TEST(a_chunk_is_replaced_on_condition_that_nothing_of_the_object_changed),
        DATA_TEST(writes_move_a_chunks_version),
        DATA_TEST(a_replaced_chunk_sets_the_size),
        DATA_TEST(a_replaced_chunk_has_no_bytes_past_the_end),
        DATA_TEST(a_repeated_request_has_its_effect_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

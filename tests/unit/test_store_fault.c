/* The data path on a disk that fails some requests: the operation fails, nothing else changes, nothing leaks. */
#include "data_fixture.h"

#include "queue.h"

#define FILE_BYTES (1024 * 1024)

/* An I/O table over the real one: fails what `every` says. */
static const struct io_ops *real;
static struct {
    int read_every, write_every, error; /* 0: none fail */
    int reads, writes;
} fault;

static int submit(struct io *io, struct io_req *r, bool more)
{
    int *n = r->kind == IO_READ ? &fault.reads : &fault.writes;
    int every = r->kind == IO_READ ? fault.read_every : fault.write_every;
    if (every && ++*n % every == 0)
        return fault.error;
    return real->submit(io, r, more);
}

static struct io_ops faulty;

static int setup(void **state)
{
    if (dx_setup(state))
        return -1;
    pst_queue_close(dx_q);
    memset(&fault, 0, sizeof fault);
    fault.error = -EIO;
    real = nx_e->io_ops;
    faulty = *real;
    nx_e->opt.direct = CHOICE_ALWAYS; /* no request goes by the page cache, past the table */
    nx_e->data->try_cached = false;
    if (pst_queue_open(&nx_e->st, 8, &dx_q))
        return -1;
    /* The context stays the real one's; only submit goes by us. */
    faulty.submit = submit;
    container_of(dx_q, struct queue, pub)->io->ops = &faulty;
    return 0;
}

static int teardown(void **state)
{
    memset(&fault, 0, sizeof fault);
    dx_check_space();
    return dx_teardown(state);
}

static uint8_t bytes[FILE_BYTES], model[FILE_BYTES];

static void a_failed_write_changes_nothing(void **state)
{
    uint64_t ino = dx_file("f"), change;
    struct iovec v = {bytes, 100};
    struct pst_op replace = dx_op(PST_OP_CHUNK_REPLACE, ino, 0, 100);
    (void)state;

    dx_fill(bytes, sizeof bytes, 1);
    dx_fill(model, sizeof model, 2);
    assert_int_equal(dx_write(ino, 0, model, FILE_BYTES), FILE_BYTES);
    change = nx_attr(ino).change;
    fault.write_every = 1;
    assert_int_equal(dx_write(ino, 5000, bytes, 300000), -EIO);
    assert_int_equal(dx_write(ino, FILE_BYTES, bytes, 3), -EIO);
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 100, 50, 0), -EIO);
    replace.iov = &v;
    replace.iovcnt = 1;
    replace.version = PST_VERSION_ANY;
    assert_int_equal(pst_queue_run(dx_q, &replace), -EIO);
    fault.error = -ENOSPC; /* a file system without preallocation may say so late */
    assert_int_equal(dx_write(ino, 5000, bytes, 300000), -ENOSPC);
    fault.write_every = 0;
    fault.read_every = 1;
    fault.error = -EIO;
    assert_int_equal(dx_write(ino, 5000, bytes, 300000), -EIO); /* the edges are read */
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 100, 50, 0), -EIO);
    assert_int_equal(dx_read(ino, 0, bytes, 10), -EIO);
    fault.read_every = 0;
    assert_int_equal(nx_attr(ino).change, change);
    dx_expect(ino, model, FILE_BYTES);
}

static void random_failures_leave_whole_operations(void **state)
{
    uint64_t ino = dx_file("f");
    struct rng r;
    int failed = 0;
    (void)state;

    rng_seed(&r, 5);
    memset(model, 0, sizeof model);
    assert_int_equal(dx_truncate(ino, FILE_BYTES), 0);
    fault.write_every = 7;
    fault.read_every = 11;
    for (int i = 0; i < 300; i++) {
        uint64_t o = rng_below(&r, FILE_BYTES), n = rng_below(&r, min_u64(FILE_BYTES - o, 100000)) + 1;
        bool punch = rng_below(&r, 4) == 0;
        int64_t got;
        dx_fill(bytes, n, (uint64_t)i);
        got = punch ? dx_range(PST_OP_PUNCH, ino, o, n, 0) : dx_write(ino, o, bytes, n);
        if (got < 0) {
            assert_int_equal(got, -EIO);
            failed++;
        } else if (punch) {
            memset(model + o, 0, n);
        } else {
            memcpy(model + o, bytes, n);
        }
    }
    assert_true(failed > 10);
    fault.write_every = fault.read_every = 0;
    dx_expect(ino, model, FILE_BYTES);
}

static void a_store_that_failed_refuses_changes_and_still_reads(void **state)
{
    uint64_t ino = dx_file("f");
    (void)state;

    assert_int_equal(dx_write(ino, 0, model, 10000), 10000);
    sync_fail(nx_e, "test", -EIO);
    assert_int_equal(dx_write(ino, 0, bytes, 10), -EIO);
    assert_int_equal(dx_range(PST_OP_PUNCH, ino, 0, 10, 0), -EIO);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 10, 0), -EIO);
    assert_int_equal(dx_range(PST_OP_FSYNC, ino, 0, 0, 0), -EIO);
    dx_expect(ino, model, 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_failed_write_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(random_failures_leave_whole_operations, setup, teardown),
        cmocka_unit_test_setup_teardown(a_store_that_failed_refuses_changes_and_still_reads, setup, dx_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What the chunk filters promise besides a file's bytes: retries, holes, sizes, rights, how they stack, cancelling. */
#include "filter_fixture.h"

static uint8_t data[4 * FF_CHUNK], got[4 * FF_CHUNK];

/* ---- requests that come again ---- */

static struct pst_op again(enum pst_op_kind kind, uint32_t flags, uint64_t ino, uint64_t offset, size_t n, uint64_t seq)
{
    return (struct pst_op){.kind = kind,
                           .flags = flags,
                           .ino = ino,
                           .offset = offset,
                           .length = n,
                           .ctx.id = {.client = "client", .slot = 1, .seq = seq}};
}

static void a_repeated_request_has_its_effect_once(void **state)
{
    static const size_t lengths[] = {100, 2 * FF_CHUNK + 50}; /* one chunk, and several */
    struct inst x, y;
    uint64_t ino, seq = 0, size = 3 * FF_CHUNK;
    (void)state;

    ff_open(&x, "compress crypt:" FF_KEY);
    ff_open(&y, "compress crypt:" FF_KEY);
    ino = ff_file(&x, "f");
    for (size_t i = 0; i < 2; i++) {
        size_t n = lengths[i];
        struct pst_op w, a, p;
        ff_random(data, sizeof data, 8);
        w = again(PST_OP_WRITE, 0, ino, 10, n, ++seq);
        assert_int_equal(ff_op(&x, NULL, &w, data), n);
        /* Another one writes over it, then the request comes once more, also by another instance. */
        memset(got, 'z', n);
        assert_int_equal(ff_write(&y, ino, 10, got, n), n);
        for (int k = 0; k < 2; k++) {
            w = again(PST_OP_WRITE, 0, ino, 10, n, seq);
            assert_int_equal(ff_op(k ? &x : &y, NULL, &w, data), n);
            assert_int_equal(ff_read(&x, ino, 10, data + 2 * FF_CHUNK + 100, 100), 100);
            for (int c = 0; c < 100; c++)
                assert_int_equal(data[2 * FF_CHUNK + 100 + c], 'z');
        }
        /* Older than the newest of its slot. */
        w = again(PST_OP_WRITE, 0, ino, 10, n, seq);
        ++seq;
        a = again(PST_OP_WRITE, PST_OPF_APPEND, ino, 0, n, seq);
        assert_int_equal(ff_truncate(&x, ino, size), 0);
        assert_int_equal(ff_op(&x, NULL, &a, data), n);
        assert_int_equal(a.offset, size);
        assert_int_equal(ff_op(&x, NULL, &w, data), -ESTALE);
        a = again(PST_OP_WRITE, PST_OPF_APPEND, ino, 0, n, seq);
        assert_int_equal(ff_op(&y, NULL, &a, data), n);
        assert_int_equal(a.offset, size);
        assert_int_equal(ff_attr(&x, ino).size, size + n);
        assert_int_equal(ff_read(&x, ino, size, got, n), n);
        ff_random(data, sizeof data, 8);
        assert_memory_equal(got, data, 100);
        /* And a punch. */
        p = again(PST_OP_PUNCH, 0, ino, 10, n, ++seq);
        assert_int_equal(ff_op(&x, NULL, &p, NULL), 0);
        assert_int_equal(ff_write(&x, ino, 10, data, n), n);
        p = again(PST_OP_PUNCH, 0, ino, 10, n, seq);
        assert_int_equal(ff_op(&y, NULL, &p, NULL), 0);
        assert_int_equal(ff_read(&y, ino, 10, got, n), n);
        assert_memory_equal(got, data, n);
    }
    ff_close(&x);
    ff_close(&y);
}

/* After a repeated append the chunk in memory must not be taken for the one in the store. */
static void a_repeated_append_leaves_no_wrong_chunk_in_memory(void **state)
{
    struct inst x;
    struct pst_op a;
    uint64_t ino;
    (void)state;

    ff_open(&x, "csum");
    ino = ff_file(&x, "f");
    for (int i = 0; i < 2; i++) {
        a = again(PST_OP_WRITE, PST_OPF_APPEND, ino, 0, 5, 1);
        assert_int_equal(ff_op(&x, NULL, &a, (char[]){"12345"}), 5);
    }
    assert_int_equal(ff_truncate(&x, ino, 20), 0);
    memset(data, 0, 20);
    memcpy(data, "12345", 5);
    assert_int_equal(ff_read(&x, ino, 0, got, 100), 20);
    assert_memory_equal(got, data, 20);
    assert_int_equal(ff_write(&x, ino, 10, "x", 1), 1);
    data[10] = 'x';
    assert_int_equal(ff_read(&x, ino, 0, got, 100), 20);
    assert_memory_equal(got, data, 20);
    ff_close(&x);
}

/* ---- holes, sizes, rights ---- */

static void holes_stay_holes_and_short_chunks_take_less(void **state)
{
    struct inst x;
    uint64_t ino, used;
    (void)state;

    ff_open(&x, "compress crypt:" FF_KEY);
    ino = ff_file(&x, "f");
    assert_int_equal(ff_write(&x, ino, 100 * MiB, "x", 1), 1);
    assert_int_equal(ff_attr(&x, ino).size, 100 * MiB + 1);
    assert_int_equal(ff_attr(&x, ino).used, PST_BLOCK);
    assert_int_equal(ff_range(&x, PST_OP_SEEK_DATA, ino, 0, 0), 100 * MiB);
    assert_int_equal(ff_range(&x, PST_OP_SEEK_HOLE, ino, 0, 0), 0);
    assert_int_equal(ff_range(&x, PST_OP_SEEK_HOLE, ino, 100 * MiB, 0), 100 * MiB + 1);
    assert_int_equal(ff_read(&x, ino, 50 * MiB, got, 1000), 1000);
    memset(data, 'a', sizeof data);
    assert_int_equal(ff_write(&x, ino, 0, data, sizeof data), sizeof data);
    used = ff_attr(&x, ino).used;
    assert_true(used <= 5 * PST_BLOCK);
    assert_true(ff_stat(&x, "filter_compression_ratio", "filter=\"compress\"") > 10);
    assert_int_equal(ff_range(&x, PST_OP_PUNCH, ino, 0, 200 * MiB), 0);
    assert_int_equal(ff_attr(&x, ino).used, 0);
    assert_int_equal(ff_attr(&x, ino).size, 100 * MiB + 1);
    ff_random(data, sizeof data, 9);
    assert_int_equal(ff_write(&x, ino, 0, data, sizeof data), sizeof data);
    assert_int_equal(ff_attr(&x, ino).used, sizeof data); /* as it is: not a byte more */
    assert_true(ff_stat(&x, "filter_raw_chunks_total", "filter=\"compress\"") >= 4);
    ff_close(&x);
}

static void a_size_is_set_by_whom_may_write(void **state)
{
    static const struct pst_cred alice = {.uid = 1000, .gid = 1000}, eve = {.uid = 1002, .gid = 1002};
    struct pst_ctx by_alice = {.cred = &alice}, by_eve = {.cred = &eve};
    struct pst_new in = {.mode = S_IFREG | S_ISUID | 0755};
    struct pst_attr a, want = {.size = 1234, .mtime_ns = 77}, out;
    struct inst x;
    (void)state;

    ff_open(&x, "crypt:" FF_KEY);
    assert_int_equal(pst_store_make(x.c, &by_alice, PST_ROOT_INO, "f", &in, &a, NULL), 0);
    ff_random(data, sizeof data, 10);
    assert_int_equal(ff_write(&x, a.ino, 0, data, 5000), 5000);
    assert_int_equal(pst_store_setattr(x.c, &by_eve, a.ino, PST_SET_SIZE, &want, &out), -EACCES);
    assert_int_equal(ff_attr(&x, a.ino).size, 5000);
    assert_int_equal(pst_store_setattr(x.c, &by_alice, a.ino, PST_SET_SIZE | PST_SET_MTIME, &want, &out), 0);
    assert_int_equal(out.size, 1234);
    assert_int_equal(out.mtime_ns, 77);
    assert_int_equal(pst_store_setattr(x.c, &by_alice, PST_ROOT_INO, PST_SET_SIZE, &want, &out), -EISDIR);
    assert_int_equal(ff_read(&x, a.ino, 0, got, 5000), 1234);
    assert_memory_equal(got, data, 1234);
    ff_close(&x);
}

static void who_empties_a_file_takes_its_set_id_bits_away(void **state)
{
    static const struct pst_cred eve = {.uid = 1002, .gid = 1002}, root = {0};
    struct pst_ctx by_eve = {.cred = &eve}, by_root = {.cred = &root}, trusted = {0};
    struct pst_new in = {.mode = S_IFREG | 0777};
    struct pst_attr a, out, mode = {.mode = 06777};
    struct inst x;
    (void)state;

    ff_open(&x, "compress crypt:" FF_KEY);
    assert_int_equal(pst_store_make(x.c, &trusted, PST_ROOT_INO, "f", &in, &a, NULL), 0);
    assert_int_equal(pst_store_setattr(x.c, &trusted, a.ino, PST_SET_MODE, &mode, &out), 0);
    assert_int_equal(pst_store_open(x.c, &by_root, a.ino, W_OK, true, &out), 0);
    assert_int_equal(out.mode & 07777, 06777);
    assert_int_equal(pst_store_open(x.c, &by_eve, a.ino, W_OK, true, &out), 0);
    assert_int_equal(out.mode & 07777, 0777);
    pst_store_release(x.c, a.ino);
    pst_store_release(x.c, a.ino);
    ff_close(&x);
}

/* In one step: nothing else of the object is asked for. */
static void who_cuts_a_file_takes_its_set_id_bits_away(void **state)
{
    static const struct pst_cred eve = {.uid = 1002, .gid = 1002}, root = {0};
    static const struct pst_attr mode = {.mode = 06777}, size = {.size = 1234}, less = {.size = 123};
    struct pst_ctx by_eve = {.cred = &eve}, by_root = {.cred = &root}, trusted = {0};
    struct pst_attr out;
    struct inst x;
    uint64_t ino;
    (void)state;

    ff_open(&x, "compress crypt:" FF_KEY);
    ino = ff_file(&x, "f");
    assert_int_equal(ff_write(&x, ino, 0, data, FF_CHUNK), FF_CHUNK);
    assert_int_equal(pst_store_setattr(x.c, &trusted, ino, PST_SET_MODE, &mode, &out), 0);
    ff_close(&x);
    ff_open(&x, "error:errno=EIO,op=setattr compress crypt:" FF_KEY);
    assert_int_equal(pst_store_setattr(x.c, &by_root, ino, PST_SET_SIZE, &size, &out), 0);
    assert_int_equal(out.mode & 07777, 06777);
    assert_int_equal(pst_store_setattr(x.c, &by_eve, ino, PST_SET_SIZE, &less, &out), 0);
    assert_int_equal(out.mode & 07777, 0777);
    ff_close(&x);
    ff_open(&x, "compress crypt:" FF_KEY);
    assert_int_equal(pst_store_setattr(x.c, &trusted, ino, PST_SET_MODE, &mode, &out), 0);
    ff_close(&x);
    ff_open(&x, "error:errno=EIO,op=setattr compress crypt:" FF_KEY);
    assert_int_equal(pst_store_setattr(x.c, &trusted, ino, PST_SET_SIZE | PST_SET_NO_SETID, &size, &out), 0);
    assert_int_equal(out.mode & 07777, 0777);
    ff_close(&x);
}

static void a_change_takes_set_id_bits_away_if_it_says_so(void **state)
{
    static const struct pst_attr mode = {.mode = 06777};
    static const struct {
        enum pst_op_kind kind;
        uint32_t flags;
        uint64_t length;
    } changes[] = {{PST_OP_WRITE, 0, 100},
                   {PST_OP_WRITE, PST_OPF_APPEND, 100},
                   {PST_OP_PUNCH, 0, 100},
                   {PST_OP_PUNCH, 0, 2 * FF_CHUNK},
                   {PST_OP_ALLOCATE, 0, 5 * FF_CHUNK},
                   {PST_OP_ALLOCATE, PST_OPF_KEEP_SIZE, 9 * FF_CHUNK}};
    struct pst_ctx trusted = {0};
    struct pst_attr out;
    struct inst x;
    uint64_t ino;
    (void)state;

    ff_open(&x, "compress crypt:" FF_KEY);
    ino = ff_file(&x, "f");
    assert_int_equal(ff_write(&x, ino, 0, data, 3 * FF_CHUNK), 3 * FF_CHUNK);
    for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
        assert_int_equal(pst_store_setattr(x.c, &trusted, ino, PST_SET_MODE, &mode, &out), 0);
        for (uint32_t kill = 0; kill <= PST_OPF_KILL_SETID; kill += PST_OPF_KILL_SETID) {
            struct pst_op op = {.kind = changes[i].kind,
                                .flags = changes[i].flags | kill,
                                .ino = ino,
                                .length = changes[i].length};
            assert_true(ff_op(&x, NULL, &op, data) >= 0);
            assert_int_equal(ff_attr(&x, ino).mode & 07777, kill ? 0777 : 06777);
        }
    }
    ff_close(&x);
}

static void operations_on_what_is_no_file_say_so(void **state)
{
    struct inst x;
    uint64_t gone = 12345;
    (void)state;

    ff_open(&x, "csum compress crypt:" FF_KEY);
    assert_int_equal(ff_read(&x, PST_ROOT_INO, 0, got, 10), -EISDIR);
    assert_int_equal(ff_write(&x, PST_ROOT_INO, 0, data, 10), -EISDIR);
    assert_int_equal(ff_read(&x, gone, 0, got, 10), -ENOENT);
    assert_int_equal(ff_write(&x, gone, 0, data, 10), -ENOENT);
    assert_int_equal(ff_range(&x, PST_OP_PUNCH, gone, 0, 10), -ENOENT);
    assert_int_equal(ff_range(&x, PST_OP_PUNCH, gone, 0, 10 * FF_CHUNK), -ENOENT);
    assert_int_equal(ff_range(&x, PST_OP_ALLOCATE, gone, 0, 10), -ENOENT);
    assert_int_equal(ff_range(&x, PST_OP_SEEK_DATA, gone, 0, 0), -ENOENT);
    assert_int_equal(ff_range(&x, PST_OP_CHUNK_READ, gone, 0, 0), -EOPNOTSUPP);
    assert_int_equal(ff_range(&x, PST_OP_SYNCFS, PST_ROOT_INO, 0, 0), 0);
    ff_close(&x);
}

/* ---- stacking ---- */

static void the_stages_are_one_filter_in_any_order_and_with_nothing_between(void **state)
{
    struct inst x, y;
    uint64_t ino;
    (void)state;

    ff_open(&x, "delay:ms=1,op=fsync csum crypt:" FF_KEY " compress error:errno=EIO,op=fsync");
    ff_open(&y, "compress crypt:" FF_KEY " csum");
    ino = ff_file(&x, "f");
    ff_random(data, sizeof data, 11);
    assert_int_equal(ff_write(&x, ino, 0, data, 1000), 1000);
    assert_int_equal(ff_read(&y, ino, 0, got, 1000), 1000);
    assert_memory_equal(got, data, 1000);
    assert_int_equal(ff_range(&x, PST_OP_FSYNC, ino, 0, 0), -EIO);
    ff_close(&x);
    ff_close(&y);
    assert_int_equal(ff_try(&x, "csum delay:ms=1,op=fsync compress"), -EINVAL);
    assert_int_equal(ff_try(&x, "csum csum"), -EINVAL);
    assert_int_equal(ff_try(&x, "crypt"), -EINVAL);
    assert_int_equal(ff_try(&x, "compress:alg=gzip"), -EINVAL);
    assert_int_equal(ff_try(&x, "compress:level=99"), -EINVAL);
    assert_int_equal(ff_try(&x, "csum:level=1"), -EINVAL);
    assert_int_equal(ff_try(&x, "csum crypt:key_env=PST_TEST_NO_SUCH"), -EINVAL);
}

/* A failure below is told, and what is in memory is not taken for what is stored. */
static void a_failed_replacement_leaves_the_old_bytes(void **state)
{
    struct inst x;
    uint64_t ino;
    (void)state;

    ff_open(&x, "error:errno=ENOSPC,op=chunk_replace,skip=1,count=1 csum");
    ino = ff_file(&x, "f");
    assert_int_equal(ff_write(&x, ino, 0, "old bytes", 9), 9);
    assert_int_equal(ff_write(&x, ino, 0, "new", 3), -ENOSPC);
    assert_int_equal(ff_read(&x, ino, 0, got, 9), 9);
    assert_memory_equal(got, "old bytes", 9);
    assert_int_equal(ff_write(&x, ino, 0, "new", 3), 3);
    assert_int_equal(ff_read(&x, ino, 0, got, 9), 9);
    assert_memory_equal(got, "new bytes", 9);
    ff_close(&x);
}

/* Also while it waits for a chunk that another one is at work on. */
static void a_cancelled_operation_comes_back_soon(void **state)
{
    struct iovec v[2] = {{data, 100}, {got, 100}};
    struct pst_op op[2], *done[2];
    struct inst x;
    uint64_t ino, start = now_ns();
    (void)state;

    ff_open(&x, "delay:op=chunk_read,ms=60000,skip=0 csum");
    ino = ff_file(&x, "f");
    for (int i = 0; i < 2; i++) {
        op[i] = (struct pst_op){.kind = i ? PST_OP_READ : PST_OP_WRITE,
                                .cont = x.c,
                                .ino = ino,
                                .offset = 5,
                                .length = 100,
                                .iov = &v[i],
                                .iovcnt = 1};
        assert_int_equal(pst_queue_submit(x.q, &op[i]), 0);
    }
    assert_int_equal(pst_queue_reap(x.q, done, 2, 0), 0);
    for (int i = 1; i >= 0; i--)
        pst_queue_cancel(x.q, &op[i]);
    for (int n = 0; n < 2;)
        n += pst_queue_reap(x.q, done, 2, UINT64_MAX);
    for (int i = 0; i < 2; i++)
        assert_int_equal(op[i].result, -ECANCELED);
    assert_true(now_ns() - start < 60 * NSEC_PER_SEC);
    ff_close(&x);
}

#define CASE(t) cmocka_unit_test_setup_teardown(t, ff_setup, ff_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_repeated_request_has_its_effect_once),
        CASE(a_repeated_append_leaves_no_wrong_chunk_in_memory),
        CASE(holes_stay_holes_and_short_chunks_take_less),
        CASE(a_size_is_set_by_whom_may_write),
        CASE(who_empties_a_file_takes_its_set_id_bits_away),
        CASE(who_cuts_a_file_takes_its_set_id_bits_away),
        CASE(a_change_takes_set_id_bits_away_if_it_says_so),
        CASE(operations_on_what_is_no_file_say_so),
        CASE(the_stages_are_one_filter_in_any_order_and_with_nothing_between),
        CASE(a_failed_replacement_leaves_the_old_bytes),
        CASE(a_cancelled_operation_comes_back_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What the chunk filters promise besides a file's bytes: keys, damage, older states, holes, retries, how they stack. */
#include "filter_fixture.h"

static uint8_t data[4 * FF_CHUNK], got[4 * FF_CHUNK];

static void fill(uint64_t seed)
{
    struct rng r;

    rng_seed(&r, seed);
    rng_fill(&r, data, sizeof data);
}

/* ---- the store below, as a thief or a liar sees it ---- */

struct raw {
    struct pst_op op;
    uint8_t bytes[FF_CHUNK];
};

static struct pst_cont *below;
static struct pst_queue *below_q;

static void look_below(void)
{
    assert_int_equal(pst_cont_open(ff_base, &ff_ctx, "p", ff_label, &below), 0);
    assert_int_equal(pst_queue_open(ff_base, 4, &below_q), 0);
}

static void look_away(void)
{
    pst_queue_close(below_q);
    pst_cont_close(below);
}

static void steal(uint64_t ino, uint64_t chunk, struct raw *ret)
{
    struct iovec v = {ret->bytes, sizeof ret->bytes};

    ret->op = (struct pst_op){.kind = PST_OP_CHUNK_READ,
                              .cont = below,
                              .ino = ino,
                              .offset = chunk,
                              .iov = &v,
                              .iovcnt = 1,
                              .length = sizeof ret->bytes};
    assert_true(pst_queue_run(below_q, &ret->op) >= 0);
}

static void plant(uint64_t ino, uint64_t chunk, const struct raw *x)
{
    struct iovec v = {(void *)(uintptr_t)x->bytes, (size_t)x->op.result};
    struct pst_op op = {.kind = PST_OP_CHUNK_REPLACE,
                        .cont = below,
                        .ino = ino,
                        .offset = chunk,
                        .iov = &v,
                        .iovcnt = 1,
                        .length = (uint64_t)x->op.result,
                        .version = PST_VERSION_ANY,
                        .meta_len = x->op.meta_len};
    memcpy(op.meta, x->op.meta, x->op.meta_len);
    assert_int_equal(pst_queue_run(below_q, &op), x->op.result);
}

static void what_is_stored_has_no_plain_text(void **state)
{
    static struct raw r;
    struct inst x;
    uint64_t ino;
    (void)state;

    ff_open(&x, "crypt:" FF_KEY);
    look_below();
    ino = ff_file(&x, "f");
    memset(data, 'a', sizeof data);
    assert_int_equal(ff_write(&x, ino, 0, data, sizeof data), sizeof data);
    for (uint64_t k = 0; k < 4; k++) {
        steal(ino, k, &r);
        assert_int_equal(r.op.result, FF_CHUNK);
        assert_null(memmem(r.bytes, FF_CHUNK, "aaaa", 4));
    }
    look_away();
    ff_close(&x);
}

static void another_key_or_none_is_refused_at_the_door(void **state)
{
    struct inst x, y;
    uint64_t ino;
    (void)state;

    ff_open(&x, "crypt:" FF_KEY);
    ino = ff_file(&x, "f");
    fill(1);
    assert_int_equal(ff_write(&x, ino, 0, data, 1000), 1000);
    assert_int_equal(ff_try(&y, "crypt:key_env=PST_TEST_KEY2"), -EKEYREJECTED);
    assert_int_equal(ff_refused(&y, "key"), 1);
    pst_store_close(y.top);
    assert_int_equal(ff_try(&y, "compress csum"), -ENOKEY);
    pst_store_close(y.top);
    ff_open(&y,
            ""); /* without any filter nothing is at the door, but nobody takes what is stored for the file's bytes */
    assert_int_equal(ff_read(&y, ino, 0, got, 10), -ENOTSUP);
    assert_int_equal(ff_write(&y, ino, 0, data, 10), -ENOTSUP);
    assert_int_equal(ff_truncate(&y, ino, 10), -ENOTSUP);
    ff_close(&y);
    assert_int_equal(ff_read(&x, ino, 0, got, 1000), 1000);
    assert_memory_equal(got, data, 1000);
    assert_int_equal(ff_try(&y, "crypt:key_env=PST_TEST_KEY2,old_" FF_KEY), 0);
    pst_cont_close(y.c);
    pst_store_close(y.top);
    ff_close(&x);
}

static void a_container_with_plain_files_is_not_taken_for_an_encrypted_one(void **state)
{
    struct inst x, y;
    (void)state;

    ff_open(&x, "compress");
    ff_file(&x, "f");
    assert_int_equal(ff_try(&y, "crypt:" FF_KEY), -EKEYREJECTED);
    pst_store_close(y.top);
    ff_close(&x);
}

static void plain_files_are_read_and_changed_by_compress_and_csum(void **state)
{
    struct inst x, y;
    uint64_t ino;
    (void)state;

    ff_open(&x, "");
    ino = ff_file(&x, "f");
    fill(1);
    assert_int_equal(ff_write(&x, ino, 10, data, 2 * FF_CHUNK), 2 * FF_CHUNK);
    ff_open(&y, "csum compress");
    assert_int_equal(ff_read(&y, ino, 10, got, 2 * FF_CHUNK), 2 * FF_CHUNK);
    assert_memory_equal(got, data, 2 * FF_CHUNK);
    assert_int_equal(ff_write(&y, ino, FF_CHUNK, "new", 3), 3);
    memcpy(data + FF_CHUNK - 10, "new", 3);
    assert_int_equal(ff_read(&y, ino, 10, got, 2 * FF_CHUNK), 2 * FF_CHUNK);
    assert_memory_equal(got, data, 2 * FF_CHUNK);
    ff_close(&x);
    ff_close(&y);
}

static void expect_refused(struct inst *x, uint64_t ino, uint64_t chunk, const char *reason)
{
    double before = ff_refused(x, reason);

    assert_int_equal(ff_read(x, ino, chunk * FF_CHUNK, got, 100), -EIO);
    assert_int_equal(ff_refused(x, reason), before + 1);
    /* Nor is it changed: that would make good of bad. */
    assert_int_equal(ff_write(x, ino, chunk * FF_CHUNK + 5, "x", 1), -EIO);
}

static void exchanged_chunks_are_refused(void **state)
{
    static struct raw a0, a1, b0, plain;
    struct inst x;
    uint64_t a, b;
    (void)state;

    ff_open(&x, "compress crypt:" FF_KEY);
    look_below();
    a = ff_file(&x, "a");
    b = ff_file(&x, "b");
    fill(2);
    assert_int_equal(ff_write(&x, a, 0, data, 2 * FF_CHUNK), 2 * FF_CHUNK);
    assert_int_equal(ff_write(&x, b, 0, data, 2 * FF_CHUNK), 2 * FF_CHUNK);
    steal(a, 0, &a0);
    steal(a, 1, &a1);
    steal(b, 0, &b0);
    plant(a, 0, &b0);
    expect_refused(&x, a, 0, "forged");
    plant(a, 0, &a1);
    expect_refused(&x, a, 0, "forged");
    plain = a0;
    plain.op.meta_len = 0;
    plant(a, 0, &plain);
    expect_refused(&x, a, 0, "plain");
    plain = a0;
    plain.bytes[1000] ^= 1;
    plant(a, 0, &plain);
    expect_refused(&x, a, 0, "forged");
    plain = a0;
    plain.op.meta[0] = 9;
    plant(a, 0, &plain);
    assert_int_equal(ff_read(&x, a, 0, got, 100), -ENOTSUP);
    assert_int_equal(ff_refused(&x, "unknown"), 1);
    plant(a, 0, &a0);
    assert_int_equal(ff_read(&x, a, 0, got, FF_CHUNK), FF_CHUNK);
    assert_memory_equal(got, data, FF_CHUNK);
    look_away();
    ff_close(&x);
}

static void damage_is_found_by_the_checksum(void **state)
{
    static struct raw r;
    struct inst x;
    uint64_t ino;
    (void)state;

    ff_open(&x, "csum");
    look_below();
    ino = ff_file(&x, "a");
    fill(3);
    assert_int_equal(ff_write(&x, ino, 0, data, 5000), 5000);
    steal(ino, 0, &r);
    r.bytes[4999] ^= 0x80;
    plant(ino, 0, &r);
    expect_refused(&x, ino, 0, "checksum");
    look_away();
    ff_close(&x);
}

static void an_older_state_is_refused_by_whoever_has_seen_a_newer_one(void **state)
{
    static struct raw old[3], now;
    struct inst x, y;
    uint64_t ino;
    (void)state;

    ff_open(&x, "crypt:" FF_KEY);
    look_below();
    ino = ff_file(&x, "a");
    fill(4);
    for (int i = 0; i < 3; i++) { /* the whole chunk, a part, the whole chunk again */
        assert_int_equal(ff_write(&x, ino, 0, data + i, i == 1 ? 5000 : FF_CHUNK), i == 1 ? 5000 : FF_CHUNK);
        steal(ino, 0, &old[i]);
    }
    assert_int_equal(ff_write(&x, ino, 7, "newer", 5), 5);
    steal(ino, 0, &now);
    for (int i = 0; i < 3; i++) {
        plant(ino, 0, &old[i]);
        expect_refused(&x, ino, 0, "rollback");
    }
    /* One that has not: this is not noticed, as docs/filters.md says. */
    ff_open(&y, "crypt:" FF_KEY);
    assert_int_equal(ff_read(&y, ino, 0, got, 100), 100);
    ff_close(&y);
    plant(ino, 0, &now);
    assert_int_equal(ff_read(&x, ino, 7, got, 5), 5);
    assert_memory_equal(got, "newer", 5);
    /* After a hole the count begins anew, and nothing honest is refused. */
    assert_int_equal(ff_truncate(&x, ino, 0), 0);
    assert_int_equal(ff_write(&x, ino, 0, "first", 5), 5);
    assert_int_equal(ff_read(&x, ino, 0, got, 5), 5);
    assert_memory_equal(got, "first", 5);
    look_away();
    ff_close(&x);
}

/* ---- the header ---- */

static void the_key_belongs_to_the_object_and_is_not_seen(void **state)
{
    char list[200];
    struct pst_attr a;
    struct inst x, y;
    uint64_t ino;
    (void)state;

    ff_open(&x, "crypt:" FF_KEY);
    ino = ff_file(&x, "a");
    fill(5);
    assert_int_equal(ff_write(&x, ino, 0, data, 1000), 1000);
    assert_int_equal(pst_store_setxattr(x.c, &ff_ctx, ino, "user.mine", "v", 1, 0), 0);
    assert_int_equal(pst_store_listxattr(x.c, &ff_ctx, ino, list, sizeof list), 10);
    assert_string_equal(list, "user.mine");
    assert_int_equal(pst_store_listxattr(x.c, &ff_ctx, ino, NULL, 0), 10);
    assert_int_equal(pst_store_getxattr(x.c, &ff_ctx, ino, "trusted.penstock.key", list, sizeof list), -ENODATA);
    assert_int_equal(pst_store_setxattr(x.c, &ff_ctx, ino, "trusted.penstock.key", "v", 1, 0), -EPERM);
    assert_int_equal(pst_store_removexattr(x.c, &ff_ctx, ino, "trusted.penstock.key"), -ENODATA);
    assert_int_equal(pst_store_link(x.c, &ff_ctx, ino, PST_ROOT_INO, "b", &a), 0);
    assert_int_equal(pst_store_rename(x.c, &ff_ctx, PST_ROOT_INO, "a", PST_ROOT_INO, "c", 0), 0);
    assert_int_equal(pst_store_unlink(x.c, &ff_ctx, PST_ROOT_INO, "c"), 0);
    ff_open(&y, "crypt:" FF_KEY);
    assert_int_equal(pst_store_lookup(y.c, &ff_ctx, PST_ROOT_INO, "b", &a), 0);
    assert_int_equal(ff_read(&y, a.ino, 0, got, 1000), 1000);
    assert_memory_equal(got, data, 1000);
    ff_close(&x);
    ff_close(&y);
}

static void a_lost_or_foreign_header_is_refused_and_destroys_nothing(void **state)
{
    uint8_t header[200], other[200];
    struct pst_attr a;
    struct inst x, y;
    uint64_t ino, ino2;
    int64_t n;
    (void)state;

    ff_open(&x, "crypt:" FF_KEY);
    look_below();
    ino = ff_file(&x, "a");
    ino2 = ff_file(&x, "b");
    fill(6);
    assert_int_equal(ff_write(&x, ino, 0, data, 1000), 1000);
    n = pst_store_getxattr(below, &ff_ctx, ino, "trusted.penstock.key", header, sizeof header);
    assert_true(n > 0);
    assert_int_equal(pst_store_getxattr(below, &ff_ctx, ino2, "trusted.penstock.key", other, sizeof other), n);
    assert_int_equal(pst_store_setxattr(below, &ff_ctx, ino, "trusted.penstock.key", other, (size_t)n, 0), 0);
    ff_open(&y, "crypt:" FF_KEY);
    assert_int_equal(pst_store_open(y.c, &ff_ctx, ino, R_OK, false, &a), -EIO);
    assert_int_equal(pst_store_open(y.c, &ff_ctx, ino, R_OK | W_OK, true, &a), -EIO);
    assert_int_equal(ff_read(&y, ino, 0, got, 10), -EIO);
    assert_int_equal(pst_store_removexattr(below, &ff_ctx, ino, "trusted.penstock.key"), 0);
    assert_int_equal(ff_read(&y, ino, 0, got, 10), -EIO);
    assert_int_equal(pst_store_setxattr(below, &ff_ctx, ino, "trusted.penstock.key", header, (size_t)n, 0), 0);
    assert_int_equal(ff_read(&y, ino, 0, got, 1000), 1000);
    assert_memory_equal(got, data, 1000);
    look_away();
    ff_close(&x);
    ff_close(&y);
}

/* One header for all: who loses the race to make it takes the other's. */
static void two_instances_agree_on_a_new_objects_key(void **state)
{
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_attr a;
    struct inst x, y;
    (void)state;

    ff_open(&x, "crypt:" FF_KEY);
    ff_open(&y, "crypt:" FF_KEY);
    look_below(); /* made below, so without a header */
    assert_int_equal(pst_store_make(below, &ff_ctx, PST_ROOT_INO, "f", &in, &a, NULL), 0);
    assert_int_equal(ff_read(&y, a.ino, 0, got, 10), 0);
    assert_int_equal(ff_write(&x, a.ino, 0, "by x", 4), 4);
    assert_int_equal(ff_write(&y, a.ino, FF_CHUNK, "by y", 4), 4);
    assert_int_equal(ff_read(&x, a.ino, FF_CHUNK, got, 4), 4);
    assert_memory_equal(got, "by y", 4);
    look_away();
    ff_close(&x);
    ff_close(&y);
}

static void a_new_tenant_key_wraps_the_headers_and_rewrites_no_data(void **state)
{
    struct pst_new dir = {.mode = S_IFDIR | 0755}, file = {.mode = S_IFREG | 0644};
    struct filter_rewrapped n;
    static struct raw before, after;
    struct inst x, y;
    uint64_t ino;
    struct pst_attr a, b;
    (void)state;

    ff_open(&x, "crypt:" FF_KEY);
    look_below();
    ino = ff_file(&x, "a");
    assert_int_equal(pst_store_make(x.c, &ff_ctx, PST_ROOT_INO, "d", &dir, &a, NULL), 0);
    assert_int_equal(pst_store_make(x.c, &ff_ctx, a.ino, "e", &file, &b, NULL), 0);
    fill(7);
    assert_int_equal(ff_write(&x, ino, 0, data, 1000), 1000);
    assert_int_equal(ff_write(&x, b.ino, 0, data, 1000), 1000);
    steal(ino, 0, &before);
    assert_int_equal(filter_rewrap(x.c, &n), 0);
    assert_int_equal(n.changed, 0);
    ff_open(&y, "crypt:key_env=PST_TEST_KEY2,old_" FF_KEY);
    assert_int_equal(filter_rewrap(y.c, &n), 0);
    assert_int_equal(n.changed, 3); /* two files and the root */
    assert_int_equal(filter_rewrap(y.c, &n), 0);
    assert_int_equal(n.current, 3);
    ff_close(&y);
    steal(ino, 0, &after);
    assert_int_equal(after.op.version, before.op.version);
    ff_open(&y, "crypt:key_env=PST_TEST_KEY2");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ff_read(&y, i ? b.ino : ino, 0, got, 1000), 1000);
        assert_memory_equal(got, data, 1000);
    }
    ff_close(&y);
    assert_int_equal(ff_try(&y, "crypt:" FF_KEY), -EKEYREJECTED);
    pst_store_close(y.top);
    look_away();
    ff_close(&x);
}

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
        fill(8);
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
        fill(8);
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
    fill(9);
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
    fill(10);
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
    fill(11);
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
        CASE(what_is_stored_has_no_plain_text),
        CASE(another_key_or_none_is_refused_at_the_door),
        CASE(a_container_with_plain_files_is_not_taken_for_an_encrypted_one),
        CASE(plain_files_are_read_and_changed_by_compress_and_csum),
        CASE(exchanged_chunks_are_refused),
        CASE(damage_is_found_by_the_checksum),
        CASE(an_older_state_is_refused_by_whoever_has_seen_a_newer_one),
        CASE(the_key_belongs_to_the_object_and_is_not_seen),
        CASE(a_lost_or_foreign_header_is_refused_and_destroys_nothing),
        CASE(two_instances_agree_on_a_new_objects_key),
        CASE(a_new_tenant_key_wraps_the_headers_and_rewrites_no_data),
        CASE(a_repeated_request_has_its_effect_once),
        CASE(a_repeated_append_leaves_no_wrong_chunk_in_memory),
        CASE(holes_stay_holes_and_short_chunks_take_less),
        CASE(a_size_is_set_by_whom_may_write),
        CASE(operations_on_what_is_no_file_say_so),
        CASE(the_stages_are_one_filter_in_any_order_and_with_nothing_between),
        CASE(a_failed_replacement_leaves_the_old_bytes),
        CASE(a_cancelled_operation_comes_back_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * What the chunk filters promise of the store below: no plain text in it; its damage, exchanges and older states are
 * found.
 */
#include "filter_fixture.h"

static uint8_t data[4 * FF_CHUNK], got[4 * FF_CHUNK];

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
    assert_int_equal(pst_queue_spread(x.q), 0);
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
    ff_random(data, sizeof data, 1);
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
    ff_random(data, sizeof data, 1);
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
    ff_random(data, sizeof data, 2);
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
    ff_random(data, sizeof data, 3);
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
    ff_random(data, sizeof data, 4);
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
    ff_random(data, sizeof data, 5);
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
    ff_random(data, sizeof data, 6);
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
    ff_random(data, sizeof data, 7);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

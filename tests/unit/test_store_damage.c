/* Damaged data: an error at each read, found by the scrub and by the offline check. */
#include "data_bytes.h"

#include "local/local_store.h"

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
    assert_int_equal(dx_io(PST_OP_CHUNK_READ, ino, 1, model, MiB, 0, NULL), -EIO);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(damaged_blocks_are_errors_and_scrub_finds_them),
        cmocka_unit_test_setup_teardown(the_offline_check_compares_data_and_records, setup, dx_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * What the server of filtered containers has of them, and what it can lose: compiled with FF_REMOTE, see
 * filter_fixture.h.
 */
#include "filter_fixture.h"
#include "keys.h"

#include "base/crypto.h"

#include <fcntl.h>
#include <ftw.h>

#define FILE_BYTES (5 * FF_CHUNK + 1000)

static uint8_t bytes[FILE_BYTES], got[FILE_BYTES];

/* What the server must not have. */
static struct secret {
    const char *what;
    const void *bytes;
    size_t len;
    bool found;
} secrets[5];

static uint8_t window[4 * MiB + 128];

/* Searches in [from, to) of a file, or to its end; pieces overlap, so that nothing is missed at their edges. */
static void search_range(int fd, uint64_t from, uint64_t to)
{
    while (from < to) {
        ssize_t n = pread(fd, window, min_u64(sizeof window, to - from), (off_t)from);
        if (n <= 0)
            return;
        for (size_t i = 0; i < ARRAY_SIZE(secrets); i++)
            secrets[i].found |= memmem(window, (size_t)n, secrets[i].bytes, secrets[i].len) != NULL;
        if (n < (ssize_t)sizeof window)
            return;
        from += sizeof window - 128;
    }
}

static int search_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    int fd = type == FTW_F && S_ISREG(st->st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    (void)ftw;

    if (fd >= 0) {
        search_range(fd, 0, UINT64_MAX);
        close(fd);
    }
    return 0;
}

static void search_memory(pid_t pid)
{
    char path[40], line[300];
    unsigned long long from, to;
    char r;
    FILE *maps;
    int mem;

    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    maps = fopen(path, "r");
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    mem = open(path, O_RDONLY | O_CLOEXEC);
    assert_non_null(maps);
    assert_true(mem >= 0);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%llx-%llx %c", &from, &to, &r) != 3 || r != 'r' || strstr(line, "[vvar]"))
            continue;
        /* What is larger is a sanitizer's map of all memory, terabytes that hold no data. */
        if (to - from < 64ull << 30)
            search_range(mem, from, to);
    }
    fclose(maps);
    close(mem);
}

static void the_server_has_neither_keys_nor_plain_text(void **state)
{
    static const char planted[] = "planted: what only the client and the agent may know, 0123456789";
    struct header_place at = {.ino = 0};
    struct keyring ring = {0};
    uint8_t header[HEADER_BYTES], tenant[SEAL_KEY], data_key[SEAL_KEY];
    struct seal *seal = seal_new();
    struct pst_attr a;
    struct inst x;
    uint64_t ino;
    bool old;
    (void)state;

    ff_open(&x, "crypt:" FF_KEY);
    ino = ff_file(&x, "a-name-that-it-does-know");
    ff_hold(&x, ino);
    for (size_t i = 0; i + sizeof planted < FILE_BYTES; i += sizeof planted)
        memcpy(bytes + i, planted, sizeof planted);
    assert_int_equal(ff_write(&x, ino, 0, bytes, FILE_BYTES), FILE_BYTES);
    assert_int_equal(ff_write(&x, ino, 10, planted, sizeof planted), sizeof planted); /* a short one, in a message */
    assert_int_equal(ff_read(&x, ino, 0, got, FILE_BYTES), FILE_BYTES);
    assert_int_equal(ff_range(&x, PST_OP_FSYNC, ino, 0, 0), 0);

    assert_int_equal(key_parse((const uint8_t *)getenv("PST_TEST_KEY"), 64, tenant), 0);
    assert_int_equal(tenant_key_init(&ring.now, tenant), 0);
    memcpy(at.cont, x.c->info.uuid, sizeof at.cont);
    at.ino = ino;
    assert_int_equal(pst_store_getxattr(x.c->next, &ff_ctx, ino, HEADER_XATTR, header, sizeof header), sizeof header);
    assert_int_equal(header_open(&ring, seal, &at, header, sizeof header, data_key, &old), 0);
    secrets[0] = (struct secret){"the plain text", planted, sizeof planted - 1, false};
    secrets[1] = (struct secret){"the tenant's key", tenant, SEAL_KEY, false};
    secrets[2] = (struct secret){"the tenant's key in hexadecimal", getenv("PST_TEST_KEY"), 64, false};
    secrets[3] = (struct secret){"the data key", data_key, SEAL_KEY, false};
    secrets[4] = (struct secret){"", "a-name-that-it-does-know", 24, false};
    search_memory(ff_daemon.pid);
    assert_true(secrets[4].found); /* it was searched where data is */
    secrets[4].found = false;
    assert_int_equal(nftw(ff_daemon.dir, search_file, 16, FTW_PHYS), 0);
    assert_true(secrets[4].found);
    for (int i = 0; i < 4; i++)
        if (secrets[i].found)
            fail_msg("the server has %s", secrets[i].what);
    assert_int_equal(pst_store_getattr(x.c, &ff_ctx, ino, &a), 0);
    seal_free(seal);
    pst_store_release(x.c, ino);
    ff_close(&x);
}

/*
 * The server crashes when an object's header is not durable yet, and the instance that made it lives on with the key in
 * its memory: nothing that is written from then on may depend on the lost header.
 */
static void a_header_that_a_crash_took_is_not_missed_by_what_is_written_later(void **state)
{
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_op sync = {.kind = PST_OP_SYNCFS, .ino = PST_ROOT_INO};
    struct inst x, y, plain;
    struct pst_attr a;
    int64_t r;
    (void)state;

    for (int round = 0; round < 3; round++) {
        char name[10];
        snprintf(name, sizeof name, "f%d", round);
        ff_open(&x, "crypt:" FF_KEY);
        ff_open(&y, "crypt:" FF_KEY);
        ff_open(&plain, "delay:ms=1,op=fsync"); /* makes the file, without a header */
        assert_int_equal(pst_store_make(plain.c, &ff_ctx, PST_ROOT_INO, name, &in, &a, NULL), 0);
        assert_int_equal(ff_op(&plain, NULL, &sync, NULL), 0);
        ff_close(&plain);
        ff_hold(&x, a.ino);
        ff_hold(&y, a.ino);
        assert_int_equal(ff_write(&x, a.ino, 0, "lost", 4), 4);
        daemon_kill(&ff_daemon);
        assert_true(daemon_again(&ff_daemon));
        if (round == 1) /* the other one makes the new header */
            assert_int_equal(ff_write(&y, a.ino, 2 * FF_CHUNK, "other", 5), 5);
        r = ff_write(&x, a.ino, FF_CHUNK, "kept", 4);
        assert_int_equal(r, 4);
        ff_range(&x, PST_OP_FSYNC, a.ino, 0, 0); /* tells of the loss */
        for (int i = 0; i < 2; i++) {
            struct inst *z = i ? &y : &x;
            assert_int_equal(ff_read(z, a.ino, FF_CHUNK, got, 4), 4);
            assert_memory_equal(got, "kept", 4);
            assert_int_equal(ff_read(z, a.ino, 0, got, 4), 4);
            assert_true(!memcmp(got, "lost", 4) || !memcmp(got, "\0\0\0\0", 4));
            if (round == 1) {
                assert_int_equal(ff_read(z, a.ino, 2 * FF_CHUNK, got, 5), 5);
                assert_memory_equal(got, "other", 5);
            }
        }
        pst_store_release(x.c, a.ino);
        pst_store_release(y.c, a.ino);
        ff_close(&x);
        ff_close(&y);
    }
}

#define CASE(t) cmocka_unit_test_setup_teardown(t, ff_setup, ff_teardown)

int main(int argc, char **argv)
{
    int r;
    const struct CMUnitTest tests[] = {
        CASE(the_server_has_neither_keys_nor_plain_text),
        CASE(a_header_that_a_crash_took_is_not_missed_by_what_is_written_later),
    };

    if (ff_main_begin(argc > 1 ? argv[1] : ""))
        return 1;
    r = cmocka_run_group_tests(tests, NULL, NULL);
    ff_main_end();
    return r;
}

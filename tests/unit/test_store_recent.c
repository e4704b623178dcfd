/* What was committed survives the death of the process, durable or not; after the operating system's it does not count. */
#define FX_BARE
#include "local_fixture.h"

#include "log.h"

static const char *self;

static void value_of(uint64_t n, char ret[64])
{
    snprintf(ret, 64, "value-%llu", (unsigned long long)(n * 2654435761u));
}

/* Commits n keys after the ones that are there, never syncs them, dies. */
static int child_dies(uint64_t n, bool recent)
{
    struct eng_opts o = fx_opts();
    struct engine *e;
    uint64_t first = 1;
    o.sync_ms = 5000;
    o.recent = recent;
    e = fx_open_opts(o);
    while (!fx_absent(e, first))
        first++;
    for (uint64_t i = first; i < first + n; i++) {
        char v[64];
        value_of(i, v);
        if (fx_put(e, i, v, NULL))
            _exit(1);
        if (i == first + n / 2 && eng_sync(e, eng_last_lsn(e))) /* and what is in both places */
            _exit(2);
    }
    raise(SIGKILL);
    return 0;
}

static int child_large(void)
{
    struct eng_opts o = fx_opts();
    struct engine *e;
    char *v = calloc(1, 60001);
    o.sync_ms = 5000;
    e = fx_open_opts(o);
    memset(v, 'v', 60000);
    for (uint64_t i = 1; i <= 300; i++) /* several times what the file holds */
        if (fx_put(e, i, v, NULL))
            _exit(1);
    raise(SIGKILL);
    return 0;
}

static uint64_t keys(struct engine *e)
{
    uint64_t n = 0;
    char v[64];
    for (value_of(1, v); fx_is(e, n + 1, v); value_of(n + 1, v))
        n++;
    return n;
}

static void commits_survive_the_death_of_the_process(void **state)
{
    struct engine *e = fx_open();
    (void)state;
    eng_close(e);
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(fx_child(self, "dies", "77"), -SIGKILL);
        if (i == 2) { /* again, before anybody opened it for longer */
            e = fx_open();
            assert_int_equal(keys(e), 154);
            assert_true(recent_complete(e));
            eng_close(e);
        }
    }
    e = fx_open();
    assert_int_equal(keys(e), 4 * 77);
    assert_true(recent_complete(e));
    eng_close(e);
}

static void more_than_the_file_holds_survives_too(void **state)
{
    struct engine *e;
    char *v = calloc(1, 60001);
    (void)state;
    memset(v, 'v', 60000);
    assert_int_equal(fx_child(self, "large", ""), -SIGKILL);
    e = fx_open();
    for (uint64_t i = 1; i <= 300; i++)
        assert_true(fx_is(e, i, v));
    eng_close(e);
    free(v);
}

static void another_boots_file_is_not_read(void **state)
{
    char path[96];
    uint64_t n;
    struct engine *e;
    int fd;
    (void)state;
    assert_int_equal(fx_child(self, "dies", "10"), -SIGKILL);
    snprintf(path, sizeof path, "%s/recent", fx_dir);
    fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    struct {
        uint8_t head[64]; /* the boot is at 24 */
        le64 seq;
        le32 zero, crc;
    } h;
    assert_int_equal(pread(fd, &h, sizeof h, 0), sizeof h);
    h.head[24] ^= 1;
    h.crc = put_le32(crc32c(0, &h, offsetof(__typeof__(h), crc)));
    assert_int_equal(pwrite(fd, &h, sizeof h, 0), sizeof h);
    close(fd);
    e = fx_open();
    n = keys(e);
    assert_in_range(n, 6, 9); /* the synced ones; a prefix */
    assert_false(recent_complete(e));
    eng_close(e);
}

static void a_file_of_an_earlier_life_is_not_taken_for_this_one(void **state)
{
    struct engine *e;
    (void)state;
    assert_int_equal(fx_child(self, "dies", "10"), -SIGKILL);
    assert_int_equal(fx_child(self, "lives-without", "10"), -SIGKILL);
    e = fx_open();
    assert_in_range(keys(e), 16, 19);
    eng_close(e);
}

static void a_damaged_file_loses_only_what_was_not_durable(void **state)
{
    char path[96];
    struct engine *e;
    (void)state;
    for (int at = 0; at < 8192; at += 1024) {
        uint64_t before;
        int fd;
        e = fx_open();
        before = keys(e);
        eng_close(e);
        assert_int_equal(fx_child(self, "dies", "20"), -SIGKILL);
        snprintf(path, sizeof path, "%s/recent", fx_dir);
        fd = open(path, O_RDWR);
        assert_int_equal(pwrite(fd, "garbage garbage garbage", 23, at), 23);
        close(fd);
        e = fx_open();
        assert_in_range(keys(e), before + 11, before + 20);
        eng_close(e);
    }
}

static void a_store_that_failed_leaves_none(void **state)
{
    struct engine *e = fx_open();
    uint64_t lsn;
    (void)state;
    assert_int_equal(fx_put(e, 1, "value-2654435761", &lsn), 0);
    assert_int_equal(eng_sync(e, lsn), 0);
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(dup2(fds[1], e->data_fd), e->data_fd); /* fdatasync: EINVAL */
    eng_data_written(e);
    assert_int_equal(fx_put(e, 2, "blocks that are lost", &lsn), 0);
    assert_int_equal(eng_sync(e, lsn), -EIO);
    eng_close(e);
    close(fds[0]);
    close(fds[1]);
    e = fx_open();
    assert_int_equal(keys(e), 1);
    assert_true(fx_absent(e, 2));
    assert_false(recent_complete(e));
    eng_close(e);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(commits_survive_the_death_of_the_process, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(more_than_the_file_holds_survives_too, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(another_boots_file_is_not_read, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(a_file_of_an_earlier_life_is_not_taken_for_this_one, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(a_damaged_file_loses_only_what_was_not_durable, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(a_store_that_failed_leaves_none, fx_setup, fx_teardown),
    };
    self = argv[0];
    if (argc == 4) {
        snprintf(fx_dir, sizeof fx_dir, "%s", argv[2]);
        if (!strcmp(argv[1], "large"))
            return child_large();
        return child_dies(strtoull(argv[3], NULL, 10), !strcmp(argv[1], "dies"));
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

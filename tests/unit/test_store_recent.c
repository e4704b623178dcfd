/*
 * What was committed survives the death of the process, durable or not; after the operating system's it does not count.
 */
#define FX_BARE
#include <dirent.h>

#include "local_fixture.h"

#include "data.h"
#include "local/local_store.h"
#include "log.h"

static const char *self;
static bool serving; /* with a namespace */

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
    o.bare = !serving;
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

/* As child_dies, after the store was synced; leaves copies of the store's files at that moment. */
static int child_copied(uint64_t n)
{
    struct eng_opts o = fx_opts();
    struct engine *e;
    char cmd[300], v[64];
    o.sync_ms = 5000;
    e = fx_open_opts(o);
    for (uint64_t i = 1; i <= 3 * n; i++) {
        value_of(i, v);
        if (fx_put(e, i, v, NULL))
            _exit(1);
        if (i == n) {
            snprintf(cmd, sizeof cmd, "cp -a '%s' '%s.work'", fx_dir, fx_dir);
            if (eng_sync(e, eng_last_lsn(e)) || system(cmd))
                _exit(2);
        }
        if (i == 2 * n && eng_sync(e, eng_last_lsn(e)))
            _exit(3);
    }
    raise(SIGKILL);
    return 0;
}

/* A block of data, and a record that names it: both answered, neither flushed. */
static int child_blocks(void)
{
    struct eng_opts o = fx_opts();
    struct engine *e;
    struct txn *t;
    struct chunk_map *m = NULL;
    struct chunk_run run = {.n = 1};
    struct wbuf w = {0};
    uint8_t *block = fx_pages(4096);
    uint32_t crc;
    struct key k = chunk_key(1, 5, 0);
    char v[64];
    o.sync_ms = 5000;
    e = fx_open_opts(o);
    value_of(1, v);
    if (fx_put(e, 1, v, NULL) || alloc_claim(e, 1, &run.phys) != 1)
        _exit(1);
    memset(block, 'b', 4096);
    crc = crc32c(0, block, 4096);
    if (pwrite_all(e->data_fd, block, 4096, run.phys * PST_BLOCK) ||
        chunk_edit(NULL, 0, 1, &run, 1, &crc, NULL, NULL, &m))
        _exit(2);
    eng_data_written(e);
    m->version = 1;
    m->in_use = 4096;
    chunk_encode(m, &w);
    t = txn_new(e);
    txn_put(t, &k, w.data, w.len);
    txn_claimed_extent(t, run.phys, 1);
    value_of(2, v);
    if (txn_commit(t, NULL) || fx_put(e, 2, v, NULL))
        _exit(3);
    printf("%llu\n", (unsigned long long)run.phys);
    fflush(stdout);
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
        le64 seq, run;
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

static void copy_in(const char *name)
{
    char cmd[300];
    snprintf(cmd, sizeof cmd, "rm -rf '%s/%s' && cp -a '%s.work/%s' '%s/%s'", fx_dir, name, fx_dir, name, fx_dir, name);
    assert_int_equal(system(cmd), 0);
}

/* A copy that was taken in mid-run comes back: with its own `recent`, or with the one of later. */
static void a_copy_from_earlier_never_gets_the_tail_of_later(void **state)
{
    static const char *const most[] = {"superblock", "data", "log", "index"};
    (void)state;
    for (int with = 0; with < 2; with++) {
        struct engine *e;
        assert_int_equal(fx_child(self, "copied", "10"), -SIGKILL);
        for (size_t i = 0; i < ARRAY_SIZE(most); i++)
            copy_in(most[i]);
        if (with)
            copy_in("recent");
        e = fx_open();
        assert_int_equal(keys(e), 10); /* what it had; nothing of later, which began where a part is missing */
        assert_false(recent_complete(e));
        eng_close(e);
        fx_remove();
        assert_int_equal(mkdir(fx_dir, 0700), 0);
    }
}

/* The disk was away for a moment: its files are older than what the process had done. */
static void a_file_that_ends_too_early_is_not_all(void **state)
{
    char path[96];
    struct engine *e;
    uint64_t n;
    int fd;
    (void)state;
    if (access("/dev/shm", W_OK))
        skip(); /* no shared memory, no witness */
    assert_int_equal(fx_child(self, "dies", "20"), -SIGKILL);
    snprintf(path, sizeof path, "%s/recent", fx_dir);
    fd = open(path, O_RDWR);
    /* The last records of the half that is in use: a record of such a key has about 200 bytes. */
    for (int half = 0; half < 2; half++) {
        uint64_t size = (uint64_t)(lseek(fd, 0, SEEK_END) - LOG_BLOCK) / 2, at = LOG_BLOCK + (uint64_t)half * size,
                 last = 0;
        struct record r;
        while (pread(fd, &r, sizeof r, (off_t)at) == sizeof r && get_le32(r.magic) == RECORD_MAGIC) {
            last = at;
            at += record_bytes(get_le32(r.len));
        }
        assert_true(last);
        assert_int_equal(pwrite(fd, "gone", 4, (off_t)last), 4);
    }
    close(fd);
    e = fx_open();
    n = keys(e);
    assert_in_range(n, 11, 19);
    assert_false(recent_complete(e));
    eng_close(e);
}

/* The page that says it is of the store in fx_dir; -1: there is none. */
static int open_page(void)
{
    struct dirent *de;
    int found = -1;
    DIR *d = opendir("/dev/shm");
    while (d && found < 0 && (de = readdir(d))) {
        char path[300], page[4096];
        snprintf(path, sizeof path, "/dev/shm/%s", de->d_name);
        int fd = strncmp(de->d_name, "penstock-", 9) ? -1 : open(path, O_RDWR);
        ssize_t n = fd < 0 ? 0 : read(fd, page, sizeof page);
        if (n > 0 && memmem(page, (size_t)n, fx_dir, strlen(fx_dir) + 1))
            found = fd;
        else if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
    return found;
}

static bool has_page(void)
{
    int fd = open_page();
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void open_another_store(void)
{
    char mine[sizeof fx_dir];
    strcpy(mine, fx_dir);
    assert_int_equal(fx_setup(NULL), 0);
    eng_close(fx_open());
    fx_remove();
    strcpy(fx_dir, mine);
}

/* Pages of memory would pile up otherwise until the machine is started again. */
static void the_page_of_a_killed_process_goes_with_its_store(void **state)
{
    char away[96];
    (void)state;
    if (access("/dev/shm", W_OK))
        skip();
    assert_int_equal(fx_child(self, "dies", "5"), -SIGKILL);
    assert_true(has_page());
    open_another_store();
    assert_true(has_page()); /* for the next process here */

    /* Another superblock is being put in its place: the page is what tells that it is of an earlier moment. */
    char block[120], aside[128];
    snprintf(block, sizeof block, "%s/superblock", fx_dir);
    snprintf(aside, sizeof aside, "%s.aside", block);
    assert_int_equal(rename(block, aside), 0);
    open_another_store();
    assert_true(has_page());
    assert_int_equal(rename(aside, block), 0);

    eng_close(fx_open());
    assert_false(has_page()); /* a clean stop */

    assert_int_equal(fx_child(self, "dies", "5"), -SIGKILL);
    snprintf(away, sizeof away, "%s.work", fx_dir);
    assert_int_equal(rename(fx_dir, away), 0);
    assert_int_equal(mkdir(fx_dir, 0700), 0);
    open_another_store();
    assert_false(has_page());
    assert_int_equal(rmdir(fx_dir), 0);
    assert_int_equal(rename(away, fx_dir), 0);
    eng_close(fx_open());
}

/* Of a process that lives, in whatever namespace, and of a store that is only not to be seen from here. */
static void a_page_that_is_still_needed_is_not_removed(void **state)
{
    char outer[sizeof fx_dir], aside[96], away[120];
    struct engine *e;
    (void)state;
    if (access("/dev/shm", W_OK))
        skip();
    e = fx_open();
    snprintf(aside, sizeof aside, "%s.work", fx_dir);
    assert_int_equal(rename(fx_dir, aside), 0);
    open_another_store();
    assert_true(has_page());
    assert_int_equal(rename(aside, fx_dir), 0);
    eng_close(e);
    assert_false(has_page());

    /* Another file system lies over its parent, or this process has another root. */
    strcpy(outer, fx_dir);
    assert_true((size_t)snprintf(fx_dir, sizeof fx_dir, "%s/store", outer) < sizeof fx_dir);
    assert_int_equal(mkdir(fx_dir, 0700), 0);
    assert_int_equal(fx_child(self, "dies", "5"), -SIGKILL);
    snprintf(away, sizeof away, "%s.work", outer);
    assert_int_equal(rename(outer, away), 0);
    assert_int_equal(mkdir(outer, 0700), 0);
    open_another_store();
    assert_true(has_page());
    assert_int_equal(rmdir(outer), 0);
    assert_int_equal(rename(away, outer), 0);
    eng_close(fx_open());
    assert_false(has_page());
    strcpy(fx_dir, outer);
}

/* A disk's folder may be made when it is mounted, and go with it; and a superblock may be there and not be readable. */
static void the_page_of_a_store_that_cannot_be_seen_is_not_removed(void **state)
{
    enum { AT_DEV = 40 }; /* in the page: behind magic, uuid, run and last */
    char block[120], aside[128], away[96];
    uint64_t dev, other;
    struct stat st;
    int fd;
    (void)state;
    if (access("/dev/shm", W_OK))
        skip();
    assert_int_equal(fx_child(self, "dies", "5"), -SIGKILL);
    snprintf(block, sizeof block, "%s/superblock", fx_dir);
    snprintf(aside, sizeof aside, "%s.aside", block);
    assert_int_equal(rename(block, aside), 0);
    assert_int_equal(symlink(aside, block), 0);
    open_another_store();
    assert_true(has_page());
    assert_int_equal(rename(aside, block), 0);

    fd = open_page();
    assert_int_equal(stat(fx_dir, &st), 0);
    assert_int_equal(pread(fd, &dev, sizeof dev, AT_DEV), sizeof dev);
    assert_int_equal(dev, st.st_dev);
    other = dev + 1;
    assert_int_equal(pwrite(fd, &other, sizeof other, AT_DEV), sizeof other);
    snprintf(away, sizeof away, "%s.work", fx_dir);
    assert_int_equal(rename(fx_dir, away), 0);
    open_another_store();
    assert_true(has_page());
    assert_int_equal(pwrite(fd, &dev, sizeof dev, AT_DEV), sizeof dev);
    close(fd);
    open_another_store();
    assert_false(has_page());
    assert_int_equal(rename(away, fx_dir), 0);
    eng_close(fx_open());
}

static void a_record_whose_blocks_are_gone_is_not_taken(void **state)
{
    (void)state;
    for (int gone = 0; gone < 2; gone++) {
        struct engine *e;
        int fds[2], out = dup(1);
        char text[32] = "", path[96];
        assert_int_equal(pipe(fds), 0);
        dup2(fds[1], 1);
        close(fds[1]);
        assert_int_equal(fx_child(self, "blocks", ""), -SIGKILL);
        dup2(out, 1);
        close(out);
        assert_true(read(fds[0], text, sizeof text - 1) > 0);
        close(fds[0]);
        if (gone) {
            snprintf(path, sizeof path, "%s/data", fx_dir);
            int fd = open(path, O_WRONLY);
            assert_int_equal(pwrite(fd, "older", 5, (off_t)(strtoull(text, NULL, 10) * PST_BLOCK)), 5);
            close(fd);
        }
        e = fx_open();
        assert_int_equal(keys(e), gone ? 1 : 2); /* what was before it stays, what came after it does not */
        assert_int_equal(recent_complete(e), !gone);
        eng_close(e);
        fx_remove();
        assert_int_equal(mkdir(fx_dir, 0700), 0);
    }
}

/* A check between the death of a process and the next one's begin neither loses nor hides anything. */
static void a_check_in_between_tells_what_the_next_open_would_have(void **state)
{
    struct pst_check_opts co = {0};
    char err[200];
    uint64_t history;
    struct eng_opts o = fx_opts();
    struct engine *e;
    (void)state;
    o.bare = false;
    e = fx_open_opts(o);
    history = local_history(&e->st);
    eng_close(e);
    for (int lost = 0; lost < 2; lost++) {
        assert_int_equal(fx_child(self, lost ? "serves-without" : "serves", "10"), -SIGKILL);
        for (int twice = 0; twice < 2; twice++)
            assert_true(pst_local_check(fx_dir, &co, err, sizeof err) >= 0);
        e = fx_open_opts(o);
        if (lost)
            assert_true(local_history(&e->st) != history);
        else
            assert_true(local_history(&e->st) == history);
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
        cmocka_unit_test_setup_teardown(a_copy_from_earlier_never_gets_the_tail_of_later, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(a_file_that_ends_too_early_is_not_all, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(the_page_of_a_killed_process_goes_with_its_store, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(a_page_that_is_still_needed_is_not_removed, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(the_page_of_a_store_that_cannot_be_seen_is_not_removed, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(a_record_whose_blocks_are_gone_is_not_taken, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(a_check_in_between_tells_what_the_next_open_would_have, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(a_store_that_failed_leaves_none, fx_setup, fx_teardown),
    };
    self = argv[0];
    if (argc == 4) {
        snprintf(fx_dir, sizeof fx_dir, "%s", argv[2]);
        if (!strcmp(argv[1], "large"))
            return child_large();
        if (!strcmp(argv[1], "copied"))
            return child_copied(strtoull(argv[3], NULL, 10));
        if (!strcmp(argv[1], "blocks"))
            return child_blocks();
        serving = !strncmp(argv[1], "serves", 6);
        return child_dies(strtoull(argv[3], NULL, 10), !strcmp(argv[1], "dies") || !strcmp(argv[1], "serves"));
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

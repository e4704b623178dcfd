/*
 * A disk that fills up at any moment, by others' hands too (the ballast goes as well): changes are refused with ENOSPC,
 * all that was committed can be read meanwhile, and once there is space the store goes on without being opened again.
 */
#define FX_BARE
#include "local_fixture.h"
#include "../lib/seed.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#define DISK    "96m"
#define KEYS    100u
#define VALUE   40000u

static uint32_t version[KEYS]; /* committed; 0: none */
static char value[VALUE + 1];

static const char *value_of(uint64_t n, uint32_t v)
{
    memset(value, 'a' + (int)((n + v) % 26), VALUE);
    value[snprintf(value, 40, "%llu %u ", (unsigned long long)n, v)] = ' ';
    return value;
}

static int setup(void **state)
{
    if (fx_setup(state))
        return -1;
    return mount("none", fx_dir, "tmpfs", 0, "size=" DISK ",mode=700");
}

static int teardown(void **state)
{
    if (umount2(fx_dir, MNT_DETACH))
        return -1;
    return fx_teardown(state);
}

static struct engine *open_small(void)
{
    struct eng_opts o = fx_opts();
    o.size = 8 * MiB;
    o.sync_ms = 100;
    return fx_open_opts(o);
}

static uint64_t space(void)
{
    struct statvfs v;
    assert_int_equal(statvfs(fx_dir, &v), 0);
    return (uint64_t)v.f_bavail * v.f_frsize;
}

/* Another program's file leaves so much. */
static void fill(uint64_t leave)
{
    char path[96], block[65536] = "x";
    int fd;
    snprintf(path, sizeof path, "%s/reserve", fx_dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/filler", fx_dir);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    assert_true(fd >= 0);
    while (space() > leave && write(fd, block, min_u64(sizeof block, space() - leave)) > 0)
        ;
    close(fd);
}

static void make_room(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/filler", fx_dir);
    unlink(path);
}

/* A change that may use the reserve, as those do that give space back. */
static int change(struct engine *e, uint64_t n)
{
    struct txn *t = txn_new(e);
    struct key k = fx_key(n);
    int r;
    txn_set_reserved(t);
    txn_put(t, &k, value_of(n, version[n] + 1), VALUE);
    r = txn_commit(t, NULL);
    version[n] += !r;
    return r;
}

static void check_all(struct engine *e)
{
    for (uint64_t n = 0; n < KEYS; n++)
        assert_true(version[n] ? fx_is(e, n, value_of(n, version[n])) : fx_absent(e, n));
}

static void a_full_disk_refuses_changes_until_there_is_space(void **state)
{
    int refused = 0, rounds = getenv("PENSTOCK_EXTENDED") ? 60 : 4;
    struct engine *e = open_small();
    struct rng r;
    (void)state;

    rng_seed(&r, seed_new());
    memset(version, 0, sizeof version);
    for (int round = 0; round < rounds; round++) {
        int got = 0;
        uint64_t want = rng_below(&r, 80), later = now_ns() + 60 * NSEC_PER_SEC;
        for (uint64_t i = 0; i < want; i++)
            assert_int_equal(change(e, rng_below(&r, KEYS)), 0);
        fill(rng_below(&r, 3) ? 0 : rng_below(&r, 4 * MiB));
        for (int i = 0; i < 400; i++) {
            got = change(e, rng_below(&r, KEYS));
            assert_true(got == 0 || got == -ENOSPC);
            refused += got != 0;
            i += 20 * (got != 0);
            if (i % 50 == 0) {
                got = eng_sync(e, eng_last_lsn(e));
                assert_true(got == 0 || got == -ENOSPC);
            }
        }
        check_all(e);
        make_room();
        while ((got = change(e, 0)) == -ENOSPC && now_ns() < later)
            usleep(10000);
        assert_int_equal(got, 0);
        assert_int_equal(eng_sync(e, eng_last_lsn(e)), 0);
        check_all(e);
        if (rng_below(&r, 3) == 0) {
            eng_close(e);
            e = open_small();
            check_all(e);
        }
    }
    assert_true(refused);
    eng_close(e);
    e = open_small();
    check_all(e);
    eng_close(e);
}

static void what_a_full_disk_kept_out_of_the_log_survives_a_stop(void **state)
{
    struct engine *e = open_small();
    (void)state;

    memset(version, 0, sizeof version);
    fill(0);
    for (uint64_t i = 0; i < 400; i++)
        if (change(e, i % KEYS) == -ENOSPC)
            break;
    eng_close(e);
    make_room();
    e = open_small();
    check_all(e);
    eng_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_full_disk_refuses_changes_until_there_is_space, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_full_disk_kept_out_of_the_log_survives_a_stop, setup, teardown),
    };
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
        print_message("skipped: a small file system of its own needs root\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

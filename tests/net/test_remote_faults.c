/*
 * Faults between the client library and a real daemon: lost answers, restarts, crashes, a server that stays away.
 * usage: test_remote_faults PENSTOCK [TEST]
 */
#include "api_cases.h"
#include "base/util.h"
#include "daemon.h"
#include "remote/remote_store.h"
#include "remote_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

/* Through the proxy, with the daemon's token. */
static struct pst_fs *connect_by_proxy(const struct daemon *d, const char *container)
{
    char base[80], token[200];

    snprintf(token, sizeof token, "%s/%d.token", d->dir, d->port);
    setenv("PENSTOCK_TOKEN_FILE", token, 1);
    snprintf(base, sizeof base, "penstock://127.0.0.2:%d/", d->port);
    return connect_at(base, container, 120000);
}

/* ---- exactly once ---- */

static void lost_answers_make_nothing_happen_twice(void **state)
{
    int rounds = extended ? 400 : 40;
    struct daemon d;
    struct proxy *p;
    struct pst_fs *fs;
    struct pst_file *f;
    uint8_t *buf = malloc(200000);

    (void)state;
    assert_true(daemon_start(&d, program, (const char *[]){"--data-advertise", "127.0.0.2", NULL}));
    p = proxy_start(&d, 0, (unsigned)seed);
    fs = connect_by_proxy(&d, "once");
    f = api_open_new(fs, "/log", O_APPEND);
    proxy_every(p, 40);
    for (int i = 0; i < rounds; i++) {
        size_t n = record(i, buf);
        assert_int_equal(pst_append(f, buf, n, NULL), n);
        names_round(fs, i);
    }
    proxy_every(p, 0);
    print_message("%u connections cut\n", proxy_cuts(p));
    assert_true(proxy_cuts(p) >= 10);
    check_records(fs, "/log", rounds);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    proxy_stop(p);
    unsetenv("PENSTOCK_TOKEN_FILE");
    assert_int_equal(daemon_stop(&d), 0);
    daemon_done(&d);
    free(buf);
}

struct late {
    pthread_t id;
    struct pst_fs *fs;
    struct pst_file *f;
    int unlinked;
};

static void *unlink_it(void *arg)
{
    struct late *l = arg;

    l->unlinked = pst_unlink(l->fs, "/late");
    return NULL;
}

static void *write_it(void *arg)
{
    struct late *l = arg;

    assert_int_equal(pst_pwrite(l->f, "old", 3, 0), 3);
    assert_int_equal(pst_fsync(l->f), 0);
    return NULL;
}

/*
 * A request is on its way for long; its retry, over the next connection, fails or is done, and the caller knows it.
 * Then somebody else changes what it was about, and then the first request comes to the server.
 */
static void what_comes_late_over_an_old_connection_changes_nothing(void **state)
{
    struct daemon d;
    struct stat st;
    char own[80];

    (void)state;
    for (int data = 0; data < 2; data++) {
        struct late l = {0};
        struct pst_fs *other;
        struct proxy *p;
        assert_true(daemon_start(&d, program, (const char *[]){"--data-advertise", "127.0.0.2", NULL}));
        p = proxy_start(&d, 0, (unsigned)seed);
        l.fs = connect_by_proxy(&d, "late");
        if (data) {
            l.f = api_open_new(l.fs, "/late", 0);
            assert_int_equal(pst_pwrite(l.f, "first", 5, 0), 5);
            assert_int_equal(pst_fsync(l.f), 0); /* the data connection is there */
        }
        snprintf(own, sizeof own, "%s", d.base);
        other = connect_at(own, "late", 0);
        proxy_keep(p, true);
        assert_int_equal(pthread_create(&l.id, NULL, data ? write_it : unlink_it, &l), 0);
        while (!proxy_kept(p))
            nap(10);
        nap(100);
        proxy_keep(p, false);
        pthread_join(l.id, NULL);
        assert_int_equal(l.unlinked, data ? 0 : -ENOENT);
        api_put(other, "/late", "new");
        proxy_deliver(p);
        nap(500);
        assert_int_equal(pst_stat(other, "/late", &st), 0);
        api_expect(other, "/late", "new");
        assert_int_equal(pst_close(l.f), 0);
        assert_int_equal(pst_disconnect(l.fs), 0);
        assert_int_equal(pst_disconnect(other), 0);
        proxy_stop(p);
        unsetenv("PENSTOCK_TOKEN_FILE");
        assert_int_equal(daemon_stop(&d), 0);
        daemon_done(&d);
    }
}

/* An unlinked file goes with its last handle: also when the request that closes it is lost with its connection. */
static void a_lost_close_is_sent_again(void **state)
{
    struct daemon d;
    struct proxy *p;
    struct pst_fs *fs;
    struct pst_file *f;
    struct statvfs before, now;
    char *buf = calloc(1, MiB);

    (void)state;
    assert_true(daemon_start(&d, program, (const char *[]){"--data-advertise", "127.0.0.2", NULL}));
    p = proxy_start(&d, 0, (unsigned)seed);
    fs = connect_by_proxy(&d, "close");
    assert_int_equal(pst_statvfs(fs, &before), 0);
    f = api_open_new(fs, "/f", 0);
    assert_int_equal(pst_pwrite(f, buf, MiB, 0), MiB);
    assert_int_equal(pst_fsync(f), 0);
    assert_int_equal(pst_unlink(fs, "/f"), 0);
    assert_int_equal(pst_statvfs(fs, &now), 0);
    assert_true(now.f_bfree < before.f_bfree);
    proxy_swallow(p, true);
    assert_int_equal(pst_close(f), 0);
    nap(300);
    proxy_swallow(p, false);
    do { /* for ever, if the handle is forgotten: until the lease is over, 30 s and more after the last renewal */
        nap(20);
        assert_int_equal(pst_statvfs(fs, &now), 0);
    } while (now.f_files - now.f_ffree != before.f_files - before.f_ffree);
    assert_int_equal(pst_disconnect(fs), 0);
    proxy_stop(p);
    unsetenv("PENSTOCK_TOKEN_FILE");
    assert_int_equal(daemon_stop(&d), 0);
    daemon_done(&d);
    free(buf);
}

struct worker {
    struct pst_fs *fs;
    bool names;
    _Atomic int done;
    _Atomic bool stop;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    uint8_t *buf = malloc(200000);
    struct pst_file *f = api_open_new(w->fs, "/log", O_APPEND | O_DSYNC);

    for (int i = 0; !atomic_load(&w->stop); i++) {
        size_t n = record(i, buf);
        int64_t r = pst_append(f, buf, n, NULL);
        if (r != (int64_t)n) {
            print_message("append %d: %s\n", i, pst_last_error());
            atomic_store(&w->done, -1);
            return w;
        }
        if (w->names)
            names_round(w->fs, i);
        atomic_store(&w->done, i + 1);
    }
    pst_close(f);
    free(buf);
    return NULL;
}

/* How the server goes down: after a SIGTERM no answered change is lost, after a SIGKILL no answered durable one. */
static void through_restarts(bool by_kill)
{
    int restarts = extended ? 20 : 2;
    struct worker w = {.names = !by_kill};
    struct daemon d;
    pthread_t id;
    void *failed;

    assert_true(daemon_start(&d, program, NULL));
    w.fs = connect_at(d.base, "restart", 120000);
    assert_int_equal(pthread_create(&id, NULL, work, &w), 0);
    for (int i = 0; i < restarts; i++) {
        int before = atomic_load(&w.done);
        while (atomic_load(&w.done) >= 0 && atomic_load(&w.done) < before + 5)
            nap(10);
        nap((int)(seed >> i & 63));
        if (by_kill)
            daemon_kill(&d);
        else
            assert_int_equal(daemon_stop(&d), 0);
        assert_true(daemon_again(&d));
    }
    atomic_store(&w.stop, true);
    pthread_join(id, &failed);
    assert_null(failed);
    check_records(w.fs, "/log", atomic_load(&w.done));
    assert_int_equal(pst_disconnect(w.fs), 0);
    daemon_done(&d);
}

static void a_drained_server_that_comes_back_repeats_nothing(void **state)
{
    (void)state;
    through_restarts(false);
}

static void a_killed_server_that_comes_back_repeats_nothing(void **state)
{
    (void)state;
    through_restarts(true);
}

static void open_files_are_opened_again_or_stale(void **state)
{
    struct daemon d;
    struct pst_fs *fs;
    struct pst_file *kept, *gone;
    char buf[16];

    (void)state;
    assert_true(daemon_start(&d, program, NULL));
    fs = connect_at(d.base, "reopen", 60000);
    kept = api_open_new(fs, "/kept", 0);
    gone = api_open_new(fs, "/gone", 0);
    assert_int_equal(pst_pwrite(kept, "kept", 4, 0), 4);
    assert_int_equal(pst_pwrite(gone, "gone", 4, 0), 4);
    assert_int_equal(pst_fsync(kept), 0);
    assert_int_equal(pst_unlink(fs, "/gone"), 0);
    assert_int_equal(pst_sync(fs), 0);
    assert_int_equal(pst_pread(gone, buf, 4, 0), 4);
    assert_int_equal(daemon_stop(&d), 0);
    assert_true(daemon_again(&d));
    assert_int_equal(pst_pread(kept, buf, 4, 0), 4);
    assert_memory_equal(buf, "kept", 4);
    assert_int_equal(pst_pwrite(kept, "KEPT", 4, 0), 4);
    assert_int_equal(pst_pread(gone, buf, 4, 0), -ESTALE);
    assert_int_equal(pst_close(kept), 0);
    pst_close(gone);
    api_expect(fs, "/kept", "KEPT");
    assert_int_equal(pst_disconnect(fs), 0);
    daemon_done(&d);
}

/* As if the machine had crashed too; and nothing is synced by itself meanwhile. */
static const char *const forgets[] = {"--store-option", "recent=0", "--store-option", "sync_ms=5000", NULL};

/* What was written and answered, but not yet durable, goes with the machine. */
static void an_fsync_after_a_crash_tells_of_lost_writes(void **state)
{
    struct daemon d;
    struct pst_fs *fs;
    struct pst_file *f, *g;

    (void)state;
    assert_true(daemon_start(&d, program, forgets));
    fs = connect_at(d.base, "crash", 60000);
    f = api_open_new(fs, "/f", 0);
    g = api_open_new(fs, "/g", 0);
    assert_int_equal(pst_pwrite(f, "1", 1, 0), 1);
    assert_int_equal(pst_pwrite(g, "1", 1, 0), 1);
    assert_int_equal(pst_fsync(f), 0);
    assert_int_equal(pst_fsync(g), 0);
    assert_int_equal(pst_pwrite(f, "2", 1, 0), 1);
    assert_int_equal(pst_flush(f), 0);
    daemon_kill(&d);
    assert_true(daemon_again(&d));
    assert_int_equal(pst_fsync(g), 0); /* all of it was durable */
    assert_int_equal(pst_fsync(f), -EIO);
    assert_int_equal(pst_fsync(f), 0);
    assert_int_equal(pst_pwrite(f, "3", 1, 0), 1);
    assert_int_equal(pst_flush(f), 0);
    daemon_kill(&d);
    assert_true(daemon_again(&d));
    assert_int_equal(pst_sync(fs), -EIO);
    assert_int_equal(pst_sync(fs), 0);
    assert_int_equal(pst_fsync(f), -EIO);
    assert_int_equal(pst_ftruncate(f, 0), 0);
    daemon_kill(&d);
    assert_true(daemon_again(&d));
    assert_int_equal(pst_fsync(f), -EIO);
    assert_int_equal(pst_pwrite(f, "4", 1, 0), 1);
    assert_int_equal(pst_flush(f), 0);
    assert_int_equal(daemon_stop(&d), 0); /* in order: nothing is lost */
    assert_true(daemon_again(&d));
    assert_int_equal(pst_fsync(f), 0);
    api_expect(fs, "/f", "4");
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_close(g), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    daemon_done(&d);
}

static struct pst_fs *connect_lazy(const char *base)
{
    struct pst_options o;
    struct pst_fs *fs;
    char url[200];

    pst_options_init(&o, sizeof o);
    o.flags = PST_CONNECT_CREATE | PST_CONNECT_LAZY_CLOSE;
    o.timeout_ms = 60000;
    snprintf(url, sizeof url, "%sp/lazy", base);
    if (pst_connect(url, &o, &fs) < 0)
        fail_msg("%s", pst_last_error());
    return fs;
}

/* Written and closed, not synced; the next who opens it and syncs relies on it. */
static void write_lazily(struct pst_fs *fs, const char *path, const char *text, bool durable)
{
    struct pst_file *f;

    assert_int_equal(pst_open(fs, path, O_RDWR | O_CREAT, 0644, &f), 0);
    assert_int_equal(pst_pwrite(f, text, strlen(text), 0), strlen(text));
    if (durable)
        assert_int_equal(pst_fsync(f), 0);
    assert_int_equal(pst_close(f), 0);
}

/* What an fsync of it says, first and then. */
static void expect_fsync(struct pst_fs *fs, const char *path, int flags, int first)
{
    struct pst_file *f;

    assert_int_equal(pst_open(fs, path, O_RDWR | flags, 0644, &f), 0);
    if (pst_fsync(f) != first)
        fail_msg("%s: fsync does not say %d", path, first);
    assert_int_equal(pst_fsync(f), 0);
    assert_int_equal(pst_close(f), 0);
}

static void an_fsync_after_a_crash_tells_of_what_was_closed_before(void **state)
{
    struct daemon d;
    struct pst_fs *fs;
    struct pst_file *open, *calm;

    (void)state;
    assert_true(daemon_start(&d, program, forgets));
    fs = connect_lazy(d.base);
    for (int i = 0; i < 4; i++)
        write_lazily(fs, (const char *[]){"/old", "/moved", "/linked", "/calm"}[i], "1", true);
    assert_int_equal(pst_mkdir(fs, "/d", 0755), 0);
    assert_int_equal(pst_open(fs, "/moved", O_RDWR, 0, &open), 0);
    assert_int_equal(pst_sync(fs), 0);
    write_lazily(fs, "/old", "2", false);
    write_lazily(fs, "/new", "1", false);
    write_lazily(fs, "/d/inside", "1", false);
    assert_int_equal(pst_rename(fs, "/moved", "/there", 0), 0);
    assert_int_equal(pst_link(fs, "/linked", "/d/link"), 0);
    daemon_kill(&d);
    assert_true(daemon_again(&d));
    expect_fsync(fs, "/old", 0, -EIO);       /* its data */
    expect_fsync(fs, "/new", O_CREAT, -EIO); /* made anew, empty */
    expect_fsync(fs, "/linked", 0, -EIO);    /* a name of it */
    expect_fsync(fs, "/calm", 0, 0);
    assert_int_equal(pst_fsync(open), -EIO); /* its new name */
    assert_int_equal(pst_fsync(open), 0);
    expect_fsync(fs, "/moved", 0, -EIO); /* found under the name that it had lost */
    assert_int_equal(pst_fsync_dir(fs, "/d"), -EIO);
    assert_int_equal(pst_fsync_dir(fs, "/d"), 0);
    assert_int_equal(pst_fsync_dir(fs, "/"), -EIO);
    assert_int_equal(pst_fsync_dir(fs, "/"), 0);
    assert_int_equal(pst_sync(fs), -EIO); /* /there, /d/inside: nobody has told of them */
    assert_int_equal(pst_sync(fs), 0);
    expect_fsync(fs, "/calm", 0, 0);
    assert_int_equal(pst_open(fs, "/calm", O_RDWR, 0, &calm), 0);
    assert_int_equal(daemon_stop(&d), 0); /* in order: nothing is lost */
    assert_true(daemon_again(&d));
    assert_int_equal(pst_fsync(calm), 0);
    assert_int_equal(pst_close(calm), 0);
    assert_int_equal(pst_close(open), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    daemon_done(&d);
}

/* With durability=close the close itself tells. */
static void a_close_after_a_crash_tells_of_a_lost_name(void **state)
{
    struct daemon d;
    struct pst_fs *fs;
    struct pst_file *f;

    (void)state;
    assert_true(daemon_start(&d, program, forgets));
    fs = connect_at(d.base, "close", 60000);
    api_put(fs, "/f", "old");
    api_put(fs, "/tmp", "new");
    assert_int_equal(pst_rename(fs, "/tmp", "/f", 0), 0);
    daemon_kill(&d);
    assert_true(daemon_again(&d));
    assert_int_equal(pst_open(fs, "/f", O_WRONLY | O_APPEND, 0, &f), 0);
    assert_int_equal(pst_append(f, "er", 2, NULL), 2);
    assert_int_equal(pst_close(f), -EIO);
    api_put(fs, "/f", "older");
    assert_int_equal(pst_disconnect(fs), 0);
    daemon_done(&d);
}

static void a_server_that_stays_away_is_a_time_out(void **state)
{
    struct daemon d;
    struct pst_fs *fs;
    struct pst_file *f;
    struct stat st;

    (void)state;
    assert_true(daemon_start(&d, program, NULL));
    fs = connect_at(d.base, "away", 700);
    f = api_open_new(fs, "/f", 0);
    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    daemon_kill(&d);
    assert_int_equal(pst_fsync(f), -ETIMEDOUT);
    assert_int_equal(pst_stat(fs, "/f", &st), -ETIMEDOUT);
    assert_non_null(strstr(pst_last_error(), "timeout_ms"));
    pst_close(f);
    assert_int_equal(pst_disconnect(fs), 0);
    daemon_done(&d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_answers_make_nothing_happen_twice),
        cmocka_unit_test(what_comes_late_over_an_old_connection_changes_nothing),
        cmocka_unit_test(a_lost_close_is_sent_again),
        cmocka_unit_test(a_drained_server_that_comes_back_repeats_nothing),
        cmocka_unit_test(a_killed_server_that_comes_back_repeats_nothing),
        cmocka_unit_test(an_fsync_after_a_crash_tells_of_lost_writes),
        cmocka_unit_test(an_fsync_after_a_crash_tells_of_what_was_closed_before),
        cmocka_unit_test(a_close_after_a_crash_tells_of_a_lost_name),
        cmocka_unit_test(open_files_are_opened_again_or_stale),
        cmocka_unit_test(a_server_that_stays_away_is_a_time_out),
    };
    int r;

    pst_backend_register(&pst_remote_backend);
    if ((r = remote_main_begin(argc, argv)))
        return r;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

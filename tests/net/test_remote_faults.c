/*
 * Faults between the client library and a real daemon: lost answers, restarts, answers that are held back, clients that
 * die. usage: test_remote_faults PENSTOCK   (and for its own children: test_remote_faults --child|--sleeper BASE)
 */
#include "api_cases.h"
#include "base/rng.h"
#include "base/util.h"
#include "daemon.h"
#include "remote/remote_store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

static const char *program, *self;
static uint64_t seed;
static bool extended;

static struct pst_fs *connect_at(const char *base, const char *container, unsigned timeout_ms)
{
    struct pst_fs *fs;

    api_base = base;
    if (api_connect(container, timeout_ms, &fs) < 0)
        fail_msg("%s", pst_last_error());
    return fs;
}

/* Through the proxy, with the daemon's token. */
static struct pst_fs *connect_by_proxy(const struct daemon *d, const char *container)
{
    char base[80], token[200];

    snprintf(token, sizeof token, "%s/%d.token", d->dir, d->port);
    setenv("PENSTOCK_TOKEN_FILE", token, 1);
    snprintf(base, sizeof base, "penstock://127.0.0.2:%d/", d->port);
    return connect_at(base, container, 120000);
}

static void nap(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL);
}

/* ---- exactly once ---- */

/* Each call must succeed, which a second execution of the same request would not. */
static void names_round(struct pst_fs *fs, int i)
{
    char a[32], b[32], l[32];
    struct pst_file *f;
    struct stat st;

    snprintf(a, sizeof a, "/a%d", i);
    snprintf(b, sizeof b, "/b%d", i);
    snprintf(l, sizeof l, "/l%d", i);
    assert_int_equal(pst_open(fs, a, O_RDWR | O_CREAT | O_EXCL, 0644, &f), 0);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_link(fs, a, l), 0);
    assert_int_equal(pst_rename(fs, a, b, PST_RENAME_KEEP), 0);
    assert_int_equal(pst_stat(fs, b, &st), 0);
    assert_int_equal(st.st_nlink, 2);
    assert_int_equal(pst_rename(fs, b, l, PST_RENAME_SWAP), 0);
    assert_int_equal(pst_unlink(fs, b), 0);
    assert_int_equal(pst_unlink(fs, l), 0);
    assert_int_equal(pst_mkdir(fs, a, 0755), 0);
    assert_int_equal(pst_symlink(fs, "x", b), 0);
    assert_int_equal(pst_rmdir(fs, a), 0);
    assert_int_equal(pst_unlink(fs, b), 0);
}

/* Records of all kinds of sizes: in the message, by memory. Each carries its number and a pattern. */
static size_t record(int i, uint8_t *buf)
{
    size_t n = 16 + (size_t)i * 7919 % (i % 4 ? 3000 : 150000);

    memset(buf, i & 0xff, n);
    memcpy(buf, &i, sizeof i);
    memcpy(buf + 4, &(uint32_t){(uint32_t)n}, 4);
    return n;
}

static void check_records(struct pst_fs *fs, const char *path, int count)
{
    uint8_t *want = malloc(200000), *got = malloc(200000);
    struct pst_file *f;
    struct stat st;
    uint64_t at = 0;

    assert_int_equal(pst_open(fs, path, O_RDONLY, 0, &f), 0);
    for (int i = 0; i < count; i++) {
        size_t n = record(i, want);
        assert_int_equal(pst_pread(f, got, n, at), n);
        assert_memory_equal(want, got, n);
        at += n;
    }
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_size, at);
    assert_int_equal(pst_close(f), 0);
    free(want);
    free(got);
}

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

/* What was written and answered, but not yet durable, goes with the machine. */
static void an_fsync_after_a_crash_tells_of_lost_writes(void **state)
{
    static const char *const without[] = {"--store-option", "recent=0", NULL}; /* as if the machine had crashed too */
    struct daemon d;
    struct pst_fs *fs;
    struct pst_file *f, *g;

    (void)state;
    assert_true(daemon_start(&d, program, without));
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

/* As if the machine had crashed too; and nothing is synced by itself meanwhile. */
static const char *const forgets[] = {"--store-option", "recent=0", "--store-option", "sync_ms=5000", NULL};

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

/* ---- the buffer rule ---- */

enum registration { NOT_REGISTERED, REGISTERED, STAYS_REGISTERED };

/* A read whose answer the server holds back for a second: the buffer is reused at once, and nothing lands in it. */
static void held_back(const struct daemon *d, enum registration how, bool cancel)
{
    size_t size = 2 * MiB;
    uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec iov = {p, size};
    struct pst_buf *b = NULL;
    struct pst_event ev;
    struct pst_file *f;
    struct pst_eq *eq;
    struct pst_fs *fs = connect_at(d->base, "rule", cancel ? 60000 : 300);
    int64_t n;

    f = api_open_new(fs, "/f", O_DIRECT);
    memset(p, 0x11, size);
    do { /* a busy machine may need longer than the time-out to connect */
        n = pst_pwrite(f, p, size, 0);
    } while (n == -ETIMEDOUT || (n > 0 && (size_t)n < size));
    assert_int_equal(n, size);
    if (how != NOT_REGISTERED)
        assert_int_equal(pst_buf_register(fs, p, size, &b), 0);
    assert_int_equal(pst_eq_create(fs, 4, &eq), 0);
    assert_int_equal(pst_aio_read(f, &iov, 1, 0, eq, &iov), 0);
    nap(100);
    if (how != NOT_REGISTERED)
        assert_int_equal(pst_buf_unregister(b), -EBUSY);
    if (cancel)
        assert_int_equal(pst_aio_cancel(eq, &iov), 1);
    assert_int_equal(pst_eq_poll(eq, &ev, 1, 60000), 1);
    assert_int_equal(ev.result, cancel ? -ECANCELED : -ETIMEDOUT);
    if (how == REGISTERED)
        assert_int_equal(pst_buf_unregister(b), 0);
    memset(p, 0x22, size);
    nap(1200);
    for (size_t i = 0; i < size; i++)
        if (p[i] != 0x22)
            fail_msg("byte %zu of the reused buffer was overwritten", i);
    if (how == STAYS_REGISTERED)
        assert_int_equal(pst_buf_unregister(b), 0);
    pst_eq_destroy(eq);
    n = pst_close(f);
    assert_true(n == 0 || (n == -ETIMEDOUT && !cancel));
    assert_int_equal(pst_disconnect(fs), 0);
    munmap(p, size);
}

static void an_abandoned_read_never_lands_in_reused_memory(void **state)
{
    struct daemon d;

    (void)state;
    assert_true(daemon_start(&d, program, (const char *[]){"--filter", "delay:op=read,ms=1000", NULL}));
    for (enum registration how = NOT_REGISTERED; how <= STAYS_REGISTERED; how++) {
        held_back(&d, how, false);
        held_back(&d, how, true);
    }
    daemon_done(&d);
}

/* ---- clients that sleep and die ---- */

/* Appends durable records until its input ends. */
static int sleeper(const char *base)
{
    uint8_t *buf = malloc(200000);
    struct pst_fs *fs;
    struct pst_file *f;
    struct pollfd in = {.fd = 0, .events = POLLIN};
    int i;

    api_base = base;
    if (api_connect("sleeping", 60000, &fs) < 0)
        return 1;
    f = api_open_new(fs, "/log", O_APPEND | O_DSYNC);
    for (i = 0; poll(&in, 1, 0) == 0; i++) {
        size_t n = record(i, buf);
        if (pst_append(f, buf, n, NULL) != (int64_t)n) {
            fprintf(stderr, "%s\n", pst_last_error());
            return 1;
        }
        if (i == 5 && write(1, "x", 1) != 1)
            return 1;
    }
    free(buf);
    check_records(fs, "/log", i);
    return pst_close(f) < 0 || pst_disconnect(fs) < 0;
}

/* The same, with nothing but syncs of a directory. */
static int sleeper_of_names(const char *base)
{
    struct pst_fs *fs;
    struct pollfd in = {.fd = 0, .events = POLLIN};

    api_base = base;
    if (api_connect("sleeping", 60000, &fs) < 0)
        return 1;
    for (int i = 0; poll(&in, 1, 0) == 0; i++) {
        if (pst_fsync_dir(fs, "/") < 0 || pst_sync(fs) < 0) {
            fprintf(stderr, "%s\n", pst_last_error());
            return 1;
        }
        if (i == 5 && write(1, "x", 1) != 1)
            return 1;
    }
    return pst_disconnect(fs) < 0;
}

/* The daemon's thread that ends sessions stands still until it is let go. */
static pid_t hold_leases(const struct daemon *d)
{
    char path[300], name[32];
    pid_t found = 0;
    struct dirent *e;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/task", d->pid);
    dir = opendir(path);
    assert_non_null(dir);
    while (!found && (e = readdir(dir))) {
        FILE *f;
        snprintf(path, sizeof path, "/proc/%d/task/%s/comm", d->pid, e->d_name);
        f = fopen(path, "r");
        if (f && fgets(name, sizeof name, f) && !strcmp(name, "pst-leases\n"))
            found = atoi(e->d_name);
        if (f)
            fclose(f);
    }
    closedir(dir);
    assert_true(found > 0);
    assert_int_equal(ptrace(PTRACE_SEIZE, found, NULL, NULL), 0);
    assert_int_equal(ptrace(PTRACE_INTERRUPT, found, NULL, NULL), 0);
    assert_int_equal(waitpid(found, NULL, __WALL), found);
    return found;
}

/* leases_late: the server has not ended the old session yet when the client opens its next one. */
static void sleeps_beyond_its_lease(const char *how, bool leases_late)
{
    struct daemon d;
    int out[2], in[2], status;
    pid_t pid, held = 0;
    char c;

    assert_true(daemon_start(&d, program, (const char *[]){"--lease", "1s", NULL}));
    assert_true(pipe(out) == 0 && pipe(in) == 0);
    pid = fork();
    if (pid == 0) {
        dup2(out[1], 1);
        dup2(in[0], 0);
        close(in[1]);
        execl(self, self, how, d.base, NULL);
        _exit(127);
    }
    assert_int_equal(read(out[0], &c, 1), 1);
    kill(pid, SIGSTOP);
    if (leases_late)
        held = hold_leases(&d);
    nap(2500);
    kill(pid, SIGCONT);
    nap(500);
    close(in[0]);
    close(in[1]); /* enough */
    waitpid(pid, &status, 0);
    if (held)
        assert_int_equal(ptrace(PTRACE_DETACH, held, NULL, NULL), 0);
    assert_int_equal(status, 0);
    close(out[0]);
    close(out[1]);
    daemon_done(&d);
}

static void a_client_that_slept_beyond_its_lease_goes_on(void **state)
{
    (void)state;
    sleeps_beyond_its_lease("--sleeper", false);
}

/* To the server the old session and its data connections are as alive as the next one. */
static void data_of_the_next_session_takes_no_connection_of_the_old_one(void **state)
{
    (void)state;
    sleeps_beyond_its_lease("--sleeper", true);
}

static void syncs_of_a_directory_go_on_in_the_next_session(void **state)
{
    (void)state;
    sleeps_beyond_its_lease("--sleeper-of-names", false);
}

/* Writes and reads until it is killed. */
static int child(const char *base)
{
    struct pst_fs *fs;
    struct pst_file *f;
    uint8_t *buf = malloc(4 * MiB);

    api_base = base;
    if (api_connect("dying", 0, &fs) < 0 || pst_open(fs, "/f", O_RDWR | O_CREAT | O_DIRECT, 0644, &f) < 0)
        return 1;
    memset(buf, 1, 4 * MiB);
    if (write(1, "x", 1) != 1)
        return 1;
    for (;;)
        if (pst_pwrite(f, buf, 4 * MiB, 0) < 0 || pst_pread(f, buf, 4 * MiB, 0) < 0)
            return 1;
}

static void the_server_survives_clients_that_die_in_transfers(void **state)
{
    int rounds = extended ? 100 : 5;
    struct daemon d;
    struct pst_fs *fs;
    struct rng r;
    long before, after = 0;

    (void)state;
    rng_seed(&r, seed);
    assert_true(daemon_start(&d, program, (const char *[]){"--lease", "1s", NULL}));
    fs = connect_at(d.base, "living", 0);
    api_put(fs, "/f", "alive");
    api_expect(fs, "/f", "alive"); /* with the data connection that stays */
    before = daemon_sockets(&d);
    for (int i = 0; i < rounds; i++) {
        int pipes[2];
        pid_t pid;
        char c;
        assert_int_equal(pipe(pipes), 0);
        pid = fork();
        if (pid == 0) {
            dup2(pipes[1], 1);
            execl(self, self, "--child", d.base, NULL);
            _exit(127);
        }
        close(pipes[1]);
        assert_int_equal(read(pipes[0], &c, 1), 1);
        close(pipes[0]);
        nap((int)rng_below(&r, 60));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        api_expect(fs, "/f", "alive");
    }
    for (int i = 0; i < 100 && (after = daemon_sockets(&d)) > before; i++)
        nap(50);
    assert_true(after <= before);
    assert_int_equal(pst_disconnect(fs), 0);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_done(&d);
}

static void a_child_of_fork_leaves_its_parents_connection_alone(void **state)
{
    struct daemon d;
    struct pst_fs *fs;
    struct pst_file *f;
    char buf[8];

    (void)state;
    assert_true(daemon_start(&d, program, NULL));
    fs = connect_at(d.base, "fork", 0);
    f = api_open_new(fs, "/f", 0);
    for (int i = 0; i < 10; i++) {
        int status;
        pid_t pid;
        assert_int_equal(pst_pwrite(f, "parent", 6, 0), 6);
        pid = fork();
        if (pid == 0)
            _exit(pst_pread(f, buf, 6, 0) == -ECHILD && pst_fsync(f) == -ECHILD && pst_close(f) == -ECHILD &&
                          pst_disconnect(fs) == -ECHILD && api_connect("fork", 0, &fs) == -ECHILD ? 0 : 1);
        assert_int_equal(pst_fsync(f), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_int_equal(pst_pread(f, buf, 6, 0), 6);
    }
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    daemon_done(&d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_answers_make_nothing_happen_twice),
        cmocka_unit_test(a_lost_close_is_sent_again),
        cmocka_unit_test(a_drained_server_that_comes_back_repeats_nothing),
        cmocka_unit_test(a_killed_server_that_comes_back_repeats_nothing),
        cmocka_unit_test(an_fsync_after_a_crash_tells_of_lost_writes),
        cmocka_unit_test(an_fsync_after_a_crash_tells_of_what_was_closed_before),
        cmocka_unit_test(a_close_after_a_crash_tells_of_a_lost_name),
        cmocka_unit_test(open_files_are_opened_again_or_stale),
        cmocka_unit_test(a_server_that_stays_away_is_a_time_out),
        cmocka_unit_test(an_abandoned_read_never_lands_in_reused_memory),
        cmocka_unit_test(a_client_that_slept_beyond_its_lease_goes_on),
        cmocka_unit_test(data_of_the_next_session_takes_no_connection_of_the_old_one),
        cmocka_unit_test(syncs_of_a_directory_go_on_in_the_next_session),
        cmocka_unit_test(the_server_survives_clients_that_die_in_transfers),
        cmocka_unit_test(a_child_of_fork_leaves_its_parents_connection_alone),
    };
    const char *s = getenv("PENSTOCK_SEED");

    pst_backend_register(&pst_remote_backend);
    if (argc == 3 && !strcmp(argv[1], "--child"))
        return child(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--sleeper"))
        return sleeper(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--sleeper-of-names"))
        return sleeper_of_names(argv[2]);
    if (argc < 2)
        return 2;
    program = argv[1];
    self = argv[0];
    extended = getenv("PENSTOCK_EXTENDED") != NULL;
    seed = s ? strtoull(s, NULL, 0) : (uint64_t)wall_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

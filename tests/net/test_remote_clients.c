/*
 * Clients of a real daemon that give up, sleep, die and fork. usage: test_remote_clients PENSTOCK [TEST]   (and for its
 * own children: test_remote_clients --child|--sleeper|--sleeper-of-names BASE)
 */
#include "api_cases.h"
#include "base/rng.h"
#include "base/util.h"
#include "daemon.h"
#include "remote/remote_store.h"
#include "remote_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

static const char *self;

/* ---- the buffer rule ---- */

enum registration { NOT_REGISTERED, REGISTERED, STAYS_REGISTERED };

/* A read whose answer the server holds back for a second: the buffer is reused at once, and nothing lands in it. */
struct held {
    enum registration how;
    bool cancel; /* or a time-out */
    uint8_t *p;
    struct iovec iov;
    struct pst_buf *b;
    struct pst_fs *fs;
    struct pst_file *f;
    struct pst_eq *eq;
};

#define HELD_BYTES (2 * MiB)

static void held_set_up(const struct daemon *d, struct held *h)
{
    char path[20];
    int64_t n;

    h->p = mmap(NULL, HELD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    h->iov = (struct iovec){h->p, HELD_BYTES};
    h->fs = connect_at(d->base, "rule", h->cancel ? 60000 : 300);
    snprintf(path, sizeof path, "/f%d%d", h->how, h->cancel);
    h->f = api_open_new(h->fs, path, O_DIRECT);
    memset(h->p, 0x11, HELD_BYTES);
    do { /* a busy machine may need longer than the time-out to connect */
        n = pst_pwrite(h->f, h->p, HELD_BYTES, 0);
    } while (n == -ETIMEDOUT || (n > 0 && (size_t)n < HELD_BYTES));
    assert_int_equal(n, HELD_BYTES);
    if (h->how != NOT_REGISTERED)
        assert_int_equal(pst_buf_register(h->fs, h->p, HELD_BYTES, &h->b), 0);
    assert_int_equal(pst_eq_create(h->fs, 4, &h->eq), 0);
}

static void held_reuse(struct held *h)
{
    struct pst_event ev;

    assert_int_equal(pst_eq_poll(h->eq, &ev, 1, 60000), 1);
    assert_int_equal(ev.result, h->cancel ? -ECANCELED : -ETIMEDOUT);
    if (h->how == REGISTERED)
        assert_int_equal(pst_buf_unregister(h->b), 0);
    memset(h->p, 0x22, HELD_BYTES);
}

static void held_end(struct held *h)
{
    int r;

    for (size_t i = 0; i < HELD_BYTES; i++)
        if (h->p[i] != 0x22)
            fail_msg("registration %d, cancel %d: byte %zu of the reused buffer was overwritten", h->how, h->cancel, i);
    if (h->how == STAYS_REGISTERED)
        assert_int_equal(pst_buf_unregister(h->b), 0);
    pst_eq_destroy(h->eq);
    r = pst_close(h->f);
    assert_true(r == 0 || (r == -ETIMEDOUT && !h->cancel));
    assert_int_equal(pst_disconnect(h->fs), 0);
    munmap(h->p, HELD_BYTES);
}

/* All at once, each by a client of its own. */
static void an_abandoned_read_never_lands_in_reused_memory(void **state)
{
    struct held h[6] = {0};
    struct daemon d;

    (void)state;
    assert_true(daemon_start(&d, program, (const char *[]){"--filter", "delay:op=read,ms=1000", NULL}));
    for (int i = 0; i < 6; i++) {
        h[i].how = NOT_REGISTERED + i / 2;
        h[i].cancel = i % 2;
        held_set_up(&d, &h[i]);
    }
    for (int i = 0; i < 6; i++)
        assert_int_equal(pst_aio_read(h[i].f, &h[i].iov, 1, 0, h[i].eq, &h[i].iov), 0);
    nap(100);
    for (int i = 0; i < 6; i++)
        if (h[i].how != NOT_REGISTERED)
            assert_int_equal(pst_buf_unregister(h[i].b), -EBUSY);
    for (int i = 1; i < 6; i += 2)
        assert_int_equal(pst_aio_cancel(h[i].eq, &h[i].iov), 1);
    for (int i = 0; i < 6; i++)
        held_reuse(&h[i]);
    nap(1200);
    for (int i = 0; i < 6; i++)
        held_end(&h[i]);
    daemon_done(&d);
}

/* ---- changes that were given up ---- */

/* A write that was begun by the caller, and cancelled. */
static void cancel_a_write(struct pst_fs *fs, struct pst_file *f, uint8_t *bytes, size_t n)
{
    struct iovec iov = {bytes, n};
    struct pst_event ev;
    struct pst_eq *eq;

    assert_int_equal(pst_eq_create(fs, 4, &eq), 0);
    assert_int_equal(pst_aio_write(f, &iov, 1, 0, eq, &iov), 0);
    nap(200);
    assert_int_equal(pst_aio_cancel(eq, &iov), 1);
    assert_int_equal(pst_eq_poll(eq, &ev, 1, 60000), 1);
    assert_int_equal(ev.result, -ECANCELED);
    pst_eq_destroy(eq);
}

/* A rename onto the file's name that is given up, and the file made anew after it. */
static struct pst_file *give_up_a_rename(struct pst_fs *fs)
{
    struct pst_file *f;
    int r;

    api_put(fs, "/a", "old");
    assert_int_equal(pst_rename(fs, "/a", "/f", 0), -ETIMEDOUT);
    while ((r = pst_open(fs, "/f", O_CREAT | O_WRONLY | O_TRUNC, 0644, &f)) == -ETIMEDOUT)
        nap(50);
    assert_int_equal(r, 0);
    return f;
}

/* The server holds the first change back for longer than the client waits; what the client does next is what stays. */
static void what_was_given_up_does_not_come_after_a_later_change(void **state)
{
    static const char *const slow[] = {"delay:op=write,ms=900,count=1", "delay:op=write,ms=900,count=1",
                                       "delay:op=write,ms=900,count=1", "delay:op=rename,ms=900,count=1"};
    uint8_t *old = malloc(MiB), *new = malloc(MiB), *got = malloc(MiB);
    (void)state;

    memset(old, 'o', MiB);
    memset(new, 'n', MiB);
    for (int kind = 0; kind < 4; kind++) {
        size_t n = kind == 1 ? MiB : 9;
        struct daemon d;
        struct pst_fs *fs, *other;
        struct pst_file *f;
        if (kind == 1 && !extended)
            continue;
        assert_true(daemon_start(&d, program, (const char *[]){"--filter", slow[kind], NULL}));
        fs = connect_at(d.base, "late", 500);
        if (kind == 3) {
            f = give_up_a_rename(fs);
        } else if (kind == 2) {
            f = api_open_new(fs, "/f", O_DIRECT);
            cancel_a_write(fs, f, old, n);
        } else {
            f = api_open_new(fs, "/f", 0);
            pst_pwrite(f, old, n, 0);
            assert_int_equal(pst_fsync(f), -ETIMEDOUT);
        }
        while (pst_pwrite(f, new, n, 0) != (int64_t)n || pst_fsync(f) != 0)
            nap(50);
        assert_int_equal(pst_close(f), 0);
        nap(700);
        other = connect_at(d.base, "late", 0);
        assert_int_equal(pst_open(other, "/f", O_RDONLY, 0, &f), 0);
        assert_int_equal(pst_pread(f, got, MiB, 0), n);
        assert_memory_equal(got, new, n);
        assert_int_equal(pst_close(f), 0);
        assert_int_equal(pst_disconnect(other), 0);
        assert_int_equal(pst_disconnect(fs), 0);
        daemon_done(&d);
    }
    free(old);
    free(new);
    free(got);
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
    nap(1600); /* the server looks each eighth of a lease */
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
                          pst_disconnect(fs) == -ECHILD && api_connect("fork", 0, &fs) == -ECHILD
                      ? 0
                      : 1);
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
        cmocka_unit_test(an_abandoned_read_never_lands_in_reused_memory),
        cmocka_unit_test(what_was_given_up_does_not_come_after_a_later_change),
        cmocka_unit_test(a_client_that_slept_beyond_its_lease_goes_on),
        cmocka_unit_test(data_of_the_next_session_takes_no_connection_of_the_old_one),
        cmocka_unit_test(syncs_of_a_directory_go_on_in_the_next_session),
        cmocka_unit_test(the_server_survives_clients_that_die_in_transfers),
        cmocka_unit_test(a_child_of_fork_leaves_its_parents_connection_alone),
    };
    int r;

    pst_backend_register(&pst_remote_backend);
    if (argc == 3 && !strcmp(argv[1], "--child"))
        return child(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--sleeper"))
        return sleeper(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--sleeper-of-names"))
        return sleeper_of_names(argv[2]);
    self = argv[0];
    if ((r = remote_main_begin(argc, argv)))
        return r;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

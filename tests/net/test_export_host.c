/*
 * Exported memory where one side fails, seen from the client: a daemon that stops, a client that dies, a stranger in
 * the daemon's place. usage: test_export_host PENSTOCK [TEST]
 */
#include "remote_case.h"

#include "api_cases.h"
#include "base/util.h"
#include "daemon.h"
#include "fabric/export.h"
#include "remote/remote_store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define BYTES (4u << 20)

static struct daemon server;

static int start(void **state)
{
    (void)state;
    pst_backend_register(&pst_remote_backend);
    return daemon_start(&server, program, NULL) ? 0 : -1;
}

static int done(void **state)
{
    (void)state;
    daemon_done(&server);
    return 0;
}

static int mapped(void)
{
    return memory_mapped(server.pid);
}

static void wait_until_nothing_is_mapped(void)
{
    for (int i = 0; mapped() > 0; i++) {
        if (i == 1000)
            fail_msg("the daemon keeps %d pieces of memory of clients that are gone", mapped());
        nap(10);
    }
}

static void put(struct pst_fs *fs, const char *path, int c)
{
    uint8_t *p = malloc(BYTES);
    struct pst_file *f = api_open_new(fs, path, 0);

    memset(p, c, BYTES);
    assert_int_equal(pst_pwrite(f, p, BYTES, 0), BYTES);
    assert_int_equal(pst_close(f), 0);
    free(p);
}

struct found {
    bool exported;
};

static void look_for_placement(void *user, const char *key, const char *value)
{
    struct found *f = user;

    if (!strcmp(key, "data.placement"))
        f->exported = strstr(value, "exported") == value;
}

static void a_connection_says_who_places_its_bytes(void **state)
{
    struct pst_fs *fs;
    struct found f = {false};

    (void)state;
    fs = connect_at(server.base, "facts", 0);
    pst_describe(fs, look_for_placement, &f);
    assert_false(f.exported); /* nothing yet */
    put(fs, "/x", 'x');
    pst_describe(fs, look_for_placement, &f);
    assert_true(f.exported);
    assert_true(mapped() > 0);
    assert_int_equal(pst_disconnect(fs), 0);
    wait_until_nothing_is_mapped();

    setenv("PENSTOCK_PLACEMENT", "crossing", 1);
    fs = connect_at(server.base, "facts", 0);
    put(fs, "/y", 'y');
    f.exported = true;
    pst_describe(fs, look_for_placement, &f);
    assert_false(f.exported);
    assert_int_equal(mapped(), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    setenv("PENSTOCK_PLACEMENT", "exported", 1);
}

/*
 * What the daemon does late it does where nobody else is: requests of one file time out while it stands still; when it
 * goes on, their bytes come into memory that is not used for those of the other file.
 */
static void what_comes_late_meets_no_other_request(void **state)
{
    uint8_t *p = malloc(BYTES);
    struct pst_fs *fs = connect_at(server.base, "late", 700);
    struct pst_file *a, *b;
    int late = 0;

    (void)state;
    put(fs, "/a", 'a');
    put(fs, "/b", 'b');
    assert_int_equal(pst_open(fs, "/a", O_RDONLY | O_DIRECT, 0, &a), 0);
    assert_int_equal(pst_open(fs, "/b", O_RDONLY | O_DIRECT, 0, &b), 0);
    for (int round = 0; round < 4; round++) {
        int64_t n;
        kill(server.pid, SIGSTOP);
        nap(30); /* until all its threads stand */
        n = pst_pread(a, p, BYTES, 0);
        late += n < 0;
        memset(p, 'm', BYTES);
        kill(server.pid, SIGCONT);
        for (int i = 0; i < 20; i++) {
            n = pst_pread(b, p, BYTES - 4096u * (unsigned)i, 0);
            if (n < 0 && i < 10) { /* it still recovers */
                nap(50);
                continue;
            }
            assert_int_equal(n, BYTES - 4096 * i);
            for (int64_t k = 0; k < n; k++)
                if (p[k] != 'b')
                    fail_msg("round %d, read %d: byte %lld is '%c'", round, i, (long long)k, p[k]);
            for (size_t k = (size_t)n; i == 0 && k < BYTES; k++)
                assert_int_equal(p[k], 'm');
        }
    }
    assert_true(late > 0);
    assert_int_equal(pst_close(a), 0);
    assert_int_equal(pst_close(b), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    free(p);
    wait_until_nothing_is_mapped();
}

static void a_client_that_dies_in_mid_transfer_leaves_nothing(void **state)
{
    struct pst_fs *fs;
    int busy = 0;

    (void)state;
    for (int round = 0; round < 8; round++) {
        pid_t pid = busy_client(server.base, round % 2, "exported");
        for (int i = 0; i < 500 && mapped() == 0; i++)
            nap(10);
        nap(20 + (int)(seed >> round) % 60);
        busy += mapped() > 0;
        kill_client(pid);
        wait_until_nothing_is_mapped();
    }
    assert_true(busy > 0);
    fs = connect_at(server.base, "after", 0); /* the daemon serves on */
    put(fs, "/x", 'x');
    assert_int_equal(pst_disconnect(fs), 0);
}

/* ---- a stranger ---- */

struct stranger {
    int fd;
    int hellos, descriptors;
    bool stop;
    pthread_t thread;
};

/* Says what it likes to each that comes, and takes what it gets. */
static void *be_a_stranger(void *arg)
{
    struct stranger *s = arg;

    while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) {
        char room[CMSG_SPACE(4 * sizeof(int))] __attribute__((aligned(8))), buf[200];
        struct export_answer a = {.uid = put_le32(geteuid())};
        struct iovec iov = {buf, sizeof buf};
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        int fd;
        if (poll(&p, 1, 20) <= 0)
            continue;
        fd = accept(s->fd, NULL, NULL);
        s->hellos += recv(fd, buf, sizeof buf, 0) == sizeof(struct export_hello);
        send(fd, &a, sizeof a, MSG_NOSIGNAL);
        if (recvmsg(fd, &m, 0) > 0)
            s->descriptors += CMSG_FIRSTHDR(&m) != NULL;
        close(fd);
    }
    return NULL;
}

static void a_stranger_in_the_daemons_place_gets_no_memory(void **state)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct stranger s = {.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    char path[90], aside[100];
    struct pst_fs *fs;
    struct found f = {true};

    (void)state;
    snprintf(path, sizeof path, "%s/export.sock", server.dir);
    snprintf(aside, sizeof aside, "%s.aside", path);
    assert_int_equal(rename(path, aside), 0);
    memcpy(sa.sun_path, path, strlen(path) + 1);
    assert_int_equal(bind(s.fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(listen(s.fd, 5), 0);
    assert_int_equal(pthread_create(&s.thread, NULL, be_a_stranger, &s), 0);

    setenv("PENSTOCK_PLACEMENT", "auto", 1);
    fs = connect_at(server.base, "stranger", 0);
    put(fs, "/x", 'x'); /* crosses, and is whole */
    put(fs, "/y", 'y');
    pst_describe(fs, look_for_placement, &f);
    assert_false(f.exported);
    assert_int_equal(pst_disconnect(fs), 0);
    setenv("PENSTOCK_PLACEMENT", "exported", 1);

    __atomic_store_n(&s.stop, true, __ATOMIC_RELEASE);
    pthread_join(s.thread, NULL);
    assert_true(s.hellos > 0);
    assert_int_equal(s.descriptors, 0);
    close(s.fd);
    assert_int_equal(rename(aside, path), 0);
}

struct reader {
    struct pst_file *f;
    uint8_t *p;
    uint64_t end;
    bool bad;
};

static void *read_on(void *arg)
{
    struct reader *r = arg;

    while (now_ns() < r->end && !r->bad) {
        memset(r->p, 'x', BYTES);
        r->bad = pst_pread(r->f, r->p, BYTES, 0) != BYTES;
        for (size_t i = 0; i < BYTES; i++)
            r->bad |= r->p[i] != 'a';
    }
    return NULL;
}

/*
 * Memory that was handed over, whole: when its reads are over nothing of them comes later, though the daemon died under
 * them.
 */
static void a_killed_daemon_writes_nothing_more(void **state)
{
    struct pst_fs *fs = connect_at(server.base, "killed", 0);
    struct reader r = {NULL};
    struct pst_buf *b;

    (void)state;
    put(fs, "/a", 'a');
    assert_int_equal(pst_buf_alloc(fs, 2 * BYTES, &b, (void **)&r.p), 0);
    assert_int_equal(pst_open(fs, "/a", O_RDONLY | O_DIRECT, 0, &r.f), 0);
    for (int round = 0; round < 3; round++) {
        pthread_t t;
        memset(r.p, 'm', 2 * BYTES);
        r.end = now_ns() + 200 * NSEC_PER_MSEC;
        assert_int_equal(pthread_create(&t, NULL, read_on, &r), 0);
        nap(10 + (int)(seed >> (4 * round)) % 40);
        daemon_kill(&server);
        assert_true(daemon_again(&server));
        pthread_join(t, NULL);
        assert_false(r.bad);
        memset(r.p, 'm', BYTES);
        nap(50);
        for (size_t i = 0; i < 2 * BYTES; i++)
            if (r.p[i] != 'm')
                fail_msg("round %d: byte %zu was written later", round, i);
    }
    assert_int_equal(pst_close(r.f), 0);
    assert_int_equal(pst_buf_unregister(b), 0);
    assert_int_equal(pst_disconnect(fs), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_says_who_places_its_bytes),
        cmocka_unit_test(what_comes_late_meets_no_other_request),
        cmocka_unit_test(a_client_that_dies_in_mid_transfer_leaves_nothing),
        cmocka_unit_test(a_killed_daemon_writes_nothing_more),
        cmocka_unit_test(a_stranger_in_the_daemons_place_gets_no_memory),
    };
    int r = remote_main_begin(argc, argv);

    return r ? r : cmocka_run_group_tests(tests, start, done);
}

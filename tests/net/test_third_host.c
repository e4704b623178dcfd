/*
 * Third-party placement where one side fails, seen from the host: the bytes of its requests go between it and the
 * server behind its agent. usage: test_third_host PENSTOCK [TEST]
 */
#include "remote_case.h"

#include "api_cases.h"
#include "base/rng.h"
#include "base/util.h"
#include "daemon.h"
#include "remote/remote_store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BYTES (4u << 20)

static struct daemon daemon_;

static int start(void **state)
{
    (void)state;
    pst_backend_register(&pst_remote_backend);
    return daemon_start(&daemon_, program, NULL) ? 0 : -1;
}

static int done(void **state)
{
    (void)state;
    daemon_done(&daemon_);
    return 0;
}

/* Of each test, also after one that failed with another placement. */
static int prefer_third(void **state)
{
    (void)state;
    return setenv("PENSTOCK_PLACEMENT", "third-party", 1);
}

static void put(struct pst_fs *fs, const char *path, int c)
{
    uint8_t *p = malloc(BYTES);
    struct pst_file *f = api_open_new(fs, path, O_DIRECT);

    memset(p, c, BYTES);
    assert_int_equal(pst_pwrite(f, p, BYTES, 0), BYTES);
    assert_int_equal(pst_close(f), 0);
    free(p);
}

static void look(void *user, const char *key, const char *value)
{
    if (!strcmp(key, "data.placement"))
        *(bool *)user = strstr(value, "third-party") == value;
}

static bool is_third(struct pst_fs *fs)
{
    bool found = false;

    pst_describe(fs, look, &found);
    return found;
}

static void a_connection_says_where_its_bytes_go(void **state)
{
    struct pst_fs *fs = connect_at(daemon_.base, "facts", 0);

    (void)state;
    assert_false(is_third(fs)); /* nothing yet */
    put(fs, "/x", 'x');
    assert_true(is_third(fs));
    assert_int_equal(pst_disconnect(fs), 0);
    setenv("PENSTOCK_PLACEMENT", "crossing", 1);
    fs = connect_at(daemon_.base, "facts", 0);
    put(fs, "/y", 'y');
    assert_false(is_third(fs));
    assert_int_equal(pst_disconnect(fs), 0);
    setenv("PENSTOCK_PLACEMENT", "auto", 1);
    fs = connect_at(daemon_.base, "facts", 0);
    for (int i = 0; !is_third(fs); i++) { /* the first ones may be ahead of the connection */
        assert_true(i < 1000);
        put(fs, "/z", 'z');
        assert_int_equal(pst_unlink(fs, "/z"), 0);
    }
    assert_int_equal(pst_disconnect(fs), 0);
}

/* What the agent's filters have to see does not go past them, whatever is asked for. */
static void an_agent_whose_filters_see_the_bytes_offers_nothing(void **state)
{
    static const char *const flags[][3] = {{NULL},
                                           {"--cache", "64M"},
                                           {"--filter", "crypt:key_command=printf${IFS}%064d${IFS}7"}};
    const struct daemon server = {.program = program, .port = daemon_.backend_port};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
        char container[20];
        struct daemon agent;
        struct pst_fs *fs;

        assert_true(daemon_agent_start(&agent, &server, flags[i]));
        snprintf(container, sizeof container, "seen%zu", i); /* each is written with other filters */
        api_base = agent.base;
        if (i > 0) {
            assert_int_equal(api_connect(container, 0, &fs), -ENOTSUP);
            setenv("PENSTOCK_PLACEMENT", "auto", 1);
        }
        fs = connect_at(agent.base, container, 0);
        put(fs, "/x", 'x');
        assert_int_equal(is_third(fs), i == 0); /* without filters it would be */
        assert_int_equal(pst_disconnect(fs), 0);
        setenv("PENSTOCK_PLACEMENT", "third-party", 1);
        daemon_done(&agent);
    }
}

static void must_be(const uint8_t *p, size_t from, size_t to, int c, const char *what, int round)
{
    for (size_t i = from; i < to; i++)
        if (p[i] != c)
            fail_msg("%s, round %d: byte %zu is '%c', not '%c'", what, round, i, p[i], c);
}

/* 700 ms are short on a busy machine. */
static struct pst_file *open_patiently(struct pst_fs *fs, const char *path)
{
    struct pst_file *f;
    int r, tries = 0;

    do
        r = pst_open(fs, path, O_RDONLY | O_DIRECT, 0, &f);
    while (r == -ETIMEDOUT && tries++ < 100);
    assert_int_equal(r, 0);
    return f;
}

/*
 * Requests of one file time out while somebody stands still; when he goes on, their bytes come into no memory that has
 * been given back or is used for those of the other file.
 */
static void late_bytes(struct pst_fs *fs, pid_t who, uint8_t *p, const char *what)
{
    struct pst_file *a = open_patiently(fs, "/a"), *b = open_patiently(fs, "/b");
    int late = 0;

    for (int round = 0; round < 3; round++) {
        int64_t n;
        kill(who, SIGSTOP);
        nap(30); /* until all its threads stand */
        n = pst_pread(a, p, BYTES, 0);
        late += n < 0;
        memset(p, 'm', BYTES);
        kill(who, SIGCONT);
        nap(20);
        must_be(p, 0, BYTES, 'm', what, round);
        for (int i = 0, failed = 0; i < 20; i++) {
            n = pst_pread(b, p, BYTES - 4096u * (unsigned)i, 0);
            /* It still recovers, or the machine is busy: 700 ms are short. */
            if (n != BYTES - 4096 * i && failed++ < 100) {
                must_be(p, 0, n > 0 ? (size_t)n : 0, 'b', what, round);
                nap(50);
                i--;
                continue;
            }
            assert_int_equal(n, BYTES - 4096 * i);
            must_be(p, 0, (size_t)n, 'b', what, round);
        }
    }
    assert_true(late > 0);
    assert_int_equal(pst_close(a), 0);
    assert_int_equal(pst_close(b), 0);
}

static void what_comes_late_meets_no_other_request(void **state)
{
    struct pst_fs *patient = connect_at(daemon_.base, "late", 0), *fs = connect_at(daemon_.base, "late", 700);
    uint8_t *own = malloc(BYTES);
    struct pst_buf *buf;
    void *registered;

    (void)state;
    put(patient, "/a", 'a');
    put(patient, "/b", 'b');
    assert_int_equal(pst_disconnect(patient), 0);
    assert_int_equal(pst_buf_alloc(fs, BYTES, &buf, &registered), 0);
    late_bytes(fs, daemon_.pid, own, "agent, arena");
    late_bytes(fs, daemon_.backend, own, "server, arena");
    late_bytes(fs, daemon_.pid, registered, "agent, registered");
    late_bytes(fs, daemon_.backend, registered, "server, registered");
    assert_int_equal(pst_buf_unregister(buf), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    free(own);
}

/* ---- kill -9 of the agent, and of the server ---- */

struct reader {
    struct pst_fs *fs;
    struct pst_file *f;
    struct pst_buf *buf;
    uint8_t *mem;
    int c;
    _Atomic bool stop;
    _Atomic int done;
    char wrong[100];
    pthread_t thread;
};

/* Every read is whole, and nothing comes into the memory after it. */
static void *read_on(void *arg)
{
    struct reader *r = arg;

    for (int i = 0; !atomic_load(&r->stop) && !r->wrong[0]; i++) {
        size_t len = BYTES - 4096u * (unsigned)(i % 7);
        int64_t n = pst_pread(r->f, r->mem, len, 0);
        if (n != (int64_t)len)
            snprintf(r->wrong, sizeof r->wrong, "read %d: %lld", i, (long long)n);
        for (size_t k = 0; k < len && !r->wrong[0]; k++)
            if (r->mem[k] != r->c)
                snprintf(r->wrong, sizeof r->wrong, "read %d: byte %zu is %d", i, k, r->mem[k]);
        memset(r->mem, 'm', BYTES);
        if (i % 4 == 0)
            nap(2);
        for (size_t k = 0; k < BYTES && !r->wrong[0]; k++)
            if (r->mem[k] != 'm')
                snprintf(r->wrong, sizeof r->wrong, "read %d: byte %zu came late: %d", i, k, r->mem[k]);
        atomic_fetch_add(&r->done, 1);
    }
    return NULL;
}

static void reader_start(struct reader *r, struct pst_fs *fs, const char *path, int c)
{
    void *mem;

    *r = (struct reader){.fs = fs, .c = c};
    put(fs, path, c);
    assert_int_equal(pst_buf_alloc(fs, BYTES, &r->buf, &mem), 0);
    r->mem = mem;
    assert_int_equal(pst_open(fs, path, O_RDONLY | O_DIRECT, 0, &r->f), 0);
    assert_int_equal(pthread_create(&r->thread, NULL, read_on, r), 0);
}

static void reader_end(struct reader *r)
{
    atomic_store(&r->stop, true);
    pthread_join(r->thread, NULL);
    if (r->wrong[0])
        fail_msg("%s", r->wrong);
    assert_int_equal(pst_close(r->f), 0);
    assert_int_equal(pst_buf_unregister(r->buf), 0);
}

static void reads_are_whole_while_agent_and_server_die(void **state)
{
    struct pst_fs *fs = connect_at(daemon_.base, "die", 120000);
    struct reader r[2];
    struct rng rng;

    (void)state;
    rng_seed(&rng, seed);
    reader_start(&r[0], fs, "/p", 'p');
    reader_start(&r[1], fs, "/q", 'q');
    for (int round = 0; round < (extended ? 40 : 4); round++) {
        int before = atomic_load(&r[0].done) + atomic_load(&r[1].done);
        while (atomic_load(&r[0].done) + atomic_load(&r[1].done) < before + 6 && !r[0].wrong[0] && !r[1].wrong[0])
            nap(5);
        nap((int)rng_below(&rng, 20));
        if (round % 2 == 0) {
            daemon_kill(&daemon_);
            assert_true(daemon_again(&daemon_));
        } else {
            daemon_backend_kill(&daemon_);
            assert_true(daemon_backend_again(&daemon_));
        }
    }
    reader_end(&r[0]);
    reader_end(&r[1]);
    put(fs, "/after", 'x');
    assert_true(is_third(fs));
    assert_int_equal(pst_disconnect(fs), 0);
}

/* ---- only the connection to the server is cut ---- */

/* Those of this process to the server's data ports. */
static int cut_third(void)
{
    int n = 0;

    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in sa;
        socklen_t len = sizeof sa;
        if (getpeername(fd, (struct sockaddr *)&sa, &len) == 0 && sa.sin_family == AF_INET &&
            ntohs(sa.sin_port) - daemon_.backend_data_port >= 0 && ntohs(sa.sin_port) - daemon_.backend_data_port < 2)
            n += shutdown(fd, SHUT_RDWR) == 0;
    }
    return n;
}

struct cutter {
    _Atomic bool stop;
    _Atomic int cuts;
    pthread_t thread;
};

static void *cut_on(void *arg)
{
    struct cutter *c = arg;
    struct rng r;

    rng_seed(&r, seed);
    while (!atomic_load(&c->stop)) {
        nap(1 + (int)rng_below(&r, 20));
        atomic_fetch_add(&c->cuts, cut_third());
    }
    return NULL;
}

/* What was under way crosses the agent: appends happen once, reads are whole. */
static void a_connection_that_is_cut_loses_nothing(void **state)
{
    struct pst_fs *fs = connect_at(daemon_.base, "cut", 120000);
    uint8_t *buf = malloc(RECORD_MAX);
    struct cutter c = {.cuts = 0};
    struct reader r;
    struct pst_file *f;
    int i;

    (void)state;
    reader_start(&r, fs, "/r", 'r');
    f = api_open_new(fs, "/log", O_APPEND);
    assert_int_equal(pthread_create(&c.thread, NULL, cut_on, &c), 0);
    for (i = 0; (i < 100 || atomic_load(&c.cuts) < (extended ? 300 : 10)) && !r.wrong[0]; i++) {
        size_t n = record(i, buf);
        assert_int_equal(pst_append(f, buf, n, NULL), n);
    }
    atomic_store(&c.stop, true);
    pthread_join(c.thread, NULL);
    reader_end(&r);
    print_message("%d records, %d cuts\n", i, atomic_load(&c.cuts));
    check_records(fs, "/log", i);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    free(buf);
}

/* ---- kill -9 of the host ---- */

static void a_host_that_dies_in_mid_transfer_hurts_nobody(void **state)
{
    struct pst_fs *fs = connect_at(daemon_.base, "others", 0);
    struct reader r;

    (void)state;
    reader_start(&r, fs, "/r", 'r');
    for (int round = 0; round < 4; round++) {
        pid_t pid = busy_client(daemon_.base, round % 2, "third-party");
        nap(300 + (int)(seed >> round) % 200);
        kill_client(pid);
    }
    reader_end(&r);
    assert_int_equal(pst_disconnect(fs), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_connection_says_where_its_bytes_go, prefer_third),
        cmocka_unit_test_setup(an_agent_whose_filters_see_the_bytes_offers_nothing, prefer_third),
        cmocka_unit_test_setup(what_comes_late_meets_no_other_request, prefer_third),
        cmocka_unit_test_setup(a_connection_that_is_cut_loses_nothing, prefer_third),
        cmocka_unit_test_setup(a_host_that_dies_in_mid_transfer_hurts_nobody, prefer_third),
        cmocka_unit_test_setup(reads_are_whole_while_agent_and_server_die, prefer_third),
    };
    int r = remote_main_begin(argc, argv);

    if (r)
        return r;
    if (getenv("PENSTOCK_TEST_PROVIDER")) /* not tcp: there is no socket to cut */
        cmocka_set_skip_filter("a_connection_that_is_cut_loses_nothing");
    return cmocka_run_group_tests(tests, start, done);
}

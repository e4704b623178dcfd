/*
 * kill -9 of an agent that compresses and encrypts, at random moments under writers that sync: what was acknowledged is
 * there, and every chunk is readable. Random; the seed is printed. usage: test_agent_kills PENSTOCK [TEST]
 * (and for its own children: test_agent_kills --writer BASE FILE FIRST SEED)
 */
#include "api_cases.h"
#include "base/util.h"
#include "killer.h"
#include "remote/remote_store.h"
#include "remote_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITERS 3
#define PLACES  8          /* of a file, one after the other: each crosses blocks, and most of them a chunk's border */
#define PLACE   (300 * KiB)
#define WORDS   (PLACE / 4)

/* recent=0: a server that is killed loses what is not durable, as a machine does. */
static const char *const server_args[] = {"--store-option", "recent=0", "--buffer-memory", "16M", NULL};
static const char *const agent_args[] = {"--filter", "compress", "--filter", "crypt:key_env=PST_TEST_KEY",
                                         "--buffer-memory", "16M", "--backend-timeout", "300s", NULL};
static const char *self;
static struct daemon server, agent;

/* ---- contents: each word tells its place and version; those of odd versions do not become shorter ---- */

static uint32_t noise(uint32_t i)
{
    i = (i + 1) * 0x9e3779b9u;
    i = (i ^ (i >> 16)) * 0x85ebca6bu;
    return i ^ (i >> 13);
}

static uint32_t word(int place, uint32_t version, uint32_t i)
{
    return ((uint32_t)place << 24 | version) ^ (version & 1 ? noise(i) : 0);
}

static void fill(uint32_t *buf, int place, uint32_t version)
{
    for (uint32_t i = 0; i < WORDS; i++)
        buf[i] = word(place, version, i);
}

/* What the words of a file's places may be: versions from the last one acknowledged to the last one begun. */
struct expect {
    uint32_t done[PLACES], begun[PLACES];
};

static bool is_version(uint32_t got, int place, uint32_t version, uint32_t i, const struct expect *e)
{
    return version >= e->done[place] && version <= e->begun[place] && word(place, version, i) == got;
}

static void check_file(struct pst_fs *fs, const char *path, const struct expect *e, const char *when, int round)
{
    uint32_t *buf = malloc(PLACE);
    struct pst_file *f;
    int64_t n;

    assert_int_equal(pst_open(fs, path, O_RDONLY, 0, &f), 0);
    for (int place = 0; place < PLACES; place++) {
        n = pst_pread(f, buf, PLACE, (uint64_t)place * PLACE);
        if (n != PLACE)
            fail_msg("%s, round %d: %s, place %d: %lld: %s", when, round, path, place, (long long)n, pst_last_error());
        for (uint32_t i = 0; i < WORDS; i++)
            if (!is_version(buf[i], place, buf[i] & 0xffffff, i, e) &&
                !is_version(buf[i], place, (buf[i] ^ noise(i)) & 0xffffff, i, e))
                fail_msg("%s, round %d: %s, place %d, word %u is %08x: of no version from %u to %u", when, round, path,
                         place, i, buf[i], e->done[place], e->begun[place]);
    }
    assert_int_equal(pst_close(f), 0);
    free(buf);
}

static void name_of(int writer, char ret[16])
{
    snprintf(ret, 16, "/f%d", writer);
}

static void make_files(struct pst_fs *fs)
{
    uint32_t *buf = malloc(PLACE);

    for (int w = 0; w < WRITERS; w++) {
        char path[16];
        struct pst_file *f;
        name_of(w, path);
        f = api_open_new(fs, path, 0);
        for (int place = 0; place < PLACES; place++) {
            fill(buf, place, 0);
            assert_int_equal(pst_pwrite(f, buf, PLACE, (uint64_t)place * PLACE), PLACE);
        }
        assert_int_equal(pst_fsync(f), 0);
        assert_int_equal(pst_close(f), 0);
    }
    free(buf);
}

/* All of it through an agent that has met nothing of it, and by the server's own check. */
static void check_at_the_end(const char *container, const struct expect *e)
{
    struct daemon fresh;
    struct pst_fs *fs;
    char cmd[300];

    assert_true(daemon_agent_start(&fresh, &server, agent_args));
    fs = connect_at(fresh.base, container, 300000);
    for (int w = 0; w < WRITERS; w++) {
        char path[16];
        name_of(w, path);
        check_file(fs, path, &e[w], "through another agent", 0);
    }
    assert_int_equal(pst_disconnect(fs), 0);
    daemon_done(&fresh);
    assert_int_equal(daemon_stop(&server), 0);
    snprintf(cmd, sizeof cmd, "'%s' check %s/store >%s/check.log 2>&1", program, server.dir, server.dir);
    assert_int_equal(system(cmd), 0);
    assert_true(daemon_again(&server));
}

/* ---- writers that live on ---- */

struct writer {
    int number;
    struct killer *killer;
    struct expect e;
    uint32_t versions;
    char err[200];
};

static void *write_and_sync(void *arg)
{
    struct writer *w = arg;
    uint32_t *buf = malloc(PLACE);
    struct pst_fs *fs;
    struct pst_file *f;
    char path[16];
    struct rng r;

    rng_seed(&r, seed + (uint64_t)w->number);
    name_of(w->number, path);
    if (api_connect("kept", 300000, &fs) < 0 || pst_open(fs, path, O_RDWR, 0, &f) < 0) {
        snprintf(w->err, sizeof w->err, "%s", pst_last_error());
        return NULL;
    }
    while (!killer_over(w->killer) && !*w->err) {
        int place = (int)rng_below(&r, PLACES);
        uint32_t version = ++w->versions;
        fill(buf, place, version);
        if (pst_pwrite(f, buf, PLACE, (uint64_t)place * PLACE) != PLACE || pst_fsync(f) != 0)
            snprintf(w->err, sizeof w->err, "version %u: %s", version, pst_last_error());
        w->e.done[place] = w->e.begun[place] = version;
        killer_tick(w->killer);
    }
    if (pst_close(f) != 0 || pst_disconnect(fs) != 0)
        snprintf(w->err, sizeof w->err, "%s", pst_last_error());
    free(buf);
    return NULL;
}

/* The writers notice nothing but that it takes longer. At the end the machines of agent and server both fail. */
static void what_was_synced_through_a_killed_agent_is_there(void **state)
{
    static struct killer k; /* also there when the test has failed */
    struct writer w[WRITERS];
    struct expect e[WRITERS];
    pthread_t t[WRITERS];
    struct pst_fs *fs = connect_at(agent.base, "kept", 300000);
    (void)state;

    k = (struct killer){.d = &agent, .rounds = extended ? 100 : 10};
    make_files(fs);
    killer_start(&k);
    for (int i = 0; i < WRITERS; i++) {
        w[i] = (struct writer){.number = i, .killer = &k};
        assert_int_equal(pthread_create(&t[i], NULL, write_and_sync, &w[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(t[i], NULL);
        if (*w[i].err)
            fail_msg("writer %d: %s", i, w[i].err);
        e[i] = w[i].e;
    }
    assert_int_equal(pst_disconnect(fs), 0);
    assert_true(killer_end(&k));
    daemon_kill(&agent);
    daemon_kill(&server);
    assert_true(daemon_again(&server) && daemon_again(&agent));
    print_message("%d kills under %u, %u and %u writes\n", k.rounds, w[0].versions, w[1].versions, w[2].versions);
    check_at_the_end("kept", e);
}

/* ---- writers that die with it ---- */

struct word {
    uint32_t version;
    uint16_t place;
    uint16_t synced; /* 1; 0: it begins */
};

static int failed(const char *what)
{
    fprintf(stderr, "a writer: %s: %s\n", what, pst_last_error());
    return 1;
}

/* The child: writes and syncs, and says so, until it is killed. */
static int be_a_writer(const char *base, const char *path, uint32_t version, uint64_t my_seed)
{
    uint32_t *buf = malloc(PLACE);
    struct pst_fs *fs;
    struct pst_file *f;
    struct rng r;

    api_base = base;
    rng_seed(&r, my_seed);
    if (api_connect("dead", 300000, &fs) < 0 || pst_open(fs, path, O_RDWR | (my_seed & 1 ? O_DIRECT : 0), 0, &f) < 0)
        return failed("opening its file");
    for (;; version++) {
        struct word say = {version, (uint16_t)rng_below(&r, PLACES), 0};
        fill(buf, say.place, version);
        if (write(1, &say, sizeof say) != sizeof say)
            return failed("its pipe");
        if (pst_pwrite(f, buf, PLACE, (uint64_t)say.place * PLACE) != PLACE || pst_fsync(f) != 0)
            return failed("write and sync");
        say.synced = 1;
        if (write(1, &say, sizeof say) != sizeof say)
            return failed("its pipe");
    }
}

static pid_t start_writer(int number, uint32_t version, uint64_t its_seed, int *ret_fd)
{
    char path[16], first[16], text[24];
    int p[2];
    pid_t pid;

    name_of(number, path);
    snprintf(first, sizeof first, "%u", version);
    snprintf(text, sizeof text, "%llu", (unsigned long long)its_seed);
    assert_int_equal(pipe(p), 0);
    pid = fork();
    if (pid == 0) {
        dup2(p[1], 1);
        for (int i = 3; i < 1024; i++)
            close(i);
        execl(self, self, "--writer", agent.base, path, first, text, (char *)NULL);
        _exit(127);
    }
    close(p[1]);
    *ret_fd = p[0];
    return pid;
}

/* All that the dead one has said. */
static void hear(int fd, struct expect *e, uint32_t *versions, int *ret_synced)
{
    struct word w;

    while (read(fd, &w, sizeof w) == sizeof w) {
        e->begun[w.place] = w.version;
        if (w.synced) {
            e->done[w.place] = w.version;
            ++*ret_synced;
        }
        *versions = w.version;
    }
    close(fd);
}

/* Each process of several dies at the same random moment, in any order: what a writer had said is durable is there. */
static void what_was_synced_before_all_died_at_once_is_there(void **state)
{
    struct expect e[WRITERS] = {0};
    uint32_t versions[WRITERS] = {0};
    struct pst_fs *fs = connect_at(agent.base, "dead", 300000);
    int rounds = extended ? 100 : 10, synced = 0;
    struct rng r;
    (void)state;

    rng_seed(&r, seed ^ 1);
    make_files(fs);
    assert_int_equal(pst_disconnect(fs), 0);
    for (int round = 0; round < rounds; round++) {
        int fd[WRITERS];
        pid_t pid[WRITERS];
        bool server_too = rng_below(&r, 2), writers_first = rng_below(&r, 2);
        int one = (int)rng_below(&r, WRITERS), said = (int)rng_below(&r, 6), bytes = 0;

        for (int i = 0; i < WRITERS; i++)
            pid[i] = start_writer(i, versions[i] + 1, rng_u64(&r), &fd[i]);
        while (bytes < said * (int)sizeof(struct word)) {
            nap(5);
            assert_int_equal(waitpid(pid[one], NULL, WNOHANG), 0); /* it lives */
            assert_int_equal(ioctl(fd[one], FIONREAD, &bytes), 0);
        }
        nap((int)rng_below(&r, 60));
        for (int step = 0; step < 2; step++) {
            for (int i = 0; i < WRITERS && step == !writers_first; i++)
                kill(pid[i], SIGKILL);
            if (step == writers_first) {
                kill(agent.pid, SIGKILL);
                if (server_too)
                    kill(server.pid, SIGKILL);
            }
        }
        for (int i = 0; i < WRITERS; i++) {
            assert_int_equal(waitpid(pid[i], NULL, 0), pid[i]);
            hear(fd[i], &e[i], &versions[i], &synced);
        }
        daemon_kill(&agent);
        if (server_too) {
            daemon_kill(&server);
            assert_true(daemon_again(&server));
        }
        assert_true(daemon_again(&agent));
        fs = connect_at(agent.base, "dead", 300000);
        for (int i = 0; i < WRITERS; i++) {
            char path[16];
            name_of(i, path);
            check_file(fs, path, &e[i], server_too ? "agent and server killed" : "agent killed", round);
        }
        assert_int_equal(pst_disconnect(fs), 0);
    }
    print_message("%d rounds, %d writes synced\n", rounds, synced);
    assert_true(synced > 0);
    check_at_the_end("dead", e);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_synced_through_a_killed_agent_is_there),
        cmocka_unit_test(what_was_synced_before_all_died_at_once_is_there),
    };
    int r;

    pst_backend_register(&pst_remote_backend);
    if (argc == 6 && !strcmp(argv[1], "--writer"))
        return be_a_writer(argv[2], argv[3], (uint32_t)strtoul(argv[4], NULL, 10), strtoull(argv[5], NULL, 10));
    self = argv[0];
    if ((r = remote_main_begin(argc, argv)))
        return r;
    unsetenv("PENSTOCK_TEST_AGENT");
    setenv("PST_TEST_KEY", "7d1f3c9ab4e2085561c7f0d99a3e5b2248d6017ce3f98a40b51d6e27c0943fa8", 1);
    r = daemon_start(&server, program, server_args) && daemon_agent_start(&agent, &server, agent_args)
            ? cmocka_run_group_tests(tests, NULL, NULL)
            : 1;
    daemon_done(&agent);
    daemon_done(&server);
    return r;
}

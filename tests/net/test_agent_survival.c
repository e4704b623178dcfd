/*
 * An agent whose server goes away, which is itself exchanged, and whose hosts die: requests wait, hosts come back by
 * themselves, what is lost is told to each who may rely on it, and nobody leaves anything. usage: test_agent_survival
 * PENSTOCK [TEST]
 */
#include "api_cases.h"
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
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define WAIT_MS 300000 /* of a client; a busy machine takes long for little */

/*
 * recent=0: a server that is killed loses what is not durable, as a machine does; and nothing is synced by itself
 * meanwhile.
 */
static const char *const forgets[] = {"--store-option", "recent=0", "--store-option", "sync_ms=5000", NULL};
static struct daemon server, agent;

static void start_both(const char *const *server_args, const char *const *agent_args)
{
    assert_true(daemon_start(&server, program, server_args));
    assert_true(daemon_agent_start(&agent, &server, agent_args));
}

static void end_both(void)
{
    daemon_done(&agent);
    daemon_done(&server);
}

/* ---- the server goes away ---- */

struct call {
    struct pst_file *f;
    int64_t n;
    int synced;
};

static void *write_and_sync(void *arg)
{
    struct call *c = arg;

    c->n = pst_pwrite(c->f, "second", 6, 0);
    c->synced = pst_fsync(c->f);
    return NULL;
}

static void requests_wait_for_the_server_behind_the_agent(void **state)
{
    struct pst_fs *fs;
    struct call c;
    pthread_t id;

    (void)state;
    start_both(NULL, (const char *[]){"--backend-timeout", "300s", NULL});
    fs = connect_at(agent.base, "away", WAIT_MS);
    c.f = api_open_new(fs, "/f", 0);
    assert_int_equal(pst_pwrite(c.f, "first", 5, 0), 5);
    assert_int_equal(pst_fsync(c.f), 0);
    daemon_kill(&server);
    assert_int_equal(pthread_create(&id, NULL, write_and_sync, &c), 0);
    nap(500);
    assert_true(daemon_again(&server));
    pthread_join(id, NULL);
    assert_int_equal(c.n, 6);
    assert_int_equal(c.synced, 0);
    daemon_kill(&server);
    daemon_kill(&agent);
    assert_true(daemon_again(&server) && daemon_again(&agent));
    api_expect(fs, "/f", "second");
    assert_int_equal(pst_close(c.f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    end_both();
}

static void *read_it(void *arg)
{
    struct call *c = arg;
    char buf[8];

    c->n = pst_pread(c->f, buf, 4, 0);
    return NULL;
}

static void *write_it(void *arg)
{
    struct call *c = arg;

    c->n = pst_pwrite(c->f, "lost", 4, 8);
    return NULL;
}

static void they_fail_when_it_stays_away_and_go_on_when_it_is_back(void **state)
{
    struct pst_fs *fs;
    struct pst_file *f;
    struct call c[2];
    pthread_t id[2];
    struct stat st;
    char buf[8];
    int r;

    (void)state;
    start_both(NULL, (const char *[]){"--backend-timeout", "2s", NULL});
    fs = connect_at(agent.base, "away", WAIT_MS);
    while ((r = pst_open(fs, "/f", O_RDWR | O_CREAT | O_DIRECT, 0644, &f)) == -ETIMEDOUT)
        nap(50); /* a busy machine */
    assert_int_equal(r, 0);
    while (pst_pwrite(f, "kept", 4, 0) != 4 || pst_fsync(f) != 0)
        nap(50);
    daemon_kill(&server);
    for (int i = 0; i < 2; i++) {
        c[i].f = f;
        assert_int_equal(pthread_create(&id[i], NULL, i ? write_it : read_it, &c[i]), 0);
    }
    assert_int_equal(pst_stat(fs, "/f", &st), -ETIMEDOUT);
    for (int i = 0; i < 2; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(c[i].n, -ETIMEDOUT);
    }
    assert_true(daemon_again(&server));
    while ((r = (int)pst_pread(f, buf, 4, 0)) == -ETIMEDOUT)
        nap(50);
    assert_int_equal(r, 4);
    assert_memory_equal(buf, "kept", 4);
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_size, 4); /* what was given up did not come later */
    while ((r = pst_close(f)) == -ETIMEDOUT)
        nap(50);
    assert_int_equal(pst_disconnect(fs), 0);
    end_both();
}

/* ---- it is told to end while its server is away ---- */

static void *append_and_sync(void *arg)
{
    struct call *c = arg;

    c->n = pst_append(c->f, "two ", 4, NULL);
    c->synced = pst_fsync(c->f);
    return NULL;
}

struct making {
    struct pst_fs *fs;
    int r;
};

static void *make_folder(void *arg)
{
    struct making *m = arg;

    m->r = pst_mkdir(m->fs, "/d", 0755);
    return NULL;
}

/* hangs: the server is there, and does not answer; what was sent to it happens later. */
static void end_while_away(bool hangs, const char *const *agent_args)
{
    struct making m;
    struct call c;
    pthread_t id[2];

    start_both(NULL, agent_args);
    m.fs = connect_at(agent.base, "ends", WAIT_MS);
    c.f = api_open_new(m.fs, "/log", O_APPEND);
    assert_int_equal(pst_append(c.f, "one ", 4, NULL), 4);
    assert_int_equal(pst_fsync(c.f), 0);
    if (hangs)
        kill(server.pid, SIGSTOP);
    else
        daemon_kill(&server);
    assert_int_equal(pthread_create(&id[0], NULL, append_and_sync, &c), 0);
    assert_int_equal(pthread_create(&id[1], NULL, make_folder, &m), 0);
    nap(500);
    assert_int_equal(daemon_stop(&agent), 0); /* and not when the requests have waited long enough */
    if (hangs)
        kill(server.pid, SIGCONT);
    else
        assert_true(daemon_again(&server));
    assert_true(daemon_again(&agent));
    pthread_join(id[0], NULL);
    pthread_join(id[1], NULL);
    assert_int_equal(c.n, 4);
    assert_int_equal(c.synced, 0);
    assert_int_equal(m.r, 0);
    assert_int_equal(pst_close(c.f), 0);
    api_expect(m.fs, "/log", "one two ");
    assert_int_equal(pst_disconnect(m.fs), 0);
    end_both();
}

static void it_ends_in_the_time_of_its_drain_and_the_next_one_does_what_waited_once(void **state)
{
    static const char *const plain[] = {"--drain", "1s", "--backend-timeout", "24h", NULL};
    static const char *const filters[] = {"--drain", "1s", "--backend-timeout", "24h", "--filter", "compress",
                                          "--filter", "crypt:key_env=PST_TEST_KEY", NULL};

    (void)state;
    end_while_away(false, plain);
    end_while_away(true, filters);
    if (extended) {
        end_while_away(true, plain);
        end_while_away(false, filters);
    }
}

/* ---- the agent is exchanged ---- */

static void hosts_of_a_restarted_agent_go_on_with_their_files(void **state)
{
    struct pst_fs *fs;
    struct pst_file *kept, *gone, *log;
    char buf[16];
    int64_t n;

    (void)state;
    for (int round = 0; round < 2; round++) { /* in order, and not */
        start_both(NULL, (const char *[]){"--backend-timeout", "300s", NULL});
        fs = connect_at(agent.base, "reopen", WAIT_MS);
        kept = api_open_new(fs, "/kept", 0);
        gone = api_open_new(fs, "/gone", 0);
        log = api_open_new(fs, "/log", O_APPEND);
        assert_int_equal(pst_pwrite(kept, "kept", 4, 0), 4);
        assert_int_equal(pst_pwrite(gone, "gone", 4, 0), 4);
        assert_int_equal(pst_append(log, "one ", 4, NULL), 4);
        assert_int_equal(pst_fsync(kept), 0);
        assert_int_equal(pst_fsync(gone), 0);
        assert_int_equal(pst_unlink(fs, "/gone"), 0);
        assert_int_equal(pst_sync(fs), 0);
        if (round)
            daemon_kill(&agent);
        else
            assert_int_equal(daemon_stop(&agent), 0);
        assert_true(daemon_again(&agent));
        assert_int_equal(pst_pread(kept, buf, 4, 0), 4);
        assert_memory_equal(buf, "kept", 4);
        assert_int_equal(pst_pwrite(kept, "KEPT", 4, 0), 4);
        assert_int_equal(pst_append(log, "two ", 4, NULL), 4);
        n = pst_pread(gone, buf, 4, 0); /* nobody else has it open: the agent's end was its end */
        assert_true(n == -ESTALE || (round && n == 4 && !memcmp(buf, "gone", 4)));
        assert_int_equal(pst_close(kept), 0);
        assert_int_equal(pst_close(log), 0);
        pst_close(gone);
        api_expect(fs, "/kept", "KEPT");
        api_expect(fs, "/log", "one two ");
        assert_int_equal(pst_disconnect(fs), 0);
        end_both();
    }
}

/* ---- what a crash of the server takes is told, to each host ---- */

/* Both write to one file and to their own; neither syncs. */
static void write_all(struct pst_file *common[2], struct pst_file *own[2], const char *text)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pst_pwrite(common[i], text, 1, (uint64_t)i), 1);
        assert_int_equal(pst_flush(common[i]), 0);
        assert_int_equal(pst_pwrite(own[i], text, 1, 0), 1);
        assert_int_equal(pst_flush(own[i]), 0);
    }
}

static void each_host_is_told_what_the_server_lost(void **state)
{
    struct pst_fs *fs[2];
    struct pst_file *common[2], *own[2], *calm;

    (void)state;
    start_both(forgets, (const char *[]){"--backend-timeout", "300s", NULL});
    for (int i = 0; i < 2; i++) {
        fs[i] = connect_at(agent.base, "lost", WAIT_MS);
        assert_int_equal(pst_open(fs[i], "/common", O_RDWR | O_CREAT, 0644, &common[i]), 0);
        own[i] = api_open_new(fs[i], i ? "/own1" : "/own0", 0);
        assert_int_equal(pst_fsync(own[i]), 0);
    }
    calm = api_open_new(fs[0], "/calm", 0);
    assert_int_equal(pst_sync(fs[0]), 0);
    assert_int_equal(pst_sync(fs[1]), 0);
    for (int round = 0; round < 3; round++) { /* the server; the server, then the agent; both */
        write_all(common, own, "abc" + round);
        if (round == 2)
            daemon_kill(&agent);
        daemon_kill(&server);
        assert_true(daemon_again(&server));
        if (round == 1) {
            char buf[4];
            assert_true(pst_pread(calm, buf, 1, 0) >= 0); /* the agent has met the new server */
            daemon_kill(&agent);
        }
        if (round)
            assert_true(daemon_again(&agent));
        assert_int_equal(pst_fsync(calm), 0);
        for (int i = 0; i < 2; i++) {
            if (pst_fsync(common[i]) != -EIO)
                fail_msg("round %d: host %d is not told that the common file's bytes are lost", round, i);
            if (pst_fsync(own[i]) != -EIO)
                fail_msg("round %d: host %d is not told that its own file's bytes are lost", round, i);
        }
        write_all(common, own, "ABC" + round);
        for (int i = 0; i < 2; i++) {
            while (pst_fsync(common[i]) != 0) /* told by the agent, and by what the host itself knows */
                nap(1);
            while (pst_fsync(own[i]) != 0)
                nap(1);
            pst_sync(fs[i]); /* tells of all once more */
            assert_int_equal(pst_sync(fs[i]), 0);
        }
    }
    assert_int_equal(pst_close(calm), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pst_close(common[i]), 0);
        assert_int_equal(pst_close(own[i]), 0);
        assert_int_equal(pst_disconnect(fs[i]), 0);
    }
    end_both();
}

/* ---- hosts die ---- */

static long figure(const struct daemon *d, const char *name)
{
    char cmd[300], line[200] = "";
    FILE *p;

    snprintf(cmd, sizeof cmd, "'%s' status --metrics %.*s | awk '$1 == \"%s\" { print $2 }'", program,
             (int)strlen(d->base) - 1, d->base, name);
    p = popen(cmd, "r");
    assert_non_null(p);
    if (!fgets(line, sizeof line, p) || pclose(p) != 0)
        fail_msg("no %s", name);
    return strtol(line, NULL, 10);
}

/* What a process holds of its hosts. */
struct held {
    long fds, maps, rss_kib, sessions;
};

static struct held held_by(const struct daemon *d)
{
    struct held h = {0};
    char path[40], line[400];
    struct dirent *e;
    DIR *dir;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)d->pid);
    dir = opendir(path);
    assert_non_null(dir);
    while ((e = readdir(dir)))
        h.fds++;
    closedir(dir);
    h.maps = memory_mapped(d->pid);
    snprintf(path, sizeof path, "/proc/%d/status", (int)d->pid);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "VmRSS:", 6))
            h.rss_kib = strtol(line + 6, NULL, 10);
    fclose(f);
    h.sessions = figure(d, "penstock_sessions");
    return h;
}

/* As long ago, but for what is told by the caller's own look. */
static bool no_more(const struct held *now, const struct held *before)
{
    return now->fds <= before->fds && now->maps <= before->maps && now->sessions <= before->sessions;
}

static void wait_for_no_more(const struct daemon *d, const struct held *before, const char *who)
{
    struct held h = held_by(d);

    for (int i = 0; i < 600 && !no_more(&h, before); i++) {
        nap(100);
        h = held_by(d);
    }
    if (!no_more(&h, before))
        fail_msg("%s has %ld descriptors, %ld pieces of memory, %ld sessions; before there were %ld, %ld, %ld", who,
                 h.fds, h.maps, h.sessions, before->fds, before->maps, before->sessions);
}

/* Moves bytes until it is killed; true: it did move some. */
static bool one_dying_host(int round, const char *placement, uint64_t random)
{
    const char *bytes = round % 2 ? "penstock_data_bytes_in_total" : "penstock_data_bytes_out_total";
    long before = figure(&agent, bytes);
    pid_t pid = busy_client(agent.base, round % 2, placement);
    bool moved = false;

    for (int i = 0; i < 600 && !moved; i++) {
        nap(50);
        moved = figure(&agent, bytes) > before;
    }
    nap((int)(random % 60));
    kill_client(pid);
    return moved;
}

static uint64_t objects_of(struct pst_fs *fs)
{
    struct statvfs v;

    assert_int_equal(pst_statvfs(fs, &v), 0);
    return v.f_files - v.f_ffree;
}

/* No handle of the dead is left that would keep their files when these are removed. */
static void remove_what_they_made(uint64_t before)
{
    struct pst_options o;
    struct pst_entry e;
    struct pst_dir *dir;
    struct pst_fs *fs;
    char url[120], path[300];

    pst_options_init(&o, sizeof o);
    o.timeout_ms = WAIT_MS;
    snprintf(url, sizeof url, "%sdefault/default", agent.base);
    if (pst_connect(url, &o, &fs) < 0)
        fail_msg("%s", pst_last_error());
    assert_int_equal(pst_opendir(fs, "/", 0, &dir), 0);
    while (pst_readdir(dir, &e) > 0) {
        snprintf(path, sizeof path, "/%s", e.name);
        assert_int_equal(pst_unlink(fs, path), 0);
    }
    assert_int_equal(pst_closedir(dir), 0);
    for (int i = 0; objects_of(fs) > before; i++) {
        if (i == 600)
            fail_msg("%llu objects are kept, of %llu", (unsigned long long)objects_of(fs), (unsigned long long)before);
        nap(100);
    }
    assert_int_equal(pst_disconnect(fs), 0);
}

static void hosts_die(const char *const *agent_args, const char *placement)
{
    const int rounds = extended ? 40 : 2;
    struct held agents, servers, now;
    struct pst_fs *fs;
    int moved = 0;

    start_both((const char *[]){"--lease", "1s", NULL}, agent_args);
    fs = connect_at(agent.base, "living", WAIT_MS);
    api_put(fs, "/f", "alive");
    api_expect(fs, "/f", "alive"); /* with the data connection that stays */
    for (int round = -2; round < rounds; round++) { /* the first two fill caches and the like */
        moved += one_dying_host(round, placement, seed >> (round & 31));
        if (round == -1) {
            for (int i = 0; i < 600 && figure(&agent, "penstock_sessions") > 2; i++) /* ours, and who asks */
                nap(100);
            agents = held_by(&agent);
            servers = held_by(&server);
        }
        api_expect(fs, "/f", "alive");
    }
    assert_true(moved >= rounds);
    remove_what_they_made(1); /* the root directory */
    wait_for_no_more(&agent, &agents, "the agent");
    wait_for_no_more(&server, &servers, "the server");
    now = held_by(&agent);
    print_message("%s: %d hosts died; the agent's memory: %ld KiB, then %ld\n", placement, rounds, agents.rss_kib,
                  now.rss_kib);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what was freed */
    if (now.rss_kib > agents.rss_kib + 16 * 1024)
        fail_msg("the agent's memory grew");
#endif
    assert_int_equal(pst_disconnect(fs), 0);
    assert_int_equal(daemon_stop(&agent), 0);
    assert_int_equal(daemon_stop(&server), 0);
    end_both();
}

static void hosts_that_die_in_mid_transfer_leave_nothing_in_the_agent(void **state)
{
    (void)state;
    hosts_die((const char *[]){"--lease", "1s", "--buffer-memory", "16M", "--filter", "compress", "--filter",
                               "crypt:key_env=PST_TEST_KEY", NULL},
              "crossing");
}

static void nor_do_those_that_handed_memory_over(void **state)
{
    char path[100];

    (void)state;
    snprintf(path, sizeof path, "/tmp/pst-survival-%d.sock", (int)getpid());
    hosts_die((const char *[]){"--lease", "1s", "--buffer-memory", "16M", "--export-listen", path, NULL}, "exported");
    unlink(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_wait_for_the_server_behind_the_agent),
        cmocka_unit_test(they_fail_when_it_stays_away_and_go_on_when_it_is_back),
        cmocka_unit_test(it_ends_in_the_time_of_its_drain_and_the_next_one_does_what_waited_once),
        cmocka_unit_test(hosts_of_a_restarted_agent_go_on_with_their_files),
        cmocka_unit_test(each_host_is_told_what_the_server_lost),
        cmocka_unit_test(hosts_that_die_in_mid_transfer_leave_nothing_in_the_agent),
        cmocka_unit_test(nor_do_those_that_handed_memory_over),
    };
    int r;

    pst_backend_register(&pst_remote_backend);
    if ((r = remote_main_begin(argc, argv)))
        return r;
    unsetenv("PENSTOCK_TEST_AGENT");
    setenv("PST_TEST_KEY", "7d1f3c9ab4e2085561c7f0d99a3e5b2248d6017ce3f98a40b51d6e27c0943fa8", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

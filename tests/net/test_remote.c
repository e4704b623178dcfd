/*
 * The public API over a real daemon on loopback: the cases that hold over any store, two clients of one container,
 * fork. usage: test_remote PENSTOCK PROVIDER
 */
#include "api_cases.h"
#include "base/util.h"
#include "daemon.h"
#include "fabric/fabric.h"
#include "remote/remote_store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct daemon server;

static void what_one_client_closed_another_opens_whole(void **state)
{
    struct pst_fs *a, *b;
    struct pst_file *f;
    char text[64], back[64];

    (void)state;
    assert_int_equal(api_connect("shared", 0, &a), 0);
    assert_int_equal(api_connect("shared", 0, &b), 0);
    for (int i = 0; i < 100; i++) {
        struct pst_fs *w = i % 2 ? a : b, *r = i % 2 ? b : a;
        struct stat st;
        snprintf(text, sizeof text, "round %d %0*d", i, i % 20, 0);
        api_put(w, "/file", text);
        assert_int_equal(pst_stat(r, "/file", &st), 0);
        assert_int_equal(st.st_size, strlen(text));
        assert_int_equal(pst_open(r, "/file", O_RDONLY, 0, &f), 0);
        assert_int_equal(pst_pread(f, back, sizeof back, 0), strlen(text));
        assert_memory_equal(back, text, strlen(text));
        assert_int_equal(pst_close(f), 0);
    }
    assert_int_equal(pst_disconnect(a), 0);
    assert_int_equal(pst_disconnect(b), 0);
}

static void *append_lines(void *arg)
{
    struct pst_file *f = arg;
    char line[16];

    for (int i = 0; i < 200; i++) {
        snprintf(line, sizeof line, "%p", arg);
        memset(line + strlen(line), '.', sizeof line - strlen(line));
        line[15] = '\n';
        if (pst_append(f, line, 16, NULL) != 16)
            return arg;
    }
    return NULL;
}

static void appends_of_several_clients_are_all_there(void **state)
{
    struct pst_fs *fs[4];
    struct pst_file *f[4];
    pthread_t id[4];
    char *all = malloc(4 * 200 * 16 + 1);
    void *failed;

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(api_connect("appends", 0, &fs[i]), 0);
        f[i] = api_open_new(fs[i], "/log", O_APPEND);
        assert_int_equal(pthread_create(&id[i], NULL, append_lines, f[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(pst_pread(f[0], all, 4 * 200 * 16 + 1, 0), 4 * 200 * 16);
    for (int i = 0; i < 800; i++)
        assert_int_equal(all[i * 16 + 15], '\n');
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pst_close(f[i]), 0);
        assert_int_equal(pst_disconnect(fs[i]), 0);
    }
    free(all);
}

static void pools_and_containers_are_managed(void **state)
{
    struct pst_pool p = {.label = "tank", .quota_bytes = 64 * MiB, .mode = 0750}, got;
    struct pst_container c = {.label = "box", .pool = "tank", .chunk_size = 256 * KiB}, back;
    struct pst_admin *a;

    (void)state;
    assert_int_equal(pst_admin_open(server.base, NULL, &a), 0);
    assert_int_equal(pst_pool_add(a, &p, &got), 0);
    assert_int_equal(got.quota_bytes, 64 * MiB);
    assert_int_equal(pst_pool_add(a, &p, NULL), -EEXIST);
    assert_int_equal(pst_container_add(a, &c, &back), 0);
    assert_int_equal(back.chunk_size, 256 * KiB);
    assert_int_equal(pst_container_get(a, "tank", "box", &back), 0);
    assert_string_equal(back.label, "box");
    assert_int_equal(pst_container_get(a, "tank", "none", &back), -ENOENT);
    assert_int_equal(pst_pool_remove(a, "tank", 0), -ENOTEMPTY);
    assert_int_equal(pst_container_remove(a, "tank", "box"), 0);
    assert_int_equal(pst_pool_remove(a, "tank", 0), 0);
    pst_admin_close(a);
}

static void wrong_addresses_and_names_fail_at_once(void **state)
{
    struct pst_fs *fs;
    char url[200];

    (void)state;
    assert_int_equal(pst_connect("penstock://127.0.0.1:1/p/c", NULL, &fs), -ECONNREFUSED);
    assert_non_null(strstr(pst_last_error(), "penstock serve"));
    assert_int_equal(pst_connect("penstock://[::1/p/c", NULL, &fs), -EINVAL);
    assert_int_equal(pst_connect("penstock://127.0.0.1:port/p/c", NULL, &fs), -EINVAL);
    snprintf(url, sizeof url, "%sp/nothing", server.base);
    assert_int_equal(pst_connect(url, NULL, &fs), -ENOENT);
    assert_non_null(strstr(pst_last_error(), "nothing"));
}

struct facts {
    char provider[32], rdma[8], verbs[8];
};

static void fact(void *user, const char *key, const char *value)
{
    struct facts *f = user;

    if (!strcmp(key, "data.provider"))
        snprintf(f->provider, sizeof f->provider, "%s", value);
    if (!strcmp(key, "data.rdma"))
        snprintf(f->rdma, sizeof f->rdma, "%s", value);
    if (!strcmp(key, "data.verbs"))
        snprintf(f->verbs, sizeof f->verbs, "%s", value);
}

static void the_transport_is_told_and_can_be_required(void **state)
{
    bool uroce = !strcmp(server.args[1], "uroce"), rdma = uroce || !strcmp(server.args[1], "verbs");
    struct pst_options o;
    struct facts f = {0};
    struct pst_fs *fs;
    char url[200];

    (void)state;
    assert_int_equal(api_connect("facts", 0, &fs), 0);
    pst_describe(fs, fact, &f);
    assert_string_equal(f.provider, rdma ? "verbs" : server.args[1]);
    assert_string_equal(f.verbs, uroce ? "uroce" : "system");
    assert_string_equal(f.rdma, rdma ? "yes" : "no");
    assert_int_equal(pst_disconnect(fs), 0);
    pst_options_init(&o, sizeof o);
    o.flags = PST_CONNECT_REQUIRE_RDMA;
    snprintf(url, sizeof url, "%sp/facts", server.base);
    assert_int_equal(pst_connect(url, &o, &fs), rdma ? 0 : -ENODEV);
    if (rdma)
        assert_int_equal(pst_disconnect(fs), 0);
}

struct starting {
    const char *program, *base;
    int api, cli;
};

static void *connect_meanwhile(void *arg)
{
    struct starting *s = arg;
    struct pst_fs *fs;
    char cmd[300];

    s->api = api_connect("starting", 60000, &fs);
    if (s->api == 0)
        s->api = pst_disconnect(fs);
    snprintf(cmd, sizeof cmd, "'%s' pool list %s >/dev/null", s->program, s->base);
    s->cli = system(cmd);
    return NULL;
}

/* The moment between a server's first listening and its new token file, made long by a stop. */
static void who_comes_while_the_server_starts_is_let_in(void **state)
{
    struct starting s = {server.program, server.base, -1, -1};
    char path[100], aside[110];
    pthread_t id;

    (void)state;
    snprintf(path, sizeof path, "%s/%d.token", server.dir, server.port);
    snprintf(aside, sizeof aside, "%s.aside", path);
    for (int stale = 0; stale < 2; stale++) {
        int status;
        assert_int_equal(kill(server.pid, SIGSTOP), 0);
        assert_true(waitpid(server.pid, &status, WUNTRACED) == server.pid && WIFSTOPPED(status));
        assert_int_equal(rename(path, aside), 0);
        if (stale) { /* of a server that was killed */
            FILE *f = fopen(path, "w");
            assert_true(f && fchmod(fileno(f), 0600) == 0 && fprintf(f, "%064d", 0) == 64 && fclose(f) == 0);
        }
        assert_int_equal(pthread_create(&id, NULL, connect_meanwhile, &s), 0);
        usleep(500000);
        assert_int_equal(rename(aside, path), 0);
        assert_int_equal(kill(server.pid, SIGCONT), 0);
        pthread_join(id, NULL);
        assert_int_equal(s.api, 0);
        assert_int_equal(s.cli, 0);
    }
}

/* In a child: libfabric is no more to be used in one that was forked after it was loaded. */
static bool usable(const char *provider)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        struct fab_config cfg = {.provider = provider};
        char err[256];
        struct fab *f;
        _exit(fab_open(&cfg, &f, err, sizeof err) < 0);
    }
    return waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_client_closed_another_opens_whole),
        cmocka_unit_test(appends_of_several_clients_are_all_there),
        cmocka_unit_test(pools_and_containers_are_managed),
        cmocka_unit_test(wrong_addresses_and_names_fail_at_once),
        cmocka_unit_test(the_transport_is_told_and_can_be_required),
        cmocka_unit_test(who_comes_while_the_server_starts_is_let_in),
    };
    int failed;

    if (argc != 3)
        return 2;
    if (!usable(argv[2])) {
        printf("skipped: provider %s is not usable on this machine\n", argv[2]);
        return 77;
    }
    pst_backend_register(&pst_remote_backend);
    if (!daemon_start(&server, argv[1], (const char *[]){"--provider", argv[2], NULL}))
        return 1;
    api_base = server.base;
    failed = api_run_cases() + cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) {
        fprintf(stderr, "the server's log is in %s\n", server.dir);
        daemon_stop(&server);
        return failed;
    }
    failed = daemon_stop(&server) != 0;
    daemon_done(&server);
    return failed;
}

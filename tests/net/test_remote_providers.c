/*
 * A server that comes back with another provider than before (data.provider), under clients that live. What a process
 * can still have depends on what it began with: one that has loaded the system's verbs with libfabric cannot have
 * uroce's. So each case begins in a process of its own (the last argument names it).
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEN MiB

static struct daemon d;
static uint8_t *in, *out;
static int turns = 2;

static struct pst_fs *connect_by(const char *provider)
{
    struct pst_options o;
    struct pst_fs *fs;
    char url[200];

    pst_options_init(&o, sizeof o);
    o.flags = PST_CONNECT_CREATE;
    o.timeout_ms = 120000;
    o.provider = provider;
    snprintf(url, sizeof url, "%sp/c", d.base);
    if (pst_connect(url, &o, &fs) < 0)
        fail_msg("%s", pst_last_error());
    return fs;
}

static void come_back_with(const char *provider, bool killed)
{
    if (killed)
        daemon_kill(&d);
    else
        assert_int_equal(daemon_stop(&d), 0);
    d.args[1] = provider;
    assert_true(daemon_again(&d));
}

static void fact(void *user, const char *key, const char *value)
{
    if (!strcmp(key, "data.provider"))
        snprintf(user, 32, "%s", value);
}

static void expect_provider(struct pst_fs *fs, const char *name)
{
    char got[32] = "";

    pst_describe(fs, fact, got);
    assert_string_equal(got, name);
}

static void write_and_sync(struct pst_file *f, unsigned piece)
{
    memset(out, (int)piece, LEN);
    assert_int_equal(pst_pwrite(f, out, LEN, piece * LEN), LEN);
    assert_int_equal(pst_fsync(f), 0);
}

/* By a client that has none of it in its cache. */
static void check(const char *provider, unsigned pieces)
{
    struct pst_fs *fs = connect_by(provider);
    struct pst_file *f;

    assert_int_equal(pst_open(fs, "/f", O_RDONLY, 0, &f), 0);
    for (unsigned i = 0; i < pieces; i++) {
        memset(out, (int)i, LEN);
        assert_int_equal(pst_pread(f, in, LEN, i * LEN), LEN);
        assert_memory_equal(in, out, LEN);
    }
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
}

static void uroce_first_a_client_follows_its_server_to_tcp_and_back(void **state)
{
    struct pst_fs *fs = connect_by(NULL);
    struct pst_file *f = api_open_new(fs, "/f", 0);
    unsigned piece = 0;

    (void)state;
    write_and_sync(f, piece++);
    expect_provider(fs, "verbs");
    for (int i = 0; i < turns; i++) {
        come_back_with(i % 2 ? "uroce" : "tcp", i % 4 == 1 || i % 4 == 2);
        write_and_sync(f, piece++);
        expect_provider(fs, i % 2 ? "verbs" : "tcp");
        check(NULL, piece);
    }
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
}

/* With what is on its way at that moment. */
static void uroce_first_what_is_under_way_goes_on_by_the_other_provider(void **state)
{
    struct pst_fs *fs = connect_by(NULL);
    struct pst_file *f = api_open_new(fs, "/f", 0);
    unsigned piece = 0;

    (void)state;
    for (int i = 0; i < turns; i++) {
        for (int k = 0; k < 8; k++, piece++) {
            memset(out, (int)piece, LEN);
            assert_int_equal(pst_pwrite(f, out, LEN, piece * LEN), LEN);
        }
        come_back_with(i % 2 ? "uroce" : "tcp", false);
    }
    assert_int_equal(pst_fsync(f), 0);
    check(NULL, piece);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
}

/* By the transport's shared memory: not read through the kernel. */
static void uroce_first_client_and_server_map_each_others_buffers_while_connected(void **state)
{
    int before = memory_mapped(d.pid), mine;
    struct pst_fs *fs = connect_by(NULL);
    struct pst_file *f = api_open_new(fs, "/f", 0);

    (void)state;
    for (unsigned i = 0; i < 100 && memory_mapped(d.pid) <= before; i++) {
        write_and_sync(f, i % 4);
        assert_int_equal(pst_pread(f, in, LEN, i % 4 * LEN), LEN);
        assert_memory_equal(in, out, LEN);
    }
    assert_true(memory_mapped(d.pid) > before);
    mine = memory_mapped(getpid());
    check(NULL, 1);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    assert_true(memory_mapped(getpid()) < mine);
    for (int i = 0; i < 100 && memory_mapped(d.pid) > before; i++)
        nap(50);
    assert_int_equal(memory_mapped(d.pid), before);
}

/* Fails at once, long before the time-out, until the server has what the client can use. */
static void fails_while_away(struct pst_fs *fs, const char *away, const char *back)
{
    struct pst_file *f = api_open_new(fs, "/f", 0);

    write_and_sync(f, 0);
    come_back_with(away, false);
    memset(out, 1, LEN);
    assert_int_equal(pst_pwrite(f, out, LEN, LEN), LEN);
    assert_int_equal(pst_fsync(f), -EHOSTUNREACH);
    assert_int_equal(pst_pread(f, in, LEN, 0), -EHOSTUNREACH);
    come_back_with(back, false);
    write_and_sync(f, 1);
    check(NULL, 2);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
}

static void uroce_first_a_provider_that_was_asked_for_and_is_gone_is_an_error_at_once(void **state)
{
    (void)state;
    fails_while_away(connect_by("uroce"), "tcp", "uroce");
}

static void tcp_first_a_provider_that_the_process_cannot_have_is_an_error_at_once(void **state)
{
    (void)state;
    fails_while_away(connect_by(NULL), "uroce", "tcp");
}

static int start(void **state)
{
    (void)state;
    if (!daemon_start(&d, program, (const char *[]){"--provider", *state, NULL}))
        return 1;
    api_base = d.base;
    return 0;
}

static int done(void **state)
{
    (void)state;
    daemon_done(&d);
    return 0;
}

#define T(f, provider) {#f, f, start, done, (void *)(uintptr_t)(provider)}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(uroce_first_a_client_follows_its_server_to_tcp_and_back, "uroce"),
        T(uroce_first_what_is_under_way_goes_on_by_the_other_provider, "uroce"),
        T(uroce_first_client_and_server_map_each_others_buffers_while_connected, "uroce"),
        T(uroce_first_a_provider_that_was_asked_for_and_is_gone_is_an_error_at_once, "uroce"),
        T(tcp_first_a_provider_that_the_process_cannot_have_is_an_error_at_once, "tcp"),
    };
    int r = remote_main_begin(argc, argv);

    if (r)
        return r;
    if (extended)
        turns = 8;
    in = malloc(LEN);
    out = malloc(LEN);
    if (!in || !out)
        return 1;
    pst_backend_register(&pst_remote_backend);
    r = cmocka_run_group_tests(tests, NULL, NULL);
    free(in);
    free(out);
    return r;
}

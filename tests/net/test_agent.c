/*
 * An agent between a client and a server: what is sent again, by whomever, happens once; who may do what; nothing is
 * lost. usage: test_agent PENSTOCK [TEST]
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct pst_fs *connect_by_proxy(const struct daemon *d, const char *container)
{
    char base[80], token[200];

    snprintf(token, sizeof token, "%s/%d.token", d->dir, d->port);
    setenv("PENSTOCK_TOKEN_FILE", token, 1);
    snprintf(base, sizeof base, "penstock://127.0.0.2:%d/", d->port);
    return connect_at(base, container, 120000);
}

/* ---- exactly once ---- */

/*
 * Answers are lost on both ways, the agent is killed, the server drained, and each comes back: appends and names, of
 * which none may be made twice, and none fail.
 */
static void what_is_sent_again_through_another_agent_happens_once(void **state)
{
    static struct killer k;
    uint8_t *buf = malloc(RECORD_MAX);
    struct pst_file *f;
    struct pst_fs *fs;
    struct daemon d;
    struct proxy *p;
    int i;

    (void)state;
    k = (struct killer){.d = &d, .rounds = extended ? 60 : 6, .backend_too = true};
    assert_true(daemon_start(&d, program, (const char *[]){"--data-advertise", "127.0.0.2", NULL}));
    p = proxy_start(&d, 0, (unsigned)seed);
    fs = connect_by_proxy(&d, "once");
    f = api_open_new(fs, "/log", O_APPEND);
    proxy_every(p, 60);
    proxy_every(d.proxy, 60);
    killer_start(&k);
    for (i = 0; i < 10 || !killer_over(&k); i++) {
        char small[16];
        size_t n = record(i, buf);
        assert_int_equal(pst_append(f, buf, n, NULL), n);
        names_round(fs, i);
        snprintf(small, sizeof small, "/s%d", i % 7);
        api_put(fs, small, "small");
        killer_tick(&k);
    }
    assert_true(killer_end(&k));
    proxy_every(p, 0);
    proxy_every(d.proxy, 0);
    print_message("%d rounds, %u and %u connections cut\n", i, proxy_cuts(p), proxy_cuts(d.proxy));
    check_records(fs, "/log", i);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    unsetenv("PENSTOCK_TOKEN_FILE");
    proxy_stop(p);
    assert_int_equal(daemon_stop(&d), 0);
    daemon_done(&d);
    free(buf);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sent_again_through_another_agent_happens_once),
    };
    int r = remote_main_begin(argc, argv);

    if (r)
        return r;
    setenv("PENSTOCK_TEST_AGENT", "proxy", 1);
    pst_backend_register(&pst_remote_backend);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Whom an agent may act for, and who judges that: the agent by its hosts' credentials, the server by the agent's, and
 * the engine by each request's user. usage: test_agent_rights PENSTOCK [TEST]
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
#include <sys/stat.h>
#include <unistd.h>

static struct daemon server, agent;

/* A file with a token in it, and a daemon's credential for who has it. */
struct given {
    char token_file[80], credential[160];
};

static void make_credential(struct given *g, const char *name, const char *rest)
{
    int fd;

    snprintf(g->token_file, sizeof g->token_file, "/tmp/pst-token-%d-%s", (int)getpid(), name);
    snprintf(g->credential, sizeof g->credential, "name=%s,token_file=%s,%s", name, g->token_file, rest);
    fd = open(g->token_file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "%s-%d-its-own-token\n", name, (int)getpid()) > 0);
    close(fd);
}

/* As a host of the daemon, or with a token of its own. */
static struct pst_store *open_store(const struct daemon *d, const char *token)
{
    struct pst_option opt = {"token_file", token};
    struct pst_store *st;
    char err[300], url[80];

    snprintf(url, sizeof url, "penstock://127.0.0.1:%d", d->port);
    if (pst_backend_open(url, &opt, token != NULL, &st, err, sizeof err) < 0)
        fail_msg("%s", err);
    return st;
}

static void another_user_of_an_open_object_is_judged_for_himself(void **state)
{
    const struct pst_cred ann = {.uid = 1000, .gid = 1000}, ben = {.uid = 1001, .gid = 1001};
    const struct pst_ctx none = {0}, as_ann = {.cred = &ann}, as_ben = {.cred = &ben};
    const struct pst_new file = {.mode = S_IFREG | 0600, .exclusive = true};
    const struct pst_cont_props props = {.mode = 0777};
    struct pst_store *a, *b;
    struct pst_cont *ca, *cb;
    struct pst_cont_info info;
    struct pst_attr at, ignored;
    bool created;

    (void)state;
    assert_true(daemon_start(&server, program, NULL) && daemon_agent_start(&agent, &server, NULL));
    a = open_store(&agent, NULL);
    b = open_store(&agent, NULL);
    assert_int_equal(pst_cont_create(a, &none, "default", "users", &props, &info), 0);
    assert_int_equal(pst_cont_open(a, &none, "default", "users", &ca), 0);
    assert_int_equal(pst_cont_open(b, &none, "default", "users", &cb), 0);
    assert_int_equal(pst_store_create(ca, &as_ann, PST_ROOT_INO, "f", &file, R_OK | W_OK, false, &at, &created), 0);
    for (int i = 0; i < 2; i++) { /* also when the object is open for its owner, here or in another client */
        struct pst_cont *c = i ? cb : ca;
        assert_int_equal(pst_store_open(c, &as_ben, at.ino, R_OK, false, &ignored), -EACCES);
        assert_int_equal(pst_store_open(c, &as_ben, at.ino, W_OK, true, &ignored), -EACCES);
        assert_int_equal(pst_store_open(c, &as_ann, at.ino, R_OK, false, &ignored), 0);
        assert_int_equal(pst_store_open(c, &as_ben, at.ino, R_OK, false, &ignored), -EACCES);
        pst_store_release(c, at.ino);
    }
    pst_store_release(ca, at.ino);
    pst_cont_close(ca);
    pst_cont_close(cb);
    pst_store_close(a);
    pst_store_close(b);
    assert_int_equal(daemon_stop(&agent), 0);
    daemon_done(&agent);
    daemon_done(&server);
}

/*
 * The server judges by the agent's credential, whatever the agent lets its hosts say: a host that may be anybody, and
 * the agent's own administrator, who may open a container there, but as nobody else than the agent is.
 */
static void an_agent_acts_for_nobody_that_its_credential_does_not_allow(void **state)
{
    const struct pst_cred own = {.uid = 500, .gid = 500}, other = {.uid = 1000, .gid = 1000}, root = {0};
    const struct pst_ctx none = {0}, as_own = {.cred = &own}, as_other = {.cred = &other}, as_root = {.cred = &root};
    struct given of_agent, of_host;
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_attr at;

    (void)state;
    make_credential(&of_agent, "agent", "uid=500,gid=500,origin");
    make_credential(&of_host, "host", "any_uid");
    assert_true(daemon_start(&server, program, (const char *[]){"--credential", of_agent.credential, NULL}));
    assert_true(daemon_agent_start(
        &agent, &server,
        (const char *[]){"--backend-token-file", of_agent.token_file, "--credential", of_host.credential, NULL}));
    for (int administrator = 0; administrator < 2; administrator++) {
        st = open_store(&agent, administrator ? NULL : of_host.token_file);
        if (!administrator)
            assert_int_equal(pst_cont_open(st, &as_other, "default", "default", &c), -EPERM);
        assert_int_equal(pst_cont_open(st, &as_own, "default", "default", &c), 0);
        assert_int_equal(pst_store_getattr(c, &as_own, PST_ROOT_INO, &at), 0);
        assert_int_equal(pst_store_getattr(c, &as_other, PST_ROOT_INO, &at), -EPERM);
        assert_int_equal(pst_store_getattr(c, &as_root, PST_ROOT_INO, &at), -EPERM);
        assert_int_equal(pst_store_getattr(c, &none, PST_ROOT_INO, &at), -EPERM);
        pst_cont_close(c);
        pst_store_close(st);
    }
    daemon_done(&agent);
    daemon_done(&server);
    unlink(of_agent.token_file);
    unlink(of_host.token_file);
}

/* And the agent by its hosts' credentials, whatever the server lets the agent say. */
static void a_host_acts_for_nobody_that_its_credential_does_not_allow(void **state)
{
    const struct pst_cred own = {.uid = 500, .gid = 500}, other = {.uid = 1000, .gid = 1000}, root = {0};
    const struct pst_ctx as_own = {.cred = &own}, as_other = {.cred = &other}, as_root = {.cred = &root};
    struct given host;
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_attr at;

    (void)state;
    make_credential(&host, "host", "uid=500,gid=500");
    assert_true(daemon_start(&server, program, NULL));
    assert_true(daemon_agent_start(&agent, &server, (const char *[]){"--credential", host.credential, NULL}));
    st = open_store(&agent, host.token_file);
    assert_int_equal(pst_cont_open(st, &as_other, "default", "default", &c), -EPERM);
    assert_int_equal(pst_cont_open(st, &as_root, "default", "default", &c), -EPERM);
    assert_int_equal(pst_cont_open(st, &as_own, "default", "default", &c), 0);
    assert_int_equal(pst_store_getattr(c, &as_own, PST_ROOT_INO, &at), 0);
    assert_int_equal(pst_store_getattr(c, &as_other, PST_ROOT_INO, &at), -EPERM);
    assert_int_equal(pst_store_getattr(c, &as_root, PST_ROOT_INO, &at), -EPERM);
    pst_cont_close(c);
    pst_store_close(st);
    daemon_done(&agent);
    daemon_done(&server);
    unlink(host.token_file);
}

/* Who may keep set-id bits at a write is asked of sessions that can act as root; of others all writes take them. */
static void a_user_of_his_own_keeps_no_set_id_bits(void **state)
{
    const struct pst_ctx none = {0};
    const struct pst_new file = {.mode = S_IFREG | 0777, .exclusive = true};
    const struct pst_attr mode = {.mode = 06777};
    struct given host;
    struct pst_attr at;
    char bytes[10] = "123456789", name[20];

    (void)state;
    make_credential(&host, "host", "uid=500,gid=500");
    assert_true(daemon_start(&server, program, (const char *[]){"--credential", host.credential, NULL}));
    assert_true(daemon_agent_start(&agent, &server, (const char *[]){"--credential", host.credential, NULL}));
    for (int i = 0; i < 8; i++) {
        struct pst_store *all = open_store(&server, NULL);
        struct pst_store *st = open_store(i & 1 ? &agent : &server, i & 2 ? host.token_file : NULL);
        struct pst_cont *ca, *c;
        struct iovec v = {bytes, 10};
        struct pst_op op = {.kind = PST_OP_WRITE, .iov = &v, .iovcnt = 1, .length = 10};
        struct pst_queue *q;

        snprintf(name, sizeof name, "f%d", i);
        assert_int_equal(pst_cont_open(all, &none, "default", "default", &ca), 0);
        assert_int_equal(pst_cont_open(st, &none, "default", "default", &c), 0);
        assert_int_equal(pst_store_make(ca, &none, PST_ROOT_INO, name, &file, &at, NULL), 0);
        assert_int_equal(pst_store_setattr(ca, &none, at.ino, PST_SET_MODE, &mode, &at), 0);
        assert_int_equal(pst_store_open(c, &none, at.ino, R_OK | W_OK, false, &at), 0);
        if (i & 4) {
            assert_int_equal(pst_store_write(c, at.ino, 0, bytes, 10, 0), 0);
        } else {
            assert_int_equal(pst_queue_open(st, 1, &q), 0);
            op.cont = c;
            op.ino = at.ino;
            assert_int_equal(pst_queue_run(q, &op), 10);
            pst_queue_close(q);
        }
        assert_int_equal(pst_store_getattr(ca, &none, at.ino, &at), 0);
        assert_int_equal(at.mode & 07777, i & 2 ? 0777 : 06777);
        pst_store_release(c, at.ino);
        pst_cont_close(c);
        pst_cont_close(ca);
        pst_store_close(st);
        pst_store_close(all);
    }
    daemon_done(&agent);
    daemon_done(&server);
    unlink(host.token_file);
}

/* A credential without the right to pass request ids on: the agent says so at once. */
static void an_agent_without_the_right_to_speak_for_hosts_does_not_start(void **state)
{
    struct given client;
    char cmd[500];

    (void)state;
    make_credential(&client, "client", "any_uid");
    assert_true(daemon_start(&server, program, (const char *[]){"--credential", client.credential, NULL}));
    snprintf(cmd, sizeof cmd,
             "'%s' serve --role agent --backend penstock://127.0.0.1:%d --backend-token-file %s --listen 127.0.0.1:0 "
             "--metrics off 2>&1 | grep -q 'origin: true'",
             program, server.port, client.token_file);
    assert_int_equal(system(cmd), 0);
    daemon_done(&server);
    unlink(client.token_file);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_user_of_an_open_object_is_judged_for_himself),
        cmocka_unit_test(an_agent_acts_for_nobody_that_its_credential_does_not_allow),
        cmocka_unit_test(a_host_acts_for_nobody_that_its_credential_does_not_allow),
        cmocka_unit_test(a_user_of_his_own_keeps_no_set_id_bits),
        cmocka_unit_test(an_agent_without_the_right_to_speak_for_hosts_does_not_start),
    };
    int r = remote_main_begin(argc, argv);

    if (r)
        return r;
    unsetenv("PENSTOCK_TEST_AGENT");
    pst_backend_register(&pst_remote_backend);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

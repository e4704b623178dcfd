/* The gRPC wrapper: TLS as the C client does it, and token files. */
#include "rpc_fixture.h"

#include "control/tls.h"

#include <sys/stat.h>

static char dir[] = "/tmp/penstock-rpc-XXXXXX";

/* ---- TLS, as the C client does it ---- */

static void the_client_speaks_tls_and_rereads_its_files(void **state)
{
    const struct rpc_server_config cfg = {.methods = methods, .nmethods = ARRAY_SIZE(methods)};
    const char *names[] = {"localhost", "127.0.0.1"};
    char base[64], ca[100], cert[100], key[100], cc[100], ck[100], err[300], at[64];
    struct rpc_tls stls = {ca, cert, key}, ctls = {ca, cc, ck}, none = {ca, NULL, NULL};
    struct rpc_channel_config c = {.addr = at, .tls = &ctls};
    struct rpc_server *s;
    struct rpc_channel *x;
    struct rpc_result r;
    int port;
    (void)state;
    snprintf(base, sizeof base, "%s/tls", dir);
    assert_int_equal(tls_init(base, &(struct tls_init){names, 2, "me", 0}, err, sizeof err), 0);
    snprintf(ca, sizeof ca, "%s/ca.pem", base);
    snprintf(cert, sizeof cert, "%s/server.pem", base);
    snprintf(key, sizeof key, "%s/server.key", base);
    snprintf(cc, sizeof cc, "%s/me.pem", base);
    snprintf(ck, sizeof ck, "%s/me.key", base);
    assert_int_equal(rpc_server_new(&cfg, &s), 0);
    assert_int_equal(rpc_server_listen(s, "127.0.0.1:0", &stls, false, &port, err, sizeof err), 0);
    assert_int_equal(rpc_server_start(s), 0);
    snprintf(at, sizeof at, "127.0.0.1:%d", port);
    assert_int_equal(rpc_channel_open(&c, &x, err, sizeof err), 0);
    assert_int_equal(rpc_unary(x, M("Echo"), "hi", 2, 10000, NULL, &r), 0);
    rpc_result_done(&r);
    rpc_channel_close(x);
    c.server_name = "other.example";
    assert_int_equal(rpc_channel_open(&c, &x, err, sizeof err), 0);
    assert_int_equal(rpc_unary(x, M("Echo"), "hi", 2, 10000, NULL, &r), -ENOTCONN);
    rpc_channel_close(x);
    c.tls = &none;
    assert_int_equal(rpc_channel_open(&c, &x, err, sizeof err), -EINVAL);
    c.tls = NULL;
    assert_int_equal(rpc_channel_open(&c, &x, err, sizeof err), 0);
    assert_int_equal(rpc_unary(x, M("Echo"), "hi", 2, 10000, NULL, &r), -ENOTCONN);
    rpc_channel_close(x);
    unlink(ck);
    c.tls = &ctls;
    assert_int_equal(rpc_channel_open(&c, &x, err, sizeof err), -ENOENT);
    rpc_server_stop(s, 100);
    rpc_server_free(s);
}

/* ---- token files ---- */

static void token_files_are_private_and_found_by_port(void **state)
{
    char run[100], file[140], a[TOKEN_BYTES], b[TOKEN_BYTES], path[200];
    struct stat st;
    (void)state;
    snprintf(run, sizeof run, "%s/run", dir);
    setenv("PENSTOCK_RUN_DIR", run, 1);
    assert_int_equal(token_find("127.0.0.1:4711", b), -ENOENT);
    assert_int_equal(token_create("127.0.0.1:0", 4711, a), 0);
    assert_int_equal(strlen(a), TOKEN_BYTES - 1);
    assert_int_equal(token_find("127.0.0.1:4711", b), 0);
    assert_string_equal(a, b);
    assert_int_equal(token_find("[::1]:4711", b), 0);
    assert_int_equal(token_find("10.0.0.1:4711", b), -ENOENT); /* not to strangers */
    assert_int_equal(token_find("nonsense", b), -EINVAL);
    snprintf(file, sizeof file, "%s/4711.token", run);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(chmod(file, 0640), 0);
    assert_int_equal(token_find("127.0.0.1:4711", b), -EPERM);
    assert_int_equal(token_create("127.0.0.1:0", 4711, b), 0); /* replaced whole, private again */
    assert_string_not_equal(a, b);
    assert_int_equal(truncate(file, 5), 0);
    assert_int_equal(token_find("127.0.0.1:4711", b), -EBADMSG);
    assert_int_equal(chmod(run, 0777), 0);
    assert_int_equal(token_find("127.0.0.1:4711", b), -EPERM);
    assert_int_equal(token_create("127.0.0.1:0", 4712, b), -EPERM);
    assert_int_equal(token_run_dir(path, sizeof path), -EPERM);
    assert_int_equal(chmod(run, 0700), 0);
    token_remove("127.0.0.1:0", 4711);
    assert_int_equal(token_find("127.0.0.1:4711", b), -ENOENT);
    assert_int_equal(token_create("unix:/some/where", 0, a), 0);
    assert_int_equal(token_find("unix:/some/where", b), 0);
    assert_string_equal(a, b);
    token_remove("unix:/some/where", 0);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    char cmd[100];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_client_speaks_tls_and_rereads_its_files),
        cmocka_unit_test(token_files_are_private_and_found_by_port),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

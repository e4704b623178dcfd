/* The gRPC wrapper, both sides in one process: calls, deadlines, cancelling, streams, limits, stopping, TLS. */
#include "control/rpc.h"
#include "control/tls.h"

#include "base/util.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static struct rpc_server *srv;
static struct rpc_channel *ch;
static char addr[64], dir[] = "/tmp/penstock-rpc-XXXXXX";
static atomic_uint hung, cancels, running, most_running;

/* ---- handlers ---- */

static void on_echo(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    (void)user;
    rpc_reply(c, msg, len);
}

static void on_fail(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    (void)user, (void)msg;
    rpc_finish(c, -(int)len, "as\nasked"); /* as many bytes as the errno */
}

/* Does not answer by itself. */
static void on_hang(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    (void)c, (void)msg, (void)len, (void)user;
    atomic_fetch_add(&hung, 1);
}

static void on_hang_cancel(struct rpc_call *c, void *user)
{
    (void)c, (void)user;
    atomic_fetch_add(&cancels, 1);
}

struct later {
    struct rpc_call *c;
    char msg[16];
    size_t len;
};

static void *answer_later(void *arg)
{
    struct later *l = arg;
    usleep(20000);
    rpc_reply(l->c, l->msg, l->len);
    rpc_reply(l->c, l->msg, l->len); /* the second answer of a call is none */
    rpc_finish(l->c, -EIO, NULL);
    rpc_call_unref(l->c);
    free(l);
    return NULL;
}

static void on_later(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    struct later *l = calloc(1, sizeof *l);
    pthread_t t;
    (void)user;
    l->c = rpc_call_ref(c);
    l->len = min_u64(len, sizeof l->msg);
    memcpy(l->msg, msg, l->len);
    if (pthread_create(&t, NULL, answer_later, l))
        abort();
    pthread_detach(t);
}

static void on_deadline(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    int64_t ms = rpc_deadline_ms(c);
    (void)msg, (void)len, (void)user;
    rpc_reply(c, &ms, sizeof ms);
}

/* Counts from 0 to the number that the message has. */
static void *produce(void *arg)
{
    struct later *l = arg;
    uint32_t n;
    memcpy(&n, l->msg, sizeof n);
    for (uint32_t i = 0; i < n; i++)
        if (rpc_send_wait(l->c, &i, sizeof i))
            break;
    rpc_finish(l->c, 0, NULL);
    rpc_call_unref(l->c);
    free(l);
    return NULL;
}

static void on_count(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    struct later *l = calloc(1, sizeof *l);
    pthread_t t;
    (void)user;
    l->c = rpc_call_ref(c);
    memcpy(l->msg, msg, min_u64(len, sizeof l->msg));
    if (pthread_create(&t, NULL, produce, l))
        abort();
    pthread_detach(t);
}

static void on_chat(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    unsigned now = atomic_fetch_add(&running, 1) + 1, was = atomic_load(&most_running);
    (void)user;
    while (was < now && !atomic_compare_exchange_weak(&most_running, &was, now))
        ;
    if (len == 4 && !memcmp(msg, "stop", 4))
        rpc_finish(c, -EDQUOT, "stopped");
    else
        assert_int_equal(rpc_send(c, msg, len), 0);
    atomic_fetch_sub(&running, 1);
}

static int admit(struct rpc_call *c, void *user)
{
    (void)user;
    return strstr(rpc_path(c), "Forbidden") ? -EACCES : 0;
}

static const struct rpc_method methods[] = {
    {"/penstock.test.v1.TestService/Echo", RPC_UNARY, 0, NULL, on_echo, NULL},           {"/penstock.test.v1.TestService/Fail", RPC_UNARY, 0, NULL, on_fail, NULL},
    {"/penstock.test.v1.TestService/Hang", RPC_UNARY, 0, NULL, on_hang, on_hang_cancel}, {"/penstock.test.v1.TestService/Later", RPC_UNARY, 0, NULL, on_later, NULL},
    {"/penstock.test.v1.TestService/Deadline", RPC_UNARY, 0, NULL, on_deadline, NULL},   {"/penstock.test.v1.TestService/Forbidden", RPC_UNARY, 0, NULL, on_echo, NULL},
    {"/penstock.test.v1.TestService/Count", RPC_SERVER_STREAM, 0, NULL, on_count, NULL}, {"/penstock.test.v1.TestService/Chat", RPC_BIDI, 8, NULL, on_chat, NULL},
};

static int setup(void **state)
{
    const struct rpc_server_config cfg = {.methods = methods,
                                          .nmethods = ARRAY_SIZE(methods),
                                          .threads = 4,
                                          .max_calls = 64,
                                          .idle_call_ms = 1000,
                                          .admit = admit};
    const struct rpc_channel_config cc = {.addr = addr};
    char err[200];
    int port;
    (void)state;
    hung = cancels = running = most_running = 0;
    if (rpc_server_new(&cfg, &srv) || rpc_server_listen(srv, "127.0.0.1:0", NULL, false, &port, err, sizeof err) ||
        rpc_server_start(srv))
        return -1;
    snprintf(addr, sizeof addr, "127.0.0.1:%d", port);
    return rpc_channel_open(&cc, &ch, err, sizeof err);
}

static int teardown(void **state)
{
    (void)state;
    rpc_channel_close(ch);
    rpc_server_stop(srv, 1000);
    rpc_server_free(srv);
    return 0;
}

static int call(const char *method, const void *msg, size_t len, struct rpc_result *ret)
{
    char path[64];
    snprintf(path, sizeof path, "/penstock.test.v1.TestService/%s", method);
    return rpc_unary(ch, path, msg, len, 20000, NULL, ret);
}

/* ---- unary ---- */

static void messages_of_all_sizes_come_back(void **state)
{
    static char big[1024 * 1024];
    struct rpc_result r;
    (void)state;
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 7);
    for (size_t n = 0; n <= sizeof big; n = n * 4 + 1) {
        assert_int_equal(call("Echo", big, n, &r), 0);
        assert_true(r.from_server && r.code == RPC_OK && r.len == n && !memcmp(r.data, big, n));
        rpc_result_done(&r);
    }
    assert_int_equal(call("Echo", big, sizeof big, &r), 0);
    rpc_result_done(&r);
}

static void errors_keep_their_errno(void **state)
{
    struct rpc_result r;
    char msg[256] = "";
    int err;
    (void)state;
    for (unsigned i = 0; !errs_row(i, &err); i++) {
        assert_int_equal(call("Fail", msg, (size_t)-err, &r), err);
        assert_int_equal(r.code, errs_code(err));
        assert_true(r.from_server && !r.data);
        assert_true(strstr(r.details, errs_name(err)) == r.details);
        assert_non_null(strstr(r.details, ": as asked")); /* control characters do not go into a header */
        rpc_result_done(&r);
    }
    assert_int_equal(call("Fail", msg, ENOTTY, &r), -EIO);
    assert_int_equal(call("Nope", msg, 1, &r), -EOPNOTSUPP);
    assert_int_equal(r.code, RPC_UNIMPLEMENTED);
    assert_int_equal(call("Forbidden", msg, 1, &r), -EACCES);
    assert_int_equal(r.code, RPC_UNAUTHENTICATED);
}

static void a_deadline_ends_the_call_on_both_sides(void **state)
{
    struct rpc_result r;
    int64_t ms;
    (void)state;
    for (uint32_t t = 50; !atomic_load(&hung); t *= 2) { /* on a slow machine it is over before the handler runs */
        assert_int_equal(rpc_unary(ch, "/penstock.test.v1.TestService/Hang", "", 0, t, NULL, &r), -ETIMEDOUT);
        assert_false(r.from_server);
    }
    while (!atomic_load(&cancels))
        usleep(1000);
    assert_int_equal(rpc_unary(ch, "/penstock.test.v1.TestService/Deadline", "", 0, 5000, NULL, &r), 0);
    memcpy(&ms, r.data, sizeof ms);
    assert_true(ms > 0 && ms <= 6000);
    rpc_result_done(&r);
    assert_int_equal(rpc_unary(ch, "/penstock.test.v1.TestService/Deadline", "", 0, 0, NULL, &r), 0);
    memcpy(&ms, r.data, sizeof ms);
    assert_true(ms == INT64_MAX);
    rpc_result_done(&r);
}

static void *fire(void *k)
{
    while (!atomic_load(&hung))
        usleep(1000);
    rpc_cancel_fire(k);
    return NULL;
}

static void a_call_is_cancelled_from_another_thread(void **state)
{
    struct rpc_cancel *k = rpc_cancel_new();
    struct rpc_result r;
    pthread_t t;
    (void)state;
    pthread_create(&t, NULL, fire, k);
    assert_int_equal(rpc_unary(ch, "/penstock.test.v1.TestService/Hang", "", 0, 0, k, &r), -ECANCELED);
    pthread_join(t, NULL);
    assert_int_equal(rpc_unary(ch, "/penstock.test.v1.TestService/Hang", "", 0, 0, k, &r), -ECANCELED); /* fired before */
    rpc_cancel_fire(k);
    rpc_cancel_free(k);
    while (!atomic_load(&cancels))
        usleep(1000);
}

static void a_reply_may_come_later_from_another_thread_and_counts_once(void **state)
{
    struct rpc_result r;
    (void)state;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(call("Later", "later", 5, &r), 0);
        assert_true(r.len == 5 && !memcmp(r.data, "later", 5));
        rpc_result_done(&r);
    }
}

static void *many_calls(void *arg)
{
    struct rpc_result r;
    for (int i = 0; i < 200; i++) {
        assert_int_equal(call("Echo", arg, strlen(arg), &r), 0);
        assert_true(r.len == strlen(arg) && !memcmp(r.data, arg, r.len));
        rpc_result_done(&r);
    }
    return NULL;
}

static void threads_share_a_channel(void **state)
{
    char *text[] = {"one", "two", "three", "four"};
    pthread_t t[4];
    (void)state;
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, many_calls, text[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
}

static void no_server_is_enotconn(void **state)
{
    const struct rpc_channel_config cc = {.addr = "127.0.0.1:1"};
    struct rpc_channel *none;
    struct rpc_result r;
    char err[200];
    (void)state;
    assert_int_equal(rpc_channel_open(&cc, &none, err, sizeof err), 0);
    assert_int_equal(rpc_unary(none, "/penstock.test.v1.TestService/Echo", "", 0, 5000, NULL, &r), -ENOTCONN);
    assert_false(r.from_server);
    rpc_channel_close(none);
}

/* ---- streams ---- */

static void a_server_stream_comes_whole_and_in_order(void **state)
{
    struct rpc_stream *s;
    uint32_t n = 2000, got = 0;
    void *msg;
    size_t len;
    (void)state;
    assert_int_equal(rpc_stream_open(ch, "/penstock.test.v1.TestService/Count", &s), 0);
    assert_int_equal(rpc_stream_send(s, &n, sizeof n), 0);
    assert_int_equal(rpc_stream_send_end(s), 0);
    while (rpc_stream_recv(s, UINT64_MAX, &msg, &len) == 1) {
        assert_true(len == sizeof got && !memcmp(msg, &got, len));
        got++;
        free(msg);
    }
    assert_int_equal(got, n);
    assert_int_equal(rpc_stream_close(s, NULL), 0);
}

static void a_bidi_stream_goes_both_ways(void **state)
{
    struct rpc_stream *s;
    struct rpc_result r;
    void *msg;
    size_t len;
    bool seen[500] = {0};
    (void)state;
    assert_int_equal(rpc_stream_open(ch, "/penstock.test.v1.TestService/Chat", &s), 0);
    assert_int_equal(rpc_stream_recv(s, 1000000, &msg, &len), -ETIMEDOUT);
    for (uint32_t i = 0; i < 500;) {
        int e = rpc_stream_send(s, &i, sizeof i);
        i += !e;
        if (e == -EAGAIN || i == 500)
            break; /* full until someone receives */
        assert_int_equal(e, 0);
    }
    for (uint32_t i = 0, sent = RPC_QUEUE_MAX; i < 500; i++) {
        uint32_t v;
        assert_int_equal(rpc_stream_recv(s, UINT64_MAX, &msg, &len), 1);
        memcpy(&v, msg, sizeof v);
        assert_true(v < 500 && !seen[v]);
        seen[v] = true;
        free(msg);
        while (sent < 500 && !rpc_stream_send(s, &sent, sizeof sent))
            sent++;
    }
    assert_true(atomic_load(&most_running) <= 8);
    assert_int_equal(rpc_stream_send_end(s), 0);
    assert_int_equal(rpc_stream_send(s, "x", 1), -ENOTCONN);
    assert_int_equal(rpc_stream_recv(s, UINT64_MAX, &msg, &len), 0);
    assert_int_equal(rpc_stream_close(s, &r), 0);
    assert_int_equal(r.code, RPC_OK);
}

static void the_server_ends_a_stream_with_an_error(void **state)
{
    struct rpc_stream *s;
    struct rpc_result r;
    void *msg;
    size_t len;
    (void)state;
    assert_int_equal(rpc_stream_open(ch, "/penstock.test.v1.TestService/Chat", &s), 0);
    assert_int_equal(rpc_stream_send(s, "stop", 4), 0);
    assert_int_equal(rpc_stream_recv(s, UINT64_MAX, &msg, &len), 0);
    assert_int_equal(rpc_stream_close(s, &r), -EDQUOT);
    assert_string_equal(r.details, "EDQUOT: stopped");
}

static void *cancel_stream(void *s)
{
    usleep(20000);
    rpc_stream_cancel(s);
    return NULL;
}

static void a_waiting_receiver_is_let_go_by_cancelling(void **state)
{
    struct rpc_stream *s;
    pthread_t t;
    void *msg;
    size_t len;
    (void)state;
    assert_int_equal(rpc_stream_open(ch, "/penstock.test.v1.TestService/Chat", &s), 0);
    pthread_create(&t, NULL, cancel_stream, s);
    assert_int_equal(rpc_stream_recv(s, UINT64_MAX, &msg, &len), 0);
    pthread_join(t, NULL);
    assert_int_equal(rpc_stream_close(s, NULL), -ECANCELED);
}

static void closing_a_running_stream_leaks_nothing(void **state)
{
    uint32_t n = 1000000;
    (void)state;
    for (int i = 0; i < 10; i++) {
        struct rpc_stream *s;
        void *msg;
        size_t len;
        assert_int_equal(rpc_stream_open(ch, i % 2 ? "/penstock.test.v1.TestService/Chat" : "/penstock.test.v1.TestService/Count", &s), 0);
        assert_int_equal(rpc_stream_send(s, &n, sizeof n), 0);
        if (i % 3)
            assert_int_equal(rpc_stream_recv(s, UINT64_MAX, &msg, &len), 1);
        if (i % 3)
            free(msg);
        rpc_stream_close(s, NULL);
    }
}

/* ---- the server ---- */

static void a_call_without_a_message_is_ended(void **state)
{
    struct rpc_stream *s;
    void *msg;
    size_t len;
    (void)state;
    assert_int_equal(rpc_stream_open(ch, "/penstock.test.v1.TestService/Echo", &s), 0);
    assert_int_equal(rpc_stream_recv(s, 20 * NSEC_PER_SEC, &msg, &len), 0);
    assert_int_equal(rpc_stream_close(s, NULL), -ETIMEDOUT);
    assert_int_equal(rpc_stream_open(ch, "/penstock.test.v1.TestService/Echo", &s), 0);
    assert_int_equal(rpc_stream_send_end(s), 0);
    assert_int_equal(rpc_stream_recv(s, 20 * NSEC_PER_SEC, &msg, &len), 0);
    assert_int_equal(rpc_stream_close(s, NULL), -EBADMSG);
}

static void calls_are_bounded(void **state)
{
    struct rpc_stream *s[64];
    struct rpc_result r;
    void *msg;
    size_t len;
    (void)state;
    for (int i = 0; i < 64; i++) {
        assert_int_equal(rpc_stream_open(ch, "/penstock.test.v1.TestService/Chat", &s[i]), 0);
        assert_int_equal(rpc_stream_send(s[i], "x", 1), 0);
        assert_int_equal(rpc_stream_recv(s[i], UINT64_MAX, &msg, &len), 1);
        free(msg);
    }
    assert_int_equal(call("Echo", "", 0, &r), -EAGAIN);
    assert_int_equal(r.code, RPC_RESOURCE_EXHAUSTED);
    for (int i = 0; i < 64; i++)
        rpc_stream_close(s[i], NULL);
    while (call("Echo", "", 0, &r) == -EAGAIN)
        usleep(1000);
    assert_int_equal(r.err, 0);
    rpc_result_done(&r);
}

static void *hang(void *ret)
{
    return (void *)(intptr_t)rpc_unary(ch, "/penstock.test.v1.TestService/Hang", "", 0, 0, NULL, ret);
}

static void stopping_cancels_what_does_not_end(void **state)
{
    struct rpc_result r, ended;
    struct rpc_stream *s;
    pthread_t t;
    void *msg, *err;
    size_t len;
    (void)state;
    assert_int_equal(rpc_stream_open(ch, "/penstock.test.v1.TestService/Chat", &s), 0);
    assert_int_equal(rpc_stream_send(s, "x", 1), 0);
    assert_int_equal(rpc_stream_recv(s, UINT64_MAX, &msg, &len), 1);
    free(msg);
    pthread_create(&t, NULL, hang, &ended);
    while (rpc_server_calls(srv) < 2)
        usleep(1000);
    rpc_server_stop(srv, 50);
    assert_int_equal(rpc_server_calls(srv), 0);
    assert_int_equal(rpc_stream_recv(s, UINT64_MAX, &msg, &len), 0);
    assert_int_equal(rpc_stream_close(s, NULL), -ESHUTDOWN);
    pthread_join(t, &err);
    assert_int_equal((intptr_t)err, -ENOTCONN);
    assert_int_equal(call("Echo", "", 0, &r), -ENOTCONN);
}

static void addresses_are_checked(void **state)
{
    static const char *const local[] = {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/x"};
    static const char *const far[] = {"10.0.0.1:1",          "[::2]:1", "0.0.0.0:1", "[::]:1",
                                      "localhost.example:1", "host",    ""};
    static const char *const bad[] = {"", "host", ":1", "h:", "h:x", "h:70000", "::1:5", "[::1:5", "h:1x", "h:-1"};
    struct rpc_channel *none;
    char err[200];
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(local); i++)
        assert_true(rpc_addr_is_local(local[i]));
    for (size_t i = 0; i < ARRAY_SIZE(far); i++)
        assert_false(rpc_addr_is_local(far[i]));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_int_equal(rpc_addr_port(bad[i]), -EINVAL);
        assert_int_equal(rpc_channel_open(&(struct rpc_channel_config){.addr = bad[i]}, &none, err, sizeof err),
                         -EINVAL);
    }
    assert_int_equal(rpc_addr_port("[::1]:4711"), 4711);
    assert_int_equal(rpc_addr_port("unix:/x"), 0);
    assert_int_equal(rpc_channel_open(&(struct rpc_channel_config){.addr = "10.0.0.1:1"}, &none, err, sizeof err),
                     -EPERM);
    assert_non_null(strstr(err, "10.0.0.1:1"));
}

static void a_server_that_was_not_started_is_freed(void **state)
{
    const struct rpc_server_config cfg = {.methods = methods, .nmethods = 1};
    struct rpc_server *s;
    char err[200];
    int port;
    (void)state;
    assert_int_equal(rpc_server_new(&cfg, &s), 0);
    rpc_server_free(s);
    assert_int_equal(rpc_server_new(&cfg, &s), 0);
    assert_int_equal(rpc_server_listen(s, "127.0.0.1:0", NULL, false, &port, err, sizeof err), 0);
    assert_true(port > 0);
    assert_int_equal(rpc_server_listen(s, addr, NULL, false, &port, err, sizeof err), -EADDRINUSE);
    assert_int_equal(rpc_server_listen(s, "10.0.0.1:0", NULL, false, &port, err, sizeof err), -EPERM);
    rpc_server_free(s);
    rpc_server_free(NULL);
}

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
    assert_int_equal(rpc_unary(x, "/penstock.test.v1.TestService/Echo", "hi", 2, 10000, NULL, &r), 0);
    rpc_result_done(&r);
    rpc_channel_close(x);
    c.server_name = "other.example";
    assert_int_equal(rpc_channel_open(&c, &x, err, sizeof err), 0);
    assert_int_equal(rpc_unary(x, "/penstock.test.v1.TestService/Echo", "hi", 2, 10000, NULL, &r), -ENOTCONN);
    rpc_channel_close(x);
    c.tls = &none;
    assert_int_equal(rpc_channel_open(&c, &x, err, sizeof err), -EINVAL);
    c.tls = NULL;
    assert_int_equal(rpc_channel_open(&c, &x, err, sizeof err), 0);
    assert_int_equal(rpc_unary(x, "/penstock.test.v1.TestService/Echo", "hi", 2, 10000, NULL, &r), -ENOTCONN);
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
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(messages_of_all_sizes_come_back),
        T(errors_keep_their_errno),
        T(a_deadline_ends_the_call_on_both_sides),
        T(a_call_is_cancelled_from_another_thread),
        T(a_reply_may_come_later_from_another_thread_and_counts_once),
        T(threads_share_a_channel),
        T(no_server_is_enotconn),
        T(a_server_stream_comes_whole_and_in_order),
        T(a_bidi_stream_goes_both_ways),
        T(the_server_ends_a_stream_with_an_error),
        T(a_waiting_receiver_is_let_go_by_cancelling),
        T(closing_a_running_stream_leaks_nothing),
        T(a_call_without_a_message_is_ended),
        T(calls_are_bounded),
        T(stopping_cancels_what_does_not_end),
        T(a_server_that_was_not_started_is_freed),
        cmocka_unit_test(addresses_are_checked),
        cmocka_unit_test(the_client_speaks_tls_and_rereads_its_files),
        cmocka_unit_test(token_files_are_private_and_found_by_port),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

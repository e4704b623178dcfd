/* The gRPC wrapper: calls, their deadlines and errors, cancelling; the bounds and the end of a server. */
#include "rpc_fixture.h"

/* ---- calls ---- */

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
        assert_int_equal(rpc_unary(ch, M("Hang"), "", 0, t, NULL, &r), -ETIMEDOUT);
        assert_false(r.from_server);
    }
    while (!atomic_load(&cancels))
        usleep(1000);
    assert_int_equal(rpc_unary(ch, M("Deadline"), "", 0, 5000, NULL, &r), 0);
    memcpy(&ms, r.data, sizeof ms);
    assert_true(ms > 0 && ms <= 6000);
    rpc_result_done(&r);
    assert_int_equal(rpc_unary(ch, M("Deadline"), "", 0, 0, NULL, &r), 0);
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
    assert_int_equal(rpc_unary(ch, M("Hang"), "", 0, 0, k, &r), -ECANCELED);
    pthread_join(t, NULL);
    assert_int_equal(rpc_unary(ch, M("Hang"), "", 0, 0, k, &r), -ECANCELED); /* fired before */
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
    assert_int_equal(rpc_unary(none, M("Echo"), "", 0, 5000, NULL, &r), -ENOTCONN);
    assert_false(r.from_server);
    rpc_channel_close(none);
}

/* ---- the server ---- */

static int setup_impatient(void **state)
{
    (void)state;
    return setup_with(500);
}

static void a_call_without_a_message_is_ended(void **state)
{
    struct rpc_stream *s;
    void *msg;
    size_t len;
    (void)state;
    assert_int_equal(rpc_stream_open(ch, M("Echo"), &s), 0);
    assert_int_equal(rpc_stream_recv(s, 20 * NSEC_PER_SEC, &msg, &len), 0);
    assert_int_equal(rpc_stream_close(s, NULL), -ETIMEDOUT);
    assert_int_equal(rpc_stream_open(ch, M("Echo"), &s), 0);
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
        assert_int_equal(rpc_stream_open(ch, M("Chat"), &s[i]), 0);
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

/* More than the server has threads, so that a thread each would not do. */
#define PUT_OFF 20

static void *put_off_call(void *ms)
{
    struct rpc_result r;
    uint64_t t0 = now_ns();
    uint32_t n = (uint32_t)(uintptr_t)ms;
    assert_int_equal(call("PutOff", &n, sizeof n, &r), 0);
    assert_true(r.len == sizeof n && !memcmp(r.data, &n, sizeof n));
    assert_true(now_ns() - t0 >= n * NSEC_PER_MSEC);
    rpc_result_done(&r);
    return NULL;
}

static void *put_off_for_ever(void *k)
{
    struct rpc_result r;
    uint32_t n = 3600 * 1000;
    int e = rpc_unary(ch, M("PutOff"), &n, sizeof n, 0, k, &r);
    assert_true(e == -ECANCELED || e == -ENOTCONN); /* the server's end */
    return NULL;
}

static void what_is_put_off_comes_at_its_time_and_holds_no_thread(void **state)
{
    struct rpc_cancel *k[PUT_OFF];
    struct rpc_result r;
    pthread_t t[PUT_OFF], ever[PUT_OFF];
    (void)state;
    atomic_store(&put_off, 0);
    atomic_store(&put_off_again, 0);
    for (int i = 0; i < PUT_OFF; i++) {
        pthread_create(&t[i], NULL, put_off_call, (void *)(uintptr_t)(i % 7 * 10));
        k[i] = rpc_cancel_new();
        pthread_create(&ever[i], NULL, put_off_for_ever, k[i]);
    }
    while (atomic_load(&put_off) < 2 * PUT_OFF)
        usleep(1000);
    assert_int_equal(call("Echo", "x", 1, &r), 0);
    rpc_result_done(&r);
    for (int i = 0; i < PUT_OFF; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(atomic_load(&put_off_again), PUT_OFF);
    for (int i = 0; i < PUT_OFF; i++) { /* they are handled at once */
        rpc_cancel_fire(k[i]);
        pthread_join(ever[i], NULL);
        rpc_cancel_free(k[i]);
    }
    while (atomic_load(&put_off_again) < 2 * PUT_OFF)
        usleep(1000);
}

static void stopping_does_not_wait_for_what_is_put_off(void **state)
{
    struct rpc_cancel *k = rpc_cancel_new();
    struct rpc_result r;
    uint32_t n = 3600 * 1000;
    pthread_t t;
    (void)state;
    atomic_store(&put_off, 0);
    pthread_create(&t, NULL, put_off_for_ever, k);
    while (!atomic_load(&put_off))
        usleep(1000);
    rpc_server_stop(srv, 50);
    assert_int_equal(rpc_server_calls(srv), 0);
    rpc_cancel_fire(k);
    pthread_join(t, NULL);
    assert_int_equal(rpc_unary(ch, M("PutOff"), &n, sizeof n, 0, NULL, &r), -ENOTCONN);
    rpc_cancel_free(k);
}

static void *hang(void *ret)
{
    return (void *)(intptr_t)rpc_unary(ch, M("Hang"), "", 0, 0, NULL, ret);
}

static void stopping_cancels_what_does_not_end(void **state)
{
    struct rpc_result r, ended;
    struct rpc_stream *s;
    pthread_t t;
    void *msg, *err;
    size_t len;
    (void)state;
    assert_int_equal(rpc_stream_open(ch, M("Chat"), &s), 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_TEST(messages_of_all_sizes_come_back),
        RPC_TEST(errors_keep_their_errno),
        RPC_TEST(a_deadline_ends_the_call_on_both_sides),
        RPC_TEST(a_call_is_cancelled_from_another_thread),
        RPC_TEST(a_reply_may_come_later_from_another_thread_and_counts_once),
        RPC_TEST(threads_share_a_channel),
        RPC_TEST(no_server_is_enotconn),
        cmocka_unit_test_setup_teardown(a_call_without_a_message_is_ended, setup_impatient, teardown),
        RPC_TEST(calls_are_bounded),
        RPC_TEST(what_is_put_off_comes_at_its_time_and_holds_no_thread),
        RPC_TEST(stopping_does_not_wait_for_what_is_put_off),
        RPC_TEST(stopping_cancels_what_does_not_end),
        cmocka_unit_test(addresses_are_checked),
        RPC_TEST(a_server_that_was_not_started_is_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

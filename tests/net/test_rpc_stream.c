/* The gRPC wrapper: streams, both ways, ended by either side. */
#include "rpc_fixture.h"

static void a_server_stream_comes_whole_and_in_order(void **state)
{
    struct rpc_stream *s;
    uint32_t n = 2000, got = 0;
    void *msg;
    size_t len;
    (void)state;
    assert_int_equal(rpc_stream_open(ch, M("Count"), &s), 0);
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
    assert_int_equal(rpc_stream_open(ch, M("Chat"), &s), 0);
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
    assert_int_equal(rpc_stream_open(ch, M("Chat"), &s), 0);
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
    assert_int_equal(rpc_stream_open(ch, M("Chat"), &s), 0);
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
        assert_int_equal(rpc_stream_open(ch, i % 2 ? M("Chat") : M("Count"), &s), 0);
        assert_int_equal(rpc_stream_send(s, &n, sizeof n), 0);
        if (i % 3)
            assert_int_equal(rpc_stream_recv(s, UINT64_MAX, &msg, &len), 1);
        if (i % 3)
            free(msg);
        rpc_stream_close(s, NULL);
    }
}

static unsigned meet_count(unsigned more)
{
    scoped_lock(&meet_lock);
    meet_here += more;
    pthread_cond_broadcast(&meet_cond);
    return meet_here;
}

/* `first` begins each message: with 'w' only the server's watcher sees that its handler waits for the others. */
static void meet(char first)
{
    struct rpc_stream *s[3];
    char msg[2] = {first, 4}; /* the fourth is this thread: the server has four, and one has to look for events */
    size_t len;
    void *back;

    {
        scoped_lock(&meet_lock);
        meet_here = 0;
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rpc_stream_open(ch, M("Meet"), &s[i]), 0);
        assert_int_equal(rpc_stream_send(s[i], msg, sizeof msg), 0);
    }
    for (int i = 0; meet_count(0) < 3; i++)
        assert_int_equal(rpc_stream_recv(s[i % 3], NSEC_PER_SEC / 100, &back, &len), -ETIMEDOUT);
    meet_count(1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rpc_stream_recv(s[i], UINT64_MAX, &back, &len), 1);
        free(back);
        rpc_stream_close(s[i], NULL);
    }
}

static void handlers_that_wait_for_each_other_get_on(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        meet('b');
}

static void a_handler_that_waits_and_did_not_say_so_holds_nobody_up(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        meet('w');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_TEST(a_server_stream_comes_whole_and_in_order),
        RPC_TEST(handlers_that_wait_for_each_other_get_on),
        RPC_TEST(a_handler_that_waits_and_did_not_say_so_holds_nobody_up),
        RPC_TEST(a_bidi_stream_goes_both_ways),
        RPC_TEST(the_server_ends_a_stream_with_an_error),
        RPC_TEST(a_waiting_receiver_is_let_go_by_cancelling),
        RPC_TEST(closing_a_running_stream_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

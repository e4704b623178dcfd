/*
 * A server of the gRPC wrapper and a channel to it in one process, with handlers that answer, fail, hang, wait and
 * stream.
 */
#ifndef TESTS_RPC_FIXTURE_H
#define TESTS_RPC_FIXTURE_H

#include "control/rpc.h"

#include "base/util.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct rpc_server *srv;
static struct rpc_channel *ch;
static char addr[64];
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

/* Put off by so many milliseconds as the message says, then an echo. */
static atomic_uint put_off, put_off_again;
static void on_put_off(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    uint32_t ms;
    (void)user;
    memcpy(&ms, msg, sizeof ms);
    if (!rpc_was_later()) {
        rpc_later(now_ns() + ms * NSEC_PER_MSEC);
        atomic_fetch_add(&put_off, 1);
        return;
    }
    atomic_fetch_add(&put_off_again, 1);
    rpc_reply(c, msg, len);
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

static pthread_mutex_t meet_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t meet_cond = PTHREAD_COND_INITIALIZER;
static unsigned meet_here;

/*
 * Waits until as many are here as the message's second byte says; says before that it may take long if the first is
 * 'b'.
 */
static void on_meet(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    unsigned want = (unsigned)((const char *)msg)[1];
    (void)user;
    if (((const char *)msg)[0] == 'b')
        rpc_may_block();
    pthread_mutex_lock(&meet_lock);
    meet_here++;
    pthread_cond_broadcast(&meet_cond);
    while (meet_here < want)
        pthread_cond_wait(&meet_cond, &meet_lock);
    pthread_mutex_unlock(&meet_lock);
    assert_int_equal(rpc_send(c, msg, len), 0);
}

static int admit(struct rpc_call *c, void *user)
{
    (void)user;
    return strstr(rpc_path(c), "Forbidden") ? -EACCES : 0;
}

#define M(name) "/penstock.test.v1.TestService/" name
static const struct rpc_method methods[] = {
    {.path = M("Echo"), .kind = RPC_UNARY, .on_message = on_echo},
    {.path = M("Fail"), .kind = RPC_UNARY, .on_message = on_fail},
    {.path = M("Hang"), .kind = RPC_UNARY, .on_message = on_hang, .on_cancel = on_hang_cancel},
    {.path = M("Later"), .kind = RPC_UNARY, .on_message = on_later},
    {.path = M("PutOff"), .kind = RPC_UNARY, .on_message = on_put_off},
    {.path = M("Deadline"), .kind = RPC_UNARY, .on_message = on_deadline},
    {.path = M("Forbidden"), .kind = RPC_UNARY, .on_message = on_echo},
    {.path = M("Count"), .kind = RPC_SERVER_STREAM, .on_message = on_count},
    {.path = M("Chat"), .kind = RPC_BIDI, .max_inflight = 8, .on_message = on_chat},
    {.path = M("Meet"), .kind = RPC_BIDI, .max_inflight = 8, .quick = true, .on_message = on_meet},
};

static inline int setup_with(uint32_t idle_call_ms)
{
    const struct rpc_server_config cfg = {.methods = methods,
                                          .nmethods = ARRAY_SIZE(methods),
                                          .threads = 4,
                                          .max_calls = 64,
                                          .idle_call_ms = idle_call_ms,
                                          .admit = admit};
    const struct rpc_channel_config cc = {.addr = addr};
    char err[200];
    int port;
    hung = cancels = running = most_running = 0;
    if (rpc_server_new(&cfg, &srv) || rpc_server_listen(srv, "127.0.0.1:0", NULL, false, &port, err, sizeof err) ||
        rpc_server_start(srv))
        return -1;
    snprintf(addr, sizeof addr, "127.0.0.1:%d", port);
    return rpc_channel_open(&cc, &ch, err, sizeof err);
}

static inline int setup(void **state)
{
    (void)state;
    return setup_with(60000); /* a busy machine is slow to send */
}

static inline int teardown(void **state)
{
    (void)state;
    rpc_channel_close(ch);
    rpc_server_stop(srv, 1000);
    rpc_server_free(srv);
    return 0;
}

static inline int call(const char *method, const void *msg, size_t len, struct rpc_result *ret)
{
    char path[64];
    snprintf(path, sizeof path, M("%s"), method);
    return rpc_unary(ch, path, msg, len, 20000, NULL, ret);
}

#define RPC_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif

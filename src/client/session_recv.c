/*
 * Replies of the stream. Each request has a tag and a waiter, and whoever reads the stream hands each reply to the
 * waiter of its tag. One thread reads at a time: one of those that wait for a reply, so that it needs not be woken for
 * its own; when it has that, another one that waits. When none does, the stream's own thread reads: at once for a reply
 * that nobody stands waiting for, else after a pause without calls, since the next caller reads by itself. When the
 * stream ends, all waiters are told and send their requests again once the keeper has a new one.
 */
#include "session.h"

#include "base/err.h"

#include <errno.h>
#include <signal.h>

#define NS_STREAM "/penstock.v1.NamespaceService/Stream"
#define PAUSE_NS  (10 * NSEC_PER_MSEC)

struct list *session_bucket(struct session *s, uint64_t tag)
{
    return &s->waiters[tag % WAITER_BUCKETS];
}

/* ---- waiters that stand in session_call ---- */

static void sync_fn(struct session_async *a, int err)
{
    struct session_waiter *w = container_of(a, struct session_waiter, a);

    w->err = err;
    w->done = true;
    pthread_cond_signal(&w->cond);
}

void session_waiter_init(struct session *s, struct session_waiter *w)
{
    w->a.fn = sync_fn;
    list_init(&w->a.link);
    session_cond_init(&w->cond);
    list_push_back(&s->callers, &w->caller);
}

void session_waiter_done(struct session_waiter *w)
{
    list_del(&w->caller);
    pthread_cond_destroy(&w->cond);
}

/* ---- handing over ---- */

/* Lock held. An asynchronous waiter's fn runs without it. */
static void hand_over(struct session *s, struct session_async *a, int err, PB(NamespaceReply) *reply)
{
    list_del(&a->link);
    if (a->fn == sync_fn) {
        container_of(a, struct session_waiter, a)->reply = reply;
        sync_fn(a, err);
        return;
    }
    s->nasync -= !a->lazy;
    a->reply = reply;
    pthread_mutex_unlock(&s->lock);
    a->fn(a, err);
    if (reply)
        penstock__v1__namespace_reply__free_unpacked(reply, NULL);
    pthread_mutex_lock(&s->lock);
}

/* Lock held. */
static void on_reply(struct session *s, PB(NamespaceReply) *reply)
{
    int err = errs_from_name(reply->error);

    err = err == -ECONNRESET ? -EIO : err; /* that one is ours */
    s->replies++;
    list_for_each (it, session_bucket(s, reply->tag)) {
        struct session_async *a = list_entry(it, struct session_async, link);
        if (a->tag == reply->tag) {
            hand_over(s, a, err, reply);
            return;
        }
    }
    penstock__v1__namespace_reply__free_unpacked(reply, NULL); /* its request was given up */
}

/* Lock held. */
static void stream_ended(struct session *s)
{
    s->stream_over = true;
    session_broken(s);
    for (size_t i = 0; i < WAITER_BUCKETS; i++)
        while (!list_empty(&s->waiters[i]))
            hand_over(s, list_entry(s->waiters[i].next, struct session_async, link), -ECONNRESET, NULL);
}

/* ---- reading ---- */

/* Lock held, released meanwhile; `reading` is this thread's. One message, the end, or the deadline. */
static void read_one(struct session *s, uint64_t deadline_ns)
{
    uint64_t now = now_ns();
    PB(NamespaceReply) *reply = NULL;
    size_t len;
    void *msg;
    int r;

    pthread_mutex_unlock(&s->lock);
    r = rpc_stream_recv(s->stream, deadline_ns == UINT64_MAX ? UINT64_MAX : deadline_ns > now ? deadline_ns - now : 0,
                        &msg, &len);
    if (r == 1) {
        reply = penstock__v1__namespace_reply__unpack(NULL, len, msg);
        free(msg);
    }
    pthread_mutex_lock(&s->lock);
    if (reply)
        on_reply(s, reply);
    else if (r != -ETIMEDOUT)
        stream_ended(s); /* also: not our protocol, or no memory; the requests go out again over a new stream */
}

void session_read_soon(struct session *s)
{
    if (s->reading)
        return;
    s->read_now = true;
    pthread_cond_signal(&s->quiet);
}

/* Lock held. Who waits reads on; what nobody stands waiting for is the stream's thread's. */
static void stop_reading(struct session *s)
{
    s->reading = false;
    if (s->stream_over) {
        pthread_cond_broadcast(&s->changed); /* session_stream_stop waits for it */
        return;
    }
    list_for_each (it, &s->callers) {
        struct session_waiter *w = list_entry(it, struct session_waiter, caller);
        if (!w->done && !list_empty(&w->a.link)) {
            pthread_cond_signal(&w->cond);
            return;
        }
    }
    if (s->nasync)
        session_read_soon(s);
}

int session_wait_reply(struct session *s, struct session_waiter *w, uint64_t deadline_ns)
{
    while (!w->done) {
        if (now_ns() >= deadline_ns) {
            list_del(&w->a.link);
            if (!s->reading)
                stop_reading(s); /* it may have been this thread's turn to read */
            return -ETIMEDOUT;
        }
        if (s->reading) {
            session_wait(&w->cond, &s->lock, deadline_ns);
            continue;
        }
        s->reading = true;
        while (!w->done && !s->stream_over && now_ns() < deadline_ns)
            read_one(s, deadline_ns);
        stop_reading(s);
    }
    return 0;
}

/* Lock held, released meanwhile. */
static bool tick(struct session *s)
{
    bool again = false;

    if (!s->hooks.tick)
        return false;
    pthread_mutex_unlock(&s->lock);
    again = s->hooks.tick(s->hooks.user);
    pthread_mutex_lock(&s->lock);
    return again;
}

/* The stream's thread. */
static void *receive(void *arg)
{
    struct session *s = arg;
    uint64_t seen = 0;
    bool again = true; /* what waits from before a break */

    scoped_lock(&s->lock);
    while (!s->stream_over) {
        if (!s->read_now && (s->reading || s->replies != seen || again)) {
            seen = s->replies;
            session_wait(&s->quiet, &s->lock, now_ns() + PAUSE_NS);
            again = tick(s);
            continue;
        }
        s->read_now = false;
        if (s->reading)
            continue;
        s->reading = true;
        read_one(s, UINT64_MAX);
        stop_reading(s);
    }
    return NULL;
}

/* ---- the stream's life; keeper only ---- */

int session_stream_start(struct session *s)
{
    struct rpc_stream *stream;
    sigset_t all, old;
    int r = rpc_stream_open(s->channel->rpc, NS_STREAM, &stream);

    if (r < 0)
        return r;
    pthread_mutex_lock(&s->lock);
    s->stream = stream;
    s->stream_over = false;
    s->read_now = false;
    if (s->stop)
        rpc_stream_cancel(stream);
    pthread_mutex_unlock(&s->lock);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    r = -pthread_create(&s->receiver, NULL, receive, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    s->receiving = r == 0;
    if (r < 0)
        session_stream_stop(s);
    return r;
}

void session_stream_stop(struct session *s)
{
    struct rpc_stream *stream = s->stream;

    if (!stream)
        return;
    rpc_stream_cancel(stream);
    if (s->receiving)
        pthread_join(s->receiver, NULL);
    s->receiving = false;
    pthread_mutex_lock(&s->lock);
    s->stream_over = true;
    while (s->reading)
        pthread_cond_wait(&s->changed, &s->lock);
    s->stream = NULL;
    pthread_mutex_unlock(&s->lock);
    rpc_stream_close(stream, NULL);
}

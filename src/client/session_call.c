/*
 * Requests over the stream. Each has a tag and a waiter; the receiving thread unpacks a reply and hands it to the
 * waiter of its tag. When the stream ends, all waiters are told and send their requests again once the keeper has a new
 * one.
 */
#include "session.h"

#include "base/err.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#define NS_STREAM   "/penstock.v1.NamespaceService/Stream"
#define FULL_WAIT_NS (NSEC_PER_MSEC / 2) /* the stream's queue is full: look again */

struct waiter {
    struct session_async a; /* tag and place in the table */
    pthread_cond_t cond;
    bool done;
    int err; /* -ECONNRESET: send it again */
    PB(NamespaceReply) * reply;
};

void session_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

bool session_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns)
{
    struct timespec t = {(time_t)(deadline_ns / NSEC_PER_SEC), (long)(deadline_ns % NSEC_PER_SEC)};

    return pthread_cond_timedwait(c, m, &t) != ETIMEDOUT;
}

int session_wait_up(struct session *s, uint64_t deadline_ns)
{
    while (!s->up)
        if (!session_wait(&s->changed, &s->lock, deadline_ns) && !s->up)
            return -ETIMEDOUT;
    return 0;
}

void session_broken(struct session *s)
{
    s->up = false;
    pthread_cond_signal(&s->work);
}

/* ---- receiving ---- */

static struct list *bucket(struct session *s, uint64_t tag)
{
    return &s->waiters[tag % WAITER_BUCKETS];
}

static void sync_fn(struct session_async *a, int err)
{
    struct waiter *w = container_of(a, struct waiter, a);

    w->err = err;
    w->done = true;
    pthread_cond_signal(&w->cond);
}

/* Lock held. An asynchronous waiter's fn runs without it. */
static void hand_over(struct session *s, struct session_async *a, int err, PB(NamespaceReply) *reply)
{
    list_del(&a->link);
    if (a->fn == sync_fn) {
        container_of(a, struct waiter, a)->reply = reply;
        sync_fn(a, err);
        return;
    }
    pthread_mutex_unlock(&s->lock);
    a->fn(a, err);
    if (reply)
        penstock__v1__namespace_reply__free_unpacked(reply, NULL);
    pthread_mutex_lock(&s->lock);
}

static void on_reply(struct session *s, PB(NamespaceReply) *reply)
{
    int err = errs_from_name(reply->error);

    err = err == -ECONNRESET ? -EIO : err; /* that one is ours */
    pthread_mutex_lock(&s->lock);
    list_for_each (it, bucket(s, reply->tag)) {
        struct session_async *a = list_entry(it, struct session_async, link);
        if (a->tag == reply->tag) {
            hand_over(s, a, err, reply);
            pthread_mutex_unlock(&s->lock);
            return;
        }
    }
    pthread_mutex_unlock(&s->lock);
    penstock__v1__namespace_reply__free_unpacked(reply, NULL); /* its request was given up */
}

static void end_waiters(struct session *s)
{
    for (size_t i = 0; i < WAITER_BUCKETS; i++)
        while (!list_empty(&s->waiters[i]))
            hand_over(s, list_entry(s->waiters[i].next, struct session_async, link), -ECONNRESET, NULL);
}

static void *receive(void *arg)
{
    struct session *s = arg;
    size_t len;
    void *msg;

    for (;;) {
        int r = rpc_stream_recv(s->stream, UINT64_MAX, &msg, &len);
        PB(NamespaceReply) * reply;
        if (r == -ETIMEDOUT)
            continue;
        if (r != 1)
            break;
        reply = penstock__v1__namespace_reply__unpack(NULL, len, msg);
        free(msg);
        if (!reply)
            break; /* not our protocol, or no memory: the requests go out again over a new stream */
        on_reply(s, reply);
    }
    scoped_lock(&s->lock);
    s->stream_over = true;
    session_broken(s);
    end_waiters(s);
    return NULL;
}

/* Keeper only. */
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
    s->stream = NULL;
    s->stream_over = true;
    pthread_mutex_unlock(&s->lock);
    rpc_stream_close(stream, NULL);
}

/* ---- sending ---- */

static void fill_cred(const struct pst_cred *in, PB(Cred) *c)
{
    c->uid = in->uid;
    c->gid = in->gid;
    c->groups = (uint32_t *)(uintptr_t)in->groups;
    c->n_groups = in->ngroups;
}

/* Lock held. One try: packs for this session and gives it to the stream. */
static int send_now(struct session *s, struct session_call *c, uint64_t tag)
{
    uint8_t small[1024], *buf = small;
    size_t n;
    int r;

    if (!s->stream || s->stream_over)
        return -ECONNRESET;
    c->req->tag = tag;
    c->header->session = (ProtobufCBinaryData){SESSION_ID_BYTES, s->facts.id};
    c->header->container = c->container ? atomic_load(c->container) : 0;
    n = penstock__v1__namespace_request__get_packed_size(c->req);
    if (n > sizeof small) {
        buf = malloc(n);
        if (!buf)
            return -ENOMEM;
    }
    penstock__v1__namespace_request__pack(c->req, buf);
    r = rpc_stream_send(s->stream, buf, n);
    if (buf != small)
        free(buf);
    return r == -ENOTCONN ? -ECONNRESET : r;
}

/* Lock held. */
static int send_waiting(struct session *s, struct session_call *c, struct session_async *a, uint64_t deadline_ns)
{
    int r;

    a->tag = ++s->last_tag;
    list_push_back(bucket(s, a->tag), &a->link);
    while ((r = send_now(s, c, a->tag)) == -EAGAIN) {
        uint64_t at = now_ns() + FULL_WAIT_NS;
        if (at >= deadline_ns) {
            r = -ETIMEDOUT;
            break;
        }
        session_wait(&s->changed, &s->lock, at);
        if (list_empty(&a->link)) /* the stream ended meanwhile */
            return 0;
    }
    if (r < 0)
        list_del(&a->link);
    return r;
}

bool session_was_dead(struct session *s, uint64_t epoch, uint64_t deadline_ns)
{
    uint64_t before = s->verified;

    while (s->up && s->epoch == epoch && s->verified == before) {
        s->verify = true;
        pthread_cond_signal(&s->work);
        if (!session_wait(&s->changed, &s->lock, deadline_ns))
            break;
    }
    return !s->up || s->epoch != epoch;
}

/* Lock held. One round: the reply's error, or -ECONNRESET to go another round. */
static int round_trip(struct session *s, struct session_call *c, uint64_t deadline_ns)
{
    struct waiter w = {.a.fn = sync_fn};
    uint64_t epoch;
    int r = c->resume ? 0 : session_wait_up(s, deadline_ns);

    if (r < 0)
        return r;
    epoch = s->epoch;
    list_init(&w.a.link);
    session_cond_init(&w.cond);
    r = send_waiting(s, c, &w.a, deadline_ns);
    while (r == 0 && !w.done)
        if (!session_wait(&w.cond, &s->lock, deadline_ns) && !w.done) {
            list_del(&w.a.link);
            r = -ETIMEDOUT;
        }
    pthread_cond_destroy(&w.cond);
    if (r < 0)
        return r;
    if (w.err == -ESTALE && !c->resume && session_was_dead(s, epoch, deadline_ns))
        w.err = -ECONNRESET;
    if (w.err < 0 && w.reply) {
        penstock__v1__namespace_reply__free_unpacked(w.reply, NULL);
        w.reply = NULL;
    }
    c->reply = w.reply;
    c->epoch = epoch;
    return w.err;
}

int session_call(struct session *s, struct session_call *c)
{
    uint64_t deadline = now_ns() + s->timeout_ns;
    PB(RequestId) id = PENSTOCK__V1__REQUEST_ID__INIT;
    PB(Cred) cred = PENSTOCK__V1__CRED__INIT;
    uint32_t slot = 0;
    int r;

    if (c->cred) {
        fill_cred(c->cred, &cred);
        c->header->cred = &cred;
    }
    scoped_lock(&s->lock);
    if (c->record) {
        r = session_slot_get(s, deadline, &slot, &id.sequence);
        if (r < 0)
            return r;
        id.slot = slot;
        c->header->request_id = &id;
    }
    do {
        r = round_trip(s, c, deadline);
        if (r == -ECONNRESET && !c->resume && s->up) { /* the keeper has not noticed yet */
            session_broken(s);
        }
    } while (r == -ECONNRESET && !c->resume);
    if (c->record)
        session_slot_put(s, slot, r == -ETIMEDOUT || r == -ECONNRESET);
    c->header->cred = NULL;
    c->header->request_id = NULL;
    return r;
}

void session_call_done(struct session_call *c)
{
    if (c->reply)
        penstock__v1__namespace_reply__free_unpacked(c->reply, NULL);
    c->reply = NULL;
}

int session_begin(struct session *s, struct session_call *c, struct session_async *a)
{
    PB(Cred) cred = PENSTOCK__V1__CRED__INIT;
    int r;

    if (c->cred) {
        fill_cred(c->cred, &cred);
        c->header->cred = &cred;
    }
    list_init(&a->link);
    scoped_lock(&s->lock);
    if (!s->up)
        return -EAGAIN;
    a->history = s->facts.history;
    a->tag = ++s->last_tag;
    list_push_back(bucket(s, a->tag), &a->link);
    r = send_now(s, c, a->tag);
    if (r < 0)
        list_del(&a->link);
    c->header->cred = NULL;
    return r == -ECONNRESET ? -EAGAIN : r;
}

bool session_forget(struct session *s, struct session_async *a)
{
    scoped_lock(&s->lock);
    if (list_empty(&a->link))
        return false;
    list_del(&a->link);
    return true;
}

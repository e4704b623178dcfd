/* Requests over the stream, one try and again after a break. Who reads the replies: session_recv.c. */
#include "session.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

#define FULL_WAIT_NS (NSEC_PER_MSEC / 2) /* the stream's queue is full: look again */

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
    while (!s->up) {
        if (s->refused)
            return s->refused;
        if (!session_wait(&s->changed, &s->lock, deadline_ns) && !s->up)
            return -ETIMEDOUT;
    }
    return 0;
}

void session_broken(struct session *s)
{
    s->up = false;
    pthread_cond_signal(&s->work);
}

void session_give_up_locked(struct session *s, uint64_t epoch)
{
    if (epoch <= atomic_load(&s->given_up))
        return;
    atomic_store(&s->given_up, epoch);
    if (epoch == s->epoch)
        session_broken(s);
}

void session_give_up(struct session *s, uint64_t epoch)
{
    scoped_lock(&s->lock);
    session_give_up_locked(s, epoch);
}

bool session_is_sound(const struct session *s, uint64_t epoch)
{
    return epoch > atomic_load(&s->given_up);
}

/* ---- sending ---- */

bool session_cred(struct session *s, const struct pst_cred *cred, PB(Cred) *ret)
{
    static const struct pst_cred root;
    struct session_identity who;

    if (!cred) {
        session_identity(s, &who);
        if (!who.any_uid || !who.uid)
            return false;
        cred = &root;
    }
    ret->uid = cred->uid;
    ret->gid = cred->gid;
    ret->groups = (uint32_t *)(uintptr_t)cred->groups;
    ret->n_groups = cred->ngroups;
    return true;
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
    list_push_back(session_bucket(s, a->tag), &a->link);
    while ((r = send_now(s, c, a->tag)) == -EAGAIN) {
        uint64_t at = now_ns() + FULL_WAIT_NS;
        if (at >= deadline_ns) {
            r = -ETIMEDOUT;
            break;
        }
        session_read_soon(s); /* what has been sent leaves the queue by a reader */
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

/* Lock held. Whose request it is, in the session that there is now. */
static int name_origin(struct session *s, struct session_call *c)
{
    c->header->request_id->origin = session_origin_number_locked(s, c->id->client, s->epoch);
    c->header->request_id->attempt = ++s->origin_tries; /* over all calls that are tries of it: they come one by one */
    return c->header->request_id->origin ? 0 : -ESTALE;
}

/* Lock held. One round: the reply's error, or -ECONNRESET to go another round. */
static int round_trip(struct session *s, struct session_call *c, uint64_t deadline_ns)
{
    struct session_waiter w = {0};
    uint64_t epoch;
    int r = c->resume ? 0 : session_wait_up(s, deadline_ns);

    if (r < 0)
        return r;
    epoch = s->epoch;
    if (c->id) {
        r = name_origin(s, c);
        if (r < 0)
            return r;
    }
    session_waiter_init(s, &w);
    r = send_waiting(s, c, &w.a, deadline_ns);
    if (r == 0) {
        c->epoch = epoch;
        r = session_wait_reply(s, &w, deadline_ns);
    }
    session_waiter_done(&w);
    if (r < 0)
        return r;
    if (w.err == -ESTALE && !c->resume && session_was_dead(s, epoch, deadline_ns))
        w.err = -ECONNRESET;
    if (w.err < 0 && w.reply) {
        penstock__v1__namespace_reply__free_unpacked(w.reply, NULL);
        w.reply = NULL;
    }
    c->reply = w.reply;
    return w.err;
}

/* As session_call, with what the header names for as long as it takes. */
static int call_as(struct session *s, struct session_call *c, PB(RequestId) *id)
{
    uint64_t deadline = now_ns() + s->timeout_ns;
    uint32_t slot = 0;
    int r;

    c->epoch = 0;
    scoped_lock(&s->lock);
    if (c->id && !c->id->seq)
        c->id = NULL;
    if (c->id) {
        id->slot = c->id->slot;
        id->sequence = c->id->seq;
        c->header->request_id = id;
    } else if (c->record) {
        r = session_slot_get(s, deadline, &slot, &id->sequence);
        if (r < 0)
            return r;
        id->slot = slot;
        c->header->request_id = id;
    }
    do {
        id->attempt++; /* the server drops an earlier one that is still on its way */
        r = round_trip(s, c, deadline);
        if (r == -ECONNRESET && !c->resume && s->up) { /* the keeper has not noticed yet */
            session_broken(s);
        }
    } while (r == -ECONNRESET && !c->resume);
    if (c->record && r == -ETIMEDOUT && c->epoch)
        session_give_up_locked(s, c->epoch);
    if (c->record && !c->id)
        session_slot_put(s, slot, r == -ETIMEDOUT || r == -ECONNRESET);
    return r;
}

int session_call(struct session *s, struct session_call *c)
{
    PB(RequestId) id = PENSTOCK__V1__REQUEST_ID__INIT;
    PB(Cred) cred = PENSTOCK__V1__CRED__INIT;
    int r;

    if (session_cred(s, c->cred, &cred))
        c->header->cred = &cred;
    r = call_as(s, c, &id);
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

/* As session_begin, with what the header names for as long as it takes. */
static int begin_as(struct session *s, struct session_call *c, struct session_async *a)
{
    int r;

    scoped_lock(&s->lock);
    if (!s->up)
        return s->refused ? s->refused : -EAGAIN;
    a->history = s->facts.history;
    a->epoch = s->epoch;
    a->tag = ++s->last_tag;
    list_push_back(session_bucket(s, a->tag), &a->link);
    r = send_now(s, c, a->tag);
    if (r < 0) {
        list_del(&a->link);
    } else if (!a->lazy) {
        s->nasync++;
        session_read_soon(s);
    }
    return r == -ECONNRESET ? -EAGAIN : r;
}

int session_begin(struct session *s, struct session_call *c, struct session_async *a)
{
    PB(Cred) cred = PENSTOCK__V1__CRED__INIT;
    int r;

    list_init(&a->link);
    if (session_cred(s, c->cred, &cred))
        c->header->cred = &cred;
    r = begin_as(s, c, a);
    c->header->cred = NULL;
    return r;
}

uint64_t session_doubt(struct session *s)
{
    scoped_lock(&s->lock);
    s->verify = true;
    pthread_cond_signal(&s->work);
    return s->verified;
}

int session_doubt_end(struct session *s, uint64_t epoch, uint64_t doubt)
{
    scoped_lock(&s->lock);
    if (!s->up || s->epoch != epoch)
        return 0;
    return s->verified != doubt ? -ESTALE : -EAGAIN;
}

bool session_forget(struct session *s, struct session_async *a)
{
    scoped_lock(&s->lock);
    if (list_empty(&a->link))
        return false;
    s->nasync -= !a->lazy;
    list_del(&a->link);
    return true;
}

/*
 * Origins: clients of this client (an agent's hosts). Their requests go out with the slot and sequence that they gave,
 * under a number of the session for each; so the reply records are theirs, whichever process of the agent sends a
 * request again.
 *
 * A new connection takes along, before a call may go, all that have no number in its session (session_origins_again,
 * from the keeper): those of the session before, and those that were added while there was none. One that is being
 * added then is left to who adds it.
 */
#include "session.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

#define BATCH        256u
#define AGAIN_NS     (20 * NSEC_PER_MSEC)
#define ORIGINS_PATH "/penstock.v1.SessionService/Origins"

struct origin {
    struct list link;
    uint8_t client[16];
    uint32_t refs, number;
    uint64_t epoch; /* of the number; 0: none yet */
    bool adding;
};

static struct list *bucket(struct session *s, const uint8_t client[16])
{
    return &s->origins[client[0] % ORIGIN_BUCKETS];
}

/* Lock held. */
static struct origin *find(struct session *s, const uint8_t client[16])
{
    list_for_each (it, bucket(s, client)) {
        struct origin *o = list_entry(it, struct origin, link);
        if (!memcmp(o->client, client, sizeof o->client))
            return o;
    }
    return NULL;
}

uint32_t session_origin_number_locked(struct session *s, const uint8_t client[16], uint64_t epoch)
{
    const struct origin *o = find(s, client);

    return o && o->epoch == epoch ? o->number : 0;
}

uint32_t session_origin_number(struct session *s, const uint8_t client[16], uint64_t epoch)
{
    scoped_lock(&s->lock);
    return session_origin_number_locked(s, client, epoch);
}

/* Lock held. The server is told with the next request. */
static void drop(struct session *s, uint32_t number, uint64_t epoch)
{
    if (!number || epoch != s->epoch)
        return;
    if (s->drop_epoch != epoch)
        s->ndrop = 0;
    s->drop_epoch = epoch;
    if (s->ndrop < ARRAY_SIZE(s->drop))
        s->drop[s->ndrop++] = number;
    else /* the server would be asked to remember too many */
        session_give_up_locked(s, epoch);
}

/* Lock held. */
static void unref(struct session *s, struct origin *o)
{
    if (--o->refs)
        return;
    drop(s, o->number, o->epoch);
    list_del(&o->link);
    free(o);
}

/* Lock not held. Numbers for n clients, in the session that answered. */
static int ask(struct session *s, uint8_t (*clients)[16], size_t n, bool resume, uint32_t *ret, uint64_t *ret_epoch)
{
    PB(OriginsRequest) req = PENSTOCK__V1__ORIGINS_REQUEST__INIT;
    ProtobufCBinaryData ids[BATCH];
    uint32_t dropped[ARRAY_SIZE(s->drop)];
    PB(OriginsReply) * out;
    ProtobufCMessage *m;
    int r;

    for (size_t i = 0; i < n; i++)
        ids[i] = (ProtobufCBinaryData){sizeof clients[i], clients[i]};
    req.clients = ids;
    req.n_clients = n;
    pthread_mutex_lock(&s->lock);
    if (!resume && s->drop_epoch == s->epoch && s->up) {
        memcpy(dropped, s->drop, s->ndrop * sizeof dropped[0]);
        req.drop = dropped;
        req.n_drop = s->ndrop;
        s->ndrop = 0; /* lost with a lost request, or in another session: the server's table is bounded */
    }
    pthread_mutex_unlock(&s->lock);
    r = session_unary(s, ORIGINS_PATH, &req.base, NULL, NULL, false, resume, &penstock__v1__origins_reply__descriptor,
                      &m, ret_epoch);
    if (r < 0)
        return r;
    out = (PB(OriginsReply) *)m;
    for (size_t i = 0; i < out->n_numbers; i++)
        r = out->numbers[i] && out->numbers[i] <= UINT16_MAX ? r : -EBADMSG;
    r = out->n_numbers == n ? r : -EBADMSG;
    if (r == 0)
        memcpy(ret, out->numbers, n * sizeof *ret);
    protobuf_c_message_free_unpacked(m, NULL);
    return r;
}

/*
 * Lock held; released meanwhile. Until it has a number of the session that there is then; without a connection that is
 * left to the next one: who comes to look or to administer must not wait for a server that is away.
 */
static int give_number(struct session *s, struct origin *o, uint64_t deadline_ns)
{
    uint8_t client[1][16];
    uint32_t number = 0;
    uint64_t epoch = 0;
    int r;

    memcpy(client[0], o->client, sizeof client[0]);
    do {
        if (!s->up && !s->refused)
            return 0;
        pthread_mutex_unlock(&s->lock);
        r = ask(s, client, 1, false, &number, &epoch);
        pthread_mutex_lock(&s->lock);
        if (r == -EOVERFLOW || r == -EUSERS) /* the session has used up its numbers */
            session_give_up_locked(s, epoch);
        if (r < 0 && r != -EAGAIN && r != -EOVERFLOW && r != -EUSERS)
            return r;
        if (r < 0)
            session_wait(&s->changed, &s->lock, now_ns() + AGAIN_NS);
    } while ((r < 0 || epoch != s->epoch) && now_ns() < deadline_ns);
    if (r < 0 || epoch != s->epoch)
        return -ETIMEDOUT;
    o->number = number;
    o->epoch = epoch;
    return 0;
}

int session_origin_add(struct session *s, const uint8_t client[16])
{
    uint64_t deadline = now_ns() + s->timeout_ns;
    struct origin *o;
    int r = 0;

    scoped_lock(&s->lock);
    o = find(s, client);
    if (!o) {
        o = calloc(1, sizeof *o);
        if (!o)
            return -ENOMEM;
        memcpy(o->client, client, sizeof o->client);
        list_push_front(bucket(s, client), &o->link);
    }
    o->refs++;
    while (o->adding)
        session_wait(&s->changed, &s->lock, now_ns() + NSEC_PER_SEC);
    if (!o->epoch) {
        o->adding = true;
        r = give_number(s, o, deadline);
        o->adding = false;
        pthread_cond_broadcast(&s->changed);
    }
    if (r < 0)
        unref(s, o);
    return r;
}

void session_origin_remove(struct session *s, const uint8_t client[16])
{
    struct origin *o;

    scoped_lock(&s->lock);
    o = find(s, client);
    if (o)
        unref(s, o);
}

/* ---- a new session ---- */

/* Lock held. Some that have no number in it. */
static size_t collect(struct session *s, uint8_t (*ret)[16], size_t max)
{
    size_t n = 0;

    for (size_t i = 0; i < ORIGIN_BUCKETS; i++)
        list_for_each (it, &s->origins[i]) {
            const struct origin *o = list_entry(it, struct origin, link);
            if (!o->adding && o->epoch != s->epoch && n < max)
                memcpy(ret[n++], o->client, sizeof o->client);
        }
    return n;
}

/* Lock held. */
static void take(struct session *s, uint8_t (*clients)[16], const uint32_t *numbers, size_t n, uint64_t epoch)
{
    for (size_t i = 0; i < n; i++) {
        struct origin *o = find(s, clients[i]);
        if (!o) { /* gone meanwhile */
            drop(s, numbers[i], epoch);
            continue;
        }
        o->number = numbers[i];
        o->epoch = epoch;
    }
}

bool session_origins_left(struct session *s)
{
    uint8_t client[1][16];

    return collect(s, client, 1) > 0;
}

int session_origins_again(struct session *s)
{
    uint8_t clients[BATCH][16];
    uint32_t numbers[BATCH];
    uint64_t epoch;
    size_t n;
    int r;

    pthread_mutex_lock(&s->lock);
    while (!s->stop && (n = collect(s, clients, BATCH)) > 0) {
        pthread_mutex_unlock(&s->lock);
        r = ask(s, clients, n, true, numbers, &epoch);
        pthread_mutex_lock(&s->lock);
        if (r == -EAGAIN) {
            session_wait(&s->work, &s->lock, now_ns() + AGAIN_NS);
        } else if (r < 0) {
            pthread_mutex_unlock(&s->lock);
            log_warn("%s: clients cannot be announced again: %s", s->addr, err_text(r));
            return r;
        } else {
            take(s, clients, numbers, n, epoch);
        }
    }
    r = s->stop ? -ECONNRESET : 0;
    pthread_mutex_unlock(&s->lock);
    return r;
}

void session_origins_done(struct session *s)
{
    for (size_t i = 0; i < ORIGIN_BUCKETS; i++)
        while (!list_empty(&s->origins[i]))
            free(list_entry(list_pop_front(&s->origins[i]), struct origin, link));
}

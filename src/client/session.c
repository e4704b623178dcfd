/* A session's life, and its keeper thread: renews the lease, connects again, fetches tickets. */
#include "session.h"

#include "base/crypto.h"
#include "base/err.h"
#include "base/rng.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* ---- the keeper ---- */

/* The lease runs out at lease_ms: three tries before that. Lock held. */
static void renewed(struct session *s)
{
    s->renew_at_ns = now_ns() + s->facts.lease_ms * NSEC_PER_MSEC / 3;
}

/* Tickets that wait while the server is away are asked for again by their queues. Lock held. */
static void fail_tickets(struct session *s)
{
    while (!list_empty(&s->tickets)) {
        struct session_ticket *t = list_entry(list_pop_front(&s->tickets), struct session_ticket, link);
        t->err = s->refused ? s->refused : -ENOTCONN;
        t->ready(t);
    }
}

/*
 * The credential may have been taken away at run time, which waiting does not mend: once that is sure, what waits for
 * the connection fails. Lock not held.
 */
static void count_refusal(struct session *s, int err, const char *text)
{
    if (++s->refusals < REFUSALS || s->refused)
        return;
    log_error("%s; operations fail until the server lets this client in again", text);
    pthread_mutex_lock(&s->lock);
    s->refused = s->stop ? s->refused : err;
    fail_tickets(s);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    s->hooks.changed(s->hooks.user);
}

static int open_new(struct session *s)
{
    struct session_facts f;
    char err[300] = "";
    int r = session_net_open(s, &f, err, sizeof err);

    if (r < 0) {
        log_debug("%s", err);
        if (s->turned_away)
            count_refusal(s, r, err);
        return r;
    }
    scoped_lock(&s->lock);
    s->refused = s->stop ? s->refused : 0;
    s->facts = f;
    s->epoch++;
    s->dead = false;
    s->resuming = true;
    renewed(s);
    return 0;
}

/* The session that was there, if the server still knows it. */
static int check_old(struct session *s)
{
    uint32_t lease;
    int r = session_net_renew(s, s->facts.id, &lease);

    scoped_lock(&s->lock);
    if (r == 0) {
        s->facts.lease_ms = lease;
        renewed(s);
    } else if (r == -ESTALE || r == -EACCES) {
        s->dead = true;
    }
    return r;
}

/* Lock not held. The session is left where a change was given up in it, though the server still has it. */
static void leave_given_up(struct session *s)
{
    scoped_lock(&s->lock);
    if (s->dead || session_is_sound(s, s->epoch))
        return;
    s->dead = true;
    s->has_old = true;
    memcpy(s->old_id, s->facts.id, sizeof s->old_id);
}

/* Stream, then session, then what was open in it. Lock not held. 0: calls may go. */
static int establish(struct session *s)
{
    char err[300];
    bool resume;
    int r;

    session_stream_stop(s);
    r = session_channel_open(s, err, sizeof err);
    if (r < 0) {
        log_debug("%s", err);
        return r;
    }
    leave_given_up(s);
    if (!s->dead) {
        r = check_old(s);
        if (r < 0 && !s->dead)
            return r;
    }
    if (s->dead) {
        r = open_new(s);
        if (r < 0)
            return r;
    }
    r = session_stream_start(s);
    if (r < 0)
        return r;
    resume = s->resuming;
    r = session_origins_again(s);
    if (r < 0)
        return r;
    atomic_store(&s->resume_again, false);
    if (resume)
        s->hooks.resume(s->hooks.user);
    pthread_mutex_lock(&s->lock);
    r = s->stop || atomic_load(&s->resume_again) || s->stream_over || session_origins_left(s) ||
                !session_is_sound(s, s->epoch)
            ? -ECONNRESET
            : 0;
    if (r == 0) {
        s->resuming = false;
        s->up = true;
        s->reconnects++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    if (r == 0) {
        log_info("%s: connected again%s", s->addr, resume ? ", in a new session" : "");
        s->hooks.changed(s->hooks.user);
        if (s->has_old) /* only now: what was open in it has been opened in the new one */
            session_net_close(s, s->old_id);
        s->has_old = false;
    }
    return r;
}

/* Lock held; released meanwhile. */
static void fetch_ticket(struct session *s)
{
    struct session_ticket *t = list_entry(list_pop_front(&s->tickets), struct session_ticket, link);
    uint8_t id[SESSION_ID_BYTES];

    s->ticket = t;
    memcpy(id, s->facts.id, sizeof id);
    memcpy(t->data_key, s->facts.data_key, sizeof t->data_key);
    t->epoch = s->epoch;
    t->history = s->facts.history;
    pthread_mutex_unlock(&s->lock);
    t->err = t->third ? session_net_third(s, id, t) : session_net_ticket(s, id, t);
    pthread_mutex_lock(&s->lock);
    if (t->err == -ESTALE)
        s->verify = true;
    s->ticket = NULL;
    t->ready(t);
    pthread_cond_broadcast(&s->changed);
}

/* Lock held; released meanwhile. */
static void renew(struct session *s)
{
    uint8_t id[SESSION_ID_BYTES];
    uint32_t lease = 0;
    int r;

    memcpy(id, s->facts.id, sizeof id);
    pthread_mutex_unlock(&s->lock);
    r = session_net_renew(s, id, &lease);
    pthread_mutex_lock(&s->lock);
    if (r == 0) {
        s->facts.lease_ms = lease;
        renewed(s);
    } else if (r == -ESTALE || r == -EACCES) {
        log_info("%s: the session is gone (%s)", s->addr, err_text(r));
        s->dead = true;
        s->up = false;
    } else {
        s->renew_at_ns = now_ns() + NSEC_PER_SEC;
        if (s->verify) /* nobody knows: connect again, and those who wait ask again */
            s->up = false;
    }
    if (s->verify) {
        s->verify = false;
        s->verified++;
        pthread_cond_broadcast(&s->changed);
    }
}

/* After a try that failed. Lock held; released meanwhile. */
static void pause_keeper(struct session *s, uint64_t *pause)
{
    uint64_t until;

    if (s->refusals)
        *pause = max_u64(*pause, REFUSED_NS);
    until = now_ns() + *pause;
    /* A server that refuses is left alone meanwhile, whoever wants something. */
    while (session_wait(&s->work, &s->lock, until) && s->refusals && !s->stop)
        ;
    *pause = min_u64(2 * *pause, BACKOFF_MAX_NS);
}

static void *keep(void *arg)
{
    struct session *s = arg;
    uint64_t pause = BACKOFF_MIN_NS;

    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (!s->up) {
            int r;
            fail_tickets(s);
            pthread_mutex_unlock(&s->lock);
            s->turned_away = false;
            r = establish(s);
            if (!s->turned_away)
                s->refusals = 0;
            pthread_mutex_lock(&s->lock);
            if (r < 0 && !s->stop)
                pause_keeper(s, &pause);
            else
                pause = BACKOFF_MIN_NS;
        } else if (s->verify || now_ns() >= s->renew_at_ns) {
            renew(s);
        } else if (!list_empty(&s->tickets)) {
            fetch_ticket(s);
        } else {
            session_wait(&s->work, &s->lock, s->renew_at_ns);
        }
    }
    fail_tickets(s);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- life ---- */

static void session_free(struct session *s)
{
    session_origins_done(s);
    session_channel_unref(s, s->channel);
    rpc_cancel_free(s->cancel);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->quiet);
    pst_wipe(s->facts.data_key, sizeof s->facts.data_key);
    free(s->token_file);
    free(s->ca_file);
    free(s->cert_file);
    free(s->key_file);
    free(s);
}

/* A copy; NULL stays NULL. False: no memory. */
static bool copy_text(const char *in, char **ret)
{
    *ret = in ? strdup(in) : NULL;
    return !in || *ret;
}

static struct session *session_new(const struct session_config *cfg, const struct session_hooks *hooks)
{
    struct session *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    snprintf(s->addr, sizeof s->addr, "%s", cfg->addr);
    snprintf(s->purpose, sizeof s->purpose, "%s", cfg->purpose ? cfg->purpose : "api");
    s->insecure = cfg->insecure;
    s->timeout_ns = cfg->timeout_ns ? cfg->timeout_ns : 30 * NSEC_PER_SEC;
    s->hooks = *hooks;
    if (cfg->has_client_id)
        memcpy(s->client_id, cfg->client_id, sizeof s->client_id);
    else
        rng_secret(s->client_id, sizeof s->client_id);
    s->life = cfg->life;
    for (size_t i = 0; i < PST_SLOTS_MAX; i++)
        s->slot[i].seq = (uint64_t)s->life << SESSION_LIFE_SHIFT;
    pthread_mutex_init(&s->lock, NULL);
    session_cond_init(&s->changed);
    session_cond_init(&s->work);
    session_cond_init(&s->quiet);
    list_init(&s->callers);
    list_init(&s->tickets);
    for (size_t i = 0; i < WAITER_BUCKETS; i++)
        list_init(&s->waiters[i]);
    for (size_t i = 0; i < ORIGIN_BUCKETS; i++)
        list_init(&s->origins[i]);
    s->cancel = rpc_cancel_new();
    if (!copy_text(cfg->token_file, &s->token_file) || !copy_text(cfg->ca_file, &s->ca_file) ||
        !copy_text(cfg->cert_file, &s->cert_file) || !copy_text(cfg->key_file, &s->key_file) || !s->cancel) {
        session_free(s);
        return NULL;
    }
    return s;
}

static int start_keeper(struct session *s)
{
    sigset_t all, old;
    int r;

    /* Signals are the program's own threads' business. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    r = -pthread_create(&s->keeper, NULL, keep, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

/* gRPC's threads do not go through fork(2), and it cannot be started anew. */
static bool forked_after_grpc(void)
{
    static _Atomic uint64_t first;
    uint64_t none = 0, now = fork_generation();

    return !atomic_compare_exchange_strong(&first, &none, now) && none != now;
}

int session_open(const struct session_config *cfg, const struct session_hooks *hooks, struct session **ret, char *err,
                 size_t err_size)
{
    struct session *s;
    int r;

    if (forked_after_grpc()) {
        snprintf(err, err_size, "this process was forked from one with connections: it has to exec before it connects");
        return -ECHILD;
    }
    s = session_new(cfg, hooks);
    if (!s)
        return -ENOMEM;
    r = session_channel_open(s, err, err_size);
    if (r == 0)
        r = session_net_open(s, &s->facts, err, err_size);
    if (r < 0) {
        session_free(s);
        return r;
    }
    s->epoch = 1;
    renewed(s);
    r = session_stream_start(s);
    if (r == 0) {
        s->up = true;
        r = start_keeper(s);
    }
    if (r < 0) {
        snprintf(err, err_size, "%s: cannot start: %s", s->addr, err_text(r));
        session_stream_stop(s);
        session_net_close(s, s->facts.id);
        session_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void session_end_waits(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->stop) {
        pthread_mutex_unlock(&s->lock);
        return;
    }
    s->stop = true;
    s->refused = -ESHUTDOWN;
    s->was_up = s->up;
    s->up = false;
    fail_tickets(s);
    pthread_cond_signal(&s->work);
    pthread_cond_broadcast(&s->changed);
    rpc_cancel_fire(s->cancel);
    if (s->stream)
        rpc_stream_cancel(s->stream);
    pthread_mutex_unlock(&s->lock);
    s->hooks.changed(s->hooks.user);
}

void session_close(struct session *s)
{
    bool up;

    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    up = s->up || s->was_up;
    pthread_cond_signal(&s->work);
    rpc_cancel_fire(s->cancel);
    if (!up && s->stream)
        rpc_stream_cancel(s->stream);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->keeper, NULL);
    session_stream_stop(s);
    if (up)
        session_net_close(s, s->facts.id);
    session_free(s);
}

/* ---- looking at it ---- */

uint64_t session_timeout_ns(const struct session *s)
{
    return s->timeout_ns;
}

const char *session_addr(const struct session *s)
{
    return s->addr;
}

void session_identity(struct session *s, struct session_identity *ret)
{
    scoped_lock(&s->lock);
    *ret = s->facts.who;
}

uint64_t session_epoch(struct session *s)
{
    return atomic_load(&s->epoch);
}

uint64_t session_history(struct session *s)
{
    scoped_lock(&s->lock);
    return s->facts.history;
}

uint64_t session_reconnects(struct session *s)
{
    scoped_lock(&s->lock);
    return s->reconnects;
}

void session_resume_again(struct session *s)
{
    atomic_store(&s->resume_again, true);
}

bool session_is_up(struct session *s)
{
    scoped_lock(&s->lock);
    return s->up;
}

int session_refused(struct session *s)
{
    return atomic_load(&s->refused);
}

size_t session_shards(struct session *s, struct session_shard ret[SESSION_SHARDS_MAX])
{
    scoped_lock(&s->lock);
    memcpy(ret, s->facts.shard, s->facts.nshards * sizeof ret[0]);
    return s->facts.nshards;
}

void session_export(struct session *s, struct session_export *ret)
{
    scoped_lock(&s->lock);
    memcpy(ret->path, s->facts.export_path, sizeof ret->path);
    memcpy(ret->session, s->facts.id, sizeof ret->session);
    memcpy(ret->data_key, s->facts.data_key, sizeof ret->data_key);
    ret->epoch = atomic_load(&s->epoch);
}

void session_ticket_want(struct session *s, struct session_ticket *t)
{
    scoped_lock(&s->lock);
    list_push_back(&s->tickets, &t->link);
    if (!s->up && s->refused)
        fail_tickets(s);
    pthread_cond_signal(&s->work);
}

void session_ticket_cancel(struct session *s, struct session_ticket *t)
{
    scoped_lock(&s->lock);
    list_del(&t->link);
    while (s->ticket == t)
        pthread_cond_wait(&s->changed, &s->lock);
}

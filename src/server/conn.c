/* Data connections: who may connect, and what happens to each message. */
#include "data.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void conn_free(struct conn *c)
{
    check_unbind_all(c);
    sess_put(c->sess);
    pst_mac_free(c->mac);
    atomic_fetch_sub(&c->shard->tenant->nconns, 1);
    atomic_fetch_sub(&c->shard->srv->nconns, 1);
    free(c);
}

void conn_put_req(struct conn *c)
{
    if (--c->reqs == 0 && !c->fab)
        conn_free(c);
}

static struct pst_mac *conn_mac(const struct sess *sess, const void *ticket, size_t len)
{
    uint8_t key[DP_KEY_BYTES];
    struct pst_mac *m = NULL;

    if (dp_conn_key(sess_data_key(sess), ticket, len, key) == 0)
        m = pst_mac_new(key, sizeof key);
    pst_wipe(key, sizeof key);
    return m;
}

static void *on_connect(struct fab_conn *fc, const void *data, size_t len, void *user)
{
    struct shard *s = user;
    struct srv *srv = s->srv;
    struct sess_third third;
    struct sess *sess = NULL;
    struct conn *c;
    uint64_t most;

    if (!atomic_load(&srv->ready) || atomic_load(&s->drain) || atomic_load(&s->stop))
        return NULL;
    if (atomic_fetch_add(&srv->nconns, 1) >= srv->cfg->max_connections) {
        ctl_refuse(srv->ctl, REFUSE_LIMIT);
        log_warn("data connection from %s refused: %llu are open (data.max_connections)", fab_conn_peer(fc),
                 (unsigned long long)srv->cfg->max_connections);
        goto refuse;
    }
    if (ctl_ticket_take(srv->ctl, data, len, s->id, &sess, &third) < 0) /* counted there */
        goto refuse;
    most = atomic_load(&s->tenant->max_connections);
    if (most && atomic_load(&s->tenant->nconns) >= most) {
        ctl_refuse(srv->ctl, REFUSE_LIMIT);
        log_warn("data connection from %s refused: tenant %s has %llu open (max_connections)", fab_conn_peer(fc),
                 s->tenant->cfg->name, (unsigned long long)most);
        goto refuse;
    }
    if (sess_ident(sess)->tenant != s->tenant->id) { /* no ticket of its is good here; this is the second lock */
        ctl_refuse(srv->ctl, REFUSE_TICKET_SHARD);
        goto refuse;
    }
    if (third.number && !third_admit(s, sess, &third))
        goto refuse;
    c = calloc(1, sizeof *c);
    if (!c)
        goto refuse;
    c->mac = conn_mac(sess, data, len);
    if (!c->mac) {
        free(c);
        goto refuse;
    }
    c->shard = s;
    atomic_fetch_add(&s->tenant->nconns, 1);
    c->number = atomic_fetch_add(&srv->nconns_made, 1) + 1;
    c->fab = fc;
    c->sess = sess;
    list_init(&c->unsent);
    list_init(&c->owed);
    list_init(&c->third_link);
    c->third = third;
    if (third.number)
        list_push_back(&s->thirds, &c->third_link);
    snprintf(c->peer, sizeof c->peer, "%s", fab_conn_peer(fc));
    pthread_mutex_lock(&s->lock);
    list_push_back(&s->conns, &c->link);
    pthread_mutex_unlock(&s->lock);
    return c;
refuse:
    sess_put(sess);
    atomic_fetch_sub(&srv->nconns, 1);
    return NULL;
}

static void on_connected(struct fab_conn *fc, void *user)
{
    struct conn *c = user;

    (void)fc;
    log_debug("data connection from %s", c->peer);
    if (c->third.number)
        third_connected(c);
}

static void on_closed(struct fab_conn *fc, int err, void *user)
{
    struct conn *c = user;
    struct shard *s = c->shard;

    (void)fc;
    log_debug("data connection from %s closed: %d", c->peer, err);
    pthread_mutex_lock(&s->lock);
    list_del(&c->link);
    pthread_mutex_unlock(&s->lock);
    c->fab = NULL;
    c->reqs++; /* keeps c while its requests are dropped */
    req_drop_waiting(c);
    req_flush_unsent(c);
    third_closed(c);
    conn_put_req(c);
}

void conn_end(struct conn *c)
{
    if (c->fab)
        fab_disconnect(c->fab);
}

void conn_offence(struct conn *c, enum refusal why)
{
    ctl_refuse(c->shard->srv->ctl, why);
    log_info("data connection from %s is ended: %s", c->peer, refusal_name(why));
    conn_end(c);
}

static void on_message(struct fab_conn *fc, const void *msg, size_t len, void *user)
{
    struct conn *c = user;
    struct dp_request dp;
    struct req *r;
    int e;

    if (!c->fab || atomic_load(&c->shard->stop))
        return;
    if (atomic_load(&c->shard->drain)) /* not taken on: the client asks the next server again */
        return;
    if (c->third.number) {
        conn_offence(c, REFUSE_THIRD_MESSAGE);
        return;
    }
    e = dp_decode_request(c->mac, msg, len, &dp);
    if (e < 0) {
        conn_offence(c, e == -EACCES ? REFUSE_MAC : e == -EPROTO ? REFUSE_VERSION : REFUSE_MALFORMED);
        return;
    }
    if (dp.msgno != c->msgno + 1) {
        conn_offence(c, REFUSE_REPLAY);
        return;
    }
    c->msgno = dp.msgno;
    if (c->unanswered >= fab_credits(fc)) {
        conn_offence(c, REFUSE_LIMIT);
        return;
    }
    r = req_new(c, &dp);
    if (!r) {
        log_error("out of memory: data connection from %s is ended", c->peer);
        conn_end(c);
        return;
    }
    stat_add(&c->requests, 1);
    req_run(r);
}

static void on_sendable(struct fab_conn *fc, void *user)
{
    (void)fc;
    req_flush_unsent(user);
    third_flush(user);
}

const struct fab_callbacks conn_callbacks = {
    .on_connect = on_connect,
    .on_connected = on_connected,
    .on_message = on_message,
    .on_closed = on_closed,
    .on_sendable = on_sendable,
};

void conn_drop_dead_sessions(struct shard *s)
{
    list_for_each_safe (it, &s->conns) {
        struct conn *c = list_entry(it, struct conn, link);
        if (!sess_alive(c->sess))
            conn_end(c);
    }
}

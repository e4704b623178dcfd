/* The queue's data connection: a ticket, connect, bind, end, and the same again. */
#include "queue.h"

bool rq_conn_can_send(const struct rqueue *q)
{
    return q->conn.state == CONN_UP && q->conn.unanswered < q->conn.limit;
}

/* ---- bound capabilities ---- */

uint32_t rq_conn_bind_number(struct rqueue *q, uint64_t cap_id, bool *ret_new)
{
    struct rconn *c = &q->conn;
    uint32_t n;

    *ret_new = false;
    for (uint32_t i = 0; i < c->nbinds; i++)
        if (c->bind[i] == cap_id)
            return i;
    *ret_new = true;
    /* A number that is bound anew: requests under the old capability are ahead of it on the connection. */
    n = c->nbinds < BINDS_MAX ? c->nbinds++ : c->next_victim++ % BINDS_MAX;
    c->bind[n] = cap_id;
    return n;
}

void rq_conn_unbind(struct rqueue *q, uint32_t number)
{
    q->conn.bind[number] = 0;
}

/* ---- sending ---- */

int rq_conn_send(struct rqueue *q, struct dp_request *req)
{
    struct rconn *c = &q->conn;
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];
    int r;

    if (!rq_conn_can_send(q))
        return c->state == CONN_UP ? -EAGAIN : -ENOTCONN;
    req->msgno = c->msgno + 1;
    r = dp_encode_request(c->mac, req, head, iov);
    if (r < 0)
        return r;
    r = fab_send(c->fc, iov, (uint32_t)r);
    if (r < 0)
        return r;
    c->msgno++;
    c->unanswered++;
    atomic_fetch_add_explicit(&q->r->requests, 1, memory_order_relaxed);
    return 0;
}

/* ---- life ---- */

static void down(struct rqueue *q)
{
    struct rconn *c = &q->conn;

    pst_mac_free(c->mac);
    c->mac = NULL;
    c->fc = NULL;
    c->state = CONN_DOWN;
    c->retry_at_ns = now_ns() + c->retry_ns;
    c->retry_ns = min_u64(2 * c->retry_ns, RETRY_MAX_NS);
    c->msgno = c->unanswered = 0;
    c->nbinds = 0;
}

static void on_connected(struct fab_conn *fc, void *user)
{
    struct rqueue *q = user;

    if (fc == q->third.fc) {
        rq_third_connected(q);
        return;
    }
    q->conn.state = CONN_UP;
    q->conn.refused = false;
    q->conn.limit = fab_send_credits(fc);
    atomic_fetch_add_explicit(&q->r->connects, 1, memory_order_relaxed);
}

static void on_message(struct fab_conn *fc, const void *msg, size_t len, void *user)
{
    struct rqueue *q = user;

    if (fc == q->third.fc)
        rq_third_message(q, msg, len);
    else if (q->conn.state == CONN_UP)
        rq_wire_message(q, msg, len);
}

static void on_closed(struct fab_conn *fc, int err, void *user)
{
    struct rqueue *q = user;
    bool exported, third;

    if (fc == q->third.fc) {
        if (rq_third_closed(q, err) && !q->draining)
            rq_conn_drained(q);
        return;
    }
    log_debug("%s: data connection %u is closed: %s", session_addr(q->r->session), q->number,
              err ? err_text(err) : "in order");
    q->conn.state = CONN_CLOSING;
    q->conn.fc = NULL;
    exported = rq_export_end(q);
    third = rq_third_end(q);
    if (!exported && !third)
        rq_conn_drained(q);
}

void rq_conn_drained(struct rqueue *q)
{
    down(q);
    rq_requeue(q); /* its memory can no longer be reached */
}

const struct fab_callbacks rq_conn_callbacks = {
    .on_connected = on_connected, .on_message = on_message, .on_closed = on_closed};

void rq_conn_end(struct rqueue *q)
{
    if (q->conn.state != CONN_UP && q->conn.state != CONN_CONNECTING)
        return;
    q->conn.state = CONN_CLOSING;
    fab_disconnect(q->conn.fc);
}

/* The endpoint of this queue: queues are spread over the server's shards. */
int rq_endpoint(struct remote *r, const struct remote_way *way, uint32_t number, struct session_shard *ret)
{
    struct session_shard all[SESSION_SHARDS_MAX];
    size_t n = session_shards(r->session, all), k = 0;

    for (size_t i = 0; i < n; i++)
        if (!strcmp(all[i].provider, way->provider))
            all[k++] = all[i];
    if (!k)
        return -EHOSTUNREACH;
    *ret = all[number % k];
    return 0;
}

static void ticket_ready(struct session_ticket *t)
{
    struct rqueue *q = container_of(t, struct rqueue, conn.ticket);

    atomic_fetch_add(&q->wakers, 1);
    atomic_store(&q->conn.ticket_ready, true);
    rq_wake(q);
    atomic_fetch_sub(&q->wakers, 1);
}

static void want_ticket(struct rqueue *q)
{
    struct rconn *c = &q->conn;
    struct session_shard ep;

    if (rq_endpoint(q->r, q->way, q->number, &ep) < 0) {
        down(q);
        return;
    }
    c->ticket.shard = ep.shard;
    c->ticket.ready = ticket_ready;
    atomic_store(&c->ticket_ready, false);
    c->state = CONN_TICKET;
    session_ticket_want(q->r->session, &c->ticket);
}

static int dial(struct rqueue *q)
{
    struct rconn *c = &q->conn;
    uint8_t key[DP_KEY_BYTES];
    struct session_shard ep;
    int r = rq_endpoint(q->r, q->way, q->number, &ep);

    if (r == 0 && ep.shard != c->ticket.shard)
        r = -EAGAIN; /* the server has come back with others */
    if (r == 0)
        r = dp_conn_key(c->ticket.data_key, c->ticket.bytes, c->ticket.len, key);
    if (r < 0)
        return r;
    c->mac = pst_mac_new(key, sizeof key);
    pst_wipe(key, sizeof key);
    if (!c->mac)
        return -ENOMEM;
    c->epoch = c->ticket.epoch;
    c->history = c->ticket.history;
    return fab_connect(q->shard, (struct sockaddr *)&ep.addr, ep.addr_len, c->ticket.bytes, c->ticket.len, q, &c->fc);
}

static void connect_now(struct rqueue *q)
{
    struct rconn *c = &q->conn;
    int r = c->ticket.err;

    if (r == 0)
        r = dial(q);
    pst_wipe(c->ticket.bytes, sizeof c->ticket.bytes);
    pst_wipe(c->ticket.data_key, sizeof c->ticket.data_key);
    if (r < 0) {
        log_debug("%s: no data connection %u: %s", session_addr(q->r->session), q->number, err_text(r));
        down(q);
        return;
    }
    c->state = CONN_CONNECTING;
}

/*
 * The server may have come back with other providers than before. False: none of them can be used here, and what waits
 * has failed; or this queue's transport is broken.
 */
static bool follow(struct rqueue *q)
{
    const struct remote_way *way;
    char err[300] = "";
    int r = remote_way(q->r, &way, err, sizeof err);

    if (r < 0 && !session_is_up(q->r->session))
        return true; /* that is what it offered before */
    if (r < 0) {
        if (!q->conn.refused)
            log_error("%s came back with other providers, and operations fail: %s", session_addr(q->r->session), err);
        q->conn.refused = true;
        rq_fail_waiting(q, -EHOSTUNREACH, false);
        return false;
    }
    return way == q->way || rq_shard_again(q);
}

void rq_conn_step(struct rqueue *q, uint64_t now)
{
    struct rconn *c = &q->conn;
    int refused = session_refused(q->r->session);

    if (c->state == CONN_TICKET && atomic_load(&c->ticket_ready))
        connect_now(q);
    /*
     * It served the session before. A server that was killed, or cut off, says nothing of that: with RDMA an idle
     * connection to it stays up for good, and what was asked over it would never be answered.
     */
    if ((c->state == CONN_UP || c->state == CONN_CONNECTING) &&
        (refused || c->epoch != session_epoch(q->r->session)))
        rq_conn_end(q);
    if (c->state == CONN_DOWN && refused)
        rq_fail_waiting(q, refused, true); /* the next request goes in another session */
    if (c->state == CONN_DOWN && now >= c->retry_at_ns && !q->broken && !list_empty(&q->waiting) && follow(q))
        want_ticket(q);
}

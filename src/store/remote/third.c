/*
 * A connection of the queue's own to the server behind its agent, for the bytes of requests that go by the agent
 * (docs/protocol.md, section 11). It lives inside of one connection to the agent: it is made when that is up, and ends
 * with it.
 *
 *   OFF -> ASKING -> CONNECTING -> GREETING -> UP -> CLOSING -> OFF        each can fall back to OFF
 *
 * A request with THIRD is over when its answer has come from the agent, and what it names can no longer be reached from
 * the server: because the answer says so, because the notice behind the last RMA write has come here, or because this
 * connection is closed. What an agent cannot have done so (-ENOTCONN), and reads whose bytes may be missing, are sent
 * again without it.
 */
#include "queue.h"

#define RETRY_LEAST_NS (50 * NSEC_PER_MSEC)
#define RETRY_MOST_NS  (10 * NSEC_PER_SEC)
#define GREETING_NS    (5 * NSEC_PER_SEC)
#define NOTICE_NS      (10 * NSEC_PER_SEC) /* without a message, and after the answer */

static bool is_write(uint8_t opcode)
{
    return opcode == DP_WRITE || opcode == DP_CHUNK_REPLACE;
}

/* ---- life ---- */

static bool is_wanted(struct rqueue *q)
{
    enum remote_placement p = q->r->placement;

    return (p == PLACE_THIRD || (p == PLACE_AUTO && !q->arena_export)) && session_offers_third(q->r->session);
}

static void off(struct rqueue *q)
{
    struct rthird *t = &q->third;

    pst_mac_free(t->mac);
    t->mac = NULL;
    t->fc = NULL;
    t->state = THIRD_OFF;
    t->heard = 0;
    t->is_tried = true;
    t->retry_ns = max_u64(t->retry_ns, RETRY_LEAST_NS);
    t->retry_at_ns = now_ns() + t->retry_ns;
    t->retry_ns = min_u64(2 * t->retry_ns, RETRY_MOST_NS);
}

static void ready(struct session_ticket *k)
{
    struct rqueue *q = container_of(k, struct rqueue, third.ticket);

    atomic_fetch_add(&q->wakers, 1);
    atomic_store(&q->third.is_ready, true);
    rq_wake(q);
    atomic_fetch_sub(&q->wakers, 1);
}

static void ask(struct rqueue *q)
{
    struct rthird *t = &q->third;

    t->ticket = (struct session_ticket){.third = true, .shard = q->conn.ticket.shard, .ready = ready};
    list_init(&t->ticket.link);
    atomic_store(&t->is_ready, false);
    t->state = THIRD_ASKING;
    session_ticket_want(q->r->session, &t->ticket);
}

static int dial(struct rqueue *q)
{
    struct rthird *t = &q->third;

    if (t->ticket.err)
        return t->ticket.err;
    if (q->conn.state != CONN_UP || t->ticket.epoch != q->conn.epoch || t->ticket.shard != q->conn.ticket.shard)
        return -ESTALE; /* for the connection before */
    if (strcmp(t->ticket.to.provider, q->way->provider) != 0)
        return -EPROTONOSUPPORT;
    t->mac = pst_mac_new(t->ticket.data_key, sizeof t->ticket.data_key);
    if (!t->mac)
        return -ENOMEM;
    t->number = t->ticket.number;
    return fab_connect(q->shard, (struct sockaddr *)&t->ticket.to.addr, t->ticket.to.addr_len, t->ticket.bytes,
                       t->ticket.len, q, &t->fc);
}

static void connect_now(struct rqueue *q)
{
    struct rthird *t = &q->third;
    int r = dial(q);

    pst_wipe(t->ticket.bytes, sizeof t->ticket.bytes);
    pst_wipe(t->ticket.data_key, sizeof t->ticket.data_key);
    if (r == 0) {
        t->state = THIRD_CONNECTING;
        return;
    }
    log_debug("%s: no connection to the server behind it: %s", session_addr(q->r->session), err_text(r));
    off(q);
    if (r == -ESTALE) { /* that says nothing of whether it can be had */
        t->is_tried = false;
        t->retry_at_ns = 0;
    }
}

static void look_for_late(struct rthird *t, struct list *l)
{
    list_for_each (it, l) {
        const struct rop *p = list_entry(it, struct rop, link);
        uint64_t at = max_u64(p->replied_ns, t->heard_ns) + NOTICE_NS;
        if (!p->is_third || !p->has_reply || p->is_noticed || is_write(p->opcode) || p->kept.status)
            continue;
        t->late_at_ns = t->late_at_ns ? min_u64(t->late_at_ns, at) : at;
    }
}

/*
 * A server can have answered and be killed before its notice is out. Nothing is sent from here, so that with RDMA the
 * connection stays up without it, and the notice would be waited for until another request is sent.
 */
static void cut_if_late(struct rqueue *q, uint64_t now)
{
    struct rthird *t = &q->third;

    if (!t->late_at_ns || now < t->late_at_ns)
        return;
    t->late_at_ns = 0;
    look_for_late(t, &q->sent);
    look_for_late(t, &q->given_up);
    if (!t->late_at_ns || now < t->late_at_ns)
        return;
    t->late_at_ns = 0;
    log_debug("%s: the server behind it answers, and does not say that bytes are here", session_addr(q->r->session));
    rq_third_cut(q);
}

void rq_third_step(struct rqueue *q, uint64_t now)
{
    struct rthird *t = &q->third;

    if (t->state == THIRD_ASKING && atomic_load(&t->is_ready))
        connect_now(q);
    if (t->state == THIRD_GREETING && now >= t->greeting_at_ns)
        rq_third_cut(q);
    cut_if_late(q, now);
    if (t->state != THIRD_OFF || q->conn.state != CONN_UP || now < t->retry_at_ns)
        return;
    if (is_wanted(q))
        ask(q);
    else
        t->retry_at_ns = now + NSEC_PER_SEC;
}

bool rq_third_is_pending(struct rqueue *q)
{
    return q->r->placement == PLACE_THIRD && !q->third.is_tried && q->third.state != THIRD_UP && is_wanted(q);
}

void rq_third_connected(struct rqueue *q)
{
    struct rthird *t = &q->third;

    if (t->state != THIRD_CONNECTING)
        return;
    t->state = THIRD_GREETING;
    t->greeting_at_ns = now_ns() + GREETING_NS;
    t->limit = fab_credits(t->fc);
}

void rq_third_cut(struct rqueue *q)
{
    struct rthird *t = &q->third;

    if (t->state != THIRD_CONNECTING && t->state != THIRD_GREETING && t->state != THIRD_UP)
        return;
    t->state = THIRD_CLOSING;
    fab_disconnect(t->fc);
}

bool rq_third_end(struct rqueue *q)
{
    struct rthird *t = &q->third;

    t->is_tried = false;
    rq_third_cut(q);
    t->is_draining = t->state == THIRD_CLOSING;
    return t->is_draining;
}

static void mark_gone(struct rqueue *q, struct list *l)
{
    list_for_each_safe (it, l) {
        struct rop *p = list_entry(it, struct rop, link);
        if (!p->is_third)
            continue;
        p->is_gone = true;
        rq_third_resolve(q, p);
    }
}

bool rq_third_closed(struct rqueue *q, int err)
{
    struct rthird *t = &q->third;

    log_debug("%s: the connection to the server behind it is closed: %s", session_addr(q->r->session),
              err ? err_text(err) : "in order");
    off(q);
    if (t->is_draining) {
        t->is_draining = false;
        t->is_tried = false;
        t->retry_at_ns = 0;
        return true;
    }
    mark_gone(q, &q->sent);
    mark_gone(q, &q->given_up);
    return false;
}

/* ---- requests ---- */

bool rq_third_use(struct rqueue *q, struct rop *p, struct dp_request *req)
{
    struct rthird *t = &q->third;

    if (t->state != THIRD_UP || p->is_again || t->named >= t->limit || req->nsegs >= DP_SEGS_MAX)
        return false;
    memmove(&req->seg[1], &req->seg[0], req->nsegs * sizeof req->seg[0]);
    req->seg[0] = (struct dp_seg){.addr = rq_tag(p), .key = t->number};
    req->nsegs++;
    req->flags |= DP_F_THIRD;
    p->is_third = true;
    t->named++;
    atomic_fetch_add_explicit(&q->r->third_bytes, p->op->length, memory_order_relaxed);
    return true;
}

void rq_third_unuse(struct rqueue *q, struct rop *p)
{
    if (!p->is_third)
        return;
    p->is_third = p->has_reply = p->is_noticed = p->is_gone = false;
    q->third.named--;
}

/* Over the agent's connection, crossing it. */
static void send_again(struct rqueue *q, struct rop *p)
{
    list_del(&p->link);
    rq_mem_release_rop(q, p);
    p->msgno = 0;
    p->is_again = true;
    atomic_fetch_add_explicit(&q->r->retried, 1, memory_order_relaxed);
    list_push_front(&q->waiting, &p->link);
}

void rq_third_resolve(struct rqueue *q, struct rop *p)
{
    struct dp_reply *y = &p->kept;
    bool moved = !is_write(p->opcode) && y->result > 0, done;

    if (!p->has_reply || p->ended) /* with `ended` its connection is closing */
        return;
    if (!p->is_noticed && !p->is_gone && (y->status < 0 ? y->offset != DP_SETTLED : moved)) {
        if (y->status < 0)
            rq_third_cut(q); /* nobody knows whether a notice comes */
        return;
    }
    done = y->status == 0 ? !moved || p->is_noticed : y->status != -ENOTCONN;
    if (!done && p->op) {
        send_again(q, p);
        return;
    }
    if (done && y->status == 0)
        q->third.retry_ns = 0;
    rq_wire_answered(q, p, y);
}

void rq_third_reply(struct rqueue *q, struct rop *p, const struct dp_reply *y)
{
    p->kept = *y;
    p->kept.payload = NULL;
    p->has_reply = true;
    p->replied_ns = now_ns();
    if (!q->third.late_at_ns)
        q->third.late_at_ns = p->replied_ns + NOTICE_NS;
    if (y->status == -ENOTCONN && !p->is_gone) /* the server does not have it any more */
        rq_third_cut(q);
    rq_third_resolve(q, p);
}

void rq_third_message(struct rqueue *q, const void *msg, size_t len)
{
    struct rthird *t = &q->third;
    struct dp_reply y;
    struct rop *p;

    if (t->state != THIRD_GREETING && t->state != THIRD_UP)
        return;
    if (dp_decode_reply(t->mac, msg, len, &y) < 0 || y.msgno != t->heard + 1 || y.status ||
        (y.opcode == DP_PING) != (t->state == THIRD_GREETING)) {
        log_warn("%s: who sends bytes for requests is not the server behind it", session_addr(q->r->session));
        rq_third_cut(q);
        return;
    }
    t->heard++;
    t->heard_ns = now_ns();
    t->state = THIRD_UP;
    p = (y.tag & 0xffff) < q->nrops ? &q->rops[y.tag & 0xffff] : NULL;
    if (y.opcode == DP_PING || !p || rq_tag(p) != y.tag || !p->is_third || !p->msgno || y.opcode != p->opcode)
        return;
    p->is_noticed = true;
    rq_third_resolve(q, p);
}

void rq_third_destroy(struct rqueue *q)
{
    if (q->third.state == THIRD_ASKING)
        session_ticket_cancel(q->r->session, &q->third.ticket);
    pst_wipe(q->third.ticket.data_key, sizeof q->third.ticket.data_key);
}

/* ---- the agent ---- */

int rq_far_place(struct rqueue *q, struct rop *p, struct dp_request *req)
{
    const struct pst_far *f = p->op->far;

    if (f->epoch != q->conn.epoch)
        return -ENOLINK;
    req->flags |= DP_F_THIRD;
    req->seg[0] = (struct dp_seg){.addr = f->tag, .key = f->number};
    req->nsegs = (uint8_t)(f->nsegs + 1);
    for (uint32_t i = 0; i < f->nsegs; i++)
        req->seg[i + 1] = (struct dp_seg){f->seg[i].addr, f->seg[i].key, f->seg[i].len};
    p->is_far = true;
    atomic_fetch_add_explicit(&q->r->far_bytes, p->op->length, memory_order_relaxed);
    return 0;
}

int remote_third(struct pst_store *st, uint32_t spread, uint64_t owner, struct pst_third *ret)
{
    struct remote *r = remote_of(st);
    const struct remote_way *way;
    struct session_shard ep;
    char err[300];
    int e = remote_way(r, &way, err, sizeof err);

    if (e == 0)
        e = rq_endpoint(r, way, spread, &ep);
    return e < 0 ? e : session_third(r->session, &ep, owner, ret);
}

uint32_t remote_queue_spread(struct pst_queue *q)
{
    return container_of(q, struct rqueue, q)->number;
}

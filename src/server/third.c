/*
 * Third parties (docs/protocol.md, section 11): the host of an agent is connected to the server itself, requests go by
 * the agent, and their bytes by that connection.
 *
 * The server's side: a connection whose ticket was for a third party makes no requests. Requests of the session that
 * asked for the ticket, on the same shard, name its memory; the shard does its RMA over that connection, and after the
 * writes of a read it sends a notice there: the answer, which goes another way, may be earlier than the bytes.
 *
 * The agent's side: it asks for tickets on behalf of its clients, gives each way a number of its own, and passes
 * requests on (struct pst_far) only for the session that a way was made for.
 */
#include "data.h"

#include <errno.h>
#include <string.h>

#define OF_OWNER_MAX 16u   /* connections of one owner to a shard */
#define WAYS_MAX     16u   /* of a client of an agent; older ones are forgotten */
#define HOSTS_MAX    4096u /* clients that have any; with more the first one has to ask again */
#define WAYS_NS      (10 * NSEC_PER_SEC) /* so many in this time at most */
#define PASSED_ON    (UINT64_C(1) << 63) /* in the numbers that an agent gives */

/* ---- the server's side ---- */

bool third_admit(struct shard *s, const struct sess *sess, const struct sess_third *third)
{
    uint32_t n = 0;

    list_for_each (it, &s->thirds) {
        const struct conn *c = list_entry(it, struct conn, third_link);
        n += c->sess == sess && c->third.owner == third->owner;
    }
    if (n < OF_OWNER_MAX)
        return true;
    ctl_refuse(s->srv->ctl, REFUSE_LIMIT);
    log_warn("connection of a third party refused: %u of the same client are open", n);
    return false;
}

static struct conn *find(struct conn *c, uint64_t number)
{
    list_for_each (it, &c->shard->thirds) {
        struct conn *t = list_entry(it, struct conn, third_link);
        if (t->third.number == number && t->sess == c->sess && t->fab)
            return t;
    }
    return NULL;
}

static int send_notice(struct conn *t, uint8_t opcode, uint64_t tag)
{
    struct dp_reply y = {.msgno = t->noticed + 1, .tag = tag, .opcode = opcode};
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];
    int n = dp_encode_reply(t->mac, &y, head, iov);

    n = n < 0 ? n : fab_send(t->fab, iov, (uint32_t)n);
    if (n >= 0)
        t->noticed++;
    else if (n != -EAGAIN)
        conn_end(t); /* what it waits for does not come: it hears that */
    return n;
}

/* From here on requests may name it, and who connected knows that it is this server. */
void third_connected(struct conn *c)
{
    send_notice(c, DP_PING, 0);
}

void third_notice(struct req *r)
{
    struct conn *t = r->third;

    if (!r->moved || r->failed || req_is_write(r) || !t->fab)
        return;
    if (list_empty(&t->owed) && send_notice(t, r->dp.opcode, r->dp.seg[0].addr) != -EAGAIN)
        return;
    if (t->nowed >= fab_credits(t->fab)) { /* more than a correct party waits for */
        ctl_refuse(t->shard->srv->ctl, REFUSE_LIMIT);
        conn_end(t);
        return;
    }
    r->refs++;
    t->nowed++;
    list_push_back(&t->owed, &r->notice);
}

static void settle_first(struct conn *t)
{
    struct req *r = list_entry(list_pop_front(&t->owed), struct req, notice);

    t->nowed--;
    req_unref(r);
}

void third_flush(struct conn *c)
{
    c->reqs++; /* it stays while its last request goes */
    while (c->fab && !list_empty(&c->owed)) {
        const struct req *r = list_entry(c->owed.next, struct req, notice);
        if (send_notice(c, r->dp.opcode, r->dp.seg[0].addr) == -EAGAIN)
            break;
        settle_first(c);
    }
    conn_put_req(c);
}

void third_closed(struct conn *c)
{
    if (!c->third.number)
        return;
    list_del(&c->third_link);
    while (!list_empty(&c->owed))
        settle_first(c);
}

bool third_settled(const struct req *r)
{
    if (r->is_far)
        return r->far.settled;
    return req_is_write(r) || !r->moved; /* a write is answered after the last of its RMA */
}

/* ---- the agent's side ---- */

struct host {
    struct list link;
    uint8_t session[SESS_ID_BYTES];
    uint64_t owner;
    uint32_t n; /* ways made; the newest WAYS_MAX are in the array, in turn */
    struct made_way {
        struct third_way way;
        uint32_t shard;
        uint64_t at_ns;
    } ways[WAYS_MAX];
};

struct thirds {
    pthread_mutex_t lock;
    struct list hosts; /* those that came first are first */
    uint32_t nhosts;
    uint64_t last_owner, last_number;
};

struct thirds *thirds_new(void)
{
    struct thirds *x = calloc(1, sizeof *x);

    if (!x)
        return NULL;
    pthread_mutex_init(&x->lock, NULL);
    list_init(&x->hosts);
    return x;
}

/* Lock held. */
static struct host *host_of(struct thirds *x, const uint8_t id[SESS_ID_BYTES])
{
    list_for_each (it, &x->hosts) {
        struct host *h = list_entry(it, struct host, link);
        if (!memcmp(h->session, id, sizeof h->session))
            return h;
    }
    return NULL;
}

static void drop(struct thirds *x, struct host *h)
{
    list_del(&h->link);
    x->nhosts--;
    free(h);
}

void thirds_free(struct thirds *x)
{
    if (!x)
        return;
    while (!list_empty(&x->hosts))
        drop(x, list_entry(x->hosts.next, struct host, link));
    pthread_mutex_destroy(&x->lock);
    free(x);
}

void thirds_end_session(struct thirds *x, const uint8_t id[SESS_ID_BYTES])
{
    struct host *h;

    scoped_lock(&x->lock);
    h = host_of(x, id);
    if (h)
        drop(x, h);
}

static struct host *new_host(struct thirds *x, const uint8_t id[SESS_ID_BYTES])
{
    struct host *h = calloc(1, sizeof *h);

    if (!h)
        return NULL;
    if (x->nhosts == HOSTS_MAX)
        drop(x, list_entry(x->hosts.next, struct host, link));
    memcpy(h->session, id, sizeof h->session);
    h->owner = ++x->last_owner;
    list_push_back(&x->hosts, &h->link);
    x->nhosts++;
    return h;
}

/* A place for one more way, without the way yet: its number. -EAGAIN: too many lately. */
static int reserve(struct thirds *x, const uint8_t id[SESS_ID_BYTES], uint64_t *ret_number, uint64_t *ret_owner)
{
    uint64_t now = now_ns();
    struct made_way *m;
    struct host *h;

    scoped_lock(&x->lock);
    h = host_of(x, id);
    if (!h)
        h = new_host(x, id);
    if (!h)
        return -ENOMEM;
    m = &h->ways[h->n % WAYS_MAX];
    if (h->n >= WAYS_MAX && now - m->at_ns < WAYS_NS)
        return -EAGAIN;
    h->n++;
    *m = (struct made_way){.way = {.number = PASSED_ON | ++x->last_number}, .shard = UINT32_MAX, .at_ns = now};
    *ret_number = m->way.number;
    *ret_owner = h->owner;
    return 0;
}

/* NULL: it was forgotten, or is another's. Lock held. */
static struct made_way *way_of(struct thirds *x, const uint8_t id[SESS_ID_BYTES], uint64_t number)
{
    struct host *h = host_of(x, id);

    for (uint32_t i = 0; h && i < WAYS_MAX; i++)
        if (h->ways[i].way.number == number)
            return &h->ways[i];
    return NULL;
}

static struct shard *shard_by_id(struct tenant *t, uint32_t id)
{
    tenant_each_shard(t, s)
        if (s->id == id)
            return s;
    return NULL;
}

int thirds_make_way(struct srv *srv, uint32_t tenant, const uint8_t session[SESS_ID_BYTES], uint32_t shard,
                    struct pst_third *ret)
{
    struct tenant *t = srv_tenant(srv, tenant);
    struct shard *s = shard_by_id(t, shard);
    struct made_way *m;
    struct pst_third far;
    uint64_t number, owner;
    int r;

    if (!s)
        return -EINVAL;
    r = reserve(srv->thirds, session, &number, &owner);
    if (r < 0) {
        ctl_refuse(srv->ctl, REFUSE_LIMIT);
        return r;
    }
    r = pst_store_third(t->store, s->spread, owner, &far);
    if (r < 0)
        return r;
    scoped_lock(&srv->thirds->lock);
    m = way_of(srv->thirds, session, number);
    if (!m) { /* the session has ended meanwhile */
        pst_wipe(&far, sizeof far);
        return -ESTALE;
    }
    m->way.far_number = far.number;
    m->way.epoch = far.epoch;
    m->shard = shard;
    *ret = far;
    ret->number = number;
    pst_wipe(&far, sizeof far);
    return 0;
}

/* The way goes into the connection, so that the table is asked for a new one only. */
static bool find_way(struct conn *c, uint64_t number)
{
    struct thirds *x = c->shard->srv->thirds;
    struct made_way *m;

    if (c->way.number == number)
        return true;
    if (!x)
        return false;
    scoped_lock(&x->lock);
    m = way_of(x, sess_id(c->sess), number);
    if (!m || m->shard != c->shard->id)
        return false;
    c->way = m->way;
    return true;
}

static bool pass_on(struct req *r)
{
    struct conn *c = r->conn;
    struct pst_far *f = &r->far;

    if (!find_way(c, r->dp.seg[0].key) || !pst_store_takes_far(c->shard->tenant->store))
        return false;
    *f = (struct pst_far){.number = c->way.far_number,
                          .epoch = c->way.epoch,
                          .tag = r->dp.seg[0].addr,
                          .nsegs = r->dp.nsegs - 1u,
                          .settled = true};
    for (uint32_t i = 0; i < f->nsegs; i++)
        f->seg[i] = (struct pst_far_seg){r->dp.seg[i + 1].addr, r->dp.seg[i + 1].key, r->dp.seg[i + 1].len};
    r->is_far = true;
    return true;
}

bool third_use(struct req *r)
{
    struct conn *c = r->conn;
    uint64_t number = r->dp.seg[0].key;
    bool ok;

    if (number & PASSED_ON) {
        ok = pass_on(r);
    } else {
        r->third = find(c, number);
        if (r->third)
            r->third->reqs++;
        ok = r->third != NULL;
    }
    if (!ok)
        ctl_refuse(c->shard->srv->ctl, REFUSE_THIRD_UNKNOWN);
    return ok;
}

/*
 * One lock for the scheduler: what happens under it takes a fraction of a microsecond. Whoever changes something asks
 * the scheduler what may go now, and puts it into the boxes of the shards that it belongs to. Time passes by itself: a
 * shard that has a request waiting sleeps no longer than until the scheduler's next moment.
 */
#include "turn.h"

#include "data.h"

#include <errno.h>
#include <stdio.h>

#define WINDOW_OPS 64u
#define OP_COST    (16 * KiB) /* what a request costs besides its bytes: some 10 us of a processor, as these */

struct turns {
    pthread_mutex_t lock;
    struct qos q;
};

static struct req *req_of(struct turn *t)
{
    return container_of(t, struct req, turn);
}

int turns_new(uint64_t window_bytes, struct turns **ret)
{
    const struct qos_config cfg = {.window_cost = window_bytes, .window_ops = WINDOW_OPS, .op_cost = OP_COST};
    struct turns *t = calloc(1, sizeof *t);

    if (!t)
        return -ENOMEM;
    pthread_mutex_init(&t->lock, NULL);
    qos_init(&t->q, &cfg);
    *ret = t;
    return 0;
}

void turns_free(struct turns *t)
{
    if (!t)
        return;
    qos_done(&t->q);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* Gives whatever may go to its shard. Needs the lock. */
static void give(struct turns *ts, uint64_t now)
{
    struct qos_item *it;

    while ((it = qos_take(&ts->q, now))) {
        struct turn *t = container_of(it, struct turn, item);
        struct shard *s = req_of(t)->conn->shard;
        t->state = TURN_GIVEN;
        list_push_back(&s->turns.given, &t->link);
        if (!atomic_exchange(&s->turns.any, true) && !pthread_equal(pthread_self(), s->thread))
            shard_poke(s);
    }
}

int turns_add(struct turns *ts, struct share *s, const struct qos_limits *l)
{
    int r;

    scoped_lock(&ts->lock);
    r = qos_tenant_add(&ts->q, &s->t, l, now_ns());
    if (r == 0)
        atomic_store(&s->turns, ts);
    return r;
}

void turns_remove(struct share *s)
{
    struct turns *ts = atomic_load(&s->turns);

    if (!ts)
        return;
    scoped_lock(&ts->lock);
    qos_tenant_remove(&s->t);
    atomic_store(&s->turns, NULL);
    give(ts, now_ns()); /* what its last requests were in the way of */
}

void share_set(struct share *s, const struct qos_limits *l)
{
    struct turns *ts = atomic_load(&s->turns);
    uint64_t now = now_ns();

    scoped_lock(&ts->lock);
    if (qos_tenant_set(&s->t, l, now) == 0) /* else the weight is out of range, which was checked */
        give(ts, now);
}

uint64_t share_reserve(struct share *s, uint64_t ops)
{
    struct turns *ts = atomic_load(&s->turns);

    if (!ts)
        return 0;
    scoped_lock(&ts->lock);
    return qos_reserve(&s->t, ops, 0, now_ns());
}

void share_emit(struct share *s, const char *tenant, pst_stat_fn fn, void *user)
{
    struct turns *ts = atomic_load(&s->turns);
    struct qos_stats st;
    uint64_t queued, inflight;
    char labels[SESS_NAME_MAX + 16];

    if (!ts)
        return;
    pthread_mutex_lock(&ts->lock);
    st = s->t.stats;
    queued = s->t.queued;
    inflight = s->t.inflight_ops;
    pthread_mutex_unlock(&ts->lock);
    snprintf(labels, sizeof labels, "tenant=\"%s\"", tenant);
    fn(user, "penstock_tenant_turns_total", labels, "Requests that were let through to the store.", true,
       (double)st.ops);
    fn(user, "penstock_tenant_turn_bytes_total", labels, "Bytes of requests that were let through to the store.", true,
       (double)st.bytes);
    fn(user, "penstock_tenant_cost_total", labels, "What these cost, in bytes: what shares are measured in.", true,
       (double)st.cost);
    fn(user, "penstock_tenant_throttled_total", labels, "Requests that a rate limit held up.", true,
       (double)st.throttled);
    fn(user, "penstock_tenant_waited_seconds_total", labels, "Time that requests waited for their turn.", true,
       (double)st.waited_ns / 1e9);
    fn(user, "penstock_tenant_waiting", labels, "Requests that wait for their turn.", false, (double)queued);
    fn(user, "penstock_tenant_running", labels, "Requests that are in the store.", false, (double)inflight);
}

/* ---- a shard's ---- */

void turn_box_init(struct turn_box *b)
{
    list_init(&b->given);
}

bool turn_ask(struct req *r, struct share *share, uint64_t bytes)
{
    struct turns *ts = atomic_load_explicit(&share->turns, memory_order_acquire);
    struct turn *t = &r->turn;
    uint64_t now;

    if (!ts)
        return true;
    now = now_ns();
    scoped_lock(&ts->lock);
    *t = (struct turn){.asked = true, .state = TURN_WAITS, .share = share};
    list_init(&t->link);
    qos_put(&share->t, &t->item, bytes, now);
    give(ts, now);
    if (t->state == TURN_GIVEN) { /* no way by the box */
        list_del(&t->link);
        t->state = TURN_RUNS;
        return true;
    }
    r->conn->shard->turns.asking++;
    return false;
}

void turn_end(struct req *r)
{
    struct turn *t = &r->turn;
    struct turns *ts;
    uint64_t now;

    if (!t->asked)
        return;
    t->asked = false;
    now = now_ns();
    ts = t->share->turns;
    scoped_lock(&ts->lock);
    if (t->state != TURN_RUNS)
        r->conn->shard->turns.asking--;
    if (t->state == TURN_WAITS)
        qos_drop(&t->item, now);
    else
        qos_end(&t->share->t, t->item.bytes);
    list_del(&t->link);
    give(ts, now);
}

struct req *turn_next(struct shard *s)
{
    struct turns *ts = atomic_load_explicit(&s->tenant->share.turns, memory_order_acquire);
    struct turn *t;
    struct list *l;

    if (!ts || !atomic_load(&s->turns.any))
        return NULL;
    scoped_lock(&ts->lock);
    l = list_pop_front(&s->turns.given);
    if (!l) {
        atomic_store(&s->turns.any, false);
        return NULL;
    }
    t = list_entry(l, struct turn, link);
    t->state = TURN_RUNS;
    s->turns.asking--;
    return req_of(t);
}

uint64_t turn_deadline(struct shard *s)
{
    struct turns *ts = atomic_load_explicit(&s->tenant->share.turns, memory_order_acquire);

    if (!s->turns.asking)
        return UINT64_MAX;
    scoped_lock(&ts->lock);
    give(ts, now_ns()); /* what time alone has let go */
    return list_empty(&s->turns.given) ? qos_next(&ts->q) : 0;
}

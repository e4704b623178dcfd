/*
 * Virtual time is cost << SHIFT by weight, and wraps: tags of tenants that have requests are within one request's worth
 * of each other (2^40 << 16 for weight 1), so their differences as signed numbers are right. A tag of an idle tenant
 * could fall behind by half the range and seem to lie ahead: `sweep` lifts all tags that are behind, long before.
 *
 *   IDLE --put--> READY --its limit--> THROTTLED --its time--> READY
 *        <---------- the last request went, or dropped -----------
 */
#include "qos_priv.h"

#include <errno.h>
#include <string.h>

#define SHIFT       16
#define SWEEP_EVERY (1ull << 60) /* of virtual time */

static uint64_t tag_of(const struct qos_tenant *t, uint64_t cost)
{
    return (cost << SHIFT) / t->limits.weight;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) > 0 ? a : b;
}

static struct qos_item *first_of(struct qos_tenant *t)
{
    return list_empty(&t->items) ? NULL : list_entry(t->items.next, struct qos_item, link);
}

/* ---- which heap a tenant is in ---- */

static void leave(struct qos_tenant *t)
{
    if (t->state == QOS_READY)
        heap_remove(&t->q->ready, t);
    else if (t->state == QOS_THROTTLED)
        heap_remove(&t->q->throttled, t);
    t->state = QOS_IDLE;
}

/* Takes the first request off the limits, and returns when it may go. */
static uint64_t pay(struct qos_tenant *t, struct qos_item *it, uint64_t now_ns)
{
    uint64_t when = max_u64(bucket_when(&t->bytes, it->bytes, now_ns), bucket_when(&t->ops, 1, now_ns));

    bucket_take(&t->bytes, it->bytes, now_ns);
    bucket_take(&t->ops, 1, now_ns);
    it->paid = true;
    return when;
}

static void refund(struct qos_tenant *t, struct qos_item *it, uint64_t now_ns)
{
    if (!it->paid)
        return;
    bucket_give_back(&t->bytes, it->bytes, now_ns);
    bucket_give_back(&t->ops, 1, now_ns);
    it->paid = false;
}

static void make_ready(struct qos_tenant *t)
{
    t->key = later(t->q->vtime, t->finish);
    t->state = QOS_READY;
    heap_push(&t->q->ready, t);
}

/* Another request is the tenant's first: where does he belong? He is in no heap. */
static void next_request(struct qos_tenant *t, uint64_t now_ns)
{
    struct qos_item *it = first_of(t);
    uint64_t when;

    if (!it)
        return;
    when = pay(t, it, now_ns);
    if (when <= now_ns) {
        make_ready(t);
        return;
    }
    t->stats.throttled += !it->held;
    it->held = true;
    t->key = when;
    t->state = QOS_THROTTLED;
    heap_push(&t->q->throttled, t);
}

static void sweep(struct qos *q)
{
    if (q->vtime - q->swept < SWEEP_EVERY)
        return;
    q->swept = q->vtime;
    for (uint32_t i = 0; i < q->ntenants; i++)
        q->tenants[i]->finish = later(q->tenants[i]->finish, q->vtime);
}

/* ---- set-up ---- */

void qos_init(struct qos *q, const struct qos_config *cfg)
{
    *q = (struct qos){.cfg = *cfg};
    q->ready.wraps = true;
}

void qos_done(struct qos *q)
{
    free(q->ready.v);
    free(q->throttled.v);
    free(q->tenants);
}

static int make_room(struct qos *q)
{
    struct qos_tenant ***arrays[] = {&q->ready.v, &q->throttled.v, &q->tenants};
    uint32_t room = q->room ? 2 * q->room : 8;

    if (q->ntenants < q->room)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(arrays); i++) {
        struct qos_tenant **v = realloc(*arrays[i], room * sizeof(struct qos_tenant *));
        if (!v)
            return -ENOMEM; /* those that grew are only larger than `room` says */
        *arrays[i] = v;
    }
    q->room = room;
    return 0;
}

static uint64_t burst_of(uint64_t burst, uint64_t rate)
{
    return burst ? burst : rate / 10;
}

static bool sane(const struct qos_limits *l)
{
    return l->weight >= 1 && l->weight <= QOS_WEIGHT_MAX;
}

int qos_tenant_add(struct qos *q, struct qos_tenant *t, const struct qos_limits *l, uint64_t now_ns)
{
    int r = sane(l) ? make_room(q) : -EINVAL;

    if (r < 0)
        return r;
    *t = (struct qos_tenant){.q = q, .limits = *l, .finish = q->vtime};
    list_init(&t->items);
    bucket_init(&t->bytes, l->bytes_per_s, burst_of(l->burst_bytes, l->bytes_per_s), now_ns);
    bucket_init(&t->ops, l->ops_per_s, burst_of(l->burst_ops, l->ops_per_s), now_ns);
    q->tenants[q->ntenants++] = t;
    return 0;
}

void qos_tenant_remove(struct qos_tenant *t)
{
    struct qos *q = t->q;

    leave(t);
    q->inflight_cost -= t->inflight_cost;
    q->inflight_ops -= t->inflight_ops;
    for (uint32_t i = 0; i < q->ntenants; i++)
        if (q->tenants[i] == t)
            q->tenants[i] = q->tenants[--q->ntenants];
    t->q = NULL;
}

int qos_tenant_set(struct qos_tenant *t, const struct qos_limits *l, uint64_t now_ns)
{
    if (!sane(l))
        return -EINVAL;
    leave(t);
    if (!list_empty(&t->items))
        refund(t, first_of(t), now_ns);
    t->limits = *l;
    bucket_set(&t->bytes, l->bytes_per_s, burst_of(l->burst_bytes, l->bytes_per_s), now_ns);
    bucket_set(&t->ops, l->ops_per_s, burst_of(l->burst_ops, l->ops_per_s), now_ns);
    /* Its last request's end at the old weight may be far off: a larger weight is felt at once. */
    if ((int64_t)(t->finish - t->q->vtime) > 0)
        t->finish = t->q->vtime;
    next_request(t, now_ns);
    return 0;
}

/* ---- requests ---- */

void qos_put(struct qos_tenant *t, struct qos_item *it, uint64_t bytes, uint64_t now_ns)
{
    *it = (struct qos_item){.tenant = t, .bytes = min_u64(bytes, QOS_BYTES_MAX), .put_ns = now_ns};
    list_push_back(&t->items, &it->link);
    t->queued++;
    if (t->state == QOS_IDLE)
        next_request(t, now_ns);
}

static void unlink_item(struct qos_item *it)
{
    list_del(&it->link);
    it->tenant->queued--;
    it->tenant = NULL;
}

void qos_drop(struct qos_item *it, uint64_t now_ns)
{
    struct qos_tenant *t = it->tenant;
    bool was_first;

    if (!t)
        return;
    was_first = first_of(t) == it;
    if (was_first) {
        leave(t);
        refund(t, it, now_ns);
    }
    unlink_item(it);
    if (was_first)
        next_request(t, now_ns);
}

static void wake_due(struct qos *q, uint64_t now_ns)
{
    while (q->throttled.n > 0 && q->throttled.v[0]->key <= now_ns) {
        struct qos_tenant *t = q->throttled.v[0];
        leave(t);
        make_ready(t);
    }
}

static bool has_room(const struct qos *q, uint64_t bytes)
{
    const struct qos_config *c = &q->cfg;

    if (c->window_ops && q->inflight_ops >= c->window_ops)
        return false;
    return !c->window_cost || q->inflight_cost == 0 || q->inflight_cost + bytes + c->op_cost <= c->window_cost;
}

/* It goes: what it costs in virtual time, and in figures. */
static void charge(struct qos_tenant *t, struct qos_item *it, uint64_t now_ns)
{
    struct qos *q = t->q;
    uint64_t cost = it->bytes + q->cfg.op_cost;

    q->vtime = t->key;
    t->finish = t->key + max_u64(1, tag_of(t, cost));
    t->stats.ops++;
    t->stats.waited_ns += now_ns - it->put_ns;
    t->stats.bytes += it->bytes;
    t->stats.cost += cost;
    q->inflight_cost += cost;
    q->inflight_ops++;
    t->inflight_cost += cost;
    t->inflight_ops++;
}

struct qos_item *qos_take(struct qos *q, uint64_t now_ns)
{
    struct qos_tenant *t;
    struct qos_item *it;

    wake_due(q, now_ns);
    t = q->ready.n > 0 ? q->ready.v[0] : NULL;
    it = t ? first_of(t) : NULL;
    if (!it || !has_room(q, it->bytes))
        return NULL;
    leave(t);
    charge(t, it, now_ns);
    unlink_item(it);
    next_request(t, now_ns);
    sweep(q);
    return it;
}

void qos_end(struct qos_tenant *t, uint64_t bytes)
{
    struct qos *q = t->q;

    q->inflight_cost -= bytes + q->cfg.op_cost;
    q->inflight_ops--;
    t->inflight_cost -= bytes + q->cfg.op_cost;
    t->inflight_ops--;
}

uint64_t qos_next(const struct qos *q)
{
    return q->throttled.n > 0 ? q->throttled.v[0]->key : UINT64_MAX;
}

uint64_t qos_reserve(struct qos_tenant *t, uint64_t ops, uint64_t bytes, uint64_t now_ns)
{
    uint64_t when = 0;

    if (bytes)
        when = bucket_when(&t->bytes, bytes, now_ns);
    if (ops)
        when = max_u64(when, bucket_when(&t->ops, ops, now_ns));
    bucket_take(&t->bytes, bytes, now_ns);
    bucket_take(&t->ops, ops, now_ns);
    t->stats.ops += ops;
    t->stats.bytes += bytes;
    if (when > now_ns) {
        t->stats.throttled += ops;
        t->stats.waited_ns += when - now_ns;
    }
    return when;
}

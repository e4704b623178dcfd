/*
 * Who goes next: weighted fair sharing and rate limits between tenants. Pure: requests and the time in, requests out
 * one after the other, the next moment to look again asked for. No clock, thread or I/O, and no allocation but of a
 * tenant's room.
 *
 * Sharing: start-time fair queueing (Goyal, Vin, Cheng 1996) over what a request costs (its bytes, and `op_cost`
 * besides) by its tenant's weight. Backlogged tenants get the server in proportion to their weights; what one does not
 * use the others have; who asks for less than his share goes next whenever something ends.
 * Window: so much is under way behind the scheduler at once, since what is there is beyond its reach: a newcomer waits
 * for that, and for a request of each other tenant. Requests go as a whole: who wants a short wait bounds their size.
 * Limits: two token buckets a tenant, bytes and requests. Who is over his limit is out of the game until his time
 * comes. A request is paid when it becomes its tenant's next: so it and what is reserved (qos_reserve) have their turns
 * in order.
 *
 * A request's life: qos_put -> qos_take -> qos_end, or qos_put -> qos_drop. An item and a tenant are the caller's
 * memory; they must not go while they are in use here.
 */
#ifndef QOS_QOS_H
#define QOS_QOS_H

#include "base/list.h"
#include "qos/bucket.h"

#define QOS_WEIGHT_MAX 10000u
#define QOS_BYTES_MAX  (1ull << 40) /* of a request */

struct qos_config {
    uint64_t window_cost; /* under way, in bytes and op_cost for each; a single one may be larger. 0: no bound */
    uint32_t window_ops;  /* requests under way; 0: no bound */
    uint32_t op_cost;     /* what a request costs besides its bytes, in bytes */
};

struct qos_limits {
    uint32_t weight;                   /* 1 .. QOS_WEIGHT_MAX */
    uint64_t bytes_per_s, ops_per_s;   /* 0: no limit */
    uint64_t burst_bytes, burst_ops;   /* 0: a tenth of a second's */
};

struct qos_stats {
    uint64_t ops, bytes; /* that went */
    uint64_t cost;       /* of these: what shares are measured in */
    uint64_t throttled;  /* requests that a limit held up */
    uint64_t waited_ns;  /* from qos_put (or for qos_reserve) until it went */
};

struct qos;

enum qos_state { QOS_IDLE, QOS_READY, QOS_THROTTLED };

struct qos_tenant {
    struct qos *q;
    struct list items; /* in order of arrival; the first is paid */
    struct qos_limits limits;
    struct qos_bucket bytes, ops;
    enum qos_state state;
    uint32_t at;      /* in the heap of its state */
    uint64_t finish;  /* virtual time at which its last request ends; wraps */
    uint64_t key;     /* in the heap: virtual start, or the time at which it may go on */
    uint64_t queued, inflight_cost;
    uint32_t inflight_ops;
    struct qos_stats stats;
};

struct qos_item {
    struct list link;
    struct qos_tenant *tenant; /* NULL: not in a queue */
    uint64_t bytes, put_ns;
    bool paid, held; /* paid: it is taken off the limits; held: a limit held it up */
};

/* A heap of tenants by key. */
struct qos_heap {
    struct qos_tenant **v;
    uint32_t n;
    bool wraps; /* keys are compared as differences */
};

struct qos {
    struct qos_config cfg;
    struct qos_heap ready, throttled;
    uint32_t ntenants, room;
    struct qos_tenant **tenants;
    uint64_t vtime, swept;
    uint64_t inflight_cost;
    uint32_t inflight_ops;
};

void qos_init(struct qos *q, const struct qos_config *cfg);
void qos_done(struct qos *q); /* frees the arrays; tenants were removed, or are forgotten */

/* 0, -EINVAL (weight), -ENOMEM. */
int qos_tenant_add(struct qos *q, struct qos_tenant *t, const struct qos_limits *l, uint64_t now_ns);
/* It has no request here; some may be under way, which then need no qos_end. */
void qos_tenant_remove(struct qos_tenant *t);
int qos_tenant_set(struct qos_tenant *t, const struct qos_limits *l, uint64_t now_ns);

/* bytes: at most QOS_BYTES_MAX; 0 is a request as well. The item's memory need not be initialised. */
void qos_put(struct qos_tenant *t, struct qos_item *it, uint64_t bytes, uint64_t now_ns);
/* The next request that may go, out of its queue; NULL: none. */
struct qos_item *qos_take(struct qos *q, uint64_t now_ns);
/* One of so many bytes that went is over. */
void qos_end(struct qos_tenant *t, uint64_t bytes);
/* Out of the queue. Nothing if it is in none. */
void qos_drop(struct qos_item *it, uint64_t now_ns);
/* When qos_take may have something although nothing was put or has ended. UINT64_MAX: never. */
uint64_t qos_next(const struct qos *q);
/*
 * For what is not queued here but counts: takes `ops` and `bytes` off the tenant's limits and tells when it may go: a
 * time not later than now_ns is now. Those that wait are one after the other, as with requests.
 */
uint64_t qos_reserve(struct qos_tenant *t, uint64_t ops, uint64_t bytes, uint64_t now_ns);

#endif

/*
 * Turns: the scheduler (qos/qos.h) between the requests of several tenants and the store. A request has its buffers
 * and, of a write, its bytes when it asks; what it holds meanwhile is its own tenant's. Its turn ends when the store
 * has answered, whether or not the client takes the answer. So who does not read, or does not send what he announced,
 * holds nothing of others.
 *
 * Without limits and with a single tenant there are no turns at all.
 */
#ifndef SERVER_TURN_H
#define SERVER_TURN_H

#include "qos/qos.h"
#include "store/store.h"

#include <stdatomic.h>

struct shard;
struct req;
struct turns;

/* A tenant's part in it. */
struct share {
    struct turns *_Atomic turns; /* NULL: none (yet), everything goes at once */
    struct qos_tenant t; /* under the lock of turns */
};

/* Of a request. All but `asked` under the lock. */
enum turn_state { TURN_WAITS, TURN_GIVEN, TURN_RUNS };
struct turn {
    bool asked; /* the shard's thread only: the rest means something */
    enum turn_state state;
    struct qos_item item;
    struct list link; /* GIVEN: in its shard's box */
    struct share *share;
};

/* Requests that were given their turn, for a shard's thread to fetch. */
struct turn_box {
    struct list given; /* under the lock */
    atomic_bool any;   /* cleared under the lock, when it is empty */
    uint32_t asking;   /* requests of the shard that wait or are in the box; its own thread's */
};

int turns_new(uint64_t window_bytes, struct turns **ret);
/* No shard runs any more. Accepts NULL. */
void turns_free(struct turns *t);
/* 0, -EINVAL, -ENOMEM. The share lives as long as `turns`, or until it is removed. Any thread. */
int turns_add(struct turns *t, struct share *s, const struct qos_limits *l);
/* No shard or control call of it runs any more. Nothing for one that was not added. */
void turns_remove(struct share *s);
/* Other limits from now on; where there are turns. Any thread. */
void share_set(struct share *s, const struct qos_limits *l);
/* Its figures; nothing where there are no turns. */
void share_emit(struct share *s, const char *tenant, pst_stat_fn fn, void *user);
/* When a control call may go: not later than now_ns is now. 0 where there are no turns. */
uint64_t share_reserve(struct share *s, uint64_t ops);

/* ---- for a shard's thread ---- */

void turn_box_init(struct turn_box *b);
/* True: go. False: the request waits, and comes back by turn_next. */
bool turn_ask(struct req *r, struct share *share, uint64_t bytes);
/* The turn is over, or not wanted any more. Harmless without one. */
void turn_end(struct req *r);
/* The next request of this shard that was given its turn, or NULL. */
struct req *turn_next(struct shard *s);
/* When the shard has to look again although nothing happens; UINT64_MAX: never. */
uint64_t turn_deadline(struct shard *s);

#endif

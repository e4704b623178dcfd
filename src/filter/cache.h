/*
 * The cache: a store on top of others that keeps what was read, in blocks of memory of a fixed size, and reads ahead.
 *
 *   cache.c         the store: what is called; figures          cache_queue.c  data operations
 *   cache_table.c   blocks and objects, and what is valid       cache_read.c   reads: what is there, what is fetched
 *   cache_policy.c  what goes when room is needed               cache_ahead.c  who reads in order
 *
 * What is valid. An object's bytes are as of its change counter (pst_attr.change, which grows with every change): the
 * newest that was seen of it, and the newest answer wins. Each answer of the store below that has attributes is such a
 * look, an open above all; one that shows another counter makes all blocks of the object void. Blocks are read after
 * the counter was seen, so they are as of it or newer; if the same counter is seen once more, they are as of it. A look
 * is good for CACHE_AGE_NS, then the next read asks for the counter first (PST_OP_ATTR). Each change through this store
 * makes the object's blocks void when it comes back, before its submitter hears of it; one that failed may have
 * happened, so what was asked for before it came back is no look. What is being fetched meanwhile goes to who waits for
 * it, since it began to wait before, and is not kept. After a crash of the store below, which may have lost changes, a
 * counter may come twice: history (pst_store_history) has to be the same too.
 *
 * One lock, for memory accesses only; bytes are copied outside of it, from pinned blocks.
 */
#ifndef FILTER_CACHE_H
#define FILTER_CACHE_H

#include "filter/filter.h"

#include "cache_policy.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#define CACHE_AGE_NS    NSEC_PER_SEC /* as libpenstock's read-ahead */
#define CACHE_SPAN      (PST_IO_MAX / FILTER_CACHE_BLOCK + 1) /* blocks of a read */
#define CACHE_FETCH     16u /* blocks of a fetch: 1 MiB */
#define CACHE_STREAMS   4u  /* readers of an object that are told apart */
#define CACHE_AHEAD     8u  /* fetches ahead of a queue under way */
#define CACHE_FOREIGN_NS (2 * NSEC_PER_SEC) /* for a fetch of another queue nobody waits longer than twice that */

struct cache_queue;
struct cache_frame;
struct cache_fetch;

/* A reader that goes on from where it was. */
struct cache_stream {
    uint64_t next, ahead; /* the end of what was read, and of what was asked for ahead */
    uint64_t window;
    uint32_t streak;
    uint64_t used; /* when; cache.tick */
};

struct cache_obj {
    struct list link; /* cache.objs */
    uint64_t cont, ino;
    uint64_t change, size, history; /* as of the newest look */
    uint64_t looked_ns;
    bool known; /* false: look before anything is handed out */
    uint64_t doubted_ns; /* what was asked for before it is of before a change, and does not make it known */
    uint32_t opens, users; /* users: fetches */
    uint32_t nblocks;
    struct list blocks;
    struct cache_fetch *asking; /* for the attributes */
    struct cache_stream stream[CACHE_STREAMS];
};

enum cache_state {
    BLOCK_EMPTY,  /* taken, and nobody fetches it yet */
    BLOCK_COMING, /* by `fetch` */
    BLOCK_READY,
    BLOCK_FAILED,
};

struct cache_block {
    struct list hash, of_obj; /* while obj is set */
    struct cache_obj *obj;    /* NULL: void; it is free once it is not pinned */
    uint64_t number;
    uint32_t len; /* less than a block: the file ends there */
    enum cache_state state;
    struct cache_fetch *fetch;
};

struct cache_counts {
    uint64_t hits, misses, passed; /* reads: all was there; something was fetched; went by the cache */
    uint64_t hit_bytes, miss_bytes;
    uint64_t evicted, voided;      /* blocks */
    uint64_t looks;                /* PST_OP_ATTR */
    uint64_t ahead, ahead_used, ahead_wasted; /* blocks */
    uint64_t ahead_failed;         /* fetches */
};

struct cache {
    struct filter f;
    uint8_t *mem;
    uint32_t nblocks;
    uint64_t ahead_max; /* bytes of a reader; 0: none */
    uint64_t age_ns;    /* CACHE_AGE_NS; tests have another */

    pthread_mutex_t lock;
    struct pol pol;
    struct cache_block *blocks;
    struct list *hash, *objs; /* nhash each */
    uint32_t nhash;
    uint64_t tick, nobjs;
    struct cache_counts n;
};

struct cache_cont {
    struct pst_cont c;
    atomic_uint refs; /* the open's, and one of each fetch */
};

static inline struct cache *cache_of(struct pst_store *st)
{
    return container_of(st, struct cache, f.st);
}

static inline struct cache_cont *cache_cont_of(struct pst_cont *c)
{
    return container_of(c, struct cache_cont, c);
}

static inline uint8_t *cache_bytes(const struct cache *c, uint32_t i)
{
    return c->mem + (size_t)i * FILTER_CACHE_BLOCK;
}

void cache_cont_put(struct cache_cont *c);

/* ---- cache_table.c; all under cache.lock ---- */

int cache_table_init(struct cache *c, uint64_t bytes);
void cache_table_done(struct cache *c);
struct cache_obj *cache_find(struct cache *c, uint64_t cont, uint64_t ino);
/* With one more open. NULL: no memory. */
struct cache_obj *cache_opened(struct cache *c, uint64_t cont, uint64_t ino);
void cache_obj_idle(struct cache *c, struct cache_obj *o); /* frees it if nothing holds it */
/* All blocks of the object are void, and what is seen of it counts only if it was asked for at since_ns or later. */
void cache_doubt(struct cache *c, struct cache_obj *o, uint64_t since_ns);
/* A look, which began at asked_ns, under that history. */
void cache_note(struct cache *c, struct cache_obj *o, const struct pst_attr *a, uint64_t asked_ns, uint64_t history);
/* The block, if it is not void; else POL_NONE. */
uint32_t cache_block_find(struct cache *c, const struct cache_obj *o, uint64_t number);
/* A new one, pinned, BLOCK_EMPTY; POL_NONE: there is no room. */
uint32_t cache_block_new(struct cache *c, struct cache_obj *o, uint64_t number, bool ahead);
void cache_block_void(struct cache *c, uint32_t i);
void cache_unpin(struct cache *c, uint32_t i);

/* ---- cache_ahead.c; under cache.lock ---- */

/* [from, to) was asked for: what is to be asked for ahead of it, if anything. */
bool cache_ahead_want(struct cache *c, struct cache_obj *o, uint64_t from, uint64_t to, uint64_t *ret_from,
                      uint64_t *ret_to);
/* Of that, up to here was. */
void cache_ahead_asked(struct cache *c, struct cache_obj *o, uint64_t from, uint64_t to);

/* ---- cache_queue.c, cache_read.c: what is under way ---- */

/* An operation that goes to the store below. */
struct cache_low {
    struct list link; /* of unsent, or unsent_ahead */
    struct pst_op *op;
    void (*back)(struct cache_queue *q, struct cache_low *low);
    bool below;
};

struct cache_frame {
    struct list link; /* free, or done */
    struct list wait; /* fetch.waiters, or queue.woken */
    struct cache_queue *q;
    struct cache_low low; /* while it is passed on */
    struct pst_op *op;
    struct pst_cont *cont;
    void *user;
    uint64_t since;  /* it waits, or is passed on; 0: neither */
    uint64_t history; /* when it was passed on */
    bool foreign;    /* for a fetch of another queue */
    uint32_t tries;
    int err;         /* of a fetch of its own */
    uint64_t first, end; /* block number, byte */
    uint32_t n, at;  /* blocks that it has pinned; the next one to be ready */
    uint32_t pin[CACHE_SPAN];
};

struct cache_fetch {
    struct list link; /* of the queue: free or active */
    struct cache_low low;
    struct pst_op op;
    struct cache_queue *q;
    struct cache_frame *owner; /* who is told of an error; NULL: nobody */
    struct cache_obj *obj;
    struct cache_cont *cont;
    struct pst_cred cred; /* of who asked: may be gone before it is over */
    struct list waiters; /* frames, of any queue */
    bool ahead;
    uint64_t asked_ns, history;
    uint32_t n; /* blocks; 0: attributes */
    uint32_t block[CACHE_FETCH];
    struct iovec iov[CACHE_FETCH];
};

struct cache_queue {
    struct pst_queue q;
    struct cache *c;
    struct pst_queue *next;
    struct cache_frame *frames;
    struct cache_fetch *fetches;
    uint32_t depth, in_flight, below, nfree, nahead, nwaiting;
    struct list free, done;            /* frames */
    struct list unsent, unsent_ahead;  /* struct cache_low */
    struct list fetch_free, fetch_active;
    struct list woken; /* frames whose fetch is over; cache.lock */
    atomic_bool woken_any, signalled;
    int wake, timer, epoll;
    bool timer_set;
};

void cache_queue_ops(struct pst_store_ops *ops);
/* To be sent by the loop that called us. */
void cache_send(struct cache_queue *q, struct cache_low *low, struct pst_op *op,
                void (*back)(struct cache_queue *q, struct cache_low *low));
void cache_pass(struct cache_frame *f);
void cache_done(struct cache_frame *f, int64_t result);
void cache_signal(struct cache_queue *q);

/* A read begins, or goes on after what it waited for. */
void cache_read(struct cache_frame *f);
void cache_read_on(struct cache_frame *f);
/* It waits no longer for what it waits for: drops all that it has. */
void cache_read_leave(struct cache_frame *f);
/* A fetch that is not below is over. */
void cache_fetch_over(struct cache_fetch *x, int64_t result);

#endif

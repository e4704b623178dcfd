#include "slots.h"

#include <string.h>

struct slots {
    pthread_mutex_t lock;
    struct list idle;    /* slots */
    struct list waiters; /* for any slot */
    uint64_t memory, bytes;
    uint32_t n, nbusy;
    struct slot slot[SLOTS_MAX];
};

struct slots *slots_new(uint64_t memory)
{
    struct slots *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    list_init(&s->idle);
    list_init(&s->waiters);
    s->memory = memory;
    s->n = SLOTS_MAX;
    for (uint32_t i = 0; i < s->n; i++) {
        list_init(&s->slot[i].waiters);
        list_push_back(&s->idle, &s->slot[i].link);
    }
    return s;
}

static void drop_bytes(struct slots *s, struct slot *x)
{
    s->bytes -= 2ull * x->size;
    free(x->plain);
    free(x->stored);
    x->plain = x->stored = NULL;
    x->size = 0;
    x->valid = x->has_key = false;
}

void slots_free(struct slots *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        drop_bytes(s, &s->slot[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static bool same(const struct slot_key *a, const struct slot_key *b)
{
    return a->cont == b->cont && a->ino == b->ino && a->chunk == b->chunk;
}

static struct slot *find(struct slots *s, const struct slot_key *k)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->slot[i].has_key && same(&s->slot[i].key, k))
            return &s->slot[i];
    return NULL;
}

/* An idle slot that may be filled anew: one with bytes of that size, or an empty one while memory is left. */
static struct slot *choose(struct slots *s, uint32_t size)
{
    struct slot *empty = NULL;

    list_for_each_safe (it, &s->idle) {
        struct slot *x = list_entry(it, struct slot, link);
        if (!x->size)
            empty = x;
        else if (!x->has_key && x->size == size)
            return x;
    }
    if (empty && s->bytes + 2ull * size <= s->memory)
        return empty;
    list_for_each_safe (it, &s->idle) { /* the longest unused goes, with others until there is room */
        struct slot *x = list_entry(it, struct slot, link);
        if (x->size == size)
            return x;
        if (x->size)
            drop_bytes(s, x);
        if (s->bytes + 2ull * size <= s->memory)
            return x;
    }
    return s->nbusy ? NULL : empty; /* one is always allowed */
}

static int fill(struct slots *s, struct slot *x, uint32_t size)
{
    void *a = NULL, *b = NULL;

    if (x->size == size)
        return 0;
    drop_bytes(s, x);
    if (posix_memalign(&a, 4096, size) || posix_memalign(&b, 4096, size)) {
        free(a);
        return -1;
    }
    x->plain = a;
    x->stored = b;
    x->size = size;
    s->bytes += 2ull * size;
    return 0;
}

static void take(struct slots *s, struct slot *x)
{
    list_del(&x->link);
    x->busy = true;
    s->nbusy++;
}

/* 1: w has its slot, or cannot get one (slot is NULL); 0: it has to wait for any. */
static int take_any(struct slots *s, struct slot_wait *w)
{
    struct slot *x = choose(s, w->chunk_size);

    if (!x)
        return 0;
    if (fill(s, x, w->chunk_size)) {
        w->slot = NULL;
        return s->nbusy ? 0 : 1;
    }
    x->key = w->key;
    x->has_key = true;
    x->valid = false;
    take(s, x);
    w->slot = x;
    return 1;
}

bool slots_take(struct slots *s, struct slot_wait *w)
{
    scoped_lock(&s->lock);
    struct slot *x = find(s, &w->key);

    w->slot = NULL;
    if (x && x->busy) {
        list_push_back(&x->waiters, &w->link);
        return false;
    }
    if (x) {
        take(s, x);
        w->slot = x;
        return true;
    }
    if (!list_empty(&s->waiters) || !take_any(s, w)) {
        list_push_back(&s->waiters, &w->link);
        return false;
    }
    return true;
}

/* Those that wait for any slot, in order; one whose chunk has got a slot meanwhile waits for that. */
static void serve(struct slots *s)
{
    while (!list_empty(&s->waiters)) {
        struct slot_wait *w = list_entry(s->waiters.next, struct slot_wait, link);
        struct slot *x = find(s, &w->key);
        if (x && x->busy) {
            list_del(&w->link);
            list_push_back(&x->waiters, &w->link);
            continue;
        }
        if (x) {
            take(s, x);
            w->slot = x;
        } else if (!take_any(s, w)) {
            return;
        }
        list_del(&w->link);
        w->granted(w);
    }
}

void slots_give(struct slots *s, struct slot *x)
{
    scoped_lock(&s->lock);
    struct list *l = list_pop_front(&x->waiters);

    if (l) {
        struct slot_wait *w = list_entry(l, struct slot_wait, link);
        w->slot = x;
        w->granted(w);
        return;
    }
    x->busy = false;
    s->nbusy--;
    list_push_back(&s->idle, &x->link);
    if (!x->valid)
        x->has_key = false;
    serve(s);
}

uint64_t slots_bytes(struct slots *s)
{
    scoped_lock(&s->lock);
    return s->bytes;
}

/*
 * POSIX record locks and flock locks of one mount, by the rules of fcntl(2) and flock(2): an owner's new record lock
 * replaces its own in that range, adjacent ranges of one kind join; flock and record locks do not see each other.
 * Waiting requests are granted in the order of their arrival as far as nothing conflicts.
 * No I/O, no clock: the caller sends the answers.
 */
#include "fm.h"

#include <errno.h>

#define BUCKETS  256u
#define LOCK_MAX 65536u /* locks and waiting requests of one mount */
#define WALK_MAX 64     /* owners in a chain of waits; longer ones count as no deadlock */

struct held {
    struct list link;
    enum lk_type type;
    uint64_t owner;
    struct lk_range range;
    int32_t pid;
};

struct object {
    struct object *next;
    uint64_t ino;
    struct list held[2]; /* by kind */
    struct list waits;
};

struct lk_table {
    pthread_mutex_t lock;
    struct object *bucket[BUCKETS];
    uint32_t count;
};

struct lk_table *lk_new(void)
{
    struct lk_table *t = calloc(1, sizeof(*t));

    if (t)
        pthread_mutex_init(&t->lock, NULL);
    return t;
}

static void held_free(struct lk_table *t, struct held *h)
{
    list_del(&h->link);
    free(h);
    t->count--;
}

void lk_free(struct lk_table *t)
{
    if (!t)
        return;
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (struct object *o = t->bucket[b], *next; o; o = next) {
            next = o->next;
            for (int k = 0; k < 2; k++)
                list_for_each_safe(it, &o->held[k])
                    held_free(t, list_entry(it, struct held, link));
            free(o);
        }
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static struct object **object_slot(struct lk_table *t, uint64_t ino)
{
    struct object **p = &t->bucket[(ino * 0x9e3779b97f4a7c15ull >> 32) % BUCKETS];

    while (*p && (*p)->ino != ino)
        p = &(*p)->next;
    return p;
}

static struct object *object_get(struct lk_table *t, uint64_t ino)
{
    struct object **p = object_slot(t, ino);
    struct object *o = *p;

    if (o)
        return o;
    o = calloc(1, sizeof(*o));
    if (!o)
        return NULL;
    o->ino = ino;
    list_init(&o->held[LK_POSIX]);
    list_init(&o->held[LK_FLOCK]);
    list_init(&o->waits);
    *p = o;
    return o;
}

static void object_put(struct lk_table *t, struct object *o)
{
    if (!list_empty(&o->held[0]) || !list_empty(&o->held[1]) || !list_empty(&o->waits))
        return;
    *object_slot(t, o->ino) = o->next;
    free(o);
}

static bool overlap(struct lk_range a, struct lk_range b)
{
    return a.start <= b.end && b.start <= a.end;
}

/* The first lock of another owner that stands against this one. */
static struct held *conflict(struct object *o, enum lk_kind kind, enum lk_type type, uint64_t owner,
                             struct lk_range range)
{
    list_for_each(it, &o->held[kind]) {
        struct held *h = list_entry(it, struct held, link);
        if (h->owner != owner && overlap(h->range, range) && (type == LK_WRITE || h->type == LK_WRITE))
            return h;
    }
    return NULL;
}

static struct held *held_new(struct lk_table *t, struct object *o, enum lk_kind kind, const struct held *like)
{
    struct held *h = malloc(sizeof(*h));

    if (!h)
        return NULL;
    *h = *like;
    list_push_back(&o->held[kind], &h->link);
    t->count++;
    return h;
}

/* The owner's locks leave `range`: cut, split or removed. -ENOMEM before any change. */
static int carve(struct lk_table *t, struct object *o, enum lk_kind kind, uint64_t owner, struct lk_range range)
{
    list_for_each_safe(it, &o->held[kind]) {
        struct held *h = list_entry(it, struct held, link);
        if (h->owner != owner || !overlap(h->range, range))
            continue;
        if (h->range.start < range.start && h->range.end > range.end) {
            /* Only one of an owner's locks can reach over both ends, and then it is the only one that overlaps. */
            struct held rest = *h;
            rest.range.start = range.end + 1;
            if (!held_new(t, o, kind, &rest))
                return -ENOMEM;
            h->range.end = range.start - 1;
            return 0;
        }
        if (h->range.start < range.start)
            h->range.end = range.start - 1;
        else if (h->range.end > range.end)
            h->range.start = range.end + 1;
        else
            held_free(t, h);
    }
    return 0;
}

/* Joins the lock with the owner's adjacent ones of its type. */
static void join(struct lk_table *t, struct object *o, enum lk_kind kind, struct held *n)
{
    list_for_each_safe(it, &o->held[kind]) {
        struct held *h = list_entry(it, struct held, link);
        if (h == n || h->owner != n->owner || h->type != n->type)
            continue;
        if (h->range.end != UINT64_MAX && h->range.end + 1 == n->range.start)
            n->range.start = h->range.start;
        else if (n->range.end != UINT64_MAX && n->range.end + 1 == h->range.start)
            n->range.end = h->range.end;
        else
            continue;
        held_free(t, h);
    }
}

static int take(struct lk_table *t, struct object *o, enum lk_kind kind, enum lk_type type, uint64_t owner,
                struct lk_range range, int32_t pid)
{
    struct held like = {.type = type, .owner = owner, .range = range, .pid = pid}, *n;
    int r;

    if (type == LK_NONE)
        return carve(t, o, kind, owner, range);
    n = held_new(t, o, kind, &like); /* first: nothing has changed if there is no memory */
    if (!n)
        return -ENOMEM;
    list_del(&n->link); /* out of carve's sight */
    r = carve(t, o, kind, owner, range);
    list_push_back(&o->held[kind], &n->link);
    if (r) {
        held_free(t, n);
        return r;
    }
    join(t, o, kind, n);
    return 0;
}

/* Requests that can go on now. */
static void grant(struct lk_table *t, struct object *o, struct list *granted)
{
    list_for_each_safe(it, &o->waits) {
        struct lk_wait *w = list_entry(it, struct lk_wait, link);
        if (conflict(o, w->kind, w->type, w->owner, w->range))
            continue;
        w->result = take(t, o, w->kind, w->type, w->owner, w->range, w->pid);
        w->queued = false;
        t->count--;
        list_del(&w->link);
        list_push_back(granted, &w->link);
    }
}

/* The waiting request of an owner, anywhere. */
static struct lk_wait *wait_of(struct lk_table *t, uint64_t owner, struct object **ret_o)
{
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (struct object *o = t->bucket[b]; o; o = o->next)
            list_for_each(it, &o->waits) {
                struct lk_wait *w = list_entry(it, struct lk_wait, link);
                if (w->kind == LK_POSIX && w->owner == owner) {
                    *ret_o = o;
                    return w;
                }
            }
    return NULL;
}

/* Would waiting for `by` close a circle? Follows one blocker per owner, as fcntl's EDEADLK promises no more. */
static bool deadlock(struct lk_table *t, uint64_t owner, const struct held *by)
{
    for (int i = 0; by && i < WALK_MAX; i++) {
        struct object *o;
        struct lk_wait *w;

        if (by->owner == owner)
            return true;
        w = wait_of(t, by->owner, &o);
        by = w ? conflict(o, w->kind, w->type, w->owner, w->range) : NULL;
    }
    return false;
}

int lk_set(struct lk_table *t, uint64_t ino, enum lk_kind kind, enum lk_type type, uint64_t owner,
           struct lk_range range, int32_t pid, struct lk_wait *wait, struct list *granted)
{
    struct object *o;
    struct held *by = NULL;
    int r = 0;
    scoped_lock(&t->lock);

    if (type != LK_NONE && t->count >= LOCK_MAX)
        return -ENOLCK;
    o = object_get(t, ino);
    if (!o)
        return -ENOMEM;
    if (type != LK_NONE) {
        /* flock converts by giving up the old lock first: two upgraders do not wait for each other for ever */
        if (kind == LK_FLOCK)
            carve(t, o, kind, owner, range);
        by = conflict(o, kind, type, owner, range);
    }
    if (!by) {
        r = take(t, o, kind, type, owner, range, pid);
    } else if (!wait) {
        r = -EAGAIN;
    } else if (kind == LK_POSIX && deadlock(t, owner, by)) {
        r = -EDEADLK;
    } else {
        wait->ino = ino;
        wait->kind = kind;
        wait->type = type;
        wait->owner = owner;
        wait->range = range;
        wait->pid = pid;
        wait->queued = true;
        list_push_back(&o->waits, &wait->link);
        t->count++;
        r = 1;
    }
    grant(t, o, granted);
    object_put(t, o);
    return r;
}

enum lk_type lk_test(struct lk_table *t, uint64_t ino, enum lk_type type, uint64_t owner, struct lk_range range,
                     struct lk_range *ret_range, int32_t *ret_pid)
{
    struct object *o;
    struct held *h;
    scoped_lock(&t->lock);

    o = *object_slot(t, ino);
    h = o ? conflict(o, LK_POSIX, type, owner, range) : NULL;
    if (!h)
        return LK_NONE;
    *ret_range = h->range;
    *ret_pid = h->pid;
    return h->type;
}

bool lk_cancel(struct lk_table *t, struct lk_wait *wait)
{
    struct object *o;
    scoped_lock(&t->lock);

    if (!wait->queued)
        return false;
    wait->queued = false;
    list_del(&wait->link);
    t->count--;
    o = *object_slot(t, wait->ino);
    object_put(t, o);
    return true;
}

void lk_drain(struct lk_table *t, struct list *ret_waits)
{
    scoped_lock(&t->lock);

    for (uint32_t b = 0; b < BUCKETS; b++)
        for (struct object *o = t->bucket[b], *next; o; o = next) {
            next = o->next;
            list_for_each_safe(it, &o->waits) {
                struct lk_wait *w = list_entry(it, struct lk_wait, link);
                w->queued = false;
                w->result = -EINTR;
                t->count--;
                list_del(&w->link);
                list_push_back(ret_waits, &w->link);
            }
            object_put(t, o);
        }
}

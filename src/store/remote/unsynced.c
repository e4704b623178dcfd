#include "unsynced.h"

#include "base/util.h"

#include <stdlib.h>

struct entry {
    struct list link, order;
    uint64_t key;
    uint64_t history, last; /* of the oldest change, of the newest */
    uint64_t seq;           /* of the newest */
    uint32_t flags;
    bool lost; /* on that list */
    bool told;        /* by a sync of all: */
    uint64_t told_at; /* the changes up to this one, if they are lost */
};

void un_init(struct unsynced *u)
{
    *u = (struct unsynced){0};
    for (size_t i = 0; i < UN_BUCKETS; i++)
        list_init(&u->bucket[i]);
    list_init(&u->names);
    list_init(&u->data);
    list_init(&u->lost);
}

static void drop(struct unsynced *u, struct entry *e)
{
    list_del(&e->link);
    list_del(&e->order);
    u->n--;
    free(e);
}

void un_done(struct unsynced *u)
{
    struct list *lists[] = {&u->names, &u->data, &u->lost};

    for (size_t i = 0; i < 3; i++)
        while (!list_empty(lists[i]))
            drop(u, list_entry(lists[i]->next, struct entry, order));
}

/* FNV-1a, finalised; the highest bit tells it from an object's number. */
uint64_t un_name(uint64_t dir, const void *name, size_t len)
{
    uint64_t h = 0xcbf29ce484222325ull ^ dir * 0x9e3779b97f4a7c15ull;

    for (size_t i = 0; i < len; i++)
        h = (h ^ ((const uint8_t *)name)[i]) * 0x100000001b3ull;
    h = (h ^ (h >> 32)) * 0xff51afd7ed558ccdull;
    return (h ^ (h >> 29)) | 1ull << 63;
}

static struct list *bucket(struct unsynced *u, uint64_t key)
{
    return &u->bucket[(key * 0x9e3779b97f4a7c15ull >> 40) % UN_BUCKETS];
}

static struct entry *find(struct unsynced *u, uint64_t key)
{
    list_for_each (it, bucket(u, key)) {
        struct entry *e = list_entry(it, struct entry, link);
        if (e->key == key)
            return e;
    }
    return NULL;
}

/* Is there a loss that no sync of all has told? */
static bool untold(const struct entry *e, uint64_t history)
{
    return e->told ? e->seq > e->told_at && e->last != history : e->history != history;
}

/* What does not fit is remembered as one: the next sync of anything tells of it. */
static void forget(struct unsynced *u, uint64_t history)
{
    if (!u->forgotten)
        u->forgotten = history;
    u->forgot_at = u->seq;
}

static bool all_told(const struct entry *e)
{
    return e->told && e->told_at >= e->seq;
}

static void make_room(struct unsynced *u)
{
    struct list *l = &u->lost;
    struct entry *e;

    if (list_empty(l) || !all_told(list_entry(l->next, struct entry, order))) {
        struct list *n = &u->names, *d = &u->data;
        bool older = !list_empty(n) && (list_empty(d) || list_entry(n->next, struct entry, order)->seq <
                                                             list_entry(d->next, struct entry, order)->seq);
        l = older ? n : !list_empty(d) ? d : l;
    }
    e = list_entry(l->next, struct entry, order);
    if (!all_told(e))
        forget(u, e->told ? e->last : e->history);
    drop(u, e);
}

/* What is lost stays so until it is told. */
static void place(struct unsynced *u, struct entry *e, bool lost)
{
    e->lost |= lost || e->history != e->last;
    list_del(&e->order);
    list_push_back(e->lost ? &u->lost : e->flags & UN_DATA ? &u->data : &u->names, &e->order);
}

void un_note(struct unsynced *u, uint64_t key, uint64_t history, uint32_t flags)
{
    struct entry *e = find(u, key);

    u->seq++;
    if (!e) {
        if (u->n == UN_MAX)
            make_room(u);
        e = calloc(1, sizeof *e);
        if (!e) {
            forget(u, history);
            return;
        }
        u->n++;
        e->key = key;
        e->history = history;
        list_init(&e->order);
        list_push_front(bucket(u, key), &e->link);
    }
    e->last = history;
    e->seq = u->seq;
    e->flags |= flags;
    place(u, e, false);
}

uint64_t un_mark(const struct unsynced *u)
{
    return u->seq;
}

/* Covered by a sync that was sent at `mark`, or told as lost: what was changed since under this history stays. */
static void cover(struct unsynced *u, struct entry *e, uint64_t mark, uint64_t history)
{
    if (e->seq <= mark || e->last != history) {
        drop(u, e);
        return;
    }
    e->history = history;
    e->lost = e->told = false;
    place(u, e, false);
}

static bool forgotten_lost(struct unsynced *u, uint64_t history)
{
    bool lost = u->forgotten && u->forgotten != history;

    if (lost)
        u->forgotten = 0;
    return lost;
}

/* Those at the head of a list that a sync covers. */
static void sweep(struct unsynced *u, struct list *l, uint64_t mark, uint64_t history)
{
    while (!list_empty(l)) {
        struct entry *e = list_entry(l->next, struct entry, order);
        if (e->seq > mark)
            return;
        if (e->history == history) {
            drop(u, e);
        } else {
            place(u, e, true);
        }
    }
}

bool un_synced(struct unsynced *u, uint64_t key, uint64_t mark, uint64_t history)
{
    struct entry *e = find(u, key);
    bool lost = e && e->history != history;

    if (e && (lost || e->seq <= mark))
        cover(u, e, mark, history);
    sweep(u, &u->names, mark, history);
    return forgotten_lost(u, history) || lost;
}

bool un_synced_all(struct unsynced *u, uint64_t mark, uint64_t history)
{
    bool lost = forgotten_lost(u, history);

    sweep(u, &u->names, mark, history);
    sweep(u, &u->data, mark, history);
    if (u->forgotten && u->forgot_at <= mark)
        u->forgotten = 0;
    list_for_each (it, &u->lost) {
        struct entry *e = list_entry(it, struct entry, order);
        lost |= untold(e, history);
        e->told = true;
        e->told_at = e->last == history ? min_u64(e->seq, mark) : e->seq;
    }
    return lost;
}

uint64_t un_new_history(struct unsynced *u, uint64_t history)
{
    struct list *lists[] = {&u->names, &u->data};
    uint64_t moved = 0;

    for (size_t i = 0; i < 2; i++)
        list_for_each_safe (it, lists[i]) {
            struct entry *e = list_entry(it, struct entry, order);
            if (e->history == history)
                continue;
            if (e->flags & UN_MOVED)
                moved = e->history;
            place(u, e, true);
        }
    return moved;
}

void un_lose(struct unsynced *u, uint64_t ino, uint64_t history)
{
    struct entry *e;

    un_note(u, ino, history, UN_DATA);
    e = find(u, ino);
    if (!e)
        return; /* no memory: it counts among the forgotten */
    e->history = history;
    place(u, e, true);
}

void un_found(struct unsynced *u, uint64_t name, uint64_t ino)
{
    struct entry *e = find(u, name);
    uint64_t history;

    if (!e || !e->lost)
        return;
    history = e->history;
    drop(u, e);
    un_lose(u, ino, history);
}

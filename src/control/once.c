/* Which try of a recorded request counts: control/once.h. */
#include "control/once.h"

#include "session_priv.h"

#include <errno.h>

#define PAGE_SLOTS 64u

struct once_slot {
    uint64_t seq, attempt;    /* the newest that was seen */
    uint64_t era;             /* in which that was: tries of a later one are later, however they count */
    const struct once *owner; /* whose request is under way; NULL: nobody's */
    bool stored;              /* the owner is in the store, or may be */
};

struct once_client {
    struct list link; /* sess_table.clients */
    uint32_t refs;    /* by sessions; sess_table.mu */
    uint8_t client[16];
    pthread_mutex_t mu; /* all below, and sess.era */
    uint64_t era;       /* sessions of earlier ones are fenced */
    uint32_t stored;    /* requests that are in the store */
    struct once_slot *page[PST_SLOTS_MAX / PAGE_SLOTS];
};

struct once_client *once_client_get(struct sess_table *t, const uint8_t client[16])
{
    struct once_client *c;

    scoped_lock(&t->mu);
    list_for_each (it, &t->clients) {
        c = list_entry(it, struct once_client, link);
        if (!memcmp(c->client, client, sizeof c->client)) {
            c->refs++;
            return c;
        }
    }
    c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->refs = 1;
    memcpy(c->client, client, sizeof c->client);
    pthread_mutex_init(&c->mu, NULL);
    list_push_back(&t->clients, &c->link);
    return c;
}

void once_client_put(struct sess_table *t, struct once_client *c)
{
    bool last;

    pthread_mutex_lock(&t->mu);
    last = --c->refs == 0;
    if (last)
        list_del(&c->link);
    pthread_mutex_unlock(&t->mu);
    if (!last)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(c->page); i++)
        free(c->page[i]);
    pthread_mutex_destroy(&c->mu);
    free(c);
}

/* Needs mu. NULL: no memory. */
static struct once_slot *slot_of(struct once_client *c, uint32_t slot)
{
    struct once_slot **page = &c->page[slot / PAGE_SLOTS];

    if (!*page)
        *page = calloc(PAGE_SLOTS, sizeof **page);
    return *page ? &(*page)[slot % PAGE_SLOTS] : NULL;
}

static int begin(struct once *o, struct once_client *c, const uint64_t *era, uint32_t slot, uint64_t seq,
                 uint64_t attempt)
{
    struct once_slot *e;

    scoped_lock(&c->mu);
    e = slot < PST_SLOTS_MAX ? slot_of(c, slot) : NULL;
    if (!e)
        return -ENOMEM;
    if (*era < c->era)
        return -ECONNABORTED;
    if (seq < e->seq)
        return -ESTALE;
    if (seq == e->seq && *era == e->era && attempt < e->attempt)
        return -ECONNABORTED;
    e->seq = seq;
    e->attempt = attempt;
    e->era = *era;
    if (e->owner && e->stored)
        return -EAGAIN;
    e->owner = o;
    e->stored = false;
    o->of = c;
    o->slot = slot;
    o->era = *era;
    return 0;
}

/* An origin's table, counted. */
static struct once_client *origin_table(struct sess *s, uint32_t number, uint64_t *ret_era)
{
    struct sess_origin *g;

    scoped_lock(&s->t->mu);
    g = sess_origin_of(s, number);
    if (!g)
        return NULL;
    g->once->refs++;
    *ret_era = g->era;
    return g->once;
}

int once_begin(struct once *o, struct sess *s, uint32_t slot, uint64_t seq, uint64_t attempt)
{
    uint32_t origin = slot >> ONCE_ORIGIN_SHIFT;
    struct once_client *c;
    uint64_t era;
    int r;

    o->t = NULL;
    if (!origin)
        return begin(o, s->once, &s->era, slot, seq, attempt);
    c = origin_table(s, origin, &era);
    if (!c)
        return -ESTALE;
    r = begin(o, c, &era, slot & ((1u << ONCE_ORIGIN_SHIFT) - 1), seq, attempt);
    if (r)
        once_client_put(s->t, c);
    else
        o->t = s->t;
    return r;
}

const uint8_t *once_of(const struct once *o)
{
    return o->of->client;
}

bool once_commit(struct once *o)
{
    struct once_slot *e;

    if (!o->of)
        return true;
    scoped_lock(&o->of->mu);
    e = slot_of(o->of, o->slot);
    if (e->owner != o || o->era < o->of->era)
        return false;
    e->stored = true;
    o->of->stored++;
    return true;
}

static void leave(struct once *o, struct once_client *c)
{
    struct once_slot *e;

    scoped_lock(&c->mu);
    e = slot_of(c, o->slot);
    if (e->owner != o)
        return;
    c->stored -= e->stored;
    e->owner = NULL;
    e->stored = false;
}

void once_end(struct once *o)
{
    struct once_client *c = take_ptr(o->of);

    if (!c)
        return;
    leave(o, c);
    if (o->t)
        once_client_put(o->t, c);
}

uint64_t once_client_fence(struct once_client *c)
{
    scoped_lock(&c->mu);
    return ++c->era;
}

bool once_client_quiet(struct once_client *c)
{
    scoped_lock(&c->mu);
    return c->stored == 0;
}

bool once_client_is_fenced(struct once_client *c, uint64_t era)
{
    scoped_lock(&c->mu);
    return c->era != era;
}

void once_join(struct sess *s)
{
    scoped_lock(&s->once->mu);
    s->era = s->once->era;
}

void once_fence(struct sess *s)
{
    scoped_lock(&s->once->mu);
    s->era = ++s->once->era;
}

bool once_quiet(const struct sess *s)
{
    scoped_lock(&s->once->mu);
    return s->once->stored == 0;
}

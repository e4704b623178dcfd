#include "fm.h"

#include <string.h>

#define SHARDS     64u
#define NOCAP_NS   NSEC_PER_SEC
#define FIRST_SIZE 64u

struct node {
    struct node *next;
    uint64_t ino;
    uint64_t seen;       /* version of the attributes that the kernel was told last; 0: unknown */
    uint64_t seen_at_ns; /* when that became another version; 0: never */
    uint64_t pages;      /* version of the kernel's pages, at least; 0: unknown */
    uint64_t nocap_ns;   /* there was no security.capability at that time; 0: unknown */
    uint32_t opens, writers;
};

struct shard {
    pthread_mutex_t lock;
    struct node **bucket; /* size: a power of two */
    uint32_t size, count;
};

struct fm_nodes {
    bool exclusive;
    struct shard shard[SHARDS];
};

static uint64_t hash(uint64_t ino)
{
    return (ino * 0x9e3779b97f4a7c15ull) >> 16;
}

struct fm_nodes *fm_nodes_new(bool exclusive)
{
    struct fm_nodes *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->exclusive = exclusive;
    for (uint32_t i = 0; i < SHARDS; i++) {
        struct shard *s = &t->shard[i];
        pthread_mutex_init(&s->lock, NULL);
        s->bucket = calloc(FIRST_SIZE, sizeof(struct node *));
        s->size = FIRST_SIZE;
        if (!s->bucket) {
            fm_nodes_free(t);
            return NULL;
        }
    }
    return t;
}

void fm_nodes_free(struct fm_nodes *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < SHARDS && t->shard[i].bucket; i++) {
        struct shard *s = &t->shard[i];
        for (uint32_t b = 0; b < s->size; b++)
            for (struct node *n = s->bucket[b], *next; n; n = next) {
                next = n->next;
                free(n);
            }
        free(s->bucket);
        pthread_mutex_destroy(&s->lock);
    }
    free(t);
}

static struct shard *shard_of(struct fm_nodes *t, uint64_t ino)
{
    return &t->shard[hash(ino) % SHARDS];
}

static struct node **slot(struct shard *s, uint64_t ino)
{
    struct node **p = &s->bucket[(hash(ino) / SHARDS) & (s->size - 1)];

    while (*p && (*p)->ino != ino)
        p = &(*p)->next;
    return p;
}

/* Longer chains are slow, not wrong: no memory is no error. */
static void grow(struct shard *s)
{
    struct node **b = calloc(s->size * 2, sizeof(*b));

    if (!b)
        return;
    for (uint32_t i = 0; i < s->size; i++)
        for (struct node *n = s->bucket[i], *next; n; n = next) {
            struct node **p = &b[(hash(n->ino) / SHARDS) & (s->size * 2 - 1)];
            next = n->next;
            n->next = *p;
            *p = n;
        }
    free(s->bucket);
    s->bucket = b;
    s->size *= 2;
}

/* Under the shard's lock. NULL: not there and not to be created, or no memory. */
static struct node *find(struct shard *s, uint64_t ino, bool create)
{
    struct node **p = slot(s, ino);
    struct node *n = *p;

    if (n || !create)
        return n;
    n = calloc(1, sizeof(*n));
    if (!n)
        return NULL;
    n->ino = ino;
    *p = n;
    if (++s->count > s->size)
        grow(s);
    return n;
}

static void drop(struct shard *s, uint64_t ino)
{
    struct node **p = slot(s, ino);
    struct node *n = *p;

    *p = n->next;
    s->count--;
    free(n);
}

static void seen(struct node *n, uint64_t change)
{
    if (n->seen == change)
        return;
    n->seen_at_ns = n->seen ? now_ns() : 0;
    n->seen = change;
}

void fm_node_seen(struct fm_nodes *t, uint64_t ino, uint64_t change, bool create)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, create);
    if (n)
        seen(n, change);
}

void fm_node_forget(struct fm_nodes *t, uint64_t ino)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    if (n && !n->opens)
        drop(s, ino);
}

struct fm_open_hint fm_node_open(struct fm_nodes *t, uint64_t ino, uint64_t change, bool writable, uint64_t attr_ttl_ns)
{
    struct shard *s = shard_of(t, ino);
    struct fm_open_hint h = {false, true};
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, true);
    if (!n)
        return h;
    h.keep_pages = n->pages && (n->pages == change || t->exclusive);
    /*
     * Two answers with different versions can reach the kernel in the other order. Once one has been the last for
     * longer than an attribute's life, the kernel has no older one.
     */
    h.stale_attrs = n->seen != change || (n->seen_at_ns && now_ns() - n->seen_at_ns <= attr_ttl_ns);
    n->opens++;
    n->writers += writable;
    return h;
}

void fm_node_release(struct fm_nodes *t, uint64_t ino, bool writable)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    if (!n || !n->opens)
        return;
    n->opens--;
    n->writers -= writable && n->writers;
}

void fm_node_pages(struct fm_nodes *t, uint64_t ino, uint64_t change)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    if (n && n->pages < change)
        n->pages = change;
}

bool fm_node_writers(struct fm_nodes *t, uint64_t ino)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    return n && n->writers;
}

bool fm_node_nocap(struct fm_nodes *t, uint64_t ino)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    return n && n->nocap_ns && now_ns() - n->nocap_ns < NOCAP_NS;
}

void fm_node_set_nocap(struct fm_nodes *t, uint64_t ino, bool nocap)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    if (n)
        n->nocap_ns = nocap ? now_ns() : 0;
}

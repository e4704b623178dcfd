#include "fm.h"

#include <string.h>
#include <sys/stat.h>

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
    uint32_t through;        /* handles that use the kernel's pages */
    uint32_t around_writers; /* that go around them, and are no appends */
    bool setid;              /* so were the attributes that came last */
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

void fm_node_seen(struct fm_nodes *t, const struct pst_attr *a, bool create)
{
    struct shard *s = shard_of(t, a->ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, a->ino, create);
    if (!n)
        return;
    n->setid = a->mode & (S_ISUID | S_ISGID);
    if (n->seen == a->change)
        return;
    n->seen_at_ns = n->seen ? now_ns() : 0;
    n->seen = a->change;
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

static bool goes_around(const struct fm_nodes *t, const struct node *n, enum fm_access access)
{
    if (t->exclusive)
        return false;
    return access == FM_APPENDS || n->around_writers || (access == FM_ONLY_WRITES && !n->through);
}

/* Does the handle keep others from using pages? */
static bool writes_around(enum fm_access access, bool around)
{
    return around && (access == FM_WRITES || access == FM_ONLY_WRITES);
}

struct fm_open_hint fm_node_open(struct fm_nodes *t, const struct pst_attr *a, enum fm_access access,
                                 uint64_t attr_ttl_ns)
{
    struct shard *s = shard_of(t, a->ino);
    struct fm_open_hint h = {.stale_attrs = true, .around = access == FM_APPENDS && !t->exclusive};
    uint64_t change = a->change;
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, a->ino, true);
    if (!n)
        return h;
    h.around = goes_around(t, n, access);
    h.keep_pages = n->pages && (n->pages == change || t->exclusive);
    /*
     * Two answers with different versions can reach the kernel in the other order. Once one has been the last for
     * longer than an attribute's life, the kernel has no older one.
     */
    h.stale_attrs = n->seen != change || (n->seen_at_ns && now_ns() - n->seen_at_ns <= attr_ttl_ns);
    n->setid = a->mode & (S_ISUID | S_ISGID);
    n->opens++;
    n->writers += access != FM_READS;
    n->through += !h.around;
    n->around_writers += writes_around(access, h.around);
    return h;
}

void fm_node_release(struct fm_nodes *t, uint64_t ino, enum fm_access access, bool around)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    if (!n || !n->opens)
        return;
    n->opens--;
    n->writers -= access != FM_READS && n->writers;
    n->through -= !around && n->through;
    n->around_writers -= writes_around(access, around) && n->around_writers;
    if (around && access != FM_READS)
        n->pages = 0; /* an open under way may have been told of the version before what it wrote */
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

uint32_t fm_node_privs(struct fm_nodes *t, uint64_t ino)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    if (!n)
        return FM_SETID | FM_CAPABILITY;
    return (n->setid ? FM_SETID : 0) | (n->nocap_ns && now_ns() - n->nocap_ns < NOCAP_NS ? 0 : FM_CAPABILITY);
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

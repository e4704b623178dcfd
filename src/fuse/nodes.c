#include "fm.h"

#include "store/perm.h"

#include <string.h>
#include <sys/stat.h>

#define SHARDS     64u
#define NOCAP_NS   NSEC_PER_SEC
#define FIRST_SIZE 64u
#define RELEASE_NS (100 * NSEC_PER_MSEC) /* of a file that was closed, the kernel says so a little later */

struct node {
    struct node *next;
    uint64_t ino;
    uint64_t seen;       /* version of the attributes that the kernel was told last; 0: unknown */
    uint64_t seen_at_ns; /* when that became another version; 0: never */
    uint64_t pages;      /* version of the kernel's pages, at least; 0: unknown */
    uint64_t nocap_ns;   /* there was no security.capability at that time; 0: unknown */
    uint64_t cap_ns;     /* it was set at that time, or before; 0: not here */
    uint64_t newest;     /* version of the newest attributes that came, */
    bool setid;          /* and whether they had set-id bits that a write takes */
    uint32_t opens, writers;
    uint32_t through;        /* handles that use the kernel's pages */
    uint32_t around_writers; /* that go around them, and are no appends */
    uint32_t closing;        /* of those: that were closed, and not written to since */
};

struct shard {
    pthread_mutex_t lock;
    pthread_cond_t released; /* a handle that wrote around the pages */
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
        pthread_cond_init(&s->released, NULL);
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
        pthread_cond_destroy(&s->released);
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

/* Answers come in any order: an old one says nothing of bits that were set since. */
static void note_setid(struct node *n, const struct pst_attr *a)
{
    if (a->change < n->newest)
        return;
    n->newest = a->change;
    n->setid = a->mode & pst_perm_setid(a->mode);
}

void fm_node_seen(struct fm_nodes *t, const struct pst_attr *a, bool create)
{
    struct shard *s = shard_of(t, a->ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, a->ino, create);
    if (!n)
        return;
    note_setid(n, a);
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

/*
 * Lock held; released meanwhile. What only handles that were closed stand in the way of is about to be free: the kernel
 * tells of the end of a close after its return. Or another process has the same handle open still. Returns the node.
 */
static struct node *wait_for_release(struct shard *s, uint64_t ino, struct node *n)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)RELEASE_NS;
    until.tv_sec += until.tv_nsec / (long)NSEC_PER_SEC;
    until.tv_nsec %= (long)NSEC_PER_SEC;
    while (n && n->around_writers && n->closing == n->around_writers) {
        if (pthread_cond_timedwait(&s->released, &s->lock, &until))
            break;
        n = find(s, ino, true); /* it may have been dropped */
    }
    return find(s, ino, true);
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
    if (n && n->closing)
        n = wait_for_release(s, a->ino, n);
    if (!n)
        return h;
    h.around = goes_around(t, n, access);
    h.keep_pages = n->pages && (n->pages == change || t->exclusive);
    /*
     * Two answers with different versions can reach the kernel in the other order. Once one has been the last for
     * longer than an attribute's life, the kernel has no older one.
     */
    h.stale_attrs = n->seen != change || (n->seen_at_ns && now_ns() - n->seen_at_ns <= attr_ttl_ns);
    note_setid(n, a);
    n->opens++;
    n->writers += access != FM_READS;
    n->through += !h.around;
    n->around_writers += writes_around(access, h.around);
    return h;
}

void fm_node_closing(struct fm_nodes *t, uint64_t ino, bool closing)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    if (!n)
        return;
    if (closing)
        n->closing++;
    else
        n->closing -= n->closing > 0;
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
    if (writes_around(access, around)) {
        n->around_writers -= n->around_writers > 0;
        pthread_cond_broadcast(&s->released);
    }
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

bool fm_node_setid(struct fm_nodes *t, uint64_t ino)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    return !n || n->setid;
}

bool fm_node_cap(struct fm_nodes *t, uint64_t ino)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    return !n || !n->nocap_ns || now_ns() - n->nocap_ns >= NOCAP_NS;
}

void fm_node_set_nocap(struct fm_nodes *t, uint64_t ino, uint64_t asked_ns)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    if (n && asked_ns > n->cap_ns)
        n->nocap_ns = asked_ns;
}

void fm_node_set_cap(struct fm_nodes *t, uint64_t ino)
{
    struct shard *s = shard_of(t, ino);
    struct node *n;
    scoped_lock(&s->lock);

    n = find(s, ino, false);
    if (!n)
        return;
    n->cap_ns = now_ns();
    n->nocap_ns = 0;
}

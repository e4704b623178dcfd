/*
 * The cache of inode records: decoded, committed ones. A reader that missed reads the index without a lock and inserts
 * what it found only if no commit touched the shard since (gen); a commit puts its own records in (cache_apply). So a
 * reader never sees a record older than the last commit that returned.
 */
#include "ns.h"

#include <errno.h>

struct centry {
    struct list lru;     /* of the shard, the most recently used first */
    struct centry *next; /* in the bucket */
    uint64_t cont;
    struct inode i;
};

struct ns_cache {
    struct shard {
        pthread_mutex_t lock;
        struct list lru;
        uint32_t n;
        uint64_t gen; /* grows with every commit that touches the shard */
        uint64_t hits, misses;
        struct centry *buckets[NS_CACHE_ENTRIES];
    } shards[NS_CACHE_SHARDS];
};

static uint64_t cache_hash(uint64_t cont, uint64_t ino)
{
    return (cont * 0x9e3779b97f4a7c15ull ^ ino) * 0xff51afd7ed558ccdull;
}

static struct shard *shard_of(struct ns *ns, uint64_t cont, uint64_t ino)
{
    return &ns->cache->shards[(cache_hash(cont, ino) >> 56) % NS_CACHE_SHARDS];
}

static struct centry **bucket_of(struct shard *s, uint64_t cont, uint64_t ino)
{
    struct centry **p = &s->buckets[(cache_hash(cont, ino) >> 32) % NS_CACHE_ENTRIES];
    while (*p && ((*p)->cont != cont || (*p)->i.a.ino != ino))
        p = &(*p)->next;
    return p;
}

int cache_open(struct ns *ns)
{
    ns->cache = calloc(1, sizeof *ns->cache);
    if (!ns->cache)
        return -ENOMEM;
    for (size_t s = 0; s < NS_CACHE_SHARDS; s++) {
        pthread_mutex_init(&ns->cache->shards[s].lock, NULL);
        list_init(&ns->cache->shards[s].lru);
    }
    return 0;
}

static void entry_remove(struct shard *s, struct centry **p)
{
    struct centry *c = *p;
    *p = c->next;
    list_del(&c->lru);
    inode_done(&c->i);
    free(c);
    s->n--;
}

void cache_close(struct ns *ns)
{
    if (!ns->cache)
        return;
    for (size_t k = 0; k < NS_CACHE_SHARDS; k++) {
        struct shard *s = &ns->cache->shards[k];
        for (size_t b = 0; b < NS_CACHE_ENTRIES; b++)
            while (s->buckets[b])
                entry_remove(s, &s->buckets[b]);
        pthread_mutex_destroy(&s->lock);
    }
    free(ns->cache);
    ns->cache = NULL;
}

int inode_copy(const struct inode *i, struct inode *ret)
{
    char *target = i->target ? strdup(i->target) : NULL;
    if (i->target && !target)
        return -ENOMEM;
    *ret = *i;
    ret->target = target;
    return 0;
}

/* Makes the record of that number this one, taking its target; without memory nothing is cached. */
static void cache_store(struct shard *s, uint64_t cont, struct inode *i)
{
    struct centry **p = bucket_of(s, cont, i->a.ino), *c = *p;

    if (c) {
        inode_done(&c->i);
    } else {
        if (s->n >= NS_CACHE_ENTRIES) {
            struct centry *old = list_entry(s->lru.prev, struct centry, lru);
            entry_remove(s, bucket_of(s, old->cont, old->i.a.ino));
            p = bucket_of(s, cont, i->a.ino);
        }
        c = calloc(1, sizeof *c);
        if (!c)
            return;
        c->cont = cont;
        list_init(&c->lru);
        *p = c;
        s->n++;
    }
    c->i = *i;
    i->target = NULL;
    list_del(&c->lru);
    list_push_front(&s->lru, &c->lru);
}

void cache_forget(struct ns *ns, uint64_t cont, uint64_t ino)
{
    struct shard *s = shard_of(ns, cont, ino);
    scoped_lock(&s->lock);
    struct centry **p = bucket_of(s, cont, ino);
    s->gen++;
    if (*p)
        entry_remove(s, p);
}

void cache_apply(struct ns *ns, struct ns_change *c)
{
    if (c->gone) {
        cache_forget(ns, c->cont, c->i.a.ino);
        return;
    }
    struct shard *s = shard_of(ns, c->cont, c->i.a.ino);
    scoped_lock(&s->lock);
    s->gen++;
    cache_store(s, c->cont, &c->i);
}

int cache_get(struct ns *ns, uint64_t cont, uint64_t ino, struct inode *ret, uint64_t *ret_gen)
{
    struct shard *s = shard_of(ns, cont, ino);
    scoped_lock(&s->lock);
    struct centry *c = *bucket_of(s, cont, ino);

    if (!c) {
        s->misses++;
        *ret_gen = s->gen;
        return 0;
    }
    s->hits++;
    list_del(&c->lru);
    list_push_front(&s->lru, &c->lru);
    int r = inode_copy(&c->i, ret);
    return r ? r : 1;
}

bool cache_takes(const struct inode *i)
{
    return !i->target || i->a.size <= NS_CACHE_TARGET;
}

void cache_insert(struct ns *ns, uint64_t cont, const struct inode *i, uint64_t gen)
{
    struct shard *s = shard_of(ns, cont, i->a.ino);
    struct inode copy;

    if (!cache_takes(i) || inode_copy(i, &copy))
        return;
    pthread_mutex_lock(&s->lock);
    if (s->gen == gen)
        cache_store(s, cont, &copy);
    pthread_mutex_unlock(&s->lock);
    inode_done(&copy);
}

static void cache_sums(struct ns *ns, uint64_t *ret_entries, uint64_t *ret_hits, uint64_t *ret_misses)
{
    uint64_t n = 0, hits = 0, misses = 0;
    for (size_t k = 0; k < NS_CACHE_SHARDS; k++) {
        struct shard *s = &ns->cache->shards[k];
        scoped_lock(&s->lock);
        n += s->n;
        hits += s->hits;
        misses += s->misses;
    }
    *ret_entries = n;
    *ret_hits = hits;
    *ret_misses = misses;
}

void ns_stats(struct engine *e, pst_stat_fn fn, void *user)
{
    struct ns *ns = e->ns;
    uint64_t n, hits, misses;

    if (!ns)
        return;
    cache_sums(ns, &n, &hits, &misses);
    fn(user, "store_inode_cache_entries", "", "inode records in memory", false, (double)n);
    fn(user, "store_inode_cache_hits_total", "", "reads of inode records answered from memory", true, (double)hits);
    fn(user, "store_inode_cache_misses_total", "", "reads of inode records that went to the index", true,
       (double)misses);
    pthread_mutex_lock(&ns->open_lock);
    n = ns->nopens;
    pthread_mutex_unlock(&ns->open_lock);
    fn(user, "store_open_objects", "", "objects that are open", false, (double)n);
}

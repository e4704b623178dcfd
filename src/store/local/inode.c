/*
 * Inode records: codec, cache, numbers.
 *
 * The cache holds decoded records that are committed. A reader that missed reads the index without a lock and inserts
 * what it found only if no commit touched the shard since (gen); a commit puts its own records in (cache_apply). So a
 * reader never sees a record older than the last commit that returned.
 */
#include "ns.h"

#include "base/endian.h"

#include <errno.h>

#define INODE_FORMAT 1u

/* ---- codec ---- */

struct key inode_key(uint64_t cont, uint64_t ino)
{
    struct key k = key_begin(KEY_INODE);
    key_u64(&k, cont);
    key_u64(&k, ino);
    return k;
}

void attr_encode(struct wbuf *w, const struct pst_attr *a)
{
    wbuf_u64(w, a->ino);
    wbuf_u32(w, a->mode);
    wbuf_u32(w, a->nlink);
    wbuf_u32(w, a->uid);
    wbuf_u32(w, a->gid);
    wbuf_u64(w, a->rdev);
    wbuf_u64(w, a->size);
    wbuf_u64(w, a->used);
    wbuf_u64(w, (uint64_t)a->atime_ns);
    wbuf_u64(w, (uint64_t)a->mtime_ns);
    wbuf_u64(w, (uint64_t)a->ctime_ns);
    wbuf_u64(w, (uint64_t)a->btime_ns);
    wbuf_u64(w, a->change);
    wbuf_u32(w, a->chunk_size);
}

void attr_decode(struct rbuf *r, struct pst_attr *ret)
{
    ret->ino = rbuf_u64(r);
    ret->mode = rbuf_u32(r);
    ret->nlink = rbuf_u32(r);
    ret->uid = rbuf_u32(r);
    ret->gid = rbuf_u32(r);
    ret->rdev = rbuf_u64(r);
    ret->size = rbuf_u64(r);
    ret->used = rbuf_u64(r);
    ret->atime_ns = (int64_t)rbuf_u64(r);
    ret->mtime_ns = (int64_t)rbuf_u64(r);
    ret->ctime_ns = (int64_t)rbuf_u64(r);
    ret->btime_ns = (int64_t)rbuf_u64(r);
    ret->change = rbuf_u64(r);
    ret->chunk_size = rbuf_u32(r);
}

void inode_encode(struct wbuf *w, const struct inode *i)
{
    wbuf_u8(w, INODE_FORMAT);
    attr_encode(w, &i->a);
    wbuf_u32(w, i->xattrs);
    if (S_ISDIR(i->a.mode)) {
        wbuf_u64(w, i->parent);
        wbuf_u64(w, i->entries);
        wbuf_u64(w, i->next_cookie);
        wbuf_u64(w, i->digest);
    } else if (S_ISLNK(i->a.mode)) {
        wbuf_blob(w, i->target, strlen(i->target));
    }
}

static bool attr_valid(const struct pst_attr *a, uint64_t ino)
{
    if (a->ino != ino || ino == 0 || (a->mode & ~(S_IFMT | 07777u)) || a->used % PST_BLOCK || a->size > PST_FILE_MAX)
        return false;
    if (a->chunk_size < PST_CHUNK_MIN || a->chunk_size > PST_CHUNK_MAX || !is_pow2(a->chunk_size))
        return false;
    switch (a->mode & S_IFMT) {
    case S_IFDIR:
        return a->nlink != 1 && a->size == 0 && a->used == 0;
    case S_IFREG:
        return a->nlink <= PST_LINK_MAX;
    case S_IFLNK:
        return a->nlink <= PST_LINK_MAX && a->used == 0 && a->size > 0 && a->size <= PST_SYMLINK_MAX;
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFCHR:
    case S_IFBLK:
        return a->nlink <= PST_LINK_MAX && a->used == 0 && a->size == 0;
    default:
        return false;
    }
}

int inode_decode(uint64_t ino, const void *p, size_t n, struct inode *ret)
{
    struct rbuf r = rbuf_of(p, n);
    struct inode i = {0};
    size_t len = 0;
    const void *target = NULL;

    if (rbuf_u8(&r) != INODE_FORMAT)
        return -EBADMSG;
    attr_decode(&r, &i.a);
    i.xattrs = rbuf_u32(&r);
    if (S_ISDIR(i.a.mode)) {
        i.parent = rbuf_u64(&r);
        i.entries = rbuf_u64(&r);
        i.next_cookie = rbuf_u64(&r);
        i.digest = rbuf_u64(&r);
    } else if (S_ISLNK(i.a.mode)) {
        target = rbuf_blob(&r, PST_SYMLINK_MAX, &len);
    }
    if (rbuf_end(&r) || !attr_valid(&i.a, ino) || i.xattrs > NS_XATTRS_MAX)
        return -EBADMSG;
    if (S_ISDIR(i.a.mode) && (i.parent == 0 || i.next_cookie == 0 || i.entries >= i.next_cookie))
        return -EBADMSG;
    if (S_ISLNK(i.a.mode)) {
        if (len != i.a.size || memchr(target, 0, len))
            return -EBADMSG;
        i.target = strndup(target, len);
        if (!i.target)
            return -ENOMEM;
    }
    *ret = i;
    return 0;
}

void inode_done(struct inode *i)
{
    free(i->target);
    i->target = NULL;
}

void inode_touch(struct inode *i, int64_t now, int what)
{
    if (what & TOUCH_M)
        i->a.mtime_ns = now;
    i->a.ctime_ns = now;
    i->a.change++;
}

/* ---- cache ---- */

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

static int inode_copy(const struct inode *i, struct inode *ret)
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

/* 1: ret is a copy of the cached record; 0: not cached, *ret_gen is for cache_insert; -ENOMEM. */
static int cache_get(struct ns *ns, uint64_t cont, uint64_t ino, struct inode *ret, uint64_t *ret_gen)
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

static bool cacheable(const struct inode *i)
{
    return !i->target || i->a.size <= NS_CACHE_TARGET;
}

static void cache_insert(struct ns *ns, uint64_t cont, const struct inode *i, uint64_t gen)
{
    struct shard *s = shard_of(ns, cont, i->a.ino);
    struct inode copy;

    if (!cacheable(i) || inode_copy(i, &copy))
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

/* ---- records ---- */

int inode_get(struct engine *e, uint64_t cont, uint64_t ino, struct inode *ret)
{
    struct key k = inode_key(cont, ino);
    struct wbuf v = {0};
    uint64_t gen = 0;
    int r = e->ns ? cache_get(e->ns, cont, ino, ret, &gen) : 0;

    if (r)
        return r < 0 ? r : 0;
    r = idx_get(e, NULL, &k, &v);
    if (r == 0) {
        r = inode_decode(ino, v.data, v.len, ret);
        if (r == -EBADMSG) {
            log_error("container %llu, object %llu: its record is damaged", (unsigned long long)cont,
                      (unsigned long long)ino);
            e->index_errors++;
            r = -EIO;
        }
    }
    wbuf_done(&v);
    if (r == 0 && e->ns)
        cache_insert(e->ns, cont, ret, gen);
    return r;
}

/* Notes for the cache what the transaction does to a record. */
static void note_change(struct txn *t, uint64_t cont, const struct inode *i, bool gone)
{
    struct ns_txn *n = ns_txn_of(t);

    if (!n) {
        if (txn_engine(t)->ns)
            txn_fail(t, -ENOMEM);
        return; /* a store without a namespace has no cache either */
    }
    void *bigger = realloc(n->changes, (n->nchanges + 1) * sizeof *n->changes);
    if (!bigger) {
        n->err = -ENOMEM;
        return;
    }
    n->changes = bigger;
    struct ns_change *c = &n->changes[n->nchanges];
    *c = (struct ns_change){.cont = cont, .gone = gone || !cacheable(i), .i.a.ino = i->a.ino};
    if (!c->gone && inode_copy(i, &c->i)) {
        n->err = -ENOMEM;
        return;
    }
    n->nchanges++;
}

void inode_put(struct txn *t, uint64_t cont, const struct inode *i)
{
    struct key k = inode_key(cont, i->a.ino);
    struct wbuf w = {0};

    inode_encode(&w, i);
    if (!w.err)
        txn_put(t, &k, w.data, w.len);
    else
        txn_fail(t, w.err);
    wbuf_done(&w);
    note_change(t, cont, i, false);
}

void inode_del(struct txn *t, uint64_t cont, uint64_t ino)
{
    struct key k = inode_key(cont, ino);
    struct inode i = {.a.ino = ino};

    txn_del(t, &k);
    note_change(t, cont, &i, true);
}

/* ---- several at once ---- */

void held_drop(struct held *h)
{
    for (int k = 0; k < h->n; k++)
        inode_done(&h->i[k]);
    if (h->locked)
        eng_unlock_inodes(h->e, h->cont, h->inos, h->n);
    h->locked = false;
    h->n = 0;
}

int held_take(struct held *h, struct engine *e, uint64_t cont, const uint64_t *inos, int n)
{
    memset(h, 0, sizeof *h);
    h->e = e;
    h->cont = cont;
    h->n = n;
    memcpy(h->inos, inos, (size_t)n * sizeof *inos);
    eng_lock_inodes(e, cont, h->inos, n);
    h->locked = true;
    for (int k = 0; k < n; k++) {
        int r = inode_get(e, cont, inos[k], &h->i[k]);
        if (r) {
            held_drop(h);
            return r;
        }
    }
    return 0;
}

/* ---- numbers ---- */

/*
 * Numbers of objects and containers come from one counter. The index holds a mark; numbers below mark + NS_INO_WINDOW
 * may be in use, and none above is handed out before a higher mark is durable. An open after a crash therefore goes on
 * at mark + NS_INO_WINDOW: a number that a client may have seen is not used again, even if its object did not survive.
 * A clean close leaves the exact number and says so.
 */
static struct key ino_key(void)
{
    struct key k = key_begin(KEY_SYSTEM);
    key_bytes(&k, "ino", 3);
    return k;
}

static int ino_write_mark(struct engine *e, uint64_t mark, bool clean)
{
    struct key k = ino_key();
    uint8_t v[9];
    le64 m = put_le64(mark);
    struct txn *t = txn_new(e);
    uint64_t lsn;

    if (!t)
        return -ENOMEM;
    memcpy(v, m.b, 8);
    v[8] = clean;
    txn_put(t, &k, v, sizeof v);
    txn_set_reserved(t); /* a full store opens, so that space can be made */
    int r = txn_commit(t, &lsn);
    return r ? r : eng_sync(e, lsn);
}

int ino_bound(struct engine *e, uint64_t *ret)
{
    struct key k = ino_key();
    struct wbuf v = {0};
    int r = idx_get(e, NULL, &k, &v);

    if (r == 0) {
        struct rbuf rb = rbuf_of(v.data, v.len);
        uint64_t mark = rbuf_u64(&rb);
        bool clean = rbuf_u8(&rb);
        if (rbuf_end(&rb) || mark <= PST_ROOT_INO || mark > UINT64_MAX - NS_INO_WINDOW)
            r = -EIO;
        else
            *ret = clean ? mark : mark + NS_INO_WINDOW;
    }
    wbuf_done(&v);
    return r;
}

int ino_set_bound(struct engine *e, uint64_t next)
{
    return ino_write_mark(e, next, true);
}

int ino_open(struct ns *ns)
{
    uint64_t next = PST_ROOT_INO + 1;
    int r = ino_bound(ns->e, &next);

    if (r == 0 || r == -ENOENT)
        r = ino_write_mark(ns->e, next, false);
    if (r)
        return r;
    ns->next_ino = ns->ino_durable = next;
    return 0;
}

void ino_close(struct ns *ns)
{
    int r = ino_write_mark(ns->e, ns->next_ino, true);
    if (r)
        log_debug("the mark of object numbers was not written: %d", r); /* the next open leaves a gap instead */
}

int ino_new(struct ns *ns, uint64_t *ret)
{
    if (ns->next_ino >= ns->ino_durable + NS_INO_WINDOW) {
        int r = ino_write_mark(ns->e, ns->next_ino, false);
        if (r)
            return r;
        ns->ino_durable = ns->next_ino;
    }
    *ret = ns->next_ino++;
    return 0;
}

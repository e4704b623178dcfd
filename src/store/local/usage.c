/*
 * Space and objects in use, per container and pool: exact at every commit, kept in memory beside their records.
 *
 * usage_add promises: what running transactions add counts against the quotas at once, what they give back only when
 * they are committed. A commit puts the container's new sums into its own record, under ns->commit_lock, so that the
 * log has the records in the order of the sums.
 */
#include "ns.h"

#include "base/endian.h"

#include <errno.h>

struct key usage_key(uint64_t cont)
{
    struct key k = key_begin(KEY_USAGE);
    key_u64(&k, cont);
    return k;
}

void usage_encode(struct wbuf *w, int64_t bytes, int64_t objects)
{
    wbuf_u8(w, 1);
    wbuf_u64(w, (uint64_t)bytes);
    wbuf_u64(w, (uint64_t)objects);
}

int usage_decode(const void *p, size_t n, int64_t *ret_bytes, int64_t *ret_objects)
{
    struct rbuf r = rbuf_of(p, n);
    uint8_t version = rbuf_u8(&r);
    uint64_t bytes = rbuf_u64(&r), objects = rbuf_u64(&r);

    if (rbuf_end(&r) || version != 1 || bytes > INT64_MAX || objects > INT64_MAX || bytes % PST_BLOCK)
        return -EBADMSG;
    *ret_bytes = (int64_t)bytes;
    *ret_objects = (int64_t)objects;
    return 0;
}

/* ---- the tables ---- */

static struct list *cont_bucket(struct ns *ns, uint64_t id)
{
    return &ns->conts[(id * 0x9e3779b97f4a7c15ull >> 32) % NS_CONT_BUCKETS];
}

static struct ns_cont *cont_find_locked(struct ns *ns, uint64_t id)
{
    list_for_each(l, cont_bucket(ns, id))
    {
        struct ns_cont *c = list_entry(l, struct ns_cont, link);
        if (c->id == id)
            return c;
    }
    return NULL;
}

struct ns_cont *cont_find(struct ns *ns, uint64_t id)
{
    scoped_lock(&ns->table_lock);
    return cont_find_locked(ns, id);
}

static struct ns_pool *pool_find_locked(struct ns *ns, const char *label)
{
    list_for_each(l, &ns->pools)
    {
        struct ns_pool *p = list_entry(l, struct ns_pool, link);
        if (!strcmp(p->label, label))
            return p;
    }
    return NULL;
}

struct ns_pool *pool_find(struct ns *ns, const char *label)
{
    scoped_lock(&ns->table_lock);
    return pool_find_locked(ns, label);
}

int pool_add(struct ns *ns, const struct pst_pool_info *info, struct ns_pool **ret)
{
    struct ns_pool *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    memcpy(p->label, info->label, sizeof p->label);
    memcpy(p->uuid, info->uuid, sizeof p->uuid);
    p->quota = info->quota_bytes;
    scoped_lock(&ns->table_lock);
    list_push_back(&ns->pools, &p->link);
    *ret = p;
    return 0;
}

void pool_forget(struct ns *ns, struct ns_pool *p)
{
    scoped_lock(&ns->table_lock);
    for (size_t b = 0; b < NS_CONT_BUCKETS; b++)
        list_for_each(l, &ns->conts[b])
        {
            struct ns_cont *c = list_entry(l, struct ns_cont, link);
            if (c->pool == p)
                c->pool = NULL;
        }
    list_del(&p->link);
    free(p);
}

int cont_add(struct ns *ns, struct ns_pool *pool, const struct pst_cont_info *info, struct ns_cont **ret)
{
    struct ns_cont *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->id = info->id;
    c->pool = pool;
    c->quota = info->props.quota_bytes;
    c->chunk_size = (uint32_t)info->props.chunk_size;
    scoped_lock(&ns->table_lock);
    list_push_back(cont_bucket(ns, c->id), &c->link);
    *ret = c;
    return 0;
}

void cont_pin(struct ns *ns, struct ns_cont *c)
{
    scoped_lock(&ns->table_lock);
    c->pins++;
}

void cont_unpin(struct ns *ns, struct ns_cont *c)
{
    scoped_lock(&ns->table_lock);
    c->pins--;
}

bool cont_idle(struct ns *ns, const struct ns_cont *c)
{
    scoped_lock(&ns->table_lock);
    return c->pins == 0;
}

void cont_forget(struct ns *ns, struct ns_cont *c)
{
    scoped_lock(&ns->table_lock);
    if (c->pool) {
        c->pool->bytes -= c->bytes;
        c->pool->objects -= c->objects;
    }
    list_del(&c->link);
    free(c);
}

/* ---- loading ---- */

static int load_usage(struct ns *ns, struct ns_cont *c)
{
    struct key k = usage_key(c->id);
    struct wbuf v = {0};
    int r = idx_get(ns->e, NULL, &k, &v);

    if (r == 0)
        r = usage_decode(v.data, v.len, &c->bytes, &c->objects);
    wbuf_done(&v);
    if (r) {
        log_error("container %llu: its record of space in use is missing or damaged: run `penstock check --repair`",
                  (unsigned long long)c->id);
        return -EIO;
    }
    if (c->pool) {
        c->pool->bytes += c->bytes;
        c->pool->objects += c->objects;
    }
    return 0;
}

static int load_pool(struct ns *ns, const uint8_t *key, size_t klen, const uint8_t *val, size_t vlen)
{
    char label[PST_LABEL_MAX + 1] = {0};
    struct pst_pool_info info;
    struct ns_pool *p;

    if (klen < 2 || klen - 1 > PST_LABEL_MAX)
        return -EIO;
    memcpy(label, key + 1, klen - 1);
    int r = pool_decode(label, val, vlen, &info);
    return r ? r : pool_add(ns, &info, &p);
}

static int load_cont(struct ns *ns, const uint8_t *key, size_t klen, const uint8_t *val, size_t vlen)
{
    char pool[PST_LABEL_MAX + 1] = {0}, label[PST_LABEL_MAX + 1] = {0};
    struct pst_cont_info info;
    struct ns_cont *c;
    const uint8_t *nul = klen > 1 ? memchr(key + 1, 0, klen - 1) : NULL;
    size_t plen = nul ? (size_t)(nul - key - 1) : 0, llen = nul ? klen - plen - 2 : 0;

    if (!nul || plen > PST_LABEL_MAX || llen == 0 || llen > PST_LABEL_MAX)
        return -EIO;
    memcpy(pool, key + 1, plen);
    memcpy(label, nul + 1, llen);
    int r = cont_decode(pool, label, val, vlen, &info);
    if (r)
        return r;
    struct ns_pool *p = pool_find(ns, pool);
    if (!p) {
        log_error("container %s/%s: its pool is missing", pool, label);
        return -EIO;
    }
    r = cont_add(ns, p, &info, &c);
    if (r)
        return r;
    p->containers++;
    return load_usage(ns, c);
}

static int load_dead(struct ns *ns, const uint8_t *key, size_t klen, const uint8_t *val, size_t vlen)
{
    struct pst_cont_info info = {.props.chunk_size = PST_CHUNK_DEFAULT};
    char pool[PST_LABEL_MAX + 1];
    uint8_t uuid[16];
    struct ns_cont *c;
    be64 id;

    if (klen != 9 || cont_gc_decode(val, vlen, pool, uuid))
        return -EIO;
    memcpy(id.b, key + 1, 8);
    info.id = get_be64(id);
    /* A pool of that label made later is another one. */
    struct ns_pool *p = pool_find(ns, pool);
    if (p && memcmp(p->uuid, uuid, 16) != 0)
        p = NULL;
    int r = cont_add(ns, p, &info, &c);
    if (r)
        return r;
    c->dead = true;
    return load_usage(ns, c);
}

typedef int (*load_fn)(struct ns *ns, const uint8_t *key, size_t klen, const uint8_t *val, size_t vlen);

static int load_all(struct ns *ns, enum key_space space, load_fn fn)
{
    struct key prefix = key_begin(space);
    struct idx_iter *it = idx_iter_new(ns->e, NULL, &prefix, NULL);
    int r;

    if (!it)
        return -ENOMEM;
    while ((r = idx_iter_next(it)) > 0) {
        size_t klen, vlen;
        const uint8_t *k = idx_iter_key(it, &klen), *v = idx_iter_value(it, &vlen);
        r = fn(ns, k, klen, v, vlen);
        if (r)
            break;
    }
    idx_iter_free(it);
    return r == -EBADMSG ? -EIO : r;
}

int usage_load(struct ns *ns)
{
    int r = load_all(ns, KEY_POOL, load_pool);
    if (!r)
        r = load_all(ns, KEY_CONT, load_cont);
    if (!r)
        r = load_all(ns, KEY_CONT_GC, load_dead);
    return r;
}

void usage_unload(struct ns *ns)
{
    for (size_t b = 0; b < NS_CONT_BUCKETS; b++)
        list_for_each_safe(l, &ns->conts[b]) free(list_entry(l, struct ns_cont, link));
    list_for_each_safe(l, &ns->pools) free(list_entry(l, struct ns_pool, link));
}

/* ---- transactions ---- */

struct ns_txn *ns_txn_of(struct txn *t)
{
    struct ns_txn **n = txn_ns(t);
    struct ns *ns = txn_engine(t)->ns;

    if (!*n && ns) {
        *n = calloc(1, sizeof **n);
        if (*n)
            (*n)->ns = ns;
    }
    return *n;
}

/* Whether `add` more bytes fit; the table lock is held. */
static bool over_quota(const struct ns_cont *c, int64_t add)
{
    if (c->quota && (uint64_t)(c->bytes + c->promised + add) > c->quota)
        return true;
    const struct ns_pool *p = c->pool;
    return p && p->quota && (uint64_t)(p->bytes + p->promised + add) > p->quota;
}

int usage_add(struct txn *t, uint64_t cont, int64_t bytes, int64_t objects)
{
    struct ns_txn *n = ns_txn_of(t);
    uint32_t i = 0;

    if (!n)
        return -ENOMEM;
    while (i < n->nusage && n->usage[i].c->id != cont)
        i++;
    if (i == n->nusage) {
        void *bigger = realloc(n->usage, (n->nusage + 1) * sizeof *n->usage);
        if (!bigger)
            return -ENOMEM;
        n->usage = bigger;
    }
    scoped_lock(&n->ns->table_lock);
    struct ns_cont *c = i < n->nusage ? n->usage[i].c : cont_find_locked(n->ns, cont);
    if (!c)
        return -EIO;
    if (bytes > 0 && over_quota(c, bytes))
        return -EDQUOT;
    if (i == n->nusage) {
        memset(&n->usage[i], 0, sizeof n->usage[i]);
        n->usage[i].c = c;
        n->nusage++;
        c->pins++;
    }
    n->usage[i].bytes += bytes;
    n->usage[i].objects += objects;
    if (bytes > 0) {
        n->usage[i].promised += bytes;
        c->promised += bytes;
        if (c->pool)
            c->pool->promised += bytes;
    }
    return 0;
}

/* Drops the reply records of the list that nobody has renewed since. */
static void drop_stale_replies(struct txn *t, struct ns_txn *n)
{
    struct wbuf v = {0};
    for (uint32_t i = 0; i < n->nstale; i++) {
        uint32_t day;
        if (idx_get(n->ns->e, NULL, &n->stale[i], &v) == 0 && reply_day(v.data, v.len, &day) == 0 &&
            day < n->stale_before)
            txn_del(t, &n->stale[i]);
    }
    wbuf_done(&v);
}

/* The new sums of the i-th container, never below zero: a wrong sum must not keep anybody from deleting. */
static void clamp_usage(struct ns_txn *n, uint32_t i)
{
    struct ns_cont *c = n->usage[i].c;

    if (c->bytes + n->usage[i].bytes >= 0 && c->objects + n->usage[i].objects >= 0)
        return;
    if (!c->dead)
        log_error("container %llu: more space is given back than is in use: run `penstock check`",
                  (unsigned long long)c->id);
    if (c->bytes + n->usage[i].bytes < 0)
        n->usage[i].bytes = -c->bytes;
    if (c->objects + n->usage[i].objects < 0)
        n->usage[i].objects = -c->objects;
}

int ns_txn_begin(struct txn *t, struct ns_txn *n)
{
    struct wbuf w = {0};

    if (n->err)
        return n->err;
    pthread_mutex_lock(&n->ns->commit_lock);
    n->locked = true;
    for (uint32_t i = 0; i < n->nusage && !w.err; i++) {
        struct ns_cont *c = n->usage[i].c;
        struct key k = usage_key(c->id);
        clamp_usage(n, i); /* committed sums change under the commit lock only */
        w.len = 0;
        usage_encode(&w, c->bytes + n->usage[i].bytes, c->objects + n->usage[i].objects);
        if (!w.err)
            txn_put(t, &k, w.data, w.len);
    }
    drop_stale_replies(t, n);
    int r = w.err;
    wbuf_done(&w);
    return r;
}

static void settle_usage(struct ns_txn *n, bool committed)
{
    scoped_lock(&n->ns->table_lock);
    for (uint32_t i = 0; i < n->nusage; i++) {
        struct ns_cont *c = n->usage[i].c;
        c->promised -= n->usage[i].promised;
        if (c->pool)
            c->pool->promised -= n->usage[i].promised;
        if (committed) {
            c->bytes += n->usage[i].bytes;
            c->objects += n->usage[i].objects;
            if (c->pool) {
                c->pool->bytes += n->usage[i].bytes;
                c->pool->objects += n->usage[i].objects;
            }
        }
        c->pins--;
    }
}

void ns_txn_end(struct txn *t, struct ns_txn *n, bool committed)
{
    (void)t;
    settle_usage(n, committed);
    for (uint32_t i = 0; i < n->nchanges; i++) {
        if (committed)
            cache_apply(n->ns, &n->changes[i]);
        inode_done(&n->changes[i].i);
    }
    if (n->locked)
        pthread_mutex_unlock(&n->ns->commit_lock);
    free(n->usage);
    free(n->changes);
    free(n->stale);
    free(n);
}

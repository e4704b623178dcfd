/* The cache as a store: every answer with attributes is a look at the object's change counter. */
#include "cache.h"

#include <stdio.h>

/* ---- looks ---- */

/* What was known before a call, whose answer is taken for of that moment at the earliest. */
struct before {
    uint64_t ns, history;
};

static struct before before_call(const struct pst_cont *c)
{
    return (struct before){now_ns(), pst_store_history(c->store->next)};
}

static void looked(struct pst_cont *pc, const struct pst_attr *a, const struct before *b)
{
    struct cache *c = cache_of(pc->store);
    struct cache_obj *o;

    scoped_lock(&c->lock);
    o = cache_find(c, pc->info.id, a->ino);
    if (o)
        cache_note(c, o, a, b->ns, b->history);
}

/* It was changed, and how its answer says; or, on an error, it may have been. */
static void doubt(struct pst_cont *pc, uint64_t ino, int r, const struct before *b)
{
    struct cache *c = cache_of(pc->store);
    struct cache_obj *o;

    scoped_lock(&c->lock);
    o = cache_find(c, pc->info.id, ino);
    if (!o)
        return;
    cache_doubt(c, o, r < 0 ? now_ns() : b->ns);
    cache_obj_idle(c, o);
}

/* One open more, and what it showed. */
static void opened(struct pst_cont *pc, const struct pst_attr *a, const struct before *b)
{
    struct cache *c = cache_of(pc->store);
    struct cache_obj *o;

    scoped_lock(&c->lock);
    o = cache_opened(c, pc->info.id, a->ino); /* without memory: reads go by it */
    if (o)
        cache_note(c, o, a, b->ns, b->history);
}

static int c_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                    struct pst_attr *ret)
{
    const struct before b = before_call(c);
    int r = pst_store_lookup(c->next, ctx, parent, name, ret);

    if (r == 0)
        looked(c, ret, &b);
    return r;
}

static int c_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret)
{
    const struct before b = before_call(c);
    int r = pst_store_getattr(c->next, ctx, ino, ret);

    if (r == 0)
        looked(c, ret, &b);
    return r;
}

static int c_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                     const struct pst_attr *in, struct pst_attr *ret)
{
    const struct before b = before_call(c);
    int r = pst_store_setattr(c->next, ctx, ino, mask, in, ret);

    if (mask & PST_SET_SIZE)
        doubt(c, ino, r, &b);
    if (r == 0)
        looked(c, ret, &b);
    return r;
}

static int c_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  const struct pst_new *in, struct pst_attr *ret, bool *ret_created)
{
    const struct before b = before_call(c);
    int r = pst_store_make(c->next, ctx, parent, name, in, ret, ret_created);

    if (r == 0)
        looked(c, ret, &b);
    return r;
}

static int c_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
                  struct pst_attr *ret)
{
    const struct before b = before_call(c);
    int r = pst_store_link(c->next, ctx, ino, parent, name, ret);

    if (r == 0)
        looked(c, ret, &b);
    return r;
}

struct listing {
    struct pst_cont *c;
    const struct before *b;
    pst_dirent_fn fn;
    void *user;
};

static int listed(const struct pst_dirent *de, void *user)
{
    const struct listing *l = user;

    if (de->attr.ino)
        looked(l->c, &de->attr, l->b);
    return l->fn(de, l->user);
}

static int c_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                     pst_dirent_fn fn, void *user)
{
    const struct before b = before_call(c);
    struct listing l = {c, &b, fn, user};

    return with_attr ? pst_store_readdir(c->next, ctx, ino, cookie, true, listed, &l)
                     : pst_store_readdir(c->next, ctx, ino, cookie, false, fn, user);
}

static int c_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                  struct pst_attr *ret)
{
    const struct before b = before_call(c);
    int r = pst_store_open(c->next, ctx, ino, accmode, trunc, ret);

    if (trunc)
        doubt(c, ino, r, &b);
    if (r == 0)
        opened(c, ret, &b);
    return r;
}

static int c_create(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                    const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created)
{
    const struct before b = before_call(c);
    int r = pst_store_create(c->next, ctx, parent, name, in, accmode, trunc, ret, ret_created);

    if (r)
        return r;
    if (trunc)
        doubt(c, ret->ino, 0, &b);
    opened(c, ret, &b);
    return 0;
}

static void c_release(struct pst_cont *pc, uint64_t ino)
{
    struct cache *c = cache_of(pc->store);

    pthread_mutex_lock(&c->lock);
    {
        struct cache_obj *o = cache_find(c, pc->info.id, ino);
        if (o && o->opens) {
            o->opens--;
            cache_obj_idle(c, o);
        }
    }
    pthread_mutex_unlock(&c->lock);
    pst_store_release(pc->next, ino);
}

/* ---- containers ---- */

void cache_cont_put(struct cache_cont *cc)
{
    if (atomic_fetch_sub(&cc->refs, 1) > 1)
        return;
    pst_cont_close(cc->c.next);
    free(cc);
}

static int c_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                       struct pst_cont **ret)
{
    struct cache_cont *cc = calloc(1, sizeof *cc);
    int r;

    if (!cc)
        return -ENOMEM;
    r = pst_cont_open(st->next, ctx, pool, label, &cc->c.next);
    if (r < 0) {
        free(cc);
        return r;
    }
    atomic_init(&cc->refs, 1);
    cc->c.store = st;
    cc->c.info = cc->c.next->info;
    *ret = &cc->c;
    return 0;
}

/* What is read ahead in it keeps the container below open until that is over. */
static void c_cont_close(struct pst_cont *c)
{
    cache_cont_put(cache_cont_of(c));
}

/* ---- figures ---- */

static void c_stats(struct pst_store *st, pst_stat_fn fn, void *user)
{
    struct cache *c = cache_of(st);
    struct cache_counts n;
    uint64_t used, nobjs;

    pthread_mutex_lock(&c->lock);
    n = c->n;
    used = c->nblocks - c->pol.list[POL_FREE].n;
    nobjs = c->nobjs;
    pthread_mutex_unlock(&c->lock);
    {
        const uint64_t b = FILTER_CACHE_BLOCK;
        const struct {
            const char *name, *labels, *help;
            bool counter;
            uint64_t v;
        } all[] = {
            {"penstock_cache_hits_total", "", "Reads of which all was in the cache", true, n.hits},
            {"penstock_cache_misses_total", "", "Reads of which something was fetched", true, n.misses},
            {"penstock_cache_passed_total", "", "Reads that went by the cache", true, n.passed},
            {"penstock_cache_hit_bytes_total", "", "Bytes of the hits", true, n.hit_bytes},
            {"penstock_cache_miss_bytes_total", "", "Bytes of the misses", true, n.miss_bytes},
            {"penstock_cache_evicted_bytes_total", "", "Given up for others", true, n.evicted * b},
            {"penstock_cache_void_bytes_total", "", "Given up because the file was changed", true, n.voided * b},
            {"penstock_cache_looks_total", "", "Questions for a file's change counter, beside opens", true, n.looks},
            {"penstock_cache_ahead_bytes_total", "result=\"used\"", "Read ahead, and used or not", true,
             n.ahead_used * b},
            {"penstock_cache_ahead_bytes_total", "result=\"wasted\"", "Read ahead, and used or not", true,
             n.ahead_wasted * b},
            {"penstock_cache_ahead_asked_bytes_total", "", "Asked for ahead", true, n.ahead * b},
            {"penstock_cache_ahead_failed_total", "", "Requests ahead that failed", true, n.ahead_failed},
            {"penstock_cache_memory_bytes", "", "Memory for blocks", false, c->nblocks * b},
            {"penstock_cache_used_bytes", "", "Of it in use", false, used * b},
            {"penstock_cache_files", "", "Files that are known", false, nobjs},
        };
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
            fn(user, all[i].name, all[i].labels, all[i].help, all[i].counter, (double)all[i].v);
    }
    pst_store_stats(st->next, fn, user);
}

static void c_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user)
{
    struct cache *c = cache_of(st);
    char text[64];

    pst_store_describe(st->next, fn, user);
    snprintf(text, sizeof text, "%llu MiB", (unsigned long long)(c->nblocks * FILTER_CACHE_BLOCK / MiB));
    fn(user, "cache", text);
    snprintf(text, sizeof text, "%llu KiB", (unsigned long long)(c->ahead_max / KiB));
    fn(user, "cache.read_ahead", c->ahead_max ? text : "off");
}

/* ---- life ---- */

static void c_close(struct pst_store *st)
{
    struct cache *c = cache_of(st);

    pst_store_close(st->next);
    cache_table_done(c);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void filter_cache_memory(struct pst_store *st, void **ret, size_t *ret_len)
{
    struct cache *c = cache_of(st);

    *ret = c->mem;
    *ret_len = (size_t)c->nblocks * FILTER_CACHE_BLOCK;
}

int filter_cache(struct pst_store *next, uint64_t bytes, uint64_t ahead, struct pst_store **ret)
{
    struct cache *c;
    int r;

    if (bytes < FILTER_CACHE_MIN || bytes > FILTER_CACHE_MAX)
        return -EINVAL;
    c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    pthread_mutex_init(&c->lock, NULL);
    r = cache_table_init(c, align_down(bytes, FILTER_CACHE_BLOCK));
    if (r < 0) {
        cache_table_done(c);
        pthread_mutex_destroy(&c->lock);
        free(c);
        return r;
    }
    c->ahead_max = ahead;
    c->age_ns = CACHE_AGE_NS;
    filter_init(&c->f, "cache", next);
    c->f.ops.close = c_close;
    c->f.ops.cont_open = c_cont_open;
    c->f.ops.cont_close = c_cont_close;
    c->f.ops.lookup = c_lookup;
    c->f.ops.getattr = c_getattr;
    c->f.ops.setattr = c_setattr;
    c->f.ops.make = c_make;
    c->f.ops.link = c_link;
    c->f.ops.readdir = c_readdir;
    c->f.ops.open = c_open;
    c->f.ops.create = c_create;
    c->f.ops.release = c_release;
    c->f.ops.stats = c_stats;
    c->f.ops.describe = c_describe;
    c->f.ops.moves_only = true;
    cache_queue_ops(&c->f.ops);
    *ret = &c->f.st;
    return 0;
}

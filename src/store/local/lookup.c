/* Reading the namespace: no locks. Each record read is one that was committed; see inode.c. */
#include "ns.h"

#include "base/endian.h"
#include "store/perm.h"

#include <errno.h>

int local_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret)
{
    struct inode i;
    int r = inode_get(engine_of_cont(c), c->info.id, ino, &i);

    (void)ctx; /* stat(2) asks for no right on the object itself */
    if (r)
        return r;
    *ret = i.a;
    inode_done(&i);
    return 0;
}

/* The directory's attributes, if the caller may do `want` in it. */
static int dir_access(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int want, struct pst_attr *ret)
{
    int r = local_getattr(c, ctx, ino, ret);
    if (r)
        return r;
    return S_ISDIR(ret->mode) ? pst_perm_access(ctx->cred, ret, want) : -ENOTDIR;
}

/* One try: -ESTALE when the entry and the object it names were not there together. */
static int lookup_once(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                       struct pst_attr *ret)
{
    struct dent d;
    struct pst_attr a;
    int r = dir_find(engine_of_cont(c), c->info.id, parent, name, &d);

    if (!r)
        r = local_getattr(c, ctx, d.ino, &a);
    else
        return r;
    if (r == -ENOENT)
        return -ESTALE;
    if (!r && (a.mode & S_IFMT) != d.type)
        r = -EIO;
    if (!r)
        *ret = a;
    return r;
}

/* Removed in between, or the object's record is lost: under the lock the two differ. */
static int lookup_settled(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                          struct pst_attr *ret)
{
    struct engine *e = engine_of_cont(c);

    eng_lock_ns(e);
    int r = lookup_once(c, ctx, parent, name, ret);
    eng_unlock_ns(e);
    if (r != -ESTALE)
        return r;
    log_error("container %llu, directory %llu: '%s' names an object that is missing", (unsigned long long)c->info.id,
              (unsigned long long)parent, name);
    return -EIO;
}

int local_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                 struct pst_attr *ret)
{
    struct pst_attr dir;
    int r = dir_access(c, ctx, parent, X_OK, &dir);

    if (!r)
        r = lookup_once(c, ctx, parent, name, ret);
    return r == -ESTALE ? lookup_settled(c, ctx, parent, name, ret) : r;
}

int local_readlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_target, size_t size)
{
    struct inode i;
    int r = inode_get(engine_of_cont(c), c->info.id, ino, &i);

    (void)ctx;
    if (r)
        return r;
    if (!S_ISLNK(i.a.mode))
        r = -EINVAL;
    else if (i.a.size + 1 > size)
        r = -ERANGE;
    else
        memcpy(ret_target, i.target, i.a.size + 1);
    if (!r)
        r = (int)i.a.size;
    inode_done(&i);
    return r;
}

int local_parent(struct pst_cont *c, uint64_t ino, uint64_t *ret_parent)
{
    struct inode i;
    int r = inode_get(engine_of_cont(c), c->info.id, ino, &i);

    if (r)
        return r;
    if (!S_ISDIR(i.a.mode))
        return inode_done(&i), -ENOTDIR;
    *ret_parent = i.parent;
    return 0;
}

/* ---- listing ---- */

/*
 * Up to NS_READDIR_BATCH entries with cookies >= from. 1: there may be more, 0: that is the end, or -errno, in each
 * case after *ret_n entries. No iterator outlives the call: the receiver may take its time. An entry that stays keeps
 * its cookie, so that no batch misses or repeats it.
 */
static int read_batch(struct engine *e, uint64_t cont, uint64_t dir, uint64_t from, struct pst_dirent *out, int *ret_n)
{
    struct key prefix = key_begin(KEY_COOKIE), first = cookie_key(cont, dir, from);
    struct idx_iter *it;
    int n = 0, r = 1;

    *ret_n = 0;
    key_u64(&prefix, cont);
    key_u64(&prefix, dir);
    it = idx_iter_new(e, NULL, &prefix, &first);
    if (!it)
        return -ENOMEM;
    while (n < NS_READDIR_BATCH && (r = idx_iter_next(it)) > 0) {
        struct dent d;
        size_t klen, vlen;
        const uint8_t *k = idx_iter_key(it, &klen), *v = idx_iter_value(it, &vlen);
        be64 cookie;
        if (klen != 25 || cookie_decode(v, vlen, &d, out[n].name)) {
            r = -EIO;
            break;
        }
        memcpy(cookie.b, k + 17, 8);
        out[n].cookie = get_be64(cookie);
        out[n].ino = d.ino;
        out[n].type = d.type;
        n++;
    }
    idx_iter_free(it);
    if (r < 0)
        log_error("container %llu, directory %llu: an entry is damaged", (unsigned long long)cont,
                  (unsigned long long)dir);
    *ret_n = n;
    return r;
}

/* The attributes of a listed entry. 0, -ENOENT: removed meanwhile, -EIO. */
static int entry_attr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t dir, struct pst_dirent *de)
{
    struct engine *e = engine_of_cont(c);
    struct dent d;
    int r = local_getattr(c, ctx, de->ino, &de->attr);

    if (r != -ENOENT)
        return r;
    eng_lock_ns(e);
    r = dir_find(e, c->info.id, dir, de->name, &d);
    /* A replaced name keeps its cookie and has another object; one that was made anew comes later in the listing. */
    if (!r && d.cookie != de->cookie)
        r = -ENOENT;
    if (!r) {
        de->ino = d.ino;
        de->type = d.type;
        r = local_getattr(c, ctx, d.ino, &de->attr);
        r = r == -ENOENT ? -EIO : r;
    }
    eng_unlock_ns(e);
    return r;
}

int local_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                  pst_dirent_fn fn, void *user)
{
    struct engine *e = engine_of_cont(c);
    struct pst_attr dir;
    int r = dir_access(c, ctx, ino, R_OK, &dir), more, n;

    if (r)
        return r;
    /* Names may be read with R_OK alone, attributes only by who may search (types.h: attr.ino is 0 then). */
    bool may_stat = with_attr && pst_perm_access(ctx->cred, &dir, X_OK) == 0;
    cleanup_free struct pst_dirent *batch = calloc(NS_READDIR_BATCH, sizeof *batch);
    if (!batch)
        return -ENOMEM;
    do {
        if (cookie == UINT64_MAX)
            return 0;
        more = read_batch(e, c->info.id, ino, cookie + 1, batch, &n);
        for (int k = 0; k < n; k++) {
            cookie = batch[k].cookie;
            r = may_stat ? entry_attr(c, ctx, ino, &batch[k]) : 0;
            if (r == -ENOENT)
                continue;
            if (r)
                return r;
            if (fn(&batch[k], user))
                return 0;
        }
    } while (more > 0);
    return more;
}

int local_statfs(struct pst_cont *c, struct pst_statfs *ret)
{
    struct engine *e = engine_of_cont(c);
    struct ns *ns = e->ns;
    uint64_t free_bytes, total;

    alloc_space(e, &free_bytes, &total);
    struct ns_cont *k = cont_find(ns, c->info.id);
    if (!k)
        return -EIO;
    scoped_lock(&ns->table_lock);
    /* The narrowest of store, pool and container. */
    if (k->pool && k->pool->quota) {
        uint64_t used = (uint64_t)(k->pool->bytes + k->pool->promised);
        total = min_u64(total, k->pool->quota);
        free_bytes = min_u64(free_bytes, k->pool->quota > used ? k->pool->quota - used : 0);
    }
    if (k->quota) {
        uint64_t used = (uint64_t)(k->bytes + k->promised);
        total = min_u64(total, k->quota);
        free_bytes = min_u64(free_bytes, k->quota > used ? k->quota - used : 0);
    }
    *ret = (struct pst_statfs){.total_bytes = total, .free_bytes = free_bytes, .objects = (uint64_t)k->objects};
    return 0;
}

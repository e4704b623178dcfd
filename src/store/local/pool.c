/* Pools: a label, a quota, and who may do what with the containers in it. Changes are made under the namespace lock. */
#include "ns.h"

#include "base/rng.h"
#include "store/perm.h"

#include <errno.h>

#define POOL_FORMAT       1u
#define POOL_DEFAULT_MODE 0700u

struct key pool_key(const char *label)
{
    struct key k = key_begin(KEY_POOL);
    key_bytes(&k, label, strlen(label));
    return k;
}

void pool_encode(struct wbuf *w, const struct pst_pool_info *p)
{
    wbuf_u8(w, POOL_FORMAT);
    wbuf_put(w, p->uuid, sizeof p->uuid);
    wbuf_u64(w, p->quota_bytes);
    wbuf_u32(w, p->uid);
    wbuf_u32(w, p->gid);
    wbuf_u32(w, p->mode);
}

int pool_decode(const char *label, const void *p, size_t n, struct pst_pool_info *ret)
{
    struct rbuf r = rbuf_of(p, n);
    struct pst_pool_info info = {0};
    uint8_t format = rbuf_u8(&r);

    rbuf_get(&r, info.uuid, sizeof info.uuid);
    info.quota_bytes = rbuf_u64(&r);
    info.uid = rbuf_u32(&r);
    info.gid = rbuf_u32(&r);
    info.mode = rbuf_u32(&r);
    if (rbuf_end(&r) || format != POOL_FORMAT || info.mode & ~07777u || pst_label_check(label))
        return -EBADMSG;
    strcpy(info.label, label); /* the check bounds it */
    *ret = info;
    return 0;
}

/* The space in use. */
static void pool_sums(struct ns *ns, struct pst_pool_info *info)
{
    struct ns_pool *p = pool_find(ns, info->label);
    if (!p)
        return;
    scoped_lock(&ns->table_lock);
    info->used_bytes = (uint64_t)p->bytes;
    info->objects = (uint64_t)p->objects;
    info->containers = p->containers;
}

/* The caller holds the namespace lock. */
int pool_get(struct engine *e, const char *label, struct pst_pool_info *ret)
{
    struct key k = pool_key(label);
    struct wbuf v = {0};
    int r = idx_get(e, NULL, &k, &v);

    if (!r && pool_decode(label, v.data, v.len, ret)) {
        log_error("pool %s: its record is damaged", label);
        r = -EIO;
    }
    wbuf_done(&v);
    if (!r)
        pool_sums(e->ns, ret);
    return r;
}

int pool_access(const struct pst_ctx *ctx, const struct pst_pool_info *p, int want)
{
    struct pst_attr a = {.mode = S_IFDIR | p->mode, .uid = p->uid, .gid = p->gid};
    return pst_perm_access(ctx->cred, &a, want);
}

/* Who runs the store: root, or the user whose files it is made of. */
static bool is_admin(const struct pst_cred *cred)
{
    return !cred || cred->uid == 0 || cred->uid == geteuid();
}

/* ---- create ---- */

static int pool_commit(struct engine *e, const struct pst_ctx *ctx, const struct pst_pool_info *info)
{
    struct key k = pool_key(info->label);
    struct wbuf w = {0};
    struct ns_pool *p;
    struct txn *t = txn_new(e);

    if (!t)
        return -ENOMEM;
    pool_encode(&w, info);
    if (w.err)
        txn_fail(t, w.err);
    else
        txn_put(t, &k, w.data, w.len);
    reply_record(t, ctx, REPLY_POOL_CREATE, &w);
    wbuf_done(&w);
    /* First in memory, so that nothing can fail after the commit; nobody sees it without the record. */
    int r = pool_add(e->ns, info, &p);
    if (r)
        return txn_drop(t), r;
    r = txn_commit(t, NULL);
    if (r)
        pool_forget(e->ns, p);
    return r;
}

static int create_locked(struct engine *e, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                         struct pst_pool_info *ret)
{
    struct pst_pool_info info = {.quota_bytes = in->quota_bytes, .uid = in->uid, .gid = in->gid,
                                 .mode = in->mode ? in->mode : POOL_DEFAULT_MODE};
    struct wbuf seen = {0};
    int r = reply_seen(e, ctx, REPLY_POOL_CREATE, &seen);

    if (r == 1)
        r = pool_decode(in->label, seen.data, seen.len, ret) ? -EIO : 1;
    wbuf_done(&seen);
    if (r)
        return r < 0 ? r : 0;
    if (!is_admin(ctx->cred))
        return -EPERM;
    if (in->mode & ~0777u)
        return -EINVAL;
    struct pst_pool_info old;
    r = pool_get(e, in->label, &old);
    if (r != -ENOENT)
        return r ? r : -EEXIST;
    memcpy(info.label, in->label, strlen(in->label) + 1);
    rng_uuid(info.uuid);
    r = pool_commit(e, ctx, &info);
    if (!r)
        *ret = info;
    return r;
}

int local_pool_create(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                      struct pst_pool_info *ret)
{
    struct engine *e = engine_of(st);

    eng_lock_ns(e);
    int r = create_locked(e, ctx, in, ret);
    eng_unlock_ns(e);
    return r;
}

/* ---- query, list ---- */

int local_pool_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, struct pst_pool_info *ret)
{
    struct engine *e = engine_of(st);
    struct pst_pool_info info;

    eng_lock_ns(e);
    int r = pool_get(e, pool, &info);
    eng_unlock_ns(e);
    if (!r && pool_access(ctx, &info, R_OK) && pool_access(ctx, &info, X_OK))
        r = -EACCES;
    if (!r)
        *ret = info;
    return r;
}

int label_next(struct engine *e, const struct key *prefix, const char *after, char ret_label[PST_LABEL_MAX + 1],
               struct wbuf *ret)
{
    struct key from = *prefix;
    struct idx_iter *it;

    key_bytes(&from, after, strlen(after));
    key_u8(&from, 0);
    it = idx_iter_new(e, NULL, prefix, &from);
    if (!it)
        return -ENOMEM;
    int r = idx_iter_next(it);
    if (r > 0) {
        size_t klen, vlen;
        const uint8_t *k = idx_iter_key(it, &klen), *v = idx_iter_value(it, &vlen);
        size_t n = klen - prefix->len;
        if (n > PST_LABEL_MAX) {
            r = -EIO;
        } else {
            memcpy(ret_label, k + prefix->len, n);
            ret_label[n] = 0;
            wbuf_put(ret, v, vlen);
            r = ret->err ? ret->err : r;
        }
    }
    idx_iter_free(it);
    return r;
}

/* The first pool whose label is greater; 1, 0 at the end, or -errno. */
static int pool_next(struct engine *e, const char *after, struct pst_pool_info *ret)
{
    struct key prefix = key_begin(KEY_POOL);
    char label[PST_LABEL_MAX + 1];
    struct wbuf v = {0};
    int r = label_next(e, &prefix, after, label, &v);

    if (r > 0 && pool_decode(label, v.data, v.len, ret))
        r = -EIO;
    wbuf_done(&v);
    if (r > 0)
        pool_sums(e->ns, ret);
    return r;
}

int local_pool_list(struct pst_store *st, const struct pst_ctx *ctx, const char *after,
                    int (*fn)(const struct pst_pool_info *, void *), void *user)
{
    struct engine *e = engine_of(st);
    struct pst_pool_info info;
    char label[PST_LABEL_MAX + 1];
    int r;

    if (strlen(after) > PST_LABEL_MAX)
        return -EINVAL;
    strcpy(label, after);
    for (;;) {
        eng_lock_ns(e);
        r = pool_next(e, label, &info);
        eng_unlock_ns(e);
        if (r <= 0)
            return r;
        strcpy(label, info.label);
        if (pool_access(ctx, &info, R_OK) && pool_access(ctx, &info, X_OK))
            continue;
        if (fn(&info, user))
            return 0;
    }
}

/* ---- destroy ---- */

/* fn for each container of the pool, until one fails. */
static int each_cont(struct engine *e, const char *pool, int (*fn)(struct engine *e, const struct pst_cont_info *info))
{
    struct pst_cont_info info;
    char label[PST_LABEL_MAX + 1] = "";
    int r;

    while ((r = cont_next(e, pool, label, &info)) > 0) {
        strcpy(label, info.label);
        r = fn(e, &info);
        if (r)
            break;
    }
    return r;
}

static int busy_cont(struct engine *e, const struct pst_cont_info *info)
{
    return cont_is_busy(e->ns, info->id) ? -EBUSY : 0;
}

/* Each in a transaction of its own: a crash in between leaves the rest. */
static int destroy_cont(struct engine *e, const struct pst_cont_info *info)
{
    const struct pst_ctx none = {0};
    return cont_remove(e, &none, info);
}

static int destroy_locked(struct engine *e, const struct pst_ctx *ctx, const char *pool, bool force)
{
    struct pst_pool_info info;
    struct pst_cont_info first;
    int r = reply_seen(e, ctx, REPLY_POOL_DESTROY, NULL);

    if (r)
        return r < 0 ? r : 0;
    r = pool_get(e, pool, &info);
    if (r)
        return r;
    if (!is_admin(ctx->cred) && ctx->cred->uid != info.uid)
        return -EPERM;
    r = cont_next(e, pool, "", &first);
    if (r > 0)
        r = !force ? -ENOTEMPTY : each_cont(e, pool, busy_cont);
    if (!r)
        r = each_cont(e, pool, destroy_cont);
    if (r)
        return r;
    struct key k = pool_key(pool);
    struct txn *t = txn_new(e);
    if (!t)
        return -ENOMEM;
    txn_set_reserved(t);
    txn_del(t, &k);
    reply_record(t, ctx, REPLY_POOL_DESTROY, NULL);
    r = txn_commit(t, NULL);
    if (!r)
        pool_forget(e->ns, pool_find(e->ns, pool));
    gc_kick(e->ns);
    return r;
}

int local_pool_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force)
{
    struct engine *e = engine_of(st);

    eng_lock_ns(e);
    int r = destroy_locked(e, ctx, pool, force);
    eng_unlock_ns(e);
    return r;
}

/* Containers: a namespace each. Changes are made under the namespace lock. */
#include "ns.h"

#include "base/rng.h"
#include "store/perm.h"

#include <errno.h>

#define CONT_FORMAT    1u
#define CONT_GC_FORMAT 1u

/* ---- keys and records ---- */

struct key cont_key(const char *pool, const char *label)
{
    struct key k = key_begin(KEY_CONT);
    key_bytes(&k, pool, strlen(pool));
    key_u8(&k, 0);
    key_bytes(&k, label, strlen(label));
    return k;
}

struct key cont_id_key(uint64_t id)
{
    struct key k = key_begin(KEY_CONT_ID);
    key_u64(&k, id);
    return k;
}

struct key cont_gc_key(uint64_t id)
{
    struct key k = key_begin(KEY_CONT_GC);
    key_u64(&k, id);
    return k;
}

void cont_encode(struct wbuf *w, const struct pst_cont_info *c)
{
    wbuf_u8(w, CONT_FORMAT);
    wbuf_put(w, c->uuid, sizeof c->uuid);
    wbuf_u64(w, c->id);
    wbuf_u64(w, c->props.chunk_size);
    wbuf_u64(w, c->props.quota_bytes);
    wbuf_u32(w, c->props.uid);
    wbuf_u32(w, c->props.gid);
    wbuf_u32(w, c->props.mode);
    wbuf_u64(w, (uint64_t)c->created_ns);
}

int cont_decode(const char *pool, const char *label, const void *p, size_t n, struct pst_cont_info *ret)
{
    struct rbuf r = rbuf_of(p, n);
    struct pst_cont_info c = {0};
    uint8_t format = rbuf_u8(&r);

    rbuf_get(&r, c.uuid, sizeof c.uuid);
    c.id = rbuf_u64(&r);
    c.props.chunk_size = rbuf_u64(&r);
    c.props.quota_bytes = rbuf_u64(&r);
    c.props.uid = rbuf_u32(&r);
    c.props.gid = rbuf_u32(&r);
    c.props.mode = rbuf_u32(&r);
    c.created_ns = (int64_t)rbuf_u64(&r);
    if (rbuf_end(&r) || format != CONT_FORMAT || pst_label_check(pool) || pst_label_check(label) || c.id == 0)
        return -EBADMSG;
    if (c.props.chunk_size < PST_CHUNK_MIN || c.props.chunk_size > PST_CHUNK_MAX || !is_pow2(c.props.chunk_size) ||
        c.props.mode & ~07777u)
        return -EBADMSG;
    strcpy(c.pool, pool); /* the checks bound them */
    strcpy(c.label, label);
    *ret = c;
    return 0;
}

/* The marker of a destroyed container. */
static void cont_gc_encode(struct wbuf *w, const char *pool, const uint8_t uuid[16])
{
    wbuf_u8(w, CONT_GC_FORMAT);
    wbuf_put(w, uuid, 16);
    wbuf_put(w, pool, strlen(pool));
}

int cont_gc_decode(const void *p, size_t n, char ret_pool[PST_LABEL_MAX + 1], uint8_t ret_uuid[16])
{
    struct rbuf r = rbuf_of(p, n);
    uint8_t format = rbuf_u8(&r);

    rbuf_get(&r, ret_uuid, 16);
    size_t len = rbuf_left(&r);
    const void *pool = rbuf_take(&r, len);
    if (rbuf_end(&r) || format != CONT_GC_FORMAT || len == 0 || len > PST_LABEL_MAX)
        return -EBADMSG;
    memcpy(ret_pool, pool, len);
    ret_pool[len] = 0;
    return 0;
}

static void cont_sums(struct ns *ns, struct pst_cont_info *info)
{
    struct ns_cont *c = cont_find(ns, info->id);
    if (!c)
        return;
    scoped_lock(&ns->table_lock);
    info->used_bytes = (uint64_t)c->bytes;
    info->objects = (uint64_t)c->objects;
}

/* The caller holds the namespace lock. */
int cont_get(struct engine *e, const char *pool, const char *label, struct pst_cont_info *ret)
{
    struct key k = cont_key(pool, label);
    struct wbuf v = {0};
    int r = idx_get(e, NULL, &k, &v);

    if (!r && cont_decode(pool, label, v.data, v.len, ret)) {
        log_error("container %s/%s: its record is damaged", pool, label);
        r = -EIO;
    }
    wbuf_done(&v);
    if (!r)
        cont_sums(e->ns, ret);
    return r;
}

int cont_next(struct engine *e, const char *pool, const char *after, struct pst_cont_info *ret)
{
    struct key prefix = cont_key(pool, "");
    char label[PST_LABEL_MAX + 1];
    struct wbuf v = {0};
    int r = label_next(e, &prefix, after, label, &v);

    if (r > 0 && cont_decode(pool, label, v.data, v.len, ret))
        r = -EIO;
    wbuf_done(&v);
    if (r > 0)
        cont_sums(e->ns, ret);
    return r;
}

/* ---- create ---- */

static void root_init(const struct pst_cont_info *c, struct inode *ret)
{
    *ret = (struct inode){.a = {.ino = PST_ROOT_INO,
                                .mode = S_IFDIR | c->props.mode,
                                .nlink = 2,
                                .uid = c->props.uid,
                                .gid = c->props.gid,
                                .atime_ns = c->created_ns,
                                .mtime_ns = c->created_ns,
                                .ctime_ns = c->created_ns,
                                .btime_ns = c->created_ns,
                                .change = 1,
                                .chunk_size = (uint32_t)c->props.chunk_size},
                          .parent = PST_ROOT_INO,
                          .next_cookie = 1};
}

static void put_records(struct txn *t, const struct pst_ctx *ctx, const struct pst_cont_info *info)
{
    struct key k = cont_key(info->pool, info->label), ik = cont_id_key(info->id);
    struct wbuf w = {0}, names = {0};

    cont_encode(&w, info);
    wbuf_put(&names, info->pool, strlen(info->pool) + 1);
    wbuf_put(&names, info->label, strlen(info->label));
    if (w.err || names.err) {
        txn_fail(t, -ENOMEM);
    } else {
        txn_put(t, &k, w.data, w.len);
        txn_put(t, &ik, names.data, names.len);
    }
    reply_record(t, ctx, REPLY_CONT_CREATE, &w);
    wbuf_done(&w);
    wbuf_done(&names);
}

static int cont_commit(struct engine *e, const struct pst_ctx *ctx, const struct pst_cont_info *info)
{
    struct ns_cont *c;
    struct inode root;
    struct txn *t;
    struct ns_pool *p = pool_find(e->ns, info->pool);

    if (!p)
        return -EIO;
    /* First in memory, so that its usage can be counted; nobody finds it without the record. */
    int r = cont_add(e->ns, p, info, &c);
    if (r)
        return r;
    t = txn_new(e);
    r = t ? usage_add(t, info->id, 0, 1) : -ENOMEM;
    if (r) {
        txn_drop(t);
    } else {
        root_init(info, &root);
        inode_put(t, info->id, &root);
        put_records(t, ctx, info);
        r = txn_commit(t, NULL);
    }
    if (r)
        cont_forget(e->ns, c);
    else
        p->containers++;
    return r;
}

static int create_check(struct engine *e, const struct pst_ctx *ctx, const char *pool, const char *label,
                        const struct pst_cont_props *props)
{
    struct pst_pool_info p;
    struct pst_cont_info old;
    const struct pst_cred *cred = ctx->cred;
    int r = pool_get(e, pool, &p);

    if (!r)
        r = pool_access(ctx, &p, W_OK);
    if (r)
        return r;
    /* As chown: others than root give nothing away. */
    if (cred && cred->uid != 0 && (cred->uid != props->uid || !pst_cred_in_group(cred, props->gid)))
        return -EPERM;
    r = cont_get(e, pool, label, &old);
    return r == -ENOENT ? 0 : r ? r : -EEXIST;
}

static int create_locked(struct engine *e, const struct pst_ctx *ctx, const char *pool, const char *label,
                         const struct pst_cont_props *props, struct pst_cont_info *ret)
{
    struct pst_cont_info info = {.props = *props, .created_ns = wall_ns(), .objects = 1};
    struct wbuf seen = {0};
    int r = reply_seen(e, ctx, REPLY_CONT_CREATE, &seen);

    if (r == 1)
        r = cont_decode(pool, label, seen.data, seen.len, ret) ? -EIO : 1;
    wbuf_done(&seen);
    if (r)
        return r < 0 ? r : 0;
    r = create_check(e, ctx, pool, label, props);
    if (!r)
        r = ino_new(e->ns, 0, &info.id);
    if (r)
        return r;
    strcpy(info.pool, pool);
    strcpy(info.label, label);
    rng_uuid(info.uuid);
    r = cont_commit(e, ctx, &info);
    if (!r)
        *ret = info;
    return r;
}

int local_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                      const struct pst_cont_props *props, struct pst_cont_info *ret)
{
    struct engine *e = engine_of(st);

    eng_lock_ns(e);
    int r = create_locked(e, ctx, pool, label, props, ret);
    eng_unlock_ns(e);
    return r;
}

/* ---- query, list ---- */

int local_cont_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                     struct pst_cont_info *ret)
{
    struct engine *e = engine_of(st);
    struct pst_pool_info p;

    eng_lock_ns(e);
    int r = pool_get(e, pool, &p);
    if (!r && pool_access(ctx, &p, R_OK) && pool_access(ctx, &p, X_OK))
        r = -EACCES;
    if (!r)
        r = cont_get(e, pool, label, ret);
    eng_unlock_ns(e);
    return r;
}

int local_cont_list(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *after,
                    int (*fn)(const struct pst_cont_info *, void *), void *user)
{
    struct engine *e = engine_of(st);
    struct pst_pool_info p;
    struct pst_cont_info info;
    char label[PST_LABEL_MAX + 1];

    if (strlen(after) > PST_LABEL_MAX)
        return -EINVAL;
    strcpy(label, after);
    eng_lock_ns(e);
    int r = pool_get(e, pool, &p);
    eng_unlock_ns(e);
    if (!r)
        r = pool_access(ctx, &p, R_OK);
    while (!r) {
        eng_lock_ns(e);
        int more = cont_next(e, pool, label, &info);
        eng_unlock_ns(e);
        if (more <= 0)
            return more;
        strcpy(label, info.label);
        if (fn(&info, user))
            return 0;
    }
    return r;
}

/* ---- destroy ---- */

int cont_is_busy(struct ns *ns, uint64_t id)
{
    struct ns_cont *c = cont_find(ns, id);
    return c && c->opens > 0;
}

int cont_remove(struct engine *e, const struct pst_ctx *ctx, const struct pst_cont_info *info)
{
    struct ns_cont *c = cont_find(e->ns, info->id);
    struct key k = cont_key(info->pool, info->label), ik = cont_id_key(info->id), gk = cont_gc_key(info->id);
    struct wbuf w = {0};

    if (!c || !c->pool)
        return -EIO;
    if (c->opens)
        return -EBUSY;
    struct txn *t = txn_new(e);
    if (!t)
        return -ENOMEM;
    cont_gc_encode(&w, info->pool, c->pool->uuid);
    txn_set_reserved(t);
    txn_del(t, &k);
    txn_del(t, &ik);
    if (w.err)
        txn_fail(t, w.err);
    else
        txn_put(t, &gk, w.data, w.len);
    reply_record(t, ctx, REPLY_CONT_DESTROY, NULL);
    wbuf_done(&w);
    /* Once it is committed, the background deleter may come to its end with the container at any time. */
    cont_pin(e->ns, c);
    int r = txn_commit(t, NULL);
    if (!r) {
        opens_forget(e->ns, info->id);
        c->dead = true;
        c->pool->containers--;
    }
    cont_unpin(e->ns, c);
    return r;
}

static int destroy_locked(struct engine *e, const struct pst_ctx *ctx, const char *pool, const char *label)
{
    struct pst_pool_info p;
    struct pst_cont_info info;
    int r = reply_seen(e, ctx, REPLY_CONT_DESTROY, NULL);

    if (r)
        return r < 0 ? r : 0;
    r = pool_get(e, pool, &p);
    if (!r)
        r = pool_access(ctx, &p, W_OK);
    if (!r)
        r = cont_get(e, pool, label, &info);
    return r ? r : cont_remove(e, ctx, &info);
}

int local_cont_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label)
{
    struct engine *e = engine_of(st);

    eng_lock_ns(e);
    int r = destroy_locked(e, ctx, pool, label);
    eng_unlock_ns(e);
    if (!r)
        gc_kick(e->ns);
    return r;
}

/* ---- open, close ---- */

int local_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                    struct pst_cont **ret)
{
    struct engine *e = engine_of(st);
    struct pst_pool_info p;
    struct pst_cont *c = calloc(1, sizeof *c);

    if (!c)
        return -ENOMEM;
    c->store = st;
    eng_lock_ns(e);
    int r = pool_get(e, pool, &p);
    if (!r)
        r = pool_access(ctx, &p, X_OK);
    if (!r)
        r = cont_get(e, pool, label, &c->info);
    struct ns_cont *k = r ? NULL : cont_find(e->ns, c->info.id);
    if (k)
        k->opens++;
    else if (!r)
        r = -EIO;
    eng_unlock_ns(e);
    if (r)
        free(c);
    else
        *ret = c;
    return r;
}

void local_cont_close(struct pst_cont *c)
{
    struct engine *e = engine_of_cont(c);

    eng_lock_ns(e);
    struct ns_cont *k = cont_find(e->ns, c->info.id);
    if (k && k->opens)
        k->opens--;
    eng_unlock_ns(e);
    free(c);
}

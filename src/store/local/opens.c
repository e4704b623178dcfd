/*
 * Objects that are open, counted in memory. One whose last name goes while it is open is an orphan (KEY_ORPHAN) until
 * the last release; orphans that a crash left are deleted at the next open of the store.
 */
#include "ns.h"

#include "base/endian.h"
#include "store/perm.h"

#include <errno.h>

struct open_obj {
    struct list link;
    uint64_t cont, ino;
    uint32_t count;
    bool writable; /* some open of it, since it was opened first, was for writing */
};

static struct list *open_bucket(struct ns *ns, uint64_t cont, uint64_t ino)
{
    return &ns->opens[((cont * 0x9e3779b97f4a7c15ull ^ ino) * 0xff51afd7ed558ccdull >> 32) % NS_OPEN_BUCKETS];
}

int opens_open(struct ns *ns)
{
    for (size_t b = 0; b < NS_OPEN_BUCKETS; b++)
        list_init(&ns->opens[b]);
    return 0;
}

void opens_close(struct ns *ns)
{
    for (size_t b = 0; b < NS_OPEN_BUCKETS; b++)
        list_for_each_safe(l, &ns->opens[b]) free(list_entry(l, struct open_obj, link));
}

static struct open_obj *open_find(struct ns *ns, uint64_t cont, uint64_t ino)
{
    list_for_each(l, open_bucket(ns, cont, ino))
    {
        struct open_obj *o = list_entry(l, struct open_obj, link);
        if (o->cont == cont && o->ino == ino)
            return o;
    }
    return NULL;
}

bool object_is_open(struct ns *ns, uint64_t cont, uint64_t ino, bool for_writing)
{
    scoped_lock(&ns->open_lock);
    struct open_obj *o = open_find(ns, cont, ino);
    return o && (!for_writing || o->writable);
}

/* Counts one more; under the inode's lock, so that the object stays until then. */
static int open_count(struct ns *ns, uint64_t cont, uint64_t ino, int accmode)
{
    scoped_lock(&ns->open_lock);
    struct open_obj *o = open_find(ns, cont, ino);
    if (!o) {
        o = calloc(1, sizeof *o);
        if (!o)
            return -ENOMEM;
        o->cont = cont;
        o->ino = ino;
        list_push_back(open_bucket(ns, cont, ino), &o->link);
        ns->nopens++;
    }
    o->count++;
    if (accmode & W_OK)
        o->writable = true;
    return 0;
}

/* True when that was the last one. */
static bool open_uncount(struct ns *ns, uint64_t cont, uint64_t ino)
{
    scoped_lock(&ns->open_lock);
    struct open_obj *o = open_find(ns, cont, ino);
    if (!o)
        return false;
    if (--o->count)
        return false;
    list_del(&o->link);
    free(o);
    ns->nopens--;
    return true;
}

void opens_forget(struct ns *ns, uint64_t cont)
{
    scoped_lock(&ns->open_lock);
    for (size_t b = 0; b < NS_OPEN_BUCKETS; b++)
        list_for_each_safe(l, &ns->opens[b])
        {
            struct open_obj *o = list_entry(l, struct open_obj, link);
            if (o->cont == cont) {
                list_del(&o->link);
                free(o);
                ns->nopens--;
            }
        }
}

/* ---- objects without names ---- */

struct key orphan_key(uint64_t cont, uint64_t ino)
{
    struct key k = key_begin(KEY_ORPHAN);
    key_u64(&k, cont);
    key_u64(&k, ino);
    return k;
}

/* Their number is bounded by NS_XATTRS_MAX. *ret_space: what they counted for. */
static int delete_xattrs(struct txn *t, uint64_t cont, uint64_t ino, int64_t *ret_space)
{
    struct key prefix = key_begin(KEY_XATTR), k;
    struct idx_iter *it;
    int r;

    key_u64(&prefix, cont);
    key_u64(&prefix, ino);
    it = idx_iter_new(txn_engine(t), NULL, &prefix, NULL);
    if (!it)
        return -ENOMEM;
    while ((r = idx_iter_next(it)) > 0) {
        size_t n, vlen;
        const uint8_t *p = idx_iter_key(it, &n), *v = idx_iter_value(it, &vlen);
        k.len = 0;
        key_bytes(&k, p, n);
        txn_del(t, &k);
        *ret_space += xattr_space(n, v, vlen);
    }
    idx_iter_free(it);
    return r;
}

int object_delete(struct txn *t, uint64_t cont, const struct inode *i)
{
    int64_t space = 0;
    int r = i->xattrs ? delete_xattrs(t, cont, i->a.ino, &space) : 0;

    if (!r)
        r = usage_add(t, cont, -space, -1);
    if (r)
        return r;
    if (S_ISREG(i->a.mode))
        data_delete(t, cont, i);
    inode_del(t, cont, i->a.ino);
    return 0;
}

int object_unlinked(struct txn *t, uint64_t cont, struct inode *i)
{
    struct key k = orphan_key(cont, i->a.ino);

    if (!object_is_open(txn_engine(t)->ns, cont, i->a.ino, false))
        return object_delete(t, cont, i);
    txn_put(t, &k, "", 0);
    inode_put(t, cont, i);
    return 0;
}

/* The caller holds the inode's lock, or nobody else is there yet. */
static int orphan_delete(struct engine *e, uint64_t cont, uint64_t ino)
{
    struct key k = orphan_key(cont, ino);
    struct inode i = {0};
    struct txn *t = txn_new(e);

    if (!t)
        return -ENOMEM;
    txn_set_reserved(t);
    int r = inode_get(e, cont, ino, &i);
    if (!r && i.a.nlink == 0)
        r = object_delete(t, cont, &i);
    txn_del(t, &k);
    inode_done(&i);
    if (r && r != -ENOENT)
        return txn_drop(t), r;
    return txn_commit(t, NULL);
}

/* The first orphan at or after *from, which then becomes the key behind it. 1, 0: none, or -errno. */
static int orphan_next(struct ns *ns, struct key *from, uint64_t *ret_cont, uint64_t *ret_ino)
{
    struct key prefix = key_begin(KEY_ORPHAN);
    struct idx_iter *it = idx_iter_new(ns->e, NULL, &prefix, from);
    be64 cont = {{0}}, ino = {{0}};

    if (!it)
        return -ENOMEM;
    int r = idx_iter_next(it);
    if (r > 0) {
        size_t n;
        const uint8_t *p = idx_iter_key(it, &n);
        if (n == 17) {
            memcpy(cont.b, p + 1, 8);
            memcpy(ino.b, p + 9, 8);
        }
        from->len = 0;
        key_bytes(from, p, n);
        key_u8(from, 0);
    }
    idx_iter_free(it);
    *ret_cont = get_be64(cont);
    *ret_ino = get_be64(ino);
    return r;
}

int orphans_delete(struct ns *ns)
{
    struct key from = key_begin(KEY_ORPHAN);
    uint64_t cont, ino;
    int r;

    while ((r = orphan_next(ns, &from, &cont, &ino)) > 0) {
        struct ns_cont *c = cont_find(ns, cont);
        if (!c || c->dead)
            continue;
        r = orphan_delete(ns->e, cont, ino);
        /* A damaged record is for check to name; it does not keep the store shut. */
        if (r && !(r == -EIO && eng_writable(ns->e) == 0))
            return r;
    }
    return r;
}

/* ---- open and release ---- */

static int open_truncate(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, struct inode *i)
{
    struct txn *t = txn_new(e);
    uint32_t clear = 0;
    struct pst_attr zero = {0};

    if (!t)
        return -ENOMEM;
    txn_set_reserved(t);
    pst_perm_setattr(ctx->cred, &i->a, PST_SET_SIZE, &zero, &clear);
    i->a.mode &= ~clear;
    int r = data_truncate(t, e, cont, i, 0);
    if (r)
        return txn_drop(t), r;
    inode_touch(i, wall_ns(), TOUCH_M | TOUCH_C);
    inode_put(t, cont, i);
    reply_record_attr(t, ctx, REPLY_OPEN, &i->a);
    r = txn_commit(t, NULL);
    if (!r)
        gc_kick(e->ns);
    return r;
}

static int open_locked(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, uint64_t ino, int accmode,
                       bool trunc, struct pst_attr *ret)
{
    struct inode i;
    /* Truncated before, and perhaps written since: a retry only opens. */
    int done = trunc ? reply_seen(e, ctx, REPLY_OPEN, NULL) : 0;
    int r = done < 0 ? done : inode_get(e, cont, ino, &i);
    if (r)
        return r;
    if (i.a.nlink == 0 && !object_is_open(e->ns, cont, ino, false))
        r = -ENOENT;
    else if (S_ISDIR(i.a.mode) && (accmode & W_OK))
        r = -EISDIR;
    else if (trunc && !S_ISREG(i.a.mode))
        r = -EINVAL;
    else
        r = pst_perm_access(ctx->cred, &i.a, accmode);
    if (!r)
        r = open_count(e->ns, cont, ino, accmode);
    if (!r && trunc && !done) {
        r = open_truncate(e, cont, ctx, &i);
        if (r)
            open_uncount(e->ns, cont, ino);
    }
    if (!r)
        *ret = i.a;
    inode_done(&i);
    return r;
}

int local_obj_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                   struct pst_attr *ret)
{
    struct engine *e = engine_of_cont(c);

    eng_lock_inode(e, c->info.id, ino);
    int r = open_locked(e, c->info.id, ctx, ino, accmode, trunc, ret);
    eng_unlock_inode(e, c->info.id, ino);
    return r;
}

void local_obj_release(struct pst_cont *c, uint64_t ino)
{
    struct engine *e = engine_of_cont(c);
    struct inode i;

    eng_lock_inode(e, c->info.id, ino);
    if (open_uncount(e->ns, c->info.id, ino) && inode_get(e, c->info.id, ino, &i) == 0) {
        if (i.a.nlink == 0) {
            /* If this fails the orphan stays, for the next open of the store. */
            int r = orphan_delete(e, c->info.id, ino);
            if (r)
                log_warn("container %llu: object %llu has no name and could not be deleted: %d",
                         (unsigned long long)c->info.id, (unsigned long long)ino, r);
            gc_kick(e->ns);
        }
        inode_done(&i);
    }
    eng_unlock_inode(e, c->info.id, ino);
}

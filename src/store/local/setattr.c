/*
 * setattr, under the inode's lock. Access times are kept as they are set explicitly: reading does not change them here;
 * relatime is the mount's business.
 */
#include "ns.h"

#include "store/perm.h"

#include <errno.h>

/* 0, or why not; *ret_clear: mode bits that go with it. */
static int setattr_check(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, const struct inode *i,
                         uint32_t mask, const struct pst_attr *in, uint32_t *ret_clear)
{
    if (i->a.nlink == 0 && !object_is_open(e->ns, cont, i->a.ino, false))
        return -ENOENT;
    if ((mask & PST_SET_SIZE) && !S_ISREG(i->a.mode))
        return S_ISDIR(i->a.mode) ? -EISDIR : -EINVAL;
    if ((mask & PST_SET_MODE) && S_ISLNK(i->a.mode))
        return -EOPNOTSUPP;
    int r = pst_perm_setattr(ctx->cred, &i->a, mask, in, ret_clear);
    /*
     * ftruncate asks for an open descriptor only: an owner who has made the file without write permission and has it
     * open for writing may do it. He could give himself the permission as well.
     */
    if (r == -EACCES && (mask & PST_SET_SIZE) && ctx->cred->uid == i->a.uid &&
        object_is_open(e->ns, cont, i->a.ino, true)) {
        struct pst_attr a = i->a;
        a.mode |= S_IWUSR;
        r = pst_perm_setattr(ctx->cred, &a, mask, in, ret_clear);
    }
    return r;
}

static void apply_times(struct inode *i, uint32_t mask, const struct pst_attr *in, int64_t now)
{
    inode_touch(i, now, (mask & PST_SET_SIZE) ? TOUCH_M | TOUCH_C : TOUCH_C);
    if (mask & PST_SET_ATIME)
        i->a.atime_ns = in->atime_ns;
    if (mask & PST_SET_ATIME_NOW)
        i->a.atime_ns = now;
    if (mask & PST_SET_MTIME)
        i->a.mtime_ns = in->mtime_ns;
    if (mask & PST_SET_MTIME_NOW)
        i->a.mtime_ns = now;
    if (mask & PST_SET_CTIME)
        i->a.ctime_ns = in->ctime_ns;
}

static int setattr_commit(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, struct inode *i, uint32_t mask,
                          const struct pst_attr *in, uint32_t clear)
{
    struct txn *t = txn_new(e);
    int r = 0;

    if (!t)
        return -ENOMEM;
    if ((mask & PST_SET_SIZE) && in->size < i->a.size)
        txn_set_reserved(t);
    if (mask & PST_SET_SIZE)
        r = data_truncate(t, e, cont, i, in->size);
    if (r)
        return txn_drop(t), r;
    if (mask & PST_SET_MODE)
        i->a.mode = (i->a.mode & S_IFMT) | (in->mode & 07777);
    i->a.mode &= ~clear;
    if (mask & PST_SET_UID)
        i->a.uid = in->uid;
    if (mask & PST_SET_GID)
        i->a.gid = in->gid;
    apply_times(i, mask, in, wall_ns());
    inode_put(t, cont, i);
    reply_record_attr(t, ctx, REPLY_SETATTR, &i->a);
    r = txn_commit(t, NULL);
    if (!r && (mask & PST_SET_SIZE))
        gc_kick(e->ns);
    return r;
}

static int setattr_locked(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                          const struct pst_attr *in, struct pst_attr *ret)
{
    struct inode i;
    uint32_t clear = 0;
    int r = reply_seen_attr(e, ctx, REPLY_SETATTR, ret);

    if (r)
        return r < 0 ? r : 0;
    r = inode_get(e, cont, ino, &i);
    if (r)
        return r;
    r = setattr_check(e, cont, ctx, &i, mask, in, &clear);
    if (mask == PST_SET_NO_SETID && !(i.a.mode & clear))
        mask = 0;
    if (!r && mask)
        r = setattr_commit(e, cont, ctx, &i, mask, in, clear);
    if (!r)
        *ret = i.a;
    inode_done(&i);
    return r;
}

int local_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                  const struct pst_attr *in, struct pst_attr *ret)
{
    struct engine *e = engine_of_cont(c);

    eng_lock_inode(e, c->info.id, ino);
    int r = setattr_locked(e, c->info.id, ctx, ino, mask, in, ret);
    eng_unlock_inode(e, c->info.id, ino);
    return r;
}

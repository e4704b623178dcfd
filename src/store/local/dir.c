/* Making and removing names, under the namespace lock. rename has a file of its own. */
#include "ns.h"

#include "store/perm.h"

#include <errno.h>

int dir_usable(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, uint64_t ino)
{
    struct inode i;
    int r = inode_get(e, cont, ino, &i);

    if (r)
        return r;
    if (!S_ISDIR(i.a.mode))
        r = -ENOTDIR;
    else
        r = i.a.nlink == 0 ? -ENOENT : pst_perm_access(ctx->cred, &i.a, X_OK);
    inode_done(&i);
    return r;
}

/* ---- make ---- */

static int inode_init(struct pst_cont *c, const struct pst_ctx *ctx, const struct pst_attr *dir,
                      const struct pst_new *in, uint64_t ino, struct inode *ret)
{
    int64_t now = wall_ns();
    struct inode i = {.a = {.ino = ino,
                            .mode = in->mode & (S_IFMT | 07777),
                            .nlink = 1,
                            .uid = ctx->cred ? ctx->cred->uid : 0,
                            .gid = ctx->cred ? ctx->cred->gid : 0,
                            .atime_ns = now,
                            .mtime_ns = now,
                            .ctime_ns = now,
                            .btime_ns = now,
                            .change = 1,
                            .chunk_size = (uint32_t)c->info.props.chunk_size}};

    if (dir->mode & S_ISGID) {
        i.a.gid = dir->gid;
        if (S_ISDIR(i.a.mode))
            i.a.mode |= S_ISGID;
    }
    /* Nobody makes a set-group-id program for a group that he is not in. */
    if (!S_ISDIR(i.a.mode) && (i.a.mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && ctx->cred &&
        ctx->cred->uid != 0 && !pst_cred_in_group(ctx->cred, i.a.gid))
        i.a.mode &= ~(uint32_t)S_ISGID;
    if (S_ISDIR(i.a.mode)) {
        i.a.nlink = 2;
        i.parent = dir->ino;
        i.next_cookie = 1;
    } else if (S_ISLNK(i.a.mode)) {
        i.a.mode = S_IFLNK | 0777;
        i.target = strdup(in->target);
        if (!i.target)
            return -ENOMEM;
        i.a.size = strlen(in->target);
    } else if (S_ISCHR(i.a.mode) || S_ISBLK(i.a.mode)) {
        i.a.rdev = in->rdev;
    }
    *ret = i;
    return 0;
}

static int make_commit(struct pst_cont *c, const struct pst_ctx *ctx, struct inode *dir, const char *name,
                       struct inode *i)
{
    struct engine *e = engine_of_cont(c);
    struct txn *t = txn_new(e);

    if (!t)
        return -ENOMEM;
    int r = usage_add(t, c->info.id, 0, 1);
    if (r)
        return txn_drop(t), r;
    dir_add(t, c->info.id, dir, name, i->a.ino, i->a.mode & S_IFMT);
    if (S_ISDIR(i->a.mode))
        dir->a.nlink++;
    inode_touch(dir, i->a.btime_ns, TOUCH_M | TOUCH_C);
    inode_put(t, c->info.id, dir);
    inode_put(t, c->info.id, i);
    reply_record_attr(t, ctx, REPLY_MAKE, &i->a);
    return txn_commit(t, NULL);
}

static int make_new(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                    const struct pst_new *in, struct pst_attr *ret)
{
    struct engine *e = engine_of_cont(c);
    struct held h;
    struct inode i = {0};
    uint64_t ino;
    int r = ino_new(e->ns, c->info.id, &ino);

    if (!r)
        r = held_take(&h, e, c->info.id, &parent, 1);
    if (r)
        return r;
    r = pst_perm_access(ctx->cred, &h.i[0].a, W_OK | X_OK);
    if (!r)
        r = inode_init(c, ctx, &h.i[0].a, in, ino, &i);
    if (!r)
        r = make_commit(c, ctx, &h.i[0], name, &i);
    held_drop(&h);
    if (!r)
        *ret = i.a;
    inode_done(&i);
    return r;
}

static int make_locked(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                       const struct pst_new *in, struct pst_attr *ret, bool *ret_created)
{
    struct engine *e = engine_of_cont(c);
    struct dent d;
    int r = reply_seen_attr(e, ctx, REPLY_MAKE, ret);

    *ret_created = true;
    if (r)
        return r < 0 ? r : 0;
    r = dir_usable(e, c->info.id, ctx, parent);
    if (r)
        return r;
    r = dir_find(e, c->info.id, parent, name, &d);
    if (r == -ENOENT)
        return make_new(c, ctx, parent, name, in, ret);
    if (r)
        return r;
    if (!S_ISREG(in->mode) || in->exclusive)
        return -EEXIST;
    if (d.type != S_IFREG)
        return d.type == S_IFDIR ? -EISDIR : -EEXIST;
    *ret_created = false;
    r = local_getattr(c, ctx, d.ino, ret);
    return r == -ENOENT ? -EIO : r;
}

int local_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
               const struct pst_new *in, struct pst_attr *ret, bool *ret_created)
{
    struct engine *e = engine_of_cont(c);
    bool created;

    eng_lock_ns(e);
    int r = make_locked(c, ctx, parent, name, in, ret, &created);
    eng_unlock_ns(e);
    if (!r && ret_created)
        *ret_created = created;
    return r;
}

/* ---- link ---- */

static int link_commit(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, struct held *h, const char *name)
{
    struct inode *dir = &h->i[0], *obj = &h->i[1];
    int64_t now = wall_ns();
    int r = pst_perm_access(ctx->cred, &dir->a, W_OK | X_OK);

    if (r)
        return r;
    if (S_ISDIR(obj->a.mode))
        return -EPERM;
    if (obj->a.nlink == 0)
        return -ENOENT; /* deleted, though somebody has it open */
    if (obj->a.nlink >= PST_LINK_MAX)
        return -EMLINK;
    struct txn *t = txn_new(e);
    if (!t)
        return -ENOMEM;
    dir_add(t, cont, dir, name, obj->a.ino, obj->a.mode & S_IFMT);
    inode_touch(dir, now, TOUCH_M | TOUCH_C);
    obj->a.nlink++;
    inode_touch(obj, now, TOUCH_C);
    inode_put(t, cont, dir);
    inode_put(t, cont, obj);
    reply_record_attr(t, ctx, REPLY_LINK, &obj->a);
    return txn_commit(t, NULL);
}

static int link_locked(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent,
                       const char *name, struct pst_attr *ret)
{
    const uint64_t inos[2] = {parent, ino};
    struct held h;
    struct dent d;
    int r = reply_seen_attr(e, ctx, REPLY_LINK, ret);

    if (r)
        return r < 0 ? r : 0;
    r = dir_usable(e, cont, ctx, parent);
    if (r)
        return r;
    if (ino == parent)
        return -EPERM;
    r = dir_find(e, cont, parent, name, &d);
    if (r != -ENOENT)
        return r ? r : -EEXIST;
    r = held_take(&h, e, cont, inos, 2);
    if (r)
        return r;
    r = link_commit(e, cont, ctx, &h, name);
    if (!r)
        *ret = h.i[1].a;
    held_drop(&h);
    return r;
}

int local_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
               struct pst_attr *ret)
{
    struct engine *e = engine_of_cont(c);

    eng_lock_ns(e);
    int r = link_locked(e, c->info.id, ctx, ino, parent, name, ret);
    eng_unlock_ns(e);
    return r;
}

/* ---- unlink, rmdir ---- */

static int remove_commit(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, struct held *h, const char *name,
                         const struct dent *d, enum reply_kind kind)
{
    struct inode *dir = &h->i[0], *obj = &h->i[1];
    int64_t now = wall_ns();
    struct txn *t = txn_new(e);

    if (!t)
        return -ENOMEM;
    txn_set_reserved(t);
    dir_remove(t, cont, dir, name, d);
    inode_touch(dir, now, TOUCH_M | TOUCH_C);
    inode_touch(obj, now, TOUCH_C);
    if (kind == REPLY_RMDIR) {
        dir->a.nlink--;
        obj->a.nlink = 0;
    } else {
        obj->a.nlink--;
    }
    inode_put(t, cont, dir);
    int r = 0;
    if (obj->a.nlink == 0)
        r = object_unlinked(t, cont, obj);
    else
        inode_put(t, cont, obj);
    if (r)
        return txn_drop(t), r;
    reply_record(t, ctx, kind, NULL);
    r = txn_commit(t, NULL);
    if (!r && obj->a.nlink == 0)
        gc_kick(e->ns);
    return r;
}

/* What must hold of the directory and the object before the name goes. */
static int remove_check(const struct pst_ctx *ctx, const struct inode *dir, const struct inode *obj,
                        const struct dent *d, enum reply_kind kind)
{
    int r = pst_perm_remove(ctx->cred, &dir->a, &obj->a);
    if (r)
        return r;
    if ((obj->a.mode & S_IFMT) != d->type || obj->a.nlink == 0 || dir->entries == 0)
        return -EIO; /* entry and record differ: check */
    if (kind == REPLY_UNLINK)
        return S_ISDIR(obj->a.mode) ? -EISDIR : 0;
    if (!S_ISDIR(obj->a.mode))
        return -ENOTDIR;
    if (dir->a.nlink < 3)
        return -EIO;
    return obj->entries ? -ENOTEMPTY : 0;
}

static int remove_locked(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, uint64_t parent,
                         const char *name, enum reply_kind kind)
{
    struct held h;
    struct dent d;
    int r = reply_seen(e, ctx, kind, NULL);

    if (r)
        return r < 0 ? r : 0;
    r = dir_usable(e, cont, ctx, parent);
    if (!r)
        r = dir_find(e, cont, parent, name, &d);
    if (r)
        return r;
    if (d.ino == parent)
        return -EIO;
    const uint64_t inos[2] = {parent, d.ino};
    r = held_take(&h, e, cont, inos, 2);
    if (r)
        return r == -ENOENT ? -EIO : r;
    r = remove_check(ctx, &h.i[0], &h.i[1], &d, kind);
    if (!r)
        r = remove_commit(e, cont, ctx, &h, name, &d, kind);
    held_drop(&h);
    return r;
}

int local_unlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    struct engine *e = engine_of_cont(c);

    eng_lock_ns(e);
    int r = remove_locked(e, c->info.id, ctx, parent, name, REPLY_UNLINK);
    eng_unlock_ns(e);
    return r;
}

int local_rmdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    struct engine *e = engine_of_cont(c);

    eng_lock_ns(e);
    int r = remove_locked(e, c->info.id, ctx, parent, name, REPLY_RMDIR);
    eng_unlock_ns(e);
    return r;
}

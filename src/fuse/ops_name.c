/* Names: lookup, make, remove, rename, link. */
#include "fm.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* Answers with an entry; refreshes the attributes of an object that is being written. */
static void reply_entry(fuse_req_t req, const struct pst_cred *cred, struct pst_attr *a)
{
    struct fm *m = fm_of(req);
    struct fuse_entry_param e;

    if (S_ISREG(a->mode) && fm_node_writers(m->nodes, a->ino)) {
        int r = cl_getattr(m->cl, cred, a->ino, a);
        if (r) {
            fm_reply_err(req, r);
            return;
        }
    }
    fm_entry(m, a, &e);
    fuse_reply_entry(req, &e);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fm *m = fm_of(req);
    const struct fuse_ctx *who = fuse_req_ctx(req);
    struct pst_cred cred = {.uid = who->uid, .gid = who->gid};
    struct pst_ctx ctx = fm_ctx(&cred);
    struct pst_attr a;
    int r;

    /*
     * The most frequent call: the kernel has checked the caller's search right with all groups (default_permissions),
     * so groups are fetched only if the store refuses without them.
     */
    r = pst_store_lookup(m->cont, &ctx, parent, name, &a);
    if (r == -EACCES) {
        fm_cred(req, &cred);
        r = pst_store_lookup(m->cont, &ctx, parent, name, &a);
    }
    if (r == -ENOENT && m->exclusive) {
        /* Only this kernel can make the name, and then it knows. */
        struct fuse_entry_param e = {.entry_timeout = m->entry_timeout};
        fuse_reply_entry(req, &e);
        return;
    }
    if (r)
        fm_reply_err(req, r);
    else
        reply_entry(req, &cred, &a);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
    (void)nlookup;
    fm_node_forget(fm_of(req)->nodes, ino);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        fm_node_forget(fm_of(req)->nodes, forgets[i].ino);
    fuse_reply_none(req);
}

static void make(fuse_req_t req, fuse_ino_t parent, const char *name, const struct pst_new *in)
{
    struct fm *m = fm_of(req);
    struct fm_change c;
    struct pst_attr a;
    int r;

    fm_change_begin(req, &c);
    r = pst_store_make(m->cont, &c.ctx, parent, name, in, &a, NULL);
    fm_change_end(req, &c);
    if (r)
        fm_reply_err(req, r);
    else
        reply_entry(req, &c.cred, &a);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    struct pst_new in = {.mode = mode, .rdev = rdev, .exclusive = true};

    if (!(in.mode & S_IFMT))
        in.mode |= S_IFREG;
    make(req, parent, name, &in);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    make(req, parent, name, &(struct pst_new){.mode = (mode & 07777) | S_IFDIR, .exclusive = true});
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    make(req, parent, name, &(struct pst_new){.mode = S_IFLNK | 0777, .target = target, .exclusive = true});
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    struct fm *m = fm_of(req);
    struct fm_change c;
    struct pst_attr a;
    int r;

    fm_change_begin(req, &c);
    r = pst_store_link(m->cont, &c.ctx, ino, parent, name, &a);
    fm_change_end(req, &c);
    if (r)
        fm_reply_err(req, r);
    else
        reply_entry(req, &c.cred, &a);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fm *m = fm_of(req);
    struct fm_change c;
    int r;

    fm_change_begin(req, &c);
    r = pst_store_unlink(m->cont, &c.ctx, parent, name);
    fm_change_end(req, &c);
    fm_reply_err(req, r);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fm *m = fm_of(req);
    struct fm_change c;
    int r;

    fm_change_begin(req, &c);
    r = pst_store_rmdir(m->cont, &c.ctx, parent, name);
    fm_change_end(req, &c);
    fm_reply_err(req, r);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent, const char *new_name,
                      unsigned int flags)
{
    struct fm *m = fm_of(req);
    struct fm_change c;
    int r;

    /* The kernel's RENAME_* are the store's; RENAME_WHITEOUT is refused there. */
    fm_change_begin(req, &c);
    r = pst_store_rename(m->cont, &c.ctx, parent, name, new_parent, new_name, flags);
    fm_change_end(req, &c);
    fm_reply_err(req, r);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct fm *m = fm_of(req);
    struct pst_cred cred = {.uid = fuse_req_ctx(req)->uid, .gid = fuse_req_ctx(req)->gid};
    struct pst_ctx ctx = fm_ctx(&cred); /* a link's target is for everybody who found it: no groups needed */
    char target[PST_SYMLINK_MAX + 1];
    int r = pst_store_readlink(m->cont, &ctx, ino, target, sizeof(target));

    if (r < 0) {
        fm_reply_err(req, fm_stale(r));
        return;
    }
    target[r < PST_SYMLINK_MAX ? r : PST_SYMLINK_MAX] = '\0';
    fuse_reply_readlink(req, target);
}

void fm_ops_name(struct fuse_lowlevel_ops *ops)
{
    ops->lookup = op_lookup;
    ops->forget = op_forget;
    ops->forget_multi = op_forget_multi;
    ops->mknod = op_mknod;
    ops->mkdir = op_mkdir;
    ops->symlink = op_symlink;
    ops->link = op_link;
    ops->unlink = op_unlink;
    ops->rmdir = op_rmdir;
    ops->rename = op_rename;
    ops->readlink = op_readlink;
}

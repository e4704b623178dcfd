/* Attributes: getattr, setattr, statfs, extended attributes. Access checks are the kernel's (default_permissions). */
#include "fm.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static void reply_attr(fuse_req_t req, const struct pst_attr *a)
{
    struct fm *m = fm_of(req);
    struct stat st;

    fm_stat(a, &st);
    fm_node_seen(m->nodes, a, !m->exclusive);
    fuse_reply_attr(req, &st, m->attr_timeout);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    struct pst_cred cred = {.uid = fuse_req_ctx(req)->uid, .gid = fuse_req_ctx(req)->gid};
    struct pst_attr a;
    int r;

    (void)fi;
    r = cl_getattr(m->cl, &cred, ino, &a);
    if (r)
        fm_reply_err(req, fm_stale(r));
    else
        reply_attr(req, &a);
}

static int64_t to_ns(const struct timespec *t)
{
    return (int64_t)t->tv_sec * (int64_t)NSEC_PER_SEC + t->tv_nsec;
}

static uint32_t set_mask(int to_set)
{
    uint32_t mask = 0;

    if (to_set & FUSE_SET_ATTR_MODE)
        mask |= PST_SET_MODE;
    if (to_set & FUSE_SET_ATTR_UID)
        mask |= PST_SET_UID;
    if (to_set & FUSE_SET_ATTR_GID)
        mask |= PST_SET_GID;
    if (to_set & FUSE_SET_ATTR_SIZE)
        mask |= PST_SET_SIZE;
    if (to_set & FUSE_SET_ATTR_ATIME_NOW)
        mask |= PST_SET_ATIME_NOW;
    else if (to_set & FUSE_SET_ATTR_ATIME)
        mask |= PST_SET_ATIME;
    if (to_set & FUSE_SET_ATTR_MTIME_NOW)
        mask |= PST_SET_MTIME_NOW;
    else if (to_set & FUSE_SET_ATTR_MTIME)
        mask |= PST_SET_MTIME;
    return mask;
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    uint32_t mask = set_mask(to_set);
    struct pst_attr a, in = {
        .mode = st->st_mode & 07777,
        .uid = st->st_uid,
        .gid = st->st_gid,
        .size = (uint64_t)st->st_size,
        .atime_ns = to_ns(&st->st_atim),
        .mtime_ns = to_ns(&st->st_mtim),
    };
    /* ftruncate: the right to write was checked at open, the mode may forbid it since. */
    bool trusted = fi && (mask & PST_SET_SIZE) && fm_fh_writable(fi->fh);
    struct fm_file *changed = trusted ? fm_files_get(m->files, fi->fh) : NULL;
    struct pst_cred cred;
    int r;

    fm_cred(req, &cred);
    if ((mask & PST_SET_SIZE) && fm_kills_setid(m))
        mask |= PST_SET_NO_SETID;
    r = mask & PST_SET_SIZE ? fm_drop_capability(m, ino) : 0;
    if (!r)
        r = mask ? cl_setattr(m->cl, trusted ? NULL : &cred, ino, mask, &in, &a) : cl_getattr(m->cl, &cred, ino, &a);
    if (changed)
        atomic_fetch_add(&changed->changes, 1);
    if (r)
        fm_reply_err(req, fm_stale(r));
    else
        reply_attr(req, &a);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct fm *m = fm_of(req);
    struct pst_statfs fs;
    struct statvfs st;
    int r;

    (void)ino;
    r = pst_store_statfs(m->cont, &fs);
    if (r) {
        fm_reply_err(req, r);
        return;
    }
    memset(&st, 0, sizeof(st));
    st.f_bsize = PST_BLOCK;
    st.f_frsize = PST_BLOCK;
    st.f_blocks = fs.total_bytes / PST_BLOCK;
    st.f_bfree = st.f_bavail = fs.free_bytes / PST_BLOCK;
    /* Objects have no limit of their own: as many more as blocks are free. */
    st.f_ffree = st.f_favail = st.f_bfree;
    st.f_files = fs.objects + st.f_ffree;
    st.f_namemax = PST_NAME_MAX;
    fuse_reply_statfs(req, &st);
}

/* ACLs and the like would be kept but not obeyed. */
static bool xattr_refused(const char *name)
{
    return !strncmp(name, "system.", 7);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
    struct fm *m = fm_of(req);
    struct fm_change c;
    int r;

    if (xattr_refused(name)) {
        fm_reply_err(req, -EOPNOTSUPP);
        return;
    }
    fm_change_begin(req, &c);
    r = pst_store_setxattr(m->cont, &c.ctx, ino, name, value, size, (uint32_t)flags);
    fm_change_end(req, &c);
    if (!strcmp(name, FM_CAPABILITY_XATTR))
        fm_node_set_cap(m->nodes, ino);
    fm_reply_err(req, fm_stale(r));
}

/* size 0: the kernel asks for the length only. */
static void reply_xattr(fuse_req_t req, int64_t r, const char *buf, size_t size)
{
    if (r < 0)
        fm_reply_err(req, r == -ENOENT ? -ESTALE : r);
    else if (size)
        fuse_reply_buf(req, buf, (size_t)r);
    else
        fuse_reply_xattr(req, (size_t)r);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct fm *m = fm_of(req);
    bool capability = !strcmp(name, FM_CAPABILITY_XATTR);
    uint64_t asked_ns = now_ns();
    struct pst_cred cred;
    struct pst_ctx ctx = fm_ctx(&cred);
    cleanup_free char *buf = NULL;
    int64_t r;

    if (xattr_refused(name)) {
        fm_reply_err(req, -EOPNOTSUPP);
        return;
    }
    if (capability && !fm_node_cap(m->nodes, ino)) {
        fm_reply_err(req, -ENODATA);
        return;
    }
    buf = size ? malloc(size) : NULL;
    if (size && !buf) {
        fm_reply_err(req, -ENOMEM);
        return;
    }
    fm_cred(req, &cred);
    r = pst_store_getxattr(m->cont, &ctx, ino, name, buf, size);
    if (capability && r == -ENODATA)
        fm_node_set_nocap(m->nodes, ino, asked_ns);
    reply_xattr(req, r, buf, size);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct fm *m = fm_of(req);
    struct pst_cred cred;
    struct pst_ctx ctx = fm_ctx(&cred);
    cleanup_free char *buf = size ? malloc(size) : NULL;
    int64_t r;

    if (size && !buf) {
        fm_reply_err(req, -ENOMEM);
        return;
    }
    fm_cred(req, &cred);
    r = pst_store_listxattr(m->cont, &ctx, ino, buf, size);
    reply_xattr(req, r, buf, size);
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct fm *m = fm_of(req);
    struct fm_change c;
    int r;

    if (xattr_refused(name)) {
        fm_reply_err(req, -EOPNOTSUPP);
        return;
    }
    fm_change_begin(req, &c);
    /* Before anybody's write: the kernel lets nobody without CAP_SETFCAP ask for it. */
    if (!strcmp(name, FM_CAPABILITY_XATTR))
        c.ctx.cred = NULL;
    r = pst_store_removexattr(m->cont, &c.ctx, ino, name);
    fm_change_end(req, &c);
    fm_reply_err(req, fm_stale(r));
}

void fm_ops_attr(struct fuse_lowlevel_ops *ops)
{
    ops->getattr = op_getattr;
    ops->setattr = op_setattr;
    ops->statfs = op_statfs;
    ops->setxattr = op_setxattr;
    ops->getxattr = op_getxattr;
    ops->listxattr = op_listxattr;
    ops->removexattr = op_removexattr;
}

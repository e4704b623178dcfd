/* Open files. */
#include "fm.h"

#include "store/perm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Not O_APPEND: each write says whether it is one (the kernel writes mapped pages through any handle). */
#define OPEN_FLAGS (O_ACCMODE | O_TRUNC | O_DIRECT | O_SYNC | O_DSYNC | O_EXCL)
/* The kernel's own flag for execve; open(2) cannot set it. */
#define FMODE_EXEC 0x20

static bool wants_write(int flags)
{
    return (flags & O_ACCMODE) != O_RDONLY;
}

/* O_DIRECT needs nothing: the kernel goes around its pages itself and maps files all the same. */
static enum fm_access access_of(int flags, const struct pst_attr *a)
{
    if (!wants_write(flags))
        return FM_READS;
    if (flags & O_APPEND)
        return FM_APPENDS;
    return (flags & O_ACCMODE) == O_WRONLY && a->size == 0 ? FM_ONLY_WRITES : FM_WRITES;
}

/* Takes f. Puts it in the table and fills what open and create tell the kernel. */
static int opened(struct fm *m, struct cl_file *f, const struct pst_attr *a, struct fuse_file_info *fi)
{
    struct fm_file *file = calloc(1, sizeof(*file));
    struct fm_open_hint hint;
    int r = -ENOMEM;

    if (file) {
        *file = (struct fm_file){.f = f, .ino = a->ino, .change = a->change, .writable = wants_write(fi->flags)};
        file->changes = file->writable && (fi->flags & (O_CREAT | O_TRUNC));
        r = fm_files_add(m->files, file, &fi->fh);
    }
    if (r) {
        free(file);
        cl_close(f);
        return r;
    }
    file->syncs = fi->flags & O_DSYNC;
    file->access = access_of(fi->flags, a);
    hint = fm_node_open(m->nodes, a, file->access, m->attr_ttl_ns);
    file->around = hint.around;
    fi->keep_cache = hint.keep_pages;
    fi->direct_io = hint.around;
    if (hint.stale_attrs && !m->exclusive)
        fuse_lowlevel_notify_inval_inode(m->se, a->ino, -1, 0); /* negative: attributes only; waits for nothing */
    return 0;
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    struct pst_cred cred;
    struct cl_file *f;
    struct pst_attr a;
    int r;

    fm_cred(req, &cred);
    r = cl_open(m->cl, &cred, ino, fi->flags & OPEN_FLAGS & ~O_EXCL, &f, &a);
    if (r == -EACCES && (fi->flags & FMODE_EXEC)) {
        /* A program without the read right can be run. */
        r = cl_getattr(m->cl, &cred, ino, &a);
        if (!r)
            r = pst_perm_access(&cred, &a, X_OK);
        if (!r)
            r = cl_open(m->cl, NULL, ino, O_RDONLY, &f, &a);
    }
    if (!r)
        r = opened(m, f, &a, fi);
    if (r) {
        fm_reply_err(req, fm_stale(r));
        return;
    }
    if (fuse_reply_open(req, fi)) /* the opener was interrupted: no release comes */
        fm_file_close(m, fm_files_take(m->files, fi->fh));
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    uint64_t asked_ns = now_ns();
    struct fuse_entry_param e;
    struct pst_cred cred;
    struct cl_file *f;
    struct pst_attr a;
    int r;

    fm_cred(req, &cred);
    r = cl_create(m->cl, &cred, parent, NULL, name, (mode & 07777) | S_IFREG, fi->flags & OPEN_FLAGS, &f, &a);
    if (!r)
        r = opened(m, f, &a, fi);
    if (r) {
        fm_reply_err(req, r);
        return;
    }
    /* A file that was just made has no capability to take away at a write. */
    if (a.size == 0 && a.nlink == 1 && a.btime_ns == a.ctime_ns)
        fm_node_set_nocap(m->nodes, a.ino, asked_ns);
    fm_entry(m, &a, &e);
    if (fuse_reply_create(req, &e, fi))
        fm_file_close(m, fm_files_take(m->files, fi->fh));
}

/* It is being closed, by one who has it open. */
static void closing(struct fm *m, struct fm_file *file)
{
    if (file->around && file->writable && file->access != FM_APPENDS && !atomic_exchange(&file->closing, true))
        fm_node_closing(m->nodes, file->ino, true);
}

static void still_open(struct fm *m, struct fm_file *file)
{
    if (atomic_load(&file->closing) && atomic_exchange(&file->closing, false))
        fm_node_closing(m->nodes, file->ino, false);
}

int fm_file_close(struct fm *m, struct fm_file *file)
{
    int r = 0;

    if (!file)
        return 0;
    if (file->f) {
        r = cl_close(file->f);
        fm_node_pages(m->nodes, file->ino, file->change);
        fm_node_release(m->nodes, file->ino, file->access, file->around);
        still_open(m, file); /* of the closing ones it is none any more, either */
    }
    free(file);
    return r;
}

/*
 * A handle of the process before, which died. Its user had the right to read, so reading goes on; but what may have
 * lost data must not look sound: handles that could write get errors.
 */
static struct fm_file *adopt(struct fm *m, uint64_t ino, uint64_t fh)
{
    struct fm_file *file = NULL, *kept;
    struct pst_attr a;
    struct cl_file *f;

    if (fm_fh_writable(fh) || cl_open(m->cl, NULL, ino, O_RDONLY, &f, &a))
        return NULL;
    file = calloc(1, sizeof(*file));
    if (!file) {
        cl_close(f);
        return NULL;
    }
    *file = (struct fm_file){.f = f, .ino = ino, .change = a.change, .adopted = true};
    file->around = fm_node_open(m->nodes, &a, FM_READS, m->attr_ttl_ns).around;
    kept = fm_files_adopt(m->files, fh, file);
    if (kept != file) {
        file->change = 0; /* says nothing about the kernel's pages */
        fm_file_close(m, file);
    }
    return kept;
}

/* The handle's file; NULL: gone with the process that had it. */
static struct fm_file *file_of(struct fm *m, uint64_t ino, struct fuse_file_info *fi)
{
    struct fm_file *file = fm_files_get(m->files, fi->fh);

    if (!file)
        return adopt(m, ino, fi->fh);
    if (!file->used) {
        file->used = true;
        fm_node_pages(m->nodes, file->ino, file->change);
    }
    return file;
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    struct fm_file *file = file_of(m, ino, fi);
    uint8_t *buf = (*fm_mem())->data;
    int64_t n;

    size = min_u64(size, FM_IO_MAX);
    if (off < 0)
        n = -EINVAL;
    else if (!file)
        n = -EIO;
    else
        n = cl_pread(file->f, buf, size, (uint64_t)off);
    if (n < 0)
        fm_reply_err(req, n);
    else
        fuse_reply_buf(req, (const char *)buf, (size_t)n);
}

/* Where the store is ours alone, the kernel knows the end of the file, and its offset allows write-behind. */
static bool appends(const struct fm *m, const struct fuse_file_info *fi)
{
    return (fi->flags & O_APPEND) && !fi->writepage && !m->exclusive;
}

static int64_t synced(struct cl_file *f, int64_t n)
{
    int r = cl_fsync(f);

    return r ? r : n;
}

/*
 * Before the answer: what the kernel remembers of the mode would let the changed program run with the bits that the
 * store has taken, or is about to take, from it. They are there still if it could not store the bytes.
 */
static int64_t setid_gone(struct fm *m, struct fm_file *file, int64_t n)
{
    struct pst_attr a;
    int r = cl_flush(file->f);

    if (!r)
        r = cl_getattr(m->cl, NULL, file->ino, &a);
    fuse_lowlevel_notify_inval_inode(m->se, file->ino, -1, 0);
    if (!r)
        fm_node_seen(m->nodes, &a, false);
    return r ? r : n;
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    struct cl_mem **mem = fm_mem();
    struct fm_file *file = file_of(m, ino, fi);
    bool around = file && file->around && !fi->writepage; /* the kernel writes pages through any handle */
    /* Of a mapping's pages, as everywhere, nobody can say who changed them. */
    uint32_t opf = !fi->writepage && fm_kills_setid(m) ? PST_OPF_KILL_SETID : 0;
    int64_t n = 0;

    (void)buf;
    if (around)
        still_open(m, file);
    if (!file)
        n = -EIO;
    else if (off < 0)
        n = -EINVAL;
    else if (!fi->writepage)
        n = fm_drop_capability(m, ino);
    if (n == 0)
        n = appends(m, fi) ? cl_append(file->f, (*mem)->data, size, NULL, opf)
                           : cl_pwrite_mem(file->f, mem, size, (uint64_t)off, opf);
    if (n > 0 && opf && fm_node_setid(m->nodes, ino))
        n = setid_gone(m, file, n);
    if (n > 0 && around && (fi->flags & O_DSYNC) && !file->syncs) /* RWF_DSYNC: the kernel does it for its pages only */
        n = synced(file->f, n);
    if (file)
        atomic_fetch_add(&file->changes, 1);
    if (n < 0)
        fm_reply_err(req, n);
    else
        fuse_reply_write(req, (size_t)n);
}

/*
 * Each close(2). With durability=close this is where data becomes durable and where its error can still be told; the
 * release comes too late for both.
 */
static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    struct fm_file *file = fm_files_get(m->files, fi->fh);
    uint64_t changes = file ? atomic_load(&file->changes) : 0;
    int r = 0;

    if (m->locks)
        fm_unlock_owner(m, ino, LK_POSIX, fi->lock_owner);
    if (!file)
        r = fm_fh_writable(fi->fh) ? -EIO : 0;
    else if (file->writable && m->durable_close && changes != atomic_load(&file->durable)) {
        r = cl_flush_durable(file->f);
        if (!r) /* one that covered less may be later: then a close too many is durable */
            atomic_store(&file->durable, changes);
    } else if (file->writable)
        r = cl_flush(file->f);
    if (file)
        closing(m, file);
    fm_reply_err(req, r);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    struct fm_file *file = fm_files_take(m->files, fi->fh);
    int r;

    if (m->locks && fi->flock_release)
        fm_unlock_owner(m, ino, LK_FLOCK, fi->lock_owner);
    r = fm_file_close(m, file);
    if (r) /* dirty pages of a mapping, written after the last close: nobody else can be told */
        log_warn("object %llu: data written at the end could not be stored: %s", (unsigned long long)ino, strerror(-r));
    fm_reply_err(req, r);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct fm_file *file = fm_files_get(fm_of(req)->files, fi->fh);

    (void)ino;
    (void)datasync;
    /*
     * With the process before went what it had not sent, of this handle or another: nobody can say that it is durable.
     */
    fm_reply_err(req, file && !file->adopted ? cl_fsync(file->f) : -EIO);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    struct fm_file *file = file_of(m, ino, fi);
    /* The kernel does not say who keeps set-id bits here (CAP_FSETID): root does. */
    uint32_t opf = fuse_req_ctx(req)->uid ? PST_OPF_KILL_SETID : 0;
    int r = -EIO;

    if (off < 0 || len <= 0)
        r = -EINVAL;
    else if (file)
        r = fm_drop_capability(m, ino);
    if (!r)
        r = cl_fallocate(file->f, mode, (uint64_t)off, (uint64_t)len, opf);
    if (!r && opf && fm_node_setid(m->nodes, ino))
        r = (int)setid_gone(m, file, 0);
    if (file)
        atomic_fetch_add(&file->changes, 1);
    fm_reply_err(req, r);
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
    struct fm_file *file = file_of(fm_of(req), ino, fi);
    int64_t r;

    if (off < 0)
        r = -ENXIO;
    else
        r = file ? cl_lseek(file->f, (uint64_t)off, whence) : -EIO;
    if (r < 0)
        fm_reply_err(req, r);
    else
        fuse_reply_lseek(req, r);
}

void fm_ops_file(struct fuse_lowlevel_ops *ops)
{
    ops->open = op_open;
    ops->create = op_create;
    ops->read = op_read;
    ops->write = op_write;
    ops->flush = op_flush;
    ops->release = op_release;
    ops->fsync = op_fsync;
    ops->fallocate = op_fallocate;
    ops->lseek = op_lseek;
}

/* Handles of files: what goes straight to the store, and when pending writes go before it. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/stat.h>

#define BATCH 16 /* windows of one large read or write under way at once */

static bool readable(const struct cl_file *f)
{
    return (f->flags & O_ACCMODE) != O_WRONLY;
}

static bool writable(const struct cl_file *f)
{
    return (f->flags & O_ACCMODE) != O_RDONLY;
}

static int accmode(int flags)
{
    return (flags & O_ACCMODE) == O_RDWR ? R_OK | W_OK : (flags & O_ACCMODE) == O_WRONLY ? W_OK : R_OK;
}

static bool mine(const struct client *c)
{
    return fork_is_mine(c->fork_gen);
}

void cl_ctx_begin(struct client *c, const struct pst_cred *cred, struct pst_ctx *ret)
{
    (void)c;
    *ret = (struct pst_ctx){.cred = cred};
}

void cl_ctx_end(struct client *c, struct pst_ctx *ctx)
{
    (void)c;
    ctx->cred = NULL;
}

/* What this client has not sent yet of an object. */
static void flush_ino(struct client *c, uint64_t ino)
{
    struct cl_inode *i = cl_inode_get(c, ino, false);

    if (!i)
        return;
    cl_dirty_flush(i, 0, CL_ALL);
    cl_inode_put(i);
}

int cl_getattr(struct client *c, const struct pst_cred *cred, uint64_t ino, struct pst_attr *ret)
{
    struct pst_ctx ctx = {.cred = cred};

    if (!mine(c))
        return -ECHILD;
    flush_ino(c, ino);
    return pst_store_getattr(c->cont, &ctx, ino, ret);
}

int cl_setattr(struct client *c, const struct pst_cred *cred, uint64_t ino, uint32_t mask, const struct pst_attr *in,
               struct pst_attr *ret)
{
    struct pst_ctx ctx = {.cred = cred};
    struct pst_attr a;
    struct cl_inode *i;
    int r;

    if (!mine(c))
        return -ECHILD;
    i = cl_inode_get(c, ino, false);
    if (i) {
        cl_dirty_flush(i, 0, CL_ALL);
        atomic_fetch_add(&i->gen, 1);
    }
    r = pst_store_setattr(c->cont, &ctx, ino, mask, in, &a);
    if (i) {
        atomic_fetch_add(&i->gen, 1); /* what was fetched while it ran may be from before it */
        cl_inode_put(i);
    }
    if (r == 0 && ret)
        *ret = a;
    return r;
}

/* ---- opening ---- */

static struct cl_file *file_new(struct client *c, int flags)
{
    struct cl_file *f = calloc(1, sizeof *f);

    if (f) {
        f->c = c;
        f->flags = flags;
    }
    return f;
}

/* The store has the object open; f is complete after this, or freed and the object released. */
static int file_ready(struct cl_file *f, uint64_t ino, struct cl_file **ret)
{
    f->i = cl_inode_get(f->c, ino, true);
    if (!f->i) {
        pst_store_release(f->c->cont, ino);
        free(f);
        return -ENOMEM;
    }
    (void)cl_dirty_others_failed(f); /* what failed before this handle is not its business */
    cl_ahead_init(f);
    *ret = f;
    return 0;
}

int cl_open(struct client *c, const struct pst_cred *cred, uint64_t ino, int flags, struct cl_file **ret,
            struct pst_attr *ret_attr)
{
    struct pst_ctx ctx = {.cred = cred};
    struct pst_attr a;
    struct cl_file *f;
    bool trunc = flags & O_TRUNC && (flags & O_ACCMODE) != O_RDONLY;
    int r;

    if (!mine(c))
        return -ECHILD;
    f = file_new(c, flags);
    if (!f)
        return -ENOMEM;
    flush_ino(c, ino);
    r = pst_store_open(c->cont, &ctx, ino, accmode(flags), trunc, &a);
    if (r == 0)
        r = file_ready(f, ino, &f);
    else
        free(f);
    if (r < 0)
        return r;
    f->changed = trunc;
    if (trunc)
        atomic_fetch_add(&f->i->gen, 1);
    *ret = f;
    if (ret_attr)
        *ret_attr = a;
    return 0;
}

int cl_create(struct client *c, const struct pst_cred *cred, uint64_t parent, const char *walk, const char *name,
              uint32_t mode, int flags, struct cl_file **ret, struct pst_attr *ret_attr)
{
    struct pst_ctx ctx = {.cred = cred, .walk = walk};
    struct pst_new in = {.mode = S_IFREG | (mode & 07777), .exclusive = flags & O_EXCL};
    bool trunc = flags & O_TRUNC && (flags & O_ACCMODE) != O_RDONLY, created = false;
    bool dirty;
    struct pst_attr a;
    struct cl_file *f;
    int r;

    if (!mine(c))
        return -ECHILD;
    f = file_new(c, flags);
    if (!f)
        return -ENOMEM;
    /*
     * Bytes written before this call must not come after the truncation: whose they are is known only once it is open.
     */
    dirty = cl_has_dirty(c);
    r = pst_store_create(c->cont, &ctx, parent, name, &in, accmode(flags), trunc && !dirty, &a, &created);
    if (r == 0)
        r = file_ready(f, a.ino, &f);
    else
        free(f);
    if (r < 0)
        return r;
    f->changed = created || trunc;
    atomic_fetch_add(&f->i->gen, 1);
    if (!created && dirty) {
        ctx.walk = NULL;
        cl_dirty_flush(f->i, 0, CL_ALL);
        r = trunc ? cl_setattr(c, cred, a.ino, PST_SET_SIZE, &(struct pst_attr){.size = 0}, &a)
                  : pst_store_getattr(c->cont, &ctx, a.ino, &a);
        if (r < 0) {
            cl_close(f);
            return r;
        }
    }
    *ret = f;
    if (ret_attr)
        *ret_attr = a;
    return 0;
}

uint64_t cl_file_ino(const struct cl_file *f)
{
    return f->i->ino;
}

/* ---- data ---- */

struct batch {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint32_t left;
    struct piece {
        struct cl_op o;
        struct iovec iov;
        struct batch *b;
    } piece[BATCH];
};

static void piece_done(struct cl_op *o)
{
    struct batch *b = container_of(o, struct piece, o)->b;

    scoped_lock(&b->lock);
    if (!--b->left)
        pthread_cond_signal(&b->cond);
}

/* At most BATCH windows at once. Bytes from the start of the range that went well, or the first piece's error. */
static int64_t run_batch(struct cl_file *f, const struct pst_op *like, uint8_t *p, size_t len, uint64_t offset)
{
    struct batch b = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    uint32_t n = 0;
    int64_t sum = 0;

    for (uint64_t at = offset; at < offset + len; n++) {
        size_t k = min_u64(offset + len, align_down(at, CL_WINDOW) + CL_WINDOW) - at;
        struct piece *x = &b.piece[n];
        x->b = &b;
        x->iov = (struct iovec){p + (at - offset), k};
        x->o = (struct cl_op){.op = *like, .done = piece_done};
        x->o.op.offset = at;
        x->o.op.length = k;
        x->o.op.iov = &x->iov;
        x->o.op.iovcnt = 1;
        at += k;
    }
    b.left = n;
    for (uint32_t i = 0; i < n; i++)
        cl_op_submit(f->c, &b.piece[i].o);
    pthread_mutex_lock(&b.lock);
    while (b.left)
        pthread_cond_wait(&b.cond, &b.lock);
    pthread_mutex_unlock(&b.lock);
    for (uint32_t i = 0; i < n; i++) {
        int64_t r = b.piece[i].o.op.result;
        if (r < 0)
            return sum ? sum : r;
        sum += r;
        if ((uint64_t)r < b.piece[i].o.op.length)
            break;
    }
    return sum;
}

/* One operation when the range lies in one window and a half, several at once when it is longer. */
static int64_t transfer(struct cl_file *f, enum pst_op_kind kind, uint32_t flags, uint8_t *p, size_t len,
                        uint64_t offset)
{
    struct pst_op like = {.kind = kind, .flags = flags, .cont = f->c->cont, .ino = f->i->ino};
    size_t done = 0;

    while (done < len) {
        size_t n = min_u64(len - done, (BATCH - 1) * CL_WINDOW);
        int64_t r;

        if (n <= CL_WINDOW + CL_WINDOW / 2) {
            struct iovec iov = {p + done, n};
            struct pst_op op = like;
            op.offset = offset + done;
            op.length = n;
            op.iov = &iov;
            op.iovcnt = 1;
            r = cl_op_run(f->c, &op);
        } else {
            r = run_batch(f, &like, p + done, n, offset + done);
        }
        if (r < 0)
            return done ? (int64_t)done : r;
        done += (size_t)r;
        if ((size_t)r < n)
            break;
    }
    return (int64_t)done;
}

static int64_t read_flushed(struct cl_file *f, void *buf, size_t len, uint64_t offset)
{
    bool pending;
    size_t done;
    int64_t r;

    cl_dirty_flush(f->i, offset, len);
    done = cl_ahead_read(f, buf, len, offset);
    if (done == len)
        return (int64_t)done;
    pending = cl_inode_dirty(f->i); /* before the read: afterwards they may just have come to their end */
    r = transfer(f, PST_OP_READ, 0, (uint8_t *)buf + done, len - done, offset + done);
    if (r >= 0 && (size_t)r < len - done && pending) {
        /* The end of the file may lie further: pending writes behind the range move it. */
        done += (size_t)r;
        cl_dirty_flush(f->i, 0, CL_ALL);
        r = transfer(f, PST_OP_READ, 0, (uint8_t *)buf + done, len - done, offset + done);
    }
    return r < 0 ? (done ? (int64_t)done : r) : (int64_t)done + r;
}

int64_t cl_pread(struct cl_file *f, void *buf, size_t len, uint64_t offset)
{
    bool hold = false;
    uint64_t seen;
    int64_t r;

    if (!mine(f->c))
        return -ECHILD;
    if (!readable(f))
        return -EBADF;
    if (len > INT64_MAX || offset > INT64_MAX - len)
        return -EINVAL;
    if (!len)
        return 0;
    for (;;) {
        seen = cl_dirty_read_begin(f->i, hold);
        r = read_flushed(f, buf, len, offset);
        if (cl_dirty_read_end(f->i, seen, hold))
            return r;
        hold = true; /* so that a writer who goes on does not keep us here for ever */
    }
}

static uint32_t dsync(const struct cl_file *f)
{
    return f->flags & (O_DSYNC | O_SYNC) ? PST_OPF_DSYNC : 0;
}

/* Without write-behind: everything pending of the range is there first. */
static int64_t write_through(struct cl_file *f, const uint8_t *p, size_t len, uint64_t offset, uint32_t opf)
{
    int64_t r;

    cl_dirty_flush(f->i, offset, len);
    atomic_fetch_add(&f->i->gen, 1);
    r = transfer(f, PST_OP_WRITE, dsync(f) | opf, (uint8_t *)(uintptr_t)p, len, offset);
    atomic_fetch_add(&f->i->gen, 1);
    return r;
}

static int write_check(struct cl_file *f, size_t len, uint64_t offset)
{
    if (!mine(f->c))
        return -ECHILD;
    if (!writable(f))
        return -EBADF;
    if (len > PST_FILE_MAX || offset > PST_FILE_MAX - len)
        return -EFBIG;
    /* An earlier write failed and was not reported yet: who fills a full store must not go on for ever. */
    return atomic_load(&f->err);
}

/* given: as in cl_dirty_write. */
static int64_t write_at(struct cl_file *f, const uint8_t *buf, size_t len, uint64_t offset, uint32_t opf,
                        struct cl_mem **given)
{
    size_t done = 0;
    int64_t r = write_check(f, len, offset);

    if (r < 0 || !len)
        return r;
    if (f->flags & O_APPEND)
        return cl_append(f, buf, len, NULL, opf);
    f->changed = true;
    if (!(f->flags & (O_DIRECT | O_DSYNC | O_SYNC))) {
        r = cl_dirty_write(f, buf, len, offset, opf, given, &done);
        if (r == 0)
            return (int64_t)len;
        /* No memory for buffers: then without them. */
    }
    r = write_through(f, buf + done, len - done, offset + done, opf);
    return r < 0 ? (done ? (int64_t)done : r) : (int64_t)done + r;
}

int64_t cl_pwrite(struct cl_file *f, const void *buf, size_t len, uint64_t offset, uint32_t opf)
{
    return write_at(f, buf, len, offset, opf, NULL);
}

int64_t cl_pwrite_mem(struct cl_file *f, struct cl_mem **m, size_t len, uint64_t offset, uint32_t opf)
{
    return len <= CL_MEM ? write_at(f, (*m)->data, len, offset, opf, m) : -EINVAL;
}

int64_t cl_append(struct cl_file *f, const void *buf, size_t len, uint64_t *ret_offset, uint32_t opf)
{
    uint64_t first = 0;
    size_t done = 0;
    int64_t r = write_check(f, len, 0);

    if (r < 0 || !len)
        return r;
    f->changed = true;
    cl_dirty_flush(f->i, 0, CL_ALL); /* it may make the file longer */
    atomic_fetch_add(&f->i->gen, 1);
    while (done < len && r >= 0) {
        struct iovec iov = {(uint8_t *)(uintptr_t)buf + done, min_u64(len - done, PST_IO_MAX)};
        struct pst_op op = {.kind = PST_OP_WRITE, .flags = PST_OPF_APPEND | dsync(f) | opf,
                            .cont = f->c->cont, .ino = f->i->ino, .length = iov.iov_len, .iov = &iov, .iovcnt = 1};
        r = cl_op_run(f->c, &op);
        if (r > 0 && !done)
            first = op.offset;
        done += r > 0 ? (size_t)r : 0;
        if (r >= 0 && (size_t)r < iov.iov_len)
            break;
    }
    atomic_fetch_add(&f->i->gen, 1);
    if (!done)
        return r < 0 ? r : -EIO;
    if (ret_offset)
        *ret_offset = first;
    return (int64_t)done;
}

int cl_flush(struct cl_file *f)
{
    if (!mine(f->c))
        return -ECHILD;
    cl_dirty_flush_one(f->i, false);
    cl_dirty_flush(f->i, 0, CL_ALL);
    return atomic_load(&f->err);
}

static int sync_op(struct client *c, enum pst_op_kind kind, uint64_t ino)
{
    struct pst_op op = {.kind = kind, .cont = c->cont, .ino = ino};

    return (int)cl_op_run(c, &op);
}

int cl_flush_durable(struct cl_file *f)
{
    int r = 0, failed, others, none = 0;

    if (!mine(f->c))
        return -ECHILD;
    atomic_store(&f->changed, false); /* first: a write meanwhile sets it again */
    if (!cl_dirty_flush_one(f->i, true)) {
        cl_dirty_flush(f->i, 0, CL_ALL);
        r = sync_op(f->c, PST_OP_FSYNC, f->i->ino);
        if (r == -EIO) /* what it says may be said once: every handle of the object is to hear it */
            cl_sync_failed(f, r);
    }
    /* The bytes that other handles had pending are to be durable too: that they are not, is told to each that asks. */
    others = cl_dirty_others_failed(f);
    if (others)
        atomic_compare_exchange_strong(&f->err, &none, others);
    failed = atomic_load(&f->err);
    r = failed ? failed : r;
    if (r)
        atomic_store(&f->changed, true);
    return r;
}

int cl_fsync(struct cl_file *f)
{
    int r = cl_flush_durable(f);

    if (r == -ECHILD)
        return r;
    atomic_compare_exchange_strong(&f->err, &(int){r}, 0);
    return r;
}

int cl_fallocate(struct cl_file *f, int mode, uint64_t offset, uint64_t len, uint32_t opf)
{
    struct pst_op op = {.kind = PST_OP_ALLOCATE, .flags = opf, .cont = f->c->cont, .ino = f->i->ino, .offset = offset,
                        .length = len};
    int r = write_check(f, len, offset);

    if (r < 0)
        return r;
    if (mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE))
        op.kind = PST_OP_PUNCH;
    else if (mode == FALLOC_FL_KEEP_SIZE)
        op.flags |= PST_OPF_KEEP_SIZE;
    else if (mode != 0)
        return -EOPNOTSUPP;
    if (!len)
        return -EINVAL;
    f->changed = true;
    cl_dirty_flush(f->i, 0, CL_ALL);
    atomic_fetch_add(&f->i->gen, 1);
    r = (int)cl_op_run(f->c, &op);
    r = r < 0 ? r : 0;
    atomic_fetch_add(&f->i->gen, 1);
    return r;
}

int64_t cl_lseek(struct cl_file *f, uint64_t offset, int whence)
{
    struct pst_op op = {.kind = whence == SEEK_DATA ? PST_OP_SEEK_DATA : PST_OP_SEEK_HOLE, .cont = f->c->cont,
                        .ino = f->i->ino, .offset = offset};

    if (!mine(f->c))
        return -ECHILD;
    if (whence != SEEK_DATA && whence != SEEK_HOLE)
        return -EINVAL;
    cl_dirty_flush(f->i, 0, CL_ALL);
    return cl_op_run(f->c, &op);
}

int cl_close(struct cl_file *f)
{
    struct client *c;
    int r;

    if (!f)
        return 0;
    c = f->c;
    if (!mine(c))
        return -ECHILD;
    r = c->durable_close && f->changed ? cl_fsync(f) : cl_flush(f);
    cl_ahead_done(f);
    pst_store_release(c->cont, f->i->ino);
    cl_inode_put(f->i);
    free(f);
    return r;
}

int cl_fsync_dir(struct client *c, uint64_t ino)
{
    return mine(c) ? sync_op(c, PST_OP_FSYNC, ino) : -ECHILD;
}

int cl_syncfs(struct client *c)
{
    int r, failed;

    if (!mine(c))
        return -ECHILD;
    cl_dirty_flush_client(c);
    r = sync_op(c, PST_OP_SYNCFS, 0);
    scoped_lock(&c->lock);
    failed = c->failed; /* since the last call: what is lost cannot be made durable */
    c->failed = 0;
    return failed ? failed : r;
}

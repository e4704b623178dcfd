/*
 * Locks of a container on a server: granted by this process as long as the server says that no other mount has it open;
 * refused with ENOLCK otherwise. (A store of this process's own needs none of this: the kernel's own locks do.)
 */
#include "fm.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

struct waiter {
    struct lk_wait w;
    struct fm *m;
    fuse_req_t req;
    int fd; /* to answer on */
    pthread_mutex_t lock; /* held while it is being queued; of `interrupted` */
    bool interrupted;
};

/* Asked at each lock: another mount may have come since the last one. */
static bool alone(struct fm *m)
{
    struct pst_ctx ctx = fm_ctx(NULL);
    struct pst_cont_info info;

    return !pst_cont_query(cl_store(m->cl), &ctx, m->cont->info.pool, m->cont->info.label, &info) && info.mounts == 1;
}

/* It may be another thread's request. */
static void reply(struct waiter *w, int r)
{
    int was = fm_answer_to(w->fd);

    fm_reply_err(w->req, r);
    fm_answer_to(was);
}

static void waiter_free(struct waiter *w)
{
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* Answers requests that were granted. */
static void answer(struct list *granted)
{
    struct list *l;

    while ((l = list_pop_front(granted))) {
        struct waiter *w = list_entry(list_entry(l, struct lk_wait, link), struct waiter, w);
        /* Waits for an interruption that is being handled; none comes after. */
        fuse_req_interrupt_func(w->req, NULL, NULL);
        reply(w, w->w.result);
        pthread_mutex_lock(&w->lock); /* whoever queued it may not have let go of it yet */
        pthread_mutex_unlock(&w->lock);
        waiter_free(w);
    }
}

static void interrupted(fuse_req_t req, void *data)
{
    struct waiter *w = data;

    (void)req; /* the waiter has it */
    pthread_mutex_lock(&w->lock);
    w->interrupted = true;
    pthread_mutex_unlock(&w->lock);
    if (!lk_cancel(w->m->locks, &w->w))
        return; /* not queued yet, or granted: whoever has it answers */
    reply(w, -EINTR);
    waiter_free(w);
}

static void set(fuse_req_t req, uint64_t ino, enum lk_kind kind, enum lk_type type, uint64_t owner,
                struct lk_range range, int32_t pid, bool sleep)
{
    struct fm *m = fm_of(req);
    struct list granted = LIST_INIT(granted);
    struct waiter *w = NULL;
    int r;

    if (type != LK_NONE && !alone(m)) {
        fm_reply_err(req, -ENOLCK);
        return;
    }
    r = lk_set(m->locks, ino, kind, type, owner, range, pid, NULL, &granted);
    answer(&granted);
    if (r != -EAGAIN || !sleep) {
        fuse_reply_err(req, r == -EAGAIN ? EAGAIN : fm_errno(r));
        return;
    }
    w = calloc(1, sizeof(*w));
    if (!w) {
        fm_reply_err(req, -ENOMEM);
        return;
    }
    pthread_mutex_init(&w->lock, NULL);
    list_init(&w->w.link);
    w->m = m;
    w->req = req;
    w->fd = fm_answer_fd();
    fuse_req_interrupt_func(req, interrupted, w);
    /* Queued with w->lock held: an interruption either is seen here or finds it on the queue. */
    pthread_mutex_lock(&w->lock);
    r = w->interrupted ? -EINTR : lk_set(m->locks, ino, kind, type, owner, range, pid, &w->w, &granted);
    pthread_mutex_unlock(&w->lock);
    if (r != 1) {
        fuse_req_interrupt_func(req, NULL, NULL);
        fm_reply_err(req, r);
        waiter_free(w);
    }
    answer(&granted);
}

void fm_unlock_owner(struct fm *m, uint64_t ino, enum lk_kind kind, uint64_t owner)
{
    struct list granted = LIST_INIT(granted);

    lk_set(m->locks, ino, kind, LK_NONE, owner, (struct lk_range){0, UINT64_MAX}, 0, NULL, &granted);
    answer(&granted);
}

static enum lk_type type_of(int l_type)
{
    return l_type == F_RDLCK ? LK_READ : l_type == F_WRLCK ? LK_WRITE : LK_NONE;
}

/* The kernel has made the range absolute; l_len 0 is up to the end of all. */
static struct lk_range range_of(const struct flock *l)
{
    return (struct lk_range){(uint64_t)l->l_start,
                             l->l_len ? (uint64_t)l->l_start + (uint64_t)l->l_len - 1 : UINT64_MAX};
}

static void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock, int sleep)
{
    set(req, ino, LK_POSIX, type_of(lock->l_type), fi->lock_owner, range_of(lock), lock->l_pid, sleep);
}

static void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock)
{
    struct fm *m = fm_of(req);
    struct lk_range range;
    struct flock l = *lock;
    enum lk_type type;

    if (!alone(m)) {
        fm_reply_err(req, -ENOLCK);
        return;
    }
    l.l_type = F_UNLCK;
    type = lk_test(m->locks, ino, type_of(lock->l_type), fi->lock_owner, range_of(lock), &range, &l.l_pid);
    if (type != LK_NONE) {
        l.l_type = type == LK_READ ? F_RDLCK : F_WRLCK;
        l.l_whence = SEEK_SET;
        l.l_start = (off_t)range.start;
        l.l_len = range.end >= INT64_MAX ? 0 : (off_t)(range.end - range.start + 1);
    }
    fuse_reply_lock(req, &l);
}

static void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
    enum lk_type type = (op & LOCK_EX) ? LK_WRITE : (op & LOCK_SH) ? LK_READ : LK_NONE;

    set(req, ino, LK_FLOCK, type, fi->lock_owner, (struct lk_range){0, UINT64_MAX}, 0, !(op & LOCK_NB));
}

void fm_ops_lock(struct fuse_lowlevel_ops *ops)
{
    ops->getlk = op_getlk;
    ops->setlk = op_setlk;
    ops->flock = op_flock;
}

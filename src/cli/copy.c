/*
 * One thread walks the source and makes directories; the others copy what is not a directory, from a bounded queue.
 * What must come last is kept back until the others are done: further names of hard-linked files, and the attributes of
 * directories (their times change with each entry; their mode may forbid writing).
 */
#include "copy.h"
#include "inomap.h"
#include "walk.h"

#include "base/err.h"
#include "base/list.h"
#include "base/park.h"

#include <errno.h>
#include <string.h>

#define QUEUE_MAX 1024u /* files that wait for a thread */
#define BLOCK     (1 * MiB)

struct job {
    struct list link;
    struct stat st;
    char *from, *to; /* to: behind from, in the same allocation */
    bool at_dst;     /* what failed, failed at the destination */
    char text[];
};

struct copy {
    struct side *src, *dst;
    const char *to_root;
    const struct copy_opts *o;
    pthread_mutex_t lock; /* all below */
    struct park more;     /* the workers */
    pthread_cond_t room; /* who walks */
    struct list queue, dirs, links; /* dirs, links: by the walker only */
    unsigned queued;
    bool walked; /* no more will come */
    uint64_t total;
    struct inomap *seen; /* by the walker only */
    struct copy_result res;
};

static void note_error(struct copy *c, const struct side *side, const char *path, int err)
{
    /* A name that cannot be made because it is not there: the directory above it is meant. */
    bool above = err == -ENOENT && side == c->dst;

    scoped_lock(&c->lock);
    c->res.failed++;
    if (!c->res.first_error)
        c->res.first_error = err;
    cli_error("%s%s: %s (%s)", side->base ? side->base : "", path,
              above ? "there is no directory above it" : err_text(err), err_name(err));
}

static struct job *job_new(const char *from, const char *to, const struct stat *st)
{
    size_t n = strlen(from) + 1, m = strlen(to) + 1;
    struct job *j = malloc(sizeof *j + n + m);

    if (!j)
        return NULL;
    list_init(&j->link);
    j->at_dst = false;
    j->st = *st;
    j->from = j->text;
    j->to = j->text + n;
    memcpy(j->from, from, n);
    memcpy(j->to, to, m);
    return j;
}

/* ---- attributes ---- */

/* Attributes of the user are wanted; those of the system as far as the other side takes them. */
static int copy_xattrs(struct side *src, const char *from, struct side *dst, const char *to)
{
    char names[4096], *all = names, *p;
    cleanup_free char *heap = NULL;
    cleanup_free char *value = NULL;
    int64_t n = src->ops->listxattr(src, from, names, sizeof names), k;
    int r = 0;

    if (n == -ERANGE && (heap = malloc(64 * KiB)) != NULL) {
        all = heap;
        n = src->ops->listxattr(src, from, heap, 64 * KiB);
    }
    if (n <= 0)
        return n == -EOPNOTSUPP ? 0 : (int)n;
    value = malloc(64 * KiB);
    if (!value)
        return -ENOMEM;
    for (p = all; r == 0 && p < all + n; p += strlen(p) + 1) {
        k = src->ops->getxattr(src, from, p, value, 64 * KiB);
        r = k < 0 ? (int)k : dst->ops->setxattr(dst, to, p, value, (size_t)k);
        if (strncmp(p, "user.", 5) != 0 || r == -ENODATA)
            r = 0;
    }
    return r;
}

int copy_attrs(struct side *src, const char *from, const struct stat *st, struct side *dst, const char *to)
{
    const struct timespec t[2] = {st->st_atim, st->st_mtim};
    bool link = S_ISLNK(st->st_mode);
    struct stat now;
    int r = dst->ops->lstat(dst, to, &now);

    if (r == 0 && (now.st_uid != st->st_uid || now.st_gid != st->st_gid)) {
        r = dst->ops->chown(dst, to, st->st_uid, st->st_gid);
        if (r == -EPERM) /* only the privileged give files away, as with cp -p */
            r = 0;
        now.st_mode = 0; /* its set-id bits may be gone */
    }
    if (r == 0 && !link && (now.st_mode & 07777) != (st->st_mode & 07777))
        r = dst->ops->chmod(dst, to, st->st_mode & 07777);
    if (r == 0 && !link)
        r = copy_xattrs(src, from, dst, to);
    return r == 0 ? dst->ops->utimens(dst, to, t) : r;
}

/*
 * As copy_attrs, of a file that was just made and is open: by its handle. Its time comes last and only when all bytes
 * are there: a file with the right size and time is left alone by the next copy.
 */
static int new_attrs(struct copy *c, const struct job *j, struct side_file *f)
{
    const struct side_ops *ops = c->dst->ops;
    const struct stat *st = &j->st;
    const struct timespec t[2] = {st->st_atim, st->st_mtim};
    struct stat now;
    int r = ops->flush(f);

    if (r == 0)
        r = ops->fstat(f, &now);
    if (r == 0 && (now.st_uid != st->st_uid || now.st_gid != st->st_gid)) {
        r = ops->fchown(f, st->st_uid, st->st_gid);
        if (r == -EPERM)
            r = 0;
        now.st_mode = 0;
    }
    if (r == 0 && (now.st_mode & 07777) != (st->st_mode & 07777))
        r = ops->fchmod(f, st->st_mode & 07777);
    if (r == 0)
        r = copy_xattrs(c->src, j->from, c->dst, j->to);
    return r == 0 ? ops->futimens(f, t) : r;
}

/* ---- one file ---- */

/* The next range with data at or after `at`; false: only a hole until the end. */
static bool next_data(struct side *s, struct side_file *f, uint64_t at, uint64_t size, uint64_t *ret_from,
                      uint64_t *ret_to)
{
    int64_t from = s->ops->seek(f, at, SEEK_DATA), to;

    if (from == -ENXIO)
        return false;
    if (from < 0) { /* a file system without holes */
        *ret_from = at;
        *ret_to = size;
        return at < size;
    }
    to = s->ops->seek(f, (uint64_t)from, SEEK_HOLE);
    *ret_from = (uint64_t)from;
    *ret_to = to < 0 ? size : (uint64_t)to;
    return (uint64_t)from < size;
}

/* Asking for one byte more than the file had tells whether it grew. A short read is the end. */
static int copy_range(struct copy *c, struct job *j, struct side_file *in, struct side_file *out, char *buf,
                      uint64_t at, uint64_t end)
{
    uint64_t size = (uint64_t)j->st.st_size;
    bool more = true;

    while (at < end && more) {
        uint64_t want = min_u64(BLOCK, min_u64(end - at, size >= at ? size - at + 1 : BLOCK));
        int64_t n = c->src->ops->pread(in, buf, want, at);
        more = n == (int64_t)want;
        j->at_dst = n > 0;
        if (n > 0)
            n = c->dst->ops->pwrite(out, buf, (size_t)n, at);
        if (n < 0)
            return (int)n;
        at += (uint64_t)n;
        progress_add(c->o->progress, (uint64_t)n, 0);
        scoped_lock(&c->lock);
        c->res.bytes += (uint64_t)n;
    }
    return 0;
}

static int copy_data(struct copy *c, struct job *j, struct side_file *in, struct side_file *out, char *buf)
{
    uint64_t size = (uint64_t)j->st.st_size, at = 0, from, to;
    /* Asking for holes is a round trip: only for files that take less space than their size. */
    bool sparse = (uint64_t)j->st.st_blocks * 512 < size;
    int r = 0;

    if (!sparse)
        return copy_range(c, j, in, out, buf, 0, UINT64_MAX);
    while (r == 0 && next_data(c->src, in, at, size, &from, &to)) {
        r = copy_range(c, j, in, out, buf, from, to);
        at = to;
    }
    if (r < 0)
        return r;
    j->at_dst = true;
    return c->dst->ops->truncate(out, size);
}

static int same_data(struct copy *c, struct job *j, char *buf)
{
    cleanup_free char *other = malloc(BLOCK);
    struct side_file *a = NULL, *b = NULL;
    uint64_t at = 0;
    int r = other ? c->src->ops->open(c->src, j->from, O_RDONLY, 0, &a) : -ENOMEM;

    j->at_dst = r == 0;
    if (r == 0)
        r = c->dst->ops->open(c->dst, j->to, O_RDONLY, 0, &b);
    while (r == 0) {
        int64_t n = c->src->ops->pread(a, buf, BLOCK, at), m = n < 0 ? n : c->dst->ops->pread(b, other, BLOCK, at);
        j->at_dst = n >= 0;
        if (m < 0)
            r = (int)m;
        else if (n != m || memcmp(buf, other, (size_t)n) != 0)
            break; /* r is 0: they differ */
        else if (n == 0)
            r = 1;
        at += (uint64_t)n;
    }
    if (a)
        c->src->ops->close(a);
    if (b)
        c->dst->ops->close(b);
    return r;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* 1: the destination has this file; 0: it is to be written; or -errno. What is in the way is removed. */
static int have(struct copy *c, struct job *j, char *buf)
{
    struct stat d;
    int r = c->dst->ops->lstat(c->dst, j->to, &d);

    j->at_dst = true;
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (S_ISDIR(d.st_mode))
        return -EISDIR;
    if (!S_ISREG(j->st.st_mode) || !S_ISREG(d.st_mode)) {
        r = c->dst->ops->unlink(c->dst, j->to);
        return r == -ENOENT ? 0 : r;
    }
    if (d.st_size != j->st.st_size)
        return 0;
    return c->o->checksum ? same_data(c, j, buf) : same_time(d.st_mtim, j->st.st_mtim);
}

static int copy_file(struct copy *c, struct job *j, char *buf)
{
    struct side_file *in = NULL, *out = NULL;
    int r = c->src->ops->open(c->src, j->from, O_RDONLY, 0, &in), e;

    j->at_dst = r == 0;
    if (r < 0)
        return r;
    r = c->dst->ops->open(c->dst, j->to, O_WRONLY | O_CREAT | O_TRUNC, 0600, &out);
    if (r == 0) {
        r = copy_data(c, j, in, out, buf);
        e = c->dst->ops->close(out);
        r = r < 0 ? r : e;
    }
    c->src->ops->close(in);
    return r;
}

/*
 * To a container each call is a round trip: a file that is new there is made at once, and gets its attributes by its
 * handle. -EEXIST: something is there already.
 */
static int copy_new(struct copy *c, struct job *j, char *buf)
{
    struct side_file *in = NULL, *out = NULL;
    /* Readable for no more than it will be in the end: that is known when the owner will not change. */
    bool ours = !c->o->no_attrs && j->st.st_uid == geteuid() && j->st.st_gid == getegid();
    int r = c->src->ops->open(c->src, j->from, O_RDONLY, 0, &in), e;

    j->at_dst = r == 0;
    if (r < 0)
        return r;
    r = c->dst->ops->open(c->dst, j->to, O_WRONLY | O_CREAT | O_EXCL, ours ? j->st.st_mode & 0777 : 0600, &out);
    if (r == 0) {
        r = copy_data(c, j, in, out, buf);
        if (r == 0 && !c->o->no_attrs)
            r = new_attrs(c, j, out);
        e = c->dst->ops->close(out);
        r = r < 0 ? r : e;
        if (r == -EEXIST)
            r = -EIO;
    }
    c->src->ops->close(in);
    return r;
}

static int copy_special(struct copy *c, struct job *j)
{
    char target[SIDE_PATH_MAX];
    int64_t n;

    if (S_ISLNK(j->st.st_mode)) {
        n = c->src->ops->readlink(c->src, j->from, target, sizeof target);
        j->at_dst = n >= 0;
        return n < 0 ? (int)n : c->dst->ops->symlink(c->dst, target, j->to);
    }
    return c->dst->ops->mknod(c->dst, j->to, j->st.st_mode & (S_IFMT | 0700), j->st.st_rdev);
}

static void do_job(struct copy *c, struct job *j, char *buf)
{
    int r = S_ISREG(j->st.st_mode) && c->dst->ops->remote ? copy_new(c, j, buf) : -EEXIST, skipped = 0;

    if (r == -EEXIST) {
        r = have(c, j, buf);
        skipped = r == 1;
        if (r == 0)
            r = S_ISREG(j->st.st_mode) ? copy_file(c, j, buf) : copy_special(c, j);
        if (r >= 0 && !c->o->no_attrs)
            r = copy_attrs(c->src, j->from, &j->st, c->dst, j->to);
    }
    if (r < 0) {
        note_error(c, j->at_dst ? c->dst : c->src, j->at_dst ? j->to : j->from, r);
        return;
    }
    progress_add(c->o->progress, skipped && S_ISREG(j->st.st_mode) ? (uint64_t)j->st.st_size : 0, 1);
    scoped_lock(&c->lock);
    if (c->o->verbose && !skipped)
        fprintf(stderr, "%s\n", j->to);
    c->res.files++;
    c->res.skipped += (unsigned)skipped;
}

static void *work(void *arg)
{
    struct copy *c = arg;
    cleanup_free char *buf = aligned_alloc(4096, BLOCK);

    pthread_mutex_lock(&c->lock);
    for (;;) {
        struct list *l;
        struct job *j;
        while (list_empty(&c->queue) && !c->walked)
            park_sleep(&c->more, &c->lock);
        l = list_pop_front(&c->queue);
        if (!l)
            break;
        c->queued--;
        pthread_cond_signal(&c->room);
        pthread_mutex_unlock(&c->lock);
        j = list_entry(l, struct job, link);
        if (buf)
            do_job(c, j, buf);
        else
            note_error(c, c->src, j->from, -ENOMEM);
        free(j);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- the walk ---- */

static int target_of(const struct copy *c, const char *rel, char ret[SIDE_PATH_MAX])
{
    if (*rel)
        return side_join(c->to_root, rel, ret);
    return snprintf(ret, SIDE_PATH_MAX, "%s", c->to_root) >= SIDE_PATH_MAX ? -ENAMETOOLONG : 0;
}

static void enqueue(struct copy *c, struct job *j)
{
    pthread_mutex_lock(&c->lock);
    while (c->queued >= QUEUE_MAX)
        pthread_cond_wait(&c->room, &c->lock);
    list_push_back(&c->queue, &j->link);
    c->queued++;
    c->total += S_ISREG(j->st.st_mode) ? (uint64_t)j->st.st_size : 0;
    progress_total(c->o->progress, c->total, false);
    park_wake_one(&c->more);
    pthread_mutex_unlock(&c->lock);
}

static int on_entry(void *user, const char *path, const char *rel, const struct stat *st)
{
    struct copy *c = user;
    char to[SIDE_PATH_MAX];
    const char *first;
    struct job *j;
    int r = target_of(c, rel, to);

    if (r < 0) {
        note_error(c, c->src, path, r);
        return 0;
    }
    if (st->st_nlink > 1 && (first = inomap_find(c->seen, st->st_dev, st->st_ino)) != NULL) {
        j = job_new(first, to, st);
        if (!j)
            return -ENOMEM;
        list_push_back(&c->links, &j->link);
        return 0;
    }
    j = job_new(path, to, st);
    if (!j || (st->st_nlink > 1 && inomap_add(c->seen, st->st_dev, st->st_ino, to) < 0)) {
        free(j);
        return -ENOMEM;
    }
    enqueue(c, j);
    return 0;
}

static int on_dir(void *user, const char *path, const char *rel, const struct stat *st)
{
    struct copy *c = user;
    char to[SIDE_PATH_MAX];
    struct stat d;
    struct job *j;
    int r = target_of(c, rel, to);

    if (r == 0 && !c->o->recursive) {
        cli_error("%s%s is a directory: use penstock cp -r", c->src->base ? c->src->base : "", path);
        c->res.failed++;
        c->res.first_error = -EISDIR;
        return 1;
    }
    if (r == 0)
        r = c->dst->ops->mkdir(c->dst, to, 0700);
    if (r == -EEXIST) {
        r = c->dst->ops->lstat(c->dst, to, &d);
        if (r == 0 && !S_ISDIR(d.st_mode)) /* also a link to a directory: its tree is not ours to write to */
            r = -ENOTDIR;
    }
    if (r < 0) {
        note_error(c, c->dst, to, r);
        return 1;
    }
    j = job_new(path, to, st);
    if (!j)
        return -ENOMEM;
    list_push_front(&c->dirs, &j->link); /* so that a directory comes after what is below it */
    return 0;
}

static int on_failed(void *user, const char *path, int err)
{
    struct copy *c = user;

    note_error(c, c->src, path, err);
    return 0;
}

static void make_links(struct copy *c)
{
    struct list *l;

    while ((l = list_pop_front(&c->links)) != NULL) {
        struct job *j = list_entry(l, struct job, link);
        struct stat a, b;
        int r = c->dst->ops->lstat(c->dst, j->from, &a);
        if (r == 0 && c->dst->ops->lstat(c->dst, j->to, &b) == 0) {
            if (a.st_ino == b.st_ino && a.st_dev == b.st_dev)
                goto done;
            r = S_ISDIR(b.st_mode) ? -EISDIR : c->dst->ops->unlink(c->dst, j->to);
        }
        if (r == 0)
            r = c->dst->ops->link(c->dst, j->from, j->to);
        if (r < 0)
            note_error(c, c->dst, j->to, r);
        else
            c->res.files++;
    done:
        free(j);
    }
}

static void finish_dirs(struct copy *c)
{
    struct list *l;

    while ((l = list_pop_front(&c->dirs)) != NULL) {
        struct job *j = list_entry(l, struct job, link);
        int r = c->o->no_attrs ? 0 : copy_attrs(c->src, j->from, &j->st, c->dst, j->to);
        if (r < 0)
            note_error(c, c->dst, j->to, r);
        free(j);
    }
}

static int run(struct copy *c, const char *from)
{
    struct walk w = {.side = c->src, .user = c, .entry = on_entry, .dir_begin = on_dir, .failed = on_failed};
    unsigned n = 0, jobs = (unsigned)c->o->jobs;
    pthread_t threads[64];
    int r;

    while (n < jobs && n < ARRAY_SIZE(threads) && pthread_create(&threads[n], NULL, work, c) == 0)
        n++;
    if (n == 0)
        return -EAGAIN;
    r = walk_run(&w, from);
    pthread_mutex_lock(&c->lock);
    c->walked = true;
    progress_total(c->o->progress, c->total, true);
    park_wake_all(&c->more);
    pthread_mutex_unlock(&c->lock);
    while (n > 0)
        pthread_join(threads[--n], NULL);
    if (r < 0)
        note_error(c, c->src, from, r);
    make_links(c);
    finish_dirs(c);
    return 0;
}

int copy_run(struct side *src, const char *from, struct side *dst, const char *to, const struct copy_opts *o,
             struct copy_result *ret)
{
    struct copy c = {.src = src, .dst = dst, .to_root = to, .o = o, .seen = inomap_new()};
    int r = c.seen ? 0 : -ENOMEM;

    pthread_mutex_init(&c.lock, NULL);
    park_init(&c.more);
    pthread_cond_init(&c.room, NULL);
    list_init(&c.queue);
    list_init(&c.dirs);
    list_init(&c.links);
    side_keep_dirs(src);
    side_keep_dirs(dst);
    if (r == 0)
        r = run(&c, from);
    side_drop_dirs(src);
    side_drop_dirs(dst);
    inomap_free(c.seen);
    pthread_cond_destroy(&c.room);
    pthread_mutex_destroy(&c.lock);
    *ret = c.res;
    return r < 0 ? r : c.res.first_error;
}

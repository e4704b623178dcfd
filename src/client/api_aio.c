/*
 * Asynchronous operations. An aio is on exactly one list of its queue: free, flying, or done (its event waits to be
 * fetched). The event descriptor is readable exactly while `done` is not empty; both change under the queue's lock.
 */
#include "api.h"

#include "fabric/export.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#define EQ_DEPTH_MAX 65536u
#define AIO_PARTS    64
#define AIO_PARTS_IN 4 /* without an allocation */

struct aio {
    struct list link;
    struct cl_op o;
    struct pst_eq *eq;
    struct pst_file *file;
    void *cookie;
    int kind;
    struct iovec parts[AIO_PARTS_IN], *iov;
};

struct pst_eq {
    struct pst_conn *k;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list free, flying, done;
    uint32_t nflying;
    uint64_t last_id;
    int fd;
    struct aio aio[];
};

struct pst_buf {
    struct mem_region *region;
    void *mine; /* of pst_buf_alloc: unmapped at the end */
    size_t size;
    int fd; /* memfd; -1 */
    uint64_t fork_gen;
};

int pst_eq_create(struct pst_fs *fs, unsigned int depth, struct pst_eq **ret_eq)
{
    pthread_condattr_t attr;
    struct pst_eq *eq;

    if (!fs || !ret_eq || !depth || depth > EQ_DEPTH_MAX)
        return (int)api_result("pst_eq_create", NULL, -EINVAL);
    if (!api_mine(fs->k))
        return (int)api_result("pst_eq_create", NULL, -ECHILD);
    eq = calloc(1, sizeof *eq + depth * sizeof eq->aio[0]);
    if (!eq)
        return (int)api_result("pst_eq_create", NULL, -ENOMEM);
    eq->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (eq->fd < 0) {
        int r = -errno;
        free(eq);
        return (int)api_result("pst_eq_create", NULL, r);
    }
    eq->k = fs->k;
    pthread_mutex_init(&eq->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&eq->changed, &attr);
    pthread_condattr_destroy(&attr);
    list_init(&eq->free);
    list_init(&eq->flying);
    list_init(&eq->done);
    for (unsigned int i = 0; i < depth; i++) {
        eq->aio[i].eq = eq;
        list_push_back(&eq->free, &eq->aio[i].link);
    }
    *ret_eq = eq;
    return 0;
}

int pst_eq_fd(struct pst_eq *eq)
{
    return eq ? eq->fd : (int)api_result("pst_eq_fd", NULL, -EINVAL);
}

/* Lock held. */
static void recycle(struct pst_eq *eq, struct aio *a)
{
    if (a->iov != a->parts)
        free(a->iov);
    list_push_front(&eq->free, &a->link);
}

void pst_eq_destroy(struct pst_eq *eq)
{
    struct list *l;

    if (!eq || !api_mine(eq->k))
        return;
    pthread_mutex_lock(&eq->lock);
    while (eq->nflying)
        pthread_cond_wait(&eq->changed, &eq->lock);
    while ((l = list_pop_front(&eq->done)))
        recycle(eq, list_entry(l, struct aio, link));
    pthread_mutex_unlock(&eq->lock);
    close(eq->fd);
    pthread_mutex_destroy(&eq->lock);
    pthread_cond_destroy(&eq->changed);
    free(eq);
}

/* Lock held. It is over, and on no list. */
static void event(struct pst_eq *eq, struct aio *a)
{
    uint64_t one = 1;

    if (list_empty(&eq->done) && write(eq->fd, &one, sizeof one) < 0)
        log_warn("cannot signal an event queue: %s", strerror(errno));
    list_push_back(&eq->done, &a->link);
    pthread_cond_broadcast(&eq->changed);
}

static void aio_done(struct cl_op *o)
{
    struct aio *a = container_of(o, struct aio, o);
    struct pst_eq *eq = a->eq;
    struct pst_file *f = a->file;

    if (a->kind == PST_AIO_WRITE)
        atomic_fetch_add(&f->f->i->gen, 1);
    if (a->kind == PST_AIO_FSYNC) { /* as cl_fsync */
        int failed = atomic_exchange(&f->f->err, 0), others;
        if (o->op.result == -EIO)
            cl_sync_failed(f->f, -EIO);
        others = cl_dirty_others_failed(f->f);
        if (failed || others)
            o->op.result = failed ? failed : others;
    }
    pthread_mutex_lock(&f->lock);
    if (!--f->busy)
        pthread_cond_broadcast(&f->idle);
    pthread_mutex_unlock(&f->lock); /* from here on the file may go */

    scoped_lock(&eq->lock);
    list_del(&a->link);
    eq->nflying--;
    event(eq, a);
}

static int take_events(struct pst_eq *eq, struct pst_event *ret, int max)
{
    uint64_t count;
    int n = 0;

    for (; n < max && !list_empty(&eq->done); n++) {
        struct aio *a = list_entry(list_pop_front(&eq->done), struct aio, link);
        int64_t r = a->o.op.result;
        ret[n] = (struct pst_event){.file = a->file, .cookie = a->cookie, .kind = a->kind, .result = r,
                                    .offset = a->o.op.offset};
        recycle(eq, a);
    }
    if (n && list_empty(&eq->done) && read(eq->fd, &count, sizeof count) < 0)
        log_warn("cannot read an event queue's counter: %s", strerror(errno));
    return n;
}

int pst_eq_poll(struct pst_eq *eq, struct pst_event *ret_events, int max, int timeout_ms)
{
    struct timespec end;

    if (!eq || !ret_events || max <= 0)
        return (int)api_result("pst_eq_poll", NULL, -EINVAL);
    if (!api_mine(eq->k))
        return (int)api_result("pst_eq_poll", NULL, -ECHILD);
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms > 0 ? timeout_ms / 1000 : 0;
    end.tv_nsec += timeout_ms > 0 ? timeout_ms % 1000 * 1000000l : 0;
    if (end.tv_nsec >= (long)NSEC_PER_SEC) {
        end.tv_nsec -= (long)NSEC_PER_SEC;
        end.tv_sec++;
    }
    scoped_lock(&eq->lock);
    while (list_empty(&eq->done) && eq->nflying && timeout_ms) {
        int r = timeout_ms < 0 ? pthread_cond_wait(&eq->changed, &eq->lock)
                               : pthread_cond_timedwait(&eq->changed, &eq->lock, &end);
        if (r == ETIMEDOUT)
            break;
    }
    return take_events(eq, ret_events, max);
}

static int parts_copy(struct aio *a, const struct iovec *iov, int iovcnt, uint64_t *ret_len)
{
    uint64_t sum = 0;

    if (iovcnt < 0 || iovcnt > AIO_PARTS || (iovcnt && !iov))
        return -EINVAL;
    for (int i = 0; i < iovcnt; i++) {
        if ((!iov[i].iov_base && iov[i].iov_len) || iov[i].iov_len > PST_IO_MAX - sum)
            return -EINVAL;
        sum += iov[i].iov_len;
    }
    a->iov = a->parts;
    if (iovcnt > AIO_PARTS_IN) {
        a->iov = malloc((size_t)iovcnt * sizeof *iov);
        if (!a->iov)
            return -ENOMEM;
    }
    if (iovcnt)
        memcpy(a->iov, iov, (size_t)iovcnt * sizeof *iov);
    *ret_len = sum;
    return 0;
}

static struct aio *aio_take(struct pst_eq *eq)
{
    scoped_lock(&eq->lock);
    if (list_empty(&eq->free))
        return NULL;
    return list_entry(list_pop_front(&eq->free), struct aio, link);
}

static void aio_untake(struct aio *a)
{
    scoped_lock(&a->eq->lock);
    list_push_front(&a->eq->free, &a->link);
}

static void aio_start(struct aio *a, struct pst_file *f)
{
    struct pst_eq *eq = a->eq;

    pthread_mutex_lock(&f->lock);
    f->busy++;
    pthread_mutex_unlock(&f->lock);
    /* Under the lock until it is submitted: a cancel that finds it on the list finds it in its thread. */
    scoped_lock(&eq->lock);
    a->o.id = ++eq->last_id;
    list_push_back(&eq->flying, &a->link);
    eq->nflying++;
    cl_op_submit(eq->k->c, &a->o);
}

static int begin(const char *call, struct pst_file *f, int kind, const struct iovec *iov, int iovcnt, uint64_t offset,
                 struct pst_eq *eq, void *cookie)
{
    static const enum pst_op_kind kinds[] = {
        [PST_AIO_READ] = PST_OP_READ, [PST_AIO_WRITE] = PST_OP_WRITE, [PST_AIO_FSYNC] = PST_OP_FSYNC};
    int wrong = kind == PST_AIO_READ ? O_WRONLY : kind == PST_AIO_WRITE ? O_RDONLY : O_ACCMODE;
    uint64_t len = 0;
    struct aio *a;
    int r;

    if (!f || !eq || f->k != eq->k || offset > PST_FILE_MAX)
        return (int)api_result(call, NULL, -EINVAL);
    if (!api_mine(f->k))
        return (int)api_result(call, NULL, -ECHILD);
    if ((f->f->flags & O_ACCMODE) == wrong)
        return (int)api_result(call, NULL, -EBADF);
    a = aio_take(eq);
    if (!a)
        return (int)api_result(call, NULL, -EAGAIN);
    r = parts_copy(a, iov, iovcnt, &len);
    if (r < 0) {
        aio_untake(a);
        return (int)api_result(call, NULL, r);
    }
    /* Before a read also what is pending behind its range: it moves the end of the file. */
    cl_dirty_flush(f->f->i, kind == PST_AIO_FSYNC || f->f->flags & O_APPEND ? 0 : offset,
                   kind != PST_AIO_WRITE || f->f->flags & O_APPEND ? CL_ALL : len);
    a->file = f;
    a->cookie = cookie;
    a->kind = kind;
    a->o = (struct cl_op){
        .op = {.kind = kinds[kind], .cont = cl_cont(f->k->c), .ino = cl_file_ino(f->f), .offset = offset,
               .length = len, .iov = a->iov, .iovcnt = (uint32_t)iovcnt},
        .done = aio_done};
    if (kind == PST_AIO_WRITE) {
        f->f->changed = true;
        atomic_fetch_add(&f->f->i->gen, 1);
        a->o.op.flags = (f->f->flags & O_APPEND ? PST_OPF_APPEND : 0) |
                        (f->f->flags & (O_SYNC | O_DSYNC) ? PST_OPF_DSYNC : 0) |
                        api_opf(f);
    }
    if (cl_op_now(&a->o.op)) {
        scoped_lock(&eq->lock);
        event(eq, a);
        return 0;
    }
    aio_start(a, f);
    return 0;
}

int pst_aio_read(struct pst_file *file, const struct iovec *iov, int iovcnt, uint64_t offset, struct pst_eq *eq,
                 void *cookie)
{
    return begin("pst_aio_read", file, PST_AIO_READ, iov, iovcnt, offset, eq, cookie);
}

int pst_aio_write(struct pst_file *file, const struct iovec *iov, int iovcnt, uint64_t offset, struct pst_eq *eq,
                  void *cookie)
{
    return begin("pst_aio_write", file, PST_AIO_WRITE, iov, iovcnt, offset, eq, cookie);
}

int pst_aio_fsync(struct pst_file *file, struct pst_eq *eq, void *cookie)
{
    return begin("pst_aio_fsync", file, PST_AIO_FSYNC, NULL, 0, 0, eq, cookie);
}

int pst_aio_cancel(struct pst_eq *eq, void *cookie)
{
    int n = 0;

    if (!eq)
        return (int)api_result("pst_aio_cancel", NULL, -EINVAL);
    if (!api_mine(eq->k))
        return (int)api_result("pst_aio_cancel", NULL, -ECHILD);
    scoped_lock(&eq->lock);
    list_for_each (it, &eq->flying) {
        struct aio *a = list_entry(it, struct aio, link);
        if (a->cookie == cookie) {
            cl_op_cancel(eq->k->c, a->o.thread, a->o.id);
            n++;
        }
    }
    return n;
}

int pst_buf_register(struct pst_fs *fs, void *addr, size_t size, struct pst_buf **ret_buf)
{
    struct pst_buf *b;
    int r;

    if (!fs || !addr || !ret_buf)
        return (int)api_result("pst_buf_register", NULL, -EINVAL);
    if (!api_mine(fs->k))
        return (int)api_result("pst_buf_register", NULL, -ECHILD);
    b = malloc(sizeof *b);
    r = b ? mem_add(addr, size, false, &b->region) : -ENOMEM;
    if (r < 0) {
        free(b);
        return (int)api_result("pst_buf_register", NULL, r);
    }
    b->mine = NULL;
    b->fork_gen = fs->k->c->fork_gen;
    *ret_buf = b;
    return 0;
}

static void unmap(struct pst_buf *b)
{
    munmap(b->mine, b->size);
    if (b->fd >= 0)
        close(b->fd);
}

int pst_buf_alloc(struct pst_fs *fs, size_t size, struct pst_buf **ret_buf, void **ret_addr)
{
    struct pst_buf *b;
    void *p;
    int r, fd;

    if (!fs || !size || size % 4096 || !ret_buf || !ret_addr)
        return (int)api_result("pst_buf_alloc", NULL, -EINVAL);
    if (!api_mine(fs->k))
        return (int)api_result("pst_buf_alloc", NULL, -ECHILD);
    b = calloc(1, sizeof *b);
    r = b ? export_memory_or_private(pst_store_wants_shared(fs->k->c->store), size, &p, &fd) : -ENOMEM;
    if (r == 0) {
        b->mine = p;
        b->size = size;
        b->fd = fd;
        r = mem_add(p, size, false, &b->region);
        if (r < 0)
            unmap(b);
    }
    if (r < 0) {
        free(b);
        return (int)api_result("pst_buf_alloc", NULL, r);
    }
    b->region->fd = fd;
    b->fork_gen = fs->k->c->fork_gen;
    *ret_buf = b;
    *ret_addr = p;
    return 0;
}

int pst_buf_unregister(struct pst_buf *buf)
{
    int r;

    if (!buf)
        return 0;
    r = fork_is_mine(buf->fork_gen) ? mem_remove(buf->region) : -ECHILD;
    if (r == 0) {
        if (buf->mine)
            unmap(buf);
        free(buf);
    }
    return (int)api_result("pst_buf_unregister", NULL, r);
}

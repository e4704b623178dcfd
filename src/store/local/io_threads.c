/*
 * Disk I/O by pread and pwrite in threads, for where io_uring is refused. A context has up to THREADS_MAX of them, made
 * when there is work for one more.
 */
#include "parts.h"

#include "base/err.h"
#include "base/park.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#define THREADS_MAX  4u
#define THREAD_STACK (256 * KiB)

struct pool {
    struct io io;
    int fd_buffered, fd_direct, event;
    uint32_t depth;
    pthread_mutex_t mu;
    struct park work;        /* the threads */
    pthread_cond_t finished; /* who reaps */
    struct list todo, done;
    uint32_t inflight; /* submitted and not reaped */
    uint32_t idle, nthreads;
    bool stop;
    pthread_t threads[THREADS_MAX];
};

static void transfer(struct pool *p, struct io_req *r)
{
    int fd = p->fd_direct >= 0 && io_aligned(r) ? p->fd_direct : p->fd_buffered;
    uint64_t offset = r->offset;
    int64_t total = 0;
    for (uint32_t i = 0; i < r->iovcnt;) {
        /* Whole vectors in one call; a short transfer is finished piece by piece. */
        uint64_t want = 0, got, k = i;
        ssize_t n;
        for (uint32_t j = i; j < r->iovcnt; j++)
            want += r->iov[j].iov_len;
        n = r->kind == IO_READ ? preadv(fd, r->iov + i, (int)(r->iovcnt - i), (off_t)offset)
                               : pwritev(fd, r->iov + i, (int)(r->iovcnt - i), (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EINVAL && fd != p->fd_buffered) {
            fd = p->fd_buffered; /* the file system refuses the request as direct I/O */
            continue;
        }
        if (n <= 0) {
            r->result = n ? -errno : -EIO;
            return;
        }
        got = (uint64_t)n;
        total += n;
        offset += got;
        if (got == want)
            break;
        while (got >= r->iov[k].iov_len)
            got -= r->iov[k++].iov_len;
        i = (uint32_t)k;
        if (got) {
            uint64_t left = r->iov[i].iov_len - got;
            char *at = (char *)r->iov[i].iov_base + got;
            int e = r->kind == IO_READ ? pread_all(p->fd_buffered, at, left, offset)
                                       : pwrite_all(p->fd_buffered, at, left, offset);
            if (e) {
                r->result = e;
                return;
            }
            total += (int64_t)left;
            offset += left;
            i++;
        }
    }
    r->result = total;
}

static void *worker(void *arg)
{
    struct pool *p = arg;
    pthread_mutex_lock(&p->mu);
    for (;;) {
        struct list *l;
        uint64_t one = 1;
        while (!p->stop && list_empty(&p->todo)) {
            p->idle++;
            park_sleep(&p->work, &p->mu);
            p->idle--;
        }
        l = list_pop_front(&p->todo);
        if (!l)
            break;
        pthread_mutex_unlock(&p->mu);
        transfer(p, list_entry(l, struct io_req, link));
        pthread_mutex_lock(&p->mu);
        list_push_back(&p->done, l);
        pthread_cond_signal(&p->finished);
        if (write(p->event, &one, sizeof one) < 0)
            log_debug("eventfd: %s", err_text(errno));
    }
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

static int pool_open(int fd_buffered, int fd_direct, uint32_t depth, struct io **ret)
{
    pthread_condattr_t attr;
    struct pool *p;
    if (!depth || depth > 4096)
        return -EINVAL;
    p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->io.ops = &io_threads_ops;
    p->fd_buffered = fd_buffered;
    p->fd_direct = fd_direct;
    p->depth = depth;
    p->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->event < 0) {
        int r = -errno;
        free(p);
        return r;
    }
    list_init(&p->todo);
    list_init(&p->done);
    pthread_mutex_init(&p->mu, NULL);
    park_init(&p->work);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->finished, &attr);
    pthread_condattr_destroy(&attr);
    *ret = &p->io;
    return 0;
}

/* Under the lock. An error only matters while there is no thread at all. */
static int add_thread(struct pool *p)
{
    pthread_attr_t attr;
    int r;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, THREAD_STACK);
    r = -pthread_create(&p->threads[p->nthreads], &attr, worker, p);
    pthread_attr_destroy(&attr);
    if (!r)
        p->nthreads++;
    return p->nthreads ? 0 : r;
}

static int pool_submit(struct io *io, struct io_req *r, bool more)
{
    struct pool *p = (struct pool *)io;
    int64_t total = io_length(r);
    (void)more;
    if (total < 0)
        return (int)total;
    scoped_lock(&p->mu);
    if (p->inflight >= p->depth)
        return -EAGAIN;
    if (!p->idle && p->nthreads < THREADS_MAX && add_thread(p))
        return -EAGAIN;
    p->inflight++;
    list_push_back(&p->todo, &r->link);
    park_wake_one(&p->work);
    return 0;
}

static int pool_reap(struct io *io, struct io_req **ret, int max, uint64_t timeout_ns)
{
    struct pool *p = (struct pool *)io;
    struct timespec until;
    uint64_t event;
    int n = 0, r = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout_ns != UINT64_MAX) {
        uint64_t ns = (uint64_t)until.tv_nsec + timeout_ns % NSEC_PER_SEC;
        until.tv_sec += (time_t)(timeout_ns / NSEC_PER_SEC + ns / NSEC_PER_SEC);
        until.tv_nsec = (long)(ns % NSEC_PER_SEC);
    }
    scoped_lock(&p->mu);
    while (list_empty(&p->done) && p->inflight && timeout_ns && r != ETIMEDOUT)
        r = timeout_ns == UINT64_MAX ? pthread_cond_wait(&p->finished, &p->mu)
                                     : pthread_cond_timedwait(&p->finished, &p->mu, &until);
    while (n < max && !list_empty(&p->done)) {
        ret[n++] = list_entry(list_pop_front(&p->done), struct io_req, link);
        p->inflight--;
    }
    if (list_empty(&p->done) && read(p->event, &event, sizeof event) < 0 && errno != EAGAIN)
        log_debug("eventfd: %s", err_text(errno));
    return n;
}

static void pool_close(struct io *io)
{
    struct pool *p = (struct pool *)io;
    if (!p)
        return;
    pthread_mutex_lock(&p->mu);
    p->stop = true;
    park_wake_all(&p->work);
    pthread_mutex_unlock(&p->mu);
    for (uint32_t i = 0; i < p->nthreads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->finished);
    pthread_mutex_destroy(&p->mu);
    close(p->event);
    free(p);
}

static int pool_fd(struct io *io)
{
    return ((struct pool *)io)->event;
}

const struct io_ops io_threads_ops = {
    .name = "threads",
    .open = pool_open,
    .close = pool_close,
    .submit = pool_submit,
    .reap = pool_reap,
    .fd = pool_fd,
};

/* Disk I/O by io_uring: a small ring per context. Requests that are aligned go past the page cache. */
#include "parts.h"

#include "base/err.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/eventfd.h>

struct uring {
    struct io io;
    struct io_uring ring;
    int fd_buffered, fd_direct, event;
    uint32_t depth, inflight;
    uint32_t unsubmitted;
    struct list done; /* finished without the ring's help */
};

/* io_req.priv while submitted. */
enum {
    DONE,     /* bytes */
    TOTAL,    /* bytes */
    REST_IOV, /* what is left of the iov after a short transfer, owned */
    BUFFERED, /* the file system refused the request as direct I/O */
};

static int uring_open(int fd_buffered, int fd_direct, uint32_t depth, struct io **ret)
{
    struct uring *u;
    int r;
    if (!depth || depth > 4096)
        return -EINVAL;
    u = calloc(1, sizeof *u);
    if (!u)
        return -ENOMEM;
    u->io.ops = &io_uring_ops;
    u->fd_buffered = fd_buffered;
    u->fd_direct = fd_direct;
    u->depth = depth;
    list_init(&u->done);
    r = io_uring_queue_init(depth, &u->ring, 0);
    if (r) {
        free(u);
        return r;
    }
    u->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = u->event < 0 ? -errno : io_uring_register_eventfd(&u->ring, u->event);
    if (r) {
        if (u->event >= 0)
            close(u->event);
        io_uring_queue_exit(&u->ring);
        free(u);
        return r;
    }
    *ret = &u->io;
    return 0;
}

/* Hands what is prepared to the kernel. What cannot be submitted now is tried again by the next reap. */
static int uring_flush(struct uring *u)
{
    while (u->unsubmitted) {
        int r = io_uring_submit(&u->ring);
        if (r == -EINTR)
            continue;
        if (r <= 0)
            return r ? r : -EAGAIN;
        u->unsubmitted -= (uint32_t)r;
    }
    return 0;
}

/* The part of the iov after `done` bytes, in memory of its own. */
static int rest_of(struct io_req *r, uint64_t done)
{
    struct iovec *v = malloc(r->iovcnt * sizeof *v);
    uint32_t n = 0;
    if (!v)
        return -ENOMEM;
    for (uint32_t i = 0; i < r->iovcnt; i++) {
        struct iovec x = r->iov[i];
        if (done >= x.iov_len) {
            done -= x.iov_len;
            continue;
        }
        x.iov_base = (char *)x.iov_base + done;
        x.iov_len -= done;
        done = 0;
        v[n++] = x;
    }
    free((void *)(uintptr_t)r->priv[REST_IOV]);
    r->priv[REST_IOV] = (uintptr_t)v;
    return (int)n;
}

static int prepare(struct uring *u, struct io_req *r)
{
    const struct iovec *iov = r->iov;
    unsigned n = r->iovcnt;
    uint64_t offset = r->offset + r->priv[DONE];
    int fd = u->fd_buffered;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (!sqe)
        return -EAGAIN;
    if (r->priv[DONE]) {
        int k = rest_of(r, r->priv[DONE]);
        if (k < 0) {
            io_uring_prep_nop(sqe); /* the entry is taken */
            io_uring_sqe_set_data(sqe, NULL);
            u->unsubmitted++;
            u->inflight++;
            return k;
        }
        iov = (const struct iovec *)(uintptr_t)r->priv[REST_IOV];
        n = (unsigned)k;
    } else if (u->fd_direct >= 0 && !r->priv[BUFFERED] && io_aligned(r)) {
        fd = u->fd_direct;
    }
    if (r->kind == IO_READ)
        io_uring_prep_readv(sqe, fd, iov, n, offset);
    else
        io_uring_prep_writev(sqe, fd, iov, n, offset);
    io_uring_sqe_set_data(sqe, r);
    u->unsubmitted++;
    u->inflight++;
    return 0;
}

static int uring_submit(struct io *io, struct io_req *r, bool more)
{
    struct uring *u = (struct uring *)io;
    int64_t total = io_length(r);
    int e;
    if (total < 0)
        return (int)total;
    if (u->inflight >= u->depth)
        return -EAGAIN;
    memset(r->priv, 0, sizeof r->priv);
    r->priv[TOTAL] = (uint64_t)total;
    e = prepare(u, r);
    if (e)
        return e;
    if (!more)
        uring_flush(u);
    return 0;
}

/* A completion: true when the request is finished, false when it goes on. */
static bool finish(struct uring *u, struct io_req *r, int res)
{
    if (res == -EINTR || res == -EAGAIN || (res == -EINVAL && !r->priv[BUFFERED])) {
        r->priv[BUFFERED] |= res == -EINVAL;
        res = 0;
    } else if (res == 0)
        res = -EIO; /* the end of the file: the data file is always as long as its blocks */
    if (res >= 0) {
        r->priv[DONE] += (uint64_t)res;
        if (r->priv[DONE] < r->priv[TOTAL]) {
            res = prepare(u, r);
            if (!res)
                return false;
        } else {
            res = (int)r->priv[TOTAL];
        }
    }
    free((void *)(uintptr_t)r->priv[REST_IOV]);
    r->result = res;
    return true;
}

static int take(struct uring *u, struct io_req **ret, int max)
{
    struct io_uring_cqe *cqe;
    int n = 0;
    while (n < max && !io_uring_peek_cqe(&u->ring, &cqe)) {
        struct io_req *r = io_uring_cqe_get_data(cqe);
        int res = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        u->inflight--;
        if (r && finish(u, r, res))
            ret[n++] = r;
    }
    return n;
}

static int uring_reap(struct io *io, struct io_req **ret, int max, uint64_t timeout_ns)
{
    struct uring *u = (struct uring *)io;
    uint64_t deadline = timeout_ns && timeout_ns != UINT64_MAX ? now_ns() + timeout_ns : timeout_ns;
    for (;;) {
        struct io_uring_cqe *cqe;
        uint64_t event, now;
        int n, r;
        r = uring_flush(u);
        if (r && r != -EAGAIN && r != -EBUSY)
            log_debug("io_uring: submit: %s", err_text(r));
        if (read(u->event, &event, sizeof event) < 0 && errno != EAGAIN)
            log_debug("io_uring: eventfd: %s", err_text(errno));
        n = take(u, ret, max);
        if (n || !u->inflight || !timeout_ns) {
            uring_flush(u);
            /* What is left in the ring must keep the descriptor readable. */
            event = 1;
            if (io_uring_cq_ready(&u->ring) && write(u->event, &event, sizeof event) < 0)
                log_debug("io_uring: eventfd: %s", err_text(errno));
            return n;
        }
        if (timeout_ns == UINT64_MAX) {
            io_uring_submit_and_wait(&u->ring, 1);
            u->unsubmitted = io_uring_sq_ready(&u->ring);
            continue;
        }
        now = now_ns();
        if (now >= deadline)
            return 0;
        struct __kernel_timespec ts = {.tv_sec = (int64_t)((deadline - now) / NSEC_PER_SEC),
                                       .tv_nsec = (int64_t)((deadline - now) % NSEC_PER_SEC)};
        uring_flush(u);
        io_uring_wait_cqe_timeout(&u->ring, &cqe, &ts);
    }
}

static void uring_close(struct io *io)
{
    struct uring *u = (struct uring *)io;
    struct io_req *r[16];
    if (!u)
        return;
    while (u->inflight)
        uring_reap(io, r, 16, UINT64_MAX);
    io_uring_queue_exit(&u->ring);
    close(u->event);
    free(u);
}

static int uring_fd(struct io *io)
{
    return ((struct uring *)io)->event;
}

const struct io_ops io_uring_ops = {
    .name = "uring",
    .open = uring_open,
    .close = uring_close,
    .submit = uring_submit,
    .reap = uring_reap,
    .fd = uring_fd,
};

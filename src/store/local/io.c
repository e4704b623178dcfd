/* What both disk I/O tables share, and the choice between them. */
#include "parts.h"

#include "base/err.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

int pread_all(int fd, void *p, size_t n, uint64_t offset)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = pread(fd, (char *)p + done, n - done, (off_t)(offset + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r ? -errno : -EIO;
        done += (size_t)r;
    }
    return 0;
}

int pwrite_all(int fd, const void *p, size_t n, uint64_t offset)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = pwrite(fd, (const char *)p + done, n - done, (off_t)(offset + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r ? -errno : -EIO;
        done += (size_t)r;
    }
    return 0;
}

bool io_aligned(const struct io_req *r)
{
    uint64_t bits = r->offset;
    if (r->cached)
        return false;
    for (uint32_t i = 0; i < r->iovcnt; i++)
        bits |= (uintptr_t)r->iov[i].iov_base | r->iov[i].iov_len;
    return bits % PST_BLOCK == 0;
}

int64_t io_length(const struct io_req *r)
{
    uint64_t n = 0;
    if (!r->iovcnt || r->iovcnt > IOV_MAX)
        return -EINVAL;
    for (uint32_t i = 0; i < r->iovcnt; i++) {
        if (r->iov[i].iov_len > INT32_MAX - n)
            return -EINVAL;
        n += r->iov[i].iov_len;
    }
    return n ? (int64_t)n : -EINVAL;
}

int io_choose(struct engine *e, const struct errmsg *m)
{
    struct io *io = NULL;
    int r;
    e->io_ops = &io_threads_ops;
    if (e->opt.io == IO_THREADS)
        return 0;
    r = io_uring_ops.open(e->data_fd, e->direct_fd, 1, &io);
    if (!r) {
        io_uring_ops.close(io);
        e->io_ops = &io_uring_ops;
        return 0;
    }
    if (e->opt.io == IO_URING)
        return fail(m, r, "io=uring: the kernel refuses io_uring: %s; use io=auto or io=threads", err_text(r));
    log_info("%s: io_uring is refused (%s): disk I/O by threads", e->dir, err_text(r));
    return 0;
}

int eng_io_open(struct engine *e, uint32_t depth, struct io **ret)
{
    return e->io_ops->open(e->data_fd, e->direct_fd, depth, ret);
}

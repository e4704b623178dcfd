/*
 * Disk I/O on the data file: one small table, chosen at start (io=auto|uring|threads), shown in status. One io context
 * belongs to one thread; operations complete in any order.
 */
#ifndef LOCAL_IO_H
#define LOCAL_IO_H

#include "base/list.h"

#include <stdint.h>
#include <sys/uio.h>

enum io_kind { IO_READ, IO_WRITE };

/* The submitter owns it again once io_reap returns it. */
struct io_req {
    struct list link;
    enum io_kind kind;
    uint64_t offset;         /* bytes in the data file */
    const struct iovec *iov; /* borrowed; aligned to PST_BLOCK in address and length: O_DIRECT may be used */
    uint32_t iovcnt;
    bool cached;             /* goes through the page cache, also when it is aligned */
    int64_t result;          /* bytes or -errno; a short transfer is finished inside, so: all, or an error */
    void *user;
    uint64_t priv[4];        /* the implementation's, while submitted */
};

struct io;
struct io_ops {
    const char *name; /* "uring", "threads" */
    /* -ENOSYS / -EPERM when the kernel refuses it (containers, seccomp): the caller takes the next table. */
    int (*open)(int fd_buffered, int fd_direct, uint32_t depth, struct io **ret);
    void (*close)(struct io *io); /* drains first */
    /*
     * more: further submits follow before anyone waits; the one with more = false, or reap, starts them all. -EAGAIN:
     * full
     */
    int (*submit)(struct io *io, struct io_req *r, bool more);
    /* Up to max finished ones; timeout_ns 0 polls, UINT64_MAX waits for one if any is in flight. */
    int (*reap)(struct io *io, struct io_req **ret, int max, uint64_t timeout_ns);
    int (*fd)(struct io *io); /* readable when reap has something */
};
/* Embedded at the start of each implementation. */
struct io {
    const struct io_ops *ops;
};

extern const struct io_ops io_uring_ops, io_threads_ops;

#endif

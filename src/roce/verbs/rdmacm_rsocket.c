/*
 * rsockets are not there: each call says so once, and fails with ENOSYS. rpoll and rselect, which programs use for
 * descriptors of all kinds, are poll and select.
 */
#include "rdmacm_priv.h"
#include "stub.h"

#include <rdma/rsocket.h>
#include <stdarg.h>
#include <stdio.h>

static int refuse(const char *name)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        fprintf(stderr, "uroce: %s: rsockets are not supported by this librdmacm: use sockets, or verbs\n", name);
    return cma_fail(ENOSYS);
}

/* Of the generated stubs: what a newer librdmacm has. */
int stub_refuse(const char *name)
{
    vb_debug("%s: not supported", name);
    return cma_fail(EOPNOTSUPP);
}

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
    return poll(fds, nfds, timeout);
}

int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds, struct timeval *timeout)
{
    return select(nfds, readfds, writefds, exceptfds, timeout);
}

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define REFUSE(type, name, ...)                                                                                        \
    type name(__VA_ARGS__)                                                                                             \
    {                                                                                                                  \
        return (type)refuse(#name);                                                                                    \
    }
REFUSE(int, rsocket, int domain, int type, int protocol)
REFUSE(int, rbind, int socket, const struct sockaddr *addr, socklen_t addrlen)
REFUSE(int, rlisten, int socket, int backlog)
REFUSE(int, raccept, int socket, struct sockaddr *addr, socklen_t *addrlen)
REFUSE(int, rconnect, int socket, const struct sockaddr *addr, socklen_t addrlen)
REFUSE(int, rshutdown, int socket, int how)
REFUSE(int, rclose, int socket)
REFUSE(ssize_t, rrecv, int socket, void *buf, size_t len, int flags)
REFUSE(ssize_t, rrecvfrom, int socket, void *buf, size_t len, int flags, struct sockaddr *from, socklen_t *addrlen)
REFUSE(ssize_t, rrecvmsg, int socket, struct msghdr *msg, int flags)
REFUSE(ssize_t, rsend, int socket, const void *buf, size_t len, int flags)
REFUSE(ssize_t, rsendto, int socket, const void *buf, size_t len, int flags, const struct sockaddr *to,
       socklen_t addrlen)
REFUSE(ssize_t, rsendmsg, int socket, const struct msghdr *msg, int flags)
REFUSE(ssize_t, rread, int socket, void *buf, size_t count)
REFUSE(ssize_t, rreadv, int socket, const struct iovec *iov, int iovcnt)
REFUSE(ssize_t, rwrite, int socket, const void *buf, size_t count)
REFUSE(ssize_t, rwritev, int socket, const struct iovec *iov, int iovcnt)
REFUSE(int, rgetpeername, int socket, struct sockaddr *addr, socklen_t *addrlen)
REFUSE(int, rgetsockname, int socket, struct sockaddr *addr, socklen_t *addrlen)
REFUSE(int, rsetsockopt, int socket, int level, int optname, const void *optval, socklen_t optlen)
REFUSE(int, rgetsockopt, int socket, int level, int optname, void *optval, socklen_t *optlen)
REFUSE(off_t, riomap, int socket, void *buf, size_t len, int prot, int flags, off_t offset)
REFUSE(int, riounmap, int socket, void *buf, size_t len)
REFUSE(size_t, riowrite, int socket, const void *buf, size_t count, off_t offset, int flags)

int rfcntl(int socket, int cmd, ...)
{
    return refuse("rfcntl");
}

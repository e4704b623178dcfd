/*
 * Keeps the listeners of a server alive, and descriptors for its files.
 *
 * gRPC's listener (1.51) gives up for good when accept4 fails with anything but EAGAIN or EINTR: one moment without
 * descriptors, and nobody can connect any more. The C core has no hook there for TLS connections, so the program that
 * holds a server takes accept4's place in front of the C library's: what passes is told "nothing to accept now", and
 * connections beyond the limit are closed at once, so that the store can open its files whoever connects.
 * The other listeners of the process (metrics, data: libfabric calls accept) go through it as well, to the same end.
 */
#include "accept_guard.h"

#include "base/util.h"
#include "control/rpc.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static atomic_int highest; /* first descriptor that connections may not have; 0: no guard */
static atomic_int extra;   /* descriptors above that are for the preferred listener too */
static atomic_int preferred = -1;
static _Atomic uint64_t dropped;

void accept_guard_start(void)
{
    struct rlimit l;
    uint64_t keep;

    if (getrlimit(RLIMIT_NOFILE, &l))
        return;
    keep = l.rlim_cur / 4;
    keep = keep > 256 ? 256 : keep;
    atomic_store(&extra, (int)keep / 4);
    atomic_store(&highest, (int)min_u64(l.rlim_cur - keep, INT32_MAX));
}

void rpc_server_prefer(int listener)
{
    atomic_store(&preferred, listener);
}

uint64_t accept_guard_dropped(void)
{
    return atomic_load(&dropped);
}

/* Errors of one connection, gone before it was taken, or of the moment (accept(2) has the list). */
static bool is_peers(int err)
{
    return err == ECONNABORTED || err == EPROTO || err == EPERM || err == ENETDOWN || err == EHOSTDOWN ||
           err == EHOSTUNREACH || err == ENETUNREACH || err == ENOPROTOOPT;
}

static int take(int listener, struct sockaddr *addr, socklen_t *len, int flags)
{
    socklen_t room = len ? *len : 0;

    for (;;) {
        int limit = atomic_load_explicit(&highest, memory_order_relaxed);
        int fd = (int)syscall(SYS_accept4, listener, addr, len, flags);
        if (limit && listener == atomic_load_explicit(&preferred, memory_order_relaxed))
            limit += atomic_load_explicit(&extra, memory_order_relaxed);
        if (fd >= 0 && (!limit || fd < limit))
            return fd;
        if (fd >= 0) {
            atomic_fetch_add(&dropped, 1);
            close(fd);
        } else if (limit && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            errno = EAGAIN; /* they wait in the kernel; the next one that comes wakes the listener */
            return -1;
        } else if (!limit || !is_peers(errno)) {
            return -1;
        }
        if (len)
            *len = room;
    }
}

int accept4(int listener, struct sockaddr *addr, socklen_t *len, int flags)
{
    return take(listener, addr, len, flags);
}

/* libfabric's. */
int accept(int listener, struct sockaddr *addr, socklen_t *len)
{
    return take(listener, addr, len, 0);
}

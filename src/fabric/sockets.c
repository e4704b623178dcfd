#include "fab_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* The sockets of libfabric's tcp and net are descriptors of this process, though it does not tell which. */

#define FD_LIMIT 65536 /* without /proc */

static void visit(int fd, void (*fn)(int fd, void *arg), void *arg)
{
    int type = 0;
    socklen_t len = sizeof type;

    if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) && type == SOCK_STREAM)
        fn(fd, arg);
}

void fab_each_socket(void (*fn)(int fd, void *arg), void *arg)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *de;

    if (!d) {
        for (int fd = 0; fd < FD_LIMIT; fd++)
            visit(fd, fn, arg);
        return;
    }
    while ((de = readdir(d))) {
        char *end;
        long fd = strtol(de->d_name, &end, 10);

        if (!*end && end != de->d_name && fd != dirfd(d))
            visit((int)fd, fn, arg);
    }
    closedir(d);
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

uint64_t fab_peer_hash(const struct sockaddr *sa)
{
    uint64_t h = 1, w[2];

    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)sa;

        h = mix(mix(h, in->sin_addr.s_addr), in->sin_port);
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)sa;

        memcpy(w, &in6->sin6_addr, sizeof w);
        h = mix(mix(mix(h, w[0]), w[1]), in6->sin6_port);
    }
    return h ? h : 1;
}

struct match {
    struct sockaddr_storage local, peer;
    void (*fn)(int fd);
};

static bool same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;

        return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;

        return x->sin6_port == y->sin6_port && !memcmp(&x->sin6_addr, &y->sin6_addr, sizeof x->sin6_addr);
    }
    return false;
}

static void match_one(int fd, void *arg)
{
    const struct match *m = arg;
    struct sockaddr_storage local, peer;
    socklen_t len = sizeof local;

    if (getsockname(fd, (struct sockaddr *)&local, &len) || !same(&local, &m->local))
        return;
    len = sizeof peer;
    if (!getpeername(fd, (struct sockaddr *)&peer, &len) && same(&peer, &m->peer))
        m->fn(fd);
}

static void with_socket(struct fab_conn *c, void (*fn)(int fd))
{
    struct match m = {.fn = fn};
    size_t len = sizeof m.local;

    if (fi_getname(&c->ep->fid, &m.local, &len))
        return;
    len = sizeof m.peer;
    if (!fi_getpeer(c->ep, &m.peer, &len))
        fab_each_socket(match_one, &m);
}

static void cut(int fd)
{
    (void)shutdown(fd, SHUT_RDWR);
}

void fab_socket_cut(struct fab_conn *c)
{
    with_socket(c, cut);
}

static void close_on_exec(int fd)
{
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void fab_socket_private(struct fab_conn *c)
{
    with_socket(c, close_on_exec);
}

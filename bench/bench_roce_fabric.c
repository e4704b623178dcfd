/*
 * `tcp_write`, `tcp_read`: bare libfabric RMA by its tcp provider between the same two namespaces, size= bytes at
 * depth=. The target polls, as this provider moves only in its program's calls.
 */
#include "fabric_xp.h"
#include "lib/netns.h"
#include "roce_bench.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

void xp_fail(const char *what, long err)
{
    errno = (int)(err < 0 ? -err : err);
    fatal(what);
}

void xp_tell(int fd, const void *p, size_t len)
{
    if (send(fd, p, len, MSG_NOSIGNAL) != (ssize_t)len)
        fatal("the other process");
}

void xp_hear(int fd, void *p, size_t len)
{
    if (recv(fd, p, len, MSG_WAITALL) != (ssize_t)len)
        fatal("the other process");
}

struct flight {
    uint32_t idle[XP_SLOTS], nidle;
    uint64_t done;
};

static void done(void *user, unsigned slot)
{
    struct flight *f = user;
    f->idle[f->nidle++] = slot;
    f->done++;
}

static void message(void *user, const void *msg, size_t len)
{
    (void)user;
    (void)msg;
    (void)len;
}

static void drive(struct xp *x, struct flight *f, const struct roce_args *a)
{
    bool write = strcmp(a->part, "tcp_write") == 0;
    uint64_t begun = now_ns(), end = begun + (uint64_t)(a->seconds * 1e9);
    while (now_ns() < end || f->nidle < a->depth) {
        while (f->nidle && now_ns() < end) {
            uint32_t slot = f->idle[--f->nidle];
            x->ops->rma(x, slot, write, slot * a->size, a->size);
        }
        x->ops->poll(x);
    }
    double seconds = (double)(now_ns() - begun) / 1e9;
    printf("{\"gb_per_s\": %.4f}\n", (double)(f->done * a->size) / seconds / 1e9);
}

static void serve(struct xp *x, int ctl)
{
    struct pollfd p = {ctl, POLLIN, 0};
    for (unsigned i = 0; i % 16 || poll(&p, 1, 0) == 0; i++)
        x->ops->poll(x);
}

void bench_fabric(const struct roce_args *a, const struct netns_pair *ns)
{
    int sock;
    size_t len = a->size * a->depth;
    uint8_t *mem;
    if (posix_memalign((void **)&mem, 4096, len))
        fatal("memory");
    memset(mem, 1, len);
    pid_t pid = fork_ends(&sock);
    int i = pid == 0;
    netns_enter(ns, i);
    xp_address = i ? "10.77.0.2" : "10.77.0.1";
    struct xp *x = xp_bare.open("tcp", i, sock, mem, len);
    struct flight f = {.nidle = 0};
    for (uint32_t k = 0; k < a->depth; k++)
        f.idle[f.nidle++] = k;
    x->user = &f;
    x->done = done;
    x->message = message;
    if (pid == 0) {
        serve(x, sock);
        _exit(0);
    }
    drive(x, &f, a);
    close(sock);
    waitpid(pid, NULL, 0);
    free(mem);
}

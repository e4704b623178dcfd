#include "fab_int.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

/*
 * Strangers at a TCP listener. libfabric's tcp and net accept each TCP connection and keep it, without limit of number
 * or time, until a connect request arrives; and version 1.17 reads that request from a blocking socket, so that half of
 * one stops the thread for good. libfabric has no call for either, but the sockets are this process's:
 *
 *   - the listener gets a receive time-out, which accepted sockets inherit until libfabric makes them non-blocking;
 *   - TCP connections to the listener's address that belong to no connection of the shard after half_open_ms are shut
 *     down (not closed: they are libfabric's), which it takes as their end and frees them;
 *   - one that is still there long after has been forgotten by libfabric (net does that): it is closed;
 *   - at the end all are shut down while libfabric can still see it: with its listener it forgets what it holds
 *     for them.
 */

#define RECV_TIMEOUT_US 10000
#define FORGOTTEN_NS    (60 * NSEC_PER_SEC)
#define FORGOTTEN_READS 1024u /* event queue reads in which libfabric would have seen the end */

struct fab_suspect {
    int fd;
    ino_t ino; /* of the socket: numbers are used again */
    uint64_t since_ns, cut_ns, cut_reads;
};

static bool same_local(const struct fab_shard *s, int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;

    if (getsockname(fd, (struct sockaddr *)&a, &len) || a.ss_family != s->bound.ss_family)
        return false;
    if (a.ss_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)&a, *b = (const void *)&s->bound;

        return x->sin_port == b->sin_port && (!b->sin_addr.s_addr || b->sin_addr.s_addr == x->sin_addr.s_addr);
    }
    if (a.ss_family == AF_INET6) {
        const struct sockaddr_in6 *x = (const void *)&a, *b = (const void *)&s->bound;

        return x->sin6_port == b->sin6_port &&
               (IN6_IS_ADDR_UNSPECIFIED(&b->sin6_addr) || !memcmp(&b->sin6_addr, &x->sin6_addr, sizeof x->sin6_addr));
    }
    return false;
}

/* Calls fn for each TCP socket with the listener's local address. */
struct filter {
    struct fab_shard *s;
    void (*fn)(struct fab_shard *s, int fd, bool listens, void *arg);
    void *arg;
};

static void filter_one(int fd, void *arg)
{
    const struct filter *f = arg;
    int listens = 0;
    socklen_t len = sizeof listens;

    if (same_local(f->s, fd) && !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len))
        f->fn(f->s, fd, listens, f->arg);
}

static void each_socket(struct fab_shard *s, void (*fn)(struct fab_shard *s, int fd, bool listens, void *arg),
                        void *arg)
{
    struct filter f = {s, fn, arg};

    fab_each_socket(filter_one, &f);
}

static void tune_one(struct fab_shard *s, int fd, bool listens, void *arg)
{
    struct timeval tv = {.tv_usec = RECV_TIMEOUT_US};

    (void)s;
    (void)arg;
    if (listens)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
}

void fab_halfopen_tune(struct fab_shard *s)
{
    each_socket(s, tune_one, NULL);
}

void fab_halfopen_arm(struct fab_shard *s, uint64_t now)
{
    if (!s->scan_ns)
        s->scan_ns = max_u64(now, s->last_scan_ns + s->f->half_open_ns);
}

struct scan {
    uint64_t now;
    uint64_t *known; /* sorted hashes of our connections' peers */
    size_t nknown;
    struct fab_suspect *found;
    size_t nfound, room;
};

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static int by_fd(const void *a, const void *b)
{
    const struct fab_suspect *x = a, *y = b;

    return x->fd < y->fd ? -1 : x->fd > y->fd;
}

static void look_at(struct fab_shard *s, int fd, bool listens, void *arg)
{
    struct scan *sc = arg;
    struct sockaddr_storage peer;
    struct fab_suspect key = {.fd = fd, .since_ns = sc->now}, *old;
    socklen_t len = sizeof peer;
    struct stat st;
    uint64_t h;

    if (listens || fstat(fd, &st))
        return;
    if (!getpeername(fd, (struct sockaddr *)&peer, &len)) {
        h = fab_peer_hash((struct sockaddr *)&peer);
        if (bsearch(&h, sc->known, sc->nknown, sizeof h, by_value))
            return;
    }
    key.ino = st.st_ino;
    old = s->nsuspects ? bsearch(&key, s->suspects, s->nsuspects, sizeof key, by_fd) : NULL;
    if (old && old->ino == key.ino)
        key = *old;
    if (sc->nfound == sc->room) {
        size_t room = sc->room ? 2 * sc->room : 64;
        struct fab_suspect *more = realloc(sc->found, room * sizeof *more);

        if (!more)
            return; /* the next scan sees it */
        sc->found = more;
        sc->room = room;
    }
    sc->found[sc->nfound++] = key;
}

/* Returns whether it is still of interest. */
static bool judge(struct fab_shard *s, struct fab_suspect *u, uint64_t now)
{
    if (!u->cut_ns) {
        if (now - u->since_ns < s->f->half_open_ns)
            return true;
        (void)shutdown(u->fd, SHUT_RDWR);
        u->cut_ns = now;
        u->cut_reads = s->eq_reads;
        return true;
    }
    if (now - u->cut_ns < FORGOTTEN_NS || s->eq_reads - u->cut_reads < FORGOTTEN_READS)
        return true;
    close(u->fd);
    return false;
}

void fab_halfopen_scan(struct fab_shard *s, uint64_t now)
{
    struct scan sc = {.now = now};
    size_t n = 0;

    s->scan_ns = 0;
    s->last_scan_ns = now;
    list_for_each (it, &s->conns)
        n++;
    sc.known = calloc(n + 1, sizeof *sc.known);
    if (!sc.known) {
        fab_halfopen_arm(s, now);
        return;
    }
    list_for_each (it, &s->conns)
        sc.known[sc.nknown++] = list_entry(it, struct fab_conn, link)->peer_hash;
    qsort(sc.known, sc.nknown, sizeof *sc.known, by_value);
    each_socket(s, look_at, &sc);
    free(sc.known);
    free(s->suspects);
    s->suspects = sc.found;
    s->nsuspects = 0;
    for (size_t i = 0; i < sc.nfound; i++)
        if (judge(s, &sc.found[i], now))
            s->suspects[s->nsuspects++] = sc.found[i];
    if (s->nsuspects) {
        qsort(s->suspects, s->nsuspects, sizeof *s->suspects, by_fd);
        fab_halfopen_arm(s, now);
    }
}

static void cut_one(struct fab_shard *s, int fd, bool listens, void *arg)
{
    (void)s;
    (void)arg;
    if (!listens)
        (void)shutdown(fd, SHUT_RDWR);
}

void fab_halfopen_end(struct fab_shard *s)
{
    if (!s->pep || !s->f->tcp_like)
        return;
    /* Twice: the first reading may take in who was waiting to be accepted. */
    for (int i = 0; i < 2; i++) {
        fab_cm_drop(s);
        each_socket(s, cut_one, NULL);
        fab_cm_drop(s);
    }
}

static void close_left(struct fab_shard *s, int fd, bool listens, void *arg)
{
    (void)s;
    (void)arg;
    if (!listens)
        close(fd);
}

void fab_halfopen_done(struct fab_shard *s)
{
    if (s->pep && s->f->tcp_like)
        each_socket(s, close_left, NULL);
    free(s->suspects);
}

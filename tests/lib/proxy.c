#include "daemon.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTENERS 3
#define PAIRS_MAX 64

struct proxy {
    pthread_t id;
    int listener[LISTENERS], port[LISTENERS];
    struct pair {
        int client, server; /* -1: free; the client's alone: it has lost the connection */
        bool swallowed;
        char *kept; /* for the server */
        size_t nkept;
    } pair[PAIRS_MAX];
    unsigned seed, left;
    _Atomic unsigned every, cuts;
    _Atomic bool stop, swallow, keep, deliver;
    _Atomic unsigned kept;
};

static int bind_to(const char *host, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    inet_pton(AF_INET, host, &a.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 64) < 0)
        abort();
    return fd;
}

static void take(struct proxy *p, int i)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)p->port[i]),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int c = accept4(p->listener[i], NULL, NULL, SOCK_CLOEXEC), s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1, k = 0;

    while (k < PAIRS_MAX && p->pair[k].server >= 0)
        k++;
    if (c < 0 || s < 0 || k == PAIRS_MAX || connect(s, (struct sockaddr *)&a, sizeof a) < 0) {
        close(c);
        close(s);
        return;
    }
    setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    p->pair[k] = (struct pair){.client = c, .server = s};
}

static void cut(struct pair *x)
{
    if (x->client >= 0)
        close(x->client);
    close(x->server);
    free(x->kept);
    *x = (struct pair){.client = -1, .server = -1};
}

static bool write_all(int fd, const char *b, ssize_t n)
{
    while (n > 0) {
        ssize_t w = send(fd, b, (size_t)n, MSG_NOSIGNAL);
        if (w <= 0)
            return false;
        b += w;
        n -= w;
    }
    return true;
}

static bool drop_now(struct proxy *p)
{
    unsigned every = atomic_load(&p->every);

    if (!every)
        return false;
    if (!p->left || p->left > every)
        p->left = 1 + (unsigned)rand_r(&p->seed) % every;
    if (--p->left)
        return false;
    atomic_fetch_add(&p->cuts, 1);
    return true;
}

static void move(struct proxy *p, struct pair *x, bool from_server)
{
    char b[65536];
    ssize_t n = recv(from_server ? x->server : x->client, b, sizeof b, 0);

    if (n > 0 && !from_server && atomic_load(&p->swallow)) {
        x->swallowed = true;
        return;
    }
    if (n > 0 && !from_server && (x->nkept || atomic_load(&p->keep))) {
        x->kept = realloc(x->kept, x->nkept + (size_t)n);
        memcpy(x->kept + x->nkept, b, (size_t)n);
        x->nkept += (size_t)n;
        atomic_fetch_add(&p->kept, (unsigned)n);
        return;
    }
    if (n > 0 && from_server && x->client < 0)
        return;
    if (n <= 0 || (from_server && drop_now(p)) || !write_all(from_server ? x->client : x->server, b, n))
        cut(x);
}

static void deliver(struct pair *x)
{
    if (!write_all(x->server, x->kept, (ssize_t)x->nkept)) {
        cut(x);
        return;
    }
    free(x->kept);
    x->kept = NULL;
    x->nkept = 0;
}

/* What has become due on a pair, by the switches. */
static void switched(struct proxy *p, struct pair *x)
{
    if (x->server >= 0 && x->swallowed && !atomic_load(&p->swallow))
        cut(x);
    if (x->client >= 0 && x->nkept && !atomic_load(&p->keep)) {
        close(x->client);
        x->client = -1;
    }
    if (x->nkept && x->client < 0 && atomic_load(&p->deliver))
        deliver(x);
}

static void *run(void *arg)
{
    struct proxy *p = arg;

    while (!atomic_load(&p->stop)) {
        struct pollfd fds[LISTENERS + 2 * PAIRS_MAX];
        for (int i = 0; i < LISTENERS; i++)
            fds[i] = (struct pollfd){.fd = p->listener[i], .events = POLLIN};
        for (int i = 0; i < PAIRS_MAX; i++) {
            fds[LISTENERS + 2 * i] = (struct pollfd){.fd = p->pair[i].client, .events = POLLIN};
            fds[LISTENERS + 2 * i + 1] = (struct pollfd){.fd = p->pair[i].server, .events = POLLIN};
        }
        poll(fds, LISTENERS + 2 * PAIRS_MAX, 50);
        for (int i = 0; i < PAIRS_MAX; i++) {
            switched(p, &p->pair[i]);
            if (p->pair[i].client >= 0 && fds[LISTENERS + 2 * i].revents)
                move(p, &p->pair[i], false);
            if (p->pair[i].server >= 0 && fds[LISTENERS + 2 * i + 1].revents)
                move(p, &p->pair[i], true);
        }
        for (int i = 0; i < LISTENERS; i++)
            if (fds[i].revents)
                take(p, i);
    }
    return NULL;
}

struct proxy *proxy_start(const struct daemon *d, unsigned every, unsigned seed)
{
    struct proxy *p = calloc(1, sizeof *p);

    p->port[0] = d->port;
    p->port[1] = d->data_port;
    p->port[2] = d->data_port + 1;
    for (int i = 0; i < LISTENERS; i++)
        p->listener[i] = bind_to("127.0.0.2", p->port[i]);
    for (int i = 0; i < PAIRS_MAX; i++)
        p->pair[i].client = p->pair[i].server = -1;
    p->seed = seed;
    p->every = every;
    if (pthread_create(&p->id, NULL, run, p) != 0)
        abort();
    return p;
}

void proxy_every(struct proxy *p, unsigned every)
{
    atomic_store(&p->every, every);
}

void proxy_swallow(struct proxy *p, bool on)
{
    atomic_store(&p->swallow, on);
}

void proxy_keep(struct proxy *p, bool on)
{
    atomic_store(&p->keep, on);
}

unsigned proxy_kept(struct proxy *p)
{
    return atomic_load(&p->kept);
}

void proxy_deliver(struct proxy *p)
{
    atomic_store(&p->deliver, true);
}

unsigned proxy_cuts(struct proxy *p)
{
    return atomic_load(&p->cuts);
}

void proxy_stop(struct proxy *p)
{
    atomic_store(&p->stop, true);
    pthread_join(p->id, NULL);
    for (int i = 0; i < PAIRS_MAX; i++)
        if (p->pair[i].server >= 0)
            cut(&p->pair[i]);
    for (int i = 0; i < LISTENERS; i++)
        close(p->listener[i]);
    free(p);
}

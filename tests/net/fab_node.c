#include "fab_node.h"
#include "../lib/seed.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>

static char where[128] = "test";

const char *node_where(void)
{
    return where;
}

uint64_t test_seed(void)
{
    static uint64_t seed;

    if (!seed)
        seed = seed_new();
    return seed;
}

/* ---- callbacks ---- */

static void *on_connect(struct fab_conn *c, const void *data, size_t len, void *user)
{
    struct node *n = user;
    struct link *l;

    if (n->admit && !n->admit(n, data, len)) {
        n->refused++;
        return NULL;
    }
    CHECK(n->nlinks < NODE_LINKS);
    l = &n->links[n->nlinks++];
    *l = (struct link){.n = n, .c = c};
    return l;
}

static void on_connected(struct fab_conn *c, void *user)
{
    struct link *l = user;

    CHECK(l->c == c && !l->up && !l->closed);
    CHECK(fab_send_credits(c) && fab_credits(c));
    l->up = true;
    l->n->up++;
}

static void on_message(struct fab_conn *c, const void *msg, size_t len, void *user)
{
    struct link *l = user;

    CHECK(l->c == c && l->up && !l->closed);
    l->in++;
    if (l->n->message)
        l->n->message(l, msg, len);
}

static void on_closed(struct fab_conn *c, int err, void *user)
{
    struct link *l = user;
    struct iovec iov = {&err, sizeof err};

    CHECK(l->c == c && !l->closed);
    CHECK(fab_send(c, &iov, 1) == -ENOTCONN);
    l->closed = true;
    l->err = err;
    l->n->closed++;
}

static void on_sendable(struct fab_conn *c, void *user)
{
    struct link *l = user;

    CHECK(!l->closed && fab_send_credits(c));
    l->sendable++;
    if (l->n->sendable)
        l->n->sendable(l);
}

/* ---- nodes ---- */

void node_open(struct node *n, const char *provider, struct fab_config cfg)
{
    static const struct fab_callbacks cb = {on_connect, on_connected, on_message, on_closed, on_sendable};
    char err[256] = "";

    cfg.provider = provider;
    if (fab_open(&cfg, &n->f, err, sizeof err))
        fprintf(stderr, "%s\n", err);
    CHECK(n->f);
    CHECK(!fab_shard_open(n->f, &cb, n, &n->s));
    rng_seed(&n->rng, test_seed() ^ (uint64_t)getpid());
}

void node_listen(struct node *n)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    CHECK(!fab_listen(n->s, (struct sockaddr *)&in, sizeof in, &n->addr, &n->addr_len));
    CHECK(n->addr.ss_family == AF_INET && ((struct sockaddr_in *)&n->addr)->sin_port);
}

struct link *node_connect(struct node *n, const void *ticket, size_t len)
{
    struct link *l = &n->links[n->nlinks++];

    CHECK(n->nlinks <= NODE_LINKS);
    *l = (struct link){.n = n};
    CHECK(!fab_connect(n->s, (struct sockaddr *)&n->addr, n->addr_len, ticket, len, l, &l->c));
    return l;
}

void node_close(struct node *n)
{
    fab_shard_close(n->s);
    fab_close(n->f);
    for (uint32_t i = 0; i < n->nlinks; i++)
        CHECK(n->links[i].closed);
    n->s = NULL;
    n->f = NULL;
}

void node_send(struct link *l, const void *msg, size_t len)
{
    struct iovec iov = {(void *)(uintptr_t)msg, len};
    int r;

    while ((r = fab_send(l->c, &iov, 1)) == -EAGAIN)
        CHECK(fab_progress(l->n->s, NSEC_PER_SEC) >= 0);
    CHECK(!r);
    fab_flush(l->n->s);
    l->out++;
}

void node_answer(struct link *l, const void *msg, size_t len)
{
    struct iovec iov = {(void *)(uintptr_t)msg, len};

    CHECK(!fab_send(l->c, &iov, 1));
    l->out++;
}

/* ---- processes ---- */

void tell(int fd, const void *p, size_t len)
{
    CHECK(send(fd, p, len, MSG_NOSIGNAL) == (ssize_t)len);
}

void hear(int fd, void *p, size_t len)
{
    CHECK(recv(fd, p, len, MSG_WAITALL) == (ssize_t)len);
}

void tell_addr(int fd, const struct node *n)
{
    tell(fd, &n->addr, sizeof n->addr);
    tell(fd, &n->addr_len, sizeof n->addr_len);
}

void hear_addr(int fd, struct node *n)
{
    hear(fd, &n->addr, sizeof n->addr);
    hear(fd, &n->addr_len, sizeof n->addr_len);
}

pid_t start_role(const char *name, const char *provider, role_fn fn, int fd, int other_fd)
{
    pid_t pid = fork();

    if (pid)
        return pid;
    if (other_fd >= 0)
        close(other_fd);
    snprintf(where, sizeof where, "%s", name);
    alarm(getenv("PENSTOCK_EXTENDED") ? 600 : 100); /* a hang is a failure; it has no other use */
    fn(provider, fd);
    fflush(stdout);
    exit(0);
}

bool wait_role(pid_t pid)
{
    int status;

    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return false;
    if (WIFSIGNALED(status))
        fprintf(stderr, "child ended by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool run_pair(const char *name, const char *provider, role_fn server, role_fn client)
{
    char text[2][100];
    int sv[2];
    pid_t a, b;
    bool ok;

    test_seed();
    fflush(stdout);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
        return false;
    snprintf(text[0], sizeof text[0], "%s, %s, server", name, provider);
    snprintf(text[1], sizeof text[1], "%s, %s, client", name, provider);
    a = start_role(text[0], provider, server, sv[0], sv[1]);
    b = start_role(text[1], provider, client, sv[1], sv[0]);
    close(sv[0]);
    close(sv[1]);
    ok = wait_role(a);
    return wait_role(b) && ok;
}

/* ---- contents ---- */

static uint8_t byte_at(uint64_t seed, uint64_t at)
{
    uint64_t x = (seed ^ at >> 3) * 0x9e3779b97f4a7c15ull;

    return (uint8_t)(x >> (8 * (at & 7)));
}

void fill(void *p, size_t len, uint64_t seed, uint64_t at)
{
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)p)[i] = byte_at(seed, at + i);
}

bool filled(const void *p, size_t len, uint64_t seed, uint64_t at)
{
    for (size_t i = 0; i < len; i++)
        if (((const uint8_t *)p)[i] != byte_at(seed, at + i))
            return false;
    return true;
}

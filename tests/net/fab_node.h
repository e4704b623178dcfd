/*
 * Two processes that talk over src/fabric: the test process forks both before either touches libfabric, and only waits.
 * A child that breaks a CHECK prints it and exits 1.
 */
#ifndef NET_FAB_NODE_H
#define NET_FAB_NODE_H

#include "base/rng.h"
#include "fabric/fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(c)                                                                                                       \
    do {                                                                                                               \
        if (!(c)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s [%s]\n", __FILE__, __LINE__, #c, node_where());                                 \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

struct node;
/* One connection, as the test sees it. */
struct link {
    struct node *n;
    struct fab_conn *c;
    bool up, closed;
    int err;
    uint32_t sendable;
    uint64_t in, out; /* messages */
    void *arg;
};

#define NODE_LINKS 1200
struct node {
    struct fab *f;
    struct fab_shard *s;
    struct sockaddr_storage addr;
    socklen_t addr_len;
    void (*message)(struct link *l, const void *msg, size_t len);
    void (*sendable)(struct link *l);
    bool (*admit)(struct node *n, const void *data, size_t len); /* NULL: all */
    uint32_t refused, up, closed, nlinks;
    struct link links[NODE_LINKS];
    struct rng rng;
};

const char *node_where(void);

/* The config's provider is the scenario's. */
void node_open(struct node *n, const char *provider, struct fab_config cfg);
void node_listen(struct node *n);
struct link *node_connect(struct node *n, const void *ticket, size_t len);
void node_close(struct node *n);
/* Drives until cond holds. */
#define UNTIL(n, cond)                                                                                                 \
    do {                                                                                                               \
        while (!(cond))                                                                                                \
            CHECK(fab_progress((n)->s, NSEC_PER_SEC) >= 0);                                                            \
    } while (0)
/* Sends one piece; drives when there is no credit, so not from a callback. */
void node_send(struct link *l, const void *msg, size_t len);
/* Sends when there must be a credit; from callbacks too. */
void node_answer(struct link *l, const void *msg, size_t len);

/* Out of band, between the two. */
void tell(int fd, const void *p, size_t len);
void hear(int fd, void *p, size_t len);
void tell_addr(int fd, const struct node *n);
void hear_addr(int fd, struct node *n);

typedef void (*role_fn)(const char *provider, int fd);
/* Forks both, waits, returns whether both were content. */
bool run_pair(const char *name, const char *provider, role_fn server, role_fn client);
pid_t start_role(const char *name, const char *provider, role_fn fn, int fd, int other_fd);
bool wait_role(pid_t pid);
uint64_t test_seed(void);

/* Bytes that depend on seed and place. */
void fill(void *p, size_t len, uint64_t seed, uint64_t at);
bool filled(const void *p, size_t len, uint64_t seed, uint64_t at);

#endif

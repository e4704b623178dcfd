/* A peer in a process of its own, in network namespace 1, that does what it is told over a socket. */
#ifndef TESTS_LOCAL_PEER_H
#define TESTS_LOCAL_PEER_H

#include "lib/netns.h"
#include "uroce_node.h"

#include <sys/types.h>

struct peer_opts {
    size_t len;
    bool allocated; /* memory of the device's allocator */
    bool lent;      /* memory lent to it */
    uid_t uid;      /* 0: ours */
    struct uroce_config cfg;
    const char *address; /* of ours, as text; NULL: 10.77.0.1 */
};

struct peer {
    pid_t pid;
    int sock;
    uint32_t qpn, rkey, window_rkey; /* window_rkey: of a type 2 window over all of its memory */
    uint64_t addr;
};

enum peer_verb {
    PEER_FILL,  /* a: seed */
    PEER_CRC,   /* a: offset, b: bytes; returns it */
    PEER_SET,   /* a: value of each byte */
    PEER_RECV,  /* a: offset, b: bytes */
    PEER_WAIT,  /* for one completion: ret is its status, len and imm */
    PEER_SEND,  /* a: offset, b: bytes */
    PEER_WRITE, /* a: offset, b: bytes; to c, key d */
    PEER_READ,  /* a: offset, b: bytes; from c, key d */
    PEER_DEREG, /* its region; a: nanoseconds to wait before; then each byte becomes b */
    PEER_SHM,   /* 1: the queue pair's packets go by shared memory */
    PEER_CHURN, /* a: so often memory of the allocator is taken and given back */
    PEER_BIND,  /* binds the window anew */
    PEER_END,
};

struct peer_reply {
    int64_t ret;
    uint32_t len, imm, flags;
};

/*
 * Its process is made while this one has a single thread; it opens its device when it is started. Then its queue pair
 * is in INIT.
 */
void peer_fork(struct peer *p, const struct netns_pair *ns, const struct peer_opts *o);
void peer_start(struct peer *p);
/* Both ends to RTS. timeout: code of the local ACK timer. */
void peer_connect(struct peer *p, struct uroce_qp *qp, enum uroce_mtu mtu, uint8_t timeout);
struct peer_reply peer_do(struct peer *p, enum peer_verb verb, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
/* Without waiting for the reply, which comes by peer_hear(). */
void peer_tell(struct peer *p, enum peer_verb verb, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
struct peer_reply peer_hear(struct peer *p);
void peer_end(struct peer *p);
void peer_kill(struct peer *p);
/* SIGSTOP; it has stopped when this returns. */
void peer_stop(struct peer *p);
/* A teardown: the last that was started, if its test failed. */
int peer_reap(void **state);

#endif

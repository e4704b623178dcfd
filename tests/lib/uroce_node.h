/* One end of a uroce test: a device with a protection domain, a completion queue and a registered buffer. */
#ifndef TESTS_UROCE_NODE_H
#define TESTS_UROCE_NODE_H

#include "uroce/uroce.h"

#include <stdbool.h>

struct node {
    struct uroce_device *dev;
    struct uroce_pd *pd;
    struct uroce_channel *channel;
    struct uroce_cq *cq;
    struct uroce_mr *mr;
    uint8_t *buf;
    size_t len;
    bool allocated; /* by the device */
    bool lent;      /* by the program */
    int memfd;      /* -1: it is not, or not any more */
};

/*
 * Code of the local ACK time-out of what is connected from now on. 14: 67 ms, and all retries about two seconds, for
 * which a process may not run on a busy machine. 0: never, so that nothing is done by a time-out's grace.
 */
#define NODE_TIMEOUT 14
extern uint8_t node_timeout;

/* Fails the test when a call fails. */
void node_open(struct node *n, const struct uroce_config *cfg, size_t len);
/* The same with memory of the device's allocator. */
void node_open_allocated(struct node *n, const struct uroce_config *cfg, size_t len);
/* With a memfd "node-PID" that is lent (uroce_mem_lend). */
void node_open_lent(struct node *n, const struct uroce_config *cfg, size_t len);
void node_take_back(struct node *n); /* it is not lent any more */
void node_close(struct node *n);
/* A queue pair over the node's CQ, in INIT, that allows everything. */
struct uroce_qp *node_qp(struct node *n, enum uroce_qp_type type, uint32_t depth);
/* To RTR and RTS: GID `gid` of both nodes, the PSNs fixed. */
void node_connect(struct node *a, struct uroce_qp *qa, struct node *b, struct uroce_qp *qb, unsigned gid,
                  enum uroce_mtu mtu);
/* Whether it goes by shared memory; whether both do, within ten seconds. */
bool node_by_shm(struct uroce_qp *qp);
bool node_await_shm(struct uroce_qp *qa, struct uroce_qp *qb);
/* One end alone: the peer does the same. */
void node_connect_to(struct uroce_qp *qp, uint32_t qpn, const char *ipv4, enum uroce_mtu mtu);
/* An RDMA WRITE of the buffer's first bytes to memory of another process. */
void node_write_key(struct node *n, struct uroce_qp *qp, uint32_t len, uint64_t remote, uint32_t rkey);
/* The next n completions of either node, polled in turn; fails after about ten seconds without one. */
void node_wait(struct node *n, struct node *other, int count, struct uroce_wc *ret);
/* Posts one request with one piece of the buffer. */
void node_send(struct node *n, struct uroce_qp *qp, enum uroce_wr_opcode op, size_t offset, uint32_t len,
               const struct node *to, size_t to_offset, uint64_t wr_id);
void node_recv(struct node *n, struct uroce_qp *qp, size_t offset, uint32_t len, uint64_t wr_id);
void node_fill(struct node *n, uint64_t seed);

#endif

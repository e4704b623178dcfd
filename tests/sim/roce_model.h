/* Random programs over queue-pair engines, and what must come of them. */
#ifndef ROCE_MODEL_H
#define ROCE_MODEL_H

#include "qp_net.h"

#define RM_NODES 3
#define RM_CONNS 3
#define RM_OPS   24
#define RM_RECVS (RM_OPS + 4)
#define RM_MEM   (1280 * 1024)
#define RM_MSG   5000

enum rm_kind {
    RM_WRITE,
    RM_WRITE_IMM,
    RM_SEND,
    RM_SEND_IMM,
    RM_READ,
    RM_FADD,
    RM_CSWAP,
    RM_BAD_KEY,
    RM_BAD_RANGE,
    RM_BAD_LKEY
};

struct rm_op {
    enum rm_kind kind;
    uint32_t len, local, remote; /* offsets in the arenas */
    uint64_t add, before;        /* atomics: what to add or the new value; the value that must come back */
    bool signalled, fence, is_inline, solicited;
    int nsge;
};

/* One direction of a connection: what its requester does, and the receives of its responder. */
struct rm_dir {
    struct rm_op op[RM_OPS];
    int nops, posted, told; /* told: completions seen (of signalled requests), as an index of op */
    int arrived;            /* messages that the responder's receives have told, as an index of op */
    uint32_t counter;       /* of atomics: offset in the responder's arena */
    bool dead;              /* a completion failed */
    uint32_t first_error;   /* its status */
};

/* A shared receive queue and the offsets of its receives' buffers. */
struct rm_srq {
    struct qp_srq *q;
    uint32_t at[2 * RM_CONNS * RM_RECVS];
    int n, posted;
};

struct rm_end {
    int node;
    struct qp *qp;
    struct rm_srq *srq;         /* whence it has its receives, or NULL */
    uint32_t recv_at[RM_RECVS]; /* offsets of the receives' buffers */
    int nrecvs, recvs_posted, recvs_told;
};

struct rm_conn {
    struct rm_end end[2];
    struct rm_dir dir[2]; /* dir[i]: end[i] is the requester */
    bool poisoned;        /* some request is wrong on purpose */
    bool xrc;             /* end[0] is an initiator, end[1] a target: requests go one way */
    bool far, moved;      /* it is to have a second path; it has */
    struct qp_peer peer;
    struct qp_path path[2];
};

struct rm_node {
    struct qp_engine *e;
    struct qp_pd *pd;
    struct qp_cq *cq;
    struct qp_mr *mr;
    struct qp_xrcd *xrcd;
    struct rm_srq srq, xrc;        /* of RC, if there is one; of the domain */
    uint8_t *mem, *shadow, *maybe; /* arena; what it must be; maybe: 1 = may differ, 2 = old or new */
    uint8_t *alt;                  /* the other value where maybe is 2 */
    uint32_t used;
};

struct rm {
    uint64_t seed;
    struct rng rng;
    struct qpnet net;
    struct rm_node node[RM_NODES];
    struct rm_conn conn[RM_CONNS];
    int nnodes, nconns;
    bool lossy, ended;
    uint64_t events;
};

/* Runs one program; aborts the test with a line that says how to repeat it. */
void rm_run(uint64_t seed);
/* What all programs did together, to see that they reach what they should. */
struct rm_totals {
    uint64_t xrc, moved, ops, failed, packets, retransmits, timeouts, rnr, naks, sacks, dups, dead, joined;
};
extern struct rm_totals rm_totals;

void rm_fail(const struct rm *m, const char *what, int line) __attribute__((noreturn));
#define RM_CHECK(m, c)                                                                                                 \
    do {                                                                                                               \
        if (!(c))                                                                                                      \
            rm_fail((m), #c, __LINE__);                                                                                \
    } while (0)

/* roce_program.c: makes engines, connections and programs. */
void rm_build(struct rm *m);
void rm_post(struct rm *m, struct rm_conn *c, int d, int n);
/* Both ends of a connection learn of the second path. */
void rm_move(struct rm *m, struct rm_conn *c);
void rm_post_recvs(struct rm *m, struct rm_conn *c, int end, int n);
void rm_close(struct rm *m);

#endif

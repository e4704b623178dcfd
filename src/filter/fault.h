/*
 * What `delay` and `error` share: which operations meet a fault, and the table that looks at every operation. For tests
 * and users' fault drills.
 */
#ifndef FILTER_FAULT_H
#define FILTER_FAULT_H

#include "filter/filter.h"

#include <stdatomic.h>

/* Kinds of operations as options name them: those of queues by their enum pst_op_kind, the others after them. */
enum fault_op {
    FAULT_LOOKUP = PST_OP_KINDS,
    FAULT_GETATTR,
    FAULT_SETATTR,
    FAULT_MAKE,
    FAULT_READLINK,
    FAULT_LINK,
    FAULT_UNLINK,
    FAULT_RMDIR,
    FAULT_RENAME,
    FAULT_READDIR,
    FAULT_STATFS,
    FAULT_XATTR,
    FAULT_OPEN,
    FAULT_ADMIN,
    FAULT_OPS,
};

#define FAULT_DELAY_MAX_MS 600000u

struct fault {
    struct filter f;
    uint64_t ops;      /* bit set of enum fault_op */
    uint64_t every;    /* the n-th, 2n-th, ... matching operation */
    uint64_t skip;     /* matching operations that pass before counting begins */
    uint64_t count;    /* faults at most; 0: no limit */
    bool after;        /* the operation takes effect first */
    uint64_t delay_ns; /* delay; 0: none */
    int error;         /* error: -errno; 0: none */
    atomic_uint_fast64_t seen, hit;
};

extern const struct filter_type filter_delay, filter_error;

/* Counts this operation: does it meet the fault? Any thread. */
bool fault_hits(struct fault *ft, unsigned op);
/* Common options; -ENOENT: not one of them. */
int fault_option(struct fault *ft, const struct pst_option *o, char *err, size_t err_size);
/* Both tables' entries. */
void fault_init(struct fault *ft, const char *name, struct pst_store *next);
void fault_queue_ops(struct pst_store_ops *ops);

#endif

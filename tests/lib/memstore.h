/*
 * A store in memory for tests of what stands on the interface: one container, small, with switches that hold back or
 * fail data operations. Scheme "mem:". Not for many files: names are found by a linear search.
 */
#ifndef TESTS_MEMSTORE_H
#define TESTS_MEMSTORE_H

#include "store/store.h"

extern const struct pst_backend memstore_backend;

struct memstore;
struct memstore *memstore_of(struct pst_store *st);
/* Operations of these kinds (bits by enum pst_op_kind) stay in the queue until memstore_release. */
void memstore_hold(struct memstore *m, uint32_t kinds);
void memstore_release(struct memstore *m);
/* The operation that was submitted last is executed first: no store promises another order. */
void memstore_backwards(struct memstore *m, bool on);
/* The next `count` operations of these kinds fail with err. */
void memstore_fail(struct memstore *m, uint32_t kinds, int err, uint32_t count);

struct memstore_counts {
    uint64_t ops[PST_OP_KINDS]; /* done */
    uint64_t held;              /* now */
    uint64_t opens;             /* objects open now */
    uint64_t largest_write;
};
void memstore_counts(struct memstore *m, struct memstore_counts *ret);

#endif

/* Transactions: collected in memory, logged and applied at once by sync_commit. */
#include "parts.h"

#include <errno.h>
#include <string.h>

struct txn {
    struct engine *e;
    struct idx_batch *batch;
    struct freed *freed;
    struct extent *claimed; /* owned; given back when the transaction is dropped */
    uint32_t nclaimed, capclaimed;
    size_t bytes;
    bool reserved;
    int err; /* the first; txn_commit returns it */
    struct ns_txn *ns;
};

struct txn *txn_new(struct engine *e)
{
    struct txn *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->e = e;
    t->batch = idx_batch_new();
    if (!t->batch) {
        free(t);
        return NULL;
    }
    return t;
}

struct engine *txn_engine(struct txn *t)
{
    return t->e;
}

struct ns_txn **txn_ns(struct txn *t)
{
    return &t->ns;
}

void txn_fail(struct txn *t, int err)
{
    t->err = t->err ? t->err : err;
}

void txn_set_reserved(struct txn *t)
{
    t->reserved = true;
}

/* Counts bytes towards TXN_MAX; false when the transaction is too large. */
static bool txn_room(struct txn *t, size_t n)
{
    if (n > TXN_MAX - t->bytes) {
        t->err = t->err ? t->err : -E2BIG;
        return false;
    }
    t->bytes += n;
    return true;
}

void txn_put(struct txn *t, const struct key *k, const void *value, size_t len)
{
    /* The bound of len first: the sum below must not wrap. */
    if (txn_room(t, len) && txn_room(t, k->len + 16u))
        idx_batch_put(t->batch, k, value, len);
}

void txn_del(struct txn *t, const struct key *k)
{
    if (txn_room(t, k->len + 16u))
        idx_batch_del(t->batch, k);
}

void txn_free_extent(struct txn *t, uint64_t block, uint32_t nblocks)
{
    struct freed *f = t->freed;
    if (!f || f->n == f->cap) {
        uint32_t cap = f ? f->cap * 2 : 16;
        struct freed *g = realloc(f, sizeof *g + cap * sizeof g->ext[0]);
        if (!g) {
            t->err = -ENOMEM;
            return;
        }
        if (!f)
            *g = (struct freed){0};
        g->cap = cap;
        t->freed = f = g;
    }
    f->ext[f->n++] = (struct extent){block, nblocks};
}

void txn_claimed_extent(struct txn *t, uint64_t block, uint32_t nblocks)
{
    if (t->nclaimed == t->capclaimed) {
        uint32_t cap = t->capclaimed ? t->capclaimed * 2 : 16;
        struct extent *x = realloc(t->claimed, cap * sizeof *x);
        if (!x) {
            /* It cannot be given back later, so that is done now: the commit fails. */
            t->err = -ENOMEM;
            alloc_unclaim(t->e, block, nblocks);
            return;
        }
        t->claimed = x;
        t->capclaimed = cap;
    }
    t->claimed[t->nclaimed++] = (struct extent){block, nblocks};
}

/* The end of every transaction. */
static void txn_finish(struct txn *t, bool committed)
{
    if (t->ns)
        ns_txn_end(t, t->ns, committed);
    for (uint32_t i = 0; !committed && i < t->nclaimed; i++)
        alloc_unclaim(t->e, t->claimed[i].block, t->claimed[i].n);
    idx_batch_free(t->batch);
    free(t->claimed);
    free(t->freed);
    free(t);
}

int txn_commit(struct txn *t, uint64_t *ret_lsn)
{
    uint64_t lsn = 0;
    int r = t->err;
    /* begin takes a lock that end releases, so end follows begin in every case. */
    if (!r && t->ns)
        r = ns_txn_begin(t, t->ns);
    if (!r)
        r = t->err;
    if (!r)
        r = sync_commit(t->e, t->batch, &t->freed, t->reserved, &lsn);
    txn_finish(t, r == 0);
    if (!r && ret_lsn)
        *ret_lsn = lsn;
    return r;
}

void txn_drop(struct txn *t)
{
    if (t)
        txn_finish(t, false);
}

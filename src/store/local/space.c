/*
 * Where an operation's new blocks come from: free space; what deleted files still have; when all of that is out, blocks
 * reserved in the range that is written (PST_OP_ALLOCATE); and for what replaces other blocks, the swap reserve: some
 * blocks that are claimed at open and never named by a record. They let a file be overwritten, cut or punched on a full
 * store, where new blocks are needed before the old ones are free. It is filled again from the blocks that come free.
 */
#include "data.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

#define SWAP_BLOCKS ((uint32_t)(PST_IO_MAX / PST_BLOCK) + 16u) /* one write of the largest size */
#define SWAP_SHARE  64u                                        /* of the store's capacity at most one in so many */
#define SWAP_KEEP   16u                                        /* the last ones are for cutting files */

/* Free space, then what deleted files have. */
int64_t space_claim(struct engine *e, uint32_t want, uint64_t *ret_phys)
{
    int64_t n = alloc_claim(e, want, ret_phys);

    while (n == -ENOSPC) {
        int collected = data_collect(e, DATA_STEP_CHUNKS);
        /* Also when it found nothing: the background deleter may have been at the last of it. */
        n = alloc_claim(e, want, ret_phys);
        if (collected <= 0)
            break;
    }
    return n;
}

/* ---- the swap reserve ---- */

/* Under its lock: as full as free space allows. */
static void swap_fill(struct engine *e)
{
    struct swap_reserve *s = &e->data->swap;

    while (s->n < s->want) {
        uint64_t phys = 0;
        int64_t n;
        if (s->nruns == s->cap) {
            uint32_t cap = s->cap ? s->cap * 2 : 16;
            struct chunk_run *p = realloc(s->runs, cap * sizeof *p);
            if (!p)
                return;
            s->runs = p;
            s->cap = cap;
        }
        n = alloc_claim(e, s->want - s->n, &phys);
        if (n <= 0)
            return;
        s->runs[s->nruns++] = (struct chunk_run){.phys = phys, .n = (uint32_t)n};
        atomic_fetch_add(&s->n, (uint32_t)n);
    }
}

void swap_open(struct engine *e)
{
    struct swap_reserve *s = &e->data->swap;
    uint64_t space_free, total;

    pthread_mutex_init(&s->lock, NULL);
    if (e->opt.readonly || e->opt.bare)
        return;
    alloc_space(e, &space_free, &total);
    s->want = (uint32_t)min_u64(total / PST_BLOCK / SWAP_SHARE, SWAP_BLOCKS);
    swap_fill(e);
}

void swap_close(struct engine *e)
{
    struct swap_reserve *s = &e->data->swap;

    for (uint32_t k = 0; k < s->nruns; k++)
        alloc_unclaim(e, s->runs[k].phys, s->runs[k].n);
    free(s->runs);
    pthread_mutex_destroy(&s->lock);
}

/* Under the lock: up to n blocks of the last run. */
static struct chunk_run swap_pop(struct swap_reserve *s, uint32_t n)
{
    struct chunk_run *last = &s->runs[s->nruns - 1], r;

    r.n = last->n < n ? last->n : n;
    last->n -= r.n;
    r.phys = last->phys + last->n;
    if (!last->n)
        s->nruns--;
    atomic_fetch_sub(&s->n, r.n);
    return r;
}

int swap_take_one(struct engine *e, uint64_t *ret_phys)
{
    struct swap_reserve *s = &e->data->swap;
    scoped_lock(&s->lock);

    swap_fill(e);
    if (!s->n)
        return -ENOSPC;
    *ret_phys = swap_pop(s, 1).phys;
    return 0;
}

/* Adds n blocks to o->runs. -EAGAIN: other operations have them for now. */
static int swap_take(struct data_op *o, uint32_t n)
{
    struct swap_reserve *s = &o->e->data->swap;
    scoped_lock(&s->lock);

    if (s->n < n + SWAP_KEEP)
        swap_fill(o->e);
    /* Who has some already does not wait for more: what it waits for may be its own, or another such one's. */
    if (s->n < n + SWAP_KEEP)
        return s->lent && !o->lent ? -EAGAIN : -ENOSPC;
    while (n) {
        if (op_room_runs(o, o->nruns + 1))
            return -ENOMEM;
        struct chunk_run r = swap_pop(s, n);
        o->runs[o->nruns++] = r;
        o->lent += r.n;
        s->lent += r.n;
        n -= r.n;
    }
    return 0;
}

void swap_return(struct data_op *o)
{
    struct swap_reserve *s = &o->e->data->swap;

    if (!o->lent)
        return;
    scoped_lock(&s->lock);
    s->lent -= o->lent;
    o->lent = 0;
}

/* ---- claims of an operation ---- */

void op_unclaim(struct data_op *o)
{
    for (uint32_t k = 0; k < o->nruns; k++)
        alloc_unclaim(o->e, o->runs[k].phys, o->runs[k].n);
    o->nruns = 0;
}

static uint32_t claimed(const struct data_op *o)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < o->nruns; k++)
        n += o->runs[k].n;
    return n;
}

/* More blocks until there are n. */
static int claim_more(struct data_op *o, uint32_t n)
{
    for (uint32_t have = claimed(o); have < n;) {
        uint64_t phys = 0;
        int64_t got;
        int r = op_room_runs(o, o->nruns + 1);
        if (r)
            return r;
        got = space_claim(o->e, n - have, &phys);
        if (got <= 0)
            return got < 0 ? (int)got : -ENOSPC;
        o->runs[o->nruns++] = (struct chunk_run){.phys = phys, .n = (uint32_t)got};
        have += (uint32_t)got;
    }
    return 0;
}

static void claim_less(struct data_op *o, uint32_t n)
{
    for (uint32_t have = claimed(o); have > n;) {
        struct chunk_run *last = &o->runs[o->nruns - 1];
        uint32_t cut = last->n < have - n ? last->n : have - n;
        last->n -= cut;
        have -= cut;
        alloc_unclaim(o->e, last->phys + last->n, cut);
        if (!last->n)
            o->nruns--;
    }
}

/*
 * Takes blocks reserved by PST_OP_ALLOCATE out of the range that the operation writes, as many as are missing: they are
 * holes in the records from then on and belong to the operation, as if it had claimed them. *ret_old: blocks that the
 * range has besides.
 */
static int take_allocated(struct data_op *o, uint32_t n, uint32_t *ret_old)
{
    struct change c;
    uint32_t per_chunk = o->attr.chunk_size / PST_BLOCK, before = o->nruns, old = 0;
    uint64_t end = o->first + o->nblocks;
    int r = change_begin(&c, o->e, o->cont, o->op->ino);

    if (r)
        return r;
    c.steal = o;
    for (uint64_t b = o->first; !r && b < end;) {
        uint64_t index = b / per_chunk, chunk_end = min_u64((index + 1) * per_chunk, end);
        const struct chunk_map *m;
        const struct chunk_ext *x;
        uint32_t at = (uint32_t)(b % per_chunk), to, missing = n - claimed(o);
        r = change_look(&c, index, &m);
        if (r)
            break;
        x = chunk_next(m, at);
        if (!x || index * per_chunk + x->first >= chunk_end) {
            b = chunk_end;
            continue;
        }
        at = x->first > at ? x->first : at;
        to = (uint32_t)min_u64((uint64_t)x->first + x->n, chunk_end - index * per_chunk);
        if (x->unwritten && missing) {
            to = (uint32_t)min_u64(to, at + missing);
            r = change_blocks(&c, index, at, to - at, NULL, 0, NULL, 0);
        } else {
            old += to - at;
        }
        b = index * per_chunk + to;
    }
    if (!r && o->nruns > before)
        r = change_commit(&c, NULL, false, NULL);
    if (r)
        o->nruns = before; /* the records still have what was added since */
    change_end(&c);
    *ret_old = old;
    return r;
}

int op_claim(struct data_op *o, uint32_t n)
{
    struct swap_reserve *s = &o->e->data->swap;
    uint32_t old = 0, missing;
    int r;

    if (atomic_load(&s->n) < s->want) {
        /* It comes first: an overwrite must not fail because new files are faster. */
        scoped_lock(&s->lock);
        swap_fill(o->e);
    }
    claim_less(o, n);
    r = claim_more(o, n);
    if (r != -ENOSPC)
        return r;
    r = take_allocated(o, n, &old);
    missing = n - claimed(o);
    if (r || !missing)
        return r;
    return missing <= old ? swap_take(o, missing) : -ENOSPC;
}

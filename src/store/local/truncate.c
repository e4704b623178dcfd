/*
 * Making files shorter. The rest of the last block is zeroed in a new block, so that a file that grows again reads as
 * zero there. A file with many chunks past the new end becomes shorter in several transactions, from its end on: after
 * a crash it has one of the sizes in between, never a chunk past its end.
 */
#include "data.h"

#include "base/crc.h"
#include "parts.h"

#include <errno.h>
#include <string.h>

#define SPANS_MAX 65536u /* 1 MiB of memory: runs of chunks that are remembered in one pass */

/* Runs of existing chunks, ascending; when there are too many, the first ones are forgotten. */
struct spans {
    struct span *v; /* owned */
    uint32_t n, cap;
    bool forgot;
};

static int spans_add(struct spans *s, uint64_t index)
{
    struct span *last = s->n ? &s->v[s->n - 1] : NULL;

    if (last && last->start + last->n == index) {
        last->n++;
        return 0;
    }
    if (s->n == SPANS_MAX) {
        memmove(s->v, s->v + SPANS_MAX / 2, SPANS_MAX / 2 * sizeof *s->v);
        s->n = SPANS_MAX / 2;
        s->forgot = true;
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 16;
        struct span *v = realloc(s->v, cap * sizeof *v);
        if (!v)
            return -ENOMEM;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = (struct span){.start = index, .n = 1};
    return 0;
}

static int spans_load(struct spans *s, struct change *c, uint64_t from)
{
    uint64_t index[DATA_STEP_SCAN];
    int n, r = 0;

    s->n = 0;
    s->forgot = false;
    do {
        n = scan_chunks(c->e, c->cont, c->i.a.ino, from, index, DATA_STEP_SCAN);
        for (int k = 0; !r && k < n; k++)
            r = spans_add(s, index[k]);
        if (n > 0)
            from = index[n - 1] + 1;
    } while (!r && n == (int)DATA_STEP_SCAN);
    return r ? r : n < 0 ? n : 0;
}

/* Removes up to a step's worth of chunks, the last ones first. */
static int cut_last(struct spans *s, struct change *c, uint64_t *ret_lowest)
{
    for (uint32_t k = 0; s->n && k < DATA_STEP_CHUNKS; k++) {
        struct span *last = &s->v[s->n - 1];
        uint64_t index = last->start + --last->n;
        int r = change_chunk(c, index, NULL);
        if (r)
            return r;
        *ret_lowest = index;
        if (!last->n)
            s->n--;
    }
    return 0;
}

/* One transaction of its own: what it did to the inode is in c->i afterwards. */
static int cut_step(struct spans *s, struct change *c)
{
    struct change step;
    struct txn *t = txn_new(c->e);
    uint64_t lowest = 0;
    int r;

    if (!t)
        return -ENOMEM;
    txn_set_reserved(t);
    change_within(&step, c->e, c->cont, t, &c->i);
    step.within = false; /* it puts the inode itself */
    r = cut_last(s, &step, &lowest);
    if (!r) {
        step.i.a.size = min_u64(step.i.a.size, lowest * c->i.a.chunk_size);
        r = change_commit(&step, NULL, false, NULL);
    } else {
        txn_drop(t);
    }
    if (!r) {
        c->i.a.size = step.i.a.size;
        c->i.a.used = step.i.a.used;
        c->i.a.change = step.i.a.change;
    }
    change_end(&step);
    return r;
}

static bool is_one_step(const struct spans *s)
{
    uint64_t n = 0;

    for (uint32_t k = 0; k < s->n && n <= DATA_STEP_CHUNKS; k++)
        n += s->v[k].n;
    return n <= DATA_STEP_CHUNKS && !s->forgot;
}

int cut_chunks(struct change *c, uint64_t index)
{
    struct spans s = {0};
    uint64_t lowest;
    int r = spans_load(&s, c, index);

    while (!r && !is_one_step(&s)) {
        r = cut_step(&s, c);
        if (!r && !s.n)
            r = spans_load(&s, c, index); /* what was forgotten */
    }
    if (!r)
        r = cut_last(&s, c, &lowest);
    free(s.v);
    return r;
}

/* ---- the last block ---- */

static int claim_one(struct change *c, uint64_t *ret_phys)
{
    int64_t n = space_claim(c->e, 1, ret_phys);

    return n == -ENOSPC ? swap_take_one(c->e, ret_phys) : n < 0 ? (int)n : 0;
}

/* The block at `at` of the chunk, cut after `keep` bytes, in a new block. */
static int cut_block(struct change *c, uint64_t index, const struct chunk_map *m, const struct chunk_ext *x,
                     uint32_t at, uint32_t keep)
{
    uint64_t old = x->phys + (at - x->first);
    uint32_t crc = m->crcs[x->crc_at + (at - x->first)];
    struct chunk_run run = {.n = 1};
    uint8_t *buf = NULL;
    int r;

    if (posix_memalign((void **)&buf, PST_BLOCK, PST_BLOCK))
        return -ENOMEM;
    r = pread_all(c->e->data_fd, buf, PST_BLOCK, old * PST_BLOCK);
    if (r || crc32c(0, buf, PST_BLOCK) != crc) {
        data_damaged(c->e, NULL, c->cont, c->i.a.ino, index * c->i.a.chunk_size + (uint64_t)at * PST_BLOCK,
                     r ? "read error" : "checksum mismatch");
        free(buf);
        return -EIO;
    }
    memset(buf + keep, 0, PST_BLOCK - keep);
    crc = crc32c(0, buf, PST_BLOCK);
    r = claim_one(c, &run.phys);
    if (!r) {
        r = pwrite_all(c->e->data_fd, buf, PST_BLOCK, run.phys * PST_BLOCK);
        if (!r)
            r = change_blocks(c, index, at, 1, &run, 1, &crc, 0);
        if (r) {
            alloc_unclaim(c->e, run.phys, 1);
        } else {
            txn_claimed_extent(c->t, run.phys, 1);
            eng_data_written(c->e);
        }
    }
    free(buf);
    return r;
}

/* The chunk with the new end, which is not at the chunk's start. */
static int cut_tail(struct change *c, uint64_t size)
{
    uint32_t chunk_size = c->i.a.chunk_size, in_chunk = (uint32_t)(size % chunk_size);
    uint32_t at = in_chunk / PST_BLOCK, keep = in_chunk % PST_BLOCK, next = at + (keep > 0);
    uint64_t index = size / chunk_size;
    const struct chunk_map *m;
    const struct chunk_ext *x;
    int r = change_look(c, index, &m);

    if (r || !m)
        return r;
    x = chunk_find(m, at);
    if (keep && x && !x->unwritten)
        r = cut_block(c, index, m, x, at, keep);
    if (!r)
        r = change_blocks(c, index, next, chunk_size / PST_BLOCK - next, NULL, 0, NULL, 0);
    return r ? r : change_clamp(c, index, in_chunk);
}

int data_truncate(struct txn *t, struct engine *e, uint64_t cont, struct inode *i, uint64_t size)
{
    struct change c;
    int r = 0;

    if (size == i->a.size)
        return 0;
    if (size > PST_FILE_MAX)
        return -EFBIG;
    change_within(&c, e, cont, t, i);
    if (size < i->a.size) {
        txn_set_reserved(t);
        if (size % i->a.chunk_size)
            r = cut_tail(&c, size);
        if (!r)
            r = cut_chunks(&c, (size + i->a.chunk_size - 1) / i->a.chunk_size);
    }
    c.i.a.size = size;
    if (!r)
        r = change_put(&c);
    if (!r)
        i->a = c.i.a;
    change_end(&c);
    return r;
}

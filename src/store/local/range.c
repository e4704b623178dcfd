/*
 * PUNCH, ALLOCATE, SEEK_DATA, SEEK_HOLE: operations on ranges that may be as long as a file. They work in steps of a
 * bounded number of chunks, each its own transaction, and let other operations of the queue go on in between.
 */
#include "data.h"

#include <errno.h>
#include <string.h>

int scan_chunks(struct engine *e, uint64_t cont, uint64_t ino, uint64_t from, uint64_t *ret, int max)
{
    struct key prefix = key_begin(KEY_CHUNK), first = chunk_key(cont, ino, from);
    struct idx_iter *it;
    uint64_t c, i;
    int n = 0, r = 0;

    key_u64(&prefix, cont);
    key_u64(&prefix, ino);
    it = idx_iter_new(e, NULL, &prefix, &first);
    if (!it)
        return -ENOMEM;
    while (n < max && (r = idx_iter_next(it)) > 0) {
        size_t len;
        const uint8_t *k = idx_iter_key(it, &len);
        if (chunk_key_parse(k, len, &c, &i, &ret[n])) {
            r = -EIO;
            break;
        }
        n++;
    }
    idx_iter_free(it);
    return r < 0 ? r : n;
}

/* ---- PUNCH ---- */

static enum data_next punch_edges(struct data_op *o);
static enum data_next punch_write(struct data_op *o);
static enum data_next punch_commit(struct data_op *o);

/* What has to be done for a file of this size: edges, and whole blocks [from, to). */
struct punch {
    struct {
        uint64_t block;
        uint32_t lo, hi;
    } edges[2];
    uint32_t nedges;
    uint64_t from, to;
};

static struct punch punch_plan(const struct data_op *o, uint64_t size)
{
    uint64_t start = o->op->offset, end = start + o->op->length;
    uint32_t head = (uint32_t)(start % PST_BLOCK), tail = (uint32_t)(end % PST_BLOCK);
    struct punch p = {.from = align_up(start, PST_BLOCK) / PST_BLOCK, .to = end / PST_BLOCK};

    if (end >= size) { /* the last block too, which is zero behind the end; what is reserved behind it stays */
        p.to = max_u64(p.to, align_up(size, PST_BLOCK) / PST_BLOCK);
        tail = 0;
    }
    if (head && start / PST_BLOCK == end / PST_BLOCK && tail) {
        p.edges[0].block = start / PST_BLOCK;
        p.edges[0].lo = head;
        p.edges[0].hi = tail;
        p.nedges = 1;
        p.to = p.from;
        return p;
    }
    if (head && start < size) {
        p.edges[p.nedges].block = start / PST_BLOCK;
        p.edges[p.nedges].lo = head;
        p.edges[p.nedges++].hi = PST_BLOCK;
    }
    if (tail) {
        p.edges[p.nedges].block = end / PST_BLOCK;
        p.edges[p.nedges++].hi = tail;
    }
    p.to = max_u64(p.from, p.to);
    return p;
}

enum data_next punch_begin(struct data_op *o)
{
    enum data_next n = commit_may_begin(o);

    o->state = punch_edges;
    return n;
}

static enum data_next punch_edges(struct data_op *o)
{
    struct punch p;
    int r;

    edges_drop(o);
    op_ticket(o);
    r = op_attr(o, NULL);
    p = punch_plan(o, o->attr.size);
    for (uint32_t k = 0; !r && k < p.nedges; k++)
        r = edge_add(o, p.edges[k].block, p.edges[k].lo, p.edges[k].hi, true);
    if (!r)
        o->at = max_u64(o->at, p.from);
    return r ? op_done(o, r) : edges_read(o, punch_write);
}

/* Edges that are holes stay so; the others get a new block. */
static enum data_next punch_write(struct data_op *o)
{
    uint32_t need = 0;
    int r;

    for (uint32_t k = 0; k < o->nedges; k++)
        need += o->edges[k].phys != PHYS_NONE;
    o->first = o->nedges ? o->edges[0].block : 0; /* what the edges replace is there */
    o->nblocks =
        o->nedges ? (uint32_t)min_u64(o->edges[o->nedges - 1].block - o->first + 1, PST_IO_MAX / PST_BLOCK) : 0;
    r = op_claim(o, need);
    if (r == -EAGAIN)
        return NEXT_YIELD;
    if (r == -ENOSPC && !o->edges_late) {
        /* The whole blocks first: they give room for the edges. */
        op_unclaim(o);
        o->edges_late = true;
        o->state = punch_commit;
        return NEXT_GO;
    }
    if (!r)
        r = op_room_crcs(o, 2);
    if (r)
        return op_done(o, r);
    o->edges_late = false;
    o->nsegs = o->niovs = 0;
    for (uint32_t k = 0, at = 0; k < o->nedges; k++) {
        struct edge *g = &o->edges[k];
        uint64_t phys = o->runs[0].phys + at;
        struct iovec v = {.iov_base = g->buf, .iov_len = PST_BLOCK};
        if (g->phys == PHYS_NONE)
            continue;
        if (at && o->runs[0].n == 1)
            phys = o->runs[1].phys;
        memset(g->buf + g->lo, 0, g->hi - g->lo);
        iov_crcs(&v, 1, 1, &o->crcs[k]);
        o->iovs[o->niovs] = v;
        o->segs[o->nsegs++] = (struct seg){.io.kind = IO_WRITE,
                                           .phys = phys,
                                           .first = k,
                                           .n = 1,
                                           .iov_at = o->niovs++,
                                           .iov_n = 1,
                                           .io.cached = o->e->opt.direct != CHOICE_ALWAYS};
        at++;
    }
    return op_start_io(o, punch_commit);
}

/* Frees whole blocks of existing chunks, up to a step's worth. 1: there is more. */
static int punch_whole(struct data_op *o, struct change *c, uint64_t to)
{
    uint32_t per_chunk = c->i.a.chunk_size / PST_BLOCK;
    uint64_t index[DATA_STEP_CHUNKS];
    int n = o->at < to ? scan_chunks(o->e, o->cont, o->op->ino, o->at / per_chunk, index, DATA_STEP_CHUNKS) : 0;

    for (int k = 0; k < n; k++) {
        uint64_t start = max_u64(index[k] * per_chunk, o->at), end = min_u64((index[k] + 1) * per_chunk, to);
        int r;
        if (start >= to)
            return 0;
        if (c->bytes > DATA_STEP_BYTES) {
            o->at = start;
            return 1;
        }
        r = change_blocks(c, index[k], (uint32_t)(start % per_chunk), (uint32_t)(end - start), NULL, 0, NULL, 0);
        if (r)
            return r;
        o->at = end;
    }
    return n < 0 ? n : n == (int)DATA_STEP_CHUNKS && o->at < to;
}

static int punch_put_edges(struct data_op *o, struct change *c)
{
    uint32_t per_chunk = c->i.a.chunk_size / PST_BLOCK;
    int r = 0;

    for (uint32_t k = 0; !r && k < o->nsegs; k++) {
        const struct seg *s = &o->segs[k];
        uint64_t block = o->edges[s->first].block;
        struct chunk_run run = {.phys = s->phys, .n = 1};
        r = change_blocks(c, block / per_chunk, (uint32_t)(block % per_chunk), 1, &run, 1, &o->crcs[s->first], 0);
    }
    return r;
}

static bool same_edges(const struct data_op *o, const struct punch *p)
{
    if (o->nedges != p->nedges)
        return false;
    for (uint32_t k = 0; k < p->nedges; k++)
        if (o->edges[k].block != p->edges[k].block || o->edges[k].lo != p->edges[k].lo ||
            o->edges[k].hi != p->edges[k].hi)
            return false;
    return true;
}

static enum data_next punch_commit(struct data_op *o)
{
    struct change c;
    struct punch p;
    enum data_next n = commit_begin(o, &c);
    int r, more;

    if (n != NEXT_GO)
        return n;
    p = punch_plan(o, c.i.a.size);
    if (!same_edges(o, &p))
        return commit_again(o, &c, punch_edges);
    r = o->edges_late ? 0 : edges_moved(o, &c);
    if (r > 0)
        return commit_again(o, &c, punch_edges);
    more = r ? r : punch_whole(o, &c, p.to);
    c.i.a.mtime_ns = c.i.a.ctime_ns = wall_ns();
    if (more == 1 || (more == 0 && o->edges_late)) {
        /* A step that gives space back; the edges and the reply come with the last one. */
        txn_set_reserved(c.t);
        r = change_commit(&c, NULL, false, NULL);
        change_end(&c);
        if (!r && !more)
            o->state = punch_edges;
        return r ? op_done(o, r) : NEXT_YIELD;
    }
    r = more ? more : punch_put_edges(o, &c);
    if (r) {
        change_end(&c);
        return op_done(o, r);
    }
    if (!o->nsegs)
        txn_set_reserved(c.t);
    return commit_end(o, &c, 0);
}

/* ---- ALLOCATE ---- */

static enum data_next allocate_step(struct data_op *o);
static enum data_next allocate_undo(struct data_op *o);

enum data_next allocate_begin(struct data_op *o)
{
    struct pst_op *op = o->op;
    enum data_next n = commit_may_begin(o);
    uint64_t space_free, total, need;
    int r;

    if (n != NEXT_GO)
        return n;
    r = op_attr(o, NULL);
    if (!r && (op->offset > PST_FILE_MAX || op->length > PST_FILE_MAX - op->offset))
        r = -EFBIG;
    if (r)
        return op_done(o, r);
    o->at = op->offset / PST_BLOCK;
    o->end = align_up(op->offset + op->length, PST_BLOCK) / PST_BLOCK;
    /* Without a try where it cannot succeed: at least so much is missing. */
    need = (o->end - o->at) * PST_BLOCK;
    need = need > o->attr.used ? need - o->attr.used : 0;
    alloc_space(o->e, &space_free, &total);
    for (int more = 1; need > space_free && more > 0;) {
        more = data_collect(o->e, DATA_STEP_CHUNKS);
        alloc_space(o->e, &space_free, &total); /* also after none: the background deleter may have been first */
    }
    if (need > space_free)
        return op_done(o, -ENOSPC);
    o->state = allocate_step;
    return NEXT_GO;
}

/* Reserves one hole of a chunk. */
static int fill_hole(struct data_op *o, struct change *c, uint64_t index, uint32_t first, uint32_t n)
{
    uint32_t per_chunk = c->i.a.chunk_size / PST_BLOCK;

    while (n) {
        uint64_t at = index * per_chunk + first;
        struct chunk_run *run;
        struct span *last;
        uint64_t phys = 0;
        int64_t got;
        if (op_room_runs(o, o->nruns + 1) || op_room_added(o, o->nadded + 1))
            return -ENOMEM;
        got = space_claim(o->e, n, &phys);
        if (got <= 0)
            return got < 0 ? (int)got : -ENOSPC;
        run = &o->runs[o->nruns++];
        *run = (struct chunk_run){.phys = phys, .n = (uint32_t)got};
        int r = change_blocks(c, index, first, run->n, run, 1, NULL, 0);
        if (r)
            return r;
        last = o->nadded ? &o->added[o->nadded - 1] : NULL;
        if (last && last->start + last->n == at)
            last->n += run->n;
        else
            o->added[o->nadded++] = (struct span){.start = at, .n = run->n};
        first += run->n;
        n -= run->n;
    }
    return 0;
}

/* The holes of [o->at, o->end) in one chunk. */
static int fill_chunk(struct data_op *o, struct change *c)
{
    uint32_t per_chunk = c->i.a.chunk_size / PST_BLOCK, at = (uint32_t)(o->at % per_chunk);
    uint64_t index = o->at / per_chunk, end = min_u64((index + 1) * per_chunk, o->end);
    uint32_t to = (uint32_t)(end - index * per_chunk);

    while (at < to) {
        const struct chunk_map *m;
        const struct chunk_ext *x;
        uint32_t hole_end;
        int r = change_look(c, index, &m);
        if (r)
            return r;
        x = chunk_next(m, at);
        hole_end = x && x->first < to ? (x->first > at ? x->first : at) : to;
        uint32_t next = x && x->first < to ? (uint32_t)x->first + x->n : to;
        r = hole_end > at ? fill_hole(o, c, index, at, hole_end - at) : 0;
        if (r)
            return r;
        at = next;
    }
    o->at = end;
    return 0;
}

static enum data_next allocate_step(struct data_op *o)
{
    struct pst_op *op = o->op;
    uint64_t start = o->at;
    uint32_t nadded = o->nadded, chunks = 0;
    struct span last = nadded ? o->added[nadded - 1] : (struct span){0};
    struct change c;
    enum data_next n = commit_begin(o, &c);
    int r = 0;

    if (n != NEXT_GO)
        return n;
    while (!r && o->at < o->end && chunks++ < DATA_STEP_CHUNKS && c.bytes < DATA_STEP_BYTES)
        r = fill_chunk(o, &c);
    c.i.a.ctime_ns = wall_ns();
    if (!r && o->at >= o->end) {
        if (!(op->flags & PST_OPF_KEEP_SIZE) && op->offset + op->length > c.i.a.size) {
            c.i.a.size = op->offset + op->length;
            c.i.a.mtime_ns = c.i.a.ctime_ns;
        }
        n = commit_end(o, &c, 0);
        r = (int)op->result;
        if (!r)
            return n;
    } else if (!r) {
        r = change_commit(&c, o, false, NULL);
    }
    change_end(&c);
    if (!r)
        return NEXT_YIELD;
    /* This step changed nothing; those before are undone. */
    op_unclaim(o);
    o->at = start;
    o->nadded = nadded;
    if (nadded)
        o->added[nadded - 1] = last;
    o->undo_err = r;
    o->state = allocate_undo;
    return NEXT_GO;
}

/* Takes out of a chunk what is still unwritten of [at, to), blocks of the chunk. */
static int empty_chunk(struct change *c, uint64_t index, uint32_t at, uint32_t to)
{
    while (at < to) {
        const struct chunk_map *m;
        const struct chunk_ext *x;
        uint32_t a, b;
        int r = change_look(c, index, &m);
        if (r)
            return r;
        x = chunk_next(m, at);
        if (!x || x->first >= to)
            return 0;
        a = x->first > at ? x->first : at;
        b = (uint32_t)x->first + x->n < to ? (uint32_t)x->first + x->n : to;
        at = b;
        r = x->unwritten ? change_blocks(c, index, a, b - a, NULL, 0, NULL, 0) : 0;
        if (r)
            return r;
    }
    return 0;
}

static enum data_next allocate_undo(struct data_op *o)
{
    struct change c;
    uint32_t per_chunk = o->attr.chunk_size / PST_BLOCK, chunks = 0;
    int r;

    if (!o->nadded)
        return op_done(o, o->undo_err);
    r = change_begin(&c, o->e, o->cont, o->op->ino);
    if (r)
        return op_done(o, o->undo_err); /* the object is gone, with what it had */
    txn_set_reserved(c.t);
    while (!r && o->nadded && chunks++ < DATA_STEP_CHUNKS) {
        struct span *s = &o->added[o->nadded - 1];
        uint64_t index = (s->start + s->n - 1) / per_chunk, from = max_u64(index * per_chunk, s->start);
        r = empty_chunk(&c, index, (uint32_t)(from % per_chunk), (uint32_t)(s->start + s->n - index * per_chunk));
        s->n = from - s->start;
        o->nadded -= s->n == 0;
    }
    if (!r)
        r = change_commit(&c, NULL, false, NULL);
    change_end(&c);
    if (r) {
        log_error("object %llu: reserved space could not be given back: %d", (unsigned long long)o->op->ino, -r);
        return op_done(o, o->undo_err);
    }
    return NEXT_YIELD;
}

/* ---- SEEK ---- */

static enum data_next seek_data(struct data_op *o);
static enum data_next seek_hole(struct data_op *o);

enum data_next seek_begin(struct data_op *o)
{
    int r = op_attr(o, NULL);

    if (r)
        return op_done(o, r);
    if (o->op->offset >= o->attr.size)
        return op_done(o, -ENXIO);
    o->at = o->op->offset / PST_BLOCK;
    o->end = (o->attr.size + PST_BLOCK - 1) / PST_BLOCK;
    o->state = o->op->kind == PST_OP_SEEK_DATA ? seek_data : seek_hole;
    return NEXT_GO;
}

/* The first written block at or after o->at in this chunk; false: none. */
static bool first_written(const struct data_op *o, const struct chunk_map *m, uint64_t chunk_start, uint64_t *ret)
{
    uint64_t at = max_u64(o->at, chunk_start);
    const struct chunk_ext *x = chunk_next(m, (uint32_t)(at - chunk_start));

    while (x && x < m->exts + m->nexts && x->unwritten)
        x++;
    if (!x || x == m->exts + m->nexts)
        return false;
    *ret = max_u64(at, chunk_start + x->first);
    return true;
}

static enum data_next seek_data(struct data_op *o)
{
    uint32_t per_chunk = o->attr.chunk_size / PST_BLOCK;
    uint64_t index[DATA_STEP_CHUNKS], block;
    int n = scan_chunks(o->e, o->cont, o->op->ino, o->at / per_chunk, index, DATA_STEP_CHUNKS);

    for (int k = 0; k < n; k++) {
        struct chunk_map *m = NULL;
        int r = map_get(o->e, o->cont, &o->attr, index[k], false, &m);
        bool found = !r && first_written(o, m, index[k] * per_chunk, &block);
        chunk_unref(m);
        if (r)
            return op_done(o, r);
        if (found)
            return op_done(o, block < o->end ? (int64_t)max_u64(block * PST_BLOCK, o->op->offset) : -ENXIO);
        o->at = (index[k] + 1) * per_chunk;
    }
    if (n < (int)DATA_STEP_CHUNKS || o->at >= o->end)
        return op_done(o, n < 0 ? n : -ENXIO);
    return NEXT_YIELD;
}

static enum data_next seek_hole(struct data_op *o)
{
    uint32_t per_chunk = o->attr.chunk_size / PST_BLOCK;

    for (uint32_t k = 0; k < DATA_STEP_SCAN && o->at < o->end; k++) {
        uint64_t index = o->at / per_chunk, end = (index + 1) * per_chunk;
        struct chunk_map *m = NULL;
        const struct chunk_ext *x;
        int r = map_get(o->e, o->cont, &o->attr, index, false, &m);
        if (r)
            return op_done(o, r);
        while (o->at < end && (x = chunk_find(m, (uint32_t)(o->at % per_chunk))) && !x->unwritten)
            o->at = index * per_chunk + x->first + x->n;
        chunk_unref(m);
        if (o->at < end)
            return op_done(o, (int64_t)min_u64(max_u64(o->at * PST_BLOCK, o->op->offset), o->attr.size));
    }
    return o->at >= o->end ? op_done(o, (int64_t)o->attr.size) : NEXT_YIELD;
}

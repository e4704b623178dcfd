/*
 * WRITE and CHUNK_REPLACE. States:
 *
 *   begin -> place (where it goes, blocks, edges) -> read edges -> write blocks -> commit -> (sync) -> done
 *              ^ the end of the file moved (append)      ^ an edge's old content changed        |
 *              +-----------------------------------------+--------------------------------------+
 *
 * No lock is held before the commit. Each way back means that another operation was committed meanwhile.
 */
#include "data.h"

#include "store/perm.h"

#include <errno.h>
#include <string.h>

static enum data_next write_place(struct data_op *o);
static enum data_next write_blocks(struct data_op *o);
static enum data_next write_commit(struct data_op *o);

/* What every change starts with: NEXT_GO when it is new and may go on. */
enum data_next commit_may_begin(struct data_op *o)
{
    int r = eng_writable(o->e);

    if (r)
        return op_done(o, r);
    r = reply_replay(o);
    if (r < 0)
        return op_done(o, r);
    if (r == 1)
        return o->op->flags & PST_OPF_DSYNC ? sync_reply(o) : NEXT_DONE;
    return NEXT_GO;
}

enum data_next write_begin(struct data_op *o)
{
    enum data_next n = op_gather(o, true);

    if (n == NEXT_GO)
        n = commit_may_begin(o);
    if (n == NEXT_GO)
        o->state = write_place;
    return n;
}

static enum data_next write_place(struct data_op *o)
{
    struct pst_op *op = o->op;
    int r;

    op_ticket_end(o);
    r = op_attr(o, NULL);
    if (r)
        return op_done(o, r);
    o->offset = op->flags & PST_OPF_APPEND ? o->attr.size : op->offset;
    o->length = op->length;
    if (o->offset > PST_FILE_MAX || o->length > PST_FILE_MAX - o->offset)
        return op_done(o, -EFBIG);
    o->first = o->offset / PST_BLOCK;
    if (o->length == 0) {
        op->attr = o->attr;
        op->offset = o->offset;
        return op_done(o, 0);
    }
    o->nblocks = (uint32_t)((o->offset + o->length - 1) / PST_BLOCK - o->first + 1);
    r = op_claim(o, o->nblocks);
    if (r == -EAGAIN)
        return NEXT_YIELD;
    if (!r)
        r = op_room_crcs(o, o->nblocks);
    if (r)
        return op_done(o, r);
    edges_drop(o);
    op_ticket(o);
    r = op_attr(o, NULL); /* from here on the ticket keeps old blocks */
    if (!r)
        r = edges_of_range(o, true);
    return r ? op_done(o, r) : edges_read(o, write_blocks);
}

/* The part of the claimed runs for blocks [from, from + n) of the operation. */
static size_t runs_of(const struct data_op *o, uint32_t from, uint32_t n, struct chunk_run *ret)
{
    size_t k = 0;
    uint32_t at = 0;

    for (uint32_t i = 0; i < o->nruns && n; at += o->runs[i++].n) {
        uint32_t skip = from > at ? from - at : 0, part;
        if (skip >= o->runs[i].n)
            continue;
        part = o->runs[i].n - skip < n ? o->runs[i].n - skip : n;
        ret[k++] = (struct chunk_run){.phys = o->runs[i].phys + skip, .n = part};
        from += part;
        n -= part;
    }
    return k;
}

/* Checksums of what the requests write, then the requests. Small writes go to the page cache, see data.h. */
static enum data_next send_writes(struct data_op *o, enum data_next (*then)(struct data_op *o))
{
    for (uint32_t k = 0; k < o->nsegs; k++) {
        struct seg *s = &o->segs[k];
        iov_crcs(o->iovs + s->iov_at, s->iov_n, s->n, o->crcs + s->first);
        s->io.cached = o->e->opt.direct != CHOICE_ALWAYS && o->length < DATA_DIRECT_MIN;
    }
    return op_start_io(o, then);
}

/* All blocks of the operation, into the claimed ones. */
static enum data_next write_all(struct data_op *o, enum data_next (*then)(struct data_op *o))
{
    uint32_t first = 0;
    int r = 0;

    o->nsegs = o->niovs = 0;
    for (uint32_t k = 0; !r && k < o->nruns; k++) {
        r = seg_add(o, IO_WRITE, o->runs[k].phys, first, o->runs[k].n);
        first += o->runs[k].n;
    }
    return r ? op_done(o, r) : send_writes(o, then);
}

static enum data_next write_blocks(struct data_op *o)
{
    return write_all(o, write_commit);
}

/* Only the edges once more, into the same claimed blocks. */
static enum data_next write_edges(struct data_op *o)
{
    struct chunk_run run;
    int r = 0;

    o->nsegs = o->niovs = 0;
    for (uint32_t k = 0; !r && k < o->nedges; k++) {
        uint32_t at = (uint32_t)(o->edges[k].block - o->first);
        runs_of(o, at, 1, &run);
        r = seg_add(o, IO_WRITE, run.phys, at, 1);
    }
    return r ? op_done(o, r) : send_writes(o, write_commit);
}

/* The old content of an edge is another by now. */
static enum data_next edges_again(struct data_op *o)
{
    int r;

    edges_drop(o);
    op_ticket(o);
    r = op_attr(o, NULL);
    if (!r)
        r = edges_of_range(o, true);
    return r ? op_done(o, r) : edges_read(o, write_edges);
}

/* Merges the new blocks into the records as they are now. */
static int merge(struct data_op *o, struct change *c)
{
    uint32_t per_chunk = c->i.a.chunk_size / PST_BLOCK;
    cleanup_free struct chunk_run *runs = malloc(o->nruns * sizeof *runs);
    uint64_t end = o->first + o->nblocks;
    int r = runs ? 0 : -ENOMEM;

    for (uint64_t b = o->first, to; !r && b < end; b = to) {
        uint64_t index = b / per_chunk;
        to = min_u64((index + 1) * per_chunk, end);
        uint32_t at = (uint32_t)(b - o->first), n = (uint32_t)(to - b);
        size_t nruns = runs_of(o, at, n, runs);
        r = change_blocks(c, index, (uint32_t)(b % per_chunk), n, runs, nruns, o->crcs + at,
                          (uint32_t)chunk_part(o->offset + o->length, index, c->i.a.chunk_size));
    }
    return r;
}

static enum data_next reply_synced(struct data_op *o)
{
    return o->io_err ? op_done(o, o->io_err) : NEXT_DONE;
}

enum data_next sync_reply(struct data_op *o)
{
    return op_start_sync(o, eng_last_lsn(o->e), reply_synced);
}

/* Commits c, which has the effect; result: what the operation returns. */
enum data_next commit_end(struct data_op *o, struct change *c, int64_t result)
{
    uint64_t lsn = 0;
    int r;

    o->op->result = result;
    r = change_commit(c, o, true, &lsn);
    change_end(c);
    if (r)
        return op_done(o, r);
    atomic_fetch_add_explicit(&o->e->data->write_bytes, (uint64_t)result, memory_order_relaxed);
    return o->op->flags & PST_OPF_DSYNC ? op_start_sync(o, lsn, reply_synced) : NEXT_DONE;
}

enum data_next commit_again(struct data_op *o, struct change *c, enum data_next (*state)(struct data_op *o))
{
    change_end(c);
    atomic_fetch_add_explicit(&o->e->data->redone, 1, memory_order_relaxed);
    o->state = state;
    return NEXT_YIELD;
}

/* Under the lock, before anything is changed: NEXT_GO, or the end of the operation. */
enum data_next commit_begin(struct data_op *o, struct change *c)
{
    int r;

    if (o->io_err) {
        log_error("data file: write error %d: the operation failed and changed nothing", -o->io_err);
        return op_done(o, o->io_err == -ENOSPC ? -ENOSPC : -EIO);
    }
    r = change_begin(c, o->e, o->cont, o->op->ino);
    if (r)
        return op_done(o, r);
    r = reply_replay(o); /* the same request by another connection */
    if (r) {
        change_end(c);
        return r < 0 ? op_done(o, r) : o->op->flags & PST_OPF_DSYNC ? sync_reply(o) : NEXT_DONE;
    }
    if (o->op->flags & PST_OPF_KILL_SETID)
        c->i.a.mode &= ~pst_perm_setid(c->i.a.mode);
    return NEXT_GO;
}

static enum data_next write_commit(struct data_op *o)
{
    struct pst_op *op = o->op;
    struct change c;
    enum data_next n = commit_begin(o, &c);
    int r;

    if (n != NEXT_GO)
        return n;
    if ((op->flags & PST_OPF_APPEND) && c.i.a.size != o->offset)
        return commit_again(o, &c, write_place);
    r = edges_moved(o, &c);
    if (r > 0)
        return commit_again(o, &c, edges_again);
    if (!r)
        r = merge(o, &c);
    if (r) {
        change_end(&c);
        return op_done(o, r);
    }
    op->offset = o->offset;
    c.i.a.size = max_u64(c.i.a.size, o->offset + o->length);
    c.i.a.mtime_ns = c.i.a.ctime_ns = wall_ns();
    return commit_end(o, &c, (int64_t)o->length);
}

/* ---- CHUNK_REPLACE ---- */

static enum data_next replace_place(struct data_op *o);
static enum data_next replace_commit(struct data_op *o);

enum data_next replace_begin(struct data_op *o)
{
    enum data_next n = op_gather(o, true);

    if (n == NEXT_GO)
        n = commit_may_begin(o);
    if (n == NEXT_GO)
        o->state = replace_place;
    return n;
}

/* 0 or -errno: the request against the object as it is. */
static int replace_check(const struct pst_op *op, const struct pst_attr *a)
{
    uint64_t start;

    if (op->length > a->chunk_size || op->meta_len > PST_META_MAX)
        return -EINVAL;
    if (op->offset >= PST_FILE_MAX / a->chunk_size || op->new_size > PST_FILE_MAX)
        return -EFBIG;
    start = op->offset * a->chunk_size;
    /* The new end of a shorter file is in the chunk that is replaced: no other block has to be cut. */
    if ((op->flags & PST_OPF_SET_SIZE) && op->new_size < a->size &&
        (op->new_size < start || op->new_size > start + a->chunk_size))
        return -EINVAL;
    return 0;
}

/*
 * Is the version the one that is there, and does the chunk lie in the file as it will be? *ret_version: what is there.
 */
static int replace_condition(const struct pst_op *op, const struct pst_attr *a, const struct chunk_map *m,
                             uint64_t *ret_version)
{
    uint64_t start = op->offset * a->chunk_size, size = a->size, version = m ? m->version : 0;

    if (op->flags & PST_OPF_IF_UNCHANGED)
        version = a->change;
    if (op->version != PST_VERSION_ANY && op->version != version) {
        *ret_version = version;
        return -ESTALE;
    }
    if (op->flags & PST_OPF_SET_SIZE)
        size = op->new_size;
    else if (op->flags & PST_OPF_GROW)
        size = max_u64(size, op->new_size);
    /* Bytes past the end would be read once the file grows, where there have to be zeroes. */
    if (op->length && start + op->length > size)
        return -EINVAL;
    /* A record without blocks would outlive a file that never reached it. */
    return op->length == 0 && op->meta_len && start >= size ? -EINVAL : 0;
}

static enum data_next replace_place(struct data_op *o)
{
    struct pst_op *op = o->op;
    struct chunk_map *m = NULL;
    int r = op_attr(o, NULL);

    if (!r)
        r = replace_check(op, &o->attr);
    if (!r)
        r = map_get(o->e, o->cont, &o->attr, op->offset, false, &m);
    if (!r)
        r = replace_condition(op, &o->attr, m, &op->version);
    chunk_unref(m);
    if (r)
        return op_done(o, r);
    o->offset = op->offset * o->attr.chunk_size;
    o->length = op->length;
    o->first = o->offset / PST_BLOCK;
    o->nblocks = (uint32_t)((o->length + PST_BLOCK - 1) / PST_BLOCK);
    r = op_claim(o, o->nblocks);
    if (r == -EAGAIN)
        return NEXT_YIELD;
    if (!r)
        r = op_room_crcs(o, o->nblocks);
    if (!r && o->length % PST_BLOCK)
        r = edge_add(o, o->first + o->nblocks - 1, 0, (uint32_t)(o->length % PST_BLOCK), false);
    return r ? op_done(o, r) : write_all(o, replace_commit);
}

static int replace_merge(struct data_op *o, struct change *c)
{
    struct pst_op *op = o->op;
    struct chunk_map *m;
    int r = chunk_edit(NULL, 0, o->nblocks, o->runs, o->nruns, o->crcs, NULL, NULL, &m);

    if (r)
        return r;
    m->in_use = (uint32_t)o->length;
    m->meta_len = op->meta_len;
    memcpy(m->meta, op->meta, op->meta_len);
    r = change_chunk(c, op->offset, m);
    if (r || !(op->flags & PST_OPF_SET_SIZE) || op->new_size >= c->i.a.size)
        return r;
    return cut_chunks(c, op->offset + 1);
}

static enum data_next replace_commit(struct data_op *o)
{
    struct pst_op *op = o->op;
    const struct chunk_map *m = NULL;
    struct change c;
    enum data_next n = commit_begin(o, &c);
    int r;

    if (n != NEXT_GO)
        return n;
    r = replace_check(op, &c.i.a);
    if (!r)
        r = change_look(&c, op->offset, &m);
    if (!r)
        r = replace_condition(op, &c.i.a, m, &op->version);
    if (!r)
        r = replace_merge(o, &c);
    if (r) {
        change_end(&c);
        return op_done(o, r);
    }
    if (op->flags & PST_OPF_SET_SIZE)
        c.i.a.size = op->new_size;
    else if (op->flags & PST_OPF_GROW)
        c.i.a.size = max_u64(c.i.a.size, op->new_size);
    c.i.a.mtime_ns = c.i.a.ctime_ns = wall_ns();
    op->version = o->length || op->meta_len ? c.i.a.change + 1 : 0;
    return commit_end(o, &c, (int64_t)o->length);
}

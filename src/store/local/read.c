/*
 * READ and CHUNK_READ. States: gather -> look up (records to requests, holes are zeroed) -> I/O -> verify. A block
 * whose checksum is wrong is looked up once more: if the record names another block by now, the read starts again.
 */
#include "data.h"

#include "base/trace.h"

#include <errno.h>
#include <string.h>

void data_damaged(struct engine *e, const struct pst_cont_info *info, uint64_t cont, uint64_t ino, uint64_t offset,
                  const char *what)
{
    atomic_fetch_add(&e->data_errors, 1);
    log_error("%s: %s/%s (container %llu), object %llu, offset %llu: run `penstock scrub`", what,
              info ? info->pool : "", info ? info->label : "", (unsigned long long)cont, (unsigned long long)ino,
              (unsigned long long)offset);
}

void data_op_damaged(struct data_op *o, uint64_t offset, const char *what)
{
    uint64_t was = trace_enter(o->op->ctx.trace);

    data_damaged(o->e, &o->op->cont->info, o->cont, o->op->ino, offset, what);
    trace_enter(was);
}

/* The bytes of the operation within blocks [from, to) of the file read as zero. */
static void zero_blocks(struct data_op *o, uint64_t from, uint64_t to)
{
    uint64_t a = max_u64(from * PST_BLOCK, o->offset), b = min_u64(to * PST_BLOCK, o->offset + o->length);

    if (a < b)
        iov_zero(o->iov, o->iovcnt, a - o->offset, b - a);
}

/* Requests are made for longer runs than extents where these go on from one another, also across chunks. */
struct plan {
    uint64_t phys;
    uint32_t first, n;
};

static int plan_flush(struct data_op *o, struct plan *p)
{
    int r = p->n ? seg_add(o, IO_READ, p->phys, p->first, p->n) : 0;

    p->n = 0;
    return r;
}

/* Blocks [from, to) of the file, which lie in this chunk. */
static int plan_chunk(struct data_op *o, struct plan *p, const struct chunk_map *m, uint64_t chunk_start, uint64_t from,
                      uint64_t to)
{
    while (from < to) {
        uint32_t at = (uint32_t)(from - chunk_start), first = (uint32_t)(from - o->first), n;
        const struct chunk_ext *x = chunk_next(m, at);
        uint64_t start = x ? max_u64(chunk_start + x->first, from) : to;
        int r;
        if (start >= to || x->unwritten || start > from) {
            uint64_t end = start >= to ? to : start > from ? start : min_u64(chunk_start + x->first + x->n, to);
            zero_blocks(o, from, end);
            from = end;
            continue;
        }
        n = (uint32_t)(min_u64(chunk_start + x->first + x->n, to) - from);
        memcpy(o->crcs + first, m->crcs + x->crc_at + (at - x->first), n * sizeof *o->crcs);
        if (p->n && (p->first + p->n != first || p->phys + p->n != x->phys + (at - x->first))) {
            r = plan_flush(o, p);
            if (r)
                return r;
        }
        if (!p->n)
            *p = (struct plan){.phys = x->phys + (at - x->first), .first = first};
        p->n += n;
        from += n;
    }
    return 0;
}

/* Prepares for [offset, offset + length), length > 0. */
static int plan_begin(struct data_op *o, uint64_t offset, uint64_t length)
{
    o->offset = offset;
    o->length = length;
    o->first = offset / PST_BLOCK;
    o->nblocks = (uint32_t)((offset + length - 1) / PST_BLOCK - o->first + 1);
    o->nsegs = o->niovs = 0;
    edges_drop(o);
    if (op_room_crcs(o, o->nblocks))
        return -ENOMEM;
    return edges_of_range(o, false);
}

static enum data_next read_lookup(struct data_op *o);
static enum data_next chunk_read_lookup(struct data_op *o);

static enum data_next read_over(struct data_op *o)
{
    if (o->linear.iov_base)
        iov_from(o->op->iov, o->op->iovcnt, 0, o->linear.iov_base, o->length);
    atomic_fetch_add_explicit(&o->e->data->read_bytes, o->length, memory_order_relaxed);
    return op_done(o, o->op->kind == PST_OP_CHUNK_READ ? o->op->result : (int64_t)o->length);
}

/* The block at this index of the operation is not what the record said. */
static enum data_next read_bad(struct data_op *o, const struct seg *s, uint32_t index)
{
    uint64_t block = o->first + index, phys = s->phys + (index - s->first);
    uint32_t per_chunk = o->attr.chunk_size / PST_BLOCK, at = (uint32_t)(block % per_chunk);
    struct chunk_map *m = NULL;
    const struct chunk_ext *x;
    struct pst_attr attr = o->attr;
    bool same;
    int r = map_get(o->e, o->cont, &attr, block / per_chunk, true, &m);

    if (r)
        return op_done(o, r);
    x = chunk_find(m, at);
    same = x && !x->unwritten && x->phys + (at - x->first) == phys &&
           m->crcs[x->crc_at + (at - x->first)] == o->crcs[index];
    chunk_unref(m);
    if ((same && !op_reread(o, phys)) || ++o->tries > DATA_READ_RETRIES) {
        data_op_damaged(o, block * PST_BLOCK, o->io_err ? "read error" : "checksum mismatch");
        return op_done(o, -EIO);
    }
    o->state = o->op->kind == PST_OP_READ ? read_lookup : chunk_read_lookup;
    return NEXT_GO;
}

static enum data_next read_verify(struct data_op *o)
{
    for (uint32_t k = 0; k < o->nsegs; k++) {
        const struct seg *s = &o->segs[k];
        uint32_t bad;
        if (o->io_err == -EAGAIN && op_is_now(o))
            return op_done(o, -EAGAIN);
        if (o->io_err)
            return read_bad(o, s, s->first);
        bad = iov_check(o->iovs + s->iov_at, s->iov_n, s->n, o->crcs + s->first);
        if (bad < s->n)
            return read_bad(o, s, s->first + bad);
    }
    op_ticket_end(o);
    return read_over(o);
}

static enum data_next read_lookup(struct data_op *o)
{
    uint32_t per_chunk;
    struct plan p = {0};
    int r;

    op_ticket(o);
    r = op_attr(o, NULL);
    if (r)
        return op_done(o, r);
    if (o->op->offset >= o->attr.size || o->op->length == 0)
        return op_done(o, 0);
    r = plan_begin(o, o->op->offset, min_u64(o->op->length, o->attr.size - o->op->offset));
    per_chunk = o->attr.chunk_size / PST_BLOCK;
    for (uint64_t b = o->first, end = o->first + o->nblocks; !r && b < end;) {
        uint64_t index = b / per_chunk, to = min_u64((index + 1) * per_chunk, end);
        struct chunk_map *m = NULL;
        r = map_get(o->e, o->cont, &o->attr, index, false, &m);
        if (!r && m && m->meta_len) /* in a filter's form: whoever reads bytes has not got it */
            r = -ENOTSUP;
        if (!r)
            r = plan_chunk(o, &p, m, index * per_chunk, b, to);
        chunk_unref(m);
        b = to;
    }
    if (!r)
        r = plan_flush(o, &p);
    return r ? op_done(o, r) : op_start_io(o, read_verify);
}

enum data_next read_begin(struct data_op *o)
{
    enum data_next n = op_gather(o, false);

    if (n == NEXT_GO)
        o->state = read_lookup;
    return n;
}

static enum data_next chunk_read_lookup(struct data_op *o)
{
    struct pst_op *op = o->op;
    struct chunk_map *m = NULL;
    struct plan p = {0};
    uint64_t start, length;
    int r;

    op_ticket(o);
    r = op_attr(o, NULL);
    if (r)
        return op_done(o, r);
    if (op->offset > PST_FILE_MAX / o->attr.chunk_size)
        return op_done(o, -EFBIG);
    r = map_get(o->e, o->cont, &o->attr, op->offset, false, &m);
    if (r)
        return op_done(o, r);
    op->attr = o->attr;
    op->version = m ? m->version : 0;
    op->meta_len = m ? m->meta_len : 0;
    if (m)
        memcpy(op->meta, m->meta, m->meta_len);
    op->result = m ? m->in_use : 0;
    start = op->offset * o->attr.chunk_size;
    length = min_u64((uint64_t)op->result, op->length);
    if (!length) {
        chunk_unref(m);
        o->length = 0;
        return op_done(o, op->result);
    }
    r = plan_begin(o, start, length);
    if (!r)
        r = plan_chunk(o, &p, m, o->first, o->first, o->first + o->nblocks);
    if (!r)
        r = plan_flush(o, &p);
    chunk_unref(m);
    return r ? op_done(o, r) : op_start_io(o, read_verify);
}

enum data_next chunk_read_begin(struct data_op *o)
{
    enum data_next n = op_gather(o, false);

    if (n == NEXT_GO)
        o->state = chunk_read_lookup;
    return n;
}

enum data_next attr_begin(struct data_op *o)
{
    int r = op_attr(o, NULL);

    if (r == 0)
        o->op->attr = o->attr;
    return op_done(o, r);
}

/* Blocks of which an operation has a part only: their other bytes are kept by a write and thrown away by a read. */
#include "data.h"

#include <errno.h>
#include <string.h>

void edges_drop(struct data_op *o)
{
    for (uint32_t k = 0; k < o->nedges; k++)
        op_block_free(o, o->edges[k].buf);
    o->nedges = 0;
}

/* Where the block is now. */
static int look_up(struct data_op *o, uint64_t block, bool fresh, uint64_t *ret_phys, uint32_t *ret_crc)
{
    uint32_t per_chunk = o->attr.chunk_size / PST_BLOCK, at = (uint32_t)(block % per_chunk);
    struct chunk_map *m = NULL;
    const struct chunk_ext *x;
    int r = map_get(o->e, o->cont, &o->attr, block / per_chunk, fresh, &m);

    if (r)
        return r;
    x = chunk_find(m, at);
    *ret_phys = x && !x->unwritten ? x->phys + (at - x->first) : PHYS_NONE;
    *ret_crc = x && !x->unwritten ? m->crcs[x->crc_at + (at - x->first)] : 0;
    chunk_unref(m);
    return 0;
}

/* Bytes past the end of the file are zero, so only live ones need a read. */
static bool needs_read(const struct edge *g, uint64_t size)
{
    uint64_t start = g->block * PST_BLOCK, live = size > start ? min_u64(size - start, PST_BLOCK) : 0;

    return g->phys != PHYS_NONE && live > 0 && (g->lo > 0 || g->hi < live);
}

int edge_add(struct data_op *o, uint64_t block, uint32_t lo, uint32_t hi, bool look)
{
    struct edge *g = &o->edges[o->nedges];
    int r;

    *g = (struct edge){.block = block, .lo = lo, .hi = hi, .phys = PHYS_NONE, .pad = !look};
    r = look ? look_up(o, block, false, &g->phys, &g->crc) : 0;
    if (r)
        return r;
    g->buf = op_block(o);
    if (!g->buf)
        return -ENOMEM;
    g->read = needs_read(g, o->attr.size);
    if (!g->read)
        memset(g->buf, 0, PST_BLOCK);
    o->nedges++;
    return 0;
}

int edges_of_range(struct data_op *o, bool look)
{
    uint32_t head = (uint32_t)(o->offset % PST_BLOCK), tail = (uint32_t)((o->offset + o->length) % PST_BLOCK);
    uint64_t last = o->first + o->nblocks - 1;
    int r = 0;

    if (o->nblocks == 1)
        return head || tail ? edge_add(o, o->first, head, tail ? tail : PST_BLOCK, look) : 0;
    if (head)
        r = edge_add(o, o->first, head, PST_BLOCK, look);
    if (!r && tail)
        r = edge_add(o, last, 0, tail, look);
    return r;
}

static enum data_next edges_check(struct data_op *o)
{
    bool again = false;

    if (o->io_err)
        return op_done(o, -EIO);
    for (uint32_t k = 0; k < o->nsegs; k++) {
        struct edge *g = &o->edges[o->segs[k].first];
        struct iovec v = {.iov_base = g->buf, .iov_len = PST_BLOCK};
        uint64_t phys;
        uint32_t crc;
        int r;
        if (iov_check(&v, 1, 1, &g->crc) == 1)
            continue;
        r = look_up(o, g->block, true, &phys, &crc);
        if (r)
            return op_done(o, r);
        if ((phys == g->phys && crc == g->crc && !op_reread(o, phys)) || ++o->tries > DATA_READ_RETRIES) {
            data_op_damaged(o, g->block * PST_BLOCK, "checksum mismatch");
            return op_done(o, -EIO);
        }
        g->phys = phys;
        g->crc = crc;
        again = true;
    }
    if (again)
        return edges_read(o, o->after_edges);
    op_ticket_end(o);
    o->state = o->after_edges;
    return NEXT_GO;
}

enum data_next edges_read(struct data_op *o, enum data_next (*then)(struct data_op *o))
{
    o->after_edges = then;
    o->nsegs = o->niovs = 0;
    if (op_room_segs(o, 2) || op_room_iovs(o, 2))
        return op_done(o, -ENOMEM);
    for (uint32_t k = 0; k < o->nedges; k++) {
        struct edge *g = &o->edges[k];
        if (g->read && g->phys == PHYS_NONE) {
            memset(g->buf, 0, PST_BLOCK); /* it became a hole meanwhile */
            g->read = false;
        }
        if (!g->read)
            continue;
        o->iovs[o->niovs] = (struct iovec){.iov_base = g->buf, .iov_len = PST_BLOCK};
        o->segs[o->nsegs++] =
            (struct seg){.io.kind = IO_READ, .phys = g->phys, .first = k, .n = 1, .iov_at = o->niovs++, .iov_n = 1};
    }
    return op_start_io(o, edges_check);
}

int edges_moved(struct data_op *o, struct change *c)
{
    uint32_t per_chunk = c->i.a.chunk_size / PST_BLOCK;

    for (uint32_t k = 0; k < o->nedges; k++) {
        const struct edge *g = &o->edges[k];
        uint32_t at = (uint32_t)(g->block % per_chunk), crc = 0;
        uint64_t phys = PHYS_NONE;
        const struct chunk_map *m;
        const struct chunk_ext *x;
        int r;
        if (g->pad)
            continue;
        r = change_look(c, g->block / per_chunk, &m);
        if (r)
            return r;
        x = chunk_find(m, at);
        if (x && !x->unwritten) {
            phys = x->phys + (at - x->first);
            crc = m->crcs[x->crc_at + (at - x->first)];
        }
        /* The size that was looked at may be older than the block: then bytes that were live were not read. */
        if (phys != g->phys || crc != g->crc || (!g->read && needs_read(g, c->i.a.size)))
            return 1;
    }
    return 0;
}

static uint8_t *edge_buf(const struct data_op *o, uint64_t block)
{
    return o->edges[o->nedges > 1 && o->edges[1].block == block ? 1 : 0].buf;
}

int seg_add(struct data_op *o, enum io_kind kind, uint64_t phys, uint32_t first, uint32_t n)
{
    uint64_t pos = (uint64_t)first * PST_BLOCK, end = pos + (uint64_t)n * PST_BLOCK;
    uint64_t lo = o->offset - o->first * PST_BLOCK, hi = lo + o->length;
    uint64_t from = max_u64(pos, lo), to = min_u64(end, hi);
    uint32_t at = o->niovs;

    if (op_room_segs(o, o->nsegs + 1) || op_room_iovs(o, at + 2 + iov_count(o->iov, o->iovcnt, from - lo, to - from)))
        return -ENOMEM;
    if (pos < lo)
        o->iovs[o->niovs++] = (struct iovec){.iov_base = edge_buf(o, o->first + first), .iov_len = (size_t)(lo - pos)};
    o->niovs += iov_slice(o->iov, o->iovcnt, from - lo, to - from, o->iovs + o->niovs);
    if (end > hi)
        o->iovs[o->niovs++] = (struct iovec){.iov_base = edge_buf(o, o->first + first + n - 1) + hi % PST_BLOCK,
                                             .iov_len = (size_t)(end - hi)};
    o->segs[o->nsegs++] =
        (struct seg){.io.kind = kind, .phys = phys, .first = first, .n = n, .iov_at = at, .iov_n = o->niovs - at};
    return 0;
}

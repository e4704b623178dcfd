/* PUNCH, ALLOCATE and SEEK: ranges that may be as long as a file. One thing at a time. */
#include "cf_queue.h"

#include <string.h>

/* ---- PUNCH ---- */

static void punch_emptied(struct cf_low *low)
{
    cf_settle(low->frame, low->op.result < 0 ? (int)low->op.result : 0);
}

/* A chunk that is in the range as a whole becomes a hole, whatever it is by now. */
static void punch_empty(struct cf_frame *f, uint64_t chunk)
{
    cf_low_op(f, &f->low, PST_OP_CHUNK_REPLACE, chunk);
    f->at = (chunk + 1) * cf_size_of(f);
    f->under_way++;
    cf_send(f, &f->low, punch_emptied);
}

static void punch_part(struct cf_frame *f)
{
    uint32_t size = cf_size_of(f);
    struct cf_part *p = cf_part_free(f);

    p->work = WORK_ZERO;
    p->last = false;
    p->chunk = f->at / size;
    p->from = (uint32_t)(f->at % size);
    p->to = (uint32_t)min_u64(size, p->from + (f->end - f->at));
    f->at += p->to - p->from;
    cf_part_start(p);
}

static void punch_found(struct cf_low *low)
{
    struct cf_frame *f = low->frame;
    uint32_t size = cf_size_of(f);
    int64_t r = low->op.result;
    uint64_t chunk;

    if (r == -ENXIO || (r >= 0 && (uint64_t)r >= f->end)) {
        f->at = f->end;
        cf_settle(f, 0);
        return;
    }
    if (r < 0) {
        cf_settle(f, (int)r);
        return;
    }
    f->under_way--;
    chunk = (uint64_t)r / size;
    f->at = chunk * size;
    if (f->end - f->at >= size)
        punch_empty(f, chunk);
    else
        punch_part(f);
}

static void punch_step(struct cf_frame *f)
{
    uint32_t size = cf_size_of(f);

    if (!cf_goes_on(f))
        return;
    if (f->at >= f->end) {
        cf_mark(f);
    } else if (f->at % size || f->end - f->at < size) {
        punch_part(f);
    } else {
        cf_low_op(f, &f->low, PST_OP_SEEK_DATA, f->at);
        f->under_way++;
        cf_send(f, &f->low, punch_found);
    }
}

void cf_punch_begin(struct cf_frame *f)
{
    f->result = 0;
    f->at = min_u64(f->op->offset, PST_FILE_MAX);
    f->end = f->op->length > PST_FILE_MAX - f->at ? PST_FILE_MAX : f->at + f->op->length;
    f->step = punch_step;
    if (f->op->ctx.id.seq)
        cf_probe(f, UINT64_MAX, 0);
    else
        punch_step(f);
}

/* ---- ALLOCATE: what a chunk will take is not known before it is written, so nothing is reserved ---- */

enum { ALLOCATE_SIZE, ALLOCATE_GROW };

static void allocate_step(struct cf_frame *f)
{
    if (!cf_goes_on(f))
        return;
    if (f->state == ALLOCATE_GROW)
        cf_done(f, 0);
}

static void allocate_sized(struct cf_low *low)
{
    struct cf_frame *f = low->frame;
    uint32_t size = cf_size_of(f);
    struct cf_part *p;

    if (low->op.result < 0) {
        cf_settle(f, (int)low->op.result);
        return;
    }
    f->under_way--;
    if (f->op->flags & PST_OPF_KEEP_SIZE || low->op.attr.size >= f->end) {
        cf_mark(f);
        return;
    }
    f->state = ALLOCATE_GROW;
    p = cf_part_free(f);
    p->work = WORK_GROW;
    p->last = true;
    p->chunk = (f->end - 1) / size;
    p->from = 0;
    p->to = (uint32_t)(f->end - p->chunk * size);
    cf_part_start(p);
}

void cf_allocate_begin(struct cf_frame *f)
{
    struct pst_statfs fs;
    int r = pst_store_statfs(f->op->cont->next, &fs);

    if (r || fs.free_bytes < f->op->length) {
        cf_done(f, r ? r : -ENOSPC);
        return;
    }
    f->result = 0;
    f->end = f->op->offset + f->op->length;
    f->state = ALLOCATE_SIZE;
    f->step = allocate_step;
    cf_peek(f, 0, allocate_sized);
}

/* ---- SEEK ---- */

static void seek_step(struct cf_frame *f);
static void seek_peeked(struct cf_low *low);

static void seek_found(struct cf_low *low)
{
    struct cf_frame *f = low->frame;

    f->under_way--;
    if (low->op.result < 0) {
        cf_done(f, low->op.result);
        return;
    }
    /* What is stored of a chunk begins at its start. */
    f->at = max_u64(f->at, align_down((uint64_t)low->op.result, cf_size_of(f)));
    seek_step(f);
}

static void seek_below(struct cf_frame *f)
{
    cf_low_op(f, &f->low, PST_OP_SEEK_DATA, f->at);
    f->under_way++;
    cf_send(f, &f->low, seek_found);
}

/* Bytes of the chunk that are not behind its last one; the whole for one that was written without meta data. */
static uint64_t plain_bytes(const struct cf_frame *f, const struct pst_op *op)
{
    struct chunk_meta m;

    if (!op->version)
        return 0;
    return meta_decode(op->meta, op->meta_len, &m) ? cf_size_of(f) : m.plain_len;
}

static void seek_peeked(struct cf_low *low)
{
    struct cf_frame *f = low->frame;
    uint64_t size = cf_size_of(f), start = align_down(f->at, size), file = low->op.attr.size, have;

    f->under_way--;
    if (low->op.result < 0 || f->at >= file) {
        cf_done(f, low->op.result < 0 ? low->op.result : -ENXIO);
        return;
    }
    have = start + plain_bytes(f, &low->op);
    if (f->op->kind == PST_OP_SEEK_DATA) {
        if (f->at < have) {
            cf_done(f, (int64_t)f->at);
            return;
        }
        f->at = start + size;
        seek_below(f);
    } else if (have < start + size || start + size >= file) {
        cf_done(f, (int64_t)min_u64(max_u64(f->at, have), file));
    } else {
        f->at = start + size;
        seek_step(f);
    }
}

static void seek_step(struct cf_frame *f)
{
    if (cf_goes_on(f))
        cf_peek(f, f->at / cf_size_of(f), seek_peeked);
}

void cf_seek_begin(struct cf_frame *f)
{
    f->at = f->op->offset;
    f->step = seek_step;
    if (f->at >= PST_FILE_MAX)
        cf_done(f, -ENXIO);
    else
        seek_step(f);
}

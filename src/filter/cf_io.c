/* READ and WRITE of ranges of bytes. */
#include "cf_queue.h"

/* The next chunk of [f->at, f->end), up to its end. */
static struct cf_part *next_part(struct cf_frame *f, enum cf_work work)
{
    uint32_t size = cf_size_of(f);
    struct cf_part *p = cf_part_free(f);

    if (!p)
        return NULL;
    p->work = work;
    p->last = false;
    p->chunk = f->at / size;
    p->from = (uint32_t)(f->at % size);
    p->to = (uint32_t)min_u64(size, p->from + (f->end - f->at));
    p->at = f->at - f->pos;
    f->at += p->to - p->from;
    cf_part_start(p);
    return p;
}

/* ---- READ ---- */

static void read_step(struct cf_frame *f)
{
    if (!cf_goes_on(f))
        return;
    while (f->at < f->end && f->at < f->size && next_part(f, WORK_READ))
        ;
    if (f->under_way)
        return;
    cf_done(f, (int64_t)(f->size > f->pos ? min_u64(f->size, f->end) - f->pos : 0));
}

void cf_read_begin(struct cf_frame *f)
{
    f->pos = f->at = f->op->offset;
    f->end = min_u64(f->op->offset + f->op->length, PST_FILE_MAX);
    f->step = read_step;
    if (f->at >= f->end)
        cf_done(f, 0);
    else
        read_step(f);
}

/* ---- WRITE ---- */

uint64_t cf_replayed_end(const struct cf_frame *f)
{
    return f->op->attr.size >= f->op->length ? f->op->attr.size - f->op->length : 0;
}

enum write_state {
    WRITE_SIZE,  /* append: where is the end? */
    WRITE_FIRST, /* append: the part that takes the place, with all of the new size */
    WRITE_PROBE, /* several chunks: was it done before? */
    WRITE_BODY,
    WRITE_LAST, /* the last chunk, when all others are there: it records the request, and makes durable */
};

static uint64_t last_start(const struct cf_frame *f)
{
    return align_down(f->end - 1, cf_size_of(f));
}

static bool is_append(const struct cf_frame *f)
{
    return f->op->flags & PST_OPF_APPEND;
}

static void start_last(struct cf_frame *f, enum cf_work work)
{
    struct cf_part *p;

    f->state = WRITE_LAST;
    p = next_part(f, work);
    p->last = true; /* nothing of it has begun: see cf_part_start */
}

static void found_end(struct cf_low *low)
{
    struct cf_frame *f = low->frame;
    uint64_t size = low->op.attr.size;
    int err = low->op.result < 0 ? (int)low->op.result : 0;

    if (!err && f->op->length > PST_FILE_MAX - min_u64(size, PST_FILE_MAX))
        err = -EFBIG;
    f->pos = f->at = size;
    f->end = size + f->op->length;
    cf_settle(f, err);
}

/* The end of the file is known: at it, or somewhere behind it if another one was first. */
static void append_step(struct cf_frame *f)
{
    bool single = f->at >= last_start(f);

    if (!single && f->op->ctx.id.seq && f->state != WRITE_PROBE) {
        f->state = WRITE_PROBE;
        cf_probe(f, last_start(f) / cf_size_of(f), (int64_t)f->op->length);
        return;
    }
    if (single) {
        start_last(f, WORK_APPEND);
        return;
    }
    f->state = WRITE_FIRST;
    next_part(f, WORK_APPEND);
}

static void write_over(struct cf_frame *f)
{
    if (is_append(f))
        f->op->offset = f->replayed ? cf_replayed_end(f) : f->pos;
    cf_done(f, (int64_t)f->op->length);
}

static void write_step(struct cf_frame *f)
{
    if (f->err == CF_AGAIN && is_append(f) && !f->under_way) {
        f->err = 0;
        f->state = WRITE_SIZE;
        if (cf_goes_on(f))
            cf_peek(f, 0, found_end);
        return;
    }
    if (!cf_goes_on(f))
        return;
    if (f->state == WRITE_LAST) {
        write_over(f);
        return;
    }
    if (is_append(f) && (f->state == WRITE_SIZE || f->state == WRITE_PROBE)) {
        append_step(f);
        return;
    }
    while (f->at < last_start(f) && next_part(f, WORK_WRITE))
        ;
    if (!f->under_way)
        start_last(f, WORK_WRITE);
}

void cf_write_begin(struct cf_frame *f)
{
    if (!f->op->length) {
        cf_pass_on(f);
        return;
    }
    f->step = write_step;
    if (is_append(f)) {
        f->state = WRITE_SIZE;
        cf_peek(f, 0, found_end);
        return;
    }
    f->pos = f->at = f->op->offset;
    f->end = f->at + f->op->length;
    f->state = WRITE_BODY;
    if (f->op->ctx.id.seq && f->at < last_start(f))
        cf_probe(f, last_start(f) / cf_size_of(f), (int64_t)f->op->length);
    else
        write_step(f);
}

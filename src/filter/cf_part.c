/* What is done to one chunk: the states of a part, one function each. */
#include "cf_queue.h"

#include <errno.h>
#include <string.h>

static void part_read(struct cf_part *p);
static void part_replace(struct cf_part *p);

static struct cf_part *part_of(struct cf_low *low)
{
    return container_of(low, struct cf_part, low);
}

static void part_end(struct cf_part *p, int err)
{
    struct cf_queue *q = p->frame->q;
    struct slot *s = p->wait.slot;

    p->wait.slot = NULL;
    p->busy = false;
    if (s) {
        if (err)
            s->valid = false;
        slots_give(q->cf->slots, s);
    }
    cf_settle(p->frame, err);
}

/* ---- between the frame's memory and a chunk ---- */

/* n bytes at offset `at` of the frame's iov: from `from`, or zeroes; or into `to`. */
static void move_bytes(const struct pst_op *op, uint64_t at, uint64_t n, const uint8_t *from, uint8_t *to)
{
    for (uint32_t i = 0; i < op->iovcnt && n; i++) {
        uint64_t len = op->iov[i].iov_len, part;
        uint8_t *base = op->iov[i].iov_base;
        if (at >= len) {
            at -= len;
            continue;
        }
        part = min_u64(len - at, n);
        if (to) {
            memcpy(to, base + at, part);
            to += part;
        } else if (from) {
            memcpy(base + at, from, part);
            from += part;
        } else {
            memset(base + at, 0, part);
        }
        n -= part;
        at = 0;
    }
}

/* Where n bytes at offset `at` of the frame's memory are, if they are in one piece. */
static uint8_t *in_one_piece(const struct pst_op *op, uint64_t at, uint64_t n)
{
    for (uint32_t i = 0; i < op->iovcnt; i++) {
        uint64_t len = op->iov[i].iov_len;
        if (at < len)
            return len - at >= n ? (uint8_t *)op->iov[i].iov_base + at : NULL;
        at -= len;
    }
    return NULL;
}

/* [from, to) of the chunk, whose bytes are in its slot, for a reader. */
static void hand_out(struct cf_part *p)
{
    const struct slot *s = p->wait.slot;
    uint32_t have = s->len < p->from ? p->from : s->len < p->to ? s->len : p->to;

    if (have > p->from && !p->direct)
        move_bytes(p->frame->op, p->at, have - p->from, s->plain + p->from, NULL);
    if (p->to > have)
        move_bytes(p->frame->op, p->at + (have - p->from), p->to - have, NULL, NULL);
}

/* The new bytes of the chunk, in its slot. */
static void change_bytes(struct cf_part *p)
{
    struct slot *s = p->wait.slot;

    s->valid = false;
    switch (p->work) {
    case WORK_WRITE:
    case WORK_APPEND:
        if (s->len < p->from)
            memset(s->plain + s->len, 0, p->from - s->len);
        move_bytes(p->frame->op, p->at, p->to - p->from, NULL, s->plain + p->from);
        s->len = s->len < p->to ? p->to : s->len;
        break;
    case WORK_ZERO:
        if (s->len <= p->from)
            break;
        if (s->len <= p->to)
            s->len = p->from;
        else
            memset(s->plain + p->from, 0, p->to - p->from);
        break;
    default:
        break;
    }
}

/* ---- states ---- */

static bool is_all(const struct cf_part *p)
{
    return p->from == 0 && p->to == cf_size_of(p->frame);
}

static bool is_whole(const struct cf_part *p)
{
    return p->work == WORK_WRITE && is_all(p);
}

/* The chunk's state is known, and its bytes are in the slot as far as they are needed. */
static void part_go(struct cf_part *p)
{
    struct slot *s = p->wait.slot;

    if (p->work == WORK_READ) {
        hand_out(p);
        part_end(p, 0);
        return;
    }
    /* Nothing to be zeroed: no new state. */
    if (p->work == WORK_ZERO && s->len <= p->from) {
        part_end(p, 0);
        return;
    }
    p->direct = is_whole(p) ? in_one_piece(p->frame->op, p->at, p->to) : NULL;
    if (p->direct) {
        s->valid = false;
        s->len = p->to;
    } else {
        change_bytes(p);
    }
    part_replace(p);
}

/* Version, meta data and attributes came; with them the bytes, if they were asked for. */
static void note_state(struct cf_part *p)
{
    const struct pst_op *op = &p->low.op;

    p->version = op->version;
    p->change = op->attr.change;
    p->frame->size = min_u64(p->frame->size, op->attr.size);
}

/* An append whose end of the file is not where it was taken to be is over: the frame looks again. */
static bool end_moved(struct cf_part *p)
{
    return p->work == WORK_APPEND && p->low.op.attr.size != p->chunk * (uint64_t)cf_size_of(p->frame) + p->from;
}

static void peeked(struct cf_low *low)
{
    struct cf_part *p = part_of(low);
    struct slot *s = p->wait.slot;
    struct chunk_meta m;

    if (low->op.result < 0) {
        part_end(p, (int)low->op.result);
        return;
    }
    note_state(p);
    if (end_moved(p)) {
        part_end(p, CF_AGAIN);
    } else if (is_whole(p) || p->version == 0) {
        s->len = 0;
        s->gen = p->version && !meta_decode(low->op.meta, low->op.meta_len, &m) ? m.gen : 0;
        s->valid = false;
        part_go(p);
    } else if (s->valid && s->version == p->version) {
        atomic_fetch_add_explicit(&p->frame->q->cf->hits, 1, memory_order_relaxed);
        part_go(p);
    } else {
        part_read(p);
    }
}

static void part_peek(struct cf_part *p)
{
    cf_low_op(p->frame, &p->low, PST_OP_CHUNK_READ, p->chunk);
    cf_send(p->frame, &p->low, peeked);
}

static void was_read(struct cf_low *low)
{
    struct cf_part *p = part_of(low);
    struct cf_queue *q = p->frame->q;
    struct slot *s = p->wait.slot;
    int r;

    if (low->op.result < 0) {
        part_end(p, (int)low->op.result);
        return;
    }
    note_state(p);
    if (end_moved(p)) {
        part_end(p, CF_AGAIN);
        return;
    }
    s->len = 0;
    s->gen = 0;
    p->direct = p->work == WORK_READ && is_all(p) ? in_one_piece(p->frame->op, p->at, p->to) : NULL;
    r = low->op.version ? cf_decode(q->cf, &q->ctx, p->frame->op->cont, &low->op, p->least, s->stored,
                                    p->direct ? p->direct : s->plain, s->size, &s->len, &s->gen)
                        : 0;
    if (r) {
        part_end(p, r);
        return;
    }
    atomic_fetch_add_explicit(&q->cf->misses, 1, memory_order_relaxed);
    s->version = low->op.version;
    s->valid = s->version != 0 && !p->direct;
    part_go(p);
}

static uint64_t history(const struct cf_part *p)
{
    return pst_store_history(p->frame->q->cf->f.st.next);
}

static void part_read(struct cf_part *p)
{
    struct slot *s = p->wait.slot;

    s->valid = false;
    s->history = history(p);
    p->least = cf_seen(p->frame->q->cf, p->frame->op->cont, p->frame->op->ino, p->chunk);
    cf_low_op(p->frame, &p->low, PST_OP_CHUNK_READ, p->chunk);
    p->iov = (struct iovec){s->stored, s->size};
    p->low.op.iov = &p->iov;
    p->low.op.iovcnt = 1;
    p->low.op.length = s->size;
    cf_send(p->frame, &p->low, was_read);
}

/* Was it this request, or one of the same number that was done before? Of the latter the slot's bytes are not the
 * result. */
static bool is_fresh(const struct cf_part *p)
{
    return !p->low.op.ctx.id.seq || p->low.op.version > p->version;
}

/*
 * What is there now is under a key that is lost. The new bytes are still here: they replace it under the new key. The
 * request is recorded already.
 */
static void part_redo(struct cf_part *p)
{
    p->version = p->low.op.version;
    p->redo = true;
    part_replace(p);
}

static void give_out(struct cf_part *p)
{
    if (p->out)
        outs_put(p->frame->q->cf->outs, p->out, cf_size_of(p->frame));
    p->out = NULL;
}

static void replaced(struct cf_low *low)
{
    struct cf_part *p = part_of(low);
    struct cf_frame *f = p->frame;
    struct slot *s = p->wait.slot;
    struct chunk_meta m;
    uint64_t want = p->work == WORK_APPEND ? p->change : p->version;
    int r = 0;

    give_out(p);
    if (low->op.result >= 0) {
        bool fresh = is_fresh(p);
        r = fresh ? cf_replaced(f->q->cf, f->op->cont, &low->op, &p->used) : 0;
        cf_not_replaced(&p->used);
        if (r == -ESTALE) {
            part_redo(p);
            return;
        }
        s->version = low->op.version;
        s->gen = low->op.meta_len && !meta_decode(low->op.meta, low->op.meta_len, &m) ? m.gen : 0;
        s->valid = !r && fresh && !p->direct && s->version != 0 && s->len != 0 && s->history == history(p);
        f->op->attr = low->op.attr;
        f->replayed |= !fresh;
        part_end(p, r);
        return;
    }
    cf_not_replaced(&p->used);
    s->valid = false;
    r = (int)low->op.result;
    if (r == -ESTALE && p->redo) { /* nobody could read that state: all of it was replaced, after us */
        part_end(p, 0);
        return;
    }
    /* A version that the store did not look at: the request itself is too old. */
    if (r != -ESTALE || (low->op.ctx.id.seq && low->op.version == want)) {
        part_end(p, r);
        return;
    }
    atomic_fetch_add_explicit(&f->q->cf->again, 1, memory_order_relaxed);
    if (p->work == WORK_APPEND)
        part_end(p, CF_AGAIN);
    else if (f->cancelled)
        part_end(p, -ECANCELED);
    else if (is_whole(p))
        part_peek(p);
    else
        part_read(p);
}

/* How long the file has to be for it, in the frame's view. */
static void set_size(struct cf_part *p)
{
    struct pst_op *op = &p->low.op;
    uint64_t start = p->chunk * (uint64_t)cf_size_of(p->frame);

    if (p->work == WORK_ZERO)
        return;
    op->flags |= PST_OPF_GROW;
    op->new_size = p->work == WORK_APPEND ? p->frame->end : start + p->to;
}

static void part_replace(struct cf_part *p)
{
    struct cf_frame *f = p->frame;
    struct slot *s = p->wait.slot;
    struct pst_op *op = &p->low.op;
    int r;

    cf_low_op(f, &p->low, PST_OP_CHUNK_REPLACE, p->chunk);
    if (p->direct || p->version == 0) /* of nothing that was there before */
        s->history = history(p);
    p->out = f->q->cf->outs && s->len ? outs_get(f->q->cf->outs, s->size) : NULL; /* without: one copy more, below */
    r = cf_encode(f->q->cf, &f->q->ctx, f->op->cont, op, &p->iov, s->gen, p->direct ? p->direct : s->plain, s->len,
                  s->stored, p->out ? p->out : s->stored, &p->used);
    if (r) {
        give_out(p);
        part_end(p, r);
        return;
    }
    op->version = p->version;
    if (p->work == WORK_APPEND && !p->redo) {
        op->flags |= PST_OPF_IF_UNCHANGED;
        op->version = p->change;
    }
    set_size(p);
    if (p->last) {
        op->flags |= f->op->flags & PST_OPF_DSYNC;
        if (!p->redo)
            op->ctx.id = f->op->ctx.id;
    }
    cf_send(f, &p->low, replaced);
}

void cf_part_granted(struct cf_part *p)
{
    struct slot *s = p->wait.slot;

    if (s && s->valid && s->history != history(p))
        s->valid = false;
    if (!s) {
        part_end(p, -ENOMEM);
    } else if (p->frame->cancelled) {
        part_end(p, -ECANCELED);
    } else if (s->valid && p->work == WORK_WRITE) {
        /* Taken for the present state; the condition of the replacement finds out. */
        p->version = s->version;
        part_go(p);
    } else if (is_whole(p) && !p->frame->q->cf->codec.crypt) {
        s->len = 0;
        p->version = PST_VERSION_ANY;
        part_go(p);
    } else if (s->valid || is_whole(p)) {
        part_peek(p);
    } else {
        part_read(p);
    }
}

/*
 * A read: look whether the object's counter is known, pin the blocks, fetch those that are not there, copy.
 *
 *   cache_read -> [look] -> claim -> [wait for each block that is coming] -> copy -> done
 *                   ^                          |
 *                   +--------------------------+ a fetch of another reader, or ahead, has failed: once more, by itself
 *
 * What finds no room, in memory or among the fetches, is passed on and not kept.
 */
#include "cache.h"

#include <string.h>

#define TRIES 3u

/* ---- fetches ---- */

static struct cache_fetch *fetch_new(struct cache_queue *q, struct cache_obj *o, struct cache_frame *f)
{
    struct list *l = list_pop_front(&q->fetch_free);
    struct cache_fetch *x = l ? list_entry(l, struct cache_fetch, link) : NULL;
    struct cache_cont *cc = cache_cont_of(f->cont);

    if (!x)
        return NULL;
    q->nfree--;
    atomic_fetch_add(&cc->refs, 1);
    o->users++;
    x->owner = NULL;
    x->obj = o;
    x->cont = cc;
    x->ahead = false;
    x->asked_ns = now_ns();
    x->history = 0;
    x->n = 0;
    x->op = (struct pst_op){.cont = f->cont->next, .ino = o->ino};
    if (f->op->ctx.cred) {
        x->cred = *f->op->ctx.cred;
        x->op.ctx.cred = &x->cred;
    }
    list_push_back(&q->fetch_active, &x->link);
    return x;
}

/* Who waits goes on, in its own queue. */
static void wake_waiters(struct cache_fetch *x)
{
    for (struct list *l; (l = list_pop_front(&x->waiters));) {
        struct cache_frame *f = list_entry(l, struct cache_frame, wait);
        list_push_back(&f->q->woken, &f->wait);
        atomic_store(&f->q->woken_any, true);
        if (f->q != x->q)
            cache_signal(f->q);
    }
}

static void bytes_came(struct cache *c, struct cache_fetch *x, int64_t result)
{
    uint64_t left = result > 0 ? (uint64_t)result : 0;

    for (uint32_t k = 0; k < x->n; k++) {
        struct cache_block *b = &c->blocks[x->block[k]];
        b->fetch = NULL;
        b->state = result < 0 ? BLOCK_FAILED : BLOCK_READY;
        b->len = (uint32_t)min_u64(left, FILTER_CACHE_BLOCK);
        left -= b->len;
        if (result < 0 || (!b->len && b->obj)) /* behind the end of the file: nobody comes for it */
            cache_block_void(c, x->block[k]);
        cache_unpin(c, x->block[k]);
    }
}

static void look_came(struct cache *c, struct cache_fetch *x, int64_t result)
{
    x->obj->asking = NULL;
    if (result >= 0) {
        cache_note(c, x->obj, &x->op.attr, x->asked_ns, x->history);
    } else {
        cache_doubt(c, x->obj, x->asked_ns);
    }
}

void cache_fetch_over(struct cache_fetch *x, int64_t result)
{
    struct cache_queue *q = x->q;
    struct cache *c = q->c;
    struct cache_cont *cc = x->cont;

    pthread_mutex_lock(&c->lock);
    if (result < 0 && x->owner)
        x->owner->err = (int)result;
    if (result < 0 && x->ahead)
        c->n.ahead_failed++;
    if (x->n)
        bytes_came(c, x, result);
    else
        look_came(c, x, result);
    wake_waiters(x);
    x->obj->users--;
    cache_obj_idle(c, x->obj);
    pthread_mutex_unlock(&c->lock);
    q->nahead -= x->ahead;
    list_del(&x->link);
    list_push_front(&q->fetch_free, &x->link);
    q->nfree++;
    cache_cont_put(cc);
}

static void fetch_back(struct cache_queue *q, struct cache_low *low)
{
    struct cache_fetch *x = container_of(low, struct cache_fetch, low);

    (void)q;
    cache_fetch_over(x, x->op.result);
}

/* Adds a block; those that lie one behind the other in memory are one piece. */
static void fetch_add(struct cache *c, struct cache_fetch *x, uint32_t i)
{
    uint8_t *at = cache_bytes(c, i);
    struct iovec *last = x->op.iovcnt ? &x->iov[x->op.iovcnt - 1] : NULL;

    x->block[x->n++] = i;
    c->blocks[i].state = BLOCK_COMING;
    c->blocks[i].fetch = x;
    c->pol.blocks[i].pins++;
    x->op.length += FILTER_CACHE_BLOCK;
    if (last && (uint8_t *)last->iov_base + last->iov_len == at)
        last->iov_len += FILTER_CACHE_BLOCK;
    else
        x->iov[x->op.iovcnt++] = (struct iovec){at, FILTER_CACHE_BLOCK};
}

/* Fetches blocks[0..n), which follow one another in the file and are EMPTY, as far as there are fetches: how many. */
static uint32_t fetch_run(struct cache_frame *f, struct cache_obj *o, const uint32_t *blocks, uint32_t n, bool ahead)
{
    struct cache_queue *q = f->q;
    uint32_t done = 0;

    while (done < n) {
        struct cache_fetch *x = fetch_new(q, o, f);
        if (!x)
            break;
        x->op.kind = PST_OP_READ;
        x->op.offset = q->c->blocks[blocks[done]].number * FILTER_CACHE_BLOCK;
        x->op.iov = x->iov;
        x->ahead = ahead;
        x->owner = ahead ? NULL : f;
        q->nahead += ahead;
        for (; done < n && x->n < CACHE_FETCH; done++)
            fetch_add(q->c, x, blocks[done]);
        cache_send(q, &x->low, &x->op, fetch_back);
        if (ahead) {
            list_del(&x->low.link);
            list_push_back(&q->unsent_ahead, &x->low.link);
        }
    }
    return done;
}

/* ---- ahead ---- */

/*
 * Asks for what is to come, as far as that keeps to its part: of memory (pol_take), and of the fetches those that no
 * operation needs.
 */
static void read_ahead(struct cache_frame *f, struct cache_obj *o)
{
    struct cache_queue *q = f->q;
    struct cache *c = q->c;
    uint64_t from, to, at;

    if (!cache_ahead_want(c, o, f->op->offset, f->op->offset + f->op->length, &from, &to))
        return;
    for (at = align_down(from, FILTER_CACHE_BLOCK); at < to;) {
        uint32_t run[CACHE_FETCH], n = 0;
        while (at < to && n < CACHE_FETCH) {
            uint64_t number = at / FILTER_CACHE_BLOCK;
            if (cache_block_find(c, o, number) != POL_NONE) {
                if (n)
                    break;
                at += FILTER_CACHE_BLOCK;
                continue;
            }
            if (q->nahead == CACHE_AHEAD || q->nfree <= q->depth)
                break;
            run[n] = cache_block_new(c, o, number, true);
            if (run[n] == POL_NONE)
                break;
            n++;
            at += FILTER_CACHE_BLOCK;
        }
        if (!n)
            break;
        fetch_run(f, o, run, n, true); /* there is one free */
        for (uint32_t k = 0; k < n; k++)
            cache_unpin(c, run[k]);
    }
    cache_ahead_asked(c, o, from, min_u64(at, to));
}

/* ---- reads ---- */

/* cache.lock held. */
static void release(struct cache *c, struct cache_frame *f)
{
    for (uint32_t k = 0; k < f->n; k++) {
        struct cache_block *b = &c->blocks[f->pin[k]];
        if (b->state == BLOCK_EMPTY)
            cache_block_void(c, f->pin[k]);
        cache_unpin(c, f->pin[k]);
    }
    f->n = f->at = 0;
}

/* Nobody is told any more of what this one's fetches end with. */
static void disown(struct cache_frame *f)
{
    list_for_each (it, &f->q->fetch_active) {
        struct cache_fetch *x = list_entry(it, struct cache_fetch, link);
        if (x->owner == f)
            x->owner = NULL;
    }
}

void cache_read_leave(struct cache_frame *f)
{
    struct cache_queue *q = f->q;

    q->nwaiting--;
    disown(f);
    scoped_lock(&q->c->lock);
    release(q->c, f);
}

/* cache.lock held. */
static void wait_for(struct cache_frame *f, struct cache_fetch *x)
{
    f->since = f->since ? f->since : now_ns();
    f->foreign = x->q != f->q;
    f->q->nwaiting++;
    list_push_back(&x->waiters, &f->wait);
}

/* cache.lock held. The object's counter is asked for, unless somebody does already; false: not now. */
static bool look(struct cache_frame *f, struct cache_obj *o, uint64_t history)
{
    struct cache_queue *q = f->q;

    if (!o->asking) {
        struct cache_fetch *x = fetch_new(q, o, f);
        if (!x)
            return false;
        x->op.kind = PST_OP_ATTR;
        x->history = history;
        o->asking = x;
        q->c->n.looks++;
        cache_send(q, &x->low, &x->op, fetch_back);
    }
    wait_for(f, o->asking);
    return true;
}

/* Pins all blocks of the range; those that are missing are EMPTY. False: there is no room. */
static bool pin_all(struct cache_frame *f, struct cache_obj *o, bool *ret_hit)
{
    struct cache *c = f->q->c;
    uint64_t last = (f->end - 1) / FILTER_CACHE_BLOCK;

    *ret_hit = true;
    for (uint64_t number = f->first; number <= last; number++) {
        uint32_t i = cache_block_find(c, o, number);
        if (i != POL_NONE) {
            c->n.ahead_used += c->pol.blocks[i].place == POL_AHEAD;
            c->pol.blocks[i].pins++;
            pol_use(&c->pol, i);
            *ret_hit = *ret_hit && c->blocks[i].state == BLOCK_READY;
        } else {
            i = cache_block_new(c, o, number, false);
            if (i == POL_NONE)
                return false;
            *ret_hit = false;
        }
        f->pin[f->n++] = i;
    }
    return true;
}

static bool fetch_missing(struct cache_frame *f, struct cache_obj *o)
{
    struct cache *c = f->q->c;

    for (uint32_t k = 0; k < f->n;) {
        uint32_t n = 0;
        while (k + n < f->n && c->blocks[f->pin[k + n]].state == BLOCK_EMPTY)
            n++;
        if (n && fetch_run(f, o, f->pin + k, n, false) < n)
            return false;
        k += n ? n : 1;
    }
    return true;
}

enum claim { CLAIM_PASS, CLAIM_WAIT, CLAIM_NOTHING, CLAIM_HAVE };

/* cache.lock held. */
static enum claim claim_of(struct cache_frame *f, struct cache_obj *o, uint64_t history, uint64_t now)
{
    const struct pst_op *op = f->op;
    struct cache *c = f->q->c;
    bool hit;

    if (f->tries++ == TRIES)
        return CLAIM_PASS;
    if (!o->known || o->history != history || now - o->looked_ns >= c->age_ns)
        return look(f, o, history) ? CLAIM_WAIT : CLAIM_PASS;
    if (op->offset >= o->size || !op->length)
        return CLAIM_NOTHING;
    f->first = op->offset / FILTER_CACHE_BLOCK;
    f->end = min_u64(op->offset + op->length, o->size);
    if (!pin_all(f, o, &hit) || !fetch_missing(f, o))
        return CLAIM_PASS;
    *(hit ? &c->n.hits : &c->n.misses) += 1;
    *(hit ? &c->n.hit_bytes : &c->n.miss_bytes) += f->end - op->offset;
    read_ahead(f, o);
    return CLAIM_HAVE;
}

static enum claim claim(struct cache_frame *f)
{
    struct cache *c = f->q->c;
    uint64_t history = pst_store_history(c->f.st.next), now = now_ns();
    enum claim r = CLAIM_PASS;
    struct cache_obj *o;

    scoped_lock(&c->lock);
    o = cache_find(c, f->cont->info.id, f->op->ino);
    if (o)
        r = claim_of(f, o, history, now);
    if (r == CLAIM_PASS) {
        release(c, f);
        c->n.passed++;
    }
    if (o)
        cache_obj_idle(c, o);
    return r;
}

void cache_read(struct cache_frame *f)
{
    switch (claim(f)) {
    case CLAIM_PASS:
        disown(f);
        cache_pass(f);
        break;
    case CLAIM_WAIT:
        break;
    case CLAIM_NOTHING:
        cache_done(f, 0);
        break;
    case CLAIM_HAVE:
        f->q->nwaiting++; /* as if it had waited */
        cache_read_on(f);
        break;
    }
}

/* From the blocks to the submitter's memory: how much. A block that is shorter ends the file. */
static int64_t copy_out(const struct cache_frame *f)
{
    const struct cache *c = f->q->c;
    const struct iovec *v = f->op->iov;
    uint64_t at = f->op->offset, skip = 0;

    while (at < f->end) {
        uint32_t i = f->pin[at / FILTER_CACHE_BLOCK - f->first], in = (uint32_t)(at % FILTER_CACHE_BLOCK);
        uint32_t len = c->blocks[i].len;
        uint64_t n = min_u64(len > in ? len - in : 0, f->end - at);
        bool ends = n < FILTER_CACHE_BLOCK - in;
        const uint8_t *from = cache_bytes(c, i) + in;
        at += n;
        while (n) {
            size_t k = min_u64(n, v->iov_len - skip);
            memcpy((uint8_t *)v->iov_base + skip, from, k);
            from += k;
            skip += k;
            n -= k;
            if (skip == v->iov_len) {
                v++;
                skip = 0;
            }
        }
        if (ends)
            break;
    }
    return (int64_t)(at - f->op->offset);
}

enum ready { READY_WAIT, READY_ALL, READY_FAILED };

static enum ready blocks_ready(struct cache_frame *f)
{
    struct cache *c = f->q->c;

    scoped_lock(&c->lock);
    for (; f->at < f->n; f->at++) {
        struct cache_block *b = &c->blocks[f->pin[f->at]];
        if (b->state == BLOCK_COMING) {
            wait_for(f, b->fetch);
            return READY_WAIT;
        }
        if (b->state == BLOCK_FAILED) {
            release(c, f);
            return READY_FAILED;
        }
    }
    return READY_ALL;
}

void cache_read_on(struct cache_frame *f)
{
    struct cache *c = f->q->c;
    int64_t got;

    f->q->nwaiting--;
    if (!f->n) { /* it waited for a look */
        cache_read(f);
        return;
    }
    switch (blocks_ready(f)) {
    case READY_WAIT:
        return;
    case READY_FAILED:
        disown(f);
        if (f->err)
            cache_done(f, f->err);
        else
            cache_read(f);
        return;
    case READY_ALL:
        break;
    }
    got = copy_out(f);
    pthread_mutex_lock(&c->lock);
    release(c, f);
    pthread_mutex_unlock(&c->lock);
    cache_done(f, got);
}

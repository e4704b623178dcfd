/*
 * Write-behind. Written bytes wait in buffers, at most one per window of an object, so that sequential writes become
 * operations of a whole window. A buffer is `idle` while it may grow and `flying` once submitted; both are disjoint
 * ranges: a write that overlaps a flying one waits for it, since the store may execute two operations in any order.
 *
 * Memory is bounded twice: all buffers of a client by write_behind, those of one object by half of it.
 */
#include "internal.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

static struct list *bucket(struct client *c, uint64_t ino)
{
    return &c->inodes[(ino * 0x9e3779b97f4a7c15ull >> 40) % CL_INODES];
}

struct cl_inode *cl_inode_get(struct client *c, uint64_t ino, bool make)
{
    struct list *l = bucket(c, ino);
    struct cl_inode *i;

    scoped_lock(&c->lock);
    list_for_each (it, l) {
        i = list_entry(it, struct cl_inode, link);
        if (i->ino == ino) {
            i->refs++;
            return i;
        }
    }
    i = make ? calloc(1, sizeof *i) : NULL;
    if (!i)
        return NULL;
    i->c = c;
    i->ino = ino;
    i->refs = 1;
    pthread_mutex_init(&i->lock, NULL);
    pthread_cond_init(&i->changed, NULL);
    list_init(&i->idle);
    list_init(&i->flying);
    list_init(&i->dirty);
    list_push_front(l, &i->link);
    return i;
}

void cl_inode_put(struct cl_inode *i)
{
    struct client *c = i->c;

    pthread_mutex_lock(&c->lock);
    if (--i->refs) {
        pthread_mutex_unlock(&c->lock);
        return;
    }
    list_del(&i->link);
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_destroy(&i->lock);
    pthread_cond_destroy(&i->changed);
    free(i);
}

static bool overlaps(const struct cl_buf *b, uint64_t offset, uint64_t len)
{
    return b->offset < (len > UINT64_MAX - offset ? UINT64_MAX : offset + len) && offset < b->offset + b->len;
}

/* ---- room ---- */

/* At least one buffer is always allowed: else nobody would get on. */
static bool room_take(struct client *c, uint64_t bytes)
{
    scoped_lock(&c->lock);
    if (c->dirty_bytes && c->dirty_bytes + bytes > c->write_behind)
        return false;
    c->dirty_bytes += bytes;
    return true;
}

static void room_give(struct client *c, uint64_t bytes)
{
    scoped_lock(&c->lock);
    c->dirty_bytes -= bytes;
    pthread_cond_broadcast(&c->room);
}

static void buf_done(struct cl_op *o)
{
    struct cl_buf *b = container_of(o, struct cl_buf, o);
    struct cl_inode *i = b->i;
    struct client *c = i->c;
    int64_t r = o->op.result;
    int none = 0;

    pthread_mutex_lock(&i->lock);
    if (r != (int64_t)b->len) {
        i->last_err = r < 0 ? (int)r : -EIO;
        i->failures++;
        b->owner->own_failures++;
        atomic_compare_exchange_strong(&b->owner->err, &none, i->last_err);
        scoped_lock(&c->lock);
        c->failed = c->failed ? c->failed : i->last_err;
        log_warn("object %llu: %zu bytes at %llu could not be stored: %s", (unsigned long long)i->ino, b->len,
                 (unsigned long long)b->offset, err_text(i->last_err));
    }
    list_del(&b->link);
    i->bytes -= b->mem->size;
    pthread_cond_broadcast(&i->changed);
    pthread_mutex_unlock(&i->lock); /* from here on owner and object may go */
    room_give(c, b->mem->size);
    cl_bufs_put(&c->bufs, b->mem);
    free(b);
}

/* inode.lock held. From now on it is on the way. */
static void take_off(struct cl_buf *b)
{
    struct cl_inode *i = b->i;

    list_del(&b->link);
    list_push_back(&i->flying, &b->link);
    if (!--i->nidle) {
        scoped_lock(&i->c->lock);
        list_del(&i->dirty);
    }
}

static struct pst_op write_op(struct cl_buf *b, uint32_t flags)
{
    b->iov = (struct iovec){b->mem->data, b->len};
    return (struct pst_op){.kind = PST_OP_WRITE, .flags = b->opf | flags, .cont = b->i->c->cont, .ino = b->i->ino,
                           .offset = b->offset, .length = b->len, .iov = &b->iov, .iovcnt = 1};
}

/* inode.lock held. */
static void buf_submit(struct cl_buf *b)
{
    take_off(b);
    b->o = (struct cl_op){.op = write_op(b, 0), .done = buf_done};
    cl_op_submit(b->i->c, &b->o);
}

static void submit_idle(struct cl_inode *i)
{
    list_for_each_safe (it, &i->idle)
        buf_submit(list_entry(it, struct cl_buf, link));
}

/* Another object's buffers hold the room: sends some of them off and waits for room. No lock held. */
static void room_wait(struct client *c, uint64_t bytes)
{
    struct cl_inode *victim = NULL;

    pthread_mutex_lock(&c->lock);
    if (!list_empty(&c->dirty)) {
        victim = list_entry(c->dirty.next, struct cl_inode, dirty);
        victim->refs++;
    }
    pthread_mutex_unlock(&c->lock);
    if (victim) {
        pthread_mutex_lock(&victim->lock);
        submit_idle(victim);
        pthread_mutex_unlock(&victim->lock);
        cl_inode_put(victim);
    }
    pthread_mutex_lock(&c->lock);
    /* What is not idle is flying and comes back; others may take the room first: the caller asks again. */
    if (list_empty(&c->dirty) && c->dirty_bytes && c->dirty_bytes + bytes > c->write_behind)
        pthread_cond_wait(&c->room, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/*
 * Room for a buffer of this object. inode.lock held; it may be released meanwhile: then false, and the caller looks at
 * the lists anew.
 */
static bool room_for(struct cl_inode *i, uint64_t bytes)
{
    if (i->bytes + bytes <= max_u64(i->c->write_behind / 2, bytes) && room_take(i->c, bytes))
        return true;
    if (list_empty(&i->flying))
        submit_idle(i);
    if (!list_empty(&i->flying)) {
        pthread_cond_wait(&i->changed, &i->lock);
        return false;
    }
    pthread_mutex_unlock(&i->lock);
    room_wait(i->c, bytes);
    pthread_mutex_lock(&i->lock);
    return false;
}

/* ---- writing ---- */

static struct cl_buf *idle_in_window(struct cl_inode *i, uint64_t offset)
{
    list_for_each (it, &i->idle) {
        struct cl_buf *b = list_entry(it, struct cl_buf, link);
        if (b->offset / CL_WINDOW == offset / CL_WINDOW)
            return b;
    }
    return NULL;
}

static bool flying_overlaps(struct cl_inode *i, uint64_t offset, uint64_t len, uint64_t serial)
{
    list_for_each (it, &i->flying) {
        struct cl_buf *b = list_entry(it, struct cl_buf, link);
        if (b->serial <= serial && overlaps(b, offset, len))
            return true;
    }
    return false;
}

/* The capacity that a buffer from `offset` on should have to hold up to `end`, in one window. */
static size_t capacity(uint64_t offset, uint64_t end)
{
    return end - offset <= CL_SMALL ? CL_SMALL : CL_WINDOW;
}

static void became_dirty(struct cl_inode *i)
{
    struct client *c = i->c;
    bool first;

    pthread_mutex_lock(&c->lock);
    first = list_empty(&c->dirty);
    list_push_back(&c->dirty, &i->dirty);
    pthread_mutex_unlock(&c->lock);
    if (first)
        cl_threads_age(c);
}

/* *given, where it has this size, becomes the buffer's memory, and is another one afterwards. */
static struct cl_buf *buf_new(struct cl_file *f, uint64_t offset, size_t size, struct cl_mem **given)
{
    struct cl_inode *i = f->i;
    struct cl_buf *b = calloc(1, sizeof *b);
    struct cl_mem *m = b ? cl_bufs_get(&f->c->bufs, size) : NULL;

    if (!m) {
        free(b);
        room_give(f->c, size);
        return NULL;
    }
    b->mem = m;
    if (given && (*given)->size == size) {
        b->mem = *given;
        *given = m;
    }
    b->i = i;
    b->owner = f;
    b->serial = ++i->serial;
    b->offset = offset;
    i->bytes += size;
    list_push_back(&i->idle, &b->link);
    b->since_ns = now_ns();
    if (!i->nidle++)
        became_dirty(i);
    return b;
}

/* The room for the larger buffer was taken. */
static bool buf_grow(struct cl_buf *b)
{
    struct client *c = b->i->c;
    struct cl_mem *m = cl_bufs_get(&c->bufs, CL_WINDOW), *old = b->mem;

    if (!m) {
        room_give(c, CL_WINDOW);
        return false;
    }
    memcpy(m->data, old->data, b->len);
    b->mem = m;
    b->i->bytes += CL_WINDOW - old->size;
    room_give(c, old->size);
    cl_bufs_put(&c->bufs, old);
    return true;
}

/*
 * A buffer that takes [offset, end), which lies in one window, at its end or inside; NULL: look again (the lock was
 * released, or a list changed), or *ret_err.
 */
static struct cl_buf *buf_for(struct cl_file *f, uint64_t offset, uint64_t end, struct cl_mem **given, int *ret_err)
{
    struct cl_inode *i = f->i;
    struct cl_buf *b = idle_in_window(i, offset);
    size_t size;

    if (b && (b->owner != f || offset < b->offset || offset > b->offset + b->len)) {
        buf_submit(b);
        b = NULL;
    }
    /* Also where a buffer only grows: what it grows into may be flying. */
    if (flying_overlaps(i, offset, end - offset, UINT64_MAX)) {
        pthread_cond_wait(&i->changed, &i->lock);
        return NULL;
    }
    if (b && end - b->offset <= b->mem->size)
        return b;
    size = b ? CL_WINDOW : capacity(offset, end);
    if (!b && i->nidle >= CL_IDLE_MAX)
        buf_submit(list_entry(i->idle.next, struct cl_buf, link));
    if (!room_for(i, size))
        return NULL;
    if (b) {
        if (buf_grow(b))
            return b;
        buf_submit(b);
        return NULL;
    }
    b = buf_new(f, offset, size, given);
    if (!b)
        *ret_err = -ENOMEM;
    return b;
}

int cl_dirty_write(struct cl_file *f, const uint8_t *p, size_t len, uint64_t offset, uint32_t opf,
                   struct cl_mem **given, size_t *ret_done)
{
    struct cl_inode *i = f->i;
    size_t done = 0;
    int err = 0;

    if (given && offset / CL_WINDOW != (offset + len - 1) / CL_WINDOW)
        given = NULL; /* its second half would be read when the first one may have been sent, and be another's */
    scoped_lock(&i->lock);
    while (done < len && !err) {
        uint64_t at = offset + done;
        uint64_t end = min_u64(offset + len, align_down(at, CL_WINDOW) + CL_WINDOW);
        struct cl_buf *b;

        if (i->held) {
            pthread_cond_wait(&i->changed, &i->lock);
            continue;
        }
        b = buf_for(f, at, end, given, &err);
        if (!b)
            continue;
        i->taken++;
        atomic_fetch_add(&i->gen, 1);
        if (b->mem->data != p) /* else they are there already */
            memcpy(b->mem->data + (at - b->offset), p + done, end - at);
        b->len = max_u64(b->len, end - b->offset);
        b->opf |= opf;
        done += end - at;
        if (!(end % CL_WINDOW))
            buf_submit(b);
    }
    *ret_done = done;
    return err;
}

uint64_t cl_dirty_read_begin(struct cl_inode *i, bool hold)
{
    scoped_lock(&i->lock);
    i->held += hold;
    return i->taken;
}

bool cl_dirty_read_end(struct cl_inode *i, uint64_t seen, bool hold)
{
    scoped_lock(&i->lock);
    i->held -= hold;
    if (hold && !i->held)
        pthread_cond_broadcast(&i->changed);
    return hold || i->taken == seen;
}

int cl_dirty_others_failed(struct cl_file *f)
{
    uint64_t n;

    scoped_lock(&f->i->lock);
    n = f->i->failures - f->own_failures;
    if (n == f->others_failed)
        return 0;
    f->others_failed = n;
    return f->i->last_err;
}

void cl_sync_failed(struct cl_file *f, int err)
{
    scoped_lock(&f->i->lock);
    f->i->failures++;
    f->own_failures++;
    f->i->last_err = err;
}

bool cl_inode_dirty(struct cl_inode *i)
{
    scoped_lock(&i->lock);
    return i->bytes > 0;
}

void cl_dirty_flush(struct cl_inode *i, uint64_t offset, uint64_t len)
{
    uint64_t serial;

    scoped_lock(&i->lock);
    list_for_each_safe (it, &i->idle) {
        struct cl_buf *b = list_entry(it, struct cl_buf, link);
        if (overlaps(b, offset, len))
            buf_submit(b);
    }
    serial = i->serial; /* a writer who goes on must not keep us here for ever */
    while (flying_overlaps(i, offset, len, serial))
        pthread_cond_wait(&i->changed, &i->lock);
}

bool cl_dirty_flush_one(struct cl_inode *i, bool durable)
{
    uint32_t flags = durable ? PST_OPF_DSYNC : 0;
    struct cl_buf *b;
    uint64_t failures;
    int r = -EOPNOTSUPP;

    scoped_lock(&i->lock);
    if (i->nidle != 1 || !list_empty(&i->flying))
        return false;
    failures = i->failures;
    b = list_entry(i->idle.next, struct cl_buf, link);
    take_off(b);
    pthread_mutex_unlock(&i->lock);
    if (b->len <= PST_SMALL_MAX)
        r = pst_store_write(i->c->cont, i->ino, b->offset, b->mem->data, b->len, b->opf | flags);
    if (r == -EOPNOTSUPP) {
        struct pst_op op = write_op(b, flags);
        b->o.op.result = cl_op_run(i->c, &op);
    } else {
        b->o.op.result = r < 0 ? r : (int64_t)b->len;
    }
    buf_done(&b->o);
    pthread_mutex_lock(&i->lock);
    return i->failures == failures;
}

void cl_dirty_flush_client(struct client *c)
{
    /* Objects are looked at one after the other by bucket: those that come later have nothing from before this call. */
    for (size_t n = 0; n < CL_INODES; n++) {
        struct cl_inode *i = NULL;
        struct list *l = &c->inodes[n];

        for (;;) {
            struct cl_inode *last = i;
            pthread_mutex_lock(&c->lock);
            i = NULL;
            if (last ? last->link.next != l : !list_empty(l))
                i = list_entry(last ? last->link.next : l->next, struct cl_inode, link);
            if (i)
                i->refs++;
            pthread_mutex_unlock(&c->lock);
            if (last)
                cl_inode_put(last);
            if (!i)
                break;
            cl_dirty_flush(i, 0, CL_ALL);
        }
    }
}

bool cl_has_dirty(struct client *c)
{
    scoped_lock(&c->lock);
    return c->dirty_bytes > 0;
}

#define AGE_BATCH 32

/* Some objects with waiting buffers, each with a reference; they go to the end of the list. */
static size_t some_dirty(struct client *c, struct cl_inode *ret[AGE_BATCH])
{
    size_t n = 0;

    scoped_lock(&c->lock);
    for (struct list *l = c->dirty.next; l != &c->dirty && n < AGE_BATCH; l = c->dirty.next) {
        struct cl_inode *i = list_entry(l, struct cl_inode, dirty);
        if (n && i == ret[0])
            break; /* once around */
        list_del(l);
        list_push_back(&c->dirty, l);
        i->refs++;
        ret[n++] = i;
    }
    return n;
}

bool cl_dirty_age(struct client *c)
{
    struct cl_inode *some[AGE_BATCH];
    size_t n = some_dirty(c, some);
    uint64_t now = now_ns();
    bool more;

    for (size_t k = 0; k < n; k++) {
        struct cl_inode *i = some[k];
        pthread_mutex_lock(&i->lock);
        list_for_each_safe (it, &i->idle) {
            struct cl_buf *b = list_entry(it, struct cl_buf, link);
            if (now >= b->since_ns + CL_AGE_NS) /* it may be younger than `now` */
                buf_submit(b);
        }
        pthread_mutex_unlock(&i->lock);
        cl_inode_put(i);
    }
    pthread_mutex_lock(&c->lock);
    more = !list_empty(&c->dirty);
    pthread_mutex_unlock(&c->lock);
    return more;
}

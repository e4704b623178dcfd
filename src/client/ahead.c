/*
 * Read-ahead for handles that read on from where the last read ended. Windows are fetched by data threads and copied
 * from. A window is void once this client changed the object (inode.gen) or after AHEAD_AGE_NS, so that a handle that
 * is kept open does not serve old bytes for long; who opens anew starts without windows (close-to-open).
 */
#include "internal.h"

#include <fcntl.h>
#include <string.h>

#define AHEAD_AGE_NS    NSEC_PER_SEC
#define AHEAD_STREAK    2u           /* reads in a row before fetching begins */
#define AHEAD_READ_MAX  (512 * KiB)  /* longer reads are pipelined already, and a copy costs more than it hides */
#define AHEAD_TOTAL     (64 * MiB)   /* of all handles of a client */

void cl_ahead_init(struct cl_file *f)
{
    struct cl_ahead *a = &f->ahead;

    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->depth = f->flags & O_DIRECT ? 0 : (uint32_t)min_u64(f->c->ahead_windows, CL_AHEAD_MAX);
    a->next = UINT64_MAX;
}

static void drop(struct cl_window *w)
{
    struct client *c = w->f->c;

    cl_bufs_put(&c->bufs, w->mem);
    atomic_fetch_sub(&c->ahead_bytes, CL_WINDOW);
    w->mem = NULL;
    w->state = WIN_EMPTY;
}

void cl_ahead_done(struct cl_file *f)
{
    struct cl_ahead *a = &f->ahead;

    pthread_mutex_lock(&a->lock);
    while (a->flying)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
    for (size_t i = 0; i < CL_AHEAD_MAX; i++)
        if (a->win[i].state != WIN_EMPTY)
            drop(&a->win[i]);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
}

static void window_done(struct cl_op *o)
{
    struct cl_window *w = container_of(o, struct cl_window, o);
    struct cl_ahead *a = &w->f->ahead;

    scoped_lock(&a->lock);
    w->result = o->op.result;
    w->state = WIN_READY;
    w->stamp_ns = now_ns();
    a->flying--;
    pthread_cond_broadcast(&a->changed);
}

static bool fresh(const struct cl_window *w)
{
    return w->result >= 0 && w->gen == atomic_load(&w->f->i->gen) && now_ns() - w->stamp_ns < AHEAD_AGE_NS;
}

static struct cl_window *find(struct cl_ahead *a, uint64_t offset)
{
    for (size_t i = 0; i < CL_AHEAD_MAX; i++) {
        struct cl_window *w = &a->win[i];
        if (w->state != WIN_EMPTY && offset >= w->offset && offset < w->offset + w->iov.iov_len)
            return w;
    }
    return NULL;
}

/* From `offset` to the end of its window. False: no room. */
static bool fetch(struct cl_file *f, uint64_t offset, uint64_t gen)
{
    struct cl_ahead *a = &f->ahead;
    struct cl_window *w = NULL;

    for (size_t i = 0; i < CL_AHEAD_MAX && !w; i++)
        if (a->win[i].state == WIN_EMPTY)
            w = &a->win[i];
    if (!w)
        return false;
    if (atomic_fetch_add(&f->c->ahead_bytes, CL_WINDOW) >= AHEAD_TOTAL ||
        !(w->mem = cl_bufs_get(&f->c->bufs, CL_WINDOW))) {
        atomic_fetch_sub(&f->c->ahead_bytes, CL_WINDOW);
        return false;
    }
    w->f = f;
    w->offset = offset;
    w->iov = (struct iovec){w->mem->data, CL_WINDOW - offset % CL_WINDOW};
    w->gen = gen;
    w->state = WIN_FLYING;
    w->o = (struct cl_op){
        .op = {.kind = PST_OP_READ, .cont = f->c->cont, .ino = f->i->ino, .offset = offset,
               .length = w->iov.iov_len, .iov = &w->iov, .iovcnt = 1},
        .done = window_done};
    a->flying++;
    cl_op_submit(f->c, &w->o);
    return true;
}

static void fetch_on(struct cl_file *f)
{
    struct cl_ahead *a = &f->ahead;
    uint32_t want = (uint32_t)min_u64(a->depth, a->streak - AHEAD_STREAK + 1);
    uint64_t at = a->next;
    /* Read before the buffers are looked at: a write after that makes the windows void. */
    uint64_t gen = atomic_load(&f->i->gen);

    if (cl_inode_dirty(f->i))
        return;
    for (uint32_t n = 0; n < want; n++, at = align_down(at, CL_WINDOW) + CL_WINDOW) {
        struct cl_window *w = find(a, at);
        if (at >= a->eof || (!w && !fetch(f, at, gen)))
            return;
    }
}

/* Copies what the window has of the range at `offset`; 0: nothing more from windows. */
static size_t take(struct cl_ahead *a, struct cl_window *w, uint8_t *p, size_t len, uint64_t offset)
{
    uint64_t end;
    size_t n;

    while (w->state == WIN_FLYING)
        pthread_cond_wait(&a->changed, &a->lock);
    if (w->state == WIN_EMPTY || offset < w->offset)
        return 0;
    end = w->offset + (w->result > 0 ? (uint64_t)w->result : 0);
    if (!fresh(w) || offset >= end) {
        drop(w);
        return 0;
    }
    if ((uint64_t)w->result < w->iov.iov_len)
        a->eof = end;
    n = min_u64(len, end - offset);
    memcpy(p, w->mem->data + (offset - w->offset), n);
    if (offset + n == end)
        drop(w);
    return n;
}

static void seek(struct cl_ahead *a)
{
    a->streak = 0;
    a->eof = UINT64_MAX;
    for (size_t i = 0; i < CL_AHEAD_MAX; i++)
        if (a->win[i].state == WIN_READY)
            drop(&a->win[i]);
}

size_t cl_ahead_read(struct cl_file *f, uint8_t *p, size_t len, uint64_t offset)
{
    struct cl_ahead *a = &f->ahead;
    size_t done = 0;

    if (!a->depth || len > AHEAD_READ_MAX)
        return 0;
    scoped_lock(&a->lock);
    if (offset == a->next)
        a->streak++;
    else if (!find(a, offset)) /* several readers of one handle come slightly out of order */
        seek(a);
    while (done < len) {
        struct cl_window *w = find(a, offset + done);
        size_t n = w ? take(a, w, p + done, len - done, offset + done) : 0;
        if (!n)
            break;
        done += n;
    }
    a->next = offset + len;
    if (a->streak >= AHEAD_STREAK)
        fetch_on(f);
    return done;
}

/*
 * Queues. One thread owns a queue and runs its operations inside submit and reap; the sync thread only moves operations
 * to `synced`. Nothing here waits for another queue.
 */
#include "queue.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define DEPTH_MAX 4096u
#define REAP_MAX  64
/* After so many reads in a row that were not in the page cache, only every CACHED_RETRY-th read tries it. */
#define CACHED_MISSES 8u
#define CACHED_RETRY  16u

static void run(struct data_op *o);

/* ---- requests ---- */

/* The whole read from the page cache, if it is there. */
static bool read_cached(struct data_op *o, const struct seg *s)
{
    struct queue *q = o->q;
    struct data_state *d = o->e->data;
    ssize_t n;

    if (s->io.kind != IO_READ || !d->try_cached)
        return false;
    if (q->cached_misses >= CACHED_MISSES && ++q->cached_skips % CACHED_RETRY)
        return false;
    n = preadv2(o->e->data_fd, s->io.iov, (int)s->io.iovcnt, (off_t)s->io.offset, RWF_NOWAIT);
    if (n < 0 && errno == EOPNOTSUPP)
        d->try_cached = false;
    if (n != (ssize_t)s->n * PST_BLOCK) {
        q->cached_misses++;
        return false;
    }
    q->cached_misses = 0;
    return true;
}

/*
 * A short write, at once: the kernel only copies it, and a worker of its own would cost more than that. The flush
 * before the log record has it written out.
 */
static bool write_cached(struct data_op *o, const struct seg *s)
{
    if (s->io.kind != IO_WRITE || !s->io.cached)
        return false;
    return pwritev(o->e->data_fd, s->io.iov, (int)s->io.iovcnt, (off_t)s->io.offset) == (ssize_t)s->n * PST_BLOCK;
}

static uint64_t place_of(uint64_t block)
{
    return block / (MiB / PST_BLOCK);
}

static _Atomic uint32_t *seen_at(struct data_state *d, uint64_t place)
{
    return &d->seen[place % d->nseen];
}

/*
 * Whether a read that is not in the page cache goes through it. Short ones do. Long ones are faster past it, and a data
 * set that is larger than memory would only push out what others use: they do when their place was read so before. The
 * table of such places has an entry for each MiB of half the memory; one that is read around and around and does not
 * fit into it finds its entries overwritten, and stays out.
 */
static bool read_into_cache(struct engine *e, const struct seg *s)
{
    uint64_t place = place_of(s->phys);
    _Atomic uint32_t *seen = seen_at(e->data, place);

    if (e->opt.direct == CHOICE_ALWAYS)
        return false;
    if ((uint64_t)s->n * PST_BLOCK < DATA_DIRECT_MIN)
        return true;
    if (atomic_load_explicit(seen, memory_order_relaxed) == (uint32_t)place + 1)
        return true;
    atomic_store_explicit(seen, (uint32_t)place + 1, memory_order_relaxed);
    return false;
}

/* What is written was not read before, though what had the place until now may have been. */
static void not_seen(struct engine *e, const struct seg *s)
{
    for (uint64_t place = place_of(s->phys); place <= place_of(s->phys + s->n - 1); place++) {
        _Atomic uint32_t *seen = seen_at(e->data, place);
        if (atomic_load_explicit(seen, memory_order_relaxed) == (uint32_t)place + 1)
            atomic_store_explicit(seen, 0, memory_order_relaxed);
    }
}

/* Hands requests to the I/O context; the rest waits on q->unsent when it is full. */
static void send_segs(struct data_op *o)
{
    struct queue *q = o->q;

    while (o->unsent < o->nsegs) {
        struct seg *s = &o->segs[o->unsent];
        int r;
        if (read_cached(o, s) || write_cached(o, s)) {
            o->unsent++;
            continue;
        }
        if (q->now) {
            o->unsent = o->nsegs;
            o->io_err = -EAGAIN;
            return;
        }
        if (s->io.kind == IO_READ)
            s->io.cached = read_into_cache(o->e, s);
        else
            not_seen(o->e, s);
        r = q->io->ops->submit(q->io, &s->io, o->unsent + 1 < o->nsegs);
        if (r == -EAGAIN) {
            list_push_back(&q->unsent, &o->link);
            return;
        }
        o->unsent++;
        if (r) {
            o->io_err = o->io_err ? o->io_err : r;
        } else {
            o->inflight++;
            q->io_inflight++;
        }
    }
}

enum data_next op_start_io(struct data_op *o, enum data_next (*then)(struct data_op *o))
{
    o->state = then;
    o->unsent = 0;
    o->io_err = 0;
    for (uint32_t i = 0; i < o->nsegs; i++) {
        struct seg *s = &o->segs[i];
        s->o = o;
        s->io.offset = s->phys * PST_BLOCK;
        s->io.iov = o->iovs + s->iov_at;
        s->io.iovcnt = s->iov_n;
    }
    send_segs(o);
    return NEXT_IO;
}

static bool io_is_over(const struct data_op *o)
{
    return o->inflight == 0 && o->unsent == o->nsegs;
}

static void io_came_back(struct queue *q, struct io_req *r)
{
    struct seg *s = container_of(r, struct seg, io);
    struct data_op *o = s->o;
    int64_t want = (int64_t)s->n * PST_BLOCK;

    q->io_inflight--;
    o->inflight--;
    if (r->result != want)
        o->io_err = o->io_err ? o->io_err : r->result < 0 ? (int)r->result : -EIO;
    if (io_is_over(o))
        run(o);
}

static int io_progress(struct queue *q, uint64_t timeout_ns)
{
    struct io_req *reqs[REAP_MAX];
    struct list again;
    int n = q->io_inflight ? q->io->ops->reap(q->io, reqs, REAP_MAX, timeout_ns) : 0;

    for (int i = 0; i < n; i++)
        io_came_back(q, reqs[i]);
    list_init(&again);
    list_splice_back(&again, &q->unsent);
    for (struct list *l; (l = list_pop_front(&again));) {
        struct data_op *o = list_entry(l, struct data_op, link);
        send_segs(o);
        if (io_is_over(o))
            run(o);
    }
    return n;
}

/* ---- the log ---- */

/*
 * In the sync thread, or at once in the owner's. The event is written under the lock, so that close, which takes it,
 * comes after.
 */
static void synced(struct sync_wait *w, int err)
{
    struct data_op *o = container_of(w, struct data_op, sync);
    struct queue *q = o->q;
    uint64_t one = 1;

    scoped_lock(&q->lock);
    o->io_err = err;
    list_push_back(&q->synced, &o->link);
    if (write(q->event_fd, &one, sizeof one) < 0)
        log_debug("eventfd: %d", errno); /* the counter is at its end: it is readable anyway */
}

enum data_next op_start_sync(struct data_op *o, uint64_t lsn, enum data_next (*then)(struct data_op *o))
{
    struct queue *q = o->q;

    o->state = then;
    o->sync = (struct sync_wait){.lsn = lsn, .fn = synced};
    q->syncing++;
    /* Whoever has one operation only may be about to wait for it: then that thread makes the pass itself. */
    if (q->depth == 1 && q->poll_fd < 0)
        q->held = o;
    else
        eng_sync_async(o->e, &o->sync);
    return NEXT_SYNC;
}

/* The sync that was held back: in this thread if it waits for it without a time, else by the sync thread. */
static void sync_held(struct queue *q, uint64_t timeout_ns)
{
    struct data_op *o = q->held;

    if (!o)
        return;
    q->held = NULL;
    if (timeout_ns != UINT64_MAX) {
        eng_sync_async(o->e, &o->sync);
        return;
    }
    o->io_err = eng_sync(o->e, o->sync.lsn);
    q->syncing--;
    run(o);
}

static void sync_progress(struct queue *q)
{
    struct list l;
    uint64_t n;

    if (!q->syncing && !q->event_set)
        return;
    /* First the event, then the list: what comes between sets it again. */
    if (read(q->event_fd, &n, sizeof n) < 0 && errno != EAGAIN)
        log_debug("eventfd: %d", errno);
    q->event_set = false;
    list_init(&l);
    pthread_mutex_lock(&q->lock);
    list_splice_back(&l, &q->synced);
    pthread_mutex_unlock(&q->lock);
    for (struct list *it; (it = list_pop_front(&l));) {
        q->syncing--;
        run(list_entry(it, struct data_op, link));
    }
}

static enum data_next sync_over(struct data_op *o)
{
    return op_done(o, o->io_err);
}

enum data_next sync_begin(struct data_op *o)
{
    return op_start_sync(o, eng_last_lsn(o->e), sync_over);
}

/* ---- operations ---- */

static void finish(struct data_op *o)
{
    struct queue *q = o->q;
    struct pst_op *op = o->op;

    op_clear(o);
    op->priv = NULL;
    list_push_back(&q->done, &op->link);
    list_push_front(&q->free, &o->link);
}

static void run(struct data_op *o)
{
    struct queue *q = o->q;

    for (;;) {
        switch (o->state(o)) {
        case NEXT_GO:
            break;
        case NEXT_IO:
            if (io_is_over(o))
                break;
            return;
        case NEXT_SYNC:
            return;
        case NEXT_YIELD:
            list_push_back(&q->ready, &o->link);
            return;
        case NEXT_MEM:
            list_push_back(&q->starved, &o->link);
            return;
        case NEXT_DONE:
            finish(o);
            return;
        }
    }
}

/* Each of those that are ready now has one turn. */
static void ready_progress(struct queue *q)
{
    struct list l;

    list_init(&l);
    list_splice_back(&l, &q->ready);
    for (struct list *it; (it = list_pop_front(&l));)
        run(list_entry(it, struct data_op, link));
}

static void set_event(struct queue *q)
{
    uint64_t one = 1;

    if (q->poll_fd < 0 || q->event_set || (list_empty(&q->done) && list_empty(&q->ready)))
        return;
    q->event_set = true;
    if (write(q->event_fd, &one, sizeof one) < 0)
        log_debug("eventfd: %d", errno);
}

static enum data_next (*const first_state[PST_OP_KINDS])(struct data_op *o) = {
    [PST_OP_READ] = read_begin,
    [PST_OP_WRITE] = write_begin,
    [PST_OP_PUNCH] = punch_begin,
    [PST_OP_ALLOCATE] = allocate_begin,
    [PST_OP_SEEK_DATA] = seek_begin,
    [PST_OP_SEEK_HOLE] = seek_begin,
    [PST_OP_FSYNC] = sync_begin,
    [PST_OP_SYNCFS] = sync_begin,
    [PST_OP_CHUNK_READ] = chunk_read_begin,
    [PST_OP_CHUNK_REPLACE] = replace_begin,
    [PST_OP_ATTR] = attr_begin,
};

int data_queue_submit(struct pst_queue *pq, struct pst_op *op)
{
    struct queue *q = container_of(pq, struct queue, pub);
    struct data_op *o;

    if (op->kind >= PST_OP_KINDS || !op->cont)
        return -EINVAL;
    if (q->inflight == q->depth)
        return -EAGAIN;
    o = list_entry(list_pop_front(&q->free), struct data_op, link);
    op_init(o, q);
    o->op = op;
    o->cont = op->cont->info.id;
    o->state = first_state[op->kind];
    op->priv = o;
    q->inflight++;
    atomic_fetch_add_explicit(&q->e->data->ops[op->kind], 1, memory_order_relaxed);
    run(o);
    set_event(q);
    return 0;
}

/* Waits for a request, the log or the end of the time. */
static void wait_for_any(struct queue *q, uint64_t timeout_ns)
{
    struct pollfd p[2] = {{.fd = q->event_fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / NSEC_PER_SEC), .tv_nsec = (long)(timeout_ns % NSEC_PER_SEC)};

    if (!q->syncing && q->io_inflight) {
        io_progress(q, timeout_ns);
        return;
    }
    if (q->io_inflight)
        p[1].fd = q->io->ops->fd(q->io);
    ppoll(p, 2, timeout_ns == UINT64_MAX ? NULL : &ts, NULL);
}

/*
 * The kernel signals the end of a request after it has told of it: a signal that comes when the request was reaped
 * already would keep the descriptor readable until there is another one. Whoever was woken by it has nothing to reap.
 */
static void clear_late_event(struct queue *q)
{
    struct io_req *none[1];

    if (q->poll_fd >= 0 && !q->io_inflight)
        q->io->ops->reap(q->io, none, ARRAY_SIZE(none), 0);
}

int data_queue_reap(struct pst_queue *pq, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    struct queue *q = container_of(pq, struct queue, pub);
    uint64_t start = timeout_ns && timeout_ns != UINT64_MAX ? now_ns() : 0, left = timeout_ns;
    int n = 0;

    for (;;) {
        sync_held(q, timeout_ns);
        if (list_empty(&q->done) || q->syncing || q->event_set)
            sync_progress(q);
        if (list_empty(&q->done) || q->io_inflight)
            io_progress(q, 0);
        ready_progress(q);
        if (!list_empty(&q->done) || q->inflight == 0 || left == 0)
            break;
        if (list_empty(&q->ready) && !q->held)
            wait_for_any(q, left);
        if (start) {
            uint64_t spent = now_ns() - start;
            left = spent < timeout_ns ? timeout_ns - spent : 0;
        }
    }
    for (struct list *l; n < max && (l = list_pop_front(&q->done)); n++)
        ret_ops[n] = list_entry(l, struct pst_op, link);
    q->inflight -= (uint32_t)n;
    if (n == 0)
        clear_late_event(q);
    set_event(q);
    return n;
}

int data_queue_fd(struct pst_queue *pq)
{
    struct queue *q = container_of(pq, struct queue, pub);
    struct epoll_event ev = {.events = EPOLLIN};
    int fd;

    if (q->poll_fd >= 0)
        return q->poll_fd;
    fd = epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (epoll_ctl(fd, EPOLL_CTL_ADD, q->event_fd, &ev) || epoll_ctl(fd, EPOLL_CTL_ADD, q->io->ops->fd(q->io), &ev)) {
        int r = -errno;
        close(fd);
        return r;
    }
    q->poll_fd = fd;
    if (q->held)
        eng_sync_async(q->e, &take_ptr(q->held)->sync);
    set_event(q);
    return fd;
}

static void lists_init(struct queue *q)
{
    list_init(&q->free);
    list_init(&q->ready);
    list_init(&q->unsent);
    list_init(&q->starved);
    list_init(&q->done);
    list_init(&q->synced);
    for (uint32_t i = 0; i < q->depth; i++)
        list_push_back(&q->free, &q->ops[i].link);
}

/* ---- reads in the caller's thread ---- */

static struct queue *now_get(struct engine *e)
{
    struct queue *q = NULL;

    for (size_t i = 0; i < DATA_NOW && !q; i++)
        q = atomic_exchange(&e->data->now[i], NULL);
    if (q)
        return q;
    q = calloc(1, sizeof *q + sizeof q->ops[0]);
    if (!q)
        return NULL;
    q->e = e;
    q->depth = 1;
    q->event_fd = q->poll_fd = -1;
    q->now = true;
    lists_init(q);
    return q;
}

static void now_free(struct queue *q)
{
    while (q && q->nblocks)
        free(q->blocks[--q->nblocks]);
    free(q);
}

static void now_put(struct engine *e, struct queue *q)
{
    for (size_t i = 0; i < DATA_NOW; i++) {
        struct queue *none = NULL;
        if (atomic_compare_exchange_strong(&e->data->now[i], &none, q))
            return;
    }
    now_free(q);
}

void data_now_close(struct engine *e)
{
    for (size_t i = 0; i < DATA_NOW; i++)
        now_free(atomic_exchange(&e->data->now[i], NULL));
}

int data_read_now(struct pst_op *op)
{
    struct engine *e = engine_of(op->cont->store);
    struct queue *q;
    struct data_op *o;

    if (op->iovcnt > DATA_IOV_MAX || !e->data->try_cached || e->opt.direct == CHOICE_ALWAYS)
        return -EAGAIN;
    q = now_get(e);
    if (!q)
        return -EAGAIN;
    o = list_entry(list_pop_front(&q->free), struct data_op, link);
    op_init(o, q);
    o->op = op;
    o->cont = op->cont->info.id;
    o->state = read_begin;
    run(o); /* to its end: a read waits for nothing but I/O, of which there is none here */
    list_del(&op->link);
    now_put(e, q);
    if (op->result == -EAGAIN)
        return -EAGAIN;
    atomic_fetch_add_explicit(&e->data->ops[PST_OP_READ], 1, memory_order_relaxed);
    return 0;
}

int data_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    struct queue *q;
    int r;

    if (depth == 0 || depth > DEPTH_MAX)
        return -EINVAL;
    q = calloc(1, sizeof *q + depth * sizeof q->ops[0]);
    if (!q)
        return -ENOMEM;
    q->pub.store = st;
    q->e = engine_of(st);
    q->depth = depth;
    q->poll_fd = -1;
    lists_init(q);
    q->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = q->event_fd < 0 ? -errno : eng_io_open(q->e, (uint32_t)min_u64(max_u64(2 * depth, 32), 1024), &q->io);
    if (r) {
        if (q->event_fd >= 0)
            close(q->event_fd);
        free(q);
        return r;
    }
    pthread_mutex_init(&q->lock, NULL);
    *ret = &q->pub;
    return 0;
}

void data_queue_close(struct pst_queue *pq)
{
    struct queue *q = container_of(pq, struct queue, pub);
    struct pst_op *ops[REAP_MAX];

    /* The owner has reaped all; if not, the I/O that is under way must not outlive the queue. */
    while (q->inflight && data_queue_reap(pq, ops, REAP_MAX, UINT64_MAX) >= 0)
        ;
    pthread_mutex_lock(&q->lock); /* the last event was written */
    pthread_mutex_unlock(&q->lock);
    pthread_mutex_destroy(&q->lock);
    q->io->ops->close(q->io);
    if (q->poll_fd >= 0)
        close(q->poll_fd);
    close(q->event_fd);
    while (q->nblocks)
        free(q->blocks[--q->nblocks]);
    free(q);
}

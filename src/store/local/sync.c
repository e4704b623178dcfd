/*
 * The order of things: commits and group commit.
 *
 * A commit, under one mutex: its record joins the queue in memory, its batch is applied to the index. So queue, log and
 * index have the same order, and any prefix of the log is a state that was.
 * A pass writes the queue out: (1) take it, (2) flush the data file if blocks were written since the last pass, (3)
 * write the records, durable on return, (4) tell who waits. The thread that waits makes the pass itself; what others
 * commit meanwhile is the next pass. Without waiters the sync thread makes one when the oldest record is sync_ms old.
 * Checkpoints are in sync_ckpt.c.
 * A full disk: what was committed stays in memory (and in the file of recent.c), changes are refused with ENOSPC, and
 * the checkpoint thread tries until there is space.
 */
#include "sync_priv.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

#define QUEUE_MAX      (16 * MiB) /* bytes: commits wait above */
#define QUEUE_WRITE    (4 * MiB)  /* written out without being asked above */
#define QUEUE_KEEP     (1 * MiB)  /* of memory for a queue at rest */
#define CHECKPOINT_MAX (24 * MiB) /* bytes of log between checkpoints */
#define CHECKPOINT_MIN (4 * MiB)
#define STALL_FACTOR   8 /* commits wait when a checkpoint is that much behind */
#define SPACE_CHECK_NS (50 * NSEC_PER_MSEC)

void sync_fail(struct engine *e, const char *what, int err)
{
    int zero = 0;
    if (!atomic_load(&e->sync->err))
        atomic_store(&e->sync->refusal, err == -EROFS ? err : -EIO);
    if (atomic_compare_exchange_strong(&e->sync->err, &zero, -EIO)) {
        recent_drop(e);
        log_error("%s: %s: %s: the store is read-only until it is opened again", e->dir, what, err_text(err));
    }
}

int eng_writable(struct engine *e)
{
    if (e->opt.readonly)
        return -EROFS;
    return atomic_load(&e->sync->err) ? atomic_load(&e->sync->refusal) : 0;
}

bool sync_full(struct engine *e)
{
    return atomic_load(&e->sync->full);
}

void sync_set_full(struct engine *e, const char *what)
{
    struct sync *s = e->sync;
    if (atomic_exchange(&s->full, true))
        return;
    log_warn("%s: no space for %s: changes are refused until the file system has some", e->dir, what);
    pthread_cond_signal(&s->ckpt);
    pthread_cond_broadcast(&s->done);
}

void sync_index_failed(struct engine *e, const char *what, int err)
{
    if (err != -ENOSPC) {
        sync_fail(e, what, err);
        return;
    }
    pthread_mutex_lock(&e->sync->mu);
    sync_set_full(e, "the index");
    pthread_mutex_unlock(&e->sync->mu);
}

void eng_data_written(struct engine *e)
{
    atomic_store(&e->sync->data_dirty, true);
}

uint64_t sync_durable(struct engine *e)
{
    return atomic_load(&e->sync->durable);
}

uint64_t eng_last_lsn(struct engine *e)
{
    scoped_lock(&e->sync->mu);
    return e->sync->last;
}

/* ---- passes ---- */

/* Without the mutex, by the owner of `writing`. -ENOSPC: q has what could not be written; *upto goes up to what was. */
static int write_out(struct engine *e, struct wbuf *q, uint64_t *upto)
{
    struct sync *s = e->sync;
    int r;
    if (atomic_exchange(&s->data_dirty, false) && fdatasync(e->data_fd)) {
        r = -errno;
        sync_fail(e, "data: fdatasync", r);
        return r;
    }
    r = wal_append(e, q, upto);
    if (r && r != -ENOSPC)
        sync_fail(e, "log: write", r);
    return r;
}

/* With the mutex: records that could not be written go before those that came meanwhile. */
static int put_back(struct sync *s, struct wbuf *q)
{
    int r;
    wbuf_put(q, s->queue.data, s->queue.len);
    r = q->err;
    if (!r) {
        wbuf_done(&s->spare);
        s->spare = s->queue;
        s->spare.len = 0;
        s->queue = *q;
        *q = (struct wbuf){0};
    }
    return r;
}

/* With the mutex: a pass wrote q, or what of it the disk had space for. */
static void pass_end(struct engine *e, struct wbuf *q, uint64_t upto, int r)
{
    struct sync *s = e->sync;
    s->writing = false;
    s->pass_ns = now_ns();
    s->space_ns = 0; /* the log may have grown */
    if (!r || r == -ENOSPC)
        atomic_store(&s->durable, upto);
    if (!r && s->log_full)
        recent_turn(e); /* now, not before: the other half was not in the log yet */
    s->log_full = r == -ENOSPC;
    if (r == -ENOSPC) {
        sync_set_full(e, "the log");
        r = put_back(s, q);
        if (r)
            sync_fail(e, "log: queue", r);
    }
    if (q->cap > QUEUE_KEEP)
        wbuf_done(q);
    q->len = 0;
    if (!s->spare.data)
        s->spare = *q;
    else
        wbuf_done(q);
    pthread_cond_broadcast(&s->done);
    if (!list_empty(&s->waits))
        pthread_cond_signal(&s->work);
}

int sync_pass(struct engine *e, bool hold)
{
    struct sync *s = e->sync;
    uint64_t upto, written, start = now_ns();
    size_t len;
    struct wbuf q;
    int r;
    if (s->writing) {
        pthread_cond_wait(&s->done, &s->mu);
        return 0;
    }
    if (atomic_load(&s->err))
        return 0;
    hold |= s->log_full;
    s->writing = true;
    q = s->queue;
    s->queue = s->spare;
    s->spare = (struct wbuf){0};
    upto = s->last;
    written = atomic_load(&s->durable);
    len = q.len;
    if (!s->log_full)
        recent_turn(e);
    if (!hold)
        pthread_mutex_unlock(&s->mu);
    r = write_out(e, &q, &written);
    if (!hold)
        pthread_mutex_lock(&s->mu);
    if (!r) {
        written = upto;
        if (!len)
            s->marked = upto;
        s->syncs++;
        s->sync_ns += now_ns() - start;
    }
    s->log_bytes += len - (r ? q.len : 0);
    pass_end(e, &q, written, r);
    return r == -ENOSPC ? r : 0;
}

int eng_sync(struct engine *e, uint64_t lsn)
{
    struct sync *s = e->sync;
    int r = 0;
    if (atomic_load(&s->durable) >= lsn)
        return 0;
    scoped_lock(&s->mu);
    lsn = min_u64(lsn, s->last);
    while (!r && atomic_load(&s->durable) < lsn && !atomic_load(&s->err))
        r = sync_pass(e, false);
    return atomic_load(&s->durable) >= lsn ? 0 : r ? r : atomic_load(&s->err);
}

void eng_sync_async(struct engine *e, struct sync_wait *w)
{
    struct sync *s = e->sync;
    bool durable;
    pthread_mutex_lock(&s->mu);
    w->lsn = min_u64(w->lsn, s->last);
    durable = atomic_load(&s->durable) >= w->lsn;
    if (!durable) {
        s->want = max_u64(s->want, w->lsn);
        list_push_back(&s->waits, &w->link);
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->mu);
    if (durable) /* always so in a store that is only read, which has no sync thread */
        w->fn(w, 0);
}

/* ---- the sync thread ---- */

/* Calls those whose records are durable, without the mutex. */
static void fire_waits(struct sync *s)
{
    struct list ready;
    int err = atomic_load(&s->err) ? atomic_load(&s->err) : s->log_full ? -ENOSPC : 0;
    uint64_t durable = atomic_load(&s->durable);
    if (err)
        s->want = durable;
    list_init(&ready);
    list_for_each_safe (l, &s->waits) {
        if (!err && list_entry(l, struct sync_wait, link)->lsn > durable)
            continue;
        list_del(l);
        list_push_back(&ready, l);
    }
    if (list_empty(&ready))
        return;
    pthread_mutex_unlock(&s->mu);
    for (struct list *l; (l = list_pop_front(&ready));) {
        struct sync_wait *w = list_entry(l, struct sync_wait, link);
        w->fn(w, w->lsn <= durable ? 0 : err);
    }
    pthread_mutex_lock(&s->mu);
}

/* When the next pass is due by itself; UINT64_MAX: not before something happens. */
static uint64_t pass_due(struct engine *e)
{
    struct sync *s = e->sync;
    uint64_t interval = e->opt.sync_ms * NSEC_PER_MSEC;
    if (atomic_load(&s->err))
        return UINT64_MAX;
    if (s->log_full)
        return s->pass_ns + FULL_RETRY_NS;
    if (s->want > atomic_load(&s->durable) || s->queue.len > QUEUE_WRITE)
        return 0;
    if (s->queue.len)
        return s->oldest_ns + interval;
    /* The log is at rest: a mark tells a later reader that its last records were acknowledged. */
    return s->marked < s->last ? s->pass_ns + interval : UINT64_MAX;
}

static void *sync_main(void *arg)
{
    struct engine *e = arg;
    struct sync *s = e->sync;
    pthread_mutex_lock(&s->mu);
    for (;;) {
        uint64_t due;
        fire_waits(s);
        due = pass_due(e);
        if (s->stop && list_empty(&s->waits) && due)
            break;
        if (due <= now_ns()) {
            sync_pass(e, false);
        } else if (due == UINT64_MAX) {
            s->resting = true;
            pthread_cond_wait(&s->work, &s->mu);
            s->resting = false;
        } else {
            struct timespec t = {.tv_sec = (time_t)(due / NSEC_PER_SEC), .tv_nsec = (long)(due % NSEC_PER_SEC)};
            pthread_cond_timedwait(&s->work, &s->mu, &t);
        }
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

/* ---- commits ---- */

/*
 * With the mutex. What is committed needs space twice: in the log when the queue is written, in the index at the next
 * checkpoint, where merging its files needs some more. -ENOSPC when that would touch the reserve.
 */
static int check_space(struct engine *e, bool reserved)
{
    struct sync *s = e->sync;
    uint64_t now = now_ns();
    if (!s->space_ns || now - s->space_ns > SPACE_CHECK_NS) {
        if (fs_free(e, &s->space))
            s->space = UINT64_MAX;
        s->space_ns = now;
    }
    return s->space < e->reserve_bytes + s->queue.len + 2 * s->since_ckpt && !reserved ? -ENOSPC : 0;
}

/* With the mutex: waits while the queue is full or the checkpoint far behind. */
static int wait_for_room(struct engine *e)
{
    struct sync *s = e->sync;
    while (!atomic_load(&s->err) && !atomic_load(&s->full) &&
           (s->queue.len > QUEUE_MAX || recent_full(e) || s->since_ckpt > STALL_FACTOR * s->ckpt_bytes)) {
        if (s->queue.len > QUEUE_MAX || recent_full(e))
            sync_pass(e, false);
        else
            pthread_cond_wait(&s->done, &s->mu);
    }
    return atomic_load(&s->full) && !atomic_load(&s->err) ? -ENOSPC : eng_writable(e);
}

int sync_commit(struct engine *e, struct idx_batch *b, struct freed **freed, bool reserved, uint64_t *ret_lsn)
{
    struct sync *s = e->sync;
    const void *p;
    size_t len, before;
    uint64_t lsn;
    int r;
    scoped_lock(&s->mu);
    r = eng_writable(e);
    if (!r)
        r = wait_for_room(e);
    if (!r)
        r = check_space(e, reserved);
    if (r)
        return r;
    lsn = s->last + 1;
    p = idx_batch_seal(b, lsn, &len);
    before = s->queue.len;
    r = wal_queue(&s->queue, lsn, p, len);
    if (r) {
        s->queue.err = 0;
        return r;
    }
    r = idx_batch_apply(e, b);
    if (r) {
        s->queue.len = before;
        if (r == -ENOSPC) /* refused as a whole */
            sync_set_full(e, "the index");
        else /* whether the index has some of it is unknown, so nothing may follow */
            sync_fail(e, "index: write", r);
        return r;
    }
    recent_add(e, lsn, p, len);
    s->last = lsn;
    if (!before) {
        s->oldest_ns = now_ns();
        if (s->resting) /* else it looks again in time: nothing is due later than what was committed now */
            pthread_cond_signal(&s->work);
    } else if (s->queue.len > QUEUE_WRITE && before <= QUEUE_WRITE) {
        pthread_cond_signal(&s->work);
    }
    s->since_ckpt += s->queue.len - before;
    if (s->since_ckpt > s->ckpt_bytes)
        pthread_cond_signal(&s->ckpt);
    if (*freed) {
        (*freed)->lsn = lsn;
        alloc_freed(e, *freed);
        *freed = NULL;
    }
    *ret_lsn = lsn;
    return 0;
}

/* ---- open and close ---- */

int sync_open(struct engine *e, uint64_t last)
{
    struct sync *s = calloc(1, sizeof *s);
    pthread_condattr_t attr;
    if (!s)
        return -ENOMEM;
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->ckpt_mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &attr);
    pthread_cond_init(&s->ckpt, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&s->done, NULL);
    list_init(&s->waits);
    s->last = s->marked = last;
    atomic_store(&s->durable, last);
    s->ckpt_bytes = max_u64(CHECKPOINT_MIN, min_u64(CHECKPOINT_MAX, e->super.capacity / 64));
    e->sync = s;
    return 0;
}

int sync_start(struct engine *e)
{
    struct sync *s = e->sync;
    s->sync_runs = !pthread_create(&s->sync_thread, NULL, sync_main, e);
    s->ckpt_runs = s->sync_runs && !pthread_create(&s->ckpt_thread, NULL, sync_ckpt_main, e);
    return s->ckpt_runs ? 0 : -EAGAIN;
}

void sync_stop(struct engine *e)
{
    struct sync *s = e->sync;
    pthread_mutex_lock(&s->mu);
    s->ckpt_stop = true;
    pthread_cond_broadcast(&s->ckpt);
    pthread_mutex_unlock(&s->mu);
    if (s->ckpt_runs)
        pthread_join(s->ckpt_thread, NULL);
    pthread_mutex_lock(&s->mu);
    s->stop = true;
    s->want = s->last;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->mu);
    if (s->sync_runs)
        pthread_join(s->sync_thread, NULL);
    s->ckpt_runs = s->sync_runs = false;
}

void sync_close(struct engine *e)
{
    struct sync *s = e->sync;
    if (!s)
        return;
    wbuf_done(&s->queue);
    wbuf_done(&s->spare);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    pthread_cond_destroy(&s->ckpt);
    pthread_mutex_destroy(&s->mu);
    pthread_mutex_destroy(&s->ckpt_mu);
    free(s);
    e->sync = NULL;
}

void sync_stats(struct engine *e, pst_stat_fn fn, void *user)
{
    struct sync *s = e->sync;
    uint64_t syncs, ns, checkpoints, bytes, pending;
    pthread_mutex_lock(&s->mu);
    syncs = s->syncs;
    ns = s->sync_ns;
    checkpoints = s->checkpoints;
    bytes = s->log_bytes;
    pending = s->last - atomic_load(&s->durable);
    pthread_mutex_unlock(&s->mu);
    fn(user, "store_log_written_bytes_total", "", "Bytes of log records written", true, (double)bytes);
    fn(user, "store_log_pending_records", "", "Committed records that are not durable yet", false, (double)pending);
    fn(user, "store_syncs_total", "", "Group commits", true, (double)syncs);
    fn(user, "store_sync_seconds_total", "", "Time spent in group commits", true, (double)ns / 1e9);
    fn(user, "store_checkpoints_total", "", "Checkpoints of the index", true, (double)checkpoints);
    fn(user, "store_full", "", "1: no space for log or index, changes are refused until there is some", false,
       sync_full(e));
    fn(user, "store_readonly", "", "1: read-only, after an I/O error or by option", false, eng_writable(e) != 0);
}

/*
 * Checkpoints. By a thread of their own: under the commit mutex the queue is written out and the index's memory is
 * sealed, so that what is sealed is exactly what the log has; then, without the mutex, the index writes it to its
 * files; then the superblock says so; then the log's segments before that are free. The thread also looks for space on
 * a full disk.
 */
#include "sync_priv.h"

#include <errno.h>

#define FLUSH_POLL_US 2000

/*
 * With ckpt_mu. The log is durable and the index sealed at one LSN; *ret says which and where the log goes on,
 * *ret_bytes what the index has to write.
 */
static int seal(struct engine *e, struct super *ret, uint64_t *ret_bytes)
{
    struct sync *s = e->sync;
    int r;
    scoped_lock(&s->mu);
    r = s->queue.len ? sync_pass(e, false) : 0; /* most of it, while others may commit */
    while (!r && !atomic_load(&s->err) && (s->writing || s->queue.len))
        r = sync_pass(e, true);
    if (!r)
        r = atomic_load(&s->err);
    if (r)
        return r;
    r = index_flush_start(e);
    if (r == -ENOSPC)
        sync_set_full(e, "the index");
    else if (r)
        sync_fail(e, "index: flush", r);
    if (r)
        return r;
    ret->log_lsn = s->last;
    wal_position(e, &ret->log_seq, &ret->log_off);
    *ret_bytes = s->since_ckpt;
    s->since_ckpt = 0;
    return 0;
}

static int flush_wait(struct engine *e)
{
    int r;
    while (!(r = index_flush_poll(e)))
        usleep(FLUSH_POLL_US);
    if (r < 0) {
        sync_index_failed(e, "index: flush", r);
        return r;
    }
    return 0;
}

int sync_checkpoint_with(struct engine *e, int (*fn)(struct engine *e, void *user), void *user)
{
    struct sync *s = e->sync;
    struct super next = {0};
    uint64_t avail, bytes = 0;
    int r;
    scoped_lock(&s->ckpt_mu);
    if (!fs_free(e, &avail) && avail < e->reserve_bytes / 2)
        reserve_release(e);
    r = seal(e, &next, &bytes);
    if (!r)
        r = flush_wait(e);
    if (!r) {
        e->super.log_lsn = next.log_lsn;
        e->super.log_seq = next.log_seq;
        e->super.log_off = next.log_off;
        e->super.copy_lsn = copy_refresh(e, next.log_lsn);
        r = super_write(e);
        if (r)
            sync_fail(e, "superblock: write", r);
    }
    if (!r)
        wal_trim(e, min_u64(e->super.copy_lsn, next.log_lsn));
    if (!r && fn)
        r = fn(e, user);
    pthread_mutex_lock(&s->mu);
    s->checkpoints += !r;
    s->since_ckpt += r ? bytes : 0; /* it is still to be written */
    s->space_ns = 0;
    pthread_cond_broadcast(&s->done);
    pthread_mutex_unlock(&s->mu);
    if (!r)
        reserve_make(e);
    return r;
}

int sync_checkpoint(struct engine *e)
{
    return sync_checkpoint_with(e, NULL, NULL);
}

/*
 * With both mutexes, on a full disk: is there space now? Then the log gets what waits for it, and the index is opened
 * again if it has stopped. 0: the store goes on.
 */
static int try_space(struct engine *e)
{
    struct sync *s = e->sync;
    bool index = index_flush_poll(e) < 0;
    uint64_t avail = 0, need = 1 * MiB + (s->log_full ? e->super.segment : 0) + (index ? s->since_ckpt : 0);
    int r = fs_free(e, &avail);
    if (!r && avail < need) {
        reserve_release(e);
        r = fs_free(e, &avail);
    }
    if (!r && avail < need)
        r = -ENOSPC;
    while (!r && (s->writing || s->queue.len) && !atomic_load(&s->err))
        r = sync_pass(e, true);
    if (!r)
        r = atomic_load(&s->err);
    if (!r && index) {
        r = index_reopen(e, s->last);
        if (r && r != -ENOSPC && r != -EAGAIN)
            sync_fail(e, "index: opened again", r);
    }
    if (r)
        return r;
    atomic_store(&s->full, false);
    log_info("%s: there is space again", e->dir);
    pthread_cond_broadcast(&s->done);
    return 0;
}

/* The commit mutex is held before and after. Waits for space, for the thread's end, or until nobody reads the index. */
static void wait_for_space(struct engine *e)
{
    struct sync *s = e->sync;
    uint64_t due = now_ns() + FULL_RETRY_NS;
    pthread_mutex_unlock(&s->mu);
    pthread_mutex_lock(&s->ckpt_mu);
    pthread_mutex_lock(&s->mu);
    if (try_space(e) == -EAGAIN)
        due = now_ns() + FULL_RETRY_NS / 100;
    pthread_mutex_unlock(&s->ckpt_mu);
    if (s->full && !s->ckpt_stop) {
        struct timespec t = {.tv_sec = (time_t)(due / NSEC_PER_SEC), .tv_nsec = (long)(due % NSEC_PER_SEC)};
        pthread_cond_timedwait(&s->ckpt, &s->mu, &t);
    }
}

void *sync_ckpt_main(void *arg)
{
    struct engine *e = arg;
    struct sync *s = e->sync;
    pthread_mutex_lock(&s->mu);
    while (!s->ckpt_stop) {
        if (s->full && !atomic_load(&s->err)) {
            wait_for_space(e);
            continue;
        }
        if (s->since_ckpt <= s->ckpt_bytes || atomic_load(&s->err)) {
            pthread_cond_wait(&s->ckpt, &s->mu);
            continue;
        }
        pthread_mutex_unlock(&s->mu);
        sync_checkpoint(e);
        pthread_mutex_lock(&s->mu);
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

/* The state of commits and checkpoints (sync.c, sync_ckpt.c). */
#ifndef LOCAL_SYNC_PRIV_H
#define LOCAL_SYNC_PRIV_H

#include "parts.h"

#define FULL_RETRY_NS (500 * NSEC_PER_MSEC) /* between two looks for space */

struct sync {
    pthread_mutex_t mu;  /* the commit mutex; everything below but what says otherwise */
    pthread_cond_t work; /* for the sync thread */
    pthread_cond_t done; /* a pass has ended, or the store failed */
    pthread_cond_t ckpt; /* for the checkpoint thread */
    pthread_t sync_thread, ckpt_thread;
    bool sync_runs, ckpt_runs, stop, ckpt_stop;

    struct wbuf queue, spare; /* records; `spare` is an empty one with memory */
    uint64_t last;            /* LSN of the newest commit */
    _Atomic uint64_t durable; /* read without the mutex too */
    uint64_t want;            /* the highest LSN that someone waits for asynchronously */
    uint64_t oldest_ns;       /* when the first record of the queue was committed */
    bool writing;             /* a pass is under way: it owns the log's writer */
    bool resting;             /* the sync thread waits without a time */
    uint64_t marked, pass_ns; /* `durable` that a mark or record in the log states; end of the last pass */
    _Atomic int err;          /* -EIO: read-only from then on */
    _Atomic int refusal;      /* of changes then: -EROFS if the file system has become read-only, else -EIO */
    _Atomic bool full;        /* no space for log or index: changes are refused until there is some */
    bool log_full;            /* it is the log: the queue has what could not be written */
    _Atomic bool data_dirty;
    struct list waits; /* struct sync_wait */

    uint64_t space_ns; /* when the free space was looked at */
    uint64_t space;    /* bytes free then */

    uint64_t since_ckpt, ckpt_bytes; /* bytes of log since the last checkpoint; between two */
    pthread_mutex_t ckpt_mu;         /* one checkpoint at a time; before `mu` */

    uint64_t syncs, sync_ns, checkpoints, log_bytes;
};

/*
 * With the mutex; hold: it is kept while writing, so that nobody commits meanwhile. One step for callers that loop:
 * waits for the pass under way, or makes one. An empty queue writes a mark. -ENOSPC: it made no way.
 */
int sync_pass(struct engine *e, bool hold);
/* With the mutex. */
void sync_set_full(struct engine *e, const char *what);
/* Any thread without the mutex: -ENOSPC passes, anything else is the end. */
void sync_index_failed(struct engine *e, const char *what, int err);
/* The checkpoint thread. */
void *sync_ckpt_main(void *engine);

#endif

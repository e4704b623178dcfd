/* A queue of operations: private to queue.c and op.c. */
#ifndef LOCAL_QUEUE_H
#define LOCAL_QUEUE_H

#include "data.h"

#define QUEUE_BLOCKS 64u /* free blocks of memory that a queue keeps; an operation has two at most */

struct queue {
    struct pst_queue pub;
    struct engine *e;
    struct io *io;
    uint32_t depth, inflight; /* operations: at most, and submitted but not reaped */
    uint32_t io_inflight;     /* requests in the I/O context */
    uint32_t syncing;         /* operations that wait for the log */
    struct data_op *held;     /* one of them that nobody has asked the log for yet */

    /* An operation is on one of these, or waits for its requests. */
    struct list free;
    struct list ready;   /* to be run */
    struct list unsent;  /* has requests that did not fit in the I/O context */
    struct list starved; /* waits for memory */
    struct list done;    /* struct pst_op: to be reaped */

    uint8_t *blocks[QUEUE_BLOCKS];
    uint32_t nblocks;
    size_t linear_bytes;
    uint32_t cached_misses, cached_skips; /* reads that were not in the page cache, in a row */

    /* From the sync thread. */
    pthread_mutex_t lock;
    struct list synced;
    bool now; /* without I/O: what is not in the page cache is -EAGAIN */
    int event_fd;   /* readable: synced has some, or done has (poll_fd is in use) */
    int poll_fd;    /* event_fd and the I/O context's; -1 until someone asks for it */
    bool event_set; /* written for `done`; the owner thread's */

    struct data_op ops[];
};

void op_init(struct data_op *o, struct queue *q);
void op_clear(struct data_op *o);

#endif

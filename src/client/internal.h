/*
 * The client: what its parts know of one another.
 *
 *   connect.c   URLs, options, cl_connect                 file.c    handles: open, read, flush, close
 *   thread.c    data threads, each drives one queue       dirty.c   write-behind, per object
 *   bufs.c      buffers for write-behind and read-ahead   ahead.c   read-ahead, per handle
 *   filters.c   inline services of this process
 *
 * Locks, outermost first: inode.lock, client.lock, bufs.lock, thread.lock. Completions run in data threads; they take
 * inode.lock, so nobody waits for an operation with it held, except on inode.changed.
 */
#ifndef CLIENT_INTERNAL_H
#define CLIENT_INTERNAL_H

#include "client/client.h"
#include "client/fork.h"
#include "client/mem.h"

#include <stdatomic.h>

#define LOG_COMPONENT "client"
#include "base/log.h"

#define CL_THREADS_MAX   64u
#define CL_DEPTH_MAX     4096u
#define CL_WINDOW        CL_MEM     /* write-behind and read-ahead work in windows aligned to this */
#define CL_SMALL         (64 * KiB) /* a write-behind buffer begins with this size: small files are many */
#define CL_NOW           (64 * KiB)  /* reads up to this size are tried in the caller's thread */
#define CL_AGE_NS        (2 * NSEC_PER_SEC) /* what waits for more data is sent after this at the latest, about */
#define CL_IDLE_MAX      16u        /* buffers of one object that wait for more data */
#define CL_AHEAD_MAX     16u        /* windows fetched ahead for one handle */
#define CL_INODES        1024u      /* hash buckets */

/* ---- data threads ---- */

struct cl_thread {
    struct client *c;
    struct pst_queue *q;
    pthread_t id;
    pthread_mutex_t lock;
    struct list in; /* struct pst_op.link: submitted, not taken yet; under lock */
    struct list cancels; /* struct cancel: ids to cancel; under lock */
    bool stop, sleeping;
    bool age;    /* buffers have begun to wait */
    int wake_fd; /* eventfd */
    /* the thread's own */
    struct list flight; /* struct cl_op.flight */
    uint32_t in_flight;
    bool aging;
    uint64_t age_at_ns; /* the next look */
};

/* An operation of the client's parts: op.user points to it. */
struct cl_op {
    struct pst_op op;
    void (*done)(struct cl_op *o);
    uint64_t id;        /* for cl_op_cancel; 0: not to be cancelled */
    uint32_t thread;    /* that has it */
    struct list flight; /* on the thread's list of what its queue has */
};

int cl_threads_start(struct client *c);
void cl_threads_stop(struct client *c); /* drains */
void cl_op_submit(struct client *c, struct cl_op *o);
/* Something waits in the buffers now: a thread will call cl_dirty_age. */
void cl_threads_age(struct client *c);
/* A short read whose bytes are in memory, in this thread: the result is in op. False: it is to be submitted. */
bool cl_op_now(struct pst_op *op);
/* Submits and waits: the result. */
int64_t cl_op_run(struct client *c, struct pst_op *op);
/* Asks for an early end of the operation with this id, which may be over already; see pst_queue_cancel. */
void cl_op_cancel(struct client *c, uint32_t thread, uint64_t id);

/* ---- buffers (bufs.c) ---- */

struct cl_bufs {
    pthread_mutex_t lock;
    struct list free_small, free_big; /* struct cl_mem.link */
    struct list slabs;
    const struct pst_store *store; /* may want memory that can be handed over; NULL: not known yet */
};
void cl_bufs_init(struct cl_bufs *b);
void cl_bufs_done(struct cl_bufs *b);
struct cl_mem *cl_bufs_get(struct cl_bufs *b, size_t size); /* CL_SMALL or CL_WINDOW. NULL: no memory */
void cl_bufs_put(struct cl_bufs *b, struct cl_mem *m);

/* ---- objects with state here: while a handle is open (dirty.c) ---- */

struct cl_inode {
    struct list link;  /* hash chain; client.lock */
    struct list dirty; /* on client.dirty while it has idle buffers; client.lock */
    struct client *c;
    uint64_t ino;
    uint32_t refs; /* client.lock */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* some flying buffer came back */
    struct list idle;       /* struct cl_buf: waiting for more data, oldest first; disjoint */
    struct list flying;     /* submitted */
    uint32_t nidle;
    uint64_t bytes;  /* capacity of the buffers in both lists */
    uint64_t serial; /* of the last buffer */
    uint64_t taken;  /* writes, or parts of them, that went into buffers */
    uint32_t held;   /* readers who keep more from going there */
    uint64_t failures; /* pending writes that failed, whoever made them; lock */
    int last_err;      /* of the last of them; lock */
    _Atomic uint64_t gen; /* grows with every change made here: read-ahead of before is void */
};

struct cl_buf {
    struct list link;
    struct cl_inode *i;
    struct cl_file *owner; /* gets the error; outlives the buffer */
    struct cl_mem *mem;
    uint64_t serial, since_ns;
    uint64_t offset;
    size_t len;
    uint32_t opf; /* of all the writes in it */
    struct iovec iov;
    struct cl_op o;
};

struct cl_inode *cl_inode_get(struct client *c, uint64_t ino, bool make); /* NULL: none (make false), no memory */
void cl_inode_put(struct cl_inode *i);
/*
 * Takes all of it, or -ENOMEM and nothing more. ret_done: the bytes taken. given: NULL, or the memory whose first bytes
 * p is: may be kept instead of copied from, and then *given is another one.
 */
int cl_dirty_write(struct cl_file *f, const uint8_t *p, size_t len, uint64_t offset, uint32_t opf,
                   struct cl_mem **given, size_t *ret_done);
/* Everything in the range has reached the server (or failed, and its owner knows). */
void cl_dirty_flush(struct cl_inode *i, uint64_t offset, uint64_t len);
#define CL_ALL UINT64_MAX
/*
 * A read that flushes its range and then asks the server goes between these: writes that were taken meanwhile may have
 * reached it in any order, and so a later one without an earlier one. begin: what end is given. end: false if that may
 * be so; then once more, with hold: no write is taken meanwhile.
 */
uint64_t cl_dirty_read_begin(struct cl_inode *i, bool hold);
bool cl_dirty_read_end(struct cl_inode *i, uint64_t seen, bool hold);
/*
 * Where one buffer is all that waits of an object: writes it by itself and waits; durable: so that it stands for an
 * fsync after it. False: there is more or nothing to write, or it failed; then nothing is known to be durable.
 */
bool cl_dirty_flush_one(struct cl_inode *i, bool durable);
/* The last failure of a pending write of another handle since this was asked for f before; 0: none. */
int cl_dirty_others_failed(struct cl_file *f);
/* A sync by f failed: as if a pending write of its own had. */
void cl_sync_failed(struct cl_file *f, int err);
bool cl_inode_dirty(struct cl_inode *i); /* does this object have bytes that have not reached the server? */
void cl_dirty_flush_client(struct client *c); /* of all objects */
/* Sends off what has waited for CL_AGE_NS; does not wait for it. Is there more that waits? */
bool cl_dirty_age(struct client *c);
bool cl_has_dirty(struct client *c);          /* does any? */

/* ---- read-ahead (ahead.c) ---- */

struct cl_window {
    struct cl_file *f;
    struct cl_mem *mem;
    uint64_t offset, gen, stamp_ns;
    int64_t result;
    enum { WIN_EMPTY, WIN_FLYING, WIN_READY } state;
    struct iovec iov;
    struct cl_op o;
};

struct cl_ahead {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t next;   /* where a sequential reader would go on */
    uint32_t streak; /* reads in a row that did */
    uint32_t depth;  /* windows to fetch ahead; 0: off */
    uint32_t flying;
    uint64_t eof; /* where a short read ended; UINT64_MAX: not known */
    struct cl_window win[CL_AHEAD_MAX];
};
void cl_ahead_init(struct cl_file *f);
void cl_ahead_done(struct cl_file *f);
/* Bytes served from windows fetched ahead, from the start of the range; then begins to fetch on. */
size_t cl_ahead_read(struct cl_file *f, uint8_t *p, size_t len, uint64_t offset);

/* ---- handles ---- */

struct cl_file {
    struct client *c;
    struct cl_inode *i;
    int flags;            /* of open(2) */
    _Atomic bool changed; /* something to make durable at close */
    _Atomic int err;      /* the first failure not reported yet */
    uint64_t own_failures;  /* of inode.failures: this handle's; inode.lock */
    uint64_t others_failed; /* the others' when they were last reported here; inode.lock */
    _Atomic uint64_t written;
    struct cl_ahead ahead;
};

struct client {
    struct pst_store *store;
    struct pst_cont *cont;
    uint64_t fork_gen;
    uint64_t write_behind, ahead_windows;
    uint32_t depth;
    bool durable_close;
    uint32_t nthreads;
    struct cl_thread *threads;
    struct cl_bufs bufs;
    _Atomic uint64_t ahead_bytes; /* of all windows */

    pthread_mutex_t lock;
    pthread_cond_t room;  /* dirty_bytes went down */
    uint64_t dirty_bytes; /* capacity of all write-behind buffers */
    int failed;           /* of a pending write since the last cl_syncfs */
    struct list dirty;    /* inodes with idle buffers */
    struct list inodes[CL_INODES];
};

/* base: the URL without pool and container. Owned strings. */
int cl_url_split(const char *url, char **ret_base, char **ret_pool, char **ret_cont);
int cl_filters_push(const char *const *specs, struct pst_store **st, char *err, size_t err_size); /* filters.c */
int cl_store_open(const char *base, const struct cl_options *o, struct pst_store **ret, char *err, size_t err_size);

#endif

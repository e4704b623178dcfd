/*
 * What the parts of the data path know of one another (docs/engine.md, "data path").
 *
 * An operation is a small state machine: one function per state, run by the thread that owns the queue. It holds no
 * lock while I/O is under way. A write puts new blocks on disk first, and then, under the inode's lock, merges them
 * into the records as they are at that moment.
 */
#ifndef LOCAL_DATA_H
#define LOCAL_DATA_H

#include "engine.h"

#include "chunk.h"

#include <sys/stat.h>

/* Limits, with the reason. */
#define DATA_CACHE_SHARDS 64u
#define DATA_CACHE_BYTES  (32 * MiB)  /* decoded maps: about 25 GiB of 1 MiB chunks */
#define DATA_IOV_MAX      256u        /* longer iovec arrays go through one buffer: below IOV_MAX with both edges */
#define DATA_LINEAR_BYTES (32 * MiB)  /* of such buffers per queue; more operations wait */
#define DATA_NOW          16u         /* reads at once in their callers' threads without an allocation */
#define DATA_STEP_CHUNKS  64u         /* chunk records that one step of a long operation changes in a transaction */
#define DATA_STEP_BYTES   (256 * KiB) /* of records in such a transaction: well below TXN_MAX */
#define DATA_STEP_SCAN    256u        /* or looks at */
#define DATA_DIRECT_MIN   (64 * KiB) /* shorter writes go through the page cache */
#define DATA_READ_RETRIES 16u        /* lookups anew when a checksum fails and the record changed meanwhile */

struct map_cache;

/* space.c */
struct swap_reserve {
    pthread_mutex_t lock;
    struct chunk_run *runs; /* owned */
    uint32_t nruns, cap;
    _Atomic uint32_t n; /* blocks in runs */
    uint32_t want;      /* when it is full */
    uint32_t lent;      /* with operations that are under way */
};

struct data_state {
    struct map_cache *cache;
    struct swap_reserve swap;
    /* Try a read from the page cache before the queue's I/O: no context switch where it is there. Off in some tests. */
    _Atomic bool try_cached;
    _Atomic uint32_t *seen; /* places of long reads, see queue.c */
    uint32_t nseen;
    struct queue *_Atomic now[DATA_NOW]; /* for reads in their callers' threads, see queue.c */
    pthread_mutex_t collect_lock; /* one collector at a time: a chunk is deleted once */
    struct key collect_at;        /* where the collector goes on */
    /* Counters. */
    _Atomic uint64_t ops[PST_OP_KINDS], read_bytes, write_bytes, redone, cache_hits, cache_misses;
};

/* ---- map.c: the chunk records, decoded and cached ---- */

struct key chunk_key(uint64_t cont, uint64_t ino, uint64_t index);
/* -EBADMSG when k is no chunk key. */
int chunk_key_parse(const uint8_t *k, size_t len, uint64_t *ret_cont, uint64_t *ret_ino, uint64_t *ret_index);
int map_cache_open(struct data_state *d);
void map_cache_close(struct data_state *d);
/*
 * The record of a chunk, an own reference, or NULL where there is none. `a` was read by inode_get before: a cached map
 * is used only if it belongs to the same change counter. fresh: ask the index. 0, -EIO (logged), -ENOMEM.
 */
int map_get(struct engine *e, uint64_t cont, const struct pst_attr *a, uint64_t index, bool fresh,
            struct chunk_map **ret);
/* After a commit that left the chunk so at this change counter. */
void map_put(struct engine *e, uint64_t cont, uint64_t ino, uint64_t change, uint64_t index, struct chunk_map *m);

/* ---- iov.c: slices of scattered memory ---- */

/* Elements that cover [pos, pos + len). The range must lie inside. */
uint32_t iov_count(const struct iovec *iov, uint32_t n, uint64_t pos, uint64_t len);
/* Writes them to ret; returns their number. */
uint32_t iov_slice(const struct iovec *iov, uint32_t n, uint64_t pos, uint64_t len, struct iovec *ret);
void iov_zero(const struct iovec *iov, uint32_t n, uint64_t pos, uint64_t len);
void iov_from(const struct iovec *iov, uint32_t n, uint64_t pos, const void *src, uint64_t len);
void iov_to(const struct iovec *iov, uint32_t n, uint64_t pos, void *dst, uint64_t len);
/* CRC-32C of each block of the memory, which is nblocks * PST_BLOCK bytes. */
void iov_crcs(const struct iovec *iov, uint32_t n, uint32_t nblocks, uint32_t *ret);
/* The first block whose CRC is another; nblocks if there is none. */
uint32_t iov_check(const struct iovec *iov, uint32_t n, uint32_t nblocks, const uint32_t *crcs);

/* ---- operations (queue.c) ---- */

enum data_next {
    NEXT_GO,    /* run the new state now */
    NEXT_YIELD, /* run it after the others had their turn */
    NEXT_IO,    /* run it when all requests have come back; o->io_err has the first error */
    NEXT_SYNC,  /* run it when o->sync.lsn is durable; o->io_err has the error */
    NEXT_MEM,   /* run the same state again when memory was given back */
    NEXT_DONE,  /* op->result is set */
};

/* One run of blocks of an operation that is read or written by one request. */
struct seg {
    struct io_req io;
    struct data_op *o;
    uint64_t phys;
    uint32_t first, n; /* blocks of the operation */
    uint32_t iov_at, iov_n;
};

/* A block that the operation changes in part. */
struct edge {
    uint64_t block;  /* of the file */
    uint32_t lo, hi; /* the bytes that the operation sets; the others keep what they are */
    uint64_t phys;   /* where the old content is; PHYS_NONE: it is zero */
    uint32_t crc;
    bool read;    /* the old content matters */
    bool pad;     /* there is none: the others are zero, whatever the block was */
    uint8_t *buf; /* PST_BLOCK bytes: the old content; for a read: what it does not ask for */
};
#define PHYS_NONE UINT64_MAX

/* Ranges of numbers, kept while a long operation may have to be undone. */
struct span {
    uint64_t start, n;
};

struct queue;
struct data_op {
    struct list link; /* of one of the queue's lists */
    struct queue *q;
    struct engine *e;
    struct pst_op *op;
    uint64_t cont;
    enum data_next (*state)(struct data_op *o);
    enum data_next (*after_edges)(struct data_op *o);
    int io_err;
    uint32_t inflight; /* requests that have not come back */
    uint32_t unsent;   /* segs from here on wait for room in the I/O context */
    uint64_t ticket;   /* alloc_read_begin */
    bool has_ticket, reread;
    uint32_t tries;
    struct sync_wait sync;

    /* The caller's memory: op->iov, or one buffer instead of it. */
    const struct iovec *iov;
    uint32_t iovcnt;
    struct iovec linear;

    struct pst_attr attr;    /* as of the lookup */
    uint64_t offset, length; /* bytes of the file that are read or written */
    uint64_t first;          /* block of the file */
    uint32_t nblocks;
    struct edge edges[2];
    uint32_t nedges;

    struct chunk_run *runs; /* claimed blocks */
    uint32_t nruns;
    uint32_t lent; /* blocks from the swap reserve */
    struct seg *segs;
    uint32_t nsegs;
    struct iovec *iovs; /* of the requests */
    uint32_t niovs;
    uint32_t *crcs;

    /* PUNCH, ALLOCATE, SEEK: the next chunk; the error to undo for; what was added. */
    uint64_t at, end;
    int undo_err;
    bool edges_late;
    struct span *added;
    uint32_t nadded;

    /* Small operations need no more than these. */
    uint32_t runs_cap, segs_cap, iovs_cap, crcs_cap, added_cap;
    struct chunk_run runs1[2];
    struct seg segs1[2];
    struct iovec iovs1[6];
    uint32_t crcs1[8];
};

/* First states. */
enum data_next read_begin(struct data_op *o);
enum data_next chunk_read_begin(struct data_op *o);
enum data_next attr_begin(struct data_op *o);
enum data_next write_begin(struct data_op *o);
enum data_next replace_begin(struct data_op *o);
enum data_next punch_begin(struct data_op *o);
enum data_next allocate_begin(struct data_op *o);
enum data_next seek_begin(struct data_op *o);
enum data_next sync_begin(struct data_op *o);

/* The recorded reply is in op; completes when the log is durable. */
enum data_next sync_reply(struct data_op *o);

static inline enum data_next op_done(struct data_op *o, int64_t result)
{
    o->op->result = result;
    return NEXT_DONE;
}

/* Arrays of the operation, with room for n. Content is lost when they grow, but for runs and added. 0 or -ENOMEM. */
int op_room_runs(struct data_op *o, uint32_t n);
int op_room_segs(struct data_op *o, uint32_t n);
int op_room_iovs(struct data_op *o, uint32_t n);
int op_room_crcs(struct data_op *o, uint32_t n);
int op_room_added(struct data_op *o, uint32_t n);
/* A block of aligned memory from the queue's pool, or NULL. */
uint8_t *op_block(struct data_op *o);
void op_block_free(struct data_op *o, uint8_t *b);
/* o->iov, copied into one buffer if it has too many elements. NEXT_GO, NEXT_MEM, or NEXT_DONE with the error. */
enum data_next op_gather(struct data_op *o, bool copy_in);
void op_ticket(struct data_op *o);
void op_ticket_end(struct data_op *o);
/* It runs in its caller's thread: what is not in the page cache is -EAGAIN. */
bool op_is_now(const struct data_op *o);
/* Starts all segs; the state runs when all are back. */
enum data_next op_start_io(struct data_op *o, enum data_next (*then)(struct data_op *o));
enum data_next op_start_sync(struct data_op *o, uint64_t lsn, enum data_next (*then)(struct data_op *o));
/*
 * A block is not what it should be: true the first time, when its page was dropped and it is worth another read; the
 * memory of the page cache may be what is wrong.
 */
bool op_reread(struct data_op *o, uint64_t phys);
/* The object's attributes: 0, -ENOENT, -EISDIR, -EINVAL (not a regular file), -EIO. */
int op_attr(struct data_op *o, struct inode *ret);

/* ---- commit.c: what all changes share ---- */

/*
 * A change to one object under its lock, in one transaction. Records are collected as decoded maps; change_commit puts
 * them with the inode, whose change counter moves by one and is the version of each record that was changed.
 */
struct change {
    struct engine *e;
    uint64_t cont;
    struct inode i;        /* the caller sets size and times */
    bool locked, within;   /* within: the caller puts the inode */
    struct txn *t;         /* made by change_begin, or borrowed */
    int64_t blocks;        /* taken minus given back */
    struct data_op *steal; /* not NULL: replaced unwritten blocks become its runs, see op_claim */
    struct change_map {
        uint64_t index;
        struct chunk_map *m; /* NULL: the record goes */
        bool changed;
    } * maps;
    uint32_t nmaps, maps_cap;
    size_t bytes; /* of changed maps, an upper bound of their records */
    int err;      /* in callbacks */
};
/* Takes the lock, reads the inode, begins a transaction. On failure nothing is held. */
int change_begin(struct change *c, struct engine *e, uint64_t cont, uint64_t ino);
/* The same for a caller that holds the lock and has a transaction, to be ended by change_put. */
void change_within(struct change *c, struct engine *e, uint64_t cont, struct txn *t, const struct inode *i);
/* The chunk as it is, or as this change made it: borrowed, until the next change to it. */
int change_look(struct change *c, uint64_t index, const struct chunk_map **ret);
/*
 * Replaces blocks [first, first + n) of a chunk (chunk_edit) and gives the old ones back. 0, -ENOMEM, -EIO.
 * in_use: bytes of the chunk in use at least.
 */
int change_blocks(struct change *c, uint64_t index, uint32_t first, uint32_t n, const struct chunk_run *runs,
                  size_t nruns, const uint32_t *crcs, uint32_t in_use);
/* The chunk becomes m (taken; NULL: none); its old blocks are given back. */
int change_chunk(struct change *c, uint64_t index, struct chunk_map *m);
/* The chunk has no bytes in use past this. */
int change_clamp(struct change *c, uint64_t index, uint32_t in_use);
/* Moves the change counter and puts the records, inode and usage into the transaction. 0 or -errno. */
int change_put(struct change *c);
/*
 * change_put, claimed blocks of o (may be NULL), with `reply` its reply record, commit. The transaction is gone in
 * every case.
 */
int change_commit(struct change *c, struct data_op *o, bool reply, uint64_t *ret_lsn);
/* Unlocks and forgets all; drops what was not committed. */
void change_end(struct change *c);

/* The recorded reply: 1 when there is one (op is filled), 0, or -errno. */
int reply_replay(struct data_op *o);
/* What every change starts with: NEXT_GO when it is new and may go on. */
enum data_next commit_may_begin(struct data_op *o);
/* Takes the lock: NEXT_GO, or the end of the operation: an I/O error, or the same request was committed meanwhile. */
enum data_next commit_begin(struct data_op *o, struct change *c);
/* Commits c, which has the effect, and ends it; result: what the operation returns. */
enum data_next commit_end(struct data_op *o, struct change *c, int64_t result);
/* Ends c: somebody else's commit came first, `state` has to be done once more. */
enum data_next commit_again(struct data_op *o, struct change *c, enum data_next (*state)(struct data_op *o));

/* ---- space.c: where new blocks come from ---- */

/* As alloc_claim; the chunks of deleted files are collected when space is out. */
int64_t space_claim(struct engine *e, uint32_t want, uint64_t *ret_phys);
/*
 * Claims blocks until o->runs has n, or gives back what is too much. On a full store: blocks that were allocated in the
 * operation's range, or as many from the swap reserve as the range has. 0; -ENOSPC; -EAGAIN: when other operations are
 * over, the state has to be run again; another error. What was claimed stays with the operation.
 */
int op_claim(struct data_op *o, uint32_t n);
void op_unclaim(struct data_op *o);
void swap_open(struct engine *e);
void swap_close(struct engine *e);
/* A block for a change that gives back one at least. 0 or -ENOSPC. */
int swap_take_one(struct engine *e, uint64_t *ret_phys);
/* The operation is over, whatever became of its blocks. */
void swap_return(struct data_op *o);

/* ---- edge.c: blocks of which an operation has a part only ---- */

/* Adds a block; with `look`, finds where its old content is. The operation has a ticket and attributes. 0 or -errno. */
int edge_add(struct data_op *o, uint64_t block, uint32_t lo, uint32_t hi, bool look);
/* The edges of [o->offset, o->offset + o->length). */
int edges_of_range(struct data_op *o, bool look);
/* Reads the old content that is needed, then `then`, once its checksums are right. */
enum data_next edges_read(struct data_op *o, enum data_next (*then)(struct data_op *o));
/* Under the lock: 1 when an edge's old content is another by now, 0, -errno. */
int edges_moved(struct data_op *o, struct change *c);
void edges_drop(struct data_op *o);
/*
 * A request for blocks [first, first + n) of the operation at phys: the caller's memory, and the edges' beside it.
 * 0 or -ENOMEM.
 */
int seg_add(struct data_op *o, enum io_kind kind, uint64_t phys, uint32_t first, uint32_t n);

/* ---- read.c ---- */

/* Counts and logs a damaged block at this offset. info may be NULL. */
void data_damaged(struct engine *e, const struct pst_cont_info *info, uint64_t cont, uint64_t ino, uint64_t offset,
                  const char *what);
/* The same, of the operation's object. */
void data_op_damaged(struct data_op *o, uint64_t offset, const char *what);

/* ---- scan.c, truncate.c ---- */

/* Numbers of existing chunks from `from` on, ascending, at most max: how many, or -errno. */
int scan_chunks(struct engine *e, uint64_t cont, uint64_t ino, uint64_t from, uint64_t *ret, int max);
/*
 * In c: removes all chunks from `index` on. When there are many, those of the far end go in transactions of their own
 * before, the size becoming smaller with each.
 */
int cut_chunks(struct change *c, uint64_t index);
/* Bytes that a file of this size has in a chunk. */
static inline uint64_t chunk_part(uint64_t size, uint64_t index, uint32_t chunk_size)
{
    uint64_t start = index * chunk_size;
    return size > start ? min_u64(size - start, chunk_size) : 0;
}

/* ---- scrub.c ---- */

/*
 * Reads the written blocks of a chunk past the page cache where possible and calls bad(user, first, n) for runs of
 * blocks whose checksum is wrong or that cannot be read; buf: VERIFY_BYTES of aligned memory.
 */
#define VERIFY_BYTES (256 * KiB)
void chunk_verify(struct engine *e, const struct chunk_map *m, uint8_t *buf,
                  void (*bad)(void *user, uint32_t first, uint32_t n), void *user);

#endif

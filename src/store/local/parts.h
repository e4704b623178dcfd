/* What the parts of the substrate (open, super, index, txn, log, sync, alloc, io) offer one another. */
#ifndef LOCAL_PARTS_H
#define LOCAL_PARTS_H

#include "engine.h"

#include <stdarg.h>

#define LAYOUT_VERSION 1u

/* A line for people and the errno: `return fail(x, -EBUSY, "...")`. */
struct errmsg {
    char *p;
    size_t size;
};
int fail(const struct errmsg *m, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- locks.c ---- */
int locks_open(struct engine *e);
void locks_close(struct engine *e); /* accepts a store whose locks are not made */

/* ---- open.c ---- */
int eng_open(const char *dir, const struct eng_opts *opts, struct engine **ret, const struct errmsg *m);
void eng_close(struct engine *e); /* durable, clean; a store that failed is closed as it is */
void eng_default_opts(struct eng_opts *o);

/* ---- super.c: the folder, its lock, the superblock, the data file, the reserve ---- */

/* Opens the folder, takes the lock, reads the superblock or makes the store. *ret_new: it was made. */
int super_open(struct engine *e, bool *ret_new, const struct errmsg *m);
/* A new store is complete. */
int super_created(struct engine *e);
int super_write(struct engine *e);
void super_close(struct engine *e);
/* Free bytes in the file system of the store, for unprivileged use. */
int fs_free(struct engine *e, uint64_t *ret);
/* Makes the ballast file if it isn't there and there is room; releases it. */
void reserve_make(struct engine *e);
void reserve_release(struct engine *e);
int path_join(char *ret, size_t size, const char *dir, const char *name); /* -ENAMETOOLONG */
int remove_tree(int dir_fd, const char *name); /* a folder of files, or nothing there */
int folder_used(struct engine *e);            /* 1: there is more than a lock file, 0 or -errno */
int wipe_half_made(struct engine *e);
int sync_parent(int dir_fd); /* the entry of a new folder is durable */

/* ---- index.c: the only file that knows RocksDB ---- */

int index_open(struct engine *e, bool create, const struct errmsg *m);
bool index_was_used(void); /* by this process, ever */
/* Without a flush: what is not flushed stays in the log. */
void index_close(struct engine *e);
/* LSN of the last transaction in the index; 0 when there is none. */
int index_applied(struct engine *e, uint64_t *ret_lsn);
/* Seals what is in memory and starts to write it out: later batches are not part of that. */
int index_flush_start(struct engine *e);
/* 1 when the sealed part is on disk, 0 not yet, -ENOSPC (see index_reopen), -EIO. */
int index_flush_poll(struct engine *e);
/*
 * After -ENOSPC from any of these the index takes no changes; what it has can be read. With nobody who commits, and the
 * log durable up to `last`: opens it again and brings it there. -EAGAIN: someone is reading, try again soon. After
 * another error reading fails too (EIO) until a later call succeeds.
 */
int index_reopen(struct engine *e, uint64_t last);
/* A copy of what is flushed in a new folder, its files linked where possible. */
int index_snapshot_to(struct engine *e, const char *path);
uint64_t index_file_bytes(struct engine *e);
/* A key for people, other bytes as \\xx. */
void key_text(const void *key, size_t len, char *ret, size_t size);
void index_stats(struct engine *e, pst_stat_fn fn, void *user);

/* The puts and deletes of one transaction. */
struct idx_batch;
struct idx_batch *idx_batch_new(void);
void idx_batch_free(struct idx_batch *b); /* accepts NULL */
void idx_batch_put(struct idx_batch *b, const struct key *k, const void *value, size_t len);
void idx_batch_del(struct idx_batch *b, const struct key *k);
int idx_batch_count(struct idx_batch *b);
/* Puts the applied LSN, and gives the bytes for the log, owned by b. */
const void *idx_batch_seal(struct idx_batch *b, uint64_t lsn, size_t *ret_len);
int idx_batch_apply(struct engine *e, struct idx_batch *b);
/* Applies the bytes of a sealed batch. */
int index_replay(struct engine *e, const void *p, size_t len);
/* What a sealed batch puts. */
typedef void (*idx_put_fn)(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen);
void idx_each_put(const void *p, size_t len, idx_put_fn fn, void *user);

/* ---- log.c, replay.c: log segments ---- */

/* A record lies in memory as in the file; wal_append fills in the fields that are known only then. */
#define WAL_RECORD_HEADER 56
#define WAL_RECORD_MAX    (TXN_MAX + TXN_MAX / 2)

int wal_open(struct engine *e, const struct errmsg *m);
void wal_close(struct engine *e);
/* Adds a record to a queue in memory. */
int wal_queue(struct wbuf *q, uint64_t lsn, const void *payload, size_t len);
/*
 * Writes the queue's records; durable on return. *durable is the LSN known to be durable before. One caller at a time.
 * An empty queue writes a mark: "durable up to here". -ENOSPC: the queue has what was not written, *durable says up to
 * where it was, and the call can be repeated.
 */
int wal_append(struct engine *e, struct wbuf *q, uint64_t *durable);
/* Where the next record goes. Same caller as wal_append. */
void wal_position(struct engine *e, uint64_t *ret_seq, uint64_t *ret_off);
/* Records up to lsn are not needed any more. Any thread. Also has a free segment ready for the next. */
void wal_trim(struct engine *e, uint64_t lsn);
/*
 * Applies the records after `applied` in order; *ret_last: the last one. -EBADMSG: damage in the middle, -ESTALE: the
 * index is older than the log.
 */
int wal_replay(struct engine *e, uint64_t applied, uint64_t *ret_last, const struct errmsg *m);
/* Bytes in segment files. */
uint64_t wal_bytes(struct engine *e);

/* ---- recent.c: what is committed and not yet in the log, for the next process ---- */

/* After the log: *last goes up by the records that the process before left. Before sync_open. */
int recent_replay(struct engine *e, bool made, uint64_t *last, const struct errmsg *m);
/* A new file for this process; before the first commit. Without room the store works without, and says so. */
int recent_start(struct engine *e);
void recent_close(struct engine *e, bool clean); /* accepts a store that has none */
/* Any thread, after a failure: what is not durable may name blocks that are not there. */
void recent_drop(struct engine *e);
/* Nothing that was committed before this open is lost since the namespace was last closed. */
bool recent_complete(struct engine *e);
/* A new history is committed: clients are told of what is lost. */
void recent_renewed(struct engine *e);
/* These three under the commit mutex. */
bool recent_full(struct engine *e); /* a pass first */
void recent_add(struct engine *e, uint64_t lsn, const void *payload, size_t len);
void recent_turn(struct engine *e); /* a pass has taken all that was added */
/*
 * Are the blocks on disk that these bytes of a sealed batch name, and that the index does not have yet?
 * (recent_blocks.c)
 */
bool recent_blocks_there(struct engine *e, const void *p, size_t len);

/* ---- witness.c: how far this process came, in memory that outlives it and that no disk holds ---- */

struct witness;
/* What the process before left for this store: 1, its run and its last LSN; 0: nothing is known. */
int witness_read(struct engine *e, uint64_t *ret_run, uint64_t *ret_last);
struct witness *witness_start(struct engine *e, uint64_t last); /* NULL: there is none; of this run */
void witness_set(struct witness *w, uint64_t last);             /* accepts NULL; under the commit mutex */
void witness_close(struct witness *w);                          /* accepts NULL; it stays for the next process */
void witness_remove(struct engine *e);

/* ---- sync.c: commit order, group commit, checkpoints ---- */

/* State only; last: LSN of the last record in the log, which is durable. */
int sync_open(struct engine *e, uint64_t last);
int sync_start(struct engine *e); /* the threads */
void sync_stop(struct engine *e);  /* ends them; what is committed is durable then, unless the store failed */
void sync_close(struct engine *e); /* frees the state; accepts a store that has none */
/* Logs and applies; the freed extents follow the commit. Takes *freed over on success. */
struct freed;
int sync_commit(struct engine *e, struct idx_batch *b, struct freed **freed, bool reserved, uint64_t *ret_lsn);
uint64_t sync_durable(struct engine *e);
int sync_checkpoint(struct engine *e);
/* fn is called between this checkpoint and the next: the index's files have exactly e->super.log_lsn. */
int sync_checkpoint_with(struct engine *e, int (*fn)(struct engine *e, void *user), void *user);
/* The store goes read-only; err is logged once. */
void sync_fail(struct engine *e, const char *what, int err);
/* No space for log or index: changes are refused (ENOSPC) until there is some. */
bool sync_full(struct engine *e);
void sync_stats(struct engine *e, pst_stat_fn fn, void *user);

/* ---- copy.c: copies of files, the second copy of the index ---- */

#define COPY_NONE UINT64_MAX /* super.copy_lsn: no copy, the index cannot be made anew */

int copy_range(int from, int to, uint64_t offset, uint64_t n, void *buf, size_t buf_size);
/* File by file, flushed; `to` must not exist. Without the index library's lock and log files. */
int copy_folder(int from_dir, const char *from, int to_dir, const char *to);
/* The flushed index. Only between checkpoints (sync_checkpoint_with). */
int copy_index_to(struct engine *e, int to_dir, const char *to);
/* At a checkpoint: makes index.copy anew if it is time. Returns the LSN of the copy there is then. */
uint64_t copy_refresh(struct engine *e, uint64_t lsn);
/* Before the index is opened: puts the copy in its place. *ret_empty: an empty one, to be created. */
int index_rebuild(struct engine *e, bool *ret_empty, const struct errmsg *m);
/* After replay and a checkpoint. */
void index_rebuilt(struct engine *e);

/* ---- apart.c: work on files that may be damaged, in a child process ---- */

#define APART_TEXT 1024 /* bytes in a message, less than */
void apart_tell(int fd, char kind, const void *p, size_t n); /* in the child */
/*
 * Runs `work` in a child and `take` here for each of its messages, until that returns true. 0: it did. 1: the child
 * ended otherwise, *ret_status as from waitpid(2) (0: not known). -errno: there was none. Only in a process that has
 * not used the index library (index_was_used): its threads do not come along.
 */
int apart_run(void (*work)(int fd, void *user), bool (*take)(void *user, char kind, const char *text, uint32_t len),
              void *user, int *ret_status);
/* How it ended, for people: -ENOMEM when it was killed, else -EIO. */
int apart_died(int status, const struct errmsg *m, const char *what);

/* ---- verify.c: the whole index, after an unclean stop. Damage is counted and logged, what is whole is served. ---- */

int verify_index_apart(struct engine *e, const struct errmsg *m); /* before the index is opened */
int verify_index_here(struct engine *e);                          /* after */

/* ---- alloc.c ---- */

struct extent {
    uint64_t block;
    uint32_t n;
};
/* Freed by one transaction: waits until nobody needs the blocks. */
struct freed {
    struct list link;
    uint64_t lsn, epoch;
    uint32_t n, cap;
    struct extent ext[];
};
int alloc_open(struct engine *e);
void alloc_close(struct engine *e);
/* Marks what all chunk records name. */
int alloc_scan(struct engine *e, const struct errmsg *m);
/* Takes f over: committed with f->lsn. In order of LSN. */
void alloc_freed(struct engine *e, struct freed *f);
void alloc_stats(struct engine *e, pst_stat_fn fn, void *user);
uint64_t alloc_file_blocks(struct engine *e);

/* ---- io.c ---- */

/* Chooses the table for e->opt.io. */
int io_choose(struct engine *e, const struct errmsg *m);
/* Buffered or direct: whether memory and offset are aligned for O_DIRECT, and it is not to be cached. */
bool io_aligned(const struct io_req *r);
/* Bytes the request asks for, or -EINVAL. */
int64_t io_length(const struct io_req *r);
/* Whole transfers on a file descriptor. 0 or -errno; a short read is -EIO. */
int pread_all(int fd, void *p, size_t n, uint64_t offset);
int pwrite_all(int fd, const void *p, size_t n, uint64_t offset);

#endif

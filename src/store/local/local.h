/*
 * The embedded engine: what its parts know of one another. docs/engine.md explains the whole.
 *
 *   namespace (pool.c cont.c dir.c inode.c xattr.c reply.c)   data path (chunk.c read.c write.c range.c queue.c)
 *                         \                                      /
 *                    txn (index.c txn.c)          io (io.c io_uring.c io_threads.c)   alloc.c
 *                         \                                      /
 *                     log (log.c), superblock and store folder (super.c), sync thread and checkpoints (sync.c)
 *
 * Order of durability, kept by sync.c: data blocks are flushed, then the log records that name them; the index is
 * flushed only after the log that covers it; log space is reused only after the index that covers it is flushed.
 */
#ifndef LOCAL_LOCAL_H
#define LOCAL_LOCAL_H

#include "base/buf.h"
#include "store/store.h"

#define LOG_COMPONENT "store"
#include "base/log.h"

struct engine; /* one opened store; starts with struct pst_store (engine.h) */

/* ---- the parts, joined at open and close (open.c) ---- */

/*
 * Called in this order at open, once the log is replayed, the bitmap of blocks is built and transactions may be
 * committed (not for a store opened read-only); in the reverse order at close, when transactions may still be
 * committed. Their state is e->data and e->ns (engine.h): set before the call returns, so that the deleter of ns_open
 * may use the data path. 0 or -errno: a failed open cleans up after itself and its close is not called. Both are
 * called for read-only stores too.
 */
int data_open(struct engine *e);
void data_close(struct engine *e);
struct ns;
/* Deletes orphans and starts the background deleter (not in a read-only store); ns_close stops it. */
int ns_open(struct engine *e);
void ns_close(struct engine *e, struct ns *ns);
/* Their share of pst_store_ops.stats. */
void ns_stats(struct engine *e, pst_stat_fn fn, void *user);
void data_stats(struct engine *e, pst_stat_fn fn, void *user);

/*
 * Offline check: both walk their keys and call check_problem once per finding. 0 when the walk got to its end, or
 * -errno. The blocks that chunk records name are compared by the caller.
 */
struct check;
void check_problem(struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Whether findings may be repaired where nothing is lost by it. */
bool check_repairs(const struct check *c);
int ns_check(struct engine *e, struct check *c);
int data_check(struct engine *e, struct check *c);

/*
 * The extents a chunk record (value of a KEY_CHUNK key) names, for the bitmap at open (chunk.c). Stops at fn's first
 * non-zero return and returns it; -EIO for a value that is not a chunk record.
 */
int chunk_for_each_extent(const void *value, size_t len, int (*fn)(void *user, uint64_t block, uint32_t nblocks),
                          void *user);

/* The table of the engine (ops.c), and the entries that the substrate has for it. */
extern const struct pst_store_ops local_ops;
void local_close(struct pst_store *st);
void local_stats(struct pst_store *st, pst_stat_fn fn, void *user);
void local_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user);
int local_backup(struct pst_store *st, const char *dir);
uint64_t local_history(struct pst_store *st);

/* ---- index: keys to values, ordered by key bytes; every read is verified (index.c) ---- */

#define KEY_MAX 320 /* bytes: the longest key is a name or an xattr name with its prefix */

/* Key spaces: the first byte. Integers in keys are big-endian, so that order is numeric. */
enum key_space {
    KEY_SYSTEM = 'S',  /* S name: counters, applied LSN */
    KEY_POOL = 'P',    /* P label */
    KEY_CONT = 'N',    /* N pool-label NUL label */
    KEY_CONT_ID = 'n', /* n cont: pool and label */
    KEY_INODE = 'I',   /* I cont ino */
    KEY_DIRENT = 'D',  /* D cont dir-ino name: ino, type, cookie */
    KEY_COOKIE = 'd',  /* d cont dir-ino cookie: name */
    KEY_XATTR = 'X',   /* X cont ino name */
    KEY_CHUNK = 'C',   /* C cont ino chunk-number */
    KEY_ORPHAN = 'O',  /* O cont ino: without names, kept while open, deleted at the next start otherwise */
    KEY_GARBAGE = 'G', /* G cont ino: chunks are being deleted in the background */
    KEY_REPLY = 'R',   /* R client slot */
    KEY_USAGE = 'U',   /* U cont: bytes and objects in use */
    KEY_CONT_GC = 'g', /* g cont: the container was destroyed, its keys are being deleted in the background */
};

struct key {
    uint16_t len;
    uint8_t b[KEY_MAX];
};
struct key key_begin(enum key_space space);
void key_u8(struct key *k, uint8_t v);
void key_u32(struct key *k, uint32_t v);
void key_u64(struct key *k, uint64_t v);
void key_bytes(struct key *k, const void *p, size_t n);

/* A point in time of the index, for listings and scans; NULL where one is taken means now. */
struct idx_snap;
struct idx_snap *idx_snap_new(struct engine *e);
void idx_snap_free(struct engine *e, struct idx_snap *s);

/* Appends the value to `ret` (cleared first). 0, -ENOENT, -EIO (damaged; counted and logged with the key). */
int idx_get(struct engine *e, const struct idx_snap *s, const struct key *k, struct wbuf *ret);

/* All keys with this prefix, from `from` on (NULL: the first). One owner thread. */
struct idx_iter;
struct idx_iter *idx_iter_new(struct engine *e, const struct idx_snap *s, const struct key *prefix,
                              const struct key *from);
/* 1 when positioned on an entry (first call: the first entry), 0 at the end, -EIO when damaged. */
int idx_iter_next(struct idx_iter *it);
/*
 * Inside the iterator until the next call. The key is NULL when the iterator is at no entry (the end, or -EIO there).
 */
const uint8_t *idx_iter_key(const struct idx_iter *it, size_t *ret_len);
const uint8_t *idx_iter_value(const struct idx_iter *it, size_t *ret_len);
void idx_iter_free(struct idx_iter *it);
/*
 * For checks: fn for each whole entry with this prefix. Damaged ones are counted and logged, and passed over; a table
 * file that cannot be read ends the walk. 0, -ENOMEM, or the first non-zero result of fn. fn may be NULL.
 */
typedef int (*idx_entry_fn)(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen);
int idx_each_whole(struct engine *e, const struct key *prefix, idx_entry_fn fn, void *user);

/* ---- transactions: a set of puts and deletes that happens whole or not at all (txn.c) ---- */

#define TXN_MAX (1 * MiB) /* bytes of keys and values in one transaction: -E2BIG from txn_commit past that */

struct txn;
struct txn *txn_new(struct engine *e); /* NULL: no memory */
void txn_put(struct txn *t, const struct key *k, const void *value, size_t len);
void txn_del(struct txn *t, const struct key *k);
/*
 * Space changes with the transaction: a freed extent becomes free once the commit is durable and no read that began
 * before the commit is under way; a claimed one (alloc_claim) is settled, or given back if the transaction is dropped.
 */
void txn_free_extent(struct txn *t, uint64_t block, uint32_t nblocks);
void txn_claimed_extent(struct txn *t, uint64_t block, uint32_t nblocks);
/*
 * Appends one log record and applies it to the index: visible to everyone on return, not durable. Frees t in every
 * case. ret_lsn (may be NULL): for eng_sync. The caller holds the locks of what it read and changes.
 * -ENOSPC: the log or index reserve is gone (freeing transactions use txn_set_reserved), -EIO: the store is read-only
 * after an I/O error, -EROFS.
 */
int txn_commit(struct txn *t, uint64_t *ret_lsn);
/* This transaction gives space back (unlink, truncate, destroy): it may use the reserve. */
void txn_set_reserved(struct txn *t);
void txn_drop(struct txn *t); /* accepts NULL */
/* The first error of whoever fills the transaction: txn_commit returns it. */
void txn_fail(struct txn *t, int err);
struct engine *txn_engine(struct txn *t);

/*
 * What the namespace keeps in memory and must move with a commit: usage, cached inodes (ns.h). A transaction has one
 * pointer for it, NULL at first. If it is set, txn_commit calls ns_txn_begin before it builds the record (more keys may
 * be put there; an error fails the commit), and ns_txn_end once the record is applied, or the commit failed; txn_drop
 * calls ns_txn_end alone. begin takes a lock that end releases: usage records are in the order of the log.
 */
struct ns_txn;
struct ns_txn **txn_ns(struct txn *t);
int ns_txn_begin(struct txn *t, struct ns_txn *n);
void ns_txn_end(struct txn *t, struct ns_txn *n, bool committed); /* frees n */

/* ---- durability (sync.c) ---- */

/* Waits until everything up to lsn is durable (group commit). 0, -EIO. */
int eng_sync(struct engine *e, uint64_t lsn);
/* The same, later: fn is called once, from the sync thread, with 0 or -EIO. */
struct sync_wait {
    struct list link;
    uint64_t lsn;
    void (*fn)(struct sync_wait *w, int err);
};
void eng_sync_async(struct engine *e, struct sync_wait *w); /* fn must not wait for a lock that is held over eng_sync */
uint64_t eng_last_lsn(struct engine *e);
/*
 * Blocks of the data file were written (the I/O has come back): called before txn_commit of the transaction that names
 * them, so that sync.c flushes the file before that record.
 */
void eng_data_written(struct engine *e);
/* -EIO after an I/O error made the store read-only, -EROFS when it was opened so, else 0. */
int eng_writable(struct engine *e);

/* ---- locks ---- */

/*
 * Namespace changes of a store are made under one lock (they never wait for the disk); an inode record is changed under
 * its stripe. Order: namespace lock, then stripes in ascending stripe order (eng_lock_inodes sorts), then nothing else.
 */
void eng_lock_ns(struct engine *e);
void eng_unlock_ns(struct engine *e);
void eng_lock_inode(struct engine *e, uint64_t cont, uint64_t ino);
void eng_unlock_inode(struct engine *e, uint64_t cont, uint64_t ino);
/* The stripes of up to 8 inodes of a container, each once; unlock with the same list. */
void eng_lock_inodes(struct engine *e, uint64_t cont, const uint64_t *inos, int n);
void eng_unlock_inodes(struct engine *e, uint64_t cont, const uint64_t *inos, int n);

/* ---- space (alloc.c): blocks of PST_BLOCK bytes in the data file ---- */

/*
 * Claims up to `want` blocks in one run; fewer when space is scattered (call again). Returns the number, >= 1, or
 * -ENOSPC. Free blocks that a running transaction or read still needs are not handed out.
 */
int64_t alloc_claim(struct engine *e, uint32_t want, uint64_t *ret_block);
/* Gives back what was claimed and not put into a transaction. */
void alloc_unclaim(struct engine *e, uint64_t block, uint32_t nblocks);
/* At open and in check: marks what the chunk records name. -EEXIST if some of it is marked already. */
int alloc_mark(struct engine *e, uint64_t block, uint32_t nblocks);
/* Free bytes that can still be claimed, and the total. */
void alloc_space(struct engine *e, uint64_t *ret_free, uint64_t *ret_total);
/*
 * Readers: blocks that are named by the index at the time of alloc_read_begin are not reused before the matching
 * alloc_read_end. Returns a ticket.
 */
uint64_t alloc_read_begin(struct engine *e);
void alloc_read_end(struct engine *e, uint64_t ticket);

/* ---- disk I/O (io.h is a table of its own) ---- */

struct io;
/* A context on the data file for one thread; depth: requests in flight at most. Closed by io->ops->close. */
int eng_io_open(struct engine *e, uint32_t depth, struct io **ret);

/* ---- inodes (inode.c) ---- */

struct inode {
    struct pst_attr a;
    uint64_t parent;      /* directories: for ".." */
    uint64_t entries;     /* directories: number of names, without "." and ".." */
    uint64_t next_cookie; /* directories */
    uint64_t digest;      /* directories: sum over the entries of a hash of each, so that a lost entry is noticed */
    uint32_t xattrs;      /* number of extended attributes */
    char *target;         /* symbolic links: owned; NULL otherwise */
};
/* 0, -ENOENT, -EIO. Cached; the copy in ret is the caller's (inode_done). */
int inode_get(struct engine *e, uint64_t cont, uint64_t ino, struct inode *ret);
/* Puts the record into the transaction. The caller holds the inode's lock from inode_get until after txn_commit. */
void inode_put(struct txn *t, uint64_t cont, const struct inode *i);
void inode_done(struct inode *i);
/* The codec, for check and scrub: 0, -EBADMSG (a field is out of its range), -ENOMEM. */
int inode_decode(uint64_t ino, const void *p, size_t n, struct inode *ret);
struct key inode_key(uint64_t cont, uint64_t ino);
/* Adds to the container's (and pool's) usage within the transaction. Negative: gives back. -EDQUOT over a quota. */
int usage_add(struct txn *t, uint64_t cont, int64_t bytes, int64_t objects);

/* Reply records (reply.c): 1 and the recorded reply, 0 when the request is new, -ESTALE when it is older than that. */
int reply_find(struct engine *e, const struct pst_reqid *id, struct wbuf *ret_reply);
/* Puts the record of this request into the transaction that has its effect. Nothing when id->seq is 0. */
void reply_put(struct txn *t, const struct pst_reqid *id, const void *reply, size_t len);

/* ---- data path (chunk.c and on) ---- */

/*
 * setattr of the size, within a transaction that the caller commits with the inode record: frees blocks past the end,
 * zeroes the rest of the last block (a new block), adjusts i->a.size and i->a.used and the usage. Blocks: does I/O.
 * Large files: whole chunks past the end are handed to the background deleter. The caller holds the inode lock.
 */
int data_truncate(struct txn *t, struct engine *e, uint64_t cont, struct inode *i, uint64_t size);
/* The object's last name is gone and nobody has it open: puts it on the list of the background deleter. */
void data_delete(struct txn *t, uint64_t cont, const struct inode *i);
/* Deletes up to `max` chunks from that list; returns how many, 0 when there is none, or -errno. */
int data_collect(struct engine *e, int max);

/* Queues: the table entries of pst_store_ops (queue.c). */
int data_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret);
void data_queue_close(struct pst_queue *q);
int data_queue_submit(struct pst_queue *q, struct pst_op *op);
int data_read_now(struct pst_op *op);
void data_now_close(struct engine *e);
int data_queue_reap(struct pst_queue *q, struct pst_op **ret_ops, int max, uint64_t timeout_ns);
int data_queue_fd(struct pst_queue *q);
int64_t data_scrub(struct pst_store *st,
                   void (*report)(void *, const char *, const char *, uint64_t, uint64_t, uint64_t), void *user,
                   const volatile bool *cancel);

#endif

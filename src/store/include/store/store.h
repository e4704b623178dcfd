/*
 * The store interface: one table of operations that the engines (local, remote, ...) and every filter implement.
 * Callers use the pst_store_* functions; they check arguments once (names, sizes, flags) and call the table.
 *
 * Two kinds of operations:
 *   - administration and namespace: synchronous; may wait for a lock, a disk read or a remote call. Any thread.
 *   - data: asynchronous, through a queue that one thread owns (struct pst_queue).
 * Durability (contract 7): namespace operations are visible at once to everyone and survive a crash as an ordered
 * prefix; they are durable once a PST_OP_FSYNC / PST_OP_SYNCFS that was submitted after their return completes, or
 * PST_SYNC_INTERVAL_NS later.
 * Errors: 0 or a count, or -errno. Outputs are untouched on error.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "store/types.h"

#include <sys/socket.h>

#define PST_SYNC_INTERVAL_NS (5 * NSEC_PER_SEC)

struct pst_store_ops;

/* Embedded at the start of each implementation's own struct. */
struct pst_store {
    const struct pst_store_ops *ops;
    struct pst_store *next; /* filters: the store below; else NULL */
};

/* An open container; embedded likewise. Counted: every open is paired with a close. */
struct pst_cont {
    struct pst_store *store;
    struct pst_cont *next; /* filters: the container below */
    struct pst_cont_info info; /* as of the open: identity and properties, not the space */
};

enum pst_op_kind {
    PST_OP_READ,          /* iov <- [offset, offset + length); result: bytes, short at the end of the file */
    PST_OP_WRITE,         /* iov -> [offset, ...); with PST_OPF_APPEND at the end: op->offset tells where */
    PST_OP_PUNCH,         /* [offset, offset + length) reads as zero, its whole blocks are freed; size is kept, and what
                             was reserved outside of the range */
    PST_OP_ALLOCATE,      /* reserve space for the range: later writes in it do not meet -ENOSPC; PST_OPF_KEEP_SIZE */
    PST_OP_SEEK_DATA,     /* result: offset of the next data at or after offset, -ENXIO past the end */
    PST_OP_SEEK_HOLE,     /* result: offset of the next hole (the end of the file counts) */
    PST_OP_FSYNC,         /* the object's data and attributes, and all namespace operations before it, are durable */
    PST_OP_SYNCFS,        /* everything in the container */
    PST_OP_CHUNK_READ,    /* chunk number offset, whole: iov, version, meta, and the object's attr (size and change at
                             least) as of then or shortly before: while change stays, all belongs together; result:
                             bytes of the chunk in use (a store may say less if the iov is shorter) */
    /*
     * A chunk that has meta data is in the form of a filter above. READ, and what changes a part of a chunk, a size
     * within it too, fail on it with -ENOTSUP: they mean the bytes in another form.
     */
    PST_OP_CHUNK_REPLACE, /* chunk number offset := iov (length <= chunk size, not past the end that the file has then:
                             -EINVAL), meta, if the version matches */
    PST_OP_ATTR,          /* the object's attr, size, used, change and mtime, as of a moment while it was under way */
    PST_OP_KINDS,
};

#define PST_OPF_APPEND    1u
/* WRITE, CHUNK_REPLACE: complete only when durable, and what was before it too: as a PST_OP_FSYNC right after it */
#define PST_OPF_DSYNC 2u
#define PST_OPF_KEEP_SIZE 4u /* ALLOCATE: do not extend the file */
/* CHUNK_REPLACE: the file's size becomes op->new_size at least */
#define PST_OPF_GROW 8u
/* CHUNK_REPLACE: the file's size becomes op->new_size, also smaller */
#define PST_OPF_SET_SIZE 16u
/*
 * CHUNK_REPLACE: op->version is not the chunk's but what the object's change counter has to be, as a CHUNK_READ showed
 * it: nothing else of the object changed either, its size included
 */
#define PST_OPF_IF_UNCHANGED 32u
/*
 * WRITE, PUNCH, ALLOCATE, CHUNK_REPLACE: in the same step the object loses its set-id bits (pst_perm_setid), as POSIX
 * wants it of a write by who has not the privilege to keep them (on Linux CAP_FSETID). Who submits knows that, the
 * store does not.
 */
#define PST_OPF_KILL_SETID 64u

/* CHUNK_REPLACE: no condition. A chunk that was never written has version 0. */
#define PST_VERSION_ANY UINT64_MAX

/* The memory of an operation where the store reaches it over a connection of a third party. The submitter's. */
#define PST_FAR_SEGS 3u
struct pst_far {
    uint64_t number, epoch; /* as pst_store_third gave them */
    uint64_t tag;           /* of the party */
    uint32_t nsegs;
    struct pst_far_seg {
        uint64_t addr, key;
        uint32_t len;
    } seg[PST_FAR_SEGS]; /* in all op->length */
    bool settled; /* out: the store does not reach for the memory (any more); else it may, though the operation has
                     failed */
};

/*
 * One data operation: an object that is on exactly one list at a time. The submitter owns it again, and may touch its
 * memory (iov included), only once it came back from pst_queue_reap. There is no way to take a submitted operation
 * back: pst_queue_close drains.
 */
struct pst_op {
    struct list link; /* for whoever owns the operation */
    /* in */
    enum pst_op_kind kind;
    uint32_t flags;
    struct pst_cont *cont;
    uint64_t ino;
    uint64_t offset; /* bytes, or a chunk number; out: where an append went */
    uint64_t length; /* bytes, <= PST_IO_MAX for READ and WRITE; equal to the sum of iov */
    const struct iovec *iov; /* borrowed until the operation comes back; memory aligned to PST_BLOCK is fastest */
    uint32_t iovcnt;
    struct pst_far *far; /* NULL; else there is no iov: pst_store_third */
    /*
     * Rights were checked at open, or are in the capability: cred is whom that was granted to, or NULL. Looked at where
     * another server judges users, and the object is not open there (until the operation comes back).
     */
    struct pst_ctx ctx;
    /* CHUNK_*: in: the expected version; out: the version that is there now */
    uint64_t version;
    uint64_t new_size;
    uint32_t meta_len; /* <= PST_META_MAX; in and out */
    uint8_t meta[PST_META_MAX];
    /* out */
    int64_t result; /* >= 0 or -errno */
    struct pst_attr attr; /* after WRITE, PUNCH, ALLOCATE, CHUNK_*, ATTR: size, used, change, mtime as of then */
    void *user; /* the submitter's */
    void *priv; /* the implementation's, while submitted */
};

/* Owned by one thread at a time: submit and reap are never called concurrently on one queue. */
struct pst_queue {
    struct pst_store *store;
};

/* Called once per entry. A non-zero return ends the listing after this entry. */
typedef int (*pst_dirent_fn)(const struct pst_dirent *de, void *user);
/* A counter or gauge, for status and Prometheus: name in snake case, labels as `k="v",...` or "", help in a line. */
typedef void (*pst_stat_fn)(void *user, const char *name, const char *labels, const char *help, bool counter,
                            double value);

/* What a third party needs to connect to the engine behind a store. */
#define PST_THIRD_TICKET 48u
struct pst_third {
    char provider[32], text[80]; /* text: the address for people */
    struct sockaddr_storage addr;
    socklen_t addr_len;
    uint8_t ticket[PST_THIRD_TICKET];
    uint32_t ticket_len, ticket_ms;
    uint8_t key[32]; /* of the messages on the connection */
    uint64_t number, epoch;
};

struct pst_store_ops {
    const char *name; /* of the engine or filter, for status */

    void (*close)(struct pst_store *st); /* durable; all containers and queues are closed before */

    int (*pool_create)(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                       struct pst_pool_info *ret);
    int (*pool_query)(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, struct pst_pool_info *ret);
    /* Labels in order, those greater than `after`; fn may end it. */
    int (*pool_list)(struct pst_store *st, const struct pst_ctx *ctx, const char *after,
                     int (*fn)(const struct pst_pool_info *, void *), void *user);
    /* -ENOTEMPTY while it has containers and force is false. */
    int (*pool_destroy)(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force);
    int (*cont_create)(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                       const struct pst_cont_props *props, struct pst_cont_info *ret);
    int (*cont_query)(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                      struct pst_cont_info *ret);
    int (*cont_list)(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *after,
                     int (*fn)(const struct pst_cont_info *, void *), void *user);
    /* -EBUSY while it is open. Space comes back in the background. */
    int (*cont_destroy)(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label);
    int (*cont_open)(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                     struct pst_cont **ret);
    void (*cont_close)(struct pst_cont *c);

    int (*lookup)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  struct pst_attr *ret);
    int (*getattr)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret);
    int (*setattr)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                   const struct pst_attr *in, struct pst_attr *ret);
    /* Create, mkdir, symlink, mknod. ret_created may be NULL. */
    int (*make)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                const struct pst_new *in, struct pst_attr *ret, bool *ret_created);
    /* size includes the NUL: PST_SYMLINK_MAX + 1 always fits. Returns the length. */
    int (*readlink)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_target, size_t size);
    int (*link)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
                struct pst_attr *ret);
    /* An object without names lives on while it is open (open below). */
    int (*unlink)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name);
    int (*rmdir)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name);
    int (*rename)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  uint64_t new_parent, const char *new_name, uint32_t flags);
    /* Entries with cookies > `cookie` (0: from the start), without "." and "..". 0 at the end. */
    int (*readdir)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                   pst_dirent_fn fn, void *user);
    /* The directory's parent (the root's is the root): for "..". */
    int (*parent)(struct pst_cont *c, uint64_t ino, uint64_t *ret_parent);
    int (*statfs)(struct pst_cont *c, struct pst_statfs *ret);
    int (*setxattr)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name, const void *value,
                    size_t len, uint32_t flags);
    /* Length; size 0 asks for it; -ERANGE if it does not fit. list: names, each with its NUL. */
    int64_t (*getxattr)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                        void *ret_value, size_t size);
    int64_t (*listxattr)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size);
    int (*removexattr)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name);
    /*
     * Checks the rights (accmode: R_OK, W_OK bits; 0 for directories and path-only) and keeps the object until
     * release, even when its last name goes. Counted. trunc: size := 0 in the same step.
     */
    int (*open)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                struct pst_attr *ret);
    void (*release)(struct pst_cont *c, uint64_t ino);

    /* depth: operations in flight at most. */
    int (*queue_open)(struct pst_store *st, uint32_t depth, struct pst_queue **ret);
    /* Every submitted operation has come back before. */
    void (*queue_close)(struct pst_queue *q);
    /* 0: the queue has it; it comes back from reap, also when it fails. -EAGAIN: full, reap first. */
    int (*queue_submit)(struct pst_queue *q, struct pst_op *op);
    /*
     * Up to max operations that are done. timeout_ns: 0 polls, UINT64_MAX waits for at least one (returns 0 at once
     * when none is in flight). Drives the queue's I/O.
     */
    int (*queue_reap)(struct pst_queue *q, struct pst_op **ret_ops, int max, uint64_t timeout_ns);
    /* Readable (POLLIN) when reap would do something. Owned by the queue. */
    int (*queue_fd)(struct pst_queue *q);

    void (*stats)(struct pst_store *st, pst_stat_fn fn, void *user);
    /* "key: value" facts for status (engine, disk I/O, layout version); fn(user, key, value). */
    void (*describe)(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user);
    /*
     * Verifies all data while in use. report (may be NULL) is called for each damaged extent: container, object,
     * offset, length. Returns the number of damaged ones, or -errno. *cancel is looked at between objects.
     */
    int64_t (*scrub)(struct pst_store *st,
                     void (*report)(void *user, const char *pool, const char *cont, uint64_t ino, uint64_t offset,
                                    uint64_t length),
                     void *user, const volatile bool *cancel);
    /* A consistent copy of the store in a new folder on the same machine, while in use. */
    int (*backup)(struct pst_store *st, const char *dir);

    /* May be NULL: then pst_store_create does it in two steps, and pst_queue_cancel nothing. */
    int (*create)(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created);
    void (*queue_cancel)(struct pst_queue *q, struct pst_op *op);
    /* See pst_store_history. NULL: that of the store below, else 0. */
    uint64_t (*history)(struct pst_store *st);
    /* May be NULL: see pst_store_write. */
    int (*write)(struct pst_cont *c, uint64_t ino, uint64_t offset, const void *data, size_t len, uint32_t flags);
    /* May be NULL: see pst_store_read_now. */
    int (*read_now)(struct pst_op *op);
    /* May be NULL: see pst_store_origin_add. */
    int (*origin_add)(struct pst_store *st, const uint8_t client[16]);
    void (*origin_remove)(struct pst_store *st, const uint8_t client[16]);
    /* May be NULL: see pst_store_end_waits. */
    void (*end_waits)(struct pst_store *st);
    /* May be NULL: see pst_store_away. */
    bool (*away)(struct pst_store *st);
    /* It follows pst_ctx.walk itself; else pst_store_* resolve it, by its lookup. */
    bool walks;
    /*
     * The bytes of an operation may be in memory that others change meanwhile: they are moved, each once, and nothing
     * is decided by them. Of a filter: the store below has to be so as well. See pst_store_moves_only.
     */
    bool moves_only;
    /* Memory of export_memory_new serves this store better than private memory. May be NULL: no. */
    bool (*wants_shared)(const struct pst_store *st);
    bool passes_far; /* of a filter: operations with `far` may go through it: it looks at no byte, and at no iov */
    /* May be NULL: see pst_store_third. */
    int (*third)(struct pst_store *st, uint32_t spread, uint64_t owner, struct pst_third *ret);
    uint32_t (*queue_spread)(struct pst_queue *q);
};

/* ---- the calls, with arguments checked: see the table for what each does ---- */

void pst_store_close(struct pst_store *st);
/*
 * A number that is another one once completed changes that were not durable may have been lost (a crash); 0: not known.
 * Who has a change completed under one and an fsync under another does not know that it is durable.
 */
uint64_t pst_store_history(const struct pst_store *st);
/*
 * May iov be memory that a client shares? Otherwise the bytes are copied first: checksums, and filters, need them
 * still.
 */
bool pst_store_moves_only(const struct pst_store *st);
bool pst_store_wants_shared(const struct pst_store *st);
/*
 * The bytes of an operation need not come here: an engine on another machine moves them itself, from or to the memory
 * of a third party that is connected to it (struct pst_far). May that be, as far as this process is concerned?
 */
bool pst_store_takes_far(const struct pst_store *st);
/*
 * A way for a third party to connect; used for operations of queues with this spread (pst_queue_spread). owner: which
 * party it is. Waits for the engine. -EOPNOTSUPP, -EAGAIN: not now.
 */
int pst_store_third(struct pst_store *st, uint32_t spread, uint64_t owner, struct pst_third *ret);

/*
 * Before the first operation with a client's request ids, and after the last: for an engine on another machine, which
 * has to know them there, and passes them on. May wait; what is under way for the client over other ways is over after
 * it. Counted.
 */
int pst_store_origin_add(struct pst_store *st, const uint8_t client[16]);
void pst_store_origin_remove(struct pst_store *st, const uint8_t client[16]);
/*
 * The store is to be closed, and nobody has time: what waits for an engine on another machine, and all that is asked of
 * it from now on, fails with -ESHUTDOWN (or, in a filter, by it). What was sent may still happen there: whoever made
 * such a request must not be told that it has failed. Any thread, beside all others; does not wait.
 */
void pst_store_end_waits(struct pst_store *st);
/* The engine is on another machine, and there is no connection now: a call would wait. Any thread. */
bool pst_store_away(struct pst_store *st);

int pst_pool_create(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                    struct pst_pool_info *ret);
int pst_pool_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, struct pst_pool_info *ret);
int pst_pool_list(struct pst_store *st, const struct pst_ctx *ctx, const char *after,
                  int (*fn)(const struct pst_pool_info *, void *), void *user);
int pst_pool_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force);
int pst_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                    const struct pst_cont_props *props, struct pst_cont_info *ret);
int pst_cont_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                   struct pst_cont_info *ret);
int pst_cont_list(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *after,
                  int (*fn)(const struct pst_cont_info *, void *), void *user);
int pst_cont_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label);
int pst_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                  struct pst_cont **ret);
void pst_cont_close(struct pst_cont *c);

int pst_store_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     struct pst_attr *ret);
int pst_store_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret);
int pst_store_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                      const struct pst_attr *in, struct pst_attr *ret);
int pst_store_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                   const struct pst_new *in, struct pst_attr *ret, bool *ret_created);
int pst_store_readlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_target, size_t size);
int pst_store_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
                   struct pst_attr *ret);
int pst_store_unlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name);
int pst_store_rmdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name);
int pst_store_rename(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     uint64_t new_parent, const char *new_name, uint32_t flags);
int pst_store_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                      pst_dirent_fn fn, void *user);
int pst_store_parent(struct pst_cont *c, uint64_t ino, uint64_t *ret_parent);
int pst_store_statfs(struct pst_cont *c, struct pst_statfs *ret);
int pst_store_setxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                       const void *value, size_t len, uint32_t flags);
int64_t pst_store_getxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                           void *ret_value, size_t size);
int64_t pst_store_listxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size);
int pst_store_removexattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name);
int pst_store_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                   struct pst_attr *ret);
void pst_store_release(struct pst_cont *c, uint64_t ino);
/*
 * make (of a regular file) and open in one call: what was created is opened whatever its mode says, as open(2) does. On
 * failure nothing is open, but the file may have been created.
 */
int pst_store_create(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created);

/*
 * At most PST_SMALL_MAX bytes of an object that is open for writing, all or nothing, without a queue: for stores that
 * have a shorter way for a small file than their queues (-EOPNOTSUPP from the others). flags: PST_OPF_DSYNC,
 * PST_OPF_KILL_SETID.
 */
int pst_store_write(struct pst_cont *c, uint64_t ino, uint64_t offset, const void *data, size_t len, uint32_t flags);

/*
 * A PST_OP_READ in the caller's thread, if nothing has to be waited for: 0, and op->result as from a queue; -EAGAIN: it
 * is to be submitted.
 */
int pst_store_read_now(struct pst_op *op);

int pst_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret);
void pst_queue_close(struct pst_queue *q);
uint32_t pst_queue_spread(struct pst_queue *q); /* does not change; 0 where it means nothing */
int pst_queue_submit(struct pst_queue *q, struct pst_op *op);
int pst_queue_reap(struct pst_queue *q, struct pst_op **ret_ops, int max, uint64_t timeout_ns);
int pst_queue_fd(struct pst_queue *q);
/*
 * Asks for an early return of an operation that is in the queue. It comes back from reap in every case: soon, with
 * -ECANCELED (a change may have happened or not), or with its result. Its memory is not touched after that.
 */
void pst_queue_cancel(struct pst_queue *q, struct pst_op *op);
/* Submits one operation on a queue without others in flight and waits for it: returns op->result. */
int64_t pst_queue_run(struct pst_queue *q, struct pst_op *op);

void pst_store_stats(struct pst_store *st, pst_stat_fn fn, void *user);
void pst_store_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user);
int64_t pst_store_scrub(struct pst_store *st,
                        void (*report)(void *user, const char *pool, const char *cont, uint64_t ino, uint64_t offset,
                                       uint64_t length),
                        void *user, const volatile bool *cancel);
int pst_store_backup(struct pst_store *st, const char *dir);

/* ---- registry: which engine a URL means ---- */

/* Key/value options an engine understands ("io=uring", ...); unknown keys are -EINVAL. */
struct pst_option {
    const char *key, *value;
};

struct pst_backend {
    const char *scheme; /* "local" for local:/dir, "penstock" for penstock://host:port */
    /* rest: the URL without its scheme and ':'. err: a line for people, err_size bytes. */
    int (*open)(const char *rest, const struct pst_option *opts, size_t nopts, struct pst_store **ret, char *err,
                size_t err_size);
};

/* A program registers the engines that it offers at its start, before any thread. At most 8; aborts past that. */
void pst_backend_register(const struct pst_backend *b);
/* -EPROTONOSUPPORT for an unknown scheme, with the known ones in err. */
int pst_backend_open(const char *url, const struct pst_option *opts, size_t nopts, struct pst_store **ret, char *err,
                     size_t err_size);

#endif

/*
 * What the parts of the namespace know of one another.
 *
 * Locks, in this order: namespace lock, inode stripes (local.h), then inside a commit ns->commit_lock; ns->table_lock,
 * ns->open_lock and the cache's locks are leaves, held for a few instructions.
 */
#ifndef LOCAL_NS_H
#define LOCAL_NS_H

#include "engine.h"

#include <string.h>
#include <sys/stat.h>

/* Limits, with the reason. */
#define NS_XATTRS_MAX     256u   /* attributes of an object: their names fit Linux's XATTR_LIST_MAX */
#define NS_CACHE_SHARDS   64u    /* locks of the inode cache */
#define NS_CACHE_ENTRIES  1024u  /* per shard: 64k inodes, about 16 MiB */
#define NS_CACHE_TARGET   128u   /* longer link targets are not cached: they would set the memory used */
#define NS_INO_RUN        (1u << 12) /* numbers that a container takes at once, see ino.c */
#define NS_INO_FLAG       (1ull << 62) /* of a number that is of a run */
#define NS_INO_RUNS       (1ull << 50) /* such runs there are */
#define NS_INO_WINDOW     (1u << 8)  /* runs that may be taken past the durable mark */
#define NS_REPLY_DAYS     7      /* reply records of clients unseen for longer are dropped */
#define NS_GC_BATCH       256    /* keys per transaction of the background deleter */
#define NS_READDIR_BATCH  128    /* entries read at once: no iterator is held while the caller works */

/* ---- containers and pools in memory (usage.c): the sums that quotas are judged by ---- */

struct ns_pool {
    struct list link; /* of ns->pools */
    char label[PST_LABEL_MAX + 1];
    uint8_t uuid[16];
    uint64_t quota;
    int64_t bytes, objects; /* committed */
    int64_t promised;       /* bytes that running transactions add */
    uint32_t containers;
};

struct ns_cont {
    struct list link; /* of ns->conts[] */
    uint64_t id;
    struct ns_pool *pool; /* NULL once the pool is destroyed */
    uint64_t quota;
    uint32_t chunk_size;
    int64_t bytes, objects, promised;
    uint32_t opens;
    uint32_t pins; /* transactions that name it */
    bool dead;     /* destroyed: its keys are being deleted */
    uint64_t ino_next; /* of the run of numbers that it uses; at a run's end: it takes another one. Namespace lock */
};

/* The counter of runs of numbers, as the index keeps it (ino.c). */
struct ino_mark {
    uint64_t next; /* no run from here on was ever taken */
    uint8_t key[16];
    bool clean; /* written by a close, not while runs are taken */
};

#define NS_CONT_BUCKETS 1024u
#define NS_OPEN_BUCKETS 4096u

struct ns_cache;

struct ns {
    struct engine *e;

    pthread_mutex_t commit_lock; /* from ns_txn_begin to ns_txn_end */
    pthread_mutex_t table_lock;  /* pools, conts and their sums */
    struct list pools;
    struct list conts[NS_CONT_BUCKETS];

    /* Under the namespace lock. */
    uint64_t history; /* pst_store_history */
    struct ino_mark ino;
    uint64_t ino_durable;

    struct ns_cache *cache;

    pthread_mutex_t open_lock;
    struct list opens[NS_OPEN_BUCKETS];
    uint64_t nopens;

    /* The background deleter (gc.c). */
    pthread_t gc_thread;
    pthread_mutex_t gc_work; /* one step at a time: tests take steps as well */
    pthread_mutex_t gc_lock;
    pthread_cond_t gc_cond;
    bool gc_started, gc_stop, gc_kicked;
    _Atomic uint64_t gc_busy; /* rounds that found work, for stats */
    uint64_t started_ns, pruned_ns;
};

static inline struct engine *engine_of_cont(const struct pst_cont *c)
{
    return engine_of(c->store);
}

/* Reads the records of pools and containers at open. 0 or -errno. */
int usage_load(struct ns *ns);
void usage_unload(struct ns *ns);
/* The container, or NULL. The caller keeps it from going: it is open, or the namespace lock is held. */
struct ns_cont *cont_find(struct ns *ns, uint64_t id);
struct ns_pool *pool_find(struct ns *ns, const char *label);
/* Adds an empty one. -ENOMEM. */
int pool_add(struct ns *ns, const struct pst_pool_info *info, struct ns_pool **ret);
/* Takes it out; its containers lose their pool. */
void pool_forget(struct ns *ns, struct ns_pool *p);
int cont_add(struct ns *ns, struct ns_pool *pool, const struct pst_cont_info *info, struct ns_cont **ret);
/* Takes it out and frees it, with what it still counts; no transaction names it (cont_idle). */
void cont_forget(struct ns *ns, struct ns_cont *c);
bool cont_idle(struct ns *ns, const struct ns_cont *c);
/* Keeps it from being idle, and lets it go. */
void cont_pin(struct ns *ns, struct ns_cont *c);
void cont_unpin(struct ns *ns, struct ns_cont *c);
struct key usage_key(uint64_t cont);
int usage_decode(const void *p, size_t n, int64_t *ret_bytes, int64_t *ret_objects);
void usage_encode(struct wbuf *w, int64_t bytes, int64_t objects);

/* ---- the namespace's part of a transaction (usage.c) ---- */

struct ns_change {
    uint64_t cont;
    bool gone;
    struct inode i; /* owned copy */
};

struct ns_txn {
    struct ns *ns;
    int err; /* -ENOMEM: the commit fails */
    bool locked;
    struct {
        struct ns_cont *c;
        int64_t bytes, objects, promised;
    } *usage;
    uint32_t nusage;
    struct ns_change *changes;
    uint32_t nchanges;
    /* Reply records to drop if they are still as old as they were when seen (gc.c). */
    struct key *stale;
    uint32_t nstale;
    uint32_t stale_before; /* day */
};
/* The transaction's, made when it is missing. NULL: no memory, or a store without a namespace (check). */
struct ns_txn *ns_txn_of(struct txn *t);

/* ---- inodes (inode.c) ---- */

void inode_encode(struct wbuf *w, const struct inode *i);
/* Deletes the record. */
void inode_del(struct txn *t, uint64_t cont, uint64_t ino);
void attr_encode(struct wbuf *w, const struct pst_attr *a);
void attr_decode(struct rbuf *r, struct pst_attr *ret);
/* Marks a change of attributes (TOUCH_C), of data or entries (TOUCH_M): times and the change counter. */
#define TOUCH_C 1
#define TOUCH_M 2
void inode_touch(struct inode *i, int64_t now, int what);
/* An owned copy; -ENOMEM. */
int inode_copy(const struct inode *i, struct inode *ret);

/* Inodes that an operation reads and changes, under their locks. */
#define HELD_MAX 5
struct held {
    struct engine *e;
    uint64_t cont;
    uint64_t inos[HELD_MAX];
    struct inode i[HELD_MAX]; /* in the order of inos */
    int n;
    bool locked;
};
/* Locks and reads all; on failure nothing is held. Numbers must differ. 0, -ENOENT, -EIO. */
int held_take(struct held *h, struct engine *e, uint64_t cont, const uint64_t *inos, int n);
void held_drop(struct held *h);

/* ---- the cache of them (icache.c) ---- */

int cache_open(struct ns *ns);
void cache_close(struct ns *ns);
/* After a commit: what readers get from now on. */
void cache_apply(struct ns *ns, struct ns_change *c);
void cache_forget(struct ns *ns, uint64_t cont, uint64_t ino);
/* 1: ret is a copy of the cached record; 0: not cached, *ret_gen is for cache_insert; -ENOMEM. */
int cache_get(struct ns *ns, uint64_t cont, uint64_t ino, struct inode *ret, uint64_t *ret_gen);
void cache_insert(struct ns *ns, uint64_t cont, const struct inode *i, uint64_t gen);
/* Whether records like this one are cached at all. */
bool cache_takes(const struct inode *i);

/* ---- numbers (ino.c) ---- */

/*
 * A number that was never used, for an object of a container; 0: for a container. Under the namespace lock, without
 * inode locks.
 */
int ino_new(struct ns *ns, uint64_t cont, uint64_t *ret);
int ino_open(struct ns *ns);
/*
 * For check: what the index says (-ENOENT in a new store, -EIO), and makes it say. The key of a store that has none is
 * made.
 */
int ino_mark_read(struct engine *e, struct ino_mark *ret);
int ino_mark_write(struct engine *e, const struct ino_mark *m);
void ino_mark_begin(struct ino_mark *ret);
/*
 * The first number of a run, and the run that a number is of (a number from before there were runs: itself). 0 or
 * -ENOMEM.
 */
int ino_of_run(const struct ino_mark *m, uint64_t run, uint64_t *ret);
int ino_run_of(const struct ino_mark *m, uint64_t ino, uint64_t *ret);
/* After the last transaction: numbers go on without a gap. */
void ino_close(struct ns *ns);

/* ---- directories (dirent.c) ---- */

struct dent {
    uint64_t ino, cookie;
    uint32_t type; /* S_IFMT bits */
};
struct key dirent_key(uint64_t cont, uint64_t dir, const char *name);
struct key cookie_key(uint64_t cont, uint64_t dir, uint64_t cookie);
int dirent_decode(const void *p, size_t n, struct dent *ret);
/* The name goes into ret_name, PST_NAME_MAX + 1 bytes. */
int cookie_decode(const void *p, size_t n, struct dent *ret, char *ret_name);
/* Writes both keys; the directory's record is the caller's. */
void dirent_put(struct txn *t, uint64_t cont, uint64_t dir, const char *name, const struct dent *d);
uint64_t dirent_hash(const char *name, const struct dent *d);
/* 0, -ENOENT, -EIO. */
int dir_find(struct engine *e, uint64_t cont, uint64_t dir, const char *name, struct dent *ret);
/*
 * Changes to a directory's entries, in the transaction; d.cookie 0: a new one. The caller puts the directory's inode.
 * dir_set replaces what `old` says under the same name and cookie.
 */
void dir_add(struct txn *t, uint64_t cont, struct inode *dir, const char *name, uint64_t ino, uint32_t type);
void dir_remove(struct txn *t, uint64_t cont, struct inode *dir, const char *name, const struct dent *d);
void dir_set(struct txn *t, uint64_t cont, struct inode *dir, const char *name, const struct dent *old, uint64_t ino,
             uint32_t type);

/*
 * 0 if `ino` is a directory that has a name and lets the caller search it; -ENOTDIR, -ENOENT, -EACCES. Namespace lock.
 */
int dir_usable(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, uint64_t ino);

/* ---- objects that are open (opens.c) ---- */

struct key orphan_key(uint64_t cont, uint64_t ino);
int opens_open(struct ns *ns);
void opens_close(struct ns *ns);
/* for_writing: some open of it was for writing. */
bool object_is_open(struct ns *ns, uint64_t cont, uint64_t ino, bool for_writing);
/* The last name is gone (i->a.nlink is 0): an orphan while it is open, else deleted. Under the inode's lock. */
int object_unlinked(struct txn *t, uint64_t cont, struct inode *i);
/* The record, attributes and data go. */
int object_delete(struct txn *t, uint64_t cont, const struct inode *i);
/* At the store's open: deletes what was open when the store stopped. */
int orphans_delete(struct ns *ns);
/* The container was destroyed: nothing of it is open any more. */
void opens_forget(struct ns *ns, uint64_t cont);

/* ---- reply records (reply.c) ---- */

/* The first byte of a recorded reply: a retry that is another kind of request is refused. */
enum reply_kind {
    REPLY_POOL_CREATE = 1,
    REPLY_POOL_DESTROY,
    REPLY_CONT_CREATE,
    REPLY_CONT_DESTROY,
    REPLY_SETATTR,
    REPLY_MAKE,
    REPLY_LINK,
    REPLY_UNLINK,
    REPLY_RMDIR,
    REPLY_RENAME,
    REPLY_SETXATTR,
    REPLY_REMOVEXATTR,
    REPLY_OPEN, /* truncating */
};
/* 1: done before, the rest of the reply is in ret (may be NULL); 0: new; -ESTALE; -EINVAL: another kind. */
int reply_seen(struct engine *e, const struct pst_ctx *ctx, enum reply_kind kind, struct wbuf *ret);
void reply_record(struct txn *t, const struct pst_ctx *ctx, enum reply_kind kind, const struct wbuf *body);
void reply_record_attr(struct txn *t, const struct pst_ctx *ctx, enum reply_kind kind, const struct pst_attr *a);
/* The same for replies that are attributes. */
int reply_seen_attr(struct engine *e, const struct pst_ctx *ctx, enum reply_kind kind, struct pst_attr *ret);
/* The day a record was last used, from its value; -EBADMSG. */
int reply_day(const void *p, size_t n, uint32_t *ret);
uint32_t reply_today(void);

/* For check: whether an extended attribute's value is one (xattr.c). */
bool xattr_value_valid(const void *p, size_t n);
#define XATTR_KEY_PREFIX 17u /* bytes of its key before the name */
/* Bytes that an attribute with this key and value counts for in the usage of its container. */
int64_t xattr_space(size_t klen, const void *value, size_t n);

/* ---- background deleter (gc.c) ---- */

int gc_start(struct ns *ns);
void gc_stop(struct ns *ns);
void gc_kick(struct ns *ns);
/* One bounded step: 1 something was done, 0 nothing to do, -errno. For tests too. */
int gc_step(struct ns *ns);
/* Drops reply records that were last used before that day; returns how many. */
int64_t reply_prune(struct ns *ns, uint32_t before_day);

/* ---- records of pools and containers (pool.c, cont.c) ---- */

struct key pool_key(const char *label);
struct key cont_key(const char *pool, const char *label);
struct key cont_id_key(uint64_t id);
struct key cont_gc_key(uint64_t id);
void pool_encode(struct wbuf *w, const struct pst_pool_info *p);
int pool_decode(const char *label, const void *p, size_t n, struct pst_pool_info *ret);
void cont_encode(struct wbuf *w, const struct pst_cont_info *c);
int cont_decode(const char *pool, const char *label, const void *p, size_t n, struct pst_cont_info *ret);
int pool_get(struct engine *e, const char *label, struct pst_pool_info *ret);
int cont_get(struct engine *e, const char *pool, const char *label, struct pst_cont_info *ret);
/*
 * For keys that are a prefix and a label: the first whose label is greater than `after`, and its value appended to ret.
 * 1, 0 at the end, or -errno.
 */
int label_next(struct engine *e, const struct key *prefix, const char *after, char ret_label[PST_LABEL_MAX + 1],
               struct wbuf *ret);
/* The pool's first container whose label is greater: 1, 0 at the end, or -errno. Namespace lock. */
int cont_next(struct engine *e, const char *pool, const char *after, struct pst_cont_info *ret);
/* The destroyed container's pool, for its usage. */
int cont_gc_decode(const void *p, size_t n, char ret_pool[PST_LABEL_MAX + 1], uint8_t ret_uuid[16]);
/* Takes the container out of the namespace, under its lock; -EBUSY while it is open. */
int cont_remove(struct engine *e, const struct pst_ctx *ctx, const struct pst_cont_info *info);
int cont_is_busy(struct ns *ns, uint64_t id);
/* What `want` allows on a pool. */
int pool_access(const struct pst_ctx *ctx, const struct pst_pool_info *p, int want);

/* ---- entries of local_ops ---- */

int local_pool_create(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                      struct pst_pool_info *ret);
int local_pool_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, struct pst_pool_info *ret);
int local_pool_list(struct pst_store *st, const struct pst_ctx *ctx, const char *after,
                    int (*fn)(const struct pst_pool_info *, void *), void *user);
int local_pool_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force);
int local_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                      const struct pst_cont_props *props, struct pst_cont_info *ret);
int local_cont_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                     struct pst_cont_info *ret);
int local_cont_list(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *after,
                    int (*fn)(const struct pst_cont_info *, void *), void *user);
int local_cont_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label);
int local_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                    struct pst_cont **ret);
void local_cont_close(struct pst_cont *c);
int local_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                 struct pst_attr *ret);
int local_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret);
int local_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                  const struct pst_attr *in, struct pst_attr *ret);
int local_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
               const struct pst_new *in, struct pst_attr *ret, bool *ret_created);
int local_readlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_target, size_t size);
int local_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
               struct pst_attr *ret);
int local_unlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name);
int local_rmdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name);
int local_rename(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                 uint64_t new_parent, const char *new_name, uint32_t flags);
int local_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                  pst_dirent_fn fn, void *user);
int local_parent(struct pst_cont *c, uint64_t ino, uint64_t *ret_parent);
int local_statfs(struct pst_cont *c, struct pst_statfs *ret);
int local_setxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name, const void *value,
                   size_t len, uint32_t flags);
int64_t local_getxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                       void *ret_value, size_t size);
int64_t local_listxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size);
int local_removexattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name);
int local_obj_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
               struct pst_attr *ret);
void local_obj_release(struct pst_cont *c, uint64_t ino);

#endif

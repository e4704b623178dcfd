/*
 * The remote store: what its parts know of one another.
 *
 *   open.c    URLs, options, the store's life            queue.c   a data queue: lists, timers, sleeping
 *   ns.c      namespace requests                         conn.c    its connection: tickets, binding, closing
 *   admin.c   pools and containers                       wire.c    operations to requests, replies to results
 *   object.c  open objects and their capabilities        mem.c     memory that the server may reach
 *   close.c   closing them                               unsynced.c  changes that are not durable yet
 *   kept.c    capabilities of what is not open
 *
 * Locks, outermost first: remote.lock, rcont.lock, the session's own. A queue has no lock but for its mailbox: its
 * owner drives it, others only put things into the mailbox and wake it.
 */
#ifndef REMOTE_REMOTE_H
#define REMOTE_REMOTE_H

#include "base/bitmap.h"
#include "base/err.h"
#include "base/trace.h"
#include "client/mem.h"
#include "client/session.h"
#include "fabric/dp.h"
#include "fabric/fabric.h"
#include "remote/remote_store.h"
#include "unsynced.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define LOG_COMPONENT "remote"
#include "base/log.h"

#define PB(name) Penstock__V1__##name

#define OBJ_BUCKETS  256u
#define OBJ_HANDLES  2u           /* one to read, one to write, or one for both */
#define READDIR_PAGE 512u         /* entries of one request */
#define ARENA_MIB    32u          /* registered buffer memory of a queue */
#define ARENA_GRAIN  (64 * KiB)
#define BINDS_MAX    256u         /* capabilities bound to a connection at once: bounds the server's memory too */
#define QREGIONS_MAX 512u         /* regions of the memory table that a queue has registered */
#define ROPS_EXTRA   64u          /* for bindings and for requests that were given up */
#define RETRY_MIN_NS (10 * NSEC_PER_MSEC)
#define RETRY_MAX_NS NSEC_PER_SEC

/*
 * Where the bytes of requests are placed: in memory that is handed over, by the daemon; over the data connection; or
 * over a connection of one's own to the server behind an agent.
 */
enum remote_placement { PLACE_AUTO, PLACE_EXPORTED, PLACE_CROSSING, PLACE_THIRD };

/* A provider of the server's that works here, and the transport by it. Once there, it stays to the end. */
struct remote_way {
    char provider[32]; /* as the server names it */
    struct fab *fab;
};
#define WAYS_MAX 4u

struct remote {
    struct pst_store st;
    struct session *session;
    struct remote_way ways[WAYS_MAX]; /* lock; nways only grows */
    size_t nways, way;                /* way: the one in use */
    bool require_rdma;
    bool is_agent; /* speaks for clients, and hands out capabilities of its own */
    enum remote_placement placement;
    char provider[32]; /* asked for; "": any */
    uint64_t arena_bytes;
    pthread_mutex_t lock;
    struct list conts;  /* struct rcont.link */
    struct list queues; /* struct rqueue.link */
    uint32_t nqueues_made;
    _Atomic uint64_t last_cap_id;
    _Atomic uint64_t requests, retried, timed_out, copied_bytes, direct_bytes, exported_bytes, third_bytes, far_bytes,
        connects;
};

/* ---- containers and objects ---- */

struct rcont {
    struct pst_cont c;
    struct list link;
    _Atomic uint64_t handle;
    uint64_t epoch; /* session of the handle; remote.lock */
    pthread_mutex_t lock;
    struct list objects[OBJ_BUCKETS];
    struct list closing;   /* of object handles, not answered yet (close.c) */
    pthread_cond_t closed; /* one was answered */
    uint64_t *late;        /* object handles to close: some together, or when the connection is up again */
    size_t nlate, late_cap;
    uint64_t late_epoch;
    struct unsynced unsynced;
    _Atomic bool some_lost; /* as un_has_lost said last: mostly false, and then no lookup needs the lock */
    uint64_t closed_ns; /* when handles were sent last */
    struct list kept[OBJ_BUCKETS], kept_lru; /* struct rkept (kept.c) */
    uint32_t nkept;
    struct list fetches; /* struct rfetch, not answered yet */
    /* A container's capabilities in a session are all under one key, until that is revoked: the newest one. */
    uint64_t key_id, key_epoch;
};

/* A capability, while rcont.lock is held. */
struct rcap {
    uint64_t cap_id, epoch;
    const uint8_t *bytes;
    size_t len;
};

/* What the server gave for one open. */
struct rhandle {
    bool used, has_cred;
    bool revoked; /* its capability was, as far as is known: the next open takes its place */
    uint64_t handle, epoch;
    uint32_t accmode;
    uint64_t cap_id; /* never used twice in this process; names the capability in a connection's table */
    uint64_t key_id; /* of the capability's key at the server; 0: it has none */
    struct pst_cred cred;
    size_t cap_len;
    uint8_t cap[DP_CAP_MAX];
};

struct robject {
    struct list link;
    uint64_t ino;
    uint32_t opens;
    int err; /* 0, or why it could not be opened again after a restart */
    struct rhandle h[OBJ_HANDLES];
};

static inline struct remote *remote_of(struct pst_store *st)
{
    return container_of(st, struct remote, st);
}

static inline struct rcont *rcont_of(struct pst_cont *c)
{
    return container_of(c, struct rcont, c);
}

/*
 * How data goes: as before while the server offers that, else by another of its providers. Loads the transport if that
 * has not been done. 0, or -errno and a line for people.
 */
int remote_way(struct remote *r, const struct remote_way **ret, char *err, size_t err_size);
int remote_attr(const PB(Attr) *in, struct pst_attr *ret); /* -EBADMSG */
#define REMOTE_PATH_MAX (PST_WALK_MAX + 1 + PST_NAME_MAX)
/* -ELOOP with a way while something is lost: each directory on it is to be found by its name. */
int remote_may_walk(struct pst_cont *c, const struct pst_ctx *ctx);
/* To where it led. */
void remote_walked(const struct pst_ctx *ctx, const PB(NamespaceReply) *reply);
/*
 * A name with the way to it before it, as the protocol has them: "a/b/name". The text is in buf where there is a way.
 */
ProtobufCBinaryData remote_path(const struct pst_ctx *ctx, const char *name, uint8_t buf[REMOTE_PATH_MAX]);
/* One request: fills in header and container, calls. c->req and its member are the caller's. */
/* ctx NULL: the session's own user, and no id. */
int remote_call(struct pst_cont *c, const struct pst_ctx *ctx, bool record, PB(NamespaceRequest) * req,
                PB(Header) * header, struct session_call *ret);

/* object.c */
int remote_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                struct pst_attr *ret);
int remote_create(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created);
void remote_release(struct pst_cont *c, uint64_t ino);
int remote_write(struct pst_cont *c, uint64_t ino, uint64_t offset, const void *data, size_t len, uint32_t flags);
/* Opens again what a container had open; remote.lock held, session thread. */
void remote_reopen(struct remote *r, struct rcont *rc);
void remote_objects_done(struct rcont *rc);
/* What an open was answered with; rcont.lock held. -EBADMSG. */
int remote_handle(struct rcont *rc, const PB(OpenReply) * in, int accmode, const struct pst_cred *cred, uint64_t epoch,
                  struct rhandle *ret);
/*
 * The capability for an operation that needs these rights (R_OK or W_OK; 0: any). With ret_cap (DP_CAP_MAX bytes) its
 * bytes too. ret_epoch: the session that it is of. -EBADF: not open so, and none is kept; -ENOKEY: open, but without a
 * capability (directories); or the object's error.
 */
int remote_cap(struct rcont *rc, uint64_t ino, uint32_t rights, uint64_t *ret_cap_id, uint64_t *ret_epoch,
               uint8_t *ret_cap, size_t *ret_len);
/*
 * The server has refused a request because what gave it the right was revoked: this capability, or (cap_id 0) those
 * with these rights. The next open gives them anew.
 */
void remote_revoked(struct rcont *rc, uint64_t ino, uint32_t rights, uint64_t cap_id);

/* kept.c; rcont.lock held where it is not said otherwise */
void remote_kept_init(struct rcont *rc);
void remote_kept_done(struct rcont *rc); /* not held; no operation is under way */
/* The handle is about to be closed: its capability stays of use (an agent's only). */
void remote_keep(struct rcont *rc, uint64_t ino, const struct rhandle *h);
/* 0, or -EBADF: none, or, if it is to be alive, none but such as are revoked. */
int remote_kept_cap(struct rcont *rc, uint64_t ino, uint32_t rights, bool alive, struct rcap *ret);
void remote_kept_revoked(struct rcont *rc, uint64_t ino, uint64_t cap_id);
/* Has the server made another key since this one? */
static inline bool remote_key_ended(const struct rcont *rc, uint64_t key_id, uint64_t epoch)
{
    return key_id && epoch == rc->key_epoch && key_id != rc->key_id;
}

/* Changes that are not durable yet (unsynced.h). The first two: one was answered under this history. */
void remote_changed(struct rcont *rc, uint64_t ino, uint64_t history);
void remote_named(struct rcont *rc, uint64_t dir, ProtobufCBinaryData name, uint64_t ino, uint64_t history,
                  uint32_t flags);
uint64_t remote_mark(struct rcont *rc);
/*
 * A sync that was sent at this mark succeeded: 0, or -EIO: it does not make durable what was lost. ino 0: one of all.
 */
int remote_synced(struct rcont *rc, uint64_t ino, uint64_t mark, uint64_t history);
/* An object was found under a name. */
void remote_found(struct rcont *rc, uint64_t dir, ProtobufCBinaryData name, uint64_t ino);
void remote_new_history(struct rcont *rc, uint64_t history);

/* close.c; rcont.lock held */
void remote_close_handle(struct rcont *rc, uint64_t handle, uint64_t epoch);
/* The connection is up again. Lock not held, nor in the next one. */
void remote_closes_again(struct rcont *rc);
void remote_closes_done(struct rcont *rc);
/* Sends the handles that wait to be closed; true: not all. */
bool remote_tick(struct remote *r);

/* admin.c */
extern const struct pst_store_ops remote_ops;
int remote_pool_create(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                       struct pst_pool_info *ret);
int remote_pool_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, struct pst_pool_info *ret);
int remote_pool_list(struct pst_store *st, const struct pst_ctx *ctx, const char *after,
                     int (*fn)(const struct pst_pool_info *, void *), void *user);
int remote_pool_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force);
int remote_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                       const struct pst_cont_props *props, struct pst_cont_info *ret);
int remote_cont_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                      struct pst_cont_info *ret);
int remote_cont_list(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *after,
                     int (*fn)(const struct pst_cont_info *, void *), void *user);
int remote_cont_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label);
int remote_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                     struct pst_cont **ret);
void remote_cont_close(struct pst_cont *c);
void remote_resume(struct remote *r);

/* ns.c */
int remote_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  struct pst_attr *ret);
int remote_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret);
int remote_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                   const struct pst_attr *in, struct pst_attr *ret);
int remote_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                const struct pst_new *in, struct pst_attr *ret, bool *ret_created);
int remote_readlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_target, size_t size);
int remote_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
                struct pst_attr *ret);
int remote_unlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name);
int remote_rmdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name);
int remote_rename(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  uint64_t new_parent, const char *new_name, uint32_t flags);
int remote_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                   pst_dirent_fn fn, void *user);
int remote_parent(struct pst_cont *c, uint64_t ino, uint64_t *ret_parent);
int remote_statfs(struct pst_cont *c, struct pst_statfs *ret);
int remote_setxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name, const void *value,
                    size_t len, uint32_t flags);
int64_t remote_getxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                        void *ret_value, size_t size);
int64_t remote_listxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size);
int remote_removexattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name);

/* queue.c */
int remote_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret);
void remote_queue_close(struct pst_queue *q);
int remote_queue_submit(struct pst_queue *q, struct pst_op *op);
int remote_queue_reap(struct pst_queue *q, struct pst_op **ret_ops, int max, uint64_t timeout_ns);
int remote_queue_fd(struct pst_queue *q);
void remote_queue_cancel(struct pst_queue *q, struct pst_op *op);
void remote_queues_wake(struct remote *r);

/* third.c */
int remote_third(struct pst_store *st, uint32_t spread, uint64_t owner, struct pst_third *ret);
uint32_t remote_queue_spread(struct pst_queue *q);

/* export.c */
bool remote_wants_shared(const struct pst_store *st);
bool remote_takes_exports(struct remote *r);
/*
 * Peers on this machine map memfds that are registered, or will, as far as can be said before the transport is loaded.
 */
bool remote_shares(struct remote *r);

#endif

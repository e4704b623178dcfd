/*
 * The parts of the mount and what they know of one another.
 *
 *   mount.c      options, background, readiness          supervise.c  keeps the mount over a crash
 *   worker.c     one serving process: session, signals   mnt.c        mount table, unmount
 *   ops_*.c      the FUSE operations                     nodes.c      what the kernel has cached of each object
 *   files.c      open file handles                       locks.c      flock and fcntl locks of this mount, pure
 *   loop.c       the threads that read requests          privs.c      a write takes a file's capability
 *
 * Object numbers are never used twice and name the kernel's nodes as well (root: 1 in both). So lookups need not be
 * counted: a node here is a cache of facts, and losing it costs a round trip, never correctness.
 */
#ifndef FUSE_FM_H
#define FUSE_FM_H

#define FUSE_USE_VERSION 312 /* FUSE_MAKE_VERSION(3, 12) */
#include "fuse_mount/mount.h"

#include <fuse_lowlevel.h>

#include <signal.h>

#define LOG_COMPONENT "mount"
#include "base/log.h"

/* One read or write of the kernel: 256 pages, its limit without a larger fs.fuse.max_pages_limit. */
#define FM_IO_MAX      (1 * MiB)
#define FM_THREADS     16
#define FM_INIT_MAX    512 /* bytes of a FUSE_INIT request, header included; 104 today */

/* ---- nodes (nodes.c): all thread-safe ---- */

struct fm_nodes;
/* exclusive: all changes come through this mount, so pages that this process has let the kernel read stay good. */
struct fm_nodes *fm_nodes_new(bool exclusive);
void fm_nodes_free(struct fm_nodes *t);
/* These attributes go to the kernel. create: also for an object that is not known yet. */
void fm_node_seen(struct fm_nodes *t, const struct pst_attr *a, bool create);
/* The kernel dropped the object. */
void fm_node_forget(struct fm_nodes *t, uint64_t ino);

enum fm_access {
    FM_READS,
    FM_WRITES,
    FM_ONLY_WRITES, /* an empty file, in order */
    FM_APPENDS,
};
/* What an open means for the kernel's caches. */
struct fm_open_hint {
    bool keep_pages;  /* cached pages are of this version */
    bool stale_attrs; /* cached attributes may be of another */
    bool around;      /* its data goes around the kernel's pages */
};
/*
 * attr_ttl_ns: how long the kernel may keep attributes.
 *
 * Who only writes a file anew needs no pages: to fill them costs more than to send the bytes. As long as it is open
 * so, nobody may use pages of it: neither would readers see what is written around theirs, nor may a dirty page of a
 * mapping bring back what it had. So that handle goes around them if no other uses them, and those that come later do
 * as well. (To drop readers' pages after each write is no way: the kernel waits for pages under way, which can wait
 * for the write.) An append goes around them in any case, as it ends up where the store says, not where this kernel
 * thinks that the end is. An exclusive store's pages are always good, and all use them.
 */
struct fm_open_hint fm_node_open(struct fm_nodes *t, const struct pst_attr *a, enum fm_access access,
                                 uint64_t attr_ttl_ns);
/*
 * A handle that writes around the pages was closed; false: it is written to all the same, as others have it still. Who
 * opens the object waits a moment for the release, which comes after the return of close(2). (May be wrong: then only
 * that wait is.)
 */
void fm_node_closing(struct fm_nodes *t, uint64_t ino, bool closing);
/* access and around: those of the open. */
void fm_node_release(struct fm_nodes *t, uint64_t ino, enum fm_access access, bool around);
/*
 * The kernel acts on an open's answer when the opening process runs again, and drops stale pages only then. A request
 * on the handle proves that it did: from here on cached pages are at least of the version that the open saw.
 */
void fm_node_pages(struct fm_nodes *t, uint64_t ino, uint64_t change);
/* Someone has it open for writing through this mount: its size in the store may be behind. */
bool fm_node_writers(struct fm_nodes *t, uint64_t ino);
/* By the newest attributes that the kernel may have been told. */
bool fm_node_setid(struct fm_nodes *t, uint64_t ino);
/* May have a capability: unless it had none when it was last looked at, less than a second ago. */
bool fm_node_cap(struct fm_nodes *t, uint64_t ino);
/* asked_ns: when, before it was looked at and found to have none. */
void fm_node_set_nocap(struct fm_nodes *t, uint64_t ino, uint64_t asked_ns);
/* One was set. */
void fm_node_set_cap(struct fm_nodes *t, uint64_t ino);

/* ---- open files (files.c): all thread-safe ---- */

struct fm_file {
    struct cl_file *f; /* NULL: a directory */
    uint64_t ino;
    uint64_t change; /* version at the open */
    bool writable;
    bool around; /* the kernel's pages */
    enum fm_access access;
    bool syncs;           /* each write of it is durable before its answer */
    _Atomic bool closing; /* see fm_node_closing */
    _Atomic bool used;  /* a request came after the open */
    /*
     * Changes made by this handle, each counted before it is answered, and how many of them a durable close has
     * covered. Processes that share a handle may close it at the same time: none of them is told before its changes are
     * durable.
     */
    _Atomic uint64_t changes, durable;
    bool adopted; /* the handle is one of the process before, which died */
    struct pst_cred cred; /* directories: who opened it */
};
struct fm_files;
/*
 * A handle's number tells the process that made it: after a restart the old ones are recognised and never taken for
 * pointers. epoch: < 2^23.
 */
struct fm_files *fm_files_new(uint32_t epoch);
/* The table must be empty: fm_files_drain. */
void fm_files_free(struct fm_files *t);
/* Takes file (heap) on success. */
int fm_files_add(struct fm_files *t, struct fm_file *file, uint64_t *ret_fh);
/* NULL: not of this process, and not adopted. */
struct fm_file *fm_files_get(struct fm_files *t, uint64_t fh);
/*
 * From here on `file` stands for a handle of another process. Returns file, which the table has taken; another one,
 * that was faster; or NULL: no memory.
 */
struct fm_file *fm_files_adopt(struct fm_files *t, uint64_t fh, struct fm_file *file);
/* Out of the table; the caller owns it. NULL: not there. */
struct fm_file *fm_files_take(struct fm_files *t, uint64_t fh);
/* Any one that is left, or NULL. */
struct fm_file *fm_files_drain(struct fm_files *t);
/* A handle of a process that died: was it open for writing? */
bool fm_fh_writable(uint64_t fh);

/* ---- locks (locks.c) ---- */

enum lk_kind { LK_POSIX, LK_FLOCK };
enum lk_type { LK_NONE, LK_READ, LK_WRITE };
struct lk_range {
    uint64_t start, end; /* both included; flock: 0 and UINT64_MAX */
};
/* A request that waits. Made by the caller; on the table's list from lk_set's 1 to its grant or lk_cancel. */
struct lk_wait {
    struct list link; /* in the object's waiters, or in a list of granted ones */
    uint64_t ino;
    enum lk_kind kind;
    enum lk_type type;
    uint64_t owner;
    struct lk_range range;
    int32_t pid;
    bool queued;
    int result; /* of a granted one: 0 or -ENOMEM */
    void *user;
};
struct lk_table;
struct lk_table *lk_new(void);
void lk_free(struct lk_table *t);
/*
 * Sets, changes or (LK_NONE) removes a lock. wait NULL: does not wait. granted: requests of others that can go on now
 * are moved there (link), each with its result. Returns 0, -EAGAIN, -EDEADLK, -ENOMEM, -ENOLCK (too many), or 1: `wait`
 * is queued.
 */
int lk_set(struct lk_table *t, uint64_t ino, enum lk_kind kind, enum lk_type type, uint64_t owner,
           struct lk_range range, int32_t pid, struct lk_wait *wait, struct list *granted);
/* Who stands in the way? LK_NONE: nobody. */
enum lk_type lk_test(struct lk_table *t, uint64_t ino, enum lk_type type, uint64_t owner, struct lk_range range,
                     struct lk_range *ret_range, int32_t *ret_pid);
/* Takes a queued request off the table: true; false: it was granted before. */
bool lk_cancel(struct lk_table *t, struct lk_wait *wait);
/* All waiting requests, for the end. */
void lk_drain(struct lk_table *t, struct list *ret_waits);

/* ---- the mount ---- */

struct fm {
    struct client *cl;
    struct pst_cont *cont;
    struct fuse_session *se;
    struct fm_nodes *nodes;
    struct fm_files *files;
    struct lk_table *locks;
    double attr_timeout, entry_timeout; /* s */
    uint64_t attr_ttl_ns;
    bool durable_close;
    bool exclusive; /* the store is this process's own: nobody else changes anything */
    bool told_setid; /* the kernel says which changes take set-id bits away: fm_kills_setid */
};

/* Who asks: uid, gid and groups of the calling process. */
void fm_cred(fuse_req_t req, struct pst_cred *ret);
static inline struct fm *fm_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}
static inline struct pst_ctx fm_ctx(const struct pst_cred *cred)
{
    return (struct pst_ctx){.cred = cred};
}
/* A change in the name of who asks: to be made once, also when the connection loses its answer. */
struct fm_change {
    struct pst_cred cred;
    struct pst_ctx ctx; /* points to cred */
};
static inline void fm_change_begin(fuse_req_t req, struct fm_change *ret)
{
    fm_cred(req, &ret->cred);
    cl_ctx_begin(fm_of(req)->cl, &ret->cred, &ret->ctx);
}
static inline void fm_change_end(fuse_req_t req, struct fm_change *c)
{
    cl_ctx_end(fm_of(req)->cl, &c->ctx);
}
/* The errno that the kernel is told for a result inside. */
int fm_errno(int64_t r);
void fm_reply_err(fuse_req_t req, int64_t r);
/* For operations on an object by its number: it is gone, so the kernel must look its name up again. */
int fm_stale(int r);
void fm_stat(const struct pst_attr *a, struct stat *ret);
void fm_entry(struct fm *m, const struct pst_attr *a, struct fuse_entry_param *ret);

/* The tables of ops_*.c. */
void fm_ops_name(struct fuse_lowlevel_ops *ops);
void fm_ops_attr(struct fuse_lowlevel_ops *ops);
void fm_ops_file(struct fuse_lowlevel_ops *ops);
void fm_ops_dir(struct fuse_lowlevel_ops *ops);
void fm_ops_lock(struct fuse_lowlevel_ops *ops);
/* Ends file: flushes and (by the mount's durability) syncs. */
int fm_file_close(struct fm *m, struct fm_file *file);
/* What a write takes from a file besides (privs.c). 0 or -errno: nothing may be written then. */
#define FM_CAPABILITY_XATTR "security.capability"
int fm_drop_capability(struct fm *m, uint64_t ino);
/* The owner's locks on the object go. */
void fm_unlock_owner(struct fm *m, uint64_t ino, enum lk_kind kind, uint64_t owner);

/* ---- the threads (loop.c) ---- */

struct fm_loop;
/* libfuse answers through here. After the mount, before the first request. 0 or -errno. */
int fm_loop_io(struct fuse_session *se);
struct fm_loop *fm_loop_new(struct fm *m, uint32_t max_threads);
void fm_loop_free(struct fm_loop *l);
/*
 * Serves m->se until the unmount (0), fm_loop_stop, or an error. SIGUSR1 must interrupt reads of the threads it starts.
 */
int fm_loop_run(struct fm_loop *l);
/* From any thread. err: what fm_loop_run returns, if it is the first one. */
void fm_loop_stop(struct fm_loop *l, int err);
/*
 * In an operation, which runs in one of the threads: memory of FM_IO_MAX bytes. It has the bytes of a write, from its
 * start on, in place of libfuse's pointer; other operations may use it.
 */
struct cl_mem **fm_mem(void);
/*
 * In op_write and op_setattr of a size: set-id bits go with it, as who asks has no CAP_FSETID. A kernel that does not
 * say (before Linux 5.11) leaves it to us: they go with every write then.
 */
bool fm_kills_setid(const struct fm *m);
/* Shows libfuse a FUSE_INIT, whose answer asks for that besides what libfuse knows. */
void fm_loop_init(struct fm *m, const struct fuse_buf *init);
/*
 * A request is to be answered on the descriptor that it was read from. By default that is the one of this thread;
 * whoever answers another's request says so before, and takes it back. Returns the one before.
 */
int fm_answer_fd(void);
int fm_answer_to(int fd);

/* ---- processes ---- */

/* What a serving process needs to know. */
struct fm_config {
    const char *url;
    const char *dir; /* absolute */
    struct fuse_mount_opts opts;
    uint32_t epoch; /* 1 for the first process on a mount */
};

/* From a serving process to whoever waits for it. */
struct fm_report {
    uint32_t kind; /* enum fm_report_kind */
    int32_t code;  /* -errno */
    uint32_t init_len;
    uint8_t init[FM_INIT_MAX]; /* FM_READY: the kernel's FUSE_INIT */
    char text[512];            /* FM_FAILED */
};
enum fm_report_kind { FM_READY = 1, FM_FAILED };
/* sock: SOCK_SEQPACKET. fd: passed along if >= 0. */
int fm_report_send(int sock, const struct fm_report *r, int fd);
/* 1, 0 at the end, -errno. ret_fd: -1 if none came. */
int fm_report_recv(int sock, struct fm_report *ret, int *ret_fd);

/* Exit codes of a serving process. */
#define FM_EXIT_DIRTY   1  /* data could not be flushed; logged */
#define FM_EXIT_FAILED  2  /* could not mount; reported */
#define FM_EXIT_CONNECT 75 /* could not connect; reported */

/*
 * Serves until the unmount or SIGTERM; the signals are blocked. sock: for the report, -1: nobody waits. fuse_fd, init:
 * from the process before; -1 and NULL: mounts. Returns an exit code.
 */
int fm_worker(const struct fm_config *cfg, int sock, int fuse_fd, const struct fm_report *init);
/* Keeps a serving process alive until the unmount or SIGTERM. ready_sock: gets one report. Returns an exit code. */
int fm_supervise(const struct fm_config *cfg, int ready_sock);

/* ---- mount table (mnt.c) ---- */

/* "MAJOR:MINOR" of the topmost mount on dir, if it is a Penstock mount. 0, -EINVAL: it is not. -errno. */
int fm_mnt_find(const char *dir, char ret_dev[32]);
/*
 * Flushes what the kernel has dirty of it, then unmounts dir if the topmost mount is `dev` (NULL: any Penstock mount).
 * lazy: when busy, takes it out of the tree all the same. The process that serves dir may call it: a child makes the
 * requests.
 */
int fm_mnt_umount(const char *dir, const char *dev, bool sync, bool lazy);
/* Larger read-ahead than the kernel's 128 KiB; best effort. */
void fm_mnt_readahead(const char *dev, uint32_t kib);

#endif

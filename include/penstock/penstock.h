/*
 * libpenstock: files in a Penstock container, from C (C99) and C++.
 *
 * A container holds a POSIX name space: directories, files, symbolic links, with owners, modes, times and extended
 * attributes. It lives on a server (penstock://host[:port]/pool/container) or in an engine inside this process
 * (local:/directory?pool/container); the calls are the same.
 *
 *     struct pst_fs *fs;
 *     struct pst_file *f;
 *     int r = pst_connect("penstock://store.example/ml/imagenet", NULL, &fs);
 *     if (r < 0) {
 *         fprintf(stderr, "%s\n", pst_last_error());
 *         return 1;
 *     }
 *     r = pst_open(fs, "/train/0001.tar", O_RDONLY, 0, &f);
 *     if (r == 0) {
 *         int64_t n = pst_pread(f, buf, sizeof buf, 0);
 *         ...
 *         r = pst_close(f);
 *     }
 *     r = pst_disconnect(fs);
 *
 * RETURN VALUES. Every call that can fail returns 0 or a count >= 0, or a negative errno value (-ENOENT); errno itself
 * is left alone. Outputs come last, are named ret_*, and are untouched on failure. pst_last_error() has a sentence
 * about the calling thread's last failure. Errors that any call may return, beside those listed with it:
 *   -EINVAL     an argument outside what this page says
 *   -EIO        stored data is damaged, or the store stopped after a disk error
 *   -ETIMEDOUT  the server did not answer within the time-out of the connection: a change may have happened or not, and
 *               does not happen any more once a later change of the same connection has succeeded
 *   -ECHILD     the handle belongs to this process's parent (see FORK)
 *   -ENOMEM
 *
 * THREADS. All calls are thread-safe. One struct pst_dir is for one thread at a time. Freeing a handle (pst_close,
 * pst_disconnect, ...) while another thread uses it is an error of the caller.
 *
 * FORK. A child must not use handles of its parent: calls on them return -ECHILD, and touch neither the network nor the
 * disk. Freeing them in the child is allowed, releases nothing outside the process, and is not needed. The parent goes
 * on undisturbed. A child may open local: directories that the parent has not open; to connect to a server it has to
 * exec first if its parent has done so (-ECHILD).
 *
 * CONSISTENCY. Close-to-open: who opens a file after another has closed it (or has called pst_flush or pst_fsync) sees
 * all that was written, wherever either runs. Within one connection every read and every stat sees earlier writes.
 * Name space changes are visible to all at once. Appends (O_APPEND, pst_append) never overwrite one another.
 *
 * DURABILITY. When pst_fsync, or pst_close with durable_close (the default), returns 0, data and names survive a power
 * failure of the server. Without it names survive as an ordered prefix, at most 5 seconds behind.
 *
 * RECONNECTING. When the connection breaks or the server restarts, calls wait and go on, up to the time-out. Every
 * change happens exactly once, also when its answer was lost. After a restart open files are opened again; one whose
 * last name is gone meanwhile returns -ESTALE.
 *
 * PATHS are bytes in any encoding, with '/' between names of at most 255 bytes; "." and ".." are resolved. A path that
 * begins with '/' starts at the container's root, another one at the handle's working directory (pst_workdir; the root
 * for a handle of pst_connect). Symbolic links are followed within the container, also absolute ones. Errors of all
 * calls that take a path: -ENOENT, -ENOTDIR, -EACCES (no search permission), -ELOOP (more than 40 links),
 * -ENAMETOOLONG (a name above 255 bytes, a path above 4095).
 */
#ifndef PENSTOCK_PENSTOCK_H
#define PENSTOCK_PENSTOCK_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- library ---- */

/* "0.1.0". Static. */
const char *pst_version(void);

/*
 * What went wrong in the calling thread's last failed call: one line without newline, naming the object, the reason
 * and, where there is one, the setting to change. Never NULL; "" before the first failure. Valid until the thread's
 * next call.
 */
const char *pst_last_error(void);

/* "ENOENT" for -ENOENT (or ENOENT); "E?" for a number without a name. Static. */
const char *pst_error_name(int error);

/* ---- connecting ---- */

struct timespec;

struct pst_fs;    /* a connection with one open container, seen from a working directory */
struct pst_file;  /* an open file */
struct pst_dir;   /* a directory being listed */
struct pst_eq;    /* an event queue for asynchronous operations */
struct pst_buf;   /* registered memory */
struct pst_admin; /* a connection to a store, for its pools and containers */

#define PST_CONNECT_INSECURE     1u /* allow plain text to addresses other than loopback */
#define PST_CONNECT_REQUIRE_RDMA 2u /* fail with -ENODEV rather than move data without RDMA */
#define PST_CONNECT_LAZY_CLOSE   4u /* pst_close does not wait for durability: durability=fsync */
#define PST_CONNECT_CREATE       8u /* create the pool and the container (local: and the store) if not there */

/* Set up by pst_options_init; then change what should differ. All strings are borrowed during pst_connect only. */
struct pst_options {
    size_t size;               /* of this struct as the caller knows it; set by pst_options_init */
    unsigned int flags;        /* PST_CONNECT_* */
    unsigned int threads;      /* that drive data, each with its own queue and data connection; 0: 2 */
    unsigned int depth;        /* data operations in flight per thread; 0: 64 */
    unsigned int timeout_ms;   /* of one operation, reconnecting included; 0: 30000 */
    uint64_t write_behind;     /* bytes of written data kept in memory at most; 0: 64 MiB */
    uint64_t read_ahead;       /* bytes fetched ahead of a sequential reader, per file; 0: 4 MiB; UINT64_MAX: none */
    const char *provider;      /* of libfabric ("tcp", "verbs", "uroce"); NULL: what the server offers, best first */
    const char *purpose;       /* shown in the server's status; NULL: "api" */
    const char *token_file;    /* credentials: files in PEM, or holding a token. NULL: the environment variables */
    const char *ca_file;       /* PENSTOCK_TOKEN_FILE, PENSTOCK_CA_FILE, PENSTOCK_CERT_FILE, PENSTOCK_KEY_FILE */
    const char *cert_file;
    const char *key_file;
    /* local: "key=value,key=value" for the engine; penstock: placement=auto|exported|third-party|crossing */
    const char *store_options;
    /*
     * Inline services in this process: what the container holds is made and read by them, the server sees their output
     * only. Each is "NAME" or "NAME:key=value,key=value" ("compress:alg=zstd", "crypt:key_file=/etc/ml.key", "csum";
     * those and their errors are in docs/filters.md); ended by NULL. NULL itself: those in the environment variable
     * PENSTOCK_FILTERS, separated by blanks. Not used by pst_admin_open.
     */
    const char *const *filters;
};

/* size: sizeof *options, so that programs built with an older header go on working. */
void pst_options_init(struct pst_options *options, size_t size);

/*
 * Connects and opens a container.
 *   penstock://host[:port]/pool/container   host: a name, an IPv4 address or an IPv6 address in brackets; port: 7440
 *   local:/directory?pool/container         an engine in this process; no other process may have it open
 *   local:/directory                        the same with pool and container "default", created if they are not there
 * options: NULL for the defaults. The caller acts as the process's effective user and groups, if the session's
 * credential allows it, else as the credential's user.
 * Errors: -ENOENT no such pool or container; -EACCES credential refused; -EPROTO the server speaks another version of
 * the protocol; -EPROTONOSUPPORT unknown URL scheme; -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT; -EBUSY the directory is
 * open in another process; -ENODEV no RDMA although required. With filters: -EINVAL an unknown filter, option or value,
 * a key that cannot be found or read; -EPERM a key file that others may read; -EKEYREJECTED the container is encrypted
 * with another key, or holds files that are not; -ENOKEY it is encrypted, and `crypt` is not among the filters.
 */
int pst_connect(const char *url, const struct pst_options *options, struct pst_fs **ret_fs);

/*
 * A second handle on the same connection whose relative paths start at the directory `path`, even if that is renamed.
 * Freed by pst_disconnect; the connection ends with its last handle.
 */
int pst_workdir(struct pst_fs *fs, const char *path, struct pst_fs **ret_fs);

/*
 * Writes out what is pending and frees fs. All files, directories, event queues and buffers of it must be closed
 * before. 0, or the first error that no pst_close, pst_flush or pst_fsync has reported. fs is gone in every case. NULL
 * is allowed.
 */
int pst_disconnect(struct pst_fs *fs);

/* Facts about the connection, for people: fn(user, "data.provider", "tcp"), "data.rdma", "reconnects" and so on. */
void pst_describe(struct pst_fs *fs, void (*fn)(void *user, const char *key, const char *value), void *user);

/* ---- names and attributes: errors as those of the POSIX call of that name ---- */

#define PST_NOFOLLOW 1 /* a symbolic link at the end of the path is the object itself */

/* st_ino: never used twice in a container. st_dev and st_blksize: the container's id and chunk size. */
int pst_stat(struct pst_fs *fs, const char *path, struct stat *ret_st);
int pst_lstat(struct pst_fs *fs, const char *path, struct stat *ret_st);
/* mode: R_OK, W_OK, X_OK bits, or F_OK. Judged for the effective user. */
int pst_access(struct pst_fs *fs, const char *path, int mode);

/* mode: permission bits. The process's umask is not applied, here and in all calls below. */
int pst_mkdir(struct pst_fs *fs, const char *path, mode_t mode);
/* mode with S_IFREG, S_IFIFO or S_IFSOCK; S_IFCHR and S_IFBLK need a privileged user (-EPERM). */
int pst_mknod(struct pst_fs *fs, const char *path, mode_t mode, dev_t rdev);
/* target: at most 4095 bytes, kept as it is. */
int pst_symlink(struct pst_fs *fs, const char *target, const char *path);
/* The target with a NUL; 4096 bytes always suffice. The length without the NUL; -ERANGE if size is too small. */
int64_t pst_readlink(struct pst_fs *fs, const char *path, char *ret_target, size_t size);
/* A hard link; a symbolic link at the end of `from` is not followed. */
int pst_link(struct pst_fs *fs, const char *from, const char *to);
int pst_unlink(struct pst_fs *fs, const char *path); /* -EISDIR for a directory */
int pst_rmdir(struct pst_fs *fs, const char *path);  /* -ENOTEMPTY */
#define PST_RENAME_KEEP 1u /* -EEXIST rather than replace `to` */
#define PST_RENAME_SWAP 2u /* the two names exchange their objects */
/* Atomic: at any time `to` names the old or the new object. flags: 0 or one of the above. */
int pst_rename(struct pst_fs *fs, const char *from, const char *to, unsigned int flags);

int pst_chmod(struct pst_fs *fs, const char *path, mode_t mode);
/* (uid_t)-1, (gid_t)-1: unchanged. flags: 0 or PST_NOFOLLOW. */
int pst_chown(struct pst_fs *fs, const char *path, uid_t uid, gid_t gid, int flags);
/* times: two, access and modification; tv_nsec may be UTIME_NOW or UTIME_OMIT; NULL: both now. flags as above. */
int pst_utimens(struct pst_fs *fs, const char *path, const struct timespec *times, int flags);
int pst_truncate(struct pst_fs *fs, const char *path, uint64_t size);

/* f_bsize 4096; the counters are the container's, within its pool's limits. */
int pst_statvfs(struct pst_fs *fs, struct statvfs *ret_st);
/* All that was written or changed through this connection, and all name space changes before, are durable. */
int pst_sync(struct pst_fs *fs);
/* The names in a directory are durable. */
int pst_fsync_dir(struct pst_fs *fs, const char *path);

/*
 * Extended attributes: names of at most 255 bytes ("user.x"), values of at most 64 KiB. path_flags: 0 or PST_NOFOLLOW.
 * Set flags: 0, or 1 (XATTR_CREATE: -EEXIST if there), 2 (XATTR_REPLACE: -ENODATA if not there).
 * Get and list return the length; size 0 asks for it only; -ERANGE if it does not fit. A list is names, each with its
 * NUL.
 */
int pst_setxattr(struct pst_fs *fs, const char *path, const char *name, const void *value, size_t size, int flags,
                 int path_flags);
int64_t pst_getxattr(struct pst_fs *fs, const char *path, const char *name, void *ret_value, size_t size,
                     int path_flags);
int64_t pst_listxattr(struct pst_fs *fs, const char *path, char *ret_names, size_t size, int path_flags);
int pst_removexattr(struct pst_fs *fs, const char *path, const char *name, int path_flags);

/* ---- directories ---- */

struct pst_entry {
    uint64_t ino;
    uint64_t cookie;   /* for pst_seekdir: the listing goes on after this entry */
    unsigned int type; /* S_IFMT bits: S_IFREG, S_IFDIR, ... */
    const char *name;  /* valid until the next call on the directory */
    struct stat st;    /* valid if PST_DIR_STAT was asked for */
};

#define PST_DIR_STAT 1 /* attributes with each entry */
/* flags: 0 or PST_DIR_STAT. Needs read permission. */
int pst_opendir(struct pst_fs *fs, const char *path, int flags, struct pst_dir **ret_dir);
/*
 * 1 and the next entry, 0 at the end, or an error. "." and ".." are not listed; the order is the directory's own.
 * Entries that are there all the time are listed exactly once, whatever is created or removed meanwhile. Memory use
 * does not grow.
 */
int pst_readdir(struct pst_dir *dir, struct pst_entry *ret_entry);
/* Goes on after the entry that had this cookie, which may be gone meanwhile; 0: from the start. */
int pst_seekdir(struct pst_dir *dir, uint64_t cookie);
int pst_closedir(struct pst_dir *dir); /* NULL is allowed */

/* ---- files ---- */

/*
 * flags as open(2): O_RDONLY, O_WRONLY, O_RDWR; O_CREAT (with mode), O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW (-ELOOP for
 * a symbolic link), O_DIRECT (no write-behind, no read-ahead; no alignment is needed), O_SYNC and O_DSYNC (each write
 * is durable on return). Others are -EINVAL. Directories: -EISDIR. What is not a regular file: -ENXIO.
 */
int pst_open(struct pst_fs *fs, const char *path, int flags, mode_t mode, struct pst_file **ret_file);
/*
 * Writes out what is pending, makes it durable (unless PST_CONNECT_LAZY_CLOSE) and frees the handle in every case.
 * 0, or the first error of a write through this handle that was not reported before. NULL is allowed.
 */
int pst_close(struct pst_file *file);

/* Bytes read, short only at the end of the file; 0 there. -EBADF: not open for reading. */
int64_t pst_pread(struct pst_file *file, void *ret_buf, size_t size, uint64_t offset);
int64_t pst_preadv(struct pst_file *file, const struct iovec *iov, int iovcnt, uint64_t offset);
/*
 * Bytes written: all; or fewer when an error came in between; or the error. They may be kept in memory for about two
 * seconds (write-behind), and an error may only show in pst_flush, pst_fsync or pst_close, once; the data of the failed
 * write is lost then, and writes through the handle fail until it was reported so. -EBADF: not open for writing. With
 * O_APPEND the offset is ignored. Who is not root takes the file's set-id bits away, as the bytes arrive.
 */
int64_t pst_pwrite(struct pst_file *file, const void *buf, size_t size, uint64_t offset);
int64_t pst_pwritev(struct pst_file *file, const struct iovec *iov, int iovcnt, uint64_t offset);
/*
 * At the end of the file, wherever it is when the bytes arrive there; whole as long as size is at most 8 MiB (longer
 * ones may have others' data in between). ret_offset (may be NULL): where the bytes went; asking waits for the server.
 */
int64_t pst_append(struct pst_file *file, const void *buf, size_t size, uint64_t *ret_offset);

/* What was written through this handle has reached the server and is visible to all who open the file. Not durable. */
int pst_flush(struct pst_file *file);
int pst_fsync(struct pst_file *file);

int pst_fstat(struct pst_file *file, struct stat *ret_st);
/* By the rights of the open; those of the moment where the client's credential is a user's own. */
int pst_ftruncate(struct pst_file *file, uint64_t size);
int pst_fchmod(struct pst_file *file, mode_t mode);
int pst_fchown(struct pst_file *file, uid_t uid, gid_t gid);
int pst_futimens(struct pst_file *file, const struct timespec *times);
/* mode as fallocate(2): 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE; others -EOPNOTSUPP. */
int pst_fallocate(struct pst_file *file, int mode, uint64_t offset, uint64_t size);
/* whence: SEEK_DATA or SEEK_HOLE. The offset; -ENXIO past the end. */
int64_t pst_seek(struct pst_file *file, uint64_t offset, int whence);

/* ---- asynchronous operations ---- */

#define PST_AIO_READ  1
#define PST_AIO_WRITE 2
#define PST_AIO_FSYNC 3

struct pst_event {
    struct pst_file *file;
    void *cookie;     /* the submitter's */
    int kind;         /* PST_AIO_* */
    int64_t result;   /* bytes, 0, or a negative errno value */
    uint64_t offset;  /* where a write went (O_APPEND) */
};

/* depth: operations that may be submitted and not yet fetched by pst_eq_poll, 1..65536. */
int pst_eq_create(struct pst_fs *fs, unsigned int depth, struct pst_eq **ret_eq);
/* Waits until all operations are done; drops events that were not fetched. NULL is allowed. */
void pst_eq_destroy(struct pst_eq *eq);
/* Readable (poll, epoll) while events wait to be fetched. Belongs to eq: do not read or close it. */
int pst_eq_fd(struct pst_eq *eq);
/*
 * Up to max events; waits for one up to timeout_ms (0: polls, -1: no limit). Returns 0 at once if nothing is under way.
 */
int pst_eq_poll(struct pst_eq *eq, struct pst_event *ret_events, int max, int timeout_ms);

/*
 * Begin an operation. The memory that iov names belongs to the library until the event was fetched; the iov array may
 * be reused at once. At most 8 MiB and 64 parts each. Operations complete in any order; two that overlap, with one of
 * them a write, have the order that their submitter makes by waiting. Earlier pst_pwrite calls on the file come first.
 * Writes are not kept back: their event says that they reached the server. A read past the end of the file returns 0,
 * across it short.
 * -EAGAIN: depth operations are under way: fetch events first.
 */
int pst_aio_read(struct pst_file *file, const struct iovec *iov, int iovcnt, uint64_t offset, struct pst_eq *eq,
                 void *cookie);
int pst_aio_write(struct pst_file *file, const struct iovec *iov, int iovcnt, uint64_t offset, struct pst_eq *eq,
                  void *cookie);
int pst_aio_fsync(struct pst_file *file, struct pst_eq *eq, void *cookie);
/*
 * Asks for an early end of all operations of eq with this cookie. The event comes in every case, and only with it the
 * memory is the caller's again: no byte lands in it later. Its result is -ECANCELED, or what it would have been; a
 * write that was cancelled may have happened or not, as after -ETIMEDOUT. Returns how many were under way.
 */
int pst_aio_cancel(struct pst_eq *eq, void *cookie);

/*
 * Makes memory known to the data connections, so that reads and writes within it move without a copy. Costly: do it
 * once for memory that is used often. addr and size: multiples of 4096. -ENOSPC: more than 256 regions, or `ulimit -l`.
 * Pays on servers' connections only, allowed on all.
 */
int pst_buf_register(struct pst_fs *fs, void *addr, size_t size, struct pst_buf **ret_buf);
/*
 * New memory that is known so, page aligned, of a multiple of 4096 bytes. Where a daemon of the same machine takes
 * memory (data.export_listen) it is handed to it, and the daemon places the bytes: then a child of fork shares it.
 * -ENOMEM, -ENOSPC.
 */
int pst_buf_alloc(struct pst_fs *fs, size_t size, struct pst_buf **ret_buf, void **ret_addr);
/*
 * After it returned 0 no peer can reach the memory; what pst_buf_alloc made is gone. -EBUSY while operations on it are
 * under way: it stays. NULL is allowed.
 */
int pst_buf_unregister(struct pst_buf *buf);

/* ---- pools and containers ---- */

/* Labels: 1..127 of A-Z a-z 0-9 . _ - */
struct pst_pool {
    char label[128];
    unsigned char uuid[16];
    uint64_t quota_bytes; /* space promised to it; 0: all that the store has */
    uint64_t used_bytes;
    uint64_t objects;
    uint32_t containers;
    uint32_t uid, gid, mode; /* owner; mode bits: r list, w create and destroy containers, x open containers */
};

struct pst_container {
    char label[128];
    char pool[128];
    unsigned char uuid[16];
    uint64_t id;             /* never used twice in a store */
    uint64_t chunk_size;     /* unit of placement: a power of two, 64 KiB..16 MiB; 0 when creating: 1 MiB */
    uint64_t quota_bytes;    /* 0: the pool's */
    uint32_t uid, gid, mode; /* of the root directory; mode 0 when creating: 0755 */
    uint64_t used_bytes;
    uint64_t objects;
    int64_t created_ns; /* since 1970 */
};

/*
 * url: penstock://host[:port] or local:/directory; what follows (a pool, a container) is ignored. Errors as
 * pst_connect.
 */
int pst_admin_open(const char *url, const struct pst_options *options, struct pst_admin **ret_admin);
void pst_admin_close(struct pst_admin *admin); /* NULL is allowed */

/* `in`: label, quota_bytes, uid, gid, mode are looked at. ret_pool may be NULL. -EEXIST, -EPERM, -ENOSPC. */
int pst_pool_add(struct pst_admin *admin, const struct pst_pool *in, struct pst_pool *ret_pool);
int pst_pool_get(struct pst_admin *admin, const char *label, struct pst_pool *ret_pool); /* -ENOENT */
/* In the order of labels; a fn result other than 0 ends the listing and is returned. */
int pst_pool_each(struct pst_admin *admin, int (*fn)(const struct pst_pool *pool, void *user), void *user);
/* -ENOTEMPTY while it has containers, unless force: then they and all their data are destroyed too. */
int pst_pool_remove(struct pst_admin *admin, const char *label, int force);

/* `in`: label, pool, chunk_size, quota_bytes, uid, gid, mode are looked at. ret_container may be NULL. */
int pst_container_add(struct pst_admin *admin, const struct pst_container *in, struct pst_container *ret_container);
int pst_container_get(struct pst_admin *admin, const char *pool, const char *label,
                      struct pst_container *ret_container);
int pst_container_each(struct pst_admin *admin, const char *pool,
                       int (*fn)(const struct pst_container *container, void *user), void *user);
/* With all its data. -EBUSY while someone has it open. */
int pst_container_remove(struct pst_admin *admin, const char *pool, const char *label);

#ifdef __cplusplus
}
#endif

#endif

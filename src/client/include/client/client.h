/*
 * What the mount and the public API (penstock.h) stand on: an opened container of any store (embedded or remote), with
 * threads that drive its data queues, and file handles with bounded write-behind.
 *
 * Namespace operations go straight to the store interface on cl_cont() (pst_store_lookup and the rest), except those
 * that must see written data first: use cl_getattr, cl_setattr, cl_open for these.
 * All calls are thread-safe and block the caller; asynchronous ones are cl_submit's.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include "store/store.h"

struct client;
struct cl_file;

struct cl_options {
    uint32_t threads;           /* data queues, each with a thread; 0: 2 */
    uint32_t depth;             /* operations in flight per queue; 0: 64 */
    uint64_t write_behind;      /* bytes of dirty data kept at most, all files together; 0: 64 MiB */
    uint64_t read_ahead;        /* bytes fetched ahead of a sequential reader, per file; 0: 4 MiB; UINT64_MAX: none */
    uint32_t timeout_ms;        /* of one operation, reconnecting included; 0: 30000 */
    bool create;                /* make the pool and the container if they are not there */
    bool durable_close;         /* cl_close is cl_fsync as well (durability=close) */
    const char *client;         /* penstock: only: "HEX:N", see struct session_config; NULL: a new one */
    const char *purpose;        /* "mount", "cli", "api": for the server's status */
    const char *token_file, *ca_file, *cert_file, *key_file; /* credentials; NULL: from the environment or found */
    bool insecure;              /* plain text off loopback */
    bool require_rdma;
    const char *provider;       /* libfabric provider; NULL: what the server offers, best first */
    const struct pst_option *store_opts; /* of the engine, or of the connection (placement=) */
    size_t nstore_opts;
    /*
     * Filters between this client and its store, as filter_push reads them, the lowest first; ended by NULL. NULL:
     * those of the environment variable PENSTOCK_FILTERS, separated by blanks.
     */
    const char *const *filters;
};

/*
 * url: penstock://host[:port]/pool/container or local:/dir?pool/container ("local:/dir" alone: pool and container
 * "default").
 */
int cl_connect(const char *url, const struct cl_options *o, struct client **ret, char *err, size_t err_size);
/* Flushes; the first error that no close or fsync has reported, or 0. */
int cl_disconnect(struct client *c);
struct pst_store *cl_store(struct client *c);
struct pst_cont *cl_cont(struct client *c);
/*
 * A context for a mutating call on behalf of cred (borrowed). The store below numbers the call for exactly once where
 * a connection can lose the answer; an embedded one needs no number.
 */
void cl_ctx_begin(struct client *c, const struct pst_cred *cred, struct pst_ctx *ret);
/* After the call returned for good (not for a retry). */
void cl_ctx_end(struct client *c, struct pst_ctx *ctx);

/* Like the store's, but pending writes of the object are flushed to the server first. */
int cl_getattr(struct client *c, const struct pst_cred *cred, uint64_t ino, struct pst_attr *ret);
int cl_setattr(struct client *c, const struct pst_cred *cred, uint64_t ino, uint32_t mask, const struct pst_attr *in,
               struct pst_attr *ret);

/* flags of open(2): O_ACCMODE, O_APPEND, O_TRUNC, O_DIRECT (no write-behind), O_SYNC / O_DSYNC (durable writes). */
int cl_open(struct client *c, const struct pst_cred *cred, uint64_t ino, int flags, struct cl_file **ret,
            struct pst_attr *ret_attr);
/* Create and open in one step (O_EXCL honoured). walk: as in struct pst_ctx, or NULL. */
int cl_create(struct client *c, const struct pst_cred *cred, uint64_t parent, const char *walk, const char *name,
              uint32_t mode, int flags, struct cl_file **ret, struct pst_attr *ret_attr);
uint64_t cl_file_ino(const struct cl_file *f);
/* Bytes or -errno. Reads see this client's earlier writes. */
int64_t cl_pread(struct cl_file *f, void *buf, size_t len, uint64_t offset);
/*
 * Write-behind: may return before the bytes are sent; an error then shows at cl_flush, cl_fsync or cl_close. opf, here
 * and below: 0 or PST_OPF_KILL_SETID.
 */
int64_t cl_pwrite(struct cl_file *f, const void *buf, size_t len, uint64_t offset, uint32_t opf);
/*
 * Memory of the client's own, which data connections (and a daemon of this machine) reach without a copy. Who has got
 * it owns it until cl_mem_put. NULL: no memory.
 */
#define CL_MEM (1 * MiB)
struct cl_mem {
    struct list link; /* the client's */
    uint8_t *data;    /* page aligned */
    size_t size;      /* CL_MEM; smaller ones stay inside of the client */
};
struct cl_mem *cl_mem_get(struct client *c);
void cl_mem_put(struct client *c, struct cl_mem *m);
/* cl_pwrite of the first len <= CL_MEM bytes of *m. The client may keep that memory: *m is another one then. */
int64_t cl_pwrite_mem(struct cl_file *f, struct cl_mem **m, size_t len, uint64_t offset, uint32_t opf);
/* ret_offset: where the bytes went; may be NULL. */
int64_t cl_append(struct cl_file *f, const void *buf, size_t len, uint64_t *ret_offset, uint32_t opf);
/*
 * Everything written through this handle has reached the server; reports what failed. Only cl_fsync reports it once: a
 * flush may be the close of a copy of the descriptor, in a child that does not look at the result.
 */
int cl_flush(struct cl_file *f);
int cl_flush_durable(struct cl_file *f); /* cl_flush and cl_fsync */
int cl_fsync(struct cl_file *f);
/* mode: as in fallocate(2). */
int cl_fallocate(struct cl_file *f, int mode, uint64_t offset, uint64_t len, uint32_t opf);
int64_t cl_lseek(struct cl_file *f, uint64_t offset, int whence); /* SEEK_DATA, SEEK_HOLE */
/* Flushes (and syncs, see durable_close), releases. The handle is gone in every case. */
int cl_close(struct cl_file *f);
int cl_fsync_dir(struct client *c, uint64_t ino);
int cl_syncfs(struct client *c);

/* One operation, asynchronously: done(op) is called from a data thread and must not block. */
int cl_submit(struct client *c, struct pst_op *op, void (*done)(struct pst_op *op, void *user), void *user);

/* Facts for status and tests: provider, RDMA or not, reconnects. fn(user, key, value). */
void cl_describe(struct client *c, void (*fn)(void *user, const char *key, const char *value), void *user);

#endif

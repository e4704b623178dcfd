/*
 * Data plane transport on libfabric (loaded by dlopen): connected endpoints (FI_EP_MSG), registered buffers, RMA.
 *
 * A `fab` is a chosen provider. A `fab_shard` is a domain with its completion queue, driven by ONE thread: every call
 * on a shard, its connections and buffers comes from that thread, except where said otherwise. All results come as
 * callbacks out of fab_progress, never from inside another call.
 *
 * Rules kept here (docs/architecture.md): receives are posted before a connection is up; each message fits a receive
 * buffer; a sender never has more messages under way than the credits that the other side stated at connect;
 * FI_ORDER_SAW is asked for and relied on: a SEND after RMA writes on one connection arrives after their bytes.
 * A wrong key or a dead peer ends that connection only: on_closed, after all its operations have come back.
 *
 * fork: nothing of a fab is usable in a child, not even to close it; the child opens its own (no handlers are
 * installed). A server's sockets are inherited by programs that it starts, as libfabric makes them so; a client's are
 * not.
 */
#ifndef FABRIC_FABRIC_H
#define FABRIC_FABRIC_H

#include "base/list.h"

#include <sys/socket.h>
#include <sys/uio.h>

#define FAB_MSG_MAX     8192u /* bytes in a message: header, capability or an inline payload of 4 KiB and more */
#define FAB_CREDITS     64u   /* default messages under way in each direction of a connection */
#define FAB_CREDITS_MAX 1024u
/*
 * Bytes that a caller may send with a connect request. verbs leaves 55 (rdma_cm has 56 for itself and the user, and
 * libfabric takes one), tcp and net 256; the first 6 are this layer's own: version, credits, message size.
 */
#define FAB_CM_DATA_MAX  48u
#define FAB_RMA_IOV_MAX  4u     /* local segments of one RMA; the remote side is one range */
#define FAB_SPIN_US      20u    /* default of spin_us */
#define FAB_CONNECT_MS   10000u /* defaults of connect_ms and half_open_ms */
#define FAB_HALF_OPEN_MS 5000u

struct fab_config {
    /*
     * "tcp", "net", "verbs", ...; "uroce": verbs, on the drop-in verbs libraries of uroce instead of the system's,
     * which a process can only have if it has not loaded the system's before. NULL or "auto": verbs if a device is
     * there, else tcp.
     */
    const char *provider;
    const char *device; /* libfabric's domain name ("mlx5_0", "uroce0", "eth0"); NULL: the first one */
    bool uroce_instead; /* provider verbs: on uroce where the system has no RDMA device */
    bool require_rdma;    /* -ENODEV with a reason instead of a provider without RDMA */
    /*
     * 0: FAB_CREDITS; at most FAB_CREDITS_MAX and what the provider's receive queue holds. A connection has the smaller
     * number of both sides. A credit costs 24 KiB of address space in each connection, touched when used.
     */
    uint32_t credits;
    uint32_t spin_us;      /* busy polling before sleeping in fab_progress; UINT32_MAX: never sleep; 0: FAB_SPIN_US */
    uint32_t connect_ms;   /* a connection that is not up by then is given up, on both sides */
    uint32_t half_open_ms; /* a TCP connection to a listener that has sent no connect request by then is cut off */
};

/* Facts of a chosen provider, for status. */
struct fab_info {
    char provider[32], device[64]; /* device "any": the kernel's routes choose, for each connection */
    char library[64];  /* libfabric's version */
    bool rdma;         /* the bytes are moved by RDMA, by hardware or by uroce */
    char verbs[8];     /* whose verbs the process has: "system", "uroce", "none" */
    uint64_t mr_mode;  /* as libfabric says */
    size_t inject_max; /* bytes */
};

struct fab;
struct fab_shard;
struct fab_conn;
struct fab_mr;

/*
 * 0, or -errno and a line for people in err. cfg strings are borrowed during the call. The first call of a process
 * loads libfabric and sets environment variables for it: before there are threads that look at the environment.
 */
int fab_open(const struct fab_config *cfg, struct fab **ret, char *err, size_t err_size);
void fab_close(struct fab *f); /* all shards are closed before */
const struct fab_info *fab_info(const struct fab *f);

struct fab_callbacks {
    /*
     * A peer asks to connect with its data (<= FAB_CM_DATA_MAX bytes). Return a pointer to keep with the connection to
     * accept, NULL to refuse. Servers only.
     */
    void *(*on_connect)(struct fab_conn *c, const void *data, size_t len, void *user);
    void (*on_connected)(struct fab_conn *c, void *conn_user);
    /* The bytes are lent until the callback returns; then the credit goes back. */
    void (*on_message)(struct fab_conn *c, const void *msg, size_t len, void *conn_user);
    /*
     * Once per connection that on_connect accepted or fab_connect began; c is gone after it. err 0 after an orderly end
     * (fab_disconnect, here or there), else -errno: -ECONNREFUSED, -ETIMEDOUT, -ECONNRESET (the peer died or broke a
     * rule), ...
     */
    void (*on_closed)(struct fab_conn *c, int err, void *conn_user);
    /* May be NULL. A connection on which fab_send returned -EAGAIN takes messages again. */
    void (*on_sendable)(struct fab_conn *c, void *conn_user);
};

/* 0 or -errno; -ENOTSUP: somebody else loaded libfabric with its registration cache on (FI_MR_CACHE_MONITOR). */
int fab_shard_open(struct fab *f, const struct fab_callbacks *cb, void *user, struct fab_shard **ret);
/*
 * Ends all connections (on_closed is called), drains, ends all registrations, frees. fab_mr_close and fab_pool_free may
 * come before or after.
 */
void fab_shard_close(struct fab_shard *s);
/* Listens; port 0 takes a free one. ret_bound: the address to hand to clients. */
int fab_listen(struct fab_shard *s, const struct sockaddr *addr, socklen_t len, struct sockaddr_storage *ret_bound,
               socklen_t *ret_len);
/*
 * Handles what is there, calls back; sleeps up to timeout_ns (UINT64_MAX: no limit) when nothing is. Returns the number
 * of events, or -errno when the transport is broken for good. fab_wake makes it return. Not from inside a callback.
 */
int fab_progress(struct fab_shard *s, uint64_t timeout_ns);
/* Sends what fab_send has collected: for a thread that does something else before it drives the fabric again. */
void fab_flush(struct fab_shard *s);
/* Any thread. */
void fab_wake(struct fab_shard *s);
/*
 * For a caller that sleeps on several descriptors: fab_arm returns true if it may sleep until one of fab_fds is
 * readable
 * (POLLIN; time-outs of connections are among them), false: progress first. Returns the number of descriptors, which is
 * at most FAB_FDS_MAX; they stay the same until fab_shard_close.
 */
#define FAB_FDS_MAX 1
bool fab_arm(struct fab_shard *s);
int fab_fds(struct fab_shard *s, int *ret_fds, int max);

/* Begins to connect; on_connected or on_closed follows. data: the ticket. */
int fab_connect(struct fab_shard *s, const struct sockaddr *addr, socklen_t len, const void *data, size_t data_len,
                void *conn_user, struct fab_conn **ret);
/*
 * Cuts the connection: on_closed follows once all operations have come back (those under way with -ECONNRESET).
 * Messages that were just sent may be lost. Idempotent; until on_closed the other calls return -ENOTCONN.
 */
void fab_disconnect(struct fab_conn *c);
/* "192.0.2.1:4711"; valid while the connection lives. */
const char *fab_conn_peer(const struct fab_conn *c);

/* ---- memory ---- */

#define FAB_LOCAL        0u /* source or target of our own operations */
#define FAB_REMOTE_READ  1u /* the peer may read it */
#define FAB_REMOTE_WRITE 2u /* the peer may write it */
/*
 * Registers memory with this shard's domain. Remote keys are random where the provider lets us choose, per
 * registration. The memory is the caller's and must outlive it. Cost: tens of microseconds and more: never per I/O.
 */
int fab_mr_reg(struct fab_shard *s, void *addr, size_t len, uint32_t access, struct fab_mr **ret);
/*
 * The same of a memfd with F_SEAL_SHRINK that is mapped there from its beginning (-1: it is none): where fab_shares
 * says so, peers on this machine that may read this process's memory map it instead of copying by the kernel.
 */
int fab_mr_reg_memfd(struct fab_shard *s, void *addr, size_t len, uint32_t access, int memfd, struct fab_mr **ret);
bool fab_shares(const struct fab *f);
bool fab_rdma_device(void); /* an RDMA device that the kernel knows; loads nothing */
/*
 * No remote access begins after the return. One that a peer began before may still be under way (a software provider
 * takes a long transfer in pieces, inside fab_progress): memory that was named in an unanswered request is free for
 * other use only after on_closed of the connection that carried the request (contract 3).
 */
void fab_mr_close(struct fab_mr *m);
/* What a peer needs to reach `p` inside the registered memory. */
void fab_mr_remote(const struct fab_mr *m, const void *p, uint64_t *ret_addr, uint64_t *ret_key);

/* A pool of equal registered buffers, prefaulted once and reused; its total is the bound (contract 8). */
struct fab_pool;
struct fab_buf {
    struct list link; /* the holder's */
    void *data;       /* page aligned */
    size_t size;
    struct fab_mr *mr;
    struct fab_pool *pool;
};
int fab_pool_new(struct fab_shard *s, size_t buf_size, uint32_t count, uint32_t access, struct fab_pool **ret);
void fab_pool_free(struct fab_pool *p);
/* All of its memory, page aligned: for who registers it elsewhere too. */
void fab_pool_memory(const struct fab_pool *p, void **ret_base, size_t *ret_len);
/* NULL: all are in use. */
struct fab_buf *fab_buf_get(struct fab_pool *p);
void fab_buf_put(struct fab_buf *b);

/* ---- operations ---- */

/*
 * One RMA: the submitter's until fn is called, out of fab_progress, with 0 or -errno. It comes back in every case, also
 * when the connection ends.
 */
struct fab_rma {
    struct list link;
    bool write; /* to the peer; else read from it */
    struct fab_mr *mr[FAB_RMA_IOV_MAX];
    struct iovec iov[FAB_RMA_IOV_MAX];
    uint32_t iovcnt;
    uint64_t remote_addr, remote_key;
    void (*fn)(struct fab_rma *r, int err);
    uint64_t priv[10];
};
/*
 * Queued inside if the provider's queue is full: never -EAGAIN. -ENOTCONN before on_connected and after the end;
 * -EINVAL
 * for no segment, an empty one, or one outside its registration (fn is not called then).
 */
int fab_rma(struct fab_conn *c, struct fab_rma *r);
/*
 * Copies a message of at most FAB_MSG_MAX bytes and sends it, in order with this connection's RMA. Those of one turn
 * go together: at the latest with the next fab_progress or fab_arm, or with fab_flush.
 * -EAGAIN: no credit, on_sendable tells when there is one again; -EMSGSIZE; -ENOTCONN.
 * Where the peer never has more than fab_credits requests unanswered, there is always a credit for an answer; still
 * -EAGAIN may come while the provider is behind with what was sent.
 */
int fab_send(struct fab_conn *c, const struct iovec *iov, uint32_t iovcnt);
uint32_t fab_send_credits(const struct fab_conn *c);
/* Messages under way in each direction at most: a server ends a connection with more requests unanswered than this. */
uint32_t fab_credits(const struct fab_conn *c);

struct fab_conn_stats {
    uint64_t msgs_in, msgs_out, frames_in, rma_bytes_in, rma_bytes_out, errors;
};
void fab_conn_stats(const struct fab_conn *c, struct fab_conn_stats *ret);

#endif

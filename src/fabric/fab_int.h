/* Inside of src/fabric: what its files share. Everything of a shard belongs to the thread that drives it. */
#ifndef FABRIC_FAB_INT_H
#define FABRIC_FAB_INT_H

#include "base/endian.h"
#include "fabric/fabric.h"

#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define FAB_API FI_VERSION(1, 14) /* the interface that we ask for; all that is newer has it */

/* The functions of libfabric that are real symbols; the others are inline calls through tables. */
struct fab_lib {
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
                   struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
    const char *(*strerror)(int err);
    uint32_t (*version)(void);
};

/* ---- verbs_lib.c: which verbs library libfabric gets ---- */

/*
 * Loads uroce's libibverbs and librdmacm, for good, or finds them loaded. -EBUSY: the process has the system's;
 * -ENOENT: not installed; with a line in err. Before fab_lib_load.
 */
int fab_verbs_use_uroce(char *err, size_t err_size);
/* "uroce", "system" or "none" (none is loaded). */
const char *fab_verbs_name(void);
/* uroce's: processes of this machine may map this memory. And no more. */
bool fab_verbs_lend(void *addr, size_t len, int memfd);
void fab_verbs_take_back(void *addr);

/* Loads the library once per process. 0 or -ENOENT with a line in err. */
int fab_lib_load(const struct fab_lib **ret, char *err, size_t err_size);

struct fab {
    const struct fab_lib *lib;
    struct fi_info *info; /* the chosen one */
    struct fab_info facts;
    uint32_t credits;
    uint32_t frame_max; /* bytes behind a header that we send at most, and take where we connect */
    uint64_t spin_ns, connect_ns, half_open_ns;
    bool need_local_mr; /* local buffers need a registration */
    bool tcp_like;      /* the provider runs on kernel TCP sockets of this process */
    bool bounded_cq;    /* a completion queue that overflows is broken */
    bool double_flush;  /* an endpoint must not be closed with a read under way (conn.c) */
    bool sticky_fds;    /* a queue's descriptor stays readable after its first event (shard.c) */
};

/* The transport's own bytes in front of each message. */
struct fab_head {
    uint8_t type, zero;
    le16 credits; /* given back to the receiver of this message */
};
enum { FAB_T_DATA = 1, FAB_T_CREDIT = 2, FAB_T_BYE = 3, FAB_T_SEVERAL = 4 };
/*
 * A frame is a header and a message, or several with their lengths in front. A side that takes frames with several
 * messages says so by announcing more than FAB_MSG_MAX. Who connects over TCP or uroce, where unused pages cost
 * nothing, takes eight answers with a payload in one; RDMA pins all, and who is connected to has many connections.
 */
#define FAB_FRAME_SMALL   8200u
#define FAB_FRAME_LARGE   34816u
#define FAB_SEVERAL_SENT  8u /* in one frame at most: the peer is to be at work while more are made */
#define FAB_SEVERAL_TAKEN 64u
/*
 * Receives beyond the credits: two credit messages and a BYE may be under way (docs/protocol.md), and the message that
 * on_message has in hands counts as free again, so that the answer given there brings its credit back.
 */
#define FAB_EXTRA_RECVS 4u

/* In front of the user's connect and accept data. */
struct fab_hello {
    uint8_t magic, version;
    le16 credits, msg_max;
};
#define FAB_MAGIC   0x50u
#define FAB_VERSION 1u

/* What libfabric hands back with a completion; the first bytes of everything that is posted. */
enum fab_kind { FAB_OP_RECV = 1, FAB_OP_SEND, FAB_OP_RMA };
struct fab_op {
    struct fi_context2 ctx; /* FI_CONTEXT2 mode: the provider's while posted */
    struct fab_conn *conn;
    uint64_t kind;
};
_Static_assert(sizeof(struct fab_op) <= sizeof((struct fab_rma *)0)->priv, "a posted RMA carries its context");

struct fab_slot {
    struct list link; /* sends: free or pending; receives: early */
    struct fab_op op;
    uint8_t *buf;   /* header and messages (msg.c) */
    uint32_t len;   /* of what follows the header */
    uint32_t count; /* sends: messages */
};

enum fab_state {
    FAB_CONNECTING, /* fi_connect or fi_accept is done, FI_CONNECTED has not come */
    FAB_CONNECTED,
    FAB_CLOSING, /* on s->closing: the next fab_progress closes the endpoint; or on s->lingering before that */
};

struct fab_conn {
    struct list link;       /* s->conns */
    struct list state_link; /* s->connecting, s->lingering or s->closing */
    struct list retry_link; /* s->retry: something could not be posted */
    struct list open_link;  /* s->open: it has an open frame */
    struct fab_shard *s;
    struct fid_ep *ep;
    void *user;
    enum fab_state state;
    bool lingers;   /* the BYE is under way */
    bool announced; /* the user knows it: on_closed is owed */
    int err;        /* for on_closed; the first cause stays */
    uint64_t deadline_ns;

    uint8_t *slab; /* all slots' bytes */
    size_t slab_size;
    struct fab_mr *slab_mr;
    struct fab_slot *recvs, *sends; /* one send more than nsends: the BYE's */
    uint32_t nrecvs, nsends;
    struct list free_sends, early, pending;                         /* pending: sends and RMAs in order */
    struct list posted;                                             /* RMAs that the provider has */
    uint32_t recvs_posted, sends_posted, rmas_posted, reads_posted; /* reads are among the RMAs */

    uint32_t granted; /* messages under way in each direction; 0: not known yet */
    uint32_t credits; /* left of it for us */
    uint32_t owed;    /* receives that the peer does not know to be free again */
    uint32_t takes;   /* we: bytes behind a header */
    uint32_t msg_max; /* what the peer takes: a message; all in a frame */
    uint32_t frame_max;
    bool takes_several;
    struct fab_slot *open; /* the frame that is being filled; NULL: none */
    bool credit_msg_due, want_send, counted;

    struct fab_conn_stats stats;
    uint64_t peer_hash;
    char peer[64];
};

struct fab_shard {
    struct fab *f;
    struct fab_callbacks cb;
    void *user;
    /* Each shard has its own fabric: the net provider drives listeners from the fabric object. */
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_eq *eq;
    struct fid_pep *pep;
    struct sockaddr_storage bound;
    int cq_fd, eq_fd, wake_fd, timer_fd, epoll_fd;
    size_t cq_size, cq_used;
    atomic_bool woken;

    struct list conns, connecting, lingering, closing, retry, open, mrs;
    bool tell_due;                 /* a connection on s->retry may have become sendable */
    int broken;                    /* -errno: the completion or event queue failed */
    uint64_t fetched;              /* bytes of RMA reads since the last look for completions */
    uint64_t events, armed_events; /* handled; as of the last fab_arm */
    uint64_t eq_read_ns, eq_reads;
    bool eq_due;          /* something lies in the event queue */
    bool eq_quiet;        /* it was empty, and its descriptor too, and the latter was not seen readable since */
    uint64_t eq_muted_ns; /* until then its descriptor is not looked at; 0: it is */
    uint32_t idle_wakes;
    uint64_t timer_ns;              /* what timer_fd is set to; 0: off */
    uint64_t scan_ns, last_scan_ns; /* next look for half-open connections; 0: none is due */
    struct fab_suspect *suspects;
    size_t nsuspects;
};

struct fab_mr {
    struct list link;    /* s->mrs */
    struct fab_shard *s; /* NULL: the shard has gone, and the registration with it */
    struct fid_mr *mr;   /* NULL: the provider needs none for local use */
    void *desc;
    uint8_t *addr;
    size_t len;
    bool lent; /* fab_verbs_lend */
};

/* "-104" from libfabric's positive or negative codes; codes of its own become -EIO. */
int fab_errno(int64_t fi_err);

#define FAB_LINGER_NS (200 * NSEC_PER_MSEC) /* for a BYE to get through before the cut */

/* mr.c: all registrations of a shard that goes. */
void fab_mrs_drop(struct fab_shard *s);

/* conn.c */
/* On s->conns, without an endpoint. */
struct fab_conn *fab_conn_new(struct fab_shard *s);
/* The endpoint, bound, enabled and with its receives posted. After a failure the connection is to be ended. */
int fab_conn_open(struct fab_conn *c, struct fi_info *info);
/* Closes its endpoint too; only before the user knows of it. */
void fab_conn_drop(struct fab_conn *c);
/* Both sides use the smaller of what both grant. 0 or -EPROTO. */
int fab_conn_grant(struct fab_conn *c, uint32_t credits, uint32_t msg_max);
/* All its operations come back, then on_closed. */
void fab_conn_fail(struct fab_conn *c, int err);
/* Ends all that are to be closed. Returns the number of events. */
int fab_conns_finish(struct fab_shard *s);
/* The BYE is out, or there is no hope for it. */
void fab_conn_linger_end(struct fab_conn *c);
/* Posts again what the provider did not take. */
void fab_conns_retry(struct fab_shard *s);
void fab_conn_retry_later(struct fab_conn *c);
/* "192.0.2.1:4711", "[2001:db8::1]:4711". */
void fab_peer_text(const struct sockaddr *sa, char *buf, size_t size);

/* cm.c */
int fab_cm_events(struct fab_shard *s);
bool fab_cm_waiting(struct fab_shard *s);
/* At the end: connect requests are refused, other events dropped. */
void fab_cm_drop(struct fab_shard *s);
/* Gives up connections that are not up, or not down, in time. */
void fab_cm_deadlines(struct fab_shard *s, uint64_t now);

/* msg.c */
int fab_msg_post_recv(struct fab_conn *c, struct fab_slot *slot);
void fab_msg_arrived(struct fab_conn *c, struct fab_slot *slot, size_t len);
void fab_msg_early(struct fab_conn *c);
void fab_msg_sent(struct fab_conn *c, struct fab_slot *slot);
/* True: it is under way, and its completion comes. */
bool fab_msg_bye(struct fab_conn *c);
/* Posts the open frame, if there is one. Calls nobody back. */
void fab_msg_flush(struct fab_conn *c);
/* The frame that is being filled is not to be sent any more. */
void fab_msg_drop_open(struct fab_conn *c);
void fab_msg_tell_sendable(struct fab_conn *c);
/* 0, -EAGAIN, or -errno after which the connection is to be ended. */
int fab_msg_post(struct fab_conn *c, struct fab_slot *slot);
int fab_msg_flush_credits(struct fab_conn *c);

/* rma.c */
int fab_rma_post(struct fab_conn *c, struct fab_rma *r);
void fab_rma_done(struct fab_rma *r, int err);

/* shard.c: puts a descriptor under those that end a sleep, and takes it out. */
int fab_watch(struct fab_shard *s, int fd);
int fab_unwatch(struct fab_shard *s, int fd);

/* progress.c: at most max completions; the number, or -errno. */
int fab_cq_events(struct fab_shard *s, int max);

/* sockets.c */
void fab_each_socket(void (*fn)(int fd, void *arg), void *arg);
/* Shuts the connection's own socket down, behind libfabric's back, which takes it for the peer's end. */
void fab_socket_cut(struct fab_conn *c);
/* Programs that the process starts do not inherit it: else they would keep the connection up after its death. */
void fab_socket_private(struct fab_conn *c);
/* Of address and port; never 0. */
uint64_t fab_peer_hash(const struct sockaddr *sa);

/* halfopen.c: TCP connections to the listener that are not one of ours (yet). */
void fab_halfopen_tune(struct fab_shard *s);
void fab_halfopen_arm(struct fab_shard *s, uint64_t now);
void fab_halfopen_scan(struct fab_shard *s, uint64_t now);
/* After the last connection, before the listener: nobody waits any more. */
void fab_halfopen_end(struct fab_shard *s);
/* After the last connection and the listener: what libfabric left open. */
void fab_halfopen_done(struct fab_shard *s);

#endif

/*
 * A data queue of the remote store. One owner thread drives it; nothing here is locked but the mailbox.
 *
 * An operation becomes a rop, which is on exactly one list:
 *
 *   free -> waiting -> sent -> done -> (reaped) free           the usual way
 *              ^---------'                                     the connection ended: sent again, same slot and sequence
 *                       sent -> given_up -> free               timed out or cancelled: the operation is back with its
 *                                                              submitter; buffer and slot wait for the answer, or for
 *                                                              the end of the connection (contract 3)
 *   control: an fsync that goes over the session's stream instead
 *   waiting -> fetching -> waiting                             there is no capability for it: one is asked for
 *
 * A rop whose operation names registered memory of the user cannot be given up so: its connection is ended, and the
 * operation comes back once that is done.
 */
#ifndef REMOTE_QUEUE_H
#define REMOTE_QUEUE_H

#include "remote.h"

enum conn_state {
    CONN_DOWN,       /* until retry_at_ns */
    CONN_TICKET,     /* the session fetches one */
    CONN_CONNECTING,
    CONN_UP,
    CONN_CLOSING,    /* on_closed is to come */
};

struct rop {
    struct list link;    /* one of the queue's lists */
    struct list age;     /* queue.ages, oldest first, while it has an operation */
    struct pst_op *op;   /* NULL: a binding, or given up */
    uint32_t index;
    uint64_t trace; /* with the index: the tag */
    uint64_t deadline_ns;
    int ended;           /* -ETIMEDOUT, -ECANCELED: what it ends with when its connection is closed; 0 */
    uint8_t opcode;
    uint64_t msgno;      /* of the request that is unanswered */
    uint64_t length;
    bool is_control, is_begun; /* over the stream; the session has it */
    bool is_doubted;           /* it was answered -ESTALE, and `doubt` is to tell of what */
    uint64_t doubt;
    bool is_fetching;     /* in a struct rfetch, or (fetch NULL) its answer is in the mailbox, or about to be */
    struct rfetch *fetch; /* rcont.lock */
    uint64_t cap_id;      /* what it was sent with; or is to be bound */
    int cap_err;          /* why that could not be bound */
    uint32_t slot;       /* + 1; 0: none */
    bool is_origins;     /* it was sent with the slot and sequence of an origin */
    uint64_t seq;
    uint64_t epoch;      /* the session in which the request was sent last; 0: it was not */
    uint32_t bind;       /* a binding: number of the capability */
    bool is_marked;      /* a sync: `mark` is remote_mark before it was sent for the first time */
    uint64_t mark;
    /* the memory in its request: in the message, a run of the arena, or regions of the table */
    bool is_inline;
    bool is_exported; /* named by an export: see rq_export_end */
    bool is_third;    /* reached by queue.third, with what is known of its end: */
    bool has_reply, is_noticed, is_gone; /* `kept`; the server's notice; queue.third was closed */
    bool is_again;    /* not by queue.third: that has failed */
    bool is_far;      /* an agent's: of a third party, sent once */
    struct dp_reply kept;
    uint64_t replied_ns; /* when `kept` came */
    uint32_t run, run_len; /* grains; 0: none */
    uint32_t nregions;
    struct mem_region *region[DP_SEGS_MAX];
    struct session_async async;
    struct rqueue *q;
    struct list mail;    /* queue.mail; or rfetch.waiters */
    int mail_err;
};

struct qslot {
    uint32_t number;
    uint64_t free_at_ns; /* 0: free; UINT64_MAX: in use */
};

struct qregion {
    struct mem_region *region;
    struct fab_mr *mr; /* NULL: could not be registered, and is not tried again */
    struct rexport *export; /* NULL: not of a kind that can be handed over */
};

struct rconn {
    enum conn_state state;
    struct fab_conn *fc;
    struct pst_mac *mac;
    uint64_t msgno, epoch, history;
    uint32_t limit, unanswered; /* requests */
    uint64_t retry_at_ns, retry_ns;
    bool refused; /* told that the server offers nothing that can be used */
    struct session_ticket ticket;
    _Atomic bool ticket_ready;
    uint32_t nbinds, next_victim;
    uint64_t bind[BINDS_MAX]; /* cap_id by number; 0: none */
};

enum third_state { THIRD_OFF, THIRD_ASKING, THIRD_CONNECTING, THIRD_GREETING, THIRD_UP, THIRD_CLOSING };

/* third.c */
struct rthird {
    enum third_state state;
    struct fab_conn *fc;
    struct pst_mac *mac;
    uint64_t number, heard; /* heard: messages */
    uint64_t retry_at_ns, retry_ns, greeting_at_ns;
    uint64_t heard_ns, late_at_ns; /* the last message; when notices are looked for that do not come, 0: never */
    uint32_t limit, named; /* requests that name it */
    bool is_tried;         /* since the agent's connection is up */
    bool is_draining;      /* that one has ended: what it left is over when this one is closed */
    struct session_ticket ticket;
    _Atomic bool is_ready;
};

struct rqueue {
    struct pst_queue q;
    struct list link; /* remote.queues */
    struct remote *r;
    uint32_t number, depth, count; /* count: operations not reaped yet */
    struct fab_shard *shard; /* NULL until data is to be moved: opening it takes a while */
    const struct remote_way *way; /* its own */
    struct rconn conn;
    struct rthird third;
    int epoll_fd, timer_fd, wake_fd;
    _Atomic bool woken; /* wake_fd is readable */
    /* Other threads between telling the owner something and the wake that follows: the queue outlives them. */
    _Atomic uint32_t wakers;
    uint64_t timer_at_ns;
    int broken; /* the transport is, with this -errno: every operation fails */

    uint32_t nrops;
    struct rop *rops;
    struct list free, waiting, sent, given_up, control, fetching, done, ages;

    uint32_t slot_first, nslots;
    struct qslot *slots;

    uint8_t *arena;
    uint64_t arena_bytes;
    struct fab_mr *arena_mr;
    int arena_fd; /* the memfd that it is, for the export or the transport; -1 */
    struct rexport *arena_export; /* NULL: the daemon takes none, or that was not possible */
    int export_epoll;             /* of the exports' connections; in epoll_fd */
    uint32_t exports_live, exports_pending, exports_ending;
    bool draining; /* the connection is closed, and what it left is over when no export is ending any more */
    uint64_t export_look_ns;
    struct bitmap arena_used; /* grains */
    struct mem_holder holder;
    uint64_t mem_generation;
    uint32_t nregions;
    struct qregion region[QREGIONS_MAX];

    pthread_mutex_t mail_lock;
    struct list mail; /* struct rop.mail: control requests and fetches that came back */
};

/* ---- mem.c ---- */
int rq_mem_open(struct rqueue *q);
void rq_mem_leave(struct rqueue *q); /* nobody wakes the shard any more */
void rq_mem_close(struct rqueue *q); /* after the shard is closed: nobody reaches the memory any more */
/* Ends registrations of regions that are being removed. */
void rq_mem_check(struct rqueue *q);
/*
 * Memory for the request: regions where all of iov lies in some, else a run of the arena (a write's bytes are copied
 * there). -EAGAIN: no room now.
 */
int rq_mem_prepare(struct rqueue *q, struct rop *p, struct dp_request *ret);
/* Where the bytes of a rop's run are. */
uint8_t *rq_mem_run(struct rqueue *q, const struct rop *p);
void rq_mem_release_rop(struct rqueue *q, struct rop *p);

/* ---- export.c ---- */
struct rexport;
struct rexport *rq_export_new(int memfd, uint64_t bytes); /* NULL: it cannot be handed over, or no memory */
void rq_export_free(struct rqueue *q, struct rexport *e); /* accepts NULL */
/* The segment's address and key where the daemon has the memory; false: not now, and a hand-over is begun. */
bool rq_export_use(struct rqueue *q, struct rexport *e, uint64_t offset, struct dp_seg *ret);
/* The connection has ended. True: what it left unanswered may be in use until rq_export_step says so. */
bool rq_export_end(struct rqueue *q);
/* Hears what the daemon says. True: the exports that were to end have ended. */
bool rq_export_step(struct rqueue *q, uint64_t now);

/* ---- third.c ---- */
void rq_third_step(struct rqueue *q, uint64_t now);
/* placement=third-party: requests wait until the connection is there, or has failed once. */
bool rq_third_is_pending(struct rqueue *q);
/* Makes the request, whose segments are of registered memory, one with THIRD; false: not now. */
bool rq_third_use(struct rqueue *q, struct rop *p, struct dp_request *req);
void rq_third_unuse(struct rqueue *q, struct rop *p);
/* Answers of requests with THIRD; ends them as far as that can be. */
void rq_third_reply(struct rqueue *q, struct rop *p, const struct dp_reply *y);
void rq_third_resolve(struct rqueue *q, struct rop *p);
void rq_third_cut(struct rqueue *q);
/* The agent's connection has ended. True: what it left unanswered may be in use until rq_third_closed says so. */
bool rq_third_end(struct rqueue *q);
/* Of the connection (q->third.fc). */
void rq_third_connected(struct rqueue *q);
void rq_third_message(struct rqueue *q, const void *msg, size_t len);
bool rq_third_closed(struct rqueue *q, int err);
void rq_third_destroy(struct rqueue *q);
/* An agent's: the segments of op->far. -ENOLINK: of another session. */
int rq_far_place(struct rqueue *q, struct rop *p, struct dp_request *req);

/* ---- wire.c ---- */
uint8_t rq_opcode(const struct pst_op *op);
/* The end of an answered request: p is on no list of what is under way any more. */
void rq_wire_answered(struct rqueue *q, struct rop *p, struct dp_reply *y);
/* Sends the request: 0, -EAGAIN (no slot, memory or credit now), or what the operation ends with. */
int rq_wire_send(struct rqueue *q, struct rop *p);
void rq_wire_message(struct rqueue *q, const void *msg, size_t len);

/* ---- conn.c ---- */
extern const struct fab_callbacks rq_conn_callbacks;
/* Connects, connects again: whatever is due. */
void rq_conn_step(struct rqueue *q, uint64_t now);
/* After rq_export_step said that the exports of the closed connection are over. */
void rq_conn_drained(struct rqueue *q);
/* The server's shard that queues of this number use. -EHOSTUNREACH. */
int rq_endpoint(struct remote *r, const struct remote_way *way, uint32_t number, struct session_shard *ret);
/* Ends it; what was sent is sent again over the next one. */
void rq_conn_end(struct rqueue *q);
bool rq_conn_can_send(const struct rqueue *q);
/* Number of the bound capability; new: it has to be bound first (conn_bound tells that this is under way). */
uint32_t rq_conn_bind_number(struct rqueue *q, uint64_t cap_id, bool *ret_new);
void rq_conn_unbind(struct rqueue *q, uint32_t number);
/* 0 and sent; -EAGAIN; -ENOTCONN. Counts the message. */
int rq_conn_send(struct rqueue *q, struct dp_request *req);

/* ---- queue_control.c ---- */
/* Begins what waits; takes what came back. */
void rq_control_step(struct rqueue *q);
void rq_control_mail(struct rqueue *q);
/* To the operation's owner, from any thread. */
void rq_mail(struct rop *p, int err);

/* ---- kept.c ---- */
/*
 * Asks for a capability with these rights, as the user that the operation is for. -EINPROGRESS: its answer comes by
 * mail; or what session_begin says.
 */
int rq_fetch(struct rop *p, uint32_t rights);
bool rq_fetch_leave(struct rop *p); /* false: its mail comes all the same */
void rq_fetched(struct rqueue *q, struct rop *p); /* it has come */
void rq_fetch_step(struct rqueue *q);

/* ---- queue.c ---- */
struct rop *rq_rop(struct rqueue *q); /* NULL: none is free */
void rq_free(struct rqueue *q, struct rop *p);
void rq_finish(struct rqueue *q, struct rop *p, int64_t result);
/* After the answer of a request, or the end of its connection: slot and memory are free. */
void rq_settle(struct rqueue *q, struct rop *p);
/* The connection is closed: everything sent waits again, what was given up is over. */
void rq_requeue(struct rqueue *q);
int rq_slot(struct rqueue *q, struct rop *p);
/*
 * Not the operations that are sent; the next ones are tried. over: what was sent of them in an earlier session does not
 * come any more once there is another one.
 */
void rq_fail_waiting(struct rqueue *q, int err, bool over);
/* While there is no connection: shard and memory by the way that is in use now. False: the transport is broken. */
bool rq_shard_again(struct rqueue *q);
void rq_wake(struct rqueue *q); /* any thread */
static inline uint64_t rq_tag(const struct rop *p)
{
    return p->trace << TRACE_SHIFT | p->index;
}

#endif

/* Inside of the communication manager's engine. */
#ifndef CM_IMPL_H
#define CM_IMPL_H

#include "base/list.h"
#include "base/rng.h"
#include "cm/cm.h"
#include "limits.h"
#include "roce/wire_gid.h"

#include <errno.h>
#include <string.h>

enum cm_state {
    CM_IDLE,
    CM_LISTEN,
    CM_REQ_SENT,
    CM_REQ_RCVD,
    CM_REP_SENT,
    CM_REP_RCVD,
    CM_ESTABLISHED,
    CM_DREQ_SENT,
    CM_TIMEWAIT,
    CM_SIDR_REQ_SENT,
    CM_SIDR_REQ_RCVD,
    CM_SIDR_DONE,
    CM_CLOSED, /* nothing is known of it any more, but its owner has it */
    CM_STATES,
};

struct cm_id {
    struct cm_engine *e;
    void *user;
    enum uroce_cm_space space;
    enum cm_state state;
    bool owned;     /* the owner has not freed it */
    bool active;    /* this side has connected */
    bool tell_exit; /* TIMEWAIT_EXIT when timewait is over */
    uint32_t local_id;
    struct list by_local, by_remote, by_qpn, out, all;

    /* bind.c */
    struct list bind_link;
    bool bound, any, any_v6, v6_only, reuse, routed;
    struct uroce_cm_addr local, remote;

    /* listener */
    uint32_t backlog, waiting;
    struct list children; /* of requests that nobody has taken, by child_link */
    struct list child_link;
    struct cm_id *listener; /* while waiting counts this one */

    /* connection */
    struct cm_path path;
    uint32_t remote_id, remote_qpn, local_qpn, local_psn, remote_psn;
    uint64_t remote_guid, service_id, tid;
    uint8_t mtu, mtu_max, responder_resources, initiator_depth, retry_count, rnr_retry_count, ack_timeout;
    struct uroce_cm_ece remote_ece;
    struct uroce_cm_param param; /* of connect: for a second request with a smaller MTU */

    /* What is sent again, and when. */
    uint8_t mad[WIRE_MAD_BYTES];
    bool has_mad, mra_wanted;
    uint32_t tries, refused;
    uint64_t deadline;
    uint32_t heap_at; /* index in the heap + 1; 0: not there */
};

struct reply {
    struct cm_path path;
    uint8_t mad[WIRE_MAD_BYTES];
};

struct cm_engine {
    struct cm_config cfg;
    struct cm_ops ops;
    struct rng rng;
    uint64_t now;
    struct list all, bound, out;
    struct list *by_local, *by_remote, *by_qpn; /* CM_BUCKETS each */
    struct cm_id **heap;
    uint32_t nheap, heap_cap;
    struct reply *replies; /* ring */
    uint32_t reply_head, nreplies;
    struct cm_stats st;
};

/* A received message. */
struct cm_msg {
    const struct cm_path *path;
    uint8_t mtu;
    struct wire_cm m;
};

/* ---- table.c ---- */

struct cm_id *cm_table_new(struct cm_engine *e, enum uroce_cm_space space);
void cm_table_free(struct cm_id *id);
struct cm_id *cm_table_local(const struct cm_engine *e, uint32_t local_id);
/* The passive side's record of a peer's id. */
struct cm_id *cm_table_remote(const struct cm_engine *e, const struct cm_path *path, uint32_t remote_id, bool sidr);
void cm_table_set_remote(struct cm_id *id, uint32_t remote_id);
/* A connection with that queue pair of the peer. */
struct cm_id *cm_table_qpn(const struct cm_engine *e, const struct cm_path *path, uint64_t guid, uint32_t qpn);
void cm_table_set_qpn(struct cm_id *id, uint64_t guid, uint32_t qpn);
void cm_table_forget_peer(struct cm_id *id);
bool cm_same_way(const struct cm_path *a, const struct cm_path *b);

/* ---- timer.c ---- */

int cm_heap_reserve(struct cm_engine *e, uint32_t n);
/* UINT64_MAX: none. */
void cm_timer_set(struct cm_id *id, uint64_t deadline);
/* Sends id->mad now and again. */
void cm_send_repeated(struct cm_id *id);
/* Sends it once more, if there is one: in timewait it can only be a refusal. */
void cm_send_again(struct cm_id *id);
/* The next repetition; false: no more. */
bool cm_send_next(struct cm_id *id, uint32_t tries);

/* ---- bind.c ---- */

struct cm_id *cm_bind_find(const struct cm_engine *e, uint64_t service_id, const union uroce_gid *local);
int cm_bind_any_port(struct cm_id *id);
uint64_t cm_service_of(const struct cm_id *id);

/* ---- msg.c ---- */

void cm_msg_put(struct cm_id *id, const struct wire_cm *m);
struct wire_cm cm_msg_begin(const struct cm_id *id, enum wire_cm_attr attr);
int cm_msg_private(struct wire_cm *m, size_t skip, const void *data, size_t len);
/* Stateless: to whoever sent it. */
void cm_reply_mad(struct cm_engine *e, const struct cm_path *path, const struct wire_cm *m);
void cm_reply_rej(struct cm_engine *e, const struct cm_msg *msg, uint8_t answered, uint16_t reason);
void cm_reply_rej_info(struct cm_engine *e, const struct cm_msg *msg, uint8_t answered, uint16_t reason,
                       const uint8_t *info, uint8_t len);
void cm_reply_drep(struct cm_engine *e, const struct cm_msg *msg);
/* To a request that has no id yet: not now. */
void cm_reply_busy(struct cm_engine *e, const struct cm_msg *msg);
void cm_reply_mra(const struct cm_id *id, uint8_t answered);

/* ---- events ---- */

bool cm_tell(struct cm_id *id, enum uroce_cm_event_type type, int status, const struct wire_cm *m);
bool cm_tell_event(struct cm_id *id, struct cm_id *listener, struct uroce_cm_event *ev, const struct wire_cm *m,
                   size_t skip);

/* ---- active.c, passive.c, close.c, sidr.c: messages by state ---- */

void cm_req_sent(struct cm_id *id, const struct cm_msg *msg);
void cm_req_sent_late(struct cm_id *id);
void cm_rep_rcvd(struct cm_id *id, const struct cm_msg *msg);
void cm_passive_req(struct cm_engine *e, const struct cm_msg *msg);
void cm_req_rcvd(struct cm_id *id, const struct cm_msg *msg);
void cm_rep_sent(struct cm_id *id, const struct cm_msg *msg);
void cm_rep_sent_late(struct cm_id *id);
void cm_established(struct cm_id *id, const struct cm_msg *msg);
void cm_dreq_sent(struct cm_id *id, const struct cm_msg *msg);
void cm_dreq_sent_late(struct cm_id *id);
void cm_timewait(struct cm_id *id, const struct cm_msg *msg);
void cm_timewait_late(struct cm_id *id);
void cm_sidr_request(struct cm_engine *e, const struct cm_msg *msg);
void cm_sidr_req_sent(struct cm_id *id, const struct cm_msg *msg);
void cm_sidr_req_sent_late(struct cm_id *id);

void cm_enter(struct cm_id *id, enum cm_state state);
/* The end of a connection's message course: holds the refusal (id->mad, if it was one) for that long. */
void cm_enter_timewait(struct cm_id *id, uint64_t hold_ns);
void cm_close_now(struct cm_id *id, const void *private_data, uint8_t len);
/* The id of a request that waits for the program (cm_taken), with what both kinds tell. NULL: no room. */
struct cm_id *cm_request_new(struct cm_engine *e, struct cm_id *listener, const struct cm_msg *msg, uint64_t service_id,
                             const struct wire_cma *head);
void cm_reject_with(struct cm_id *id, uint8_t answered, uint16_t reason, const void *private_data, uint8_t len);
/* The peer says that nobody listens; true: it is asked again. */
bool cm_refused(struct cm_id *id);
void cm_sidr_answer(struct cm_id *id, uint8_t status, const struct uroce_cm_param *p);

const char *cm_state_name(enum cm_state s);

#endif

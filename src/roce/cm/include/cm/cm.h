/*
 * The communication manager's engine: connections by the messages of wire_cm.h. Pure, as the queue-pair engine is:
 * messages and the time go in, messages, events and the next deadline come out. No socket, clock, thread or global; it
 * allocates when ids are made. The same calls with the same seed give the same messages (tests/sim/test_roce_cm.c).
 *
 *     cm_rx        a management datagram of the communication manager came
 *     cm_tx        the next one that wants to be sent: called until there is none, after each other call
 *     cm_tick      deadlines that have passed; cm_deadline: when to call it next
 *
 * STATES of an id; what comes in a state that has no column for it is dropped.
 *
 *     state       REQ      MRA    REJ       REP          RTU       DREQ         DREP      time
 *     IDLE
 *     LISTEN      new id
 *     REQ_SENT             wait   REJECTED  -> REP_RCVD                                   again; UNREACHABLE
 *     REQ_RCVD    MRA             REJECTED
 *     REP_SENT    REP      wait   REJECTED               -> ESTABL DREQ: both             again; UNREACHABLE
 *     REP_RCVD                    REJECTED  MRA                    DISCONN
 *     ESTABLISHED                 DISCONN   RTU                    DREP,DISCONN
 *     DREQ_SENT                             RTU                    DREP         DISCONN   again; DISCONN
 *     TIMEWAIT    answer                    answer                 DREP                   TIMEWAIT_EXIT
 *
 * SIDR has three: SIDR_REQ_SENT, SIDR_REQ_RCVD, SIDR_DONE (answers a repeated request).
 *
 * An id that its owner frees lives on, without events, until the peer knows and timewait is over. All tables are
 * bounded; beyond a bound a request is refused or left to come again.
 *
 * Events are told by ops->event from within calls; it must not call the engine, but for cm_id_set_user of a new id.
 *
 * All functions that can fail return 0 or -errno.
 */
#ifndef CM_CM_H
#define CM_CM_H

#include "roce/wire_cm.h"
#include "uroce/cm.h"

#include <stdbool.h>

struct cm_engine;
struct cm_id;

/* Between two addresses; port_id is the device's, and is handed back as it came. */
struct cm_path {
    union uroce_gid local, remote;
    uint8_t traffic_class, hop_limit;
    uint8_t port_id;
};

struct cm_ops {
    /*
     * ev: without id, listener and context. id: whose event it is (user: of cm_id_new or cm_id_set_user). With
     * CONNECT_REQUEST: a new id of `listener`; false: it cannot be taken, and is refused for want of resources.
     */
    bool (*event)(void *ctx, struct cm_id *id, struct cm_id *listener, const struct uroce_cm_event *ev);
};

struct cm_config {
    uint64_t seed;
    uint64_t ca_guid; /* host order: told to the peer, which finds stale connections by it */
    uint8_t id_slot;  /* the highest byte of communication ids: which process on this address */
    uint32_t max_ids; /* 0: 65536 */
    uint32_t tries;   /* of a message; 0: default */
    const struct cm_ops *ops;
    void *ctx;
};
int cm_new(const struct cm_config *cfg, struct cm_engine **ret);
void cm_free(struct cm_engine *e); /* all ids with it, without a word */

/* mtu: the largest on this path (enum uroce_mtu). */
void cm_rx(struct cm_engine *e, uint64_t now, const struct cm_path *path, uint8_t mtu, const void *mad, size_t len);
struct cm_tx {
    struct cm_path path;
    uint8_t mad[WIRE_MAD_BYTES];
};
bool cm_tx(struct cm_engine *e, uint64_t now, struct cm_tx *ret);
uint64_t cm_deadline(const struct cm_engine *e); /* UINT64_MAX: none */
void cm_tick(struct cm_engine *e, uint64_t now);

struct cm_stats {
    uint32_t ids; /* that there are, those without an owner included */
    uint64_t sent, resent, received, duplicates, dropped, refused;
};
void cm_stats(const struct cm_engine *e, struct cm_stats *ret);

/* ---- ids ---- */

int cm_id_new(struct cm_engine *e, enum uroce_cm_space space, void *user, struct cm_id **ret); /* -ENFILE: too many */
void cm_id_set_user(struct cm_id *id, void *user);
void *cm_id_user(const struct cm_id *id);
/* No events any more; what the peer has to know is sent, now and again. */
void cm_id_free(struct cm_id *id, uint64_t now);
/* The program ends: the same for the peers of all ids, once. Frees nothing: the owners still have them. */
void cm_leave(struct cm_engine *e, uint64_t now);

/*
 * The id's port on an address (all zero or ::ffff:0.0.0.0: any); port 0: a free one. -EADDRINUSE, -EINVAL: bound
 * already. cm_unbind: as if it had not been.
 */
int cm_bind(struct cm_id *id, const struct uroce_cm_addr *local, unsigned int flags);
void cm_unbind(struct cm_id *id);
int cm_listen(struct cm_id *id, uint32_t backlog);
/* A request was taken by the program, or does not wait for it any more (backlog). Of any other id: nothing. */
void cm_taken(struct cm_id *id);

/* Where it connects to: path->local is the id's address from now on, and it gets a port if it has none. */
int cm_route(struct cm_id *id, const struct cm_path *path, uint16_t remote_port);
/* mtu, ack_timeout: of this side. */
int cm_connect(struct cm_id *id, uint64_t now, const struct uroce_cm_param *p, uint8_t mtu, uint8_t ack_timeout);
int cm_accept(struct cm_id *id, uint64_t now, const struct uroce_cm_param *p);
int cm_reject(struct cm_id *id, uint64_t now, uint16_t reason, const void *private_data, uint8_t len);
int cm_establish(struct cm_id *id, uint64_t now, const void *private_data, uint8_t len);
int cm_disconnect(struct cm_id *id, uint64_t now, const void *private_data, uint8_t len);

/* What a queue pair needs in RTR and RTS; ah_attr is the caller's. -EINVAL: the peer has not told yet. */
struct cm_qp {
    uint32_t dest_qpn, rq_psn, sq_psn;
    uint8_t mtu, responder_resources, initiator_depth, retry_count, rnr_retry_count, ack_timeout;
};
int cm_qp(const struct cm_id *id, struct cm_qp *ret);

struct cm_info {
    enum uroce_cm_space space;
    const char *state;
    struct uroce_cm_addr local, remote;
    struct cm_path path; /* of a connection or route */
    bool bound, routed;
    uint32_t local_qpn, remote_qpn;
    struct uroce_cm_ece remote_ece;
};
void cm_info(const struct cm_id *id, struct cm_info *ret);

#endif

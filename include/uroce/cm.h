/*
 * uroce: connections by address and port, as the RDMA CM makes them (rdma_cm(7)). C11 and C++.
 *
 * Two queue pairs are joined by the InfiniBand communication manager's protocol (IBTA volume 1, chapter 12, annex A11):
 * management datagrams to queue pair 1, so that a peer may be uroce, a kernel, or an adapter. Who listens, listens at a
 * port of a port space, on one address or all:
 *
 *     listens                                          connects
 *     uroce_cm_id_create(dev, ch, UROCE_CM_TCP, ..)    uroce_cm_id_create(dev, ch, UROCE_CM_TCP, ..)
 *     uroce_cm_bind(id, &any_7174, 0)                  uroce_cm_resolve(id, NULL, &server_7174)
 *     uroce_cm_listen(id, 16)                          uroce_qp_create, modify to INIT by uroce_cm_qp_attr
 *                                                      uroce_cm_connect(id, &param)
 *     event CONNECT_REQUEST with a new id
 *     uroce_qp_create, modify to INIT, RTR, RTS
 *     uroce_cm_accept(new, &param)
 *                                                      event CONNECT_RESPONSE: modify to RTR, RTS
 *                                                      uroce_cm_establish(id): may send from now on
 *     event ESTABLISHED
 *     ...
 *     uroce_cm_disconnect(id), or the peer's: event DISCONNECTED at both; then TIMEWAIT_EXIT
 *
 * Datagrams (UROCE_CM_UDP): uroce_cm_connect asks for the number and key of the service's queue pair, which the
 * event ESTABLISHED tells; uroce_cm_accept answers with them. There is nothing to disconnect.
 *
 * An attempt ends in exactly one of: ESTABLISHED (on the side that connected: CONNECT_RESPONSE, and its own
 * uroce_cm_establish), REJECTED, UNREACHABLE; and a connection that was established in one DISCONNECTED. Messages that
 * are lost are sent again for about nine seconds; a peer that lives and has not decided yet is waited for as long as it
 * takes.
 *
 * RETURN VALUES, THREADS, FORK: as in uroce.h. Functions take no queue pair, but its number: the program changes its
 * state itself, with the attributes that uroce_cm_qp_attr gives.
 *
 * The queue pair goes to ERR (uroce_qp_modify) before or after uroce_cm_disconnect as the program likes: what was
 * received before has been acknowledged on the wire before the peer reads of the end.
 * The peer's program, which finds completions of before in its queues, reads of the end when it has polled them, or 50
 * ms later.
 */
#ifndef UROCE_CM_H
#define UROCE_CM_H

#include "uroce/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct uroce_device;
struct uroce_cm_channel;
struct uroce_cm_id;

/* Port spaces: each has its own ports. TCP: reliable connections. UDP: datagrams. IB: any service of an IP address. */
enum uroce_cm_space {
    UROCE_CM_IPOIB = 0x0002,
    UROCE_CM_TCP = 0x0106,
    UROCE_CM_UDP = 0x0111,
    UROCE_CM_IB = 0x013f,
};

/*
 * Bytes of private data that a program may send with each message; the peer gets as many, padded with zeroes. A
 * request carries the addresses too, which takes 36.
 */
#define UROCE_CM_CONNECT_PRIVATE    56u
#define UROCE_CM_ACCEPT_PRIVATE     196u
#define UROCE_CM_REJECT_PRIVATE     148u
#define UROCE_CM_ESTABLISH_PRIVATE  224u
#define UROCE_CM_DISCONNECT_PRIVATE 220u
#define UROCE_CM_UD_CONNECT_PRIVATE 180u
#define UROCE_CM_UD_ACCEPT_PRIVATE  136u
#define UROCE_CM_PRIVATE_MAX        224u

/* An address and a port (host order). All zero: any IPv6 and IPv4 address; ::ffff:0.0.0.0: any IPv4 address. */
struct uroce_cm_addr {
    union uroce_gid gid;
    uint16_t port; /* 0 in bind: one that is free */
};

/* ---- events ---- */

/* Numbers are the RDMA CM's. Those that are not named here are free for uroce_cm_post_event. */
enum uroce_cm_event_type {
    UROCE_CM_CONNECT_REQUEST = 4,  /* listener: somebody wants to connect; id is new: accept, reject or destroy it */
    UROCE_CM_CONNECT_RESPONSE = 5, /* the peer has accepted: make the queue pair ready, then establish */
    UROCE_CM_UNREACHABLE = 7,      /* no answer (status -ETIMEDOUT); UDP: refused (status: the answer's, positive) */
    UROCE_CM_REJECTED = 8,         /* status: enum uroce_cm_reason, positive */
    UROCE_CM_ESTABLISHED = 9,
    UROCE_CM_DISCONNECTED = 10,  /* status -ETIMEDOUT: the peer did not answer the disconnect */
    UROCE_CM_TIMEWAIT_EXIT = 15, /* packets of the connection are gone from the network */
};

/* Reasons that programs look at; all of them: IBTA 12.6.7.2. */
enum uroce_cm_reason {
    UROCE_CM_REJ_NO_RESOURCES = 3,
    UROCE_CM_REJ_TIMEOUT = 4,
    UROCE_CM_REJ_UNSUPPORTED = 5,
    UROCE_CM_REJ_SERVICE_ID = 8, /* nobody listens there */
    UROCE_CM_REJ_STALE = 10,     /* the peer believes that this queue pair is connected */
    UROCE_CM_REJ_GID = 12,
    UROCE_CM_REJ_MTU = 26,
    UROCE_CM_REJ_CONSUMER = 28, /* the program said no */
};

/* Enhanced connection establishment: a vendor's options, carried and not looked at. */
struct uroce_cm_ece {
    uint32_t vendor_id; /* 24 bits */
    uint32_t options;
};

struct uroce_cm_event {
    enum uroce_cm_event_type type;
    int status;
    struct uroce_cm_id *id, *listener; /* listener: CONNECT_REQUEST */
    void *context;                     /* of id, or of the listener (CONNECT_REQUEST) */
    /* CONNECT_REQUEST, CONNECT_RESPONSE, ESTABLISHED: what the peer offers, from this side's point of view. */
    uint32_t qp_num, qkey; /* of the peer; qkey: UDP */
    uint8_t responder_resources, initiator_depth;
    uint8_t flow_control, retry_count, rnr_retry_count, srq;
    enum uroce_qp_type qp_type; /* CONNECT_REQUEST */
    struct uroce_ah_attr ah;    /* UDP: how to reach it */
    struct uroce_cm_ece ece;
    uint8_t private_len; /* 0, or as much as the message carries */
    uint8_t private_data[UROCE_CM_PRIVATE_MAX];
};

/* A queue of events with a descriptor; for the ids of any number of devices. */
int uroce_cm_channel_create(struct uroce_cm_channel **ret);
int uroce_cm_channel_destroy(struct uroce_cm_channel *ch);  /* -EBUSY while an id uses it */
int uroce_cm_channel_fd(const struct uroce_cm_channel *ch); /* readable while events wait */
/*
 * The next event. Blocks unless the descriptor is O_NONBLOCK (-EAGAIN). For devices without a helper thread
 * (uroce_config.no_thread) it drives them.
 */
int uroce_cm_get_event(struct uroce_cm_channel *ch, struct uroce_cm_event *ret);
/* Puts an event of the program's own behind the others; ev->id may be NULL. -ENOMEM. */
int uroce_cm_post_event(struct uroce_cm_channel *ch, const struct uroce_cm_event *ev);

/* ---- ids: one per listener and connection ---- */

int uroce_cm_id_create(struct uroce_device *dev, struct uroce_cm_channel *ch, enum uroce_cm_space space, void *context,
                       struct uroce_cm_id **ret);
/*
 * A request that was not answered is rejected, a connection is disconnected (the messages are sent again, if need be,
 * behind the program's back). Events of the id that wait in the channel are gone; a listener's requests that nobody
 * has taken are rejected. Never fails but in a child after fork (-ECHILD).
 */
int uroce_cm_id_destroy(struct uroce_cm_id *id);
void uroce_cm_id_set_context(struct uroce_cm_id *id, void *context);
/* From now on its events, those that wait included, go to that channel. */
int uroce_cm_id_migrate(struct uroce_cm_id *id, struct uroce_cm_channel *ch);

enum uroce_cm_bind_flags {
    UROCE_CM_REUSE = 1 << 0,   /* the port may be another id's too, if that says so as well and neither listens */
    UROCE_CM_V6_ONLY = 1 << 1, /* any address: not IPv4 */
};
/*
 * -EADDRNOTAVAIL: not an address of the device. -EADDRINUSE: the port is taken in this port space on that address, by
 * this or another process of the device's holder.
 */
int uroce_cm_bind(struct uroce_cm_id *id, const struct uroce_cm_addr *local, unsigned int flags);
/* backlog: requests that may wait to be taken; 0: 1024. Further ones are asked to come again. */
int uroce_cm_listen(struct uroce_cm_id *id, int backlog);

/*
 * The way to a peer. local NULL, or with a port alone: the address by which the system would go there. An id that is
 * bound keeps its port, and its address if that is one. -EADDRNOTAVAIL: the device has no address of that family or
 * not that one.
 */
int uroce_cm_resolve(struct uroce_cm_id *id, const struct uroce_cm_addr *local, const struct uroce_cm_addr *remote);

struct uroce_cm_param {
    const void *private_data;
    uint8_t private_len;
    uint8_t responder_resources; /* READs and atomics of the peer that this side takes at a time */
    uint8_t initiator_depth;     /* and that it would like to have under way itself */
    uint8_t flow_control;
    uint8_t retry_count;     /* 0..7, connect only */
    uint8_t rnr_retry_count; /* 0..7, for the peer's queue pair */
    uint8_t srq;
    enum uroce_qp_type qp_type; /* connect: RC, UC or XRC_SEND; 0: RC */
    uint32_t qp_num, qkey;      /* qkey: UDP, accept */
    struct uroce_cm_ece ece;
};
/* -EINVAL: not resolved, a value too large, private data too long. */
int uroce_cm_connect(struct uroce_cm_id *id, const struct uroce_cm_param *p);
/* Of a CONNECT_REQUEST's id. -EINVAL: there is no request (any more). */
int uroce_cm_accept(struct uroce_cm_id *id, const struct uroce_cm_param *p);
/* Of a request, or of a response (CONNECT_RESPONSE). */
int uroce_cm_reject(struct uroce_cm_id *id, enum uroce_cm_reason reason, const void *private_data, uint8_t private_len);
/*
 * After CONNECT_RESPONSE: the connection stands. After accept: data has come although the peer's word that it is
 * ready has not, yet (UROCE_EVENT_COMM_EST): the event ESTABLISHED comes at once.
 */
int uroce_cm_establish(struct uroce_cm_id *id, const void *private_data, uint8_t private_len);
/*
 * -EINVAL: not connected. 0 also when the peer has disconnected meanwhile. DISCONNECTED comes when the peer has
 * answered.
 */
int uroce_cm_disconnect(struct uroce_cm_id *id, const void *private_data, uint8_t private_len);

/*
 * Attributes and mask of a modify to attr->qp_state: INIT; RTR after CONNECT_REQUEST or CONNECT_RESPONSE; RTS. -EINVAL:
 * not known yet.
 */
int uroce_cm_qp_attr(struct uroce_cm_id *id, struct uroce_qp_attr *attr, unsigned int *ret_mask);

enum uroce_cm_option {
    UROCE_CM_TOS,         /* the traffic class of the connection's packets */
    UROCE_CM_ACK_TIMEOUT, /* the queue pair's `timeout`, 0..31; 0: as told by the peer or the default */
};
int uroce_cm_set_option(struct uroce_cm_id *id, enum uroce_cm_option option, uint32_t value);

#define UROCE_UD_QKEY 0x01234567u /* of UDP services that choose none */

struct uroce_cm_info {
    enum uroce_cm_space space;
    struct uroce_cm_addr local, remote; /* zero: not known */
    int gid_index;                      /* of the local address; -1: none (any address) */
    uint32_t remote_qp_num;
    struct uroce_cm_ece remote_ece;
};
void uroce_cm_query(struct uroce_cm_id *id, struct uroce_cm_info *ret);

#ifdef __cplusplus
}
#endif
#endif

/*
 * librdmacm.so.1 inside: rdma_cm ids and event channels on the native ones (uroce/cm.h), and public ibv_* calls. What
 * the kernel does for the stock library, the device does here; what the stock library does itself is here: queue pairs
 * moved through their states, synchronous ids, addresses.
 *
 * LOCKS. cma_lock: the table of devices, an event's way from a native channel to a program, the count of events that
 * are not acknowledged. An id itself is the program's to protect, as with the stock library.
 */
#ifndef RDMACM_PRIV_H
#define RDMACM_PRIV_H

#include "base/list.h"
#include "base/util.h"
#include "uroce/cm.h"
#include "verbs_priv.h"

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define CMA_DEVICES 16

/* Opened once: id->verbs is the same context for all ids of a device. */
struct cma_device {
    struct ibv_context *verbs;
    struct uroce_device *native;
    struct ibv_pd *pd;
    struct ibv_xrcd *xrcd;
    uint8_t max_initiator_depth, max_responder_resources;
};

struct cma_channel {
    struct rdma_event_channel pub;
    struct uroce_cm_channel *native; /* NULL: it is gone; cma_lock, as the two below */
    pthread_t by;                    /* who destroyed it */
    struct list link;                /* those that are gone */
};

struct cma_id {
    struct rdma_cm_id id;
    /* One; none before it has a device; one for each device when it is bound to any address. */
    struct uroce_cm_id *native[CMA_DEVICES];
    struct cma_device *native_dev[CMA_DEVICES];
    int nnative;
    struct cma_device *dev; /* that programs see; NULL: any */
    bool sync;
    bool asked;       /* bound to loopback, which no device has */
    uint32_t unacked; /* cma_lock */
    pthread_cond_t acked;
    struct ibv_qp_init_attr *qp_init; /* of rdma_create_ep, for requests */
    void *connect;                    /* private data of rdma_create_ep */
    size_t connect_len;
    uint8_t initiator_depth, responder_resources; /* what the peer offered */
    uint8_t tos, ack_timeout;
    bool reuse, v6_only;
    struct uroce_cm_ece ece;
    struct list groups; /* struct cma_group */
};

struct cma_group {
    struct list link;
    void *context;
    union ibv_gid gid;
    struct sockaddr_storage addr;
    bool attached;
};

struct cma_event {
    struct rdma_cm_event pub;
    struct cma_id *owner; /* whose acknowledgement it counts for: a request's listener */
    uint8_t private_data[256];
};

extern pthread_mutex_t cma_lock;

static inline struct cma_id *cma_id(struct rdma_cm_id *id)
{
    return container_of(id, struct cma_id, id);
}

static inline struct cma_channel *cma_channel(struct rdma_event_channel *c)
{
    return container_of(c, struct cma_channel, pub);
}

/* The conventions of librdmacm: -1 and errno. e: positive. */
static inline int cma_fail(int e)
{
    errno = e;
    return -1;
}

/* A native result. */
static inline int cma_result(int r)
{
    return r < 0 ? cma_fail(-r) : 0;
}

/* ---- rdmacm_device.c ---- */

/* All devices, opened: their number, or a negative errno. */
int cma_devices(struct cma_device **ret);
/* The id is of that device from now on. */
void cma_use_device(struct cma_id *id, struct cma_device *dev);
struct ibv_xrcd *cma_xrcd(struct cma_device *dev);

/* ---- rdmacm_addr.c ---- */

/* sa: AF_INET or AF_INET6. */
void cma_keep_sockaddr(struct sockaddr_storage *to, const struct sockaddr *sa);
int cma_addr_of(const struct sockaddr *sa, struct uroce_cm_addr *ret); /* -EAFNOSUPPORT */
void cma_sockaddr_of(const struct uroce_cm_addr *a, int family, struct sockaddr_storage *ret);
bool cma_is_any(const union uroce_gid *gid);
/* Fills what programs see of an id's addresses from the native id. */
void cma_show_addresses(struct cma_id *id);

/* ---- rdmacm_id.c ---- */

struct cma_id *cma_new(struct rdma_event_channel *channel, void *context, enum rdma_port_space ps);
void cma_free(struct cma_id *id);
void cma_add_native(struct cma_id *id, struct cma_device *dev, struct uroce_cm_id *native);
/* An event of our own: ADDR_RESOLVED and the like. */
int cma_post(struct cma_id *id, enum rdma_cm_event_type type, int status, const void *more, size_t len);
/* A synchronous id waits for its event here. */
int cma_complete(struct cma_id *id);

/* ---- rdmacm_qp.c ---- */

int cma_qp_ready(struct cma_id *id, uint8_t responder_resources, uint8_t initiator_depth);
int cma_qp_error(struct cma_id *id);
bool cma_is_ud(const struct cma_id *id);

/* ---- rdmacm_mcast.c ---- */

/* What MULTICAST_JOIN tells. */
void cma_group_event(struct cma_id *id, const void *more, struct rdma_cm_event *ev);
void cma_groups_forget(struct cma_id *id);

#endif

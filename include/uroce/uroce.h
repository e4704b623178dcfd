/*
 * uroce: RoCEv2 in user space, from C (C11) and C++. An RDMA device without an RDMA NIC, a kernel module or privileges.
 *
 * The calls are the verbs (see types.h); a program that knows ibv_*(3) finds the same objects here:
 *
 *     struct uroce_device *dev;
 *     char err[256];
 *     if (uroce_open(NULL, &dev, err, sizeof err) < 0)   // the machine's addresses, UDP port 4791
 *         die(err);
 *     uroce_pd_alloc(dev, &pd);
 *     uroce_cq_create(dev, 64, NULL, NULL, &cq);
 *     uroce_mr_reg(pd, buf, size, 0, UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE, &mr);
 *     uroce_qp_create(pd, &init, &qp);
 *     ... uroce_qp_modify to INIT, RTR, RTS with what the peer told by another way ...
 *     uroce_post_send(qp, &wr, &bad);
 *     while (uroce_poll_cq(cq, 1, &wc) == 0)
 *         ;
 *
 * RETURN VALUES. 0 or a count, or a negative errno value; errno itself is left alone. Outputs come last (ret_*) and are
 * untouched on failure. -EBUSY from a destroying call: something still uses the object, nothing happened.
 *
 * PROGRESS. uroce_poll_cq, the post calls and uroce_wait drive the device from the calling thread when no other does. A
 * thread of the device's own sleeps on the socket and the timers; it stands back while the program polls, and takes
 * over else, so that a peer is served also while the program computes.
 *
 * THREADS. All calls are thread-safe. Destroying an object that another thread uses is an error of the caller.
 *
 * FORK. A child must not use objects of its parent (-ECHILD); it may open its own device. The parent's traffic is not
 * disturbed: registered memory that parent and child share is copied on write as usual.
 *
 * MEMORY. A registered region stays mapped until it is deregistered; memory that is unmapped before ends the program
 * as any wild access does.
 */
#ifndef UROCE_UROCE_H
#define UROCE_UROCE_H

#include "uroce/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct uroce_device;
struct uroce_pd;
struct uroce_mr;
struct uroce_mw;
struct uroce_cq;
struct uroce_channel;
struct uroce_events;
struct uroce_srq;
struct uroce_xrcd;
struct uroce_qp;

/* ---- device ---- */

#define UROCE_NAME_MAX    32 /* bytes of a device's name, the 0 included */
#define UROCE_DEVICES_MAX 16
#define UROCE_GIDS_MAX    16 /* addresses of a device */
#define UROCE_GID_TABLE   32 /* entries of the table that verbs programs are shown; the rest is empty */

/*
 * The devices that there are here, by their names: those of the environment's UROCE_DEVICES ("NAME=ADDRESS[,...];...")
 * in that order, else one, "uroce0". Nothing is opened.
 */
struct uroce_device_info {
    char name[UROCE_NAME_MAX];
    uint64_t node_guid; /* network order; as uroce_query_device tells it */
    unsigned int gids;
    struct {
        union uroce_gid gid;
        unsigned int interface; /* its index in this network namespace */
    } gid[UROCE_GIDS_MAX];
};
/*
 * Number of devices, of which the first `max` are told; -EINVAL, -EADDRNOTAVAIL, ... and a line in err. A device whose
 * addresses are not there is left out, and named in err, which is empty else, as long as there is another.
 */
int uroce_list_devices(struct uroce_device_info *ret, int max, char *err, size_t err_size);

struct uroce_config {
    /*
     * Addresses of the device, in the order of its GID table: "192.0.2.1,2001:db8::1", NULL: from the environment
     * (UROCE_DEVICES, UROCE_ADDRESS), else all addresses of the machine's interfaces that are up, loopback last
     * (docs/roce.md).
     */
    const char *addresses;
    const char *name;           /* which device; NULL: the first. With addresses: the name that it has */
    uint32_t rcvbuf_bytes;      /* socket buffer that is asked for; 0: default */
    const char *capture;        /* file for a capture of all packets (pcapng), or NULL: UROCE_CAPTURE */
    const char *capture_filter; /* grammar in docs/roce.md */
    int capture_headers_only;
    const char *impair;     /* impairment rules (docs/roce.md), or NULL: UROCE_IMPAIR */
    const char *slots;      /* service slots of each queue pair, "count,sum", or NULL: UROCE_SLOTS */
    int no_selective;       /* go-back-N toward everybody */
    int full_icrc;          /* IPv4: see the ids of packets, so that all 32 bits of their ICRC count (CAP_NET_RAW); also
                               UROCE_FULL_ICRC=1. Not for addresses that processes share by a holder */
    int no_shm;             /* no shared memory with processes of this machine; also UROCE_SHM=0 */
    int no_thread;          /* no helper thread: the device moves only inside calls */
    int congestion_control; /* 1: DCQCN, 0: off, -1: default (on) */
    uint64_t seed;          /* 0: from the kernel */
};
/*
 * cfg NULL: all defaults. -ENODEV: no device of that name; -EADDRINUSE, -EADDRNOTAVAIL, -EACCES (the address's holder
 * belongs to another user), ..., and a line in err that names the address or the setting and what to do.
 */
int uroce_open(const struct uroce_config *cfg, struct uroce_device **ret, char *err, size_t err_size);
int uroce_close(struct uroce_device *dev);

struct uroce_device_attr {
    char name[UROCE_NAME_MAX];
    uint32_t max_qp, max_cq, max_mr, max_pd, max_srq, max_mw, max_qp_wr, max_cqe, max_sge, max_rd_atomic, max_inline;
    enum uroce_mtu active_mtu; /* the largest that the interfaces' MTU allows */
    uint32_t gids;
    uint64_t node_guid; /* network order */
};
void uroce_query_device(struct uroce_device *dev, struct uroce_device_attr *ret);
int uroce_query_gid(struct uroce_device *dev, unsigned int index, union uroce_gid *ret); /* -ENOENT */
/* The interface that has the GID's address: its index in the network namespace where the device was opened. */
int uroce_query_gid_interface(struct uroce_device *dev, unsigned int index, unsigned int *ret);
/* Events that belong to no completion: a descriptor to poll, and the next one (-EAGAIN: none). */
int uroce_async_fd(struct uroce_device *dev);
struct uroce_async_event {
    enum uroce_event_type type;
    void *element; /* the queue pair, CQ or SRQ; NULL: the device */
    void *context; /* of the element: uroce_qp_set_events and its like */
};
int uroce_get_async_event(struct uroce_device *dev, struct uroce_async_event *ret);
/*
 * A queue of events of one's own, for the users of one device that do not know of one another. An object's events go
 * to the queue that is set before its first use (NULL: as they went), with that context; those of the device go to all.
 * uroce_events_get never blocks (-EAGAIN: none). -EBUSY from destroy: objects send there.
 */
int uroce_events_create(struct uroce_device *dev, struct uroce_events **ret);
int uroce_events_destroy(struct uroce_events *events);
int uroce_events_fd(const struct uroce_events *events);
int uroce_events_get(struct uroce_events *events, struct uroce_async_event *ret);
int uroce_qp_set_events(struct uroce_qp *qp, struct uroce_events *events, void *context);
int uroce_cq_set_events(struct uroce_cq *cq, struct uroce_events *events, void *context);
int uroce_srq_set_events(struct uroce_srq *srq, struct uroce_events *events, void *context);
void uroce_device_counters(struct uroce_device *dev, struct uroce_counters *ret);

/* ---- protection domains, memory ---- */

int uroce_pd_alloc(struct uroce_device *dev, struct uroce_pd **ret);
int uroce_pd_dealloc(struct uroce_pd *pd);
/* iova: the address by which requests name the first byte; usually (uintptr_t)addr. */
int uroce_mr_reg(struct uroce_pd *pd, void *addr, uint64_t len, uint64_t iova, unsigned int access,
                 struct uroce_mr **ret);
int uroce_mr_dereg(struct uroce_mr *mr);
/* The keys change when the translation does. -EBUSY while a window is bound to it; on failure the region is as before.
 */
enum uroce_rereg { UROCE_REREG_TRANSLATION = 1, UROCE_REREG_PD = 2, UROCE_REREG_ACCESS = 4 };
int uroce_mr_rereg(struct uroce_mr *mr, unsigned int flags, struct uroce_pd *pd, void *addr, uint64_t len,
                   uint64_t iova, unsigned int access);
uint32_t uroce_mr_lkey(const struct uroce_mr *mr);
uint32_t uroce_mr_rkey(const struct uroce_mr *mr);
int uroce_mw_alloc(struct uroce_pd *pd, int type, struct uroce_mw **ret);
int uroce_mw_dealloc(struct uroce_mw *mw);
uint32_t uroce_mw_rkey(const struct uroce_mw *mw);
/* Page-aligned zeroed memory in a memfd of the device. */
int uroce_mem_alloc(struct uroce_device *dev, size_t len, void **ret);
int uroce_mem_free(struct uroce_device *dev, void *addr);
/*
 * Memory of the program's own: a shared mapping of a memfd with F_SEAL_SHRINK, from its beginning. Processes of this
 * machine that the devices of now are connected to map it too, instead of reading it by the kernel, if they have shown
 * that the kernel lets them. Registering it is another matter. Each lend has its take_back, before the unmapping.
 */
int uroce_mem_lend(void *addr, size_t len, int memfd);
void uroce_mem_take_back(void *addr);

/* ---- completion queues and channels ---- */

int uroce_channel_create(struct uroce_device *dev, struct uroce_channel **ret);
int uroce_channel_destroy(struct uroce_channel *ch);  /* -EBUSY while a CQ uses it */
/*
 * Readable while events wait. One that is O_NONBLOCK when a CQ of it is armed may be readable for packets too: the
 * program calls uroce_get_cq_event then, which takes them in, and is told -EAGAIN when no event came of them.
 */
int uroce_channel_fd(const struct uroce_channel *ch);
/* The next event's CQ and its context; blocks unless the descriptor is O_NONBLOCK (-EAGAIN). */
int uroce_get_cq_event(struct uroce_channel *ch, struct uroce_cq **ret_cq, void **ret_context);
void uroce_ack_cq_events(struct uroce_cq *cq, unsigned int n); /* destroy waits until all are acknowledged */
int uroce_cq_create(struct uroce_device *dev, uint32_t cqe, void *context, struct uroce_channel *ch,
                    struct uroce_cq **ret);
int uroce_cq_resize(struct uroce_cq *cq, uint32_t cqe);
uint32_t uroce_cq_size(struct uroce_cq *cq); /* entries: what was asked for, or more */
int uroce_cq_destroy(struct uroce_cq *cq);
int uroce_poll_cq(struct uroce_cq *cq, int n, struct uroce_wc *ret);
/* Completions that are there already: the device is not driven. */
int uroce_take_cq(struct uroce_cq *cq, int n, struct uroce_wc *ret);
/*
 * After a poll that may have left some: if the CQ is armed and has more, that is an event now. Adapters tell it, and
 * programs that poll a few after each event rely on it; who polls until there are none need not call it.
 */
void uroce_cq_left(struct uroce_cq *cq);
int uroce_req_notify_cq(struct uroce_cq *cq, int solicited_only);
/* Like poll, but sleeps up to timeout_ns (UINT64_MAX: no limit) until one comes; spins for a bounded time before. */
int uroce_wait_cq(struct uroce_cq *cq, int n, struct uroce_wc *ret, uint64_t timeout_ns);

/* ---- shared receive queues, XRC ---- */

int uroce_srq_create(struct uroce_pd *pd, uint32_t max_wr, uint32_t max_sge, struct uroce_xrcd *xrcd,
                     struct uroce_cq *cq, struct uroce_srq **ret);
int uroce_srq_set_limit(struct uroce_srq *srq, uint32_t limit);
/* -EOPNOTSUPP: more than the queue was made for. */
int uroce_srq_resize(struct uroce_srq *srq, uint32_t max_wr);
int uroce_srq_query(struct uroce_srq *srq, uint32_t *ret_max_wr, uint32_t *ret_max_sge, uint32_t *ret_limit);
uint32_t uroce_srq_num(const struct uroce_srq *srq);
int uroce_srq_destroy(struct uroce_srq *srq);
int uroce_post_srq_recv(struct uroce_srq *srq, const struct uroce_recv_wr *wr, const struct uroce_recv_wr **ret_bad);
int uroce_xrcd_open(struct uroce_device *dev, struct uroce_xrcd **ret);
int uroce_xrcd_close(struct uroce_xrcd *xrcd);

/* ---- queue pairs ---- */

struct uroce_qp_init {
    enum uroce_qp_type type;
    struct uroce_cq *send_cq, *recv_cq;
    struct uroce_srq *srq;
    struct uroce_xrcd *xrcd;
    struct uroce_qp_cap cap;
    int sq_sig_all;
};
/* pd: NULL for XRC_RECV, which writes into the domains of its SRQs. */
int uroce_qp_create(struct uroce_pd *pd, const struct uroce_qp_init *init, struct uroce_qp **ret);
int uroce_qp_modify(struct uroce_qp *qp, const struct uroce_qp_attr *attr, unsigned int mask);
int uroce_qp_query(struct uroce_qp *qp, struct uroce_qp_attr *ret);
int uroce_qp_destroy(struct uroce_qp *qp);
/* How many send requests the queue would take now. */
uint32_t uroce_qp_send_room(const struct uroce_qp *qp);
uint32_t uroce_qp_num(const struct uroce_qp *qp);
void uroce_qp_counters(struct uroce_qp *qp, struct uroce_counters *ret);
int uroce_post_send(struct uroce_qp *qp, const struct uroce_send_wr *wr, const struct uroce_send_wr **ret_bad);
int uroce_post_recv(struct uroce_qp *qp, const struct uroce_recv_wr *wr, const struct uroce_recv_wr **ret_bad);
int uroce_ah_create(struct uroce_pd *pd, const struct uroce_ah_attr *attr, struct uroce_ah **ret);
int uroce_ah_destroy(struct uroce_ah *ah);
int uroce_attach_mcast(struct uroce_qp *qp, const union uroce_gid *gid);
int uroce_detach_mcast(struct uroce_qp *qp, const union uroce_gid *gid);
/* "count", "sum", "name:config": before the queue pair leaves INIT; both ends need the PATH slots alike. */
int uroce_qp_attach_slot(struct uroce_qp *qp, const char *spec, char *err, size_t err_size);
/* Text of the slots' statistics. */
int uroce_qp_slot_stat(struct uroce_qp *qp, char *buf, size_t size);
/* How packets go to the peer of a connected queue pair. */
struct uroce_qp_transport {
    const char *port; /* "udp", "shm" */
    int selective_repeat, full_icrc;
    uint32_t mtu_bytes;
};
int uroce_qp_transport(struct uroce_qp *qp, struct uroce_qp_transport *ret);

#ifdef __cplusplus
}
#endif
#endif

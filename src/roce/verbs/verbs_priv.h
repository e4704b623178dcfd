/*
 * libibverbs.so.1 inside: each of its objects begins with the public one (struct ibv_*, which programs look into) and
 * holds the native object (struct uroce_*). Nothing is emulated here: the calls translate arguments, layouts and error
 * conventions; what verbs mean is done by the device.
 *
 * librdmacm.so.1 includes this for vb_native(), the conventions of errors and shared.c, which is built into both; it
 * calls libibverbs by the public functions.
 *
 * LOCKS. vb_lock: the table of devices and the list of contexts. ctx->lock: the lists of a context's objects; taken
 * after vb_lock. ctx->events_lock: an asynchronous event is taken and counted, or an object's end has purged it.
 */
#ifndef VERBS_PRIV_H
#define VERBS_PRIV_H

#include "base/list.h"
#include "base/util.h"
#include "uroce/uroce.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define VB_GID_TABLE 32        /* entries of a port's table; those after the addresses are empty */
#define VB_VENDOR_ID 0xffffffu /* nobody's: providers of adapters do not take the device for theirs */
#define VB_PKEY      0xffffu
#define VB_DM_MAX    (64ull << 20) /* bytes of one device memory */
/* Above the bits that devices have to obey; a device may ignore what is in the optional range. */
#define VB_ACCESS_IGNORED                                                                                              \
    ((unsigned int)IBV_ACCESS_OPTIONAL_RANGE | (unsigned int)IBV_ACCESS_ON_DEMAND | (unsigned int)IBV_ACCESS_HUGETLB)

/* One for each name that was ever listed: they are not freed, programs keep pointers to them. */
struct vb_device {
    struct ibv_device ibv;
    /* libmlx5 and libefa read the pointer behind struct ibv_device and compare it with theirs. */
    uint64_t zero[16];
    struct list link;
    uint64_t guid; /* network order */
    int index;
    struct uroce_device *native; /* while contexts are open; vb_lock */
    unsigned int users;
};

/* In the order in which a closed context destroys what is left. */
enum vb_kind { VB_QP, VB_SRQ, VB_MW, VB_AH, VB_MR, VB_CQ, VB_CHANNEL, VB_XRCD, VB_DM, VB_PD, VB_TD, VB_KINDS };

struct vb_object {
    struct list link;
    uint32_t handle;
};

#define VB_MAGIC 0x75726f63652d7662ull
struct vb_context {
    struct verbs_context v; /* struct ibv_context is its last member */
    uint64_t magic;
    struct vb_device *dev;
    struct uroce_device *native;
    struct uroce_events *events;
    struct list link; /* vb_lock */
    uint64_t inode;   /* of the descriptor cmd_fd, by which it is found again */
    pthread_mutex_t lock, events_lock;
    struct list objects[VB_KINDS];
};

static inline struct vb_context *vb_ctx(struct ibv_context *c)
{
    return container_of(c, struct vb_context, v.context);
}

/* The native device of a context that ibv_open_device returned; NULL: of another library. */
static inline struct uroce_device *vb_native(struct ibv_context *c)
{
    return c && vb_ctx(c)->magic == VB_MAGIC ? vb_ctx(c)->native : NULL;
}

/* Protection domains: of their own, a parent domain's view of another, or one that was imported. */
struct vb_pd {
    struct ibv_pd ibv;
    struct vb_object obj;
    struct uroce_pd *native;
    struct vb_pd *of; /* whose native it borrows; NULL: its own */
    struct vb_td *td;
    atomic_uint users; /* parents and imports */
};

struct vb_td {
    struct ibv_td ibv;
    struct vb_object obj;
    atomic_uint users;
};

struct vb_mr {
    struct ibv_mr ibv;
    struct vb_object obj;
    struct uroce_mr *native;
    struct vb_mr *of; /* imported */
    struct vb_dm *dm; /* whose memory it is */
    atomic_uint users;
};

struct vb_mw {
    struct ibv_mw ibv;
    struct vb_object obj;
    struct uroce_mw *native;
};

struct vb_dm {
    struct ibv_dm ibv;
    struct vb_object obj;
    struct vb_dm *of;
    uint8_t *mem;
    size_t len;
    atomic_uint users;
};

struct vb_ah {
    struct ibv_ah ibv;
    struct vb_object obj;
    struct uroce_ah *native;
};

struct vb_xrcd {
    struct ibv_xrcd ibv;
    struct vb_object obj;
    struct uroce_xrcd *native;
    struct vb_xrcd *of;     /* the first that was opened on the same file */
    uint64_t device, inode; /* of that file; 0: none */
    atomic_uint users;
};

struct vb_channel {
    struct ibv_comp_channel ibv;
    struct vb_object obj;
    struct uroce_channel *native;
};

struct vb_cq {
    union {
        struct ibv_cq ibv;
        struct ibv_cq_ex ex;
    };
    struct vb_object obj;
    struct uroce_cq *native;
    uint32_t async_given; /* ctx->events_lock */
    /* The extended interface: one completion at a time, between start_poll and end_poll. */
    bool single_threaded;
    pthread_mutex_t poll_lock;
    struct uroce_wc wc;
};

struct vb_srq {
    struct ibv_srq ibv;
    struct vb_object obj;
    struct uroce_srq *native;
    uint32_t async_given;
    bool is_xrc;
};

/* Requests between wr_start and wr_complete; all memory is there since the queue pair was made (qp_ex.c). */
struct vb_builder {
    pthread_mutex_t lock;
    uint32_t max, max_sge, inline_bytes, n;
    int err;
    struct uroce_send_wr *wr;
    struct uroce_sge *sge; /* max_sge per request */
    uint8_t *bytes;        /* inline_bytes per request */
};

struct vb_qp {
    union {
        struct ibv_qp ibv;
        struct ibv_qp_ex ex;
    };
    struct vb_object obj;
    struct uroce_qp *native;
    uint32_t async_given;
    struct ibv_qp_init_attr init;
    struct vb_builder *build; /* extended interface; NULL: without */
};

/* ---- device.c ---- */

/* Calls fn for each context of the same native device until it returns non-NULL. */
void *vb_find(struct vb_context *like, void *(*fn)(struct vb_context *ctx, const void *arg), const void *arg);
/* One that may be imported: of any context of the same native device. */
struct vb_object *vb_find_handle(struct vb_context *like, enum vb_kind kind, uint32_t handle);
void vb_add(struct vb_context *ctx, enum vb_kind kind, struct vb_object *o);
void vb_del(struct vb_context *ctx, struct vb_object *o);

/* ---- context.c ---- */

void vb_fill_ops(struct verbs_context *v);
/* Destroys what the program left. */
void vb_sweep(struct vb_context *ctx);

/* ---- errors: the native negative errno becomes verbs' ---- */

static inline int vb_result(int r)
{
    if (r >= 0)
        return 0;
    errno = -r;
    return -r;
}

#define vb_null(r) (errno = -(r), NULL)

/* ---- shared.c: in both libraries ---- */

/* ::ffff:a.b.c.d */
bool vb_gid_is_v4(const uint8_t raw[16]);

/* Of what the device has told. port: of the address. */
void vb_ah_attr_back(const struct uroce_ah_attr *a, uint8_t port, struct ibv_ah_attr *ret);
void vb_qp_attr_back(const struct uroce_qp_attr *a, uint8_t port, struct ibv_qp_attr *ret);
/* Says under UROCE_DEBUG what is refused and why. */
void vb_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define vb_refuse_ptr(...) (vb_debug(__VA_ARGS__), errno = EOPNOTSUPP, NULL)
#define vb_refuse(...)     (vb_debug(__VA_ARGS__), errno = EOPNOTSUPP)

/* ---- query.c ---- */

int vb_query_device(struct ibv_context *c, struct ibv_device_attr *ret);
int vb_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *input,
                       struct ibv_device_attr_ex *ret, size_t size);
int vb_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *ret, size_t size);
int vb_query_rt_values(struct ibv_context *c, struct ibv_values_ex *values);

/* ---- objects ---- */

/* ah.c: 0 or a negative errno, with a debug line. */
int vb_ah_attr(const struct ibv_ah_attr *a, const char *what, struct uroce_ah_attr *ret);

struct ibv_mw *vb_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int vb_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int vb_dealloc_mw(struct ibv_mw *mw);
/* 0, or a negative errno: an object that is not ours or a bind that makes no sense. */
int vb_bind_wr(const struct ibv_send_wr *from, struct uroce_send_wr *ret);
int vb_bind_info(struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info, struct uroce_send_wr *ret);

struct ibv_dm *vb_alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *attr);
int vb_free_dm(struct ibv_dm *dm);
struct ibv_mr *vb_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access);
int vb_dm_write(struct ibv_dm *dm, uint64_t offset, const void *from, size_t length);
int vb_dm_read(void *to, struct ibv_dm *dm, uint64_t offset, size_t length);
/* Registers with the access bits that the device knows. */
struct vb_mr *vb_mr_new(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);

struct ibv_pd *vb_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr);
struct ibv_td *vb_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr);
int vb_dealloc_td(struct ibv_td *td);
int vb_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg_list,
                 uint32_t num_sge);

struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
void vb_cq_ex_init(struct vb_cq *cq, const struct ibv_cq_init_attr_ex *attr);
int vb_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int vb_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int vb_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);

struct ibv_srq *vb_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr);
int vb_get_srq_num(struct ibv_srq *srq, uint32_t *ret);
int vb_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_xrcd *vb_open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *attr);
int vb_close_xrcd(struct ibv_xrcd *xrcd);

struct ibv_qp *vb_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
int vb_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr);
int vb_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vb_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* The extended interface of a queue pair whose ibv and native are set. 0 or a negative errno. */
int vb_qp_ex_init(struct vb_qp *qp, const struct uroce_qp_cap *cap, uint64_t ops);
void vb_qp_ex_done(struct vb_qp *qp);

/* events.c: the object is gone from the device; waits until the program has acknowledged all that it was given. */
void vb_await_acks(struct ibv_context *c, const uint32_t *given, pthread_mutex_t *lock, pthread_cond_t *cond,
                   const uint32_t *done);

#endif

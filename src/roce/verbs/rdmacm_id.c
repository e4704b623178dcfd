/* Ids: made, bound, resolved, destroyed. */
#include "rdmacm_priv.h"

#include <infiniband/sa.h>
#include <string.h>

#define RATE_10_GBPS 3

struct cma_id *cma_new(struct rdma_event_channel *channel, void *context, enum rdma_port_space ps)
{
    struct cma_id *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->id.channel = channel;
    c->id.context = context;
    c->id.ps = ps;
    c->id.qp_type = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
    pthread_cond_init(&c->acked, NULL);
    list_init(&c->groups);
    return c;
}

void cma_free(struct cma_id *c)
{
    pthread_cond_destroy(&c->acked);
    free(c->id.route.path_rec);
    free(c->qp_init);
    free(c->connect);
    free(c);
}

static enum uroce_cm_space space_of(const struct cma_id *c)
{
    return (enum uroce_cm_space)c->id.ps;
}

void cma_add_native(struct cma_id *c, struct cma_device *dev, struct uroce_cm_id *native)
{
    uroce_cm_id_set_context(native, c);
    c->native_dev[c->nnative] = dev;
    c->native[c->nnative++] = native;
}

/* Destroys the native ids but one. */
static void keep_native(struct cma_id *c, int keep)
{
    struct uroce_cm_id *one = keep >= 0 ? c->native[keep] : NULL;
    struct cma_device *dev = keep >= 0 ? c->native_dev[keep] : NULL;
    pthread_mutex_lock(&cma_lock); /* no event of theirs is on its way to a program */
    for (int i = 0; i < c->nnative; i++)
        if (c->native[i] != one)
            uroce_cm_id_destroy(c->native[i]);
    pthread_mutex_unlock(&cma_lock);
    c->nnative = one != NULL;
    c->native[0] = one;
    c->native_dev[0] = dev;
}

static int new_native(struct cma_id *c, struct cma_device *dev, struct uroce_cm_id **ret)
{
    int r = uroce_cm_id_create(dev->native, cma_channel(c->id.channel)->native, space_of(c), c, ret);
    if (!r && c->tos)
        uroce_cm_set_option(*ret, UROCE_CM_TOS, c->tos);
    if (!r && c->ack_timeout)
        uroce_cm_set_option(*ret, UROCE_CM_ACK_TIMEOUT, c->ack_timeout);
    return r;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
    struct cma_device *devices;
    struct rdma_event_channel *own = NULL;
    int n = cma_devices(&devices);
    if (n < 0)
        return cma_fail(-n);
    if (ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IB && ps != RDMA_PS_IPOIB)
        return cma_fail(EPROTONOSUPPORT);
    if (!channel && !(channel = own = rdma_create_event_channel()))
        return -1;
    struct cma_id *c = cma_new(channel, context, ps);
    if (!c) {
        if (own)
            rdma_destroy_event_channel(own);
        return cma_fail(ENOMEM);
    }
    c->sync = own != NULL;
    *id = &c->id;
    return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
    struct cma_id *c = cma_id(id);
    keep_native(c, -1);
    if (id->event) {
        rdma_ack_cm_event(id->event);
        id->event = NULL;
    }
    pthread_mutex_lock(&cma_lock);
    while (c->unacked)
        pthread_cond_wait(&c->acked, &cma_lock);
    pthread_mutex_unlock(&cma_lock);
    cma_groups_forget(c);
    if (c->sync)
        rdma_destroy_event_channel(id->channel);
    cma_free(c);
    return 0;
}

int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
    struct cma_id *c = cma_id(id);
    struct rdma_event_channel *own = NULL, *old = id->channel;
    bool was_sync = c->sync;
    if (id->event) {
        rdma_ack_cm_event(id->event);
        id->event = NULL;
    }
    if (!channel && !(channel = own = rdma_create_event_channel()))
        return -1;
    for (int i = 0; i < c->nnative; i++) {
        int r = uroce_cm_id_migrate(c->native[i], cma_channel(channel)->native);
        if (r) {
            if (own)
                rdma_destroy_event_channel(own);
            return cma_fail(-r);
        }
    }
    c->sync = own != NULL;
    id->channel = channel;
    if (was_sync)
        rdma_destroy_event_channel(old);
    return 0;
}

/* ---- addresses ---- */

static unsigned int flags_of(const struct cma_id *c)
{
    return (c->reuse ? UROCE_CM_REUSE : 0u) | (c->v6_only ? UROCE_CM_V6_ONLY : 0u);
}

/* The port on any address of each device: the same everywhere. */
static int bind_any(struct cma_id *c, struct uroce_cm_addr *addr)
{
    struct cma_device *devices;
    int n = cma_devices(&devices), r = n < 0 ? n : 0;
    bool chosen = !addr->port;
    for (int tries = 0; tries < 16; tries++) {
        struct uroce_cm_addr at = *addr;
        for (int i = 0; i < n && !r; i++) {
            struct uroce_cm_id *native;
            r = new_native(c, &devices[i], &native);
            if (r)
                break;
            cma_add_native(c, &devices[i], native);
            r = uroce_cm_bind(native, &at, flags_of(c));
            if (!r && !at.port) {
                struct uroce_cm_info info;
                uroce_cm_query(native, &info);
                at.port = info.local.port;
            }
        }
        if (!r)
            return 0;
        keep_native(c, -1);
        if (r != -EADDRINUSE || !chosen)
            return r;
        r = 0;
    }
    return -EADDRINUSE;
}

static bool is_loopback(const union uroce_gid *g)
{
    static const uint8_t six[16] = {[15] = 1};
    return !memcmp(g->raw, six, 16) || (vb_gid_is_v4(g->raw) && g->raw[12] == 127);
}

/*
 * A kernel takes loopback for any address: no device is shown for it. libfabric asks by such a bind, without a port, of
 * an id of its own, which addresses to tell its peers: it gets that answer where there is another address to tell.
 */
static bool is_question(const struct cma_id *c, const struct uroce_cm_addr *addr)
{
    struct cma_device *devices;
    union uroce_gid g;
    int n = cma_devices(&devices);
    if (!c->sync || c->id.ps != RDMA_PS_TCP || addr->port || !is_loopback(&addr->gid))
        return false;
    for (int i = 0; i < n; i++)
        for (int k = 0; uroce_query_gid(devices[i].native, (unsigned int)k, &g) == 0; k++)
            if (!is_loopback(&g))
                return true;
    return false;
}

/* The device that has an address. */
static int bind_one(struct cma_id *c, const struct uroce_cm_addr *addr)
{
    struct cma_device *devices;
    int n = cma_devices(&devices), r = n < 0 ? n : -EADDRNOTAVAIL;
    bool hide = is_question(c, addr);
    for (int i = 0; i < n && r == -EADDRNOTAVAIL; i++) {
        struct uroce_cm_id *native;
        r = new_native(c, &devices[i], &native);
        if (r)
            return r;
        r = uroce_cm_bind(native, addr, flags_of(c));
        if (r) {
            uroce_cm_id_destroy(native);
            continue;
        }
        cma_add_native(c, &devices[i], native);
        if (!hide)
            cma_use_device(c, &devices[i]);
    }
    return r;
}

static int bind_to(struct cma_id *c, const struct sockaddr *sa)
{
    struct uroce_cm_addr addr;
    int r = cma_addr_of(sa, &addr);
    if (r || c->nnative)
        return r ? r : -EINVAL;
    cma_keep_sockaddr(&c->id.route.addr.src_storage, sa);
    r = cma_is_any(&addr.gid) ? bind_any(c, &addr) : bind_one(c, &addr);
    /*
     * Answered also where UROCE_ADDRESS leaves loopback out: else libfabric's verbs has no device. Bound to nothing,
     * for who means to listen there and nowhere else is to be told (rdma_listen).
     */
    c->asked = r == -EADDRNOTAVAIL && is_question(c, &addr);
    if (c->asked)
        return 0;
    if (r == -EADDRNOTAVAIL)
        r = -ENODEV; /* as the kernel says of an address without an RDMA device */
    if (!r)
        cma_show_addresses(c);
    return r;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
    return addr ? cma_result(bind_to(cma_id(id), addr)) : cma_fail(EINVAL);
}

/* The device by which a peer is reached: of those with a native id already, else of all. */
static int resolve_by(struct cma_id *c, const struct uroce_cm_addr *src, const struct uroce_cm_addr *dst)
{
    struct cma_device *devices;
    int n = cma_devices(&devices), r = n < 0 ? n : -EADDRNOTAVAIL, bound = c->nnative;
    if (c->dev)
        return uroce_cm_resolve(c->native[0], src, dst);
    for (int i = 0; i < bound; i++) {
        r = uroce_cm_resolve(c->native[i], src, dst);
        if (!r) {
            keep_native(c, i);
            cma_use_device(c, c->native_dev[0]);
        }
        if (r != -EADDRNOTAVAIL)
            return r;
    }
    for (int i = 0; i < n && !bound; i++) {
        struct uroce_cm_id *native;
        r = new_native(c, &devices[i], &native);
        if (r)
            return r;
        r = uroce_cm_resolve(native, src, dst);
        if (!r) {
            cma_add_native(c, &devices[i], native);
            cma_use_device(c, &devices[i]);
            return 0;
        }
        uroce_cm_id_destroy(native);
        if (r != -EADDRNOTAVAIL)
            return r;
    }
    return r;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src_addr, struct sockaddr *dst_addr, int timeout_ms)
{
    struct cma_id *c = cma_id(id);
    struct uroce_cm_addr src, dst;
    (void)timeout_ms; /* there is nobody to be asked */
    if (!dst_addr || cma_addr_of(dst_addr, &dst) || (src_addr && cma_addr_of(src_addr, &src)))
        return cma_fail(dst_addr ? EAFNOSUPPORT : EINVAL);
    cma_keep_sockaddr(&id->route.addr.dst_storage, dst_addr);
    if (src_addr && !c->nnative)
        cma_keep_sockaddr(&id->route.addr.src_storage, src_addr);
    int r = resolve_by(c, src_addr ? &src : NULL, &dst);
    if (r == -EINVAL || r == -EADDRINUSE)
        return cma_fail(-r);
    if (r) {
        if (cma_post(c, RDMA_CM_EVENT_ADDR_ERROR, r == -EADDRNOTAVAIL ? -ENODEV : r, NULL, 0))
            return -1;
    } else {
        cma_show_addresses(c);
        if (cma_post(c, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0))
            return -1;
    }
    return cma_complete(c);
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
    struct cma_id *c = cma_id(id);
    struct ibv_port_attr port;
    (void)timeout_ms;
    if (!c->dev || c->nnative != 1 || cma_is_any((union uroce_gid *)&id->route.addr.addr.ibaddr.dgid))
        return cma_fail(EINVAL);
    if (!id->route.path_rec)
        id->route.path_rec = calloc(1, sizeof *id->route.path_rec);
    if (!id->route.path_rec)
        return cma_fail(ENOMEM);
    *id->route.path_rec = (struct ibv_sa_path_rec){
        .dgid = id->route.addr.addr.ibaddr.dgid,
        .sgid = id->route.addr.addr.ibaddr.sgid,
        .hop_limit = 64,
        .traffic_class = c->tos,
        .reversible = 1,
        .numb_path = 1,
        .pkey = id->route.addr.addr.ibaddr.pkey,
        .mtu_selector = 2, /* equal */
        .mtu = (uint8_t)(ibv_query_port(id->verbs, 1, &port) ? IBV_MTU_1024 : port.active_mtu),
        .rate_selector = 2,
        .rate = RATE_10_GBPS,
    };
    id->route.num_paths = 1;
    return cma_post(c, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0) ? -1 : cma_complete(c);
}

/* ---- options ---- */

static int set_switch(bool *what, const void *optval, size_t optlen)
{
    int v;
    if (optlen != sizeof v)
        return cma_fail(EINVAL);
    memcpy(&v, optval, sizeof v);
    *what = v != 0;
    return 0;
}

static int set_byte(struct cma_id *c, enum uroce_cm_option option, uint8_t *what, const void *optval, size_t optlen)
{
    if (optlen != 1)
        return cma_fail(EINVAL);
    uint8_t v = *(const uint8_t *)optval;
    if (option == UROCE_CM_ACK_TIMEOUT && (cma_is_ud(c) || v > 31))
        return cma_fail(EINVAL);
    for (int i = 0; i < c->nnative; i++) {
        int r = uroce_cm_set_option(c->native[i], option, v);
        if (r)
            return cma_fail(-r);
    }
    *what = v;
    return 0;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen)
{
    struct cma_id *c = cma_id(id);
    if (level != RDMA_OPTION_ID || !optval)
        return cma_fail(optval ? ENOSYS : EINVAL);
    switch (optname) {
    case RDMA_OPTION_ID_TOS:
        return set_byte(c, UROCE_CM_TOS, &c->tos, optval, optlen);
    case RDMA_OPTION_ID_ACK_TIMEOUT:
        return set_byte(c, UROCE_CM_ACK_TIMEOUT, &c->ack_timeout, optval, optlen);
    case RDMA_OPTION_ID_REUSEADDR:
        return set_switch(&c->reuse, optval, optlen);
    case RDMA_OPTION_ID_AFONLY:
        return set_switch(&c->v6_only, optval, optlen);
    }
    return cma_fail(ENOSYS);
}

/* Connections: the calls of uroce/cm.h on ids. */
#include "cm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

/* Kernels take 4.096 us * 2^17 to 2^19; a lost last packet is to be found out sooner: 134 ms. */
#define ACK_TIMEOUT 15u
/*
 * How long a peer's queue pair waits when a receive is missing here: 655 ms (IBTA table 45), as with the kernel's
 * rdma_cm. Programs count on that: with a few retries their receivers may be seconds late.
 */
#define MIN_RNR_TIMER 0u

int uroce_cm_id_create(struct uroce_device *dev, struct uroce_cm_channel *ch, enum uroce_cm_space space, void *context,
                       struct uroce_cm_id **ret)
{
    int r = dev_check_fork(dev);
    if (r)
        return r;
    struct uroce_cm_id *id = calloc(1, sizeof *id);
    if (!id)
        return -ENOMEM;
    *id = (struct uroce_cm_id){.dev = dev, .channel = ch, .context = context, .qp_type = UROCE_QPT_RC};
    if (space == UROCE_CM_UDP || space == UROCE_CM_IPOIB)
        id->qp_type = UROCE_QPT_UD;
    dev_lock(dev);
    r = cm_id_new(dev->cm, space, id, &id->cm);
    dev_unlock(dev);
    if (r) {
        free(id);
        return r;
    }
    cm_channel_use(ch, dev, true);
    atomic_fetch_add(&dev->objects, 1);
    *ret = id;
    return 0;
}

/*
 * holder_wait_fn, with dev->lock: what others want meanwhile is done, and whoever drives without a pause lets us go on.
 */
static void await_holder(void *ctx, int sock, int ms)
{
    struct uroce_device *dev = ctx;
    struct pollfd p = {.fd = sock, .events = POLLIN};
    int state = dev->cancel_state;
    dev->cancel_state = PTHREAD_CANCEL_DISABLE;
    dev_unlock(dev);
    poll(&p, 1, ms);
    dev_lock(dev);
    dev->cancel_state = state;
}

/* With dev->lock, which is free while the holder answers: nothing that can change is in hand. */
static int tell_holder(struct uroce_device *dev, const struct holder_bind *b, bool bind)
{
    int r = 0;
    if (bind)
        r = holder_client_bind(&dev->holder, b, await_holder, dev);
    else
        holder_client_unbind(&dev->holder, b, await_holder, dev);
    atomic_store(&dev->pending, true); /* packets may have come with the answer */
    return r;
}

/* dev->lock held. */
static void destroy(struct uroce_cm_id *id, struct list *orphans)
{
    cm_id_free(id->cm, now_ns());
    cm_late_forget(id->dev, id);
    cm_channel_forget(id->channel, id, orphans);
    cm_channel_use(id->channel, id->dev, false);
    atomic_fetch_sub(&id->dev->objects, 1);
    free(id);
}

int uroce_cm_id_destroy(struct uroce_cm_id *id)
{
    struct uroce_device *dev = id->dev;
    struct list orphans;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    list_init(&orphans);
    dev_lock(dev);
    struct holder_bind held = id->held; /* those that a listener was asked for have none */
    atomic_fetch_add(&dev->objects, 1); /* the device stays while the holder answers */
    destroy(id, &orphans);
    for (struct list *l; (l = list_pop_front(&orphans));) {
        struct cm_item *i = container_of(l, struct cm_item, link);
        destroy(i->e.id, &orphans);
        free(i);
    }
    if (held.n)
        tell_holder(dev, &held, false);
    atomic_fetch_sub(&dev->objects, 1);
    dev_unlock_settled(dev);
    return 0;
}

void uroce_cm_id_set_context(struct uroce_cm_id *id, void *context)
{
    if (dev_check_fork(id->dev))
        return;
    dev_lock(id->dev);
    id->context = context;
    dev_unlock(id->dev);
}

int uroce_cm_id_migrate(struct uroce_cm_id *id, struct uroce_cm_channel *ch)
{
    int r = dev_check_fork(id->dev);
    if (r || ch == id->channel)
        return r;
    dev_lock(id->dev);
    struct uroce_cm_channel *old = id->channel;
    id->channel = ch;
    cm_channel_move(old, ch, id);
    cm_channel_use(ch, id->dev, true);
    cm_channel_use(old, id->dev, false);
    dev_unlock(id->dev);
    return 0;
}

/* ---- addresses ---- */

/* Other processes at the same holder must not have the port: each address of the device that the id's takes in. */
static int hold_port(struct uroce_cm_id *id, const struct cm_info *info, unsigned int flags)
{
    struct uroce_device *dev = id->dev;
    struct holder_bind b = {.service_id = wire_cma_service_id((uint16_t)info->space, info->local.port),
                            .reuse = (flags & UROCE_CM_REUSE) != 0};
    if (!dev->holder.slot)
        return 0;
    bool any = wire_gid_is_any(&info->local.gid), any_v4 = any && wire_gid_is_v4(&info->local.gid);
    for (int i = 0; i < dev->nports && b.n < HOLDER_BIND_MAX; i++) {
        const union uroce_gid *g = &dev->ports[i].at.addr.gid;
        bool v4 = wire_gid_is_v4(g);
        if (any ? (any_v4 && !v4) || (v4 && (flags & UROCE_CM_V6_ONLY)) : memcmp(g, &info->local.gid, sizeof *g) != 0)
            continue;
        b.gid[b.n++] = *g;
    }
    if (!b.n)
        return 0;
    int r = tell_holder(dev, &b, true);
    if (!r)
        id->held = b;
    return r;
}

static int bind_and_hold(struct uroce_cm_id *id, const struct uroce_cm_addr *local, unsigned int flags)
{
    for (int tries = 0;; tries++) {
        struct cm_info info;
        int r = cm_bind(id->cm, local, flags);
        if (r)
            return r;
        cm_info(id->cm, &info);
        r = hold_port(id, &info, flags);
        if (!r)
            return 0;
        cm_unbind(id->cm);
        if (r != -EADDRINUSE || local->port || tries == 100)
            return r;
    }
}

int uroce_cm_bind(struct uroce_cm_id *id, const struct uroce_cm_addr *local, unsigned int flags)
{
    struct uroce_device *dev = id->dev;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    if (!wire_gid_is_any(&local->gid) && (r = dev_address_index(dev, &local->gid)) < 0)
        return r;
    dev_lock(dev);
    r = bind_and_hold(id, local, flags);
    dev_unlock(dev);
    return r;
}

int uroce_cm_listen(struct uroce_cm_id *id, int backlog)
{
    int r = dev_check_fork(id->dev);
    if (r)
        return r;
    dev_lock(id->dev);
    r = cm_listen(id->cm, backlog > 0 ? (uint32_t)backlog : 0);
    dev_unlock(id->dev);
    return r;
}

/* The address that the system would send from; false: it knows no way. */
static bool system_route(const union uroce_gid *remote, union uroce_gid *ret)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } a = {.in6 = {.sin6_family = AF_INET6, .sin6_port = htons(PORT_UDP)}};
    socklen_t len = sizeof a.in6;
    bool v4 = wire_gid_is_v4(remote);
    if (v4) {
        a.in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT_UDP)};
        memcpy(&a.in.sin_addr, remote->raw + 12, 4);
        len = sizeof a.in;
    } else {
        memcpy(&a.in6.sin6_addr, remote->raw, 16);
    }
    cleanup_close int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, &a.any, len))
        return false;
    len = sizeof a;
    if (getsockname(fd, &a.any, &len))
        return false;
    struct port_addr p;
    port_addr_from(&a.any, &p);
    *ret = p.gid;
    return true;
}

static bool is_loopback(const union uroce_gid *g)
{
    static const union uroce_gid six = {.raw = {[15] = 1}};
    return wire_gid_is_v4(g) ? g->raw[12] == 127 : !memcmp(g, &six, sizeof six);
}

static bool is_link_local(const union uroce_gid *g)
{
    return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

/* Which of the device's addresses goes to a peer: the system's choice, else one of the same kind. */
static int choose_port(const struct uroce_device *dev, const union uroce_gid *remote)
{
    union uroce_gid via;
    int r = system_route(remote, &via) ? dev_address_index(dev, &via) : -EADDRNOTAVAIL;
    if (r >= 0)
        return r;
    for (int exact = 1; exact >= 0; exact--)
        for (int i = 0; i < dev->nports; i++) {
            const union uroce_gid *g = &dev->ports[i].at.addr.gid;
            if (wire_gid_is_v4(g) == wire_gid_is_v4(remote) && is_link_local(g) == is_link_local(remote) &&
                (!exact || is_loopback(g) == is_loopback(remote)))
                return i;
        }
    return -EADDRNOTAVAIL;
}

/* dev->lock held. */
static int resolve(struct uroce_cm_id *id, const struct uroce_cm_addr *local, const struct uroce_cm_addr *remote)
{
    struct uroce_device *dev = id->dev;
    struct cm_info info;
    cm_info(id->cm, &info);
    const union uroce_gid *want = info.bound ? &info.local.gid : local ? &local->gid : NULL;
    int port = want && !wire_gid_is_any(want) ? dev_address_index(dev, want) : choose_port(dev, &remote->gid);
    if (port < 0)
        return port;
    if (wire_gid_is_v4(&dev->ports[port].at.addr.gid) != wire_gid_is_v4(&remote->gid) || wire_gid_is_any(&remote->gid))
        return -EADDRNOTAVAIL;
    if (!info.bound && local && local->port) {
        struct uroce_cm_addr at = {.gid = dev->ports[port].at.addr.gid, .port = local->port};
        int r = bind_and_hold(id, &at, 0);
        if (r)
            return r;
    }
    struct cm_path path;
    cm_path_of(dev, port, &remote->gid, id->tos, &path);
    return cm_route(id->cm, &path, remote->port);
}

int uroce_cm_resolve(struct uroce_cm_id *id, const struct uroce_cm_addr *local, const struct uroce_cm_addr *remote)
{
    int r = dev_check_fork(id->dev);
    if (r)
        return r;
    dev_lock(id->dev);
    r = resolve(id, local, remote);
    dev_unlock(id->dev);
    return r;
}

/* ---- the course of a connection ---- */

int uroce_cm_connect(struct uroce_cm_id *id, const struct uroce_cm_param *p)
{
    struct uroce_device *dev = id->dev;
    struct cm_info info;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    dev_lock(dev);
    cm_info(id->cm, &info);
    r = info.routed ? cm_connect(id->cm, now_ns(), p, cm_mtu_of(dev, info.path.port_id),
                                 id->ack_timeout ? id->ack_timeout : ACK_TIMEOUT)
                    : -EINVAL;
    if (!r && p->qp_type)
        id->qp_type = p->qp_type;
    dev_unlock_settled(dev);
    return r;
}

/* Each of these: a call of the engine with the lock, and what it wants to send. */
#define CALL(id, call)                                                                                                 \
    do {                                                                                                               \
        int call_r = dev_check_fork((id)->dev);                                                                        \
        if (call_r)                                                                                                    \
            return call_r;                                                                                             \
        dev_lock((id)->dev);                                                                                           \
        call_r = (call);                                                                                               \
        dev_unlock_settled((id)->dev);                                                                                 \
        return call_r;                                                                                                 \
    } while (0)

int uroce_cm_accept(struct uroce_cm_id *id, const struct uroce_cm_param *p)
{
    CALL(id, cm_accept(id->cm, now_ns(), p));
}

int uroce_cm_reject(struct uroce_cm_id *id, enum uroce_cm_reason reason, const void *private_data, uint8_t private_len)
{
    CALL(id, cm_reject(id->cm, now_ns(), (uint16_t)reason, private_data, private_len));
}

int uroce_cm_establish(struct uroce_cm_id *id, const void *private_data, uint8_t private_len)
{
    CALL(id, cm_establish(id->cm, now_ns(), private_data, private_len));
}

int uroce_cm_disconnect(struct uroce_cm_id *id, const void *private_data, uint8_t private_len)
{
    CALL(id, cm_disconnect(id->cm, now_ns(), private_data, private_len));
}

/* ---- what the queue pair needs ---- */

static int to_init(const struct uroce_cm_id *id, struct uroce_qp_attr *attr)
{
    attr->port_num = 1;
    if (id->qp_type == UROCE_QPT_UD) {
        attr->qkey = UROCE_UD_QKEY;
        return UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT | UROCE_QP_QKEY;
    }
    attr->qp_access_flags = UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ | UROCE_ACCESS_REMOTE_ATOMIC;
    return UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT | UROCE_QP_ACCESS_FLAGS;
}

static int to_rtr(const struct uroce_cm_id *id, struct uroce_qp_attr *attr)
{
    struct cm_qp q;
    struct cm_info info;
    if (id->qp_type == UROCE_QPT_UD)
        return UROCE_QP_STATE;
    if (cm_qp(id->cm, &q))
        return -EINVAL;
    cm_info(id->cm, &info);
    attr->ah_attr = (struct uroce_ah_attr){.dgid = info.path.remote,
                                           .sgid_index = info.path.port_id,
                                           .hop_limit = info.path.hop_limit,
                                           .traffic_class = id->tos ? id->tos : info.path.traffic_class};
    attr->path_mtu = (enum uroce_mtu)q.mtu;
    attr->dest_qp_num = q.dest_qpn;
    attr->rq_psn = q.rq_psn;
    attr->max_dest_rd_atomic = (uint8_t)min_u64(q.responder_resources, UROCE_RD_ATOMIC);
    attr->min_rnr_timer = MIN_RNR_TIMER;
    int mask = UROCE_QP_STATE | UROCE_QP_AV | UROCE_QP_PATH_MTU | UROCE_QP_DEST_QPN | UROCE_QP_RQ_PSN;
    if (id->qp_type == UROCE_QPT_RC || id->qp_type == UROCE_QPT_XRC_RECV)
        mask |= UROCE_QP_MAX_DEST_RD_ATOMIC | UROCE_QP_MIN_RNR_TIMER;
    return mask;
}

static int to_rts(const struct uroce_cm_id *id, struct uroce_qp_attr *attr)
{
    struct cm_qp q;
    if (id->qp_type == UROCE_QPT_UD)
        return UROCE_QP_STATE | UROCE_QP_SQ_PSN;
    if (cm_qp(id->cm, &q))
        return -EINVAL;
    attr->sq_psn = q.sq_psn;
    attr->timeout = id->ack_timeout ? id->ack_timeout : q.ack_timeout;
    attr->retry_cnt = q.retry_count;
    attr->rnr_retry = q.rnr_retry_count;
    attr->max_rd_atomic = (uint8_t)min_u64(q.initiator_depth, UROCE_RD_ATOMIC);
    int mask = UROCE_QP_STATE | UROCE_QP_SQ_PSN;
    if (id->qp_type == UROCE_QPT_RC || id->qp_type == UROCE_QPT_XRC_SEND)
        mask |= UROCE_QP_TIMEOUT | UROCE_QP_RETRY_CNT | UROCE_QP_RNR_RETRY | UROCE_QP_MAX_QP_RD_ATOMIC;
    else if (id->qp_type == UROCE_QPT_XRC_RECV)
        mask |= UROCE_QP_TIMEOUT;
    return mask;
}

int uroce_cm_qp_attr(struct uroce_cm_id *id, struct uroce_qp_attr *attr, unsigned int *ret_mask)
{
    struct uroce_qp_attr a = {.qp_state = attr->qp_state};
    int r = dev_check_fork(id->dev);
    if (r)
        return r;
    dev_lock(id->dev);
    r = a.qp_state == UROCE_QPS_INIT  ? to_init(id, &a)
        : a.qp_state == UROCE_QPS_RTR ? to_rtr(id, &a)
        : a.qp_state == UROCE_QPS_RTS ? to_rts(id, &a)
                                      : -EINVAL;
    dev_unlock(id->dev);
    if (r < 0)
        return r;
    *attr = a;
    *ret_mask = (unsigned int)r;
    return 0;
}

int uroce_cm_set_option(struct uroce_cm_id *id, enum uroce_cm_option option, uint32_t value)
{
    int r = dev_check_fork(id->dev);
    if (r)
        return r;
    if (value > (option == UROCE_CM_TOS ? 255u : 31u) || (option != UROCE_CM_TOS && option != UROCE_CM_ACK_TIMEOUT))
        return -EINVAL;
    dev_lock(id->dev);
    if (option == UROCE_CM_TOS)
        id->tos = (uint8_t)value;
    else
        id->ack_timeout = (uint8_t)value;
    dev_unlock(id->dev);
    return 0;
}

void uroce_cm_query(struct uroce_cm_id *id, struct uroce_cm_info *ret)
{
    struct cm_info info;
    dev_lock(id->dev);
    cm_info(id->cm, &info);
    dev_unlock(id->dev);
    int index = dev_address_index(id->dev, &info.local.gid);
    *ret = (struct uroce_cm_info){
        .space = info.space,
        .local = info.local,
        .remote = info.remote,
        .gid_index = index < 0 ? -1 : index,
        .remote_qp_num = info.remote_qpn,
        .remote_ece = info.remote_ece,
    };
}

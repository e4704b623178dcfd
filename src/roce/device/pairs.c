/* Queue pairs and address handles. */
#include "dev.h"

#include <errno.h>
#include <string.h>

static int attach_default_slots(struct uroce_qp *qp)
{
    struct uroce_device *dev = qp->dev;
    if (!dev->cfg.slots)
        return 0;
    cleanup_free char *copy = strdup(dev->cfg.slots);
    if (!copy)
        return -ENOMEM;
    char *save = NULL, err[128];
    for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
        int r = uroce_qp_attach_slot(qp, w, err, sizeof err);
        if (r)
            return r;
    }
    return 0;
}

static void unlink_qp(struct uroce_qp *qp)
{
    struct uroce_device *dev = qp->dev;
    dev_hello_cancel(qp);
    pthread_mutex_lock(&dev->bells_lock);
    list_del(&qp->bell_link);
    qp->bell = false;
    pthread_mutex_unlock(&dev->bells_lock);
    list_del(&qp->dev_link);
    dev->by_qpn[qp_num(qp->qp) & 0xffff] = NULL;
    if (qp->path_overhead)
        dev->path_slot_qps--;
}

/* Completions are taken out of CQs by some calls: nobody polls them meanwhile. In the order of their addresses. */
static void lock_cqs(const struct uroce_qp *qp)
{
    struct uroce_cq *a = qp->send_cq, *b = qp->recv_cq;
    if (a > b) {
        a = qp->recv_cq;
        b = qp->send_cq;
    }
    if (a)
        pthread_mutex_lock(&a->lock);
    if (b && b != a)
        pthread_mutex_lock(&b->lock);
}

static void unlock_cqs(const struct uroce_qp *qp)
{
    if (qp->send_cq)
        pthread_mutex_unlock(&qp->send_cq->lock);
    if (qp->recv_cq && qp->recv_cq != qp->send_cq)
        pthread_mutex_unlock(&qp->recv_cq->lock);
}

int uroce_qp_create(struct uroce_pd *pd, const struct uroce_qp_init *init, struct uroce_qp **ret)
{
    struct uroce_device *dev = pd ? pd->dev : init->xrcd ? init->xrcd->dev : NULL;
    int r = dev ? dev_check_fork(dev) : -EINVAL;
    if (r)
        return r;
    struct uroce_qp *qp = calloc(1, sizeof *qp);
    if (!qp)
        return -ENOMEM;
    *qp = (struct uroce_qp){
        .dev = dev,
        .send_cq = init->send_cq,
        .recv_cq = init->recv_cq,
        .type = init->type,
    };
    pthread_mutex_init(&qp->send_lock, NULL);
    pthread_mutex_init(&qp->recv_lock, NULL);
    list_init(&qp->bell_link);
    list_init(&qp->dev_link);
    dev_subject_init(dev, &qp->subject);
    struct qp_init qi = {
        .type = init->type,
        .pd = pd ? pd->qp : NULL,
        .send_cq = init->send_cq ? init->send_cq->qp : NULL,
        .recv_cq = init->recv_cq ? init->recv_cq->qp : NULL,
        .srq = init->srq ? init->srq->qp : NULL,
        .xrcd = init->xrcd ? init->xrcd->qp : NULL,
        .cap = init->cap,
        .sq_sig_all = init->sq_sig_all,
        .user = qp,
    };
    dev_lock(dev);
    r = qp_create(dev->engine, &qi, &qp->qp);
    if (!r) {
        list_push_back(&dev->qps, &qp->dev_link);
        dev->by_qpn[qp_num(qp->qp) & 0xffff] = qp;
    }
    dev_unlock(dev);
    if (r) {
        dev_subject_done(&qp->subject);
        free(qp);
        return r;
    }
    atomic_fetch_add(&dev->objects, 1);
    r = attach_default_slots(qp);
    if (r) {
        uroce_qp_destroy(qp);
        return r;
    }
    *ret = qp;
    return 0;
}

int uroce_qp_destroy(struct uroce_qp *qp)
{
    struct uroce_device *dev = qp->dev;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    dev_lock(dev);
    dev_acks_now(dev);
    unlink_qp(qp);
    lock_cqs(qp);
    r = qp_destroy(qp->qp);
    unlock_cqs(qp);
    dev_link_leave(qp);
    dev_unlock_settled(dev);
    if (r)
        return r;
    dev_subject_done(&qp->subject);
    slot_chain_free(qp->slots);
    pthread_mutex_destroy(&qp->send_lock);
    pthread_mutex_destroy(&qp->recv_lock);
    free(qp);
    atomic_fetch_sub(&dev->objects, 1);
    return 0;
}

/* Source ports spread queue pairs; both numbers count, so that two of one process differ (annex A17.9.2). */
static uint32_t flow_hash(uint32_t a, uint32_t b)
{
    uint64_t v = (uint64_t)a * b;
    v ^= v >> 20;
    v ^= v >> 40;
    return (uint32_t)v & 0xfffff;
}

static int resolve(struct uroce_qp *qp, const struct uroce_qp_attr *attr, unsigned int mask, struct qp_path *ret)
{
    uint32_t dest = mask & UROCE_QP_DEST_QPN ? attr->dest_qp_num : qp->dest_qpn;
    int r = dev_path(qp->dev, &attr->ah_attr, flow_hash(qp_num(qp->qp), dest), ret);
    if (!r)
        ret->overhead = (uint8_t)qp->path_overhead;
    return r;
}

int uroce_qp_modify(struct uroce_qp *qp, const struct uroce_qp_attr *attr, unsigned int mask)
{
    struct uroce_device *dev = qp->dev;
    struct qp_path path, *p = NULL;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    dev_lock(dev);
    dev_acks_now(dev);
    if (mask & UROCE_QP_AV) {
        r = resolve(qp, attr, mask, &path);
        p = &path;
    }
    if (!r && mask & UROCE_QP_PATH_MTU && attr->path_mtu <= UROCE_MTU_4096)
        r = dev_mtu_check(dev, p ? p->port_id : qp->path.port_id, attr->path_mtu, qp_num(qp->qp));
    lock_cqs(qp);
    if (!r)
        r = qp_modify(qp->qp, now_ns(), attr, mask, p);
    unlock_cqs(qp);
    if (!r) {
        if (p || (mask & UROCE_QP_STATE && attr->qp_state == UROCE_QPS_RESET))
            dev_link_leave(qp);
        if (p)
            qp->path = path;
        if (mask & UROCE_QP_DEST_QPN)
            qp->dest_qpn = attr->dest_qp_num;
        if (mask & UROCE_QP_STATE) {
            qp->connected = attr->qp_state >= UROCE_QPS_RTR && attr->qp_state < UROCE_QPS_ERR;
            if (attr->qp_state == UROCE_QPS_RTR)
                dev_hello_start(dev, qp);
            else if (!qp->connected)
                dev_hello_cancel(qp);
        }
    }
    dev_unlock_settled(dev);
    return r;
}

int uroce_qp_query(struct uroce_qp *qp, struct uroce_qp_attr *ret)
{
    int r = dev_check_fork(qp->dev);
    if (r)
        return r;
    struct qp_init init;
    dev_lock(qp->dev);
    qp_query(qp->qp, ret, &init);
    dev_unlock(qp->dev);
    ret->cap = init.cap;
    return 0;
}

uint32_t uroce_qp_send_room(const struct uroce_qp *qp)
{
    return qp_send_room(qp->qp);
}

uint32_t uroce_qp_num(const struct uroce_qp *qp)
{
    return qp_num(qp->qp);
}

void uroce_qp_counters(struct uroce_qp *qp, struct uroce_counters *ret)
{
    dev_lock(qp->dev);
    qp_counters(qp->qp, ret);
    dev_unlock(qp->dev);
}

int dev_transport(struct uroce_qp *qp, struct uroce_qp_transport *ret)
{
    struct uroce_qp_attr attr;
    struct qp_init init;
    if (!qp->connected)
        return -ENOTCONN;
    qp_query(qp->qp, &attr, &init);
    const struct dev_port *p = &qp->dev->ports[qp->path.port_id];
    bool link = qp->link && qp->link->port.port;
    if (link)
        p = &qp->link->port;
    *ret = (struct uroce_qp_transport){
        .port = p->caps.name,
        .selective_repeat = qp->selective,
        .full_icrc = !wire_gid_is_v4(&p->at.addr.gid) || p->caps.ipv4_id == PORT_ID_TOLD || qp->selective ||
                     qp->dev->cfg.full_icrc,
        .mtu_bytes = link ? qp->far_bytes : wire_mtu_bytes((enum wire_mtu)attr.path_mtu),
    };
    return 0;
}

int uroce_qp_transport(struct uroce_qp *qp, struct uroce_qp_transport *ret)
{
    int r = dev_check_fork(qp->dev);
    if (r)
        return r;
    dev_lock(qp->dev);
    r = dev_transport(qp, ret);
    dev_unlock(qp->dev);
    return r;
}

int uroce_post_send(struct uroce_qp *qp, const struct uroce_send_wr *wr, const struct uroce_send_wr **ret_bad)
{
    bool bell = false;
    int r = dev_check_fork(qp->dev);
    if (r)
        return r;
    pthread_mutex_lock(&qp->send_lock);
    r = qp_post_send(qp->qp, wr, ret_bad, &bell);
    pthread_mutex_unlock(&qp->send_lock);
    if (bell) {
        dev_ring(qp);
        dev_drive_posted(qp->dev);
    }
    return r;
}

int uroce_post_recv(struct uroce_qp *qp, const struct uroce_recv_wr *wr, const struct uroce_recv_wr **ret_bad)
{
    bool bell = false;
    int r = dev_check_fork(qp->dev);
    if (r)
        return r;
    pthread_mutex_lock(&qp->recv_lock);
    r = qp_post_recv(qp->qp, wr, ret_bad, &bell);
    pthread_mutex_unlock(&qp->recv_lock);
    if (bell) {
        dev_ring(qp);
        dev_drive_posted(qp->dev);
    }
    return r;
}

int uroce_ah_create(struct uroce_pd *pd, const struct uroce_ah_attr *attr, struct uroce_ah **ret)
{
    struct uroce_device *dev = pd->dev;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    struct dev_ah *ah = calloc(1, sizeof *ah);
    if (!ah)
        return -ENOMEM;
    ah->dev = dev;
    ah->handle.pd = pd->qp;
    dev_lock(dev);
    r = dev_path(dev, attr, (uint32_t)((uintptr_t)ah >> 4), &ah->handle.path);
    dev_unlock(dev);
    if (r) {
        free(ah);
        return r;
    }
    atomic_fetch_add(&dev->objects, 1);
    *ret = &ah->handle;
    return 0;
}

int uroce_ah_destroy(struct uroce_ah *handle)
{
    struct dev_ah *ah = container_of(handle, struct dev_ah, handle);
    int r = dev_check_fork(ah->dev);
    if (r)
        return r;
    atomic_fetch_sub(&ah->dev->objects, 1);
    free(ah);
    return 0;
}

/* On each address of the group's family: a queue pair in INIT has none of its own yet. 0: one has it at least. */
static int join_group(struct uroce_device *dev, const union uroce_gid *gid, bool join)
{
    bool any = false;
    int err = -EADDRNOTAVAIL;
    if (join)
        dev_lead_never(dev); /* groups have sockets of their own */
    for (int i = 0; i < dev->nports; i++) {
        struct port_addr group = {.gid = *gid, .scope_id = dev->ports[i].at.addr.scope_id, .udp_port = PORT_UDP};
        int e = port_join(dev->ports[i].port, &group, join);
        any |= e == 0;
        err = e ? e : err;
    }
    return any ? 0 : err;
}

/* From the engine, when a queue pair was the group's last. */
void dev_group_left(void *ctx, const union uroce_gid *gid)
{
    join_group(ctx, gid, false);
}

int uroce_attach_mcast(struct uroce_qp *qp, const union uroce_gid *gid)
{
    struct uroce_device *dev = qp->dev;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    dev_lock(dev);
    r = qp_attach_mcast(qp->qp, gid);
    if (!r && (r = join_group(dev, gid, true)))
        qp_detach_mcast(qp->qp, gid);
    dev_unlock(dev);
    return r;
}

int uroce_detach_mcast(struct uroce_qp *qp, const union uroce_gid *gid)
{
    struct uroce_device *dev = qp->dev;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    dev_lock(dev);
    r = qp_detach_mcast(qp->qp, gid);
    dev_unlock(dev);
    return r;
}

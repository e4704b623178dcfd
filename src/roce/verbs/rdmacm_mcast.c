/* Multicast groups of a datagram id: the address of the IP group is the GID (RoCE v2); nobody has to be asked. */
#include "rdmacm_priv.h"

#include <string.h>

#define MULTICAST_QPN 0xffffffu

static bool same_group(const struct sockaddr *a, const struct sockaddr *b)
{
    struct uroce_cm_addr x, y;
    return !cma_addr_of(a, &x) && !cma_addr_of(b, &y) && !memcmp(&x.gid, &y.gid, sizeof x.gid);
}

static struct cma_group *find(struct cma_id *c, const struct sockaddr *addr)
{
    list_for_each (l, &c->groups) {
        struct cma_group *g = container_of(l, struct cma_group, link);
        if (same_group((struct sockaddr *)&g->addr, addr))
            return g;
    }
    return NULL;
}

static int join(struct cma_id *c, const struct sockaddr *addr, bool send_only, void *context)
{
    struct uroce_cm_addr group;
    if (!c->dev || !cma_is_ud(c) || cma_addr_of(addr, &group) ||
        !(addr->sa_family == AF_INET ? (group.gid.raw[12] & 0xf0) == 0xe0 : group.gid.raw[0] == 0xff))
        return cma_fail(EINVAL);
    struct cma_group *g = calloc(1, sizeof *g);
    if (!g)
        return cma_fail(ENOMEM);
    g->context = context;
    memcpy(g->gid.raw, group.gid.raw, sizeof g->gid);
    cma_keep_sockaddr(&g->addr, addr);
    int e = 0;
    if (c->id.qp && !send_only) {
        e = ibv_attach_mcast(c->id.qp, &g->gid, 0);
        g->attached = !e;
    }
    list_push_back(&c->groups, &g->link);
    if (cma_post(c, e ? RDMA_CM_EVENT_MULTICAST_ERROR : RDMA_CM_EVENT_MULTICAST_JOIN, -e, &g,
                 sizeof(struct cma_group *)))
        return -1;
    return cma_complete(c);
}

/* more: the group's address in memory, which lives until it is left; one that was left meanwhile tells nothing. */
void cma_group_event(struct cma_id *c, const void *more, struct rdma_cm_event *ev)
{
    struct cma_group *g;
    memcpy(&g, more, sizeof(struct cma_group *));
    struct rdma_ud_param *p = &ev->param.ud;
    *p = (struct rdma_ud_param){.qp_num = MULTICAST_QPN, .qkey = RDMA_UDP_QKEY};
    list_for_each (l, &c->groups) {
        if (container_of(l, struct cma_group, link) != g)
            continue;
        struct uroce_cm_info info;
        struct uroce_ah_attr ah = {.hop_limit = 1, .traffic_class = c->tos};
        uroce_cm_query(c->native[0], &info);
        ah.sgid_index = (uint8_t)(info.gid_index < 0 ? 0 : info.gid_index);
        memcpy(ah.dgid.raw, g->gid.raw, sizeof ah.dgid);
        vb_ah_attr_back(&ah, 1, &p->ah_attr);
        p->private_data = g->context;
    }
}

static void leave(struct cma_id *c, struct cma_group *g)
{
    if (g->attached && c->id.qp)
        ibv_detach_mcast(c->id.qp, &g->gid, 0);
    list_del(&g->link);
    free(g);
}

void cma_groups_forget(struct cma_id *c)
{
    while (!list_empty(&c->groups))
        leave(c, container_of(c->groups.next, struct cma_group, link));
}

int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context)
{
    return addr ? join(cma_id(id), addr, false, context) : cma_fail(EINVAL);
}

int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context)
{
    if (!attr || attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED ||
        !(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS) || !(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS) ||
        attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED || !attr->addr)
        return cma_fail(EINVAL);
    return join(cma_id(id), attr->addr, attr->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context);
}

int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr)
{
    struct cma_id *c = cma_id(id);
    struct cma_group *g = addr ? find(c, addr) : NULL;
    if (!g)
        return cma_fail(EADDRNOTAVAIL);
    leave(c, g);
    return 0;
}

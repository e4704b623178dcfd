/* Addresses: handles for UD, those of who sent a message, multicast groups, the MAC behind a GID. */
#include "verbs_priv.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/ioctl.h>

#define GRH_FLOW_MASK 0xfffffu

static bool gid_is_multicast(const union ibv_gid *g)
{
    return vb_gid_is_v4(g->raw) ? (g->raw[12] & 0xf0) == 0xe0 : g->raw[0] == 0xff;
}

int vb_ah_attr(const struct ibv_ah_attr *a, const char *what, struct uroce_ah_attr *ret)
{
    if (!a->is_global) {
        vb_debug(
            "%s refused: the address has no GRH (is_global is 0): RoCE addresses by GID; set is_global, grh.dgid and "
            "grh.sgid_index (ibv_*_pingpong: -g INDEX)",
            what);
        return -EINVAL;
    }
    if (a->port_num > 1) {
        vb_debug("%s refused: port %u of a device with one", what, a->port_num);
        return -EINVAL;
    }
    *ret = (struct uroce_ah_attr){
        .sgid_index = a->grh.sgid_index,
        .hop_limit = a->grh.hop_limit,
        .traffic_class = a->grh.traffic_class,
        .sl = a->sl,
        .flow_label = a->grh.flow_label & GRH_FLOW_MASK,
    };
    memcpy(ret->dgid.raw, a->grh.dgid.raw, sizeof ret->dgid.raw);
    return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct uroce_ah_attr a;
    struct vb_ah *ah = NULL;
    int r = vb_ah_attr(attr, "create_ah", &a);
    if (!r && !(ah = calloc(1, sizeof *ah)))
        r = -ENOMEM;
    if (!r)
        r = uroce_ah_create(container_of(pd, struct vb_pd, ibv)->native, &a, &ah->native);
    if (r) {
        free(ah);
        return vb_null(r);
    }
    vb_add(vb_ctx(pd->context), VB_AH, &ah->obj);
    ah->ibv = (struct ibv_ah){.context = pd->context, .pd = pd, .handle = ah->obj.handle};
    return &ah->ibv;
}

int ibv_destroy_ah(struct ibv_ah *ibv)
{
    struct vb_ah *ah = container_of(ibv, struct vb_ah, ibv);
    int r = uroce_ah_destroy(ah->native);
    if (r)
        return vb_result(r);
    vb_del(vb_ctx(ibv->context), &ah->obj);
    free(ah);
    return 0;
}

/* ---- who sent a message ---- */

/* The table's entry of an address; of a multicast group, the first of its family. -1: none. */
static int gid_index(struct ibv_context *c, const union ibv_gid *gid)
{
    bool any = gid_is_multicast(gid);
    for (int i = 0; i < VB_GID_TABLE; i++) {
        union uroce_gid g;
        union ibv_gid ours;
        if (uroce_query_gid(vb_ctx(c)->native, (unsigned int)i, &g))
            continue;
        memcpy(ours.raw, g.raw, sizeof ours.raw);
        if (any ? vb_gid_is_v4(ours.raw) == vb_gid_is_v4(gid->raw) : memcmp(ours.raw, gid->raw, sizeof ours.raw) == 0)
            return i;
    }
    return -1;
}

static void map_v4(const uint8_t *ip, union ibv_gid *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->raw[10] = ret->raw[11] = 0xff;
    memcpy(ret->raw + 12, ip, 4);
}

/* A RoCE v2 message over IPv4 has its IPv4 header in the last 20 of the 40 bytes; else they are an IPv6 header. */
static bool is_ipv4(const struct ibv_wc *wc, const uint8_t *header)
{
    return header[20] == 0x45 && (wc->sl == 2 || header[0] >> 4 != 6);
}

int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh,
                        struct ibv_ah_attr *ret)
{
    const uint8_t *header = (const uint8_t *)grh;
    union ibv_gid local;
    memset(ret, 0, sizeof *ret);
    ret->dlid = wc->slid;
    ret->src_path_bits = wc->dlid_path_bits;
    ret->port_num = port;
    if (!(wc->wc_flags & IBV_WC_GRH))
        return 0;
    ret->is_global = 1;
    if (is_ipv4(wc, header)) {
        map_v4(header + 20 + 12, &ret->grh.dgid);
        map_v4(header + 20 + 16, &local);
        ret->grh.traffic_class = header[21];
    } else {
        uint32_t flow = ntohl(grh->version_tclass_flow);
        ret->grh.dgid = grh->sgid;
        local = grh->dgid;
        ret->grh.traffic_class = (uint8_t)(flow >> 20);
        ret->grh.flow_label = flow & GRH_FLOW_MASK;
    }
    ret->grh.hop_limit = 0xff;
    int index = gid_index(c, &local);
    if (index < 0) {
        vb_debug("no address for the sender of a message: it was sent to a GID that is not in the table");
        errno = EINVAL;
        return -1;
    }
    ret->grh.sgid_index = (uint8_t)index;
    return 0;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
    struct ibv_ah_attr attr;
    return ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr) ? NULL : ibv_create_ah(pd, &attr);
}

/* ---- multicast ---- */

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    union uroce_gid g;
    (void)lid;
    memcpy(g.raw, gid->raw, sizeof g.raw);
    int r = gid_is_multicast(gid) ? uroce_attach_mcast(container_of(qp, struct vb_qp, ibv)->native, &g) : -EINVAL;
    if (r)
        vb_debug("attach_mcast refused: %s",
                 r == -EINVAL ? "a UD queue pair and a multicast GID are meant" : strerror(-r));
    return vb_result(r);
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    union uroce_gid g;
    (void)lid;
    memcpy(g.raw, gid->raw, sizeof g.raw);
    return vb_result(uroce_detach_mcast(container_of(qp, struct vb_qp, ibv)->native, &g));
}

/* ---- the MAC: of a group by rule, of a link-local address by EUI-64, else of an IPv4 neighbour that is known ---- */

static void multicast_mac(const union ibv_gid *g, uint8_t mac[6])
{
    if (vb_gid_is_v4(g->raw)) {
        const uint8_t m[6] = {0x01, 0x00, 0x5e, g->raw[13] & 0x7f, g->raw[14], g->raw[15]};
        memcpy(mac, m, sizeof m);
    } else {
        mac[0] = mac[1] = 0x33;
        memcpy(mac + 2, g->raw + 12, 4);
    }
}

static bool eui64_mac(const union ibv_gid *g, uint8_t mac[6])
{
    if (g->raw[0] != 0xfe || (g->raw[1] & 0xc0) != 0x80 || g->raw[11] != 0xff || g->raw[12] != 0xfe)
        return false;
    memcpy(mac, g->raw + 8, 3);
    memcpy(mac + 3, g->raw + 13, 3);
    mac[0] ^= 2;
    return true;
}

static bool neighbour_mac(const union ibv_gid *g, unsigned int ifindex, uint8_t mac[6])
{
    struct arpreq req = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)(void *)&req.arp_pa;
    if (!vb_gid_is_v4(g->raw) || !if_indextoname(ifindex, req.arp_dev))
        return false;
    in->sin_family = AF_INET;
    memcpy(&in->sin_addr, g->raw + 12, 4);
    cleanup_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCGARP, &req) || !(req.arp_flags & ATF_COM))
        return false;
    memcpy(mac, req.arp_ha.sa_data, 6);
    return true;
}

int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *attr, uint8_t mac[6], uint16_t *vid)
{
    const union ibv_gid *g = &attr->grh.dgid;
    unsigned int ifindex;
    if (!attr->is_global || uroce_query_gid_interface(vb_ctx(c)->native, attr->grh.sgid_index, &ifindex)) {
        errno = EINVAL;
        return -1;
    }
    if (gid_is_multicast(g)) {
        multicast_mac(g, mac);
    } else if (!eui64_mac(g, mac) && !neighbour_mac(g, ifindex, mac)) {
        vb_debug("no MAC: the kernel's table of neighbours has not the peer's address; send to it first");
        errno = EHOSTUNREACH;
        return -1;
    }
    if (vid)
        *vid = 0xffff; /* none */
    return 0;
}

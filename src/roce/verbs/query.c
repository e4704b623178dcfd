/* What a device tells of itself: attributes, its port, the GID and P_Key tables. */
#include "verbs_priv.h"

#include <stdio.h>
#include <string.h>

#define PORT 1
/* Of struct _compat_ibv_port_attr, which programs of before cap_flags2 pass to the exported ibv_query_port. */
#define PORT_ATTR_COMPAT 48
/* What ibv_query_gid_type answers: sysfs's words in the kernel's order, not enum ibv_gid_type. */
enum { SYSFS_IB_ROCE_V1, SYSFS_ROCE_V2 };

/* Of the private node, without a header. */
int ibv_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index, unsigned int *type);

int vb_query_device(struct ibv_context *c, struct ibv_device_attr *ret)
{
    struct uroce_device_attr a;
    uroce_query_device(vb_ctx(c)->native, &a);
    *ret = (struct ibv_device_attr){
        .fw_ver = PENSTOCK_VERSION,
        .node_guid = a.node_guid,
        .sys_image_guid = a.node_guid,
        .max_mr_size = UINT64_MAX,
        .page_size_cap = UINT64_MAX & ~0xfffull,
        .vendor_id = VB_VENDOR_ID,
        .vendor_part_id = 1,
        .hw_ver = 1,
        .max_qp = (int)a.max_qp,
        .max_qp_wr = (int)a.max_qp_wr,
        .device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID |
                            IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
                            IBV_DEVICE_XRC | IBV_DEVICE_MEM_MGT_EXTENSIONS,
        .max_sge = (int)a.max_sge,
        .max_sge_rd = (int)a.max_sge,
        .max_cq = (int)a.max_cq,
        .max_cqe = (int)a.max_cqe,
        .max_mr = (int)a.max_mr,
        .max_pd = (int)a.max_pd,
        .max_qp_rd_atom = (int)a.max_rd_atomic,
        .max_res_rd_atom = (int)(a.max_rd_atomic * a.max_qp),
        .max_qp_init_rd_atom = (int)a.max_rd_atomic,
        .atomic_cap = IBV_ATOMIC_HCA,
        .max_mw = (int)a.max_mw,
        .max_mcast_grp = UROCE_MCAST_GROUPS,
        .max_mcast_qp_attach = UROCE_MCAST_QPS,
        .max_total_mcast_qp_attach = UROCE_MCAST_GROUPS * UROCE_MCAST_QPS,
        .max_ah = INT32_MAX,
        .max_srq = (int)a.max_srq,
        .max_srq_wr = (int)a.max_qp_wr,
        .max_srq_sge = (int)a.max_sge,
        .max_pkeys = 1,
        .local_ca_ack_delay = 15,
        .phys_port_cnt = 1,
    };
    return 0;
}

#define ODP_RC                                                                                                         \
    (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |                      \
     IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV)

int vb_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *input,
                       struct ibv_device_attr_ex *ret, size_t size)
{
    if (input && input->comp_mask)
        return EINVAL;
    if (size < sizeof ret->orig_attr)
        return EINVAL;
    struct ibv_device_attr_ex a = {
        /* Memory is never pinned: what ODP is on an adapter is how all memory is here. */
        .odp_caps = {.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT,
                     .per_transport_caps = {ODP_RC,
                                            IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
                                                IBV_ODP_SUPPORT_SRQ_RECV,
                                            IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV}},
        .completion_timestamp_mask = UINT64_MAX,
        .hca_core_clock = 1000000, /* kHz: time stamps are nanoseconds */
        .max_dm_size = VB_DM_MAX,
        .xrc_odp_caps = ODP_RC,
        .phys_port_cnt_ex = 1,
    };
    vb_query_device(c, &a.orig_attr);
    memset(ret, 0, size);
    memcpy(ret, &a, min_u64(size, sizeof a));
    return 0;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *ret)
{
    return vb_query_device(c, ret);
}

/* The device's clock, as adapters tell theirs: cycles (here nanoseconds) in tv_nsec. */
int vb_query_rt_values(struct ibv_context *c, struct ibv_values_ex *values)
{
    (void)c;
    uint32_t asked = values->comp_mask;
    values->comp_mask = 0;
    if (asked & IBV_VALUES_MASK_RAW_CLOCK) {
        values->raw_clock = (struct timespec){.tv_nsec = (long)now_ns()};
        values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    }
    return asked & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK ? EOPNOTSUPP : 0;
}

/* ---- port ---- */

int vb_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *ret, size_t size)
{
    struct uroce_device_attr a;
    if (port != PORT)
        return EINVAL;
    uroce_query_device(vb_ctx(c)->native, &a);
    struct ibv_port_attr p = {
        .state = IBV_PORT_ACTIVE,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = (enum ibv_mtu)a.active_mtu,
        .gid_tbl_len = VB_GID_TABLE,
        .port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        .max_msg_sz = UROCE_MSG_MAX,
        .pkey_tbl_len = 1,
        .max_vl_num = 1,
        .active_width = 1,  /* one lane */
        .active_speed = 32, /* of 25 Gbit/s */
        .phys_state = 5,    /* link up */
        .link_layer = IBV_LINK_LAYER_ETHERNET,
        .flags = IBV_QPF_GRH_REQUIRED,
    };
    memset(ret, 0, size);
    memcpy(ret, &p, min_u64(size, sizeof p));
    return 0;
}

int(ibv_query_port)(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *ret)
{
    return vb_query_port(c, port, (struct ibv_port_attr *)(void *)ret, PORT_ATTR_COMPAT);
}

/* ---- GIDs: all of them RoCE v2 ---- */

static int query_entry(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *ret)
{
    union uroce_gid g;
    unsigned int ifindex = 0;
    if (port != PORT || index >= VB_GID_TABLE)
        return EINVAL;
    if (uroce_query_gid(vb_ctx(c)->native, index, &g))
        return ENODATA;
    uroce_query_gid_interface(vb_ctx(c)->native, index, &ifindex);
    *ret = (struct ibv_gid_entry){
        .gid_index = index,
        .port_num = port,
        .gid_type = IBV_GID_TYPE_ROCE_V2,
        .ndev_ifindex = ifindex,
    };
    memcpy(ret->gid.raw, g.raw, sizeof g.raw);
    return 0;
}

/* A program may know a shorter or a longer entry. */
static void hand_out(const struct ibv_gid_entry *e, void *ret, size_t size)
{
    memset(ret, 0, size);
    memcpy(ret, e, min_u64(size, sizeof *e));
}

int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *ret, uint32_t flags,
                      size_t size)
{
    struct ibv_gid_entry e;
    if (flags)
        return EOPNOTSUPP;
    int r = query_entry(c, port, index, &e);
    if (r)
        return errno = r;
    hand_out(&e, ret, size);
    return 0;
}

/* Empty entries are left out. */
ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *ret, size_t max, uint32_t flags, size_t size)
{
    size_t n = 0;
    if (flags)
        return -EOPNOTSUPP;
    for (uint32_t i = 0; i < VB_GID_TABLE; i++) {
        struct ibv_gid_entry e;
        if (query_entry(c, PORT, i, &e))
            continue;
        if (n == max)
            return -EINVAL;
        hand_out(&e, (char *)ret + n++ * size, size);
    }
    return (ssize_t)n;
}

/* An empty entry is a GID of zeros here. */
int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *ret)
{
    struct ibv_gid_entry e;
    int r = query_entry(c, port, (uint32_t)index, &e);
    if (r == ENODATA)
        memset(ret, 0, sizeof *ret);
    else if (!r)
        *ret = e.gid;
    else
        errno = r;
    return r && r != ENODATA ? -1 : 0;
}

int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned int index, unsigned int *type)
{
    struct ibv_gid_entry e;
    int r = query_entry(c, port, index, &e);
    if (r && r != ENODATA) {
        errno = r;
        return -1;
    }
    *type = r ? SYSFS_IB_ROCE_V1 : SYSFS_ROCE_V2;
    return 0;
}

/* ---- P_Keys: the default one ---- */

int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *ret)
{
    (void)c;
    if (port != PORT || index != 0) {
        errno = EINVAL;
        return -1;
    }
    *ret = VB_PKEY;
    return 0;
}

int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
    (void)c;
    if (port != PORT || pkey != VB_PKEY) {
        errno = EINVAL;
        return -1;
    }
    return 0;
}

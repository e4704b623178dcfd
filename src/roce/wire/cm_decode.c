/* Messages of the communication manager: decoding; and the header of the RDMA CM. */
#include "cm_raw.h"
#include "roce/wire_gid.h"

#include <errno.h>
#include <string.h>

#define COPY_PRIVATE(m, r) memcpy((m)->private_data, (r)->private_data, sizeof(r)->private_data)

static void get_path(const struct raw_path *r, struct wire_cm_path *ret)
{
    uint32_t flow_rate = get_be32(r->flow_rate);

    *ret = (struct wire_cm_path){
        .local_lid = get_be16(r->local_lid),
        .remote_lid = get_be16(r->remote_lid),
        .flow_label = flow_rate >> 12,
        .rate = flow_rate & 63,
        .traffic_class = r->traffic_class,
        .hop_limit = r->hop_limit,
        .sl = r->sl_subnet_local >> 4,
        .subnet_local = r->sl_subnet_local >> 3 & 1,
        .ack_timeout = r->ack_timeout >> 3,
    };
    memcpy(ret->local_gid.raw, r->local_gid, 16);
    memcpy(ret->remote_gid.raw, r->remote_gid, 16);
}

static void get_req(const struct raw_req *r, struct wire_cm *ret)
{
    struct wire_cm_req *q = &ret->req;

    ret->local_id = get_be32(r->local_id);
    *q = (struct wire_cm_req){
        .service_id = get_be64(r->service_id),
        .ca_guid = get_be64(r->ca_guid),
        .qkey = get_be32(r->qkey),
        .qpn = get_be24(r->qpn),
        .eecn = get_be24(r->eecn),
        .remote_eecn = get_be24(r->remote_eecn),
        .psn = get_be24(r->psn),
        .vendor_id = get_be24(r->vendor_id),
        .responder_resources = r->responder_resources,
        .initiator_depth = r->initiator_depth,
        .remote_response_timeout = r->remote_timeout_transport_flow >> 3,
        .local_response_timeout = r->local_timeout_retry >> 3,
        .transport = r->remote_timeout_transport_flow >> 1 & 3,
        .ext_transport = r->retries_srq_ext & 7,
        .retry_count = r->local_timeout_retry & 7,
        .rnr_retry_count = r->mtu_rdc_rnr & 7,
        .mtu = r->mtu_rdc_rnr >> 4,
        .max_cm_retries = r->retries_srq_ext >> 4,
        .flow_control = r->remote_timeout_transport_flow & 1,
        .rdc_exists = r->mtu_rdc_rnr >> 3 & 1,
        .srq = r->retries_srq_ext >> 3 & 1,
        .pkey = get_be16(r->pkey),
    };
    get_path(&r->primary, &q->primary);
    get_path(&r->alternate, &q->alternate);
    COPY_PRIVATE(ret, r);
}

static void get_rep(const struct raw_rep *r, struct wire_cm *ret)
{
    ret->local_id = get_be32(r->local_id);
    ret->remote_id = get_be32(r->remote_id);
    ret->rep = (struct wire_cm_rep){
        .qkey = get_be32(r->qkey),
        .qpn = get_be24(r->qpn),
        .eecn = get_be24(r->eecn),
        .psn = get_be24(r->psn),
        .vendor_id = (uint32_t)r->vendor_h << 16 | (uint32_t)r->vendor_m << 8 | r->vendor_l,
        .responder_resources = r->responder_resources,
        .initiator_depth = r->initiator_depth,
        .target_ack_delay = r->delay_failover_flow >> 3,
        .failover = r->delay_failover_flow >> 1 & 3,
        .rnr_retry_count = r->rnr_srq >> 5,
        .flow_control = r->delay_failover_flow & 1,
        .srq = r->rnr_srq >> 4 & 1,
        .ca_guid = get_be64(r->ca_guid),
    };
    COPY_PRIVATE(ret, r);
}

static void get_mra(const struct raw_mra *r, struct wire_cm *ret)
{
    ret->local_id = get_be32(r->local_id);
    ret->remote_id = get_be32(r->remote_id);
    ret->mra.answered = r->answered >> 6;
    ret->mra.service_timeout = r->service_timeout >> 3;
    COPY_PRIVATE(ret, r);
}

static int get_rej(const struct raw_rej *r, struct wire_cm *ret)
{
    ret->local_id = get_be32(r->local_id);
    ret->remote_id = get_be32(r->remote_id);
    ret->rej.answered = r->answered >> 6;
    ret->rej.info_len = r->info_len >> 1;
    ret->rej.reason = get_be16(r->reason);
    if (ret->rej.info_len > WIRE_CM_INFO_MAX)
        return -EPROTO;
    memcpy(ret->rej.info, r->info, ret->rej.info_len);
    COPY_PRIVATE(ret, r);
    return 0;
}

static void get_ids(const struct raw_ids *r, struct wire_cm *ret)
{
    ret->local_id = get_be32(r->local_id);
    ret->remote_id = get_be32(r->remote_id);
    COPY_PRIVATE(ret, r);
}

static void get_dreq(const struct raw_dreq *r, struct wire_cm *ret)
{
    ret->local_id = get_be32(r->local_id);
    ret->remote_id = get_be32(r->remote_id);
    ret->dreq.qpn = get_be24(r->qpn);
    COPY_PRIVATE(ret, r);
}

static void get_sidr_req(const struct raw_sidr_req *r, struct wire_cm *ret)
{
    ret->local_id = get_be32(r->request_id);
    ret->sidr_req.service_id = get_be64(r->service_id);
    ret->sidr_req.pkey = get_be16(r->pkey);
    COPY_PRIVATE(ret, r);
}

static int get_sidr_rep(const struct raw_sidr_rep *r, struct wire_cm *ret)
{
    ret->local_id = get_be32(r->request_id);
    ret->sidr_rep.service_id = get_be64(r->service_id);
    ret->sidr_rep.qpn = get_be24(r->qpn);
    ret->sidr_rep.qkey = get_be32(r->qkey);
    ret->sidr_rep.vendor_id = (uint32_t)get_be16(r->vendor_h) << 8 | r->vendor_l;
    ret->sidr_rep.status = r->status;
    ret->sidr_rep.info_len = r->info_len;
    if (r->info_len > WIRE_CM_INFO_MAX)
        return -EPROTO;
    memcpy(ret->sidr_rep.info, r->info, r->info_len);
    COPY_PRIVATE(ret, r);
    return 0;
}

static int get_apr(const struct raw_apr *r, struct wire_cm *ret)
{
    ret->local_id = get_be32(r->local_id);
    ret->remote_id = get_be32(r->remote_id);
    ret->apr.status = r->status;
    ret->apr.info_len = r->info_len;
    if (r->info_len > WIRE_CM_INFO_MAX)
        return -EPROTO;
    memcpy(ret->apr.info, r->info, r->info_len);
    COPY_PRIVATE(ret, r);
    return 0;
}

/* body: all behind the common header, whose length was checked. */
static int get_body(const uint8_t *body, struct wire_cm *ret)
{
    union raw_cm r;

    memcpy(&r, body, sizeof r);
    switch (ret->attr) {
    case WIRE_CM_REQ:
        get_req(&r.req, ret);
        return 0;
    case WIRE_CM_MRA:
        get_mra(&r.mra, ret);
        return 0;
    case WIRE_CM_REJ:
        return get_rej(&r.rej, ret);
    case WIRE_CM_REP:
        get_rep(&r.rep, ret);
        return 0;
    case WIRE_CM_RTU:
    case WIRE_CM_DREP:
        get_ids(&r.ids, ret);
        return 0;
    case WIRE_CM_DREQ:
        get_dreq(&r.dreq, ret);
        return 0;
    case WIRE_CM_SIDR_REQ:
        get_sidr_req(&r.sidr_req, ret);
        return 0;
    case WIRE_CM_SIDR_REP:
        return get_sidr_rep(&r.sidr_rep, ret);
    case WIRE_CM_LAP: /* the ids alone */
        ret->local_id = get_be32(r.ids.local_id);
        ret->remote_id = get_be32(r.ids.remote_id);
        return 0;
    case WIRE_CM_APR:
        return get_apr(&r.apr, ret);
    }
    return -EPROTO;
}

int wire_cm_decode(const void *data, size_t len, struct wire_cm *ret)
{
    struct wire_mad head;
    struct wire_cm m = {0};
    int rc = wire_mad_decode(data, len, &head);

    if (rc)
        return rc;
    if (head.mgmt_class != WIRE_MAD_CM || head.method != WIRE_MAD_SEND)
        return -ENOMSG;
    m.attr = (enum wire_cm_attr)head.attr_id;
    m.tid = head.tid;
    m.attr_mod = head.attr_mod;
    rc = get_body((const uint8_t *)data + WIRE_MAD_HEAD_BYTES, &m);
    if (rc)
        return rc;
    *ret = m;
    return head.class_version == CM_CLASS_VERSION ? 0 : -EPROTONOSUPPORT;
}

/* ---- the RDMA CM ---- */

int wire_cma_encode(const struct wire_cma *h, uint8_t ret[WIRE_CMA_BYTES])
{
    struct raw_cma r = {.ip_version = h->v4 ? 4 << 4 : 6 << 4, .port = put_be16(h->src_port)};

    if (h->v4) {
        if (!wire_gid_is_v4(&h->src) || !wire_gid_is_v4(&h->dst))
            return -EINVAL;
        memcpy(r.src + 12, h->src.raw + 12, 4);
        memcpy(r.dst + 12, h->dst.raw + 12, 4);
    } else {
        if (wire_gid_is_v4(&h->src) || wire_gid_is_v4(&h->dst))
            return -EINVAL;
        memcpy(r.src, h->src.raw, 16);
        memcpy(r.dst, h->dst.raw, 16);
    }
    memcpy(ret, &r, sizeof r);
    return 0;
}

static union uroce_gid v4_gid(const uint8_t *ip)
{
    union uroce_gid g = {.raw = {[10] = 0xff, [11] = 0xff}};

    memcpy(g.raw + 12, ip, 4);
    return g;
}

int wire_cma_decode(const uint8_t data[WIRE_CMA_BYTES], struct wire_cma *ret)
{
    struct raw_cma r;
    struct wire_cma h;

    memcpy(&r, data, sizeof r);
    if (r.version || (r.ip_version >> 4 != 4 && r.ip_version >> 4 != 6))
        return -EPROTO;
    h = (struct wire_cma){.src_port = get_be16(r.port), .v4 = r.ip_version >> 4 == 4};
    if (h.v4) {
        h.src = v4_gid(r.src + 12);
        h.dst = v4_gid(r.dst + 12);
    } else {
        memcpy(h.src.raw, r.src, 16);
        memcpy(h.dst.raw, r.dst, 16);
        if (wire_gid_is_v4(&h.src) || wire_gid_is_v4(&h.dst))
            return -EPROTO;
    }
    *ret = h;
    return 0;
}

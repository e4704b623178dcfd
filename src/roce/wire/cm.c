/* Messages of the communication manager: what they have in common, and encoding. */
#include "cm_raw.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define QPN_MAX 0xffffffu
#define ROOM    (WIRE_MAD_BYTES - WIRE_MAD_HEAD_BYTES)

static_assert(sizeof(struct raw_path) == 44, "layout");
static_assert(offsetof(struct raw_req, qkey) == 28 && offsetof(struct raw_req, pkey) == 48, "layout");
static_assert(offsetof(struct raw_req, primary) == 52 && offsetof(struct raw_req, private_data) == 140, "layout");
static_assert(offsetof(struct raw_rep, ca_guid) == 28 && offsetof(struct raw_sidr_rep, qkey) == 20, "layout");
static_assert(sizeof(struct raw_req) == ROOM && sizeof(struct raw_mra) == ROOM, "layout");
static_assert(sizeof(struct raw_rej) == ROOM && sizeof(struct raw_rep) == ROOM, "layout");
static_assert(sizeof(struct raw_ids) == ROOM && sizeof(struct raw_dreq) == ROOM, "layout");
static_assert(sizeof(struct raw_sidr_req) == ROOM && sizeof(struct raw_sidr_rep) == ROOM, "layout");
static_assert(sizeof(struct raw_apr) == ROOM && sizeof(struct raw_cma) == WIRE_CMA_BYTES, "layout");

static const struct {
    const char *name;
    unsigned private_bytes;
} attrs[] = {
    {"REQ", WIRE_CM_REQ_PRIVATE},   {"MRA", WIRE_CM_MRA_PRIVATE},           {"REJ", WIRE_CM_REJ_PRIVATE},
    {"REP", WIRE_CM_REP_PRIVATE},   {"RTU", WIRE_CM_RTU_PRIVATE},           {"DREQ", WIRE_CM_DREQ_PRIVATE},
    {"DREP", WIRE_CM_DREP_PRIVATE}, {"SIDR_REQ", WIRE_CM_SIDR_REQ_PRIVATE}, {"SIDR_REP", WIRE_CM_SIDR_REP_PRIVATE},
    {"LAP", WIRE_CM_LAP_PRIVATE},   {"APR", WIRE_CM_APR_PRIVATE},
};

unsigned wire_cm_private_bytes(enum wire_cm_attr attr)
{
    return attr >= WIRE_CM_REQ && attr <= WIRE_CM_APR ? attrs[attr - WIRE_CM_REQ].private_bytes : 0;
}

const char *wire_cm_name(enum wire_cm_attr attr)
{
    return attr >= WIRE_CM_REQ && attr <= WIRE_CM_APR ? attrs[attr - WIRE_CM_REQ].name : "?";
}

/* ---- encoding ---- */

static bool path_fits(const struct wire_cm_path *p)
{
    return p->flow_label <= 0xfffff && p->rate <= 63 && p->sl <= 15 && p->ack_timeout <= 31;
}

static struct raw_path put_path(const struct wire_cm_path *p)
{
    struct raw_path r = {
        .local_lid = put_be16(p->local_lid),
        .remote_lid = put_be16(p->remote_lid),
        .flow_rate = put_be32(p->flow_label << 12 | p->rate),
        .traffic_class = p->traffic_class,
        .hop_limit = p->hop_limit,
        .sl_subnet_local = (uint8_t)(p->sl << 4 | p->subnet_local << 3),
        .ack_timeout = (uint8_t)(p->ack_timeout << 3),
    };

    memcpy(r.local_gid, p->local_gid.raw, 16);
    memcpy(r.remote_gid, p->remote_gid.raw, 16);
    return r;
}

static bool req_fits(const struct wire_cm_req *q)
{
    return q->qpn <= QPN_MAX && q->eecn <= QPN_MAX && q->remote_eecn <= QPN_MAX && q->psn <= QPN_MAX &&
           q->vendor_id <= QPN_MAX && q->remote_response_timeout <= 31 && q->local_response_timeout <= 31 &&
           q->transport <= 3 && q->ext_transport <= 7 && q->retry_count <= 7 && q->rnr_retry_count <= 7 &&
           q->mtu <= 15 && q->max_cm_retries <= 15 && path_fits(&q->primary) && path_fits(&q->alternate);
}

static int put_req(const struct wire_cm *m, struct raw_req *r)
{
    const struct wire_cm_req *q = &m->req;

    if (!req_fits(q))
        return -EINVAL;
    *r = (struct raw_req){
        .local_id = put_be32(m->local_id),
        .vendor_id = put_be24(q->vendor_id),
        .service_id = put_be64(q->service_id),
        .ca_guid = put_be64(q->ca_guid),
        .qkey = put_be32(q->qkey),
        .qpn = put_be24(q->qpn),
        .responder_resources = q->responder_resources,
        .eecn = put_be24(q->eecn),
        .initiator_depth = q->initiator_depth,
        .remote_eecn = put_be24(q->remote_eecn),
        .remote_timeout_transport_flow =
            (uint8_t)(q->remote_response_timeout << 3 | q->transport << 1 | q->flow_control),
        .psn = put_be24(q->psn),
        .local_timeout_retry = (uint8_t)(q->local_response_timeout << 3 | q->retry_count),
        .pkey = put_be16(q->pkey),
        .mtu_rdc_rnr = (uint8_t)(q->mtu << 4 | q->rdc_exists << 3 | q->rnr_retry_count),
        .retries_srq_ext = (uint8_t)(q->max_cm_retries << 4 | q->srq << 3 | q->ext_transport),
        .primary = put_path(&q->primary),
        .alternate = put_path(&q->alternate),
    };
    memcpy(r->private_data, m->private_data, sizeof r->private_data);
    return 0;
}

static int put_rep(const struct wire_cm *m, struct raw_rep *r)
{
    const struct wire_cm_rep *p = &m->rep;

    if (p->qpn > QPN_MAX || p->eecn > QPN_MAX || p->psn > QPN_MAX || p->vendor_id > QPN_MAX ||
        p->target_ack_delay > 31 || p->failover > 3 || p->rnr_retry_count > 7)
        return -EINVAL;
    *r = (struct raw_rep){
        .local_id = put_be32(m->local_id),
        .remote_id = put_be32(m->remote_id),
        .qkey = put_be32(p->qkey),
        .qpn = put_be24(p->qpn),
        .vendor_h = (uint8_t)(p->vendor_id >> 16),
        .eecn = put_be24(p->eecn),
        .vendor_m = (uint8_t)(p->vendor_id >> 8),
        .psn = put_be24(p->psn),
        .vendor_l = (uint8_t)p->vendor_id,
        .responder_resources = p->responder_resources,
        .initiator_depth = p->initiator_depth,
        .delay_failover_flow = (uint8_t)(p->target_ack_delay << 3 | p->failover << 1 | p->flow_control),
        .rnr_srq = (uint8_t)(p->rnr_retry_count << 5 | p->srq << 4),
        .ca_guid = put_be64(p->ca_guid),
    };
    memcpy(r->private_data, m->private_data, sizeof r->private_data);
    return 0;
}

static int put_rej(const struct wire_cm *m, struct raw_rej *r)
{
    if (m->rej.answered > 3 || m->rej.info_len > WIRE_CM_INFO_MAX)
        return -EINVAL;
    *r = (struct raw_rej){
        .local_id = put_be32(m->local_id),
        .remote_id = put_be32(m->remote_id),
        .answered = (uint8_t)(m->rej.answered << 6),
        .info_len = (uint8_t)(m->rej.info_len << 1),
        .reason = put_be16(m->rej.reason),
    };
    memcpy(r->info, m->rej.info, m->rej.info_len);
    memcpy(r->private_data, m->private_data, sizeof r->private_data);
    return 0;
}

static int put_mra(const struct wire_cm *m, struct raw_mra *r)
{
    if (m->mra.answered > 3 || m->mra.service_timeout > 31)
        return -EINVAL;
    *r = (struct raw_mra){
        .local_id = put_be32(m->local_id),
        .remote_id = put_be32(m->remote_id),
        .answered = (uint8_t)(m->mra.answered << 6),
        .service_timeout = (uint8_t)(m->mra.service_timeout << 3),
    };
    memcpy(r->private_data, m->private_data, sizeof r->private_data);
    return 0;
}

static int put_dreq(const struct wire_cm *m, struct raw_dreq *r)
{
    if (m->dreq.qpn > QPN_MAX)
        return -EINVAL;
    *r = (struct raw_dreq){
        .local_id = put_be32(m->local_id),
        .remote_id = put_be32(m->remote_id),
        .qpn = put_be24(m->dreq.qpn),
    };
    memcpy(r->private_data, m->private_data, sizeof r->private_data);
    return 0;
}

static int put_ids(const struct wire_cm *m, struct raw_ids *r)
{
    *r = (struct raw_ids){.local_id = put_be32(m->local_id), .remote_id = put_be32(m->remote_id)};
    memcpy(r->private_data, m->private_data, sizeof r->private_data);
    return 0;
}

static int put_sidr_req(const struct wire_cm *m, struct raw_sidr_req *r)
{
    *r = (struct raw_sidr_req){
        .request_id = put_be32(m->local_id),
        .pkey = put_be16(m->sidr_req.pkey),
        .service_id = put_be64(m->sidr_req.service_id),
    };
    memcpy(r->private_data, m->private_data, sizeof r->private_data);
    return 0;
}

static int put_sidr_rep(const struct wire_cm *m, struct raw_sidr_rep *r)
{
    if (m->sidr_rep.qpn > QPN_MAX || m->sidr_rep.vendor_id > QPN_MAX || m->sidr_rep.info_len > WIRE_CM_INFO_MAX)
        return -EINVAL;
    *r = (struct raw_sidr_rep){
        .request_id = put_be32(m->local_id),
        .status = m->sidr_rep.status,
        .info_len = m->sidr_rep.info_len,
        .vendor_h = put_be16((uint16_t)(m->sidr_rep.vendor_id >> 8)),
        .qpn = put_be24(m->sidr_rep.qpn),
        .vendor_l = (uint8_t)m->sidr_rep.vendor_id,
        .service_id = put_be64(m->sidr_rep.service_id),
        .qkey = put_be32(m->sidr_rep.qkey),
    };
    memcpy(r->info, m->sidr_rep.info, m->sidr_rep.info_len);
    memcpy(r->private_data, m->private_data, sizeof r->private_data);
    return 0;
}

static int put_apr(const struct wire_cm *m, struct raw_apr *r)
{
    if (m->apr.info_len > WIRE_CM_INFO_MAX)
        return -EINVAL;
    *r = (struct raw_apr){
        .local_id = put_be32(m->local_id),
        .remote_id = put_be32(m->remote_id),
        .info_len = m->apr.info_len,
        .status = m->apr.status,
    };
    memcpy(r->info, m->apr.info, m->apr.info_len);
    memcpy(r->private_data, m->private_data, sizeof r->private_data);
    return 0;
}

int wire_cm_encode(const struct wire_cm *m, uint8_t ret_mad[WIRE_MAD_BYTES])
{
    union raw_cm r;
    struct wire_mad head = {.mgmt_class = WIRE_MAD_CM,
                            .class_version = CM_CLASS_VERSION,
                            .method = WIRE_MAD_SEND,
                            .tid = m->tid,
                            .attr_id = (uint16_t)m->attr,
                            .attr_mod = m->attr_mod};
    int rc = -EINVAL;

    switch (m->attr) {
    case WIRE_CM_REQ:
        rc = put_req(m, &r.req);
        break;
    case WIRE_CM_MRA:
        rc = put_mra(m, &r.mra);
        break;
    case WIRE_CM_REJ:
        rc = put_rej(m, &r.rej);
        break;
    case WIRE_CM_REP:
        rc = put_rep(m, &r.rep);
        break;
    case WIRE_CM_RTU:
    case WIRE_CM_DREP:
        rc = put_ids(m, &r.ids);
        break;
    case WIRE_CM_DREQ:
        rc = put_dreq(m, &r.dreq);
        break;
    case WIRE_CM_SIDR_REQ:
        rc = put_sidr_req(m, &r.sidr_req);
        break;
    case WIRE_CM_SIDR_REP:
        rc = put_sidr_rep(m, &r.sidr_rep);
        break;
    case WIRE_CM_APR:
        rc = put_apr(m, &r.apr);
        break;
    case WIRE_CM_LAP:
        break;
    }
    if (rc)
        return rc;
    wire_mad_encode(&head, ret_mad);
    memcpy(ret_mad + WIRE_MAD_HEAD_BYTES, &r, ROOM);
    return 0;
}

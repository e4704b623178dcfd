#include "cm_random.h"

#include <stdlib.h>
#include <string.h>

static struct wire_cm_path random_path(struct rng *r)
{
    struct wire_cm_path p = {
        .local_lid = (uint16_t)rng_u64(r),
        .remote_lid = (uint16_t)rng_u64(r),
        .flow_label = (uint32_t)rng_below(r, 1u << 20),
        .rate = (uint8_t)rng_below(r, 64),
        .traffic_class = (uint8_t)rng_u64(r),
        .hop_limit = (uint8_t)rng_u64(r),
        .sl = (uint8_t)rng_below(r, 16),
        .subnet_local = rng_below(r, 2),
        .ack_timeout = (uint8_t)rng_below(r, 32),
    };

    rng_fill(r, p.local_gid.raw, 16);
    rng_fill(r, p.remote_gid.raw, 16);
    return p;
}

static uint32_t bits(struct rng *r, unsigned n)
{
    return (uint32_t)rng_below(r, 1ull << n);
}

static void random_req(struct rng *r, struct wire_cm_req *q)
{
    *q = (struct wire_cm_req){
        .service_id = rng_u64(r),
        .ca_guid = rng_u64(r),
        .qkey = bits(r, 32),
        .qpn = bits(r, 24),
        .eecn = bits(r, 24),
        .remote_eecn = bits(r, 24),
        .psn = bits(r, 24),
        .vendor_id = bits(r, 24),
        .responder_resources = (uint8_t)bits(r, 8),
        .initiator_depth = (uint8_t)bits(r, 8),
        .remote_response_timeout = (uint8_t)bits(r, 5),
        .local_response_timeout = (uint8_t)bits(r, 5),
        .transport = (uint8_t)bits(r, 2),
        .ext_transport = (uint8_t)bits(r, 3),
        .retry_count = (uint8_t)bits(r, 3),
        .rnr_retry_count = (uint8_t)bits(r, 3),
        .mtu = (uint8_t)bits(r, 4),
        .max_cm_retries = (uint8_t)bits(r, 4),
        .flow_control = bits(r, 1),
        .rdc_exists = bits(r, 1),
        .srq = bits(r, 1),
        .pkey = (uint16_t)bits(r, 16),
        .primary = random_path(r),
        .alternate = random_path(r),
    };
}

static void random_rep(struct rng *r, struct wire_cm_rep *p)
{
    *p = (struct wire_cm_rep){
        .qkey = bits(r, 32),
        .qpn = bits(r, 24),
        .eecn = bits(r, 24),
        .psn = bits(r, 24),
        .vendor_id = bits(r, 24),
        .responder_resources = (uint8_t)bits(r, 8),
        .initiator_depth = (uint8_t)bits(r, 8),
        .target_ack_delay = (uint8_t)bits(r, 5),
        .failover = (uint8_t)bits(r, 2),
        .rnr_retry_count = (uint8_t)bits(r, 3),
        .flow_control = bits(r, 1),
        .srq = bits(r, 1),
        .ca_guid = rng_u64(r),
    };
}

enum wire_cm_attr cm_random_attr(unsigned n)
{
    static const enum wire_cm_attr all[CM_RANDOM_ATTRS] = {
        WIRE_CM_REQ,  WIRE_CM_MRA,  WIRE_CM_REJ,      WIRE_CM_REP,      WIRE_CM_RTU,
        WIRE_CM_DREQ, WIRE_CM_DREP, WIRE_CM_SIDR_REQ, WIRE_CM_SIDR_REP, WIRE_CM_APR};
    return all[n % CM_RANDOM_ATTRS];
}

static void random_cma(struct rng *r, uint8_t *at)
{
    struct wire_cma h = {.src_port = (uint16_t)bits(r, 16), .v4 = bits(r, 1)};

    rng_fill(r, h.src.raw, 16);
    rng_fill(r, h.dst.raw, 16);
    if (h.v4)
        for (int i = 0; i < 12; i++)
            h.src.raw[i] = h.dst.raw[i] = i < 10 ? 0 : 0xff;
    else
        h.src.raw[0] = h.dst.raw[0] = 0x20;
    if (wire_cma_encode(&h, at))
        abort();
}

void cm_random(struct rng *r, enum wire_cm_attr attr, bool cma, struct wire_cm *ret)
{
    *ret = (struct wire_cm){
        .attr = attr, .tid = rng_u64(r), .attr_mod = bits(r, 32), .local_id = bits(r, 32), .remote_id = bits(r, 32)};
    rng_fill(r, ret->private_data, wire_cm_private_bytes(attr));
    if (cma)
        random_cma(r, ret->private_data);
    if (attr == WIRE_CM_REQ || attr == WIRE_CM_SIDR_REQ || attr == WIRE_CM_SIDR_REP)
        ret->remote_id = 0;
    if (attr == WIRE_CM_REQ) {
        random_req(r, &ret->req);
    } else if (attr == WIRE_CM_REP) {
        random_rep(r, &ret->rep);
    } else if (attr == WIRE_CM_MRA) {
        ret->mra.answered = (uint8_t)bits(r, 2);
        ret->mra.service_timeout = (uint8_t)bits(r, 5);
    } else if (attr == WIRE_CM_REJ) {
        ret->rej.answered = (uint8_t)bits(r, 2);
        ret->rej.info_len = (uint8_t)rng_below(r, WIRE_CM_INFO_MAX + 1);
        ret->rej.reason = (uint16_t)bits(r, 16);
        rng_fill(r, ret->rej.info, ret->rej.info_len);
    } else if (attr == WIRE_CM_DREQ) {
        ret->dreq.qpn = bits(r, 24);
    } else if (attr == WIRE_CM_SIDR_REQ) {
        ret->sidr_req.service_id = rng_u64(r);
        ret->sidr_req.pkey = (uint16_t)bits(r, 16);
    } else if (attr == WIRE_CM_SIDR_REP) {
        ret->sidr_rep.service_id = rng_u64(r);
        ret->sidr_rep.qpn = bits(r, 24);
        ret->sidr_rep.qkey = bits(r, 32);
        ret->sidr_rep.vendor_id = bits(r, 24);
        ret->sidr_rep.status = (uint8_t)bits(r, 8);
        ret->sidr_rep.info_len = (uint8_t)rng_below(r, WIRE_CM_INFO_MAX + 1);
        rng_fill(r, ret->sidr_rep.info, ret->sidr_rep.info_len);
    } else if (attr == WIRE_CM_APR) {
        ret->apr.status = (uint8_t)bits(r, 8);
        ret->apr.info_len = (uint8_t)rng_below(r, WIRE_CM_INFO_MAX + 1);
        rng_fill(r, ret->apr.info, ret->apr.info_len);
    }
}

void cm_bytes(const struct wire_cm *m, uint8_t ret[WIRE_MAD_BYTES])
{
    if (wire_cm_encode(m, ret))
        abort();
}

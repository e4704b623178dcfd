/*
 * Writes random messages of the communication manager for a judge that we did not write: roce_cm_write PCAP TEXT. TEXT
 * has a line a message: what each field must be found to be.
 */
#include "cm_random.h"
#include "roce_frames.h"

#include "base/util.h"
#include "roce/wire_gid.h"
#include "../lib/seed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 40

static void print_hex(FILE *f, const char *key, const uint8_t *p, size_t n)
{
    fprintf(f, " %s=", key);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%02x", p[i]);
}

static void print_path(FILE *f, const char *at, const struct wire_cm_path *p)
{
    fprintf(f, " %s_llid=%u %s_rlid=%u %s_flow=%u %s_rate=%u %s_tclass=%u %s_hop=%u %s_sl=%u %s_local=%d %s_ack=%u", at,
            p->local_lid, at, p->remote_lid, at, p->flow_label, at, p->rate, at, p->traffic_class, at, p->hop_limit, at,
            p->sl, at, p->subnet_local, at, p->ack_timeout);
}

static void print_req(FILE *f, const struct wire_cm *m)
{
    const struct wire_cm_req *q = &m->req;

    fprintf(f,
            " local=%u service=%" PRIu64 " guid=%" PRIu64 " qkey=%u qpn=%u eecn=%u reecn=%u psn=%u resources=%u "
            "depth=%u rtimeout=%u ltimeout=%u transport=%u ext=%u retry=%u rnr=%u mtu=%u cmretries=%u flow=%d rdc=%d "
            "srq=%d pkey=%u",
            m->local_id, q->service_id, q->ca_guid, q->qkey, q->qpn, q->eecn, q->remote_eecn, q->psn,
            q->responder_resources, q->initiator_depth, q->remote_response_timeout, q->local_response_timeout,
            q->transport, q->ext_transport, q->retry_count, q->rnr_retry_count, q->mtu, q->max_cm_retries,
            q->flow_control, q->rdc_exists, q->srq, q->pkey);
    print_path(f, "p", &q->primary);
    print_path(f, "a", &q->alternate);
    print_hex(f, "alocal_gid", q->alternate.local_gid.raw, 16);
    print_hex(f, "aremote_gid", q->alternate.remote_gid.raw, 16);
}

static void print_cma(FILE *f, const struct wire_cm *m)
{
    char src[WIRE_GID_TEXT], dst[WIRE_GID_TEXT];
    struct wire_cma h;

    if (wire_cma_decode(m->private_data, &h))
        abort();
    fprintf(f, " ipv=%d sport=%u src=%s dst=%s", h.v4 ? 4 : 6, h.src_port, wire_gid_text(&h.src, src),
            wire_gid_text(&h.dst, dst));
    print_hex(f, "cma_private", m->private_data + WIRE_CMA_BYTES, WIRE_CM_REQ_PRIVATE - WIRE_CMA_BYTES);
}

static void print_rest(FILE *f, const struct wire_cm *m)
{
    const struct wire_cm_rep *p = &m->rep;

    fprintf(f, " local=%u", m->local_id);
    if (m->attr != WIRE_CM_SIDR_REQ && m->attr != WIRE_CM_SIDR_REP)
        fprintf(f, " remote=%u", m->remote_id);
    if (m->attr == WIRE_CM_REP)
        fprintf(f,
                " qkey=%u qpn=%u eecn=%u psn=%u resources=%u depth=%u delay=%u failover=%u flow=%d rnr=%u srq=%d "
                "guid=%" PRIu64,
                p->qkey, p->qpn, p->eecn, p->psn, p->responder_resources, p->initiator_depth, p->target_ack_delay,
                p->failover, p->flow_control, p->rnr_retry_count, p->srq, p->ca_guid);
    else if (m->attr == WIRE_CM_REJ)
        fprintf(f, " answered=%u infolen=%u reason=%u", m->rej.answered, m->rej.info_len, m->rej.reason);
    else if (m->attr == WIRE_CM_DREQ)
        fprintf(f, " qpn=%u", m->dreq.qpn);
    else if (m->attr == WIRE_CM_MRA)
        fprintf(f, " answered=%u timeout=%u", m->mra.answered, m->mra.service_timeout);
    else if (m->attr == WIRE_CM_SIDR_REQ)
        fprintf(f, " service=%" PRIu64 " pkey=%u", m->sidr_req.service_id, m->sidr_req.pkey);
    else if (m->attr == WIRE_CM_SIDR_REP)
        fprintf(f, " service=%" PRIu64 " qpn=%u qkey=%u status=%u infolen=%u", m->sidr_rep.service_id, m->sidr_rep.qpn,
                m->sidr_rep.qkey, m->sidr_rep.status, m->sidr_rep.info_len);
    else if (m->attr == WIRE_CM_APR)
        fprintf(f, " status=%u infolen=%u", m->apr.status, m->apr.info_len);
}

static void write_one(FILE *pcap, FILE *text, struct rng *r, unsigned round, unsigned i)
{
    uint8_t mad[WIRE_MAD_BYTES];
    struct wire_cm m;
    struct roce_frame fr = {.ip_id = (uint16_t)rng_u64(r)};
    struct wire_pkt p = {.opcode = WIRE_UD_SEND_ONLY,
                         .pkey = WIRE_PKEY_DEFAULT,
                         .dest_qp = WIRE_QPN_GSI,
                         .src_qp = WIRE_QPN_GSI,
                         .qkey = WIRE_QKEY_GSI,
                         .payload = mad,
                         .payload_len = sizeof mad};
    bool cma = i == 0 && round % 2;

    cm_random(r, cm_random_attr(i), cma, &m);
    if (m.attr == WIRE_CM_REQ) /* tshark tells a request of the RDMA CM by its service id */
        m.req.service_id =
            cma ? wire_cma_service_id(WIRE_CMA_TCP, (uint16_t)rng_u64(r)) : m.req.service_id | 1ull << 63;
    cm_bytes(&m, mad);
    roce_random_flow(r, &fr.flow);
    fr.pkt_bytes = roce_build(&p, &fr.flow, fr.ip_id, fr.pkt);
    roce_pcap_write(pcap, &fr);
    fprintf(text, "name=%s tid=%" PRIu64 " mod=%u", wire_cm_name(m.attr), m.tid, m.attr_mod);
    if (m.attr == WIRE_CM_REQ)
        print_req(text, &m);
    else
        print_rest(text, &m);
    if (cma)
        print_cma(text, &m);
    else
        print_hex(text, "private", m.private_data, wire_cm_private_bytes(m.attr));
    fprintf(text, "\n");
}

int main(int argc, char **argv)
{
    FILE *pcap = argc == 3 ? fopen(argv[1], "wb") : NULL, *text = argc == 3 ? fopen(argv[2], "w") : NULL;
    struct rng r;

    if (!pcap || !text)
        return 2;
    rng_seed(&r, seed_new());
    roce_pcap_begin(pcap);
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < CM_RANDOM_ATTRS; i++)
            write_one(pcap, text, &r, round, i);
    return fclose(pcap) || fclose(text);
}

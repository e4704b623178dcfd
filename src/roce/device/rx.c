/* Packets in: decode, ICRC, PATH slots, engine. Whatever is wrong is dropped and counted here, once. */
#include "dev.h"

#include <string.h>

static bool same_addr(const struct port_addr *a, const struct port_addr *b)
{
    return a->udp_port == b->udp_port && memcmp(&a->gid, &b->gid, sizeof a->gid) == 0;
}

/*
 * A packet over UDP/IPv4 has an id that the socket does not show: the ids of a uroce peer's segments are tried, then
 * any id is solved for (a plain RoCE peer). docs/roce.md says what each check is worth. An enum wire_icrc_check, or
 * -EILSEQ.
 */
static int icrc_check(struct uroce_device *dev, struct dev_port *p, const struct port_rx *r)
{
    struct dev_rx_run *run = &p->rx_runs[r->len / 4 % ARRAY_SIZE(p->rx_runs)];
    if (run->icrc.pkt_bytes != r->len || !same_addr(&run->from, &r->from) || !same_addr(&run->to, &r->to)) {
        struct wire_flow f;
        wire_flow_init(&f, &r->from.gid, &r->to.gid, r->from.udp_port, r->to.udp_port);
        wire_icrc_run_init(&run->icrc, &dev->icrc, &f, r->len);
        run->from = r->from;
        run->to = r->to;
    }
    struct wire_icrc_ids ids = {.known = r->ipv4_id_known, .id = r->ipv4_id, .set = PORT_SEGS_MAX, .solve = true};
    return wire_icrc_run_verify(&run->icrc, &ids, r->data, NULL);
}

static void count_check(struct uroce_device *dev, int check)
{
    if (check == WIRE_ICRC_SOLVED)
        dev->counters.icrc_solved++;
    else
        dev->counters.icrc_full++;
}

static bool icrc_ok(struct uroce_device *dev, struct dev_port *p, const struct port_rx *r)
{
    if (p->caps.no_icrc)
        return true;
    int check = icrc_check(dev, p, r);
    if (check < 0)
        return false;
    count_check(dev, check);
    return true;
}

/* PATH slots take off what the peer's put on. The buffer is the port's own, and its payload ours until the next recv.
 */
static bool path_slots(struct uroce_device *dev, struct qp_rx *rx)
{
    struct wire_pkt *pkt = &rx->pkt;
    struct uroce_qp *qp = dev->path_slot_qps ? dev_path_slot_qp(dev, pkt->dest_qp) : NULL;
    const struct wire_op *op = wire_pkt_op(pkt);
    if (!qp || !op->has_payload || pkt->payload_len == 0)
        return true;
    struct slot_packet sp = {
        .qpn = pkt->dest_qp,
        .peer_qpn = qp->dest_qpn,
        .psn = pkt->psn.v,
        .opcode = pkt->opcode,
        .first = op->first,
        .last = op->last,
        .response = op->kind == WIRE_KIND_RESPONSE,
    };
    if (rx->copy) { /* of a link: it lies in the peer's memory */
        if (pkt->payload_len > WIRE_PAYLOAD_MAX || rx->copy(rx->copy_ctx, dev->bounce, 0, pkt->payload_len))
            return false;
        rx->copy = NULL;
        pkt->payload = dev->bounce;
    }
    int len = slot_chain_path(qp->slots, &sp, (uint8_t *)(uintptr_t)pkt->payload, pkt->payload_len, pkt->payload_len);
    if (len < 0) {
        dev->counters.drop_slot++;
        return false;
    }
    pkt->payload_len = (uint32_t)len;
    return true;
}

/* By a link come management datagrams, and packets of the queue pairs that have moved to it. */
static bool may_come_by(struct uroce_device *dev, const struct dev_link *l, uint32_t qpn)
{
    const struct uroce_qp *qp = dev_qp(dev, qpn);
    return qpn == WIRE_QPN_GSI || (qp && qp->link == l);
}

/* A packet that may be given to the engine; false: it was dropped. */
static bool open_packet(struct uroce_device *dev, struct dev_port *p, uint8_t port_id, const struct port_rx *r,
                        struct qp_rx *ret)
{
    const struct dev_link *link = dev_link_of(dev, port_id);
    ret->ecn_ce = (r->traffic_class & 3) == 3;
    ret->copy = r->copy;
    ret->copy_ctx = r->copy_ctx;
    int n = r->copy ? wire_decode_far(r->data, r->len, r->remote_len, &ret->pkt)
                    : wire_decode(r->data, r->len, &ret->pkt);
    if (n < 0) {
        dev->counters.drop_malformed++;
        return false;
    }
    if (!icrc_ok(dev, p, r)) {
        dev->counters.drop_icrc++;
        return false;
    }
    if (link && !may_come_by(dev, link, ret->pkt.dest_qp)) {
        dev->counters.drop_source++;
        return false;
    }
    if (!path_slots(dev, ret))
        return false;
    ret->pkt.far = link != NULL;
    ret->path = (struct qp_path){
        .local = r->to.gid,
        .remote = r->from.gid,
        .udp_sport = r->from.udp_port,
        .traffic_class = r->traffic_class,
        .hop_limit = r->hop_limit,
        .port_id = port_id,
    };
    return true;
}

void dev_take(struct uroce_device *dev, struct dev_port *p, uint8_t port_id, const struct port_rx *r, uint64_t now)
{
    struct qp_rx rx; /* its headers are filled by decoding */
    if (open_packet(dev, p, port_id, r, &rx))
        qp_engine_rx(dev->engine, now, &rx);
}

static bool alike(const struct port_rx *a, const struct port_rx *b)
{
    return a->len == b->len && !b->copy && a->traffic_class == b->traffic_class && a->hop_limit == b->hop_limit &&
           same_addr(&a->from, &b->from) && same_addr(&a->to, &b->to);
}

/*
 * The packet that was opened, with those that follow it in the middle of its message: as many as the engine has room
 * for, are alike, and have the right ICRC, which is known of each before any is given to the engine. Returns how many
 * were taken; 0: it is no such packet.
 */
static uint32_t take_run(struct uroce_device *dev, struct dev_port *p, const struct port_rx *r, int n,
                         const struct qp_rx *rx, uint64_t now)
{
    const uint8_t *payload[DEV_BURST];
    int checks[DEV_BURST];
    uint32_t max = (uint32_t)min_u64((uint64_t)n, 1 + DEV_RUN_BYTES / r->len), k;
    if (max < 2 || p->caps.no_icrc || dev->path_slot_qps || rx->pkt.ackreq)
        return 0;
    max = qp_engine_rx_room(dev->engine, rx, max);
    if (max < 2)
        return 0;
    payload[0] = rx->pkt.payload;
    for (k = 1; k < max; k++) {
        if (!alike(&r[0], &r[k]) || !wire_head_follows(r[0].data, r[k].data, k) ||
            (checks[k] = icrc_check(dev, p, &r[k])) < 0)
            break;
        payload[k] = r[k].data + WIRE_BTH_BYTES;
    }
    k = qp_engine_rx_run(dev->engine, now, rx, payload, k);
    for (uint32_t i = 1; i < k; i++)
        count_check(dev, checks[i]);
    return k;
}

/* Packets [0, n) of one port. */
static void take(struct uroce_device *dev, int index, const struct port_rx *r, int n, uint64_t now)
{
    struct dev_port *p = &dev->ports[index];
    struct qp_rx rx;
    for (int i = 0; i < n;) {
        if (!open_packet(dev, p, (uint8_t)index, &r[i], &rx)) {
            i++;
            continue;
        }
        uint32_t took = take_run(dev, p, r + i, n - i, &rx, now);
        if (!took) {
            qp_engine_rx(dev->engine, now, &rx);
            took = 1;
        }
        i += (int)took;
    }
}

int dev_rx(struct uroce_device *dev, int index, uint64_t now)
{
    int n = port_recv(dev->ports[index].port, now, dev->rx, DEV_BURST);
    if (n > 0)
        dev->ports[index].used_ns = now;
    take(dev, index, dev->rx, n, now);
    return n;
}

void dev_rx_held(struct uroce_device *dev, uint64_t now)
{
    struct holder_msg m;
    if (dev_take_flag(&dev->holder_ready))
        dev->holder.next_look_ns = 0;
    while (dev->cm_nmads < DEV_CM_MADS && holder_client_packet(&dev->holder, now, &m)) {
        int i = dev_address_index(dev, &m.to.gid);
        if (i < 0)
            continue;
        struct port_rx r = {
            .from = m.from,
            .to = m.to,
            .data = m.data,
            .len = m.len,
            .ipv4_id_known = !wire_gid_is_v4(&m.to.gid),
            .time_ns = now,
        };
        dev_take(dev, &dev->ports[i], (uint8_t)i, &r, now);
    }
}

#include "roce_frames.h"

#include "base/endian.h"

#include <stdlib.h>
#include <string.h>

bool roce_opcode(unsigned n, uint8_t *ret_opcode)
{
    for (unsigned op = 0; op < 256; op++)
        if (wire_op((uint8_t)op) && !n--) {
            *ret_opcode = (uint8_t)op;
            return true;
        }
    return false;
}

unsigned roce_opcodes(void)
{
    unsigned n = 0;

    for (unsigned op = 0; op < 256; op++)
        n += wire_op((uint8_t)op) != NULL;
    return n;
}

static void random_sack(struct rng *r, uint8_t *room, struct wire_pkt *p)
{
    p->sack_flags = rng_below(r, 2) ? WIRE_SACK_DUP : 0;
    p->sack_trigger = psn_make((uint32_t)rng_u64(r));
    p->sack_bits = (uint16_t)rng_below(r, WIRE_SACK_BITS_MAX + 1);
    p->payload_len = wire_sack_bytes(p->sack_bits);
    memset(room, 0, p->payload_len);
    for (uint32_t i = 1; i < p->sack_bits; i++)
        if (rng_below(r, 3) == 0)
            wire_sack_set(room, i);
}

void roce_random_pkt(struct rng *r, uint8_t opcode, uint32_t max_payload, uint8_t *room, struct wire_pkt *ret)
{
    const struct wire_op *op = wire_op(opcode);
    struct wire_pkt p = {.opcode = opcode, .payload = room};
    uint64_t bits = rng_u64(r);

    p.solicited = bits & 1;
    p.migreq = bits & 2;
    p.fecn = bits & 4;
    p.becn = bits & 8;
    p.ackreq = bits & 16;
    p.pkey = (uint16_t)(bits >> 8);
    p.dest_qp = (uint32_t)(bits >> 32) & WIRE_QPN_MASK;
    p.psn = psn_make((uint32_t)rng_u64(r));
    if (op->reth || op->atomic) {
        p.va = rng_u64(r);
        p.rkey = (uint32_t)rng_u64(r);
    }
    if (op->reth)
        p.dma_len = (uint32_t)rng_u64(r);
    if (op->atomic) {
        p.swap_add = rng_u64(r);
        p.compare = rng_u64(r);
    }
    if (op->aeth) {
        p.syndrome = (uint8_t)rng_u64(r);
        p.msn = (uint32_t)rng_u64(r) & 0xffffff;
    }
    if (op->atomic_ack)
        p.orig = rng_u64(r);
    if (op->imm)
        p.imm = (uint32_t)rng_u64(r);
    if (op->ieth)
        p.inv_rkey = (uint32_t)rng_u64(r);
    if (op->deth) {
        p.qkey = (uint32_t)rng_u64(r);
        p.src_qp = (uint32_t)rng_u64(r) & WIRE_QPN_MASK;
    }
    if (op->xrceth)
        p.srqn = (uint32_t)rng_u64(r) & WIRE_QPN_MASK;
    if (op->sack) {
        random_sack(r, room, &p);
    } else if (op->has_payload) {
        p.payload_len = (uint32_t)rng_below(r, max_payload + 1ull);
        rng_fill(r, room, p.payload_len);
    }
    *ret = p;
}

void roce_random_flow(struct rng *r, struct wire_flow *ret)
{
    *ret = (struct wire_flow){.v6 = rng_below(r, 2), .dst_port = WIRE_UDP_PORT};
    ret->src_port = (uint16_t)(WIRE_UDP_SPORT_MIN | rng_u64(r));
    if (ret->v6) {
        rng_fill(r, ret->src, 16);
        rng_fill(r, ret->dst, 16);
        ret->src[0] = ret->dst[0] = 0xfd;
    } else {
        ret->df = rng_below(r, 2);
        rng_fill(r, ret->src, 4);
        rng_fill(r, ret->dst, 4);
        ret->src[0] = ret->dst[0] = 10;
    }
}

uint32_t roce_build(const struct wire_pkt *p, const struct wire_flow *f, uint16_t ip_id, uint8_t *buf)
{
    int head = wire_encode_head(p, buf, WIRE_HEAD_MAX);
    uint32_t half = p->payload_len / 2;
    struct wire_icrc c;

    if (head < 0)
        abort();
    wire_icrc_begin(&c, f, ip_id, wire_pkt_bytes(p), buf, (size_t)head);
    if (p->payload_len) {
        /* In two parts, as from a scatter/gather list. */
        memcpy(buf + head, p->payload, p->payload_len);
        wire_icrc_add(&c, p->payload, half);
        wire_icrc_add(&c, p->payload + half, p->payload_len - half);
    }
    head += (int)p->payload_len;
    return (uint32_t)(head + wire_encode_tail(p->payload_len, wire_icrc_end(&c, p->payload_len), buf + head));
}

bool roce_same(const struct wire_pkt *a, const struct wire_pkt *b)
{
    return a->opcode == b->opcode && a->solicited == b->solicited && a->migreq == b->migreq && a->fecn == b->fecn &&
           a->becn == b->becn && a->ackreq == b->ackreq && a->tver == b->tver && a->pkey == b->pkey &&
           a->dest_qp == b->dest_qp && psn_eq(a->psn, b->psn) && a->va == b->va && a->rkey == b->rkey &&
           a->dma_len == b->dma_len && a->swap_add == b->swap_add && a->compare == b->compare && a->orig == b->orig &&
           a->imm == b->imm && a->inv_rkey == b->inv_rkey && a->syndrome == b->syndrome && a->msn == b->msn &&
           a->qkey == b->qkey && a->src_qp == b->src_qp && a->srqn == b->srqn && a->sack_flags == b->sack_flags &&
           a->sack_bits == b->sack_bits && psn_eq(a->sack_trigger, b->sack_trigger) &&
           a->payload_len == b->payload_len && !memcmp(a->payload, b->payload, a->payload_len);
}

/* ---- pcap ---- */

#define ETH_BYTES  14u
#define FRAME_MAX  (ETH_BYTES + WIRE_IP6_BYTES + WIRE_UDP_BYTES + WIRE_PKT_MAX)
#define PCAP_MAGIC 0xa1b2c3d4u

struct pcap_head {
    le32 magic;
    le16 major, minor;
    le32 zone, sigfigs, snaplen, link;
};

struct pcap_rec {
    le32 sec, usec, len, full;
};

FILE *roce_pcap_open(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct pcap_head h;

    if (f && (fread(&h, sizeof h, 1, f) != 1 || get_le32(h.magic) != PCAP_MAGIC || get_le32(h.link) != 1)) {
        fclose(f);
        return NULL;
    }
    return f;
}

static uint32_t be16_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

int roce_pcap_read(FILE *f, struct roce_frame *ret)
{
    uint8_t b[FRAME_MAX], *ip = b + ETH_BYTES, *udp;
    struct roce_frame fr = {0};
    struct pcap_rec rec;
    uint32_t n;

    if (fread(&rec, sizeof rec, 1, f) != 1)
        return feof(f) ? 0 : -1;
    n = get_le32(rec.len);
    if (n != get_le32(rec.full) || n > sizeof b || n < ETH_BYTES + WIRE_IP4_BYTES + WIRE_UDP_BYTES ||
        fread(b, n, 1, f) != 1)
        return -1;
    fr.flow.v6 = be16_at(b + 12) == 0x86dd;
    if (fr.flow.v6) {
        memcpy(fr.flow.src, ip + 8, 16);
        memcpy(fr.flow.dst, ip + 24, 16);
        udp = ip + WIRE_IP6_BYTES;
    } else {
        fr.ip_id = (uint16_t)be16_at(ip + 4);
        fr.flow.df = ip[6] & 0x40;
        memcpy(fr.flow.src, ip + 12, 4);
        memcpy(fr.flow.dst, ip + 16, 4);
        udp = ip + WIRE_IP4_BYTES;
    }
    fr.flow.src_port = (uint16_t)be16_at(udp);
    fr.flow.dst_port = (uint16_t)be16_at(udp + 2);
    fr.pkt_bytes = be16_at(udp + 4) - WIRE_UDP_BYTES;
    if (fr.flow.dst_port != WIRE_UDP_PORT || fr.pkt_bytes > sizeof fr.pkt ||
        (size_t)(udp - b) + WIRE_UDP_BYTES + fr.pkt_bytes > n)
        return -1;
    memcpy(fr.pkt, udp + WIRE_UDP_BYTES, fr.pkt_bytes);
    *ret = fr;
    return 1;
}

void roce_pcap_begin(FILE *f)
{
    struct pcap_head h = {put_le32(PCAP_MAGIC), put_le16(2),     put_le16(4), put_le32(0),
                          put_le32(0),          put_le32(65535), put_le32(1)};

    fwrite(&h, sizeof h, 1, f);
}

void roce_pcap_write(FILE *f, const struct roce_frame *fr)
{
    uint8_t b[FRAME_MAX] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}, *at = b + ETH_BYTES;
    uint32_t udp = WIRE_UDP_BYTES + fr->pkt_bytes;
    uint8_t grh[WIRE_GRH_BYTES];
    struct pcap_rec rec;

    wire_grh(&fr->flow, 0, 64, fr->pkt_bytes, grh);
    if (fr->flow.v6) {
        b[12] = 0x86;
        b[13] = 0xdd;
        memcpy(at, grh, WIRE_IP6_BYTES);
        at += WIRE_IP6_BYTES;
    } else {
        memcpy(at, grh + WIRE_GRH_BYTES - WIRE_IP4_BYTES, WIRE_IP4_BYTES);
        at[4] = (uint8_t)(fr->ip_id >> 8);
        at[5] = (uint8_t)fr->ip_id;
        /* The checksum of the header was with id 0. */
        uint32_t sum = (~be16_at(at + 10) & 0xffff) + fr->ip_id;
        sum = ~((sum & 0xffff) + (sum >> 16));
        at[10] = (uint8_t)(sum >> 8);
        at[11] = (uint8_t)sum;
        at += WIRE_IP4_BYTES;
    }
    at[0] = (uint8_t)(fr->flow.src_port >> 8);
    at[1] = (uint8_t)fr->flow.src_port;
    at[2] = (uint8_t)(fr->flow.dst_port >> 8);
    at[3] = (uint8_t)fr->flow.dst_port;
    at[4] = (uint8_t)(udp >> 8);
    at[5] = (uint8_t)udp;
    at += WIRE_UDP_BYTES;
    memcpy(at, fr->pkt, fr->pkt_bytes);
    at += fr->pkt_bytes;
    rec = (struct pcap_rec){put_le32(0), put_le32(0), put_le32((uint32_t)(at - b)), put_le32((uint32_t)(at - b))};
    fwrite(&rec, sizeof rec, 1, f);
    fwrite(b, (size_t)(at - b), 1, f);
}

/* The invariant CRC: what it covers, part by part; and the IP header that a UD receive is given. */
#include "roce/wire_icrc.h"

#include "icrc_priv.h"
#include "raw.h"

#include <string.h>

#include <isa-l/crc.h>

#define LRH_BYTES 8u /* ones in place of InfiniBand's link header */
#define IP4_DF    0x4000u
#define IP_UDP    17u

struct raw_ip4 {
    uint8_t version, tos;
    be16 total, id, frag;
    uint8_t ttl, protocol;
    be16 checksum;
    uint8_t src[4], dst[4];
};

struct raw_ip6 {
    be32 version;
    be16 payload;
    uint8_t next, hops;
    uint8_t src[16], dst[16];
};

struct raw_udp {
    be16 src_port, dst_port, len, checksum;
};

static_assert(sizeof(struct raw_ip4) == WIRE_IP4_BYTES, "layout");
static_assert(sizeof(struct raw_ip6) == WIRE_IP6_BYTES, "layout");
static_assert(sizeof(struct raw_udp) == WIRE_UDP_BYTES, "layout");

static struct raw_ip4 ip4_header(const struct wire_flow *f, uint16_t id, uint32_t pkt_bytes)
{
    struct raw_ip4 ip = {
        .version = 0x45,
        .total = put_be16((uint16_t)(WIRE_IP4_BYTES + WIRE_UDP_BYTES + pkt_bytes)),
        .id = put_be16(id),
        .frag = put_be16(f->df ? IP4_DF : 0),
        .protocol = IP_UDP,
    };

    memcpy(ip.src, f->src, sizeof ip.src);
    memcpy(ip.dst, f->dst, sizeof ip.dst);
    return ip;
}

static struct raw_ip6 ip6_header(const struct wire_flow *f, uint32_t word, uint32_t pkt_bytes)
{
    struct raw_ip6 ip = {
        .version = put_be32(word),
        .payload = put_be16((uint16_t)(WIRE_UDP_BYTES + pkt_bytes)),
        .next = IP_UDP,
    };

    memcpy(ip.src, f->src, sizeof ip.src);
    memcpy(ip.dst, f->dst, sizeof ip.dst);
    return ip;
}

/* LRH, IP and UDP: all that is in front of the BTH. */
uint32_t icrc_prefix(const struct wire_flow *f, uint16_t ip_id, uint32_t pkt_bytes)
{
    uint8_t b[LRH_BYTES + WIRE_IP6_BYTES + WIRE_UDP_BYTES];
    size_t n = LRH_BYTES;
    struct raw_udp udp = {put_be16(f->src_port), put_be16(f->dst_port),
                          put_be16((uint16_t)(WIRE_UDP_BYTES + pkt_bytes)), put_be16(0xffff)};

    memset(b, 0xff, LRH_BYTES);
    if (f->v6) {
        struct raw_ip6 ip = ip6_header(f, 0x6fffffffu, pkt_bytes);
        ip.hops = 0xff;
        memcpy(b + n, &ip, sizeof ip);
        n += sizeof ip;
    } else {
        struct raw_ip4 ip = ip4_header(f, ip_id, pkt_bytes);
        ip.tos = ip.ttl = 0xff;
        ip.checksum = put_be16(0xffff);
        memcpy(b + n, &ip, sizeof ip);
        n += sizeof ip;
    }
    memcpy(b + n, &udp, sizeof udp);
    return crc32_gzip_refl(0, b, n + sizeof udp);
}

/* The first bytes of a packet, with ones in the byte of FECN and BECN. */
static uint32_t add_head(uint32_t crc, const uint8_t *head, size_t len)
{
    uint8_t b[WIRE_HEAD_MAX];

    assert(len >= WIRE_BTH_BYTES && len <= sizeof b);
    memcpy(b, head, len);
    b[offsetof(struct raw_bth, ecn)] = 0xff;
    return crc32_gzip_refl(crc, b, len);
}

void wire_icrc_begin(struct wire_icrc *c, const struct wire_flow *f, uint16_t ip_id, uint32_t pkt_bytes,
                     const uint8_t *head, size_t head_len)
{
    c->crc = add_head(icrc_prefix(f, ip_id, pkt_bytes), head, head_len);
}

void wire_icrc_run_begin(struct wire_icrc *c, const struct wire_icrc_run *r, const uint8_t *head, size_t head_len)
{
    c->crc = add_head(r->prefix, head, head_len);
}

void wire_icrc_add(struct wire_icrc *c, const void *data, size_t len)
{
    c->crc = crc32_gzip_refl(c->crc, data, len);
}

uint32_t wire_icrc_end(struct wire_icrc *c, uint32_t payload_len)
{
    static const uint8_t zeros[WIRE_PAD_MAX];

    if (wire_pad(payload_len))
        wire_icrc_add(c, zeros, wire_pad(payload_len));
    return c->crc;
}

uint32_t wire_icrc_of(const struct wire_flow *f, uint16_t ip_id, const uint8_t *pkt, uint32_t pkt_bytes)
{
    uint32_t covered = pkt_bytes - WIRE_ICRC_BYTES, head = covered < WIRE_HEAD_MAX ? covered : WIRE_HEAD_MAX;
    struct wire_icrc c;

    wire_icrc_begin(&c, f, ip_id, pkt_bytes, pkt, head);
    if (covered > head)
        wire_icrc_add(&c, pkt + head, covered - head);
    return c.crc;
}

static uint16_t ip4_checksum(const struct raw_ip4 *ip)
{
    const uint8_t *b = (const uint8_t *)ip;
    uint32_t sum = 0;

    for (size_t i = 0; i < sizeof *ip; i += 2)
        sum += (uint32_t)b[i] << 8 | b[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t) ~((sum & 0xffff) + (sum >> 16));
}

void wire_grh(const struct wire_flow *f, uint8_t tos, uint8_t ttl, uint32_t pkt_bytes, uint8_t ret_grh[WIRE_GRH_BYTES])
{
    if (f->v6) {
        struct raw_ip6 ip = ip6_header(f, 6u << 28 | (uint32_t)tos << 20, pkt_bytes);
        ip.hops = ttl;
        memcpy(ret_grh, &ip, sizeof ip);
    } else {
        struct raw_ip4 ip = ip4_header(f, 0, pkt_bytes);
        ip.tos = tos;
        ip.ttl = ttl;
        ip.checksum = put_be16(ip4_checksum(&ip));
        memset(ret_grh, 0, WIRE_GRH_BYTES - sizeof ip);
        memcpy(ret_grh + WIRE_GRH_BYTES - sizeof ip, &ip, sizeof ip);
    }
}

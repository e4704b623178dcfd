/* The invariant CRC, and the algebra of the IPv4 id in it. */
#include "roce/wire_icrc.h"

#include "raw.h"

#include <errno.h>
#include <string.h>

#include <isa-l/crc.h>

#define POLY 0xedb88320u /* CRC-32 of Ethernet, reflected: bit 31 is the coefficient of x^0 */

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

void wire_icrc_begin(struct wire_icrc *c, const struct wire_flow *f, uint16_t ip_id, uint32_t pkt_bytes,
                     const uint8_t *head, size_t head_len)
{
    uint8_t b[LRH_BYTES + WIRE_IP6_BYTES + WIRE_UDP_BYTES + WIRE_HEAD_MAX];
    size_t n = LRH_BYTES;
    struct raw_udp udp = {put_be16(f->src_port), put_be16(f->dst_port),
                          put_be16((uint16_t)(WIRE_UDP_BYTES + pkt_bytes)), put_be16(0xffff)};

    assert(head_len >= WIRE_BTH_BYTES && head_len <= WIRE_HEAD_MAX);
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
    n += sizeof udp;
    memcpy(b + n, head, head_len);
    b[n + offsetof(struct raw_bth, ecn)] = 0xff;
    c->crc = crc32_gzip_refl(0, b, n + head_len);
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

/* ---- the IPv4 id ----
 *
 * The difference that id bytes make to the CRC register right behind them is the id's 16 bits, first byte lowest, times
 * x^16; each further bit of the packet multiplies it by x. Multiplying the difference of two ICRCs by the inverse of
 * that power gives the difference of the ids in the low 16 bits. That the other 16 are 0 is the check that is left.
 */

static uint32_t times_x(uint32_t v)
{
    return v >> 1 ^ (POLY & -(v & 1));
}

static uint32_t over_x(uint32_t v)
{
    return v & 1u << 31 ? (v ^ POLY) << 1 | 1 : v << 1;
}

static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t p = 0;

    for (; a; a <<= 1, b = times_x(b))
        p ^= b & -(a >> 31);
    return p;
}

/* Bits that the register takes in from the start of the id to the ICRC, for a packet of 0 bytes. */
#define ID_BITS (8u * (WIRE_IP4_BYTES - (uint32_t)offsetof(struct raw_ip4, id) + WIRE_UDP_BYTES - WIRE_ICRC_BYTES))

void wire_icrc_tab_init(struct wire_icrc_tab *t)
{
    uint32_t f = 1u << 31, b = 1u << 31;

    for (uint32_t i = 0; i < ID_BITS; i++) {
        f = times_x(f);
        b = over_x(b);
    }
    for (uint32_t words = 0; words <= WIRE_PKT_MAX / 4; words++) {
        t->forward[words] = f;
        t->back[words] = b;
        for (uint32_t i = 0; i < 32; i++) {
            f = times_x(f);
            b = over_x(b);
        }
    }
}

uint32_t wire_icrc_reid(const struct wire_icrc_tab *t, uint32_t icrc, uint32_t pkt_bytes, uint16_t from, uint16_t to)
{
    return icrc ^ times(__builtin_bswap16(from ^ to), t->forward[pkt_bytes / 4]);
}

int wire_icrc_verify(const struct wire_icrc_tab *t, const struct wire_flow *f, const struct wire_icrc_ids *ids,
                     const uint8_t *pkt, uint32_t pkt_bytes, uint16_t *ret_id)
{
    bool exact = f->v6 || ids->known;
    uint16_t id = f->v6 || !ids->known ? 0 : ids->id;
    enum wire_icrc_check how = WIRE_ICRC_FULL;
    uint32_t diff;
    le32 got;

    memcpy(&got, pkt + pkt_bytes - sizeof got, sizeof got);
    diff = get_le32(got) ^ wire_icrc_of(f, id, pkt, pkt_bytes);
    if (!exact) {
        uint32_t bits = times(t->back[pkt_bytes / 4], diff);
        if (bits >> 16)
            return -EILSEQ;
        id = __builtin_bswap16((uint16_t)bits);
        how = id < ids->set ? WIRE_ICRC_SET : WIRE_ICRC_SOLVED;
        if (how == WIRE_ICRC_SOLVED && !ids->solve)
            return -EILSEQ;
    } else if (diff) {
        return -EILSEQ;
    }
    if (ret_id)
        *ret_id = id;
    return (int)how;
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

#include "frame.h"

#include "base/endian.h"
#include "run.h"

#include <string.h>

#define ETHERTYPE_4 0x0800u
#define ETHERTYPE_6 0x86ddu
#define IP_DF       0x4000u
#define IP_UDP      17u

struct eth {
    uint8_t dst[6], src[6];
    be16 type;
};
struct ip4 {
    uint8_t version, tos;
    be16 total, id, frag;
    uint8_t ttl, protocol;
    be16 checksum;
    uint8_t src[4], dst[4];
};
struct ip6 {
    be32 word;
    be16 payload;
    uint8_t next, hops;
    uint8_t src[16], dst[16];
};
struct udp {
    be16 src, dst, len, checksum;
};

static uint32_t sum16(uint32_t sum, const void *data, size_t len)
{
    const uint8_t *p = data;
    for (; len > 1; p += 2, len -= 2) {
        sum += (uint32_t)(p[0] << 8 | p[1]);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return len ? sum + (uint32_t)(p[0] << 8) : sum;
}

static uint16_t fold(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

/* A locally administered address made of the end of the GID; of a group, the address that the group has. */
static void mac(uint8_t *ret, const union uroce_gid *g)
{
    memcpy(ret, (uint8_t[2]){0x02, 0x00}, 2);
    memcpy(ret + 2, g->raw + 12, 4);
    if (wire_gid_is_multicast(g) && wire_gid_is_v4(g))
        memcpy(ret, (uint8_t[4]){0x01, 0x00, 0x5e, g->raw[13] & 0x7f}, 4);
    else if (wire_gid_is_multicast(g))
        memcpy(ret, (uint8_t[2]){0x33, 0x33}, 2);
}

/* Longer packets than IP can have (shm) get length 0, as segmentation by the network card looks in captures. */
static uint16_t ip_length(size_t n)
{
    return n > UINT16_MAX ? 0 : (uint16_t)n;
}

static size_t head4(const struct frame *f, size_t bytes, uint8_t *p)
{
    struct ip4 ip = {
        .version = 0x45,
        .tos = f->traffic_class,
        .total = put_be16(ip_length(sizeof ip + sizeof(struct udp) + bytes)),
        .id = put_be16(f->ipv4_id),
        .frag = put_be16(IP_DF),
        .ttl = f->hop_limit,
        .protocol = IP_UDP,
    };
    memcpy(ip.src, f->from->gid.raw + 12, 4);
    memcpy(ip.dst, f->to->gid.raw + 12, 4);
    ip.checksum = put_be16(fold(sum16(0, &ip, sizeof ip)));
    memcpy(p, &ip, sizeof ip);
    return sizeof ip;
}

static size_t head6(const struct frame *f, size_t bytes, uint8_t *p)
{
    struct ip6 ip = {
        .word = put_be32(6u << 28 | (uint32_t)f->traffic_class << 20 | (f->flow_label & 0xfffff)),
        .payload = put_be16(ip_length(sizeof(struct udp) + bytes)),
        .next = IP_UDP,
        .hops = f->hop_limit,
    };
    memcpy(ip.src, f->from->gid.raw, 16);
    memcpy(ip.dst, f->to->gid.raw, 16);
    memcpy(p, &ip, sizeof ip);
    return sizeof ip;
}

/* Over IPv6 0 is no checksum; over IPv4 it is none, which is allowed. */
static uint16_t checksum6(const struct frame *f, const struct udp *u, const uint8_t *data, size_t bytes)
{
    uint32_t sum = (uint32_t)(sizeof *u + bytes);
    sum = (sum >> 16) + (sum & 0xffff) + IP_UDP;
    sum = sum16(sum, f->from->gid.raw, 16);
    sum = sum16(sum, f->to->gid.raw, 16);
    sum = sum16(sum, u, sizeof *u);
    uint16_t v = fold(sum16(sum, data, bytes));
    return v ? v : 0xffff;
}

size_t frame_head(const struct frame *f, const uint8_t *data, size_t bytes, uint8_t ret[FRAME_HEAD_MAX])
{
    bool v6 = !wire_gid_is_v4(&f->to->gid);
    struct eth e = {.type = put_be16(v6 ? ETHERTYPE_6 : ETHERTYPE_4)};
    struct udp u = {
        .src = put_be16(f->from->udp_port),
        .dst = put_be16(f->to->udp_port),
        .len = put_be16(ip_length(sizeof u + bytes)),
    };
    size_t n = sizeof e;
    mac(e.dst, &f->to->gid);
    mac(e.src, &f->from->gid);
    memcpy(ret, &e, sizeof e);
    n += v6 ? head6(f, bytes, ret + n) : head4(f, bytes, ret + n);
    if (v6)
        u.checksum = put_be16(data ? checksum6(f, &u, data, bytes) : 0xffff);
    memcpy(ret + n, &u, sizeof u);
    return n + sizeof u;
}

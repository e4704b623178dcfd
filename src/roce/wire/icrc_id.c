/* The IPv4 id in the ICRC. */
#include "roce/wire_icrc.h"

#include "icrc_priv.h"
#include "raw.h"

#include <errno.h>
#include <string.h>

#include <isa-l/crc.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/*
 * The difference that id bytes make to the CRC register right behind them is the id's 16 bits, first byte lowest, times
 * x^16; each further bit of the packet multiplies it by x. Multiplying the difference of two ICRCs by the inverse of
 * that power gives the difference of the ids in the low 16 bits. That the other 16 are 0 is the check that is left.
 */
#define POLY 0xedb88320u /* CRC-32 of Ethernet, reflected: bit 31 is the coefficient of x^0 */

static uint32_t times_x(uint32_t v)
{
    return v >> 1 ^ (POLY & -(v & 1));
}

static uint32_t over_x(uint32_t v)
{
    return v & 1u << 31 ? (v ^ POLY) << 1 | 1 : v << 1;
}

uint32_t icrc_times_plain(uint32_t a, uint32_t b)
{
    uint32_t p = 0;

    for (; a; a <<= 1, b = times_x(b))
        p ^= b & -(a >> 31);
    return p;
}

#ifdef __x86_64__
/* Carry-less product, then Barrett's reduction; both constants are reflected, with 33 bits. */
__attribute__((target("pclmul"))) static uint32_t times_clmul(uint32_t a, uint32_t b)
{
    const __m128i k = _mm_set_epi64x(0x1db710641, 0x1f7011641);
    __m128i v = _mm_clmulepi64_si128(_mm_cvtsi64_si128(a), _mm_cvtsi64_si128(b), 0), t;
    __m128i low = _mm_cvtsi64_si128(UINT32_MAX);

    v = _mm_slli_epi64(v, 1);
    t = _mm_clmulepi64_si128(_mm_and_si128(v, low), k, 0x00);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, low), k, 0x10);
    return (uint32_t)((uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(v, t)) >> 32);
}
#endif

uint32_t icrc_times(uint32_t a, uint32_t b)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("pclmul"))
        return times_clmul(a, b);
#endif
    return icrc_times_plain(a, b);
}

/*
 * What a packet of so many bytes multiplies a difference by: one in the id, and one in the byte of FECN and BECN. Bits
 * from the start of the field to the ICRC, in words of 32.
 */
#define ID_WORDS(pkt_bytes)  ((pkt_bytes) / 4 + 5) /* 16 of the IPv4 header and 8 of UDP, less the ICRC's 4 */
#define ECN_WORDS(pkt_bytes) ((pkt_bytes) / 4 - 2) /* less the BTH's first 4 and the ICRC's 4 */

void wire_icrc_tab_init(struct wire_icrc_tab *t)
{
    uint32_t f = 1u << 31, b = 1u << 31;

    for (uint32_t words = 0; words < WIRE_ICRC_POWERS; words++) {
        t->forward[words] = f;
        t->back[words] = b;
        for (uint32_t i = 0; i < 32; i++) {
            f = times_x(f);
            b = over_x(b);
        }
    }
}

/* The id as it enters the register: first byte lowest. */
static uint32_t id_bits(uint16_t id)
{
    return __builtin_bswap16(id);
}

uint32_t wire_icrc_reid(const struct wire_icrc_tab *t, uint32_t icrc, uint32_t pkt_bytes, uint16_t from, uint16_t to)
{
    return icrc ^ icrc_times(id_bits(from ^ to), t->forward[ID_WORDS(pkt_bytes)]);
}

void wire_icrc_run_init(struct wire_icrc_run *r, const struct wire_icrc_tab *t, const struct wire_flow *f,
                        uint32_t pkt_bytes)
{
    assert(pkt_bytes >= WIRE_BTH_BYTES + WIRE_ICRC_BYTES && pkt_bytes <= WIRE_PKT_MAX && pkt_bytes % 4 == 0);
    *r = (struct wire_icrc_run){
        .no_ecn = icrc_times(0xff, t->forward[ECN_WORDS(pkt_bytes)]),
        .prefix = icrc_prefix(f, 0, pkt_bytes),
        .pkt_bytes = pkt_bytes,
        .v6 = f->v6,
        .ecn = t->forward[ECN_WORDS(pkt_bytes)],
        .forward = t->forward[ID_WORDS(pkt_bytes)],
        .back = t->back[ID_WORDS(pkt_bytes)],
    };
}

uint32_t wire_icrc_run_id(const struct wire_icrc_run *r, uint32_t icrc, uint16_t id)
{
    return r->v6 || !id ? icrc : icrc ^ icrc_times(id_bits(id), r->forward);
}

/* One pass over the bytes as they are; then what ones in place of FECN and BECN would have made of it. */
uint32_t wire_icrc_run_of(const struct wire_icrc_run *r, const uint8_t *pkt)
{
    uint8_t ecn = pkt[offsetof(struct raw_bth, ecn)];

    return crc32_gzip_refl(r->prefix, pkt, r->pkt_bytes - WIRE_ICRC_BYTES) ^
           (ecn ? icrc_times(ecn ^ 0xff, r->ecn) : r->no_ecn);
}

int wire_icrc_run_verify(const struct wire_icrc_run *r, const struct wire_icrc_ids *ids, const uint8_t *pkt,
                         uint16_t *ret_id)
{
    enum wire_icrc_check how = WIRE_ICRC_FULL;
    uint32_t diff, bits;
    uint16_t id = 0;
    le32 got;

    memcpy(&got, pkt + r->pkt_bytes - sizeof got, sizeof got);
    diff = get_le32(got) ^ wire_icrc_run_of(r, pkt);
    if (r->v6 && diff)
        return -EILSEQ;
    if (!r->v6) {
        bits = diff ? icrc_times(r->back, diff) : 0;
        if (bits >> 16)
            return -EILSEQ;
        id = __builtin_bswap16((uint16_t)bits);
        if (ids->known) {
            if (id != ids->id)
                return -EILSEQ;
        } else if (id < ids->set) {
            how = WIRE_ICRC_SET;
        } else if (ids->solve) {
            how = WIRE_ICRC_SOLVED;
        } else {
            return -EILSEQ;
        }
    }
    if (ret_id)
        *ret_id = id;
    return (int)how;
}

int wire_icrc_verify(const struct wire_icrc_tab *t, const struct wire_flow *f, const struct wire_icrc_ids *ids,
                     const uint8_t *pkt, uint32_t pkt_bytes, uint16_t *ret_id)
{
    struct wire_icrc_run r;

    wire_icrc_run_init(&r, t, f, pkt_bytes);
    return wire_icrc_run_verify(&r, ids, pkt, ret_id);
}

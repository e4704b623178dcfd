/* The tables behind wire_limits.h. */
#include "roce/wire_limits.h"

#include "base/util.h"

#include <errno.h>

int wire_mtu_from_bytes(uint32_t bytes)
{
    for (int m = WIRE_MTU_256; m <= WIRE_MTU_4096; m++)
        if (wire_mtu_bytes((enum wire_mtu)m) == bytes)
            return m;
    return -EINVAL;
}

int wire_mtu_for_link(uint32_t link_mtu, bool v6)
{
    uint32_t over = (v6 ? WIRE_IP6_BYTES : WIRE_IP4_BYTES) + WIRE_UDP_BYTES + WIRE_HEAD_PAYLOAD_MAX + WIRE_ICRC_BYTES;

    for (int m = WIRE_MTU_4096; m >= WIRE_MTU_256; m--)
        if (link_mtu >= wire_mtu_bytes((enum wire_mtu)m) + over)
            return m;
    return -EMSGSIZE;
}

static const uint16_t credits[WIRE_CREDITS_NONE] = {0,    1,    2,    3,    4,    6,     8,     12,    16,   24,   32,
                                                    48,   64,   96,   128,  192,  256,   384,   512,   768,  1024, 1536,
                                                    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};

uint32_t wire_credits(uint8_t code)
{
    return code < WIRE_CREDITS_NONE ? credits[code] : UINT32_MAX;
}

uint8_t wire_credit_code(uint32_t n)
{
    uint8_t code = WIRE_CREDITS_NONE - 1;

    while (credits[code] > n)
        code--;
    return code;
}

/* Code 0, the longest, is 65536 units of 10 us; the others are in the table. */
#define RNR_UNIT_NS 10000ull
static const uint16_t rnr_units[32] = {0,    1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                       48,   64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                       2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

uint64_t wire_rnr_ns(uint8_t code)
{
    code &= 31;
    return RNR_UNIT_NS * (code ? rnr_units[code] : 65536u);
}

uint8_t wire_rnr_code(uint64_t ns)
{
    for (uint8_t code = 1; code < ARRAY_SIZE(rnr_units); code++)
        if (RNR_UNIT_NS * rnr_units[code] >= ns)
            return code;
    return 0;
}

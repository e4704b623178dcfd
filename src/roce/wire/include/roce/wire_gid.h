/* GIDs of RoCEv2 are IP addresses: IPv6, or IPv4 as ::ffff:a.b.c.d (IBTA annex A17.4.2). */
#ifndef ROCE_WIRE_GID_H
#define ROCE_WIRE_GID_H

#include "uroce/types.h"

#include <stdbool.h>
#include <string.h>

static inline bool wire_gid_is_v4(const union uroce_gid *g)
{
    const uint8_t *b = g->raw;
    return !(b[0] | b[1] | b[2] | b[3] | b[4] | b[5] | b[6] | b[7] | b[8] | b[9]) && b[10] == 0xff && b[11] == 0xff;
}

/* No address: "::" or 0.0.0.0. */
static inline bool wire_gid_is_any(const union uroce_gid *g)
{
    static const union uroce_gid zero;
    return !memcmp(g, &zero, sizeof zero) || (wire_gid_is_v4(g) && !memcmp(g->raw + 12, zero.raw, 4));
}

static inline bool wire_gid_is_multicast(const union uroce_gid *g)
{
    return wire_gid_is_v4(g) ? (g->raw[12] & 0xf0) == 0xe0 : g->raw[0] == 0xff;
}

/* The address as the system's calls take it: 4 bytes of AF_INET or 16 of AF_INET6. */
static inline const uint8_t *wire_gid_ip(const union uroce_gid *g)
{
    return g->raw + (wire_gid_is_v4(g) ? 12 : 0);
}

#define WIRE_GID_TEXT 46 /* INET6_ADDRSTRLEN */
/* "192.0.2.1", "2001:db8::1". */
const char *wire_gid_text(const union uroce_gid *g, char ret[WIRE_GID_TEXT]);

#endif

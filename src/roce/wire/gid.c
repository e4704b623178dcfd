#include "roce/wire_icrc.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

_Static_assert(WIRE_GID_TEXT == INET6_ADDRSTRLEN, "room for every address");

const char *wire_gid_text(const union uroce_gid *g, char ret[WIRE_GID_TEXT])
{
    return inet_ntop(wire_gid_is_v4(g) ? AF_INET : AF_INET6, wire_gid_ip(g), ret, WIRE_GID_TEXT);
}

void wire_flow_init(struct wire_flow *ret, const union uroce_gid *src, const union uroce_gid *dst, uint16_t src_port,
                    uint16_t dst_port)
{
    bool v6 = !wire_gid_is_v4(src);
    size_t skip = v6 ? 0 : 12;
    *ret = (struct wire_flow){.v6 = v6, .df = true, .src_port = src_port, .dst_port = dst_port};
    memcpy(ret->src, src->raw + skip, 16 - skip);
    memcpy(ret->dst, dst->raw + skip, 16 - skip);
}

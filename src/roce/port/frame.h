/* The Ethernet, IP and UDP headers that a packet has, or would have, on a wire: for capture files. */
#ifndef PORT_FRAME_H
#define PORT_FRAME_H

#include "port/port.h"

#define FRAME_HEAD_MAX (14u + 40u + 8u)

struct frame {
    const struct port_addr *from, *to;
    uint8_t traffic_class, hop_limit;
    uint32_t flow_label;
    uint16_t ipv4_id;
};

/* Writes the headers of a packet of bytes BTH to ICRC; returns their number. data: the whole packet, or NULL. */
size_t frame_head(const struct frame *f, const uint8_t *data, size_t bytes, uint8_t ret[FRAME_HEAD_MAX]);

#endif

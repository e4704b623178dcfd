/* RoCEv2 packets for tests: random valid ones, whole packets with their ICRC, and pcap files of Ethernet frames. */
#ifndef WIRE_ROCE_FRAMES_H
#define WIRE_ROCE_FRAMES_H

#include "base/rng.h"
#include "roce/wire.h"
#include "roce/wire_icrc.h"

#include <stdio.h>

/* The n-th opcode that there is; returns false past the last. */
bool roce_opcode(unsigned n, uint8_t *ret_opcode);
unsigned roce_opcodes(void);

/* A valid packet; its payload, if it may have one, is 0 .. max_payload bytes in room (WIRE_PAYLOAD_MAX bytes). */
void roce_random_pkt(struct rng *r, uint8_t opcode, uint32_t max_payload, uint8_t *room, struct wire_pkt *ret);
void roce_random_flow(struct rng *r, struct wire_flow *ret);
/* Headers, payload, pad and ICRC into buf (WIRE_PKT_MAX bytes); returns their number. Aborts if it cannot be encoded.
 */
uint32_t roce_build(const struct wire_pkt *p, const struct wire_flow *f, uint16_t ip_id, uint8_t *buf);
/* Equal in all that is sent, payload bytes included. */
bool roce_same(const struct wire_pkt *a, const struct wire_pkt *b);

/* A frame of a pcap file: flow and packet of a UDP datagram to port 4791. */
struct roce_frame {
    struct wire_flow flow;
    uint16_t ip_id;
    uint8_t pkt[WIRE_PKT_MAX];
    uint32_t pkt_bytes;
};
/* Opens a pcap file with Ethernet frames, behind its header; NULL: it is none. */
FILE *roce_pcap_open(const char *path);
/* The next RoCE datagram: 1, 0 at the end, -1 when the file is damaged or has something else in it. */
int roce_pcap_read(FILE *f, struct roce_frame *ret);
void roce_pcap_begin(FILE *f);
void roce_pcap_write(FILE *f, const struct roce_frame *fr);

#endif

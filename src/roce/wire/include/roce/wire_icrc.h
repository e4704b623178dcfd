/*
 * The invariant CRC of RoCEv2 (IBTA annex A17): CRC-32 of Ethernet over 8 bytes of ones, the IP and UDP headers and
 * the packet, with ones in place of all that a router may change.
 *
 * The IPv4 id is covered. A UDP socket sends id k in segment k of an offloaded send and cannot see the id of what it
 * receives. CRC is linear, so one pass with id 0 serves both: wire_icrc_reid() turns its result into that of any other
 * id, and wire_icrc_verify() solves for the id.
 */
#ifndef ROCE_WIRE_ICRC_H
#define ROCE_WIRE_ICRC_H

#include "roce/wire_gid.h"
#include "roce/wire_limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What of the IP and UDP headers is covered and does not change from packet to packet of a flow. */
struct wire_flow {
    bool v6;
    bool df;                  /* IPv4: don't-fragment is set, as by a socket with IP_PMTUDISC_DO, and by rxe */
    uint8_t src[16], dst[16]; /* network order; IPv4 in the first 4 bytes */
    uint16_t src_port, dst_port;
};
/* Of a packet between two addresses of one family, with don't-fragment set. */
void wire_flow_init(struct wire_flow *ret, const union uroce_gid *src, const union uroce_gid *dst, uint16_t src_port,
                    uint16_t dst_port);

/* An ICRC in the making. */
struct wire_icrc {
    uint32_t crc;
};

/*
 * Begins with the IP and UDP headers of a packet of pkt_bytes (wire_pkt_bytes(): BTH to ICRC) and with its first
 * head_len bytes, which are at least the BTH and at most WIRE_HEAD_MAX. ip_id does not matter to IPv6.
 */
void wire_icrc_begin(struct wire_icrc *c, const struct wire_flow *f, uint16_t ip_id, uint32_t pkt_bytes,
                     const uint8_t *head, size_t head_len);
/* More of the packet, in wire order: payload parts. */
void wire_icrc_add(struct wire_icrc *c, const void *data, size_t len);
/* Adds the pad of a payload of payload_len bytes. Returns the ICRC, to be sent least significant byte first. */
uint32_t wire_icrc_end(struct wire_icrc *c, uint32_t payload_len);
/* All at once: pkt is a whole packet of pkt_bytes whose last 4 bytes, the ICRC, are not read. */
uint32_t wire_icrc_of(const struct wire_flow *f, uint16_t ip_id, const uint8_t *pkt, uint32_t pkt_bytes);

/*
 * Powers of x, from which comes what the id contributes to the ICRC, by packet length. Filled once by whoever owns the
 * device, then only read (by any number of threads).
 */
#define WIRE_ICRC_POWERS (WIRE_PKT_MAX / 4 + 6)
struct wire_icrc_tab {
    uint32_t forward[WIRE_ICRC_POWERS], back[WIRE_ICRC_POWERS]; /* x^(32 n), x^(-32 n) */
};
void wire_icrc_tab_init(struct wire_icrc_tab *t);

/* The ICRC of an IPv4 packet of pkt_bytes (a multiple of 4, at most WIRE_PKT_MAX) with id `from`, had it id `to`. */
uint32_t wire_icrc_reid(const struct wire_icrc_tab *t, uint32_t icrc, uint32_t pkt_bytes, uint16_t from, uint16_t to);

/*
 * Packets of one flow and one size, as in a segmented send or a coalesced receive, share what is in front of the BTH.
 * It is made once for the run; then each packet costs the CRC of its own bytes, and one multiplication for its id.
 */
struct wire_icrc_run {
    uint32_t prefix; /* with id 0 */
    uint32_t pkt_bytes;
    bool v6;
    uint32_t ecn, no_ecn, forward, back; /* no_ecn: of packets with FECN and BECN clear, what masking them makes */
};
/* pkt_bytes: as of a packet that wire_decode has taken: a multiple of 4, 16 .. WIRE_PKT_MAX. */
void wire_icrc_run_init(struct wire_icrc_run *r, const struct wire_icrc_tab *t, const struct wire_flow *f,
                        uint32_t pkt_bytes);
/* As wire_icrc_begin with id 0; wire_icrc_add and wire_icrc_end go on. */
void wire_icrc_run_begin(struct wire_icrc *c, const struct wire_icrc_run *r, const uint8_t *head, size_t head_len);
/* The ICRC with id 0 of a packet in one piece: the fastest way, so that it pays to copy a small payload behind its
 * headers. */
uint32_t wire_icrc_run_of(const struct wire_icrc_run *r, const uint8_t *pkt);
/* The ICRC with an id, of the ICRC with id 0. IPv6: the same. */
uint32_t wire_icrc_run_id(const struct wire_icrc_run *r, uint32_t icrc, uint16_t id);

/* How a packet's ICRC was found right. */
enum wire_icrc_check {
    WIRE_ICRC_FULL,   /* IPv6, or the IPv4 id was known: all 32 bits checked */
    WIRE_ICRC_SET,    /* the id is one that the peer's batches have: 32 bits less log2 of their number */
    WIRE_ICRC_SOLVED, /* an id was found that makes it right: 16 bits checked */
};

/* What ids are taken from an IPv4 peer. */
struct wire_icrc_ids {
    bool known; /* the id is `id`, seen by a raw socket */
    bool solve; /* take any id */
    uint16_t id;
    uint16_t set; /* take ids 0 .. set - 1: a uroce peer's segments (64 of them at most) */
};

/*
 * Checks the ICRC of a whole packet that wire_decode has taken. IPv6 packets ignore `ids`. Returns an
 * enum wire_icrc_check, or -EILSEQ. *ret_id is the id that was found (0 with IPv6); may be NULL.
 */
int wire_icrc_verify(const struct wire_icrc_tab *t, const struct wire_flow *f, const struct wire_icrc_ids *ids,
                     const uint8_t *pkt, uint32_t pkt_bytes, uint16_t *ret_id);

/* The same for a packet of a run. */
int wire_icrc_run_verify(const struct wire_icrc_run *r, const struct wire_icrc_ids *ids, const uint8_t *pkt,
                         uint16_t *ret_id);

/*
 * The 40 bytes in front of a UD receive's payload (IBTA annex A17): the GRH of IPv6, or 20 bytes of zeros and the IPv4
 * header. pkt_bytes as above; tos and ttl as received where the port knows them, or 0.
 */
void wire_grh(const struct wire_flow *f, uint8_t tos, uint8_t ttl, uint32_t pkt_bytes, uint8_t ret_grh[WIRE_GRH_BYTES]);

#endif

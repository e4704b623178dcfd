/* Numbers of RoCEv2: sizes, MTUs, acknowledgement syndromes, timers. Durations are nanoseconds. */
#ifndef ROCE_WIRE_LIMITS_H
#define ROCE_WIRE_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_UDP_PORT 4791u
/* Source ports that spread flows over equal-cost paths (annex A17: the upper quarter). */
#define WIRE_UDP_SPORT_MIN 0xc000u

#define WIRE_QPN_MASK      0xffffffu
#define WIRE_QPN_GSI       1u
#define WIRE_QPN_MULTICAST 0xffffffu
#define WIRE_QKEY_GSI      0x80010000u
#define WIRE_PKEY_DEFAULT  0xffffu

#define WIRE_BTH_BYTES        12u
#define WIRE_RETH_BYTES       16u
#define WIRE_AETH_BYTES       4u
#define WIRE_IMM_BYTES        4u
#define WIRE_IETH_BYTES       4u
#define WIRE_ATOMIC_BYTES     28u
#define WIRE_ATOMIC_ACK_BYTES 8u
#define WIRE_DETH_BYTES       8u
#define WIRE_XRCETH_BYTES     4u
#define WIRE_SACK_BYTES       8u
#define WIRE_CNP_BYTES        16u
#define WIRE_ICRC_BYTES       4u
#define WIRE_PAD_MAX          3u
#define WIRE_TAIL_MAX         (WIRE_PAD_MAX + WIRE_ICRC_BYTES)
#define WIRE_GRH_BYTES        40u

#define WIRE_IP4_BYTES 20u
#define WIRE_IP6_BYTES 40u
#define WIRE_UDP_BYTES 8u

/* The longest headers: an XRC atomic; of packets with payload: an XRC WRITE ONLY with immediate. */
#define WIRE_HEAD_MAX         (WIRE_BTH_BYTES + WIRE_XRCETH_BYTES + WIRE_ATOMIC_BYTES)
#define WIRE_HEAD_PAYLOAD_MAX (WIRE_BTH_BYTES + WIRE_XRCETH_BYTES + WIRE_RETH_BYTES + WIRE_IMM_BYTES)

#define WIRE_MTU_BYTES_MIN 256u
#define WIRE_MTU_BYTES_MAX 4096u
/* What the service slots of a packet may add to its payload, all together (a multiple of 4). */
#define WIRE_SLOT_ROOM   64u
#define WIRE_PAYLOAD_MAX (WIRE_MTU_BYTES_MAX + WIRE_SLOT_ROOM)
/* The longest UDP payload there is: a longer datagram is refused. A multiple of 4, as is every packet's length. */
#define WIRE_PKT_MAX (WIRE_HEAD_PAYLOAD_MAX + WIRE_PAYLOAD_MAX + WIRE_ICRC_BYTES)

/* A payload that does not travel with its headers: shared memory has no MTU of 4096. */
#define WIRE_FAR_MAX ((1u << 20) + WIRE_SLOT_ROOM)

#define WIRE_MSG_BYTES_MAX (1u << 30) /* our limit of a message; the standard's is 2^31 */

/* Path MTU; the values are those of verbs and of the CM. */
enum wire_mtu { WIRE_MTU_256 = 1, WIRE_MTU_512, WIRE_MTU_1024, WIRE_MTU_2048, WIRE_MTU_4096 };

static inline uint32_t wire_mtu_bytes(enum wire_mtu m)
{
    return 128u << m;
}

/* The enum of exactly 256, 512, .. 4096 bytes, or -EINVAL. */
int wire_mtu_from_bytes(uint32_t bytes);
/* The largest path MTU whose every packet fits a link of link_mtu bytes (IP header and on), or -EMSGSIZE. */
int wire_mtu_for_link(uint32_t link_mtu, bool v6);

/* Pad bytes behind a payload of len bytes: to a multiple of 4. */
static inline uint32_t wire_pad(uint32_t len)
{
    return -len & 3u;
}

/* Packets of a message; a message of 0 bytes is one packet. */
static inline uint32_t wire_packets(uint32_t msg_bytes, enum wire_mtu m)
{
    return msg_bytes ? (msg_bytes - 1) / wire_mtu_bytes(m) + 1 : 1;
}

/* Two P_Keys talk when their 15 bits agree and one of them at least is a full member (IBTA 10.9). */
static inline bool wire_pkey_match(uint16_t a, uint16_t b)
{
    return ((a ^ b) & 0x7fff) == 0 && ((a | b) & 0x8000);
}

/* ---- AETH (IBTA 9.7.5) ---- */

enum wire_ack {
    WIRE_ACK_OK = 0,       /* the low 5 bits are the credit code */
    WIRE_ACK_RNR = 1,      /* the low 5 bits are the RNR timer code */
    WIRE_ACK_RESERVED = 2, /* to be dropped */
    WIRE_ACK_NAK = 3,      /* the low 5 bits are an enum wire_nak, or reserved */
};
enum wire_nak { WIRE_NAK_SEQ, WIRE_NAK_INVALID, WIRE_NAK_ACCESS, WIRE_NAK_OPERATION, WIRE_NAK_RD };

#define WIRE_CREDITS_NONE 31u /* this responder gives no credits: limits do not apply */

static inline enum wire_ack wire_ack_kind(uint8_t syndrome)
{
    return syndrome & 0x80 ? WIRE_ACK_RESERVED : (enum wire_ack)(syndrome >> 5);
}

static inline uint8_t wire_ack_value(uint8_t syndrome)
{
    return syndrome & 0x1f;
}

static inline uint8_t wire_syndrome_ack(uint8_t credit_code)
{
    return credit_code & 0x1f;
}

static inline uint8_t wire_syndrome_rnr(uint8_t timer_code)
{
    return (uint8_t)(0x20 | (timer_code & 0x1f));
}

static inline uint8_t wire_syndrome_nak(enum wire_nak nak)
{
    return (uint8_t)(0x60 | nak);
}

/* Receives that a credit code (0 .. 30) stands for (IBTA 9.7.7). */
uint32_t wire_credits(uint8_t code);
/* The code of the largest number of credits that is not over n. */
uint8_t wire_credit_code(uint32_t n);

/* ---- timers ---- */

/* How long an RNR NAK of this code (0 .. 31) asks to wait (IBTA 9.7.5). */
uint64_t wire_rnr_ns(uint8_t code);
/* The code of the shortest wait that is not under ns; 0 (655 ms) when none is long enough. */
uint8_t wire_rnr_code(uint64_t ns);
/* Local ACK time-out: 4.096 us * 2^code for code 1 .. 31; code 0 = never, returned as UINT64_MAX. */
static inline uint64_t wire_timeout_ns(uint8_t code)
{
    return (code & 31) ? 4096ull << (code & 31) : UINT64_MAX;
}

/* The retry counts of verbs: 7 RNR retries mean for ever. */
#define WIRE_RETRY_MAX   7u
#define WIRE_RNR_FOREVER 7u

#endif

/*
 * RoCEv2 packets: the UDP payload from the BTH to the ICRC, in the host's byte order. docs/roce.md has the tables.
 *
 * A sender encodes the headers, sends the payload from where it lies, and ends with pad and ICRC (wire_icrc.h).
 * A receiver decodes once: whatever wire_decode has taken is in bounds, and no length is looked at again.
 */
#ifndef ROCE_WIRE_H
#define ROCE_WIRE_H

#include "roce/wire_limits.h"
#include "roce/wire_op.h"
#include "roce/wire_psn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which fields count is said by wire_op(opcode): the others are 0 after a decode and ignored by an encode.
 * VA and R_Key are RETH's or AtomicETH's; no packet has both.
 */
struct wire_pkt {
    /* BTH */
    uint8_t opcode; /* an enum wire_opcode */
    uint8_t pad;    /* decode only: encode derives it from payload_len */
    uint8_t tver;   /* header version: 0; anything else is refused */
    bool solicited, migreq, fecn, becn, ackreq;
    uint16_t pkey;
    uint32_t dest_qp; /* 24 bits */
    psn24 psn;

    uint64_t va;       /* RETH, AtomicETH */
    uint32_t rkey;     /* RETH, AtomicETH */
    uint32_t dma_len;  /* RETH: bytes of the whole message */
    uint64_t swap_add; /* AtomicETH: the new value, or what to add */
    uint64_t compare;  /* AtomicETH, compare-and-swap only */
    uint64_t orig;     /* AtomicAckETH: what was there before */
    uint32_t imm;      /* ImmDt */
    uint32_t inv_rkey; /* IETH */
    uint8_t syndrome;  /* AETH: wire_ack_kind(), wire_ack_value() */
    uint32_t msn;      /* AETH, 24 bits */
    uint32_t qkey;     /* DETH */
    uint32_t src_qp;   /* DETH, 24 bits */
    uint32_t srqn;     /* XRCETH, 24 bits */

    /* SACK, see below */
    uint8_t sack_flags;
    uint16_t sack_bits;
    psn24 sack_trigger;

    /* Of a way without datagrams (shared memory): the payload may have WIRE_FAR_MAX bytes, and may lie elsewhere. */
    bool far;
    uint32_t payload_len;
    const uint8_t *payload; /* borrowed: decode points into the packet; wire_encode_head does not read it */
    uint32_t icrc;          /* decode only: as received, not yet verified */
};

/*
 * SACK (opcode 0xd1), from responder to requester, only between ends that agreed on it by hello:
 *
 *     BTH      dest_qp: the requester's; psn: the last PSN received in order (everything up to it is acknowledged,
 *              as by an ACK of that PSN)
 *     AETH     syndrome ACK with credit code; msn as in an ACK
 *     SackETH  byte 0     flags: WIRE_SACK_DUP: the packet that caused this had been received before; others 0
 *              bytes 1-3  trigger: PSN of the packet that caused this acknowledgement
 *              bytes 4-5  bits: PSNs that the bitmap describes, 0 .. WIRE_SACK_BITS_MAX; 0 when there is no gap
 *              bytes 6-7  0
 *     payload  the bitmap, 4 * ceil(bits / 32) bytes: bit i is bit i % 8 (least significant is 0) of byte i / 8, and is
 *              set when PSN psn + 1 + i has been received. Bit 0 is clear, since psn + 1 is the first that is missing;
 *              bits from `bits` on are clear.
 *
 * A NAK other than of a sequence error, and an RNR NAK, is sent as to any peer. A lost READ response needs no such
 * form: the requester asks again for the part that is missing, which the standard allows.
 */
#define WIRE_SACK_DUP        0x01u
#define WIRE_SACK_BITS_MAX   1024u
#define WIRE_SACK_BITMAP_MAX (WIRE_SACK_BITS_MAX / 8)

/* Bytes of the bitmap of so many bits. */
static inline uint32_t wire_sack_bytes(uint32_t bits)
{
    return (bits + 31) / 32 * 4;
}

static inline bool wire_sack_test(const uint8_t *bitmap, uint32_t i)
{
    return bitmap[i / 8] >> (i % 8) & 1;
}

static inline void wire_sack_set(uint8_t *bitmap, uint32_t i)
{
    bitmap[i / 8] |= (uint8_t)(1u << (i % 8));
}

/* Why a packet was dropped at this layer. One counter each: `drops[wire_drop_of(err)]++`. */
enum wire_drop {
    WIRE_DROP_SHORT,  /* -ENODATA: ends before its headers and ICRC do */
    WIRE_DROP_LONG,   /* -EMSGSIZE: more than WIRE_PKT_MAX, or payload over WIRE_PAYLOAD_MAX */
    WIRE_DROP_TVER,   /* -EPROTONOSUPPORT: header version */
    WIRE_DROP_OPCODE, /* -EOPNOTSUPP: not one of ours */
    WIRE_DROP_LENGTH, /* -EBADMSG: not a multiple of 4, wrong pad, or payload where none may be */
    WIRE_DROP_FIELD,  /* -EPROTO: a field that contradicts the packet (SACK) */
    WIRE_DROP_ICRC,   /* -EILSEQ: wrong ICRC */
    WIRE_DROPS
};
/* The reason of an error of wire_decode or wire_icrc_verify. */
enum wire_drop wire_drop_of(int err);
/* "short", "icrc" .. for counters. */
const char *wire_drop_name(enum wire_drop d);

/*
 * Decodes a UDP payload of len bytes, ICRC included (its value is read, not checked). Returns the bytes of the headers
 * (where the payload begins), or an error of enum wire_drop.
 */
int wire_decode(const void *data, size_t len, struct wire_pkt *ret_pkt);

/*
 * Headers whose payload of payload_len bytes lies elsewhere (p->far is set, p->payload is NULL): `head` has them and
 * nothing else. Returns as wire_decode.
 */
int wire_decode_far(const void *head, size_t len, uint32_t payload_len, struct wire_pkt *ret_pkt);

/*
 * Writes BTH and extension headers; payload, pad and ICRC follow. Returns their bytes, at most WIRE_HEAD_MAX, or
 * -EINVAL: unknown opcode, a field that is too wide, payload where none may be, or -ENOSPC.
 */
int wire_encode_head(const struct wire_pkt *p, uint8_t *buf, size_t cap);
/* Headers of a packet that is like another but for its PSN, whose headers are in buf already. */
void wire_head_psn(uint8_t *buf, psn24 psn);
/* Whether the headers of a packet without extension headers are another's, but for a PSN that is n further. */
bool wire_head_follows(const uint8_t *first, const uint8_t *pkt, uint32_t n);
/* Pad of zeros and ICRC behind a payload of payload_len bytes; returns their number (4 .. 7). */
int wire_encode_tail(uint32_t payload_len, uint32_t icrc, uint8_t ret_tail[WIRE_TAIL_MAX]);
/* Bytes of the whole UDP payload: headers, payload, pad and ICRC. The opcode must be known. */
uint32_t wire_pkt_bytes(const struct wire_pkt *p);

/* As wire_op(p->opcode) of a decoded packet, which always has one. */
static inline const struct wire_op *wire_pkt_op(const struct wire_pkt *p)
{
    return wire_op(p->opcode);
}

#endif

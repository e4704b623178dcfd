/*
 * BTH opcodes and what each one is (IBTA 9.2). The properties are named booleans and enums, never a
 * bit mask, so that an opcode cannot be tested with a mask that was meant for its properties.
 */
#ifndef ROCE_WIRE_OP_H
#define ROCE_WIRE_OP_H

#include <stdbool.h>
#include <stdint.h>

enum wire_opcode {
    WIRE_RC_SEND_FIRST = 0x00,
    WIRE_RC_SEND_MIDDLE = 0x01,
    WIRE_RC_SEND_LAST = 0x02,
    WIRE_RC_SEND_LAST_IMM = 0x03,
    WIRE_RC_SEND_ONLY = 0x04,
    WIRE_RC_SEND_ONLY_IMM = 0x05,
    WIRE_RC_WRITE_FIRST = 0x06,
    WIRE_RC_WRITE_MIDDLE = 0x07,
    WIRE_RC_WRITE_LAST = 0x08,
    WIRE_RC_WRITE_LAST_IMM = 0x09,
    WIRE_RC_WRITE_ONLY = 0x0a,
    WIRE_RC_WRITE_ONLY_IMM = 0x0b,
    WIRE_RC_READ_REQUEST = 0x0c,
    WIRE_RC_READ_RESP_FIRST = 0x0d,
    WIRE_RC_READ_RESP_MIDDLE = 0x0e,
    WIRE_RC_READ_RESP_LAST = 0x0f,
    WIRE_RC_READ_RESP_ONLY = 0x10,
    WIRE_RC_ACK = 0x11,
    WIRE_RC_ATOMIC_ACK = 0x12,
    WIRE_RC_CMP_SWAP = 0x13,
    WIRE_RC_FETCH_ADD = 0x14,
    WIRE_RC_SEND_LAST_INV = 0x16,
    WIRE_RC_SEND_ONLY_INV = 0x17,

    WIRE_UC_SEND_FIRST = 0x20,
    WIRE_UC_SEND_MIDDLE = 0x21,
    WIRE_UC_SEND_LAST = 0x22,
    WIRE_UC_SEND_LAST_IMM = 0x23,
    WIRE_UC_SEND_ONLY = 0x24,
    WIRE_UC_SEND_ONLY_IMM = 0x25,
    WIRE_UC_WRITE_FIRST = 0x26,
    WIRE_UC_WRITE_MIDDLE = 0x27,
    WIRE_UC_WRITE_LAST = 0x28,
    WIRE_UC_WRITE_LAST_IMM = 0x29,
    WIRE_UC_WRITE_ONLY = 0x2a,
    WIRE_UC_WRITE_ONLY_IMM = 0x2b,

    WIRE_UD_SEND_ONLY = 0x64,
    WIRE_UD_SEND_ONLY_IMM = 0x65,

    /* RoCEv2 congestion notification (IBTA annex A17): BECN set, 16 reserved bytes behind the BTH. */
    WIRE_CNP = 0x81,

    WIRE_XRC_SEND_FIRST = 0xa0,
    WIRE_XRC_SEND_MIDDLE = 0xa1,
    WIRE_XRC_SEND_LAST = 0xa2,
    WIRE_XRC_SEND_LAST_IMM = 0xa3,
    WIRE_XRC_SEND_ONLY = 0xa4,
    WIRE_XRC_SEND_ONLY_IMM = 0xa5,
    WIRE_XRC_WRITE_FIRST = 0xa6,
    WIRE_XRC_WRITE_MIDDLE = 0xa7,
    WIRE_XRC_WRITE_LAST = 0xa8,
    WIRE_XRC_WRITE_LAST_IMM = 0xa9,
    WIRE_XRC_WRITE_ONLY = 0xaa,
    WIRE_XRC_WRITE_ONLY_IMM = 0xab,
    WIRE_XRC_READ_REQUEST = 0xac,
    WIRE_XRC_READ_RESP_FIRST = 0xad,
    WIRE_XRC_READ_RESP_MIDDLE = 0xae,
    WIRE_XRC_READ_RESP_LAST = 0xaf,
    WIRE_XRC_READ_RESP_ONLY = 0xb0,
    WIRE_XRC_ACK = 0xb1,
    WIRE_XRC_ATOMIC_ACK = 0xb2,
    WIRE_XRC_CMP_SWAP = 0xb3,
    WIRE_XRC_FETCH_ADD = 0xb4,
    WIRE_XRC_SEND_LAST_INV = 0xb6,
    WIRE_XRC_SEND_ONLY_INV = 0xb7,

    /*
     * Selective acknowledgement between uroce ends, in the range that IBTA leaves to manufacturers (0xc0 .. 0xff).
     * Sent only after both ends have said so in a hello (wire_mad.h); its form is in wire.h.
     */
    WIRE_SACK = 0xd1,
};

enum wire_transport { WIRE_RC, WIRE_UC, WIRE_UD, WIRE_XRC, WIRE_NO_TRANSPORT /* CNP */ };

/* What a packet is in the exchange: RESPONSE and ACK go from the responder back to the requester. */
enum wire_kind {
    WIRE_KIND_REQUEST,
    WIRE_KIND_RESPONSE, /* READ response, atomic acknowledgement: carries what the requester asked for */
    WIRE_KIND_ACK,      /* ACK, NAK, RNR NAK, SACK */
    WIRE_KIND_NOTIFY,   /* CNP: outside of the PSN sequence */
};

/* The operation it belongs to. */
enum wire_verb {
    WIRE_VERB_SEND,
    WIRE_VERB_WRITE,
    WIRE_VERB_READ,
    WIRE_VERB_CMP_SWAP,
    WIRE_VERB_FETCH_ADD,
    WIRE_VERB_ATOMIC_ACK,
    WIRE_VERB_ACK,
    WIRE_VERB_SACK,
    WIRE_VERB_CNP,
};

struct wire_op {
    const char *name; /* "RC_SEND_FIRST" */
    enum wire_transport transport;
    enum wire_kind kind;
    enum wire_verb verb;
    uint8_t head_bytes; /* BTH and extension headers */
    /* Place in its message: first alone, neither = middle, last alone, both = only. */
    bool first, last;
    bool has_payload; /* may carry payload bytes; without it none are allowed */
    /* Extension headers, in the order in which they lie behind the BTH. */
    bool deth, xrceth, reth, atomic, aeth, atomic_ack, sack, imm, ieth, cnp;
};

/* Properties of an opcode as it came from a wire; NULL: not one that we know. Static storage. */
const struct wire_op *wire_op(uint8_t opcode);
/* "RC_SEND_FIRST", or "?" when unknown. */
const char *wire_op_name(uint8_t opcode);

static inline bool wire_op_only(const struct wire_op *o)
{
    return o->first && o->last;
}

static inline bool wire_op_middle(const struct wire_op *o)
{
    return !o->first && !o->last;
}

#endif

/* The headers as they lie on the wire (IBTA 9.2, 9.3; annex A17): byte arrays, so that no alignment is needed. */
#ifndef ROCE_RAW_H
#define ROCE_RAW_H

#include "base/endian.h"
#include "roce/wire_limits.h"

#include <assert.h>

struct raw_bth {
    uint8_t opcode;
    uint8_t bits; /* solicited 1, MigReq 1, pad 2, header version 4 */
    be16 pkey;
    uint8_t ecn; /* FECN 1, BECN 1, reserved 6: all masked in the ICRC */
    be24 dest_qp;
    uint8_t ack; /* AckReq 1, reserved 7 */
    be24 psn;
};

#define BTH_SOLICITED 0x80u
#define BTH_MIGREQ    0x40u
#define BTH_PAD_SHIFT 4
#define BTH_TVER_MASK 0x0fu
#define BTH_FECN      0x80u
#define BTH_BECN      0x40u
#define BTH_ACKREQ    0x80u

struct raw_reth {
    be64 va;
    be32 rkey, dma_len;
};

struct raw_aeth {
    uint8_t syndrome;
    be24 msn;
};

struct raw_atomic {
    be64 va;
    be32 rkey;
    be64 swap_add, compare;
};

struct raw_deth {
    be32 qkey;
    uint8_t reserved;
    be24 src_qp;
};

struct raw_xrceth {
    uint8_t reserved;
    be24 srqn;
};

struct raw_sack {
    uint8_t flags;
    be24 trigger;
    be16 bits, reserved;
};

static_assert(sizeof(struct raw_bth) == WIRE_BTH_BYTES, "layout");
static_assert(sizeof(struct raw_reth) == WIRE_RETH_BYTES, "layout");
static_assert(sizeof(struct raw_aeth) == WIRE_AETH_BYTES, "layout");
static_assert(sizeof(struct raw_atomic) == WIRE_ATOMIC_BYTES, "layout");
static_assert(sizeof(struct raw_deth) == WIRE_DETH_BYTES, "layout");
static_assert(sizeof(struct raw_xrceth) == WIRE_XRCETH_BYTES, "layout");
static_assert(sizeof(struct raw_sack) == WIRE_SACK_BYTES, "layout");

#endif

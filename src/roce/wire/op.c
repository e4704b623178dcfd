/* The table of opcodes (IBTA 9.2): one row each. */
#include "roce/wire_op.h"

#include <stddef.h>

#define FIRST  true, false
#define MIDDLE false, false
#define LAST   false, true
#define ONLY   true, true
#define DATA   true
#define EMPTY  false

/* Code, transport, kind, verb, place in the message, payload, bytes of BTH and extension headers, those headers. */
#define ROW(...) ROW_EXPANDED(__VA_ARGS__)
#define ROW_EXPANDED(code, tr, kind_, verb_, first_, last_, data, bytes, ...)                                          \
    [WIRE_##code] = {.name = #code,                                                                                    \
                     .transport = WIRE_##tr,                                                                           \
                     .kind = WIRE_KIND_##kind_,                                                                        \
                     .verb = WIRE_VERB_##verb_,                                                                        \
                     .head_bytes = bytes,                                                                              \
                     .first = first_,                                                                                  \
                     .last = last_,                                                                                    \
                     .has_payload = data __VA_OPT__(, ) __VA_ARGS__}

/* clang-format off */
static const struct wire_op ops[256] = {
    ROW(RC_SEND_FIRST, RC, REQUEST, SEND, FIRST, DATA, 12),
    ROW(RC_SEND_MIDDLE, RC, REQUEST, SEND, MIDDLE, DATA, 12),
    ROW(RC_SEND_LAST, RC, REQUEST, SEND, LAST, DATA, 12),
    ROW(RC_SEND_LAST_IMM, RC, REQUEST, SEND, LAST, DATA, 16, .imm = true),
    ROW(RC_SEND_ONLY, RC, REQUEST, SEND, ONLY, DATA, 12),
    ROW(RC_SEND_ONLY_IMM, RC, REQUEST, SEND, ONLY, DATA, 16, .imm = true),
    ROW(RC_WRITE_FIRST, RC, REQUEST, WRITE, FIRST, DATA, 28, .reth = true),
    ROW(RC_WRITE_MIDDLE, RC, REQUEST, WRITE, MIDDLE, DATA, 12),
    ROW(RC_WRITE_LAST, RC, REQUEST, WRITE, LAST, DATA, 12),
    ROW(RC_WRITE_LAST_IMM, RC, REQUEST, WRITE, LAST, DATA, 16, .imm = true),
    ROW(RC_WRITE_ONLY, RC, REQUEST, WRITE, ONLY, DATA, 28, .reth = true),
    ROW(RC_WRITE_ONLY_IMM, RC, REQUEST, WRITE, ONLY, DATA, 32, .reth = true, .imm = true),
    ROW(RC_READ_REQUEST, RC, REQUEST, READ, ONLY, EMPTY, 28, .reth = true),
    ROW(RC_READ_RESP_FIRST, RC, RESPONSE, READ, FIRST, DATA, 16, .aeth = true),
    ROW(RC_READ_RESP_MIDDLE, RC, RESPONSE, READ, MIDDLE, DATA, 12),
    ROW(RC_READ_RESP_LAST, RC, RESPONSE, READ, LAST, DATA, 16, .aeth = true),
    ROW(RC_READ_RESP_ONLY, RC, RESPONSE, READ, ONLY, DATA, 16, .aeth = true),
    ROW(RC_ACK, RC, ACK, ACK, ONLY, EMPTY, 16, .aeth = true),
    ROW(RC_ATOMIC_ACK, RC, RESPONSE, ATOMIC_ACK, ONLY, EMPTY, 24, .aeth = true, .atomic_ack = true),
    ROW(RC_CMP_SWAP, RC, REQUEST, CMP_SWAP, ONLY, EMPTY, 40, .atomic = true),
    ROW(RC_FETCH_ADD, RC, REQUEST, FETCH_ADD, ONLY, EMPTY, 40, .atomic = true),
    ROW(RC_SEND_LAST_INV, RC, REQUEST, SEND, LAST, DATA, 16, .ieth = true),
    ROW(RC_SEND_ONLY_INV, RC, REQUEST, SEND, ONLY, DATA, 16, .ieth = true),
    ROW(UC_SEND_FIRST, UC, REQUEST, SEND, FIRST, DATA, 12),
    ROW(UC_SEND_MIDDLE, UC, REQUEST, SEND, MIDDLE, DATA, 12),
    ROW(UC_SEND_LAST, UC, REQUEST, SEND, LAST, DATA, 12),
    ROW(UC_SEND_LAST_IMM, UC, REQUEST, SEND, LAST, DATA, 16, .imm = true),
    ROW(UC_SEND_ONLY, UC, REQUEST, SEND, ONLY, DATA, 12),
    ROW(UC_SEND_ONLY_IMM, UC, REQUEST, SEND, ONLY, DATA, 16, .imm = true),
    ROW(UC_WRITE_FIRST, UC, REQUEST, WRITE, FIRST, DATA, 28, .reth = true),
    ROW(UC_WRITE_MIDDLE, UC, REQUEST, WRITE, MIDDLE, DATA, 12),
    ROW(UC_WRITE_LAST, UC, REQUEST, WRITE, LAST, DATA, 12),
    ROW(UC_WRITE_LAST_IMM, UC, REQUEST, WRITE, LAST, DATA, 16, .imm = true),
    ROW(UC_WRITE_ONLY, UC, REQUEST, WRITE, ONLY, DATA, 28, .reth = true),
    ROW(UC_WRITE_ONLY_IMM, UC, REQUEST, WRITE, ONLY, DATA, 32, .reth = true, .imm = true),
    ROW(UD_SEND_ONLY, UD, REQUEST, SEND, ONLY, DATA, 20, .deth = true),
    ROW(UD_SEND_ONLY_IMM, UD, REQUEST, SEND, ONLY, DATA, 24, .deth = true, .imm = true),
    ROW(CNP, NO_TRANSPORT, NOTIFY, CNP, ONLY, EMPTY, 28, .cnp = true),
    ROW(XRC_SEND_FIRST, XRC, REQUEST, SEND, FIRST, DATA, 16, .xrceth = true),
    ROW(XRC_SEND_MIDDLE, XRC, REQUEST, SEND, MIDDLE, DATA, 16, .xrceth = true),
    ROW(XRC_SEND_LAST, XRC, REQUEST, SEND, LAST, DATA, 16, .xrceth = true),
    ROW(XRC_SEND_LAST_IMM, XRC, REQUEST, SEND, LAST, DATA, 20, .xrceth = true, .imm = true),
    ROW(XRC_SEND_ONLY, XRC, REQUEST, SEND, ONLY, DATA, 16, .xrceth = true),
    ROW(XRC_SEND_ONLY_IMM, XRC, REQUEST, SEND, ONLY, DATA, 20, .xrceth = true, .imm = true),
    ROW(XRC_WRITE_FIRST, XRC, REQUEST, WRITE, FIRST, DATA, 32, .xrceth = true, .reth = true),
    ROW(XRC_WRITE_MIDDLE, XRC, REQUEST, WRITE, MIDDLE, DATA, 16, .xrceth = true),
    ROW(XRC_WRITE_LAST, XRC, REQUEST, WRITE, LAST, DATA, 16, .xrceth = true),
    ROW(XRC_WRITE_LAST_IMM, XRC, REQUEST, WRITE, LAST, DATA, 20, .xrceth = true, .imm = true),
    ROW(XRC_WRITE_ONLY, XRC, REQUEST, WRITE, ONLY, DATA, 32, .xrceth = true, .reth = true),
    ROW(XRC_WRITE_ONLY_IMM, XRC, REQUEST, WRITE, ONLY, DATA, 36, .xrceth = true, .reth = true, .imm = true),
    ROW(XRC_READ_REQUEST, XRC, REQUEST, READ, ONLY, EMPTY, 32, .xrceth = true, .reth = true),
    ROW(XRC_READ_RESP_FIRST, XRC, RESPONSE, READ, FIRST, DATA, 16, .aeth = true),
    ROW(XRC_READ_RESP_MIDDLE, XRC, RESPONSE, READ, MIDDLE, DATA, 12),
    ROW(XRC_READ_RESP_LAST, XRC, RESPONSE, READ, LAST, DATA, 16, .aeth = true),
    ROW(XRC_READ_RESP_ONLY, XRC, RESPONSE, READ, ONLY, DATA, 16, .aeth = true),
    ROW(XRC_ACK, XRC, ACK, ACK, ONLY, EMPTY, 16, .aeth = true),
    ROW(XRC_ATOMIC_ACK, XRC, RESPONSE, ATOMIC_ACK, ONLY, EMPTY, 24, .aeth = true, .atomic_ack = true),
    ROW(XRC_CMP_SWAP, XRC, REQUEST, CMP_SWAP, ONLY, EMPTY, 44, .xrceth = true, .atomic = true),
    ROW(XRC_FETCH_ADD, XRC, REQUEST, FETCH_ADD, ONLY, EMPTY, 44, .xrceth = true, .atomic = true),
    ROW(XRC_SEND_LAST_INV, XRC, REQUEST, SEND, LAST, DATA, 20, .xrceth = true, .ieth = true),
    ROW(XRC_SEND_ONLY_INV, XRC, REQUEST, SEND, ONLY, DATA, 20, .xrceth = true, .ieth = true),
    ROW(SACK, RC, ACK, SACK, ONLY, DATA, 24, .aeth = true, .sack = true),
};
/* clang-format on */

const struct wire_op *wire_op(uint8_t opcode)
{
    return ops[opcode].name ? &ops[opcode] : NULL;
}

const char *wire_op_name(uint8_t opcode)
{
    return ops[opcode].name ? ops[opcode].name : "?";
}

/* From a packet to bytes: headers in front of the payload, pad and ICRC behind it. */
#include "roce/wire.h"

#include "raw.h"

#include <errno.h>
#include <string.h>

static bool fits24(uint32_t v)
{
    return v <= 0xffffffu;
}

/* Every field that the opcode sends can be said on the wire, and means what decode takes. */
static bool encodable(const struct wire_op *op, const struct wire_pkt *p)
{
    if (p->tver || !fits24(p->dest_qp) || !fits24(p->psn.v))
        return false;
    if (p->payload_len > (!op->has_payload ? 0 : p->far ? WIRE_FAR_MAX : WIRE_PAYLOAD_MAX))
        return false;
    if (op->sack && (p->sack_bits > WIRE_SACK_BITS_MAX || wire_sack_bytes(p->sack_bits) != p->payload_len ||
                     !fits24(p->sack_trigger.v)))
        return false;
    return (!op->deth || fits24(p->src_qp)) && (!op->xrceth || fits24(p->srqn)) && (!op->aeth || fits24(p->msn));
}

static uint8_t *put(uint8_t *at, const void *raw, size_t len)
{
    memcpy(at, raw, len);
    return at + len;
}

static uint8_t *write_bth(uint8_t *at, const struct wire_pkt *p)
{
    struct raw_bth h = {
        .opcode = p->opcode,
        .bits = (uint8_t)((p->solicited ? BTH_SOLICITED : 0) | (p->migreq ? BTH_MIGREQ : 0) |
                          wire_pad(p->payload_len) << BTH_PAD_SHIFT),
        .pkey = put_be16(p->pkey),
        .ecn = (uint8_t)((p->fecn ? BTH_FECN : 0) | (p->becn ? BTH_BECN : 0)),
        .dest_qp = put_be24(p->dest_qp),
        .ack = p->ackreq ? BTH_ACKREQ : 0,
        .psn = put_be24(p->psn.v),
    };

    return put(at, &h, sizeof h);
}

static uint8_t *write_va(uint8_t *at, const struct wire_op *op, const struct wire_pkt *p)
{
    if (op->reth) {
        struct raw_reth reth = {put_be64(p->va), put_be32(p->rkey), put_be32(p->dma_len)};
        at = put(at, &reth, sizeof reth);
    }
    if (op->atomic) {
        struct raw_atomic atomic = {put_be64(p->va), put_be32(p->rkey), put_be64(p->swap_add), put_be64(p->compare)};
        at = put(at, &atomic, sizeof atomic);
    }
    return at;
}

static uint8_t *write_ack(uint8_t *at, const struct wire_op *op, const struct wire_pkt *p)
{
    if (op->aeth) {
        struct raw_aeth aeth = {p->syndrome, put_be24(p->msn)};
        at = put(at, &aeth, sizeof aeth);
    }
    if (op->atomic_ack) {
        be64 orig = put_be64(p->orig);
        at = put(at, &orig, sizeof orig);
    }
    if (op->sack) {
        struct raw_sack sack = {p->sack_flags, put_be24(p->sack_trigger.v), put_be16(p->sack_bits), put_be16(0)};
        at = put(at, &sack, sizeof sack);
    }
    return at;
}

int wire_encode_head(const struct wire_pkt *p, uint8_t *buf, size_t cap)
{
    const struct wire_op *op = wire_op(p->opcode);
    uint8_t *at = buf;

    if (!op || !encodable(op, p))
        return -EINVAL;
    if (cap < op->head_bytes)
        return -ENOSPC;
    at = write_bth(at, p);
    if (op->deth) {
        struct raw_deth deth = {put_be32(p->qkey), 0, put_be24(p->src_qp)};
        at = put(at, &deth, sizeof deth);
    }
    if (op->xrceth) {
        struct raw_xrceth xrceth = {0, put_be24(p->srqn)};
        at = put(at, &xrceth, sizeof xrceth);
    }
    at = write_va(at, op, p);
    at = write_ack(at, op, p);
    if (op->imm || op->ieth) {
        be32 word = put_be32(op->imm ? p->imm : p->inv_rkey);
        at = put(at, &word, sizeof word);
    }
    if (op->cnp)
        memset(at, 0, WIRE_CNP_BYTES);
    return op->head_bytes;
}

void wire_head_psn(uint8_t *buf, psn24 psn)
{
    be24 v = put_be24(psn.v);

    memcpy(buf + offsetof(struct raw_bth, psn), &v, sizeof v);
}

int wire_encode_tail(uint32_t payload_len, uint32_t icrc, uint8_t ret_tail[WIRE_TAIL_MAX])
{
    uint32_t pad = wire_pad(payload_len);
    le32 c = put_le32(icrc);

    memset(ret_tail, 0, pad);
    memcpy(ret_tail + pad, &c, sizeof c);
    return (int)(pad + sizeof c);
}

uint32_t wire_pkt_bytes(const struct wire_pkt *p)
{
    return wire_op(p->opcode)->head_bytes + p->payload_len + wire_pad(p->payload_len) + WIRE_ICRC_BYTES;
}

/* From bytes to a packet. All checks come first, so that reading cannot fail and the output is whole or untouched. */
#include "roce/wire.h"

#include "raw.h"

#include <errno.h>
#include <string.h>

bool wire_head_follows(const uint8_t *first, const uint8_t *pkt, uint32_t n)
{
    struct raw_bth a, b;

    memcpy(&a, first, sizeof a);
    memcpy(&b, pkt, sizeof b);
    return memcmp(&a, &b, offsetof(struct raw_bth, psn)) == 0 &&
           get_be24(b.psn) == psn_add(psn_make(get_be24(a.psn)), n).v;
}

/* The bitmap is as long as it says, its first bit and those past its end are clear. */
static int check_sack(const uint8_t *ext, const uint8_t *bitmap, uint32_t len)
{
    struct raw_sack s;
    uint32_t bits;

    memcpy(&s, ext + WIRE_AETH_BYTES, sizeof s);
    bits = get_be16(s.bits);
    if (bits > WIRE_SACK_BITS_MAX || wire_sack_bytes(bits) != len)
        return -EPROTO;
    if (len && wire_sack_test(bitmap, 0))
        return -EPROTO;
    for (uint32_t i = bits; i < len * 8; i++)
        if (wire_sack_test(bitmap, i))
            return -EPROTO;
    return 0;
}

static const uint8_t *take(void *ret, const uint8_t *at, size_t len)
{
    memcpy(ret, at, len);
    return at + len;
}

static void read_bth(const struct raw_bth *h, struct wire_pkt *p)
{
    p->opcode = h->opcode;
    p->solicited = h->bits & BTH_SOLICITED;
    p->migreq = h->bits & BTH_MIGREQ;
    p->pad = h->bits >> BTH_PAD_SHIFT & 3;
    p->pkey = get_be16(h->pkey);
    p->fecn = h->ecn & BTH_FECN;
    p->becn = h->ecn & BTH_BECN;
    p->dest_qp = get_be24(h->dest_qp);
    p->ackreq = h->ack & BTH_ACKREQ;
    p->psn = psn_make(get_be24(h->psn));
}

static const uint8_t *read_va(const struct wire_op *op, const uint8_t *at, struct wire_pkt *p)
{
    struct raw_reth reth;
    struct raw_atomic atomic;

    if (op->reth) {
        at = take(&reth, at, sizeof reth);
        p->va = get_be64(reth.va);
        p->rkey = get_be32(reth.rkey);
        p->dma_len = get_be32(reth.dma_len);
    }
    if (op->atomic) {
        at = take(&atomic, at, sizeof atomic);
        p->va = get_be64(atomic.va);
        p->rkey = get_be32(atomic.rkey);
        p->swap_add = get_be64(atomic.swap_add);
        p->compare = get_be64(atomic.compare);
    }
    return at;
}

static const uint8_t *read_ack(const struct wire_op *op, const uint8_t *at, struct wire_pkt *p)
{
    struct raw_aeth aeth;
    struct raw_sack sack;
    be64 orig;

    if (op->aeth) {
        at = take(&aeth, at, sizeof aeth);
        p->syndrome = aeth.syndrome;
        p->msn = get_be24(aeth.msn);
    }
    if (op->atomic_ack) {
        at = take(&orig, at, sizeof orig);
        p->orig = get_be64(orig);
    }
    if (op->sack) {
        at = take(&sack, at, sizeof sack);
        p->sack_flags = sack.flags;
        p->sack_trigger = psn_make(get_be24(sack.trigger));
        p->sack_bits = get_be16(sack.bits);
    }
    return at;
}

/* In the order of the members of struct wire_op, which is that of the wire. */
static void read_exts(const struct wire_op *op, const uint8_t *at, struct wire_pkt *p)
{
    struct raw_deth deth;
    struct raw_xrceth xrceth;
    be32 word;

    if (op->deth) {
        at = take(&deth, at, sizeof deth);
        p->qkey = get_be32(deth.qkey);
        p->src_qp = get_be24(deth.src_qp);
    }
    if (op->xrceth) {
        at = take(&xrceth, at, sizeof xrceth);
        p->srqn = get_be24(xrceth.srqn);
    }
    at = read_va(op, at, p);
    at = read_ack(op, at, p);
    if (op->imm || op->ieth) {
        take(&word, at, sizeof word);
        if (op->imm)
            p->imm = get_be32(word);
        else
            p->inv_rkey = get_be32(word);
    }
}

/* The BTH, and what its opcode is; its 12 bytes are there. */
static int begin(const uint8_t *d, struct raw_bth *ret_bth, const struct wire_op **ret_op)
{
    memcpy(ret_bth, d, sizeof *ret_bth);
    if (ret_bth->bits & BTH_TVER_MASK)
        return -EPROTONOSUPPORT;
    *ret_op = wire_op(ret_bth->opcode);
    return *ret_op ? 0 : -EOPNOTSUPP;
}

int wire_decode(const void *data, size_t len, struct wire_pkt *ret_pkt)
{
    const uint8_t *d = data;
    const struct wire_op *op;
    struct raw_bth bth;
    uint32_t payload, pad;
    le32 icrc;
    int rc;

    if (len < WIRE_BTH_BYTES + WIRE_ICRC_BYTES)
        return -ENODATA;
    if (len > WIRE_PKT_MAX)
        return -EMSGSIZE;
    rc = begin(d, &bth, &op);
    if (rc)
        return rc;
    pad = bth.bits >> BTH_PAD_SHIFT & 3;
    if (len < op->head_bytes + pad + WIRE_ICRC_BYTES)
        return -ENODATA;
    payload = (uint32_t)len - op->head_bytes - pad - WIRE_ICRC_BYTES;
    if (payload > WIRE_PAYLOAD_MAX)
        return -EMSGSIZE;
    if (wire_pad(payload) != pad || (payload && !op->has_payload))
        return -EBADMSG;
    if (op->sack) {
        rc = check_sack(d + WIRE_BTH_BYTES, d + op->head_bytes, payload);
        if (rc)
            return rc;
    }

    memset(ret_pkt, 0, sizeof *ret_pkt);
    read_bth(&bth, ret_pkt);
    if (op->head_bytes > WIRE_BTH_BYTES)
        read_exts(op, d + WIRE_BTH_BYTES, ret_pkt);
    ret_pkt->payload_len = payload;
    ret_pkt->payload = d + op->head_bytes;
    memcpy(&icrc, d + len - sizeof icrc, sizeof icrc);
    ret_pkt->icrc = get_le32(icrc);
    return op->head_bytes;
}

int wire_decode_far(const void *head, size_t len, uint32_t payload_len, struct wire_pkt *ret_pkt)
{
    const uint8_t *d = head;
    const struct wire_op *op;
    struct raw_bth bth;
    int rc;

    if (len < WIRE_BTH_BYTES)
        return -ENODATA;
    if (payload_len > WIRE_FAR_MAX)
        return -EMSGSIZE;
    rc = begin(d, &bth, &op);
    if (rc)
        return rc;
    if (len < op->head_bytes)
        return -ENODATA;
    /* A SACK's bitmap is looked at here, so it comes along. */
    if (len != op->head_bytes || wire_pad(payload_len) != (bth.bits >> BTH_PAD_SHIFT & 3u) || op->sack ||
        (payload_len && !op->has_payload))
        return -EBADMSG;

    memset(ret_pkt, 0, sizeof *ret_pkt);
    read_bth(&bth, ret_pkt);
    read_exts(op, d + WIRE_BTH_BYTES, ret_pkt);
    ret_pkt->far = true;
    ret_pkt->payload_len = payload_len;
    return op->head_bytes;
}

enum wire_drop wire_drop_of(int err)
{
    switch (err) {
    case -ENODATA:
        return WIRE_DROP_SHORT;
    case -EMSGSIZE:
        return WIRE_DROP_LONG;
    case -EPROTONOSUPPORT:
        return WIRE_DROP_TVER;
    case -EOPNOTSUPP:
        return WIRE_DROP_OPCODE;
    case -EBADMSG:
        return WIRE_DROP_LENGTH;
    case -EILSEQ:
        return WIRE_DROP_ICRC;
    default:
        return WIRE_DROP_FIELD;
    }
}

const char *wire_drop_name(enum wire_drop d)
{
    static const char *const names[WIRE_DROPS] = {
        [WIRE_DROP_SHORT] = "short",   [WIRE_DROP_LONG] = "long",     [WIRE_DROP_TVER] = "version",
        [WIRE_DROP_OPCODE] = "opcode", [WIRE_DROP_LENGTH] = "length", [WIRE_DROP_FIELD] = "field",
        [WIRE_DROP_ICRC] = "icrc",
    };

    return d < WIRE_DROPS ? names[d] : "?";
}

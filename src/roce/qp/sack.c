/*
 * Selective repeat, the requester's side and the form of SACK. The responder tells what arrived past a gap; what was
 * sent QP_REORDER_SLACK or more packets before the last of that, and did not arrive, is sent again. Once: until a
 * packet arrives that was new when all that had been sent again (`recover`); then what is missing still is lost again.
 */
#include "impl.h"

#define RING_MASK (QP_SACK_RING - 1)

bool sack_test(const struct qp *qp, psn24 psn)
{
    uint32_t i = psn.v & RING_MASK;

    return qp->req.nsacked && qp->req.sacked[i / 64] >> (i % 64) & 1;
}

static void set(struct requester *r, psn24 psn)
{
    uint32_t i = psn.v & RING_MASK;

    if (r->sacked[i / 64] >> (i % 64) & 1)
        return;
    r->sacked[i / 64] |= 1ull << (i % 64);
    r->nsacked++;
}

void sack_clear(struct qp *qp)
{
    if (qp->req.nsacked)
        memset(qp->req.sacked, 0, sizeof qp->req.sacked);
    qp->req.nsacked = 0;
    qp->req.scanned = qp->req.una;
    qp->req.recover = qp->req.next;
}

void sack_advance(struct qp *qp, psn24 from, uint32_t n)
{
    struct requester *r = &qp->req;

    if (n > QP_SACK_RING)
        n = QP_SACK_RING;
    for (; r->nsacked && n; n--, from = psn_next(from)) {
        uint32_t i = from.v & RING_MASK;
        if (r->sacked[i / 64] >> (i % 64) & 1) {
            r->sacked[i / 64] &= ~(1ull << (i % 64));
            r->nsacked--;
        }
    }
}

void sack_rx(struct qp *qp, const struct wire_pkt *p)
{
    struct requester *r = &qp->req;
    psn24 lost, base = psn_next(p->psn); /* before it, only READs' responses can be missing */

    COUNT(qp, selective_acks_rx);
    if (!p->payload)
        return;
    for (uint32_t i = 1; i < p->sack_bits; i++) {
        psn24 psn = psn_add(base, i);
        if (!wire_sack_test(p->payload, i) || !psn_lt(psn, r->next))
            continue;
        if (!r->nsacked || psn_lt(r->sack_hi, psn))
            r->sack_hi = psn;
        set(r, psn);
    }
    if (!r->nsacked)
        return;
    if (!psn_lt(p->sack_trigger, r->recover) && psn_lt(p->sack_trigger, r->next)) {
        r->scanned = base;
        r->recover = r->next;
    }
    /* With nothing sent beyond it, what is missing before the last that arrived has no one to wait for. */
    lost = psn_next(r->sack_hi).v == r->next.v ? r->sack_hi : psn_sub(r->sack_hi, QP_REORDER_SLACK - 1);
    if (psn_lt(r->scanned, base))
        r->scanned = base;
    if (r->rnr_wait || !psn_lt(r->scanned, lost))
        return;
    if (!r->rtx_on) {
        r->rtx = r->scanned;
        r->rtx_end = lost;
        r->rtx_on = true;
        r->rtx_all = false;
        r->recover = r->next;
    } else if (psn_lt(r->rtx_end, lost)) {
        r->rtx_end = lost;
    }
    r->scanned = lost;
    engine_kick(qp);
}

/* ---- the responder's side ---- */

void sack_build(struct qp *qp, struct qp_tx *tx)
{
    struct responder *s = &qp->resp;
    uint32_t bits = 0;

    memset(qp->sack_map, 0, sizeof qp->sack_map);
    for (uint32_t i = 1; i <= s->reorder.mask && i < WIRE_SACK_BITS_MAX; i++) {
        if (reorder_has(&s->reorder, psn_add(s->next, i))) {
            wire_sack_set(qp->sack_map, i);
            bits = i + 1;
        }
    }
    tx->pkt.opcode = WIRE_SACK;
    tx->pkt.sack_flags = s->sack_dup ? WIRE_SACK_DUP : 0;
    tx->pkt.sack_trigger = s->trigger;
    tx->pkt.sack_bits = (uint16_t)bits;
    tx->payload_len = tx->pkt.payload_len = wire_sack_bytes(bits);
    tx->iov[0] = (struct iovec){qp->sack_map, tx->payload_len};
    tx->niov = bits > 0;
    COUNT(qp, selective_acks_tx);
}

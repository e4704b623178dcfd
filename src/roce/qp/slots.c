/* Service slots: what the engine shows them. */
#include "impl.h"

enum qp_verdict slot_rx(struct qp *qp, const struct qp_rx **rx, struct qp_rx *tmp, bool response, uint32_t offset,
                        bool first, bool last)
{
    struct qp_engine *e = qp->e;
    const struct wire_pkt *p = &(*rx)->pkt;
    struct iovec iov;
    struct qp_payload pl = {.qpn = qp->num,
                            .first = first,
                            .last = last,
                            .response = response,
                            .opcode = p->opcode,
                            .offset = offset,
                            .iov = &iov,
                            .niov = 1,
                            .len = p->payload_len};
    enum qp_verdict v;
    uint64_t value = 0;
    bool has = false;

    if ((*rx)->copy) {
        if (p->payload_len > QP_BOUNCE_BYTES || rx_copy(*rx, e->bounce, 0, p->payload_len)) {
            COUNT(qp, drop_slot);
            return QP_DROP;
        }
        *tmp = **rx;
        tmp->copy = NULL;
        tmp->pkt.payload = e->bounce;
        *rx = tmp;
    }
    iov = (struct iovec){(void *)(uintptr_t)(*rx)->pkt.payload, p->payload_len};
    v = e->ops.payload(e->cfg.ctx, qp->user, &pl, &value, &has);
    if (v != QP_ACCEPT)
        COUNT(qp, drop_slot);
    if (v == QP_ACCEPT && last && has) {
        *(response ? &qp->req.value : &qp->resp.value) = value;
        *(response ? &qp->req.has_value : &qp->resp.has_value) = true;
    }
    return v;
}

void slot_tx(struct qp *qp, const struct qp_tx *tx, struct sq_wqe *w, uint32_t offset, bool first, bool last)
{
    struct qp_payload pl = {.qpn = qp->num,
                            .send = true,
                            .first = first,
                            .last = last,
                            .response = !w,
                            .opcode = tx->pkt.opcode,
                            .offset = offset,
                            .iov = tx->iov,
                            .niov = tx->niov,
                            .len = tx->payload_len};
    uint64_t value = 0;
    bool has = false;

    (void)qp->e->ops.payload(qp->e->cfg.ctx, qp->user, &pl, &value, &has);
    if (w && last && has) {
        w->value = value;
        w->has_value = true;
    }
}

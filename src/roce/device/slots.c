/* Service slots between engine and slot chain. */
#include "dev.h"

#include <errno.h>
#include <stdio.h>

enum qp_verdict dev_payload(void *ctx, void *qp_user, const struct qp_payload *p, uint64_t *ret_value,
                            bool *ret_has_value)
{
    (void)ctx;
    struct uroce_qp *qp = qp_user;
    struct slot_packet sp = {
        .qpn = p->qpn,
        .peer_qpn = qp->dest_qpn,
        .opcode = p->opcode,
        .send = p->send,
        .first = p->first,
        .last = p->last,
        .response = p->response,
        .offset = p->offset,
    };
    switch (slot_chain_payload(qp->slots, &sp, p->iov, p->niov, ret_value, ret_has_value)) {
    case SLOT_ACCEPT:
        return QP_ACCEPT;
    case SLOT_DROP:
        return QP_DROP;
    case SLOT_REFUSE:
        break;
    }
    return QP_REFUSE;
}

struct uroce_qp *dev_path_slot_qp(struct uroce_device *dev, uint32_t qpn)
{
    struct uroce_qp *qp = dev_qp(dev, qpn);
    return qp && qp->path_overhead ? qp : NULL;
}

int uroce_qp_attach_slot(struct uroce_qp *qp, const char *spec, char *err, size_t err_size)
{
    struct uroce_device *dev = qp->dev;
    int r = dev_check_fork(dev);
    if (r)
        return r;
    dev_lock(dev);
    if (qp->slots == NULL)
        r = slot_chain_new(qp_num(qp->qp), &qp->slots);
    if (!r && qp->connected) {
        snprintf(err, err_size, "slot '%s': the queue pair is connected already; attach it in RESET or INIT", spec);
        r = -EBUSY;
    }
    if (!r)
        r = slot_chain_attach(qp->slots, spec, err, err_size);
    if (!r) {
        uint32_t overhead = slot_chain_overhead(qp->slots);
        if (overhead && !qp->path_overhead)
            dev->path_slot_qps++;
        qp->path_overhead = overhead;
        qp_set_slots(qp->qp, slot_chain_sees_payload(qp->slots));
    }
    dev_unlock(dev);
    return r;
}

int uroce_qp_slot_stat(struct uroce_qp *qp, char *buf, size_t size)
{
    int r = dev_check_fork(qp->dev);
    if (r)
        return r;
    dev_lock(qp->dev);
    if (qp->slots)
        slot_chain_stat(qp->slots, buf, size);
    else
        r = -ENOENT;
    dev_unlock(qp->dev);
    return r;
}

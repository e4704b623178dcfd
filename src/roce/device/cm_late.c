/*
 * Disconnects that come late. What the peer had sent was received before its disconnect, and by an adapter the
 * completions are in their queues long before the event is in its channel. Here both may come in one drive, between a
 * program's look at its completion queue and its look for events; and a program, libfabric's rxm for one, may give up
 * at the event what it has not seen of the connection. So a disconnect is told when the completions that were in the
 * queue pair's queues before it have been taken; or a little later, for who does not look there.
 */
#include "cm.h"

#define LATE_NS (50 * NSEC_PER_MSEC) /* a program that polls may be off its core that long */
#define LOOK_NS NSEC_PER_MSEC

struct late {
    struct list link;
    struct uroce_cm_event e; /* its id lives: cm_late_forget */
    uint32_t qpn;
    const struct uroce_qp *qp; /* to be compared alone: it may be gone */
    uint32_t sent, received;   /* completions in either queue up to there are waited for */
    uint64_t until;
};

static bool untaken(const struct uroce_cq *cq)
{
    return cq && qp_cq_told(cq->qp) != qp_cq_taken(cq->qp);
}

/* Also when the queue is empty: resizing it and what ends other queue pairs count anew. */
static bool taken_up_to(const struct uroce_cq *cq, uint32_t mark)
{
    return !untaken(cq) || (int32_t)(qp_cq_taken(cq->qp) - mark) >= 0;
}

static bool is_due(const struct uroce_device *dev, const struct late *l, uint64_t now)
{
    const struct uroce_qp *qp = dev_qp(dev, l->qpn);
    return now >= l->until || qp != l->qp || !qp->connected ||
           (taken_up_to(qp->send_cq, l->sent) && taken_up_to(qp->recv_cq, l->received));
}

bool cm_late_put(struct uroce_device *dev, const struct uroce_cm_event *e, uint32_t qpn, uint64_t now)
{
    const struct uroce_qp *qp = dev_qp(dev, qpn);
    if (e->type != UROCE_CM_DISCONNECTED || !qp || !qp->connected || (!untaken(qp->send_cq) && !untaken(qp->recv_cq)))
        return false;
    struct late *l = malloc(sizeof *l);
    if (!l)
        return false;
    *l = (struct late){.e = *e,
                       .qpn = qpn,
                       .qp = qp,
                       .sent = qp->send_cq ? qp_cq_told(qp->send_cq->qp) : 0,
                       .received = qp->recv_cq ? qp_cq_told(qp->recv_cq->qp) : 0,
                       .until = now + LATE_NS};
    list_push_back(&dev->cm_late, &l->link);
    dev->cm_late_look = min_u64(dev->cm_late_look, now + LOOK_NS);
    return true;
}

void cm_late_tell(struct uroce_device *dev, uint64_t now)
{
    dev->cm_late_look = now + LOOK_NS;
    list_for_each_safe (it, &dev->cm_late) {
        struct late *l = container_of(it, struct late, link);
        if (!is_due(dev, l, now))
            continue;
        l->e.context = l->e.id->context;
        if (cm_channel_put(l->e.id->channel, &l->e))
            return; /* no memory: once more */
        list_del(it);
        free(l);
    }
    if (list_empty(&dev->cm_late))
        dev->cm_late_look = UINT64_MAX;
}

void cm_late_forget(struct uroce_device *dev, const struct uroce_cm_id *id)
{
    list_for_each_safe (it, &dev->cm_late) {
        struct late *l = container_of(it, struct late, link);
        if (id && l->e.id != id)
            continue;
        list_del(it);
        free(l);
    }
}

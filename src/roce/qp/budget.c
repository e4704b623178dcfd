/*
 * What all queue pairs together have on their way (cfg.total_bytes): a socket's buffer is one for all of them. Who
 * finds no room waits in a list, and is woken in its order when acknowledgements make some. A time-out gives back what
 * its queue pair had: those packets are gone.
 */
#include "impl.h"

/* A turn: that much in one go, so that runs of packets form. */
#define TURN_BYTES 32768u

void budget_take(struct qp *qp, uint32_t bytes)
{
    if (qp->far_on)
        return;
    qp->req.charged += bytes;
    qp->e->charged += bytes;
    qp->req.turn -= bytes < qp->req.turn ? bytes : qp->req.turn;
}

/* In the order of waiting, as far as there is room: one that needs much is not passed over for ever. */
static void wake(struct qp_engine *e)
{
    uint64_t promised = e->charged;

    while (!list_empty(&e->starved)) {
        struct qp *qp = list_entry(e->starved.next, struct qp, starved);
        uint32_t turn = qp->req.need > TURN_BYTES ? qp->req.need : TURN_BYTES;
        if (promised && promised + qp->req.need > e->cfg.total_bytes)
            break;
        promised += turn;
        qp->req.turn = turn;
        list_del(&qp->starved);
        engine_kick(qp);
    }
}

void budget_give(struct qp *qp, uint32_t bytes)
{
    struct requester *r = &qp->req;

    if (bytes > r->charged)
        bytes = r->charged;
    r->charged -= bytes;
    qp->e->charged -= bytes;
    qp->e->gives++;
    if (unlikely(!list_empty(&qp->e->starved)))
        wake(qp->e);
}

static bool fits(const struct qp *qp, uint32_t bytes)
{
    const struct qp_engine *e = qp->e;

    if (!e->charged || qp->req.starved_long)
        return true;
    return e->charged + bytes <= e->cfg.total_bytes && (list_empty(&e->starved) || qp->req.turn >= bytes);
}

bool budget_allows(struct qp *qp, uint64_t now, uint32_t bytes)
{
    struct qp_engine *e = qp->e;
    struct requester *r = &qp->req;

    if (likely(!e->cfg.total_bytes) || qp->far_on)
        return true;
    if (fits(qp, bytes)) {
        r->starve_until = QP_NEVER;
        r->starved_long = false;
        list_del(&qp->starved);
        return true;
    }
    r->turn = 0;
    r->need = bytes;
    if (list_empty(&qp->starved))
        list_push_back(&e->starved, &qp->starved);
    if (r->starve_until == QP_NEVER) {
        r->starve_until = now + QP_STARVE_NS;
        r->gives_seen = e->gives;
    }
    return false;
}

bool budget_low(const struct qp *qp)
{
    const struct qp_engine *e = qp->e;

    if (likely(!e->cfg.total_bytes) || qp->far_on)
        return false;
    return e->charged + 2 * qp->mtu > e->cfg.total_bytes || (!list_empty(&e->starved) && qp->req.turn < qp->mtu);
}

uint64_t budget_room(const struct qp *qp)
{
    const struct qp_engine *e = qp->e;
    uint64_t room, margin = 3 * (uint64_t)qp->mtu;

    if (likely(!e->cfg.total_bytes) || qp->far_on)
        return UINT64_MAX;
    room = e->charged < e->cfg.total_bytes ? e->cfg.total_bytes - e->charged : 0;
    if (!list_empty(&e->starved))
        room = min_u64(room, qp->req.turn);
    return room > margin ? room - margin : 0;
}

/* It waited long: on, if the others got on meanwhile. */
void budget_timeout(struct qp *qp, uint64_t now)
{
    struct requester *r = &qp->req;

    if (r->gives_seen != qp->e->gives) {
        r->gives_seen = qp->e->gives;
        r->starve_until = now + QP_STARVE_NS;
        return;
    }
    r->starve_until = QP_NEVER;
    r->starved_long = true;
    engine_kick(qp);
}

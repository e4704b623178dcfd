/* The end: ESTABLISHED, DREQ_SENT, TIMEWAIT, refusals, and ids that their owner gives up. */
#include "impl.h"

void cm_enter(struct cm_id *id, enum cm_state state)
{
    id->state = state;
    if (state != CM_CLOSED)
        return;
    cm_timer_set(id, UINT64_MAX);
    cm_table_forget_peer(id);
    id->has_mad = false;
    list_del(&id->out);
    cm_unbind(id);
    if (!id->owned)
        cm_table_free(id);
}

void cm_enter_timewait(struct cm_id *id, uint64_t hold_ns)
{
    cm_enter(id, CM_TIMEWAIT);
    cm_timer_set(id, id->e->now + hold_ns);
}

/* Sends a DREQ, now and again. */
void cm_close_now(struct cm_id *id, const void *private_data, uint8_t len)
{
    id->tid = rng_u64(&id->e->rng);
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_DREQ);
    m.dreq.qpn = id->remote_qpn;
    if (cm_msg_private(&m, 0, private_data, len))
        return;
    cm_msg_put(id, &m);
    cm_enter(id, CM_DREQ_SENT);
    cm_send_repeated(id);
}

int cm_disconnect(struct cm_id *id, uint64_t now, const void *private_data, uint8_t len)
{
    id->e->now = now;
    if (len > WIRE_CM_DREQ_PRIVATE || (len && !private_data))
        return -EINVAL;
    if (id->state == CM_DREQ_SENT || id->state == CM_TIMEWAIT || (id->state == CM_CLOSED && id->tell_exit))
        return 0;
    if (id->state != CM_ESTABLISHED)
        return -EINVAL;
    cm_close_now(id, private_data, len);
    return 0;
}

/* The connection is over for the program. */
static void over(struct cm_id *id, int status, const struct wire_cm *m)
{
    id->tell_exit = true;
    cm_tell(id, UROCE_CM_DISCONNECTED, status, m);
    cm_enter_timewait(id, CM_TIMEWAIT_NS);
}

void cm_established(struct cm_id *id, const struct cm_msg *msg)
{
    const struct wire_cm *m = &msg->m;

    switch (m->attr) {
    case WIRE_CM_REP: /* our RTU was lost */
        id->e->st.duplicates++;
        cm_send_again(id);
        break;
    case WIRE_CM_DREQ:
        if (m->dreq.qpn != id->local_qpn) {
            id->e->st.dropped++;
            break;
        }
        cm_reply_drep(id->e, msg);
        id->has_mad = false;
        over(id, 0, m);
        break;
    case WIRE_CM_REJ: /* the peer has no such connection (any more) */
        id->has_mad = false;
        over(id, 0, NULL);
        break;
    default:
        id->e->st.duplicates++;
    }
}

void cm_dreq_sent(struct cm_id *id, const struct cm_msg *msg)
{
    switch (msg->m.attr) {
    case WIRE_CM_DREQ:
        cm_reply_drep(id->e, msg);
        __attribute__((fallthrough));
    case WIRE_CM_DREP:
    case WIRE_CM_REJ:
        id->has_mad = false;
        over(id, 0, msg->m.attr == WIRE_CM_DREP ? &msg->m : NULL);
        break;
    default: /* a peer that still waits for our RTU learns of the end by the DREQ */
        id->e->st.duplicates++;
    }
}

void cm_dreq_sent_late(struct cm_id *id)
{
    if (cm_send_next(id, CM_DREQ_TRIES))
        return;
    id->has_mad = false;
    over(id, -ETIMEDOUT, NULL);
}

void cm_timewait(struct cm_id *id, const struct cm_msg *msg)
{
    id->e->st.duplicates++;
    if (msg->m.attr == WIRE_CM_DREQ)
        cm_reply_drep(id->e, msg);
    else if (msg->m.attr == WIRE_CM_REP || msg->m.attr == WIRE_CM_RTU)
        cm_send_again(id); /* the refusal, if it was one: it was lost */
}

void cm_timewait_late(struct cm_id *id)
{
    if (id->tell_exit)
        cm_tell(id, UROCE_CM_TIMEWAIT_EXIT, 0, NULL);
    cm_enter(id, CM_CLOSED);
}

/* ---- refusals ---- */

void cm_reject_with(struct cm_id *id, uint8_t answered, uint16_t reason, const void *private_data, uint8_t len)
{
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_REJ);

    m.rej.answered = answered;
    m.rej.reason = reason;
    (void)cm_msg_private(&m, 0, private_data, len);
    cm_msg_put(id, &m);
    cm_send_again(id);
}

int cm_reject(struct cm_id *id, uint64_t now, uint16_t reason, const void *private_data, uint8_t len)
{
    bool sidr = id->state == CM_SIDR_REQ_RCVD;

    id->e->now = now;
    if (len > (sidr ? WIRE_CM_SIDR_REP_PRIVATE : WIRE_CM_REJ_PRIVATE) || (len && !private_data))
        return -EINVAL;
    if (sidr) {
        struct uroce_cm_param p = {.private_data = private_data, .private_len = len};
        cm_sidr_answer(id, WIRE_CM_SIDR_REJECTED, &p);
        return 0;
    }
    if (id->state != CM_REQ_RCVD && id->state != CM_REP_SENT && id->state != CM_REP_RCVD)
        return -EINVAL;
    cm_taken(id);
    cm_reject_with(id,
                   id->state == CM_REQ_RCVD   ? WIRE_CM_ANSWERED_REQ
                   : id->state == CM_REP_RCVD ? WIRE_CM_ANSWERED_REP
                                              : WIRE_CM_ANSWERED_OTHER,
                   reason, private_data, len);
    cm_enter_timewait(id, CM_ANSWER_HOLD_NS);
    return 0;
}

/* ---- the owner goes ---- */

/* What the peer has to know. True: something is, and a record of it stays while it may ask again. */
static bool part(struct cm_id *id, uint64_t now)
{
    switch (id->state) {
    case CM_REQ_SENT: {
        struct wire_cm m = cm_msg_begin(id, WIRE_CM_REJ);
        m.rej.reason = WIRE_CM_REJ_TIMEOUT;
        cm_reply_mad(id->e, &id->path, &m);
        return false;
    }
    case CM_REQ_RCVD:
    case CM_REP_SENT:
    case CM_REP_RCVD:
    case CM_SIDR_REQ_RCVD:
        (void)cm_reject(id, now, WIRE_CM_REJ_CONSUMER, NULL, 0);
        return true;
    case CM_ESTABLISHED:
        cm_close_now(id, NULL, 0);
        return true;
    case CM_DREQ_SENT:
    case CM_TIMEWAIT:
        return true;
    case CM_SIDR_DONE:
        return id->has_mad; /* until the peer's last repetition is over */
    default:
        return false;
    }
}

void cm_id_free(struct cm_id *id, uint64_t now)
{
    id->e->now = now;
    id->owned = false;
    id->user = NULL;
    cm_unbind(id);
    if (!part(id, now))
        cm_table_free(id);
}

void cm_leave(struct cm_engine *e, uint64_t now)
{
    e->now = now;
    list_for_each (it, &e->all)
        (void)part(list_entry(it, struct cm_id, all), now);
}

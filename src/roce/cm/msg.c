/* Messages out, events out. */
#include "impl.h"

void cm_msg_put(struct cm_id *id, const struct wire_cm *m)
{
    id->has_mad = wire_cm_encode(m, id->mad) == 0;
}

struct wire_cm cm_msg_begin(const struct cm_id *id, enum wire_cm_attr attr)
{
    return (struct wire_cm){.attr = attr, .tid = id->tid, .local_id = id->local_id, .remote_id = id->remote_id};
}

int cm_msg_private(struct wire_cm *m, size_t skip, const void *data, size_t len)
{
    if (len > wire_cm_private_bytes(m->attr) - skip || (len && !data))
        return -EINVAL;
    if (len)
        memcpy(m->private_data + skip, data, len);
    return 0;
}

void cm_reply_mad(struct cm_engine *e, const struct cm_path *path, const struct wire_cm *m)
{
    if (e->nreplies == CM_REPLIES) {
        e->st.dropped++;
        return;
    }
    struct reply *r = &e->replies[(e->reply_head + e->nreplies) % CM_REPLIES];
    r->path = *path;
    if (!wire_cm_encode(m, r->mad))
        e->nreplies++;
}

void cm_reply_rej_info(struct cm_engine *e, const struct cm_msg *msg, uint8_t answered, uint16_t reason,
                       const uint8_t *info, uint8_t len)
{
    struct wire_cm m = {
        .attr = WIRE_CM_REJ, .tid = msg->m.tid, .local_id = msg->m.remote_id, .remote_id = msg->m.local_id};

    m.rej.answered = answered;
    m.rej.reason = reason;
    m.rej.info_len = len;
    if (len)
        memcpy(m.rej.info, info, len);
    e->st.refused++;
    cm_reply_mad(e, msg->path, &m);
}

void cm_reply_rej(struct cm_engine *e, const struct cm_msg *msg, uint8_t answered, uint16_t reason)
{
    cm_reply_rej_info(e, msg, answered, reason, NULL, 0);
}

void cm_reply_drep(struct cm_engine *e, const struct cm_msg *msg)
{
    struct wire_cm m = {
        .attr = WIRE_CM_DREP, .tid = msg->m.tid, .local_id = msg->m.remote_id, .remote_id = msg->m.local_id};

    cm_reply_mad(e, msg->path, &m);
}

void cm_reply_busy(struct cm_engine *e, const struct cm_msg *msg)
{
    struct wire_cm m = {.attr = WIRE_CM_MRA, .tid = msg->m.tid, .remote_id = msg->m.local_id};

    m.mra.answered = WIRE_CM_ANSWERED_REQ;
    m.mra.service_timeout = CM_BUSY_TIMEOUT;
    cm_reply_mad(e, msg->path, &m);
}

void cm_reply_mra(const struct cm_id *id, uint8_t answered)
{
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_MRA);

    m.mra.answered = answered;
    m.mra.service_timeout = CM_RESPONSE_TIMEOUT;
    cm_reply_mad(id->e, &id->path, &m);
}

/* ---- events ---- */

bool cm_tell_event(struct cm_id *id, struct cm_id *listener, struct uroce_cm_event *ev, const struct wire_cm *m,
                   size_t skip)
{
    struct cm_engine *e = id->e;

    if (m && skip < wire_cm_private_bytes(m->attr)) {
        ev->private_len = (uint8_t)(wire_cm_private_bytes(m->attr) - skip);
        memcpy(ev->private_data, m->private_data + skip, ev->private_len);
    }
    if (!id->owned || !e->ops.event)
        return true;
    return e->ops.event(e->cfg.ctx, id, listener, ev);
}

bool cm_tell(struct cm_id *id, enum uroce_cm_event_type type, int status, const struct wire_cm *m)
{
    struct uroce_cm_event ev = {.type = type, .status = status};

    return cm_tell_event(id, NULL, &ev, m, 0);
}

/* Service id resolution: which queue pair a datagram service has. */
#include "impl.h"

static void refuse(struct cm_engine *e, const struct cm_msg *msg, uint8_t status)
{
    struct wire_cm m = {.attr = WIRE_CM_SIDR_REP, .tid = msg->m.tid, .local_id = msg->m.local_id};

    m.sidr_rep.service_id = msg->m.sidr_req.service_id;
    m.sidr_rep.status = status;
    e->st.refused++;
    cm_reply_mad(e, msg->path, &m);
}

static void request(struct cm_engine *e, struct cm_id *listener, const struct cm_msg *msg, const struct wire_cma *head)
{
    struct uroce_cm_event ev = {.type = UROCE_CM_CONNECT_REQUEST,
                                .qp_type = UROCE_QPT_UD,
                                .ece = {.options = msg->m.attr_mod},
                                .ah = {.dgid = msg->path->remote, .hop_limit = msg->path->hop_limit}};
    struct cm_id *id = cm_request_new(e, listener, msg, msg->m.sidr_req.service_id, head);

    if (!id) {
        refuse(e, msg, WIRE_CM_SIDR_REJECTED);
        return;
    }
    id->state = CM_SIDR_REQ_RCVD;
    if (cm_tell_event(id, listener, &ev, &msg->m, WIRE_CMA_BYTES))
        return;
    refuse(e, msg, WIRE_CM_SIDR_REJECTED);
    cm_table_free(id);
}

void cm_sidr_request(struct cm_engine *e, const struct cm_msg *msg)
{
    struct cm_id *id = cm_table_remote(e, msg->path, msg->m.local_id, true), *listener;
    struct wire_cma head;

    if (id) {
        e->st.duplicates++;
        cm_send_again(id);
        return;
    }
    if (!wire_cma_space(msg->m.sidr_req.service_id) || wire_cma_decode(msg->m.private_data, &head) ||
        memcmp(&head.src, &msg->path->remote, 16) || memcmp(&head.dst, &msg->path->local, 16) ||
        !(listener = cm_bind_find(e, msg->m.sidr_req.service_id, &msg->path->local))) {
        refuse(e, msg, WIRE_CM_SIDR_UNSUPPORTED);
        return;
    }
    if (listener->waiting >= listener->backlog)
        e->st.dropped++; /* it comes again */
    else
        request(e, listener, msg, &head);
}

void cm_sidr_answer(struct cm_id *id, uint8_t status, const struct uroce_cm_param *p)
{
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_SIDR_REP);

    m.local_id = id->remote_id;
    m.remote_id = 0;
    m.attr_mod = p->ece.options;
    m.sidr_rep.service_id = id->service_id;
    m.sidr_rep.qpn = p->qp_num;
    m.sidr_rep.qkey = p->qkey;
    m.sidr_rep.vendor_id = p->ece.vendor_id;
    m.sidr_rep.status = status;
    (void)cm_msg_private(&m, 0, p->private_data, p->private_len);
    cm_taken(id);
    cm_msg_put(id, &m);
    cm_send_again(id);
    cm_enter(id, CM_SIDR_DONE);
    cm_timer_set(id, id->e->now + CM_ANSWER_HOLD_NS);
}

void cm_sidr_req_sent(struct cm_id *id, const struct cm_msg *msg)
{
    const struct wire_cm *m = &msg->m;
    struct uroce_cm_event ev = {
        .type = UROCE_CM_ESTABLISHED,
        .qp_num = m->sidr_rep.qpn,
        .qkey = m->sidr_rep.qkey,
        .ece = {.vendor_id = m->sidr_rep.vendor_id, .options = m->attr_mod},
        .ah = {.dgid = msg->path->remote, .hop_limit = id->path.hop_limit, .traffic_class = id->path.traffic_class}};

    if (m->attr != WIRE_CM_SIDR_REP || m->sidr_rep.service_id != id->service_id) {
        id->e->st.dropped++;
        return;
    }
    if (m->sidr_rep.status == WIRE_CM_SIDR_UNSUPPORTED && cm_refused(id))
        return;
    if (m->sidr_rep.status != WIRE_CM_SIDR_OK) {
        ev.type = UROCE_CM_UNREACHABLE;
        ev.status = m->sidr_rep.status;
    }
    id->remote_qpn = m->sidr_rep.qpn;
    id->remote_ece = ev.ece;
    cm_tell_event(id, NULL, &ev, m, 0);
    cm_enter(id, CM_CLOSED);
}

void cm_sidr_req_sent_late(struct cm_id *id)
{
    if (cm_send_next(id, CM_TRIES))
        return;
    cm_tell(id, UROCE_CM_UNREACHABLE, -ETIMEDOUT, NULL);
    cm_enter(id, CM_CLOSED);
}

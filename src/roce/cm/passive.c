/* The side that is connected to: a REQ that comes, REQ_RCVD, REP_SENT. */
#include "impl.h"

/* A REQ that came before. */
static void again(struct cm_id *id)
{
    id->e->st.duplicates++;
    switch (id->state) {
    case CM_REQ_RCVD:
        cm_reply_mra(id, WIRE_CM_ANSWERED_REQ);
        break;
    case CM_REP_SENT:
    case CM_TIMEWAIT: /* the refusal, if it was one */
        cm_send_again(id);
        break;
    default: /* ESTABLISHED: the RTU was there, this REQ is late */
        break;
    }
}

/* The peer has started anew with this queue pair: what we believe of it is over. */
static void stale(struct cm_id *old, const struct cm_msg *msg)
{
    cm_reply_rej(old->e, msg, WIRE_CM_ANSWERED_REQ, WIRE_CM_REJ_STALE);
    if (old->state == CM_ESTABLISHED)
        cm_close_now(old, NULL, 0);
}

/* 0, or the reason why it is refused; *ret_info: with it. */
static uint16_t check(const struct cm_msg *msg, struct wire_cma *ret_head, uint8_t *ret_info)
{
    const struct wire_cm_req *q = &msg->m.req;

    if (q->transport == WIRE_CM_RD || (q->transport == WIRE_CM_EXTENDED && q->ext_transport != 1))
        return WIRE_CM_REJ_TRANSPORT;
    if (!wire_cma_space(q->service_id))
        return WIRE_CM_REJ_SERVICE_ID;
    /* It comes from where it says that the connection shall go. */
    if (memcmp(&q->primary.local_gid, &msg->path->remote, 16) || memcmp(&q->primary.remote_gid, &msg->path->local, 16))
        return WIRE_CM_REJ_GID;
    if (wire_cma_decode(msg->m.private_data, ret_head))
        return WIRE_CM_REJ_UNSUPPORTED;
    if (memcmp(&ret_head->src, &msg->path->remote, 16) || memcmp(&ret_head->dst, &msg->path->local, 16))
        return WIRE_CM_REJ_GID;
    if (q->mtu < UROCE_MTU_256 || q->mtu > msg->mtu) {
        *ret_info = msg->mtu;
        return WIRE_CM_REJ_MTU;
    }
    return 0;
}

struct cm_id *cm_request_new(struct cm_engine *e, struct cm_id *listener, const struct cm_msg *msg, uint64_t service_id,
                             const struct wire_cma *head)
{
    struct cm_id *id = cm_table_new(e, listener->space);

    if (!id)
        return NULL;
    id->path = *msg->path;
    id->local = (struct uroce_cm_addr){.gid = msg->path->local, .port = (uint16_t)service_id};
    id->remote = (struct uroce_cm_addr){.gid = msg->path->remote, .port = head->src_port};
    id->routed = true;
    id->tid = msg->m.tid;
    id->service_id = service_id;
    cm_table_set_remote(id, msg->m.local_id);
    id->listener = listener;
    listener->waiting++;
    list_push_back(&listener->children, &id->child_link);
    return id;
}

static enum uroce_qp_type type_of(const struct wire_cm_req *q)
{
    return q->transport == WIRE_CM_RC ? UROCE_QPT_RC : q->transport == WIRE_CM_UC ? UROCE_QPT_UC : UROCE_QPT_XRC_RECV;
}

static void fill(struct cm_id *id, const struct cm_msg *msg)
{
    const struct wire_cm_req *q = &msg->m.req;

    id->path.traffic_class = q->primary.traffic_class;
    id->remote_psn = q->psn;
    id->local_psn = (uint32_t)rng_below(&id->e->rng, 1u << 24);
    id->mtu = q->mtu;
    id->responder_resources = q->initiator_depth;
    id->initiator_depth = q->responder_resources;
    id->retry_count = q->retry_count;
    id->rnr_retry_count = q->rnr_retry_count;
    id->ack_timeout = q->primary.ack_timeout;
    id->remote_ece = (struct uroce_cm_ece){.vendor_id = q->vendor_id, .options = msg->m.attr_mod};
    cm_table_set_qpn(id, q->ca_guid, q->qpn);
}

static void request(struct cm_engine *e, struct cm_id *listener, const struct cm_msg *msg, const struct wire_cma *head)
{
    const struct wire_cm_req *q = &msg->m.req;
    struct cm_id *id;
    struct uroce_cm_event ev = {
        .type = UROCE_CM_CONNECT_REQUEST,
        .qp_num = q->qpn,
        .responder_resources = q->initiator_depth,
        .initiator_depth = q->responder_resources,
        .flow_control = q->flow_control,
        .retry_count = q->retry_count,
        .rnr_retry_count = q->rnr_retry_count,
        .srq = q->srq,
        .qp_type = type_of(q),
        .ece = {.vendor_id = q->vendor_id, .options = msg->m.attr_mod},
    };

    if (listener->waiting >= listener->backlog) { /* it comes again, as often as that takes */
        e->st.dropped++;
        cm_reply_busy(e, msg);
        return;
    }
    id = cm_request_new(e, listener, msg, q->service_id, head);
    if (!id) {
        cm_reply_rej(e, msg, WIRE_CM_ANSWERED_REQ, WIRE_CM_REJ_NO_RESOURCES);
        return;
    }
    fill(id, msg);
    id->state = CM_REQ_RCVD;
    if (cm_tell_event(id, listener, &ev, &msg->m, WIRE_CMA_BYTES))
        return;
    cm_reply_rej(e, msg, WIRE_CM_ANSWERED_REQ, WIRE_CM_REJ_NO_RESOURCES);
    cm_table_free(id);
}

void cm_passive_req(struct cm_engine *e, const struct cm_msg *msg)
{
    const struct wire_cm_req *q = &msg->m.req;
    struct cm_id *id = cm_table_remote(e, msg->path, msg->m.local_id, false);
    struct wire_cma head;
    uint8_t mtu = 0;

    if (id && id->remote_qpn == q->qpn && id->remote_guid == q->ca_guid && id->service_id == q->service_id) {
        again(id);
        return;
    }
    if (!id && q->qpn)
        id = cm_table_qpn(e, msg->path, q->ca_guid, q->qpn);
    if (id && id->state != CM_TIMEWAIT) {
        stale(id, msg);
        return;
    }
    uint16_t reason = check(msg, &head, &mtu);
    struct cm_id *listener = reason ? NULL : cm_bind_find(e, q->service_id, &msg->path->local);
    if (!reason && !listener)
        reason = WIRE_CM_REJ_SERVICE_ID;
    if (reason)
        cm_reply_rej_info(e, msg, WIRE_CM_ANSWERED_REQ, reason, &mtu, mtu != 0);
    else
        request(e, listener, msg, &head);
}

void cm_taken(struct cm_id *id)
{
    if (!id->listener)
        return;
    list_del(&id->child_link);
    id->listener->waiting--;
    id->listener = NULL;
}

static int put_rep(struct cm_id *id, const struct uroce_cm_param *p)
{
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_REP);
    int r = cm_msg_private(&m, 0, p->private_data, p->private_len);

    if (r)
        return r;
    m.attr_mod = p->ece.options;
    m.rep = (struct wire_cm_rep){
        .qpn = p->qp_num,
        .psn = id->local_psn,
        .vendor_id = p->ece.vendor_id,
        .responder_resources = p->responder_resources,
        .initiator_depth = p->initiator_depth,
        .rnr_retry_count = p->rnr_retry_count,
        .flow_control = p->flow_control,
        .srq = p->srq,
        .ca_guid = id->e->cfg.ca_guid,
    };
    cm_msg_put(id, &m);
    return 0;
}

int cm_accept(struct cm_id *id, uint64_t now, const struct uroce_cm_param *p)
{
    if (p->rnr_retry_count > 7 || p->qp_num > UROCE_QPN_MAX || p->ece.vendor_id > 0xffffff)
        return -EINVAL;
    id->e->now = now;
    if (id->state == CM_SIDR_REQ_RCVD) {
        if (p->private_len > WIRE_CM_SIDR_REP_PRIVATE || (p->private_len && !p->private_data))
            return -EINVAL;
        cm_sidr_answer(id, WIRE_CM_SIDR_OK, p);
        return 0;
    }
    if (id->state != CM_REQ_RCVD)
        return -EINVAL;
    int r = put_rep(id, p);
    if (r)
        return r;
    cm_taken(id);
    id->local_qpn = p->qp_num;
    id->responder_resources = p->responder_resources;
    id->initiator_depth = p->initiator_depth;
    cm_enter(id, CM_REP_SENT);
    cm_send_repeated(id);
    return 0;
}

void cm_req_rcvd(struct cm_id *id, const struct cm_msg *msg)
{
    if (msg->m.attr != WIRE_CM_REJ) { /* the peer has given up */
        id->e->st.dropped++;
        return;
    }
    cm_taken(id);
    cm_tell(id, UROCE_CM_REJECTED, msg->m.rej.reason, &msg->m);
    cm_enter_timewait(id, CM_TIMEWAIT_NS);
}

static void ready(struct cm_id *id, const struct wire_cm *m)
{
    cm_timer_set(id, UINT64_MAX);
    id->has_mad = false;
    cm_enter(id, CM_ESTABLISHED);
    struct uroce_cm_event ev = {.type = UROCE_CM_ESTABLISHED, .qp_num = id->remote_qpn};
    ev.responder_resources = id->responder_resources;
    ev.initiator_depth = id->initiator_depth;
    ev.ece = id->remote_ece;
    cm_tell_event(id, NULL, &ev, m, 0);
}

void cm_rep_sent(struct cm_id *id, const struct cm_msg *msg)
{
    const struct wire_cm *m = &msg->m;

    switch (m->attr) {
    case WIRE_CM_RTU:
        ready(id, m);
        break;
    case WIRE_CM_MRA:
        if (m->mra.answered == WIRE_CM_ANSWERED_REP) {
            id->tries = 0;
            cm_timer_set(id, id->e->now + min_u64(4096ull << m->mra.service_timeout, CM_MRA_WAIT_MAX_NS));
        }
        break;
    case WIRE_CM_REJ:
        id->has_mad = false;
        cm_tell(id, UROCE_CM_REJECTED, m->rej.reason, m);
        cm_enter_timewait(id, CM_TIMEWAIT_NS);
        break;
    case WIRE_CM_DREQ: /* it was ready, its RTU is lost */
        if (m->dreq.qpn == id->local_qpn) {
            ready(id, NULL);
            cm_established(id, msg);
        }
        break;
    default:
        id->e->st.dropped++;
    }
}

void cm_rep_sent_late(struct cm_id *id)
{
    if (cm_send_next(id, CM_TRIES))
        return;
    cm_reject_with(id, WIRE_CM_ANSWERED_OTHER, WIRE_CM_REJ_TIMEOUT, NULL, 0);
    cm_tell(id, UROCE_CM_UNREACHABLE, -ETIMEDOUT, NULL);
    cm_enter_timewait(id, CM_ANSWER_HOLD_NS);
}

int cm_establish(struct cm_id *id, uint64_t now, const void *private_data, uint8_t len)
{
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_RTU);

    id->e->now = now;
    if (id->state == CM_REP_SENT) {
        ready(id, NULL);
        return 0;
    }
    if (id->state == CM_ESTABLISHED && !id->active)
        return 0;
    if (id->state != CM_REP_RCVD || cm_msg_private(&m, 0, private_data, len))
        return -EINVAL;
    cm_msg_put(id, &m);
    cm_enter(id, CM_ESTABLISHED);
    cm_send_again(id);
    return 0;
}

/* The side that connects: REQ_SENT, REP_RCVD. */
#include "impl.h"

static bool param_ok(const struct uroce_cm_param *p)
{
    return p->retry_count <= 7 && p->rnr_retry_count <= 7 && p->qp_num <= UROCE_QPN_MAX &&
           p->ece.vendor_id <= 0xffffff && (!p->private_len || p->private_data);
}

static int transport_of(enum uroce_qp_type type, struct wire_cm_req *q)
{
    switch ((int)type) {
    case 0:
    case UROCE_QPT_RC:
        q->transport = WIRE_CM_RC;
        return 0;
    case UROCE_QPT_UC:
        q->transport = WIRE_CM_UC;
        return 0;
    case UROCE_QPT_XRC_SEND:
        q->transport = WIRE_CM_EXTENDED;
        q->ext_transport = 1;
        return 0;
    }
    return -EINVAL;
}

int cm_route(struct cm_id *id, const struct cm_path *path, uint16_t remote_port)
{
    if (id->state != CM_IDLE || (id->bound && !id->any && memcmp(&id->local.gid, &path->local, 16)))
        return -EINVAL;
    id->local.gid = path->local;
    if (!id->bound) {
        int r = cm_bind_any_port(id);
        if (r)
            return r;
    }
    id->any = false;
    id->path = *path;
    id->remote = (struct uroce_cm_addr){.gid = path->remote, .port = remote_port};
    id->routed = true;
    return 0;
}

/* The addresses in front of the program's private data. */
static int put_head(const struct cm_id *id, struct wire_cm *m, const struct uroce_cm_param *p)
{
    struct wire_cma h = {.src = id->path.local,
                         .dst = id->path.remote,
                         .src_port = id->local.port,
                         .v4 = wire_gid_is_v4(&id->path.local)};
    int r = wire_cma_encode(&h, m->private_data);

    return r ? r : cm_msg_private(m, WIRE_CMA_BYTES, p->private_data, p->private_len);
}

static struct wire_cm_path path_of(const struct cm_id *id)
{
    return (struct wire_cm_path){
        .local_lid = 0xffff,
        .remote_lid = 0xffff,
        .local_gid = id->path.local,
        .remote_gid = id->path.remote,
        .rate = 3, /* 10 Gbit/s: nobody looks at it on RoCE, but it must be one that there is */
        .traffic_class = id->path.traffic_class,
        .hop_limit = id->path.hop_limit,
        .ack_timeout = id->ack_timeout,
    };
}

static int put_req(struct cm_id *id, const struct uroce_cm_param *p)
{
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_REQ);
    int r;

    m.attr_mod = p->ece.options;
    m.req = (struct wire_cm_req){
        .service_id = id->service_id,
        .ca_guid = id->e->cfg.ca_guid,
        .qpn = p->qp_num,
        .psn = id->local_psn,
        .vendor_id = p->ece.vendor_id,
        .responder_resources = p->responder_resources,
        .initiator_depth = p->initiator_depth,
        .remote_response_timeout = CM_RESPONSE_TIMEOUT,
        .local_response_timeout = CM_RESPONSE_TIMEOUT,
        .retry_count = p->retry_count,
        .rnr_retry_count = p->rnr_retry_count,
        .mtu = id->mtu,
        .max_cm_retries = CM_MAX_RETRIES,
        .flow_control = p->flow_control,
        .srq = p->srq,
        .pkey = 0xffff,
        .primary = path_of(id),
    };
    r = transport_of(p->qp_type, &m.req);
    if (!r)
        r = put_head(id, &m, p);
    if (!r)
        cm_msg_put(id, &m);
    return r;
}

static int put_sidr_req(struct cm_id *id, const struct uroce_cm_param *p)
{
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_SIDR_REQ);
    int r;

    m.attr_mod = p->ece.options;
    m.sidr_req.service_id = id->service_id;
    m.sidr_req.pkey = 0xffff;
    r = put_head(id, &m, p);
    if (!r)
        cm_msg_put(id, &m);
    return r;
}

int cm_connect(struct cm_id *id, uint64_t now, const struct uroce_cm_param *p, uint8_t mtu, uint8_t ack_timeout)
{
    struct cm_engine *e = id->e;
    bool sidr = id->space == UROCE_CM_UDP || id->space == UROCE_CM_IPOIB;
    int r;

    if (id->state != CM_IDLE || !id->routed || !param_ok(p) || ack_timeout > 31)
        return -EINVAL;
    e->now = now;
    id->active = true;
    id->tid = rng_u64(&e->rng);
    id->local_psn = (uint32_t)rng_below(&e->rng, 1u << 24);
    id->local_qpn = p->qp_num;
    id->mtu = mtu;
    id->ack_timeout = ack_timeout;
    id->responder_resources = p->responder_resources;
    id->initiator_depth = p->initiator_depth;
    id->retry_count = p->retry_count;
    id->service_id = wire_cma_service_id((uint16_t)id->space, id->remote.port);
    r = sidr ? put_sidr_req(id, p) : put_req(id, p);
    if (r)
        return r;
    cm_enter(id, sidr ? CM_SIDR_REQ_SENT : CM_REQ_SENT);
    cm_send_repeated(id);
    return 0;
}

/* The peer's link is narrower than ours: once more with what it takes. False: it does not say. */
static bool smaller_mtu(struct cm_id *id, const struct wire_cm *rej)
{
    struct wire_cm m;

    if (rej->rej.reason != WIRE_CM_REJ_MTU || rej->rej.info_len < 1 || rej->rej.info[0] < UROCE_MTU_256 ||
        rej->rej.info[0] >= id->mtu || wire_cm_decode(id->mad, sizeof id->mad, &m))
        return false;
    id->mtu = m.req.mtu = rej->rej.info[0];
    m.tid = id->tid = rng_u64(&id->e->rng);
    cm_msg_put(id, &m);
    cm_send_repeated(id);
    return true;
}

static void rep_came(struct cm_id *id, const struct cm_msg *msg)
{
    const struct wire_cm_rep *p = &msg->m.rep;
    struct cm_id *other = cm_table_qpn(id->e, msg->path, p->ca_guid, p->qpn);
    struct uroce_cm_event ev = {
        .type = UROCE_CM_CONNECT_RESPONSE,
        .qp_num = p->qpn,
        .qkey = p->qkey,
        .responder_resources = p->initiator_depth,
        .initiator_depth = p->responder_resources,
        .flow_control = p->flow_control,
        .retry_count = id->retry_count,
        .rnr_retry_count = p->rnr_retry_count,
        .srq = p->srq,
        .ece = {.vendor_id = p->vendor_id, .options = msg->m.attr_mod},
    };

    if (other && other->state != CM_TIMEWAIT) { /* its queue pair is ours already: it has forgotten that */
        cm_reply_rej(id->e, msg, WIRE_CM_ANSWERED_REP, WIRE_CM_REJ_STALE);
        return;
    }
    id->remote_id = msg->m.local_id;
    cm_table_set_qpn(id, p->ca_guid, p->qpn);
    id->remote_psn = p->psn;
    id->responder_resources = p->initiator_depth;
    id->initiator_depth = p->responder_resources;
    id->rnr_retry_count = p->rnr_retry_count;
    id->remote_ece = ev.ece;
    id->has_mad = false;
    cm_timer_set(id, UINT64_MAX);
    cm_enter(id, CM_REP_RCVD);
    cm_tell_event(id, NULL, &ev, &msg->m, 0);
}

bool cm_refused(struct cm_id *id)
{
    if (id->refused++ == CM_REFUSED_TRIES)
        return false;
    id->tries = 0;
    cm_timer_set(id, id->e->now + CM_REFUSED_WAIT_NS);
    return true;
}

void cm_req_sent(struct cm_id *id, const struct cm_msg *msg)
{
    const struct wire_cm *m = &msg->m;

    switch (m->attr) {
    case WIRE_CM_REP:
        rep_came(id, msg);
        break;
    case WIRE_CM_MRA:
        /* It lives: from the begin again after the wait. */
        if (m->mra.answered == WIRE_CM_ANSWERED_REQ) {
            id->tries = 0;
            uint64_t wait = min_u64(4096ull << m->mra.service_timeout, CM_MRA_WAIT_MAX_NS);
            /* Not all at the same time, if there are many. */
            cm_timer_set(id, id->e->now + wait + rng_below(&id->e->rng, wait / 2 + 1));
        }
        break;
    case WIRE_CM_REJ:
        if (smaller_mtu(id, m) || (m->rej.reason == WIRE_CM_REJ_SERVICE_ID && cm_refused(id)))
            break;
        cm_timer_set(id, UINT64_MAX);
        id->has_mad = false;
        cm_tell(id, UROCE_CM_REJECTED, m->rej.reason, m);
        cm_enter(id, CM_CLOSED);
        break;
    default:
        id->e->st.dropped++;
    }
}

/* The other side may have a record of us, by our id and GUID alone. */
static void tell_timeout(struct cm_id *id)
{
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_REJ);
    be64 guid = put_be64(id->e->cfg.ca_guid);

    m.rej.answered = WIRE_CM_ANSWERED_REQ;
    m.rej.reason = WIRE_CM_REJ_TIMEOUT;
    m.rej.info_len = sizeof guid;
    memcpy(m.rej.info, &guid, sizeof guid);
    cm_reply_mad(id->e, &id->path, &m);
}

void cm_req_sent_late(struct cm_id *id)
{
    if (cm_send_next(id, CM_TRIES))
        return;
    tell_timeout(id);
    cm_tell(id, UROCE_CM_UNREACHABLE, -ETIMEDOUT, NULL);
    cm_enter(id, CM_CLOSED);
}

void cm_rep_rcvd(struct cm_id *id, const struct cm_msg *msg)
{
    switch (msg->m.attr) {
    case WIRE_CM_REP: /* the program has not decided */
        id->e->st.duplicates++;
        cm_reply_mra(id, WIRE_CM_ANSWERED_REP);
        break;
    case WIRE_CM_REJ:
        cm_tell(id, UROCE_CM_REJECTED, msg->m.rej.reason, &msg->m);
        cm_enter(id, CM_CLOSED);
        break;
    case WIRE_CM_DREQ:
        cm_reply_drep(id->e, msg);
        cm_tell(id, UROCE_CM_DISCONNECTED, 0, &msg->m);
        cm_enter_timewait(id, CM_TIMEWAIT_NS);
        break;
    default:
        id->e->st.dropped++;
    }
}

/* The engine: messages in and out, the table of states, deadlines, what an id tells. */
#include "impl.h"

/* What a message and a deadline do in each state. NULL: the message is dropped. */
static const struct {
    const char *name;
    void (*message)(struct cm_id *id, const struct cm_msg *msg);
    void (*late)(struct cm_id *id);
} states[CM_STATES] = {
    [CM_IDLE] = {"IDLE", NULL, NULL},
    [CM_LISTEN] = {"LISTEN", NULL, NULL},
    [CM_REQ_SENT] = {"REQ_SENT", cm_req_sent, cm_req_sent_late},
    [CM_REQ_RCVD] = {"REQ_RCVD", cm_req_rcvd, NULL},
    [CM_REP_SENT] = {"REP_SENT", cm_rep_sent, cm_rep_sent_late},
    [CM_REP_RCVD] = {"REP_RCVD", cm_rep_rcvd, NULL},
    [CM_ESTABLISHED] = {"ESTABLISHED", cm_established, NULL},
    [CM_DREQ_SENT] = {"DREQ_SENT", cm_dreq_sent, cm_dreq_sent_late},
    [CM_TIMEWAIT] = {"TIMEWAIT", cm_timewait, cm_timewait_late},
    [CM_SIDR_REQ_SENT] = {"SIDR_REQ_SENT", cm_sidr_req_sent, cm_sidr_req_sent_late},
    [CM_SIDR_REQ_RCVD] = {"SIDR_REQ_RCVD", NULL, NULL},
    [CM_SIDR_DONE] = {"SIDR_DONE", NULL, NULL},
    [CM_CLOSED] = {"CLOSED", NULL, NULL},
};

const char *cm_state_name(enum cm_state s)
{
    return s < CM_STATES ? states[s].name : "?";
}

static struct list *new_buckets(void)
{
    struct list *l = malloc(CM_BUCKETS * sizeof *l);

    for (uint32_t i = 0; l && i < CM_BUCKETS; i++)
        list_init(&l[i]);
    return l;
}

int cm_new(const struct cm_config *cfg, struct cm_engine **ret)
{
    struct cm_engine *e = calloc(1, sizeof *e);

    if (!e)
        return -ENOMEM;
    e->cfg = *cfg;
    if (!e->cfg.max_ids)
        e->cfg.max_ids = CM_IDS_DEFAULT;
    if (cfg->ops)
        e->ops = *cfg->ops;
    rng_seed(&e->rng, cfg->seed);
    list_init(&e->all);
    list_init(&e->bound);
    list_init(&e->out);
    e->by_local = new_buckets();
    e->by_remote = new_buckets();
    e->by_qpn = new_buckets();
    e->replies = calloc(CM_REPLIES, sizeof *e->replies);
    if (!e->by_local || !e->by_remote || !e->by_qpn || !e->replies) {
        cm_free(e);
        return -ENOMEM;
    }
    *ret = e;
    return 0;
}

void cm_free(struct cm_engine *e)
{
    if (!e)
        return;
    while (!list_empty(&e->all))
        cm_table_free(list_entry(e->all.next, struct cm_id, all));
    free(e->by_local);
    free(e->by_remote);
    free(e->by_qpn);
    free(e->replies);
    free(e->heap);
    free(e);
}

/* ---- in ---- */

/* Whose message it is: by our number, from the peer that we know, with its number as far as we know that. */
static struct cm_id *find(const struct cm_engine *e, const struct cm_msg *msg)
{
    const struct wire_cm *m = &msg->m;
    uint32_t ours = m->attr == WIRE_CM_SIDR_REP ? m->local_id : m->remote_id;
    struct cm_id *id = cm_table_local(e, ours);

    if (!id && m->attr == WIRE_CM_REJ && !m->remote_id) /* the peer gave up before it knew our number */
        return cm_table_remote(e, msg->path, m->local_id, false);
    if (!id || !id->routed || !cm_same_way(&id->path, msg->path))
        return NULL;
    if (id->state == CM_REQ_SENT || id->state == CM_SIDR_REQ_SENT || m->local_id == id->remote_id)
        return id;
    /* A refusal of what has no number yet. */
    return m->attr == WIRE_CM_REJ && !m->local_id ? id : NULL;
}

static void unknown(struct cm_engine *e, const struct cm_msg *msg)
{
    if (msg->m.attr == WIRE_CM_REP)
        cm_reply_rej(e, msg, WIRE_CM_ANSWERED_REP, WIRE_CM_REJ_COMM_ID);
    else if (msg->m.attr == WIRE_CM_DREQ)
        cm_reply_drep(e, msg);
    else
        e->st.dropped++;
}

static void alternate_path(struct cm_id *id, const struct cm_msg *msg)
{
    struct wire_cm m = cm_msg_begin(id, WIRE_CM_APR);

    m.tid = msg->m.tid;
    m.apr.status = WIRE_CM_APR_UNSUPPORTED;
    cm_reply_mad(id->e, &id->path, &m);
}

static void dispatch(struct cm_engine *e, const struct cm_msg *msg)
{
    if (msg->m.attr == WIRE_CM_REQ) {
        cm_passive_req(e, msg);
        return;
    }
    if (msg->m.attr == WIRE_CM_SIDR_REQ) {
        cm_sidr_request(e, msg);
        return;
    }
    struct cm_id *id = find(e, msg);
    if (!id || (id->state == CM_CLOSED && (msg->m.attr == WIRE_CM_REP || msg->m.attr == WIRE_CM_DREQ)))
        unknown(e, msg);
    else if (msg->m.attr == WIRE_CM_LAP)
        alternate_path(id, msg);
    else if (states[id->state].message)
        states[id->state].message(id, msg);
    else
        e->st.dropped++;
}

void cm_rx(struct cm_engine *e, uint64_t now, const struct cm_path *path, uint8_t mtu, const void *mad, size_t len)
{
    struct cm_msg msg = {.path = path, .mtu = mtu};
    int r = wire_cm_decode(mad, len, &msg.m);

    e->now = now;
    e->st.received++;
    if (r == 0)
        dispatch(e, &msg);
    else if (r == -EPROTONOSUPPORT && msg.m.attr == WIRE_CM_REQ)
        cm_reply_rej(e, &msg, WIRE_CM_ANSWERED_REQ, WIRE_CM_REJ_CLASS_VERSION);
    else
        e->st.dropped++;
}

/* ---- out ---- */

bool cm_tx(struct cm_engine *e, uint64_t now, struct cm_tx *ret)
{
    e->now = now;
    if (e->nreplies) {
        const struct reply *r = &e->replies[e->reply_head];
        ret->path = r->path;
        memcpy(ret->mad, r->mad, sizeof ret->mad);
        e->reply_head = (e->reply_head + 1) % CM_REPLIES;
        e->nreplies--;
        e->st.sent++;
        return true;
    }
    struct list *l = list_pop_front(&e->out);
    if (!l)
        return false;
    struct cm_id *id = list_entry(l, struct cm_id, out);
    ret->path = id->path;
    memcpy(ret->mad, id->mad, sizeof ret->mad);
    e->st.sent++;
    return true;
}

static void sidr_done_late(struct cm_id *id)
{
    cm_timer_set(id, UINT64_MAX);
    cm_table_forget_peer(id);
    id->has_mad = false;
    if (!id->owned)
        cm_table_free(id);
}

void cm_tick(struct cm_engine *e, uint64_t now)
{
    e->now = now;
    while (e->nheap && e->heap[0]->deadline <= now) {
        struct cm_id *id = e->heap[0];
        if (id->state == CM_SIDR_DONE)
            sidr_done_late(id);
        else if (states[id->state].late)
            states[id->state].late(id);
        else
            cm_timer_set(id, UINT64_MAX);
    }
}

void cm_stats(const struct cm_engine *e, struct cm_stats *ret)
{
    *ret = e->st;
}

/* ---- ids ---- */

int cm_id_new(struct cm_engine *e, enum uroce_cm_space space, void *user, struct cm_id **ret)
{
    if (!wire_cma_space((uint64_t)space << 16))
        return -EINVAL;
    struct cm_id *id = cm_table_new(e, space);
    if (!id)
        return -ENFILE;
    id->user = user;
    *ret = id;
    return 0;
}

void cm_id_set_user(struct cm_id *id, void *user)
{
    id->user = user;
}

void *cm_id_user(const struct cm_id *id)
{
    return id->user;
}

int cm_qp(const struct cm_id *id, struct cm_qp *ret)
{
    if (id->state != CM_REQ_RCVD && id->state != CM_REP_SENT && id->state != CM_REP_RCVD && id->state != CM_ESTABLISHED)
        return -EINVAL;
    *ret = (struct cm_qp){
        .dest_qpn = id->remote_qpn,
        /* Whoever receives a message begins to send with the PSN in it (IBTA 12.7.31). */
        .rq_psn = id->local_psn,
        .sq_psn = id->remote_psn,
        .mtu = id->mtu,
        .responder_resources = id->responder_resources,
        .initiator_depth = id->initiator_depth,
        .retry_count = id->retry_count,
        .rnr_retry_count = id->rnr_retry_count,
        .ack_timeout = id->ack_timeout,
    };
    return 0;
}

void cm_info(const struct cm_id *id, struct cm_info *ret)
{
    *ret = (struct cm_info){
        .space = id->space,
        .state = cm_state_name(id->state),
        .local = id->local,
        .remote = id->remote,
        .path = id->path,
        .bound = id->bound,
        .routed = id->routed,
        .local_qpn = id->local_qpn,
        .remote_qpn = id->remote_qpn,
        .remote_ece = id->remote_ece,
    };
}

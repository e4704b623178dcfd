/* The engine: what comes in is given to its queue pair; queue pairs with something to send are served in turn. */
#include "impl.h"

/* Data may be sent in bursts that long, so that pacing does not need a tick per packet. */
#define PACE_BURST_NS 20000u

static void set_defaults(struct qp_engine_config *c)
{
    struct qp_dcqcn_config *d = &c->dcqcn;

#define DEFAULT(member, value)                                                                                         \
    if (!(member))                                                                                                     \
    (member) = (value)
    DEFAULT(c->max_qps, QP_NUM_END - QP_NUM_FIRST);
    DEFAULT(c->ud_mtu_bytes, WIRE_MTU_BYTES_MAX);
    DEFAULT(c->window_pkts, QP_WINDOW_PKTS);
    DEFAULT(c->window_bytes, QP_WINDOW_BYTES);
    DEFAULT(c->reorder_pkts, QP_REORDER_PKTS);
    DEFAULT(c->ack_every, QP_ACK_EVERY);
    DEFAULT(d->line_rate_bps, 10000000000ull);
    DEFAULT(d->min_rate_bps, d->line_rate_bps / 1000);
    DEFAULT(d->alpha_timer_us, 55);
    DEFAULT(d->rate_timer_us, 1500);
    DEFAULT(d->byte_counter, 10u << 20);
    DEFAULT(d->g_shift, 8);
    DEFAULT(d->rai_bps_m, 40);
    DEFAULT(d->rhai_bps_m, 400);
    DEFAULT(d->fast_recovery_stages, 5);
    DEFAULT(d->cnp_interval_us, 50);
#undef DEFAULT
}

int qp_engine_new(const struct qp_engine_config *cfg, struct qp_engine **ret)
{
    struct qp_engine *e;

    if (cfg->qpn_slot > 255 || cfg->max_qps > QP_NUM_END - QP_NUM_FIRST || cfg->window_pkts >= PSN_WINDOW_MAX / 2 ||
        cfg->reorder_pkts > QP_REORDER_PKTS_MAX || cfg->dcqcn.g_shift > 16 || cfg->ud_mtu_bytes > WIRE_MTU_BYTES_MAX ||
        (cfg->dcqcn.min_rate_bps && cfg->dcqcn.line_rate_bps < cfg->dcqcn.min_rate_bps))
        return -EINVAL;
    e = calloc(1, sizeof *e);
    if (!e)
        return -ENOMEM;
    e->cfg = *cfg;
    set_defaults(&e->cfg);
    if (cfg->ops)
        e->ops = *cfg->ops;
    rng_seed(&e->rng, cfg->seed);
    list_init(&e->all);
    list_init(&e->ready);
    list_init(&e->settle);
    list_init(&e->starved);
    list_init(&e->put_off);
    list_init(&e->parked);
    e->next_qpn = QP_NUM_FIRST + (uint32_t)rng_below(&e->rng, QP_NUM_END - QP_NUM_FIRST);
    e->qps = calloc(65536, sizeof(struct qp *)); /* untouched pages take no memory */
    e->mads = calloc(QP_MAD_QUEUE, sizeof *e->mads);
    e->bounce = malloc(QP_BOUNCE_BYTES);
    if (!e->qps || !e->mads || !e->bounce || heap_reserve(e, 1)) {
        (void)qp_engine_free(e);
        return -ENOMEM;
    }
    *ret = e;
    return 0;
}

int qp_engine_free(struct qp_engine *e)
{
    if (!e)
        return 0;
    if (e->objects)
        return -EBUSY;
    for (uint32_t i = 0; i < e->ngroups; i++)
        free(e->groups[i].qp);
    free(e->pool.buf);
    free(e->pool.free);
    free(e->groups);
    free(e->keys.slot);
    free(e->qps);
    free(e->heap);
    free(e->xrc_srqs);
    free(e->mads);
    free(e->bounce);
    free(e);
    return 0;
}

static struct qp *engine_find(const struct qp_engine *e, uint32_t qpn)
{
    if (qpn == WIRE_QPN_GSI)
        return e->qp1;
    return qpn >> 16 == e->cfg.qpn_slot ? e->qps[qpn & 0xffff] : NULL;
}

void engine_kick(struct qp *qp)
{
    if (list_empty(&qp->ready))
        list_push_back(&qp->e->ready, &qp->ready);
}

void engine_event(struct qp_engine *e, enum uroce_event_type type, void *user)
{
    if (e->ops.async_event)
        e->ops.async_event(e->cfg.ctx, type, user);
}

static bool overflown(const struct qp_cq *cq)
{
    return cq && atomic_load_explicit(&cq->overflow, memory_order_relaxed);
}

static void break_qps(struct qp_engine *e)
{
    e->cq_broken = false;
    list_for_each (it, &e->all) {
        struct qp *qp = list_entry(it, struct qp, all);
        if (!overflown(qp->send_cq) && !overflown(qp->recv_cq))
            continue;
        if (qp_state(qp) != UROCE_QPS_RESET && qp_state(qp) != UROCE_QPS_ERR) {
            engine_event(e, UROCE_EVENT_QP_FATAL, qp->user);
            qp_to_error(qp);
        }
    }
}

void engine_settle(struct qp_engine *e)
{
    struct list *l;

    while (unlikely((l = list_pop_front(&e->settle)) != NULL))
        comp_sent(list_entry(l, struct qp, settle));
    if (unlikely(e->cq_broken))
        break_qps(e);
}

void qp_engine_counters(const struct qp_engine *e, struct uroce_counters *ret)
{
    *ret = e->cnt;
}

/* ---- receive ---- */

static bool source_ok(const struct qp *qp, const struct qp_rx *rx)
{
    const struct qp_path *p = &qp->path;

    if (rx->pkt.far)
        return qp->has_peer_path && qp->peer_path.port_id == rx->path.port_id;
    return !memcmp(&p->remote, &rx->path.remote, sizeof p->remote) &&
           !memcmp(&p->local, &rx->path.local, sizeof p->local);
}

static void mark_congestion(struct qp *qp, uint64_t now)
{
    COUNT(qp, ecn_marked_rx);
    if (!qp->e->cfg.dcqcn.enabled ||
        (qp->cnp_last && now - qp->cnp_last < (uint64_t)qp->e->cfg.dcqcn.cnp_interval_us * 1000))
        return;
    qp->cnp_last = now;
    qp->cnp_due = true;
    engine_kick(qp);
}

static void rx_reliable(struct qp *qp, uint64_t now, const struct wire_op *op, const struct qp_rx *rx)
{
    enum wire_transport want = qp->type == UROCE_QPT_RC ? WIRE_RC : WIRE_XRC;
    int state = qp_state(qp);

    if (op->transport != want && op->verb != WIRE_VERB_SACK) {
        COUNT(qp, drop_opcode);
    } else if (op->kind == WIRE_KIND_REQUEST) {
        if (qp->type == UROCE_QPT_XRC_SEND)
            COUNT(qp, drop_opcode);
        else
            resp_rx(qp, now, rx);
    } else if (qp->type == UROCE_QPT_XRC_RECV) {
        COUNT(qp, drop_opcode);
    } else if (state != UROCE_QPS_RTS && state != UROCE_QPS_SQD) {
        COUNT(qp, drop_state);
    } else {
        comp_rx(qp, now, rx);
    }
}

static void rx_connected(struct qp *qp, uint64_t now, const struct wire_op *op, const struct qp_rx *rx)
{
    if (!source_ok(qp, rx)) {
        COUNT(qp, drop_source);
        return;
    }
    if (op->kind == WIRE_KIND_NOTIFY) {
        COUNT(qp, cnp_rx);
        dcqcn_cnp(&qp->cc, &qp->e->cfg.dcqcn, now);
        return;
    }
    if (rx->ecn_ce)
        mark_congestion(qp, now);
    if (qp->type != UROCE_QPT_UC)
        rx_reliable(qp, now, op, rx);
    else if (op->transport == WIRE_UC)
        uc_rx(qp, rx);
    else
        COUNT(qp, drop_opcode);
}

static void rx_no_qp(struct qp_engine *e, const struct qp_rx *rx)
{
    const struct wire_pkt *p = &rx->pkt;

    if (p->dest_qp != WIRE_QPN_GSI || !e->ops.mad)
        e->cnt.drop_no_qp++;
    else if (wire_op(p->opcode)->transport != WIRE_UD || p->payload_len != 256 || rx->copy)
        e->cnt.drop_opcode++;
    else if (p->qkey != WIRE_QKEY_GSI)
        e->cnt.drop_qkey++;
    else
        e->ops.mad(e->cfg.ctx, &rx->path, p);
}

void qp_engine_rx(struct qp_engine *e, uint64_t now_ns, const struct qp_rx *rx)
{
    const struct wire_pkt *p = &rx->pkt;
    const struct wire_op *op = wire_op(p->opcode);
    struct qp *qp;

    e->now = now_ns;
    engine_settle(e);
    if (p->dest_qp == WIRE_QPN_MULTICAST && !p->far) {
        ud_multicast(e, rx);
        return;
    }
    qp = engine_find(e, p->dest_qp);
    if (!qp) {
        e->cnt.rx_pkts++;
        rx_no_qp(e, rx);
        return;
    }
    COUNT(qp, rx_pkts);
    COUNT_N(qp, rx_bytes, p->payload_len);
    if (unlikely(!op))
        COUNT(qp, drop_opcode);
    else if (unlikely(qp_state(qp) < UROCE_QPS_RTR || qp_state(qp) == UROCE_QPS_ERR))
        COUNT(qp, drop_state);
    else if (unlikely(!wire_pkey_match(p->pkey, WIRE_PKEY_DEFAULT)))
        COUNT(qp, drop_pkey);
    else if (qp->type == UROCE_QPT_UD && p->far)
        COUNT(qp, drop_source);
    else if (qp->type == UROCE_QPT_UD)
        ud_rx(qp, rx);
    else
        rx_connected(qp, now_ns, op, rx);
    timer_update(qp);
    if (unlikely(e->cq_broken))
        engine_settle(e);
}

/* The queue pair that such packets may be for, as far as qp_engine_rx would have a word on them; NULL. */
static struct qp *run_qp(const struct qp_engine *e, const struct qp_rx *rx)
{
    struct qp *qp = engine_find(e, rx->pkt.dest_qp);
    int state = qp ? qp_state(qp) : UROCE_QPS_RESET;

    if (state < UROCE_QPS_RTR || state == UROCE_QPS_ERR || qp->type != UROCE_QPT_RC || rx->ecn_ce ||
        !wire_pkey_match(rx->pkt.pkey, WIRE_PKEY_DEFAULT) || !source_ok(qp, rx))
        return NULL;
    if (rx->pkt.opcode == WIRE_RC_WRITE_MIDDLE)
        return qp;
    return rx->pkt.opcode == WIRE_RC_READ_RESP_MIDDLE && (state == UROCE_QPS_RTS || state == UROCE_QPS_SQD) ? qp : NULL;
}

uint32_t qp_engine_rx_room(const struct qp_engine *e, const struct qp_rx *rx, uint32_t max)
{
    struct qp *qp = run_qp(e, rx);
    uint8_t *dst;

    if (!qp)
        return 0;
    return rx->pkt.opcode == WIRE_RC_WRITE_MIDDLE ? resp_room(qp, rx, max, &dst) : comp_room(qp, rx, max, &dst);
}

uint32_t qp_engine_rx_run(struct qp_engine *e, uint64_t now_ns, const struct qp_rx *rx, const uint8_t *const *payload,
                          uint32_t n)
{
    struct qp *qp;

    e->now = now_ns;
    engine_settle(e);
    qp = run_qp(e, rx);
    if (!qp)
        return 0;
    n = rx->pkt.opcode == WIRE_RC_WRITE_MIDDLE ? resp_run(qp, rx, payload, n) : comp_run(qp, now_ns, rx, payload, n);
    COUNT_N(qp, rx_pkts, n);
    COUNT_N(qp, rx_bytes, (uint64_t)n * rx->pkt.payload_len);
    timer_update(qp);
    return n;
}

/* ---- send ---- */

void qp_engine_doorbell(struct qp_engine *e, uint64_t now_ns, struct qp *qp)
{
    int state = qp_state(qp);

    e->now = now_ns;
    engine_settle(e);
    if (state == UROCE_QPS_ERR || state == UROCE_QPS_SQE)
        qp_flush(qp);
    else
        engine_kick(qp);
}

static void tx_cnp(struct qp *qp, struct qp_tx *tx)
{
    qp->cnp_due = false;
    tx->pkt = (struct wire_pkt){
        .opcode = WIRE_CNP, .becn = true, .migreq = true, .pkey = WIRE_PKEY_DEFAULT, .dest_qp = qp->dest};
    tx->pkt.far = qp->has_peer_path;
    tx->path = qp_out_path(qp);
    tx->niov = 0;
    tx->payload_len = 0;
    COUNT(qp, cnp_tx);
}

static uint64_t rate_of(const struct qp *qp)
{
    uint64_t limit = (uint64_t)qp->attr.rate_limit * 1000;

    if (!limit || !qp->cc.rate)
        return limit + qp->cc.rate;
    return min_u64(limit, qp->cc.rate);
}

/* True: no data may be sent yet, and the timer is set. */
static bool pace_hold(struct qp *qp, uint64_t now)
{
    if (likely(!qp->cc.rate && !qp->attr.rate_limit) || qp->pace_at <= now)
        return false;
    qp->paced = true;
    return true;
}

static void pace_sent(struct qp *qp, uint64_t now, uint32_t bytes)
{
    uint64_t rate = rate_of(qp);

    if (likely(!rate))
        return;
    bytes += 58 + 20; /* headers of a WRITE's middle packet, and of its frame */
    qp->pace_at = max_u64(qp->pace_at, now > PACE_BURST_NS ? now - PACE_BURST_NS : 0) + bytes * 8000000000ull / rate;
    dcqcn_sent(&qp->cc, &qp->e->cfg.dcqcn, bytes);
}

static void tx_finish(struct qp *qp, uint64_t now, struct qp_tx *tx)
{
    tx->qpn = qp->num;
    COUNT(qp, tx_pkts);
    if (tx->payload_len) {
        COUNT_N(qp, tx_bytes, tx->payload_len);
        pace_sent(qp, now, tx->payload_len);
    }
    if (unlikely(tx->retransmit))
        COUNT(qp, retransmits);
}

/* Runs of packets that a port sends at once: of equal size, the last may be shorter. As the device makes them. */
struct run {
    uint32_t full;          /* packets of a run of the middle of a message; 0: no matter */
    uint32_t count, packet; /* of the run that the next packet may go on with, if count; bytes of its packets */
    bool filled;            /* the run that ended last was as long as can be: more of the kind may come */
};

static void run_add(struct run *r, uint32_t bytes)
{
    if (!r->full)
        return;
    if (!r->count || bytes > r->packet) {
        r->count = 0;
        r->packet = bytes;
    }
    r->filled = bytes == r->packet && r->count + 1 >= r->full;
    r->count = bytes < r->packet || r->filled ? 0 : r->count + 1;
}

/* Packets as large as the last that may go on with its run, or begin one. */
static uint32_t run_room(const struct run *r, const struct qp_tx *tx)
{
    if (!r->full)
        return UINT32_MAX;
    return r->count && wire_pkt_bytes(&tx->pkt) != r->packet ? 0 : r->full - r->count;
}

/* What of the message that was begun a run can have: the last packet of a READ's answer is longer, and begins one. */
static uint32_t run_left(const struct qp *qp, bool requests)
{
    uint32_t left = requests ? req_left(qp) : resp_left(qp);

    return left - (!requests && left > 1);
}

/* Where a run begins that has no room here as a whole, as long as the message has packets for it: it goes with the next
 * call, as the rest would be a run of its own, hardly cheaper. */
static bool run_waits(const struct run *r, uint32_t left, uint32_t room)
{
    if (!left && r->filled)
        left = r->full;
    return r->full && !r->count && min_u64(left, r->full) > room;
}

/* The last packet of an answer goes with the first two of the next one, in the next call if not in this one. */
static bool last_waits(const struct run *r, const struct qp *qp, int room)
{
    return r->count && qp->resp.res_pending > 1 && room < 3 && resp_left(qp) == 1;
}

/* The packets that follow the last one in the middle of its message, built by copying it: number. bytes: that were
 * built before. */
static uint32_t tx_more(struct qp *qp, struct run *run, struct qp_tx *last, bool requests, uint32_t bytes, uint32_t max)
{
    const struct wire_op *op = wire_op(last->pkt.opcode);
    uint32_t n, len = last->payload_len, packet = wire_pkt_bytes(&last->pkt);

    if (op->first || op->last || qp->slots || rate_of(qp) || run_waits(run, run_left(qp, requests), max))
        return 0;
    max = (uint32_t)min_u64(max, min_u64(run_room(run, last), (QP_BURST_BYTES - bytes - 1) / len + 1));
    n = requests ? req_more(qp, last, max) : resp_more(qp, last, max);
    for (uint32_t i = 1; i <= n; i++) {
        struct qp_tx *tx = last + i;
        tx->pkt = last->pkt;
        tx->pkt.psn = psn_add(last->pkt.psn, i);
        tx->pkt.ackreq = false;
        tx->iov[0] = (struct iovec){(uint8_t *)last->iov[0].iov_base + (size_t)i * len, len};
        tx->niov = 1;
        tx->payload_len = len;
        tx->path = last->path;
        tx->qpn = qp->num;
        tx->retransmit = false;
        tx->ecn_capable = last->ecn_capable;
        tx->follows = i > 1 || !last->pkt.ackreq;
        run_add(run, packet);
    }
    COUNT_N(qp, tx_pkts, n);
    COUNT_N(qp, tx_bytes, (uint64_t)n * len);
    return n;
}

/* Requests and responses of a queue pair go first in turn, so that neither waits for ever behind the other. */
static int tx_run(struct qp *qp, uint64_t now, struct qp_tx *ret, int max)
{
    struct run run = {.full = qp->e->cfg.run_bytes / (qp->mtu + WIRE_BTH_BYTES + WIRE_ICRC_BYTES)};
    uint32_t bytes = 0;
    int n = 0;

    if (qp->cnp_due) {
        ret[n].retransmit = ret[n].ecn_capable = ret[n].follows = false;
        tx_cnp(qp, &ret[n]);
        tx_finish(qp, now, &ret[n++]);
    }
    qp->turn = !qp->turn;
    for (int pass = 0; pass < 2; pass++) {
        bool requests = (pass == 0) == qp->turn;
        while (n < max && bytes < QP_BURST_BYTES) {
            struct qp_tx *tx = &ret[n];
            if (pace_hold(qp, now) && (requests || qp->resp.res_pending)) /* acknowledgements do not wait */
                break;
            if (n && (run_waits(&run, run_left(qp, requests), (uint32_t)(max - n)) ||
                      (!requests && last_waits(&run, qp, max - n))))
                break;
            tx->retransmit = tx->follows = false;
            tx->ecn_capable = qp->e->cfg.dcqcn.enabled;
            if (!(requests ? req_tx(qp, now, tx) : resp_tx(qp, now, tx)))
                break;
            tx_finish(qp, now, tx);
            run_add(&run, wire_pkt_bytes(&tx->pkt));
            bytes += tx->payload_len;
            n++;
            if (qp->type == UROCE_QPT_UD) /* the next may go elsewhere */
                return n;
            if (n < max && bytes < QP_BURST_BYTES && tx->payload_len) {
                uint32_t more = tx_more(qp, &run, tx, requests, bytes, (uint32_t)(max - n));
                n += (int)more;
                bytes += more * tx->payload_len;
            }
        }
    }
    return n;
}

static int tx_mads(struct qp_engine *e, struct qp_tx *tx)
{
    struct mad_out *m;

    if (!e->mad_n)
        return 0;
    m = &e->mads[e->mad_head];
    e->mad_head = (e->mad_head + 1) % QP_MAD_QUEUE;
    e->mad_n--;
    tx->pkt = (struct wire_pkt){.opcode = WIRE_UD_SEND_ONLY,
                                .migreq = true,
                                .pkey = WIRE_PKEY_DEFAULT,
                                .dest_qp = WIRE_QPN_GSI,
                                .psn = e->mad_psn,
                                .qkey = WIRE_QKEY_GSI,
                                .src_qp = WIRE_QPN_GSI,
                                .payload_len = sizeof m->bytes};
    e->mad_psn = psn_next(e->mad_psn);
    tx->iov[0] = (struct iovec){m->bytes, sizeof m->bytes};
    tx->niov = 1;
    tx->payload_len = sizeof m->bytes;
    tx->path = &m->path;
    tx->qpn = WIRE_QPN_GSI;
    tx->retransmit = tx->ecn_capable = tx->follows = false;
    e->cnt.tx_pkts++;
    e->cnt.tx_bytes += sizeof m->bytes;
    return 1;
}

static bool is_held(const struct qp_engine *e, uint8_t port_id)
{
    return e->held[port_id / 64] >> (port_id % 64) & 1;
}

void qp_engine_hold(struct qp_engine *e, uint8_t port_id, bool on)
{
    struct list *l;

    if (on) {
        e->held[port_id / 64] |= 1ull << (port_id % 64);
        return;
    }
    e->held[port_id / 64] &= ~(1ull << (port_id % 64));
    while ((l = list_pop_front(&e->parked)) != NULL) /* those of other full ports go back there in their turn */
        list_push_back(&e->ready, l);
}

int qp_engine_tx(struct qp_engine *e, uint64_t now_ns, struct qp_tx *ret, int max)
{
    int n;

    e->now = now_ns;
    engine_settle(e);
    if (max <= 0)
        return 0;
    n = tx_mads(e, ret);
    while (!n && !list_empty(&e->ready)) {
        struct qp *qp = list_entry(e->ready.next, struct qp, ready);
        list_del(&qp->ready);
        if (unlikely(qp->has_peer_path) && is_held(e, qp->peer_path.port_id)) {
            list_push_back(&e->parked, &qp->ready);
            continue;
        }
        n = tx_run(qp, now_ns, ret, max);
        if (n)
            engine_kick(qp);
        timer_update(qp);
    }
    if (!n)
        engine_settle(e); /* a request that failed is told; nothing is lent out */
    return n;
}

bool qp_engine_put_off(struct qp_engine *e, bool on)
{
    struct list *l;

    e->puts_off = on;
    while (!on && (l = list_pop_front(&e->put_off))) {
        struct qp *qp = list_entry(l, struct qp, put_off);
        qp->turn = false; /* tx_run: requests first */
        engine_kick(qp);
    }
    return !list_empty(&e->put_off);
}

int qp_send_mad(struct qp_engine *e, const struct qp_path *to, const void *mad, size_t len)
{
    struct mad_out *m = &e->mads[(e->mad_head + e->mad_n) % QP_MAD_QUEUE];

    engine_settle(e);
    if (len != sizeof m->bytes)
        return -EINVAL;
    if (e->mad_n == QP_MAD_QUEUE - 1) /* one stays free: the last that was taken may still be on its way */
        return -EAGAIN;
    m->path = *to;
    memcpy(m->bytes, mad, len);
    e->mad_n++;
    return 0;
}

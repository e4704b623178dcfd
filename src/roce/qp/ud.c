/* UD: one packet a message, to anybody; multicast groups. */
#include "impl.h"
#include "roce/wire_icrc.h"

int ud_build(struct qp *qp, struct sq_wqe *w, struct qp_tx *tx)
{
    bool imm = w->opcode == UROCE_WR_SEND_WITH_IMM;

    tx->pkt = (struct wire_pkt){.opcode = imm ? WIRE_UD_SEND_ONLY_IMM : WIRE_UD_SEND_ONLY,
                                .solicited = w->flags & UROCE_SEND_SOLICITED,
                                .migreq = true,
                                .pkey = WIRE_PKEY_DEFAULT,
                                .dest_qp = w->ud.qpn,
                                .psn = w->first,
                                .imm = imm ? __builtin_bswap32(w->imm) : 0,
                                .qkey = w->ud.qkey,
                                .src_qp = qp->num,
                                .payload_len = w->len};
    tx->payload_len = w->len;
    tx->path = &w->ud.path;
    if (w->flags & UROCE_SEND_INLINE) {
        tx->iov[0] = (struct iovec){w->sge, w->len};
        tx->niov = w->len > 0;
    } else {
        tx->niov = sge_iov(qp->pd, w->sge, w->nsge, 0, w->len, false, tx->iov);
        if (tx->niov < 0)
            return tx->niov;
    }
    return 0;
}

static void network_header(const struct qp_rx *rx, uint8_t *ret)
{
    const struct qp_path *p = &rx->path;
    struct wire_flow f;

    wire_flow_init(&f, &p->remote, &p->local, p->udp_sport, WIRE_UDP_PORT);
    wire_grh(&f, p->traffic_class, p->hop_limit, wire_pkt_bytes(&rx->pkt), ret);
}

/* The 40 bytes and the payload; -EFAULT: this side's memory. */
static int place(struct qp *qp, const struct qp_rx *rx)
{
    struct recv_cur *c = &qp->resp.recv;
    uint8_t grh[UROCE_GRH_BYTES];
    struct iovec iov[UROCE_SGE_MAX];
    size_t at = 0;
    int n, r;

    network_header(rx, grh);
    n = sge_iov(qp->pd, c->sge, c->nsge, 0, sizeof grh, true, iov);
    if (n < 0)
        return n;
    r = rx_scatter(qp->pd, c->sge, c->nsge, sizeof grh, rx);
    if (r)
        return r;
    for (int i = 0; i < n; at += iov[i++].iov_len)
        memcpy(iov[i].iov_base, grh + at, iov[i].iov_len);
    return 0;
}

static void complete(struct qp *qp, const struct qp_rx *rx, enum uroce_wc_status status)
{
    const struct wire_pkt *p = &rx->pkt;
    struct responder *r = &qp->resp;
    struct uroce_wc wc = {.wr_id = r->recv.wr_id,
                          .status = status,
                          .opcode = UROCE_WC_RECV,
                          .byte_len = p->payload_len + UROCE_GRH_BYTES,
                          .qp_num = qp->num,
                          .src_qp = p->src_qp,
                          .wc_flags = UROCE_WC_GRH,
                          .sl = wire_gid_is_v4(&rx->path.local) ? 2 : 1};

    if (wire_op(p->opcode)->imm) {
        wc.imm_data = __builtin_bswap32(p->imm);
        wc.wc_flags |= UROCE_WC_WITH_IMM;
    }
    if (r->has_value) {
        wc.slot_value = r->value;
        wc.wc_flags |= UROCE_WC_SLOT_VALUE;
        r->has_value = false;
    }
    r->recv.valid = false;
    cq_push(qp->recv_cq, &wc, p->solicited);
}

void ud_rx(struct qp *qp, const struct qp_rx *rx)
{
    const struct wire_pkt *p = &rx->pkt;
    struct responder *r = &qp->resp;
    struct qp_rx tmp;
    int e;

    if (wire_op(p->opcode)->transport != WIRE_UD) {
        COUNT(qp, drop_opcode);
    } else if (p->qkey != qp->attr.qkey) {
        COUNT(qp, drop_qkey);
    } else if (!recv_take(qp, qp->srq)) {
        COUNT(qp, drop_no_receive);
    } else if (p->payload_len + UROCE_GRH_BYTES > r->recv.len) {
        COUNT(qp, drop_length); /* anybody may send one: the receive waits for the next */
    } else if (!qp->slots || slot_rx(qp, &rx, &tmp, false, 0, true, true) == QP_ACCEPT) {
        e = place(qp, rx);
        if (e == -EFAULT) {
            complete(qp, rx, UROCE_WC_LOC_PROT_ERR);
            qp_to_error(qp);
        } else if (e) {
            COUNT(qp, drop_other);
        } else {
            complete(qp, rx, UROCE_WC_SUCCESS);
        }
    }
}

/* ---- multicast ---- */

static struct mcast_group *group_of(const struct qp_engine *e, const union uroce_gid *gid)
{
    for (uint32_t i = 0; i < e->ngroups; i++)
        if (!memcmp(&e->groups[i].gid, gid, sizeof *gid))
            return &e->groups[i];
    return NULL;
}

void ud_multicast(struct qp_engine *e, const struct qp_rx *rx)
{
    const struct mcast_group *g = group_of(e, &rx->path.local);

    if (!g || wire_op(rx->pkt.opcode) == NULL) {
        e->cnt.rx_pkts++;
        e->cnt.drop_no_qp++;
        return;
    }
    for (uint32_t i = 0; i < g->n; i++) {
        struct qp *qp = g->qp[i];
        COUNT(qp, rx_pkts);
        COUNT_N(qp, rx_bytes, rx->pkt.payload_len);
        if (qp_state(qp) < UROCE_QPS_RTR || qp_state(qp) == UROCE_QPS_ERR)
            COUNT(qp, drop_state);
        else
            ud_rx(qp, rx);
    }
    if (e->cq_broken)
        engine_settle(e);
}

static struct mcast_group *group_new(struct qp_engine *e, const union uroce_gid *gid)
{
    struct mcast_group *t;

    if (e->ngroups >= QP_MCAST_GROUPS)
        return NULL;
    t = realloc(e->groups, (e->ngroups + 1) * sizeof *t);
    if (!t)
        return NULL;
    e->groups = t;
    t[e->ngroups] = (struct mcast_group){.gid = *gid};
    return &t[e->ngroups++];
}

int qp_attach_mcast(struct qp *qp, const union uroce_gid *gid)
{
    struct qp_engine *e = qp->e;
    struct mcast_group *g = group_of(e, gid);
    struct qp **t;

    if (qp->type != UROCE_QPT_UD)
        return -EINVAL;
    for (uint32_t i = 0; g && i < g->n; i++)
        if (g->qp[i] == qp)
            return 0;
    if (g && g->n >= QP_MCAST_QPS)
        return -ENOSPC;
    if (!g)
        g = group_new(e, gid);
    t = g ? realloc(g->qp, (g->n + 1) * sizeof(struct qp *)) : NULL;
    if (!t)
        return -ENOMEM; /* an empty group does no harm */
    g->qp = t;
    t[g->n++] = qp;
    return 0;
}

int qp_detach_mcast(struct qp *qp, const union uroce_gid *gid)
{
    struct qp_engine *e = qp->e;
    struct mcast_group *g = group_of(e, gid);

    for (uint32_t i = 0; g && i < g->n; i++) {
        if (g->qp[i] != qp)
            continue;
        g->qp[i] = g->qp[--g->n];
        if (!g->n) {
            free(g->qp);
            *g = e->groups[--e->ngroups];
            if (e->ops.group_left)
                e->ops.group_left(e->cfg.ctx, gid);
        }
        return 0;
    }
    return -EINVAL;
}

#include "holder_wills.h"

#include "roce/wire.h"
#include "roce/wire_cm.h"
#include "roce/wire_icrc.h"

#include <arpa/inet.h>
#include <string.h>

static struct holder_will *find(struct holder_wills *w, const struct holder_msg *m, uint32_t peer_id)
{
    for (uint32_t i = 0; i < w->n; i++) {
        struct holder_will *e = &w->e[i];
        if (e->peer_id == peer_id && !memcmp(&e->remote, &m->from.gid, sizeof e->remote) &&
            !memcmp(&e->local, &m->to.gid, sizeof e->local))
            return e;
    }
    return NULL;
}

static void note(struct holder_wills *w, uint32_t slot, const struct holder_msg *m, const struct wire_cm *cm,
                 uint32_t our_id, uint32_t qpn)
{
    struct holder_will *e = find(w, m, cm->local_id);

    if (!e)
        e = w->n < HOLDER_WILLS ? &w->e[w->n++] : &w->e[w->next++ % HOLDER_WILLS];
    *e = (struct holder_will){.local = m->to.gid,
                              .remote = m->from.gid,
                              .peer_id = cm->local_id,
                              .our_id = our_id,
                              .peer_qpn = qpn,
                              .scope_id = (uint16_t)m->from.scope_id,
                              .slot = (uint8_t)slot};
}

void wills_see(struct holder_wills *w, uint32_t slot, const struct holder_msg *m)
{
    struct wire_pkt pkt;
    struct wire_cm cm;
    struct holder_will *e;

    if (wire_decode(m->data, m->len, &pkt) < 0 || wire_cm_decode(pkt.payload, pkt.payload_len, &cm))
        return;
    switch (cm.attr) {
    case WIRE_CM_REQ:
        if (!find(w, m, cm.local_id)) /* again: what is known of it stays */
            note(w, slot, m, &cm, 0, cm.req.qpn);
        break;
    case WIRE_CM_REP:
        note(w, slot, m, &cm, cm.remote_id, cm.rep.qpn);
        break;
    case WIRE_CM_RTU:
        e = find(w, m, cm.local_id);
        if (e && e->slot == slot)
            e->our_id = cm.remote_id;
        break;
    case WIRE_CM_REJ:
    case WIRE_CM_DREQ:
    case WIRE_CM_DREP:
        e = find(w, m, cm.local_id);
        if (e && e->slot == slot)
            *e = w->e[--w->n];
        break;
    default:
        break;
    }
}

/* A whole packet: BTH to ICRC. Its length. */
static uint32_t packet(const struct holder_will *e, uint8_t ret[WIRE_HEAD_MAX + WIRE_MAD_BYTES + WIRE_TAIL_MAX])
{
    uint8_t mad[WIRE_MAD_BYTES];
    struct wire_cm cm = {.attr = WIRE_CM_DREQ,
                         .tid = e->our_id,
                         .local_id = e->our_id,
                         .remote_id = e->peer_id,
                         .dreq.qpn = e->peer_qpn};
    struct wire_pkt pkt = {.opcode = WIRE_UD_SEND_ONLY,
                           .migreq = true,
                           .pkey = WIRE_PKEY_DEFAULT,
                           .dest_qp = WIRE_QPN_GSI,
                           .src_qp = WIRE_QPN_GSI,
                           .qkey = WIRE_QKEY_GSI,
                           .payload_len = WIRE_MAD_BYTES};
    struct wire_flow f;
    int head = wire_encode_head(&pkt, ret, WIRE_HEAD_MAX);

    if (head < 0 || wire_cm_encode(&cm, mad))
        return 0;
    memcpy(ret + head, mad, sizeof mad);
    uint32_t len = (uint32_t)head + WIRE_MAD_BYTES + WIRE_ICRC_BYTES;
    wire_flow_init(&f, &e->local, &e->remote, PORT_UDP, PORT_UDP);
    wire_encode_tail(WIRE_MAD_BYTES, wire_icrc_of(&f, 0, ret, len), ret + head + WIRE_MAD_BYTES);
    return len;
}

static void tell(const struct holder_will *e, int fd)
{
    uint8_t buf[WIRE_HEAD_MAX + WIRE_MAD_BYTES + WIRE_TAIL_MAX];
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(PORT_UDP), .sin6_scope_id = e->scope_id};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(PORT_UDP)};
    bool v4 = wire_gid_is_v4(&e->remote);
    uint32_t len = packet(e, buf);

    memcpy(&six.sin6_addr, e->remote.raw, 16);
    memcpy(&four.sin_addr, e->remote.raw + 12, 4);
    for (int i = 0; len && i < 2; i++) /* one may be lost; the second changes nothing */
        if (sendto(fd, buf, len, MSG_DONTWAIT, v4 ? (struct sockaddr *)&four : (struct sockaddr *)&six,
                   v4 ? sizeof four : sizeof six) < 0)
            return;
}

void wills_end(struct holder_wills *w, uint32_t slot, int (*fd_of)(void *ctx, const union uroce_gid *local), void *ctx)
{
    for (uint32_t i = 0; i < w->n;) {
        const struct holder_will *e = &w->e[i];
        if (e->slot != slot) {
            i++;
            continue;
        }
        int fd = fd_of && e->our_id ? fd_of(ctx, &e->local) : -1;
        if (fd >= 0)
            tell(e, fd);
        w->e[i] = w->e[--w->n];
    }
}

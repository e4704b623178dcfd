/*
 * Ways to the server behind an agent, for the bytes of requests that go by the agent: a host asks its agent for one,
 * and the agent its server (docs/protocol.md, section 11).
 */
#include "session.h"

#include "base/crypto.h"
#include "fabric/dp.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#define PARTY_PATH  "/penstock.v1.SessionService/ThirdParty"
#define TICKET_PATH "/penstock.v1.SessionService/ThirdTicket"

/* ---- the host ---- */

bool session_offers_third(struct session *s)
{
    scoped_lock(&s->lock);
    return s->facts.third_party;
}

static int take(const PB(ThirdPartyReply) *in, struct session_ticket *t)
{
    if (!in->endpoint || !session_endpoint(in->endpoint, &t->to) || !in->number || !in->ticket.len ||
        in->ticket.len > sizeof t->bytes || in->key.len != sizeof t->data_key)
        return -EBADMSG;
    t->len = in->ticket.len;
    memcpy(t->bytes, in->ticket.data, t->len);
    memcpy(t->data_key, in->key.data, sizeof t->data_key);
    t->number = in->number;
    return 0;
}

int session_net_third(struct session *s, const uint8_t id[SESSION_ID_BYTES], struct session_ticket *t)
{
    PB(ThirdPartyRequest) req = PENSTOCK__V1__THIRD_PARTY_REQUEST__INIT;
    PB(AdminHeader) h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    struct rpc_result res;
    ProtobufCMessage *m;
    int r;

    h.session = (ProtobufCBinaryData){SESSION_ID_BYTES, (uint8_t *)(uintptr_t)id};
    req.header = &h;
    req.shard = t->shard;
    r = session_net_call(s, PARTY_PATH, &req.base, &penstock__v1__third_party_reply__descriptor, &m, &res);
    if (r < 0)
        return r;
    r = take((PB(ThirdPartyReply) *)m, t);
    protobuf_c_message_free_unpacked(m, NULL);
    return r;
}

/* ---- the agent ---- */

static void name_endpoint(const struct session_shard *shard, struct pst_third *ret)
{
    char host[64] = "?", port[8] = "?";

    getnameinfo((const struct sockaddr *)&shard->addr, shard->addr_len, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(ret->text, sizeof ret->text, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    snprintf(ret->provider, sizeof ret->provider, "%s", shard->provider);
    ret->addr = shard->addr;
    ret->addr_len = shard->addr_len;
}

/* The key of the connection: the session's own stays here. */
static int derive_key(struct session *s, struct pst_third *t)
{
    scoped_lock(&s->lock);
    if (s->epoch != t->epoch)
        return -EAGAIN;
    return dp_conn_key(s->facts.data_key, t->ticket, t->ticket_len, t->key);
}

int session_third(struct session *s, const struct session_shard *shard, uint64_t owner, struct pst_third *ret)
{
    PB(ThirdTicketRequest) req = PENSTOCK__V1__THIRD_TICKET_REQUEST__INIT;
    const PB(ThirdTicketReply) * out;
    struct pst_third t = {0};
    ProtobufCMessage *m;
    int r;

    if (!session_is_up(s))
        return -EAGAIN;
    req.shard = shard->shard;
    req.owner = owner;
    r = session_unary(s, TICKET_PATH, &req.base, NULL, NULL, false, false,
                      &penstock__v1__third_ticket_reply__descriptor, &m, &t.epoch);
    if (r < 0)
        return r;
    out = (PB(ThirdTicketReply) *)m;
    if (!out->ticket.len || out->ticket.len > sizeof t.ticket || !out->number) {
        r = -EBADMSG;
    } else {
        t.ticket_len = (uint32_t)out->ticket.len;
        memcpy(t.ticket, out->ticket.data, t.ticket_len);
        t.ticket_ms = out->ticket_ms;
        t.number = out->number;
        name_endpoint(shard, &t);
        r = derive_key(s, &t);
    }
    protobuf_c_message_free_unpacked(m, NULL);
    if (r == 0)
        *ret = t;
    pst_wipe(&t, sizeof t);
    return r;
}

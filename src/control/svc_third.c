/*
 * Third parties (docs/protocol.md, section 11): an agent asks its server for a ticket, and a host asks its agent for
 * one.
 */
#include "service_priv.h"

#include "base/crypto.h"

#include <errno.h>

int ctl_third_ticket(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(ThirdTicketRequest) *in = in_;
    PB(ThirdTicketReply) *out = out_;
    uint8_t ticket[SESS_TICKET_BYTES];
    int r = ctl_need_origin(q, in->header);

    if (r)
        return r;
    if (!ctl_has_shard(&q->tenant->in, in->shard))
        return ctl_fail(q, -EINVAL, "%u is not a shard of the session's reply", in->shard);
    r = sess_third_new(q->s->sess, q->sess, in->shard, in->owner, now_ns(), ticket, &out->number);
    if (!r)
        r = ctl_bytes(q, ticket, sizeof ticket, &out->ticket);
    out->ticket_ms = (uint32_t)(sess_limits(q->s->sess)->ticket_ns / NSEC_PER_MSEC);
    return r;
}

static int fill(struct ctl_req *q, const struct pst_third *t, PB(ThirdPartyReply) * out)
{
    PB(DataEndpoint) *e = arena_alloc(&q->a, sizeof *e);
    ProtobufCBinaryData text, provider;
    int r = e ? 0 : -ENOMEM;

    if (!r)
        r = ctl_bytes(q, t->ticket, t->ticket_len, &out->ticket);
    if (!r)
        r = ctl_bytes(q, t->key, sizeof t->key, &out->key);
    if (!r)
        r = ctl_bytes(q, t->text, sizeof t->text, &text); /* each ends within its field */
    if (!r)
        r = ctl_bytes(q, t->provider, sizeof t->provider, &provider);
    if (r)
        return r;
    penstock__v1__data_endpoint__init(e);
    r = ctl_bytes(q, &t->addr, t->addr_len, &e->address);
    e->provider = (char *)provider.data;
    e->text = (char *)text.data;
    out->endpoint = e;
    out->number = t->number;
    out->ticket_ms = t->ticket_ms;
    return r;
}

int ctl_third_party(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(ThirdPartyRequest) *in = in_;
    const struct ctl_hooks *h = &q->s->hooks;
    struct pst_third t;
    int r = ctl_need_party(q, in->header);

    if (r)
        return r;
    if (!h->third_party || !q->tenant->in.third_party)
        return ctl_fail(q, -EOPNOTSUPP, "no third parties here (data.third_party of an agent without filters)");
    if (!ctl_has_shard(&q->tenant->in, in->shard))
        return ctl_fail(q, -EINVAL, "%u is not a shard of the session's reply", in->shard);
    r = h->third_party(h->user, sess_ident(q->sess)->tenant, sess_id(q->sess), in->shard, &t);
    if (!r)
        r = fill(q, &t, out_);
    pst_wipe(&t, sizeof t);
    return r;
}

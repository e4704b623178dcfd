/* CapabilityService, and capabilities as the data plane asks about them. */
#include "service_priv.h"

#include "base/crypto.h"

#include <errno.h>
#include <string.h>

/* ---- for the data plane ---- */

static int refuse(struct ctl_server *s, enum refusal why, int err)
{
    sess_refuse(s->sess, why);
    return err;
}

int ctl_cap_verify(struct ctl_server *s, const struct sess *who, const void *bytes, size_t len,
                   struct cap_grant *ret_grant, struct sess_cont **ret_cont)
{
    uint8_t key[SESS_KEY_BYTES];
    struct sess_cont *sc;
    struct cap_grant g;
    uint64_t id;
    int r;

    if (!sess_alive(who))
        return refuse(s, REFUSE_SESSION, -EKEYREVOKED);
    if (cap_key_id(bytes, len, &id))
        return refuse(s, REFUSE_CAP_MALFORMED, -EBADMSG);
    r = sess_key_find(s->sess, id, key, &sc);
    if (r)
        return r == -EKEYREVOKED ? refuse(s, REFUSE_CAP_REVOKED, r) : refuse(s, REFUSE_CAP_KEY, -EACCES);
    r = cap_verify(key, bytes, len, &g);
    pst_wipe(key, sizeof key);
    if (r)
        r = r == -EACCES ? refuse(s, REFUSE_CAP_MAC, r) : refuse(s, REFUSE_CAP_MALFORMED, r);
    else if (!pst_equal_ct(g.session, sess_id(who), SESS_ID_BYTES))
        r = refuse(s, REFUSE_CAP_SESSION, -EACCES);
    else if (g.cont && g.cont != sess_cont_id(sc))
        r = refuse(s, REFUSE_CAP_RIGHTS, -EACCES);
    else if (wall_ns() >= g.expires_ns)
        r = refuse(s, REFUSE_CAP_EXPIRED, -EKEYEXPIRED);
    if (r) {
        sess_cont_put(sc);
        return r;
    }
    *ret_grant = g;
    *ret_cont = sc;
    return 0;
}

uint64_t ctl_generation(const struct ctl_server *s)
{
    return sess_generation(s->sess);
}

bool ctl_cap_alive(struct ctl_server *s, const struct cap_grant *g)
{
    if (sess_key_alive(s->sess, g->key_id))
        return true;
    sess_refuse(s->sess, REFUSE_CAP_REVOKED);
    return false;
}

int ctl_cap_check(struct ctl_server *s, const struct cap_grant *g, uint64_t ino, uint32_t rights, uint64_t offset,
                  uint64_t length)
{
    int r = cap_check(g, g->cont, ino, rights, offset, length, g->expires_ns == INT64_MAX ? 0 : wall_ns());

    if (r)
        sess_refuse(s->sess, r == -ERANGE        ? REFUSE_CAP_RANGE
                             : r == -EKEYEXPIRED ? REFUSE_CAP_EXPIRED
                                                 : REFUSE_CAP_RIGHTS);
    return r;
}

int ctl_ticket_use(struct ctl_server *s, const void *ticket, size_t len, uint32_t shard, struct sess **ret)
{
    return sess_ticket_use(s->sess, ticket, len, shard, now_ns(), ret);
}

int ctl_ticket_take(struct ctl_server *s, const void *ticket, size_t len, uint32_t shard, struct sess **ret,
                    struct sess_third *ret_third)
{
    return sess_ticket_take(s->sess, ticket, len, shard, now_ns(), ret, ret_third);
}

struct sess *ctl_session_find(struct ctl_server *s, const uint8_t id[SESS_ID_BYTES])
{
    return sess_get(s->sess, id, SESS_ID_BYTES, now_ns());
}

void ctl_refuse(struct ctl_server *s, enum refusal r)
{
    sess_refuse(s->sess, r);
}

/* ---- the service ---- */

static int do_grant(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(GrantRequest) *in = in_;
    PB(GrantReply) *out = out_;
    struct cap_grant g = {.ino = in->ino,
                          .rights = in->rights,
                          .expires_ns = INT64_MAX,
                          .range_offset = in->range_offset,
                          .range_length = in->range_length};
    struct pst_attr a;
    int r = ctl_need_header(q, in->header);

    if (r)
        return r;
    if (!in->ino || !in->rights || in->rights & ~(CAP_READ | CAP_WRITE) ||
        in->range_length > UINT64_MAX - in->range_offset)
        return ctl_fail(q, -EINVAL, "ino, rights (4 read, 2 write), and a range that does not wrap are needed");
    if (in->lifetime_ms)
        g.expires_ns = wall_ns() + (int64_t)in->lifetime_ms * (int64_t)NSEC_PER_MSEC;
    /* What may be opened so may be granted so. */
    r = pst_store_open(q->cont, &(struct pst_ctx){.cred = &q->cred}, in->ino, (int)in->rights, false, &a);
    if (r)
        return r;
    pst_store_release(q->cont, in->ino);
    return ctl_mint(q, &g, &out->capability, &out->key_id);
}

static int do_revoke(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(RevokeRequest) *in = in_;
    PB(RevokeReply) *out = out_;
    const struct sess *only;
    struct sess_cont *sc;
    int r;

    ctl_act(q, "revoke", "%s", in->what_case == PENSTOCK__V1__REVOKE_REQUEST__WHAT_TARGET_SESSION ? "session"
                               : in->what_case == PENSTOCK__V1__REVOKE_REQUEST__WHAT_CONTAINER    ? "container"
                                                                                                  : "key");
    r = ctl_need_cred(q, in->session, NULL, NULL);
    if (r)
        return r;
    only = ctl_is_operator(q) ? NULL : q->sess;
    switch (in->what_case) {
    case PENSTOCK__V1__REVOKE_REQUEST__WHAT_TARGET_SESSION:
        if (in->target_session.len != SESS_ID_BYTES)
            return ctl_fail(q, -EINVAL, "a session id has %u bytes", SESS_ID_BYTES);
        if (only && memcmp(in->target_session.data, sess_id(q->sess), SESS_ID_BYTES))
            return ctl_need_operator(q);
        out->keys = sess_revoke_session(q->s->sess, in->target_session.data, in->target_session.len);
        if (q->s->hooks.session_revoked)
            q->s->hooks.session_revoked(q->s->hooks.user, in->target_session.data);
        return 0;
    case PENSTOCK__V1__REVOKE_REQUEST__WHAT_CONTAINER:
        sc = sess_cont_get(q->s->sess, q->sess, in->container);
        if (!sc)
            return ctl_fail(q, -EBADF, "no such container handle in this session");
        out->keys = sess_revoke_cont(q->s->sess, sess_cont_id(sc), only);
        sess_cont_put(sc);
        return 0;
    case PENSTOCK__V1__REVOKE_REQUEST__WHAT_KEY_ID:
        out->keys = sess_revoke_key(q->s->sess, in->key_id, only);
        return 0;
    default:
        return ctl_fail(q, -EINVAL, "say what to revoke");
    }
}

static const char *why_refused(int r)
{
    switch (r) {
    case -EBADMSG:
        return "not a capability, or a damaged one";
    case -EKEYREVOKED:
        return "revoked: its key has ended";
    case -EKEYEXPIRED:
        return "expired";
    default:
        return "forged, altered, another session's, or its caveats leave nothing";
    }
}

static int do_inspect(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(InspectRequest) *in = in_;
    PB(InspectReply) *out = out_;
    struct cap_grant g;
    struct sess_cont *sc;
    int r = ctl_need_session(q, in->session);

    if (r)
        return r;
    r = ctl_cap_verify(q->s, q->sess, in->capability.data, in->capability.len, &g, &sc);
    if (r)
        return ctl_fail(q, r, "%s", why_refused(r));
    sess_cont_put(sc);
    out->key_id = g.key_id;
    out->container_id = g.cont;
    out->ino = g.ino;
    out->rights = g.rights;
    out->range_offset = g.range_offset;
    out->range_length = g.range_length;
    out->expires_in_ms = g.expires_ns == INT64_MAX ? -1 : (g.expires_ns - wall_ns()) / (int64_t)NSEC_PER_MSEC;
    if (g.expires_ns != INT64_MAX && out->expires_in_ms < 0)
        out->expires_in_ms = 0; /* -1 would say never */
    return 0;
}

#define SERVICE "/penstock.v1.CapabilityService/"
const struct ctl_method ctl_cap_methods[] = {
    {SERVICE "Grant", &penstock__v1__grant_request__descriptor, &penstock__v1__grant_reply__descriptor, do_grant},
    {SERVICE "Revoke", &penstock__v1__revoke_request__descriptor, &penstock__v1__revoke_reply__descriptor, do_revoke},
    {SERVICE "Inspect", &penstock__v1__inspect_request__descriptor, &penstock__v1__inspect_reply__descriptor,
     do_inspect},
};
const size_t ctl_cap_nmethods = ARRAY_SIZE(ctl_cap_methods);

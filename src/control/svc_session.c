/* SessionService: who may come in, leases, data tickets. */
#include "service_priv.h"

#include "base/crypto.h"
#include "control/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A token if there is one, else the certificate. The tenant becomes the request's, counted. */
static int authenticate(struct ctl_req *q, ProtobufCBinaryData token, struct sess_ident *ret)
{
    struct ctl_cred cert, c;
    bool has_cert = ctl_cert_cred(q->s, q->call, &cert, token.len ? NULL : &q->about);

    if (token.len ? !ctl_token_cred(q->s, token.data, token.len, &c, &q->about) : !has_cert) {
        sess_refuse(q->s->sess, REFUSE_CREDENTIAL);
        q->code = RPC_UNAUTHENTICATED;
        log_info("session refused: %s: %s", rpc_peer(q->call), token.len ? "wrong token" : "no credential");
        ctl_audit(q, "session_refused", token.len ? "wrong token" : "no credential", -EACCES);
        return ctl_fail(q, -EACCES, "%s",
                        token.len ? "the token is not one of this server's"
                                  : "neither a token nor a client certificate with a credential here");
    }
    c = token.len ? c : cert;
    snprintf(ret->credential, sizeof ret->credential, "%s", c.name);
    snprintf(ret->cert, sizeof ret->cert, "%s", has_cert ? cert.name : "");
    ret->cred = c.id;
    ret->tenant = c.tenant;
    ret->tenant_sessions = atomic_load(&q->about->sessions);
    sess_on_behalf(c.tenant);
    ret->uid = c.uid;
    ret->gid = c.gid;
    ret->any_uid = c.any_uid;
    ret->origin = c.origin;
    ret->admin = c.admin;
    return 0;
}

/*
 * The client id that reply records go by: another credential's requests never meet them, nor another tenant's of the
 * same name, not even an earlier one's. The server's own tenant is not named in it: its records are as old as the
 * store.
 */
static int bind_client(const struct ctl_tenant *t, const struct sess_ident *who, const char *what, const uint8_t id[16],
                       uint8_t ret[16])
{
    static const uint8_t none[sizeof t->life];
    uint8_t mac[PST_HMAC_BYTES];
    const char *tenant = who->tenant ? t->name : "";
    bool made = memcmp(t->life, none, sizeof none) != 0;
    const struct pst_bytes parts[] = {{what, strlen(what) + 1},
                                      {id, 16},
                                      {who->credential, strlen(who->credential) + (who->tenant ? 1 : 0)},
                                      {tenant, strlen(tenant) + made},
                                      {t->life, made ? sizeof t->life : 0}};
    int r = pst_hmac(what, strlen(what) + 1, parts, ARRAY_SIZE(parts), mac);
    memcpy(ret, mac, 16);
    return r;
}

/* Printable, cut: it goes to logs and status. */
static void copy_text(char *dst, size_t size, const char *src)
{
    size_t n = strnlen(src, size - 1);
    for (size_t i = 0; i < n; i++)
        dst[i] = src[i] >= 0x20 && src[i] < 0x7f ? src[i] : '?';
    dst[n] = 0;
}

static int add_endpoints(struct ctl_req *q, PB(SessionOpenReply) * out)
{
    size_t n = q->tenant->in.nendpoints;
    PB(DataEndpoint) *e = arena_alloc(&q->a, n * sizeof *e), **p = arena_alloc(&q->a, n * sizeof *p);

    if (n && (!e || !p))
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct ctl_endpoint *from = &q->tenant->in.endpoints[i];
        penstock__v1__data_endpoint__init(&e[i]);
        e[i].provider = (char *)from->provider;
        e[i].address = (ProtobufCBinaryData){from->addr_len, (uint8_t *)&from->addr};
        e[i].shard = from->shard;
        e[i].text = (char *)from->text;
        p[i] = &e[i];
    }
    out->data = p;
    out->n_data = n;
    return 0;
}

static int open_reply(struct ctl_req *q, PB(SessionOpenReply) * out)
{
    const struct sess_ident *who = sess_ident(q->sess);
    int r = ctl_bytes(q, sess_id(q->sess), SESS_ID_BYTES, &out->session);

    if (!r)
        r = ctl_bytes(q, sess_data_key(q->sess), SESS_KEY_BYTES, &out->data_key);
    if (!r)
        r = add_endpoints(q, out);
    out->export_path = q->s->export_path ? q->s->export_path : out->export_path;
    out->lease_ms = (uint32_t)(sess_limits(q->s->sess)->lease_ns / NSEC_PER_MSEC);
    out->software = (char *)CTL_SOFTWARE;
    out->protocol = CTL_PROTOCOL;
    out->uid = who->uid;
    out->gid = who->gid;
    out->any_uid = who->any_uid;
    out->origin = who->origin;
    out->third_party = q->tenant->in.third_party;
    out->slots = PST_SLOTS_MAX;
    out->history = pst_store_history(q->tenant->in.st);
    return r;
}

#define FENCE_WAIT_NS (200 * NSEC_PER_MSEC) /* a thread is not held for long: the client comes again */

/* No new session while something of the earlier ones is in the store. */
static int fence(struct ctl_req *q)
{
    uint64_t end = now_ns() + FENCE_WAIT_NS;

    once_fence(q->sess);
    while (!once_quiet(q->sess)) {
        int r = now_ns() < end ? ctl_pause(q)
                               : ctl_fail(q, -EAGAIN, "requests of an earlier session of this client are not done yet");
        if (r)
            return r;
    }
    return 0;
}

static int do_open(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(SessionOpenRequest) *in = in_;
    struct sess_ident who = {0};
    int r;

    if (in->protocol != CTL_PROTOCOL) {
        char software[SESS_NAME_MAX + 1];
        copy_text(software, sizeof software, in->software);
        sess_refuse(q->s->sess, REFUSE_VERSION);
        return ctl_fail(q, -EPROTO, "the client speaks protocol %u (%s), the server protocol %u (%s)", in->protocol,
                        *software ? software : "?", CTL_PROTOCOL, CTL_SOFTWARE);
    }
    if (in->client_id.len != sizeof who.client_id)
        return ctl_fail(q, -EINVAL, "client_id has %zu bytes, not 16", in->client_id.len);
    r = authenticate(q, in->token, &who);
    if (r)
        return r;
    memcpy(who.client_id, in->client_id.data, sizeof who.client_id);
    copy_text(who.purpose, sizeof who.purpose, in->purpose);
    copy_text(who.software, sizeof who.software, in->software);
    copy_text(who.peer, sizeof who.peer, rpc_peer(q->call));
    r = bind_client(&q->about->in, &who, "penstock client id", who.client_id, who.client);
    if (!r && (atomic_load(&q->s->stopping) || atomic_load(&q->s->waits_ended)))
        r = -ESHUTDOWN;
    if (!r)
        r = pst_store_origin_add(q->about->in.st, who.client);
    if (r == -ESHUTDOWN)
        return ctl_fail(q, r, "the server is stopping");
    if (r)
        return r;
    r = sess_open(q->s->sess, &who, now_ns(), &q->sess);
    if (r) {
        pst_store_origin_remove(q->about->in.st, who.client);
        return r;
    }
    q->tenant = q->about;
    /* Who takes the credential away ends its sessions after that: one of the two sees the other. */
    if (!ctl_cred_alive(q->s, who.cred))
        r = ctl_fail(q, -EACCES, "the credential is none any more");
    if (!r)
        r = in->fence ? fence(q) : 0;
    if (!r)
        r = open_reply(q, out_);
    if (r) {
        sess_close(q->s->sess, sess_id(q->sess));
        sess_put(take_ptr(q->sess));
    } else {
        ctl_audit(q, "session_open", who.purpose, 0);
    }
    return r;
}

static int do_renew(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(SessionRenewRequest) *in = in_;
    PB(SessionRenewReply) *out = out_;
    int r = ctl_need_session(q, in->session);

    if (!r && atomic_load(&q->s->waits_ended)) /* that is what who asks was told by ctl_result */
        r = ctl_fail(q, -ESTALE, "the session has ended");
    if (!r)
        r = sess_renew(q->s->sess, q->sess, now_ns());
    out->lease_ms = (uint32_t)(sess_limits(q->s->sess)->lease_ns / NSEC_PER_MSEC);
    return r;
}

static int do_close(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(SessionCloseRequest) *in = in_;
    int r = ctl_need_session(q, in->session);
    (void)out_;
    return r ? r : sess_close(q->s->sess, sess_id(q->sess));
}

bool ctl_has_shard(const struct ctl_tenant *t, uint32_t shard)
{
    for (size_t i = 0; i < t->nendpoints; i++)
        if (t->endpoints[i].shard == shard)
            return true;
    return false;
}

static int do_ticket(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(TicketRequest) *in = in_;
    PB(TicketReply) *out = out_;
    uint8_t ticket[SESS_TICKET_BYTES];
    int r = ctl_need_session(q, in->session);

    if (r)
        return r;
    if (in->count < 1 || in->count > 16 || !ctl_has_shard(&q->tenant->in, in->shard))
        return ctl_fail(q, -EINVAL, "%u tickets for shard %u: 1..16 for a shard of the session's reply", in->count,
                        in->shard);
    out->tickets = arena_alloc(&q->a, in->count * sizeof *out->tickets);
    if (!out->tickets)
        return -ENOMEM;
    out->ticket_ms = (uint32_t)(sess_limits(q->s->sess)->ticket_ns / NSEC_PER_MSEC);
    while (out->n_tickets < in->count) {
        r = sess_ticket_new(q->s->sess, q->sess, in->shard, now_ns(), ticket);
        if (!r)
            r = ctl_bytes(q, ticket, sizeof ticket, &out->tickets[out->n_tickets]);
        if (r) /* fewer than asked for are still of use */
            return out->n_tickets && r == -EAGAIN ? 0 : r;
        out->n_tickets++;
    }
    return 0;
}

/* ---- origins ---- */

#define ORIGINS_MAX 256u /* in one request */

/* Until nothing that was sent for it before is in the store. */
static int origin_wait(struct ctl_req *q, uint32_t number, uint64_t end)
{
    while (!sess_origin_quiet(q->s->sess, q->sess, number)) {
        int r = now_ns() < end ? ctl_pause(q)
                               : ctl_fail(q, -EAGAIN, "requests of an earlier session of this client are not done yet");
        if (r)
            return r;
    }
    return 0;
}

static int origin_add(struct ctl_req *q, ProtobufCBinaryData id, uint32_t *ret)
{
    uint8_t client[16];
    int r;

    if (id.len != sizeof client)
        return ctl_fail(q, -EINVAL, "a client id has %zu bytes, not 16", id.len);
    r = bind_client(&q->tenant->in, sess_ident(q->sess), "penstock origin", id.data, client);
    return r ? r : sess_origin_add(q->s->sess, q->sess, client, ret);
}

static int do_origins(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(OriginsRequest) *in = in_;
    PB(OriginsReply) *out = out_;
    uint64_t end = now_ns() + FENCE_WAIT_NS;
    int r = ctl_need_origin(q, in->header);

    if (r)
        return r;
    if (in->n_clients > ORIGINS_MAX || in->n_drop > ORIGINS_MAX)
        return ctl_fail(q, -EINVAL, "at most %u clients and %u numbers to drop", ORIGINS_MAX, ORIGINS_MAX);
    for (size_t i = 0; i < in->n_drop; i++)
        sess_origin_drop(q->s->sess, q->sess, in->drop[i]);
    out->numbers = arena_alloc(&q->a, (in->n_clients + 1) * sizeof *out->numbers);
    if (!out->numbers)
        return -ENOMEM;
    while (!r && out->n_numbers < in->n_clients)
        if (!(r = origin_add(q, in->clients[out->n_numbers], &out->numbers[out->n_numbers])))
            out->n_numbers++;
    for (size_t i = 0; i < out->n_numbers && !r; i++)
        r = origin_wait(q, out->numbers[i], end);
    for (size_t i = 0; i < out->n_numbers && r; i++)
        sess_origin_drop(q->s->sess, q->sess, out->numbers[i]);
    return r;
}

#define SERVICE "/penstock.v1.SessionService/"
const struct ctl_method ctl_session_methods[] = {
    {SERVICE "Open", &penstock__v1__session_open_request__descriptor, &penstock__v1__session_open_reply__descriptor,
     do_open},
    {SERVICE "Renew", &penstock__v1__session_renew_request__descriptor, &penstock__v1__session_renew_reply__descriptor,
     do_renew},
    {SERVICE "Close", &penstock__v1__session_close_request__descriptor, &penstock__v1__session_close_reply__descriptor,
     do_close},
    {SERVICE "Ticket", &penstock__v1__ticket_request__descriptor, &penstock__v1__ticket_reply__descriptor, do_ticket},
    {SERVICE "Origins", &penstock__v1__origins_request__descriptor, &penstock__v1__origins_reply__descriptor,
     do_origins},
    {SERVICE "ThirdParty", &penstock__v1__third_party_request__descriptor, &penstock__v1__third_party_reply__descriptor,
     ctl_third_party},
    {SERVICE "ThirdTicket", &penstock__v1__third_ticket_request__descriptor,
     &penstock__v1__third_ticket_reply__descriptor, ctl_third_ticket},
};
const size_t ctl_session_nmethods = ARRAY_SIZE(ctl_session_methods);

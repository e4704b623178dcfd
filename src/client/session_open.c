/* SessionService, as its client. */
#include "session.h"

#include "base/crypto.h"
#include "base/err.h"
#include "base/secret.h"
#include "control/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PROTOCOL 1u
#define SERVICE  "/penstock.v1.SessionService/"

/* ---- channels ---- */

struct session_channel *session_channel_ref(struct session *s)
{
    s->channel->refs++;
    return s->channel;
}

void session_channel_unref(struct session *s, struct session_channel *ch)
{
    bool last;

    if (!ch)
        return;
    pthread_mutex_lock(&s->lock);
    last = !--ch->refs;
    pthread_mutex_unlock(&s->lock);
    if (!last)
        return;
    rpc_channel_close(ch->rpc);
    free(ch);
}

/* Takes the place of the one that was there. Certificates are read anew. */
int session_channel_open(struct session *s, char *err, size_t err_size)
{
    struct rpc_tls tls = {s->ca_file, s->cert_file, s->key_file};
    struct rpc_channel_config cc = {.addr = s->addr, .insecure = s->insecure};
    struct session_channel *ch = calloc(1, sizeof *ch), *old;
    int r;

    if (!ch)
        return -ENOMEM;
    if (s->ca_file || s->cert_file || s->key_file)
        cc.tls = &tls;
    ch->refs = 1;
    r = rpc_channel_open(&cc, &ch->rpc, err, err_size);
    if (r < 0) {
        free(ch);
        return r;
    }
    pthread_mutex_lock(&s->lock);
    old = s->channel;
    s->channel = ch;
    pthread_mutex_unlock(&s->lock);
    session_channel_unref(s, old);
    return 0;
}

/* ---- calls ---- */

int session_net_call(struct session *s, const char *path, const ProtobufCMessage *req,
                     const ProtobufCMessageDescriptor *reply, ProtobufCMessage **ret, struct rpc_result *res)
{
    uint8_t *buf = malloc(protobuf_c_message_get_packed_size(req) + 1);
    int r;

    *res = (struct rpc_result){0};
    if (!buf)
        return -ENOMEM;
    r = rpc_unary(s->channel->rpc, path, buf, protobuf_c_message_pack(req, buf), UNARY_MS, s->cancel, res);
    free(buf);
    if (r == 0) {
        *ret = protobuf_c_message_unpack(reply, NULL, res->len, res->data);
        r = *ret ? 0 : -EBADMSG;
    }
    rpc_result_done(res);
    return r;
}

bool session_endpoint(const PB(DataEndpoint) *in, struct session_shard *ret)
{
    struct session_shard sh = {.shard = in->shard, .addr_len = (socklen_t)in->address.len};

    if (in->address.len > sizeof sh.addr || in->address.len < sizeof(sa_family_t) ||
        strlen(in->provider) >= sizeof sh.provider)
        return false;
    snprintf(sh.provider, sizeof sh.provider, "%s", in->provider);
    memcpy(&sh.addr, in->address.data, in->address.len);
    *ret = sh;
    return true;
}

static int take_facts(const PB(SessionOpenReply) *in, struct session_facts *ret)
{
    struct session_facts f = {
        .lease_ms = in->lease_ms, .history = in->history, .who = {in->uid, in->gid, in->any_uid, in->origin}};

    if (in->session.len != sizeof f.id || in->data_key.len != sizeof f.data_key || in->lease_ms < 100)
        return -EBADMSG;
    if (in->slots < PST_SLOTS_MAX)
        return -EPROTO; /* fewer reply records than requests that we keep outstanding */
    memcpy(f.id, in->session.data, sizeof f.id);
    memcpy(f.data_key, in->data_key.data, sizeof f.data_key);
    if (in->export_path[0] == '/' && strlen(in->export_path) < sizeof f.export_path)
        snprintf(f.export_path, sizeof f.export_path, "%s", in->export_path);
    for (size_t i = 0; i < in->n_data && f.nshards < SESSION_SHARDS_MAX; i++)
        f.nshards += session_endpoint(in->data[i], &f.shard[f.nshards]);
    f.third_party = in->third_party;
    *ret = f;
    return 0;
}

/* gRPC has one code for all that keeps it from connecting. */
static int connect_error(int err, const char *details)
{
    if (err != -ENOTCONN)
        return err;
    return strstr(details, "refused") || strstr(details, "No such file") ? -ECONNREFUSED : -EHOSTUNREACH;
}

static int open_with(struct session *s, const char *token, ProtobufCMessage **ret, struct rpc_result *res)
{
    PB(SessionOpenRequest) req = PENSTOCK__V1__SESSION_OPEN_REQUEST__INIT;

    req.protocol = PROTOCOL;
    req.software = (char *)(uintptr_t)("penstock " PENSTOCK_VERSION);
    req.client_id = (ProtobufCBinaryData){sizeof s->client_id, s->client_id};
    req.token = (ProtobufCBinaryData){strlen(token), (uint8_t *)(uintptr_t)token};
    req.purpose = s->purpose;
    req.fence = s->epoch > 0 || s->life > 0;
    return session_net_call(s, SERVICE "Open", &req.base, &penstock__v1__session_open_reply__descriptor, ret, res);
}

/* Where its user says which credential it has. */
static const char *credential_hint(const struct session *s)
{
    return strcmp(s->purpose, "agent")
               ? " (--token-file; --ca, --cert and --key)"
               : " (the agent's backend.token_file or backend.cert; a tenant's backend_token_file or backend_cert)";
}

int session_net_open(struct session *s, struct session_facts *ret, char *err, size_t err_size)
{
    char token[SECRET_TOKEN_MAX + 1], newer[sizeof token];
    struct rpc_result res;
    ProtobufCMessage *m = NULL;
    int r = token_to_show(s->addr, s->token_file, token, err, err_size);

    s->turned_away = false;
    if (r < 0)
        return r;
    r = open_with(s, token, &m, &res);
    /*
     * A server that starts listens before it writes its token file, and answers after that: the file that we found (or
     * did not find) was another's.
     */
    if (r == -EACCES && token_to_show(s->addr, s->token_file, newer, err, err_size) == 0 && strcmp(newer, token))
        r = open_with(s, newer, &m, &res);
    pst_wipe(token, sizeof token);
    pst_wipe(newer, sizeof newer);
    s->turned_away = r == -EACCES && res.from_server;
    if (r == 0) {
        r = take_facts((PB(SessionOpenReply) *)m, ret);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    if (r < 0) {
        r = connect_error(r, res.details);
        snprintf(err, err_size, "%s: %s%s%s", s->addr, rpc_result_text(&res),
                 r == -EACCES ? credential_hint(s) : "",
                 r == -ECONNREFUSED ? "; is the server running? (penstock serve)" : "");
    }
    return r;
}

int session_net_renew(struct session *s, const uint8_t id[SESSION_ID_BYTES], uint32_t *ret_lease_ms)
{
    PB(SessionRenewRequest) req = PENSTOCK__V1__SESSION_RENEW_REQUEST__INIT;
    struct rpc_result res;
    ProtobufCMessage *m;
    int r;

    req.session = (ProtobufCBinaryData){SESSION_ID_BYTES, (uint8_t *)(uintptr_t)id};
    r = session_net_call(s, SERVICE "Renew", &req.base, &penstock__v1__session_renew_reply__descriptor, &m, &res);
    if (r == 0) {
        *ret_lease_ms = (uint32_t)max_u64(((PB(SessionRenewReply) *)m)->lease_ms, 100);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    return r;
}

void session_net_close(struct session *s, const uint8_t id[SESSION_ID_BYTES])
{
    PB(SessionCloseRequest) req = PENSTOCK__V1__SESSION_CLOSE_REQUEST__INIT;
    uint8_t buf[64];
    struct rpc_result res;

    req.session = (ProtobufCBinaryData){SESSION_ID_BYTES, (uint8_t *)(uintptr_t)id};
    rpc_unary(s->channel->rpc, SERVICE "Close", buf, penstock__v1__session_close_request__pack(&req, buf), 1000, NULL,
              &res);
    rpc_result_done(&res);
}

int session_net_ticket(struct session *s, const uint8_t id[SESSION_ID_BYTES], struct session_ticket *t)
{
    PB(TicketRequest) req = PENSTOCK__V1__TICKET_REQUEST__INIT;
    struct rpc_result res;
    ProtobufCMessage *m;
    int r;

    req.session = (ProtobufCBinaryData){SESSION_ID_BYTES, (uint8_t *)(uintptr_t)id};
    req.shard = t->shard;
    req.count = 1;
    r = session_net_call(s, SERVICE "Ticket", &req.base, &penstock__v1__ticket_reply__descriptor, &m, &res);
    if (r < 0)
        return r;
    if (((PB(TicketReply) *)m)->n_tickets != 1 || ((PB(TicketReply) *)m)->tickets[0].len > sizeof t->bytes) {
        r = -EBADMSG;
    } else {
        t->len = ((PB(TicketReply) *)m)->tickets[0].len;
        memcpy(t->bytes, ((PB(TicketReply) *)m)->tickets[0].data, t->len);
    }
    protobuf_c_message_free_unpacked(m, NULL);
    return r;
}

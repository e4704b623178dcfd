#include "session.h"

#include "base/crypto.h"
#include "base/rng.h"
#include "base/secret.h"
#include "control/tls.h"
#include "penstock/v1/session.pb-c.h"
#include "server/config.h"

#include <errno.h>
#include <string.h>

#define PROTOCOL   1u
#define TIMEOUT_MS 30000u

struct cli_session {
    struct rpc_channel *ch;
    uint8_t id[16];
    char what[600]; /* the server, and the thing at hand: for messages */
    uint32_t timeout_ms;
};

/* The details stay in res. */
static int call(struct cli_session *s, const char *path, const ProtobufCMessage *in,
                const ProtobufCMessageDescriptor *out, ProtobufCMessage **ret, struct rpc_result *res)
{
    size_t n = protobuf_c_message_get_packed_size(in);
    cleanup_free uint8_t *buf = malloc(n + 1);
    int r;

    *res = (struct rpc_result){0};
    if (!buf)
        return -ENOMEM;
    protobuf_c_message_pack(in, buf);
    r = rpc_unary(s->ch, path, buf, n, s->timeout_ms, NULL, res);
    if (r == 0) {
        *ret = protobuf_c_message_unpack(out, NULL, res->len, res->data);
        r = *ret ? 0 : -EBADMSG;
    }
    rpc_result_done(res);
    return r;
}

/* opening: only then is what is refused this client's credential. */
static const char *hint(int err, const struct rpc_result *res, bool opening)
{
    if (err == -EACCES && opening)
        return " (--token-file; --ca, --cert and --key)";
    if (!res->from_server && (strstr(res->details, "refused") || strstr(res->details, "No such file")))
        return "; is the server running? (penstock serve)";
    return "";
}

static int call_failed(struct cli_session *s, int r, const struct rpc_result *res, bool opening)
{
    if (r == -ENOMEM && !res->from_server)
        return cli_fail(r, "%s", s->what);
    cli_error("%s: %s%s", s->what, rpc_result_text(res), hint(r, res, opening));
    return cli_exit_code(r);
}

ProtobufCMessage *cli_call(struct cli_session *s, const char *path, const ProtobufCMessage *in,
                           const ProtobufCMessageDescriptor *out, int *ret_exit)
{
    ProtobufCMessage *m = NULL;
    struct rpc_result res;
    int r = call(s, path, in, out, &m, &res);

    if (r < 0)
        *ret_exit = call_failed(s, r, &res, false);
    return m;
}

static int open_with(struct cli_session *s, const char *token, ProtobufCMessage **ret, struct rpc_result *res)
{
    Penstock__V1__SessionOpenRequest q = PENSTOCK__V1__SESSION_OPEN_REQUEST__INIT;
    uint8_t client[16];
    char software[] = "penstock " PENSTOCK_VERSION, purpose[] = "cli";

    rng_secret(client, sizeof client);
    q.protocol = PROTOCOL;
    q.software = software;
    q.client_id = (ProtobufCBinaryData){sizeof client, client};
    q.token = (ProtobufCBinaryData){strlen(token), (uint8_t *)(uintptr_t)token};
    q.purpose = purpose;
    return call(s, "/penstock.v1.SessionService/Open", &q.base, &penstock__v1__session_open_reply__descriptor, ret,
                res);
}

static int open_session(struct cli_session *s, const char *addr, const struct cli_conn *k)
{
    const char *file = cli_or_env(k->token_file, "PENSTOCK_TOKEN_FILE");
    char token[SECRET_TOKEN_MAX + 1], newer[sizeof token], err[300];
    ProtobufCMessage *m = NULL;
    Penstock__V1__SessionOpenReply *a;
    struct rpc_result res;
    int r = token_to_show(addr, file, token, err, sizeof err), code = EXIT_OK;

    if (r < 0) {
        cli_error("%s", err);
        return cli_exit_code(r);
    }
    r = open_with(s, token, &m, &res);
    /* A server that starts listens before it writes its token file: see session_net_open. */
    if (r == -EACCES && token_to_show(addr, file, newer, err, sizeof err) == 0 && strcmp(newer, token))
        r = open_with(s, newer, &m, &res);
    pst_wipe(token, sizeof token);
    pst_wipe(newer, sizeof newer);
    if (r < 0)
        return call_failed(s, r, &res, true);
    a = (void *)m;
    if (a->session.len == sizeof s->id)
        memcpy(s->id, a->session.data, sizeof s->id);
    else
        code = EXIT_FAILED;
    penstock__v1__session_open_reply__free_unpacked(a, NULL);
    return code;
}

struct cli_session *cli_session_open(const struct cli_url *u, const struct cli_conn *k, int *ret_exit)
{
    const struct rpc_tls tls = {cli_or_env(k->ca, "PENSTOCK_CA_FILE"), cli_or_env(k->cert, "PENSTOCK_CERT_FILE"),
                                cli_or_env(k->key, "PENSTOCK_KEY_FILE")};
    struct cli_session *s = calloc(1, sizeof *s);
    char addr[SRV_HOST_MAX + 8], err[300] = "";
    struct rpc_channel_config c = {.addr = addr, .insecure = k->insecure};
    int r = s ? cli_url_addr(u, addr, sizeof addr) : -ENOMEM;

    if (r < 0) {
        *ret_exit = cli_fail(r, "%s", u->server);
        free(s);
        return NULL;
    }
    snprintf(s->what, sizeof s->what, "%s", u->server);
    s->timeout_ms = k->timeout_ms ? (uint32_t)min_u64(k->timeout_ms, 3600000) : TIMEOUT_MS;
    c.tls = tls.ca_file && !rpc_addr_is_local(addr) ? &tls : NULL;
    r = rpc_channel_open(&c, &s->ch, err, sizeof err);
    if (r < 0) {
        cli_error("%s: %s", u->server, err);
        *ret_exit = cli_exit_code(r);
    } else {
        *ret_exit = open_session(s, addr, k);
    }
    if (*ret_exit != EXIT_OK) {
        rpc_channel_close(s->ch);
        free(s);
        return NULL;
    }
    return s;
}

void cli_session_close(struct cli_session *s)
{
    Penstock__V1__SessionCloseRequest q = PENSTOCK__V1__SESSION_CLOSE_REQUEST__INIT;
    struct rpc_result res;
    uint8_t buf[64];

    if (!s)
        return;
    q.session = cli_session_id(s);
    if (protobuf_c_message_get_packed_size(&q.base) <= sizeof buf) {
        rpc_unary(s->ch, "/penstock.v1.SessionService/Close", buf, protobuf_c_message_pack(&q.base, buf), 2000, NULL,
                  &res);
        rpc_result_done(&res);
    }
    rpc_channel_close(s->ch);
    free(s);
}

void cli_session_about(struct cli_session *s, const char *thing)
{
    size_t n = strlen(s->what);

    snprintf(s->what + n, sizeof s->what - n, ": %s", thing);
}

ProtobufCBinaryData cli_session_id(struct cli_session *s)
{
    return (ProtobufCBinaryData){sizeof s->id, s->id};
}

struct rpc_channel *cli_session_channel(struct cli_session *s)
{
    return s->ch;
}

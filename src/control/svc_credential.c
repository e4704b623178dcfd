/* TenantService: the credentials of tenants. A token is told in one reply; the audit log and the logs have none. */
#include "service_priv.h"

#include "base/crypto.h"

#include <errno.h>
#include <string.h>

static int cred_create(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(CredentialCreateRequest) *in = in_;
    PB(CredentialCreateReply) *out = out_;
    const struct ctl_hooks *h = &q->s->hooks;
    const char **keys, **values;
    char err[sizeof q->text] = "", token[CTL_TOKEN_MAX] = "";
    bool kept = false;
    int r;

    ctl_act_settings(q, "credential_create", in->name, in->settings, in->n_settings);
    r = ctl_need_operator_header(q, in->header);
    if (!r && !h->cred_create)
        r = -EOPNOTSUPP;
    if (!r)
        r = ctl_need_settings(q, in->settings, in->n_settings, CTL_SETTINGS_MAX, &keys, &values);
    if (r)
        return r;
    r = h->cred_create(h->user, in->name, keys, values, in->n_settings, in->token, token, &kept, err, sizeof err);
    if (!r && *token) {
        out->token = arena_copy(&q->a, token, strlen(token));
        r = out->token ? 0 : -ENOMEM;
    }
    pst_wipe(token, sizeof token);
    if (r)
        return *err ? ctl_fail(q, r, "%s", err) : r;
    out->kept = kept;
    return 0;
}

static int cred_delete(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(CredentialDeleteRequest) *in = in_;
    PB(CredentialDeleteReply) *out = out_;
    const struct ctl_hooks *h = &q->s->hooks;
    char err[sizeof q->text] = "";
    bool kept = false;
    int r;

    ctl_act(q, "credential_delete", "%.*s", SESS_NAME_MAX, in->name);
    r = ctl_need_operator_header(q, in->header);
    if (!r && !h->cred_delete)
        r = -EOPNOTSUPP;
    if (r)
        return r;
    r = h->cred_delete(h->user, in->name, &out->sessions, &kept, err, sizeof err);
    if (r)
        return *err ? ctl_fail(q, r, "%s", err) : r;
    out->kept = kept;
    return 0;
}

struct listing {
    struct ctl_req *q;
    PB(CredentialListReply) * out;
    const char *tenant;
    size_t room;
    int err;
};

static char *copy(struct listing *l, const char *s)
{
    char *c = arena_copy(&l->q->a, s, strlen(s));
    if (!c)
        l->err = -ENOMEM;
    return c;
}

static void add(void *arg, const struct ctl_cred_info *c)
{
    struct listing *l = arg;
    PB(Credential) * m;

    if (l->err || (*l->tenant && strcmp(l->tenant, c->tenant)))
        return;
    if (l->out->n_credentials == l->room) {
        size_t room = l->room ? 2 * l->room : 32;
        PB(Credential) **more = arena_alloc(&l->q->a, room * sizeof *more);
        if (!more) {
            l->err = -ENOMEM;
            return;
        }
        if (l->room)
            memcpy(more, l->out->credentials, l->room * sizeof *more);
        l->out->credentials = more;
        l->room = room;
    }
    m = arena_alloc(&l->q->a, sizeof *m);
    if (!m) {
        l->err = -ENOMEM;
        return;
    }
    penstock__v1__credential__init(m);
    m->name = copy(l, c->name);
    m->tenant = copy(l, c->tenant);
    m->cn = copy(l, c->cn ? c->cn : "");
    m->uid = c->uid;
    m->gid = c->gid;
    m->any_uid = c->any_uid;
    m->admin = c->admin;
    m->origin = c->origin;
    m->run_time = c->run_time;
    l->out->credentials[l->out->n_credentials++] = m;
}

static int cred_list(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(CredentialListRequest) *in = in_;
    struct listing l = {.q = q, .out = out_, .tenant = in->tenant};
    const struct ctl_hooks *h = &q->s->hooks;
    int r = ctl_need_operator_header(q, in->header);

    if (!r && !h->creds)
        r = -EOPNOTSUPP;
    if (r)
        return r;
    h->creds(h->user, add, &l);
    return l.err;
}

#define SERVICE "/penstock.v1.TenantService/"
#define D(name) &penstock__v1__##name##__descriptor
const struct ctl_method ctl_credential_methods[] = {
    {SERVICE "CreateCredential", D(credential_create_request), D(credential_create_reply), cred_create},
    {SERVICE "DeleteCredential", D(credential_delete_request), D(credential_delete_reply), cred_delete},
    {SERVICE "ListCredentials", D(credential_list_request), D(credential_list_reply), cred_list},
};
const size_t ctl_credential_nmethods = ARRAY_SIZE(ctl_credential_methods);

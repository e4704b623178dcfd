/* Tenants and credentials, made and deleted by calls. */
#include "raw_client.h"

#include "base/util.h"
#include "penstock/v1/admin.pb-c.h"

#include <stdio.h>
#include <string.h>

#define PB(x) Penstock__V1__##x

#define SETTINGS_MAX 16

struct settings {
    PB(TenantLimit) v[SETTINGS_MAX], *at[SETTINGS_MAX];
    char text[SETTINGS_MAX][200];
    size_t n;
};

static void take_settings(struct settings *s, const char *const *from)
{
    for (s->n = 0; from[s->n] && s->n < SETTINGS_MAX; s->n++) {
        char *text = s->text[s->n], *eq;
        snprintf(text, sizeof s->text[0], "%s", from[s->n]);
        eq = strchr(text, '=');
        *eq = 0;
        penstock__v1__tenant_limit__init(&s->v[s->n]);
        s->v[s->n].key = text;
        s->v[s->n].value = eq + 1;
        s->at[s->n] = &s->v[s->n];
    }
}

#define TENANTS "/penstock.v1.TenantService/"

int raw_tenant_create(struct raw *c, const char *name, const char *const *settings)
{
    PB(AdminHeader) h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    PB(TenantCreateRequest) q = PENSTOCK__V1__TENANT_CREATE_REQUEST__INIT;
    ProtobufCMessage *a;
    struct settings s;
    int r;

    take_settings(&s, settings);
    h.session = (ProtobufCBinaryData){16, c->session};
    q.header = &h;
    q.name = (char *)name;
    q.settings = s.at;
    q.n_settings = s.n;
    r = raw_rpc(c, TENANTS "Create", &q.base, &penstock__v1__tenant_create_reply__descriptor, &a);
    if (r == 0)
        protobuf_c_message_free_unpacked(a, NULL);
    return r;
}

int raw_tenant_delete(struct raw *c, const char *name)
{
    PB(AdminHeader) h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    PB(TenantDeleteRequest) q = PENSTOCK__V1__TENANT_DELETE_REQUEST__INIT;
    ProtobufCMessage *a;
    int r;

    h.session = (ProtobufCBinaryData){16, c->session};
    q.header = &h;
    q.name = (char *)name;
    r = raw_rpc(c, TENANTS "Delete", &q.base, &penstock__v1__tenant_delete_reply__descriptor, &a);
    if (r == 0)
        protobuf_c_message_free_unpacked(a, NULL);
    return r;
}

int raw_cred_create(struct raw *c, const char *name, const char *const *settings, const char *token,
                    char ret_token[600])
{
    PB(AdminHeader) h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    PB(CredentialCreateRequest) q = PENSTOCK__V1__CREDENTIAL_CREATE_REQUEST__INIT;
    PB(CredentialCreateReply) * a;
    struct settings s;
    int r;

    take_settings(&s, settings);
    h.session = (ProtobufCBinaryData){16, c->session};
    q.header = &h;
    q.name = (char *)name;
    q.settings = s.at;
    q.n_settings = s.n;
    q.token = (char *)token;
    r = raw_rpc(c, TENANTS "CreateCredential", &q.base, &penstock__v1__credential_create_reply__descriptor,
                (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    snprintf(ret_token, 600, "%s", a->token);
    penstock__v1__credential_create_reply__free_unpacked(a, NULL);
    return 0;
}

int raw_cred_delete(struct raw *c, const char *name)
{
    PB(AdminHeader) h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    PB(CredentialDeleteRequest) q = PENSTOCK__V1__CREDENTIAL_DELETE_REQUEST__INIT;
    ProtobufCMessage *a;
    int r;

    h.session = (ProtobufCBinaryData){16, c->session};
    q.header = &h;
    q.name = (char *)name;
    r = raw_rpc(c, TENANTS "DeleteCredential", &q.base, &penstock__v1__credential_delete_reply__descriptor, &a);
    if (r == 0)
        protobuf_c_message_free_unpacked(a, NULL);
    return r;
}

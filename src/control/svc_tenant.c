/* TenantService. */
#include "service_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LIMITS_MAX 32u /* in a request */

void ctl_tenant_sessions(struct ctl_server *s, uint32_t tenant, uint32_t sessions)
{
    atomic_store(&s->tenants[tenant].sessions, sessions);
}

/* "anna rate=200M weight=3", as much as there is room for. */
static void tell_act(struct ctl_req *q, const PB(TenantSetRequest) * in)
{
    char text[sizeof q->what];
    size_t n = (size_t)snprintf(text, sizeof text, "%.*s", SESS_NAME_MAX, in->name);

    for (size_t i = 0; i < in->n_limits && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, " %.40s=%.40s", in->limits[i]->key, in->limits[i]->value);
    ctl_act(q, "tenant_set", "%s", text);
}

static int find(struct ctl_req *q, const char *name, uint32_t *ret)
{
    for (uint32_t i = 0; i < q->s->ntenants; i++)
        if (!strcmp(q->s->tenants[i].in.name, name)) {
            *ret = i;
            return 0;
        }
    return ctl_fail(q, -ENOENT, "no such tenant");
}

static int tenant_set(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(TenantSetRequest) *in = in_;
    const char *keys[LIMITS_MAX], *values[LIMITS_MAX];
    char err[sizeof q->text] = "";
    bool kept = false;
    uint32_t tenant = 0;
    int r;

    tell_act(q, in);
    r = ctl_need_admin_header(q, in->header);
    if (!r)
        r = ctl_need_operator(q);
    if (!r)
        r = find(q, in->name, &tenant);
    if (!r && (!in->n_limits || in->n_limits > LIMITS_MAX))
        r = ctl_fail(q, -EINVAL, "1 to %u limits", LIMITS_MAX);
    if (!r && !q->s->hooks.tenant_set)
        r = -EOPNOTSUPP;
    if (r)
        return r;
    for (size_t i = 0; i < in->n_limits; i++) {
        keys[i] = in->limits[i]->key;
        values[i] = in->limits[i]->value;
    }
    r = q->s->hooks.tenant_set(q->s->hooks.user, tenant, keys, values, in->n_limits, &kept, err, sizeof err);
    if (r)
        return *err ? ctl_fail(q, r, "%s", err) : r;
    ((PB(TenantSetReply) *)out_)->kept = kept;
    return 0;
}

const struct ctl_method ctl_tenant_methods[] = {
    {"/penstock.v1.TenantService/Set", &penstock__v1__tenant_set_request__descriptor,
     &penstock__v1__tenant_set_reply__descriptor, tenant_set},
};
const size_t ctl_tenant_nmethods = ARRAY_SIZE(ctl_tenant_methods);

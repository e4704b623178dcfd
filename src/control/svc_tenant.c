/* TenantService: tenants. Their credentials: svc_credential.c. */
#include "service_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LIMITS_MAX 32u /* in a request */

void ctl_act_settings(struct ctl_req *q, const char *act, const char *name, PB(TenantLimit) *const *settings, size_t n)
{
    char text[sizeof q->what];
    size_t at = (size_t)snprintf(text, sizeof text, "%.*s", SESS_NAME_MAX, name);

    for (size_t i = 0; i < n && at < sizeof text; i++) {
        bool hidden = strstr(settings[i]->key, "token") && !strstr(settings[i]->key, "token_file");
        at += (size_t)snprintf(text + at, sizeof text - at, " %.40s=%.80s", settings[i]->key,
                               hidden ? "..." : settings[i]->value);
    }
    ctl_act(q, act, "%s", text);
}

int ctl_need_settings(struct ctl_req *q, PB(TenantLimit) *const *settings, size_t n, size_t max, const char ***ret_keys,
                      const char ***ret_values)
{
    if (n > max)
        return ctl_fail(q, -EINVAL, "%zu settings: at most %zu", n, max);
    *ret_keys = arena_alloc(&q->a, (n + 1) * sizeof **ret_keys);
    *ret_values = arena_alloc(&q->a, (n + 1) * sizeof **ret_values);
    if (!*ret_keys || !*ret_values)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        (*ret_keys)[i] = settings[i]->key;
        (*ret_values)[i] = settings[i]->value;
    }
    return 0;
}

int ctl_need_operator_header(struct ctl_req *q, const PB(AdminHeader) * h)
{
    int r = ctl_need_admin_header(q, h);
    return r ? r : ctl_need_operator(q);
}

static int tenant_set(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(TenantSetRequest) *in = in_;
    const struct ctl_hooks *h = &q->s->hooks;
    const char **keys, **values;
    char err[sizeof q->text] = "";
    bool kept = false;
    int r;

    ctl_act_settings(q, "tenant_set", in->name, in->limits, in->n_limits);
    r = ctl_need_operator_header(q, in->header);
    if (!r && !(q->about = ctl_ten_find(q->s, in->name)))
        r = ctl_fail(q, -ENOENT, "no such tenant");
    if (!r && (!in->n_limits || in->n_limits > LIMITS_MAX))
        r = ctl_fail(q, -EINVAL, "1 to %u limits", LIMITS_MAX);
    if (!r && !h->tenant_set)
        r = -EOPNOTSUPP;
    if (!r)
        r = ctl_need_settings(q, in->limits, in->n_limits, LIMITS_MAX, &keys, &values);
    if (r)
        return r;
    r = h->tenant_set(h->user, ctl_ten_number(q->s, q->about), keys, values, in->n_limits, &kept, err, sizeof err);
    if (r)
        return *err ? ctl_fail(q, r, "%s", err) : r;
    ((PB(TenantSetReply) *)out_)->kept = kept;
    return 0;
}

static int tenant_create(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(TenantCreateRequest) *in = in_;
    const struct ctl_hooks *h = &q->s->hooks;
    const char **keys, **values;
    char err[sizeof q->text] = "";
    bool kept = false;
    int r;

    ctl_act_settings(q, "tenant_create", in->name, in->settings, in->n_settings);
    r = ctl_need_operator_header(q, in->header);
    if (!r && !h->tenant_create)
        r = -EOPNOTSUPP;
    if (!r)
        r = ctl_need_settings(q, in->settings, in->n_settings, CTL_SETTINGS_MAX, &keys, &values);
    if (r)
        return r;
    r = h->tenant_create(h->user, in->name, keys, values, in->n_settings, &kept, err, sizeof err);
    if (r)
        return *err ? ctl_fail(q, r, "%s", err) : r;
    ((PB(TenantCreateReply) *)out_)->kept = kept;
    return 0;
}

static int tenant_delete(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(TenantDeleteRequest) *in = in_;
    PB(TenantDeleteReply) *out = out_;
    const struct ctl_hooks *h = &q->s->hooks;
    char err[sizeof q->text] = "";
    bool kept = false;
    int r;

    ctl_act(q, "tenant_delete", "%.*s", SESS_NAME_MAX, in->name);
    r = ctl_need_operator_header(q, in->header);
    if (!r && !h->tenant_delete)
        r = -EOPNOTSUPP;
    if (r)
        return r;
    r = h->tenant_delete(h->user, in->name, &out->sessions, &kept, err, sizeof err);
    if (r)
        return *err ? ctl_fail(q, r, "%s", err) : r;
    out->kept = kept;
    return 0;
}

#define SERVICE "/penstock.v1.TenantService/"
#define D(name) &penstock__v1__##name##__descriptor
const struct ctl_method ctl_tenant_methods[] = {
    {SERVICE "Set", D(tenant_set_request), D(tenant_set_reply), tenant_set},
    {SERVICE "Create", D(tenant_create_request), D(tenant_create_reply), tenant_create},
    {SERVICE "Delete", D(tenant_delete_request), D(tenant_delete_reply), tenant_delete},
};
const size_t ctl_tenant_nmethods = ARRAY_SIZE(ctl_tenant_methods);

/* Locks: srv.limits_lock guards what a tenant's limits are; tenants_file is written under it. */
#include "limits.h"

#include "data.h"
#include "made.h"

#include "filter/filter.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define VALUE_MAX 32u

/* As text and, checked, as a number (uint64_t). */
static const struct {
    const char *name;
    size_t text, number;
} keys[] = {
#define KEY(name, member) {#name, offsetof(struct text_tenant, name), offsetof(struct srv_tenant, member)}
    KEY(quota, quota_bytes),
    KEY(quota_objects, quota_objects),
    KEY(weight, weight),
    KEY(rate, bytes_per_s),
    KEY(rate_ops, ops_per_s),
    KEY(burst, burst_bytes),
    KEY(burst_ops, burst_ops),
    KEY(max_sessions, max_sessions),
    KEY(max_connections, max_connections),
#undef KEY
};
#define KEYS ARRAY_SIZE(keys)

static char **at(struct text_tenant *t, size_t key)
{
    return (char **)((char *)t + keys[key].text);
}

static char *get(const struct text_tenant *t, size_t key)
{
    return *(char *const *)((const char *)t + keys[key].text);
}

static void drop(struct text_tenant *t)
{
    for (size_t i = 0; i < KEYS; i++) {
        free(*at(t, i));
        *at(t, i) = NULL;
    }
}

/* On a failure ret has nothing. */
static int copy(const struct text_tenant *from, struct text_tenant *ret)
{
    *ret = (struct text_tenant){0};
    for (size_t i = 0; i < KEYS; i++) {
        *at(ret, i) = get(from, i) ? strdup(get(from, i)) : NULL;
        if (get(from, i) && !get(ret, i)) {
            drop(ret);
            return -ENOMEM;
        }
    }
    return 0;
}

/* What holds of both, checked. */
static int combine(struct tenant *t, const struct text_tenant *base, const struct text_tenant *set,
                   struct srv_tenant *ret, char *err, size_t err_size)
{
    struct srv_tenant now = *t->cfg;
    struct text_tenant all = {0};
    char prefix[SESS_NAME_MAX + 10];
    int r;

    for (size_t i = 0; i < KEYS; i++) {
        char *s = get(set, i);
        *at(&all, i) = !s ? get(base, i) : strcmp(s, "none") ? s : NULL;
    }
    snprintf(prefix, sizeof prefix, "tenant %s", t->cfg->name);
    r = config_tenant_limits(t->srv->cfg, prefix, &all, &now, err, err_size);
    if (r == 0)
        *ret = now;
    return r;
}

static size_t find_key(const char *name)
{
    size_t i = 0;

    while (i < KEYS && strcmp(keys[i].name, name))
        i++;
    return i;
}

static bool is_value(const char *value)
{
    return strlen(value) < VALUE_MAX && !strpbrk(value, " \t\r\n#");
}

bool limits_is_key(const char *key)
{
    return find_key(key) < KEYS;
}

int limits_take(struct tenant *t, const char *key, const char *value)
{
    size_t i = find_key(key);
    return i == KEYS || !*value || !is_value(value) ? -EINVAL : config_set_string(at(&t->limits.set, i), value);
}

void limits_each_set(const struct tenant *t, void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
    for (size_t i = 0; i < KEYS; i++)
        if (get(&t->limits.set, i))
            fn(arg, keys[i].name, get(&t->limits.set, i));
}

/* ---- from the start to the end ---- */

/* The limits in the text of the configuration; NULL: it has none of that name. */
static const struct text_tenant *text_of(const struct srv_config *c, const char *name)
{
    const struct text_values *v = c->text->v;

    for (unsigned i = 0; i < v->tenants_count; i++)
        if (v->tenants[i].name && !strcmp(v->tenants[i].name, name))
            return &v->tenants[i];
    return NULL;
}

int limits_start(struct tenant *t, char *err, size_t err_size)
{
    const struct text_tenant *text = t->made ? &t->made->text : t->id ? text_of(t->srv->cfg, t->cfg->name) : NULL;
    int r = text ? copy(text, &t->limits.base) : 0;

    t->limits.now = *t->cfg;
    if (r == 0 && t->id)
        r = combine(t, &t->limits.base, &t->limits.set, &t->limits.now, err, err_size);
    atomic_store(&t->max_connections, t->limits.now.max_connections);
    return r;
}

void limits_stop(struct tenant *t)
{
    drop(&t->limits.base);
    drop(&t->limits.set);
}

/* ---- while it runs ---- */

/* Nothing of it fails: it was checked. Needs the lock. */
static void apply(struct tenant *t, const struct srv_tenant *now)
{
    const struct qos_limits q = tenant_shares(now);

    t->limits.now = *now;
    filter_quota_set(t->quota, now->quota_bytes, now->quota_objects);
    share_set(&t->share, &q);
    atomic_store(&t->max_connections, now->max_connections);
    ctl_tenant_sessions(t->srv->ctl, t->id, (uint32_t)now->max_sessions);
}

static int change(struct text_tenant *set, const char *key, const char *value, char *err, size_t err_size)
{
    size_t i = find_key(key);

    if (i == KEYS) {
        size_t n = (size_t)snprintf(err, err_size, "\"%.40s\" is no limit that can be set; these can:", key);
        for (i = 0; i < KEYS && n < err_size; i++)
            n += (size_t)snprintf(err + n, err_size - n, " %s", keys[i].name);
        return -EINVAL;
    }
    if (!is_value(value)) {
        snprintf(err, err_size, "%s: not a value", key);
        return -EINVAL;
    }
    if (*value)
        return config_set_string(at(set, i), value);
    free(*at(set, i));
    *at(set, i) = NULL;
    return 0;
}

int limits_set(struct srv *srv, uint32_t tenant, const char *const *names, const char *const *values, size_t n,
               bool *ret_kept, char *err, size_t err_size)
{
    struct tenant *t = srv_tenant(srv, tenant);
    struct text_tenant set, old;
    struct srv_tenant now;
    int r;

    if (!t->id) {
        snprintf(err, err_size,
                 "the server's own tenant has the limits of the configuration (limits.bytes, limits.operations)");
        return -EOPNOTSUPP;
    }
    scoped_lock(&srv->limits_lock);
    r = t->gone ? -ENOENT : copy(&t->limits.set, &set);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = change(&set, names[i], values[i], err, err_size);
    if (r == 0)
        r = combine(t, &t->limits.base, &set, &now, err, err_size);
    if (r < 0) {
        drop(&set);
        return r;
    }
    old = t->limits.set;
    t->limits.set = set;
    r = tenants_file_keep(srv, err, err_size);
    if (r < 0) {
        t->limits.set = old;
        drop(&set);
        return r;
    }
    drop(&old);
    apply(t, &now);
    *ret_kept = srv->cfg->tenants_file != NULL;
    return 0;
}

static void reload_one(struct tenant *t, const struct text_tenant *text)
{
    struct text_tenant base;
    struct srv_tenant now;
    char err[300];
    int r = copy(text, &base);

    snprintf(err, sizeof err, "tenant %s: out of memory", t->cfg->name);
    if (r == 0)
        r = combine(t, &base, &t->limits.set, &now, err, sizeof err);
    if (r < 0) { /* not of the file alone, which was checked: with what was set at run time */
        log_error("%s: its limits stay as they were", err);
        drop(&base);
        return;
    }
    drop(&t->limits.base);
    t->limits.base = base;
    apply(t, &now);
}

void limits_reload(struct srv *srv, const struct srv_config *again)
{
    scoped_lock(&srv->limits_lock);
    srv_each_tenant(srv, t) {
        const struct text_tenant *text = t->id ? text_of(again, t->cfg->name) : NULL;
        if (text && t->made)
            log_warn("tenant %s is in the configuration now, but was also created at run time: the daemon does not "
                     "start like this",
                     t->cfg->name);
        else if (text)
            reload_one(t, text);
        else if (t->id && !t->made)
            log_warn("tenant %s is not in the configuration any more: it is served until the daemon is started anew",
                     t->cfg->name);
    }
    for (unsigned i = 1; i < again->ntenants; i++)
        if (!srv_tenant_find(srv, again->tenants[i].name))
            log_warn("tenant %s is new in the configuration: it is served when the daemon is started anew",
                     again->tenants[i].name);
}

void limits_describe(const struct tenant *t, void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
    char text[32];

    scoped_lock(&t->srv->limits_lock);
    for (size_t i = 0; i < KEYS; i++) {
        uint64_t n = *(const uint64_t *)((const char *)&t->limits.now + keys[i].number);
        snprintf(text, sizeof text, "%llu", (unsigned long long)n);
        if (n)
            fn(arg, keys[i].name, text);
    }
    for (size_t i = 0; i < KEYS; i++)
        if (get(&t->limits.set, i))
            fn(arg, "set_at_run_time", keys[i].name);
}

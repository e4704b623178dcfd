/*
 * Tenants: the list of the file, for which there are no flags, and those that are made at run time (made.c), by the
 * same rules.
 */
#include "config_rows.h"

#include "control/session.h"
#include "filter/filter.h"
#include "store/perm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* prefix: "tenants[2]", as errors call it. */
struct where {
    const struct srv_config *c;
    const char *prefix;
    char key[140];
    char *err;
    size_t err_size;
};

static int bad(struct where *w, const char *member, const char *value, const char *why)
{
    snprintf(w->key, sizeof w->key, "%s%s%s", w->prefix, *member ? "." : "", member);
    return config_bad(w->c, NULL, w->key, value, why, w->err, w->err_size);
}

static int check_name(struct where *w, const char *name)
{
    if (!name)
        return bad(w, "", NULL, "name is missing");
    if (pst_label_check(name) < 0 || strlen(name) > SESS_NAME_MAX)
        return bad(w, "name", name, "must be 1 to 63 of A-Z a-z 0-9 . _ -");
    for (unsigned k = 0; k < w->c->ntenants; k++)
        if (!strcmp(w->c->tenants[k].name, name))
            return bad(w, "name", name, k ? "is there twice" : "is the server's own: it has no entry");
    return 0;
}

static int check_containers(struct where *w, const struct text_tenant *t)
{
    char member[40];

    if (t->containers_count == 0)
        return bad(w, "containers", NULL, "are missing: POOL/CONTAINER, or POOL/* for all of a pool");
    for (unsigned k = 0; k < t->containers_count; k++)
        if (filter_view_check(t->containers[k]) < 0) {
            snprintf(member, sizeof member, "containers[%u]", k);
            return bad(w, member, t->containers[k], "must be POOL/CONTAINER or POOL/*");
        }
    return 0;
}

/* The backend's options, with the tenant's credential in place of the agent's. */
static int check_backend(struct where *w, struct srv_tenant *t)
{
    const struct srv_config *c = w->c;
    const struct pst_option own[] = {
        {"token_file", t->backend_token_file}, {"cert_file", t->backend_cert}, {"key_file", t->backend_key}};

    if (!c->agent)
        return t->backend_token_file || t->backend_cert || t->backend_key
                   ? bad(w, "", t->name, "a backend's credential is for an agent (role: agent)")
                   : 0;
    if (!t->backend_cert != !t->backend_key)
        return bad(w, "", t->name, "needs backend_cert and backend_key together");
    if (!t->backend_token_file && !t->backend_cert)
        return bad(w, "", t->name,
                   "needs a credential of its own at the server: backend_token_file, or backend_cert and backend_key");
    t->store_opts = calloc(c->nstore_opts + ARRAY_SIZE(own), sizeof *t->store_opts);
    if (!t->store_opts)
        return -ENOMEM;
    for (unsigned k = 0; k < c->nstore_opts; k++) {
        const char *key = c->store_opts[k].key;
        if (strcmp(key, "token_file") && strcmp(key, "cert_file") && strcmp(key, "key_file"))
            t->store_opts[t->nstore_opts++] = c->store_opts[k];
    }
    for (unsigned k = 0; k < ARRAY_SIZE(own); k++)
        if (own[k].value)
            t->store_opts[t->nstore_opts++] = own[k];
    return 0;
}

static int check_cache(struct where *w, const struct text_tenant *t, const struct srv_tenant *k)
{
    if (k->cache_bytes && !w->c->agent)
        return bad(w, "cache", t->cache, "is for an agent (role: agent)");
    if (k->cache_bytes && (k->cache_bytes < FILTER_CACHE_MIN || k->cache_bytes > FILTER_CACHE_MAX))
        return bad(w, "cache", t->cache, "must be 0, or a size from 16M to 1024G");
    if (k->read_ahead > SRV_READ_AHEAD_MAX)
        return bad(w, "read_ahead", t->read_ahead, "must be a size up to 1G");
    if (t->read_ahead && k->read_ahead && !k->cache_bytes)
        return bad(w, "read_ahead", t->read_ahead, "needs cache: that is where it goes");
    return 0;
}

int config_tenant_limits(const struct srv_config *c, const char *prefix, const struct text_tenant *t,
                         struct srv_tenant *k, char *err, size_t err_size)
{
    const struct config_member m[] = {
        {"quota", t->quota, M_SIZE, &k->quota_bytes, 64 * KiB, 0},
        {"quota_objects", t->quota_objects, M_UINT, &k->quota_objects, 1, UINT64_MAX / 2},
        {"weight", t->weight, M_UINT, &k->weight, 1, SRV_WEIGHT_MAX},
        {"rate", t->rate, M_SIZE, &k->bytes_per_s, 64 * KiB, 0},
        {"rate_ops", t->rate_ops, M_UINT, &k->ops_per_s, 1, 1000000000},
        {"burst", t->burst, M_SIZE, &k->burst_bytes, 64 * KiB, 0},
        {"burst_ops", t->burst_ops, M_UINT, &k->burst_ops, 1, 1000000000},
        {"max_sessions", t->max_sessions, M_UINT, &k->max_sessions, 1, 1000000},
        {"max_connections", t->max_connections, M_UINT, &k->max_connections, 1, 1000000},
    };
    char key[80];
    int r;

    k->quota_bytes = k->quota_objects = k->bytes_per_s = k->ops_per_s = k->burst_bytes = k->burst_ops = 0;
    k->max_sessions = k->max_connections = 0;
    k->weight = 1;
    r = config_check_members(c, NULL, prefix, m, ARRAY_SIZE(m), err, err_size);
    snprintf(key, sizeof key, "%s.%s", prefix, k->burst_bytes && !k->bytes_per_s ? "burst" : "burst_ops");
    if (r == 0 && k->burst_bytes && !k->bytes_per_s)
        r = config_bad(c, NULL, key, t->burst, "needs rate", err, err_size);
    if (r == 0 && k->burst_ops && !k->ops_per_s)
        r = config_bad(c, NULL, key, t->burst_ops, "needs rate_ops", err, err_size);
    return r;
}

int config_tenant(const struct srv_config *c, const char *prefix, const struct text_tenant *t, struct srv_tenant *k,
                  char *err, size_t err_size)
{
    struct where w = {.c = c, .prefix = prefix, .err = err, .err_size = err_size};
    const struct config_member m[] = {
        {"shards", t->shards, M_UINT, &k->shards, 1, SRV_SHARDS_MAX},
        {"buffer_memory", t->buffer_memory, M_SIZE, &k->buffer_memory, 4 * c->data_buffer_bytes, 0},
        {"cache", t->cache, M_SIZE, &k->cache_bytes, 0, 0},
        {"read_ahead", t->read_ahead, M_SIZE, &k->read_ahead, 0, 0},
    };
    int r = check_name(&w, t->name);

    if (r == 0)
        r = check_containers(&w, t);
    *k = (struct srv_tenant){
        .name = t->name,
        .containers = t->containers,
        .ncontainers = t->containers_count,
        .filters = t->filters,
        .nfilters = t->filters_count,
        .weight = 1,
        .shards = 1,
        .buffer_memory = c->data_buffer_memory,
        .read_ahead = c->read_ahead,
        .backend_token_file = t->backend_token_file,
        .backend_cert = t->backend_cert,
        .backend_key = t->backend_key,
    };
    if (r == 0)
        r = config_check_members(c, NULL, prefix, m, ARRAY_SIZE(m), err, err_size);
    if (r == 0)
        r = config_tenant_limits(c, prefix, t, k, err, err_size);
    if (r == 0)
        r = check_cache(&w, t, k);
    return r == 0 ? check_backend(&w, k) : r;
}

int config_check_tenants(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_values *v = c->text->v;
    uint64_t shards = c->data_shards;

    c->tenants = calloc(v->tenants_count + 1, sizeof *c->tenants);
    if (!c->tenants)
        return -ENOMEM;
    c->tenants[c->ntenants++] = (struct srv_tenant){
        .name = "default", .weight = 1, .shards = c->data_shards, .buffer_memory = c->data_buffer_memory,
        .bytes_per_s = c->limit_bytes, .ops_per_s = c->limit_ops, .cache_bytes = c->cache_bytes,
        .read_ahead = c->read_ahead};
    if (v->tenants_count >= SRV_TENANTS_MAX)
        return config_bad(c, NULL, "tenants", NULL, "are more than 255", err, err_size);
    for (unsigned i = 0; i < v->tenants_count; i++) {
        char prefix[40];
        int r;
        snprintf(prefix, sizeof prefix, "tenants[%u]", i);
        r = config_tenant(c, prefix, &v->tenants[i], &c->tenants[c->ntenants], err, err_size);
        if (r < 0)
            return r;
        shards += c->tenants[c->ntenants++].shards;
    }
    if (shards > SRV_SHARDS_ALL)
        return config_bad(c, NULL, "tenants", NULL, "have more than 256 shards together, with data.shards", err,
                          err_size);
    return 0;
}

int config_tenants_used(const struct srv_config *c, char *err, size_t err_size)
{
    for (unsigned i = 1; i < c->ntenants; i++) {
        char key[40];
        bool used = false;
        for (unsigned k = 0; k < c->ncredentials; k++)
            used = used || c->credentials[k].tenant == i;
        snprintf(key, sizeof key, "tenants[%u]", i - 1);
        if (!used)
            return config_bad(c, NULL, key, c->tenants[i].name, "has no credential: credentials[].tenant", err,
                              err_size);
    }
    return 0;
}

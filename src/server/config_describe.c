/* The configuration for people and reports: what was set, without anything that lets somebody in or decrypts. */
#include "config_rows.h"

#include <stdio.h>
#include <string.h>

struct out {
    void (*fn)(void *user, const char *key, const char *value);
    void *user;
};

struct member {
    const char *key, *value; /* NULL: not set */
};

static void tell_members(const struct out *o, const char *list, const struct member *m, size_t n)
{
    char key[60];

    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%s.%s", list, m[i].key);
        if (m[i].value)
            o->fn(o->user, key, m[i].value);
    }
}

/* A command may have the key itself among its words: it is the last that is told. */
static void tell_filter(const struct out *o, const char *key, const char *spec)
{
    static const char command[] = "key_command=";
    const char *at = strstr(spec, command);
    char text[400];

    if (!at) {
        o->fn(o->user, key, spec);
        return;
    }
    snprintf(text, sizeof text, "%.*s(not shown)", (int)(at - spec + (int)sizeof command - 1), spec);
    o->fn(o->user, key, text);
}

/* "tenants.quota": its members in the order of the manual. */
static void tell_tenant(const struct out *o, const struct text_tenant *t)
{
    const struct member members[] = {
        {"quota", t->quota},
        {"quota_objects", t->quota_objects},
        {"weight", t->weight},
        {"rate", t->rate},
        {"rate_ops", t->rate_ops},
        {"burst", t->burst},
        {"burst_ops", t->burst_ops},
        {"max_sessions", t->max_sessions},
        {"max_connections", t->max_connections},
        {"shards", t->shards},
        {"buffer_memory", t->buffer_memory},
        {"cache", t->cache},
        {"read_ahead", t->read_ahead},
        {"backend_token_file", t->backend_token_file},
        {"backend_cert", t->backend_cert},
        {"backend_key", t->backend_key},
    };

    o->fn(o->user, "tenants.name", t->name ? t->name : "");
    for (unsigned i = 0; i < t->containers_count; i++)
        o->fn(o->user, "tenants.containers", t->containers[i]);
    for (unsigned i = 0; i < t->filters_count; i++)
        tell_filter(o, "tenants.filters", t->filters[i]);
    tell_members(o, "tenants", members, ARRAY_SIZE(members));
}

static void tell_credential(const struct out *o, const struct text_credential *t)
{
    const struct member members[] = {
        {"token", t->token ? "(not shown)" : NULL},
        {"token_file", t->token_file},
        {"cn", t->cn},
        {"uid", t->uid},
        {"gid", t->gid},
        {"any_uid", t->any_uid},
        {"admin", t->admin},
        {"origin", t->origin},
        {"tenant", t->tenant},
    };

    o->fn(o->user, "credentials.name", t->name ? t->name : "");
    tell_members(o, "credentials", members, ARRAY_SIZE(members));
}

static void tell_pool(const struct out *o, const struct text_pool *p)
{
    o->fn(o->user, "pools.label", p->label ? p->label : "");
    for (unsigned i = 0; i < p->containers_count; i++)
        o->fn(o->user, "pools.containers.label", p->containers[i].label ? p->containers[i].label : "");
}

void srv_config_describe(const struct srv_config *c, void (*fn)(void *user, const char *key, const char *value),
                         void *user)
{
    const struct text_values *v = c->text->v;
    const struct out o = {fn, user};

    for (size_t i = 0; i < config_nrows; i++) {
        char *const *at = (char *const *)((const char *)v + config_rows[i].text);
        char **list = (char **)*at;
        if (config_rows[i].kind < K_LIST && *at)
            fn(user, config_rows[i].key, *at);
        for (unsigned k = 0; config_rows[i].kind == K_LIST && k < *(const unsigned *)(at + 1); k++)
            tell_filter(&o, config_rows[i].key, list[k]);
    }
    for (unsigned i = 0; i < v->pools_count; i++)
        tell_pool(&o, &v->pools[i]);
    for (unsigned i = 0; i < v->credentials_count; i++)
        tell_credential(&o, &v->credentials[i]);
    for (unsigned i = 0; i < v->tenants_count; i++)
        tell_tenant(&o, &v->tenants[i]);
}

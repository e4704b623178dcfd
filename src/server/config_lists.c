/* The lists of the configuration: pools with their containers, and credentials. */
#include "config_rows.h"

#include "base/parse.h"
#include "store/perm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int config_check_members(const struct srv_config *c, const struct option_row *o, const char *prefix,
                         const struct config_member *m, size_t n, char *err, size_t err_size)
{
    for (size_t i = 0; i < n; i++) {
        char key[120];
        uint64_t v = 0;
        const char *why = NULL;
        char number[80];
        snprintf(number, sizeof number, "must be a number from %llu to %llu", (unsigned long long)m[i].min,
                 (unsigned long long)m[i].max);
        if (!m[i].text)
            continue;
        switch (m[i].kind) {
        case M_SIZE:
            why = parse_size(m[i].text, m[i].out) < 0 || *(uint64_t *)m[i].out < m[i].min
                      ? "must be a size (64K, 10G, ...)"
                      : NULL;
            if (why && m[i].min) {
                char least[SIZE_TEXT];
                snprintf(number, sizeof number, "must be a size from %s", config_size_text(m[i].min, least));
                why = number;
            }
            break;
        case M_UID:
            why = parse_uint(m[i].text, &v) < 0 || v >= UINT32_MAX ? "must be a numeric id" : NULL;
            if (!why)
                *(uint32_t *)m[i].out = (uint32_t)v;
            break;
        case M_MODE:
            why = srv_parse_mode(m[i].text, m[i].out) < 0 ? "must be permission bits in octal (755)" : NULL;
            break;
        case M_UINT:
            why = parse_uint(m[i].text, m[i].out) < 0 || *(uint64_t *)m[i].out < m[i].min ||
                          *(uint64_t *)m[i].out > m[i].max
                      ? number
                      : NULL;
            break;
        case M_BOOL:
            why = srv_parse_bool(m[i].text, m[i].out) < 0 ? "must be true or false" : NULL;
            break;
        }
        snprintf(key, sizeof key, "%s.%s", prefix, m[i].name);
        if (why)
            return config_bad(c, o, key, m[i].text, why, err, err_size);
    }
    return 0;
}

static int check_label(struct srv_config *c, const struct option_row *o, const char *prefix, const char *label,
                       char *err, size_t err_size)
{
    char key[120];

    snprintf(key, sizeof key, "%s.label", prefix);
    if (!label)
        return config_bad(c, o, key, NULL, "is missing", err, err_size);
    if (pst_label_check(label) < 0)
        return config_bad(c, o, key, label, "must be 1 to 127 of A-Z a-z 0-9 . _ -", err, err_size);
    return 0;
}

static int check_container(struct srv_config *c, const char *prefix, const struct text_container *t,
                           struct srv_container *k, char *err, size_t err_size)
{
    const struct option_row *o = config_row("container");
    struct pst_cont_props *p = &k->props;
    const struct config_member m[] = {{"chunk_size", t->chunk_size, M_SIZE, &p->chunk_size, 0, 0},
                               {"quota", t->quota, M_SIZE, &p->quota_bytes, 0, 0},
                               {"uid", t->uid, M_UID, &p->uid, 0, 0},
                               {"gid", t->gid, M_UID, &p->gid, 0, 0},
                               {"mode", t->mode, M_MODE, &p->mode, 0, 0}};
    char key[120];
    int r = check_label(c, o, prefix, t->label, err, err_size);

    if (r == 0)
        r = config_check_members(c, o, prefix, m, ARRAY_SIZE(m), err, err_size);
    snprintf(key, sizeof key, "%s.chunk_size", prefix);
    if (r == 0 && p->chunk_size &&
        (p->chunk_size < PST_CHUNK_MIN || p->chunk_size > PST_CHUNK_MAX || !is_pow2(p->chunk_size)))
        r = config_bad(c, o, key, t->chunk_size, "must be a power of two from 64K to 16M", err, err_size);
    k->label = t->label;
    return r;
}

int config_check_pools(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_values *v = c->text->v;
    const struct option_row *o = config_row("pool");
    int r = 0;

    c->pools = calloc(v->pools_count + 1, sizeof *c->pools);
    if (!c->pools)
        return -ENOMEM;
    for (unsigned i = 0; r == 0 && i < v->pools_count; i++) {
        const struct text_pool *t = &v->pools[i];
        struct srv_pool *p = &c->pools[c->npools++];
        const struct config_member m[] = {{"quota", t->quota, M_SIZE, &p->quota_bytes, 0, 0},
                                   {"uid", t->uid, M_UID, &p->uid, 0, 0},
                                   {"gid", t->gid, M_UID, &p->gid, 0, 0},
                                   {"mode", t->mode, M_MODE, &p->mode, 0, 0}};
        char prefix[60], inner[100];
        p->label = t->label;
        p->mode = 0755;
        snprintf(prefix, sizeof prefix, "pools[%u]", i);
        r = check_label(c, o, prefix, t->label, err, err_size);
        if (r == 0)
            r = config_check_members(c, o, prefix, m, ARRAY_SIZE(m), err, err_size);
        p->containers = calloc(t->containers_count + 1, sizeof *p->containers);
        if (!p->containers)
            return -ENOMEM;
        for (unsigned j = 0; r == 0 && j < t->containers_count; j++) {
            snprintf(inner, sizeof inner, "%s.containers[%u]", prefix, j);
            r = check_container(c, inner, &t->containers[j], &p->containers[p->ncontainers++], err, err_size);
        }
    }
    return r;
}

static int find_tenant(struct srv_config *c, const struct option_row *o, const char *prefix, const char *name,
                       unsigned *ret, char *err, size_t err_size)
{
    char key[80];

    for (unsigned i = 1; i < c->ntenants; i++)
        if (!strcmp(c->tenants[i].name, name)) {
            *ret = i;
            return 0;
        }
    snprintf(key, sizeof key, "%s.tenant", prefix);
    return config_bad(c, o, key, name, "is none of tenants", err, err_size);
}

int config_credential(const struct srv_config *c, const char *prefix, const struct text_credential *t,
                      struct srv_credential *k, char *err, size_t err_size)
{
    const struct option_row *o = config_row("credential");
    const struct config_member m[] = {{"uid", t->uid, M_UID, &k->uid, 0, 0},
                               {"gid", t->gid, M_UID, &k->gid, 0, 0},
                               {"any_uid", t->any_uid, M_BOOL, &k->any_uid, 0, 0},
                               {"admin", t->admin, M_BOOL, &k->admin, 0, 0},
                               {"origin", t->origin, M_BOOL, &k->origin, 0, 0}};

    *k = (struct srv_credential){
        .name = t->name, .token = t->token, .token_file = t->token_file, .cn = t->cn, .uid = 65534, .gid = 65534};
    if (!t->name || !*t->name)
        return config_bad(c, o, prefix, NULL, "name is missing", err, err_size);
    if (!!t->token + !!t->token_file + !!t->cn != 1)
        return config_bad(c, o, prefix, t->name, "needs one of token, token_file, cn", err, err_size);
    if (t->token && strlen(t->token) < 16)
        return config_bad(c, o, prefix, t->name, "token must have at least 16 characters", err, err_size);
    return config_check_members(c, o, prefix, m, ARRAY_SIZE(m), err, err_size);
}

int config_check_credentials(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_values *v = c->text->v;
    int r = 0;

    c->credentials = calloc(v->credentials_count + 1, sizeof *c->credentials);
    if (!c->credentials)
        return -ENOMEM;
    for (unsigned i = 0; r == 0 && i < v->credentials_count; i++) {
        const struct text_credential *t = &v->credentials[i];
        struct srv_credential *k = &c->credentials[c->ncredentials++];
        char prefix[60];
        snprintf(prefix, sizeof prefix, "credentials[%u]", i);
        r = config_credential(c, prefix, t, k, err, err_size);
        if (r == 0 && t->tenant)
            r = find_tenant(c, config_row("credential"), prefix, t->tenant, &k->tenant, err, err_size);
    }
    return r < 0 ? r : config_tenants_used(c, err, err_size);
}

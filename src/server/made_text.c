/* What is made at run time as text: by the keys of the configuration's entries, and checked by its rules. */
#include "made.h"

#include "base/crypto.h"
#include "control/session.h"
#include "store/perm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct key {
    const char *name;
    size_t at;
    size_t count; /* of a list: where its length is; 0: a single value */
};

static const struct key tenant_keys[] = {
#define LIST(f) {#f, offsetof(struct text_tenant, f), offsetof(struct text_tenant, f##_count)}
#define KEY(f)  {#f, offsetof(struct text_tenant, f), 0}
    LIST(containers), LIST(filters), KEY(quota), KEY(quota_objects), KEY(weight), KEY(rate), KEY(rate_ops), KEY(burst),
    KEY(burst_ops), KEY(max_sessions), KEY(max_connections), KEY(shards), KEY(buffer_memory), KEY(cache),
    KEY(read_ahead), KEY(backend_token_file), KEY(backend_cert), KEY(backend_key),
#undef KEY
#undef LIST
};
static const struct key cred_keys[] = {
#define KEY(f) {#f, offsetof(struct text_credential, f), 0}
    KEY(tenant), KEY(cn), KEY(uid), KEY(gid), KEY(any_uid), KEY(admin), KEY(origin),
#undef KEY
};

static int unknown(const struct key *keys, size_t nkeys, const char *key, char *err, size_t err_size)
{
    size_t n = (size_t)snprintf(err, err_size, "\"%.40s\" is no setting; these are:", key);

    for (size_t i = 0; i < nkeys && n < err_size; i++)
        n += (size_t)snprintf(err + n, err_size - n, " %s", keys[i].name);
    return -EINVAL;
}

/* A line of the file holds it. */
static bool is_value(const char *s)
{
    size_t n = strlen(s);

    if (!n || n >= MADE_VALUE_MAX || s[0] == ' ' || s[n - 1] == ' ')
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return false;
    return true;
}

static int set_key(const struct key *keys, size_t nkeys, void *text, const char *key, const char *value, char *err,
                   size_t err_size)
{
    const struct key *k = keys;
    char **one;
    unsigned *count;

    while (k < keys + nkeys && strcmp(k->name, key))
        k++;
    if (k == keys + nkeys)
        return unknown(keys, nkeys, key, err, err_size);
    if (!is_value(value)) {
        snprintf(err, err_size, "%s: not a value", key);
        return -EINVAL;
    }
    one = (char **)((char *)text + k->at);
    count = (unsigned *)((char *)text + k->count);
    if (k->count && *count < MADE_LIST_MAX)
        return config_add_string((char ***)one, count, value);
    if (!k->count && !*one)
        return config_set_string(one, value);
    snprintf(err, err_size, k->count ? "%s: too many" : "%s: is there twice", key);
    return -EINVAL;
}

static void each(const struct key *keys, size_t nkeys, const void *text,
                 void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
    for (size_t i = 0; i < nkeys; i++) {
        const void *at = (const char *)text + keys[i].at;
        unsigned n = keys[i].count ? *(const unsigned *)((const char *)text + keys[i].count) : 0;
        const char *one = keys[i].count ? NULL : *(char *const *)at;
        char *const *list = keys[i].count ? *(char **const *)at : NULL;
        if (one)
            fn(arg, keys[i].name, one);
        for (unsigned k = 0; k < n; k++)
            fn(arg, keys[i].name, list[k]);
    }
}

static void drop(const struct key *keys, size_t nkeys, void *text)
{
    for (size_t i = 0; i < nkeys; i++) {
        char **at = (char **)((char *)text + keys[i].at);
        unsigned n = keys[i].count ? *(unsigned *)((char *)text + keys[i].count) : 0;
        char **list = keys[i].count ? (char **)(void *)*at : NULL;
        for (unsigned k = 0; k < n; k++)
            free(list[k]);
        free(*at);
    }
}

int made_tenant_key(struct text_tenant *t, const char *key, const char *value, char *err, size_t err_size)
{
    return set_key(tenant_keys, ARRAY_SIZE(tenant_keys), t, key, value, err, err_size);
}

int made_cred_key(struct text_credential *c, const char *key, const char *value, char *err, size_t err_size)
{
    return set_key(cred_keys, ARRAY_SIZE(cred_keys), c, key, value, err, err_size);
}

void made_tenant_each(const struct text_tenant *t, void (*fn)(void *arg, const char *key, const char *value),
                      void *arg)
{
    each(tenant_keys, ARRAY_SIZE(tenant_keys), t, fn, arg);
}

void made_cred_each(const struct text_credential *c, void (*fn)(void *arg, const char *key, const char *value),
                    void *arg)
{
    each(cred_keys, ARRAY_SIZE(cred_keys), c, fn, arg);
}

int made_tenant_new(const char *name, struct made_tenant **ret)
{
    struct made_tenant *m = calloc(1, sizeof *m);

    if (!m || config_set_string(&m->text.name, name) < 0) {
        free(m);
        return -ENOMEM;
    }
    m->cfg.name = m->text.name;
    *ret = m;
    return 0;
}

int made_cred_new(const char *name, struct made_cred **ret)
{
    struct made_cred *c = calloc(1, sizeof *c);

    if (!c || config_set_string(&c->text.name, name) < 0) {
        free(c);
        return -ENOMEM;
    }
    list_init(&c->link);
    *ret = c;
    return 0;
}

void made_tenant_free(struct made_tenant *m)
{
    if (!m)
        return;
    drop(tenant_keys, ARRAY_SIZE(tenant_keys), &m->text);
    free(m->text.name);
    free(m->cfg.store_opts);
    free(m);
}

void made_cred_free(struct made_cred *c)
{
    if (!c)
        return;
    drop(cred_keys, ARRAY_SIZE(cred_keys), &c->text);
    free(c->text.name);
    pst_wipe(c->token_hash, sizeof c->token_hash);
    free(c);
}

/* Who may administer the daemon is not for that alone who may run commands as its user. */
static int no_commands(const struct made_tenant *m, const char *prefix, char *err, size_t err_size)
{
    for (unsigned i = 0; i < m->text.filters_count; i++)
        if (strstr(m->text.filters[i], "key_command")) {
            snprintf(err, err_size, "%s.filters: key_command is for the configuration file only: use key_file", prefix);
            return -EINVAL;
        }
    return 0;
}

int made_tenant_check(const struct srv_config *cfg, struct made_tenant *m, char *err, size_t err_size)
{
    char prefix[SESS_NAME_MAX + 10];
    int r;

    snprintf(prefix, sizeof prefix, "tenant %.*s", SESS_NAME_MAX, m->text.name);
    r = config_tenant(cfg, prefix, &m->text, &m->cfg, err, err_size);
    if (r == 0)
        r = no_commands(m, prefix, err, err_size);
    return r < 0 ? r : config_metrics_for_tenants(cfg, err, err_size);
}

static int bad(const struct made_cred *c, const char *member, const char *why, char *err, size_t err_size)
{
    snprintf(err, err_size, "credential %.*s%s%s: %s", SESS_NAME_MAX, c->text.name, *member ? "." : "", member, why);
    return -EINVAL;
}

int made_cred_check(const struct srv_config *cfg, struct made_cred *c, bool has_hash, char *err, size_t err_size)
{
    char prefix[SESS_NAME_MAX + 20], placeholder[] = "a token that is known by its hash";
    struct text_credential t = c->text;
    int r;

    if (pst_label_check(t.name) < 0 || strlen(t.name) > SESS_NAME_MAX)
        return bad(c, "name", "must be 1 to 63 of A-Z a-z 0-9 . _ -", err, err_size);
    if (t.cn && strlen(t.cn) > SESS_NAME_MAX)
        return bad(c, "cn", "has at most 63 bytes", err, err_size);
    if (!t.tenant)
        return bad(c, "tenant", "is missing: whose sessions it opens", err, err_size);
    if (has_hash)
        t.token = placeholder;
    snprintf(prefix, sizeof prefix, "credential %s", t.name);
    r = config_credential(cfg, prefix, &t, &c->cfg, err, err_size);
    c->cfg.token = NULL;
    return r;
}

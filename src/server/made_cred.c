/*
 * Credentials that come and go at run time. Of a token its SHA-256 alone is kept, in memory and in tenants_file; the
 * text is in one request or one reply.
 */
#include "made.h"

#include "data.h"

#include "base/crypto.h"
#include "base/rng.h"
#include "control/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SECRET_BYTES 32u

struct made_cred *made_cred_find(struct srv *srv, const char *name)
{
    list_for_each (it, &srv->creds) {
        struct made_cred *c = list_entry(it, struct made_cred, link);
        if (!strcmp(c->text.name, name))
            return c;
    }
    return NULL;
}

const struct srv_credential *made_cred_configured(const struct srv *srv, const char *name)
{
    for (unsigned i = 0; i < srv->cfg->ncredentials; i++)
        if (!strcmp(srv->cfg->credentials[i].name, name))
            return &srv->cfg->credentials[i];
    return NULL;
}

/* What the control server is told of it; of a token its hash is there. */
static int for_control(const struct made_cred *c, struct ctl_cred *ret, char *err, size_t err_size)
{
    struct srv_credential in = c->cfg;
    int r;

    if (in.cn)
        return srv_make_cred(&in, ret, err, err_size);
    in.token = "";
    r = srv_make_cred(&in, ret, err, err_size);
    memcpy(ret->token_hash, c->token_hash, sizeof ret->token_hash);
    return r;
}

/* ---- the start ---- */

static bool same(const struct ctl_cred *a, const struct ctl_cred *b)
{
    return (a->by_cert && b->by_cert && !strcmp(a->name, b->name)) ||
           (a->by_token && b->by_token && pst_equal_ct(a->token_hash, b->token_hash, sizeof a->token_hash));
}

/* Another one cannot be told from it: of the configuration, or (only by hand) of tenants_file as well. */
static int refuse_twin(struct srv *srv, unsigned other, const struct made_cred *c, char *err, size_t err_size)
{
    const char *what = c->text.cn ? "cn" : "token", *file = srv->cfg->tenants_file;

    if (other < srv->cfg->ncredentials)
        snprintf(err, err_size,
                 "credential \"%s\" of the configuration has the same %s as \"%s\", which was created at run "
                 "time (%s, tenants_file): take one of them out",
                 srv->cfg->credentials[other].name, what, c->text.name, file);
    list_for_each (it, &srv->creds) {
        const struct made_cred *k = list_entry(it, struct made_cred, link);
        if (k->id == other + 1)
            snprintf(err, err_size, "%s (tenants_file): credentials \"%s\" and \"%s\" have the same %s", file,
                     k->text.name, c->text.name, what);
    }
    return -EEXIST;
}

int made_creds_start(struct srv *srv, struct ctl_cred *creds, char *err, size_t err_size)
{
    const struct srv_config *cfg = srv->cfg;
    unsigned n = 0;
    int r = 0;

    for (; r == 0 && n < cfg->ncredentials; n++)
        r = srv_make_cred(&cfg->credentials[n], &creds[n], err, err_size);
    list_for_each (it, &srv->creds) {
        struct made_cred *c = list_entry(it, struct made_cred, link);
        if (r == 0)
            r = for_control(c, &creds[n], err, err_size);
        for (unsigned i = 0; r == 0 && i < n; i++)
            if (same(&creds[i], &creds[n]))
                r = refuse_twin(srv, i, c, err, err_size);
        c->id = ++n;
    }
    return r;
}

void made_creds_free(struct srv *srv)
{
    struct list *l;

    while ((l = list_pop_front(&srv->creds)))
        made_cred_free(list_entry(l, struct made_cred, link));
}

/* ---- making one ---- */

static int new_token(char ret[CTL_TOKEN_MAX])
{
    uint8_t bytes[SECRET_BYTES];

    rng_secret(bytes, sizeof bytes);
    for (unsigned i = 0; i < sizeof bytes; i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
    pst_wipe(bytes, sizeof bytes);
    return 0;
}

static int check_token(const struct made_cred *c, const char *token, char *err, size_t err_size)
{
    size_t n = strlen(token);
    bool ok = n >= CTL_TOKEN_MIN && n < CTL_TOKEN_MAX;

    for (size_t i = 0; i < n; i++)
        ok = ok && token[i] > 0x20 && token[i] < 0x7f;
    if (ok)
        return 0;
    snprintf(err, err_size, "credential %s: a token has 16 to 512 printable characters, and no spaces", c->text.name);
    return -EINVAL;
}

/* The token's hash; made is set if it is a new one. */
static int take_token(struct made_cred *c, const char *token, char ret_token[CTL_TOKEN_MAX], char *err, size_t err_size)
{
    int r = *token ? check_token(c, token, err, err_size) : new_token(ret_token);
    return r < 0 ? r : token_hash(*token ? token : ret_token, c->token_hash);
}

/* Needs change_lock. */
static int find_tenant(struct srv *srv, struct made_cred *c, char *err, size_t err_size)
{
    struct tenant *t;

    scoped_lock(&srv->limits_lock);
    t = srv_tenant_find(srv, c->text.tenant);
    if (!t) {
        snprintf(err, err_size, "credential %s.tenant: \"%.63s\": no such tenant", c->text.name, c->text.tenant);
        return -ENOENT;
    }
    if (!t->id) {
        snprintf(err, err_size,
                 "credential %s.tenant: those of the server's own tenant are in the configuration (credentials)",
                 c->text.name);
        return -EOPNOTSUPP;
    }
    c->cfg.tenant = t->id;
    return 0;
}

static int from_settings(struct srv *srv, const char *name, const char *const *keys, const char *const *values,
                         size_t n, const char *token, char ret_token[CTL_TOKEN_MAX], struct made_cred **ret, char *err,
                         size_t err_size)
{
    struct made_cred *c = NULL;
    int r = made_cred_new(name, &c);

    for (size_t i = 0; r == 0 && i < n; i++)
        r = made_cred_key(&c->text, keys[i], values[i], err, err_size);
    if (r == 0)
        r = made_cred_check(srv->cfg, c, !c->text.cn, err, err_size);
    if (r == 0 && c->text.cn && *token) {
        snprintf(err, err_size, "credential %s: cn and a token: one of them", name);
        r = -EINVAL;
    }
    if (r == 0 && !c->text.cn)
        r = take_token(c, token, ret_token, err, err_size);
    if (r == 0)
        r = find_tenant(srv, c, err, err_size);
    if (r < 0) {
        made_cred_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

/* Needs change_lock. Into the list and the file; in the control server it is already. */
static int keep(struct srv *srv, struct made_cred *c, char *err, size_t err_size)
{
    int r;

    scoped_lock(&srv->limits_lock);
    list_push_back(&srv->creds, &c->link);
    srv->ncreds++;
    r = tenants_file_keep(srv, err, err_size);
    if (r < 0) {
        list_del(&c->link);
        srv->ncreds--;
    }
    return r;
}

/* One that sleeps would end the start once its tenant is back. */
static bool has_asleep_twin(struct srv *srv, const struct made_cred *c)
{
    scoped_lock(&srv->limits_lock);
    return asleep_twin(srv, c) != NULL;
}

static int add(struct srv *srv, struct made_cred *c, char *err, size_t err_size)
{
    struct ctl_cred x;
    int r = for_control(c, &x, err, err_size);

    if (r == 0 && has_asleep_twin(srv, c))
        r = -EEXIST;
    if (r == 0)
        r = ctl_cred_add(srv->ctl, &x, false, &c->id);
    pst_wipe(&x, sizeof x);
    if (r == -EEXIST)
        snprintf(err, err_size, "credential %s: another one has this %s", c->text.name, c->text.cn ? "cn" : "token");
    if (r < 0)
        return r;
    r = keep(srv, c, err, err_size);
    if (r < 0)
        ctl_cred_end(srv->ctl, c->id);
    return r;
}

static int is_free(struct srv *srv, const char *name, char *err, size_t err_size)
{
    scoped_lock(&srv->limits_lock);
    if (srv->ncreds + asleep_creds(srv) >= MADE_CREDS_MAX) {
        snprintf(err, err_size, "there are %u credentials, which is the most", MADE_CREDS_MAX);
        return -ENOSPC;
    }
    if (asleep_cred_find(srv, name)) {
        snprintf(err, err_size,
                 "tenants_file has a credential \"%.63s\" of a tenant that was in the configuration: credential "
                 "delete takes it out",
                 name);
        return -EEXIST;
    }
    if (!made_cred_find(srv, name) && !made_cred_configured(srv, name))
        return 0;
    snprintf(err, err_size, "there is a credential \"%.63s\"", name);
    return -EEXIST;
}

int made_cred_create(struct srv *srv, const char *name, const char *const *keys, const char *const *values, size_t n,
                     const char *token, char ret_token[CTL_TOKEN_MAX], bool *ret_kept, char *err, size_t err_size)
{
    struct made_cred *c;
    int r;

    scoped_lock(&srv->change_lock);
    r = is_free(srv, name, err, err_size);
    if (r == 0)
        r = from_settings(srv, name, keys, values, n, token, ret_token, &c, err, err_size);
    if (r == 0) {
        r = add(srv, c, err, err_size);
        if (r < 0)
            made_cred_free(c);
    }
    if (r < 0) {
        pst_wipe(ret_token, CTL_TOKEN_MAX);
        return r;
    }
    *ret_kept = srv->cfg->tenants_file != NULL;
    return 0;
}

/* ---- its end, and a list ---- */

/* Needs limits_lock. Out of its list and the file, or nothing has changed. */
static int forget(struct srv *srv, struct made_cred *c, bool asleep, char *err, size_t err_size)
{
    int r;

    list_del(&c->link);
    r = tenants_file_keep(srv, err, err_size);
    if (r < 0)
        list_push_back(asleep ? &srv->asleep : &srv->creds, &c->link);
    else if (!asleep)
        srv->ncreds--;
    return r;
}

int made_cred_delete(struct srv *srv, const char *name, uint32_t *ret_n, bool *ret_kept, char *err, size_t err_size)
{
    struct made_cred *c, *asleep;
    int r;

    scoped_lock(&srv->change_lock);
    pthread_mutex_lock(&srv->limits_lock);
    asleep = asleep_cred_find(srv, name);
    c = asleep ? asleep : made_cred_find(srv, name);
    r = c ? 0 : made_cred_configured(srv, name) ? -EOPNOTSUPP : -ENOENT;
    if (r == 0)
        r = forget(srv, c, asleep != NULL, err, err_size);
    else
        snprintf(err, err_size,
                 r == -ENOENT ? "no such credential"
                              : "it is in the configuration: take it out of the file, and start the daemon anew");
    pthread_mutex_unlock(&srv->limits_lock);
    if (r < 0)
        return r;
    *ret_n = asleep ? 0 : ctl_cred_end(srv->ctl, c->id);
    *ret_kept = srv->cfg->tenants_file != NULL;
    made_cred_free(c);
    return 0;
}

static struct ctl_cred_info info_of(const struct srv_credential *k, const char *tenant, bool run_time)
{
    return (struct ctl_cred_info){.name = k->name,
                                  .tenant = tenant,
                                  .cn = k->cn,
                                  .uid = k->uid,
                                  .gid = k->gid,
                                  .any_uid = k->any_uid,
                                  .admin = k->admin,
                                  .origin = k->origin,
                                  .run_time = run_time};
}

void made_creds_list(struct srv *srv, void (*fn)(void *arg, const struct ctl_cred_info *c), void *arg)
{
    const struct srv_config *cfg = srv->cfg;
    struct ctl_cred_info info;

    scoped_lock(&srv->limits_lock);
    for (unsigned i = 0; i < cfg->ncredentials; i++) {
        info = info_of(&cfg->credentials[i], cfg->tenants[cfg->credentials[i].tenant].name, false);
        fn(arg, &info);
    }
    for (int asleep = 0; asleep < 2; asleep++)
        list_for_each (it, asleep ? &srv->asleep : &srv->creds) {
            const struct made_cred *c = list_entry(it, struct made_cred, link);
            info = info_of(&c->cfg, c->text.tenant, true);
            fn(arg, &info);
        }
}

/* Tenants that come and go at run time. */
#include "made.h"

#include "data.h"

#include "base/err.h"
#include "base/rng.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Then somebody's fault is in the way of a tenant's end. */
#define END_WAIT_NS (60 * NSEC_PER_SEC)

/* What has been taken out of the tables, as far as it got, is let go. */
static void take_apart(struct tenant *t)
{
    struct srv *srv = t->srv;
    uint64_t deadline = now_ns() + END_WAIT_NS;

    if (srv->cfg->agent) /* its own way to the server: nobody hears of what fails, since its sessions have ended */
        pst_store_end_waits(t->store);
    tenant_end_data(t);
    if (ctl_tenant_remove(srv->ctl, t->id, deadline)) {
        srv_tenant_free(t);
        return;
    }
    log_warn("tenant %s: something of it is still in use: its memory and its number are kept until the daemon ends",
             t->cfg->name);
}

/* ---- making one ---- */

static int join(struct srv *srv, struct tenant *t)
{
    const struct qos_limits q = tenant_shares(&t->limits.now);
    return turns_add(srv->turns, &t->share, &q);
}

/* There may be no turns yet: then every tenant that there is takes part in them from now on. */
static int join_turns(struct tenant *t)
{
    struct srv *srv = t->srv;
    int r = srv->turns ? 0 : turns_new(srv->cfg->window_bytes, &srv->turns);

    srv_each_tenant(srv, x)
        if (r == 0 && !atomic_load(&x->share.turns))
            r = join(srv, x);
    return r < 0 ? r : join(srv, t);
}

static int find_shards(struct srv *srv, const struct tenant *t, unsigned *ret_first, char *err, size_t err_size)
{
    uint64_t all = t->cfg->shards;
    int r = srv_free_shards(srv, (unsigned)t->cfg->shards, ret_first);

    if (r < 0) {
        snprintf(err, err_size,
                 "tenant %s.shards: all tenants have %u shards at most, and there is no room for %llu more",
                 t->cfg->name, SRV_SHARDS_ALL, (unsigned long long)t->cfg->shards);
        return r;
    }
    srv_each_tenant(srv, x)
        all += x->cfg->shards;
    return srv_files_suffice(all, err, err_size);
}

/* Opens all that it has, and tells the control server. Nobody can come before there is a credential. */
static int start(struct tenant *t, char *err, size_t err_size)
{
    struct ctl_tenant x;
    unsigned first = 0;
    int r = limits_start(t, err, err_size);

    if (r == 0)
        r = find_shards(t->srv, t, &first, err, err_size);
    if (r == 0)
        r = tenant_open_store(t, err, err_size);
    if (r == 0)
        r = join_turns(t);
    if (r == 0)
        r = tenant_start_data(t, first, err, err_size);
    if (r < 0)
        return r;
    x = tenant_for_control(t);
    pthread_mutex_lock(&t->srv->limits_lock);
    srv_tenant_enter(t);
    pthread_mutex_unlock(&t->srv->limits_lock);
    return ctl_tenant_add(t->srv->ctl, t->id, &x, err, err_size);
}

static int from_settings(struct srv *srv, const char *name, const char *const *keys, const char *const *values,
                         size_t n, struct made_tenant **ret, char *err, size_t err_size)
{
    struct made_tenant *m = NULL;
    int r = made_tenant_new(name, &m);

    for (size_t i = 0; r == 0 && i < n; i++)
        r = made_tenant_key(&m->text, keys[i], values[i], err, err_size);
    if (r == 0)
        r = made_tenant_check(srv->cfg, m, err, err_size);
    if (r < 0) {
        made_tenant_free(m);
        return r;
    }
    rng_secret(m->life, sizeof m->life);
    *ret = m;
    return 0;
}

/* Needs change_lock. */
static int is_free(struct srv *srv, const char *name, char *err, size_t err_size)
{
    unsigned asleep;

    scoped_lock(&srv->limits_lock);
    if (srv_tenant_find(srv, name)) {
        snprintf(err, err_size, "there is a tenant \"%.63s\"", name);
        return -EEXIST;
    }
    asleep = asleep_of(srv, name);
    if (asleep)
        snprintf(err, err_size,
                 "tenants_file has %u credentials and limits of a tenant \"%.63s\" that was in the configuration: "
                 "tenant delete takes them out",
                 asleep, name);
    return asleep ? -EEXIST : 0;
}

static int keep(struct tenant *t, char *err, size_t err_size)
{
    int r;

    scoped_lock(&t->srv->limits_lock);
    r = tenants_file_keep(t->srv, err, err_size);
    t->gone = r < 0;
    return r;
}

int made_tenant_create(struct srv *srv, const char *name, const char *const *keys, const char *const *values, size_t n,
                       bool *ret_kept, char *err, size_t err_size)
{
    struct made_tenant *m;
    struct tenant *t;
    int r;

    scoped_lock(&srv->change_lock);
    r = is_free(srv, name, err, err_size);
    if (r < 0)
        return r;
    r = from_settings(srv, name, keys, values, n, &m, err, err_size);
    if (r < 0)
        return r;
    r = srv_tenant_new(srv, m, &t, err, err_size);
    if (r < 0)
        return r;
    r = start(t, err, err_size);
    if (r < 0) {
        if (!*err)
            snprintf(err, err_size, "tenant %s: %s", name, err_text(r));
        tenant_end_data(t);
        srv_tenant_free(t);
        return r;
    }
    r = keep(t, err, err_size);
    if (r < 0) {
        ctl_tenant_end(srv->ctl, t->id);
        take_apart(t);
        return r;
    }
    *ret_kept = srv->cfg->tenants_file != NULL;
    log_info("tenant %s was created", name);
    return 0;
}

/* ---- and its end ---- */

/* Needs limits_lock. Moves the credentials of the tenant from one list to the other. */
static void move_creds(struct srv *srv, unsigned tenant, struct list *from, struct list *to)
{
    list_for_each_safe (it, from) {
        struct made_cred *c = list_entry(it, struct made_cred, link);
        if (c->cfg.tenant == tenant) {
            list_del(&c->link);
            list_push_back(to, &c->link);
            if (to == &srv->creds)
                srv->ncreds++;
            else
                srv->ncreds--;
        }
    }
}

/* Out of the file, and for whoever looks for it. Needs change_lock. */
static int forget(struct tenant *t, struct list *creds, char *err, size_t err_size)
{
    struct srv *srv = t->srv;
    int r;

    scoped_lock(&srv->limits_lock);
    t->gone = true;
    move_creds(srv, t->id, &srv->creds, creds);
    r = tenants_file_keep(srv, err, err_size);
    if (r < 0) {
        t->gone = false;
        move_creds(srv, t->id, creds, &srv->creds);
    }
    return r;
}

/* Nobody has a session of it. 1: that was all. */
static int delete_asleep(struct srv *srv, const char *name, uint32_t *ret_n, bool *ret_kept, char *err, size_t err_size)
{
    int r;

    scoped_lock(&srv->limits_lock);
    if (srv_tenant_find(srv, name) || !asleep_of(srv, name))
        return 0;
    r = asleep_delete(srv, name, err, err_size);
    if (r < 0)
        return r;
    *ret_n = 0;
    *ret_kept = true;
    return 1;
}

static int find_made(struct srv *srv, const char *name, struct tenant **ret, char *err, size_t err_size)
{
    struct tenant *t;

    scoped_lock(&srv->limits_lock);
    t = srv_tenant_find(srv, name);
    if (!t) {
        snprintf(err, err_size, "no such tenant");
        return -ENOENT;
    }
    if (!t->made) {
        snprintf(err, err_size,
                 t->id ? "tenant %s is in the configuration: take it out of the file, and start the daemon anew"
                       : "%s is the server's own tenant",
                 name);
        return -EOPNOTSUPP;
    }
    *ret = t;
    return 0;
}

int made_tenant_delete(struct srv *srv, const char *name, uint32_t *ret_n, bool *ret_kept, char *err, size_t err_size)
{
    struct list creds = LIST_INIT(creds), *l;
    struct tenant *t = NULL;
    int r;

    pthread_mutex_lock(&srv->change_lock);
    r = delete_asleep(srv, name, ret_n, ret_kept, err, err_size);
    if (r) {
        pthread_mutex_unlock(&srv->change_lock);
        return r < 0 ? r : 0;
    }
    r = find_made(srv, name, &t, err, err_size);
    if (r == 0)
        r = forget(t, &creds, err, err_size);
    if (r == 0)
        *ret_n = ctl_tenant_end(srv->ctl, t->id);
    pthread_mutex_unlock(&srv->change_lock);
    if (r < 0)
        return r;
    while ((l = list_pop_front(&creds)))
        made_cred_free(list_entry(l, struct made_cred, link));
    *ret_kept = srv->cfg->tenants_file != NULL;
    log_info("tenant %s was deleted, and %u sessions of it have ended; its data stays", name, *ret_n);
    take_apart(t);
    return 0;
}

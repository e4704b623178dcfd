/* What a tenant has of its own, opened and closed. */
#include "tenant.h"

#include "data.h"
#include "made.h"

#include "base/err.h"
#include "filter/filter.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* On a failure what is there already stays in t->store, for tenant_close. */
static int push_own(struct tenant *t, char *err, size_t err_size)
{
    const struct srv_tenant *k = t->cfg, *now = &t->limits.now;
    int r = filter_quota(t->store, now->quota_bytes, now->quota_objects, &t->store);

    if (r == 0)
        t->quota = t->store;
    for (unsigned i = 0; r == 0 && i < k->nfilters; i++)
        r = filter_push(k->filters[i], t->store, &t->store, err, err_size);
    return r;
}

/* The queues to the server have what is encrypted read from where it is. */
static int share_sealed(struct tenant *t, char *err, size_t err_size)
{
    void *base;
    size_t len;
    int r;

    if (!t->srv->cfg->agent || !filter_sealed_memory(t->store, &base, &len))
        return 0;
    r = mem_add_source(base, len, &t->sealed_region);
    if (r < 0)
        snprintf(err, err_size, "the memory of crypt cannot be shared: %s", err_text(r));
    return r;
}

/* ---- memory that is asked for by a setting ---- */

/* A line of /proc/meminfo, in bytes; UINT64_MAX: not known. */
static uint64_t meminfo(const char *name)
{
    FILE *f = fopen("/proc/meminfo", "re");
    unsigned long long kib;
    uint64_t ret = UINT64_MAX;
    char line[120], key[40];

    while (f && ret == UINT64_MAX && fgets(line, sizeof line, f))
        if (sscanf(line, "%39[^:]: %llu kB", key, &kib) == 2 && !strcmp(key, name))
            ret = kib * KiB;
    if (f)
        fclose(f);
    return ret;
}

static void key_of(const struct tenant *t, const char *setting, const char *servers, char ret[100])
{
    if (t->id)
        snprintf(ret, 100, "tenant %.*s.%s", SESS_NAME_MAX, t->cfg->name, setting);
    else
        snprintf(ret, 100, "%s", servers);
}

/* More than there is would not be refused when it is asked for, but end some process when it is used. */
static int memory_suffices(const char *key, uint64_t each, uint64_t n, const char *line,
                           char *err, size_t err_size)
{
    uint64_t have = meminfo(line), all;

    if (!__builtin_mul_overflow(each, n, &all) && all <= have)
        return 0;
    snprintf(err, err_size, "%s: %llu MiB%s: this machine has %llu MiB of memory%s", key,
             (unsigned long long)(each / MiB), n > 1 ? " for each of its shards" : "",
             (unsigned long long)(have / MiB), strcmp(line, "MemTotal") ? " to spare" : "");
    return -ENOMEM;
}

static int push_cache(struct tenant *t, char *err, size_t err_size)
{
    const struct srv_tenant *k = t->cfg;
    struct pst_store *below = t->store;
    char key[100];
    void *base;
    size_t len;
    int r;

    if (!k->cache_bytes)
        return 0;
    key_of(t, "cache", "cache", key);
    r = memory_suffices(key, k->cache_bytes, 1, "MemTotal", err, err_size);
    if (r < 0)
        return r;
    r = filter_cache(below, k->cache_bytes, k->read_ahead, &t->store);
    if (r < 0) {
        snprintf(err, err_size, "%s: %llu MiB: %s", key, (unsigned long long)(k->cache_bytes / MiB), err_text(r));
        return r;
    }
    /* The queues to the server read straight into it. */
    filter_cache_memory(t->store, &base, &len);
    r = mem_add(base, len, true, &t->cache_region);
    if (r < 0)
        snprintf(err, err_size, "the cache's memory cannot be shared: %s", err_text(r));
    return r;
}

int tenant_open_store(struct tenant *t, char *err, size_t err_size)
{
    const struct srv_tenant *k = t->cfg;
    struct pst_store *st = t->srv->store;
    char why[300] = "out of memory";
    int r = 0;

    if (t->id == 0) { /* the server's own: all of it */
        t->store = st;
        r = share_sealed(t, err, err_size);
        if (r == 0)
            r = push_cache(t, err, err_size);
        t->srv->store = t->store; /* whoever closes that closes all */
        return r;
    }
    if (t->srv->cfg->agent)
        r = srv_open_lowest(t->srv->cfg, k->store_opts, k->nstore_opts, !atomic_load(&t->srv->ready), &st, why,
                            sizeof why);
    if (r == 0) {
        r = filter_view(st, (const char *const *)k->containers, k->ncontainers, !t->srv->cfg->agent, &t->store);
        if (r < 0 && t->srv->cfg->agent)
            pst_store_close(st);
    }
    if (r == 0)
        r = push_own(t, why, sizeof why);
    if (r == 0)
        r = share_sealed(t, why, sizeof why);
    if (r == 0)
        r = push_cache(t, why, sizeof why);
    if (r < 0)
        snprintf(err, err_size, "tenant %s: %s", k->name, why);
    return r;
}

int tenant_start_data(struct tenant *t, unsigned first_shard, char *err, size_t err_size)
{
    const struct srv_config *cfg = t->srv->cfg;
    struct fab_config fc = {
        .provider = cfg->data_provider,
        .require_rdma = cfg->data_require_rdma,
        .credits = (uint32_t)cfg->data_credits,
    };
    char key[100];
    int r;

    key_of(t, "buffer_memory", "data.buffer_memory", key);
    r = memory_suffices(key, t->cfg->buffer_memory, t->cfg->shards, "MemAvailable", err, err_size);
    if (r == 0)
        r = fab_open(&fc, &t->fab, err, err_size);
    if (r < 0)
        return r;
    t->shards = calloc(t->cfg->shards, sizeof *t->shards);
    if (!t->shards)
        return -ENOMEM;
    for (unsigned i = 0; r == 0 && i < t->cfg->shards; i++) {
        t->shards[i].wake = -1;
        r = shard_start(t, first_shard + i, &t->shards[i], err, err_size);
        t->nshards++;
        t->endpoints[i] = t->shards[i].endpoint;
    }
    return r;
}

void tenant_end_data(struct tenant *t)
{
    tenant_each_shard(t, s)
        shard_end(s);
}

void tenant_stop_data(struct tenant *t)
{
    for (unsigned i = 0; i < t->nshards; i++)
        shard_stop(&t->shards[i]);
}

struct ctl_tenant tenant_for_control(const struct tenant *t)
{
    struct ctl_tenant x = {.number = t->id,
                           .st = t->store,
                           .sessions = (uint32_t)t->limits.now.max_sessions,
                           .endpoints = t->endpoints,
                           .nendpoints = t->nshards,
                           .third_party = t->srv->thirds && pst_store_takes_far(t->store)};

    snprintf(x.name, sizeof x.name, "%s", t->cfg->name);
    if (t->made)
        memcpy(x.life, t->made->life, sizeof x.life);
    return x;
}

struct qos_limits tenant_shares(const struct srv_tenant *k)
{
    return (struct qos_limits){.weight = (uint32_t)k->weight,
                               .bytes_per_s = k->bytes_per_s,
                               .ops_per_s = k->ops_per_s,
                               .burst_bytes = k->burst_bytes,
                               .burst_ops = k->burst_ops};
}

void tenant_describe(const struct tenant *t, void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
    const struct srv_tenant *k = t->cfg;
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"connections", atomic_load(&t->nconns)},
        {"shards", k->shards},
        {"buffer_memory", k->buffer_memory},
        {"cache", k->cache_bytes},
        {"read_ahead", k->cache_bytes ? k->read_ahead : 0},
    };
    char text[64];

    for (unsigned i = 0; i < k->ncontainers; i++)
        fn(arg, "containers", k->containers[i]);
    for (unsigned i = 0; i < k->nfilters; i++) { /* the name alone: where keys are is nobody's business */
        snprintf(text, sizeof text, "%.*s", (int)strcspn(k->filters[i], ":"), k->filters[i]);
        fn(arg, "filters", text);
    }
    if (t->made)
        fn(arg, "created", "at run time");
    limits_describe(t, fn, arg);
    for (unsigned i = 0; i < ARRAY_SIZE(numbers); i++) {
        if (!numbers[i].value)
            continue;
        snprintf(text, sizeof text, "%llu", (unsigned long long)numbers[i].value);
        fn(arg, numbers[i].key, text);
    }
}

void tenant_close(struct tenant *t)
{
    free(t->shards);
    if (t->fab)
        fab_close(t->fab);
    if (t->cache_region)
        mem_remove(t->cache_region);
    if (t->sealed_region)
        mem_remove(t->sealed_region);
    if (t->id)
        pst_store_close(t->store);
}

/* ---- the table ---- */

struct tenant *srv_tenant_find(struct srv *srv, const char *name)
{
    srv_each_tenant(srv, t)
        if (!t->gone && !strcmp(t->cfg->name, name))
            return t;
    return NULL;
}

void srv_tenant_enter(struct tenant *t)
{
    struct srv *srv = t->srv;

    pthread_rwlock_wrlock(&srv->tenants_lock);
    atomic_store(&srv->tenants[t->id], t);
    atomic_fetch_add(&srv->ntenants, 1);
    pthread_rwlock_unlock(&srv->tenants_lock);
}

int srv_tenant_configured(struct srv *srv, unsigned number)
{
    struct tenant *t = calloc(1, sizeof *t);

    if (!t)
        return -ENOMEM;
    t->srv = srv;
    t->id = number;
    t->cfg = &srv->cfg->tenants[number];
    srv_tenant_enter(t);
    return 0;
}

int srv_tenant_new(struct srv *srv, struct made_tenant *m, struct tenant **ret, char *err, size_t err_size)
{
    struct tenant *t = calloc(1, sizeof *t);
    unsigned id = 1;

    while (id < SRV_TENANTS_MAX && srv_tenant(srv, id))
        id++;
    if (!t || id == SRV_TENANTS_MAX) {
        snprintf(err, err_size, t ? "there are 255 tenants, which is the most" : "out of memory");
        int r = t ? -ENOSPC : -ENOMEM;
        made_tenant_free(m);
        free(t);
        return r;
    }
    t->srv = srv;
    t->id = id;
    t->made = m;
    t->cfg = &m->cfg;
    *ret = t;
    return 0;
}

void srv_tenant_free(struct tenant *t)
{
    struct srv *srv = t->srv;

    pthread_mutex_lock(&srv->limits_lock);
    pthread_rwlock_wrlock(&srv->tenants_lock);
    if (srv_tenant(srv, t->id) == t) {
        atomic_store(&srv->tenants[t->id], NULL);
        atomic_fetch_sub(&srv->ntenants, 1);
    }
    pthread_rwlock_unlock(&srv->tenants_lock);
    pthread_mutex_unlock(&srv->limits_lock);
    turns_remove(&t->share);
    tenant_stop_data(t);
    tenant_close(t);
    limits_stop(t);
    made_tenant_free(t->made);
    free(t);
}

int srv_free_shards(struct srv *srv, unsigned n, unsigned *ret_first)
{
    bool used[SRV_SHARDS_ALL] = {false};
    unsigned run = 0;

    srv_each_tenant(srv, t) tenant_each_shard(t, s)
        if (s->id < SRV_SHARDS_ALL)
            used[s->id] = true;
    for (unsigned i = 0; i < SRV_SHARDS_ALL; i++) {
        run = used[i] ? 0 : run + 1;
        if (run == n) {
            *ret_first = i + 1 - n;
            return 0;
        }
    }
    return -ENOSPC;
}

/* Puts the daemon together, in the order in which its parts need one another. stop.c takes it apart. */
#include "data.h"
#include "made.h"

#include "base/err.h"
#include "base/secret.h"
#include "control/tls.h"
#include "filter/filter.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define FILES_MIN   128u /* descriptors: about 45 of one's own, 32 for files of the store, the rest for clients */
#define FILES_SHARD 16u  /* each shard more */
/* Each call that waits for the backend takes one; while that is away, others, of leases above all, go on. */
#define AGENT_THREADS 128u
#define BACKEND_PAUSE_NS (500 * NSEC_PER_MSEC)

/* ---- what the control plane asks ---- */

static void on_session_gone(void *user, const uint8_t id[SESS_ID_BYTES])
{
    struct srv *srv = user;

    exports_end_session(atomic_load(&srv->exports), id);
    if (srv->thirds)
        thirds_end_session(srv->thirds, id);
    /* A shard looks which of its sessions live: nothing to queue, so nothing to lose. */
    pthread_rwlock_rdlock(&srv->tenants_lock);
    srv_each_tenant(srv, t) tenant_each_shard(t, s)
    {
        atomic_store(&s->check_sessions, true);
        shard_poke(s);
    }
    pthread_rwlock_unlock(&srv->tenants_lock);
}

static void on_session_revoked(void *user, const uint8_t id[SESS_ID_BYTES])
{
    struct srv *srv = user;

    exports_end_session(atomic_load(&srv->exports), id);
}

static void on_connections(void *user, void (*fn)(void *arg, const struct ctl_connection *c), void *arg)
{
    struct srv *srv = user;

    pthread_rwlock_rdlock(&srv->tenants_lock);
    srv_each_tenant(srv, t) tenant_each_shard(t, s)
    {
        const struct fab_info *info = fab_info(t->fab);
        scoped_lock(&s->lock);
        list_for_each (it, &s->conns) {
            const struct conn *c = list_entry(it, struct conn, link);
            struct ctl_connection x = {
                .peer = c->peer,
                .provider = info->provider,
                .device = info->device,
                .rdma = info->rdma,
                .shard = s->id,
                .tenant = t->id,
                .requests = stat_get(&c->requests),
                .bytes_in = stat_get(&c->bytes_in),
                .bytes_out = stat_get(&c->bytes_out),
                .bytes_exported = stat_get(&c->bytes_exported),
                .bytes_third = stat_get(&c->bytes_third),
                .placement = c->third.number || stat_get(&c->bytes_third) ? "third-party"
                             : stat_get(&c->bytes_exported)               ? "exported"
                                                                          : "crossing",
            };
            memcpy(x.session, sess_id(c->sess), sizeof x.session);
            fn(arg, &x);
        }
    }
    pthread_rwlock_unlock(&srv->tenants_lock);
}

static void on_facts(void *user, uint32_t tenant, void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
    struct srv *srv = user;
    const struct tenant *t = srv_tenant(srv, tenant);
    const struct fab_info *info = fab_info(t->fab);
    char n[16];

    fn(arg, "data.provider", info->provider);
    fn(arg, "data.device", info->device);
    fn(arg, "data.rdma", info->rdma ? "yes" : "no");
    fn(arg, "data.verbs", info->verbs);
    fn(arg, "data.libfabric", info->library);
    fn(arg, "data.security", srv->cfg->data_clear ? "clear" : "clear, loopback only");
    snprintf(n, sizeof n, "%u", t->nshards);
    fn(arg, "data.shards", n);
    for (unsigned i = 0; i < t->nshards; i++)
        fn(arg, "data.address", t->endpoints[i].text);
    if (srv->cfg->export_listen) {
        fn(arg, "data.export", srv->cfg->export_listen);
        fn(arg, "data.export.in_place", pst_store_moves_only(t->store) ? "yes" : "no, copied once here");
    }
    if (srv->cfg->third_party)
        fn(arg, "data.third_party", pst_store_takes_far(t->store) ? "yes" : "no, filters see the bytes");
    fn(arg, "control.security", srv->cfg->tls_cert ? "tls" : srv->cfg->insecure ? "clear" : "clear, local only");
}

static void on_tenant(void *user, uint32_t tenant, void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
    tenant_describe(srv_tenant(user, tenant), fn, arg);
}

static int on_tenant_set(void *user, uint32_t tenant, const char *const *keys, const char *const *values, size_t n,
                         bool *ret_kept, char *err, size_t err_size)
{
    return limits_set(user, tenant, keys, values, n, ret_kept, err, err_size);
}

static int on_tenant_create(void *user, const char *name, const char *const *keys, const char *const *values, size_t n,
                            bool *ret_kept, char *err, size_t err_size)
{
    return made_tenant_create(user, name, keys, values, n, ret_kept, err, err_size);
}

static int on_tenant_delete(void *user, const char *name, uint32_t *ret_n, bool *ret_kept, char *err, size_t err_size)
{
    return made_tenant_delete(user, name, ret_n, ret_kept, err, err_size);
}

static int on_cred_create(void *user, const char *name, const char *const *keys, const char *const *values, size_t n,
                          const char *token, char ret_token[CTL_TOKEN_MAX], bool *ret_kept, char *err, size_t err_size)
{
    return made_cred_create(user, name, keys, values, n, token, ret_token, ret_kept, err, err_size);
}

static int on_cred_delete(void *user, const char *name, uint32_t *ret_n, bool *ret_kept, char *err, size_t err_size)
{
    return made_cred_delete(user, name, ret_n, ret_kept, err, err_size);
}

static void on_creds(void *user, void (*fn)(void *arg, const struct ctl_cred_info *c), void *arg)
{
    made_creds_list(user, fn, arg);
}

static void on_metrics(void *user, uint32_t tenant, pst_stat_fn fn, void *arg)
{
    stats_emit(user, tenant, fn, arg);
}

static int on_third_party(void *user, uint32_t tenant, const uint8_t session[SESS_ID_BYTES], uint32_t shard,
                          struct pst_third *ret)
{
    return thirds_make_way(user, tenant, session, shard, ret);
}

static uint64_t on_turn(void *user, uint32_t tenant)
{
    return share_reserve(&srv_tenant(user, tenant)->share, 1);
}

/* ---- the store ---- */

static int make_pools(struct srv *srv, char *err, size_t err_size)
{
    const struct pst_ctx ctx = {0};

    for (unsigned i = 0; i < srv->cfg->npools; i++) {
        const struct srv_pool *p = &srv->cfg->pools[i];
        struct pst_pool_info in = {.quota_bytes = p->quota_bytes, .uid = p->uid, .gid = p->gid, .mode = p->mode}, out;
        int r;
        snprintf(in.label, sizeof in.label, "%s", p->label);
        r = pst_pool_create(srv->store, &ctx, &in, &out);
        if (r < 0 && r != -EEXIST) {
            snprintf(err, err_size, "pool %s cannot be created: %s", p->label, err_text(r));
            return r;
        }
        for (unsigned k = 0; k < p->ncontainers; k++) {
            struct pst_cont_info info;
            r = pst_cont_create(srv->store, &ctx, p->label, p->containers[k].label, &p->containers[k].props, &info);
            if (r < 0 && r != -EEXIST) {
                snprintf(err, err_size, "container %s/%s cannot be created: %s", p->label, p->containers[k].label,
                         err_text(r));
                return r;
            }
        }
    }
    return 0;
}

static bool is_away(int r)
{
    return r == -ECONNREFUSED || r == -EHOSTUNREACH || r == -ETIMEDOUT || r == -ENOTCONN || r == -ECONNRESET;
}

/* The process was told to end, and waits for that where it will have started. */
static bool is_to_end(void)
{
    sigset_t set;

    return sigpending(&set) == 0 && (sigismember(&set, SIGTERM) == 1 || sigismember(&set, SIGINT) == 1);
}

/* An agent and the server behind it may start together: it waits for it as its requests do. */
int srv_open_lowest(const struct srv_config *cfg, const struct pst_option *opts, unsigned nopts, bool wait,
                    struct pst_store **ret, char *err, size_t err_size)
{
    const struct timespec pause = {0, BACKEND_PAUSE_NS};
    uint64_t end = now_ns() + cfg->backend.timeout_ms * NSEC_PER_MSEC;
    bool told = false;

    for (;;) {
        int r = pst_backend_open(cfg->store_url, opts, nopts, ret, err, err_size);
        if (!cfg->agent || !wait || !is_away(r) || now_ns() >= end)
            return r;
        if (is_to_end()) {
            snprintf(err, err_size, "ended by a signal while it waited for %s", cfg->store_url);
            return -EINTR;
        }
        if (!told)
            log_warn("%s: waiting for it (backend.timeout)", err);
        told = true;
        nanosleep(&pause, NULL);
    }
}

static int open_store(struct srv *srv, char *err, size_t err_size)
{
    const struct srv_config *cfg = srv->cfg;
    struct pst_store *st = NULL;
    int r = srv_open_lowest(cfg, cfg->store_opts, cfg->nstore_opts, true, &st, err, err_size);

    for (unsigned i = 0; r == 0 && i < cfg->nfilters; i++)
        r = filter_push(cfg->filters[i], st, &st, err, err_size);
    srv->store = st;
    return r < 0 ? r : make_pools(srv, err, err_size);
}

/* ---- credentials ---- */

int srv_read_token(const char *path, uint8_t ret_hash[32], char *err, size_t err_size)
{
    char token[SECRET_TOKEN_MAX + 1] = "";
    int r = secret_token(path, token, err, err_size);

    if (r >= 0)
        r = token_hash(token, ret_hash);
    pst_wipe(token, sizeof token);
    return r;
}

int srv_make_cred(const struct srv_credential *in, struct ctl_cred *out, char *err, size_t err_size)
{
    const char *name = in->cn ? in->cn : in->name;

    *out = (struct ctl_cred){.by_cert = in->cn != NULL,
                             .by_token = !in->cn,
                             .uid = in->uid,
                             .gid = in->gid,
                             .any_uid = in->any_uid,
                             .origin = in->origin,
                             .admin = in->admin,
                             .tenant = in->tenant};
    if (strlen(name) > SESS_NAME_MAX) {
        snprintf(err, err_size, "credential \"%.40s...\": a name has at most %u bytes", name, SESS_NAME_MAX);
        return -ENAMETOOLONG;
    }
    strcpy(out->name, name);
    if (out->by_cert)
        return 0;
    return in->token_file ? srv_read_token(in->token_file, out->token_hash, err, err_size)
                          : token_hash(in->token, out->token_hash);
}

/* ---- control ---- */

static int start_control(struct srv *srv, char *err, size_t err_size)
{
    const struct srv_config *cfg = srv->cfg;
    const struct rpc_tls tls = {cfg->tls_ca, cfg->tls_cert, cfg->tls_key};
    cleanup_free struct ctl_listen *listen = calloc(cfg->ncontrol_listen, sizeof *listen);
    size_t ncreds = cfg->ncredentials + srv->ncreds, ntenants = 0;
    cleanup_free struct ctl_cred *creds = calloc(ncreds + 1, sizeof *creds);
    cleanup_free struct ctl_tenant *tenants = calloc(atomic_load(&srv->ntenants), sizeof *tenants);
    struct ctl_config c = {
        .listen = listen,
        .nlisten = cfg->ncontrol_listen,
        .creds = creds,
        .ncreds = ncreds,
        .local_token = cfg->local_token,
        .role = cfg->agent ? "agent" : "server",
        .far_store = cfg->agent,
        .threads = cfg->agent ? AGENT_THREADS : 0,
        .limits = {.sessions = (uint32_t)cfg->max_sessions, .lease_ns = cfg->lease_ms * NSEC_PER_MSEC},
        .tenants = tenants,
        .ntenants = atomic_load(&srv->ntenants),
        .audit = srv->audit,
        .export_path = cfg->export_listen,
        .hooks = {srv, on_session_gone, on_session_revoked, on_connections, on_facts, on_tenant, on_tenant_set,
                  on_tenant_create, on_tenant_delete, on_cred_create, on_cred_delete, on_creds, on_metrics, on_turn,
                  on_third_party},
    };
    int r;

    if (!listen || !creds || !tenants)
        return -ENOMEM;
    for (unsigned i = 0; i < cfg->ncontrol_listen; i++) {
        bool local = srv_addr_is_local(cfg->control_listen[i]);
        /* Local addresses stay plain, so that tools on the machine need no certificate. */
        listen[i] = (struct ctl_listen){cfg->control_listen[i], !local && cfg->tls_cert ? &tls : NULL, cfg->insecure};
    }
    r = made_creds_start(srv, creds, err, err_size);
    srv_each_tenant(srv, t)
        tenants[ntenants++] = tenant_for_control(t);
    if (r == 0)
        r = ctl_server_start(&c, &srv->ctl, err, err_size);
    pst_wipe(creds, ncreds * sizeof *creds);
    return r;
}

/* ---- tenants ---- */

/* Where somebody may be in another's way, or has a limit. */
static int start_turns(struct srv *srv, char *err, size_t err_size)
{
    bool wanted = atomic_load(&srv->ntenants) > 1;
    int r = 0;

    srv_each_tenant(srv, t)
        wanted = wanted || t->cfg->bytes_per_s || t->cfg->ops_per_s;
    if (wanted)
        r = turns_new(srv->cfg->window_bytes, &srv->turns);
    srv_each_tenant(srv, t) {
        const struct qos_limits q = tenant_shares(&t->limits.now);
        if (wanted && r == 0)
            r = turns_add(srv->turns, &t->share, &q);
    }
    if (r < 0)
        snprintf(err, err_size, "the tenants' shares cannot be set up: %s", err_text(r));
    return r;
}

static int start_tenants(struct srv *srv, char *err, size_t err_size)
{
    unsigned shards = 0;
    uint64_t all = 0;
    int r = 0;

    for (unsigned i = 0; r == 0 && i < srv->cfg->ntenants; i++)
        r = srv_tenant_configured(srv, i);
    if (r == 0)
        r = tenants_file_load(srv, err, err_size);
    srv_each_tenant(srv, t) {
        if (r == 0)
            r = limits_start(t, err, err_size);
        all += t->cfg->shards;
    }
    if (r == 0 && all > SRV_SHARDS_ALL) {
        snprintf(err, err_size,
                 "the tenants of the configuration and of %s (tenants_file) have more than %u shards together",
                 srv->cfg->tenants_file, SRV_SHARDS_ALL);
        r = -EINVAL;
    }
    if (r == 0)
        r = srv_files_suffice(all, err, err_size);
    if (r == 0)
        r = start_turns(srv, err, err_size);
    srv_each_tenant(srv, t) {
        if (r == 0)
            r = tenant_open_store(t, err, err_size);
        if (r == 0)
            r = tenant_start_data(t, shards, err, err_size);
        shards += t->nshards;
    }
    return r;
}

static int start_exports(struct srv *srv, char *err, size_t err_size)
{
    struct exports *x;
    int r = exports_start(srv, &x, err, err_size);

    if (r == 0)
        atomic_store(&srv->exports, x);
    return r;
}

/* ---- the process ---- */

int srv_files_suffice(uint64_t shards, char *err, size_t err_size)
{
    uint64_t need = FILES_MIN - FILES_SHARD + FILES_SHARD * shards;
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) < 0)
        return -errno;
    if (l.rlim_cur >= need)
        return 0;
    snprintf(err, err_size,
             "%llu open files are allowed (ulimit -n, LimitNOFILE=): at least %llu are needed, and about 4 "
             "for each client",
             (unsigned long long)l.rlim_cur, (unsigned long long)need);
    return -EMFILE;
}

/*
 * As many descriptors as the limit allows: each client has a few. With too few of them the libraries below fail at
 * places where they can only abort.
 */
static int raise_limits(const struct srv_config *cfg, char *err, size_t err_size)
{
    uint64_t shards = 0;
    struct rlimit l;

    for (unsigned i = 0; i < cfg->ntenants; i++)
        shards += cfg->tenants[i].shards;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0)
        return -errno;
    if (l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l); /* what holds then is looked at next */
    }
    return srv_files_suffice(shards, err, err_size);
}

static int change_user(const char *name, char *err, size_t err_size)
{
    const struct passwd *pw;
    int e = 0;

    errno = 0;
    pw = getpwnam(name);
    if (!pw) {
        snprintf(err, err_size, "user \"%s\" (user): there is no such user", name);
        return -ENOENT;
    }
    if (geteuid() == pw->pw_uid)
        return 0;
    if (initgroups(name, pw->pw_gid) < 0 || setgid(pw->pw_gid) < 0 || setuid(pw->pw_uid) < 0)
        e = -errno;
    if (e)
        snprintf(err, err_size, "cannot change to user \"%s\": %s", name, err_text(e));
    return e;
}

int srv_start(const struct srv_config *cfg, struct srv **ret, char *err, size_t err_size)
{
    struct srv *srv = calloc(1, sizeof *srv);
    int r;

    if (!srv)
        return -ENOMEM;
    srv->cfg = cfg;
    srv->start_ns = now_ns();
    pthread_mutex_init(&srv->limits_lock, NULL);
    pthread_mutex_init(&srv->change_lock, NULL);
    pthread_rwlock_init(&srv->tenants_lock, NULL);
    list_init(&srv->creds);
    list_init(&srv->asleep);
    list_init(&srv->asleep_limits);
    log_set_level(cfg->log);
    trace_set_slow(cfg->log_slow_ms * NSEC_PER_MSEC);
    snprintf(err, err_size, "out of memory");
    r = raise_limits(cfg, err, err_size);
    if (r == 0 && cfg->run_as)
        r = change_user(cfg->run_as, err, err_size);
    if (r == 0)
        r = open_store(srv, err, err_size);
    if (r == 0)
        r = start_tenants(srv, err, err_size);
    if (r == 0 && cfg->audit_file) {
        r = audit_open(cfg->audit_file, cfg->audit_size, (unsigned)cfg->audit_keep, &srv->audit);
        if (r < 0)
            snprintf(err, err_size, "audit log %s (audit.file) cannot be written: %s", cfg->audit_file, err_text(r));
    }
    if (r == 0 && cfg->agent && cfg->third_party && !(srv->thirds = thirds_new()))
        r = -ENOMEM;
    if (r == 0 && cfg->export_listen) /* there before a session is told of it; its first connection waits for `ready` */
        r = start_exports(srv, err, err_size);
    if (r == 0)
        r = start_control(srv, err, err_size);
    if (r == 0)
        atomic_store(&srv->ready, true);
    if (r == 0 && cfg->metrics_listen)
        r = metrics_start(srv, cfg->metrics_listen, &srv->metrics, err, err_size);
    if (r < 0) {
        if (srv->ctl)
            ctl_server_stop(srv->ctl, 0);
        srv_close_all(srv);
        return r;
    }
    *ret = srv;
    return 0;
}

int srv_control_port(const struct srv *s, unsigned i)
{
    return ctl_server_port(s->ctl, i);
}

int srv_metrics_port(const struct srv *s)
{
    return metrics_port(s->metrics);
}

void srv_reload(struct srv *s, const struct srv_config *again)
{
    log_set_level(again->log);
    trace_set_slow(again->log_slow_ms * NSEC_PER_MSEC);
    limits_reload(s, again);
}

void srv_reopen_audit(struct srv *s)
{
    audit_reopen(s->audit);
}

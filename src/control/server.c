/* The control server's life: methods, listening, the lease clock, stopping. */
#include "service_priv.h"

#include "base/crypto.h"
#include "control/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STREAM_INFLIGHT 64u
#define TICK_MAX_NS     NSEC_PER_SEC /* and an eighth of a lease: how late one may end at most */

/* ---- a unary method: unpack, handle, pack ---- */

static int handle(struct ctl_req *q, const struct ctl_method *m, const void *msg, size_t len, ProtobufCMessage **ret)
{
    ProtobufCMessage *in, *out;
    int r = ctl_still_wanted(q);

    if (r)
        return r;
    in = protobuf_c_message_unpack(m->in, &q->a.pb, len, msg);
    if (!in)
        return ctl_fail(q, -EBADMSG, "not a %s", m->in->name);
    out = arena_alloc(&q->a, m->out->sizeof_message);
    if (!out)
        return -ENOMEM;
    protobuf_c_message_init(m->out, out);
    r = ctl_result(q, m->fn(q, in, out));
    *ret = out;
    return r;
}

static void on_unary(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    struct ctl_server *s = user;
    ProtobufCMessage *out = NULL;
    uint8_t *packed = NULL;
    const struct ctl_method *m = rpc_method_arg(c);
    struct ctl_req q;
    int r;

    if (!rpc_was_later())
        atomic_fetch_add(&s->requests, 1);
    ctl_req_init(&q, s, c);
    r = handle(&q, m, msg, len, &out);
    if (!r) {
        packed = malloc(protobuf_c_message_get_packed_size(out) + 1);
        r = packed ? 0 : -ENOMEM;
    }
    ctl_tell(&q, m->in, r);
    if (q.later) {
        /* Nothing was done: it comes again. */
    } else if (r) {
        atomic_fetch_add(&s->failed, 1);
        rpc_finish_as(c, q.code ? q.code : errs_code(r), r, *q.text ? q.text : NULL);
    } else {
        rpc_reply(c, packed, protobuf_c_message_pack(out, packed));
    }
    free(packed);
    ctl_req_done(&q);
}

/* On a TLS connection the certificate must be of a credential, before anything else is read. Health is for all. */
static int admit(struct rpc_call *c, void *user)
{
    struct ctl_server *s = user;
    struct ctl_cred cred;

    if (!rpc_peer_has_cert(c) || !strncmp(rpc_path(c), "/grpc.health.v1.", 16) || ctl_cert_cred(s, c, &cred, NULL))
        return 0;
    sess_refuse(s->sess, REFUSE_CREDENTIAL);
    return -EACCES;
}

static const struct rpc_method streams[] = {
    {.path = "/penstock.v1.NamespaceService/Stream", .kind = RPC_BIDI, .max_inflight = STREAM_INFLIGHT, .quick = true,
     .on_message = ctl_ns_stream},
    {.path = "/penstock.v1.StatusService/Scrub", .kind = RPC_SERVER_STREAM, .on_message = ctl_scrub},
    {.path = "/grpc.health.v1.Health/Check", .kind = RPC_UNARY, .on_message = ctl_health_check},
    {.path = "/grpc.health.v1.Health/Watch", .kind = RPC_SERVER_STREAM, .on_message = ctl_health_watch,
     .on_cancel = ctl_health_unwatch},
    {.path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", .kind = RPC_BIDI, .on_message = ctl_reflect},
    {.path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", .kind = RPC_BIDI,
     .on_message = ctl_reflect},
};

static size_t add_methods(struct rpc_method *to, size_t n, const struct ctl_method *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[n++] = (struct rpc_method){.path = from[i].path, .kind = RPC_UNARY, .arg = &from[i], .on_message = on_unary};
    return n;
}

static int make_rpc(struct ctl_server *s, const struct ctl_config *cfg)
{
    struct rpc_server_config rc = {.user = s, .threads = cfg->threads, .max_calls = cfg->max_calls, .admit = admit};
    size_t n = ARRAY_SIZE(streams) + ctl_session_nmethods + ctl_admin_nmethods + ctl_cap_nmethods +
               ctl_status_nmethods + ctl_ns_nmethods + ctl_tenant_nmethods + ctl_credential_nmethods;

    s->methods = calloc(n, sizeof *s->methods);
    if (!s->methods)
        return -ENOMEM;
    /* The most used first: they are looked for in this order. */
    n = add_methods(s->methods, 0, ctl_ns_methods, ctl_ns_nmethods);
    n = add_methods(s->methods, n, ctl_session_methods, ctl_session_nmethods);
    n = add_methods(s->methods, n, ctl_admin_methods, ctl_admin_nmethods);
    n = add_methods(s->methods, n, ctl_cap_methods, ctl_cap_nmethods);
    n = add_methods(s->methods, n, ctl_status_methods, ctl_status_nmethods);
    n = add_methods(s->methods, n, ctl_tenant_methods, ctl_tenant_nmethods);
    n = add_methods(s->methods, n, ctl_credential_methods, ctl_credential_nmethods);
    memcpy(s->methods + n, streams, sizeof streams);
    rc.methods = s->methods;
    rc.nmethods = n + ARRAY_SIZE(streams);
    return rpc_server_new(&rc, &s->rpc);
}

/* ---- what ends with sessions ---- */

static void free_object(void *user, struct pst_cont *c, uint64_t ino)
{
    (void)user;
    pst_store_release(c, ino);
}

static void free_cont(void *user, struct pst_cont *c)
{
    (void)user;
    pst_cont_close(c);
}

static void session_gone(void *user, const uint8_t id[SESS_ID_BYTES])
{
    struct ctl_server *s = user;
    if (s->hooks.session_gone)
        s->hooks.session_gone(s->hooks.user, id);
}

static void session_ended(void *user, const struct sess_ident *who)
{
    struct ctl_server *s = user;

    pst_store_origin_remove(s->tenants[who->tenant].in.st, who->client);
    if (!s->audit)
        return;
    audit_put(s->audit, &(struct audit_event){.event = "session_end",
                                              .tenant = s->tenants[who->tenant].in.name,
                                              .credential = who->credential,
                                              .peer = who->peer,
                                              .what = who->purpose});
}

static void refused(void *user, uint32_t tenant, enum refusal r)
{
    struct ctl_server *s = user;

    audit_put(s->audit, &(struct audit_event){.event = "refused",
                                              .tenant = tenant < SESS_TENANTS_MAX ? s->tenants[tenant].in.name : NULL,
                                              .what = refusal_name(r)});
}

static void *tick(void *arg)
{
    struct ctl_server *s = arg;
    uint64_t most = min_u64(TICK_MAX_NS, sess_limits(s->sess)->lease_ns / 8);

    pthread_setname_np(pthread_self(), "pst-leases");
    for (;;) {
        uint64_t now = now_ns(), next = min_u64(sess_expire(s->sess, now), now + most);
        struct timespec until;
        bool stop;

        clock_gettime(CLOCK_REALTIME, &until);
        next = (uint64_t)until.tv_nsec + (next > now ? next - now : 0) + NSEC_PER_MSEC;
        until.tv_sec += (time_t)(next / NSEC_PER_SEC);
        until.tv_nsec = (long)(next % NSEC_PER_SEC);
        pthread_mutex_lock(&s->mu);
        if (!s->stop_tick)
            pthread_cond_timedwait(&s->wake, &s->mu, &until);
        stop = s->stop_tick;
        pthread_mutex_unlock(&s->mu);
        if (stop)
            return NULL;
    }
}

/* ---- start ---- */

static int add_creds(struct ctl_server *s, const struct ctl_config *cfg)
{
    int r = 0;

    for (size_t i = 0; !r && i < cfg->ncreds; i++)
        r = ctl_cred_add(s, &cfg->creds[i], true, NULL);
    return r;
}

/* The credential of who can read the token file that is made here. */
static int add_token(struct ctl_server *s, struct ctl_addr *a, char *err, size_t err_size)
{
    struct ctl_cred c = {
        .name = "local", .by_token = true, .uid = geteuid(), .gid = getegid(), .origin = true, .admin = true};
    char token[TOKEN_BYTES];
    int r = token_create(a->addr, a->port, token);

    if (!r)
        r = token_hash(token, c.token_hash);
    pst_wipe(token, sizeof token);
    if (r) {
        snprintf(err, err_size, "%s: no token file (PENSTOCK_RUN_DIR sets where): %s", a->addr, strerror(-r));
        return r;
    }
    a->token = true;
    c.any_uid = !c.uid;
    return ctl_cred_add(s, &c, true, NULL);
}

static int listen_all(struct ctl_server *s, const struct ctl_config *cfg, char *err, size_t err_size)
{
    s->addrs = calloc(cfg->nlisten ? cfg->nlisten : 1, sizeof *s->addrs);
    if (!s->addrs)
        return -ENOMEM;
    if (!cfg->nlisten) {
        snprintf(err, err_size, "no address to listen on");
        return -EINVAL;
    }
    for (size_t i = 0; i < cfg->nlisten; i++) {
        const struct ctl_listen *l = &cfg->listen[i];
        struct ctl_addr *a = &s->addrs[i];
        int r = rpc_server_listen(s->rpc, l->addr, l->tls, l->insecure, &a->port, err, err_size);
        if (r)
            return r;
        a->addr = strdup(l->addr);
        if (!a->addr)
            return -ENOMEM;
        s->naddrs++;
        r = cfg->local_token && !l->tls ? add_token(s, a, err, err_size) : 0;
        if (r)
            return r;
    }
    return 0;
}

static int set_up(struct ctl_server *s, const struct ctl_config *cfg, char *err, size_t err_size)
{
    const struct sess_hooks hooks = {free_object, free_cont, session_gone, s, session_ended, s->audit ? refused : NULL};
    int r;

    s->sess = sess_table_new(&cfg->limits, &hooks);
    if (!s->sess)
        return -ENOMEM;
    s->export_path = cfg->export_path ? strdup(cfg->export_path) : NULL;
    if (cfg->export_path && !s->export_path)
        return -ENOMEM;
    r = ctl_tenants_start(s, cfg, err, err_size);
    if (!r)
        r = add_creds(s, cfg);
    if (!r)
        r = make_rpc(s, cfg);
    if (!r)
        r = listen_all(s, cfg, err, err_size);
    if (!r)
        r = -pthread_create(&s->tick, NULL, tick, s);
    s->ticking = !r;
    return r;
}

int ctl_server_start(const struct ctl_config *cfg, struct ctl_server **ret, char *err, size_t err_size)
{
    struct ctl_server *s = calloc(1, sizeof *s);
    int r;

    if (err_size)
        *err = 0;
    if (!s)
        return -ENOMEM;
    s->hooks = cfg->hooks;
    s->audit = cfg->audit;
    s->far_store = cfg->far_store;
    s->started_ns = now_ns();
    snprintf(s->role, sizeof s->role, "%s", cfg->role ? cfg->role : "server");
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_rwlock_init(&s->cred_lock, NULL);
    r = set_up(s, cfg, err, err_size);
    if (!r) {
        *ret = s; /* before the first call can come: a quick client's data connection asks for it */
        r = rpc_server_start(s->rpc);
    }
    if (r) {
        if (err_size && !*err)
            snprintf(err, err_size, "cannot start the control server: %s", strerror(-r));
        ctl_server_stop(s, 0);
        ctl_server_free(s);
        *ret = NULL;
    }
    return r;
}

int ctl_server_port(const struct ctl_server *s, size_t i)
{
    return i < s->naddrs ? s->addrs[i].port : -EINVAL;
}

/* ---- stop ---- */

void ctl_server_end_waits(struct ctl_server *s)
{
    atomic_store(&s->waits_ended, true);
}

void ctl_server_stop(struct ctl_server *s, uint32_t grace_ms)
{
    atomic_store(&s->stopping, true);
    s->scrub_cancel = true;
    for (size_t i = 0; i < s->naddrs; i++)
        if (s->addrs[i].token)
            token_remove(s->addrs[i].addr, s->addrs[i].port);
    ctl_health_stop(s);
    if (s->rpc)
        rpc_server_stop(s->rpc, grace_ms);
    ctl_scrub_join(s);
    if (s->ticking) {
        pthread_mutex_lock(&s->mu);
        s->stop_tick = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->mu);
        pthread_join(s->tick, NULL);
        s->ticking = false;
    }
    if (s->sess)
        sess_expire(s->sess, UINT64_MAX); /* all of them */
    ctl_tenants_stop(s);
}

void ctl_server_free(struct ctl_server *s)
{
    if (!s)
        return;
    rpc_server_free(s->rpc);
    sess_table_free(s->sess);
    for (size_t i = 0; i < s->naddrs; i++)
        free(s->addrs[i].addr);
    free(s->addrs);
    free(s->methods);
    ctl_tenants_free(s);
    free(s->export_path);
    pthread_rwlock_destroy(&s->cred_lock);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->wake);
    free(s);
}

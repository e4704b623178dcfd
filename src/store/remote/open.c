/* URLs, options, and the store's life. */
#include "remote.h"

#include "base/parse.h"
#include "control/rpc.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>

#define DEFAULT_PORT 7440

const struct pst_store_ops remote_ops;

/* ---- options ---- */

struct options {
    struct session_config session;
    const char *provider;
    bool require_rdma, origin;
    enum remote_placement placement;
    uint64_t arena_mib;
};

static int parse_number(const char *s, uint64_t min, uint64_t max, uint64_t *ret)
{
    uint64_t v;

    if (parse_uint(s, &v) || v < min || v > max)
        return -EINVAL;
    *ret = v;
    return 0;
}

static int parse_bool(const char *s, bool *ret)
{
    if (strcmp(s, "0") && strcmp(s, "1"))
        return -EINVAL;
    *ret = *s == '1';
    return 0;
}

/* "0123...ef:3": a client's id, and how many processes were it before. */
static int parse_client(const char *s, struct session_config *ret)
{
    struct session_config c = *ret;
    uint64_t life;

    for (size_t i = 0; i < sizeof c.client_id; i++, s += 2) {
        char two[3] = {s[0], s[0] ? s[1] : 0, 0};
        if (!isxdigit((unsigned char)two[0]) || !isxdigit((unsigned char)two[1]))
            return -EINVAL;
        c.client_id[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    if (*s != ':' || parse_number(s + 1, 0, SESSION_LIVES - 1, &life) < 0)
        return -EINVAL;
    c.has_client_id = true;
    c.life = (uint32_t)life;
    *ret = c;
    return 0;
}

static int parse_placement(const char *s, enum remote_placement *ret)
{
    static const char *const names[] = {[PLACE_AUTO] = "auto", [PLACE_EXPORTED] = "exported",
                                        [PLACE_CROSSING] = "crossing",
                                        [PLACE_THIRD] = "third-party"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!strcmp(s, names[i])) {
            *ret = (enum remote_placement)i;
            return 0;
        }
    return -EINVAL;
}

static int parse_option(const struct pst_option *in, struct options *o)
{
    const struct {
        const char *key, **text;
    } texts[] = {{"token_file", &o->session.token_file}, {"ca_file", &o->session.ca_file},
                 {"cert_file", &o->session.cert_file},   {"key_file", &o->session.key_file},
                 {"purpose", &o->session.purpose},       {"provider", &o->provider}};
    uint64_t v;
    int r;

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (!strcmp(in->key, texts[i].key)) {
            *texts[i].text = in->value;
            return 0;
        }
    if (!strcmp(in->key, "insecure"))
        return parse_bool(in->value, &o->session.insecure);
    if (!strcmp(in->key, "origin"))
        return parse_bool(in->value, &o->origin);
    if (!strcmp(in->key, "require_rdma"))
        return parse_bool(in->value, &o->require_rdma);
    if (!strcmp(in->key, "placement"))
        return parse_placement(in->value, &o->placement);
    if (!strcmp(in->key, "client"))
        return parse_client(in->value, &o->session);
    if (!strcmp(in->key, "arena_mib"))
        return parse_number(in->value, 16, 1024, &o->arena_mib);
    if (strcmp(in->key, "timeout_ms"))
        return -EINVAL;
    r = parse_number(in->value, 1, 86400000, &v);
    if (r == 0)
        o->session.timeout_ns = v * NSEC_PER_MSEC;
    return r;
}

/* ---- life ---- */

static void on_resume(void *user)
{
    remote_resume(user);
}

static bool on_tick(void *user)
{
    return remote_tick(user);
}

static void on_changed(void *user)
{
    struct remote *r = user;

    remote_queues_wake(r);
    scoped_lock(&r->lock);
    list_for_each (it, &r->conts)
        remote_closes_again(list_entry(it, struct rcont, link));
}

static void remote_close(struct pst_store *st)
{
    struct remote *r = remote_of(st);

    session_close(r->session);
    for (size_t i = 0; i < r->nways; i++)
        fab_close(r->ways[i].fab);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* Opened already, or now. remote.lock held. */
static int open_way(struct remote *r, const char *provider, size_t *ret, char *err, size_t err_size)
{
    struct fab_config fc = {.provider = strcmp(r->provider, "uroce") ? provider : "uroce",
                            .uroce_instead = true,
                            .require_rdma = r->require_rdma};
    struct remote_way *w = &r->ways[r->nways];
    int e;

    for (size_t i = 0; i < r->nways; i++)
        if (!strcmp(r->ways[i].provider, provider)) {
            *ret = i;
            return 0;
        }
    if (r->nways == WAYS_MAX) {
        snprintf(err, err_size, "%s offers one provider after another: %s is one too many", session_addr(r->session),
                 provider);
        return -ENODEV;
    }
    e = fab_open(&fc, &w->fab, err, err_size);
    if (e < 0)
        return e;
    snprintf(w->provider, sizeof w->provider, "%s", provider);
    *ret = r->nways++;
    return 0;
}

/* The first of the server's providers that works here, or the one that was asked for. remote.lock held. */
static int choose_provider(struct remote *r, bool open, char *err, size_t err_size)
{
    struct session_shard all[SESSION_SHARDS_MAX];
    size_t n = session_shards(r->session, all);
    /* uroce is this end's way to have verbs: a server offers those. */
    const char *want = strcmp(r->provider, "uroce") ? r->provider : "verbs";
    int e = -EHOSTUNREACH;

    snprintf(err, err_size, "%s offers no data endpoint%s%s", session_addr(r->session),
             r->provider[0] ? " for provider " : "", r->provider);
    for (size_t i = 0; i < n; i++) {
        bool seen = false;
        for (size_t k = 0; k < i; k++)
            seen |= !strcmp(all[k].provider, all[i].provider);
        if (seen || (want[0] && strcmp(want, all[i].provider)))
            continue;
        e = open ? open_way(r, all[i].provider, &r->way, err, err_size) : 0;
        if (e == 0)
            return 0;
    }
    return e;
}

/* remote.lock held. */
static bool is_offered(struct remote *r, const char *provider)
{
    struct session_shard all[SESSION_SHARDS_MAX];
    size_t n = session_shards(r->session, all);

    for (size_t i = 0; i < n; i++)
        if (!strcmp(all[i].provider, provider))
            return true;
    return false;
}

int remote_way(struct remote *r, const struct remote_way **ret, char *err, size_t err_size)
{
    sigset_t all, old;
    bool had;
    int e = 0;

    scoped_lock(&r->lock);
    had = r->nways > 0;
    if (!had || !is_offered(r, r->ways[r->way].provider)) {
        /* libfabric starts threads here: signals are the program's own threads' business. */
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &old);
        e = choose_provider(r, true, err, err_size);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (e == 0 && had)
            log_info("%s: data goes by provider %s from now on", session_addr(r->session), r->ways[r->way].provider);
    }
    if (e == 0)
        *ret = &r->ways[r->way];
    return e;
}

bool remote_shares(struct remote *r)
{
    scoped_lock(&r->lock);
    if (r->nways)
        return fab_shares(r->ways[r->way].fab);
    return (!r->provider[0] || !strcmp(r->provider, "uroce")) && is_offered(r, "verbs") && !fab_rdma_device();
}

/* Without it what a host sends again could happen twice. */
static int may_speak_for_others(struct remote *r, char *err, size_t err_size)
{
    struct session_identity who;

    session_identity(r->session, &who);
    if (who.origin)
        return 0;
    snprintf(err, err_size, "%s: the credential there is not an agent's: give it origin: true",
             session_addr(r->session));
    return -EPERM;
}

/*
 * Loading libfabric takes longer than all the rest, and many a client never moves data: it waits for the first
 * operation, unless something was required of it.
 */
static int open_parts(struct remote *r, const struct options *o, char *err, size_t err_size)
{
    struct session_hooks hooks = {on_resume, on_changed, on_tick, r};
    const struct remote_way *way;
    sigset_t all, old;
    int e;

    /* gRPC starts threads here. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    e = session_open(&o->session, &hooks, &r->session, err, err_size);
    if (e == 0 && o->origin)
        e = may_speak_for_others(r, err, err_size);
    if (e == 0)
        e = o->require_rdma || o->provider ? remote_way(r, &way, err, err_size)
                                           : choose_provider(r, false, err, err_size);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return e;
}

static int open_store(const char *addr, const struct pst_option *opts, size_t nopts, struct pst_store **ret, char *err,
                      size_t err_size)
{
    struct options o = {.session = {.addr = addr}, .arena_mib = ARENA_MIB};
    struct remote *r;
    int e;

    for (size_t i = 0; i < nopts; i++)
        if (parse_option(&opts[i], &o) < 0) {
            snprintf(err, err_size, "unknown option or bad value: %s=%s", opts[i].key, opts[i].value);
            return -EINVAL;
        }
    r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->st.ops = &remote_ops;
    r->arena_bytes = o.arena_mib * MiB;
    r->require_rdma = o.require_rdma;
    r->is_agent = o.origin;
    r->placement = o.placement;
    if (o.provider && strlen(o.provider) >= sizeof r->provider) {
        snprintf(err, err_size, "no such provider: %.100s", o.provider);
        free(r);
        return -EINVAL;
    }
    snprintf(r->provider, sizeof r->provider, "%s", o.provider ? o.provider : "");
    pthread_mutex_init(&r->lock, NULL);
    list_init(&r->conts);
    list_init(&r->queues);
    e = open_parts(r, &o, err, err_size);
    if (e == 0 && r->placement == PLACE_EXPORTED && !remote_takes_exports(r)) {
        snprintf(err, err_size,
                 "%s takes no memory that this process could hand over (placement=exported; data.export_listen "
                 "of a daemon on the same machine)",
                 addr);
        e = -ENOTSUP;
    }
    if (e == 0 && r->placement == PLACE_THIRD && !session_offers_third(r->session)) {
        snprintf(err, err_size, "%s has no server behind it that this process could connect to (placement=third-party; "
                                "data.third_party of an agent without filters)", addr);
        e = -ENOTSUP;
    }
    if (e < 0) {
        remote_close(&r->st);
        return e;
    }
    *ret = &r->st;
    return 0;
}

/* "//host", "//host:port", "//[v6]:port" to what the control channel takes. */
static int host_port(const char *rest, char *ret, size_t size)
{
    const char *host = rest + 2, *colon;
    size_t n;

    if (strncmp(rest, "//", 2) || !*host || strchr(host, '/') || strchr(host, '@'))
        return -EINVAL;
    colon = *host == '[' ? strstr(host, "]:") : strchr(host, ':');
    if (*host == '[' && !strchr(host, ']'))
        return -EINVAL;
    n = (size_t)(colon ? snprintf(ret, size, "%s", host) : snprintf(ret, size, "%s:%u", host, DEFAULT_PORT));
    return n < size ? 0 : -ENAMETOOLONG;
}

static int open_host(const char *rest, const struct pst_option *opts, size_t nopts, struct pst_store **ret, char *err,
                     size_t err_size)
{
    char addr[280];
    int r = host_port(rest, addr, sizeof addr);

    if (r < 0) {
        snprintf(err, err_size, "\"penstock:%.200s\" is not penstock://HOST[:PORT]", rest);
        return r;
    }
    return open_store(addr, opts, nopts, ret, err, err_size);
}

static int open_unix(const char *rest, const struct pst_option *opts, size_t nopts, struct pst_store **ret, char *err,
                     size_t err_size)
{
    char addr[280];

    if (strncmp(rest, "///", 3) || snprintf(addr, sizeof addr, "unix:%s", rest + 2) >= (int)sizeof addr) {
        snprintf(err, err_size, "\"penstock+unix:%.200s\" is not penstock+unix:///PATH", rest);
        return -EINVAL;
    }
    return open_store(addr, opts, nopts, ret, err, err_size);
}

const struct pst_backend pst_remote_backend = {"penstock", open_host};
const struct pst_backend pst_remote_unix_backend = {"penstock+unix", open_unix};

/* ---- facts ---- */

static void remote_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value),
                            void *user)
{
    struct remote *r = remote_of(st);
    const struct remote_way *way;
    const struct fab_info *f;
    struct session_identity who;
    char n[32], err[300];

    session_identity(r->session, &who);
    fn(user, "server", session_addr(r->session));
    fn(user, "connection", session_is_up(r->session)     ? "up"
                           : session_refused(r->session) ? "down: the server refuses this client"
                                                         : "down: connecting again");
    snprintf(n, sizeof n, "%u", who.uid);
    fn(user, "session.uid", n);
    snprintf(n, sizeof n, "%u", who.gid);
    fn(user, "session.gid", n);
    fn(user, "session.any_uid", who.any_uid ? "yes" : "no");
    snprintf(n, sizeof n, "%llu", (unsigned long long)session_reconnects(r->session));
    fn(user, "reconnects", n);
    if (remote_way(r, &way, err, sizeof err) < 0) {
        fn(user, "data.error", err);
        return;
    }
    f = fab_info(way->fab);
    fn(user, "data.provider", f->provider);
    fn(user, "data.device", f->device);
    fn(user, "data.rdma", f->rdma ? "yes" : "no");
    fn(user, "data.verbs", f->verbs);
    fn(user, "data.placement",
       atomic_load(&r->exported_bytes) ? "exported: the daemon's process places the bytes in this one's memory"
       : atomic_load(&r->third_bytes)
           ? (f->rdma ? "third-party: by RDMA between this machine and the server behind the agent"
                      : "third-party: this process and the server behind the agent, each what it receives")
       : f->rdma ? "crossing: by RDMA"
                 : "crossing: this process places what it reads, the daemon what it writes");
}

static uint64_t remote_history(struct pst_store *st)
{
    return session_history(remote_of(st)->session);
}

static int remote_origin_add(struct pst_store *st, const uint8_t client[16])
{
    return session_origin_add(remote_of(st)->session, client);
}

static void remote_origin_remove(struct pst_store *st, const uint8_t client[16])
{
    session_origin_remove(remote_of(st)->session, client);
}

static bool remote_away(struct pst_store *st)
{
    return !session_is_up(remote_of(st)->session);
}

static void remote_end_waits(struct pst_store *st)
{
    session_end_waits(remote_of(st)->session);
}

static void remote_stats(struct pst_store *st, pst_stat_fn fn, void *user)
{
    struct remote *r = remote_of(st);
    struct session_identity who;
    const struct {
        const char *name, *help;
        _Atomic uint64_t *v;
    } all[] = {
        {"remote_requests_total", "Requests sent over data connections", &r->requests},
        {"remote_retried_total", "Requests sent again after a connection ended", &r->retried},
        {"remote_timed_out_total", "Operations that got no answer in time", &r->timed_out},
        {"remote_copied_bytes_total", "Bytes that went through the arena", &r->copied_bytes},
        {"remote_direct_bytes_total", "Bytes moved in registered memory without a copy", &r->direct_bytes},
        {"remote_exported_bytes_total", "Bytes placed by the daemon in memory that was handed to it",
         &r->exported_bytes},
        {"remote_third_bytes_total", "Bytes moved between this client and the server behind its agent",
         &r->third_bytes},
        {"remote_far_bytes_total", "Bytes moved between clients of this agent and its server", &r->far_bytes},
        {"remote_connects_total", "Data connections made", &r->connects},
    };

    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        fn(user, all[i].name, "", all[i].help, true, (double)atomic_load(all[i].v));
    session_identity(r->session, &who);
    fn(user, "remote_session_uid", "", "User that requests without one act for", false, who.uid);
    fn(user, "remote_session_gid", "", "Group that requests without one act for", false, who.gid);
    fn(user, "remote_session_any_uid", "", "1: requests may name other users", false, who.any_uid);
}

const struct pst_store_ops remote_ops = {
    .name = "remote",
    .close = remote_close,
    .pool_create = remote_pool_create,
    .pool_query = remote_pool_query,
    .pool_list = remote_pool_list,
    .pool_destroy = remote_pool_destroy,
    .cont_create = remote_cont_create,
    .cont_query = remote_cont_query,
    .cont_list = remote_cont_list,
    .cont_destroy = remote_cont_destroy,
    .cont_open = remote_cont_open,
    .cont_close = remote_cont_close,
    .lookup = remote_lookup,
    .getattr = remote_getattr,
    .setattr = remote_setattr,
    .make = remote_make,
    .create = remote_create,
    .readlink = remote_readlink,
    .link = remote_link,
    .unlink = remote_unlink,
    .rmdir = remote_rmdir,
    .rename = remote_rename,
    .readdir = remote_readdir,
    .parent = remote_parent,
    .statfs = remote_statfs,
    .setxattr = remote_setxattr,
    .getxattr = remote_getxattr,
    .listxattr = remote_listxattr,
    .removexattr = remote_removexattr,
    .open = remote_open,
    .release = remote_release,
    .queue_open = remote_queue_open,
    .queue_close = remote_queue_close,
    .queue_submit = remote_queue_submit,
    .queue_reap = remote_queue_reap,
    .queue_fd = remote_queue_fd,
    .queue_cancel = remote_queue_cancel,
    .queue_spread = remote_queue_spread,
    .history = remote_history,
    .origin_add = remote_origin_add,
    .origin_remove = remote_origin_remove,
    .end_waits = remote_end_waits,
    .away = remote_away,
    .walks = true,
    .moves_only = true,
    .wants_shared = remote_wants_shared,
    .third = remote_third,
    .write = remote_write,
    .describe = remote_describe,
    .stats = remote_stats,
};

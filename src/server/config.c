/* One table of options: it makes the flags, and turns the text of either source into checked values. */
#include "config_rows.h"

#include "base/parse.h"
#include "filter/filter.h"
#include "qos/bucket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define T(field) offsetof(struct text_values, field)
#define V(field) offsetof(struct srv_config, field)
#define ROW(flag, arg, help, key, kind, text, value, min, max)                                                         \
    {                                                                                                                  \
        {flag, arg, help}, key, kind, text, value, min, max                                                            \
    }
const struct option_row config_rows[] = {
    ROW("role", "server|agent", "server: serves a store of this machine; agent: that of another server; default server",
        "role", K_STR, T(role), 0, 0, 0),
    ROW("backend", "URL", "agent: the server behind it: penstock://HOST[:PORT]", "backend.url", K_STR, T(backend.url),
        V(backend.url), 0, 0),
    ROW("backend-token-file", "FILE", "agent: its credential there, a token", "backend.token_file", K_STR,
        T(backend.token_file), V(backend.token_file), 0, 0),
    ROW("backend-ca", "FILE", "agent: CA of the server's certificate", "backend.ca", K_STR, T(backend.ca),
        V(backend.ca), 0, 0),
    ROW("backend-cert", "FILE", "agent: its certificate there", "backend.cert", K_STR, T(backend.cert), V(backend.cert),
        0, 0),
    ROW("backend-key", "FILE", "agent: and its key", "backend.key", K_STR, T(backend.key), V(backend.key), 0, 0),
    ROW("backend-insecure", NULL, "agent: plain text to a server off loopback", "backend.insecure", K_BOOL,
        T(backend.insecure), V(backend.insecure), 0, 0),
    ROW("backend-provider", "NAME", "agent: libfabric provider to the server; default: what it offers",
        "backend.provider", K_STR, T(backend.provider), V(backend.provider), 0, 0),
    ROW("backend-require-rdma", NULL, "agent: do not start without RDMA to the server", "backend.require_rdma", K_BOOL,
        T(backend.require_rdma), V(backend.require_rdma), 0, 0),
    ROW("backend-timeout", "TIME", "agent: how long requests wait while the server is away; default 120s",
        "backend.timeout", K_MS, T(backend.timeout), V(backend.timeout_ms), 100, 86400000),
    ROW("store", "URL", "the store: local:/var/lib/penstock", "store.url", K_STR, T(store.url), V(store_url), 0, 0),
    ROW("store-option", "KEY=VALUE", "an option of its engine; repeatable", "store.options", K_LIST, T(store.options),
        0, 0, 0),
    ROW("filter", "SPEC",
        "a filter on the store, first is lowest: compress, crypt:key_file=FILE, csum, delay:op=write,ms=200; "
        "repeatable",
        "filters", K_LIST, T(filters), 0, 0, 0),
    ROW("cache", "SIZE", "agent: memory that keeps what was read, for reading it again; default 0: none", "cache",
        K_SIZE, T(cache), V(cache_bytes), 0, FILTER_CACHE_MAX),
    ROW("read-ahead", "SIZE", "agent: what is read into it ahead of who reads in order; 0: nothing; default 4M",
        "read_ahead", K_SIZE, T(read_ahead), V(read_ahead), 0, SRV_READ_AHEAD_MAX),
    ROW("pool", "LABEL[:quota=SIZE]", "create this pool at start if it is not there; repeatable", "pools", K_POOL,
        T(pools), 0, 0, 0),
    ROW("container", "POOL/LABEL[:chunk_size=SIZE,...]", "and this container; repeatable", "pools.containers",
        K_CONTAINER, T(pools), 0, 0, 0),
    ROW("listen", "HOST:PORT", "control address (unix:/path too); repeatable; default " SRV_CONTROL_LISTEN,
        "control.listen", K_LIST, T(control.listen), 0, 0, 0),
    ROW("insecure", NULL, "plain text also off loopback", "control.insecure", K_BOOL, T(control.insecure), V(insecure),
        0, 0),
    ROW("local-token", "yes|no", "let in who can read the token file of a local address; default yes",
        "control.local_token", K_BOOL, T(control.local_token), V(local_token), 0, 0),
    ROW("tls-ca", "FILE", "CA of the clients' certificates", "control.tls.ca", K_STR, T(control.tls.ca), V(tls_ca), 0,
        0),
    ROW("tls-cert", "FILE", "this server's certificate", "control.tls.cert", K_STR, T(control.tls.cert), V(tls_cert), 0,
        0),
    ROW("tls-key", "FILE", "and its key", "control.tls.key", K_STR, T(control.tls.key), V(tls_key), 0, 0),
    ROW("lease", "TIME", "a session that is silent so long ends; default 30s", "control.lease", K_MS, T(control.lease),
        V(lease_ms), 1000, 3600000),
    ROW("max-sessions", "N", "sessions at once", "control.max_sessions", K_UINT, T(control.max_sessions),
        V(max_sessions), 1, 1000000),
    ROW("data-listen", "HOST:PORT", "data address; shard n takes port + n; 0: any; default: the control host, any port",
        "data.listen", K_STR, T(data.listen), V(data_listen), 0, 0),
    ROW("data-advertise", "HOST", "the address clients are told, where data-listen is 0.0.0.0 or [::]",
        "data.advertise", K_STR, T(data.advertise), V(data_advertise), 0, 0),
    ROW("provider", "NAME", "libfabric provider: auto, tcp, net, verbs, uroce; default auto", "data.provider", K_STR,
        T(data.provider), V(data_provider), 0, 0),
    ROW("require-rdma", NULL, "do not start without RDMA", "data.require_rdma", K_BOOL, T(data.require_rdma),
        V(data_require_rdma), 0, 0),
    ROW("data-security", "clear", "file bytes may cross the network in clear text", "data.security", K_STR,
        T(data.security), 0, 0, 0),
    ROW("shards", "N", "data threads; default one for two cores", "data.shards", K_UINT, T(data.shards), V(data_shards),
        1, SRV_SHARDS_MAX),
    ROW("credits", "N", "requests under way per data connection; default 64", "data.credits", K_UINT, T(data.credits),
        V(data_credits), 4, 1024),
    ROW("spin-us", "N", "busy polling before a data thread sleeps; default 20", "data.spin_us", K_UINT, T(data.spin_us),
        V(data_spin_us), 0, 1000000),
    ROW("buffer-size", "SIZE", "one transfer buffer; default 1M", "data.buffer_size", K_SIZE, T(data.buffer_size),
        V(data_buffer_bytes), 64 * KiB, 8 * MiB),
    ROW("buffer-memory", "SIZE", "transfer buffers of one shard; default 64M", "data.buffer_memory", K_SIZE,
        T(data.buffer_memory), V(data_buffer_memory), 16 * MiB, 1024 * GiB),
    ROW("export-listen", "PATH", "Unix socket on which clients of this machine hand over their memory; off without it",
        "data.export_listen", K_STR, T(data.export_listen), V(export_listen), 0, 0),
    ROW("export-memory", "SIZE", "memory of clients mapped at once; default 4G", "data.export_memory", K_SIZE,
        T(data.export_memory), V(export_memory), 16 * MiB, 1024 * GiB),
    ROW("third-party", NULL, "agent: hosts may connect to its server themselves, for the bytes", "data.third_party",
        K_BOOL, T(data.third_party), V(third_party), 0, 0),
    ROW("max-connections", "N", "data connections at once", "data.max_connections", K_UINT, T(data.max_connections),
        V(max_connections), 1, 1000000),
    ROW("limit-bytes", "SIZE", "bytes a second that clients may read and write together; default no limit",
        "limits.bytes", K_SIZE, T(limits.bytes), V(limit_bytes), 4 * KiB, QOS_RATE_MAX),
    ROW("limit-ops", "N", "requests a second, of data and of names; default no limit", "limits.operations", K_UINT,
        T(limits.operations), V(limit_ops), 1, 1000000000),
    ROW("window", "SIZE", "bytes of requests in the store at once, where there are limits or tenants; default 4M",
        "limits.window", K_SIZE, T(limits.window), V(window_bytes), 64 * KiB, 1 * GiB),
    ROW("credential", "name=NAME,token_file=FILE|cn=NAME[,uid=N][,gid=N][,any_uid][,admin][,origin][,tenant=NAME]",
        "who may connect; repeatable", "credentials", K_CREDENTIAL, T(credentials), 0, 0, 0),
    ROW("metrics", "HOST:PORT|off", "Prometheus page; default " SRV_METRICS_LISTEN, "metrics.listen", K_STR,
        T(metrics.listen), V(metrics_listen), 0, 0),
    ROW("metrics-token-file", "FILE",
        "whoever reads the Prometheus page shows the token in it; without it the page tells of no tenant",
        "metrics.token_file", K_STR, T(metrics.token_file), V(metrics_token_file), 0, 0),
    ROW("audit", "FILE", "audit log: sessions, grants, refusals, administrators' acts, as lines of JSON", "audit.file",
        K_STR, T(audit.file), V(audit_file), 0, 0),
    ROW("audit-size", "SIZE", "then it is rotated; default 64M", "audit.size", K_SIZE, T(audit.size), V(audit_size),
        1 * MiB, 1024 * GiB),
    ROW("audit-keep", "N", "rotated files that are kept; default 8", "audit.keep", K_UINT, T(audit.keep), V(audit_keep),
        0, 1000),
    ROW("log", "LEVEL", "error, warn, info or debug; default info", "log", K_STR, T(log), 0, 0, 0),
    ROW("log-slow", "TIME", "requests that take so long are told in the log; 0: none; default 1s", "log_slow", K_MS,
        T(log_slow), V(log_slow_ms), 0, 86400000),
    ROW("tenants-file", "FILE",
        "where tenants, credentials and limits of run time are kept; without it they last until the daemon ends",
        "tenants_file", K_STR, T(tenants_file), V(tenants_file), 0, 0),
    ROW("user", "NAME", "run as this user", "user", K_STR, T(user), V(run_as), 0, 0),
    ROW("drain", "TIME", "how long SIGTERM waits for what is under way; default 10s", "drain", K_MS, T(drain),
        V(drain_ms), 0, 600000),
};
const size_t config_nrows = ARRAY_SIZE(config_rows);
_Static_assert(ARRAY_SIZE(config_rows) <= TEXT_FLAGS, "srv_text.set is too small");

const struct srv_flag *srv_config_flag_at(size_t i)
{
    return i < config_nrows ? &config_rows[i].flag : NULL;
}

struct srv_config *srv_config_new(void)
{
    struct srv_config *c = calloc(1, sizeof *c);
    struct srv_text *t = calloc(1, sizeof *t);

    if (t)
        t->v = calloc(1, sizeof *t->v);
    if (!c || !t || !t->v) {
        free(t);
        free(c);
        return NULL;
    }
    c->text = t;
    return c;
}

void srv_config_free(struct srv_config *c)
{
    if (!c)
        return;
    for (unsigned i = 0; i < c->npools; i++)
        free(c->pools[i].containers);
    for (unsigned i = 0; i < c->nstore_opts; i++)
        free((char *)c->store_opts[i].key);
    free(c->pools);
    free(c->store_opts);
    free(c->credentials);
    for (unsigned i = 0; i < c->ntenants; i++)
        free(c->tenants[i].store_opts);
    free(c->tenants);
    text_free_values(c->text->v);
    free(c->text->path);
    free(c->text);
    free(c);
}

int srv_config_load(struct srv_config *c, const char *path, char *err, size_t err_size)
{
    return text_load(c->text, path, err, err_size);
}

int config_bad(const struct srv_config *c, const struct option_row *o, const char *key, const char *value,
               const char *why, char *err, size_t err_size)
{
    const struct srv_text *t = c->text;
    bool flag = o && t->set[o - config_rows];
    unsigned line = flag ? 0 : text_line(t, key);
    char where[300] = "";

    if (line)
        snprintf(where, sizeof where, "%s: line %u: ", t->path, line);
    snprintf(err, err_size, "%s%s%s: %s%.100s%s%s", where, flag ? "--" : "", flag ? o->flag.name : key,
             value ? "\"" : "", value ? value : "", value ? "\": " : "", why);
    return -EINVAL;
}

static int check_row(struct srv_config *c, const struct option_row *o, char *err, size_t err_size)
{
    const char *s = *(char **)((char *)c->text->v + o->text);
    void *out = (char *)c + o->value;
    uint64_t v = 0;
    char why[120], least[SIZE_TEXT], most[SIZE_TEXT];
    int r = 0;

    if (!s)
        return 0;
    switch (o->kind) {
    case K_STR:
        if (!*s)
            return config_bad(c, o, o->key, s, "is empty", err, err_size);
        if (o->value)
            *(const char **)out = s;
        return 0;
    case K_BOOL:
        if (srv_parse_bool(s, out) < 0)
            return config_bad(c, o, o->key, s, "must be true or false", err, err_size);
        return 0;
    case K_UINT:
        r = parse_uint(s, &v);
        snprintf(why, sizeof why, "must be a number from %llu to %llu", (unsigned long long)o->min,
                 (unsigned long long)o->max);
        break;
    case K_SIZE:
        r = parse_size(s, &v);
        snprintf(why, sizeof why, "must be a size (512K, 1M, ...) from %s to %s", config_size_text(o->min, least),
                 config_size_text(o->max, most));
        break;
    case K_MS:
        r = srv_parse_ms(s, &v);
        snprintf(why, sizeof why, "must be a time (500ms, 30s, 5m) from %llums to %llus", (unsigned long long)o->min,
                 (unsigned long long)(o->max / 1000));
        break;
    default:
        return 0;
    }
    if (r < 0 || v < o->min || v > o->max)
        return config_bad(c, o, o->key, s, why, err, err_size);
    *(uint64_t *)out = v;
    return 0;
}

const struct option_row *config_row(const char *flag)
{
    const struct option_row *o = config_rows;
    while (strcmp(o->flag.name, flag) != 0)
        o++;
    return o;
}

static int check_store_options(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_store *t = &c->text->v->store;

    c->store_opts = calloc(t->options_count + 1, sizeof *c->store_opts);
    if (!c->store_opts)
        return -ENOMEM;
    for (unsigned i = 0; i < t->options_count; i++) {
        char *copy = strdup(t->options[i]), *eq = copy ? strchr(copy, '=') : NULL;
        if (!eq || eq == copy) {
            free(copy);
            return config_bad(c, config_row("store-option"), "store.options", t->options[i], "must be KEY=VALUE", err,
                              err_size);
        }
        *eq = 0;
        c->store_opts[c->nstore_opts++] = (struct pst_option){copy, eq + 1};
    }
    return 0;
}

static int check_addr(struct srv_config *c, const char *flag, const char *addr, bool sockets_only, char *err,
                      size_t err_size)
{
    const struct option_row *o = config_row(flag);
    char host[SRV_HOST_MAX];
    uint16_t port;

    if (srv_parse_addr(addr, host, &port) < 0 || (sockets_only && !strncmp(host, "unix:", 5)))
        return config_bad(c, o, o->key, addr, sockets_only ? "must be HOST:PORT" : "must be HOST:PORT or unix:/path",
                          err, err_size);
    return 0;
}

static bool is_wildcard(const char *addr)
{
    char host[SRV_HOST_MAX];
    uint16_t port;
    return srv_parse_addr(addr, host, &port) == 0 && (!strcmp(host, "0.0.0.0") || !strcmp(host, "::"));
}

static int check_control(struct srv_config *c, char *err, size_t err_size)
{
    struct text_control *t = &c->text->v->control;
    int r;

    if (t->listen_count == 0 && config_add_string(&t->listen, &t->listen_count, SRV_CONTROL_LISTEN) < 0)
        return -ENOMEM;
    c->control_listen = t->listen;
    c->ncontrol_listen = t->listen_count;
    if ((c->tls_ca || c->tls_cert || c->tls_key) && !(c->tls_ca && c->tls_cert && c->tls_key))
        return config_bad(c, NULL, "control.tls", NULL, "needs all of ca, cert and key", err, err_size);
    for (unsigned i = 0; i < c->ncontrol_listen; i++) {
        r = check_addr(c, "listen", c->control_listen[i], false, err, err_size);
        if (r < 0)
            return r;
        if (!srv_addr_is_local(c->control_listen[i]) && !c->tls_cert && !c->insecure)
            return config_bad(c, config_row("listen"), "control.listen", c->control_listen[i],
                              "off loopback needs control.tls (penstock tls init makes it), or control.insecure: true",
                              err, err_size);
    }
    return 0;
}

/* The data address, where none is given: the host of the first control address that has one. */
static int default_data_listen(struct srv_config *c)
{
    char host[SRV_HOST_MAX] = "127.0.0.1", addr[SRV_HOST_MAX + 8];
    uint16_t port;

    for (unsigned i = 0; i < c->ncontrol_listen; i++)
        if (strncmp(c->control_listen[i], "unix:", 5) != 0) {
            srv_parse_addr(c->control_listen[i], host, &port);
            break;
        }
    snprintf(addr, sizeof addr, strchr(host, ':') ? "[%s]:0" : "%s:0", host);
    if (config_set_string(&c->text->v->data.listen, addr) < 0)
        return -ENOMEM;
    c->data_listen = c->text->v->data.listen;
    return 0;
}

static int check_data(struct srv_config *c, char *err, size_t err_size)
{
    const char *security = c->text->v->data.security;
    int r;

    c->data_clear = security && !strcmp(security, "clear");
    if (security && !c->data_clear)
        return config_bad(c, config_row("data-security"), "data.security", security,
                          "the only value is clear: file bytes are not encrypted on the data connections", err,
                          err_size);
    r = c->data_listen ? check_addr(c, "data-listen", c->data_listen, true, err, err_size) : default_data_listen(c);
    if (r < 0)
        return r;
    if (!srv_addr_is_local(c->data_listen) && !c->data_clear)
        return config_bad(c, config_row("data-listen"), "data.listen", c->data_listen,
                          "off loopback file bytes cross the network in clear text: set data.security: clear "
                          "(--data-security clear) if that is meant, or data.listen: 127.0.0.1:0",
                          err, err_size);
    if (is_wildcard(c->data_listen) && !c->data_advertise)
        return config_bad(c, config_row("data-listen"), "data.listen", c->data_listen,
                          "clients cannot connect to a wildcard: name an address, or set data.advertise", err,
                          err_size);
    if (c->export_listen && (c->export_listen[0] != '/' || strlen(c->export_listen) >= 108))
        return config_bad(c, config_row("export-listen"), "data.export_listen", c->export_listen,
                          "must be an absolute path of at most 107 bytes", err, err_size);
    if (c->data_buffer_memory < 4 * c->data_buffer_bytes)
        return config_bad(c, config_row("buffer-memory"), "data.buffer_memory", c->text->v->data.buffer_memory,
                          "must be at least four times data.buffer_size", err, err_size);
    return 0;
}

static uint64_t default_shards(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return max_u64(1, min_u64((uint64_t)n / 2, SRV_SHARDS_MAX));
}

/* An option of the remote store; value NULL: not set. */
static int add_option(struct srv_config *c, const char *key, const char *value)
{
    char *copy;

    if (!value)
        return 0;
    if (asprintf(&copy, "%s=%s", key, value) < 0)
        return -ENOMEM;
    copy[strlen(key)] = 0;
    c->store_opts[c->nstore_opts++] = (struct pst_option){copy, copy + strlen(key) + 1};
    return 0;
}

/* The backend as a store: its URL, and options of the registry. */
static int backend_as_store(struct srv_config *c)
{
    const struct srv_backend *b = &c->backend;
    const char *const opts[][2] = {
        {"token_file", b->token_file}, {"ca_file", b->ca}, {"cert_file", b->cert}, {"key_file", b->key},
        {"provider", b->provider}, {"purpose", "agent"}, {"origin", "1"}, {"insecure", b->insecure ? "1" : NULL},
        {"require_rdma", b->require_rdma ? "1" : NULL}};
    char ms[24];
    int r;

    snprintf(ms, sizeof ms, "%llu", (unsigned long long)b->timeout_ms);
    c->store_url = b->url;
    c->store_opts = calloc(ARRAY_SIZE(opts) + 1, sizeof *c->store_opts);
    r = c->store_opts ? add_option(c, "timeout_ms", ms) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(opts); i++)
        r = add_option(c, opts[i][0], opts[i][1]);
    return r;
}

static int check_role(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_values *v = c->text->v;
    const struct srv_backend *b = &c->backend;

    c->agent = v->role && !strcmp(v->role, "agent");
    if (v->role && !c->agent && strcmp(v->role, "server"))
        return config_bad(c, config_row("role"), "role", v->role, "must be server or agent", err, err_size);
    if (!c->agent && c->third_party)
        return config_bad(c, config_row("third-party"), "data.third_party", "true", "is for an agent (role: agent)",
                          err, err_size);
    if (!c->agent)
        return b->url ? config_bad(c, config_row("backend"), "backend.url", b->url, "is for an agent (role: agent)",
                                   err, err_size)
                      : check_store_options(c, err, err_size);
    if (!b->url)
        return config_bad(c, NULL, "backend.url", NULL,
                          "is missing: the server behind the agent, penstock://HOST[:PORT]", err, err_size);
    if (strncmp(b->url, "penstock://", 11) && strncmp(b->url, "penstock+unix://", 16))
        return config_bad(c, config_row("backend"), "backend.url", b->url,
                          "must be penstock://HOST[:PORT] or penstock+unix:///PATH", err, err_size);
    if (c->store_url || v->store.options_count)
        return config_bad(c, config_row("store"), "store.url", c->store_url,
                          "an agent has no store of its own: take it out, or role: agent", err, err_size);
    if (v->pools_count)
        return config_bad(c, config_row("pool"), "pools", v->pools[0].label,
                          "an agent makes no pools: they are its backend's", err, err_size);
    if (!b->cert != !b->key)
        return config_bad(c, NULL, "backend.cert", NULL, "and backend.key are needed together", err, err_size);
    return backend_as_store(c);
}

static int check_cache(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_values *v = c->text->v;
    bool any = c->cache_bytes != 0;

    if (c->cache_bytes && !c->agent)
        return config_bad(c, config_row("cache"), "cache", v->cache, "is for an agent (role: agent)", err, err_size);
    if (c->cache_bytes && c->cache_bytes < FILTER_CACHE_MIN)
        return config_bad(c, config_row("cache"), "cache", v->cache, "must be 0, or a size from 16M to 1024G", err,
                          err_size);
    for (unsigned i = 1; i < c->ntenants; i++)
        any = any || c->tenants[i].cache_bytes;
    if (v->read_ahead && c->read_ahead && !any)
        return config_bad(c, config_row("read-ahead"), "read_ahead", v->read_ahead,
                          "needs cache: that is where it goes", err, err_size);
    return 0;
}

static bool has_local_address(const struct srv_config *c)
{
    for (unsigned i = 0; i < c->ncontrol_listen; i++)
        if (srv_addr_is_local(c->control_listen[i]))
            return true;
    return false;
}

int config_metrics_for_tenants(const struct srv_config *c, char *err, size_t err_size)
{
    if (!c->metrics_listen || c->metrics_token_file || srv_addr_is_local(c->metrics_listen))
        return 0;
    return config_bad(c, config_row("metrics"), "metrics.listen", c->metrics_listen,
                      "needs metrics.token_file off loopback, where there are tenants: it tells of all of them", err,
                      err_size);
}

static int check_rest(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_values *v = c->text->v;

    if (!c->store_url)
        return config_bad(c, NULL, "store.url", NULL,
                          "is missing: local:/DIRECTORY (or use penstock serve --dev DIRECTORY)", err, err_size);
    if (c->ncredentials == 0 && !(c->local_token && has_local_address(c)))
        return config_bad(c, NULL, "credentials", NULL, "are missing: nobody could connect", err, err_size);
    c->metrics_listen = c->metrics_listen ? c->metrics_listen : SRV_METRICS_LISTEN;
    if (!strcmp(c->metrics_listen, "off"))
        c->metrics_listen = NULL;
    else if (check_addr(c, "metrics", c->metrics_listen, true, err, err_size) < 0)
        return -EINVAL;
    else if (c->ntenants > 1 && config_metrics_for_tenants(c, err, err_size) < 0)
        return -EINVAL;
    if (v->log && log_level_parse(v->log, &c->log) < 0)
        return config_bad(c, config_row("log"), "log", v->log, "must be error, warn, info or debug", err, err_size);
    return 0;
}

int srv_config_finish(struct srv_config *c, char *err, size_t err_size)
{
    static int (*const checks[])(struct srv_config *, char *, size_t) = {
        check_role,      config_check_pools, config_check_tenants, config_check_credentials, check_cache, check_control,
        check_data,      check_rest};
    int r = 0;

    c->lease_ms = SRV_LEASE_MS;
    c->drain_ms = SRV_DRAIN_MS;
    c->max_sessions = SRV_SESSIONS;
    c->backend.timeout_ms = SRV_BACKEND_MS;
    c->max_connections = SRV_CONNECTIONS;
    c->data_spin_us = SRV_SPIN_US;
    c->window_bytes = SRV_WINDOW;
    c->data_buffer_bytes = SRV_BUFFER_BYTES;
    c->data_buffer_memory = SRV_BUFFER_MEMORY;
    c->export_memory = SRV_EXPORT_MEMORY;
    c->read_ahead = SRV_READ_AHEAD;
    c->data_shards = default_shards();
    c->log = LOG_LVL_INFO;
    c->log_slow_ms = 1000;
    c->audit_size = SRV_AUDIT_SIZE;
    c->audit_keep = SRV_AUDIT_KEEP;
    c->local_token = true;
    c->filters = c->text->v->filters;
    c->nfilters = c->text->v->filters_count;
    for (size_t i = 0; r == 0 && i < config_nrows; i++)
        r = check_row(c, &config_rows[i], err, err_size);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(checks); i++)
        r = checks[i](c, err, err_size);
    if (r == -ENOMEM)
        snprintf(err, err_size, "out of memory");
    return r;
}

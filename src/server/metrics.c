/* Prometheus' text format over HTTP, on a port of its own: GET /metrics, and GET /healthz for load balancers. */
#include "data.h"

#include "base/err.h"
#include "control/rpc.h"
#include "control/tls.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HTTP_CONNECTIONS 128 /* at once; more wait */
#define HTTP_TIMEOUT_S   5
#define SAMPLES_MAX      65536u

struct metrics {
    struct srv *srv;
    struct MHD_Daemon *http;
    int port;
    bool has_token;
    uint8_t token_hash[32]; /* token_hash() */
};

/* The format wants all samples of a name together, under one header. */
struct sample {
    char *name, *labels;
    const char *help; /* static by pst_stat_fn's callers; copied all the same */
    bool counter;
    double value;
    size_t order;
};
struct samples {
    struct sample *v;
    size_t n, cap;
    bool failed, no_tenants; /* no_tenants: what is told of each of them is left out */
};

static void collect(void *user, const char *name, const char *labels, const char *help, bool counter, double value)
{
    struct samples *s = user;
    struct sample *x;
    char *full;

    if (s->failed || s->n == SAMPLES_MAX || (s->no_tenants && strstr(labels, "tenant=\"")))
        return;
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 256;
        struct sample *v = realloc(s->v, cap * sizeof *v);
        if (!v) {
            s->failed = true;
            return;
        }
        s->v = v;
        s->cap = cap;
    }
    x = &s->v[s->n];
    if (asprintf(&full, "%s%s", strncmp(name, "penstock_", 9) ? "penstock_" : "", name) < 0) {
        s->failed = true;
        return;
    }
    *x = (struct sample){full, strdup(labels), strdup(help), counter, value, s->n};
    s->n++;
    s->failed = !x->name || !x->labels || !x->help;
}

static int by_name(const void *a, const void *b)
{
    const struct sample *x = a, *y = b;
    int r = strcmp(x->name, y->name);
    return r ? r : (x->order > y->order) - (x->order < y->order);
}

/* Length of a histogram's own name in that of one of its series; 0: no histogram's. */
static size_t histogram_name(const char *name)
{
    static const char *const ends[] = {"_seconds_bucket", "_seconds_sum", "_seconds_count"};
    size_t n = strlen(name);

    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        size_t k = strlen(ends[i]);
        if (n > k && !strcmp(name + n - k, ends[i]))
            return n - k + strlen("_seconds");
    }
    return 0;
}

static void write_samples(FILE *f, const struct samples *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct sample *x = &s->v[i];
        size_t n = histogram_name(x->name), len = n ? n : strlen(x->name);
        bool again = i > 0 && !strncmp(x->name, s->v[i - 1].name, len) && (n || !s->v[i - 1].name[len]);
        if (!again)
            fprintf(f, "# HELP %.*s %s\n# TYPE %.*s %s\n", (int)len, x->name, x->help, (int)len, x->name,
                    n            ? "histogram"
                    : x->counter ? "counter"
                                 : "gauge");
        fprintf(f, *x->labels ? "%s{%s} %.17g\n" : "%s%s %.17g\n", x->name, x->labels, x->value);
    }
}

/* Without a token the page is open to every user of the machine, and so tells of no tenant. */
static char *page(struct metrics *m, size_t *ret_len)
{
    struct srv *srv = m->srv;
    struct samples s = {.no_tenants = atomic_load(&srv->ntenants) > 1 && !m->has_token};
    char *text = NULL;
    FILE *f;

    ctl_metrics(srv->ctl, CTL_ALL, collect, &s);
    f = s.failed ? NULL : open_memstream(&text, ret_len);
    if (f) {
        qsort(s.v, s.n, sizeof *s.v, by_name);
        fprintf(f,
                "# HELP penstock_build_info The daemon's version.\n# TYPE penstock_build_info gauge\n"
                "penstock_build_info{version=\"%s\"} 1\n",
                PENSTOCK_VERSION);
        write_samples(f, &s);
        if (fclose(f) != 0) {
            free(text);
            text = NULL;
        }
    }
    for (size_t i = 0; i < s.n; i++) {
        free(s.v[i].name);
        free(s.v[i].labels);
        free((char *)s.v[i].help);
    }
    free(s.v);
    return text;
}

static enum MHD_Result respond(struct MHD_Connection *c, unsigned status, char *text, size_t len, bool owned)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(len, text, owned ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    enum MHD_Result ok;

    if (!r) {
        if (owned)
            free(text);
        return MHD_NO;
    }
    MHD_add_response_header(r, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    ok = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result respond_line(struct MHD_Connection *c, unsigned status, const char *line)
{
    return respond(c, status, (char *)line, strlen(line), false);
}

static bool may_read(const struct metrics *m, struct MHD_Connection *c)
{
    static const char bearer[] = "Bearer ";
    const char *said = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    uint8_t hash[sizeof m->token_hash];

    if (!m->has_token)
        return true;
    return said && !strncasecmp(said, bearer, sizeof bearer - 1) && token_hash(said + sizeof bearer - 1, hash) == 0 &&
           pst_equal_ct(hash, m->token_hash, sizeof hash);
}

static enum MHD_Result refuse(struct MHD_Connection *c)
{
    static char line[] = "a token is needed (metrics.token_file): Authorization: Bearer TOKEN\n";
    struct MHD_Response *r = MHD_create_response_from_buffer(sizeof line - 1, line, MHD_RESPMEM_PERSISTENT);
    enum MHD_Result ok;

    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    ok = MHD_queue_response(c, MHD_HTTP_UNAUTHORIZED, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result answer(void *user, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *data, size_t *data_size, void **state)
{
    static int seen;
    struct metrics *m = user;
    size_t len = 0;
    char *text;

    (void)version;
    (void)data;
    if (!*state) { /* the header only; the answer is due after the (refused) body */
        *state = &seen;
        return MHD_YES;
    }
    if (*data_size) {
        *data_size = 0;
        return MHD_YES;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return respond_line(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
    if (!strcmp(url, "/healthz"))
        return respond_line(c, MHD_HTTP_OK, "ok\n");
    if (strcmp(url, "/metrics") != 0)
        return respond_line(c, MHD_HTTP_NOT_FOUND, "see /metrics\n");
    if (!may_read(m, c))
        return refuse(c);
    text = page(m, &len);
    if (!text)
        return respond_line(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
    return respond(c, MHD_HTTP_OK, text, len, true);
}

static struct MHD_Daemon *start_http(struct metrics *m, const struct addrinfo *ai)
{
    /* Not epoll, which libmicrohttpd uses edge-triggered: it misses the end of some, and they hold their places. */
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL;

    if (ai->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    return MHD_start_daemon(flags, 0, NULL, NULL, answer, m, MHD_OPTION_SOCK_ADDR, ai->ai_addr,
                            MHD_OPTION_CONNECTION_LIMIT, (unsigned)HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)HTTP_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(16 * KiB),
                            MHD_OPTION_END);
}

int metrics_start(struct srv *srv, const char *addr, struct metrics **ret, char *err, size_t err_size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_PASSIVE}, *ai = NULL;
    struct metrics *m = calloc(1, sizeof *m);
    const union MHD_DaemonInfo *info;
    char host[SRV_HOST_MAX], service[8];
    uint16_t port = 0;
    int e = 0;

    if (!m)
        return -ENOMEM;
    m->srv = srv;
    if (srv->cfg->metrics_token_file) {
        int r = srv_read_token(srv->cfg->metrics_token_file, m->token_hash, err, err_size);
        if (r < 0) {
            free(m);
            return r;
        }
        m->has_token = true;
    }
    srv_parse_addr(addr, host, &port);
    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &ai) != 0)
        e = EADDRNOTAVAIL;
    if (!e) {
        errno = 0;
        m->http = start_http(m, ai);
        e = m->http ? 0 : errno ? errno : EADDRINUSE;
        freeaddrinfo(ai);
    }
    if (e) {
        snprintf(err, err_size, "metrics address %s: %s (metrics.listen; \"off\" does without)", addr, err_text(e));
        free(m);
        return -e;
    }
    info = MHD_get_daemon_info(m->http, MHD_DAEMON_INFO_BIND_PORT);
    m->port = info ? info->port : port;
    info = MHD_get_daemon_info(m->http, MHD_DAEMON_INFO_LISTEN_FD);
    if (info)
        rpc_server_prefer(info->listen_fd);
    *ret = m;
    return 0;
}

int metrics_port(const struct metrics *m)
{
    return m ? m->port : 0;
}

void metrics_stop(struct metrics *m)
{
    if (!m)
        return;
    MHD_stop_daemon(m->http);
    free(m);
}

/* status, metrics. */
#include "session.h"
#include "status.h"

#include "store/store.h"

#include <string.h>

bool cli_is_remote(const struct cli_url *u)
{
    return strncmp(u->server, "local:", 6) != 0;
}

void cli_add_fact(json_t *facts, const char *key, const char *value)
{
    json_t *old = json_object_get(facts, key), *v = cli_json_bytes(value);

    if (json_is_array(old)) {
        json_array_append_new(old, v);
    } else if (old) {
        json_t *list = json_array();
        json_array_append(list, old);
        json_array_append_new(list, v);
        json_object_set_new(facts, key, list);
    } else {
        json_object_set_new(facts, key, v);
    }
}

static json_t *connection_json(const Penstock__V1__Connection *c)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:s, s:I, s:I}", "client", c->client,
                     "purpose", c->purpose, "peer", c->peer, "provider", c->provider, "device", c->device, "rdma",
                     (int)c->rdma, "shard", (json_int_t)c->shard, "requests", (json_int_t)c->requests, "bytes_in",
                     (json_int_t)c->bytes_in, "bytes_out", (json_int_t)c->bytes_out, "placement", c->placement,
                     "bytes_exported", (json_int_t)c->bytes_exported, "bytes_third", (json_int_t)c->bytes_third);
}

static json_t *remote_status(const struct cli_url *u, const struct cli_conn *k, int *ret_exit)
{
    Penstock__V1__StatusRequest q = PENSTOCK__V1__STATUS_REQUEST__INIT;
    struct cli_session *s = cli_session_open(u, k, ret_exit);
    Penstock__V1__StatusReply *a = NULL;
    json_t *j, *facts = json_object(), *conns = json_array();

    if (s) {
        q.session = cli_session_id(s);
        a = (void *)cli_call(s, "/penstock.v1.StatusService/Status", &q.base, &penstock__v1__status_reply__descriptor,
                             ret_exit);
    }
    cli_session_close(s);
    if (!a) {
        json_decref(facts);
        json_decref(conns);
        return NULL;
    }
    for (size_t i = 0; i < a->n_facts; i++)
        cli_add_fact(facts, a->facts[i]->key, a->facts[i]->value);
    for (size_t i = 0; i < a->n_connections; i++)
        json_array_append_new(conns, connection_json(a->connections[i]));
    j = json_pack("{s:s, s:s, s:s, s:f, s:I, s:o, s:o}", "url", u->server, "version", a->version, "role", a->role,
                  "uptime", (double)a->uptime_ms / 1e3, "sessions", (json_int_t)a->sessions, "facts", facts,
                  "connections", conns);
    penstock__v1__status_reply__free_unpacked(a, NULL);
    return j;
}

static void on_fact(void *user, const char *key, const char *value)
{
    cli_add_fact(user, key, value);
}

json_t *status_json(const struct cli_url *u, const struct cli_conn *k, int *ret_exit)
{
    struct pst_store *st;
    json_t *facts;

    if (cli_is_remote(u))
        return remote_status(u, k, ret_exit);
    st = cli_open_store(u, ret_exit);
    if (!st)
        return NULL;
    facts = json_object();
    pst_store_describe(st, on_fact, facts);
    pst_store_close(st);
    return json_pack("{s:s, s:s, s:s, s:o}", "url", u->server, "version", PENSTOCK_VERSION, "role", "embedded", "facts",
                     facts);
}

static void add_metric(json_t *list, const char *name, const char *labels, bool counter, double value)
{
    json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:f}", "name", name, "labels", labels, "type",
                                          counter ? "counter" : "gauge", "value", value));
}

static void on_metric(void *user, const char *name, const char *labels, const char *help, bool counter, double value)
{
    (void)help;
    add_metric(user, name, labels, counter, value);
}

json_t *metrics_json(const struct cli_url *u, const struct cli_conn *k, int *ret_exit)
{
    Penstock__V1__MetricsRequest q = PENSTOCK__V1__METRICS_REQUEST__INIT;
    Penstock__V1__MetricsReply *a = NULL;
    struct cli_session *s;
    struct pst_store *st;
    json_t *list = NULL;

    if (!cli_is_remote(u)) {
        st = cli_open_store(u, ret_exit);
        if (st) {
            list = json_array();
            pst_store_stats(st, on_metric, list);
            pst_store_close(st);
        }
        return list;
    }
    s = cli_session_open(u, k, ret_exit);
    if (s) {
        q.session = cli_session_id(s);
        a = (void *)cli_call(s, "/penstock.v1.StatusService/Metrics", &q.base, &penstock__v1__metrics_reply__descriptor,
                             ret_exit);
    }
    cli_session_close(s);
    if (!a)
        return NULL;
    list = json_array();
    for (size_t i = 0; i < a->n_metrics; i++)
        add_metric(list, a->metrics[i]->name, a->metrics[i]->labels, a->metrics[i]->counter, a->metrics[i]->value);
    penstock__v1__metrics_reply__free_unpacked(a, NULL);
    return list;
}

/* ---- for people ---- */

void cli_print_fact(const char *key, const json_t *v)
{
    size_t i;
    const json_t *x;

    if (!json_is_array(v))
        printf("%-24s %s\n", key, json_string_value(v));
    json_array_foreach(v, i, x) printf("%-24s %s\n", key, json_string_value(x));
}

static void print_status(json_t *j)
{
    json_t *conns = json_object_get(j, "connections"), *c, *v;
    char in[32], out[32];
    const char *key;
    size_t i;

    printf("%-24s %s, version %s\n", json_string_value(json_object_get(j, "url")),
           json_string_value(json_object_get(j, "role")), json_string_value(json_object_get(j, "version")));
    if (json_object_get(j, "uptime"))
        printf("%-24s %.0f s, %lld sessions\n", "up", json_real_value(json_object_get(j, "uptime")),
               (long long)json_integer_value(json_object_get(j, "sessions")));
    json_object_foreach(json_object_get(j, "facts"), key, v) cli_print_fact(key, v);
    if (json_array_size(conns) > 0)
        printf("\n%-8s %-22s %-8s %-10s %-5s %5s %10s %10s %10s %s\n", "PURPOSE", "PEER", "PROVIDER", "DEVICE", "RDMA",
               "SHARD", "REQUESTS", "WRITTEN", "READ", "PLACEMENT");
    json_array_foreach(conns, i, c)
        printf("%-8s %-22s %-8s %-10s %-5s %5lld %10lld %10s %10s %s\n",
               json_string_value(json_object_get(c, "purpose")), json_string_value(json_object_get(c, "peer")),
               json_string_value(json_object_get(c, "provider")), json_string_value(json_object_get(c, "device")),
               json_is_true(json_object_get(c, "rdma")) ? "yes" : "no",
               (long long)json_integer_value(json_object_get(c, "shard")),
               (long long)json_integer_value(json_object_get(c, "requests")),
               cli_size((uint64_t)json_integer_value(json_object_get(c, "bytes_in")), in),
               cli_size((uint64_t)json_integer_value(json_object_get(c, "bytes_out")), out),
               json_string_value(json_object_get(c, "placement")));
}

static void print_metrics(const json_t *list)
{
    const json_t *m;
    size_t i;

    json_array_foreach(list, i, m)
    {
        const char *labels = json_string_value(json_object_get(m, "labels"));
        printf(*labels ? "%s{%s} %.17g\n" : "%s%s %.17g\n", json_string_value(json_object_get(m, "name")), labels,
               json_number_value(json_object_get(m, "value")));
    }
}

static int run_status(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool json = false, metrics = false;
    const struct cli_opt opts[] = {
        {0, "json", OPT_FLAG, &json, NULL, "as JSON", NULL},
        {0, "metrics", OPT_FLAG, &metrics, NULL, "the counters instead", NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    struct cli_url u;
    json_t *j;
    int code = EXIT_OK;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    if (cli_url(argv[first], 0, &u) < 0)
        return EXIT_USAGE;
    j = metrics ? metrics_json(&u, &k, &code) : status_json(&u, &k, &code);
    if (!j)
        return code ? code : EXIT_FAILED;
    if (json)
        return cli_json(j);
    if (metrics)
        print_metrics(j);
    else
        print_status(j);
    json_decref(j);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

const struct cli_cmd cmds_status[] = {
    {"status", "URL", "Shows what a server is and does: engine, provider, RDMA or not, connections", NULL, run_status},
    {0},
};

/* Rates are differences of counters by the time between; a counter that fell (a new server) counts from zero. */
#include "top.h"

#include <stdlib.h>
#include <string.h>

void top_look_free(struct top_look *l)
{
    json_decref(l->status);
    json_decref(l->metrics);
    *l = (struct top_look){0};
}

/* ---- metrics by "name{labels}", without the names' common beginning ---- */

static json_t *index_of(const json_t *metrics)
{
    json_t *ix = json_object();
    const json_t *m;
    size_t i;

    json_array_foreach(metrics, i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        char key[400];
        snprintf(key, sizeof key, "%s{%s}", strncmp(name, "penstock_", 9) ? name : name + 9,
                 json_string_value(json_object_get(m, "labels")));
        json_object_set(ix, key, json_object_get(m, "value"));
    }
    return ix;
}

struct diff {
    json_t *a, *b; /* indices */
    double seconds;
};

static double now_of(const struct diff *d, const char *key)
{
    return json_number_value(json_object_get(d->b, key));
}

/* What a counter gained. */
static double gain(const struct diff *d, const char *key)
{
    double x = now_of(d, key), y = json_number_value(json_object_get(d->a, key));
    return x >= y ? x - y : x;
}

static double sum_gain(const struct diff *d, const char *name)
{
    size_t n = strlen(name);
    const char *key;
    json_t *v;
    double sum = 0;

    json_object_foreach(d->b, key, v)
        if (!strncmp(key, name, n) && key[n] == '{')
            sum += gain(d, key);
    return sum;
}

/* The value of a label in "name{a="x",b="y"}". */
static const char *label(const char *key, const char *name, char *ret, size_t size)
{
    char what[40];
    const char *at;

    snprintf(what, sizeof what, "%s=\"", name);
    at = strstr(key, what);
    snprintf(ret, size, "%.*s", at ? (int)strcspn(at + strlen(what), "\"") : 0, at ? at + strlen(what) : "");
    return ret;
}

/* ---- latency: of cumulative buckets by powers of two of a microsecond ---- */

#define BUCKETS 24

/* Within its bucket a value is taken to lie where its rank does. */
static double percentile(const double *upto, double part)
{
    double rank = part * upto[BUCKETS - 1], below = 0;

    for (int b = 0; b < BUCKETS; b++) {
        double in = upto[b] - below, top = (double)(1u << b) / 1e6;
        if (in > 0 && upto[b] >= rank)
            return b == 0 ? top : top / 2 + top / 2 * (rank - below) / in;
        below = upto[b];
    }
    return 0;
}

static json_t *latency(const struct diff *d)
{
    static const char *const ops[] = {"read", "write", "sync", "other"};
    json_t *list = json_array();

    for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
        double upto[BUCKETS];
        char key[120];
        for (int b = 0; b < BUCKETS; b++) {
            if (b + 1 < BUCKETS)
                snprintf(key, sizeof key, "data_request_seconds_bucket{op=\"%s\",le=\"%g\"}", ops[i],
                         (double)(1u << b) / 1e6);
            else
                snprintf(key, sizeof key, "data_request_seconds_bucket{op=\"%s\",le=\"+Inf\"}", ops[i]);
            upto[b] = gain(d, key);
        }
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f}", "op", ops[i], "per_s",
                                              upto[BUCKETS - 1] / d->seconds, "p50", percentile(upto, 0.5), "p90",
                                              percentile(upto, 0.9), "p99", percentile(upto, 0.99)));
    }
    return list;
}

/* ---- tenants ---- */

static double tenant_gain(const struct diff *d, const char *what, const char *tenant)
{
    char key[200];
    snprintf(key, sizeof key, "tenant_%s{tenant=\"%s\"}", what, tenant);
    return gain(d, key);
}

static double tenant_now(const struct diff *d, const char *what, const char *tenant)
{
    char key[200];
    snprintf(key, sizeof key, "tenant_%s{tenant=\"%s\"}", what, tenant);
    return now_of(d, key);
}

static json_t *tenants(const struct diff *d)
{
    static const char first[] = "tenant_turns_total{";
    double all = sum_gain(d, "tenant_cost_total");
    json_t *list = json_array(), *v;
    const char *key;

    json_object_foreach(d->b, key, v)
    {
        char name[100];
        double turns, cost;
        if (strncmp(key, first, sizeof first - 1))
            continue;
        label(key, "tenant", name, sizeof name);
        turns = tenant_gain(d, "turns_total", name);
        cost = tenant_gain(d, "cost_total", name);
        json_array_append_new(
            list, json_pack("{s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "tenant", cli_json_bytes(name),
                            "operations_per_s", turns / d->seconds, "bytes_per_s",
                            tenant_gain(d, "turn_bytes_total", name) / d->seconds, "share", all > 0 ? cost / all : 0.0,
                            "throttled_per_s", tenant_gain(d, "throttled_total", name) / d->seconds, "wait",
                            turns > 0 ? tenant_gain(d, "waited_seconds_total", name) / turns : 0.0, "waiting",
                            tenant_now(d, "waiting", name), "running", tenant_now(d, "running", name)));
    }
    return list;
}

/* ---- filters: what a way through one moved, and cost in seconds a second ---- */

static json_t *filters(const struct diff *d)
{
    static const char first[] = "filter_cost_seconds_total{";
    json_t *list = json_array(), *v;
    const char *key;

    json_object_foreach(d->b, key, v)
    {
        const char *labels = key + sizeof first - 1;
        char in[300], out[300];
        double cost, bytes;
        if (strncmp(key, first, sizeof first - 1))
            continue;
        snprintf(in, sizeof in, "filter_bytes_in_total{%s", labels);
        snprintf(out, sizeof out, "filter_bytes_out_total{%s", labels);
        cost = gain(d, key);
        bytes = gain(d, in);
        json_array_append_new(
            list, json_pack("{s:o, s:f, s:f, s:f, s:f}", "filter", json_stringn(labels, strlen(labels) - 1),
                            "bytes_in_per_s", bytes / d->seconds, "bytes_out_per_s", gain(d, out) / d->seconds, "cost",
                            cost / d->seconds, "seconds_per_gib", bytes > 0 ? cost / bytes * (double)GiB : 0.0));
    }
    return list;
}

/* ---- caches: the server's own, and its tenants' ---- */

/* name: without its beginning "cache_" or "tenant_cache_"; braces: from '{' on. */
static double cache_gain(const struct diff *d, const char *prefix, const char *name, const char *braces)
{
    char key[300];
    snprintf(key, sizeof key, "%scache_%s%s", prefix, name, braces);
    return gain(d, key);
}

static json_t *caches(const struct diff *d)
{
    static const char *const prefixes[] = {"", "tenant_"};
    json_t *list = json_array(), *v;
    const char *key;

    json_object_foreach(d->b, key, v)
        for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
        {
            char first[40], name[100] = "default", used[300];
            const char *at = strchr(key, '{'), *p = prefixes[i];
            double hit, miss;
            snprintf(first, sizeof first, "%scache_memory_bytes{", p);
            if (!at || strncmp(key, first, strlen(first)))
                continue;
            if (i)
                label(key, "tenant", name, sizeof name);
            hit = cache_gain(d, p, "hit_bytes_total", at);
            miss = cache_gain(d, p, "miss_bytes_total", at);
            snprintf(used, sizeof used, "%scache_used_bytes%s", p, at);
            json_array_append_new(list, json_pack("{s:o, s:f, s:f, s:f, s:f, s:f, s:f}", "tenant", cli_json_bytes(name),
                                                  "hit_bytes_per_s", hit / d->seconds, "miss_bytes_per_s",
                                                  miss / d->seconds, "hit_share",
                                                  hit + miss > 0 ? hit / (hit + miss) : 0.0, "evicted_bytes_per_s",
                                                  cache_gain(d, p, "evicted_bytes_total", at) / d->seconds,
                                                  "used_bytes", now_of(d, used), "memory_bytes", json_number_value(v)));
        }
    return list;
}

/* ---- connections ---- */

static bool same(const json_t *a, const json_t *b, const char *key)
{
    return json_equal(json_object_get(a, key), json_object_get(b, key));
}

static double conn_gain(const json_t *was, const json_t *is, const char *key)
{
    double x = json_number_value(json_object_get(is, key)), y = json_number_value(json_object_get(was, key));
    return x >= y ? x - y : x;
}

static json_t *connections(const json_t *before, const json_t *after, double seconds)
{
    static const char *const as_is[] = {"client", "purpose", "peer", "provider", "device", "rdma", "shard",
                                        "placement"};
    json_t *list = json_array(), *c, *o;
    size_t i, k;

    json_array_foreach(json_object_get(after, "connections"), i, c)
    {
        const json_t *was = NULL;
        json_t *x = json_object();
        json_array_foreach(json_object_get(before, "connections"), k, o)
            if (same(o, c, "client") && same(o, c, "peer") && same(o, c, "shard"))
                was = o;
        for (size_t n = 0; n < ARRAY_SIZE(as_is); n++)
            json_object_set(x, as_is[n], json_object_get(c, as_is[n]));
        json_object_set_new(x, "operations_per_s", json_real(conn_gain(was, c, "requests") / seconds));
        json_object_set_new(x, "write_bytes_per_s", json_real(conn_gain(was, c, "bytes_in") / seconds));
        json_object_set_new(x, "read_bytes_per_s", json_real(conn_gain(was, c, "bytes_out") / seconds));
        json_array_append_new(list, x);
    }
    return list;
}

json_t *top_view(const struct top_look *before, const struct top_look *after)
{
    struct diff d = {index_of(before->metrics), index_of(after->metrics),
                     (double)max_u64(1, after->at_ns - before->at_ns) / 1e9};
    json_t *v = json_object();
    static const char *const as_is[] = {"url", "role", "version", "uptime", "sessions"};

    for (size_t i = 0; i < ARRAY_SIZE(as_is); i++)
        json_object_set(v, as_is[i], json_object_get(after->status, as_is[i]));
    json_object_set_new(v, "seconds", json_real(d.seconds));
    json_object_set_new(v, "read_bytes_per_s", json_real(gain(&d, "data_bytes_out_total{}") / d.seconds));
    json_object_set_new(v, "write_bytes_per_s", json_real(gain(&d, "data_bytes_in_total{}") / d.seconds));
    json_object_set_new(v, "operations_per_s", json_real(sum_gain(&d, "data_requests_total") / d.seconds));
    json_object_set_new(v, "control_per_s", json_real(gain(&d, "control_requests_total{}") / d.seconds));
    json_object_set_new(v, "errors_per_s", json_real(gain(&d, "data_errors_total{}") / d.seconds));
    json_object_set_new(v, "latency", latency(&d));
    json_object_set_new(v, "tenants", tenants(&d));
    json_object_set_new(v, "connections", connections(before->status, after->status, d.seconds));
    json_object_set_new(v, "filters", filters(&d));
    json_object_set_new(v, "caches", caches(&d));
    json_decref(d.a);
    json_decref(d.b);
    return v;
}

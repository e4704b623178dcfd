/* Counters of the data plane. */
#include "data.h"

#include <stdio.h>

static enum latency_class class_of(uint8_t opcode)
{
    switch (opcode) {
    case DP_READ:
    case DP_CHUNK_READ:
        return LAT_READ;
    case DP_WRITE:
    case DP_CHUNK_REPLACE:
        return LAT_WRITE;
    case DP_FSYNC:
    case DP_SYNCFS:
        return LAT_SYNC;
    default:
        return LAT_OTHER;
    }
}

/* Bucket b holds latencies up to 2^b microseconds, the last one the rest. */
static unsigned bucket_of(uint64_t ns)
{
    uint64_t us = (ns + 999) / 1000;
    unsigned b = us <= 1 ? 0 : 64u - (unsigned)__builtin_clzll(us - 1);
    return b < LATENCY_BUCKETS ? b : LATENCY_BUCKETS - 1;
}

static void tell(const struct req *r, uint64_t ns)
{
    const struct dp_request *dp = &r->dp;

    trace_end("server", true, dp->tag >> TRACE_SHIFT, r->reply.status, ns,
              "%s of object %llu, offset %llu, %llu bytes, from %s", dp_opcode_name(dp->opcode),
              (unsigned long long)dp->ino, (unsigned long long)dp->offset, (unsigned long long)dp->length,
              r->conn->peer);
}

void stats_count(struct req *r)
{
    struct conn *c = r->conn;
    struct shard_stats *st = &c->shard->stats;
    enum latency_class k = class_of(r->dp.opcode);
    uint64_t ns = now_ns() - r->start_ns;

    if (trace_tells(r->reply.status, ns))
        tell(r, ns);
    stat_add(&st->requests[r->dp.opcode], 1);
    stat_add(&st->latency[k][bucket_of(ns)], 1);
    stat_add(&st->latency_ns[k], ns);
    if (r->reply.status == 0 && req_is_exported(r)) {
        uint64_t n = req_is_write(r) ? r->dp.length : r->reply.result;
        stat_add(&st->bytes_exported, n);
        stat_add(&st->bytes_in_place, r->in_place ? n : 0);
        stat_add(&c->bytes_exported, n);
    }
    if (r->reply.status == 0 && req_is_third(r)) {
        uint64_t n = req_is_write(r) ? r->dp.length : r->reply.result;
        stat_add(&st->bytes_third, n);
        stat_add(&c->bytes_third, n);
    }
    if (r->reply.status < 0) {
        stat_add(&st->errors, 1);
    } else if (k == LAT_READ) {
        stat_add(&st->bytes_out, r->reply.result);
        stat_add(&c->bytes_out, r->reply.result);
    } else if (k == LAT_WRITE) {
        stat_add(&st->bytes_in, r->dp.length);
        stat_add(&c->bytes_in, r->dp.length);
    }
}

struct sum {
    uint64_t requests[DP_OPCODES], errors, waits, bytes_in, bytes_out, bytes_exported, bytes_in_place, bytes_third;
    uint64_t latency[LAT_CLASSES][LATENCY_BUCKETS], latency_ns[LAT_CLASSES];
};

static void add_shard(struct sum *t, const struct shard_stats *s)
{
    for (unsigned i = 0; i < DP_OPCODES; i++)
        t->requests[i] += stat_get(&s->requests[i]);
    for (unsigned k = 0; k < LAT_CLASSES; k++) {
        for (unsigned b = 0; b < LATENCY_BUCKETS; b++)
            t->latency[k][b] += stat_get(&s->latency[k][b]);
        t->latency_ns[k] += stat_get(&s->latency_ns[k]);
    }
    t->errors += stat_get(&s->errors);
    t->waits += stat_get(&s->waits);
    t->bytes_in += stat_get(&s->bytes_in);
    t->bytes_out += stat_get(&s->bytes_out);
    t->bytes_exported += stat_get(&s->bytes_exported);
    t->bytes_in_place += stat_get(&s->bytes_in_place);
    t->bytes_third += stat_get(&s->bytes_third);
}

static void emit_latency(const struct sum *t, pst_stat_fn fn, void *user)
{
    static const char *const names[LAT_CLASSES] = {"read", "write", "sync", "other"};
    static const char help[] = "Time from a data request's arrival to its answer.";
    char labels[64];

    for (unsigned k = 0; k < LAT_CLASSES; k++) {
        uint64_t n = 0;
        for (unsigned b = 0; b < LATENCY_BUCKETS; b++) {
            n += t->latency[k][b];
            if (b + 1 < LATENCY_BUCKETS)
                snprintf(labels, sizeof labels, "op=\"%s\",le=\"%g\"", names[k], (double)(1ull << b) / 1e6);
            else
                snprintf(labels, sizeof labels, "op=\"%s\",le=\"+Inf\"", names[k]);
            fn(user, "penstock_data_request_seconds_bucket", labels, help, true, (double)n);
        }
        snprintf(labels, sizeof labels, "op=\"%s\"", names[k]);
        fn(user, "penstock_data_request_seconds_sum", labels, help, true, (double)t->latency_ns[k] / 1e9);
        fn(user, "penstock_data_request_seconds_count", labels, help, true, (double)n);
    }
}

static void emit_connections(struct srv *srv, uint32_t tenant, pst_stat_fn fn, void *user)
{
    srv_each_tenant(srv, t) tenant_each_shard(t, s)
    {
        unsigned n = 0;
        char labels[32];
        if (tenant != CTL_ALL && tenant != t->id)
            continue;
        pthread_mutex_lock(&s->lock);
        list_for_each (it, &s->conns)
            n++;
        pthread_mutex_unlock(&s->lock);
        snprintf(labels, sizeof labels, "shard=\"%u\"", s->id);
        fn(user, "penstock_data_connections", labels, "Open data connections.", false, n);
    }
}

void stats_emit(struct srv *srv, uint32_t tenant, pst_stat_fn fn, void *user)
{
    struct sum t = {0};
    char labels[40];
    uint32_t nexports;
    uint64_t mapped;

    pthread_rwlock_rdlock(&srv->tenants_lock);
    srv_each_tenant(srv, x) tenant_each_shard(x, s)
        if (tenant == CTL_ALL || tenant == x->id)
            add_shard(&t, &s->stats);
    pthread_rwlock_unlock(&srv->tenants_lock);
    for (unsigned i = DP_BIND; i < DP_OPCODES; i++) {
        snprintf(labels, sizeof labels, "op=\"%s\"", dp_opcode_name(i));
        fn(user, "penstock_data_requests_total", labels, "Data requests that were answered.", true,
           (double)t.requests[i]);
    }
    fn(user, "penstock_data_errors_total", "", "Data requests that were answered with an error.", true,
       (double)t.errors);
    fn(user, "penstock_data_buffer_waits_total", "", "Data requests that waited for a free buffer.", true,
       (double)t.waits);
    fn(user, "penstock_data_bytes_in_total", "", "File bytes written by clients.", true, (double)t.bytes_in);
    fn(user, "penstock_data_bytes_out_total", "", "File bytes read by clients.", true, (double)t.bytes_out);
    fn(user, "penstock_data_bytes_exported_total", "", "Of both: in memory that clients exported.", true,
       (double)t.bytes_exported);
    fn(user, "penstock_data_bytes_in_place_total", "", "Of these: moved by the store itself, without a copy here.",
       true, (double)t.bytes_in_place);
    fn(user, "penstock_data_bytes_third_total", "", "Of both: between third parties and the store that has the file.",
       true, (double)t.bytes_third);
    if (tenant == CTL_ALL) {
        exports_count(atomic_load(&srv->exports), &nexports, &mapped);
        fn(user, "penstock_exports", "", "Memory that clients have handed over: how many pieces.", false, nexports);
        fn(user, "penstock_exports_bytes", "", "And how many bytes.", false, (double)mapped);
    }
    emit_latency(&t, fn, user);
    pthread_rwlock_rdlock(&srv->tenants_lock);
    emit_connections(srv, tenant, fn, user);
    srv_each_tenant(srv, x)
        if (tenant == CTL_ALL || tenant == x->id)
            share_emit(&x->share, x->cfg->name, fn, user);
    pthread_rwlock_unlock(&srv->tenants_lock);
    fn(user, "penstock_uptime_seconds", "", "Since the daemon's start.", false,
       (double)(now_ns() - srv->start_ns) / (double)NSEC_PER_SEC);
}

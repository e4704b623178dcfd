/* The server: its completion queues and their threads. rpc_call.c has what becomes of a call. */
#include "rpc_priv.h"

#include "accept_guard.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_THREADS   16u /* so many durable writes share one flush of the disk */
#define DEFAULT_MAX_CALLS 4096u
#define DEFAULT_IDLE_MS   30000u
#define SWEEP_NS          NSEC_PER_SEC
#define MEMORY_MAX        (256u << 20) /* bytes that the core may hold for all connections */

/* Ends calls whose first message does not come. One of the threads, once a second. */
static void sweep(struct rpc_server *s)
{
    uint64_t now = now_ns(), due = atomic_load(&s->next_sweep_ns);
    struct rpc_call **all;
    size_t n = 0;

    if (now < due || !atomic_compare_exchange_strong(&s->next_sweep_ns, &due, now + SWEEP_NS))
        return;
    all = rpc_calls_hold(s, &n);
    for (size_t i = 0; all && i < n; i++) {
        if (now - all[i]->accepted_ns >= s->cfg.idle_call_ms * NSEC_PER_MSEC && now > all[i]->accepted_ns)
            rpc_call_idle(all[i]);
        rpc_call_unref(all[i]);
    }
    free(all);
}

static void *serve(void *arg)
{
    struct rpc_queue *q = arg;

    while (rpc_lead_take(&q->lead)) {
        gpr_timespec t = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(1000, GPR_TIMESPAN));
        grpc_event ev = grpc_completion_queue_next(q->cq, t, NULL);
        struct rpc_tag *tag = ev.tag;
        if (ev.type == GRPC_QUEUE_SHUTDOWN) {
            rpc_lead_stop(&q->lead);
            return NULL;
        }
        rpc_lead_event(&q->lead);
        if (ev.type == GRPC_OP_COMPLETE) {
            rpc_tag_take(tag);
            tag->fn(tag->owner, ev.success);
        }
        sweep(q->s);
        rpc_lead_idle(&q->lead);
    }
    return NULL;
}

/* ---- the server ---- */

static void on_down(void *owner, bool ok)
{
    struct rpc_server *s = owner;
    (void)ok;
    scoped_lock(&s->mu);
    s->is_down = true;
    pthread_cond_broadcast(&s->changed);
}

#define INT_ARG(k, v)                                                                                                  \
    {                                                                                                                  \
        .type = GRPC_ARG_INTEGER, .key = (char *)(k), .value.integer = (v)                                             \
    }

static grpc_server *core_server(void)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("penstock");
    grpc_arg a[] = {
        {.type = GRPC_ARG_POINTER,
         .key = (char *)GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {quota, grpc_resource_quota_arg_vtable()}},
        INT_ARG(GRPC_ARG_ALLOW_REUSEPORT, 0), /* two servers on a port: the second one fails */
        INT_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)RPC_MESSAGE_MAX),
        INT_ARG(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024),
        INT_ARG(GRPC_ARG_HTTP2_BDP_PROBE, 0), /* requests are small: its pings only wake both sides */
        INT_ARG(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000),
        INT_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, 30000),
        INT_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000),
        INT_ARG(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        INT_ARG(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000),
        /* Plain messages only: a small one must not unpack into a large one. */
        INT_ARG(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
    };
    grpc_channel_args args = {ARRAY_SIZE(a), a};
    grpc_server *srv;

    grpc_resource_quota_resize(quota, MEMORY_MAX);
    srv = grpc_server_create(&args, NULL);
    grpc_resource_quota_unref(quota);
    return srv;
}

static uint32_t queue_count(const struct rpc_server_config *cfg)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = cfg->queues ? cfg->queues : cpus >= 16 ? (uint32_t)cpus / 8 : 1;

    return (uint32_t)min_u64(min_u64(n, RPC_MAX_QUEUES), cfg->threads);
}

int rpc_server_new(const struct rpc_server_config *cfg, struct rpc_server **ret)
{
    struct rpc_server *s = calloc(1, sizeof *s);

    if (!s)
        return -ENOMEM;
    s->cfg = *cfg;
    s->cfg.threads = cfg->threads ? cfg->threads : DEFAULT_THREADS;
    s->cfg.max_calls = cfg->max_calls ? cfg->max_calls : DEFAULT_MAX_CALLS;
    s->cfg.idle_call_ms = cfg->idle_call_ms ? cfg->idle_call_ms : DEFAULT_IDLE_MS;
    s->nqueues = queue_count(&s->cfg);
    s->threads = calloc(s->cfg.threads, sizeof *s->threads);
    if (!s->threads) {
        free(s);
        return -ENOMEM;
    }
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->changed, NULL);
    list_init(&s->calls);
    rpc_later_init(&s->later);
    s->down = (struct rpc_tag){on_down, s};
    accept_guard_start();
    rpc_init();
    s->srv = core_server();
    for (uint32_t i = 0; i < s->nqueues; i++) {
        struct rpc_queue *q = &s->queues[i];
        q->s = s;
        rpc_lead_init(&q->lead);
        q->cq = grpc_completion_queue_create_for_next(NULL);
        grpc_server_register_completion_queue(s->srv, q->cq, NULL);
    }
    *ret = s;
    return 0;
}

int rpc_server_listen(struct rpc_server *s, const char *addr, const struct rpc_tls *tls, bool insecure, int *ret_port,
                      char *err, size_t err_size)
{
    char target[320];
    grpc_server_credentials *creds;
    int port, r = rpc_addr_target(addr, target, sizeof target);

    if (r) {
        snprintf(err, err_size, "%s: not an address (host:port, [v6]:port, unix:/path)", addr);
        return r;
    }
    if (!tls && !insecure && !rpc_addr_is_local(addr)) {
        snprintf(err, err_size, RPC_NOT_LOCAL, addr);
        return -EPERM;
    }
    if (tls) {
        if (s->ntls == RPC_MAX_TLS)
            return -E2BIG;
        r = rpc_server_tls_new(tls, &s->tls[s->ntls], err, err_size);
        if (r)
            return r;
        creds = rpc_server_tls_creds(s->tls[s->ntls++]);
    } else {
        creds = grpc_insecure_server_credentials_create();
    }
    port = grpc_server_add_http2_port(s->srv, target, creds);
    grpc_server_credentials_release(creds);
    if (!port) {
        snprintf(err, err_size, "cannot listen on %s: is the address this machine's, and free?", addr);
        return -EADDRINUSE;
    }
    if (ret_port)
        *ret_port = strncmp(addr, "unix:", 5) ? port : 0;
    return 0;
}

int rpc_server_start(struct rpc_server *s)
{
    grpc_server_start(s->srv);
    s->started = true;
    atomic_store(&s->next_sweep_ns, now_ns() + SWEEP_NS);
    for (uint32_t i = 0; i < s->nqueues; i++) {
        if (pthread_create(&s->queues[i].watcher, NULL, rpc_lead_watch, &s->queues[i].lead))
            return -EAGAIN;
        s->nwatchers++;
    }
    for (uint32_t i = 0; i < s->cfg.threads; i++) {
        struct rpc_queue *q = &s->queues[i % s->nqueues];
        if (pthread_create(&s->threads[i], NULL, serve, q))
            break;
        s->nthreads++;
        rpc_call_request(q);
        rpc_call_request(q);
    }
    return s->nthreads >= s->nqueues ? 0 : -EAGAIN;
}

/* Streams would go on for ever. */
static void drain_streams(struct rpc_server *s)
{
    size_t n = 0;
    struct rpc_call **all = rpc_calls_hold(s, &n);

    for (size_t i = 0; all && i < n; i++) {
        rpc_call_drain(all[i]);
        rpc_call_unref(all[i]);
    }
    free(all);
}

void rpc_server_stop(struct rpc_server *s, uint32_t grace_ms)
{
    struct timespec until;

    if (!s->started)
        return;
    pthread_mutex_lock(&s->mu);
    s->stopping = true;
    pthread_mutex_unlock(&s->mu);
    grpc_server_shutdown_and_notify(s->srv, s->queues[0].cq, &s->down);
    drain_streams(s);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += grace_ms / 1000;
    until.tv_nsec += (long)(grace_ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&s->mu);
    while (!s->is_down && pthread_cond_timedwait(&s->changed, &s->mu, &until) != ETIMEDOUT)
        ;
    if (!s->is_down) {
        pthread_mutex_unlock(&s->mu);
        grpc_server_cancel_all_calls(s->srv);
        pthread_mutex_lock(&s->mu);
    }
    while (!s->is_down || s->ncalls)
        pthread_cond_wait(&s->changed, &s->mu);
    pthread_mutex_unlock(&s->mu);
    rpc_later_stop(&s->later);
    /* The queue goes after the last call that uses it, the server after the queue's threads. */
    for (uint32_t i = 0; i < s->nqueues; i++)
        grpc_completion_queue_shutdown(s->queues[i].cq);
    for (uint32_t i = 0; i < s->nthreads; i++)
        pthread_join(s->threads[i], NULL);
    for (uint32_t i = 0; i < s->nwatchers; i++) {
        rpc_lead_stop(&s->queues[i].lead);
        pthread_join(s->queues[i].watcher, NULL);
    }
    s->started = false;
}

static void drain_queue(grpc_completion_queue *cq)
{
    grpc_completion_queue_shutdown(cq);
    while (grpc_completion_queue_next(cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type != GRPC_QUEUE_SHUTDOWN)
        ;
}

void rpc_server_free(struct rpc_server *s)
{
    if (!s)
        return;
    if (!s->is_down) { /* never started: the core wants the same steps */
        grpc_completion_queue *cq = grpc_completion_queue_create_for_pluck(NULL);
        grpc_server_shutdown_and_notify(s->srv, cq, NULL);
        grpc_completion_queue_pluck(cq, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        grpc_completion_queue_shutdown(cq);
        grpc_completion_queue_destroy(cq);
        for (uint32_t i = 0; i < s->nqueues; i++)
            drain_queue(s->queues[i].cq);
    }
    grpc_server_destroy(s->srv);
    for (uint32_t i = 0; i < s->nqueues; i++) {
        grpc_completion_queue_destroy(s->queues[i].cq);
        rpc_lead_done(&s->queues[i].lead);
    }
    for (unsigned i = 0; i < s->ntls; i++)
        rpc_server_tls_free(s->tls[i]);
    rpc_later_done(&s->later);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->changed);
    free(s->threads);
    free(s);
}

uint32_t rpc_server_calls(struct rpc_server *s)
{
    scoped_lock(&s->mu);
    return s->ncalls;
}

uint64_t rpc_server_dropped(void)
{
    return accept_guard_dropped();
}

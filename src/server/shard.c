/* A shard's thread: opens its resources, drives fabric and store queue together, sleeps when both are idle. */
#include "data.h"
#include "spin.h"

#include "base/err.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#define REAP_BATCH 64
/* What a held request waits for may end in another shard, which does not tell. */
#define HELD_RETRY_NS (2 * NSEC_PER_MSEC)
/* After the last answer of a drain: the time for it to leave. */
#define DRAIN_LINGER_NS (20 * NSEC_PER_MSEC)

/* ---- resources, opened and closed by the thread itself ---- */

static int resolve(const char *host, uint16_t port, struct sockaddr_storage *ret, socklen_t *ret_len)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_PASSIVE}, *ai = NULL;
    char service[8];

    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &ai) != 0 || !ai)
        return -EADDRNOTAVAIL;
    memcpy(ret, ai->ai_addr, ai->ai_addrlen);
    *ret_len = ai->ai_addrlen;
    freeaddrinfo(ai);
    return 0;
}

static void address_text(const struct sockaddr *sa, socklen_t len, char *ret, size_t size)
{
    char host[64] = "?", port[8] = "?";

    getnameinfo(sa, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(ret, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

/* Replaces a wildcard address by the one that clients are to use; the port stays. */
static int advertise(struct ctl_endpoint *ep, const char *host)
{
    struct sockaddr_storage sa;
    socklen_t len;
    uint16_t port = ep->addr.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&ep->addr)->sin6_port)
                                                   : ntohs(((struct sockaddr_in *)&ep->addr)->sin_port);
    int r = resolve(host, port, &sa, &len);

    if (r < 0)
        return r;
    ep->addr = sa;
    ep->addr_len = len;
    return 0;
}

/* Why the shard has no data address. */
static void tell_no_address(struct shard *s, int r)
{
    const struct fab_info *f = fab_info(s->tenant->fab);
    const char *hint = "";

    /* The default is the control plane's host, which is often loopback, and UROCE_ADDRESS often is not. */
    if ((r == -ENODEV || r == -EADDRNOTAVAIL) && f->rdma && !strcmp(f->verbs, "uroce"))
        hint = ": uroce does not have this address: name one that it has (off loopback with data.security: clear), or "
               "add this one to UROCE_ADDRESS";
    snprintf(s->start_text, sizeof s->start_text, "data address %s (data.listen), shard %u: %s%s",
             s->srv->cfg->data_listen, s->id, err_text(r), hint);
}

static int listen_on(struct shard *s)
{
    const struct srv_config *cfg = s->srv->cfg;
    struct ctl_endpoint *ep = &s->endpoint;
    struct sockaddr_storage sa;
    char host[SRV_HOST_MAX];
    socklen_t len;
    uint16_t port;
    int r = srv_parse_addr(cfg->data_listen, host, &port);

    if (r == 0 && port && port + s->id > UINT16_MAX)
        r = -EINVAL;
    if (r == 0)
        r = resolve(host, port ? (uint16_t)(port + s->id) : 0, &sa, &len);
    if (r == 0)
        r = fab_listen(s->fab, (struct sockaddr *)&sa, len, &ep->addr, &ep->addr_len);
    if (r == 0 && cfg->data_advertise)
        r = advertise(ep, cfg->data_advertise);
    if (r < 0) {
        tell_no_address(s, r);
        return r;
    }
    ep->shard = s->id;
    snprintf(ep->provider, sizeof ep->provider, "%s", fab_info(s->tenant->fab)->provider);
    address_text((struct sockaddr *)&ep->addr, ep->addr_len, ep->text, sizeof ep->text);
    return 0;
}

static int open_pools(struct shard *s)
{
    const struct srv_config *cfg = s->srv->cfg;
    uint64_t memory = s->tenant->cfg->buffer_memory;
    uint32_t n = (uint32_t)(memory / cfg->data_buffer_bytes);
    int r = fab_pool_new(s->fab, cfg->data_buffer_bytes, n, FAB_LOCAL, &s->large);

    if (r == 0)
        r = fab_pool_new(s->fab, SMALL_BYTES, SMALL_COUNT, FAB_LOCAL, &s->small);
    s->large_total = n;
    if (r < 0)
        snprintf(s->start_text, sizeof s->start_text,
                 "%llu MiB of transfer buffers%s%s cannot be registered: %s (%sbuffer_memory, ulimit -l)",
                 (unsigned long long)(memory / MiB), s->tenant->id ? " of tenant " : "",
                 s->tenant->id ? s->tenant->cfg->name : "", err_text(r), s->tenant->id ? "" : "data.");
    return r;
}

/* An agent's transfer buffers, known to the queues of its backend: each registers them once. */
static int share_pool(struct fab_pool *p, struct mem_region **ret)
{
    void *base;
    size_t len;

    fab_pool_memory(p, &base, &len);
    return mem_add(base, len, true, ret);
}

static int share_pools(struct shard *s)
{
    int r = share_pool(s->large, &s->regions[0]);

    if (r == 0)
        r = share_pool(s->small, &s->regions[1]);
    if (r < 0)
        snprintf(s->start_text, sizeof s->start_text, "transfer buffers of shard %u cannot be shared: %s", s->id,
                 err_text(r));
    return r;
}

/* After the queue is closed, which has ended its registrations. */
static void unshare_pools(struct shard *s)
{
    for (size_t i = 0; i < ARRAY_SIZE(s->regions); i++)
        if (s->regions[i])
            mem_remove(s->regions[i]);
}

static int open_all(struct shard *s)
{
    int r = fab_shard_open(s->tenant->fab, &conn_callbacks, s, &s->fab);

    if (r < 0) {
        snprintf(s->start_text, sizeof s->start_text, "data shard %u cannot be opened: %s", s->id, err_text(r));
        return r;
    }
    r = pst_queue_open(s->tenant->store, QUEUE_DEPTH, &s->queue);
    if (r < 0) {
        snprintf(s->start_text, sizeof s->start_text, "no store queue for data shard %u: %s", s->id, err_text(r));
        return r;
    }
    s->spread = pst_queue_spread(s->queue);
    r = open_pools(s);
    if (r == 0 && s->srv->cfg->agent)
        r = share_pools(s);
    return r < 0 ? r : listen_on(s);
}

static void reap(struct shard *s, uint64_t timeout_ns, int *ret_n)
{
    struct pst_op *ops[REAP_BATCH];
    int n = pst_queue_reap(s->queue, ops, REAP_BATCH, timeout_ns);

    for (int i = 0; i < n; i++)
        req_op_done(ops[i]);
    *ret_n = n > 0 ? n : 0;
}

static bool idle_conns(struct shard *s)
{
    return list_empty(&s->conns) && list_empty(&s->backlog);
}

/* Connections first: their requests hold buffers, and operations of the queue. */
static void close_all(struct shard *s)
{
    int n;

    list_for_each_safe (it, &s->conns)
        conn_end(list_entry(it, struct conn, link));
    for (int i = 0; s->queue && i < 1000 && !idle_conns(s); i++) {
        fab_progress(s->fab, 10 * NSEC_PER_MSEC);
        req_take_turns(s); /* of connections that have not ended yet */
        req_submit_backlog(s);
        reap(s, 0, &n);
    }
    if (s->queue) {
        do { /* what the store has begun: its buffers are in use until it comes back */
            req_submit_backlog(s);
            reap(s, UINT64_MAX, &n);
        } while (n > 0 || !list_empty(&s->backlog));
        pst_queue_close(s->queue);
    }
    unshare_pools(s);
    fab_pool_free(s->small);
    fab_pool_free(s->large);
    if (s->fab)
        fab_shard_close(s->fab);
    req_free_cache(s);
}

/* ---- the loop ---- */

static void read_mailbox(struct shard *s)
{
    eventfd_t v;

    eventfd_read(s->wake, &v);
    if (atomic_exchange(&s->check_sessions, false))
        conn_drop_dead_sessions(s);
}

/* For nanoseconds; UINT64_MAX: as long as nothing happens. */
static uint64_t sleep_at_most(struct shard *s)
{
    uint64_t until = turn_deadline(s), now, ns = UINT64_MAX;

    if (until != UINT64_MAX) {
        now = now_ns();
        ns = until > now ? until - now : 0;
    }
    return list_empty(&s->held) ? ns : min_u64(ns, HELD_RETRY_NS);
}

static void sleep_until_work(struct shard *s)
{
    struct pollfd p[FAB_FDS_MAX + 2];
    int fds[FAB_FDS_MAX], n = 0, nfab;
    struct timespec t;
    uint64_t ns = sleep_at_most(s);

    if (ns == 0 || !fab_arm(s->fab))
        return;
    nfab = fab_fds(s->fab, fds, FAB_FDS_MAX);
    for (int i = 0; i < nfab; i++)
        p[n++] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    p[n++] = (struct pollfd){.fd = pst_queue_fd(s->queue), .events = POLLIN};
    p[n++] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    t = (struct timespec){(time_t)(ns / NSEC_PER_SEC), (long)(ns % NSEC_PER_SEC)};
    ppoll(p, (nfds_t)n, ns == UINT64_MAX ? NULL : &t, NULL);
    if (p[n - 1].revents)
        read_mailbox(s);
}

static void serve(struct shard *s)
{
    struct spin spin = spin_for(s->srv->cfg->data_spin_us * 1000);

    while (!atomic_load(&s->stop)) {
        int events = fab_progress(s->fab, 0), n;
        if (events < 0) {
            log_error("data shard %u: the transport is broken (%s); its clients use the others", s->id,
                      err_text(events));
            poll(&(struct pollfd){.fd = s->wake, .events = POLLIN}, 1, -1);
            read_mailbox(s);
            continue;
        }
        req_submit_backlog(s);
        req_start_waiting(s);
        req_retry_held(s);
        events += req_take_turns(s);
        reap(s, 0, &n); /* last: what was submitted has to be on its way before a sleep */
        if (atomic_load_explicit(&s->check_sessions, memory_order_relaxed)) {
            read_mailbox(s);
            continue; /* what was said meanwhile has no other sign any more: a stop, too */
        }
        if (events > 0 || n > 0) {
            spin_got(&spin);
            continue;
        }
        if (!spin_on(&spin, now_ns()))
            sleep_until_work(s);
    }
}

static void *run(void *arg)
{
    struct shard *s = arg;

    sess_on_behalf(s->tenant->id);
    s->start_err = open_all(s);
    sem_post(&s->started);
    if (s->start_err == 0)
        serve(s);
    close_all(s);
    return NULL;
}

/* ---- for the daemon's main thread ---- */

int shard_start(struct tenant *t, unsigned id, struct shard *s, char *err, size_t err_size)
{
    char name[16];

    s->srv = t->srv;
    s->tenant = t;
    s->id = id;
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0)
        return -errno;
    list_init(&s->conns);
    list_init(&s->thirds);
    list_init(&s->waiting);
    list_init(&s->held);
    list_init(&s->asking);
    turn_box_init(&s->turns);
    list_init(&s->backlog);
    list_init(&s->free_reqs);
    pthread_mutex_init(&s->lock, NULL);
    sem_init(&s->started, 0, 0);
    if (pthread_create(&s->thread, NULL, run, s) != 0) {
        snprintf(err, err_size, "no thread for data shard %u", id);
        return -EAGAIN;
    }
    s->running = true;
    snprintf(name, sizeof name, "shard-%u", id);
    pthread_setname_np(s->thread, name);
    while (sem_wait(&s->started) < 0 && errno == EINTR)
        ;
    if (s->start_err < 0)
        snprintf(err, err_size, "%s", s->start_text);
    return s->start_err;
}

void shard_poke(struct shard *s)
{
    eventfd_write(s->wake, 1);
}

void shard_drain(struct shard *s, uint64_t deadline_ns)
{
    struct timespec t = {0, 1000000};

    atomic_store(&s->drain, true);
    while (atomic_load(&s->unanswered) > 0 && now_ns() < deadline_ns)
        nanosleep(&t, NULL);
    t.tv_nsec = DRAIN_LINGER_NS;
    nanosleep(&t, NULL);
}

void shard_end(struct shard *s)
{
    if (!s->srv || !s->running)
        return;
    atomic_store(&s->stop, true);
    shard_poke(s);
    pthread_join(s->thread, NULL);
    s->running = false;
}

void shard_stop(struct shard *s)
{
    if (!s->srv)
        return; /* was never started */
    shard_end(s);
    if (s->wake >= 0)
        close(s->wake);
    pthread_mutex_destroy(&s->lock);
    sem_destroy(&s->started);
}

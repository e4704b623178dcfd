/*
 * The daemon's end: what is under way is answered, for the time of `drain`, and all is taken apart. An agent waits no
 * longer than that for the server behind it: its hosts see it go, and send again, to the next one, what has no answer.
 */
#include "data.h"
#include "made.h"

#include <errno.h>
#include <time.h>

/* ---- the end of an agent's patience with its server ---- */

struct patience {
    struct srv *srv;
    uint64_t deadline_ns;
    sem_t over; /* it was not needed */
    pthread_t thread;
    bool running;
};

/* Hosts hear of no failure from then on (req_finish, ctl_result). */
static void end_waits(struct srv *srv)
{
    pthread_rwlock_rdlock(&srv->tenants_lock);
    if (srv->ctl)
        ctl_server_end_waits(srv->ctl);
    atomic_store(&srv->waits_ended, true);
    srv_each_tenant(srv, t)
        pst_store_end_waits(t->store);
    pthread_rwlock_unlock(&srv->tenants_lock);
}

static void *be_patient(void *arg)
{
    struct patience *p = arg;
    const struct timespec until = {(time_t)(p->deadline_ns / NSEC_PER_SEC), (long)(p->deadline_ns % NSEC_PER_SEC)};
    int r;

    while ((r = sem_clockwait(&p->over, CLOCK_MONOTONIC, &until)) < 0 && errno == EINTR)
        ;
    if (r < 0)
        end_waits(p->srv);
    return NULL;
}

static void patience_start(struct patience *p, struct srv *srv, uint64_t deadline_ns)
{
    *p = (struct patience){.srv = srv, .deadline_ns = deadline_ns};
    if (!srv->cfg->agent)
        return;
    sem_init(&p->over, 0, 0);
    p->running = pthread_create(&p->thread, NULL, be_patient, p) == 0;
    if (!p->running)
        end_waits(srv);
}

static void patience_end(struct patience *p)
{
    if (!p->srv->cfg->agent)
        return;
    sem_post(&p->over);
    if (p->running)
        pthread_join(p->thread, NULL);
    sem_destroy(&p->over);
}

/* ---- all of it ---- */

/* What may wait for the server behind an agent: requests, and what containers send at their end. */
static void close_users(struct srv *srv)
{
    struct ctl_server *ctl;

    metrics_stop(srv->metrics);
    srv_each_tenant(srv, t)
        tenant_end_data(t);
    exports_stop(atomic_exchange(&srv->exports, NULL));
    pthread_rwlock_wrlock(&srv->tenants_lock);
    ctl = srv->ctl;
    srv->ctl = NULL;
    pthread_rwlock_unlock(&srv->tenants_lock);
    ctl_server_free(ctl); /* after the shards: they held sessions and containers */
}

static void close_rest(struct srv *srv)
{
    thirds_free(srv->thirds);
    for (struct tenant *t; (t = srv_tenant_from(srv, 0));)
        srv_tenant_free(t);
    made_creds_free(srv);
    asleep_free(srv);
    pthread_mutex_destroy(&srv->limits_lock);
    pthread_mutex_destroy(&srv->change_lock);
    pthread_rwlock_destroy(&srv->tenants_lock);
    turns_free(srv->turns);
    audit_close(srv->audit);
    pst_store_close(srv->store);
    free(srv);
}

void srv_close_all(struct srv *srv)
{
    close_users(srv);
    close_rest(srv);
}

int srv_stop(struct srv *srv)
{
    uint64_t deadline = now_ns() + srv->cfg->drain_ms * NSEC_PER_MSEC, now;
    struct patience patience;

    log_info("draining, for %llu ms at most", (unsigned long long)srv->cfg->drain_ms);
    patience_start(&patience, srv, deadline);
    pthread_rwlock_rdlock(&srv->tenants_lock);
    srv_each_tenant(srv, t) tenant_each_shard(t, s)
        atomic_store(&s->drain, true);
    srv_each_tenant(srv, t) tenant_each_shard(t, s)
        shard_drain(s, deadline);
    pthread_rwlock_unlock(&srv->tenants_lock);
    now = now_ns();
    ctl_server_stop(srv->ctl, now < deadline ? (uint32_t)((deadline - now) / NSEC_PER_MSEC) : 0);
    close_users(srv);
    patience_end(&patience);
    close_rest(srv);
    return 0;
}

/*
 * Who looks for events of a completion queue: one thread at a time, its leader.
 *
 * Several threads inside the core's queue wake each other several times for a message. So one waits there and also runs
 * the handlers, and the others sleep outside. A handler that may take long says so (rpc_may_block), and another thread
 * leads on. For what takes long and did not say so a watcher looks once a millisecond while there are events: a leader
 * that is still with the same one is relieved, and goes to the others when it has finished. So no handler, whatever it
 * waits for, keeps events from being seen, as long as a thread is free.
 *
 * Lock: lead.mu guards `leading`, `watching` and the changes of `term`.
 */
#include "rpc_priv.h"

#include <errno.h>

#define WATCH_NS    NSEC_PER_MSEC /* between two looks; who has been with one event for so long is relieved */
#define WATCH_QUIET 3u            /* looks without a new event, and the watcher sleeps */

/* Of this thread: what it leads, and since which term. */
static _Thread_local struct rpc_lead *leads;
static _Thread_local uint64_t my_term;

int rpc_lead_init(struct rpc_lead *l)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&l->mu, NULL);
    park_init(&l->is_free);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->watch, &attr);
    pthread_condattr_destroy(&attr);
    return 0;
}

void rpc_lead_done(struct rpc_lead *l)
{
    pthread_mutex_destroy(&l->mu);
    pthread_cond_destroy(&l->watch);
}

/* Needs mu. */
static void vacate(struct rpc_lead *l)
{
    l->leading = false;
    atomic_fetch_add(&l->term, 1);
    atomic_store(&l->busy_since, 0);
    park_wake_one(&l->is_free);
}

bool rpc_lead_take(struct rpc_lead *l)
{
    if (leads == l && my_term == atomic_load(&l->term))
        return true;
    leads = NULL;
    scoped_lock(&l->mu);
    while (l->leading && !l->stop)
        park_sleep(&l->is_free, &l->mu);
    if (l->stop)
        return false;
    l->leading = true;
    my_term = atomic_fetch_add(&l->term, 1) + 1;
    leads = l;
    return true;
}

void rpc_lead_event(struct rpc_lead *l)
{
    atomic_fetch_add_explicit(&l->events, 1, memory_order_relaxed);
    atomic_store(&l->busy_since, now_ns());
    if (atomic_load(&l->watching))
        return;
    scoped_lock(&l->mu);
    if (!l->watching) {
        atomic_store(&l->watching, true);
        pthread_cond_signal(&l->watch);
    }
}

void rpc_lead_idle(struct rpc_lead *l)
{
    /* Relieved meanwhile, the time is the new leader's. */
    scoped_lock(&l->mu);
    if (leads == l && my_term == atomic_load(&l->term))
        atomic_store(&l->busy_since, 0);
}

void rpc_may_block(void)
{
    struct rpc_lead *l = leads;

    if (!l)
        return;
    leads = NULL;
    scoped_lock(&l->mu);
    if (my_term == atomic_load(&l->term))
        vacate(l);
}

void rpc_lead_stop(struct rpc_lead *l)
{
    scoped_lock(&l->mu);
    l->stop = true;
    park_wake_all(&l->is_free);
    pthread_cond_signal(&l->watch);
}

/* Needs mu. One look. Returns whether there was something since the last one. */
static bool look(struct rpc_lead *l, uint64_t *seen)
{
    uint64_t events = atomic_load(&l->events), since = atomic_load(&l->busy_since);
    bool quiet = events == *seen && !since;

    *seen = events;
    if (since && now_ns() - since >= WATCH_NS)
        vacate(l);
    return !quiet;
}

void *rpc_lead_watch(void *arg)
{
    struct rpc_lead *l = arg;
    uint64_t seen = 0;
    unsigned quiet = 0;

    scoped_lock(&l->mu);
    while (!l->stop) {
        uint64_t at = now_ns() + WATCH_NS;
        struct timespec t = {(time_t)(at / NSEC_PER_SEC), (long)(at % NSEC_PER_SEC)};

        if (quiet < WATCH_QUIET) {
            pthread_cond_timedwait(&l->watch, &l->mu, &t);
        } else {
            /* An event after this line finds the watcher asleep and wakes it; one before it is seen here. */
            atomic_store(&l->watching, false);
            if (!atomic_load(&l->busy_since))
                pthread_cond_wait(&l->watch, &l->mu);
            atomic_store(&l->watching, true);
        }
        quiet = look(l, &seen) ? 0 : quiet + 1;
    }
    return NULL;
}

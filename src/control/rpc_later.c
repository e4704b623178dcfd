/*
 * Messages that were put off (rpc_later): they wait in order of their times, and threads of their own handle them when
 * these have come, so that none of the server's threads waits. The threads are made when the first message is put off.
 *
 * Lock: later.mu guards all of struct rpc_later. It is taken inside of a call's, never the other way round.
 */
#include "rpc_priv.h"

#include <errno.h>

static _Thread_local struct {
    uint64_t at_ns; /* the handler wants its message later; 0: not */
    bool again;     /* it was put off before */
} current;

void rpc_later(uint64_t at_ns)
{
    current.at_ns = at_ns ? at_ns : 1;
}

bool rpc_was_later(void)
{
    return current.again;
}

uint64_t rpc_handle(struct rpc_call *c, grpc_byte_buffer *in, bool again)
{
    grpc_slice msg;
    uint64_t at;

    current.at_ns = 0;
    current.again = again;
    if (rpc_bytes_read(in, &msg)) {
        c->m->on_message(c, GRPC_SLICE_START_PTR(msg), GRPC_SLICE_LENGTH(msg), c->s->cfg.user);
        grpc_slice_unref(msg);
    } else {
        rpc_finish(c, -EBADMSG, "damaged message");
    }
    at = current.at_ns;
    current.at_ns = 0;
    current.again = false;
    return at;
}

static void wait_until(struct rpc_later *l, uint64_t at_ns)
{
    struct timespec t = {(time_t)(at_ns / NSEC_PER_SEC), (long)(at_ns % NSEC_PER_SEC)};
    pthread_cond_timedwait(&l->changed, &l->mu, &t);
}

static void *serve(void *arg)
{
    struct rpc_later *l = arg;

    pthread_setname_np(pthread_self(), "pst-later");
    pthread_mutex_lock(&l->mu);
    while (!l->stop) {
        struct rpc_put_off *m = list_empty(&l->all) ? NULL : list_entry(l->all.next, struct rpc_put_off, link);
        if (!m) {
            pthread_cond_wait(&l->changed, &l->mu);
        } else if (m->at_ns > now_ns()) {
            wait_until(l, m->at_ns);
        } else {
            struct rpc_call *c = m->call;
            grpc_byte_buffer *in = m->in;
            list_del(&m->link);
            pthread_mutex_unlock(&l->mu);
            free(m);
            rpc_call_handled(c, in, rpc_handle(c, in, true));
            rpc_call_unref(c);
            pthread_mutex_lock(&l->mu);
        }
    }
    pthread_mutex_unlock(&l->mu);
    return NULL;
}

void rpc_later_init(struct rpc_later *l)
{
    pthread_condattr_t a;

    pthread_mutex_init(&l->mu, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &a);
    pthread_condattr_destroy(&a);
    list_init(&l->all);
}

void rpc_later_stop(struct rpc_later *l)
{
    pthread_mutex_lock(&l->mu);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mu);
    for (unsigned i = 0; i < l->nthreads; i++)
        pthread_join(l->threads[i], NULL);
    l->nthreads = 0;
}

void rpc_later_done(struct rpc_later *l)
{
    pthread_mutex_destroy(&l->mu);
    pthread_cond_destroy(&l->changed);
}

/* In order of times, and among equal ones of arrival. */
static void insert(struct rpc_later *l, struct rpc_put_off *m)
{
    struct list *after = l->all.prev;

    while (after != &l->all && list_entry(after, struct rpc_put_off, link)->at_ns > m->at_ns)
        after = after->prev;
    list_insert(after, &m->link);
    if (after == &l->all)
        pthread_cond_broadcast(&l->changed);
}

int rpc_later_add(struct rpc_call *c, grpc_byte_buffer *in, uint64_t at_ns)
{
    struct rpc_later *l = &c->s->later;
    struct rpc_put_off *m = malloc(sizeof *m);

    if (!m)
        return -ENOMEM;
    scoped_lock(&l->mu);
    while (l->nthreads < RPC_LATER_THREADS && pthread_create(&l->threads[l->nthreads], NULL, serve, l) == 0)
        l->nthreads++;
    if (!l->nthreads) {
        free(m);
        return -EAGAIN;
    }
    *m = (struct rpc_put_off){.call = rpc_call_ref(c), .in = in, .at_ns = at_ns};
    insert(l, m);
    return 0;
}

void rpc_later_hurry(struct rpc_call *c)
{
    struct rpc_later *l = &c->s->later;
    struct list mine = LIST_INIT(mine), *it;

    scoped_lock(&l->mu);
    list_for_each_safe (m, &l->all)
        if (list_entry(m, struct rpc_put_off, link)->call == c) {
            list_del(m);
            list_push_back(&mine, m);
        }
    while ((it = list_pop_front(&mine))) {
        list_entry(it, struct rpc_put_off, link)->at_ns = 0;
        insert(l, list_entry(it, struct rpc_put_off, link));
    }
}

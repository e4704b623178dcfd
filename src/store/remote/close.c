/*
 * Closing handles of objects: nobody waits for it, but none is forgotten while its session lives, since the server
 * keeps an object as long as one handle is open. The first one goes at once; those that follow soon go together, in a
 * request that the session's thread sends (remote_tick), which looks again after each answer. A request whose answer
 * does not come is sent again over the next connection; that one may find it done.
 */
#include "remote.h"

#define CLOSE_MAX       64u                 /* handles closed by one request */
#define CLOSE_GATHER_NS (8 * NSEC_PER_MSEC) /* below the pause between two ticks of the session */

struct closing {
    struct session_async async;
    struct list link; /* rcont.closing, until it is answered */
    struct rcont *rc;
    uint64_t epoch;
    size_t n;
    uint64_t handle[CLOSE_MAX];
};

static void close_later(struct rcont *rc, uint64_t handle)
{
    if (rc->nlate == rc->late_cap) {
        size_t n = rc->late_cap ? 2 * rc->late_cap : CLOSE_MAX;
        uint64_t *p = realloc(rc->late, n * sizeof *p);
        if (!p)
            return; /* it ends with the session */
        rc->late = p;
        rc->late_cap = n;
    }
    rc->late[rc->nlate++] = handle;
}

/* rcont.lock held. Those of a session that is gone are closed. */
static void forget_old(struct rcont *rc, uint64_t now)
{
    if (rc->late_epoch != now)
        rc->nlate = 0;
    rc->late_epoch = now;
}

/* From a session thread. */
static void answered(struct session_async *a, int err)
{
    struct closing *x = container_of(a, struct closing, async);
    struct rcont *rc = x->rc;

    scoped_lock(&rc->lock);
    list_del(&x->link);
    if (err == -ECONNRESET && x->epoch == session_epoch(remote_of(rc->c.store)->session)) {
        forget_old(rc, x->epoch);
        for (size_t i = 0; i < x->n; i++)
            close_later(rc, x->handle[i]);
    }
    free(x);
    pthread_cond_broadcast(&rc->closed);
}

/* rcont.lock held. The last n of those that wait, in one request. False: not sent. */
static bool send_closes(struct rcont *rc, size_t n)
{
    PB(NamespaceRequest) req = PENSTOCK__V1__NAMESPACE_REQUEST__INIT;
    PB(Header) header = PENSTOCK__V1__HEADER__INIT;
    PB(CloseRequest) in = PENSTOCK__V1__CLOSE_REQUEST__INIT;
    struct session_call call = {.req = &req, .header = &header, .container = &rc->handle};
    struct closing *x = malloc(sizeof *x);

    if (!x)
        return false;
    *x = (struct closing){.async = {.fn = answered, .lazy = true}, .rc = rc, .epoch = rc->late_epoch, .n = n};
    memcpy(x->handle, rc->late + (rc->nlate - n), n * sizeof x->handle[0]);
    in.header = &header;
    in.handle = x->handle[0];
    in.more = x->handle + 1;
    in.n_more = n - 1;
    req.op_case = PENSTOCK__V1__NAMESPACE_REQUEST__OP_CLOSE;
    req.close = &in;
    list_push_back(&rc->closing, &x->link); /* first: its answer waits for the lock */
    if (session_begin(remote_of(rc->c.store)->session, &call, &x->async) == 0) {
        rc->nlate -= n;
        rc->closed_ns = now_ns();
        return true;
    }
    list_del(&x->link);
    free(x);
    return false;
}

/* rcont.lock held. */
static void send_late(struct rcont *rc)
{
    forget_old(rc, session_epoch(remote_of(rc->c.store)->session));
    while (rc->nlate && send_closes(rc, min_u64(rc->nlate, CLOSE_MAX)))
        ;
}

void remote_close_handle(struct rcont *rc, uint64_t handle, uint64_t epoch)
{
    forget_old(rc, session_epoch(remote_of(rc->c.store)->session));
    if (epoch == rc->late_epoch)
        close_later(rc, handle);
    if (rc->nlate >= CLOSE_MAX || now_ns() - rc->closed_ns >= CLOSE_GATHER_NS)
        send_late(rc);
}

void remote_closes_again(struct rcont *rc)
{
    scoped_lock(&rc->lock);
    send_late(rc);
}

bool remote_tick(struct remote *r)
{
    bool left = false;

    if (pthread_mutex_trylock(&r->lock))
        return true; /* whoever holds it may be waiting for an answer */
    list_for_each (it, &r->conts) {
        struct rcont *rc = list_entry(it, struct rcont, link);
        scoped_lock(&rc->lock);
        send_late(rc);
        left |= rc->nlate > 0;
    }
    pthread_mutex_unlock(&r->lock);
    return left;
}

void remote_closes_done(struct rcont *rc)
{
    scoped_lock(&rc->lock);
    list_for_each_safe (it, &rc->closing) {
        struct closing *x = list_entry(it, struct closing, link);
        if (!session_forget(remote_of(rc->c.store)->session, &x->async))
            continue; /* its answer is about to take the lock */
        list_del(it);
        free(x);
    }
    while (!list_empty(&rc->closing))
        pthread_cond_wait(&rc->closed, &rc->lock);
    free(rc->late);
    rc->late = NULL;
}

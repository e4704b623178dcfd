/*
 * Closing handles of objects: nobody waits for it, but none is forgotten while its session lives, since the server keeps
 * an object as long as one handle is open. A close whose answer does not come is sent again over the next connection;
 * that one may find it done.
 */
#include "remote.h"

struct closing {
    struct session_async async;
    struct list link; /* rcont.closing, until it is answered */
    struct rcont *rc;
    uint64_t handle, epoch;
};

static void close_later(struct rcont *rc, uint64_t handle, uint64_t epoch)
{
    if (rc->late_epoch != epoch) {
        rc->nlate = 0;
        rc->late_epoch = epoch;
    }
    if (rc->nlate == rc->late_cap) {
        size_t n = rc->late_cap ? 2 * rc->late_cap : 16;
        uint64_t *p = realloc(rc->late, n * sizeof *p);
        if (!p)
            return; /* it ends with the session */
        rc->late = p;
        rc->late_cap = n;
    }
    rc->late[rc->nlate++] = handle;
}

/* From a session thread. */
static void answered(struct session_async *a, int err)
{
    struct closing *x = container_of(a, struct closing, async);
    struct rcont *rc = x->rc;

    scoped_lock(&rc->lock);
    list_del(&x->link);
    if (err == -ECONNRESET && x->epoch == session_epoch(remote_of(rc->c.store)->session))
        close_later(rc, x->handle, x->epoch);
    free(x);
    pthread_cond_broadcast(&rc->closed);
}

/* rcont.lock held. False: not sent. */
static bool send_close(struct rcont *rc, uint64_t handle, uint64_t epoch)
{
    PB(NamespaceRequest) req = PENSTOCK__V1__NAMESPACE_REQUEST__INIT;
    PB(Header) header = PENSTOCK__V1__HEADER__INIT;
    PB(CloseRequest) in = PENSTOCK__V1__CLOSE_REQUEST__INIT;
    struct session_call call = {.req = &req, .header = &header, .container = &rc->handle};
    struct closing *x = malloc(sizeof *x);

    if (!x)
        return false;
    *x = (struct closing){.async.fn = answered, .rc = rc, .handle = handle, .epoch = epoch};
    in.header = &header;
    in.handle = handle;
    req.op_case = PENSTOCK__V1__NAMESPACE_REQUEST__OP_CLOSE;
    req.close = &in;
    list_push_back(&rc->closing, &x->link); /* first: its answer waits for the lock */
    if (session_begin(remote_of(rc->c.store)->session, &call, &x->async) == 0)
        return true;
    list_del(&x->link);
    free(x);
    return false;
}

/* rcont.lock held. */
static void send_late(struct rcont *rc, uint64_t now)
{
    if (rc->late_epoch != now)
        rc->nlate = 0; /* those of a session that is gone are closed */
    while (rc->nlate && send_close(rc, rc->late[rc->nlate - 1], now))
        rc->nlate--;
}

void remote_close_handle(struct rcont *rc, uint64_t handle, uint64_t epoch)
{
    uint64_t now = session_epoch(remote_of(rc->c.store)->session);

    send_late(rc, now);
    if (epoch == now && !send_close(rc, handle, epoch))
        close_later(rc, handle, epoch);
}

void remote_closes_again(struct rcont *rc)
{
    scoped_lock(&rc->lock);
    send_late(rc, session_epoch(remote_of(rc->c.store)->session));
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

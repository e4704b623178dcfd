/* Operations of a data queue that go over the session's stream: syncs of what has no capability. */
#include "queue.h"

void rq_mail(struct rop *p, int err)
{
    struct rqueue *q = p->q;

    atomic_fetch_add(&q->wakers, 1);
    pthread_mutex_lock(&q->mail_lock);
    p->mail_err = err;
    list_push_back(&q->mail, &p->mail);
    pthread_mutex_unlock(&q->mail_lock);
    /* The owner may have seen the mail already, finished and begun to close. */
    rq_wake(q);
    atomic_fetch_sub(&q->wakers, 1);
}

static void control_fn(struct session_async *a, int err)
{
    rq_mail(container_of(a, struct rop, async), err);
}

static int begin_control(struct rqueue *q, struct rop *p)
{
    PB(NamespaceRequest) req = PENSTOCK__V1__NAMESPACE_REQUEST__INIT;
    PB(Header) header = PENSTOCK__V1__HEADER__INIT;
    PB(FsyncRequest) in = PENSTOCK__V1__FSYNC_REQUEST__INIT;
    struct session_call call = {.req = &req, .header = &header, .container = &rcont_of(p->op->cont)->handle};

    in.header = &header;
    header.trace = p->trace;
    in.ino = p->op->ino;
    in.whole_container = p->op->kind == PST_OP_SYNCFS;
    req.op_case = PENSTOCK__V1__NAMESPACE_REQUEST__OP_FSYNC;
    req.fsync = &in;
    p->async.fn = control_fn;
    return session_begin(q->r->session, &call, &p->async);
}

void rq_control_step(struct rqueue *q)
{
    list_for_each_safe (it, &q->control) {
        struct rop *p = list_entry(it, struct rop, link);
        int r;
        if (p->is_begun)
            continue;
        if (p->is_doubted) {
            r = session_doubt_end(q->r->session, p->async.epoch, p->doubt);
            if (r == -EAGAIN)
                continue;
            p->is_doubted = false;
            if (r < 0) {
                list_del(&p->link);
                rq_finish(q, p, r);
                continue;
            }
        }
        p->is_begun = true;
        p->mark = remote_mark(rcont_of(p->op->cont));
        r = begin_control(q, p);
        if (r == 0)
            continue;
        p->is_begun = false;
        if (r != -EAGAIN) {
            list_del(&p->link);
            rq_finish(q, p, r);
        }
    }
}

void rq_control_mail(struct rqueue *q)
{
    struct list mail = LIST_INIT(mail), *l;

    pthread_mutex_lock(&q->mail_lock);
    list_splice_back(&mail, &q->mail);
    pthread_mutex_unlock(&q->mail_lock);
    while ((l = list_pop_front(&mail))) {
        struct rop *p = list_entry(l, struct rop, mail);
        if (p->is_fetching) {
            rq_fetched(q, p);
            continue;
        }
        p->is_begun = false;
        /* ESTALE may speak of the session. Neither has done anything. */
        if (p->mail_err == -ESTALE && !p->ended) {
            p->is_doubted = true;
            p->doubt = session_doubt(q->r->session);
            continue;
        }
        if (p->mail_err == -ECONNRESET && !p->ended)
            continue;
        if (!p->mail_err)
            p->mail_err = remote_synced(rcont_of(p->op->cont), p->op->kind == PST_OP_SYNCFS ? 0 : p->op->ino, p->mark,
                                        p->async.history);
        list_del(&p->link);
        rq_finish(q, p, p->ended ? p->ended : p->mail_err);
    }
}

/*
 * What of NamespaceService goes through the store's data queues, one for each call under way: fsync, and the bytes of
 * small files.
 */
#include "service_priv.h"

#include <errno.h>

static int queue_take(struct ctl_ten *t, struct pst_queue **ret)
{
    pthread_mutex_lock(&t->mu);
    *ret = t->nqueues ? t->queues[--t->nqueues] : NULL;
    pthread_mutex_unlock(&t->mu);
    return *ret ? 0 : pst_queue_open(t->in.st, 1, ret);
}

static void queue_give(struct ctl_ten *t, struct pst_queue *queue)
{
    pthread_mutex_lock(&t->mu);
    if (t->nqueues < CTL_QUEUES) {
        t->queues[t->nqueues++] = queue;
        queue = NULL;
    }
    pthread_mutex_unlock(&t->mu);
    if (queue)
        pst_queue_close(queue);
}

/* The operation's result, by a queue of the store. */
static int run_op(struct ctl_req *q, struct pst_op *op)
{
    struct pst_queue *queue;
    int r = queue_take(q->tenant, &queue);

    if (r)
        return r;
    op->cont = q->cont;
    r = (int)pst_queue_run(queue, op);
    queue_give(q->tenant, queue);
    return r;
}

int ctl_ns_fsync(struct ctl_req *q, const void *in_, void *out)
{
    const PB(FsyncRequest) *in = in_;
    struct pst_op op = {.kind = in->whole_container ? PST_OP_SYNCFS : PST_OP_FSYNC, .ino = in->ino};
    int r;

    (void)out;
    rpc_may_block();
    r = run_op(q, &op);
    return r < 0 ? r : 0;
}

int ctl_ns_write(struct ctl_req *q, const void *in_, void *out)
{
    const PB(WriteRequest) *in = in_;
    struct iovec iov = {in->data.data, in->data.len};
    struct pst_op op = {.kind = PST_OP_WRITE,
                        .ino = in->ino,
                        .offset = in->offset,
                        .length = in->data.len,
                        .iov = &iov,
                        .iovcnt = 1,
                        .ctx.id = q->ctx.id,
                        .flags = (in->durable ? PST_OPF_DSYNC : 0) |
                                 (in->kill_setid || !sess_keeps_setid(q->sess) ? PST_OPF_KILL_SETID : 0)};
    int r;

    (void)out;
    if (!in->data.len || in->data.len > PST_SMALL_MAX)
        return ctl_fail(q, -EINVAL, "%zu bytes: 1..%u", in->data.len, (unsigned)PST_SMALL_MAX);
    r = sess_object_allows(q->s->sess, q->sess, q->sc, in->handle, in->ino, CAP_WRITE);
    if (r) {
        sess_refuse(q->s->sess, r == -EBADF ? REFUSE_HANDLE : REFUSE_CAP_REVOKED);
        return ctl_fail(q, r,
                        r == -EBADF ? "the session does not have the object open for writing"
                                    : "what was given at the open has been revoked: open it again");
    }
    if (in->durable)
        rpc_may_block();
    r = run_op(q, &op);
    return r < 0 ? r : (size_t)r == in->data.len ? 0 : -EIO;
}

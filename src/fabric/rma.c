#include "fab_int.h"

static struct fab_op *op_of(struct fab_rma *r)
{
    return (struct fab_op *)r->priv;
}

static bool valid(const struct fab_conn *c, const struct fab_rma *r)
{
    if (!r->iovcnt || r->iovcnt > FAB_RMA_IOV_MAX || !r->fn)
        return false;
    for (uint32_t i = 0; i < r->iovcnt; i++) {
        const struct fab_mr *m = r->mr[i];
        uintptr_t at = (uintptr_t)r->iov[i].iov_base, base = m ? (uintptr_t)m->addr : 0;

        if (!m || m->s != c->s || at < base || at - base >= m->len || !r->iov[i].iov_len ||
            r->iov[i].iov_len > m->len - (at - base))
            return false;
    }
    return true;
}

int fab_rma_post(struct fab_conn *c, struct fab_rma *r)
{
    void *desc[FAB_RMA_IOV_MAX];
    ssize_t e;

    for (uint32_t i = 0; i < r->iovcnt; i++)
        desc[i] = r->mr[i]->desc;
    if (r->write)
        e = fi_writev(c->ep, r->iov, desc, r->iovcnt, 0, r->remote_addr, r->remote_key, op_of(r));
    else
        e = fi_readv(c->ep, r->iov, desc, r->iovcnt, 0, r->remote_addr, r->remote_key, op_of(r));
    if (e)
        return e == -FI_EAGAIN ? -EAGAIN : fab_errno(e);
    list_push_back(&c->posted, &r->link);
    c->rmas_posted++;
    c->reads_posted += !r->write;
    return 0;
}

int fab_rma(struct fab_conn *c, struct fab_rma *r)
{
    int e = -EAGAIN;

    if (c->state != FAB_CONNECTED)
        return -ENOTCONN;
    if (!valid(c, r))
        return -EINVAL;
    op_of(r)->conn = c;
    op_of(r)->kind = FAB_OP_RMA;
    fab_msg_flush(c); /* what was sent before goes before */
    if (c->state == FAB_CONNECTED && list_empty(&c->pending))
        e = fab_rma_post(c, r);
    if (!e)
        return 0;
    /* It comes back in every case: after a failure with the end of the connection. */
    list_push_back(&c->pending, &r->link);
    if (e == -EAGAIN && c->state == FAB_CONNECTED)
        fab_conn_retry_later(c);
    else
        fab_conn_fail(c, e);
    return 0;
}

/* r is on no list of the connection any more. */
void fab_rma_done(struct fab_rma *r, int err)
{
    struct fab_conn *c = op_of(r)->conn;

    if (err) {
        c->stats.errors++;
    } else {
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < r->iovcnt; i++)
            bytes += r->iov[i].iov_len;
        if (r->write) {
            c->stats.rma_bytes_out += bytes;
        } else {
            c->stats.rma_bytes_in += bytes;
            c->s->fetched += bytes;
        }
    }
    r->fn(r, err);
}

/* A request's life and its answer. */
#include "data.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

/* ---- life ---- */

struct req *req_new(struct conn *c, const struct dp_request *dp)
{
    struct shard *s = c->shard;
    struct list *l = list_pop_front(&s->free_reqs);
    struct req *r = l ? list_entry(l, struct req, link) : malloc(sizeof *r);

    if (!r)
        return NULL;
    if (l)
        s->nfree_reqs--;
    memset(r, 0, offsetof(struct req, part));
    list_init(&r->link);
    r->conn = c;
    r->dp = *dp;
    r->start_ns = now_ns();
    r->refs = 1;
    r->parts = &r->part;
    c->reqs++;
    c->unanswered++;
    atomic_fetch_add_explicit(&s->unanswered, 1, memory_order_relaxed);
    return r;
}

void req_release_buffers(struct req *r)
{
    for (uint32_t i = 0; i < r->nbufs; i++)
        fab_buf_put(r->parts[i].buf);
    r->nbufs = 0;
}

void req_unref(struct req *r)
{
    struct conn *c = r->conn;
    struct shard *s = c->shard;

    if (--r->refs > 0)
        return;
    once_end(&r->once);
    req_release_buffers(r);
    while (r->nexports)
        export_put(r->export[--r->nexports]);
    if (r->third)
        conn_put_req(r->third);
    if (r->parts != &r->part)
        free(r->parts);
    free(r->iov);
    free(r->stash);
    sess_cont_put(r->cont);
    check_put_bearer(r->bearer);
    if (s->nfree_reqs < REQ_CACHE_MAX) {
        list_push_front(&s->free_reqs, &r->link);
        s->nfree_reqs++;
    } else {
        free(r);
    }
    conn_put_req(c);
}

void req_free_cache(struct shard *s)
{
    struct list *l;

    while ((l = list_pop_front(&s->free_reqs)) != NULL)
        free(list_entry(l, struct req, link));
    s->nfree_reqs = 0;
}

/* ---- answers ---- */

/* The answer is out, or there is nobody to send it to. */
void req_answered(struct req *r)
{
    struct conn *c = r->conn;

    turn_end(r);
    c->unanswered--;
    atomic_fetch_sub_explicit(&c->shard->unanswered, 1, memory_order_relaxed);
    req_unref(r);
}

/* -EAGAIN: no credit; the answer is kept in r. */
static int send_answer(struct req *r)
{
    struct conn *c = r->conn;
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];
    int n = dp_encode_reply(c->mac, &r->reply, head, iov);

    return n < 0 ? n : fab_send(c->fab, iov, (uint32_t)n);
}

/* Sends (or keeps) the answer; ends the request's own reference, once. */
void req_finish(struct req *r)
{
    struct conn *c = r->conn;
    int e;

    once_end(&r->once); /* before the client hears of it, and uses the slot again */
    turn_end(r);        /* and not when he takes the answer, which may be never */
    if (r->third)
        third_notice(r);
    if (r->third && r->failed) { /* the other connection has ended, and not this one */
        r->failed = false;
        r->reply = (struct dp_reply){.status = -ENOTCONN};
    }
    if (req_is_third(r) && r->reply.status < 0)
        r->reply.offset = third_settled(r) ? DP_SETTLED : 0;
    r->reply.msgno = r->dp.msgno;
    r->reply.tag = r->dp.tag;
    r->reply.opcode = r->dp.opcode;
    /*
     * Bytes that were to move did not: no answer may say that they did. And what fails under a session that has ended,
     * or once an agent has stopped to wait for its server, may fail for that alone: the client asks again in its next
     * session.
     */
    if (!c->fab || r->failed ||
        (r->reply.status < 0 && (!sess_alive(c->sess) || atomic_load(&c->shard->srv->waits_ended)))) {
        conn_end(c);
        req_answered(r);
        return;
    }
    stats_count(r); /* before the client knows: its next look at the counters has it */
    e = list_empty(&c->unsent) ? send_answer(r) : -EAGAIN;
    if (e == -EAGAIN) {
        list_push_back(&c->unsent, &r->link);
        return;
    }
    if (e < 0 && e != -ENOTCONN) {
        log_error("answer to %s cannot be sent: %s", c->peer, err_name(e));
        conn_end(c);
    }
    req_answered(r);
}

void req_flush_unsent(struct conn *c)
{
    while (!list_empty(&c->unsent)) {
        struct req *r = list_entry(c->unsent.next, struct req, link);
        if (c->fab && send_answer(r) == -EAGAIN)
            return;
        list_del(&r->link);
        req_answered(r);
    }
}

void req_answer(struct req *r, int status)
{
    r->reply = (struct dp_reply){.status = status};
    req_finish(r);
}

void req_answer_op(struct req *r, const struct pst_op *op)
{
    struct dp_reply *y = &r->reply;

    *y = (struct dp_reply){.status = op->result < 0 ? (int32_t)op->result : 0};
    if (r->dp.opcode == DP_CHUNK_READ || r->dp.opcode == DP_CHUNK_REPLACE)
        y->version = op->version;
    if (op->result < 0) {
        req_finish(r);
        return;
    }
    y->result = (uint64_t)op->result;
    switch (r->dp.opcode) {
    case DP_WRITE:
        y->offset = op->offset;
        /* fall through */
    case DP_PUNCH:
    case DP_ALLOCATE:
    case DP_CHUNK_REPLACE:
        y->size = op->attr.size;
        y->used = op->attr.used;
        y->change = op->attr.change;
        y->mtime_ns = op->attr.mtime_ns;
        break;
    case DP_CHUNK_READ:
        y->size = op->attr.size;
        y->used = op->attr.used;
        y->change = op->attr.change;
        y->mtime_ns = op->attr.mtime_ns;
        y->meta_len = (uint8_t)min_u64(op->meta_len, sizeof y->meta);
        memcpy(y->meta, op->meta, y->meta_len);
        if (req_is_inline(r)) {
            y->payload = r->parts[0].buf->data;
            y->payload_len = (uint32_t)y->result;
        }
        break;
    default:
        break;
    }
    req_finish(r);
}

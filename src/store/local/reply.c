/* Reply records: what makes a repeated request harmless. The record of a slot is committed with the effect. */
#include "ns.h"

#include <errno.h>

#define REPLY_FORMAT 1u

static struct key reply_key(const struct pst_reqid *id)
{
    struct key k = key_begin(KEY_REPLY);
    key_bytes(&k, id->client, sizeof id->client);
    key_u32(&k, id->slot);
    return k;
}

/* Days since the epoch: records are dropped long after any retry, so the clock need not be exact. */
uint32_t reply_today(void)
{
    return (uint32_t)(wall_ns() / (int64_t)(86400 * NSEC_PER_SEC));
}

/* Format, sequence and day; the reply is what is left in r. */
static int reply_header(struct rbuf *r, uint64_t *ret_seq, uint32_t *ret_day)
{
    uint8_t format = rbuf_u8(r);
    *ret_seq = rbuf_u64(r);
    *ret_day = rbuf_u32(r);
    return r->err || format != REPLY_FORMAT ? -EBADMSG : 0;
}

int reply_day(const void *p, size_t n, uint32_t *ret)
{
    struct rbuf r = rbuf_of(p, n);
    uint64_t seq;
    return reply_header(&r, &seq, ret);
}

int reply_find(struct engine *e, const struct pst_reqid *id, struct wbuf *ret_reply)
{
    struct key k;
    struct wbuf v = {0};
    uint64_t seq;
    uint32_t day;

    if (id->seq == 0)
        return 0;
    k = reply_key(id);
    int r = idx_get(e, NULL, &k, &v);
    if (r == 0) {
        struct rbuf rb = rbuf_of(v.data, v.len);
        r = reply_header(&rb, &seq, &day);
        if (r)
            r = -EIO;
        else if (id->seq < seq)
            r = -ESTALE;
        else if (id->seq == seq)
            r = 1;
        if (r == 1 && ret_reply) {
            ret_reply->len = 0;
            wbuf_put(ret_reply, rb.p, rbuf_left(&rb));
            r = ret_reply->err ? ret_reply->err : 1;
        }
    }
    wbuf_done(&v);
    return r == -ENOENT ? 0 : r;
}

void reply_put(struct txn *t, const struct pst_reqid *id, const void *reply, size_t len)
{
    struct wbuf w = {0};

    if (id->seq == 0)
        return;
    struct key k = reply_key(id);
    wbuf_u8(&w, REPLY_FORMAT);
    wbuf_u64(&w, id->seq);
    wbuf_u32(&w, reply_today());
    wbuf_put(&w, reply, len);
    if (w.err)
        txn_fail(t, w.err);
    else
        txn_put(t, &k, w.data, w.len);
    wbuf_done(&w);
    /* The commit takes the lock that keeps reply_prune from dropping what is being renewed. */
    if (!ns_txn_of(t))
        txn_fail(t, -ENOMEM);
}

int reply_seen(struct engine *e, const struct pst_ctx *ctx, enum reply_kind kind, struct wbuf *ret)
{
    struct wbuf v = {0};
    int r = reply_find(e, &ctx->id, &v);

    if (r == 1) {
        if (v.len == 0 || v.data[0] != (uint8_t)kind) {
            r = -EINVAL; /* the sequence was used for another request */
        } else if (ret) {
            ret->len = 0;
            wbuf_put(ret, v.data + 1, v.len - 1);
            r = ret->err ? ret->err : 1;
        }
    }
    wbuf_done(&v);
    return r;
}

void reply_record(struct txn *t, const struct pst_ctx *ctx, enum reply_kind kind, const struct wbuf *body)
{
    struct wbuf w = {0};

    if (ctx->id.seq == 0)
        return;
    wbuf_u8(&w, (uint8_t)kind);
    if (body)
        wbuf_put(&w, body->data, body->len);
    if (w.err || (body && body->err))
        txn_fail(t, -ENOMEM);
    else
        reply_put(t, &ctx->id, w.data, w.len);
    wbuf_done(&w);
}

void reply_record_attr(struct txn *t, const struct pst_ctx *ctx, enum reply_kind kind, const struct pst_attr *a)
{
    struct wbuf w = {0};

    if (ctx->id.seq == 0)
        return;
    attr_encode(&w, a);
    reply_record(t, ctx, kind, &w);
    wbuf_done(&w);
}

int reply_seen_attr(struct engine *e, const struct pst_ctx *ctx, enum reply_kind kind, struct pst_attr *ret)
{
    struct wbuf body = {0};
    struct pst_attr a;
    int r = reply_seen(e, ctx, kind, &body);

    if (r == 1) {
        struct rbuf rb = rbuf_of(body.data, body.len);
        attr_decode(&rb, &a);
        r = rbuf_end(&rb) ? -EIO : 1;
    }
    wbuf_done(&body);
    if (r == 1)
        *ret = a;
    return r;
}

int64_t reply_prune(struct ns *ns, uint32_t before_day)
{
    struct key prefix = key_begin(KEY_REPLY), from = prefix;
    int64_t dropped = 0;
    int r = 1;

    while (r > 0) {
        struct txn *t = txn_new(ns->e);
        struct ns_txn *n = t ? ns_txn_of(t) : NULL;
        struct idx_iter *it = n ? idx_iter_new(ns->e, NULL, &prefix, &from) : NULL;
        if (it)
            n->stale = calloc(NS_GC_BATCH, sizeof *n->stale);
        if (!it || !n->stale) {
            idx_iter_free(it);
            txn_drop(t);
            return -ENOMEM;
        }
        n->stale_before = before_day;
        /* Seen here without a lock; the commit looks again with it (ns_txn_begin). */
        while (n->nstale < NS_GC_BATCH && (r = idx_iter_next(it)) > 0) {
            size_t klen, vlen;
            uint32_t day;
            const uint8_t *k = idx_iter_key(it, &klen), *v = idx_iter_value(it, &vlen);
            if (reply_day(v, vlen, &day) == 0 && day < before_day) {
                from.len = 0;
                key_bytes(&from, k, klen);
                n->stale[n->nstale++] = from;
            }
        }
        idx_iter_free(it);
        uint32_t found = n->nstale;
        if (!found) {
            txn_drop(t);
            break;
        }
        txn_set_reserved(t);
        int err = txn_commit(t, NULL);
        if (err)
            return err;
        dropped += found;
    }
    return r < 0 ? r : dropped;
}

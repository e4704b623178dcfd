/* A request's bytes between its buffers and the client's memory: by RMA, or where that is mapped here, by copying. */
#include "data.h"

#include <errno.h>
#include <string.h>

/* ---- memory that the client exported (export.c) ---- */

/* Finds the memory of all segments. False: the client named what it does not have, and its connection ends. */
bool req_use_exports(struct req *r)
{
    struct conn *c = r->conn;

    for (uint32_t i = 0; i < r->dp.nsegs; i++) {
        void *at;
        int e = export_use(atomic_load(&c->shard->srv->exports), c->sess, &r->dp.seg[i], &r->export[i], &at);
        if (e < 0) {
            conn_offence(c, e == -ERANGE ? REFUSE_EXPORT_RANGE : REFUSE_EXPORT_UNKNOWN);
            return false;
        }
        r->mapped[r->nexports++] = (struct iovec){at, r->dp.seg[i].len};
    }
    return true;
}

/* Copies `len` bytes of a part between its buffer and the client's memory. */
static void copy(struct part *p, uint32_t len)
{
    const struct req *r = p->req;
    char *buf = p->buf->data;
    size_t skip = p->offset;

    for (uint32_t i = 0; i < r->nexports && len > 0; i++) {
        size_t n = r->mapped[i].iov_len;
        char *at = (char *)r->mapped[i].iov_base + skip;
        if (skip >= n) {
            skip -= n;
            continue;
        }
        n = min_u64(n - skip, len);
        if (req_is_write(r))
            memcpy(buf, at, n);
        else
            memcpy(at, buf, n);
        buf += n;
        len -= (uint32_t)n;
        skip = 0;
    }
}

/* ---- the client's side ---- */

static void rma_done(struct fab_rma *rma, int err)
{
    struct req *r = (struct req *)(uintptr_t)rma->priv[0];

    if (err < 0)
        r->failed = true;
    if (--r->rmas_left == 0 && req_is_write(r)) {
        /* With a byte missing nothing is written; the connection is ending, or the client named a wrong key. */
        if (r->failed || !r->conn->fab)
            req_finish(r);
        else
            req_ask_turn(r);
    }
    req_unref(r);
}

/* Moves `len` bytes of a part from or to the client's segments, by RMA. */
static void move_by_rma(struct part *p, uint32_t len)
{
    struct req *r = p->req;
    struct conn *c = r->third ? r->third : r->conn;
    uint32_t at = 0, seg_start = 0, n = 0;

    for (uint32_t i = 0; i < r->dp.nsegs && at < len; i++) {
        const struct dp_seg *seg = &r->dp.seg[i];
        uint32_t in_seg = p->offset + at - seg_start, take;
        if (p->offset + at >= seg_start + seg->len) {
            seg_start += seg->len;
            continue;
        }
        take = (uint32_t)min_u64(seg->len - in_seg, len - at);
        p->rma[n] = (struct fab_rma){
            .write = !req_is_write(r),
            .mr = {p->buf->mr},
            .iov = {{(char *)p->buf->data + at, take}},
            .iovcnt = 1,
            .remote_addr = seg->addr + in_seg,
            .remote_key = seg->key,
            .fn = rma_done,
            .priv = {(uint64_t)(uintptr_t)r},
        };
        r->refs++;
        r->rmas_left++;
        if (!c->fab || fab_rma(c->fab, &p->rma[n]) < 0) {
            r->failed = true;
            r->rmas_left--;
            r->refs--; /* never the last one: the caller is inside the request */
            return;
        }
        r->moved = true;
        n++;
        at += take;
        seg_start += seg->len;
    }
}

void req_move(struct part *p, uint32_t len)
{
    if (p->req->in_place)
        return; /* the store has done it */
    if (req_is_exported(p->req))
        copy(p, len);
    else
        move_by_rma(p, len);
}

void req_fetch(struct req *r)
{
    r->refs++;
    r->rmas_left = 1; /* this loop's own: no completion ends the phase before all have begun */
    for (uint32_t i = 0; i < r->nparts && !r->failed; i++)
        req_move(&r->parts[i], r->parts[i].len);
    if (--r->rmas_left == 0) {
        if (r->failed)
            req_finish(r);
        else
            req_ask_turn(r);
    }
    req_unref(r);
}

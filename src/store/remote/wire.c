/* Operations to requests, replies to results. */
#include "queue.h"

static const uint8_t opcodes[PST_OP_KINDS] = {
    [PST_OP_READ] = DP_READ, [PST_OP_WRITE] = DP_WRITE, [PST_OP_PUNCH] = DP_PUNCH, [PST_OP_ALLOCATE] = DP_ALLOCATE,
    [PST_OP_SEEK_DATA] = DP_SEEK_DATA, [PST_OP_SEEK_HOLE] = DP_SEEK_HOLE, [PST_OP_FSYNC] = DP_FSYNC,
    [PST_OP_SYNCFS] = DP_SYNCFS, [PST_OP_CHUNK_READ] = DP_CHUNK_READ, [PST_OP_CHUNK_REPLACE] = DP_CHUNK_REPLACE,
    [PST_OP_ATTR] = DP_CHUNK_READ, /* without bytes */
};

uint8_t rq_opcode(const struct pst_op *op)
{
    return opcodes[op->kind];
}

/* ---- sending ---- */

static bool has_bytes(enum pst_op_kind k)
{
    return k == PST_OP_READ || k == PST_OP_WRITE || k == PST_OP_CHUNK_READ || k == PST_OP_CHUNK_REPLACE;
}

#define MUTATING (1u << PST_OP_WRITE | 1u << PST_OP_PUNCH | 1u << PST_OP_ALLOCATE | 1u << PST_OP_CHUNK_REPLACE)

static bool mutates(enum pst_op_kind k)
{
    return MUTATING >> k & 1;
}

/* A durable write covers what was before it, as an fsync does. */
static bool syncs(const struct pst_op *op)
{
    return op->kind == PST_OP_FSYNC || (op->flags & PST_OPF_DSYNC && (op->kind == PST_OP_WRITE ||
                                                                      op->kind == PST_OP_CHUNK_REPLACE));
}

static uint32_t rights(enum pst_op_kind k)
{
    return k == PST_OP_FSYNC ? 0 : mutates(k) ? W_OK : R_OK;
}

static uint16_t flags(const struct pst_op *op)
{
    static const struct {
        uint32_t op;
        uint16_t dp;
        uint32_t kinds; /* that have it */
    } map[] = {
        {PST_OPF_APPEND, DP_F_APPEND, 1u << PST_OP_WRITE},
        {PST_OPF_DSYNC, DP_F_DSYNC, 1u << PST_OP_WRITE | 1u << PST_OP_CHUNK_REPLACE},
        {PST_OPF_KEEP_SIZE, DP_F_KEEP_SIZE, 1u << PST_OP_ALLOCATE},
        {PST_OPF_GROW, DP_F_GROW, 1u << PST_OP_CHUNK_REPLACE},
        {PST_OPF_SET_SIZE, DP_F_SET_SIZE, 1u << PST_OP_CHUNK_REPLACE},
        {PST_OPF_IF_UNCHANGED, DP_F_IF_UNCHANGED, 1u << PST_OP_CHUNK_REPLACE},
        {PST_OPF_KILL_SETID, DP_F_KILL_SETID, MUTATING},
    };
    uint16_t f = 0;

    for (size_t i = 0; i < ARRAY_SIZE(map); i++)
        if (op->flags & map[i].op && map[i].kinds >> op->kind & 1)
            f |= map[i].dp;
    return f;
}

/* The capability has to be bound before the request; both go out in order. */
static int send_bind(struct rqueue *q, uint32_t number, uint64_t cap_id, const uint8_t *cap, size_t len)
{
    struct dp_request req = {.opcode = DP_BIND, .cap = number, .payload = cap, .payload_len = (uint32_t)len};
    struct rop *p = rq_rop(q);
    int r;

    if (!p)
        return -EAGAIN;
    p->opcode = DP_BIND;
    p->bind = number;
    p->cap_id = cap_id;
    req.tag = rq_tag(p);
    r = rq_conn_send(q, &req);
    if (r < 0) {
        rq_free(q, p);
        return r;
    }
    p->msgno = req.msgno;
    list_push_back(&q->sent, &p->link);
    return 0;
}

/*
 * A connection belongs to one session. It goes, and all that waits for answers on it is sent again, before the first
 * request of the next one: the server may not have ended the old session yet, and to it a capability of the next is
 * foreign there.
 */
static bool of_next_session(struct rqueue *q, uint64_t epoch)
{
    if (epoch <= q->conn.epoch)
        return false;
    rq_conn_end(q);
    return true;
}

static int bind_for(struct rqueue *q, struct rop *p, uint32_t *ret_number)
{
    const struct pst_op *op = p->op;
    uint8_t cap[DP_CAP_MAX];
    uint64_t id, epoch;
    size_t len = 0;
    bool is_new;
    int r = remote_cap(rcont_of(op->cont), op->ino, rights(op->kind), &id, &epoch, NULL, NULL);

    if (r == -EBADF && op->ctx.cred && rights(op->kind))
        return rq_fetch(p, rights(op->kind));
    if (r < 0)
        return r;
    if (of_next_session(q, epoch))
        return -EAGAIN;
    p->cap_id = id;
    p->cap_err = 0;
    *ret_number = rq_conn_bind_number(q, id, &is_new);
    if (!is_new)
        return 0;
    r = remote_cap(rcont_of(op->cont), op->ino, rights(op->kind), &id, &epoch, cap, &len);
    if (r == 0 && of_next_session(q, epoch))
        r = -EAGAIN;
    if (r == 0)
        r = q->conn.bind[*ret_number] == id ? send_bind(q, *ret_number, id, cap, len) : -EAGAIN;
    if (r < 0)
        rq_conn_unbind(q, *ret_number);
    return r;
}

static int place_bytes(struct rqueue *q, struct rop *p, struct dp_request *req, uint8_t inline_buf[DP_INLINE_MAX])
{
    const struct pst_op *op = p->op;
    size_t at = 0;

    if (!op->length || !has_bytes(op->kind))
        return 0;
    if (op->far)
        return of_next_session(q, op->far->epoch) ? -EAGAIN : rq_far_place(q, p, req);
    if (op->length > DP_INLINE_MAX) {
        if (p->run_len || p->nregions) /* cannot be: it was settled before it waits again */
            return -EIO;
        return rq_mem_prepare(q, p, req);
    }
    p->is_inline = true;
    req->flags |= DP_F_INLINE;
    if (!mutates(op->kind))
        return 0;
    for (uint32_t i = 0; i < op->iovcnt; at += op->iov[i].iov_len, i++)
        memcpy(inline_buf + at, op->iov[i].iov_base, op->iov[i].iov_len);
    req->payload = inline_buf;
    req->payload_len = (uint32_t)at;
    return 0;
}

static void fill(const struct rop *p, struct dp_request *req)
{
    const struct pst_op *op = p->op;

    *req = (struct dp_request){.tag = rq_tag(p), .opcode = p->opcode, .flags = flags(op)};
    if (op->kind != PST_OP_SYNCFS)
        req->ino = op->ino;
    if (op->kind != PST_OP_FSYNC && op->kind != PST_OP_SYNCFS && op->kind != PST_OP_ATTR && !(req->flags & DP_F_APPEND))
        req->offset = op->offset;
    if (has_bytes(op->kind) || op->kind == PST_OP_PUNCH || op->kind == PST_OP_ALLOCATE)
        req->length = op->length;
    if (op->kind == PST_OP_CHUNK_REPLACE) {
        req->version = op->version;
        req->new_size = req->flags & (DP_F_GROW | DP_F_SET_SIZE) ? op->new_size : 0;
        req->meta_len = (uint8_t)op->meta_len;
        memcpy(req->meta, op->meta, op->meta_len);
    }
}

/* Slot and sequence: the operation's own, under its origin's number, or of this queue. */
static int number(struct rqueue *q, struct rop *p, struct dp_request *req)
{
    const struct pst_reqid *id = &p->op->ctx.id;
    int r;

    if (!id->seq) {
        r = rq_slot(q, p);
        req->slot = p->slot - 1;
        req->seq = p->seq;
        return r;
    }
    req->origin = (uint16_t)session_origin_number(q->r->session, id->client, q->conn.epoch);
    if (!req->origin) {
        if (!of_next_session(q, session_epoch(q->r->session)))
            return -ESTALE; /* the client has left */
        return -EAGAIN;
    }
    p->is_origins = true;
    req->slot = id->slot;
    req->seq = id->seq;
    return 0;
}

int rq_wire_send(struct rqueue *q, struct rop *p)
{
    uint8_t inline_buf[DP_INLINE_MAX];
    struct dp_request req;
    int r;

    p->opcode = rq_opcode(p->op);
    p->length = p->op->length;
    p->is_inline = false;
    fill(p, &req);
    if (mutates(p->op->kind)) {
        if (!session_is_sound(q->r->session, q->conn.epoch)) {
            rq_conn_end(q); /* in the next session */
            return -EAGAIN;
        }
        r = number(q, p, &req);
        if (r < 0)
            return r;
    }
    r = bind_for(q, p, &req.cap);
    if (r == 0 && syncs(p->op) && !p->is_marked) {
        p->is_marked = true;
        p->mark = remote_mark(rcont_of(p->op->cont));
    }
    if (r == 0)
        r = place_bytes(q, p, &req, inline_buf);
    if (r == 0) {
        r = rq_conn_send(q, &req);
        if (r < 0) {
            rq_mem_release_rop(q, p);
        } else {
            p->msgno = req.msgno;
            p->epoch = q->conn.epoch;
            if (p->is_far)
                p->op->far->settled = false;
        }
    }
    return r == -ENOKEY ? -EBADF : r;
}

/* ---- receiving ---- */

static void scatter(const struct pst_op *op, const uint8_t *from, uint64_t len)
{
    for (uint32_t i = 0; i < op->iovcnt && len; i++) {
        size_t n = min_u64(op->iov[i].iov_len, len);
        memcpy(op->iov[i].iov_base, from, n);
        from += n;
        len -= n;
    }
}

/*
 * Does the reply fit its request? What a correct server never breaks. A chunk's replacement is made anew when it is
 * tried again, and need not be as long as the one whose recorded answer comes.
 */
static bool fits(const struct rop *p, const struct dp_reply *y)
{
    if (y->msgno != p->msgno || y->opcode != p->opcode || y->status > 0 || y->status < -4095)
        return false;
    if (y->status == 0 && y->result > p->length &&
        (p->opcode == DP_READ || p->opcode == DP_WRITE || p->opcode == DP_CHUNK_READ))
        return false;
    if (y->status == 0 && p->opcode == DP_CHUNK_REPLACE && y->result > DP_CHUNK_MAX)
        return false;
    return !p->is_inline || y->status < 0 || (p->opcode != DP_READ && p->opcode != DP_CHUNK_READ) ||
           y->payload_len == y->result;
}

static void take_result(struct rqueue *q, struct rop *p, const struct dp_reply *y)
{
    struct pst_op *op = p->op;

    if (op->kind == PST_OP_READ || op->kind == PST_OP_CHUNK_READ) {
        if (p->is_inline)
            scatter(op, y->payload, y->payload_len);
        else if (p->run_len)
            scatter(op, rq_mem_run(q, p), y->result);
    }
    if (op->flags & PST_OPF_APPEND && op->kind == PST_OP_WRITE)
        op->offset = y->offset;
    op->version = y->version;
    if (op->kind == PST_OP_CHUNK_READ) {
        op->meta_len = y->meta_len;
        memcpy(op->meta, y->meta, y->meta_len);
    }
    op->attr.ino = op->ino;
    op->attr.size = y->size;
    op->attr.used = y->used;
    op->attr.change = y->change;
    op->attr.mtime_ns = y->mtime_ns;
    if (mutates(op->kind) && !(op->flags & PST_OPF_DSYNC))
        remote_changed(rcont_of(op->cont), op->ino, q->conn.history);
}

static void bound(struct rqueue *q, struct rop *p, int status)
{
    if (status < 0) {
        log_debug("%s: a capability was refused: %s", session_addr(q->r->session), err_text(status));
        if (q->conn.bind[p->bind] == p->cap_id)
            rq_conn_unbind(q, p->bind);
        list_for_each (it, &q->sent) { /* what was sent behind it is refused for another reason */
            struct rop *x = list_entry(it, struct rop, link);
            if (x->cap_id == p->cap_id && x->op)
                x->cap_err = status;
        }
    }
    list_del(&p->link);
    rq_free(q, p);
}

void rq_wire_message(struct rqueue *q, const void *msg, size_t len)
{
    struct dp_reply y;
    struct rop *p = NULL;
    int r = dp_decode_reply(q->conn.mac, msg, len, &y);

    if (r == 0 && (y.tag & 0xffff) < q->nrops)
        p = &q->rops[y.tag & 0xffff];
    if (!p || rq_tag(p) != y.tag || !p->msgno || p->has_reply || !fits(p, &y)) {
        log_warn("%s: a data reply that fits no request: the connection is ended", session_addr(q->r->session));
        rq_conn_end(q);
        return;
    }
    q->conn.unanswered--;
    q->conn.retry_ns = RETRY_MIN_NS;
    if (p->is_third)
        rq_third_reply(q, p, &y);
    else
        rq_wire_answered(q, p, &y);
}

void rq_wire_answered(struct rqueue *q, struct rop *p, struct dp_reply *y)
{
    p->msgno = 0;
    if (p->opcode == DP_BIND) {
        bound(q, p, y->status);
    } else if (!p->op) { /* given up: only its memory and slot waited */
        rq_settle(q, p);
        list_del(&p->link);
        rq_free(q, p);
    } else {
        if (p->is_far)
            p->op->far->settled = y->status == 0 || y->offset == DP_SETTLED;
        if (y->status == 0)
            take_result(q, p, y);
        else if (y->status == -ESTALE && p->opcode == DP_CHUNK_REPLACE)
            p->op->version = y->version; /* what is there instead */
        else if (y->status == -EAGAIN || y->status == -ECONNRESET)
            y->status = -EIO; /* not what an operation ends with */
        if (y->status == -EACCES && p->cap_err == -EKEYREVOKED)
            y->status = -EKEYREVOKED;
        /* Bound and alive it may still not reach to what was asked: that is no reason to have another. */
        if (y->status == -EKEYREVOKED || (y->status == -EACCES && p->cap_err < 0))
            remote_revoked(rcont_of(p->op->cont), p->op->ino, rights(p->op->kind), p->cap_id);
        if (y->status == 0 && syncs(p->op))
            y->status = remote_synced(rcont_of(p->op->cont), p->op->ino, p->mark, q->conn.history);
        list_del(&p->link);
        rq_settle(q, p);
        rq_finish(q, p, y->status < 0 ? y->status : (int64_t)y->result);
    }
}

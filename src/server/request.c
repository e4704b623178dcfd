/*
 * One request from its checks to its answer.
 *
 * A recorded change is the newest try of its slot first (control/once.h): it may wait for an earlier one's end (held),
 * or be overtaken by a later one before it is in the store, and then ends without effect and without an answer.
 *
 *   READ           buffers -> turn -> store reads each part -> RMA writes to the client -> answer
 *   WRITE          buffers -> RMA reads from the client -> turn -> one store write -> answer
 *   CHUNK_READ     buffers -> turn -> one store read -> RMA writes -> answer
 *   CHUNK_REPLACE  as WRITE
 *
 * With EXPORTED the client's memory is mapped here: the bytes are copied from or to the buffers instead of RMA, or, for
 * a store that only moves them (pst_store_moves_only), it works in that memory, without buffers.
 *
 * With THIRD the RMA goes over another connection (third.c); or, in an agent, all of it is the store's business.
 *
 *   the others     turn -> store operation -> answer
 *
 * All buffers of a request are taken at once, in the order of arrival: nobody holds some while it waits for more. The
 * answer is sent after the RMA writes were begun, on the same connection, so it arrives after their bytes (fabric.h).
 * If the connection ends, what the store has begun goes on, and nothing is answered.
 */
#include "data.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

/* ---- the store's side ---- */

static void submit(struct shard *s, struct part *p)
{
    int e;

    p->req->refs++;
    e = list_empty(&s->backlog) ? pst_queue_submit(s->queue, &p->op) : -EAGAIN;
    if (e == -EAGAIN) {
        list_push_back(&s->backlog, &p->op.link);
    } else if (e < 0) {
        p->op.result = e;
        req_op_done(&p->op);
    }
}

void req_submit_backlog(struct shard *s)
{
    while (!list_empty(&s->backlog)) {
        struct pst_op *op = list_entry(s->backlog.next, struct pst_op, link);
        int e;
        list_del(&op->link);
        e = pst_queue_submit(s->queue, op);
        if (e == -EAGAIN) {
            list_push_front(&s->backlog, &op->link);
            return;
        }
        if (e < 0) {
            op->result = e;
            req_op_done(op);
        }
    }
}

static enum pst_op_kind kind_of(uint8_t opcode)
{
    static const enum pst_op_kind kinds[DP_OPCODES] = {
        [DP_READ] = PST_OP_READ,
        [DP_WRITE] = PST_OP_WRITE,
        [DP_PUNCH] = PST_OP_PUNCH,
        [DP_ALLOCATE] = PST_OP_ALLOCATE,
        [DP_SEEK_DATA] = PST_OP_SEEK_DATA,
        [DP_SEEK_HOLE] = PST_OP_SEEK_HOLE,
        [DP_FSYNC] = PST_OP_FSYNC,
        [DP_SYNCFS] = PST_OP_SYNCFS,
        [DP_CHUNK_READ] = PST_OP_CHUNK_READ,
        [DP_CHUNK_REPLACE] = PST_OP_CHUNK_REPLACE,
    };
    return kinds[opcode];
}

static uint32_t flags_of(uint16_t dp_flags)
{
    static const struct {
        uint16_t dp;
        uint32_t op;
    } map[] = {{DP_F_APPEND, PST_OPF_APPEND},
               {DP_F_DSYNC, PST_OPF_DSYNC},
               {DP_F_KEEP_SIZE, PST_OPF_KEEP_SIZE},
               {DP_F_GROW, PST_OPF_GROW},
               {DP_F_SET_SIZE, PST_OPF_SET_SIZE},
               {DP_F_IF_UNCHANGED, PST_OPF_IF_UNCHANGED},
               {DP_F_KILL_SETID, PST_OPF_KILL_SETID}};
    uint32_t f = 0;

    for (size_t i = 0; i < ARRAY_SIZE(map); i++)
        f |= dp_flags & map[i].dp ? map[i].op : 0;
    return f;
}

static void fill_op(struct part *p)
{
    struct req *r = p->req;
    const struct dp_request *dp = &r->dp;
    struct pst_op *op = &p->op;

    *op = (struct pst_op){
        .kind = kind_of(dp->opcode),
        .flags = flags_of(dp->flags) | (sess_keeps_setid(r->conn->sess) ? 0 : PST_OPF_KILL_SETID),
        .cont = sess_cont_store(r->cont),
        .ino = dp->ino,
        .offset = dp->offset,
        .length = dp->length,
        .version = dp->version,
        .new_size = dp->new_size,
        .meta_len = dp->meta_len,
        .ctx = {.cred = r->bearer ? &r->bearer->cred : NULL,
                .id = {.slot = dp->slot, .seq = dp->seq},
                .trace = dp->tag >> TRACE_SHIFT},
        .user = p,
    };
    list_init(&op->link);
    if (dp->seq)
        memcpy(op->ctx.id.client, once_of(&r->once), sizeof op->ctx.id.client);
    memcpy(op->meta, dp->meta, dp->meta_len);
}

/* A later try of the request was seen: nobody waits for this one, and its connection was given up. */
static void overtaken(struct req *r)
{
    ctl_refuse(r->conn->shard->srv->ctl, REFUSE_OVERTAKEN);
    log_debug("data connection from %s is ended: its requests came again over a later one", r->conn->peer);
    conn_end(r->conn);
    req_answered(r);
}

/* One operation over all parts. */
static void submit_whole(struct req *r)
{
    struct part *p = &r->parts[0];

    if (!once_commit(&r->once)) {
        overtaken(r);
        return;
    }
    fill_op(p);
    if (req_has_data(r)) {
        p->op.far = r->is_far ? &r->far : NULL;
        p->op.iov = r->in_place ? r->mapped : r->iov ? r->iov : &p->iov;
        p->op.iovcnt = r->in_place ? r->nexports : r->nparts;
    }
    r->ops_left = 1;
    submit(r->conn->shard, p);
}

static void submit_parts(struct req *r)
{
    r->ops_left = r->nparts;
    r->refs++; /* a part may come back at once */
    for (uint32_t i = 0; i < r->nparts; i++) {
        struct part *p = &r->parts[i];
        fill_op(p);
        p->op.offset += p->offset;
        p->op.length = p->len;
        p->op.iov = &p->iov;
        p->op.iovcnt = 1;
        submit(r->conn->shard, p);
    }
    req_unref(r);
}

static void to_store(struct req *r)
{
    if (r->dp.opcode == DP_READ && !r->in_place)
        submit_parts(r);
    else
        submit_whole(r);
}

/* All that the request needs of its client and of its own tenant is there. */
void req_ask_turn(struct req *r)
{
    struct shard *s = r->conn->shard;

    if (turn_ask(r, &s->tenant->share, req_has_data(r) ? r->dp.length : 0))
        to_store(r);
    else
        list_push_back(&s->asking, &r->link);
}

int req_take_turns(struct shard *s)
{
    struct req *r;
    int n = 0;

    for (; (r = turn_next(s)); n++) {
        list_del(&r->link);
        to_store(r);
    }
    return n;
}

/* ---- what the store has read ---- */

/* All parts of a READ are there: as many bytes as are there without a gap. */
static void answer_read(struct req *r)
{
    struct dp_reply *y = &r->reply;

    *y = (struct dp_reply){0};
    for (uint32_t i = 0; i < r->nparts; i++) {
        if (r->parts[i].got < 0) {
            y->status = (int32_t)r->parts[i].got;
            y->result = 0;
            break;
        }
        y->result += (uint64_t)r->parts[i].got;
        if (r->parts[i].got < r->parts[i].len)
            break;
    }
    /* The file has grown meanwhile, and bytes behind a gap are on their way: "nothing" would give their place back. */
    if (y->status == 0 && y->result == 0 && r->third && r->moved)
        y->status = -ENOTCONN;
    if (y->status == 0 && req_is_inline(r)) {
        y->payload = r->parts[0].buf->data;
        y->payload_len = (uint32_t)y->result;
    }
    req_finish(r);
}

static void read_done(struct part *p)
{
    struct req *r = p->req;

    p->got = p->op.result;
    if (p->got > p->len)
        p->got = -EIO; /* an engine's bug must not reach beyond the client's memory */
    if (p->got > 0 && !req_is_inline(r) && r->conn->fab)
        req_move(p, (uint32_t)p->got);
    if (--r->ops_left == 0)
        answer_read(r);
}

static void chunk_read_done(struct req *r, struct pst_op *op)
{
    uint64_t left;

    op->result = op->result > 0 ? (int64_t)min_u64((uint64_t)op->result, r->dp.length) : op->result;
    left = op->result > 0 ? (uint64_t)op->result : 0;
    for (uint32_t i = 0; i < r->nparts && left > 0 && !req_is_inline(r) && r->conn->fab; i++) {
        uint32_t n = (uint32_t)min_u64(left, r->parts[i].len);
        req_move(&r->parts[i], n);
        left -= n;
    }
    req_answer_op(r, op);
}

void req_op_done(struct pst_op *op)
{
    struct part *p = op->user;
    struct req *r = p->req;

    if (r->dp.opcode == DP_READ)
        read_done(p);
    else if (r->dp.opcode == DP_CHUNK_READ)
        chunk_read_done(r, op);
    else
        req_answer_op(r, op);
    req_unref(r);
}

/* The store takes the bytes from, or puts them into, the client's memory itself: one operation, no buffers. */
static void start_in_place(struct req *r)
{
    struct part *p = &r->part;

    r->in_place = true;
    r->nparts = 1;
    p->req = r;
    p->offset = 0;
    p->len = (uint32_t)r->dp.length;
    p->got = 0;
    req_ask_turn(r);
}

/* ---- buffers ---- */

/* Cuts the request into parts. */
static int plan(struct req *r)
{
    struct shard *s = r->conn->shard;
    uint64_t unit = r->dp.length <= SMALL_BYTES ? SMALL_BYTES : s->srv->cfg->data_buffer_bytes;
    uint64_t n = max_u64(1, (r->dp.length + unit - 1) / unit);

    if (unit != SMALL_BYTES && n > s->large_total)
        return -EMSGSIZE; /* larger than all of data.buffer_memory */
    if (n > 1) {
        r->parts = calloc(n, sizeof *r->parts);
        r->iov = calloc(n, sizeof *r->iov);
        if (!r->parts || !r->iov) {
            free(r->parts);
            r->parts = &r->part;
            return -ENOMEM;
        }
    }
    r->nparts = (uint32_t)n;
    for (uint32_t i = 0; i < r->nparts; i++) {
        struct part *p = &r->parts[i];
        p->req = r;
        p->offset = (uint32_t)(i * unit);
        p->len = (uint32_t)min_u64(unit, r->dp.length - p->offset);
        p->got = 0;
    }
    return 0;
}

static bool take_buffers(struct req *r)
{
    struct shard *s = r->conn->shard;
    struct fab_pool *pool = r->dp.length <= SMALL_BYTES ? s->small : s->large;

    for (uint32_t i = 0; i < r->nparts; i++) {
        struct part *p = &r->parts[i];
        p->buf = fab_buf_get(pool);
        if (!p->buf) {
            req_release_buffers(r);
            return false;
        }
        r->nbufs++;
        p->iov = (struct iovec){p->buf->data, p->len};
        if (r->iov)
            r->iov[i] = p->iov;
    }
    return true;
}

static void start_with_buffers(struct req *r)
{
    if (req_is_write(r) && r->dp.length > 0 && !req_is_inline(r)) {
        req_fetch(r);
        return;
    }
    if (req_is_write(r) && r->dp.length > 0)
        memcpy(r->parts[0].buf->data, r->stash ? r->stash : r->dp.payload, r->dp.length);
    req_ask_turn(r);
}

void req_start_waiting(struct shard *s)
{
    while (!list_empty(&s->waiting)) {
        struct req *r = list_entry(s->waiting.next, struct req, link);
        if (!take_buffers(r))
            return;
        list_del(&r->link);
        start_with_buffers(r);
    }
}

static void drop_from(struct list *l, const struct conn *c)
{
    list_for_each_safe (it, l) {
        struct req *r = list_entry(it, struct req, link);
        if (r->conn == c) {
            list_del(&r->link);
            req_answered(r);
        }
    }
}

void req_drop_waiting(struct conn *c)
{
    drop_from(&c->shard->waiting, c);
    drop_from(&c->shard->held, c);
    drop_from(&c->shard->asking, c);
}

/* The message's bytes are only lent: keeps them for a request that waits. */
static bool keep_payload(struct req *r)
{
    if (r->stash || !req_is_write(r) || !req_is_inline(r) || !r->dp.length)
        return true;
    r->stash = malloc(r->dp.length);
    if (r->stash)
        memcpy(r->stash, r->dp.payload, r->dp.length);
    return r->stash != NULL;
}

static void start_data(struct req *r)
{
    struct shard *s = r->conn->shard;
    int e;

    if (req_is_exported(r) && !req_use_exports(r)) {
        req_answered(r);
        return;
    }
    if (req_is_third(r) && !third_use(r)) {
        req_answer(r, -ENOTCONN);
        return;
    }
    if (r->is_far || (req_is_exported(r) && pst_store_moves_only(s->tenant->store))) {
        start_in_place(r);
        return;
    }
    e = plan(r);
    if (e < 0) {
        req_answer(r, e);
        return;
    }
    if (list_empty(&s->waiting) && take_buffers(r)) {
        start_with_buffers(r);
        return;
    }
    if (!keep_payload(r)) {
        req_answer(r, -ENOMEM);
        return;
    }
    stat_add(&s->stats.waits, 1);
    list_push_back(&s->waiting, &r->link);
}

static void go_on(struct req *r)
{
    if (r->checked < 0) {
        req_answer(r, r->checked);
    } else if (req_has_data(r)) {
        start_data(r);
    } else {
        r->nparts = 1;
        r->part.req = r;
        req_ask_turn(r);
    }
}

/*
 * Goes on if its turn has come. What failed its check waits as well: told before an earlier try has ended, its failure
 * might be of something that then happens.
 */
static void take_turn(struct req *r)
{
    struct conn *c = r->conn;
    int e =
        once_begin(&r->once, c->sess, (uint32_t)r->dp.origin << ONCE_ORIGIN_SHIFT | r->dp.slot, r->dp.seq, c->number);

    if (e == 0) {
        go_on(r);
    } else if (e == -ESTALE) {
        req_answer(r, e);
    } else if (e == -ECONNABORTED) {
        overtaken(r);
    } else if (e == -EAGAIN && keep_payload(r)) {
        list_push_back(&c->shard->held, &r->link);
    } else { /* without memory; not an answer, which no earlier try would have to heed */
        log_error("out of memory: data connection from %s is ended", c->peer);
        conn_end(c);
        req_answered(r);
    }
}

void req_retry_held(struct shard *s)
{
    struct list again = LIST_INIT(again), *l;

    list_splice_back(&again, &s->held);
    while ((l = list_pop_front(&again)))
        take_turn(list_entry(l, struct req, link));
}

void req_run(struct req *r)
{
    struct conn *c = r->conn;

    switch (r->dp.opcode) {
    case DP_PING:
        req_answer(r, 0);
        return;
    case DP_BIND:
        req_answer(r, check_bind(c, &r->dp));
        return;
    case DP_UNBIND:
        req_answer(r, check_unbind(c, &r->dp));
        return;
    default:
        break;
    }
    r->checked = check_request(r);
    if (r->dp.seq) /* only what changes something has one */
        take_turn(r);
    else
        go_on(r);
}

#include "cf_queue.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define DEPTH_MAX  4096u
#define REAP_BATCH 32

static struct cf_queue *queue_of(struct pst_queue *q)
{
    return container_of(q, struct cf_queue, q);
}

/* ---- open, close ---- */

static void free_queue(struct cf_queue *q)
{
    if (q->next)
        pst_queue_close(q->next);
    if (q->wake >= 0)
        close(q->wake);
    if (q->epoll >= 0)
        close(q->epoll);
    codec_ctx_done(&q->ctx);
    pthread_mutex_destroy(&q->lock);
    free(q->frames);
    free(q);
}

static void init_frames(struct cf_queue *q)
{
    for (uint32_t i = 0; i < q->depth; i++) {
        struct cf_frame *f = &q->frames[i];
        f->q = q;
        list_init(&f->low.link);
        for (uint32_t k = 0; k < CF_WINDOW; k++) {
            f->parts[k].frame = f;
            list_init(&f->parts[k].low.link);
            list_init(&f->parts[k].wait.link);
        }
        list_push_back(&q->free, &f->link);
    }
}

static int cq_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    struct cf_queue *q = calloc(1, sizeof *q);
    int r;

    if (!q)
        return -ENOMEM;
    q->q.store = st;
    q->cf = container_of(st, struct cf, f.st);
    q->depth = depth;
    list_init(&q->free);
    list_init(&q->done);
    list_init(&q->unsent);
    list_init(&q->granted);
    pthread_mutex_init(&q->lock, NULL);
    q->epoll = epoll_create1(EPOLL_CLOEXEC);
    q->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    q->frames = calloc(depth, sizeof *q->frames);
    r = q->epoll < 0 || q->wake < 0 ? -errno : q->frames ? codec_ctx_init(&q->ctx) : -ENOMEM;
    if (!r) /* a frame may have CF_WINDOW operations below; what finds no room there waits in `unsent` */
        r = pst_queue_open(st->next, (uint32_t)min_u64(depth + 2 * CF_WINDOW, DEPTH_MAX), &q->next);
    if (!r)
        r = filter_watch(q->epoll, q->wake);
    if (!r)
        r = filter_watch(q->epoll, pst_queue_fd(q->next));
    if (r) {
        free_queue(q);
        return r;
    }
    init_frames(q);
    *ret = &q->q;
    return 0;
}

static void cq_close(struct pst_queue *q)
{
    free_queue(queue_of(q));
}

/* ---- down and back ---- */

/* Was something sent? */
static bool drain_unsent(struct cf_queue *q)
{
    bool sent = false;

    while (!list_empty(&q->unsent)) {
        struct cf_low *low = list_entry(q->unsent.next, struct cf_low, link);
        int r = pst_queue_submit(q->next, &low->op);
        if (r == -EAGAIN && q->below)
            return sent;
        sent = true;
        list_del(&low->link);
        if (!r) {
            low->below = true;
            q->below++;
            continue;
        }
        low->op.result = r;
        low->back(low);
    }
    return sent;
}

void cf_send(struct cf_frame *f, struct cf_low *low, void (*back)(struct cf_low *low))
{
    low->frame = f;
    low->back = back;
    low->op.user = low;
    list_init(&low->op.link);
    list_push_back(&f->q->unsent, &low->link); /* sent by the loop that called us */
}

void cf_low_op(struct cf_frame *f, struct cf_low *low, enum pst_op_kind kind, uint64_t offset)
{
    low->op = (struct pst_op){
        .kind = kind,
        .cont = f->op->cont ? f->op->cont->next : NULL,
        .ino = f->op->ino,
        .offset = offset,
        .version = PST_VERSION_ANY,
        .flags = kind == PST_OP_CHUNK_REPLACE ? f->op->flags & PST_OPF_KILL_SETID : 0,
        .ctx = {.cred = f->op->ctx.cred, .trace = f->op->ctx.trace},
    };
}

void cf_done(struct cf_frame *f, int64_t result)
{
    f->op->result = result;
    list_push_back(&f->q->done, &f->link);
}

void cf_settle(struct cf_frame *f, int err)
{
    if (err && !f->err)
        f->err = err;
    f->under_way--;
    f->step(f);
}

/* ---- slots that others give ---- */

/* Under q->lock, or by the owner alone. */
static void signal_self(struct cf_queue *q)
{
    if (!q->signalled)
        eventfd_write(q->wake, 1);
    q->signalled = true;
}

static void granted(struct slot_wait *w)
{
    struct cf_part *p = container_of(w, struct cf_part, wait);
    struct cf_queue *q = p->frame->q;
    scoped_lock(&q->lock);

    list_push_back(&q->granted, &w->link);
    signal_self(q);
}

void cf_part_start(struct cf_part *p)
{
    struct cf_queue *q = p->frame->q;
    const struct pst_cont *c = p->frame->op->cont;

    p->busy = true;
    p->direct = NULL;
    p->out = NULL;
    p->redo = false;
    p->frame->under_way++;
    p->wait.key = (struct slot_key){c->info.id, p->frame->op->ino, p->chunk};
    p->wait.chunk_size = cf_chunk_size(c);
    p->wait.granted = granted;
    list_init(&p->wait.link);
    /* Also one that is there at once takes that way: a part never begins within the step that starts it. */
    if (slots_take(q->cf->slots, &p->wait))
        granted(&p->wait);
}

struct cf_part *cf_part_free(struct cf_frame *f)
{
    for (uint32_t i = 0; i < CF_WINDOW; i++)
        if (!f->parts[i].busy)
            return &f->parts[i];
    return NULL;
}

static bool take_granted(struct cf_queue *q)
{
    struct list now;
    bool some = false;

    list_init(&now);
    {
        scoped_lock(&q->lock);
        if (q->signalled) {
            eventfd_t v;
            eventfd_read(q->wake, &v);
            q->signalled = false;
        }
        list_splice_back(&now, &q->granted);
    }
    while (!list_empty(&now)) {
        struct slot_wait *w = list_entry(list_pop_front(&now), struct slot_wait, link);
        cf_part_granted(container_of(w, struct cf_part, wait));
        some = true;
    }
    return some;
}

/* ---- what is passed on as it is ---- */

static void passed_back(struct cf_low *low)
{
    struct pst_op *op = low->frame->op;

    op->offset = low->op.offset;
    op->attr = low->op.attr;
    op->version = low->op.version;
    low->frame->under_way--;
    cf_done(low->frame, low->op.result);
}

void cf_pass_on(struct cf_frame *f)
{
    cf_low_op(f, &f->low, f->op->kind, f->op->offset);
    f->low.op.flags = f->op->flags;
    f->low.op.length = f->op->length;
    f->low.op.ctx = f->op->ctx;
    f->under_way = 1;
    cf_send(f, &f->low, passed_back);
}

/* ---- what several kinds of operations do ---- */

void cf_peek(struct cf_frame *f, uint64_t chunk, void (*back)(struct cf_low *low))
{
    cf_low_op(f, &f->low, PST_OP_CHUNK_READ, chunk);
    f->under_way++;
    cf_send(f, &f->low, back);
}

bool cf_goes_on(struct cf_frame *f)
{
    if (!f->err && f->cancelled)
        f->err = -ECANCELED;
    if (f->err && !f->under_way)
        cf_done(f, f->err);
    return !f->err;
}

/* The chunk that a file would have last: no file has it. */
static uint64_t mark_chunk(const struct cf_frame *f)
{
    return PST_FILE_MAX / cf_size_of(f) - 1;
}

static void marked(struct cf_low *low)
{
    struct cf_frame *f = low->frame;

    f->under_way--;
    f->op->attr = low->op.attr;
    cf_done(f, low->op.result < 0 ? low->op.result : f->result);
}

void cf_mark(struct cf_frame *f)
{
    cf_low_op(f, &f->low, PST_OP_CHUNK_REPLACE, mark_chunk(f));
    f->low.op.version = 0;
    f->low.op.ctx.id = f->op->ctx.id;
    f->under_way++;
    cf_send(f, &f->low, marked);
}

static void probed(struct cf_low *low)
{
    struct cf_frame *f = low->frame;
    int64_t r = low->op.result;

    if (r == -ESTALE && low->op.version != CF_VERSION_NONE) {
        cf_settle(f, 0);
        return;
    }
    f->under_way--;
    f->op->attr = low->op.attr;
    if (r >= 0 && f->op->kind == PST_OP_WRITE && f->op->flags & PST_OPF_APPEND)
        f->op->offset = cf_replayed_end(f);
    cf_done(f, r < 0 ? r : f->result);
}

void cf_probe(struct cf_frame *f, uint64_t chunk, int64_t result)
{
    f->result = result;
    cf_low_op(f, &f->low, PST_OP_CHUNK_REPLACE, chunk == UINT64_MAX ? mark_chunk(f) : chunk);
    f->low.op.version = CF_VERSION_NONE;
    f->low.op.ctx.id = f->op->ctx.id;
    f->under_way++;
    cf_send(f, &f->low, probed);
}

static void attr_known(struct cf_low *low)
{
    struct cf_frame *f = low->frame;

    f->under_way--;
    f->op->attr = low->op.attr;
    cf_done(f, low->op.result);
}

static void attr_begin(struct cf_frame *f)
{
    cf_low_op(f, &f->low, PST_OP_ATTR, 0);
    f->under_way++;
    cf_send(f, &f->low, attr_known);
}

/* Another filter's chunks have no room for their meta data beside ours. */
static void refuse_chunk(struct cf_frame *f)
{
    cf_done(f, -EOPNOTSUPP);
}

static void begin(struct cf_frame *f)
{
    static void (*const by_kind[PST_OP_KINDS])(struct cf_frame * f) = {
        [PST_OP_READ] = cf_read_begin,         [PST_OP_WRITE] = cf_write_begin,    [PST_OP_PUNCH] = cf_punch_begin,
        [PST_OP_ALLOCATE] = cf_allocate_begin, [PST_OP_SEEK_DATA] = cf_seek_begin, [PST_OP_SEEK_HOLE] = cf_seek_begin,
        [PST_OP_FSYNC] = cf_pass_on,           [PST_OP_SYNCFS] = cf_pass_on,       [PST_OP_CHUNK_READ] = refuse_chunk,
        [PST_OP_CHUNK_REPLACE] = refuse_chunk, [PST_OP_ATTR] = attr_begin,
    };

    by_kind[f->op->kind](f);
}

/* ---- the table's entries ---- */

static int cq_submit(struct pst_queue *pq, struct pst_op *op)
{
    struct cf_queue *q = queue_of(pq);
    struct list *l = list_pop_front(&q->free);
    struct cf_frame *f;

    if (!l)
        return -EAGAIN;
    f = list_entry(l, struct cf_frame, link);
    f->op = op;
    f->err = 0;
    f->under_way = 0;
    f->cancelled = f->replayed = false;
    f->state = 0;
    f->size = UINT64_MAX;
    q->in_flight++;
    begin(f);
    while (take_granted(q))
        ;
    drain_unsent(q);
    if (!list_empty(&q->done)) {
        scoped_lock(&q->lock);
        signal_self(q);
    }
    return 0;
}

static int hand_up(struct cf_queue *q, struct pst_op **ret_ops, int max)
{
    int n = 0;

    while (n < max && !list_empty(&q->done)) {
        struct cf_frame *f = list_entry(list_pop_front(&q->done), struct cf_frame, link);
        ret_ops[n++] = f->op;
        f->op = NULL;
        list_push_front(&q->free, &f->link);
        q->in_flight--;
    }
    return n;
}

/* 0: nothing moved, and the queue below was reaped after all that went there: its descriptor tells of what comes. */
static int sweep(struct cf_queue *q)
{
    struct pst_op *back[REAP_BATCH];
    int n;

    while (take_granted(q))
        drain_unsent(q);
    drain_unsent(q);
    n = pst_queue_reap(q->next, back, REAP_BATCH, 0); /* also when it has nothing of ours: it may have to be driven */
    for (int i = 0; i < n; i++) {
        struct cf_low *low = back[i]->user;
        q->below--;
        low->below = false;
        low->back(low);
    }
    while (take_granted(q))
        ;
    return drain_unsent(q) && n == 0 ? 1 : n;
}

static int cq_reap(struct pst_queue *pq, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    struct cf_queue *q = queue_of(pq);
    uint64_t start = timeout_ns && timeout_ns != UINT64_MAX ? now_ns() : 0;

    for (;;) {
        int r = sweep(q), n = hand_up(q, ret_ops, max);
        uint64_t spent = start ? now_ns() - start : 0;
        if (!list_empty(&q->done)) {
            scoped_lock(&q->lock);
            signal_self(q);
        }
        if (n || !q->in_flight)
            return n;
        if (r < 0)
            return r;
        if (r > 0)
            continue;
        if (timeout_ns != UINT64_MAX && spent >= timeout_ns)
            return 0;
        filter_sleep(q->epoll, timeout_ns == UINT64_MAX ? UINT64_MAX : timeout_ns - spent);
    }
}

static int cq_fd(struct pst_queue *q)
{
    return queue_of(q)->epoll;
}

static void cq_cancel(struct pst_queue *pq, struct pst_op *op)
{
    struct cf_queue *q = queue_of(pq);

    for (uint32_t i = 0; i < q->depth; i++) {
        struct cf_frame *f = &q->frames[i];
        if (f->op != op)
            continue;
        f->cancelled = true;
        if (f->low.below)
            pst_queue_cancel(q->next, &f->low.op);
        for (uint32_t k = 0; k < CF_WINDOW; k++)
            if (f->parts[k].low.below)
                pst_queue_cancel(q->next, &f->parts[k].low.op);
        return;
    }
}

void cf_queue_ops(struct pst_store_ops *ops)
{
    ops->queue_open = cq_open;
    ops->queue_close = cq_close;
    ops->queue_submit = cq_submit;
    ops->queue_reap = cq_reap;
    ops->queue_fd = cq_fd;
    ops->queue_cancel = cq_cancel;
    ops->queue_spread = NULL; /* the one that passes on is for struct filter_queue */
}

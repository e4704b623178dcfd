/*
 * A queue of the cache: what is passed on, what waits, what is fetched. All of it runs in the queue's owner, in submit
 * and reap; a frame that waits for a fetch of another queue is woken through `woken`.
 */
#include "cache.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#define DEPTH_MAX   4096u
#define REAP_BATCH  32
#define FETCHES_ADD 16u /* beside two for each operation */

static struct cache_queue *queue_of(struct pst_queue *q)
{
    return container_of(q, struct cache_queue, q);
}

/* ---- open, close ---- */

static void free_queue(struct cache_queue *q)
{
    if (q->next)
        pst_queue_close(q->next);
    for (size_t i = 0; i < 3; i++) {
        int fd = (int[]){q->wake, q->timer, q->epoll}[i];
        if (fd >= 0)
            close(fd);
    }
    free(q->frames);
    free(q->fetches);
    free(q);
}

static void init_lists(struct cache_queue *q, uint32_t nfetches)
{
    struct list *lists[] = {&q->free, &q->done, &q->unsent, &q->unsent_ahead, &q->fetch_free, &q->fetch_active,
                            &q->woken};

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        list_init(lists[i]);
    for (uint32_t i = 0; i < q->depth; i++) {
        q->frames[i].q = q;
        list_init(&q->frames[i].wait);
        list_init(&q->frames[i].low.link);
        list_push_back(&q->free, &q->frames[i].link);
    }
    for (uint32_t i = 0; i < nfetches; i++) {
        q->fetches[i].q = q;
        list_init(&q->fetches[i].waiters);
        list_init(&q->fetches[i].low.link);
        list_push_back(&q->fetch_free, &q->fetches[i].link);
    }
    q->nfree = nfetches;
}

static int open_fds(struct cache_queue *q)
{
    int r;

    q->epoll = epoll_create1(EPOLL_CLOEXEC);
    q->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    q->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (q->epoll < 0 || q->wake < 0 || q->timer < 0)
        return -errno;
    r = filter_watch(q->epoll, q->wake);
    return r ? r : filter_watch(q->epoll, q->timer);
}

static int cq_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    struct cache_queue *q = calloc(1, sizeof *q);
    uint32_t nfetches = 2 * depth + FETCHES_ADD;
    int r;

    if (!q)
        return -ENOMEM;
    q->q.store = st;
    q->c = cache_of(st);
    q->depth = depth;
    q->wake = q->timer = q->epoll = -1;
    q->frames = calloc(depth, sizeof *q->frames);
    q->fetches = calloc(nfetches, sizeof *q->fetches);
    r = q->frames && q->fetches ? open_fds(q) : -ENOMEM;
    if (!r) /* what finds no room below waits in `unsent` */
        r = pst_queue_open(st->next, (uint32_t)min_u64(depth + CACHE_AHEAD + FETCHES_ADD, DEPTH_MAX), &q->next);
    if (!r)
        r = filter_watch(q->epoll, pst_queue_fd(q->next));
    if (r) {
        free_queue(q);
        return r;
    }
    init_lists(q, nfetches);
    *ret = &q->q;
    return 0;
}

/* ---- down and back ---- */

void cache_signal(struct cache_queue *q)
{
    if (!atomic_exchange(&q->signalled, true))
        eventfd_write(q->wake, 1);
}

void cache_send(struct cache_queue *q, struct cache_low *low, struct pst_op *op,
                void (*back)(struct cache_queue *q, struct cache_low *low))
{
    low->op = op;
    low->back = back;
    op->user = low;
    list_push_back(&q->unsent, &low->link);
}

static bool drain(struct cache_queue *q, struct list *unsent)
{
    bool sent = false;

    while (!list_empty(unsent)) {
        struct cache_low *low = list_entry(unsent->next, struct cache_low, link);
        int r = pst_queue_submit(q->next, low->op);
        if (r == -EAGAIN && q->below)
            return sent;
        sent = true;
        list_del(&low->link);
        if (!r) {
            low->below = true;
            q->below++;
            continue;
        }
        low->op->result = r;
        low->back(q, low);
    }
    return sent;
}

/* What somebody waits for goes first. Was something sent? */
static bool send_unsent(struct cache_queue *q)
{
    bool sent = drain(q, &q->unsent);

    return list_empty(&q->unsent) ? drain(q, &q->unsent_ahead) || sent : sent;
}

void cache_done(struct cache_frame *f, int64_t result)
{
    f->op->result = result;
    f->op->cont = f->cont;
    f->op->user = f->user;
    list_push_back(&f->q->done, &f->link);
}

/* ---- what is passed on ---- */

static bool changes(enum pst_op_kind k)
{
    return k == PST_OP_WRITE || k == PST_OP_PUNCH || k == PST_OP_ALLOCATE || k == PST_OP_CHUNK_REPLACE;
}

/*
 * A change is over. Its attributes are those of the moment of the change, or, of a request that was repeated, of a
 * moment before: then, and if it failed, which it may have done after the change, the next reader looks.
 */
static void changed(struct cache *c, const struct cache_frame *f, struct cache_obj *o)
{
    const struct pst_op *op = f->op;

    if (op->result >= 0 && op->attr.change > o->change && o->history == f->history)
        cache_note(c, o, &op->attr, f->since, f->history);
    else
        cache_doubt(c, o, now_ns());
    cache_obj_idle(c, o);
}

/* Its answer has attributes, and whoever gets them may keep what he reads then as of them. */
static bool shows(const struct pst_op *op)
{
    return op->result >= 0 && (op->kind == PST_OP_CHUNK_READ || op->kind == PST_OP_ATTR);
}

static void seen_in_passing(struct cache *c, const struct cache_frame *f)
{
    struct cache_obj *o;

    scoped_lock(&c->lock);
    o = cache_find(c, f->cont->info.id, f->op->ino);
    if (o && changes(f->op->kind))
        changed(c, f, o);
    else if (o)
        cache_note(c, o, &f->op->attr, f->since, f->history);
}

static void passed_back(struct cache_queue *q, struct cache_low *low)
{
    struct cache_frame *f = container_of(low, struct cache_frame, low);

    if (changes(f->op->kind) || shows(f->op))
        seen_in_passing(q->c, f);
    cache_done(f, f->op->result);
}

void cache_pass(struct cache_frame *f)
{
    f->op->cont = f->cont ? f->cont->next : NULL;
    f->since = now_ns();
    f->history = pst_store_history(f->q->c->f.st.next);
    cache_send(f->q, &f->low, f->op, passed_back);
}

/* ---- frames that wait for fetches ---- */

static bool take_woken(struct cache_queue *q)
{
    struct list now;
    bool some = false;

    if (!atomic_exchange(&q->woken_any, false))
        return false;
    list_init(&now);
    {
        scoped_lock(&q->c->lock);
        list_splice_back(&now, &q->woken);
    }
    for (struct list *l; (l = list_pop_front(&now)); some = true)
        cache_read_on(list_entry(l, struct cache_frame, wait));
    return some;
}

static void clear_signal(struct cache_queue *q)
{
    eventfd_t v;

    if (atomic_load(&q->signalled) && !eventfd_read(q->wake, &v)) /* else it is still to come, and is read then */
        atomic_store(&q->signalled, false);
}

/*
 * A fetch is driven by the owner of its queue, who may be held up. Whoever waits for one of another queue for too long
 * reads by itself.
 */
static void check_waiting(struct cache_queue *q)
{
    uint64_t v, now;

    if (!q->timer_set || read(q->timer, &v, sizeof v) < 0)
        return;
    q->timer_set = false;
    now = now_ns();
    for (uint32_t i = 0; i < q->depth && q->nwaiting; i++) {
        struct cache_frame *f = &q->frames[i];
        bool waits = false;
        if (!f->op)
            continue;
        {
            scoped_lock(&q->c->lock);
            waits = !list_empty(&f->wait) && f->foreign && now - f->since >= CACHE_FOREIGN_NS;
            if (waits)
                list_del(&f->wait);
        }
        if (!waits)
            continue;
        cache_read_leave(f);
        cache_pass(f);
    }
}

static void set_timer(struct cache_queue *q)
{
    const struct itimerspec t = {.it_value = {.tv_sec = CACHE_FOREIGN_NS / NSEC_PER_SEC, .tv_nsec = 1}};

    if (!q->nwaiting || q->timer_set)
        return;
    q->timer_set = true;
    timerfd_settime(q->timer, 0, &t, NULL);
}

/* ---- the table's entries ---- */

static void take_back(struct cache_queue *q, struct pst_op **ops, int n)
{
    for (int i = 0; i < n; i++) {
        struct cache_low *low = ops[i]->user;
        q->below--;
        low->below = false;
        low->back(q, low);
    }
}

static int cq_submit(struct pst_queue *pq, struct pst_op *op)
{
    struct cache_queue *q = queue_of(pq);
    struct list *l = list_pop_front(&q->free);
    struct cache_frame *f;

    if (!l)
        return -EAGAIN;
    f = list_entry(l, struct cache_frame, link);
    f->op = op;
    f->cont = op->cont;
    f->user = op->user;
    f->tries = f->n = f->at = 0;
    f->err = 0;
    f->since = 0;
    q->in_flight++;
    if (op->kind == PST_OP_READ)
        cache_read(f);
    else
        cache_pass(f);
    send_unsent(q);
    set_timer(q);
    if (!list_empty(&q->done))
        cache_signal(q);
    return 0;
}

/* 0: nothing moved, and the queue below was reaped after all that went there. */
static int sweep(struct cache_queue *q)
{
    struct pst_op *back[REAP_BATCH];
    int n;

    clear_signal(q);
    check_waiting(q);
    while (take_woken(q))
        ;
    send_unsent(q);
    n = pst_queue_reap(q->next, back, REAP_BATCH, 0); /* also when it has nothing of ours: it may have to be driven */
    take_back(q, back, n);
    while (take_woken(q))
        ;
    return send_unsent(q) && n == 0 ? 1 : n;
}

static int hand_up(struct cache_queue *q, struct pst_op **ret_ops, int max)
{
    int n = 0;

    while (n < max && !list_empty(&q->done)) {
        struct cache_frame *f = list_entry(list_pop_front(&q->done), struct cache_frame, link);
        ret_ops[n++] = f->op;
        f->op = NULL;
        list_push_front(&q->free, &f->link);
        q->in_flight--;
    }
    if (!list_empty(&q->done))
        cache_signal(q);
    return n;
}

static int cq_reap(struct pst_queue *pq, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    struct cache_queue *q = queue_of(pq);
    uint64_t start = timeout_ns && timeout_ns != UINT64_MAX ? now_ns() : 0;

    for (;;) {
        int r = sweep(q), n = hand_up(q, ret_ops, max);
        uint64_t spent = start ? now_ns() - start : 0;
        set_timer(q);
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

static void cancel_frame(struct cache_queue *q, struct cache_frame *f)
{
    bool waits;

    if (f->low.below) {
        pst_queue_cancel(q->next, f->op);
        return;
    }
    if (!list_empty(&f->low.link)) {
        list_del(&f->low.link);
        cache_done(f, -ECANCELED);
        return;
    }
    {
        scoped_lock(&q->c->lock);
        waits = !list_empty(&f->wait);
        list_del(&f->wait);
    }
    if (!waits) /* it is done already */
        return;
    cache_read_leave(f);
    cache_done(f, -ECANCELED);
}

static void cq_cancel(struct pst_queue *pq, struct pst_op *op)
{
    struct cache_queue *q = queue_of(pq);

    for (uint32_t i = 0; i < q->depth; i++)
        if (q->frames[i].op == op) {
            cancel_frame(q, &q->frames[i]);
            break;
        }
    if (!list_empty(&q->done))
        cache_signal(q);
}

/* Nothing of a submitter is left; what is fetched ahead, or for others, ends soon. */
static void cq_close(struct pst_queue *pq)
{
    struct cache_queue *q = queue_of(pq);
    struct pst_op *back[REAP_BATCH];

    list_for_each_safe (it, &q->fetch_active) {
        struct cache_fetch *x = list_entry(it, struct cache_fetch, link);
        if (x->low.below) {
            pst_queue_cancel(q->next, &x->op);
            continue;
        }
        list_del(&x->low.link);
        cache_fetch_over(x, -ECANCELED);
    }
    while (q->below) {
        int n = pst_queue_reap(q->next, back, REAP_BATCH, UINT64_MAX);
        take_back(q, back, n);
        if (n < 0)
            break;
    }
    pst_queue_close(q->next); /* after it nothing below touches the memory any more */
    q->next = NULL;
    list_for_each_safe (it, &q->fetch_active)
        cache_fetch_over(list_entry(it, struct cache_fetch, link), -EIO);
    free_queue(q);
}

void cache_queue_ops(struct pst_store_ops *ops)
{
    ops->queue_open = cq_open;
    ops->queue_close = cq_close;
    ops->queue_submit = cq_submit;
    ops->queue_reap = cq_reap;
    ops->queue_fd = cq_fd;
    ops->queue_cancel = cq_cancel;
    ops->queue_spread = NULL; /* the one that passes on is for struct filter_queue */
}

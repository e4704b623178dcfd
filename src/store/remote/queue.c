/* Lists, timers and sleeping of a data queue. */
#include "queue.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

/* A slot whose request was given up is left alone for so long, beyond the end of its connection. */
#define SLOT_REST_NS    (120 * NSEC_PER_SEC)
#define CONTROL_RETRY_NS (50 * NSEC_PER_MSEC)
/* With more requests given up than this the connection is made anew. */
#define GIVEN_UP_MAX (ROPS_EXTRA / 4)

static struct rqueue *of(struct pst_queue *q)
{
    return container_of(q, struct rqueue, q);
}

struct rop *rq_rop(struct rqueue *q)
{
    struct list *l = list_pop_front(&q->free);
    struct rop *p = l ? list_entry(l, struct rop, link) : NULL;
    uint32_t index;

    if (!p)
        return NULL;
    index = p->index;
    *p = (struct rop){.index = index, .q = q};
    list_init(&p->link);
    list_init(&p->age);
    list_init(&p->mail);
    return p;
}

void rq_free(struct rqueue *q, struct rop *p)
{
    list_push_front(&q->free, &p->link);
}

/* For the host's log, or the agent's about its server. */
static void tell(const struct rqueue *q, const struct rop *p, int64_t result)
{
    uint64_t ns = now_ns() - (p->deadline_ns - session_timeout_ns(q->r->session));
    int status = result < 0 ? (int)result : 0;

    if (trace_tells(status, ns))
        trace_end(LOG_COMPONENT, false, p->trace, status, ns, "%s of object %llu, offset %llu, %llu bytes, at %s",
                  dp_opcode_name(rq_opcode(p->op)), (unsigned long long)p->op->ino, (unsigned long long)p->op->offset,
                  (unsigned long long)p->op->length, session_addr(q->r->session));
}

void rq_finish(struct rqueue *q, struct rop *p, int64_t result)
{
    tell(q, p, result);
    p->op->result = result;
    list_del(&p->age);
    list_push_back(&q->done, &p->link);
    if (result == -ETIMEDOUT)
        atomic_fetch_add_explicit(&q->r->timed_out, 1, memory_order_relaxed);
}

/* ---- slots ---- */

int rq_slot(struct rqueue *q, struct rop *p)
{
    uint64_t now = now_ns();

    if (p->slot)
        return 0;
    for (uint32_t i = 0; i < q->nslots; i++) {
        struct qslot *s = &q->slots[i];
        if (s->free_at_ns > now)
            continue;
        s->free_at_ns = UINT64_MAX;
        p->slot = s->number + 1;
        p->seq = session_slot_next(q->r->session, s->number);
        return 0;
    }
    return -EAGAIN;
}

static void slot_free(struct rqueue *q, struct rop *p, uint64_t at_ns)
{
    if (p->slot)
        q->slots[p->slot - 1 - q->slot_first].free_at_ns = at_ns;
    p->slot = 0;
}

void rq_settle(struct rqueue *q, struct rop *p)
{
    slot_free(q, p, 0);
    rq_mem_release_rop(q, p);
}

/* ---- giving up ---- */

static uint32_t length_of(const struct list *l)
{
    uint32_t n = 0;

    list_for_each (it, l)
        n++;
    return n;
}

/* An operation ends, and its request, a change that was sent, may still come. */
static void unknown_end(struct rqueue *q, const struct rop *p)
{
    if ((p->slot || p->is_origins) && p->epoch)
        session_give_up(q->r->session, p->epoch);
}

/*
 * The submitter gets its operation back. One that is not sent yet is simply over; a control request and one that names
 * the user's own memory come back as soon as that is safe.
 */
static void give_up(struct rqueue *q, struct rop *p, int err)
{
    if (p->ended)
        return;
    if (p->is_control) {
        if (p->is_begun && !session_forget(q->r->session, &p->async)) {
            p->ended = err; /* its answer is in the mailbox, or about to be */
            return;
        }
        list_del(&p->link);
        rq_finish(q, p, err);
        return;
    }
    if (p->is_fetching && !rq_fetch_leave(p)) {
        p->ended = err;
        return;
    }
    unknown_end(q, p);
    if (!p->msgno) { /* waiting; it may have been sent on an earlier connection */
        list_del(&p->link);
        slot_free(q, p, p->slot ? now_ns() + SLOT_REST_NS : 0);
        rq_finish(q, p, err);
        return;
    }
    if (p->nregions) {
        p->ended = err;
        rq_conn_end(q);
        return;
    }
    list_del(&p->link);
    {
        /* The rop stays behind with run and slot; the operation goes on in another one. */
        struct rop *back = rq_rop(q);
        if (!back) {
            list_push_back(&q->sent, &p->link);
            p->ended = err;
            rq_conn_end(q);
            return;
        }
        back->op = p->op;
        back->trace = p->trace;
        back->deadline_ns = p->deadline_ns;
        p->op = NULL;
        list_del(&p->age);
        list_push_back(&q->given_up, &p->link);
        rq_finish(q, back, err);
    }
    if (length_of(&q->given_up) > GIVEN_UP_MAX)
        rq_conn_end(q);
}

void rq_requeue(struct rqueue *q)
{
    struct list again = LIST_INIT(again);

    while (!list_empty(&q->given_up)) {
        struct rop *p = list_entry(list_pop_front(&q->given_up), struct rop, link);
        rq_mem_release_rop(q, p);
        slot_free(q, p, now_ns() + SLOT_REST_NS);
        rq_free(q, p);
    }
    while (!list_empty(&q->sent)) {
        struct rop *p = list_entry(list_pop_front(&q->sent), struct rop, link);
        rq_mem_release_rop(q, p);
        p->msgno = 0;
        if (p->opcode == DP_BIND) {
            rq_free(q, p);
        } else if (p->is_far && !p->ended) { /* not twice: the server may still be at the first, in that memory */
            unknown_end(q, p);
            slot_free(q, p, now_ns() + SLOT_REST_NS);
            rq_finish(q, p, -ENOTCONN);
        } else if (p->ended) {
            slot_free(q, p, now_ns() + SLOT_REST_NS);
            rq_finish(q, p, p->ended);
        } else {
            atomic_fetch_add_explicit(&q->r->retried, 1, memory_order_relaxed);
            list_push_back(&again, &p->link);
        }
    }
    list_splice_back(&again, &q->waiting);
    list_splice_back(&q->waiting, &again);
}

/* ---- the owner's calls ---- */

static bool by_control(const struct pst_op *op)
{
    uint64_t id, epoch;

    if (op->kind == PST_OP_SYNCFS)
        return true;
    /* Directories have no capability, and what is not open has none. */
    return op->kind == PST_OP_FSYNC && remote_cap(rcont_of(op->cont), op->ino, 0, &id, &epoch, NULL, NULL) != 0;
}

int remote_queue_submit(struct pst_queue *pq, struct pst_op *op)
{
    struct rqueue *q = of(pq);
    struct rop *p;

    if (q->count == q->depth)
        return -EAGAIN;
    p = rq_rop(q);
    if (!p)
        return -EAGAIN;
    q->count++;
    p->op = op;
    op->priv = p;
    p->trace = trace_for(op->ctx.trace);
    p->deadline_ns = now_ns() + session_timeout_ns(q->r->session);
    list_push_back(&q->ages, &p->age);
    if (q->broken) {
        rq_finish(q, p, q->broken);
        return 0;
    }
    p->is_control = by_control(op);
    list_push_back(p->is_control ? &q->control : &q->waiting, &p->link);
    return 0;
}

static void send_waiting(struct rqueue *q)
{
    while (!list_empty(&q->waiting) && rq_conn_can_send(q)) {
        struct rop *p = list_entry(q->waiting.next, struct rop, link);
        int r = rq_wire_send(q, p);
        if (r == -EAGAIN || r == -ENOTCONN)
            return;
        list_del(&p->link);
        if (r == 0) {
            list_push_back(&q->sent, &p->link);
        } else if (r == -EINPROGRESS) {
            list_push_back(&q->fetching, &p->link);
        } else if (r == -EBADF && p->op->kind == PST_OP_FSYNC) { /* closed meanwhile */
            p->is_control = true;
            list_push_back(&q->control, &p->link);
        } else {
            rq_settle(q, p);
            rq_finish(q, p, r == -ENOLINK ? -ENOTCONN : r);
        }
    }
}

void rq_fail_waiting(struct rqueue *q, int err, bool over)
{
    uint64_t rest = over ? 0 : now_ns() + SLOT_REST_NS;

    while (!list_empty(&q->waiting)) {
        struct rop *p = list_entry(list_pop_front(&q->waiting), struct rop, link);
        unknown_end(q, p);
        slot_free(q, p, p->slot ? rest : 0);
        rq_finish(q, p, err);
    }
}

static void fail_all(struct rqueue *q, int err)
{
    log_error("%s: no data transport: %s", session_addr(q->r->session), err_text(err));
    q->broken = err;
    rq_requeue(q);
    rq_fail_waiting(q, err, false);
}

/* At the first operation that moves data, and when the server has come back with other providers. */
static int open_shard(struct rqueue *q)
{
    int fds[FAB_FDS_MAX], n, r;
    struct epoll_event ev = {.events = EPOLLIN};
    char err[300] = "";

    r = remote_way(q->r, &q->way, err, sizeof err);
    if (r == 0)
        r = fab_shard_open(q->way->fab, &rq_conn_callbacks, q, &q->shard);
    if (r < 0) {
        log_error("%s: %s", session_addr(q->r->session), err[0] ? err : err_text(r));
        return r;
    }
    n = fab_fds(q->shard, fds, FAB_FDS_MAX);
    for (int i = 0; i < n; i++)
        if (epoll_ctl(q->epoll_fd, EPOLL_CTL_ADD, fds[i], &ev) < 0)
            return -errno;
    return rq_mem_open(q);
}

static void close_shard(struct rqueue *q)
{
    rq_mem_leave(q);
    fab_shard_close(q->shard);
    q->shard = NULL;
    rq_mem_close(q);
}

bool rq_shard_again(struct rqueue *q)
{
    int fds[FAB_FDS_MAX], n = fab_fds(q->shard, fds, FAB_FDS_MAX), r;

    for (int i = 0; i < n; i++)
        epoll_ctl(q->epoll_fd, EPOLL_CTL_DEL, fds[i], NULL);
    close_shard(q);
    r = open_shard(q);
    if (r < 0)
        fail_all(q, r);
    return r == 0;
}

/* Everything that is due. Returns whether something happened. */
static bool step(struct rqueue *q)
{
    uint64_t now = now_ns(), count;
    int n;

    if (atomic_exchange(&q->woken, false) && read(q->wake_fd, &count, sizeof count) < 0)
        log_debug("queue %u: cannot read its event counter", q->number);
    rq_control_mail(q);
    rq_mem_check(q);
    if (rq_export_step(q, now) && !q->third.is_draining)
        rq_conn_drained(q);
    while (!list_empty(&q->ages)) {
        struct rop *p = list_entry(q->ages.next, struct rop, age);
        if (p->deadline_ns > now)
            break;
        list_del(&p->age); /* once; rq_finish does not mind */
        give_up(q, p, -ETIMEDOUT);
    }
    rq_control_step(q);
    rq_fetch_step(q);
    if (!q->shard && !q->broken && !list_empty(&q->waiting)) {
        n = open_shard(q);
        if (n < 0)
            fail_all(q, n);
    }
    if (q->broken || !q->shard)
        return false;
    rq_conn_step(q, now);
    rq_third_step(q, now);
    send_waiting(q);
    n = fab_progress(q->shard, 0);
    if (n < 0)
        fail_all(q, n);
    if (n > 0) {
        send_waiting(q);
        fab_flush(q->shard); /* the owner may have much to do with what has come */
    }
    return n > 0;
}

static uint64_t next_timer(const struct rqueue *q)
{
    uint64_t t = UINT64_MAX;

    if (!list_empty(&q->ages))
        t = list_entry(q->ages.next, struct rop, age)->deadline_ns;
    if (q->conn.state == CONN_DOWN && !list_empty(&q->waiting))
        t = min_u64(t, q->conn.retry_at_ns);
    if (q->conn.state == CONN_UP && !list_empty(&q->waiting) && list_empty(&q->sent))
        t = min_u64(t, now_ns() + CONTROL_RETRY_NS); /* a slot at rest */
    if (q->third.late_at_ns && q->shard && !q->broken)
        t = min_u64(t, q->third.late_at_ns);
    list_for_each (it, &q->control)
        if (!list_entry(it, struct rop, link)->is_begun)
            t = min_u64(t, now_ns() + CONTROL_RETRY_NS);
    list_for_each (it, &q->fetching)
        if (list_entry(it, struct rop, link)->is_doubted)
            t = min_u64(t, now_ns() + CONTROL_RETRY_NS);
    return t;
}

/* The armed timer may be early: deadlines mostly move on, and setting it anew for each costs a system call. */
static void set_timer(struct rqueue *q, uint64_t t, uint64_t now)
{
    struct itimerspec ts = {0};

    if (q->timer_at_ns > now && q->timer_at_ns <= t)
        return;
    q->timer_at_ns = t;
    if (t != UINT64_MAX) {
        ts.it_value.tv_sec = (time_t)(t / NSEC_PER_SEC);
        ts.it_value.tv_nsec = (long)(t % NSEC_PER_SEC);
    }
    timerfd_settime(q->timer_fd, TFD_TIMER_ABSTIME, &ts, NULL);
}

/* From here on the descriptor tells of everything; false: there is more to do first. */
static bool arm(struct rqueue *q)
{
    uint64_t t = next_timer(q), now = now_ns();

    if (q->shard && !q->broken && !fab_arm(q->shard))
        return false;
    set_timer(q, t, now);
    return t > now && !atomic_load(&q->woken);
}

static int take_done(struct rqueue *q, struct pst_op **ret, int max)
{
    int n = 0;

    while (n < max && !list_empty(&q->done)) {
        struct rop *p = list_entry(list_pop_front(&q->done), struct rop, link);
        ret[n++] = p->op;
        p->op = NULL;
        q->count--;
        rq_free(q, p);
    }
    return n;
}

int remote_queue_reap(struct pst_queue *pq, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    struct rqueue *q = of(pq);
    uint64_t start = timeout_ns && timeout_ns != UINT64_MAX ? now_ns() : 0;

    for (;;) {
        bool busy = step(q);
        int n = take_done(q, ret_ops, max);
        uint64_t left = UINT64_MAX;
        if (n)
            return n;
        if (busy || !arm(q))
            continue;
        if (!timeout_ns || !q->count)
            return 0;
        if (timeout_ns != UINT64_MAX) {
            uint64_t gone = now_ns() - start;
            if (gone >= timeout_ns)
                return 0;
            left = timeout_ns - gone;
        }
        poll(&(struct pollfd){.fd = q->epoll_fd, .events = POLLIN}, 1,
             left == UINT64_MAX ? -1 : (int)min_u64(left / NSEC_PER_MSEC + 1, 60000));
    }
}

int remote_queue_fd(struct pst_queue *pq)
{
    return of(pq)->epoll_fd;
}

void remote_queue_cancel(struct pst_queue *pq, struct pst_op *op)
{
    struct rop *p = op->priv;

    if (p && p->op == op && !list_empty(&p->age))
        give_up(of(pq), p, -ECANCELED);
}

void remote_queues_wake(struct remote *r)
{
    scoped_lock(&r->lock);
    list_for_each (it, &r->queues)
        rq_wake(list_entry(it, struct rqueue, link));
}

/* ---- opening and closing ---- */

void rq_wake(struct rqueue *q)
{
    uint64_t one = 1;

    if (write(q->wake_fd, &one, sizeof one) < 0)
        log_debug("queue %u: cannot be woken", q->number);
    atomic_store(&q->woken, true);
}

static int open_fds(struct rqueue *q)
{
    struct epoll_event ev = {.events = EPOLLIN};

    q->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    q->export_epoll = epoll_create1(EPOLL_CLOEXEC);
    q->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    q->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    q->timer_at_ns = UINT64_MAX;
    if (q->epoll_fd < 0 || q->export_epoll < 0 || q->timer_fd < 0 || q->wake_fd < 0 ||
        epoll_ctl(q->epoll_fd, EPOLL_CTL_ADD, q->export_epoll, &ev) < 0 ||
        epoll_ctl(q->epoll_fd, EPOLL_CTL_ADD, q->timer_fd, &ev) < 0 ||
        epoll_ctl(q->epoll_fd, EPOLL_CTL_ADD, q->wake_fd, &ev) < 0)
        return -errno;
    return 0;
}

static int open_lists(struct rqueue *q)
{
    struct list *lists[] = {&q->free,    &q->waiting,  &q->sent, &q->given_up, &q->control,
                            &q->fetching, &q->done, &q->ages, &q->mail};

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        list_init(lists[i]);
    q->nrops = 2 * q->depth + ROPS_EXTRA;
    q->rops = calloc(q->nrops, sizeof *q->rops);
    q->slots = calloc(q->nslots, sizeof *q->slots);
    if (!q->rops || !q->slots)
        return -ENOMEM;
    for (uint32_t i = 0; i < q->nrops; i++) {
        q->rops[i].index = i;
        list_push_back(&q->free, &q->rops[i].link);
    }
    for (uint32_t i = 0; i < q->nslots; i++)
        q->slots[i].number = q->slot_first + i;
    return 0;
}

static void queue_destroy(struct rqueue *q)
{
    if (q->conn.state == CONN_TICKET)
        session_ticket_cancel(q->r->session, &q->conn.ticket);
    rq_third_destroy(q);
    while (atomic_load(&q->wakers))
        sched_yield();
    if (q->shard) {
        /* The connection first: then nobody reaches the memory any more. */
        rq_conn_end(q);
        for (int i = 0; i < 100 && ((q->conn.state == CONN_CLOSING && q->conn.fc) || q->third.fc); i++)
            if (fab_progress(q->shard, 10 * NSEC_PER_MSEC) < 0)
                break;
        close_shard(q);
    }
    pst_mac_free(q->conn.mac);
    pst_mac_free(q->third.mac);
    if (q->epoll_fd >= 0)
        close(q->epoll_fd);
    if (q->export_epoll >= 0)
        close(q->export_epoll);
    if (q->timer_fd >= 0)
        close(q->timer_fd);
    if (q->wake_fd >= 0)
        close(q->wake_fd);
    if (q->nslots)
        session_slots_give(q->r->session, q->slot_first, q->nslots);
    pthread_mutex_destroy(&q->mail_lock);
    free(q->slots);
    free(q->rops);
    free(q);
}

int remote_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    struct remote *r = remote_of(st);
    struct rqueue *q = calloc(1, sizeof *q);
    int e;

    if (!q)
        return -ENOMEM;
    q->q.store = st;
    q->r = r;
    q->depth = depth;
    q->epoll_fd = q->timer_fd = q->wake_fd = q->export_epoll = q->arena_fd = -1;
    q->arena_bytes = r->arena_bytes;
    q->conn.retry_ns = RETRY_MIN_NS;
    pthread_mutex_init(&q->mail_lock, NULL);
    e = session_slots_take(r->session, depth, &q->slot_first, &q->nslots);
    if (e == 0)
        e = open_lists(q);
    if (e == 0)
        e = open_fds(q);
    if (e < 0) {
        queue_destroy(q);
        return e;
    }
    pthread_mutex_lock(&r->lock);
    q->number = r->nqueues_made++;
    list_push_back(&r->queues, &q->link);
    pthread_mutex_unlock(&r->lock);
    *ret = &q->q;
    return 0;
}

void remote_queue_close(struct pst_queue *pq)
{
    struct rqueue *q = of(pq);

    pthread_mutex_lock(&q->r->lock);
    list_del(&q->link);
    pthread_mutex_unlock(&q->r->lock);
    queue_destroy(q);
}

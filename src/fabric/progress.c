#include "fab_int.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#define BATCH         64
#define FETCH_AT_ONCE (1u << 20)
#define EQ_EVERY_NS   NSEC_PER_MSEC /* connection events are looked for this often while data flows */
/*
 * An event queue whose descriptor stays readable without an event (out of descriptors: accept fails again and again)
 * must not take the whole CPU: after so many wakes for nothing it is not listened to for a while.
 */
#define IDLE_WAKES 2048u
#define EQ_MUTE_NS (50 * NSEC_PER_MSEC)

/* ---- completions ---- */

static void completed(struct fab_op *op, size_t len, int err)
{
    struct fab_conn *c = op->conn;
    struct fab_slot *slot;
    struct fab_rma *r;

    /* While connecting the receives are only cancelled; why, says the event queue. */
    if (err && (c->state != FAB_CONNECTING || err != -ECONNRESET)) {
        fab_conn_linger_end(c);
        fab_conn_fail(c, err);
    }
    switch (op->kind) {
    case FAB_OP_RECV:
        c->recvs_posted--;
        slot = container_of(op, struct fab_slot, op);
        if (!err)
            fab_msg_arrived(c, slot, len);
        break;
    case FAB_OP_SEND:
        c->sends_posted--;
        slot = container_of(op, struct fab_slot, op);
        fab_msg_sent(c, slot);
        break;
    case FAB_OP_RMA:
        c->rmas_posted--;
        r = container_of((void *)op, struct fab_rma, priv);
        c->reads_posted -= !r->write;
        list_del(&r->link);
        fab_rma_done(r, err);
        break;
    default:
        break;
    }
}

static int cq_error(struct fab_shard *s)
{
    struct fi_cq_err_entry e = {0};
    ssize_t n = fi_cq_readerr(s->cq, &e, 0);

    if (n == -FI_EAGAIN)
        return 0;
    if (n < 0)
        return fab_errno(n);
    /* An error without operation is of an injected message: the connection's end is reported by itself. */
    if (e.op_context)
        completed(e.op_context, 0, e.err ? fab_errno(e.err) : -EIO);
    return 1;
}

static int some_events(struct fab_shard *s, int max)
{
    struct fi_cq_msg_entry e[BATCH];
    ssize_t n = fi_cq_read(s->cq, e, (size_t)(max < BATCH ? max : BATCH));

    if (n == -FI_EAGAIN || n == 0)
        return 0;
    if (n == -FI_EAVAIL)
        n = cq_error(s);
    else
        for (ssize_t i = 0; i < n; i++)
            completed(e[i].op_context, e[i].len, 0);
    if (n < 0)
        s->broken = (int)n > -FI_ERRNO_OFFSET ? fab_errno(n) : -EIO;
    return (int)n;
}

/*
 * verbs over shared memory copies what it fetches while it looks for completions: one at a time, and not too much at
 * once, so that the store has work while more is copied.
 */
int fab_cq_events(struct fab_shard *s, int max)
{
    int all = 0, n = 1;

    if (s->f->tcp_like)
        return some_events(s, max);
    s->fetched = 0;
    while (n > 0 && all < max && s->fetched < FETCH_AT_ONCE) {
        n = some_events(s, 1);
        all += n > 0 ? n : 0;
    }
    return n < 0 ? n : all;
}

/* ---- progress ---- */

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void fab_wake(struct fab_shard *s)
{
    uint64_t one = 1;

    /* One write is enough until it has been seen. A full counter is readable too. */
    if (!atomic_exchange(&s->woken, true) && write(s->wake_fd, &one, sizeof one) < 0)
        return;
}

static int take_wake(struct fab_shard *s)
{
    uint64_t n;

    if (!atomic_load_explicit(&s->woken, memory_order_relaxed))
        return 0;
    /* The descriptor first: a wake after the exchange writes again. */
    if (read(s->wake_fd, &n, sizeof n) < 0 && errno != EAGAIN)
        return 0;
    atomic_store(&s->woken, false);
    return 1;
}

static void hear_eq(struct fab_shard *s)
{
    s->eq_muted_ns = 0;
    (void)fab_watch(s, s->eq_fd);
}

static bool is_readable(struct fab_shard *s, int fd)
{
    struct epoll_event ev[4];
    int n = epoll_wait(s->epoll_fd, ev, ARRAY_SIZE(ev), 0);

    for (int i = 0; i < n; i++)
        if (ev[i].data.fd == fd)
            return true;
    return false;
}

/* The thread was woken: for something, or for nothing. */
static void count_idle(struct fab_shard *s, bool idle, uint64_t now)
{
    s->idle_wakes = idle ? s->idle_wakes + 1 : 0;
    if (idle) { /* closing an endpoint takes its events out of the queue, and leaves their signal in its descriptor */
        s->eq_due = true;
        s->eq_quiet = false;
    }
    if (s->idle_wakes < IDLE_WAKES || s->eq_fd == s->cq_fd || s->eq_muted_ns)
        return;
    s->idle_wakes = 0;
    if (is_readable(s, s->eq_fd) && !fab_unwatch(s, s->eq_fd))
        s->eq_muted_ns = now + EQ_MUTE_NS;
}

/* What is not of every turn. */
static int now_and_then(struct fab_shard *s, uint64_t now)
{
    int n = fab_cm_events(s);

    s->eq_due = false;
    if (n)
        s->eq_quiet = false; /* its descriptor may still show them */
    fab_cm_deadlines(s, now);
    if (s->eq_muted_ns && now >= s->eq_muted_ns)
        hear_eq(s);
    if (!s->f->tcp_like || !s->pep)
        return n;
    if (s->scan_ns && now >= s->scan_ns)
        fab_halfopen_scan(s, now);
    else if (!s->scan_ns)
        fab_halfopen_arm(s, now); /* what woke us may have been a stranger */
    return n;
}

void fab_flush(struct fab_shard *s)
{
    while (!list_empty(&s->open))
        fab_msg_flush(list_entry(s->open.next, struct fab_conn, open_link));
}

static int step(struct fab_shard *s, uint64_t now)
{
    int n = take_wake(s), cq;

    fab_flush(s);
    cq = fab_cq_events(s, BATCH);
    if (cq > 0)
        n += cq;
    if (s->eq_due || now - s->eq_read_ns >= EQ_EVERY_NS)
        n += now_and_then(s, now);
    if (s->tell_due || !list_empty(&s->retry)) /* who was to be told may have ended meanwhile */
        fab_conns_retry(s);
    n += fab_conns_finish(s);
    s->events += (uint64_t)n;
    return n;
}

/*
 * fi_trywait is to take back what an event left in a queue's descriptor. In net of 1.17 and tcp of 1.18.0 it does
 * nothing, but the blocking reads do it: with a time-out of a millisecond, and taking nothing from the queue.
 */
static void unstick(struct fab_shard *s)
{
    if (is_readable(s, s->cq_fd))
        (void)fi_cq_sread(s->cq, NULL, 0, NULL, 1);
    if (is_readable(s, s->eq_fd))
        (void)fi_eq_sread(s->eq, NULL, NULL, 0, 1, FI_PEEK);
}

/*
 * May the thread sleep: nothing is to be done and the queues' descriptors will tell. fi_trywait takes back the signal
 * of events that lie in the event queue already, so that is looked at after it. Calls nobody back.
 */
static bool may_sleep(struct fab_shard *s)
{
    struct fid *cq = &s->cq->fid, *eq = &s->eq->fid;

    fab_flush(s);
    if (!list_empty(&s->closing) || s->tell_due || s->broken || atomic_load(&s->woken))
        return false;
    if (s->f->sticky_fds)
        unstick(s);
    if (fi_trywait(s->fabric, &cq, 1) != FI_SUCCESS)
        return false;
    if (s->eq_quiet)
        return true;
    if (fi_trywait(s->fabric, &eq, 1) != FI_SUCCESS || fab_cm_waiting(s)) {
        s->eq_due = true;
        return false;
    }
    /* tcp's event queue signals each event: its descriptor is enough from now on. */
    s->eq_quiet = s->f->tcp_like && !s->f->sticky_fds;
    return true;
}

static uint64_t next_deadline(const struct fab_shard *s, uint64_t now)
{
    uint64_t at = UINT64_MAX;

    if (!list_empty(&s->connecting))
        at = list_entry(s->connecting.next, struct fab_conn, state_link)->deadline_ns;
    if (!list_empty(&s->lingering))
        at = min_u64(at, list_entry(s->lingering.next, struct fab_conn, state_link)->deadline_ns);
    if (s->scan_ns)
        at = min_u64(at, s->scan_ns);
    if (s->eq_muted_ns)
        at = min_u64(at, s->eq_muted_ns);
    if (!list_empty(&s->retry))
        at = min_u64(at, now + NSEC_PER_MSEC);
    return at;
}

/* Returns whether something happened. Not by epoll_fd: one layer less to be woken through. */
static bool wait_events(struct fab_shard *s, uint64_t ns)
{
    struct pollfd p[] = {{s->cq_fd, POLLIN, 0}, {s->wake_fd, POLLIN, 0}, {s->eq_muted_ns ? -1 : s->eq_fd, POLLIN, 0}};
    struct timespec ts = {(time_t)(ns / NSEC_PER_SEC), (long)(ns % NSEC_PER_SEC)};
    int n = ppoll(p, ARRAY_SIZE(p), ns == UINT64_MAX ? NULL : &ts, NULL);

    if (n > 0 && p[2].revents) {
        s->eq_due = true;
        s->eq_quiet = false;
    }
    return n > 0;
}

int fab_progress(struct fab_shard *s, uint64_t timeout_ns)
{
    uint64_t now = now_ns(), end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    uint64_t spin_end = s->f->spin_ns > UINT64_MAX - now ? UINT64_MAX : now + s->f->spin_ns;
    bool woken = false;
    int n;

    for (;;) {
        n = step(s, now);
        if (s->broken)
            return s->broken;
        if (woken)
            count_idle(s, !n, now);
        woken = false;
        if (n)
            return n;
        now = now_ns();
        if (now >= end)
            return 0;
        if (now < spin_end) {
            relax();
        } else if (may_sleep(s)) {
            uint64_t until = min_u64(end, next_deadline(s, now));

            if (until > now)
                woken = wait_events(s, until == UINT64_MAX ? UINT64_MAX : until - now);
            now = now_ns();
        }
    }
}

bool fab_arm(struct fab_shard *s)
{
    uint64_t now = now_ns(), at;

    if (!may_sleep(s))
        return false;
    count_idle(s, s->events == s->armed_events, now); /* may set a deadline */
    s->armed_events = s->events;
    at = next_deadline(s, now);
    if (at <= now)
        return false;
    if (at == UINT64_MAX)
        at = 0;
    if (at != s->timer_ns) {
        struct itimerspec t = {.it_value = {(time_t)(at / NSEC_PER_SEC), (long)(at % NSEC_PER_SEC)}};

        if (timerfd_settime(s->timer_fd, TFD_TIMER_ABSTIME, &t, NULL))
            return false;
        s->timer_ns = at;
    }
    return true;
}

int fab_fds(struct fab_shard *s, int *ret_fds, int max)
{
    if (max >= 1)
        ret_fds[0] = s->epoll_fd;
    return 1;
}

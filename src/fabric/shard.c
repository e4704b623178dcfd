#include "fab_int.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#define CQ_SIZE_SOFT 1024u  /* software queues grow by themselves */
#define CQ_SIZE_HARD 65536u /* asked for first; halved until the device has it */
#define BATCH        64
#define EQ_EVERY_NS  50000u /* connection events are looked for this often while data flows */
/*
 * An event queue whose descriptor stays readable without an event (out of descriptors: accept fails again and again)
 * must not take the whole CPU.
 */
#define EQ_IDLE_WAKES 2048u
#define EQ_MUTE_NS    (50 * NSEC_PER_MSEC)

static int cq_open(struct fab_shard *s)
{
    size_t size = s->f->bounded_cq ? CQ_SIZE_HARD : CQ_SIZE_SOFT;

    for (;;) {
        struct fi_cq_attr a = {.size = size, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
        int r = fi_cq_open(s->domain, &a, &s->cq, s);

        if (!r) {
            s->cq_size = size;
            return fi_control(&s->cq->fid, FI_GETWAIT, &s->cq_fd);
        }
        s->cq = NULL;
        if (size <= CQ_SIZE_SOFT)
            return r;
        size /= 2;
    }
}

static int fabric_objects(struct fab_shard *s)
{
    struct fi_eq_attr eq = {.size = 1024, .wait_obj = FI_WAIT_FD};
    struct fi_info *info = s->f->info;
    int r = s->f->lib->fabric(info->fabric_attr, &s->fabric, s);

    if (!r)
        r = fi_domain(s->fabric, info, &s->domain, s);
    if (!r)
        r = fi_eq_open(s->fabric, &eq, &s->eq, s);
    if (!r)
        r = fi_control(&s->eq->fid, FI_GETWAIT, &s->eq_fd);
    if (!r)
        r = cq_open(s);
    return r ? fab_errno(r) : 0;
}

static int watch(struct fab_shard *s, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static int descriptors(struct fab_shard *s)
{
    int r;

    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->wake_fd < 0 || s->timer_fd < 0)
        return -errno;
    r = watch(s, s->wake_fd);
    if (!r)
        r = watch(s, s->timer_fd);
    if (!r)
        r = watch(s, s->cq_fd);
    if (!r && s->eq_fd != s->cq_fd)
        r = watch(s, s->eq_fd);
    return r;
}

static void shard_free(struct fab_shard *s)
{
    struct fid *fids[] = {s->pep ? &s->pep->fid : NULL, s->cq ? &s->cq->fid : NULL, s->eq ? &s->eq->fid : NULL,
                          s->domain ? &s->domain->fid : NULL, s->fabric ? &s->fabric->fid : NULL};

    for (size_t i = 0; i < ARRAY_SIZE(fids); i++)
        if (fids[i])
            fi_close(fids[i]);
    fab_halfopen_done(s);
    for (int *fd = (int[]){s->epoll_fd, s->wake_fd, s->timer_fd, -2}; *fd != -2; fd++)
        if (*fd >= 0)
            close(*fd);
    free(s);
}

int fab_shard_open(struct fab *f, const struct fab_callbacks *cb, void *user, struct fab_shard **ret)
{
    struct fab_shard *s = calloc(1, sizeof *s);
    int r;

    if (!s)
        return -ENOMEM;
    s->f = f;
    s->cb = *cb;
    s->user = user;
    s->epoll_fd = s->wake_fd = s->timer_fd = -1;
    atomic_init(&s->woken, false);
    list_init(&s->conns);
    list_init(&s->connecting);
    list_init(&s->closing);
    list_init(&s->retry);
    list_init(&s->mrs);
    r = fabric_objects(s);
    if (!r)
        r = descriptors(s);
    if (r) {
        shard_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void fab_shard_close(struct fab_shard *s)
{
    if (!s)
        return;
    /* Callbacks may begin connections: until none is left. */
    while (!list_empty(&s->conns)) {
        list_for_each_safe(it, &s->conns)
            fab_disconnect(list_entry(it, struct fab_conn, link));
        fab_conns_finish(s);
    }
    fab_mrs_drop(s);
    shard_free(s);
}

/* ---- completions ---- */

static void completed(struct fab_op *op, size_t len, int err)
{
    struct fab_conn *c = op->conn;
    struct fab_slot *slot;
    struct fab_rma *r;

    /* While connecting the receives are only cancelled; why, says the event queue. */
    if (err && (c->state != FAB_CONNECTING || err != -ECONNRESET))
        fab_conn_fail(c, err);
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

int fab_cq_events(struct fab_shard *s, int max)
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
    if (s->eq_fd != s->cq_fd)
        (void)watch(s, s->eq_fd);
}

static void eq_was_readable(struct fab_shard *s, uint64_t now)
{
    uint64_t before = s->eq_events;

    fab_cm_events(s);
    if (s->f->tcp_like && s->pep)
        fab_halfopen_arm(s, now);
    s->eq_idle_wakes = s->eq_events == before ? s->eq_idle_wakes + 1 : 0;
    if (s->eq_idle_wakes < EQ_IDLE_WAKES || s->eq_fd == s->cq_fd)
        return;
    s->eq_idle_wakes = 0;
    if (!epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->eq_fd, NULL))
        s->eq_muted_ns = now + EQ_MUTE_NS;
}

static int step(struct fab_shard *s, uint64_t now)
{
    int n = take_wake(s), cq = fab_cq_events(s, BATCH);

    if (cq > 0)
        n += cq;
    if (now - s->eq_read_ns >= EQ_EVERY_NS) {
        n += fab_cm_events(s);
        (void)fab_cm_deadlines(s, now);
        if (s->scan_ns && now >= s->scan_ns)
            fab_halfopen_scan(s, now);
        if (s->eq_muted_ns && now >= s->eq_muted_ns)
            hear_eq(s);
    }
    if (!list_empty(&s->retry))
        fab_conns_retry(s);
    return n + fab_conns_finish(s);
}

/*
 * fi_trywait is to take back what an event left in a queue's descriptor. In net of 1.17 and tcp of 1.18.0 it does
 * nothing, but the blocking reads do it: with a time-out of a millisecond, and taking nothing from the queue.
 */
static void unstick(struct fab_shard *s)
{
    struct epoll_event ev[4];
    int n = epoll_wait(s->epoll_fd, ev, ARRAY_SIZE(ev), 0);

    for (int i = 0; i < n; i++) {
        if (ev[i].data.fd == s->cq_fd)
            (void)fi_cq_sread(s->cq, NULL, 0, NULL, 1);
        else if (ev[i].data.fd == s->eq_fd)
            (void)fi_eq_sread(s->eq, NULL, NULL, 0, 1, FI_PEEK);
    }
}

/* May the thread sleep: nothing is to be done and the queues' descriptors will tell. */
static bool may_sleep(struct fab_shard *s)
{
    struct fid *fids[] = {&s->cq->fid, &s->eq->fid};

    if (!list_empty(&s->closing) || s->broken || atomic_load(&s->woken))
        return false;
    if (s->f->sticky_fds)
        unstick(s);
    return fi_trywait(s->fabric, fids, 2) == FI_SUCCESS;
}

static uint64_t next_deadline(struct fab_shard *s, uint64_t now)
{
    uint64_t at = UINT64_MAX;

    if (!list_empty(&s->connecting))
        at = list_entry(s->connecting.next, struct fab_conn, state_link)->deadline_ns;
    if (s->scan_ns)
        at = min_u64(at, s->scan_ns);
    if (s->eq_muted_ns)
        at = min_u64(at, s->eq_muted_ns);
    if (!list_empty(&s->retry))
        at = min_u64(at, now + NSEC_PER_MSEC);
    return at;
}

/* Returns whether something happened. Rounds up to milliseconds only where the kernel cannot do better. */
static bool wait_events(struct fab_shard *s, uint64_t ns)
{
    struct epoll_event ev[4];
    struct timespec ts = {(time_t)(ns / NSEC_PER_SEC), (long)(ns % NSEC_PER_SEC)};
    int n = epoll_pwait2(s->epoll_fd, ev, ARRAY_SIZE(ev), ns == UINT64_MAX ? NULL : &ts, NULL);

    if (n < 0 && errno == ENOSYS)
        n = epoll_wait(s->epoll_fd, ev, ARRAY_SIZE(ev),
                       ns == UINT64_MAX ? -1 : (int)min_u64((ns + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC, 1000000));
    for (int i = 0; i < n; i++)
        if (ev[i].data.fd == s->eq_fd)
            eq_was_readable(s, now_ns());
    return n > 0;
}

int fab_progress(struct fab_shard *s, uint64_t timeout_ns)
{
    uint64_t now = now_ns(), end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    uint64_t spin_end = s->f->spin_ns > UINT64_MAX - now ? UINT64_MAX : now + s->f->spin_ns, events = s->eq_events;
    int n;

    for (;;) {
        n = step(s, now);
        /* Connection events may have been taken while sleeping. */
        if (s->eq_events != events && !n)
            n = 1;
        if (s->broken)
            return s->broken;
        if (n)
            return n;
        now = now_ns();
        if (now >= end)
            return 0;
        if (now < spin_end) {
            relax();
            continue;
        }
        if (may_sleep(s)) {
            uint64_t until = min_u64(end, next_deadline(s, now));

            if (until > now)
                wait_events(s, until == UINT64_MAX ? UINT64_MAX : until - now);
            now = now_ns();
        }
    }
}

bool fab_arm(struct fab_shard *s)
{
    uint64_t now = now_ns(), at = next_deadline(s, now);

    if (!may_sleep(s) || at <= now)
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

/*
 * Who drives the device. A thread that polls or posts takes the device's lock if it is free, and does all there is to
 * do: receive, deadlines, send. If it is taken, the holder looks again before it leaves: `pending` is set before the
 * try, and read after each unlock, so that no wish is lost (a poll has none: dev_drive_polled).
 */
#include "dev.h"

#include <poll.h>
#include <sched.h>

void dev_ring(struct uroce_qp *qp)
{
    struct uroce_device *dev = qp->dev;
    pthread_mutex_lock(&dev->bells_lock);
    if (!qp->bell) {
        qp->bell = true;
        list_push_back(&dev->bells, &qp->bell_link);
    }
    pthread_mutex_unlock(&dev->bells_lock);
}

static void answer_bells(struct uroce_device *dev, uint64_t now)
{
    for (;;) {
        pthread_mutex_lock(&dev->bells_lock);
        struct list *l = list_pop_front(&dev->bells);
        struct uroce_qp *qp = l ? container_of(l, struct uroce_qp, bell_link) : NULL;
        if (qp)
            qp->bell = false;
        pthread_mutex_unlock(&dev->bells_lock);
        if (!qp)
            return;
        qp_engine_doorbell(dev->engine, now, qp->qp);
    }
}

/* When it has to be driven next if no packet comes. dev->lock held. */
static uint64_t deadline_of(struct uroce_device *dev)
{
    uint64_t d = min_u64(min_u64(qp_engine_deadline(dev->engine), dev_hello_deadline(dev)), dev_cm_deadline(dev));
    for (int i = 0; i < dev->nports; i++)
        d = min_u64(d, port_deadline(dev->ports[i].port));
    d = min_u64(d, min_u64(dev_links_deadline(dev), dev_meet_deadline(dev)));
    if (dev->holder.slot && dev->holder.sock < 0)
        d = min_u64(d, dev->holder.next_try_ns);
    return min_u64(d, dev_acks_deadline(dev));
}

/* Those in use, or the others: most of a machine's addresses are idle, and a look at each is a system call. */
static bool ports_rx(struct uroce_device *dev, uint64_t now, bool cold, int *add_to)
{
    bool more = false;
    for (int i = 0; i < dev->nports; i++) {
        if (cold != (dev->nports > 1 && now - dev->ports[i].used_ns >= DEV_COLD_NS))
            continue;
        int n = dev_rx(dev, i, now);
        *add_to += n > 0 ? n : 0;
        more |= n == DEV_BURST;
    }
    return more;
}

/* Whoever drives may have been woken by a packet, on any port; else a call came by. */
static bool was_woken(enum dev_hand hand)
{
    return hand == DEV_WOKEN || hand == DEV_OTHER;
}

/* Whether packets are looked for. What a port has read and not handed out (unfinished) nothing tells of. */
static bool may_look(const struct uroce_device *dev, uint64_t now, enum dev_hand hand)
{
    return hand == DEV_POLL || was_woken(hand) || atomic_load(&dev->unfinished) ||
           now - dev->looked_ns >= DEV_LOOKED_NS;
}

bool dev_work(struct uroce_device *dev, uint64_t now, enum dev_hand hand)
{
    bool more = false;
    int got = 0;
    uint64_t sent = dev->sent;
    answer_bells(dev, now);
    if (hand == DEV_POST) /* before the look for packets, which takes its time */
        dev_acks_send(dev, now, hand, 0);
    bool look = may_look(dev, now, hand);
    if (look) {
        dev->looked_ns = now;
        more |= ports_rx(dev, now, false, &got);
    }
    if (dev->nlinks)
        more |= dev_links_rx(dev, now, &got);
    if (look && (now - dev->cold_ns >= DEV_COLD_LOOK_NS || (!got && was_woken(hand)))) {
        dev->cold_ns = now;
        more |= ports_rx(dev, now, true, &got);
    }
    if (got > 0)
        atomic_fetch_add_explicit(&dev->received, (unsigned)got, memory_order_relaxed);
    else if (hand == DEV_WOKEN && dev->nlinks)
        atomic_store(&dev->links_ready, true); /* what woke may have been no packet */
    if (dev->holder.slot)
        dev_rx_held(dev, now);
    more |= dev_cm_in(dev, now);
    dev_meet_tick(dev, now);
    /* No time-out while answers wait to be read: whoever slept long is late, not its peers. */
    if (look && !more && qp_engine_deadline(dev->engine) <= now)
        qp_engine_tick(dev->engine, now);
    dev_hello_tick(dev, now);
    more |= dev_acks_send(dev, now, hand, got);
    if (got >= DEV_BURST_MIN || dev->sent - sent >= DEV_BURST_MIN)
        atomic_fetch_add_explicit(&dev->bursts, 1, memory_order_relaxed);
    dev_cm_out(dev, now);
    return more;
}

/* With the lock held: rounds of work, until nothing is left or others should have a turn. */
static void work_rounds(struct uroce_device *dev, enum dev_hand hand)
{
    uint64_t begun = now_ns(); /* under the lock: the engine's time never goes back */
    if (hand == DEV_POLL)
        atomic_store_explicit(&dev->polled_ns, begun, memory_order_relaxed);
    dev->copied = 0;
    bool more = dev_work(dev, begun, hand);
    bool polled = hand == DEV_POLL || hand == DEV_WOKEN;
    for (int i = 1; i < DEV_ROUNDS && more && !(polled && dev->copied >= DEV_COPIED); i++) {
        atomic_store(&dev->unfinished, true);
        more = dev_work(dev, now_ns(), hand);
    }
    if (more) {
        qp_engine_tick(dev->engine, now_ns());
        dev_tx_all(dev, now_ns());
    }
    /* A program that polls gets its completions and comes again; if not, the helper finds `unfinished`. */
    bool again = more && hand != DEV_POLL;
    atomic_store(&dev->unfinished, more);
    /* Somebody sleeps on the ports, and the packets that woke him may have been these. */
    if (dev->nlinks && (atomic_load(&dev->sleepers) || atomic_load(&dev->lead.armed)))
        again |= dev_links_arm(dev);
    if (again)
        atomic_store(&dev->pending, true);
    uint64_t deadline = deadline_of(dev);
    atomic_store(&dev->deadline, deadline);
    /* A helper thread that sleeps for longer than that, or knows nothing of what is left, is told. */
    uint64_t sleeps_until = atomic_load(&dev->sleeps_until);
    if (deadline < sleeps_until || (more && hand == DEV_POLL && sleeps_until))
        dev_thread_wake(dev);
}

/*
 * A mutex is not fair: a thread that drives without a pause has it again before whoever was woken for it. So that one
 * goes first, and drives in our place when it unlocks; but not for long, as there may always be another that waits.
 */
static bool gives_way(struct uroce_device *dev)
{
    if (!atomic_load(&dev->wanted) || now_ns() >= atomic_load(&dev->way_until))
        return false;
    atomic_store(&dev->pending, true);
    return true;
}

static bool drive_once(struct uroce_device *dev, enum dev_hand hand)
{
    dev_uncancelled();
    if (gives_way(dev) || pthread_mutex_trylock(&dev->lock))
        return false;
    atomic_store(&dev->pending, false);
    if (hand != DEV_OTHER)
        atomic_fetch_add_explicit(&dev->lead.drives, 1, memory_order_relaxed);
    work_rounds(dev, hand);
    if (atomic_load(&dev->wanted))
        atomic_store(&dev->way_until, now_ns() + DEV_WAY_NS);
    pthread_mutex_unlock(&dev->lock);
    return true;
}

static void drive(struct uroce_device *dev, enum dev_hand hand)
{
    atomic_store(&dev->pending, true);
    while (atomic_load(&dev->pending) && drive_once(dev, hand))
        ;
}

void dev_drive(struct uroce_device *dev)
{
    drive(dev, DEV_OTHER);
}

void dev_drive_posted(struct uroce_device *dev)
{
    drive(dev, DEV_POST);
}

/*
 * A packet has woken the program, but another thread drives, and may not be running: what woke is still there, so the
 * program would come back at once, again and again. It waits a little for the other's turn to end.
 */
static void await_driver(struct uroce_device *dev)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += NSEC_PER_MSEC;
    if (until.tv_nsec >= (long)NSEC_PER_SEC) {
        until.tv_nsec -= (long)NSEC_PER_SEC;
        until.tv_sec++;
    }
    if (pthread_mutex_timedlock(&dev->lock, &until) == 0)
        pthread_mutex_unlock(&dev->lock);
}

void dev_drive_event(struct uroce_device *dev)
{
    enum dev_hand hand = atomic_load(&dev->lead.armed) ? DEV_WOKEN : DEV_EVENT;
    drive(dev, hand);
    if (!atomic_load(&dev->pending))
        return;
    await_driver(dev);
    drive(dev, hand);
}

void dev_drive_armed(struct uroce_device *dev)
{
    drive(dev, DEV_EVENT);
}

void dev_drive_helper(struct uroce_device *dev)
{
    atomic_store(&dev->helper_drives, true);
    dev_drive(dev);
    atomic_store(&dev->helper_drives, false);
}

/*
 * A poll that finds the lock taken sets no `pending`: it has no wish of its own, and comes again, or the sockets wake
 * the helper. Else a program that polls would keep the helper at work for good, in whose way it stands if both have one
 * core; for the same reason it lets the helper have the core.
 */
void dev_drive_polled(struct uroce_device *dev)
{
    bool woken = atomic_load_explicit(&dev->lead.armed, memory_order_relaxed);
    if (drive_once(dev, woken ? DEV_WOKEN : DEV_POLL)) {
        while (atomic_load(&dev->pending) && drive_once(dev, DEV_POLL))
            ;
        return;
    }
    atomic_store_explicit(&dev->polled_ns, now_ns(), memory_order_relaxed);
    if (atomic_load(&dev->helper_drives) || atomic_load(&dev->wanted))
        sched_yield();
}

/*
 * A signal handler, or what exit runs when it was called in one, makes a call that waits for the device, and this
 * thread is inside it: that would wait for ever, and another call must not see what the device is in the middle of.
 */
static _Noreturn void end_program(void)
{
    static const char line[] =
        "uroce: a signal handler (or exit in one) has made a call that needs the device in whose midst it has "
        "interrupted the program: the program ends\n";
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0) /* no other output: that may have been interrupted too */
        _exit(EXIT_FAILURE);
    _exit(EXIT_FAILURE);
}

void dev_lock(struct uroce_device *dev)
{
    int state = dev_cancel_off();
    atomic_fetch_add(&dev->wanted, 1);
    if (pthread_mutex_lock(&dev->lock) == EDEADLK)
        end_program();
    atomic_fetch_sub(&dev->wanted, 1);
    dev->cancel_state = state;
}

void dev_unlock(struct uroce_device *dev)
{
    int state = dev->cancel_state;
    pthread_mutex_unlock(&dev->lock);
    dev_cancel_back(&state);
    if (atomic_load(&dev->pending))
        dev_drive(dev);
}

void dev_unlock_settled(struct uroce_device *dev)
{
    atomic_store(&dev->pending, true);
    dev_unlock(dev);
}

/* The ports' descriptors, armed, and last those of the links and of the holder (-1: none). False: one of them has
 * something already, or somebody wants the device driven. */
static bool arm_ports(struct uroce_device *dev, bool helper, struct pollfd *fds, int *ret_n, uint64_t *ret_deadline)
{
    int n = 0;
    pthread_mutex_lock(&dev->lock);
    bool idle = !atomic_load(&dev->unfinished);
    for (int i = 0; i < dev->nports; i++) {
        struct port *p = dev->ports[i].port;
        idle &= !port_arm(p);
        if (port_fd(p) >= 0)
            fds[n++] = (struct pollfd){.fd = port_fd(p), .events = POLLIN};
    }
    idle &= !dev_links_arm(dev);
    fds[n++] = (struct pollfd){.fd = dev->links_fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = dev->holder.sock, .events = POLLIN};
    *ret_n = n;
    *ret_deadline = deadline_of(dev);
    if (helper && idle)
        atomic_store(&dev->sleeps_until, *ret_deadline);
    atomic_fetch_add(&dev->sleepers, 1);
    pthread_mutex_unlock(&dev->lock);
    /* Whoever found the lock taken by us has set `pending` before. */
    return idle && !atomic_load(&dev->pending);
}

static void forget_sleeper(void *arg)
{
    struct uroce_device *dev = arg;
    atomic_fetch_sub(&dev->sleepers, 1);
}

void dev_forget_waiter(void *arg)
{
    struct uroce_device *dev = arg;
    atomic_fetch_sub(&dev->waiters, 1);
}

static int sleep_on(struct uroce_device *dev, struct pollfd *fds, int n, const struct timespec *left, int cancel_state)
{
    int r;
    pthread_cleanup_push(forget_sleeper, dev);
    dev_cancel_back(&cancel_state);
    r = ppoll(fds, (nfds_t)n, left, NULL);
    dev_cancel_off();
    pthread_cleanup_pop(0);
    return r;
}

void dev_sleep(struct uroce_device *dev, bool helper, int fd, uint64_t until)
{
    dev_uncancelled();
    struct pollfd fds[DEV_ADDRESSES_MAX + 3];
    uint64_t deadline;
    bool left_to_lead = false; /* a packet has woken the program too */
    int n;
    if (arm_ports(dev, helper, fds, &n, &deadline)) {
        int holder = n - 1, links = n - 2;
        fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
        uint64_t now = now_ns(), end = min_u64(until, deadline), left = end > now ? end - now : 0;
        struct timespec t = {.tv_sec = (time_t)(left / NSEC_PER_SEC), .tv_nsec = (long)(left % NSEC_PER_SEC)};
        if (sleep_on(dev, fds, n, end == UINT64_MAX ? NULL : &t, uncancelled) > 0) {
            if (fds[holder].revents)
                atomic_store(&dev->holder_ready, true);
            if (fds[links].revents)
                atomic_store(&dev->links_ready, true);
            left_to_lead = helper && !fds[holder].revents && !fds[n - 1].revents && dev_lead_trusted(dev, now_ns());
        }
    }
    atomic_fetch_sub(&dev->sleepers, 1);
    if (!helper) {
        dev_drive(dev);
        return;
    }
    atomic_store(&dev->sleeps_until, 0);
    if (left_to_lead)
        dev->lead.idle = 0;
    else
        dev_drive_helper(dev);
}

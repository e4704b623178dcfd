/*
 * Data threads: each owns one queue of the store. Others hand operations over on a list under a lock and wake the
 * thread if it sleeps. An operation that the queue refuses as full waits in the thread's own backlog, in order.
 */
#include "internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#define REAP_MAX 64
#define AGE_MS   500 /* between looks for buffers that have waited long enough */

struct cancel {
    struct list link;
    uint64_t id;
};

struct waiter {
    struct cl_op o;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
};

static void wake(struct cl_thread *t)
{
    uint64_t one = 1;
    ssize_t n = write(t->wake_fd, &one, sizeof one);

    (void)n; /* a full counter wakes as well */
}

/* The thread for an operation: all of one window of an object go to the same, neighbours to others. */
static uint32_t choose(const struct client *c, const struct pst_op *op)
{
    uint64_t h = op->ino * 0x9e3779b97f4a7c15ull;

    return (uint32_t)(((h >> 32) + op->offset / CL_WINDOW) % c->nthreads);
}

void cl_op_submit(struct client *c, struct cl_op *o)
{
    struct cl_thread *t;
    bool sleeping;

    o->op.user = o;
    o->thread = choose(c, &o->op);
    t = &c->threads[o->thread];
    pthread_mutex_lock(&t->lock);
    list_push_back(&t->in, &o->op.link);
    sleeping = t->sleeping;
    t->sleeping = false;
    pthread_mutex_unlock(&t->lock);
    if (sleeping)
        wake(t);
}

void cl_threads_age(struct client *c)
{
    struct cl_thread *t = &c->threads[0];

    pthread_mutex_lock(&t->lock);
    t->age = true;
    pthread_mutex_unlock(&t->lock);
    wake(t);
}

void cl_op_cancel(struct client *c, uint32_t thread, uint64_t id)
{
    struct cl_thread *t = &c->threads[thread];
    struct cancel *x = malloc(sizeof *x);

    if (!x)
        return; /* it comes back as it would have */
    x->id = id;
    pthread_mutex_lock(&t->lock);
    list_push_back(&t->cancels, &x->link);
    t->sleeping = false;
    pthread_mutex_unlock(&t->lock);
    wake(t);
}

static void run_done(struct cl_op *o)
{
    struct waiter *w = container_of(o, struct waiter, o);

    scoped_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->cond);
}

bool cl_op_now(struct pst_op *op)
{
    return op->kind == PST_OP_READ && op->length <= CL_NOW && pst_store_read_now(op) == 0;
}

int64_t cl_op_run(struct client *c, struct pst_op *op)
{
    struct waiter w;

    if (cl_op_now(op))
        return op->result;
    w = (struct waiter){.o.op = *op, .o.done = run_done};

    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.cond, NULL);
    cl_op_submit(c, &w.o);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.cond, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_mutex_destroy(&w.lock);
    pthread_cond_destroy(&w.cond);
    *op = w.o.op;
    return op->result;
}

struct foreign {
    struct cl_op o;
    struct pst_op *op;
    void (*done)(struct pst_op *op, void *user);
    void *user;
};

static void foreign_done(struct cl_op *o)
{
    struct foreign *f = container_of(o, struct foreign, o);
    void *user = f->op->user;
    struct list link = f->op->link;

    *f->op = o->op;
    f->op->user = user;
    f->op->link = link;
    f->done(f->op, f->user);
    free(f);
}

int cl_submit(struct client *c, struct pst_op *op, void (*done)(struct pst_op *op, void *user), void *user)
{
    struct foreign *f;

    if (!fork_is_mine(c->fork_gen))
        return -ECHILD;
    f = malloc(sizeof *f);
    if (!f)
        return -ENOMEM;
    *f = (struct foreign){.o.op = *op, .o.done = foreign_done, .op = op, .done = done, .user = user};
    f->o.op.cont = op->cont ? op->cont : c->cont;
    cl_op_submit(c, &f->o);
    return 0;
}

static void complete(struct cl_thread *t, struct pst_op *op)
{
    struct cl_op *o = op->user;

    t->in_flight--;
    list_del(&o->flight);
    o->done(o);
}

/* Gives the backlog to the queue. Returns whether something moved. */
static bool submit_all(struct cl_thread *t, struct list *backlog)
{
    bool moved = false;

    while (!list_empty(backlog)) {
        struct pst_op *op = list_entry(list_pop_front(backlog), struct pst_op, link);
        struct cl_op *o = op->user;
        int r = pst_queue_submit(t->q, op);

        if (r == -EAGAIN) {
            list_push_front(backlog, &op->link);
            break;
        }
        t->in_flight++;
        list_push_back(&t->flight, &o->flight);
        moved = true;
        if (r < 0) {
            op->result = r;
            complete(t, op);
        }
    }
    return moved;
}

static void cancel_one(struct cl_thread *t, struct list *backlog, uint64_t id)
{
    list_for_each (it, backlog) {
        struct pst_op *op = list_entry(it, struct pst_op, link);
        struct cl_op *o = op->user;
        if (o->id == id) {
            list_del(it);
            op->result = -ECANCELED;
            o->done(o);
            return;
        }
    }
    list_for_each (it, &t->flight) {
        struct cl_op *o = list_entry(it, struct cl_op, flight);
        if (o->id == id) {
            pst_queue_cancel(t->q, &o->op);
            return;
        }
    }
}

static void cancel_all(struct cl_thread *t, struct list *backlog, struct list *cancels)
{
    struct list *l;

    while ((l = list_pop_front(cancels))) {
        struct cancel *x = list_entry(l, struct cancel, link);
        cancel_one(t, backlog, x->id);
        free(x);
    }
}

static bool reap(struct cl_thread *t)
{
    struct pst_op *ops[REAP_MAX];
    int n = t->in_flight ? pst_queue_reap(t->q, ops, REAP_MAX, 0) : 0;

    for (int i = 0; i < n; i++)
        complete(t, ops[i]);
    return n > 0;
}

/*
 * Sleeps until a submission or the queue's descriptor. `sleeping` is set under the lock while the list is empty: who
 * adds to the list afterwards sees it and wakes us.
 */
static void sleep_on(struct cl_thread *t)
{
    struct pollfd fds[2] = {{.fd = t->wake_fd, .events = POLLIN}, {.fd = pst_queue_fd(t->q), .events = POLLIN}};
    uint64_t count;

    pthread_mutex_lock(&t->lock);
    if (!list_empty(&t->in) || !list_empty(&t->cancels) || t->stop) {
        pthread_mutex_unlock(&t->lock);
        return;
    }
    t->sleeping = true;
    pthread_mutex_unlock(&t->lock);
    /* The queue's descriptor also tells of work without operations: a connection that ends, a region that closes. */
    poll(fds, 2, t->aging ? AGE_MS : -1);
    pthread_mutex_lock(&t->lock);
    t->sleeping = false;
    pthread_mutex_unlock(&t->lock);
    if (fds[0].revents & POLLIN && read(t->wake_fd, &count, sizeof count) < 0)
        log_debug("data thread: cannot read its event counter");
    if (fds[1].revents && !t->in_flight) {
        struct pst_op *none[1];
        pst_queue_reap(t->q, none, 1, 0);
    }
}

static void age(struct cl_thread *t)
{
    uint64_t now = now_ns();

    if (now < t->age_at_ns)
        return;
    t->age_at_ns = now + AGE_MS * NSEC_PER_MSEC;
    t->aging = cl_dirty_age(t->c);
}

static void *thread_main(void *arg)
{
    struct cl_thread *t = arg;
    struct list backlog = LIST_INIT(backlog), cancels = LIST_INIT(cancels);

    for (;;) {
        bool stop, busy;

        pthread_mutex_lock(&t->lock);
        list_splice_back(&backlog, &t->in);
        list_splice_back(&cancels, &t->cancels);
        stop = t->stop;
        t->aging |= t->age;
        t->age = false;
        pthread_mutex_unlock(&t->lock);
        if (t->aging)
            age(t);
        cancel_all(t, &backlog, &cancels);
        busy = submit_all(t, &backlog);
        busy |= reap(t);
        if (busy)
            continue;
        if (stop && !t->in_flight && list_empty(&backlog))
            return NULL;
        if (stop && t->in_flight) {
            struct pst_op *op;
            if (pst_queue_reap(t->q, &op, 1, NSEC_PER_SEC / 10) == 1)
                complete(t, op);
            continue;
        }
        sleep_on(t);
    }
}

static void stop_one(struct cl_thread *t)
{
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_mutex_unlock(&t->lock);
    wake(t);
    pthread_join(t->id, NULL);
}

static void free_one(struct cl_thread *t)
{
    if (t->q)
        pst_queue_close(t->q);
    if (t->wake_fd >= 0)
        close(t->wake_fd);
    pthread_mutex_destroy(&t->lock);
}

static int start_one(struct client *c, struct cl_thread *t)
{
    sigset_t all, old;
    int r;

    t->c = c;
    list_init(&t->in);
    list_init(&t->cancels);
    list_init(&t->flight);
    pthread_mutex_init(&t->lock, NULL);
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = t->wake_fd < 0 ? -errno : pst_queue_open(c->store, c->depth, &t->q);
    /* Signals are the program's own threads' business. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    if (r == 0)
        r = -pthread_create(&t->id, NULL, thread_main, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r < 0)
        free_one(t);
    return r;
}

int cl_threads_start(struct client *c)
{
    uint32_t want = c->nthreads;
    int r = 0;

    c->threads = calloc(want, sizeof *c->threads);
    if (!c->threads)
        return -ENOMEM;
    for (c->nthreads = 0; c->nthreads < want && r == 0; c->nthreads += r == 0)
        r = start_one(c, &c->threads[c->nthreads]);
    if (r < 0)
        cl_threads_stop(c);
    return r;
}

void cl_threads_stop(struct client *c)
{
    for (uint32_t i = 0; i < c->nthreads; i++) {
        stop_one(&c->threads[i]);
        free_one(&c->threads[i]);
    }
    free(c->threads);
    c->threads = NULL;
    c->nthreads = 0;
}

/*
 * One call on the server.
 *
 * Its life: on_new (admission) -> RECV_CLOSE batch, which ends last and so holds the call -> messages -> status.
 * `refs` counts the batches that the queue has not returned, and references of services.
 * Locks: a call's `mu` guards what replies and messages change, since replies may come from any thread and the core's
 * calls are not thread-safe; batches are started under it. The server's `mu` guards the list of calls. A call's lock is
 * never taken inside the server's, nor held while a handler runs.
 */
#include "rpc_priv.h"

#include "base/err.h"

#include <errno.h>
#include <grpc/grpc_security_constants.h>
#include <stdio.h>
#include <string.h>

static void batch(struct rpc_call *c, const grpc_op *ops, size_t n, struct rpc_tag *tag)
{
    atomic_fetch_add(&c->refs, 1);
    rpc_tag_give(tag);
    if (grpc_call_start_batch(c->call, ops, n, tag, NULL) != GRPC_CALL_OK)
        abort(); /* misuse of the core by this file */
}

struct rpc_call *rpc_call_ref(struct rpc_call *c)
{
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void rpc_call_unref(struct rpc_call *c)
{
    struct rpc_server *s = c->s;

    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    if (c->data_free)
        c->data_free(c->data);
    if (c->in)
        grpc_byte_buffer_destroy(c->in);
    rpc_out_free_all(&c->out);
    if (c->call)
        grpc_call_unref(c->call);
    grpc_metadata_array_destroy(&c->md);
    grpc_call_details_destroy(&c->det);
    pthread_mutex_destroy(&c->mu);
    pthread_cond_destroy(&c->room);
    free(c->path);
    gpr_free(c->peer);
    if (c->listed) {
        scoped_lock(&s->mu);
        list_del(&c->link);
        s->ncalls--;
        pthread_cond_broadcast(&s->changed);
    }
    free(c);
}

/* ---- sending; all of these need c->mu ---- */

static size_t add_initial(struct rpc_call *c, grpc_op *ops)
{
    if (c->sent_initial)
        return 0;
    c->sent_initial = true;
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return 1;
}

/* The status, with the reply of a unary call in the same batch. */
static void send_status(struct rpc_call *c, grpc_byte_buffer *reply)
{
    grpc_op ops[3] = {0};
    grpc_metadata md = {.key = grpc_slice_from_static_string(ERRS_METADATA),
                        .value = grpc_slice_from_static_string(errs_name(c->err))};
    char details[sizeof c->text + 40];
    grpc_slice d;
    size_t n = add_initial(c, ops);

    if (reply) {
        ops[n] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
        ops[n++].data.send_message.send_message = reply;
    }
    snprintf(details, sizeof details, "%s%s%s", errs_name(c->err), *c->text ? ": " : "", c->text);
    d = grpc_slice_from_copied_string(details);
    ops[n] = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    ops[n].data.send_status_from_server.status = (grpc_status_code)c->code;
    ops[n].data.send_status_from_server.status_details = &d;
    ops[n].data.send_status_from_server.trailing_metadata = &md;
    ops[n++].data.send_status_from_server.trailing_metadata_count = c->err ? 1 : 0;
    c->ended = true;
    batch(c, ops, n, &c->on_status);
    grpc_slice_unref(d);
    pthread_cond_broadcast(&c->room);
}

static void push(struct rpc_call *c)
{
    grpc_op ops[2] = {0};
    size_t n;

    if (c->sending || c->ended || c->cancelled)
        return;
    if (list_empty(&c->out)) {
        if (c->ending)
            send_status(c, NULL);
        return;
    }
    n = add_initial(c, ops);
    ops[n] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    ops[n++].data.send_message.send_message = list_entry(c->out.next, struct rpc_out, link)->buf;
    c->sending = true;
    batch(c, ops, n, &c->on_sent);
}

static void arm_recv(struct rpc_call *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    uint32_t max = c->m->max_inflight ? c->m->max_inflight : 1;

    if (c->recv_armed || c->half_closed || c->draining || c->ending || c->cancelled ||
        (c->got_message && c->m->kind != RPC_BIDI) || c->running + c->nout >= max)
        return;
    c->recv_armed = true;
    op.data.recv_message.recv_message = &c->in;
    batch(c, &op, 1, &c->on_recv);
}

static void decide(struct rpc_call *c, enum rpc_code code, int err, const char *text)
{
    c->ending = true;
    c->code = code;
    c->err = err;
    snprintf(c->text, sizeof c->text, "%s", text ? text : err ? err_text(err) : "");
    /* Details go into a header: keep them printable. */
    for (char *p = c->text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
}

void rpc_finish_as(struct rpc_call *c, enum rpc_code code, int err, const char *text)
{
    scoped_lock(&c->mu);
    if (c->ending || c->cancelled)
        return;
    decide(c, code, err, text);
    push(c);
}

void rpc_finish(struct rpc_call *c, int err, const char *text)
{
    rpc_finish_as(c, errs_code(err), err, text);
}

void rpc_reply(struct rpc_call *c, const void *msg, size_t len)
{
    grpc_byte_buffer *b = rpc_bytes_new(msg, len);

    pthread_mutex_lock(&c->mu);
    if (!c->ending && !c->cancelled) {
        decide(c, RPC_OK, 0, NULL);
        send_status(c, b);
    }
    pthread_mutex_unlock(&c->mu);
    grpc_byte_buffer_destroy(b);
}

static int enqueue(struct rpc_call *c, const void *msg, size_t len, bool wait)
{
    struct rpc_out *o = rpc_out_new(msg, len);

    if (!o)
        return -ENOMEM;
    pthread_mutex_lock(&c->mu);
    while (wait && c->nout >= RPC_QUEUE_MAX && !c->ending && !c->cancelled)
        pthread_cond_wait(&c->room, &c->mu);
    if (c->ending || c->cancelled || c->nout >= RPC_QUEUE_MAX) {
        int r = c->ending || c->cancelled ? -ECANCELED : -EAGAIN;
        pthread_mutex_unlock(&c->mu);
        rpc_out_free(o);
        return r;
    }
    list_push_back(&c->out, &o->link);
    c->nout++;
    push(c);
    pthread_mutex_unlock(&c->mu);
    return 0;
}

int rpc_send(struct rpc_call *c, const void *msg, size_t len)
{
    return enqueue(c, msg, len, false);
}

int rpc_send_wait(struct rpc_call *c, const void *msg, size_t len)
{
    return enqueue(c, msg, len, true);
}

/* ---- events ---- */

static void on_status(void *owner, bool ok)
{
    (void)ok;
    rpc_call_unref(owner);
}

static void on_sent(void *owner, bool ok)
{
    struct rpc_call *c = owner;

    pthread_mutex_lock(&c->mu);
    c->sending = false;
    c->nout--;
    rpc_out_free(list_entry(list_pop_front(&c->out), struct rpc_out, link));
    if (ok) { /* else the call is being cancelled: on_close follows */
        push(c);
        if (c->m->kind == RPC_BIDI)
            arm_recv(c);
    }
    pthread_cond_broadcast(&c->room);
    pthread_mutex_unlock(&c->mu);
    rpc_call_unref(c);
}

static void on_close(void *owner, bool ok)
{
    struct rpc_call *c = owner;
    bool tell = false;

    (void)ok;
    if (c->cancelled_out) {
        pthread_mutex_lock(&c->mu);
        tell = !c->ended;
        c->cancelled = true;
        pthread_cond_broadcast(&c->room);
        pthread_mutex_unlock(&c->mu);
        rpc_later_hurry(c);
        if (tell && c->m && c->m->on_cancel)
            c->m->on_cancel(c, c->s->cfg.user);
    }
    rpc_call_unref(c);
}

/* The client has sent all. Bidi: the end is OK once the replies are out. Needs mu. */
static void half_close(struct rpc_call *c)
{
    c->half_closed = true;
    if (c->ending || c->cancelled)
        return;
    if (c->m->kind == RPC_BIDI) {
        if (!c->running) {
            decide(c, RPC_OK, 0, NULL);
            push(c);
        }
    } else if (!c->got_message) {
        decide(c, RPC_INVALID_ARGUMENT, -EBADMSG, "no request message");
        push(c);
    }
}

/* Needs mu. */
static void drain(struct rpc_call *c)
{
    c->draining = true;
    if (c->running && c->m->kind == RPC_BIDI)
        return; /* until the handlers have queued their replies */
    if (!c->ending && !c->cancelled) {
        decide(c, RPC_UNAVAILABLE, -ESHUTDOWN, "the server is stopping");
        push(c);
    }
}

void rpc_call_handled(struct rpc_call *c, grpc_byte_buffer *in, uint64_t later_ns)
{
    if (later_ns) {
        bool now;
        pthread_mutex_lock(&c->mu);
        now = c->cancelled || rpc_later_add(c, in, later_ns) < 0; /* without memory: a limit is not worth a failure */
        pthread_mutex_unlock(&c->mu);
        if (!now)
            return;
        rpc_handle(c, in, true);
    }
    grpc_byte_buffer_destroy(in);
    scoped_lock(&c->mu);
    c->running--;
    if (c->draining)
        drain(c);
    else if (c->half_closed)
        half_close(c);
    else if (c->m->kind == RPC_BIDI)
        arm_recv(c);
}

static void on_recv(void *owner, bool ok)
{
    struct rpc_call *c = owner;
    grpc_byte_buffer *in;
    bool run;

    pthread_mutex_lock(&c->mu);
    c->recv_armed = false;
    in = take_ptr(c->in);
    run = ok && in && !c->ending && !c->cancelled;
    if (run) {
        c->got_message = true;
        c->running++;
        if (c->m->kind == RPC_BIDI)
            arm_recv(c);
    } else if (!in) {
        half_close(c);
    }
    pthread_mutex_unlock(&c->mu);
    if (run) {
        if (!c->m->quick)
            rpc_may_block();
        rpc_call_handled(c, in, rpc_handle(c, in, false));
    } else if (in) {
        grpc_byte_buffer_destroy(in);
    }
    rpc_call_unref(c);
}

/* What becomes of a new call: 0, or -errno and a text for its status. Lists it in either case. */
static int admit(struct rpc_call *c, const char **ret_text)
{
    struct rpc_server *s = c->s;
    bool stopping, full;

    for (size_t i = 0; i < s->cfg.nmethods && !c->m; i++)
        if (!strcmp(s->cfg.methods[i].path, c->path))
            c->m = &s->cfg.methods[i];
    c->listed = true;
    pthread_mutex_lock(&s->mu);
    list_push_back(&s->calls, &c->link);
    full = s->ncalls++ >= s->cfg.max_calls;
    stopping = s->stopping;
    pthread_mutex_unlock(&s->mu);
    *ret_text = NULL;
    if (stopping) {
        *ret_text = "the server is stopping";
        return -ESHUTDOWN;
    }
    if (full) {
        *ret_text = "too many calls at once";
        return -EAGAIN;
    }
    if (!c->m) {
        *ret_text = "unknown method";
        return -EOPNOTSUPP;
    }
    return s->cfg.admit ? s->cfg.admit(c, s->cfg.user) : 0;
}

static void on_new(void *owner, bool ok)
{
    struct rpc_call *c = owner;
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    const char *text;
    int r;

    if (!ok) { /* the server is shutting down */
        rpc_call_unref(c);
        return;
    }
    rpc_call_request(c->q);
    c->accepted_ns = now_ns();
    c->path = grpc_slice_to_c_string(c->det.method);
    r = admit(c, &text);
    pthread_mutex_lock(&c->mu);
    op.data.recv_close_on_server.cancelled = &c->cancelled_out;
    batch(c, &op, 1, &c->on_close);
    if (c->ending) {
        /* The server began to stop meanwhile. */
    } else if (r) {
        decide(c, r == -EACCES || r == -EKEYREJECTED ? RPC_UNAUTHENTICATED : errs_code(r), r, text);
        push(c);
    } else {
        arm_recv(c);
    }
    pthread_mutex_unlock(&c->mu);
    rpc_call_unref(c);
}

static struct rpc_call *call_new(struct rpc_queue *q)
{
    struct rpc_call *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->s = q->s;
    c->q = q;
    list_init(&c->link);
    list_init(&c->out);
    atomic_init(&c->refs, 1);
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->room, NULL);
    grpc_call_details_init(&c->det);
    grpc_metadata_array_init(&c->md);
    c->on_new = (struct rpc_tag){on_new, c};
    c->on_recv = (struct rpc_tag){on_recv, c};
    c->on_close = (struct rpc_tag){on_close, c};
    c->on_sent = (struct rpc_tag){on_sent, c};
    c->on_status = (struct rpc_tag){on_status, c};
    return c;
}

void rpc_call_request(struct rpc_queue *q)
{
    struct rpc_call *c = call_new(q);
    if (c)
        rpc_tag_give(&c->on_new);
    if (c && grpc_server_request_call(q->s->srv, &c->call, &c->det, &c->md, q->cq, q->cq, &c->on_new) != GRPC_CALL_OK)
        rpc_call_unref(c); /* after shutdown */
}

struct rpc_call **rpc_calls_hold(struct rpc_server *s, size_t *ret_n)
{
    struct rpc_call **all;
    size_t n = 0;

    scoped_lock(&s->mu);
    all = calloc(s->ncalls ? s->ncalls : 1, sizeof(struct rpc_call *));
    if (!all)
        return NULL;
    list_for_each(it, &s->calls) {
        struct rpc_call *c = list_entry(it, struct rpc_call, link);
        unsigned refs = atomic_load(&c->refs);
        /* Not one whose last reference is gone: it waits for this lock. */
        while (refs && !atomic_compare_exchange_weak(&c->refs, &refs, refs + 1))
            ;
        if (refs)
            all[n++] = c;
    }
    *ret_n = n;
    return all;
}

void rpc_call_idle(struct rpc_call *c)
{
    scoped_lock(&c->mu);
    if (c->got_message || c->ending || c->cancelled)
        return;
    decide(c, RPC_DEADLINE_EXCEEDED, -ETIMEDOUT, "no request message in time");
    push(c);
}

void rpc_call_drain(struct rpc_call *c)
{
    if (!c->m || c->m->kind == RPC_UNARY)
        return;
    scoped_lock(&c->mu);
    drain(c);
}

/* ---- what handlers ask about a call ---- */

bool rpc_cancelled(struct rpc_call *c)
{
    scoped_lock(&c->mu);
    return c->cancelled || c->ending;
}

int64_t rpc_deadline_ms(struct rpc_call *c)
{
    gpr_timespec d = c->det.deadline;
    if (!gpr_time_cmp(d, gpr_inf_future(d.clock_type)))
        return INT64_MAX;
    return gpr_time_to_millis(gpr_time_sub(d, gpr_now(d.clock_type)));
}

const char *rpc_path(const struct rpc_call *c)
{
    return c->path;
}

const char *rpc_peer(struct rpc_call *c)
{
    scoped_lock(&c->mu);
    if (!c->peer)
        c->peer = grpc_call_get_peer(c->call);
    return c->peer ? c->peer : "?";
}

const void *rpc_method_arg(const struct rpc_call *c)
{
    return c->m ? c->m->arg : NULL;
}

bool rpc_peer_has_cert(struct rpc_call *c)
{
    grpc_auth_context *a = grpc_call_auth_context(c->call);
    bool yes = a && grpc_auth_context_peer_is_authenticated(a);
    if (a)
        grpc_auth_context_release(a);
    return yes;
}

bool rpc_peer_names(struct rpc_call *c, bool (*fn)(const char *name, void *arg), void *arg)
{
    static const char *const kinds[] = {GRPC_X509_CN_PROPERTY_NAME, GRPC_PEER_URI_PROPERTY_NAME};
    grpc_auth_context *a = grpc_call_auth_context(c->call);
    bool found = false;

    if (!a)
        return false;
    for (size_t k = 0; k < ARRAY_SIZE(kinds) && !found; k++) {
        grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(a, kinds[k]);
        const grpc_auth_property *p;
        while (!found && (p = grpc_auth_property_iterator_next(&it))) {
            char name[256];
            if (p->value_length >= sizeof name || memchr(p->value, 0, p->value_length))
                continue; /* a NUL inside is a name that only looks like another */
            memcpy(name, p->value, p->value_length);
            name[p->value_length] = 0;
            found = fn(name, arg);
        }
    }
    grpc_auth_context_release(a);
    return found;
}

void *rpc_user(struct rpc_call *c)
{
    return c->s->cfg.user;
}

void rpc_set_data(struct rpc_call *c, void *data, void (*free_fn)(void *))
{
    c->data = data;
    c->data_free = free_fn;
}

void *rpc_data(struct rpc_call *c)
{
    return c->data;
}

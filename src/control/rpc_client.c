/* The client's side of the wrapper: channels, blocking unary calls, streams. */
#include "rpc_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct rpc_channel {
    grpc_channel *ch;
    pthread_mutex_t mu;
    grpc_completion_queue *spare[8]; /* for unary calls: an empty queue serves the next call */
    unsigned nspare;
};

struct rpc_cancel {
    pthread_mutex_t mu;
    struct list calls; /* struct cancellable: those in progress */
    bool fired;
};

/* ---- channels ---- */

#define INT_ARG(k, v)                                                                                                  \
    (grpc_arg)                                                                                                         \
    {                                                                                                                  \
        .type = GRPC_ARG_INTEGER, .key = (char *)(k), .value.integer = (v)                                             \
    }

static grpc_channel *make_channel(const char *target, grpc_channel_credentials *creds, const char *server_name)
{
    grpc_arg a[16] = {
        INT_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)RPC_MESSAGE_MAX),
        INT_ARG(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), /* a new channel is a new connection, with the new files */
        INT_ARG(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        INT_ARG(GRPC_ARG_HTTP2_BDP_PROBE, 0), /* its pings wake both sides; instead, room for a whole reply: */
        INT_ARG(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, (int)RPC_MESSAGE_MAX),
        INT_ARG(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        INT_ARG(GRPC_ARG_ENABLE_RETRIES, 0), /* retries are the caller's, with its request ids */
        INT_ARG(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        INT_ARG(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10000), /* how long one attempt may take */
        INT_ARG(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
        INT_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, 20000),
        INT_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000),
        INT_ARG(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
    };
    grpc_channel_args args = {.num_args = 13, .args = a};

    if (server_name) {
        a[args.num_args].type = GRPC_ARG_STRING;
        a[args.num_args].key = (char *)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG;
        a[args.num_args++].value.string = (char *)server_name;
    }
    return grpc_channel_create(target, creds, &args);
}

int rpc_channel_open(const struct rpc_channel_config *cfg, struct rpc_channel **ret, char *err, size_t err_size)
{
    char target[320];
    grpc_channel_credentials *creds;
    struct rpc_channel *c;
    int r = rpc_addr_target(cfg->addr, target, sizeof target);

    if (r) {
        snprintf(err, err_size, "%s: not an address (host:port, [v6]:port, unix:/path)", cfg->addr);
        return r;
    }
    if (!cfg->tls && !cfg->insecure && !rpc_addr_is_local(cfg->addr)) {
        snprintf(err, err_size, RPC_NOT_LOCAL, cfg->addr);
        return -EPERM;
    }
    rpc_init();
    c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    r = cfg->tls ? rpc_channel_creds(cfg->tls, &creds, err, err_size) : 0;
    if (r) {
        free(c);
        return r;
    }
    if (!cfg->tls)
        creds = grpc_insecure_credentials_create();
    pthread_mutex_init(&c->mu, NULL);
    c->ch = make_channel(target, creds, cfg->server_name);
    grpc_channel_credentials_release(creds);
    *ret = c;
    return 0;
}

static void cq_free(grpc_completion_queue *cq, bool pluck)
{
    grpc_completion_queue_shutdown(cq);
    for (;;) {
        gpr_timespec inf = gpr_inf_future(GPR_CLOCK_MONOTONIC);
        grpc_event ev =
            pluck ? grpc_completion_queue_pluck(cq, NULL, inf, NULL) : grpc_completion_queue_next(cq, inf, NULL);
        if (ev.type == GRPC_QUEUE_SHUTDOWN)
            break;
    }
    grpc_completion_queue_destroy(cq);
}

void rpc_channel_close(struct rpc_channel *c)
{
    if (!c)
        return;
    while (c->nspare)
        cq_free(c->spare[--c->nspare], true);
    grpc_channel_destroy(c->ch);
    pthread_mutex_destroy(&c->mu);
    free(c);
}

static grpc_completion_queue *cq_take(struct rpc_channel *c)
{
    grpc_completion_queue *cq = NULL;
    pthread_mutex_lock(&c->mu);
    if (c->nspare)
        cq = c->spare[--c->nspare];
    pthread_mutex_unlock(&c->mu);
    return cq ? cq : grpc_completion_queue_create_for_pluck(NULL);
}

static void cq_give(struct rpc_channel *c, grpc_completion_queue *cq)
{
    pthread_mutex_lock(&c->mu);
    if (c->nspare < ARRAY_SIZE(c->spare)) {
        c->spare[c->nspare++] = cq;
        cq = NULL;
    }
    pthread_mutex_unlock(&c->mu);
    if (cq)
        cq_free(cq, true);
}

/* ---- cancelling from another thread ---- */

struct cancellable {
    struct list link;
    grpc_call *call;
};

struct rpc_cancel *rpc_cancel_new(void)
{
    struct rpc_cancel *k = calloc(1, sizeof *k);
    if (k) {
        pthread_mutex_init(&k->mu, NULL);
        list_init(&k->calls);
    }
    return k;
}

void rpc_cancel_fire(struct rpc_cancel *k)
{
    scoped_lock(&k->mu);
    k->fired = true;
    list_for_each (it, &k->calls)
        grpc_call_cancel(list_entry(it, struct cancellable, link)->call, NULL);
}

void rpc_cancel_free(struct rpc_cancel *k)
{
    if (!k)
        return;
    pthread_mutex_destroy(&k->mu);
    free(k);
}

static void cancel_attach(struct rpc_cancel *k, struct cancellable *c)
{
    if (!k)
        return;
    scoped_lock(&k->mu);
    list_push_back(&k->calls, &c->link);
    if (k->fired)
        grpc_call_cancel(c->call, NULL);
}

static void cancel_detach(struct rpc_cancel *k, struct cancellable *c)
{
    if (!k)
        return;
    scoped_lock(&k->mu);
    list_del(&c->link);
}

/* ---- results ---- */

/* What a call ends with: filled by RECV_STATUS_ON_CLIENT. */
struct ending {
    grpc_metadata_array trailing;
    grpc_status_code code;
    grpc_slice details;
};

static void ending_init(struct ending *e)
{
    grpc_metadata_array_init(&e->trailing);
    e->code = GRPC_STATUS_UNKNOWN;
    e->details = grpc_empty_slice();
}

static void ending_done(struct ending *e)
{
    grpc_metadata_array_destroy(&e->trailing);
    grpc_slice_unref(e->details);
}

static grpc_op ending_op(struct ending *e)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &e->trailing;
    op.data.recv_status_on_client.status = &e->code;
    op.data.recv_status_on_client.status_details = &e->details;
    return op;
}

static void copy_slice(char *dst, size_t size, grpc_slice s)
{
    size_t n = min_u64(GRPC_SLICE_LENGTH(s), size - 1);
    memcpy(dst, GRPC_SLICE_START_PTR(s), n);
    dst[n] = 0;
}

/* What gRPC tells of a connection that did not come about, without its inner layers. */
static void plain_details(char *details, size_t size)
{
    static const char tcp[] = "Failed to connect to remote host: ", any[] = "last error: UNKNOWN: ",
                      http[] = "Received http2 header with status";
    char text[sizeof((struct rpc_result *)0)->details];
    const char *why;

    if ((why = strstr(details, tcp)) != NULL)
        snprintf(text, sizeof text, "no connection: %s", why + strlen(tcp));
    else if ((why = strstr(details, any)) != NULL)
        snprintf(text, sizeof text, "no connection: %s", why + strlen(any));
    else if (!strncmp(details, http, strlen(http)))
        snprintf(text, sizeof text, "what answers there is not a Penstock server (%s)", details);
    else
        return;
    snprintf(details, size, "%s", text);
}

static void result_fill(const struct ending *e, struct rpc_result *ret)
{
    char name[32] = "";

    ret->code = (enum rpc_code)e->code;
    copy_slice(ret->details, sizeof ret->details, e->details);
    for (size_t i = 0; i < e->trailing.count; i++)
        if (!grpc_slice_str_cmp(e->trailing.metadata[i].key, ERRS_METADATA))
            copy_slice(name, sizeof name, e->trailing.metadata[i].value);
    ret->from_server = ret->code == RPC_OK || *name;
    ret->err = ret->code == RPC_OK ? 0 : *name ? errs_from_name(name) : errs_from_code(ret->code);
    if (!ret->from_server)
        plain_details(ret->details, sizeof ret->details);
}

/* The message in b (which may be NULL) as memory of the caller's. */
static int take_message(grpc_byte_buffer *b, void **ret, size_t *ret_len)
{
    grpc_slice s;
    void *p = NULL;
    int r = -EIO;

    if (!b)
        return -EIO;
    if (rpc_bytes_read(b, &s)) {
        size_t len = GRPC_SLICE_LENGTH(s);
        p = malloc(len ? len : 1);
        r = p ? 0 : -ENOMEM;
        if (p) {
            memcpy(p, GRPC_SLICE_START_PTR(s), len);
            *ret = p;
            *ret_len = len;
        }
        grpc_slice_unref(s);
    }
    return r;
}

void rpc_result_done(struct rpc_result *r)
{
    free(r->data);
    r->data = NULL;
    r->len = 0;
}

const char *rpc_result_text(const struct rpc_result *r)
{
    const char *name = r->err ? errs_name(r->err) : NULL, *text = r->details;
    size_t n = name ? strlen(name) : 0;

    if (n > 0 && !strncmp(text, name, n) && !strncmp(text + n, ": ", 2))
        text += n + 2;
    return *text ? text : r->err ? strerror(-r->err) : "the answer is not understood";
}

/* ---- unary ---- */

static gpr_timespec deadline_after(uint64_t ns)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos((int64_t)ns, GPR_TIMESPAN));
}

int rpc_unary(struct rpc_channel *ch, const char *path, const void *msg, size_t len, uint32_t timeout_ms,
              struct rpc_cancel *cancel, struct rpc_result *ret)
{
    grpc_completion_queue *cq = cq_take(ch);
    gpr_timespec deadline =
        timeout_ms ? deadline_after(timeout_ms * NSEC_PER_MSEC) : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_slice method = grpc_slice_from_copied_string(path);
    grpc_call *call = grpc_channel_create_call(ch->ch, NULL, GRPC_PROPAGATE_DEFAULTS, cq, method, NULL, deadline, NULL);
    grpc_byte_buffer *out = rpc_bytes_new(msg, len), *in = NULL;
    grpc_metadata_array initial;
    struct cancellable mine = {.call = call};
    struct ending end;
    grpc_op ops[6] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                      {.op = GRPC_OP_SEND_MESSAGE},
                      {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
                      {.op = GRPC_OP_RECV_INITIAL_METADATA},
                      {.op = GRPC_OP_RECV_MESSAGE}};
    char tag;

    grpc_slice_unref(method); /* the call has its own reference */
    *ret = (struct rpc_result){0};
    grpc_metadata_array_init(&initial);
    ending_init(&end);
    ops[1].data.send_message.send_message = out;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &initial;
    ops[4].data.recv_message.recv_message = &in;
    ops[5] = ending_op(&end);
    cancel_attach(cancel, &mine);
    rpc_tag_give(&tag);
    if (grpc_call_start_batch(call, ops, 6, &tag, NULL) != GRPC_CALL_OK)
        abort(); /* misuse of the core by this file */
    grpc_completion_queue_pluck(cq, &tag, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    rpc_tag_take(&tag);
    cancel_detach(cancel, &mine);
    result_fill(&end, ret);
    if (!ret->err)
        ret->err = take_message(in, &ret->data, &ret->len);
    if (in)
        grpc_byte_buffer_destroy(in);
    grpc_byte_buffer_destroy(out);
    grpc_metadata_array_destroy(&initial);
    ending_done(&end);
    grpc_call_unref(call);
    cq_give(ch, cq);
    return ret->err;
}

/* ---- streams ---- */

struct rpc_stream {
    grpc_call *call;
    grpc_completion_queue *cq; /* driven by the receiving thread */
    grpc_metadata_array initial;
    struct ending end;
    grpc_byte_buffer *in;
    char tag_start, tag_recv, tag_send, tag_end, tag_status;

    pthread_mutex_t mu;     /* guards what follows; taken by senders and the receiver */
    struct list out;        /* the first one is being sent if `sending` */
    uint32_t nout, pending; /* pending: batches that the queue has not returned */
    bool sending, end_wanted, end_sent, recv_armed, recv_over, over;
};

/* Needs mu. */
static void stream_batch(struct rpc_stream *s, const grpc_op *ops, size_t n, void *tag)
{
    s->pending++;
    rpc_tag_give(tag);
    if (grpc_call_start_batch(s->call, ops, n, tag, NULL) != GRPC_CALL_OK)
        abort(); /* misuse of the core by this file */
}

int rpc_stream_open(struct rpc_channel *ch, const char *path, struct rpc_stream **ret)
{
    struct rpc_stream *s = calloc(1, sizeof *s);
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_RECV_INITIAL_METADATA}}, op;
    grpc_slice method;

    if (!s)
        return -ENOMEM;
    pthread_mutex_init(&s->mu, NULL);
    list_init(&s->out);
    grpc_metadata_array_init(&s->initial);
    ending_init(&s->end);
    s->cq = grpc_completion_queue_create_for_next(NULL);
    method = grpc_slice_from_copied_string(path);
    s->call = grpc_channel_create_call(ch->ch, NULL, GRPC_PROPAGATE_DEFAULTS, s->cq, method, NULL,
                                       gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice_unref(method);
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &s->initial;
    op = ending_op(&s->end);
    pthread_mutex_lock(&s->mu);
    stream_batch(s, &op, 1, &s->tag_status);
    stream_batch(s, ops, 2, &s->tag_start);
    pthread_mutex_unlock(&s->mu);
    *ret = s;
    return 0;
}

/* Needs mu. Starts the next message, or the half-close once all are out. */
static void stream_push(struct rpc_stream *s)
{
    grpc_op op = {0};

    if (s->sending || s->over)
        return;
    if (!list_empty(&s->out)) {
        op.op = GRPC_OP_SEND_MESSAGE;
        op.data.send_message.send_message = list_entry(s->out.next, struct rpc_out, link)->buf;
        s->sending = true;
        stream_batch(s, &op, 1, &s->tag_send);
    } else if (s->end_wanted && !s->end_sent) {
        op.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
        s->end_sent = true;
        stream_batch(s, &op, 1, &s->tag_end);
    }
}

int rpc_stream_send(struct rpc_stream *s, const void *msg, size_t len)
{
    struct rpc_out *o = rpc_out_new(msg, len);
    int r = 0;

    if (!o)
        return -ENOMEM;
    pthread_mutex_lock(&s->mu);
    if (s->over || s->end_wanted)
        r = -ENOTCONN;
    else if (s->nout >= RPC_QUEUE_MAX)
        r = -EAGAIN;
    if (!r) {
        list_push_back(&s->out, &o->link);
        s->nout++;
        stream_push(s);
    }
    pthread_mutex_unlock(&s->mu);
    if (r)
        rpc_out_free(o);
    return r;
}

int rpc_stream_send_end(struct rpc_stream *s)
{
    scoped_lock(&s->mu);
    if (s->over)
        return -ENOTCONN;
    s->end_wanted = true;
    stream_push(s);
    return 0;
}

/* One event of the queue. */
static void stream_event(struct rpc_stream *s, grpc_event ev)
{
    rpc_tag_take(ev.tag);
    scoped_lock(&s->mu);
    s->pending--;
    if (ev.tag == &s->tag_send) {
        s->sending = false;
        s->nout--;
        rpc_out_free(list_entry(list_pop_front(&s->out), struct rpc_out, link));
        if (ev.success)
            stream_push(s);
        else
            s->over = true;
    } else if (ev.tag == &s->tag_recv) {
        s->recv_armed = false;
        s->recv_over = !ev.success || !s->in;
    } else if (ev.tag == &s->tag_status) {
        s->over = true;
    }
}

/* Needs mu. */
static void stream_arm(struct rpc_stream *s)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    if (s->recv_armed || s->recv_over)
        return;
    op.data.recv_message.recv_message = &s->in;
    s->recv_armed = true;
    stream_batch(s, &op, 1, &s->tag_recv);
}

int rpc_stream_recv(struct rpc_stream *s, uint64_t timeout_ns, void **ret_msg, size_t *ret_len)
{
    gpr_timespec deadline =
        timeout_ns > INT64_MAX / 2 ? gpr_inf_future(GPR_CLOCK_MONOTONIC) : deadline_after(timeout_ns);

    for (;;) {
        bool done;
        grpc_event ev;
        pthread_mutex_lock(&s->mu);
        stream_arm(s);
        done = s->recv_over && !s->pending;
        pthread_mutex_unlock(&s->mu);
        if (done)
            return 0;
        ev = grpc_completion_queue_next(s->cq, deadline, NULL);
        if (ev.type == GRPC_QUEUE_TIMEOUT)
            return -ETIMEDOUT;
        stream_event(s, ev);
        if (s->in && !s->recv_armed) {
            int r = take_message(s->in, ret_msg, ret_len);
            grpc_byte_buffer_destroy(s->in);
            s->in = NULL;
            return r ? r : 1;
        }
    }
}

void rpc_stream_cancel(struct rpc_stream *s)
{
    grpc_call_cancel(s->call, NULL);
}

int rpc_stream_close(struct rpc_stream *s, struct rpc_result *ret)
{
    struct rpc_result res = {0};

    pthread_mutex_lock(&s->mu);
    s->over = true; /* nothing more is started */
    pthread_mutex_unlock(&s->mu);
    grpc_call_cancel(s->call, NULL); /* without effect on a call that has its status */
    while (s->pending)
        stream_event(s, grpc_completion_queue_next(s->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL));
    result_fill(&s->end, &res);
    cq_free(s->cq, false);
    grpc_call_unref(s->call);
    if (s->in)
        grpc_byte_buffer_destroy(s->in);
    rpc_out_free_all(&s->out);
    grpc_metadata_array_destroy(&s->initial);
    ending_done(&s->end);
    pthread_mutex_destroy(&s->mu);
    free(s);
    if (ret)
        *ret = res;
    return res.err;
}

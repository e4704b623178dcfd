/* What the files of the gRPC wrapper share. Only they see the C core's headers. */
#ifndef CONTROL_RPC_PRIV_H
#define CONTROL_RPC_PRIV_H

#include "base/list.h"
#include "base/park.h"
#include "base/util.h"
#include "control/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdatomic.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

/* A completion-queue tag is a pointer to one of these, inside the object that it completes. */
struct rpc_tag {
    void (*fn)(void *owner, bool ok);
    void *owner;
};

/*
 * A completion queue hands a tag, and all that was written before its batch began, to the thread that gets it. The core
 * is not built with the thread sanitizer, so that this is told to it here.
 */
static inline void rpc_tag_give(void *tag)
{
#ifdef __SANITIZE_THREAD__
    __tsan_release(tag);
#endif
    (void)tag;
}
static inline void rpc_tag_take(void *tag)
{
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(tag);
#endif
    (void)tag;
}

/* A message that waits to be sent. */
struct rpc_out {
    struct list link;
    grpc_byte_buffer *buf;
};
struct rpc_out *rpc_out_new(const void *msg, size_t len); /* NULL: no memory */
void rpc_out_free(struct rpc_out *o);
void rpc_out_free_all(struct list *l);

/* Starts the library once; it stays up until the process ends. */
void rpc_init(void);
grpc_byte_buffer *rpc_bytes_new(const void *msg, size_t len);
/* The whole message in one slice, which holds a reference. False: damaged. */
bool rpc_bytes_read(grpc_byte_buffer *b, grpc_slice *ret);
/* The line for people when an address is neither local nor has certificates; takes the address. */
#define RPC_NOT_LOCAL                                                                                                  \
    "%s is not on this machine: give certificates (--ca, --cert, --key; penstock tls init makes them), or allow plain "\
    "text (--insecure)"
/* "unix:" and "host:port" as gRPC names them: into buf. -EINVAL. */
int rpc_addr_target(const char *addr, char *buf, size_t size);

/* ---- server and calls ---- */

#define RPC_MAX_TLS    16u
#define RPC_MAX_QUEUES 8u

/* Which of a queue's threads looks for events: see rpc_lead.c. */
struct rpc_lead {
    pthread_mutex_t mu;
    struct park is_free;    /* nobody leads */
    pthread_cond_t watch;   /* the watcher sleeps here */
    bool leading, stop;
    _Atomic bool watching;
    _Atomic uint64_t term;       /* another number with every change of the leader */
    _Atomic uint64_t events;     /* that leaders have begun with */
    _Atomic uint64_t busy_since; /* with the event that it handles now; 0: it waits for one */
};
int rpc_lead_init(struct rpc_lead *l);
void rpc_lead_done(struct rpc_lead *l);
/* Waits until this thread leads. False: stopped. */
bool rpc_lead_take(struct rpc_lead *l);
/* Around each event of a leader's. Afterwards it may lead no more: rpc_lead_take. */
void rpc_lead_event(struct rpc_lead *l);
void rpc_lead_idle(struct rpc_lead *l);
void rpc_lead_stop(struct rpc_lead *l);
void *rpc_lead_watch(void *lead); /* the watcher's thread */

/* A completion queue of the server's, with the threads that serve it. */
struct rpc_queue {
    struct rpc_server *s;
    grpc_completion_queue *cq;
    struct rpc_lead lead;
    pthread_t watcher;
};

#define RPC_LATER_THREADS 4u

/* A message that was put off. */
struct rpc_put_off {
    struct list link;
    struct rpc_call *call; /* counted */
    grpc_byte_buffer *in;
    uint64_t at_ns;
};

/* See rpc_later.c. */
struct rpc_later {
    pthread_mutex_t mu;
    pthread_cond_t changed; /* the first of `all`, stop */
    struct list all;
    pthread_t threads[RPC_LATER_THREADS];
    unsigned nthreads;
    bool stop;
};

struct rpc_server {
    struct rpc_server_config cfg;
    struct rpc_later later;
    grpc_server *srv;
    struct rpc_queue queues[RPC_MAX_QUEUES];
    uint32_t nqueues, nwatchers;
    pthread_t *threads; /* the i-th is one of queue i modulo nqueues */
    uint32_t nthreads;
    struct rpc_server_tls *tls[RPC_MAX_TLS];
    unsigned ntls;
    struct rpc_tag down;
    _Atomic uint64_t next_sweep_ns;

    pthread_mutex_t mu;
    pthread_cond_t changed; /* ncalls, is_down */
    struct list calls;
    uint32_t ncalls;
    bool started, stopping, is_down;
};

struct rpc_call {
    struct rpc_server *s;
    struct rpc_queue *q;
    struct list link; /* in s->calls, under the server's mu, if `listed` */
    bool listed;
    const struct rpc_method *m;
    grpc_call *call;
    grpc_call_details det;
    grpc_metadata_array md;
    char *path, *peer;
    uint64_t accepted_ns;
    atomic_uint refs;
    grpc_byte_buffer *in;
    int cancelled_out;
    struct rpc_tag on_new, on_recv, on_close, on_sent, on_status;
    void *data;
    void (*data_free)(void *);

    pthread_mutex_t mu;
    pthread_cond_t room;
    struct list out; /* the first one is being sent if `sending` */
    uint32_t nout, running;
    bool sending, sent_initial, recv_armed, got_message, half_closed, draining;
    bool ending; /* the status is decided: nothing more is queued */
    bool ended;  /* its batch is started */
    bool cancelled;
    enum rpc_code code;
    int err;
    char text[200];
};

/* Asks the core for one more call. Without memory there is one less asked for; the others go on. */
void rpc_call_request(struct rpc_queue *q);
/* All accepted calls, each with a reference: an array of the caller's, or NULL. */
struct rpc_call **rpc_calls_hold(struct rpc_server *s, size_t *ret_n);
/* Ends the call if its first message has not come. */
void rpc_call_idle(struct rpc_call *c);
/* Ends a stream once its replies are out. */
void rpc_call_drain(struct rpc_call *c);

/* ---- messages that are put off (rpc_later.c) ---- */

void rpc_later_init(struct rpc_later *l);
void rpc_later_stop(struct rpc_later *l); /* nothing waits any more */
void rpc_later_done(struct rpc_later *l);
/* Runs the handler of a message. 0, or the time at which it wants it again. */
uint64_t rpc_handle(struct rpc_call *c, grpc_byte_buffer *in, bool again);
/* 0: takes `in`, and holds the call. */
int rpc_later_add(struct rpc_call *c, grpc_byte_buffer *in, uint64_t at_ns);
/* The call is cancelled: what it has put off is handled now, and finds that out. Takes later.mu. */
void rpc_later_hurry(struct rpc_call *c);
/* rpc_call.c: what follows a handler: rpc_handle's time is heeded, or the message is done with, and so freed. */
void rpc_call_handled(struct rpc_call *c, grpc_byte_buffer *in, uint64_t later_ns);

/* ---- credentials (rpc_tls.c) ---- */

struct rpc_server_tls;
/* Reads the files; they are looked at again at each handshake. -errno and a line in err. */
int rpc_server_tls_new(const struct rpc_tls *files, struct rpc_server_tls **ret, char *err, size_t err_size);
grpc_server_credentials *rpc_server_tls_creds(struct rpc_server_tls *t); /* owned by the caller; borrows t */
void rpc_server_tls_free(struct rpc_server_tls *t);
int rpc_channel_creds(const struct rpc_tls *files, grpc_channel_credentials **ret, char *err, size_t err_size);

#endif

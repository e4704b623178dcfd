/*
 * gRPC, wrapped once: no other file includes the C core's headers. Messages are bytes here; services pack and unpack.
 *
 * Addresses: "host:port", "[v6]:port", "unix:/path". TLS 1.3 with certificates on both sides; plain text only on
 * loopback and Unix sockets, or where `insecure` says so.
 *
 * gRPC makes threads at the first rpc_server_new or rpc_channel_open: a program blocks its signals before, and does not
 * fork without exec after it.
 */
#ifndef CONTROL_RPC_H
#define CONTROL_RPC_H

#include "control/errs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RPC_MESSAGE_MAX (1088u * 1024) /* bytes in a message: a reply of 1 MiB at most, and room around it */
#define RPC_QUEUE_MAX   256u           /* messages that wait to be sent on one call */

/* PEM files. The server rereads them when they change, a client at rpc_channel_open. */
struct rpc_tls {
    const char *ca_file, *cert_file, *key_file;
};

/* Is this address a Unix socket, "localhost", or a loopback literal? */
bool rpc_addr_is_local(const char *addr);
/* Port of "host:port", 0 for a Unix socket; -EINVAL. */
int rpc_addr_port(const char *addr);

/* ---- server ---- */

struct rpc_server;
struct rpc_call; /* one call, counted; a handler that answers after its return takes a reference */

enum rpc_kind { RPC_UNARY, RPC_SERVER_STREAM, RPC_BIDI };

/*
 * Handlers run on the server's threads, several at once, and may block for as long as a store operation takes.
 * Unary and server stream: on_message is called once with the request; the call goes on until rpc_reply or rpc_finish,
 * now or later, from any thread. Bidi: on_message for each message, up to max_inflight at once.
 */
struct rpc_method {
    const char *path; /* "/package.Service/Method" */
    enum rpc_kind kind;
    uint32_t max_inflight; /* bidi: messages being handled or replies waiting to be sent; 0: 1 */
    const void *arg;       /* the service's: rpc_method_arg */
    /*
     * Most of its messages take microseconds: the thread that looks for events handles them itself. The handler calls
     * rpc_may_block before whatever may take longer. Other methods' handlers run beside that thread.
     */
    bool quick;
    /* msg is lent until the return. */
    void (*on_message)(struct rpc_call *c, const void *msg, size_t len, void *user);
    /* Once, at most: the client is gone, cancelled, or its deadline has passed. May be NULL. */
    void (*on_cancel)(struct rpc_call *c, void *user);
};

struct rpc_server_config {
    const struct rpc_method *methods; /* borrowed while the server lives */
    size_t nmethods;
    void *user;             /* handed to all handlers */
    uint32_t threads;       /* 0: 16 */
    uint32_t queues;        /* of events, one thread at a time looks at each; 0: one for 8 processors */
    uint32_t max_calls;     /* calls at once, all connections; more get RESOURCE_EXHAUSTED (EAGAIN). 0: 4096 */
    uint32_t idle_call_ms;  /* a call whose first message does not come in this time is ended; 0: 30 s */
    /* Looks at a call (peer, path) before its message is read; 0 or -errno, which ends it. May be NULL. */
    int (*admit)(struct rpc_call *c, void *user);
};

int rpc_server_new(const struct rpc_server_config *cfg, struct rpc_server **ret);
/*
 * Before start; several addresses are possible. tls NULL: plain, -EPERM unless the address is local or insecure is set.
 * ret_port: the port taken (0 for a Unix socket). A line for people in err.
 */
int rpc_server_listen(struct rpc_server *s, const char *addr, const struct rpc_tls *tls, bool insecure,
                      int *ret_port, char *err, size_t err_size);
int rpc_server_start(struct rpc_server *s);
/*
 * Takes no new calls, ends streams with UNAVAILABLE once their replies are out, lets the others finish for grace_ms,
 * then cancels them. Returns when all handlers have returned. Not from a handler.
 */
void rpc_server_stop(struct rpc_server *s, uint32_t grace_ms);
/* After stop, or before start. Accepts NULL. */
void rpc_server_free(struct rpc_server *s);
uint32_t rpc_server_calls(struct rpc_server *s);
/* Connections that this process closed because descriptors were short: the last quarter (256 at most) is for files. */
uint64_t rpc_server_dropped(void);
/*
 * A listener whose connections may take some of the descriptors that others leave: who watches a busy server gets in.
 */
void rpc_server_prefer(int listener);

/* From a quick method's handler, before it may wait for long: another thread looks for events from now on. */
void rpc_may_block(void);

/*
 * From a handler that returns without having answered: it is called again with the same message at this time (now_ns's
 * clock), or at once when the call is cancelled, and no thread waits meanwhile. rpc_was_later: this is the second time;
 * a message is put off once.
 */
void rpc_later(uint64_t at_ns);
bool rpc_was_later(void);

/* Any thread. After the call is finished or cancelled they do nothing (rpc_send: -ECANCELED). */
void rpc_reply(struct rpc_call *c, const void *msg, size_t len); /* unary: the reply and OK */
/* err: 0 or -errno by errs.h; text follows the name in the details (NULL: none). Queued messages are sent first. */
void rpc_finish(struct rpc_call *c, int err, const char *text);
/* The same with another status than errs.h gives the errno. */
void rpc_finish_as(struct rpc_call *c, enum rpc_code code, int err, const char *text);
/* Streams. Copies. -EAGAIN: RPC_QUEUE_MAX messages wait. */
int rpc_send(struct rpc_call *c, const void *msg, size_t len);
/* Waits for room instead. Not from a handler: it would hold one of the server's threads. */
int rpc_send_wait(struct rpc_call *c, const void *msg, size_t len);
bool rpc_cancelled(struct rpc_call *c);
/* Milliseconds until the caller's deadline, negative when it has passed; INT64_MAX: none. */
int64_t rpc_deadline_ms(struct rpc_call *c);
const char *rpc_path(const struct rpc_call *c);
const void *rpc_method_arg(const struct rpc_call *c);
/* "ipv4:192.0.2.1:4711"; owned by the call. */
const char *rpc_peer(struct rpc_call *c);
bool rpc_peer_has_cert(struct rpc_call *c);
/* Calls fn with the common name and each URI name of the verified client certificate, until it returns true. */
bool rpc_peer_names(struct rpc_call *c, bool (*fn)(const char *name, void *arg), void *arg);
void *rpc_user(struct rpc_call *c); /* rpc_server_config.user */
/* A pointer of the handler's; free_fn is called when the call goes. */
void rpc_set_data(struct rpc_call *c, void *data, void (*free_fn)(void *));
void *rpc_data(struct rpc_call *c);
/* For a handler that keeps the call beyond its return. */
struct rpc_call *rpc_call_ref(struct rpc_call *c);
void rpc_call_unref(struct rpc_call *c);

/* ---- client ---- */

struct rpc_channel;
struct rpc_stream;
struct rpc_cancel;

struct rpc_channel_config {
    const char *addr;
    const struct rpc_tls *tls; /* NULL: plain, -EPERM unless the address is local or insecure is set */
    bool insecure;
    const char *server_name;   /* name to find in the server's certificate; NULL: the host of addr */
};

struct rpc_result {
    enum rpc_code code;
    int err;           /* 0 or -errno */
    bool from_server;  /* the server's handler made this status; false: gRPC did, so it is unknown what was done */
    char details[256]; /* for people */
    void *data;        /* the reply: owned (rpc_result_done) */
    size_t len;
};

/* Connects at the first call. Calls fail with -ENOTCONN while the server cannot be reached. */
int rpc_channel_open(const struct rpc_channel_config *cfg, struct rpc_channel **ret, char *err, size_t err_size);
/* No call is in progress any more. Accepts NULL. */
void rpc_channel_close(struct rpc_channel *ch);

/* Ends calls, several at once, from another thread; may be fired before or after them, and ends later ones too. */
struct rpc_cancel *rpc_cancel_new(void);
void rpc_cancel_fire(struct rpc_cancel *k);
void rpc_cancel_free(struct rpc_cancel *k);

/*
 * One call, blocking, thread-safe. timeout_ms 0: none. cancel may be NULL. Returns ret->err; ret is filled in every
 * case and is done with rpc_result_done. -ETIMEDOUT, -ECANCELED, -ENOTCONN when the server has not answered.
 */
int rpc_unary(struct rpc_channel *ch, const char *path, const void *msg, size_t len, uint32_t timeout_ms,
              struct rpc_cancel *cancel, struct rpc_result *ret);
void rpc_result_done(struct rpc_result *r);
/* The details for people: without the errno's name that a server puts before them; never empty. */
const char *rpc_result_text(const struct rpc_result *r);

/* A bidi or server stream. One thread receives; any thread sends. */
int rpc_stream_open(struct rpc_channel *ch, const char *path, struct rpc_stream **ret);
/* Copies. -EAGAIN: RPC_QUEUE_MAX messages wait (they go out while a thread is in rpc_stream_recv); -ENOTCONN: ended. */
int rpc_stream_send(struct rpc_stream *s, const void *msg, size_t len);
/* The last message has been sent: half-close. */
int rpc_stream_send_end(struct rpc_stream *s);
/* 1 and a message (owned, free()), 0: the stream has ended (rpc_stream_close tells why), -ETIMEDOUT, -ENOMEM. */
int rpc_stream_recv(struct rpc_stream *s, uint64_t timeout_ns, void **ret_msg, size_t *ret_len);
/* Any thread: rpc_stream_recv returns 0 soon. */
void rpc_stream_cancel(struct rpc_stream *s);
/*
 * Cancels if it still runs; frees. ret may be NULL; else done with rpc_result_done. Returns 0 or -errno of the status.
 */
int rpc_stream_close(struct rpc_stream *s, struct rpc_result *ret);

#endif

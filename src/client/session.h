/*
 * The session: what its parts know of one another.
 *
 *   session.c          life, the keeper thread: lease, reconnecting, tickets     session_slots.c   slots
 * session_origin.c   origins session_call.c     requests over the stream     session_recv.c   their replies
 * session_open.c    talking to SessionService session_third.c    ways to the server behind an agent
 *
 * The keeper is the only thread that changes the session or the stream. Calls run under `lock` while they look at both;
 * nobody waits for the network with it held.
 */
#ifndef CLIENT_SESSION_PRIV_H
#define CLIENT_SESSION_PRIV_H

#include "client/fork.h"
#include "client/session.h"
#include "control/rpc.h"

#include "penstock/v1/session.pb-c.h"

#include <pthread.h>
#include <stdatomic.h>

#define LOG_COMPONENT "client"
#include "base/log.h"

#define PB(name) Penstock__V1__##name

#define SESSION_ID_BYTES 16u
#define WAITER_BUCKETS   256u
#define ORIGIN_BUCKETS   256u
#define BACKOFF_MIN_NS   (20 * NSEC_PER_MSEC)
#define BACKOFF_MAX_NS   NSEC_PER_SEC
#define UNARY_MS         10000u
/* A server that starts may refuse once or twice: so many in a row are its answer, at least so far from one another. */
#define REFUSALS   3u
#define REFUSED_NS (100 * NSEC_PER_MSEC)
/* A slot whose request was given up is left alone for so long: its request may still be on the way. */
#define SLOT_REST_NS     (120 * NSEC_PER_SEC)

/* What SessionOpen said. */
struct session_facts {
    uint8_t id[SESSION_ID_BYTES];
    uint8_t data_key[32];
    uint32_t lease_ms;
    uint64_t history;
    struct session_identity who;
    char export_path[EXPORT_PATH_MAX];
    bool third_party;
    uint32_t nshards;
    struct session_shard shard[SESSION_SHARDS_MAX];
};

/* A connection. The keeper makes a new one after a break: gRPC's own would pause first. */
struct session_channel {
    struct rpc_channel *rpc;
    uint32_t refs; /* session.lock */
};

struct session {
    /* fixed */
    char addr[300];
    char purpose[16];
    char *token_file;
    uint8_t client_id[16];
    uint32_t life; /* of struct session_config */
    uint64_t timeout_ns;
    struct session_hooks hooks;
    char *ca_file, *cert_file, *key_file;
    bool insecure;
    struct rpc_cancel *cancel; /* of all calls, at the end */
    pthread_t keeper;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* up, or slots; monotonic */
    pthread_cond_t work;    /* for the keeper; monotonic */
    bool stop;
    bool up;           /* calls may go */
    bool was_up;       /* it was when the waits were ended: there is a session to close */
    bool resuming;     /* only calls of the hook may go */
    _Atomic bool resume_again; /* the hook has not come to its end */
    bool dead;         /* the server does not know the session: open a new one */
    /* -errno of what waits: the server lets this client in no more, or the waits were ended; changed under the lock */
    _Atomic int refused;
    bool turned_away;    /* keeper only: the server itself has refused the last try */
    uint32_t refusals;   /* keeper only: in a row */
    bool stream_over;  /* nobody reads any more */
    bool verify;       /* somebody met ESTALE: ask whether the session lives */
    uint64_t verified; /* counts answers to that */
    struct session_channel *channel;
    struct rpc_stream *stream;
    bool receiving;
    pthread_t receiver;   /* the stream's thread */
    bool reading;         /* one thread is in rpc_stream_recv */
    bool read_now;        /* the stream's thread is to read without a pause */
    pthread_cond_t quiet; /* it sleeps here; monotonic */
    uint64_t replies;     /* counts them */
    uint32_t nasync;      /* waiters of session_begin that are not lazy */
    struct list callers;  /* struct session_waiter.caller */
    struct session_facts facts;
    uint64_t reconnects;
    _Atomic uint64_t epoch;    /* changed under the lock; read without it in each step of a data queue */
    _Atomic uint64_t given_up; /* newest epoch in which a change was given up: no more are sent in it */
    bool has_old;              /* keeper only: a session that it left behind, alive */
    uint8_t old_id[SESSION_ID_BYTES];
    uint64_t renew_at_ns;
    struct list tickets;           /* wanted */
    struct session_ticket *ticket; /* being fetched */
    uint64_t last_tag;
    struct list waiters[WAITER_BUCKETS]; /* by tag */
    struct slot {
        uint64_t seq;
        uint64_t free_at_ns; /* 0: free; UINT64_MAX: in use */
    } slot[PST_SLOTS_MAX];
    struct list origins[ORIGIN_BUCKETS]; /* struct origin: session_origin.c */
    uint64_t origin_tries;               /* counts tries of origins' requests */
    uint32_t drop[256], ndrop;           /* numbers of drop_epoch that are not used any more */
    uint64_t drop_epoch;
    bool range_used[PST_SLOTS_MAX]; /* at the first slot of a range that a queue has */
};

/* Who stands in session_call and waits. */
struct session_waiter {
    struct session_async a; /* tag and place in the table */
    struct list caller;
    pthread_cond_t cond;
    bool done;
    int err; /* -ECONNRESET: send it again */
    PB(NamespaceReply) * reply;
};

/* session_open.c: network calls of the keeper; no lock held. */
int session_net_open(struct session *s, struct session_facts *ret, char *err, size_t err_size);
int session_net_renew(struct session *s, const uint8_t id[SESSION_ID_BYTES], uint32_t *ret_lease_ms);
void session_net_close(struct session *s, const uint8_t id[SESSION_ID_BYTES]);
int session_net_ticket(struct session *s, const uint8_t id[SESSION_ID_BYTES], struct session_ticket *t);
/* The same for one that is `third` (session_third.c). */
int session_net_third(struct session *s, const uint8_t id[SESSION_ID_BYTES], struct session_ticket *t);
/* One unary call with messages of SessionService. */
int session_net_call(struct session *s, const char *path, const ProtobufCMessage *req,
                     const ProtobufCMessageDescriptor *reply, ProtobufCMessage **ret, struct rpc_result *res);
bool session_endpoint(const PB(DataEndpoint) *in, struct session_shard *ret); /* false: not one that we can use */

int session_channel_open(struct session *s, char *err, size_t err_size);
/* For a call by another thread than the keeper; lock held. */
struct session_channel *session_channel_ref(struct session *s);
void session_channel_unref(struct session *s, struct session_channel *ch); /* lock not held; accepts NULL */

/* session_recv.c; lock held, but for the stream's start and stop. */
int session_stream_start(struct session *s);
void session_stream_stop(struct session *s);
struct list *session_bucket(struct session *s, uint64_t tag);
void session_waiter_init(struct session *s, struct session_waiter *w);
void session_waiter_done(struct session_waiter *w);
/* Until w is done; 0, or -ETIMEDOUT, and its request is forgotten. */
int session_wait_reply(struct session *s, struct session_waiter *w, uint64_t deadline_ns);
/* Something is to come, or to go out, that no caller waits for. */
void session_read_soon(struct session *s);

/* session_call.c */
/*
 * Who a request is to act for, of which ret borrows the groups: cred, or root where cred is NULL and the session may
 * act for all. False: the session's own user, ret is as it was. Lock not held.
 */
bool session_cred(struct session *s, const struct pst_cred *cred, PB(Cred) *ret);
/* Was the -ESTALE that a request met about the session itself? Waits for the keeper's answer. */
bool session_was_dead(struct session *s, uint64_t epoch, uint64_t deadline_ns);
/* Waits on a condition variable with the monotonic clock; false: the deadline has passed. */
bool session_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns);
void session_cond_init(pthread_cond_t *c);
/* Until calls may go; lock held. 0, -ETIMEDOUT, or what the server refuses this client with. */
int session_wait_up(struct session *s, uint64_t deadline_ns);
void session_broken(struct session *s); /* lock held */
void session_give_up_locked(struct session *s, uint64_t epoch);

/* session_origin.c */
/* All that have no number in the session. From the keeper, lock not held. */
int session_origins_again(struct session *s);
/* Lock held. Has one come since? */
bool session_origins_left(struct session *s);
void session_origins_done(struct session *s);
uint32_t session_origin_number_locked(struct session *s, const uint8_t client[16], uint64_t epoch);

/* session_slots.c; lock held. -ETIMEDOUT, or as session_wait_up. */
int session_slot_get(struct session *s, uint64_t deadline_ns, uint32_t *ret_slot, uint64_t *ret_seq);
void session_slot_put(struct session *s, uint32_t slot, bool abandoned);

#endif

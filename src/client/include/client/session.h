/*
 * A session with a server: its lease, the stream of namespace requests, data tickets, and all of it again after a
 * break.
 *
 * The client's id stays over reconnects, so that a mutating request that is sent again with its slot and sequence
 * happens once (contract 5). Calls wait for the connection and repeat until the time-out; then -ETIMEDOUT. When the
 * server refuses to open a session, a few times in a row, they end with that at once, until it does. Thread-safe.
 */
#ifndef CLIENT_SESSION_H
#define CLIENT_SESSION_H

#include "store/store.h"

#include "fabric/export.h"
#include "penstock/v1/namespace.pb-c.h"

#include <stdatomic.h>
#include <sys/socket.h>

#define SESSION_TICKET_MAX 48u
#define SESSION_SHARDS_MAX 64u
/* Slots below this one are for control requests, the others for data queues. */
#define SESSION_CONTROL_SLOTS 128u

struct session;

/* The sequences of a life are behind those of the one before. */
#define SESSION_LIFE_SHIFT 40
#define SESSION_LIVES      (1u << (63 - SESSION_LIFE_SHIFT))

struct session_config {
    const char *addr; /* "host:port", "[v6]:port", "unix:/path" */
    const char *token_file, *ca_file, *cert_file, *key_file, *purpose;
    bool insecure;
    uint64_t timeout_ns; /* of one operation */
    /*
     * Of a process that takes over from another one, which is dead: the client's id, and how many there were before
     * (below SESSION_LIVES); life 0: of the first. What those have under way in the server does not come any more once
     * this one is connected.
     */
    bool has_client_id;
    uint8_t client_id[16];
    uint32_t life;
};

struct session_hooks {
    /*
     * A new session took the place of a dead one: opens again what that had, by calls with `resume` set. Called again
     * if the connection breaks meanwhile. From the session's own thread.
     */
    void (*resume)(void *user);
    /* The session is usable again, or has changed. Any thread; must not block. */
    void (*changed)(void *user);
    /*
     * Now and then while there are replies, and once after the last: for what waits to be sent with other things. From
     * the thread that reads replies: must not wait for one. True: call again soon. May be NULL.
     */
    bool (*tick)(void *user);
    void *user;
};

/* Connects and opens a session: one try. 0, or -errno and a line for people in err. */
int session_open(const struct session_config *cfg, const struct session_hooks *hooks, struct session **ret, char *err,
                 size_t err_size);
/*
 * What waits for the server, and what is begun from now on, fails with -ESHUTDOWN at once; only session_close is left.
 * Any thread.
 */
void session_end_waits(struct session *s);
/* No call, ticket or slot is in use any more. */
void session_close(struct session *s);
uint64_t session_timeout_ns(const struct session *s);

/* Who requests without a cred act for; with any_uid for root, as a store's own callers do who name nobody. */
struct session_identity {
    uint32_t uid, gid;
    bool any_uid;
    bool origin; /* may speak for clients of its own */
};
void session_identity(struct session *s, struct session_identity *ret);
/* Grows with each new session; never 0. */
uint64_t session_epoch(struct session *s);
uint64_t session_history(struct session *s); /* pst_store_history of the server's store */
uint64_t session_reconnects(struct session *s);
bool session_is_up(struct session *s);
/* The server does not let this client in (its credential was taken away): -errno, as calls end; else 0. */
int session_refused(struct session *s);
/* From the resume hook: something could not be opened again for the connection's sake; the hook is called once more. */
void session_resume_again(struct session *s);
const char *session_addr(const struct session *s);

/*
 * A change that was sent in this session was given up, and nobody knows what becomes of it. A later change must not
 * come before it: nothing more that changes something goes out in this session, and the next one begins when the server
 * has done with what this one sent.
 */
void session_give_up(struct session *s, uint64_t epoch);
/* May a change be sent in this session? */
bool session_is_sound(const struct session *s, uint64_t epoch);

/* ---- control calls ---- */

/* A namespace request. The header inside req is filled in at each try. */
struct session_call {
    Penstock__V1__NamespaceRequest *req;
    Penstock__V1__Header *header;
    const _Atomic uint64_t *container;   /* its handle; read at each try, changed by `resume` only. NULL: none */
    const struct pst_cred *cred;         /* NULL: the session's own user */
    bool record;                         /* takes a slot and a sequence: mutating requests, and opens */
    const struct pst_reqid *id;          /* with a sequence: an origin's request, which has them already; else NULL */
    bool resume;                         /* from the hook: does not wait for the connection, is not repeated */
    Penstock__V1__NamespaceReply *reply; /* out, owned: session_call_done */
    uint64_t epoch;                      /* out: the session in which it was sent last; 0: in none */
};
int session_call(struct session *s, struct session_call *c);
void session_call_done(struct session_call *c);

/*
 * A namespace request whose answer comes later: fn(user, err) from a session thread, exactly once; -ECONNRESET: the
 * connection broke, and who asked asks again. session_begin returns 0, or -errno and fn is not called (-EAGAIN: the
 * connection is down). session_forget: true if fn will not be called any more.
 */
struct session_async {
    struct list link;
    void (*fn)(struct session_async *a, int err);
    uint64_t tag;
    uint64_t history, epoch; /* out: of the session that has it */
    const Penstock__V1__NamespaceReply *reply; /* out, for fn, until it returns; NULL: none came */
    bool lazy; /* nobody waits for the answer: it is read with others, some milliseconds later at most */
};
int session_begin(struct session *s, struct session_call *c, struct session_async *a);
bool session_forget(struct session *s, struct session_async *a);
/*
 * A request that was begun in session `epoch` was answered -ESTALE: is that the session's end? The first asks, and
 * gives what the second wants: 0: that session is over, ask again in the next; -ESTALE: it lives, the answer stands;
 * -EAGAIN: not known yet.
 */
uint64_t session_doubt(struct session *s);
int session_doubt_end(struct session *s, uint64_t epoch, uint64_t doubt);

/*
 * A unary call (pools and containers). admin: the request's message, which begins with a field `header` of type
 * AdminHeader (its pointer is filled in). ret: the unpacked reply, freed by protobuf_c_message_free_unpacked.
 * ret_epoch (may be NULL): the session that answered. id: as in struct session_call.
 */
int session_unary(struct session *s, const char *path, ProtobufCMessage *req, const struct pst_cred *cred,
                  const struct pst_reqid *id, bool record, bool resume, const ProtobufCMessageDescriptor *reply,
                  ProtobufCMessage **ret, uint64_t *ret_epoch);

/* ---- origins: an agent's clients, whose requests keep their numbers (docs/protocol.md, section 5) ---- */

/*
 * Requests with this client's ids may be made from now on, until as many session_origin_remove: waits until the server
 * knows it, and what was sent for it before, by whomever, is over. 0, -ETIMEDOUT, -EPERM, -ENOMEM.
 */
int session_origin_add(struct session *s, const uint8_t client[16]);
void session_origin_remove(struct session *s, const uint8_t client[16]);
/* The client's number in session `epoch`; 0: it has none there. */
uint32_t session_origin_number(struct session *s, const uint8_t client[16], uint64_t epoch);

/* ---- what data queues need ---- */

struct session_shard {
    char provider[32];
    struct sockaddr_storage addr;
    socklen_t addr_len;
    uint32_t shard;
};
/* The server's data endpoints, as of the newest session; their number. */
size_t session_shards(struct session *s, struct session_shard ret[SESSION_SHARDS_MAX]);

/* Where, and with what, this session hands memory over (fabric/export.h). */
struct session_export {
    char path[EXPORT_PATH_MAX]; /* "": the server takes none */
    uint64_t epoch;
    uint8_t session[EXPORT_SESSION], data_key[EXPORT_KEY]; /* pst_wipe it */
};
void session_export(struct session *s, struct session_export *ret);

/* Is there a server behind this one that a client may connect to (struct session_ticket.third)? */
bool session_offers_third(struct session *s);
/*
 * For an agent: what a client of its own needs to connect to that shard of the server (docs/protocol.md, section 11).
 * Waits for the server. -EAGAIN: it is away, or there are too many.
 */
int session_third(struct session *s, const struct session_shard *shard, uint64_t owner, struct pst_third *ret);

/* A one-time ticket; filled in by the session's thread, then ready() is called from there. */
struct session_ticket {
    struct list link;
    uint32_t shard;
    void (*ready)(struct session_ticket *t);
    int err; /* 0, or -errno: ask again later */
    uint64_t epoch, history;
    uint8_t bytes[SESSION_TICKET_MAX];
    size_t len;
    uint8_t data_key[32];
    /*
     * Asked for: one for a connection to the server behind an agent, which is then here; data_key is that connection's
     * own.
     */
    bool third;
    struct session_shard to;
    uint64_t number;
};
void session_ticket_want(struct session *s, struct session_ticket *t);
/* It is not, or no longer, in the session's hands afterwards; ready may have been called. */
void session_ticket_cancel(struct session *s, struct session_ticket *t);

/* A range of slots for one queue, *ret_count of them, of at most `want`; -EAGAIN: all are taken. */
int session_slots_take(struct session *s, uint32_t want, uint32_t *ret_first, uint32_t *ret_count);
void session_slots_give(struct session *s, uint32_t first, uint32_t count);
/* The slot's next sequence. The slot is the caller's and has no request outstanding. */
uint64_t session_slot_next(struct session *s, uint32_t slot);

#endif

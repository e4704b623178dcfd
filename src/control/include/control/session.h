/*
 * Sessions and all that hangs on them: container handles, object handles, capability keys, data tickets. Time is passed
 * in (monotonic nanoseconds), so expiry is tested with a virtual clock. Everything is bounded by struct sess_limits.
 *
 * One lock guards the table and is never held while a hook runs. A struct sess and a struct sess_cont are counted: who
 * holds one may use it after its session has ended; what it stands for is freed with the last holder.
 */
#ifndef CONTROL_SESSION_H
#define CONTROL_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SESS_ID_BYTES     16u
#define SESS_KEY_BYTES    32u
#define SESS_TICKET_BYTES 32u /* random; verbs leaves 56 bytes of connect data, fabric.h 48 */
#define SESS_NAME_MAX     63u

struct pst_cont;
struct sess;
struct sess_cont;
struct sess_table;

/* Why a request was turned away: one counter each. */
enum refusal {
    REFUSE_VERSION,        /* protocol versions differ */
    REFUSE_CREDENTIAL,     /* neither certificate nor token names a credential */
    REFUSE_SESSION,        /* no such session, or expired */
    REFUSE_FOREIGN,        /* a session used by another credential than its own */
    REFUSE_CRED,           /* asserted uid, gid or groups that the credential does not allow */
    REFUSE_ADMIN,          /* an administrator's call by someone else */
    REFUSE_HANDLE,         /* no such container or object handle */
    REFUSE_LIMIT,          /* a limit of sess_limits is reached */
    REFUSE_TICKET_UNKNOWN, /* never made, or used before */
    REFUSE_TICKET_EXPIRED,
    REFUSE_TICKET_SHARD,   /* made for another shard */
    REFUSE_CAP_MALFORMED,
    REFUSE_CAP_KEY,        /* unknown key id */
    REFUSE_CAP_REVOKED,    /* a key that has ended */
    REFUSE_CAP_MAC,        /* forged or altered */
    REFUSE_CAP_SESSION,    /* another session's */
    REFUSE_CAP_RIGHTS,     /* rights, object or container outside it */
    REFUSE_CAP_RANGE,      /* bytes outside it */
    REFUSE_CAP_EXPIRED,
    REFUSE_MAC,            /* data plane: a message's MAC does not match */
    REFUSE_REPLAY,         /* data plane: a message number that is not the next */
    REFUSE_MALFORMED,      /* data plane: a message that is none */
    REFUSE_EXPORT_PROOF,   /* a hand-over of memory whose proof does not match, or for no session */
    REFUSE_EXPORT_MEMORY,  /* memory of a kind or size that is not taken */
    REFUSE_EXPORT_UNKNOWN, /* data plane: exported memory that the session does not have (any more) */
    REFUSE_EXPORT_RANGE,   /* data plane: bytes outside of it */
    REFUSE_THIRD_UNKNOWN,  /* data plane: memory by a third party's connection that the session has not (any more) */
    REFUSE_THIRD_MESSAGE,  /* data plane: a request by such a connection, which may make none */
    REFUSE_OVERTAKEN,      /* a request of which a later try was seen (control/once.h) */
    REFUSALS,
};
const char *refusal_name(enum refusal r); /* "ticket_expired" */

struct sess_limits {
    uint32_t sessions;  /* 0: 4096 */
    uint32_t conts;     /* open containers in a session; 0: 64 */
    uint32_t objects;   /* open objects in a session; 0: 65536 */
    uint32_t tickets;   /* unused tickets of a session; 0: 16 */
    uint32_t thirds;    /* unused tickets of third parties, of a session; 0: 64 */
    uint64_t lease_ns;  /* 0: 30 s */
    uint64_t ticket_ns; /* 0: 10 s */
};

/* Who a session is. */
struct sess_ident {
    uint8_t client_id[16];              /* as the client says it */
    uint8_t client[16];                 /* for struct pst_reqid: bound to the credential too, so that no other
                                           credential reaches its reply records */
    char credential[SESS_NAME_MAX + 1]; /* name of the credential it acts under */
    char cert[SESS_NAME_MAX + 1];       /* credential of the client's certificate, which each call must show again;
                                           "" on a plain connection */
    uint32_t tenant; /* the credential's; below SESS_TENANTS_MAX */
    uint64_t cred;   /* the credential's id */
    uint32_t tenant_sessions; /* that the tenant may have at once; 0: no limit of its own */
    uint32_t uid, gid;
    bool any_uid, admin;
    bool origin; /* may speak for clients of its own (an agent) */
    char purpose[16];
    char software[SESS_NAME_MAX + 1];
    char peer[SESS_NAME_MAX + 1];
};

#define SESS_ORIGINS_MAX 4096u /* of a session at once */

/* All are called without the table's lock, once per thing. */
struct sess_hooks {
    void (*object_free)(void *user, struct pst_cont *c, uint64_t ino);
    void (*cont_free)(void *user, struct pst_cont *c); /* after its objects */
    void (*session_gone)(void *user, const uint8_t id[SESS_ID_BYTES]);
    void *user;
    /* May be NULL. Whose session it was. */
    void (*session_ended)(void *user, const struct sess_ident *who);
    /* May be NULL. What has been counted, on whose behalf; also with the table's lock held. */
    void (*refused)(void *user, uint32_t tenant, enum refusal r);
};

struct sess_table *sess_table_new(const struct sess_limits *l, const struct sess_hooks *h);
/* Ends all sessions. Nobody holds a struct sess or sess_cont any more. */
void sess_table_free(struct sess_table *t);
const struct sess_limits *sess_limits(const struct sess_table *t); /* with the defaults filled in */

/* ---- sessions ---- */

/* 0 and a counted session (sess_put); -EUSERS: too many; -EINVAL: who->tenant is not below SESS_TENANTS_MAX. */
int sess_open(struct sess_table *t, const struct sess_ident *who, uint64_t now_ns, struct sess **ret);
/* NULL and a count when there is none or its lease is over. */
struct sess *sess_get(struct sess_table *t, const void *id, size_t len, uint64_t now_ns);
void sess_put(struct sess *s); /* accepts NULL */
int sess_renew(struct sess_table *t, struct sess *s, uint64_t now_ns); /* -ESTALE */
/* Ends it: handles, keys and tickets with it; then session_gone. -ESTALE if it has ended before. */
int sess_close(struct sess_table *t, const uint8_t id[SESS_ID_BYTES]);
/* Ends those whose lease is over. Returns when the next one will be (UINT64_MAX: there is none). */
uint64_t sess_expire(struct sess_table *t, uint64_t now_ns);
uint32_t sess_count(struct sess_table *t);
/* fn is called with the lock held: it only looks. */
void sess_each(struct sess_table *t, void (*fn)(const struct sess *s, void *arg), void *arg);
const uint8_t *sess_id(const struct sess *s);
const uint8_t *sess_data_key(const struct sess *s); /* SESS_KEY_BYTES */
const struct sess_ident *sess_ident(const struct sess *s);
/* It can act as root, so it is believed which of its writes take set-id bits away; those of others all do. */
bool sess_keeps_setid(const struct sess *s);
bool sess_alive(const struct sess *s);

/* ---- origins: the clients of an agent ---- */

/*
 * Requests of this session may speak for `client` (as struct sess_ident.client) from now on, by the number that this
 * gives. What earlier sessions, or earlier numbers, have under way for it is out, as by once_fence; sess_origin_quiet:
 * and none of it is in the store. -ESTALE: the session has ended; -EUSERS: too many; -EOVERFLOW: the session has no
 * more numbers.
 */
int sess_origin_add(struct sess_table *t, struct sess *s, const uint8_t client[16], uint32_t *ret_number);
bool sess_origin_quiet(struct sess_table *t, struct sess *s, uint32_t number);
void sess_origin_drop(struct sess_table *t, struct sess *s, uint32_t number); /* nothing if there is none */

/* ---- containers ---- */

/* Takes c on success. -ESTALE: the session has ended; -EMFILE: too many. */
int sess_cont_add(struct sess_table *t, struct sess *s, struct pst_cont *c, uint64_t cont_id, uint64_t *ret_handle);
/* Counted (sess_cont_put); NULL and a count when the handle is none of this session's. */
struct sess_cont *sess_cont_get(struct sess_table *t, struct sess *s, uint64_t handle);
struct sess_cont *sess_cont_ref(struct sess_cont *sc);
void sess_cont_put(struct sess_cont *sc); /* accepts NULL */
struct pst_cont *sess_cont_store(const struct sess_cont *sc);
uint64_t sess_cont_id(const struct sess_cont *sc);
/* Closes its objects as well and ends its key. slot and seq: as below, a retry finds it done. -EBADF. */
int sess_cont_close(struct sess_table *t, struct sess *s, uint64_t handle, uint32_t slot, uint64_t seq);
/* Sessions of purpose "mount" or "agent" that have this container open. */
uint32_t sess_cont_mounts(struct sess_table *t, uint64_t cont_id);

/* ---- objects ---- */

/*
 * The object was opened in the store, where these rights were checked; object_free follows. slot and seq are the
 * request's: sess_object_find gives the handle to a retry of the same request (seq 0: never). One that asks for another
 * object or other rights is none, whatever its slot and seq. -ESTALE, -EMFILE: the caller releases the object.
 */
int sess_object_add(struct sess_table *t, struct sess *s, struct sess_cont *sc, uint64_t ino, uint32_t rights,
                    uint32_t slot, uint64_t seq, uint64_t *ret_handle);
bool sess_object_find(struct sess_table *t, struct sess *s, struct sess_cont *sc, uint64_t ino, uint32_t rights,
                      uint32_t slot, uint64_t seq, uint64_t *ret_handle);
/* The capability that was given with the open was made with this key. */
void sess_object_granted(struct sess_table *t, struct sess *s, uint64_t handle, uint64_t key_id);
/*
 * May the session move bytes of the object by what it has open? handle: where to look first. 0; -EBADF: not open with
 * these rights; -EKEYREVOKED: it was, and what was given for it has been revoked since.
 */
int sess_object_allows(struct sess_table *t, struct sess *s, struct sess_cont *sc, uint64_t handle, uint64_t ino,
                       uint32_t rights);
/* 0 as well for a retry of the request (slot, seq) that closed it; -EBADF. */
int sess_object_close(struct sess_table *t, struct sess *s, uint64_t handle, uint32_t slot, uint64_t seq);

/* ---- capability keys: one per container handle, made at first use and again after revocation ---- */

int sess_key_mint(struct sess_table *t, struct sess *s, struct sess_cont *sc, uint64_t *ret_key_id,
                  uint8_t ret_key[SESS_KEY_BYTES]);
/* To verify: the key and its container (counted). -ENOKEY: there never was one; -EKEYREVOKED: it has ended. */
int sess_key_find(struct sess_table *t, uint64_t key_id, uint8_t ret_key[SESS_KEY_BYTES], struct sess_cont **ret_cont);
bool sess_key_alive(struct sess_table *t, uint64_t key_id);
/* End keys, at once; return how many. `only` limits it to keys of that session (NULL: all). */
uint32_t sess_revoke_session(struct sess_table *t, const void *id, size_t len);
uint32_t sess_revoke_cont(struct sess_table *t, uint64_t cont_id, const struct sess *only);
uint32_t sess_revoke_key(struct sess_table *t, uint64_t key_id, const struct sess *only);
/* Grows whenever a key ends: who has seen a key alive at this value need not ask again while it stands. */
uint64_t sess_generation(const struct sess_table *t);

/* ---- data tickets ---- */

/* -ESTALE, -EAGAIN: too many unused ones. */
int sess_ticket_new(struct sess_table *t, struct sess *s, uint32_t shard, uint64_t now_ns,
                    uint8_t ret_ticket[SESS_TICKET_BYTES]);
/* Consumes it: 0 and the session (counted), once. -EACCES, counted by kind. A ticket shown to a wrong shard is gone. */
int sess_ticket_use(struct sess_table *t, const void *ticket, size_t len, uint32_t shard, uint64_t now_ns,
                    struct sess **ret);

/*
 * Of a connection of a third party: whose memory requests of this session may name, by its number. owner: for whom, in
 * the words of who asks. Numbers are never 0, nor used twice.
 */
struct sess_third {
    uint64_t number, owner; /* 0: an ordinary connection */
};
int sess_third_new(struct sess_table *t, struct sess *s, uint32_t shard, uint64_t owner, uint64_t now_ns,
                   uint8_t ret_ticket[SESS_TICKET_BYTES], uint64_t *ret_number);
/* As sess_ticket_use, which takes no such ticket, for both kinds. */
int sess_ticket_take(struct sess_table *t, const void *ticket, size_t len, uint32_t shard, uint64_t now_ns,
                     struct sess **ret, struct sess_third *ret_third);

/* ---- counters ---- */

void sess_refuse(struct sess_table *t, enum refusal r);
uint64_t sess_refused(const struct sess_table *t, enum refusal r);
/*
 * On whose behalf this thread works from here on: refusals that it counts are that tenant's as well. 0 to begin with,
 * and for what no session has been found of. Counted for the first SESS_TENANTS_MAX ones.
 */
#define SESS_TENANTS_MAX 256u
void sess_on_behalf(uint32_t tenant);
uint64_t sess_refused_of(const struct sess_table *t, uint32_t tenant, enum refusal r);
uint32_t sess_count_of(struct sess_table *t, uint32_t tenant);
/* Another tenant has this number from now on: its counts begin anew. */
void sess_tenant_reset(struct sess_table *t, uint32_t tenant);
/* Ends all sessions of a tenant (cred 0), or of one credential in it: how many. */
uint32_t sess_close_of(struct sess_table *t, uint32_t tenant, uint64_t cred);
/* Sessions and containers of a tenant that somebody holds, whether they have ended or not. */
uint32_t sess_held_of(const struct sess_table *t, uint32_t tenant);

#endif

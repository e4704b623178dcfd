/*
 * The control server: the services of proto/penstock/v1 over a store, with sessions, capabilities and authentication.
 * What the data plane needs of it is the second half: tickets, capabilities, revocation.
 */
#ifndef CONTROL_SERVICE_H
#define CONTROL_SERVICE_H

#include "control/audit.h"
#include "control/cap.h"
#include "control/rpc.h"
#include "control/session.h"
#include "store/store.h"

#include <sys/socket.h>

#define CTL_PROTOCOL      1u
#define CTL_ENDPOINTS_MAX 64u
#define CTL_ALL           UINT32_MAX /* tenant: of all */
#define CTL_TOKEN_MAX     513u       /* with its NUL */
#define CTL_TOKEN_MIN     16u        /* characters */

/*
 * What belongs to a tenant. Its sessions see this store and these addresses only. The first one is the server's own: of
 * credentials that name no other, and of the token files.
 */
struct ctl_endpoint;
struct ctl_tenant {
    char name[SESS_NAME_MAX + 1];
    uint32_t number;      /* below SESS_TENANTS_MAX. 0 in ctl_config.tenants: where it stands there */
    /*
     * Of one that was made at run time: random, so that a later one of the same name has nothing of its reply records.
     */
    uint8_t life[16];
    struct pst_store *st; /* borrowed */
    uint32_t sessions;    /* at once; 0: no limit of its own */
    /* Addresses of data connections; copied. What a client is told when it opens a session. Shards of different tenants
     * have different numbers. */
    const struct ctl_endpoint *endpoints;
    size_t nendpoints;
    bool third_party; /* hooks.third_party may be asked */
};

/* Who may open sessions. A token's hash, or a client certificate whose common name or URI is `name`. */
struct ctl_cred {
    char name[SESS_NAME_MAX + 1];
    bool by_token, by_cert;
    uint8_t token_hash[32]; /* token_hash() */
    uint32_t uid, gid;
    bool any_uid; /* may assert any uid, gid and groups */
    bool admin;   /* may create and destroy pools and containers, scrub, revoke */
    bool origin;  /* may speak for clients of its own: an agent */
    uint32_t tenant; /* its number */
    uint64_t id;     /* the server's */
};

/* Of a credential, for who administers it: no secret. */
struct ctl_cred_info {
    const char *name, *tenant, *cn; /* cn NULL: by a token */
    uint32_t uid, gid;
    bool any_uid, admin, origin, run_time; /* run_time: not of the configuration */
};

struct ctl_listen {
    const char *addr;
    const struct rpc_tls *tls; /* NULL: plain */
    bool insecure;             /* plain off loopback */
};

struct ctl_endpoint {
    char provider[32];
    struct sockaddr_storage addr;
    socklen_t addr_len;
    uint32_t shard;
    char text[80];
};

/* A data connection, for status. */
struct ctl_connection {
    uint8_t session[SESS_ID_BYTES];
    uint32_t tenant;
    const char *peer, *provider, *device;
    bool rdma;
    uint32_t shard;
    uint64_t requests, bytes_in, bytes_out;
    uint64_t bytes_exported; /* of these: placed in memory that the client exported */
    uint64_t bytes_third;    /* of these: between a third party and the store that has the file */
    /*
     * "exported": by this daemon in the client's memory; "third-party": over a connection between the client and the
     * store behind this daemon, or, seen from that one, between it and a client of the agent; "crossing": over the
     * connection
     */
    const char *placement;
};

/* The daemon's side; each may be NULL. Called from control threads, several at once, without locks held. */
struct ctl_hooks {
    void *user;
    /* A session has ended: its data connections are to be dropped. Must not block for long; ends before, and only
     * before, the session's containers are closed for good (the last sess_cont_put). */
    void (*session_gone)(void *user, const uint8_t id[SESS_ID_BYTES]);
    /* Capabilities of this session were revoked: what it has exported ends too. */
    void (*session_revoked)(void *user, const uint8_t id[SESS_ID_BYTES]);
    void (*connections)(void *user, void (*fn)(void *arg, const struct ctl_connection *c), void *arg);
    void (*facts)(void *user, uint32_t tenant, void (*fn)(void *arg, const char *key, const char *value), void *arg);
    /* What a tenant is configured to be; without secrets. */
    void (*tenant)(void *user, uint32_t tenant, void (*fn)(void *arg, const char *key, const char *value), void *arg);
    /* Other limits for it: 0, or -errno and a line for people in err. ret_kept: they hold after a restart too. */
    int (*tenant_set)(void *user, uint32_t tenant, const char *const *keys, const char *const *values, size_t n,
                      bool *ret_kept, char *err, size_t err_size);
    /* Tenants and credentials that come and go at run time: as tenant_set. ret_n: sessions that have ended by it. */
    int (*tenant_create)(void *user, const char *name, const char *const *keys, const char *const *values, size_t n,
                         bool *ret_kept, char *err, size_t err_size);
    int (*tenant_delete)(void *user, const char *name, uint32_t *ret_n, bool *ret_kept, char *err, size_t err_size);
    /* token "": one is made, into ret_token. */
    int (*cred_create)(void *user, const char *name, const char *const *keys, const char *const *values, size_t n,
                       const char *token, char ret_token[CTL_TOKEN_MAX], bool *ret_kept, char *err, size_t err_size);
    int (*cred_delete)(void *user, const char *name, uint32_t *ret_n, bool *ret_kept, char *err, size_t err_size);
    void (*creds)(void *user, void (*fn)(void *arg, const struct ctl_cred_info *c), void *arg);
    void (*metrics)(void *user, uint32_t tenant, pst_stat_fn fn, void *arg); /* CTL_ALL: of all together */
    /* A namespace request of this tenant's comes: when may it go? Not later than now_ns is now. Asked once for each. */
    uint64_t (*turn)(void *user, uint32_t tenant);
    /*
     * A client wants to be reached by the store behind this daemon itself, for requests by this shard; ret->number is
     * what its requests name. Waits for that store.
     */
    int (*third_party)(void *user, uint32_t tenant, const uint8_t session[SESS_ID_BYTES], uint32_t shard,
                       struct pst_third *ret);
};

struct ctl_config {
    const struct ctl_listen *listen;
    size_t nlisten;
    const struct ctl_cred *creds; /* copied */
    size_t ncreds;
    /* Also let in whom the token file beside each local address reaches: they act as this process's uid and gid, with
     * any_uid if that is root, as administrators. */
    bool local_token;
    const char *role; /* "server", "agent" */
    bool far_store;   /* every call of the store may wait for another machine */
    struct sess_limits limits;
    uint32_t threads;   /* 0: 16 */
    uint32_t max_calls; /* 0: 4096 */
    const struct ctl_tenant *tenants; /* one at least; copied, but for their stores */
    size_t ntenants;
    const char *export_path; /* the Unix socket where clients hand over memory, for sessions; copied. NULL: none */
    struct ctl_hooks hooks;
    struct audit *audit; /* borrowed; NULL: none */
};

struct ctl_server;

/*
 * Listens and serves. The tenants' stores outlive the server. 0, or -errno and a line for people in err.
 * *ret is set before the first call is taken; NULL on failure.
 * ctl_port: of listen[i], 0 for a Unix socket.
 */
int ctl_server_start(const struct ctl_config *cfg, struct ctl_server **ret, char *err, size_t err_size);
int ctl_server_port(const struct ctl_server *s, size_t i);

/* ---- tenants and credentials at run time; any thread, one at a time for each tenant ---- */

/* A place that is not taken gets a tenant: 0; -E2BIG, with a line in err; -EINVAL; -ENOMEM. */
int ctl_tenant_add(struct ctl_server *s, uint32_t number, const struct ctl_tenant *in, char *err, size_t err_size);
/* From now on: its credentials are none, there are no new sessions of it, and the others (how many) have ended. */
uint32_t ctl_tenant_end(struct ctl_server *s, uint32_t number);
/*
 * After that: waits until nobody uses anything of it any more, and empties its place. False: somebody did until the
 * deadline (now_ns's clock), or the server stops: the place stays taken, and all that the tenant has must stay too.
 */
bool ctl_tenant_remove(struct ctl_server *s, uint32_t number, uint64_t deadline_ns);
/* 0 and an id; -EEXIST: another has the certificate or the token, unless that is allowed; -ENOMEM. */
int ctl_cred_add(struct ctl_server *s, const struct ctl_cred *c, bool may_be_taken, uint64_t *ret_id);
/* It is none any more, and its sessions (how many) have ended. */
uint32_t ctl_cred_end(struct ctl_server *s, uint64_t id);
/* How many sessions a tenant may have from now on; 0: no limit of its own. Any thread. */
void ctl_tenant_sessions(struct ctl_server *s, uint32_t tenant, uint32_t sessions);
/*
 * The stores' waits are about to be ended (pst_store_end_waits): what fails from now on may fail for that alone, so
 * that clients are told that their session is over, and ask again in their next one.
 */
void ctl_server_end_waits(struct ctl_server *s);
/* Health turns to NOT_SERVING, no new calls or sessions, calls end (grace_ms), sessions are closed. */
void ctl_server_stop(struct ctl_server *s, uint32_t grace_ms);
/* After stop, and after all sess and sess_cont are put back. Accepts NULL. */
void ctl_server_free(struct ctl_server *s);

/* ---- for the data plane; any thread ---- */

/* A connect request's ticket: 0 and the session (counted, sess_put): its id, data key and client id. -EACCES. */
int ctl_ticket_use(struct ctl_server *s, const void *ticket, size_t len, uint32_t shard, struct sess **ret);
/* The same, and tickets of third parties too: ret_third says which it was. */
int ctl_ticket_take(struct ctl_server *s, const void *ticket, size_t len, uint32_t shard, struct sess **ret,
                    struct sess_third *ret_third);
/*
 * Verifies a capability that this session presents. 0, the grant, and the container it is for (counted,
 * sess_cont_put): held while requests under the capability are possible. Every refusal is counted:
 * -EBADMSG, -EACCES (forged, foreign), -EKEYREVOKED (revoked, or the session is over).
 */
int ctl_cap_verify(struct ctl_server *s, const struct sess *who, const void *bytes, size_t len,
                   struct cap_grant *ret_grant, struct sess_cont **ret_cont);
/*
 * Revocation, cheaply: while ctl_generation is what it was when a capability was found good, its key is still good.
 * When it has changed, ctl_cap_alive tells (counting a refusal), and the new generation is remembered, read before.
 */
uint64_t ctl_generation(const struct ctl_server *s);
bool ctl_cap_alive(struct ctl_server *s, const struct cap_grant *g);
/* cap_check with the refusals counted; now_wall_ns only matters for grants that expire. */
int ctl_cap_check(struct ctl_server *s, const struct cap_grant *g, uint64_t ino, uint32_t rights, uint64_t offset,
                  uint64_t length);
void ctl_refuse(struct ctl_server *s, enum refusal r);
/* The living session with this id (counted, sess_put); NULL, and a refusal is counted. */
struct sess *ctl_session_find(struct ctl_server *s, const uint8_t id[SESS_ID_BYTES]);
/*
 * The figures of the control plane, the store and the hooks, of one tenant. CTL_ALL: of the whole server, for the
 * Prometheus page and its administrators; where there are several tenants also each one's, as
 * penstock_tenant_NAME{tenant="..."}.
 */
void ctl_metrics(struct ctl_server *s, uint32_t tenant, pst_stat_fn fn, void *arg);

#endif

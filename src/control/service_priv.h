/* What the services share: the server, a request, and how a handler says what went wrong. */
#ifndef CONTROL_SERVICE_PRIV_H
#define CONTROL_SERVICE_PRIV_H

#include "arena.h"
#include "control/once.h"
#include "control/service.h"

#define LOG_COMPONENT "control"
#include "base/log.h"
#include "base/trace.h"

#include "penstock/v1/admin.pb-c.h"
#include "penstock/v1/capability.pb-c.h"
#include "penstock/v1/common.pb-c.h"
#include "penstock/v1/namespace.pb-c.h"
#include "penstock/v1/session.pb-c.h"
#include "penstock/v1/status.pb-c.h"

#include <stdatomic.h>

#define PB(name) Penstock__V1__##name

#define CTL_SOFTWARE    "penstock " PENSTOCK_VERSION
#define CTL_REQUEST_MEM (16u << 20) /* bytes that one request may take while it is handled */
#define CTL_REPLY_MAX   (900u << 10)
#define CTL_LIST_MAX    1000u /* pools or containers in a reply */
#define CTL_WATCHERS    64u
#define CTL_CLOSE_MAX   256u /* handles in one Close, besides the first */
#define CTL_QUEUES      16u
#define CTL_SETTINGS_MAX 600u /* of a tenant or a credential in a request */

struct ctl_req;
typedef int ctl_handler(struct ctl_req *q, const void *in, void *out);

/* A method: one request message, one reply message. */
struct ctl_method {
    const char *path;
    const ProtobufCMessageDescriptor *in, *out;
    ctl_handler *fn;
};

enum ctl_ten_state { CTL_TEN_FREE, CTL_TEN_LIVE, CTL_TEN_ENDING };
/* A tenant, and what is kept for it: a place for one, which stays where it is (tenants.c). */
struct ctl_ten {
    _Atomic uint32_t users;
    _Atomic int state; /* enum ctl_ten_state */
    struct ctl_tenant in; /* endpoints are the server's copy; of sessions see below */
    _Atomic uint32_t sessions;
    pthread_mutex_t mu;   /* guards the rest */
    struct pst_queue *queues[CTL_QUEUES]; /* idle ones, for fsync */
    unsigned nqueues;
};

struct ctl_server {
    struct ctl_ten *tenants; /* SESS_TENANTS_MAX places; the first one is the server's own */
    _Atomic uint32_t ntenants; /* that are live */
    struct sess_table *sess;
    struct rpc_server *rpc;
    struct ctl_hooks hooks;
    struct audit *audit;
    pthread_rwlock_t cred_lock; /* guards the four below */
    struct ctl_cred *creds;
    size_t ncreds, creds_room;
    uint64_t last_cred; /* the id that was given last */
    char role[16];
    char *export_path; /* NULL: memory is not taken */
    bool far_store;
    struct ctl_addr {
        char *addr;
        int port;
        bool token; /* its token file is to be removed */
    } * addrs;
    size_t naddrs;
    struct rpc_method *methods;
    uint64_t started_ns;

    pthread_t tick;
    bool ticking;
    _Atomic bool stopping;
    _Atomic bool waits_ended; /* ctl_server_end_waits */
    _Atomic uint64_t requests, failed;

    pthread_mutex_t mu; /* guards all below */
    pthread_cond_t wake;
    bool stop_tick;
    struct rpc_call *watchers[CTL_WATCHERS];
    unsigned nwatchers;
    pthread_t scrub;
    bool scrub_begun, scrub_running;
    volatile bool scrub_cancel;
    atomic_bool backup_running;
};

struct ctl_req {
    struct ctl_server *s;
    struct rpc_call *call;
    struct sess *sess;     /* put back at the end */
    struct ctl_ten *tenant; /* sess's, which holds it */
    struct ctl_ten *about;  /* the one that the request is about; put back at the end */
    struct sess_cont *sc;  /* likewise */
    struct pst_cont *cont; /* sc's */
    struct pst_cred cred;
    struct pst_ctx ctx; /* of cred, with the request's id */
    struct once once;   /* the id's, until the handler is done */
    uint32_t slot;      /* the id's with its origin, as once.h has it */
    uint64_t start_ns, trace; /* trace: its id for the logs */
    uint64_t walked;    /* the directory that the name's way led to; 0: it had none */
    bool later;         /* put off: the handler has done nothing, and is called again (rpc_later) */
    enum rpc_code code; /* RPC_OK: what the table has for the errno */
    char text[300];
    const char *act; /* for the audit log: what an administrator's request is called, and what it is about */
    char what[2 * PST_LABEL_MAX + 40];
    struct arena a;
};

/* ---- requests (service.c) ---- */

/* Runs a handler on a packed message. 0 and a packed reply (malloc), or -errno with q's code and text. */
void ctl_req_init(struct ctl_req *q, struct ctl_server *s, struct rpc_call *c);
void ctl_req_done(struct ctl_req *q);
/* The id that the request came with, for the logs; 0: it keeps the one that it was given here. */
void ctl_trace(struct ctl_req *q, uint64_t id);
/* The request, of this type of message, ends with r: for the logs. */
void ctl_tell(const struct ctl_req *q, const ProtobufCMessageDescriptor *in, int r);
/* Returns err. */
int ctl_fail(struct ctl_req *q, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/*
 * What a request ends with. What fails when its session has ended meanwhile may fail for that alone (its handles are
 * gone): then -ESTALE, by which the client asks again in its next session.
 */
int ctl_result(struct ctl_req *q, int r);
/* -ECANCELED or -ETIMEDOUT when nobody waits for the reply any more. */
int ctl_still_wanted(struct ctl_req *q);
/* The same, else waits a moment: between two looks at what another thread does. */
int ctl_pause(struct ctl_req *q);
/* Finds the session (q->sess); -ESTALE. */
int ctl_need_session(struct ctl_req *q, ProtobufCBinaryData id);
/* The same by a header of which no more is wanted. */
int ctl_need_party(struct ctl_req *q, const PB(AdminHeader) * h);
/* And of a credential that may speak for others. */
int ctl_need_origin(struct ctl_req *q, const PB(AdminHeader) * h);
/* Session, cred and request id. */
int ctl_need_cred(struct ctl_req *q, ProtobufCBinaryData id, const PB(Cred) * cred, const PB(RequestId) * rid);
/* All that a namespace request's header says, with the container. */
int ctl_need_header(struct ctl_req *q, const PB(Header) * h);
/* And of a request about pools, containers or tenants. */
int ctl_need_admin_header(struct ctl_req *q, const PB(AdminHeader) * h);
bool ctl_is_admin(const struct ctl_req *q);
int ctl_need_admin(struct ctl_req *q);
/* The request changes what users see of the server: it goes to the audit log, however it ends. */
void ctl_act(struct ctl_req *q, const char *act, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A line of the audit log about the request's session. */
void ctl_audit(struct ctl_req *q, const char *event, const char *what, int err);
/* An administrator of the whole server: one of its own tenant. */
bool ctl_is_operator(const struct ctl_req *q);
int ctl_need_operator(struct ctl_req *q);
/* svc_tenant.c: the header of a request for such an administrator alone. */
int ctl_need_operator_header(struct ctl_req *q, const PB(AdminHeader) * h);
/* Keys and values of a request, `max` at most. */
int ctl_need_settings(struct ctl_req *q, PB(TenantLimit) *const *settings, size_t n, size_t max, const char ***ret_keys,
                      const char ***ret_values);
/* ctl_act: "anna rate=200M weight=3", as much as there is room for, and no token. */
void ctl_act_settings(struct ctl_req *q, const char *act, const char *name, PB(TenantLimit) *const *settings, size_t n);
/* A name of 1..max bytes without NUL, as a string. -EINVAL, -ENAMETOOLONG, -ENOMEM. */
int ctl_name(struct ctl_req *q, ProtobufCBinaryData b, size_t max, const char **ret);
PB(Attr) * ctl_attr(struct ctl_req *q, const struct pst_attr *a); /* NULL: no memory */
int ctl_bytes(struct ctl_req *q, const void *p, size_t n, ProtobufCBinaryData *ret);

/* ---- the services' methods ---- */

extern const struct ctl_method ctl_session_methods[], ctl_admin_methods[], ctl_cap_methods[], ctl_status_methods[],
    ctl_ns_methods[], ctl_tenant_methods[], ctl_credential_methods[];
extern const size_t ctl_session_nmethods, ctl_admin_nmethods, ctl_cap_nmethods, ctl_status_nmethods, ctl_ns_nmethods,
    ctl_tenant_nmethods, ctl_credential_nmethods;

/* Of SessionService: svc_third.c. */
ctl_handler ctl_third_party, ctl_third_ticket;
bool ctl_has_shard(const struct ctl_tenant *t, uint32_t shard); /* svc_session.c */
/* Of NamespaceService: svc_ns_open.c, svc_ns_data.c. */
ctl_handler ctl_ns_open, ctl_ns_close, ctl_ns_create, ctl_ns_fsync, ctl_ns_write;
/* svc_namespace.c: a name, or the way to it and the name: the way goes into the context. */
int ctl_path(struct ctl_req *q, ProtobufCBinaryData b, const char **ret);
/* Makes what a name of the request's stands for. */
int ctl_make(struct ctl_req *q, uint64_t parent, ProtobufCBinaryData name_bytes, const struct pst_new *what,
             struct pst_attr *ret, bool *ret_created);
void ctl_ns_stream(struct rpc_call *c, const void *msg, size_t len, void *user);
void ctl_scrub(struct rpc_call *c, const void *msg, size_t len, void *user);
void ctl_scrub_join(struct ctl_server *s);
void ctl_health_check(struct rpc_call *c, const void *msg, size_t len, void *user);
void ctl_health_watch(struct rpc_call *c, const void *msg, size_t len, void *user);
void ctl_health_unwatch(struct rpc_call *c, void *user);
void ctl_health_stop(struct ctl_server *s); /* tells the watchers, and lets them go */
void ctl_reflect(struct rpc_call *c, const void *msg, size_t len, void *user);
/* Is there such a service? (reflect.c, from the descriptors.) */
bool ctl_has_service(const char *name);

/* tenants.c. A live tenant, counted (ctl_ten_put, which accepts NULL), or NULL. */
struct ctl_ten *ctl_ten_get(struct ctl_server *s, uint32_t number);
struct ctl_ten *ctl_ten_find(struct ctl_server *s, const char *name);
void ctl_ten_put(struct ctl_ten *t);
uint32_t ctl_ten_number(const struct ctl_server *s, const struct ctl_ten *t);
int ctl_tenants_start(struct ctl_server *s, const struct ctl_config *cfg, char *err, size_t err_size);
void ctl_tenants_stop(struct ctl_server *s); /* no session is left: closes their queues */
void ctl_tenants_free(struct ctl_server *s);
/* Who the peer's certificate, or this token, is: the credential, and, if asked for, its tenant, counted. */
bool ctl_cert_cred(struct ctl_server *s, struct rpc_call *c, struct ctl_cred *ret, struct ctl_ten **ret_ten);
bool ctl_token_cred(struct ctl_server *s, const void *token, size_t len, struct ctl_cred *ret,
                    struct ctl_ten **ret_ten);
bool ctl_cred_alive(struct ctl_server *s, uint64_t id);
/* Mints the capability for an object under the container's key. */
int ctl_mint(struct ctl_req *q, const struct cap_grant *narrow, ProtobufCBinaryData *ret, uint64_t *ret_key_id);

#endif

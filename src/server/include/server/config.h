/*
 * The daemon's configuration: a YAML file (penstock.yaml(5)), and for every option of it but the tenants a flag of
 * `penstock serve`.
 * Flags win over the file. Everything is checked before anything is opened; an error names the key, the value, what is
 * allowed, and the line of the file.
 */
#ifndef SERVER_CONFIG_H
#define SERVER_CONFIG_H

#include "base/log.h"
#include "store/store.h"

#include <stdbool.h>
#include <stdint.h>

/* Defaults and limits, with the unit. */
#define SRV_CONTROL_LISTEN "127.0.0.1:7440"
#define SRV_METRICS_LISTEN "127.0.0.1:7441"
#define SRV_SHARDS_MAX     64u
#define SRV_TENANTS_MAX    256u /* with the server's own */
#define SRV_SHARDS_ALL     256u /* of all tenants: each is a thread with a domain */
#define SRV_WEIGHT_MAX     10000u
#define SRV_LEASE_MS       30000u
#define SRV_DRAIN_MS       10000u
#define SRV_SESSIONS       4096u
#define SRV_CONNECTIONS    16384u
#define SRV_BUFFER_BYTES   (1 * MiB)  /* one buffer: the unit in which large requests are split */
#define SRV_BUFFER_MEMORY  (64 * MiB) /* all buffers of one shard */
#define SRV_EXPORT_MEMORY  (4 * GiB)  /* clients' memory mapped here, all together; a quarter for each credential */
#define SRV_READ_AHEAD     (4 * MiB)
#define SRV_READ_AHEAD_MAX (1 * GiB)
#define SRV_SPIN_US        20u
#define SRV_AUDIT_SIZE     (64 * MiB)
#define SRV_AUDIT_KEEP     8u
#define SRV_WINDOW         (4 * MiB) /* enough for a disk to be busy */

#define SRV_BACKEND_MS     120000u /* how long an agent's requests wait for its backend: as a mount does */

/* Where an agent's files are, and as whom it goes there. Options that are not set: NULL, false. */
struct srv_backend {
    const char *url, *token_file, *ca, *cert, *key, *provider;
    bool insecure, require_rdma;
    uint64_t timeout_ms;
};

struct srv_container {
    const char *label;
    struct pst_cont_props props;
};

struct srv_pool {
    const char *label;
    uint64_t quota_bytes;
    uint32_t uid, gid, mode;
    struct srv_container *containers;
    unsigned ncontainers;
};

/* Who may open a session: by a token, or by the common name of a client certificate. */
struct srv_credential {
    const char *name, *token, *token_file, *cn;
    uint32_t uid, gid;
    bool any_uid; /* may act for every uid (mounts for several users) */
    bool origin;  /* an agent's: may speak for clients of its own */
    bool admin;   /* may create and destroy pools, scrub, revoke others' capabilities; of a tenant: in it */
    unsigned tenant; /* number in srv_config.tenants; 0: the server's own */
};

/* Who is kept apart from others. 0 and NULL: no limit of its own. */
struct srv_tenant {
    const char *name;
    char **containers; /* POOL/CONTAINER, or POOL and a star; none: all */
    unsigned ncontainers;
    char **filters; /* of its own, above what all have; first is lowest */
    unsigned nfilters;
    uint64_t quota_bytes, quota_objects;
    uint64_t weight;                               /* of its share; never 0 */
    uint64_t bytes_per_s, ops_per_s;               /* 0: no limit */
    uint64_t burst_bytes, burst_ops;               /* 0: a tenth of a second's */
    uint64_t max_sessions, max_connections;        /* 0: the server's */
    uint64_t shards, buffer_memory;                /* never 0 */
    uint64_t cache_bytes, read_ahead;              /* an agent's; 0: none */
    /* An agent's: its credential at the server behind. NULL: the agent's own. */
    const char *backend_token_file, *backend_cert, *backend_key;
    struct pst_option *store_opts; /* the backend's, with these; not the server's own: that has srv_config.store_opts */
    unsigned nstore_opts;
};

/* All strings belong to the struct. */
struct srv_config {
    struct srv_text *text; /* private */

    bool agent; /* role: agent: no store of its own, but that of its backend */
    struct srv_backend backend;
    const char *store_url; /* the backend's URL too */
    struct pst_option *store_opts;
    unsigned nstore_opts;
    char **filters;
    unsigned nfilters;
    uint64_t cache_bytes, read_ahead; /* of the server's own tenant; read_ahead: the default of the others */
    struct srv_pool *pools;
    unsigned npools;
    struct srv_credential *credentials;
    unsigned ncredentials;
    struct srv_tenant *tenants; /* the first one is the server's own, "default": it sees all */
    unsigned ntenants;

    char **control_listen;
    unsigned ncontrol_listen;
    bool insecure;
    bool local_token; /* let in whoever can read the token file that the daemon makes for its local addresses */
    const char *tls_ca, *tls_cert, *tls_key; /* all three or none */
    uint64_t lease_ms, max_sessions;

    const char *data_listen; /* host:port; NULL: the host of the first control address, any port */
    const char *data_advertise;
    const char *data_provider;
    bool data_require_rdma, data_clear; /* data_clear: security: clear */
    uint64_t data_shards;               /* never 0 */
    uint64_t data_credits, data_spin_us, data_buffer_bytes, data_buffer_memory, max_connections;

    const char *export_listen; /* path of a Unix socket; NULL: no memory is taken */
    uint64_t export_memory;
    bool third_party; /* an agent's clients may have connections of their own to the server behind it */
    uint64_t limit_bytes, limit_ops; /* a second, of the server's own tenant; 0: none */
    uint64_t window_bytes;           /* qos_config.window_cost */

    const char *metrics_listen; /* NULL: off */
    const char *metrics_token_file; /* NULL: anybody reads it, and it tells of no tenant */
    const char *audit_file;     /* NULL: none */
    uint64_t audit_size, audit_keep;
    enum log_level log;
    uint64_t log_slow_ms; /* 0: none */
    const char *tenants_file; /* limits set at run time; NULL: they are not kept */
    const char *run_as; /* a user's name; NULL: stay */
    uint64_t drain_ms;
};

struct srv_config *srv_config_new(void);
void srv_config_free(struct srv_config *c); /* accepts NULL */
/* Reads a file. 0, -errno of reading it, -EINVAL with the line in err. Once, before the flags. */
int srv_config_load(struct srv_config *c, const char *path, char *err, size_t err_size);
/* Sets what the flag `name` (without dashes) stands for. A repeatable flag adds; the first one replaces the file's
 * list. */
int srv_config_flag(struct srv_config *c, const char *name, const char *value, char *err, size_t err_size);
/* Parses and checks all; then the fields above are set. */
int srv_config_finish(struct srv_config *c, char *err, size_t err_size);
/* The options as "key: value" lines, without secrets: for status and support. Before or after finish. */
void srv_config_describe(const struct srv_config *c, void (*fn)(void *user, const char *key, const char *value),
                         void *user);

struct srv_flag {
    const char *name, *arg, *help; /* arg NULL: takes none */
};
/* NULL past the last. */
const struct srv_flag *srv_config_flag_at(size_t i);

/* ---- values, as the file and the flags (and the command line's other options) write them ---- */

/* "500ms", "30s", "5m"; without unit: seconds. 0 or -EINVAL. Numbers and sizes: base/parse.h. */
int srv_parse_ms(const char *s, uint64_t *ret);
/* Permission bits in octal: "755", "0755". */
int srv_parse_mode(const char *s, uint32_t *ret);
int srv_parse_bool(const char *s, bool *ret);
/* "host:port", "[v6]:port", "unix:/path" (port empty then). 0, -EINVAL, -ENAMETOOLONG. */
#define SRV_HOST_MAX 256
int srv_parse_addr(const char *s, char ret_host[SRV_HOST_MAX], uint16_t *ret_port);
/* Is the host loopback (or a Unix socket)? Names are: "localhost" only. */
bool srv_addr_is_local(const char *addr);

#endif

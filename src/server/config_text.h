/* The configuration as it is written: strings, in the shape of the YAML file. Flags are written over it. */
#ifndef SERVER_CONFIG_TEXT_H
#define SERVER_CONFIG_TEXT_H

#include "server/config.h"

struct text_store {
    char *url;
    char **options;
    unsigned options_count;
};
struct text_backend {
    char *url, *token_file, *ca, *cert, *key, *insecure, *provider, *require_rdma, *timeout;
};
struct text_container {
    char *label, *chunk_size, *quota, *uid, *gid, *mode;
};
struct text_pool {
    char *label, *quota, *uid, *gid, *mode;
    struct text_container *containers;
    unsigned containers_count;
};
struct text_tls {
    char *ca, *cert, *key;
};
struct text_control {
    char **listen;
    unsigned listen_count;
    char *insecure, *local_token, *lease, *max_sessions;
    struct text_tls tls;
};
struct text_data {
    char *listen, *advertise, *provider, *require_rdma, *security, *shards, *credits, *spin_us, *buffer_size,
        *buffer_memory, *export_listen, *export_memory, *third_party, *max_connections;
};
struct text_credential {
    char *name, *token, *token_file, *cn, *uid, *gid, *any_uid, *admin, *origin, *tenant;
};
struct text_tenant {
    char *name;
    char **containers;
    unsigned containers_count;
    char **filters;
    unsigned filters_count;
    char *quota, *quota_objects, *weight, *rate, *rate_ops, *burst, *burst_ops, *max_sessions, *max_connections,
        *shards, *buffer_memory, *cache, *read_ahead, *backend_token_file, *backend_cert, *backend_key;
};
struct text_limits {
    char *bytes, *operations, *window;
};
struct text_audit {
    char *file, *size, *keep;
};
struct text_metrics {
    char *listen, *token_file;
};
struct text_values {
    char *role;
    struct text_backend backend;
    struct text_store store;
    char **filters;
    unsigned filters_count;
    char *cache, *read_ahead;
    struct text_pool *pools;
    unsigned pools_count;
    struct text_control control;
    struct text_data data;
    struct text_credential *credentials;
    unsigned credentials_count;
    struct text_tenant *tenants;
    unsigned tenants_count;
    struct text_limits limits;
    struct text_metrics metrics;
    struct text_audit audit;
    char *log, *log_slow, *tenants_file, *user, *drain;
};

#define TEXT_FLAGS 64
struct srv_text {
    struct text_values *v; /* allocated as cyaml does it: malloc and free */
    char *path;            /* of the file; NULL: none was read */
    bool set[TEXT_FLAGS];  /* by the flag of this number (srv_config_flag_at) */
};

/* 0 or -errno; err as in srv_config_load. */
int text_load(struct srv_text *t, const char *path, char *err, size_t err_size);
void text_free_values(struct text_values *v);
/* Line (from 1) of "data.shards" or "pools[0].label" in the file that was read; 0: not from there. */
unsigned text_line(const struct srv_text *t, const char *key);

#endif

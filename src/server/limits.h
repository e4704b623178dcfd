/*
 * What a tenant may take: as the configuration has it, as it was set at run time, and what holds of both. A limit that
 * was set at run time stands in for the configuration's until it is given back, also over restarts where `tenants_file`
 * is set.
 */
#ifndef SERVER_LIMITS_H
#define SERVER_LIMITS_H

#include "config_rows.h"

struct srv;
struct tenant;

/* Text as in the configuration; NULL: not set. Of text_tenant the limits alone, owned. */
struct limits {
    struct text_tenant base, set; /* set: "none" takes the configuration's away */
    struct srv_tenant now;        /* the limits of both; checked */
};

/*
 * Before anything of the tenant is opened, and after what the file has of it was taken: `now`. err: a line for people.
 */
int limits_start(struct tenant *t, char *err, size_t err_size);
void limits_stop(struct tenant *t);
/* For tenants_file: a limit that was set, as it has it (-EINVAL: none, or not a value); and all of them. */
bool limits_is_key(const char *key);
int limits_take(struct tenant *t, const char *key, const char *value);
void limits_each_set(const struct tenant *t, void (*fn)(void *arg, const char *key, const char *value), void *arg);
/*
 * All or nothing: values as in the configuration, "none" for no limit, "" for that of the configuration. ret_kept: they
 * hold after a restart too. -EINVAL; -EOPNOTSUPP: of the server's own; or why tenants_file cannot be written. Any
 * thread, as the next two.
 */
int limits_set(struct srv *srv, uint32_t tenant, const char *const *keys, const char *const *values, size_t n,
               bool *ret_kept, char *err, size_t err_size);
/* The configuration was read again: its limits hold from now on, but for those that were set at run time. */
void limits_reload(struct srv *srv, const struct srv_config *again);
/* fn(key, text) of each that holds; and ("set_at_run_time", key) of each that was. */
void limits_describe(const struct tenant *t, void (*fn)(void *arg, const char *key, const char *value), void *arg);

#endif

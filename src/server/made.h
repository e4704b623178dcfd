/*
 * Tenants and credentials that are made and deleted at run time, in the words of the configuration's entries and by
 * their rules (config_rows.h). The configuration is never written: what was made is kept in tenants_file, whole or as
 * it was before.
 *
 * One change at a time (srv.change_lock). A tenant's end has two parts. First it is none any more, for the file, for
 * who comes and for who is there; then, without the lock, it is taken apart as the things of it are let go: its shards'
 * threads end, the control plane says that nobody holds a session, container or request of it (ctl_tenant_remove), and
 * only then its number, memory, domain and store go. A number or a name that is used again has nothing of the one
 * before.
 */
#ifndef SERVER_MADE_H
#define SERVER_MADE_H

#include "base/list.h"
#include "config_rows.h"
#include "control/service.h"

struct srv;
struct tenant;

#define MADE_VALUE_MAX 4096u /* bytes of a value, as in the configuration */
#define MADE_LIST_MAX  256u  /* containers, and filters, of a tenant */
#define MADE_CREDS_MAX 4096u

struct made_tenant {
    struct text_tenant text; /* owned */
    struct srv_tenant cfg;   /* of it; checked */
    uint8_t life[16];        /* struct ctl_tenant */
};

struct made_cred {
    struct list link;            /* srv.creds */
    struct text_credential text; /* owned; without the token */
    struct srv_credential cfg;   /* of it; checked */
    uint8_t token_hash[32];      /* if it is by a token */
    uint64_t id;                 /* the control server's */
};

/* made_text.c: by the keys of the configuration. -EINVAL with a line in err that has no value of a secret. */
int made_tenant_key(struct text_tenant *t, const char *key, const char *value, char *err, size_t err_size);
int made_cred_key(struct text_credential *c, const char *key, const char *value, char *err, size_t err_size);
/* fn(key, value) of all that are set, but the name. */
void made_tenant_each(const struct text_tenant *t, void (*fn)(void *arg, const char *key, const char *value),
                      void *arg);
void made_cred_each(const struct text_credential *c, void (*fn)(void *arg, const char *key, const char *value),
                    void *arg);
/* NULL: there is none. Need limits_lock, or the start. */
struct made_cred *made_cred_find(struct srv *srv, const char *name);
const struct srv_credential *made_cred_configured(const struct srv *srv, const char *name);
int made_tenant_new(const char *name, struct made_tenant **ret);
int made_cred_new(const char *name, struct made_cred **ret);
void made_tenant_free(struct made_tenant *m); /* accepts NULL, as the next */
void made_cred_free(struct made_cred *c);
/* By the configuration's rules, and some more: into m->cfg. */
int made_tenant_check(const struct srv_config *cfg, struct made_tenant *m, char *err, size_t err_size);
/* has_hash: by a token that is not here any more. */
int made_cred_check(const struct srv_config *cfg, struct made_cred *c, bool has_hash, char *err, size_t err_size);

/*
 * tenants_file.c: what was made, and limits that were set. Needs limits_lock. Whole, or as it was, also over a crash.
 */
int tenants_file_load(struct srv *srv, char *err, size_t err_size);
int tenants_file_save(struct srv *srv);
/* Says in err why not. 0 without a file. */
int tenants_file_keep(struct srv *srv, char *err, size_t err_size);

/* asleep.c: credentials and limits of tenants that are not there. All need limits_lock, or the start. */
int asleep_limit(struct srv *srv, const char *name, const char *key, const char *value);
struct made_cred *asleep_cred_find(struct srv *srv, const char *name); /* NULL: none */
/* With the same certificate or token: it could not be told from c once it wakes. */
struct made_cred *asleep_twin(struct srv *srv, const struct made_cred *c);
void asleep_limits_each(struct srv *srv, void (*fn)(void *arg, const char *name, const char *key, const char *value),
                        void *arg);
unsigned asleep_creds(const struct srv *srv);
unsigned asleep_of(struct srv *srv, const char *tenant); /* how many there are of it */
/* All of it, here and in tenants_file, or, if that cannot be written, nothing. */
int asleep_delete(struct srv *srv, const char *tenant, char *err, size_t err_size);
void asleep_free(struct srv *srv);

/* made.c: see struct ctl_hooks. Any thread. */
int made_tenant_create(struct srv *srv, const char *name, const char *const *keys, const char *const *values, size_t n,
                       bool *ret_kept, char *err, size_t err_size);
int made_tenant_delete(struct srv *srv, const char *name, uint32_t *ret_n, bool *ret_kept, char *err, size_t err_size);

/* made_cred.c */
int made_cred_create(struct srv *srv, const char *name, const char *const *keys, const char *const *values, size_t n,
                     const char *token, char ret_token[CTL_TOKEN_MAX], bool *ret_kept, char *err, size_t err_size);
int made_cred_delete(struct srv *srv, const char *name, uint32_t *ret_n, bool *ret_kept, char *err, size_t err_size);
void made_creds_list(struct srv *srv, void (*fn)(void *arg, const struct ctl_cred_info *c), void *arg);
/* At the start: all, of the configuration and made, in the order of their ids; creds has room for them. */
int made_creds_start(struct srv *srv, struct ctl_cred *creds, char *err, size_t err_size);
void made_creds_free(struct srv *srv);

#endif

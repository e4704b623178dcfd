/* What the files of the configuration share: the table of options, and how an error is told. */
#ifndef SERVER_CONFIG_ROWS_H
#define SERVER_CONFIG_ROWS_H

#include "config_text.h"

enum kind { K_STR, K_UINT, K_SIZE, K_MS, K_BOOL, K_LIST, K_POOL, K_CONTAINER, K_CREDENTIAL };

struct option_row {
    struct srv_flag flag;
    const char *key; /* in the file */
    enum kind kind;
    size_t text;  /* of the char * (lists: char **, followed by the count) in struct text_values */
    size_t value; /* in struct srv_config */
    uint64_t min, max;
};

extern const struct option_row config_rows[];
extern const size_t config_nrows;
/* The row of a flag that there is. */
const struct option_row *config_row(const char *flag);
/*
 * "penstock.yaml: line 3: data.shards: "x": must be ..." or "--shards: "x": must be ...": -EINVAL. o may be NULL: no
 * flag stands for it; value NULL: it is missing.
 */
int config_bad(const struct srv_config *c, const struct option_row *o, const char *key, const char *value,
               const char *why, char *err, size_t err_size);
/* "64K", "1T", in the largest unit of which it is a whole number; ret. */
#define SIZE_TEXT 24
const char *config_size_text(uint64_t bytes, char ret[SIZE_TEXT]);
/* "a=1,b" and the like over the text; see config_flags.c. */
int config_add_string(char ***list, unsigned *count, const char *value);
int config_set_string(char **at, const char *value);
/* Members of list entries: key is "pools[0].quota". */
struct config_member {
    const char *name, *text;
    enum { M_SIZE, M_UID, M_MODE, M_BOOL, M_UINT } kind;
    void *out;
    uint64_t min, max; /* M_UINT; M_SIZE: min */
};
int config_check_members(const struct srv_config *c, const struct option_row *o, const char *prefix,
                         const struct config_member *m, size_t n, char *err, size_t err_size);
/* Of a tenant's text its limits, checked, into k; in errors it is called prefix: "tenants[0]". */
int config_tenant_limits(const struct srv_config *c, const char *prefix, const struct text_tenant *t,
                         struct srv_tenant *k, char *err, size_t err_size);
/*
 * An entry of a list, checked, into k, which borrows the text; of a tenant k->store_opts is to be freed. Names of the
 * configuration's tenants are taken. Of a credential the tenant is not looked for.
 */
int config_tenant(const struct srv_config *c, const char *prefix, const struct text_tenant *t, struct srv_tenant *k,
                  char *err, size_t err_size);
int config_credential(const struct srv_config *c, const char *prefix, const struct text_credential *t,
                      struct srv_credential *k, char *err, size_t err_size);
/* Where the page of metrics may be read by anybody, no tenants may be. */
int config_metrics_for_tenants(const struct srv_config *c, char *err, size_t err_size);
/* A tenant without credentials is of no use to anybody. */
int config_tenants_used(const struct srv_config *c, char *err, size_t err_size);
/* config_lists.c: the lists of the text, checked, into the configuration. */
int config_check_pools(struct srv_config *c, char *err, size_t err_size);
int config_check_tenants(struct srv_config *c, char *err, size_t err_size);
int config_check_credentials(struct srv_config *c, char *err, size_t err_size);

#endif

/* What a server (or a store in a directory) says of itself, as JSON. */
#ifndef CLI_STATUS_H
#define CLI_STATUS_H

#include "cli.h"

/* NULL with a message printed. */
json_t *status_json(const struct cli_url *u, const struct cli_conn *k, int *ret_exit);
json_t *metrics_json(const struct cli_url *u, const struct cli_conn *k, int *ret_exit);
/* name NULL: all */
json_t *tenants_json(const struct cli_url *u, const struct cli_conn *k, const char *name, int *ret_exit);
/* A key that comes several times has a list of values. */
void cli_add_fact(json_t *facts, const char *key, const char *value);
void cli_print_fact(const char *key, const json_t *v);
bool cli_is_remote(const struct cli_url *u);

#endif

/* What a server (or a store in a directory) says of itself, as JSON. */
#ifndef CLI_STATUS_H
#define CLI_STATUS_H

#include "cli.h"

/* NULL with a message printed. */
json_t *status_json(const struct cli_url *u, const struct cli_conn *k, int *ret_exit);
json_t *metrics_json(const struct cli_url *u, const struct cli_conn *k, int *ret_exit);

#endif

/*
 * The daemon as a library: a store from the registry with filters on top, the control server, and data shards, joined.
 *
 *   clients --gRPC--> control threads ----> namespace operations \
 *   clients --RDMA/tcp--> shard threads --> data operations ------+--> filters --> store
 *
 * A program registers its engines (pst_backend_register) and blocks the signals that it wants to wait for before
 * srv_start.
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "server/config.h"

struct srv;

/* cfg was finished, is borrowed, and outlives the daemon. 0, or -errno and a line for people in err. */
int srv_start(const struct srv_config *cfg, struct srv **ret, char *err, size_t err_size);
/* Port taken by control_listen[i]; 0 for a Unix socket. Port of the metrics page; 0 when off. */
int srv_control_port(const struct srv *s, unsigned i);
int srv_metrics_port(const struct srv *s);
/*
 * Drains and ends: no new connections, requests under way are answered (for cfg->drain_ms at most), sessions are
 * closed, the store is synced and closed. Frees s. 0, or the first error of closing down.
 */
int srv_stop(struct srv *s);

/*
 * The configuration was read again: takes over the log's level and log_slow, and the limits of tenants, but for those
 * that were set at run time. What else has changed needs another start; of tenants that is logged. again is not needed
 * afterwards.
 */
void srv_reload(struct srv *s, const struct srv_config *again);
/* The audit log's file is opened anew: it was moved away. Any thread. */
void srv_reopen_audit(struct srv *s);

/* Tells the service manager ("READY=1") over $NOTIFY_SOCKET; does nothing without one. */
void srv_notify(const char *state);

#endif

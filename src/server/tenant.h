/*
 * A tenant: what of the daemon is its alone. Nothing of it is ever handed to another one: its store (the topmost filter
 * of a stack whose bottom the tenants share), its fabric domain, its shards with their threads, endpoints and buffers.
 * A session belongs to the tenant of its credential, and only that tenant's shards take its tickets.
 *
 * The first one, "default", is the server's own: of credentials that name no tenant, and of the token files. It sees
 * the whole store.
 */
#ifndef SERVER_TENANT_H
#define SERVER_TENANT_H

#include "control/service.h"
#include "fabric/fabric.h"
#include "limits.h"
#include "server/config.h"
#include "turn.h"

#include <stdatomic.h>

struct made_tenant;
struct mem_region;
struct shard;
struct srv;

struct tenant {
    struct srv *srv;
    unsigned id; /* in srv->tenants, and ctl's number of it */
    const struct srv_tenant *cfg; /* as the configuration had it at the start, or made->cfg; its limits: below */
    struct made_tenant *made;     /* owned; NULL: of the configuration */
    bool gone;                    /* deleted: it is being taken apart; under srv.limits_lock */
    struct limits limits;         /* under srv.limits_lock */
    struct share share;
    struct pst_store *store; /* topmost filter */
    struct pst_store *quota; /* among them; NULL: the server's own tenant has none */
    struct mem_region *cache_region; /* NULL: no cache */
    struct mem_region *sealed_region; /* from which the queues below read what is encrypted; NULL: none */
    struct fab *fab;
    struct shard *shards; /* shard.id counts over all tenants */
    unsigned nshards;
    struct ctl_endpoint endpoints[SRV_SHARDS_MAX];
    atomic_uint nconns;
    _Atomic uint64_t max_connections; /* 0: the server's */
};

/* Store, then domain and shards; err: a line for people. What was opened before an error is closed by tenant_close. */
int tenant_open_store(struct tenant *t, char *err, size_t err_size);
int tenant_start_data(struct tenant *t, unsigned first_shard, char *err, size_t err_size);
/* Its shards' threads end, and with them all connections; who goes over the tenants still finds the shards. */
void tenant_end_data(struct tenant *t);
/* After that; what is left of them. */
void tenant_stop_data(struct tenant *t);
/* As the control server is told of it, once all of the above is there. */
struct ctl_tenant tenant_for_control(const struct tenant *t);
/* Its part of the store, by these limits. */
struct qos_limits tenant_shares(const struct srv_tenant *k);
/* Its entry of the configuration with the limits that hold, without secrets. */
void tenant_describe(const struct tenant *t, void (*fn)(void *arg, const char *key, const char *value), void *arg);
/* After. */
void tenant_close(struct tenant *t);

#endif

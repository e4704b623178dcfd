/* What a tenant has of its own, opened and closed. */
#include "tenant.h"

#include "data.h"

#include <errno.h>

int tenant_open_store(struct tenant *t, char *err, size_t err_size)
{
    (void)err;
    (void)err_size;
    t->store = t->srv->store;
    return 0;
}

int tenant_start_data(struct tenant *t, unsigned first_shard, char *err, size_t err_size)
{
    const struct srv_config *cfg = t->srv->cfg;
    struct fab_config fc = {
        .provider = cfg->data_provider,
        .require_rdma = cfg->data_require_rdma,
        .credits = (uint32_t)cfg->data_credits,
    };
    int r = fab_open(&fc, &t->fab, err, err_size);

    if (r < 0)
        return r;
    t->shards = calloc(cfg->data_shards, sizeof *t->shards);
    if (!t->shards)
        return -ENOMEM;
    for (unsigned i = 0; r == 0 && i < cfg->data_shards; i++) {
        t->shards[i].wake = -1;
        r = shard_start(t, first_shard + i, &t->shards[i], err, err_size);
        t->nshards++;
        t->endpoints[i] = t->shards[i].endpoint;
    }
    return r;
}

void tenant_stop_data(struct tenant *t)
{
    for (unsigned i = 0; i < t->nshards; i++)
        shard_stop(&t->shards[i]);
}

void tenant_close(struct tenant *t)
{
    free(t->shards);
    if (t->fab)
        fab_close(t->fab);
}

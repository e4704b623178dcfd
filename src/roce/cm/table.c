/* Ids: by the number that we gave, by the peer's number, by the peer's queue pair. */
#include "impl.h"

static uint32_t bucket(uint32_t v)
{
    return (uint32_t)((uint64_t)v * 2654435761u >> 16) % CM_BUCKETS;
}

bool cm_same_way(const struct cm_path *a, const struct cm_path *b)
{
    return !memcmp(&a->local, &b->local, sizeof a->local) && !memcmp(&a->remote, &b->remote, sizeof a->remote);
}

struct cm_id *cm_table_local(const struct cm_engine *e, uint32_t local_id)
{
    list_for_each (it, &e->by_local[bucket(local_id)]) {
        struct cm_id *id = list_entry(it, struct cm_id, by_local);
        if (id->local_id == local_id)
            return id;
    }
    return NULL;
}

/* The slot, and 24 bits that a stranger does not guess. */
static uint32_t fresh_local_id(struct cm_engine *e)
{
    for (;;) {
        uint32_t v = (uint32_t)e->cfg.id_slot << 24 | (1 + (uint32_t)rng_below(&e->rng, 0xffffff));
        if (!cm_table_local(e, v))
            return v;
    }
}

struct cm_id *cm_table_new(struct cm_engine *e, enum uroce_cm_space space)
{
    if (e->st.ids >= e->cfg.max_ids || cm_heap_reserve(e, e->st.ids + 1))
        return NULL;
    struct cm_id *id = calloc(1, sizeof *id);
    if (!id)
        return NULL;
    id->e = e;
    id->space = space;
    id->owned = true;
    id->deadline = UINT64_MAX;
    id->local_id = fresh_local_id(e);
    list_init(&id->by_remote);
    list_init(&id->by_qpn);
    list_init(&id->out);
    list_init(&id->bind_link);
    list_init(&id->children);
    list_init(&id->child_link);
    list_push_back(&e->by_local[bucket(id->local_id)], &id->by_local);
    list_push_back(&e->all, &id->all);
    e->st.ids++;
    return id;
}

void cm_table_free(struct cm_id *id)
{
    cm_timer_set(id, UINT64_MAX);
    cm_taken(id);
    list_for_each_safe (it, &id->children)
        cm_taken(list_entry(it, struct cm_id, child_link));
    cm_unbind(id);
    list_del(&id->by_local);
    list_del(&id->by_remote);
    list_del(&id->by_qpn);
    list_del(&id->out);
    list_del(&id->all);
    id->e->st.ids--;
    free(id);
}

struct cm_id *cm_table_remote(const struct cm_engine *e, const struct cm_path *path, uint32_t remote_id, bool sidr)
{
    list_for_each (it, &e->by_remote[bucket(remote_id)]) {
        struct cm_id *id = list_entry(it, struct cm_id, by_remote);
        bool is_sidr = id->state == CM_SIDR_REQ_RCVD || id->state == CM_SIDR_DONE;
        if (id->remote_id == remote_id && is_sidr == sidr && cm_same_way(&id->path, path))
            return id;
    }
    return NULL;
}

void cm_table_set_remote(struct cm_id *id, uint32_t remote_id)
{
    id->remote_id = remote_id;
    list_del(&id->by_remote);
    list_push_back(&id->e->by_remote[bucket(remote_id)], &id->by_remote);
}

struct cm_id *cm_table_qpn(const struct cm_engine *e, const struct cm_path *path, uint64_t guid, uint32_t qpn)
{
    list_for_each (it, &e->by_qpn[bucket(qpn)]) {
        struct cm_id *id = list_entry(it, struct cm_id, by_qpn);
        if (id->remote_qpn == qpn && id->remote_guid == guid && cm_same_way(&id->path, path))
            return id;
    }
    return NULL;
}

void cm_table_set_qpn(struct cm_id *id, uint64_t guid, uint32_t qpn)
{
    id->remote_guid = guid;
    id->remote_qpn = qpn;
    list_del(&id->by_qpn);
    if (qpn)
        list_push_back(&id->e->by_qpn[bucket(qpn)], &id->by_qpn);
}

void cm_table_forget_peer(struct cm_id *id)
{
    list_del(&id->by_remote);
    list_del(&id->by_qpn);
}

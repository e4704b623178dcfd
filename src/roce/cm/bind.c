/* Ports: who has which, and who listens at one. */
#include "impl.h"

/* Does an id's address take in that one? */
static bool covers(const struct cm_id *id, const union uroce_gid *g)
{
    if (!id->any)
        return !memcmp(&id->local.gid, g, sizeof *g);
    return wire_gid_is_v4(g) ? !id->any_v6 || !id->v6_only : id->any_v6;
}

static bool overlap(const struct cm_id *a, const struct cm_id *b)
{
    if (!a->any)
        return covers(b, &a->local.gid);
    if (!b->any)
        return covers(a, &b->local.gid);
    return a->any_v6 == b->any_v6 || !(a->any_v6 ? a->v6_only : b->v6_only);
}

static bool in_the_way(const struct cm_id *other, const struct cm_id *id)
{
    return other != id && other->space == id->space && other->local.port == id->local.port && overlap(other, id);
}

static bool port_taken(const struct cm_id *id)
{
    list_for_each (it, &id->e->bound) {
        const struct cm_id *other = list_entry(it, struct cm_id, bind_link);
        if (in_the_way(other, id) && !(other->reuse && id->reuse && other->state != CM_LISTEN))
            return true;
    }
    return false;
}

static int choose_port(struct cm_id *id)
{
    uint32_t n = CM_PORT_LAST - CM_PORT_FIRST + 1, start = (uint32_t)rng_below(&id->e->rng, n);

    for (uint32_t i = 0; i < n; i++) {
        id->local.port = (uint16_t)(CM_PORT_FIRST + (start + i) % n);
        if (!port_taken(id))
            return 0;
    }
    return -EADDRINUSE;
}

int cm_bind(struct cm_id *id, const struct uroce_cm_addr *local, unsigned int flags)
{
    if (id->bound || id->state != CM_IDLE)
        return -EINVAL;
    id->local = *local;
    id->any = wire_gid_is_any(&local->gid);
    id->any_v6 = id->any && !wire_gid_is_v4(&local->gid);
    id->v6_only = flags & UROCE_CM_V6_ONLY;
    id->reuse = flags & UROCE_CM_REUSE;
    int r = local->port ? port_taken(id) ? -EADDRINUSE : 0 : choose_port(id);
    if (r) {
        id->local = (struct uroce_cm_addr){.port = 0};
        return r;
    }
    id->bound = true;
    list_push_back(&id->e->bound, &id->bind_link);
    return 0;
}

void cm_unbind(struct cm_id *id)
{
    list_del(&id->bind_link);
    id->bound = false;
}

/* Of an id that connects and was not bound. Others may have that port with another address. */
int cm_bind_any_port(struct cm_id *id)
{
    id->any = false;
    int r = choose_port(id);
    if (r)
        return r;
    id->bound = true;
    list_push_back(&id->e->bound, &id->bind_link);
    return 0;
}

int cm_listen(struct cm_id *id, uint32_t backlog)
{
    if (id->state != CM_LISTEN) {
        if (!id->bound || id->state != CM_IDLE || id->routed)
            return -EINVAL;
        list_for_each (it, &id->e->bound)
            if (in_the_way(list_entry(it, struct cm_id, bind_link), id))
                return -EADDRINUSE; /* both reuse the port: one may listen */
    }
    id->backlog = backlog && backlog < CM_BACKLOG ? backlog : CM_BACKLOG;
    id->state = CM_LISTEN;
    return 0;
}

uint64_t cm_service_of(const struct cm_id *id)
{
    return wire_cma_service_id((uint16_t)id->space, id->local.port);
}

/* The most particular one: an address goes before any IPv4 address, and that before any. */
struct cm_id *cm_bind_find(const struct cm_engine *e, uint64_t service_id, const union uroce_gid *local)
{
    struct cm_id *best = NULL;

    list_for_each (it, &e->bound) {
        struct cm_id *id = list_entry(it, struct cm_id, bind_link);
        if (id->state != CM_LISTEN || cm_service_of(id) != service_id || !covers(id, local))
            continue;
        if (!best || (best->any && !id->any) || (best->any_v6 && id->any && !id->any_v6))
            best = id;
    }
    return best;
}

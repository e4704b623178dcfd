#include "holder_services.h"

#include "roce/wire.h"
#include "roce/wire_cm.h"

#include <errno.h>
#include <string.h>

static struct holder_service *find(struct holder_services *t, uint64_t service_id, const union uroce_gid *gid,
                                   uint32_t slot)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->e[i].service_id == service_id && (!slot || t->e[i].slot == slot) &&
            !memcmp(&t->e[i].gid, gid, sizeof *gid))
            return &t->e[i];
    return NULL;
}

static bool taken(const struct holder_services *t, uint32_t slot, const struct holder_bind *b)
{
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->e[i].service_id != b->service_id || t->e[i].slot == slot || (t->e[i].reuse && b->reuse))
            continue;
        for (uint32_t k = 0; k < b->n; k++)
            if (!memcmp(&t->e[i].gid, &b->gid[k], sizeof b->gid[k]))
                return true;
    }
    return false;
}

static int read_bind(const struct holder_msg *m, struct holder_bind *ret)
{
    if (m->len != sizeof *ret)
        return -EINVAL;
    memcpy(ret, m->data, sizeof *ret);
    return ret->n && ret->n <= HOLDER_BIND_MAX ? 0 : -EINVAL;
}

int services_bind(struct holder_services *t, uint32_t slot, const struct holder_msg *m)
{
    struct holder_bind b;
    int r = read_bind(m, &b);

    if (r)
        return r;
    if (taken(t, slot, &b))
        return -EADDRINUSE;
    if (t->n + b.n > HOLDER_SERVICES || t->of_slot[slot] + b.n > HOLDER_SERVICES_SLOT)
        return -ENOSPC;
    for (uint32_t k = 0; k < b.n; k++) {
        struct holder_service *s = find(t, b.service_id, &b.gid[k], slot);
        if (s) {
            s->count++;
            s->reuse &= b.reuse != 0;
            continue;
        }
        t->e[t->n++] = (struct holder_service){
            .service_id = b.service_id, .gid = b.gid[k], .slot = (uint8_t)slot, .reuse = b.reuse, .count = 1};
        t->of_slot[slot]++;
    }
    return 0;
}

static void drop(struct holder_services *t, struct holder_service *s)
{
    t->of_slot[s->slot]--;
    *s = t->e[--t->n];
}

void services_unbind(struct holder_services *t, uint32_t slot, const struct holder_msg *m)
{
    struct holder_bind b;

    if (read_bind(m, &b))
        return;
    for (uint32_t k = 0; k < b.n; k++) {
        struct holder_service *s = find(t, b.service_id, &b.gid[k], slot);
        if (s && --s->count == 0)
            drop(t, s);
    }
}

void services_drop(struct holder_services *t, uint32_t slot)
{
    for (uint32_t i = 0; i < t->n;) {
        if (t->e[i].slot == slot)
            drop(t, &t->e[i]);
        else
            i++;
    }
}

static uint32_t slot_of_service(const struct holder_services *t, uint64_t service_id, const union uroce_gid *to)
{
    const struct holder_service *s = find((struct holder_services *)(uintptr_t)t, service_id, to, 0);

    return s ? s->slot : HOLDER_TO_ANY;
}

static uint32_t slot_of_cm(const struct holder_services *t, const union uroce_gid *to, const struct wire_cm *m)
{
    switch (m->attr) {
    case WIRE_CM_REQ:
        return slot_of_service(t, m->req.service_id, to);
    case WIRE_CM_SIDR_REQ:
        return slot_of_service(t, m->sidr_req.service_id, to);
    case WIRE_CM_SIDR_REP:
        return m->local_id >> 24;
    default: /* a REJ of a peer that has no number of ours yet concerns one of us */
        return m->remote_id ? m->remote_id >> 24 : HOLDER_TO_ALL;
    }
}

uint32_t services_slot_of(const struct holder_services *t, const union uroce_gid *to, const uint8_t *data, size_t len)
{
    struct wire_pkt pkt;
    struct wire_hello hello;
    struct wire_cm cm;

    if (wire_decode(data, len, &pkt) < 0 || pkt.dest_qp != WIRE_QPN_GSI)
        return HOLDER_TO_NOBODY;
    if (!wire_hello_decode(pkt.payload, pkt.payload_len, &hello))
        return hello.dest_qp >> 16;
    int r = wire_cm_decode(pkt.payload, pkt.payload_len, &cm);
    if (r && r != -EPROTONOSUPPORT)
        return HOLDER_TO_NOBODY;
    uint32_t slot = r ? HOLDER_TO_ANY : slot_of_cm(t, to, &cm);
    return slot < HOLDER_SLOTS || slot > HOLDER_SLOTS ? slot : HOLDER_TO_NOBODY;
}

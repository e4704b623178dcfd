/* Messages of the communication manager through the device: in from queue pair 1, out behind the data. */
#include "cm.h"

#include "base/rng.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#define DRAIN_BURSTS 32 /* of each port, before a message is looked at */
#define DRAIN_LINKS  512

/* From the engine's receive path: copied, and looked at when the ports are empty. */
void dev_cm_mad(struct uroce_device *dev, const struct qp_path *from, const struct wire_pkt *pkt)
{
    if (pkt->qkey != WIRE_QKEY_GSI || pkt->payload_len != WIRE_MAD_BYTES || dev->cm_nmads == DEV_CM_MADS)
        return;
    struct dev_cm_mad *m = &dev->cm_mads[(dev->cm_head + dev->cm_nmads++) % DEV_CM_MADS];
    m->path = *from;
    memcpy(m->bytes, pkt->payload, sizeof m->bytes);
}

void cm_path_of(const struct uroce_device *dev, int port, const union uroce_gid *remote, uint8_t tos,
                struct cm_path *ret)
{
    *ret = (struct cm_path){.local = dev->ports[port].at.addr.gid,
                            .remote = *remote,
                            .traffic_class = tos,
                            .hop_limit = 64,
                            .port_id = (uint8_t)port};
}

uint8_t cm_mtu_of(const struct uroce_device *dev, int port)
{
    const struct dev_address *at = &dev->ports[port].at;
    int m = wire_mtu_for_link(at->link_mtu, !wire_gid_is_v4(&at->addr.gid));
    return m > 0 ? (uint8_t)m : UROCE_MTU_256;
}

static void look_at(struct uroce_device *dev, const struct dev_cm_mad *m, uint64_t now)
{
    struct cm_path path;
    cm_path_of(dev, m->path.port_id, &m->path.remote, 0, &path);
    /* Multicast is not how one connects. */
    if (!memcmp(&path.local, &m->path.local, sizeof path.local))
        cm_rx(dev->cm, now, &path, cm_mtu_of(dev, m->path.port_id), m->bytes, sizeof m->bytes);
}

/*
 * What the peer had sent before a message was sent before it in time, but may wait in another socket: an
 * acknowledgement, say, before the disconnect. So the ports are emptied first.
 */
bool dev_cm_in(struct uroce_device *dev, uint64_t now)
{
    uint32_t n = dev->cm_nmads;
    if (!n)
        return false;
    for (int i = 0; i < dev->nports; i++)
        for (int k = 0; k < DRAIN_BURSTS && dev->cm_nmads < DEV_CM_MADS / 2; k++)
            if (dev_rx(dev, i, now) < DEV_BURST)
                break;
    for (int k = 0, got = 0; dev->nlinks && k < DRAIN_LINKS && dev_links_rx(dev, now, &got); k++)
        ;
    for (; n; n--) {
        struct dev_cm_mad m = dev->cm_mads[dev->cm_head];
        dev->cm_head = (dev->cm_head + 1) % DEV_CM_MADS;
        dev->cm_nmads--;
        look_at(dev, &m, now);
    }
    return true;
}

/* After the data of this round: one message at a time, so that none is lost in the engine's queue. */
void dev_cm_out(struct uroce_device *dev, uint64_t now)
{
    struct cm_tx tx;
    if (!list_empty(&dev->cm_late)) /* first: a tick may tell of what came after */
        cm_late_tell(dev, now);
    if (cm_deadline(dev->cm) <= now)
        cm_tick(dev->cm, now);
    for (int i = 0; i < DEV_CM_MADS; i++) {
        for (int k = 0; k < dev->nports; k++)
            if (!list_empty(&dev->ports[k].held))
                return; /* full: it goes on when the port does */
        if (!cm_tx(dev->cm, now, &tx))
            return;
        dev_acks_now(dev); /* those that wait for an answer of the program */
        struct uroce_ah_attr to = {.dgid = tx.path.remote, .sgid_index = tx.path.port_id, .hop_limit = 64};
        struct qp_path path;
        if (dev_path(dev, &to, tx.path.port_id, &path) || qp_send_mad(dev->engine, &path, tx.mad, sizeof tx.mad))
            continue; /* lost, as on a wire */
        while (dev_tx(dev, now))
            ;
    }
    atomic_store(&dev->pending, true);
}

static bool cm_event(void *ctx, struct cm_id *cm, struct cm_id *cm_listener, const struct uroce_cm_event *ev)
{
    struct uroce_device *dev = ctx;
    struct uroce_cm_event e = *ev;
    struct uroce_cm_id *id = cm_id_user(cm);
    struct cm_info info;
    cm_info(cm, &info);
    e.ah.sgid_index = info.path.port_id;
    if (cm_listener) {
        struct uroce_cm_id *listener = cm_id_user(cm_listener);
        id = calloc(1, sizeof *id);
        if (!id)
            return false;
        *id = (struct uroce_cm_id){
            .dev = dev, .cm = cm, .channel = listener->channel, .context = listener->context, .qp_type = ev->qp_type};
        e.listener = listener;
    }
    e.id = id;
    e.context = id->context;
    if (!cm_listener && cm_late_put(dev, &e, info.local_qpn, now_ns()))
        return true;
    if (cm_channel_put(id->channel, &e)) {
        if (cm_listener)
            free(id);
        return false;
    }
    if (cm_listener) {
        cm_id_set_user(cm, id);
        cm_channel_use(id->channel, dev, true);
        atomic_fetch_add(&dev->objects, 1);
    }
    return true;
}

int dev_cm_open(struct uroce_device *dev)
{
    static const struct cm_ops ops = {.event = cm_event};
    struct cm_config c = {
        .seed = dev->cfg.seed,
        .ca_guid = be64toh(dev_guid(&dev->ports[0].at, dev->index)),
        .id_slot = (uint8_t)dev->holder.slot,
        .ops = &ops,
        .ctx = dev,
    };
    while (!c.seed) /* communication ids are not to be guessed */
        rng_secret(&c.seed, sizeof c.seed);
    dev->cm_mads = calloc(DEV_CM_MADS, sizeof *dev->cm_mads);
    return dev->cm_mads ? cm_new(&c, &dev->cm) : -ENOMEM;
}

void dev_cm_close(struct uroce_device *dev)
{
    cm_late_forget(dev, NULL);
    cm_free(dev->cm);
    free(dev->cm_mads);
}

uint64_t dev_cm_deadline(const struct uroce_device *dev)
{
    return dev->cm ? min_u64(cm_deadline(dev->cm), dev->cm_late_look) : UINT64_MAX;
}

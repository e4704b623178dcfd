/*
 * The hello: at RTR a queue pair asks its peer, by a management datagram, whether it is uroce too; one that is answers.
 * Data does not wait for it: until both know, and toward a peer that is silent, the pair speaks plain RoCE.
 *
 * A peer on the same machine tells its rendezvous. Whose instance is the lower one calls there (meet.c), and over the
 * link that comes of it the ends of each queue pair bind it: BIND shows the cookie that the receiver's hello had, BOUND
 * has the transaction id of the BIND. From then on both take and send by the link (qp_set_peer).
 */
#include "dev.h"

#include "base/rng.h"

#include <errno.h>
#include <string.h>

#define HELLO_TRIES       4
#define HELLO_INTERVAL_NS (20u * 1000000u) /* the first wait; then twice as long each time */
#define BIND_TRIES        9                /* over a link nothing is lost but by impairment: mostly for it to come up */
#define BIND_INTERVAL_NS  (10u * 1000000u)
#define LINK_WINDOW       (16u << 20) /* bytes on their way of a queue pair: they lie in memory that is there anyway */

struct dev_hello {
    struct list link;
    struct uroce_qp *qp;
    uint64_t next_ns, tid;
    int tries;
    struct wire_hello peer; /* bind: what it said of itself */
};

/* Packets by a link; where slots add bytes to a packet, or look at it whole, it stays as small as on the network. */
static uint32_t far_bytes(const struct uroce_qp *qp)
{
    struct uroce_qp_attr attr;
    struct qp_init init;
    if (!qp->slots)
        return DEV_FAR_BYTES;
    qp_query(qp->qp, &attr, &init);
    return (wire_mtu_bytes((enum wire_mtu)attr.path_mtu) - qp->path_overhead) & ~3u;
}

static void send_hello(struct uroce_device *dev, const struct uroce_qp *qp, enum wire_hello_kind kind, uint64_t tid)
{
    const char *meet = dev_meet_path(dev);
    struct wire_hello h = {
        .tid = tid,
        .kind = kind,
        .caps = (dev->cfg.no_selective ? 0 : WIRE_HELLO_SACK) | (meet ? WIRE_HELLO_SHM : 0),
        .src_qp = qp_num(qp->qp),
        .dest_qp = qp->dest_qpn,
        .uid = (uint32_t)geteuid(),
        .sack_bits = WIRE_SACK_BITS_MAX,
        .instance = dev->instance,
    };
    memcpy(h.machine, dev->machine, sizeof h.machine);
    if (meet) {
        memcpy(h.cookie, qp->cookie, sizeof h.cookie);
        strcpy(h.name, meet);
    }
    uint8_t mad[WIRE_MAD_BYTES];
    if (wire_hello_encode(&h, mad) == 0)
        qp_send_mad(dev->engine, &qp->path, mad, sizeof mad);
}

/* Over the link. */
static void send_bind(struct uroce_device *dev, const struct uroce_qp *qp, struct dev_link *l,
                      enum wire_hello_kind kind, uint64_t tid, const uint8_t *cookie)
{
    struct wire_hello h = {
        .tid = tid,
        .kind = kind,
        .caps = WIRE_HELLO_SHM,
        .src_qp = qp_num(qp->qp),
        .dest_qp = qp->dest_qpn,
        .instance = dev->instance,
        .far_bytes = far_bytes(qp),
    };
    struct qp_path path = qp->path;
    path.port_id = l->id;
    if (cookie)
        memcpy(h.cookie, cookie, sizeof h.cookie);
    uint8_t mad[WIRE_MAD_BYTES];
    if (wire_hello_encode(&h, mad) == 0)
        qp_send_mad(dev->engine, &path, mad, sizeof mad);
}

static struct dev_hello *begin(struct uroce_device *dev, struct uroce_qp *qp)
{
    struct dev_hello *h = calloc(1, sizeof *h);
    if (!h)
        return NULL; /* plain RoCE works as well */
    h->qp = qp;
    list_push_back(&dev->hellos, &h->link);
    dev->hello_due = 0;
    return h;
}

static void end(struct dev_hello **h)
{
    if (!*h)
        return;
    list_del(&(*h)->link);
    free(*h);
    *h = NULL;
}

void dev_hello_start(struct uroce_device *dev, struct uroce_qp *qp)
{
    if (qp->type != UROCE_QPT_RC && qp->type != UROCE_QPT_XRC_SEND && qp->type != UROCE_QPT_XRC_RECV)
        return;
    dev_hello_cancel(qp);
    rng_secret(qp->cookie, sizeof qp->cookie);
    if (qp->type == UROCE_QPT_XRC_RECV || (dev->cfg.no_selective && !dev_meet_path(dev)))
        return;
    qp->hello = begin(dev, qp);
    if (qp->hello)
        qp->hello->tid = dev->instance ^ ((uint64_t)qp_num(qp->qp) << 32 | qp->dest_qpn);
}

void dev_hello_cancel(struct uroce_qp *qp)
{
    end(&qp->hello);
    end(&qp->bind);
}

void dev_hello_hurry(struct uroce_device *dev)
{
    dev->hello_due = 0;
    list_for_each (l, &dev->hellos) {
        struct dev_hello *h = container_of(l, struct dev_hello, link);
        if (h == h->qp->bind)
            h->next_ns = 0;
    }
}

static void ask(struct uroce_device *dev, struct dev_hello *h, uint64_t now)
{
    if (h->tries == HELLO_TRIES) {
        end(&h->qp->hello);
        return;
    }
    send_hello(dev, h->qp, WIRE_HELLO_ASK, h->tid);
    h->next_ns = now + ((uint64_t)HELLO_INTERVAL_NS << h->tries++);
}

static void bind_link(struct uroce_device *dev, struct dev_hello *h, uint64_t now)
{
    struct uroce_qp *qp = h->qp;
    struct dev_link *l = dev_link_find(dev, h->peer.instance, &qp->path.local, &qp->path.remote);
    int r = 0;
    if (!l && dev->instance < h->peer.instance)
        r = dev_meet_call(dev, &h->peer, &qp->path);
    /* -EAGAIN: many call there now; else it is not to be reached from here. */
    if ((r && r != -EAGAIN) || h->tries == BIND_TRIES) {
        end(&qp->bind);
        return;
    }
    if (l && l->ready)
        send_bind(dev, qp, l, WIRE_HELLO_BIND, h->tid, h->peer.cookie);
    h->next_ns = now + ((uint64_t)BIND_INTERVAL_NS << h->tries++);
}

void dev_hello_tick(struct uroce_device *dev, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    if (now < dev->hello_due)
        return;
    list_for_each_safe (l, &dev->hellos) {
        struct dev_hello *h = container_of(l, struct dev_hello, link);
        if (h->next_ns > now)
            continue;
        if (h == h->qp->bind)
            bind_link(dev, h, now);
        else
            ask(dev, h, now);
    }
    list_for_each (l, &dev->hellos)
        due = min_u64(due, container_of(l, struct dev_hello, link)->next_ns);
    dev->hello_due = due;
}

uint64_t dev_hello_deadline(const struct uroce_device *dev)
{
    return dev->hello_due;
}

/* The queue pair that a hello is about: connected to that very peer. */
static struct uroce_qp *party(struct uroce_device *dev, const struct qp_path *from, const struct wire_hello *h)
{
    struct uroce_qp *qp = dev_qp(dev, h->dest_qp);
    if (!qp || !qp->connected || qp->dest_qpn != h->src_qp)
        return NULL;
    if (qp->type == UROCE_QPT_UD || memcmp(&qp->path.remote, &from->remote, sizeof from->remote) ||
        memcmp(&qp->path.local, &from->local, sizeof from->local))
        return NULL;
    return qp;
}

/* A peer under the same kernel that has a rendezvous. */
static void begin_bind(struct uroce_device *dev, struct uroce_qp *qp, const struct wire_hello *h)
{
    static const uint8_t unknown[sizeof h->machine];
    if (!(h->caps & WIRE_HELLO_SHM) || h->instance == dev->instance || qp->link || qp->bind || !dev_meet_path(dev) ||
        !memcmp(dev->machine, unknown, sizeof unknown) || memcmp(dev->machine, h->machine, sizeof h->machine))
        return;
    qp->bind = begin(dev, qp);
    if (!qp->bind)
        return;
    qp->bind->peer = *h;
    rng_secret(&qp->bind->tid, sizeof qp->bind->tid);
}

static bool take_link(struct uroce_qp *qp, struct dev_link *l, uint32_t bytes)
{
    struct qp_path path = qp->path;
    struct qp_peer peer = {.selective_repeat = qp->selective, .path = &path, .window_bytes = LINK_WINDOW};
    if (qp->link)
        return qp->link == l;
    peer.mtu_bytes = (uint32_t)min_u64(bytes, far_bytes(qp)) & ~3u;
    path.port_id = l->id;
    if (qp_set_peer(qp->qp, &peer))
        return false;
    qp->far_bytes = peer.mtu_bytes;
    qp->link = l;
    l->users++;
    return true;
}

static void hear_bind(struct uroce_device *dev, struct dev_link *l, struct uroce_qp *qp, const struct wire_hello *h)
{
    if (h->instance != l->instance)
        return;
    if (h->kind == WIRE_HELLO_BIND ? memcmp(h->cookie, qp->cookie, sizeof h->cookie) != 0
                                   : !qp->bind || qp->bind->tid != h->tid)
        return;
    if (!take_link(qp, l, h->far_bytes))
        return;
    end(&qp->bind); /* who binds hears of it, or asks again */
    if (h->kind == WIRE_HELLO_BIND)
        send_bind(dev, qp, l, WIRE_HELLO_BOUND, h->tid, NULL);
}

void dev_hello_mad(struct uroce_device *dev, const struct qp_path *from, const struct wire_pkt *pkt)
{
    struct dev_link *link = dev_link_of(dev, from->port_id);
    struct wire_hello h;
    if (pkt->qkey != WIRE_QKEY_GSI || wire_hello_decode(pkt->payload, pkt->payload_len, &h))
        return;
    struct uroce_qp *qp = party(dev, from, &h);
    if (!qp || (h.kind >= WIRE_HELLO_BIND) != (link != NULL))
        return;
    if (link) {
        hear_bind(dev, link, qp, &h);
        return;
    }
    if (h.caps & WIRE_HELLO_SACK && !dev->cfg.no_selective) {
        struct qp_peer peer = {.selective_repeat = true};
        if (qp_set_peer(qp->qp, &peer) == 0)
            qp->selective = true;
    }
    begin_bind(dev, qp, &h);
    if (h.kind == WIRE_HELLO_ASK && (!dev->cfg.no_selective || dev_meet_path(dev)))
        send_hello(dev, qp, WIRE_HELLO_ANSWER, h.tid);
    /* An ask tells as much as an answer, but our own goes on until it is answered: the peer has to know as well. */
    else if (qp->hello && qp->hello->tid == h.tid)
        end(&qp->hello);
}

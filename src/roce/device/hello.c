/*
 * The hello: at RTR a queue pair asks its peer, by a management datagram, whether it is uroce too; one that is answers.
 * Data does not wait for it: until both know, and toward a peer that is silent, the pair speaks plain RoCE.
 */
#include "dev.h"

#include <errno.h>
#include <string.h>

#define HELLO_TRIES       4
#define HELLO_INTERVAL_NS (20u * 1000000u) /* the first wait; then twice as long each time */

struct dev_hello {
    struct list link;
    struct uroce_qp *qp;
    uint64_t next_ns, tid;
    int tries;
};

static void send_hello(struct uroce_device *dev, const struct uroce_qp *qp, enum wire_hello_kind kind, uint64_t tid)
{
    struct wire_hello h = {
        .tid = tid,
        .kind = kind,
        .caps = WIRE_HELLO_SACK,
        .src_qp = qp_num(qp->qp),
        .dest_qp = qp->dest_qpn,
        .uid = (uint32_t)getuid(),
        .sack_bits = WIRE_SACK_BITS_MAX,
        .instance = dev->instance,
    };
    memcpy(h.machine, dev->machine, sizeof h.machine);
    uint8_t mad[WIRE_MAD_BYTES];
    if (wire_hello_encode(&h, mad) == 0)
        qp_send_mad(dev->engine, &qp->path, mad, sizeof mad);
}

void dev_hello_start(struct uroce_device *dev, struct uroce_qp *qp)
{
    if (dev->cfg.no_selective || (qp->type != UROCE_QPT_RC && qp->type != UROCE_QPT_XRC_SEND))
        return;
    dev_hello_cancel(dev, qp);
    struct dev_hello *h = calloc(1, sizeof *h);
    if (!h)
        return; /* plain RoCE works as well */
    h->qp = qp;
    h->tid = dev->instance ^ ((uint64_t)qp_num(qp->qp) << 32 | qp->dest_qpn);
    h->next_ns = 0;
    qp->hello = h;
    list_push_back(&dev->hellos, &h->link);
}

void dev_hello_cancel(struct uroce_device *dev, struct uroce_qp *qp)
{
    (void)dev;
    if (!qp->hello)
        return;
    list_del(&qp->hello->link);
    free(qp->hello);
    qp->hello = NULL;
}

void dev_hello_tick(struct uroce_device *dev, uint64_t now)
{
    for (struct list *l = dev->hellos.next, *next; l != &dev->hellos; l = next) {
        struct dev_hello *h = container_of(l, struct dev_hello, link);
        next = l->next;
        if (h->next_ns > now)
            continue;
        if (h->tries == HELLO_TRIES) {
            dev_hello_cancel(dev, h->qp);
            continue;
        }
        send_hello(dev, h->qp, WIRE_HELLO_ASK, h->tid);
        h->next_ns = now + ((uint64_t)HELLO_INTERVAL_NS << h->tries++);
    }
}

uint64_t dev_hello_deadline(const struct uroce_device *dev)
{
    uint64_t d = UINT64_MAX;
    for (const struct list *l = dev->hellos.next; l != &dev->hellos; l = l->next)
        d = min_u64(d, container_of(l, struct dev_hello, link)->next_ns);
    return d;
}

/* The queue pair that a hello is about: connected to that very peer. */
static struct uroce_qp *party(struct uroce_device *dev, const struct qp_path *from, const struct wire_hello *h)
{
    struct uroce_qp *qp = dev->by_qpn[h->dest_qp & 0xffff];
    if (!qp || qp_num(qp->qp) != h->dest_qp || !qp->connected || qp->dest_qpn != h->src_qp)
        return NULL;
    if (qp->type == UROCE_QPT_UD || memcmp(&qp->path.remote, &from->remote, sizeof from->remote) ||
        memcmp(&qp->path.local, &from->local, sizeof from->local))
        return NULL;
    return qp;
}

void dev_hello_mad(struct uroce_device *dev, const struct qp_path *from, const struct wire_pkt *pkt)
{
    struct wire_hello h;
    if (pkt->qkey != WIRE_QKEY_GSI || wire_hello_decode(pkt->payload, pkt->payload_len, &h))
        return;
    struct uroce_qp *qp = party(dev, from, &h);
    if (!qp || dev->cfg.no_selective)
        return;
    if (h.caps & WIRE_HELLO_SACK) {
        struct qp_peer peer = {.selective_repeat = true};
        int r = qp_set_peer(qp->qp, &peer);
        qp->selective = r == 0 || r == -EBUSY;
    }
    if (h.kind == WIRE_HELLO_ASK)
        send_hello(dev, qp, WIRE_HELLO_ANSWER, h.tid);
    /* An ask tells as much as an answer, but our own goes on until it is answered: the peer has to know as well. */
    else if (qp->hello && qp->hello->tid == h.tid)
        dev_hello_cancel(dev, qp);
}

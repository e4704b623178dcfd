/*
 * The transmit batcher: packets of one queue pair become runs of equal size (the last packet may be shorter), which a
 * port sends with one system call. A packet's IPv4 id is its place in the run, so the ICRC is computed here, when the
 * runs are known, and not before.
 */
#include "dev.h"

#include <errno.h>
#include <string.h>

/*
 * A payload up to that is copied behind its headers: one CRC over one piece, and the packets of a run are one piece for
 * the system call, which costs for each piece of a message as much as some hundred bytes. Over shm, where payload need
 * not be copied at all, only small ones are.
 */
#define COPY_BYTES     1024u
#define COPY_BYTES_SHM 256u
#define COPY_AHEAD     4    /* packets */
#define ICRC_BEHIND    2    /* packets: what was just copied is not in the cache yet, and read back slowly */
#define HEAD_USUAL     16u  /* bytes: of a packet of the middle */
#define COPY_FETCH     512u /* bytes: less is there as soon without */
#define PKT_IOV        (UROCE_SGE_MAX + 2)

struct dev_tx_scratch {
    struct packet {
        uint8_t *head, *tail;
        uint32_t head_len, tail_len, bytes;
        bool whole; /* it lies in one piece, in `copies` */
        bool moved; /* the payload is a slot's copy */
        const uint8_t *like; /* headers that are its own, but for the PSN */
    } pkt[DEV_BURST];
    /* Of packets that are not: pad and ICRC of one and the headers of the next are one piece. */
    struct {
        uint8_t tail[WIRE_TAIL_MAX], head[WIRE_HEAD_MAX];
    } between[DEV_BURST + 1];
    uint8_t copies[DEV_BURST * (WIRE_HEAD_MAX + COPY_BYTES + WIRE_TAIL_MAX)];
    uint32_t copied;
    int npkts; /* in pkt */
    struct port_tx runs[DEV_BURST];
    struct iovec iov[DEV_BURST * PKT_IOV];
    int niov;
    uint8_t (*slot_payload)[WIRE_PAYLOAD_MAX]; /* DEV_BURST of them, once a queue pair has PATH slots */
};

int dev_tx_init(struct uroce_device *dev)
{
    dev->tx = calloc(DEV_BURST, sizeof *dev->tx);
    dev->scratch = calloc(1, sizeof *dev->scratch);
    return dev->tx && dev->scratch ? 0 : -ENOMEM;
}

void dev_tx_done(struct uroce_device *dev)
{
    if (dev->scratch)
        free(dev->scratch->slot_payload);
    free(dev->scratch);
    free(dev->tx);
}

/* PATH slots see a copy: the memory of the request stays as it is. False: no memory, or a slot refused. */
static bool path_slots(struct uroce_device *dev, struct qp_tx *t, int i)
{
    struct dev_tx_scratch *s = dev->scratch;
    struct uroce_qp *qp = dev->path_slot_qps ? dev_path_slot_qp(dev, t->qpn) : NULL;
    if (!qp || t->payload_len == 0)
        return true;
    if (!s->slot_payload && !(s->slot_payload = calloc(DEV_BURST, sizeof *s->slot_payload)))
        return false;
    uint8_t *buf = s->slot_payload[i];
    size_t len = 0;
    for (int k = 0; k < t->niov; len += t->iov[k++].iov_len)
        memcpy(buf + len, t->iov[k].iov_base, t->iov[k].iov_len);
    const struct wire_op *op = wire_op(t->pkt.opcode);
    struct slot_packet sp = {
        .qpn = t->qpn,
        .peer_qpn = t->pkt.dest_qp,
        .psn = t->pkt.psn.v,
        .opcode = t->pkt.opcode,
        .send = true,
        .first = op->first,
        .last = op->last,
        .response = op->kind == WIRE_KIND_RESPONSE,
        .retransmit = t->retransmit,
    };
    int n = slot_chain_path(qp->slots, &sp, buf, len, WIRE_PAYLOAD_MAX);
    if (n < 0)
        return false;
    s->pkt[i].moved = true;
    t->iov[0] = (struct iovec){.iov_base = buf, .iov_len = (size_t)n};
    t->niov = 1;
    t->payload_len = t->pkt.payload_len = (uint32_t)n;
    return true;
}

static uint32_t copy_bytes(const struct qp_tx *t)
{
    return t->pkt.far ? COPY_BYTES_SHM : COPY_BYTES;
}

/* A packet whose headers are those of the one before it. */
static bool go_on(struct dev_tx_scratch *s, const struct qp_tx *t, int i)
{
    if (!t->follows)
        return false;
    const struct packet *before = &s->pkt[i - 1];
    struct packet *p = &s->pkt[i];
    if (!before->whole || before->moved)
        return false;
    /*
     * Piece by piece, and not from the one before: a processor waits for a copy of what it has just written in parts.
     */
    p->whole = true;
    p->moved = false;
    p->like = before->like;
    p->head_len = before->head_len;
    p->tail_len = before->tail_len;
    p->bytes = before->bytes;
    p->head = s->copies + s->copied;
    p->tail = p->head + p->bytes - p->tail_len;
    if (p->head_len <= HEAD_USUAL)
        memcpy(p->head, p->like, HEAD_USUAL); /* what it has too much is overwritten by the payload */
    else
        memcpy(p->head, p->like, p->head_len);
    wire_head_psn(p->head, t->pkt.psn);
    s->copied += p->bytes;
    return true;
}

/* Headers, and room for a small payload behind them. False: it cannot be sent, and is lost. */
static bool prepare(struct uroce_device *dev, struct qp_tx *t, int i)
{
    struct dev_tx_scratch *s = dev->scratch;
    struct packet *p = &s->pkt[i];
    if (go_on(s, t, i))
        return true;
    p->moved = false;
    if (!path_slots(dev, t, i))
        return false;
    t->pkt.payload_len = t->payload_len;
    p->whole = t->payload_len <= copy_bytes(t);
    p->head = p->whole ? s->copies + s->copied : s->between[i].head;
    int n = wire_encode_head(&t->pkt, p->head, WIRE_HEAD_MAX);
    if (n < 0)
        return false;
    p->head_len = (uint32_t)n;
    p->tail_len = WIRE_ICRC_BYTES + wire_pad(t->payload_len);
    p->bytes = p->head_len + t->payload_len + p->tail_len;
    if (!p->whole) {
        p->tail = s->between[i + 1].tail + WIRE_TAIL_MAX - p->tail_len;
        return true;
    }
    p->like = p->head;
    p->tail = p->head + n + t->payload_len;
    s->copied += p->bytes;
    return true;
}

static void finish_icrc(const struct wire_icrc_run *r, struct packet *p, const struct qp_tx *t, uint16_t id)
{
    uint32_t icrc;
    if (p->whole) {
        icrc = wire_icrc_run_id(r, wire_icrc_run_of(r, p->head), id);
        wire_encode_tail(t->payload_len, icrc, p->tail);
        return;
    }
    struct wire_icrc c;
    wire_icrc_run_begin(&c, r, p->head, p->head_len);
    for (int k = 0; k < t->niov; k++)
        wire_icrc_add(&c, t->iov[k].iov_base, t->iov[k].iov_len);
    icrc = wire_icrc_run_id(r, wire_icrc_end(&c, t->payload_len), id);
    wire_encode_tail(t->payload_len, icrc, p->tail);
}

/* The next piece of the run that began at iov[first]; one with the last, if it lies right behind it. */
static void add_iov(struct dev_tx_scratch *s, int first, void *base, size_t len)
{
    struct iovec *last = s->iov + s->niov - 1;
    if (s->niov > first && (uint8_t *)last->iov_base + last->iov_len == base)
        last->iov_len += len;
    else
        s->iov[s->niov++] = (struct iovec){.iov_base = base, .iov_len = len};
}

static void add_packet(struct dev_tx_scratch *s, int first, struct packet *p, const struct qp_tx *t)
{
    if (p->whole) {
        add_iov(s, first, p->head, p->bytes);
        return;
    }
    add_iov(s, first, p->head, p->head_len);
    for (int k = 0; k < t->niov; k++)
        add_iov(s, first, t->iov[k].iov_base, t->iov[k].iov_len);
    add_iov(s, first, p->tail, p->tail_len);
}

/* How many of the packets from the first on make a run. */
static int run_length(const struct dev_tx_scratch *s, const struct qp_tx *tx, int first, int n,
                      const struct port_caps *caps)
{
    uint32_t seg = s->pkt[first].bytes, total = seg;
    int niov = tx[first].niov + 2, i = first + 1;
    for (; i < n && (uint32_t)(i - first) < caps->segs_max; i++) {
        const struct packet *p = &s->pkt[i];
        niov += tx[i].niov + 2;
        total += p->bytes;
        if (p->bytes > seg || total > PORT_BATCH_BYTES || niov > (int)PORT_IOV_MAX ||
            tx[i].ecn_capable != tx[first].ecn_capable || tx[i].pkt.dest_qp >> 16 != tx[first].pkt.dest_qp >> 16)
            break;
        if (p->bytes < seg)
            return i + 1 - first;
    }
    return i - first;
}

/* A payload that will be copied is on its way from memory while those before it are worked on. */
static void fetch(const struct qp_tx *t)
{
    if (t->payload_len < COPY_FETCH || t->payload_len > copy_bytes(t))
        return;
    for (int k = 0; k < t->niov; k++)
        for (size_t at = 0; at < t->iov[k].iov_len; at += 64)
            __builtin_prefetch((const char *)t->iov[k].iov_base + at, 0, 2);
}

/* The payload of a packet in one piece, and the pad for the ICRC's sake. */
static void copy_payload(struct dev_tx_scratch *s, const struct qp_tx *tx, int i)
{
    const struct packet *p = &s->pkt[i];
    if (i + COPY_AHEAD < s->npkts)
        fetch(&tx[i + COPY_AHEAD]);
    if (!p->whole)
        return;
    uint8_t *at = p->head + p->head_len;
    for (int k = 0; k < tx[i].niov; at += tx[i].iov[k++].iov_len)
        memcpy(at, tx[i].iov[k].iov_base, tx[i].iov[k].iov_len);
    if (wire_pad(tx[i].payload_len))
        wire_encode_tail(tx[i].payload_len, 0, p->tail);
}

static struct port_tx make_run(struct uroce_device *dev, struct dev_port *port, const struct qp_tx *tx, int first,
                               int count)
{
    struct dev_tx_scratch *s = dev->scratch;
    const struct qp_path *path = tx[first].path;
    struct port_tx run = {
        .from = {.gid = path->local, .scope_id = port->at.addr.scope_id, .udp_port = path->udp_sport},
        .to = {.gid = path->remote, .scope_id = port->at.addr.scope_id, .udp_port = PORT_UDP},
        .iov = s->iov + s->niov,
        .npkts = (uint32_t)count,
        .seg_bytes = s->pkt[first].bytes,
        .last_bytes = s->pkt[first + count - 1].bytes,
        /* Of a link, whose runs are one packet: all but management datagrams are of reliable queue pairs. */
        .stays = tx[first].pkt.far && !s->pkt[first].moved,
        .traffic_class = (uint8_t)((path->traffic_class & ~3u) | (tx[first].ecn_capable ? 2u : 0u)),
        .hop_limit = path->hop_limit,
        .flow_label = path->flow_label,
        .qpn_slot = (uint8_t)(tx[first].pkt.dest_qp >> 16),
    };
    struct wire_icrc_run r, last;
    struct wire_flow f;
    if (!port->caps.no_icrc) {
        wire_flow_init(&f, &run.from.gid, &run.to.gid, run.from.udp_port, run.to.udp_port);
        wire_icrc_run_init(&r, &dev->icrc, &f, run.seg_bytes);
        if (run.last_bytes != run.seg_bytes)
            wire_icrc_run_init(&last, &dev->icrc, &f, run.last_bytes);
    }
    int before = s->niov;
    for (int i = 0; i < count + ICRC_BEHIND; i++) {
        if (i < count)
            copy_payload(s, tx, first + i);
        if (i < ICRC_BEHIND)
            continue;
        int k = i - ICRC_BEHIND;
        struct packet *p = &s->pkt[first + k];
        uint16_t id = port->caps.ipv4_id == PORT_ID_ZERO_THEN_K ? (uint16_t)k : 0;
        if (!port->caps.no_icrc)
            finish_icrc(p->bytes == run.seg_bytes ? &r : &last, p, &tx[first + k], id);
        add_packet(s, before, p, &tx[first + k]);
    }
    run.niov = s->niov - before;
    return run;
}

/* Keeps a copy of a run that a full port did not take. Without memory it is lost, as on a wire. */
static void hold(struct uroce_device *dev, struct dev_port *port, const struct port_tx *run)
{
    size_t len = (size_t)(run->npkts - 1) * run->seg_bytes + run->last_bytes, at = 0;
    struct dev_held *h = malloc(sizeof *h + len);
    if (!h) {
        dev->counters.tx_drops += run->npkts;
        return;
    }
    for (int i = 0; i < run->niov; at += run->iov[i++].iov_len)
        memcpy(h->bytes + at, run->iov[i].iov_base, run->iov[i].iov_len);
    h->iov = (struct iovec){.iov_base = h->bytes, .iov_len = len};
    h->tx = *run;
    h->tx.iov = &h->iov;
    h->tx.niov = 1;
    h->tx.stays = false;
    list_push_back(&port->held, &h->link);
}

bool dev_held_flush(struct uroce_device *dev, struct dev_port *port, uint64_t now)
{
    while (!list_empty(&port->held)) {
        struct dev_held *h = container_of(port->held.next, struct dev_held, link);
        int r = port_send(port->port, now, &h->tx, 1);
        if (r == 0)
            return false;
        if (r < 0)
            dev->counters.tx_drops += h->tx.npkts;
        list_del(&h->link);
        free(h);
    }
    return true;
}

void dev_held_drop(struct dev_port *port)
{
    for (struct list *l; (l = list_pop_front(&port->held));)
        free(container_of(l, struct dev_held, link));
}

static void send_runs(struct uroce_device *dev, struct dev_port *port, struct port_tx *runs, int n, uint64_t now)
{
    int sent = 0;
    port->used_ns = now;
    while (sent < n && list_empty(&port->held)) {
        int r = port_send(port->port, now, runs + sent, n - sent);
        if (r == 0)
            break;
        if (r < 0) {
            dev->counters.tx_drops += runs[sent].npkts;
            r = 1;
        }
        sent += r;
    }
    for (; sent < n; sent++)
        hold(dev, port, &runs[sent]);
}

/* Packets [from, to), which go the same way. */
static void send_by(struct uroce_device *dev, struct dev_port *port, int from, int to, uint64_t now)
{
    struct dev_tx_scratch *s = dev->scratch;
    int nruns = 0;
    if (!port) { /* a link that has ended */
        dev->counters.tx_drops += (uint64_t)(to - from);
        return;
    }
    port_caps(port->port, &port->caps);
    s->niov = 0;
    for (int i = from, count; i < to; i += count) {
        count = run_length(s, dev->tx, i, to, &port->caps);
        s->runs[nruns++] = make_run(dev, port, dev->tx, i, count);
    }
    send_runs(dev, port, s->runs, nruns, now);
}

bool dev_tx(struct uroce_device *dev, uint64_t now)
{
    for (int i = 0; i < dev->nports; i++)
        if (!dev_held_flush(dev, &dev->ports[i], now))
            return false;
    if (dev->nlinks)
        dev_links_room(dev, now);
    int n = qp_engine_tx(dev->engine, now, dev->tx, DEV_BURST);
    if (n <= 0)
        return false;
    int ready = 0;
    dev->scratch->copied = 0;
    for (int i = 0; i < n; i++) {
        if (ready != i)
            dev->tx[ready] = dev->tx[i];
        if (prepare(dev, &dev->tx[ready], ready)) {
            ready++;
            continue;
        }
        dev->counters.drop_slot++;
        if (i + 1 < n)
            dev->tx[i + 1].follows = false; /* what it followed is left out */
    }
    dev->scratch->npkts = ready;
    dev->sent += (uint64_t)ready;
    for (int i = 0; i < ready && i < COPY_AHEAD; i++)
        fetch(&dev->tx[i]);
    for (int from = 0, to; from < ready; from = to) {
        for (to = from + 1; to < ready && dev->tx[to].path == dev->tx[from].path; to++)
            ;
        send_by(dev, dev_port_of(dev, dev->tx[from].path->port_id), from, to, now);
    }
    return true;
}

bool dev_tx_all(struct uroce_device *dev, uint64_t now)
{
    for (int i = 0; i < DEV_BURST; i++)
        if (!dev_tx(dev, now))
            return false;
    return true;
}

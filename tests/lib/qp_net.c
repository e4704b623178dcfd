#include "qp_net.h"

#include "base/util.h"

#include <stdlib.h>
#include <string.h>

void qpnet_init(struct qpnet *n, uint64_t seed)
{
    memset(n, 0, sizeof *n);
    rng_seed(&n->rng, seed);
    n->now = 1000000;
    n->link.delay_ns = 2000;
}

void qpnet_done(struct qpnet *n)
{
    for (size_t i = 0; i < n->heap_n; i++)
        free(n->heap[i]);
    free(n->heap);
    n->heap = NULL;
    n->heap_n = n->heap_cap = 0;
}

int qpnet_add(struct qpnet *n, struct qp_engine *e)
{
    n->e[n->n] = e;
    return n->n++;
}

/* Nodes have 10.0.0.1 and on; number 255 stands for a multicast group, 239.0.0.1. */
union uroce_gid qpnet_gid(int node)
{
    union uroce_gid g = {.raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, (uint8_t)(node + 1)}};

    if (node == 255)
        memcpy(g.raw + 12, (uint8_t[]){239, 0, 0, 1}, 4);
    return g;
}

struct qp_path qpnet_path(int from, int to)
{
    return (struct qp_path){.local = qpnet_gid(from), .remote = qpnet_gid(to), .udp_sport = 0xc000, .hop_limit = 64};
}

static bool chance(struct qpnet *n, double p)
{
    return p > 0 && (double)(rng_u64(&n->rng) >> 11) * 0x1p-53 < p;
}

static bool before(const struct qpnet_pkt *a, const struct qpnet_pkt *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void push(struct qpnet *n, struct qpnet_pkt *p)
{
    size_t i = n->heap_n++;

    if (n->heap_n > n->heap_cap) {
        n->heap_cap = n->heap_cap ? n->heap_cap * 2 : 256;
        n->heap = realloc(n->heap, n->heap_cap * sizeof *n->heap);
        if (!n->heap)
            abort();
    }
    for (; i && before(p, n->heap[(i - 1) / 2]); i = (i - 1) / 2)
        n->heap[i] = n->heap[(i - 1) / 2];
    n->heap[i] = p;
}

static struct qpnet_pkt *pop(struct qpnet *n)
{
    struct qpnet_pkt *top = n->heap[0], *last = n->heap[--n->heap_n];
    size_t i = 0;

    for (;;) {
        size_t c = 2 * i + 1;
        if (c + 1 < n->heap_n && before(n->heap[c + 1], n->heap[c]))
            c++;
        if (c >= n->heap_n || !before(n->heap[c], last))
            break;
        n->heap[i] = n->heap[c];
        i = c;
    }
    n->heap[i] = last;
    return top;
}

/* The bottleneck in front of a receiver: when the packet leaves it; 0: dropped. */
static uint64_t through_queue(struct qpnet *n, int to, uint32_t len, uint64_t at, bool *ce)
{
    uint64_t ns = (uint64_t)(len + 66) * 8000000000ull / n->link.rate_bps, waiting;

    if (n->busy[to] < at)
        n->busy[to] = at;
    waiting = (n->busy[to] - at) / ((4096 + 66) * 8000000000ull / n->link.rate_bps);
    if (waiting >= n->link.queue_pkts)
        return 0;
    if (n->link.mark_pkts && waiting >= n->link.mark_pkts)
        *ce = true;
    n->busy[to] += ns;
    return n->busy[to];
}

#define QPNET_RUN 16

static void launch(struct qpnet *n, int to, const struct qp_tx *tx, const uint8_t *bytes, uint32_t len)
{
    struct qpnet_pkt *p;
    uint64_t at = n->now + n->link.delay_ns;
    bool ce = tx->ecn_capable && chance(n, n->link.mark);

    if (n->link.rate_bps && !(at = through_queue(n, to, len, at, &ce)))
        return;
    if (n->link.jitter_ns && chance(n, n->link.reorder))
        at += rng_below(&n->rng, n->link.jitter_ns);
    if (chance(n, n->link.late))
        at += n->link.late_ns;
    p = malloc(sizeof *p + len);
    if (!p)
        abort();
    *p = (struct qpnet_pkt){
        .at = at, .seq = n->seq++, .to = to, .ce = ce && tx->ecn_capable, .path = *tx->path, .len = len};
    p->path.local = tx->path->remote;
    p->path.remote = tx->path->local;
    memcpy(p->bytes, bytes, len);
    push(n, p);
}

static int node_of(const struct qpnet *n, const union uroce_gid *g)
{
    for (int i = 0; i < n->n; i++) {
        union uroce_gid mine = qpnet_gid(i);
        if (!memcmp(&mine, g, sizeof mine))
            return i;
    }
    return -1;
}

static void send_one(struct qpnet *n, int from, const struct qp_tx *tx)
{
    static uint8_t buf[WIRE_PKT_MAX + 64];
    union uroce_gid group = qpnet_gid(255);
    int r = wire_encode_head(&tx->pkt, buf, sizeof buf);
    uint32_t len = (uint32_t)r, at;

    n->sent++;
    if (r < 0)
        abort();
    at = len;
    for (int i = 0; i < tx->niov; i++) {
        if (tx->iov[i].iov_len)
            memcpy(buf + len, tx->iov[i].iov_base, tx->iov[i].iov_len);
        len += (uint32_t)tx->iov[i].iov_len;
    }
    if (len - at != tx->payload_len || tx->payload_len != tx->pkt.payload_len)
        abort();
    len += (uint32_t)wire_encode_tail(tx->payload_len, 0, buf + len);
    if (n->filter && !n->filter(n->filter_ctx, from, tx))
        return;
    for (int to = 0; to < n->n; to++) {
        if (memcmp(&tx->path->remote, &group, sizeof group) ? to != node_of(n, &tx->path->remote) : to == from)
            continue;
        if (!chance(n, n->link.loss))
            launch(n, to, tx, buf, len);
        if (chance(n, n->link.duplicate))
            launch(n, to, tx, buf, len);
    }
}

void qpnet_flush(struct qpnet *n)
{
    static struct qp_tx tx[64];

    for (int i = 0; i < n->n; i++) {
        int k;
        while ((k = qp_engine_tx(n->e[i], n->now, tx, n->batch ? n->batch : 16)) > 0)
            for (int j = 0; j < k; j++)
                send_one(n, i, &tx[j]);
    }
}

/* As the device does: those that are due and follow p, which are removed. Returns how many were taken, p with them. */
static uint32_t deliver_run(struct qpnet *n, const struct qpnet_pkt *p, const struct qp_rx *rx)
{
    struct qpnet_pkt *after[QPNET_RUN];
    const uint8_t *payload[QPNET_RUN] = {rx->pkt.payload};
    uint32_t max = qp_engine_rx_room(n->e[p->to], rx, QPNET_RUN), k = 1, took;

    while (k < max && n->heap_n && n->heap[0]->at <= n->now) {
        struct qpnet_pkt *q = n->heap[0];
        if (q->to != p->to || q->ce != p->ce || q->len != p->len || memcmp(&q->path, &p->path, sizeof q->path) ||
            !wire_head_follows(p->bytes, q->bytes, k))
            break;
        payload[k] = q->bytes + WIRE_BTH_BYTES;
        after[k++] = pop(n);
    }
    took = max ? qp_engine_rx_run(n->e[p->to], n->now, rx, payload, k) : 0;
    if (took && took != k)
        abort();
    for (uint32_t i = 1; i < k; i++) {
        if (took)
            free(after[i]);
        else
            push(n, after[i]);
    }
    return took;
}

static void deliver(struct qpnet *n, const struct qpnet_pkt *p)
{
    struct qp_rx rx = {.path = p->path, .ecn_ce = p->ce};
    uint32_t took;

    if (wire_decode(p->bytes, p->len, &rx.pkt) < 0)
        abort();
    rx.pkt.far = p->path.port_id == QPNET_FAR;
    took = n->runs ? deliver_run(n, p, &rx) : 0;
    n->delivered += took ? took : 1;
    n->joined += took ? took - 1 : 0;
    if (!took)
        qp_engine_rx(n->e[p->to], n->now, &rx);
}

bool qpnet_step(struct qpnet *n, uint64_t until)
{
    uint64_t next;

    qpnet_flush(n);
    next = n->heap_n ? n->heap[0]->at : UINT64_MAX;
    for (int i = 0; i < n->n; i++)
        next = min_u64(next, qp_engine_deadline(n->e[i]));
    if (next > until)
        return false;
    if (next > n->now)
        n->now = next;
    for (int i = 0; i < n->n; i++)
        if (qp_engine_deadline(n->e[i]) <= n->now)
            qp_engine_tick(n->e[i], n->now);
    for (int k = 0; k < 64 && n->heap_n && n->heap[0]->at <= n->now; k++) {
        struct qpnet_pkt *p = pop(n);
        deliver(n, p);
        free(p);
    }
    qpnet_flush(n);
    return true;
}

void qpnet_run(struct qpnet *n, uint64_t until)
{
    while (qpnet_step(n, until))
        ;
}

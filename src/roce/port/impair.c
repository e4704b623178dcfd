/*
 * The impairment port: a filter that does to packets what networks do, by rules (impair_rules.c has their text).
 *
 * Packets that a rule leaves alone pass as they are, runs as runs. A run of which one packet is touched is taken apart,
 * and its packets are held in a queue by the time at which they are due, as are delayed and duplicated ones.
 */
#include "impair_priv.h"
#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct held {
    struct list link;
    uint64_t due_ns;
    struct port_tx tx; /* or what of rx is not in it: */
    struct port_rx rx;
    struct iovec iov;
    uint32_t len;
    uint8_t data[];
};

struct queue {
    struct list list; /* by due_ns, then by age */
    uint64_t bytes;
};

struct impair {
    struct port port;
    struct port *below;
    struct rng rng;
    struct wire_icrc_tab icrc_tab;
    enum port_id_rule ids;
    uint64_t now_ns; /* of the last call */
    uint64_t tx_drops, rx_overruns;
    struct queue tx, rx;
    struct list lent; /* held packets that the last recv gave out */
    int nrules;
    struct rule rules[IMPAIR_RULES];
};

static struct impair *impair_of(const struct port *p)
{
    return container_of((struct port *)p, struct impair, port);
}

static struct held *hold(struct queue *q, uint32_t len)
{
    struct held *h = q->bytes + len <= IMPAIR_HELD_BYTES ? calloc(1, sizeof *h + len) : NULL;
    if (!h)
        return NULL;
    h->len = len;
    h->iov = (struct iovec){h->data, len};
    q->bytes += len;
    return h;
}

static void release(struct queue *q, struct held *h)
{
    list_del(&h->link);
    q->bytes -= h->len;
    free(h);
}

static void insert(struct queue *q, struct held *h, uint64_t due_ns)
{
    struct list *at = q->list.prev;
    h->due_ns = due_ns;
    while (at != &q->list && list_entry(at, struct held, link)->due_ns > due_ns)
        at = at->prev;
    list_insert(at, &h->link);
}

static struct held *due(const struct queue *q, uint64_t now_ns)
{
    if (list_empty(&q->list))
        return NULL;
    struct held *h = list_entry(q->list.next, struct held, link);
    return h->due_ns <= now_ns ? h : NULL;
}

static void corrupt(struct impair *m, const struct rule *r, uint8_t *data, uint32_t len)
{
    if (!len)
        return;
    uint64_t at = r->byte < 0 ? rng_below(&m->rng, len) : (uint64_t)r->byte;
    if (at < len)
        data[at] ^= (uint8_t)(1u << rng_below(&m->rng, 8));
}

/* ---- transmit ---- */

/* Sends what is due; false: the port below has no room for it now. */
static bool flush_tx(struct impair *m, uint64_t now_ns)
{
    struct held *h;
    while ((h = due(&m->tx, now_ns))) {
        int n = port_send(m->below, now_ns, &h->tx, 1);
        if (n == 0)
            return false;
        m->tx_drops += n < 0;
        release(&m->tx, h);
    }
    return true;
}

/* Packet k of a run on its own: it then has IPv4 id 0 where ids count up within runs. */
static void hold_tx(struct impair *m, const struct port_tx *run, uint32_t k, const struct rule *r, uint64_t due_ns)
{
    uint32_t len = run_bytes(run, k);
    struct held *h = hold(&m->tx, len);
    if (!h) {
        m->tx_drops++;
        return;
    }
    run_copy(run, k, h->data);
    if (m->ids == PORT_ID_ZERO_THEN_K && wire_gid_is_v4(&run->to.gid))
        run_reid(&m->icrc_tab, h->data, len, (uint16_t)k, 0);
    h->tx = *run;
    h->tx.iov = &h->iov;
    h->tx.niov = 1;
    h->tx.npkts = 1;
    h->tx.seg_bytes = h->tx.last_bytes = len;
    h->tx.stays = false;
    if (r && r->action == PORT_IMPAIR_CORRUPT)
        corrupt(m, r, h->data, len);
    if (r && r->action == PORT_IMPAIR_MARK && (h->tx.traffic_class & 3))
        h->tx.traffic_class |= 3;
    insert(&m->tx, h, due_ns);
}

static void apart(struct impair *m, uint64_t now_ns, const struct port_tx *run, struct rule *const *rules)
{
    for (uint32_t k = 0; k < run->npkts; k++) {
        const struct rule *r = rules[k];
        if (r && r->action == PORT_IMPAIR_DROP)
            continue;
        hold_tx(m, run, k, r, r && r->action == PORT_IMPAIR_DELAY ? now_ns + r->delay_ns : now_ns);
        if (r && r->action == PORT_IMPAIR_DUPLICATE)
            hold_tx(m, run, k, r, now_ns);
    }
}

/* Which rule acts on which packet of the run; true: on one at least. */
static bool judge_run(struct impair *m, const struct port_tx *run, struct rule **ret_rules)
{
    bool any = false;
    for (uint32_t k = 0; k < run->npkts; k++) {
        uint8_t head[MATCH_HEAD_BYTES];
        size_t len = run_head(run, k, head, sizeof head);
        ret_rules[k] = impair_judge(m->rules, m->nrules, &m->rng, true, &run->from, &run->to, head, len);
        any |= ret_rules[k] != NULL;
    }
    return any;
}

static int impair_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n)
{
    struct impair *m = impair_of(p);
    struct port_caps caps;
    m->now_ns = now_ns;
    port_caps(m->below, &caps);
    m->ids = caps.ipv4_id;
    for (int i = 0; i < n; i++) {
        struct rule *rules[PORT_SEGS_MAX];
        if (!run_valid(&tx[i], caps.packet_bytes_max, PORT_SEGS_MAX))
            return i ? i : -EINVAL;
        if (!flush_tx(m, now_ns) || m->tx.bytes + run_total(&tx[i]) > IMPAIR_HELD_BYTES)
            return i;
        if (judge_run(m, &tx[i], rules)) {
            apart(m, now_ns, &tx[i], rules);
            continue;
        }
        int took = port_send(m->below, now_ns, &tx[i], 1);
        if (took < 0)
            return i ? i : took;
        if (took == 0) { /* the rules have seen it: it must not come again */
            apart(m, now_ns, &tx[i], rules);
            return i + 1;
        }
    }
    flush_tx(m, now_ns);
    return n;
}

/* ---- receive ---- */

/* A received packet in memory of our own, with the payload that lay elsewhere. */
static struct held *hold_rx(struct impair *m, const struct port_rx *rx)
{
    uint32_t pad = -rx->remote_len & 3;
    uint32_t len = rx->copy ? rx->len + rx->remote_len + pad + 4 : rx->len;
    struct held *h = hold(&m->rx, len);
    if (!h) {
        m->rx_overruns++;
        return NULL;
    }
    memcpy(h->data, rx->data, rx->len);
    h->rx = *rx;
    h->rx.data = h->data;
    h->rx.len = len;
    h->rx.copy = NULL;
    h->rx.remote_len = 0;
    if (rx->copy && rx->copy(rx->copy_ctx, h->data + rx->len, 0, rx->remote_len)) {
        m->rx.bytes -= len;
        free(h);
        return NULL;
    }
    return h;
}

/* What becomes of a packet from below: true, it is to be given to the caller now. */
static bool take_rx(struct impair *m, uint64_t now_ns, struct port_rx *rx)
{
    struct rule *r = impair_judge(m->rules, m->nrules, &m->rng, false, &rx->from, &rx->to, rx->data, rx->len);
    struct held *h;
    if (!r)
        return true;
    switch (r->action) {
    case PORT_IMPAIR_DROP:
        return false;
    case PORT_IMPAIR_MARK:
        if (rx->traffic_class & 3)
            rx->traffic_class |= 3;
        return true;
    case PORT_IMPAIR_DELAY:
        if ((h = hold_rx(m, rx)))
            insert(&m->rx, h, now_ns + r->delay_ns);
        return false;
    case PORT_IMPAIR_DUPLICATE:
        if ((h = hold_rx(m, rx)))
            insert(&m->rx, h, now_ns);
        return true;
    case PORT_IMPAIR_CORRUPT:
        h = hold_rx(m, rx);
        if (!h)
            return false;
        corrupt(m, r, h->data, h->len);
        list_push_back(&m->lent, &h->link);
        *rx = h->rx;
        return true;
    }
    return true;
}

static int impair_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max)
{
    struct impair *m = impair_of(p);
    struct held *h;
    int n = 0;
    m->now_ns = now_ns;
    while (!list_empty(&m->lent))
        release(&m->rx, list_entry(m->lent.next, struct held, link));
    flush_tx(m, now_ns);
    while (n < max && (h = due(&m->rx, now_ns))) {
        list_del(&h->link);
        list_push_back(&m->lent, &h->link);
        h->rx.time_ns = h->due_ns;
        ret[n++] = h->rx;
    }
    /* Also when nothing fits: what was lent by below is asked for again then only. */
    if (n == max)
        return n;
    int k = port_recv(m->below, now_ns, ret + n, max - n);
    if (k < 0)
        return n ? n : k;
    int kept = n;
    for (int i = n; i < n + k; i++) {
        struct port_rx rx = ret[i];
        if (take_rx(m, now_ns, &rx))
            ret[kept++] = rx;
    }
    return kept;
}

/* ---- the rest ---- */

static void impair_caps(const struct port *p, struct port_caps *ret)
{
    port_caps(impair_of(p)->below, ret);
}

static int impair_fd(const struct port *p)
{
    return port_fd(impair_of(p)->below);
}

static int impair_rx_fd(const struct port *p)
{
    return port_rx_fd(impair_of(p)->below);
}

static bool impair_arm(struct port *p)
{
    struct impair *m = impair_of(p);
    return port_arm(m->below) || due(&m->rx, m->now_ns);
}

static uint64_t impair_deadline(const struct port *p)
{
    const struct impair *m = impair_of(p);
    uint64_t t = port_deadline(m->below);
    if (!list_empty(&m->rx.list))
        t = min_u64(t, list_entry(m->rx.list.next, struct held, link)->due_ns);
    /* What is due already waits for room below, and below tells of that. */
    if (!list_empty(&m->tx.list) && !due(&m->tx, m->now_ns))
        t = min_u64(t, list_entry(m->tx.list.next, struct held, link)->due_ns);
    return t;
}

static uint16_t impair_sport(struct port *p, uint16_t wanted)
{
    return port_sport(impair_of(p)->below, wanted);
}

static void impair_revoke(struct port *p, const struct port_taken *what)
{
    port_revoke(impair_of(p)->below, what);
}

static int impair_join(struct port *p, const struct port_addr *group, bool join)
{
    return port_join(impair_of(p)->below, group, join);
}

static void impair_counters(const struct port *p, struct uroce_counters *add_to)
{
    const struct impair *m = impair_of(p);
    port_counters(m->below, add_to);
    add_to->tx_drops += m->tx_drops;
    add_to->rx_overruns += m->rx_overruns;
}

static void impair_close(struct port *p)
{
    struct impair *m = impair_of(p);
    port_close(m->below);
    while (!list_empty(&m->lent))
        release(&m->rx, list_entry(m->lent.next, struct held, link));
    while (!list_empty(&m->rx.list))
        release(&m->rx, list_entry(m->rx.list.next, struct held, link));
    while (!list_empty(&m->tx.list))
        release(&m->tx, list_entry(m->tx.list.next, struct held, link));
    free(m);
}

static const struct port_ops impair_ops = {
    .caps = impair_caps,
    .send = impair_send,
    .recv = impair_recv,
    .fd = impair_fd,
    .rx_fd = impair_rx_fd,
    .arm = impair_arm,
    .deadline = impair_deadline,
    .sport = impair_sport,
    .revoke = impair_revoke,
    .join = impair_join,
    .counters = impair_counters,
    .close = impair_close,
};

int port_impair_open(const char *rules, uint64_t seed, struct port *below, struct port **ret, char *err,
                     size_t err_size)
{
    struct impair *m = calloc(1, sizeof *m);
    if (!m) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    int n = impair_parse(m->rules, rules, err, err_size);
    if (n < 0) {
        free(m);
        return n;
    }
    m->nrules = n;
    m->port.ops = &impair_ops;
    m->below = below;
    rng_seed(&m->rng, seed);
    wire_icrc_tab_init(&m->icrc_tab);
    list_init(&m->tx.list);
    list_init(&m->rx.list);
    list_init(&m->lent);
    *ret = &m->port;
    return 0;
}

int port_impair_counters(const struct port *p, int i, uint64_t *ret_matched, uint64_t *ret_acted)
{
    const struct impair *m = impair_of(p);
    if (p->ops != &impair_ops || i < 0 || i >= m->nrules)
        return -ENOENT;
    *ret_matched = m->rules[i].matched;
    *ret_acted = m->rules[i].acted;
    return 0;
}

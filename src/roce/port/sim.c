/* The simulated network: ports on one switch, in virtual time. See port.h; the links are in sim_link.c. */
#include "run.h"
#include "sim_priv.h"

#include <errno.h>
#include <string.h>

static struct sim_port *sim_of(const struct port *p)
{
    return container_of((struct port *)p, struct sim_port, port);
}

static bool gid_eq(const union uroce_gid *a, const union uroce_gid *b)
{
    return memcmp(a->raw, b->raw, sizeof a->raw) == 0;
}

static bool in_group(const struct sim_port *p, const union uroce_gid *gid)
{
    for (uint32_t i = 0; i < p->ngroups; i++)
        if (gid_eq(&p->groups[i], gid))
            return true;
    return false;
}

/* At the switch: to the link of whoever has the address, and of each member of the group. Takes p. */
static void route(struct port_sim_net *n, struct sim_pkt *p)
{
    bool found = false;
    list_for_each (it, &n->ports) {
        struct sim_port *to = list_entry(it, struct sim_port, link);
        if (!gid_eq(&to->local.gid, &p->to.gid) && !in_group(to, &p->to.gid))
            continue;
        found = true;
        struct sim_pkt *copy = sim_pkt_copy(n, p);
        if (!copy) {
            n->stats.tail_dropped++;
            continue;
        }
        copy->to_port = to;
        sim_link_pass(n, &to->down, copy);
    }
    n->stats.unrouted += !found;
    sim_pkt_free(n, p);
}

static void deliver(struct port_sim_net *n, struct sim_pkt *p)
{
    struct sim_port *to = p->to_port;
    if (to->waiting_bytes + p->len > to->rcvbuf_bytes) {
        n->stats.overrun++;
        to->overrun++;
        sim_pkt_free(n, p);
        return;
    }
    to->waiting_bytes += p->len;
    n->nwaiting++;
    list_push_back(&to->waiting, &p->link);
}

/* Moves all that is due, each packet at its own time. Time does not go back. */
static void run_to(struct port_sim_net *n, uint64_t now_ns)
{
    while (n->nheap && n->heap[0]->time_ns <= now_ns) {
        struct sim_pkt *p = n->heap[0];
        sim_heap_pop(n);
        n->now_ns = max_u64(n->now_ns, p->time_ns);
        if (p->to_port)
            deliver(n, p);
        else
            route(n, p);
    }
    n->now_ns = max_u64(n->now_ns, now_ns);
}

static void sim_caps(const struct port *p, struct port_caps *ret)
{
    const struct sim_port *s = sim_of(p);
    *ret = (struct port_caps){
        .name = "sim",
        .ipv4_id = PORT_ID_TOLD,
        .packet_bytes_max = RUN_PACKET_MAX,
        .segs_max = PORT_SEGS_MAX,
        .rcvbuf_bytes = s->rcvbuf_bytes,
        .line_rate_bps = s->up.cfg.rate_bps,
    };
}

static void send_packet(struct sim_port *s, const struct port_tx *tx, uint32_t k)
{
    struct port_sim_net *n = s->net;
    uint32_t len = run_bytes(tx, k);
    struct sim_pkt *p = sim_pkt_new(n, len);
    n->stats.sent++;
    if (!p) {
        n->stats.tail_dropped++;
        return;
    }
    p->from = tx->from;
    p->to = tx->to;
    p->traffic_class = tx->traffic_class;
    p->hop_limit = tx->hop_limit;
    run_copy(tx, k, p->data);
    sim_link_pass(n, &s->up, p);
}

static int sim_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int nruns)
{
    struct sim_port *s = sim_of(p);
    run_to(s->net, now_ns);
    for (int i = 0; i < nruns; i++) {
        if (!run_valid(&tx[i], RUN_PACKET_MAX, PORT_SEGS_MAX))
            return i ? i : -EINVAL;
        for (uint32_t k = 0; k < tx[i].npkts; k++)
            send_packet(s, &tx[i], k);
    }
    return nruns;
}

static void forget_lent(struct sim_port *s)
{
    struct list *it;
    while ((it = list_pop_front(&s->lent)))
        sim_pkt_free(s->net, list_entry(it, struct sim_pkt, link));
}

static int sim_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max)
{
    struct sim_port *s = sim_of(p);
    forget_lent(s);
    run_to(s->net, now_ns);
    int n = 0;
    while (n < max && !list_empty(&s->waiting)) {
        struct sim_pkt *pkt = list_entry(list_pop_front(&s->waiting), struct sim_pkt, link);
        list_push_back(&s->lent, &pkt->link);
        s->waiting_bytes -= pkt->len;
        s->net->nwaiting--;
        s->net->stats.delivered++;
        ret[n++] = (struct port_rx){
            .from = pkt->from,
            .to = pkt->to,
            .data = pkt->data,
            .len = pkt->len,
            .traffic_class = pkt->traffic_class,
            .hop_limit = pkt->hop_limit,
            .ipv4_id_known = true,
            .time_ns = pkt->time_ns,
        };
    }
    return n;
}

static int sim_fd(const struct port *p)
{
    (void)p;
    return -1;
}

static bool sim_arm(struct port *p)
{
    return !list_empty(&sim_of(p)->waiting);
}

static uint64_t sim_deadline(const struct port *p)
{
    return port_sim_net_deadline(sim_of(p)->net);
}

static uint16_t sim_sport(struct port *p, uint16_t wanted)
{
    (void)p;
    return wanted;
}

static void sim_revoke(struct port *p, const struct port_taken *what)
{
    (void)p, (void)what;
}

static int sim_join(struct port *p, const struct port_addr *group, bool join)
{
    struct sim_port *s = sim_of(p);
    for (uint32_t i = 0; i < s->ngroups; i++) {
        if (!gid_eq(&s->groups[i], &group->gid))
            continue;
        if (!join)
            s->groups[i] = s->groups[--s->ngroups];
        return 0;
    }
    if (!join)
        return -ENOENT;
    if (s->ngroups == SIM_GROUPS)
        return -ENOSPC;
    s->groups[s->ngroups++] = group->gid;
    return 0;
}

static void sim_counters(const struct port *p, struct uroce_counters *add_to)
{
    add_to->rx_overruns += sim_of(p)->overrun;
}

static void sim_close(struct port *p)
{
    struct sim_port *s = sim_of(p);
    struct list *it;
    forget_lent(s);
    while ((it = list_pop_front(&s->waiting))) {
        s->net->nwaiting--;
        sim_pkt_free(s->net, list_entry(it, struct sim_pkt, link));
    }
    sim_heap_purge(s->net, s);
    list_del(&s->link);
    s->net->nports--;
    free(s);
}

static const struct port_ops sim_ops = {
    .caps = sim_caps,
    .send = sim_send,
    .recv = sim_recv,
    .fd = sim_fd,
    .rx_fd = sim_fd,
    .arm = sim_arm,
    .deadline = sim_deadline,
    .sport = sim_sport,
    .revoke = sim_revoke,
    .join = sim_join,
    .counters = sim_counters,
    .close = sim_close,
};

int port_sim_net_new(uint64_t seed, struct port_sim_net **ret)
{
    struct port_sim_net *n = calloc(1, sizeof *n);
    if (!n)
        return -ENOMEM;
    rng_seed(&n->rng, seed);
    list_init(&n->ports);
    *ret = n;
    return 0;
}

void port_sim_net_free(struct port_sim_net *n)
{
    if (!n)
        return;
    for (size_t i = 0; i < n->nheap; i++)
        free(n->heap[i]);
    free(n->heap);
    free(n);
}

int port_sim_open(struct port_sim_net *n, const struct port_addr *local, const struct port_sim_link *up,
                  const struct port_sim_link *down, struct port **ret)
{
    list_for_each (it, &n->ports)
        if (gid_eq(&list_entry(it, struct sim_port, link)->local.gid, &local->gid))
            return -EADDRINUSE;
    if (n->nports == SIM_PORTS_MAX)
        return -ENOSPC;
    struct sim_port *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->port.ops = &sim_ops;
    s->net = n;
    s->local = *local;
    s->rcvbuf_bytes = SIM_RCVBUF;
    list_init(&s->waiting);
    list_init(&s->lent);
    port_sim_set_link(&s->port, up, down);
    list_push_back(&n->ports, &s->link);
    n->nports++;
    *ret = &s->port;
    return 0;
}

void port_sim_set_link(struct port *p, const struct port_sim_link *up, const struct port_sim_link *down)
{
    static const struct port_sim_link perfect;
    struct sim_port *s = sim_of(p);
    s->up.cfg = up ? *up : perfect;
    s->down.cfg = down ? *down : perfect;
}

void port_sim_set_rcvbuf(struct port *p, uint64_t bytes)
{
    sim_of(p)->rcvbuf_bytes = bytes;
}

uint64_t port_sim_net_deadline(const struct port_sim_net *n)
{
    if (n->nwaiting)
        return n->now_ns;
    return n->nheap ? n->heap[0]->time_ns : UINT64_MAX;
}

void port_sim_net_stats(const struct port_sim_net *n, struct port_sim_stats *ret)
{
    *ret = n->stats;
}

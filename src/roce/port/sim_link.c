/* What a simulated link does to a packet, in the order in which a real one would: queue, mark, transmit, lose, delay.
 */
#include "sim_priv.h"

static bool chance(struct rng *r, double p)
{
    return p > 0 && (double)(rng_u64(r) >> 11) * 0x1p-53 < p;
}

static uint32_t size_on_link(const struct sim_pkt *p)
{
    return p->len + (wire_gid_is_v4(&p->to.gid) ? SIM_OVERHEAD_V4 : SIM_OVERHEAD_V6);
}

static uint64_t bytes_to_ns(uint64_t bytes, uint64_t rate_bps)
{
    return (uint64_t)((unsigned __int128)bytes * 8 * NSEC_PER_SEC / rate_bps);
}

static uint64_t ns_to_bytes(uint64_t ns, uint64_t rate_bps)
{
    return (uint64_t)((unsigned __int128)ns * rate_bps / 8 / NSEC_PER_SEC);
}

/* Random early marking by the bytes that wait (DCQCN, section 3.1). */
static bool queue_marks(struct rng *r, const struct port_sim_link *c, uint64_t queued)
{
    if (!c->ecn_kmax_bytes || queued <= c->ecn_kmin_bytes)
        return false;
    if (queued >= c->ecn_kmax_bytes)
        return true;
    return chance(r, c->ecn_pmax * (double)(queued - c->ecn_kmin_bytes) / (c->ecn_kmax_bytes - c->ecn_kmin_bytes));
}

static void duplicate(struct port_sim_net *n, const struct sim_pkt *p)
{
    struct sim_pkt *copy = sim_pkt_copy(n, p);
    if (!copy)
        return;
    n->stats.duplicated++;
    sim_heap_push(n, copy);
}

/* When its last bit leaves the sender, or UINT64_MAX: the queue is full. Marks it if the queue is long. */
static uint64_t through_queue(struct port_sim_net *n, struct sim_link *l, struct sim_pkt *p)
{
    const struct port_sim_link *c = &l->cfg;
    uint32_t size = size_on_link(p);
    uint64_t start = max_u64(n->now_ns, l->busy_until_ns);
    bool mark = chance(&n->rng, c->ecn_mark);
    if (c->rate_bps) {
        uint64_t queued = ns_to_bytes(start - n->now_ns, c->rate_bps);
        if (c->queue_bytes && queued + size > c->queue_bytes)
            return UINT64_MAX;
        mark |= queue_marks(&n->rng, c, queued);
        start += bytes_to_ns(size, c->rate_bps);
        l->busy_until_ns = start;
    }
    if (mark && (p->traffic_class & 3)) {
        p->traffic_class |= 3;
        n->stats.marked++;
    }
    return start;
}

void sim_link_pass(struct port_sim_net *n, struct sim_link *l, struct sim_pkt *p)
{
    const struct port_sim_link *c = &l->cfg;
    uint64_t sent = through_queue(n, l, p);
    if (sent == UINT64_MAX || chance(&n->rng, c->loss)) {
        if (sent == UINT64_MAX)
            n->stats.tail_dropped++;
        else
            n->stats.lost++;
        sim_pkt_free(n, p);
        return;
    }
    uint64_t arrival = sent + c->delay_ns + (c->jitter_ns ? rng_below(&n->rng, c->jitter_ns + 1) : 0);
    arrival = max_u64(arrival, l->last_arrival_ns);
    l->last_arrival_ns = arrival;
    if (c->reorder_ns && chance(&n->rng, c->reorder)) {
        arrival += c->reorder_ns;
        n->stats.reordered++;
    }
    if (p->len && chance(&n->rng, c->corrupt)) {
        uint64_t bit = rng_below(&n->rng, (uint64_t)p->len * 8);
        p->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        n->stats.corrupted++;
    }
    p->time_ns = arrival;
    if (chance(&n->rng, c->duplicate))
        duplicate(n, p);
    sim_heap_push(n, p);
}

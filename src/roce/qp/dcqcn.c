#include "dcqcn.h"

#define ONE (1ull << DCQCN_ALPHA_SHIFT)

void dcqcn_init(struct dcqcn *d, const struct qp_dcqcn_config *c)
{
    *d = (struct dcqcn){.alpha = ONE, .target = c->line_rate_bps};
}

void dcqcn_cnp(struct dcqcn *d, const struct qp_dcqcn_config *c, uint64_t now_ns)
{
    if (!c->enabled)
        return;
    if (!d->rate)
        d->rate = c->line_rate_bps;
    d->target = d->rate;
    d->rate -= (uint64_t)((unsigned __int128)d->rate * d->alpha >> (DCQCN_ALPHA_SHIFT + 1));
    if (d->rate < c->min_rate_bps)
        d->rate = c->min_rate_bps;
    d->alpha += (ONE - d->alpha) >> c->g_shift;
    d->alpha_at = now_ns + (uint64_t)c->alpha_timer_us * 1000;
    d->rate_at = now_ns + (uint64_t)c->rate_timer_us * 1000;
    d->bytes = 0;
    d->byte_stage = d->time_stage = 0;
}

/* A step back to the target, which itself rises once one counter (additive) or both (hyper) are past fast recovery. */
static void increase(struct dcqcn *d, const struct qp_dcqcn_config *c)
{
    uint32_t f = c->fast_recovery_stages;
    uint32_t low = d->byte_stage < d->time_stage ? d->byte_stage : d->time_stage;
    uint32_t high = d->byte_stage < d->time_stage ? d->time_stage : d->byte_stage;

    if (low > f)
        d->target += (uint64_t)(low - f) * c->rhai_bps_m * 1000000;
    else if (high > f)
        d->target += (uint64_t)c->rai_bps_m * 1000000;
    if (d->target > c->line_rate_bps)
        d->target = c->line_rate_bps;
    d->rate = (d->target + d->rate) / 2;
    if (d->rate + d->rate / 256 >= c->line_rate_bps) { /* as good as the line: no more pacing */
        d->rate = 0;
        d->target = c->line_rate_bps;
    }
}

void dcqcn_sent(struct dcqcn *d, const struct qp_dcqcn_config *c, uint32_t bytes)
{
    if (!d->rate)
        return;
    d->bytes += bytes;
    if (d->bytes >= c->byte_counter) {
        d->bytes -= c->byte_counter;
        d->byte_stage++;
        increase(d, c);
    }
}

void dcqcn_tick(struct dcqcn *d, const struct qp_dcqcn_config *c, uint64_t now_ns)
{
    if (!d->rate)
        return;
    if (d->alpha_at <= now_ns) {
        d->alpha -= d->alpha >> c->g_shift;
        d->alpha_at = now_ns + (uint64_t)c->alpha_timer_us * 1000;
    }
    if (d->rate_at <= now_ns) {
        d->rate_at = now_ns + (uint64_t)c->rate_timer_us * 1000;
        d->time_stage++;
        increase(d, c);
    }
}

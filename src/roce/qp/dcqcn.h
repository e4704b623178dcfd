/*
 * DCQCN, the reaction point (Zhu et al., SIGCOMM 2015): the sending rate of a queue pair under congestion notification.
 * Pure: now goes in, a rate and the next deadline come out. At line rate it is idle and costs nothing.
 */
#ifndef QP_DCQCN_H
#define QP_DCQCN_H

#include "qp/qp.h"

struct dcqcn {
    uint64_t rate, target;      /* bits per second; rate 0: not limited (line rate) */
    uint64_t alpha;             /* in 1 / 2^DCQCN_ALPHA_SHIFT */
    uint64_t alpha_at, rate_at; /* deadlines of the two timers */
    uint64_t bytes;             /* since the last stage of the byte counter */
    uint32_t byte_stage, time_stage;
};
#define DCQCN_ALPHA_SHIFT 20

void dcqcn_init(struct dcqcn *d, const struct qp_dcqcn_config *c);
/* A CNP came: the rate is cut. */
void dcqcn_cnp(struct dcqcn *d, const struct qp_dcqcn_config *c, uint64_t now_ns);
/* So many bytes (wire) were sent. */
void dcqcn_sent(struct dcqcn *d, const struct qp_dcqcn_config *c, uint32_t bytes);
void dcqcn_tick(struct dcqcn *d, const struct qp_dcqcn_config *c, uint64_t now_ns);
static inline uint64_t dcqcn_deadline(const struct dcqcn *d)
{
    if (!d->rate)
        return UINT64_MAX;
    return d->alpha_at < d->rate_at ? d->alpha_at : d->rate_at;
}

#endif

/*
 * A token bucket, exact over any time: what it gives in T nanoseconds is between rate * T - need and rate * T + burst +
 * need, without an error that adds up. Pure: the caller brings the time, which never runs back.
 */
#ifndef QOS_BUCKET_H
#define QOS_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#define QOS_RATE_MAX (1ull << 50) /* units a second, and of a burst */

struct qos_bucket {
    uint64_t rate;  /* units a second; 0: no limit */
    uint64_t burst; /* units that an idle time may save; >= 1 */
    int64_t tokens; /* <= burst; negative: a debt, by which more than a burst may go at once */
    uint64_t rest;  /* of a unit, in 1e-9; 0 when the bucket is full */
    uint64_t at_ns; /* when the two were right */
};

/* Full. Rates and bursts beyond QOS_RATE_MAX are QOS_RATE_MAX, a burst of 0 is 1. */
void bucket_init(struct qos_bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ns);
/* Another rate from now on: what was saved or owed until now stays, cut to the new burst. From no limit: full. */
void bucket_set(struct qos_bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ns);
/*
 * When `need` units may go: now_ns or earlier is now. What is more than a burst goes when a whole burst is there, and
 * leaves a debt. UINT64_MAX: not within the clock's range.
 */
uint64_t bucket_when(struct qos_bucket *b, uint64_t need, uint64_t now_ns);
/* Takes, whether they are there or not. */
void bucket_take(struct qos_bucket *b, uint64_t need, uint64_t now_ns);
/* What was taken was not used. */
void bucket_give_back(struct qos_bucket *b, uint64_t need, uint64_t now_ns);

#endif

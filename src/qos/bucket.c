#include "qos/bucket.h"

#include "base/util.h"

typedef unsigned __int128 u128;

static void limits(struct qos_bucket *b, uint64_t rate, uint64_t burst)
{
    b->rate = min_u64(rate, QOS_RATE_MAX);
    b->burst = max_u64(1, min_u64(burst, QOS_RATE_MAX));
}

static void fill(struct qos_bucket *b)
{
    b->tokens = (int64_t)b->burst;
    b->rest = 0;
}

/* Adds what has come since. */
static void settle(struct qos_bucket *b, uint64_t now_ns)
{
    u128 part;
    uint64_t dt;

    if (now_ns <= b->at_ns)
        return;
    dt = now_ns - b->at_ns;
    b->at_ns = now_ns;
    if (b->tokens >= (int64_t)b->burst)
        return;
    part = (u128)b->rate * dt + b->rest; /* < 2^50 * 2^64 + 2^30 */
    if (part / NSEC_PER_SEC >= (u128)((int64_t)b->burst - b->tokens)) {
        fill(b);
        return;
    }
    b->tokens += (int64_t)(part / NSEC_PER_SEC);
    b->rest = (uint64_t)(part % NSEC_PER_SEC);
}

void bucket_init(struct qos_bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ns)
{
    limits(b, rate, burst);
    b->at_ns = now_ns;
    fill(b);
}

void bucket_set(struct qos_bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ns)
{
    if (!b->rate) {
        bucket_init(b, rate, burst, now_ns);
        return;
    }
    settle(b, now_ns);
    limits(b, rate, burst);
    if (b->tokens >= (int64_t)b->burst)
        fill(b);
}

uint64_t bucket_when(struct qos_bucket *b, uint64_t need, uint64_t now_ns)
{
    int64_t want = (int64_t)min_u64(need, b->burst);
    u128 wait;

    if (!b->rate)
        return 0;
    settle(b, now_ns);
    if (b->tokens >= want)
        return 0;
    wait = ((u128)(want - b->tokens) * NSEC_PER_SEC - b->rest + b->rate - 1) / b->rate;
    return wait > UINT64_MAX - 1 - b->at_ns ? UINT64_MAX : b->at_ns + (uint64_t)wait;
}

void bucket_take(struct qos_bucket *b, uint64_t need, uint64_t now_ns)
{
    if (!b->rate)
        return;
    settle(b, now_ns);
    /* A debt is bounded too: by 2^62 units, which nobody lives to see paid. */
    b->tokens = b->tokens < INT64_MIN / 2 ? b->tokens : b->tokens - (int64_t)min_u64(need, QOS_RATE_MAX);
}

void bucket_give_back(struct qos_bucket *b, uint64_t need, uint64_t now_ns)
{
    if (!b->rate)
        return;
    settle(b, now_ns);
    if (min_u64(need, QOS_RATE_MAX) >= (uint64_t)((int64_t)b->burst - b->tokens))
        fill(b);
    else
        b->tokens += (int64_t)need;
}

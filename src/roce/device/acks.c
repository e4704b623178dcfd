/*
 * An acknowledgement costs as much as a packet with data. A program that polls, and posts its answer as soon as it was
 * given a packet, as it did the last times, has its acknowledgements wait for that: both go in one segmented send. They
 * go without it with the next call of any other kind, or a poll that finds nothing. If the program does not call again,
 * the device's thread sends them (after a millisecond at most), as does whatever ends a queue pair or the program.
 */
#include "dev.h"

#define PKTS    4      /* more is a stream */
#define WAIT_NS 50000u /* an answer that takes longer is no answer at once */
#define LEARNT  8      /* answers at once, more than times when there was none */
#define MOST    16

static void learn(struct dev_acks *a, uint64_t now, enum dev_hand hand)
{
    if (!a->since)
        return;
    if (now - a->since > WAIT_NS)
        a->answers = 0;
    else if (a->asked && hand == DEV_POST)
        a->answers += a->answers < MOST;
    else if (a->asked)
        a->answers -= a->answers > 0;
    a->asked = false;
}

/* Whether acknowledgements may wait in this drive, in which `got` packets came. */
static bool may_wait(const struct uroce_device *dev, uint64_t now, enum dev_hand hand, int got)
{
    const struct dev_acks *a = &dev->acks;
    if (!dev->has_thread || got > PKTS || (a->since && now - a->since > WAIT_NS))
        return false;
    return (hand == DEV_POLL || hand == DEV_WOKEN) && got > 0;
}

bool dev_acks_send(struct uroce_device *dev, uint64_t now, enum dev_hand hand, int got)
{
    struct dev_acks *a = &dev->acks;
    learn(a, now, hand);
    bool wait = may_wait(dev, now, hand, got);
    qp_engine_put_off(dev->engine, wait);
    bool more = dev_tx_all(dev, now);
    a->waits = wait && qp_engine_put_off(dev->engine, true);
    if (!a->waits) {
        a->since = 0;
        return more;
    }
    if (!a->since) {
        a->since = now;
        a->asked = true;
    }
    if (a->answers < LEARNT) {
        a->waits = false;
        qp_engine_put_off(dev->engine, false);
        more |= dev_tx_all(dev, now);
    }
    return more;
}

uint64_t dev_acks_deadline(const struct uroce_device *dev)
{
    return dev->acks.waits ? dev->acks.since + WAIT_NS : UINT64_MAX;
}

void dev_acks_now(struct uroce_device *dev)
{
    if (!dev->acks.waits)
        return;
    dev->acks.waits = false;
    dev->acks.since = 0;
    qp_engine_put_off(dev->engine, false);
    if (dev_tx_all(dev, now_ns()))
        atomic_store(&dev->pending, true);
}

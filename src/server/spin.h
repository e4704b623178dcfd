/*
 * Polling on for a moment before a sleep: where something usually comes in that moment it is there at once, and no
 * sleep is paid for; where nothing does, as over a network whose round trip is longer, the processor's time is spent
 * for nothing. So it is done while it pays, and else once in a while, to see whether it does now. Pure; one thread.
 */
#ifndef SERVER_SPIN_H
#define SERVER_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_WORTH_MAX 8u  /* so many more failures than successes end it */
#define SPIN_EVERY     16u /* then so many sleeps, of which one is put off */

struct spin {
    uint64_t ns; /* the moment; 0: none */
    uint64_t since_ns;
    uint32_t worth, skipped;
    bool on;
};

static inline struct spin spin_for(uint64_t ns)
{
    return (struct spin){.ns = ns, .worth = SPIN_WORTH_MAX};
}

/* Something has come. */
static inline void spin_got(struct spin *p)
{
    if (p->on && p->worth < SPIN_WORTH_MAX)
        p->worth++;
    p->on = false;
}

/* Nothing has: look again? False: sleep. */
static inline bool spin_on(struct spin *p, uint64_t now_ns)
{
    if (!p->on) {
        if (!p->ns || (!p->worth && ++p->skipped < SPIN_EVERY))
            return false;
        p->on = true;
        p->skipped = 0;
        p->since_ns = now_ns;
        return true;
    }
    if (now_ns - p->since_ns < p->ns)
        return true;
    p->on = false;
    p->worth -= p->worth > 0;
    return false;
}

#endif

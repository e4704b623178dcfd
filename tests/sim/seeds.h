/*
 * Which programs a randomised simulation runs: numbered ones, from a base on. PENSTOCK_SEED: the base, else the clock;
 * PENSTOCK_COUNT: how many, else as many as usual, or as PENSTOCK_EXTENDED wants. So one program is repeated by its
 * number and PENSTOCK_COUNT=1.
 */
#ifndef SIM_SEEDS_H
#define SIM_SEEDS_H

#include "base/util.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct seeds {
    uint64_t base, n;
    bool many; /* enough of them that each kind of event has to be among them */
};

static inline struct seeds seeds_wanted(uint64_t usual, uint64_t extended)
{
    const char *base = getenv("PENSTOCK_SEED"), *count = getenv("PENSTOCK_COUNT");
#if defined(__SANITIZE_ADDRESS__)
    usual /= 5; /* it is as much slower */
    extended /= 20;
#endif
    uint64_t n = count ? strtoull(count, NULL, 0) : getenv("PENSTOCK_EXTENDED") ? extended : usual;
    return (struct seeds){base ? strtoull(base, NULL, 0) : now_ns(), n, n >= usual};
}

#endif

/* The seed of a test that draws at random. PENSTOCK_SEED repeats a run: it is told in the output. */
#ifndef TESTS_SEED_H
#define TESTS_SEED_H

#include "base/util.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline uint64_t seed_or(uint64_t other)
{
    const char *text = getenv("PENSTOCK_SEED");
    uint64_t n = text ? strtoull(text, NULL, 0) : other;

    printf("PENSTOCK_SEED=%llu\n", (unsigned long long)n);
    fflush(stdout);
    return n;
}

/* Another one each time. */
static inline uint64_t seed_new(void)
{
    return seed_or(now_ns() % 1000000);
}

#endif

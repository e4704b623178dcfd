/* Packet sequence numbers: 24 bits that wrap (IBTA 9.7.2), in a type of their own so that plain `<` does not compile.
 */
#ifndef ROCE_WIRE_PSN_H
#define ROCE_WIRE_PSN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint32_t v; /* 0 .. PSN_MASK */
} psn24;

#define PSN_MASK 0xffffffu
/* Half of the space: the most packets that may be outstanding (IBTA 9.7.2), so that old and new can be told apart. */
#define PSN_WINDOW_MAX 0x800000u

/* The upper 8 bits are dropped. */
static inline psn24 psn_make(uint32_t v)
{
    return (psn24){v & PSN_MASK};
}

static inline psn24 psn_add(psn24 p, uint32_t n)
{
    return psn_make(p.v + n);
}

static inline psn24 psn_sub(psn24 p, uint32_t n)
{
    return psn_make(p.v - n);
}

static inline psn24 psn_next(psn24 p)
{
    return psn_add(p, 1);
}

static inline psn24 psn_prev(psn24 p)
{
    return psn_sub(p, 1);
}

/* How far a is ahead of b, the short way round: -2^23 .. 2^23 - 1. */
static inline int32_t psn_diff(psn24 a, psn24 b)
{
    return (int32_t)((a.v - b.v) << 8) >> 8;
}

/* Packets from b up to a, going forward: 0 .. 2^24 - 1. */
static inline uint32_t psn_dist(psn24 a, psn24 b)
{
    return (a.v - b.v) & PSN_MASK;
}

static inline bool psn_eq(psn24 a, psn24 b)
{
    return a.v == b.v;
}

static inline bool psn_lt(psn24 a, psn24 b)
{
    return psn_diff(a, b) < 0;
}

static inline bool psn_le(psn24 a, psn24 b)
{
    return psn_diff(a, b) <= 0;
}

/* first <= p < first + n, in the ring; n <= 2^24. */
static inline bool psn_within(psn24 p, psn24 first, uint32_t n)
{
    return psn_dist(p, first) < n;
}

#endif

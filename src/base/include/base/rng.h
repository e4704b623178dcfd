/* Randomness: secrets from the kernel, and a seeded generator for tests and simulations. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* Fills buf from the kernel's generator; aborts if there is none (keys must never be weak). */
void rng_secret(void *buf, size_t len);
/* A random UUID: RFC 4122, version 4. */
void rng_uuid(uint8_t ret[16]);

/* xoshiro256** (Blackman and Vigna, public domain algorithm): repeatable, not for secrets. One owner at a time. */
struct rng {
    uint64_t s[4];
};
void rng_seed(struct rng *r, uint64_t seed);
uint64_t rng_u64(struct rng *r);
/* Uniform in [0, n); n > 0. */
uint64_t rng_below(struct rng *r, uint64_t n);
void rng_fill(struct rng *r, void *buf, size_t len);

#endif

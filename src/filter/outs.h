/*
 * Memory for encrypted chunks on their way to the store below: one piece, whose owner can have it read from there (a
 * registered region) without a copy. The store below may read all of it at any time, so nothing but what is encrypted
 * is ever in it, and it must not be able to write there: the tag is computed over the bytes as they lie in it.
 */
#ifndef FILTER_OUTS_H
#define FILTER_OUTS_H

#include <stddef.h>
#include <stdint.h>

#define OUTS_GRAIN (64u << 10)

struct outs;

/* bytes: a multiple of the grain, not 0. NULL: no memory. */
struct outs *outs_new(size_t bytes);
void outs_free(struct outs *o); /* accepts NULL */
/* NULL: no room now. Thread-safe, as outs_put. */
uint8_t *outs_get(struct outs *o, uint32_t len);
void outs_put(struct outs *o, uint8_t *p, uint32_t len);
void outs_memory(const struct outs *o, void **ret, size_t *ret_len);

#endif

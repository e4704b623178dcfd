/* A fixed-size bitmap with a search for runs. Not thread-safe. */
#ifndef BASE_BITMAP_H
#define BASE_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bitmap {
    uint64_t *words;
    uint64_t bits;
};

/* All bits clear. 0 or -ENOMEM. */
int bitmap_init(struct bitmap *b, uint64_t bits);
void bitmap_done(struct bitmap *b);
/* Keeps the old bits, new ones are clear; never shrinks. 0 or -ENOMEM. */
int bitmap_grow(struct bitmap *b, uint64_t bits);
bool bitmap_test(const struct bitmap *b, uint64_t i);
/* The range must lie inside; the caller's bug otherwise (asserted). */
void bitmap_set(struct bitmap *b, uint64_t start, uint64_t n);
void bitmap_clear(struct bitmap *b, uint64_t start, uint64_t n);
bool bitmap_range_clear(const struct bitmap *b, uint64_t start, uint64_t n);
/*
 * Finds a run of clear bits from `from` on, wrapping once: the first run of at least `want`, else the longest one.
 * Returns its length cut to `want` (0: nothing is clear) and where it starts.
 */
uint64_t bitmap_find_clear(const struct bitmap *b, uint64_t from, uint64_t want, uint64_t *ret_start);
uint64_t bitmap_count(const struct bitmap *b);

#endif

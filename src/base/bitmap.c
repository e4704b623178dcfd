#include "base/bitmap.h"

#include "base/util.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static uint64_t words_for(uint64_t bits)
{
    return (bits + 63) / 64;
}

int bitmap_init(struct bitmap *b, uint64_t bits)
{
    b->words = calloc(max_u64(words_for(bits), 1), sizeof *b->words);
    b->bits = b->words ? bits : 0;
    return b->words ? 0 : -ENOMEM;
}

void bitmap_done(struct bitmap *b)
{
    free(b->words);
    *b = (struct bitmap){0};
}

int bitmap_grow(struct bitmap *b, uint64_t bits)
{
    uint64_t old = words_for(b->bits), want = words_for(bits);
    if (bits <= b->bits)
        return 0;
    if (want > old) {
        uint64_t *w = realloc(b->words, want * sizeof *w);
        if (!w)
            return -ENOMEM;
        memset(w + old, 0, (want - old) * sizeof *w);
        b->words = w;
    }
    b->bits = bits;
    return 0;
}

bool bitmap_test(const struct bitmap *b, uint64_t i)
{
    assert(i < b->bits);
    return b->words[i / 64] >> (i % 64) & 1;
}

/* The bits of [start, start + n) that lie in one word, as a mask; returns how many. */
static uint64_t word_mask(uint64_t start, uint64_t n, uint64_t *ret_mask)
{
    uint64_t shift = start % 64, take = min_u64(n, 64 - shift);
    *ret_mask = (take == 64 ? ~0ull : (1ull << take) - 1) << shift;
    return take;
}

void bitmap_set(struct bitmap *b, uint64_t start, uint64_t n)
{
    assert(start <= b->bits && n <= b->bits - start);
    for (uint64_t mask, k; n; start += k, n -= k) {
        k = word_mask(start, n, &mask);
        b->words[start / 64] |= mask;
    }
}

void bitmap_clear(struct bitmap *b, uint64_t start, uint64_t n)
{
    assert(start <= b->bits && n <= b->bits - start);
    for (uint64_t mask, k; n; start += k, n -= k) {
        k = word_mask(start, n, &mask);
        b->words[start / 64] &= ~mask;
    }
}

bool bitmap_range_clear(const struct bitmap *b, uint64_t start, uint64_t n)
{
    assert(start <= b->bits && n <= b->bits - start);
    for (uint64_t mask, k; n; start += k, n -= k) {
        k = word_mask(start, n, &mask);
        if (b->words[start / 64] & mask)
            return false;
    }
    return true;
}

/* The first bit of the wanted value at or after i, or end. */
static uint64_t next_bit(const struct bitmap *b, uint64_t i, uint64_t end, bool value)
{
    while (i < end) {
        uint64_t w = b->words[i / 64];
        w = (value ? w : ~w) >> (i % 64);
        if (w)
            return min_u64(i + (uint64_t)__builtin_ctzll(w), end);
        i = (i / 64 + 1) * 64;
    }
    return end;
}

static uint64_t find_in(const struct bitmap *b, uint64_t i, uint64_t end, uint64_t want, uint64_t best,
                        uint64_t *ret_start)
{
    while (i < end && best < want) {
        uint64_t s = next_bit(b, i, end, false), e = next_bit(b, s, min_u64(end, s + want), true);
        if (e - s > best) {
            best = e - s;
            *ret_start = s;
        }
        i = e + 1;
    }
    return best;
}

uint64_t bitmap_find_clear(const struct bitmap *b, uint64_t from, uint64_t want, uint64_t *ret_start)
{
    uint64_t start = 0, best;
    if (from >= b->bits)
        from = 0;
    best = find_in(b, from, b->bits, want, 0, &start);
    if (best < want)
        best = find_in(b, 0, from, want, best, &start);
    if (best)
        *ret_start = start;
    return best;
}

uint64_t bitmap_count(const struct bitmap *b)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < words_for(b->bits); i++)
        n += (uint64_t)__builtin_popcountll(b->words[i]);
    return n;
}

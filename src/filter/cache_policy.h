/*
 * Which block of the cache goes when room is needed. Pure: indexes and keys in, an index out.
 *
 * What is new is in the window, a small part, oldest first; of that part up to half is for what was read ahead and is
 * not used yet. A block that leaves the window has its place in the main part while that has room. When it is full, the
 * block stays out of it, unless the one in the main part that was not used for longest is dead, or the new one is used
 * far more often than is usual. So of a set that is read again and again, and does not fit, a part stays and is found
 * each time, in whatever order it is read: all that a cache can do. Replacing the least recently used one would find
 * nothing (tests/unit/test_cache_policy.c).
 *
 * Dead: not used for one and a half times the longest distance between two uses of a block that was lately seen. To see
 * it also of blocks that are not here, the keys of the last ones that left are kept (ghosts).
 *
 * Time counts uses of blocks. Uses in short sequence are one.
 */
#ifndef FILTER_CACHE_POLICY_H
#define FILTER_CACHE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define POL_NONE UINT32_MAX

enum pol_place { POL_FREE, POL_AHEAD, POL_WINDOW, POL_MAIN, POL_PLACES };

struct pol_block {
    uint32_t prev, next; /* of the list of its place; POL_NONE: the end */
    uint32_t pins;       /* it does not go while somebody works with it */
    uint8_t place;
    uint8_t gaps;  /* distances that are in `gap`: 0, 1, 2 for more */
    uint64_t key;
    uint64_t born; /* of what is read ahead */
    uint64_t last; /* time of the last use; 0: not known */
    uint64_t gap;  /* mean distance between its last uses */
};

struct pol_ghost {
    uint64_t key, last, gap;
    uint8_t gaps;
};

struct pol_list {
    uint32_t first, last, n;
};

struct pol {
    uint32_t n, ahead_cap, window_cap, main_cap;
    uint32_t nghosts; /* a power of two */
    struct pol_block *blocks;
    struct pol_ghost *ghosts;
    struct pol_list list[POL_PLACES];
    uint32_t latest;  /* used last; POL_NONE */
    uint64_t clock;
    uint64_t far[2];  /* the longest distances of this period and the one before */
    uint64_t period_end;
};

/* 0 or -ENOMEM. */
int pol_init(struct pol *p, uint32_t nblocks);
void pol_done(struct pol *p);

/*
 * A block for key, pinned once, where something else went if there was no free one. POL_NONE: all that could go is
 * pinned, or, ahead, enough is there that was not used yet. unused: what went had been read ahead for nothing.
 */
struct pol_gone {
    bool gone, unused;
    uint64_t key;
};
uint32_t pol_take(struct pol *p, uint64_t key, bool ahead, struct pol_gone *ret);
/* It is used. */
void pol_use(struct pol *p, uint32_t i);
/* Its content is void; it is not pinned. */
void pol_give(struct pol *p, uint32_t i);

#endif

/*
 * The bounded memory of the chunk filter: slots, each with room for the bytes of one chunk and for what is stored of
 * it. A busy slot is the lock of its chunk: all that a filter does with a chunk goes by the chunk's slot, one at a
 * time. An idle slot keeps its bytes, for whoever finds by the chunk's version that they are still the present ones.
 *
 * All functions may be called by any thread. What waits is handed a slot by the one that gives it back; nobody waits
 * for a second slot while he has one, so there is no deadlock.
 */
#ifndef FILTER_SLOTS_H
#define FILTER_SLOTS_H

#include "base/list.h"

#include <stdint.h>

#define SLOTS_MAX 512u

struct slot_key {
    uint64_t cont, ino, chunk;
};

struct slot_wait {
    struct list link; /* while it waits, or until its owner looks */
    struct slot_key key;
    uint32_t chunk_size;
    struct slot *slot; /* once granted */
    /* Called under the pool's lock when the slot is there (or -ENOMEM: slot is NULL): must only note it. */
    void (*granted)(struct slot_wait *w);
};

struct slot {
    struct list link; /* of the pool: idle, the longest unused first */
    struct slot_key key;
    bool busy, has_key;
    /* The owner's, and kept while idle: */
    bool valid; /* `plain` is the chunk at `version`, which is not 0 */
    uint64_t version, gen;
    uint64_t history; /* of the store below, as of then: after a loss it may give a version again */
    uint32_t len;     /* bytes in plain; past them the chunk is zero */
    uint8_t *plain, *stored;
    uint32_t size;       /* of each of the two */
    struct list waiters; /* for this chunk */
};

struct slots;
struct slots *slots_new(uint64_t memory);
void slots_free(struct slots *s); /* none is busy */
/* true: w->slot is there, at once. false: w->granted will be called. */
bool slots_take(struct slots *s, struct slot_wait *w);
void slots_give(struct slots *s, struct slot *slot);
/* For fault counters and tests. */
uint64_t slots_bytes(struct slots *s);

#endif

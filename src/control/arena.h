/* Memory of one request: taken piece by piece, given back all at once, bounded. */
#ifndef CONTROL_ARENA_H
#define CONTROL_ARENA_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

struct arena_block;
struct arena {
    ProtobufCAllocator pb; /* for unpacking into the arena */
    struct arena_block *blocks;
    size_t used, max; /* bytes */
    size_t at;
    char first[4000] __attribute__((aligned(16))); /* enough for most requests */
};

void arena_init(struct arena *a, size_t max);
void arena_done(struct arena *a);
/* Zeroed, aligned for anything; NULL past the bound or without memory. */
void *arena_alloc(struct arena *a, size_t n);
/* A copy with a NUL after it. */
char *arena_copy(struct arena *a, const void *p, size_t n);

#endif

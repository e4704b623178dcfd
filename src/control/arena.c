#include "arena.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK 16384u

struct arena_block {
    struct arena_block *next;
    size_t size, at;
    char data[] __attribute__((aligned(16)));
};

static void *pb_alloc(void *a, size_t n)
{
    return arena_alloc(a, n);
}

static void pb_free(void *a, void *p)
{
    (void)a; /* all at once, in arena_done */
    (void)p;
}

void arena_init(struct arena *a, size_t max)
{
    a->pb = (ProtobufCAllocator){pb_alloc, pb_free, a};
    a->blocks = NULL;
    a->used = a->at = 0;
    a->max = max;
}

void arena_done(struct arena *a)
{
    while (a->blocks) {
        struct arena_block *b = a->blocks;
        a->blocks = b->next;
        free(b);
    }
}

void *arena_alloc(struct arena *a, size_t n)
{
    struct arena_block *b = a->blocks;
    void *p;

    if (n > a->max)
        return NULL;
    n = (n + 15) & ~(size_t)15;
    if (n > a->max - a->used)
        return NULL;
    if (n <= sizeof a->first - a->at) {
        p = a->first + a->at;
        a->at += n;
    } else {
        if (!b || n > b->size - b->at) {
            size_t size = n > BLOCK / 4 ? n : BLOCK;
            b = malloc(sizeof *b + size);
            if (!b)
                return NULL;
            b->size = size;
            b->at = 0;
            b->next = a->blocks;
            a->blocks = b;
        }
        p = b->data + b->at;
        b->at += n;
    }
    a->used += n;
    return memset(p, 0, n);
}

char *arena_copy(struct arena *a, const void *p, size_t n)
{
    char *c = arena_alloc(a, n + 1);
    if (c && n)
        memcpy(c, p, n);
    return c;
}

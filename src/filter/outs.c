#include "outs.h"

#include "base/bitmap.h"
#include "base/util.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

struct outs {
    uint8_t *base;
    size_t len;
    pthread_mutex_t lock;
    struct bitmap used; /* by OUTS_GRAIN */
};

struct outs *outs_new(size_t bytes)
{
    struct outs *o = calloc(1, sizeof *o);
    void *p;

    if (!o)
        return NULL;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || bitmap_init(&o->used, bytes / OUTS_GRAIN) < 0) {
        if (p != MAP_FAILED)
            munmap(p, bytes);
        free(o);
        return NULL;
    }
    o->base = p;
    o->len = bytes;
    pthread_mutex_init(&o->lock, NULL);
    return o;
}

void outs_free(struct outs *o)
{
    if (!o)
        return;
    munmap(o->base, o->len);
    bitmap_done(&o->used);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

uint8_t *outs_get(struct outs *o, uint32_t len)
{
    uint64_t want = (len + OUTS_GRAIN - 1) / OUTS_GRAIN, start;

    scoped_lock(&o->lock);
    if (bitmap_find_clear(&o->used, 0, want, &start) < want)
        return NULL;
    bitmap_set(&o->used, start, want);
    return o->base + start * OUTS_GRAIN;
}

void outs_put(struct outs *o, uint8_t *p, uint32_t len)
{
    scoped_lock(&o->lock);
    bitmap_clear(&o->used, (uint64_t)(p - o->base) / OUTS_GRAIN, (len + OUTS_GRAIN - 1) / OUTS_GRAIN);
}

void outs_memory(const struct outs *o, void **ret, size_t *ret_len)
{
    *ret = o->base;
    *ret_len = o->len;
}

/*
 * Buffers are cut from slabs that stay: memory is first touched at a fraction of the speed of warm memory. Slabs are
 * regions of the memory table, so that a queue moves them without a copy; where that is refused they work all the same.
 */
#include "internal.h"

#include "fabric/export.h"

#include <sys/mman.h>

#define SLAB (8 * MiB)

struct slab {
    struct list link;
    uint8_t *base;
    struct mem_region *region; /* NULL: not known to the table */
    int fd;                    /* memfd, for a daemon that works in it; -1: private memory */
    uint32_t n;
    struct cl_mem mem[SLAB / CL_SMALL];
};

void cl_bufs_init(struct cl_bufs *b)
{
    pthread_mutex_init(&b->lock, NULL);
    list_init(&b->free_small);
    list_init(&b->free_big);
    list_init(&b->slabs);
}

void cl_bufs_done(struct cl_bufs *b)
{
    struct list *l;

    while ((l = list_pop_front(&b->slabs))) {
        struct slab *s = list_entry(l, struct slab, link);
        if (!s->region || mem_remove(s->region) == 0)
            munmap(s->base, SLAB);
        if (s->fd >= 0)
            close(s->fd);
        free(s);
    }
    pthread_mutex_destroy(&b->lock);
}

static bool grow(struct cl_bufs *b, size_t size)
{
    struct slab *s = calloc(1, sizeof *s);
    void *p;

    if (!s)
        return false;
    if (export_memory_or_private(b->store && pst_store_wants_shared(b->store), SLAB, &p, &s->fd) < 0) {
        free(s);
        return false;
    }
    s->base = p;
    if (mem_add(p, SLAB, true, &s->region) < 0)
        s->region = NULL;
    else
        s->region->fd = s->fd;
    s->n = (uint32_t)(SLAB / size);
    for (uint32_t i = 0; i < s->n; i++) {
        s->mem[i].data = s->base + i * size;
        s->mem[i].size = size;
        list_push_back(size == CL_SMALL ? &b->free_small : &b->free_big, &s->mem[i].link);
    }
    list_push_back(&b->slabs, &s->link);
    return true;
}

struct cl_mem *cl_bufs_get(struct cl_bufs *b, size_t size)
{
    struct list *l = size == CL_SMALL ? &b->free_small : &b->free_big;

    scoped_lock(&b->lock);
    if (list_empty(l) && !grow(b, size))
        return NULL;
    return list_entry(list_pop_front(l), struct cl_mem, link);
}

void cl_bufs_put(struct cl_bufs *b, struct cl_mem *m)
{
    scoped_lock(&b->lock);
    list_push_front(m->size == CL_SMALL ? &b->free_small : &b->free_big, &m->link);
}

struct cl_mem *cl_mem_get(struct client *c)
{
    return cl_bufs_get(&c->bufs, CL_WINDOW);
}

void cl_mem_put(struct client *c, struct cl_mem *m)
{
    cl_bufs_put(&c->bufs, m);
}

/* The table of regions: sorted by address under one lock; look-ups are a binary search. */
#include "client/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define MEM_OWN_MAX 1024u /* the client's own: bounded by its buffer limits long before */

static pthread_mutex_t mem_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t mem_changed = PTHREAD_COND_INITIALIZER;
static struct mem_region *regions[MEM_REGIONS_MAX + MEM_OWN_MAX];
static size_t nregions, nuser;
static uint64_t last_id;
static _Atomic uint64_t generation;
static struct list holders = LIST_INIT(holders);

/* Index of the first region that ends after p. Lock held. */
static size_t find(const uint8_t *p)
{
    size_t lo = 0, hi = nregions;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (regions[mid]->base + regions[mid]->len <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static int add(void *base, size_t len, bool own, bool source, struct mem_region **ret)
{
    struct mem_region *r;
    size_t i;

    if (!base || !len || (uintptr_t)base % 4096 || len % 4096 || (uintptr_t)base + len < len)
        return -EINVAL;
    r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    scoped_lock(&mem_lock);
    i = find(base);
    if (nregions == ARRAY_SIZE(regions) || (!own && nuser == MEM_REGIONS_MAX)) {
        free(r);
        return -ENOSPC;
    }
    if (i < nregions && regions[i]->base < (uint8_t *)base + len) {
        free(r);
        return -EEXIST;
    }
    memmove(&regions[i + 1], &regions[i], (nregions - i) * sizeof regions[0]);
    *r = (struct mem_region){.base = base, .len = len, .id = ++last_id, .own = own, .source = source, .fd = -1};
    regions[i] = r;
    nregions++;
    nuser += !own;
    *ret = r;
    return 0;
}

int mem_add(void *base, size_t len, bool own, struct mem_region **ret)
{
    return add(base, len, own, false, ret);
}

int mem_add_source(void *base, size_t len, struct mem_region **ret)
{
    return add(base, len, true, true, ret);
}

int mem_remove(struct mem_region *r)
{
    size_t i;

    scoped_lock(&mem_lock);
    if (r->users || r->closing)
        return -EBUSY;
    r->closing = true;
    atomic_fetch_add(&generation, 1);
    list_for_each (it, &holders) {
        struct mem_holder *h = list_entry(it, struct mem_holder, link);
        h->wake(h);
    }
    while (r->holders)
        pthread_cond_wait(&mem_changed, &mem_lock);
    i = find(r->base);
    memmove(&regions[i], &regions[i + 1], (nregions - i - 1) * sizeof regions[0]);
    nregions--;
    nuser -= !r->own;
    free(r);
    return 0;
}

struct mem_region *mem_use(const void *p, size_t len)
{
    size_t i;

    scoped_lock(&mem_lock);
    i = find(p);
    if (i == nregions || regions[i]->closing || (const uint8_t *)p < regions[i]->base ||
        len > (size_t)(regions[i]->base + regions[i]->len - (const uint8_t *)p))
        return NULL;
    regions[i]->users++;
    return regions[i];
}

void mem_unuse(struct mem_region *r)
{
    scoped_lock(&mem_lock);
    r->users--;
}

void mem_holder_add(struct mem_holder *h)
{
    scoped_lock(&mem_lock);
    list_push_back(&holders, &h->link);
}

void mem_holder_remove(struct mem_holder *h)
{
    scoped_lock(&mem_lock);
    list_del(&h->link);
}

void mem_hold(struct mem_region *r)
{
    scoped_lock(&mem_lock);
    r->holders++;
}

void mem_release(struct mem_region *r)
{
    scoped_lock(&mem_lock);
    r->holders--;
    pthread_cond_broadcast(&mem_changed);
}

uint64_t mem_generation(void)
{
    return atomic_load(&generation);
}

bool mem_closing(const struct mem_region *r)
{
    scoped_lock(&mem_lock);
    return r->closing;
}

void mem_fork_prepare(void)
{
    pthread_mutex_lock(&mem_lock);
}

void mem_fork_parent(void)
{
    pthread_mutex_unlock(&mem_lock);
}

void mem_fork_child(void)
{
    nregions = nuser = 0;
    list_init(&holders);
    pthread_mutex_unlock(&mem_lock);
}

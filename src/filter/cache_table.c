/* Blocks, objects, and what is valid. All under cache.lock. */
#include "cache.h"

#include <sys/mman.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint64_t obj_key(uint64_t cont, uint64_t ino)
{
    return mix(mix(cont) + ino);
}

static uint64_t block_key(const struct cache_obj *o, uint64_t number)
{
    return mix(obj_key(o->cont, o->ino) + number);
}

int cache_table_init(struct cache *c, uint64_t bytes)
{
    void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (mem == MAP_FAILED)
        return -ENOMEM;
    c->mem = mem;
    madvise(mem, bytes, MADV_DONTDUMP); /* users' bytes, in the clear */
    c->nblocks = (uint32_t)(bytes / FILTER_CACHE_BLOCK);
    c->nhash = 1;
    while (c->nhash < c->nblocks)
        c->nhash *= 2;
    c->blocks = calloc(c->nblocks, sizeof *c->blocks);
    c->hash = calloc(c->nhash, sizeof *c->hash);
    c->objs = calloc(c->nhash, sizeof *c->objs);
    if (!c->blocks || !c->hash || !c->objs || pol_init(&c->pol, c->nblocks))
        return -ENOMEM;
    for (uint32_t i = 0; i < c->nhash; i++) {
        list_init(&c->hash[i]);
        list_init(&c->objs[i]);
    }
    return 0;
}

void cache_table_done(struct cache *c)
{
    for (uint32_t i = 0; c->objs && i < c->nhash; i++)
        for (struct list *l; c->objs[i].next && (l = list_pop_front(&c->objs[i]));)
            free(list_entry(l, struct cache_obj, link));
    pol_done(&c->pol);
    free(c->blocks);
    free(c->hash);
    free(c->objs);
    if (c->mem)
        munmap(c->mem, (size_t)c->nblocks * FILTER_CACHE_BLOCK);
}

/* ---- objects ---- */

static struct list *obj_bucket(struct cache *c, uint64_t cont, uint64_t ino)
{
    return &c->objs[obj_key(cont, ino) & (c->nhash - 1)];
}

struct cache_obj *cache_find(struct cache *c, uint64_t cont, uint64_t ino)
{
    list_for_each (it, obj_bucket(c, cont, ino)) {
        struct cache_obj *o = list_entry(it, struct cache_obj, link);
        if (o->ino == ino && o->cont == cont)
            return o;
    }
    return NULL;
}

struct cache_obj *cache_opened(struct cache *c, uint64_t cont, uint64_t ino)
{
    struct cache_obj *o = cache_find(c, cont, ino);

    if (!o) {
        o = calloc(1, sizeof *o);
        if (!o)
            return NULL;
        o->cont = cont;
        o->ino = ino;
        list_init(&o->blocks);
        list_push_front(obj_bucket(c, cont, ino), &o->link);
        c->nobjs++;
    }
    o->opens++;
    return o;
}

void cache_obj_idle(struct cache *c, struct cache_obj *o)
{
    if (o->opens || o->users || o->nblocks)
        return;
    list_del(&o->link);
    free(o);
    c->nobjs--;
}

static void void_all(struct cache *c, struct cache_obj *o)
{
    while (!list_empty(&o->blocks)) {
        struct cache_block *b = list_entry(o->blocks.next, struct cache_block, of_obj);
        cache_block_void(c, (uint32_t)(b - c->blocks));
        c->n.voided++;
    }
}

void cache_doubt(struct cache *c, struct cache_obj *o, uint64_t since_ns)
{
    void_all(c, o);
    o->known = false;
    o->doubted_ns = max_u64(o->doubted_ns, since_ns);
}

void cache_note(struct cache *c, struct cache_obj *o, const struct pst_attr *a, uint64_t asked_ns, uint64_t history)
{
    bool same = o->history == history;

    if (same && a->change < o->change) /* it is from before what is known */
        return;
    if (!same || a->change != o->change)
        void_all(c, o);
    o->change = a->change;
    o->size = a->size;
    o->history = history;
    o->looked_ns = o->known && same ? max_u64(o->looked_ns, asked_ns) : asked_ns;
    o->known = o->known || asked_ns >= o->doubted_ns;
}

/* ---- blocks ---- */

uint32_t cache_block_find(struct cache *c, const struct cache_obj *o, uint64_t number)
{
    list_for_each (it, &c->hash[block_key(o, number) & (c->nhash - 1)]) {
        struct cache_block *b = list_entry(it, struct cache_block, hash);
        if (b->obj == o && b->number == number)
            return (uint32_t)(b - c->blocks);
    }
    return POL_NONE;
}

/* Nobody finds it any more. */
static void detach(struct cache_block *b)
{
    list_del(&b->hash);
    list_del(&b->of_obj);
    b->obj->nblocks--;
    b->obj = NULL;
}

static void give(struct cache *c, uint32_t i)
{
    if (c->pol.blocks[i].place == POL_AHEAD)
        c->n.ahead_wasted++;
    pol_give(&c->pol, i);
}

uint32_t cache_block_new(struct cache *c, struct cache_obj *o, uint64_t number, bool ahead)
{
    struct pol_gone gone;
    uint32_t i = pol_take(&c->pol, block_key(o, number), ahead, &gone);
    struct cache_block *b;
    struct cache_obj *was;

    if (i == POL_NONE)
        return i;
    b = &c->blocks[i];
    if (gone.gone) { /* nobody had it pinned, so it was not void */
        was = b->obj;
        detach(b);
        if (was != o)
            cache_obj_idle(c, was);
        c->n.evicted++;
        c->n.ahead_wasted += gone.unused;
    }
    c->n.ahead += ahead;
    *b = (struct cache_block){.obj = o, .number = number};
    list_push_front(&c->hash[block_key(o, number) & (c->nhash - 1)], &b->hash);
    list_push_back(&o->blocks, &b->of_obj);
    o->nblocks++;
    return i;
}

void cache_block_void(struct cache *c, uint32_t i)
{
    struct cache_block *b = &c->blocks[i];

    if (!b->obj)
        return;
    detach(b);
    if (!c->pol.blocks[i].pins)
        give(c, i);
}

void cache_unpin(struct cache *c, uint32_t i)
{
    if (--c->pol.blocks[i].pins == 0 && !c->blocks[i].obj)
        give(c, i);
}

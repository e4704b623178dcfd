#include "idmap.h"

#include <errno.h>
#include <stdlib.h>

/* Ids are often counters: spread them (the multiplier of splitmix64). */
static uint32_t place(const struct idmap *m, uint64_t id)
{
    id ^= id >> 30;
    id *= 0xbf58476d1ce4e5b9ull;
    id ^= id >> 27;
    return (uint32_t)id & (m->cap - 1);
}

static uint32_t find(const struct idmap *m, uint64_t id)
{
    uint32_t i = place(m, id);
    while (m->slots[i].id && m->slots[i].id != id)
        i = (i + 1) & (m->cap - 1);
    return i;
}

static int grow(struct idmap *m)
{
    struct idmap bigger = {.cap = m->cap ? 2 * m->cap : 8, .n = m->n};

    bigger.slots = calloc(bigger.cap, sizeof *bigger.slots);
    if (!bigger.slots)
        return -ENOMEM;
    for (uint32_t i = 0; i < m->cap; i++)
        if (m->slots[i].id)
            bigger.slots[find(&bigger, m->slots[i].id)] = m->slots[i];
    free(m->slots);
    *m = bigger;
    return 0;
}

int idmap_add(struct idmap *m, uint64_t id, void *value)
{
    uint32_t i;

    if (idmap_get(m, id))
        return -EEXIST;
    if (m->n >= m->cap / 4 * 3) {
        int r = grow(m);
        if (r)
            return r;
    }
    i = find(m, id);
    m->slots[i] = (struct idmap_slot){id, value};
    m->n++;
    return 0;
}

void *idmap_get(const struct idmap *m, uint64_t id)
{
    return m->cap && id ? m->slots[find(m, id)].value : NULL;
}

void *idmap_remove(struct idmap *m, uint64_t id)
{
    uint32_t hole, i;
    void *v;

    if (!idmap_get(m, id))
        return NULL;
    hole = i = find(m, id);
    v = m->slots[hole].value;
    /* Moves back what had been pushed past the hole. */
    for (;;) {
        uint32_t home;
        m->slots[hole] = (struct idmap_slot){0};
        do {
            i = (i + 1) & (m->cap - 1);
            if (!m->slots[i].id) {
                m->n--;
                return v;
            }
            home = place(m, m->slots[i].id);
        } while (((i - home) & (m->cap - 1)) < ((i - hole) & (m->cap - 1)));
        m->slots[hole] = m->slots[i];
        hole = i;
    }
}

void *idmap_next(const struct idmap *m, uint32_t *pos)
{
    while (*pos < m->cap) {
        void *v = m->slots[(*pos)++].value;
        if (v)
            return v;
    }
    return NULL;
}

void idmap_done(struct idmap *m)
{
    free(m->slots);
    *m = (struct idmap){0};
}

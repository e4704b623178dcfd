#include "inomap.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct entry *next;
    dev_t dev;
    ino_t ino;
    char path[];
};

struct inomap {
    struct entry **heads;
    size_t nheads, n; /* nheads: a power of two */
};

static size_t slot(const struct inomap *m, dev_t dev, ino_t ino)
{
    uint64_t h = ((uint64_t)ino ^ (uint64_t)dev << 40) * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> 20) & (m->nheads - 1);
}

struct inomap *inomap_new(void)
{
    struct inomap *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->nheads = 1024;
    m->heads = calloc(m->nheads, sizeof *m->heads);
    if (!m->heads) {
        free(m);
        return NULL;
    }
    return m;
}

void inomap_free(struct inomap *m)
{
    struct entry *next;

    for (size_t i = 0; m && i < m->nheads; i++)
        for (struct entry *e = m->heads[i]; e; e = next) {
            next = e->next;
            free(e);
        }
    if (m)
        free(m->heads);
    free(m);
}

const char *inomap_find(const struct inomap *m, dev_t dev, ino_t ino)
{
    for (const struct entry *e = m->heads[slot(m, dev, ino)]; e; e = e->next)
        if (e->dev == dev && e->ino == ino)
            return e->path;
    return NULL;
}

static void grow(struct inomap *m)
{
    struct inomap big = {.nheads = m->nheads * 4};
    struct entry *next;

    big.heads = calloc(big.nheads, sizeof *big.heads);
    if (!big.heads)
        return; /* slower, not wrong */
    for (size_t i = 0; i < m->nheads; i++)
        for (struct entry *e = m->heads[i]; e; e = next) {
            struct entry **at = &big.heads[slot(&big, e->dev, e->ino)];
            next = e->next;
            e->next = *at;
            *at = e;
        }
    free(m->heads);
    m->heads = big.heads;
    m->nheads = big.nheads;
}

int inomap_add(struct inomap *m, dev_t dev, ino_t ino, const char *path)
{
    struct entry *e = malloc(sizeof *e + strlen(path) + 1), **at;

    if (!e)
        return -ENOMEM;
    if (m->n >= m->nheads)
        grow(m);
    at = &m->heads[slot(m, dev, ino)];
    e->dev = dev;
    e->ino = ino;
    strcpy(e->path, path);
    e->next = *at;
    *at = e;
    m->n++;
    return 0;
}

/*
 * Handle numbers: bit 63 open for writing, bits 40..62 the epoch, bits 0..39 the index. The kernel does not use a
 * number after its release, so an index can be used again at once.
 */
#include "fm.h"

#include <errno.h>

#define INDEX_BITS 40
#define EPOCH_MASK ((1ull << 23) - 1)
#define WRITABLE   (1ull << 63)

/* A file that is open here for a handle of a process that died. */
struct adopted {
    struct adopted *next;
    uint64_t fh;
    struct fm_file *file;
};
#define ADOPTED_BUCKETS 256u

struct fm_files {
    pthread_mutex_t lock;
    struct adopted *adopted[ADOPTED_BUCKETS];
    struct fm_file **slot; /* NULL: free */
    uint32_t *next_free;   /* valid for free slots; `size` ends the list */
    uint32_t size, first_free;
    uint64_t epoch;
};

struct fm_files *fm_files_new(uint32_t epoch)
{
    struct fm_files *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->epoch = (epoch & EPOCH_MASK) << INDEX_BITS;
    return t;
}

void fm_files_free(struct fm_files *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->lock);
    free(t->slot);
    free(t->next_free);
    free(t);
}

static int grow(struct fm_files *t)
{
    uint32_t size = t->size ? t->size * 2 : 64;
    struct fm_file **slot;
    uint32_t *next_free;

    if (size < t->size)
        return -ENFILE;
    slot = realloc(t->slot, size * sizeof(*slot));
    if (slot)
        t->slot = slot;
    next_free = realloc(t->next_free, size * sizeof(*next_free));
    if (next_free)
        t->next_free = next_free;
    if (!slot || !next_free)
        return -ENOMEM;
    for (uint32_t i = t->size; i < size; i++) {
        slot[i] = NULL;
        next_free[i] = i + 1;
    }
    t->first_free = t->size;
    t->size = size;
    return 0;
}

int fm_files_add(struct fm_files *t, struct fm_file *file, uint64_t *ret_fh)
{
    uint32_t i;
    int r;
    scoped_lock(&t->lock);

    if (t->first_free == t->size) {
        r = grow(t);
        if (r)
            return r;
    }
    i = t->first_free;
    t->first_free = t->next_free[i];
    t->slot[i] = file;
    *ret_fh = i | t->epoch | (file->writable ? WRITABLE : 0);
    return 0;
}

/* Under the lock. */
static struct fm_file **find(struct fm_files *t, uint64_t fh)
{
    uint64_t i = fh & ((1ull << INDEX_BITS) - 1);

    if ((fh & (EPOCH_MASK << INDEX_BITS)) != t->epoch || i >= t->size || !t->slot[i])
        return NULL;
    return &t->slot[i];
}

static struct adopted **find_adopted(struct fm_files *t, uint64_t fh)
{
    struct adopted **p = &t->adopted[(fh ^ fh >> 37) % ADOPTED_BUCKETS];

    while (*p && (*p)->fh != fh)
        p = &(*p)->next;
    return p;
}

struct fm_file *fm_files_get(struct fm_files *t, uint64_t fh)
{
    struct fm_file **p;
    struct adopted *a;
    scoped_lock(&t->lock);

    p = find(t, fh);
    if (p)
        return *p;
    a = *find_adopted(t, fh);
    return a ? a->file : NULL;
}

struct fm_file *fm_files_adopt(struct fm_files *t, uint64_t fh, struct fm_file *file)
{
    struct adopted *a = calloc(1, sizeof(*a)), **p;
    scoped_lock(&t->lock);

    p = find_adopted(t, fh);
    if (*p || !a) {
        free(a);
        return *p ? (*p)->file : NULL;
    }
    *a = (struct adopted){.fh = fh, .file = file};
    *p = a;
    return file;
}

/* Unlinks *p. */
static struct fm_file *take_adopted(struct adopted **p)
{
    struct adopted *a = *p;
    struct fm_file *file = a->file;

    *p = a->next;
    free(a);
    return file;
}

static struct fm_file *take(struct fm_files *t, struct fm_file **p)
{
    struct fm_file *file = *p;
    uint32_t i = (uint32_t)(p - t->slot);

    *p = NULL;
    t->next_free[i] = t->first_free;
    t->first_free = i;
    return file;
}

struct fm_file *fm_files_take(struct fm_files *t, uint64_t fh)
{
    struct fm_file **p;
    struct adopted **a;
    scoped_lock(&t->lock);

    p = find(t, fh);
    if (p)
        return take(t, p);
    a = find_adopted(t, fh);
    return *a ? take_adopted(a) : NULL;
}

struct fm_file *fm_files_drain(struct fm_files *t)
{
    scoped_lock(&t->lock);

    for (uint32_t i = 0; i < t->size; i++)
        if (t->slot[i])
            return take(t, &t->slot[i]);
    for (uint32_t i = 0; i < ADOPTED_BUCKETS; i++)
        if (t->adopted[i])
            return take_adopted(&t->adopted[i]);
    return NULL;
}

bool fm_fh_writable(uint64_t fh)
{
    return fh & WRITABLE;
}

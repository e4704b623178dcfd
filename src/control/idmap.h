/* A hash table from non-zero 64-bit ids to pointers: open addressing, grows. Not thread-safe. */
#ifndef CONTROL_IDMAP_H
#define CONTROL_IDMAP_H

#include <stddef.h>
#include <stdint.h>

struct idmap {
    struct idmap_slot {
        uint64_t id; /* 0: free */
        void *value;
    } * slots;
    uint32_t cap, n; /* cap: 0 or a power of two */
};

/* 0, -EEXIST, -ENOMEM. */
int idmap_add(struct idmap *m, uint64_t id, void *value);
void *idmap_get(const struct idmap *m, uint64_t id); /* NULL: none */
void *idmap_remove(struct idmap *m, uint64_t id);    /* what was there */
/* Each value once, if nothing changes in between: *pos starts at 0; NULL at the end. */
void *idmap_next(const struct idmap *m, uint32_t *pos);
void idmap_done(struct idmap *m);

#endif

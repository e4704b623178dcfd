/*
 * Records of `recent` name blocks that nobody flushed before. They are in the operating system's cache as long as that
 * lives with the disk; where a disk went away in between they may not be there, though the records are.
 */
#include "data.h"
#include "parts.h"

#include <string.h>

struct looking {
    struct engine *e;
    uint8_t *buf;
    const struct chunk_map *now, *before;
    bool missing;
};

/* A block that the index has as well was not written by this record: what it has become is another matter. */
static void on_bad(void *user, uint32_t first, uint32_t n)
{
    struct looking *l = user;
    for (uint32_t b = first; b < first + n; b++) {
        const struct chunk_ext *x = chunk_find(l->now, b), *old = chunk_find(l->before, b);
        if (x && (!old || old->unwritten || old->phys + (b - old->first) != x->phys + (b - x->first)))
            l->missing = true;
    }
}

static void on_put(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct looking *l = user;
    struct chunk_map *now = NULL, *before = NULL;
    struct key key = {.len = (uint16_t)klen};
    struct wbuf old = {0};
    if (l->missing || klen < 1 || klen > KEY_MAX || k[0] != KEY_CHUNK)
        return;
    memcpy(key.b, k, klen);
    if (chunk_decode(v, vlen, &now)) {
        l->missing = true;
        return;
    }
    if (!idx_get(l->e, NULL, &key, &old) && chunk_decode(old.data, old.len, &before))
        before = NULL;
    l->now = now;
    l->before = before;
    chunk_verify(l->e, now, l->buf, on_bad, l);
    chunk_unref(now);
    chunk_unref(before);
    wbuf_done(&old);
}

bool recent_blocks_there(struct engine *e, const void *p, size_t len)
{
    struct looking l = {.e = e};
    if (posix_memalign((void **)&l.buf, PST_BLOCK, VERIFY_BYTES))
        return false;
    idx_each_put(p, len, on_put, &l);
    free(l.buf);
    return !l.missing;
}

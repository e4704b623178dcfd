/* The codec of chunk records: what decodes is well formed, encodes to the same bytes and survives edits. */
#include "fuzz.h"

#include "chunk.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

static void count_freed(void *user, uint64_t phys, uint32_t n, bool unwritten)
{
    (void)phys, (void)unwritten;
    *(uint32_t *)user += n;
}

static void check_map(const struct chunk_map *m)
{
    uint32_t end = 0, written = 0;

    for (uint32_t i = 0; i < m->nexts; i++) {
        const struct chunk_ext *e = &m->exts[i];
        CHECK(e->n > 0 && e->first >= end);
        end = (uint32_t)e->first + e->n;
        CHECK(end <= CHUNK_BLOCKS_MAX && e->phys + e->n <= CHUNK_PHYS_MAX);
        CHECK(e->unwritten || e->crc_at == written);
        written += e->unwritten ? 0 : e->n;
    }
    CHECK(written == m->ncrcs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chunk_map *m = NULL, *edited = NULL;
    struct wbuf w = {0};
    uint32_t first, n, freed = 0, crcs[8] = {0};
    struct chunk_run run = {.phys = 7, .n = 8};

    if (chunk_decode(data, size, &m))
        return 0;
    check_map(m);
    chunk_encode(m, &w);
    CHECK(w.err || (w.len == size && !memcmp(w.data, data, size)));
    wbuf_done(&w);

    first = (uint32_t)(m->version % (CHUNK_BLOCKS_MAX - 8));
    n = 8;
    CHECK(!chunk_edit(m, first, n, &run, 1, m->version & 1 ? crcs : NULL, count_freed, &freed, &edited));
    check_map(edited);
    CHECK(chunk_blocks(edited) == chunk_blocks(m) - freed + n);
    CHECK(chunk_find(edited, first) && chunk_find(edited, first + n - 1));
    chunk_unref(m);
    m = edited;
    freed = 0;
    CHECK(!chunk_edit(m, first, n, NULL, 0, NULL, count_freed, &freed, &edited));
    check_map(edited);
    CHECK(freed == n && !chunk_find(edited, first) && chunk_blocks(edited) == chunk_blocks(m) - n);
    chunk_unref(m);
    chunk_unref(edited);
    return 0;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    struct rng r;
    struct chunk_map *m = NULL, *next = NULL;
    struct wbuf w = {0};
    uint32_t crcs[32];
    size_t len;

    rng_seed(&r, n);
    for (uint64_t k = rng_below(&r, 6) + 1; k; k--) {
        struct chunk_run run = {.phys = rng_below(&r, CHUNK_PHYS_MAX - 32), .n = (uint32_t)rng_below(&r, 32) + 1};
        rng_fill(&r, crcs, sizeof crcs);
        CHECK(!chunk_edit(m, (uint32_t)rng_below(&r, 256), run.n, &run, 1, rng_below(&r, 4) ? crcs : NULL, NULL, NULL,
                          &next));
        chunk_unref(m);
        m = next;
    }
    m->version = n ? n : 1;
    m->in_use = (uint32_t)rng_below(&r, PST_CHUNK_MAX + 1);
    m->meta_len = (uint32_t)rng_below(&r, PST_META_MAX + 1);
    chunk_encode(m, &w);
    chunk_unref(m);
    len = w.len < cap ? w.len : cap;
    memcpy(buf, w.data, len);
    wbuf_done(&w);
    return len;
}

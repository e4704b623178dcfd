#include "chunk.h"

#include "local.h"

#include "base/endian.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

#define HEADER_BYTES 16u
#define EXTENT_BYTES 11u

static struct chunk_map *map_alloc(uint32_t nexts, uint32_t ncrcs)
{
    size_t bytes = sizeof(struct chunk_map) + nexts * sizeof(struct chunk_ext) + ncrcs * sizeof(uint32_t);
    struct chunk_map *m = malloc(bytes);

    if (!m)
        return NULL;
    memset(m, 0, sizeof *m);
    atomic_init(&m->refs, 1);
    m->bytes = (uint32_t)bytes;
    m->nexts = nexts;
    m->ncrcs = ncrcs;
    m->crcs = (uint32_t *)(m->exts + nexts);
    return m;
}

struct chunk_map *chunk_ref(struct chunk_map *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void chunk_unref(struct chunk_map *m)
{
    if (m && atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) == 1)
        free(m);
}

/* An extent as it lies in the record. */
struct disk_extent {
    le16 first, n;
    uint8_t flags;
    le32 phys_low;
    le16 phys_high;
};
_Static_assert(sizeof(struct disk_extent) == EXTENT_BYTES, "no padding");

/* Checked one by one, counted. */
static int decode_extents(const struct disk_extent *d, struct chunk_ext *exts, uint32_t nexts, uint32_t *ret_ncrcs)
{
    uint32_t end = 0, ncrcs = 0;

    for (uint32_t i = 0; i < nexts; i++, d++) {
        struct chunk_ext e = {.first = get_le16(d->first), .n = get_le16(d->n), .crc_at = ncrcs};
        e.phys = get_le32(d->phys_low) | (uint64_t)get_le16(d->phys_high) << 32;
        e.unwritten = d->flags & CHUNK_UNWRITTEN;
        if (d->flags & ~CHUNK_UNWRITTEN || e.n == 0 || e.first < end || (uint32_t)e.first + e.n > CHUNK_BLOCKS_MAX ||
            e.phys > CHUNK_PHYS_MAX - e.n)
            return -EBADMSG;
        end = (uint32_t)e.first + e.n;
        if (!e.unwritten)
            ncrcs += e.n;
        exts[i] = e;
    }
    *ret_ncrcs = ncrcs;
    return 0;
}

int chunk_decode(const void *value, size_t len, struct chunk_map **ret)
{
    struct rbuf r = rbuf_of(value, len);
    uint8_t format = rbuf_u8(&r);
    uint32_t meta_len = rbuf_u8(&r), nexts = rbuf_u16(&r), in_use = rbuf_u32(&r), ncrcs = 0;
    uint64_t version = rbuf_u64(&r);
    const void *meta = rbuf_take(&r, meta_len);
    struct chunk_map *m;

    if (r.err || format != CHUNK_FORMAT || meta_len > PST_META_MAX || in_use > PST_CHUNK_MAX || version == 0 ||
        nexts > CHUNK_BLOCKS_MAX || rbuf_left(&r) < nexts * EXTENT_BYTES)
        return -EBADMSG;
    /* The rest is checksums: their number follows from the length and is checked against the extents. */
    size_t crc_bytes = rbuf_left(&r) - nexts * EXTENT_BYTES;
    if (crc_bytes % sizeof(uint32_t) || crc_bytes / sizeof(uint32_t) > CHUNK_BLOCKS_MAX)
        return -EBADMSG;
    m = map_alloc(nexts, (uint32_t)(crc_bytes / sizeof(uint32_t)));
    if (!m)
        return -ENOMEM;
    if (decode_extents(rbuf_take(&r, nexts * EXTENT_BYTES), m->exts, nexts, &ncrcs) || ncrcs != m->ncrcs) {
        chunk_unref(m);
        return -EBADMSG;
    }
    rbuf_get(&r, m->crcs, crc_bytes); /* little-endian hosts only, see base/endian.h */
    m->version = version;
    m->in_use = in_use;
    m->meta_len = meta_len;
    if (meta_len)
        memcpy(m->meta, meta, meta_len);
    *ret = m;
    return 0;
}

void chunk_encode(const struct chunk_map *m, struct wbuf *w)
{
    struct disk_extent *d;

    wbuf_u8(w, CHUNK_FORMAT);
    wbuf_u8(w, (uint8_t)m->meta_len);
    wbuf_u16(w, (uint16_t)m->nexts);
    wbuf_u32(w, m->in_use);
    wbuf_u64(w, m->version);
    wbuf_put(w, m->meta, m->meta_len);
    d = wbuf_add(w, m->nexts * sizeof *d);
    for (uint32_t i = 0; d && i < m->nexts; i++) {
        const struct chunk_ext *e = &m->exts[i];
        d[i].first = put_le16(e->first);
        d[i].n = put_le16(e->n);
        d[i].flags = e->unwritten ? CHUNK_UNWRITTEN : 0;
        d[i].phys_low = put_le32((uint32_t)e->phys);
        d[i].phys_high = put_le16((uint16_t)(e->phys >> 32));
    }
    wbuf_put(w, m->crcs, m->ncrcs * sizeof(uint32_t));
}

const struct chunk_ext *chunk_next(const struct chunk_map *m, uint32_t block)
{
    uint32_t lo = 0, hi = m ? m->nexts : 0;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if ((uint32_t)m->exts[mid].first + m->exts[mid].n > block)
            hi = mid;
        else
            lo = mid + 1;
    }
    return m && lo < m->nexts ? &m->exts[lo] : NULL;
}

const struct chunk_ext *chunk_find(const struct chunk_map *m, uint32_t block)
{
    const struct chunk_ext *e = chunk_next(m, block);
    return e && e->first <= block ? e : NULL;
}

uint32_t chunk_blocks(const struct chunk_map *m)
{
    uint32_t n = 0;

    for (uint32_t i = 0; m && i < m->nexts; i++)
        n += m->exts[i].n;
    return n;
}

/* Appends blocks to a map under construction; joined with the last extent where they go on from it. */
static void append(struct chunk_map *m, uint32_t first, uint32_t n, uint64_t phys, const uint32_t *crcs)
{
    struct chunk_ext *last = m->nexts ? &m->exts[m->nexts - 1] : NULL;

    if (n == 0)
        return;
    if (last && (uint32_t)last->first + last->n == first && last->phys + last->n == phys && last->unwritten == !crcs) {
        last->n = (uint16_t)(last->n + n);
    } else {
        m->exts[m->nexts++] = (struct chunk_ext){
            .first = (uint16_t)first, .n = (uint16_t)n, .crc_at = m->ncrcs, .phys = phys, .unwritten = !crcs};
    }
    if (crcs) {
        memcpy(m->crcs + m->ncrcs, crcs, n * sizeof *crcs);
        m->ncrcs += n;
    }
}

/* Appends the part of extent e within [from, to). */
static void append_part(struct chunk_map *m, const struct chunk_map *old, const struct chunk_ext *e, uint32_t from,
                        uint32_t to)
{
    uint32_t a = e->first > from ? e->first : from;
    uint32_t end = (uint32_t)e->first + e->n, b = end < to ? end : to;

    if (a < b)
        append(m, a, b - a, e->phys + (a - e->first), e->unwritten ? NULL : old->crcs + e->crc_at + (a - e->first));
}

static void tell_freed(const struct chunk_ext *e, uint32_t from, uint32_t to, chunk_freed_fn freed, void *user)
{
    uint32_t a = e->first > from ? e->first : from;
    uint32_t end = (uint32_t)e->first + e->n, b = end < to ? end : to;

    if (a < b && freed)
        freed(user, e->phys + (a - e->first), b - a, e->unwritten);
}

int chunk_edit(const struct chunk_map *old, uint32_t first, uint32_t n, const struct chunk_run *runs, size_t nruns,
               const uint32_t *crcs, chunk_freed_fn freed, void *user, struct chunk_map **ret)
{
    uint32_t nexts = old ? old->nexts : 0, ncrcs = old ? old->ncrcs : 0, i = 0, at = first, end = first + n;
    struct chunk_map *m = map_alloc(nexts + (uint32_t)nruns + 1, ncrcs + (nruns && crcs ? n : 0));

    if (!m)
        return -ENOMEM;
    m->nexts = m->ncrcs = 0;
    for (; i < nexts && old->exts[i].first < first; i++)
        append_part(m, old, &old->exts[i], 0, first);
    for (size_t k = 0; k < nruns; k++) {
        append(m, at, runs[k].n, runs[k].phys, crcs ? crcs + (at - first) : NULL);
        at += runs[k].n;
    }
    for (uint32_t k = 0; k < nexts; k++)
        tell_freed(&old->exts[k], first, end, freed, user);
    for (uint32_t k = i ? i - 1 : 0; k < nexts; k++)
        append_part(m, old, &old->exts[k], end, CHUNK_BLOCKS_MAX);
    if (old) {
        m->version = old->version;
        m->in_use = old->in_use;
        m->meta_len = old->meta_len;
        memcpy(m->meta, old->meta, sizeof m->meta);
    }
    *ret = m;
    return 0;
}

int chunk_for_each_extent(const void *value, size_t len, int (*fn)(void *user, uint64_t block, uint32_t nblocks),
                          void *user)
{
    struct chunk_map *m = NULL;
    int r = chunk_decode(value, len, &m);

    if (r)
        return r == -EBADMSG ? -EIO : r;
    for (uint32_t i = 0; !r && i < m->nexts; i++)
        r = fn(user, m->exts[i].phys, m->exts[i].n);
    chunk_unref(m);
    return r;
}

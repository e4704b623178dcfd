/* Scattered memory: slices, copies, checksums. */
#include "data.h"

#include "base/crc.h"

#include <string.h>

/* Walks the pieces of [pos, pos + len). */
struct walk {
    const struct iovec *iov, *end;
    uint64_t pos, len;
};

static struct walk walk_of(const struct iovec *iov, uint32_t n, uint64_t pos, uint64_t len)
{
    return (struct walk){.iov = iov, .end = iov + n, .pos = pos, .len = len};
}

/* The next piece: not empty; false at the end. */
static bool walk_next(struct walk *w, uint8_t **ret_p, size_t *ret_len)
{
    while (w->len && w->iov < w->end && w->pos >= w->iov->iov_len)
        w->pos -= w->iov++->iov_len;
    if (!w->len || w->iov == w->end)
        return false;
    *ret_p = (uint8_t *)w->iov->iov_base + w->pos;
    *ret_len = min_u64(w->len, w->iov->iov_len - w->pos);
    w->pos += *ret_len;
    w->len -= *ret_len;
    return true;
}

uint32_t iov_count(const struct iovec *iov, uint32_t n, uint64_t pos, uint64_t len)
{
    struct walk w = walk_of(iov, n, pos, len);
    uint32_t k = 0;
    uint8_t *p;
    size_t part;

    while (walk_next(&w, &p, &part))
        k++;
    return k;
}

uint32_t iov_slice(const struct iovec *iov, uint32_t n, uint64_t pos, uint64_t len, struct iovec *ret)
{
    struct walk w = walk_of(iov, n, pos, len);
    uint32_t k = 0;
    uint8_t *p;
    size_t part;

    while (walk_next(&w, &p, &part))
        ret[k++] = (struct iovec){.iov_base = p, .iov_len = part};
    return k;
}

void iov_zero(const struct iovec *iov, uint32_t n, uint64_t pos, uint64_t len)
{
    struct walk w = walk_of(iov, n, pos, len);
    uint8_t *p;
    size_t part;

    while (walk_next(&w, &p, &part))
        memset(p, 0, part);
}

void iov_from(const struct iovec *iov, uint32_t n, uint64_t pos, const void *src, uint64_t len)
{
    struct walk w = walk_of(iov, n, pos, len);
    const uint8_t *s = src;
    uint8_t *p;
    size_t part;

    while (walk_next(&w, &p, &part)) {
        memcpy(p, s, part);
        s += part;
    }
}

void iov_to(const struct iovec *iov, uint32_t n, uint64_t pos, void *dst, uint64_t len)
{
    struct walk w = walk_of(iov, n, pos, len);
    uint8_t *d = dst, *p;
    size_t part;

    while (walk_next(&w, &p, &part)) {
        memcpy(d, p, part);
        d += part;
    }
}

/* The checksum of the next block of a walk. */
static uint32_t block_crc(struct walk *w)
{
    uint64_t rest = w->len - PST_BLOCK;
    uint32_t crc = 0;
    uint8_t *p;
    size_t part;

    w->len = PST_BLOCK;
    while (walk_next(w, &p, &part))
        crc = crc32c(crc, p, part);
    w->len = rest;
    return crc;
}

void iov_crcs(const struct iovec *iov, uint32_t n, uint32_t nblocks, uint32_t *ret)
{
    struct walk w = walk_of(iov, n, 0, (uint64_t)nblocks * PST_BLOCK);

    for (uint32_t b = 0; b < nblocks; b++)
        ret[b] = block_crc(&w);
}

uint32_t iov_check(const struct iovec *iov, uint32_t n, uint32_t nblocks, const uint32_t *crcs)
{
    struct walk w = walk_of(iov, n, 0, (uint64_t)nblocks * PST_BLOCK);
    uint32_t b = 0;

    while (b < nblocks && block_crc(&w) == crcs[b])
        b++;
    return b;
}

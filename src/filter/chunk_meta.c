/*
 * Little-endian: version u8, flags u8, algorithm u8, 0 u8, plain length u32, crc u32, generation u64; with META_CRYPT
 * then the nonce (24) and the tag (16).
 */
#include "chunk_meta.h"

#include "base/buf.h"

#include <errno.h>
#include <string.h>

static void put_le(uint8_t *p, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

uint32_t meta_encode(const struct chunk_meta *m, uint8_t ret[PST_META_MAX])
{
    ret[0] = META_VERSION;
    ret[1] = m->flags;
    ret[2] = m->alg;
    ret[3] = 0;
    put_le(ret + 4, m->plain_len, 4);
    put_le(ret + META_CRC, m->crc, 4);
    put_le(ret + 12, m->gen, 8);
    if (!(m->flags & META_CRYPT))
        return META_BASE;
    memcpy(ret + META_BASE, m->nonce, META_NONCE);
    memcpy(ret + META_BASE + META_NONCE, m->tag, META_TAG);
    return META_LONG;
}

int meta_decode(const void *p, size_t len, struct chunk_meta *ret)
{
    struct rbuf r = rbuf_of(p, len);
    struct chunk_meta m = {0};
    uint8_t version = rbuf_u8(&r), zero;

    if (r.err)
        return -EBADMSG;
    if (version != META_VERSION)
        return -ENOTSUP;
    m.flags = rbuf_u8(&r);
    m.alg = rbuf_u8(&r);
    zero = rbuf_u8(&r);
    if (!r.err && (m.flags & ~META_FLAGS || m.alg >= META_ALGS || zero))
        return -ENOTSUP;
    m.plain_len = rbuf_u32(&r);
    m.crc = rbuf_u32(&r);
    m.gen = rbuf_u64(&r);
    if (m.flags & META_CRYPT) {
        rbuf_get(&r, m.nonce, sizeof m.nonce);
        rbuf_get(&r, m.tag, sizeof m.tag);
    }
    if (rbuf_end(&r) || m.plain_len == 0 || m.plain_len > PST_CHUNK_MAX)
        return -EBADMSG;
    if ((m.crc && !(m.flags & META_CSUM)) || (m.gen && !(m.flags & META_CRYPT)))
        return -EBADMSG;
    *ret = m;
    return 0;
}

#include "codec.h"

#include "base/crc.h"
#include "base/rng.h"
#include "base/util.h"

#include "compress.h"

#include <errno.h>
#include <string.h>

const char *const codec_stage_names[STAGES] = {"compress", "crypt", "csum"};
const char *const codec_refusal_names[REFUSALS] = {"",       "format", "unknown", "checksum",
                                                   "forged", "plain",  "key",     "rollback"};

int codec_ctx_init(struct codec_ctx *x)
{
    x->comp = compressor_new();
    x->seal = seal_new();
    if (x->comp && x->seal)
        return 0;
    codec_ctx_done(x);
    return -ENOMEM;
}

void codec_ctx_done(struct codec_ctx *x)
{
    compressor_free(x->comp);
    seal_free(x->seal);
    *x = (struct codec_ctx){0};
}

static void count(const struct codec *c, enum codec_stage s, bool back, uint64_t in, uint64_t out, uint64_t start)
{
    __typeof__(c->stats->stage[0]) *t = &c->stats->stage[s];

    atomic_fetch_add_explicit(back ? &t->back_in : &t->in, in, memory_order_relaxed);
    atomic_fetch_add_explicit(back ? &t->back_out : &t->out, out, memory_order_relaxed);
    atomic_fetch_add_explicit(back ? &t->back_ns : &t->ns, now_ns() - start, memory_order_relaxed);
}

/* ---- what is bound to a chunk ---- */

#define PLACE_BYTES 36
#define AAD_BYTES   (8 + PLACE_BYTES + META_BASE)

static void put_place(uint8_t *p, const struct codec_place *at)
{
    memcpy(p, at->cont, 16);
    for (int i = 0; i < 8; i++) {
        p[16 + i] = (uint8_t)(at->ino >> 8 * i);
        p[24 + i] = (uint8_t)(at->chunk >> 8 * i);
    }
    for (int i = 0; i < 4; i++)
        p[32 + i] = (uint8_t)(at->chunk_size >> 8 * i);
}

/* The place, and all of the meta data but the checksum, the nonce and the tag. */
static void put_aad(uint8_t aad[AAD_BYTES], const struct codec_place *at, const uint8_t *meta)
{
    memcpy(aad, "pstchnk1", 8);
    put_place(aad + 8, at);
    memcpy(aad + 8 + PLACE_BYTES, meta, META_BASE);
    memset(aad + 8 + PLACE_BYTES + META_CRC, 0, 4);
}

/* Over the place, the meta data with 0 in its place, and what is stored. */
static uint32_t checksum(const struct codec_place *at, const uint8_t *meta, uint32_t meta_len, const uint8_t *stored,
                         uint32_t len)
{
    uint8_t head[PLACE_BYTES + PST_META_MAX];

    put_place(head, at);
    memcpy(head + PLACE_BYTES, meta, meta_len);
    memset(head + PLACE_BYTES + META_CRC, 0, 4);
    return crc32c(crc32c(0, head, PLACE_BYTES + meta_len), stored, len);
}

/* ---- down ---- */

static int shrink(const struct codec *c, struct codec_ctx *x, const uint8_t *plain, uint32_t len, uint8_t *buf,
                  struct chunk_meta *m, struct codec_out *o)
{
    uint64_t start = now_ns();
    uint32_t cap = (len - 1) / PST_BLOCK * PST_BLOCK; /* at least a block of space less */
    int64_t n = cap ? compress_chunk(x->comp, c->alg, c->level, plain, len, buf, cap) : 0;

    if (n < 0)
        return (int)n;
    if (n > 0) {
        m->alg = (uint8_t)c->alg;
        o->data = buf;
        o->len = (uint32_t)n;
    } else {
        atomic_fetch_add_explicit(&c->stats->raw_chunks, 1, memory_order_relaxed);
    }
    count(c, STAGE_COMPRESS, false, len, o->len, start);
    return 0;
}

static int encrypt(const struct codec *c, struct codec_ctx *x, const struct codec_place *at, const uint8_t *key,
                   uint8_t *buf, struct chunk_meta *m, struct codec_out *o)
{
    uint64_t start = now_ns();
    uint8_t aad[AAD_BYTES];
    int r;

    rng_secret(m->nonce, sizeof m->nonce);
    meta_encode(m, o->meta);
    put_aad(aad, at, o->meta);
    r = seal_close(x->seal, key, m->nonce, aad, sizeof aad, o->data, o->len, buf, m->tag);
    o->data = buf;
    count(c, STAGE_CRYPT, false, o->len, o->len, start);
    return r;
}

int codec_encode_to(const struct codec *c, struct codec_ctx *x, const struct codec_place *at,
                    const uint8_t key[SEAL_KEY], uint64_t gen, const uint8_t *plain, uint32_t len, uint8_t *buf,
                    uint8_t *sealed, struct codec_out *ret)
{
    struct chunk_meta m = {.flags = (uint8_t)((c->csum ? META_CSUM : 0) | (c->crypt ? META_CRYPT : 0)),
                           .plain_len = len,
                           .gen = c->crypt ? gen : 0};
    struct codec_out o = {.data = plain, .len = len};
    int r = c->alg ? shrink(c, x, plain, len, buf, &m, &o) : 0;

    if (!r && c->crypt)
        r = encrypt(c, x, at, key, sealed, &m, &o);
    if (r)
        return r;
    o.meta_len = meta_encode(&m, o.meta);
    if (c->csum) {
        uint64_t start = now_ns();
        m.crc = checksum(at, o.meta, o.meta_len, o.data, o.len);
        meta_encode(&m, o.meta);
        count(c, STAGE_CSUM, false, o.len, o.len, start);
    }
    *ret = o;
    return 0;
}

int codec_encode(const struct codec *c, struct codec_ctx *x, const struct codec_place *at, const uint8_t key[SEAL_KEY],
                 uint64_t gen, const uint8_t *plain, uint32_t len, uint8_t *buf, struct codec_out *ret)
{
    return codec_encode_to(c, x, at, key, gen, plain, len, buf, buf, ret);
}

/* ---- up ---- */

bool codec_wants_key(const void *meta, size_t meta_len)
{
    struct chunk_meta m;

    return meta_len && !meta_decode(meta, meta_len, &m) && m.flags & META_CRYPT;
}

static int refuse(enum codec_refusal why, enum codec_refusal *ret_why)
{
    *ret_why = why;
    return why == REFUSED_UNKNOWN ? -ENOTSUP : why == REFUSED_KEY ? -EKEYREJECTED : -EIO;
}

/* Written without these services. */
static int as_it_is(const struct codec *c, const uint8_t *stored, uint32_t stored_len, uint8_t *plain, uint32_t cap,
                    uint32_t *ret_len, enum codec_refusal *ret_why)
{
    if (c->crypt)
        return refuse(REFUSED_PLAIN, ret_why);
    if (stored_len > cap)
        return refuse(REFUSED_FORMAT, ret_why);
    memcpy(plain, stored, stored_len);
    *ret_len = stored_len;
    return 0;
}

static int decrypt(const struct codec *c, struct codec_ctx *x, const struct codec_place *at, const uint8_t *key,
                   const struct chunk_meta *m, const uint8_t *meta, const uint8_t *in, uint32_t len, uint8_t *out)
{
    uint64_t start = now_ns();
    uint8_t aad[AAD_BYTES];
    int r;

    put_aad(aad, at, meta);
    r = seal_open(x->seal, key, m->nonce, aad, sizeof aad, in, len, m->tag, out);
    count(c, STAGE_CRYPT, true, len, len, start);
    return r;
}

static int grow(const struct codec *c, struct codec_ctx *x, const struct chunk_meta *m, const uint8_t *in, uint32_t len,
                uint8_t *plain)
{
    uint64_t start = now_ns();
    int r = decompress_chunk(x->comp, m->alg, in, len, plain, m->plain_len);

    count(c, STAGE_COMPRESS, true, len, m->plain_len, start);
    return r;
}

static bool csum_is_right(const struct codec *c, const struct codec_place *at, const struct chunk_meta *m,
                          const void *meta, uint32_t meta_len, const uint8_t *stored, uint32_t len)
{
    uint64_t start = now_ns();
    uint32_t crc = checksum(at, meta, meta_len, stored, len);

    count(c, STAGE_CSUM, true, len, len, start);
    return crc == m->crc;
}

int codec_decode(const struct codec *c, struct codec_ctx *x, const struct codec_place *at, const uint8_t *key,
                 uint8_t *stored, uint32_t stored_len, const void *meta, uint32_t meta_len, uint8_t *plain,
                 uint32_t cap, uint32_t *ret_len, uint64_t *ret_gen, enum codec_refusal *ret_why)
{
    struct chunk_meta m;
    bool raw;
    int r;

    *ret_gen = 0;
    *ret_why = REFUSED_NOT;
    if (!meta_len)
        return as_it_is(c, stored, stored_len, plain, cap, ret_len, ret_why);
    r = meta_decode(meta, meta_len, &m);
    if (r)
        return refuse(r == -ENOTSUP ? REFUSED_UNKNOWN : REFUSED_FORMAT, ret_why);
    raw = m.alg == META_RAW;
    if (m.flags & META_CSUM && !csum_is_right(c, at, &m, meta, meta_len, stored, stored_len))
        return refuse(REFUSED_CSUM, ret_why);
    if (m.plain_len > cap || stored_len == 0 || (raw ? stored_len != m.plain_len : stored_len >= m.plain_len))
        return refuse(REFUSED_FORMAT, ret_why);
    if (m.flags & META_CRYPT) {
        if (!key)
            return refuse(REFUSED_KEY, ret_why);
        r = decrypt(c, x, at, key, &m, meta, stored, stored_len, raw ? plain : stored);
        if (r)
            return r == -EBADMSG ? refuse(REFUSED_TAG, ret_why) : r;
    } else if (c->crypt) {
        return refuse(REFUSED_PLAIN, ret_why);
    } else if (raw) {
        memcpy(plain, stored, stored_len);
    }
    r = raw ? 0 : grow(c, x, &m, stored, stored_len, plain);
    if (r)
        return r == -EBADMSG ? refuse(REFUSED_FORMAT, ret_why) : r;
    *ret_len = m.plain_len;
    *ret_gen = m.gen;
    return 0;
}

/*
 * What the chunk filters take from a store: meta data of chunks, stored bytes, headers of objects. What decodes encodes
 * to the same bytes; nothing is decoded that the key did not make; nothing is written past a chunk.
 */
#include "fuzz.h"

#include "codec.h"
#include "keys.h"

#include "base/rng.h"
#include "base/util.h"

#include <string.h>

#define CHUNK 8192u

static struct codec_stats stats;
static struct codec_ctx cx;
static const struct codec_place here = {{1}, 2, 3, CHUNK};
static const uint8_t key[SEAL_KEY] = {4};

static void ready(void)
{
    if (!cx.seal)
        CHECK(!codec_ctx_init(&cx));
}

/* kind of input u8, length of the meta data u8, both, then what is stored */
static void as_chunk(const uint8_t *data, size_t size, bool crypt)
{
    static uint8_t stored[CHUNK], plain[CHUNK + 64];
    const struct codec c = {.crypt = crypt, .stats = &stats};
    uint32_t meta_len = data[1] < size - 2 ? data[1] : (uint32_t)(size - 2), len = 0, n;
    uint8_t meta[PST_META_MAX], same[PST_META_MAX];
    enum codec_refusal why;
    struct chunk_meta m;
    uint64_t gen;
    int r;

    meta_len = meta_len < PST_META_MAX ? meta_len : PST_META_MAX;
    memcpy(meta, data + 2, meta_len);
    n = (uint32_t)min_u64(size - 2 - meta_len, CHUNK);
    memcpy(stored, data + 2 + meta_len, n);
    if (!meta_decode(meta, meta_len, &m))
        CHECK(meta_encode(&m, same) == meta_len && !memcmp(same, meta, meta_len));
    memset(plain, 0xee, sizeof plain);
    r = codec_decode(&c, &cx, &here, key, stored, n, meta, meta_len, plain, CHUNK, &len, &gen, &why);
    CHECK(r == 0 || (why > REFUSED_NOT && why < REFUSALS));
    CHECK(r != 0 || len <= CHUNK);
    for (size_t i = CHUNK; i < sizeof plain; i++)
        CHECK(plain[i] == 0xee);
    /* Only the samples below are by this key; their last byte is of the plain text. */
    CHECK(r != 0 || !crypt || plain[len - 1] == 'p');
}

static void as_header(const uint8_t *data, size_t size)
{
    const struct header_place at = {{1}, 2};
    struct keyring k = {0};
    uint8_t out[SEAL_KEY];
    bool old;

    CHECK(!tenant_key_init(&k.now, key));
    CHECK(header_open(&k, cx.seal, &at, data + 1, size - 1, out, &old) != 0 || size - 1 == HEADER_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t k[SEAL_KEY];

    ready();
    if (size < 3)
        return 0;
    if (data[0] % 4 == 0)
        as_header(data, size);
    else
        as_chunk(data, size, data[0] % 4 == 1);
    key_parse(data, size, k);
    return 0;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    struct codec c = {.csum = n & 1, .alg = (enum meta_alg)(n / 2 % 3), .level = 1, .stats = &stats};
    static uint8_t plain[CHUNK], room[CHUNK];
    const struct header_place at = {{1}, 2};
    struct codec_out o;
    struct keyring k = {0};
    uint8_t dk[SEAL_KEY];
    struct rng r;
    uint32_t len;

    ready();
    rng_seed(&r, n);
    CHECK(!tenant_key_init(&k.now, key));
    buf[0] = (uint8_t)(n % 4);
    if (n % 4 == 0) {
        CHECK(cap > HEADER_BYTES && !header_make(&k, cx.seal, &at, buf + 1, dk));
        return 1 + HEADER_BYTES;
    }
    c.crypt = n % 4 == 1;
    len = (uint32_t)rng_below(&r, min_u64(CHUNK, cap - 2 - PST_META_MAX)) + 1;
    memset(plain, 'p', sizeof plain);
    if (n & 4)
        rng_fill(&r, plain, len - 1);
    CHECK(!codec_encode(&c, &cx, &here, key, 1, plain, len, room, &o));
    buf[1] = (uint8_t)o.meta_len;
    memcpy(buf + 2, o.meta, o.meta_len);
    memcpy(buf + 2 + o.meta_len, o.data, o.len);
    return 2 + o.meta_len + o.len;
}

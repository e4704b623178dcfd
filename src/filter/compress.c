#include "compress.h"

#include <errno.h>
#include <lz4.h>
#include <lz4hc.h>
#include <stdlib.h>
#include <zstd.h>
#include <zstd_errors.h>

struct compressor {
    void *lz4, *lz4hc;
    ZSTD_CCtx *zc;
    ZSTD_DCtx *zd;
};

struct compressor *compressor_new(void)
{
    return calloc(1, sizeof(struct compressor));
}

void compressor_free(struct compressor *c)
{
    if (!c)
        return;
    free(c->lz4);
    free(c->lz4hc);
    ZSTD_freeCCtx(c->zc);
    ZSTD_freeDCtx(c->zd);
    free(c);
}

static int64_t lz4(struct compressor *c, int level, const uint8_t *in, uint32_t len, uint8_t *out, uint32_t cap)
{
    void **state = level < 3 ? &c->lz4 : &c->lz4hc;

    if (!*state)
        *state = malloc((size_t)(level < 3 ? LZ4_sizeofState() : LZ4_sizeofStateHC()));
    if (!*state)
        return -ENOMEM;
    return level < 3 ? LZ4_compress_fast_extState(*state, (const char *)in, (char *)out, (int)len, (int)cap, 1)
                     : LZ4_compress_HC_extStateHC(*state, (const char *)in, (char *)out, (int)len, (int)cap, level);
}

static int64_t zstd(struct compressor *c, int level, const uint8_t *in, uint32_t len, uint8_t *out, uint32_t cap)
{
    size_t n;

    if (!c->zc)
        c->zc = ZSTD_createCCtx();
    if (!c->zc)
        return -ENOMEM;
    n = ZSTD_compressCCtx(c->zc, out, cap, in, len, level);
    if (!ZSTD_isError(n))
        return (int64_t)n;
    return ZSTD_getErrorCode(n) == ZSTD_error_dstSize_tooSmall    ? 0
           : ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation ? -ENOMEM
                                                                  : -EIO;
}

int64_t compress_chunk(struct compressor *c, enum meta_alg alg, int level, const uint8_t *in, uint32_t len,
                       uint8_t *out, uint32_t cap)
{
    return alg == META_LZ4 ? lz4(c, level, in, len, out, cap) : zstd(c, level, in, len, out, cap);
}

int decompress_chunk(struct compressor *c, enum meta_alg alg, const uint8_t *in, uint32_t in_len, uint8_t *out,
                     uint32_t len)
{
    if (alg == META_LZ4)
        return LZ4_decompress_safe((const char *)in, (char *)out, (int)in_len, (int)len) == (int)len ? 0 : -EBADMSG;
    if (!c->zd)
        c->zd = ZSTD_createDCtx();
    if (!c->zd)
        return -ENOMEM;
    return ZSTD_decompressDCtx(c->zd, out, len, in, in_len) == len ? 0 : -EBADMSG;
}

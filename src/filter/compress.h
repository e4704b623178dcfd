/* LZ4 and zstd over one chunk. */
#ifndef FILTER_COMPRESS_H
#define FILTER_COMPRESS_H

#include "chunk_meta.h"

#define LZ4_LEVEL_MAX  12 /* 1: fast, from 3 on: high compression */
#define ZSTD_LEVEL_MAX 12 /* higher ones want hundreds of MiB */

struct compressor; /* the libraries' working memory, got at first use; of one thread at a time */
struct compressor *compressor_new(void);
void compressor_free(struct compressor *c);

/*
 * Into at most `cap` bytes. Returns the length, 0: it does not become that short (the chunk is to be stored as it is),
 * -ENOMEM, -EIO.
 */
int64_t compress_chunk(struct compressor *c, enum meta_alg alg, int level, const uint8_t *in, uint32_t len,
                       uint8_t *out, uint32_t cap);
/* 0; -EBADMSG: not what makes exactly `len` bytes; -ENOMEM. */
int decompress_chunk(struct compressor *c, enum meta_alg alg, const uint8_t *in, uint32_t in_len, uint8_t *out,
                     uint32_t len);

#endif

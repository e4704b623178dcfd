/*
 * The 64 bytes that a store keeps with a chunk, as the inline services use them: everything a reader needs, besides the
 * key, to make the chunk's bytes of what is stored. docs/filters.md has the layout. A chunk without meta data is what
 * was written without these services.
 */
#ifndef FILTER_CHUNK_META_H
#define FILTER_CHUNK_META_H

#include "store/types.h"

#define META_VERSION 1u
#define META_CSUM    1u /* flags: crc is of what is stored */
#define META_CRYPT   2u /* flags: nonce and tag are there, what is stored is encrypted */
#define META_FLAGS   3u

#define META_NONCE 24
#define META_TAG   16
#define META_BASE  20u                                 /* bytes without META_CRYPT */
#define META_LONG  (META_BASE + META_NONCE + META_TAG) /* with it */
#define META_CRC   8u                                  /* where crc is */

enum meta_alg { META_RAW, META_LZ4, META_ZSTD, META_ALGS };

struct chunk_meta {
    uint8_t flags;
    uint8_t alg;        /* enum meta_alg */
    uint32_t plain_len; /* bytes of the chunk: 1 ... PST_CHUNK_MAX */
    uint32_t crc;       /* CRC-32C, 0 without META_CSUM */
    uint64_t gen;       /* which state of the chunk (see cf.h); 0 without META_CRYPT */
    uint8_t nonce[META_NONCE], tag[META_TAG];
};

/* Returns the length. */
uint32_t meta_encode(const struct chunk_meta *m, uint8_t ret[PST_META_MAX]);
/* 0; -EBADMSG: damaged; -ENOTSUP: another version, or a flag or algorithm that this program does not know. */
int meta_decode(const void *p, size_t len, struct chunk_meta *ret);

#endif

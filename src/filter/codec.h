/*
 * The stages in their fixed order, over one chunk in memory: plain bytes -> compress -> crypt -> csum -> what is
 * stored, and back. Pure: no store, no locks. What a stage does is in the chunk's meta data, so reading needs no
 * configuration but the key.
 */
#ifndef FILTER_CODEC_H
#define FILTER_CODEC_H

#include "chunk_meta.h"
#include "seal.h"

#include <stdatomic.h>

enum codec_stage { STAGE_COMPRESS, STAGE_CRYPT, STAGE_CSUM, STAGES };

/* Why a chunk is refused. The bytes are not handed on, ever. */
enum codec_refusal {
    REFUSED_NOT,
    REFUSED_FORMAT,   /* meta data or lengths that nobody writes */
    REFUSED_UNKNOWN,  /* of a later version */
    REFUSED_CSUM,     /* damage on the way or on disk */
    REFUSED_TAG,      /* not what was written under this key for this place */
    REFUSED_PLAIN,    /* not encrypted, where all is */
    REFUSED_KEY,      /* encrypted, and there is no key, or it is another one */
    REFUSED_ROLLBACK, /* an older state than one that was seen */
    REFUSALS,
};
extern const char *const codec_stage_names[STAGES];
extern const char *const codec_refusal_names[REFUSALS];

struct codec_stats {
    struct {
        atomic_uint_fast64_t in, out, back_in, back_out; /* bytes: on the way down, and on the way up */
        atomic_uint_fast64_t ns, back_ns;
    } stage[STAGES];
    atomic_uint_fast64_t raw_chunks; /* that compress did not make shorter */
    atomic_uint_fast64_t refused[REFUSALS];
};

struct codec {
    bool csum, crypt;
    enum meta_alg alg; /* of new chunks; META_RAW: no compression */
    int level;
    struct codec_stats *stats;
};

/* What a thread needs besides. */
struct compressor;
struct codec_ctx {
    struct compressor *comp;
    struct seal *seal;
};
int codec_ctx_init(struct codec_ctx *x);
void codec_ctx_done(struct codec_ctx *x);

/* Which chunk it is: bound into the checksum and into the tag. */
struct codec_place {
    uint8_t cont[16];
    uint64_t ino, chunk;
    uint32_t chunk_size; /* so that the number means one place in the file */
};

struct codec_out {
    const uint8_t *data; /* in `plain` or in `buf` */
    uint32_t len;        /* <= that of the plain bytes: 1 ... */
    uint8_t meta[PST_META_MAX];
    uint32_t meta_len;
};
/*
 * plain: len >= 1 bytes, not changed. buf: at least as many. key: with c->crypt. gen: kept with it, authenticated with
 * c->crypt. 0, -ENOMEM, -EIO.
 */
int codec_encode(const struct codec *c, struct codec_ctx *x, const struct codec_place *at, const uint8_t key[SEAL_KEY],
                 uint64_t gen, const uint8_t *plain, uint32_t len, uint8_t *buf, struct codec_out *ret);
/* The same, with nothing but encrypted bytes in `sealed`, which is as long; with c->crypt all of them are there. */
int codec_encode_to(const struct codec *c, struct codec_ctx *x, const struct codec_place *at,
                    const uint8_t key[SEAL_KEY], uint64_t gen, const uint8_t *plain, uint32_t len, uint8_t *buf,
                    uint8_t *sealed, struct codec_out *ret);
/* Does this meta data say that a key is needed? */
bool codec_wants_key(const void *meta, size_t meta_len);
/*
 * stored: may be overwritten. key NULL: there is none. plain: room for cap bytes, a chunk; they are anything on error.
 * 0; -EIO, -ENOTSUP (unknown), -EKEYREJECTED (key) with *ret_why; -ENOMEM.
 */
int codec_decode(const struct codec *c, struct codec_ctx *x, const struct codec_place *at, const uint8_t *key,
                 uint8_t *stored, uint32_t stored_len, const void *meta, uint32_t meta_len, uint8_t *plain,
                 uint32_t cap, uint32_t *ret_len, uint64_t *ret_gen, enum codec_refusal *ret_why);

#endif

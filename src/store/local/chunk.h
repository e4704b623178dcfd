/*
 * The chunk record: which blocks of the data file hold a chunk of an object, and the checksum of each. Pure: no locks,
 * no I/O. The record (little-endian):
 *
 *   u8 format = 1, u8 meta length, u16 extents, u32 bytes in use, u64 version, meta bytes,
 *   per extent: u16 first block in the chunk, u16 blocks, u8 flags, u48 physical block,
 *   per written block, in order: u32 CRC-32C of its 4096 bytes
 *
 * Extents are in order of the first block and do not overlap. A block without extent is a hole. An unwritten extent
 * (PST_OP_ALLOCATE) holds space, reads as zero and has no checksums.
 */
#ifndef LOCAL_CHUNK_H
#define LOCAL_CHUNK_H

#include "base/buf.h"
#include "store/types.h"

#include <stdatomic.h>

#define CHUNK_FORMAT     1u
#define CHUNK_BLOCKS_MAX ((uint32_t)(PST_CHUNK_MAX / PST_BLOCK))
#define CHUNK_PHYS_MAX   (1ull << 40) /* blocks in a data file: 4 PiB */
#define CHUNK_UNWRITTEN  1u           /* flag of an extent */

struct chunk_ext {
    uint16_t first, n; /* blocks of the chunk; n >= 1 */
    uint32_t crc_at;   /* index of the first block's checksum; written extents only */
    uint64_t phys;
    bool unwritten;
};

/* A decoded record: immutable once shared, counted. */
struct chunk_map {
    atomic_uint refs;
    uint32_t bytes; /* of memory, for the cache's bound */
    uint64_t version;
    uint32_t in_use; /* bytes of the chunk that were written, up to the last one */
    uint32_t nexts, ncrcs;
    uint32_t meta_len;
    uint8_t meta[PST_META_MAX];
    uint32_t *crcs; /* behind exts, in the same memory */
    struct chunk_ext exts[];
};

/* One reference to an owned map. 0, -EBADMSG: some field is wrong, -ENOMEM. */
int chunk_decode(const void *value, size_t len, struct chunk_map **ret);
/* Appends the record; errors are kept in w. */
void chunk_encode(const struct chunk_map *m, struct wbuf *w);
struct chunk_map *chunk_ref(struct chunk_map *m);
void chunk_unref(struct chunk_map *m); /* accepts NULL */

/* The extent that holds the block, or NULL for a hole. m may be NULL (nothing was ever written). */
const struct chunk_ext *chunk_find(const struct chunk_map *m, uint32_t block);
/* The first extent that ends after the block, or NULL. */
const struct chunk_ext *chunk_next(const struct chunk_map *m, uint32_t block);
/* Blocks that take space, unwritten ones included. */
uint32_t chunk_blocks(const struct chunk_map *m);

/* Where new blocks come from: runs of physical blocks, used up in order. */
struct chunk_run {
    uint64_t phys;
    uint32_t n;
};
/*
 * A new map: `old` (NULL: nothing) with blocks [first, first + n) replaced by the runs (nruns 0: by a hole), whose
 * sum of blocks is n. crcs: of these n blocks; NULL: they are unwritten. What was replaced is told through `freed`
 * (may be NULL). version, in_use and meta are taken over from old. 0 or -ENOMEM.
 */
typedef void (*chunk_freed_fn)(void *user, uint64_t phys, uint32_t n, bool unwritten);
int chunk_edit(const struct chunk_map *old, uint32_t first, uint32_t n, const struct chunk_run *runs, size_t nruns,
               const uint32_t *crcs, chunk_freed_fn freed, void *user, struct chunk_map **ret);

#endif

/* The index inside (index.c, index_batch.c). */
#ifndef LOCAL_INDEX_PRIV_H
#define LOCAL_INDEX_PRIV_H

#include "parts.h"

#include <rocksdb/c.h>

#define CRC_BYTES 4u /* behind each value */

struct index {
    rocksdb_t *db;          /* NULL: it could not be opened again */
    _Atomic bool shut;      /* being opened again: who comes waits */
    _Atomic uint32_t users; /* calls and iterators that are inside */
    pthread_mutex_t mu;
    pthread_cond_t opened; /* `shut` has ended; with mu */
    rocksdb_options_t *opt;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *get_opt;
    rocksdb_writeoptions_t *write_opt;
    rocksdb_flushoptions_t *flush_opt;
};

/* The errno of the library's message, which it frees: -ENOSPC (it goes on when there is space), else -EIO, logged and
 * counted. */
int index_failed(struct engine *e, const char *what, char *err);
uint32_t index_entry_crc(const void *key, size_t klen, const void *value, size_t len);
/* Where the LSN of the last batch that was applied stands. */
struct key index_applied_key(void);

#endif

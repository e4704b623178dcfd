/* One opened store: private to src/store/local. Each part owns one pointer; others go through local.h. */
#ifndef LOCAL_ENGINE_H
#define LOCAL_ENGINE_H

#include "local.h"

#include "io.h"

#include <stdatomic.h>

struct index; /* index.c */
struct wal;   /* log.c */
struct sync;  /* sync.c */
struct alloc; /* alloc.c */
struct locks; /* locks.c */
struct data_state;

struct engine {
    struct pst_store st;
    char *dir;

    struct index *index;
    struct wal *wal;
    struct sync *sync;
    struct alloc *alloc;
    struct locks *locks;
    struct ns *ns;           /* ns_open .. ns_close; NULL in a read-only store */
    struct data_state *data; /* data_open .. data_close */

    const struct io_ops *io_ops;
    int data_fd;   /* buffered */
    int direct_fd; /* O_DIRECT on the same file, or -1 */

    /* Counters, for stats. */
    _Atomic uint64_t data_errors; /* blocks whose checksum did not match: the data path counts */
    _Atomic uint64_t index_errors;
};

static inline struct engine *engine_of(struct pst_store *st)
{
    return (struct engine *)st;
}

#endif

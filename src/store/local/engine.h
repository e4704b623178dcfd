/* One opened store: private to src/store/local. Each part owns one pointer; others go through local.h. */
#ifndef LOCAL_ENGINE_H
#define LOCAL_ENGINE_H

#include "local.h"

#include "io.h"

#include <stdatomic.h>

/* What the superblock says, as read at open and as it will be written next (super.c). */
struct super {
    uint64_t generation; /* of the copy; the valid copy with the highest one counts */
    uint32_t layout;
    uint8_t uuid[16];
    int64_t created_ns;
    uint64_t capacity; /* bytes of the data file at most, a multiple of PST_BLOCK */
    uint32_t segment;  /* bytes of one log segment */
    bool clean;        /* stopped cleanly: the index has everything, the log is not looked at */
    uint64_t log_lsn;  /* the flushed index has the records up to this one */
    uint64_t log_seq;  /* where the next record is searched: segment and offset */
    uint64_t log_off;
    uint64_t run;        /* drawn by each process that writes the store; 0: by an older program */
    uint64_t run_before; /* of the process before */
    uint64_t copy_lsn;   /* of the index copy (0: empty): log records after it are kept; COPY_NONE: there is none */
};

enum choice { CHOICE_AUTO, CHOICE_ALWAYS, CHOICE_NEVER };
enum io_choice { IO_AUTO, IO_URING, IO_THREADS };

struct eng_opts {
    bool create;          /* an empty or missing folder becomes a store */
    bool readonly;
    bool bare;            /* nothing writes but the caller: no namespace is opened. For check, and tests of the parts */
    struct check *check_to; /* damage in the space map is reported there, not refused */
    bool check_data;        /* with it: every block is read and compared */
    bool rebuild_index;   /* take the index copy and replay the log on it */
    uint64_t size;        /* create: capacity in bytes; 0: DEFAULT_PERCENT of the free space */
    bool recent;          /* what is committed survives the death of the process, not only what is durable */
    enum choice direct;
    enum io_choice io;
    uint32_t sync_ms;     /* an unsynced record is at most this old */
    uint32_t cache_mb;    /* block cache of the index */
};

struct index; /* index.c */
struct wal;   /* log.c */
struct sync;  /* sync.c */
struct recent; /* recent.c */
struct alloc; /* alloc.c */
struct locks; /* locks.c */
struct ns;
struct data_state;

struct engine {
    struct pst_store st;
    char *dir;
    struct eng_opts opt;
    struct super super; /* after open: changed by checkpoints only, under their lock */

    struct index *index;
    struct wal *wal;
    struct sync *sync;
    struct recent *recent;
    struct alloc *alloc;
    struct locks *locks;
    struct ns *ns;           /* ns_open .. ns_close; NULL in a bare store */
    struct data_state *data; /* data_open .. data_close */

    const struct io_ops *io_ops;
    int dir_fd, lock_fd, super_fd;
    int data_fd;            /* buffered */
    int direct_fd;          /* O_DIRECT on the same file, or -1 */
    uint64_t reserve_bytes; /* kept free in the file system for log and index */
    bool started;           /* the superblock says "in use": close makes a checkpoint and says "clean" */

    /* Counters, for stats. */
    _Atomic uint64_t data_errors; /* blocks whose checksum did not match: the data path counts */
    _Atomic uint64_t index_errors;
};

static inline struct engine *engine_of(struct pst_store *st)
{
    return (struct engine *)st;
}

#endif

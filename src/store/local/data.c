/* The data path as a part of the store: its state, its figures. */
#include "data.h"

#include <errno.h>
#include <unistd.h>

int data_open(struct engine *e)
{
    struct data_state *d = calloc(1, sizeof *d);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    if (!d)
        return -ENOMEM;
    d->nseen =
        pages > 0 && page > 0 ? (uint32_t)min_u64((uint64_t)pages * (uint64_t)page / 2 / MiB, 1u << 22) + 1 : 1024;
    d->seen = calloc(d->nseen, sizeof *d->seen);
    d->try_cached = e->opt.direct != CHOICE_ALWAYS;
    if (!d->seen || map_cache_open(d)) {
        free(d->seen);
        free(d);
        return -ENOMEM;
    }
    pthread_mutex_init(&d->collect_lock, NULL);
    e->data = d;
    swap_open(e);
    return 0;
}

void data_close(struct engine *e)
{
    if (!e->data)
        return;
    swap_close(e);
    data_now_close(e);
    map_cache_close(e->data);
    pthread_mutex_destroy(&e->data->collect_lock);
    free(e->data->seen);
    free(e->data);
    e->data = NULL;
}

void data_stats(struct engine *e, pst_stat_fn fn, void *user)
{
    static const char *const labels[PST_OP_KINDS] = {
        [PST_OP_READ] = "op=\"read\"",
        [PST_OP_WRITE] = "op=\"write\"",
        [PST_OP_PUNCH] = "op=\"punch\"",
        [PST_OP_ALLOCATE] = "op=\"allocate\"",
        [PST_OP_SEEK_DATA] = "op=\"seek_data\"",
        [PST_OP_SEEK_HOLE] = "op=\"seek_hole\"",
        [PST_OP_FSYNC] = "op=\"fsync\"",
        [PST_OP_SYNCFS] = "op=\"syncfs\"",
        [PST_OP_CHUNK_READ] = "op=\"chunk_read\"",
        [PST_OP_CHUNK_REPLACE] = "op=\"chunk_replace\"",
        [PST_OP_ATTR] = "op=\"attr\"",
    };
    struct data_state *d = e->data;

    if (!d)
        return;
    for (int k = 0; k < PST_OP_KINDS; k++)
        fn(user, "store_data_ops_total", labels[k], "Data operations that were begun", true, (double)d->ops[k]);
    fn(user, "store_data_read_bytes_total", "", "Bytes that reads returned", true, (double)d->read_bytes);
    fn(user, "store_data_write_bytes_total", "", "Bytes that writes stored", true, (double)d->write_bytes);
    fn(user, "store_data_redone_total", "", "Commits that came after another one and were done once more", true,
       (double)d->redone);
    fn(user, "store_swap_bytes", "", "Bytes kept free for replacing blocks on a full store", false,
       (double)d->swap.n * PST_BLOCK);
    fn(user, "store_chunk_cache_hits_total", "", "Chunk records found in memory", true, (double)d->cache_hits);
    fn(user, "store_chunk_cache_misses_total", "", "Chunk records read from the index", true, (double)d->cache_misses);
}

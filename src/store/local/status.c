/* What the engine says about itself: counters and facts. */
#include "parts.h"

#include <stdio.h>

void local_stats(struct pst_store *st, pst_stat_fn fn, void *user)
{
    struct engine *e = engine_of(st);
    alloc_stats(e, fn, user);
    sync_stats(e, fn, user);
    index_stats(e, fn, user);
    fn(user, "store_log_file_bytes", "", "Bytes in log segments", false, (double)wal_bytes(e));
    fn(user, "store_index_errors_total", "", "Index entries that could not be read", true,
       (double)atomic_load(&e->index_errors));
    fn(user, "store_data_errors_total", "", "Blocks whose checksum did not match", true,
       (double)atomic_load(&e->data_errors));
    data_stats(e, fn, user);
    ns_stats(e, fn, user);
}

void local_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user)
{
    struct engine *e = engine_of(st);
    char text[64];
    fn(user, "engine", "local");
    fn(user, "folder", e->dir);
    fn(user, "disk_io", e->io_ops->name);
    fn(user, "direct_io", e->direct_fd >= 0 ? "yes" : "no");
    snprintf(text, sizeof text, "%u", e->super.layout);
    fn(user, "layout", text);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, sizeof text - 2 * (size_t)i, "%02x", e->super.uuid[i]);
    fn(user, "uuid", text);
    snprintf(text, sizeof text, "%llu", (unsigned long long)e->super.capacity);
    fn(user, "capacity_bytes", text);
    fn(user, "writable", e->opt.readonly      ? "no: opened read-only"
                         : eng_writable(e) < 0 ? "no: after an I/O error"
                         : sync_full(e)        ? "no: the disk is full"
                                               : "yes");
}

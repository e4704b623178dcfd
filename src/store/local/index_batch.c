/* Changes of the index: batches, as the log has them, and their replay. */
#include "index_priv.h"

#include "base/endian.h"

#include <errno.h>

struct idx_batch {
    rocksdb_writebatch_t *b;
};

struct put_walk {
    idx_put_fn fn;
    void *user;
};

static void on_put(void *user, const char *k, size_t klen, const char *v, size_t vlen)
{
    struct put_walk *w = user;
    if (vlen >= CRC_BYTES)
        w->fn(w->user, (const uint8_t *)k, klen, (const uint8_t *)v, vlen - CRC_BYTES);
}

static void on_del(void *user, const char *k, size_t klen)
{
    (void)user, (void)k, (void)klen;
}

void idx_each_put(const void *p, size_t len, idx_put_fn fn, void *user)
{
    rocksdb_writebatch_t *b = rocksdb_writebatch_create_from(p, len);
    struct put_walk w = {fn, user};
    rocksdb_writebatch_iterate(b, &w, on_put, on_del);
    rocksdb_writebatch_destroy(b);
}

struct idx_batch *idx_batch_new(void)
{
    struct idx_batch *b = calloc(1, sizeof *b);
    if (b)
        b->b = rocksdb_writebatch_create();
    return b;
}

void idx_batch_free(struct idx_batch *b)
{
    if (!b)
        return;
    rocksdb_writebatch_destroy(b->b);
    free(b);
}

void idx_batch_put(struct idx_batch *b, const struct key *k, const void *value, size_t len)
{
    le32 crc = put_le32(index_entry_crc(k->b, k->len, value, len));
    const char *keys[] = {(const char *)k->b}, *values[] = {value, (const char *)&crc};
    size_t ksizes[] = {k->len}, sizes[] = {len, sizeof crc};
    if (!len)
        values[0] = "";
    rocksdb_writebatch_putv(b->b, 1, keys, ksizes, 2, values, sizes);
}

void idx_batch_del(struct idx_batch *b, const struct key *k)
{
    rocksdb_writebatch_delete(b->b, (const char *)k->b, k->len);
}

int idx_batch_count(struct idx_batch *b)
{
    return rocksdb_writebatch_count(b->b);
}

const void *idx_batch_seal(struct idx_batch *b, uint64_t lsn, size_t *ret_len)
{
    struct key k = index_applied_key();
    le64 v = put_le64(lsn);
    idx_batch_put(b, &k, &v, sizeof v);
    return rocksdb_writebatch_data(b->b, ret_len);
}

int idx_batch_apply(struct engine *e, struct idx_batch *b)
{
    rocksdb_t *db = e->index->db;
    char *err = NULL;
    uint64_t before;
    int r;
    if (!db)
        return -ENOSPC;
    before = rocksdb_get_latest_sequence_number(db);
    rocksdb_write(db, e->index->write_opt, b->b, &err);
    r = err ? index_failed(e, "write", err) : 0;
    /* Refused is one thing, begun another. */
    return r == -ENOSPC && rocksdb_get_latest_sequence_number(db) != before ? -EIO : r;
}

int index_replay(struct engine *e, const void *p, size_t len)
{
    rocksdb_writebatch_t *b = rocksdb_writebatch_create_from(p, len);
    char *err = NULL;
    rocksdb_write(e->index->db, e->index->write_opt, b, &err);
    rocksdb_writebatch_destroy(b);
    return err ? index_failed(e, "replay", err) : 0;
}

/*
 * Keys to values in RocksDB. Its own log is off: ours (log.c) is the log, and its memtable holds what ours has and the
 * tables on disk have not. It flushes only when a checkpoint says so. Each value ends with the CRC32C of key and value,
 * so that an entry under a wrong key, or of a wrong block, does not pass either.
 */
#include "index_priv.h"

#include "base/crc.h"
#include "base/endian.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#define WRITE_BUFFER   (1ull << 30) /* bytes: never reached, since checkpoints flush long before (sync.c) */
#define OPEN_FILES     256
#define OPEN_FILES_MIN 20  /* the library takes no less */
#define DAMAGE_LINES   10u /* damaged entries that are logged one by one */

struct idx_snap {
    const rocksdb_snapshot_t *snap;
    rocksdb_readoptions_t *opt;
};

struct idx_iter {
    struct engine *e;
    rocksdb_iterator_t *it;
    rocksdb_readoptions_t *opt;
    struct key upper; /* borrowed by opt */
    bool started;
};

/* ---- errors ---- */

/* Counts and logs a damaged entry. Frees the library's message. */
static int damaged(struct engine *e, const void *key, size_t len, char *err)
{
    char text[320];
    uint64_t n;
    key_text(key, len, text, sizeof text);
    n = atomic_fetch_add(&e->index_errors, 1) + 1;
    if (n <= DAMAGE_LINES || is_pow2(n)) /* a whole table may be gone: the counter has them all */
        log_error("%s: index entry \"%s\" cannot be read: %s; run `penstock check %s`", e->dir, text,
                  err ? err : "checksum mismatch", e->dir);
    rocksdb_free(err);
    return -EIO;
}

static bool no_space(const char *err)
{
    return strstr(err, "No space left on device") || strstr(err, "Disk quota exceeded");
}

int index_failed(struct engine *e, const char *what, char *err)
{
    if (no_space(err)) { /* no damage: it goes on when there is space, index_reopen */
        rocksdb_free(err);
        return -ENOSPC;
    }
    atomic_fetch_add(&e->index_errors, 1);
    log_error("%s: index: %s: %s", e->dir, what, err);
    rocksdb_free(err);
    return -EIO;
}

uint32_t index_entry_crc(const void *key, size_t klen, const void *value, size_t len)
{
    return crc32c(crc32c(0, key, klen), value, len);
}

static bool entry_good(const void *key, size_t klen, const char *value, size_t len)
{
    le32 crc;
    if (len < CRC_BYTES)
        return false;
    memcpy(&crc, value + len - CRC_BYTES, sizeof crc);
    return get_le32(crc) == index_entry_crc(key, klen, value, len - CRC_BYTES);
}

/* ---- who is inside ---- */

/* The library does not go on by itself after a full disk: then it is closed and opened again, while nobody is inside.
 */
static struct index *enter(struct engine *e)
{
    struct index *x = e->index;
    for (;;) {
        atomic_fetch_add(&x->users, 1);
        if (!atomic_load(&x->shut))
            return x;
        atomic_fetch_sub(&x->users, 1);
        pthread_mutex_lock(&x->mu);
        while (atomic_load(&x->shut))
            pthread_cond_wait(&x->opened, &x->mu);
        pthread_mutex_unlock(&x->mu);
    }
}

static void leave(struct index *x)
{
    atomic_fetch_sub(&x->users, 1);
}

static bool shut_try(struct index *x)
{
    atomic_store(&x->shut, true);
    return atomic_load(&x->users) == 0;
}

static void shut_end(struct index *x)
{
    scoped_lock(&x->mu);
    atomic_store(&x->shut, false);
    pthread_cond_broadcast(&x->opened);
}

/* ---- open and close ---- */

/* No more than a share of what the process may open: a table that cannot be opened would stop the store. */
static int open_files(void)
{
    struct rlimit l;
    uint64_t n = OPEN_FILES;
    if (!getrlimit(RLIMIT_NOFILE, &l))
        n = min_u64(n, max_u64(OPEN_FILES_MIN, l.rlim_cur / 6));
    return (int)n;
}

static rocksdb_options_t *options_new(struct engine *e, bool create, struct index *x)
{
    rocksdb_options_t *base = rocksdb_options_create(), *o = rocksdb_options_create();
    rocksdb_block_based_table_options_t *t = rocksdb_block_based_options_create();
    char *err = NULL;

    /* What the C interface has no setter for. */
    rocksdb_get_options_from_string(base, "avoid_flush_during_shutdown=true;stats_dump_period_sec=0", o, &err);
    rocksdb_options_destroy(base);
    if (err) {
        index_failed(e, "options", err);
        rocksdb_options_destroy(o);
        rocksdb_block_based_options_destroy(t);
        return NULL;
    }
    rocksdb_options_set_create_if_missing(o, create);
    rocksdb_options_set_error_if_exists(o, create);
    rocksdb_options_set_paranoid_checks(o, 1);
    rocksdb_options_set_allow_mmap_reads(o, 0);
    rocksdb_options_set_allow_mmap_writes(o, 0);
    rocksdb_options_set_write_buffer_size(o, WRITE_BUFFER);
    rocksdb_options_set_max_write_buffer_number(o, 4);
    rocksdb_options_set_max_background_jobs(o, 2);
    rocksdb_options_set_max_open_files(o, open_files());
    rocksdb_options_set_compression(o, rocksdb_no_compression);
    rocksdb_options_set_level0_slowdown_writes_trigger(o, 48);
    rocksdb_options_set_level0_stop_writes_trigger(o, 96);
    rocksdb_options_set_info_log_level(o, 3);
    rocksdb_options_set_keep_log_file_num(o, 1);
    rocksdb_options_set_max_log_file_size(o, 1 * MiB);
    rocksdb_options_set_max_manifest_file_size(o, 4 * MiB);
    rocksdb_options_set_stats_persist_period_sec(o, 0);
    rocksdb_options_set_skip_stats_update_on_db_open(o, 1);

    /* Few shards: with the default, a shard of a small cache is smaller than the blocks that it should hold. */
    rocksdb_lru_cache_options_t *lru = rocksdb_lru_cache_options_create();
    rocksdb_lru_cache_options_set_capacity(lru, e->opt.cache_mb * MiB);
    rocksdb_lru_cache_options_set_num_shard_bits(lru, 2);
    x->cache = rocksdb_cache_create_lru_opts(lru);
    rocksdb_lru_cache_options_destroy(lru);
    /* Filters and indexes in parts of a block's size: a whole one of a large table would not stay in the cache. */
    rocksdb_block_based_options_set_index_type(t, rocksdb_block_based_table_index_type_two_level_index_search);
    rocksdb_block_based_options_set_partition_filters(t, 1);
    rocksdb_block_based_options_set_pin_top_level_index_and_filter(t, 1);
    rocksdb_block_based_options_set_block_cache(t, x->cache);
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, 1);
    rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(t, 1);
    rocksdb_block_based_options_set_filter_policy(t, rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_options_set_block_based_table_factory(o, t);
    rocksdb_block_based_options_destroy(t);
    return o;
}

static atomic_bool used;

bool index_was_used(void)
{
    return used;
}

int index_open(struct engine *e, bool create, const struct errmsg *m)
{
    struct index *x = calloc(1, sizeof *x);
    char path[4096], *err = NULL;
    int r = path_join(path, sizeof path, e->dir, "index");
    if (!x || r) {
        free(x);
        return r ? r : -ENOMEM;
    }
    pthread_mutex_init(&x->mu, NULL);
    pthread_cond_init(&x->opened, NULL);
    e->index = x;
    used = true;
    x->opt = options_new(e, create, x);
    if (!x->opt)
        return fail(m, -EIO, "%s: the index library refuses its options", e->dir);
    x->get_opt = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(x->get_opt, 1);
    x->write_opt = rocksdb_writeoptions_create();
    rocksdb_writeoptions_disable_WAL(x->write_opt, 1);
    x->flush_opt = rocksdb_flushoptions_create();
    rocksdb_flushoptions_set_wait(x->flush_opt, 0);
    x->db = e->opt.readonly ? rocksdb_open_for_read_only(x->opt, path, 0, &err) : rocksdb_open(x->opt, path, &err);
    if (err) {
        r = fail(m, -EIO, "%s/index cannot be opened: %s; `penstock check --rebuild-index %s` makes it anew", e->dir,
                 err, e->dir);
        rocksdb_free(err);
        return r;
    }
    return 0;
}

void index_close(struct engine *e)
{
    struct index *x = e->index;
    if (!x)
        return;
    if (x->db)
        rocksdb_close(x->db);
    if (x->opt)
        rocksdb_options_destroy(x->opt);
    if (x->cache)
        rocksdb_cache_destroy(x->cache);
    if (x->get_opt) {
        rocksdb_readoptions_destroy(x->get_opt);
        rocksdb_writeoptions_destroy(x->write_opt);
        rocksdb_flushoptions_destroy(x->flush_opt);
    }
    pthread_cond_destroy(&x->opened);
    pthread_mutex_destroy(&x->mu);
    free(x);
    e->index = NULL;
}

/* By someone who is inside, or has it for himself. */
static int get(struct engine *e, const rocksdb_readoptions_t *opt, const struct key *k, struct wbuf *ret)
{
    char *err = NULL;
    const char *key = (const char *)k->b, *v;
    size_t len;
    int r = 0;
    rocksdb_pinnableslice_t *p = e->index->db ? rocksdb_get_pinned(e->index->db, opt, key, k->len, &err) : NULL;
    if (err)
        return damaged(e, k->b, k->len, err);
    if (!p)
        return e->index->db ? -ENOENT : -EIO;
    v = rocksdb_pinnableslice_value(p, &len);
    if (!entry_good(k->b, k->len, v, len)) {
        r = damaged(e, k->b, k->len, NULL);
    } else {
        ret->len = 0;
        wbuf_put(ret, v, len - CRC_BYTES);
        r = ret->err;
    }
    rocksdb_pinnableslice_destroy(p);
    return r;
}

struct key index_applied_key(void)
{
    struct key k = key_begin(KEY_SYSTEM);
    key_bytes(&k, "applied", 7);
    return k;
}

int index_applied(struct engine *e, uint64_t *ret_lsn)
{
    struct key k = index_applied_key();
    struct wbuf v = {0};
    int r = get(e, e->index->get_opt, &k, &v);
    if (!r) {
        struct rbuf b = rbuf_of(v.data, v.len);
        uint64_t lsn = rbuf_u64(&b);
        r = rbuf_end(&b) ? -EIO : 0;
        if (!r)
            *ret_lsn = lsn;
    } else if (r == -ENOENT) {
        *ret_lsn = 0;
        r = 0;
    }
    wbuf_done(&v);
    return r;
}

int index_flush_start(struct engine *e)
{
    char *err = NULL;
    if (!e->index->db)
        return -ENOSPC;
    rocksdb_flush(e->index->db, e->index->flush_opt, &err);
    return err ? index_failed(e, "flush", err) : 0;
}

/* What stopped the library: a write of nothing is refused for the same reason, or is none of a full disk's. */
static int stopped_by(struct engine *e)
{
    rocksdb_writebatch_t *nothing = rocksdb_writebatch_create();
    char *err = NULL;
    rocksdb_write(e->index->db, e->index->write_opt, nothing, &err);
    rocksdb_writebatch_destroy(nothing);
    /* Without an error it is merging that failed: it stops without refusing writes only for want of space. */
    return err ? index_failed(e, "flush", err) : -ENOSPC;
}

int index_flush_poll(struct engine *e)
{
    uint64_t n = 0;
    if (!e->index->db)
        return -ENOSPC;
    if (rocksdb_property_int(e->index->db, "rocksdb.background-errors", &n))
        return -EIO;
    if (n)
        return stopped_by(e);
    if (rocksdb_property_int(e->index->db, "rocksdb.num-immutable-mem-table", &n))
        return -EIO;
    return n == 0;
}

int index_reopen(struct engine *e, uint64_t last)
{
    struct index *x = e->index;
    uint64_t applied = 0, end = 0;
    char path[4096], *err = NULL;
    int r = path_join(path, sizeof path, e->dir, "index");
    if (!r && !shut_try(x))
        r = -EAGAIN;
    if (!r && x->db)
        rocksdb_close(x->db);
    if (!r) {
        rocksdb_options_set_create_if_missing(x->opt, 0);
        rocksdb_options_set_error_if_exists(x->opt, 0);
        x->db = rocksdb_open(x->opt, path, &err);
        r = err ? index_failed(e, "open", err) : index_applied(e, &applied);
    }
    if (!r)
        r = wal_replay(e, applied, &end, NULL);
    if (!r && end != last)
        r = -EIO;
    if (r && r != -EAGAIN && x->db) { /* it lacks something: nobody may read it */
        rocksdb_close(x->db);
        x->db = NULL;
    }
    shut_end(x);
    return r;
}

int index_snapshot_to(struct engine *e, const char *path)
{
    char *err = NULL;
    if (!e->index->db)
        return -EIO;
    rocksdb_checkpoint_t *c = rocksdb_checkpoint_object_create(e->index->db, &err);
    if (err)
        return index_failed(e, "snapshot", err);
    /* The bound on its own log's size: never flush for this. */
    rocksdb_checkpoint_create(c, path, UINT64_MAX, &err);
    rocksdb_checkpoint_object_destroy(c);
    return err ? index_failed(e, "snapshot", err) : 0;
}

uint64_t index_file_bytes(struct engine *e)
{
    struct index *x = enter(e);
    uint64_t n = 0;
    if (!x->db || rocksdb_property_int(x->db, "rocksdb.total-sst-files-size", &n))
        n = 0;
    leave(x);
    return n;
}

void index_stats(struct engine *e, pst_stat_fn fn, void *user)
{
    uint64_t v = index_file_bytes(e), memory = 0, keys = 0;
    struct index *x = enter(e);
    bool known = x->db && !rocksdb_property_int(x->db, "rocksdb.cur-size-all-mem-tables", &memory) &&
                 !rocksdb_property_int(x->db, "rocksdb.estimate-num-keys", &keys);
    leave(x);
    fn(user, "store_index_file_bytes", "", "Bytes in the files of the index", false, (double)v);
    if (!known)
        return;
    fn(user, "store_index_memory_bytes", "", "Index changes in memory, not yet in its files", false, (double)memory);
    fn(user, "store_index_keys", "", "Entries of the index, estimated", false, (double)keys);
}

/* ---- reading ---- */

struct idx_snap *idx_snap_new(struct engine *e)
{
    struct idx_snap *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    if (!enter(e)->db) {
        leave(e->index);
        free(s);
        return NULL;
    }
    s->snap = rocksdb_create_snapshot(e->index->db);
    s->opt = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(s->opt, 1);
    rocksdb_readoptions_set_snapshot(s->opt, s->snap);
    return s;
}

void idx_snap_free(struct engine *e, struct idx_snap *s)
{
    if (!s)
        return;
    rocksdb_readoptions_destroy(s->opt);
    rocksdb_release_snapshot(e->index->db, s->snap);
    leave(e->index);
    free(s);
}

int idx_get(struct engine *e, const struct idx_snap *s, const struct key *k, struct wbuf *ret)
{
    struct index *x = enter(e);
    int r = get(e, s ? s->opt : x->get_opt, k, ret);
    leave(x);
    return r;
}

/* The first key after all that have the prefix; false when there is none (all bytes 0xff). */
static bool key_after_prefix(struct key *k)
{
    while (k->len && k->b[k->len - 1] == 0xff)
        k->len--;
    if (!k->len)
        return false;
    k->b[k->len - 1]++;
    return true;
}

struct idx_iter *idx_iter_new(struct engine *e, const struct idx_snap *s, const struct key *prefix,
                              const struct key *from)
{
    struct idx_iter *it = calloc(1, sizeof *it);
    const struct key *start = from ? from : prefix;
    if (!it)
        return NULL;
    enter(e);
    it->e = e;
    it->upper = *prefix;
    it->opt = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(it->opt, 1);
    if (key_after_prefix(&it->upper))
        rocksdb_readoptions_set_iterate_upper_bound(it->opt, (const char *)it->upper.b, it->upper.len);
    if (s)
        rocksdb_readoptions_set_snapshot(it->opt, s->snap);
    if (!e->index->db)
        return it;
    it->it = rocksdb_create_iterator(e->index->db, it->opt);
    rocksdb_iter_seek(it->it, (const char *)start->b, start->len);
    return it;
}

int idx_iter_next(struct idx_iter *it)
{
    size_t klen, len;
    const char *k, *v;
    char *err = NULL;
    if (!it->it)
        return -EIO;
    if (it->started && rocksdb_iter_valid(it->it))
        rocksdb_iter_next(it->it);
    it->started = true;
    if (!rocksdb_iter_valid(it->it)) {
        rocksdb_iter_get_error(it->it, &err);
        return err ? index_failed(it->e, "listing", err) : 0;
    }
    k = rocksdb_iter_key(it->it, &klen);
    v = rocksdb_iter_value(it->it, &len);
    return entry_good(k, klen, v, len) ? 1 : damaged(it->e, k, klen, NULL);
}

const uint8_t *idx_iter_key(const struct idx_iter *it, size_t *ret_len)
{
    if (!it->it || !rocksdb_iter_valid(it->it))
        return NULL;
    return (const uint8_t *)rocksdb_iter_key(it->it, ret_len);
}

const uint8_t *idx_iter_value(const struct idx_iter *it, size_t *ret_len)
{
    size_t len;
    const char *v = rocksdb_iter_value(it->it, &len);
    *ret_len = len < CRC_BYTES ? 0 : len - CRC_BYTES;
    return (const uint8_t *)v;
}

void idx_iter_free(struct idx_iter *it)
{
    if (!it)
        return;
    if (it->it)
        rocksdb_iter_destroy(it->it);
    rocksdb_readoptions_destroy(it->opt);
    leave(it->e->index);
    free(it);
}

int idx_each_whole(struct engine *e, const struct key *prefix, idx_entry_fn fn, void *user)
{
    struct idx_iter *it = idx_iter_new(e, NULL, prefix, NULL);
    size_t klen, vlen;
    int more, r = 0;
    if (!it)
        return -ENOMEM;
    while (!r && (more = idx_iter_next(it))) {
        const uint8_t *k = idx_iter_key(it, &klen);
        if (more < 0 && !k)
            break;
        if (more < 0 || !fn)
            continue;
        const uint8_t *v = idx_iter_value(it, &vlen);
        r = fn(user, k, klen, v, vlen);
    }
    idx_iter_free(it);
    return r;
}

/*
 * Chunk records by their key, and a bounded cache of decoded ones.
 *
 * A cached map belongs to a value of its object's change counter. Whoever changes a chunk moves that counter in the
 * same transaction, and readers take the counter (inode_get) before the map: a map that is found under the counter's
 * present value is the present one, without any hook in commits. After a write the other chunks of the object are read
 * from the index once more.
 */
#include "data.h"

#include <errno.h>
#include <string.h>

#define BUCKETS 512u

struct map_entry {
    struct list lru; /* of the shard, the most recently used first */
    struct map_entry *next;
    uint64_t cont, ino, index, change;
    struct chunk_map *m;
};

struct map_cache {
    struct map_shard {
        pthread_mutex_t lock;
        struct list lru;
        size_t bytes;
        struct map_entry *buckets[BUCKETS];
    } shards[DATA_CACHE_SHARDS];
};

struct key chunk_key(uint64_t cont, uint64_t ino, uint64_t index)
{
    struct key k = key_begin(KEY_CHUNK);
    key_u64(&k, cont);
    key_u64(&k, ino);
    key_u64(&k, index);
    return k;
}

int chunk_key_parse(const uint8_t *k, size_t len, uint64_t *ret_cont, uint64_t *ret_ino, uint64_t *ret_index)
{
    struct rbuf r = rbuf_of(k, len);
    uint8_t space = rbuf_u8(&r);
    uint64_t cont = rbuf_be64(&r), ino = rbuf_be64(&r), index = rbuf_be64(&r);

    if (rbuf_end(&r) || space != KEY_CHUNK)
        return -EBADMSG;
    *ret_cont = cont;
    *ret_ino = ino;
    *ret_index = index;
    return 0;
}

int map_cache_open(struct data_state *d)
{
    d->cache = calloc(1, sizeof *d->cache);
    if (!d->cache)
        return -ENOMEM;
    for (uint32_t i = 0; i < DATA_CACHE_SHARDS; i++) {
        pthread_mutex_init(&d->cache->shards[i].lock, NULL);
        list_init(&d->cache->shards[i].lru);
    }
    return 0;
}

static uint64_t hash_of(uint64_t cont, uint64_t ino, uint64_t index)
{
    uint64_t h = (cont * 0x9e3779b97f4a7c15ull ^ ino) * 0xff51afd7ed558ccdull;
    h = (h ^ h >> 32 ^ index) * 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 29;
}

static struct map_entry **find(struct map_shard *s, uint64_t h, uint64_t cont, uint64_t ino, uint64_t index)
{
    struct map_entry **p = &s->buckets[(h >> 8) % BUCKETS];

    while (*p && ((*p)->index != index || (*p)->ino != ino || (*p)->cont != cont))
        p = &(*p)->next;
    return p;
}

static void drop(struct map_shard *s, struct map_entry **p)
{
    struct map_entry *x = *p;

    *p = x->next;
    list_del(&x->lru);
    s->bytes -= sizeof *x + x->m->bytes;
    chunk_unref(x->m);
    free(x);
}

static void drop_oldest(struct map_shard *s)
{
    struct map_entry *x = list_entry(s->lru.prev, struct map_entry, lru);

    drop(s, find(s, hash_of(x->cont, x->ino, x->index), x->cont, x->ino, x->index));
}

void map_cache_close(struct data_state *d)
{
    for (uint32_t i = 0; d->cache && i < DATA_CACHE_SHARDS; i++) {
        while (!list_empty(&d->cache->shards[i].lru))
            drop_oldest(&d->cache->shards[i]);
        pthread_mutex_destroy(&d->cache->shards[i].lock);
    }
    free(d->cache);
    d->cache = NULL;
}

void map_put(struct engine *e, uint64_t cont, uint64_t ino, uint64_t change, uint64_t index, struct chunk_map *m)
{
    uint64_t h = hash_of(cont, ino, index);
    struct map_shard *s = &e->data->cache->shards[h % DATA_CACHE_SHARDS];
    struct map_entry *x = malloc(sizeof *x), **p;

    scoped_lock(&s->lock);
    p = find(s, h, cont, ino, index);
    if (*p && (*p)->change > change) {
        free(x); /* a slow reader: the present one is newer */
        return;
    }
    if (*p)
        drop(s, p);
    if (!x || !m || m->bytes > DATA_CACHE_BYTES / DATA_CACHE_SHARDS / 4) {
        free(x);
        return;
    }
    *x = (struct map_entry){.cont = cont, .ino = ino, .index = index, .change = change, .m = chunk_ref(m)};
    x->next = *p;
    *p = x;
    list_push_front(&s->lru, &x->lru);
    s->bytes += sizeof *x + m->bytes;
    while (s->bytes > DATA_CACHE_BYTES / DATA_CACHE_SHARDS)
        drop_oldest(s);
}

static struct chunk_map *cached(struct engine *e, uint64_t cont, const struct pst_attr *a, uint64_t index)
{
    uint64_t h = hash_of(cont, a->ino, index);
    struct map_shard *s = &e->data->cache->shards[h % DATA_CACHE_SHARDS];
    scoped_lock(&s->lock);
    struct map_entry *x = *find(s, h, cont, a->ino, index);

    if (!x || x->change != a->change)
        return NULL;
    if (s->lru.next != &x->lru) {
        list_del(&x->lru);
        list_push_front(&s->lru, &x->lru);
    }
    return chunk_ref(x->m);
}

/* The block after the last one. */
static uint64_t end_of(const struct chunk_map *m)
{
    return m->nexts ? (uint64_t)m->exts[m->nexts - 1].first + m->exts[m->nexts - 1].n : 0;
}

static int read_record(struct engine *e, uint64_t cont, const struct pst_attr *a, uint64_t index,
                       struct chunk_map **ret)
{
    struct key k = chunk_key(cont, a->ino, index);
    struct wbuf v = {0};
    struct chunk_map *m = NULL;
    int r = idx_get(e, NULL, &k, &v);

    if (r == 0) {
        r = chunk_decode(v.data, v.len, &m);
        if (r == 0 && (m->in_use > a->chunk_size || end_of(m) * PST_BLOCK > a->chunk_size))
            r = -EBADMSG;
        if (r == -EBADMSG) {
            log_error("container %llu, object %llu: the record of chunk %llu is damaged", (unsigned long long)cont,
                      (unsigned long long)a->ino, (unsigned long long)index);
            e->index_errors++;
            r = -EIO;
        }
    }
    wbuf_done(&v);
    if (r && r != -ENOENT) {
        chunk_unref(m);
        return r;
    }
    *ret = m;
    return 0;
}

int map_get(struct engine *e, uint64_t cont, const struct pst_attr *a, uint64_t index, bool fresh,
            struct chunk_map **ret)
{
    struct chunk_map *m = fresh ? NULL : cached(e, cont, a, index);
    int r = 0;

    if (m) {
        atomic_fetch_add_explicit(&e->data->cache_hits, 1, memory_order_relaxed);
        *ret = m;
        return 0;
    }
    atomic_fetch_add_explicit(&e->data->cache_misses, 1, memory_order_relaxed);
    r = read_record(e, cont, a, index, &m);
    if (r)
        return r;
    if (m)
        map_put(e, cont, a->ino, a->change, index, m);
    *ret = m;
    return 0;
}

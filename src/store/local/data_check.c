/* Offline check of the chunk records, and of the data itself when asked for. */
#include "data.h"

#include <errno.h>
#include <string.h>

struct checking {
    struct engine *e;
    struct check *c;
    uint8_t *buf; /* NULL: data is not read */
    uint64_t cont, ino, index;
    struct inode i; /* of the object that is looked at; chunk_size 0: there is none */
    uint64_t blocks;
};

static void check_bad(void *user, uint32_t first, uint32_t n)
{
    struct checking *k = user;

    check_problem(k->c, "container %llu, object %llu: %llu bytes at offset %llu are damaged",
                  (unsigned long long)k->cont, (unsigned long long)k->ino, (unsigned long long)n * PST_BLOCK,
                  (unsigned long long)(k->index * k->i.a.chunk_size + (uint64_t)first * PST_BLOCK));
}

/* The sum over the chunks of an object is in its inode. */
static void check_used(struct checking *k)
{
    if (k->ino && k->i.a.chunk_size && k->blocks * PST_BLOCK != k->i.a.used)
        check_problem(k->c, "container %llu, object %llu: its chunks have %llu bytes of space, its record says %llu",
                      (unsigned long long)k->cont, (unsigned long long)k->ino,
                      (unsigned long long)k->blocks * PST_BLOCK, (unsigned long long)k->i.a.used);
}

static bool is_garbage(struct engine *e, uint64_t cont, uint64_t ino)
{
    struct key k = key_begin(KEY_GARBAGE), g = key_begin(KEY_CONT_GC);
    struct wbuf v = {0};
    bool is;

    key_u64(&k, cont);
    key_u64(&k, ino);
    key_u64(&g, cont);
    is = !idx_get(e, NULL, &k, &v) || !idx_get(e, NULL, &g, &v);
    wbuf_done(&v);
    return is;
}

/* Called at the first chunk of each object. */
static void check_object(struct checking *k, uint64_t cont, uint64_t ino)
{
    check_used(k);
    k->cont = cont;
    k->ino = ino;
    k->blocks = 0;
    memset(&k->i, 0, sizeof k->i);
    if (!inode_get(k->e, cont, ino, &k->i)) {
        inode_done(&k->i);
        return;
    }
    k->i.a.chunk_size = 0;
    if (!is_garbage(k->e, cont, ino))
        check_problem(k->c, "container %llu: chunks of object %llu, which does not exist", (unsigned long long)cont,
                      (unsigned long long)ino);
}

static void check_record(struct checking *k, const uint8_t *v, size_t len)
{
    struct chunk_map *m = NULL;
    int r = chunk_decode(v, len, &m);

    if (!r && k->i.a.chunk_size && m->nexts &&
        ((uint64_t)m->exts[m->nexts - 1].first + m->exts[m->nexts - 1].n) * PST_BLOCK > k->i.a.chunk_size)
        r = -EBADMSG;
    if (r)
        check_problem(k->c, "container %llu, object %llu: the record of chunk %llu is damaged",
                      (unsigned long long)k->cont, (unsigned long long)k->ino, (unsigned long long)k->index);
    else if (k->buf && k->i.a.chunk_size)
        chunk_verify(k->e, m, k->buf, check_bad, k);
    k->blocks += r ? 0 : chunk_blocks(m);
    chunk_unref(m);
}

static int check_chunk(void *user, const uint8_t *key, size_t klen, const uint8_t *v, size_t vlen)
{
    struct checking *k = user;
    uint64_t cont, ino;

    if (chunk_key_parse(key, klen, &cont, &ino, &k->index)) {
        check_problem(k->c, "a chunk record has a malformed key");
        return 0;
    }
    if (cont != k->cont || ino != k->ino)
        check_object(k, cont, ino);
    check_record(k, v, vlen);
    return 0;
}

/* A file that has space by its record, but no chunk: check_chunk does not meet it. */
static int check_missing(void *user, const uint8_t *key, size_t klen, const uint8_t *v, size_t vlen)
{
    struct checking *k = user;
    struct rbuf b = rbuf_of(key, klen);
    struct inode i;
    uint64_t index, cont, ino;

    rbuf_u8(&b);
    cont = rbuf_be64(&b);
    ino = rbuf_be64(&b);
    if (rbuf_end(&b) || inode_decode(ino, v, vlen, &i))
        return 0; /* the namespace's check says so */
    if (i.a.used && scan_chunks(k->e, cont, ino, 0, &index, 1) == 0)
        check_problem(k->c, "container %llu, object %llu: all of its chunks are missing", (unsigned long long)cont,
                      (unsigned long long)ino);
    inode_done(&i);
    return 0;
}

int data_check(struct engine *e, struct check *c)
{
    struct checking k = {.e = e, .c = c};
    struct key chunks = key_begin(KEY_CHUNK), inodes = key_begin(KEY_INODE);
    int r;

    if (e->opt.check_data && posix_memalign((void **)&k.buf, PST_BLOCK, VERIFY_BYTES))
        return -ENOMEM;
    r = idx_each_whole(e, &chunks, check_chunk, &k);
    check_used(&k); /* of the last object */
    if (!r)
        r = idx_each_whole(e, &inodes, check_missing, &k);
    free(k.buf);
    return r;
}

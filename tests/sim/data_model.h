/* Files beside plain byte arrays that say what is in them, and random operations on both. */
#ifndef TESTS_DATA_MODEL_H
#define TESTS_DATA_MODEL_H

#include "data_fixture.h"
#include "../lib/seed.h"

#define OWN_MAX (2 * 1024 * 1024 + 700 * 1024) /* bytes of a thread's own file; chunks are 64 KiB or 1 MiB */

static uint64_t seed0;

static inline int rounds(int normal)
{
    return getenv("PENSTOCK_EXTENDED") ? normal * 50 : normal;
}

/* ---- a store with small or default chunks ---- */

static inline void open_model_store(struct eng_opts o, bool fresh, uint64_t chunk_size)
{
    struct pst_ctx ctx = {0};
    struct pst_pool_info pool = {.label = "p"};
    struct pst_cont_props props = {.mode = 0755, .chunk_size = chunk_size};
    struct pst_cont_info info;
    nx_e = fx_open_opts(o);
    if (fresh) {
        assert_int_equal(pst_pool_create(&nx_e->st, &ctx, &pool, &pool), 0);
        assert_int_equal(pst_cont_create(&nx_e->st, &ctx, "p", "c", &props, &info), 0);
    }
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", "c", &nx_c), 0);
    assert_int_equal(pst_queue_open(&nx_e->st, 8, &dx_q), 0);
}

static inline void close_model_store(void)
{
    pst_queue_close(dx_q);
    dx_q = NULL;
    nx_close();
}

/* ---- one file and what it should be ---- */

struct file {
    uint64_t ino, size;
    uint8_t *bytes; /* OWN_MAX, zero behind size */
};

static inline struct file file_new(const char *name)
{
    struct file f = {.ino = dx_file(name), .bytes = calloc(1, OWN_MAX)};
    assert_non_null(f.bytes);
    return f;
}

enum { DO_WRITE, DO_READ, DO_APPEND, DO_PUNCH, DO_ALLOCATE, DO_TRUNCATE, DO_REPLACE, DO_FSYNC, DO_KINDS };

/* A random place: mostly short, often at the edges of blocks and chunks. */
static inline void random_range(struct rng *r, uint64_t *ret_offset, uint64_t *ret_length)
{
    static const uint64_t longest[] = {10, 5000, 5000, 20000, 200000, OWN_MAX};
    uint64_t offset = rng_below(r, OWN_MAX - 1), length;
    if (rng_below(r, 3) == 0)
        offset = align_down(offset, rng_below(r, 2) ? PST_BLOCK : 64 * KiB);
    length = rng_below(r, longest[rng_below(r, ARRAY_SIZE(longest))]) + 1;
    if (rng_below(r, 3) == 0)
        length = align_up(length, PST_BLOCK);
    *ret_offset = offset;
    *ret_length = min_u64(length, OWN_MAX - offset);
}

static inline void model_write(struct file *f, uint64_t offset, const uint8_t *p, uint64_t n)
{
    memcpy(f->bytes + offset, p, n);
    f->size = max_u64(f->size, offset + n);
}

/* A whole chunk of the file, on the store and on the model. */
static inline void replace_chunk(struct pst_queue *q, struct file *f, uint64_t number, uint64_t seed, uint8_t *buf)
{
    uint64_t chunk = nx_c->info.props.chunk_size, offset = number * chunk, length = min_u64(chunk, OWN_MAX - offset);
    struct iovec v = {.iov_base = buf, .iov_len = length};
    struct pst_op op = {.kind = PST_OP_CHUNK_REPLACE,
                        .cont = nx_c,
                        .ino = f->ino,
                        .iov = &v,
                        .iovcnt = 1,
                        .offset = number,
                        .length = length,
                        .flags = PST_OPF_GROW,
                        .new_size = offset + length,
                        .version = PST_VERSION_ANY};

    dx_fill(buf, length, seed);
    assert_int_equal(pst_queue_run(q, &op), (int64_t)length);
    model_write(f, offset, buf, length);
}

/* One operation that is alone on its file: on the store if q is not NULL, and on the model. */
static inline void alone(struct pst_queue *q, struct file *f, struct rng *r, int kind, uint8_t *buf)
{
    uint64_t offset, length, size, seed = rng_u64(r);
    struct iovec v = {.iov_base = buf};
    struct pst_op op = {.cont = nx_c, .ino = f->ino, .iov = &v, .iovcnt = 1};
    struct pst_attr in;

    random_range(r, &offset, &length);
    switch (kind) {
    case DO_APPEND:
        length = min_u64(length, OWN_MAX - f->size);
        offset = f->size;
        op.flags = PST_OPF_APPEND;
        /* fall through */
    case DO_WRITE:
        dx_fill(buf, length, seed);
        op.kind = PST_OP_WRITE;
        op.offset = offset;
        op.length = v.iov_len = length;
        if (q)
            assert_int_equal(pst_queue_run(q, &op), (int64_t)length);
        if (length)
            model_write(f, offset, buf, length);
        break;
    case DO_PUNCH:
        op.kind = PST_OP_PUNCH;
        op.offset = offset;
        op.length = length;
        if (q)
            assert_int_equal(pst_queue_run(q, &op), 0);
        memset(f->bytes + offset, 0, length);
        break;
    case DO_ALLOCATE:
        op.kind = PST_OP_ALLOCATE;
        op.offset = offset;
        op.length = length;
        op.flags = seed % 2 ? PST_OPF_KEEP_SIZE : 0;
        if (q)
            assert_int_equal(pst_queue_run(q, &op), 0);
        if (!(op.flags & PST_OPF_KEEP_SIZE))
            f->size = max_u64(f->size, offset + length);
        break;
    case DO_TRUNCATE:
        size = seed % 3 ? offset : rng_below(r, f->size + 1);
        in = (struct pst_attr){.size = size};
        if (q)
            assert_int_equal(nx_set(NULL, f->ino, PST_SET_SIZE, &in), 0);
        if (size < f->size)
            memset(f->bytes + size, 0, f->size - size);
        f->size = size;
        break;
    case DO_REPLACE:
        if (q) /* not used where the model runs by itself */
            replace_chunk(q, f, offset / nx_c->info.props.chunk_size, seed, buf);
        break;
    case DO_FSYNC:
        op.kind = PST_OP_FSYNC;
        if (q)
            assert_int_equal(pst_queue_run(q, &op), 0);
        break;
    }
}

static inline bool file_is(const struct file *f, uint8_t *buf)
{
    for (uint64_t at = 0; at < f->size; at += MiB) {
        uint64_t n = min_u64(f->size - at, MiB);
        if (dx_read(f->ino, at, buf, MiB) != (int64_t)n || memcmp(buf, f->bytes + at, n))
            return false;
    }
    return nx_attr(f->ino).size == f->size;
}

#endif

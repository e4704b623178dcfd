/* For the tests of the data path: a queue on the namespace fixture's container, short names for the operations. */
#ifndef TESTS_DATA_FIXTURE_H
#define TESTS_DATA_FIXTURE_H

#include "ns_fixture.h"

#include "data.h"

static struct pst_queue *dx_q;

static inline int dx_setup(void **state)
{
    return nx_setup(state) || pst_queue_open(&nx_e->st, 8, &dx_q);
}

static inline int dx_teardown(void **state)
{
    pst_queue_close(dx_q);
    dx_q = NULL;
    return nx_teardown(state);
}

static inline void dx_reopen(void)
{
    pst_queue_close(dx_q);
    nx_reopen();
    assert_int_equal(pst_queue_open(&nx_e->st, 8, &dx_q), 0);
}

static inline uint64_t dx_file(const char *name)
{
    return nx_made(NULL, PST_ROOT_INO, name, S_IFREG | 0644);
}

static inline struct pst_op dx_op(enum pst_op_kind kind, uint64_t ino, uint64_t offset, uint64_t length)
{
    return (struct pst_op){.kind = kind, .cont = nx_c, .ino = ino, .offset = offset, .length = length};
}

static inline int64_t dx_io(enum pst_op_kind kind, uint64_t ino, uint64_t offset, void *p, size_t n, uint32_t flags,
                            struct pst_op *ret)
{
    struct iovec v = {.iov_base = p, .iov_len = n};
    struct pst_op op = dx_op(kind, ino, offset, n);
    int64_t r;
    op.iov = &v;
    op.iovcnt = 1;
    op.flags = flags;
    r = pst_queue_run(dx_q, &op);
    if (ret)
        *ret = op;
    return r;
}

static inline int64_t dx_write(uint64_t ino, uint64_t offset, const void *p, size_t n)
{
    return dx_io(PST_OP_WRITE, ino, offset, (void *)(uintptr_t)p, n, 0, NULL);
}

static inline int64_t dx_append(uint64_t ino, const void *p, size_t n, uint64_t *ret_offset)
{
    struct pst_op op;
    int64_t r = dx_io(PST_OP_WRITE, ino, 12345, (void *)(uintptr_t)p, n, PST_OPF_APPEND, &op);
    *ret_offset = op.offset;
    return r;
}

static inline int64_t dx_read(uint64_t ino, uint64_t offset, void *p, size_t n)
{
    return dx_io(PST_OP_READ, ino, offset, p, n, 0, NULL);
}

static inline int64_t dx_range(enum pst_op_kind kind, uint64_t ino, uint64_t offset, uint64_t n, uint32_t flags)
{
    struct pst_op op = dx_op(kind, ino, offset, n);
    op.flags = flags;
    return pst_queue_run(dx_q, &op);
}

static inline int dx_truncate(uint64_t ino, uint64_t size)
{
    struct pst_attr in = {.size = size};
    return nx_set(NULL, ino, PST_SET_SIZE, &in);
}

/* The file has n bytes, and these. */
static inline void dx_expect(uint64_t ino, const uint8_t *p, size_t n)
{
    uint8_t *got = malloc(n + 100);
    int64_t r = dx_read(ino, 0, got, n + 100);
    if (r != (int64_t)n)
        fail_msg("read %zu bytes: %lld", n, (long long)r);
    for (size_t i = 0; i < n; i++)
        if (got[i] != p[i])
            fail_msg("byte %zu of %zu: 0x%02x, not 0x%02x", i, n, got[i], p[i]);
    free(got);
}

/* Bytes that depend on seed and place. */
static inline void dx_fill(uint8_t *p, size_t n, uint64_t seed)
{
    struct rng r;
    rng_seed(&r, seed);
    rng_fill(&r, p, n);
}

static inline uint64_t dx_free_space(void)
{
    uint64_t space_free, total;
    alloc_space(nx_e, &space_free, &total);
    return space_free;
}

static inline int dx_mark(void *user, uint64_t block, uint32_t n)
{
    struct bitmap *b = user;
    if (!bitmap_range_clear(b, block, n))
        fail_msg("block %llu+%u belongs to two chunks", (unsigned long long)block, n);
    bitmap_set(b, block, n);
    return 0;
}

/*
 * Space is exact: the blocks that chunk records name, no block twice, are those of the inodes' sums and of the usage,
 * and the store's free space is the rest, less the swap reserve. Nothing may be under way.
 */
static inline void dx_check_space(void)
{
    struct key prefix = key_begin(KEY_CHUNK), inodes = key_begin(KEY_INODE);
    struct idx_iter *it;
    struct bitmap b;
    struct pst_cont_info info;
    struct pst_ctx ctx = as(NULL);
    uint64_t space_free, total, used = 0;
    size_t len;
    nx_collect();
    alloc_space(nx_e, &space_free, &total);
    assert_int_equal(bitmap_init(&b, total / PST_BLOCK), 0);
    it = idx_iter_new(nx_e, NULL, &prefix, NULL);
    while (idx_iter_next(it) == 1) {
        const uint8_t *v = idx_iter_value(it, &len);
        assert_int_equal(chunk_for_each_extent(v, len, dx_mark, &b), 0);
    }
    idx_iter_free(it);
    it = idx_iter_new(nx_e, NULL, &inodes, NULL);
    while (idx_iter_next(it) == 1) {
        const uint8_t *k = idx_iter_key(it, &len);
        struct rbuf r = rbuf_of(k + 9, 8);
        const uint8_t *v = idx_iter_value(it, &len);
        struct inode i;
        assert_int_equal(inode_decode(rbuf_be64(&r), v, len, &i), 0);
        used += i.a.used;
        inode_done(&i);
    }
    idx_iter_free(it);
    assert_int_equal(bitmap_count(&b) * PST_BLOCK, used);
    assert_int_equal(pst_cont_query(&nx_e->st, &ctx, "p", "c", &info), 0);
    assert_int_equal(info.used_bytes, used);
    assert_int_equal(space_free, total - used - nx_e->data->swap.n * (uint64_t)PST_BLOCK);
    bitmap_done(&b);
}

#endif

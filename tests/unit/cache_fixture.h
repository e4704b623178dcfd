/*
 * For the tests of the cache: instances over one store in memory, whose operations can be held back, failed and
 * counted.
 */
#ifndef TESTS_CACHE_FIXTURE_H
#define TESTS_CACHE_FIXTURE_H

#include "cache.h"
#include "memstore.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define B   ((uint64_t)FILTER_CACHE_BLOCK)
#define BIT(kind) (1u << (kind))

static struct pst_store *cx_base;
static struct memstore *cx_mem;
static const struct pst_ctx cx_ctx;
static uint64_t cx_history; /* of the store below, as the instances see it */

/* One instance: a cache over the common store. */
struct cx {
    struct filter share;
    struct pst_store *top;
    struct pst_cont *c;
    struct pst_queue *q;
};

static void cx_share_close(struct pst_store *st)
{
    (void)st;
}

static uint64_t cx_history_of(struct pst_store *st)
{
    (void)st;
    return cx_history;
}

static inline int cx_setup(void **state)
{
    (void)state;
    cx_history = 1;
    if (memstore_backend.open("", NULL, 0, &cx_base, NULL, 0))
        return -1;
    cx_mem = memstore_of(cx_base);
    return 0;
}

static inline int cx_teardown(void **state)
{
    (void)state;
    pst_store_close(cx_base);
    return 0;
}

#define CX_TEST(name) cmocka_unit_test_setup_teardown(name, cx_setup, cx_teardown)

/* What is known grows old by that, and not otherwise: a test's time is no matter. */
static inline void cx_age(struct cx *x, uint64_t ns)
{
    cache_of(x->top)->age_ns = ns;
}

static inline void cx_open(struct cx *x, uint64_t bytes, uint64_t ahead)
{
    memset(x, 0, sizeof *x);
    filter_init(&x->share, "share", cx_base);
    x->share.ops.close = cx_share_close;
    x->share.ops.history = cx_history_of;
    assert_int_equal(filter_cache(&x->share.st, bytes, ahead, &x->top), 0);
    cx_age(x, UINT64_MAX);
    assert_int_equal(pst_cont_open(x->top, &cx_ctx, "p", "c", &x->c), 0);
    assert_int_equal(pst_queue_open(x->top, 64, &x->q), 0);
}

static inline void cx_close(struct cx *x)
{
    pst_queue_close(x->q);
    pst_cont_close(x->c);
    pst_store_close(x->top);
}

static inline uint64_t cx_done(enum pst_op_kind kind)
{
    struct memstore_counts n;

    memstore_counts(cx_mem, &n);
    return n.ops[kind];
}

static inline struct cache_counts cx_counts(const struct cx *x)
{
    return cache_of(x->top)->n;
}

/* Byte `at` of a file's state. */
static inline uint8_t cx_byte(uint32_t version, uint64_t at)
{
    return (uint8_t)(at * 167 + (at >> 8) * 13 + version * 59 + 1);
}

static inline void cx_fill(uint8_t *p, uint64_t n, uint32_t version, uint64_t at)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = cx_byte(version, at + i);
}

/* A new file of that state, open in x. */
static inline uint64_t cx_make(struct cx *x, const char *name, uint64_t size)
{
    const struct pst_new n = {.mode = S_IFREG | 0600};
    struct pst_attr a;
    cleanup_free uint8_t *p = malloc(size + 1);
    struct iovec v;

    assert_int_equal(pst_store_create(x->c, &cx_ctx, PST_ROOT_INO, name, &n, R_OK | W_OK, false, &a, NULL), 0);
    cx_fill(p, size, 0, 0);
    for (uint64_t at = 0; at < size; at += v.iov_len) {
        struct pst_op op = {.kind = PST_OP_WRITE, .cont = x->c, .ino = a.ino, .offset = at, .iov = &v, .iovcnt = 1};
        v = (struct iovec){p + at, min_u64(size - at, MiB)};
        op.length = v.iov_len;
        assert_int_equal(pst_queue_run(x->q, &op), v.iov_len);
    }
    return a.ino;
}

static inline void cx_reopen(struct cx *x, uint64_t ino)
{
    struct pst_attr a;

    assert_int_equal(pst_store_open(x->c, &cx_ctx, ino, R_OK | W_OK, false, &a), 0);
}

static inline int64_t cx_io(struct cx *x, enum pst_op_kind kind, uint64_t ino, uint64_t at, void *p, uint64_t n)
{
    struct iovec v = {p, n};
    struct pst_op op = {.kind = kind, .cont = x->c, .ino = ino, .offset = at, .length = n, .iov = &v, .iovcnt = 1};

    return pst_queue_run(x->q, &op);
}

/* Reads and compares with that state; returns how much there was. */
static inline int64_t cx_check(struct cx *x, uint64_t ino, uint64_t at, uint64_t n, uint32_t version)
{
    cleanup_free uint8_t *p = malloc(n + 1);
    int64_t got = cx_io(x, PST_OP_READ, ino, at, p, n);

    for (int64_t i = 0; i < got; i++)
        if (p[i] != cx_byte(version, at + (uint64_t)i))
            fail_msg("byte %llu of object %llu is not of state %u", (unsigned long long)(at + (uint64_t)i),
                     (unsigned long long)ino, version);
    return got;
}

static inline void cx_write(struct cx *x, uint64_t ino, uint64_t at, uint64_t n, uint32_t version)
{
    cleanup_free uint8_t *p = malloc(n);

    cx_fill(p, n, version, at);
    assert_int_equal(cx_io(x, PST_OP_WRITE, ino, at, p, n), n);
}

/* An operation that is under way. */
struct cx_op {
    struct pst_op op;
    struct iovec v;
    uint8_t *p;
};

static inline void cx_begin(struct cx *x, struct pst_queue *q, struct cx_op *o, uint64_t ino, uint64_t at, uint64_t n)
{
    o->p = calloc(1, n);
    o->v = (struct iovec){o->p, n};
    o->op = (struct pst_op){
        .kind = PST_OP_READ, .cont = x->c, .ino = ino, .offset = at, .length = n, .iov = &o->v, .iovcnt = 1};
    list_init(&o->op.link);
    assert_int_equal(pst_queue_submit(q, &o->op), 0);
}

static inline void cx_end(struct pst_queue *q, struct cx_op *o, int64_t result, uint32_t version)
{
    struct pst_op *back = NULL;

    while (!back)
        assert_true(pst_queue_reap(q, &back, 1, UINT64_MAX) >= 0);
    assert_ptr_equal(back, &o->op);
    assert_int_equal(o->op.result, result);
    assert_ptr_equal(o->op.cont->store, q->store);
    for (int64_t i = 0; i < result; i++)
        assert_int_equal(o->p[i], cx_byte(version, o->op.offset + (uint64_t)i));
    free(o->p);
}

/* Moves what can move; nothing comes up. */
static inline void cx_turn(struct pst_queue *q)
{
    struct pst_op *back;

    for (int i = 0; i < 4; i++)
        assert_int_equal(pst_queue_reap(q, &back, 1, 0), 0);
}

#endif

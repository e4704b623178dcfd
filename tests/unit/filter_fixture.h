/* For the tests of the chunk filters: instances of a stack of filters, all over one local store. */
#ifndef TESTS_FILTER_FIXTURE_H
#define TESTS_FILTER_FIXTURE_H

#include "filter/filter.h"
#include "local/local_store.h"

#include "base/log.h"
#include "base/rng.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define FF_CHUNK 65536u
#define FF_KEY   "key_env=PST_TEST_KEY"

static char ff_dir[64];
static struct pst_store *ff_base;
static const struct pst_ctx ff_ctx;

/* One instance: filters over the common store. */
struct inst {
    struct filter share; /* passes on to the common store, and leaves it open */
    struct pst_store *top;
    struct pst_cont *c;
    struct pst_queue *q;
};

static void ff_share_close(struct pst_store *st)
{
    (void)st;
}

static inline void ff_quiet(enum log_level level, const char *line, void *user)
{
    (void)level, (void)line, (void)user;
}

static inline int ff_setup(void **state)
{
    struct pst_option opts[] = {{"create", "1"}, {"size", "268435456"}};
    struct pst_pool_info pool = {.label = "p", .mode = 0777}, pi;
    struct pst_cont_props props = {.chunk_size = FF_CHUNK, .mode = 0777};
    struct pst_cont_info ci;
    char url[80], err[256];
    (void)state;

    if (!getenv("PENSTOCK_LOG"))
        log_set_sink(ff_quiet, NULL);
    setenv("PST_TEST_KEY", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", 1);
    setenv("PST_TEST_KEY2", "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", 1);
    snprintf(ff_dir, sizeof ff_dir, "%s/pst-filter-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(ff_dir))
        return -1;
    snprintf(url, sizeof url, "%s", ff_dir);
    return pst_local_backend.open(url, opts, 2, &ff_base, err, sizeof err) ||
           pst_pool_create(ff_base, &ff_ctx, &pool, &pi) || pst_cont_create(ff_base, &ff_ctx, "p", "c", &props, &ci);
}

static inline int ff_teardown(void **state)
{
    char cmd[100];
    (void)state;

    pst_store_close(ff_base);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", ff_dir);
    return system(cmd);
}

/* specs: filters separated by spaces, the lowest first. What opening the container says. */
static inline int ff_try(struct inst *x, const char *specs)
{
    char copy[300], err[256] = "", *save = NULL;

    memset(x, 0, sizeof *x);
    filter_init(&x->share, "share", ff_base);
    x->share.ops.close = ff_share_close;
    x->top = &x->share.st;
    snprintf(copy, sizeof copy, "%s", specs);
    for (char *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
        int r = filter_push(s, x->top, &x->top, err, sizeof err);
        if (r) {
            print_message("%s\n", err);
            pst_store_close(x->top);
            return r;
        }
    }
    return pst_cont_open(x->top, &ff_ctx, "p", "c", &x->c);
}

static inline void ff_open(struct inst *x, const char *specs)
{
    assert_int_equal(ff_try(x, specs), 0);
    assert_int_equal(pst_queue_open(x->top, 16, &x->q), 0);
}

static inline void ff_close(struct inst *x)
{
    pst_queue_close(x->q);
    if (x->c)
        pst_cont_close(x->c);
    pst_store_close(x->top);
}

static inline uint64_t ff_file(struct inst *x, const char *name)
{
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_attr a;

    assert_int_equal(pst_store_make(x->c, &ff_ctx, PST_ROOT_INO, name, &in, &a, NULL), 0);
    return a.ino;
}

static inline int64_t ff_op(struct inst *x, struct pst_queue *q, struct pst_op *op, void *p)
{
    struct iovec v = {p, op->length};

    op->cont = x->c;
    if (p) {
        op->iov = &v;
        op->iovcnt = 1;
    }
    return pst_queue_run(q ? q : x->q, op);
}

static inline int64_t ff_write(struct inst *x, uint64_t ino, uint64_t offset, const void *p, size_t n)
{
    struct pst_op op = {.kind = PST_OP_WRITE, .ino = ino, .offset = offset, .length = n};
    return ff_op(x, NULL, &op, (void *)(uintptr_t)p);
}

static inline int64_t ff_read(struct inst *x, uint64_t ino, uint64_t offset, void *p, size_t n)
{
    struct pst_op op = {.kind = PST_OP_READ, .ino = ino, .offset = offset, .length = n};
    return ff_op(x, NULL, &op, p);
}

static inline int64_t ff_range(struct inst *x, enum pst_op_kind kind, uint64_t ino, uint64_t offset, uint64_t n)
{
    struct pst_op op = {.kind = kind, .ino = ino, .offset = offset, .length = n};
    return ff_op(x, NULL, &op, NULL);
}

static inline int ff_truncate(struct inst *x, uint64_t ino, uint64_t size)
{
    struct pst_attr a = {.size = size}, out;
    return pst_store_setattr(x->c, &ff_ctx, ino, PST_SET_SIZE, &a, &out);
}

static inline struct pst_attr ff_attr(struct inst *x, uint64_t ino)
{
    struct pst_attr a;
    assert_int_equal(pst_store_getattr(x->c, &ff_ctx, ino, &a), 0);
    return a;
}

struct ff_want {
    const char *name, *labels;
    double value;
};

static inline void ff_one_stat(void *user, const char *name, const char *labels, const char *help, bool counter,
                               double value)
{
    struct ff_want *w = user;
    (void)help, (void)counter;
    if (!strcmp(name, w->name) && !strcmp(labels, w->labels))
        w->value = value;
}

static inline double ff_stat(struct inst *x, const char *name, const char *labels)
{
    struct ff_want w = {name, labels, -1};
    pst_store_stats(x->top, ff_one_stat, &w);
    return w.value;
}

static inline double ff_refused(struct inst *x, const char *reason)
{
    char l[64];
    snprintf(l, sizeof l, "reason=\"%s\"", reason);
    return ff_stat(x, "filter_refused_total", l);
}

static inline uint64_t ff_seed(void)
{
    const char *env = getenv("PENSTOCK_SEED");
    uint64_t seed = env ? strtoull(env, NULL, 0) : (uint64_t)wall_ns();

    print_message("PENSTOCK_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

#endif

/*
 * For the tests of the chunk filters: instances of a stack of filters, all over one local store; with FF_REMOTE each
 * over a session of its own with one daemon (as agents are), and a new container for each test.
 */
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

static char ff_dir[64], ff_label[20] = "c";
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

#ifdef FF_REMOTE
#include "daemon.h"
#include "remote/remote_store.h"
static struct daemon ff_daemon;

static inline int ff_open_base(struct pst_store **ret, char *err, size_t err_size)
{
    char url[80];

    snprintf(url, sizeof url, "penstock://127.0.0.1:%d", ff_daemon.port);
    return pst_backend_open(url, NULL, 0, ret, err, err_size);
}

static inline int ff_main_begin(const char *program)
{
    /* recent=0: when it is killed it loses what is not durable, as a machine does */
    static const char *const args[] = {"--store-option", "recent=0", NULL};

    pst_backend_register(&pst_remote_backend);
    return daemon_start(&ff_daemon, program, args) ? 0 : -1;
}

static inline void ff_main_end(void)
{
    daemon_done(&ff_daemon);
}
#else
static inline int ff_open_base(struct pst_store **ret, char *err, size_t err_size)
{
    struct pst_option opts[] = {{"create", "1"}, {"size", "268435456"}};

    snprintf(ff_dir, sizeof ff_dir, "%s/pst-filter-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    return mkdtemp(ff_dir) ? pst_local_backend.open(ff_dir, opts, 2, ret, err, err_size) : -1;
}

static inline int ff_main_begin(const char *program)
{
    (void)program;
    return 0;
}

static inline void ff_main_end(void)
{
}
#endif

static inline int ff_setup(void **state)
{
    struct pst_pool_info pool = {.label = "p", .mode = 0777}, pi;
    struct pst_cont_props props = {.chunk_size = FF_CHUNK, .mode = 0777};
    struct pst_cont_info ci;
    char err[256] = "";
    static int made;
    int r;
    (void)state;

    if (!getenv("PENSTOCK_LOG"))
        log_set_sink(ff_quiet, NULL);
    setenv("PST_TEST_KEY", "7d1f3c9ab4e2085561c7f0d99a3e5b2248d6017ce3f98a40b51d6e27c0943fa8", 1);
    setenv("PST_TEST_KEY2", "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", 1);
    snprintf(ff_label, sizeof ff_label, "c%d", made++);
    r = ff_open_base(&ff_base, err, sizeof err);
    if (!r)
        r = pst_pool_create(ff_base, &ff_ctx, &pool, &pi);
    if (!r || r == -EEXIST)
        r = pst_cont_create(ff_base, &ff_ctx, "p", ff_label, &props, &ci);
    if (r)
        print_message("set-up: %d %s\n", r, err);
    return r;
}

static inline int ff_teardown(void **state)
{
    char cmd[100];
    (void)state;

    pst_store_close(ff_base);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", ff_dir);
    return ff_dir[0] ? system(cmd) : 0;
}

/* specs: filters separated by spaces, the lowest first. What opening the container says. */
static inline int ff_try(struct inst *x, const char *specs)
{
    char copy[300], err[256] = "", *save = NULL;

    memset(x, 0, sizeof *x);
    filter_init(&x->share, "share", ff_base);
    x->share.ops.close = ff_share_close;
    x->top = &x->share.st;
#ifdef FF_REMOTE
    assert_int_equal(ff_open_base(&x->top, err, sizeof err), 0);
#endif
    snprintf(copy, sizeof copy, "%s", specs);
    for (char *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
        int r = filter_push(s, x->top, &x->top, err, sizeof err);
        if (r) {
            print_message("%s\n", err);
            pst_store_close(x->top);
            return r;
        }
    }
    return pst_cont_open(x->top, &ff_ctx, "p", ff_label, &x->c);
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

/* Some stores want an object to be open for operations on its bytes. */
static inline void ff_hold(struct inst *x, uint64_t ino)
{
    struct pst_attr a;

    assert_int_equal(pst_store_open(x->c, &ff_ctx, ino, R_OK | W_OK, false, &a), 0);
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

static inline void ff_random(uint8_t *p, size_t n, uint64_t seed)
{
    struct rng r;

    rng_seed(&r, seed);
    rng_fill(&r, p, n);
}

#endif

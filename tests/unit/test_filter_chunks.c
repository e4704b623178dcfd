/* The chunk filter over the local engine, against a plain file in memory: one instance, and several over one store. */
#include "filter_fixture.h"
#include "../lib/seed.h"

#include <pthread.h>

#define FILE_BYTES (5 * FF_CHUNK + 1000)
/* Over the network each operation takes its time: a part of them is done there. */
#ifdef FF_REMOTE
#define SHARE 5
#else
#define SHARE 1
#endif

static const char *const stacks[] = {
    "csum", "compress", "compress:alg=zstd,level=3 csum", "crypt:" FF_KEY, "csum compress:alg=zstd crypt:" FF_KEY,
};

/* ---- random operations against a model ---- */

struct model {
    uint8_t data[FILE_BYTES];
    uint64_t size;
};

static uint8_t bytes[FILE_BYTES], got[FILE_BYTES];

/* Some runs that become shorter, some that do not. */
static void random_bytes(struct rng *r, size_t n)
{
    if (rng_below(r, 2))
        rng_fill(r, bytes, n);
    else
        memset(bytes, (int)rng_below(r, 256), n);
}

static uint64_t random_place(struct rng *r)
{
    uint64_t edge = rng_below(r, 6) * FF_CHUNK;

    return rng_below(r, 3) ? rng_below(r, FILE_BYTES) : edge + rng_below(r, 3) - (edge ? 1 : 0);
}

static void model_size(struct model *m, uint64_t size)
{
    if (size < m->size)
        memset(m->data + size, 0, m->size - size);
    m->size = size;
}

static void check_file(struct inst *x, uint64_t ino, const struct model *m)
{
    assert_int_equal(ff_attr(x, ino).size, m->size);
    assert_int_equal(ff_read(x, ino, 0, got, sizeof got), m->size);
    assert_memory_equal(got, m->data, m->size);
}

static void one_step(struct inst *x, struct pst_queue *q, uint64_t ino, struct model *m, struct rng *r)
{
    uint64_t at = random_place(r), n;
    struct pst_op op = {.ino = ino};

    at = at < FILE_BYTES ? at : FILE_BYTES - 1;
    n = rng_below(r, 4) ? rng_below(r, min_u64(FILE_BYTES - at, 9000)) + 1 : rng_below(r, FILE_BYTES - at) + 1;
    switch (rng_below(r, 12)) {
    case 0 ... 3:
        random_bytes(r, n);
        op.kind = PST_OP_WRITE;
        op.offset = at;
        op.length = n;
        assert_int_equal(ff_op(x, q, &op, bytes), n);
        memcpy(m->data + at, bytes, n);
        m->size = max_u64(m->size, at + n);
        assert_int_equal(op.attr.size, m->size);
        break;
    case 4:
        n = min_u64(n, FILE_BYTES - m->size);
        if (!n)
            break;
        random_bytes(r, n);
        op.kind = PST_OP_WRITE;
        op.flags = PST_OPF_APPEND | (rng_below(r, 4) ? 0 : PST_OPF_DSYNC);
        op.length = n;
        assert_int_equal(ff_op(x, q, &op, bytes), n);
        assert_int_equal(op.offset, m->size);
        memcpy(m->data + m->size, bytes, n);
        m->size += n;
        break;
    case 5:
        assert_int_equal(ff_truncate(x, ino, at), 0);
        model_size(m, at);
        break;
    case 6:
        op.kind = PST_OP_PUNCH;
        op.offset = at;
        op.length = n;
        assert_int_equal(ff_op(x, q, &op, NULL), 0);
        if (at < m->size)
            memset(m->data + at, 0, min_u64(n, m->size - at));
        break;
    case 7:
        op.kind = PST_OP_ALLOCATE;
        op.flags = rng_below(r, 2) ? PST_OPF_KEEP_SIZE : 0;
        op.offset = at;
        op.length = n;
        assert_int_equal(ff_op(x, q, &op, NULL), 0);
        if (!op.flags)
            m->size = max_u64(m->size, at + n);
        break;
    default:
        op.kind = PST_OP_READ;
        op.offset = at;
        op.length = n;
        memset(got, 0xee, n);
        n = at < m->size ? min_u64(n, m->size - at) : 0;
        assert_int_equal(ff_op(x, q, &op, got), n);
        assert_memory_equal(got, m->data + at, n);
    }
}

/* Data and holes as seek tells them: what it calls a hole is zero, and the two agree. */
static void check_holes(struct inst *x, uint64_t ino, const struct model *m)
{
    for (uint64_t at = 0; at < m->size;) {
        int64_t data = ff_range(x, PST_OP_SEEK_DATA, ino, at, 0), hole;
        uint64_t end = data == -ENXIO ? m->size : (uint64_t)data;
        for (uint64_t i = at; i < end; i++)
            assert_int_equal(m->data[i], 0);
        if (data == -ENXIO)
            break;
        hole = ff_range(x, PST_OP_SEEK_HOLE, ino, end, 0);
        assert_true(hole > data && (uint64_t)hole <= m->size);
        at = (uint64_t)hole;
    }
    assert_int_equal(ff_range(x, PST_OP_SEEK_DATA, ino, m->size, 0), -ENXIO);
}

static void a_file_is_what_a_plain_file_is(void **state)
{
    int rounds = getenv("PENSTOCK_EXTENDED") ? 20000 : 400 / SHARE;
    static struct model m;
    struct rng r;
    (void)state;

    rng_seed(&r, seed_new());
    for (size_t s = 0; s < ARRAY_SIZE(stacks); s++) {
        struct pst_queue *q2[2];
        struct inst x[2];
        uint64_t ino;
        char name[20];
        void *st = NULL;
        if (s) { /* each stack on a store of its own: an encrypted container wants its key */
            ff_teardown(&st);
            ff_setup(&st);
        }
        for (int i = 0; i < 2; i++) {
            ff_open(&x[i], stacks[s]);
            assert_int_equal(pst_queue_open(x[i].top, 4, &q2[i]), 0);
        }
        snprintf(name, sizeof name, "f%zu", s);
        ino = ff_file(&x[0], name);
        for (int i = 0; i < 2; i++)
            ff_hold(&x[i], ino);
        memset(&m, 0, sizeof m);
        for (int k = 0; k < rounds; k++) {
            int i = (int)rng_below(&r, 2);
            one_step(&x[i], rng_below(&r, 2) ? x[i].q : q2[i], ino, &m, &r);
            if (k % 50 == 0)
                check_file(&x[!i], ino, &m);
        }
        check_file(&x[0], ino, &m);
        check_holes(&x[1], ino, &m);
        for (int i = 0; i < 2; i++) {
            pst_queue_close(q2[i]);
            pst_store_release(x[i].c, ino);
            ff_close(&x[i]);
        }
    }
}

/* ---- at the same time ---- */

#define THREADS 4
#define STRIPE  1000u
#define STRIPES 320 /* a bit less than five chunks */

struct worker {
    pthread_t thread;
    struct inst *x;
    struct pst_queue *q;
    uint64_t ino, seed;
    int id;
    int64_t err;
};

static void stripe(uint8_t *p, int s, int round)
{
    struct rng r;

    rng_seed(&r, (uint64_t)(s * 100 + round));
    rng_fill(&r, p, STRIPE);
}

/* Writes its stripes, eight at a time, in several rounds. */
static void *write_stripes(void *arg)
{
    struct worker *w = arg;
    struct pst_op op[8];
    struct iovec v[8];
    static __thread uint8_t data[8][STRIPE];

    for (int round = 0; round < 3; round++)
        for (int s = w->id; s < STRIPES; s += 8 * THREADS) {
            int n = 0, back = 0;
            for (int k = s; k < STRIPES && n < 8; k += THREADS, n++) {
                stripe(data[n], k, round);
                v[n] = (struct iovec){data[n], STRIPE};
                op[n] = (struct pst_op){.kind = PST_OP_WRITE,
                                        .cont = w->x->c,
                                        .ino = w->ino,
                                        .iov = &v[n],
                                        .iovcnt = 1,
                                        .offset = (uint64_t)k * STRIPE,
                                        .length = STRIPE};
                w->err |= pst_queue_submit(w->q, &op[n]);
            }
            while (back < n) {
                struct pst_op *done[8];
                int got_n = pst_queue_reap(w->q, done, 8, UINT64_MAX);
                for (int i = 0; i < got_n; i++)
                    if (done[i]->result != STRIPE)
                        w->err = done[i]->result;
                back += got_n;
            }
        }
    return NULL;
}

static void with_workers(struct inst x[2], uint64_t ino, void *(*fn)(void *), struct worker w[THREADS])
{
    ff_hold(&x[0], ino);
    ff_hold(&x[1], ino);
    for (int i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.x = &x[i % 2], .ino = ino, .id = i, .seed = (uint64_t)i};
        assert_int_equal(pst_queue_open(x[i % 2].top, 16, &w[i].q), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&w[i].thread, NULL, fn, &w[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        pst_queue_close(w[i].q);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(w[i].err, 0);
}

static void writers_through_two_instances_lose_nothing_of_each_other(void **state)
{
    struct worker w[THREADS];
    struct inst x[2];
    uint8_t want[STRIPE];
    uint64_t ino;
    (void)state;

    for (int i = 0; i < 2; i++)
        ff_open(&x[i], "compress crypt:" FF_KEY);
    ino = ff_file(&x[0], "f");
    with_workers(x, ino, write_stripes, w);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ff_read(&x[i], ino, 0, got, sizeof got), STRIPES * STRIPE);
        for (int s = 0; s < STRIPES; s++) {
            stripe(want, s, 2);
            assert_memory_equal(got + s * STRIPE, want, STRIPE);
        }
    }
    print_message("done again: %g\n",
                  ff_stat(&x[0], "filter_again_total", "") + ff_stat(&x[1], "filter_again_total", ""));
    for (int i = 0; i < 2; i++) {
        pst_store_release(x[i].c, ino);
        ff_close(&x[i]);
    }
}

#define RECORDS 25

static uint32_t record_len(int id, int k)
{
    return (uint32_t)(8 + (id * 7919 + k * 104729) % 9000 + (k == 7 ? 70000 : 0));
}

static void *append_records(void *arg)
{
    struct worker *w = arg;
    uint8_t *p = malloc(100000);

    for (int k = 0; k < RECORDS; k++) {
        uint32_t n = record_len(w->id, k);
        struct pst_op op = {.kind = PST_OP_WRITE, .flags = PST_OPF_APPEND, .ino = w->ino, .length = n};
        memset(p, w->id * RECORDS + k, n);
        memcpy(p, &n, 4);
        if (ff_op(w->x, w->q, &op, p) != n)
            w->err = op.result;
    }
    free(p);
    return NULL;
}

static void appends_through_two_instances_follow_one_another(void **state)
{
    struct worker w[THREADS];
    bool seen[THREADS * RECORDS] = {0};
    struct inst x[2];
    uint64_t ino, size, at;
    uint8_t *all;
    (void)state;

    for (int i = 0; i < 2; i++)
        ff_open(&x[i], "csum crypt:" FF_KEY);
    ino = ff_file(&x[0], "f");
    with_workers(x, ino, append_records, w);
    size = ff_attr(&x[0], ino).size;
    all = malloc(size);
    assert_int_equal(ff_read(&x[1], ino, 0, all, size), size);
    for (at = 0; at < size;) {
        uint32_t n;
        int which = all[at + 4];
        memcpy(&n, all + at, 4);
        assert_true(which < THREADS * RECORDS && !seen[which]);
        assert_int_equal(n, record_len(which / RECORDS, which % RECORDS));
        for (uint32_t i = 4; i < n; i++)
            assert_int_equal(all[at + i], which);
        seen[which] = true;
        at += n;
    }
    assert_int_equal(at, size);
    for (size_t i = 0; i < ARRAY_SIZE(seen); i++)
        assert_true(seen[i]);
    free(all);
    for (int i = 0; i < 2; i++) {
        pst_store_release(x[i].c, ino);
        ff_close(&x[i]);
    }
}

/* Bytes are 0 or their place's: whatever the order was, nothing else may ever be read, and nothing fails. */
static void *churn(void *arg)
{
    struct worker *w = arg;
    uint8_t *p = malloc(FILE_BYTES);
    struct rng r;

    rng_seed(&r, w->seed);
    for (int k = 0; k < 150 / SHARE && !w->err; k++) {
        uint64_t at = random_place(&r) % (FILE_BYTES - 1), n = 1 + rng_below(&r, min_u64(FILE_BYTES - at, 80000));
        struct pst_op op = {.kind = PST_OP_READ, .ino = w->ino, .offset = at, .length = n};
        int64_t got_n;
        switch (rng_below(&r, 5)) {
        case 0:
            w->err = ff_truncate(w->x, w->ino, at);
            break;
        case 1:
            op.kind = PST_OP_PUNCH;
            w->err = ff_op(w->x, w->q, &op, NULL);
            break;
        case 2:
        case 3:
            for (uint64_t i = 0; i < n; i++)
                p[i] = (uint8_t)((at + i) * 131 >> 3 | 1);
            op.kind = PST_OP_WRITE;
            got_n = ff_op(w->x, w->q, &op, p);
            w->err = got_n == (int64_t)n ? 0 : got_n ? got_n : -1;
            break;
        default:
            got_n = ff_op(w->x, w->q, &op, p);
            w->err = got_n < 0 ? got_n : 0;
            for (int64_t i = 0; i < got_n; i++)
                if (p[i] && p[i] != (uint8_t)((at + (uint64_t)i) * 131 >> 3 | 1))
                    w->err = -EBADMSG;
        }
    }
    free(p);
    return NULL;
}

static void cuts_holes_writes_and_reads_at_the_same_time_are_each_whole(void **state)
{
    struct worker w[THREADS];
    struct inst x[2];
    uint64_t ino;
    (void)state;

    for (int i = 0; i < 2; i++)
        ff_open(&x[i], "compress:alg=zstd crypt:" FF_KEY);
    ino = ff_file(&x[0], "f");
    with_workers(x, ino, churn, w);
    for (int i = 0; i < 2; i++) {
        pst_store_release(x[i].c, ino);
        assert_int_equal(ff_refused(&x[i], "rollback"), 0);
        ff_close(&x[i]);
    }
}

/* A file much larger than the memory of the filter, and more operations than it has slots. */
static void memory_is_bounded(void **state)
{
    static uint8_t data[16][200000];
    struct pst_op op[16], *done[16];
    struct iovec v[16];
    struct inst x;
    uint64_t ino;
    (void)state;

    ff_open(&x, "csum:memory_mb=1");
    ino = ff_file(&x, "f");
    ff_hold(&x, ino);
    for (int write = 1; write >= 0; write--) {
        for (int i = 0, n; i < 16; i++) {
            if (write)
                memset(data[i], i + 1, sizeof data[i]);
            else
                memset(data[i], 0, sizeof data[i]);
            v[i] = (struct iovec){data[i], sizeof data[i]};
            op[i] = (struct pst_op){.kind = write ? PST_OP_WRITE : PST_OP_READ,
                                    .cont = x.c,
                                    .ino = ino,
                                    .iov = &v[i],
                                    .iovcnt = 1,
                                    .offset = (uint64_t)i * sizeof data[i],
                                    .length = sizeof data[i]};
            n = pst_queue_submit(x.q, &op[i]);
            assert_int_equal(n, 0);
        }
        assert_int_equal(pst_queue_submit(x.q, &op[0]), -EAGAIN);
        for (int n = 0; n < 16;) {
            int k = pst_queue_reap(x.q, done, 16, UINT64_MAX);
            for (int i = 0; i < k; i++)
                assert_int_equal(done[i]->result, sizeof data[0]);
            n += k;
            assert_true(ff_stat(&x, "filter_memory_bytes", "") <= 1048576);
        }
    }
    for (int i = 0; i < 16; i++)
        for (size_t k = 0; k < sizeof data[i]; k++)
            assert_int_equal(data[i][k], i + 1);
    pst_store_release(x.c, ino);
    ff_close(&x);
}

#define CASE(t) cmocka_unit_test_setup_teardown(t, ff_setup, ff_teardown)

int main(int argc, char **argv)
{
    int r;
    const struct CMUnitTest tests[] = {
        CASE(a_file_is_what_a_plain_file_is),
        CASE(writers_through_two_instances_lose_nothing_of_each_other),
        CASE(appends_through_two_instances_follow_one_another),
        CASE(cuts_holes_writes_and_reads_at_the_same_time_are_each_whole),
        CASE(memory_is_bounded),
    };

    if (ff_main_begin(argc > 1 ? argv[1] : ""))
        return 1;
    r = cmocka_run_group_tests(tests, NULL, NULL);
    ff_main_end();
    return r;
}

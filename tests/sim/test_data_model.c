/*
 * Random operations on the data of files beside plain byte arrays: several queues in threads, operations in flight that
 * share blocks, both disk I/O tables, reopened stores.
 */
#include "data_model.h"

#define THREADS 3
#define DEPTH   6
#define SHARED  (600 * 1024)                   /* bytes of the shared file */
#define SLICE   2999                           /* of the shared file, in turn for each thread: no multiple of a block */
#define RECORDS 150                            /* that each thread appends */

struct slot {
    struct pst_op op;
    struct iovec v[3];
    uint8_t *buf;
    bool busy, shared;
    uint64_t size_before;
};

struct worker {
    pthread_t thread;
    int id;
    uint64_t seed;
    int steps;
    struct pst_queue *q;
    struct file own;
    struct slot slots[DEPTH];
    int busy;
    uint8_t *big;
    uint64_t appended[RECORDS]; /* where its records went */
};

static struct file shared; /* each thread changes its slices of bytes */
static uint64_t log_ino, uniform_ino;

static bool overlaps(const struct worker *w, uint64_t offset, uint64_t length)
{
    for (int i = 0; i < DEPTH; i++) {
        const struct slot *s = &w->slots[i];
        if (s->busy && !s->shared && s->op.offset < offset + length && offset < s->op.offset + s->op.length)
            return true;
    }
    return false;
}

static void slot_done(struct worker *w, struct slot *s)
{
    struct file *f = s->shared ? &shared : &w->own;
    struct pst_op *op = &s->op;

    s->busy = false;
    w->busy--;
    if (op->kind == PST_OP_WRITE) {
        assert_int_equal(op->result, (int64_t)op->length);
        if (s->shared)
            memcpy(f->bytes + op->offset, s->buf, op->length); /* no other thread looks at these bytes */
        else
            model_write(f, op->offset, s->buf, op->length);
        return;
    }
    if (s->shared) {
        assert_int_equal(op->result, (int64_t)op->length);
    } else {
        /* Writes behind it may or may not have made the file longer by then. */
        int64_t least = (int64_t)(min_u64(max_u64(s->size_before, op->offset), op->offset + op->length) - op->offset);
        int64_t most = (int64_t)(min_u64(max_u64(f->size, op->offset), op->offset + op->length) - op->offset);
        assert_true(op->result >= least && (op->result <= most || w->busy > 0));
    }
    for (int64_t i = 0; i < op->result; i++)
        if (s->buf[i] != f->bytes[op->offset + (uint64_t)i])
            fail_msg("object %llu, offset %llu: wrong byte", (unsigned long long)op->ino,
                     (unsigned long long)op->offset + (unsigned long long)i);
}

static void reap(struct worker *w, uint64_t timeout_ns)
{
    struct pst_op *done[DEPTH];
    int n = pst_queue_reap(w->q, done, DEPTH, timeout_ns);
    assert_true(n >= 0);
    for (int i = 0; i < n; i++)
        slot_done(w, container_of(done[i], struct slot, op));
}

static void start(struct worker *w, struct rng *r)
{
    struct slot *s = w->slots;
    uint64_t offset, length;

    while (s->busy)
        s++;
    s->shared = rng_below(r, 2);
    if (s->shared) {
        uint64_t turn = rng_below(r, SHARED / (SLICE * THREADS));
        offset = (turn * THREADS + (uint64_t)w->id) * SLICE;
        length = SLICE;
        for (int i = 0; i < DEPTH; i++)
            if (w->slots[i].busy && w->slots[i].shared && w->slots[i].op.offset == offset)
                return;
    } else {
        random_range(r, &offset, &length);
        if (overlaps(w, offset, length))
            return;
    }
    s->op = dx_op(rng_below(r, 2) ? PST_OP_WRITE : PST_OP_READ, s->shared ? shared.ino : w->own.ino, offset, length);
    if (s->op.kind == PST_OP_WRITE)
        dx_fill(s->buf, length, rng_u64(r));
    if (rng_below(r, 16) == 0)
        s->op.flags = PST_OPF_DSYNC;
    s->v[0] = (struct iovec){.iov_base = s->buf, .iov_len = rng_below(r, length + 1)};
    s->v[1] =
        (struct iovec){.iov_base = s->buf + s->v[0].iov_len, .iov_len = rng_below(r, length - s->v[0].iov_len + 1)};
    s->v[2].iov_base = s->buf + s->v[0].iov_len + s->v[1].iov_len;
    s->v[2].iov_len = length - s->v[0].iov_len - s->v[1].iov_len;
    s->op.iov = s->v;
    s->op.iovcnt = 3;
    s->size_before = w->own.size;
    assert_int_equal(pst_queue_submit(w->q, &s->op), 0);
    s->busy = true;
    w->busy++;
}

/* A record: thread, number, length, then bytes of its own. */
static void record_make(uint8_t *p, uint32_t id, uint32_t n, uint32_t length)
{
    dx_fill(p, length, (uint64_t)id << 32 | n);
    memcpy(p, &id, 4);
    memcpy(p + 4, &n, 4);
    memcpy(p + 8, &length, 4);
}

static uint32_t record_length(uint32_t id, uint32_t n)
{
    struct rng r;
    rng_seed(&r, seed0 + id * 1000 + n);
    return 12 + (uint32_t)rng_below(&r, n % 10 ? 3000 : 30000);
}

static void append_record(struct worker *w, uint32_t n)
{
    struct iovec v = {.iov_base = w->big, .iov_len = record_length((uint32_t)w->id, n)};
    struct pst_op op = dx_op(PST_OP_WRITE, log_ino, 0, v.iov_len);
    record_make(w->big, (uint32_t)w->id, n, (uint32_t)v.iov_len);
    op.iov = &v;
    op.iovcnt = 1;
    op.flags = PST_OPF_APPEND;
    assert_int_equal(pst_queue_run(w->q, &op), (int64_t)v.iov_len);
    w->appended[n] = op.offset;
}

/* All threads write the same range of a chunk, each with one value, and look: they see one of the values, whole. */
static void write_uniform(struct worker *w, struct rng *r)
{
    struct iovec v = {.iov_base = w->big, .iov_len = 50000};
    struct pst_op op = dx_op(rng_below(r, 2) ? PST_OP_WRITE : PST_OP_READ, uniform_ino, 100, v.iov_len);
    memset(w->big, (int)rng_below(r, 256), v.iov_len);
    op.iov = &v;
    op.iovcnt = 1;
    assert_int_equal(pst_queue_run(w->q, &op), 50000);
    for (size_t i = 1; i < v.iov_len; i++)
        assert_int_equal(w->big[i], w->big[0]);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct rng r;
    uint32_t appended = 0;

    rng_seed(&r, w->seed);
    for (int i = 0; i < w->steps; i++) {
        if (w->busy == DEPTH)
            reap(w, UINT64_MAX);
        if (rng_below(&r, 12)) {
            start(w, &r);
            reap(w, 0);
            continue;
        }
        while (w->busy)
            reap(w, UINT64_MAX);
        alone(w->q, &w->own, &r, (int)rng_below(&r, DO_KINDS), w->big);
        if (appended < RECORDS)
            append_record(w, appended++);
        write_uniform(w, &r);
    }
    while (w->busy)
        reap(w, UINT64_MAX);
    for (; appended < RECORDS; appended++)
        append_record(w, appended);
    return NULL;
}

static void check_log(struct worker *w)
{
    uint64_t total = 0;
    for (int t = 0; t < THREADS; t++) {
        for (uint32_t n = 0; n < RECORDS; n++) {
            uint32_t length = record_length((uint32_t)t, n);
            static uint8_t want[40000];
            record_make(want, (uint32_t)t, n, length);
            assert_int_equal(dx_read(log_ino, w[t].appended[n], w[t].big, length), length);
            assert_memory_equal(w[t].big, want, length);
            total += length;
        }
    }
    assert_int_equal(nx_attr(log_ino).size, total); /* none twice, nothing between them */
}

static void run_threads(enum io_choice io, enum choice direct, bool try_cached, uint64_t chunk_size)
{
    struct eng_opts o = fx_opts();
    static struct worker w[THREADS];
    uint8_t zero[50100] = {0};

    o.io = io;
    o.direct = direct;
    open_model_store(o, true, chunk_size);
    nx_e->data->try_cached = try_cached;
    shared = file_new("shared");
    log_ino = dx_file("log");
    uniform_ino = dx_file("uniform");
    assert_int_equal(dx_write(uniform_ino, 0, zero, sizeof zero), sizeof zero);
    shared.size = SHARED;
    assert_int_equal(dx_truncate(shared.ino, SHARED), 0);
    for (int t = 0; t < THREADS; t++) {
        char name[8];
        snprintf(name, sizeof name, "own%d", t);
        w[t] = (struct worker){.id = t, .seed = seed0 * 77 + (uint64_t)t, .steps = rounds(250), .own = file_new(name)};
        w[t].big = malloc(OWN_MAX);
        for (int i = 0; i < DEPTH; i++)
            w[t].slots[i].buf = malloc(OWN_MAX);
        assert_int_equal(pst_queue_open(&nx_e->st, DEPTH, &w[t].q), 0);
    }
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&w[t].thread, NULL, work, &w[t]), 0);
    for (int t = 0; t < THREADS; t++)
        pthread_join(w[t].thread, NULL);
    for (int t = 0; t < THREADS; t++)
        pst_queue_close(w[t].q);
    dx_check_space();
    for (int pass = 0; pass < 2; pass++) {
        assert_true(file_is(&shared, w[0].big));
        for (int t = 0; t < THREADS; t++)
            assert_true(file_is(&w[t].own, w[t].big));
        check_log(w);
        assert_int_equal(pst_store_scrub(&nx_e->st, NULL, NULL, NULL), 0);
        if (pass)
            break;
        close_model_store();
        open_model_store(o, false, 0);
        nx_e->data->try_cached = try_cached;
        dx_check_space();
    }
    close_model_store();
    for (int t = 0; t < THREADS; t++) {
        for (int i = 0; i < DEPTH; i++)
            free(w[t].slots[i].buf);
        free(w[t].own.bytes);
        free(w[t].big);
    }
    free(shared.bytes);
}

static void threads_on_io_uring_agree_with_the_model(void **state)
{
    (void)state;
    run_threads(IO_AUTO, CHOICE_AUTO, true, 64 * KiB);
}

static void threads_on_io_threads_agree_with_the_model(void **state)
{
    (void)state;
    run_threads(IO_THREADS, CHOICE_AUTO, false, MiB);
}

static void threads_past_the_page_cache_agree_with_the_model(void **state)
{
    (void)state;
    run_threads(IO_AUTO, CHOICE_ALWAYS, false, 64 * KiB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_on_io_uring_agree_with_the_model, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(threads_on_io_threads_agree_with_the_model, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(threads_past_the_page_cache_agree_with_the_model, fx_setup, fx_teardown),
    };

    seed0 = seed_new();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

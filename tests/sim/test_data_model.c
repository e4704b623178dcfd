/*
 * Random operations on the data of files beside plain byte arrays: several queues in threads, operations in flight that
 * share blocks, both disk I/O tables, reopened and crashed stores, flipped bits.
 */
#include "data_fixture.h"

#include <sys/mman.h>

#define THREADS 3
#define DEPTH   6
#define OWN_MAX (2 * 1024 * 1024 + 700 * 1024) /* bytes of a thread's own file; chunks are 64 KiB or 1 MiB */
#define SHARED  (600 * 1024)                   /* bytes of the shared file */
#define SLICE   2999                           /* of the shared file, in turn for each thread: no multiple of a block */
#define RECORDS 150                            /* that each thread appends */

static uint64_t seed0;

static int rounds(int normal)
{
    return getenv("PENSTOCK_EXTENDED") ? normal * 50 : normal;
}

/* ---- a store with small or default chunks ---- */

static void open_model_store(struct eng_opts o, bool fresh, uint64_t chunk_size)
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

static void close_model_store(void)
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

static struct file file_new(const char *name)
{
    struct file f = {.ino = dx_file(name), .bytes = calloc(1, OWN_MAX)};
    assert_non_null(f.bytes);
    return f;
}

enum { DO_WRITE, DO_READ, DO_APPEND, DO_PUNCH, DO_ALLOCATE, DO_TRUNCATE, DO_REPLACE, DO_FSYNC, DO_KINDS };

/* A random place: mostly short, often at the edges of blocks and chunks. */
static void random_range(struct rng *r, uint64_t *ret_offset, uint64_t *ret_length)
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

static void model_write(struct file *f, uint64_t offset, const uint8_t *p, uint64_t n)
{
    memcpy(f->bytes + offset, p, n);
    f->size = max_u64(f->size, offset + n);
}

/* One operation that is alone on its file: on the store if q is not NULL, and on the model. */
static void alone(struct pst_queue *q, struct file *f, struct rng *r, int kind, uint8_t *buf)
{
    uint64_t offset, length, size, seed = rng_u64(r), chunk = q ? nx_c->info.props.chunk_size : 0;
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
        if (!q)
            break; /* not used where the model runs by itself */
        op.kind = PST_OP_CHUNK_REPLACE;
        op.offset = offset / chunk;
        length = min_u64(chunk, OWN_MAX - op.offset * chunk);
        dx_fill(buf, length, seed);
        op.length = v.iov_len = length;
        op.flags = PST_OPF_GROW;
        op.new_size = op.offset * chunk + length;
        op.version = PST_VERSION_ANY;
        assert_int_equal(pst_queue_run(q, &op), (int64_t)length);
        model_write(f, op.offset * chunk, buf, length);
        break;
    case DO_FSYNC:
        op.kind = PST_OP_FSYNC;
        if (q)
            assert_int_equal(pst_queue_run(q, &op), 0);
        break;
    }
}

static bool file_is(const struct file *f, uint8_t *buf)
{
    for (uint64_t at = 0; at < f->size; at += MiB) {
        uint64_t n = min_u64(f->size - at, MiB);
        if (dx_read(f->ino, at, buf, MiB) != (int64_t)n || memcmp(buf, f->bytes + at, n))
            return false;
    }
    return nx_attr(f->ino).size == f->size;
}

/* ---- threads ---- */

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

/* ---- crashes ---- */

#define FILES 3
struct progress {
    uint64_t begun, acknowledged; /* operations */
};

static struct progress *progress_map(void)
{
    char path[100];
    snprintf(path, sizeof path, "%s.work", fx_dir);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof(struct progress)), 0);
    struct progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    close(fd);
    return p;
}

/* The operation of this number: the same in the child and in the model of its parent. */
static void numbered_op(struct pst_queue *q, struct file *files, uint64_t seed, uint64_t n, uint8_t *buf, int *ret_kind)
{
    static const int kinds[] = {DO_WRITE, DO_WRITE, DO_WRITE, DO_APPEND, DO_PUNCH, DO_ALLOCATE, DO_TRUNCATE, DO_FSYNC};
    struct rng r;
    rng_seed(&r, seed + n * 1000003);
    *ret_kind = kinds[rng_below(&r, ARRAY_SIZE(kinds))];
    alone(q, &files[rng_below(&r, FILES)], &r, *ret_kind, buf);
}

static void crash_child(uint64_t seed)
{
    struct progress *p = progress_map();
    struct file files[FILES];
    uint8_t *buf = malloc(OWN_MAX);
    struct rng r;
    uint64_t last;

    open_model_store(fx_opts(), true, 64 * KiB);
    for (int i = 0; i < FILES; i++)
        files[i] = file_new((char[]){(char)('a' + i), 0});
    assert_int_equal(dx_range(PST_OP_SYNCFS, files[0].ino, 0, 0, 0), 0);
    rng_seed(&r, seed);
    last = rng_below(&r, 60) + 1;
    for (uint64_t n = 1; n <= last; n++) {
        int kind;
        p->begun = n;
        numbered_op(dx_q, files, seed, n, buf, &kind);
        if (kind == DO_FSYNC)
            p->acknowledged = n;
    }
    if (seed % 2) { /* with writes under way */
        struct iovec v = {.iov_base = buf, .iov_len = 100000};
        struct pst_op op = dx_op(PST_OP_WRITE, files[0].ino, 0, v.iov_len);
        op.iov = &v;
        op.iovcnt = 1;
        memset(buf, 0, v.iov_len);
        op.flags = PST_OPF_DSYNC;
        op.ino = dx_file("z");
        pst_queue_submit(dx_q, &op);
    }
    _exit(0);
}

static void after_a_crash_files_are_as_some_moment_after_the_last_fsync(void **state)
{
    uint8_t *buf = malloc(OWN_MAX);
    (void)state;

    for (int round = 0; round < rounds(6); round++) {
        uint64_t seed = seed0 + (uint64_t)round, n = 0;
        struct file files[FILES];
        struct progress *p = progress_map();
        bool found = false;
        char arg[32];
        int kind;

        memset(p, 0, sizeof *p);
        snprintf(arg, sizeof arg, "%llu", (unsigned long long)seed);
        assert_int_equal(fx_child("data_model", "crash", arg), 0);
        open_model_store(fx_opts(), false, 0);
        for (int i = 0; i < FILES; i++) {
            struct pst_attr a;
            assert_int_equal(nx_look(NULL, PST_ROOT_INO, (char[]){(char)('a' + i), 0}, &a), 0);
            files[i] = (struct file){.ino = a.ino, .bytes = calloc(1, OWN_MAX)};
        }
        while (n < p->acknowledged)
            numbered_op(NULL, files, seed, ++n, buf, &kind);
        for (;;) {
            found = true;
            for (int i = 0; found && i < FILES; i++)
                found = file_is(&files[i], buf);
            if (found || n == p->begun)
                break;
            numbered_op(NULL, files, seed, ++n, buf, &kind);
        }
        if (!found)
            fail_msg("seed %llu: not a state after operation %llu", (unsigned long long)seed,
                     (unsigned long long)p->acknowledged);
        dx_check_space();
        assert_int_equal(pst_store_scrub(&nx_e->st, NULL, NULL, NULL), 0);
        close_model_store();
        for (int i = 0; i < FILES; i++)
            free(files[i].bytes);
        munmap(p, sizeof *p);
        fx_remove();
        assert_int_equal(mkdir(fx_dir, 0700), 0);
    }
    free(buf);
}

/* ---- flipped bits ---- */

static void flipped_bits_are_errors_and_never_wrong_bytes(void **state)
{
    struct rng r;
    struct file f;
    uint8_t *buf = malloc(OWN_MAX);
    uint64_t blocks, errors = 0;
    uint8_t b;
    (void)state;

    rng_seed(&r, seed0);
    open_model_store(fx_opts(), true, 64 * KiB);
    f = file_new("f");
    for (int i = 0; i < 60; i++)
        alone(dx_q, &f, &r, i % 2 ? DO_WRITE : (int)rng_below(&r, DO_KINDS), buf);
    assert_int_equal(dx_range(PST_OP_FSYNC, f.ino, 0, 0, 0), 0);
    blocks = (uint64_t)lseek(nx_e->data_fd, 0, SEEK_END) / PST_BLOCK;
    for (int i = 0; i < rounds(300); i++) {
        off_t at = (off_t)rng_below(&r, min_u64(blocks, 3000) * PST_BLOCK);
        assert_int_equal(pread(nx_e->data_fd, &b, 1, at), 1);
        b ^= (uint8_t)(1u << rng_below(&r, 8));
        assert_int_equal(pwrite(nx_e->data_fd, &b, 1, at), 1);
    }
    for (uint64_t at = 0; at < f.size; at += PST_BLOCK) {
        int64_t n = (int64_t)min_u64(PST_BLOCK, f.size - at), got = dx_read(f.ino, at, buf, PST_BLOCK);
        if (got == -EIO) {
            errors++;
            continue;
        }
        assert_int_equal(got, n);
        assert_memory_equal(buf, f.bytes + at, (size_t)n);
    }
    assert_int_equal(nx_e->data_errors, errors);
    if (f.size)
        assert_true(dx_read(f.ino, 0, buf, OWN_MAX) == (errors ? -EIO : (int64_t)f.size));
    assert_true((pst_store_scrub(&nx_e->st, NULL, NULL, NULL) > 0) == (errors > 0));
    close_model_store();
    free(f.bytes);
    free(buf);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_on_io_uring_agree_with_the_model, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(threads_on_io_threads_agree_with_the_model, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(threads_past_the_page_cache_agree_with_the_model, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(after_a_crash_files_are_as_some_moment_after_the_last_fsync, fx_setup,
                                        fx_teardown),
        cmocka_unit_test_setup_teardown(flipped_bits_are_errors_and_never_wrong_bytes, fx_setup, fx_teardown),
    };
    const char *seed = getenv("PENSTOCK_SEED");

    if (argc == 4 && !strcmp(argv[1], "crash")) {
        snprintf(fx_dir, sizeof fx_dir, "%s", argv[2]);
        crash_child(strtoull(argv[3], NULL, 10));
    }
    seed0 = seed ? strtoull(seed, NULL, 0) : now_ns() % 1000000007;
    print_message("PENSTOCK_SEED=%llu\n", (unsigned long long)seed0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

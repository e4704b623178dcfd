/* Random operations on the data of files beside plain byte arrays: crashed stores, flipped bits. */
#include "data_model.h"

#include <sys/mman.h>

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
        assert_int_equal(fx_child("data_crash", "crash", arg), 0);
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
        cmocka_unit_test_setup_teardown(after_a_crash_files_are_as_some_moment_after_the_last_fsync, fx_setup,
                                        fx_teardown),
        cmocka_unit_test_setup_teardown(flipped_bits_are_errors_and_never_wrong_bytes, fx_setup, fx_teardown),
    };

    if (argc == 4 && !strcmp(argv[1], "crash")) {
        snprintf(fx_dir, sizeof fx_dir, "%s", argv[2]);
        crash_child(strtoull(argv[3], NULL, 10));
    }
    seed0 = seed_new();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

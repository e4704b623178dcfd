/* Disk I/O: both tables do the same. */
#define FX_BARE
#include "local_fixture.h"

#include <poll.h>

#define FILE_BYTES (4 * MiB)

static int fd_buffered = -1, fd_direct = -1;

static int setup(void **state)
{
    char path[128];
    if (fx_setup(state))
        return -1;
    snprintf(path, sizeof path, "%s/data", fx_dir);
    fd_buffered = open(path, O_RDWR | O_CREAT, 0600);
    fd_direct = open(path, O_RDWR | O_DIRECT); /* -1 where the file system has none: all goes buffered */
    return ftruncate(fd_buffered, FILE_BYTES);
}

static int teardown(void **state)
{
    close(fd_buffered);
    if (fd_direct >= 0)
        close(fd_direct);
    return fx_teardown(state);
}

static const struct io_ops *tables[] = {&io_uring_ops, &io_threads_ops};

/* NULL where the kernel refuses io_uring. */
static struct io *open_io(const struct io_ops *ops, int direct, uint32_t depth)
{
    struct io *io = NULL;
    int r = ops->open(fd_buffered, direct, depth, &io);
    if (r && ops == &io_uring_ops && (r == -ENOSYS || r == -EPERM)) {
        print_message("io_uring is refused here: %s\n", err_name(r));
        return NULL;
    }
    assert_int_equal(r, 0);
    return io;
}

static int64_t run_one(struct io *io, struct io_req *r)
{
    struct io_req *back = NULL;
    int e = io->ops->submit(io, r, false);
    if (e)
        return e;
    assert_int_equal(io->ops->reap(io, &back, 1, UINT64_MAX), 1);
    assert_ptr_equal(back, r);
    return r->result;
}

static void writes_come_back_through_reads_aligned_or_not(void **state)
{
    uint8_t *a = fx_pages(64 * KiB), *b = fx_pages(64 * KiB);
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(tables); t++) {
        for (int direct = 0; direct < 2; direct++) {
            struct io *io = open_io(tables[t], direct ? fd_direct : -1, 8);
            struct rng rng;
            if (!io)
                continue;
            rng_seed(&rng, t + 1);
            for (int i = 0; i < 40; i++) {
                bool odd = i % 2;
                uint64_t off = odd ? rng_below(&rng, 2 * MiB) : rng_below(&rng, 500) * 4096;
                size_t n1 = odd ? 1 + rng_below(&rng, 20000) : 4096 * (1 + rng_below(&rng, 8)), n2 = odd ? 777 : 4096;
                struct iovec w[2] = {{a + odd, n1}, {a + 40 * KiB, n2}}, r[2] = {{b, n2}, {b + 8192, n1}};
                struct io_req req = {.kind = IO_WRITE, .offset = off, .iov = w, .iovcnt = 2};
                rng_fill(&rng, a, 64 * KiB);
                memset(b, 0, 64 * KiB);
                assert_int_equal(run_one(io, &req), n1 + n2);
                req = (struct io_req){.kind = IO_READ, .offset = off, .iov = r, .iovcnt = 2};
                assert_int_equal(run_one(io, &req), n1 + n2);
                for (size_t k = 0; k < n1 + n2; k++) {
                    uint8_t want = k < n1 ? a[odd + k] : a[40 * KiB + k - n1];
                    uint8_t got = k < n2 ? b[k] : b[8192 + k - n2];
                    if (want != got)
                        fail_msg("%s: byte %zu differs", tables[t]->name, k);
                }
            }
            io->ops->close(io);
        }
    }
    free(a);
    free(b);
}

static void a_full_context_says_so_and_close_drains(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(tables); t++) {
        struct io *io = open_io(tables[t], fd_direct, 4);
        uint8_t *mem;
        struct iovec v[8];
        struct io_req r[8] = {0}, *back[8];
        int n = 0;
        if (!io)
            continue;
        mem = fx_pages(8 * 4096);
        memset(mem, 7, 8 * 4096);
        for (int i = 0; i < 8; i++) {
            v[i] = (struct iovec){mem + i * 4096, 4096};
            r[i] = (struct io_req){.kind = IO_WRITE, .offset = (uint64_t)i * 4096, .iov = &v[i], .iovcnt = 1};
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(io->ops->submit(io, &r[i], true), 0);
        assert_int_equal(io->ops->submit(io, &r[4], false), -EAGAIN);
        while (n < 4)
            n += io->ops->reap(io, back, 8, UINT64_MAX);
        assert_int_equal(n, 4);
        assert_int_equal(io->ops->reap(io, back, 8, UINT64_MAX), 0); /* nothing is in flight: no waiting */
        assert_int_equal(io->ops->reap(io, back, 8, 0), 0);
        for (int i = 4; i < 8; i++)
            assert_int_equal(io->ops->submit(io, &r[i], true), 0);
        io->ops->close(io);
        for (int i = 4; i < 8; i++)
            assert_int_equal(r[i].result, 4096);
        free(mem);
    }
}

static void the_descriptor_is_readable_when_something_is_done(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(tables); t++) {
        struct io *io = open_io(tables[t], fd_direct, 8);
        uint8_t *mem;
        struct iovec v[3];
        struct io_req r[3] = {0}, *back[8];
        struct pollfd p;
        int n = 0;
        if (!io)
            continue;
        mem = fx_pages(3 * 4096);
        p = (struct pollfd){.fd = io->ops->fd(io), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 0), 0);
        for (int i = 0; i < 3; i++) {
            v[i] = (struct iovec){mem + i * 4096, 4096};
            r[i] = (struct io_req){.kind = IO_READ, .offset = (uint64_t)i * 4096, .iov = &v[i], .iovcnt = 1};
            assert_int_equal(io->ops->submit(io, &r[i], i < 2), 0);
        }
        while (n < 3) {
            assert_int_equal(poll(&p, 1, 10000), 1);
            n += io->ops->reap(io, back, 1, 0); /* one by one: the rest keeps it readable */
        }
        assert_int_equal(io->ops->reap(io, back, 8, 0), 0);
        assert_int_equal(poll(&p, 1, 0), 0);
        assert_int_equal(io->ops->reap(io, back, 8, 1000000), 0);
        io->ops->close(io);
        free(mem);
    }
}

static void errors_and_nonsense_come_back_as_errno(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(tables); t++) {
        struct io *io = open_io(tables[t], fd_direct, 2);
        uint8_t b[512];
        struct iovec v = {b, sizeof b}, none = {b, 0};
        struct io_req r = {.kind = IO_READ, .offset = FILE_BYTES + 4096, .iov = &v, .iovcnt = 1};
        struct io *other = NULL;
        if (!io)
            continue;
        assert_int_equal(run_one(io, &r), -EIO); /* behind the end of the file */
        r = (struct io_req){.kind = IO_READ, .offset = FILE_BYTES - 100, .iov = &v, .iovcnt = 1};
        assert_int_equal(run_one(io, &r), -EIO); /* across it */
        r = (struct io_req){.kind = IO_READ, .iov = &none, .iovcnt = 1};
        assert_int_equal(io->ops->submit(io, &r, false), -EINVAL);
        r = (struct io_req){.kind = IO_READ, .iov = &v, .iovcnt = 0};
        assert_int_equal(io->ops->submit(io, &r, false), -EINVAL);
        assert_int_equal(tables[t]->open(fd_buffered, -1, 0, &other), -EINVAL);
        io->ops->close(io);
    }
}

static void the_option_chooses_the_table(void **state)
{
    struct eng_opts o = fx_opts();
    struct engine *e;
    struct io *io;
    char store[96];
    struct errmsg m = {fx_err, sizeof fx_err};
    (void)state;
    snprintf(store, sizeof store, "%s/store", fx_dir);
    o.io = IO_THREADS;
    assert_int_equal(eng_open(store, &o, &e, &m), 0);
    assert_string_equal(e->io_ops->name, "threads");
    assert_int_equal(eng_io_open(e, 4, &io), 0);
    io->ops->close(io);
    eng_close(e);
    o.io = IO_AUTO;
    o.direct = CHOICE_NEVER;
    assert_int_equal(eng_open(store, &o, &e, &m), 0);
    assert_int_equal(e->direct_fd, -1);
    eng_close(e);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(writes_come_back_through_reads_aligned_or_not),
        T(a_full_context_says_so_and_close_drains),
        T(the_descriptor_is_readable_when_something_is_done),
        T(errors_and_nonsense_come_back_as_errno),
        T(the_option_chooses_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

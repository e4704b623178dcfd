/* The client over a store in memory: the cases of the API, and what needs a store that holds back and fails. */
#include "api.h"
#include "base/rng.h"
#include "api_cases.h"
#include "internal.h"
#include "memstore.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITES (1u << PST_OP_WRITE)
#define READS  (1u << PST_OP_READ)

static struct memstore *mem(struct pst_fs *fs)
{
    return memstore_of(cl_store(fs->k->c));
}

static struct memstore_counts counts(struct pst_fs *fs)
{
    struct memstore_counts n;
    memstore_counts(mem(fs), &n);
    return n;
}

static void sequential_writes_become_large_operations(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0);
    struct memstore_counts before = counts(fs), after;
    char block[4096];

    for (int i = 0; i < 1024; i++) {
        memset(block, i, sizeof block);
        assert_int_equal(pst_pwrite(f, block, sizeof block, (uint64_t)i * sizeof block), sizeof block);
    }
    assert_int_equal(pst_flush(f), 0);
    after = counts(fs);
    assert_int_equal(after.ops[PST_OP_WRITE] - before.ops[PST_OP_WRITE], 4);
    assert_int_equal(after.largest_write, MiB);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(counts(fs).ops[PST_OP_FSYNC], 1);
    assert_int_equal(counts(fs).opens, 0);
}

static void a_failed_write_is_reported_once(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0), *g = api_open_new(fs, "/f", 0);

    memstore_fail(mem(fs), WRITES, -ENOSPC, 1);
    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    assert_int_equal(pst_flush(g), 0); /* another handle's writes */
    assert_int_equal(pst_pwrite(f, "x", 1, 0), -ENOSPC); /* nothing more is taken until it is reported */
    assert_int_equal(pst_fsync(f), -ENOSPC);
    assert_int_equal(pst_fsync(f), 0);
    memstore_fail(mem(fs), WRITES, -EIO, 1);
    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    assert_int_equal(pst_close(f), -EIO);
    assert_int_equal(pst_close(g), 0);
    assert_int_equal(counts(fs).opens, 0);
    memstore_fail(mem(fs), 1u << PST_OP_FSYNC, -EIO, 1);
    f = api_open_new(fs, "/f2", 0);
    assert_int_equal(pst_close(f), -EIO);
}

static void a_failed_write_is_told_to_every_handle_that_syncs(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0), *g = api_open_new(fs, "/f", 0), *late;

    memstore_fail(mem(fs), WRITES, -EIO, 1);
    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    assert_int_equal(pst_fsync(g), -EIO); /* it sent the byte: it must not say that it is durable */
    assert_int_equal(pst_fsync(g), 0);
    late = api_open_new(fs, "/f", 0);
    assert_int_equal(pst_fsync(late), 0);
    assert_int_equal(pst_fsync(f), -EIO);
    assert_int_equal(pst_fsync(f), 0);
    assert_int_equal(pst_sync(fs), -EIO);
    assert_int_equal(pst_sync(fs), 0);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_close(g), 0);
    assert_int_equal(pst_close(late), 0);
}

/* A store says once that a change is lost (pst_store_history): whoever asks first must not be the only one to know. */
static void a_failed_sync_is_told_to_every_handle_that_syncs(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0), *g = api_open_new(fs, "/f", 0), *late;

    memstore_fail(mem(fs), 1u << PST_OP_FSYNC, -EIO, 1);
    assert_int_equal(pst_fsync(f), -EIO);
    assert_int_equal(pst_fsync(f), 0);
    late = api_open_new(fs, "/f", 0);
    assert_int_equal(pst_fsync(late), 0);
    assert_int_equal(pst_fsync(g), -EIO);
    assert_int_equal(pst_fsync(g), 0);
    /* What may pass says nothing of what is lost. */
    memstore_fail(mem(fs), 1u << PST_OP_FSYNC, -ETIMEDOUT, 1);
    assert_int_equal(pst_fsync(f), -ETIMEDOUT);
    assert_int_equal(pst_fsync(g), 0);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_close(g), 0);
    assert_int_equal(pst_close(late), 0);
}

static void *write_on(void *arg)
{
    struct pst_file *f = arg;
    char c[50];

    memset(c, 'C', sizeof c);
    assert_int_equal(pst_pwrite(f, c, sizeof c, 100), sizeof c);
    assert_int_equal(pst_flush(f), 0);
    return NULL;
}

/* A buffer that grows must not grow into one that is on its way: the store may execute them in any order. */
static void a_later_write_never_comes_before_an_earlier_one(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0);
    char a[100], b[50], got[200];
    pthread_t id;

    memset(a, 'A', sizeof a);
    memset(b, 'B', sizeof b);
    memstore_backwards(mem(fs), true);
    memstore_hold(mem(fs), WRITES);
    assert_int_equal(pst_pwrite(f, a, sizeof a, 100), sizeof a);
    assert_int_equal(pst_pwrite(f, b, sizeof b, 50), sizeof b); /* the first buffer is sent off for it */
    assert_int_equal(pthread_create(&id, NULL, write_on, f), 0);
    for (int i = 0; i < 50 && counts(fs).held < 2; i++)
        usleep(2000);
    memstore_release(mem(fs));
    pthread_join(id, NULL);
    memstore_backwards(mem(fs), false);
    assert_int_equal(pst_pread(f, got, sizeof got, 0), sizeof got);
    for (int i = 50; i < 200; i++)
        assert_int_equal(got[i], i < 100 ? 'B' : i < 150 ? 'C' : 'A');
    assert_int_equal(pst_close(f), 0);
}

static void write_behind_memory_is_bounded(void **state)
{
    struct pst_fs *fs = *state; /* 8 MiB in all, 4 MiB for one file */
    struct pst_file *f[20];
    char name[16], *big = calloc(1, MiB);

    /* Many files with a little each, more than there is room for. */
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "/%d", i);
        f[i] = api_open_new(fs, name, 0);
        assert_int_equal(pst_pwrite(f[i], big, MiB - 1, 0), MiB - 1);
    }
    assert_true(counts(fs).ops[PST_OP_WRITE] >= 12);
    for (int i = 0; i < 20; i++)
        assert_int_equal(pst_close(f[i]), 0);
    free(big);
}

static void written_data_does_not_wait_for_ever(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0);

    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    assert_int_equal(counts(fs).ops[PST_OP_WRITE], 0);
    while (counts(fs).ops[PST_OP_WRITE] == 0)
        poll(NULL, 0, 20);
    assert_int_equal(pst_close(f), 0);
}

/* The thread that looks for old buffers takes the time before the lock under which the next one is made. */
static void a_buffer_that_is_younger_than_the_look_is_not_old(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0);
    struct cl_inode *i = cl_inode_get(fs->k->c, cl_file_ino(f->f), false);

    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    pthread_mutex_lock(&i->lock);
    assert_int_equal(i->nidle, 1);
    list_entry(i->idle.next, struct cl_buf, link)->since_ns = now_ns() + NSEC_PER_SEC;
    pthread_mutex_unlock(&i->lock);
    assert_true(cl_dirty_age(fs->k->c)); /* it goes on waiting */
    pthread_mutex_lock(&i->lock);
    assert_int_equal(i->nidle, 1);
    pthread_mutex_unlock(&i->lock);
    cl_inode_put(i);
    assert_int_equal(pst_close(f), 0);
}

static void direct_and_synchronous_handles_keep_nothing_back(void **state)
{
    struct pst_fs *fs = *state;
    int flags[] = {O_DIRECT, O_SYNC, O_DSYNC};

    for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
        struct pst_file *f = api_open_new(fs, "/f", flags[i]);
        uint64_t before = counts(fs).ops[PST_OP_WRITE];
        assert_int_equal(pst_pwrite(f, "x", 1, i), 1);
        assert_int_equal(counts(fs).ops[PST_OP_WRITE], before + 1);
        memstore_fail(mem(fs), WRITES, -ENOSPC, 1);
        assert_int_equal(pst_pwrite(f, "x", 1, i), -ENOSPC);
        assert_int_equal(pst_close(f), 0);
    }
}

static void sequential_reads_are_fetched_ahead_and_never_stale(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0), *w = api_open_new(fs, "/f", 0);
    size_t size = 6 * MiB + 123;
    uint8_t *data = malloc(size), buf[65536];
    struct rng r;
    uint64_t before;

    rng_seed(&r, 7);
    rng_fill(&r, data, size);
    assert_int_equal(pst_pwrite(f, data, size, 0), size);
    assert_int_equal(pst_flush(f), 0);
    before = counts(fs).ops[PST_OP_READ];
    for (size_t at = 0; at < size;) {
        int64_t n = pst_pread(f, buf, sizeof buf, at);
        assert_int_equal(n, min_u64(sizeof buf, size - at));
        assert_memory_equal(buf, data + at, (size_t)n);
        at += (size_t)n;
        if (at == 2 * MiB) { /* change what was fetched ahead already */
            memset(data + at, 0xee, MiB);
            assert_int_equal(pst_pwrite(w, data + at, MiB, at), MiB);
        }
        if (at == 4 * MiB) {
            memset(data + at, 0xdd, 1000);
            struct pst_file *d = api_open_new(fs, "/f", O_DIRECT);
            assert_int_equal(pst_pwrite(d, data + at, 1000, at), 1000);
            assert_int_equal(pst_close(d), 0);
        }
    }
    assert_int_equal(pst_pread(f, buf, sizeof buf, size), 0);
    assert_in_range(counts(fs).ops[PST_OP_READ] - before, 7, 40);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_close(w), 0);
    free(data);
}

static void an_event_queue_delivers_and_its_descriptor_tells(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0);
    struct pst_eq *eq;
    struct pst_event ev[4];
    struct pollfd fd;
    char buf[8] = {0};
    struct iovec w[2] = {{"abc", 3}, {"defgh", 5}}, rd = {buf, 8};

    assert_int_equal(pst_eq_create(fs, 2, &eq), 0);
    fd = (struct pollfd){.fd = pst_eq_fd(eq), .events = POLLIN};
    assert_int_equal(pst_eq_poll(eq, ev, 4, -1), 0); /* nothing under way */
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(pst_pwrite(f, "zzzzzzzz", 8, 0), 8); /* comes before the operation */
    assert_int_equal(pst_aio_write(f, w, 2, 0, eq, w), 0);
    assert_int_equal(poll(&fd, 1, 10000), 1);
    assert_int_equal(pst_eq_poll(eq, ev, 4, 0), 1);
    assert_ptr_equal(ev[0].cookie, w);
    assert_ptr_equal(ev[0].file, f);
    assert_int_equal(ev[0].result, 8);
    assert_int_equal(poll(&fd, 1, 0), 0);

    assert_int_equal(pst_pwrite(f, "y", 1, MiB), 1); /* it makes the file longer */
    rd = (struct iovec){buf, 8};
    assert_int_equal(pst_aio_read(f, &rd, 1, 1000, eq, &rd), 0);
    assert_int_equal(pst_eq_poll(eq, ev, 4, 10000), 1);
    assert_int_equal(ev[0].result, 8);
    assert_memory_equal(buf, "\0\0\0\0\0\0\0\0", 8);

    memstore_hold(mem(fs), READS);
    assert_int_equal(pst_aio_read(f, &rd, 1, 0, eq, &rd), 0);
    assert_int_equal(pst_aio_fsync(f, eq, NULL), 0);
    assert_int_equal(pst_aio_fsync(f, eq, NULL), -EAGAIN);
    assert_int_equal(pst_eq_poll(eq, ev, 1, 10000), 1);
    assert_int_equal(ev[0].kind, PST_AIO_FSYNC);
    assert_int_equal(pst_eq_poll(eq, ev, 1, 20), 0);
    assert_int_equal(pst_aio_cancel(eq, &rd), 1); /* this store cannot: the event still comes */
    assert_int_equal(pst_aio_cancel(eq, ev), 0);
    memstore_release(mem(fs));
    assert_int_equal(pst_eq_poll(eq, ev, 4, 10000), 1);
    assert_int_equal(ev[0].result, 8);
    assert_memory_equal(buf, "abcdefgh", 8);
    assert_int_equal(pst_aio_read(f, &rd, 1, 0, eq, NULL), 0);
    assert_int_equal(pst_close(f), 0); /* waits for it */
    assert_int_equal(pst_eq_poll(eq, ev, 4, 0), 1);
    f = api_open_new(fs, "/f", 0);
    memstore_fail(mem(fs), WRITES, -ENOSPC, 1);
    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    assert_int_equal(pst_aio_fsync(f, eq, NULL), 0);
    assert_int_equal(pst_eq_poll(eq, ev, 4, 10000), 1);
    assert_int_equal(ev[0].result, -ENOSPC); /* of the write that it sent off */
    assert_int_equal(pst_close(f), 0);
    pst_eq_destroy(eq);
}

static void operations_that_wait_for_room_can_be_cancelled(void **state)
{
    struct pst_options o;
    struct pst_fs *fs;
    struct pst_file *f;
    struct pst_eq *eq;
    struct pst_event ev[8];
    char buf[8];
    struct iovec iov = {buf, 8};
    int cookie[4];

    (void)state;
    pst_options_init(&o, sizeof o);
    o.threads = 1;
    o.depth = 1;
    assert_int_equal(pst_connect("mem:?p/c", &o, &fs), 0);
    f = api_open_new(fs, "/f", 0);
    assert_int_equal(pst_eq_create(fs, 8, &eq), 0);
    memstore_hold(mem(fs), READS);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pst_aio_read(f, &iov, 1, 0, eq, &cookie[i]), 0);
    assert_int_equal(pst_aio_cancel(eq, &cookie[3]), 1);
    assert_int_equal(pst_eq_poll(eq, ev, 8, 10000), 1);
    assert_ptr_equal(ev[0].cookie, &cookie[3]);
    assert_int_equal(ev[0].result, -ECANCELED);
    memstore_release(mem(fs));
    for (int n = 0; n < 3;) {
        int got = pst_eq_poll(eq, ev, 8, 10000);
        assert_true(got > 0);
        n += got;
    }
    pst_eq_destroy(eq);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_disconnect(fs), 0);
}

static void registered_memory_is_checked(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_buf *a, *b;
    uint8_t *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_int_equal(pst_buf_register(fs, p + 1, 4096, &a), -EINVAL);
    assert_int_equal(pst_buf_register(fs, p, 4095, &a), -EINVAL);
    assert_int_equal(pst_buf_register(fs, p, 65536, &a), 0);
    assert_int_equal(pst_buf_register(fs, p + 4096, 4096, &b), -EEXIST);
    assert_int_equal(pst_buf_unregister(a), 0);
    assert_int_equal(pst_buf_register(fs, p + 4096, 4096, &b), 0);
    assert_int_equal(pst_buf_unregister(b), 0);
    munmap(p, 65536);
}

static void unusable_urls_and_options_are_refused(void **state)
{
    struct pst_options o;
    struct pst_fs *fs;

    (void)state;
    assert_int_equal(pst_connect("nonsense:/x?p/c", NULL, &fs), -EPROTONOSUPPORT);
    assert_non_null(strstr(pst_last_error(), "mem:"));
    assert_int_equal(pst_connect("penstock://host", NULL, &fs), -EINVAL);
    assert_int_equal(pst_connect("penstock://host/pool", NULL, &fs), -EINVAL);
    assert_int_equal(pst_connect("mem:x?pool/..%/", NULL, &fs), -EINVAL);
    assert_int_equal(pst_connect(NULL, NULL, &fs), -EINVAL);
    pst_options_init(&o, sizeof o);
    o.flags = 1u << 31;
    assert_int_equal(pst_connect("mem:?p/c", &o, &fs), -EINVAL);
    pst_options_init(&o, sizeof o);
    o.store_options = "novalue";
    assert_int_equal(pst_connect("mem:?p/c", &o, &fs), -EINVAL);
    o.size = 0;
    assert_int_equal(pst_connect("mem:?p/c", &o, &fs), -EINVAL);
}

static void given_memory_is_sent_as_it_is(void **state)
{
    struct pst_fs *fs = *state;
    struct client *c = fs->k->c;
    struct pst_file *f = api_open_new(fs, "/given", 0);
    struct cl_mem *m = cl_mem_get(c);
    uint8_t *data = m->data, *back = malloc(CL_MEM);

    memset(m->data, 'a', CL_MEM);
    memstore_hold(mem(fs), WRITES);
    assert_int_equal(cl_pwrite_mem(f->f, &m, CL_MEM, 0, 0), CL_MEM);
    assert_ptr_not_equal(m->data, data);
    memset(m->data, 'b', CL_MEM); /* ours now: nothing that was written lies in it */
    memstore_release(mem(fs));
    assert_int_equal(cl_pwrite_mem(f->f, &m, 4096, CL_MEM - 100, 0), 4096); /* two windows: copied */
    memset(m->data, 'c', CL_MEM);
    assert_int_equal(cl_pwrite_mem(f->f, &m, CL_MEM + 1, 0, 0), -EINVAL);
    assert_int_equal(cl_flush(f->f), 0);
    assert_int_equal(cl_pread(f->f, back, CL_MEM, 5000), CL_MEM - 5000 + 4096 - 100);
    for (size_t i = 0; i < CL_MEM - 5000 + 4096 - 100; i++)
        assert_int_equal(back[i], i < CL_MEM - 5000 - 100 ? 'a' : 'b');
    free(back);
    cl_mem_put(c, m);
    assert_int_equal(pst_close(f), 0);
}

/* Given and copied, large and small, over one another, in a store that executes them backwards. */
static void given_and_copied_writes_are_what_is_read(void **state)
{
    enum { SIZE = 5 * MiB, WRITES_DONE = 300 };
    struct pst_fs *fs = *state;
    struct client *c = fs->k->c;
    struct pst_file *f = api_open_new(fs, "/model", 0);
    struct cl_mem *m = cl_mem_get(c);
    uint8_t *model = calloc(1, SIZE), *back = malloc(SIZE);
    struct rng r;

    rng_seed(&r, seed_new());
    memstore_backwards(mem(fs), true);
    for (int i = 0; i < WRITES_DONE; i++) {
        size_t len = 1 + rng_below(&r, rng_below(&r, 2) ? CL_MEM : 8192);
        uint64_t at = rng_below(&r, SIZE - len);
        if (rng_below(&r, 3) == 0) {
            at = align_down(at, CL_MEM);
            len = CL_MEM;
        }
        memset(m->data, (int)rng_below(&r, 256), len);
        m->data[0] = (uint8_t)i;
        memcpy(model + at, m->data, len);
        if (rng_below(&r, 2))
            assert_int_equal(cl_pwrite_mem(f->f, &m, len, at, 0), len);
        else
            assert_int_equal(cl_pwrite(f->f, m->data, len, at, 0), len);
        memset(m->data, 0x5a, CL_MEM);
        at = rng_below(&r, SIZE - 1000);
        if (rng_below(&r, 8) == 0 && cl_pread(f->f, back, 1000, at) == 1000)
            assert_memory_equal(back, model + at, 1000);
    }
    assert_int_equal(cl_flush(f->f), 0);
    memstore_backwards(mem(fs), false);
    memset(back, 0, SIZE);
    assert_true(cl_pread(f->f, back, SIZE, 0) > 0);
    assert_memory_equal(back, model, SIZE);
    free(model);
    free(back);
    cl_mem_put(c, m);
    assert_int_equal(pst_close(f), 0);
}

static void write_vector(struct pst_file *f)
{
    struct iovec v = {"x", 1};

    assert_int_equal(pst_pwritev(f, &v, 1, 0), 1);
}

static void write_plain(struct pst_file *f)
{
    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
}

static void write_append(struct pst_file *f)
{
    assert_int_equal(pst_append(f, "x", 1, NULL), 1);
}

static void write_later(struct pst_file *f)
{
    struct pst_fs fs = {.k = f->k};
    struct iovec v = {"x", 1};
    struct pst_event e;
    struct pst_eq *eq;

    assert_int_equal(pst_eq_create(&fs, 1, &eq), 0);
    assert_int_equal(pst_aio_write(f, &v, 1, 0, eq, NULL), 0);
    assert_int_equal(pst_eq_poll(eq, &e, 1, -1), 1);
    assert_int_equal(e.result, 1);
    pst_eq_destroy(eq);
}

static void a_write_of_who_is_not_root_takes_set_id_bits_away(void **state)
{
    static void (*const ways[])(struct pst_file *) = {write_plain, write_vector, write_append, write_later};
    struct pst_fs *fs = *state;
    struct pst_cred root = fs->k->cred;
    struct pst_file *f;
    struct stat st;

    api_put(fs, "/f", "text");
    fs->k->cred = (struct pst_cred){0};
    assert_int_equal(pst_chown(fs, "/f", 1000, 1000, 0), 0);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        assert_int_equal(pst_chmod(fs, "/f", 06757), 0);
        fs->k->cred = (struct pst_cred){.uid = 2000, .gid = 2000};
        assert_int_equal(pst_open(fs, "/f", O_RDWR, 0, &f), 0);
        assert_int_equal(pst_pwrite(f, "", 0, 0), 0);
        assert_int_equal(pst_fstat(f, &st), 0);
        assert_int_equal(st.st_mode & 07777, 06757);
        ways[i](f);
        assert_int_equal(pst_fstat(f, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0757);
        fs->k->cred = (struct pst_cred){0};
        assert_int_equal(pst_fchmod(f, 06755), 0); /* again, and he could not open it any more */
        fs->k->cred = (struct pst_cred){.uid = 2000, .gid = 2000};
        ways[i](f);
        assert_int_equal(pst_fstat(f, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0755);
        assert_int_equal(pst_ftruncate(f, 3), 0);
        assert_int_equal(pst_close(f), 0);
        fs->k->cred = (struct pst_cred){0};
    }
    assert_int_equal(pst_chmod(fs, "/f", 06757), 0);
    api_put(fs, "/f", "root's");
    assert_int_equal(pst_stat(fs, "/f", &st), 0);
    assert_int_equal(st.st_mode & 07777, 06757);
    fs->k->cred = root;
}

#define T(f) cmocka_unit_test_setup_teardown(f, api_setup, api_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(sequential_writes_become_large_operations),
        T(a_failed_write_is_reported_once),
        T(a_failed_write_is_told_to_every_handle_that_syncs),
        T(a_failed_sync_is_told_to_every_handle_that_syncs),
        T(a_later_write_never_comes_before_an_earlier_one),
        T(write_behind_memory_is_bounded),
        T(written_data_does_not_wait_for_ever),
        T(a_buffer_that_is_younger_than_the_look_is_not_old),
        T(direct_and_synchronous_handles_keep_nothing_back),
        T(sequential_reads_are_fetched_ahead_and_never_stale),
        T(an_event_queue_delivers_and_its_descriptor_tells),
        cmocka_unit_test(operations_that_wait_for_room_can_be_cancelled),
        T(given_memory_is_sent_as_it_is),
        T(given_and_copied_writes_are_what_is_read),
        T(a_write_of_who_is_not_root_takes_set_id_bits_away),
        T(registered_memory_is_checked),
        cmocka_unit_test(unusable_urls_and_options_are_refused),
    };

    pst_backend_register(&memstore_backend);
    api_base = "mem:?";
    return api_run_cases() + cmocka_run_group_tests(tests, NULL, NULL);
}

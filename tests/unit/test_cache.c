/* The cache over a store that can hold operations back, fail and count them. */
#include "cache_fixture.h"

#include <poll.h>
#include <sys/eventfd.h>

#define SIZE (16 * MiB)

/* In place of libc's: a thread that is `held` writes only once another one has read in vain. */
static _Thread_local bool held;
static atomic_bool writing, in_vain;

int eventfd_write(int fd, eventfd_t v)
{
    if (held) {
        atomic_store(&writing, true);
        while (!atomic_load(&in_vain))
            usleep(100);
    }
    return write(fd, &v, sizeof v) == sizeof v ? 0 : -1;
}

int eventfd_read(int fd, eventfd_t *v)
{
    int r = read(fd, v, sizeof *v) == sizeof *v ? 0 : -1;

    if (r && atomic_load(&writing))
        atomic_store(&in_vain, true);
    return r;
}

static void what_was_read_is_not_read_again(void **state)
{
    struct cx x;
    uint64_t ino, before;
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", 3 * MiB + 777);
    before = cx_done(PST_OP_READ);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cx_check(&x, ino, 0, 4 * MiB, 0), 3 * MiB + 777);
        assert_int_equal(cx_check(&x, ino, 70000, 200000, 0), 200000);
        assert_int_equal(cx_check(&x, ino, 3 * MiB + 700, 4096, 0), 77);
        assert_int_equal(cx_check(&x, ino, 3 * MiB + 777, 10, 0), 0);
        assert_int_equal(cx_check(&x, ino, 9 * MiB, 10, 0), 0);
        assert_int_equal(cx_check(&x, ino, 5, 0, 0), 0);
    }
    assert_int_equal(cx_done(PST_OP_READ) - before, 4); /* 1 MiB each, and the rest */
    assert_int_equal(cx_done(PST_OP_ATTR), 0);          /* a file that this one made, and has open */
    assert_int_equal(cx_counts(&x).misses, 1);
    assert_int_equal(cx_counts(&x).hits, 3 * 3 - 1);
    cx_close(&x);
}

static void a_read_into_many_pieces_of_memory_is_right(void **state)
{
    uint8_t *p = calloc(1, MiB);
    struct iovec v[40];
    struct rng r;
    struct cx x;
    uint64_t ino;
    (void)state;

    rng_seed(&r, 5);
    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    for (int round = 0; round < 50; round++) {
        uint64_t at = rng_below(&r, MiB), n = 0;
        struct pst_op op = {.kind = PST_OP_READ, .cont = x.c, .ino = ino, .offset = at, .iov = v};
        for (op.iovcnt = 0; op.iovcnt < 40 && n < MiB - 30000; op.iovcnt++) {
            v[op.iovcnt] = (struct iovec){p + n, rng_below(&r, 4) ? rng_below(&r, 30000) : 0};
            n += v[op.iovcnt].iov_len;
        }
        op.length = n;
        assert_int_equal(pst_queue_run(x.q, &op), min_u64(n, MiB - at));
        for (int64_t i = 0; i < op.result; i++)
            assert_int_equal(p[i], cx_byte(0, at + (uint64_t)i));
    }
    cx_close(&x);
    free(p);
}

static void a_change_through_it_is_seen_at_once(void **state)
{
    struct pst_attr a = {.size = 100};
    struct cx x;
    uint64_t ino;
    uint8_t p[300];
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    cx_write(&x, ino, 0, MiB, 1);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 1), MiB);
    assert_int_equal(pst_store_setattr(x.c, &cx_ctx, ino, PST_SET_SIZE, &a, &a), 0);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 1), 100);
    cx_write(&x, ino, 100, 100, 2);
    assert_int_equal(cx_check(&x, ino, 100, MiB, 2), 100);
    assert_int_equal(cx_io(&x, PST_OP_PUNCH, ino, 0, NULL, 200), 0);
    assert_int_equal(cx_io(&x, PST_OP_READ, ino, 0, p, 300), 200);
    for (int i = 0; i < 200; i++)
        assert_int_equal(p[i], 0);
    assert_int_equal(pst_store_open(x.c, &cx_ctx, ino, R_OK | W_OK, true, &a), 0);
    assert_int_equal(cx_check(&x, ino, 0, 10, 0), 0);
    cx_close(&x);
}

static void a_change_by_another_way_is_seen_by_the_next_open(void **state)
{
    struct cx x, y;
    struct pst_attr a;
    uint64_t ino, before;
    (void)state;

    cx_open(&x, SIZE, 0);
    cx_open(&y, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    cx_reopen(&y, ino);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    assert_int_equal(cx_check(&y, ino, 0, MiB, 0), MiB);
    cx_write(&y, ino, 0, 2 * MiB, 1);
    cx_reopen(&x, ino);
    assert_int_equal(cx_check(&x, ino, 0, 3 * MiB, 1), 2 * MiB);
    cx_write(&y, ino, 5, 1000, 2);
    assert_int_equal(pst_store_getattr(x.c, &cx_ctx, ino, &a), 0);
    assert_int_equal(cx_check(&x, ino, 5, 1000, 2), 1000);
    cx_write(&y, ino, 5, 1000, 3);
    assert_int_equal(pst_store_lookup(x.c, &cx_ctx, PST_ROOT_INO, "f", &a), 0);
    assert_int_equal(cx_check(&x, ino, 5, 1000, 3), 1000);
    /* And an open that finds nothing new leaves all there. */
    before = cx_done(PST_OP_READ);
    cx_reopen(&x, ino);
    assert_int_equal(cx_check(&x, ino, 5, 1000, 3), 1000);
    assert_int_equal(cx_done(PST_OP_READ), before);
    cx_close(&x);
    cx_close(&y);
}

/* A reader above that keeps bytes itself, another cache, asks for the attributes by an operation that passes. */
static void attributes_that_pass_are_a_look_too(void **state)
{
    struct cx x, y;
    uint64_t ino;
    (void)state;

    cx_open(&x, SIZE, 0);
    cx_open(&y, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    cx_reopen(&y, ino);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    cx_write(&y, ino, 0, 2 * MiB, 1);
    assert_int_equal(cx_io(&x, PST_OP_ATTR, ino, 0, NULL, 0), 0);
    assert_int_equal(cx_check(&x, ino, 0, 3 * MiB, 1), 2 * MiB);
    assert_int_equal(cx_counts(&x).looks, 0);
    cx_close(&x);
    cx_close(&y);
}

/* Without an open: a second at most. */
static void a_file_that_stays_open_is_looked_at_each_second(void **state)
{
    struct cx x, y;
    uint64_t ino, before;
    (void)state;

    cx_open(&x, SIZE, 0);
    cx_open(&y, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    cx_reopen(&y, ino);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    before = cx_done(PST_OP_READ);
    cx_age(&x, CACHE_AGE_NS);
    usleep(1100000);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    assert_int_equal(cx_done(PST_OP_READ), before);
    assert_int_equal(cx_counts(&x).looks, 1);
    cx_write(&y, ino, 0, MiB, 1);
    usleep(1100000);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 1), MiB);
    cx_close(&x);
    cx_close(&y);
}

/* A look that is refused, as with a capability that is revoked: then nothing is handed out of memory. */
static void a_look_that_fails_ends_the_hits(void **state)
{
    struct cx x;
    uint64_t ino;
    uint8_t p[10];
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    cx_age(&x, 0);
    memstore_fail(cx_mem, BIT(PST_OP_ATTR) | BIT(PST_OP_READ), -EACCES, 100);
    assert_int_equal(cx_io(&x, PST_OP_READ, ino, 0, p, 10), -EACCES);
    memstore_fail(cx_mem, 0, 0, 0);
    cx_age(&x, UINT64_MAX);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    cx_close(&x);
}

static void another_history_of_the_store_makes_all_void(void **state)
{
    struct cx x;
    uint64_t ino, before;
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    before = cx_done(PST_OP_READ);
    cx_history = 2;
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    assert_true(cx_done(PST_OP_READ) > before);
    assert_int_equal(cx_counts(&x).looks, 1);
    cx_close(&x);
}

/* Its counter is the lost history's: in the new one the same number may come for other bytes. */
static void a_change_of_the_history_before_is_no_look_at_the_new_one(void **state)
{
    uint8_t p[100] = {0};
    struct iovec v = {p, sizeof p};
    struct pst_op *back = NULL;
    struct pst_queue *other;
    struct cx x;
    uint64_t ino;
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    struct pst_op w = {.kind = PST_OP_WRITE, .cont = x.c, .ino = ino, .length = sizeof p, .iov = &v, .iovcnt = 1};
    assert_int_equal(pst_queue_open(x.top, 8, &other), 0);
    memstore_hold(cx_mem, BIT(PST_OP_WRITE));
    assert_int_equal(pst_queue_submit(other, &w), 0);
    cx_history = 2;
    assert_int_equal(cx_check(&x, ino, 1000, 1000, 0), 1000);
    assert_int_equal(cx_counts(&x).looks, 1);
    memstore_release(cx_mem);
    while (!back)
        assert_true(pst_queue_reap(other, &back, 1, UINT64_MAX) >= 0);
    assert_int_equal(w.result, sizeof p);
    assert_int_equal(cx_check(&x, ino, 1000, 1000, 0), 1000);
    assert_int_equal(cx_counts(&x).looks, 2);
    pst_queue_close(other);
    cx_close(&x);
}

/* ---- several at once ---- */

static void who_reads_what_is_being_fetched_waits_for_it(void **state)
{
    struct cx_op o[3];
    struct pst_queue *other;
    struct cx x;
    uint64_t ino, before;
    (void)state;

    cx_open(&x, SIZE, 0);
    assert_int_equal(pst_queue_open(x.top, 8, &other), 0);
    ino = cx_make(&x, "f", MiB);
    before = cx_done(PST_OP_READ);
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    cx_begin(&x, x.q, &o[0], ino, 0, 100000);
    cx_begin(&x, x.q, &o[1], ino, 50000, 20000);
    cx_begin(&x, other, &o[2], ino, 70000, 20000);
    cx_turn(other);
    memstore_release(cx_mem);
    cx_end(x.q, &o[0], 100000, 0);
    cx_end(x.q, &o[1], 20000, 0);
    cx_end(other, &o[2], 20000, 0);
    assert_int_equal(cx_done(PST_OP_READ) - before, 1);
    pst_queue_close(other);
    cx_close(&x);
}

/* What it brings may be older than the write, and is kept for nobody. */
static void a_fetch_that_a_write_overtakes_is_not_kept(void **state)
{
    struct cx_op o;
    struct cx x;
    uint64_t ino;
    struct pst_op *back;
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    cx_begin(&x, x.q, &o, ino, 0, 1000);
    assert_int_equal(pst_queue_reap(x.q, &back, 1, 0), 0);
    {
        /* The other queue's write ends while the read is under way. */
        struct pst_queue *q = x.q;
        assert_int_equal(pst_queue_open(x.top, 8, &x.q), 0);
        cx_write(&x, ino, 0, 500, 1);
        memstore_release(cx_mem);
        assert_int_equal(cx_check(&x, ino, 0, 500, 1), 500);
        pst_queue_close(x.q);
        x.q = q;
    }
    while (!pst_queue_reap(x.q, &back, 1, UINT64_MAX))
        ;
    assert_int_equal(o.op.result, 1000); /* either state */
    free(o.p);
    assert_int_equal(cx_check(&x, ino, 0, 500, 1), 500);
    cx_close(&x);
}

static void a_read_that_is_cancelled_comes_back_and_the_others_go_on(void **state)
{
    struct cx_op a, b;
    struct cx x;
    uint64_t ino;
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    cx_begin(&x, x.q, &a, ino, 0, 1000);
    cx_begin(&x, x.q, &b, ino, 500, 1000);
    pst_queue_cancel(x.q, &a.op);
    cx_end(x.q, &a, -ECANCELED, 0);
    memstore_release(cx_mem);
    cx_end(x.q, &b, 1000, 0);
    assert_int_equal(cx_check(&x, ino, 0, 1000, 0), 1000);
    cx_close(&x);
}

/* The owner of a queue may be held up; his fetch holds up others for two seconds. */
static void nobody_waits_long_for_the_fetch_of_a_queue_that_is_not_driven(void **state)
{
    struct cx_op a, b;
    struct pst_queue *stuck;
    struct pollfd p;
    struct cx x;
    uint64_t ino;
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    assert_int_equal(pst_queue_open(x.top, 8, &stuck), 0);
    cx_begin(&x, stuck, &a, ino, 0, 1000);
    cx_begin(&x, x.q, &b, ino, 500, 1000);
    cx_turn(x.q);
    p = (struct pollfd){.fd = pst_queue_fd(x.q), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 20000), 1);
    cx_end(x.q, &b, 1000, 0);
    cx_end(stuck, &a, 1000, 0);
    pst_queue_close(stuck);
    cx_close(&x);
}

static void a_queue_closes_while_it_fetches_for_another(void **state)
{
    struct cx_op a, b;
    struct pst_queue *first;
    struct cx x;
    uint64_t ino;
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    assert_int_equal(pst_queue_open(x.top, 8, &first), 0);
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    cx_begin(&x, first, &a, ino, 0, 1000);
    cx_begin(&x, x.q, &b, ino, 500, 1000);
    pst_queue_cancel(first, &a.op);
    cx_end(first, &a, -ECANCELED, 0);
    memstore_release(cx_mem);
    pst_queue_close(first);
    cx_end(x.q, &b, 1000, 0);
    cx_close(&x);
}

static void *drive(void *queue)
{
    struct pst_op *back;

    held = true;
    while (!pst_queue_reap(queue, &back, 1, UINT64_MAX))
        ;
    return NULL;
}

/* Its owner may look between the mark that it is signalled and the signal, which then comes late. */
static void a_signal_that_comes_late_does_not_stay(void **state)
{
    struct cx_op a, b;
    struct pst_queue *other;
    struct pollfd p;
    pthread_t t;
    struct cx x;
    uint64_t ino;
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    assert_int_equal(pst_queue_open(x.top, 8, &other), 0);
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    cx_begin(&x, other, &a, ino, 0, 1000);
    cx_begin(&x, x.q, &b, ino, 500, 1000);
    cx_turn(x.q);
    memstore_release(cx_mem);
    assert_int_equal(pthread_create(&t, NULL, drive, other), 0);
    while (!atomic_load(&writing))
        usleep(100);
    cx_end(x.q, &b, 1000, 0);
    pthread_join(t, NULL);
    assert_int_equal(a.op.result, 1000);
    free(a.p);
    cx_turn(x.q);
    p = (struct pollfd){.fd = pst_queue_fd(x.q), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    pst_queue_close(other);
    cx_close(&x);
}

/* ---- errors ---- */

static void an_error_is_told_once_and_not_kept(void **state)
{
    struct cx_op a, b;
    struct cx x;
    uint64_t ino;
    uint8_t p[100];
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", 3 * MiB);
    memstore_fail(cx_mem, BIT(PST_OP_READ), -EIO, 1);
    assert_int_equal(cx_io(&x, PST_OP_READ, ino, 0, p, 100), -EIO);
    assert_int_equal(cx_check(&x, ino, 0, 2 * MiB, 0), 2 * MiB);
    /* Who waited for the one that failed reads by himself. */
    memstore_hold(cx_mem, BIT(PST_OP_READ));
    cx_begin(&x, x.q, &a, ino, 2 * MiB, 1000);
    cx_begin(&x, x.q, &b, ino, 2 * MiB + 100, 1000);
    memstore_fail(cx_mem, BIT(PST_OP_READ), -EIO, 1);
    memstore_release(cx_mem);
    cx_end(x.q, &a, -EIO, 0);
    cx_end(x.q, &b, 1000, 0);
    cx_close(&x);
}

static void a_change_that_failed_may_have_happened(void **state)
{
    struct cx x, y;
    uint64_t ino;
    uint8_t p[100];
    (void)state;

    cx_open(&x, SIZE, 0);
    cx_open(&y, SIZE, 0);
    ino = cx_make(&x, "f", MiB);
    cx_reopen(&y, ino);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 0), MiB);
    cx_write(&y, ino, 0, MiB, 1);
    memstore_fail(cx_mem, BIT(PST_OP_WRITE), -EIO, 1);
    assert_int_equal(cx_io(&x, PST_OP_WRITE, ino, 0, p, 100), -EIO);
    assert_int_equal(cx_check(&x, ino, 0, MiB, 1), MiB);
    cx_close(&x);
    cx_close(&y);
}

static struct cx *overtaken; /* whose attributes are overtaken by a change that is said to have failed */

static int late_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret)
{
    const struct pst_attr in = {.size = 2000};
    struct pst_attr out;
    struct cx *x = overtaken;
    int r = pst_store_getattr(c->next, ctx, ino, ret);

    overtaken = NULL;
    if (x)
        assert_int_equal(pst_store_setattr(x->c, ctx, ino, PST_SET_SIZE, &in, &out), -EIO);
    return r;
}

static int failing_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                           const struct pst_attr *in, struct pst_attr *ret)
{
    assert_int_equal(pst_store_setattr(c->next, ctx, ino, mask, in, ret), 0);
    return -EIO;
}

/* They are of before it, and do not say what the file is after it. */
static void attributes_that_a_failed_change_overtakes_are_no_look(void **state)
{
    struct pst_attr a;
    struct cx x;
    uint64_t ino;
    uint8_t p[3000];
    (void)state;

    cx_open(&x, SIZE, 0);
    ino = cx_make(&x, "f", 1000);
    x.share.ops.getattr = late_getattr;
    x.share.ops.setattr = failing_setattr;
    assert_int_equal(cx_check(&x, ino, 0, 3000, 0), 1000);
    overtaken = &x;
    assert_int_equal(pst_store_getattr(x.c, &cx_ctx, ino, &a), 0);
    assert_int_equal(a.size, 1000);
    assert_int_equal(cx_io(&x, PST_OP_READ, ino, 0, p, sizeof p), 2000);
    assert_int_equal(cx_counts(&x).looks, 1);
    cx_close(&x);
}

static void other_operations_and_objects_that_are_not_open_pass(void **state)
{
    struct cx x, y;
    uint64_t ino;
    (void)state;

    cx_open(&x, SIZE, 0);
    cx_open(&y, SIZE, 0);
    ino = cx_make(&x, "f", 1000);
    assert_int_equal(cx_check(&y, ino, 0, 2000, 0), 1000); /* memstore does not ask for an open */
    assert_int_equal(cx_counts(&y).passed, 1);
    assert_int_equal(cx_io(&x, PST_OP_SEEK_HOLE, ino, 0, NULL, 0), 1000);
    assert_int_equal(cx_io(&x, PST_OP_FSYNC, ino, 0, NULL, 0), 0);
    assert_int_equal(cx_io(&x, PST_OP_CHUNK_READ, ino, 0, NULL, 0), -EOPNOTSUPP);
    assert_int_equal(pst_queue_spread(x.q), 0);
    cx_close(&x);
    cx_close(&y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CX_TEST(what_was_read_is_not_read_again),
        CX_TEST(a_read_into_many_pieces_of_memory_is_right),
        CX_TEST(a_change_through_it_is_seen_at_once),
        CX_TEST(a_change_by_another_way_is_seen_by_the_next_open),
        CX_TEST(attributes_that_pass_are_a_look_too),
        CX_TEST(a_file_that_stays_open_is_looked_at_each_second),
        CX_TEST(a_look_that_fails_ends_the_hits),
        CX_TEST(another_history_of_the_store_makes_all_void),
        CX_TEST(a_change_of_the_history_before_is_no_look_at_the_new_one),
        CX_TEST(who_reads_what_is_being_fetched_waits_for_it),
        CX_TEST(a_fetch_that_a_write_overtakes_is_not_kept),
        CX_TEST(a_read_that_is_cancelled_comes_back_and_the_others_go_on),
        CX_TEST(nobody_waits_long_for_the_fetch_of_a_queue_that_is_not_driven),
        CX_TEST(a_queue_closes_while_it_fetches_for_another),
        CX_TEST(a_signal_that_comes_late_does_not_stay),
        CX_TEST(an_error_is_told_once_and_not_kept),
        CX_TEST(a_change_that_failed_may_have_happened),
        CX_TEST(attributes_that_a_failed_change_overtakes_are_no_look),
        CX_TEST(other_operations_and_objects_that_are_not_open_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

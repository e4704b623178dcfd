/* The data path on a store or in a quota that is full: nothing is lost, and what needs no more space works. */
#include "data_bytes.h"

/* As much as fits; returns the size. */
static uint64_t fill_store(uint64_t ino)
{
    uint64_t at = 0;

    for (size_t n = MiB; n >= PST_BLOCK;) {
        if (dx_write(ino, at, bytes, n) == (int64_t)n)
            at += n;
        else
            n /= 2;
    }
    return at;
}

static void writes_into_allocated_space_work_on_a_full_store(void **state)
{
    uint64_t ino = dx_file("f"), big = dx_file("big"), at;
    (void)state;

    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 2 * MiB, PST_OPF_KEEP_SIZE), 0);
    at = fill_store(big);
    assert_int_equal(dx_write(big, at, bytes, 1), -ENOSPC);
    assert_int_equal(dx_write(ino, 0, bytes, MiB), MiB);
    for (uint64_t o = MiB; o < 2 * MiB; o += 100000) {
        size_t n = min_u64(100000, 2 * MiB - o);
        assert_int_equal(dx_write(ino, o, bytes + o, n), (int64_t)n);
    }
    dx_expect(ino, bytes, 2 * MiB);
    assert_int_equal(dx_write(ino, 2 * MiB, bytes, 1), -ENOSPC);
    assert_int_equal(nx_attr(ino).used, 2 * MiB);
}

static void a_full_store_keeps_what_it_has(void **state)
{
    uint64_t ino = dx_file("f"), big = dx_file("big"), at, used;
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 2 * MiB), 2 * MiB);
    at = fill_store(big);
    used = nx_attr(ino).used;
    assert_int_equal(dx_write(ino, 2 * MiB, bytes + 5, 1), -ENOSPC);
    /* What replaces as much as it takes still works: here the reserve for that is 1 MiB. */
    assert_int_equal(dx_write(ino, 0, bytes + 5, 2 * MiB), -ENOSPC);
    dx_expect(ino, bytes, 2 * MiB);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(dx_write(ino, 70000, bytes + 5, 800000), 800000);
        assert_int_equal(dx_write(ino, 70000, bytes + 70000, 800000), 800000);
    }
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 40 * MiB, 0), -ENOSPC);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 3 * MiB, 0), -ENOSPC);
    assert_int_equal(nx_attr(ino).used, used);
    assert_int_equal(nx_attr(ino).size, 2 * MiB);
    dx_expect(ino, bytes, 2 * MiB);
    dx_check_space();
    /* Shorter, with a cut block, and with a hole: both work, and make room. */
    assert_int_equal(dx_truncate(big, at - MiB - 5), 0);
    assert_int_equal(dx_range(PST_OP_PUNCH, big, 100, MiB, 0), 0);
    assert_int_equal(dx_write(ino, 0, bytes + 5, MiB), MiB);
    assert_int_equal(nx_unlink(NULL, PST_ROOT_INO, "big"), 0);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 40 * MiB, 0), 0);
}

static void quotas_bound_data(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_cont_props props = {.quota_bytes = MiB, .mode = 0777, .chunk_size = 64 * KiB};
    struct pst_cont_info info;
    struct pst_cont *old = nx_c, *c;
    uint64_t ino;
    (void)state;

    assert_int_equal(pst_cont_create(&nx_e->st, &ctx, "p", "small", &props, &info), 0);
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", "small", &c), 0);
    nx_c = c;
    ino = dx_file("f");
    assert_int_equal(dx_write(ino, 0, bytes, MiB), MiB);
    assert_int_equal(dx_write(ino, MiB, bytes, 1), -EDQUOT);
    assert_int_equal(dx_range(PST_OP_ALLOCATE, ino, 0, 10 * MiB, 0), -EDQUOT);
    assert_int_equal(nx_attr(ino).used, MiB);
    assert_int_equal(dx_write(ino, 0, bytes + 1, MiB), MiB); /* it gives back what it takes */
    dx_expect(ino, bytes + 1, MiB);
    assert_int_equal(dx_truncate(ino, 1), 0);
    assert_int_equal(dx_write(ino, 4096, bytes, MiB - 4096), MiB - 4096);
    nx_c = old;
    pst_cont_close(c);
    assert_int_equal(pst_cont_destroy(&nx_e->st, &ctx, "p", "small"), 0);
}

static void overwrites_at_once_on_a_full_store_wait_for_one_another(void **state)
{
    uint64_t ino = dx_file("f"), big = dx_file("big");
    struct iovec v[8];
    struct pst_op ops[8], *done[8];
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 2 * MiB), 2 * MiB);
    fill_store(big);
    for (int i = 0; i < 8; i++) {
        v[i] = (struct iovec){.iov_base = bytes + 1000 + i * 256 * 1024, .iov_len = 256 * KiB};
        ops[i] = dx_op(PST_OP_WRITE, ino, (uint64_t)i * 256 * KiB, 256 * KiB);
        ops[i].iov = &v[i];
        ops[i].iovcnt = 1;
        assert_int_equal(pst_queue_submit(dx_q, &ops[i]), 0);
    }
    for (int n = 0; n < 8;)
        n += pst_queue_reap(dx_q, done, 8, UINT64_MAX);
    for (int i = 0; i < 8; i++)
        assert_int_equal(ops[i].result, 256 * KiB);
    dx_expect(ino, bytes + 1000, 2 * MiB);
}

/* The end moves while an append is under way, so that it needs one block more than it has from the reserve. */
static void an_append_on_a_full_store_does_not_wait_for_itself(void **state)
{
    uint64_t ino = dx_file("f"), big = dx_file("big"), taken[512];
    uint32_t n = 0;
    struct iovec v = {.iov_base = bytes, .iov_len = 100};
    struct pst_op op = dx_op(PST_OP_WRITE, ino, 0, 100), *done;
    struct swap_reserve *swap = &nx_e->data->swap;
    (void)state;

    assert_int_equal(dx_write(ino, 0, bytes, 100), 100);
    fill_store(big);
    swap->want = 17;
    while (swap->n > 17 && n < ARRAY_SIZE(taken))
        assert_int_equal(swap_take_one(nx_e, &taken[n++]), 0);
    nx_e->opt.direct = CHOICE_ALWAYS; /* no I/O of the append is over at once */
    nx_e->data->try_cached = false;
    op.iov = &v;
    op.iovcnt = 1;
    op.flags = PST_OPF_APPEND;
    assert_int_equal(pst_queue_submit(dx_q, &op), 0);
    assert_int_equal(dx_truncate(ino, 4090), 0);
    assert_int_equal(pst_queue_reap(dx_q, &done, 1, 10 * NSEC_PER_SEC), 1);
    assert_int_equal(op.result, -ENOSPC);
    assert_int_equal(nx_attr(ino).size, 4090);
    while (n > 0)
        alloc_unclaim(nx_e, taken[--n], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(writes_into_allocated_space_work_on_a_full_store),
        DATA_TEST(a_full_store_keeps_what_it_has),
        DATA_TEST(quotas_bound_data),
        DATA_TEST(overwrites_at_once_on_a_full_store_wait_for_one_another),
        DATA_TEST(an_append_on_a_full_store_does_not_wait_for_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

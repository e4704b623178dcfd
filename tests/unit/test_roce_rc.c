/* RC between two engines on a quiet link: every operation, sizes, order, acknowledgements. */
#include "roce_fixture.h"

#include <sys/mman.h>

static const uint32_t sizes[] = {0, 1, 3, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537};

static void write_moves_bytes_of_every_size(void **state)
{
    (void)state;
    fx_open(NULL);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        uint32_t n = sizes[i];
        struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_WRITE, i, b.mem + 64);
        struct uroce_wc wc;
        fx_fill(a.mem, n, i + 1);
        memset(b.mem, 0xee, QEND_MEM);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, n), 0);
        fx_run();
        wc = fx_one(a.scq);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_int_equal(wc.opcode, UROCE_WC_RDMA_WRITE);
        assert_int_equal(wc.wr_id, i);
        assert_memory_equal(b.mem + 64, a.mem, n);
        assert_int_equal(b.mem[63], 0xee);
        assert_int_equal(b.mem[64 + n], 0xee);
    }
    fx_none(b.rcq);
    fx_close();
}

static void read_moves_bytes_of_every_size(void **state)
{
    (void)state;
    fx_open(NULL);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        uint32_t n = sizes[i];
        struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_READ, i, b.mem + 8);
        struct uroce_wc wc;
        fx_fill(b.mem, n + 8, i + 100);
        memset(a.mem, 0xee, QEND_MEM);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem + 64, n), 0);
        fx_run();
        wc = fx_one(a.scq);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_int_equal(wc.opcode, UROCE_WC_RDMA_READ);
        assert_int_equal(wc.byte_len, n);
        assert_memory_equal(a.mem + 64, b.mem + 8, n);
        assert_int_equal(a.mem[63], 0xee);
        assert_int_equal(a.mem[64 + n], 0xee);
    }
    fx_close();
}

static void send_lands_in_the_receive_with_its_length(void **state)
{
    (void)state;
    fx_open(NULL);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        uint32_t n = sizes[i];
        struct uroce_send_wr wr = fx_send(i);
        struct uroce_wc wc;
        fx_fill(a.mem, n, i + 7);
        memset(b.mem, 0xee, QEND_MEM);
        assert_int_equal(qend_recv(&b, &net, 1000 + i, b.mem + 64, 70000), 0);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, n), 0);
        fx_run();
        wc = fx_one(b.rcq);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_int_equal(wc.opcode, UROCE_WC_RECV);
        assert_int_equal(wc.wr_id, 1000 + i);
        assert_int_equal(wc.byte_len, n);
        assert_memory_equal(b.mem + 64, a.mem, n);
        assert_int_equal(b.mem[64 + n], 0xee);
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    }
    fx_close();
}

static void immediate_data_arrives_as_posted(void **state)
{
    struct uroce_send_wr s = fx_send(1), w;
    struct uroce_wc wc;

    (void)state;
    fx_open(NULL);
    w = fx_rdma(UROCE_WR_RDMA_WRITE_WITH_IMM, 2, b.mem + 5000);
    s.opcode = UROCE_WR_SEND_WITH_IMM;
    s.imm_data = 0x01020304;
    w.imm_data = 0xa0b0c0d0;
    assert_int_equal(qend_recv(&b, &net, 10, b.mem, 100), 0);
    assert_int_equal(qend_recv(&b, &net, 11, b.mem, 100), 0);
    assert_int_equal(qend_send(&a, &net, &s, a.mem, 50), 0);
    assert_int_equal(qend_send(&a, &net, &w, a.mem, 3000), 0);
    fx_run();
    wc = fx_one(b.rcq);
    assert_int_equal(wc.imm_data, 0x01020304);
    assert_int_equal(wc.wc_flags, UROCE_WC_WITH_IMM);
    assert_int_equal(wc.byte_len, 50);
    wc = fx_one(b.rcq);
    assert_int_equal(wc.opcode, UROCE_WC_RECV_RDMA_WITH_IMM);
    assert_int_equal(wc.imm_data, 0xa0b0c0d0);
    assert_int_equal(wc.byte_len, 3000);
    assert_int_equal(wc.wr_id, 11);
    fx_close();
}

static void atomics_return_the_old_value(void **state)
{
    uint64_t *counter, *old;
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    counter = (uint64_t *)(void *)(b.mem + 512);
    old = (uint64_t *)(void *)(a.mem + 16);
    *counter = 100;
    wr = fx_atomic(UROCE_WR_ATOMIC_FETCH_AND_ADD, 1, counter, 5, 0);
    assert_int_equal(qend_send(&a, &net, &wr, old, 8), 0);
    fx_run();
    assert_int_equal(*old, 100);
    assert_int_equal(*counter, 105);
    assert_int_equal(fx_one(a.scq).opcode, UROCE_WC_FETCH_ADD);
    wr = fx_atomic(UROCE_WR_ATOMIC_CMP_AND_SWP, 2, counter, 105, 7);
    assert_int_equal(qend_send(&a, &net, &wr, old, 8), 0);
    fx_run();
    assert_int_equal(*old, 105);
    assert_int_equal(*counter, 7);
    wr = fx_atomic(UROCE_WR_ATOMIC_CMP_AND_SWP, 3, counter, 8, 9);
    assert_int_equal(qend_send(&a, &net, &wr, old, 8), 0);
    fx_run();
    assert_int_equal(*old, 7);
    assert_int_equal(*counter, 7);
    fx_close();
}

static void inline_bytes_are_taken_when_posted(void **state)
{
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    wr.send_flags |= UROCE_SEND_INLINE;
    fx_fill(a.mem, 100, 3);
    fx_fill(a.mem + 1000, 100, 3);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 100), 0);
    memset(a.mem, 0, 100);
    fx_run();
    assert_memory_equal(b.mem, a.mem + 1000, 100);
    wr.send_flags |= UROCE_SEND_INLINE;
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 129), -EINVAL);
    fx_close();
}

static void pieces_are_gathered_and_scattered(void **state)
{
    struct uroce_sge out[4], in[4];
    struct uroce_send_wr wr = fx_send(1);
    struct uroce_recv_wr rwr = {.wr_id = 2, .sg_list = in, .num_sge = 4};
    const struct uroce_send_wr *bad;
    const struct uroce_recv_wr *rbad;
    uint8_t whole[5000], got[5000];
    bool bell;

    (void)state;
    fx_open(NULL);
    fx_fill(a.mem, 20000, 9);
    out[0] = (struct uroce_sge){(uintptr_t)a.mem, 1000, qp_mr_lkey(a.mr)};
    out[1] = (struct uroce_sge){(uintptr_t)a.mem + 5000, 0, 0};
    out[2] = (struct uroce_sge){(uintptr_t)a.mem + 7000, 3999, qp_mr_lkey(a.mr)};
    out[3] = (struct uroce_sge){(uintptr_t)a.mem + 15000, 1, qp_mr_lkey(a.mr)};
    in[0] = (struct uroce_sge){(uintptr_t)b.mem, 1, qp_mr_lkey(b.mr)};
    in[1] = (struct uroce_sge){(uintptr_t)b.mem + 100, 2500, qp_mr_lkey(b.mr)};
    in[2] = (struct uroce_sge){(uintptr_t)b.mem + 5000, 2000, qp_mr_lkey(b.mr)};
    in[3] = (struct uroce_sge){(uintptr_t)b.mem + 9000, 2000, qp_mr_lkey(b.mr)};
    wr.sg_list = out;
    wr.num_sge = 4;
    assert_int_equal(qp_post_recv(b.qp, &rwr, &rbad, &bell), 0);
    assert_int_equal(qp_post_send(a.qp, &wr, &bad, &bell), 0);
    assert_true(bell);
    qp_engine_doorbell(a.e, net.now, a.qp);
    fx_run();
    assert_int_equal(fx_one(b.rcq).byte_len, 5000);
    memcpy(whole, a.mem, 1000);
    memcpy(whole + 1000, a.mem + 7000, 3999);
    whole[4999] = a.mem[15000];
    got[0] = b.mem[0];
    memcpy(got + 1, b.mem + 100, 2500);
    memcpy(got + 2501, b.mem + 5000, 2000);
    memcpy(got + 4501, b.mem + 9000, 499);
    assert_memory_equal(got, whole, 5000);
    assert_int_equal(b.mem[9499], 0);
    fx_close();
}

static void completions_come_in_order_and_only_when_wanted(void **state)
{
    (void)state;
    fx_open(&(struct qend_opts){.unsignalled = true});
    for (int i = 0; i < 20; i++) {
        struct uroce_send_wr wr =
            fx_rdma(i % 3 ? UROCE_WR_RDMA_WRITE : UROCE_WR_RDMA_READ, (uint64_t)i, b.mem + i * 100);
        wr.send_flags = i % 2 ? UROCE_SEND_SIGNALED : 0;
        assert_int_equal(qend_send(&a, &net, &wr, a.mem + i * 100, 100), 0);
    }
    fx_run();
    for (uint64_t i = 1; i < 20; i += 2)
        assert_int_equal(fx_one(a.scq).wr_id, i);
    fx_none(a.scq);
    fx_close();
}

static unsigned int acks;
static bool count_acks(int from, const struct qp_tx *tx)
{
    acks += from == 1 && tx->pkt.opcode == WIRE_RC_ACK;
    return true;
}

static void acknowledgements_are_coalesced(void **state)
{
    struct uroce_send_wr wr;

    (void)state;
    fx_open(&(struct qend_opts){.window_pkts = 200});
    acks = 0;
    watch = count_acks;
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 128 * 1024), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_in_range(acks, 1, 8);
    fx_close();
}

static void the_psn_wraps(void **state)
{
    struct uroce_send_wr wr, rd;

    (void)state;
    fx_open_both(&(struct qend_opts){.sq_psn = 0xfffff0, .rq_psn = 0xfffffe},
                 &(struct qend_opts){.rq_psn = 0xfffff0, .sq_psn = 0xfffffe});
    fx_fill(a.mem, 60000, 1);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    rd = fx_rdma(UROCE_WR_RDMA_READ, 2, b.mem);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 60000), 0);
    assert_int_equal(qend_send(&a, &net, &rd, a.mem + 100000, 60000), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_memory_equal(a.mem + 100000, a.mem, 60000);
    fx_close();
}

static uint64_t most_out, out;
static bool count_out(int from, const struct qp_tx *tx)
{
    if (from == 0)
        most_out = max_u64(most_out, ++out);
    else if (tx->pkt.opcode == WIRE_RC_ACK)
        out = 0;
    return true;
}

static void the_window_bounds_what_is_unacknowledged(void **state)
{
    struct uroce_send_wr wr;

    (void)state;
    fx_open(&(struct qend_opts){.window_pkts = 7});
    out = most_out = 0;
    watch = count_out;
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 100000), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_in_range(most_out, 6, 7);
    fx_close();
}

static void a_fence_waits_for_reads(void **state)
{
    struct uroce_send_wr rd, wr;

    (void)state;
    fx_open(NULL);
    memset(b.mem, 1, 5000);
    memset(a.mem, 2, 5000);
    rd = fx_rdma(UROCE_WR_RDMA_READ, 1, b.mem);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 2, b.mem + 10000);
    wr.send_flags |= UROCE_SEND_FENCE;
    assert_int_equal(qend_send(&a, &net, &rd, a.mem, 5000), 0);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 5000), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).wr_id, 1);
    assert_int_equal(fx_one(a.scq).wr_id, 2);
    assert_int_equal(b.mem[10000], 1); /* what was read, and not what was there before */
    assert_int_equal(b.mem[14999], 1);
    fx_close();
}

static void a_queue_takes_as_many_requests_as_it_has(void **state)
{
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    for (int i = 0; i < 64; i++)
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 1), 0);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 1), -ENOMEM);
    fx_run();
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 1), 0);
    fx_run();
    fx_close();
}

static void a_solicited_completion_wakes_who_waits_for_one(void **state)
{
    struct uroce_send_wr s = fx_send(1);

    (void)state;
    fx_open(NULL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(qend_recv(&b, &net, 1, b.mem, 100), 0);
    assert_false(qp_cq_arm(b.rcq, true));
    assert_int_equal(qend_send(&a, &net, &s, a.mem, 10), 0);
    fx_run();
    assert_int_equal(b.cq_events, 0);
    s.send_flags |= UROCE_SEND_SOLICITED;
    assert_int_equal(qend_send(&a, &net, &s, a.mem, 10), 0);
    fx_run();
    assert_int_equal(b.cq_events, 1);
    assert_int_equal(qend_send(&a, &net, &s, a.mem, 10), 0);
    fx_run();
    assert_int_equal(b.cq_events, 1); /* once for an arming */
    assert_true(qp_cq_arm(b.rcq, false));
    fx_close();
}

/* ---- 1 GiB: the bytes are not moved, since `copy` stands for the port's memory; nothing is mapped behind it ---- */

static uint64_t copied;
static int count_bytes(void *ctx, void *dst, size_t offset, size_t len)
{
    (void)ctx;
    (void)dst;
    (void)offset;
    copied += len;
    return 0;
}

static void exchange(struct qend *from, struct qend *to)
{
    static struct qp_tx tx[16];
    int n;

    while ((n = qp_engine_tx(from->e, net.now, tx, 16)) > 0)
        for (int i = 0; i < n; i++) {
            struct qp_rx rx = {.pkt = tx[i].pkt, .path = qpnet_path(to->node, from->node), .copy = count_bytes};
            qp_engine_rx(to->e, net.now, &rx);
        }
}

static void messages_of_1_gib_and_no_more(void **state)
{
    void *far = mmap(NULL, UROCE_MSG_MAX + 1ull, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct qp_mr *big[2];

    (void)state;
    assert_ptr_not_equal(far, MAP_FAILED);
    fx_open(&(struct qend_opts){.sq_psn = 0xfff000, .rq_psn = 0xfff000});
    assert_int_equal(qp_mr_reg(a.pd, far, UROCE_MSG_MAX + 1ull, 0, UROCE_ACCESS_LOCAL_WRITE, NULL, &big[0]), 0);
    assert_int_equal(qp_mr_reg(b.pd, far, UROCE_MSG_MAX + 1ull, 0, 7, NULL, &big[1]), 0);
    for (int i = 0; i < 3; i++) {
        struct uroce_sge sge = {0, UROCE_MSG_MAX + (i == 2), qp_mr_lkey(big[0])};
        struct uroce_send_wr wr = {
            .opcode = i == 1 ? UROCE_WR_RDMA_READ : UROCE_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1};
        struct uroce_wc wc;
        copied = 0;
        wr.wr.rdma.rkey = qp_mr_rkey(big[1]);
        assert_int_equal(qend_send(&a, &net, &wr, NULL, 0), 0);
        while (qp_cq_poll(a.scq, 1, &wc) == 0) {
            exchange(&a, &b);
            exchange(&b, &a);
        }
        assert_int_equal(wc.status, i == 2 ? UROCE_WC_LOC_LEN_ERR : UROCE_WC_SUCCESS);
        assert_int_equal(copied, i == 2 ? 0 : UROCE_MSG_MAX);
    }
    assert_int_equal(qp_mr_dereg(big[0]), 0);
    assert_int_equal(qp_mr_dereg(big[1]), 0);
    fx_close();
    munmap(far, UROCE_MSG_MAX + 1ull);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write_moves_bytes_of_every_size),
        cmocka_unit_test(read_moves_bytes_of_every_size),
        cmocka_unit_test(send_lands_in_the_receive_with_its_length),
        cmocka_unit_test(immediate_data_arrives_as_posted),
        cmocka_unit_test(atomics_return_the_old_value),
        cmocka_unit_test(inline_bytes_are_taken_when_posted),
        cmocka_unit_test(pieces_are_gathered_and_scattered),
        cmocka_unit_test(completions_come_in_order_and_only_when_wanted),
        cmocka_unit_test(acknowledgements_are_coalesced),
        cmocka_unit_test(the_psn_wraps),
        cmocka_unit_test(the_window_bounds_what_is_unacknowledged),
        cmocka_unit_test(a_fence_waits_for_reads),
        cmocka_unit_test(a_queue_takes_as_many_requests_as_it_has),
        cmocka_unit_test(a_solicited_completion_wakes_who_waits_for_one),
        cmocka_unit_test(messages_of_1_gib_and_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

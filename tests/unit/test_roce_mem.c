/* Regions, windows, keys; and the states of a queue pair (IBTA table 96). */
#include "roce_fixture.h"

#define RW (UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ)

static void regions_are_checked_when_registered(void **state)
{
    struct qp_mr *mr;
    uint8_t *p;

    (void)state;
    fx_open(NULL);
    p = a.mem;
    assert_int_equal(qp_mr_reg(a.pd, p, 10, (uintptr_t)p, UROCE_ACCESS_REMOTE_WRITE, NULL, &mr), -EINVAL);
    assert_int_equal(qp_mr_reg(a.pd, p, 10, (uintptr_t)p, UROCE_ACCESS_REMOTE_ATOMIC, NULL, &mr), -EINVAL);
    assert_int_equal(qp_mr_reg(a.pd, p, 10, (uintptr_t)p, 1u << 20, NULL, &mr), -EINVAL);
    assert_int_equal(qp_mr_reg(a.pd, p, UINT64_MAX, (uintptr_t)p, RW, NULL, &mr), -EINVAL);
    assert_int_equal(qp_mr_reg(a.pd, p, 10, UINT64_MAX - 5, RW, NULL, &mr), -EINVAL);
    assert_int_equal(qp_mr_reg(a.pd, NULL, UINT64_MAX, 0, RW, NULL, &mr), -EINVAL); /* implicit: local only */
    assert_int_equal(qp_mr_reg(a.pd, p, 0, (uintptr_t)p, RW, NULL, &mr), 0);
    assert_int_equal(qp_mr_dereg(mr), 0);
    assert_int_equal(qp_pd_free(a.pd), -EBUSY);
    assert_int_equal(qp_cq_free(a.scq), -EBUSY);
    assert_int_equal(qp_engine_free(a.e), -EBUSY);
    fx_close();
}

static void keys_are_random_and_never_shared(void **state)
{
    static struct qp_mr *mr[5000];
    static uint32_t seen[5000];
    unsigned int odd = 0;

    (void)state;
    fx_open(NULL);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5000; i++) {
            assert_int_equal(qp_mr_reg(a.pd, a.mem, 100, (uintptr_t)a.mem, RW, NULL, &mr[i]), 0);
            seen[i] = qp_mr_rkey(mr[i]);
            odd += seen[i] & 1;
            for (int k = 0; k < i; k += 97)
                assert_int_not_equal(seen[k] >> 8, seen[i] >> 8);
        }
        /* Taken away in another order, in part; the rest is still found. */
        for (int i = 0; i < 5000; i++) {
            int k = i * 7 % 5000;
            if (k % 2)
                continue;
            assert_int_equal(qp_mr_dereg(mr[k]), 0);
            mr[k] = NULL;
        }
        for (int i = 1; i < 5000; i += 500) {
            struct uroce_sge sge = {(uintptr_t)a.mem, 100, qp_mr_lkey(mr[i])};
            struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
            wr.sg_list = &sge;
            wr.num_sge = 1;
            assert_int_equal(qend_send(&a, &net, &wr, NULL, 0), 0);
            fx_run();
            assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
        }
        for (int i = 1; i < 5000; i += 2)
            assert_int_equal(qp_mr_dereg(mr[i]), 0);
    }
    assert_in_range(odd, 7000, 8000);
    fx_close();
}

static enum uroce_wc_status write_by(uint32_t rkey, uint64_t va, uint32_t len)
{
    struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, NULL);

    wr.wr.rdma.remote_addr = va;
    wr.wr.rdma.rkey = rkey;
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, len), 0);
    fx_run();
    return fx_one(a.scq).status;
}

static void addresses_count_from_the_regions_own_begin(void **state)
{
    struct qp_mr *iova, *zero;

    (void)state;
    fx_open(NULL);
    memset(a.mem, 9, 100);
    assert_int_equal(qp_mr_reg(b.pd, b.mem + 1000, 100, 0x123456789000, RW, NULL, &iova), 0);
    assert_int_equal(qp_mr_reg(b.pd, b.mem + 2000, 100, 77, RW | UROCE_ACCESS_ZERO_BASED, NULL, &zero), 0);
    assert_int_equal(write_by(qp_mr_rkey(iova), 0x123456789000 + 10, 90), UROCE_WC_SUCCESS);
    assert_int_equal(b.mem[1009], 0);
    assert_int_equal(b.mem[1010], 9);
    assert_int_equal(b.mem[1100], 0);
    assert_int_equal(write_by(qp_mr_rkey(zero), 0, 100), UROCE_WC_SUCCESS);
    assert_int_equal(b.mem[2000], 9);
    assert_int_equal(write_by(qp_mr_rkey(zero), 1, 100), UROCE_WC_REM_ACCESS_ERR);
    assert_int_equal(b.mem[2100], 0);
    assert_int_equal(qp_mr_dereg(iova), 0);
    assert_int_equal(qp_mr_dereg(zero), 0);
    fx_close();
}

static void an_implicit_region_is_all_memory_for_local_use(void **state)
{
    struct uroce_send_wr wr;
    struct uroce_sge sge = {0};
    struct qp_mr *all;
    uint8_t here[64];

    (void)state;
    fx_open(NULL);
    assert_int_equal(qp_mr_reg(a.pd, NULL, UINT64_MAX, 0, UROCE_ACCESS_LOCAL_WRITE, NULL, &all), 0);
    memset(b.mem, 3, 64);
    sge = (struct uroce_sge){(uintptr_t)here, sizeof here, qp_mr_lkey(all)};
    wr = fx_rdma(UROCE_WR_RDMA_READ, 1, b.mem);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    assert_int_equal(qend_send(&a, &net, &wr, NULL, 0), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_int_equal(here[63], 3);
    assert_int_equal(qp_mr_dereg(all), 0);
    fx_close();
}

static void a_region_that_is_registered_anew_has_new_keys(void **state)
{
    uint32_t old;

    (void)state;
    fx_open(NULL);
    old = qp_mr_rkey(b.mr);
    assert_int_equal(qp_mr_rereg(b.mr, QP_REREG_ACCESS, NULL, NULL, 0, 0, UROCE_ACCESS_REMOTE_WRITE), -EINVAL);
    assert_int_equal(qp_mr_rkey(b.mr), old);
    assert_int_equal(qp_mr_rereg(b.mr, QP_REREG_TRANSLATION, NULL, b.mem + 100, 50, (uintptr_t)b.mem + 100, 0), 0);
    assert_int_not_equal(qp_mr_rkey(b.mr), old);
    assert_int_equal(write_by(qp_mr_rkey(b.mr), (uintptr_t)b.mem + 100, 50), UROCE_WC_SUCCESS);
    assert_int_equal(write_by(old, (uintptr_t)b.mem + 100, 50), UROCE_WC_REM_ACCESS_ERR);
    fx_close();
}

/* ---- windows ---- */

static int bind_by(struct qend *q, struct qp_mw *mw, uint32_t rkey, void *addr, uint64_t len, unsigned int access)
{
    struct uroce_mw umw = {mw};
    struct uroce_mr umr = {q->mr};
    struct uroce_send_wr wr = {.wr_id = 50, .opcode = UROCE_WR_BIND_MW, .send_flags = UROCE_SEND_SIGNALED};

    wr.bind_mw.mw = &umw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind.mr = len ? &umr : NULL;
    wr.bind_mw.bind.addr = (uintptr_t)addr;
    wr.bind_mw.bind.length = len;
    wr.bind_mw.bind.access = access;
    assert_int_equal(qend_send(q, &net, &wr, NULL, 0), 0);
    fx_run();
    return (int)fx_one(q->scq).status;
}

static void a_type_2_window_opens_a_part_of_a_region_until_it_is_invalidated(void **state)
{
    struct uroce_send_wr inv = {.wr_id = 1, .opcode = UROCE_WR_LOCAL_INV, .send_flags = UROCE_SEND_SIGNALED};
    struct qp_mw *mw;
    uint32_t key;

    (void)state;
    fx_open(NULL);
    assert_int_equal(qp_mw_alloc(b.pd, 2, &mw), 0);
    key = qp_mw_rkey(mw) ^ 0x11;
    assert_int_equal(bind_by(&b, mw, key, b.mem + 100, 50, UROCE_ACCESS_REMOTE_WRITE), UROCE_WC_SUCCESS);
    assert_int_equal(qp_mw_rkey(mw), key);
    assert_int_equal(qp_mr_dereg(b.mr), -EBUSY);
    assert_int_equal(write_by(key, (uintptr_t)b.mem + 100, 50), UROCE_WC_SUCCESS);
    inv.invalidate_rkey = key;
    assert_int_equal(qend_send(&b, &net, &inv, NULL, 0), 0);
    fx_run();
    assert_int_equal(fx_one(b.scq).status, UROCE_WC_SUCCESS);
    assert_int_equal(bind_by(&b, mw, key ^ 1, b.mem, 50, UROCE_ACCESS_REMOTE_WRITE), UROCE_WC_SUCCESS);
    assert_int_equal(write_by(key, (uintptr_t)b.mem, 50), UROCE_WC_REM_ACCESS_ERR); /* the old key byte */
    assert_int_equal(qp_mw_dealloc(mw), 0);
    fx_close();
}

static void a_window_ends_at_its_range_and_rights(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct qp_mw *mw;
        uint32_t key;
        fx_open(NULL);
        assert_int_equal(qp_mw_alloc(b.pd, 2, &mw), 0);
        key = qp_mw_rkey(mw);
        assert_int_equal(
            bind_by(&b, mw, key, b.mem + 100, 50, i == 2 ? UROCE_ACCESS_REMOTE_READ : UROCE_ACCESS_REMOTE_WRITE),
            UROCE_WC_SUCCESS);
        assert_int_equal(write_by(key, (uintptr_t)b.mem + 100 - (i == 0), 50 + (i == 1)), UROCE_WC_REM_ACCESS_ERR);
        assert_int_equal(b.mem[110], 0);
        assert_int_equal(qp_mw_dealloc(mw), 0);
        fx_close();
    }
}

static void a_type_2_window_is_of_one_queue_pair(void **state)
{
    struct qp *other;
    struct qp_mw *mw;

    (void)state;
    fx_open(NULL);
    other = qend_qp(&b);
    assert_int_equal(qp_mw_alloc(b.pd, 2, &mw), 0);
    assert_int_equal(bind_by(&b, mw, qp_mw_rkey(mw), b.mem, 50, UROCE_ACCESS_REMOTE_WRITE), UROCE_WC_SUCCESS);
    /* a's queue pair talks to the other one from now on. */
    assert_int_equal(qp_destroy(a.qp), 0);
    a.qp = qend_qp(&a);
    assert_int_equal(qend_connect_to(&a, a.qp, net.now, b.node, qp_num(other)), 0);
    assert_int_equal(qend_connect_to(&b, other, net.now, a.node, qp_num(a.qp)), 0);
    assert_int_equal(write_by(qp_mw_rkey(mw), (uintptr_t)b.mem, 50), UROCE_WC_REM_ACCESS_ERR);
    assert_int_equal(qp_mw_dealloc(mw), 0);
    assert_int_equal(qp_destroy(other), 0);
    fx_close();
}

static void a_type_1_window_gets_another_key_with_each_bind(void **state)
{
    struct qp_mw *mw;
    uint32_t first, second;

    (void)state;
    fx_open(NULL);
    assert_int_equal(qp_mw_alloc(b.pd, 1, &mw), 0);
    assert_int_equal(bind_by(&b, mw, 0, b.mem, 50, UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_ZERO_BASED),
                     UROCE_WC_SUCCESS);
    first = qp_mw_rkey(mw);
    assert_int_equal(write_by(first, 0, 50), UROCE_WC_SUCCESS);
    assert_int_equal(bind_by(&b, mw, 0, b.mem + 1000, 50, UROCE_ACCESS_REMOTE_WRITE), UROCE_WC_SUCCESS);
    second = qp_mw_rkey(mw);
    assert_int_not_equal(first, second);
    assert_int_equal(write_by(second, (uintptr_t)b.mem + 1000, 50), UROCE_WC_SUCCESS);
    assert_int_equal(bind_by(&b, mw, 0, NULL, 0, 0), UROCE_WC_SUCCESS); /* unbound */
    assert_int_equal(write_by(qp_mw_rkey(mw), (uintptr_t)b.mem + 1000, 50), UROCE_WC_REM_ACCESS_ERR);
    assert_int_equal(qp_mw_dealloc(mw), 0);
    fx_close();
}

static void a_bind_that_gives_too_much_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        static const unsigned int access[] = {
            UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_MW_BIND | UROCE_ACCESS_REMOTE_READ,
            UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_READ, UROCE_ACCESS_MW_BIND | UROCE_ACCESS_REMOTE_READ,
            UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_MW_BIND};
        struct qp_mw *mw;
        fx_open(&(struct qend_opts){.access = access[i]});
        assert_int_equal(qp_mw_alloc(b.pd, 2, &mw), 0);
        /* out of range; without MW_BIND; WRITE on a region that is not writable; another window's index */
        assert_int_equal(bind_by(&b, mw, qp_mw_rkey(mw) ^ (i == 3 ? 0x100 : 0), b.mem, i == 0 ? QEND_MEM + 1 : 50,
                                 UROCE_ACCESS_REMOTE_WRITE),
                         UROCE_WC_MW_BIND_ERR);
        assert_int_equal(fx_state(&b), UROCE_QPS_ERR);
        assert_int_equal(qp_mw_dealloc(mw), 0);
        fx_close();
    }
}

/* ---- states ---- */

static void transitions_need_their_attributes_and_take_no_others(void **state)
{
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_INIT, .port_num = 1}, got;
    unsigned int init = UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT | UROCE_QP_ACCESS_FLAGS;
    struct qp *qp;

    (void)state;
    fx_open(NULL);
    qp = qend_qp(&a);
    for (unsigned int bit = UROCE_QP_PKEY_INDEX; bit <= UROCE_QP_PORT; bit <<= 1)
        assert_int_equal(qp_modify(qp, 0, &attr, init & ~bit, NULL), -EINVAL);
    assert_int_equal(qp_modify(qp, 0, &attr, init | UROCE_QP_QKEY, NULL), -EINVAL);
    /* No alternate paths, no resizing of queues: said so, whatever else is asked for, and nothing has changed. */
    assert_int_equal(qp_modify(qp, 0, &attr, init | UROCE_QP_ALT_PATH, NULL), -EOPNOTSUPP);
    assert_int_equal(qp_modify(qp, 0, &attr, init | UROCE_QP_CAP, NULL), -EOPNOTSUPP);
    assert_int_equal(qp_modify(qp, 0, &attr, UROCE_QP_CAP, NULL), -EOPNOTSUPP);
    attr.qp_state = UROCE_QPS_RTR;
    assert_int_equal(qp_modify(qp, 0, &attr, init, NULL), -EINVAL); /* not from RESET */
    attr.qp_state = UROCE_QPS_INIT;
    attr.port_num = 2;
    assert_int_equal(qp_modify(qp, 0, &attr, init, NULL), -EINVAL);
    qp_query(qp, &got, NULL);
    assert_int_equal(got.qp_state, UROCE_QPS_RESET);
    attr.port_num = 1;
    assert_int_equal(qp_modify(qp, 0, &attr, init, NULL), 0);
    assert_int_equal(qp_modify(qp, 0, &attr, init, NULL), 0); /* INIT again */
    attr.qp_state = UROCE_QPS_RTS;
    assert_int_equal(qp_modify(qp, 0, &attr, UROCE_QP_STATE, NULL), -EINVAL);
    attr.qp_state = UROCE_QPS_ERR;
    assert_int_equal(qp_modify(qp, 0, &attr, UROCE_QP_STATE, NULL), 0);
    attr.qp_state = UROCE_QPS_RESET;
    assert_int_equal(qp_modify(qp, 0, &attr, UROCE_QP_STATE, NULL), 0);
    assert_int_equal(qp_destroy(qp), 0);
    fx_close();
}

static void posting_needs_the_right_state(void **state)
{
    struct uroce_recv_wr rwr = {0};
    struct uroce_send_wr wr;
    const struct uroce_send_wr *bad;
    const struct uroce_recv_wr *rbad;
    struct qp *qp;
    bool bell;

    (void)state;
    fx_open(NULL);
    qp = qend_qp(&a);
    wr = fx_send(1);
    assert_int_equal(qp_post_send(qp, &wr, &bad, &bell), -EINVAL);
    assert_ptr_equal(bad, &wr);
    assert_int_equal(qp_post_recv(qp, &rwr, &rbad, &bell), -EINVAL);
    wr.opcode = (enum uroce_wr_opcode)99;
    assert_int_equal(qp_post_send(a.qp, &wr, &bad, &bell), -EINVAL);
    wr.opcode = UROCE_WR_ATOMIC_FETCH_AND_ADD; /* without its 8 bytes */
    assert_int_equal(qp_post_send(a.qp, &wr, &bad, &bell), -EINVAL);
    wr.opcode = UROCE_WR_SEND;
    wr.num_sge = 5;
    assert_int_equal(qp_post_send(a.qp, &wr, &bad, &bell), -EINVAL);
    assert_int_equal(qp_destroy(qp), 0);
    fx_close();
}

static void a_reset_queue_pair_starts_anew_and_leaves_no_completions(void **state)
{
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_RESET};
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
    fx_run();
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
    fx_none(a.scq);
    assert_int_equal(qp_modify(b.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
    qend_connect(&a, &b, net.now);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    fx_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_are_checked_when_registered),
        cmocka_unit_test(keys_are_random_and_never_shared),
        cmocka_unit_test(addresses_count_from_the_regions_own_begin),
        cmocka_unit_test(an_implicit_region_is_all_memory_for_local_use),
        cmocka_unit_test(a_region_that_is_registered_anew_has_new_keys),
        cmocka_unit_test(a_type_2_window_opens_a_part_of_a_region_until_it_is_invalidated),
        cmocka_unit_test(a_window_ends_at_its_range_and_rights),
        cmocka_unit_test(a_type_2_window_is_of_one_queue_pair),
        cmocka_unit_test(a_type_1_window_gets_another_key_with_each_bind),
        cmocka_unit_test(a_bind_that_gives_too_much_is_refused),
        cmocka_unit_test(transitions_need_their_attributes_and_take_no_others),
        cmocka_unit_test(posting_needs_the_right_state),
        cmocka_unit_test(a_reset_queue_pair_starts_anew_and_leaves_no_completions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

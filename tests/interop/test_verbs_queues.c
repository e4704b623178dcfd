/*
 * What users of verbs fight with under load: full queues, receivers that are late, queue pairs in error. Every request
 * that was posted is completed once, with its own id. Linked with the distribution's libibverbs, run with ours.
 */
#include "base/util.h"
#include "lib/netns.h"
#include "verbs_end.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LEN   (1u << 20)
#define DEPTH 64
#define CHAIN 200

static struct netns_pair ns;
static struct vend e;

/* A chain of sends or receives of 8 bytes each, with the ids first, first + 1, ... */
static struct ibv_sge piece;

static void send_chain(struct ibv_send_wr *wr, int n, uint64_t first)
{
    piece = (struct ibv_sge){(uintptr_t)e.buf, 8, e.mr->lkey};
    for (int i = 0; i < n; i++)
        wr[i] = (struct ibv_send_wr){.wr_id = first + (uint64_t)i,
                                     .next = i + 1 < n ? &wr[i + 1] : NULL,
                                     .sg_list = &piece,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_SEND,
                                     .send_flags = IBV_SEND_SIGNALED};
}

static void recv_chain(struct ibv_recv_wr *wr, int n, uint64_t first)
{
    piece = (struct ibv_sge){(uintptr_t)e.buf, 8, e.mr->lkey};
    for (int i = 0; i < n; i++)
        wr[i] = (struct ibv_recv_wr){
            .wr_id = first + (uint64_t)i, .next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = &piece, .num_sge = 1};
}

/* Exactly the ids first..first+n-1 complete with that status, in their order. */
static void assert_completions(uint64_t first, int n, enum ibv_wc_status status)
{
    struct ibv_wc wc;
    for (int i = 0; i < n; i++) {
        vend_wait(&e, 1, &wc);
        assert_int_equal(wc.wr_id, first + (uint64_t)i);
        assert_int_equal(wc.status, status);
    }
}

static void pair(struct ibv_qp **a, struct ibv_qp **b, struct ibv_srq *srq, uint8_t rnr)
{
    vend_open(&e, NULL, LEN);
    *a = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    *b = vend_qp(&e, IBV_QPT_RC, DEPTH, srq);
    vend_pair(&e, *a, &e, *b, 0, rnr);
}

static void unpair(struct ibv_qp *a, struct ibv_qp *b)
{
    assert_int_equal(ibv_destroy_qp(a), 0);
    assert_int_equal(ibv_destroy_qp(b), 0);
    vend_close(&e);
}

static void a_full_send_queue_names_the_first_request_that_was_not_posted(void **state)
{
    (void)state;
    struct ibv_send_wr wr[CHAIN], *bad = NULL;
    struct ibv_recv_wr rwr[DEPTH], *rbad = NULL;
    struct ibv_qp *a, *b;
    pair(&a, &b, NULL, 7); /* the receiver is late: nothing leaves the queue */
    send_chain(wr, CHAIN, 1000);
    assert_int_equal(ibv_post_send(a, wr, &bad), ENOMEM);
    assert_ptr_equal(bad, &wr[DEPTH]);
    assert_int_equal(ibv_post_send(a, bad, &bad), ENOMEM);
    assert_ptr_equal(bad, &wr[DEPTH]);
    recv_chain(rwr, DEPTH, 5000);
    assert_int_equal(ibv_post_recv(b, rwr, &rbad), 0);
    int sent = 0, received = 0;
    while (sent < DEPTH || received < DEPTH) {
        struct ibv_wc wc;
        vend_wait(&e, 1, &wc);
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        assert_int_equal(wc.wr_id, wc.opcode & IBV_WC_RECV ? 5000 + received++ : 1000 + sent++);
    }
    vend_quiet(&e);
    unpair(a, b);
}

static void a_full_receive_queue_names_the_first_request_that_was_not_posted(void **state)
{
    (void)state;
    struct ibv_recv_wr wr[CHAIN], *bad = NULL;
    vend_open(&e, NULL, LEN);
    struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(e.pd, &init);
    assert_non_null(srq);
    assert_int_equal(init.attr.max_wr, DEPTH);
    recv_chain(wr, CHAIN, 0);
    assert_int_equal(ibv_post_recv(qp, wr, &bad), ENOMEM);
    assert_ptr_equal(bad, &wr[DEPTH]);
    assert_int_equal(ibv_post_srq_recv(srq, wr, &bad), ENOMEM);
    assert_ptr_equal(bad, &wr[DEPTH]);
    assert_int_equal(ibv_destroy_srq(srq), 0);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    vend_close(&e);
}

static void a_wrong_request_in_a_chain_is_named_and_those_before_it_are_posted(void **state)
{
    (void)state;
    struct ibv_send_wr wr[10], *bad = NULL;
    struct ibv_qp *a, *b;
    pair(&a, &b, NULL, 7);
    for (int i = 0; i < 10; i++)
        assert_int_equal(vend_recv(&e, b, 4096, 64, 100), 0);
    send_chain(wr, 10, 0);
    wr[4].num_sge = 3; /* the queue pair has two */
    assert_int_equal(ibv_post_send(a, wr, &bad), EINVAL);
    assert_ptr_equal(bad, &wr[4]);
    struct ibv_wc wc[8];
    vend_wait(&e, 8, wc); /* four sends, four receives */
    vend_quiet(&e);
    struct ibv_qp *idle = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    assert_int_equal(ibv_post_send(idle, wr, &bad), EINVAL); /* in INIT */
    assert_ptr_equal(bad, wr);
    assert_int_equal(ibv_destroy_qp(idle), 0);
    unpair(a, b);
}

static void a_receiver_that_is_not_ready_fails_at_once_with_no_retry(void **state)
{
    (void)state;
    struct ibv_qp *a, *b;
    struct ibv_wc wc;
    pair(&a, &b, NULL, 0);
    assert_int_equal(vend_send(&e, a, IBV_WR_SEND, 0, 8, NULL, 77), 0);
    vend_wait(&e, 1, &wc);
    assert_int_equal(wc.status, IBV_WC_RNR_RETRY_EXC_ERR);
    assert_int_equal(wc.wr_id, 77);
    vend_quiet(&e);
    unpair(a, b);
}

static void a_receiver_that_is_not_ready_is_waited_for_with_retry_seven(void **state)
{
    (void)state;
    struct ibv_qp *a, *b;
    struct ibv_wc wc[2];
    pair(&a, &b, NULL, 7);
    vend_fill(&e, 1);
    assert_int_equal(vend_send(&e, a, IBV_WR_SEND, 0, 8, NULL, 77), 0);
    for (int i = 0; i < 6; i++)
        vend_quiet(&e); /* 0.3 s: seven retries would be over long since */
    assert_int_equal(vend_recv(&e, b, 4096, 64, 78), 0);
    vend_wait(&e, 2, wc);
    assert_int_equal(wc[0].status, IBV_WC_SUCCESS);
    assert_int_equal(wc[1].status, IBV_WC_SUCCESS);
    assert_memory_equal(e.buf, e.buf + 4096, 8);
    unpair(a, b);
}

static void to_error(struct ibv_qp *qp)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
}

static void a_queue_pair_in_error_flushes_each_request_once(void **state)
{
    (void)state;
    struct ibv_send_wr wr[DEPTH], *bad;
    struct ibv_recv_wr rwr[DEPTH], *rbad;
    struct ibv_qp *a, *b;
    bool seen[2 * DEPTH] = {false};
    pair(&a, &b, NULL, 7);
    send_chain(wr, DEPTH, 0);
    for (int i = 0; i < DEPTH; i += 2)
        wr[i].send_flags = 0; /* those that are not signalled as well */
    recv_chain(rwr, DEPTH, DEPTH);
    assert_int_equal(ibv_post_recv(a, rwr, &rbad), 0);
    assert_int_equal(ibv_post_send(a, wr, &bad), 0);
    to_error(a);
    for (int i = 0; i < 2 * DEPTH; i++) {
        struct ibv_wc wc;
        vend_wait(&e, 1, &wc);
        assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
        assert_int_equal(wc.qp_num, a->qp_num);
        assert_in_range(wc.wr_id, 0, 2 * DEPTH - 1);
        assert_false(seen[wc.wr_id]);
        seen[wc.wr_id] = true;
    }
    vend_quiet(&e);
    /* What is posted to it now is taken, and flushed. */
    assert_int_equal(vend_send(&e, a, IBV_WR_SEND, 0, 8, NULL, 500), 0);
    assert_completions(500, 1, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(vend_recv(&e, a, 0, 8, 501), 0);
    assert_completions(501, 1, IBV_WC_WR_FLUSH_ERR);
    vend_quiet(&e);
    unpair(a, b);
}

static void a_reset_takes_the_completions_away(void **state)
{
    (void)state;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp *a, *b;
    pair(&a, &b, NULL, 7);
    assert_int_equal(vend_recv(&e, a, 0, 8, 1), 0);
    to_error(a);
    assert_int_equal(ibv_modify_qp(a, &attr, IBV_QP_STATE), 0);
    vend_quiet(&e);
    assert_int_equal(a->state, IBV_QPS_RESET);
    unpair(a, b);
}

/* The extended interface posts all or none. */
static void an_extended_queue_pair_posts_all_of_a_section_or_none(void **state)
{
    (void)state;
    vend_open(&e, NULL, LEN);
    struct ibv_qp_init_attr_ex init = {.send_cq = e.cq,
                                       .recv_cq = e.cq,
                                       .qp_type = IBV_QPT_RC,
                                       .cap = {8, 8, 1, 1, 32},
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .pd = e.pd,
                                       .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE};
    struct ibv_qp *qp = ibv_create_qp_ex(e.ctx, &init), *b = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE};
    assert_non_null(qp);
    assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    assert_non_null(ex);
    assert_null(ibv_qp_to_qp_ex(b));
    vend_pair(&e, qp, &e, b, 0, 7);
    ex->wr_flags = IBV_SEND_SIGNALED;
    for (int n = 9; n > 0; n -= 8) { /* nine are too many; one is posted */
        ibv_wr_start(ex);
        for (int i = 0; i < n; i++) {
            char bytes[16] = "inline, and gone";
            ex->wr_id = (uint64_t)(10 * n + i);
            ibv_wr_send(ex);
            ibv_wr_set_inline_data(ex, bytes, sizeof bytes);
            memset(bytes, 0, sizeof bytes);
        }
        assert_int_equal(ibv_wr_complete(ex), n == 9 ? ENOMEM : 0);
    }
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_abort(ex);
    assert_int_equal(vend_recv(&e, b, 4096, 64, 99), 0);
    struct ibv_wc wc[2];
    vend_wait(&e, 2, wc);
    assert_int_equal(wc[0].status, IBV_WC_SUCCESS);
    assert_int_equal(wc[0].wr_id + wc[1].wr_id, 10 + 99);
    assert_memory_equal(e.buf + 4096, "inline, and gone", 16);
    vend_quiet(&e);
    unpair(qp, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_send_queue_names_the_first_request_that_was_not_posted),
        cmocka_unit_test(a_full_receive_queue_names_the_first_request_that_was_not_posted),
        cmocka_unit_test(a_wrong_request_in_a_chain_is_named_and_those_before_it_are_posted),
        cmocka_unit_test(a_receiver_that_is_not_ready_fails_at_once_with_no_retry),
        cmocka_unit_test(a_receiver_that_is_not_ready_is_waited_for_with_retry_seven),
        cmocka_unit_test(a_queue_pair_in_error_flushes_each_request_once),
        cmocka_unit_test(a_reset_takes_the_completions_away),
        cmocka_unit_test(an_extended_queue_pair_posts_all_of_a_section_or_none),
    };
    netns_pair_make(&ns, 1500);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

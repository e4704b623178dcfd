/* A queue pair that has a second path to its peer, as it is between processes that share memory. */
#include "roce_fixture.h"

#define FAR_MTU 4000u

static int packets[2], requests[2], most; /* of a, by path; the largest payload */

static bool count(int from, const struct qp_tx *tx)
{
    bool far = tx->path->port_id == QPNET_FAR;

    assert_int_equal(tx->pkt.far, far);
    if (from)
        return true;
    packets[far]++;
    requests[far] += wire_op(tx->pkt.opcode)->kind == WIRE_KIND_REQUEST;
    if ((int)tx->payload_len > most)
        most = (int)tx->payload_len;
    return true;
}

static void second_path(struct qend *q, struct qend *to)
{
    struct qp_path path = qpnet_path(q->node, to->node);
    struct qp_peer peer = {.path = &path, .mtu_bytes = FAR_MTU, .window_bytes = 1 << 20};

    path.port_id = QPNET_FAR;
    assert_int_equal(qp_set_peer(q->qp, &peer), 0);
}

static void open_watched(const struct qend_opts *o)
{
    fx_open(o);
    memset(packets, 0, sizeof packets);
    memset(requests, 0, sizeof requests);
    most = 0;
    watch = count;
    fx_fill(a.mem, QEND_MEM, 6);
}

static int write_to(uint64_t id, uint32_t len)
{
    struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_WRITE, id, b.mem);
    return qend_send(&a, &net, &wr, a.mem, len);
}

/* What is outstanding goes on by the first path, in packets of its size; what follows waits, then goes by the second.
 */
static void requests_change_to_the_second_path_when_none_is_outstanding(void **state)
{
    (void)state;
    open_watched(NULL);
    assert_int_equal(write_to(1, 20000), 0);
    qpnet_flush(&net);
    assert_int_equal(requests[0], 20);
    second_path(&a, &b);
    second_path(&b, &a);
    assert_int_equal(write_to(2, 20000), 0);
    qpnet_flush(&net);
    assert_int_equal(requests[0] + requests[1], 20);
    assert_int_equal(most, 1024);
    fx_run();
    assert_int_equal(requests[0], 20);
    assert_int_equal(requests[1], 5);
    assert_int_equal(most, FAR_MTU);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_memory_equal(a.mem, b.mem, 20000);
    fx_close();
}

/* A READ is answered in packets of the path by which it came. */
static void a_read_is_answered_in_packets_of_its_path(void **state)
{
    struct uroce_send_wr wr;
    struct uroce_counters c;

    (void)state;
    open_watched(NULL);
    second_path(&a, &b);
    second_path(&b, &a);
    wr = fx_rdma(UROCE_WR_RDMA_READ, 1, b.mem);
    fx_fill(b.mem, QEND_MEM, 8);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 40000), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_memory_equal(a.mem, b.mem, 40000);
    qp_counters(b.qp, &c);
    assert_int_equal(c.tx_pkts, 10);
    fx_close();
}

/* After the second path's end new requests go by the first; a peer that has none takes nothing by it. */
static void the_first_path_serves_again_when_the_second_has_ended(void **state)
{
    struct uroce_counters c;

    (void)state;
    open_watched(NULL);
    second_path(&a, &b);
    second_path(&b, &a);
    assert_int_equal(write_to(1, 9000), 0);
    fx_run();
    qp_leave_path(a.qp);
    qp_leave_path(b.qp);
    assert_int_equal(write_to(2, 9000), 0);
    fx_run();
    assert_int_equal(requests[1], 3);
    assert_int_equal(requests[0], 9);
    for (int i = 0; i < 2; i++)
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    second_path(&a, &b); /* the peer does not know */
    assert_int_equal(write_to(3, 9000), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_RETRY_EXC_ERR);
    qp_counters(b.qp, &c);
    assert_true(c.drop_source > 0);
    fx_close();
}

/* A full port: its queue pairs wait, the others do not. */
static void queue_pairs_of_a_full_port_are_passed_over(void **state)
{
    struct qp *other[2];

    (void)state;
    open_watched(NULL);
    second_path(&a, &b);
    second_path(&b, &a);
    qp_engine_hold(a.e, QPNET_FAR, true);
    assert_int_equal(write_to(1, 9000), 0);
    other[0] = qend_qp(&a);
    other[1] = qend_qp(&b);
    assert_int_equal(qend_connect_to(&a, other[0], net.now, b.node, qp_num(other[1])), 0);
    assert_int_equal(qend_connect_to(&b, other[1], net.now, a.node, qp_num(other[0])), 0);
    struct uroce_sge sge = {(uintptr_t)a.mem, 3000, qp_mr_lkey(a.mr)};
    struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_WRITE, 9, b.mem + 100000);
    const struct uroce_send_wr *bad;
    bool bell;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    assert_int_equal(qp_post_send(other[0], &wr, &bad, &bell), 0);
    qp_engine_doorbell(a.e, net.now, other[0]);
    qpnet_run(&net, net.now + SECOND / 100);
    assert_int_equal(fx_one(a.scq).wr_id, 9);
    fx_none(a.scq);
    assert_int_equal(packets[1], 0);
    qp_engine_hold(a.e, QPNET_FAR, false);
    fx_run();
    assert_int_equal(fx_one(a.scq).wr_id, 1);
    assert_int_equal(qp_destroy(other[0]), 0);
    assert_int_equal(qp_destroy(other[1]), 0);
    fx_close();
}

static int told, gone;

static void note(struct qend *q, const void *base, size_t len)
{
    if (base) {
        assert_ptr_equal(base, q->mem);
        assert_int_equal(len, QEND_MEM);
        gone++;
    } else {
        if (!told++)
            fx_none(q->scq); /* before the program may use its memory again */
    }
}

/* Memory is let go of before a completion says that it may be used, and when its key ends. */
static void memory_is_let_go_of_before_it_is_said_to_be_free(void **state)
{
    (void)state;
    open_watched(&(struct qend_opts){.timeout = 8, .retry_cnt = 1});
    second_path(&a, &b);
    second_path(&b, &a);
    a.let_go = note;
    told = gone = 0;
    lose_packets = 1000;
    assert_int_equal(write_to(1, 9000), 0);
    fx_run();
    assert_true(told > 0);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_RETRY_EXC_ERR);
    assert_int_equal(gone, 0);
    assert_int_equal(qp_mr_rereg(a.mr, QP_REREG_ACCESS, NULL, NULL, 0, 0, UROCE_ACCESS_LOCAL_WRITE), 0);
    assert_int_equal(gone, 1);
    a.let_go = NULL;
    fx_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_change_to_the_second_path_when_none_is_outstanding),
        cmocka_unit_test(a_read_is_answered_in_packets_of_its_path),
        cmocka_unit_test(the_first_path_serves_again_when_the_second_has_ended),
        cmocka_unit_test(queue_pairs_of_a_full_port_are_passed_over),
        cmocka_unit_test(memory_is_let_go_of_before_it_is_said_to_be_free),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

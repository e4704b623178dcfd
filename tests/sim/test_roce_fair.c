/*
 * What queue pairs of one engine get of a link, in virtual time: READs and WRITEs of 32 KiB, several of each queue pair
 * always under way, and a buffer that is shared by all. Whatever their number, each gets on as the others do, and all
 * together as one.
 */
#include "../unit/roce_fixture.h"

#define MSG    32768u
#define DEPTH  4
#define ROUNDS 20 /* messages of each, on the average */
#define QPS    128

static struct qp *qa[QPS], *qb[QPS];
static uint32_t done[QPS];

static void ask(int i, enum uroce_wr_opcode op)
{
    struct qp *own = a.qp;
    struct uroce_send_wr wr = fx_rdma(op, (uint64_t)i, b.mem);
    a.qp = qa[i];
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, MSG), 0);
    a.qp = own;
}

/* Bytes in a second that n queue pairs have together; each is within a tenth of the mean. */
static double share(int n, enum uroce_wr_opcode op)
{
    uint32_t all = 0;

    fx_open(&(struct qend_opts){.cqe = 2048, .mtu = UROCE_MTU_4096, .rd_atomic = 16, .timeout = 16,
                                .total_bytes = 96 * 4096, .window_bytes = 32 * 4096, .window_pkts = 64});
    net.batch = 64;
    for (int i = 0; i < n; i++) {
        qa[i] = qend_qp(&a);
        qb[i] = qend_qp(&b);
        assert_int_equal(qend_connect_to(&a, qa[i], net.now, b.node, qp_num(qb[i])), 0);
        assert_int_equal(qend_connect_to(&b, qb[i], net.now, a.node, qp_num(qa[i])), 0);
    }
    net.link = (struct qpnet_link){.rate_bps = 10000000000, .delay_ns = 5000, .queue_pkts = 128};
    memset(done, 0, sizeof done);
    for (int k = 0; k < DEPTH; k++)
        for (int i = 0; i < n; i++)
            ask(i, op);
    uint64_t begun = net.now;
    uint32_t total = (uint32_t)n * ROUNDS;
    while (all < total) {
        struct uroce_wc wc;
        assert_true(qpnet_step(&net, net.now + SECOND));
        while (all < total && qp_cq_poll(a.scq, 1, &wc) == 1) {
            assert_int_equal(wc.status, UROCE_WC_SUCCESS);
            done[wc.wr_id]++;
            all++;
            ask((int)wc.wr_id, op);
        }
    }
    uint64_t ns = net.now - begun;
    for (int i = 0; i < n; i++) /* a tenth of the mean, and the one that was under way */
        assert_in_range(done[i], ROUNDS - ROUNDS / 10 - 1, ROUNDS + ROUNDS / 10 + 1);
    for (int i = 0; i < n; i++) {
        assert_int_equal(qp_destroy(qa[i]), 0);
        assert_int_equal(qp_destroy(qb[i]), 0);
    }
    fx_close();
    return (double)total * MSG / ((double)ns / 1e9);
}

static void share_by_all(enum uroce_wr_opcode op)
{
    double one = share(1, op);
    for (int n = 2; n <= QPS; n *= 4) {
        double together = share(n, op);
        if (together < 0.9 * one)
            fail_msg("%d queue pairs have %.2f GB/s together, one has %.2f", n, together / 1e9, one / 1e9);
    }
}

static void reads_of_many_queue_pairs_share_a_link_evenly(void **state)
{
    (void)state;
    share_by_all(UROCE_WR_RDMA_READ);
}

static void writes_of_many_queue_pairs_share_a_link_evenly(void **state)
{
    (void)state;
    share_by_all(UROCE_WR_RDMA_WRITE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_of_many_queue_pairs_share_a_link_evenly),
        cmocka_unit_test(writes_of_many_queue_pairs_share_a_link_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Loss and congestion: selective repeat beside go-back-N, DCQCN, pacing; many queue pairs; posting from another thread.
 */
#include "dcqcn.h"
#include "roce_fixture.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

static void selective(void)
{
    struct qp_peer peer = {.selective_repeat = true};

    assert_int_equal(qp_set_peer(a.qp, &peer), 0);
    assert_int_equal(qp_set_peer(b.qp, &peer), 0);
}

/* Sends 200 messages of 8 KiB with op over a link that loses 1 %; the packets that were sent again. */
static uint64_t run_lossy(bool sr, enum uroce_wr_opcode op)
{
    struct uroce_counters ca, cb;

    fx_open(&(struct qend_opts){.timeout = 12, .window_pkts = 64, .rd_atomic = 16});
    if (sr)
        selective();
    net.link.loss = 0.01;
    net.link.delay_ns = 20000;
    fx_fill(a.mem, QEND_MEM, 1);
    fx_fill(b.mem, QEND_MEM, 2);
    for (uint64_t i = 0; i < 200; i++) {
        struct uroce_send_wr wr = fx_rdma(op, i, b.mem + i % 16 * 8192);
        struct uroce_wc wc;
        while (qend_send(&a, &net, &wr, a.mem + i % 16 * 8192, 8192) == -ENOMEM)
            assert_true(qpnet_step(&net, net.now + SECOND));
        while (qp_cq_poll(a.scq, 1, &wc) == 1)
            assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    }
    fx_run();
    assert_memory_equal(a.mem, b.mem, 16 * 8192);
    assert_int_equal(fx_state(&a), UROCE_QPS_RTS);
    qp_counters(a.qp, &ca);
    qp_counters(b.qp, &cb);
    fx_close();
    return ca.retransmits + cb.retransmits;
}

static void selective_repeat_sends_only_what_is_missing(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        enum uroce_wr_opcode op = i ? UROCE_WR_RDMA_READ : UROCE_WR_RDMA_WRITE;
        uint64_t gbn = run_lossy(false, op), sr = run_lossy(true, op);
        printf("%s: packets sent again: go-back-N %llu, selective repeat %llu\n", i ? "READ" : "WRITE",
               (unsigned long long)gbn, (unsigned long long)sr);
        assert_in_range(sr, 1, gbn / 4);
        assert_in_range(sr, 1, 80); /* 1600 packets, of which about 16 were lost */
    }
}

static void a_mild_reorder_makes_no_selective_retransmission(void **state)
{
    struct uroce_counters c;

    (void)state;
    fx_open(&(struct qend_opts){.window_pkts = 64});
    selective();
    net.batch = 1;
    for (int round = 0; round < 20; round++) {
        struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 16 * 1024), 0);
        /* Each second packet changes place with the one before. */
        for (int k = 0; k < 8; k++) {
            struct qp_tx tx[2];
            for (int i = 0; i < 2; i++)
                assert_int_equal(qp_engine_tx(a.e, net.now, &tx[i], 1), 1);
            for (int i = 1; i >= 0; i--) {
                struct qp_rx rx = {.pkt = tx[i].pkt, .path = qpnet_path(b.node, a.node)};
                rx.pkt.payload = tx[i].iov[0].iov_base;
                qp_engine_rx(b.e, net.now, &rx);
            }
        }
        fx_run();
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    }
    qp_counters(a.qp, &c);
    assert_int_equal(c.retransmits, 0);
    assert_int_equal(c.timeouts, 0);
    fx_close();
}

/* What a and b sent again and how often a waited in vain, for one request of 64 packets. */
static void expect_again(enum uroce_wr_opcode op, uint64_t again, uint64_t duplicates, uint64_t timeouts)
{
    struct uroce_send_wr wr = fx_rdma(op, 1, b.mem);
    struct uroce_counters ca, cb;

    fx_fill(a.mem, 65536, 7);
    fx_fill(b.mem, 65536, 8);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 65536), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_memory_equal(a.mem, b.mem, 65536);
    qp_counters(a.qp, &ca);
    qp_counters(b.qp, &cb);
    assert_int_equal(ca.retransmits, again);
    assert_int_equal(cb.duplicates, duplicates);
    assert_int_equal(ca.timeouts, timeouts);
    fx_close();
}

static void a_slow_peer_is_asked_with_one_packet(void **state)
{
    static const enum uroce_wr_opcode op[] = {UROCE_WR_RDMA_WRITE, UROCE_WR_RDMA_READ};

    (void)state;
    for (int i = 0; i < 2; i++) {
        fx_open(&(struct qend_opts){.window_pkts = 256, .timeout = 12, .rd_atomic = 4});
        selective();
        net.link.delay_ns = 20000000; /* there and back: more than a time-out (17 ms) and less than three */
        expect_again(op[i], 1, 1, 1);
    }
}

static void a_window_that_is_lost_whole_costs_one_time_out(void **state)
{
    (void)state;
    fx_open(&(struct qend_opts){.window_pkts = 256, .timeout = 12});
    selective();
    lose_packets = 64;
    expect_again(UROCE_WR_RDMA_WRITE, 64, 0, 1);
}

static void a_try_that_is_lost_is_followed_by_the_whole_window(void **state)
{
    (void)state;
    fx_open(&(struct qend_opts){.window_pkts = 256, .timeout = 12});
    selective();
    lose_packets = 65;
    expect_again(UROCE_WR_RDMA_WRITE, 65, 0, 2);
}

static void memory_past_gaps_is_bounded(void **state)
{
    struct uroce_counters c;
    struct uroce_send_wr wr;

    (void)state;
    fx_open(&(struct qend_opts){.window_pkts = 400, .window_bytes = 1 << 20, .timeout = 12});
    selective();
    lose_packets = 1;
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    fx_fill(a.mem, QEND_MEM, 4);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, QEND_MEM), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_memory_equal(a.mem, b.mem, QEND_MEM);
    qp_counters(a.qp, &c);
    assert_int_equal(c.retransmits, 1);
    fx_close();
}

static void selective_repeat_may_be_known_to_one_end_first(void **state)
{
    struct qp_peer peer = {.selective_repeat = true};

    (void)state;
    for (int end = 0; end < 2; end++) {
        fx_open(&(struct qend_opts){.timeout = 10});
        assert_int_equal(qp_set_peer(end ? a.qp : b.qp, &peer), 0);
        net.link.loss = 0.05;
        fx_fill(a.mem, 100000, 1);
        for (uint64_t i = 0; i < 50; i++) {
            struct uroce_send_wr wr =
                fx_rdma(i % 2 ? UROCE_WR_RDMA_READ : UROCE_WR_RDMA_WRITE, i, b.mem + i / 2 * 4000);
            assert_int_equal(qend_send(&a, &net, &wr, a.mem + i / 2 * 4000 + i % 2 * 120000, 4000), 0);
            fx_run();
            assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
            if (i == 25)
                assert_int_equal(qp_set_peer(end ? b.qp : a.qp, &peer), 0);
        }
        assert_memory_equal(a.mem + 120000, a.mem, 100000);
        fx_close();
    }
}

/* ---- congestion ---- */

static void dcqcn_cuts_and_recovers_as_the_paper_says(void **state)
{
    struct qp_dcqcn_config c = {.enabled = true,
                                .line_rate_bps = 10000000000,
                                .min_rate_bps = 10000000,
                                .alpha_timer_us = 55,
                                .rate_timer_us = 1500,
                                .byte_counter = 10 << 20,
                                .g_shift = 8,
                                .rai_bps_m = 40,
                                .rhai_bps_m = 400,
                                .fast_recovery_stages = 5};
    struct dcqcn d;
    uint64_t now = 0, cut;

    (void)state;
    dcqcn_init(&d, &c);
    assert_true(dcqcn_deadline(&d) == UINT64_MAX); /* idle at line rate */
    dcqcn_cnp(&d, &c, now);
    assert_int_equal(d.rate, 5000000000); /* alpha is 1 at first */
    assert_int_equal(d.target, 10000000000);
    cut = d.rate;
    for (int i = 0; i < 5; i++) { /* fast recovery: half of the way to the target each time */
        uint64_t want = (d.rate + d.target) / 2;
        while (d.rate == cut) {
            now = dcqcn_deadline(&d);
            dcqcn_tick(&d, &c, now);
        }
        assert_int_equal(d.rate, want);
        cut = d.rate;
    }
    assert_in_range(d.alpha, 0, (1u << DCQCN_ALPHA_SHIFT) * 7 / 10); /* it decays without CNPs */
    for (int i = 0; i < 200; i++)
        dcqcn_cnp(&d, &c, now);
    assert_int_equal(d.rate, c.min_rate_bps);
    while (d.rate) { /* additive and hyper increase bring it back to line rate */
        uint64_t before = d.rate;
        now = dcqcn_deadline(&d);
        assert_in_range(now, 1, 100 * SECOND);
        dcqcn_tick(&d, &c, now);
        assert_true(!d.rate || d.rate >= before);
    }
    c.enabled = false;
    dcqcn_cnp(&d, &c, now);
    assert_int_equal(d.rate, 0);
}

static int cnps;
static bool count_cnps(int from, const struct qp_tx *tx)
{
    cnps += from == 1 && tx->pkt.opcode == WIRE_CNP;
    return true;
}

static void marks_become_cnps_and_slow_the_sender(void **state)
{
    struct uroce_counters c;
    uint64_t ns[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct uroce_send_wr wr;
        fx_open(&(struct qend_opts){.dcqcn = i == 1, .window_bytes = 1 << 20});
        net.link.mark = 1;
        watch = count_cnps;
        cnps = 0;
        wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
        ns[i] = net.now;
        for (int k = 0; k < 16; k++)
            assert_int_equal(qend_send(&a, &net, &wr, a.mem, QEND_MEM), 0);
        for (int k = 0; k < 16;) {
            struct uroce_wc wc;
            assert_true(qpnet_step(&net, net.now + SECOND));
            k += qp_cq_poll(a.scq, 1, &wc);
        }
        ns[i] = net.now - ns[i];
        qp_counters(a.qp, &c);
        assert_int_equal(c.cnp_rx, cnps);
        if (i) /* at most one in 50 us */
            assert_in_range(cnps, 2, ns[i] / 50000 + 1);
        else
            assert_int_equal(cnps, 0);
        fx_close();
    }
    assert_true(ns[1] > 3 * ns[0]);
}

static void a_rate_limit_is_kept(void **state)
{
    struct uroce_qp_attr attr = {.rate_limit = 1000000}; /* 1 Gbit/s */
    struct uroce_counters c;
    struct uroce_send_wr wr;
    uint64_t begin;

    (void)state;
    fx_open(&(struct qend_opts){.mtu = UROCE_MTU_4096, .timeout = 6});
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_RATE_LIMIT, NULL), 0);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    begin = net.now;
    for (int k = 0; k < 8; k++)
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, QEND_MEM), 0);
    fx_run();
    /* 2 MiB and headers: 17 ms */
    assert_in_range(net.now - begin, 16500000, 18500000);
    qp_counters(a.qp, &c);
    assert_int_equal(c.timeouts, 0); /* of 0.26 ms, as it was waiting to send and not for an answer */
    fx_close();
}

/* ---- many ---- */

static void an_idle_queue_pair_takes_less_than_4_kib(void **state)
{
    static struct qp *q[1000];
    struct qp_init init = {.type = UROCE_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    size_t before, bytes;

    (void)state;
    fx_open(NULL);
    init.pd = a.pd;
    init.send_cq = init.recv_cq = a.scq;
    before = mallinfo2().uordblks; /* 0 under a sanitizer */
    for (int i = 0; i < 1000; i++)
        assert_int_equal(qp_create(a.e, &init, &q[i]), 0);
    bytes = (mallinfo2().uordblks - before) / 1000;
    printf("%zu bytes per idle queue pair with queues of one request\n", bytes);
    assert_in_range(bytes, 0, 4095);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(qp_destroy(q[i]), 0);
    fx_close();
}

static void a_thousand_queue_pairs_are_served_in_turn(void **state)
{
    static struct qp *qa[1000], *qb[1000];
    uint32_t done[1000] = {0};
    struct qp *own;

    (void)state;
    fx_open(&(struct qend_opts){.cqe = 8192, .timeout = 18});
    own = a.qp;
    for (int i = 0; i < 1000; i++) {
        qa[i] = qend_qp(&a);
        qb[i] = qend_qp(&b);
        assert_int_equal(qend_connect_to(&a, qa[i], net.now, b.node, qp_num(qb[i])), 0);
        assert_int_equal(qend_connect_to(&b, qb[i], net.now, a.node, qp_num(qa[i])), 0);
    }
    for (int i = 0; i < 1000; i++) {
        struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_WRITE, (uint64_t)i, b.mem + i * 200);
        a.qp = qa[i];
        memset(a.mem + i * 200, i, 200);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem + i * 200, 200), 0);
        wr.wr.rdma.remote_addr = (uintptr_t)b.mem;
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 0), 0);
    }
    a.qp = own;
    fx_run();
    for (int i = 0; i < 2000; i++) {
        struct uroce_wc wc = fx_one(a.scq);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        done[wc.wr_id]++;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(done[i], 2);
    assert_memory_equal(a.mem, b.mem, 200000);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(qp_destroy(qa[i]), 0);
        assert_int_equal(qp_destroy(qb[i]), 0);
    }
    fx_close();
}

static void share_a_buffer(enum uroce_wr_opcode op)
{
    static struct qp *qa[256], *qb[256];
    struct uroce_counters c;
    uint64_t begin;
    struct qp *own;

    /* The way to the receiver has a queue of 128 packets; 256 messages of 32 KiB would need 2,048. */
    fx_open(&(struct qend_opts){.cqe = 8192, .mtu = UROCE_MTU_4096, .total_bytes = 96 * 4096, .timeout = 16});
    own = a.qp;
    for (int i = 0; i < 256; i++) {
        qa[i] = qend_qp(&a);
        qb[i] = qend_qp(&b);
        assert_int_equal(qend_connect_to(&a, qa[i], net.now, b.node, qp_num(qb[i])), 0);
        assert_int_equal(qend_connect_to(&b, qb[i], net.now, a.node, qp_num(qa[i])), 0);
    }
    net.link.rate_bps = 10000000000;
    net.link.queue_pkts = 128;
    begin = net.now;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 256; i++) {
            struct uroce_send_wr wr = fx_rdma(op, (uint64_t)i, b.mem);
            a.qp = qa[i];
            assert_int_equal(qend_send(&a, &net, &wr, a.mem, 32768), 0);
        }
    a.qp = own;
    for (int got = 0; got < 512;) {
        struct uroce_wc wc;
        assert_true(qpnet_step(&net, net.now + SECOND));
        while (qp_cq_poll(a.scq, 1, &wc) == 1) {
            assert_int_equal(wc.status, UROCE_WC_SUCCESS);
            got++;
        }
    }
    qp_engine_counters(a.e, &c);
    assert_int_equal(c.retransmits, 0);
    assert_int_equal(c.timeouts, 0);
    assert_in_range(net.now - begin, 13400000, 15000000); /* 16 MiB at 10 Gbit/s, and not much more */
    for (int i = 0; i < 256; i++) {
        assert_int_equal(qp_destroy(qa[i]), 0);
        assert_int_equal(qp_destroy(qb[i]), 0);
    }
    fx_close();
}

static void queue_pairs_share_what_the_socket_buffer_holds(void **state)
{
    (void)state;
    share_a_buffer(UROCE_WR_RDMA_READ);
    share_a_buffer(UROCE_WR_RDMA_WRITE);
}

static void a_silent_peer_does_not_starve_the_others(void **state)
{
    struct uroce_send_wr wr;
    struct qp *dead;

    (void)state;
    fx_open(&(struct qend_opts){.total_bytes = 4096, .timeout = 20});
    dead = qend_qp(&a);
    assert_int_equal(qend_connect_to(&a, dead, net.now, 7, 99), 0); /* nobody is there */
    {
        struct qp *own = a.qp;
        a.qp = dead;
        wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 8192), 0);
        qpnet_flush(&net);
        a.qp = own;
    }
    wr.wr_id = 2;
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 2048), 0);
    qpnet_run(&net, net.now + SECOND / 10);
    assert_int_equal(fx_one(a.scq).wr_id, 2);
    assert_int_equal(qp_destroy(dead), 0);
    fx_close();
}

/* ---- threads ---- */

#define THREAD_OPS 20000

static pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool thread_done;

/* A program that posts and polls while another thread drives the engines. */
static void *program(void *arg)
{
    uint64_t posted = 0, got = 0;

    (void)arg;
    while (got < THREAD_OPS) {
        struct uroce_sge sge = {(uintptr_t)a.mem + posted % 64 * 64, 64, qp_mr_lkey(a.mr)};
        struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_WRITE, posted, b.mem + posted % 64 * 64);
        const struct uroce_send_wr *bad;
        struct uroce_wc wc[8];
        bool bell = false;
        int n;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        if (posted < THREAD_OPS && !qp_post_send(a.qp, &wr, &bad, &bell))
            posted++;
        if (bell) {
            scoped_lock(&engine_lock);
            qp_engine_doorbell(a.e, net.now, a.qp);
        }
        n = qp_cq_poll(a.scq, 8, wc);
        for (int i = 0; i < n; i++)
            if (wc[i].wr_id != got++ || wc[i].status != UROCE_WC_SUCCESS)
                abort();
        if (!n)
            (void)qp_cq_arm(a.scq, false);
    }
    atomic_store(&thread_done, true);
    return NULL;
}

static void posts_and_polls_run_beside_the_engine(void **state)
{
    pthread_t t;

    (void)state;
    fx_open(NULL);
    atomic_store(&thread_done, false);
    assert_int_equal(pthread_create(&t, NULL, program, NULL), 0);
    while (!atomic_load(&thread_done)) {
        scoped_lock(&engine_lock);
        if (!qpnet_step(&net, net.now + 1000))
            net.now += 1000;
    }
    pthread_join(t, NULL);
    fx_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selective_repeat_sends_only_what_is_missing),
        cmocka_unit_test(a_mild_reorder_makes_no_selective_retransmission),
        cmocka_unit_test(a_slow_peer_is_asked_with_one_packet),
        cmocka_unit_test(a_window_that_is_lost_whole_costs_one_time_out),
        cmocka_unit_test(a_try_that_is_lost_is_followed_by_the_whole_window),
        cmocka_unit_test(memory_past_gaps_is_bounded),
        cmocka_unit_test(selective_repeat_may_be_known_to_one_end_first),
        cmocka_unit_test(dcqcn_cuts_and_recovers_as_the_paper_says),
        cmocka_unit_test(marks_become_cnps_and_slow_the_sender),
        cmocka_unit_test(a_rate_limit_is_kept),
        cmocka_unit_test(an_idle_queue_pair_takes_less_than_4_kib),
        cmocka_unit_test(a_thousand_queue_pairs_are_served_in_turn),
        cmocka_unit_test(queue_pairs_share_what_the_socket_buffer_holds),
        cmocka_unit_test(a_silent_peer_does_not_starve_the_others),
        cmocka_unit_test(posts_and_polls_run_beside_the_engine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The requester and the completer: every way in which a request fails, retries, flush, drain, credits. */
#include "roce_fixture.h"

static int from_a;

/* The first of three requests fails so, the others are flushed, and the queue pair is in error. */
static void expect_failure(enum uroce_wc_status status)
{
    struct uroce_wc wc = fx_one(a.scq);

    assert_int_equal(wc.wr_id, 1);
    assert_int_equal(wc.status, status);
    wc = fx_one(a.scq);
    assert_int_equal(wc.wr_id, 2);
    assert_int_equal(wc.status, UROCE_WC_WR_FLUSH_ERR);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_WR_FLUSH_ERR);
    fx_none(a.scq);
    assert_int_equal(fx_state(&a), UROCE_QPS_ERR);
}

/* Posts wr with number 1 and two good ones behind it; runs. */
static void post_with_followers(struct uroce_send_wr *wr, void *addr, uint32_t len)
{
    struct uroce_send_wr next = fx_rdma(UROCE_WR_RDMA_WRITE, 2, b.mem + 100000);

    assert_int_equal(qend_send(&a, &net, wr, addr, len), 0);
    assert_int_equal(qend_send(&a, &net, &next, a.mem, 10), 0);
    next.wr_id = 3;
    assert_int_equal(qend_send(&a, &net, &next, a.mem, 10), 0);
    fx_run();
}

static void wrong_local_memory_fails_in_its_turn(void **state)
{
    struct uroce_sge sge;
    struct uroce_send_wr good, wr;

    (void)state;
    fx_open(NULL);
    good = fx_rdma(UROCE_WR_RDMA_WRITE, 0, b.mem);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    sge = (struct uroce_sge){(uintptr_t)a.mem + QEND_MEM - 5, 6, qp_mr_lkey(a.mr)};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    assert_int_equal(qend_send(&a, &net, &good, a.mem, 5000), 0);
    post_with_followers(&wr, NULL, 0);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    expect_failure(UROCE_WC_LOC_PROT_ERR);
    fx_close();
}

static void an_unsignalled_request_before_a_failing_one_is_still_carried_out(void **state)
{
    struct uroce_send_wr good, wr;

    (void)state;
    fx_open(&(struct qend_opts){.unsignalled = true});
    a.mem[0] = 77;
    good = fx_rdma(UROCE_WR_RDMA_WRITE, 0, b.mem);
    good.send_flags = 0;
    wr = fx_rdma(UROCE_WR_RDMA_READ, 1, b.mem);
    wr.sg_list = &(struct uroce_sge){(uintptr_t)a.mem, 10, 1};
    wr.num_sge = 1;
    assert_int_equal(qend_send(&a, &net, &good, a.mem, 1), 0);
    post_with_followers(&wr, NULL, 0);
    expect_failure(UROCE_WC_LOC_PROT_ERR);
    assert_int_equal(b.mem[0], 77);
    fx_close();
}

static void a_message_over_the_limit_is_a_length_error(void **state)
{
    struct uroce_sge sge[2] = {{0, UROCE_MSG_MAX, 0}, {0, 1, 0}};
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    wr.sg_list = sge;
    wr.num_sge = 2;
    post_with_followers(&wr, NULL, 0);
    expect_failure(UROCE_WC_LOC_LEN_ERR);
    fx_close();
}

static void a_read_without_resources_is_an_operation_error(void **state)
{
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_SQD};
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_MAX_QP_RD_ATOMIC, NULL), 0);
    attr.qp_state = UROCE_QPS_RTS;
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
    wr = fx_rdma(UROCE_WR_RDMA_READ, 1, b.mem);
    post_with_followers(&wr, a.mem, 10);
    expect_failure(UROCE_WC_LOC_QP_OP_ERR);
    fx_close();
}

static void what_the_peer_refuses_has_its_status(void **state)
{
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    wr.wr.rdma.rkey ^= 0x100;
    post_with_followers(&wr, a.mem, 5000);
    expect_failure(UROCE_WC_REM_ACCESS_ERR);
    assert_int_equal(fx_state(&b), UROCE_QPS_ERR);
    fx_close();

    fx_open(NULL);
    wr = fx_send(1);
    qend_recv(&b, &net, 1, b.mem, 1);
    post_with_followers(&wr, a.mem, 2);
    expect_failure(UROCE_WC_REM_INV_REQ_ERR);
    fx_close();
}

static void a_peer_whose_own_memory_is_wrong_is_a_remote_operation_error(void **state)
{
    struct uroce_sge sge = {0, 100, 1};
    struct uroce_recv_wr rwr = {.sg_list = &sge, .num_sge = 1};
    const struct uroce_recv_wr *bad;
    struct uroce_send_wr wr = fx_send(1);
    bool bell;

    (void)state;
    fx_open(NULL);
    assert_int_equal(qp_post_recv(b.qp, &rwr, &bad, &bell), 0);
    post_with_followers(&wr, a.mem, 2);
    expect_failure(UROCE_WC_REM_OP_ERR);
    fx_close();
}

static bool b_silent(int from, const struct qp_tx *tx)
{
    (void)tx;
    from_a += from == 0;
    return from == 0;
}

static void a_silent_peer_is_tried_so_often_and_no_more(void **state)
{
    struct uroce_counters c;
    struct uroce_send_wr wr;
    uint64_t begin;

    (void)state;
    fx_open(&(struct qend_opts){.retry_cnt = 3, .timeout = 10});
    watch = b_silent;
    from_a = 0;
    begin = net.now;
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    post_with_followers(&wr, a.mem, 10);
    expect_failure(UROCE_WC_RETRY_EXC_ERR);
    qp_counters(a.qp, &c);
    assert_int_equal(c.timeouts, 4);
    assert_int_equal(from_a, 3 * 4);
    /* T, then at most 4 T each (IBTA 9.7.6.1.3). */
    assert_in_range(net.now - begin, 4 * (4096ull << 10), 13 * (4096ull << 10) + 1000000);
    fx_close();
}

static void a_time_out_of_0_waits_for_ever(void **state)
{
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_SQD};
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_TIMEOUT, NULL), 0);
    attr.qp_state = UROCE_QPS_RTS;
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
    watch = b_silent;
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
    fx_run();
    fx_none(a.scq);
    assert_true(qp_engine_deadline(a.e) == UINT64_MAX);
    fx_close();
}

static void what_is_lost_is_sent_again(void **state)
{
    (void)state;
    for (int i = 0; i < 14; i++) { /* a different one of the packets of an exchange is lost each time */
        struct uroce_send_wr wr, rd, at;
        struct qend_opts o = {.window_pkts = 64};
        fx_open(&o);
        fx_fill(a.mem, 6000, 1);
        *(uint64_t *)(void *)(b.mem + 80000) = 5;
        wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
        rd = fx_rdma(UROCE_WR_RDMA_READ, 2, b.mem);
        at = fx_atomic(UROCE_WR_ATOMIC_FETCH_AND_ADD, 3, b.mem + 80000, 1, 0);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 3000), 0);
        assert_int_equal(qend_send(&a, &net, &rd, a.mem + 10000, 3000), 0);
        assert_int_equal(qend_send(&a, &net, &at, a.mem + 20000, 8), 0);
        for (int k = 0; k < i; k++)
            qpnet_step(&net, net.now + SECOND);
        lose_packets = 1;
        fx_run();
        for (uint64_t id = 1; id <= 3; id++) {
            struct uroce_wc wc = fx_one(a.scq);
            assert_int_equal(wc.wr_id, id);
            assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        }
        assert_memory_equal(a.mem + 10000, a.mem, 3000);
        assert_int_equal(*(uint64_t *)(void *)(b.mem + 80000), 6);
        assert_int_equal(*(uint64_t *)(void *)(a.mem + 20000), 5);
        fx_close();
    }
}

static void rnr_is_tried_so_often_and_no_more(void **state)
{
    struct uroce_counters c;
    struct uroce_send_wr wr = fx_send(1);

    (void)state;
    fx_open(&(struct qend_opts){.rnr_retry = 2});
    post_with_followers(&wr, a.mem, 10);
    expect_failure(UROCE_WC_RNR_RETRY_EXC_ERR);
    qp_counters(a.qp, &c);
    assert_int_equal(c.rnr_nak_rx, 3);
    assert_int_equal(fx_state(&b), UROCE_QPS_RTS);
    fx_close();
}

static void rnr_retry_7_waits_for_a_receive_for_ever(void **state)
{
    struct uroce_send_wr wr = fx_send(1);

    (void)state;
    fx_open(NULL);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
    qpnet_run(&net, net.now + SECOND / 100);
    fx_none(a.scq);
    qend_recv(&b, &net, 9, b.mem, 10);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_int_equal(fx_one(b.rcq).wr_id, 9);
    fx_close();
}

static void inject_to_a(struct wire_pkt p)
{
    struct qp_rx rx = {.pkt = p, .path = qpnet_path(a.node, b.node)};

    rx.pkt.pkey = WIRE_PKEY_DEFAULT;
    rx.pkt.dest_qp = qp_num(a.qp);
    qp_engine_rx(a.e, net.now, &rx);
    qpnet_flush(&net);
}

/* As the Linux driver does: it refuses the first packet of a message for want of a receive, and the next as a gap. */
static void a_gap_told_behind_an_rnr_waits_with_it_and_is_no_retry(void **state)
{
    struct uroce_counters before, after;
    struct uroce_send_wr wr = fx_send(1);
    const struct wire_pkt rnr = {.opcode = WIRE_RC_ACK, .syndrome = wire_syndrome_rnr(1)};
    const struct wire_pkt gap = {.opcode = WIRE_RC_ACK, .syndrome = wire_syndrome_nak(WIRE_NAK_SEQ)};

    (void)state;
    fx_open(NULL);
    watch = b_silent;
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 3000), 0);
    for (int i = 0; i < 20; i++) {
        qpnet_flush(&net);
        inject_to_a(rnr);
        qp_counters(a.qp, &before);
        inject_to_a(gap);
        qp_counters(a.qp, &after);
        assert_int_equal(after.retransmits, before.retransmits);
        qpnet_run(&net, net.now + wire_rnr_ns(1));
        qp_counters(a.qp, &after);
        assert_int_equal(after.retransmits, before.retransmits + 3);
        if (i % 2)
            inject_to_a(gap); /* late: the wait is over */
    }
    fx_none(a.scq);
    watch = NULL;
    qend_recv(&b, &net, 9, b.mem, 3000);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_int_equal(fx_one(b.rcq).wr_id, 9);
    fx_close();
}

static void a_response_that_does_not_fit_is_a_bad_response(void **state)
{
    static const uint8_t bytes[1024];
    struct uroce_send_wr wr;

    (void)state;
    for (int i = 0; i < 3; i++) {
        fx_open(NULL);
        watch = b_silent;
        wr = fx_rdma(i ? UROCE_WR_RDMA_READ : UROCE_WR_RDMA_WRITE, 1, b.mem);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 100), 0);
        qpnet_flush(&net);
        inject_to_a((struct wire_pkt){.opcode = i == 2 ? WIRE_RC_ATOMIC_ACK : WIRE_RC_READ_RESP_ONLY,
                                      .payload = bytes,
                                      .payload_len = i == 2 ? 0
                                                     : i    ? 99
                                                            : 100});
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_BAD_RESP_ERR);
        assert_int_equal(fx_state(&a), UROCE_QPS_ERR);
        fx_close();
    }
}

static void a_peer_that_only_tells_of_gaps_is_given_up(void **state)
{
    struct uroce_send_wr wr;

    (void)state;
    fx_open(&(struct qend_opts){.retry_cnt = 2});
    watch = b_silent;
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 100), 0);
    for (int i = 0; i < 4; i++) { /* the first, and two without any progress */
        fx_none(a.scq);
        qpnet_flush(&net);
        inject_to_a((struct wire_pkt){.opcode = WIRE_RC_ACK, .syndrome = wire_syndrome_nak(WIRE_NAK_SEQ)});
    }
    assert_true(qend_saw(&a, "ERR_RETRY"));
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_RETRY_EXC_ERR);
    fx_close();
}

static void memory_that_goes_away_during_a_read_is_a_protection_error(void **state)
{
    static const uint8_t bytes[1024] = {1, 2, 3};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct uroce_send_wr wr;
        fx_open(NULL);
        watch = b_silent;
        wr = i ? fx_atomic(UROCE_WR_ATOMIC_FETCH_AND_ADD, 1, b.mem, 1, 0) : fx_rdma(UROCE_WR_RDMA_READ, 1, b.mem);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, i ? 8 : 2048), 0);
        qpnet_flush(&net);
        assert_int_equal(qp_mr_dereg(a.mr), 0);
        a.mr = NULL;
        inject_to_a((struct wire_pkt){.opcode = i ? WIRE_RC_ATOMIC_ACK : WIRE_RC_READ_RESP_FIRST,
                                      .orig = 5,
                                      .payload = bytes,
                                      .payload_len = i ? 0 : 1024});
        assert_true(qend_saw(&a, "ERR_MEMORY"));
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_LOC_PROT_ERR);
        assert_int_equal(a.mem[0], 0);
        fx_close();
    }
}

static void acknowledgements_of_what_was_never_sent_are_ignored(void **state)
{
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    watch = b_silent;
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 100), 0);
    qpnet_flush(&net);
    inject_to_a((struct wire_pkt){.opcode = WIRE_RC_ACK, .psn = psn_make(1)});
    inject_to_a((struct wire_pkt){.opcode = WIRE_RC_ACK, .psn = psn_make(0x7fffff)});
    inject_to_a(
        (struct wire_pkt){.opcode = WIRE_RC_ACK, .psn = psn_make(5), .syndrome = wire_syndrome_nak(WIRE_NAK_ACCESS)});
    inject_to_a((struct wire_pkt){.opcode = WIRE_RC_READ_RESP_ONLY, .psn = psn_make(0xffffff)});
    inject_to_a((struct wire_pkt){.opcode = WIRE_RC_ACK, .psn = psn_make(0), .syndrome = 0x40}); /* reserved */
    fx_none(a.scq);
    assert_int_equal(fx_state(&a), UROCE_QPS_RTS);
    inject_to_a((struct wire_pkt){.opcode = WIRE_RC_ACK, .psn = psn_make(0), .syndrome = 31});
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    fx_close();
}

static void an_error_state_flushes_what_waits_and_what_is_posted_later(void **state)
{
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_ERR};
    struct uroce_send_wr wr;

    (void)state;
    fx_open(NULL);
    watch = b_silent;
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    for (uint64_t i = 0; i < 3; i++) {
        wr.wr_id = i;
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
        assert_int_equal(qend_recv(&a, &net, i, a.mem, 10), 0);
    }
    qpnet_flush(&net);
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
    wr.wr_id = 3;
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
    assert_int_equal(qend_recv(&a, &net, 3, a.mem, 10), 0);
    for (uint64_t i = 0; i < 4; i++) {
        struct uroce_wc s = fx_one(a.scq), r = fx_one(a.rcq);
        assert_int_equal(s.wr_id, i);
        assert_int_equal(s.status, UROCE_WC_WR_FLUSH_ERR);
        assert_int_equal(r.wr_id, i);
        assert_int_equal(r.status, UROCE_WC_WR_FLUSH_ERR);
    }
    fx_close();
}

static void a_drained_queue_says_so_and_goes_on_later(void **state)
{
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_SQD, .en_sqd_async_notify = 1};
    struct uroce_send_wr wr;

    (void)state;
    fx_open(&(struct qend_opts){.window_pkts = 2});
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 20000), 0);
    wr.wr_id = 2;
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 20000), 0);
    qpnet_flush(&net);
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE | UROCE_QP_EN_SQD_ASYNC_NOTIFY, NULL), 0);
    assert_int_equal(a.events[UROCE_EVENT_SQ_DRAINED], 0);
    fx_run();
    assert_int_equal(a.events[UROCE_EVENT_SQ_DRAINED], 1);
    assert_int_equal(fx_one(a.scq).wr_id, 1); /* what was begun is finished, what was not waits */
    fx_none(a.scq);
    attr.qp_state = UROCE_QPS_RTS;
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).wr_id, 2);
    attr.qp_state = UROCE_QPS_SQD; /* with nothing to drain */
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE | UROCE_QP_EN_SQD_ASYNC_NOTIFY, NULL), 0);
    assert_int_equal(a.events[UROCE_EVENT_SQ_DRAINED], 2);
    fx_close();
}

static void an_overflow_breaks_the_completion_queue_and_its_queue_pairs(void **state)
{
    struct uroce_wc wc[32];
    struct uroce_send_wr wr;

    (void)state;
    fx_open(&(struct qend_opts){.cqe = 16});
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    for (int i = 0; i < 17; i++)
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 1), 0);
    fx_run();
    assert_int_equal(a.events[UROCE_EVENT_CQ_ERR], 1);
    assert_int_equal(a.events[UROCE_EVENT_QP_FATAL], 1);
    assert_int_equal(fx_state(&a), UROCE_QPS_ERR);
    assert_int_equal(qp_cq_poll(a.scq, 32, wc), 16);
    assert_int_equal(qp_cq_poll(a.scq, 32, wc), -EIO);
    fx_close();
}

static void credits_keep_a_sender_from_running_into_rnr(void **state)
{
    struct uroce_counters c;

    (void)state;
    fx_open(&(struct qend_opts){.min_rnr_timer = 14});
    qend_recv(&b, &net, 0, b.mem, 10); /* the first SEND learns how many there are */
    for (uint64_t i = 0; i < 20; i++) {
        struct uroce_send_wr wr = fx_send(i);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
        if (!i)
            qpnet_run(&net, net.now + SECOND / 1000);
    }
    for (uint64_t i = 1; i < 20; i++) {
        qpnet_run(&net, net.now + SECOND / 100);
        qend_recv(&b, &net, i, b.mem, 10);
    }
    fx_run();
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(fx_one(a.scq).wr_id, i);
    qp_counters(b.qp, &c);
    assert_in_range(c.out_of_order, 0, 20); /* one request beyond the limit at a time, not all that are posted */
    fx_close();
}

static void a_local_invalidate_waits_for_what_was_posted_before(void **state)
{
    struct uroce_send_wr wr, inv;

    (void)state;
    fx_open(&(struct qend_opts){.unsignalled = true});
    wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
    wr.send_flags = 0;
    inv = (struct uroce_send_wr){.wr_id = 2, .opcode = UROCE_WR_LOCAL_INV, .send_flags = UROCE_SEND_SIGNALED};
    inv.invalidate_rkey = qp_mr_rkey(a.mr);
    lose_packets = 1;
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
    assert_int_equal(qend_send(&a, &net, &inv, NULL, 0), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).opcode, UROCE_WC_LOCAL_INV);
    inv.wr_id = 1; /* it is invalid already */
    post_with_followers(&inv, NULL, 0);
    expect_failure(UROCE_WC_LOC_QP_OP_ERR);
    fx_close();
}

/* Who polls it in another thread posts at once, also into a queue of one. */
static void a_place_in_the_queue_is_free_when_its_completion_is_told(void **state)
{
    struct uroce_send_wr wr;

    (void)state;
    fx_open(&(struct qend_opts){.wr = 1});
    uint32_t all = qp_send_room(a.qp);
    static const enum uroce_wr_opcode ops[] = {UROCE_WR_RDMA_WRITE, UROCE_WR_RDMA_READ};
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
        wr = fx_rdma(ops[i], 1, b.mem);
        qp_cq_arm(a.scq, false);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 5000), 0);
        fx_run();
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
        assert_int_equal(a.cq_events, i + 1);
        assert_int_equal(a.room, all);
    }
    /* And when it is flushed. */
    struct uroce_qp_attr err = {.qp_state = UROCE_QPS_ERR};
    assert_int_equal(qp_modify(a.qp, net.now, &err, UROCE_QP_STATE, NULL), 0);
    qp_cq_arm(a.scq, false);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_WR_FLUSH_ERR);
    assert_int_equal(a.room, all);
    fx_close();
}

/* Messages of so many packets: what one call gives of them, and the next. */
static void expect_bursts(uint32_t pkts, int messages, const int *want, int calls)
{
    struct qp_tx tx[64];

    fx_open(&(struct qend_opts){.run_bytes = 62 * 1040, .window_pkts = 1024, .window_bytes = 1u << 20});
    for (int i = 0; i < messages; i++) {
        struct uroce_send_wr wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, pkts * 1024), 0);
    }
    for (int i = 0; i < calls; i++)
        assert_int_equal(qp_engine_tx(a.e, net.now, tx, 64), want[i]);
    fx_run(); /* what was not sent here is sent again */
    for (int i = 0; i < messages; i++)
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    fx_close();
}

static void a_burst_ends_where_a_run_begins_that_has_no_room_in_it(void **state)
{
    (void)state;
    /* The first packet is longer, and a run of the port with the second. */
    expect_bursts(64, 3, (int[]){64, 64, 64, 0}, 4);
    expect_bursts(200, 1, (int[]){64, 62, 62, 12, 0}, 5);
    expect_bursts(100, 2, (int[]){64, 38, 62, 36, 0}, 5);
    /* Short messages fill it. */
    expect_bursts(8, 20, (int[]){64, 64, 32, 0}, 4);
    expect_bursts(1, 64, (int[]){62, 2, 0}, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_local_memory_fails_in_its_turn),
        cmocka_unit_test(an_unsignalled_request_before_a_failing_one_is_still_carried_out),
        cmocka_unit_test(a_message_over_the_limit_is_a_length_error),
        cmocka_unit_test(a_read_without_resources_is_an_operation_error),
        cmocka_unit_test(what_the_peer_refuses_has_its_status),
        cmocka_unit_test(a_peer_whose_own_memory_is_wrong_is_a_remote_operation_error),
        cmocka_unit_test(a_silent_peer_is_tried_so_often_and_no_more),
        cmocka_unit_test(a_time_out_of_0_waits_for_ever),
        cmocka_unit_test(what_is_lost_is_sent_again),
        cmocka_unit_test(rnr_is_tried_so_often_and_no_more),
        cmocka_unit_test(rnr_retry_7_waits_for_a_receive_for_ever),
        cmocka_unit_test(a_gap_told_behind_an_rnr_waits_with_it_and_is_no_retry),
        cmocka_unit_test(a_response_that_does_not_fit_is_a_bad_response),
        cmocka_unit_test(a_peer_that_only_tells_of_gaps_is_given_up),
        cmocka_unit_test(memory_that_goes_away_during_a_read_is_a_protection_error),
        cmocka_unit_test(acknowledgements_of_what_was_never_sent_are_ignored),
        cmocka_unit_test(an_error_state_flushes_what_waits_and_what_is_posted_later),
        cmocka_unit_test(a_drained_queue_says_so_and_goes_on_later),
        cmocka_unit_test(an_overflow_breaks_the_completion_queue_and_its_queue_pairs),
        cmocka_unit_test(credits_keep_a_sender_from_running_into_rnr),
        cmocka_unit_test(a_place_in_the_queue_is_free_when_its_completion_is_told),
        cmocka_unit_test(a_local_invalidate_waits_for_what_was_posted_before),
        cmocka_unit_test(a_burst_ends_where_a_run_begins_that_has_no_room_in_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The responder: one test for each of its error states, and for duplicates, gaps and RNR; with packets made by hand. */
#include "roce_fixture.h"

static struct wire_pkt answer; /* the last that b sent */
static int answers;

static bool keep_answer(int from, const struct qp_tx *tx)
{
    if (from == 1) {
        answer = tx->pkt;
        answers++;
    }
    return false; /* a's queue pair stays out of it */
}

static void open_b(const struct qend_opts *o)
{
    fx_open(o);
    watch = keep_answer;
    answers = 0;
}

/* A packet as if from a; PSN counts from 0. */
static void inject(uint8_t opcode, uint32_t psn, uint32_t len, struct wire_pkt p)
{
    static uint8_t payload[8192];
    struct qp_rx rx = {.pkt = p, .path = qpnet_path(b.node, a.node)};

    rx.pkt.opcode = opcode;
    rx.pkt.psn = psn_make(psn);
    rx.pkt.pkey = WIRE_PKEY_DEFAULT;
    rx.pkt.dest_qp = qp_num(b.qp);
    rx.pkt.payload = payload;
    rx.pkt.payload_len = len;
    for (uint32_t i = 0; i < len; i++)
        payload[i] = (uint8_t)(i * 7 + psn + 1);
    qp_engine_rx(b.e, net.now, &rx);
    qpnet_flush(&net);
}

static struct wire_pkt reth(uint64_t off, uint32_t len)
{
    return (struct wire_pkt){.va = (uintptr_t)b.mem + off, .rkey = qp_mr_rkey(b.mr), .dma_len = len, .ackreq = true};
}

static const struct wire_pkt plain = {.ackreq = true};

/* The state was reached, the NAK sent, the queue pair is in error, and nothing was written. */
static void expect_nak(const char *state, enum wire_nak nak)
{
    assert_true(qend_saw(&b, state));
    assert_int_equal(answers, 1);
    assert_int_equal(answer.opcode, WIRE_RC_ACK);
    assert_int_equal(answer.syndrome, wire_syndrome_nak(nak));
    assert_int_equal(fx_state(&b), UROCE_QPS_ERR);
    assert_int_equal(b.events[nak == WIRE_NAK_ACCESS ? UROCE_EVENT_QP_ACCESS_ERR : UROCE_EVENT_QP_REQ_ERR], 1);
    for (int i = 0; i < QEND_MEM; i++)
        assert_int_equal(b.mem[i], 0);
    fx_close();
}

static void a_middle_packet_without_a_first_is_a_wrong_sequence(void **state)
{
    (void)state;
    open_b(NULL);
    inject(WIRE_RC_WRITE_MIDDLE, 0, 1024, plain);
    expect_nak("ERR_SEQUENCE", WIRE_NAK_INVALID);
}

static void a_send_inside_of_a_write_is_a_wrong_sequence(void **state)
{
    (void)state;
    open_b(NULL);
    qend_recv(&b, &net, 1, b.mem, 4096);
    inject(WIRE_RC_WRITE_FIRST, 0, 1024, reth(0, 3000));
    memset(b.mem, 0, 1024);
    answers = 0;
    inject(WIRE_RC_SEND_ONLY, 1, 10, plain);
    expect_nak("ERR_SEQUENCE", WIRE_NAK_INVALID);
}

static void a_send_cut_by_another_message_fails_its_receive(void **state)
{
    struct uroce_wc wc;

    (void)state;
    open_b(NULL);
    qend_recv(&b, &net, 7, b.mem + 4096, 4096);
    qend_recv(&b, &net, 8, b.mem + 8192, 4096);
    inject(WIRE_RC_SEND_FIRST, 0, 1024, (struct wire_pkt){0});
    inject(WIRE_RC_SEND_ONLY, 1, 10, plain);
    wc = fx_one(b.rcq);
    assert_int_equal(wc.wr_id, 7);
    assert_int_equal(wc.status, UROCE_WC_REM_INV_REQ_ERR);
    wc = fx_one(b.rcq);
    assert_int_equal(wc.wr_id, 8);
    assert_int_equal(wc.status, UROCE_WC_WR_FLUSH_ERR);
    memset(b.mem, 0, QEND_MEM);
    expect_nak("ERR_SEQUENCE", WIRE_NAK_INVALID);
}

static void a_right_that_the_queue_pair_does_not_give_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        static const uint8_t op[] = {WIRE_RC_WRITE_ONLY, WIRE_RC_READ_REQUEST, WIRE_RC_FETCH_ADD};
        static const unsigned int access[] = {UROCE_ACCESS_REMOTE_READ, UROCE_ACCESS_REMOTE_WRITE,
                                              UROCE_ACCESS_REMOTE_READ};
        open_b(&(struct qend_opts){.qp_access = access[i]});
        inject(op[i], 0, i ? 0 : 100, reth(0, 100));
        expect_nak("ERR_OPERATION", WIRE_NAK_INVALID);
    }
}

static void lengths_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        uint8_t opcode;
        uint32_t len, dma;
    } bad[] = {
        {WIRE_RC_WRITE_FIRST, 1000, 3000}, /* shorter than the MTU */
        {WIRE_RC_WRITE_FIRST, 1028, 3000}, /* longer */
        {WIRE_RC_WRITE_FIRST, 1024, 1024}, /* would be an ONLY */
        {WIRE_RC_WRITE_ONLY, 100, 101},    /* not what the header says */
        {WIRE_RC_WRITE_ONLY, 1028, 1028},  /* longer than the MTU */
        {WIRE_RC_SEND_FIRST, 1020, 0},     {WIRE_RC_SEND_ONLY, 1025, 0}, {WIRE_RC_READ_REQUEST, 0, UROCE_MSG_MAX + 1},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        open_b(NULL);
        inject(bad[i].opcode, 0, bad[i].len, reth(0, bad[i].dma));
        expect_nak("ERR_LENGTH", WIRE_NAK_INVALID);
    }
    open_b(NULL);
    inject(WIRE_RC_CMP_SWAP, 0, 0, reth(4, 0)); /* an atomic that is not aligned */
    expect_nak("ERR_LENGTH", WIRE_NAK_INVALID);
}

static void a_write_longer_or_shorter_than_it_said_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        static const uint8_t op[] = {WIRE_RC_WRITE_LAST, WIRE_RC_WRITE_LAST, WIRE_RC_WRITE_MIDDLE};
        static const uint32_t len[] = {475, 477, 1024};
        open_b(NULL);
        inject(WIRE_RC_WRITE_FIRST, 0, 1024, reth(0, 1500));
        memset(b.mem, 0, 1024);
        answers = 0;
        inject(op[i], 1, len[i], plain);
        expect_nak("ERR_LENGTH", WIRE_NAK_INVALID);
    }
}

static void a_send_longer_than_the_receive_is_refused(void **state)
{
    struct uroce_wc wc;

    (void)state;
    open_b(NULL);
    qend_recv(&b, &net, 5, b.mem, 99);
    inject(WIRE_RC_SEND_ONLY, 0, 100, plain);
    wc = fx_one(b.rcq);
    assert_int_equal(wc.status, UROCE_WC_LOC_LEN_ERR);
    assert_int_equal(wc.wr_id, 5);
    expect_nak("ERR_TOO_LONG", WIRE_NAK_INVALID);
}

static void an_empty_message_does_not_look_at_the_memory_of_its_receive(void **state)
{
    struct uroce_sge sge = {0, 256, 0x1234};
    struct uroce_recv_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1};
    const struct uroce_recv_wr *bad;
    struct uroce_wc wc;
    bool bell;

    (void)state;
    open_b(NULL);
    assert_int_equal(qp_post_recv(b.qp, &wr, &bad, &bell), 0);
    inject(WIRE_RC_SEND_ONLY, 0, 0, plain);
    wc = fx_one(b.rcq);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    assert_int_equal(wc.byte_len, 0);
    fx_close();
}

static void a_receive_with_wrong_memory_is_an_operational_error(void **state)
{
    struct uroce_sge sge = {(uintptr_t)b.mem, 4096, 0x1234};
    struct uroce_recv_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1};
    const struct uroce_recv_wr *bad;
    bool bell;

    (void)state;
    open_b(NULL);
    sge.addr = (uintptr_t)b.mem;
    assert_int_equal(qp_post_recv(b.qp, &wr, &bad, &bell), 0);
    inject(WIRE_RC_SEND_ONLY, 0, 100, plain);
    assert_int_equal(fx_one(b.rcq).status, UROCE_WC_LOC_PROT_ERR);
    expect_nak("ERR_LOCAL", WIRE_NAK_OPERATION);
}

static void keys_are_checked_for_range_right_and_domain(void **state)
{
    struct wire_pkt p;

    (void)state;
    for (int i = 0; i < 6; i++) {
        open_b(i == 5 ? &(struct qend_opts){.access = UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_READ} : NULL);
        p = reth(0, 100);
        if (i == 0)
            p.rkey ^= 1;
        if (i == 1)
            p.va--;
        if (i == 2)
            p.va += QEND_MEM - 99;
        if (i == 3)
            p.va = UINT64_MAX - 10;
        if (i == 4) { /* the key of a region in another domain */
            struct qp_pd *pd;
            struct qp_mr *mr;
            assert_int_equal(qp_pd_new(b.e, &pd), 0);
            assert_int_equal(qp_mr_reg(pd, b.mem, QEND_MEM, (uintptr_t)b.mem, 15, NULL, &mr), 0);
            p.rkey = qp_mr_rkey(mr);
            inject(WIRE_RC_WRITE_ONLY, 0, 100, p);
            assert_int_equal(qp_mr_dereg(mr), 0);
            assert_int_equal(qp_pd_free(pd), 0);
        } else {
            inject(WIRE_RC_WRITE_ONLY, 0, 100, p);
        }
        expect_nak("ERR_KEY", WIRE_NAK_ACCESS);
    }
}

static void a_message_is_checked_whole_before_its_first_byte(void **state)
{
    (void)state;
    open_b(NULL);
    inject(WIRE_RC_WRITE_FIRST, 0, 1024, reth(QEND_MEM - 2999, 3000));
    expect_nak("ERR_KEY", WIRE_NAK_ACCESS);
}

static void a_region_that_goes_away_ends_the_write_at_once(void **state)
{
    (void)state;
    open_b(NULL);
    inject(WIRE_RC_WRITE_FIRST, 0, 1024, reth(0, 3000));
    assert_int_equal(qp_mr_dereg(b.mr), 0);
    b.mr = NULL;
    memset(b.mem, 0, QEND_MEM);
    answers = 0;
    inject(WIRE_RC_WRITE_MIDDLE, 1, 1024, plain);
    expect_nak("ERR_KEY", WIRE_NAK_ACCESS);
}

static void more_reads_than_agreed_are_refused(void **state)
{
    struct qp_rx rx = {.path = qpnet_path(b.node, a.node)};

    (void)state;
    open_b(&(struct qend_opts){.rd_atomic = 2});
    for (uint32_t i = 0; i < 3; i++) { /* none is answered in between */
        rx.pkt = reth(0, 100);
        rx.pkt.opcode = WIRE_RC_READ_REQUEST;
        rx.pkt.psn = psn_make(i);
        rx.pkt.pkey = WIRE_PKEY_DEFAULT;
        rx.pkt.dest_qp = qp_num(b.qp);
        qp_engine_rx(b.e, net.now, &rx);
    }
    qpnet_flush(&net);
    assert_int_equal(answers, 3); /* the first two are answered, then the NAK */
    answers = 1;
    expect_nak("ERR_RESOURCES", WIRE_NAK_INVALID);
}

static enum qp_verdict verdict;
static enum qp_verdict judge(struct qend *q, const struct qp_payload *p, uint64_t *ret_value, bool *ret_has)
{
    (void)q;
    *ret_value = p->len * 1000 + p->offset;
    *ret_has = p->last;
    return verdict;
}

static void a_slot_that_refuses_is_an_operational_error(void **state)
{
    (void)state;
    open_b(NULL);
    b.payload = judge;
    verdict = QP_REFUSE;
    qp_set_slots(b.qp, true);
    inject(WIRE_RC_WRITE_ONLY, 0, 100, reth(0, 100));
    expect_nak("ERR_SLOT", WIRE_NAK_OPERATION);
}

static void a_slot_that_drops_makes_the_packet_come_again(void **state)
{
    struct uroce_wc wc;

    (void)state;
    open_b(NULL);
    b.payload = judge;
    verdict = QP_DROP;
    qp_set_slots(b.qp, true);
    qend_recv(&b, &net, 1, b.mem, 4096);
    inject(WIRE_RC_SEND_ONLY, 0, 100, plain);
    assert_true(qend_saw(&b, "LOST"));
    assert_int_equal(answers, 0);
    verdict = QP_ACCEPT;
    inject(WIRE_RC_SEND_ONLY, 0, 100, plain);
    wc = fx_one(b.rcq);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    assert_int_equal(wc.wc_flags, UROCE_WC_SLOT_VALUE);
    assert_int_equal(wc.slot_value, 100000);
    fx_close();
}

static void invalidating_a_wrong_key_is_an_access_error(void **state)
{
    (void)state;
    open_b(NULL);
    qend_recv(&b, &net, 1, b.mem, 4096);
    inject(WIRE_RC_SEND_ONLY_INV, 0, 100, (struct wire_pkt){.inv_rkey = 0x5555});
    memset(b.mem, 0, 4096);
    expect_nak("ERR_INVALIDATE", WIRE_NAK_ACCESS);
}

static void a_send_with_invalidate_takes_the_peers_right(void **state)
{
    struct uroce_wc wc;

    (void)state;
    open_b(NULL);
    qend_recv(&b, &net, 1, b.mem, 4096);
    inject(WIRE_RC_SEND_ONLY_INV, 0, 100, (struct wire_pkt){.inv_rkey = qp_mr_rkey(b.mr), .ackreq = true});
    wc = fx_one(b.rcq);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    assert_int_equal(wc.wc_flags, UROCE_WC_WITH_INV);
    assert_int_equal(wc.invalidated_rkey, qp_mr_rkey(b.mr));
    memset(b.mem, 0, 4096);
    answers = 0;
    inject(WIRE_RC_WRITE_ONLY, 1, 10, reth(0, 10));
    expect_nak("ERR_KEY", WIRE_NAK_ACCESS);
}

/* ---- no errors ---- */

static void a_gap_is_told_once(void **state)
{
    (void)state;
    open_b(NULL);
    inject(WIRE_RC_WRITE_ONLY, 2, 10, reth(0, 10));
    assert_true(qend_saw(&b, "GAP"));
    assert_int_equal(answer.syndrome, wire_syndrome_nak(WIRE_NAK_SEQ));
    assert_int_equal(answer.psn.v, 0);
    inject(WIRE_RC_WRITE_ONLY, 3, 10, reth(0, 10));
    assert_int_equal(answers, 1);
    assert_int_equal(b.mem[0], 0);
    inject(WIRE_RC_WRITE_ONLY, 0, 10, reth(0, 10));
    assert_int_equal(answers, 2);
    inject(WIRE_RC_WRITE_ONLY, 2, 10, reth(0, 10)); /* the next gap is told again */
    assert_int_equal(answers, 3);
    assert_int_equal(answer.psn.v, 1);
    fx_close();
}

static void a_duplicate_write_is_answered_and_not_written(void **state)
{
    (void)state;
    open_b(NULL);
    inject(WIRE_RC_WRITE_ONLY, 0, 10, reth(0, 10));
    inject(WIRE_RC_WRITE_ONLY, 1, 10, reth(100, 10));
    memset(b.mem, 0, 200);
    inject(WIRE_RC_WRITE_ONLY, 0, 10, reth(0, 10));
    assert_true(qend_saw(&b, "DUPLICATE"));
    assert_int_equal(answers, 3);
    assert_int_equal(answer.psn.v, 1); /* the newest */
    assert_int_equal(b.mem[0], 0);
    fx_close();
}

static void acknowledgements_wait_while_they_are_put_off(void **state)
{
    (void)state;
    open_b(NULL);
    assert_false(qp_engine_put_off(b.e, true));
    inject(WIRE_RC_WRITE_ONLY, 0, 8, reth(0, 8));
    inject(WIRE_RC_WRITE_ONLY, 1, 8, reth(0, 8));
    assert_int_equal(answers, 0);
    assert_true(qp_engine_put_off(b.e, true));
    inject(WIRE_RC_READ_REQUEST, 2, 0, reth(0, 8)); /* what is waited for goes */
    assert_int_equal(answers, 1);
    assert_int_equal(answer.opcode, WIRE_RC_READ_RESP_ONLY);
    assert_false(qp_engine_put_off(b.e, false));
    qpnet_flush(&net);
    assert_int_equal(answers, 2);
    assert_int_equal(answer.opcode, WIRE_RC_ACK);
    assert_int_equal(answer.psn.v, 1);
    /* A NAK does not wait; nor does the end of a queue pair leave it in the list. */
    assert_false(qp_engine_put_off(b.e, true));
    inject(WIRE_RC_WRITE_ONLY, 3, 8, reth(0, 8));
    assert_true(qp_engine_put_off(b.e, true));
    inject(WIRE_RC_WRITE_MIDDLE, 4, 1024, plain);
    assert_int_equal(answers, 3);
    assert_int_equal(answer.syndrome, wire_syndrome_nak(WIRE_NAK_INVALID));
    fx_close();
}

/* A requester may take an ACK with the PSN of a READ or atomic for its answer, though that was lost. */
static void an_acknowledgement_never_has_the_psn_of_an_atomic_or_read(void **state)
{
    struct wire_pkt atomic = {.swap_add = 1};

    (void)state;
    open_b(NULL);
    atomic.va = (uintptr_t)b.mem;
    atomic.rkey = qp_mr_rkey(b.mr);
    inject(WIRE_RC_WRITE_ONLY, 0, 8, reth(64, 8));
    inject(WIRE_RC_FETCH_ADD, 1, 0, atomic);
    assert_int_equal(answer.opcode, WIRE_RC_ATOMIC_ACK);
    inject(WIRE_RC_WRITE_ONLY, 0, 8, reth(64, 8)); /* once more: its acknowledgement was lost, too */
    assert_int_equal(answer.opcode, WIRE_RC_ACK);
    assert_int_equal(answer.psn.v, 0);
    assert_int_equal(answer.msn, 1);
    inject(WIRE_RC_READ_REQUEST, 2, 0, reth(64, 8));
    inject(WIRE_RC_WRITE_ONLY, 0, 8, reth(64, 8));
    assert_int_equal(answer.opcode, WIRE_RC_ACK);
    assert_int_equal(answer.psn.v, 0);
    inject(WIRE_RC_WRITE_ONLY, 3, 8, reth(64, 8));
    assert_int_equal(answer.psn.v, 3);
    assert_int_equal(answer.msn, 4);
    fx_close();
}

static void a_duplicate_atomic_gets_the_first_answer(void **state)
{
    struct wire_pkt p;

    (void)state;
    open_b(NULL);
    p = reth(8, 0);
    p.swap_add = 5;
    inject(WIRE_RC_FETCH_ADD, 0, 0, p);
    assert_int_equal(answer.orig, 0);
    inject(WIRE_RC_FETCH_ADD, 1, 0, p);
    assert_int_equal(answer.orig, 5);
    inject(WIRE_RC_FETCH_ADD, 0, 0, p);
    assert_int_equal(answers, 3);
    assert_int_equal(answer.orig, 0);
    assert_int_equal(answer.psn.v, 0);
    assert_int_equal(b.mem[8], 10);
    fx_close();
}

static void a_duplicate_read_begins_where_it_is_asked_to(void **state)
{
    struct wire_pkt p;

    (void)state;
    open_b(NULL);
    inject(WIRE_RC_READ_REQUEST, 0, 0, reth(0, 5000));
    assert_int_equal(answers, 5);
    assert_int_equal(answer.opcode, WIRE_RC_READ_RESP_LAST);
    p = reth(2048, 2048);
    inject(WIRE_RC_READ_REQUEST, 2, 0, p);
    assert_int_equal(answers, 7);
    assert_int_equal(answer.opcode, WIRE_RC_READ_RESP_LAST);
    assert_int_equal(answer.psn.v, 3);
    p = reth(1, 1024); /* not what was asked for the first time */
    inject(WIRE_RC_READ_REQUEST, 2, 0, p);
    assert_int_equal(answers, 7);
    fx_close();
}

static void without_a_receive_the_sender_is_told_to_wait(void **state)
{
    (void)state;
    open_b(&(struct qend_opts){.min_rnr_timer = 9});
    inject(WIRE_RC_SEND_ONLY, 0, 10, plain);
    assert_true(qend_saw(&b, "RNR"));
    assert_int_equal(answer.syndrome, wire_syndrome_rnr(9));
    assert_int_equal(answer.psn.v, 0);
    inject(WIRE_RC_SEND_ONLY, 1, 10, plain);
    assert_int_equal(answers, 1); /* what follows is past a gap, and the peer knows */
    qend_recv(&b, &net, 1, b.mem, 100);
    inject(WIRE_RC_SEND_ONLY, 0, 10, plain);
    assert_int_equal(answer.syndrome & 0xe0, 0);
    assert_int_equal(fx_one(b.rcq).byte_len, 10);
    fx_close();
}

static void packets_of_strangers_are_dropped_and_counted(void **state)
{
    struct qp_rx rx = {.pkt = {.opcode = WIRE_RC_WRITE_ONLY, .pkey = WIRE_PKEY_DEFAULT}};
    struct uroce_counters c;

    (void)state;
    open_b(NULL);
    rx.pkt.dest_qp = qp_num(b.qp);
    rx.path = qpnet_path(b.node, 5);
    qp_engine_rx(b.e, net.now, &rx);
    rx.path = qpnet_path(b.node, a.node);
    rx.pkt.pkey = 0x1234;
    qp_engine_rx(b.e, net.now, &rx);
    rx.pkt.pkey = WIRE_PKEY_DEFAULT;
    rx.pkt.opcode = WIRE_UC_WRITE_ONLY;
    qp_engine_rx(b.e, net.now, &rx);
    rx.pkt.dest_qp ^= 0x8000;
    qp_engine_rx(b.e, net.now, &rx);
    qpnet_flush(&net);
    qp_engine_counters(b.e, &c);
    assert_int_equal(c.drop_source, 1);
    assert_int_equal(c.drop_pkey, 1);
    assert_int_equal(c.drop_opcode, 1);
    assert_int_equal(c.drop_no_qp, 1);
    assert_int_equal(answers, 0);
    assert_int_equal(fx_state(&b), UROCE_QPS_RTS);
    fx_close();
}

/* READs of so many packets each, all asked for at once: what one call gives of their answers, and the next. */
static void expect_bursts(uint32_t pkts, uint32_t reads, const int *want, int calls)
{
    struct qp_tx tx[64];
    uint32_t psn = 0;

    open_b(&(struct qend_opts){.run_bytes = 62 * 1040});
    for (uint32_t i = 0; i < reads; i++) {
        struct qp_rx rx = {.pkt = reth(0, pkts * 1024), .path = qpnet_path(b.node, a.node)};
        rx.pkt.opcode = WIRE_RC_READ_REQUEST;
        rx.pkt.psn = psn_make(i * pkts);
        rx.pkt.pkey = WIRE_PKEY_DEFAULT;
        rx.pkt.dest_qp = qp_num(b.qp);
        qp_engine_rx(b.e, net.now, &rx);
    }
    for (int i = 0; i < calls; i++) {
        assert_int_equal(qp_engine_tx(b.e, net.now, tx, 64), want[i]);
        for (int k = 0; k < want[i]; k++, psn++) {
            assert_int_equal(tx[k].pkt.psn.v, psn);
            assert_int_equal(tx[k].payload_len, 1024);
            assert_ptr_equal(tx[k].iov[0].iov_base, b.mem + psn % pkts * 1024);
            if (tx[k].follows)
                assert_int_equal(tx[k].pkt.opcode, tx[k - 1].pkt.opcode);
        }
    }
    assert_int_equal(psn, pkts * reads);
    fx_close();
}

static void the_last_packet_of_an_answer_goes_with_the_first_of_the_next(void **state)
{
    (void)state;
    /* The first and the last are longer than the others: runs of 3 and 61, with the next answer's first two. */
    expect_bursts(64, 3, (int[]){63, 64, 64, 1, 0}, 5);
    expect_bursts(32, 3, (int[]){63, 33, 0}, 3);
    expect_bursts(64, 1, (int[]){64, 0}, 2);
    expect_bursts(1, 3, (int[]){3, 0}, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_middle_packet_without_a_first_is_a_wrong_sequence),
        cmocka_unit_test(a_send_inside_of_a_write_is_a_wrong_sequence),
        cmocka_unit_test(a_send_cut_by_another_message_fails_its_receive),
        cmocka_unit_test(a_right_that_the_queue_pair_does_not_give_is_refused),
        cmocka_unit_test(lengths_that_do_not_fit_are_refused),
        cmocka_unit_test(a_write_longer_or_shorter_than_it_said_is_refused),
        cmocka_unit_test(a_send_longer_than_the_receive_is_refused),
        cmocka_unit_test(an_empty_message_does_not_look_at_the_memory_of_its_receive),
        cmocka_unit_test(a_receive_with_wrong_memory_is_an_operational_error),
        cmocka_unit_test(keys_are_checked_for_range_right_and_domain),
        cmocka_unit_test(a_message_is_checked_whole_before_its_first_byte),
        cmocka_unit_test(a_region_that_goes_away_ends_the_write_at_once),
        cmocka_unit_test(more_reads_than_agreed_are_refused),
        cmocka_unit_test(a_slot_that_refuses_is_an_operational_error),
        cmocka_unit_test(a_slot_that_drops_makes_the_packet_come_again),
        cmocka_unit_test(invalidating_a_wrong_key_is_an_access_error),
        cmocka_unit_test(a_send_with_invalidate_takes_the_peers_right),
        cmocka_unit_test(a_gap_is_told_once),
        cmocka_unit_test(a_duplicate_write_is_answered_and_not_written),
        cmocka_unit_test(acknowledgements_wait_while_they_are_put_off),
        cmocka_unit_test(an_acknowledgement_never_has_the_psn_of_an_atomic_or_read),
        cmocka_unit_test(a_duplicate_atomic_gets_the_first_answer),
        cmocka_unit_test(a_duplicate_read_begins_where_it_is_asked_to),
        cmocka_unit_test(without_a_receive_the_sender_is_told_to_wait),
        cmocka_unit_test(the_last_packet_of_an_answer_goes_with_the_first_of_the_next),
        cmocka_unit_test(packets_of_strangers_are_dropped_and_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

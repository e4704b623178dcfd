/* Packets of the middle of a message, given to the engine together: what is taken so, and that it changes nothing. */
#include "roce_fixture.h"

#define LEN 1024u

static uint8_t bytes[8][LEN];
static const uint8_t *payload[8];

/* A packet as if to `to`, from the other end. */
static struct qp_rx packet(const struct qend *to, const struct qend *from, uint8_t opcode, uint32_t psn)
{
    struct qp_rx rx = {.path = qpnet_path(to->node, from->node)};

    for (uint32_t i = 0; i < ARRAY_SIZE(bytes); i++) {
        fx_fill(bytes[i], LEN, i + 7);
        payload[i] = bytes[i];
    }
    rx.pkt = (struct wire_pkt){.opcode = opcode,
                               .pkey = WIRE_PKEY_DEFAULT,
                               .dest_qp = qp_num(to->qp),
                               .psn = psn_make(psn),
                               .payload_len = LEN,
                               .payload = bytes[0]};
    return rx;
}

/* b is in a WRITE of 5 packets, of which the first has come. */
static void begin_write(void)
{
    struct qp_rx rx;

    fx_open(NULL);
    rx = packet(&b, &a, WIRE_RC_WRITE_FIRST, 0);
    rx.pkt.va = (uintptr_t)b.mem + 64;
    rx.pkt.rkey = qp_mr_rkey(b.mr);
    rx.pkt.dma_len = 5 * LEN;
    qp_engine_rx(b.e, net.now, &rx);
}

static void a_run_of_a_write_goes_up_to_its_last_packet(void **state)
{
    struct qp_rx rx;

    (void)state;
    begin_write();
    rx = packet(&b, &a, WIRE_RC_WRITE_MIDDLE, 1);
    assert_int_equal(qp_engine_rx_room(b.e, &rx, 8), 3);
    assert_int_equal(qp_engine_rx_room(b.e, &rx, 2), 2);
    assert_int_equal(qp_engine_rx_run(b.e, net.now, &rx, payload, 3), 3);
    assert_memory_equal(b.mem + 64 + LEN, bytes, 3 * LEN);
    for (uint32_t i = 64 + 4 * LEN; i < QEND_MEM; i++)
        assert_int_equal(b.mem[i], 0);
    rx = packet(&b, &a, WIRE_RC_WRITE_MIDDLE, 4); /* what is left is no middle */
    assert_int_equal(qp_engine_rx_room(b.e, &rx, 8), 0);
    rx.pkt.opcode = WIRE_RC_WRITE_LAST;
    assert_int_equal(qp_engine_rx_room(b.e, &rx, 8), 0);
    qp_engine_rx(b.e, net.now, &rx);
    assert_int_equal(fx_state(&b), UROCE_QPS_RTS);
    assert_memory_equal(b.mem + 64 + 4 * LEN, bytes[0], LEN);
    fx_close();
}

static void a_packet_on_which_a_state_has_a_word_is_in_no_run(void **state)
{
    (void)state;
    begin_write();
    for (int i = 0; i < 10; i++) {
        struct qp_rx rx = packet(&b, &a, WIRE_RC_WRITE_MIDDLE, 1);
        switch (i) {
        case 0:
            rx.pkt.psn = psn_make(2);
            break;
        case 1:
            rx.pkt.psn = psn_make(0);
            break;
        case 2:
            rx.ecn_ce = true;
            break;
        case 3:
            rx.pkt.pkey = 0x1234;
            break;
        case 4:
            rx.path.remote = qpnet_gid(7);
            break;
        case 5:
            rx.pkt.dest_qp ^= 1;
            break;
        case 6:
            rx.pkt.payload_len = LEN - 4;
            break;
        case 7:
            rx.pkt.opcode = WIRE_RC_SEND_MIDDLE;
            break;
        case 8:
            rx.pkt.opcode = WIRE_XRC_WRITE_MIDDLE;
            break;
        default:
            rx.pkt.opcode = WIRE_RC_READ_RESP_MIDDLE;
        }
        assert_int_equal(qp_engine_rx_room(b.e, &rx, 8), 0);
        assert_int_equal(qp_engine_rx_run(b.e, net.now, &rx, payload, 3), 0);
    }
    assert_int_equal(qp_mr_dereg(b.mr), 0);
    struct qp_rx rx = packet(&b, &a, WIRE_RC_WRITE_MIDDLE, 1);
    assert_int_equal(qp_engine_rx_run(b.e, net.now, &rx, payload, 3), 0);
    for (uint32_t i = 64 + LEN; i < QEND_MEM; i++)
        assert_int_equal(b.mem[i], 0);
    assert_int_equal(qp_mr_reg(b.pd, b.mem, QEND_MEM, (uintptr_t)b.mem, UROCE_ACCESS_LOCAL_WRITE, NULL, &b.mr), 0);
    fx_close();
}

static bool none_to_b(int from, const struct qp_tx *tx)
{
    (void)tx;
    return from != a.node;
}

static void a_run_of_a_reads_answer_goes_up_to_its_last_packet(void **state)
{
    struct uroce_send_wr wr;
    struct qp_rx rx;

    (void)state;
    fx_open(NULL);
    watch = none_to_b;
    wr = fx_rdma(UROCE_WR_RDMA_READ, 1, b.mem);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem + 64, 5 * LEN), 0);
    qpnet_flush(&net);
    rx = packet(&a, &b, WIRE_RC_READ_RESP_MIDDLE, 0);
    for (uint32_t i = 0; i < 5; i++) /* the first has not come; none is asked for yet or any more */
        if (i != 0) {
            rx.pkt.psn = psn_make(i);
            assert_int_equal(qp_engine_rx_room(a.e, &rx, 8), 0);
        }
    rx = packet(&a, &b, WIRE_RC_READ_RESP_FIRST, 0);
    assert_int_equal(qp_engine_rx_room(a.e, &rx, 8), 0);
    qp_engine_rx(a.e, net.now, &rx);
    rx = packet(&a, &b, WIRE_RC_READ_RESP_MIDDLE, 1);
    assert_int_equal(qp_engine_rx_room(a.e, &rx, 8), 3);
    assert_int_equal(qp_engine_rx_run(a.e, net.now, &rx, payload, 3), 3);
    assert_memory_equal(a.mem + 64 + LEN, bytes, 3 * LEN);
    for (uint32_t i = 64 + 4 * LEN; i < QEND_MEM; i++)
        assert_int_equal(a.mem[i], 0);
    fx_none(a.scq);
    rx = packet(&a, &b, WIRE_RC_READ_RESP_LAST, 4);
    assert_int_equal(qp_engine_rx_room(a.e, &rx, 8), 0);
    qp_engine_rx(a.e, net.now, &rx);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    fx_close();
}

/* Counters of a and b after a WRITE and a READ of that many bytes. */
static void move(bool runs, uint32_t n, struct uroce_counters ret[2])
{
    fx_open(NULL);
    net.runs = runs;
    fx_fill(a.mem, n, n + 1);
    for (int i = 0; i < 2; i++) {
        struct uroce_send_wr wr = fx_rdma(i ? UROCE_WR_RDMA_READ : UROCE_WR_RDMA_WRITE, 1, b.mem + 64);
        uint8_t *at = a.mem + (i ? QEND_MEM / 2 : 0);
        assert_int_equal(qend_send(&a, &net, &wr, at, n), 0);
        fx_run();
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
        assert_memory_equal(at, b.mem + 64, n);
        assert_memory_equal(at, a.mem, n);
    }
    if (n > 3 * LEN)
        assert_true(runs == (net.joined > 0));
    qp_engine_counters(a.e, &ret[0]);
    qp_engine_counters(b.e, &ret[1]);
    assert_int_equal(ret[0].rx_pkts, ret[1].tx_pkts);
    ret[0].rx_pkts = ret[1].tx_pkts = 0; /* where more packets come in a step of the net, more ACKs are one */
    fx_close();
}

static void together_packets_do_what_each_does_alone(void **state)
{
    static const uint32_t sizes[] = {1, 1024, 1025, 3 * 1024, 3 * 1024 + 1, 4 * 1024, 65536, 65537, 100000};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct uroce_counters alone[2], together[2];
        move(false, sizes[i], alone);
        move(true, sizes[i], together);
        assert_memory_equal(alone, together, sizeof alone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_of_a_write_goes_up_to_its_last_packet),
        cmocka_unit_test(a_packet_on_which_a_state_has_a_word_is_in_no_run),
        cmocka_unit_test(a_run_of_a_reads_answer_goes_up_to_its_last_packet),
        cmocka_unit_test(together_packets_do_what_each_does_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

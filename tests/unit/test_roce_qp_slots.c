/* What a service slot sees: each byte of a message once and in order, whatever the network does; and what its verdicts
 * do. */
#include "roce_fixture.h"

/* What one side's slot saw, by direction: [send][response]. */
struct seen {
    uint32_t next; /* offset that must come next in the message */
    uint64_t bytes, messages;
};
static struct seen seen[2][2][2];
static uint8_t stream[2][2][400000]; /* [send][response]: all bytes that went through a's or b's slot */

static enum qp_verdict look(struct qend *q, const struct qp_payload *p, uint64_t *ret_value, bool *ret_has)
{
    struct seen *s = &seen[q == &b][p->send][p->response];
    uint8_t *to = stream[p->send][p->response];

    assert_int_equal(p->first, p->offset == 0);
    assert_int_equal(p->offset, p->first ? 0 : s->next);
    if (p->first && s->next)
        fail_msg("a message began before the last one was whole");
    for (int i = 0; i < p->niov; i++) {
        memcpy(to + s->bytes, p->iov[i].iov_base, p->iov[i].iov_len);
        s->bytes += p->iov[i].iov_len;
    }
    s->next = p->last ? 0 : p->offset + (uint32_t)p->len;
    s->messages += p->last;
    *ret_value = s->messages;
    *ret_has = p->last;
    return QP_ACCEPT;
}

static void run(bool sr)
{
    struct qp_peer peer = {.selective_repeat = true};
    uint64_t total = 0;

    memset(seen, 0, sizeof seen);
    fx_open(&(struct qend_opts){.timeout = 10, .window_pkts = 32});
    if (sr) {
        assert_int_equal(qp_set_peer(a.qp, &peer), 0);
        assert_int_equal(qp_set_peer(b.qp, &peer), 0);
    }
    a.payload = b.payload = look;
    qp_set_slots(a.qp, true);
    qp_set_slots(b.qp, true);
    net.link =
        (struct qpnet_link){.loss = 0.05, .duplicate = 0.05, .reorder = 0.1, .delay_ns = 5000, .jitter_ns = 20000};
    fx_fill(a.mem, 100000, 1);
    for (uint64_t i = 0; i < 40; i++) {
        struct uroce_send_wr s = fx_send(i), rd = fx_rdma(UROCE_WR_RDMA_READ, 100 + i, b.mem);
        uint32_t len = (uint32_t)(1 + i * 200);
        assert_int_equal(qend_recv(&b, &net, i, b.mem, 9000), 0);
        assert_int_equal(qend_send(&a, &net, &s, a.mem + i * 500, len), 0);
        fx_run();
        assert_int_equal(qend_send(&a, &net, &rd, a.mem + 200000, len), 0);
        fx_run();
        assert_memory_equal(a.mem + 200000, a.mem + i * 500, len);
        assert_int_equal(fx_one(b.rcq).slot_value, i + 1);
        assert_int_equal(fx_one(a.scq).slot_value, i + 1); /* of the SEND */
        assert_int_equal(fx_one(a.scq).slot_value, i + 1); /* of the READ */
        assert_memory_equal(stream[true][false] + total, a.mem + i * 500, len);
        assert_memory_equal(stream[false][false] + total, a.mem + i * 500, len);
        assert_memory_equal(stream[true][true] + total, a.mem + i * 500, len);
        assert_memory_equal(stream[false][true] + total, a.mem + i * 500, len);
        total += len;
    }
    assert_int_equal(seen[0][true][false].bytes, total);
    assert_int_equal(seen[1][false][false].bytes, total);
    assert_int_equal(seen[1][true][true].bytes, total);
    assert_int_equal(seen[0][false][true].bytes, total);
    fx_close();
}

static void slots_see_each_byte_once_and_in_order_with_go_back_n(void **state)
{
    (void)state;
    run(false);
}

static void slots_see_each_byte_once_and_in_order_with_selective_repeat(void **state)
{
    (void)state;
    run(true);
}

static int calls;
static enum qp_verdict refuse_responses(struct qend *q, const struct qp_payload *p, uint64_t *ret_value, bool *ret_has)
{
    (void)q;
    (void)ret_value;
    (void)ret_has;
    return p->response && !p->send ? QP_REFUSE : QP_ACCEPT;
}

static void a_refused_response_fails_its_read(void **state)
{
    struct uroce_send_wr rd;

    (void)state;
    fx_open(NULL);
    a.payload = refuse_responses;
    qp_set_slots(a.qp, true);
    memset(b.mem, 7, 3000);
    rd = fx_rdma(UROCE_WR_RDMA_READ, 1, b.mem);
    assert_int_equal(qend_send(&a, &net, &rd, a.mem, 3000), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_GENERAL_ERR);
    assert_int_equal(a.mem[0], 0);
    fx_close();
}

static enum qp_verdict drop_some(struct qend *q, const struct qp_payload *p, uint64_t *ret_value, bool *ret_has)
{
    (void)q;
    (void)ret_value;
    (void)ret_has;
    return !p->send && calls++ % 3 == 0 ? QP_DROP : QP_ACCEPT;
}

static void dropped_packets_come_again_until_they_are_taken(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct qp_peer peer = {.selective_repeat = i & 1};
        struct uroce_send_wr wr;
        fx_open(&(struct qend_opts){.timeout = 10});
        if (i & 1) {
            assert_int_equal(qp_set_peer(a.qp, &peer), 0);
            assert_int_equal(qp_set_peer(b.qp, &peer), 0);
        }
        a.payload = b.payload = drop_some;
        qp_set_slots(a.qp, true);
        qp_set_slots(b.qp, true);
        fx_fill(a.mem, 20000, 1);
        fx_fill(b.mem, 20000, 2);
        wr = fx_rdma(i & 2 ? UROCE_WR_RDMA_READ : UROCE_WR_RDMA_WRITE, 1, b.mem);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 20000), 0);
        fx_run();
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
        assert_memory_equal(a.mem, b.mem, 20000);
        fx_close();
    }
}

static int copies;
static int copy_from(void *ctx, void *dst, size_t offset, size_t len)
{
    memcpy(dst, (const uint8_t *)ctx + offset, len);
    return ++copies == 2 ? -EFAULT : 0; /* the peer's memory was not there once */
}

static void payload_elsewhere_is_fetched_and_a_failed_fetch_is_a_loss(void **state)
{
    struct uroce_send_wr wr;

    (void)state;
    for (int slots = 0; slots < 2; slots++) {
        fx_open(&(struct qend_opts){.timeout = 10});
        b.payload = look;
        qp_set_slots(b.qp, slots);
        memset(seen, 0, sizeof seen);
        copies = 0;
        fx_fill(a.mem, 5000, 1);
        wr = fx_rdma(UROCE_WR_RDMA_WRITE, 1, b.mem);
        assert_int_equal(qend_send(&a, &net, &wr, a.mem, 5000), 0);
        for (int round = 0; round < 50; round++) {
            struct qp_tx tx;
            while (qp_engine_tx(a.e, net.now, &tx, 1) == 1) {
                struct qp_rx rx = {.pkt = tx.pkt, .path = qpnet_path(b.node, a.node), .copy = copy_from};
                rx.copy_ctx = tx.iov[0].iov_base;
                qp_engine_rx(b.e, net.now, &rx);
            }
            qpnet_run(&net, net.now + 1000000);
        }
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
        assert_memory_equal(a.mem, b.mem, 5000);
        if (slots)
            assert_memory_equal(stream[false][false], a.mem, 5000);
        fx_close();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_see_each_byte_once_and_in_order_with_go_back_n),
        cmocka_unit_test(slots_see_each_byte_once_and_in_order_with_selective_repeat),
        cmocka_unit_test(a_refused_response_fails_its_read),
        cmocka_unit_test(dropped_packets_come_again_until_they_are_taken),
        cmocka_unit_test(payload_elsewhere_is_fetched_and_a_failed_fetch_is_a_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

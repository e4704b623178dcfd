/* The communication manager's engine, how connections come to be: one behaviour at a time. */
#include "cm_pair.h"

static void both_ends_learn_what_their_queue_pairs_need(void **state)
{
    struct cm_id *p, *a;
    struct cm_qp qa, qb;
    struct cm_info info;

    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    a = connected(0x111, &p);
    assert_int_equal(cm_qp(a, &qa), 0);
    assert_int_equal(cm_qp(p, &qb), 0);
    assert_int_equal(qa.dest_qpn, 0x222);
    assert_int_equal(qb.dest_qpn, 0x111);
    assert_int_equal(qa.rq_psn, qb.sq_psn);
    assert_int_equal(qb.rq_psn, qa.sq_psn);
    assert_int_equal(qa.mtu, UROCE_MTU_4096);
    assert_int_equal(qb.ack_timeout, 14);
    assert_int_equal(qb.retry_count, 6);
    assert_int_equal(qb.rnr_retry_count, 4);
    assert_int_equal(qa.rnr_retry_count, 3);
    assert_int_equal(qa.responder_resources, 1);
    assert_int_equal(qa.initiator_depth, 2);
    cm_info(p, &info);
    assert_int_equal(info.local.port, 7174);
    assert_memory_equal(&info.remote.gid, gid(1).raw, 16);
    assert_in_range(info.remote.port, 32768, 60999);
}

static void private_data_arrives_padded(void **state)
{
    static const uint8_t zero[UROCE_CM_CONNECT_PRIVATE];

    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    connecting(UROCE_CM_TCP, 7174, 1);
    carry();
    assert_int_equal(B.ev.private_len, UROCE_CM_CONNECT_PRIVATE);
    assert_memory_equal(B.ev.private_data, "hello", 5);
    assert_memory_equal(B.ev.private_data + 5, zero, sizeof zero - 5);
    assert_int_equal(B.ev.responder_resources, 5);
    assert_int_equal(B.ev.initiator_depth, 3);
    struct uroce_cm_param p = yes;
    uint8_t data[UROCE_CM_ACCEPT_PRIVATE + 1] = {7};
    p.private_data = data;
    p.private_len = sizeof data;
    assert_int_equal(cm_accept(B.new_id, now, &p), -EINVAL);
    p.private_len--;
    assert_int_equal(cm_accept(B.new_id, now, &p), 0);
    carry();
    assert_int_equal(A.ev.private_len, UROCE_CM_ACCEPT_PRIVATE);
    assert_int_equal(A.ev.private_data[0], 7);
}

/* Carries messages until A has been told something. */
static void carry_on(void)
{
    unsigned events = A.events;
    for (carry(); A.events == events; carry()) {
        assert_true(cm_deadline(A.e) != UINT64_MAX);
        now = cm_deadline(A.e);
        cm_tick(A.e, now);
    }
}

static void a_port_where_nobody_listens_refuses(void **state)
{
    (void)state;
    connecting(UROCE_CM_TCP, 7174, 1);
    carry_on();
    assert_int_equal(A.ev.type, UROCE_CM_REJECTED);
    assert_int_equal(A.ev.status, UROCE_CM_REJ_SERVICE_ID);
    assert_in_range(now, 200 * MS, 400 * MS);
    connecting(UROCE_CM_UDP, 7174, 1);
    carry_on();
    assert_int_equal(A.ev.type, UROCE_CM_UNREACHABLE);
    assert_int_equal(A.ev.status, WIRE_CM_SIDR_UNSUPPORTED);
}

static void a_listener_that_comes_a_moment_late_is_found(void **state)
{
    (void)state;
    connecting(UROCE_CM_TCP, 7174, 1);
    connecting(UROCE_CM_UDP, 7174, 1);
    carry();
    listener(&B, UROCE_CM_TCP, 7174, 0);
    listener(&B, UROCE_CM_UDP, 7174, 0);
    now += 60 * MS;
    cm_tick(A.e, now);
    carry();
    assert_int_equal(B.events, 2);
    assert_int_equal(A.events, 0);
}

static void a_refusal_carries_reason_and_private_data(void **state)
{
    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    connecting(UROCE_CM_TCP, 7174, 1);
    carry();
    assert_int_equal(cm_reject(B.new_id, now, UROCE_CM_REJ_CONSUMER, "never", 5), 0);
    carry();
    assert_int_equal(A.ev.type, UROCE_CM_REJECTED);
    assert_int_equal(A.ev.status, UROCE_CM_REJ_CONSUMER);
    assert_memory_equal(A.ev.private_data, "never", 5);
    assert_int_equal(A.ev.private_len, UROCE_CM_REJECT_PRIVATE);
    assert_int_equal(cm_accept(B.new_id, now, &yes), -EINVAL);
}

static void silence_is_unreachable_after_eight_tries(void **state)
{
    unsigned n = 0;

    (void)state;
    connecting(UROCE_CM_TCP, 7174, 1);
    while (A.events == 0) {
        while (take(&A))
            n += last_msg.attr == WIRE_CM_REQ;
        assert_true(cm_deadline(A.e) != UINT64_MAX);
        now = cm_deadline(A.e);
        cm_tick(A.e, now);
    }
    assert_int_equal(n, 8);
    assert_int_equal(A.ev.type, UROCE_CM_UNREACHABLE);
    assert_int_equal(A.ev.status, -ETIMEDOUT);
    assert_in_range(now, 9000 * MS, 10000 * MS);
    /* The other side is told. */
    assert_true(take(&A));
    assert_int_equal(last_msg.attr, WIRE_CM_REJ);
    assert_int_equal(last_msg.rej.reason, WIRE_CM_REJ_TIMEOUT);
}

static void a_program_that_hesitates_is_waited_for(void **state)
{
    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    connecting(UROCE_CM_TCP, 7174, 1);
    carry();
    for (unsigned i = 0; i < 200 && now < 100000 * MS; i++) {
        now = cm_deadline(A.e);
        cm_tick(A.e, now);
        carry();
    }
    assert_true(now >= 100000 * MS);
    assert_int_equal(A.events, 0);
    assert_int_equal(B.events, 1);
    assert_int_equal(cm_accept(B.new_id, now, &yes), 0);
    carry();
    assert_int_equal(A.ev.type, UROCE_CM_CONNECT_RESPONSE);
}

static void a_narrower_link_is_found_out(void **state)
{
    struct cm_qp q;
    struct cm_id *p, *a;

    (void)state;
    mtu_of_b = UROCE_MTU_1024;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    a = connected(0x111, &p);
    assert_int_equal(cm_qp(a, &q), 0);
    assert_int_equal(q.mtu, UROCE_MTU_1024);
    assert_int_equal(cm_qp(p, &q), 0);
    assert_int_equal(q.mtu, UROCE_MTU_1024);
}

static void messages_that_come_twice_change_nothing(void **state)
{
    struct cm_tx req, rep, rtu;
    struct cm_id *id;

    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    id = connecting(UROCE_CM_TCP, 7174, 1);
    assert_true(take(&A));
    req = last;
    give(&B, &req);
    give(&B, &req);
    assert_int_equal(B.events, 1);
    assert_true(take(&B)); /* the program has not decided */
    assert_int_equal(last_msg.attr, WIRE_CM_MRA);
    assert_int_equal(cm_accept(B.new_id, now, &yes), 0);
    assert_true(take(&B));
    rep = last;
    assert_false(take(&B));
    give(&A, &rep);
    give(&A, &rep);
    assert_int_equal(A.events, 1);
    assert_true(take(&A));
    assert_int_equal(last_msg.attr, WIRE_CM_MRA);
    assert_int_equal(cm_establish(id, now, NULL, 0), 0);
    assert_true(take(&A));
    rtu = last;
    give(&A, &rep); /* the RTU was lost, it seems */
    assert_true(take(&A));
    assert_memory_equal(last.mad, rtu.mad, sizeof rtu.mad);
    give(&B, &rtu);
    give(&B, &rtu);
    give(&B, &req);
    assert_int_equal(B.events, 2);
    assert_false(take(&B));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(both_ends_learn_what_their_queue_pairs_need),
        T(private_data_arrives_padded),
        T(a_port_where_nobody_listens_refuses),
        T(a_listener_that_comes_a_moment_late_is_found),
        T(a_refusal_carries_reason_and_private_data),
        T(silence_is_unreachable_after_eight_tries),
        T(a_program_that_hesitates_is_waited_for),
        T(a_narrower_link_is_found_out),
        T(messages_that_come_twice_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

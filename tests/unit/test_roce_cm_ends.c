/* The communication manager's engine: how connections end, what it refuses, what it bounds. One behaviour at a time. */
#include "cm_pair.h"

static void a_disconnect_is_answered_and_waits_out_old_packets(void **state)
{
    struct cm_id *p, *a;

    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    a = connected(0x111, &p);
    assert_int_equal(cm_disconnect(a, now, "bye", 3), 0);
    assert_true(take(&A));
    struct cm_tx dreq = last;
    give(&B, &dreq);
    assert_int_equal(B.ev.type, UROCE_CM_DISCONNECTED);
    assert_memory_equal(B.ev.private_data, "bye", 3);
    carry();
    assert_int_equal(A.ev.type, UROCE_CM_DISCONNECTED);
    assert_int_equal(A.ev.status, 0);
    unsigned events = B.events;
    give(&B, &dreq);
    assert_int_equal(B.events, events);
    assert_true(take(&B));
    assert_int_equal(last_msg.attr, WIRE_CM_DREP);
    assert_int_equal(cm_disconnect(p, now, NULL, 0), 0); /* it is over already */
    now += 1000 * MS;
    cm_tick(A.e, now);
    cm_tick(B.e, now);
    assert_int_equal(A.ev.type, UROCE_CM_TIMEWAIT_EXIT);
    assert_int_equal(B.ev.type, UROCE_CM_TIMEWAIT_EXIT);
    give(&B, &dreq); /* forgotten, and answered all the same */
    assert_true(take(&B));
    assert_int_equal(last_msg.attr, WIRE_CM_DREP);
}

static void a_peer_that_starts_anew_ends_the_old_connection(void **state)
{
    struct cm_id *p, *a;

    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    a = connected(0x111, &p);
    (void)a;
    cm_free(A.e); /* it dies */
    new_node(&A, 1);
    connecting(UROCE_CM_TCP, 7174, 0x111); /* and has the same queue pair again */
    carry();
    assert_int_equal(A.ev.type, UROCE_CM_REJECTED);
    assert_int_equal(A.ev.status, UROCE_CM_REJ_STALE);
    assert_int_equal(B.ev.type, UROCE_CM_DISCONNECTED);
    now += 1000 * MS;
    cm_tick(B.e, now);
    connecting(UROCE_CM_TCP, 7174, 0x111);
    carry();
    assert_int_equal(B.ev.type, UROCE_CM_CONNECT_REQUEST);
}

/* `last` is the active end's request to end a connection. */
static void take_disconnect(void)
{
    struct cm_id *p, *a;

    listener(&B, UROCE_CM_TCP, 7174, 0);
    a = connected(0x111, &p);
    assert_int_equal(cm_disconnect(a, now, NULL, 0), 0);
    assert_true(take(&A));
}

static void a_stranger_cannot_end_a_connection(void **state)
{
    struct wire_cm m;
    struct cm_tx tx;

    (void)state;
    take_disconnect();
    unsigned events = B.events;
    tx = last;
    tx.path.local = gid(3); /* another address */
    give(&B, &tx);
    assert_int_equal(B.events, events);
    m = last_msg;
    m.local_id++; /* another number of the peer's */
    tx = last;
    assert_int_equal(wire_cm_encode(&m, tx.mad), 0);
    give(&B, &tx);
    m = last_msg;
    m.dreq.qpn++; /* another queue pair */
    assert_int_equal(wire_cm_encode(&m, tx.mad), 0);
    give(&B, &tx);
    assert_int_equal(B.events, events);
    give(&B, &last);
    assert_int_equal(B.events, events + 1);
}

static void a_request_for_somebody_else_is_refused(void **state)
{
    struct cm_tx tx;
    struct wire_cm m;

    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    connecting(UROCE_CM_TCP, 7174, 1);
    assert_true(take(&A));
    tx = last;
    m = last_msg;
    m.req.primary.local_gid = gid(9); /* the data would go to a third party */
    assert_int_equal(wire_cm_encode(&m, tx.mad), 0);
    give(&B, &tx);
    assert_int_equal(B.events, 0);
    assert_true(take(&B));
    assert_int_equal(last_msg.rej.reason, WIRE_CM_REJ_GID);
}

static void a_full_backlog_lets_requests_come_again(void **state)
{
    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 2);
    for (uint32_t i = 1; i <= 3; i++)
        connecting(UROCE_CM_TCP, 7174, i);
    carry();
    assert_int_equal(B.events, 2);
    for (unsigned i = 0; i < 200; i++) { /* as long as it takes */
        now += 250 * MS;
        cm_tick(A.e, now);
        carry();
    }
    assert_int_equal(A.events, 0);
    assert_int_equal(B.events, 2);
    cm_taken(B.new_id);
    now += 6000 * MS;
    cm_tick(A.e, now);
    carry();
    assert_int_equal(B.events, 3);
    assert_int_equal(A.events, 0);
}

static void tables_are_bounded(void **state)
{
    struct cm_stats st;

    (void)state;
    listener(&B, UROCE_CM_TCP, 7174, 0);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 1; i < 90; i++) {
            connecting(UROCE_CM_TCP, 7174, round << 8 | i);
            carry();
        }
        cm_stats(B.e, &st);
        assert_true(st.ids <= 100);
        cm_free(A.e); /* without a word */
        new_node(&A, 77 + round);
    }
    assert_true(st.refused > 50);
}

static void ports_have_one_owner(void **state)
{
    struct uroce_cm_addr v4_any = {.gid = {.raw = {[10] = 0xff, [11] = 0xff}}, .port = 80}, any = {.port = 80},
                         one = {.gid = gid(2), .port = 80}, other = {.gid = gid(3), .port = 80},
                         six = {.gid = {.raw = {0x20, 1}}, .port = 80};
    struct cm_id *id[8];

    (void)state;
    for (int i = 0; i < 8; i++)
        assert_int_equal(cm_id_new(B.e, i == 7 ? UROCE_CM_UDP : UROCE_CM_TCP, NULL, &id[i]), 0);
    assert_int_equal(cm_bind(id[0], &one, 0), 0);
    assert_int_equal(cm_bind(id[0], &other, 0), -EINVAL);
    assert_int_equal(cm_bind(id[1], &one, 0), -EADDRINUSE);
    assert_int_equal(cm_bind(id[1], &v4_any, 0), -EADDRINUSE);
    assert_int_equal(cm_bind(id[1], &any, 0), -EADDRINUSE);
    assert_int_equal(cm_bind(id[1], &any, UROCE_CM_V6_ONLY), 0);
    assert_int_equal(cm_bind(id[2], &other, 0), 0);
    assert_int_equal(cm_bind(id[3], &six, 0), -EADDRINUSE);
    assert_int_equal(cm_bind(id[7], &one, 0), 0); /* another port space */
    cm_unbind(id[0]);
    assert_int_equal(cm_bind(id[4], &one, UROCE_CM_REUSE), 0);
    assert_int_equal(cm_bind(id[5], &one, UROCE_CM_REUSE), 0);
    assert_int_equal(cm_listen(id[5], 0), -EADDRINUSE);
    cm_unbind(id[4]);
    assert_int_equal(cm_listen(id[5], 0), 0);
    one.port = 0;
    assert_int_equal(cm_bind(id[6], &one, 0), 0);
}

static void datagram_services_tell_their_queue_pair(void **state)
{
    struct cm_tx req;

    (void)state;
    listener(&B, UROCE_CM_UDP, 7174, 0);
    connecting(UROCE_CM_UDP, 7174, 1);
    assert_true(take(&A));
    req = last;
    give(&B, &req);
    assert_int_equal(B.ev.type, UROCE_CM_CONNECT_REQUEST);
    assert_int_equal(B.ev.private_len, UROCE_CM_UD_CONNECT_PRIVATE);
    give(&B, &req); /* again, before the answer */
    assert_int_equal(B.events, 1);
    assert_int_equal(cm_accept(B.new_id, now, &yes), 0);
    carry();
    assert_int_equal(A.ev.type, UROCE_CM_ESTABLISHED);
    assert_int_equal(A.ev.qp_num, 0x222);
    assert_int_equal(A.ev.qkey, 9);
    assert_memory_equal(&A.ev.ah.dgid, gid(2).raw, 16);
    give(&B, &req); /* the answer was lost, it seems */
    assert_int_equal(B.events, 1);
    assert_true(take(&B));
    assert_int_equal(last_msg.attr, WIRE_CM_SIDR_REP);
}

static void an_alternate_path_is_refused(void **state)
{
    struct wire_cm m;
    struct cm_tx tx;

    (void)state;
    take_disconnect();
    tx = last;
    tx.mad[17] = WIRE_CM_LAP; /* has its numbers where a DREQ has them */
    m = last_msg;
    give(&B, &tx);
    assert_true(take(&B));
    assert_int_equal(last_msg.attr, WIRE_CM_APR);
    assert_int_equal(last_msg.apr.status, WIRE_CM_APR_UNSUPPORTED);
    assert_int_equal(last_msg.remote_id, m.local_id);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_disconnect_is_answered_and_waits_out_old_packets),
        T(a_peer_that_starts_anew_ends_the_old_connection),
        T(a_stranger_cannot_end_a_connection),
        T(a_request_for_somebody_else_is_refused),
        T(a_full_backlog_lets_requests_come_again),
        T(tables_are_bounded),
        T(ports_have_one_owner),
        T(datagram_services_tell_their_queue_pair),
        T(an_alternate_path_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

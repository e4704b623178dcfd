/* The communication manager's engine: one behaviour at a time, two engines and no network between. */
#include "base/util.h"
#include "cm/cm.h"
#include "roce/wire_gid.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull

struct node {
    struct cm_engine *e;
    struct cm_id *id, *new_id; /* of the last event; of the last request */
    struct uroce_cm_event ev;
    unsigned events;
    bool refuse;
};
static struct node A, B;
static uint64_t now;
static struct cm_tx last; /* the last message that was carried */
static struct wire_cm last_msg;
static unsigned carried;
static uint8_t mtu_of_b;

static bool on_event(void *ctx, struct cm_id *id, struct cm_id *listener, const struct uroce_cm_event *ev)
{
    struct node *n = ctx;
    n->ev = *ev;
    n->id = id;
    n->events++;
    if (listener)
        n->new_id = id;
    return !n->refuse;
}

static union uroce_gid gid(uint8_t last_byte)
{
    union uroce_gid g = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = last_byte}};
    return g;
}

static const struct cm_ops ops = {.event = on_event};

static void new_node(struct node *n, uint64_t guid)
{
    struct cm_config c = {
        .seed = guid * 99 + now, .ca_guid = guid, .id_slot = 5, .max_ids = 100, .ops = &ops, .ctx = n};
    memset(n, 0, sizeof *n);
    assert_int_equal(cm_new(&c, &n->e), 0);
}

static int setup(void **state)
{
    (void)state;
    new_node(&A, 1);
    new_node(&B, 2);
    now = 1;
    mtu_of_b = UROCE_MTU_4096;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cm_free(A.e);
    cm_free(B.e);
    return 0;
}

static void give(struct node *to, const struct cm_tx *tx)
{
    struct cm_path back = {.local = tx->path.remote, .remote = tx->path.local, .hop_limit = 64};
    cm_rx(to->e, now, &back, to == &B ? mtu_of_b : UROCE_MTU_4096, tx->mad, sizeof tx->mad);
}

/* One message from a node, if it has any. */
static bool take(struct node *n)
{
    if (!cm_tx(n->e, now, &last))
        return false;
    carried++;
    assert_int_equal(wire_cm_decode(last.mad, sizeof last.mad, &last_msg), 0);
    return true;
}

static void carry(void)
{
    bool more = true;
    while (more) {
        more = false;
        while (take(&A)) {
            give(&B, &last);
            more = true;
        }
        while (take(&B)) {
            give(&A, &last);
            more = true;
        }
    }
}

static struct cm_id *listener(struct node *n, enum uroce_cm_space space, uint16_t port, uint32_t backlog)
{
    struct uroce_cm_addr any = {.port = port};
    struct cm_id *id;
    assert_int_equal(cm_id_new(n->e, space, NULL, &id), 0);
    assert_int_equal(cm_bind(id, &any, 0), 0);
    assert_int_equal(cm_listen(id, backlog), 0);
    return id;
}

static struct cm_id *connecting(enum uroce_cm_space space, uint16_t port, uint32_t qpn)
{
    struct cm_path path = {.local = gid(1), .remote = gid(2), .hop_limit = 64};
    struct uroce_cm_param p = {.private_data = "hello",
                               .private_len = 5,
                               .qp_num = qpn,
                               .responder_resources = 3,
                               .initiator_depth = 5,
                               .retry_count = 6,
                               .rnr_retry_count = 4};
    struct cm_id *id;
    assert_int_equal(cm_id_new(A.e, space, NULL, &id), 0);
    assert_int_equal(cm_route(id, &path, port), 0);
    assert_int_equal(cm_connect(id, now, &p, UROCE_MTU_4096, 14), 0);
    return id;
}

static const struct uroce_cm_param yes = {
    .qp_num = 0x222, .qkey = 9, .responder_resources = 2, .initiator_depth = 1, .rnr_retry_count = 3};

static struct cm_id *connected(uint32_t qpn, struct cm_id **ret_passive)
{
    struct cm_id *id = connecting(UROCE_CM_TCP, 7174, qpn);
    carry();
    assert_int_equal(B.ev.type, UROCE_CM_CONNECT_REQUEST);
    assert_int_equal(cm_accept(B.new_id, now, &yes), 0);
    carry();
    assert_int_equal(A.ev.type, UROCE_CM_CONNECT_RESPONSE);
    struct cm_qp q; /* the PSN in a message is the receiver's first */
    assert_int_equal(cm_qp(id, &q), 0);
    assert_int_equal(q.sq_psn, last_msg.rep.psn);
    assert_int_equal(cm_establish(id, now, NULL, 0), 0);
    carry();
    assert_int_equal(B.ev.type, UROCE_CM_ESTABLISHED);
    *ret_passive = B.new_id;
    return id;
}

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
        T(both_ends_learn_what_their_queue_pairs_need),
        T(private_data_arrives_padded),
        T(a_port_where_nobody_listens_refuses),
        T(a_listener_that_comes_a_moment_late_is_found),
        T(a_refusal_carries_reason_and_private_data),
        T(silence_is_unreachable_after_eight_tries),
        T(a_program_that_hesitates_is_waited_for),
        T(a_narrower_link_is_found_out),
        T(messages_that_come_twice_change_nothing),
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

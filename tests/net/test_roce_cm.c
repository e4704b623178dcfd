/*
 * Connections by address and port between two devices: native API, both address families, refusals, datagrams; with a
 * holder and without. argv[1]: the uroce command, or "off".
 */
#include "cm_conn.h"

#include <errno.h>
#include <fcntl.h>

static void a_connection_is_made_used_and_ended(const char *to, const char *from)
{
    struct conn c;
    struct uroce_cm_info info;
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 0);
    connect_one(&c, to);
    uroce_cm_query(c.id[1], &info);
    assert_memory_equal(&info.remote.gid, addr_of(from, 0).gid.raw, 16);
    assert_memory_equal(&info.local.gid, addr_of(to, 0).gid.raw, 16);
    assert_int_equal(info.local.port, PORT);
    exchange(&c);
    disconnect(&c);
    close_both();
}

static void over_ipv4(void **state)
{
    (void)state;
    a_connection_is_made_used_and_ended("10.77.0.2", "10.77.0.1");
}

static void over_ipv6(void **state)
{
    (void)state;
    a_connection_is_made_used_and_ended("fd77::2", "fd77::1");
}

static struct uroce_cm_event both_driven(struct uroce_cm_channel *ch, struct uroce_cm_channel *other,
                                         enum uroce_cm_event_type type)
{
    struct uroce_cm_event ev, none;
    while (uroce_cm_get_event(ch, &ev) == -EAGAIN)
        assert_int_equal(uroce_cm_get_event(other, &none), -EAGAIN);
    assert_int_equal(ev.type, type);
    return ev;
}

/* Waiting for events is what moves them, here in turn. */
static void without_helper_threads(void **state)
{
    struct conn c;
    (void)state;
    no_thread = 1;
    open_both(NULL);
    fcntl(uroce_cm_channel_fd(ca), F_SETFL, O_NONBLOCK);
    fcntl(uroce_cm_channel_fd(cb), F_SETFL, O_NONBLOCK);
    listen_at(UROCE_CM_TCP, 0);
    begin(&c, "10.77.0.2");
    struct uroce_cm_event ev = both_driven(cb, ca, UROCE_CM_CONNECT_REQUEST);
    assert_int_equal(uroce_cm_reject(ev.id, UROCE_CM_REJ_CONSUMER, NULL, 0), 0);
    both_driven(ca, cb, UROCE_CM_REJECTED);
    assert_int_equal(uroce_cm_id_destroy(ev.id), 0);
    assert_int_equal(uroce_cm_id_destroy(c.id[0]), 0);
    assert_int_equal(uroce_qp_destroy(c.qp[0]), 0);
    close_both();
    no_thread = 0;
}

/* The program does not run for longer than a disconnect waits for its completions, and than the connection is kept. */
static void a_late_disconnect_comes_before_the_end_of_the_connection(void **state)
{
    struct conn c;
    struct uroce_cm_event ev;
    struct uroce_wc wc;
    (void)state;
    no_thread = 1;
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 0);
    connect_one(&c, "10.77.0.2");
    node_recv(&b, c.qp[1], 0, 64, 1);
    node_send(&a, c.qp[0], UROCE_WR_SEND, 0, 64, NULL, 0, 2);
    while (uroce_poll_cq(a.cq, 1, &wc) == 0)
        uroce_poll_cq(b.cq, 0, &wc); /* it is driven, and its completion stays */
    fcntl(uroce_cm_channel_fd(ca), F_SETFL, O_NONBLOCK);
    assert_int_equal(uroce_cm_disconnect(c.id[0], NULL, 0), 0);
    while (uroce_cm_get_event(ca, &ev) == -EAGAIN)
        uroce_poll_cq(b.cq, 0, &wc);
    assert_int_equal(ev.type, UROCE_CM_DISCONNECTED);
    poll(NULL, 0, 400);
    event(cb, UROCE_CM_DISCONNECTED);
    event(cb, UROCE_CM_TIMEWAIT_EXIT);
    assert_int_equal(uroce_poll_cq(b.cq, 1, &wc), 1);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    end(&c);
    close_both();
    no_thread = 0;
}

static void nobody_listens_there(void **state)
{
    struct conn c;
    (void)state;
    open_both(NULL);
    begin(&c, "10.77.0.2");
    assert_int_equal(event(ca, UROCE_CM_REJECTED).status, UROCE_CM_REJ_SERVICE_ID);
    assert_int_equal(uroce_cm_id_destroy(c.id[0]), 0);
    assert_int_equal(uroce_qp_destroy(c.qp[0]), 0);
    close_both();
}

static void a_request_is_refused_with_words(void **state)
{
    struct conn c;
    (void)state;
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 0);
    begin(&c, "10.77.0.2");
    struct uroce_cm_event ev = event(cb, UROCE_CM_CONNECT_REQUEST);
    assert_int_equal(uroce_cm_reject(ev.id, UROCE_CM_REJ_CONSUMER, "not now", 7), 0);
    assert_int_equal(uroce_cm_id_destroy(ev.id), 0);
    ev = event(ca, UROCE_CM_REJECTED);
    assert_int_equal(ev.status, UROCE_CM_REJ_CONSUMER);
    assert_memory_equal(ev.private_data, "not now", 8);
    assert_int_equal(uroce_cm_id_destroy(c.id[0]), 0);
    assert_int_equal(uroce_qp_destroy(c.qp[0]), 0);
    close_both();
}

/* Requests that nobody has taken, and those that were taken: their peers are told. */
static void a_listener_that_goes_refuses_who_waits(void **state)
{
    struct conn c[3];
    (void)state;
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 0);
    for (int i = 0; i < 3; i++)
        begin(&c[i], "10.77.0.2");
    struct uroce_cm_event ev = event(cb, UROCE_CM_CONNECT_REQUEST);
    struct pollfd p = {.fd = uroce_cm_channel_fd(cb), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 60000), 1);
    assert_int_equal(uroce_cm_id_destroy(listener), 0);
    listener = NULL;
    assert_int_equal(uroce_cm_id_destroy(ev.id), 0);
    for (int i = 0; i < 3; i++)
        event(ca, UROCE_CM_REJECTED);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(uroce_cm_id_destroy(c[i].id[0]), 0);
        assert_int_equal(uroce_qp_destroy(c[i].qp[0]), 0);
    }
    close_both();
}

static void a_datagram_service_is_found(void **state)
{
    struct uroce_cm_id *id, *passive;
    struct uroce_cm_addr peer = addr_of("fd77::2", PORT);
    struct uroce_wc wc;
    (void)state;
    open_both(NULL);
    listen_at(UROCE_CM_UDP, 0);
    assert_int_equal(uroce_cm_id_create(a.dev, ca, UROCE_CM_UDP, NULL, &id), 0);
    assert_int_equal(uroce_cm_resolve(id, NULL, &peer), 0);
    struct uroce_qp *qa = new_qp(&a, id, UROCE_QPT_UD);
    make_ready(id, qa);
    struct uroce_cm_param p = {.private_data = "who are you", .private_len = 11};
    assert_int_equal(uroce_cm_connect(id, &p), 0);
    struct uroce_cm_event ev = event(cb, UROCE_CM_CONNECT_REQUEST);
    assert_int_equal(ev.private_len, UROCE_CM_UD_CONNECT_PRIVATE);
    passive = ev.id;
    struct uroce_qp *qb = new_qp(&b, passive, UROCE_QPT_UD);
    make_ready(passive, qb);
    p = (struct uroce_cm_param){.qp_num = uroce_qp_num(qb), .qkey = UROCE_UD_QKEY};
    assert_int_equal(uroce_cm_accept(passive, &p), 0);
    ev = event(ca, UROCE_CM_ESTABLISHED);
    assert_int_equal(ev.qp_num, uroce_qp_num(qb));
    struct uroce_ah *ah;
    assert_int_equal(uroce_ah_create(a.pd, &ev.ah, &ah), 0);
    node_recv(&b, qb, 0, 4096, 1);
    struct uroce_sge sge = {(uintptr_t)a.buf, 100, uroce_mr_lkey(a.mr)};
    struct uroce_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = UROCE_WR_SEND}, *none;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = ev.qp_num;
    wr.wr.ud.remote_qkey = ev.qkey;
    assert_int_equal(uroce_post_send(qa, &wr, (const struct uroce_send_wr **)&none), 0);
    node_wait(&b, &a, 1, &wc);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    assert_int_equal(wc.byte_len, 140);
    assert_int_equal(wc.src_qp, uroce_qp_num(qa));
    assert_int_equal(uroce_ah_destroy(ah), 0);
    assert_int_equal(uroce_cm_id_destroy(id), 0);
    assert_int_equal(uroce_cm_id_destroy(passive), 0);
    assert_int_equal(uroce_qp_destroy(qa), 0);
    assert_int_equal(uroce_qp_destroy(qb), 0);
    close_both();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_ipv4),
        cmocka_unit_test(over_ipv6),
        cmocka_unit_test(without_helper_threads),
        cmocka_unit_test(a_late_disconnect_comes_before_the_end_of_the_connection),
        cmocka_unit_test(nobody_listens_there),
        cmocka_unit_test(a_request_is_refused_with_words),
        cmocka_unit_test(a_listener_that_goes_refuses_who_waits),
        cmocka_unit_test(a_datagram_service_is_found),
    };
    int r = conn_main_begin(argc, argv);
    return r ? r : cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Connections by address and port that lose messages, end at once, are many, share a port, lose their process; with a
 * holder and without. argv[1]: the uroce command, or "off".
 */
#include "cm_conn.h"
#include "lib/own_use.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static void to_error(struct uroce_qp *qp)
{
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_ERR};
    assert_int_equal(uroce_qp_modify(qp, &attr, UROCE_QP_STATE), 0);
}

static void lost_messages_are_sent_again(void **state)
{
    (void)state;
    open_both("drop rx qpn=1 prob=0.1");
    listen_at(UROCE_CM_TCP, 0);
    for (int i = 0; i < 5; i++) {
        struct conn c;
        connect_one(&c, "10.77.0.2");
        exchange(&c);
        disconnect(&c);
    }
    close_both();
}

/* The last message is acknowledged before its receiver's end of the connection is told: no send that arrived fails. */
static void a_disconnect_does_not_overtake_acknowledgements(void **state)
{
    (void)state;
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 0);
    for (int i = 0; i < (extended ? 500 : 60); i++) {
        struct conn c;
        struct uroce_wc wc = {0};
        connect_one(&c, "10.77.0.2");
        node_recv(&b, c.qp[1], 0, 100, 1);
        node_send(&a, c.qp[0], UROCE_WR_SEND, 0, 100, NULL, 0, 2);
        while (uroce_poll_cq(b.cq, 1, &wc) == 0)
            ;
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        to_error(c.qp[1]);
        assert_int_equal(uroce_cm_disconnect(c.id[1], NULL, 0), 0);
        event(ca, UROCE_CM_DISCONNECTED);
        to_error(c.qp[0]);
        assert_int_equal(uroce_poll_cq(a.cq, 1, &wc), 1);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        event(cb, UROCE_CM_DISCONNECTED);
        end(&c);
    }
    close_both();
}

static void many_connections_after_another_leave_nothing(void **state)
{
    unsigned n = extended ? 3000 : 300, fds = 0;
    long kib = 0;
    (void)state;
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 0);
    for (unsigned i = 0; i < n; i++) {
        struct conn c;
        connect_one(&c, i % 2 ? "fd77::2" : "10.77.0.2");
        assert_int_equal(uroce_cm_disconnect(c.id[i % 2], NULL, 0), 0);
        event(ca, UROCE_CM_DISCONNECTED);
        event(cb, UROCE_CM_DISCONNECTED);
        end(&c);
        if (i == n / 2) {
            fds = descriptors();
            kib = resident_kib();
        }
    }
    assert_in_range(descriptors(), 0, fds + 16); /* a port has a bounded number of sockets, opened when needed */
    assert_in_range(resident_kib(), 0, kib + 4096);
    close_both();
}

static void many_connections_at_the_same_time(void **state)
{
    unsigned n = extended ? 500 : 120;
    struct conn *c = calloc(n, sizeof *c);
    (void)state;
    assert_non_null(c);
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 16); /* fewer than come: they come again */
    for (unsigned i = 0; i < n; i++)
        begin(&c[i], i % 2 ? "fd77::2" : "10.77.0.2");
    for (unsigned i = 0; i < n; i++)
        answer(&c[i]);
    unsigned response = 0, established = 0;
    while (response < n || established < n) {
        struct uroce_cm_event ev;
        struct pollfd p[2] = {{.fd = uroce_cm_channel_fd(ca), .events = POLLIN},
                              {.fd = uroce_cm_channel_fd(cb), .events = POLLIN}};
        assert_true(poll(p, 2, 60000) > 0);
        if (p[0].revents) {
            ev = event(ca, UROCE_CM_CONNECT_RESPONSE);
            struct conn *k = ev.context;
            make_ready(k->id[0], k->qp[0]);
            assert_int_equal(uroce_cm_establish(k->id[0], NULL, 0), 0);
            response++;
        }
        if (p[1].revents) {
            event(cb, UROCE_CM_ESTABLISHED);
            established++;
        }
    }
    for (unsigned i = 0; i < n; i++)
        end(&c[i]);
    free(c);
    close_both();
}

static void a_port_has_one_owner_on_an_address(void **state)
{
    struct uroce_config cfg = {.addresses = "10.77.0.2", .congestion_control = -1};
    struct uroce_cm_addr any = {.port = PORT}, v4 = addr_of("10.77.0.2", PORT), v6 = addr_of("fd77::2", PORT),
                         free_one = v4;
    struct uroce_cm_id *id;
    struct node other;
    (void)state;
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 0);
    assert_int_equal(uroce_cm_id_create(b.dev, cb, UROCE_CM_TCP, NULL, &id), 0);
    assert_int_equal(uroce_cm_bind(id, &v4, 0), -EADDRINUSE);
    assert_int_equal(uroce_cm_bind(id, &v6, 0), -EADDRINUSE);
    assert_int_equal(uroce_cm_bind(id, &any, 0), -EADDRINUSE);
    v4 = addr_of("10.77.0.1", PORT);
    assert_int_equal(uroce_cm_bind(id, &v4, 0), -EADDRNOTAVAIL);
    free_one.port = 0;
    assert_int_equal(uroce_cm_bind(id, &free_one, 0), 0);
    assert_int_equal(uroce_cm_id_destroy(id), 0);
    if (holder) { /* another process on that address, as far as the holder can tell */
        netns_enter(&ns, 1);
        node_open(&other, &cfg, 4096);
        netns_enter(&ns, 0);
        assert_int_equal(uroce_cm_id_create(other.dev, cb, UROCE_CM_TCP, NULL, &id), 0);
        assert_int_equal(uroce_cm_bind(id, &any, 0), -EADDRINUSE);
        assert_int_equal(uroce_cm_id_destroy(listener), 0);
        listener = id;
        assert_int_equal(uroce_cm_bind(id, &any, 0), 0);
        assert_int_equal(uroce_cm_listen(id, 0), 0);
        struct conn c;
        begin(&c, "10.77.0.2");
        struct uroce_cm_event ev = event(cb, UROCE_CM_CONNECT_REQUEST);
        assert_ptr_equal(ev.listener, id);
        assert_int_equal(uroce_cm_id_destroy(ev.id), 0);
        event(ca, UROCE_CM_REJECTED);
        assert_int_equal(uroce_cm_id_destroy(c.id[0]), 0);
        assert_int_equal(uroce_qp_destroy(c.qp[0]), 0);
        assert_int_equal(uroce_cm_id_destroy(listener), 0);
        listener = NULL;
        node_close(&other);
    }
    close_both();
}

/* A process that connects, says so, and waits to be killed. */
static void connect_and_wait(int fd)
{
    struct uroce_config cfg = {.addresses = "10.77.0.1", .congestion_control = -1};
    struct uroce_cm_addr peer = addr_of("10.77.0.2", PORT);
    struct uroce_cm_param p = {.qp_num = 0x4321, .private_data = "from here", .private_len = 9};
    struct uroce_device *dev;
    struct uroce_cm_channel *ch;
    struct uroce_cm_event ev;
    struct uroce_cm_id *id;
    char err[256];
    if (uroce_open(&cfg, &dev, err, sizeof err) || uroce_cm_channel_create(&ch) ||
        uroce_cm_id_create(dev, ch, UROCE_CM_TCP, NULL, &id) || uroce_cm_resolve(id, NULL, &peer) ||
        uroce_cm_connect(id, &p) || uroce_cm_get_event(ch, &ev) || ev.type != UROCE_CM_CONNECT_RESPONSE ||
        uroce_cm_establish(id, NULL, 0) || write(fd, "c", 1) != 1)
        _exit(1);
    pause();
    _exit(2);
}

static void a_killed_process_is_told_of_by_its_holder(void **state)
{
    (void)state;
    if (!holder)
        skip();
    char byte;
    int fds[2], go[2], status;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(pipe(go), 0);
    netns_enter(&ns, 0);
    /* Before the devices' threads: a sanitizer's allocator may be locked by one of them at the moment of a fork. */
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (read(go[0], &byte, 1) == 1)
            connect_and_wait(fds[1]);
        _exit(1);
    }
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 0);
    assert_int_equal(write(go[1], "g", 1), 1);
    struct uroce_cm_event ev = event(cb, UROCE_CM_CONNECT_REQUEST);
    struct uroce_cm_param p = {.qp_num = 0x1234};
    assert_int_equal(uroce_cm_accept(ev.id, &p), 0);
    event(cb, UROCE_CM_ESTABLISHED);
    assert_int_equal(read(fds[0], &byte, 1), 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(event(cb, UROCE_CM_DISCONNECTED).status, 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(uroce_cm_id_destroy(ev.id), 0);
    for (int i = 0; i < 2; i++) {
        close(fds[i]);
        close(go[i]);
    }
    close_both();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_messages_are_sent_again),
        cmocka_unit_test(a_disconnect_does_not_overtake_acknowledgements),
        cmocka_unit_test(many_connections_after_another_leave_nothing),
        cmocka_unit_test(many_connections_at_the_same_time),
        cmocka_unit_test(a_port_has_one_owner_on_an_address),
        cmocka_unit_test(a_killed_process_is_told_of_by_its_holder),
    };
    int r = conn_main_begin(argc, argv);
    return r ? r : cmocka_run_group_tests(tests, NULL, NULL);
}

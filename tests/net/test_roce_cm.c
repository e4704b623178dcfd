/*
 * Connections by address and port between two devices in network namespaces of their own: native API, both address
 * families, datagrams, losses, many at a time, many after another; with a holder and without. argv[1]: the uroce
 * command, or "off".
 */
#include "base/util.h"
#include "lib/netns.h"
#include "qp_mask.h"
#include "uroce/cm.h"
#include "uroce_node.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>

#define PORT 7174

static struct netns_pair ns;
static struct node a, b;                 /* a connects, b listens */
static struct uroce_cm_channel *ca, *cb; /* their channels */
static struct uroce_cm_id *listener;
static bool holder, extended;

static int no_thread;

static void open_both(const char *impair)
{
    struct uroce_config c = {.impair = impair, .congestion_control = -1, .no_thread = no_thread};
    c.addresses = "10.77.0.2,fd77::2";
    netns_enter(&ns, 1);
    node_open(&b, &c, 1u << 16);
    c.addresses = "10.77.0.1,fd77::1";
    netns_enter(&ns, 0);
    node_open(&a, &c, 1u << 16);
    assert_int_equal(uroce_cm_channel_create(&ca), 0);
    assert_int_equal(uroce_cm_channel_create(&cb), 0);
}

static void listen_at(enum uroce_cm_space space, int backlog)
{
    struct uroce_cm_addr any = {.port = PORT};
    assert_int_equal(uroce_cm_id_create(b.dev, cb, space, NULL, &listener), 0);
    assert_int_equal(uroce_cm_bind(listener, &any, 0), 0);
    assert_int_equal(uroce_cm_listen(listener, backlog), 0);
}

static void close_both(void)
{
    if (listener)
        assert_int_equal(uroce_cm_id_destroy(listener), 0);
    listener = NULL;
    assert_int_equal(uroce_cm_channel_destroy(ca), 0);
    assert_int_equal(uroce_cm_channel_destroy(cb), 0);
    node_close(&a);
    node_close(&b);
}

static struct uroce_cm_addr addr_of(const char *text, uint16_t port)
{
    struct uroce_cm_addr r = {.port = port};
    if (strchr(text, ':')) {
        assert_int_equal(inet_pton(AF_INET6, text, r.gid.raw), 1);
    } else {
        r.gid.raw[10] = r.gid.raw[11] = 0xff;
        assert_int_equal(inet_pton(AF_INET, text, r.gid.raw + 12), 1);
    }
    return r;
}

/* The next event, which has to be of that type. */
static struct uroce_cm_event event(struct uroce_cm_channel *ch, enum uroce_cm_event_type type)
{
    struct uroce_cm_event ev;
    struct pollfd p = {.fd = uroce_cm_channel_fd(ch), .events = POLLIN};
    if (!no_thread && poll(&p, 1, 60000) != 1)
        fail_msg("no event, type %d is expected", type);
    assert_int_equal(uroce_cm_get_event(ch, &ev), 0);
    if (ev.type != type)
        fail_msg("event %d, status %d; type %d is expected", ev.type, ev.status, type);
    return ev;
}

static struct uroce_qp *new_qp(struct node *n, struct uroce_cm_id *id, enum uroce_qp_type type)
{
    struct uroce_qp_init init = {
        .type = type,
        .send_cq = n->cq,
        .recv_cq = n->cq,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
        .sq_sig_all = 1,
    };
    struct uroce_qp *qp;
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_INIT};
    unsigned int mask;
    assert_int_equal(uroce_qp_create(n->pd, &init, &qp), 0);
    assert_int_equal(uroce_cm_qp_attr(id, &attr, &mask), 0);
    assert_int_equal(uroce_qp_modify(qp, &attr, mask), 0);
    return qp;
}

static void make_ready(struct uroce_cm_id *id, struct uroce_qp *qp)
{
    static const enum uroce_qp_state states[] = {UROCE_QPS_RTR, UROCE_QPS_RTS};
    for (int i = 0; i < 2; i++) {
        struct uroce_qp_attr attr = {.qp_state = states[i]};
        unsigned int mask;
        assert_int_equal(uroce_cm_qp_attr(id, &attr, &mask), 0);
        assert_int_equal(uroce_qp_modify(qp, &attr, mask), 0);
    }
}

static void to_error(struct uroce_qp *qp)
{
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_ERR};
    assert_int_equal(uroce_qp_modify(qp, &attr, UROCE_QP_STATE), 0);
}

struct conn {
    struct uroce_cm_id *id[2]; /* a's, b's */
    struct uroce_qp *qp[2];
};

static struct uroce_cm_param param_of(struct uroce_qp *qp)
{
    return (struct uroce_cm_param){.qp_num = uroce_qp_num(qp),
                                   .responder_resources = 4,
                                   .initiator_depth = 4,
                                   .retry_count = 7,
                                   .rnr_retry_count = 7,
                                   .private_data = "from here",
                                   .private_len = 9};
}

static void begin(struct conn *c, const char *to)
{
    struct uroce_cm_addr peer = addr_of(to, PORT);
    assert_int_equal(uroce_cm_id_create(a.dev, ca, UROCE_CM_TCP, c, &c->id[0]), 0);
    netns_enter(&ns, 0);
    assert_int_equal(uroce_cm_resolve(c->id[0], NULL, &peer), 0);
    c->qp[0] = new_qp(&a, c->id[0], UROCE_QPT_RC);
    struct uroce_cm_param p = param_of(c->qp[0]);
    assert_int_equal(uroce_cm_connect(c->id[0], &p), 0);
}

static void answer(struct conn *c)
{
    struct uroce_cm_event ev = event(cb, UROCE_CM_CONNECT_REQUEST);
    assert_ptr_equal(ev.listener, listener);
    assert_int_equal(ev.private_len, UROCE_CM_CONNECT_PRIVATE);
    assert_memory_equal(ev.private_data, "from here", 10);
    c->id[1] = ev.id;
    uroce_cm_id_set_context(ev.id, c);
    c->qp[1] = new_qp(&b, ev.id, UROCE_QPT_RC);
    make_ready(ev.id, c->qp[1]);
    struct uroce_cm_param p = param_of(c->qp[1]);
    p.responder_resources = ev.responder_resources;
    p.initiator_depth = ev.initiator_depth;
    assert_int_equal(uroce_cm_accept(ev.id, &p), 0);
}

static void finish(struct conn *c)
{
    struct uroce_cm_event ev = event(ca, UROCE_CM_CONNECT_RESPONSE);
    assert_ptr_equal(ev.context, c);
    assert_int_equal(ev.qp_num, uroce_qp_num(c->qp[1]));
    make_ready(c->id[0], c->qp[0]);
    assert_int_equal(uroce_cm_establish(c->id[0], NULL, 0), 0);
    event(cb, UROCE_CM_ESTABLISHED);
}

static void connect_one(struct conn *c, const char *to)
{
    begin(c, to);
    answer(c);
    finish(c);
}

static void exchange(struct conn *c)
{
    struct uroce_wc wc;
    node_fill(&a, 1);
    node_fill(&b, 2);
    node_recv(&b, c->qp[1], 0, 60000, 1);
    node_send(&a, c->qp[0], UROCE_WR_SEND, 0, 60000, NULL, 0, 2);
    node_wait(&b, &a, 1, &wc);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    assert_memory_equal(a.buf, b.buf, 60000);
    node_wait(&a, &b, 1, &wc);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    node_fill(&b, 3);
    node_send(&a, c->qp[0], UROCE_WR_RDMA_READ, 0, 60000, &b, 0, 2);
    node_wait(&a, &b, 1, &wc);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    assert_memory_equal(a.buf, b.buf, 60000);
}

static void end(struct conn *c)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(uroce_cm_id_destroy(c->id[i]), 0);
        assert_int_equal(uroce_qp_destroy(c->qp[i]), 0);
    }
}

static void disconnect(struct conn *c)
{
    assert_int_equal(uroce_cm_disconnect(c->id[0], NULL, 0), 0);
    event(ca, UROCE_CM_DISCONNECTED);
    event(cb, UROCE_CM_DISCONNECTED);
    event(ca, UROCE_CM_TIMEWAIT_EXIT);
    event(cb, UROCE_CM_TIMEWAIT_EXIT);
    end(c);
}

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

static unsigned descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static size_t memory_kib(void)
{
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        sscanf(line, "VmRSS: %zu", &kib);
    fclose(f);
    return kib;
}

static void many_connections_after_another_leave_nothing(void **state)
{
    unsigned n = extended ? 3000 : 300, fds = 0;
    size_t kib = 0;
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
            kib = memory_kib();
        }
    }
    assert_in_range(descriptors(), 0, fds + 16); /* a port has a bounded number of sockets, opened when needed */
    assert_in_range(memory_kib(), 0, kib + 4096);
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
    int fds[2], status;
    open_both(NULL);
    listen_at(UROCE_CM_TCP, 0);
    assert_int_equal(pipe(fds), 0);
    netns_enter(&ns, 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        connect_and_wait(fds[1]);
    }
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
    close(fds[0]);
    close(fds[1]);
    close_both();
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s UROCE-COMMAND|off\n", argv[0]);
        return 2;
    }
    holder = strcmp(argv[1], "off") != 0;
    extended = getenv("PENSTOCK_EXTENDED") != NULL;
    setenv("UROCE_HOLDER", argv[1], 1);
    netns_pair_make(&ns, 4200);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_ipv4),
        cmocka_unit_test(over_ipv6),
        cmocka_unit_test(without_helper_threads),
        cmocka_unit_test(nobody_listens_there),
        cmocka_unit_test(a_request_is_refused_with_words),
        cmocka_unit_test(a_listener_that_goes_refuses_who_waits),
        cmocka_unit_test(a_datagram_service_is_found),
        cmocka_unit_test(lost_messages_are_sent_again),
        cmocka_unit_test(a_disconnect_does_not_overtake_acknowledgements),
        cmocka_unit_test(many_connections_after_another_leave_nothing),
        cmocka_unit_test(many_connections_at_the_same_time),
        cmocka_unit_test(a_port_has_one_owner_on_an_address),
        cmocka_unit_test(a_killed_process_is_told_of_by_its_holder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

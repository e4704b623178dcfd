/*
 * For the tests of connections by address and port: two devices in network namespaces of their own, and what is between
 * them.
 */
#ifndef TESTS_CM_CONN_H
#define TESTS_CM_CONN_H

#include "base/util.h"
#include "lib/netns.h"
#include "qp_mask.h"
#include "uroce/cm.h"
#include "uroce_node.h"

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PORT 7174

static struct netns_pair ns;
static struct node a, b;                 /* a connects, b listens */
static struct uroce_cm_channel *ca, *cb; /* their channels */
static struct uroce_cm_id *listener;
static bool holder, extended;

static int no_thread;

static inline void open_both(const char *impair)
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

static inline void listen_at(enum uroce_cm_space space, int backlog)
{
    struct uroce_cm_addr any = {.port = PORT};
    assert_int_equal(uroce_cm_id_create(b.dev, cb, space, NULL, &listener), 0);
    assert_int_equal(uroce_cm_bind(listener, &any, 0), 0);
    assert_int_equal(uroce_cm_listen(listener, backlog), 0);
}

static inline void close_both(void)
{
    if (listener)
        assert_int_equal(uroce_cm_id_destroy(listener), 0);
    listener = NULL;
    assert_int_equal(uroce_cm_channel_destroy(ca), 0);
    assert_int_equal(uroce_cm_channel_destroy(cb), 0);
    node_close(&a);
    node_close(&b);
}

static inline struct uroce_cm_addr addr_of(const char *text, uint16_t port)
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
static inline struct uroce_cm_event event(struct uroce_cm_channel *ch, enum uroce_cm_event_type type)
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

static inline struct uroce_qp *new_qp(struct node *n, struct uroce_cm_id *id, enum uroce_qp_type type)
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

static inline void make_ready(struct uroce_cm_id *id, struct uroce_qp *qp)
{
    static const enum uroce_qp_state states[] = {UROCE_QPS_RTR, UROCE_QPS_RTS};
    for (int i = 0; i < 2; i++) {
        struct uroce_qp_attr attr = {.qp_state = states[i]};
        unsigned int mask;
        assert_int_equal(uroce_cm_qp_attr(id, &attr, &mask), 0);
        assert_int_equal(uroce_qp_modify(qp, &attr, mask), 0);
    }
}

struct conn {
    struct uroce_cm_id *id[2]; /* a's, b's */
    struct uroce_qp *qp[2];
};

static inline struct uroce_cm_param param_of(struct uroce_qp *qp)
{
    return (struct uroce_cm_param){.qp_num = uroce_qp_num(qp),
                                   .responder_resources = 4,
                                   .initiator_depth = 4,
                                   .retry_count = 7,
                                   .rnr_retry_count = 7,
                                   .private_data = "from here",
                                   .private_len = 9};
}

static inline void begin(struct conn *c, const char *to)
{
    struct uroce_cm_addr peer = addr_of(to, PORT);
    assert_int_equal(uroce_cm_id_create(a.dev, ca, UROCE_CM_TCP, c, &c->id[0]), 0);
    netns_enter(&ns, 0);
    assert_int_equal(uroce_cm_resolve(c->id[0], NULL, &peer), 0);
    c->qp[0] = new_qp(&a, c->id[0], UROCE_QPT_RC);
    struct uroce_cm_param p = param_of(c->qp[0]);
    assert_int_equal(uroce_cm_connect(c->id[0], &p), 0);
}

static inline void answer(struct conn *c)
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

static inline void finish(struct conn *c)
{
    struct uroce_cm_event ev = event(ca, UROCE_CM_CONNECT_RESPONSE);
    assert_ptr_equal(ev.context, c);
    assert_int_equal(ev.qp_num, uroce_qp_num(c->qp[1]));
    make_ready(c->id[0], c->qp[0]);
    assert_int_equal(uroce_cm_establish(c->id[0], NULL, 0), 0);
    event(cb, UROCE_CM_ESTABLISHED);
}

static inline void connect_one(struct conn *c, const char *to)
{
    begin(c, to);
    answer(c);
    finish(c);
}

static inline void exchange(struct conn *c)
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

static inline void end(struct conn *c)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(uroce_cm_id_destroy(c->id[i]), 0);
        assert_int_equal(uroce_qp_destroy(c->qp[i]), 0);
    }
}

static inline void disconnect(struct conn *c)
{
    assert_int_equal(uroce_cm_disconnect(c->id[0], NULL, 0), 0);
    event(ca, UROCE_CM_DISCONNECTED);
    event(cb, UROCE_CM_DISCONNECTED);
    event(ca, UROCE_CM_TIMEWAIT_EXIT);
    event(cb, UROCE_CM_TIMEWAIT_EXIT);
    end(c);
}

/* Of a test program whose argument is the uroce command, or "off": 0, or its exit status. */
static inline int conn_main_begin(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s UROCE-COMMAND|off\n", argv[0]);
        return 2;
    }
    holder = strcmp(argv[1], "off") != 0;
    extended = getenv("PENSTOCK_EXTENDED") != NULL;
    setenv("UROCE_HOLDER", argv[1], 1);
    netns_pair_make(&ns, 4200);
    return 0;
}

#endif

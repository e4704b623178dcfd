/*
 * Two uroce devices, each in a network namespace of its own, joined by a veth pair: data arrives, however the program
 * drives its device, also when packets are lost. By "udp"; by "shm", that is shared memory; "moving", from the one to
 * the other while data flows.
 */
#include "base/crc.h"
#include "base/util.h"
#include "lib/netns.h"
#include "uroce_node.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN (9u << 20)

static struct netns_pair ns;
static struct node a, b;

static void open_both(const struct uroce_config *ca, const struct uroce_config *cb)
{
    netns_enter(&ns, 0);
    node_open(&a, ca, LEN);
    netns_enter(&ns, 1);
    node_open(&b, cb, LEN);
    netns_enter(&ns, 0);
}

static const char *way;

static const char *port_of(struct uroce_qp *qp)
{
    struct uroce_qp_transport t;
    assert_int_equal(uroce_qp_transport(qp, &t), 0);
    return t.port;
}

/* Both ends of a connection go the way that this run is about. */
static void await_way(struct uroce_qp *qa, struct uroce_qp *qb)
{
    if (strcmp(way, "shm") == 0)
        assert_true(node_await_shm(qa, qb));
    else if (strcmp(way, "moving"))
        assert_string_equal(port_of(qa), way);
}

static void join(struct uroce_qp *qa, struct uroce_qp *qb, unsigned gid, enum uroce_mtu mtu)
{
    node_connect(&a, qa, &b, qb, gid, mtu);
    await_way(qa, qb);
}

static void close_both(struct uroce_qp *qa, struct uroce_qp *qb)
{
    assert_int_equal(uroce_qp_destroy(qa), 0);
    assert_int_equal(uroce_qp_destroy(qb), 0);
    node_close(&a);
    node_close(&b);
}

/* Every operation with sizes around packet and system limits, contents compared. */
static void exchange(struct uroce_qp *qa, struct uroce_qp *qb)
{
    static const uint32_t sizes[] = {0, 1, 255, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537, 8u << 20};
    struct uroce_wc wc;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        uint32_t n = sizes[i];
        node_fill(&a, i);
        node_fill(&b, i + 100);
        node_send(&a, qa, UROCE_WR_RDMA_WRITE, 3, n, &b, 7, 1);
        node_wait(&a, &b, 1, &wc);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_memory_equal(a.buf + 3, b.buf + 7, n);
        node_fill(&b, i + 200);
        node_send(&a, qa, UROCE_WR_RDMA_READ, 5, n, &b, 1, 2);
        node_wait(&a, &b, 1, &wc);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_int_equal(wc.byte_len, n);
        assert_memory_equal(a.buf + 5, b.buf + 1, n);
        node_recv(&b, qb, 11, LEN - 11, 3);
        node_send(&a, qa, UROCE_WR_SEND, 9, n, NULL, 0, 4);
        node_wait(&a, &b, 1, &wc);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        node_wait(&b, &a, 1, &wc);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_int_equal(wc.byte_len, n);
        assert_memory_equal(a.buf + 9, b.buf + 11, n);
    }
    uint64_t before = 41, after;
    memcpy(b.buf + 64 - (uintptr_t)b.buf % 8, &before, 8);
    node_send(&a, qa, UROCE_WR_ATOMIC_FETCH_AND_ADD, 0, 8, &b, 64 - (uintptr_t)b.buf % 8, 5);
    node_wait(&a, &b, 1, &wc);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    memcpy(&after, b.buf + 64 - (uintptr_t)b.buf % 8, 8);
    assert_int_equal(after, 42);
    assert_memory_equal(a.buf, &before, 8);
}

static void run_exchange(const struct uroce_config *ca, const struct uroce_config *cb, unsigned gid, enum uroce_mtu mtu)
{
    open_both(ca, cb);
    struct uroce_qp *qa = node_qp(&a, UROCE_QPT_RC, 16), *qb = node_qp(&b, UROCE_QPT_RC, 16);
    join(qa, qb, gid, mtu);
    exchange(qa, qb);
    close_both(qa, qb);
}

static void every_operation_over_ipv4(void **state)
{
    (void)state;
    struct uroce_config ca = {.addresses = "10.77.0.1"}, cb = {.addresses = "10.77.0.2"};
    run_exchange(&ca, &cb, 0, UROCE_MTU_4096);
}

static void every_operation_over_ipv6_with_small_packets(void **state)
{
    (void)state;
    struct uroce_config ca = {.addresses = "10.77.0.1,fd77::1"}, cb = {.addresses = "10.77.0.2,fd77::2"};
    run_exchange(&ca, &cb, 1, UROCE_MTU_1024);
}

static void every_operation_with_lost_packets(void **state)
{
    (void)state;
    const char *rules = "drop rx prob=0.02; duplicate rx prob=0.01; delay rx us=2000 prob=0.005";
    struct uroce_config ca = {.addresses = "10.77.0.1", .impair = rules, .seed = 5};
    struct uroce_config cb = {.addresses = "10.77.0.2", .impair = rules, .seed = 6};
    run_exchange(&ca, &cb, 0, UROCE_MTU_1024);
}

static void every_operation_with_lost_packets_and_go_back_n(void **state)
{
    (void)state;
    const char *rules = "drop rx prob=0.01";
    struct uroce_config ca = {.addresses = "10.77.0.1", .impair = rules, .seed = 7, .no_selective = 1};
    struct uroce_config cb = {.addresses = "10.77.0.2", .impair = rules, .seed = 8};
    run_exchange(&ca, &cb, 0, UROCE_MTU_4096);
}

/* The ends find each other by the hello, and not when one of them does not say it. */
static void the_hello_switches_selective_repeat_on(void **state)
{
    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        struct uroce_config ca = {.addresses = "10.77.0.1"}, cb = {.addresses = "10.77.0.2", .no_selective = silent};
        open_both(&ca, &cb);
        struct uroce_qp *qa = node_qp(&a, UROCE_QPT_RC, 16), *qb = node_qp(&b, UROCE_QPT_RC, 16);
        join(qa, qb, 0, UROCE_MTU_1024);
        struct uroce_qp_transport ta, tb;
        uint64_t end = now_ns() + (silent ? NSEC_PER_SEC / 2 : 10 * NSEC_PER_SEC);
        do {
            poll(NULL, 0, 1);
            assert_int_equal(uroce_qp_transport(qa, &ta), 0);
            assert_int_equal(uroce_qp_transport(qb, &tb), 0);
        } while (!(ta.selective_repeat && tb.selective_repeat) && now_ns() < end);
        assert_int_equal(ta.selective_repeat, !silent);
        assert_int_equal(tb.selective_repeat, !silent);
        exchange(qa, qb);
        close_both(qa, qb);
    }
}

static void to_rts_by_xrc(struct uroce_qp *qp, uint32_t dest, const union uroce_gid *gid, bool sends)
{
    struct uroce_qp_attr at = {
        .qp_state = UROCE_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = UROCE_ACCESS_REMOTE_WRITE,
        .path_mtu = UROCE_MTU_1024,
        .dest_qp_num = dest,
        .min_rnr_timer = 1,
        .ah_attr = {.dgid = *gid, .hop_limit = 64},
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
    };
    unsigned int mask = UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT | UROCE_QP_ACCESS_FLAGS;
    assert_int_equal(uroce_qp_modify(qp, &at, mask), 0);
    at.qp_state = UROCE_QPS_RTR;
    mask = UROCE_QP_STATE | UROCE_QP_AV | UROCE_QP_PATH_MTU | UROCE_QP_DEST_QPN | UROCE_QP_RQ_PSN;
    mask |= sends ? 0u : UROCE_QP_MAX_DEST_RD_ATOMIC | UROCE_QP_MIN_RNR_TIMER;
    assert_int_equal(uroce_qp_modify(qp, &at, mask), 0);
    at.qp_state = UROCE_QPS_RTS;
    mask = UROCE_QP_STATE | UROCE_QP_SQ_PSN | UROCE_QP_TIMEOUT;
    mask |= sends ? UROCE_QP_RETRY_CNT | UROCE_QP_RNR_RETRY | UROCE_QP_MAX_QP_RD_ATOMIC : 0u;
    assert_int_equal(uroce_qp_modify(qp, &at, mask), 0);
}

/* XRC: messages go to a shared receive queue that the request names. */
static void messages_by_xrc_arrive_in_the_queue_that_they_name(void **state)
{
    (void)state;
    struct uroce_config ca = {.addresses = "10.77.0.1"}, cb = {.addresses = "10.77.0.2"};
    open_both(&ca, &cb);
    struct uroce_qp_init from = {.type = UROCE_QPT_XRC_SEND, .send_cq = a.cq, .cap = {16, 0, 1, 0, 0}, .sq_sig_all = 1};
    struct uroce_qp_init to = {.type = UROCE_QPT_XRC_RECV};
    struct uroce_qp *qp[2];
    struct uroce_srq *srq;
    union uroce_gid gid[2];
    assert_int_equal(uroce_xrcd_open(b.dev, &to.xrcd), 0);
    assert_int_equal(uroce_srq_create(b.pd, 16, 1, to.xrcd, b.cq, &srq), 0);
    assert_int_equal(uroce_qp_create(a.pd, &from, &qp[0]), 0);
    assert_int_equal(uroce_qp_create(b.pd, &to, &qp[1]), 0);
    assert_int_equal(uroce_query_gid(a.dev, 0, &gid[0]), 0);
    assert_int_equal(uroce_query_gid(b.dev, 0, &gid[1]), 0);
    to_rts_by_xrc(qp[1], uroce_qp_num(qp[0]), &gid[0], false);
    to_rts_by_xrc(qp[0], uroce_qp_num(qp[1]), &gid[1], true);
    await_way(qp[0], qp[1]);
    for (uint32_t i = 1; i < 30; i++) {
        uint32_t len = i * i * 1000;
        struct uroce_sge s = {(uintptr_t)b.buf, LEN, uroce_mr_lkey(b.mr)},
                         t = {(uintptr_t)a.buf, len, uroce_mr_lkey(a.mr)};
        struct uroce_recv_wr rwr = {.wr_id = i, .sg_list = &s, .num_sge = 1};
        struct uroce_send_wr swr = {.sg_list = &t, .num_sge = 1, .opcode = UROCE_WR_SEND};
        const struct uroce_recv_wr *bad_recv;
        const struct uroce_send_wr *bad;
        struct uroce_wc wc;
        node_fill(&a, i);
        assert_int_equal(uroce_post_srq_recv(srq, &rwr, &bad_recv), 0);
        swr.xrc_remote_srqn = uroce_srq_num(srq);
        assert_int_equal(uroce_post_send(qp[0], &swr, &bad), 0);
        node_wait(&a, &b, 1, &wc);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        node_wait(&b, &a, 1, &wc);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_int_equal(wc.wr_id, i);
        assert_int_equal(wc.byte_len, len);
        assert_memory_equal(a.buf, b.buf, len);
    }
    assert_int_equal(uroce_qp_destroy(qp[0]), 0);
    assert_int_equal(uroce_qp_destroy(qp[1]), 0);
    assert_int_equal(uroce_srq_destroy(srq), 0);
    assert_int_equal(uroce_xrcd_close(to.xrcd), 0);
    node_close(&a);
    node_close(&b);
}

/* Toward a peer whose ids may be any, a raw socket makes the ICRC count in full. */
static void a_raw_socket_makes_the_icrc_count_in_full(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        struct uroce_config ca = {.addresses = "10.77.0.1", .full_icrc = full, .no_shm = 1, .no_selective = 1};
        struct uroce_config cb = {.addresses = "10.77.0.2", .full_icrc = full, .no_shm = 1};
        struct uroce_qp_transport t;
        open_both(&ca, &cb);
        struct uroce_qp *qa = node_qp(&a, UROCE_QPT_RC, 16), *qb = node_qp(&b, UROCE_QPT_RC, 16);
        node_connect(&a, qa, &b, qb, 0, UROCE_MTU_1024);
        exchange(qa, qb);
        assert_int_equal(uroce_qp_transport(qa, &t), 0);
        assert_int_equal(t.full_icrc, full);
        close_both(qa, qb);
    }
}

/* b's program does nothing at all: its helper thread serves. a sleeps for the event. */
static void a_passive_target_is_served_and_an_event_wakes(void **state)
{
    (void)state;
    struct uroce_config ca = {.addresses = "10.77.0.1"}, cb = {.addresses = "10.77.0.2"};
    open_both(&ca, &cb);
    struct uroce_qp *qa = node_qp(&a, UROCE_QPT_RC, 16), *qb = node_qp(&b, UROCE_QPT_RC, 16);
    join(qa, qb, 0, UROCE_MTU_4096);
    for (int i = 0; i < 50; i++) {
        struct uroce_cq *cq;
        void *context;
        struct uroce_wc wc;
        assert_int_equal(uroce_req_notify_cq(a.cq, 0), 0);
        node_send(&a, qa, UROCE_WR_RDMA_READ, 0, 100000, &b, 0, (uint64_t)i);
        if (i % 2) { /* as a program with its own event loop */
            struct pollfd p = {.fd = uroce_channel_fd(a.channel), .events = POLLIN};
            assert_int_equal(poll(&p, 1, 10000), 1);
        }
        assert_int_equal(uroce_get_cq_event(a.channel, &cq, &context), 0);
        assert_ptr_equal(cq, a.cq);
        assert_ptr_equal(context, &a);
        uroce_ack_cq_events(cq, 1);
        assert_int_equal(uroce_poll_cq(a.cq, 1, &wc), 1);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_int_equal(wc.wr_id, i);
    }
    close_both(qa, qb);
}

/* A program that polls a few after each event gets all: those that are left are an event of their own. */
static void what_a_poll_leaves_is_told(void **state)
{
    (void)state;
    struct uroce_config ca = {.addresses = "10.77.0.1"}, cb = {.addresses = "10.77.0.2"};
    open_both(&ca, &cb);
    struct uroce_qp *qa = node_qp(&a, UROCE_QPT_RC, 16), *qb = node_qp(&b, UROCE_QPT_RC, 16);
    join(qa, qb, 0, UROCE_MTU_4096);
    assert_int_equal(uroce_req_notify_cq(a.cq, 0), 0);
    for (uint64_t i = 0; i < 10; i++)
        node_send(&a, qa, UROCE_WR_RDMA_WRITE, 0, 100, &b, 0, i);
    struct uroce_counters c;
    do { /* until all have come, with one event */
        poll(NULL, 0, 1);
        uroce_qp_counters(qb, &c);
    } while (c.rx_pkts < 10);
    poll(NULL, 0, 50);
    int got = 0, events = 0;
    for (; got < 10; events++) {
        struct uroce_cq *cq;
        void *context;
        struct uroce_wc wc[3];
        struct pollfd p = {.fd = uroce_channel_fd(a.channel), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 10000), 1);
        assert_int_equal(uroce_get_cq_event(a.channel, &cq, &context), 0);
        uroce_ack_cq_events(cq, 1);
        uroce_req_notify_cq(a.cq, 0);
        int r = uroce_poll_cq(a.cq, 3, wc);
        assert_true(r >= 0);
        uroce_cq_left(a.cq);
        for (int i = 0; i < r; i++)
            assert_int_equal(wc[i].wr_id, got + i);
        got += r;
    }
    assert_true(events >= 4 && events <= 11);
    close_both(qa, qb);
}

static void a_native_wait_sleeps_and_times_out(void **state)
{
    (void)state;
    struct uroce_config ca = {.addresses = "10.77.0.1"}, cb = {.addresses = "10.77.0.2"};
    open_both(&ca, &cb);
    struct uroce_qp *qa = node_qp(&a, UROCE_QPT_RC, 16), *qb = node_qp(&b, UROCE_QPT_RC, 16);
    join(qa, qb, 0, UROCE_MTU_4096);
    struct uroce_wc wc;
    assert_int_equal(uroce_wait_cq(a.cq, 1, &wc, NSEC_PER_SEC / 50), 0);
    for (int i = 0; i < 50; i++) {
        node_send(&a, qa, UROCE_WR_RDMA_WRITE, 0, 200000, &b, 0, (uint64_t)i);
        assert_int_equal(uroce_wait_cq(a.cq, 1, &wc, 10 * NSEC_PER_SEC), 1);
        assert_int_equal(wc.wr_id, i);
    }
    close_both(qa, qb);
}

static struct uroce_qp *node_ud(struct node *n)
{
    struct uroce_qp *qp = node_qp(n, UROCE_QPT_UD, 16);
    struct uroce_qp_attr at = {.qp_state = UROCE_QPS_RTR, .sq_psn = 9};
    assert_int_equal(uroce_qp_modify(qp, &at, UROCE_QP_STATE), 0);
    at.qp_state = UROCE_QPS_RTS;
    assert_int_equal(uroce_qp_modify(qp, &at, UROCE_QP_STATE | UROCE_QP_SQ_PSN), 0);
    return qp;
}

/* A datagram queue pair: the payload stands behind 40 bytes of network header. */
static void datagrams_arrive_with_their_network_header(void **state)
{
    (void)state;
    struct uroce_config ca = {.addresses = "10.77.0.1,fd77::1"}, cb = {.addresses = "10.77.0.2,fd77::2"};
    open_both(&ca, &cb);
    struct uroce_qp *qp[2] = {node_ud(&a), node_ud(&b)};
    for (unsigned gid = 0; gid < 2; gid++) {
        struct uroce_ah_attr at = {.sgid_index = (uint8_t)gid};
        struct uroce_ah *ah;
        assert_int_equal(uroce_query_gid(b.dev, gid, &at.dgid), 0);
        assert_int_equal(uroce_ah_create(a.pd, &at, &ah), 0);
        node_fill(&a, gid);
        node_recv(&b, qp[1], 0, 2048, 1);
        struct uroce_sge sge = {.addr = (uintptr_t)a.buf, .length = 777, .lkey = uroce_mr_lkey(a.mr)};
        struct uroce_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = UROCE_WR_SEND};
        const struct uroce_send_wr *bad;
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = uroce_qp_num(qp[1]);
        wr.wr.ud.remote_qkey = 0x1234;
        assert_int_equal(uroce_post_send(qp[0], &wr, &bad), 0);
        struct uroce_wc wc;
        node_wait(&b, &a, 1, &wc);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_int_equal(wc.byte_len, 777 + UROCE_GRH_BYTES);
        assert_true(wc.wc_flags & UROCE_WC_GRH);
        assert_int_equal(wc.src_qp, uroce_qp_num(qp[0]));
        assert_memory_equal(b.buf + UROCE_GRH_BYTES, a.buf, 777);
        node_wait(&a, &b, 1, &wc);
        assert_int_equal(uroce_ah_destroy(ah), 0);
    }
    close_both(qp[0], qp[1]);
}

static void send_to_group(struct uroce_qp *from, const union uroce_gid *group, uint32_t len)
{
    struct uroce_ah_attr at = {.dgid = *group};
    struct uroce_ah *ah;
    assert_int_equal(uroce_ah_create(a.pd, &at, &ah), 0);
    struct uroce_sge sge = {.addr = (uintptr_t)a.buf, .length = len, .lkey = uroce_mr_lkey(a.mr)};
    struct uroce_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = UROCE_WR_SEND};
    const struct uroce_send_wr *bad;
    struct uroce_wc wc;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = UROCE_QPN_MAX;
    wr.wr.ud.remote_qkey = 0x1234;
    assert_int_equal(uroce_post_send(from, &wr, &bad), 0);
    node_wait(&a, &b, 1, &wc);
    assert_int_equal(uroce_ah_destroy(ah), 0);
}

/* Who leaves a group, or goes, takes nothing from those who are still in it. */
static void a_group_lasts_until_its_last_member_leaves(void **state)
{
    (void)state;
    const union uroce_gid group = {.raw = {[10] = 0xff, [11] = 0xff, 239, 7, 7, 7}};
    struct uroce_config ca = {.addresses = "10.77.0.1"}, cb = {.addresses = "10.77.0.2"};
    open_both(&ca, &cb);
    struct uroce_qp *from = node_ud(&a), *to[3] = {node_ud(&b), node_ud(&b), node_ud(&b)};
    struct uroce_wc wc;
    netns_enter(&ns, 1); /* where b's socket for the group is to be */
    for (int i = 0; i < 3; i++)
        assert_int_equal(uroce_attach_mcast(to[i], &group), 0);
    netns_enter(&ns, 0);
    assert_int_equal(uroce_detach_mcast(to[0], &group), 0);
    assert_int_equal(uroce_qp_destroy(to[1]), 0);
    node_fill(&a, 3);
    node_recv(&b, to[2], 0, 2048, 9);
    send_to_group(from, &group, 500);
    node_wait(&b, &a, 1, &wc);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    assert_int_equal(wc.qp_num, uroce_qp_num(to[2]));
    assert_memory_equal(b.buf + UROCE_GRH_BYTES, a.buf, 500);
    assert_int_equal(uroce_detach_mcast(to[2], &group), 0);
    netns_enter(&ns, 1);
    assert_int_equal(uroce_attach_mcast(to[0], &group), 0);
    netns_enter(&ns, 0);
    node_recv(&b, to[0], 0, 2048, 10);
    send_to_group(from, &group, 400);
    node_wait(&b, &a, 1, &wc);
    assert_int_equal(wc.qp_num, uroce_qp_num(to[0]));
    assert_int_equal(uroce_qp_destroy(to[2]), 0);
    close_both(from, to[0]);
}

/* A slot of each end computes the sum of each message, however often its packets were lost, and both agree. */
static void slots_see_each_message_once_at_both_ends(void **state)
{
    (void)state;
    const char *rules = "drop rx prob=0.03; duplicate rx prob=0.02";
    struct uroce_config ca = {.addresses = "10.77.0.1", .slots = "count,sum", .impair = rules, .seed = 21};
    struct uroce_config cb = {.addresses = "10.77.0.2", .slots = "sum", .impair = rules, .seed = 22};
    open_both(&ca, &cb);
    struct uroce_qp *qa = node_qp(&a, UROCE_QPT_RC, 16), *qb = node_qp(&b, UROCE_QPT_RC, 16);
    join(qa, qb, 0, UROCE_MTU_1024);
    for (uint32_t i = 1; i <= 30; i++) {
        struct uroce_wc sent, received;
        uint32_t len = i * 3001;
        node_fill(&a, i);
        node_recv(&b, qb, 0, LEN, i);
        node_send(&a, qa, UROCE_WR_SEND, 0, len, NULL, 0, i);
        node_wait(&a, &b, 1, &sent);
        node_wait(&b, &a, 1, &received);
        assert_int_equal(received.byte_len, len);
        assert_memory_equal(a.buf, b.buf, len);
        assert_true(sent.wc_flags & received.wc_flags & UROCE_WC_SLOT_VALUE);
        assert_int_equal(sent.slot_value, crc32c(0, a.buf, len));
        assert_int_equal(sent.slot_value, received.slot_value);
    }
    char text[2048];
    assert_int_equal(uroce_qp_slot_stat(qa, text, sizeof text), 0);
    assert_non_null(strstr(text, "SEND"));
    close_both(qa, qb);
}

/* Far more to send at once than one drive of the device does, and nothing that comes would set it going again. */
static void a_passive_target_answers_all_it_was_asked(void **state)
{
    (void)state;
    enum { QPS = 32, EACH = 256 << 10 };
    struct uroce_qp *qa[QPS], *qb[QPS];
    struct uroce_config ca = {.addresses = "10.77.0.1"}, cb = {.addresses = "10.77.0.2"};
    open_both(&ca, &cb);
    node_fill(&b, 78);
    node_timeout = 0;
    for (int i = 0; i < QPS; i++) {
        qa[i] = node_qp(&a, UROCE_QPT_RC, 2);
        qb[i] = node_qp(&b, UROCE_QPT_RC, 2);
        node_connect(&a, qa[i], &b, qb[i], 0, UROCE_MTU_256);
    }
    node_timeout = NODE_TIMEOUT;
    for (size_t i = 0; i < QPS; i++)
        node_send(&a, qa[i], UROCE_WR_RDMA_READ, i * EACH, EACH, &b, i * EACH, i);
    for (int i = 0; i < QPS; i++) {
        struct uroce_wc wc;
        node_wait(&a, NULL, 1, &wc);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    }
    assert_memory_equal(a.buf, b.buf, QPS * EACH);
    for (int i = 0; i < QPS; i++) {
        assert_int_equal(uroce_qp_destroy(qa[i]), 0);
        assert_int_equal(uroce_qp_destroy(qb[i]), 0);
    }
    node_close(&a);
    node_close(&b);
}

/* A thousand connected queue pairs of one process, each used. */
static void a_thousand_queue_pairs_work(void **state)
{
    (void)state;
    enum { QPS = 1000 };
    static struct uroce_qp *qa[QPS], *qb[QPS];
    struct uroce_config ca = {.addresses = "10.77.0.1"}, cb = {.addresses = "10.77.0.2"};
    open_both(&ca, &cb);
    node_fill(&a, 77);
    node_timeout = 17; /* half a second: one thread serves all of them, on a busy machine and with sanitizers slowly */
    for (int i = 0; i < QPS; i++) {
        qa[i] = node_qp(&a, UROCE_QPT_RC, 2);
        qb[i] = node_qp(&b, UROCE_QPT_RC, 2);
        join(qa[i], qb[i], 0, UROCE_MTU_4096);
    }
    for (int i = 0; i < QPS; i++)
        node_send(&a, qa[i], UROCE_WR_RDMA_WRITE, (size_t)i * 8192, 8192, &b, (size_t)i * 8192, (uint64_t)i);
    for (int i = 0; i < QPS; i++) {
        struct uroce_wc wc;
        node_wait(&a, &b, 1, &wc);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    }
    node_timeout = NODE_TIMEOUT;
    assert_memory_equal(a.buf, b.buf, QPS * 8192);
    for (int i = 0; i < QPS; i++) {
        assert_int_equal(uroce_qp_destroy(qa[i]), 0);
        assert_int_equal(uroce_qp_destroy(qb[i]), 0);
    }
    node_close(&a);
    node_close(&b);
}

/* What a device has is told: objects that are left, counters that grow, a capture that others can read. */
static void a_device_with_objects_left_is_not_closed(void **state)
{
    (void)state;
    struct uroce_config c = {.addresses = "10.77.0.1"};
    netns_enter(&ns, 0);
    node_open(&a, &c, 4096);
    struct uroce_qp *qp = node_qp(&a, UROCE_QPT_RC, 2);
    assert_int_equal(uroce_close(a.dev), -EBUSY);
    assert_int_equal(uroce_pd_dealloc(a.pd), -EBUSY);
    assert_int_equal(uroce_cq_destroy(a.cq), -EBUSY);
    assert_int_equal(uroce_channel_destroy(a.channel), -EBUSY);
    assert_int_equal(uroce_qp_destroy(qp), 0);
    node_close(&a);
    int cancelled;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancelled);
    assert_int_equal(cancelled, PTHREAD_CANCEL_ENABLE); /* as it was before */
}

/* The address is taken: a clear message, and nothing left open. */
static void a_second_device_on_an_address_is_refused_with_its_name(void **state)
{
    (void)state;
    struct uroce_config c = {.addresses = "10.77.0.1"};
    struct uroce_device *other;
    char err[256];
    netns_enter(&ns, 0);
    node_open(&a, &c, 4096);
    assert_true(uroce_open(&c, &other, err, sizeof err) < 0);
    assert_non_null(strstr(err, "10.77.0.1"));
    node_close(&a);
    c.addresses = "192.0.2.77";
    assert_true(uroce_open(&c, &other, err, sizeof err) < 0);
    assert_non_null(strstr(err, "192.0.2.77"));
}

int main(int argc, char **argv)
{
    way = argc > 1 ? argv[1] : "udp";
    setenv("UROCE_HOLDER", "off", 1);
    setenv("UROCE_SHM", strcmp(way, "udp") ? "1" : "0", 1);
    netns_pair_make(&ns, 4200);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_over_ipv4),
        cmocka_unit_test(every_operation_over_ipv6_with_small_packets),
        cmocka_unit_test(the_hello_switches_selective_repeat_on),
        cmocka_unit_test(every_operation_with_lost_packets),
        cmocka_unit_test(every_operation_with_lost_packets_and_go_back_n),
        cmocka_unit_test(messages_by_xrc_arrive_in_the_queue_that_they_name),
        cmocka_unit_test(a_raw_socket_makes_the_icrc_count_in_full),
        cmocka_unit_test(a_passive_target_is_served_and_an_event_wakes),
        cmocka_unit_test(what_a_poll_leaves_is_told),
        cmocka_unit_test(a_native_wait_sleeps_and_times_out),
        cmocka_unit_test(datagrams_arrive_with_their_network_header),
        cmocka_unit_test(a_group_lasts_until_its_last_member_leaves),
        cmocka_unit_test(slots_see_each_message_once_at_both_ends),
        cmocka_unit_test(a_passive_target_answers_all_it_was_asked),
        cmocka_unit_test(a_thousand_queue_pairs_work),
        cmocka_unit_test(a_device_with_objects_left_is_not_closed),
        cmocka_unit_test(a_second_device_on_an_address_is_refused_with_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

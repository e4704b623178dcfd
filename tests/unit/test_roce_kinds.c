/* The other kinds of queue pairs: UC, UD with multicast and management datagrams, SRQ, XRC. */
#include "roce_fixture.h"

/* ---- UC ---- */

static void uc_sends_and_writes_without_acknowledgement(void **state)
{
    struct uroce_send_wr wr, s = fx_send(2);
    struct uroce_wc wc;

    (void)state;
    fx_open(&(struct qend_opts){.type = UROCE_QPT_UC});
    fx_fill(a.mem, 5000, 1);
    wr = fx_rdma(UROCE_WR_RDMA_WRITE_WITH_IMM, 1, b.mem);
    wr.imm_data = 0x55;
    qend_recv(&b, &net, 10, b.mem + 50000, 10);
    qend_recv(&b, &net, 11, b.mem + 60000, 5000);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 5000), 0);
    assert_int_equal(qend_send(&a, &net, &s, a.mem, 5000), 0);
    fx_run();
    wc = fx_one(b.rcq);
    assert_int_equal(wc.wr_id, 10);
    assert_int_equal(wc.imm_data, 0x55);
    assert_int_equal(wc.byte_len, 5000);
    assert_int_equal(fx_one(b.rcq).wr_id, 11);
    assert_memory_equal(b.mem, a.mem, 5000);
    assert_memory_equal(b.mem + 60000, a.mem, 5000);
    assert_int_equal(fx_one(a.scq).wr_id, 1);
    assert_int_equal(fx_one(a.scq).wr_id, 2);
    assert_int_equal(qend_send(&a, &net, &(struct uroce_send_wr){.opcode = UROCE_WR_RDMA_READ}, a.mem, 8), -EINVAL);
    fx_close();
}

static void uc_drops_a_message_with_a_hole_whole(void **state)
{
    struct uroce_send_wr s = fx_send(1);
    struct uroce_wc wc;

    (void)state;
    fx_open(&(struct qend_opts){.type = UROCE_QPT_UC});
    net.batch = 1;
    qend_recv(&b, &net, 10, b.mem, 5000);
    assert_int_equal(qend_send(&a, &net, &s, a.mem, 100), 0);
    fx_run();
    assert_int_equal(fx_one(b.rcq).wr_id, 10);
    qend_recv(&b, &net, 11, b.mem, 5000);
    for (int i = 0; i < 4; i++) { /* first, a middle, last packet are lost */
        assert_int_equal(qend_send(&a, &net, &s, a.mem, 4000), 0);
        if (i < 3) {
            static struct qp_tx tx[8];
            lose_packets = 0;
            assert_int_equal(qp_engine_tx(a.e, net.now, tx, 8), 4);
            for (int k = 0; k < 4; k++) {
                struct qp_rx rx = {.pkt = tx[k].pkt, .path = qpnet_path(b.node, a.node)};
                rx.pkt.payload = tx[k].iov[0].iov_base;
                if (k != i + (i == 2))
                    qp_engine_rx(b.e, net.now, &rx);
            }
            fx_none(b.rcq);
        }
        fx_run();
    }
    wc = fx_one(b.rcq); /* the receive was kept for the message that came whole */
    assert_int_equal(wc.wr_id, 11);
    assert_int_equal(wc.byte_len, 4000);
    fx_close();
}

static void uc_errors_stop_the_send_queue_only(void **state)
{
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_RTS};
    struct uroce_send_wr s = fx_send(1), bad = fx_send(2);

    (void)state;
    fx_open(&(struct qend_opts){.type = UROCE_QPT_UC});
    bad.sg_list = &(struct uroce_sge){(uintptr_t)a.mem, 10, 3};
    bad.num_sge = 1;
    qend_recv(&b, &net, 1, b.mem, 100);
    qend_recv(&a, &net, 1, a.mem, 100);
    assert_int_equal(qend_send(&a, &net, &s, a.mem, 10), 0);
    assert_int_equal(qend_send(&a, &net, &bad, NULL, 0), 0);
    assert_int_equal(qend_send(&a, &net, &s, a.mem, 10), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_LOC_PROT_ERR);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_WR_FLUSH_ERR);
    assert_int_equal(fx_state(&a), UROCE_QPS_SQE);
    assert_int_equal(qend_send(&b, &net, &s, b.mem, 10), 0);
    fx_run();
    assert_int_equal(fx_one(a.rcq).status, UROCE_WC_SUCCESS); /* it still receives */
    assert_int_equal(qp_modify(a.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
    assert_int_equal(qend_send(&a, &net, &s, a.mem, 10), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    fx_close();
}

/* ---- UD ---- */

static struct uroce_ah ah;
static struct uroce_send_wr ud(uint64_t wr_id, int node, uint32_t qpn, uint32_t qkey)
{
    struct uroce_send_wr wr = fx_send(wr_id);

    ah = (struct uroce_ah){a.pd, qpnet_path(a.node, node)};
    wr.wr.ud.ah = &ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = qkey;
    return wr;
}

static void ud_receives_have_the_network_header_in_front(void **state)
{
    struct uroce_send_wr wr;
    struct uroce_wc wc;

    (void)state;
    fx_open(&(struct qend_opts){.type = UROCE_QPT_UD});
    fx_fill(a.mem, 4096, 1);
    memset(b.mem, 0xee, 5000);
    qend_recv(&b, &net, 7, b.mem, 40 + 4096);
    wr = ud(1, b.node, qp_num(b.qp), 0x1234);
    wr.opcode = UROCE_WR_SEND_WITH_IMM;
    wr.imm_data = 0x77;
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 4096), 0);
    fx_run();
    wc = fx_one(b.rcq);
    assert_int_equal(wc.byte_len, 40 + 4096);
    assert_int_equal(wc.src_qp, qp_num(a.qp));
    assert_int_equal(wc.wc_flags, UROCE_WC_GRH | UROCE_WC_WITH_IMM);
    assert_int_equal(wc.imm_data, 0x77);
    assert_int_equal(wc.sl, 2);
    assert_memory_equal(b.mem + 40, a.mem, 4096);
    assert_int_equal(b.mem[20], 0x45); /* an IPv4 header, from a to b */
    assert_int_equal(b.mem[40 - 5], 1);
    assert_int_equal(b.mem[40 - 1], 2);
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    fx_close();
}

static void ud_drops_what_it_must_not_take(void **state)
{
    struct uroce_counters c;
    struct uroce_send_wr wr;

    (void)state;
    fx_open(&(struct qend_opts){.type = UROCE_QPT_UD});
    wr = ud(1, b.node, qp_num(b.qp), 0x1234);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0); /* no receive */
    fx_run();
    qend_recv(&b, &net, 7, b.mem, 49);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0); /* too long with its 40 bytes */
    wr.wr.ud.remote_qkey = 0x1235;
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 9), 0); /* wrong Q_Key */
    wr.wr.ud.remote_qkey = 0x80000000;                       /* the queue pair's own: right */
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 9), 0);
    fx_run();
    qp_counters(b.qp, &c);
    assert_int_equal(c.drop_no_receive, 1);
    assert_int_equal(c.drop_length, 1);
    assert_int_equal(c.drop_qkey, 1);
    assert_int_equal(fx_one(b.rcq).byte_len, 49);
    fx_none(b.rcq);
    for (int i = 0; i < 4; i++)
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 4097), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_LOC_LEN_ERR);
    fx_close();
}

static void multicast_reaches_every_member_of_the_group(void **state)
{
    union uroce_gid group = qpnet_gid(255);
    struct uroce_send_wr wr;
    struct qp *second;
    struct qend c;

    (void)state;
    fx_open(&(struct qend_opts){.type = UROCE_QPT_UD});
    qend_open(&c, &net, &(struct qend_opts){.type = UROCE_QPT_UD});
    assert_int_equal(qend_connect_to(&c, c.qp, net.now, 0, 0), 0);
    second = qend_qp(&b);
    assert_int_equal(qend_connect_to(&b, second, net.now, 0, 0), 0);
    assert_int_equal(qp_attach_mcast(b.qp, &group), 0);
    assert_int_equal(qp_attach_mcast(b.qp, &group), 0);
    assert_int_equal(qp_attach_mcast(second, &group), 0);
    for (int i = 0; i < 4; i++) {
        struct uroce_sge sge = {(uintptr_t)b.mem, 100, qp_mr_lkey(b.mr)};
        struct uroce_recv_wr rwr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1};
        const struct uroce_recv_wr *bad;
        bool bell;
        qend_recv(&b, &net, 1, b.mem, 100);
        qend_recv(&c, &net, 3, c.mem, 100);
        assert_int_equal(qp_post_recv(second, &rwr, &bad, &bell), 0);
    }
    wr = ud(1, 255, WIRE_QPN_MULTICAST, 0x1234);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
    fx_run();
    assert_int_equal(fx_one(b.rcq).wr_id + fx_one(b.rcq).wr_id, 3);
    fx_none(c.rcq); /* not a member */
    assert_int_equal(qp_attach_mcast(c.qp, &group), 0);
    assert_int_equal(qp_detach_mcast(b.qp, &group), 0);
    assert_int_equal(qp_detach_mcast(b.qp, &group), -EINVAL);
    assert_int_equal(qend_send(&a, &net, &wr, a.mem, 10), 0);
    fx_run();
    assert_int_equal(fx_one(b.rcq).wr_id, 2);
    fx_none(b.rcq);
    assert_int_equal(fx_one(c.rcq).wr_id, 3);
    assert_int_equal(qp_destroy(second), 0); /* leaves its groups */
    qend_close(&c);
    fx_close();
}

static int mads;
static uint8_t mad_got[256];
static void on_mad(void *ctx, const struct qp_path *from, const struct wire_pkt *pkt)
{
    union uroce_gid want = qpnet_gid(0);
    (void)ctx;
    assert_memory_equal(&from->remote, &want, sizeof want);
    assert_int_equal(pkt->payload_len, 256);
    memcpy(mad_got, pkt->payload, 256);
    mads++;
}

static void management_datagrams_go_to_the_device_or_to_its_queue_pair_1(void **state)
{
    struct qp_init init = {.type = UROCE_QPT_UD, .cap = {4, 4, 1, 1, 0}, .qpn = 1};
    struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_INIT, .qkey = WIRE_QKEY_GSI, .port_num = 1};
    struct qp_path to;
    uint8_t mad[256];
    struct qp *qp1;
    int sent;

    (void)state;
    fx_open(NULL);
    mads = 0;
    b.mad = on_mad;
    to = qpnet_path(a.node, b.node);
    fx_fill(mad, sizeof mad, 5);
    assert_int_equal(qp_send_mad(a.e, &to, mad, 255), -EINVAL);
    assert_int_equal(qp_send_mad(a.e, &to, mad, 256), 0);
    fx_run();
    assert_int_equal(mads, 1);
    assert_memory_equal(mad_got, mad, 256);
    for (sent = 0; !qp_send_mad(a.e, &to, mad, 256); sent++) /* bounded */
        assert_in_range(sent, 0, 1000);
    fx_run();
    assert_int_equal(mads, 1 + sent);

    init.pd = b.pd;
    init.send_cq = init.recv_cq = b.rcq;
    assert_int_equal(qp_create(b.e, &init, &qp1), 0);
    assert_int_equal(qp_create(b.e, &init, &qp1), -EADDRINUSE);
    assert_int_equal(
        qp_modify(qp1, 0, &attr, UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT | UROCE_QP_QKEY, NULL), 0);
    attr.qp_state = UROCE_QPS_RTR;
    assert_int_equal(qp_modify(qp1, 0, &attr, UROCE_QP_STATE, NULL), 0);
    {
        struct uroce_sge sge = {(uintptr_t)b.mem, 300, qp_mr_lkey(b.mr)};
        struct uroce_recv_wr rwr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1};
        const struct uroce_recv_wr *bad;
        bool bell;
        assert_int_equal(qp_post_recv(qp1, &rwr, &bad, &bell), 0);
    }
    assert_int_equal(qp_send_mad(a.e, &to, mad, 256), 0);
    fx_run();
    assert_int_equal(mads, 1 + sent);
    assert_memory_equal(b.mem + 40, mad, 256);
    assert_int_equal(fx_one(b.rcq).src_qp, 1);
    assert_int_equal(qp_destroy(qp1), 0);
    fx_close();
}

/* ---- shared receive queues ---- */

static void an_srq_serves_its_queue_pairs_and_tells_its_limit(void **state)
{
    struct uroce_send_wr s = fx_send(1);
    struct qp *first, *second_a, *second_b;

    (void)state;
    fx_open_both(&(struct qend_opts){0}, &(struct qend_opts){.srq = true});
    second_a = qend_qp(&a);
    second_b = qend_qp(&b);
    assert_int_equal(qend_connect_to(&a, second_a, net.now, b.node, qp_num(second_b)), 0);
    assert_int_equal(qend_connect_to(&b, second_b, net.now, a.node, qp_num(second_a)), 0);
    assert_int_equal(qp_srq_modify(b.srq, true, 65, false, 0), -EINVAL);
    assert_int_equal(qp_srq_modify(b.srq, true, 2, false, 0), 0);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(qend_recv(&b, &net, i, b.mem + i * 5000, 5000), 0);
    first = a.qp;
    for (int i = 0; i < 4; i++) {
        a.qp = i % 2 ? second_a : first;
        assert_int_equal(qend_send(&a, &net, &s, a.mem, 3000), 0);
        fx_run();
        assert_int_equal(b.events[UROCE_EVENT_SRQ_LIMIT_REACHED], i >= 2);
    }
    for (uint64_t i = 0; i < 4; i++) {
        struct uroce_wc wc = fx_one(b.rcq);
        assert_int_equal(wc.wr_id, i);
        assert_int_equal(wc.qp_num, qp_num(i % 2 ? second_b : b.qp));
    }
    a.qp = first;
    {
        struct uroce_qp_attr attr = {.qp_state = UROCE_QPS_ERR};
        assert_int_equal(qp_modify(b.qp, net.now, &attr, UROCE_QP_STATE, NULL), 0);
        assert_int_equal(b.events[UROCE_EVENT_QP_LAST_WQE_REACHED], 1);
    }
    assert_int_equal(qp_destroy(second_a), 0);
    assert_int_equal(qp_destroy(second_b), 0);
    fx_close();
}

/* ---- XRC ---- */

static struct qp *ini, *tgt, *ini2, *tgt2;
static struct qp_xrcd *xrcd;
static struct qp_srq *xsrq[2];

static void xrc_state(struct qp *qp, int from, int to, uint32_t dest, bool sender)
{
    struct qp_path path = qpnet_path(from, to);
    struct uroce_qp_attr at = {.qp_state = UROCE_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = 15,
                               .path_mtu = UROCE_MTU_1024,
                               .dest_qp_num = dest,
                               .max_rd_atomic = 2,
                               .max_dest_rd_atomic = 2,
                               .timeout = 10,
                               .retry_cnt = 7,
                               .rnr_retry = 7,
                               .min_rnr_timer = 1};
    unsigned int rtr = UROCE_QP_STATE | UROCE_QP_AV | UROCE_QP_PATH_MTU | UROCE_QP_DEST_QPN | UROCE_QP_RQ_PSN;

    assert_int_equal(
        qp_modify(qp, net.now, &at, UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT | UROCE_QP_ACCESS_FLAGS, NULL),
        0);
    at.qp_state = UROCE_QPS_RTR;
    if (!sender)
        rtr |= UROCE_QP_MAX_DEST_RD_ATOMIC | UROCE_QP_MIN_RNR_TIMER;
    assert_int_equal(qp_modify(qp, net.now, &at, rtr, &path), 0);
    at.qp_state = UROCE_QPS_RTS;
    assert_int_equal(qp_modify(qp, net.now, &at,
                               sender ? UROCE_QP_STATE | UROCE_QP_SQ_PSN | UROCE_QP_TIMEOUT | UROCE_QP_RETRY_CNT |
                                            UROCE_QP_RNR_RETRY | UROCE_QP_MAX_QP_RD_ATOMIC
                                      : UROCE_QP_STATE | UROCE_QP_SQ_PSN | UROCE_QP_TIMEOUT,
                               NULL),
                     0);
}

static void xrc_open(void)
{
    struct qp_init i = {
        .type = UROCE_QPT_XRC_SEND, .pd = a.pd, .send_cq = a.scq, .cap = {16, 0, 2, 0, 0}, .sq_sig_all = true};
    struct qp_init t = {.type = UROCE_QPT_XRC_RECV};

    assert_int_equal(qp_xrcd_new(b.e, &xrcd), 0);
    t.xrcd = xrcd;
    for (int k = 0; k < 2; k++)
        assert_int_equal(qp_srq_new(b.pd, 16, 2, xrcd, b.rcq, &b, &xsrq[k]), 0);
    assert_int_equal(qp_create(a.e, &i, &ini), 0);
    assert_int_equal(qp_create(a.e, &i, &ini2), 0);
    assert_int_equal(qp_create(b.e, &t, &tgt), 0);
    assert_int_equal(qp_create(b.e, &t, &tgt2), 0);
    xrc_state(ini, a.node, b.node, qp_num(tgt), true);
    xrc_state(tgt, b.node, a.node, qp_num(ini), false);
    xrc_state(ini2, a.node, b.node, qp_num(tgt2), true);
    xrc_state(tgt2, b.node, a.node, qp_num(ini2), false);
}

static void xrc_close(void)
{
    assert_int_equal(qp_xrcd_free(xrcd), -EBUSY);
    assert_int_equal(qp_destroy(ini), 0);
    assert_int_equal(qp_destroy(ini2), 0);
    assert_int_equal(qp_srq_free(xsrq[0]), 0);
    assert_int_equal(qp_destroy(tgt), 0);
    assert_int_equal(qp_destroy(tgt2), 0);
    assert_int_equal(qp_srq_free(xsrq[1]), 0);
    assert_int_equal(qp_xrcd_free(xrcd), 0);
}

static void xrc_messages_find_the_srq_that_they_name(void **state)
{
    struct qp *own;

    (void)state;
    fx_open(NULL);
    xrc_open();
    own = a.qp;
    for (int k = 0; k < 2; k++) {
        struct uroce_sge sge = {(uintptr_t)b.mem + k * 10000, 10000, qp_mr_lkey(b.mr)};
        struct uroce_recv_wr rwr = {.wr_id = 100u + (unsigned int)k, .sg_list = &sge, .num_sge = 1};
        const struct uroce_recv_wr *bad;
        struct uroce_send_wr s = fx_send(1);
        struct uroce_wc wc;
        assert_int_equal(qp_post_srq_recv(xsrq[k], &rwr, &bad), 0);
        s.xrc_remote_srqn = qp_srq_num(xsrq[k]);
        a.qp = k ? ini2 : ini;
        fx_fill(a.mem, 5000, (uint64_t)k);
        lose_packets = k;
        assert_int_equal(qend_send(&a, &net, &s, a.mem, 5000), 0);
        fx_run();
        wc = fx_one(b.rcq);
        assert_int_equal(wc.wr_id, 100 + k);
        assert_int_equal(wc.src_qp, qp_srq_num(xsrq[k]));
        assert_int_equal(wc.qp_num, qp_num(k ? tgt2 : tgt));
        assert_memory_equal(b.mem + k * 10000, a.mem, 5000);
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    }
    a.qp = own;
    xrc_close();
    fx_close();
}

static void xrc_reads_writes_and_atomics_use_the_srqs_domain(void **state)
{
    struct uroce_send_wr wr[3];
    struct qp *own;

    (void)state;
    fx_open(NULL);
    xrc_open();
    own = a.qp;
    a.qp = ini;
    wr[0] = fx_rdma(UROCE_WR_RDMA_WRITE, 0, b.mem);
    wr[1] = fx_rdma(UROCE_WR_RDMA_READ, 1, b.mem);
    wr[2] = fx_atomic(UROCE_WR_ATOMIC_FETCH_AND_ADD, 2, b.mem + 8000, 1, 0);
    fx_fill(a.mem, 3000, 3);
    for (int i = 0; i < 3; i++) {
        wr[i].xrc_remote_srqn = qp_srq_num(xsrq[1]);
        assert_int_equal(qend_send(&a, &net, &wr[i], a.mem + i * 4000, i == 2 ? 8 : 3000), 0);
    }
    fx_run();
    for (int i = 0; i < 3; i++)
        assert_int_equal(fx_one(a.scq).status, UROCE_WC_SUCCESS);
    assert_memory_equal(a.mem + 4000, a.mem, 3000);
    assert_int_equal(b.mem[8000], 1);
    wr[0].xrc_remote_srqn = 9999; /* no such SRQ */
    assert_int_equal(qend_send(&a, &net, &wr[0], a.mem, 10), 0);
    fx_run();
    assert_int_equal(fx_one(a.scq).status, UROCE_WC_REM_INV_REQ_ERR);
    a.qp = own;
    xrc_close();
    fx_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uc_sends_and_writes_without_acknowledgement),
        cmocka_unit_test(uc_drops_a_message_with_a_hole_whole),
        cmocka_unit_test(uc_errors_stop_the_send_queue_only),
        cmocka_unit_test(ud_receives_have_the_network_header_in_front),
        cmocka_unit_test(ud_drops_what_it_must_not_take),
        cmocka_unit_test(multicast_reaches_every_member_of_the_group),
        cmocka_unit_test(management_datagrams_go_to_the_device_or_to_its_queue_pair_1),
        cmocka_unit_test(an_srq_serves_its_queue_pairs_and_tells_its_limit),
        cmocka_unit_test(xrc_messages_find_the_srq_that_they_name),
        cmocka_unit_test(xrc_reads_writes_and_atomics_use_the_srqs_domain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * What users of RoCE fight with when they connect: GIDs, path MTU, GRH, inline sizes, locked memory. Linked with the
 * distribution's libibverbs, run with ours; UROCE_DEBUG=1 is in the environment.
 */
#include "base/util.h"
#include "lib/netns.h"
#include "verbs_end.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#define LEN (1u << 20)

static struct netns_pair ns;
static struct vend e;

/* What a call says on standard error. */
static FILE *said;
static int stderr_fd;

static void listen_begin(void)
{
    said = tmpfile();
    assert_non_null(said);
    fflush(stderr);
    stderr_fd = dup(2);
    dup2(fileno(said), 2);
}

static void listen_end(char *ret, size_t size)
{
    fflush(stderr);
    dup2(stderr_fd, 2);
    close(stderr_fd);
    rewind(said);
    size_t n = fread(ret, 1, size - 1, said);
    ret[n] = '\0';
    fclose(said);
}

static void assert_says(const char *text, const char *what)
{
    if (!strstr(text, what))
        fail_msg("'%s' is not in what was said: %s", what, text);
}

static void the_gid_table_has_the_addresses_first_and_empty_entries_as_the_kernel_shows_them(void **state)
{
    (void)state;
    struct ibv_port_attr port;
    struct ibv_gid_entry entry, table[64];
    char text[INET6_ADDRSTRLEN];
    vend_open(&e, NULL, LEN);
    assert_int_equal(ibv_query_port(e.ctx, 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_ACTIVE);
    assert_int_equal(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    ssize_t n = ibv_query_gid_table(e.ctx, table, ARRAY_SIZE(table), 0);
    assert_in_range(n, 4, 5); /* IPv4, IPv6, loopback; a link-local one if it is ready */
    assert_true(n < port.gid_tbl_len);
    for (int i = 0; i < port.gid_tbl_len; i++) {
        union ibv_gid gid, zero = {.raw = {0}};
        int r = ibv_query_gid_ex(e.ctx, 1, (uint32_t)i, &entry, 0);
        assert_int_equal(ibv_query_gid(e.ctx, 1, i, &gid), 0);
        if (i < n) {
            assert_int_equal(r, 0);
            assert_int_equal(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
            assert_int_equal(entry.gid_index, i);
            assert_memory_equal(&entry, &table[i], sizeof entry);
            assert_memory_equal(&entry.gid, &gid, sizeof gid);
        } else {
            assert_int_equal(r, ENODATA);
            assert_memory_equal(&gid, &zero, sizeof gid);
        }
    }
    assert_string_equal(inet_ntop(AF_INET6, table[0].gid.raw, text, sizeof text), "::ffff:10.77.0.1");
    assert_int_equal(table[0].ndev_ifindex, if_nametoindex("va"));
    assert_string_equal(inet_ntop(AF_INET6, table[1].gid.raw, text, sizeof text), "fd77::1");
    assert_string_equal(inet_ntop(AF_INET6, table[n - 1].gid.raw, text, sizeof text), "::1");
    assert_int_equal(table[n - 1].ndev_ifindex, if_nametoindex("lo"));
    assert_int_equal(ibv_query_gid_ex(e.ctx, 1, (uint32_t)port.gid_tbl_len, &entry, 0), EINVAL);
    assert_int_equal(ibv_query_gid_ex(e.ctx, 2, 0, &entry, 0), EINVAL);
    vend_close(&e);
}

static void data_flows_over_every_gid(void **state)
{
    (void)state;
    struct ibv_wc wc[2];
    vend_open(&e, NULL, LEN);
    for (int g = 0; g < 4; g++) {
        struct ibv_qp *a = vend_qp(&e, IBV_QPT_RC, 16, NULL), *b = vend_qp(&e, IBV_QPT_RC, 16, NULL);
        vend_pair(&e, a, &e, b, g, 7);
        vend_fill(&e, (uint64_t)g);
        assert_int_equal(vend_recv(&e, b, LEN / 2, 5000, 1), 0);
        assert_int_equal(vend_send(&e, a, IBV_WR_SEND, 3, 5000, NULL, 2), 0);
        vend_wait(&e, 2, wc);
        assert_int_equal(wc[0].status, IBV_WC_SUCCESS);
        assert_int_equal(wc[1].status, IBV_WC_SUCCESS);
        assert_memory_equal(e.buf + 3, e.buf + LEN / 2, 5000);
        assert_int_equal(ibv_destroy_qp(a), 0);
        assert_int_equal(ibv_destroy_qp(b), 0);
    }
    vend_close(&e);
}

static void a_path_mtu_that_the_link_does_not_carry_is_refused_and_both_are_named(void **state)
{
    (void)state;
    struct ibv_port_attr port;
    char text[2048];
    int mask;
    vend_open(&e, NULL, LEN);
    assert_int_equal(ibv_query_port(e.ctx, 1, &port), 0);
    assert_int_equal(port.active_mtu, IBV_MTU_1024); /* of Ethernet's 1500 */
    struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, 16, NULL);
    struct vaddr to = vend_addr(&e, qp, 0);
    struct ibv_qp_attr a = vend_rtr(&to, 0, IBV_MTU_4096, &mask);
    listen_begin();
    int r = ibv_modify_qp(qp, &a, mask);
    listen_end(text, sizeof text);
    assert_int_equal(r, EINVAL);
    assert_says(text, "4096");
    assert_says(text, "1024");
    assert_says(text, "va (MTU 1500)");
    a.path_mtu = IBV_MTU_2048;
    assert_int_equal(ibv_modify_qp(qp, &a, mask), EINVAL);
    assert_int_equal(qp->state, IBV_QPS_INIT);
    a.path_mtu = IBV_MTU_1024;
    assert_int_equal(ibv_modify_qp(qp, &a, mask), 0);
    assert_int_equal(qp->state, IBV_QPS_RTR);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    vend_close(&e);
}

static void an_address_without_grh_is_refused_and_the_member_is_named(void **state)
{
    (void)state;
    char text[2048];
    int mask;
    vend_open(&e, NULL, LEN);
    struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, 16, NULL);
    struct vaddr to = vend_addr(&e, qp, 0);
    struct ibv_qp_attr a = vend_rtr(&to, 0, IBV_MTU_1024, &mask);
    a.ah_attr.is_global = 0;
    listen_begin();
    int r = ibv_modify_qp(qp, &a, mask);
    struct ibv_ah *ah = ibv_create_ah(e.pd, &a.ah_attr);
    int err = errno;
    listen_end(text, sizeof text);
    assert_int_equal(r, EINVAL);
    assert_null(ah);
    assert_int_equal(err, EINVAL);
    assert_says(text, "modify_qp refused");
    assert_says(text, "create_ah refused");
    assert_says(text, "is_global");
    assert_says(text, "sgid_index");
    /* A peer of the other family. */
    a.ah_attr.is_global = 1;
    a.ah_attr.grh.sgid_index = 1;
    listen_begin();
    r = ibv_modify_qp(qp, &a, mask);
    listen_end(text, sizeof text);
    assert_int_equal(r, EINVAL);
    assert_says(text, "fd77::1");
    assert_says(text, "10.77.0.1");
    assert_int_equal(ibv_destroy_qp(qp), 0);
    vend_close(&e);
}

static void capabilities_are_told_back_or_refused(void **state)
{
    (void)state;
    char text[2048];
    vend_open(&e, NULL, LEN);
    struct ibv_qp_init_attr init = {.send_cq = e.cq, .recv_cq = e.cq, .qp_type = IBV_QPT_RC, .cap = {10, 10, 1, 1, 16}};
    struct ibv_qp *qp = ibv_create_qp(e.pd, &init);
    struct ibv_qp_init_attr got;
    struct ibv_qp_attr a;
    assert_non_null(qp);
    assert_true(init.cap.max_inline_data >= 16 && init.cap.max_send_wr >= 10 && init.cap.max_recv_wr >= 10);
    assert_int_equal(ibv_query_qp(qp, &a, IBV_QP_CAP, &got), 0);
    assert_memory_equal(&got.cap, &init.cap, sizeof got.cap);
    assert_memory_equal(&a.cap, &init.cap, sizeof a.cap);
    assert_int_equal(a.qp_state, IBV_QPS_RESET);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    init.cap.max_inline_data = 220;
    qp = ibv_create_qp(e.pd, &init);
    assert_non_null(qp);
    assert_true(init.cap.max_inline_data >= 220);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    init.cap.max_inline_data = 4096;
    listen_begin();
    qp = ibv_create_qp(e.pd, &init);
    int err = errno;
    listen_end(text, sizeof text);
    assert_null(qp);
    assert_int_equal(err, EINVAL);
    assert_says(text, "4096 bytes inline (256)");
    vend_close(&e);
}

static void limits_of_locked_memory_do_not_matter(void **state)
{
    (void)state;
    struct rlimit none = {0, 0};
    struct ibv_wc wc[2];
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    vend_open(&e, NULL, 256u << 20);
    struct ibv_qp *a = vend_qp(&e, IBV_QPT_RC, 16, NULL), *b = vend_qp(&e, IBV_QPT_RC, 16, NULL);
    vend_pair(&e, a, &e, b, 0, 7);
    struct vaddr to = vend_addr(&e, b, 0);
    to.addr += 128u << 20;
    e.buf[5] = 42;
    assert_int_equal(vend_send(&e, a, IBV_WR_RDMA_WRITE, 5, 1, &to, 1), 0);
    vend_wait(&e, 1, wc);
    assert_int_equal(wc[0].status, IBV_WC_SUCCESS);
    assert_int_equal(e.buf[5 + (128u << 20)], 42);
    assert_int_equal(ibv_destroy_qp(a), 0);
    assert_int_equal(ibv_destroy_qp(b), 0);
    vend_close(&e);
}

static void memory_that_is_not_mapped_is_not_registered(void **state)
{
    (void)state;
    vend_open(&e, NULL, LEN);
    errno = 0;
    assert_null(ibv_reg_mr(e.pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(errno, EFAULT);
    assert_null(ibv_reg_mr(e.pd, e.buf + LEN - 10, SIZE_MAX - 100, IBV_ACCESS_LOCAL_WRITE));
    assert_null(ibv_reg_mr(e.pd, e.buf, LEN, IBV_ACCESS_REMOTE_WRITE)); /* needs LOCAL_WRITE */
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_dmabuf_mr(e.pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(errno, EOPNOTSUPP);
    vend_close(&e);
}

/* ---- what is not there ---- */

static void no_entry_of_a_contexts_tables_is_null(void **state)
{
    (void)state;
    vend_open(&e, NULL, LEN);
    struct verbs_context *v = verbs_get_ctx(e.ctx);
    assert_non_null(v);
    assert_int_equal(v->sz, sizeof *v);
    const char *from = (const char *)v, *to = (const char *)&v->_ABI_placeholder3;
    for (const char *p = from; p < to; p += sizeof(void *)) {
        void *entry;
        memcpy(&entry, p, sizeof entry);
        if (p != (const char *)&v->priv && !entry)
            fail_msg("the entry at %td is NULL", p - from);
    }
    from = (const char *)&e.ctx->ops;
    for (size_t i = 0; i < sizeof e.ctx->ops; i += sizeof(void *)) {
        void *entry;
        memcpy(&entry, from + i, sizeof entry);
        if (!entry)
            fail_msg("the entry of ops at %zu is NULL", i);
    }
    vend_close(&e);
}

#define assert_not_there(call)                                                                                         \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        assert_null(call);                                                                                             \
        assert_int_equal(errno, EOPNOTSUPP);                                                                           \
    } while (0)

static void what_is_not_there_is_not_supported(void **state)
{
    (void)state;
    struct ibv_flow_attr flow = {0};
    struct ibv_wq_init_attr wq = {0};
    struct ibv_counters_init_attr counters = {0};
    struct ibv_rwq_ind_table_init_attr table = {0};
    struct ibv_qp_open_attr open = {0};
    struct ibv_modify_cq_attr moderate = {.attr_mask = IBV_CQ_ATTR_MODERATE};
    struct ibv_ece ece = {.vendor_id = 1};
    vend_open(&e, NULL, LEN);
    struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, 8, NULL);
    struct ibv_qp_init_attr raw = {
        .send_cq = e.cq, .recv_cq = e.cq, .qp_type = IBV_QPT_RAW_PACKET, .cap = {1, 1, 1, 1, 0}};
    assert_not_there(ibv_create_flow(qp, &flow));
    assert_not_there(ibv_create_wq(e.ctx, &wq));
    assert_not_there(ibv_create_counters(e.ctx, &counters));
    assert_not_there(ibv_create_rwq_ind_table(e.ctx, &table));
    assert_not_there(ibv_create_flow_action_esp(e.ctx, NULL));
    assert_not_there(ibv_open_qp(e.ctx, &open));
    assert_not_there(ibv_alloc_null_mr(e.pd));
    assert_not_there(ibv_create_qp(e.pd, &raw));
    assert_int_equal(ibv_modify_cq(e.cq, &moderate), EOPNOTSUPP);
    assert_int_equal(ibv_set_ece(qp, &ece), EOPNOTSUPP);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    vend_close(&e);
}

static void the_mac_behind_a_gid_is_told_if_it_is_known(void **state)
{
    (void)state;
    static const struct {
        const char *gid;
        uint8_t mac[6];
    } known[] = {
        {"::ffff:239.129.2.3", {0x01, 0x00, 0x5e, 0x01, 0x02, 0x03}},
        {"ff05::1:2", {0x33, 0x33, 0x00, 0x01, 0x00, 0x02}},
        {"fe80::211:22ff:fe33:4455", {0x00, 0x11, 0x22, 0x33, 0x44, 0x55}},
    };
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
    uint8_t mac[6];
    uint16_t vid;
    vend_open(&e, NULL, LEN);
    for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
        assert_int_equal(inet_pton(AF_INET6, known[i].gid, attr.grh.dgid.raw), 1);
        assert_int_equal(ibv_resolve_eth_l2_from_gid(e.ctx, &attr, mac, &vid), 0);
        assert_memory_equal(mac, known[i].mac, sizeof mac);
        assert_int_equal(vid, 0xffff);
    }
    assert_int_equal(inet_pton(AF_INET6, "::ffff:10.77.0.99", attr.grh.dgid.raw), 1);
    assert_int_equal(ibv_resolve_eth_l2_from_gid(e.ctx, &attr, mac, &vid), -1);
    assert_int_equal(errno, EHOSTUNREACH);
    vend_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gid_table_has_the_addresses_first_and_empty_entries_as_the_kernel_shows_them),
        cmocka_unit_test(data_flows_over_every_gid),
        cmocka_unit_test(a_path_mtu_that_the_link_does_not_carry_is_refused_and_both_are_named),
        cmocka_unit_test(an_address_without_grh_is_refused_and_the_member_is_named),
        cmocka_unit_test(capabilities_are_told_back_or_refused),
        cmocka_unit_test(limits_of_locked_memory_do_not_matter),
        cmocka_unit_test(memory_that_is_not_mapped_is_not_registered),
        cmocka_unit_test(no_entry_of_a_contexts_tables_is_null),
        cmocka_unit_test(what_is_not_there_is_not_supported),
        cmocka_unit_test(the_mac_behind_a_gid_is_told_if_it_is_known),
    };
    netns_pair_make(&ns, 1500);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

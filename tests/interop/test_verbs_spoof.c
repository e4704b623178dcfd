/*
 * Packets as a queue pair's peer would send them, by somebody else: of another address, or of a number of the sequence
 * or a key that are not right. Linked with the distribution's libibverbs, run with ours.
 */
#include "base/rng.h"
#include "base/util.h"
#include "lib/netns.h"
#include "roce/wire_op.h"
#include "verbs_end.h"
#include "../wire/roce_frames.h"

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LEN    (64u << 10)
#define TARGET 4096u /* where spoofed WRITEs go in the buffer */
#define BYTES  256u

static struct netns_pair ns;
static struct vend e;
static struct ibv_qp *a, *b;
static uint32_t sent; /* packets of a */

static union uroce_gid gid_of(const char *ipv4)
{
    union uroce_gid g = {.raw = {[10] = 0xff, [11] = 0xff}};
    assert_int_equal(inet_pton(AF_INET, ipv4, g.raw + 12), 1);
    return g;
}

/* A WRITE for b, from that address, with that distance from the number that b waits for. */
static void spoof(const char *from, int psn, uint32_t rkey, uint32_t dest_qp)
{
    static const uint8_t evil[BYTES] = {[0 ... BYTES - 1] = 0xee};
    uint8_t bytes[WIRE_PKT_MAX];
    struct sockaddr_in at = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(4791)};
    union uroce_gid src = gid_of(from), dst = gid_of("10.77.0.1");
    socklen_t len = sizeof at;
    struct wire_flow flow;
    memcpy(&at.sin_addr, src.raw + 12, 4);
    memcpy(&to.sin_addr, dst.raw + 12, 4);
    netns_enter(&ns, strcmp(from, "10.77.0.1") != 0);
    cleanup_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    netns_enter(&ns, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    wire_flow_init(&flow, &src, &dst, ntohs(at.sin_port), 4791);
    struct wire_pkt p = {.opcode = WIRE_RC_WRITE_ONLY,
                         .migreq = true,
                         .ackreq = true,
                         .pkey = 0xffff,
                         .dest_qp = dest_qp,
                         .psn = psn_make(vend_addr(&e, a, 0).psn + sent + (uint32_t)psn),
                         .va = (uintptr_t)e.buf + TARGET,
                         .rkey = rkey,
                         .dma_len = BYTES,
                         .payload_len = BYTES,
                         .payload = evil};
    uint32_t n = roce_build(&p, &flow, 0, bytes);
    assert_int_equal(sendto(fd, bytes, n, 0, (struct sockaddr *)&to, sizeof to), n);
}

/* What came before it has been looked at when it is there. */
static void message(uint64_t seed)
{
    vend_message(&e, a, b, seed);
    sent++;
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    assert_int_equal(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
}

static int begin(void **state)
{
    (void)state;
    sent = 0;
    vend_open(&e, NULL, LEN);
    a = vend_qp(&e, IBV_QPT_RC, 16, NULL);
    b = vend_qp(&e, IBV_QPT_RC, 16, NULL);
    vend_pair(&e, a, &e, b, 0, 7);
    memset(e.buf, 0x11, LEN);
    message(1);
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_int_equal(ibv_destroy_qp(a), 0);
    assert_int_equal(ibv_destroy_qp(b), 0);
    vend_close(&e);
    return 0;
}

static void nothing_has_changed(uint8_t before)
{
    for (uint32_t i = 0; i < BYTES; i++)
        assert_int_equal(e.buf[TARGET + i], before);
    vend_quiet(&e);
    assert_int_equal(state_of(a), IBV_QPS_RTS);
    assert_int_equal(state_of(b), IBV_QPS_RTS);
}

static void another_address_cannot_speak_for_the_peer(void **state)
{
    (void)state;
    uint32_t rkey = e.mr->rkey;
    for (int i = 0; i < 20; i++) {
        spoof("10.77.0.2", 0, rkey, b->qp_num); /* all is right, but who sends it */
        spoof("10.77.0.2", i, rkey + (uint32_t)i, b->qp_num);
        message((uint64_t)i + 10);
        nothing_has_changed(0x11);
    }
}

static void a_number_out_of_the_window_moves_nothing(void **state)
{
    (void)state;
    static const int far[] = {-1, -2, -1000, -0x300000, 0x100000, 0x300000, 0x7fffff};
    for (size_t i = 0; i < ARRAY_SIZE(far); i++) {
        spoof("10.77.0.1", far[i], e.mr->rkey, b->qp_num);
        message(i + 10);
        nothing_has_changed(0x11);
    }
}

static void a_queue_pair_that_is_not_there_takes_nothing(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        spoof("10.77.0.1", 0, e.mr->rkey, (b->qp_num + 2 + i) & 0xffffff);
        message(i + 10);
        nothing_has_changed(0x11);
    }
}

/* Who is at the peer's address and knows the number can end the connection, as by an adapter; but not reach memory. */
static void a_wrong_key_reaches_no_memory(void **state)
{
    (void)state;
    struct ibv_mr *gone = ibv_reg_mr(e.pd, e.buf + TARGET, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    assert_non_null(gone);
    uint32_t old = gone->rkey;
    assert_int_equal(ibv_dereg_mr(gone), 0);
    spoof("10.77.0.1", 0, old, b->qp_num);
    for (int i = 0; i < 10000 && state_of(b) != IBV_QPS_ERR; i++)
        poll(NULL, 0, 1);
    assert_int_equal(state_of(b), IBV_QPS_ERR);
    for (uint32_t i = 0; i < BYTES; i++)
        assert_int_equal(e.buf[TARGET + i], 0x11);
}

/* Else the others would show nothing. */
static void the_same_packet_with_all_right_is_taken(void **state)
{
    (void)state;
    spoof("10.77.0.1", 0, e.mr->rkey, b->qp_num);
    volatile uint8_t *last = e.buf + TARGET + BYTES - 1;
    for (int i = 0; i < 10000 && *last != 0xee; i++)
        poll(NULL, 0, 1);
    assert_int_equal(*last, 0xee);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        T(another_address_cannot_speak_for_the_peer),
        T(a_number_out_of_the_window_moves_nothing),
        T(a_queue_pair_that_is_not_there_takes_nothing),
        T(a_wrong_key_reaches_no_memory),
        T(the_same_packet_with_all_right_is_taken),
    };
    setenv("UROCE_SHM", "0", 1);
    netns_pair_make(&ns, 1500);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

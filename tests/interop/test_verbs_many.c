/*
 * Many queue pairs, at once and one after the other; links that go down; garbage on the port. Linked with the
 * distribution's libibverbs, run with ours. PENSTOCK_EXTENDED=1: the large counts.
 */
#include "base/rng.h"
#include "base/util.h"
#include "lib/netns.h"
#include "verbs_end.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "lib/own_use.h"
#include "../lib/seed.h"

#define LEN       (1u << 20)
#define DEPTH     16
#define ROCE_PORT 4791

static struct netns_pair ns;
static struct vend e;

static void hundreds_of_connections_at_once_take_little_memory_each(void **state)
{
    (void)state;
    enum { PAIRS = 500 };
    static struct ibv_qp *a[PAIRS], *b[PAIRS];
    vend_open(&e, NULL, LEN);
    long before = resident_kib();
    for (int i = 0; i < PAIRS; i++) {
        a[i] = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
        b[i] = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
        vend_pair(&e, a[i], &e, b[i], 0, 7);
        vend_message(&e, a[i], b[i], (uint64_t)i);
    }
    long each = (resident_kib() - before) / (2 * PAIRS);
    printf("%d queue pairs: %ld KiB each\n", 2 * PAIRS, each);
#ifndef __SANITIZE_ADDRESS__
    assert_true(each < 64);
#endif
    for (int i = PAIRS; i-- > 0;)
        vend_message(&e, b[i], a[i], (uint64_t)i + 1000);
    for (int i = 0; i < PAIRS; i++) {
        assert_int_equal(ibv_destroy_qp(a[i]), 0);
        assert_int_equal(ibv_destroy_qp(b[i]), 0);
    }
    vend_close(&e);
}

static void thousands_of_connections_one_after_the_other_leave_nothing_behind(void **state)
{
    (void)state;
    int rounds = getenv("PENSTOCK_EXTENDED") ? 3000 : 600, open_fds = 0;
    long before = 0;
    vend_open(&e, NULL, LEN);
    for (int i = 0; i < rounds; i++) {
        struct ibv_qp *a = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL), *b = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
        vend_pair(&e, a, &e, b, 0, 7);
        vend_message(&e, a, b, (uint64_t)i);
        assert_int_equal(ibv_destroy_qp(a), 0);
        assert_int_equal(ibv_destroy_qp(b), 0);
        if (i == rounds / 3) { /* by then all that is kept for later is there */
            malloc_trim(0);
            before = resident_kib();
            open_fds = descriptors();
        }
    }
    malloc_trim(0);
    long grown = resident_kib() - before;
    printf("%d connections: %ld KiB more\n", rounds, grown);
    assert_int_equal(descriptors(), open_fds);
#ifndef __SANITIZE_ADDRESS__
    assert_true(grown < 2048);
#endif
    vend_close(&e);
}

/* ---- links that go down ---- */

/* A process in the other namespace whose memory is written to. */
static pid_t start_target(int *ret_in, int *ret_out)
{
    pid_t pid = vend_fork(ret_in, ret_out);
    if (pid)
        return pid;
    int in = *ret_in, out = *ret_out;
    netns_enter(&ns, 1);
    vend_open(&e, NULL, LEN);
    struct vaddr theirs;
    /* A connection for each address that comes; a byte for each: the memory's first byte. */
    while (read(in, &theirs, sizeof theirs) == sizeof theirs) {
        struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
        struct vaddr ours = vend_addr(&e, qp, 0);
        vend_connect(qp, &theirs, 0, IBV_MTU_1024, 7);
        if (write(out, &ours, sizeof ours) != sizeof ours)
            break;
    }
    _exit(0);
}

static struct ibv_qp *connect_target(int in, int out, struct vaddr *ret)
{
    struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    struct vaddr ours = vend_addr(&e, qp, 0);
    assert_int_equal(write(out, &ours, sizeof ours), sizeof ours);
    assert_int_equal(read(in, ret, sizeof *ret), sizeof *ret);
    vend_connect(qp, ret, 0, IBV_MTU_1024, 7);
    return qp;
}

/* Writes and reads back: the target's memory is what was written. */
static void write_and_compare(struct ibv_qp *qp, const struct vaddr *to, uint64_t seed)
{
    struct ibv_wc wc;
    vend_fill(&e, seed);
    cleanup_free uint8_t *sent = malloc(LEN);
    memcpy(sent, e.buf, LEN);
    assert_int_equal(vend_send(&e, qp, IBV_WR_RDMA_WRITE, 0, LEN, to, 1), 0);
    vend_wait(&e, 1, &wc);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    memset(e.buf, 0, LEN);
    assert_int_equal(vend_send(&e, qp, IBV_WR_RDMA_READ, 0, LEN, to, 2), 0);
    vend_wait(&e, 1, &wc);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_memory_equal(e.buf, sent, LEN);
}

static void a_link_that_is_down_is_survived_within_the_retries_and_is_a_clean_error_beyond_them(void **state)
{
    (void)state;
    struct vaddr to;
    struct ibv_wc wc;
    int in, out, status;
    pid_t pid = start_target(&in, &out);
    vend_open(&e, NULL, LEN);
    vend_timeout = 18; /* a second, eight times */
    struct ibv_qp *patient = connect_target(in, out, &to);
    write_and_compare(patient, &to, 1);
    netns_sh(&ns, 0, "ip link set va down; (sleep 0.3; ip link set va up) &");
    write_and_compare(patient, &to, 2);
    vend_timeout = 12;
    struct ibv_qp *qp = connect_target(in, out, &to);
    write_and_compare(qp, &to, 3);
    netns_sh(&ns, 0, "ip link set va down");
    for (uint64_t i = 0; i < DEPTH; i++)
        assert_int_equal(vend_send(&e, qp, IBV_WR_RDMA_WRITE, 0, 64, &to, 10 + i), 0);
    for (uint64_t i = 0; i < DEPTH; i++) {
        vend_wait(&e, 1, &wc);
        assert_int_equal(wc.wr_id, 10 + i);
        assert_int_equal(wc.status, i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR);
    }
    vend_quiet(&e);
    netns_sh(&ns, 0, "ip link set va up; until ip link show dev va | grep -q 'state UP'; do sleep 0.01; done");
    struct ibv_qp *next = connect_target(in, out, &to);
    write_and_compare(next, &to, 4);
    assert_int_equal(ibv_destroy_qp(patient), 0);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    assert_int_equal(ibv_destroy_qp(next), 0);
    vend_close(&e);
    close(out);
    close(in);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- strangers ---- */

/* Bytes at random; of every other datagram the first are a header for a queue pair that is there. */
static void throw_garbage(int fd, const struct sockaddr_in *to, struct rng *r, uint32_t qpn)
{
    uint8_t bytes[1400];
    size_t n = rng_below(r, sizeof bytes);
    rng_fill(r, bytes, n);
    if (n > 12 && rng_below(r, 2)) {
        bytes[0] = (uint8_t)rng_below(r, 0x18); /* operations of RC */
        bytes[1] = 0x40;
        bytes[2] = bytes[3] = 0xff; /* the default P_Key */
        bytes[4] = 0;
        bytes[5] = (uint8_t)(qpn >> 16);
        bytes[6] = (uint8_t)(qpn >> 8);
        bytes[7] = (uint8_t)qpn;
    }
    assert_true(sendto(fd, bytes, n, 0, (const struct sockaddr *)to, sizeof *to) >= 0);
}

static void garbage_on_the_port_changes_nothing(void **state)
{
    (void)state;
    struct rng r;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(ROCE_PORT)};
    cleanup_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    rng_seed(&r, seed_new());
    inet_pton(AF_INET, "10.77.0.1", &to.sin_addr);
    vend_open(&e, NULL, LEN);
    struct ibv_qp *a = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL), *b = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    vend_pair(&e, a, &e, b, 0, 7);
    for (uint64_t i = 0; i < 200; i++) {
        for (int j = 0; j < 10; j++)
            throw_garbage(fd, &to, &r, j % 2 ? a->qp_num : b->qp_num);
        vend_message(&e, i % 2 ? a : b, i % 2 ? b : a, rng_u64(&r));
    }
    vend_quiet(&e);
    assert_int_equal(ibv_destroy_qp(a), 0);
    assert_int_equal(ibv_destroy_qp(b), 0);
    vend_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hundreds_of_connections_at_once_take_little_memory_each),
        cmocka_unit_test(thousands_of_connections_one_after_the_other_leave_nothing_behind),
        cmocka_unit_test(a_link_that_is_down_is_survived_within_the_retries_and_is_a_clean_error_beyond_them),
        cmocka_unit_test(garbage_on_the_port_changes_nothing),
    };
    setenv("UROCE_SHM", "0", 1); /* the peer on this machine is reached by the link alone */
    netns_pair_make(&ns, 1500);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * A program that polls and answers at once has its acknowledgements wait for its answers (acks.c). However it goes on
 * after the last message, its peer learns that this arrived.
 */
#include "base/util.h"
#include "lib/netns.h"
#include "uroce_node.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#define ROUNDS 200u

enum ending { EXITS, DESTROYS, TO_ERROR, COMPUTES, POLLS };

static struct netns_pair ns;
static struct node n;
static bool in_child, by_shm;

struct ticket {
    uint32_t qpn, rkey;
    uint64_t addr;
};

static struct uroce_qp *connect_end(int i, int sock, struct ticket *peer)
{
    struct uroce_config c = {.addresses = i ? "10.77.0.2" : "10.77.0.1", .no_shm = !by_shm};
    netns_enter(&ns, i);
    node_open(&n, &c, 4096);
    struct uroce_qp *qp = node_qp(&n, UROCE_QPT_RC, 64);
    struct ticket t = {uroce_qp_num(qp), uroce_mr_rkey(n.mr), (uintptr_t)n.buf};
    assert_int_equal(send(sock, &t, sizeof t, 0), sizeof t);
    assert_int_equal(recv(sock, peer, sizeof *peer, MSG_WAITALL), sizeof *peer);
    node_connect_to(qp, peer->qpn, i ? "10.77.0.1" : "10.77.0.2", UROCE_MTU_1024);
    char ready = 1;
    assert_int_equal(send(sock, &ready, 1, 0), 1);
    assert_int_equal(recv(sock, &ready, 1, 0), 1);
    return qp;
}

/* The number that the peer writes here, as a program watches what an adapter writes: that is seen by no sanitizer. */
__attribute__((no_sanitize("thread"))) static void await(uint64_t count)
{
    _Atomic uint64_t *at = (_Atomic uint64_t *)(void *)(n.buf + 64);
    uint64_t end = now_ns() + 20 * NSEC_PER_SEC;
    while (atomic_load(at) < count && now_ns() < end)
        uroce_poll_cq(n.cq, 0, &(struct uroce_wc){0});
    assert_true(atomic_load(at) >= count);
}

/* Each from a place of its own, of as many as the queue is deep: an earlier one may be on its way. */
static void tell(struct uroce_qp *qp, uint64_t count, const struct ticket *peer)
{
    struct uroce_sge sge = {(uintptr_t)(n.buf + 128 + count % 64 * 8), sizeof count, uroce_mr_lkey(n.mr)};
    struct uroce_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = UROCE_WR_RDMA_WRITE};
    const struct uroce_send_wr *bad;
    wr.wr.rdma.remote_addr = peer->addr + 64;
    wr.wr.rdma.rkey = peer->rkey;
    memcpy(n.buf + 128 + count % 64 * 8, &count, sizeof count);
    assert_int_equal(uroce_post_send(qp, &wr, &bad), 0);
}

static void drain(void)
{
    struct uroce_wc wc[16];
    int k = uroce_poll_cq(n.cq, 16, wc);
    for (int i = 0; i < k; i++)
        assert_int_equal(wc[i].status, UROCE_WC_SUCCESS);
}

static void answer_and_end(int sock, enum ending how)
{
    struct ticket peer;
    struct uroce_qp *qp = connect_end(1, sock, &peer);
    for (uint64_t i = 1; i < ROUNDS; i++) {
        await(i);
        tell(qp, i, &peer);
        if (i % 16 == 0)
            drain();
    }
    await(ROUNDS);
    struct uroce_qp_attr error = {.qp_state = UROCE_QPS_ERR};
    switch (how) {
    case EXITS:
        exit(0);
    case DESTROYS:
        assert_int_equal(uroce_qp_destroy(qp), 0);
        _exit(0);
    case TO_ERROR:
        assert_int_equal(uroce_qp_modify(qp, &error, UROCE_QP_STATE), 0);
        _exit(0);
    case COMPUTES:
        poll(NULL, 0, 3000);
        _exit(0);
    case POLLS:
        for (uint64_t end = now_ns() + NSEC_PER_SEC; now_ns() < end;)
            uroce_poll_cq(n.cq, 0, &(struct uroce_wc){0});
        _exit(0);
    }
}

static void the_last_message_is_acknowledged(enum ending how)
{
    int s[2], status;
    struct ticket peer;
    struct uroce_wc wc[64];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        in_child = true;
        close(s[0]);
        answer_and_end(s[1], how);
    }
    close(s[1]);
    struct uroce_qp *qp = connect_end(0, s[0], &peer);
    uint32_t done = 0;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        tell(qp, i, &peer);
        if (i < ROUNDS)
            await(i);
        while (done + 32 < i) {
            node_wait(&n, NULL, 1, wc);
            assert_int_equal(wc[0].status, UROCE_WC_SUCCESS);
            done++;
        }
    }
    for (; done < ROUNDS; done++) {
        node_wait(&n, NULL, 1, wc);
        assert_int_equal(wc[0].status, UROCE_WC_SUCCESS);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(uroce_qp_destroy(qp), 0);
    node_close(&n);
    close(s[0]);
}

static void a_program_that_exits(void **state)
{
    (void)state;
    the_last_message_is_acknowledged(EXITS);
}

static void a_program_that_exits_over_shared_memory(void **state)
{
    (void)state;
    by_shm = true;
    the_last_message_is_acknowledged(EXITS);
    by_shm = false;
}

static void a_program_that_destroys_its_queue_pair(void **state)
{
    (void)state;
    the_last_message_is_acknowledged(DESTROYS);
}

static void a_program_that_gives_its_queue_pair_up(void **state)
{
    (void)state;
    the_last_message_is_acknowledged(TO_ERROR);
}

static void a_program_that_computes(void **state)
{
    (void)state;
    the_last_message_is_acknowledged(COMPUTES);
}

static void a_program_that_polls_on(void **state)
{
    (void)state;
    the_last_message_is_acknowledged(POLLS);
}

/* A check that fails in the child brings it here: it is not to run the other tests too. */
static int end_of_child(void **state)
{
    (void)state;
    if (in_child)
        _exit(1);
    return 0;
}

int main(void)
{
    netns_pair_make(&ns, 1500);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_program_that_exits, end_of_child),
        cmocka_unit_test_teardown(a_program_that_exits_over_shared_memory, end_of_child),
        cmocka_unit_test_teardown(a_program_that_destroys_its_queue_pair, end_of_child),
        cmocka_unit_test_teardown(a_program_that_gives_its_queue_pair_up, end_of_child),
        cmocka_unit_test_teardown(a_program_that_computes, end_of_child),
        cmocka_unit_test_teardown(a_program_that_polls_on, end_of_child),
    };
    return cmocka_run_group_tests_name("the last message is acknowledged to the peer of", tests, NULL, NULL);
}

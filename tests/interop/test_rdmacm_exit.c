/*
 * A program exits in a signal handler, which may have interrupted it in any call of the verbs interface, with whatever
 * locks that holds: it ends, and its peer is told of the disconnect. (libinfinipath, which libfabric loads, exits so at
 * SIGTERM.) Linked with the distribution's libraries, run with ours.
 */
#include "base/rng.h"
#include "base/util.h"
#include "lib/netns.h"
#include "../lib/seed.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PORT   7175
#define LEN    65536u
#define DEPTH  16u
#define STATUS 7
#define WAIT_S 30

struct target {
    uint64_t addr;
    uint32_t rkey;
} __attribute__((packed));

static struct netns_pair ns;
static struct rng rng;
static unsigned rounds = 50;

static void on_term(int sig)
{
    (void)sig;
    exit(STATUS);
}

/* ---- the program that exits ---- */

static struct rdma_cm_id *child_connect(struct target *ret)
{
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *to;
    struct ibv_qp_init_attr a = {
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}, .qp_type = IBV_QPT_RC};
    struct rdma_conn_param p = {.retry_count = 7, .rnr_retry_count = 7};
    struct rdma_cm_id *id;
    char port[8];
    snprintf(port, sizeof port, "%u", PORT);
    if (rdma_getaddrinfo((char *)(uintptr_t) "10.77.0.1", port, &hints, &to) || rdma_create_ep(&id, to, NULL, &a) ||
        rdma_connect(id, &p))
        _exit(1);
    rdma_freeaddrinfo(to);
    memcpy(ret, id->event->param.conn.private_data, sizeof *ret);
    return id;
}

/* Of each kind of call: posts and polls, and calls that wait for the device's lock. */
static void child(void)
{
    static char buf[LEN];
    struct target t;
    struct ibv_wc wc;
    sigset_t term;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    netns_enter(&ns, 1);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL); /* the peer may be told of the connection before we are */
    signal(SIGTERM, on_term);
    struct rdma_cm_id *id = child_connect(&t);
    struct ibv_mr *mr = rdma_reg_msgs(id, buf, sizeof buf);
    sigprocmask(SIG_UNBLOCK, &term, NULL);
    for (uint64_t posted = 0, done = 0;; posted++) {
        if (rdma_post_write(id, NULL, buf, LEN, mr, IBV_SEND_SIGNALED, t.addr, t.rkey))
            _exit(2);
        struct ibv_mr *more = posted % 4 ? NULL : ibv_reg_mr(id->pd, buf, LEN, IBV_ACCESS_LOCAL_WRITE);
        while (posted + 1 - done >= DEPTH)
            if (ibv_poll_cq(id->send_cq, 1, &wc) == 1)
                done++;
        if (more)
            ibv_dereg_mr(more);
    }
}

/* ---- its peer ---- */

static struct rdma_event_channel *ch;
static struct rdma_cm_id *listener;
static struct target mine;

static int setup(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    (void)state;
    assert_int_equal(inet_pton(AF_INET, "10.77.0.1", &a.sin_addr), 1);
    ch = rdma_create_event_channel();
    assert_non_null(ch);
    assert_int_equal(rdma_create_id(ch, &listener, NULL, RDMA_PS_TCP), 0);
    assert_int_equal(rdma_bind_addr(listener, (struct sockaddr *)&a), 0);
    assert_int_equal(rdma_listen(listener, 0), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(rdma_destroy_id(listener), 0);
    rdma_destroy_event_channel(ch);
    return 0;
}

static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
    struct pollfd p = {.fd = ch->fd, .events = POLLIN};
    struct rdma_cm_event *e;
    struct rdma_cm_id *id;
    do {
        if (poll(&p, 1, WAIT_S * 1000) != 1)
            fail_msg("no %s", rdma_event_str(type));
        assert_int_equal(rdma_get_cm_event(ch, &e), 0);
        id = e->event == RDMA_CM_EVENT_TIMEWAIT_EXIT ? NULL : e->id;
        if (id)
            assert_string_equal(rdma_event_str(e->event), rdma_event_str(type));
        rdma_ack_cm_event(e);
    } while (!id);
    return id;
}

static struct rdma_cm_id *accept_one(void)
{
    struct ibv_qp_init_attr a = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}, .qp_type = IBV_QPT_RC};
    struct rdma_conn_param p = {.private_data = &mine, .private_data_len = sizeof mine};
    struct rdma_cm_id *id = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_int_equal(rdma_create_qp(id, NULL, &a), 0);
    assert_int_equal(rdma_accept(id, &p), 0);
    expect(RDMA_CM_EVENT_ESTABLISHED);
    return id;
}

/* Ended by itself; one that hangs is killed, and the test fails. */
static int end_of(pid_t pid)
{
    int status;
    for (int i = 0; i < WAIT_S * 1000; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        usleep(1000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    fail_msg("a program that exits in a signal handler hangs");
    return 0;
}

static void a_program_that_exits_in_a_signal_handler_ends_and_its_peer_is_told(void **state)
{
    (void)state;
    static char buf[LEN];
    struct ibv_mr *mr = NULL;
    for (unsigned i = 0; i < rounds; i++) {
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            child();
        if (!mr) { /* the devices are opened for the first id that has one */
            mr = rdma_reg_write(listener, buf, sizeof buf);
            assert_non_null(mr);
            mine = (struct target){(uintptr_t)buf, mr->rkey};
        }
        struct rdma_cm_id *id = accept_one();
        usleep((unsigned)(rng_below(&rng, 5000)));
        assert_int_equal(kill(pid, SIGTERM), 0);
        assert_int_equal(end_of(pid), STATUS);
        assert_ptr_equal(expect(RDMA_CM_EVENT_DISCONNECTED), id);
        rdma_destroy_qp(id);
        assert_int_equal(rdma_destroy_id(id), 0);
    }
    assert_int_equal(rdma_dereg_mr(mr), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_program_that_exits_in_a_signal_handler_ends_and_its_peer_is_told, setup,
                                        teardown),
    };
    if (argc < 2) {
        fprintf(stderr, "usage: %s UROCE-COMMAND\n", argv[0]);
        return 2;
    }
    if (getenv("PENSTOCK_EXTENDED"))
        rounds = 500;
    rng_seed(&rng, seed_new());
    setenv("UROCE_HOLDER", argv[1], 1);
    netns_pair_make(&ns, 4200);
    netns_enter(&ns, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

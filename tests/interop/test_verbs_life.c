/*
 * Lives and deaths: children of a fork, peers that are killed, events and their acknowledgement, objects that are left
 * behind or imported. Linked with the distribution's libibverbs, run with ours.
 */
#include "base/util.h"
#include "lib/netns.h"
#include "verbs_end.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "lib/own_use.h"

#define LEN   (4u << 20)
#define DEPTH 64

static struct netns_pair ns;
static struct vend e;

static void close_pair(struct ibv_qp *a, struct ibv_qp *b)
{
    assert_int_equal(ibv_destroy_qp(a), 0);
    assert_int_equal(ibv_destroy_qp(b), 0);
    vend_close(&e);
}

/* ---- fork ---- */

static void go_on(struct ibv_qp *a, struct ibv_qp *b, uint64_t seed)
{
    struct ibv_wc wc[2];
    vend_fill(&e, seed);
    assert_int_equal(vend_recv(&e, b, LEN / 2, LEN / 4, 1), 0);
    assert_int_equal(vend_send(&e, a, IBV_WR_SEND, 0, LEN / 4, NULL, 2), 0);
    vend_wait(&e, 2, wc);
    assert_int_equal(wc[0].status, IBV_WC_SUCCESS);
    assert_int_equal(wc[1].status, IBV_WC_SUCCESS);
    assert_memory_equal(e.buf, e.buf + LEN / 2, LEN / 4);
}

static void children_that_touch_memory_and_end_do_no_harm(void **state)
{
    (void)state;
    vend_open(&e, NULL, LEN);
    struct ibv_qp *a = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL), *b = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    vend_pair(&e, a, &e, b, 0, 7);
    go_on(a, b, 1);
    pid_t pid[4];
    for (int i = 0; i < 4; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0) {
            memset(e.buf, i, e.len);
            if (i < 2)
                exit(0); /* with destructors and what atexit has; the others without */
            _exit(0);
        }
        go_on(a, b, (uint64_t)i + 2);
    }
    for (int i = 0; i < 4; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
        go_on(a, b, (uint64_t)i + 10);
    }
    close_pair(a, b);
}

/* In the child: its parent's objects are dead, its own work. The status tells where it failed. */
static int child_life(struct ibv_qp *parents)
{
    struct ibv_wc wc;
    struct vend own;
    if (vend_recv(&e, parents, 0, 8, 1) != ECHILD)
        return 1;
    if (ibv_poll_cq(e.cq, 1, &wc) >= 0)
        return 2;
    if (ibv_alloc_pd(e.ctx) || errno != ECHILD)
        return 3;
    vend_open(&own, "uroce0", LEN);
    struct ibv_qp *a = vend_qp(&own, IBV_QPT_RC, DEPTH, NULL), *b = vend_qp(&own, IBV_QPT_RC, DEPTH, NULL);
    vend_pair(&own, a, &own, b, 0, 7);
    struct ibv_wc two[2];
    if (vend_recv(&own, b, 4096, 64, 1) || vend_send(&own, a, IBV_WR_SEND, 0, 8, NULL, 2))
        return 4;
    vend_wait(&own, 2, two);
    if (two[0].status || two[1].status)
        return 5;
    ibv_destroy_qp(a);
    ibv_destroy_qp(b);
    vend_close(&own);
    return 0;
}

static void a_child_starts_anew(void **state)
{
    (void)state;
    int status;
    setenv("UROCE_ADDRESS", "10.77.0.1", 1);
    vend_open(&e, NULL, LEN);
    struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        /* The address is the parent's: the child has another. */
        vend_in_child();
        setenv("UROCE_ADDRESS", "127.0.0.1", 1);
        _exit(child_life(qp));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    unsetenv("UROCE_ADDRESS");
    assert_int_equal(status, 0);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    vend_close(&e);
}

/* ---- a peer that is killed ---- */

static void take(int fd, void *buf, size_t n)
{
    assert_int_equal(read(fd, buf, n), n);
}

/* A process in the other namespace that takes messages until it is killed. */
static pid_t start_peer(int *ret_in, int *ret_out)
{
    pid_t pid = vend_fork(ret_in, ret_out);
    if (pid)
        return pid;
    int in = *ret_in, out = *ret_out;
    struct vaddr theirs, ours;
    netns_enter(&ns, 1);
    vend_open(&e, NULL, LEN);
    struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    ours = vend_addr(&e, qp, 0);
    if (write(out, &ours, sizeof ours) != sizeof ours || read(in, &theirs, sizeof theirs) != sizeof theirs)
        _exit(1);
    vend_connect(qp, &theirs, 0, IBV_MTU_1024, 7);
    vend_recv(&e, qp, 0, 64, 1);
    vend_recv(&e, qp, 0, 64, 2);
    if (write(out, "r", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static struct ibv_qp *connect_peer(int in, int out)
{
    struct vaddr theirs, ours;
    char ready;
    struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    take(in, &theirs, sizeof theirs);
    ours = vend_addr(&e, qp, 0);
    assert_int_equal(write(out, &ours, sizeof ours), sizeof ours);
    vend_connect(qp, &theirs, 0, IBV_MTU_1024, 7);
    take(in, &ready, 1);
    return qp;
}

static void a_peer_that_is_killed_is_a_clean_error_and_the_next_is_served(void **state)
{
    (void)state;
    struct ibv_wc wc;
    for (int round = 0; round < 2; round++) {
        int in, out, status;
        pid_t pid = start_peer(&in, &out);
        vend_open(&e, NULL, LEN);
        struct ibv_qp *qp = connect_peer(in, out);
        assert_int_equal(vend_send(&e, qp, IBV_WR_SEND, 0, 8, NULL, 1), 0);
        vend_wait(&e, 1, &wc);
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        for (uint64_t i = 0; i < DEPTH; i++)
            assert_int_equal(vend_send(&e, qp, IBV_WR_SEND, 0, 8, NULL, 10 + i), 0);
        for (uint64_t i = 0; i < DEPTH; i++) {
            vend_wait(&e, 1, &wc);
            assert_int_equal(wc.wr_id, 10 + i);
            assert_int_equal(wc.status, i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR);
        }
        vend_quiet(&e);
        assert_int_equal(ibv_destroy_qp(qp), 0);
        vend_close(&e);
        close(in);
        close(out);
    }
}

/* ---- events ---- */

static void *ack_later(void *arg)
{
    usleep(50000);
    ibv_ack_cq_events(arg, 1);
    return NULL;
}

static void completion_events_wake_epoll_and_destroy_waits_for_their_acknowledgement(void **state)
{
    (void)state;
    struct epoll_event ev = {.events = EPOLLIN};
    struct ibv_cq *cq;
    struct ibv_wc wc;
    void *context;
    pthread_t t;
    vend_open(&e, NULL, LEN);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    assert_int_equal(fcntl(e.channel->fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, e.channel->fd, &ev), 0);
    assert_int_equal(ibv_get_cq_event(e.channel, &cq, &context), -1);
    assert_int_equal(errno, EAGAIN);
    struct ibv_qp *a = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL), *b = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL);
    vend_pair(&e, a, &e, b, 0, 7);
    assert_int_equal(vend_recv(&e, b, 4096, 64, 1), 0);
    assert_int_equal(ibv_req_notify_cq(e.cq, 0), 0);
    assert_int_equal(vend_send(&e, a, IBV_WR_SEND, 0, 8, NULL, 2), 0);
    assert_int_equal(epoll_wait(ep, &ev, 1, 60000), 1); /* the program itself does nothing meanwhile */
    assert_int_equal(ibv_get_cq_event(e.channel, &cq, &context), 0);
    assert_ptr_equal(cq, e.cq);
    assert_ptr_equal(context, &e);
    vend_wait(&e, 1, &wc);
    vend_wait(&e, 1, &wc);
    assert_int_equal(ibv_destroy_comp_channel(e.channel), EBUSY);
    assert_int_equal(ibv_destroy_cq(e.cq), EBUSY);
    assert_int_equal(ibv_destroy_qp(a), 0);
    assert_int_equal(ibv_destroy_qp(b), 0);
    assert_int_equal(pthread_create(&t, NULL, ack_later, e.cq), 0);
    uint64_t before = now_ns();
    assert_int_equal(ibv_destroy_cq(e.cq), 0);
    assert_true(now_ns() - before > 30 * NSEC_PER_MSEC);
    pthread_join(t, NULL);
    e.cq = ibv_create_cq(e.ctx, 1, NULL, NULL, 0);
    close(ep);
    vend_close(&e);
}

/* Takes what comes until it is cancelled, as rping's threads are. */
static void *take_events(void *arg)
{
    struct vend *t = arg;
    struct ibv_wc wc[16];
    for (;;) {
        struct ibv_cq *cq;
        void *context;
        if (ibv_req_notify_cq(t->cq, 0) || ibv_poll_cq(t->cq, 16, wc) < 0 ||
            ibv_get_cq_event(t->channel, &cq, &context))
            return NULL;
        ibv_ack_cq_events(cq, 1);
    }
}

static void threads_that_are_cancelled_while_they_wait_leave_the_device_alive(void **state)
{
    (void)state;
    struct vend t;
    struct epoll_event ev = {.events = EPOLLIN};
    struct ibv_wc wc[2];
    vend_open(&e, NULL, LEN);
    vend_open(&t, NULL, LEN);
    struct ibv_qp *a = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL), *b = vend_qp(&t, IBV_QPT_RC, DEPTH, NULL);
    vend_pair(&e, a, &t, b, 0, 7);
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, take_events, &t), 0);
        for (int j = 0; j < i % 5; j++) {
            assert_int_equal(vend_recv(&t, b, 0, 64, 1), 0);
            assert_int_equal(vend_send(&e, a, IBV_WR_SEND, 0, 8, NULL, 2), 0);
            vend_wait(&e, 1, wc);
        }
        usleep((useconds_t)(i * 37 % 1000));
        void *ret;
        pthread_cancel(thread);
        pthread_join(thread, &ret);
        assert_ptr_equal(ret, PTHREAD_CANCELED);
    }
    /* The device's own thread serves the sleeper, though a hundred others never came back from their sleep. */
    while (ibv_poll_cq(t.cq, 2, wc) > 0)
        ;
    int ep = epoll_create1(EPOLL_CLOEXEC);
    assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, e.channel->fd, &ev), 0);
    for (int i = 0; i < 5; i++) {
        struct ibv_cq *cq;
        void *context;
        assert_int_equal(vend_recv(&t, b, 0, 64, 3), 0);
        assert_int_equal(ibv_req_notify_cq(e.cq, 0), 0);
        assert_int_equal(vend_send(&e, a, IBV_WR_SEND, 0, 8, NULL, 4), 0);
        assert_int_equal(epoll_wait(ep, &ev, 1, 60000), 1);
        assert_int_equal(ibv_get_cq_event(e.channel, &cq, &context), 0);
        ibv_ack_cq_events(cq, 1);
        vend_wait(&e, 1, wc);
        assert_int_equal(wc[0].status, IBV_WC_SUCCESS);
    }
    close(ep);
    assert_int_equal(ibv_destroy_qp(a), 0);
    assert_int_equal(ibv_destroy_qp(b), 0);
    vend_close(&t);
    vend_close(&e);
}

static void expect_event(struct ibv_context *ctx, enum ibv_event_type type, void *element)
{
    struct ibv_async_event ev;
    struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 60000), 1);
    assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
    assert_int_equal(ev.event_type, type);
    assert_ptr_equal(ev.element.qp, element);
    ibv_ack_async_event(&ev);
}

static void events_go_to_the_context_of_their_object(void **state)
{
    (void)state;
    struct vend other;
    struct ibv_async_event ev;
    struct ibv_wc wc[2];
    vend_open(&e, NULL, LEN);
    vend_open(&other, NULL, LEN);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(e.pd, &init);
    struct ibv_srq_attr limit = {.srq_limit = 2};
    struct ibv_qp *a = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL), *b = vend_qp(&e, IBV_QPT_RC, DEPTH, srq);
    struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
    struct ibv_sge sge = {(uintptr_t)e.buf, 64, e.mr->lkey};
    struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
    vend_pair(&e, a, &e, b, 0, 7);
    assert_int_equal(ibv_post_srq_recv(srq, &wr, &bad), 0);
    assert_int_equal(ibv_post_srq_recv(srq, &wr, &bad), 0);
    assert_int_equal(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
    assert_int_equal(ibv_query_srq(srq, &limit), 0);
    assert_int_equal(limit.srq_limit, 2);
    assert_int_equal(vend_send(&e, a, IBV_WR_SEND, 0, 8, NULL, 2), 0);
    vend_wait(&e, 2, wc);
    expect_event(e.ctx, IBV_EVENT_SRQ_LIMIT_REACHED, srq);
    assert_int_equal(ibv_modify_qp(b, &err, IBV_QP_STATE), 0);
    expect_event(e.ctx, IBV_EVENT_QP_LAST_WQE_REACHED, b);
    for (int i = 0; i < 2; i++) {
        struct ibv_context *c = i ? other.ctx : e.ctx;
        assert_int_equal(fcntl(c->async_fd, F_SETFL, O_NONBLOCK), 0);
        assert_int_equal(ibv_get_async_event(c, &ev), -1);
        assert_int_equal(errno, EAGAIN);
    }
    assert_int_equal(ibv_destroy_srq(srq), EBUSY);
    assert_int_equal(ibv_destroy_qp(b), 0);
    assert_int_equal(ibv_destroy_srq(srq), 0);
    assert_int_equal(ibv_destroy_qp(a), 0);
    vend_close(&other);
    vend_close(&e);
}

static void an_event_that_nobody_took_goes_with_its_object(void **state)
{
    (void)state;
    vend_open(&e, NULL, LEN);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(e.pd, &init);
    struct ibv_qp *qp = vend_qp(&e, IBV_QPT_RC, DEPTH, srq);
    struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
    struct pollfd p = {.fd = e.ctx->async_fd, .events = POLLIN};
    assert_int_equal(ibv_modify_qp(qp, &err, IBV_QP_STATE), 0);
    assert_int_equal(poll(&p, 1, 60000), 1);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    assert_int_equal(poll(&p, 1, 0), 0);
    assert_int_equal(ibv_destroy_srq(srq), 0);
    vend_close(&e);
}

/* ---- contexts ---- */

static void a_context_that_is_closed_takes_what_is_left_with_it(void **state)
{
    (void)state;
    int before = descriptors();
    for (int round = 0; round < 3; round++) {
        struct vend peer;
        struct ibv_wc wc;
        vend_open(&e, NULL, LEN);
        vend_open(&peer, NULL, LEN);
        struct ibv_qp *a = vend_qp(&e, IBV_QPT_RC, DEPTH, NULL), *b = vend_qp(&peer, IBV_QPT_RC, DEPTH, NULL);
        vend_pair(&e, a, &peer, b, 0, 7);
        assert_int_equal(vend_recv(&e, a, 0, 64, 1), 0);
        assert_non_null(ibv_alloc_mw(e.pd, IBV_MW_TYPE_2));
        assert_int_equal(ibv_close_device(e.ctx), 0); /* with all of it */
        assert_int_equal(vend_send(&peer, b, IBV_WR_SEND, 0, 8, NULL, 2), 0);
        vend_wait(&peer, 1, &wc);
        assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
        assert_int_equal(ibv_destroy_qp(b), 0);
        vend_close(&peer);
        munmap(e.buf, e.len);
    }
    assert_int_equal(descriptors(), before);
}

static void device_domain_region_and_device_memory_are_imported_within_the_process(void **state)
{
    (void)state;
    vend_open(&e, NULL, LEN);
    int fd = dup(e.ctx->cmd_fd);
    assert_true(fd >= 0);
    struct ibv_context *ctx = ibv_import_device(fd);
    assert_non_null(ctx);
    struct ibv_pd *pd = ibv_import_pd(ctx, e.pd->handle);
    assert_non_null(pd);
    assert_int_equal(ibv_dealloc_pd(e.pd), EBUSY);
    struct ibv_mr *mr = ibv_import_mr(pd, e.mr->handle);
    assert_non_null(mr);
    assert_int_equal(mr->lkey, e.mr->lkey);
    assert_ptr_equal(mr->addr, e.mr->addr);
    struct ibv_alloc_dm_attr attr = {.length = 4096};
    struct ibv_dm *dm = ibv_alloc_dm(e.ctx, &attr), *dm2 = ibv_import_dm(ctx, dm->handle);
    uint32_t v = 0x12345678, got = 0;
    assert_non_null(dm2);
    assert_int_equal(ibv_memcpy_to_dm(dm, 8, &v, 4), 0);
    assert_int_equal(ibv_memcpy_from_dm(&got, dm2, 8, 4), 0);
    assert_int_equal(got, v);
    assert_int_equal(ibv_memcpy_from_dm(&got, dm2, 4096, 4), EINVAL);
    assert_null(ibv_import_pd(ctx, 0));
    assert_null(ibv_import_device(0));
    ibv_unimport_dm(dm2);
    assert_int_equal(ibv_free_dm(dm), 0);
    ibv_unimport_mr(mr);
    ibv_unimport_pd(pd);
    assert_int_equal(ibv_close_device(ctx), 0);
    close(fd);
    vend_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_that_touch_memory_and_end_do_no_harm),
        cmocka_unit_test(a_child_starts_anew),
        cmocka_unit_test(a_peer_that_is_killed_is_a_clean_error_and_the_next_is_served),
        cmocka_unit_test(completion_events_wake_epoll_and_destroy_waits_for_their_acknowledgement),
        cmocka_unit_test(threads_that_are_cancelled_while_they_wait_leave_the_device_alive),
        cmocka_unit_test(events_go_to_the_context_of_their_object),
        cmocka_unit_test(an_event_that_nobody_took_goes_with_its_object),
        cmocka_unit_test(a_context_that_is_closed_takes_what_is_left_with_it),
        cmocka_unit_test(device_domain_region_and_device_memory_are_imported_within_the_process),
    };
    netns_pair_make(&ns, 1500);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

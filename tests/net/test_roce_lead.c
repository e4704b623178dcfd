/*
 * Sleeping on a channel's descriptor (lead.c). One that is O_NONBLOCK may wake its program for a packet; the program
 * then drives the device, and gets its event or -EAGAIN. One that blocks tells of events alone. Whoever armed and then
 * does something else is served all the same. By "udp" and by "shm".
 */
#include "base/util.h"
#include "lib/netns.h"
#include "uroce_node.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN    (1u << 20)
#define ROUNDS 200

static const char *way;
static struct netns_pair ns;
static struct node a, b;
static struct uroce_qp *qa, *qb;

static int open_both(void **state)
{
    (void)state;
    struct uroce_config ca = {.addresses = "10.77.0.1,127.0.0.1"}, cb = {.addresses = "10.77.0.2,127.0.0.1"};
    netns_enter(&ns, 0);
    node_open(&a, &ca, LEN);
    netns_enter(&ns, 1);
    node_open(&b, &cb, LEN);
    netns_enter(&ns, 0);
    qa = node_qp(&a, UROCE_QPT_RC, 64);
    qb = node_qp(&b, UROCE_QPT_RC, 64);
    node_connect(&a, qa, &b, qb, 0, UROCE_MTU_1024);
    if (strcmp(way, "shm") == 0)
        assert_true(node_await_shm(qa, qb));
    else
        assert_false(node_by_shm(qa));
    return 0;
}

/*
 * Retries for more than four seconds and not two: for a machine on which many threads have to share a core with others.
 */
static int open_patient(void **state)
{
    node_timeout = NODE_TIMEOUT + 1;
    int r = open_both(state);
    node_timeout = NODE_TIMEOUT;
    return r;
}

static int close_both(void **state)
{
    (void)state;
    assert_int_equal(uroce_qp_destroy(qa), 0);
    assert_int_equal(uroce_qp_destroy(qb), 0);
    node_close(&a);
    node_close(&b);
    return 0;
}

static void set_blocking(struct uroce_channel *ch, bool blocks)
{
    assert_int_equal(fcntl(uroce_channel_fd(ch), F_SETFL, blocks ? 0 : O_NONBLOCK), 0);
}

static bool readable(struct uroce_channel *ch, int ms)
{
    struct pollfd p = {.fd = uroce_channel_fd(ch), .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

/* As libfabric does: what is left of earlier events, arm, look once more, sleep; until there is a completion. */
static void sleep_and_take(struct uroce_channel *ch, struct uroce_cq *cq, uint64_t id)
{
    struct uroce_wc wc;
    int r;
    while ((r = uroce_poll_cq(cq, 1, &wc)) == 0) {
        struct uroce_cq *of;
        void *context;
        while (uroce_get_cq_event(ch, &of, &context) == 0)
            uroce_ack_cq_events(of, 1);
        uroce_req_notify_cq(cq, 0);
        r = uroce_poll_cq(cq, 1, &wc);
        if (r)
            break;
        assert_true(readable(ch, 10000));
    }
    assert_int_equal(r, 1);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    assert_int_equal(wc.wr_id, id);
}

static void a_program_that_sleeps_is_woken(void **state)
{
    (void)state;
    set_blocking(a.channel, false);
    set_blocking(b.channel, false);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint32_t len = i % 8 == 7 ? 300000 : 64;
        node_fill(&a, i);
        node_recv(&b, qb, 0, LEN, i);
        node_send(&a, qa, UROCE_WR_SEND, 0, len, NULL, 0, i);
        sleep_and_take(b.channel, b.cq, i);
        sleep_and_take(a.channel, a.cq, i);
        assert_memory_equal(a.buf, b.buf, len);
    }
}

/* A descriptor that stays readable would make its program spin. */
static void packets_without_an_event_end_a_sleep_but_once(void **state)
{
    (void)state;
    struct uroce_cq *cq;
    void *context;
    set_blocking(b.channel, false);
    uroce_req_notify_cq(b.cq, 0);
    for (uint64_t i = 0; i < 20; i++) {
        struct uroce_wc wc;
        node_send(&a, qa, UROCE_WR_RDMA_WRITE, 0, 100000, &b, 0, i);
        for (int woken = 0; uroce_poll_cq(a.cq, 1, &wc) == 0; woken++) {
            assert_true(woken < 1000000);
            if (readable(b.channel, 0))
                assert_int_equal(uroce_get_cq_event(b.channel, &cq, &context), -EAGAIN);
        }
    }
    int wakes = 0;
    while (readable(b.channel, 50) && wakes++ < 1000)
        assert_int_equal(uroce_get_cq_event(b.channel, &cq, &context), -EAGAIN);
    assert_true(wakes < 1000);
    node_recv(&b, qb, 0, LEN, 99);
    node_send(&a, qa, UROCE_WR_SEND, 0, 8, NULL, 0, 99);
    sleep_and_take(b.channel, b.cq, 99);
}

static void write_and_wait(uint64_t id)
{
    struct uroce_wc wc;
    node_send(&a, qa, UROCE_WR_RDMA_WRITE, 0, 5000, &b, 0, id);
    for (uint64_t end = now_ns() + 10 * NSEC_PER_SEC; uroce_poll_cq(a.cq, 1, &wc) == 0;) {
        assert_true(now_ns() < end);
        assert_false(readable(b.channel, 0));
    }
    assert_int_equal(wc.wr_id, id);
}

static void a_descriptor_that_blocks_tells_of_events_alone(void **state)
{
    (void)state;
    for (int led = 0; led < 2; led++) {
        struct uroce_cq *cq;
        void *context;
        if (led) { /* and becomes one that blocks */
            set_blocking(b.channel, false);
            uroce_req_notify_cq(b.cq, 0);
            set_blocking(b.channel, true);
        }
        uroce_req_notify_cq(b.cq, 0);
        for (uint64_t i = 0; i < 50; i++)
            write_and_wait(i);
        node_recv(&b, qb, 0, LEN, 99);
        node_send(&a, qa, UROCE_WR_SEND, 0, 8, NULL, 0, 98);
        assert_true(readable(b.channel, 10000));
        assert_int_equal(uroce_get_cq_event(b.channel, &cq, &context), 0);
        uroce_ack_cq_events(cq, 1);
        sleep_and_take(b.channel, b.cq, 99);
        struct uroce_wc wc;
        node_wait(&a, &b, 1, &wc);
    }
}

static void who_armed_and_computes_is_served(void **state)
{
    (void)state;
    struct uroce_wc wc;
    set_blocking(b.channel, false);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        if (i % 10 == 0)
            uroce_req_notify_cq(b.cq, 0);
        node_send(&a, qa, UROCE_WR_RDMA_READ, 0, 64, &b, 0, i);
        for (uint64_t end = now_ns() + 10 * NSEC_PER_SEC; uroce_poll_cq(a.cq, 1, &wc) == 0;)
            assert_true(now_ns() < end);
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    }
}

/* One channel of a device leads; any of them wakes its program, also after the one that led has gone. */
static void every_channel_wakes_its_program(void **state)
{
    (void)state;
    struct uroce_channel *ch[3];
    struct uroce_cq *cq[3];
    struct uroce_qp *mine[3], *theirs[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(uroce_channel_create(b.dev, &ch[i]), 0);
        set_blocking(ch[i], false);
        assert_int_equal(uroce_cq_create(b.dev, 64, NULL, ch[i], &cq[i]), 0);
        struct uroce_cq *own = b.cq;
        b.cq = cq[i];
        theirs[i] = node_qp(&b, UROCE_QPT_RC, 16);
        b.cq = own;
        mine[i] = node_qp(&a, UROCE_QPT_RC, 16);
        node_connect(&a, mine[i], &b, theirs[i], 0, UROCE_MTU_1024);
    }
    for (uint64_t n = 0; n < ROUNDS; n++) {
        int i = (int)(n % 3);
        struct uroce_wc wc;
        if (n == ROUNDS / 2)
            poll(NULL, 0, 200); /* the lead may go over */
        uroce_req_notify_cq(cq[(n + 1) % 3], 0);
        node_recv(&b, theirs[i], 0, LEN, n);
        node_send(&a, mine[i], UROCE_WR_SEND, 0, 100, NULL, 0, n);
        sleep_and_take(ch[i], cq[i], n);
        node_wait(&a, &b, 1, &wc);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(uroce_qp_destroy(mine[i]), 0);
        assert_int_equal(uroce_qp_destroy(theirs[i]), 0);
        assert_int_equal(uroce_cq_destroy(cq[i]), 0);
        assert_int_equal(uroce_channel_destroy(ch[i]), 0);
        set_blocking(b.channel, false);
        node_recv(&b, qb, 0, LEN, 7);
        node_send(&a, qa, UROCE_WR_SEND, 0, 100, NULL, 0, 7);
        sleep_and_take(b.channel, b.cq, 7);
        struct uroce_wc wc;
        node_wait(&a, &b, 1, &wc);
    }
}

struct maker {
    pthread_t thread;
    atomic_bool ends;
    unsigned made;
};

static void *make_and_destroy(void *arg)
{
    struct maker *m = arg;
    for (; !atomic_load(&m->ends); m->made++) {
        struct uroce_pd *pd;
        assert_int_equal(uroce_pd_alloc(b.dev, &pd), 0);
        assert_int_equal(uroce_pd_dealloc(pd), 0);
    }
    return NULL;
}

/* There is always one who waits for the device, and whoever polls does not let them go first for ever. */
static void threads_that_make_objects_all_the_time_do_not_keep_packets_out(void **state)
{
    (void)state;
    static struct maker makers[8];
    struct uroce_wc wc;
    unsigned most = 0;
    for (size_t i = 0; i < ARRAY_SIZE(makers); i++) {
        makers[i] = (struct maker){0};
        assert_int_equal(pthread_create(&makers[i].thread, NULL, make_and_destroy, &makers[i]), 0);
    }
    for (uint64_t i = 0; i < 50; i++) {
        unsigned polls = 0;
        node_fill(&a, i);
        node_send(&a, qa, UROCE_WR_RDMA_WRITE, 0, 1000, &b, 0, i);
        for (; uroce_poll_cq(a.cq, 1, &wc) == 0; polls++)
            uroce_poll_cq(b.cq, 0, &wc);
        most = polls > most ? polls : most;
        assert_int_equal(wc.status, UROCE_WC_SUCCESS);
        assert_memory_equal(a.buf, b.buf, 1000);
    }
    print_message("%u polls at most\n", most);
    for (size_t i = 0; i < ARRAY_SIZE(makers); i++) {
        atomic_store(&makers[i].ends, true);
        assert_int_equal(pthread_join(makers[i].thread, NULL), 0);
    }
}

int main(int argc, char **argv)
{
    way = argc > 1 ? argv[1] : "udp";
    setenv("UROCE_HOLDER", "off", 1);
    setenv("UROCE_SHM", strcmp(way, "udp") ? "1" : "0", 1);
    netns_pair_make(&ns, 4200);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_program_that_sleeps_is_woken, open_both, close_both),
        cmocka_unit_test_setup_teardown(packets_without_an_event_end_a_sleep_but_once, open_both, close_both),
        cmocka_unit_test_setup_teardown(a_descriptor_that_blocks_tells_of_events_alone, open_both, close_both),
        cmocka_unit_test_setup_teardown(who_armed_and_computes_is_served, open_both, close_both),
        cmocka_unit_test_setup_teardown(every_channel_wakes_its_program, open_both, close_both),
        cmocka_unit_test_setup_teardown(threads_that_make_objects_all_the_time_do_not_keep_packets_out, open_patient,
                                        close_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

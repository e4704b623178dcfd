/* The shared-memory port between two processes: every way a payload can go, sleeping and waking, revocation. */
#include "shm_peer.h"

static void every_size_arrives_by_the_way_that_is_meant_for_it(void **state)
{
    static const uint32_t sizes[] = {0,    1,    3,    4,    447,  448,   449,     1000,
                                     4095, 4096, 4097, 8191, 8192, 65537, BIG - 1, BIG};
    (void)state;
    for (int copying = 0; copying < 2; copying++) {
        start(copying ? role_serve_copying : role_serve);
        struct port *p = connected(true);
        int fd;
        uint8_t *heap = malloc(BIG), *far = shared_memory(2 * BIG, &fd);
        assert_int_equal(port_shm_share(p, fd, far, 2 * BIG), 0);
        close(fd);
        uint32_t psn = 1;
        send_wait(p, psn, NULL, 0, false); /* an answer comes behind all that the peer said on the socket */
        await_answer(p, psn++);
        port_shm_look(p);
        assert_int_equal(peer_reads(p), !copying);
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
            for (int way = 0; way < 3; way++, psn++) { /* copied; own memory; the allocator's */
                uint8_t *m = way == 2 ? far + 1000 : heap;
                uint32_t len = sizes[i];
                int want = way == 2 || (way == 1 && len >= SHM_VM_MIN && !copying) ? SHM_PIECED : SHM_STAGED;
                fill(m, psn, len);
                assert_int_equal(send_wait(p, psn, m, len, way > 0), 1);
                assert_int_equal(last_kind(p), len <= SHM_INLINE ? SHM_INLINED : want);
                await_answer(p, psn);
            }
        }
        port_close(p);
        munmap(far, 2 * BIG);
        free(heap);
        assert_int_equal(finish(), 0);
    }
}

static void a_full_ring_pushes_back_and_both_sides_may_sleep(void **state)
{
    (void)state;
    start(role_serve_slowly);
    struct port *p = connected(true);
    uint8_t *m = malloc(1000);
    uint32_t got = 0, sent = 0, full = 0;
    struct port_rx rx[64];
    fill(m, 0, 1000);
    while (got < 1000) {
        int n = 0;
        if (sent < 1000) {
            fill(m, sent, 1000);
            n = send_packet(p, sent, m, 1000, false);
            assert_true(n >= 0);
            sent += (uint32_t)n;
            full += n == 0;
        }
        int k = port_recv(p, now_ns(), rx, 64);
        assert_true(k >= 0);
        for (int i = 0; i < k; i++)
            assert_int_equal(psn_of(&rx[i]), got++);
        if (!n && !k)
            wait_for(p);
    }
    assert_true(full > 0);
    port_close(p);
    free(m);
    assert_int_equal(finish(), 0);
}

static void staging_wraps_round_for_ever(void **state)
{
    (void)state;
    start(role_serve_copying);
    struct port *p = connected(true);
    uint8_t *m = malloc(BIG);
    struct rng r;
    rng_seed(&r, seed());
    for (uint32_t psn = 0; psn < 60; psn++) {
        uint32_t len = 449 + (uint32_t)rng_below(&r, BIG - 449);
        fill(m, psn, len);
        assert_int_equal(send_wait(p, psn, m, len, false), 1);
        if (psn % 4 == 3)
            for (uint32_t k = psn - 3; k <= psn; k++)
                await_answer(p, k);
    }
    port_close(p);
    free(m);
    assert_int_equal(finish(), 0);
}

static void it_works_across_network_namespaces(void **state)
{
    (void)state;
    start(role_serve_elsewhere);
    struct port *p = open_end(ours, true, false);
    uint8_t m[600];
    int ready;
    struct port_rx rx;
    assert_non_null(p);
    while ((ready = port_shm_ready(p)) == 0) {
        wait_for(p);
        port_recv(p, now_ns(), &rx, 0);
    }
    if (ready == 1) {
        fill(m, 3, sizeof m);
        assert_int_equal(send_wait(p, 3, m, sizeof m, true), 1);
        await_answer(p, 3);
    }
    port_close(p);
    int code = finish();
    assert_true(code == 0 || (code == 99 && ready < 0)); /* 99: no namespaces here */
}

/* Takes packets but does not read payload until a byte comes on the pipe; then says by its answer what became of it. */
static int gate[2], told[2];

static int role_late_reader(int sock)
{
    static uint8_t buf[BIG + 64];
    struct port *p = open_end(sock, false, true);
    struct port_rx rx;
    char c;
    while (p && recv_wait(p, &rx, 1) == 1) {
        int rc;
        if (write(told[1], "t", 1) != 1 || read(gate[0], &c, 1) != 1)
            return 13;
        rc = verify(&rx, buf);
        c = rc == 0 ? 'r' : rc == -EIO ? 'v' : 'w';
        if (write(told[1], &c, 1) != 1)
            return 14;
    }
    return 0;
}

static char hear(void)
{
    char c = 0;
    assert_int_equal(read(told[0], &c, 1), 1);
    return c;
}

static void what_was_revoked_is_lost_and_what_was_copied_is_not(void **state)
{
    (void)state;
    assert_int_equal(pipe(gate), 0);
    assert_int_equal(pipe(told), 0);
    start(role_late_reader);
    struct port *p = connected(true);
    uint8_t *m = malloc(BIG);
    static const struct {
        bool stays, revoke;
        char want;
        uint32_t from, qpn; /* from 0: all of the queue pair */
    } cases[] = {
        {true, false, 'r', 0, 0},    {true, true, 'v', 5000, 0},  {true, true, 'r', 100000, 0},
        {true, true, 'v', 99999, 0}, {false, true, 'r', 5000, 0}, {true, true, 'v', 0, 5},
        {true, true, 'r', 0, 6},     {true, false, 'r', 0, 0},
    };
    struct port_rx rx;
    while (!peer_reads(p)) {
        port_arm(p);
        port_recv(p, now_ns(), &rx, 0);
        usleep(1000);
    }
    for (uint32_t i = 0; i < ARRAY_SIZE(cases); i++) {
        fill(m, i, 100000);
        assert_int_equal(send_wait(p, i, m, 100000, cases[i].stays), 1);
        assert_int_equal(hear(), 't');
        if (cases[i].revoke) {
            struct port_taken what = {.dest_qpn = cases[i].qpn};
            if (cases[i].from)
                what = (struct port_taken){.base = m + cases[i].from, .len = 1000};
            port_revoke(p, &what);
            if (cases[i].want == 'v' || !cases[i].stays)
                memset(m, 0xee, 100000);
        }
        assert_int_equal(write(gate[1], "g", 1), 1);
        assert_int_equal(hear(), cases[i].want);
    }
    port_close(p);
    free(m);
    for (int i = 0; i < 2; i++)
        close(gate[i]), close(told[i]);
    assert_int_equal(finish(), 0);
}

#define T(f) cmocka_unit_test_teardown(f, reap)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(every_size_arrives_by_the_way_that_is_meant_for_it),
        T(a_full_ring_pushes_back_and_both_sides_may_sleep),
        T(staging_wraps_round_for_ever),
        T(it_works_across_network_namespaces),
        T(what_was_revoked_is_lost_and_what_was_copied_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

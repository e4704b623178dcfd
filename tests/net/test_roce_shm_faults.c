/* The shared-memory port with a peer that dies, stops, writes nonsense, or belongs to somebody else. */
#include "shm_peer.h"

static int role_flood(int sock)
{
    struct port *p = open_end(sock, false, true);
    uint8_t *m = malloc(BIG);
    for (uint32_t psn = 0; p; psn++) {
        fill(m, psn, 70000);
        if (send_wait(p, psn, m, psn % 3 ? 70000 : 100, psn & 1) < 0)
            return 15;
    }
    return 16;
}

static void a_killed_sender_loses_packets_and_nothing_else(void **state)
{
    static uint8_t buf[BIG];
    (void)state;
    for (int round = 0; round < 5; round++) {
        start(role_flood);
        struct port *p = connected(true);
        struct port_rx rx[4];
        int n = 0, failed = 0;
        for (int i = 0; i < 20 + round; i++) {
            n = recv_wait(p, rx, 4);
            assert_true(n > 0);
        }
        kill(child, SIGKILL);
        assert_int_equal(finish(), 128 + SIGKILL);
        do {
            for (int i = 0; i < n; i++) {
                if (!rx[i].copy)
                    continue;
                int rc = rx[i].copy(rx[i].copy_ctx, buf, 0, rx[i].remote_len);
                assert_true(rc == 0 || rc == -EIO);
                failed += rc != 0;
            }
            n = recv_wait(p, rx, 4);
        } while (n > 0);
        assert_int_equal(n, -ECONNRESET);
        assert_int_equal(port_shm_ready(p), -ECONNRESET);
        assert_int_equal(send_packet(p, 1, buf, 1000, false), 1); /* lost */
        port_close(p);
    }
}

static void a_killed_receiver_blocks_nobody(void **state)
{
    (void)state;
    start(role_serve_slowly);
    struct port *p = connected(true);
    uint8_t *m = malloc(70000);
    struct port_rx rx[64];
    int n = 0;
    memset(m, 0, 70000);
    for (uint32_t psn = 0; n >= 0; psn++) {
        int k = send_packet(p, psn, m, 70000, true);
        assert_true(k >= 0);
        if (psn == 30)
            kill(child, SIGKILL);
        n = port_recv(p, now_ns(), rx, 64);
        if (!k && !n)
            wait_for(p);
    }
    assert_int_equal(n, -ECONNRESET);
    port_close(p);
    free(m);
    finish();
}

static void a_stopped_receiver_fills_the_ring_and_goes_on_later(void **state)
{
    (void)state;
    start(role_serve);
    struct port *p = connected(true);
    uint8_t *m = malloc(1000);
    uint32_t sent = 0, got = 0;
    struct port_rx rx[64];
    kill(child, SIGSTOP);
    usleep(20000);
    for (;; sent++) {
        fill(m, sent, 1000);
        if (send_packet(p, sent, m, 1000, false) == 0)
            break;
        assert_true(sent < 200);
    }
    assert_true(sent >= 64);
    assert_int_equal(send_packet(p, sent, m, 1000, false), 0);
    assert_true(port_deadline(p) != UINT64_MAX);
    kill(child, SIGCONT);
    while (got < sent) {
        int n = recv_wait(p, rx, 64);
        assert_true(n > 0);
        for (int i = 0; i < n; i++)
            assert_int_equal(psn_of(&rx[i]), got++);
    }
    port_close(p);
    free(m);
    assert_int_equal(finish(), 0);
}

/* ---- nonsense ---- */

/* Opens as a good peer does, then writes anything anywhere in the ring that it may write, and anything to the socket.
 */
static int role_garbage(int sock)
{
    struct port *p = open_end(sock, false, true);
    struct port_rx rx;
    struct rng r;
    rng_seed(&r, seed());
    while (p && port_shm_ready(p) == 0) {
        wait_for(p);
        port_recv(p, now_ns(), &rx, 0);
    }
    if (!p || port_shm_ready(p) < 0)
        return 17;
    struct shm_port *s = shm_of(p);
    for (int i = 0; i < 200000; i++) {
        struct shm_entry *e = &s->tx->entries[rng_below(&r, s->tx_geo.slots)];
        uint32_t head = atomic_load(&s->tx->head);
        if (rng_below(&r, 20) == 0) {
            rng_fill(&r, e, sizeof *e);
        } else { /* nearly right */
            e->kind = (uint8_t)rng_below(&r, 4);
            e->head_len = (uint8_t)(rng_below(&r, 8) ? 28 : rng_below(&r, 256));
            e->payload_len = (uint32_t)(rng_below(&r, 4) ? rng_below(&r, 1000) : rng_u64(&r));
            e->npieces = (uint32_t)(rng_below(&r, 4) ? rng_below(&r, 30) : rng_u64(&r));
            e->pieces[0].addr = rng_below(&r, 2) ? rng_below(&r, 8192) : rng_u64(&r);
            e->pieces[0].len = e->payload_len;
            e->pieces[0].region = (uint32_t)(rng_below(&r, 2) ? rng_below(&r, 3) : rng_u64(&r));
            if (rng_below(&r, 2))
                e->npieces = 1;
        }
        /* A head that is too far ends the port: seldom, or nothing else would be tried. */
        if (rng_below(&r, 3) == 0 && head - atomic_load(&s->tx->tail) < s->tx_geo.slots)
            atomic_store(&s->tx->head, head + 1);
        if (rng_below(&r, 20) == 0)
            atomic_store(&e->is_void, (uint32_t)rng_below(&r, 2));
    }
    atomic_store(&s->rx->tail, (uint32_t)rng_u64(&r));
    atomic_store(&s->tx->head, (uint32_t)rng_u64(&r) | 0x10000);
    if (shm_say(s, &(struct shm_msg){.magic = (uint32_t)rng_u64(&r), .type = 3}, 0) < 0)
        return 0;
    return 0;
}

static void nonsense_in_the_ring_is_dropped_and_harms_nobody(void **state)
{
    static uint8_t buf[SHM_PAYLOAD_MAX];
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed());
    start(role_garbage);
    struct port *p = connected(true);
    int fd;
    uint8_t *far = shared_memory(8192, &fd);
    struct port_rx rx[16];
    uint64_t packets = 0;
    int n;
    while ((n = port_recv(p, now_ns(), rx, 16)) >= 0) {
        for (int i = 0; i < n; i++, packets++) {
            assert_true(rx[i].len >= WIRE_BTH_BYTES && rx[i].len <= WIRE_HEAD_MAX + SHM_INLINE + WIRE_TAIL_MAX);
            if (rx[i].copy) {
                assert_true(rx[i].remote_len <= SHM_PAYLOAD_MAX);
                rx[i].copy(rx[i].copy_ctx, buf, 0, rx[i].remote_len);
            }
        }
        if (packets % 8 == 0)
            send_packet(p, 1, far, 5000, true);
    }
    assert_true(n == -EPROTO || n == -ECONNRESET);
    assert_true(packets > 0);
    assert_int_equal(send_packet(p, 1, buf, 1000, false), 1);
    port_close(p);
    close(fd);
    munmap(far, 8192);
    finish();
}

/* A hello by hand. Which of its faults is in `fault`. */
static int fault;

static int role_bad_hello(int sock)
{
    struct shm_port s = {.sock = sock};
    struct shm_geometry g = {64, SHM_DATA_BYTES};
    int one = 1, fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &one, sizeof one);
    if (ftruncate(fd, (off_t)(shm_ring_bytes(&g) - (fault == 1 ? 4096 : 0))))
        return 18;
    if (fault != 2)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    if (fault == 3)
        g.slots = 63;
    if (fault == 4)
        g.slots = 1u << 30;
    if (fault == 5)
        g.data_bytes = 4096;
    struct shm_msg m = {.magic = SHM_MAGIC, .type = SHM_HELLO, .a = (uint64_t)g.slots << 32 | g.data_bytes};
    if (fault == 6)
        m.type = 77;
    if (fault == 7)
        m = (struct shm_msg){.magic = SHM_MAGIC, .type = SHM_REGION, .a = SHM_REGIONS, .c = 4096};
    if (fault == 8)
        m = (struct shm_msg){.magic = SHM_MAGIC, .type = SHM_REGION_OK, .a = 0};
    if (fault == 9 && setresuid(65534, 65534, 65534))
        return 0;
    shm_say(&s, &m, fault == 10 ? -1 : fd);
    if (fault == 11)
        shm_say(&s, &m, fd);
    sleep(1);
    return 0;
}

static void a_hello_that_is_wrong_is_refused(void **state)
{
    (void)state;
    for (fault = 1; fault <= 11; fault++) {
        struct port_rx rx;
        int n;
        if (fault == 9 && geteuid())
            continue;
        start(role_bad_hello);
        struct port *p = open_end(ours, true, true);
        assert_non_null(p);
        n = recv_wait(p, &rx, 1);
        if (n != -EPROTO)
            fail_msg("fault %d: %d", fault, n);
        port_close(p);
        reap(NULL);
    }
}

static int role_stranger(int sock)
{
    (void)sock;
    return 0;
}

static void another_users_process_and_other_sockets_are_refused(void **state)
{
    (void)state;
    int sv[2];
    struct port *p = NULL;
    char err[200] = "";
    struct port_shm_config cfg = {.local = A, .remote = B};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
    cfg.sock = sv[0];
    assert_int_equal(port_shm_open(&cfg, &p, err, sizeof err), -EPROTOTYPE);
    close(sv[1]);
    if (geteuid())
        return;
    start(role_stranger);
    finish();
    close(ours);
    /* The socket was made by another user. */
    pid_t pid = fork();
    if (pid == 0) {
        struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "x"};
        snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "port-test-%d", getppid());
        a.sun_path[0] = 0;
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (setresuid(65534, 65534, 65534))
            _exit(1);
        for (int i = 0; i < 1000 && connect(fd, (struct sockaddr *)&a, sizeof a); i++)
            usleep(1000);
        sleep(1);
        _exit(0);
    }
    struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "x"};
    snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "port-test-%d", getpid());
    a.sun_path[0] = 0;
    int l = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(l, 1), 0);
    cfg.sock = accept(l, NULL, NULL);
    assert_int_equal(port_shm_open(&cfg, &p, err, sizeof err), -EPERM);
    assert_non_null(strstr(err, "another user"));
    close(l);
    waitpid(pid, NULL, 0);
}

static void memory_that_could_shrink_is_not_shared(void **state)
{
    (void)state;
    start(role_serve);
    struct port *p = connected(true);
    int fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING), file = open("/proc/self/exe", O_RDONLY);
    assert_int_equal(ftruncate(fd, 8192), 0);
    assert_int_equal(port_shm_share(p, fd, NULL, 8192), -EINVAL);
    assert_int_equal(port_shm_share(p, file, NULL, 8192), -EINVAL);
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    assert_int_equal(port_shm_share(p, fd, NULL, 0), -EINVAL);
    close(fd);
    close(file);
    port_close(p);
    assert_int_equal(finish(), 0);
}

/* Says that it can read our memory, and has not. */
static int role_claims(int sock)
{
    struct shm_msg m = {.magic = SHM_MAGIC, .type = SHM_MAY_READ, .a = 1};
    struct port *p = open_end(sock, false, false);
    struct port_rx rx[8];
    if (!p || shm_say(shm_of(p), &m, -1))
        return 1;
    while (recv_wait(p, rx, 8) >= 0)
        ;
    return 0;
}

static int shown_by(int (*role)(int sock))
{
    struct port_rx rx;
    int shown;
    start(role);
    struct port *p = connected(true);
    for (uint64_t end = now_ns() + NSEC_PER_SEC / 5; now_ns() < end;) { /* all that it says */
        port_shm_look(p);
        port_recv(p, now_ns(), &rx, 0);
        usleep(1000);
    }
    shown = port_shm_shown(p);
    port_close(p);
    kill(child, SIGKILL);
    finish();
    return shown;
}

static void a_peer_that_only_says_that_it_can_read_our_memory_has_not_shown_it(void **state)
{
    (void)state;
    assert_int_equal(shown_by(role_serve), 1);
    assert_int_equal(shown_by(role_serve_elsewhere), 0);
    assert_int_equal(shown_by(role_claims), 0);
}

#define T(f) cmocka_unit_test_teardown(f, reap)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_killed_sender_loses_packets_and_nothing_else),
        T(a_killed_receiver_blocks_nobody),
        T(a_stopped_receiver_fills_the_ring_and_goes_on_later),
        T(nonsense_in_the_ring_is_dropped_and_harms_nobody),
        T(a_hello_that_is_wrong_is_refused),
        T(another_users_process_and_other_sockets_are_refused),
        T(memory_that_could_shrink_is_not_shared),
        T(a_peer_that_only_says_that_it_can_read_our_memory_has_not_shown_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

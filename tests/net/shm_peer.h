/*
 * Two processes on the two ends of the shared-memory port: a peer that is a child of the test, packets with a pattern,
 * and a peer that checks and answers them.
 */
#ifndef TESTS_SHM_PEER_H
#define TESTS_SHM_PEER_H

#include "base/rng.h"
#include "roce/wire.h"
#include "shm_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#define BIG (1u << 20)

static const struct port_addr A = {.gid.raw = {[10] = 0xff, [11] = 0xff, 192, 0, 2, 1}, .udp_port = PORT_UDP};
static const struct port_addr B = {.gid.raw = {[10] = 0xff, [11] = 0xff, 192, 0, 2, 2}, .udp_port = PORT_UDP};

static inline uint64_t seed(void)
{
    const char *s = getenv("PENSTOCK_SEED");
    return s ? strtoull(s, NULL, 0) : 1;
}

/* ---- a peer in a process of its own: runs `role` on its end, and ends with what that returns ---- */

static pid_t child;
static int ours; /* the parent's end of the socket, until a port has it */

static inline struct port *open_end(int sock, bool first, bool peer_memory)
{
    char err[200];
    struct port *p = NULL;
    struct port_shm_config cfg = {.sock = sock, .local = first ? A : B, .remote = first ? B : A};
    cfg.peer_memory = peer_memory;
    cfg.ring_packets = 64;
    return port_shm_open(&cfg, &p, err, sizeof err) ? NULL : p;
}

static inline void start(int (*role)(int sock))
{
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(sv[0]);
        alarm(60);
        _exit(role(sv[1]));
    }
    close(sv[1]);
    ours = sv[0];
}

static inline int finish(void)
{
    int st = 0;
    waitpid(child, &st, 0);
    child = 0;
    return WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
}

static inline int reap(void **state)
{
    (void)state;
    if (child > 0) {
        kill(child, SIGKILL);
        finish();
    }
    return 0;
}

/* Sleeps until the port has something to say, by the contract of arm. */
static inline void wait_for(struct port *p)
{
    struct pollfd pfd = {port_fd(p), POLLIN, 0};
    if (!port_arm(p))
        poll(&pfd, 1, port_deadline(p) == UINT64_MAX ? 10000 : 20);
}

static inline int recv_wait(struct port *p, struct port_rx *rx, int max)
{
    int n;
    while ((n = port_recv(p, now_ns(), rx, max)) == 0)
        wait_for(p);
    return n;
}

/* ---- packets: payload byte i of packet psn ---- */

static inline uint8_t pattern(uint32_t psn, size_t i)
{
    return (uint8_t)(psn * 31 + i * 7 + (i >> 8));
}

static inline void fill(uint8_t *p, uint32_t psn, size_t len)
{
    for (size_t i = 0; i < len; i++)
        p[i] = pattern(psn, i);
}

static inline int send_packet(struct port *p, uint32_t psn, const uint8_t *pay, uint32_t len, bool stays)
{
    uint8_t head[WIRE_HEAD_MAX], tail[WIRE_TAIL_MAX] = {0};
    uint32_t pad = wire_pad(len);
    struct wire_pkt w = {.opcode = WIRE_RC_WRITE_ONLY, .pkey = 0xffff, .dest_qp = 5, .psn = psn_make(psn)};
    w.far = true;
    w.payload_len = len;
    w.dma_len = len;
    int n = wire_encode_head(&w, head, sizeof head);
    if (n < 0)
        return n;
    struct iovec iov[4] = {
        {head, (size_t)n}, {(void *)pay, len / 3}, {(void *)(pay + len / 3), len - len / 3}, {tail, pad + 4}};
    struct port_tx tx = {.from = A, .to = B, .iov = iov, .niov = 4, .npkts = 1, .stays = stays};
    tx.seg_bytes = tx.last_bytes = (uint32_t)n + len + pad + 4;
    tx.hop_limit = 9;
    return port_send(p, now_ns(), &tx, 1);
}

static inline int send_wait(struct port *p, uint32_t psn, const uint8_t *pay, uint32_t len, bool stays)
{
    int n;
    struct port_rx rx;
    while ((n = send_packet(p, psn, pay, len, stays)) == 0) {
        wait_for(p);
        port_recv(p, now_ns(), &rx, 0);
    }
    return n;
}

static inline uint32_t psn_of(const struct port_rx *rx)
{
    return (uint32_t)rx->data[9] << 16 | (uint32_t)rx->data[10] << 8 | rx->data[11];
}

static inline uint32_t length_of(const struct port_rx *rx)
{
    return (uint32_t)rx->data[24] << 24 | (uint32_t)rx->data[25] << 16 | (uint32_t)rx->data[26] << 8 | rx->data[27];
}

/* 0 when the bytes are right; fetched in two parts. */
static inline int verify(const struct port_rx *rx, uint8_t *buf)
{
    uint32_t len = length_of(rx), psn = psn_of(rx);
    const uint8_t *bytes = rx->data + 28;
    if (rx->copy) {
        if (rx->remote_len != len || rx->len != 28)
            return 1;
        int rc = rx->copy(rx->copy_ctx, buf, 0, len / 2);
        rc = rc ? rc : rx->copy(rx->copy_ctx, buf + len / 2, len / 2, len - len / 2);
        if (rc || rx->copy(rx->copy_ctx, buf, len, 1) != -EINVAL)
            return rc ? rc : 2;
        bytes = buf;
    } else if (rx->len != 28 + len + wire_pad(len) + 4) {
        return 3;
    }
    for (uint32_t i = 0; i < len; i++)
        if (bytes[i] != pattern(psn, i))
            return 4;
    return memcmp(&rx->from, &A, sizeof A) || memcmp(&rx->to, &B, sizeof B) || rx->hop_limit != 9 ? 5 : 0;
}

/* Receives and checks until the peer closes; answers each packet with an empty one of the same PSN. */
static inline int serve(int sock, bool peer_memory, int pause_us)
{
    static uint8_t buf[BIG + 64];
    struct port *p = open_end(sock, false, peer_memory);
    struct port_rx rx[8];
    int n;
    if (!p)
        return 10;
    while ((n = recv_wait(p, rx, 8)) > 0) {
        for (int i = 0; i < n; i++) {
            int rc = verify(&rx[i], buf);
            if (rc)
                return 20 + (rc & 15);
            if (send_packet(p, psn_of(&rx[i]), NULL, 0, false) < 0)
                return 11;
        }
        if (pause_us)
            usleep((useconds_t)pause_us);
    }
    port_close(p);
    return n == -ECONNRESET ? 0 : 12;
}

static inline int role_serve(int sock)
{
    return serve(sock, true, 0);
}

static inline int role_serve_copying(int sock)
{
    return serve(sock, false, 0);
}

static inline int role_serve_slowly(int sock)
{
    return serve(sock, true, 3000);
}

static inline int role_serve_elsewhere(int sock)
{
    return unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET) ? 99 : serve(sock, false, 0);
}

static inline struct port *connected(bool peer_memory)
{
    struct port *p = open_end(ours, true, peer_memory);
    struct port_rx rx;
    assert_non_null(p);
    while (port_shm_ready(p) == 0) {
        wait_for(p);
        port_recv(p, now_ns(), &rx, 0);
    }
    assert_int_equal(port_shm_ready(p), 1);
    return p;
}

static inline void await_answer(struct port *p, uint32_t psn)
{
    struct port_rx rx;
    assert_int_equal(recv_wait(p, &rx, 1), 1);
    assert_int_equal(psn_of(&rx), psn);
}

/* Memory of an allocator: a sealed memfd. */
static inline uint8_t *shared_memory(size_t len, int *ret_fd)
{
    *ret_fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(*ret_fd, (off_t)len), 0);
    assert_int_equal(fcntl(*ret_fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

static inline int last_kind(const struct port *p)
{
    const struct shm_port *s = shm_of(p);
    return s->tx->entries[(s->tx_head - 1) & (s->tx_geo.slots - 1)].kind;
}

static inline bool peer_reads(const struct port *p)
{
    return shm_of(p)->peer_reads;
}

#endif

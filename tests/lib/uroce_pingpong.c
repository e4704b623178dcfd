/*
 * The other end of rdma-core's ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong and ibv_srq_pingpong, over uroce:
 *
 *     uroce_pingpong rc|uc|ud|srq SIZE ITERATIONS MTU QPS [HOST]       with HOST: the client
 *
 * They tell each other a line a queue pair over TCP port 18515. Theirs send what came last: so what we send comes
 * back, and is compared. Ends with 0 when all came and was right, after its stdin ends (the peer may need an
 * acknowledgement again).
 */
#include "qp_mask.h"
#include "uroce/uroce.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TCP_PORT  18515
#define LINE      sizeof "0000:000000:000000:00000000000000000000000000000000" /* LID, QPN, PSN, GID; with the NUL */
#define SRQ_LINES 256 /* their SRQ program tells so many, however few it uses */
#define QPS_MAX   16
#define DEPTH     64
#define QKEY      0x11111111u

static struct {
    enum uroce_qp_type type;
    bool client, srq;
    uint32_t size, iterations, mtu, nqp, header; /* header: in front of a received message */
    struct uroce_device *dev;
    struct uroce_pd *pd;
    struct uroce_cq *cq;
    struct uroce_srq *rq;
    struct uroce_mr *mr;
    struct uroce_ah *ah;
    struct uroce_qp *qp[QPS_MAX];
    uint8_t *mem; /* QPS_MAX messages to send, then DEPTH to receive */
    uint32_t psn, peer_qpn[QPS_MAX], peer_psn[QPS_MAX];
    union uroce_gid gid, peer;
    uint32_t sent, received;
    int waiting[QPS_MAX]; /* for so many of: its send, a message */
} p;

static void check(int r, const char *what)
{
    if (r < 0) {
        fprintf(stderr, "uroce_pingpong: %s: %s\n", what, strerror(-r));
        exit(1);
    }
}

static uint32_t slot_bytes(void)
{
    return p.header + p.size;
}

static uint8_t *recv_slot(uint64_t i)
{
    return p.mem + (size_t)(QPS_MAX + i) * slot_bytes();
}

/* What the peer sends back: one stream each queue pair; over an SRQ, where theirs share a buffer, always the same. */
static uint8_t byte_of(uint32_t qp, uint32_t turn, uint32_t i)
{
    return p.srq ? 0x5a : (uint8_t)(i * 7 + i / 251 + turn * 31 + qp);
}

static void post_recv(uint32_t qp, uint64_t slot)
{
    struct uroce_sge sge = {(uintptr_t)recv_slot(slot), slot_bytes(), uroce_mr_lkey(p.mr)};
    struct uroce_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1};
    const struct uroce_recv_wr *bad;
    check(p.rq ? uroce_post_srq_recv(p.rq, &wr, &bad) : uroce_post_recv(p.qp[qp], &wr, &bad), "post a receive");
}

static void post_send(uint32_t qp, uint32_t turn)
{
    uint8_t *m = p.mem + (size_t)qp * slot_bytes();
    for (uint32_t i = 0; i < p.size; i++)
        m[i] = byte_of(qp, turn, i);
    struct uroce_sge sge = {(uintptr_t)m, p.size, uroce_mr_lkey(p.mr)};
    struct uroce_send_wr wr = {
        .wr_id = DEPTH, .sg_list = &sge, .num_sge = 1, .opcode = UROCE_WR_SEND, .send_flags = UROCE_SEND_SIGNALED};
    const struct uroce_send_wr *bad;
    if (p.type == UROCE_QPT_UD) {
        wr.wr.ud.ah = p.ah;
        wr.wr.ud.remote_qpn = p.peer_qpn[qp];
        wr.wr.ud.remote_qkey = QKEY;
    }
    check(uroce_post_send(p.qp[qp], &wr, &bad), "post a send");
    p.waiting[qp] = 2;
}

static void open_all(void)
{
    char err[256] = "";
    int r = uroce_open(NULL, &p.dev, err, sizeof err);
    check(r, err);
    size_t len = (size_t)(QPS_MAX + DEPTH) * slot_bytes();
    p.mem = calloc(1, len);
    check(p.mem ? 0 : -ENOMEM, "memory");
    check(uroce_query_gid(p.dev, 0, &p.gid), "the address");
    check(uroce_pd_alloc(p.dev, &p.pd), "a domain");
    check(uroce_mr_reg(p.pd, p.mem, len, (uintptr_t)p.mem, UROCE_ACCESS_LOCAL_WRITE, &p.mr), "register");
    check(uroce_cq_create(p.dev, DEPTH + QPS_MAX, NULL, NULL, &p.cq), "a completion queue");
    if (p.srq)
        check(uroce_srq_create(p.pd, DEPTH, 1, NULL, NULL, &p.rq), "a shared receive queue");
    for (uint32_t i = 0; i < p.nqp; i++) {
        struct uroce_qp_init init = {
            .type = p.type,
            .send_cq = p.cq,
            .recv_cq = p.cq,
            .srq = p.rq,
            .cap = {.max_send_wr = 1, .max_recv_wr = p.rq ? 0 : DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        };
        check(uroce_qp_create(p.pd, &init, &p.qp[i]), "a queue pair");
        struct uroce_qp_attr a = {.qp_state = UROCE_QPS_INIT, .port_num = 1, .qkey = QKEY};
        check(uroce_qp_modify(p.qp[i], &a, qp_mask(p.type, UROCE_QPS_INIT)), "INIT");
    }
    for (uint64_t i = 0; i < DEPTH; i++)
        post_recv(0, i);
}

static void connect_qp(uint32_t i)
{
    struct uroce_qp_attr a = {
        .qp_state = UROCE_QPS_RTR,
        .path_mtu = p.mtu == 1024 ? UROCE_MTU_1024 : UROCE_MTU_4096,
        .dest_qp_num = p.peer_qpn[i],
        .rq_psn = p.peer_psn[i],
        .sq_psn = p.psn + i,
        .max_rd_atomic = 1,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .ah_attr = {.dgid = p.peer},
    };
    check(uroce_qp_modify(p.qp[i], &a, qp_mask(p.type, UROCE_QPS_RTR)), "RTR");
    a.qp_state = UROCE_QPS_RTS;
    check(uroce_qp_modify(p.qp[i], &a, qp_mask(p.type, UROCE_QPS_RTS)), "RTS");
}

/* ---- what the two tell each other ---- */

static void read_all(int fd, void *buf, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = read(fd, (char *)buf + at, n - at);
        check(r > 0 ? 0 : -EPIPE, "the peer's address");
        at += (size_t)r;
    }
}

static void write_all(int fd, const void *buf, size_t n)
{
    check(write(fd, buf, n) == (ssize_t)n ? 0 : -EPIPE, "tell our address");
}

static void tell(int fd, uint32_t lines)
{
    for (uint32_t i = 0; i < lines; i++) {
        char line[LINE], gid[33];
        for (size_t k = 0; k < 16; k++)
            snprintf(gid + 2 * k, 3, "%02x", p.gid.raw[k]);
        bool used = i < p.nqp;
        snprintf(line, sizeof line, "0000:%06x:%06x:%s", used ? uroce_qp_num(p.qp[i]) : 0, used ? p.psn + i : 0, gid);
        write_all(fd, line, sizeof line);
    }
}

static void hear(int fd, uint32_t lines)
{
    for (uint32_t i = 0; i < lines; i++) {
        char line[LINE], gid[33];
        unsigned int lid, qpn, psn, byte;
        read_all(fd, line, sizeof line);
        line[LINE - 1] = '\0';
        check(sscanf(line, "%x:%x:%x:%32s", &lid, &qpn, &psn, gid) == 4 ? 0 : -EPROTO, line);
        if (i >= p.nqp)
            continue;
        p.peer_qpn[i] = qpn;
        p.peer_psn[i] = psn;
        for (size_t k = 0; k < 16 && sscanf(gid + 2 * k, "%2x", &byte) == 1; k++)
            p.peer.raw[k] = (uint8_t)byte;
    }
}

static int join(const char *host)
{
    int one = 1, s = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(TCP_PORT)};
    if (host) {
        check(inet_pton(AF_INET6, host, &a.sin6_addr) == 1 ? 0 : -EINVAL, host);
        for (int tries = 1000; connect(s, (const struct sockaddr *)&a, sizeof a); tries--) { /* it may not listen yet */
            check(errno == ECONNREFUSED && tries ? 0 : -errno, host);
            close(s);
            usleep(20000);
            s = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        }
        return s;
    }
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    check(bind(s, (const struct sockaddr *)&a, sizeof a) || listen(s, 1) ? -errno : 0, "listen");
    printf("ready\n");
    fflush(stdout);
    int fd = accept(s, NULL, NULL);
    close(s);
    check(fd < 0 ? -errno : 0, "accept");
    return fd;
}

static void meet(const char *host)
{
    uint32_t lines = p.srq ? SRQ_LINES : 1;
    int fd = join(host);
    char done[sizeof "done"];
    if (p.client)
        tell(fd, lines);
    hear(fd, lines);
    for (uint32_t i = 0; i < p.nqp; i++)
        connect_qp(i);
    if (p.type == UROCE_QPT_UD) {
        struct uroce_ah_attr to = {.dgid = p.peer};
        check(uroce_ah_create(p.pd, &to, &p.ah), "an address handle");
    }
    if (p.client) {
        write_all(fd, "done", sizeof "done");
    } else {
        tell(fd, lines);
        read_all(fd, done, sizeof done);
    }
    close(fd);
}

/* ---- the game ---- */

/* Before our first message has come back, theirs is what their buffer began with. */
static void compare(uint32_t qp, uint32_t turn, const uint8_t *m)
{
    for (uint32_t i = 0; i < p.size; i++) {
        bool right = m[i] == byte_of(qp, turn - 1, i);
        if (p.srq)
            right |= !p.client && m[i] == 0;
        else
            right |= turn == 0;
        if (!right) {
            fprintf(stderr, "uroce_pingpong: queue pair %u, message %u: byte %u is %02x\n", qp, turn, i, m[i]);
            exit(1);
        }
    }
}

static uint32_t index_of(uint32_t qpn)
{
    for (uint32_t i = 0; i < p.nqp; i++)
        if (uroce_qp_num(p.qp[i]) == qpn)
            return i;
    check(-EPROTO, "a completion of nobody's");
    return 0;
}

static void play(void)
{
    uint32_t turn[QPS_MAX] = {0};
    for (uint32_t i = 0; i < p.nqp; i++) {
        if (p.client)
            post_send(i, turn[i]++);
        else
            p.waiting[i] = 1;
    }
    while (p.sent < p.iterations || p.received < p.iterations) {
        struct uroce_wc wc;
        int n = uroce_wait_cq(p.cq, 1, &wc, 30000000000u);
        check(n == 1 ? 0 : n ? n : -ETIMEDOUT, "a completion");
        if (wc.status != UROCE_WC_SUCCESS) {
            fprintf(stderr, "uroce_pingpong: a completion with status %d\n", (int)wc.status);
            exit(1);
        }
        uint32_t qp = index_of(wc.qp_num);
        if (wc.wr_id == DEPTH) {
            p.sent++;
        } else {
            check(wc.byte_len == slot_bytes() ? 0 : -EMSGSIZE, "a message's length");
            compare(qp, turn[qp], recv_slot(wc.wr_id) + p.header);
            post_recv(qp, wc.wr_id);
            p.received++;
        }
        if (--p.waiting[qp] == 0 && p.sent < p.iterations)
            post_send(qp, turn[qp]++);
    }
}

static void close_all(void)
{
    for (uint32_t i = 0; i < p.nqp; i++)
        check(uroce_qp_destroy(p.qp[i]), "destroy a queue pair");
    if (p.rq)
        check(uroce_srq_destroy(p.rq), "destroy the shared receive queue");
    if (p.ah)
        check(uroce_ah_destroy(p.ah), "destroy the address handle");
    check(uroce_cq_destroy(p.cq), "destroy the completion queue");
    check(uroce_mr_dereg(p.mr), "deregister");
    check(uroce_pd_dealloc(p.pd), "free the domain");
    check(uroce_close(p.dev), "close");
    free(p.mem);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    p.srq = strcmp(argv[1], "srq") == 0;
    p.type = strcmp(argv[1], "uc") == 0 ? UROCE_QPT_UC : strcmp(argv[1], "ud") == 0 ? UROCE_QPT_UD : UROCE_QPT_RC;
    p.size = (uint32_t)strtoul(argv[2], NULL, 0);
    p.iterations = (uint32_t)strtoul(argv[3], NULL, 0);
    p.mtu = (uint32_t)strtoul(argv[4], NULL, 0);
    p.nqp = p.srq ? (uint32_t)strtoul(argv[5], NULL, 0) : 1;
    p.client = argc > 6;
    p.header = p.type == UROCE_QPT_UD ? UROCE_GRH_BYTES : 0;
    p.psn = (uint32_t)getpid() & UROCE_PSN_MASK;
    check(p.nqp <= QPS_MAX ? 0 : -EINVAL, "QPS");
    open_all();
    meet(argc > 6 ? argv[6] : NULL);
    play();
    printf("%u messages each way\n", p.iterations);
    fflush(stdout);
    for (char c; read(STDIN_FILENO, &c, 1) > 0;)
        ;
    close_all();
    return 0;
}

/*
 * Ceilings of uroce, and its ports beside them: bench_roce PART key=value..., one line of JSON.
 *
 *     blast         bare UDP segmentation from one namespace to another over veth: mtu= seg= segs= seconds=
 *     port_blast    the same packets through the udp port, headers and payload gathered as the device does
 *     pingpong      bare UDP round trips: mtu= size= count= event=1
 *     port_pingpong the same through the udp port
 *     shm           see bench_roce_shm.c: size= seconds= count=
 *     write, read, rdma_pingpong  see bench_roce_rdma.c: mtu= size= depth= seconds=; mode= count=; shm=
 *     fair          see bench_roce_fair.c: mtu= qps= size= depth= seconds=
 *     tcp_write, tcp_read         see bench_roce_fabric.c: mtu= size= depth= seconds=
 *
 * Sender and receiver are two processes with a core each. Rates are what the receiver got.
 */
#include "roce_bench.h"

#include "lib/netns.h"
#include "roce/wire_limits.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define BATCH     8
#define RCVBUF    (16 << 20) /* as the port's */
#define QUIET_MS  200        /* the receiver ends after so long without a packet */
#define BUF_BYTES 66560

static struct netns_pair ns;
static const struct port_addr addr[2] = {
    {.gid.raw = {[10] = 0xff, [11] = 0xff, 10, 77, 0, 1}, .udp_port = PORT_UDP},
    {.gid.raw = {[10] = 0xff, [11] = 0xff, 10, 77, 0, 2}, .udp_port = PORT_UDP},
};

void fatal(const char *what)
{
    fprintf(stderr, "bench_roce: %s: %s\n", what, strerror(errno));
    exit(1);
}

double cpu_seconds(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

void pin(int i)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < 2)
        return;
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &all) || i-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(c, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

pid_t fork_ends(int *ret_sock)
{
    int s[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, s))
        fatal("socketpair");
    pid_t pid = fork();
    if (pid < 0)
        fatal("fork");
    int i = pid == 0;
    if (i)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(s[!i]);
    pin(i);
    *ret_sock = s[i];
    return pid;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

void print_latency(uint32_t *ns_each, size_t n)
{
    qsort(ns_each, n, sizeof *ns_each, by_value);
    printf("\"p50_us\": %.2f, \"p99_us\": %.2f", ns_each[n / 2] / 1e3, ns_each[n * 99 / 100] / 1e3);
}

/* ---- the two kinds of ends ---- */

static int bare_socket(int i)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(PORT_UDP)};
    int one = 1, big = RCVBUF, df = IP_PMTUDISC_PROBE;
    netns_enter(&ns, i);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    memcpy(&a.sin_addr, addr[i].gid.raw + 12, 4);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a))
        fatal("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof big))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
    setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one);
    setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &df, sizeof df);
    return fd;
}

static struct port *port_end(int i)
{
    char err[200];
    struct port *p;
    struct port_udp_config cfg = {.local = addr[i], .fd = -1};
    netns_enter(&ns, i);
    if (port_udp_open(&cfg, &p, err, sizeof err)) {
        fprintf(stderr, "bench_roce: %s\n", err);
        exit(1);
    }
    return p;
}

/* ---- blast ---- */

static void bare_send(int fd, const struct roce_args *a, uint64_t until, struct measured *m)
{
    static uint8_t buf[BUF_BYTES];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT_UDP)};
    struct mmsghdr mm[BATCH];
    struct iovec iov = {buf, a->seg * a->segs};
    int seg = (int)a->seg;
    memset(buf, 1, sizeof buf); /* or all of it is one page of zeros */
    memcpy(&to.sin_addr, addr[1].gid.raw + 12, 4);
    if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &seg, sizeof seg))
        fatal("UDP_SEGMENT");
    for (int i = 0; i < BATCH; i++)
        mm[i].msg_hdr = (struct msghdr){.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &iov, .msg_iovlen = 1};
    while (now_ns() < until) {
        int n = sendmmsg(fd, mm, BATCH, 0);
        if (n > 0)
            m->packets += (uint64_t)n * a->segs;
    }
}

static void port_send_all(struct port *p, const struct roce_args *a, uint64_t until, struct measured *m)
{
    static uint8_t head[WIRE_BTH_BYTES], tail[4], pay[1 << 20];
    struct iovec iov[3 * PORT_SEGS_MAX];
    struct port_tx tx[BATCH];
    size_t bytes = a->seg - sizeof head - sizeof tail;
    memset(pay, 1, sizeof pay);
    for (uint32_t k = 0; k < a->segs; k++) {
        iov[3 * k] = (struct iovec){head, sizeof head};
        iov[3 * k + 1] = (struct iovec){pay + k * bytes, bytes};
        iov[3 * k + 2] = (struct iovec){tail, sizeof tail};
    }
    tx[0] = (struct port_tx){.from = addr[0], .to = addr[1], .iov = iov, .niov = (int)(3 * a->segs)};
    tx[0].npkts = (uint32_t)a->segs;
    tx[0].seg_bytes = tx[0].last_bytes = (uint32_t)a->seg;
    tx[0].hop_limit = 64;
    for (int i = 1; i < BATCH; i++)
        tx[i] = tx[0];
    for (uint64_t now; (now = now_ns()) < until;) {
        int n = port_send(p, now, tx, BATCH);
        if (n > 0)
            m->packets += (uint64_t)n * a->segs;
    }
}

static int bare_recv(int fd, uint64_t *bytes)
{
    static uint8_t buf[BATCH][BUF_BYTES];
    struct mmsghdr mm[BATCH];
    struct iovec iov[BATCH];
    char ctl[BATCH][64];
    for (int i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec){buf[i], BUF_BYTES};
        mm[i].msg_hdr =
            (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1, .msg_control = ctl[i], .msg_controllen = 64};
    }
    int n = recvmmsg(fd, mm, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++)
        *bytes += mm[i].msg_len;
    return n;
}

static int port_recv_all(struct port *p, uint64_t *bytes)
{
    struct port_rx rx[256];
    int n = port_recv(p, now_ns(), rx, 256);
    for (int i = 0; i < n; i++)
        *bytes += rx[i].len;
    return n;
}

/* Until it has been quiet for a while; the time is that from the first packet to the last. */
static struct measured receive(int fd, struct port *p)
{
    struct measured m = {0};
    uint64_t first = 0, last = 0;
    double cpu = 0;
    for (;;) {
        struct pollfd pfd = {p ? port_fd(p) : fd, POLLIN, 0};
        int n = p ? port_recv_all(p, &m.bytes) : bare_recv(fd, &m.bytes);
        if (n > 0) {
            last = now_ns();
            m.cpu = cpu_seconds() - cpu;
            if (!first) {
                first = last;
                cpu = cpu_seconds();
                m.bytes = 0;
            }
        } else if (poll(&pfd, 1, first ? QUIET_MS : 10000) == 0) {
            break;
        }
    }
    m.seconds = (double)(last - first) / 1e9;
    return m;
}

/* One of the two kinds of ends: a bare socket, or the port. */
struct side {
    int fd;
    struct port *p;
};

static struct side open_side(int i, bool through_port)
{
    pin(i);
    struct port *p = through_port ? port_end(i) : NULL;
    return (struct side){.fd = p ? -1 : bare_socket(i), .p = p};
}

/* The side of the child process, which says so to its parent. */
static struct side open_child(int ready, bool through_port)
{
    struct side s = open_side(1, through_port);
    if (write(ready, "r", 1) != 1)
        _exit(1);
    return s;
}

/* The parent's, once the child is ready. */
static struct side open_parent(int ready, bool through_port)
{
    struct side s = open_side(0, through_port);
    char c;
    if (read(ready, &c, 1) != 1)
        fatal("the other process");
    return s;
}

static void blast(const struct roce_args *a, bool through_port)
{
    struct measured sent = {0}, got;
    int result[2], ready[2];
    if (pipe(result) || pipe(ready))
        fatal("pipe");
    pid_t child = fork();
    if (child == 0) {
        struct side s = open_child(ready[1], through_port);
        got = receive(s.fd, s.p);
        _exit(write(result[1], &got, sizeof got) != sizeof got);
    }
    close(result[1]);
    struct side s = open_parent(ready[0], through_port);
    double cpu = cpu_seconds();
    uint64_t until = now_ns() + (uint64_t)(a->seconds * 1e9);
    if (s.p)
        port_send_all(s.p, a, until, &sent);
    else
        bare_send(s.fd, a, until, &sent);
    sent.cpu = cpu_seconds() - cpu;
    if (read(result[0], &got, sizeof got) != sizeof got)
        fatal("the receiver's result");
    waitpid(child, NULL, 0);
    port_close(s.p);
    double gb_sent = (double)sent.packets * (double)a->seg / 1e9, gb = (double)got.bytes / 1e9;
    printf("{\"part\": \"%s\", \"mtu\": %llu, \"seg\": %llu, \"segs\": %llu, \"gb_per_s\": %.3f, \"lost\": %.4f, ",
           a->part, (unsigned long long)a->mtu, (unsigned long long)a->seg, (unsigned long long)a->segs,
           gb / got.seconds, 1 - gb / gb_sent);
    /* Of a core's second: tells something also when the cores have other work. */
    printf("\"send_gb_per_core_s\": %.2f, \"recv_gb_per_core_s\": %.2f}\n", gb_sent / sent.cpu, gb / got.cpu);
}

/* ---- ping-pong ---- */

static void sleep_on(int fd)
{
    struct pollfd pfd = {fd, POLLIN, 0};
    poll(&pfd, 1, 1000);
}

static void bare_turn(int fd, const struct roce_args *a, int peer, bool sends)
{
    static uint8_t buf[BUF_BYTES];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT_UDP)};
    memcpy(&to.sin_addr, addr[peer].gid.raw + 12, 4);
    if (sends) {
        sendto(fd, buf, a->size, 0, (struct sockaddr *)&to, sizeof to);
        return;
    }
    while (recv(fd, buf, sizeof buf, MSG_DONTWAIT) < 0)
        if (a->event)
            sleep_on(fd);
}

static void port_turn(struct port *p, const struct roce_args *a, int peer, bool sends)
{
    static uint8_t buf[BUF_BYTES];
    struct iovec iov = {buf, a->size};
    struct port_tx tx = {.from = addr[!peer], .to = addr[peer], .iov = &iov, .niov = 1, .npkts = 1};
    struct port_rx rx;
    tx.seg_bytes = tx.last_bytes = (uint32_t)a->size;
    tx.hop_limit = 64;
    if (sends) {
        port_send(p, now_ns(), &tx, 1);
        return;
    }
    while (port_recv(p, now_ns(), &rx, 1) == 0)
        if (a->event && !port_arm(p))
            sleep_on(port_fd(p));
}

static void turn(int fd, struct port *p, const struct roce_args *a, int peer, bool sends)
{
    if (p)
        port_turn(p, a, peer, sends);
    else
        bare_turn(fd, a, peer, sends);
}

static void pingpong(const struct roce_args *a, bool through_port)
{
    uint32_t *ns_each = calloc(a->count, sizeof *ns_each);
    int ready[2];
    if (!ns_each || pipe(ready))
        fatal("pipe");
    pid_t child = fork();
    if (child == 0) {
        struct side s = open_child(ready[1], through_port);
        for (;;) {
            turn(s.fd, s.p, a, 0, false);
            turn(s.fd, s.p, a, 0, true);
        }
    }
    struct side s = open_parent(ready[0], through_port);
    for (uint64_t i = 0; i < a->count + 1000; i++) {
        uint64_t t = now_ns();
        turn(s.fd, s.p, a, 1, true);
        turn(s.fd, s.p, a, 1, false);
        if (i >= 1000)
            ns_each[i - 1000] = (uint32_t)min_u64(now_ns() - t, UINT32_MAX);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    printf("{\"part\": \"%s\", \"size\": %llu, \"event\": %d, ", a->part, (unsigned long long)a->size, a->event);
    print_latency(ns_each, a->count);
    printf("}\n");
    port_close(s.p);
    free(ns_each);
}

static void parse(struct roce_args *a, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        char *eq = strchr(argv[i], '=');
        if (!eq)
            continue;
        double v = strtod(eq + 1, NULL);
        *eq = 0;
        if (strcmp(argv[i], "mtu") == 0)
            a->mtu = (uint64_t)v;
        else if (strcmp(argv[i], "seg") == 0)
            a->seg = (uint64_t)v;
        else if (strcmp(argv[i], "segs") == 0)
            a->segs = (uint64_t)v;
        else if (strcmp(argv[i], "size") == 0)
            a->size = (uint64_t)v;
        else if (strcmp(argv[i], "depth") == 0)
            a->depth = (uint64_t)v;
        else if (strcmp(argv[i], "mode") == 0)
            a->mode = (uint64_t)v;
        else if (strcmp(argv[i], "qps") == 0)
            a->qps = (uint64_t)v;
        else if (strcmp(argv[i], "shm") == 0)
            a->shm = (uint64_t)v;
        else if (strcmp(argv[i], "count") == 0)
            a->count = (uint64_t)v;
        else if (strcmp(argv[i], "seconds") == 0)
            a->seconds = v;
        else if (strcmp(argv[i], "event") == 0)
            a->event = v != 0;
    }
}

int main(int argc, char **argv)
{
    struct roce_args a = {
        .mtu = 1500, .seg = 1040, .segs = 62, .size = 24, .count = 20000, .depth = 4, .qps = 1, .seconds = 1};
    if (argc < 2) {
        fprintf(stderr, "usage: bench_roce blast|port_blast|pingpong|port_pingpong|shm|write|read|rdma_pingpong|fair|"
                        "tcp_write|tcp_read [key=value...]\n");
        return 2;
    }
    a.part = argv[1];
    parse(&a, argc, argv);
    if (!a.segs || a.segs > PORT_SEGS_MAX || a.seg < 20 || a.seg * a.segs > PORT_BATCH_BYTES || a.size < 16 ||
        (strstr(a.part, "pingpong") && a.size > 4096) || a.size > 1u << 26 || !a.count || !a.depth || a.depth > 64 ||
        !a.qps || a.qps > 1024 || (strncmp(a.part, "tcp_", 4) == 0 && a.depth > 32)) {
        fprintf(stderr, "bench_roce: a size is out of bounds\n");
        return 2;
    }
    if (strcmp(a.part, "shm") == 0) {
        bench_shm(&a);
        return 0;
    }
    netns_pair_make(&ns, (int)a.mtu);
    if (strcmp(a.part, "write") == 0 || strcmp(a.part, "read") == 0 || strcmp(a.part, "rdma_pingpong") == 0) {
        bench_rdma(&a, &ns);
        return 0;
    }
    if (strcmp(a.part, "fair") == 0) {
        bench_fair(&a, &ns);
        return 0;
    }
    if (strncmp(a.part, "tcp_", 4) == 0) {
        bench_fabric(&a, &ns);
        return 0;
    }
    bool port = strncmp(a.part, "port_", 5) == 0;
    if (strstr(a.part, "blast"))
        blast(&a, port);
    else
        pingpong(&a, port);
    return 0;
}

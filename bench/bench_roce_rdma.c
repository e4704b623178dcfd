/*
 * uroce itself: `write` and `read` move size= bytes a request at depth= from one process to the memory of another;
 * `rdma_pingpong` is a WRITE of 8 bytes there and back, mode=0 both poll memory, 1 both sleep for events, 2 the
 * target's program computes and a READ is served by its helper thread. shm=1 and 2: by shared memory.
 */
#include "roce_bench.h"

#include "roce_end.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

static void post(struct end *e, enum uroce_wr_opcode op, size_t at, uint32_t len, unsigned flags)
{
    struct uroce_sge s = {.addr = (uintptr_t)e->buf + at, .length = len, .lkey = uroce_mr_lkey(e->mr)};
    struct uroce_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = op, .send_flags = flags | UROCE_SEND_SIGNALED};
    const struct uroce_send_wr *bad;
    wr.wr.rdma.remote_addr = e->peer_addr + at;
    wr.wr.rdma.rkey = e->peer_rkey;
    roce_must(uroce_post_send(e->qps[0], &wr, &bad), "post");
}

/* The next n completions at most, at least one. */
static int complete(struct end *e, int n)
{
    struct uroce_wc wc[DEPTH_MAX];
    int r;
    do
        r = uroce_poll_cq(e->cq, n, wc);
    while (r == 0);
    for (int i = 0; i < r; i++)
        if (wc[i].status != UROCE_WC_SUCCESS) {
            fprintf(stderr, "bench_roce: a request ended with status %d\n", (int)wc[i].status);
            exit(1);
        }
    if (r < 0)
        roce_must(r, "poll");
    return r;
}

/* Sleeps until the CQ that was armed has something: no spinning before, unlike uroce_wait_cq. */
static void sleep_for_event(struct end *e)
{
    struct uroce_cq *cq;
    void *context;
    roce_must(uroce_get_cq_event(e->channel, &cq, &context), "event");
    uroce_ack_cq_events(cq, 1);
}

static void stream(struct end *e, const struct roce_args *a, int sock)
{
    enum uroce_wr_opcode op = strcmp(a->part, "read") ? UROCE_WR_RDMA_WRITE : UROCE_WR_RDMA_READ;
    uint64_t bytes = 0, begun = now_ns(), end = begun + (uint64_t)(a->seconds * 1e9), slot = 0, out = 0;
    double cpu = cpu_seconds(), peer_cpu = 0;
    while (now_ns() < end || out) {
        while (out < a->depth && now_ns() < end) {
            post(e, op, slot++ % a->depth * a->size, (uint32_t)a->size, 0);
            out++;
        }
        int n = complete(e, DEPTH_MAX);
        out -= (uint64_t)n;
        bytes += (uint64_t)n * a->size;
    }
    double seconds = (double)(now_ns() - begun) / 1e9;
    cpu = cpu_seconds() - cpu;
    char over = 1;
    if (send(sock, &over, 1, 0) != 1 || recv(sock, &peer_cpu, sizeof peer_cpu, MSG_WAITALL) != sizeof peer_cpu)
        fatal("exchange");
    struct uroce_counters c;
    uroce_device_counters(e->dev, &c);
    printf("{\"gb_per_s\": %.4f, \"core_s_per_gb\": %.3f, \"peer_core_s_per_gb\": %.3f, \"retransmits\": %llu, "
           "\"packets\": %llu}\n",
           (double)bytes / seconds / 1e9, cpu / ((double)bytes / 1e9), peer_cpu / ((double)bytes / 1e9),
           (unsigned long long)c.retransmits, (unsigned long long)(c.tx_pkts + c.rx_pkts));
}

/* Whoever has the turn writes its count into the other's memory; both look at theirs. */
static void bounce(struct end *e, const struct roce_args *a, bool first)
{
    uint32_t *each = calloc(a->count, sizeof *each);
    volatile uint64_t *mine = (volatile uint64_t *)(void *)(e->buf + 64);
    uint64_t *out = (uint64_t *)(void *)e->buf;
    if (!each)
        fatal("memory");
    for (uint64_t i = 1; i <= a->count; i++) {
        uint64_t since = now_ns();
        if (!first)
            while (*mine < i)
                uroce_poll_cq(e->cq, 0, &(struct uroce_wc){0});
        *out = i;
        struct uroce_sge s = {.addr = (uintptr_t)out, .length = 8};
        struct uroce_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = UROCE_WR_RDMA_WRITE};
        const struct uroce_send_wr *bad;
        wr.send_flags = UROCE_SEND_INLINE | (i % 16 == 0 ? (unsigned)UROCE_SEND_SIGNALED : 0);
        wr.wr.rdma.remote_addr = e->peer_addr + 64;
        wr.wr.rdma.rkey = e->peer_rkey;
        roce_must(uroce_post_send(e->qps[0], &wr, &bad), "post");
        if (first)
            while (*mine < i)
                uroce_poll_cq(e->cq, 0, &(struct uroce_wc){0});
        if (i % 16 == 0)
            complete(e, 1);
        each[i - 1] = (uint32_t)(now_ns() - since);
    }
    if (first) {
        printf("{");
        print_latency(each, a->count);
        printf("}\n");
    }
    free(each);
}

/* READs of 8 bytes; the target's program does not call uroce. */
static void passive(struct end *e, const struct roce_args *a, bool asleep)
{
    uint32_t *each = calloc(a->count, sizeof *each);
    if (!each)
        fatal("memory");
    for (uint64_t i = 0; i < a->count; i++) {
        uint64_t since = now_ns();
        if (asleep && uroce_req_notify_cq(e->cq, 0))
            fatal("a completion that nobody asked for");
        post(e, UROCE_WR_RDMA_READ, 0, 8, 0);
        if (asleep)
            sleep_for_event(e);
        complete(e, 1);
        each[i] = (uint32_t)(now_ns() - since);
    }
    printf("{");
    print_latency(each, a->count);
    printf("}\n");
    free(each);
}

static void target(struct end *e, const struct roce_args *a, int sock)
{
    char over;
    if (strcmp(a->part, "rdma_pingpong") == 0 && a->mode == 0) {
        bounce(e, a, false);
        return;
    }
    double cpu = cpu_seconds();
    if (recv(sock, &over, 1, 0) != 1)
        _exit(0);
    cpu = cpu_seconds() - cpu;
    if (send(sock, &cpu, sizeof cpu, 0) != sizeof cpu)
        fatal("exchange");
    recv(sock, &over, 1, 0);
}

void bench_rdma(const struct roce_args *a, const struct netns_pair *ns)
{
    int sock;
    size_t len = a->size * a->depth + 4096;
    pid_t pid = fork_ends(&sock);
    int i = pid == 0;
    struct end e;
    roce_end_open(&e, ns, i, len, a->shm, 1, DEPTH_MAX);
    roce_end_connect(&e, sock, a->mtu, a->shm);
    if (pid == 0) {
        target(&e, a, sock);
        _exit(0);
    }
    if (strcmp(a->part, "rdma_pingpong"))
        stream(&e, a, sock);
    else if (a->mode == 0)
        bounce(&e, a, true);
    else
        passive(&e, a, a->mode == 1);
    close(sock);
    waitpid(pid, NULL, 0);
}

/*
 * `fair`: qps= queue pairs between two processes, each with depth= READs of size= bytes under way all the time. What
 * all of them move, and the slowest and the fastest beside the mean.
 */
#include "roce_end.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

static void ask(struct end *e, const struct roce_args *a, uint32_t k, uint32_t slot)
{
    struct uroce_sge s = {.length = (uint32_t)a->size, .lkey = uroce_mr_lkey(e->mr)};
    struct uroce_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = UROCE_WR_RDMA_READ};
    const struct uroce_send_wr *bad;
    uint64_t at = slot * a->size; /* the same memory for all: their number alone is what differs */
    s.addr = (uintptr_t)e->buf + at;
    wr.wr_id = (uint64_t)k << 32 | slot;
    wr.send_flags = UROCE_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = e->peer_addr + at;
    wr.wr.rdma.rkey = e->peer_rkey;
    roce_must(uroce_post_send(e->qps[k], &wr, &bad), "post");
}

/* Completions until `end`, which is also when no more is asked for; counted from `from` on. */
static void run(struct end *e, const struct roce_args *a, uint64_t from, uint64_t end, uint64_t *count)
{
    uint64_t out = e->nqps * a->depth, now;
    for (uint32_t slot = 0; slot < a->depth; slot++)
        for (uint32_t k = 0; k < e->nqps; k++)
            ask(e, a, k, slot);
    while (out) {
        struct uroce_wc wc[DEPTH_MAX];
        int n = uroce_poll_cq(e->cq, DEPTH_MAX, wc);
        if (n < 0)
            roce_must(n, "poll");
        now = now_ns();
        for (int i = 0; i < n; i++) {
            uint32_t k = (uint32_t)(wc[i].wr_id >> 32);
            if (wc[i].status != UROCE_WC_SUCCESS) {
                fprintf(stderr, "bench_roce: a request ended with status %d\n", (int)wc[i].status);
                exit(1);
            }
            count[k] += now >= from && now < end;
            if (now < end)
                ask(e, a, k, (uint32_t)wc[i].wr_id);
            else
                out--;
        }
    }
}

static void measure(struct end *e, const struct roce_args *a)
{
    uint64_t *count = calloc(e->nqps, sizeof *count), least = UINT64_MAX, most = 0, sum = 0;
    uint64_t from = now_ns() + 200000000, end = from + (uint64_t)(a->seconds * 1e9);
    struct uroce_counters c;
    double squares = 0;
    if (!count)
        fatal("memory");
    run(e, a, from, end, count);
    for (uint32_t k = 0; k < e->nqps; k++) {
        sum += count[k];
        squares += (double)count[k] * (double)count[k];
        least = min_u64(least, count[k]);
        most = max_u64(most, count[k]);
    }
    uroce_device_counters(e->dev, &c);
    double mean = (double)sum / e->nqps;
    printf("{\"gb_per_s\": %.4f, \"least\": %.4f, \"most\": %.4f, \"jain\": %.5f, \"reads_each\": %.0f, "
           "\"retransmits\": %llu}\n",
           (double)(sum * a->size) / a->seconds / 1e9, (double)least / mean, (double)most / mean,
           (double)sum * (double)sum / (e->nqps * squares), mean, (unsigned long long)c.retransmits);
    free(count);
}

void bench_fair(const struct roce_args *a, const struct netns_pair *ns)
{
    int sock;
    char over;
    pid_t pid = fork_ends(&sock);
    int i = pid == 0;
    struct end e;
    roce_end_open(&e, ns, i, a->size * a->depth + 4096, 0, (uint32_t)a->qps, (uint32_t)a->depth);
    roce_end_connect(&e, sock, a->mtu, 0);
    if (pid == 0) {
        _exit(recv(sock, &over, 1, 0) < 0);
    }
    measure(&e, a);
    close(sock);
    waitpid(pid, NULL, 0);
}

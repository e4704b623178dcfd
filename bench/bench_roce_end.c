#include "roce_end.h"

#include "lib/qp_mask.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct ticket {
    uint32_t rkey;
    uint64_t addr;
    union uroce_gid gid;
};

void roce_must(int r, const char *what)
{
    if (r == 0)
        return;
    errno = -r;
    fatal(what);
}

void roce_end_open(struct end *e, const struct netns_pair *ns, int i, size_t len, uint64_t shm, uint32_t nqps,
                   uint32_t depth)
{
    struct uroce_config c = {
        .addresses = i ? "10.77.0.2" : "10.77.0.1", .congestion_control = -1, .no_shm = shm == 0};
    unsigned access = UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ;
    char err[256];
    netns_enter(ns, i);
    if (uroce_open(&c, &e->dev, err, sizeof err)) {
        fprintf(stderr, "bench_roce: %s\n", err);
        exit(1);
    }
    if (shm == 1)
        roce_must(uroce_mem_alloc(e->dev, len, (void **)&e->buf), "memory");
    else if (posix_memalign((void **)&e->buf, 4096, len))
        fatal("memory");
    memset(e->buf, i + 1, len);
    memset(e->buf + 64, 0, 8); /* a ping-pong counts there: the peer may be first */
    roce_must(uroce_pd_alloc(e->dev, &e->pd), "protection domain");
    roce_must(uroce_channel_create(e->dev, &e->channel), "channel");
    roce_must(uroce_cq_create(e->dev, 2 * nqps * depth, NULL, e->channel, &e->cq), "completion queue");
    roce_must(uroce_mr_reg(e->pd, e->buf, len, (uintptr_t)e->buf, access, &e->mr), "region");
    struct uroce_qp_init init = {
        .type = UROCE_QPT_RC,
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .cap = {.max_send_wr = depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
    };
    e->qps = calloc(nqps, sizeof(struct uroce_qp *));
    e->nqps = nqps;
    if (!e->qps)
        fatal("memory");
    for (uint32_t k = 0; k < nqps; k++)
        roce_must(uroce_qp_create(e->pd, &init, &e->qps[k]), "queue pair");
}

static void connect_one(struct uroce_qp *qp, uint32_t dest, const union uroce_gid *gid, uint64_t mtu)
{
    struct uroce_qp_attr a = {
        .qp_state = UROCE_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ,
    };
    roce_must(uroce_qp_modify(qp, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_INIT)), "INIT");
    a.qp_state = UROCE_QPS_RTR;
    a.path_mtu = mtu >= 4200 ? UROCE_MTU_4096 : UROCE_MTU_1024;
    a.dest_qp_num = dest;
    a.max_dest_rd_atomic = a.max_rd_atomic = UROCE_RD_ATOMIC;
    a.min_rnr_timer = 1;
    a.ah_attr.dgid = *gid;
    roce_must(uroce_qp_modify(qp, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_RTR)), "RTR");
    a.qp_state = UROCE_QPS_RTS;
    a.timeout = 14;
    a.retry_cnt = a.rnr_retry = 7;
    roce_must(uroce_qp_modify(qp, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_RTS)), "RTS");
}

static void swap(int sock, const void *ours, void *ret_theirs, size_t len)
{
    if (send(sock, ours, len, 0) != (ssize_t)len || recv(sock, ret_theirs, len, MSG_WAITALL) != (ssize_t)len)
        fatal("exchange");
}

void roce_end_connect(struct end *e, int sock, uint64_t mtu, uint64_t shm)
{
    struct ticket t = {.rkey = uroce_mr_rkey(e->mr), .addr = (uintptr_t)e->buf}, peer;
    uroce_query_gid(e->dev, 0, &t.gid);
    swap(sock, &t, &peer, sizeof t);
    e->peer_addr = peer.addr;
    e->peer_rkey = peer.rkey;
    for (uint32_t k = 0; k < e->nqps; k++) {
        uint32_t ours = uroce_qp_num(e->qps[k]), theirs;
        swap(sock, &ours, &theirs, sizeof ours);
        connect_one(e->qps[k], theirs, &peer.gid, mtu);
    }
    for (struct uroce_qp_transport way = {.port = ""}; shm && strcmp(way.port, "shm"); usleep(1000))
        roce_must(uroce_qp_transport(e->qps[0], &way), "transport");
    char ready = 1;
    swap(sock, &ready, &ready, 1);
}

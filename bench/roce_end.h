/* One end of the benches of uroce itself: a device, memory, and queue pairs over one completion queue. */
#ifndef BENCH_ROCE_END_H
#define BENCH_ROCE_END_H

#include "lib/netns.h"
#include "roce_bench.h"
#include "uroce/uroce.h"

#define DEPTH_MAX 64

struct end {
    struct uroce_device *dev;
    struct uroce_pd *pd;
    struct uroce_channel *channel;
    struct uroce_cq *cq;
    struct uroce_mr *mr;
    struct uroce_qp **qps;
    uint32_t nqps;
    uint8_t *buf;
    uint64_t peer_addr;
    uint32_t peer_rkey;
};

void roce_must(int r, const char *what);
/* shm: as of struct roce_args. Each queue pair takes `depth` requests. */
void roce_end_open(struct end *e, const struct netns_pair *ns, int i, size_t len, uint64_t shm, uint32_t nqps,
                   uint32_t depth);
/* Queue pair k with the peer's k; what is needed is told over the socket. */
void roce_end_connect(struct end *e, int sock, uint64_t mtu, uint64_t shm);

#endif

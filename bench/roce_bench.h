/* What the parts of bench_roce share: two processes, one core each, and what they measured. */
#ifndef BENCH_ROCE_BENCH_H
#define BENCH_ROCE_BENCH_H

#include "base/util.h"
#include "port/port.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/types.h>

struct roce_args {
    const char *part;
    uint64_t mtu, seg, segs, size, count, depth, mode, qps;
    uint64_t shm; /* of the device: 0: UDP, 1: shared memory and the allocator's memory, 2: the same, other memory */
    double seconds;
    bool event; /* sleep in poll() instead of spinning */
};

struct measured {
    uint64_t bytes, packets;
    double seconds, cpu; /* of whoever measured it */
};

/* User and system seconds of this process. */
double cpu_seconds(void);
/* On the i-th of the cores that the program may use, if there are two. */
void pin(int i);
/*
 * A second process, as fork() has it: the parent is end 0, the child end 1 and dies with it. Each on a core of its own,
 * with an end of a socket.
 */
pid_t fork_ends(int *ret_sock);
void fatal(const char *what) __attribute__((noreturn));
/* Round trips in nanoseconds: prints median and 99th percentile as JSON members. */
void print_latency(uint32_t *ns, size_t n);

void bench_shm(const struct roce_args *a);
struct netns_pair;
void bench_fair(const struct roce_args *a, const struct netns_pair *ns);
void bench_fabric(const struct roce_args *a, const struct netns_pair *ns);
void bench_rdma(const struct roce_args *a, const struct netns_pair *ns);

#endif

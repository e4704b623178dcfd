/*
 * bench_roce shm: packets of size= bytes through the shared-memory port, for seconds= each, beside memcpy and a bare
 * process_vm_readv of the same memory, in the same process. The receiver copies each payload to a place of its own.
 * Rates are GB in a second of the receiver's core.
 *
 *     memcpy       from a buffer that another process wrote, shared with it
 *     shared       the port, payload in the allocator's memory
 *     vm_readv     the bare system call on the peer's memory
 *     private      the port, payload in other memory
 *     staged       the port, payload that may change: two copies
 */
#include "roce_bench.h"

#include "roce/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define BUFFERS 8 /* so that neither side works on what it just touched */

struct end {
    struct port *p;
    const struct roce_args *a;
    uint8_t *shared, *private;
    pid_t peer;
};

static int head_of(uint8_t *head, uint8_t opcode)
{
    struct wire_pkt w = {.opcode = opcode, .pkey = 0xffff};
    return wire_encode_head(&w, head, WIRE_HEAD_MAX);
}

/* One packet, when there is room. */
static void send_one(struct end *e, uint8_t *pay, size_t len, bool stays)
{
    uint8_t head[WIRE_HEAD_MAX], tail[4] = {0};
    int n = head_of(head, WIRE_RC_SEND_MIDDLE);
    struct iovec iov[3] = {{head, (size_t)n}, {pay, len}, {tail, 4}};
    struct port_tx tx = {
        .iov = iov, .niov = 3, .npkts = 1, .last_bytes = (uint32_t)((size_t)n + len + 4), .stays = stays};
    struct port_rx rx;
    while (port_send(e->p, now_ns(), &tx, 1) == 0)
        port_recv(e->p, now_ns(), &rx, 0);
}

static void sender(struct end *e, uint8_t *mem, bool stays)
{
    for (uint64_t i = 0;; i++)
        send_one(e, mem + i % BUFFERS * e->a->size, e->a->size, stays);
}

/* GB in a second of this process's core: the other may have more to do than this. */
static double receiver(struct end *e, uint8_t *dst)
{
    uint64_t bytes = 0, i = 0, t0 = now_ns(), warm = t0 + 100000000, end = warm + (uint64_t)(e->a->seconds * 1e9), now;
    double cpu = 0;
    while ((now = now_ns()) < end) {
        struct port_rx rx[16];
        int n = port_recv(e->p, now, rx, 16);
        if (n < 0)
            fatal("the sender is gone");
        for (int k = 0; k < n; k++) {
            if (rx[k].copy && rx[k].copy(rx[k].copy_ctx, dst + i++ % BUFFERS * e->a->size, 0, rx[k].remote_len))
                fatal("copy");
            bytes += now >= warm ? e->a->size : 0;
        }
        if (now < warm)
            cpu = cpu_seconds();
    }
    return (double)bytes / (cpu_seconds() - cpu) / 1e9;
}

static double bare(struct end *e, uint8_t *dst, bool vm)
{
    uint64_t bytes = 0, end = now_ns() + (uint64_t)(e->a->seconds * 1e9);
    double cpu = cpu_seconds();
    for (uint64_t i = 0; now_ns() < end; i++) {
        size_t at = i % BUFFERS * e->a->size;
        struct iovec to = {dst + at, e->a->size}, from = {(vm ? e->private : e->shared) + at, e->a->size};
        if (!vm)
            memcpy(to.iov_base, from.iov_base, e->a->size);
        else if (process_vm_readv(e->peer, &to, 1, &from, 1, 0) != (ssize_t)e->a->size)
            fatal("process_vm_readv");
        bytes += e->a->size;
    }
    return (double)bytes / (cpu_seconds() - cpu) / 1e9;
}

static void echo(struct end *e, bool first, uint32_t *ns_each)
{
    uint8_t pay[16] = {0};
    for (uint64_t i = 0; !first || i < e->a->count + 1000; i++) {
        struct port_rx rx;
        uint64_t t = now_ns();
        if (first)
            send_one(e, pay, 8, false);
        while (port_recv(e->p, now_ns(), &rx, 1) == 0)
            ;
        if (!first)
            send_one(e, pay, 8, false);
        else if (i >= 1000)
            ns_each[i - 1000] = (uint32_t)min_u64(now_ns() - t, UINT32_MAX);
    }
}

static void open_port(struct end *e, int sock, int memfd)
{
    char err[200];
    struct port_rx rx;
    struct port_shm_config cfg = {.sock = sock, .peer_memory = true};
    uint64_t until = now_ns() + NSEC_PER_SEC / 5;
    if (port_shm_open(&cfg, &e->p, err, sizeof err)) {
        fprintf(stderr, "bench_roce: %s\n", err);
        exit(1);
    }
    if (memfd >= 0)
        port_shm_share(e->p, memfd, e->shared, BUFFERS * e->a->size);
    /* Until both know what the other can read. */
    while (now_ns() < until || port_shm_ready(e->p) == 0) {
        port_arm(e->p);
        port_recv(e->p, now_ns(), &rx, 0);
        usleep(1000);
    }
}

enum way { MEMCPY, SHARED, VM_READV, PRIVATE, STAGED, LATENCY, WAYS };

/* One measurement with a peer process of its own; GB/s. */
static double one(const struct roce_args *a, enum way way, uint32_t *ns_each)
{
    struct end e = {.a = a};
    size_t len = BUFFERS * a->size;
    int sv[2], memfd = memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint8_t *dst = malloc(len);
    if (memfd < 0 || ftruncate(memfd, (off_t)len) || fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) || !dst ||
        socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sv))
        fatal("memory");
    e.shared = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    e.private = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(dst, 1, len);
    memset(e.shared, 2, len);
    e.peer = fork();
    if (e.peer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(1);
        memset(e.private, 3, len);
        open_port(&e, sv[1], memfd);
        if (way == LATENCY)
            echo(&e, false, NULL);
        if (way == MEMCPY || way == VM_READV)
            pause();
        sender(&e, way == SHARED ? e.shared : e.private, way != STAGED);
    }
    pin(0);
    open_port(&e, sv[0], -1);
    double rate = 0;
    if (way == LATENCY)
        echo(&e, true, ns_each);
    else
        rate = way == MEMCPY || way == VM_READV ? bare(&e, dst, way == VM_READV) : receiver(&e, dst);
    kill(e.peer, SIGKILL);
    waitpid(e.peer, NULL, 0);
    port_close(e.p);
    munmap(e.shared, len);
    munmap(e.private, len);
    close(memfd);
    close(sv[1]);
    free(dst);
    return rate;
}

void bench_shm(const struct roce_args *a)
{
    double gb[WAYS] = {0};
    uint32_t *ns_each = calloc(a->count, sizeof *ns_each);
    if (!ns_each || a->size > 1 << 20) {
        fprintf(stderr, "bench_roce: size is at most 1048576\n");
        exit(2);
    }
    for (enum way w = 0; w < LATENCY; w++)
        gb[w] = one(a, w, NULL);
    one(a, LATENCY, ns_each);
    printf(
        "{\"part\": \"shm\", \"size\": %llu, \"memcpy\": %.2f, \"shared\": %.2f, \"shared_of_memcpy\": %.2f, "
        "\"vm_readv\": %.2f, \"private\": %.2f, \"private_of_vm_readv\": %.2f, \"staged\": %.2f, \"round_trip_8\": {",
        (unsigned long long)a->size, gb[MEMCPY], gb[SHARED], gb[SHARED] / gb[MEMCPY], gb[VM_READV], gb[PRIVATE],
        gb[PRIVATE] / gb[VM_READV], gb[STAGED]);
    print_latency(ns_each, a->count);
    printf("}}\n");
    free(ns_each);
}

/*
 * src/fabric beside bare libfabric calls, over loopback, in turns in one run: RMA of 4 KiB and 1 MiB by the server, and
 * request / 4 KiB RMA write / reply. Two processes, one thread each; medians over the rounds.
 *   bench_fabric [PROVIDER [ROUND_MS [ROUNDS]]]
 */
#include "fabric_xp.h"

#include "base/util.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define REGION     (32u << 20)
#define LATS       (1u << 20)
#define ROUNDS_MAX 31

enum { ASK = 2 }; /* kinds: 0 read, 1 write, 2 request and reply */

struct order {
    uint32_t which; /* 0 bare, 1 ours, 2 end */
    uint32_t kind, depth;
    uint64_t size, ns;
};

/* What the side that drives reports. */
struct result {
    double rate, p50_us, p99_us, cpu_s;
    uint64_t ops;
};

struct side {
    struct xp *x;
    struct order o;
    uint64_t sent_ns[XP_SLOTS];
    unsigned idle[XP_SLOTS], nidle, nlat;
    uint64_t ops;
};

static uint32_t *lats; /* nanoseconds */

void xp_fail(const char *what, long err)
{
    fprintf(stderr, "bench_fabric: %s: %ld\n", what, err);
    _exit(1);
}

void xp_tell(int fd, const void *p, size_t len)
{
    if (send(fd, p, len, MSG_NOSIGNAL) != (ssize_t)len)
        xp_fail("the other process", 0);
}

void xp_hear(int fd, void *p, size_t len)
{
    if (recv(fd, p, len, MSG_WAITALL) != (ssize_t)len)
        xp_fail("the other process", 0);
}

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void finished(struct side *s, unsigned slot)
{
    uint64_t ns = now_ns() - s->sent_ns[slot];

    if (s->nlat < LATS)
        lats[s->nlat++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
    s->ops++;
    s->idle[s->nidle++] = slot;
}

/* The server: an RMA for a request is followed by the reply; others are the measured operation. */
static void server_done(void *user, unsigned slot)
{
    struct side *s = user;

    if (s->o.kind != ASK)
        finished(s, slot);
}

static void server_message(void *user, const void *msg, size_t len)
{
    struct side *s = user;
    unsigned slot;
    uint8_t reply[104] = {0};

    if (len < sizeof slot)
        xp_fail("message", (long)len);
    memcpy(&slot, msg, sizeof slot);
    /* The reply goes right behind the write: the order of the connection is enough. */
    s->x->ops->rma(s->x, slot, true, (size_t)slot * s->o.size, s->o.size);
    memcpy(reply, &slot, sizeof slot);
    s->x->ops->send(s->x, reply, sizeof reply);
}

static void client_done(void *user, unsigned slot)
{
    (void)user;
    (void)slot;
}

static void client_message(void *user, const void *msg, size_t len)
{
    unsigned slot;

    if (len < sizeof slot)
        xp_fail("message", (long)len);
    memcpy(&slot, msg, sizeof slot);
    finished(user, slot);
}

static void begin(struct side *s)
{
    s->nlat = s->nidle = 0;
    s->ops = 0;
    while (s->nidle < s->o.depth) {
        s->idle[s->nidle] = s->nidle;
        s->nidle++;
    }
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* This side drives. */
static struct result drive(struct side *s)
{
    uint64_t start = now_ns(), end = start + s->o.ns;
    double cpu = cpu_s();
    struct result r;
    uint8_t request[124] = {0};

    begin(s);
    while (now_ns() < end || s->nidle < s->o.depth) {
        while (s->nidle && now_ns() < end) {
            unsigned slot = s->idle[--s->nidle];

            s->sent_ns[slot] = now_ns();
            if (s->o.kind == ASK) {
                memcpy(request, &slot, sizeof slot);
                s->x->ops->send(s->x, request, sizeof request);
            } else {
                s->x->ops->rma(s->x, slot, s->o.kind == 1, (size_t)slot * s->o.size, s->o.size);
            }
        }
        s->x->ops->poll(s->x);
    }
    r.cpu_s = cpu_s() - cpu;
    r.ops = s->ops;
    r.rate = (double)s->ops / ((double)(now_ns() - start) / 1e9);
    qsort(lats, s->nlat, sizeof *lats, by_value);
    r.p50_us = s->nlat ? lats[s->nlat / 2] / 1e3 : 0;
    r.p99_us = s->nlat ? lats[(uint64_t)s->nlat * 99 / 100] / 1e3 : 0;
    return r;
}

/* This side serves until the other says that it is done; its CPU time. */
static double serve(struct side *s, int ctl)
{
    double cpu = cpu_s();
    struct pollfd p = {ctl, POLLIN, 0};
    uint8_t end;

    for (unsigned i = 0;; i++) {
        if (i % 16 == 0 && poll(&p, 1, 0) == 1)
            break;
        s->x->ops->poll(s->x);
    }
    cpu = cpu_s() - cpu;
    xp_hear(ctl, &end, 1);
    return cpu;
}

static struct side *sides_open(const char *provider, bool server, int ctl)
{
    static struct side s[2];
    const struct xp_ops *ops[2] = {&xp_bare, &xp_ours};

    for (int i = 0; i < 2; i++) {
        uint8_t *mem = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

        if (mem == MAP_FAILED)
            xp_fail("memory", -1);
        s[i].x = ops[i]->open(provider, server, ctl, mem, REGION);
        s[i].x->user = &s[i];
        s[i].x->done = server ? server_done : client_done;
        s[i].x->message = server ? server_message : client_message;
    }
    return s;
}

static void sides_close(struct side *s)
{
    for (int i = 0; i < 2; i++)
        s[i].x->ops->close(s[i].x);
}

static void client(const char *provider, int ctl)
{
    struct side *s = sides_open(provider, false, ctl);
    struct result r;
    struct order o;
    uint8_t end = 0;

    for (;;) {
        xp_hear(ctl, &o, sizeof o);
        if (o.which > 1)
            break;
        s[o.which].o = o;
        xp_tell(ctl, &end, 1);
        if (o.kind == ASK) {
            r = drive(&s[o.which]);
            xp_tell(ctl, &end, 1);
            xp_tell(ctl, &r, sizeof r);
        } else {
            double cpu = serve(&s[o.which], ctl);

            xp_tell(ctl, &cpu, sizeof cpu);
        }
    }
    sides_close(s);
}

/* One round of one transport, driven by whose turn it is. cpu_s of the result: both processes. */
static struct result one(struct side *s, int ctl, const struct order *o)
{
    struct side *it = &s[o->which];
    struct result r;
    double cpu;
    uint8_t end = 0;

    it->o = *o;
    xp_tell(ctl, o, sizeof *o);
    xp_hear(ctl, &end, 1);
    if (o->kind == ASK) {
        cpu = serve(it, ctl);
        xp_hear(ctl, &r, sizeof r);
    } else {
        r = drive(it);
        xp_tell(ctl, &end, 1);
        xp_hear(ctl, &cpu, sizeof cpu);
    }
    r.cpu_s += cpu;
    return r;
}

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_double);
    return v[n / 2];
}

static void compare(struct side *s, int ctl, struct order o, int rounds)
{
    static const char *const kinds[] = {"read", "write", "ask"};
    double rate[2][ROUNDS_MAX], p50[2][ROUNDS_MAX], p99[2][ROUNDS_MAX], cpu[2][ROUNDS_MAX], m[2][4];

    for (int i = 0; i < 2 * rounds; i++) {
        struct result r;

        /* ABBA, so that a drift of the machine meets both. */
        o.which = (uint32_t)((i + 1) / 2 % 2);
        r = one(s, ctl, &o);
        rate[o.which][i / 2] = r.rate;
        p50[o.which][i / 2] = r.p50_us;
        p99[o.which][i / 2] = r.p99_us;
        cpu[o.which][i / 2] = r.cpu_s / ((double)r.ops * (double)o.size / (double)GiB);
    }
    for (int w = 0; w < 2; w++) {
        m[w][0] = median(rate[w], rounds);
        m[w][1] = median(p50[w], rounds);
        m[w][2] = median(p99[w], rounds);
        m[w][3] = median(cpu[w], rounds);
        printf("%-5s %7llu %5u %-4s %10.0f %9.1f %8.1f %8.1f %10.3f", kinds[o.kind], (unsigned long long)o.size,
               o.depth, w ? "ours" : "bare", m[w][0], m[w][0] * (double)o.size / 1e6, m[w][1], m[w][2], m[w][3]);
        if (w)
            printf("   %4.0f %% %4.0f %%", 100 * m[1][0] / m[0][0], 100 * m[1][3] / m[0][3]);
        printf("\n");
    }
    fflush(stdout);
}

static void server(const char *provider, int ctl, uint64_t ns, int rounds)
{
    static const uint32_t depths[] = {1, 16, 32};
    static const uint64_t sizes[] = {4096, 1u << 20};
    struct side *s = sides_open(provider, true, ctl);
    struct order end = {.which = 2};

    printf("provider %s, %d rounds of %llu ms, medians; CPU of both processes\n", provider, rounds,
           (unsigned long long)(ns / NSEC_PER_MSEC));
    printf("%-5s %7s %5s %-4s %10s %9s %8s %8s %10s   %s\n", "op", "bytes", "depth", "", "op/s", "MB/s", "p50 us",
           "p99 us", "core-s/GiB", "rate, CPU of bare");
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (uint32_t kind = 0; kind < 2; kind++)
            for (size_t d = 0; d < ARRAY_SIZE(depths); d++)
                compare(s, ctl, (struct order){.kind = kind, .depth = depths[d], .size = sizes[i], .ns = ns}, rounds);
    for (size_t d = 0; d < ARRAY_SIZE(depths); d++)
        compare(s, ctl, (struct order){.kind = ASK, .depth = depths[d], .size = 4096, .ns = ns}, rounds);
    xp_tell(ctl, &end, sizeof end);
    sides_close(s);
}

int main(int argc, char **argv)
{
    const char *provider = argc > 1 ? argv[1] : "tcp";
    uint64_t ns = (argc > 2 ? strtoull(argv[2], NULL, 0) : 150) * NSEC_PER_MSEC;
    int rounds = argc > 3 ? atoi(argv[3]) : 3, sv[2], status;
    pid_t pid;

    if (rounds < 1 || rounds > ROUNDS_MAX || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
        return 2;
    lats = malloc(LATS * sizeof *lats);
    /* Before any call of libfabric. */
    pid = fork();
    if (!lats || pid < 0)
        return 1;
    if (!pid) {
        close(sv[1]);
        client(provider, sv[0]);
        return 0;
    }
    close(sv[0]);
    server(provider, sv[1], ns, rounds);
    return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 1;
}

/*
 * The store through the public C API: rate, processor time and latency of reads and writes.
 *
 *   bench_store URL read|write|pread|pwrite [key=value]...     one measurement
 *   bench_store URL idle [n=CONNECTIONS] [data=0|1]             connects (data=1: data connections too), prints
 * "ready", waits for the end of its input
 *
 *   bs=BYTES depth=N jobs=N size=MiB random=0|1 seconds=S server=PID agent=PID file=NAME text=0|1
 *
 * read and write are asynchronous, in registered memory; pread and pwrite are the plain calls with read-ahead and
 * write-behind. Job n has the file NAME-n of `size` MiB. seconds=0: one pass over the files. Writes make one pass, and
 * their time includes pst_fsync. server, agent: their processor time is counted too, and the
 * whole machine's. text=1: bytes that compress as text does. Prints one JSON object.
 */
#include "bench_util.h"

#include "base/rng.h"

#include <penstock/penstock.h>

#include <string.h>

#define DEPTH_MAX 64u
#define JOBS_MAX  16u
#define LAT_MAX   (1u << 20)

struct job {
    pthread_t thread;
    unsigned id;
    uint64_t ops, nlat;
    uint32_t *lat; /* nanoseconds */
    struct pst_file *file;
    struct pst_eq *eq;
    struct pst_buf *reg;
    uint8_t *mem;
};

static struct {
    const char *file;
    uint64_t bs, depth, jobs, size, random, n, data, text;
    double seconds;
    bool write, async;
    uint64_t end_ns; /* 0: one pass */
} o = {.file = "bench", .bs = MiB, .depth = 8, .jobs = 1, .size = 256, .n = 64, .data = 1, .seconds = 1};

static struct pst_fs *fs;

static void took(struct job *j, uint64_t start_ns)
{
    uint64_t ns = now_ns() - start_ns;

    if (j->nlat < LAT_MAX)
        j->lat[j->nlat++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
    j->ops++;
}

static bool goes_on(uint64_t next)
{
    return o.end_ns ? now_ns() < o.end_ns : next < o.size / o.bs;
}

static uint64_t place(struct rng *rng, uint64_t next)
{
    uint64_t count = o.size / o.bs;

    return (o.random ? rng_below(rng, count) : next % count) * o.bs;
}

static void run_async(struct job *j)
{
    uint64_t start[DEPTH_MAX], next = 0;
    uintptr_t idle[DEPTH_MAX], nidle = o.depth;
    struct pst_event ev[DEPTH_MAX];
    struct rng rng;

    rng_seed(&rng, j->id + 1);
    for (uintptr_t i = 0; i < o.depth; i++)
        idle[i] = i;
    for (;;) {
        while (nidle && goes_on(next)) {
            uintptr_t i = idle[--nidle];
            struct iovec v = {j->mem + i * o.bs, o.bs};
            uint64_t at = place(&rng, next++);
            start[i] = now_ns();
            int r = o.write ? pst_aio_write(j->file, &v, 1, at, j->eq, (void *)i)
                            : pst_aio_read(j->file, &v, 1, at, j->eq, (void *)i);
            check("submit", r);
        }
        if (nidle == o.depth)
            break;
        int got = pst_eq_poll(j->eq, ev, DEPTH_MAX, -1);
        check("poll", got);
        for (int k = 0; k < got; k++) {
            if (ev[k].result != (int64_t)o.bs)
                die("operation", (int)ev[k].result, pst_last_error());
            idle[nidle++] = (uintptr_t)ev[k].cookie;
            took(j, start[(uintptr_t)ev[k].cookie]);
        }
    }
}

static void run_plain(struct job *j)
{
    struct rng rng;

    rng_seed(&rng, j->id + 1);
    for (uint64_t next = 0; goes_on(next); next++) {
        uint64_t at = place(&rng, next), start = now_ns();
        int64_t r = o.write ? pst_pwrite(j->file, j->mem, o.bs, at) : pst_pread(j->file, j->mem, o.bs, at);
        if (r != (int64_t)o.bs)
            die("operation", (int)r, pst_last_error());
        took(j, start);
    }
}

static void *run(void *arg)
{
    struct job *j = arg;

    (o.async ? run_async : run_plain)(j);
    if (o.write)
        check("fsync", pst_fsync(j->file));
    return NULL;
}

/* The library loads its transport and connects when data is first moved: not in the measured time. */
static void warm_up(struct job *j)
{
    char byte;

    for (int i = 0; i < 32; i++)
        check("first reads", pst_pread(j->file, &byte, 1, (uint64_t)i * MiB));
}

static void prepare(struct job *j, unsigned id)
{
    char path[300];
    size_t bytes = (size_t)align_up(o.bs * o.depth, 4096);

    j->id = id;
    j->lat = malloc(LAT_MAX * sizeof *j->lat);
    if (o.async) /* known to the data connections, and handed over where a daemon takes memory */
        check("memory", pst_buf_alloc(fs, bytes, &j->reg, (void **)&j->mem));
    else
        j->mem = aligned_alloc(4096, bytes);
    if (!j->lat || !j->mem)
        die("memory", -ENOMEM, "");
    for (size_t i = 0; i < bytes; i++) /* no two blocks alike, and touched */
        j->mem[i] = (uint8_t)(i * 31 + (i >> 12) + id);
    if (o.text) {
        struct rng rng;
        rng_seed(&rng, id);
        fill_text(&rng, j->mem, bytes);
    }
    snprintf(path, sizeof path, "/%s-%u", o.file, id);
    check("open", pst_open(fs, path, o.write ? O_RDWR | O_CREAT : O_RDONLY, 0644, &j->file));
    check("event queue", pst_eq_create(fs, (unsigned)o.depth, &j->eq));
    warm_up(j);
}

static void measure(pid_t server, pid_t agent)
{
    static struct job jobs[JOBS_MAX];
    uint64_t ops = 0, n = 0, start;
    uint32_t *lat = malloc(o.jobs * LAT_MAX * sizeof *lat);
    double cpu, server_cpu, agent_cpu, busy, seconds;

    if (!lat)
        die("memory", -ENOMEM, "");
    for (unsigned i = 0; i < o.jobs; i++)
        prepare(&jobs[i], i);
    cpu = process_cpu(0);
    server_cpu = server ? process_cpu(server) : 0;
    agent_cpu = agent ? process_cpu(agent) : 0;
    busy = machine_busy();
    start = now_ns();
    o.end_ns = o.write || o.seconds <= 0 ? 0 : start + (uint64_t)(o.seconds * 1e9);
    for (unsigned i = 0; i < o.jobs; i++)
        if (pthread_create(&jobs[i].thread, NULL, run, &jobs[i]))
            die("thread", -EAGAIN, "");
    for (unsigned i = 0; i < o.jobs; i++)
        pthread_join(jobs[i].thread, NULL);
    seconds = (double)(now_ns() - start) / 1e9;
    cpu = process_cpu(0) - cpu;
    server_cpu = server ? process_cpu(server) - server_cpu : 0;
    agent_cpu = agent ? process_cpu(agent) - agent_cpu : 0;
    busy = machine_busy() - busy;
    for (unsigned i = 0; i < o.jobs; i++) {
        struct job *j = &jobs[i];
        memcpy(lat + n, j->lat, j->nlat * sizeof *lat);
        n += j->nlat;
        ops += j->ops;
        pst_buf_unregister(j->reg);
        pst_eq_destroy(j->eq);
        check("close", pst_close(j->file));
        if (!o.async)
            free(j->mem);
        free(j->lat);
    }
    sort_u32(lat, n);
    printf("{\"ops\": %llu, \"bytes\": %llu, \"seconds\": %.6f, \"client_cpu\": %.6f, \"server_cpu\": %.6f, "
           "\"agent_cpu\": %.6f, \"busy\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f}\n",
           (unsigned long long)ops, (unsigned long long)(ops * o.bs), seconds, cpu, server_cpu, agent_cpu, busy,
           at_us(lat, n, 0.5), at_us(lat, n, 0.99), at_us(lat, n, 0.999));
    free(lat);
}

/* Connections that do nothing: what they cost the server is looked at from outside. */
static void idle(const char *url)
{
    struct pst_fs **all = calloc(o.n, sizeof(struct pst_fs *));

    if (!all)
        die("memory", -ENOMEM, "");
    for (uint64_t i = 0; i < o.n; i++) {
        struct pst_file *f;
        char byte;
        check("connect", pst_connect(url, NULL, &all[i]));
        if (!o.data)
            continue;
        check("open", pst_open(all[i], "/idle", O_RDWR | O_CREAT, 0644, &f));
        for (int k = 0; k < 8; k++) /* by each of the threads that drive data */
            check("read", pst_pread(f, &byte, 1, 0));
        check("close", pst_close(f));
    }
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    for (uint64_t i = 0; i < o.n; i++)
        pst_disconnect(all[i]);
    free(all);
}

int main(int argc, char **argv)
{
    struct pst_options opts;
    const char *kind = argc > 2 ? argv[2] : "";
    uint64_t server = 0, agent = 0;
    const struct bench_arg args[] = {{"file", &o.file, NULL, NULL},
                                     {"bs", NULL, &o.bs, NULL},
                                     {"depth", NULL, &o.depth, NULL},
                                     {"jobs", NULL, &o.jobs, NULL},
                                     {"size", NULL, &o.size, NULL},
                                     {"random", NULL, &o.random, NULL},
                                     {"n", NULL, &o.n, NULL},
                                     {"data", NULL, &o.data, NULL},
                                     {"server", NULL, &server, NULL},
                                     {"agent", NULL, &agent, NULL},
                                     {"text", NULL, &o.text, NULL},
                                     {"seconds", NULL, NULL, &o.seconds},
                                     {0}};

    bench_program = "bench_store";
    bench_args(args, argc, argv, 3);
    o.write = !strcmp(kind, "write") || !strcmp(kind, "pwrite");
    o.async = !strcmp(kind, "write") || !strcmp(kind, "read");
    o.size *= MiB;
    if (!o.depth || o.depth > DEPTH_MAX || !o.jobs || o.jobs > JOBS_MAX || !o.bs || o.bs > o.size)
        die("arguments", -EINVAL, "");
    if (!strcmp(kind, "idle")) {
        idle(argv[1]);
        return 0;
    }
    if (!o.async && strcmp(kind, "pread") && strcmp(kind, "pwrite")) {
        fprintf(stderr, "usage: bench_store URL read|write|pread|pwrite|idle [key=value]...\n");
        return 2;
    }
    pst_options_init(&opts, sizeof opts);
    opts.flags = PST_CONNECT_CREATE;
    if (!strncmp(argv[1], "local:", 6))
        opts.store_options = "create=1";
    check("connect", pst_connect(argv[1], &opts, &fs));
    measure((pid_t)server, (pid_t)agent);
    check("disconnect", pst_disconnect(fs));
    return 0;
}

/* bench: rates of reads and writes through the C API, asynchronous, with the processor time they cost here. */
#include "cli.h"

#include "base/rng.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#define DEPTH_MAX 1024
#define JOBS_MAX  64

struct bench {
    struct cli_conn conn;
    uint64_t size, depth, jobs, seconds, file_size;
    bool json, keep, random, write, fsync_end;
    struct pst_fs *fs;
    const char *dir;
    uint64_t deadline_ns;
};

struct job {
    const struct bench *b;
    unsigned id;
    pthread_t thread;
    uint64_t ops, bytes;
    uint64_t *latency; /* of each operation, in order of completion; capped */
    size_t nlatency;
    int err;
};

#define LATENCIES_MAX (1u << 20)

struct slot {
    struct iovec iov;
    uint64_t start_ns;
};

static uint64_t next_offset(const struct bench *b, struct rng *rng, uint64_t n)
{
    uint64_t blocks = b->file_size / b->size;
    return (b->random ? rng_below(rng, blocks) : n % blocks) * b->size;
}

static int submit(struct job *j, struct pst_file *f, struct pst_eq *eq, struct slot *s, uint64_t offset)
{
    s->start_ns = now_ns();
    return j->b->write ? pst_aio_write(f, &s->iov, 1, offset, eq, s) : pst_aio_read(f, &s->iov, 1, offset, eq, s);
}

static int loop(struct job *j, struct pst_file *f, struct pst_eq *eq, struct slot *slots)
{
    const struct bench *b = j->b;
    struct pst_event ev[64];
    struct rng rng;
    uint64_t n = 0, flying = 0;
    int r = 0, k;

    rng_seed(&rng, j->id + 1);
    for (; r == 0 && n < b->depth; n++, flying++)
        r = submit(j, f, eq, &slots[n], next_offset(b, &rng, n));
    while (flying > 0 && (k = pst_eq_poll(eq, ev, ARRAY_SIZE(ev), -1)) != 0) {
        uint64_t now = now_ns();
        if (k < 0)
            return k;
        for (int i = 0; i < k; i++) {
            struct slot *s = ev[i].cookie;
            flying--;
            if (ev[i].result < 0) {
                r = (int)ev[i].result;
                continue;
            }
            j->ops++;
            j->bytes += (uint64_t)ev[i].result;
            if (j->nlatency < LATENCIES_MAX)
                j->latency[j->nlatency++] = now - s->start_ns;
            if (r == 0 && now < b->deadline_ns) {
                r = submit(j, f, eq, s, next_offset(b, &rng, n++));
                flying += r == 0;
            }
        }
    }
    return r;
}

static void *run_job(void *arg)
{
    struct job *j = arg;
    const struct bench *b = j->b;
    cleanup_free struct slot *slots = calloc(b->depth, sizeof *slots);
    struct pst_file *f = NULL;
    struct pst_eq *eq = NULL;
    struct pst_buf *reg = NULL;
    char path[4300];
    void *memory;
    int e;

    j->latency = malloc(LATENCIES_MAX * sizeof *j->latency);
    j->err = -ENOMEM;
    if (slots && j->latency)
        j->err = pst_buf_alloc(b->fs, (b->size * b->depth + 4095) / 4096 * 4096, &reg, &memory);
    snprintf(path, sizeof path, "%s/bench-%u", b->dir, j->id);
    if (j->err == 0) {
        memset(memory, (int)j->id + 1, b->size * b->depth);
        for (uint64_t i = 0; i < b->depth; i++)
            slots[i].iov = (struct iovec){(char *)memory + i * b->size, b->size};
        j->err = pst_open(b->fs, path, O_RDWR, 0, &f);
    }
    if (j->err == 0)
        j->err = pst_eq_create(b->fs, (unsigned)b->depth, &eq);
    if (j->err == 0)
        j->err = loop(j, f, eq, slots);
    pst_eq_destroy(eq);
    if (j->err == 0 && b->fsync_end)
        j->err = pst_fsync(f);
    e = f ? pst_close(f) : 0;
    j->err = j->err ? j->err : e;
    pst_buf_unregister(reg);
    return NULL;
}

/* The files have all their bytes before the clock runs. */
static int prepare(const struct bench *b)
{
    cleanup_free char *buf = aligned_alloc(4096, MiB);
    struct pst_file *f;
    char path[4300];
    int r = buf ? 0 : -ENOMEM, e;

    if (r == 0)
        memset(buf, 7, MiB);
    for (uint64_t i = 0; r == 0 && i < b->jobs; i++) {
        snprintf(path, sizeof path, "%s/bench-%u", b->dir, (unsigned)i);
        r = pst_open(b->fs, path, O_RDWR | O_CREAT | O_TRUNC, 0600, &f);
        for (uint64_t at = 0; r == 0 && at < b->file_size; at += MiB) {
            int64_t n = pst_pwrite(f, buf, min_u64(MiB, b->file_size - at), at);
            r = n < 0 ? (int)n : 0;
        }
        if (r == 0)
            r = pst_fsync(f);
        e = f ? pst_close(f) : 0;
        f = NULL;
        r = r ? r : e;
    }
    return r;
}

static void clean_up(const struct bench *b)
{
    char path[4300];

    for (uint64_t i = 0; i < b->jobs; i++) {
        snprintf(path, sizeof path, "%s/bench-%u", b->dir, (unsigned)i);
        pst_unlink(b->fs, path);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* All jobs' latencies, sorted. */
static uint64_t *merge(const struct job *jobs, uint64_t n, size_t *ret_n)
{
    size_t total = 0;
    uint64_t *all;

    for (uint64_t i = 0; i < n; i++)
        total += jobs[i].nlatency;
    all = malloc((total + 1) * sizeof *all);
    *ret_n = 0;
    for (uint64_t i = 0; all && i < n; i++) {
        memcpy(all + *ret_n, jobs[i].latency, jobs[i].nlatency * sizeof *all);
        *ret_n += jobs[i].nlatency;
    }
    if (all)
        qsort(all, *ret_n, sizeof *all, by_value);
    return all;
}

static double us_at(const uint64_t *sorted, size_t n, double p)
{
    return n ? (double)sorted[min_u64(n - 1, (uint64_t)(p * (double)n))] / 1e3 : 0;
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int report(const struct bench *b, const struct job *jobs, double seconds, double cpu)
{
    uint64_t ops = 0, bytes = 0;
    size_t n = 0;
    cleanup_free uint64_t *lat = merge(jobs, b->jobs, &n);
    double gib, per_gib;
    char rate[32];

    for (uint64_t i = 0; i < b->jobs; i++) {
        ops += jobs[i].ops;
        bytes += jobs[i].bytes;
    }
    gib = (double)bytes / (double)GiB;
    per_gib = gib > 0 ? cpu / gib : 0;
    if (b->json)
        return cli_json(json_pack("{s:s, s:b, s:I, s:I, s:I, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "mode",
                                  b->write ? "write" : "read", "random", (int)b->random, "size", (json_int_t)b->size,
                                  "depth", (json_int_t)b->depth, "jobs", (json_int_t)b->jobs, "seconds", seconds, "ops",
                                  (json_int_t)ops, "bytes", (json_int_t)bytes, "bytes_per_second",
                                  (double)bytes / seconds, "ops_per_second", (double)ops / seconds, "p50_us",
                                  us_at(lat, n, 0.5), "p99_us", us_at(lat, n, 0.99), "p999_us", us_at(lat, n, 0.999),
                                  "client_core_seconds_per_gib", per_gib));
    printf("%s%s, %llu bytes, depth %llu, %llu jobs: %s/s, %.0f operations/s\n", b->random ? "random " : "",
           b->write ? "write" : "read", (unsigned long long)b->size, (unsigned long long)b->depth,
           (unsigned long long)b->jobs, cli_size((uint64_t)((double)bytes / seconds), rate), (double)ops / seconds);
    printf("latency: p50 %.0f us, p99 %.0f us, p99.9 %.0f us; this process: %.2f core-seconds/GiB\n",
           us_at(lat, n, 0.5), us_at(lat, n, 0.99), us_at(lat, n, 0.999), per_gib);
    return EXIT_OK;
}

static int measure(struct bench *b)
{
    cleanup_free struct job *jobs = calloc(b->jobs, sizeof *jobs);
    uint64_t start, n = 0;
    double cpu, seconds;
    int r = jobs ? prepare(b) : -ENOMEM, code = EXIT_OK;

    if (r < 0)
        return cli_fail_pst(r, b->dir);
    cpu = cpu_seconds();
    start = now_ns();
    b->deadline_ns = start + b->seconds * NSEC_PER_SEC;
    for (; n < b->jobs; n++) {
        jobs[n].b = b;
        jobs[n].id = (unsigned)n;
        if (pthread_create(&jobs[n].thread, NULL, run_job, &jobs[n]) != 0)
            break;
    }
    for (uint64_t i = 0; i < n; i++) {
        pthread_join(jobs[i].thread, NULL);
        r = r ? r : jobs[i].err;
    }
    seconds = (double)(now_ns() - start) / 1e9;
    cpu = cpu_seconds() - cpu;
    if (n < b->jobs)
        r = -EAGAIN;
    code = r < 0 ? cli_fail(r, "%s", b->dir) : report(b, jobs, seconds, cpu);
    for (uint64_t i = 0; i < n; i++)
        free(jobs[i].latency);
    if (!b->keep)
        clean_up(b);
    return code;
}

static int run_bench(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct bench b = {.size = MiB, .depth = 8, .jobs = 1, .seconds = 5, .file_size = 256 * MiB};
    const struct cli_opt opts[] = {
        {'w', "write", OPT_FLAG, &b.write, NULL, "write; else read", NULL},
        {0, "fsync", OPT_FLAG, &b.fsync_end, NULL, "the time includes making it durable", NULL},
        {0, "random", OPT_FLAG, &b.random, NULL, "anywhere in the file; else in order", NULL},
        {'s', "size", OPT_SIZE, &b.size, "BYTES", "of one operation; default 1M", NULL},
        {'d', "depth", OPT_UINT, &b.depth, "N", "operations under way per job; default 8", NULL},
        {'j', "jobs", OPT_UINT, &b.jobs, "N", "threads, each with a file; default 1", NULL},
        {'t', "time", OPT_UINT, &b.seconds, "SECONDS", "default 5", NULL},
        {0, "file-size", OPT_SIZE, &b.file_size, "BYTES", "of each file; default 256M", NULL},
        {0, "threads", OPT_UINT, &b.conn.threads, "N", "of the library that drive data; default 2", NULL},
        {0, "keep", OPT_FLAG, &b.keep, NULL, "leave the files", NULL},
        {0, "json", OPT_FLAG, &b.json, NULL, "a JSON object", NULL},
        CLI_CONN_OPTS(b.conn),
        {0},
    };
    struct cli_url u;
    int code = EXIT_OK;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    const struct {
        const char *name;
        uint64_t value, max;
    } limits[] = {{"size", b.size, 8 * MiB}, {"depth", b.depth, DEPTH_MAX}, {"jobs", b.jobs, JOBS_MAX},
                  {"time", b.seconds, 3600}};

    for (size_t i = 0; i < ARRAY_SIZE(limits); i++)
        if (limits[i].value < 1 || limits[i].value > limits[i].max)
            return cli_usage(cmd, "--%s: must be from 1 to %llu", limits[i].name, (unsigned long long)limits[i].max);
    if (b.file_size < b.size)
        return cli_usage(cmd, "--file-size: must be at least --size");
    if (cli_url(argv[first], 2, &u) < 0)
        return EXIT_USAGE;
    b.conn.depth = b.depth * b.jobs;
    b.fs = cli_connect(&u, &b.conn, PST_CONNECT_LAZY_CLOSE, &code);
    if (!b.fs)
        return code;
    b.dir = strcmp(u.path, "/") ? u.path : "";
    return cli_disconnect(b.fs, measure(&b));
}

const struct cli_cmd cmds_bench[] = {
    {"bench", "URL", "Measures reads or writes of files in a directory of a container", NULL, run_bench},
    {0},
};

/*
 * The embedded engine in process, through its queues: rate and core-seconds per GiB.
 *
 *   bench_local DIR [size=MiB] [seconds=S] [only=NAME] [direct=auto|always|never] [io=auto|uring|threads]
 *
 * DIR is made, filled and left for the caller to remove. One line per figure: name, operations a second, MB/s,
 * core-seconds per GiB. bench/local.sh sets fio beside it.
 */
#include "engine.h"
#include "local/local_store.h"

#include "base/err.h"
#include "base/rng.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define DEPTH_MAX 32

struct bench {
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_queue *q;
    uint64_t ino, bytes;
    double seconds;
    const char *only; /* NULL: all; the file is written first in any case */
    uint8_t *buf[DEPTH_MAX];
};

static void die(const char *what, int err)
{
    fprintf(stderr, "bench_local: %s: %s\n", what, err_text(err));
    exit(1);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void fsync_file(struct bench *b)
{
    struct pst_op op = {.kind = PST_OP_FSYNC, .cont = b->c, .ino = b->ino};
    int64_t r = pst_queue_run(b->q, &op);
    if (r)
        die("fsync", (int)r);
}

/* passes 0: until the time is over. */
static void run(struct bench *b, const char *name, enum pst_op_kind kind, uint64_t length, int depth, bool random,
                int passes)
{
    struct pst_op ops[DEPTH_MAX], *done[DEPTH_MAX];
    struct iovec v[DEPTH_MAX];
    struct rng r;
    uint64_t count = b->bytes / length, next = 0, n = 0, start = now_ns(), end = start + (uint64_t)(b->seconds * 1e9);
    double cpu = cpu_seconds(), seconds;
    int busy = 0, idle[DEPTH_MAX];

    if (name && b->only && strcmp(name, b->only) && strcmp(name, "write-1m"))
        return;
    rng_seed(&r, 42);
    for (int i = 0; i < depth; i++)
        idle[i] = i;
    for (;;) {
        bool more = passes ? next < count * (uint64_t)passes : now_ns() < end;
        while (more && busy < depth && (!passes || next < count * (uint64_t)passes)) {
            int i = idle[depth - 1 - busy++];
            v[i] = (struct iovec){.iov_base = b->buf[i], .iov_len = length};
            ops[i] =
                (struct pst_op){.kind = kind, .cont = b->c, .ino = b->ino, .length = length, .iov = &v[i], .iovcnt = 1};
            ops[i].offset = (random ? rng_below(&r, count) : next % count) * length;
            next++;
            int e = pst_queue_submit(b->q, &ops[i]);
            if (e)
                die("submit", e);
        }
        if (!busy)
            break;
        int got = pst_queue_reap(b->q, done, DEPTH_MAX, UINT64_MAX);
        for (int k = 0; k < got; k++) {
            if (done[k]->result != (int64_t)length)
                die(name, (int)done[k]->result);
            idle[depth - busy--] = (int)(done[k] - ops);
            n++;
        }
    }
    if (kind == PST_OP_WRITE)
        fsync_file(b);
    seconds = (double)(now_ns() - start) / 1e9;
    cpu = cpu_seconds() - cpu;
    if (!name)
        return;
    double mb = (double)(n * length) / 1e6;
    printf("%-24s %9.0f op/s %8.1f MB/s %7.3f core-s/GiB\n", name, (double)n / seconds, mb / seconds,
           cpu / ((double)(n * length) / (double)GiB));
    fflush(stdout);
}

static void open_all(struct bench *b, const char *dir, const struct pst_option *opts, size_t nopts)
{
    struct pst_ctx ctx = {0};
    struct pst_pool_info pool = {.label = "bench"};
    struct pst_cont_props props = {0};
    struct pst_cont_info info;
    struct pst_new in = {.mode = 0100644};
    struct pst_attr a;
    char err[300], url[300];
    int r;

    snprintf(url, sizeof url, "local:%s", dir);
    pst_backend_register(&pst_local_backend);
    r = pst_backend_open(url, opts, nopts, &b->st, err, sizeof err);
    if (r) {
        fprintf(stderr, "%s\n", err);
        exit(1);
    }
    r = pst_pool_create(b->st, &ctx, &pool, &pool);
    if (!r)
        r = pst_cont_create(b->st, &ctx, "bench", "bench", &props, &info);
    if (!r)
        r = pst_cont_open(b->st, &ctx, "bench", "bench", &b->c);
    if (!r)
        r = pst_store_make(b->c, &ctx, PST_ROOT_INO, "file", &in, &a, NULL);
    if (!r)
        r = pst_queue_open(b->st, DEPTH_MAX, &b->q);
    if (r)
        die("set-up", r);
    b->ino = a.ino;
}

int main(int argc, char **argv)
{
    struct bench b = {.bytes = 512 * MiB, .seconds = 2};
    struct pst_option opts[8] = {{"create", "1"}};
    size_t nopts = 1;
    struct engine *e;

    if (argc < 2 || argc > 7) {
        fprintf(stderr, "usage: bench_local DIR [size=MiB] [seconds=S] [only=NAME] [direct=...] [io=...]\n");
        return 1;
    }
    for (int i = 2; i < argc; i++) {
        char *eq = strchr(argv[i], '=');
        if (!eq)
            return fprintf(stderr, "bench_local: %s: key=value is expected\n", argv[i]), 1;
        *eq = 0;
        if (!strcmp(argv[i], "size"))
            b.bytes = strtoull(eq + 1, NULL, 10) * MiB;
        else if (!strcmp(argv[i], "seconds"))
            b.seconds = atof(eq + 1);
        else if (!strcmp(argv[i], "only"))
            b.only = eq + 1;
        else
            opts[nopts++] = (struct pst_option){argv[i], eq + 1};
    }
    for (int i = 0; i < DEPTH_MAX; i++) {
        if (posix_memalign((void **)&b.buf[i], PST_BLOCK, MiB))
            die("memory", -12);
        memset(b.buf[i], i + 1, MiB);
    }
    open_all(&b, argv[1], opts, nopts);
    e = engine_of(b.st);
    run(&b, "write-1m", PST_OP_WRITE, MiB, 8, false, 1);
    run(&b, NULL, PST_OP_WRITE, MiB, 8, false,
        1); /* from then on blocks are used again, as in a store that is not new */
    run(&b, "overwrite-1m", PST_OP_WRITE, MiB, 8, false, 1);
    if (posix_fadvise(e->data_fd, 0, 0, POSIX_FADV_DONTNEED))
        die("fadvise", -22);
    run(&b, "read-1m-cold", PST_OP_READ, MiB, 8, false, 1);
    run(&b, NULL, PST_OP_READ, MiB, 8, false, 1); /* what is read again goes to the page cache */
    run(&b, "read-1m-warm", PST_OP_READ, MiB, 8, false, 0);
    run(&b, "randread-4k-warm", PST_OP_READ, PST_BLOCK, 32, true, 0);
    if (posix_fadvise(e->data_fd, 0, 0, POSIX_FADV_DONTNEED))
        die("fadvise", -22);
    run(&b, "randread-4k-cold", PST_OP_READ, PST_BLOCK, 32, true, 0);
    run(&b, "randwrite-4k", PST_OP_WRITE, PST_BLOCK, 32, true, 0);
    pst_queue_close(b.q);
    pst_cont_close(b.c);
    pst_store_close(b.st);
    return 0;
}

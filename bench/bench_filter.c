/*
 * The inline services: each stage alone (core-seconds per GiB of plain bytes), and the local engine with and without
 * them, in turn in one run.
 *
 *   bench_filter DIR [size=MiB] [seconds=S] [stages=1]
 *
 * DIR is made and left for the caller to remove. Prints one JSON object: stages by name and content, then for each
 * stack of filters and content the work by name: MB/s and core-seconds per GiB. Content: text becomes shorter, random
 * does not. stages=1: no more than the stages.
 */
#include "bench_util.h"

#include "codec.h"
#include "filter/filter.h"
#include "local/local_store.h"

#include "base/rng.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH 8

static uint64_t size = 128;
static double seconds = 0.5;
static uint8_t *mem[2]; /* 1 MiB of text, of random bytes */
static const char *const contents[2] = {"text", "random"};

/* ---- stages ---- */

static struct codec_stats stats;
static struct codec_ctx cx;
static const struct codec_place here = {{1}, 2, 3, MiB};
static const uint8_t key[SEAL_KEY] = {5};

/* Core-seconds per GiB of encoding, then of decoding; *ret_ratio of lengths. */
static void one_stage(const struct codec *c, const uint8_t *plain, double ret[2], double *ret_ratio)
{
    static uint8_t buf[MiB], stored[MiB], back[MiB];
    struct codec_out o = {0};
    enum codec_refusal why;
    uint64_t n = 0, gen, start;
    double cpu;
    uint32_t len;

    start = now_ns();
    cpu = process_cpu(0);
    for (; (double)(now_ns() - start) < seconds * 5e8; n++)
        if (codec_encode(c, &cx, &here, key, 1, plain, MiB, buf, &o))
            die("encode", -EIO, "");
    ret[0] = (process_cpu(0) - cpu) * 1024 / (double)n;
    n = 0;
    start = now_ns();
    cpu = process_cpu(0);
    for (; (double)(now_ns() - start) < seconds * 5e8; n++) {
        memcpy(stored, o.data, o.len); /* as if it came from the store: decoding may be in place */
        if (codec_decode(c, &cx, &here, key, stored, o.len, o.meta, o.meta_len, back, MiB, &len, &gen, &why))
            die("decode", -EIO, "");
    }
    ret[1] = (process_cpu(0) - cpu) * 1024 / (double)n;
    *ret_ratio = MiB / (double)o.len;
}

static void stages(void)
{
    const struct {
        const char *name;
        struct codec c;
    } all[] = {
        {"copy", {.stats = &stats}},
        {"csum", {.csum = true, .stats = &stats}},
        {"lz4", {.alg = META_LZ4, .level = 1, .stats = &stats}},
        {"zstd-1", {.alg = META_ZSTD, .level = 1, .stats = &stats}},
        {"zstd-6", {.alg = META_ZSTD, .level = 6, .stats = &stats}},
        {"crypt", {.crypt = true, .stats = &stats}},
        {"lz4+crypt", {.alg = META_LZ4, .level = 1, .crypt = true, .stats = &stats}},
    };

    printf("{\"stages\": {");
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        for (int k = 0; k < 2; k++) {
            double cost[2], ratio;
            one_stage(&all[i].c, mem[k], cost, &ratio);
            printf("%s\"%s %s\": {\"down\": %.3f, \"up\": %.3f, \"ratio\": %.2f}", i || k ? ", " : "", all[i].name,
                   contents[k], cost[0], cost[1], ratio);
        }
    printf("}");
}

/* ---- over the local engine ---- */

struct rig {
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_queue *q;
    uint64_t ino;
};

static const struct pst_ctx ctx;

static void open_rig(struct rig *g, const char *dir, const char *specs)
{
    struct pst_option opts[] = {{"create", "1"}, {"size", "4294967296"}};
    struct pst_pool_info pool = {.label = "p"}, pi;
    struct pst_cont_props props = {0};
    struct pst_cont_info ci;
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_attr a;
    char copy[200], err[300] = "", *save = NULL;
    int r = pst_local_backend.open(dir, opts, 2, &g->st, err, sizeof err);

    snprintf(copy, sizeof copy, "%s", specs);
    for (char *s = strtok_r(copy, " ", &save); !r && s; s = strtok_r(NULL, " ", &save))
        r = filter_push(s, g->st, &g->st, err, sizeof err);
    if (!r)
        r = pst_pool_create(g->st, &ctx, &pool, &pi);
    if (!r)
        r = pst_cont_create(g->st, &ctx, "p", "c", &props, &ci);
    if (!r)
        r = pst_cont_open(g->st, &ctx, "p", "c", &g->c);
    if (!r)
        r = pst_store_make(g->c, &ctx, PST_ROOT_INO, "f", &in, &a, NULL);
    if (!r)
        r = pst_queue_open(g->st, DEPTH, &g->q);
    if (r)
        die("set-up", r, err);
    g->ino = a.ino;
}

/* Operations of `len` bytes, in order or at random places, as many as the file has (once), or until the time is over.
 */
static void work(struct rig *g, const char *name, enum pst_op_kind kind, uint64_t len, bool random, const uint8_t *from)
{
    static uint8_t *buf[DEPTH];
    struct pst_op ops[DEPTH], *done[DEPTH];
    struct iovec v[DEPTH];
    struct rng r;
    uint64_t count = size * MiB / len, next = 0, n = 0, start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
    double cpu = process_cpu(0), wall;
    int busy = 0, idle[DEPTH];

    rng_seed(&r, 1);
    for (int i = 0; i < DEPTH; i++) {
        if (!buf[i] && posix_memalign((void **)&buf[i], 4096, MiB))
            die("memory", -ENOMEM, "");
        memcpy(buf[i], from, MiB);
        idle[i] = i;
    }
    for (;;) {
        while (busy < DEPTH && (random ? now_ns() < end : next < count)) {
            int i = idle[DEPTH - 1 - busy++], e;
            v[i] = (struct iovec){buf[i], len};
            ops[i] = (struct pst_op){.kind = kind,
                                     .cont = g->c,
                                     .ino = g->ino,
                                     .length = len,
                                     .iov = &v[i],
                                     .iovcnt = 1,
                                     .offset = (random ? rng_below(&r, count) : next) * len};
            next++;
            e = pst_queue_submit(g->q, &ops[i]);
            if (e)
                die("submit", e, name);
        }
        if (!busy)
            break;
        for (int k = 0, got = pst_queue_reap(g->q, done, DEPTH, UINT64_MAX); k < got; k++, n++) {
            if (done[k]->result != (int64_t)len)
                die(name, (int)done[k]->result, "");
            idle[DEPTH - busy--] = (int)(done[k] - ops);
        }
    }
    if (kind == PST_OP_WRITE) {
        struct pst_op op = {.kind = PST_OP_FSYNC, .cont = g->c, .ino = g->ino};
        int64_t e = pst_queue_run(g->q, &op);
        if (e < 0)
            die("fsync", (int)e, name);
    }
    wall = (double)(now_ns() - start) / 1e9;
    cpu = process_cpu(0) - cpu;
    printf("\"%s\": {\"mbps\": %.1f, \"core_s_per_gib\": %.3f, \"ops\": %.0f}", name, (double)(n * len) / 1e6 / wall,
           cpu * (double)GiB / (double)(n * len), (double)n / wall);
}

static void stack(const char *dir, int i, const char *specs, int content)
{
    char path[300];
    struct rig g;

    snprintf(path, sizeof path, "%s/%d-%d", dir, i, content);
    open_rig(&g, path, specs);
    printf(", \"%s %s\": {", specs[0] ? specs : "none", contents[content]);
    work(&g, "write 1m", PST_OP_WRITE, MiB, false, mem[content]);
    printf(", ");
    work(&g, "read 1m", PST_OP_READ, MiB, false, mem[content]);
    printf(", ");
    work(&g, "randread 4k", PST_OP_READ, 4096, true, mem[content]);
    printf(", ");
    work(&g, "randwrite 4k", PST_OP_WRITE, 4096, true, mem[content]);
    printf("}");
    fflush(stdout);
    pst_queue_close(g.q);
    pst_cont_close(g.c);
    pst_store_close(g.st);
}

int main(int argc, char **argv)
{
    static const char *const stacks[] = {"",
                                         "csum",
                                         "compress",
                                         "compress:alg=zstd",
                                         "crypt:key_env=PST_BENCH_KEY",
                                         "compress crypt:key_env=PST_BENCH_KEY"};
    uint64_t stages_only = 0;
    const struct bench_arg args[] = {
        {"size", NULL, &size, NULL}, {"seconds", NULL, NULL, &seconds}, {"stages", NULL, &stages_only, NULL}, {0}};
    struct rng r;

    bench_program = "bench_filter";
    if (argc < 2) {
        fprintf(stderr, "usage: bench_filter DIR [size=MiB] [seconds=S] [stages=1]\n");
        return 2;
    }
    bench_args(args, argc, argv, 2);
    setenv("PST_BENCH_KEY", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 1);
    if (codec_ctx_init(&cx) || mkdir(argv[1], 0700))
        die(argv[1], -errno, "");
    rng_seed(&r, 7);
    for (int k = 0; k < 2; k++)
        mem[k] = malloc(MiB);
    fill_text(&r, mem[0], MiB);
    rng_fill(&r, mem[1], MiB);
    stages();
    for (int k = 0; k < 2 && !stages_only; k++)
        for (size_t i = 0; i < ARRAY_SIZE(stacks); i++)
            stack(argv[1], (int)i, stacks[i], k);
    printf("}\n");
    return 0;
}

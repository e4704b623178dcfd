#include "cf.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- close, status ---- */

static void destroy(struct cf *cf)
{
    cf_size_done(cf);
    cf_keys_done(cf);
    slots_free(cf->slots);
    outs_free(cf->outs);
    pthread_mutex_destroy(&cf->seen_lock);
    pthread_mutex_destroy(&cf->sync_lock);
    free(cf->seen);
    free(cf);
}

static void cf_close(struct pst_store *st)
{
    struct cf *cf = container_of(st, struct cf, f.st);
    struct pst_store *next = st->next;

    destroy(cf);
    pst_store_close(next);
}

struct cf *cf_of(struct pst_store *st)
{
    return st->ops->close == cf_close ? container_of(st, struct cf, f.st) : NULL;
}

bool filter_sealed_memory(struct pst_store *st, void **ret, size_t *ret_len)
{
    for (; st; st = st->next) {
        struct cf *cf = cf_of(st);
        if (!cf || !cf->outs)
            continue;
        outs_memory(cf->outs, ret, ret_len);
        return true;
    }
    return false;
}

static bool has_stage(const struct cf *cf, enum codec_stage s)
{
    return s == STAGE_COMPRESS ? cf->codec.alg != META_RAW : s == STAGE_CRYPT ? cf->codec.crypt : cf->codec.csum;
}

static double get(const atomic_uint_fast64_t *v)
{
    return (double)atomic_load_explicit(v, memory_order_relaxed);
}

static void stage_stats(struct cf *cf, enum codec_stage s, pst_stat_fn fn, void *user)
{
    const __typeof__(cf->stats.stage[0]) *t = &cf->stats.stage[s];
    const char *name = codec_stage_names[s];
    char l[96];
    const struct {
        const char *dir;
        const atomic_uint_fast64_t *in, *out, *ns;
    } ways[] = {{"write", &t->in, &t->out, &t->ns}, {"read", &t->back_in, &t->back_out, &t->back_ns}};

    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        snprintf(l, sizeof l, "filter=\"%s\",direction=\"%s\"", name, ways[i].dir);
        fn(user, "filter_bytes_in_total", l, "Bytes of chunks that a filter took in", true, get(ways[i].in));
        fn(user, "filter_bytes_out_total", l, "Bytes of chunks that a filter gave out", true, get(ways[i].out));
        fn(user, "filter_cost_seconds_total", l, "Time that a filter worked on chunks", true, get(ways[i].ns) / 1e9);
    }
    if (s != STAGE_COMPRESS)
        return;
    snprintf(l, sizeof l, "filter=\"%s\"", name);
    fn(user, "filter_compression_ratio", l, "Bytes before by bytes after compression, of what was written", false,
       get(&t->out) > 0 ? get(&t->in) / get(&t->out) : 1);
    fn(user, "filter_raw_chunks_total", l, "Chunks stored as they are, since they did not become shorter", true,
       get(&cf->stats.raw_chunks));
}

static void cf_stats(struct pst_store *st, pst_stat_fn fn, void *user)
{
    struct cf *cf = container_of(st, struct cf, f.st);
    char l[64];

    pst_store_stats(st->next, fn, user);
    for (enum codec_stage s = 0; s < STAGES; s++)
        if (has_stage(cf, s))
            stage_stats(cf, s, fn, user);
    for (int i = REFUSED_NOT + 1; i < REFUSALS; i++) {
        snprintf(l, sizeof l, "reason=\"%s\"", codec_refusal_names[i]);
        fn(user, "filter_refused_total", l, "Chunks or keys of objects that were refused", true,
           get(&cf->stats.refused[i]));
    }
    fn(user, "filter_again_total", "", "Chunks that another instance changed meanwhile: done once more", true,
       get(&cf->again));
    fn(user, "filter_chunk_hits_total", "", "Chunks that were in memory", true, get(&cf->hits));
    fn(user, "filter_chunk_misses_total", "", "Chunks that were read from the store", true, get(&cf->misses));
    fn(user, "filter_memory_bytes", "", "Memory for chunks", false, (double)slots_bytes(cf->slots));
}

static void cf_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user)
{
    struct cf *cf = container_of(st, struct cf, f.st);
    static const char *const algs[META_ALGS] = {"none", "lz4", "zstd"};
    char v[64];

    pst_store_describe(st->next, fn, user);
    if (cf->codec.csum)
        fn(user, "filter", "csum crc32c");
    if (cf->codec.crypt)
        fn(user, "filter", "crypt aes-256-gcm");
    if (cf->codec.alg) {
        snprintf(v, sizeof v, "compress %s level %d", algs[cf->codec.alg], cf->codec.level);
        fn(user, "filter", v);
    }
}

/* ---- making one ---- */

static struct cf *make(struct pst_store *next)
{
    struct cf *cf = calloc(1, sizeof *cf);

    if (!cf)
        return NULL;
    filter_init(&cf->f, "chunks", next);
    cf->codec.stats = &cf->stats;
    cf->memory = CF_MEMORY_DEFAULT;
    pthread_mutex_init(&cf->seen_lock, NULL);
    pthread_mutex_init(&cf->sync_lock, NULL);
    cf->f.ops.close = cf_close;
    cf->f.ops.stats = cf_stats;
    cf->f.ops.describe = cf_describe;
    cf->f.ops.wants_shared = NULL; /* what goes down is in memory of its own */
    cf_queue_ops(&cf->f.ops);
    cf_name_ops(&cf->f.ops);
    cf_size_ops(&cf->f.ops);
    return cf;
}

static int unknown(const struct pst_option *o, const char *known, char *err, size_t err_size)
{
    snprintf(err, err_size, "unknown option \"%.40s\"; known: %smemory_mb", o->key, known);
    return -EINVAL;
}

/* 0: it was memory_mb. -ENOENT: another one. */
static int common_option(uint64_t *memory, const struct pst_option *o, char *err, size_t err_size)
{
    uint64_t mb;
    int r;

    if (strcmp(o->key, "memory_mb") != 0)
        return -ENOENT;
    r = filter_number(o, 1, 65536, &mb, err, err_size);
    if (!r)
        *memory = mb * MiB;
    return r;
}

/* What the options of one stage say. */
struct wish {
    enum codec_stage stage;
    uint64_t memory;
    enum meta_alg alg;
    int level;
    struct keyring ring;
};

/* Stages of one instance lie next to one another, so that a chunk is read and written once. */
static int check_place(const struct wish *w, struct pst_store *next, char *err, size_t err_size)
{
    struct cf *cf = cf_of(next);

    if (cf && has_stage(cf, w->stage)) {
        snprintf(err, err_size, "it is there already");
        return -EINVAL;
    }
    for (struct pst_store *st = cf ? NULL : next->next; st; st = st->next)
        if (cf_of(st)) {
            snprintf(err, err_size,
                     "compress, crypt and csum have to follow one another, without another filter between");
            return -EINVAL;
        }
    return 0;
}

static int add_stage(struct cf *cf, struct wish *w)
{
    int r = 0;

    switch (w->stage) {
    case STAGE_CSUM:
        cf->codec.csum = true;
        break;
    case STAGE_COMPRESS:
        cf->codec.alg = w->alg;
        cf->codec.level = w->level;
        break;
    default:
        r = cf_keys_init(cf, &w->ring);
        cf->codec.crypt = !r;
    }
    return r;
}

/* Nothing is under way yet. Of four parts of the memory encrypted chunks have one. */
static int take_memory(struct cf *cf)
{
    uint64_t outs = cf->codec.crypt ? cf->memory / 4 / OUTS_GRAIN * OUTS_GRAIN : 0;

    slots_free(cf->slots);
    outs_free(cf->outs);
    cf->slots = slots_new(cf->memory - outs);
    cf->outs = outs ? outs_new(outs) : NULL;
    return cf->slots && (cf->outs || !outs) ? 0 : -ENOMEM;
}

/* Takes what is in w. */
static int push(struct wish *w, struct pst_store *next, struct pst_store **ret, char *err, size_t err_size)
{
    struct cf *cf = cf_of(next), *made = NULL;
    int r = check_place(w, next, err, err_size);

    if (!r && !cf) {
        cf = made = make(next);
        r = made ? 0 : -ENOMEM;
    }
    if (!r && w->memory)
        cf->memory = w->memory;
    if (!r)
        r = add_stage(cf, w);
    if (!r)
        r = take_memory(cf);
    if (!r)
        *ret = &cf->f.st;
    else if (made)
        destroy(made);
    keyring_wipe(&w->ring);
    return r;
}

static int open_csum(struct pst_store *next, const struct pst_option *opts, size_t nopts, struct pst_store **ret,
                     char *err, size_t err_size)
{
    struct wish w = {.stage = STAGE_CSUM};

    for (size_t i = 0; i < nopts; i++) {
        int r = common_option(&w.memory, &opts[i], err, err_size);
        if (r)
            return r == -ENOENT ? unknown(&opts[i], "", err, err_size) : r;
    }
    return push(&w, next, ret, err, err_size);
}

static int compress_option(struct wish *w, const struct pst_option *o, char *err, size_t err_size)
{
    uint64_t level;
    int r;

    if (!strcmp(o->key, "alg")) {
        w->alg = !strcmp(o->value, "lz4") ? META_LZ4 : !strcmp(o->value, "zstd") ? META_ZSTD : META_RAW;
        if (w->alg)
            return 0;
        snprintf(err, err_size, "alg=%.40s: must be lz4 or zstd", o->value);
        return -EINVAL;
    }
    if (!strcmp(o->key, "level")) {
        r = filter_number(o, 1, 12, &level, err, err_size);
        w->level = r ? 0 : (int)level;
        return r;
    }
    r = common_option(&w->memory, o, err, err_size);
    return r == -ENOENT ? unknown(o, "alg, level, ", err, err_size) : r;
}

static int open_compress(struct pst_store *next, const struct pst_option *opts, size_t nopts, struct pst_store **ret,
                         char *err, size_t err_size)
{
    struct wish w = {.stage = STAGE_COMPRESS, .alg = META_LZ4, .level = 1};

    for (size_t i = 0; i < nopts; i++) {
        int r = compress_option(&w, &opts[i], err, err_size);
        if (r)
            return r;
    }
    return push(&w, next, ret, err, err_size);
}

static int open_crypt(struct pst_store *next, const struct pst_option *opts, size_t nopts, struct pst_store **ret,
                      char *err, size_t err_size)
{
    struct wish w = {.stage = STAGE_CRYPT};
    bool have = false;
    int r = 0;

    for (size_t i = 0; !r && i < nopts; i++) {
        r = keyring_option(&w.ring, &opts[i], &have, err, err_size);
        if (r == -ENOENT)
            r = common_option(&w.memory, &opts[i], err, err_size);
        if (r == -ENOENT)
            r = unknown(&opts[i], "key_file, key_env, key_command, old_key_file, old_key_env, old_key_command, ", err,
                        err_size);
    }
    if (!r && !have) {
        snprintf(err, err_size, "no key: give key_file=, key_env= or key_command=");
        r = -EINVAL;
    }
    if (!r)
        return push(&w, next, ret, err, err_size);
    keyring_wipe(&w.ring);
    return r;
}

const struct filter_type filter_csum = {
    .name = "csum",
    .help = "csum[:memory_mb=N]: a checksum of each chunk from here to its reader",
    .open = open_csum,
};
const struct filter_type filter_compress = {
    .name = "compress",
    .help = "compress[:alg=lz4|zstd][,level=1...12][,memory_mb=N]: chunks are stored shorter where they become so",
    .open = open_compress,
};
const struct filter_type filter_crypt = {
    .name = "crypt",
    .help = "crypt:key_file=PATH|key_env=NAME|key_command=COMMAND[,old_key_...][,memory_mb=N]: the bytes of files are "
            "stored encrypted",
    .open = open_crypt,
};

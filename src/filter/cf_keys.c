/* Data keys of objects, and chunks from and to their stored form with them. */
#define LOG_COMPONENT "filter"
#include "cf.h"

#include "base/crypto.h"
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/trace.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static const struct pst_ctx trusted;

int cf_keys_init(struct cf *cf, const struct keyring *ring)
{
    size_t bytes = sizeof *cf->secrets;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return -ENOMEM;
    mlock(p, bytes); /* where it is not allowed, they may get to swap space */
    madvise(p, bytes, MADV_DONTDUMP);
    madvise(p, bytes, MADV_WIPEONFORK); /* a program's children cannot use the filter, and have not its keys */
    cf->secrets = p;
    cf->secrets->ring = *ring;
    pthread_mutex_init(&cf->keys_lock, NULL);
    cf->keys_seal = seal_new();
    cf->seen = calloc(CF_SEEN, sizeof *cf->seen);
    if (cf->keys_seal && cf->seen)
        return 0;
    cf_keys_done(cf);
    return -ENOMEM;
}

void cf_keys_done(struct cf *cf)
{
    if (!cf->secrets)
        return;
    pst_wipe(cf->secrets, sizeof *cf->secrets);
    munmap(cf->secrets, sizeof *cf->secrets);
    cf->secrets = NULL;
    seal_free(cf->keys_seal);
    cf->keys_seal = NULL;
    pthread_mutex_destroy(&cf->keys_lock);
}

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = (a * 0x9e3779b97f4a7c15ull ^ b) * 0xff51afd7ed558ccdull;
    h = (h ^ h >> 32 ^ c) * 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 29;
}

static struct cf_key *entry(struct cf *cf, const struct pst_cont *c, uint64_t ino)
{
    return &cf->secrets->keys[mix(c->info.id, ino, 0) % CF_KEYS];
}

struct header_place cf_header_place(const struct pst_cont *c, uint64_t ino)
{
    struct header_place at = {.ino = ino};

    memcpy(at.cont, c->info.uuid, sizeof at.cont);
    return at;
}

static bool remembered(struct cf *cf, struct pst_cont *c, uint64_t ino, uint64_t history, uint8_t ret_key[SEAL_KEY])
{
    scoped_lock(&cf->keys_lock);
    const struct cf_key *e = entry(cf, c, ino);

    if (e->ino != ino || e->cont != c->info.id || e->history != history)
        return false;
    memcpy(ret_key, e->key, SEAL_KEY);
    return true;
}

void cf_key_drop(struct cf *cf, struct pst_cont *c, uint64_t ino)
{
    scoped_lock(&cf->keys_lock);
    struct cf_key *e = entry(cf, c, ino);

    if (e->ino == ino && e->cont == c->info.id)
        pst_wipe(e, sizeof *e);
}

static int refuse_header(struct cf *cf, const struct pst_cont *c, uint64_t ino, int r)
{
    enum codec_refusal why = r == -EKEYREJECTED ? REFUSED_KEY : r == -ENOTSUP ? REFUSED_UNKNOWN : REFUSED_TAG;

    atomic_fetch_add(&cf->stats.refused[why], 1);
    log_error("%s/%s, object %llu: %s", c->info.pool, c->info.label, (unsigned long long)ino,
              why == REFUSED_KEY       ? "its key is wrapped by another tenant key: key_file=, old_key_file= (or _env, "
                                         "_command) have to name it"
              : why == REFUSED_UNKNOWN ? "its key's header is of a later version"
                                       : "its key's header is damaged or not its own");
    return why == REFUSED_TAG ? -EIO : r;
}

/* Reads the header and opens it. */
static int fetch(struct cf *cf, struct pst_cont *c, uint64_t ino, uint8_t ret_key[SEAL_KEY])
{
    const struct header_place at = cf_header_place(c, ino);
    uint8_t header[HEADER_BYTES + 1];
    int64_t n = pst_store_getxattr(c->next, &trusted, ino, HEADER_XATTR, header, sizeof header);
    bool old;
    int r;

    if (n < 0 && n != -ERANGE)
        return (int)n;
    scoped_lock(&cf->keys_lock);
    r = n < 0 ? -EBADMSG : header_open(&cf->secrets->ring, cf->keys_seal, &at, header, (size_t)n, ret_key, &old);
    return r ? refuse_header(cf, c, ino, r) : 0;
}

/* Only the first of several instances that try succeeds; the others find its header then. */
static int make(struct cf *cf, struct pst_cont *c, uint64_t ino)
{
    const struct header_place at = cf_header_place(c, ino);
    uint8_t header[HEADER_BYTES], key[SEAL_KEY];
    int r;

    {
        scoped_lock(&cf->keys_lock);
        r = header_make(&cf->secrets->ring, cf->keys_seal, &at, header, key);
    }
    pst_wipe(key, sizeof key);
    if (!r)
        r = pst_store_setxattr(c->next, &trusted, ino, HEADER_XATTR, header, sizeof header, PST_XATTR_CREATE);
    return r == -EEXIST ? 0 : r;
}

int cf_key_get(struct cf *cf, struct pst_cont *c, uint64_t ino, bool create, uint8_t ret_key[SEAL_KEY])
{
    uint64_t history = pst_store_history(c->next->store);
    int r;

    if (remembered(cf, c, ino, history, ret_key))
        return 0;
    r = fetch(cf, c, ino, ret_key);
    if (r == -ENODATA && create) {
        r = make(cf, c, ino);
        if (!r)
            r = fetch(cf, c, ino, ret_key);
    }
    if (r)
        return r;
    scoped_lock(&cf->keys_lock);
    struct cf_key *e = entry(cf, c, ino);
    *e = (struct cf_key){.cont = c->info.id, .ino = ino, .history = history};
    memcpy(e->key, ret_key, SEAL_KEY);
    return 0;
}

/*
 * The store below has another history than when this key was got: what was not durable may be lost, the header with it,
 * while a chunk that was sent again has arrived. 0: the header is there (again); -ESTALE: it is another one by now.
 */
static int keep(struct cf *cf, struct pst_cont *c, uint64_t ino, const uint8_t key[SEAL_KEY])
{
    const struct header_place at = cf_header_place(c, ino);
    uint8_t header[HEADER_BYTES], now[SEAL_KEY];
    int r = fetch(cf, c, ino, now);

    if (r == -ENODATA) {
        {
            scoped_lock(&cf->keys_lock);
            r = header_wrap(&cf->secrets->ring, cf->keys_seal, &at, key, header);
        }
        if (!r)
            r = pst_store_setxattr(c->next, &trusted, ino, HEADER_XATTR, header, sizeof header, PST_XATTR_CREATE);
        if (!r || r == -EEXIST)
            r = fetch(cf, c, ino, now);
    }
    if (!r && !pst_equal_ct(now, key, SEAL_KEY)) {
        cf_key_drop(cf, c, ino);
        r = -ESTALE;
    }
    pst_wipe(now, sizeof now);
    return r;
}

/* ---- the newest state of each chunk, as far as it is remembered ---- */

/* Under seen_lock: the chunk's place, with key 0 or another chunk's if it is not known. */
static struct cf_seen_gen *seen_entry(struct cf *cf, const struct pst_cont *c, uint64_t ino, uint64_t chunk,
                                      uint64_t *ret_key)
{
    uint64_t history = pst_store_history(c->next->store);

    *ret_key = mix(c->info.id, ino, chunk + 1) | 1;
    if (history != cf->seen_history) {
        memset(cf->seen, 0, CF_SEEN * sizeof *cf->seen);
        cf->seen_history = history;
    }
    return &cf->seen[(*ret_key >> 1) % CF_SEEN];
}

uint64_t cf_seen(struct cf *cf, struct pst_cont *c, uint64_t ino, uint64_t chunk)
{
    const struct cf_seen_gen *e;
    uint64_t key;

    if (!cf->seen)
        return 0;
    scoped_lock(&cf->seen_lock);
    e = seen_entry(cf, c, ino, chunk, &key);
    return e->key == key ? e->gen : 0;
}

/* Is a an earlier state than b? Not of different random numbers: there was a hole between, and nobody knows the order.
 */
static bool is_older(uint64_t a, uint64_t b)
{
    return a >> 32 == b >> 32 && a < b;
}

static uint64_t next_gen(uint64_t before, uint64_t seen)
{
    uint32_t start = 0;

    if (is_older(before, seen)) /* what the store showed was not authenticated, if all of the chunk is new */
        before = seen;
    if (before && (uint32_t)before != UINT32_MAX)
        return before + 1;
    while (!start)
        rng_secret(&start, sizeof start);
    return (uint64_t)start << 32 | 1;
}

static void see(struct cf *cf, struct pst_cont *c, uint64_t ino, uint64_t chunk, uint64_t gen)
{
    struct cf_seen_gen *e;
    uint64_t key;

    if (!cf->seen || !gen)
        return;
    scoped_lock(&cf->seen_lock);
    e = seen_entry(cf, c, ino, chunk, &key);
    if (e->key != key || !is_older(gen, e->gen))
        *e = (struct cf_seen_gen){key, gen};
}

/* ---- chunks ---- */

static struct codec_place chunk_place(const struct pst_cont *c, uint64_t ino, uint64_t chunk)
{
    struct codec_place at = {.ino = ino, .chunk = chunk, .chunk_size = cf_chunk_size(c)};

    memcpy(at.cont, c->info.uuid, sizeof at.cont);
    return at;
}

static void log_refusal(const struct pst_cont *c, const struct pst_op *op, enum codec_refusal why)
{
    static const char *const text[REFUSALS] = {
        [REFUSED_FORMAT] = "is damaged",
        [REFUSED_UNKNOWN] = "was written by a later version, or with a filter that this one does not know",
        [REFUSED_CSUM] = "does not have its checksum: it was damaged on the way or in the store",
        [REFUSED_TAG] = "is not what was written there under its key: damaged, exchanged or forged",
        [REFUSED_PLAIN] = "is not encrypted, which all chunks here have to be",
        [REFUSED_KEY] = "is encrypted: the filter crypt, with its key, is needed",
        [REFUSED_ROLLBACK] = "is an older state than one that was read before",
    };

    uint64_t was = trace_enter(op->ctx.trace ? op->ctx.trace : trace_current());

    log_error("%s/%s, object %llu, chunk %llu %s", c->info.pool, c->info.label, (unsigned long long)op->ino,
              (unsigned long long)op->offset, text[why]);
    trace_enter(was);
}

/* The stored bytes are overwritten by a try: the caller reads them again for another. */
int cf_decode(struct cf *cf, struct codec_ctx *x, struct pst_cont *c, const struct pst_op *op, uint64_t least,
              uint8_t *stored, uint8_t *plain, uint32_t cap, uint32_t *ret_len, uint64_t *ret_gen)
{
    const struct codec_place at = chunk_place(c, op->ino, op->offset);
    uint32_t stored_len = (uint32_t)op->result;
    uint8_t key[SEAL_KEY];
    bool keyed = cf->codec.crypt && codec_wants_key(op->meta, op->meta_len);
    enum codec_refusal why = REFUSED_NOT;
    uint64_t gen = 0;
    int r = 0;

    if (op->result > (int64_t)cap) /* not what a chunk can be */
        return -EIO;
    if (keyed) {
        r = cf_key_get(cf, c, op->ino, false, key);
        if (r == -ENODATA)
            why = REFUSED_TAG;
        else if (r)
            return r;
    }
    if (!r)
        r = codec_decode(&cf->codec, x, &at, keyed ? key : NULL, stored, stored_len, op->meta, op->meta_len, plain, cap,
                         ret_len, &gen, &why);
    pst_wipe(key, sizeof key);
    if (!r)
        see(cf, c, op->ino, op->offset, gen);
    if (!r && is_older(gen, least)) {
        why = REFUSED_ROLLBACK;
        r = -EIO;
    }
    if (why == REFUSED_TAG) {
        cf_key_drop(cf, c, op->ino);
        r = -EIO;
    }
    if (why) {
        atomic_fetch_add(&cf->stats.refused[why], 1);
        log_refusal(c, op, why);
    }
    if (!r)
        *ret_gen = gen;
    return r;
}

int cf_encode(struct cf *cf, struct codec_ctx *x, struct pst_cont *c, struct pst_op *op, struct iovec *iov,
              uint64_t before, const uint8_t *plain, uint32_t len, uint8_t *buf, uint8_t *sealed, struct cf_used *ret)
{
    const struct codec_place at = chunk_place(c, op->ino, op->offset);
    uint64_t gen = cf->codec.crypt ? next_gen(before, cf_seen(cf, c, op->ino, op->offset)) : 0;
    struct codec_out out;
    int r = 0;

    op->iov = iov;
    op->iovcnt = 0;
    op->length = op->meta_len = 0;
    if (!len)
        return 0;
    ret->history = pst_store_history(c->next->store);
    if (cf->codec.crypt)
        r = cf_key_get(cf, c, op->ino, true, ret->key);
    if (!r)
        r = codec_encode_to(&cf->codec, x, &at, ret->key, gen, plain, len, buf, sealed, &out);
    if (r) {
        cf_not_replaced(ret);
        return r;
    }
    *iov = (struct iovec){.iov_base = (void *)(uintptr_t)out.data, .iov_len = out.len};
    op->iovcnt = 1;
    op->length = out.len;
    op->meta_len = out.meta_len;
    memcpy(op->meta, out.meta, out.meta_len);
    return 0;
}

void cf_not_replaced(struct cf_used *u)
{
    pst_wipe(u->key, sizeof u->key);
}

int cf_replaced(struct cf *cf, struct pst_cont *c, const struct pst_op *op, struct cf_used *u)
{
    struct chunk_meta m;
    int r = 0;

    if (cf->codec.crypt && op->meta_len && !meta_decode(op->meta, op->meta_len, &m)) {
        if (pst_store_history(c->next->store) != u->history)
            r = keep(cf, c, op->ino, u->key);
        if (!r)
            see(cf, c, op->ino, op->offset, m.gen);
    }
    cf_not_replaced(u);
    return r;
}

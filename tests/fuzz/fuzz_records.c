/*
 * The namespace's records on disk: what decodes encodes to the same bytes and keeps its bounds. The first byte chooses
 * the record.
 */
#include "fuzz.h"

#include "ns.h"

#include "base/rng.h"
#include "store/perm.h"

enum { INODE, DIRENT, COOKIE, POOL, CONT, CONT_GC, USAGE, REPLY, KINDS };

#define INO 77u

static void same(struct wbuf *w, const uint8_t *p, size_t n)
{
    CHECK(w->err || (w->len == n && !memcmp(w->data, p, n)));
    wbuf_done(w);
}

static void try_inode(const uint8_t *p, size_t n)
{
    struct inode i;
    struct wbuf w = {0};

    if (inode_decode(INO, p, n, &i))
        return;
    CHECK(i.a.ino == INO && i.a.size <= PST_FILE_MAX && i.xattrs <= NS_XATTRS_MAX && is_pow2(i.a.chunk_size));
    CHECK(!S_ISLNK(i.a.mode) == !i.target && (!i.target || strlen(i.target) == i.a.size));
    inode_encode(&w, &i);
    same(&w, p, n);
    inode_done(&i);
}

static void try_admin(int kind, const uint8_t *p, size_t n)
{
    struct pst_pool_info pool;
    struct pst_cont_info cont;
    struct wbuf w = {0};

    if (kind == POOL && !pool_decode("label", p, n, &pool)) {
        pool_encode(&w, &pool);
        same(&w, p, n);
    } else if (kind == CONT && !cont_decode("pool", "label", p, n, &cont)) {
        CHECK(cont.id && is_pow2(cont.props.chunk_size) && cont.props.chunk_size <= PST_CHUNK_MAX);
        cont_encode(&w, &cont);
        same(&w, p, n);
    }
}

static void try_small(int kind, const uint8_t *p, size_t n)
{
    char name[PST_NAME_MAX + 1], pool[PST_LABEL_MAX + 1];
    uint8_t uuid[16];
    int64_t bytes, objects;
    uint32_t day;
    struct dent d;

    if (kind == DIRENT && !dirent_decode(p, n, &d))
        CHECK(d.ino && d.cookie && !(d.type & ~(uint32_t)S_IFMT));
    if (kind == COOKIE && !cookie_decode(p, n, &d, name))
        CHECK(d.ino && *name && strlen(name) <= PST_NAME_MAX && !strchr(name, '/'));
    if (kind == CONT_GC && !cont_gc_decode(p, n, pool, uuid))
        CHECK(strlen(pool) <= PST_LABEL_MAX);
    if (kind == USAGE && !usage_decode(p, n, &bytes, &objects))
        CHECK(bytes >= 0 && objects >= 0);
    if (kind == REPLY)
        (void)reply_day(p, n, &day);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    int kind = data[0] % KINDS;
    if (kind == INODE)
        try_inode(data + 1, size - 1);
    else if (kind == POOL || kind == CONT)
        try_admin(kind, data + 1, size - 1);
    else
        try_small(kind, data + 1, size - 1);
    return 0;
}

static void sample_inode(struct rng *r, struct wbuf *w)
{
    static const uint32_t types[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO};
    struct inode i = {.a = {.ino = INO, .nlink = 2, .chunk_size = 65536, .change = rng_u64(r)}};
    i.a.mode = types[rng_below(r, 4)] | (uint32_t)rng_below(r, 010000);
    if (S_ISREG(i.a.mode)) {
        i.a.size = rng_below(r, PST_FILE_MAX);
        i.a.used = rng_below(r, 1000) * PST_BLOCK;
    } else if (S_ISDIR(i.a.mode)) {
        i.parent = 1;
        i.next_cookie = 1 + rng_below(r, 100);
    } else if (S_ISLNK(i.a.mode)) {
        i.target = (char *)(uintptr_t) "../target";
        i.a.size = 9;
    }
    inode_encode(w, &i);
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    struct rng r;
    struct wbuf w = {0};
    struct pst_pool_info pool = {.quota_bytes = n, .mode = 0700};
    struct pst_cont_info cont = {.id = n | 1, .props = {.chunk_size = PST_CHUNK_MIN << n % 9, .mode = 0755}};

    rng_seed(&r, n);
    int kind = (int)rng_below(&r, KINDS);
    wbuf_u8(&w, (uint8_t)kind);
    if (kind == INODE) {
        sample_inode(&r, &w);
    } else if (kind == POOL) {
        pool_encode(&w, &pool);
    } else if (kind == CONT) {
        cont_encode(&w, &cont);
    } else if (kind == USAGE) {
        usage_encode(&w, (int64_t)(n % 1000 * PST_BLOCK), (int64_t)(n % 100));
    } else {
        wbuf_u8(&w, 1); /* the format of the small ones; then numbers, a type, a name */
        wbuf_u64(&w, 1 + n % 7);
        if (kind == DIRENT)
            wbuf_u64(&w, 1 + n % 5);
        wbuf_u8(&w, kind == DIRENT || kind == COOKIE ? S_IFREG >> 12 : 1);
        if (kind != DIRENT)
            wbuf_put(&w, "a-name-or-a-label", 1 + n % 17);
    }
    size_t len = w.len < cap ? w.len : cap;
    memcpy(buf, w.data, len);
    wbuf_done(&w);
    return len;
}

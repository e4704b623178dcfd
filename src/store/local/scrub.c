/* Verifying data at rest while the store is in use. */
#include "data.h"

#include "base/crc.h"
#include "parts.h"

#include <errno.h>
#include <string.h>

#define REST_SHARE 4 /* scrub sleeps for 1/4 of the time that it worked */

void chunk_verify(struct engine *e, const struct chunk_map *m, uint8_t *buf,
                  void (*bad)(void *user, uint32_t first, uint32_t n), void *user)
{
    int fd = e->direct_fd >= 0 ? e->direct_fd : e->data_fd;
    uint32_t bad_first = 0, bad_n = 0;

    for (uint32_t k = 0; k < m->nexts; k++) {
        const struct chunk_ext *x = &m->exts[k];
        for (uint32_t at = 0, n; !x->unwritten && at < x->n; at += n) {
            n = (uint32_t)min_u64(x->n - at, VERIFY_BYTES / PST_BLOCK);
            int r = pread_all(fd, buf, n * (size_t)PST_BLOCK, (x->phys + at) * PST_BLOCK);
            for (uint32_t b = 0; b < n; b++) {
                uint32_t block = x->first + at + b;
                if (!r && crc32c(0, buf + (size_t)b * PST_BLOCK, PST_BLOCK) == m->crcs[x->crc_at + at + b])
                    continue;
                if (bad_n && bad_first + bad_n == block) {
                    bad_n++;
                    continue;
                }
                if (bad_n)
                    bad(user, bad_first, bad_n);
                bad_first = block;
                bad_n = 1;
            }
        }
    }
    if (bad_n)
        bad(user, bad_first, bad_n);
}

/* ---- scrub ---- */

struct scrub {
    struct engine *e;
    void (*report)(void *, const char *, const char *, uint64_t, uint64_t, uint64_t);
    void *user;
    uint8_t *buf;
    uint64_t cont, ino, index;
    uint32_t chunk_size;
    uint64_t named; /* the container that pool and label are of */
    char pool[PST_LABEL_MAX + 1], label[PST_LABEL_MAX + 1];
    int64_t found;
};

/* Pool and label of a container: `pool NUL label` under its number. */
static void find_names(struct scrub *s)
{
    struct key k = key_begin(KEY_CONT_ID);
    struct wbuf v = {0};
    const char *nul;

    if (s->named == s->cont)
        return;
    s->named = s->cont;
    s->pool[0] = s->label[0] = 0;
    key_u64(&k, s->cont);
    if (!idx_get(s->e, NULL, &k, &v) && (nul = memchr(v.data, 0, v.len))) {
        size_t pool = (size_t)(nul - (const char *)v.data), label = v.len - pool - 1;
        if (pool <= PST_LABEL_MAX && label <= PST_LABEL_MAX) {
            memcpy(s->pool, v.data, pool + 1);
            memcpy(s->label, nul + 1, label);
            s->label[label] = 0;
        }
    }
    wbuf_done(&v);
}

static void scrub_bad(void *user, uint32_t first, uint32_t n)
{
    struct scrub *s = user;
    struct pst_cont_info info = {.id = s->cont};
    uint64_t offset = s->index * s->chunk_size + (uint64_t)first * PST_BLOCK;

    find_names(s);
    memcpy(info.pool, s->pool, sizeof info.pool);
    memcpy(info.label, s->label, sizeof info.label);
    data_damaged(s->e, &info, s->cont, s->ino, offset, "scrub: damaged");
    s->found++;
    if (s->report)
        s->report(s->user, s->pool, s->label, s->ino, offset, (uint64_t)n * PST_BLOCK);
}

/* The record is damaged: the whole chunk. */
static void scrub_lost(struct scrub *s)
{
    struct inode i;

    s->found++;
    find_names(s);
    if (!s->report || inode_get(s->e, s->cont, s->ino, &i))
        return;
    s->report(s->user, s->pool, s->label, s->ino, s->index * i.a.chunk_size, i.a.chunk_size);
    inode_done(&i);
}

static void count_bad(void *user, uint32_t first, uint32_t n)
{
    (void)first, (void)n;
    ++*(int *)user;
}

/* Twice if need be: what changed meanwhile is not damage. */
static int scrub_chunk(struct scrub *s)
{
    struct inode i;
    struct chunk_map *m = NULL;
    int bad = 0, r = inode_get(s->e, s->cont, s->ino, &i);

    if (r)
        return r == -ENOENT ? 0 : r; /* deleted; its chunks go */
    s->chunk_size = i.a.chunk_size;
    r = map_get(s->e, s->cont, &i.a, s->index, true, &m);
    if (!r && m)
        chunk_verify(s->e, m, s->buf, count_bad, &bad);
    if (bad) {
        chunk_unref(m);
        m = NULL;
        r = map_get(s->e, s->cont, &i.a, s->index, true, &m);
        if (!r && m)
            chunk_verify(s->e, m, s->buf, scrub_bad, s);
    }
    chunk_unref(m);
    inode_done(&i);
    return r;
}

/* The next chunk record at or after *from, which becomes the place behind it. 1, 2: it is damaged, 0, or -errno. */
static int next_record(struct engine *e, struct key *from, uint64_t *ret_cont, uint64_t *ret_ino, uint64_t *ret_index)
{
    struct key prefix = key_begin(KEY_CHUNK);
    struct idx_iter *it = idx_iter_new(e, NULL, &prefix, from);
    int r;

    if (!it)
        return -ENOMEM;
    r = idx_iter_next(it);
    if (r == 1 || r == -EIO) {
        size_t len;
        const uint8_t *k = idx_iter_key(it, &len);
        if (k) {
            *from = (struct key){0};
            key_bytes(from, k, len);
            key_u8(from, 0);
            r = chunk_key_parse(k, len, ret_cont, ret_ino, ret_index) ? -EIO : r == 1 ? 1 : 2;
        }
    }
    idx_iter_free(it);
    return r;
}

static void rest(uint64_t *began)
{
    uint64_t worked = now_ns() - *began;
    struct timespec ts = {.tv_sec = (time_t)(worked / REST_SHARE / NSEC_PER_SEC),
                          .tv_nsec = (long)(worked / REST_SHARE % NSEC_PER_SEC)};

    if (worked < NSEC_PER_MSEC)
        return;
    nanosleep(&ts, NULL);
    *began = now_ns();
}

int64_t data_scrub(struct pst_store *st,
                   void (*report)(void *, const char *, const char *, uint64_t, uint64_t, uint64_t), void *user,
                   const volatile bool *cancel)
{
    struct scrub s = {.e = engine_of(st), .report = report, .user = user, .named = UINT64_MAX};
    struct key from = key_begin(KEY_CHUNK);
    uint64_t began = now_ns();
    int r = 0;

    if (posix_memalign((void **)&s.buf, PST_BLOCK, VERIFY_BYTES))
        return -ENOMEM;
    while ((!cancel || !*cancel) && (r = next_record(s.e, &from, &s.cont, &s.ino, &s.index)) > 0) {
        uint64_t ticket = alloc_read_begin(s.e);
        r = r == 1 ? scrub_chunk(&s) : -EIO;
        alloc_read_end(s.e, ticket);
        if (r == -EIO)
            scrub_lost(&s);
        else if (r)
            break;
        rest(&began);
    }
    free(s.buf);
    if (cancel && *cancel)
        return s.found;
    return r < 0 ? r : s.found;
}

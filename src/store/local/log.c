/* Log segments and the writer: see log.h for the format, replay.c for the reader. */
#include "log.h"

#include "base/crc.h"
#include "base/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define LOG_FRAME (2 * MiB) /* one write at most; holds the largest record and a segment header */
#define SPARE_MAX 3u        /* free segments that are kept */

_Static_assert(WAL_RECORD_MAX + sizeof(struct record) + 2 * LOG_BLOCK <= LOG_FRAME, "a record fits into a frame");

uint32_t record_crc(const struct record *h, const void *payload, size_t len)
{
    struct record c = *h;
    c.crc = put_le32(0);
    return crc32c(crc32c(0, &c, sizeof c), payload, len);
}

void segment_path(const struct engine *e, const struct segment *s, char *ret, size_t size)
{
    snprintf(ret, size, "%s/log/%08x", e->dir, s->name);
}

static void segment_header_encode(const uint8_t uuid[16], uint64_t seq, uint64_t first, uint8_t ret[LOG_BLOCK])
{
    struct wbuf w = {.data = ret, .cap = LOG_BLOCK};
    memset(ret, 0, LOG_BLOCK);
    wbuf_u32(&w, SEGMENT_MAGIC);
    wbuf_u32(&w, SEGMENT_VERSION);
    wbuf_put(&w, uuid, 16);
    wbuf_u64(&w, seq);
    wbuf_u64(&w, first);
    wbuf_u32(&w, crc32c(0, ret, w.len));
}

int segment_header_decode(const uint8_t *p, const uint8_t uuid[16], uint64_t *ret_seq, uint64_t *ret_first)
{
    static const uint8_t zero[64];
    struct rbuf r = rbuf_of(p, 64);
    uint32_t magic = rbuf_u32(&r), version = rbuf_u32(&r);
    const uint8_t *u = rbuf_take(&r, 16);
    uint64_t seq = rbuf_u64(&r), first = rbuf_u64(&r);
    if (!memcmp(p, zero, sizeof zero))
        return -ENOENT;
    if (magic != SEGMENT_MAGIC || version != SEGMENT_VERSION || memcmp(u, uuid, 16) || rbuf_u32(&r) != crc32c(0, p, 40))
        return -EBADMSG;
    *ret_seq = seq;
    *ret_first = first;
    return 0;
}

/* ---- segments ---- */

static void segment_free(struct segment *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    free(s);
}

static int segment_push(struct segment ***list, size_t *n, size_t *cap, struct segment *s)
{
    if (*n == *cap) {
        size_t c = *cap ? *cap * 2 : 16;
        struct segment **p = realloc(*list, c * sizeof(struct segment *));
        if (!p)
            return -ENOMEM;
        *list = p;
        *cap = c;
    }
    (*list)[(*n)++] = s;
    return 0;
}

static int open_segment(struct engine *e, const char *name, int flags)
{
    int fd = -1;
    flags |= O_CLOEXEC | (e->opt.readonly ? O_RDONLY : O_RDWR | O_DSYNC);
    if (e->wal->direct)
        fd = openat(e->wal->dir_fd, name, flags | O_DIRECT, 0600);
    if (fd < 0)
        fd = openat(e->wal->dir_fd, name, flags, 0600);
    return fd < 0 ? -errno : fd;
}

static int write_zeroes(int fd, uint64_t size)
{
    size_t step = (size_t)min_u64(size, 1 * MiB);
    void *zero;
    int r = 0;
    if (posix_memalign(&zero, LOG_BLOCK, step))
        return -ENOMEM;
    memset(zero, 0, step);
    for (uint64_t off = 0; !r && off < size; off += step)
        r = pwrite_all(fd, zero, (size_t)min_u64(step, size - off), off);
    free(zero);
    return r;
}

/* Written with zeroes, so that later writes change no metadata of the file system. */
static int segment_make(struct engine *e, struct segment **ret)
{
    struct wal *w = e->wal;
    struct segment *s;
    char name[16], tmp[24];
    uint64_t avail = 0;
    int r;
    if (!fs_free(e, &avail) && avail < e->super.segment)
        return -ENOSPC; /* rather than find out by writing it */
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    pthread_mutex_lock(&w->mu);
    s->name = w->next_name++;
    pthread_mutex_unlock(&w->mu);
    snprintf(name, sizeof name, "%08x", s->name);
    snprintf(tmp, sizeof tmp, "%s.new", name);
    {
        cleanup_close int fd = openat(w->dir_fd, tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        r = fd < 0 ? -errno : write_zeroes(fd, e->super.segment);
        if (!r && (fsync(fd) || renameat(w->dir_fd, tmp, w->dir_fd, name) || fsync(w->dir_fd)))
            r = -errno;
    }
    s->fd = r ? -1 : open_segment(e, name, 0);
    if (s->fd < 0) {
        r = r ? r : s->fd;
        s->fd = -1;
        unlinkat(w->dir_fd, tmp, 0);
        segment_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

/* Makes a spare segment if there is none; with the ballast's space when the file system is full. */
static int spare_prepare(struct engine *e)
{
    struct wal *w = e->wal;
    struct segment *s = NULL;
    bool none;
    int r;
    pthread_mutex_lock(&w->mu);
    none = w->nspare == 0;
    pthread_mutex_unlock(&w->mu);
    if (!none)
        return 0;
    r = segment_make(e, &s);
    if (r == -ENOSPC) {
        reserve_release(e);
        r = segment_make(e, &s);
    }
    if (r)
        return r;
    pthread_mutex_lock(&w->mu);
    r = segment_push(&w->spare, &w->nspare, &w->cap_spare, s);
    pthread_mutex_unlock(&w->mu);
    if (r)
        segment_free(s);
    return r;
}

/* ---- open and close ---- */

static int load_segment(struct engine *e, const char *name)
{
    struct wal *w = e->wal;
    struct segment *s = calloc(1, sizeof *s);
    uint8_t *head = w->frame;
    struct stat st;
    char *end;
    int r;
    if (!s)
        return -ENOMEM;
    s->name = (uint32_t)strtoul(name, &end, 16);
    s->fd = open_segment(e, name, 0);
    r = s->fd < 0 ? s->fd : 0;
    if (!r && fstat(s->fd, &st))
        r = -errno;
    if (!r && (uint64_t)st.st_size < e->super.segment)
        memset(head, 0xff, LOG_BLOCK); /* cut: damaged */
    else if (!r)
        r = pread_all(s->fd, head, LOG_BLOCK, 0);
    if (r) {
        segment_free(s);
        return r;
    }
    if (s->name >= w->next_name)
        w->next_name = s->name + 1;
    r = segment_header_decode(head, e->super.uuid, &s->seq, &s->first_lsn);
    s->damaged = r == -EBADMSG;
    if (s->seq >= w->next_seq)
        w->next_seq = s->seq + 1;
    if (r == -ENOENT)
        r = segment_push(&w->spare, &w->nspare, &w->cap_spare, s);
    else
        r = segment_push(&w->used, &w->nused, &w->cap_used, s);
    if (r)
        segment_free(s);
    return r;
}

static int by_seq(const void *a, const void *b)
{
    uint64_t x = (*(struct segment *const *)a)->seq, y = (*(struct segment *const *)b)->seq;
    return x < y ? -1 : x > y;
}

static int load_segments(struct engine *e)
{
    int fd = openat(e->wal->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *de;
    if (!d) {
        r = -errno;
        if (fd >= 0)
            close(fd);
        return r;
    }
    while (!r && (de = readdir(d))) {
        size_t n = strlen(de->d_name);
        if (n == 8 && strspn(de->d_name, "0123456789abcdef") == 8)
            r = e->wal->nused + e->wal->nspare < SEGMENTS_MAX ? load_segment(e, de->d_name) : -EMFILE;
        else if (n == 12 && !strcmp(de->d_name + 8, ".new") && !e->opt.readonly)
            unlinkat(e->wal->dir_fd, de->d_name, 0);
    }
    closedir(d);
    if (e->wal->nused)
        qsort(e->wal->used, e->wal->nused, sizeof e->wal->used[0], by_seq);
    return r;
}

int wal_open(struct engine *e, const struct errmsg *m)
{
    struct wal *w = calloc(1, sizeof *w);
    int r;
    if (!w)
        return -ENOMEM;
    pthread_mutex_init(&w->mu, NULL);
    w->direct = e->opt.direct != CHOICE_NEVER;
    w->next_seq = max_u64(1, e->super.log_seq + 1);
    memcpy(&w->tag, e->super.uuid, sizeof w->tag);
    e->wal = w;
    w->dir_fd = openat(e->dir_fd, "log", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->dir_fd < 0)
        return fail(m, -errno, "%s/log: %s", e->dir, err_text(errno));
    if (posix_memalign((void **)&w->frame, LOG_BLOCK, LOG_FRAME))
        return -ENOMEM;
    r = load_segments(e);
    if (!r && !e->opt.readonly)
        r = spare_prepare(e);
    return r ? fail(m, r, "%s/log: %s", e->dir, err_text(r)) : 0;
}

void wal_close(struct engine *e)
{
    struct wal *w = e->wal;
    if (!w)
        return;
    for (size_t i = 0; i < w->nused; i++)
        segment_free(w->used[i]);
    for (size_t i = 0; i < w->nspare; i++)
        segment_free(w->spare[i]);
    if (w->dir_fd >= 0)
        close(w->dir_fd);
    pthread_mutex_destroy(&w->mu);
    free(w->used);
    free(w->spare);
    free(w->frame);
    free(w);
    e->wal = NULL;
}

/* ---- writing ---- */

int wal_queue(struct wbuf *q, uint64_t lsn, const void *payload, size_t len)
{
    struct record h = {.kind = put_le32(RECORD_TXN), .lsn = put_le64(lsn), .len = put_le32((uint32_t)len)};
    size_t total = record_bytes((uint32_t)len);
    uint8_t *p;
    if (len > WAL_RECORD_MAX)
        return -E2BIG;
    p = wbuf_add(q, total);
    if (!p)
        return q->err;
    memcpy(p, &h, sizeof h);
    memcpy(p + sizeof h, payload, len);
    memset(p + sizeof h + len, 0, total - sizeof h - len);
    return 0;
}

/* Takes a spare segment into use. Its header goes out with its first frame. */
static int segment_next(struct engine *e, uint64_t first_lsn)
{
    struct wal *w = e->wal;
    struct segment *s;
    int r = spare_prepare(e);
    if (r)
        return r;
    pthread_mutex_lock(&w->mu);
    s = w->spare[w->nspare - 1];
    r = segment_push(&w->used, &w->nused, &w->cap_used, s);
    if (!r) {
        w->nspare--;
        s->seq = w->next_seq++;
        s->first_lsn = first_lsn;
        s->last_lsn = first_lsn - 1;
        s->off = 0;
        w->cur = s;
    }
    pthread_mutex_unlock(&w->mu);
    return r;
}

/* Copies one queued record to the frame with the fields that are known now. */
static void frame_add(struct wal *w, uint8_t *to, const uint8_t *rec, uint64_t total, uint64_t durable)
{
    struct record h;
    memcpy(&h, rec, sizeof h);
    h.magic = put_le32(RECORD_MAGIC);
    h.tag = put_le64(w->tag);
    h.seq = put_le64(w->cur->seq);
    h.durable = put_le64(durable);
    h.crc = put_le32(record_crc(&h, rec + sizeof h, get_le32(h.len)));
    memcpy(to, &h, sizeof h);
    memcpy(to + sizeof h, rec + sizeof h, total - sizeof h);
}

/* Writes as many of the records at p as one write may hold; returns the bytes taken from p, or -errno. */
static int64_t frame_write(struct engine *e, const uint8_t *p, const uint8_t *end, uint64_t durable)
{
    struct wal *w = e->wal;
    const uint8_t *start = p;
    const struct record *h = (const struct record *)p;
    uint64_t n = 0, total = record_bytes(get_le32(h->len)), last = 0;
    int r;
    if (!w->cur || w->cur->off + align_up(total, LOG_BLOCK) > e->super.segment) {
        bool mark = get_le32(h->kind) == RECORD_MARK;
        r = segment_next(e, get_le64(h->lsn) + mark);
        if (r)
            return r;
    }
    if (!w->cur->off) {
        segment_header_encode(e->super.uuid, w->cur->seq, w->cur->first_lsn, w->frame);
        n = LOG_BLOCK;
    }
    while (p < end) {
        h = (const struct record *)p;
        total = record_bytes(get_le32(h->len));
        if (n + total > LOG_FRAME || w->cur->off + align_up(n + total, LOG_BLOCK) > e->super.segment)
            break;
        frame_add(w, w->frame + n, p, total, durable);
        last = get_le64(h->lsn);
        n += total;
        p += total;
    }
    memset(w->frame + n, 0, align_up(n, LOG_BLOCK) - n);
    n = align_up(n, LOG_BLOCK);
    r = pwrite_all(w->cur->fd, w->frame, n, w->cur->off);
    if (r)
        return r;
    w->cur->off += n;
    w->cur->last_lsn = max_u64(w->cur->last_lsn, last);
    return p - start;
}

int wal_append(struct engine *e, struct wbuf *q, uint64_t *durable)
{
    struct record mark = {.kind = put_le32(RECORD_MARK), .lsn = put_le64(*durable)};
    const uint8_t *p = q->len ? q->data : (const uint8_t *)&mark, *end = p + (q->len ? q->len : sizeof mark);
    while (p < end) {
        int64_t n = frame_write(e, p, end, *durable);
        if (n == -ENOSPC && q->len) {
            memmove(q->data, p, (size_t)(end - p));
            q->len = (size_t)(end - p);
        }
        if (n < 0)
            return (int)n;
        p += n;
        *durable = max_u64(*durable, e->wal->cur->last_lsn);
    }
    return 0;
}

void wal_position(struct engine *e, uint64_t *ret_seq, uint64_t *ret_off)
{
    struct wal *w = e->wal;
    *ret_seq = w->cur ? w->cur->seq : w->resume_seq;
    *ret_off = w->cur ? w->cur->off : w->resume_off;
}

void wal_trim(struct engine *e, uint64_t lsn)
{
    struct wal *w = e->wal;
    size_t n = 0;
    int r;
    pthread_mutex_lock(&w->mu);
    for (size_t i = 0; i < w->nused; i++) {
        struct segment *s = w->used[i];
        /* The next segment says where this one ends, whether it was written or replayed. */
        uint64_t last = i + 1 < w->nused && !s->damaged ? w->used[i + 1]->first_lsn - 1 : 0;
        char name[16];
        if (s == w->cur || (!s->damaged && (i + 1 == w->nused || last > lsn))) {
            w->used[n++] = s;
            continue;
        }
        if (w->nspare < SPARE_MAX && !s->damaged && !segment_push(&w->spare, &w->nspare, &w->cap_spare, s))
            continue;
        snprintf(name, sizeof name, "%08x", s->name);
        unlinkat(w->dir_fd, name, 0);
        segment_free(s);
    }
    w->nused = n;
    pthread_mutex_unlock(&w->mu);
    r = spare_prepare(e);
    if (r)
        log_warn("%s: cannot prepare a log segment: %s", e->dir, err_text(r));
}

uint64_t wal_bytes(struct engine *e)
{
    scoped_lock(&e->wal->mu);
    return (e->wal->nused + e->wal->nspare) * (uint64_t)e->super.segment;
}

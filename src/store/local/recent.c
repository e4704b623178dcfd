/*
 * What was committed since the last pass, kept where the death of this process does not reach it: a file of the
 * operating system's cache. Clients live on when a server is killed; what it had answered them must be there for the
 * next one.
 *
 * The file has a header block and two halves. Commits append their records to one; a pass, as it takes the queue, turns
 * to the other, so that both together have every record that is not in the log. Nothing is flushed: after the operating
 * system has gone too, the file's and the data's blocks on disk are of any age. So the header names the boot, and only
 * the same boot's file is read.
 *
 * It also names the run (super.run): the file of another process, or of another copy of the store, is not this log's
 * tail. Each record says which LSN was durable: a log that ends before is not the one that it continues. The blocks
 * that records name are compared before they are taken. And a page of memory (witness.c) knows how far the process
 * came.
 *
 * Fields are under the commit mutex, or belong to the thread that opens the store.
 */
#include "log.h"

#include "base/crc.h"
#include "base/err.h"
#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define FILE_NAME     "recent"
#define NEW_NAME      "recent.new"
#define RECENT_MAGIC  0x41545350u /* "PSTA" */
#define HALF_MAX      (8 * MiB)
#define HALF_MIN      (2 * MiB + WAL_RECORD_MAX)
#define BROKEN_OFFSET 2048 /* u32 outside of the checksum: 1: something is lost, and the history is not a new one yet */

struct header {
    le32 magic, half;
    uint8_t uuid[16], boot[40];
    le64 seq; /* of the records */
    le64 run;
    le32 zero, crc;
};

struct recent {
    int fd;
    uint32_t half, off; /* bytes of a half; used of the one in use */
    bool second, broken;
    bool complete; /* nothing is lost since the namespace was last closed, or its last new history */
    bool lost;     /* something may be */
    uint64_t seq;
    struct witness *witness;
};

static void boot_id(uint8_t ret[40])
{
    cleanup_close int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    memset(ret, 0, 40);
    if (fd < 0 || read(fd, ret, 36) != 36)
        rng_secret(ret, 40); /* none is like it: the file is not read */
}

static uint32_t header_crc(const struct header *h)
{
    return crc32c(0, h, offsetof(struct header, crc));
}

/* ---- open ---- */

/* The header of the file that is there, if it is this store's. */
static bool read_header(struct engine *e, int fd, struct header *ret)
{
    struct stat st;
    struct header h;
    if (pread_all(fd, &h, sizeof h, 0) || get_le32(h.magic) != RECENT_MAGIC || get_le32(h.crc) != header_crc(&h) ||
        memcmp(h.uuid, e->super.uuid, 16) || fstat(fd, &st) || get_le32(h.half) > HALF_MAX ||
        (uint64_t)st.st_size < LOG_BLOCK + 2 * (uint64_t)get_le32(h.half))
        return false;
    *ret = h;
    return true;
}

/* Queues the records of one half that go on where *last ends. -ESTALE: the log, which ends at `end`, is another one. */
static int follow(struct engine *e, const struct header *h, const uint8_t *p, uint64_t end, struct wbuf *q,
                  uint64_t *last)
{
    uint64_t size = get_le32(h->half), off = 0, lsn = 0;
    struct record r;
    while (off + sizeof r <= size) {
        uint32_t len;
        memcpy(&r, p + off, sizeof r);
        len = get_le32(r.len);
        if (get_le32(r.magic) != RECORD_MAGIC || get_le64(r.tag) != e->wal->tag ||
            get_le64(r.seq) != get_le64(h->seq) || len > size - off - sizeof r ||
            get_le32(r.crc) != record_crc(&r, p + off + sizeof r, len) || (lsn && get_le64(r.lsn) != lsn + 1))
            return 0;
        lsn = get_le64(r.lsn);
        if (get_le64(r.durable) > end)
            return -ESTALE;
        if (lsn == *last + 1) {
            int err = wal_queue(q, lsn, p + off + sizeof r, len);
            if (err)
                return err;
            *last = lsn;
        }
        off += record_bytes(len);
    }
    return 0;
}

/* The records before the first whose blocks are not there. *last: of the last one that stays. */
static void cut(struct engine *e, struct wbuf *q, uint64_t *last)
{
    for (size_t at = 0; at < q->len;) {
        struct record h;
        memcpy(&h, q->data + at, sizeof h);
        if (!recent_blocks_there(e, q->data + at + sizeof h, get_le32(h.len))) {
            log_warn("%s/" FILE_NAME ": the data of record %llu is not on the disk: it and what follows is lost",
                     e->dir, (unsigned long long)get_le64(h.lsn));
            *last = get_le64(h.lsn) - 1;
            q->len = at;
            return;
        }
        at += record_bytes(get_le32(h.len));
    }
}

/* First to the log, so that what the index may flush is there; then to the index. */
static int keep(struct engine *e, struct wbuf *q, uint64_t durable, uint64_t *last)
{
    const uint8_t *p = q->data, *end;
    int r;
    if (fdatasync(e->data_fd))
        return -errno;
    cut(e, q, last);
    end = p + q->len;
    r = q->len ? wal_append(e, q, &durable) : 0;
    while (!r && p < end) {
        struct record h;
        memcpy(&h, p, sizeof h);
        r = index_replay(e, p + sizeof h, get_le32(h.len));
        p += record_bytes(get_le32(h.len));
    }
    return r;
}

/* 1: the process before left more than could be taken. */
static int read_halves(struct engine *e, int fd, const struct header *h, uint64_t *last)
{
    uint64_t size = get_le32(h->half), before = *last, upto = before;
    uint8_t *buf = malloc(size);
    struct wbuf q = {0};
    int r = buf ? 0 : -ENOMEM;
    /* Either may be the older one. */
    for (unsigned i = 0; !r && i < 4; i++) {
        r = pread_all(fd, buf, size, LOG_BLOCK + (i % 2) * size);
        if (!r)
            r = follow(e, h, buf, before, &q, &upto);
    }
    free(buf);
    if (r == -ESTALE) {
        log_warn("%s/" FILE_NAME ": it continues another log than the one that is here: not read", e->dir);
        wbuf_done(&q);
        return 1;
    }
    *last = upto;
    if (!r && q.len)
        r = keep(e, &q, before, last);
    wbuf_done(&q);
    if (!r && *last > before)
        log_info("%s: took %llu records that the process before left", e->dir, (unsigned long long)(*last - before));
    return !r && *last < upto ? 1 : r;
}

/* Did the process before commit more than is here? */
static bool witnessed_more(struct engine *e, uint64_t last)
{
    uint64_t run, upto;
    if (!witness_read(e, &run, &upto))
        return false;
    if (run != e->super.run && run != e->super.run_before)
        log_warn("%s: the store is not the one that was open here last", e->dir);
    else if (last < upto)
        log_warn("%s: it ends at record %llu, the process before came to %llu", e->dir, (unsigned long long)last,
                 (unsigned long long)upto);
    else
        return false;
    return true;
}

/* Is this file the last one of a process that wrote this store, in this boot? */
static bool is_ours(struct engine *e, int fd, struct header *ret, bool *ret_broken)
{
    uint8_t boot[40];
    le32 broken;
    uint64_t run;
    boot_id(boot);
    if (fd < 0 || !read_header(e, fd, ret) || memcmp(ret->boot, boot, sizeof boot) ||
        pread_all(fd, &broken, sizeof broken, BROKEN_OFFSET))
        return false;
    run = get_le64(ret->run);
    /* run_before: it died between the superblock and its own file */
    if (run != e->super.run && run != e->super.run_before) {
        log_warn("%s/" FILE_NAME " is of another copy of the store: not read", e->dir);
        return false;
    }
    *ret_broken = get_le32(broken);
    return true;
}

int recent_replay(struct engine *e, bool made, uint64_t *last, const struct errmsg *m)
{
    struct recent *c = calloc(1, sizeof *c);
    cleanup_close int fd = openat(e->dir_fd, FILE_NAME, O_RDONLY | O_CLOEXEC);
    bool broken = false;
    struct header h;
    int r = 0;
    if (!c)
        return -ENOMEM;
    c->fd = -1;
    e->recent = c;
    c->lost = !made && !e->super.clean;
    if (made || !is_ours(e, fd, &h, &broken))
        return 0;
    if (!e->super.clean) /* else: a check that brought the store in order, or the namespace's own close */
        r = read_halves(e, fd, &h, last);
    c->complete = !r && !broken && !witnessed_more(e, *last);
    c->lost = !c->complete;
    return r < 0 ? fail(m, r, "%s/" FILE_NAME ": %s", e->dir, err_text(r)) : 0;
}

static int make_file(struct engine *e, const uint8_t boot[40])
{
    struct recent *c = e->recent;
    uint8_t block[LOG_BLOCK] = {0};
    le32 lost = put_le32(c->lost);
    struct header h = {.magic = put_le32(RECENT_MAGIC), .half = put_le32(c->half), .seq = put_le64(c->seq),
                       .run = put_le64(e->super.run)};
    int r;
    memcpy(h.uuid, e->super.uuid, 16);
    memcpy(h.boot, boot, 40);
    h.crc = put_le32(header_crc(&h));
    memcpy(block, &h, sizeof h);
    memcpy(block + BROKEN_OFFSET, &lost, sizeof(le32));
    c->fd = openat(e->dir_fd, NEW_NAME, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    r = c->fd < 0 ? -errno : -posix_fallocate(c->fd, 0, (off_t)(LOG_BLOCK + 2 * (uint64_t)c->half));
    if (!r)
        r = pwrite_all(c->fd, block, sizeof block, 0);
    return r ? r : renameat(e->dir_fd, NEW_NAME, e->dir_fd, FILE_NAME) ? -errno : 0;
}

int recent_start(struct engine *e)
{
    struct recent *c = e->recent;
    uint8_t boot[40];
    int r;
    c->half = (uint32_t)max_u64(HALF_MIN, min_u64(HALF_MAX, align_down(e->super.capacity / 32, LOG_BLOCK)));
    rng_secret(&c->seq, sizeof c->seq);
    boot_id(boot);
    r = e->opt.recent ? make_file(e, boot) : -ENOTSUP;
    c->witness = r ? NULL : witness_start(e, sync_durable(e));
    if (!r)
        return 0;
    witness_remove(e);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (e->opt.recent)
        log_warn("%s/" FILE_NAME ": %s: if this process is killed, clients lose changes that they have not synced",
                 e->dir, err_text(r));
    unlinkat(e->dir_fd, NEW_NAME, 0);
    /* One that is there must not be taken for this process's later. */
    return unlinkat(e->dir_fd, FILE_NAME, 0) && errno != ENOENT ? -errno : 0;
}

void recent_close(struct engine *e, bool clean)
{
    if (!e->recent)
        return;
    witness_close(e->recent->witness);
    if (clean)
        witness_remove(e);
    if (e->recent->fd >= 0)
        close(e->recent->fd);
    free(e->recent);
    e->recent = NULL;
}

void recent_drop(struct engine *e)
{
    if (e->recent->fd >= 0)
        unlinkat(e->dir_fd, FILE_NAME, 0);
}

void recent_renewed(struct engine *e)
{
    le32 zero = put_le32(0);
    if (e->recent->lost && e->recent->fd >= 0 && pwrite_all(e->recent->fd, &zero, sizeof zero, BROKEN_OFFSET))
        log_debug("%s/" FILE_NAME ": the next history will be a new one", e->dir);
}

bool recent_complete(struct engine *e)
{
    return e->recent->complete;
}

/* ---- commits ---- */

bool recent_full(struct engine *e)
{
    const struct recent *c = e->recent;
    return c->fd >= 0 && c->half - c->off < record_bytes(WAL_RECORD_MAX);
}

/* The store goes on without: what is lost when the process dies now, its clients are told. */
static void broken(struct engine *e, int err)
{
    le32 one = put_le32(1);
    log_warn("%s/" FILE_NAME ": %s: if this process is killed, clients lose changes that they have not synced", e->dir,
             err_text(err));
    e->recent->broken = true;
    if (pwrite_all(e->recent->fd, &one, sizeof one, BROKEN_OFFSET))
        unlinkat(e->dir_fd, FILE_NAME, 0);
}

void recent_add(struct engine *e, uint64_t lsn, const void *payload, size_t len)
{
    static const uint8_t zero[8];
    struct recent *c = e->recent;
    struct record h = {.magic = put_le32(RECORD_MAGIC), .kind = put_le32(RECORD_TXN), .tag = put_le64(e->wal->tag),
                       .seq = put_le64(c->seq), .lsn = put_le64(lsn), .durable = put_le64(sync_durable(e)),
                       .len = put_le32((uint32_t)len)};
    uint64_t total = record_bytes((uint32_t)len);
    struct iovec iov[3] = {
        {&h, sizeof h}, {(void *)(uintptr_t)payload, len}, {(void *)(uintptr_t)zero, total - sizeof h - len}};
    ssize_t n;
    if (c->fd < 0 || c->broken)
        return;
    h.crc = put_le32(record_crc(&h, payload, len));
    n = pwritev(c->fd, iov, 3, (off_t)(LOG_BLOCK + (c->second ? c->half : 0u) + c->off));
    if (n != (ssize_t)total)
        broken(e, n < 0 ? -errno : -ENOSPC);
    else
        c->off += (uint32_t)total;
    witness_set(c->witness, lsn);
}

void recent_turn(struct engine *e)
{
    e->recent->second = !e->recent->second;
    e->recent->off = 0;
}

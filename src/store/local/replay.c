/*
 * Reading the log at open. The records after the index's last one are applied in order. Where the next one is missing
 * the log ends, if nobody was told that it is durable: the rest is cut. If any record further on says "durable" of the
 * missing one, acknowledged data is lost, and the store is not opened.
 */
#include "log.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct reader {
    struct engine *e;
    const struct errmsg *m;
    uint64_t applied;  /* in the index before */
    uint64_t expected; /* LSN of the next record */
    uint8_t *buf;      /* one segment */
    size_t at;         /* index in wal->used of the segment where the chain stands */
    uint64_t off;
    uint64_t from_seq; /* nothing before this segment is looked at */
};

struct view {
    enum record_kind kind;
    uint64_t lsn, durable;
    const uint8_t *payload;
    uint32_t len;
};

/* Whether a whole record of this store lies at off. seq 0: of any use of the segment. */
static bool record_at(const struct reader *rd, uint64_t off, uint64_t seq, struct view *ret)
{
    uint64_t size = rd->e->super.segment;
    struct record h;
    uint32_t len, kind;
    if (off + sizeof h > size)
        return false;
    memcpy(&h, rd->buf + off, sizeof h);
    len = get_le32(h.len);
    kind = get_le32(h.kind);
    if (get_le32(h.magic) != RECORD_MAGIC || get_le64(h.tag) != rd->e->wal->tag || len > size - off - sizeof h ||
        (kind != RECORD_TXN && kind != RECORD_MARK) || (seq && get_le64(h.seq) != seq) ||
        get_le32(h.crc) != record_crc(&h, rd->buf + off + sizeof h, len))
        return false;
    *ret = (struct view){kind, get_le64(h.lsn), get_le64(h.durable), rd->buf + off + sizeof h, len};
    return true;
}

static int read_segment(struct reader *rd, size_t i)
{
    struct engine *e = rd->e;
    struct segment *s = e->wal->used[i];
    int r;
    /* What was read from the cache must be on disk before the index is flushed past it. */
    if (!e->opt.readonly && fdatasync(s->fd))
        return -errno;
    r = pread_all(s->fd, rd->buf, e->super.segment, 0);
    if (r && s->damaged) {
        memset(rd->buf, 0, e->super.segment); /* cut short: there is nothing to find behind its end */
        r = 0;
    }
    return r ? fail(rd->m, r, "%s/log/%08x cannot be read: %s", e->dir, s->name, err_text(r)) : 0;
}

static int apply(struct reader *rd, const struct view *v)
{
    int r;
    rd->expected = v->lsn + 1;
    if (v->lsn <= rd->applied)
        return 0;
    r = index_replay(rd->e, v->payload, v->len);
    return r ? fail(rd->m, r, "%s: log record %llu cannot be applied to the index", rd->e->dir,
                    (unsigned long long)v->lsn)
             : 0;
}

/* Applies the records of segment rd->at from rd->off on, up to the first that is not the expected one. */
static int follow(struct reader *rd)
{
    uint64_t seq = rd->e->wal->used[rd->at]->seq;
    for (;;) {
        struct view v;
        bool good = record_at(rd, rd->off, seq, &v);
        if (!good && rd->off % LOG_BLOCK) {
            rd->off = align_up(rd->off, LOG_BLOCK);
            continue;
        }
        if (!good || v.lsn != rd->expected - (v.kind == RECORD_MARK))
            return 0;
        if (v.kind == RECORD_TXN) {
            int r = apply(rd, &v);
            if (r)
                return r;
        }
        rd->off += record_bytes(v.len);
    }
}

/* The hole at rd->at / rd->off: is there a record behind it that proves it was durable? */
static int check_hole(struct reader *rd)
{
    struct wal *w = rd->e->wal;
    struct view v;
    for (size_t i = 0; i < w->nused; i++) {
        struct segment *s = w->used[i];
        int r;
        if (!s->damaged && (i < rd->at || s->seq < rd->from_seq))
            continue;
        r = read_segment(rd, i);
        if (r)
            return r;
        for (uint64_t off = i == rd->at ? align_up(rd->off, LOG_BLOCK) : 0; off < rd->e->super.segment;
             off += LOG_BLOCK) {
            /* The first record of a segment follows its header. */
            if (!record_at(rd, off, s->damaged ? 0 : s->seq, &v) || v.durable < rd->expected)
                continue;
            return fail(rd->m, -EBADMSG,
                        "%s: log/%08x is damaged at byte %llu: record %llu is gone, which was acknowledged; run "
                        "`penstock check --rebuild-index %s`, or restore a backup",
                        rd->e->dir, w->used[rd->at]->name, (unsigned long long)rd->off,
                        (unsigned long long)rd->expected, rd->e->dir);
        }
    }
    return 0;
}

/* Segments behind the end of the chain have nothing that was acknowledged: they go, so that they never confuse. */
static int drop_rest(struct reader *rd)
{
    struct wal *w = rd->e->wal;
    size_t n = 0;
    if (rd->e->opt.readonly || w->cur) /* or the log is in use: index_reopen */
        return 0;
    for (size_t i = 0; i < w->nused; i++) {
        struct segment *s = w->used[i];
        char name[16];
        if (!s->damaged && i <= rd->at) {
            w->used[n++] = s;
            continue;
        }
        snprintf(name, sizeof name, "%08x", s->name);
        unlinkat(w->dir_fd, name, 0);
        close(s->fd);
        free(s);
    }
    w->nused = n;
    return fsync(w->dir_fd) ? -errno : 0;
}

/*
 * The last segment that begins early enough; within it, the checkpoint's position if it is there. (The superblock may
 * be an older copy: what it names may be in use again.)
 */
static bool find_start(struct reader *rd)
{
    const struct super *super = &rd->e->super;
    struct wal *w = rd->e->wal;
    const struct segment *start = NULL;
    for (size_t i = 0; i < w->nused; i++) {
        if (w->used[i]->damaged || w->used[i]->first_lsn > rd->applied + 1)
            continue;
        start = w->used[i];
        rd->at = i;
    }
    if (!start)
        return false;
    rd->from_seq = start->seq;
    rd->off = LOG_BLOCK;
    rd->expected = start->first_lsn;
    if (rd->applied >= super->log_lsn && start->seq == super->log_seq) {
        rd->off = max_u64(align_down(super->log_off, 8), LOG_BLOCK);
        rd->expected = super->log_lsn + 1;
    }
    return true;
}

static int replay_chain(struct reader *rd)
{
    struct wal *w = rd->e->wal;
    int r;
    for (;;) {
        r = read_segment(rd, rd->at);
        if (!r)
            r = follow(rd);
        if (r)
            return r;
        if (rd->at + 1 == w->nused || w->used[rd->at + 1]->first_lsn != rd->expected)
            return check_hole(rd);
        rd->at++;
        rd->off = LOG_BLOCK;
    }
}

int wal_replay(struct engine *e, uint64_t applied, uint64_t *ret_last, const struct errmsg *m)
{
    struct wal *w = e->wal;
    struct reader rd = {.e = e, .m = m, .applied = applied, .expected = applied + 1};
    int r;
    if (applied < e->super.log_lsn && !e->opt.rebuild_index)
        return fail(m, -ESTALE,
                    "%s: the index is older than the log: it ends at record %llu, the checkpoint at %llu; run "
                    "`penstock check --rebuild-index %s`",
                    e->dir, (unsigned long long)applied, (unsigned long long)e->super.log_lsn, e->dir);
    if (posix_memalign((void **)&rd.buf, LOG_BLOCK, e->super.segment))
        return -ENOMEM;
    if (find_start(&rd)) {
        r = replay_chain(&rd);
    } else {
        bool any = false;
        for (size_t i = 0; i < w->nused; i++)
            any |= !w->used[i]->damaged;
        rd.at = 0;
        if (any)
            r = fail(m, -ESTALE,
                     "%s: the index is older than the log: records from %llu on are missing; run `penstock check "
                     "--rebuild-index %s`",
                     e->dir, (unsigned long long)rd.expected, e->dir);
        else
            r = check_hole(&rd); /* only damaged segments, if any */
    }
    if (!r)
        r = drop_rest(&rd);
    if (!r) {
        w->resume_seq = w->nused ? w->used[w->nused - 1]->seq : e->super.log_seq;
        w->resume_off = e->super.segment; /* never continued: the next record starts a segment */
        *ret_last = max_u64(rd.expected - 1, applied);
    }
    free(rd.buf);
    return r;
}

/*
 * Space: a bitmap of the blocks of the data file, in memory, made at open from the chunk records (so it is exact).
 * Freed blocks are in quarantine, still set, until the transaction that freed them is durable and every read that began
 * before it has ended. Reads are counted per epoch; a commit that frees stamps its blocks with the current epoch and
 * begins the next, so the blocks wait for the readers of their epoch and of older ones.
 */
#include "parts.h"

#include "base/bitmap.h"
#include "base/err.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define GROW_STEP (64 * MiB)
#define GROW_MIN  (1 * MiB)
#define WINDOW    (1ull << 20) /* blocks that are searched at once: 4 GiB, 128 KiB of bitmap */
#define WINDOWS   4u           /* after so many, a run shorter than wanted will do */

struct epoch {
    uint64_t number, readers;
};

struct alloc {
    pthread_mutex_t mu;
    struct bitmap used;   /* of file_blocks bits; quarantined and claimed blocks are set */
    uint64_t capacity;    /* blocks at most */
    uint64_t used_blocks; /* bits set */
    uint64_t quarantined; /* of them */
    uint64_t hint;        /* where the next search starts */
    uint32_t *window;     /* set bits in each WINDOW of the bitmap: full ones are passed over */
    bool no_fallocate;    /* the file system has none: the file grows sparse */
    struct list freed;    /* struct freed, ascending lsn and epoch */
    uint64_t epoch;
    struct epoch *epochs; /* with readers, or between such; ascending */
    size_t nepochs, cap_epochs, first_epoch;
};

void alloc_close(struct engine *e)
{
    struct alloc *a = e->alloc;
    struct list *l;
    if (!a)
        return;
    while ((l = list_pop_front(&a->freed)))
        free(list_entry(l, struct freed, link));
    bitmap_done(&a->used);
    pthread_mutex_destroy(&a->mu);
    free(a->epochs);
    free(a->window);
    free(a);
    e->alloc = NULL;
}

uint64_t alloc_file_blocks(struct engine *e)
{
    scoped_lock(&e->alloc->mu);
    return e->alloc->used.bits;
}

/* ---- epochs of readers ---- */

/* The oldest epoch with readers; the current one if there are none. */
static uint64_t oldest_reader(struct alloc *a)
{
    while (a->first_epoch < a->nepochs && !a->epochs[a->first_epoch].readers)
        a->first_epoch++;
    if (a->first_epoch == a->nepochs) {
        a->first_epoch = a->nepochs = 0;
        return a->epoch;
    }
    return a->epochs[a->first_epoch].number;
}

/* Drops epochs without readers; then room for one more. */
static int epochs_room(struct alloc *a)
{
    size_t n = 0, cap;
    struct epoch *p;
    if (a->nepochs < a->cap_epochs)
        return 0;
    for (size_t i = a->first_epoch; i < a->nepochs; i++)
        if (a->epochs[i].readers)
            a->epochs[n++] = a->epochs[i];
    a->first_epoch = 0;
    a->nepochs = n;
    if (n < a->cap_epochs / 2)
        return 0;
    cap = a->cap_epochs ? a->cap_epochs * 2 : 64;
    p = realloc(a->epochs, cap * sizeof *p);
    if (!p)
        return n < a->cap_epochs ? 0 : -ENOMEM;
    a->epochs = p;
    a->cap_epochs = cap;
    return 0;
}

int alloc_open(struct engine *e)
{
    struct alloc *a = calloc(1, sizeof *a);
    struct stat st;
    int r;
    if (!a)
        return -ENOMEM;
    pthread_mutex_init(&a->mu, NULL);
    list_init(&a->freed);
    a->epoch = 1;
    a->capacity = e->super.capacity / PST_BLOCK;
    e->alloc = a;
    if (fstat(e->data_fd, &st))
        return -errno;
    a->window = calloc(a->capacity / WINDOW + 1, sizeof *a->window);
    r = a->window ? epochs_room(a) : -ENOMEM;
    return r ? r : bitmap_init(&a->used, min_u64((uint64_t)st.st_size / PST_BLOCK, a->capacity));
}

uint64_t alloc_read_begin(struct engine *e)
{
    struct alloc *a = e->alloc;
    scoped_lock(&a->mu);
    if (a->nepochs > a->first_epoch && a->epochs[a->nepochs - 1].number == a->epoch) {
        a->epochs[a->nepochs - 1].readers++;
        return a->epoch;
    }
    if (epochs_room(a)) {
        /* Without memory for a new epoch the reader joins the newest older one: blocks wait longer, that is all. */
        a->epochs[a->nepochs - 1].readers++;
        return a->epochs[a->nepochs - 1].number;
    }
    a->epochs[a->nepochs++] = (struct epoch){a->epoch, 1};
    return a->epoch;
}

void alloc_read_end(struct engine *e, uint64_t ticket)
{
    struct alloc *a = e->alloc;
    size_t lo, hi;
    scoped_lock(&a->mu);
    lo = a->first_epoch;
    hi = a->nepochs;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (a->epochs[mid].number <= ticket)
            lo = mid;
        else
            hi = mid;
    }
    assert(lo < a->nepochs && a->epochs[lo].number == ticket && a->epochs[lo].readers);
    a->epochs[lo].readers--;
}

/* ---- quarantine ---- */

void alloc_freed(struct engine *e, struct freed *f)
{
    struct alloc *a = e->alloc;
    scoped_lock(&a->mu);
    f->epoch = a->epoch;
    a->epoch++;
    for (uint32_t i = 0; i < f->n; i++)
        a->quarantined += f->ext[i].n;
    list_push_back(&a->freed, &f->link);
}

static void set_blocks(struct alloc *a, uint64_t block, uint64_t n)
{
    bitmap_set(&a->used, block, n);
    a->used_blocks += n;
    for (uint64_t k; n; block += k, n -= k) {
        k = min_u64(n, WINDOW - block % WINDOW);
        a->window[block / WINDOW] += (uint32_t)k;
    }
}

/* A block that is free already is a caller's bug: it must not be counted, or given to two owners, because of that. */
static void clear_blocks(struct alloc *a, uint64_t block, uint32_t n)
{
    for (uint64_t b = block; b < block + n; b++) {
        if (b >= a->used.bits || !bitmap_test(&a->used, b)) {
            log_error("block %llu is freed twice", (unsigned long long)b);
            continue;
        }
        bitmap_clear(&a->used, b, 1);
        a->used_blocks--;
        a->window[b / WINDOW]--;
    }
}

/* Frees what nobody needs any more. Returns whether some blocks still wait for the log only. */
static bool release_ready(struct engine *e)
{
    struct alloc *a = e->alloc;
    uint64_t durable = sync_durable(e), oldest;
    if (list_empty(&a->freed))
        return false;
    oldest = oldest_reader(a);
    while (!list_empty(&a->freed)) {
        struct freed *f = list_entry(a->freed.next, struct freed, link);
        bool read = a->nepochs > a->first_epoch && f->epoch >= oldest;
        if (read || f->lsn > durable)
            return !read;
        for (uint32_t i = 0; i < f->n; i++) {
            clear_blocks(a, f->ext[i].block, f->ext[i].n);
            a->quarantined -= f->ext[i].n;
        }
        list_del(&f->link);
        free(f);
    }
    return false;
}

/* ---- claiming ---- */

/* Makes the data file longer. 0, -ENOSPC, or another error. */
static int grow(struct engine *e)
{
    struct alloc *a = e->alloc;
    uint64_t from = a->used.bits, step = min_u64(GROW_STEP / PST_BLOCK, a->capacity - from), avail = 0;
    int r = fs_free(e, &avail);
    if (r)
        return r;
    avail = avail > e->reserve_bytes * 2 ? (avail - e->reserve_bytes * 2) / PST_BLOCK : 0;
    if (step > avail)
        step = avail;
    if (!step || (step < GROW_MIN / PST_BLOCK && from + step < a->capacity))
        return -ENOSPC;
    if (!a->no_fallocate && fallocate(e->data_fd, 0, (off_t)(from * PST_BLOCK), (off_t)(step * PST_BLOCK))) {
        if (errno != EOPNOTSUPP)
            return -errno;
        a->no_fallocate = true;
    }
    if (a->no_fallocate && ftruncate(e->data_fd, (off_t)((from + step) * PST_BLOCK)))
        return -errno;
    return bitmap_grow(&a->used, from + step);
}

/* Up to `want` blocks in one run: where they start; 0 when all are taken. */
static uint64_t find_run(const struct alloc *a, uint64_t want, uint64_t *ret_start)
{
    uint64_t n = (a->used.bits + WINDOW - 1) / WINDOW, best = 0, seen = 0;
    for (uint64_t i = 0; i <= n && best < want; i++) {
        uint64_t w = (a->hint / WINDOW + i) % max_u64(n, 1), first = w * WINDOW, start = 0, k;
        struct bitmap view = {a->used.words + first / 64, min_u64(WINDOW, a->used.bits - first)};
        if (a->window[w] == view.bits)
            continue;
        k = bitmap_find_clear(&view, i ? 0 : a->hint % WINDOW, want, &start);
        if (k > best) {
            best = k;
            *ret_start = first + start;
        }
        if (++seen >= WINDOWS && best)
            break;
    }
    return best;
}

/* Under the lock: 1..want blocks, or -ENOSPC. */
static int64_t claim(struct engine *e, uint32_t want, uint64_t *ret_block)
{
    struct alloc *a = e->alloc;
    uint64_t n = 0, start = 0;
    if (a->used_blocks < a->used.bits)
        n = find_run(a, want, &start);
    while (n < want && a->used.bits < a->capacity) {
        uint64_t end = a->used.bits;
        if (grow(e))
            break;
        a->hint = end; /* for the next claims too: new space is in one piece */
        n = find_run(a, want, &start);
    }
    if (!n)
        return -ENOSPC;
    set_blocks(a, start, n);
    a->hint = (start + n) % a->used.bits;
    *ret_block = start;
    return (int64_t)n;
}

int64_t alloc_claim(struct engine *e, uint32_t want, uint64_t *ret_block)
{
    struct alloc *a = e->alloc;
    int64_t n;
    bool waits;
    if (!want)
        return -EINVAL;
    pthread_mutex_lock(&a->mu);
    release_ready(e);
    n = claim(e, want, ret_block);
    waits = n == -ENOSPC && release_ready(e);
    pthread_mutex_unlock(&a->mu);
    if (!waits)
        return n;
    /* There is space that only the log keeps back. */
    n = eng_sync(e, eng_last_lsn(e));
    if (n)
        return n;
    pthread_mutex_lock(&a->mu);
    release_ready(e);
    n = claim(e, want, ret_block);
    pthread_mutex_unlock(&a->mu);
    return n;
}

void alloc_unclaim(struct engine *e, uint64_t block, uint32_t nblocks)
{
    scoped_lock(&e->alloc->mu);
    clear_blocks(e->alloc, block, nblocks);
}

int alloc_mark(struct engine *e, uint64_t block, uint32_t nblocks)
{
    struct alloc *a = e->alloc;
    scoped_lock(&a->mu);
    if (!nblocks || block >= a->used.bits || nblocks > a->used.bits - block)
        return -ERANGE;
    if (!bitmap_range_clear(&a->used, block, nblocks))
        return -EEXIST;
    set_blocks(a, block, nblocks);
    return 0;
}

void alloc_space(struct engine *e, uint64_t *ret_free, uint64_t *ret_total)
{
    struct alloc *a = e->alloc;
    uint64_t avail = 0, inside, outside;
    scoped_lock(&a->mu);
    inside = a->used.bits - a->used_blocks + a->quarantined;
    outside = a->capacity - a->used.bits;
    if (!fs_free(e, &avail))
        outside = min_u64(outside, avail > e->reserve_bytes * 2 ? (avail - e->reserve_bytes * 2) / PST_BLOCK : 0);
    *ret_free = (inside + outside) * PST_BLOCK;
    *ret_total = a->capacity * PST_BLOCK;
}

/* ---- the scan at open ---- */

struct scan {
    struct engine *e;
    const struct errmsg *m;
};

static int scan_extent(void *user, uint64_t block, uint32_t n)
{
    struct scan *s = user;
    int r = alloc_mark(s->e, block, n);
    if (!r)
        return 0;
    if (s->e->opt.check_to) {
        check_problem(s->e->opt.check_to, "space: blocks %llu+%u %s", (unsigned long long)block, n,
                      r == -EEXIST ? "belong to two chunks" : "are outside of the data file");
        return 0;
    }
    return fail(s->m, -EIO, "%s: blocks %llu+%u %s; run `penstock check %s`", s->e->dir, (unsigned long long)block, n,
                r == -EEXIST ? "belong to two chunks" : "are outside of the data file", s->e->dir);
}

int alloc_scan(struct engine *e, const struct errmsg *m)
{
    struct scan s = {e, m};
    struct key prefix = key_begin(KEY_CHUNK);
    struct idx_iter *it = idx_iter_new(e, NULL, &prefix, NULL);
    int r = it ? 0 : -ENOMEM;
    while (!r) {
        size_t len;
        const uint8_t *v;
        r = idx_iter_next(it);
        if (!r)
            break;
        if (r == 1) {
            v = idx_iter_value(it, &len);
            r = chunk_for_each_extent(v, len, scan_extent, &s);
        }
        if (r == -EIO && e->opt.check_to && idx_iter_key(it, &len))
            r = 0; /* the check of the index reports it */
        if (r == -EIO && m && m->size && !m->p[0])
            fail(m, -EIO, "%s: a chunk record is damaged; run `penstock check --rebuild-index %s`", e->dir, e->dir);
    }
    idx_iter_free(it);
    return r;
}

void alloc_stats(struct engine *e, pst_stat_fn fn, void *user)
{
    struct alloc *a = e->alloc;
    uint64_t avail, total, used, quarantined, file;
    alloc_space(e, &avail, &total);
    pthread_mutex_lock(&a->mu);
    used = a->used_blocks - a->quarantined;
    quarantined = a->quarantined;
    file = a->used.bits;
    pthread_mutex_unlock(&a->mu);
    fn(user, "store_bytes_total", "", "Capacity of the store", false, (double)total);
    fn(user, "store_bytes_free", "", "Bytes that can still be written", false, (double)avail);
    fn(user, "store_bytes_used", "", "Bytes of blocks in use", false, (double)(used * PST_BLOCK));
    fn(user, "store_bytes_quarantined", "", "Freed bytes that a read or the log still needs", false,
       (double)(quarantined * PST_BLOCK));
    fn(user, "store_data_file_bytes", "", "Size of the data file", false, (double)(file * PST_BLOCK));
}

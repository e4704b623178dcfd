/*
 * The background deleter: one thread per store that deletes, in bounded transactions,
 *   - the keys of destroyed containers (KEY_CONT_GC, which stays until the last of them is gone, so that it goes on
 *     after a restart),
 *   - the chunks of deleted and truncated files (data_collect),
 *   - reply records of clients that were not seen for NS_REPLY_DAYS.
 */
#include "ns.h"

#include "base/endian.h"

#include <errno.h>

#define GC_CHUNKS     64                    /* chunks per step of data_collect */
#define GC_IDLE_NS    (1 * NSEC_PER_SEC)    /* looks for work by itself this often */
#define GC_GATHER_NS  (50 * NSEC_PER_MSEC)  /* after a kick: what is deleted in a row goes together */
#define GC_RETRY_NS   (5 * NSEC_PER_SEC)    /* after an error */
#define PRUNE_EVERY_NS (3600 * NSEC_PER_SEC) /* also the time that clients have to come back after a restart */

/* ---- destroyed containers ---- */

static struct key cont_prefix(enum key_space space, uint64_t cont)
{
    struct key k = key_begin(space);
    key_u64(&k, cont);
    return k;
}

/* Up to NS_GC_BATCH keys of the container in one space; fn puts into the transaction what goes with each. */
static int collect_space(struct txn *t, enum key_space space, uint64_t cont,
                         int (*fn)(struct txn *t, uint64_t cont, const struct key *k, const uint8_t *v, size_t vlen))
{
    struct key prefix = cont_prefix(space, cont);
    struct idx_iter *it = idx_iter_new(txn_engine(t), NULL, &prefix, NULL);
    int n = 0, r = 0;

    if (!it)
        return -ENOMEM;
    while (n < NS_GC_BATCH && (r = idx_iter_next(it)) > 0) {
        size_t klen, vlen;
        const uint8_t *kp = idx_iter_key(it, &klen), *v = idx_iter_value(it, &vlen);
        struct key k = {0};
        key_bytes(&k, kp, klen);
        txn_del(t, &k);
        r = fn ? fn(t, cont, &k, v, vlen) : 0;
        if (r)
            break;
        n++;
    }
    idx_iter_free(it);
    return r < 0 ? r : n;
}

/* The number at the end of an inode's or chunk's key. */
static uint64_t key_ino(const struct key *k)
{
    be64 ino = {{0}};
    if (k->len >= 17)
        memcpy(ino.b, k->b + 9, 8);
    return get_be64(ino);
}

static int collect_inode(struct txn *t, uint64_t cont, const struct key *k, const uint8_t *v, size_t vlen)
{
    struct inode i;
    uint64_t ino = key_ino(k);
    int r = inode_decode(ino, v, vlen, &i);

    if (r == 0) {
        if (S_ISREG(i.a.mode))
            data_delete(t, cont, &i);
        inode_done(&i);
    } else if (r == -ENOMEM) {
        return r;
    }
    /* A damaged one: its chunks are found by leftover_chunks. */
    inode_del(t, cont, ino);
    return usage_add(t, cont, 0, -1);
}

static int collect_xattr(struct txn *t, uint64_t cont, const struct key *k, const uint8_t *v, size_t vlen)
{
    int64_t space = xattr_space(k->len, v, vlen);
    return space ? usage_add(t, cont, -space, 0) : 0;
}

/* Whether keys of the container are left; the first one's number is in *ret_ino. */
static int space_left(struct engine *e, enum key_space space, uint64_t cont, uint64_t *ret_ino)
{
    struct key prefix = cont_prefix(space, cont), k = {0};
    struct idx_iter *it = idx_iter_new(e, NULL, &prefix, NULL);
    size_t n;

    if (!it)
        return -ENOMEM;
    int r = idx_iter_next(it);
    if (r > 0) {
        const uint8_t *p = idx_iter_key(it, &n);
        key_bytes(&k, p, n);
        *ret_ino = key_ino(&k);
    }
    idx_iter_free(it);
    return r;
}

/* Chunks without an object: handed to the data path as if it were there. */
static int leftover_chunks(struct engine *e, uint64_t cont)
{
    uint64_t ino;
    int r = space_left(e, KEY_CHUNK, cont, &ino);

    if (r <= 0)
        return r;
    struct inode i = {.a = {.ino = ino, .mode = S_IFREG, .size = PST_FILE_MAX, .chunk_size = PST_CHUNK_MIN}};
    struct txn *t = txn_new(e);
    if (!t)
        return -ENOMEM;
    txn_set_reserved(t);
    data_delete(t, cont, &i);
    r = txn_commit(t, NULL);
    return r ? r : 1;
}

/* Nothing is left: the marker and the record of its usage go. */
static int cont_finish(struct ns *ns, uint64_t cont)
{
    struct key gk = cont_gc_key(cont), uk = usage_key(cont);
    struct ns_cont *c = cont_find(ns, cont);

    if (c && !cont_idle(ns, c))
        return 0; /* the transaction that deleted its last chunk is about to return */
    struct txn *t = txn_new(ns->e);
    if (!t)
        return -ENOMEM;
    txn_set_reserved(t);
    txn_del(t, &gk);
    txn_del(t, &uk);
    int r = txn_commit(t, NULL);
    if (!r && c)
        cont_forget(ns, c);
    return r ? r : 1;
}

/* One step: 1 something was done, 0 it waits for data_collect, or -errno. */
static int cont_step(struct ns *ns, uint64_t cont)
{
    static const enum key_space spaces[] = {KEY_DIRENT, KEY_COOKIE, KEY_XATTR, KEY_ORPHAN};
    uint64_t ino;
    struct txn *t = txn_new(ns->e);

    if (!t)
        return -ENOMEM;
    txn_set_reserved(t);
    int n = collect_space(t, KEY_INODE, cont, collect_inode);
    for (size_t s = 0; n == 0 && s < ARRAY_SIZE(spaces); s++)
        n = collect_space(t, spaces[s], cont, spaces[s] == KEY_XATTR ? collect_xattr : NULL);
    if (n <= 0) {
        txn_drop(t);
    } else {
        int r = txn_commit(t, NULL);
        return r ? r : 1;
    }
    if (n < 0)
        return n;
    int r = space_left(ns->e, KEY_GARBAGE, cont, &ino);
    if (r)
        return r < 0 ? r : 0;
    r = leftover_chunks(ns->e, cont);
    return r ? r : cont_finish(ns, cont);
}

/* The first destroyed container whose number is at least `from`: 1, 0 none, or -errno. */
static int dead_next(struct engine *e, uint64_t from, uint64_t *ret)
{
    struct key prefix = key_begin(KEY_CONT_GC), first = cont_gc_key(from);
    struct idx_iter *it = idx_iter_new(e, NULL, &prefix, &first);
    be64 id = {{0}};

    if (!it)
        return -ENOMEM;
    int r = idx_iter_next(it);
    if (r > 0) {
        size_t n;
        const uint8_t *k = idx_iter_key(it, &n);
        if (n == 9)
            memcpy(id.b, k + 1, 8);
        else
            r = -EIO;
    }
    idx_iter_free(it);
    *ret = get_be64(id);
    return r;
}

/* A step in each destroyed container; one that fails does not hold up the others. */
static int conts_step(struct ns *ns)
{
    uint64_t id, from = 0;
    int done = 0, err = 0, r;

    while ((r = dead_next(ns->e, from, &id)) > 0) {
        r = cont_step(ns, id);
        if (r > 0)
            done = 1;
        else if (r < 0)
            err = r;
        if (id == UINT64_MAX)
            break;
        from = id + 1;
    }
    return done ? 1 : r < 0 ? r : err;
}

int gc_step(struct ns *ns)
{
    scoped_lock(&ns->gc_work);
    int conts = conts_step(ns), chunks = data_collect(ns->e, GC_CHUNKS);

    if (conts > 0 || chunks > 0) {
        ns->gc_busy++;
        return 1;
    }
    return conts < 0 ? conts : chunks < 0 ? chunks : 0;
}

/* ---- the thread ---- */

static void prune_if_due(struct ns *ns)
{
    uint64_t now = now_ns();

    if (now - ns->pruned_ns < PRUNE_EVERY_NS)
        return;
    ns->pruned_ns = now;
    int64_t n = reply_prune(ns, reply_today() - NS_REPLY_DAYS);
    if (n)
        log_debug("reply records dropped: %lld", (long long)n);
}

/* gc_lock held. Until a kick, if that counts, or the time. */
static void wait_until(struct ns *ns, uint64_t t, bool kick_counts)
{
    struct timespec until = {(time_t)(t / NSEC_PER_SEC), (long)(t % NSEC_PER_SEC)};

    while (!ns->gc_stop && !(kick_counts && ns->gc_kicked))
        if (pthread_cond_timedwait(&ns->gc_cond, &ns->gc_lock, &until))
            break;
}

static void wait_for_work(struct ns *ns, uint64_t timeout_ns)
{
    scoped_lock(&ns->gc_lock);
    wait_until(ns, now_ns() + timeout_ns, true);
    if (ns->gc_kicked)
        wait_until(ns, now_ns() + GC_GATHER_NS, false);
    ns->gc_kicked = false;
}

static bool stopping(struct ns *ns)
{
    scoped_lock(&ns->gc_lock);
    return ns->gc_stop;
}

static void *gc_main(void *arg)
{
    struct ns *ns = arg;
    bool said = false;

    pthread_setname_np(pthread_self(), "pst-collect");
    while (!stopping(ns)) {
        int r = gc_step(ns);
        if (r < 0 && !said) {
            log_error("the background deleter waits after an error: %d", r);
            said = true;
        }
        if (r >= 0)
            said = false;
        prune_if_due(ns);
        if (r <= 0)
            wait_for_work(ns, r < 0 ? GC_RETRY_NS : GC_IDLE_NS);
    }
    return NULL;
}

void gc_kick(struct ns *ns)
{
    scoped_lock(&ns->gc_lock);
    if (ns->gc_kicked)
        return;
    ns->gc_kicked = true;
    pthread_cond_signal(&ns->gc_cond);
}

int gc_start(struct ns *ns)
{
    ns->pruned_ns = now_ns();
    int r = pthread_create(&ns->gc_thread, NULL, gc_main, ns);
    if (r)
        return -r;
    ns->gc_started = true;
    return 0;
}

void gc_stop(struct ns *ns)
{
    if (!ns->gc_started)
        return;
    pthread_mutex_lock(&ns->gc_lock);
    ns->gc_stop = true;
    pthread_cond_signal(&ns->gc_cond);
    pthread_mutex_unlock(&ns->gc_lock);
    pthread_join(ns->gc_thread, NULL);
    ns->gc_started = false;
}

/* The chunks of deleted objects go in the background; their space counts as given back from the deletion on. */
#include "data.h"

#include <errno.h>

static struct key garbage_key(uint64_t cont, uint64_t ino)
{
    struct key k = key_begin(KEY_GARBAGE);

    key_u64(&k, cont);
    key_u64(&k, ino);
    return k;
}

void data_delete(struct txn *t, uint64_t cont, const struct inode *i)
{
    struct key k = garbage_key(cont, i->a.ino);
    int r = i->a.used ? usage_add(t, cont, -(int64_t)i->a.used, 0) : 0;

    if (r)
        txn_fail(t, r);
    if (i->a.used || i->a.size)
        txn_put(t, &k, "", 0);
}

/* The first entry of the list at or after *from; 1, 0: none, or -errno. */
static int garbage_next(struct engine *e, struct key *from, uint64_t *ret_cont, uint64_t *ret_ino)
{
    struct key prefix = key_begin(KEY_GARBAGE);
    struct idx_iter *it = idx_iter_new(e, NULL, &prefix, from);
    int r;

    if (!it)
        return -ENOMEM;
    r = idx_iter_next(it);
    if (r == 1) {
        size_t len;
        const uint8_t *k = idx_iter_key(it, &len);
        struct rbuf b = rbuf_of(k, len);
        rbuf_u8(&b);
        *ret_cont = rbuf_be64(&b);
        *ret_ino = rbuf_be64(&b);
        r = rbuf_end(&b) ? -EIO : 1;
        *from = garbage_key(*ret_cont, *ret_ino);
        key_u8(from, 0); /* the next one after it */
    }
    idx_iter_free(it);
    return r;
}

struct freeing {
    struct txn *t;
    size_t n;
};

static int free_extent(void *user, uint64_t block, uint32_t n)
{
    struct freeing *f = user;

    txn_free_extent(f->t, block, n);
    f->n++;
    return 0;
}

/*
 * Adds up to max chunks of one object to the transaction; the entry goes with the last. Returns how many, or -errno:
 * what was added before the error stands, each chunk is complete in itself.
 */
static int collect_object(struct engine *e, struct freeing *f, uint64_t cont, uint64_t ino, int max)
{
    struct key prefix = key_begin(KEY_CHUNK), g = garbage_key(cont, ino);
    struct idx_iter *it;
    int n = 0, r = 0;

    key_u64(&prefix, cont);
    key_u64(&prefix, ino);
    it = idx_iter_new(e, NULL, &prefix, NULL);
    if (!it)
        return -ENOMEM;
    while (n < max && (r = idx_iter_next(it))) {
        size_t klen, vlen;
        const uint8_t *k = idx_iter_key(it, &klen), *v;
        struct key key = {0};
        if ((r != 1 && r != -EIO) || !k)
            break;
        if (r == 1) {
            v = idx_iter_value(it, &vlen);
            r = chunk_for_each_extent(v, vlen, free_extent, f);
        }
        /* What a damaged record named is not known: the next open finds that nobody has it. */
        if (r && r != -EIO)
            break;
        r = 0;
        key_bytes(&key, k, klen);
        txn_del(f->t, &key);
        n++;
    }
    idx_iter_free(it);
    if (r == 0 && n < max)
        txn_del(f->t, &g);
    return r < 0 ? r : n;
}

/* From *from on, in one transaction. 1 and more: so much was done; *from is where to go on. */
static int collect_from(struct engine *e, struct key *from, int max)
{
    struct freeing f = {.t = txn_new(e)};
    uint64_t cont, ino;
    int done = 0, r = 0, err = 0;

    if (!f.t)
        return -ENOMEM;
    txn_set_reserved(f.t);
    while (done < max) {
        struct key next = *from;
        int want = max - done < (int)DATA_STEP_CHUNKS ? max - done : (int)DATA_STEP_CHUNKS, n;
        r = garbage_next(e, &next, &cont, &ino);
        if (r != 1)
            break;
        n = collect_object(e, &f, cont, ino, want);
        if (n < 0)
            err = n; /* one that is damaged does not keep the others */
        else
            done += n > 0 ? n : 1;
        if (n == want)
            break; /* there may be more of it: after the commit, which these are gone by */
        *from = next;
    }
    if (!done) {
        txn_drop(f.t);
        return r < 0 ? r : err;
    }
    r = txn_commit(f.t, NULL);
    return r ? r : done;
}

int data_collect(struct engine *e, int max)
{
    struct data_state *d = e->data;
    struct key start = key_begin(KEY_GARBAGE);
    int r;
    scoped_lock(&d->collect_lock);

    /* Not each time from the start: the index walks over every entry that was deleted there a short time ago. */
    if (!d->collect_at.len)
        d->collect_at = start;
    r = collect_from(e, &d->collect_at, max);
    if (r <= 0 && d->collect_at.len != start.len) {
        int err = r;
        d->collect_at = start;
        r = collect_from(e, &d->collect_at, max);
        r = r ? r : err;
    }
    if (r < 0)
        d->collect_at = start;
    return r;
}

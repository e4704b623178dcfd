/* Inode records: codec, reading through the cache, putting into transactions, several at once under their locks. */
#include "ns.h"

#include "base/endian.h"

#include <errno.h>

#define INODE_FORMAT 1u

/* ---- codec ---- */

struct key inode_key(uint64_t cont, uint64_t ino)
{
    struct key k = key_begin(KEY_INODE);
    key_u64(&k, cont);
    key_u64(&k, ino);
    return k;
}

void attr_encode(struct wbuf *w, const struct pst_attr *a)
{
    wbuf_u64(w, a->ino);
    wbuf_u32(w, a->mode);
    wbuf_u32(w, a->nlink);
    wbuf_u32(w, a->uid);
    wbuf_u32(w, a->gid);
    wbuf_u64(w, a->rdev);
    wbuf_u64(w, a->size);
    wbuf_u64(w, a->used);
    wbuf_u64(w, (uint64_t)a->atime_ns);
    wbuf_u64(w, (uint64_t)a->mtime_ns);
    wbuf_u64(w, (uint64_t)a->ctime_ns);
    wbuf_u64(w, (uint64_t)a->btime_ns);
    wbuf_u64(w, a->change);
    wbuf_u32(w, a->chunk_size);
}

void attr_decode(struct rbuf *r, struct pst_attr *ret)
{
    ret->ino = rbuf_u64(r);
    ret->mode = rbuf_u32(r);
    ret->nlink = rbuf_u32(r);
    ret->uid = rbuf_u32(r);
    ret->gid = rbuf_u32(r);
    ret->rdev = rbuf_u64(r);
    ret->size = rbuf_u64(r);
    ret->used = rbuf_u64(r);
    ret->atime_ns = (int64_t)rbuf_u64(r);
    ret->mtime_ns = (int64_t)rbuf_u64(r);
    ret->ctime_ns = (int64_t)rbuf_u64(r);
    ret->btime_ns = (int64_t)rbuf_u64(r);
    ret->change = rbuf_u64(r);
    ret->chunk_size = rbuf_u32(r);
}

void inode_encode(struct wbuf *w, const struct inode *i)
{
    wbuf_u8(w, INODE_FORMAT);
    attr_encode(w, &i->a);
    wbuf_u32(w, i->xattrs);
    if (S_ISDIR(i->a.mode)) {
        wbuf_u64(w, i->parent);
        wbuf_u64(w, i->entries);
        wbuf_u64(w, i->next_cookie);
        wbuf_u64(w, i->digest);
    } else if (S_ISLNK(i->a.mode)) {
        wbuf_blob(w, i->target, strlen(i->target));
    }
}

static bool attr_valid(const struct pst_attr *a, uint64_t ino)
{
    if (a->ino != ino || ino == 0 || (a->mode & ~(S_IFMT | 07777u)) || a->used % PST_BLOCK || a->size > PST_FILE_MAX)
        return false;
    if (a->chunk_size < PST_CHUNK_MIN || a->chunk_size > PST_CHUNK_MAX || !is_pow2(a->chunk_size))
        return false;
    switch (a->mode & S_IFMT) {
    case S_IFDIR:
        return a->nlink != 1 && a->size == 0 && a->used == 0;
    case S_IFREG:
        return a->nlink <= PST_LINK_MAX;
    case S_IFLNK:
        return a->nlink <= PST_LINK_MAX && a->used == 0 && a->size > 0 && a->size <= PST_SYMLINK_MAX;
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFCHR:
    case S_IFBLK:
        return a->nlink <= PST_LINK_MAX && a->used == 0 && a->size == 0;
    default:
        return false;
    }
}

int inode_decode(uint64_t ino, const void *p, size_t n, struct inode *ret)
{
    struct rbuf r = rbuf_of(p, n);
    struct inode i = {0};
    size_t len = 0;
    const void *target = NULL;

    if (rbuf_u8(&r) != INODE_FORMAT)
        return -EBADMSG;
    attr_decode(&r, &i.a);
    i.xattrs = rbuf_u32(&r);
    if (S_ISDIR(i.a.mode)) {
        i.parent = rbuf_u64(&r);
        i.entries = rbuf_u64(&r);
        i.next_cookie = rbuf_u64(&r);
        i.digest = rbuf_u64(&r);
    } else if (S_ISLNK(i.a.mode)) {
        target = rbuf_blob(&r, PST_SYMLINK_MAX, &len);
    }
    if (rbuf_end(&r) || !attr_valid(&i.a, ino) || i.xattrs > NS_XATTRS_MAX)
        return -EBADMSG;
    if (S_ISDIR(i.a.mode) && (i.parent == 0 || i.next_cookie == 0 || i.entries >= i.next_cookie))
        return -EBADMSG;
    if (S_ISLNK(i.a.mode)) {
        if (len != i.a.size || memchr(target, 0, len))
            return -EBADMSG;
        i.target = strndup(target, len);
        if (!i.target)
            return -ENOMEM;
    }
    *ret = i;
    return 0;
}

void inode_done(struct inode *i)
{
    free(i->target);
    i->target = NULL;
}

void inode_touch(struct inode *i, int64_t now, int what)
{
    if (what & TOUCH_M)
        i->a.mtime_ns = now;
    i->a.ctime_ns = now;
    i->a.change++;
}

/* ---- records ---- */

int inode_get(struct engine *e, uint64_t cont, uint64_t ino, struct inode *ret)
{
    struct key k = inode_key(cont, ino);
    struct wbuf v = {0};
    uint64_t gen = 0;
    int r = e->ns ? cache_get(e->ns, cont, ino, ret, &gen) : 0;

    if (r)
        return r < 0 ? r : 0;
    r = idx_get(e, NULL, &k, &v);
    if (r == 0) {
        r = inode_decode(ino, v.data, v.len, ret);
        if (r == -EBADMSG) {
            log_error("container %llu, object %llu: its record is damaged", (unsigned long long)cont,
                      (unsigned long long)ino);
            e->index_errors++;
            r = -EIO;
        }
    }
    wbuf_done(&v);
    if (r == 0 && e->ns)
        cache_insert(e->ns, cont, ret, gen);
    return r;
}

/* Notes for the cache what the transaction does to a record. */
static void note_change(struct txn *t, uint64_t cont, const struct inode *i, bool gone)
{
    struct ns_txn *n = ns_txn_of(t);

    if (!n) {
        if (txn_engine(t)->ns)
            txn_fail(t, -ENOMEM);
        return; /* a store without a namespace has no cache either */
    }
    void *bigger = realloc(n->changes, (n->nchanges + 1) * sizeof *n->changes);
    if (!bigger) {
        n->err = -ENOMEM;
        return;
    }
    n->changes = bigger;
    struct ns_change *c = &n->changes[n->nchanges];
    *c = (struct ns_change){.cont = cont, .gone = gone || !cache_takes(i), .i.a.ino = i->a.ino};
    if (!c->gone && inode_copy(i, &c->i)) {
        n->err = -ENOMEM;
        return;
    }
    n->nchanges++;
}

void inode_put(struct txn *t, uint64_t cont, const struct inode *i)
{
    struct key k = inode_key(cont, i->a.ino);
    struct wbuf w = {0};

    inode_encode(&w, i);
    if (!w.err)
        txn_put(t, &k, w.data, w.len);
    else
        txn_fail(t, w.err);
    wbuf_done(&w);
    note_change(t, cont, i, false);
}

void inode_del(struct txn *t, uint64_t cont, uint64_t ino)
{
    struct key k = inode_key(cont, ino);
    struct inode i = {.a.ino = ino};

    txn_del(t, &k);
    note_change(t, cont, &i, true);
}

/* ---- several at once ---- */

void held_drop(struct held *h)
{
    for (int k = 0; k < h->n; k++)
        inode_done(&h->i[k]);
    if (h->locked)
        eng_unlock_inodes(h->e, h->cont, h->inos, h->n);
    h->locked = false;
    h->n = 0;
}

int held_take(struct held *h, struct engine *e, uint64_t cont, const uint64_t *inos, int n)
{
    memset(h, 0, sizeof *h);
    h->e = e;
    h->cont = cont;
    h->n = n;
    memcpy(h->inos, inos, (size_t)n * sizeof *inos);
    eng_lock_inodes(e, cont, h->inos, n);
    h->locked = true;
    for (int k = 0; k < n; k++) {
        int r = inode_get(e, cont, inos[k], &h->i[k]);
        if (r) {
            held_drop(h);
            return r;
        }
    }
    return 0;
}

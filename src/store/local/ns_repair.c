/*
 * Repairs of the namespace that lose nothing: counts become what was found, the two keys of an entry are made to agree,
 * objects without a name get one in /lost+found. Each in a transaction of its own.
 */
#include "ns_check.h"

#include <errno.h>
#include <stdio.h>

int fix_drop(struct nsck *s, const uint8_t *k, size_t klen)
{
    struct key key = {0};
    struct txn *t = txn_new(s->e);

    if (!t)
        return -ENOMEM;
    key_bytes(&key, k, klen);
    txn_set_reserved(t);
    txn_del(t, &key);
    return txn_commit(t, NULL);
}

int fix_inode(struct nsck *s, const struct ck_obj *o)
{
    struct inode i;
    int r = inode_get(s->e, s->k->id, o->ino, &i);

    if (r)
        return r == -ENOENT ? 0 : r;
    i.xattrs = o->seen_xattrs;
    if (o->dir) {
        const struct ck_dir *d = ck_dir(s, o);
        i.entries = d->seen;
        i.digest = d->seen_digest;
        i.next_cookie = max_u64(i.next_cookie, d->top_cookie + 1);
        if (i.a.nlink)
            i.a.nlink = 2 + d->subdirs;
        if (d->found_in && o->ino != PST_ROOT_INO)
            i.parent = d->found_in;
    } else if (o->refs) {
        i.a.nlink = o->refs;
    }
    struct txn *t = txn_new(s->e);
    if (t)
        inode_put(t, s->k->id, &i);
    inode_done(&i);
    return t ? txn_commit(t, NULL) : -ENOMEM;
}

int fix_entry(struct nsck *s, uint64_t dir, const char *name, const struct dent *d)
{
    struct txn *t = txn_new(s->e);
    if (!t)
        return -ENOMEM;
    dirent_put(t, s->k->id, dir, name, d);
    return txn_commit(t, NULL);
}

int fix_orphan(struct nsck *s, const struct ck_obj *o)
{
    struct key k = orphan_key(s->k->id, o->ino);
    struct txn *t = txn_new(s->e);
    if (!t)
        return -ENOMEM;
    txn_put(t, &k, "", 0);
    return txn_commit(t, NULL);
}

int fix_usage(struct nsck *s, int64_t bytes, int64_t objects)
{
    struct key k = usage_key(s->k->id);
    struct wbuf w = {0};
    struct txn *t = txn_new(s->e);

    if (!t)
        return -ENOMEM;
    usage_encode(&w, bytes, objects);
    if (w.err)
        txn_fail(t, w.err);
    else
        txn_put(t, &k, w.data, w.len);
    wbuf_done(&w);
    return txn_commit(t, NULL);
}

/* The first of a run that nobody has. */
static int number_new(struct nsck *s, uint64_t *ret)
{
    uint64_t run = max_u64(s->mark.next, s->top_run + 1);

    s->mark.next = run + 1;
    int r = ino_mark_write(s->e, &s->mark);
    if (r)
        return r;
    s->mark_r = 0;
    s->top_run = run;
    return ino_of_run(&s->mark, run, ret);
}

/* /lost+found, made if it is not there; *ret is its inode. */
static int lost_found(struct nsck *s, struct inode *ret)
{
    struct inode root;
    struct dent d;
    int r = dir_find(s->e, s->k->id, PST_ROOT_INO, "lost+found", &d);

    if (r == 0)
        return d.type == S_IFDIR ? inode_get(s->e, s->k->id, d.ino, ret) : -ENOTDIR;
    if (r != -ENOENT)
        return r;
    r = inode_get(s->e, s->k->id, PST_ROOT_INO, &root);
    if (r)
        return r;
    uint64_t ino;
    r = number_new(s, &ino);
    struct txn *t = r ? NULL : txn_new(s->e);
    if (!t)
        return inode_done(&root), r ? r : -ENOMEM;
    int64_t now = wall_ns();
    struct inode i = {.a = root.a, .parent = PST_ROOT_INO, .next_cookie = 1};
    i.a.ino = ino;
    i.a.mode = S_IFDIR | 0700;
    i.a.nlink = 2;
    i.a.uid = i.a.gid = 0;
    i.a.atime_ns = i.a.mtime_ns = i.a.ctime_ns = i.a.btime_ns = now;
    dir_add(t, s->k->id, &root, "lost+found", ino, S_IFDIR);
    root.a.nlink++;
    inode_touch(&root, now, TOUCH_M | TOUCH_C);
    inode_put(t, s->k->id, &root);
    inode_put(t, s->k->id, &i);
    inode_done(&root);
    r = txn_commit(t, NULL);
    if (!r) {
        s->made++;
        *ret = i;
    }
    return r;
}

/* The entry of a directory that names the object. */
struct naming {
    uint64_t ino;
    struct dent d;
    char name[PST_NAME_MAX + 1];
};

static int find_naming(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct naming *n = user;
    struct dent d;

    if (klen <= 17 || klen - 17 > PST_NAME_MAX || dirent_decode(v, vlen, &d) || d.ino != n->ino)
        return 0;
    n->d = d;
    memcpy(n->name, k + 17, klen - 17);
    n->name[klen - 17] = 0;
    return 1;
}

int fix_unname(struct nsck *s, uint64_t dir, const struct ck_obj *o)
{
    struct naming n = {.ino = o->ino};
    struct key prefix = key_begin(KEY_DIRENT);
    struct inode i;

    key_u64(&prefix, s->k->id);
    key_u64(&prefix, dir);
    int r = idx_each_whole(s->e, &prefix, find_naming, &n);
    if (r <= 0)
        return r;
    r = inode_get(s->e, s->k->id, dir, &i);
    if (r)
        return r;
    struct txn *t = txn_new(s->e);
    if (!t)
        return inode_done(&i), -ENOMEM;
    txn_set_reserved(t);
    dir_remove(t, s->k->id, &i, n.name, &n.d);
    if (o->dir && i.a.nlink > 2)
        i.a.nlink--;
    inode_put(t, s->k->id, &i);
    inode_done(&i);
    return txn_commit(t, NULL);
}

int fix_unreachable(struct nsck *s, const struct ck_obj *o)
{
    struct inode dir, i;
    char name[32];
    int r = lost_found(s, &dir);

    if (r)
        return r == -ENOTDIR || r == -ENOENT || r == -EIO ? 0 : r; /* no place for it: it stays as it is */
    r = inode_get(s->e, s->k->id, o->ino, &i);
    if (r)
        return inode_done(&dir), r;
    struct txn *t = txn_new(s->e);
    if (!t)
        return inode_done(&dir), inode_done(&i), -ENOMEM;
    snprintf(name, sizeof name, "#%llu", (unsigned long long)o->ino);
    dir_add(t, s->k->id, &dir, name, o->ino, i.a.mode & S_IFMT);
    if (S_ISDIR(i.a.mode)) {
        i.parent = dir.a.ino;
        dir.a.nlink++;
    } else {
        i.a.nlink = 1;
    }
    inode_touch(&dir, wall_ns(), TOUCH_M | TOUCH_C);
    inode_put(t, s->k->id, &dir);
    inode_put(t, s->k->id, &i);
    inode_done(&dir);
    inode_done(&i);
    return txn_commit(t, NULL);
}

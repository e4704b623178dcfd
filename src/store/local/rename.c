/* rename, as renameat2(2) says: replaces, refuses to (NOREPLACE), or swaps two names (EXCHANGE). */
#include "ns.h"

#include "store/perm.h"

#include <errno.h>

#define DEPTH_MAX (1u << 20) /* directories above one another: more is a loop that damage made */

struct move {
    struct engine *e;
    uint64_t cont;
    const struct pst_ctx *ctx;
    uint64_t from_ino, to_ino;
    const char *name, *new_name;
    uint32_t flags;
    struct dent src, dst;
    bool have_dst;
    struct held h;
    struct inode *from, *to, *obj, *old; /* in h; from == to within one directory; old NULL without dst */
};

/* 1 if `ino` is `dir` or lies above it, 0 if not, or -errno. The tree does not change under the namespace lock. */
static int is_above(struct engine *e, uint64_t cont, uint64_t ino, uint64_t dir)
{
    for (uint32_t depth = 0; depth < DEPTH_MAX; depth++) {
        struct inode i;
        if (dir == ino)
            return 1;
        if (dir == PST_ROOT_INO)
            return 0;
        int r = inode_get(e, cont, dir, &i);
        if (r)
            return r == -ENOENT ? -EIO : r;
        dir = i.parent;
        inode_done(&i);
        if (dir == 0)
            return -EIO;
    }
    return -EIO;
}

/* A directory must not come to lie below itself, nor replace one that it lies in. */
static int check_loop(const struct move *m)
{
    int r;

    if (m->from_ino == m->to_ino)
        return 0;
    if (m->src.type == S_IFDIR) {
        r = is_above(m->e, m->cont, m->src.ino, m->to_ino);
        if (r)
            return r < 0 ? r : -EINVAL;
    }
    if (m->have_dst && m->dst.type == S_IFDIR) {
        r = is_above(m->e, m->cont, m->dst.ino, m->from_ino);
        if (r)
            return r < 0 ? r : (m->flags & PST_RENAME_EXCHANGE) ? -EINVAL : -ENOTEMPTY;
    }
    return 0;
}

static int find_names(struct move *m)
{
    int r = dir_usable(m->e, m->cont, m->ctx, m->from_ino);

    if (!r && m->to_ino != m->from_ino)
        r = dir_usable(m->e, m->cont, m->ctx, m->to_ino);
    if (!r)
        r = dir_find(m->e, m->cont, m->from_ino, m->name, &m->src);
    if (r)
        return r;
    r = dir_find(m->e, m->cont, m->to_ino, m->new_name, &m->dst);
    if (r && r != -ENOENT)
        return r;
    m->have_dst = r == 0;
    if (m->have_dst && (m->flags & PST_RENAME_NOREPLACE))
        return -EEXIST;
    if (!m->have_dst && (m->flags & PST_RENAME_EXCHANGE))
        return -ENOENT;
    return check_loop(m);
}

static int take_inodes(struct move *m)
{
    uint64_t inos[4] = {m->from_ino};
    int n = 1, to = 0, r;

    if (m->to_ino != m->from_ino) {
        to = n;
        inos[n++] = m->to_ino;
    }
    int obj = n;
    inos[n++] = m->src.ino;
    if (m->have_dst)
        inos[n++] = m->dst.ino;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++)
            if (inos[a] == inos[b])
                return -EIO; /* an entry that names its own directory */
    r = held_take(&m->h, m->e, m->cont, inos, n);
    if (r)
        return r == -ENOENT ? -EIO : r;
    m->from = &m->h.i[0];
    m->to = &m->h.i[to];
    m->obj = &m->h.i[obj];
    m->old = m->have_dst ? &m->h.i[obj + 1] : NULL;
    return 0;
}

/* Moving a directory changes its "..": that is a write to it. */
static int check_moved(const struct move *m, const struct inode *i)
{
    if (m->from == m->to || !S_ISDIR(i->a.mode))
        return 0;
    return pst_perm_access(m->ctx->cred, &i->a, W_OK);
}

static int check_rights(const struct move *m)
{
    const struct pst_cred *cred = m->ctx->cred;
    bool exchange = m->flags & PST_RENAME_EXCHANGE;
    int r = pst_perm_remove(cred, &m->from->a, &m->obj->a);

    if (!r)
        r = m->old ? pst_perm_remove(cred, &m->to->a, &m->old->a) : pst_perm_access(cred, &m->to->a, W_OK | X_OK);
    if (r)
        return r;
    if ((m->obj->a.mode & S_IFMT) != m->src.type || (m->old && (m->old->a.mode & S_IFMT) != m->dst.type))
        return -EIO;
    if ((S_ISDIR(m->obj->a.mode) && m->from->a.nlink < 3) || (m->old && S_ISDIR(m->old->a.mode) && m->to->a.nlink < 3))
        return -EIO; /* the count of directories is wrong: check */
    if (m->old && !exchange) {
        if (S_ISDIR(m->obj->a.mode) && !S_ISDIR(m->old->a.mode))
            return -ENOTDIR;
        if (!S_ISDIR(m->obj->a.mode) && S_ISDIR(m->old->a.mode))
            return -EISDIR;
        if (S_ISDIR(m->old->a.mode) && m->old->entries)
            return -ENOTEMPTY;
    }
    r = check_moved(m, m->obj);
    if (!r && exchange)
        r = check_moved(m, m->old);
    return r;
}

/* The object went from one directory to another: "..", and the directories' counts of them. */
static void reparent(struct inode *obj, struct inode *from, struct inode *to)
{
    if (from == to || !S_ISDIR(obj->a.mode))
        return;
    obj->parent = to->a.ino;
    from->a.nlink--;
    to->a.nlink++;
}

static void apply_exchange(struct move *m, struct txn *t)
{
    dir_set(t, m->cont, m->from, m->name, &m->src, m->dst.ino, m->dst.type);
    dir_set(t, m->cont, m->to, m->new_name, &m->dst, m->src.ino, m->src.type);
    reparent(m->obj, m->from, m->to);
    reparent(m->old, m->to, m->from);
}

/* The replaced name keeps its cookie: a listing that is under way meets it once. */
static void apply_move(struct move *m, struct txn *t)
{
    dir_remove(t, m->cont, m->from, m->name, &m->src);
    if (m->old) {
        dir_set(t, m->cont, m->to, m->new_name, &m->dst, m->src.ino, m->src.type);
        if (S_ISDIR(m->old->a.mode)) {
            m->to->a.nlink--;
            m->old->a.nlink = 0;
        } else {
            m->old->a.nlink--;
        }
    } else {
        dir_add(t, m->cont, m->to, m->new_name, m->src.ino, m->src.type);
    }
    reparent(m->obj, m->from, m->to);
}

static int move_commit(struct move *m)
{
    struct txn *t = txn_new(m->e);
    int64_t now = wall_ns();
    int r = 0;

    if (!t)
        return -ENOMEM;
    if (m->flags & PST_RENAME_EXCHANGE) {
        apply_exchange(m, t);
    } else {
        if (m->old)
            txn_set_reserved(t);
        apply_move(m, t);
    }
    inode_touch(m->obj, now, TOUCH_C);
    inode_touch(m->from, now, TOUCH_M | TOUCH_C);
    if (m->to != m->from)
        inode_touch(m->to, now, TOUCH_M | TOUCH_C);
    for (int k = 0; k < m->h.n; k++)
        if (&m->h.i[k] != m->old)
            inode_put(t, m->cont, &m->h.i[k]);
    bool gone = m->old && m->old->a.nlink == 0;
    if (m->old) {
        inode_touch(m->old, now, TOUCH_C);
        if (gone)
            r = object_unlinked(t, m->cont, m->old);
        else
            inode_put(t, m->cont, m->old);
    }
    if (r)
        return txn_drop(t), r;
    reply_record(t, m->ctx, REPLY_RENAME, NULL);
    r = txn_commit(t, NULL);
    if (!r && gone)
        gc_kick(m->e->ns);
    return r;
}

static int rename_locked(struct move *m)
{
    int r = reply_seen(m->e, m->ctx, REPLY_RENAME, NULL);

    if (r)
        return r < 0 ? r : 0;
    r = find_names(m);
    if (r)
        return r;
    /* Two names of one object: POSIX wants nothing to happen. */
    if (m->have_dst && m->src.ino == m->dst.ino)
        return 0;
    r = take_inodes(m);
    if (r)
        return r;
    r = check_rights(m);
    if (!r)
        r = move_commit(m);
    held_drop(&m->h);
    return r;
}

int local_rename(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                 uint64_t new_parent, const char *new_name, uint32_t flags)
{
    struct move m = {.e = engine_of_cont(c),
                     .cont = c->info.id,
                     .ctx = ctx,
                     .from_ino = parent,
                     .to_ino = new_parent,
                     .name = name,
                     .new_name = new_name,
                     .flags = flags};

    eng_lock_ns(m.e);
    int r = rename_locked(&m);
    eng_unlock_ns(m.e);
    return r;
}

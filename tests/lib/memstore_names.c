#include "memstore_node.h"

#include "store/perm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static struct memstore *of(struct pst_cont *c)
{
    return container_of(c, struct memstore, cont);
}

struct node *node(struct memstore *m, uint64_t ino)
{
    list_for_each (it, &m->nodes) {
        struct node *n = list_entry(it, struct node, link);
        if (n->a.ino == ino)
            return n;
    }
    return NULL;
}

static struct name *entry(struct node *dir, const char *s)
{
    list_for_each (it, &dir->names) {
        struct name *n = list_entry(it, struct name, link);
        if (!strcmp(n->name, s))
            return n;
    }
    return NULL;
}

void touch(struct node *n)
{
    n->a.mtime_ns = n->a.ctime_ns = wall_ns();
    n->a.change++;
}

struct node *node_new(struct memstore *m, uint32_t mode, uint64_t parent)
{
    struct node *n = calloc(1, sizeof *n);

    list_init(&n->names);
    n->a = (struct pst_attr){.ino = ++m->last_ino, .mode = mode, .nlink = S_ISDIR(mode) ? 2 : 1,
                             .chunk_size = PST_CHUNK_DEFAULT};
    n->a.atime_ns = n->a.btime_ns = wall_ns();
    n->parent = parent;
    touch(n);
    list_push_back(&m->nodes, &n->link);
    return n;
}

void node_free(struct node *n)
{
    struct list *l;

    while ((l = list_pop_front(&n->names)))
        free(list_entry(l, struct name, link));
    list_del(&n->link);
    free(n->data);
    free(n);
}

static void node_gone(struct node *n)
{
    if (!n->a.nlink && !n->opens)
        node_free(n);
}

int resize(struct node *n, uint64_t size)
{
    uint8_t *p;

    if (size > GiB)
        return -EFBIG;
    p = realloc(n->data, size + 1);
    if (!p)
        return -ENOMEM;
    if (size > n->a.size)
        memset(p + n->a.size, 0, size - n->a.size);
    n->data = p;
    n->a.size = size;
    n->a.used = align_up(size, PST_BLOCK);
    return 0;
}

static void link_name(struct node *dir, const char *s, uint64_t ino)
{
    struct name *e = calloc(1, sizeof *e);

    snprintf(e->name, sizeof e->name, "%s", s);
    e->ino = ino;
    e->cookie = ++dir->last_cookie;
    list_push_back(&dir->names, &e->link);
    touch(dir);
}

static int dir_of(struct memstore *m, const struct pst_ctx *ctx, uint64_t ino, int want, struct node **ret)
{
    struct node *n = node(m, ino);

    if (!n)
        return -ENOENT;
    if (!S_ISDIR(n->a.mode))
        return -ENOTDIR;
    *ret = n;
    return ctx->cred ? pst_perm_access(ctx->cred, &n->a, want) : 0;
}

static int m_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *s, struct pst_attr *ret)
{
    struct memstore *m = of(c);
    struct node *dir;
    struct name *e;
    int r;

    scoped_lock(&m->lock);
    r = dir_of(m, ctx, parent, X_OK, &dir);
    if (r < 0)
        return r;
    e = entry(dir, s);
    if (!e)
        return -ENOENT;
    *ret = node(m, e->ino)->a;
    return 0;
}

static int m_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret)
{
    struct memstore *m = of(c);
    struct node *n;

    (void)ctx;
    scoped_lock(&m->lock);
    n = node(m, ino);
    if (!n)
        return -ENOENT;
    *ret = n->a;
    return 0;
}

static int m_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                     const struct pst_attr *in, struct pst_attr *ret)
{
    struct memstore *m = of(c);
    uint32_t clear = 0;
    struct node *n;
    int r = 0;

    scoped_lock(&m->lock);
    n = node(m, ino);
    if (!n)
        return -ENOENT;
    if (ctx->cred)
        r = pst_perm_setattr(ctx->cred, &n->a, mask, in, &clear);
    if (r == 0 && mask & PST_SET_SIZE)
        r = resize(n, in->size);
    if (r < 0)
        return r;
    if (mask & PST_SET_MODE)
        n->a.mode = (n->a.mode & S_IFMT) | (in->mode & 07777);
    if (mask & PST_SET_UID)
        n->a.uid = in->uid;
    if (mask & PST_SET_GID)
        n->a.gid = in->gid;
    n->a.mode &= ~clear;
    touch(n);
    if (mask & (PST_SET_ATIME | PST_SET_ATIME_NOW))
        n->a.atime_ns = mask & PST_SET_ATIME ? in->atime_ns : wall_ns();
    if (mask & PST_SET_MTIME)
        n->a.mtime_ns = in->mtime_ns;
    *ret = n->a;
    return 0;
}

static int m_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *s,
                  const struct pst_new *in, struct pst_attr *ret, bool *ret_created)
{
    struct memstore *m = of(c);
    struct node *dir, *n;
    struct name *e;
    int r;

    scoped_lock(&m->lock);
    r = dir_of(m, ctx, parent, W_OK | X_OK, &dir);
    if (r < 0)
        return r;
    e = entry(dir, s);
    if (e && (in->exclusive || !S_ISREG(in->mode)))
        return -EEXIST;
    n = e ? node(m, e->ino) : node_new(m, in->mode, parent);
    if (!e) {
        n->a.uid = ctx->cred ? ctx->cred->uid : 0;
        n->a.gid = ctx->cred ? ctx->cred->gid : 0;
        if (S_ISLNK(in->mode)) {
            n->data = (uint8_t *)strdup(in->target);
            n->a.size = strlen(in->target);
        }
        link_name(dir, s, n->a.ino);
        dir->a.nlink += S_ISDIR(in->mode);
    }
    *ret = n->a;
    if (ret_created)
        *ret_created = !e;
    return 0;
}

static int m_readlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret, size_t size)
{
    struct memstore *m = of(c);
    struct node *n;

    (void)ctx;
    scoped_lock(&m->lock);
    n = node(m, ino);
    if (!n || !S_ISLNK(n->a.mode))
        return n ? -EINVAL : -ENOENT;
    if (n->a.size + 1 > size)
        return -ERANGE;
    memcpy(ret, n->data, n->a.size + 1);
    return (int)n->a.size;
}

static int m_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *s,
                  struct pst_attr *ret)
{
    struct memstore *m = of(c);
    struct node *dir, *n;
    int r;

    scoped_lock(&m->lock);
    r = dir_of(m, ctx, parent, W_OK | X_OK, &dir);
    n = node(m, ino);
    if (r < 0 || !n)
        return r < 0 ? r : -ENOENT;
    if (entry(dir, s))
        return -EEXIST;
    link_name(dir, s, ino);
    n->a.nlink++;
    touch(n);
    *ret = n->a;
    return 0;
}

static int remove_name(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *s, bool want_dir)
{
    struct memstore *m = of(c);
    struct node *dir, *n;
    struct name *e;
    int r;

    scoped_lock(&m->lock);
    r = dir_of(m, ctx, parent, W_OK | X_OK, &dir);
    if (r < 0)
        return r;
    e = entry(dir, s);
    if (!e)
        return -ENOENT;
    n = node(m, e->ino);
    if (S_ISDIR(n->a.mode) != want_dir)
        return want_dir ? -ENOTDIR : -EISDIR;
    if (want_dir && !list_empty(&n->names))
        return -ENOTEMPTY;
    list_del(&e->link);
    free(e);
    dir->a.nlink -= want_dir;
    n->a.nlink = want_dir ? 0 : n->a.nlink - 1;
    touch(dir);
    node_gone(n);
    return 0;
}

static int m_unlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *s)
{
    return remove_name(c, ctx, parent, s, false);
}

static int m_rmdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *s)
{
    return remove_name(c, ctx, parent, s, true);
}

static int m_rename(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *s, uint64_t to_parent,
                    const char *to, uint32_t flags)
{
    struct memstore *m = of(c);
    struct node *from_dir, *to_dir = NULL;
    struct name *e, *old;
    int r;

    scoped_lock(&m->lock);
    r = dir_of(m, ctx, parent, W_OK | X_OK, &from_dir);
    if (r == 0)
        r = dir_of(m, ctx, to_parent, W_OK | X_OK, &to_dir);
    if (r < 0)
        return r;
    e = entry(from_dir, s);
    old = entry(to_dir, to);
    if (!e || (flags == PST_RENAME_EXCHANGE && !old))
        return -ENOENT;
    if (old && flags == PST_RENAME_NOREPLACE)
        return -EEXIST;
    if (flags == PST_RENAME_EXCHANGE) {
        uint64_t t = e->ino;
        e->ino = old->ino;
        old->ino = t;
        return 0;
    }
    if (old && old->ino == e->ino)
        return 0;
    if (old) {
        struct node *n = node(m, old->ino);
        list_del(&old->link);
        free(old);
        n->a.nlink--;
        node_gone(n);
    }
    node(m, e->ino)->parent = to_parent;
    link_name(to_dir, to, e->ino);
    list_del(&e->link);
    free(e);
    return 0;
}

static int m_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                     pst_dirent_fn fn, void *user)
{
    struct memstore *m = of(c);
    struct node *dir;
    int r;

    scoped_lock(&m->lock);
    r = dir_of(m, ctx, ino, R_OK, &dir);
    if (r < 0)
        return r;
    list_for_each (it, &dir->names) {
        struct name *e = list_entry(it, struct name, link);
        struct pst_dirent de = {.ino = e->ino, .cookie = e->cookie};
        if (e->cookie <= cookie)
            continue;
        snprintf(de.name, sizeof de.name, "%s", e->name);
        de.attr = node(m, e->ino)->a;
        de.type = de.attr.mode & S_IFMT;
        (void)with_attr;
        if (fn(&de, user))
            break;
    }
    return 0;
}

static int m_parent(struct pst_cont *c, uint64_t ino, uint64_t *ret)
{
    struct memstore *m = of(c);
    struct node *n;

    scoped_lock(&m->lock);
    n = node(m, ino);
    if (!n || !S_ISDIR(n->a.mode))
        return n ? -ENOTDIR : -ENOENT;
    *ret = n->parent;
    return 0;
}

static int m_statfs(struct pst_cont *c, struct pst_statfs *ret)
{
    (void)c;
    *ret = (struct pst_statfs){.total_bytes = GiB, .free_bytes = GiB, .objects = 1};
    return 0;
}

static int m_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                  struct pst_attr *ret)
{
    struct memstore *m = of(c);
    struct node *n;
    int r = 0;

    scoped_lock(&m->lock);
    n = node(m, ino);
    if (!n)
        return -ENOENT;
    if (ctx->cred)
        r = pst_perm_access(ctx->cred, &n->a, accmode);
    if (r == 0 && trunc) {
        r = resize(n, 0);
        touch(n);
    }
    if (r < 0)
        return r;
    n->opens++;
    m->n.opens++;
    *ret = n->a;
    return 0;
}

static void m_release(struct pst_cont *c, uint64_t ino)
{
    struct memstore *m = of(c);
    struct node *n;

    scoped_lock(&m->lock);
    n = node(m, ino);
    n->opens--;
    m->n.opens--;
    node_gone(n);
}

void memstore_names(struct pst_store_ops *ops)
{
    ops->lookup = m_lookup;
    ops->getattr = m_getattr;
    ops->setattr = m_setattr;
    ops->make = m_make;
    ops->readlink = m_readlink;
    ops->link = m_link;
    ops->unlink = m_unlink;
    ops->rmdir = m_rmdir;
    ops->rename = m_rename;
    ops->readdir = m_readdir;
    ops->parent = m_parent;
    ops->statfs = m_statfs;
    ops->open = m_open;
    ops->release = m_release;
}

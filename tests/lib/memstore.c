#include "memstore.h"

#include "store/perm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

struct node {
    struct list link;
    struct pst_attr a;
    uint8_t *data; /* owned; content of a file, target of a symbolic link */
    uint32_t opens;
    struct list names; /* directories: struct name */
    uint64_t parent, last_cookie;
};

struct name {
    struct list link;
    char name[PST_NAME_MAX + 1];
    uint64_t ino, cookie;
};

struct memstore {
    struct pst_store st;
    struct pst_cont cont;
    pthread_mutex_t lock;
    struct list nodes;
    uint64_t last_ino;
    uint32_t hold, fail_kinds, fail_left;
    bool backwards;
    int fail_err;
    struct memstore_counts n;
    struct list queues; /* struct mqueue.link */
};

struct mqueue {
    struct pst_queue q;
    struct list link, waiting, done;
    uint32_t depth, count;
    int fd;
};

static struct memstore *of(struct pst_cont *c)
{
    return container_of(c, struct memstore, cont);
}

struct memstore *memstore_of(struct pst_store *st)
{
    return container_of(st, struct memstore, st);
}

static struct node *node(struct memstore *m, uint64_t ino)
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

static void touch(struct node *n)
{
    n->a.mtime_ns = n->a.ctime_ns = wall_ns();
    n->a.change++;
}

static struct node *node_new(struct memstore *m, uint32_t mode, uint64_t parent)
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

static void node_free(struct node *n)
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

static int resize(struct node *n, uint64_t size)
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

/* ---- data ---- */

static int64_t do_read(struct node *n, struct pst_op *op)
{
    uint64_t have = op->offset < n->a.size ? min_u64(op->length, n->a.size - op->offset) : 0, done = 0;

    for (uint32_t i = 0; i < op->iovcnt && done < have; i++) {
        size_t k = min_u64(op->iov[i].iov_len, have - done);
        memcpy(op->iov[i].iov_base, n->data + op->offset + done, k);
        done += k;
    }
    return (int64_t)have;
}

static int64_t do_write(struct memstore *m, struct node *n, struct pst_op *op)
{
    uint64_t at;

    if (op->flags & PST_OPF_APPEND)
        op->offset = n->a.size;
    at = op->offset;
    if (at + op->length > n->a.size && resize(n, at + op->length) < 0)
        return -EFBIG;
    for (uint32_t i = 0; i < op->iovcnt; at += op->iov[i].iov_len, i++)
        memcpy(n->data + at, op->iov[i].iov_base, op->iov[i].iov_len);
    touch(n);
    m->n.largest_write = max_u64(m->n.largest_write, op->length);
    return (int64_t)op->length;
}

static int64_t execute(struct memstore *m, struct pst_op *op)
{
    struct node *n = node(m, op->ino);

    m->n.ops[op->kind]++;
    if (m->fail_left && m->fail_kinds >> op->kind & 1) {
        m->fail_left--;
        return m->fail_err;
    }
    if (op->kind == PST_OP_SYNCFS)
        return 0;
    if (!n)
        return -ENOENT;
    switch (op->kind) {
    case PST_OP_READ:
        return do_read(n, op);
    case PST_OP_WRITE:
        return do_write(m, n, op);
    case PST_OP_PUNCH:
        if (op->offset < n->a.size)
            memset(n->data + op->offset, 0, min_u64(op->length, n->a.size - op->offset));
        return 0;
    case PST_OP_ALLOCATE:
        if (!(op->flags & PST_OPF_KEEP_SIZE) && op->offset + op->length > n->a.size)
            return resize(n, op->offset + op->length);
        return 0;
    case PST_OP_SEEK_DATA:
        return op->offset < n->a.size ? (int64_t)op->offset : -ENXIO;
    case PST_OP_SEEK_HOLE:
        return op->offset < n->a.size ? (int64_t)n->a.size : -ENXIO;
    case PST_OP_FSYNC:
        return 0;
    default:
        return -EOPNOTSUPP;
    }
}

static void kick(struct mqueue *q)
{
    uint64_t one = 1;

    if (write(q->fd, &one, sizeof one) < 0)
        abort();
}

static int m_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    struct memstore *m = memstore_of(st);
    struct mqueue *q = calloc(1, sizeof *q);

    q->q.store = st;
    q->depth = depth;
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    list_init(&q->waiting);
    list_init(&q->done);
    scoped_lock(&m->lock);
    list_push_back(&m->queues, &q->link);
    *ret = &q->q;
    return 0;
}

static void m_queue_close(struct pst_queue *pq)
{
    struct mqueue *q = container_of(pq, struct mqueue, q);
    struct memstore *m = memstore_of(pq->store);

    scoped_lock(&m->lock);
    list_del(&q->link);
    close(q->fd);
    free(q);
}

static int m_queue_submit(struct pst_queue *pq, struct pst_op *op)
{
    struct mqueue *q = container_of(pq, struct mqueue, q);
    struct memstore *m = memstore_of(pq->store);

    scoped_lock(&m->lock);
    if (q->count == q->depth)
        return -EAGAIN;
    q->count++;
    if (m->backwards)
        list_push_front(&q->waiting, &op->link);
    else
        list_push_back(&q->waiting, &op->link);
    m->n.held += m->hold >> op->kind & 1;
    kick(q);
    return 0;
}

static int m_queue_reap(struct pst_queue *pq, struct pst_op **ret, int max, uint64_t timeout_ns)
{
    struct mqueue *q = container_of(pq, struct mqueue, q);
    struct memstore *m = memstore_of(pq->store);
    struct pollfd fd = {.fd = q->fd, .events = POLLIN};
    uint64_t count;
    int n = 0;

    if (timeout_ns)
        poll(&fd, 1, timeout_ns == UINT64_MAX ? -1 : (int)(timeout_ns / NSEC_PER_MSEC));
    scoped_lock(&m->lock);
    if (read(q->fd, &count, sizeof count) < 0)
        count = 0;
    list_for_each_safe (it, &q->waiting) {
        struct pst_op *op = list_entry(it, struct pst_op, link);
        if (n == max || m->hold >> op->kind & 1)
            continue;
        list_del(it);
        op->result = execute(m, op);
        ret[n++] = op;
        q->count--;
    }
    if (n == max)
        kick(q);
    return n;
}

static int m_queue_fd(struct pst_queue *pq)
{
    return container_of(pq, struct mqueue, q)->fd;
}

void memstore_hold(struct memstore *m, uint32_t kinds)
{
    scoped_lock(&m->lock);
    m->hold = kinds;
}

void memstore_release(struct memstore *m)
{
    scoped_lock(&m->lock);
    m->hold = 0;
    m->n.held = 0;
    list_for_each (it, &m->queues)
        kick(list_entry(it, struct mqueue, link));
}

void memstore_backwards(struct memstore *m, bool on)
{
    scoped_lock(&m->lock);
    m->backwards = on;
}

void memstore_fail(struct memstore *m, uint32_t kinds, int err, uint32_t count)
{
    scoped_lock(&m->lock);
    m->fail_kinds = kinds;
    m->fail_err = err;
    m->fail_left = count;
}

void memstore_counts(struct memstore *m, struct memstore_counts *ret)
{
    scoped_lock(&m->lock);
    *ret = m->n;
}

static void m_close(struct pst_store *st)
{
    struct memstore *m = memstore_of(st);

    while (!list_empty(&m->nodes))
        node_free(list_entry(m->nodes.next, struct node, link));
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static int m_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                       struct pst_cont **ret)
{
    (void)ctx, (void)pool, (void)label;
    *ret = &memstore_of(st)->cont;
    return 0;
}

static void m_cont_close(struct pst_cont *c)
{
    (void)c;
}

static const struct pst_store_ops ops = {
    .name = "mem", .close = m_close, .cont_open = m_cont_open, .cont_close = m_cont_close,
    .lookup = m_lookup, .getattr = m_getattr, .setattr = m_setattr, .make = m_make, .readlink = m_readlink,
    .link = m_link, .unlink = m_unlink, .rmdir = m_rmdir, .rename = m_rename, .readdir = m_readdir,
    .parent = m_parent, .statfs = m_statfs, .open = m_open, .release = m_release,
    .queue_open = m_queue_open, .queue_close = m_queue_close, .queue_submit = m_queue_submit,
    .queue_reap = m_queue_reap, .queue_fd = m_queue_fd,
};

static int m_open_store(const char *rest, const struct pst_option *o, size_t n, struct pst_store **ret, char *err,
                        size_t err_size)
{
    struct memstore *m = calloc(1, sizeof *m);

    (void)rest, (void)o, (void)n, (void)err, (void)err_size;
    m->st.ops = &ops;
    m->cont.store = &m->st;
    m->cont.info.id = 1;
    m->cont.info.props.chunk_size = PST_CHUNK_DEFAULT;
    pthread_mutex_init(&m->lock, NULL);
    list_init(&m->nodes);
    list_init(&m->queues);
    node_new(m, S_IFDIR | 0777, PST_ROOT_INO);
    *ret = &m->st;
    return 0;
}

const struct pst_backend memstore_backend = {"mem", m_open_store};

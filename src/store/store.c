/* The checks that every implementation may rely on, then the table. */
#include "store/store.h"

#include "store/perm.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static int ctx_check(const struct pst_ctx *ctx)
{
    if (!ctx || (ctx->cred && ctx->cred->ngroups > PST_GROUPS_MAX) || ctx->id.slot >= PST_SLOTS_MAX || ctx->walk)
        return -EINVAL;
    return 0;
}

/* Each call: the context first, then the named condition, then the table's entry if the engine has it. */
#define CHECK(expr)                                                                                                    \
    do {                                                                                                               \
        int check_r = (expr);                                                                                          \
        if (check_r)                                                                                                   \
            return check_r;                                                                                            \
    } while (0)
#define CALL(obj, fn, ...) ((obj)->fn ? (obj)->fn(__VA_ARGS__) : -EOPNOTSUPP)

void pst_store_close(struct pst_store *st)
{
    if (st)
        st->ops->close(st);
}

uint64_t pst_store_history(const struct pst_store *st)
{
    for (; st; st = st->next)
        if (st->ops->history)
            return st->ops->history((struct pst_store *)(uintptr_t)st);
    return 0;
}

bool pst_store_moves_only(const struct pst_store *st)
{
    for (; st; st = st->next)
        if (!st->ops->moves_only)
            return false;
    return true;
}

bool pst_store_takes_far(const struct pst_store *st)
{
    for (; st->next; st = st->next)
        if (!st->ops->passes_far)
            return false;
    return st->ops->third != NULL;
}

int pst_store_third(struct pst_store *st, uint32_t spread, uint64_t owner, struct pst_third *ret)
{
    if (!pst_store_takes_far(st))
        return -EOPNOTSUPP;
    while (st->next)
        st = st->next;
    return st->ops->third(st, spread, owner, ret);
}

bool pst_store_wants_shared(const struct pst_store *st)
{
    return st->ops->wants_shared && st->ops->wants_shared(st);
}

int pst_store_origin_add(struct pst_store *st, const uint8_t client[16])
{
    for (; st; st = st->next)
        if (st->ops->origin_add)
            return st->ops->origin_add(st, client);
    return 0;
}

void pst_store_origin_remove(struct pst_store *st, const uint8_t client[16])
{
    for (; st; st = st->next)
        if (st->ops->origin_remove) {
            st->ops->origin_remove(st, client);
            return;
        }
}

void pst_store_end_waits(struct pst_store *st)
{
    for (; st; st = st->next)
        if (st->ops->end_waits)
            st->ops->end_waits(st);
}

bool pst_store_away(struct pst_store *st)
{
    for (; st; st = st->next)
        if (st->ops->away)
            return st->ops->away(st);
    return false;
}

int pst_pool_create(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                    struct pst_pool_info *ret)
{
    CHECK(ctx_check(ctx));
    CHECK(pst_label_check(in->label));
    return CALL(st->ops, pool_create, st, ctx, in, ret);
}

int pst_pool_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, struct pst_pool_info *ret)
{
    CHECK(ctx_check(ctx));
    CHECK(pst_label_check(pool));
    return CALL(st->ops, pool_query, st, ctx, pool, ret);
}

int pst_pool_list(struct pst_store *st, const struct pst_ctx *ctx, const char *after,
                  int (*fn)(const struct pst_pool_info *, void *), void *user)
{
    CHECK(ctx_check(ctx));
    return CALL(st->ops, pool_list, st, ctx, after ? after : "", fn, user);
}

int pst_pool_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force)
{
    CHECK(ctx_check(ctx));
    CHECK(pst_label_check(pool));
    return CALL(st->ops, pool_destroy, st, ctx, pool, force);
}

int pst_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                    const struct pst_cont_props *props, struct pst_cont_info *ret)
{
    struct pst_cont_props p = *props;

    CHECK(ctx_check(ctx));
    CHECK(pst_label_check(pool));
    CHECK(pst_label_check(label));
    p.chunk_size = p.chunk_size ? p.chunk_size : PST_CHUNK_DEFAULT;
    p.mode = p.mode ? p.mode : 0755;
    if (p.chunk_size < PST_CHUNK_MIN || p.chunk_size > PST_CHUNK_MAX || !is_pow2(p.chunk_size) || p.mode & ~07777u)
        return -EINVAL;
    return CALL(st->ops, cont_create, st, ctx, pool, label, &p, ret);
}

int pst_cont_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                   struct pst_cont_info *ret)
{
    CHECK(ctx_check(ctx));
    CHECK(pst_label_check(pool));
    CHECK(pst_label_check(label));
    return CALL(st->ops, cont_query, st, ctx, pool, label, ret);
}

int pst_cont_list(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *after,
                  int (*fn)(const struct pst_cont_info *, void *), void *user)
{
    CHECK(ctx_check(ctx));
    CHECK(pst_label_check(pool));
    return CALL(st->ops, cont_list, st, ctx, pool, after ? after : "", fn, user);
}

int pst_cont_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label)
{
    CHECK(ctx_check(ctx));
    CHECK(pst_label_check(pool));
    CHECK(pst_label_check(label));
    return CALL(st->ops, cont_destroy, st, ctx, pool, label);
}

int pst_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                  struct pst_cont **ret)
{
    CHECK(ctx_check(ctx));
    CHECK(pst_label_check(pool));
    CHECK(pst_label_check(label));
    return CALL(st->ops, cont_open, st, ctx, pool, label, ret);
}

void pst_cont_close(struct pst_cont *c)
{
    if (c)
        c->store->ops->cont_close(c);
}

#define NS(c, fn, ...) CALL((c)->store->ops, fn, c, __VA_ARGS__)

/* ---- from the parent through ctx->walk ---- */

struct walk {
    struct pst_ctx ctx; /* for the operation itself */
    uint64_t parent;
    int err; /* the way is not there: the operation is asked only for what an earlier try of the request has done */
};

static int walk_step(struct pst_cont *c, struct walk *w, const char *name, size_t n)
{
    const struct pst_ctx plain = {.cred = w->ctx.cred};
    char one[PST_NAME_MAX + 1];
    struct pst_attr a;

    if (n > PST_NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(one, name, n);
    one[n] = '\0';
    CHECK(pst_name_check(one));
    CHECK(NS(c, lookup, &plain, w->parent, one, &a));
    if (!S_ISDIR(a.mode))
        return S_ISLNK(a.mode) ? -ELOOP : -ENOTDIR;
    w->parent = a.ino;
    return 0;
}

/*
 * Checks the context and goes to the directory that is meant. A recorded request that was done before gets its reply
 * also when the way is not there any more: with parent 0, which nothing has, the engine finds its record or nothing.
 */
static int walk_begin(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, struct walk *ret)
{
    const char *at = ctx ? ctx->walk : NULL;
    int r = 0;

    *ret = (struct walk){.parent = parent};
    if (ctx)
        ret->ctx = *ctx;
    ret->ctx.walk = NULL;
    CHECK(ctx_check(ctx ? &ret->ctx : NULL));
    if (!at)
        return 0;
    if (strnlen(at, PST_WALK_MAX + 1) > PST_WALK_MAX)
        return -ENAMETOOLONG;
    if (c->store->ops->walks) {
        ret->ctx.walk = at;
        return 0;
    }
    for (size_t n; !r && at; at = at[n] ? at + n + 1 : NULL) {
        n = strcspn(at, "/");
        r = walk_step(c, ret, at, n);
    }
    if (r && ctx->id.seq == 0)
        return r;
    if (r)
        ret->parent = 0;
    else if (ctx->walked)
        *ctx->walked = ret->parent;
    ret->err = r;
    return 0;
}

static int walk_end(const struct walk *w, int r)
{
    return w->err && r < 0 && r != -ESTALE ? w->err : r;
}

int pst_store_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     struct pst_attr *ret)
{
    struct walk w;

    CHECK(pst_name_check(name));
    CHECK(walk_begin(c, ctx, parent, &w));
    return walk_end(&w, NS(c, lookup, &w.ctx, w.parent, name, ret));
}

int pst_store_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret)
{
    CHECK(ctx_check(ctx));
    return NS(c, getattr, ctx, ino, ret);
}

int pst_store_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                      const struct pst_attr *in, struct pst_attr *ret)
{
    CHECK(ctx_check(ctx));
    if (mask & ~PST_SET_ALL)
        return -EINVAL;
    if ((mask & PST_SET_SIZE) && in->size > PST_FILE_MAX)
        return -EFBIG;
    return NS(c, setattr, ctx, ino, mask, in, ret);
}

int pst_store_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                   const struct pst_new *in, struct pst_attr *ret, bool *ret_created)
{
    struct walk w;
    size_t n;

    CHECK(pst_name_check(name));
    switch (in->mode & S_IFMT) {
    case S_IFLNK:
        n = in->target ? strnlen(in->target, PST_SYMLINK_MAX + 1) : 0;
        if (n == 0)
            return -ENOENT; /* POSIX symlink(2) with an empty target */
        if (n > PST_SYMLINK_MAX)
            return -ENAMETOOLONG;
        break;
    case S_IFCHR:
    case S_IFBLK:
        if (ctx && ctx->cred && ctx->cred->uid != 0)
            return -EPERM;
        break;
    case S_IFREG:
    case S_IFDIR:
    case S_IFIFO:
    case S_IFSOCK:
        break;
    default:
        return -EINVAL;
    }
    CHECK(walk_begin(c, ctx, parent, &w));
    return walk_end(&w, NS(c, make, &w.ctx, w.parent, name, in, ret, ret_created));
}

int pst_store_readlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_target, size_t size)
{
    CHECK(ctx_check(ctx));
    return NS(c, readlink, ctx, ino, ret_target, size);
}

int pst_store_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
                   struct pst_attr *ret)
{
    CHECK(ctx_check(ctx));
    CHECK(pst_name_check(name));
    return NS(c, link, ctx, ino, parent, name, ret);
}

int pst_store_unlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    struct walk w;

    CHECK(pst_name_check(name));
    CHECK(walk_begin(c, ctx, parent, &w));
    return walk_end(&w, NS(c, unlink, &w.ctx, w.parent, name));
}

int pst_store_rmdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    struct walk w;

    CHECK(pst_name_check(name));
    CHECK(walk_begin(c, ctx, parent, &w));
    return walk_end(&w, NS(c, rmdir, &w.ctx, w.parent, name));
}

int pst_store_rename(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     uint64_t new_parent, const char *new_name, uint32_t flags)
{
    CHECK(ctx_check(ctx));
    CHECK(pst_name_check(name));
    CHECK(pst_name_check(new_name));
    if (flags != 0 && flags != PST_RENAME_NOREPLACE && flags != PST_RENAME_EXCHANGE)
        return -EINVAL;
    return NS(c, rename, ctx, parent, name, new_parent, new_name, flags);
}

int pst_store_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                      pst_dirent_fn fn, void *user)
{
    CHECK(ctx_check(ctx));
    return NS(c, readdir, ctx, ino, cookie, with_attr, fn, user);
}

int pst_store_parent(struct pst_cont *c, uint64_t ino, uint64_t *ret_parent)
{
    return NS(c, parent, ino, ret_parent);
}

int pst_store_statfs(struct pst_cont *c, struct pst_statfs *ret)
{
    return NS(c, statfs, ret);
}

static int xattr_name_check(const char *name)
{
    size_t n = strnlen(name, PST_XATTR_NAME_MAX + 1);
    return n == 0 ? -EINVAL : n > PST_XATTR_NAME_MAX ? -ERANGE : 0;
}

int pst_store_setxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                       const void *value, size_t len, uint32_t flags)
{
    CHECK(ctx_check(ctx));
    CHECK(xattr_name_check(name));
    if (len > PST_XATTR_SIZE_MAX)
        return -E2BIG;
    if (flags != 0 && flags != PST_XATTR_CREATE && flags != PST_XATTR_REPLACE)
        return -EINVAL;
    return NS(c, setxattr, ctx, ino, name, value, len, flags);
}

int64_t pst_store_getxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                           void *ret_value, size_t size)
{
    CHECK(ctx_check(ctx));
    CHECK(xattr_name_check(name));
    return NS(c, getxattr, ctx, ino, name, ret_value, size);
}

int64_t pst_store_listxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size)
{
    CHECK(ctx_check(ctx));
    return NS(c, listxattr, ctx, ino, ret_names, size);
}

int pst_store_removexattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name)
{
    CHECK(ctx_check(ctx));
    CHECK(xattr_name_check(name));
    return NS(c, removexattr, ctx, ino, name);
}

int pst_store_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                   struct pst_attr *ret)
{
    CHECK(ctx_check(ctx));
    if (accmode & ~(R_OK | W_OK) || (trunc && !(accmode & W_OK)))
        return -EINVAL;
    return NS(c, open, ctx, ino, accmode, trunc, ret);
}

void pst_store_release(struct pst_cont *c, uint64_t ino)
{
    c->store->ops->release(c, ino);
}

int pst_store_create(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created)
{
    struct pst_ctx open_ctx;
    struct pst_attr a;
    bool created = false;
    struct walk w;

    CHECK(pst_name_check(name));
    CHECK(walk_begin(c, ctx, parent, &w));
    if (!S_ISREG(in->mode) || accmode & ~(R_OK | W_OK) || (trunc && !(accmode & W_OK)))
        return -EINVAL;
    if (c->store->ops->create)
        return walk_end(&w, c->store->ops->create(c, &w.ctx, w.parent, name, in, accmode, trunc, ret, ret_created));
    CHECK(walk_end(&w, NS(c, make, &w.ctx, w.parent, name, in, &a, &created)));
    if (!S_ISREG(a.mode))
        return S_ISDIR(a.mode) ? -EISDIR : S_ISLNK(a.mode) ? -ELOOP : -ENXIO;
    open_ctx = (struct pst_ctx){.cred = created ? NULL : ctx->cred};
    CHECK(NS(c, open, &open_ctx, a.ino, accmode, trunc && !created, ret));
    if (ret_created)
        *ret_created = created;
    return 0;
}

int pst_store_write(struct pst_cont *c, uint64_t ino, uint64_t offset, const void *data, size_t len, uint32_t flags)
{
    if (!c->store->ops->write)
        return -EOPNOTSUPP;
    if (!len || len > PST_SMALL_MAX || flags & ~(PST_OPF_DSYNC | PST_OPF_KILL_SETID))
        return -EINVAL;
    if (offset > PST_FILE_MAX - len)
        return -EFBIG;
    return c->store->ops->write(c, ino, offset, data, len, flags);
}

int pst_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    if (depth == 0 || depth > 4096)
        return -EINVAL;
    return CALL(st->ops, queue_open, st, depth, ret);
}

void pst_queue_close(struct pst_queue *q)
{
    if (q)
        q->store->ops->queue_close(q);
}

/* What an operation of each kind must look like; 0 or -errno. */
static int op_check(const struct pst_op *op)
{
    uint64_t sum = 0;

    CHECK(ctx_check(&op->ctx));
    if (op->meta_len > PST_META_MAX)
        return -EINVAL;
    switch (op->kind) {
    case PST_OP_READ:
    case PST_OP_WRITE:
    case PST_OP_CHUNK_READ:
    case PST_OP_CHUNK_REPLACE:
        for (uint32_t i = 0; !op->far && i < op->iovcnt; i++)
            sum += op->iov[i].iov_len;
        for (uint32_t i = 0; op->far && i < op->far->nsegs && i < PST_FAR_SEGS; i++)
            sum += op->far->seg[i].len;
        if (sum != op->length)
            return -EINVAL;
        if (op->length > (op->kind == PST_OP_READ || op->kind == PST_OP_WRITE ? PST_IO_MAX : PST_CHUNK_MAX))
            return -EMSGSIZE;
        break;
    case PST_OP_PUNCH:
    case PST_OP_ALLOCATE:
        if (op->length == 0)
            return -EINVAL;
        break;
    case PST_OP_SEEK_DATA:
    case PST_OP_SEEK_HOLE:
    case PST_OP_FSYNC:
    case PST_OP_SYNCFS:
    case PST_OP_ATTR:
        return 0;
    default:
        return -EINVAL;
    }
    if (op->kind == PST_OP_CHUNK_READ || op->kind == PST_OP_CHUNK_REPLACE)
        return op->offset > PST_FILE_MAX / PST_CHUNK_MIN ? -EFBIG : 0;
    if (op->kind == PST_OP_READ || op->kind == PST_OP_PUNCH)
        return op->offset > INT64_MAX || op->length > INT64_MAX - op->offset ? -EINVAL : 0;
    if (op->flags & PST_OPF_APPEND)
        return 0;
    return op->offset > PST_FILE_MAX || op->length > PST_FILE_MAX - op->offset ? -EFBIG : 0;
}

int pst_store_read_now(struct pst_op *op)
{
    if (op->kind != PST_OP_READ || !op->cont->store->ops->read_now || op_check(op))
        return -EAGAIN;
    return op->cont->store->ops->read_now(op);
}

uint32_t pst_queue_spread(struct pst_queue *q)
{
    return q->store->ops->queue_spread ? q->store->ops->queue_spread(q) : 0;
}

int pst_queue_submit(struct pst_queue *q, struct pst_op *op)
{
    CHECK(op_check(op));
    if (op->far && !pst_store_takes_far(q->store))
        return -EOPNOTSUPP;
    return q->store->ops->queue_submit(q, op);
}

int pst_queue_reap(struct pst_queue *q, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    return q->store->ops->queue_reap(q, ret_ops, max, timeout_ns);
}

int pst_queue_fd(struct pst_queue *q)
{
    return q->store->ops->queue_fd(q);
}

void pst_queue_cancel(struct pst_queue *q, struct pst_op *op)
{
    if (q->store->ops->queue_cancel)
        q->store->ops->queue_cancel(q, op);
}

int64_t pst_queue_run(struct pst_queue *q, struct pst_op *op)
{
    struct pst_op *done = NULL;

    CHECK(pst_queue_submit(q, op));
    while (!done) {
        int n = pst_queue_reap(q, &done, 1, UINT64_MAX);
        if (n < 0)
            return n;
    }
    return op->result;
}

void pst_store_stats(struct pst_store *st, pst_stat_fn fn, void *user)
{
    if (st->ops->stats)
        st->ops->stats(st, fn, user);
}

void pst_store_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user)
{
    if (st->ops->describe)
        st->ops->describe(st, fn, user);
}

int64_t pst_store_scrub(struct pst_store *st,
                        void (*report)(void *user, const char *pool, const char *cont, uint64_t ino, uint64_t offset,
                                       uint64_t length),
                        void *user, const volatile bool *cancel)
{
    return CALL(st->ops, scrub, st, report, user, cancel);
}

int pst_store_backup(struct pst_store *st, const char *dir)
{
    return CALL(st->ops, backup, st, dir);
}

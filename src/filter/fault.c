#include "fault.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const op_names[FAULT_OPS] = {
    [PST_OP_READ] = "read",
    [PST_OP_WRITE] = "write",
    [PST_OP_PUNCH] = "punch",
    [PST_OP_ALLOCATE] = "allocate",
    [PST_OP_SEEK_DATA] = "seek_data",
    [PST_OP_SEEK_HOLE] = "seek_hole",
    [PST_OP_FSYNC] = "fsync",
    [PST_OP_SYNCFS] = "syncfs",
    [PST_OP_CHUNK_READ] = "chunk_read",
    [PST_OP_CHUNK_REPLACE] = "chunk_replace",
    [PST_OP_ATTR] = "attr",
    [FAULT_LOOKUP] = "lookup",
    [FAULT_GETATTR] = "getattr",
    [FAULT_SETATTR] = "setattr",
    [FAULT_MAKE] = "make",
    [FAULT_READLINK] = "readlink",
    [FAULT_LINK] = "link",
    [FAULT_UNLINK] = "unlink",
    [FAULT_RMDIR] = "rmdir",
    [FAULT_RENAME] = "rename",
    [FAULT_READDIR] = "readdir",
    [FAULT_STATFS] = "statfs",
    [FAULT_XATTR] = "xattr",
    [FAULT_OPEN] = "open",
    [FAULT_ADMIN] = "admin",
};

#define DATA_OPS ((1ull << PST_OP_KINDS) - 1)
#define ALL_OPS  ((1ull << FAULT_OPS) - 1)

/* ---- options ---- */

static int parse_ops(const char *value, uint64_t *ret, char *err, size_t err_size)
{
    uint64_t ops = 0;

    for (const char *p = value; *p;) {
        size_t n = strcspn(p, "+"), i;
        if (n == 4 && !strncmp(p, "data", n)) {
            ops |= DATA_OPS;
        } else if (n == 9 && !strncmp(p, "namespace", n)) {
            ops |= ALL_OPS & ~DATA_OPS & ~(1ull << FAULT_ADMIN);
        } else if (n == 3 && !strncmp(p, "all", n)) {
            ops |= ALL_OPS;
        } else {
            for (i = 0; i < FAULT_OPS; i++)
                if (strlen(op_names[i]) == n && !strncmp(op_names[i], p, n))
                    break;
            if (i == FAULT_OPS) {
                snprintf(err, err_size, "op=%.60s: unknown operation; known: data, namespace, all, read, write, ...",
                         value);
                return -EINVAL;
            }
            ops |= 1ull << i;
        }
        p += n + (p[n] == '+');
    }
    if (!ops) {
        snprintf(err, err_size, "op= names no operation");
        return -EINVAL;
    }
    *ret = ops;
    return 0;
}

static int parse_errno(const char *name)
{
    for (int e = 1; e < 134; e++)
        if (!strcmp(err_name(e), name))
            return e;
    return 0;
}

int fault_option(struct fault *ft, const struct pst_option *o, char *err, size_t err_size)
{
    if (!strcmp(o->key, "op"))
        return parse_ops(o->value, &ft->ops, err, err_size);
    if (!strcmp(o->key, "every"))
        return filter_number(o, 1, UINT32_MAX, &ft->every, err, err_size);
    if (!strcmp(o->key, "skip"))
        return filter_number(o, 0, UINT32_MAX, &ft->skip, err, err_size);
    if (!strcmp(o->key, "count"))
        return filter_number(o, 1, UINT32_MAX, &ft->count, err, err_size);
    if (!strcmp(o->key, "when")) {
        ft->after = !strcmp(o->value, "after");
        if (ft->after || !strcmp(o->value, "before"))
            return 0;
        snprintf(err, err_size, "when=%.40s: must be before or after", o->value);
        return -EINVAL;
    }
    return -ENOENT;
}

/* own: this filter's option besides the common ones; required. */
static int open_fault(const char *name, const char *own, struct pst_store *next, const struct pst_option *opts,
                      size_t nopts, struct pst_store **ret, char *err, size_t err_size)
{
    struct fault *ft = calloc(1, sizeof *ft);
    uint64_t ms;
    bool have_own = false;
    int r = 0;

    if (!ft)
        return -ENOMEM;
    ft->ops = DATA_OPS;
    ft->every = 1;
    for (size_t i = 0; r == 0 && i < nopts; i++) {
        if (strcmp(opts[i].key, own) != 0) {
            r = fault_option(ft, &opts[i], err, err_size);
            if (r == -ENOENT) {
                snprintf(err, err_size, "unknown option \"%.40s\"; known: %s, op, every, skip, count, when",
                         opts[i].key, own);
                r = -EINVAL;
            }
            continue;
        }
        have_own = true;
        if (!strcmp(own, "ms")) {
            r = filter_number(&opts[i], 1, FAULT_DELAY_MAX_MS, &ms, err, err_size);
            if (r == 0)
                ft->delay_ns = ms * NSEC_PER_MSEC;
        } else {
            ft->error = -parse_errno(opts[i].value);
            if (!ft->error) {
                snprintf(err, err_size, "errno=%.40s: not the name of an error; for example EIO, ENOSPC",
                         opts[i].value);
                r = -EINVAL;
            }
        }
    }
    if (r == 0 && !have_own) {
        snprintf(err, err_size, "option %s= is missing", own);
        r = -EINVAL;
    }
    if (r < 0) {
        free(ft);
        return r;
    }
    fault_init(ft, name, next);
    *ret = &ft->f.st;
    return 0;
}

static int open_delay(struct pst_store *next, const struct pst_option *opts, size_t nopts, struct pst_store **ret,
                      char *err, size_t err_size)
{
    return open_fault("delay", "ms", next, opts, nopts, ret, err, err_size);
}

static int open_error(struct pst_store *next, const struct pst_option *opts, size_t nopts, struct pst_store **ret,
                      char *err, size_t err_size)
{
    return open_fault("error", "errno", next, opts, nopts, ret, err, err_size);
}

const struct filter_type filter_delay = {
    .name = "delay",
    .help = "delay:ms=N[,op=KIND+KIND][,every=N][,skip=N][,count=N][,when=before|after]: operations take longer",
    .open = open_delay,
};
const struct filter_type filter_error = {
    .name = "error",
    .help = "error:errno=NAME[,op=KIND+KIND][,every=N][,skip=N][,count=N][,when=before|after]: operations fail",
    .open = open_error,
};

/* ---- synchronous operations ---- */

bool fault_hits(struct fault *ft, unsigned op)
{
    uint64_t n;

    if (!(ft->ops >> op & 1))
        return false;
    n = atomic_fetch_add_explicit(&ft->seen, 1, memory_order_relaxed) + 1;
    if (n <= ft->skip || (n - ft->skip) % ft->every != 0)
        return false;
    if (!ft->count) {
        atomic_fetch_add_explicit(&ft->hit, 1, memory_order_relaxed);
        return true;
    }
    n = atomic_load_explicit(&ft->hit, memory_order_relaxed);
    while (n < ft->count)
        if (atomic_compare_exchange_weak(&ft->hit, &n, n + 1))
            return true;
    return false;
}

static struct fault *fault_of(struct pst_store *st)
{
    return container_of(st, struct fault, f.st);
}

/* Sleeps or fails, in the caller's thread. */
static int strike(const struct fault *ft)
{
    struct timespec t = {(time_t)(ft->delay_ns / NSEC_PER_SEC), (long)(ft->delay_ns % NSEC_PER_SEC)};

    while (ft->delay_ns && nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
    return ft->error;
}

/*
 * A call with its fault before or after it. With when=after an error hides an effect that has taken place, outputs
 * included: that is what a lost reply looks like.
 */
#define STRUCK(type, store, op, call)                                                                                  \
    struct fault *ft = fault_of(store);                                                                                \
    bool hit = fault_hits(ft, op);                                                                                     \
    int e = hit && !ft->after ? strike(ft) : 0;                                                                        \
    type r = e ? e : (call);                                                                                           \
    if (hit && ft->after && (e = strike(ft)))                                                                          \
        r = e;                                                                                                         \
    return r

static int ft_pool_create(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                          struct pst_pool_info *ret)
{
    STRUCK(int, st, FAULT_ADMIN, pst_pool_create(st->next, ctx, in, ret));
}

static int ft_pool_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force)
{
    STRUCK(int, st, FAULT_ADMIN, pst_pool_destroy(st->next, ctx, pool, force));
}

static int ft_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                          const struct pst_cont_props *props, struct pst_cont_info *ret)
{
    STRUCK(int, st, FAULT_ADMIN, pst_cont_create(st->next, ctx, pool, label, props, ret));
}

static int ft_cont_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label)
{
    STRUCK(int, st, FAULT_ADMIN, pst_cont_destroy(st->next, ctx, pool, label));
}

static int ft_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     struct pst_attr *ret)
{
    STRUCK(int, c->store, FAULT_LOOKUP, pst_store_lookup(c->next, ctx, parent, name, ret));
}

static int ft_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret)
{
    STRUCK(int, c->store, FAULT_GETATTR, pst_store_getattr(c->next, ctx, ino, ret));
}

static int ft_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                      const struct pst_attr *in, struct pst_attr *ret)
{
    STRUCK(int, c->store, FAULT_SETATTR, pst_store_setattr(c->next, ctx, ino, mask, in, ret));
}

static int ft_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                   const struct pst_new *in, struct pst_attr *ret, bool *ret_created)
{
    STRUCK(int, c->store, FAULT_MAKE, pst_store_make(c->next, ctx, parent, name, in, ret, ret_created));
}

static int ft_readlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_target, size_t size)
{
    STRUCK(int, c->store, FAULT_READLINK, pst_store_readlink(c->next, ctx, ino, ret_target, size));
}

static int ft_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
                   struct pst_attr *ret)
{
    STRUCK(int, c->store, FAULT_LINK, pst_store_link(c->next, ctx, ino, parent, name, ret));
}

static int ft_unlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    STRUCK(int, c->store, FAULT_UNLINK, pst_store_unlink(c->next, ctx, parent, name));
}

static int ft_rmdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    STRUCK(int, c->store, FAULT_RMDIR, pst_store_rmdir(c->next, ctx, parent, name));
}

static int ft_rename(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     uint64_t new_parent, const char *new_name, uint32_t flags)
{
    STRUCK(int, c->store, FAULT_RENAME, pst_store_rename(c->next, ctx, parent, name, new_parent, new_name, flags));
}

static int ft_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                      pst_dirent_fn fn, void *user)
{
    STRUCK(int, c->store, FAULT_READDIR, pst_store_readdir(c->next, ctx, ino, cookie, with_attr, fn, user));
}

static int ft_statfs(struct pst_cont *c, struct pst_statfs *ret)
{
    STRUCK(int, c->store, FAULT_STATFS, pst_store_statfs(c->next, ret));
}

static int ft_setxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name, const void *value,
                       size_t len, uint32_t flags)
{
    STRUCK(int, c->store, FAULT_XATTR, pst_store_setxattr(c->next, ctx, ino, name, value, len, flags));
}

static int64_t ft_getxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                           void *ret_value, size_t size)
{
    STRUCK(int64_t, c->store, FAULT_XATTR, pst_store_getxattr(c->next, ctx, ino, name, ret_value, size));
}

static int64_t ft_listxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size)
{
    STRUCK(int64_t, c->store, FAULT_XATTR, pst_store_listxattr(c->next, ctx, ino, ret_names, size));
}

static int ft_removexattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name)
{
    STRUCK(int, c->store, FAULT_XATTR, pst_store_removexattr(c->next, ctx, ino, name));
}

static int open_then(struct fault *ft, bool hit, struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino,
                     int accmode, bool trunc, struct pst_attr *ret)
{
    int r = pst_store_open(c->next, ctx, ino, accmode, trunc, ret), e;

    if (!hit || !ft->after || (e = strike(ft)) == 0)
        return r;
    if (r == 0)
        pst_store_release(c->next, ino); /* the caller of a failed open does not release */
    return e;
}

static int ft_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                   struct pst_attr *ret)
{
    struct fault *ft = fault_of(c->store);
    bool hit = fault_hits(ft, FAULT_OPEN);
    int e = hit && !ft->after ? strike(ft) : 0;

    return e ? e : open_then(ft, hit, c, ctx, ino, accmode, trunc, ret);
}

static int ft_create(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created)
{
    struct fault *ft = fault_of(c->store);
    bool hit = fault_hits(ft, FAULT_MAKE);
    int e = hit && !ft->after ? strike(ft) : 0, r;

    if (e)
        return e;
    r = pst_store_create(c->next, ctx, parent, name, in, accmode, trunc, ret, ret_created);
    if (!hit || !ft->after || (e = strike(ft)) == 0)
        return r;
    if (r == 0)
        pst_store_release(c->next, ret->ino);
    return e;
}

static void ft_close(struct pst_store *st)
{
    struct fault *ft = fault_of(st);

    pst_store_close(st->next);
    free(ft);
}

static void ft_stats(struct pst_store *st, pst_stat_fn fn, void *user)
{
    struct fault *ft = fault_of(st);
    char labels[64];

    pst_store_stats(st->next, fn, user);
    snprintf(labels, sizeof labels, "filter=\"%s\"", ft->f.ops.name);
    fn(user, "filter_faults_total", labels, "Operations that met a fault by a filter for drills.", true,
       (double)atomic_load_explicit(&ft->hit, memory_order_relaxed));
}

void fault_init(struct fault *ft, const char *name, struct pst_store *next)
{
    struct pst_store_ops *o = &ft->f.ops;

    filter_init(&ft->f, name, next);
    o->close = ft_close;
    o->pool_create = ft_pool_create;
    o->pool_destroy = ft_pool_destroy;
    o->cont_create = ft_cont_create;
    o->cont_destroy = ft_cont_destroy;
    o->lookup = ft_lookup;
    o->getattr = ft_getattr;
    o->setattr = ft_setattr;
    o->make = ft_make;
    o->readlink = ft_readlink;
    o->link = ft_link;
    o->unlink = ft_unlink;
    o->rmdir = ft_rmdir;
    o->rename = ft_rename;
    o->readdir = ft_readdir;
    o->statfs = ft_statfs;
    o->setxattr = ft_setxattr;
    o->getxattr = ft_getxattr;
    o->listxattr = ft_listxattr;
    o->removexattr = ft_removexattr;
    o->open = ft_open;
    o->create = ft_create;
    o->stats = ft_stats;
    fault_queue_ops(o);
}

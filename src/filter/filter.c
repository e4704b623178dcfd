#include "filter/filter.h"

#include "base/parse.h"
#include "cf.h"
#include "fault.h"
#include "quota.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

static void fwd_close(struct pst_store *st)
{
    struct filter *f = container_of(st, struct filter, st);

    pst_store_close(st->next);
    free(f);
}

static int fwd_pool_create(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                           struct pst_pool_info *ret)
{
    return pst_pool_create(st->next, ctx, in, ret);
}

static int fwd_pool_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, struct pst_pool_info *ret)
{
    return pst_pool_query(st->next, ctx, pool, ret);
}

static int fwd_pool_list(struct pst_store *st, const struct pst_ctx *ctx, const char *after,
                         int (*fn)(const struct pst_pool_info *, void *), void *user)
{
    return pst_pool_list(st->next, ctx, after, fn, user);
}

static int fwd_pool_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force)
{
    return pst_pool_destroy(st->next, ctx, pool, force);
}

static int fwd_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                           const struct pst_cont_props *props, struct pst_cont_info *ret)
{
    return pst_cont_create(st->next, ctx, pool, label, props, ret);
}

static int fwd_cont_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                          struct pst_cont_info *ret)
{
    return pst_cont_query(st->next, ctx, pool, label, ret);
}

static int fwd_cont_list(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *after,
                         int (*fn)(const struct pst_cont_info *, void *), void *user)
{
    return pst_cont_list(st->next, ctx, pool, after, fn, user);
}

static int fwd_cont_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label)
{
    return pst_cont_destroy(st->next, ctx, pool, label);
}

int filter_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                     struct pst_cont **ret)
{
    struct pst_cont *c = calloc(1, sizeof *c);
    int r;

    if (!c)
        return -ENOMEM;
    r = pst_cont_open(st->next, ctx, pool, label, &c->next);
    if (r < 0) {
        free(c);
        return r;
    }
    c->store = st;
    c->info = c->next->info;
    *ret = c;
    return 0;
}

static void fwd_cont_close(struct pst_cont *c)
{
    pst_cont_close(c->next);
    free(c);
}

static int fwd_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                      struct pst_attr *ret)
{
    return pst_store_lookup(c->next, ctx, parent, name, ret);
}

static int fwd_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret)
{
    return pst_store_getattr(c->next, ctx, ino, ret);
}

static int fwd_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                       const struct pst_attr *in, struct pst_attr *ret)
{
    return pst_store_setattr(c->next, ctx, ino, mask, in, ret);
}

static int fwd_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                    const struct pst_new *in, struct pst_attr *ret, bool *ret_created)
{
    return pst_store_make(c->next, ctx, parent, name, in, ret, ret_created);
}

static int fwd_readlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_target, size_t size)
{
    return pst_store_readlink(c->next, ctx, ino, ret_target, size);
}

static int fwd_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
                    struct pst_attr *ret)
{
    return pst_store_link(c->next, ctx, ino, parent, name, ret);
}

static int fwd_unlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    return pst_store_unlink(c->next, ctx, parent, name);
}

static int fwd_rmdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    return pst_store_rmdir(c->next, ctx, parent, name);
}

static int fwd_rename(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                      uint64_t new_parent, const char *new_name, uint32_t flags)
{
    return pst_store_rename(c->next, ctx, parent, name, new_parent, new_name, flags);
}

static int fwd_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                       pst_dirent_fn fn, void *user)
{
    return pst_store_readdir(c->next, ctx, ino, cookie, with_attr, fn, user);
}

static int fwd_parent(struct pst_cont *c, uint64_t ino, uint64_t *ret_parent)
{
    return pst_store_parent(c->next, ino, ret_parent);
}

static int fwd_statfs(struct pst_cont *c, struct pst_statfs *ret)
{
    return pst_store_statfs(c->next, ret);
}

static int fwd_setxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                        const void *value, size_t len, uint32_t flags)
{
    return pst_store_setxattr(c->next, ctx, ino, name, value, len, flags);
}

static int64_t fwd_getxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                            void *ret_value, size_t size)
{
    return pst_store_getxattr(c->next, ctx, ino, name, ret_value, size);
}

static int64_t fwd_listxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size)
{
    return pst_store_listxattr(c->next, ctx, ino, ret_names, size);
}

static int fwd_removexattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name)
{
    return pst_store_removexattr(c->next, ctx, ino, name);
}

static int fwd_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                    struct pst_attr *ret)
{
    return pst_store_open(c->next, ctx, ino, accmode, trunc, ret);
}

static void fwd_release(struct pst_cont *c, uint64_t ino)
{
    pst_store_release(c->next, ino);
}

static int fwd_create(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                      const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created)
{
    return pst_store_create(c->next, ctx, parent, name, in, accmode, trunc, ret, ret_created);
}

static int fwd_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    struct filter_queue *fq = calloc(1, sizeof *fq);
    int r = fq ? filter_queue_init(fq, st, depth) : -ENOMEM;

    if (r < 0) {
        free(fq);
        return r;
    }
    *ret = &fq->q;
    return 0;
}

static void fwd_queue_close(struct pst_queue *q)
{
    struct filter_queue *fq = container_of(q, struct filter_queue, q);

    filter_queue_done(fq);
    free(fq);
}

static int fwd_queue_submit(struct pst_queue *q, struct pst_op *op)
{
    struct filter_queue *fq = container_of(q, struct filter_queue, q);
    struct filter_frame *f = filter_frame_take(fq, op);
    int r;

    if (!f)
        return -EAGAIN;
    r = filter_frame_submit(fq, f);
    if (r < 0)
        filter_frame_drop(fq, f);
    return r;
}

static int fwd_queue_reap(struct pst_queue *q, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    struct filter_queue *fq = container_of(q, struct filter_queue, q);
    int n = pst_queue_reap(fq->next, ret_ops, max, timeout_ns);

    for (int i = 0; i < n; i++)
        ret_ops[i] = filter_frame_drop(fq, filter_frame_back(ret_ops[i]));
    return n;
}

static void fwd_queue_cancel(struct pst_queue *q, struct pst_op *op)
{
    pst_queue_cancel(container_of(q, struct filter_queue, q)->next, op);
}

static uint32_t fwd_queue_spread(struct pst_queue *q)
{
    return pst_queue_spread(container_of(q, struct filter_queue, q)->next);
}

static int fwd_queue_fd(struct pst_queue *q)
{
    return pst_queue_fd(container_of(q, struct filter_queue, q)->next);
}

static void fwd_stats(struct pst_store *st, pst_stat_fn fn, void *user)
{
    pst_store_stats(st->next, fn, user);
}

static void fwd_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user)
{
    pst_store_describe(st->next, fn, user);
    fn(user, "filter", st->ops->name);
}

static int64_t fwd_scrub(struct pst_store *st,
                         void (*report)(void *, const char *, const char *, uint64_t, uint64_t, uint64_t), void *user,
                         const volatile bool *cancel)
{
    return pst_store_scrub(st->next, report, user, cancel);
}

static bool fwd_wants_shared(const struct pst_store *st)
{
    return pst_store_wants_shared(st->next);
}

static int fwd_backup(struct pst_store *st, const char *dir)
{
    return pst_store_backup(st->next, dir);
}

static const struct pst_store_ops forward_ops = {
    .close = fwd_close,
    .pool_create = fwd_pool_create,
    .pool_query = fwd_pool_query,
    .pool_list = fwd_pool_list,
    .pool_destroy = fwd_pool_destroy,
    .cont_create = fwd_cont_create,
    .cont_query = fwd_cont_query,
    .cont_list = fwd_cont_list,
    .cont_destroy = fwd_cont_destroy,
    .cont_open = filter_cont_open,
    .cont_close = fwd_cont_close,
    .lookup = fwd_lookup,
    .getattr = fwd_getattr,
    .setattr = fwd_setattr,
    .make = fwd_make,
    .readlink = fwd_readlink,
    .link = fwd_link,
    .unlink = fwd_unlink,
    .rmdir = fwd_rmdir,
    .rename = fwd_rename,
    .readdir = fwd_readdir,
    .parent = fwd_parent,
    .statfs = fwd_statfs,
    .setxattr = fwd_setxattr,
    .getxattr = fwd_getxattr,
    .listxattr = fwd_listxattr,
    .removexattr = fwd_removexattr,
    .open = fwd_open,
    .release = fwd_release,
    .create = fwd_create,
    .walks = true,
    .queue_open = fwd_queue_open,
    .queue_close = fwd_queue_close,
    .queue_submit = fwd_queue_submit,
    .queue_reap = fwd_queue_reap,
    .queue_fd = fwd_queue_fd,
    .queue_cancel = fwd_queue_cancel,
    .queue_spread = fwd_queue_spread,
    .stats = fwd_stats,
    .describe = fwd_describe,
    .scrub = fwd_scrub,
    .backup = fwd_backup,
    .wants_shared = fwd_wants_shared,
};

void filter_init(struct filter *f, const char *name, struct pst_store *next)
{
    f->ops = forward_ops;
    f->ops.name = name;
    f->st = (struct pst_store){.ops = &f->ops, .next = next};
}

int filter_queue_init(struct filter_queue *fq, struct pst_store *st, uint32_t depth)
{
    int r;

    fq->frames = calloc(depth, sizeof *fq->frames);
    if (!fq->frames)
        return -ENOMEM;
    r = pst_queue_open(st->next, depth, &fq->next);
    if (r < 0) {
        free(fq->frames);
        fq->frames = NULL;
        return r;
    }
    fq->q.store = st;
    list_init(&fq->free);
    for (uint32_t i = 0; i < depth; i++)
        list_push_back(&fq->free, &fq->frames[i].link);
    return 0;
}

void filter_queue_done(struct filter_queue *fq)
{
    pst_queue_close(fq->next);
    free(fq->frames);
}

struct filter_frame *filter_frame_take(struct filter_queue *fq, struct pst_op *op)
{
    struct list *l = list_pop_front(&fq->free);
    struct filter_frame *f = l ? list_entry(l, struct filter_frame, link) : NULL;

    if (!f)
        return NULL;
    f->op = op;
    f->cont = op->cont;
    f->user = op->user;
    f->due_ns = 0;
    return f;
}

int filter_frame_submit(struct filter_queue *fq, struct filter_frame *f)
{
    int r;

    f->op->cont = f->cont ? f->cont->next : NULL;
    f->op->user = f;
    r = pst_queue_submit(fq->next, f->op);
    if (r < 0)
        filter_frame_back(f->op);
    return r;
}

struct filter_frame *filter_frame_back(struct pst_op *op)
{
    struct filter_frame *f = op->user;

    op->cont = f->cont;
    op->user = f->user;
    return f;
}

struct pst_op *filter_frame_drop(struct filter_queue *fq, struct filter_frame *f)
{
    list_push_front(&fq->free, &f->link);
    return f->op;
}

int filter_watch(int epoll, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

void filter_sleep(int epoll, uint64_t ns)
{
    struct pollfd pfd = {.fd = epoll, .events = POLLIN};
    struct timespec t = {(time_t)(ns / NSEC_PER_SEC), (long)(ns % NSEC_PER_SEC)};

    ppoll(&pfd, 1, ns == UINT64_MAX ? NULL : &t, NULL);
}

/* ---- by name ---- */

int filter_number(const struct pst_option *o, uint64_t min, uint64_t max, uint64_t *ret, char *err, size_t err_size)
{
    uint64_t v;

    if (parse_uint(o->value, &v) || v < min || v > max) {
        snprintf(err, err_size, "%s=%.40s: must be a number from %llu to %llu", o->key, o->value,
                 (unsigned long long)min, (unsigned long long)max);
        return -EINVAL;
    }
    *ret = v;
    return 0;
}

#define FILTER_OPTIONS_MAX 32

static const struct filter_type *const types[] = {&filter_compress, &filter_crypt, &filter_csum, &filter_delay,
                                          &filter_error, &filter_type_quota};

const struct filter_type *filter_type(size_t i)
{
    return i < ARRAY_SIZE(types) ? types[i] : NULL;
}

static const struct filter_type *find_type(const char *name, size_t len)
{
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (strlen(types[i]->name) == len && !strncmp(types[i]->name, name, len))
            return types[i];
    return NULL;
}

/* Splits "key=value,key" in place. A key without '=' has the value "1". */
static int split_options(char *s, struct pst_option *opts, size_t *ret_n, char *err, size_t err_size)
{
    size_t n = 0;
    char *save = NULL;

    for (char *p = strtok_r(s, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        char *eq = strchr(p, '=');
        if (n == FILTER_OPTIONS_MAX) {
            snprintf(err, err_size, "more than %d options", FILTER_OPTIONS_MAX);
            return -EINVAL;
        }
        if (eq)
            *eq = 0;
        opts[n++] = (struct pst_option){p, eq ? eq + 1 : "1"};
    }
    *ret_n = n;
    return 0;
}

int filter_push(const char *spec, struct pst_store *next, struct pst_store **ret, char *err, size_t err_size)
{
    size_t name_len = strcspn(spec, ":"), nopts = 0;
    const struct filter_type *t = find_type(spec, name_len);
    struct pst_option opts[FILTER_OPTIONS_MAX];
    cleanup_free char *copy = NULL;
    char why[200] = "out of memory";
    int r;

    if (!t) {
        size_t n =
            (size_t)snprintf(err, err_size, "no filter \"%.*s\"; known filters:", (int)min_u64(name_len, 60), spec);
        for (size_t i = 0; i < ARRAY_SIZE(types) && n < err_size; i++)
            n += (size_t)snprintf(err + n, err_size - n, " %s", types[i]->name);
        return -EINVAL;
    }
    copy = strdup(spec[name_len] ? spec + name_len + 1 : "");
    r = copy ? split_options(copy, opts, &nopts, why, sizeof why) : -ENOMEM;
    if (r == 0)
        r = t->open(next, opts, nopts, ret, why, sizeof why);
    if (r < 0)
        snprintf(err, err_size, "filter %s: %s", t->name, why);
    return r;
}

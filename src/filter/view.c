/*
 * The part of a store that a tenant may know of: the containers of a list. What is not in it does not exist, and the
 * store below is not even asked for it, so that neither an answer nor its time tells whether it does.
 *
 * Only administration is looked at: an open container, and a queue, are the lower store's own.
 */
#include "filter/filter.h"
#include "quota.h"

#include "store/perm.h"

#include <errno.h>
#include <string.h>

struct rule {
    char pool[PST_LABEL_MAX + 1], label[PST_LABEL_MAX + 1]; /* label "": every container of the pool */
};

struct view {
    struct filter f;
    bool shared; /* the lower store is not closed */
    size_t n;
    struct rule rules[]; /* in order, each once; a pool with "" has no other */
};

static const struct pst_ctx trusted;

static int parse_rule(const char *s, struct rule *ret)
{
    const char *slash = strchr(s, '/');
    size_t n = slash ? (size_t)(slash - s) : 0;

    if (!n || n > PST_LABEL_MAX || strlen(slash + 1) > PST_LABEL_MAX)
        return -EINVAL;
    memcpy(ret->pool, s, n);
    ret->pool[n] = 0;
    strcpy(ret->label, strcmp(slash + 1, "*") ? slash + 1 : "");
    if (pst_label_check(ret->pool) < 0 || (strcmp(slash + 1, "*") && pst_label_check(ret->label) < 0))
        return -EINVAL;
    return 0;
}

int filter_view_check(const char *container)
{
    struct rule r;
    return parse_rule(container, &r);
}

static struct view *view_of(struct pst_store *st)
{
    return container_of(st, struct view, f.st);
}

/* The first rule of the pool; NULL: the pool is not there. */
static const struct rule *rules_of(const struct view *v, const char *pool)
{
    for (size_t i = 0; i < v->n; i++)
        if (!strcmp(v->rules[i].pool, pool))
            return &v->rules[i];
    return NULL;
}

/* The next rule of the same pool. */
static const struct rule *next_of(const struct view *v, const struct rule *r)
{
    return r + 1 < v->rules + v->n && !strcmp(r[1].pool, r->pool) ? r + 1 : NULL;
}

/* 0, -ENOENT: there is no such pool; -EPERM: there is, but no such container. */
static int allowed(const struct view *v, const char *pool, const char *label)
{
    const struct rule *r = rules_of(v, pool);

    if (!r)
        return -ENOENT;
    for (; r; r = next_of(v, r))
        if (!*r->label || !strcmp(r->label, label))
            return 0;
    return -EPERM;
}

static void view_close(struct pst_store *st)
{
    struct view *v = view_of(st);

    if (!v->shared)
        pst_store_close(st->next);
    free(v);
}

/* ---- pools ---- */

static int view_pool_create(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                            struct pst_pool_info *ret)
{
    (void)st, (void)ctx, (void)in, (void)ret;
    return -EPERM;
}

static int view_pool_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force)
{
    (void)ctx, (void)force;
    return rules_of(view_of(st), pool) ? -EPERM : -ENOENT;
}

/* What of a pool's figures is the tenant's. */
static int narrow(struct view *v, const struct rule *r, struct pst_pool_info *info)
{
    if (!*r->label)
        return 0;
    info->used_bytes = info->objects = info->quota_bytes = 0;
    info->containers = 0;
    for (; r; r = next_of(v, r)) {
        struct pst_cont_info c;
        int e = pst_cont_query(v->f.st.next, &trusted, r->pool, r->label, &c);
        if (e == -ENOENT)
            continue;
        if (e < 0)
            return e;
        info->used_bytes += c.used_bytes;
        info->objects += c.objects;
        info->containers++;
    }
    return 0;
}

static int view_pool_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, struct pst_pool_info *ret)
{
    struct view *v = view_of(st);
    const struct rule *r = rules_of(v, pool);
    struct pst_pool_info info;
    int e = r ? pst_pool_query(st->next, ctx, pool, &info) : -ENOENT;

    if (e == 0)
        e = narrow(v, r, &info);
    if (e == 0)
        *ret = info;
    return e;
}

static int view_pool_list(struct pst_store *st, const struct pst_ctx *ctx, const char *after,
                          int (*fn)(const struct pst_pool_info *, void *), void *user)
{
    struct view *v = view_of(st);

    for (size_t i = 0; i < v->n; i++) {
        struct pst_pool_info info;
        int e;
        if (strcmp(v->rules[i].pool, after) <= 0 || (i && !strcmp(v->rules[i].pool, v->rules[i - 1].pool)))
            continue;
        e = view_pool_query(st, ctx, v->rules[i].pool, &info);
        if (e == -ENOENT || e == -EACCES)
            continue;
        if (e < 0)
            return e;
        if (fn(&info, user))
            break;
    }
    return 0;
}

/* ---- containers ---- */

static int view_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                            const struct pst_cont_props *props, struct pst_cont_info *ret)
{
    int e = allowed(view_of(st), pool, label);
    return e < 0 ? e : pst_cont_create(st->next, ctx, pool, label, props, ret);
}

static int view_cont_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                           struct pst_cont_info *ret)
{
    return allowed(view_of(st), pool, label) < 0 ? -ENOENT : pst_cont_query(st->next, ctx, pool, label, ret);
}

static int view_cont_list(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *after,
                          int (*fn)(const struct pst_cont_info *, void *), void *user)
{
    struct view *v = view_of(st);
    const struct rule *r = rules_of(v, pool);
    struct pst_pool_info may;
    int e;

    if (!r)
        return -ENOENT;
    if (!*r->label)
        return pst_cont_list(st->next, ctx, pool, after, fn, user);
    e = pst_pool_query(st->next, ctx, pool, &may); /* may the caller list it? */
    for (; e == 0 && r; r = next_of(v, r)) {
        struct pst_cont_info info;
        if (strcmp(r->label, after) <= 0)
            continue;
        e = pst_cont_query(st->next, ctx, pool, r->label, &info);
        if (e == -ENOENT || e == -EACCES) {
            e = 0;
            continue;
        }
        if (e == 0 && fn(&info, user))
            break;
    }
    return e;
}

static int view_cont_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label)
{
    return allowed(view_of(st), pool, label) < 0 ? -ENOENT : pst_cont_destroy(st->next, ctx, pool, label);
}

static int view_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                          struct pst_cont **ret)
{
    return allowed(view_of(st), pool, label) < 0 ? -ENOENT : pst_cont_open(st->next, ctx, pool, label, ret);
}

static int view_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    return pst_queue_open(st->next, depth, ret);
}

/* ---- what is the whole store's ---- */

static void view_stats(struct pst_store *st, pst_stat_fn fn, void *user)
{
    struct amount a;

    if (amount_in_use(st, &a) < 0)
        return;
    fn(user, "penstock_tenant_used_bytes", "", "Space in the tenant's containers.", false, (double)a.bytes);
    fn(user, "penstock_tenant_objects", "", "Objects in the tenant's containers.", false, (double)a.objects);
}

static void view_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user)
{
    (void)st, (void)fn, (void)user; /* the engine's facts are the server's */
}

static int64_t view_scrub(struct pst_store *st,
                          void (*report)(void *, const char *, const char *, uint64_t, uint64_t, uint64_t), void *user,
                          const volatile bool *cancel)
{
    (void)st, (void)report, (void)user, (void)cancel;
    return -EPERM;
}

static int view_backup(struct pst_store *st, const char *dir)
{
    (void)st, (void)dir;
    return -EPERM;
}

static int compare(const void *a_, const void *b_)
{
    const struct rule *a = a_, *b = b_;
    int r = strcmp(a->pool, b->pool);
    return r ? r : strcmp(a->label, b->label);
}

/* A rule that an earlier one has said already. */
static bool said(const struct rule *before, const struct rule *r)
{
    return !strcmp(before->pool, r->pool) && (!*before->label || !strcmp(before->label, r->label));
}

int filter_view(struct pst_store *next, const char *const *containers, size_t n, bool shared, struct pst_store **ret)
{
    struct view *v = calloc(1, sizeof *v + n * sizeof *v->rules);
    int r = v ? 0 : -ENOMEM;
    size_t kept = 0;

    for (size_t i = 0; r == 0 && i < n; i++)
        r = parse_rule(containers[i], &v->rules[i]);
    if (r < 0) {
        free(v);
        return r;
    }
    qsort(v->rules, n, sizeof *v->rules, compare);
    for (size_t i = 0; i < n; i++)
        if (!kept || !said(&v->rules[kept - 1], &v->rules[i]))
            v->rules[kept++] = v->rules[i];
    v->n = kept;
    v->shared = shared;
    filter_init(&v->f, "view", next);
    v->f.ops.close = view_close;
    v->f.ops.pool_create = view_pool_create;
    v->f.ops.pool_query = view_pool_query;
    v->f.ops.pool_list = view_pool_list;
    v->f.ops.pool_destroy = view_pool_destroy;
    v->f.ops.cont_create = view_cont_create;
    v->f.ops.cont_query = view_cont_query;
    v->f.ops.cont_list = view_cont_list;
    v->f.ops.cont_destroy = view_cont_destroy;
    v->f.ops.cont_open = view_cont_open;
    v->f.ops.queue_open = view_queue_open;
    v->f.ops.stats = view_stats;
    v->f.ops.describe = view_describe;
    v->f.ops.scrub = view_scrub;
    v->f.ops.backup = view_backup;
    v->f.ops.moves_only = true;
    v->f.ops.passes_far = true;
    *ret = &v->f.st;
    return 0;
}

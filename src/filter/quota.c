/*
 * Space and objects that all containers of the store below may take together. Who is over it gets -EDQUOT.
 *
 * The store below knows what is in use, exactly, also after a restart; but to ask it costs. So `used` is what it said
 * the last time, and `since` the most that everything begun since then can have added: as long as both and the next
 * change fit, nobody is asked. Never is more in use than their sum, so the limit holds; and nothing is refused before
 * the store was asked anew. What is under way then counts twice for that moment: at worst a change is refused that
 * would just fit.
 *
 * What a change needs is at most its own length. Where that does not fit, it is looked at closer: who writes over bytes
 * that a file has already (it has no holes) needs nothing, and may at the limit, too.
 */
#include "filter/filter.h"
#include "quota.h"

#include "base/parse.h"
#include "base/util.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct quota {
    struct filter f;
    _Atomic uint64_t refused;
    pthread_mutex_t mu; /* guards the rest; held while the store below is asked */
    struct amount max;  /* UINT64_MAX: no limit */
    bool known;
    struct amount used, since, under_way;
};

static const struct pst_ctx trusted;

static struct quota *quota_of(struct pst_store *st)
{
    return container_of(st, struct quota, f.st);
}

static int add_pool(const struct pst_pool_info *p, void *user)
{
    struct amount *a = user;
    a->bytes += p->used_bytes;
    a->objects += p->objects;
    return 0;
}

int amount_in_use(struct pst_store *st, struct amount *ret)
{
    struct amount a = {0};
    int r = pst_pool_list(st, &trusted, "", add_pool, &a);

    if (r == 0)
        *ret = a;
    return r;
}

static struct amount limits_of(struct pst_store *st)
{
    struct quota *q = quota_of(st);

    scoped_lock(&q->mu);
    return q->max;
}

static bool fits(uint64_t used, uint64_t since, uint64_t add, uint64_t max)
{
    return !add || (used <= max && since <= max - used && add <= max - used - since);
}

/* Needs mu. */
static bool all_fits(const struct quota *q, struct amount add)
{
    return q->known && fits(q->used.bytes, q->since.bytes, add.bytes, q->max.bytes) &&
           fits(q->used.objects, q->since.objects, add.objects, q->max.objects);
}

static int take(struct quota *q, struct amount add)
{
    scoped_lock(&q->mu);
    if (!all_fits(q, add)) {
        int r = amount_in_use(q->f.st.next, &q->used);
        if (r < 0)
            return r;
        q->known = true;
        q->since = q->under_way;
        if (!all_fits(q, add))
            return -EDQUOT;
    }
    q->since.bytes += add.bytes;
    q->since.objects += add.objects;
    q->under_way.bytes += add.bytes;
    q->under_way.objects += add.objects;
    return 0;
}

/* The change has happened, or failed: the next question to the store counts it. */
static void give(struct quota *q, struct amount a)
{
    scoped_lock(&q->mu);
    q->under_way.bytes -= a.bytes;
    q->under_way.objects -= a.objects;
}

static int refuse(struct quota *q)
{
    atomic_fetch_add_explicit(&q->refused, 1, memory_order_relaxed);
    return -EDQUOT;
}

/* Whole blocks that bytes [from, from + len) touch, in bytes. */
static uint64_t blocks(uint64_t from, uint64_t len)
{
    uint64_t first = from / PST_BLOCK, end = (from + len + PST_BLOCK - 1) / PST_BLOCK;
    return len ? (end - first) * PST_BLOCK : 0;
}

/* Space for bytes [from, from + len) of a file; ret: what was taken. APPEND: from is not looked at. */
static int take_range(struct quota *q, struct pst_cont *next, uint64_t ino, bool append, uint64_t from, uint64_t len,
                      struct amount *ret)
{
    struct amount a = {.bytes = append ? blocks(PST_BLOCK - 1, len) : blocks(from, len)};
    struct pst_attr attr;
    uint64_t end;
    int r = take(q, a);

    if (r == -EDQUOT && pst_store_getattr(next, &trusted, ino, &attr) == 0) {
        end = blocks(0, max_u64(attr.size, (append ? attr.size : from) + len));
        a.bytes = min_u64(a.bytes, end > attr.used ? end - attr.used : 0);
        r = take(q, a);
    }
    if (r == 0)
        *ret = a;
    return r == -EDQUOT ? refuse(q) : r;
}

/* ---- names ---- */

/* One object more. 0: taken; 1: not needed, for the name is there (or the request was done before); -errno. */
static int take_object(struct quota *q, struct pst_cont *next, const struct pst_ctx *ctx, uint64_t parent,
                       const char *name)
{
    struct pst_attr attr;
    struct pst_ctx look = {.walk = ctx ? ctx->walk : NULL};
    int r = take(q, (struct amount){.objects = 1});

    if (r != -EDQUOT)
        return r;
    return pst_store_lookup(next, &look, parent, name, &attr) == 0 ? 1 : refuse(q);
}

static void give_object(struct quota *q, int taken)
{
    if (taken == 0)
        give(q, (struct amount){.objects = 1});
}

static int quota_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                      const struct pst_new *in, struct pst_attr *ret, bool *ret_created)
{
    struct quota *q = quota_of(c->store);
    int taken = take_object(q, c->next, ctx, parent, name);
    int r = taken < 0 ? taken : pst_store_make(c->next, ctx, parent, name, in, ret, ret_created);

    give_object(q, taken);
    return r;
}

static int quota_create(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                        const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created)
{
    struct quota *q = quota_of(c->store);
    int taken = take_object(q, c->next, ctx, parent, name);
    int r = taken < 0 ? taken
                      : pst_store_create(c->next, ctx, parent, name, in, accmode, trunc, ret, ret_created);

    give_object(q, taken);
    return r;
}

static int quota_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                             const struct pst_cont_props *props, struct pst_cont_info *ret)
{
    struct quota *q = quota_of(st);
    struct pst_cont_info info;
    int taken = take(q, (struct amount){.objects = 1}), r = taken; /* its root */

    if (r == -EDQUOT) { /* who has asked before, or for a name that is there, hears what it would have heard */
        r = pst_cont_query(st->next, ctx, pool, label, &info);
        r = r == -ENOENT ? refuse(q) : r;
    }
    if (r == 0)
        r = pst_cont_create(st->next, ctx, pool, label, props, ret);
    give_object(q, taken);
    return r;
}

static int quota_statfs(struct pst_cont *c, struct pst_statfs *ret)
{
    const struct amount max = limits_of(c->store);
    struct amount used;
    struct pst_statfs s;
    int r = pst_store_statfs(c->next, &s);

    if (r == 0 && max.bytes != UINT64_MAX) {
        r = amount_in_use(c->store->next, &used);
        if (r == 0) {
            s.total_bytes = min_u64(s.total_bytes, max.bytes);
            s.free_bytes = min_u64(s.free_bytes, max.bytes - min_u64(used.bytes, max.bytes));
        }
    }
    if (r == 0)
        *ret = s;
    return r;
}

/* ---- data ---- */

static int quota_write(struct pst_cont *c, uint64_t ino, uint64_t offset, const void *data, size_t len, uint32_t flags)
{
    struct quota *q = quota_of(c->store);
    struct amount a;
    int r = take_range(q, c->next, ino, false, offset, len, &a);

    if (r < 0)
        return r;
    r = pst_store_write(c->next, ino, offset, data, len, flags);
    give(q, a);
    return r;
}

static int quota_read_now(struct pst_op *op)
{
    struct pst_cont *c = op->cont;
    int r;

    op->cont = c->next;
    r = pst_store_read_now(op);
    op->cont = c;
    return r;
}

/* 0 and what was taken for it; -errno. */
static int take_op(struct quota *q, const struct pst_op *op, struct amount *ret)
{
    struct pst_cont *next = op->cont ? op->cont->next : NULL;

    switch (op->kind) {
    case PST_OP_WRITE:
        return take_range(q, next, op->ino, (op->flags & PST_OPF_APPEND) != 0, op->offset, op->length, ret);
    case PST_OP_ALLOCATE:
        return take_range(q, next, op->ino, false, op->offset, op->length, ret);
    case PST_OP_CHUNK_REPLACE:
        return take_range(q, next, op->ino, false, op->offset * next->info.props.chunk_size, op->length, ret);
    default:
        *ret = (struct amount){0};
        return 0;
    }
}

static int quota_submit(struct pst_queue *pq, struct pst_op *op)
{
    struct filter_queue *fq = container_of(pq, struct filter_queue, q);
    struct quota *q = quota_of(pq->store);
    struct filter_frame *f = filter_frame_take(fq, op);
    struct amount a;
    int r;

    if (!f)
        return -EAGAIN;
    r = take_op(q, op, &a);
    if (r == 0) {
        f->taken_bytes = a.bytes;
        r = filter_frame_submit(fq, f);
        if (r < 0)
            give(q, a);
    }
    if (r < 0)
        filter_frame_drop(fq, f);
    return r;
}

static int quota_reap(struct pst_queue *pq, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    struct filter_queue *fq = container_of(pq, struct filter_queue, q);
    int n = pst_queue_reap(fq->next, ret_ops, max, timeout_ns);

    for (int i = 0; i < n; i++) {
        struct filter_frame *f = filter_frame_back(ret_ops[i]);
        if (f->taken_bytes)
            give(quota_of(pq->store), (struct amount){.bytes = f->taken_bytes});
        ret_ops[i] = filter_frame_drop(fq, f);
    }
    return n;
}

/* ---- status ---- */

static void quota_stats(struct pst_store *st, pst_stat_fn fn, void *user)
{
    struct quota *q = quota_of(st);
    const struct amount max = limits_of(st);

    pst_store_stats(st->next, fn, user);
    if (max.bytes != UINT64_MAX)
        fn(user, "penstock_quota_bytes", "", "Space that may be in use.", false, (double)max.bytes);
    if (max.objects != UINT64_MAX)
        fn(user, "penstock_quota_objects", "", "Objects that may be there.", false, (double)max.objects);
    fn(user, "penstock_quota_refused_total", "", "Changes refused for want of quota.", true,
       (double)atomic_load_explicit(&q->refused, memory_order_relaxed));
}

static void quota_describe(struct pst_store *st, void (*fn)(void *user, const char *key, const char *value), void *user)
{
    const struct amount max = limits_of(st);
    char n[24];

    pst_store_describe(st->next, fn, user);
    if (max.bytes != UINT64_MAX) {
        snprintf(n, sizeof n, "%llu", (unsigned long long)max.bytes);
        fn(user, "quota.bytes", n);
    }
    if (max.objects != UINT64_MAX) {
        snprintf(n, sizeof n, "%llu", (unsigned long long)max.objects);
        fn(user, "quota.objects", n);
    }
}

static void quota_close(struct pst_store *st)
{
    struct quota *q = quota_of(st);

    pst_store_close(st->next);
    pthread_mutex_destroy(&q->mu);
    free(q);
}

void filter_quota_set(struct pst_store *st, uint64_t bytes, uint64_t objects)
{
    struct quota *q = quota_of(st);

    scoped_lock(&q->mu);
    q->max = (struct amount){bytes ? bytes : UINT64_MAX, objects ? objects : UINT64_MAX};
}

int filter_quota(struct pst_store *next, uint64_t bytes, uint64_t objects, struct pst_store **ret)
{
    struct quota *q = calloc(1, sizeof *q);

    if (!q)
        return -ENOMEM;
    q->max = (struct amount){bytes ? bytes : UINT64_MAX, objects ? objects : UINT64_MAX};
    pthread_mutex_init(&q->mu, NULL);
    filter_init(&q->f, "quota", next);
    q->f.ops.close = quota_close;
    q->f.ops.cont_create = quota_cont_create;
    q->f.ops.make = quota_make;
    q->f.ops.create = quota_create;
    q->f.ops.statfs = quota_statfs;
    q->f.ops.write = quota_write;
    q->f.ops.read_now = quota_read_now;
    q->f.ops.queue_submit = quota_submit;
    q->f.ops.queue_reap = quota_reap;
    q->f.ops.moves_only = true;
    q->f.ops.passes_far = true;
    q->f.ops.stats = quota_stats;
    q->f.ops.describe = quota_describe;
    *ret = &q->f.st;
    return 0;
}

static int quota_open(struct pst_store *next, const struct pst_option *opts, size_t nopts, struct pst_store **ret,
                      char *err, size_t err_size)
{
    uint64_t bytes = 0, objects = 0;

    for (size_t i = 0; i < nopts; i++) {
        int r = 0;
        if (!strcmp(opts[i].key, "bytes")) {
            if (parse_size(opts[i].value, &bytes) < 0 || !bytes) {
                snprintf(err, err_size, "bytes=%.40s: must be a size (64M, 10G, ...)", opts[i].value);
                return -EINVAL;
            }
        } else if (!strcmp(opts[i].key, "objects")) {
            r = filter_number(&opts[i], 1, UINT64_MAX - 1, &objects, err, err_size);
        } else {
            snprintf(err, err_size, "unknown option \"%.40s\"; known: bytes, objects", opts[i].key);
            return -EINVAL;
        }
        if (r < 0)
            return r;
    }
    if (!bytes && !objects) {
        snprintf(err, err_size, "needs bytes=SIZE or objects=N");
        return -EINVAL;
    }
    return filter_quota(next, bytes, objects, ret);
}

const struct filter_type filter_type_quota = {
    "quota", "limits space and objects of the whole store: bytes=SIZE, objects=N; over it: EDQUOT", quota_open};

/* PoolService and ContainerService. */
#include "service_priv.h"

#include <errno.h>
#include <string.h>

static int take_label(struct ctl_req *q, const char *label, char *dst)
{
    size_t n = strlen(label);
    if (!n || n > PST_LABEL_MAX)
        return ctl_fail(q, -EINVAL, "a label has 1..%u characters", PST_LABEL_MAX);
    memcpy(dst, label, n + 1);
    return 0;
}

/* ---- pools ---- */

static int fill_pool(struct ctl_req *q, const struct pst_pool_info *in, PB(Pool) * out)
{
    out->label = arena_copy(&q->a, in->label, strlen(in->label));
    out->quota_bytes = in->quota_bytes;
    out->used_bytes = in->used_bytes;
    out->objects = in->objects;
    out->containers = in->containers;
    out->uid = in->uid;
    out->gid = in->gid;
    out->mode = in->mode;
    return out->label ? ctl_bytes(q, in->uuid, sizeof in->uuid, &out->uuid) : -ENOMEM;
}

static int pool_create(struct ctl_req *q, const void *in_, void *out)
{
    const PB(PoolCreateRequest) *in = in_;
    struct pst_pool_info info = {0}, ret;
    int r;

    ctl_act(q, "pool_create", "%.*s", PST_LABEL_MAX, in->pool ? in->pool->label : "");
    r = ctl_need_admin_header(q, in->header);
    if (!r)
        r = ctl_need_admin(q);
    if (!r && !in->pool)
        r = ctl_fail(q, -EINVAL, "no pool");
    if (!r)
        r = take_label(q, in->pool->label, info.label);
    if (r)
        return r;
    info.quota_bytes = in->pool->quota_bytes;
    info.uid = in->pool->uid;
    info.gid = in->pool->gid;
    info.mode = in->pool->mode;
    if (info.mode & ~0777u)
        return ctl_fail(q, -EINVAL, "mode %o: permission bits only", info.mode);
    r = pst_pool_create(q->tenant->in.st, &q->ctx, &info, &ret);
    return r ? r : fill_pool(q, &ret, out);
}

static int pool_query(struct ctl_req *q, const void *in_, void *out)
{
    const PB(PoolQueryRequest) *in = in_;
    struct pst_pool_info info;
    int r = ctl_need_admin_header(q, in->header);

    if (!r)
        r = pst_pool_query(q->tenant->in.st, &q->ctx, in->label, &info);
    return r ? r : fill_pool(q, &info, out);
}

/* A page of a listing under way. */
struct page {
    struct ctl_req *q;
    void **items;
    uint32_t n, limit;
    bool more;
    int err;
};

static int page_init(struct ctl_req *q, uint32_t limit, struct page *ret)
{
    *ret = (struct page){.q = q, .limit = limit && limit < CTL_LIST_MAX ? limit : CTL_LIST_MAX};
    ret->items = arena_alloc(&q->a, ret->limit * sizeof *ret->items);
    return ret->items ? 0 : -ENOMEM;
}

/* Room for one more item, or NULL: the listing ends. */
static void *page_add(struct page *p, size_t size)
{
    if (p->n == p->limit) {
        p->more = true;
        return NULL;
    }
    p->err = p->n % 64 ? 0 : ctl_still_wanted(p->q);
    p->items[p->n] = p->err ? NULL : arena_alloc(&p->q->a, size);
    if (!p->items[p->n]) {
        p->err = p->err ? p->err : -ENOMEM;
        return NULL;
    }
    return p->items[p->n++];
}

static int on_pool(const struct pst_pool_info *info, void *user)
{
    struct page *p = user;
    PB(Pool) *m = page_add(p, sizeof *m);

    if (!m)
        return 1;
    penstock__v1__pool__init(m);
    p->err = fill_pool(p->q, info, m);
    return p->err != 0;
}

static int pool_list(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(PoolListRequest) *in = in_;
    PB(PoolListReply) *out = out_;
    struct page p;
    int r = ctl_need_admin_header(q, in->header);

    if (!r)
        r = page_init(q, in->limit, &p);
    if (!r)
        r = pst_pool_list(q->tenant->in.st, &q->ctx, in->after, on_pool, &p);
    if (r < 0 || p.err)
        return r < 0 ? r : p.err;
    out->pools = (PB(Pool) **)p.items;
    out->n_pools = p.n;
    out->more = p.more;
    return 0;
}

static int pool_destroy(struct ctl_req *q, const void *in_, void *out)
{
    const PB(PoolDestroyRequest) *in = in_;
    int r;
    (void)out;

    ctl_act(q, "pool_destroy", "%.*s", PST_LABEL_MAX, in->label);
    r = ctl_need_admin_header(q, in->header);
    if (!r)
        r = ctl_need_admin(q);
    return r ? r : pst_pool_destroy(q->tenant->in.st, &q->ctx, in->label, in->force);
}

/* ---- containers ---- */

static int fill_cont(struct ctl_req *q, const struct pst_cont_info *in, PB(Container) * out)
{
    out->label = arena_copy(&q->a, in->label, strlen(in->label));
    out->pool = arena_copy(&q->a, in->pool, strlen(in->pool));
    out->id = in->id;
    out->chunk_size = in->props.chunk_size;
    out->quota_bytes = in->props.quota_bytes;
    out->uid = in->props.uid;
    out->gid = in->props.gid;
    out->mode = in->props.mode;
    out->used_bytes = in->used_bytes;
    out->objects = in->objects;
    out->created_ns = in->created_ns;
    out->checksum = (char *)"crc32c";
    return out->label && out->pool ? ctl_bytes(q, in->uuid, sizeof in->uuid, &out->uuid) : -ENOMEM;
}

/* The root directory's owner: who creates it, unless an administrator says otherwise. */
static int take_owner(struct ctl_req *q, const PB(Container) * in, struct pst_cont_props *props)
{
    props->uid = in->uid;
    props->gid = in->gid;
    if (ctl_is_admin(q))
        return 0;
    if (!in->uid && !in->gid) {
        props->uid = q->cred.uid;
        props->gid = q->cred.gid;
    } else if (in->uid != q->cred.uid || in->gid != q->cred.gid) {
        return ctl_fail(q, -EPERM, "only an administrator creates containers for others");
    }
    return 0;
}

static int cont_create(struct ctl_req *q, const void *in_, void *out)
{
    const PB(ContainerCreateRequest) *in = in_;
    const PB(Container) *c = in->container;
    struct pst_cont_props props = {0};
    struct pst_cont_info info;
    int r;

    if (c)
        ctl_act(q, "container_create", "%.*s/%.*s", PST_LABEL_MAX, c->pool, PST_LABEL_MAX, c->label);
    r = ctl_need_admin_header(q, in->header);
    if (!r && !c)
        r = ctl_fail(q, -EINVAL, "no container");
    if (!r)
        r = take_owner(q, c, &props);
    if (r)
        return r;
    if (*c->checksum && strcmp(c->checksum, "crc32c"))
        return ctl_fail(q, -EINVAL, "checksum: crc32c is the only one");
    props.chunk_size = c->chunk_size;
    props.quota_bytes = c->quota_bytes;
    props.mode = c->mode;
    if (props.chunk_size &&
        (props.chunk_size < PST_CHUNK_MIN || props.chunk_size > PST_CHUNK_MAX || !is_pow2(props.chunk_size)))
        return ctl_fail(q, -EINVAL, "chunk_size: a power of two, 64 KiB to 16 MiB");
    r = pst_cont_create(q->tenant->in.st, &q->ctx, c->pool, c->label, &props, &info);
    return r ? r : fill_cont(q, &info, out);
}

static int cont_query(struct ctl_req *q, const void *in_, void *out)
{
    const PB(ContainerQueryRequest) *in = in_;
    struct pst_cont_info info;
    int r = ctl_need_admin_header(q, in->header);

    if (!r)
        r = pst_cont_query(q->tenant->in.st, &q->ctx, in->pool, in->label, &info);
    /* Of an agent: its own, and those that the store behind it has besides the agent. */
    if (!r)
        ((PB(Container) *)out)->mounts =
            sess_cont_mounts(q->s->sess, info.id) + (info.mounts > 1 ? info.mounts - 1 : 0);
    return r ? r : fill_cont(q, &info, out);
}

static int on_cont(const struct pst_cont_info *info, void *user)
{
    struct page *p = user;
    PB(Container) *m = page_add(p, sizeof *m);

    if (!m)
        return 1;
    penstock__v1__container__init(m);
    p->err = fill_cont(p->q, info, m);
    return p->err != 0;
}

static int cont_list(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(ContainerListRequest) *in = in_;
    PB(ContainerListReply) *out = out_;
    struct page p;
    int r = ctl_need_admin_header(q, in->header);

    if (!r)
        r = page_init(q, in->limit, &p);
    if (!r)
        r = pst_cont_list(q->tenant->in.st, &q->ctx, in->pool, in->after, on_cont, &p);
    if (r < 0 || p.err)
        return r < 0 ? r : p.err;
    out->containers = (PB(Container) **)p.items;
    out->n_containers = p.n;
    out->more = p.more;
    return 0;
}

static int cont_destroy(struct ctl_req *q, const void *in_, void *out)
{
    const PB(ContainerDestroyRequest) *in = in_;
    int r;
    (void)out;

    ctl_act(q, "container_destroy", "%.*s/%.*s", PST_LABEL_MAX, in->pool, PST_LABEL_MAX, in->label);
    r = ctl_need_admin_header(q, in->header);
    return r ? r : pst_cont_destroy(q->tenant->in.st, &q->ctx, in->pool, in->label);
}

static int cont_open(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(ContainerOpenRequest) *in = in_;
    PB(ContainerOpenReply) *out = out_;
    struct pst_cont *c;
    int r = ctl_need_admin_header(q, in->header);

    if (!r)
        r = pst_cont_open(q->tenant->in.st, &q->ctx, in->pool, in->label, &c);
    if (r)
        return r;
    out->container = arena_alloc(&q->a, sizeof *out->container);
    r = out->container ? 0 : -ENOMEM;
    if (!r) {
        penstock__v1__container__init(out->container);
        r = fill_cont(q, &c->info, out->container);
    }
    if (!r)
        r = sess_cont_add(q->s->sess, q->sess, c, c->info.id, &out->handle);
    if (r) {
        pst_cont_close(c);
        return r;
    }
    out->mounts = sess_cont_mounts(q->s->sess, out->container->id);
    return 0;
}

static int cont_close(struct ctl_req *q, const void *in_, void *out)
{
    const PB(ContainerCloseRequest) *in = in_;
    int r = ctl_need_admin_header(q, in->header);
    (void)out;
    return r ? r : sess_cont_close(q->s->sess, q->sess, in->handle, q->slot, q->ctx.id.seq);
}

#define POOL    "/penstock.v1.PoolService/"
#define CONT    "/penstock.v1.ContainerService/"
#define D(name) &penstock__v1__##name##__descriptor
const struct ctl_method ctl_admin_methods[] = {
    {POOL "Create", D(pool_create_request), D(pool), pool_create},
    {POOL "Query", D(pool_query_request), D(pool), pool_query},
    {POOL "List", D(pool_list_request), D(pool_list_reply), pool_list},
    {POOL "Destroy", D(pool_destroy_request), D(empty), pool_destroy},
    {CONT "Create", D(container_create_request), D(container), cont_create},
    {CONT "Query", D(container_query_request), D(container), cont_query},
    {CONT "List", D(container_list_request), D(container_list_reply), cont_list},
    {CONT "Destroy", D(container_destroy_request), D(empty), cont_destroy},
    {CONT "Open", D(container_open_request), D(container_open_reply), cont_open},
    {CONT "Close", D(container_close_request), D(empty), cont_close},
};
const size_t ctl_admin_nmethods = ARRAY_SIZE(ctl_admin_methods);

/* Pools and containers: unary calls. */
#include "remote.h"

#include "penstock/v1/admin.pb-c.h"

#include <stdio.h>

#define POOLS "/penstock.v1.PoolService/"
#define CONTS "/penstock.v1.ContainerService/"
#define TEXT(s) ((char *)(uintptr_t)(s))

static int call(struct pst_store *st, const char *path, ProtobufCMessage *req, const struct pst_ctx *ctx, bool record,
                const ProtobufCMessageDescriptor *reply, ProtobufCMessage **ret)
{
    return session_unary(remote_of(st)->session, path, req, ctx->cred, record ? &ctx->id : NULL, record, false, reply,
                         ret, NULL);
}

static int label_of(const char *in, char ret[PST_LABEL_MAX + 1])
{
    size_t n = strnlen(in, PST_LABEL_MAX + 1);

    if (n > PST_LABEL_MAX)
        return -EBADMSG;
    memcpy(ret, in, n + 1);
    return 0;
}

static int pool_of(const PB(Pool) *in, struct pst_pool_info *ret)
{
    struct pst_pool_info p = {.quota_bytes = in->quota_bytes, .used_bytes = in->used_bytes, .objects = in->objects,
                              .containers = in->containers, .uid = in->uid, .gid = in->gid, .mode = in->mode};

    if (label_of(in->label, p.label) < 0 || in->uuid.len != sizeof p.uuid)
        return -EBADMSG;
    memcpy(p.uuid, in->uuid.data, sizeof p.uuid);
    *ret = p;
    return 0;
}

static int cont_of(const PB(Container) *in, struct pst_cont_info *ret)
{
    struct pst_cont_info c = {
        .id = in->id, .props = {in->chunk_size, in->quota_bytes, in->uid, in->gid, in->mode},
        .used_bytes = in->used_bytes, .objects = in->objects, .created_ns = in->created_ns,
        .mounts = in->mounts};

    if (label_of(in->label, c.label) < 0 || label_of(in->pool, c.pool) < 0 || in->uuid.len != sizeof c.uuid ||
        in->chunk_size < PST_CHUNK_MIN || in->chunk_size > PST_CHUNK_MAX || !is_pow2(in->chunk_size))
        return -EBADMSG;
    memcpy(c.uuid, in->uuid.data, sizeof c.uuid);
    *ret = c;
    return 0;
}

/* The reply is a Pool. */
static int pool_call(struct pst_store *st, const char *path, ProtobufCMessage *req, const struct pst_ctx *ctx,
                     bool record, struct pst_pool_info *ret)
{
    ProtobufCMessage *m;
    int r = call(st, path, req, ctx, record, &penstock__v1__pool__descriptor, &m);

    if (r == 0) {
        r = pool_of((PB(Pool) *)m, ret);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    return r;
}

static int cont_call(struct pst_store *st, const char *path, ProtobufCMessage *req, const struct pst_ctx *ctx,
                     bool record, struct pst_cont_info *ret)
{
    ProtobufCMessage *m;
    int r = call(st, path, req, ctx, record, &penstock__v1__container__descriptor, &m);

    if (r == 0) {
        r = cont_of((PB(Container) *)m, ret);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    return r;
}

static int empty_call(struct pst_store *st, const char *path, ProtobufCMessage *req, const struct pst_ctx *ctx)
{
    ProtobufCMessage *m;
    int r = call(st, path, req, ctx, true, &penstock__v1__empty__descriptor, &m);

    if (r == 0)
        protobuf_c_message_free_unpacked(m, NULL);
    return r;
}

/* ---- pools ---- */

int remote_pool_create(struct pst_store *st, const struct pst_ctx *ctx, const struct pst_pool_info *in,
                       struct pst_pool_info *ret)
{
    PB(PoolCreateRequest) req = PENSTOCK__V1__POOL_CREATE_REQUEST__INIT;
    PB(Pool) pool = PENSTOCK__V1__POOL__INIT;

    pool.label = TEXT(in->label);
    pool.quota_bytes = in->quota_bytes;
    pool.uid = in->uid;
    pool.gid = in->gid;
    pool.mode = in->mode;
    req.pool = &pool;
    return pool_call(st, POOLS "Create", &req.base, ctx, true, ret);
}

int remote_pool_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, struct pst_pool_info *ret)
{
    PB(PoolQueryRequest) req = PENSTOCK__V1__POOL_QUERY_REQUEST__INIT;

    req.label = TEXT(pool);
    return pool_call(st, POOLS "Query", &req.base, ctx, false, ret);
}

/* One page; 1: there is more after `after`. */
static int pool_page(struct pst_store *st, const struct pst_ctx *ctx, char after[PST_LABEL_MAX + 1],
                     int (*fn)(const struct pst_pool_info *, void *), void *user)
{
    PB(PoolListRequest) req = PENSTOCK__V1__POOL_LIST_REQUEST__INIT;
    PB(PoolListReply) * out;
    ProtobufCMessage *m;
    bool enough = false;
    int r;

    req.after = after;
    r = call(st, POOLS "List", &req.base, ctx, false, &penstock__v1__pool_list_reply__descriptor, &m);
    if (r < 0)
        return r;
    out = (PB(PoolListReply) *)m;
    for (size_t i = 0; i < out->n_pools && r == 0 && !enough; i++) {
        struct pst_pool_info p;
        r = pool_of(out->pools[i], &p);
        if (r < 0)
            break;
        memcpy(after, p.label, sizeof p.label);
        enough = fn(&p, user) != 0;
    }
    if (r == 0 && !enough && out->more)
        r = out->n_pools ? 1 : -EBADMSG;
    protobuf_c_message_free_unpacked(m, NULL);
    return r;
}

int remote_pool_list(struct pst_store *st, const struct pst_ctx *ctx, const char *after,
                     int (*fn)(const struct pst_pool_info *, void *), void *user)
{
    char at[PST_LABEL_MAX + 1];
    int r = label_of(after, at) < 0 ? -EINVAL : 1;

    while (r == 1)
        r = pool_page(st, ctx, at, fn, user);
    return r;
}

int remote_pool_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, bool force)
{
    PB(PoolDestroyRequest) req = PENSTOCK__V1__POOL_DESTROY_REQUEST__INIT;

    req.label = TEXT(pool);
    req.force = force;
    return empty_call(st, POOLS "Destroy", &req.base, ctx);
}

/* ---- containers ---- */

int remote_cont_create(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                       const struct pst_cont_props *props, struct pst_cont_info *ret)
{
    PB(ContainerCreateRequest) req = PENSTOCK__V1__CONTAINER_CREATE_REQUEST__INIT;
    PB(Container) c = PENSTOCK__V1__CONTAINER__INIT;

    c.pool = TEXT(pool);
    c.label = TEXT(label);
    c.chunk_size = props->chunk_size;
    c.quota_bytes = props->quota_bytes;
    c.uid = props->uid;
    c.gid = props->gid;
    c.mode = props->mode;
    req.container = &c;
    return cont_call(st, CONTS "Create", &req.base, ctx, true, ret);
}

int remote_cont_query(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                      struct pst_cont_info *ret)
{
    PB(ContainerQueryRequest) req = PENSTOCK__V1__CONTAINER_QUERY_REQUEST__INIT;

    req.pool = TEXT(pool);
    req.label = TEXT(label);
    return cont_call(st, CONTS "Query", &req.base, ctx, false, ret);
}

static int cont_page(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, char after[PST_LABEL_MAX + 1],
                     int (*fn)(const struct pst_cont_info *, void *), void *user)
{
    PB(ContainerListRequest) req = PENSTOCK__V1__CONTAINER_LIST_REQUEST__INIT;
    PB(ContainerListReply) * out;
    ProtobufCMessage *m;
    bool enough = false;
    int r;

    req.pool = TEXT(pool);
    req.after = after;
    r = call(st, CONTS "List", &req.base, ctx, false, &penstock__v1__container_list_reply__descriptor, &m);
    if (r < 0)
        return r;
    out = (PB(ContainerListReply) *)m;
    for (size_t i = 0; i < out->n_containers && r == 0 && !enough; i++) {
        struct pst_cont_info c;
        r = cont_of(out->containers[i], &c);
        if (r < 0)
            break;
        memcpy(after, c.label, sizeof c.label);
        enough = fn(&c, user) != 0;
    }
    if (r == 0 && !enough && out->more)
        r = out->n_containers ? 1 : -EBADMSG;
    protobuf_c_message_free_unpacked(m, NULL);
    return r;
}

int remote_cont_list(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *after,
                     int (*fn)(const struct pst_cont_info *, void *), void *user)
{
    char at[PST_LABEL_MAX + 1];
    int r = label_of(after, at) < 0 ? -EINVAL : 1;

    while (r == 1)
        r = cont_page(st, ctx, pool, at, fn, user);
    return r;
}

int remote_cont_destroy(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label)
{
    PB(ContainerDestroyRequest) req = PENSTOCK__V1__CONTAINER_DESTROY_REQUEST__INIT;

    req.pool = TEXT(pool);
    req.label = TEXT(label);
    return empty_call(st, CONTS "Destroy", &req.base, ctx);
}

/* ---- opening: the handle is the session's, so a new session needs a new one ---- */

static int open_once(struct remote *r, const char *pool, const char *label, const struct pst_cred *cred, bool resume,
                     struct pst_cont_info *ret_info, uint64_t *ret_handle, uint64_t *ret_epoch)
{
    PB(ContainerOpenRequest) req = PENSTOCK__V1__CONTAINER_OPEN_REQUEST__INIT;
    PB(ContainerOpenReply) * out;
    ProtobufCMessage *m;
    int e;

    req.pool = TEXT(pool);
    req.label = TEXT(label);
    e = session_unary(r->session, CONTS "Open", &req.base, cred, NULL, false, resume,
                      &penstock__v1__container_open_reply__descriptor, &m, ret_epoch);
    if (e < 0)
        return e;
    out = (PB(ContainerOpenReply) *)m;
    e = out->container ? cont_of(out->container, ret_info) : -EBADMSG;
    if (e == 0)
        *ret_handle = out->handle;
    protobuf_c_message_free_unpacked(m, NULL);
    return e;
}

static void close_handle(struct remote *r, uint64_t handle)
{
    PB(ContainerCloseRequest) req = PENSTOCK__V1__CONTAINER_CLOSE_REQUEST__INIT;
    ProtobufCMessage *m;

    req.handle = handle;
    if (session_unary(r->session, CONTS "Close", &req.base, NULL, NULL, true, false, &penstock__v1__empty__descriptor,
                      &m, NULL) == 0)
        protobuf_c_message_free_unpacked(m, NULL);
}

int remote_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                     struct pst_cont **ret)
{
    struct remote *r = remote_of(st);
    struct rcont *rc = calloc(1, sizeof *rc);
    uint64_t handle, epoch;
    int e;

    if (!rc)
        return -ENOMEM;
    rc->c.store = st;
    pthread_mutex_init(&rc->lock, NULL);
    pthread_cond_init(&rc->closed, NULL);
    list_init(&rc->closing);
    remote_kept_init(rc);
    un_init(&rc->unsynced);
    for (size_t i = 0; i < OBJ_BUCKETS; i++)
        list_init(&rc->objects[i]);
    do { /* a session that ended after the answer took the handle with it */
        e = open_once(r, pool, label, ctx->cred, false, &rc->c.info, &handle, &epoch);
        if (e < 0) {
            pthread_mutex_destroy(&rc->lock);
            pthread_cond_destroy(&rc->closed);
            free(rc);
            return e;
        }
        pthread_mutex_lock(&r->lock);
        if (session_epoch(r->session) == epoch) {
            atomic_store(&rc->handle, handle);
            rc->epoch = epoch;
            list_push_back(&r->conts, &rc->link);
        } else {
            e = -ECONNRESET;
        }
        pthread_mutex_unlock(&r->lock);
    } while (e == -ECONNRESET);
    *ret = &rc->c;
    return 0;
}

void remote_cont_close(struct pst_cont *c)
{
    struct rcont *rc = rcont_of(c);
    struct remote *r = remote_of(c->store);
    bool current;

    pthread_mutex_lock(&r->lock);
    list_del(&rc->link);
    current = rc->epoch == session_epoch(r->session);
    pthread_mutex_unlock(&r->lock);
    if (current)
        close_handle(r, atomic_load(&rc->handle));
    remote_objects_done(rc);
    pthread_mutex_destroy(&rc->lock);
    pthread_cond_destroy(&rc->closed);
    free(rc);
}

void remote_resume(struct remote *r)
{
    uint64_t now = session_epoch(r->session);

    scoped_lock(&r->lock);
    list_for_each (it, &r->conts) {
        struct rcont *rc = list_entry(it, struct rcont, link);
        struct pst_cont_info info;
        uint64_t handle, epoch;
        int e;
        if (rc->epoch != now) {
            e = open_once(r, rc->c.info.pool, rc->c.info.label, NULL, true, &info, &handle, &epoch);
            if (e == 0 && info.id != rc->c.info.id)
                e = -ESTALE; /* destroyed, and another one made with its name */
            if (e == -ECONNRESET || e == -ETIMEDOUT) { /* the stream need not have noticed yet */
                session_resume_again(r->session);
                return;
            }
            if (e < 0) {
                log_warn("%s: container %s/%s cannot be opened again: %s", session_addr(r->session),
                         rc->c.info.pool, rc->c.info.label, err_text(e));
                atomic_store(&rc->handle, 0); /* requests get the server's error */
                continue;
            }
            atomic_store(&rc->handle, handle);
            rc->epoch = epoch;
        }
        remote_new_history(rc, session_history(r->session));
        remote_reopen(r, rc);
    }
}

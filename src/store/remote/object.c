/*
 * Open objects. The store interface counts opens by object; the server gives a handle and a capability for each. Kept
 * are at most two of them, which together have all rights: others are closed at once, since the server keeps an object
 * as long as one handle is open.
 */
#include "remote.h"

#include "base/buf.h"

#include <sys/stat.h>

static struct robject *find(struct rcont *rc, uint64_t ino)
{
    list_for_each (it, &rc->objects[ino % OBJ_BUCKETS]) {
        struct robject *o = list_entry(it, struct robject, link);
        if (o->ino == ino)
            return o;
    }
    return NULL;
}

static void drop(struct rcont *rc, struct rhandle *h)
{
    if (h->used)
        remote_close_handle(rc, h->handle, h->epoch);
    h->used = false;
}

/* ---- opening ---- */

/* Which key a capability is under; the numbers of a server's keys grow. 0: it does not say. */
static uint64_t key_of(const uint8_t *cap, size_t len)
{
    struct rbuf r = rbuf_of(cap, len);

    rbuf_take(&r, 2);
    return len < 10 ? 0 : rbuf_be64(&r);
}

int remote_handle(struct rcont *rc, const PB(OpenReply) * in, int accmode, const struct pst_cred *cred, uint64_t epoch,
                  struct rhandle *ret)
{
    struct remote *r = remote_of(rc->c.store);

    if (in->capability.len > DP_CAP_MAX)
        return -EBADMSG;
    ret->used = true;
    ret->handle = in->handle;
    ret->epoch = epoch;
    ret->accmode = (uint32_t)accmode;
    ret->cap_id = atomic_fetch_add(&r->last_cap_id, 1) + 1;
    ret->has_cred = cred != NULL;
    if (cred)
        ret->cred = *cred;
    ret->cap_len = in->capability.len;
    if (in->capability.len)
        memcpy(ret->cap, in->capability.data, in->capability.len);
    ret->key_id = key_of(ret->cap, ret->cap_len);
    if (ret->key_id && (epoch > rc->key_epoch || (epoch == rc->key_epoch && (int64_t)(ret->key_id - rc->key_id) > 0))) {
        rc->key_id = ret->key_id;
        rc->key_epoch = epoch;
    }
    return 0;
}

static bool covers(const struct rhandle *h, uint32_t accmode)
{
    return h->used && (h->accmode & accmode) == accmode;
}

static bool is_dead(const struct rcont *rc, const struct rhandle *h)
{
    return h->revoked || remote_key_ended(rc, h->key_id, h->epoch);
}

/* With these rights; one that is not revoked if there is. */
static const struct rhandle *best(const struct rcont *rc, const struct robject *o, uint32_t rights)
{
    const struct rhandle *h = NULL;

    for (size_t i = 0; i < OBJ_HANDLES; i++)
        if (covers(&o->h[i], rights) && (!h || is_dead(rc, h)))
            h = &o->h[i];
    return h;
}

/* rcont.lock held. Counts the open, keeps the handle or closes it. */
static int add(struct rcont *rc, uint64_t ino, const struct rhandle *h)
{
    struct robject *o = find(rc, ino);
    struct rhandle *place = NULL;

    if (!o) {
        o = calloc(1, sizeof *o);
        if (!o)
            return -ENOMEM;
        o->ino = ino;
        list_push_front(&rc->objects[ino % OBJ_BUCKETS], &o->link);
    }
    o->opens++;
    if (o->err == 0)
        for (size_t i = 0; i < OBJ_HANDLES; i++)
            if (covers(&o->h[i], h->accmode) && !is_dead(rc, &o->h[i])) {
                remote_close_handle(rc, h->handle, h->epoch);
                return 0;
            }
    /* In the place of one that it covers, or in a free one: with two places there always is one, or one revoked. */
    for (size_t i = 0; i < OBJ_HANDLES && !place; i++)
        if (!o->h[i].used || o->err || (h->accmode & o->h[i].accmode) == o->h[i].accmode)
            place = &o->h[i];
    for (size_t i = 0; i < OBJ_HANDLES && !place; i++)
        if (is_dead(rc, &o->h[i]))
            place = &o->h[i];
    drop(rc, place);
    *place = *h;
    o->err = 0;
    return 0;
}

/* Takes an answer: 0, -ECONNRESET when its session has ended meanwhile (ask again), or -errno. */
static int keep_open(struct pst_cont *c, uint64_t ino, const PB(OpenReply) * in, int accmode,
                     const struct pst_cred *cred, uint64_t epoch)
{
    struct remote *r = remote_of(c->store);
    struct rcont *rc = rcont_of(c);
    struct rhandle h = {0};
    int e;

    scoped_lock(&rc->lock);
    e = remote_handle(rc, in, accmode, cred, epoch, &h);
    if (e < 0)
        return e;
    if (session_epoch(r->session) != epoch)
        return -ECONNRESET;
    e = add(rc, ino, &h);
    if (e < 0)
        remote_close_handle(rc, h.handle, epoch);
    return e;
}

/* id: NULL where the open changes nothing, and is no request of its own. */
static int open_call(struct pst_cont *c, uint64_t ino, int accmode, bool trunc, const struct pst_cred *cred,
                     const struct pst_reqid *id, bool resume, struct session_call *ret)
{
    PB(NamespaceRequest) req = PENSTOCK__V1__NAMESPACE_REQUEST__INIT;
    PB(Header) header = PENSTOCK__V1__HEADER__INIT;
    PB(OpenRequest) in = PENSTOCK__V1__OPEN_REQUEST__INIT;
    int e;

    in.header = &header;
    in.ino = ino;
    in.accmode = (uint32_t)accmode;
    in.truncate = trunc;
    req.op_case = PENSTOCK__V1__NAMESPACE_REQUEST__OP_OPEN;
    req.open = &in;
    *ret = (struct session_call){.req = &req,
                                 .header = &header,
                                 .container = &rcont_of(c)->handle,
                                 .cred = cred,
                                 .id = id,
                                 .record = !resume,
                                 .resume = resume};
    e = session_call(remote_of(c->store)->session, ret);
    if (e == 0 && ret->reply->op_case != PENSTOCK__V1__NAMESPACE_REPLY__OP_OPEN) {
        session_call_done(ret);
        e = -EBADMSG;
    }
    return e;
}

int remote_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                struct pst_attr *ret)
{
    uint64_t history = session_history(remote_of(c->store)->session);
    bool truncated = trunc;
    struct session_call call;
    struct pst_attr a;
    int e;

    do {
        e = open_call(c, ino, accmode, trunc, ctx->cred, trunc ? &ctx->id : NULL, false, &call);
        if (e < 0)
            return e;
        e = remote_attr(call.reply->open->attr, &a);
        if (e == 0)
            e = keep_open(c, ino, call.reply->open, accmode, ctx->cred, call.epoch);
        session_call_done(&call);
        trunc = false; /* it has happened */
    } while (e == -ECONNRESET);
    if (e < 0)
        return e;
    if (truncated)
        remote_changed(rcont_of(c), ino, history);
    *ret = a;
    return 0;
}

static int create_call(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                       const struct pst_new *n, int accmode, struct session_call *ret)
{
    PB(NamespaceRequest) req = PENSTOCK__V1__NAMESPACE_REQUEST__INIT;
    PB(Header) header = PENSTOCK__V1__HEADER__INIT;
    PB(CreateRequest) in = PENSTOCK__V1__CREATE_REQUEST__INIT;
    uint8_t path[REMOTE_PATH_MAX];
    int e;

    in.header = &header;
    in.parent = parent;
    in.name = remote_path(ctx, name, path);
    in.mode = n->mode & 07777;
    in.exclusive = n->exclusive;
    in.open = true;
    in.accmode = (uint32_t)accmode;
    req.op_case = PENSTOCK__V1__NAMESPACE_REQUEST__OP_CREATE;
    req.create = &in;
    e = remote_call(c, ctx, true, &req, &header, ret);
    if (e == 0 && (ret->reply->op_case != PENSTOCK__V1__NAMESPACE_REPLY__OP_CREATE || !ret->reply->create->open)) {
        session_call_done(ret);
        e = -EBADMSG;
    }
    return e;
}

int remote_create(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created)
{
    const struct pst_ctx plain = {.cred = ctx->cred}; /* the id went with the creation */
    struct session_call call;
    struct pst_attr a;
    bool created;
    int e = remote_may_walk(c, ctx);

    if (e == 0)
        e = create_call(c, ctx, parent, name, in, accmode, &call);
    if (e < 0)
        return e;
    created = call.reply->create->created;
    e = remote_attr(call.reply->create->attr, &a);
    if (e == 0)
        e = keep_open(c, a.ino, call.reply->create->open, accmode, ctx->cred, call.epoch);
    remote_walked(ctx, call.reply);
    session_call_done(&call);
    if (e == -ECONNRESET) /* created, and then the session was lost with the handle */
        e = remote_open(c, ctx, a.ino, accmode, false, &a);
    if (e < 0)
        return e;
    if (trunc && !created && a.size > 0) {
        e = remote_setattr(c, &plain, a.ino, PST_SET_SIZE, &(struct pst_attr){.size = 0}, &a);
        if (e < 0) {
            remote_release(c, a.ino);
            return e;
        }
    }
    *ret = a;
    if (ret_created)
        *ret_created = created;
    return 0;
}

void remote_release(struct pst_cont *c, uint64_t ino)
{
    struct rcont *rc = rcont_of(c);
    struct robject *o;

    scoped_lock(&rc->lock);
    o = find(rc, ino);
    if (!o || --o->opens)
        return;
    for (size_t i = 0; i < OBJ_HANDLES; i++) {
        if (o->h[i].used)
            remote_keep(rc, ino, &o->h[i]);
        drop(rc, &o->h[i]);
    }
    list_del(&o->link);
    free(o);
}

void remote_objects_done(struct rcont *rc)
{
    for (size_t i = 0; i < OBJ_BUCKETS; i++)
        while (!list_empty(&rc->objects[i]))
            free(list_entry(list_pop_front(&rc->objects[i]), struct robject, link));
    remote_kept_done(rc); /* what comes of it is closed */
    remote_closes_done(rc);
    un_done(&rc->unsynced);
}

int remote_cap(struct rcont *rc, uint64_t ino, uint32_t rights, uint64_t *ret_cap_id, uint64_t *ret_epoch,
               uint8_t *ret_cap, size_t *ret_len)
{
    const struct rhandle *h;
    struct robject *o;
    struct rcap c;

    scoped_lock(&rc->lock);
    o = find(rc, ino);
    if (o && o->err)
        return o->err;
    h = o ? best(rc, o, rights) : NULL;
    if (h && !h->cap_len)
        return -ENOKEY;
    if (h)
        c = (struct rcap){h->cap_id, h->epoch, h->cap, h->cap_len};
    if ((!h || is_dead(rc, h)) && remote_kept_cap(rc, ino, rights, h != NULL, &c) < 0 && !h)
        return -EBADF;
    *ret_cap_id = c.cap_id;
    *ret_epoch = c.epoch;
    if (ret_cap) {
        memcpy(ret_cap, c.bytes, c.len);
        *ret_len = c.len;
    }
    return 0;
}

void remote_revoked(struct rcont *rc, uint64_t ino, uint32_t rights, uint64_t cap_id)
{
    struct robject *o;

    scoped_lock(&rc->lock);
    o = find(rc, ino);
    for (size_t i = 0; o && i < OBJ_HANDLES; i++)
        o->h[i].revoked |= cap_id ? o->h[i].cap_id == cap_id : covers(&o->h[i], rights);
    remote_kept_revoked(rc, ino, cap_id);
}

/* ---- changes that are not durable yet ---- */

void remote_changed(struct rcont *rc, uint64_t ino, uint64_t history)
{
    scoped_lock(&rc->lock);
    un_note(&rc->unsynced, ino, history, UN_DATA);
}

void remote_named(struct rcont *rc, uint64_t dir, ProtobufCBinaryData name, uint64_t ino, uint64_t history,
                  uint32_t flags)
{
    scoped_lock(&rc->lock);
    un_note(&rc->unsynced, dir, history, UN_NAME);
    un_note(&rc->unsynced, un_name(dir, name.data, name.len), history, UN_NAME | flags);
    if (ino)
        un_note(&rc->unsynced, ino, history, UN_NAME);
}

uint64_t remote_mark(struct rcont *rc)
{
    scoped_lock(&rc->lock);
    return un_mark(&rc->unsynced);
}

int remote_synced(struct rcont *rc, uint64_t ino, uint64_t mark, uint64_t history)
{
    bool lost;

    pthread_mutex_lock(&rc->lock);
    lost = ino ? un_synced(&rc->unsynced, ino, mark, history) : un_synced_all(&rc->unsynced, mark, history);
    atomic_store(&rc->some_lost, un_has_lost(&rc->unsynced));
    pthread_mutex_unlock(&rc->lock);
    if (!lost)
        return 0;
    log_error("%s: %s %llu: the server was restarted before changes were durable: they may be lost",
              session_addr(remote_of(rc->c.store)->session), ino ? "object" : "all objects of container",
              (unsigned long long)(ino ? ino : rc->c.info.id));
    return -EIO;
}

void remote_found(struct rcont *rc, uint64_t dir, ProtobufCBinaryData name, uint64_t ino)
{
    if (!atomic_load(&rc->some_lost))
        return;
    scoped_lock(&rc->lock);
    un_found(&rc->unsynced, un_name(dir, name.data, name.len), ino);
}

void remote_new_history(struct rcont *rc, uint64_t history)
{
    uint64_t moved;

    scoped_lock(&rc->lock);
    moved = un_new_history(&rc->unsynced, history);
    for (size_t i = 0; moved && i < OBJ_BUCKETS; i++)
        list_for_each (it, &rc->objects[i])
            un_lose(&rc->unsynced, list_entry(it, struct robject, link)->ino, moved);
    atomic_store(&rc->some_lost, un_has_lost(&rc->unsynced));
}

/* ---- a small file's bytes ---- */

#define WRITE_SESSIONS 8 /* sessions that may end, one after the other, under one write */

/* The handle to write by, and the session that it is of. */
static int write_handle(struct rcont *rc, uint64_t ino, uint64_t *ret_handle, uint64_t *ret_epoch)
{
    const struct rhandle *h;
    struct robject *o;

    scoped_lock(&rc->lock);
    o = find(rc, ino);
    if (o && o->err)
        return o->err;
    h = o ? best(rc, o, W_OK) : NULL;
    if (!h)
        return -EBADF;
    *ret_handle = h->handle;
    *ret_epoch = h->epoch;
    return 0;
}

static int write_call(struct pst_cont *c, uint64_t ino, uint64_t handle, uint64_t offset, const void *data, size_t len,
                      uint32_t flags, uint64_t *ret_epoch)
{
    PB(NamespaceRequest) req = PENSTOCK__V1__NAMESPACE_REQUEST__INIT;
    PB(Header) header = PENSTOCK__V1__HEADER__INIT;
    PB(WriteRequest) in = PENSTOCK__V1__WRITE_REQUEST__INIT;
    struct session_call call;
    int r;

    in.header = &header;
    in.ino = ino;
    in.handle = handle;
    in.offset = offset;
    in.data = (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)data};
    in.durable = flags & PST_OPF_DSYNC;
    in.kill_setid = flags & PST_OPF_KILL_SETID;
    req.op_case = PENSTOCK__V1__NAMESPACE_REQUEST__OP_WRITE;
    req.write = &in;
    r = remote_call(c, NULL, true, &req, &header, &call);
    *ret_epoch = call.epoch;
    session_call_done(&call);
    return r;
}

/*
 * A request that was under way when its session ended is repeated in the next one, which does not know the handle and
 * refuses it; nothing was done then. So it is made anew with the handle that the object has there, or ends with the
 * reason why it has none.
 */
static int write_in_any_session(struct pst_cont *c, uint64_t ino, uint64_t offset, const void *data, size_t len,
                                uint32_t flags, uint64_t *ret_epoch)
{
    struct rcont *rc = rcont_of(c);
    uint64_t handle, epoch;

    for (int tries = 0; tries < WRITE_SESSIONS; tries++) {
        int r = write_handle(rc, ino, &handle, &epoch);

        if (r)
            return r;
        r = write_call(c, ino, handle, offset, data, len, flags, ret_epoch);
        if (r != -EBADF || *ret_epoch == epoch)
            return r;
        remote_reopen(remote_of(c->store), rc);
    }
    return -ESTALE;
}

int remote_write(struct pst_cont *c, uint64_t ino, uint64_t offset, const void *data, size_t len, uint32_t flags)
{
    struct rcont *rc = rcont_of(c);
    bool durable = flags & PST_OPF_DSYNC;
    struct session *s = remote_of(c->store)->session;
    uint64_t epoch = session_epoch(s), history = session_history(s), mark = durable ? remote_mark(rc) : 0, by;
    int r = write_in_any_session(c, ino, offset, data, len, flags, &by);

    if (r == -EKEYREVOKED)
        remote_revoked(rc, ino, W_OK, 0);
    if (r < 0)
        return r;
    if (by != epoch)
        history = session_history(s);
    if (durable)
        return remote_synced(rc, ino, mark, history);
    remote_changed(rc, ino, history);
    return 0;
}

/* ---- after a restart ---- */

struct todo {
    uint64_t ino;
    size_t place;
    uint32_t accmode;
    bool has_cred;
    struct pst_cred cred;
};

/* One handle of another session, if there is one, from this bucket on. */
static bool next_old(struct rcont *rc, uint64_t epoch, size_t *bucket, struct todo *ret)
{
    scoped_lock(&rc->lock);
    for (; *bucket < OBJ_BUCKETS; ++*bucket)
        list_for_each (it, &rc->objects[*bucket]) {
            struct robject *o = list_entry(it, struct robject, link);
            for (size_t i = 0; i < OBJ_HANDLES && !o->err; i++)
                if (o->h[i].used && o->h[i].epoch != epoch) {
                    *ret = (struct todo){o->ino, i, o->h[i].accmode, o->h[i].has_cred, o->h[i].cred};
                    return true;
                }
        }
    return false;
}

static void replace(struct rcont *rc, const struct todo *t, int err, const struct rhandle *h)
{
    struct robject *o;

    scoped_lock(&rc->lock);
    o = find(rc, t->ino);
    if (o && err < 0) {
        o->err = err == -ENOENT ? -ESTALE : err;
    } else if (o && o->h[t->place].used && o->h[t->place].epoch != h->epoch) {
        o->h[t->place] = *h;
    } else if (err == 0) {
        remote_close_handle(rc, h->handle, h->epoch);
    }
}

void remote_reopen(struct remote *r, struct rcont *rc)
{
    uint64_t epoch = session_epoch(r->session);
    size_t bucket = 0;
    struct todo t;

    while (next_old(rc, epoch, &bucket, &t)) {
        struct session_call call;
        struct rhandle h = {0};
        int e = open_call(&rc->c, t.ino, (int)t.accmode, false, t.has_cred ? &t.cred : NULL, NULL, true, &call);

        if (e == -ECONNRESET || e == -ETIMEDOUT) { /* the connection broke again: this is called once more */
            session_resume_again(r->session);
            return;
        }
        if (e == 0) {
            scoped_lock(&rc->lock);
            e = remote_handle(rc, call.reply->open, (int)t.accmode, t.has_cred ? &t.cred : NULL, epoch, &h);
            session_call_done(&call);
        }
        replace(rc, &t, e, &h);
    }
}

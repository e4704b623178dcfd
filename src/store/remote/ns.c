/* Namespace operations: each is one request over the session's stream. */
#include "remote.h"

#include <sys/stat.h>

#define BYTES(s)                                                                                                       \
    (ProtobufCBinaryData)                                                                                              \
    {                                                                                                                  \
        strlen(s), (uint8_t *)(uintptr_t)(s)                                                                           \
    }
/* Declares the request `in` of this kind, its header and the message around it. */
#define REQUEST(Type, TYPE, member, CASE)                                                                              \
    PB(NamespaceRequest) req = PENSTOCK__V1__NAMESPACE_REQUEST__INIT;                                                  \
    PB(Header) header = PENSTOCK__V1__HEADER__INIT;                                                                    \
    PB(Type) in = PENSTOCK__V1__##TYPE##_REQUEST__INIT;                                                                \
    struct session_call call;                                                                                          \
    in.header = &header;                                                                                               \
    req.op_case = PENSTOCK__V1__NAMESPACE_REQUEST__OP_##CASE;                                                          \
    req.member = &in

int remote_attr(const PB(Attr) *in, struct pst_attr *ret)
{
    if (!in || !in->ino)
        return -EBADMSG;
    *ret = (struct pst_attr){
        .ino = in->ino, .mode = in->mode, .nlink = in->nlink, .uid = in->uid, .gid = in->gid, .rdev = in->rdev,
        .size = in->size, .used = in->used, .atime_ns = in->atime_ns, .mtime_ns = in->mtime_ns,
        .ctime_ns = in->ctime_ns, .btime_ns = in->btime_ns, .change = in->change, .chunk_size = in->chunk_size};
    return 0;
}

ProtobufCBinaryData remote_path(const struct pst_ctx *ctx, const char *name, uint8_t buf[REMOTE_PATH_MAX])
{
    size_t way = ctx->walk ? strlen(ctx->walk) : 0, n = strlen(name);

    if (!way)
        return BYTES(name);
    memcpy(buf, ctx->walk, way);
    buf[way] = '/';
    memcpy(buf + way + 1, name, n);
    return (ProtobufCBinaryData){way + 1 + n, buf};
}

int remote_may_walk(struct pst_cont *c, const struct pst_ctx *ctx)
{
    return ctx->walk && atomic_load(&rcont_of(c)->some_lost) ? -ELOOP : 0;
}

void remote_walked(const struct pst_ctx *ctx, const PB(NamespaceReply) *reply)
{
    if (ctx->walk && ctx->walked && reply)
        *ctx->walked = reply->walked;
}

/* ---- what was changed, for the syncs to come ---- */

/* A name that a request had: in which directory it is (0: not known any more), and without the way to it. */
struct place {
    uint64_t dir;
    ProtobufCBinaryData name;
};

static struct place place_of(uint64_t parent, ProtobufCBinaryData path, const PB(NamespaceReply) *reply)
{
    uint8_t *slash = memrchr(path.data, '/', path.len);
    size_t way = slash ? (size_t)(slash + 1 - path.data) : 0;

    return (struct place){slash ? reply->walked : parent, {path.len - way, path.data + way}};
}

static void note_name(struct rcont *rc, uint64_t parent, ProtobufCBinaryData path, uint64_t ino,
                      const PB(NamespaceReply) *reply, uint64_t history)
{
    struct place at = place_of(parent, path, reply);

    remote_named(rc, at.dir ? at.dir : parent, at.name, ino, history, at.dir ? 0 : UN_MOVED);
}

/* The object that a reply with attributes tells of. */
static uint64_t made_ino(const PB(NamespaceReply) *reply)
{
    return reply->op_case == PENSTOCK__V1__NAMESPACE_REPLY__OP_ATTR && reply->attr->attr ? reply->attr->attr->ino : 0;
}

static void note_created(struct rcont *rc, const PB(CreateRequest) *in, const PB(NamespaceReply) *reply,
                         uint64_t history)
{
    const PB(CreateReply) *out = reply->op_case == PENSTOCK__V1__NAMESPACE_REPLY__OP_CREATE ? reply->create : NULL;
    struct place at;

    if (!out || !out->attr)
        return;
    /* Made anew where a change of that name is lost: it has not what was there. */
    at = place_of(in->parent, in->name, reply);
    remote_found(rc, at.dir, at.name, out->attr->ino);
    if (out->created)
        note_name(rc, in->parent, in->name, out->attr->ino, reply, history);
}

/* What was answered is not durable yet. */
static void note_change(struct rcont *rc, const PB(NamespaceRequest) *req, const PB(NamespaceReply) *reply,
                        uint64_t history)
{
    switch (req->op_case) {
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_SETATTR:
        remote_changed(rc, req->setattr->ino, history);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_SETXATTR:
        remote_changed(rc, req->setxattr->ino, history);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_REMOVEXATTR:
        remote_changed(rc, req->removexattr->ino, history);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_CREATE:
        note_created(rc, req->create, reply, history);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_MKDIR:
        note_name(rc, req->mkdir->parent, req->mkdir->name, made_ino(reply), reply, history);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_SYMLINK:
        note_name(rc, req->symlink->parent, req->symlink->name, made_ino(reply), reply, history);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_MKNOD:
        note_name(rc, req->mknod->parent, req->mknod->name, made_ino(reply), reply, history);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_LINK:
        remote_named(rc, req->link->parent, req->link->name, req->link->ino, history, 0);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_UNLINK:
        note_name(rc, req->unlink->parent, req->unlink->name, 0, reply, history);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_RMDIR:
        note_name(rc, req->rmdir->parent, req->rmdir->name, 0, reply, history);
        break;
    case PENSTOCK__V1__NAMESPACE_REQUEST__OP_RENAME:
        remote_named(rc, req->rename->parent, req->rename->name, 0, history, UN_MOVED);
        remote_named(rc, req->rename->new_parent, req->rename->new_name, 0, history, UN_MOVED);
        break;
    default:
        break;
    }
}

int remote_call(struct pst_cont *c, const struct pst_ctx *ctx, bool record, PB(NamespaceRequest) * req,
                PB(Header) * header, struct session_call *ret)
{
    struct session *s = remote_of(c->store)->session;
    uint64_t history = session_history(s), start = now_ns(), ns;
    int r;

    *ret = (struct session_call){.req = req, .header = header, .container = &rcont_of(c)->handle, .record = record};
    if (ctx) {
        ret->cred = ctx->cred;
        ret->id = record ? &ctx->id : NULL;
    }
    header->trace = trace_for(0);
    r = session_call(s, ret);
    ns = now_ns() - start;
    if (trace_tells(r, ns))
        trace_end(LOG_COMPONENT, false, header->trace, r, ns, "%s at %s", req->lookup->base.descriptor->short_name,
                  session_addr(s)); /* the members of the union are pointers to messages: one stands for all */
    if (r == 0 && record)
        note_change(rcont_of(c), req, ret->reply, history);
    return r;
}

/* The call's reply is attributes. */
static int attr_call(struct pst_cont *c, const struct pst_ctx *ctx, bool record, PB(NamespaceRequest) *req,
                     PB(Header) *header, struct pst_attr *ret)
{
    struct session_call call;
    int r = remote_call(c, ctx, record, req, header, &call);

    if (r == 0)
        r = call.reply->op_case == PENSTOCK__V1__NAMESPACE_REPLY__OP_ATTR ? remote_attr(call.reply->attr->attr, ret)
                                                                          : -EBADMSG;
    remote_walked(ctx, call.reply);
    session_call_done(&call);
    return r;
}

static int empty_call(struct pst_cont *c, const struct pst_ctx *ctx, bool record, PB(NamespaceRequest) *req,
                      PB(Header) *header)
{
    struct session_call call;
    int r = remote_call(c, ctx, record, req, header, &call);

    remote_walked(ctx, call.reply);
    session_call_done(&call);
    return r;
}

/* Calls, and leaves the reply in `call` if it is of this kind. */
static int typed_call(struct pst_cont *c, const struct pst_ctx *ctx, PB(NamespaceRequest) *req, PB(Header) *header,
                      PB(NamespaceReply__OpCase) want, struct session_call *call)
{
    int r = remote_call(c, ctx, false, req, header, call);

    if (r == 0 && call->reply->op_case != want) {
        session_call_done(call);
        r = -EBADMSG;
    }
    return r;
}
#define REPLY(CASE) PENSTOCK__V1__NAMESPACE_REPLY__OP_##CASE

int remote_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  struct pst_attr *ret)
{
    uint8_t path[REMOTE_PATH_MAX];
    REQUEST(LookupRequest, LOOKUP, lookup, LOOKUP);
    int r = remote_may_walk(c, ctx);

    if (r < 0)
        return r;
    in.parent = parent;
    in.name = remote_path(ctx, name, path);
    r = remote_call(c, ctx, false, &req, &header, &call);
    if (r == 0)
        r = call.reply->op_case == REPLY(ATTR) ? remote_attr(call.reply->attr->attr, ret) : -EBADMSG;
    if (r == 0) {
        struct place at = place_of(parent, in.name, call.reply);
        remote_found(rcont_of(c), at.dir, at.name, ret->ino);
    }
    remote_walked(ctx, call.reply);
    session_call_done(&call);
    return r;
}

int remote_getattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, struct pst_attr *ret)
{
    REQUEST(GetattrRequest, GETATTR, getattr, GETATTR);
    (void)call;
    in.ino = ino;
    return attr_call(c, ctx, false, &req, &header, ret);
}

int remote_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                   const struct pst_attr *a, struct pst_attr *ret)
{
    PB(Attr) attr = PENSTOCK__V1__ATTR__INIT;
    REQUEST(SetattrRequest, SETATTR, setattr, SETATTR);
    (void)call;
    attr.mode = a->mode;
    attr.uid = a->uid;
    attr.gid = a->gid;
    attr.size = a->size;
    attr.atime_ns = a->atime_ns;
    attr.mtime_ns = a->mtime_ns;
    attr.ctime_ns = a->ctime_ns;
    in.ino = ino;
    in.mask = mask;
    in.attr = &attr;
    return attr_call(c, ctx, true, &req, &header, ret);
}

static int make_file(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     const struct pst_new *n, struct pst_attr *ret, bool *ret_created)
{
    uint8_t path[REMOTE_PATH_MAX];
    REQUEST(CreateRequest, CREATE, create, CREATE);
    int r;

    in.parent = parent;
    in.name = remote_path(ctx, name, path);
    in.mode = n->mode & 07777;
    in.exclusive = n->exclusive;
    r = remote_call(c, ctx, true, &req, &header, &call);
    if (r == 0)
        r = call.reply->op_case == REPLY(CREATE) ? remote_attr(call.reply->create->attr, ret) : -EBADMSG;
    if (r == 0 && ret_created)
        *ret_created = call.reply->create->created;
    remote_walked(ctx, call.reply);
    session_call_done(&call);
    return r;
}

static int make_dir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name, uint32_t mode,
                    struct pst_attr *ret)
{
    uint8_t path[REMOTE_PATH_MAX];
    REQUEST(MkdirRequest, MKDIR, mkdir, MKDIR);
    (void)call;
    in.parent = parent;
    in.name = remote_path(ctx, name, path);
    in.mode = mode & 07777;
    return attr_call(c, ctx, true, &req, &header, ret);
}

static int make_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     const char *target, struct pst_attr *ret)
{
    uint8_t path[REMOTE_PATH_MAX];
    REQUEST(SymlinkRequest, SYMLINK, symlink, SYMLINK);
    (void)call;
    in.parent = parent;
    in.name = remote_path(ctx, name, path);
    in.target = BYTES(target);
    return attr_call(c, ctx, true, &req, &header, ret);
}

static int make_node(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     const struct pst_new *n, struct pst_attr *ret)
{
    uint8_t path[REMOTE_PATH_MAX];
    REQUEST(MknodRequest, MKNOD, mknod, MKNOD);
    (void)call;
    in.parent = parent;
    in.name = remote_path(ctx, name, path);
    in.mode = n->mode;
    in.rdev = n->rdev;
    return attr_call(c, ctx, true, &req, &header, ret);
}

int remote_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                const struct pst_new *n, struct pst_attr *ret, bool *ret_created)
{
    int r = remote_may_walk(c, ctx);

    if (r < 0)
        return r;
    switch (n->mode & S_IFMT) {
    case S_IFREG:
        return make_file(c, ctx, parent, name, n, ret, ret_created);
    case S_IFDIR:
        r = make_dir(c, ctx, parent, name, n->mode, ret);
        break;
    case S_IFLNK:
        r = make_link(c, ctx, parent, name, n->target, ret);
        break;
    default:
        r = make_node(c, ctx, parent, name, n, ret);
    }
    if (r == 0 && ret_created)
        *ret_created = true;
    return r;
}

int remote_readlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_target, size_t size)
{
    REQUEST(ReadlinkRequest, READLINK, readlink, READLINK);
    int r;

    in.ino = ino;
    r = typed_call(c, ctx, &req, &header, REPLY(READLINK), &call);
    if (r == 0) {
        ProtobufCBinaryData t = call.reply->readlink->target;
        if (t.len > PST_SYMLINK_MAX || memchr(t.data ? (void *)t.data : "", 0, t.len))
            r = -EBADMSG;
        else if (t.len + 1 > size)
            r = -ERANGE;
        else {
            memcpy(ret_target, t.data, t.len);
            ret_target[t.len] = '\0';
            r = (int)t.len;
        }
        session_call_done(&call);
    }
    return r;
}

int remote_link(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t parent, const char *name,
                struct pst_attr *ret)
{
    REQUEST(LinkRequest, LINK, link, LINK);
    (void)call;
    in.ino = ino;
    in.parent = parent;
    in.name = BYTES(name);
    return attr_call(c, ctx, true, &req, &header, ret);
}

int remote_unlink(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    uint8_t path[REMOTE_PATH_MAX];
    REQUEST(UnlinkRequest, UNLINK, unlink, UNLINK);
    int r = remote_may_walk(c, ctx);

    (void)call;
    if (r < 0)
        return r;
    in.parent = parent;
    in.name = remote_path(ctx, name, path);
    return empty_call(c, ctx, true, &req, &header);
}

int remote_rmdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name)
{
    uint8_t path[REMOTE_PATH_MAX];
    REQUEST(RmdirRequest, RMDIR, rmdir, RMDIR);
    int r = remote_may_walk(c, ctx);

    (void)call;
    if (r < 0)
        return r;
    in.parent = parent;
    in.name = remote_path(ctx, name, path);
    return empty_call(c, ctx, true, &req, &header);
}

int remote_rename(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                  uint64_t new_parent, const char *new_name, uint32_t flags)
{
    REQUEST(RenameRequest, RENAME, rename, RENAME);
    (void)call;
    in.parent = parent;
    in.name = BYTES(name);
    in.new_parent = new_parent;
    in.new_name = BYTES(new_name);
    in.flags = flags;
    return empty_call(c, ctx, true, &req, &header);
}

/* ---- listing ---- */

static int dirent_of(const PB(Dirent) *in, bool with_attr, struct pst_dirent *ret)
{
    if (!in->name.len || in->name.len > PST_NAME_MAX || memchr(in->name.data, 0, in->name.len) || !in->cookie)
        return -EBADMSG;
    ret->ino = in->ino;
    ret->cookie = in->cookie;
    ret->type = in->type;
    memcpy(ret->name, in->name.data, in->name.len);
    ret->name[in->name.len] = '\0';
    return with_attr ? remote_attr(in->attr, &ret->attr) : 0;
}

/* One page: 1 there is more, 0 the end or fn had enough. */
static int readdir_page(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t *cookie, bool with_attr,
                        pst_dirent_fn fn, void *user)
{
    REQUEST(ReaddirRequest, READDIR, readdir, READDIR);
    struct pst_dirent de = {0};
    bool enough = false;
    int r;

    in.ino = ino;
    in.cookie = *cookie;
    in.with_attr = with_attr;
    in.limit = READDIR_PAGE;
    r = typed_call(c, ctx, &req, &header, REPLY(READDIR), &call);
    if (r < 0)
        return r;
    for (size_t i = 0; i < call.reply->readdir->n_entries && r == 0 && !enough; i++) {
        r = dirent_of(call.reply->readdir->entries[i], with_attr, &de);
        if (r < 0)
            break;
        remote_found(rcont_of(c), ino, call.reply->readdir->entries[i]->name, de.ino);
        *cookie = de.cookie;
        enough = fn(&de, user) != 0;
    }
    if (r == 0 && !enough && call.reply->readdir->more)
        r = call.reply->readdir->n_entries ? 1 : -EBADMSG;
    session_call_done(&call);
    return r;
}

int remote_readdir(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint64_t cookie, bool with_attr,
                   pst_dirent_fn fn, void *user)
{
    int r;

    do {
        r = readdir_page(c, ctx, ino, &cookie, with_attr, fn, user);
    } while (r == 1);
    return r;
}

int remote_parent(struct pst_cont *c, uint64_t ino, uint64_t *ret_parent)
{
    REQUEST(ParentRequest, PARENT, parent, PARENT);
    int r;

    in.ino = ino;
    r = typed_call(c, NULL, &req, &header, REPLY(PARENT), &call);
    if (r == 0) {
        *ret_parent = call.reply->parent->parent;
        session_call_done(&call);
    }
    return r;
}

int remote_statfs(struct pst_cont *c, struct pst_statfs *ret)
{
    REQUEST(StatfsRequest, STATFS, statfs, STATFS);
    int r = typed_call(c, NULL, &req, &header, REPLY(STATFS), &call);

    if (r == 0) {
        const PB(StatfsReply) *s = call.reply->statfs;
        *ret = (struct pst_statfs){s->total_bytes, s->free_bytes, s->objects};
        session_call_done(&call);
    }
    return r;
}

/* ---- extended attributes ---- */

int remote_setxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name, const void *value,
                    size_t len, uint32_t flags)
{
    REQUEST(SetxattrRequest, SETXATTR, setxattr, SETXATTR);
    (void)call;
    in.ino = ino;
    in.name = BYTES(name);
    in.value = (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)value};
    in.flags = flags;
    return empty_call(c, ctx, true, &req, &header);
}

int64_t remote_getxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                        void *ret_value, size_t size)
{
    REQUEST(GetxattrRequest, GETXATTR, getxattr, GETXATTR);
    int64_t r;

    in.ino = ino;
    in.name = BYTES(name);
    r = typed_call(c, ctx, &req, &header, REPLY(GETXATTR), &call);
    if (r < 0)
        return r;
    r = (int64_t)call.reply->getxattr->value.len;
    if (size && (size_t)r > size)
        r = -ERANGE;
    else if (size && r)
        memcpy(ret_value, call.reply->getxattr->value.data, (size_t)r);
    session_call_done(&call);
    return r;
}

int64_t remote_listxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size)
{
    REQUEST(ListxattrRequest, LISTXATTR, listxattr, LISTXATTR);
    size_t sum = 0;
    int r;

    in.ino = ino;
    r = typed_call(c, ctx, &req, &header, REPLY(LISTXATTR), &call);
    if (r < 0)
        return r;
    for (size_t i = 0; i < call.reply->listxattr->n_names; i++) {
        ProtobufCBinaryData n = call.reply->listxattr->names[i];
        if (size && sum + n.len + 1 > size) {
            session_call_done(&call);
            return -ERANGE;
        }
        if (size) {
            memcpy(ret_names + sum, n.data, n.len);
            ret_names[sum + n.len] = '\0';
        }
        sum += n.len + 1;
    }
    session_call_done(&call);
    return (int64_t)sum;
}

int remote_removexattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name)
{
    REQUEST(RemovexattrRequest, REMOVEXATTR, removexattr, REMOVEXATTR);
    (void)call;
    in.ino = ino;
    in.name = BYTES(name);
    return empty_call(c, ctx, true, &req, &header);
}

/*
 * NamespaceService. One handler per operation; a unary call and a request of Stream come to the same one. The table at
 * the end says which member of the stream's messages each operation is.
 */
#include "service_priv.h"

#include "store/perm.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* Every request begins so: the header is checked before its handler runs. */
struct with_header {
    ProtobufCMessage base;
    PB(Header) * header;
};

static int name_of(struct ctl_req *q, ProtobufCBinaryData b, const char **ret)
{
    return ctl_name(q, b, PST_NAME_MAX, ret);
}

int ctl_path(struct ctl_req *q, ProtobufCBinaryData b, const char **ret)
{
    const char *path;
    char *slash;
    int r = ctl_name(q, b, PST_WALK_MAX + 1 + PST_NAME_MAX, &path);

    if (r)
        return r;
    slash = strrchr(path, '/');
    if (slash) {
        *slash = '\0';
        q->ctx.walk = path;
        q->ctx.walked = &q->walked;
    }
    *ret = slash ? slash + 1 : path;
    return 0;
}

static int attr_reply(struct ctl_req *q, int r, const struct pst_attr *a, void *out_)
{
    PB(AttrReply) *out = out_;
    if (r)
        return r;
    out->attr = ctl_attr(q, a);
    return out->attr ? 0 : -ENOMEM;
}

static int ns_lookup(struct ctl_req *q, const void *in_, void *out)
{
    const PB(LookupRequest) *in = in_;
    const char *name;
    struct pst_attr a;
    int r = ctl_path(q, in->name, &name);
    if (!r)
        r = pst_store_lookup(q->cont, &q->ctx, in->parent, name, &a);
    return attr_reply(q, r, &a, out);
}

static int ns_getattr(struct ctl_req *q, const void *in_, void *out)
{
    const PB(GetattrRequest) *in = in_;
    struct pst_attr a;
    return attr_reply(q, pst_store_getattr(q->cont, &q->ctx, in->ino, &a), &a, out);
}

static int ns_setattr(struct ctl_req *q, const void *in_, void *out)
{
    const PB(SetattrRequest) *in = in_;
    struct pst_attr set = {0}, a;

    if (in->attr) {
        set.mode = in->attr->mode;
        set.uid = in->attr->uid;
        set.gid = in->attr->gid;
        set.size = in->attr->size;
        set.atime_ns = in->attr->atime_ns;
        set.mtime_ns = in->attr->mtime_ns;
        set.ctime_ns = in->attr->ctime_ns;
    } else if (in->mask & ~(PST_SET_ATIME_NOW | PST_SET_MTIME_NOW | PST_SET_NO_SETID)) {
        return ctl_fail(q, -EINVAL, "no attr for the fields of the mask");
    }
    if (in->mask & PST_SET_SIZE)
        rpc_may_block();
    return attr_reply(q, pst_store_setattr(q->cont, &q->ctx, in->ino, in->mask, &set, &a), &a, out);
}

/* ---- what makes names ---- */

int ctl_make(struct ctl_req *q, uint64_t parent, ProtobufCBinaryData name_bytes, const struct pst_new *what,
             struct pst_attr *ret, bool *ret_created)
{
    const char *name;
    int r = ctl_path(q, name_bytes, &name);
    return r ? r : pst_store_make(q->cont, &q->ctx, parent, name, what, ret, ret_created);
}

static int ns_mkdir(struct ctl_req *q, const void *in_, void *out)
{
    const PB(MkdirRequest) *in = in_;
    const struct pst_new what = {.mode = S_IFDIR | (in->mode & 07777), .exclusive = true};
    struct pst_attr a;

    if (in->mode & ~07777u)
        return ctl_fail(q, -EINVAL, "mode %o: permission bits only", in->mode);
    return attr_reply(q, ctl_make(q, in->parent, in->name, &what, &a, NULL), &a, out);
}

static int ns_symlink(struct ctl_req *q, const void *in_, void *out)
{
    const PB(SymlinkRequest) *in = in_;
    struct pst_new what = {.mode = S_IFLNK | 0777, .exclusive = true};
    struct pst_attr a;
    int r = in->target.len ? ctl_name(q, in->target, PST_SYMLINK_MAX, &what.target) : -ENOENT;
    return attr_reply(q, r ? r : ctl_make(q, in->parent, in->name, &what, &a, NULL), &a, out);
}

static int ns_mknod(struct ctl_req *q, const void *in_, void *out)
{
    const PB(MknodRequest) *in = in_;
    const struct pst_new what = {.mode = in->mode, .rdev = in->rdev, .exclusive = true};
    struct pst_attr a;

    if (S_ISDIR(in->mode) || S_ISLNK(in->mode) || in->mode & ~(uint32_t)(S_IFMT | 07777))
        return ctl_fail(q, -EINVAL, "mode %o: a file, fifo, socket or device", in->mode);
    return attr_reply(q, ctl_make(q, in->parent, in->name, &what, &a, NULL), &a, out);
}

static int ns_link(struct ctl_req *q, const void *in_, void *out)
{
    const PB(LinkRequest) *in = in_;
    const char *name;
    struct pst_attr a;
    int r = name_of(q, in->name, &name);
    if (!r)
        r = pst_store_link(q->cont, &q->ctx, in->ino, in->parent, name, &a);
    return attr_reply(q, r, &a, out);
}

static int ns_readlink(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(ReadlinkRequest) *in = in_;
    PB(ReadlinkReply) *out = out_;
    char target[PST_SYMLINK_MAX + 1];
    int r = pst_store_readlink(q->cont, &q->ctx, in->ino, target, sizeof target);
    return r < 0 ? r : ctl_bytes(q, target, strnlen(target, sizeof target), &out->target);
}

static int ns_unlink(struct ctl_req *q, const void *in_, void *out)
{
    const PB(UnlinkRequest) *in = in_;
    const char *name;
    int r = ctl_path(q, in->name, &name);
    (void)out;
    return r ? r : pst_store_unlink(q->cont, &q->ctx, in->parent, name);
}

static int ns_rmdir(struct ctl_req *q, const void *in_, void *out)
{
    const PB(RmdirRequest) *in = in_;
    const char *name;
    int r = ctl_path(q, in->name, &name);
    (void)out;
    return r ? r : pst_store_rmdir(q->cont, &q->ctx, in->parent, name);
}

static int ns_rename(struct ctl_req *q, const void *in_, void *out)
{
    const PB(RenameRequest) *in = in_;
    const char *name, *new_name;
    int r = name_of(q, in->name, &name);
    (void)out;
    if (!r)
        r = name_of(q, in->new_name, &new_name);
    return r ? r : pst_store_rename(q->cont, &q->ctx, in->parent, name, in->new_parent, new_name, in->flags);
}

/* ---- listing ---- */

struct listing {
    struct ctl_req *q;
    PB(ReaddirReply) * out;
    uint32_t limit;
    size_t bytes; /* of the reply, at most */
    bool with_attr;
    int err;
};

static int on_dirent(const struct pst_dirent *de, void *user)
{
    struct listing *l = user;
    size_t n = strlen(de->name);
    PB(Dirent) * m;

    if (l->out->n_entries == l->limit || l->bytes + n + 200 > CTL_REPLY_MAX) {
        l->out->more = true;
        return 1;
    }
    l->err = l->out->n_entries % 64 ? 0 : ctl_still_wanted(l->q);
    m = l->err ? NULL : arena_alloc(&l->q->a, sizeof *m);
    if (!m) {
        l->err = l->err ? l->err : -ENOMEM;
        return 1;
    }
    penstock__v1__dirent__init(m);
    m->ino = de->ino;
    m->cookie = de->cookie;
    m->type = de->type;
    l->err = ctl_bytes(l->q, de->name, n, &m->name);
    if (!l->err && l->with_attr) {
        m->attr = ctl_attr(l->q, &de->attr);
        l->err = m->attr ? 0 : -ENOMEM;
    }
    l->bytes += n + 200; /* a name, and the numbers of an entry with attributes at their longest */
    l->out->entries[l->out->n_entries++] = m;
    return l->err != 0;
}

static int ns_readdir(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(ReaddirRequest) *in = in_;
    PB(ReaddirReply) *out = out_;
    struct listing l = {.q = q, .out = out, .limit = in->limit, .with_attr = in->with_attr};
    int r;

    if (in->limit < 1 || in->limit > 4096)
        return ctl_fail(q, -EINVAL, "limit %u: 1..4096 entries", in->limit);
    out->entries = arena_alloc(&q->a, in->limit * sizeof *out->entries);
    if (!out->entries)
        return -ENOMEM;
    rpc_may_block();
    r = pst_store_readdir(q->cont, &q->ctx, in->ino, in->cookie, in->with_attr, on_dirent, &l);
    return r < 0 ? r : l.err;
}

static int ns_parent(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(ParentRequest) *in = in_;
    PB(ParentReply) *out = out_;
    return pst_store_parent(q->cont, in->ino, &out->parent);
}

static int ns_statfs(struct ctl_req *q, const void *in_, void *out_)
{
    PB(StatfsReply) *out = out_;
    struct pst_statfs fs;
    int r = pst_store_statfs(q->cont, &fs);
    (void)in_;
    if (r)
        return r;
    out->total_bytes = fs.total_bytes;
    out->free_bytes = fs.free_bytes;
    out->objects = fs.objects;
    return 0;
}

/* ---- extended attributes ---- */

static int ns_setxattr(struct ctl_req *q, const void *in_, void *out)
{
    const PB(SetxattrRequest) *in = in_;
    const char *name;
    int r = ctl_name(q, in->name, PST_XATTR_NAME_MAX, &name);
    (void)out;
    if (!r && in->value.len > PST_XATTR_SIZE_MAX)
        r = -E2BIG;
    return r ? r : pst_store_setxattr(q->cont, &q->ctx, in->ino, name, in->value.data, in->value.len, in->flags);
}

static int ns_getxattr(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(GetxattrRequest) *in = in_;
    PB(GetxattrReply) *out = out_;
    const char *name;
    int64_t n = ctl_name(q, in->name, PST_XATTR_NAME_MAX, &name);

    if (n)
        return (int)n;
    out->value.data = arena_alloc(&q->a, PST_XATTR_SIZE_MAX);
    if (!out->value.data)
        return -ENOMEM;
    n = pst_store_getxattr(q->cont, &q->ctx, in->ino, name, out->value.data, PST_XATTR_SIZE_MAX);
    if (n < 0)
        return (int)n;
    out->value.len = (size_t)n;
    return 0;
}

static int ns_listxattr(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(ListxattrRequest) *in = in_;
    PB(ListxattrReply) *out = out_;
    size_t count = 0;
    int64_t n = pst_store_listxattr(q->cont, &q->ctx, in->ino, NULL, 0);
    char *names;

    if (n <= 0)
        return (int)n;
    if (n > (int64_t)CTL_REPLY_MAX / 2)
        return -E2BIG;
    names = arena_alloc(&q->a, (size_t)n);
    if (!names)
        return -ENOMEM;
    /* Grown in between: -ERANGE, as from listxattr(2). */
    n = pst_store_listxattr(q->cont, &q->ctx, in->ino, names, (size_t)n);
    if (n <= 0)
        return (int)n;
    for (int64_t i = 0; i < n; i++)
        count += !names[i];
    out->names = arena_alloc(&q->a, count * sizeof *out->names);
    if (!out->names)
        return -ENOMEM;
    for (char *p = names; out->n_names < count; p += strlen(p) + 1)
        out->names[out->n_names++] = (ProtobufCBinaryData){strlen(p), (uint8_t *)p};
    return 0;
}

static int ns_removexattr(struct ctl_req *q, const void *in_, void *out)
{
    const PB(RemovexattrRequest) *in = in_;
    const char *name;
    int r = ctl_name(q, in->name, PST_XATTR_NAME_MAX, &name);
    (void)out;
    return r ? r : pst_store_removexattr(q->cont, &q->ctx, in->ino, name);
}

/* ---- the table ---- */

#define SERVICE         "/penstock.v1.NamespaceService/"
#define D(name)         &penstock__v1__##name##__descriptor
#define ATTR            PENSTOCK__V1__NAMESPACE_REPLY__OP_ATTR, D(attr_reply)
#define EMPTY           PENSTOCK__V1__NAMESPACE_REPLY__OP_EMPTY, D(empty)
#define OWN(CASE, name) PENSTOCK__V1__NAMESPACE_REPLY__OP_##CASE, D(name)
#define OP(CASE, name)  PENSTOCK__V1__NAMESPACE_REQUEST__OP_##CASE, D(name##_request), ns_##name
#define AWAY_OP(CASE, name)                                                                                            \
    PENSTOCK__V1__NAMESPACE_REQUEST__OP_##CASE, D(name##_request), ctl_ns_##name /* svc_ns_open.c, svc_ns_data.c */

static const struct ns_op {
    PB(NamespaceRequest__OpCase) op;
    const ProtobufCMessageDescriptor *in;
    ctl_handler *fn;
    PB(NamespaceReply__OpCase) reply;
    const ProtobufCMessageDescriptor *out;
} ops[] = {
    {OP(LOOKUP, lookup), ATTR},
    {OP(GETATTR, getattr), ATTR},
    {OP(SETATTR, setattr), ATTR},
    {AWAY_OP(CREATE, create), OWN(CREATE, create_reply)},
    {OP(MKDIR, mkdir), ATTR},
    {OP(SYMLINK, symlink), ATTR},
    {OP(MKNOD, mknod), ATTR},
    {OP(READLINK, readlink), OWN(READLINK, readlink_reply)},
    {OP(LINK, link), ATTR},
    {OP(UNLINK, unlink), EMPTY},
    {OP(RMDIR, rmdir), EMPTY},
    {OP(RENAME, rename), EMPTY},
    {OP(READDIR, readdir), OWN(READDIR, readdir_reply)},
    {OP(PARENT, parent), OWN(PARENT, parent_reply)},
    {OP(STATFS, statfs), OWN(STATFS, statfs_reply)},
    {OP(SETXATTR, setxattr), EMPTY},
    {OP(GETXATTR, getxattr), OWN(GETXATTR, getxattr_reply)},
    {OP(LISTXATTR, listxattr), OWN(LISTXATTR, listxattr_reply)},
    {OP(REMOVEXATTR, removexattr), EMPTY},
    {AWAY_OP(OPEN, open), OWN(OPEN, open_reply)},
    {AWAY_OP(CLOSE, close), EMPTY},
    {AWAY_OP(FSYNC, fsync), EMPTY},
    {AWAY_OP(WRITE, write), EMPTY},
};

static const struct ns_op *find_op(PB(NamespaceRequest__OpCase) op)
{
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
        if (ops[i].op == op)
            return &ops[i];
    return NULL;
}

/* Header, then the operation: what unary calls and Stream share. */
static int run(struct ctl_req *q, const struct ns_op *op, const void *in, void *out)
{
    int r;

    if (q->s->far_store)
        rpc_may_block();
    r = ctl_need_header(q, ((const struct with_header *)in)->header);
    return r ? r : op->fn(q, in, out);
}

/* Which operation a unary message is, its type tells: no two share one. */
static int unary(struct ctl_req *q, const void *in, void *out)
{
    const ProtobufCMessageDescriptor *d = ((const ProtobufCMessage *)in)->descriptor;
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
        if (ops[i].in == d)
            return run(q, &ops[i], in, out);
    return -EOPNOTSUPP;
}

const struct ctl_method ctl_ns_methods[] = {
    {SERVICE "Lookup", D(lookup_request), D(attr_reply), unary},
    {SERVICE "Getattr", D(getattr_request), D(attr_reply), unary},
    {SERVICE "Setattr", D(setattr_request), D(attr_reply), unary},
    {SERVICE "Create", D(create_request), D(create_reply), unary},
    {SERVICE "Mkdir", D(mkdir_request), D(attr_reply), unary},
    {SERVICE "Symlink", D(symlink_request), D(attr_reply), unary},
    {SERVICE "Mknod", D(mknod_request), D(attr_reply), unary},
    {SERVICE "Readlink", D(readlink_request), D(readlink_reply), unary},
    {SERVICE "Link", D(link_request), D(attr_reply), unary},
    {SERVICE "Unlink", D(unlink_request), D(empty), unary},
    {SERVICE "Rmdir", D(rmdir_request), D(empty), unary},
    {SERVICE "Rename", D(rename_request), D(empty), unary},
    {SERVICE "Readdir", D(readdir_request), D(readdir_reply), unary},
    {SERVICE "Parent", D(parent_request), D(parent_reply), unary},
    {SERVICE "Statfs", D(statfs_request), D(statfs_reply), unary},
    {SERVICE "Setxattr", D(setxattr_request), D(empty), unary},
    {SERVICE "Getxattr", D(getxattr_request), D(getxattr_reply), unary},
    {SERVICE "Listxattr", D(listxattr_request), D(listxattr_reply), unary},
    {SERVICE "Removexattr", D(removexattr_request), D(empty), unary},
    {SERVICE "Open", D(open_request), D(open_reply), unary},
    {SERVICE "Close", D(close_request), D(empty), unary},
    {SERVICE "Fsync", D(fsync_request), D(empty), unary},
    {SERVICE "Write", D(write_request), D(empty), unary},
};
const size_t ctl_ns_nmethods = ARRAY_SIZE(ctl_ns_methods);

/* ---- Stream ---- */

/* op NULL: none, or one of a later version. */
static int stream_one(struct ctl_req *q, const struct ns_op *op, const PB(NamespaceRequest) * in,
                      PB(NamespaceReply) * out)
{
    ProtobufCMessage *reply;
    int r;

    if (!op)
        return -EOPNOTSUPP;
    reply = arena_alloc(&q->a, op->out->sizeof_message);
    if (!reply)
        return -ENOMEM;
    protobuf_c_message_init(op->out, reply);
    /* The members of each oneof are pointers to messages: one stands for all. */
    r = ctl_result(q, run(q, op, in->lookup, reply));
    if (r)
        return r;
    out->walked = q->walked;
    out->op_case = op->reply;
    out->attr = (PB(AttrReply) *)reply;
    return 0;
}

void ctl_ns_stream(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    struct ctl_server *s = user;
    struct ctl_req q;
    PB(NamespaceReply) out = PENSTOCK__V1__NAMESPACE_REPLY__INIT;
    PB(NamespaceRequest) * in;
    const struct ns_op *op;
    uint8_t *packed;
    int r;

    ctl_req_init(&q, s, c);
    in = penstock__v1__namespace_request__unpack(&q.a.pb, len, msg);
    if (!in) {
        rpc_finish(c, -EBADMSG, "not a NamespaceRequest");
        ctl_req_done(&q);
        return;
    }
    if (!rpc_was_later())
        atomic_fetch_add(&s->requests, 1);
    out.tag = in->tag;
    op = find_op(in->op_case);
    r = stream_one(&q, op, in, &out);
    ctl_tell(&q, op ? op->in : NULL, r);
    if (q.later) {
        ctl_req_done(&q);
        return;
    }
    if (r) {
        atomic_fetch_add(&s->failed, 1);
        out.error = (char *)errs_name(r);
    }
    packed = malloc(penstock__v1__namespace_reply__get_packed_size(&out));
    if (packed)
        rpc_send(c, packed, penstock__v1__namespace_reply__pack(&out, packed));
    else
        rpc_finish(c, -ENOMEM, NULL);
    free(packed);
    ctl_req_done(&q);
}

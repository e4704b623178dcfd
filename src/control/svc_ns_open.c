/*
 * What of NamespaceService opens objects, and closes them: capabilities are minted here, and Create is here for what it
 * may open.
 */
#include "service_priv.h"

#include "base/crypto.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/*
 * An engine that is another server creates and opens in one step, and lets the creator in itself: there is no trusted
 * caller to it. And it judges by itself whoever asks for an object that is not open there: capabilities say whom they
 * are for.
 */
static bool engine_judges(const struct pst_store *st)
{
    while (st->next)
        st = st->next;
    return st->ops->create != NULL;
}

int ctl_mint(struct ctl_req *q, const struct cap_grant *narrow, ProtobufCBinaryData *ret, uint64_t *ret_key_id)
{
    struct cap_grant g = *narrow;
    uint8_t key[SESS_KEY_BYTES];
    struct cap c;
    int r = sess_key_mint(q->s->sess, q->sess, q->sc, &g.key_id, key);

    if (r)
        return r;
    memcpy(g.session, sess_id(q->sess), sizeof g.session);
    g.cont = sess_cont_id(q->sc);
    r = cap_mint_for(key, &g, engine_judges(q->cont->store) ? &q->cred : NULL, &c);
    pst_wipe(key, sizeof key);
    if (!r)
        r = ctl_bytes(q, c.bytes, c.len, ret);
    if (!r && ret_key_id)
        *ret_key_id = g.key_id;
    if (!r && q->s->audit) {
        char what[100];
        snprintf(what, sizeof what, "container %llu object %llu rights %u", (unsigned long long)g.cont,
                 (unsigned long long)g.ino, g.rights);
        ctl_audit(q, "grant", what, 0);
    }
    return r;
}

/* The capability and the attributes of what has been opened. */
static int grant_open(struct ctl_req *q, uint64_t ino, uint32_t accmode, const struct pst_attr *a, PB(OpenReply) * out)
{
    const struct cap_grant g = {.ino = ino, .rights = accmode, .expires_ns = INT64_MAX};
    uint64_t key_id;
    int r = accmode ? ctl_mint(q, &g, &out->capability, &key_id) : 0;

    if (r)
        return r;
    if (accmode)
        sess_object_granted(q->s->sess, q->sess, out->handle, key_id);
    out->attr = ctl_attr(q, a);
    return out->attr ? 0 : -ENOMEM;
}

static bool opened_before(struct ctl_req *q, uint64_t ino, uint32_t accmode, uint64_t *ret_handle)
{
    return sess_object_find(q->s->sess, q->sess, q->sc, ino, accmode, q->slot, q->ctx.id.seq, ret_handle);
}

/* The store has it open: it becomes the session's, or is released. */
static int keep_open(struct ctl_req *q, uint64_t ino, uint32_t accmode, uint64_t *ret_handle)
{
    int r = sess_object_add(q->s->sess, q->sess, q->sc, ino, accmode, q->slot, q->ctx.id.seq, ret_handle);

    if (r)
        pst_store_release(q->cont, ino);
    return r;
}

static int check_accmode(struct ctl_req *q, uint32_t accmode)
{
    return accmode & ~(CAP_READ | CAP_WRITE) ? ctl_fail(q, -EINVAL, "accmode %u: 4 read, 2 write", accmode) : 0;
}

/*
 * Opens an object, or finds what the same request opened before. ctx has no cred when its creator opens it: POSIX lets
 * that one have any access at creation.
 */
static int open_object(struct ctl_req *q, const struct pst_ctx *ctx, uint64_t ino, uint32_t accmode, bool trunc,
                       PB(OpenReply) * out)
{
    struct pst_attr a;
    int r = check_accmode(q, accmode);

    if (r)
        return r;
    if (opened_before(q, ino, accmode, &out->handle)) {
        r = pst_store_getattr(q->cont, ctx, ino, &a);
    } else {
        r = pst_store_open(q->cont, ctx, ino, (int)accmode, trunc, &a);
        if (!r)
            r = keep_open(q, ino, accmode, &out->handle);
    }
    return r ? r : grant_open(q, ino, accmode, &a, out);
}

int ctl_ns_open(struct ctl_req *q, const void *in_, void *out)
{
    const PB(OpenRequest) *in = in_;
    if (in->truncate)
        rpc_may_block();
    return open_object(q, &q->ctx, in->ino, in->accmode, in->truncate, out);
}

int ctl_ns_close(struct ctl_req *q, const void *in_, void *out)
{
    const PB(CloseRequest) *in = in_;

    (void)out;
    if (in->n_more > CTL_CLOSE_MAX)
        return ctl_fail(q, -EINVAL, "%zu handles: at most %u besides the first", in->n_more, CTL_CLOSE_MAX);
    for (size_t i = 0; i < in->n_more; i++)
        sess_object_close(q->s->sess, q->sess, in->more[i], 0, 0);
    return sess_object_close(q->s->sess, q->sess, in->handle, q->slot, q->ctx.id.seq);
}

static int create_by_engine(struct ctl_req *q, const PB(CreateRequest) * in, const struct pst_new *what,
                            PB(CreateReply) * out)
{
    bool created = false;
    struct pst_attr a;
    const char *name;
    int r = ctl_path(q, in->name, &name);

    if (!r)
        r = pst_store_create(q->cont, &q->ctx, in->parent, name, what, (int)in->accmode, false, &a, &created);
    if (r)
        return r;
    out->created = created;
    if (opened_before(q, a.ino, in->accmode, &out->open->handle))
        pst_store_release(q->cont, a.ino);
    else
        r = keep_open(q, a.ino, in->accmode, &out->open->handle);
    if (!r)
        r = grant_open(q, a.ino, in->accmode, &a, out->open);
    out->attr = out->open->attr;
    return r;
}

static int create_and_open(struct ctl_req *q, const PB(CreateRequest) * in, const struct pst_attr *a, bool created,
                           PB(OpenReply) * out)
{
    struct pst_ctx plain;
    struct pst_attr now;

    /* A repeated request may find what it created given away: then its owner's mode counts. */
    if (created && (pst_store_getattr(q->cont, &q->ctx, a->ino, &now) || now.uid != q->cred.uid))
        created = false;
    /* The request's id went with the creation: the open is not recorded in the store. */
    plain = (struct pst_ctx){.cred = created ? NULL : &q->cred};
    return open_object(q, &plain, a->ino, in->accmode, false, out);
}

int ctl_ns_create(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(CreateRequest) *in = in_;
    PB(CreateReply) *out = out_;
    const struct pst_new what = {.mode = S_IFREG | (in->mode & 07777), .exclusive = in->exclusive};
    struct pst_attr a;
    bool created = false;
    int r;

    if (in->mode & ~07777u)
        return ctl_fail(q, -EINVAL, "mode %o: permission bits only", in->mode);
    if (in->open) {
        r = check_accmode(q, in->accmode);
        if (r)
            return r;
        out->open = arena_alloc(&q->a, sizeof *out->open);
        if (!out->open)
            return -ENOMEM;
        penstock__v1__open_reply__init(out->open);
        if (engine_judges(q->cont->store))
            return create_by_engine(q, in, &what, out);
    }
    r = ctl_make(q, in->parent, in->name, &what, &a, &created);
    if (r)
        return r;
    out->created = created;
    out->attr = ctl_attr(q, &a);
    if (!out->attr)
        return -ENOMEM;
    return in->open ? create_and_open(q, in, &a, created, out->open) : 0;
}

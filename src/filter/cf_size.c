/*
 * setattr of a size. At a chunk's edge the store below does it all. Within a chunk that chunk is replaced by a shorter
 * one, which cuts the file in the same step. It never waits for operations in queues: like another instance's, its
 * replacement counts if the chunk is still the one that it read.
 */
#include "cf.h"

#include "store/perm.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static const struct pst_ctx trusted;

void cf_size_done(struct cf *cf)
{
    if (cf->sync_queue)
        pst_queue_close(cf->sync_queue);
    cf->sync_queue = NULL;
    codec_ctx_done(&cf->sync_ctx);
}

/* Under sync_lock. */
static int ready(struct cf *cf)
{
    int r = cf->sync_ctx.seal ? 0 : codec_ctx_init(&cf->sync_ctx);

    return r || cf->sync_queue ? r : pst_queue_open(cf->f.st.next, 1, &cf->sync_queue);
}

struct cut {
    struct cf *cf;
    struct pst_cont *c;
    uint64_t ino, size;
    uint32_t opf; /* of the replacement */
    const struct pst_reqid *id;
    uint8_t *plain, *stored; /* a chunk each */
};

static struct pst_op low_op(const struct cut *x, enum pst_op_kind kind, struct iovec *iov)
{
    uint32_t size = cf_chunk_size(x->c);

    *iov = (struct iovec){x->stored, size};
    return (struct pst_op){.kind = kind,
                           .cont = x->c->next,
                           .ino = x->ino,
                           .offset = x->size / size,
                           .iov = iov,
                           .iovcnt = 1,
                           .length = size};
}

/* One try: -ESTALE with *ret_version of what is there now. */
static int cut_once(struct cut *x, bool *ret_again)
{
    uint32_t size = cf_chunk_size(x->c), len = 0, keep = (uint32_t)(x->size % size);
    struct cf_used used;
    struct iovec iov;
    struct pst_op op = low_op(x, PST_OP_CHUNK_READ, &iov);
    uint64_t least = cf_seen(x->cf, x->c, x->ino, op.offset);
    int64_t r = pst_queue_run(x->cf->sync_queue, &op);
    uint64_t version = op.version, gen = 0;

    if (r >= 0)
        r = op.version ? cf_decode(x->cf, &x->cf->sync_ctx, x->c, &op, least, x->stored, x->plain, size, &len, &gen)
                       : 0;
    if (r < 0)
        return (int)r;
    op = low_op(x, PST_OP_CHUNK_REPLACE, &iov);
    r = cf_encode(x->cf, &x->cf->sync_ctx, x->c, &op, &iov, gen, x->plain, len < keep ? len : keep, x->stored,
                  x->stored, &used);
    if (r < 0)
        return (int)r;
    op.flags = PST_OPF_SET_SIZE | x->opf;
    op.new_size = x->size;
    op.version = version;
    op.ctx.id = *x->id;
    r = pst_queue_run(x->cf->sync_queue, &op);
    *ret_again = r == -ESTALE && (!x->id->seq || op.version != version);
    if (r >= 0 && (!x->id->seq || op.version > version) && cf_replaced(x->cf, x->c, &op, &used))
        r = -EIO;
    cf_not_replaced(&used);
    return r < 0 ? (int)r : 0;
}

static int cut_within(struct cf *cf, struct pst_cont *c, uint64_t ino, uint64_t size, uint32_t opf,
                      const struct pst_reqid *id)
{
    struct cut x = {.cf = cf, .c = c, .ino = ino, .size = size, .opf = opf, .id = id};
    void *a = NULL, *b = NULL;
    bool again = true;
    int r;

    if (posix_memalign(&a, PST_BLOCK, cf_chunk_size(c)) || posix_memalign(&b, PST_BLOCK, cf_chunk_size(c))) {
        free(a);
        return -ENOMEM;
    }
    x.plain = a;
    x.stored = b;
    {
        scoped_lock(&cf->sync_lock);
        r = ready(cf);
        while (!r && again) {
            again = false;
            r = cut_once(&x, &again);
            if (again)
                r = 0;
        }
    }
    free(a);
    free(b);
    return r;
}

/* As the store below would judge it. */
static int may_cut(const struct pst_ctx *ctx, const struct pst_attr *a, uint32_t mask, const struct pst_attr *in,
                   uint32_t *ret_clear)
{
    int r;

    if (!S_ISREG(a->mode))
        return S_ISDIR(a->mode) ? -EISDIR : -EINVAL;
    r = pst_perm_setattr(ctx->cred, a, mask, in, ret_clear);
    /*
     * ftruncate wants an open descriptor only. Who owns a file without write permission may cut it here even without
     * one: he could give himself the permission as well.
     */
    if (r == -EACCES && ctx->cred->uid == a->uid) {
        struct pst_attr own = *a;
        own.mode |= S_IWUSR;
        r = pst_perm_setattr(ctx->cred, &own, mask, in, ret_clear);
    }
    return r;
}

static int cf_setattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, uint32_t mask,
                      const struct pst_attr *in, struct pst_attr *ret)
{
    struct cf *cf = container_of(c->store, struct cf, f.st);
    struct pst_attr a, other = *in;
    uint32_t clear = 0;
    bool kill;
    int r;

    if (!(mask & PST_SET_SIZE) || in->size % cf_chunk_size(c) == 0)
        return pst_store_setattr(c->next, ctx, ino, mask, in, ret);
    /* The right to write, by opening: it also keeps the object, and some stores want it for data. */
    r = pst_store_open(c->next, ctx, ino, R_OK | W_OK, false, &a);
    if (r == -EACCES)
        r = pst_store_open(c->next, &trusted, ino, R_OK | W_OK, false, &a);
    if (r)
        return r;
    r = may_cut(ctx, &a, mask, in, &clear);
    /* Not only those that were there a moment ago. */
    kill = mask & PST_SET_NO_SETID || (ctx->cred && (ctx->cred->uid || mask & (PST_SET_UID | PST_SET_GID)));
    if (!r)
        r = cut_within(cf, c, ino, in->size, kill ? PST_OPF_KILL_SETID : 0, &ctx->id);
    mask &= ~(PST_SET_SIZE | PST_SET_NO_SETID);
    other.mode &= ~clear;
    if (!r)
        r = mask ? pst_store_setattr(c->next, &trusted, ino, mask, &other, ret)
                 : pst_store_getattr(c->next, &trusted, ino, ret);
    pst_store_release(c->next, ino);
    return r;
}

void cf_size_ops(struct pst_store_ops *ops)
{
    ops->setattr = cf_setattr;
}

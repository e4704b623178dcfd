/*
 * What a write takes from a file besides: who changes a program does not thereby get the rights that it had. For a
 * write through its pages the kernel asks and takes them itself, by setattr and removexattr in the name of who writes;
 * around them it leaves all that to us.
 */
#include "fm.h"

#include "store/perm.h"

#include <errno.h>

static int drop_setid(struct fm *m, uint64_t ino)
{
    static const struct pst_attr none;
    struct pst_attr a;
    int r = cl_getattr(m->cl, NULL, ino, &a);

    if (r)
        return r;
    if (a.mode & pst_perm_setid(a.mode)) {
        r = cl_setattr(m->cl, NULL, ino, PST_SET_NO_SETID, &none, &a);
        if (r)
            return r;
        /* Before the bytes come: what the kernel remembers of the mode would let the changed program run with it. */
        fuse_lowlevel_notify_inval_inode(m->se, ino, -1, 0);
    }
    fm_node_seen(m->nodes, &a, false);
    return 0;
}

/* Where the store cannot be asked it counts as having none, as for the kernel: the write waits for the store, too. */
static int drop_capability(struct fm *m, uint64_t ino)
{
    uint64_t asked_ns = now_ns();
    struct pst_ctx ctx;
    int64_t had;
    int r = 0;

    cl_ctx_begin(m->cl, NULL, &ctx);
    had = pst_store_getxattr(m->cont, &ctx, ino, FM_CAPABILITY_XATTR, NULL, 0);
    if (had >= 0)
        r = pst_store_removexattr(m->cont, &ctx, ino, FM_CAPABILITY_XATTR);
    cl_ctx_end(m->cl, &ctx);
    if (r && r != -ENODATA)
        return r;
    if (had >= 0 || had == -ENODATA)
        fm_node_set_nocap(m->nodes, ino, asked_ns);
    return 0;
}

int fm_drop_privs(struct fm *m, uint64_t ino, bool setid)
{
    uint32_t maybe = fm_node_privs(m->nodes, ino);
    int r = 0;

    if ((maybe & FM_SETID) && setid)
        r = drop_setid(m, ino);
    if (!r && (maybe & FM_CAPABILITY))
        r = drop_capability(m, ino);
    return r == -ENOENT ? 0 : r; /* it is gone, and these with it: the write says so */
}

/*
 * What a write takes from a file besides: who changes a program does not thereby get the rights that it had. Set-id
 * bits go in the store, in the same step as the bytes come (PST_OPF_KILL_SETID). A capability goes before them; the
 * kernel looks for one only as often as it asks for attributes, which may be never while another mount gives one.
 */
#include "fm.h"

#include <errno.h>

/* Where the store cannot be asked it counts as having none, as for the kernel: the write waits for the store, too. */
int fm_drop_capability(struct fm *m, uint64_t ino)
{
    uint64_t asked_ns = now_ns();
    struct pst_ctx ctx;
    int64_t had;
    int r = 0;

    if (!fm_node_cap(m->nodes, ino))
        return 0;
    cl_ctx_begin(m->cl, NULL, &ctx);
    had = pst_store_getxattr(m->cont, &ctx, ino, FM_CAPABILITY_XATTR, NULL, 0);
    if (had >= 0)
        r = pst_store_removexattr(m->cont, &ctx, ino, FM_CAPABILITY_XATTR);
    cl_ctx_end(m->cl, &ctx);
    if (r && r != -ENODATA)
        return r == -ENOENT ? 0 : r; /* the object is gone: the write says so */
    if (had >= 0 || had == -ENODATA)
        fm_node_set_nocap(m->nodes, ino, asked_ns);
    return 0;
}

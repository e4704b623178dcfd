/* Conversions between the kernel's terms and the store's, and who asks. */
#include "fm.h"

#include <errno.h>
#include <string.h>

#define BLKSIZE_MAX (128 * KiB) /* st_blksize: the C library allocates a buffer of this size for each FILE */

void fm_cred(fuse_req_t req, struct pst_cred *ret)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    gid_t list[PST_GROUPS_MAX];
    int n;

    ret->uid = ctx->uid;
    ret->gid = ctx->gid;
    ret->ngroups = 0;
    /* Groups decide nothing for root; they are in /proc, so they cost system calls. pid 0: a process we cannot see. */
    if (ctx->uid == 0 || ctx->pid == 0)
        return;
    n = fuse_req_getgroups(req, PST_GROUPS_MAX, list);
    if (n > PST_GROUPS_MAX)
        n = PST_GROUPS_MAX;
    for (int i = 0; i < n; i++)
        ret->groups[i] = list[i];
    ret->ngroups = n > 0 ? (uint32_t)n : 0;
}

int fm_errno(int64_t r)
{
    switch (-r) {
    case 0:
        return 0;
    case EAGAIN:       /* waiting is inside: none of these means something to a file's user */
    case EPROTO:
    case EBADMSG:
    case ENOTCONN:
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EPIPE:
    case ETIMEDOUT: /* it has waited, as long as it was told to */
    case EMSGSIZE:
    case ENOSYS: /* would make the kernel stop asking for good */
        return EIO;
    default:
        return r < 0 && r > -512 ? (int)-r : EIO; /* the kernel refuses larger ones */
    }
}

void fm_reply_err(fuse_req_t req, int64_t r)
{
    fuse_reply_err(req, fm_errno(r));
}

int fm_stale(int r)
{
    return r == -ENOENT ? -ESTALE : r;
}

static struct timespec to_timespec(int64_t ns)
{
    int64_t sec = ns / (int64_t)NSEC_PER_SEC, rest = ns % (int64_t)NSEC_PER_SEC;

    if (rest < 0) {
        sec--;
        rest += (int64_t)NSEC_PER_SEC;
    }
    return (struct timespec){.tv_sec = sec, .tv_nsec = rest};
}

void fm_stat(const struct pst_attr *a, struct stat *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->st_ino = a->ino;
    ret->st_mode = a->mode;
    ret->st_nlink = a->nlink;
    ret->st_uid = a->uid;
    ret->st_gid = a->gid;
    ret->st_rdev = a->rdev;
    ret->st_size = (off_t)a->size;
    ret->st_blocks = (blkcnt_t)(a->used / 512);
    ret->st_blksize = (blksize_t)(a->chunk_size ? min_u64(a->chunk_size, BLKSIZE_MAX) : PST_BLOCK);
    ret->st_atim = to_timespec(a->atime_ns);
    ret->st_mtim = to_timespec(a->mtime_ns);
    ret->st_ctim = to_timespec(a->ctime_ns);
}

void fm_entry(struct fm *m, const struct pst_attr *a, struct fuse_entry_param *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->ino = a->ino;
    fm_stat(a, &ret->attr);
    ret->attr_timeout = m->attr_timeout;
    ret->entry_timeout = m->entry_timeout;
    fm_node_seen(m->nodes, a, !m->exclusive);
}

/* The container's side: struct side_file is a struct pst_file under another name. */
#include "side.h"

#include <errno.h>
#include <string.h>

static struct pst_file *file(struct side_file *f)
{
    return (struct pst_file *)f;
}

static int st_lstat(struct side *s, const char *path, struct stat *ret)
{
    return pst_lstat(s->fs, path, ret);
}

static int st_list(struct side *s, const char *path, int (*fn)(void *, const char *, const struct stat *), void *user)
{
    struct pst_dir *d;
    struct pst_entry e;
    int r = pst_opendir(s->fs, path, PST_DIR_STAT, &d), more;

    if (r < 0)
        return r;
    while ((more = pst_readdir(d, &e)) == 1 && r == 0)
        r = fn(user, e.name, &e.st);
    pst_closedir(d);
    return more < 0 ? more : r;
}

static int st_mkdir(struct side *s, const char *path, mode_t mode)
{
    return pst_mkdir(s->fs, path, mode);
}

static int st_mknod(struct side *s, const char *path, mode_t mode, dev_t rdev)
{
    return pst_mknod(s->fs, path, mode, rdev);
}

static int st_symlink(struct side *s, const char *target, const char *path)
{
    return pst_symlink(s->fs, target, path);
}

static int64_t st_readlink(struct side *s, const char *path, char *ret, size_t size)
{
    return pst_readlink(s->fs, path, ret, size);
}

static int st_link(struct side *s, const char *from, const char *to)
{
    return pst_link(s->fs, from, to);
}

static int st_unlink(struct side *s, const char *path)
{
    return pst_unlink(s->fs, path);
}

static int st_rmdir(struct side *s, const char *path)
{
    return pst_rmdir(s->fs, path);
}

static int st_chmod(struct side *s, const char *path, mode_t mode)
{
    return pst_chmod(s->fs, path, mode);
}

static int st_chown(struct side *s, const char *path, uid_t uid, gid_t gid)
{
    return pst_chown(s->fs, path, uid, gid, PST_NOFOLLOW);
}

static int st_utimens(struct side *s, const char *path, const struct timespec t[2])
{
    return pst_utimens(s->fs, path, t, PST_NOFOLLOW);
}

static int64_t st_listxattr(struct side *s, const char *path, char *ret, size_t size)
{
    return pst_listxattr(s->fs, path, ret, size, PST_NOFOLLOW);
}

static int64_t st_getxattr(struct side *s, const char *path, const char *name, void *ret, size_t size)
{
    return pst_getxattr(s->fs, path, name, ret, size, PST_NOFOLLOW);
}

static int st_setxattr(struct side *s, const char *path, const char *name, const void *value, size_t size)
{
    return pst_setxattr(s->fs, path, name, value, size, 0, PST_NOFOLLOW);
}

static int st_open(struct side *s, const char *path, int flags, mode_t mode, struct side_file **ret)
{
    struct pst_file *f;
    int r = pst_open(s->fs, path, flags | O_NOFOLLOW, mode, &f);

    if (r == 0)
        *ret = (struct side_file *)f;
    return r;
}

static int64_t st_pread(struct side_file *f, void *buf, size_t n, uint64_t at)
{
    return pst_pread(file(f), buf, n, at);
}

static int64_t st_pwrite(struct side_file *f, const void *buf, size_t n, uint64_t at)
{
    return pst_pwrite(file(f), buf, n, at);
}

static int st_truncate(struct side_file *f, uint64_t size)
{
    return pst_ftruncate(file(f), size);
}

static int64_t st_seek(struct side_file *f, uint64_t at, int whence)
{
    return pst_seek(file(f), at, whence);
}

static int st_fsync(struct side_file *f)
{
    return pst_fsync(file(f));
}

static int st_close(struct side_file *f)
{
    return pst_close(file(f));
}

static int st_sync(struct side *s, const char *path)
{
    (void)path;
    return pst_sync(s->fs);
}

const struct side_ops side_store = {
    .remote = true,
    .lstat = st_lstat,
    .list = st_list,
    .mkdir = st_mkdir,
    .mknod = st_mknod,
    .symlink = st_symlink,
    .readlink = st_readlink,
    .link = st_link,
    .unlink = st_unlink,
    .rmdir = st_rmdir,
    .chmod = st_chmod,
    .chown = st_chown,
    .utimens = st_utimens,
    .listxattr = st_listxattr,
    .getxattr = st_getxattr,
    .setxattr = st_setxattr,
    .open = st_open,
    .pread = st_pread,
    .pwrite = st_pwrite,
    .truncate = st_truncate,
    .seek = st_seek,
    .fsync = st_fsync,
    .close = st_close,
    .sync = st_sync,
};

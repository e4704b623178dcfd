/* The operating system's side. */
#include "side.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

struct side_file {
    int fd;
};

int side_join(const char *dir, const char *name, char ret[SIDE_PATH_MAX])
{
    size_t n = strlen(dir);
    int len = snprintf(ret, SIDE_PATH_MAX, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    return len >= SIDE_PATH_MAX ? -ENAMETOOLONG : 0;
}

#define RET(call) return (call) < 0 ? -errno : 0

static int os_lstat(struct side *s, const char *path, struct stat *ret)
{
    (void)s;
    RET(lstat(path, ret));
}

static int os_list(struct side *s, const char *path, int (*fn)(void *, const char *, const struct stat *), void *user)
{
    DIR *d = opendir(path);
    struct dirent *e;
    struct stat st;
    int r = 0;

    (void)s;
    if (!d)
        return -errno;
    while (r == 0 && (errno = 0, e = readdir(d)) != NULL) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            r = errno == ENOENT ? 0 : -errno; /* removed meanwhile */
        else
            r = fn(user, e->d_name, &st);
    }
    if (r == 0 && errno)
        r = -errno;
    closedir(d);
    return r;
}

static int os_mkdir(struct side *s, const char *path, mode_t mode)
{
    (void)s;
    RET(mkdir(path, mode));
}

static int os_mknod(struct side *s, const char *path, mode_t mode, dev_t rdev)
{
    (void)s;
    RET(mknod(path, mode, rdev));
}

static int os_symlink(struct side *s, const char *target, const char *path)
{
    (void)s;
    RET(symlink(target, path));
}

static int64_t os_readlink(struct side *s, const char *path, char *ret, size_t size)
{
    ssize_t n = readlink(path, ret, size - 1);

    (void)s;
    if (n < 0)
        return -errno;
    ret[n] = 0;
    return n;
}

static int os_link(struct side *s, const char *from, const char *to)
{
    (void)s;
    RET(linkat(AT_FDCWD, from, AT_FDCWD, to, 0));
}

static int os_unlink(struct side *s, const char *path)
{
    (void)s;
    RET(unlink(path));
}

static int os_rmdir(struct side *s, const char *path)
{
    (void)s;
    RET(rmdir(path));
}

static int os_chmod(struct side *s, const char *path, mode_t mode)
{
    (void)s;
    RET(chmod(path, mode));
}

static int os_chown(struct side *s, const char *path, uid_t uid, gid_t gid)
{
    (void)s;
    RET(lchown(path, uid, gid));
}

static int os_utimens(struct side *s, const char *path, const struct timespec t[2])
{
    (void)s;
    RET(utimensat(AT_FDCWD, path, t, AT_SYMLINK_NOFOLLOW));
}

static int64_t os_listxattr(struct side *s, const char *path, char *ret, size_t size)
{
    ssize_t n = llistxattr(path, ret, size);
    (void)s;
    return n < 0 ? -errno : n;
}

static int64_t os_getxattr(struct side *s, const char *path, const char *name, void *ret, size_t size)
{
    ssize_t n = lgetxattr(path, name, ret, size);
    (void)s;
    return n < 0 ? -errno : n;
}

static int os_setxattr(struct side *s, const char *path, const char *name, const void *value, size_t size)
{
    (void)s;
    RET(lsetxattr(path, name, value, size, 0));
}

static int os_open(struct side *s, const char *path, int flags, mode_t mode, struct side_file **ret)
{
    struct side_file *f = malloc(sizeof *f);

    (void)s;
    if (!f)
        return -ENOMEM;
    f->fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, mode);
    if (f->fd < 0) {
        int e = -errno;
        free(f);
        return e;
    }
    *ret = f;
    return 0;
}

static int64_t os_pread(struct side_file *f, void *buf, size_t n, uint64_t at)
{
    size_t done = 0;

    while (done < n) {
        ssize_t k = pread(f->fd, (char *)buf + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -errno;
        if (k == 0)
            break;
        done += (size_t)k;
    }
    return (int64_t)done;
}

static int64_t os_pwrite(struct side_file *f, const void *buf, size_t n, uint64_t at)
{
    size_t done = 0;

    while (done < n) {
        ssize_t k = pwrite(f->fd, (const char *)buf + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -errno;
        done += (size_t)k;
    }
    return (int64_t)done;
}

static int os_truncate(struct side_file *f, uint64_t size)
{
    RET(ftruncate(f->fd, (off_t)size));
}

static int64_t os_seek(struct side_file *f, uint64_t at, int whence)
{
    off_t o = lseek(f->fd, (off_t)at, whence);
    return o < 0 ? -errno : o;
}

static int os_fsync(struct side_file *f)
{
    RET(fsync(f->fd));
}

static int os_close(struct side_file *f)
{
    int r = close(f->fd) < 0 ? -errno : 0;
    free(f);
    return r;
}

static int os_sync(struct side *s, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r;

    (void)s;
    if (fd < 0)
        return -errno;
    r = syncfs(fd) < 0 ? -errno : 0;
    close(fd);
    return r;
}

static int os_flush(struct side_file *f)
{
    (void)f;
    return 0;
}

static int os_fstat(struct side_file *f, struct stat *ret)
{
    RET(fstat(f->fd, ret));
}

static int os_fchmod(struct side_file *f, mode_t mode)
{
    RET(fchmod(f->fd, mode));
}

static int os_fchown(struct side_file *f, uid_t uid, gid_t gid)
{
    RET(fchown(f->fd, uid, gid));
}

static int os_futimens(struct side_file *f, const struct timespec t[2])
{
    RET(futimens(f->fd, t));
}

const struct side_ops side_os = {
    .remote = false,
    .lstat = os_lstat,
    .list = os_list,
    .mkdir = os_mkdir,
    .mknod = os_mknod,
    .symlink = os_symlink,
    .readlink = os_readlink,
    .link = os_link,
    .unlink = os_unlink,
    .rmdir = os_rmdir,
    .chmod = os_chmod,
    .chown = os_chown,
    .utimens = os_utimens,
    .listxattr = os_listxattr,
    .getxattr = os_getxattr,
    .setxattr = os_setxattr,
    .open = os_open,
    .pread = os_pread,
    .pwrite = os_pwrite,
    .truncate = os_truncate,
    .seek = os_seek,
    .flush = os_flush,
    .fstat = os_fstat,
    .fchmod = os_fchmod,
    .fchown = os_fchown,
    .futimens = os_futimens,
    .fsync = os_fsync,
    .close = os_close,
    .sync = os_sync,
};

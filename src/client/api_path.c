/* Calls on paths. */
#include "api.h"

#include "store/perm.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define CTX(fs) (&(struct pst_ctx){.cred = &(fs)->k->cred})
#define CONT(fs) cl_cont((fs)->k->c)
#define CTX_AT(fs, w) (&(struct pst_ctx){.cred = &(fs)->k->cred, .walk = (w)->walk[0] ? (w)->walk : NULL})
/* Every call with a path begins so. */
#define CHECK_ARGS(call, cond)                                                                                         \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            return (int)api_result(call, NULL, -EINVAL);                                                               \
    } while (0)

static int stat_path(struct pst_fs *fs, const char *call, const char *path, bool follow, struct stat *ret)
{
    struct pst_attr a;
    int r;

    CHECK_ARGS(call, fs && path && ret);
    r = api_find(fs, path, follow, &a);
    if (r == 0)
        api_stat(fs->k->c, &a, ret);
    return (int)api_result(call, path, r);
}

int pst_stat(struct pst_fs *fs, const char *path, struct stat *ret_st)
{
    return stat_path(fs, "pst_stat", path, true, ret_st);
}

int pst_lstat(struct pst_fs *fs, const char *path, struct stat *ret_st)
{
    return stat_path(fs, "pst_lstat", path, false, ret_st);
}

int pst_access(struct pst_fs *fs, const char *path, int mode)
{
    struct pst_attr a;
    int r;

    CHECK_ARGS("pst_access", fs && path && !(mode & ~(R_OK | W_OK | X_OK)));
    r = api_look(fs, path, true, &a);
    if (r == 0)
        r = pst_perm_access(&fs->k->cred, &a, mode);
    return (int)api_result("pst_access", path, r);
}

/* ---- what makes or removes a name ---- */

typedef int name_fn(struct pst_fs *fs, const struct api_where *w, const void *arg);

/* Calls fn with the place of the path's last name: in one request if the path can be resolved with it. */
static int at_name(struct pst_fs *fs, const char *path, bool missing_ok, name_fn *fn, const void *arg)
{
    struct api_where w;
    int r = -ELOOP;

    if (!api_mine(fs->k))
        return -ECHILD;
    if (api_split(fs, path, &w))
        r = fn(fs, &w, arg);
    if (!api_walk_needed(r))
        return r;
    r = api_walk_name(fs, path, missing_ok, &w);
    return r < 0 ? r : fn(fs, &w, arg);
}

static int make_at(struct pst_fs *fs, const struct api_where *w, const void *arg)
{
    const struct pst_new *in = arg;
    struct pst_attr a;

    if (w->exists)
        return -EEXIST;
    if (w->slash && !S_ISDIR(in->mode))
        return -ENOENT;
    return pst_store_make(CONT(fs), CTX_AT(fs, w), w->parent, w->name, in, &a, NULL);
}

static int make(struct pst_fs *fs, const char *call, const char *path, const struct pst_new *in)
{
    return (int)api_result(call, path, at_name(fs, path, true, make_at, in));
}

int pst_mkdir(struct pst_fs *fs, const char *path, mode_t mode)
{
    CHECK_ARGS("pst_mkdir", fs && path && !(mode & ~(mode_t)07777));
    return make(fs, "pst_mkdir", path, &(struct pst_new){.mode = S_IFDIR | mode, .exclusive = true});
}

int pst_mknod(struct pst_fs *fs, const char *path, mode_t mode, dev_t rdev)
{
    CHECK_ARGS("pst_mknod", fs && path && !S_ISDIR(mode) && !S_ISLNK(mode) && mode & S_IFMT);
    return make(fs, "pst_mknod", path, &(struct pst_new){.mode = mode, .rdev = rdev, .exclusive = true});
}

int pst_symlink(struct pst_fs *fs, const char *target, const char *path)
{
    CHECK_ARGS("pst_symlink", fs && path && target);
    return make(fs, "pst_symlink", path,
                &(struct pst_new){.mode = S_IFLNK | 0777, .target = target, .exclusive = true});
}

int64_t pst_readlink(struct pst_fs *fs, const char *path, char *ret_target, size_t size)
{
    char target[PST_SYMLINK_MAX + 1];
    struct pst_attr a;
    int r;

    CHECK_ARGS("pst_readlink", fs && path && ret_target);
    r = api_look(fs, path, false, &a);
    if (r == 0)
        r = S_ISLNK(a.mode) ? pst_store_readlink(CONT(fs), CTX(fs), a.ino, target, sizeof target) : -EINVAL;
    if (r >= 0 && (size_t)r + 1 > size)
        r = -ERANGE;
    if (r >= 0)
        memcpy(ret_target, target, (size_t)r + 1);
    return api_result("pst_readlink", path, r);
}

int pst_link(struct pst_fs *fs, const char *from, const char *to)
{
    struct api_where b;
    struct pst_attr a, attr;
    int r;

    CHECK_ARGS("pst_link", fs && from && to);
    r = api_look(fs, from, false, &a);
    if (r == 0 && S_ISDIR(a.mode))
        r = -EPERM;
    if (r == 0)
        r = api_walk_name(fs, to, true, &b);
    if (r == 0 && b.exists)
        r = -EEXIST;
    if (r == 0 && b.slash)
        r = -ENOENT;
    if (r == 0)
        r = pst_store_link(CONT(fs), CTX(fs), a.ino, b.parent, b.name, &attr);
    return (int)api_result("pst_link", to, r);
}

static int unlink_at(struct pst_fs *fs, const struct api_where *w, const void *arg)
{
    (void)arg;
    if (w->exists && S_ISDIR(w->attr.mode))
        return -EISDIR;
    return pst_store_unlink(CONT(fs), CTX_AT(fs, w), w->parent, w->name);
}

int pst_unlink(struct pst_fs *fs, const char *path)
{
    CHECK_ARGS("pst_unlink", fs && path);
    return (int)api_result("pst_unlink", path, at_name(fs, path, false, unlink_at, NULL));
}

/* "a/." and "a/..": POSIX wants EINVAL and ENOTEMPTY of rmdir; the root is busy. */
static int rmdir_unnamed(const char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n >= 2 && path[n - 1] == '.' && path[n - 2] == '.')
        return -ENOTEMPTY;
    return path[n - 1] == '.' ? -EINVAL : -EBUSY;
}

static int rmdir_at(struct pst_fs *fs, const struct api_where *w, const void *path)
{
    return !w->parent ? rmdir_unnamed(path) : pst_store_rmdir(CONT(fs), CTX_AT(fs, w), w->parent, w->name);
}

int pst_rmdir(struct pst_fs *fs, const char *path)
{
    CHECK_ARGS("pst_rmdir", fs && path);
    return (int)api_result("pst_rmdir", path, at_name(fs, path, false, rmdir_at, path));
}

int pst_rename(struct pst_fs *fs, const char *from, const char *to, unsigned int flags)
{
    struct api_where a, b;
    int r;

    CHECK_ARGS("pst_rename", fs && from && to && flags <= PST_RENAME_SWAP);
    r = api_walk(fs, from, false, false, &a);
    if (r == 0)
        r = api_walk(fs, to, false, true, &b);
    if (r == 0 && (!a.parent || !b.parent))
        r = -EBUSY;
    if (r == 0 && b.slash && !S_ISDIR(a.attr.mode))
        r = -ENOTDIR;
    if (r == 0)
        r = pst_store_rename(CONT(fs), CTX(fs), a.parent, a.name, b.parent, b.name, flags);
    return (int)api_result("pst_rename", from, r);
}

/* ---- attributes ---- */

static int set(struct pst_fs *fs, const char *call, const char *path, bool follow, uint32_t mask,
               const struct pst_attr *in)
{
    struct pst_attr a;
    int r = api_look(fs, path, follow, &a);

    if (r == 0 && mask & PST_SET_SIZE && !S_ISREG(a.mode))
        r = S_ISDIR(a.mode) ? -EISDIR : -EINVAL;
    if (r == 0 && mask)
        r = cl_setattr(fs->k->c, &fs->k->cred, a.ino, mask, in, NULL);
    return (int)api_result(call, path, r);
}

int pst_chmod(struct pst_fs *fs, const char *path, mode_t mode)
{
    CHECK_ARGS("pst_chmod", fs && path && !(mode & ~(mode_t)(S_IFMT | 07777)));
    return set(fs, "pst_chmod", path, true, PST_SET_MODE, &(struct pst_attr){.mode = mode & 07777});
}

int pst_chown(struct pst_fs *fs, const char *path, uid_t uid, gid_t gid, int flags)
{
    uint32_t mask = (uid == (uid_t)-1 ? 0 : PST_SET_UID) | (gid == (gid_t)-1 ? 0 : PST_SET_GID);

    CHECK_ARGS("pst_chown", fs && path && !(flags & ~PST_NOFOLLOW));
    return set(fs, "pst_chown", path, !flags, mask, &(struct pst_attr){.uid = uid, .gid = gid});
}

int pst_utimens(struct pst_fs *fs, const char *path, const struct timespec *times, int flags)
{
    struct pst_attr a;
    uint32_t mask;
    int r;

    CHECK_ARGS("pst_utimens", fs && path && !(flags & ~PST_NOFOLLOW));
    r = api_times(times, &mask, &a);
    return r < 0 ? (int)api_result("pst_utimens", path, r) : set(fs, "pst_utimens", path, !flags, mask, &a);
}

int pst_truncate(struct pst_fs *fs, const char *path, uint64_t size)
{
    CHECK_ARGS("pst_truncate", fs && path);
    return set(fs, "pst_truncate", path, true, PST_SET_SIZE, &(struct pst_attr){.size = size});
}

int pst_statvfs(struct pst_fs *fs, struct statvfs *ret_st)
{
    struct pst_statfs s;
    int r;

    CHECK_ARGS("pst_statvfs", fs && ret_st);
    r = api_mine(fs->k) ? pst_store_statfs(CONT(fs), &s) : -ECHILD;
    if (r < 0)
        return (int)api_result("pst_statvfs", NULL, r);
    *ret_st = (struct statvfs){
        .f_bsize = PST_BLOCK, .f_frsize = PST_BLOCK, .f_blocks = s.total_bytes / PST_BLOCK,
        .f_bfree = s.free_bytes / PST_BLOCK, .f_bavail = s.free_bytes / PST_BLOCK,
        .f_files = s.objects + s.free_bytes / PST_BLOCK, .f_ffree = s.free_bytes / PST_BLOCK,
        .f_favail = s.free_bytes / PST_BLOCK, .f_fsid = CONT(fs)->info.id, .f_namemax = PST_NAME_MAX};
    return 0;
}

int pst_sync(struct pst_fs *fs)
{
    CHECK_ARGS("pst_sync", fs);
    return (int)api_result("pst_sync", NULL, cl_syncfs(fs->k->c));
}

int pst_fsync_dir(struct pst_fs *fs, const char *path)
{
    struct pst_attr a;
    int r;

    CHECK_ARGS("pst_fsync_dir", fs && path);
    r = api_find(fs, path, true, &a);
    if (r == 0)
        r = S_ISDIR(a.mode) ? cl_fsync_dir(fs->k->c, a.ino) : -ENOTDIR;
    return (int)api_result("pst_fsync_dir", path, r);
}

/* ---- extended attributes ---- */

int pst_setxattr(struct pst_fs *fs, const char *path, const char *name, const void *value, size_t size, int flags,
                 int path_flags)
{
    struct pst_attr a;
    int r;

    CHECK_ARGS("pst_setxattr", fs && path && name && (value || !size) && !(path_flags & ~PST_NOFOLLOW));
    r = api_look(fs, path, !path_flags, &a);
    if (r == 0)
        r = pst_store_setxattr(CONT(fs), CTX(fs), a.ino, name, value, size, (uint32_t)flags);
    return (int)api_result("pst_setxattr", path, r);
}

int64_t pst_getxattr(struct pst_fs *fs, const char *path, const char *name, void *ret_value, size_t size,
                     int path_flags)
{
    struct pst_attr a;
    int64_t r;

    CHECK_ARGS("pst_getxattr", fs && path && name && (ret_value || !size) && !(path_flags & ~PST_NOFOLLOW));
    r = api_look(fs, path, !path_flags, &a);
    if (r == 0)
        r = pst_store_getxattr(CONT(fs), CTX(fs), a.ino, name, ret_value, size);
    return api_result("pst_getxattr", path, r);
}

int64_t pst_listxattr(struct pst_fs *fs, const char *path, char *ret_names, size_t size, int path_flags)
{
    struct pst_attr a;
    int64_t r;

    CHECK_ARGS("pst_listxattr", fs && path && (ret_names || !size) && !(path_flags & ~PST_NOFOLLOW));
    r = api_look(fs, path, !path_flags, &a);
    if (r == 0)
        r = pst_store_listxattr(CONT(fs), CTX(fs), a.ino, ret_names, size);
    return api_result("pst_listxattr", path, r);
}

int pst_removexattr(struct pst_fs *fs, const char *path, const char *name, int path_flags)
{
    struct pst_attr a;
    int r;

    CHECK_ARGS("pst_removexattr", fs && path && name && !(path_flags & ~PST_NOFOLLOW));
    r = api_look(fs, path, !path_flags, &a);
    if (r == 0)
        r = pst_store_removexattr(CONT(fs), CTX(fs), a.ino, name);
    return (int)api_result("pst_removexattr", path, r);
}

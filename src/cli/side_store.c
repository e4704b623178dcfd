/* The container's side: struct side_file is a struct pst_file under another name. */
#include "side.h"

#include <errno.h>
#include <string.h>

/* ---- directories that are kept ---- */

#define DIRS_MAX 64u

struct kept {
    char *path; /* NULL: free */
    struct pst_fs *fs;
    unsigned users;
    uint64_t used; /* when, in calls */
};

struct side_dirs {
    pthread_mutex_t lock; /* all below */
    struct kept kept[DIRS_MAX];
    uint64_t calls;
};

/* Where a call goes: a handle, and the path from there. */
struct place_in {
    struct pst_fs *fs;
    const char *path;
    struct kept *kept; /* NULL: the whole path */
};

void side_keep_dirs(struct side *s)
{
    if (!s->ops->remote || s->dirs)
        return;
    s->dirs = calloc(1, sizeof *s->dirs);
    if (s->dirs)
        pthread_mutex_init(&s->dirs->lock, NULL);
}

static void forget(struct kept *k)
{
    if (k->path)
        pst_disconnect(k->fs);
    free(k->path);
    *k = (struct kept){0};
}

void side_drop_dirs(struct side *s)
{
    if (!s->dirs)
        return;
    for (unsigned i = 0; i < DIRS_MAX; i++)
        forget(&s->dirs->kept[i]);
    pthread_mutex_destroy(&s->dirs->lock);
    free(s->dirs);
    s->dirs = NULL;
}

/* Lock held. */
static struct kept *find(struct side_dirs *d, const char *dir, size_t n)
{
    for (unsigned i = 0; i < DIRS_MAX; i++) {
        struct kept *k = &d->kept[i];
        if (k->path && !strncmp(k->path, dir, n) && !k->path[n])
            return k;
    }
    return NULL;
}

/* Lock held. A place that nobody uses, the one unused for longest; NULL: none. */
static struct kept *spare(struct side_dirs *d)
{
    struct kept *best = NULL;

    for (unsigned i = 0; i < DIRS_MAX; i++) {
        struct kept *k = &d->kept[i];
        if (!k->users && (!best || k->used < best->used))
            best = k;
    }
    return best;
}

/* Resolves a directory and keeps it: the place, used by the caller, or NULL when that does not work. */
static struct kept *keep(struct side *s, const char *dir, size_t n)
{
    struct side_dirs *d = s->dirs;
    char *path = strndup(dir, n);
    struct pst_fs *fs;
    struct kept *k;

    if (!path || pst_workdir(s->fs, path, &fs) < 0) {
        free(path);
        return NULL;
    }
    pthread_mutex_lock(&d->lock);
    k = find(d, dir, n); /* another thread was faster */
    if (!k && (k = spare(d)) != NULL) {
        forget(k);
        *k = (struct kept){.path = take_ptr(path), .fs = take_ptr(fs)};
    }
    if (k) {
        k->users++;
        k->used = ++d->calls;
    }
    pthread_mutex_unlock(&d->lock);
    pst_disconnect(fs);
    free(path);
    return k;
}

static struct place_in at(struct side *s, const char *path)
{
    const char *slash = strrchr(path, '/');
    struct side_dirs *d = s->dirs;
    struct kept *k;
    size_t n;

    if (!d || path[0] != '/' || slash == path || !slash[1] || !strcmp(slash, "/.") || !strcmp(slash, "/.."))
        return (struct place_in){s->fs, path, NULL};
    n = (size_t)(slash - path);
    pthread_mutex_lock(&d->lock);
    k = find(d, path, n);
    if (k) {
        k->users++;
        k->used = ++d->calls;
    }
    pthread_mutex_unlock(&d->lock);
    if (!k)
        k = keep(s, path, n);
    return k ? (struct place_in){k->fs, slash + 1, k} : (struct place_in){s->fs, path, NULL};
}

static int64_t leave(struct side *s, struct place_in p, int64_t r)
{
    if (p.kept) {
        scoped_lock(&s->dirs->lock);
        p.kept->users--;
    }
    return r;
}

/* One call of the library on a path. */
#define AT(call, ...)                                                                                                  \
    do {                                                                                                               \
        struct place_in p_ = at(s, path);                                                                              \
        return (typeof(call(p_.fs, p_.path, ##__VA_ARGS__)))leave(s, p_, call(p_.fs, p_.path, ##__VA_ARGS__));         \
    } while (0)

/* ---- calls ---- */

static struct pst_file *file(struct side_file *f)
{
    return (struct pst_file *)f;
}

static int st_lstat(struct side *s, const char *path, struct stat *ret)
{
    AT(pst_lstat, ret);
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
    AT(pst_mkdir, mode);
}

static int st_mknod(struct side *s, const char *path, mode_t mode, dev_t rdev)
{
    AT(pst_mknod, mode, rdev);
}

static int st_symlink(struct side *s, const char *target, const char *path)
{
    struct place_in p = at(s, path);

    return (int)leave(s, p, pst_symlink(p.fs, target, p.path));
}

static int64_t st_readlink(struct side *s, const char *path, char *ret, size_t size)
{
    AT(pst_readlink, ret, size);
}

static int st_link(struct side *s, const char *from, const char *to)
{
    return pst_link(s->fs, from, to);
}

static int st_unlink(struct side *s, const char *path)
{
    AT(pst_unlink);
}

static int st_rmdir(struct side *s, const char *path)
{
    return pst_rmdir(s->fs, path);
}

static int st_chmod(struct side *s, const char *path, mode_t mode)
{
    AT(pst_chmod, mode);
}

static int st_chown(struct side *s, const char *path, uid_t uid, gid_t gid)
{
    AT(pst_chown, uid, gid, PST_NOFOLLOW);
}

static int st_utimens(struct side *s, const char *path, const struct timespec t[2])
{
    AT(pst_utimens, t, PST_NOFOLLOW);
}

static int64_t st_listxattr(struct side *s, const char *path, char *ret, size_t size)
{
    AT(pst_listxattr, ret, size, PST_NOFOLLOW);
}

static int64_t st_getxattr(struct side *s, const char *path, const char *name, void *ret, size_t size)
{
    AT(pst_getxattr, name, ret, size, PST_NOFOLLOW);
}

static int st_setxattr(struct side *s, const char *path, const char *name, const void *value, size_t size)
{
    AT(pst_setxattr, name, value, size, 0, PST_NOFOLLOW);
}

static int st_open(struct side *s, const char *path, int flags, mode_t mode, struct side_file **ret)
{
    struct place_in p = at(s, path);
    struct pst_file *f;
    int r = (int)leave(s, p, pst_open(p.fs, p.path, flags | O_NOFOLLOW, mode, &f));

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

static int st_flush(struct side_file *f)
{
    return pst_flush(file(f));
}

static int st_fstat(struct side_file *f, struct stat *ret)
{
    return pst_fstat(file(f), ret);
}

static int st_fchmod(struct side_file *f, mode_t mode)
{
    return pst_fchmod(file(f), mode);
}

static int st_fchown(struct side_file *f, uid_t uid, gid_t gid)
{
    return pst_fchown(file(f), uid, gid);
}

static int st_futimens(struct side_file *f, const struct timespec t[2])
{
    return pst_futimens(file(f), t);
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
    .flush = st_flush,
    .fstat = st_fstat,
    .fchmod = st_fchmod,
    .fchown = st_fchown,
    .futimens = st_futimens,
    .fsync = st_fsync,
    .close = st_close,
    .sync = st_sync,
};

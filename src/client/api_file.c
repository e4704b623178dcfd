/* Calls on open files. */
#include "api.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define OPEN_FLAGS                                                                                                     \
    (O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_APPEND | O_NOFOLLOW | O_DIRECT | O_SYNC | O_DSYNC | O_CLOEXEC |        \
     O_NOCTTY | O_NONBLOCK | O_LARGEFILE | O_NOATIME)
#define IOV_MAX_PARTS 1024

static int64_t result(const char *call, const struct pst_file *f, int64_t r)
{
    char text[32];

    if (r >= 0)
        return r;
    snprintf(text, sizeof text, "object %llu", f ? (unsigned long long)cl_file_ino(f->f) : 0);
    return api_result(call, f ? text : NULL, r);
}

/* What open(2) says of objects that are no regular files. */
static int openable(uint32_t mode, bool exclusive)
{
    if (exclusive)
        return -EEXIST;
    return S_ISREG(mode) ? 0 : S_ISDIR(mode) ? -EISDIR : S_ISLNK(mode) ? -ELOOP : -ENXIO;
}

static int create_at(struct pst_fs *fs, const struct api_where *w, int flags, mode_t mode, struct cl_file **ret)
{
    return cl_create(fs->k->c, &fs->k->cred, w->parent, w->walk[0] ? w->walk : NULL, w->name, mode & 07777, flags, ret,
                     NULL);
}

/*
 * The usual case of O_CREAT without a look at the name before: true, and the call's result. False: the name may be a
 * link to follow, or a file in a directory that may not be written, or there is a link on the way; a look tells.
 */
static bool create_at_once(struct pst_fs *fs, const char *path, int flags, mode_t mode, struct cl_file **ret,
                           int *ret_result)
{
    bool exclusive = flags & O_EXCL;
    struct api_where w;
    int r;

    if (!api_split(fs, path, &w)) {
        r = exclusive ? -EINVAL : api_walk_name(fs, path, true, &w);
        if (exclusive || (r == 0 && (!w.parent || w.slash)))
            return false;
    } else {
        r = 0;
    }
    if (r == 0)
        r = create_at(fs, &w, flags, mode, ret);
    *ret_result = r;
    return r == 0 || r == -ECHILD || (exclusive && !api_walk_needed(r));
}

static int look(struct pst_fs *fs, const char *path, bool follow, bool create, bool exclusive, struct api_where *ret)
{
    if (exclusive)
        return api_walk_name(fs, path, true, ret);
    if (create)
        return api_walk(fs, path, follow, true, ret);
    ret->exists = true;
    return api_look(fs, path, follow, &ret->attr);
}

static int open_path(struct pst_fs *fs, const char *path, int flags, mode_t mode, struct cl_file **ret)
{
    bool create = flags & O_CREAT, exclusive = create && flags & O_EXCL;
    bool follow = !(flags & O_NOFOLLOW) && !exclusive;
    struct api_where w;
    int r;

    if (create && create_at_once(fs, path, flags, mode, ret, &r))
        return r;
    /* A file may go or come between the look and the call: look again then, a few times. */
    for (int tries = 0; tries < 8; tries++) {
        r = look(fs, path, follow, create, exclusive, &w);
        if (r == 0 && !w.exists && w.slash)
            r = -EISDIR;
        if (r == 0 && w.exists)
            r = openable(w.attr.mode, exclusive);
        if (r < 0)
            return r;
        r = w.exists ? cl_open(fs->k->c, &fs->k->cred, w.attr.ino, flags, ret, NULL)
                     : create_at(fs, &w, flags, mode, ret);
        if (r != -ENOENT || !w.exists)
            return r;
    }
    return r;
}

int pst_open(struct pst_fs *fs, const char *path, int flags, mode_t mode, struct pst_file **ret_file)
{
    struct pst_file *f;
    int r;

    if (!fs || !path || !ret_file || flags & ~OPEN_FLAGS || (flags & O_ACCMODE) == O_ACCMODE)
        return (int)api_result("pst_open", path, -EINVAL);
    f = calloc(1, sizeof *f);
    r = f ? open_path(fs, path, flags, mode, &f->f) : -ENOMEM;
    if (r < 0) {
        free(f);
        return (int)api_result("pst_open", path, r);
    }
    f->k = fs->k;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->idle, NULL);
    *ret_file = f;
    return 0;
}

int pst_close(struct pst_file *file)
{
    char text[32];
    int r;

    if (!file)
        return 0;
    if (!api_mine(file->k))
        return (int)api_result("pst_close", NULL, -ECHILD);
    pthread_mutex_lock(&file->lock);
    while (file->busy)
        pthread_cond_wait(&file->idle, &file->lock);
    pthread_mutex_unlock(&file->lock);
    snprintf(text, sizeof text, "object %llu", (unsigned long long)cl_file_ino(file->f));
    r = cl_close(file->f);
    pthread_mutex_destroy(&file->lock);
    pthread_cond_destroy(&file->idle);
    free(file);
    return (int)api_result("pst_close", text, r);
}

int64_t pst_pread(struct pst_file *file, void *ret_buf, size_t size, uint64_t offset)
{
    if (!file || (!ret_buf && size))
        return api_result("pst_pread", NULL, -EINVAL);
    return result("pst_pread", file, cl_pread(file->f, ret_buf, size, offset));
}

static int64_t write_one(struct pst_file *f, const void *buf, size_t size, uint64_t offset)
{
    return cl_pwrite(f->f, buf, size, offset, api_opf(f));
}

int64_t pst_pwrite(struct pst_file *file, const void *buf, size_t size, uint64_t offset)
{
    if (!file || (!buf && size))
        return api_result("pst_pwrite", NULL, -EINVAL);
    return result("pst_pwrite", file, write_one(file, buf, size, offset));
}

static bool iov_ok(const struct iovec *iov, int iovcnt)
{
    uint64_t sum = 0;

    if (iovcnt < 0 || iovcnt > IOV_MAX_PARTS || (!iov && iovcnt))
        return false;
    for (int i = 0; i < iovcnt; i++) {
        if ((!iov[i].iov_base && iov[i].iov_len) || iov[i].iov_len > INT64_MAX - sum)
            return false;
        sum += iov[i].iov_len;
    }
    return true;
}

int64_t pst_preadv(struct pst_file *file, const struct iovec *iov, int iovcnt, uint64_t offset)
{
    int64_t sum = 0;

    if (!file || !iov_ok(iov, iovcnt))
        return api_result("pst_preadv", NULL, -EINVAL);
    for (int i = 0; i < iovcnt; i++) {
        int64_t r = cl_pread(file->f, iov[i].iov_base, iov[i].iov_len, offset + (uint64_t)sum);
        if (r < 0)
            return sum ? sum : result("pst_preadv", file, r);
        sum += r;
        if ((size_t)r < iov[i].iov_len)
            break;
    }
    return sum;
}

int64_t pst_pwritev(struct pst_file *file, const struct iovec *iov, int iovcnt, uint64_t offset)
{
    int64_t sum = 0;

    if (!file || !iov_ok(iov, iovcnt))
        return api_result("pst_pwritev", NULL, -EINVAL);
    for (int i = 0; i < iovcnt; i++) {
        int64_t r = write_one(file, iov[i].iov_base, iov[i].iov_len, offset + (uint64_t)sum);
        if (r < 0)
            return sum ? sum : result("pst_pwritev", file, r);
        sum += r;
    }
    return sum;
}

int64_t pst_append(struct pst_file *file, const void *buf, size_t size, uint64_t *ret_offset)
{
    if (!file || (!buf && size))
        return api_result("pst_append", NULL, -EINVAL);
    return result("pst_append", file, cl_append(file->f, buf, size, ret_offset, api_opf(file)));
}

int pst_flush(struct pst_file *file)
{
    return file ? (int)result("pst_flush", file, cl_flush(file->f)) : (int)api_result("pst_flush", NULL, -EINVAL);
}

int pst_fsync(struct pst_file *file)
{
    return file ? (int)result("pst_fsync", file, cl_fsync(file->f)) : (int)api_result("pst_fsync", NULL, -EINVAL);
}

int pst_fstat(struct pst_file *file, struct stat *ret_st)
{
    struct pst_attr a;
    int r;

    if (!file || !ret_st)
        return (int)api_result("pst_fstat", NULL, -EINVAL);
    r = cl_getattr(file->k->c, &file->k->cred, cl_file_ino(file->f), &a);
    if (r == 0)
        api_stat(file->k->c, &a, ret_st);
    return (int)result("pst_fstat", file, r);
}

static int set(struct pst_file *f, const char *call, uint32_t mask, const struct pst_attr *in)
{
    /* A size, through a descriptor that was opened for writing: the mode may forbid it since. */
    const struct pst_cred *cred = f && !(mask & PST_SET_SIZE) ? &f->k->cred : NULL;
    int r;

    if (!f)
        return (int)api_result(call, NULL, -EINVAL);
    r = mask ? cl_setattr(f->k->c, cred, cl_file_ino(f->f), mask, in, NULL) : 0;
    if (r == 0)
        f->f->changed = true;
    return (int)result(call, f, r);
}

int pst_ftruncate(struct pst_file *file, uint64_t size)
{
    if (file && (file->f->flags & O_ACCMODE) == O_RDONLY)
        return (int)result("pst_ftruncate", file, -EBADF);
    return set(file, "pst_ftruncate", PST_SET_SIZE | (file && file->k->cred.uid ? PST_SET_NO_SETID : 0),
               &(struct pst_attr){.size = size});
}

int pst_fchmod(struct pst_file *file, mode_t mode)
{
    return set(file, "pst_fchmod", PST_SET_MODE, &(struct pst_attr){.mode = mode & 07777});
}

int pst_fchown(struct pst_file *file, uid_t uid, gid_t gid)
{
    uint32_t mask = (uid == (uid_t)-1 ? 0 : PST_SET_UID) | (gid == (gid_t)-1 ? 0 : PST_SET_GID);

    return set(file, "pst_fchown", mask, &(struct pst_attr){.uid = uid, .gid = gid});
}

int pst_futimens(struct pst_file *file, const struct timespec *times)
{
    struct pst_attr a;
    uint32_t mask;
    int r = api_times(times, &mask, &a);

    return r < 0 ? (int)api_result("pst_futimens", NULL, r) : set(file, "pst_futimens", mask, &a);
}

int pst_fallocate(struct pst_file *file, int mode, uint64_t offset, uint64_t size)
{
    if (!file)
        return (int)api_result("pst_fallocate", NULL, -EINVAL);
    return (int)result("pst_fallocate", file, cl_fallocate(file->f, mode, offset, size, api_opf(file)));
}

int64_t pst_seek(struct pst_file *file, uint64_t offset, int whence)
{
    if (!file)
        return api_result("pst_seek", NULL, -EINVAL);
    return result("pst_seek", file, cl_lseek(file->f, offset, whence));
}

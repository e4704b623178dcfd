/*
 * liburoce-fs.so, a preload: programs that look for RDMA devices by path find uroce's. What is asked of
 * /sys/class/infiniband*, /sys/devices/virtual/infiniband and /dev/infiniband is asked of the directory UROCE_SYSFS
 * instead, which `uroce run` has made; all else goes to the next function of its name, untouched.
 *
 * Nothing here allocates, locks or has a thread: it may be called before constructors, in a child of fork and in a
 * signal handler. Names are not parsed beyond their begin: a path with "//" or ".." before the part of interest, or one
 * that is relative to another directory, is left alone.
 */
#undef _FILE_OFFSET_BITS
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define EXPORT   __attribute__((visibility("default")))
#define DIR_MAX  256 /* `uroce run` makes none that is longer */
#define PATH_LEN 512

/* ---- where to look ---- */

static char view[DIR_MAX];
static atomic_int view_state; /* 0: the environment was not looked at yet, 1: there is none, 2: view */

static int find_view(void)
{
    int state = atomic_load_explicit(&view_state, memory_order_acquire);
    if (state)
        return state;
    if (!environ)
        return 1; /* before the C library's own begin: ask again */
    /* Two threads may come here at once, before the constructor: both write the same. */
    const char *dir = getenv("UROCE_SYSFS");
    size_t n = dir ? strlen(dir) : 0;
    state = 1;
    if (n > 0 && n < sizeof view && dir[0] == '/') {
        memcpy(view, dir, n);
        state = 2;
    }
    atomic_store_explicit(&view_state, state, memory_order_release);
    return state;
}

/* The rest of the path behind `prefix`; NULL: it does not begin with it. */
static const char *behind(const char *path, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(path, prefix, n) == 0 ? path + n : NULL;
}

/* "infiniband", "infiniband_verbs", ..., and what lies in them. */
static int is_ours(const char *path)
{
    const char *rest = behind(path, "/sys/class/infiniband");
    if (rest)
        return *rest == '\0' || *rest == '/' || *rest == '_';
    rest = behind(path, "/dev/infiniband");
    if (!rest)
        rest = behind(path, "/sys/devices/virtual/infiniband");
    return rest && (*rest == '\0' || *rest == '/' || *rest == '_');
}

/* The path to ask for: buf, or path itself. */
static const char *map(const char *path, char buf[PATH_LEN])
{
    if (!path || path[0] != '/' || (path[1] != 's' && path[1] != 'd') || !is_ours(path) || find_view() != 2)
        return path;
    const char *rest = path[1] == 's' ? path + strlen("/sys") : path;
    size_t n = strlen(view), m = strlen(rest);
    if (n + m >= PATH_LEN)
        return path;
    memcpy(buf, view, n);
    memcpy(buf + n, rest, m + 1);
    return buf;
}

/* ---- the next function of a name ---- */

static void *next(_Atomic(void *) *slot, const char *name)
{
    void *f = atomic_load_explicit(slot, memory_order_relaxed);
    if (!f) {
        int e = errno;
        f = dlsym(RTLD_NEXT, name);
        errno = e;
        atomic_store_explicit(slot, f, memory_order_relaxed);
    }
    return f;
}

/* Calls it, or fails with ENOSYS if the C library has none of that name. */
#define CALL(type, fail, name, ...)                                                                                    \
    ({                                                                                                                 \
        __typeof__(type) *f_ = (__typeof__(type) *)next(&next_##name, #name);                                          \
        f_ ? f_(__VA_ARGS__) : (errno = ENOSYS, fail);                                                                 \
    })

/* A function whose path is its first argument, or its second behind a directory's descriptor. */
#define WRAP(ret, fail, name, params, types, ...)                                                                      \
    static _Atomic(void *) next_##name;                                                                                \
    EXPORT ret name params;                                                                                            \
    ret name params                                                                                                    \
    {                                                                                                                  \
        char buf[PATH_LEN];                                                                                            \
        return CALL(ret types, fail, name, __VA_ARGS__);                                                               \
    }

/* The headers' own declarations say more (nonnull, warn_unused_result) than is of use for passing on. */
#pragma GCC diagnostic ignored "-Wnonnull-compare"

#define MODE(flags)                                                                                                    \
    ({                                                                                                                 \
        mode_t m_ = 0;                                                                                                 \
        if (((flags)&O_CREAT) || ((flags)&O_TMPFILE) == O_TMPFILE) {                                                   \
            va_list ap_;                                                                                               \
            va_start(ap_, flags);                                                                                      \
            m_ = va_arg(ap_, mode_t);                                                                                  \
            va_end(ap_);                                                                                               \
        }                                                                                                              \
        m_;                                                                                                            \
    })

#define WRAP_OPEN(name)                                                                                                \
    static _Atomic(void *) next_##name;                                                                                \
    EXPORT int name(const char *path, int flags, ...)                                                                  \
    {                                                                                                                  \
        char buf[PATH_LEN];                                                                                            \
        mode_t mode = MODE(flags);                                                                                     \
        return CALL(int(const char *, int, ...), -1, name, map(path, buf), flags, mode);                               \
    }
#define WRAP_OPENAT(name)                                                                                              \
    static _Atomic(void *) next_##name;                                                                                \
    EXPORT int name(int dir, const char *path, int flags, ...)                                                         \
    {                                                                                                                  \
        char buf[PATH_LEN];                                                                                            \
        mode_t mode = MODE(flags);                                                                                     \
        return CALL(int(int, const char *, int, ...), -1, name, dir, map(path, buf), flags, mode);                     \
    }

/* ---- open ---- */

WRAP_OPEN(open)
WRAP_OPEN(open64)
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)
/* What -D_FORTIFY_SOURCE makes of them. */
WRAP(int, -1, __open_2, (const char *path, int flags), (const char *, int), map(path, buf), flags)
WRAP(int, -1, __open64_2, (const char *path, int flags), (const char *, int), map(path, buf), flags)
WRAP(int, -1, __openat_2, (int dir, const char *path, int flags), (int, const char *, int), dir, map(path, buf), flags)
WRAP(int, -1, __openat64_2, (int dir, const char *path, int flags), (int, const char *, int), dir, map(path, buf),
     flags)
WRAP(FILE *, NULL, fopen, (const char *path, const char *mode), (const char *, const char *), map(path, buf), mode)
WRAP(FILE *, NULL, fopen64, (const char *path, const char *mode), (const char *, const char *), map(path, buf), mode)
WRAP(FILE *, NULL, freopen, (const char *path, const char *mode, FILE *f), (const char *, const char *, FILE *),
     map(path, buf), mode, f)
WRAP(FILE *, NULL, freopen64, (const char *path, const char *mode, FILE *f), (const char *, const char *, FILE *),
     map(path, buf), mode, f)

/* ---- directories ---- */

typedef int select_fn(const struct dirent *);
typedef int compare_fn(const struct dirent **, const struct dirent **);
typedef int select64_fn(const struct dirent64 *);
typedef int compare64_fn(const struct dirent64 **, const struct dirent64 **);

WRAP(DIR *, NULL, opendir, (const char *path), (const char *), map(path, buf))
WRAP(int, -1, scandir, (const char *path, struct dirent ***list, select_fn *select, compare_fn *compare),
     (const char *, struct dirent ***, select_fn *, compare_fn *), map(path, buf), list, select, compare)
WRAP(int, -1, scandir64, (const char *path, struct dirent64 ***list, select64_fn *select, compare64_fn *compare),
     (const char *, struct dirent64 ***, select64_fn *, compare64_fn *), map(path, buf), list, select, compare)
WRAP(int, -1, chdir, (const char *path), (const char *), map(path, buf))

/* ---- attributes ---- */

WRAP(int, -1, stat, (const char *path, struct stat *st), (const char *, struct stat *), map(path, buf), st)
WRAP(int, -1, stat64, (const char *path, struct stat64 *st), (const char *, struct stat64 *), map(path, buf), st)
WRAP(int, -1, lstat, (const char *path, struct stat *st), (const char *, struct stat *), map(path, buf), st)
WRAP(int, -1, lstat64, (const char *path, struct stat64 *st), (const char *, struct stat64 *), map(path, buf), st)
WRAP(int, -1, fstatat, (int dir, const char *path, struct stat *st, int flags), (int, const char *, struct stat *, int),
     dir, map(path, buf), st, flags)
WRAP(int, -1, fstatat64, (int dir, const char *path, struct stat64 *st, int flags),
     (int, const char *, struct stat64 *, int), dir, map(path, buf), st, flags)
WRAP(int, -1, statx, (int dir, const char *path, int flags, unsigned mask, struct statx *st),
     (int, const char *, int, unsigned, struct statx *), dir, map(path, buf), flags, mask, st)
WRAP(int, -1, access, (const char *path, int mode), (const char *, int), map(path, buf), mode)
WRAP(int, -1, euidaccess, (const char *path, int mode), (const char *, int), map(path, buf), mode)
WRAP(int, -1, eaccess, (const char *path, int mode), (const char *, int), map(path, buf), mode)
WRAP(int, -1, faccessat, (int dir, const char *path, int mode, int flags), (int, const char *, int, int), dir,
     map(path, buf), mode, flags)

/* `ls -l` asks for these. */
WRAP(ssize_t, -1, getxattr, (const char *path, const char *name, void *ret, size_t size),
     (const char *, const char *, void *, size_t), map(path, buf), name, ret, size)
WRAP(ssize_t, -1, lgetxattr, (const char *path, const char *name, void *ret, size_t size),
     (const char *, const char *, void *, size_t), map(path, buf), name, ret, size)
WRAP(ssize_t, -1, listxattr, (const char *path, char *ret, size_t size), (const char *, char *, size_t), map(path, buf),
     ret, size)
WRAP(ssize_t, -1, llistxattr, (const char *path, char *ret, size_t size), (const char *, char *, size_t),
     map(path, buf), ret, size)

/* Programs that were linked with a C library of before 2.33 call these; ver: of struct stat, which is the system's. */
EXPORT int __xstat(int ver, const char *path, struct stat *st);
EXPORT int __lxstat(int ver, const char *path, struct stat *st);
EXPORT int __fxstatat(int ver, int dir, const char *path, struct stat *st, int flags);
EXPORT int __xstat64(int ver, const char *path, struct stat64 *st);
EXPORT int __lxstat64(int ver, const char *path, struct stat64 *st);
EXPORT int __fxstatat64(int ver, int dir, const char *path, struct stat64 *st, int flags);

int __xstat(int ver, const char *path, struct stat *st)
{
    (void)ver;
    return stat(path, st);
}

int __lxstat(int ver, const char *path, struct stat *st)
{
    (void)ver;
    return lstat(path, st);
}

int __fxstatat(int ver, int dir, const char *path, struct stat *st, int flags)
{
    (void)ver;
    return fstatat(dir, path, st, flags);
}

int __xstat64(int ver, const char *path, struct stat64 *st)
{
    (void)ver;
    return stat64(path, st);
}

int __lxstat64(int ver, const char *path, struct stat64 *st)
{
    (void)ver;
    return lstat64(path, st);
}

int __fxstatat64(int ver, int dir, const char *path, struct stat64 *st, int flags)
{
    (void)ver;
    return fstatat64(dir, path, st, flags);
}

/* ---- links ---- */

WRAP(ssize_t, -1, readlink, (const char *path, char *ret, size_t size), (const char *, char *, size_t), map(path, buf),
     ret, size)
WRAP(ssize_t, -1, readlinkat, (int dir, const char *path, char *ret, size_t size), (int, const char *, char *, size_t),
     dir, map(path, buf), ret, size)
WRAP(ssize_t, -1, __readlink_chk, (const char *path, char *ret, size_t size, size_t room),
     (const char *, char *, size_t, size_t), map(path, buf), ret, size, room)
WRAP(ssize_t, -1, __readlinkat_chk, (int dir, const char *path, char *ret, size_t size, size_t room),
     (int, const char *, char *, size_t, size_t), dir, map(path, buf), ret, size, room)
WRAP(char *, NULL, realpath, (const char *path, char *ret), (const char *, char *), map(path, buf), ret)
WRAP(char *, NULL, __realpath_chk, (const char *path, char *ret, size_t room), (const char *, char *, size_t),
     map(path, buf), ret, room)
WRAP(char *, NULL, canonicalize_file_name, (const char *path), (const char *), map(path, buf))

/* So that a signal handler is not the first to ask the loader for the functions that it may call. */
__attribute__((constructor)) static void at_start(void)
{
    find_view();
    next(&next_open, "open");
    next(&next_open64, "open64");
    next(&next_openat, "openat");
    next(&next_openat64, "openat64");
    next(&next_stat, "stat");
    next(&next_stat64, "stat64");
    next(&next_lstat, "lstat");
    next(&next_lstat64, "lstat64");
    next(&next_fstatat, "fstatat");
    next(&next_fstatat64, "fstatat64");
    next(&next_access, "access");
    next(&next_faccessat, "faccessat");
    next(&next_readlink, "readlink");
    next(&next_readlinkat, "readlinkat");
    next(&next_chdir, "chdir");
}

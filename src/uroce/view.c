#include "view.h"

#include "view_files.h"

#include "base/util.h"
#include "roce/device_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define DIR_MAX    255 /* as liburoce-fs.so takes it */
#define KEEP_S     (30 * 24 * 3600)
#define TEXT_MAX   4096
#define REMOVE_FDS 16
#define BASE_MAX   (DIR_MAX - 21) /* "/view-" and 16 digits come behind it */

/* ---- trees ---- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    remove(path);
    return 0;
}

static void remove_tree(const char *dir)
{
    nftw(dir, remove_one, REMOVE_FDS, FTW_DEPTH | FTW_PHYS);
}

/* The directories above a file. */
static int make_parents(const char *dir, const char *path)
{
    char all[PATH_MAX];
    snprintf(all, sizeof all, "%s/%s", dir, path);
    for (char *c = all + strlen(dir) + 1; (c = strchr(c, '/')); *c++ = '/') {
        *c = '\0';
        if (mkdir(all, 0755) && errno != EEXIST)
            return -errno;
    }
    return 0;
}

static int write_file(const char *dir, const struct view_file *f)
{
    char path[PATH_MAX];
    int r = make_parents(dir, f->path);
    if (r)
        return r;
    snprintf(path, sizeof path, "%s/%s", dir, f->path);
    if (f->link)
        return symlink(f->text, path) ? -errno : 0;
    size_t n = strlen(f->text);
    cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0444);
    if (fd < 0)
        return -errno;
    return write(fd, f->text, n) == (ssize_t)n ? 0 : -EIO;
}

static bool file_is(const char *dir, const struct view_file *f)
{
    char path[PATH_MAX], text[TEXT_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, f->path);
    ssize_t n;
    if (f->link)
        n = readlink(path, text, sizeof text);
    else {
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        n = fd < 0 ? -1 : read(fd, text, sizeof text);
    }
    return n >= 0 && (size_t)n == strlen(f->text) && memcmp(text, f->text, (size_t)n) == 0;
}

/* Whole: somebody who tidies up /tmp may have taken a part of it. */
static bool is_whole(const char *dir, const struct view_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (!file_is(dir, &f->at[i]))
            return false;
    return utimensat(AT_FDCWD, dir, NULL, AT_SYMLINK_NOFOLLOW) == 0;
}

/* ---- the directory of views ---- */

static int base_dir(char ret[BASE_MAX], char *err, size_t err_size)
{
    const char *run = getenv("XDG_RUNTIME_DIR"), *tmp = getenv("TMPDIR");
    int fd;
    if (run && run[0] == '/' && access(run, W_OK) == 0)
        fd = snprintf(ret, BASE_MAX, "%s/uroce", run) < BASE_MAX ? private_dir_make(ret) : -ENAMETOOLONG;
    else
        fd = private_dir_in(tmp && tmp[0] == '/' ? tmp : "/tmp", ret, BASE_MAX);
    if (fd >= 0) {
        close(fd);
        return 0;
    }
    if (fd == -ENAMETOOLONG)
        snprintf(err, err_size, "XDG_RUNTIME_DIR or TMPDIR is too long: the view of the devices has no room there");
    else if (fd == -EPERM)
        snprintf(err, err_size, "%s is not a directory of this user's alone: remove it, or set TMPDIR", ret);
    else
        snprintf(err, err_size, "%s: %s: set TMPDIR to a directory of yours", ret, strerror(-fd));
    return fd;
}

/* What nobody has asked for in a long time, and what was left by a program that was killed here. */
static void tidy(const char *base)
{
    DIR *d = opendir(base);
    char path[PATH_MAX];
    struct stat st;
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        bool ours = strncmp(e->d_name, "view-", 5) == 0 || strncmp(e->d_name, "new-", 4) == 0 ||
                    strncmp(e->d_name, "old-", 4) == 0;
        snprintf(path, sizeof path, "%s/%s", base, e->d_name);
        if (ours && lstat(path, &st) == 0 && time(NULL) - st.st_mtime > KEEP_S)
            remove_tree(path);
    }
    closedir(d);
}

/* Makes it aside and puts it in its place at once: nobody sees a part of it. */
static int build(const char *base, const char *dir, const struct view_files *f)
{
    char new[PATH_MAX], old[PATH_MAX];
    snprintf(new, sizeof new, "%s/new-XXXXXX", base);
    if (!mkdtemp(new))
        return -errno;
    int r = 0;
    for (size_t i = 0; i < f->n && !r; i++)
        r = write_file(new, &f->at[i]);
    for (int tries = 0; !r && rename(new, dir); tries++) {
        r = -errno;
        bool there = r == -EEXIST || r == -ENOTEMPTY;
        if (there && is_whole(dir, f)) {
            remove_tree(new);
            return 0;
        }
        if (!there || tries == 3)
            break;
        snprintf(old, sizeof old, "%s/old-%d-%d", base, (int)getpid(), tries);
        r = rename(dir, old) && errno != ENOENT ? -errno : 0;
        remove_tree(old);
    }
    if (r)
        remove_tree(new);
    return r;
}

int view_make(const struct uroce_device_info *devices, int n, char *ret_dir, size_t size, char *err, size_t err_size)
{
    char base[BASE_MAX], dir[PATH_MAX];
    struct view_files f;
    int r = base_dir(base, err, err_size);
    if (r)
        return r;
    view_files_of(devices, n, &f);
    r = f.err;
    snprintf(dir, sizeof dir, "%s/view-%016llx", base, (unsigned long long)view_files_sum(&f));
    if (!r && !is_whole(dir, &f)) {
        tidy(base);
        r = build(base, dir, &f);
    }
    view_files_done(&f);
    if (r)
        snprintf(err, err_size, "%s cannot be made: %s", dir, strerror(-r));
    else
        snprintf(ret_dir, size, "%s", dir);
    return r;
}

/* A tar archive into a tree: nothing of it may land outside, whatever its names and links say. */
#include "tar.h"

#include "base/list.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <string.h>

int tar_fail(struct archive *a, const char *name)
{
    const char *text = archive_error_string(a);
    int e = archive_errno(a);

    if (e == EILSEQ) /* libarchive's number for a format error */
        cli_error("%s: not a tar archive, or damaged: %s", name, text ? text : "its format is unknown");
    else if (e > 0)
        return cli_fail(-e, "%s", name);
    else
        cli_error("%s: %s", name, text ? text : "it failed");
    return EXIT_FAILED;
}

struct dir_attrs {
    struct list link;
    struct stat st;
    char path[];
};

struct import {
    struct side side;
    struct archive *a;
    const char *root, *name; /* name: the archive's */
    struct progress *progress;
    struct list dirs;           /* their attributes come last; deepest first */
    char parent[SIDE_PATH_MAX]; /* the last one that was found to be a directory */
    int code;
};

/* The place of an archive's name below the root; -EINVAL for one that leads out of it. */
static int place(const struct import *x, const char *name, char ret[SIDE_PATH_MAX])
{
    char clean[SIDE_PATH_MAX];
    size_t n = 0;

    if (strlen(name) >= sizeof clean)
        return -ENAMETOOLONG;
    while (*name) {
        size_t len = strcspn(name, "/");
        if (len == 2 && !strncmp(name, "..", 2))
            return -EINVAL;
        if (len > 0 && !(len == 1 && *name == '.')) {
            if (n > 0)
                clean[n++] = '/';
            memcpy(clean + n, name, len);
            n += len;
        }
        name += len;
        name += *name == '/';
    }
    clean[n] = 0;
    if (n == 0)
        return snprintf(ret, SIDE_PATH_MAX, "%s", x->root) >= SIDE_PATH_MAX ? -ENAMETOOLONG : 0;
    return side_join(x->root, clean, ret);
}

/*
 * Directories above `path`, each a real one: a link in the archive must not lead the rest of it elsewhere. make: those
 * that are not there are made.
 */
static int parents(struct import *x, const char *path, bool make)
{
    char dir[SIDE_PATH_MAX];
    struct stat st;
    char *slash;
    int r = 0;

    strcpy(dir, path);
    slash = strrchr(dir, '/');
    *(slash > dir ? slash : dir + 1) = 0;
    if (!strcmp(dir, x->parent))
        return 0;
    for (char *p = dir; r == 0 && p;) {
        p = strchr(p + 1, '/');
        if (p)
            *p = 0;
        r = x->side.ops->lstat(&x->side, dir, &st);
        if (r == -ENOENT && make)
            r = x->side.ops->mkdir(&x->side, dir, 0755);
        else if (r == 0 && !S_ISDIR(st.st_mode))
            r = -ENOTDIR;
        if (p)
            *p = '/';
    }
    if (r == 0)
        strcpy(x->parent, dir);
    return r;
}

static int read_data(struct import *x, const char *path, uint64_t size)
{
    struct side_file *f;
    const void *block;
    size_t n;
    la_int64_t at;
    int r = x->side.ops->open(&x->side, path, O_WRONLY | O_CREAT | O_TRUNC, 0600, &f), e, k = ARCHIVE_OK;

    if (r < 0)
        return r;
    while (r == 0 && (k = archive_read_data_block(x->a, &block, &n, &at)) == ARCHIVE_OK) {
        int64_t w = n ? x->side.ops->pwrite(f, block, n, (uint64_t)at) : 0;
        r = w < 0 ? (int)w : 0;
        progress_add(x->progress, n, 0);
    }
    if (r == 0 && k != ARCHIVE_EOF)
        r = -EBADMSG;
    if (r == 0 && size > 0)
        r = x->side.ops->truncate(f, size); /* a hole at the end */
    e = x->side.ops->close(f);
    return r < 0 ? r : e;
}

static int set_attrs(struct import *x, const char *path, const struct stat *st, struct archive_entry *e)
{
    const struct side_ops *o = x->side.ops;
    const struct timespec t[2] = {st->st_atim, st->st_mtim};
    const char *name;
    const void *value;
    size_t n;
    int r = o->chown(&x->side, path, st->st_uid, st->st_gid);

    if (r == -EPERM) /* only the privileged give files away */
        r = 0;
    if (r == 0 && !S_ISLNK(st->st_mode))
        r = o->chmod(&x->side, path, st->st_mode & 07777);
    if (e)
        archive_entry_xattr_reset(e);
    while (r == 0 && e && archive_entry_xattr_next(e, &name, &value, &n) == ARCHIVE_OK)
        r = o->setxattr(&x->side, path, name, value, n);
    return r == 0 ? o->utimens(&x->side, path, t) : r;
}

static int import_dir(struct import *x, const char *path, const struct stat *st, struct archive_entry *e)
{
    struct dir_attrs *d = malloc(sizeof *d + strlen(path) + 1);
    struct stat old;
    int r = d ? x->side.ops->mkdir(&x->side, path, 0700) : -ENOMEM;

    if (r == -EEXIST || (r == -EINVAL && !strcmp(path, "/"))) {
        r = x->side.ops->lstat(&x->side, path, &old);
        if (r == 0 && !S_ISDIR(old.st_mode))
            r = -ENOTDIR;
    }
    if (r == 0) { /* attributes but time and mode now, while the entry is here */
        struct stat open = *st;
        open.st_mode |= 0700;
        r = set_attrs(x, path, &open, e);
    }
    if (r < 0) {
        free(d);
        return r;
    }
    d->st = *st;
    strcpy(d->path, path);
    list_push_front(&x->dirs, &d->link);
    return 0;
}

static int import_other(struct import *x, const char *path, const struct stat *st, struct archive_entry *e)
{
    const struct side_ops *o = x->side.ops;
    const char *link = archive_entry_hardlink(e), *target = archive_entry_symlink(e);
    char first[SIDE_PATH_MAX];
    struct stat old;
    int r = link ? place(x, link, first) : 0;

    if (r == 0 && link)
        r = parents(x, first, false);
    if (r < 0 || (link && !strcmp(first, path))) /* a name of itself it is already */
        return r;
    r = o->lstat(&x->side, path, &old);
    if (r == 0)
        r = S_ISDIR(old.st_mode) ? -EISDIR : o->unlink(&x->side, path);
    r = r == -ENOENT ? 0 : r;
    if (r < 0)
        return r;
    if (link)
        return o->link(&x->side, first, path);
    if (S_ISLNK(st->st_mode))
        r = target ? o->symlink(&x->side, target, path) : -EBADMSG;
    else if (S_ISREG(st->st_mode))
        r = read_data(x, path, archive_entry_size_is_set(e) ? (uint64_t)archive_entry_size(e) : 0);
    else
        r = o->mknod(&x->side, path, st->st_mode & (S_IFMT | 0700), st->st_rdev);
    return r < 0 ? r : set_attrs(x, path, st, e);
}

static void import_entry(struct import *x, struct archive_entry *e)
{
    const char *name = archive_entry_pathname(e);
    const struct stat *st = archive_entry_stat(e);
    char path[SIDE_PATH_MAX];
    int r = name ? place(x, name, path) : -EBADMSG;

    if (r == 0 && strcmp(path, "/") != 0)
        r = parents(x, path, true);
    if (r == 0)
        r = S_ISDIR(st->st_mode) && !archive_entry_hardlink(e) ? import_dir(x, path, st, e)
                                                               : import_other(x, path, st, e);
    if (r < 0)
        x->code = cli_fail(r, "%s", name ? name : "an entry without a name");
    progress_add(x->progress, 0, 1);
}

static void finish_dirs(struct import *x)
{
    struct list *l;

    while ((l = list_pop_front(&x->dirs)) != NULL) {
        struct dir_attrs *d = list_entry(l, struct dir_attrs, link);
        int r = set_attrs(x, d->path, &d->st, NULL);
        if (r < 0)
            x->code = cli_fail(r, "%s", d->path);
        free(d);
    }
}

int tar_import(struct side *to, const char *root, struct archive *a, const char *name, struct progress *progress)
{
    struct import x = {.side = *to, .a = a, .root = root, .name = name, .progress = progress};
    struct archive_entry *e;
    int k;

    list_init(&x.dirs);
    while ((k = archive_read_next_header(a, &e)) == ARCHIVE_OK || k == ARCHIVE_WARN)
        import_entry(&x, e);
    if (k != ARCHIVE_EOF)
        x.code = tar_fail(a, name);
    finish_dirs(&x);
    return x.code;
}

struct archive *tar_reader(void)
{
    /* Not archive_read_support_filter_all: for some it starts whatever program of that name there is. */
    static int (*const filters[])(struct archive *) = {
        archive_read_support_filter_gzip, archive_read_support_filter_bzip2, archive_read_support_filter_xz,
        archive_read_support_filter_zstd, archive_read_support_filter_lz4,
    };
    struct archive *a = archive_read_new();

    for (size_t i = 0; a && i < ARRAY_SIZE(filters); i++)
        if (filters[i](a) < ARCHIVE_WARN) {
            archive_read_free(a);
            return NULL;
        }
    if (a)
        archive_read_support_format_tar(a);
    return a;
}

/* export and import: a container as a tar archive (pax format), streaming. */
#include "inomap.h"
#include "walk.h"

#include "base/err.h"
#include "base/list.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <locale.h>
#include <string.h>

static int set_compression(void *target, const char *name, const char *value, char *err, size_t err_size)
{
    static const char *const known[] = {"none", "gzip", "zstd"};

    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (!strcmp(known[i], value)) {
            *(const char **)target = i ? known[i] : NULL;
            return 0;
        }
    snprintf(err, err_size, "--%s: \"%.40s\" must be none, gzip or zstd", name, value);
    return -EINVAL;
}

/* file NULL: a standard stream. */
static int archive_fail(struct archive *a, const char *file, const char *stream)
{
    const char *text = archive_error_string(a), *name = file ? file : stream;
    int e = archive_errno(a);

    if (e == EILSEQ) /* libarchive's number for a format error */
        cli_error("%s: not a tar archive, or damaged: %s", name, text ? text : "its format is unknown");
    else if (e > 0)
        return cli_fail(-e, "%s", name);
    else
        cli_error("%s: %s", name, text ? text : "it failed");
    return EXIT_FAILED;
}

/* ---- export ---- */

struct export
{
    struct side side;
    struct archive *a;
    struct archive_entry *e;
    struct inomap *seen;
    struct progress *progress;
    uint64_t total;
    const char *file; /* NULL: standard output */
    char *buf;
    int code;
};

/* The archive cannot be written: that ends it all. */
static int archive_failed(struct export *x)
{
    x->code = archive_fail(x->a, x->file, "standard output");
    return -ECANCELED;
}

static int export_failed(void *user, const char *path, int err)
{
    struct export *x = user;

    x->code = cli_fail(err, "%s", path);
    return 0;
}

static int add_xattrs(struct export *x, const char *path)
{
    cleanup_free char *names = malloc(64 * KiB), *value = malloc(64 * KiB);
    int64_t n = names && value ? x->side.ops->listxattr(&x->side, path, names, 64 * KiB) : -ENOMEM, k;

    for (const char *p = names; n > 0 && p < names + n; p += strlen(p) + 1) {
        k = x->side.ops->getxattr(&x->side, path, p, value, 64 * KiB);
        if (k >= 0)
            archive_entry_xattr_add_entry(x->e, p, value, (size_t)k);
        else if (k != -ENODATA)
            return (int)k;
    }
    return n < 0 && n != -EOPNOTSUPP ? (int)n : 0;
}

static int add_data(struct export *x, const char *path, uint64_t size)
{
    struct side_file *f;
    uint64_t at = 0;
    int r = x->side.ops->open(&x->side, path, O_RDONLY, 0, &f);

    if (r < 0)
        return r;
    while (at < size) { /* as long as the header says, whatever happens to the file meanwhile */
        int64_t n = x->side.ops->pread(f, x->buf, min_u64(MiB, size - at), at);
        if (n <= 0) {
            r = n < 0 ? (int)n : 0;
            break;
        }
        if (archive_write_data(x->a, x->buf, (size_t)n) != n) {
            r = archive_failed(x);
            break;
        }
        at += (uint64_t)n;
        progress_add(x->progress, (uint64_t)n, 0);
    }
    x->side.ops->close(f);
    return r;
}

/* 1: only the header is wanted. */
static int describe_type(struct export *x, const char *path, const char *rel, const struct stat *st)
{
    char target[SIDE_PATH_MAX];
    const char *first;
    int64_t n;

    if (S_ISLNK(st->st_mode)) {
        n = x->side.ops->readlink(&x->side, path, target, sizeof target);
        if (n < 0)
            return (int)n;
        archive_entry_set_symlink(x->e, target);
        return 1;
    }
    if (!S_ISDIR(st->st_mode) && st->st_nlink > 1) {
        first = inomap_find(x->seen, 0, st->st_ino);
        if (first) {
            archive_entry_set_hardlink(x->e, first);
            archive_entry_unset_size(x->e);
            return 1;
        }
        if (inomap_add(x->seen, 0, st->st_ino, rel) < 0)
            return -ENOMEM;
    }
    return S_ISREG(st->st_mode) ? 0 : 1;
}

static int export_one(void *user, const char *path, const char *rel, const struct stat *st)
{
    struct export *x = user;
    int header_only, r;

    if (!*rel && S_ISDIR(st->st_mode))
        rel = "."; /* the root's own attributes */
    else if (!*rel)
        rel = strrchr(path, '/') + 1;
    if (S_ISSOCK(st->st_mode)) /* tar has none */
        return 0;
    archive_entry_clear(x->e);
    archive_entry_copy_stat(x->e, st);
    archive_entry_set_pathname(x->e, rel);
    header_only = describe_type(x, path, rel, st);
    r = header_only < 0 ? header_only : S_ISLNK(st->st_mode) ? 0 : add_xattrs(x, path);
    if (r < 0)
        return export_failed(x, path, r);
    if (archive_write_header(x->a, x->e) < ARCHIVE_WARN)
        return archive_failed(x);
    progress_add(x->progress, 0, 1);
    if (header_only)
        return 0;
    x->total += (uint64_t)st->st_size;
    progress_total(x->progress, x->total, false);
    r = add_data(x, path, (uint64_t)st->st_size);
    if (r == -ECANCELED && x->code)
        return r;
    return r < 0 ? export_failed(x, path, r) : 0;
}

static int run_export(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    struct export x = {.side.ops = &side_store};
    const char *compression = NULL;
    const struct cli_opt opts[] = {
        {'z', "compress", OPT_CALL, &compression, "none|gzip|zstd", "default none", set_compression},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct walk w = {
        .side = &x.side, .user = &x, .entry = export_one, .dir_begin = export_one, .failed = export_failed};
    struct cli_url u;
    struct stat st;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 2);

    if (cli_url(argv[first], 2, &u) < 0)
        return EXIT_USAGE;
    if (argc - first == 2 && strcmp(argv[first + 1], "-") != 0)
        x.file = argv[first + 1];
    if (!x.file && isatty(STDOUT_FILENO))
        return cli_usage(cmd, "an archive is not for a terminal: name a file");
    x.side.fs = cli_connect(&u, &k, 0, &code);
    if (!x.side.fs)
        return code;
    r = x.side.ops->lstat(&x.side, u.path, &st);
    if (r < 0) /* no empty archive then */
        return cli_disconnect(x.side.fs, cli_fail(r, "%s", u.path));
    setlocale(LC_CTYPE, "C.UTF-8"); /* names are bytes, mostly UTF-8: what libarchive needs to know to write them so */
    x.a = archive_write_new();
    x.e = archive_entry_new();
    x.seen = inomap_new();
    x.buf = malloc(MiB);
    x.progress = progress_new(cli_name, false);
    if (!x.a || !x.e || !x.seen || !x.buf) {
        x.code = cli_fail(-ENOMEM, "export");
    } else {
        archive_write_set_format_pax(x.a);
        archive_write_set_bytes_in_last_block(x.a, 1); /* no padding behind what the compressor wrote */
        if (compression && archive_write_add_filter_by_name(x.a, compression) != ARCHIVE_OK)
            archive_failed(&x);
        else if ((x.file ? archive_write_open_filename(x.a, x.file) : archive_write_open_fd(x.a, STDOUT_FILENO)) !=
                 ARCHIVE_OK)
            archive_failed(&x);
        else if (walk_run(&w, u.path) == 0 && archive_write_close(x.a) != ARCHIVE_OK)
            archive_failed(&x);
    }
    progress_free(x.progress);
    archive_write_free(x.a);
    archive_entry_free(x.e);
    inomap_free(x.seen);
    free(x.buf);
    return cli_disconnect(x.side.fs, x.code);
}

/* ---- import ---- */

struct dir_attrs {
    struct list link;
    struct stat st;
    char path[];
};

struct import {
    struct side side;
    struct archive *a;
    const char *root, *file; /* file NULL: standard input */
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

/* Directories above `path`, each a real one: a link in the archive must not lead the rest of it elsewhere. */
static int make_parents(struct import *x, const char *path)
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
        if (r == -ENOENT)
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
    int r = o->lstat(&x->side, path, &old);

    if (r == 0)
        r = S_ISDIR(old.st_mode) ? -EISDIR : o->unlink(&x->side, path);
    r = r == -ENOENT ? 0 : r;
    if (r < 0)
        return r;
    if (link) {
        r = place(x, link, first);
        return r < 0 ? r : o->link(&x->side, first, path);
    }
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
        r = make_parents(x, path);
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

static void import_all(struct import *x)
{
    struct archive_entry *e;
    int k;

    while ((k = archive_read_next_header(x->a, &e)) == ARCHIVE_OK || k == ARCHIVE_WARN)
        import_entry(x, e);
    if (k != ARCHIVE_EOF)
        x->code = archive_fail(x->a, x->file, "standard input");
    finish_dirs(x);
}

static int run_import(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    const struct cli_opt opts[] = {CLI_CONN_OPTS(k), {0}};
    struct import x = {.side.ops = &side_store};
    struct cli_url u;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 2);

    if (cli_url(argv[first], 2, &u) < 0)
        return EXIT_USAGE;
    if (argc - first == 2 && strcmp(argv[first + 1], "-") != 0)
        x.file = argv[first + 1];
    x.side.fs = cli_connect(&u, &k, PST_CONNECT_LAZY_CLOSE, &code); /* all is synced at the end */
    if (!x.side.fs)
        return code;
    list_init(&x.dirs);
    x.root = u.path;
    setlocale(LC_CTYPE, "C.UTF-8");
    x.a = archive_read_new();
    x.progress = progress_new(cli_name, false);
    archive_read_support_filter_all(x.a);
    archive_read_support_format_tar(x.a);
    r = x.file ? archive_read_open_filename(x.a, x.file, MiB) : archive_read_open_fd(x.a, STDIN_FILENO, MiB);
    if (r != ARCHIVE_OK) {
        x.code = archive_fail(x.a, x.file, "standard input");
    } else {
        import_all(&x);
        r = pst_sync(x.side.fs);
        if (r < 0)
            x.code = cli_fail_pst(r, "what was imported is not durable");
    }
    progress_free(x.progress);
    archive_read_free(x.a);
    return cli_disconnect(x.side.fs, x.code);
}

const struct cli_cmd cmds_tar[] = {
    {"export", "URL [FILE|-]", "Writes a tree as a tar archive", NULL, run_export},
    {"import", "URL [FILE|-]", "Reads a tar archive (also a compressed one) into a container", NULL, run_import},
    {0},
};

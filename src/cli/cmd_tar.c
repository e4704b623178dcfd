/* export and import: a container as a tar archive (pax format), streaming. */
#include "inomap.h"
#include "tar.h"
#include "walk.h"

#include "base/err.h"

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
    x->code = tar_fail(x->a, x->file ? x->file : "standard output");
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

static int run_import(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    const struct cli_opt opts[] = {CLI_CONN_OPTS(k), {0}};
    struct side to = {.ops = &side_store};
    const char *file = NULL, *name;
    struct progress *progress;
    struct archive *a;
    struct cli_url u;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 2);

    if (cli_url(argv[first], 2, &u) < 0)
        return EXIT_USAGE;
    if (argc - first == 2 && strcmp(argv[first + 1], "-") != 0)
        file = argv[first + 1];
    name = file ? file : "standard input";
    to.fs = cli_connect(&u, &k, PST_CONNECT_LAZY_CLOSE, &code); /* all is synced at the end */
    if (!to.fs)
        return code;
    setlocale(LC_CTYPE, "C.UTF-8");
    a = tar_reader();
    progress = progress_new(cli_name, false);
    if (!a) {
        code = cli_fail(-ENOMEM, "%s", name);
    } else if ((file ? archive_read_open_filename(a, file, MiB) : archive_read_open_fd(a, STDIN_FILENO, MiB)) !=
               ARCHIVE_OK) {
        code = tar_fail(a, name);
    } else {
        code = tar_import(&to, u.path, a, name, progress);
        r = pst_sync(to.fs);
        if (r < 0)
            code = cli_fail_pst(r, "what was imported is not durable");
    }
    progress_free(progress);
    archive_read_free(a);
    return cli_disconnect(to.fs, code);
}

const struct cli_cmd cmds_tar[] = {
    {"export", "URL [FILE|-]", "Writes a tree as a tar archive", NULL, run_export},
    {"import", "URL [FILE|-]", "Reads a tar archive (also a compressed one) into a container", NULL, run_import},
    {0},
};

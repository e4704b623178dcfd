/* ls, stat, cat, mkdir, mv, rm, df, du. */
#include "side.h"
#include "walk.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>
#include <sys/sysmacros.h>

/* Connects to the URL of an argument. NULL: *ret_code is the exit code. */
static struct pst_fs *open_arg(const char *arg, const struct cli_conn *k, struct cli_url *ret_url, int *ret_code)
{
    if (cli_url(arg, 2, ret_url) < 0) {
        *ret_code = EXIT_USAGE;
        return NULL;
    }
    return cli_connect(ret_url, k, 0, ret_code);
}

/* ---- ls ---- */

struct ls {
    struct side side;
    bool all_fields, recursive, json;
    uint64_t n;
    int code;
};

static void print_name(const char *s)
{
    for (; *s; s++) /* no control characters to a terminal */
        putchar((unsigned char)*s < 0x20 || *s == 0x7f ? '?' : *s);
}

static void print_entry(struct ls *l, const char *path, const char *name, const struct stat *st)
{
    char mode[11], when[32], target[SIDE_PATH_MAX];

    if (l->json) {
        json_t *j = cli_json_stat(name, st); /* one by one: a tree may be large */
        fputs(l->n++ ? ",\n" : "[\n", stdout);
        json_dumpf(j, stdout, JSON_SORT_KEYS);
        json_decref(j);
        return;
    }
    if (!l->all_fields) {
        print_name(name);
        puts(S_ISDIR(st->st_mode) ? "/" : "");
        return;
    }
    cli_mode(st->st_mode, mode);
    printf("%s %3lu %5u %5u %12lld %s ", mode, (unsigned long)st->st_nlink, st->st_uid, st->st_gid,
           (long long)st->st_size, cli_time((int64_t)st->st_mtim.tv_sec * (int64_t)NSEC_PER_SEC, when));
    print_name(name);
    if (S_ISLNK(st->st_mode) && l->side.ops->readlink(&l->side, path, target, sizeof target) >= 0) {
        printf(" -> ");
        print_name(target);
    }
    putchar('\n');
}

static int ls_entry(void *user, const char *path, const char *rel, const struct stat *st)
{
    struct ls *l = user;
    const char *name = strrchr(path, '/');

    print_entry(l, path, *rel ? rel : name ? name + 1 : path, st);
    return 0;
}

static int ls_dir(void *user, const char *path, const char *rel, const struct stat *st)
{
    struct ls *l = user;

    if (!*rel)
        return 0;
    print_entry(l, path, rel, st);
    return l->recursive ? 0 : 1;
}

static int ls_failed(void *user, const char *path, int err)
{
    struct ls *l = user;

    l->code = cli_fail(err, "%s", path);
    return 0;
}

static int run_ls(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    struct ls l = {.side.ops = &side_store};
    const struct cli_opt opts[] = {
        {'l', "long", OPT_FLAG, &l.all_fields, NULL, "mode, owner, size, time", NULL},
        {'R', "recursive", OPT_FLAG, &l.recursive, NULL, "all that is below", NULL},
        {0, "json", OPT_FLAG, &l.json, NULL, "a JSON array", NULL},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct walk w = {.side = &l.side, .user = &l, .entry = ls_entry, .dir_begin = ls_dir, .failed = ls_failed};
    struct cli_url u;
    int code = EXIT_OK;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    l.side.fs = open_arg(argv[first], &k, &u, &code);
    if (!l.side.fs)
        return code;
    code = walk_run(&w, u.path) < 0 ? EXIT_FAILED : l.code;
    if (l.json)
        puts(l.n ? "\n]" : "[]");
    if (fflush(stdout) && code == EXIT_OK)
        code = EXIT_FAILED;
    return cli_disconnect(l.side.fs, code);
}

/* ---- stat ---- */

static void print_stat(const char *path, const struct stat *st)
{
    char mode[11], t[32];
    const int64_t ns = (int64_t)NSEC_PER_SEC;

    cli_mode(st->st_mode, mode);
    printf("path:   ");
    print_name(path);
    printf("\nmode:   %s (%04o)\nobject: %llu\nlinks:  %lu\nowner:  %u:%u\nsize:   %lld\nused:   %lld\n", mode,
           st->st_mode & 07777, (unsigned long long)st->st_ino, (unsigned long)st->st_nlink, st->st_uid, st->st_gid,
           (long long)st->st_size, (long long)st->st_blocks * 512);
    if (S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode))
        printf("device: %u:%u\n", major(st->st_rdev), minor(st->st_rdev));
    printf("atime:  %s\n", cli_time(st->st_atim.tv_sec * ns, t));
    printf("mtime:  %s\n", cli_time(st->st_mtim.tv_sec * ns, t));
    printf("ctime:  %s\n", cli_time(st->st_ctim.tv_sec * ns, t));
}

static int run_stat(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool json = false, follow = false;
    const struct cli_opt opts[] = {
        {'L', "dereference", OPT_FLAG, &follow, NULL, "what a symbolic link leads to", NULL},
        {0, "json", OPT_FLAG, &json, NULL, "a JSON object", NULL},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct cli_url u;
    struct pst_fs *fs;
    struct stat st;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    fs = open_arg(argv[first], &k, &u, &code);
    if (!fs)
        return code;
    r = follow ? pst_stat(fs, u.path, &st) : pst_lstat(fs, u.path, &st);
    if (r < 0)
        code = cli_fail_pst(r, u.path);
    else if (json)
        code = cli_json(cli_json_stat(u.path, &st));
    else
        print_stat(u.path, &st);
    return cli_disconnect(fs, code);
}

/* ---- cat ---- */

static int write_all(const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(STDOUT_FILENO, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -errno;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

int cli_cat(struct pst_fs *fs, const char *path, uint64_t offset, uint64_t length)
{
    cleanup_free char *buf = malloc(MiB);
    struct pst_file *f;
    int64_t n = 0;
    int r = buf ? pst_open(fs, path, O_RDONLY, 0, &f) : -ENOMEM;

    if (r < 0)
        return cli_fail_pst(r, path);
    while (length > 0 && (n = pst_pread(f, buf, min_u64(MiB, length), offset)) > 0) {
        r = write_all(buf, (size_t)n);
        if (r < 0)
            break;
        offset += (uint64_t)n;
        length -= (uint64_t)n;
    }
    if (n < 0)
        r = cli_fail_pst((int)n, path);
    else if (r < 0)
        r = cli_fail(r, "standard output");
    pst_close(f);
    return r;
}

static int run_cat(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    uint64_t offset = 0, length = UINT64_MAX;
    const struct cli_opt opts[] = {
        {0, "offset", OPT_SIZE, &offset, "BYTES", "begin here", NULL},
        {0, "length", OPT_SIZE, &length, "BYTES", "so many at most", NULL},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct cli_url u;
    struct pst_fs *fs;
    int code = EXIT_OK;
    CLI_PARSE(cmd, opts, argc, argv, 1, -1);

    for (int i = first; i < argc && code == EXIT_OK; i++) {
        fs = open_arg(argv[i], &k, &u, &code);
        if (fs)
            code = cli_disconnect(fs, cli_cat(fs, u.path, offset, length));
    }
    return code;
}

/* ---- mkdir, mv ---- */

static int make_parents(struct pst_fs *fs, char *path, uint32_t mode)
{
    int r = 0;

    for (char *p = path + 1; r == 0 && (p = strchr(p, '/')) != NULL; p++) {
        *p = 0;
        r = pst_mkdir(fs, path, mode | 0300);
        r = r == -EEXIST ? 0 : r;
        *p = '/';
    }
    return r;
}

static int no_parent(const char *path, const char *hint)
{
    cli_error("%s: there is no directory above it%s", path, hint);
    return EXIT_NOT_FOUND;
}

static int run_mkdir(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool parents = false;
    uint32_t mode = 0755;
    const struct cli_opt opts[] = {
        {'p', "parents", OPT_FLAG, &parents, NULL, "and those above it; it may be there", NULL},
        {'m', "mode", OPT_MODE, &mode, "MODE", "permission bits; default 755", NULL},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct cli_url u;
    struct pst_fs *fs;
    struct stat st;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    fs = open_arg(argv[first], &k, &u, &code);
    if (!fs)
        return code;
    r = parents ? make_parents(fs, u.path, mode) : 0;
    if (r == 0)
        r = pst_mkdir(fs, u.path, mode);
    if (r == -EEXIST && parents && pst_stat(fs, u.path, &st) == 0 && S_ISDIR(st.st_mode))
        r = 0;
    if (r == 0)
        r = pst_sync(fs);
    if (r == -ENOENT && !parents)
        code = no_parent(u.path, "; --parents makes it");
    else if (r < 0)
        code = cli_fail_pst(r, u.path);
    return cli_disconnect(fs, code);
}

static int mv_fail(struct pst_fs *fs, int err, const char *from, const char *to)
{
    struct stat st;

    if (err == -EINVAL) {
        cli_error("%s cannot be moved below itself, to %s", from, to);
        return EXIT_FAILED;
    }
    if (err == -ENOENT && pst_lstat(fs, from, &st) == 0)
        return no_parent(to, "");
    return err == -ENOENT ? cli_fail(err, "%s", from) : cli_fail(err, "%s to %s", from, to);
}

static int run_mv(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool keep = false;
    const struct cli_opt opts[] = {
        {'n', "no-clobber", OPT_FLAG, &keep, NULL, "fail rather than replace", NULL},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct cli_url from, to;
    struct pst_fs *fs;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 2, 2);

    if (cli_url(argv[first + 1], 2, &to) < 0 || cli_url(argv[first], 2, &from) < 0)
        return EXIT_USAGE;
    if (strcmp(from.base, to.base) != 0)
        return cli_usage(cmd, "both must be in one container");
    fs = cli_connect(&from, &k, 0, &code);
    if (!fs)
        return code;
    r = pst_rename(fs, from.path, to.path, keep ? PST_RENAME_KEEP : 0);
    if (r == 0)
        r = pst_sync(fs);
    if (r < 0)
        code = mv_fail(fs, r, from.path, to.path);
    return cli_disconnect(fs, code);
}

/* ---- rm ---- */

struct rm {
    struct side side;
    bool recursive, force;
    int code;
};

static void rm_error(struct rm *x, const char *path, int err)
{
    if (err == -ENOENT && x->force)
        return;
    x->code = cli_fail(err, "%s", path);
}

static int rm_entry(void *user, const char *path, const char *rel, const struct stat *st)
{
    struct rm *x = user;
    int r = x->side.ops->unlink(&x->side, path);

    (void)rel;
    (void)st;
    if (r < 0)
        rm_error(x, path, r);
    return 0;
}

static int rm_dir_begin(void *user, const char *path, const char *rel, const struct stat *st)
{
    struct rm *x = user;

    (void)rel;
    (void)st;
    if (x->recursive)
        return 0;
    cli_error("%s is a directory: use rm -r", path);
    x->code = EXIT_FAILED;
    return 1;
}

static int rm_dir_end(void *user, const char *path, const char *rel, const struct stat *st)
{
    struct rm *x = user;
    int r;

    (void)st;
    if (!*rel && !strcmp(path, "/")) /* the root of a container stays */
        return 0;
    r = x->side.ops->rmdir(&x->side, path);
    if (r < 0)
        rm_error(x, path, r);
    return 0;
}

static int rm_failed(void *user, const char *path, int err)
{
    rm_error(user, path, err);
    return 0;
}

static int run_rm(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    struct rm x = {.side.ops = &side_store};
    const struct cli_opt opts[] = {
        {'r', "recursive", OPT_FLAG, &x.recursive, NULL, "directories with all that is in them", NULL},
        {'f', "force", OPT_FLAG, &x.force, NULL, "what is not there is no error", NULL},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct walk w = {.side = &x.side,
                     .user = &x,
                     .entry = rm_entry,
                     .dir_begin = rm_dir_begin,
                     .dir_end = rm_dir_end,
                     .failed = rm_failed};
    struct cli_url u;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, -1);

    for (int i = first; i < argc; i++) {
        x.side.fs = open_arg(argv[i], &k, &u, &code);
        if (!x.side.fs)
            return code;
        side_keep_dirs(&x.side);
        r = walk_run(&w, u.path);
        side_drop_dirs(&x.side);
        if (r == 0)
            r = pst_sync(x.side.fs);
        if (r < 0 && x.code == EXIT_OK) /* one line is enough, and the first says where it began */
            x.code = cli_fail(r, "%s", u.path);
        x.code = cli_disconnect(x.side.fs, x.code);
    }
    return x.code;
}

/* ---- df, du ---- */

static int run_df(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool json = false;
    const struct cli_opt opts[] = {
        {0, "json", OPT_FLAG, &json, NULL, "a JSON object", NULL},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct cli_url u;
    struct pst_fs *fs;
    struct statvfs v;
    uint64_t total, left;
    char a[32], b[32], c[32];
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    fs = open_arg(argv[first], &k, &u, &code);
    if (!fs)
        return code;
    r = pst_statvfs(fs, &v);
    if (r < 0)
        return cli_disconnect(fs, cli_fail_pst(r, u.base));
    total = (uint64_t)v.f_blocks * v.f_frsize;
    left = (uint64_t)v.f_bavail * v.f_frsize;
    if (json)
        code = cli_json(json_pack("{s:s, s:I, s:I, s:I, s:I}", "url", u.base, "total", (json_int_t)total, "used",
                                  (json_int_t)(total - left), "free", (json_int_t)left, "objects",
                                  (json_int_t)(v.f_files - v.f_ffree)));
    else
        printf("%-12s %-12s %-12s %5s %s\n%-12s %-12s %-12s %4.0f%% %s\n", "total", "used", "free", "use", "container",
               cli_size(total, a), cli_size(total - left, b), cli_size(left, c),
               total ? 100.0 * (double)(total - left) / (double)total : 0.0, u.base);
    return cli_disconnect(fs, code);
}

struct du {
    struct side side;
    uint64_t bytes, used, files, dirs;
    int code;
};

static int du_entry(void *user, const char *path, const char *rel, const struct stat *st)
{
    struct du *d = user;

    (void)path;
    (void)rel;
    /* A file with several names counts in parts, so that the sum is right. */
    d->bytes += (uint64_t)st->st_size / max_u64(1, st->st_nlink);
    d->used += (uint64_t)st->st_blocks * 512 / max_u64(1, st->st_nlink);
    d->files++;
    return 0;
}

static int du_dir(void *user, const char *path, const char *rel, const struct stat *st)
{
    (void)path;
    (void)rel;
    (void)st;
    ((struct du *)user)->dirs++;
    return 0;
}

static int du_failed(void *user, const char *path, int err)
{
    ((struct du *)user)->code = cli_fail(err, "%s", path);
    return 0;
}

static int run_du(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    struct du d = {.side.ops = &side_store};
    bool json = false;
    const struct cli_opt opts[] = {
        {0, "json", OPT_FLAG, &json, NULL, "a JSON object", NULL},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct walk w = {.side = &d.side, .user = &d, .entry = du_entry, .dir_begin = du_dir, .failed = du_failed};
    struct cli_url u;
    char a[32], b[32];
    int code = EXIT_OK;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    d.side.fs = open_arg(argv[first], &k, &u, &code);
    if (!d.side.fs)
        return code;
    if (walk_run(&w, u.path) < 0)
        d.code = EXIT_FAILED;
    if (d.code == EXIT_OK && json)
        d.code = cli_json(json_pack("{s:o, s:I, s:I, s:I, s:I}", "path", cli_json_bytes(u.path), "bytes",
                                    (json_int_t)d.bytes, "used", (json_int_t)d.used, "files", (json_int_t)d.files,
                                    "directories", (json_int_t)d.dirs));
    else if (d.code == EXIT_OK)
        printf("%s in %llu files and %llu directories, %s used\n", cli_size(d.bytes, a), (unsigned long long)d.files,
               (unsigned long long)d.dirs, cli_size(d.used, b));
    return cli_disconnect(d.side.fs, d.code);
}

const struct cli_cmd cmds_files[] = {
    {"ls", "URL", "Lists a directory", NULL, run_ls},
    {"stat", "URL", "Shows what is known of a file", NULL, run_stat},
    {"cat", "URL...", "Writes files to standard output", NULL, run_cat},
    {"mkdir", "URL", "Makes a directory", NULL, run_mkdir},
    {"mv", "URL URL", "Renames within a container", NULL, run_mv},
    {"rm", "URL...", "Removes files, and trees with -r", NULL, run_rm},
    {"df", "URL", "Shows a container's space", NULL, run_df},
    {"du", "URL", "Adds up a tree", NULL, run_du},
    {0},
};

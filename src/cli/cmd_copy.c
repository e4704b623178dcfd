/* cp, put, get. */
#include "copy.h"

#include <errno.h>
#include <string.h>

/* A place on the command line: a path of the operating system, or a URL with its connection. */
struct place {
    const char *arg;
    struct side side;
    struct cli_url url;
    char path[SIDE_PATH_MAX];
    bool slash; /* written with a '/' at the end: something inside it is meant */
    bool shared;
};

struct cp_args {
    struct cli_conn conn;
    struct copy_opts copy;
    bool quiet, json, archive;
};

static int resolve(const char *arg, struct place *p)
{
    size_t n = strlen(arg);

    *p = (struct place){.arg = arg, .side.ops = &side_os};
    if (cli_is_url(arg)) {
        if (cli_url(arg, 2, &p->url) < 0)
            return -EINVAL;
        p->side.ops = &side_store;
        p->side.base = p->url.base;
        p->slash = p->url.slash;
        return snprintf(p->path, sizeof p->path, "%s", p->url.path) >= (int)sizeof p->path ? -ENAMETOOLONG : 0;
    }
    if (n == 0 || n >= sizeof p->path) {
        cli_error("\"%.60s\" is not a path", arg);
        return -EINVAL;
    }
    p->slash = n > 1 && arg[n - 1] == '/';
    while (n > 1 && arg[n - 1] == '/')
        n--;
    memcpy(p->path, arg, n);
    p->path[n] = 0;
    return 0;
}

/* `other` may have the same container open already: a local: store cannot be opened twice. */
static int connect_place(struct place *p, const struct cp_args *a, const struct place *other)
{
    int code = EXIT_OK;

    if (!p->side.ops->remote)
        return EXIT_OK;
    if (other && other->side.fs && !strcmp(other->url.base, p->url.base)) {
        p->side.fs = other->side.fs;
        p->shared = true;
        return EXIT_OK;
    }
    /* Not durable file by file: all is synced at the end. */
    p->side.fs = cli_connect(&p->url, &a->conn, PST_CONNECT_LAZY_CLOSE, &code);
    return code;
}

static int disconnect_place(struct place *p, int code)
{
    return p->side.fs && !p->shared ? cli_disconnect(p->side.fs, code) : code;
}

static const char *last_name(const char *path)
{
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}

/* The name of the copy: `to` itself, or in it when it is written as a directory. */
static int target_name(const struct place *from, const struct place *to, bool into, char ret[SIDE_PATH_MAX])
{
    const char *name = last_name(from->path);

    if (!into || !*name || !strcmp(name, ".") || !strcmp(name, ".."))
        return snprintf(ret, SIDE_PATH_MAX, "%s", to->path) >= SIDE_PATH_MAX ? -ENAMETOOLONG : 0;
    return side_join(to->path, name, ret);
}

static int report(const struct cp_args *a, const struct copy_result *t, uint64_t ns)
{
    char size[32], rate[32];
    double s = (double)ns / 1e9;

    if (a->json)
        return cli_json(json_pack("{s:I, s:I, s:I, s:I, s:f}", "files", (json_int_t)t->files, "skipped",
                                  (json_int_t)t->skipped, "bytes", (json_int_t)t->bytes, "failed",
                                  (json_int_t)t->failed, "seconds", s));
    if (!a->quiet && isatty(STDERR_FILENO))
        fprintf(stderr, "%llu files, %llu of them there already; %s in %.1f s, %s/s\n", (unsigned long long)t->files,
                (unsigned long long)t->skipped, cli_size(t->bytes, size), s,
                cli_size(s > 0 ? (uint64_t)((double)t->bytes / s) : 0, rate));
    return EXIT_OK;
}

static void add(struct copy_result *sum, const struct copy_result *r)
{
    sum->files += r->files;
    sum->bytes += r->bytes;
    sum->skipped += r->skipped;
    sum->failed += r->failed;
    if (!sum->first_error)
        sum->first_error = r->first_error;
}

static int copy_one(struct place *from, struct place *to, bool into, struct cp_args *a, struct copy_result *sum)
{
    struct copy_result r = {0};
    char target[SIDE_PATH_MAX];
    struct stat x, y;
    int e = target_name(from, to, into, target);

    if (e == 0 && from->side.fs == to->side.fs && from->side.ops == to->side.ops &&
        from->side.ops->lstat(&from->side, from->path, &x) == 0 && to->side.ops->lstat(&to->side, target, &y) == 0 &&
        x.st_ino == y.st_ino && x.st_dev == y.st_dev) {
        cli_error("%s and %s are the same", from->arg, to->arg);
        return EXIT_FAILED;
    }
    if (e == 0)
        e = copy_run(&from->side, from->path, &to->side, target, &a->copy, &r);
    else
        return cli_fail(e, "%s", to->arg);
    add(sum, &r);
    return cli_exit_code(e);
}

/* n sources, then the destination. */
static int copy_all(int n, char **argv, struct cp_args *a, bool into)
{
    struct copy_result sum = {0};
    struct place to, from;
    uint64_t start = now_ns();
    int code = EXIT_OK, e;

    if (resolve(argv[n], &to) < 0)
        return EXIT_USAGE;
    into = into || to.slash || n > 1;
    code = connect_place(&to, a, NULL);
    for (int i = 0; i < n && code == EXIT_OK; i++) {
        int one;
        if (resolve(argv[i], &from) < 0) {
            code = EXIT_USAGE;
            break;
        }
        code = connect_place(&from, a, &to);
        if (code != EXIT_OK)
            break;
        one = copy_one(&from, &to, into, a, &sum);
        code = disconnect_place(&from, one);
    }
    if (sum.files > 0) {
        e = to.side.ops->sync(&to.side, to.path);
        if (e < 0 && to.side.ops->remote)
            code = cli_fail(e, "%s: the copies are not durable", to.arg);
    }
    code = disconnect_place(&to, code);
    progress_free(a->copy.progress);
    e = report(a, &sum, now_ns() - start);
    return code != EXIT_OK ? code : e;
}

#define COPY_OPTS(a)                                                                                                   \
    {'j', "jobs", OPT_UINT, &(a).copy.jobs, "N", "files at once; default 8", NULL},                                    \
        {0, "checksum", OPT_FLAG, &(a).copy.checksum, NULL, "compare contents, not size and time", NULL},              \
        {'v', "verbose", OPT_FLAG, &(a).copy.verbose, NULL, "name each file that is copied", NULL},                    \
        {'q', "quiet", OPT_FLAG, &(a).quiet, NULL, "no progress", NULL},                                               \
        {0, "no-attributes", OPT_FLAG, &(a).copy.no_attrs, NULL, "leave modes, times and owners alone", NULL},         \
    {                                                                                                                  \
        0, "json", OPT_FLAG, &(a).json, NULL, "what was done, as JSON", NULL                                           \
    }

static int start(struct cp_args *a)
{
    if (a->copy.jobs < 1 || a->copy.jobs > 64) {
        cli_error("--jobs: must be from 1 to 64");
        return EXIT_USAGE;
    }
    a->copy.progress = progress_new(cli_name, a->quiet || a->copy.verbose);
    return EXIT_OK;
}

static int run_cp(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cp_args a = {.copy.jobs = 8};
    const struct cli_opt opts[] = {
        {'r', "recursive", OPT_FLAG, &a.copy.recursive, NULL, "directories with all that is in them", NULL},
        {'a', "archive", OPT_FLAG, &a.archive, NULL, "the same: attributes are always kept", NULL},
        COPY_OPTS(a),
        CLI_CONN_OPTS(a.conn),
        {0},
    };
    CLI_PARSE(cmd, opts, argc, argv, 2, -1);

    a.copy.recursive |= a.archive;
    if (start(&a) != EXIT_OK)
        return EXIT_USAGE;
    return copy_all(argc - first - 1, argv + first, &a, false);
}

/* ---- put and get: one file, standard input and output too ---- */

static int stream_in(const struct place *to, struct side *s)
{
    cleanup_free char *buf = malloc(MiB);
    struct side_file *f;
    uint64_t at = 0;
    int64_t n = 0;
    int r = buf ? s->ops->open(s, to->path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &f) : -ENOMEM, e;

    if (r < 0)
        return cli_fail_pst(r, to->arg);
    while (r == 0 && (n = read(STDIN_FILENO, buf, MiB)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            r = -errno;
            break;
        }
        n = s->ops->pwrite(f, buf, (size_t)n, at);
        if (n < 0)
            r = (int)n;
        else
            at += (uint64_t)n;
    }
    if (r == 0)
        r = s->ops->fsync(f);
    e = s->ops->close(f);
    r = r < 0 ? r : e;
    return r < 0 ? cli_fail(r, "%s", to->arg) : EXIT_OK;
}

static int run_put(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cp_args a = {.copy.jobs = 8};
    const struct cli_opt opts[] = {COPY_OPTS(a), CLI_CONN_OPTS(a.conn), {0}};
    struct place to;
    int code;
    CLI_PARSE(cmd, opts, argc, argv, 2, -1);

    if (!cli_is_url(argv[argc - 1]))
        return cli_usage(cmd, "\"%.60s\" is not a URL", argv[argc - 1]);
    if (argc - first == 2 && !strcmp(argv[first], "-")) {
        if (resolve(argv[argc - 1], &to) < 0)
            return EXIT_USAGE;
        code = connect_place(&to, &a, NULL);
        return code != EXIT_OK ? code : disconnect_place(&to, stream_in(&to, &to.side));
    }
    return start(&a) != EXIT_OK ? EXIT_USAGE : copy_all(argc - first - 1, argv + first, &a, false);
}

static int run_get(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cp_args a = {.copy.jobs = 8};
    const struct cli_opt opts[] = {COPY_OPTS(a), CLI_CONN_OPTS(a.conn), {0}};
    char here[] = ".", *args[2];
    struct place from;
    int code;
    CLI_PARSE(cmd, opts, argc, argv, 1, 2);

    if (!cli_is_url(argv[first]))
        return cli_usage(cmd, "\"%.60s\" is not a URL", argv[first]);
    args[0] = argv[first];
    args[1] = argc - first == 2 ? argv[first + 1] : here;
    if (!strcmp(args[1], "-")) {
        if (resolve(args[0], &from) < 0)
            return EXIT_USAGE;
        code = connect_place(&from, &a, NULL);
        return code != EXIT_OK ? code : disconnect_place(&from, cli_cat(from.side.fs, from.path, 0, UINT64_MAX));
    }
    return start(&a) != EXIT_OK ? EXIT_USAGE : copy_all(1, args, &a, argc - first == 1);
}

static const char cp_details[] =
    "Each of them is a URL or a path of this machine. With one SOURCE, DEST is the name of the copy; a DEST that ends\n"
    "with '/' is the directory to copy into, as is every DEST of several sources. Modes, times, links, extended\n"
    "attributes and (as root) owners are kept. A file whose size and time agree is left alone: after a break, the "
    "same\n"
    "command goes on. The copies are durable when the command ends.";

const struct cli_cmd cmds_copy[] = {
    {"cp", "SOURCE... DEST", "Copies files and trees, from or to a container or between two", cp_details, run_cp},
    {"put", "FILE|- URL", "Copies a file of this machine, or standard input, into a container", NULL, run_put},
    {"get", "URL [FILE|-]", "Copies a file out of a container, here or to standard output", NULL, run_get},
    {0},
};

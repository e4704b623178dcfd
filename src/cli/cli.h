/*
 * The `penstock` command: a table of subcommands, each with a small table of options. What they share: connecting,
 * errors in one line, JSON, progress.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "base/util.h"

#include <jansson.h>
#include <penstock/penstock.h>
#include <stdio.h>

struct pst_store;

/* Exit codes, as in penstock(1). */
enum cli_exit {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_CONNECT = 3,   /* no connection to the server */
    EXIT_NOT_FOUND = 4, /* the named thing is not there */
    EXIT_REFUSED = 5,   /* permission or credential */
    EXIT_DAMAGED = 6,   /* check, scrub: damage was found */
};

/* ---- commands and options ---- */

enum cli_kind { OPT_FLAG, OPT_STRING, OPT_UINT, OPT_SIZE, OPT_MODE, OPT_CALL };

struct cli_opt {
    char c; /* short form; 0: none */
    const char *name;
    enum cli_kind kind;
    void *target; /* bool, const char *, uint64_t, uint64_t, uint32_t */
    const char *arg, *help;
    /* OPT_CALL: arg NULL takes none. A line for people in err; 0 or -errno. */
    int (*call)(void *target, const char *name, const char *value, char *err, size_t err_size);
};

struct cli_cmd {
    const char *name;    /* "pool create" */
    const char *args;    /* "URL" */
    const char *summary; /* one line */
    const char *details; /* more lines, or NULL */
    /* argv[0] is the command's name. Returns an exit code. */
    int (*run)(const struct cli_cmd *cmd, int argc, char **argv);
};

/* Tables of the files of this folder, each ended by a NULL name. */
extern const struct cli_cmd cmds_serve[], cmds_mount[], cmds_admin[], cmds_files[], cmds_copy[], cmds_check[],
    cmds_store[], cmds_status[], cmds_tar[], cmds_bench[], cmds_tls[], cmds_bundle[], cmds_filter[], cmds_top[],
    cmds_tenant[], cmds_made[];

/* Ended by an entry whose name is NULL. */
#define OPTS_MAX 64
/*
 * Reads the options; --help prints the command's help. Returns the index of the first argument, with at least `min` and
 * at most `max` (-1: any number) of them there; or -1 - EXIT_CODE when the command is to end now.
 */
int cli_parse(const struct cli_cmd *cmd, const struct cli_opt *opts, int argc, char **argv, int min, int max);
#define CLI_PARSE(cmd, opts, argc, argv, min, max)                                                                     \
    int first = cli_parse(cmd, opts, argc, argv, min, max);                                                            \
    if (first < 0)                                                                                                     \
    return -1 - first

/* ---- errors: "penstock put: /x: no such file or directory (ENOENT)" ---- */

/* Of the command that runs; set by main. */
extern const char *cli_name;
void cli_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints and returns the exit code for this errno. */
int cli_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same with what pst_last_error() says, which names the object; `what` where it does not. */
int cli_fail_pst(int err, const char *what);
int cli_usage(const struct cli_cmd *cmd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int cli_exit_code(int err);

/* ---- connecting ---- */

#define CLI_FILTERS_MAX 16

struct cli_conn {
    const char *filters[CLI_FILTERS_MAX + 1]; /* ended by NULL */
    const char *token_file, *ca, *cert, *key, *provider, *store_options;
    bool insecure, require_rdma;
    uint64_t threads, depth, timeout_ms;
};
#define CLI_SERVER_OPTS(k)                                                                                             \
    {0, "token-file", OPT_STRING, &(k).token_file, "FILE", "credential: a file with a token", NULL},                   \
        {0, "ca", OPT_STRING, &(k).ca, "FILE", "the CA of the server's certificate", NULL},                            \
        {0, "cert", OPT_STRING, &(k).cert, "FILE", "this client's certificate", NULL},                                 \
        {0, "key", OPT_STRING, &(k).key, "FILE", "and its key", NULL},                                                 \
        {0, "insecure", OPT_FLAG, &(k).insecure, NULL, "plain text also off loopback", NULL},                          \
        {0, "provider", OPT_STRING, &(k).provider, "NAME", "libfabric provider", NULL},                                \
        {0, "require-rdma", OPT_FLAG, &(k).require_rdma, NULL, "fail rather than move data without RDMA", NULL},       \
        {0, "timeout", OPT_UINT, &(k).timeout_ms, "MS", "of one operation, reconnecting included", NULL},              \
    {                                                                                                                  \
        'o', "store-options", OPT_STRING, &(k).store_options, "K=V,K=V",                                               \
            "options of the engine (local:), placement=auto|exported|third-party|crossing (penstock:)", NULL           \
    }
/* A filter more for the struct cli_conn that is the target. */
int cli_add_filter(void *target, const char *name, const char *value, char *err, size_t err_size);
/* For who works in a container. */
#define CLI_CONN_OPTS(k)                                                                                               \
    CLI_SERVER_OPTS(k),                                                                                                \
    {                                                                                                                  \
        0, "filter", OPT_CALL, &(k), "SPEC",                                                                           \
            "inline service in this process, the lowest first: compress, crypt:key_file=FILE, csum; repeatable",      \
            cli_add_filter                                                                                             \
    }
void cli_conn_options(const struct cli_conn *k, struct pst_options *ret);
/* An option, or the environment variable that stands in for it. */
static inline const char *cli_or_env(const char *value, const char *name)
{
    return value ? value : getenv(name);
}
/* The exit code when connecting failed: a wrong filter is wrong usage. */
int cli_connect_code(const struct cli_conn *k, int err);

/*
 * URLs with a path:  penstock://host[:port]/pool/container[/path]  local:/dir[?pool/container[/path]]
 */
struct cli_url {
    char base[4200];                /* for pst_connect */
    char server[4200];              /* for pst_admin_open: without pool and container */
    char pool[128], container[128]; /* "" where the URL has none */
    char path[4200];                /* begins with '/' */
    bool slash;                     /* the URL ends with '/' after a path */
};
/* Has it a scheme that is ours? */
bool cli_is_url(const char *s);
/* 0 or -EINVAL, with a message printed. parts: 0 server, 1 and pool, 2 and container are required. */
int cli_url(const char *s, int parts, struct cli_url *ret);
/* "host:port" or "unix:/path" of a URL that is not local:. */
int cli_url_addr(const struct cli_url *u, char *ret, size_t size);
/* Connects, or prints why not: *ret_exit is the exit code then. */
struct pst_fs *cli_connect(const struct cli_url *u, const struct cli_conn *k, unsigned flags, int *ret_exit);
/* Ends a connection: an error that shows only now becomes the exit code. */
int cli_disconnect(struct pst_fs *fs, int code);

/* Opens the store of a local: URL, or prints why not, as above. */
struct pst_store *cli_open_store(const struct cli_url *u, int *ret_exit);

/* Writes (a part of) a file to standard output. Returns an exit code. */
int cli_cat(struct pst_fs *fs, const char *path, uint64_t offset, uint64_t length);

/* ---- output ---- */

/* Prints the object in one go, with a newline, and drops it. Returns an exit code. */
int cli_json(json_t *j);
/* "1.5 GiB" */
const char *cli_size(uint64_t bytes, char buf[32]);
/* "2026-01-31 12:00:00" */
const char *cli_time(int64_t ns, char buf[32]);
void cli_mode(uint32_t mode, char ret[11]); /* "drwxr-xr-x" */
json_t *cli_json_stat(const char *path, const struct stat *st);
/* JSON strings are UTF-8: other bytes become U+FFFD. */
json_t *cli_json_bytes(const char *s);

/*
 * Progress of a long transfer on a terminal's standard error: rate, and time left once the total is known. All calls
 * are thread-safe, cheap, and do nothing elsewhere.
 */
struct progress;
struct progress *progress_new(const char *what, bool quiet);
void progress_total(struct progress *p, uint64_t bytes, bool final);
void progress_add(struct progress *p, uint64_t bytes, uint64_t files);
void progress_free(struct progress *p); /* wipes the line */

#endif

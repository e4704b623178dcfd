/* mount, umount. */
#include "cli.h"

#include "fuse_mount/mount.h"

#include <errno.h>
#include <string.h>

/* Longer than for one that talks to the server itself: programs on a mount sit out a restart, or a pulled cable. */
#define MOUNT_TIMEOUT_MS 120000u

static int set_durability(void *target, const char *name, const char *value, char *err, size_t err_size)
{
    (void)name;
    if (strcmp(value, "close") != 0 && strcmp(value, "fsync") != 0) {
        snprintf(err, err_size, "--durability: \"%.40s\" must be close or fsync", value);
        return -EINVAL;
    }
    *(bool *)target = !strcmp(value, "fsync");
    return 0;
}

static int set_seconds(void *target, const char *name, const char *value, char *err, size_t err_size)
{
    char *end;
    double v = strtod(value, &end);

    if (end == value || *end || !(v >= 0 && v <= 86400)) {
        snprintf(err, err_size, "--%s: \"%.40s\" is not a number of seconds", name, value);
        return -EINVAL;
    }
    *(double *)target = v;
    return 0;
}

/* In place. */
static int split_options(char *s, struct pst_option *opts, size_t max, size_t *ret_n)
{
    char *save = NULL;
    size_t n = 0;

    for (char *p = strtok_r(s, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        char *eq = strchr(p, '=');
        if (!eq || n == max)
            return -EINVAL;
        *eq = 0;
        opts[n++] = (struct pst_option){p, eq + 1};
    }
    *ret_n = n;
    return 0;
}

static int run_mount(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct fuse_mount_opts o;
    struct cli_conn k = {0};
    bool no_supervisor = false;
    uint64_t threads = 0, write_behind = 0;
    const struct cli_opt opts[] = {
        {'f', "foreground", OPT_FLAG, &o.foreground, NULL, "serve here until it is unmounted", NULL},
        {0, "no-supervisor", OPT_FLAG, &no_supervisor, NULL, "do not come back after a crash", NULL},
        {0, "durability", OPT_CALL, &o.durability_fsync, "close|fsync", "what makes data durable; default close",
         set_durability},
        {0, "read-only", OPT_FLAG, &o.read_only, NULL, "nothing can be changed", NULL},
        {0, "only-owner", OPT_FLAG, &o.only_owner, NULL, "nobody but you gets in", NULL},
        {0, "allow-other", OPT_FLAG, &o.allow_other, NULL, "others than root: let other users in", NULL},
        {0, "attr-timeout", OPT_CALL, &o.attr_timeout, "SECONDS", "how long attributes are kept; default 1",
         set_seconds},
        {0, "entry-timeout", OPT_CALL, &o.entry_timeout, "SECONDS", "how long names are kept; default 1", set_seconds},
        {0, "max-threads", OPT_UINT, &threads, "N", "that serve requests, 256 at most; default 16", NULL},
        {0, "write-behind", OPT_SIZE, &write_behind, "SIZE", "written data kept in memory; default 64M", NULL},
        {0, "mount-options", OPT_STRING, &o.mount_options, "A,B=C", "noexec, nosuid, noatime, ...", NULL},
        {0, "log-file", OPT_STRING, &o.log_file, "FILE", "in the background; default: syslog", NULL},
        CLI_CONN_OPTS(k),
        {0},
    };
    struct pst_option store_opts[16];
    cleanup_free char *copy = NULL;
    struct cli_url u;
    char err[600] = "";
    int r;

    fuse_mount_opts_init(&o);
    CLI_PARSE(cmd, opts, argc, argv, 2, 2);
    if (cli_url(argv[first], 2, &u) < 0)
        return EXIT_USAGE;
    if (strcmp(u.path, "/") != 0)
        return cli_usage(cmd, "a whole container is mounted: leave out \"%.60s\"", u.path);
    if (threads > FUSE_MOUNT_THREADS_MAX)
        return cli_usage(cmd, "--max-threads: at most %u", FUSE_MOUNT_THREADS_MAX);
    o.supervise = !no_supervisor && o.supervise;
    o.max_threads = (uint32_t)threads;
    o.client.write_behind = write_behind;
    o.client.token_file = cli_or_env(k.token_file, "PENSTOCK_TOKEN_FILE");
    o.client.ca_file = cli_or_env(k.ca, "PENSTOCK_CA_FILE");
    o.client.cert_file = cli_or_env(k.cert, "PENSTOCK_CERT_FILE");
    o.client.key_file = cli_or_env(k.key, "PENSTOCK_KEY_FILE");
    o.client.insecure = k.insecure;
    o.client.require_rdma = k.require_rdma;
    o.client.provider = k.provider;
    o.client.timeout_ms = k.timeout_ms ? (uint32_t)min_u64(k.timeout_ms, 3600000) : MOUNT_TIMEOUT_MS;
    o.client.filters = k.filters[0] ? k.filters : NULL;
    copy = strdup(k.store_options ? k.store_options : "");
    o.client.store_opts = store_opts;
    if (!copy || split_options(copy, store_opts, ARRAY_SIZE(store_opts), &o.client.nstore_opts) < 0)
        return cli_usage(cmd, "--store-options: \"%.60s\" is not KEY=VALUE,KEY=VALUE", k.store_options);
    r = fuse_mount_run(u.base, argv[first + 1], &o, err, sizeof err);
    if (r < 0) {
        cli_error("%s", err[0] ? err : "it failed");
        return cli_connect_code(&k, r);
    }
    return EXIT_OK;
}

static int run_umount(const struct cli_cmd *cmd, int argc, char **argv)
{
    bool lazy = false;
    const struct cli_opt opts[] = {{'l', "lazy", OPT_FLAG, &lazy, NULL, "also while files are open", NULL}, {0}};
    int r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    r = fuse_mount_stop(argv[first], lazy);
    if (r == -EINVAL && access(argv[first], F_OK) && errno == ENOENT)
        r = -ENOENT;
    if (r == -EBUSY) {
        cli_error("%s is in use: end what works in it (fuser -vm), or unmount it with --lazy", argv[first]);
        return EXIT_FAILED;
    }
    if (r == -EINVAL) {
        cli_error("%s is not a mount of penstock", argv[first]);
        return cli_exit_code(r);
    }
    return r < 0 ? cli_fail(r, "%s", argv[first]) : EXIT_OK;
}

const struct cli_cmd cmds_mount[] = {
    {"mount", "URL DIRECTORY", "Shows a container as a directory of the operating system", NULL, run_mount},
    {"umount", "DIRECTORY", "Ends a mount, once its data is written", NULL, run_umount},
    {0},
};

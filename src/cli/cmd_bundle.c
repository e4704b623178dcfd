/* support-bundle, version. */
#include "status.h"

#include "server/config.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <string.h>
#include <sys/utsname.h>

#define LOG_TAIL (4 * MiB) /* of each log file */

static int add_text(struct archive *a, const char *name, const char *text, size_t len)
{
    struct archive_entry *e = archive_entry_new();
    bool ok;

    if (!e)
        return -ENOMEM;
    archive_entry_set_pathname(e, name);
    archive_entry_set_size(e, (int64_t)len);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0600);
    archive_entry_set_mtime(e, time(NULL), 0);
    ok = archive_write_header(a, e) == ARCHIVE_OK && archive_write_data(a, text, len) == (la_ssize_t)len;
    archive_entry_free(e);
    return ok ? 0 : -EIO;
}

static int add_json(struct archive *a, const char *name, json_t *j)
{
    char *text = j ? json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    int r = text ? add_text(a, name, text, strlen(text)) : 0;

    free(text);
    json_decref(j);
    return r;
}

static void config_line(void *user, const char *key, const char *value)
{
    fprintf(user, "%s: %s\n", key, value);
}

/* The configuration without secrets: what srv_config_describe shows of it. */
static int add_config(struct archive *a, const char *path)
{
    struct srv_config *c = srv_config_new();
    char err[500] = "", *text = NULL;
    size_t len = 0;
    FILE *f = c ? open_memstream(&text, &len) : NULL;
    int r;

    if (!f) {
        srv_config_free(c);
        return -ENOMEM;
    }
    if (srv_config_load(c, path, err, sizeof err) == 0)
        srv_config_describe(c, config_line, f);
    else
        fprintf(f, "%s\n", err);
    r = fclose(f) == 0 ? add_text(a, "config.txt", text, len) : -ENOMEM;
    free(text);
    srv_config_free(c);
    return r;
}

static int add_log(struct archive *a, const char *path)
{
    cleanup_free char *buf = malloc(LOG_TAIL);
    FILE *f = fopen(path, "re");
    char name[300];
    size_t n = 0;

    if (!buf || !f) {
        int e = buf ? -errno : -ENOMEM;
        if (f)
            fclose(f);
        return e;
    }
    if (fseek(f, -(long)LOG_TAIL, SEEK_END) < 0)
        rewind(f);
    n = fread(buf, 1, LOG_TAIL, f);
    fclose(f);
    snprintf(name, sizeof name, "log/%s", strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    return add_text(a, name, buf, n);
}

static int add_versions(struct archive *a)
{
    struct utsname u = {0};
    char text[1200];
    int n;

    uname(&u);
    n = snprintf(text, sizeof text, "penstock %s\nkernel %s %s %s\nlibarchive %s\njansson %s\n", PENSTOCK_VERSION,
                 u.sysname, u.release, u.machine, archive_version_string(), JANSSON_VERSION);
    return add_text(a, "versions.txt", text, (size_t)n);
}

static int fill(struct archive *a, const struct cli_url *u, const struct cli_conn *k, const char *config,
                const char *log)
{
    int r = add_versions(a), ignored = EXIT_OK;

    /* What cannot be had is told on standard error and left out: a bundle is wanted just then. */
    if (r == 0)
        r = add_json(a, "status.json", status_json(u, k, &ignored));
    if (r == 0 && ignored == EXIT_OK) /* else the same would be told twice */
        r = add_json(a, "metrics.json", metrics_json(u, k, &ignored));
    if (r == 0 && ignored == EXIT_OK && cli_is_remote(u))
        r = add_json(a, "tenants.json", tenants_json(u, k, NULL, &ignored));
    if (r == 0 && config)
        r = add_config(a, config);
    if (r == 0 && log) {
        int e = add_log(a, log);
        if (e == -EIO || e == -ENOMEM)
            r = e;
        else if (e < 0)
            cli_fail(e, "%s", log);
    }
    return r;
}

static int run_bundle(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    const char *config = NULL, *log = NULL;
    const struct cli_opt opts[] = {
        {'c', "config", OPT_STRING, &config, "FILE", "the daemon's configuration; secrets are left out", NULL},
        {0, "log-file", OPT_STRING, &log, "FILE", "a log; its last 4 MiB", NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    struct archive *a;
    struct cli_url u;
    int r;
    CLI_PARSE(cmd, opts, argc, argv, 2, 2);

    if (cli_url(argv[first], 0, &u) < 0)
        return EXIT_USAGE;
    a = archive_write_new();
    if (!a || archive_write_set_format_pax_restricted(a) != ARCHIVE_OK ||
        archive_write_add_filter_gzip(a) != ARCHIVE_OK ||
        archive_write_open_filename(a, argv[first + 1]) != ARCHIVE_OK) {
        r = cli_fail(a && archive_errno(a) > 0 ? -archive_errno(a) : -ENOMEM, "%s", argv[first + 1]);
        archive_write_free(a);
        return r;
    }
    r = fill(a, &u, &k, config, log);
    if (archive_write_close(a) != ARCHIVE_OK && r == 0)
        r = -EIO;
    if (r < 0)
        cli_error("%s: %s", argv[first + 1], archive_error_string(a) ? archive_error_string(a) : strerror(-r));
    archive_write_free(a);
    return r < 0 ? EXIT_FAILED : EXIT_OK;
}

static int run_version(const struct cli_cmd *cmd, int argc, char **argv)
{
    bool json = false;
    const struct cli_opt opts[] = {{0, "json", OPT_FLAG, &json, NULL, "a JSON object", NULL}, {0}};
    CLI_PARSE(cmd, opts, argc, argv, 0, 0);

    if (first < 0)
        return EXIT_USAGE;
    if (json)
        return cli_json(json_pack("{s:s}", "version", pst_version()));
    printf("penstock %s\n", pst_version());
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

const struct cli_cmd cmds_bundle[] = {
    {"support-bundle", "URL FILE.tar.gz",
     "Packs what helps to understand a problem with a server or an agent, without secrets",
     "Status (of an agent: with its server's state), metrics, tenants, versions, configuration and log.", run_bundle},
    {"version", "", "Shows the version", NULL, run_version},
    {0},
};

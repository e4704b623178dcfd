/* check, upgrade: offline, of a directory. */
#include "cli.h"

#include "local/local_store.h"

#include <string.h>

/* "local:/dir" or "/dir"; NULL, with a message printed: a server's URL. */
static const char *directory(const struct cli_cmd *cmd, const char *arg)
{
    if (!strncmp(arg, "local:", 6))
        return arg + 6;
    if (!cli_is_url(arg))
        return arg;
    cli_usage(cmd,
              "it wants the directory of a store that no daemon has open; penstock scrub %.60s verifies one in use",
              arg);
    return NULL;
}

static void print_finding(void *user, const char *line)
{
    json_t *list = user;

    if (list)
        json_array_append_new(list, cli_json_bytes(line));
    else
        printf("%s\n", line);
}

static int run_check(const struct cli_cmd *cmd, int argc, char **argv)
{
    bool json = false, quick = false;
    struct pst_check_opts o = {.report = print_finding};
    const struct cli_opt opts[] = {
        {0, "quick", OPT_FLAG, &quick, NULL, "index and space only: no file's bytes are read", NULL},
        {0, "repair", OPT_FLAG, &o.repair, NULL, "put right what can be without a loss; check again afterwards", NULL},
        {0, "rebuild-index", OPT_FLAG, &o.rebuild_index, NULL, "make the index anew before", NULL},
        {0, "json", OPT_FLAG, &json, NULL, "a JSON object", NULL},
        {0},
    };
    json_t *list = NULL;
    const char *dir;
    char err[400] = "";
    int64_t n;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    dir = directory(cmd, argv[first]);
    if (!dir)
        return EXIT_USAGE;
    o.data = !quick;
    o.user = list = json ? json_array() : NULL;
    n = pst_local_check(dir, &o, err, sizeof err);
    if (n < 0) {
        json_decref(list);
        cli_error("%s", err[0] ? err : "it failed");
        return cli_exit_code((int)n);
    }
    if (json) {
        if (cli_json(json_pack("{s:I, s:o}", "problems", (json_int_t)n, "findings", list)) != EXIT_OK)
            return EXIT_FAILED;
    } else {
        printf(n ? "%lld problems\n" : "clean\n", (long long)n);
    }
    return fflush(stdout) ? EXIT_FAILED : n > 0 ? EXIT_DAMAGED : EXIT_OK;
}

static int run_upgrade(const struct cli_cmd *cmd, int argc, char **argv)
{
    const struct cli_opt opts[] = {{0}};
    const char *dir;
    char err[400] = "";
    int r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    dir = directory(cmd, argv[first]);
    if (!dir)
        return EXIT_USAGE;
    r = pst_local_upgrade(dir, err, sizeof err);
    if (r < 0) {
        cli_error("%s", err[0] ? err : "it failed");
        return cli_exit_code(r);
    }
    puts(r ? "upgraded" : "nothing to do");
    return EXIT_OK;
}

const struct cli_cmd cmds_check[] = {
    {"check", "DIRECTORY", "Verifies a store that no daemon has open: index, names, space, every block", NULL,
     run_check},
    {"upgrade", "DIRECTORY", "Brings a store of the previous layout version to this one", NULL, run_upgrade},
    {0},
};

/*
 * rewrap: keys of files that are encrypted by the filter crypt, in a store of this machine or, from here, on a server.
 */
#include "cli.h"
#include "status.h"

#include "base/log.h"
#include "filter/filter.h"
#include "store/store.h"

#include <errno.h>
#include <string.h>

/* The filter on a store that is open, then its container. */
static int rewrap(struct pst_store **st, const char *spec, const struct cli_url *u)
{
    const struct pst_ctx ctx = {0};
    struct filter_rewrapped n;
    struct pst_cont *c = NULL;
    char err[300] = "", why[300];
    int r = filter_push(spec, *st, st, err, sizeof err);

    if (r < 0) {
        cli_error("%s", err);
        return r == -EINVAL ? EXIT_USAGE : cli_exit_code(r);
    }
    log_divert("filter", why, sizeof why);
    r = pst_cont_open(*st, &ctx, u->pool, u->container, &c);
    log_divert(NULL, NULL, 0);
    if (r < 0 && why[0]) {
        cli_error("%s", why);
        return cli_exit_code(r);
    }
    if (r < 0)
        return cli_fail(r, "%s/%s", u->pool, u->container);
    r = filter_rewrap(c, &n);
    pst_cont_close(c);
    if (r == -EINVAL) {
        cli_error("--filter: it has to be crypt:...");
        return EXIT_USAGE;
    }
    printf("%llu wrapped anew, %llu were already, %llu failed\n", (unsigned long long)n.changed,
           (unsigned long long)n.current, (unsigned long long)n.failed);
    return r < 0 ? cli_fail(r, "%s/%s", u->pool, u->container) : EXIT_OK;
}

/* The keys stay in this process: the server gives and takes wrapped ones. */
static struct pst_store *open_server(const struct cli_url *u, const struct cli_conn *k, int *ret_exit)
{
    char timeout[24];
    const struct pst_option all[] = {
        {"purpose", "cli"},
        {"token_file", cli_or_env(k->token_file, "PENSTOCK_TOKEN_FILE")},
        {"ca_file", cli_or_env(k->ca, "PENSTOCK_CA_FILE")},
        {"cert_file", cli_or_env(k->cert, "PENSTOCK_CERT_FILE")},
        {"key_file", cli_or_env(k->key, "PENSTOCK_KEY_FILE")},
        {"insecure", k->insecure ? "1" : NULL},
        {"timeout_ms", k->timeout_ms ? timeout : NULL},
    };
    struct pst_option opts[ARRAY_SIZE(all)];
    struct pst_store *st;
    char err[400] = "";
    size_t n = 0;
    int r;

    snprintf(timeout, sizeof timeout, "%llu", (unsigned long long)min_u64(k->timeout_ms, 3600000));
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        if (all[i].value)
            opts[n++] = all[i];
    r = pst_backend_open(u->server, opts, n, &st, err, sizeof err);
    if (r == 0)
        return st;
    cli_error("%s: %s", u->server, err);
    *ret_exit = cli_exit_code(r);
    return NULL;
}

static int run_rewrap(const struct cli_cmd *cmd, int argc, char **argv)
{
    const char *spec = NULL;
    struct cli_conn k = {0};
    const struct cli_opt opts[] = {
        {0, "filter", OPT_STRING, &spec, "SPEC", "which keys: crypt:key_file=NEW,old_key_file=OLD", NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    struct pst_store *st;
    struct cli_url u;
    int code = EXIT_OK;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    if (!spec)
        return cli_usage(cmd, "--filter says which keys");
    if (cli_url(argv[first], 2, &u) < 0)
        return EXIT_USAGE;
    st = cli_is_remote(&u) ? open_server(&u, &k, &code) : cli_open_store(&u, &code);
    if (!st)
        return code;
    code = rewrap(&st, spec, &u);
    pst_store_close(st);
    return code;
}

const struct cli_cmd cmds_filter[] = {
    {"rewrap", "URL", "Wraps the keys of a container's files by a new tenant key",
     "Also while the container is in use. Tenant keys stay in this process. No data is rewritten; it may be repeated.\n"
     "Of a server: as root of its files. Not of a daemon that has the filter crypt itself: of what is below it.",
     run_rewrap},
    {0},
};

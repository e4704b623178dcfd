/* rewrap: keys of files of a store that is encrypted by the filter crypt. */
#include "cli.h"

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
    char err[300] = "";
    int r = filter_push(spec, *st, st, err, sizeof err);

    if (r < 0) {
        cli_error("%s", err);
        return r == -EINVAL ? EXIT_USAGE : cli_exit_code(r);
    }
    r = pst_cont_open(*st, &ctx, u->pool, u->container, &c);
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

static int run_rewrap(const struct cli_cmd *cmd, int argc, char **argv)
{
    const char *spec = NULL;
    const struct cli_opt opts[] = {
        {0, "filter", OPT_STRING, &spec, "SPEC", "which keys: crypt:key_file=NEW,old_key_file=OLD", NULL},
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
    if (strncmp(u.server, "local:", 6) != 0)
        return cli_usage(cmd, "it wants local:/DIRECTORY?POOL/CONTAINER, of a store that no daemon has open");
    st = cli_open_store(&u, &code);
    if (!st)
        return code;
    code = rewrap(&st, spec, &u);
    pst_store_close(st);
    return code;
}

const struct cli_cmd cmds_filter[] = {
    {"rewrap", "local:/DIRECTORY?POOL/CONTAINER", "Wraps the keys of a container's files by a new tenant key",
     "Of a store that no daemon has open. No data is rewritten; it may be repeated.\n", run_rewrap},
    {0},
};

/* tls init. */
#include "cli.h"

#include "control/tls.h"

#include <errno.h>
#include <string.h>

#define NAMES_MAX 32

struct names {
    const char *v[NAMES_MAX];
    size_t n;
};

static int add_name(void *target, const char *name, const char *value, char *err, size_t err_size)
{
    struct names *x = target;

    if (x->n == NAMES_MAX) {
        snprintf(err, err_size, "--%s: more than %d names", name, NAMES_MAX);
        return -E2BIG;
    }
    x->v[x->n++] = value;
    return 0;
}

static int run_tls_init(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct names x = {.n = 0};
    struct tls_init t = {0};
    uint64_t days = 0;
    const struct cli_opt opts[] = {
        {0, "server-name", OPT_CALL, &x, "NAME", "DNS name or address of the server; repeatable", add_name},
        {0, "client", OPT_STRING, &t.client_name, "NAME", "credential of the client's certificate; default admin",
         NULL},
        {0, "days", OPT_UINT, &days, "N", "validity; default 825", NULL},
        {0},
    };
    const char *dir, *client;
    char err[400] = "";
    int r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    if (days > 36500)
        return cli_usage(cmd, "--days: must be at most 36500");
    dir = argv[first];
    client = t.client_name ? t.client_name : "admin";
    t.server_names = x.v;
    t.nserver_names = x.n;
    t.days = (uint32_t)days;
    r = tls_init(dir, &t, err, sizeof err);
    if (r < 0) {
        cli_error("%s", err[0] ? err : "it failed");
        return cli_exit_code(r);
    }
    printf("server:  --tls-ca %s/ca.pem --tls-cert %s/server.pem --tls-key %s/server.key "
           "--credential name=%s,cn=%s,admin,any_uid\n",
           dir, dir, dir, client, client);
    printf("client:  --ca %s/ca.pem --cert %s/%s.pem --key %s/%s.key\n", dir, dir, client, dir, client);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

const struct cli_cmd cmds_tls[] = {
    {"tls init", "DIRECTORY", "Makes a small CA, and certificates for a server and a client",
     "An existing CA in DIRECTORY is used: run it again with another --client for the next one.", run_tls_init},
    {0},
};

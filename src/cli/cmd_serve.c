/* serve: the daemon. */
#include "cli.h"

#include "base/err.h"
#include "server/server.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>

struct serve_args {
    const char *config, *dev;
    bool check;
    struct srv_config *cfg;
    /* Flags wait until the file has been read. */
    struct {
        const char *name, *value;
    } flags[256];
    unsigned nflags;
};

static int keep_flag(void *target, const char *name, const char *value, char *err, size_t err_size)
{
    struct serve_args *a = target;

    if (a->nflags == ARRAY_SIZE(a->flags)) {
        snprintf(err, err_size, "more than %zu flags: use a file", ARRAY_SIZE(a->flags));
        return -E2BIG;
    }
    a->flags[a->nflags].name = name;
    a->flags[a->nflags++].value = value;
    return 0;
}

/* What --dev stands for: everything in one directory, for the one who starts it. */
static int apply_dev(struct serve_args *a, char *err, size_t err_size)
{
    char dir[PATH_MAX], url[PATH_MAX + 16], container[120];
    int r = 0;

    if (mkdir(a->dev, 0700) < 0 && errno != EEXIST)
        r = -errno;
    else if (!realpath(a->dev, dir))
        r = -errno;
    if (r < 0) {
        snprintf(err, err_size, "%s: %s", a->dev, err_text(r));
        return r;
    }
    snprintf(url, sizeof url, "local:%s", dir);
    snprintf(container, sizeof container, "default/default:uid=%u,gid=%u", geteuid(), getegid());
    r = srv_config_flag(a->cfg, "store", url, err, err_size);
    if (r == 0)
        r = srv_config_flag(a->cfg, "store-option", "create=1", err, err_size);
    if (r == 0)
        r = srv_config_flag(a->cfg, "container", container, err, err_size);
    return r;
}

static int configure(struct serve_args *a, char *err, size_t err_size)
{
    int r = 0;

    a->cfg = srv_config_new();
    if (!a->cfg)
        return -ENOMEM;
    if (a->config)
        r = srv_config_load(a->cfg, a->config, err, err_size);
    if (r == 0 && a->dev)
        r = apply_dev(a, err, err_size);
    for (unsigned i = 0; r == 0 && i < a->nflags; i++)
        r = srv_config_flag(a->cfg, a->flags[i].name, a->flags[i].value, err, err_size);
    return r == 0 ? srv_config_finish(a->cfg, err, err_size) : r;
}

/* SIGHUP. Certificates are read again by themselves when they change. */
static void reload(const struct serve_args *a, struct srv *srv)
{
    struct serve_args again = *a;
    char err[500];

    srv_notify("RELOADING=1");
    if (configure(&again, err, sizeof err) == 0) {
        srv_reload(srv, again.cfg);
        log_info("configuration read again: log level, log_slow and limits of tenants are set, certificates are read "
                 "when they change, other changes need a restart");
    } else {
        log_error("configuration not taken: %s", err);
    }
    srv_config_free(again.cfg);
    srv_notify("READY=1");
}

static void announce(const struct serve_args *a, struct srv *srv)
{
    const struct srv_config *c = a->cfg;
    char host[SRV_HOST_MAX];
    uint16_t port;

    for (unsigned i = 0; i < c->ncontrol_listen; i++) {
        srv_parse_addr(c->control_listen[i], host, &port);
        if (!strncmp(host, "unix:", 5))
            log_info("control on %s", host);
        else
            log_info("control on %s port %d", host, srv_control_port(srv, i));
    }
    if (c->metrics_listen)
        log_info("metrics on port %d", srv_metrics_port(srv));
    if (a->dev) {
        srv_parse_addr(c->control_listen[0], host, &port);
        printf(strchr(host, ':') ? "penstock://[%s]:%d/default/default\n" : "penstock://%s:%d/default/default\n", host,
               srv_control_port(srv, 0));
        printf("mount it:  penstock mount URL DIRECTORY     copy to it:  penstock cp -r TREE URL/NAME\n");
        fflush(stdout);
    }
}

static int serve(struct serve_args *a, sigset_t *signals)
{
    struct srv *srv;
    char err[600] = "out of memory";
    int r = srv_start(a->cfg, &srv, err, sizeof err), sig = 0;

    if (r == -EINTR) {
        log_info("%s", err);
        return EXIT_OK;
    }
    if (r < 0) {
        cli_error("%s", err);
        return r == -EINVAL ? EXIT_USAGE : EXIT_FAILED;
    }
    announce(a, srv);
    srv_notify("READY=1");
    while (sigwait(signals, &sig) == 0 && sig == SIGHUP) {
        reload(a, srv);
        srv_reopen_audit(srv);
    }
    srv_notify("STOPPING=1");
    return srv_stop(srv) < 0 ? EXIT_FAILED : EXIT_OK;
}

static void show(void *user, const char *key, const char *value)
{
    (void)user;
    printf("%s: %s\n", key, value);
}

static int run_serve(const struct cli_cmd *cmd, int argc, char **argv)
{
    static struct serve_args a; /* its strings are argv's */
    struct cli_opt opts[OPTS_MAX + 1] = {
        {'c', "config", OPT_STRING, &a.config, "FILE", "penstock.yaml(5)", NULL},
        {0, "dev", OPT_STRING, &a.dev, "DIRECTORY",
         "needs no file: a store in DIRECTORY with a pool and a container \"default\", on loopback, for you", NULL},
        {0, "check-config", OPT_FLAG, &a.check, NULL, "read the configuration, print it, and end", NULL},
    };
    char err[600] = "out of memory";
    sigset_t signals;
    unsigned n = 3;
    int code;

    for (size_t i = 0; srv_config_flag_at(i) && n < OPTS_MAX; i++) {
        const struct srv_flag *f = srv_config_flag_at(i);
        opts[n++] = (struct cli_opt){0, f->name, OPT_CALL, &a, f->arg, f->help, keep_flag};
    }
    CLI_PARSE(cmd, opts, argc, argv, 0, 0);
    if (configure(&a, err, sizeof err) < 0) {
        cli_error("%s", err);
        srv_config_free(a.cfg);
        return EXIT_USAGE;
    }
    if (a.check) {
        srv_config_describe(a.cfg, show, NULL);
        srv_config_free(a.cfg);
        return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
    }
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* before any thread: only sigwait takes them */
    code = serve(&a, &signals);
    srv_config_free(a.cfg);
    return code;
}

static const char serve_details[] =
    "Flags win over the file; a repeatable flag replaces the file's list.\n"
    "SIGTERM drains and ends with 0. SIGHUP reads the log level, log_slow and the limits of tenants again,\n"
    "and opens the audit log anew.";

const struct cli_cmd cmds_serve[] = {
    {"serve", "", "Runs the daemon: serves a store to clients", serve_details, run_serve},
    {0},
};

#include "cli.h"

#include "base/parse.h"
#include "server/config.h"

#include <getopt.h>
#include <stdarg.h>
#include <string.h>

static void print_opt(const struct cli_opt *o)
{
    char left[160];

    snprintf(left, sizeof left, "%c%c%s--%s%s%s", o->c ? '-' : ' ', o->c ? o->c : ' ', o->c ? ", " : "  ", o->name,
             o->arg ? " " : "", o->arg ? o->arg : "");
    if (strlen(left) < 28)
        printf("  %-28s %s\n", left, o->help);
    else
        printf("  %s\n  %-28s %s\n", left, "", o->help);
}

static int print_help(const struct cli_cmd *cmd, const struct cli_opt *opts)
{
    printf("usage: penstock %s%s%s%s\n%s.\n", cmd->name, opts->name ? " [OPTIONS]" : "", *cmd->args ? " " : "",
           cmd->args, cmd->summary);
    if (cmd->details)
        printf("\n%s\n", cmd->details);
    if (opts->name)
        printf("\nOptions:\n");
    for (; opts->name; opts++)
        print_opt(opts);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

int cli_usage(const struct cli_cmd *cmd, const char *fmt, ...)
{
    char line[500];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    cli_error("%s; usage: penstock %s [OPTIONS]%s%s", line, cmd->name, *cmd->args ? " " : "", cmd->args);
    return EXIT_USAGE;
}

static int set(const struct cli_opt *o, const char *value, char *err, size_t err_size)
{
    const char *want = "";

    switch (o->kind) {
    case OPT_FLAG:
        *(bool *)o->target = true;
        return 0;
    case OPT_STRING:
        *(const char **)o->target = value;
        return 0;
    case OPT_UINT:
        if (parse_uint(value, o->target) == 0)
            return 0;
        want = "a number";
        break;
    case OPT_SIZE:
        if (parse_size(value, o->target) == 0)
            return 0;
        want = "a size (4096, 64K, 1.5G)";
        break;
    case OPT_MODE:
        if (srv_parse_mode(value, o->target) == 0)
            return 0;
        want = "permission bits in octal (755)";
        break;
    case OPT_CALL:
        return o->call(o->target, o->name, value, err, err_size);
    }
    snprintf(err, err_size, "--%s: \"%.60s\" is not %s", o->name, value, want);
    return -1;
}

int cli_parse(const struct cli_cmd *cmd, const struct cli_opt *opts, int argc, char **argv, int min, int max)
{
    struct option longs[OPTS_MAX + 2] = {{0}};
    char shorts[2 * OPTS_MAX + 4] = ":h", err[400] = "";
    int n = 0, c, index = 0;

    for (; opts[n].name; n++) {
        longs[n] = (struct option){opts[n].name, opts[n].arg ? required_argument : no_argument, NULL, 1000 + n};
        if (opts[n].c) {
            char s[3] = {opts[n].c, opts[n].arg ? ':' : 0, 0};
            strcat(shorts, s);
        }
    }
    longs[n] = (struct option){"help", no_argument, NULL, 'h'};
    optind = 0; /* a fresh start, with GNU's reordering */
    while ((c = getopt_long(argc, argv, shorts, longs, &index)) != -1) {
        int i = c - 1000;
        if (c == 'h')
            return -1 - print_help(cmd, opts);
        if (c == ':')
            return -1 - cli_usage(cmd, "%s needs a value", argv[optind - 1]);
        if (c == '?' && optopt >= 1000)
            return -1 - cli_usage(cmd, "--%s takes no value", opts[optopt - 1000].name);
        if (c == '?' && optopt)
            return -1 - cli_usage(cmd, "unknown option -%c", optopt);
        if (c == '?')
            return -1 - cli_usage(cmd, "unknown option %s", argv[optind - 1]);
        for (int k = 0; i < 0 && k < n; k++)
            if (opts[k].c == c)
                i = k;
        if (set(&opts[i], optarg, err, sizeof err) < 0) {
            cli_error("%s", err);
            return -1 - EXIT_USAGE;
        }
    }
    if (argc - optind < min)
        return -1 - cli_usage(cmd, "an argument is missing");
    if (max >= 0 && argc - optind > max)
        return -1 - cli_usage(cmd, "too many arguments from \"%.60s\" on", argv[optind + max]);
    return optind;
}

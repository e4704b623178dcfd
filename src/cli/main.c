#include "cli.h"

#include "local/local_store.h"
#include "remote/remote_store.h"

#include <signal.h>
#include <string.h>

static const struct cli_cmd *const tables[] = {
    cmds_serve, cmds_mount, cmds_admin, cmds_files, cmds_copy,   cmds_status, cmds_top,    cmds_check,
    cmds_store, cmds_tar,   cmds_bench, cmds_tls,   cmds_bundle, cmds_filter, cmds_tenant, cmds_made};

const char *cli_name = "penstock";

static void print_help(FILE *f)
{
    fprintf(f, "usage: penstock COMMAND [OPTIONS] ARGUMENTS\n"
               "Stores files on a server or in a directory, and serves them.\n\n");
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        for (const struct cli_cmd *c = tables[i]; c->name; c++)
            fprintf(f, "  %-18s %s\n", c->name, c->summary);
    fprintf(f, "\nURL: penstock://HOST[:PORT]/POOL/CONTAINER[/PATH] or local:/DIRECTORY[?POOL/CONTAINER[/PATH]]\n"
               "penstock COMMAND --help tells more. The manual: man penstock\n");
}

/* Commands have one word or two; two win. */
static const struct cli_cmd *find(int argc, char **argv, int *ret_words)
{
    char two[80];

    snprintf(two, sizeof two, "%s %s", argv[1], argc > 2 ? argv[2] : "");
    for (int words = 2; words >= 1; words--)
        for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
            for (const struct cli_cmd *c = tables[i]; c->name; c++)
                if (!strcmp(c->name, words == 2 ? two : argv[1])) {
                    *ret_words = words;
                    return c;
                }
    return NULL;
}

/* "pool" alone, or with something that no command has as its second word: what could follow. NULL: not such a word. */
static const char *second_words(const char *word, char *buf, size_t size)
{
    size_t n = strlen(word), used = 0;

    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        for (const struct cli_cmd *c = tables[i]; c->name; c++)
            if (!strncmp(c->name, word, n) && c->name[n] == ' ' && used < size)
                used += (size_t)snprintf(buf + used, size - used, "%s%s", used ? ", " : "", c->name + n + 1);
    return used ? buf : NULL;
}

static int no_command(char **argv)
{
    char buf[200];
    const char *words = second_words(argv[1], buf, sizeof buf);

    if (words)
        cli_error("%s goes on with one of: %s; penstock --help shows them", argv[1], words);
    else
        cli_error("no command \"%.60s\"; penstock --help lists them", argv[1]);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    const struct cli_cmd *cmd;
    int words = 0;

    signal(SIGPIPE, SIG_IGN);
    pst_backend_register(&pst_local_backend);
    pst_backend_register(&pst_remote_backend);
    pst_backend_register(&pst_remote_unix_backend);
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_help(stdout);
        return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
    }
    if (!strcmp(argv[1], "--version"))
        argv[1] = (char *)"version";
    cmd = find(argc, argv, &words);
    if (!cmd)
        return no_command(argv);
    cli_name = cmd->name;
    return cmd->run(cmd, argc - words, argv + words);
}

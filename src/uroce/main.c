/* The `uroce` command. */
#include "commands.h"

#include "base/util.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: uroce COMMAND [OPTION...]\n"
    "\n"
    "  run       a program that was written for RDMA, with uroce for its device: run [OPTION...] [--] PROGRAM "
    "[ARG...]\n"
    "              --device      ADDRESS[,...], or NAME=ADDRESS[,...] for one of several\n"
    "              --capture     all packets into this file (pcapng)\n"
    "              --filter      which of them: tx,qpn=0x11,opcode=4-10\n"
    "              --impair      rules that lose, delay, duplicate or damage packets\n"
    "              --verbose     say what is set\n"
    "  capture   the same with a capture: capture -o FILE [OPTION...] [--] PROGRAM [ARG...]\n"
    "  devices   the RDMA devices that programs see here: addresses (GIDs), MTU, limits\n"
    "  doctor    what would not work here, or not well, and how to mend it: doctor [PROGRAM]\n"
    "  stat      live counters of a process's devices and queue pairs: stat PID\n"
    "              --all         of all processes of this user, in whatever network namespace\n"
    "              --json        for programs\n"
    "  holder    share this machine's addresses among the processes of a user (started by itself when needed)\n"
    "              --system      serve the processes of all users, without end (as root)\n"
    "              --background  go into the background\n"
    "  version\n"
    "\n"
    "UROCE_ADDRESS=ADDRESS[,...] chooses addresses, UROCE_DEVICES=NAME=ADDRESS[,...][;...] makes several devices,\n"
    "UROCE_HOLDER=off does without a holder; docs/roce.md has the rest.\n";

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"run", cmd_run},       {"capture", cmd_capture}, {"devices", cmd_devices},
    {"doctor", cmd_doctor}, {"stat", cmd_stat},       {"holder", cmd_holder},
};

int usage_error(const char *command, const char *what)
{
    fprintf(stderr, "uroce %s: %s; `uroce --help` shows all\n", command, what);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fputs(usage, stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
        puts("uroce " PENSTOCK_VERSION);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 2, argv + 2);
    fprintf(stderr, "uroce: no command '%s'\n%s", argv[1], usage);
    return 2;
}

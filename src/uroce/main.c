/* The `uroce` command. */
#include "roce/device_holder.h"
#include "roce/wire_gid.h"
#include "uroce/uroce.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: uroce COMMAND [OPTION...]\n"
    "\n"
    "  devices   the RDMA devices that programs see here: addresses (GIDs), MTU, limits\n"
    "  holder    share this machine's addresses among the processes of a user (started by itself when needed)\n"
    "              --system      serve the processes of all users, without end (as root)\n"
    "              --background  go into the background\n"
    "  version\n"
    "\n"
    "UROCE_ADDRESS=ADDRESS[,...] chooses addresses, UROCE_DEVICES=NAME=ADDRESS[,...][;...] makes several devices,\n"
    "UROCE_HOLDER=off does without a holder; docs/roce.md has the rest.\n";

static int fail_usage(const char *what)
{
    fprintf(stderr, "uroce: %s\n%s", what, usage);
    return 2;
}

/* A daemon's habits: no terminal, no directory, no descriptors of who started it. */
static int go_background(void)
{
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid > 0)
        _exit(0);
    setsid();
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || chdir("/"))
        return -errno;
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    close_range(3, ~0u, 0);
    return 0;
}

static int cmd_holder(int argc, char **argv)
{
    bool system = false, background = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--system") == 0)
            system = true;
        else if (strcmp(argv[i], "--background") == 0)
            background = true;
        else
            return fail_usage("holder: options are --system and --background");
    }
    if (system && geteuid() != 0) {
        fprintf(stderr, "uroce holder --system: serves all users, so it has to run as root\n");
        return 1;
    }
    int r = background ? go_background() : 0;
    if (!r)
        r = holder_run(system);
    if (r == -EADDRINUSE)
        fprintf(stderr, "uroce holder: there is one already in this network namespace\n");
    else if (r)
        fprintf(stderr, "uroce holder: %s\n", strerror(-r));
    return r ? 1 : 0;
}

static void print_gid(unsigned index, const union uroce_gid *g)
{
    char text[WIRE_GID_TEXT];
    printf("  gid %-3u %s, RoCE v2\n", index, wire_gid_text(g, text));
}

static int show_device(const char *name)
{
    struct uroce_device *dev;
    struct uroce_device_attr a;
    union uroce_gid g;
    char err[256];
    struct uroce_config c = {.name = name, .congestion_control = -1};
    int r = uroce_open(&c, &dev, err, sizeof err);
    if (r) {
        fprintf(stderr, "uroce devices: %s\n", err);
        return 1;
    }
    uroce_query_device(dev, &a);
    printf("%s  RDMA over UDP in user space, MTU %u, up to %u queue pairs\n", a.name, 128u << a.active_mtu, a.max_qp);
    for (unsigned i = 0; uroce_query_gid(dev, i, &g) == 0; i++)
        print_gid(i, &g);
    uroce_close(dev);
    return 0;
}

static int cmd_devices(int argc)
{
    struct uroce_device_info d[UROCE_DEVICES_MAX];
    char err[256];
    if (argc)
        return fail_usage("devices: has no options");
    int n = uroce_list_devices(d, UROCE_DEVICES_MAX, err, sizeof err), failed = 0;
    if (n < 0) {
        fprintf(stderr, "uroce devices: %s\n", err);
        return 1;
    }
    for (int i = 0; i < n; i++)
        failed |= show_device(d[i].name);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return fail_usage("which command?");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
        puts("uroce " PENSTOCK_VERSION);
        return 0;
    }
    if (strcmp(argv[1], "holder") == 0)
        return cmd_holder(argc - 2, argv + 2);
    if (strcmp(argv[1], "devices") == 0)
        return cmd_devices(argc - 2);
    fprintf(stderr, "uroce: no command '%s'\n%s", argv[1], usage);
    return 2;
}

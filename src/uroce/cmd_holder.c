/* `uroce holder`. */
#include "commands.h"
#include "roce/device_holder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

int cmd_holder(int argc, char **argv)
{
    bool system = false, background = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--system") == 0)
            system = true;
        else if (strcmp(argv[i], "--background") == 0)
            background = true;
        else
            return usage_error("holder", "options are --system and --background");
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

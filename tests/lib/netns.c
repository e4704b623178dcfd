#include "netns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

/* Root in a user namespace of our own, for who is not root. */
static int become_root(void)
{
    char uid[64], gid[64];
    snprintf(uid, sizeof uid, "0 %u 1", geteuid());
    snprintf(gid, sizeof gid, "0 %u 1", getegid());
    if (unshare(CLONE_NEWUSER))
        return -1;
    prctl(PR_SET_DUMPABLE, 1); /* or /proc/self belongs to the other root */
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", uid);
    write_text("/proc/self/gid_map", gid);
    return 0;
}

static int own_namespace(void)
{
    return unshare(CLONE_NEWNET) ? -1 : open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

void netns_enter(const struct netns_pair *n, int i)
{
    if (setns(n->fd[i], CLONE_NEWNET)) {
        perror("setns");
        abort();
    }
}

void netns_sh(const struct netns_pair *n, int i, const char *fmt, ...)
{
    char cmd[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, ap);
    va_end(ap);
    netns_enter(n, i);
    int rc = system(cmd);
    netns_enter(n, 0);
    if (rc) {
        fprintf(stderr, "%s: status %d\n", cmd, rc);
        abort();
    }
}

void netns_pair_make(struct netns_pair *n, int mtu)
{
    int rc = geteuid() ? become_root() : 0;
    n->fd[1] = rc ? -1 : own_namespace();
    n->fd[0] = n->fd[1] < 0 ? -1 : own_namespace();
    if (n->fd[0] < 0) {
        printf("skipped: no network namespaces here: %s\n", strerror(errno));
        exit(77);
    }
    netns_sh(n, 0, "ip link add va type veth peer name vb netns /proc/%d/fd/%d", getpid(), n->fd[1]);
    for (int i = 0; i < 2; i++) {
        const char *dev = i ? "vb" : "va";
        netns_sh(n, i,
                 "ip link set lo up && ip link set %s mtu %d && ip addr add 10.77.0.%d/24 dev %s && "
                 "ip addr add fd77::%d/64 dev %s nodad && ip link set %s up",
                 dev, mtu, i + 1, dev, i + 1, dev, dev);
    }
    /* Until the kernel has seen both ends up, a device may drop what it is to send. */
    for (int i = 0; i < 2; i++)
        netns_sh(n, i, "until ip link show dev %s | grep -q 'state UP'; do sleep 0.01; done; sleep 0.02",
                 i ? "vb" : "va");
}

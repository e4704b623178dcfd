/*
 * `uroce stat`: asks the devices of processes for their counters. A device's socket is found by its name in
 * /proc/net/unix, and its process by what the kernel says of who listens there. Other network namespaces are entered,
 * each by a child, where this user may.
 */
#include "commands.h"
#include "roce/device_holder.h"
#include "stat_text.h"

#include "base/util.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define NAMESPACES_MAX 1024

/* ---- one device ---- */

static bool take(int sock, void *ret, size_t size)
{
    ssize_t n;
    do
        n = recv(sock, ret, size, 0);
    while (n < 0 && errno == EINTR);
    uint32_t magic = STAT_MAGIC;
    return n == (ssize_t)size && memcmp(ret, &magic, sizeof magic) == 0;
}

static int connect_device(const char *name, pid_t *ret_pid)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "%s", name);
    cleanup_close int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct timeval t = {.tv_sec = (time_t)(STAT_TIMEOUT_NS / NSEC_PER_SEC)};
    uid_t uid;
    if (s < 0 || setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) ||
        setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t))
        return -errno;
    if (connect(s, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)))
        return -errno;
    if (holder_peer(s, &uid, ret_pid) || (uid != geteuid() && geteuid() != 0))
        return -EACCES;
    int ret = s;
    s = -1;
    return ret;
}

/* want 0: of any process. */
static void show_device(const char *name, pid_t want, struct stat_out *o)
{
    struct stat_device d;
    struct stat_pairs p = {.last = 0};
    pid_t pid = 0;
    cleanup_close int s = connect_device(name, &pid);
    /* A fork child keeps its parent's socket, at which nobody answers. */
    if (s < 0 || (want && pid != want) || kill(pid, 0) || !take(s, &d, sizeof d))
        return;
    stat_printable(d.name, sizeof d.name);
    d.gids = (uint32_t)min_u64(d.gids, STAT_GIDS);
    stat_out_device(o, pid, &d);
    bool first = true, complete = true;
    while (complete && !p.last) {
        complete = take(s, &p, sizeof p) && p.n <= STAT_PAIRS;
        for (uint32_t i = 0; complete && i < p.n; i++) {
            stat_printable(p.at[i].port, sizeof p.at[i].port);
            stat_out_pair(o, &p.at[i], first);
            first = false;
        }
    }
    stat_out_device_end(o, complete);
}

/* ---- the devices of a network namespace ---- */

/* "0000000000000000: 00000002 00000000 00010000 0005 01 12345 @uroce-stat-0123456789abcdef" */
static int show_here(pid_t want, struct stat_out *o)
{
    FILE *f = fopen("/proc/self/net/unix", "re");
    if (!f)
        return -errno;
    char line[512], mark[] = "@" STAT_PREFIX;
    while (fgets(line, sizeof line, f)) {
        char *name = strstr(line, mark);
        if (!name)
            continue;
        name[strcspn(name, "\n")] = '\0';
        /* A connection at its listener's end bears the same name: only the listener has __SO_ACCEPTCON. */
        unsigned flags;
        if (sscanf(line, "%*[^:]: %*x %*x %x", &flags) == 1 && flags == 0x10000)
            show_device(name + 1, want, o);
    }
    fclose(f);
    return 0;
}

/* 0: it cannot be told. */
static ino_t net_of(pid_t pid)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
    return stat(path, &st) == 0 ? st.st_ino : 0;
}

static int enter(pid_t pid, const char *kind, int flag)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, kind);
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 || setns(fd, flag) ? -errno : 0;
}

/* The network namespace of a process: by its user namespace, whose maker may do anything there. */
static int enter_net_of(pid_t pid)
{
    int r = enter(pid, "net", CLONE_NEWNET);
    return r && enter(pid, "user", CLONE_NEWUSER) == 0 ? enter(pid, "net", CLONE_NEWNET) : r;
}

static int show_there(pid_t member, pid_t want, struct stat_out *o)
{
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        return -errno;
    if (child == 0) {
        struct stat_out mine = *o;
        int r = enter_net_of(member);
        if (!r) {
            r = show_here(want, &mine);
            fflush(stdout);
        }
        /* Bit 7: an error; else whether something was printed. */
        _exit(r ? 0x80 | (-r & 0x7f) : mine.any);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(status))
        return -EIO;
    int code = WEXITSTATUS(status);
    if (code & 0x80)
        return -(code & 0x7f);
    o->any |= code == 1;
    return 0;
}

static int show_of(pid_t pid, struct stat_out *o)
{
    ino_t net = net_of(pid);
    if (!net) {
        int r = kill(pid, 0) && errno == ESRCH;
        fprintf(stderr, r ? "uroce stat: there is no process %d\n" : "uroce stat: process %d is not yours\n", (int)pid);
        return 1;
    }
    stat_out_begin(o);
    int r = net == net_of(getpid()) ? show_here(pid, o) : show_there(pid, pid, o);
    stat_out_end(o);
    fflush(stdout);
    if (r)
        fprintf(stderr,
                "uroce stat: process %d is in a network namespace that cannot be entered (%s): run "
                "`nsenter --net=/proc/%d/ns/net uroce stat %d` as root\n",
                (int)pid, strerror(-r), (int)pid, (int)pid);
    else if (!o->any)
        fprintf(stderr, "uroce stat: process %d has no uroce device open\n", (int)pid);
    return r || !o->any;
}

/* Every network namespace that a process of this user is in, once. */
static int show_all(struct stat_out *o)
{
    ino_t seen[NAMESPACES_MAX] = {net_of(getpid())};
    unsigned n = 1;
    DIR *proc = opendir("/proc");
    if (!proc) {
        perror("uroce stat: /proc");
        return 1;
    }
    stat_out_begin(o);
    show_here(0, o);
    for (struct dirent *e; (e = readdir(proc)) && n < NAMESPACES_MAX;) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? atoi(e->d_name) : 0;
        ino_t net = pid ? net_of(pid) : 0;
        bool known = !net;
        for (unsigned i = 0; i < n; i++)
            known |= seen[i] == net;
        if (known)
            continue;
        seen[n++] = net;
        show_there(pid, 0, o); /* where this user may not go, there is nothing of this user's */
    }
    closedir(proc);
    stat_out_end(o);
    fflush(stdout);
    if (!o->any && !o->json)
        printf("no process of this user has a uroce device open\n");
    return 0;
}

int cmd_stat(int argc, char **argv)
{
    struct stat_out o = {0};
    bool all = false;
    pid_t pid = 0;
    for (int i = 0; i < argc; i++) {
        char *end;
        long n = strtol(argv[i], &end, 10);
        if (strcmp(argv[i], "--json") == 0)
            o.json = true;
        else if (strcmp(argv[i], "--all") == 0)
            all = true;
        else if (!pid && *argv[i] && !*end && n > 0 && n <= INT32_MAX)
            pid = (pid_t)n;
        else
            return usage_error("stat", "a process id or --all, and --json, are what it takes");
    }
    if (all == (pid != 0))
        return usage_error("stat", "a process id or --all is needed");
    return all ? show_all(&o) : show_of(pid, &o);
}

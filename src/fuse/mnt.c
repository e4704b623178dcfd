/* The kernel's mount table: which mount lies on a folder, and taking it away. */
#include "fm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mntent.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>

#define FSTYPE      "fuse.penstock"
#define APART_STACK (64 * KiB)

extern char **environ;

/* Octal escapes of /proc/self/mountinfo, in place. */
static void unescape(char *s)
{
    char *out = s;

    while (*s) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
            *out++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 4;
        } else {
            *out++ = *s++;
        }
    }
    *out = '\0';
}

int fm_mnt_find(const char *dir, char ret_dev[32])
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    cleanup_free char *line = NULL;
    size_t cap = 0;
    char dev[32] = "";
    bool ours = false;

    if (!f)
        return -errno;
    /*
     * id parent major:minor root mount-point options... - type source super-options; the last one on dir is the topmost
     */
    while (getline(&line, &cap, f) > 0) {
        char *save, *word = strtok_r(line, " ", &save), *point, *this_dev, *type;
        for (int i = 0; word && i < 2; i++)
            word = strtok_r(NULL, " ", &save);
        this_dev = word;
        point = word && strtok_r(NULL, " ", &save) ? strtok_r(NULL, " ", &save) : NULL;
        if (!point)
            continue;
        unescape(point);
        if (strcmp(point, dir) || strlen(this_dev) >= sizeof(dev))
            continue;
        while ((word = strtok_r(NULL, " ", &save)) && strcmp(word, "-"))
            ;
        type = word ? strtok_r(NULL, " ", &save) : NULL;
        ours = type && !strcmp(type, FSTYPE);
        strcpy(dev, this_dev);
    }
    fclose(f);
    if (!ours)
        return -EINVAL;
    strcpy(ret_dev, dev);
    return 0;
}

static int run(char *const argv[])
{
    posix_spawn_file_actions_t fa;
    int r, status;
    pid_t pid;

    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_addopen(&fa, 2, "/dev/null", O_WRONLY, 0);
    r = posix_spawnp(&pid, argv[0], &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    if (r)
        return -r;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EBUSY;
}

/*
 * Everything that may wait for the file system itself, in a child without any descriptor. A thread of the serving
 * process must never do it: killed while its request is on the way it waits for the answer still, its wait keeps the
 * process's descriptors open, /dev/fuse among them, and so the kernel never ends the connection and with it the wait.
 *
 * The child shares the memory, as posix_spawn's does: a copy could hold up or fail a large process. The parent may be
 * killed with a lock of malloc or stdio taken in it, so the child makes system calls only.
 */
struct apart {
    const char *dir;
    pid_t parent;
    bool sync, lazy;
    int synced, r; /* -errno */
};

static int apart_store(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;

    if (fd < 0)
        return -errno;
    if (syncfs(fd) || fsync(fd)) /* the kernel's pages; then all of the container, see op_fsyncdir */
        r = -errno;
    close(fd);
    return r;
}

static int apart_main(void *user)
{
    struct apart *a = user;

    if (close_range(0, ~0u, 0)) {
        a->r = -errno;
        return 0;
    }
    /* Pages of shared mappings are dirty in the kernel only: a lazy unmount would not write them first. */
    if (a->sync)
        a->synced = apart_store(a->dir);
    if (getppid() != a->parent) /* it was killed meanwhile: what is on dir by now may be someone else's */
        return 0;
    a->r = umount2(a->dir, UMOUNT_NOFOLLOW) ? -errno : 0;
    if (a->r == -EBUSY && a->lazy)
        a->r = umount2(a->dir, UMOUNT_NOFOLLOW | MNT_DETACH) ? -errno : 0;
    return 0;
}

static int run_apart(struct apart *a)
{
    cleanup_free char *stack = malloc(APART_STACK);
    pid_t pid;

    if (!stack)
        return -ENOMEM;
    a->parent = getpid();
    a->r = -EIO; /* if it is killed */
    /* CLONE_VFORK: this thread's errno is the child's too. Its wait ends with a kill of this process. */
    pid = clone(apart_main, stack + APART_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, a);
    if (pid < 0)
        return -errno;
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return a->r;
}

static int fusermount(const char *dir, bool lazy)
{
    char *argv[] = {(char *)"fusermount3", (char *)"-u", (char *)(lazy ? "-z" : "-q"), (char *)"--", (char *)dir, NULL};

    return run(argv);
}

int fm_mnt_umount(const char *dir, const char *dev, bool sync, bool lazy)
{
    struct apart a = {.dir = dir, .sync = sync, .lazy = lazy};
    char now[32];
    int r = fm_mnt_find(dir, now);

    if (r)
        return r;
    if (dev && strcmp(dev, now))
        return -EINVAL;
    r = run_apart(&a);
    if (a.synced)
        log_warn("%s: not everything could be stored: %s", dir, strerror(-a.synced));
    if (r == -EPERM) {
        r = fusermount(dir, false);
        if (r == -EBUSY && lazy)
            r = fusermount(dir, true);
    }
    return r;
}

int fuse_mount_stop(const char *dir, bool lazy)
{
    cleanup_free char *path = realpath(dir, NULL);

    /* A mount whose processes died cannot be resolved to the end, but it is in the table by its name. */
    return fm_mnt_umount(path ? path : dir, NULL, path != NULL, lazy);
}

void fm_mnt_readahead(const char *dev, uint32_t kib)
{
    char path[80], text[16];
    int fd, n = snprintf(text, sizeof(text), "%u", kib);

    snprintf(path, sizeof(path), "/sys/class/bdi/%s/read_ahead_kb", dev);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, text, (size_t)n) != n)
        log_debug("%s: %s", path, strerror(errno));
    close(fd);
}

/* The entry: options, the background, and word to whoever started it. */
#include "fm.h"

#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <syslog.h>

void fuse_mount_opts_init(struct fuse_mount_opts *o)
{
    *o = (struct fuse_mount_opts){.supervise = true, .attr_timeout = -1, .entry_timeout = -1};
}

static const char *const options_plain[] = {"noexec", "exec",    "nosuid",  "suid", "nodev",
                                            "dev",    "noatime", "dirsync", "sync"};
static const char *const options_value[] = {"fsname=", "subtype="};

/* 0, or -EINVAL with the option's name in err. */
static int check_options(const char *list, char *err, size_t err_size)
{
    cleanup_free char *copy = strdup(list);
    char *save, *word;

    if (!copy)
        return -ENOMEM;
    for (word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        bool ok = false;
        for (size_t i = 0; i < ARRAY_SIZE(options_plain); i++)
            ok |= !strcmp(word, options_plain[i]);
        for (size_t i = 0; i < ARRAY_SIZE(options_value); i++)
            ok |= !strncmp(word, options_value[i], strlen(options_value[i]));
        if (!ok) {
            snprintf(err, err_size, "unknown mount option \"%.100s\"", word);
            return -EINVAL;
        }
    }
    return 0;
}

static int prepare(struct fm_config *cfg, const char *dir, char *err, size_t err_size)
{
    struct fuse_mount_opts *o = &cfg->opts;
    struct stat st;
    char *path, dev[32];

    if (o->attr_timeout < 0)
        o->attr_timeout = 1;
    if (o->entry_timeout < 0)
        o->entry_timeout = 1;
    if (!o->max_threads)
        o->max_threads = FM_THREADS;
    if (o->max_threads > FUSE_MOUNT_THREADS_MAX || o->attr_timeout > 86400 || o->entry_timeout > 86400) {
        snprintf(err, err_size, "mount: at most %u threads and time-outs of 86400 s", FUSE_MOUNT_THREADS_MAX);
        return -EINVAL;
    }
    o->allow_other = !o->only_owner && (o->allow_other || geteuid() == 0);
    if (o->mount_options && check_options(o->mount_options, err, err_size))
        return -EINVAL;
    path = realpath(dir, NULL);
    if (!path || stat(path, &st)) {
        int r = -errno;
        snprintf(err, err_size, "cannot mount on %.200s: %s%s", dir, err_text(r),
                 r == -ENOTCONN ? " (a dead mount is there: penstock umount it first)"
                 : r == -ENOENT ? " (make the directory first)"
                                : "");
        free(path);
        return r;
    }
    if (!S_ISDIR(st.st_mode)) {
        snprintf(err, err_size, "cannot mount on %.200s: not a directory", dir);
        free(path);
        return -ENOTDIR;
    }
    if (!fm_mnt_find(path, dev)) { /* a second one would hide the first */
        snprintf(err, err_size, "cannot mount on %.200s: a mount is there already (penstock umount ends it)", dir);
        free(path);
        return -EBUSY;
    }
    if (access("/dev/fuse", R_OK | W_OK) && errno == ENOENT) {
        snprintf(err, err_size,
                 "cannot mount: there is no /dev/fuse (modprobe fuse; in a container: --device /dev/fuse)");
        free(path);
        return -ENODEV;
    }
    cfg->dir = path;
    return 0;
}

static void block_signals(sigset_t *ret_old)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, ret_old);
    signal(SIGPIPE, SIG_IGN);
}

static void to_syslog(enum log_level level, const char *line, void *user)
{
    static const int prio[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};

    (void)user;
    syslog(prio[level], "%s", line);
}

/* The background process lets go of the terminal. */
static int detach(const struct fuse_mount_opts *o)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int out = o->log_file ? open(o->log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640) : null;

    if (null < 0 || out < 0)
        return -errno;
    setsid();
    if (!o->log_file) {
        openlog("penstock-mount", LOG_PID, LOG_DAEMON);
        log_set_sink(to_syslog, NULL);
    }
    dup2(null, 0);
    dup2(null, 1);
    dup2(out, 2);
    if (out != null && out > 2)
        close(out);
    if (null > 2)
        close(null);
    return 0;
}

static int serve(const struct fm_config *cfg, int sock)
{
    sigset_t old;
    int code;

    if (!getenv("PENSTOCK_LOG"))
        log_set_level(LOG_LVL_INFO); /* a daemon: what it logs is for its administrator */
    block_signals(&old);
    code = cfg->opts.supervise ? fm_supervise(cfg, sock) : fm_worker(cfg, sock, -1, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return code;
}

/* In the caller's process: waits for the background's word. */
static int wait_ready(int sock, char *err, size_t err_size)
{
    struct fm_report rep = {0};
    int fd = -1, r = fm_report_recv(sock, &rep, &fd);

    if (fd >= 0)
        close(fd);
    if (r == 1 && rep.kind == FM_READY)
        return 0;
    if (r == 1) {
        snprintf(err, err_size, "%s", rep.text);
        return rep.code < 0 ? rep.code : -EIO;
    }
    snprintf(err, err_size, "the mount's process died before it was ready");
    return -EIO;
}

static int background(struct fm_config *cfg, char *err, size_t err_size)
{
    int sv[2], r;
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv))
        return -errno;
    pid = fork();
    if (pid == 0) {
        close(sv[0]);
        /* A second fork: the daemon is nobody's child to wait for. */
        if (fork() != 0)
            _exit(0);
        if (detach(&cfg->opts)) {
            struct fm_report rep = {.kind = FM_FAILED, .code = -errno};
            snprintf(rep.text, sizeof(rep.text), "log file %.200s: %s",
                     cfg->opts.log_file ? cfg->opts.log_file : "/dev/null", strerror(errno));
            fm_report_send(sv[1], &rep, -1);
            _exit(FM_EXIT_FAILED);
        }
        _exit(serve(cfg, sv[1]));
    }
    close(sv[1]);
    if (pid < 0) {
        r = -errno;
        snprintf(err, err_size, "cannot start a process: %s", strerror(errno));
    } else {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        r = wait_ready(sv[0], err, err_size);
    }
    close(sv[0]);
    return r;
}

/* The last report of a foreground run is read back from a socket to itself. */
static int foreground(struct fm_config *cfg, char *err, size_t err_size)
{
    struct fm_report rep = {0};
    int sv[2], code, fd, r = 0;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv))
        return -errno;
    code = serve(cfg, sv[1]);
    if (code == FM_EXIT_DIRTY) {
        snprintf(err, err_size, "%s: written data could not be stored, see the log", cfg->dir);
        r = -EIO;
    } else if (code) {
        shutdown(sv[1], SHUT_WR);
        r = fm_report_recv(sv[0], &rep, &fd) == 1 && rep.code < 0 ? rep.code : -EIO;
        snprintf(err, err_size, "%s", rep.text[0] ? rep.text : "the mount failed");
    }
    close(sv[0]);
    if (!cfg->opts.supervise) /* else the supervisor has closed it */
        close(sv[1]);
    return r;
}

int fuse_mount_run(const char *url, const char *dir, const struct fuse_mount_opts *o, char *err, size_t err_size)
{
    struct fm_config cfg = {.url = url, .opts = *o, .epoch = 1};
    int r = prepare(&cfg, dir, err, err_size);

    if (r)
        return r;
    r = o->foreground ? foreground(&cfg, err, err_size) : background(&cfg, err, err_size);
    free((char *)cfg.dir);
    return r;
}

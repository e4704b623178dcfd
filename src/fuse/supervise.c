/*
 * Keeps the mount over a crash of its serving process: this process holds the connection to the kernel, does nothing
 * that could crash, and starts a successor (worker.c, "Taking over"). Meanwhile the kernel queues what programs ask.
 */
#include "fm.h"

#include "base/rng.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define GIVE_UP_NS     (60 * NSEC_PER_SEC) /* nobody serves for so long: better an error than a hang */
#define RETRY_MIN_MS   50
#define RETRY_MAX_MS   2000
#define STABLE_NS      (10 * NSEC_PER_SEC) /* a process that lived so long may be restarted at once */
#define CRASHES_MAX    10                  /* in a row, each younger than that */

int fm_report_send(int sock, const struct fm_report *r, int fd)
{
    struct iovec iov = {.iov_base = (void *)r, .iov_len = sizeof(*r)};
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } ctl = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        struct cmsghdr *c;
        msg.msg_control = ctl.buf;
        msg.msg_controllen = sizeof(ctl.buf);
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int fm_report_recv(int sock, struct fm_report *ret, int *ret_fd)
{
    struct iovec iov = {.iov_base = ret, .iov_len = sizeof(*ret)};
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } ctl;
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl.buf, .msg_controllen = sizeof(ctl.buf)};
    struct cmsghdr *c;
    ssize_t n;

    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n ? -errno : 0;
    *ret_fd = -1;
    c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
    if ((size_t)n != sizeof(*ret) || ret->init_len > FM_INIT_MAX)
        return -EPROTO;
    ret->text[sizeof(ret->text) - 1] = '\0';
    return 1;
}

struct sup {
    struct fm_config cfg; /* a copy: the epoch goes up */
    int ready_sock;       /* -1: reported */
    int sigfd;
    int fuse_fd;           /* -1: not mounted yet */
    struct fm_report init; /* of the first serving process */
    pid_t pid;             /* 0: none runs */
    int sock;
    bool stopping;
    uint64_t started_ns, down_since_ns; /* 0: someone serves */
    unsigned int crashes, refused; /* in a row: ended, could not connect */
    uint8_t client_id[16];
    char client[48]; /* of cfg.opts.client */
};

static int start(struct sup *s)
{
    pid_t self = getpid();
    int sv[2], n = 0;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv))
        return -errno;
    /* All are one client to the server: what a dead one has under way there is over when the next one connects. */
    for (size_t i = 0; i < sizeof s->client_id; i++)
        n += snprintf(s->client + n, sizeof s->client - (size_t)n, "%02x", s->client_id[i]);
    snprintf(s->client + n, sizeof s->client - (size_t)n, ":%u", s->cfg.epoch - 1);
    s->cfg.opts.client.client = s->client;
    s->pid = fork();
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* nobody would restart it: it unmounts in order */
        if (getppid() != self) /* too late for the signal */
            _exit(FM_EXIT_FAILED);
        close(sv[0]);
        close(s->sigfd);
        if (s->ready_sock >= 0)
            close(s->ready_sock);
        _exit(fm_worker(&s->cfg, sv[1], s->fuse_fd, s->fuse_fd >= 0 ? &s->init : NULL));
    }
    close(sv[1]);
    if (s->pid < 0) {
        s->pid = 0;
        close(sv[0]);
        return -errno;
    }
    s->sock = sv[0];
    s->started_ns = now_ns();
    return 0;
}

static void report(struct sup *s, const struct fm_report *rep)
{
    if (s->ready_sock < 0)
        return;
    fm_report_send(s->ready_sock, rep, -1);
    close(s->ready_sock);
    s->ready_sock = -1;
}

/* The serving process speaks. */
static void heard(struct sup *s)
{
    struct fm_report rep = {0};
    int fd = -1, r = fm_report_recv(s->sock, &rep, &fd);

    if (r <= 0) { /* it died: SIGCHLD says how */
        close(s->sock);
        s->sock = -1;
        return;
    }
    if (rep.kind == FM_READY) {
        s->down_since_ns = 0;
        if (s->fuse_fd < 0) {
            s->fuse_fd = fd;
            s->init = rep;
            fd = -1;
        } else {
            log_warn("%s: served again", s->cfg.dir);
        }
        report(s, &rep);
    } else if (s->fuse_fd < 0) {
        report(s, &rep);
    }
    if (fd >= 0)
        close(fd);
}

/* The kernel has closed the connection: unmounted, or aborted. */
static bool unmounted(const struct sup *s)
{
    struct pollfd p = {.fd = s->fuse_fd};

    return s->fuse_fd < 0 || (poll(&p, 1, 0) == 1 && (p.revents & POLLERR));
}

/* Lets go of the mount: nobody serves it any more. */
static int give_up(struct sup *s)
{
    close(s->fuse_fd); /* aborts: all who wait get an error */
    s->fuse_fd = -1;
    fm_mnt_umount(s->cfg.dir, NULL, false, true);
    return FM_EXIT_DIRTY;
}

/* The serving process ended. -1: goes on (restart due), otherwise the exit code. */
static int ended(struct sup *s, int status)
{
    bool clean = WIFEXITED(status);

    while (s->sock >= 0) /* what it said before */
        heard(s);
    s->pid = 0;
    if (clean && WEXITSTATUS(status) == 0)
        return 0;
    if (s->fuse_fd < 0 || unmounted(s))
        return clean ? WEXITSTATUS(status) : FM_EXIT_DIRTY;
    if (s->stopping)
        return give_up(s);
    s->cfg.epoch++;
    if (clean && WEXITSTATUS(status) == FM_EXIT_CONNECT) {
        s->refused++;
    } else {
        s->refused = 0;
        s->crashes = now_ns() - s->started_ns > STABLE_NS ? 1 : s->crashes + 1;
    }
    if (!s->down_since_ns)
        s->down_since_ns = now_ns();
    if (WIFSIGNALED(status))
        log_error("%s: the serving process was killed by signal %d; starting another: open files that were written get "
                  "errors", s->cfg.dir, WTERMSIG(status));
    if (s->crashes > CRASHES_MAX || now_ns() - s->down_since_ns > GIVE_UP_NS) {
        log_error("%s: given up: no process could serve it", s->cfg.dir);
        return give_up(s);
    }
    return -1;
}

static void signalled(struct sup *s)
{
    struct signalfd_siginfo si;

    if (read(s->sigfd, &si, sizeof(si)) != sizeof(si) || si.ssi_signo == SIGCHLD)
        return;
    s->stopping = true;
    if (s->pid > 0)
        kill(s->pid, SIGTERM);
}

static unsigned int retry_ms(const struct sup *s)
{
    unsigned int n = s->refused ? s->refused + 1 : s->crashes, ms = RETRY_MIN_MS << (n < 2 ? 0 : n < 6 ? n - 1 : 5);

    return n <= 1 ? 0 : ms < RETRY_MAX_MS ? ms : RETRY_MAX_MS;
}

static int run(struct sup *s)
{
    while (true) {
        struct pollfd p[2] = {{.fd = s->sigfd, .events = POLLIN}, {.fd = s->sock, .events = POLLIN}};
        int status, code, r;

        if (!s->pid) {
            if (s->stopping)
                return give_up(s);
            poll(p, 1, (int)retry_ms(s));
            if (p[0].revents)
                signalled(s);
            r = start(s);
            if (r && ++s->crashes > CRASHES_MAX)
                return give_up(s);
            continue;
        }
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return give_up(s);
        if (p[0].revents)
            signalled(s);
        if (p[1].revents)
            heard(s);
        if (waitpid(s->pid, &status, WNOHANG) == s->pid) {
            code = ended(s, status);
            if (code >= 0)
                return code;
        }
    }
}

int fm_supervise(const struct fm_config *cfg, int ready_sock)
{
    struct sup s = {.cfg = *cfg, .ready_sock = ready_sock, .fuse_fd = -1, .sock = -1};
    struct fm_report rep = {
        .kind = FM_FAILED, .code = -EIO, .text = "the serving process died before the mount was ready"};
    sigset_t set;
    int code, r;

    rng_secret(s.client_id, sizeof s.client_id);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    s.sigfd = signalfd(-1, &set, SFD_CLOEXEC);
    r = s.sigfd < 0 ? -errno : start(&s);
    if (r) {
        rep.code = r;
        snprintf(rep.text, sizeof(rep.text), "cannot start the serving process: %s", strerror(-r));
        code = FM_EXIT_FAILED;
    } else {
        code = run(&s);
    }
    report(&s, &rep);
    if (s.sock >= 0)
        close(s.sock);
    if (s.fuse_fd >= 0)
        close(s.fuse_fd);
    if (s.sigfd >= 0)
        close(s.sigfd);
    return code;
}

/*
 * Work on files that may be damaged, in a child process: the index library is large and was not written against what a
 * broken disk holds. If it dies, or eats all memory, the parent lives on and says so.
 *
 * Messages go from the child to its parent through a pipe: a letter, a length, bytes.
 */
#include "parts.h"

#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

void apart_tell(int fd, char kind, const void *p, size_t n)
{
    uint32_t len = (uint32_t)n;
    struct iovec iov[3] = {{&kind, 1}, {&len, sizeof len}, {(void *)(uintptr_t)p, n}};
    /* Messages are below PIPE_BUF, hence whole. A parent that is gone ends the child. */
    if (writev(fd, iov, 3) < 0)
        _exit(1);
}

static bool read_all(int fd, void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = read(fd, (char *)p + at, n - at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        at += (size_t)r;
    }
    return true;
}

static bool listen_to(int fd, bool (*take)(void *user, char kind, const char *text, uint32_t len), void *user)
{
    char kind, text[APART_TEXT];
    uint32_t len;
    while (read_all(fd, &kind, 1) && read_all(fd, &len, sizeof len) && len < sizeof text && read_all(fd, text, len)) {
        text[len] = 0;
        if (take(user, kind, text, len))
            return true;
    }
    return false;
}

int apart_run(void (*work)(int fd, void *user), bool (*take)(void *user, char kind, const char *text, uint32_t len),
              void *user, int *ret_status)
{
    int fd[2], status = 0;
    pid_t pid, parent = getpid();
    bool ended;
    if (pipe2(fd, O_CLOEXEC))
        return -errno;
    pid = fork();
    if (pid < 0) {
        int err = -errno;
        close(fd[0]);
        close(fd[1]);
        return err;
    }
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        close(fd[0]);
        work(fd[1], user);
        _exit(0);
    }
    close(fd[1]);
    ended = listen_to(fd[0], take, user);
    close(fd[0]);
    while (waitpid(pid, &status, 0) < 0) /* a program that waits for all its children may have been first */
        if (errno != EINTR) {
            status = 0;
            break;
        }
    *ret_status = status;
    return !ended;
}

int apart_died(int status, const struct errmsg *m, const char *what)
{
    if (!WIFSIGNALED(status))
        return fail(m, -EIO, "%s ended early", what);
    if (WTERMSIG(status) == SIGKILL)
        return fail(m, -ENOMEM, "%s was killed, for lack of memory perhaps: nothing is known; try again with more",
                    what);
    return fail(m, -EIO, "%s died of signal %d (%s) on what the store holds", what, WTERMSIG(status),
                strsignal(WTERMSIG(status)));
}

/*
 * Runs commands in the guest for the host: rxe_agent PORT. On each connection: one line for /bin/sh, whose stdin,
 * stdout and stderr are the connection; behind its output come 0x1e, its exit status in decimal, and a line feed.
 * When the host goes away the command's process group is killed.
 */
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void session(int fd)
{
    char line[4096], end[32];
    size_t n = 0;
    /* Byte by byte: what follows is the command's stdin. */
    while (n < sizeof line - 1 && read(fd, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        for (int i = 0; i < 3; i++)
            dup2(fd, i);
        close(fd);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, WNOHANG) == 0) {
        struct pollfd p = {.fd = fd, .events = POLLRDHUP};
        if (poll(&p, 1, 20) > 0)
            kill(-pid, SIGKILL);
    }
    int len = snprintf(end, sizeof end, "\x1e%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    if (write(fd, end, (size_t)len) != len)
        _exit(1);
}

int main(int argc, char **argv)
{
    int one = 1, s = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(argc > 1 ? argv[1] : "0"))};
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(s, (const struct sockaddr *)&a, sizeof a) || listen(s, 16)) {
        perror("rxe_agent");
        return 1;
    }
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = accept(s, NULL, NULL);
        if (fd < 0)
            continue;
        if (fork() == 0) {
            signal(SIGCHLD, SIG_DFL);
            close(s);
            session(fd);
            _exit(0);
        }
        close(fd);
    }
}

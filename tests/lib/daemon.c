#include "daemon.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL);
}

/* A port that is free now. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -1;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0)
        port = ntohs(a.sin_port);
    close(fd);
    return port;
}

static bool answers(int port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0;

    close(fd);
    return ok;
}

static void run_program(const char *const *argv, const char *log)
{
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    dup2(fd, 1);
    dup2(fd, 2);
    for (int i = 3; i < 1024; i++)
        close(i);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* The server behind an agent. */
static void exec_backend(struct daemon *d)
{
    char store[80], log[80], listen[40], data[40];
    const char *provider = getenv("PENSTOCK_TEST_PROVIDER");
    const char *argv[20] = {d->program, "serve", "--dev", store,      "--listen", listen,          "--metrics",
                            "off",      "--log", "debug", "--shards", "1",        "--data-listen", data};
    int n = 14;

    if (d->proxy) {
        argv[n++] = "--data-advertise";
        argv[n++] = "127.0.0.2";
    }
    if (provider) {
        argv[n] = "--provider";
        argv[n + 1] = provider;
    }

    for (int i = 0; d->args[i]; i++) /* a test's own */
        if (!strcmp(d->args[i], "--provider")) {
            argv[n] = d->args[i];
            argv[n + 1] = d->args[i + 1];
        }
    snprintf(store, sizeof store, "%s/store", d->dir);
    snprintf(log, sizeof log, "%s/backend.log", d->dir);
    snprintf(listen, sizeof listen, "127.0.0.1:%d", d->backend_port);
    snprintf(data, sizeof data, "127.0.0.1:%d", d->backend_data_port);
    run_program(argv, log);
}

static void exec_it(struct daemon *d)
{
    char store[80], log[80], listen[40], data[40], backend[80], token[100], export[80];
    const char *argv[48] = {d->program, "serve",     "--dev", store,      "--listen", listen,  "--data-listen",
                            data,       "--metrics", "off",   "--shards", "2",        "--log", "debug"};
    const char *provider = getenv("PENSTOCK_TEST_PROVIDER");
    int n = 14;

    snprintf(store, sizeof store, "%s/store", d->dir);
    if (d->backend_port) {
        snprintf(backend, sizeof backend, "penstock://127.0.0.%d:%d", d->proxy ? 2 : 1, d->backend_port);
        snprintf(token, sizeof token, "%s/%d.token", d->dir, d->backend_port);
        if (d->proxy) { /* found by itself otherwise */
            argv[n++] = "--backend-token-file";
            argv[n++] = token;
        }
        argv[2] = "--backend";
        argv[3] = backend;
        argv[n++] = "--role";
        argv[n++] = "agent";
        if (getenv("PENSTOCK_TEST_CACHE")) {
            argv[n++] = "--cache";
            argv[n++] = getenv("PENSTOCK_TEST_CACHE");
        }
    }
    snprintf(log, sizeof log, "%s/log", d->dir);
    snprintf(listen, sizeof listen, "127.0.0.1:%d", d->port);
    snprintf(data, sizeof data, "127.0.0.1:%d", d->data_port);
    if (provider) { /* one in d->args comes later, and so is the one that counts */
        argv[n++] = "--provider";
        argv[n++] = provider;
    }
    if (getenv("PENSTOCK_TEST_EXPORT")) {
        snprintf(export, sizeof export, "%s/export.sock", d->dir);
        argv[n++] = "--export-listen";
        argv[n++] = export;
    }
    if (d->backend_port && getenv("PENSTOCK_TEST_THIRD"))
        argv[n++] = "--third-party";
    for (int i = 0; d->args[i]; i++)
        argv[n++] = d->args[i];
    run_program(argv, log);
}

/*
 * A test that fails half-way leaves no daemon behind: PR_SET_PDEATHSIG. That looks at the thread that forked, not at
 * the process, so one thread, which lives as long as the process, forks for all.
 */
static struct {
    pthread_mutex_t lock; /* one at a time */
    pid_t in;             /* the process that the thread is of: none of a child's */
    sem_t wanted, done;
    struct daemon *d;
    void (*run)(struct daemon *);
    pid_t pid;
} starter = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void wait_for(sem_t *s)
{
    while (sem_wait(s) < 0)
        ;
}

static void *start_all(void *arg)
{
    pid_t self = getpid();

    for (;;) {
        wait_for(&starter.wanted);
        starter.pid = fork();
        if (starter.pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == self)
                starter.run(starter.d);
            _exit(127);
        }
        sem_post(&starter.done);
    }
    return arg;
}

static pid_t start_by_thread(struct daemon *d, void (*run)(struct daemon *))
{
    pthread_t t;
    pid_t pid = -1;

    pthread_mutex_lock(&starter.lock);
    if (starter.in != getpid()) {
        sem_init(&starter.wanted, 0, 0);
        sem_init(&starter.done, 0, 0);
        if (pthread_create(&t, NULL, start_all, NULL) == 0) {
            pthread_detach(t);
            starter.in = getpid();
        }
    }
    if (starter.in == getpid()) {
        starter.d = d;
        starter.run = run;
        sem_post(&starter.wanted);
        wait_for(&starter.done);
        pid = starter.pid;
    }
    pthread_mutex_unlock(&starter.lock);
    return pid;
}

/* Of the token file that is there now: of the daemon before, if it was killed. */
static struct stat token_file(int port)
{
    char path[300];
    struct stat st;

    snprintf(path, sizeof path, "%s/%d.token", getenv("PENSTOCK_RUN_DIR"), port);
    return stat(path, &st) == 0 ? st : (struct stat){0};
}

static bool is_new(const struct stat *was, const struct stat *is)
{
    return is->st_ino && (is->st_ino != was->st_ino || is->st_mtim.tv_sec != was->st_mtim.tv_sec ||
                          is->st_mtim.tv_nsec != was->st_mtim.tv_nsec);
}

/* Returns when the port answers and the token of this start can be read: a daemon listens before it writes that. */
static bool start(struct daemon *d, void (*run)(struct daemon *), pid_t *ret_pid, int port)
{
    struct stat was = token_file(port), is;

    *ret_pid = start_by_thread(d, run);
    if (*ret_pid < 0)
        return false;
    for (int i = 0; i < 600; i++) {
        is = token_file(port);
        if (is_new(&was, &is) && answers(port))
            return true;
        if (waitpid(*ret_pid, NULL, WNOHANG) != 0)
            break;
        nap(50);
    }
    fprintf(stderr, "the daemon does not answer; see %s/log\n", d->dir);
    return false;
}

bool daemon_again(struct daemon *d)
{
    return start(d, exec_it, &d->pid, d->port);
}

bool daemon_backend_again(struct daemon *d)
{
    return start(d, exec_backend, &d->backend, d->backend_port);
}

int daemon_backend_stop(struct daemon *d)
{
    int status = -1;

    kill(d->backend, SIGTERM);
    waitpid(d->backend, &status, 0);
    d->backend = 0;
    return status;
}

void daemon_backend_kill(struct daemon *d)
{
    kill(d->backend, SIGKILL);
    waitpid(d->backend, NULL, 0);
    d->backend = 0;
}

static bool start_somewhere(struct daemon *d)
{
    for (int i = 0; i < 5; i++) { /* others look for free ports too */
        d->port = free_port();
        do { /* two shards: two ports in a row, and neither the control port */
            d->data_port = free_port();
        } while (d->data_port == d->port || d->data_port + 1 == d->port);
        snprintf(d->base, sizeof d->base, "penstock://127.0.0.1:%d/", d->port);
        if (daemon_again(d))
            return true;
    }
    return false;
}

bool daemon_start(struct daemon *d, const char *program, const char *const *args)
{
    *d = (struct daemon){.program = program, .dir = "/tmp/pst-daemon-XXXXXX"};
    if (!mkdtemp(d->dir))
        return false;
    setenv("PENSTOCK_RUN_DIR", d->dir, 1);
    for (int i = 0; args && args[i] && i < DAEMON_ARGS_MAX; i++)
        d->args[i] = args[i];
    if (getenv("PENSTOCK_TEST_AGENT")) {
        d->backend_port = free_port();
        d->backend_data_port = free_port();
        if (!strcmp(getenv("PENSTOCK_TEST_AGENT"), "proxy"))
            d->proxy = proxy_start(&(struct daemon){.port = d->backend_port, .data_port = d->backend_data_port}, 0, 1);
        if (!daemon_backend_again(d))
            return false;
    }
    return start_somewhere(d);
}

bool daemon_agent_start(struct daemon *d, const struct daemon *server, const char *const *args)
{
    *d = (struct daemon){.program = server->program, .dir = "/tmp/pst-daemon-XXXXXX", .backend_port = server->port};
    if (!mkdtemp(d->dir))
        return false;
    for (int i = 0; args && args[i] && i < DAEMON_ARGS_MAX; i++)
        d->args[i] = args[i];
    return start_somewhere(d);
}

void daemon_kill(struct daemon *d)
{
    kill(d->pid, SIGKILL);
    waitpid(d->pid, NULL, 0);
    d->pid = 0;
}

int daemon_stop(struct daemon *d)
{
    int status = -1;

    kill(d->pid, SIGTERM);
    waitpid(d->pid, &status, 0);
    d->pid = 0;
    return status;
}

void daemon_done(struct daemon *d)
{
    char cmd[100];

    if (d->pid > 0)
        daemon_stop(d);
    if (d->backend > 0)
        daemon_backend_stop(d);
    if (d->proxy)
        proxy_stop(d->proxy);
    snprintf(cmd, sizeof cmd, "rm -rf %s", d->dir);
    if (system(cmd) != 0)
        fprintf(stderr, "cannot remove %s\n", d->dir);
}

long daemon_sockets(const struct daemon *d)
{
    char path[300], target[64];
    struct dirent *e;
    long n = 0;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/fd", d->pid);
    dir = opendir(path);
    if (!dir)
        return -1;
    while ((e = readdir(dir))) {
        ssize_t len;
        snprintf(path, sizeof path, "/proc/%d/fd/%s", d->pid, e->d_name);
        len = readlink(path, target, sizeof target - 1);
        n += len > 7 && !strncmp(target, "socket:", 7);
    }
    closedir(dir);
    return n;
}

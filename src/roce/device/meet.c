/*
 * The rendezvous: where a process of this user on this machine meets another, which the hello's sender has named. It is
 * a Unix socket in a directory that is this user's alone, named by the device's instance, a random number: a file, so
 * that it works across network namespaces, as long as both see the directory.
 *
 * Of what a hello says nothing is believed: the path has to have the form of ours, in a directory that belongs to this
 * user and nobody else may enter; whose process listens there is told by the kernel (SO_PEERCRED); and each queue pair
 * that moves to shared memory shows its cookie over it (hello.c). A hello that lies costs one connection.
 */
#define LOG_COMPONENT "uroce"
#include "dev.h"

#include "base/log.h"
#include "roce/device_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#define MEET_MAGIC   0x75726d31u
#define MEET_LOOK_NS NSEC_PER_MSEC /* a busy poller looks for guests no more often than that */
#define GUEST_NS     (2 * NSEC_PER_SEC)
#define SWEEP_MAX    64
#define NAME_DIGITS  16

struct meet_msg {
    uint32_t magic, zero;
    uint64_t from, to; /* instances */
    union uroce_gid from_gid, to_gid;
};

/* ---- where ---- */

static void address_in(int dir, const char *name, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(ret->sun_path, sizeof ret->sun_path, "/proc/self/fd/%d/%s", dir, name);
}

static int connect_in(int dir, const char *name)
{
    struct sockaddr_un at;
    address_in(dir, name, &at);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return -errno;
    if (connect(s, (struct sockaddr *)&at, sizeof at) == 0)
        return s;
    int e = errno;
    close(s);
    return -e;
}

static bool is_name(const char *s)
{
    return strlen(s) == NAME_DIGITS && strspn(s, "0123456789abcdef") == NAME_DIGITS;
}

/* Takes away what killed processes left. One that is being made has another name until it listens. */
static void sweep(int dir)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    struct dirent *e;
    for (int n = 0; n < SWEEP_MAX && (e = readdir(d));) {
        if (!is_name(e->d_name))
            continue;
        n++;
        int s = connect_in(dir, e->d_name);
        if (s == -ECONNREFUSED)
            unlinkat(dir, e->d_name, 0);
        else if (s >= 0)
            close(s);
    }
    closedir(d);
}

static int listen_in(int dir, const char *name)
{
    char before[NAME_DIGITS + 8];
    struct sockaddr_un at;
    snprintf(before, sizeof before, "%s.new", name);
    address_in(dir, before, &at);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return -errno;
    if (bind(s, (struct sockaddr *)&at, sizeof at) == 0) {
        if (listen(s, 64) == 0 && renameat(dir, before, dir, name) == 0)
            return s;
        int e = errno;
        unlinkat(dir, before, 0);
        errno = e;
    }
    int e = errno;
    close(s);
    return -e;
}

const char *dev_meet_path(struct uroce_device *dev)
{
    struct dev_meet *m = &dev->meet;
    char dir[WIRE_HELLO_NAME_BYTES - NAME_DIGITS - 1], name[NAME_DIGITS + 1]; /* and '/' between them */
    if (dev->cfg.no_shm || m->failed)
        return NULL;
    if (m->listener >= 0)
        return m->path;
    const char *run = getenv("XDG_RUNTIME_DIR");
    int fd = run && *run == '/' ? private_dir_in(run, dir, sizeof dir) : -ENOENT;
    if (fd < 0)
        fd = private_dir_in("/tmp", dir, sizeof dir);
    if (fd >= 0) {
        sweep(fd);
        snprintf(name, sizeof name, "%016llx", (unsigned long long)dev->instance);
        m->listener = listen_in(fd, name);
        close(fd);
    }
    if (fd < 0 || m->listener < 0) {
        log_debug("no shared memory with other processes: %s: %s", dir, strerror(fd < 0 ? -fd : -m->listener));
        m->failed = true;
        m->listener = -1;
        return NULL;
    }
    snprintf(m->path, sizeof m->path, "%s/%s", dir, name);
    epoll_ctl(dev->links_fd, EPOLL_CTL_ADD, m->listener, &(struct epoll_event){.events = EPOLLIN});
    return m->path;
}

void dev_meet_init(struct dev_meet *m)
{
    *m = (struct dev_meet){.listener = -1};
    for (int i = 0; i < DEV_GUESTS; i++)
        m->guests[i].sock = -1;
}

void dev_meet_close(struct dev_meet *m)
{
    for (int i = 0; i < DEV_GUESTS; i++)
        if (m->guests[i].sock >= 0)
            close(m->guests[i].sock);
    if (m->listener < 0)
        return;
    unlink(m->path);
    close(m->listener);
}

/* ---- who ---- */

static bool is_this_users(int sock)
{
    uid_t uid;
    return holder_peer(sock, &uid, NULL) == 0 && uid == geteuid();
}

/* Cuts a path that has the form of ours in two; false: it has not. */
static bool take_apart(char *path, uint64_t instance, const char **ret_dir, const char **ret_name)
{
    char want[NAME_DIGITS + 1], *slash = strrchr(path, '/');
    snprintf(want, sizeof want, "%016llx", (unsigned long long)instance);
    if (path[0] != '/' || !slash || strcmp(slash + 1, want) || strstr(path, "/../"))
        return false;
    *slash = '\0';
    const char *dir = strrchr(path, '/');
    if (!dir || strncmp(dir, "/uroce-", 7))
        return false;
    *ret_dir = path;
    *ret_name = slash + 1;
    return true;
}

int dev_meet_call(struct uroce_device *dev, const struct wire_hello *peer, const struct qp_path *path)
{
    char at[WIRE_HELLO_NAME_BYTES];
    const char *dir, *name;
    memcpy(at, peer->name, sizeof at);
    if (!take_apart(at, peer->instance, &dir, &name))
        return -EINVAL;
    int fd = private_dir_open(dir);
    if (fd < 0)
        return fd;
    int s = connect_in(fd, name);
    close(fd);
    if (s < 0)
        return s;
    struct meet_msg m = {
        .magic = MEET_MAGIC,
        .from = dev->instance,
        .to = peer->instance,
        .from_gid = path->local,
        .to_gid = path->remote,
    };
    if (!is_this_users(s) || send(s, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof m) {
        close(s);
        return -EPERM;
    }
    return dev_link_open(dev, s, peer->instance, &path->local, &path->remote);
}

static void let_in(struct uroce_device *dev, uint64_t now)
{
    struct dev_meet *m = &dev->meet;
    for (int i = 0; i < DEV_GUESTS; i++) {
        if (m->guests[i].sock >= 0)
            continue;
        int s = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (s < 0)
            return;
        if (!is_this_users(s)) {
            close(s);
            continue;
        }
        m->guests[i].sock = s;
        m->guests[i].until_ns = now + GUEST_NS;
        epoll_ctl(dev->links_fd, EPOLL_CTL_ADD, s, &(struct epoll_event){.events = EPOLLIN});
    }
}

/* False: it is to be sent away. */
static bool hear(struct uroce_device *dev, int *sock, bool late)
{
    struct meet_msg m;
    ssize_t n = recv(*sock, &m, sizeof m, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return !late;
    if (n != sizeof m || m.magic != MEET_MAGIC || m.to != dev->instance || m.from == dev->instance)
        return false;
    int s = *sock;
    *sock = -1;
    epoll_ctl(dev->links_fd, EPOLL_CTL_DEL, s, NULL);
    int r = dev_link_open(dev, s, m.from, &m.to_gid, &m.from_gid);
    if (r)
        log_debug("a process of this machine cannot be had by shared memory: %s", strerror(-r));
    return true;
}

void dev_meet_tick(struct uroce_device *dev, uint64_t now)
{
    struct dev_meet *m = &dev->meet;
    if (m->listener < 0 || (now < m->next_look_ns && !atomic_load(&dev->links_ready)))
        return;
    m->next_look_ns = now + MEET_LOOK_NS;
    let_in(dev, now);
    for (int i = 0; i < DEV_GUESTS; i++) {
        int *s = &m->guests[i].sock;
        if (*s < 0 || hear(dev, s, m->guests[i].until_ns <= now))
            continue;
        epoll_ctl(dev->links_fd, EPOLL_CTL_DEL, *s, NULL);
        close(*s);
        *s = -1;
    }
}

uint64_t dev_meet_deadline(const struct uroce_device *dev)
{
    uint64_t d = UINT64_MAX;
    for (int i = 0; i < DEV_GUESTS; i++)
        if (dev->meet.guests[i].sock >= 0)
            d = min_u64(d, dev->meet.guests[i].until_ns);
    return d;
}

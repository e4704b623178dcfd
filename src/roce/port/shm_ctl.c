/* The shared-memory port's socket: who the peer is, rings and regions, wake-ups, death. */
#define LOG_COMPONENT "uroce"
#include "shm_priv.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define LISTEN_MAX 64 /* messages read in one go */

int shm_say(struct shm_port *s, const struct shm_msg *m, int fd)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } ctl = {0};
    struct iovec iov = {(void *)m, sizeof *m};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        h.msg_control = ctl.buf;
        h.msg_controllen = sizeof ctl.buf;
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    if (sendmsg(s->sock, &h, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return 0;
    if (errno == EPIPE || errno == ECONNRESET)
        s->dead = true;
    return errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

/* No room in the socket means that the peer has unread messages: it wakes anyway. */
void shm_wake(struct shm_port *s)
{
    shm_say(s, &(struct shm_msg){.magic = SHM_MAGIC, .type = SHM_WAKE}, -1);
}

int shm_hello(struct shm_port *s, int ring_fd)
{
    struct shm_msg m = {.magic = SHM_MAGIC, .type = SHM_HELLO};
    m.a = (uint64_t)s->rx_geo.slots << 32 | s->rx_geo.data_bytes;
    m.b = (uintptr_t)&s->probe;
    m.c = s->probe.value;
    return shm_say(s, &m, ring_fd);
}

/* Maps a descriptor of the peer's. Its size is sealed, so that it can never shrink below what was mapped. */
static void *map_sealed(int fd, uint64_t len, int prot)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (!len || seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < 0 || (uint64_t)st.st_size < len)
        return NULL;
    void *p = mmap(NULL, len, prot, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool read_probe(const struct shm_port *s, uint64_t addr, uint64_t value, uint64_t *ret_secret)
{
    struct shm_probe got = {~value, 0};
    struct iovec to = {&got, sizeof got}, from = {(void *)(uintptr_t)addr, sizeof got};
    if (process_vm_readv(s->peer_pid, &to, 1, &from, 1, 0) != sizeof got || got.value != value)
        return false;
    *ret_secret = got.secret;
    return true;
}

/*
 * Can its memory be read? The value at the probe's address shows that the pid is that of the process which said hello;
 * the pidfd tells later whether it still is.
 */
static void try_reading(struct shm_port *s, const struct shm_msg *m, pid_t pid)
{
    bool ok = false;
    uint64_t secret = 0;
    s->peer_pid = pid;
    if (s->cfg.peer_memory && pid > 0) {
        s->peer_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        ok = s->peer_pidfd >= 0 && read_probe(s, m->b, m->c, &secret);
    }
    if (!ok && s->peer_pidfd >= 0) {
        close(s->peer_pidfd);
        s->peer_pidfd = -1;
    }
    if (!ok && s->cfg.peer_memory)
        log_debug(
            "the memory of process %d cannot be read (ptrace_scope?): payload outside of shared memory is copied twice",
            (int)pid);
    shm_say(s, &(struct shm_msg){.magic = SHM_MAGIC, .type = SHM_MAY_READ, .a = ok, .b = secret}, -1);
}

static bool take_hello(struct shm_port *s, const struct shm_msg *m, int fd, pid_t pid)
{
    struct shm_geometry g = {(uint32_t)(m->a >> 32), (uint32_t)m->a};
    if (s->tx || fd < 0 || g.slots < SHM_SLOTS_MIN || g.slots > SHM_SLOTS_MAX || !is_pow2(g.slots) ||
        g.data_bytes != SHM_DATA_BYTES)
        return false;
    uint64_t *ends = calloc(g.slots, sizeof *ends);
    struct shm_ring *r = ends ? map_sealed(fd, shm_ring_bytes(&g), PROT_READ | PROT_WRITE) : NULL;
    if (!r) {
        free(ends);
        return false;
    }
    s->tx_geo = g;
    s->data_end = ends;
    s->tx = r;
    try_reading(s, m, pid);
    return true;
}

static bool take_region(struct shm_port *s, const struct shm_msg *m, int fd)
{
    if (fd < 0 || m->a >= SHM_REGIONS || s->theirs[m->a].state != SHM_REGION_NONE)
        return false;
    if (m->c > SHM_MAPPED_MAX - s->mapped)
        return true; /* not answered: the peer goes on without it */
    void *p = map_sealed(fd, m->c, PROT_READ);
    if (!p)
        return false;
    s->mapped += m->c;
    s->theirs[m->a] = (struct shm_region){p, m->c, SHM_REGION_USABLE};
    shm_say(s, &(struct shm_msg){.magic = SHM_MAGIC, .type = SHM_REGION_OK, .a = m->a}, -1);
    return true;
}

static bool region_mapped(struct shm_port *s, uint64_t i)
{
    if (i >= SHM_REGIONS || s->ours[i].state == SHM_REGION_NONE)
        return false;
    if (s->ours[i].state == SHM_REGION_TOLD)
        s->ours[i].state = SHM_REGION_USABLE;
    return true;
}

/* One that was too much to be mapped is unmapped as well. */
static bool region_gone(struct shm_port *s, uint64_t i)
{
    if (i >= SHM_REGIONS || s->theirs[i].state == SHM_REGION_ENDING)
        return false;
    s->theirs[i].state = SHM_REGION_ENDING;
    s->ending++;
    return true;
}

static bool region_free(struct shm_port *s, uint64_t i)
{
    if (i >= SHM_REGIONS || s->ours[i].state != SHM_REGION_ENDED)
        return false;
    s->ours[i] = (struct shm_region){0};
    return true;
}

void shm_end_regions(struct shm_port *s)
{
    for (uint32_t i = 0; s->ending && i < SHM_REGIONS; i++) {
        struct shm_region *our = &s->ours[i], *their = &s->theirs[i];
        struct shm_msg m = {.magic = SHM_MAGIC, .type = SHM_REGION_GONE, .a = i};
        if (our->state == SHM_REGION_ENDING && !shm_say(s, &m, -1)) {
            our->state = SHM_REGION_ENDED;
            s->ending--;
        }
        m.type = SHM_REGION_FREE;
        if (their->state == SHM_REGION_ENDING && !shm_say(s, &m, -1)) {
            if (their->base)
                munmap(their->base, their->len);
            s->mapped -= their->len;
            *their = (struct shm_region){0};
            s->ending--;
        }
    }
}

static bool take(struct shm_port *s, const struct shm_msg *m, int fd, pid_t pid)
{
    switch (m->type) {
    case SHM_HELLO:
        return take_hello(s, m, fd, pid);
    case SHM_MAY_READ:
        s->peer_reads = m->a == 1;
        s->peer_shown = m->a == 1 && m->b == s->probe.secret;
        return true;
    case SHM_REGION:
        return take_region(s, m, fd);
    case SHM_REGION_OK:
        return region_mapped(s, m->a);
    case SHM_REGION_GONE:
        return region_gone(s, m->a);
    case SHM_REGION_FREE:
        return region_free(s, m->a);
    case SHM_WAKE:
        return true;
    default:
        return false;
    }
}

/* One message; 1, 0: none, -errno. The kernel vouches for the sender's pid and uid. */
static int read_one(struct shm_port *s, struct shm_msg *m, int *ret_fd, struct ucred *ret_who)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } ctl;
    struct iovec iov = {m, sizeof *m};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl.buf, .msg_controllen = sizeof ctl.buf};
    ssize_t n = recvmsg(s->sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *ret_fd = -1;
    *ret_who = (struct ucred){.pid = 0, .uid = (uid_t)-1};
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len == CMSG_LEN(sizeof *ret_who))
            memcpy(ret_who, CMSG_DATA(c), sizeof *ret_who);
        /* The buffer may have room for two: one is taken. */
        for (size_t i = 0; c->cmsg_type == SCM_RIGHTS && CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (*ret_fd < 0)
                *ret_fd = fd;
            else
                close(fd);
        }
    }
    if (n == 0)
        return -ECONNRESET;
    return n == sizeof *m && m->magic == SHM_MAGIC ? 1 : -EPROTO;
}

void shm_listen(struct shm_port *s)
{
    s->checked_ns = s->now_ns;
    for (int i = 0; i < LISTEN_MAX && !s->dead && !s->broken; i++) {
        struct shm_msg m;
        struct ucred who;
        int fd, rc = read_one(s, &m, &fd, &who);
        if (rc == 1 && (who.uid != geteuid() || !take(s, &m, fd, who.pid)))
            rc = -EPROTO;
        if (fd >= 0)
            close(fd);
        if (rc == 0)
            return;
        if (rc == -EPROTO)
            s->broken = true;
        else if (rc < 0)
            s->dead = true;
    }
}

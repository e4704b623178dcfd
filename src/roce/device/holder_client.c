/* A device's side of the holder: join, sockets, packets to QPN 1, and coming back after the holder's death. */
#define LOG_COMPONENT "uroce"
#include "roce/device_holder.h"

#include "base/log.h"
#include "base/own_file.h"
#include "base/util.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define START_NS (5 * NSEC_PER_SEC) /* for a holder to come up */
#define ANSWER_S 5
#define RETRY_NS (100 * NSEC_PER_MSEC)
#define WAKE_MS  20 /* an answer that another thread has read is noticed by then */
#define LOOK_NS  NSEC_PER_MSEC /* packets to QPN 1 are rare: a busy poller looks for them no more often than that */

extern char **environ;

static int say(char *err, size_t err_size, int r, const char *text)
{
    if (err_size)
        snprintf(err, err_size, "%s", text);
    return r;
}

/* Connects to a holder that runs as this user, or as root. */
static int connect_to(bool system, char *err, size_t err_size)
{
    struct sockaddr_un name;
    socklen_t len = holder_name(geteuid(), system, &name);
    cleanup_close int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s < 0)
        return -errno;
    struct timeval t = {.tv_sec = ANSWER_S};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    /* connect waits while a holder that is stopped has many to accept */
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
    if (connect(s, (struct sockaddr *)&name, len))
        return -errno;
    uid_t uid = 0;
    int r = holder_peer(s, &uid, NULL);
    if (r)
        return r;
    if (uid != geteuid() && uid != 0) {
        snprintf(err, err_size,
                 "the holder of this network namespace's RoCE addresses runs as uid %u, which uroce of uid %u does not "
                 "trust: end it, or set UROCE_HOLDER=off and give this process an address of its own (UROCE_ADDRESS)",
                 (unsigned)uid, (unsigned)geteuid());
        return -EACCES;
    }
    int ret = s;
    s = -1;
    return ret;
}

static bool can_run(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* `uroce` beside this code: in a build tree the library lies there. */
static bool beside(char *ret, size_t size)
{
    char own[PATH_MAX];
    if (!own_file(own))
        return false;
    char *slash = strrchr(own, '/');
    int n = snprintf(ret, size, "%.*s/uroce", slash ? (int)(slash - own) : 0, own);
    return n > 0 && (size_t)n < size && can_run(ret);
}

/* The program that can be a holder; NULL: there is none. */
static const char *program(char buf[PATH_MAX])
{
    const char *p = secure_getenv("UROCE_HOLDER");
    if (p && *p)
        return can_run(p) ? p : NULL;
    if (beside(buf, PATH_MAX))
        return buf;
    return can_run(UROCE_PROGRAM) ? UROCE_PROGRAM : NULL;
}

/* Starts it: it puts itself into the background, and the child that we see ends at once. */
static int start(const char *path)
{
    char *argv[] = {(char *)(uintptr_t)path, (char *)(uintptr_t) "holder", (char *)(uintptr_t) "--background", NULL};
    pid_t pid;
    int status, r = posix_spawn(&pid, path, NULL, NULL, argv, environ);
    if (r)
        return -r;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return 0;
}

static int find(bool *ret_system, char *err, size_t err_size)
{
    int s = connect_to(true, err, err_size);
    *ret_system = s >= 0;
    if (s >= 0 || s == -EACCES)
        return s;
    s = connect_to(false, err, err_size);
    if (s != -ECONNREFUSED)
        return s;
    char buf[PATH_MAX];
    const char *path = program(buf);
    if (!path)
        return -ENOENT;
    int r = start(path);
    for (uint64_t end = now_ns() + START_NS; !r && s == -ECONNREFUSED && now_ns() < end;) {
        poll(NULL, 0, 2);
        s = connect_to(false, err, err_size);
    }
    return r ? r : s;
}

#define WAITING_MAX 64

struct holder_waiting {
    int n;
    struct holder_msg m[WAITING_MAX];
};

/* Keeps a packet for holder_client_packet; too many are lost, as on a wire. */
static void keep_waiting(struct holder_client *c, const struct holder_msg *m)
{
    if (!c->waiting)
        c->waiting = calloc(1, sizeof *c->waiting);
    if (c->waiting && c->waiting->n < WAITING_MAX)
        c->waiting->m[c->waiting->n++] = *m;
}

/*
 * Sends a message and waits for its answer. Packets that come in between are kept; the answer to an earlier request,
 * which came too late for it, is not taken for this one's.
 */
static int ask(int sock, struct holder_client *c, struct holder_msg *m, int *ret_fd)
{
    uint32_t want = m->type == HOLDER_JOIN ? HOLDER_JOINED : m->type, seq = ++c->seq;
    m->seq = seq;
    int r = holder_send(sock, m, -1);
    for (;;) {
        if (r)
            return r;
        r = holder_recv(sock, 0, m, ret_fd);
        if (!r && m->type == want && m->seq == seq)
            return m->status;
        if (!r && m->type == HOLDER_PACKET)
            keep_waiting(c, m);
        if (*ret_fd >= 0)
            close(*ret_fd);
        *ret_fd = -1;
    }
}

/* One of ask_meanwhile, under the lock. */
struct question {
    struct list link;
    uint32_t type, seq;
    bool answered;
    int status;
};

/*
 * Lock held. Reads what the holder has sent: packets are kept, answers go to their questions. -EAGAIN: nothing more
 * now.
 */
static int hear(struct holder_client *c)
{
    struct holder_msg m;
    int fd, r;
    while (!(r = holder_recv(c->sock, MSG_DONTWAIT, &m, &fd))) {
        if (fd >= 0)
            close(fd);
        if (m.type == HOLDER_PACKET)
            keep_waiting(c, &m);
        list_for_each (it, &c->questions) {
            struct question *q = list_entry(it, struct question, link);
            if (q->type == m.type && q->seq == m.seq) {
                q->answered = true;
                q->status = m.status;
            }
        }
    }
    return r;
}

/*
 * As ask, with the lock free while the answer is awaited. Whoever asks reads for all, and until then nobody else does
 * (holder_client_packet), so the socket stays.
 */
static int ask_meanwhile(struct holder_client *c, struct holder_msg *m, holder_wait_fn *wait, void *ctx)
{
    struct question q = {.type = m->type, .seq = ++c->seq};
    uint64_t end = now_ns() + ANSWER_S * NSEC_PER_SEC;
    m->seq = q.seq;
    int r = holder_send(c->sock, m, -1);
    list_push_back(&c->questions, &q.link);
    while (!r && !q.answered) {
        wait(ctx, c->sock, WAKE_MS);
        r = hear(c);
        if (r == -EAGAIN && now_ns() < end)
            r = 0;
    }
    list_del(&q.link);
    return q.answered ? q.status : r;
}

static int join_once(struct holder_client *c, char *err, size_t err_size)
{
    int s = find(&c->system, err, err_size);
    if (s < 0)
        return s;
    struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_JOIN, .slot = HOLDER_ANY_SLOT};
    int fd = -1, r = ask(s, c, &m, &fd);
    if (!r && (m.slot == 0 || m.slot >= HOLDER_SLOTS))
        r = -EPROTO;
    if (r) {
        close(s);
        return say(err, err_size, r, r == m.status && m.text[0] ? m.text : "the holder does not answer");
    }
    c->sock = s;
    c->slot = m.slot;
    return 0;
}

int holder_client_join(struct holder_client *c, char *err, size_t err_size)
{
    *c = (struct holder_client){.sock = -1};
    list_init(&c->questions);
    const char *off = secure_getenv("UROCE_HOLDER");
    if (off && strcmp(off, "off") == 0)
        return -ENOENT;
    int r;
    int tries = 3; /* a holder may end, for want of clients, at the moment when we come */
    do
        r = join_once(c, err, err_size);
    while ((r == -ENOTCONN || r == -ECONNRESET || r == -EPIPE) && --tries);
    return r;
}

int holder_client_socket(struct holder_client *c, const struct port_addr *addr, char *err, size_t err_size)
{
    struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_ADDRESS, .to = *addr};
    int fd = -1, r = ask(c->sock, c, &m, &fd);
    if (!r && fd < 0)
        r = -EPROTO;
    if (r)
        return say(err, err_size, r, r == m.status && m.text[0] ? m.text : "the holder gave no socket");
    return fd;
}

int holder_client_bind(struct holder_client *c, const struct holder_bind *b, holder_wait_fn *wait, void *ctx)
{
    struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_BIND, .len = sizeof *b};
    if (c->sock < 0)
        return -ENOTCONN;
    memcpy(m.data, b, sizeof *b);
    int r = ask_meanwhile(c, &m, wait, ctx);
    if (r == -EAGAIN) { /* it may do so later, when nobody knows any more: its answer is for nobody */
        m = (struct holder_msg){.magic = HOLDER_MAGIC, .type = HOLDER_UNBIND, .seq = ++c->seq, .len = sizeof *b};
        memcpy(m.data, b, sizeof *b);
        holder_send(c->sock, &m, -1);
    }
    return r == -EPIPE || r == -ECONNRESET || r == -EAGAIN ? -ENOTCONN : r;
}

void holder_client_unbind(struct holder_client *c, const struct holder_bind *b, holder_wait_fn *wait, void *ctx)
{
    struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_UNBIND, .len = sizeof *b};
    memcpy(m.data, b, sizeof *b);
    if (c->sock >= 0)
        ask_meanwhile(c, &m, wait, ctx);
}

/* After the holder's death: the same slot again. Its answer is taken by holder_client_packet. */
static void come_back(struct holder_client *c, uint64_t now)
{
    char err[HOLDER_TEXT];
    if (now < c->next_try_ns)
        return;
    c->next_try_ns = now + RETRY_NS;
    int s = connect_to(c->system, err, sizeof err);
    if (s < 0)
        return;
    struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_JOIN, .slot = c->slot};
    if (holder_send(s, &m, -1)) {
        close(s);
        return;
    }
    c->sock = s;
}

bool holder_client_packet(struct holder_client *c, uint64_t now, struct holder_msg *ret)
{
    if (c->waiting && c->waiting->n) {
        *ret = c->waiting->m[0];
        memmove(c->waiting->m, c->waiting->m + 1, (size_t)--c->waiting->n * sizeof *ret);
        return true;
    }
    if (now < c->next_look_ns || !list_empty(&c->questions))
        return false;
    if (c->sock < 0)
        come_back(c, now);
    while (c->sock >= 0) {
        int fd, r = holder_recv(c->sock, MSG_DONTWAIT, ret, &fd);
        if (fd >= 0)
            close(fd);
        if (!r && ret->type == HOLDER_PACKET)
            return true;
        if (r == -EAGAIN)
            break;
        if (r || (ret->type == HOLDER_JOINED && ret->status)) {
            log_debug("the holder is gone: %s", strerror(r ? -r : -ret->status));
            close(c->sock);
            c->sock = -1;
            c->next_try_ns = now + RETRY_NS;
        }
    }
    c->next_look_ns = now + LOOK_NS;
    return false;
}

void holder_client_leave(struct holder_client *c)
{
    struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_LEAVE};
    if (c->sock >= 0)
        holder_send(c->sock, &m, -1);
    if (c->sock >= 0)
        close(c->sock);
    c->sock = -1;
    free(c->waiting);
    c->waiting = NULL;
}

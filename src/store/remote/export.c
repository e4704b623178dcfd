/*
 * Memory that a queue hands over to a daemon of the same machine (fabric/export.h): its arena, and regions that are
 * memfds. Requests then name (export, offset), and the daemon's own process places the bytes.
 *
 *   OFF -> HELLO -> GIVEN -> UP -> ENDING -> OFF        each can fall back to OFF: the daemon closed the connection
 *
 * The buffer rule: what an unanswered request names is free when the export's connection is closed by the other side:
 * the end of the data connection alone says nothing of what the daemon does in our memory. So with such requests
 * unanswered, the end of a data connection ends the exports, and is complete when all are OFF.
 */
#include "queue.h"

#include "base/rng.h"
#include "fabric/export.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/un.h>

#define HAND_OVER_NS (5 * NSEC_PER_SEC)
#define RETRY_NS     (2 * NSEC_PER_SEC)
#define LOOK_NS      NSEC_PER_MSEC /* while nothing is under way: an end is noticed so late at most */

enum state { OFF, HELLO, GIVEN, UP, ENDING };

struct rexport {
    enum state state;
    int fd, memfd; /* memfd is borrowed */
    uint64_t bytes, id, epoch, retry_at_ns, deadline_ns;
    uint32_t uid; /* of the process that listens, as the kernel says */
    struct export_talk talk;
    uint8_t key[EXPORT_KEY];
};

struct rexport *rq_export_new(int memfd, uint64_t bytes)
{
    struct rexport *e = memfd >= 0 && bytes <= EXPORT_BYTES_MAX ? calloc(1, sizeof *e) : NULL;

    if (e)
        *e = (struct rexport){.fd = -1, .memfd = memfd, .bytes = bytes};
    return e;
}

static bool is_pending(const struct rexport *e)
{
    return e->state == HELLO || e->state == GIVEN || e->state == ENDING;
}

/* The connection goes, and with it, at the other side, the memory. */
static void off(struct rqueue *q, struct rexport *e, uint64_t wait_ns)
{
    if (e->state == OFF)
        return;
    q->exports_pending -= is_pending(e);
    q->exports_ending -= e->state == ENDING;
    q->exports_live--;
    close(e->fd);
    pst_wipe(e->key, sizeof e->key);
    e->fd = -1;
    e->state = OFF;
    e->retry_at_ns = now_ns() + wait_ns;
}

void rq_export_free(struct rqueue *q, struct rexport *e)
{
    if (!e)
        return;
    off(q, e, 0);
    free(e);
}

/* ---- the hand-over ---- */

static int dial(const char *path, uint32_t *ret_uid)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct ucred cred;
    socklen_t len = sizeof cred;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    memcpy(sa.sun_path, path, strlen(path) + 1);
    if (connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    *ret_uid = cred.uid;
    return fd;
}

static int say_hello(struct rqueue *q, struct rexport *e)
{
    struct export_hello h = {.magic = put_le32(EXPORT_MAGIC)};
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = e};
    struct session_export s;
    int r;

    session_export(q->r->session, &s);
    r = s.path[0] ? dial(s.path, &e->uid) : -ENOENT;
    if (r < 0) {
        pst_wipe(&s, sizeof s);
        return r;
    }
    e->fd = r;
    e->epoch = s.epoch;
    memcpy(e->key, s.data_key, sizeof e->key);
    memcpy(e->talk.session, s.session, sizeof e->talk.session);
    pst_wipe(&s, sizeof s);
    rng_secret(e->talk.client_nonce, sizeof e->talk.client_nonce);
    memcpy(h.session, e->talk.session, sizeof h.session);
    memcpy(h.nonce, e->talk.client_nonce, sizeof h.nonce);
    if (send(e->fd, &h, sizeof h, MSG_NOSIGNAL) != sizeof h ||
        epoll_ctl(q->export_epoll, EPOLL_CTL_ADD, e->fd, &ev) < 0) {
        r = -errno;
        close(e->fd);
        e->fd = -1;
        return r;
    }
    return 0;
}

static void begin(struct rqueue *q, struct rexport *e)
{
    uint64_t now = now_ns();
    int r;

    if (q->r->placement == PLACE_CROSSING || q->r->placement == PLACE_THIRD || now < e->retry_at_ns)
        return;
    e->retry_at_ns = now + RETRY_NS;
    r = say_hello(q, e);
    if (r < 0) {
        log_debug("%s: memory cannot be handed over: %s", session_addr(q->r->session), err_text(r));
        return;
    }
    e->state = HELLO;
    e->deadline_ns = now + HAND_OVER_NS;
    q->exports_live++;
    q->exports_pending++;
}

/* Only a daemon that knows the session's key, and runs as it says, gets the memory. */
static int give(struct rexport *e)
{
    struct export_answer a;
    struct export_give g = {.bytes = put_le64(e->bytes)};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } ctl = {{0}};
    struct iovec iov = {&g, sizeof g};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl.room, .msg_controllen = sizeof ctl.room};
    uint8_t mac[EXPORT_MAC];
    ssize_t n = recv(e->fd, &a, sizeof a, MSG_DONTWAIT | MSG_TRUNC);

    if (n < 0 && errno == EAGAIN)
        return -EAGAIN;
    if (n != sizeof a || get_le32(a.status))
        return -ECONNREFUSED;
    memcpy(e->talk.daemon_nonce, a.nonce, sizeof a.nonce);
    if (export_mac(e->key, true, &e->talk, get_le32(a.uid), mac) < 0 || !pst_equal_ct(mac, a.mac, sizeof mac) ||
        get_le32(a.uid) != e->uid)
        return -EACCES;
    if (export_mac(e->key, false, &e->talk, e->bytes, g.mac) < 0)
        return -EIO;
    *CMSG_FIRSTHDR(&m) =
        (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &e->memfd, sizeof e->memfd);
    return sendmsg(e->fd, &m, MSG_NOSIGNAL) == sizeof g ? 0 : -errno;
}

static int take_answer(struct rexport *e)
{
    struct export_taken t;
    ssize_t n = recv(e->fd, &t, sizeof t, MSG_DONTWAIT | MSG_TRUNC);

    if (n < 0 && errno == EAGAIN)
        return -EAGAIN;
    if (n != sizeof t || get_le32(t.status) || !get_le64(t.id))
        return -ECONNREFUSED;
    e->id = get_le64(t.id);
    return 0;
}

/* Something has come, or the end. */
static void hear(struct rqueue *q, struct rexport *e)
{
    char byte;
    ssize_t n;
    int r;

    switch (e->state) {
    case HELLO:
        r = give(e);
        if (r == 0)
            e->state = GIVEN;
        break;
    case GIVEN:
        r = take_answer(e);
        if (r == 0) {
            e->state = UP;
            q->exports_pending--;
            pst_wipe(e->key, sizeof e->key);
        }
        break;
    default:
        n = recv(e->fd, &byte, 1, MSG_DONTWAIT);
        r = n < 0 && (errno == EAGAIN || errno == EINTR) ? -EAGAIN : -ECONNRESET;
        if (r != -EAGAIN) {
            off(q, e, e->state == ENDING ? 0 : RETRY_NS / 20);
            return;
        }
    }
    if (r < 0 && r != -EAGAIN) {
        if (r == -EACCES)
            log_warn("%s: who listens for memory there is not this server", session_addr(q->r->session));
        else
            log_debug("%s: memory is not taken: %s", session_addr(q->r->session), err_text(r));
        off(q, e, RETRY_NS);
    }
}

/* ---- for the queue ---- */

static void each(struct rqueue *q, void (*fn)(struct rqueue *q, struct rexport *e, uint64_t now), uint64_t now)
{
    if (q->arena_export)
        fn(q, q->arena_export, now);
    for (uint32_t i = 0; i < q->nregions; i++)
        if (q->region[i].export)
            fn(q, q->region[i].export, now);
}

static void too_late(struct rqueue *q, struct rexport *e, uint64_t now)
{
    if ((e->state == HELLO || e->state == GIVEN) && now >= e->deadline_ns)
        off(q, e, RETRY_NS);
}

static void end_one(struct rqueue *q, struct rexport *e, uint64_t now)
{
    (void)now;
    if (e->state != UP)
        return;
    shutdown(e->fd, SHUT_WR);
    e->state = ENDING;
    q->exports_pending++;
    q->exports_ending++;
}

bool rq_export_use(struct rqueue *q, struct rexport *e, uint64_t offset, struct dp_seg *ret)
{
    if (!e)
        return false;
    if (e->state == UP && e->epoch < q->conn.epoch) /* of the session before: nothing under way names it */
        off(q, e, 0);
    if (e->state == OFF)
        begin(q, e);
    if (e->state != UP || e->epoch != q->conn.epoch)
        return false;
    ret->addr = offset;
    ret->key = e->id;
    return true;
}

bool rq_export_end(struct rqueue *q)
{
    bool some = false;

    list_for_each (it, &q->sent)
        some |= list_entry(it, struct rop, link)->is_exported;
    list_for_each (it, &q->given_up)
        some |= list_entry(it, struct rop, link)->is_exported;
    if (some)
        each(q, end_one, 0);
    q->draining = q->exports_ending > 0;
    return q->draining;
}

bool rq_export_step(struct rqueue *q, uint64_t now)
{
    struct epoll_event ev[16];
    int n;

    if (!q->draining && (!q->exports_live || (!q->exports_pending && now < q->export_look_ns)))
        return false;
    q->export_look_ns = now + LOOK_NS;
    n = epoll_wait(q->export_epoll, ev, ARRAY_SIZE(ev), 0);
    for (int i = 0; i < n; i++)
        hear(q, ev[i].data.ptr);
    if (q->exports_pending)
        each(q, too_late, now);
    if (!q->draining || q->exports_ending)
        return false;
    q->draining = false;
    return true;
}

/* ---- is there a daemon to hand it to? ---- */

bool remote_wants_shared(const struct pst_store *st)
{
    struct remote *r = remote_of((struct pst_store *)(uintptr_t)st);

    return remote_takes_exports(r) || remote_shares(r);
}

bool remote_takes_exports(struct remote *r)
{
    struct session_export s;

    if (r->placement == PLACE_CROSSING || r->placement == PLACE_THIRD)
        return false;
    session_export(r->session, &s);
    pst_wipe(s.data_key, sizeof s.data_key);
    return s.path[0] && access(s.path, W_OK) == 0;
}

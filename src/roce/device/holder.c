/* The holder: keeper and worker (roce/device_holder.h). Single-threaded, no state but slots and sockets. */
#define LOG_COMPONENT "uroce"
#include "holder_services.h"
#include "holder_wills.h"
#include "roce/device_holder.h"

#include "base/log.h"
#include "base/util.h"
#include "roce/wire_gid.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct held {
    struct port_addr addr;
    int fd[HOLDER_SLOTS];
};

#define QUEUE_MAX 1024u /* packets that wait for a client to read; more are lost, as on a wire */

struct queue {
    uint32_t head, n;
    struct holder_msg m[QUEUE_MAX];
};

struct client {
    int sock;
    pid_t pid;
    uint32_t slot;       /* 0: has not joined yet */
    bool left;           /* it has said so */
    struct queue *queue; /* when its socket was full once */
};

/* Outlives a worker: in memory that keeper and workers share. */
struct shared {
    pid_t owner[HOLDER_SLOTS];
    struct holder_services services;
    struct holder_wills wills;
};

struct holder {
    bool system;
    int listener;
    int twin; /* to the other one of keeper and worker: closed at its death */
    struct shared *shared;
    struct held held[HOLDER_ADDRESSES];
    unsigned nheld;
    /* the worker's */
    struct client clients[HOLDER_SLOTS];
    uint64_t since; /* when this worker began */
    uint64_t alone; /* since when nobody is there; 0: somebody is */
};

/* ---- slots and sockets ---- */

static bool alive(pid_t pid)
{
    return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

static struct client *owner(struct holder *h, uint32_t slot)
{
    for (unsigned i = 0; i < HOLDER_SLOTS; i++)
        if (h->clients[i].sock >= 0 && h->clients[i].slot == slot)
            return &h->clients[i];
    return NULL;
}

/* What came for the slot's last owner is not for the next one. */
static void empty(const struct holder *h, uint32_t slot)
{
    char byte;
    for (unsigned i = 0; i < h->nheld; i++)
        while (recv(h->held[i].fd[slot], &byte, 1, MSG_DONTWAIT) >= 0)
            ;
}

/* The holder's own socket of an address; -1. */
static int own_socket(void *ctx, const union uroce_gid *local)
{
    struct holder *h = ctx;
    for (unsigned i = 0; i < h->nheld; i++)
        if (!memcmp(&h->held[i].addr.gid, local, sizeof *local))
            return h->held[i].fd[0];
    return -1;
}

static bool is_free(struct holder *h, uint32_t slot, pid_t pid)
{
    if (owner(h, slot))
        return false;
    pid_t was = h->shared->owner[slot];
    return was == 0 || was == pid || !alive(was) || now_ns() - h->since > HOLDER_RESERVE_NS;
}

static int take_slot(struct holder *h, struct client *c, uint32_t wanted, struct holder_msg *answer)
{
    if (c->slot)
        return -EALREADY;
    if (wanted != HOLDER_ANY_SLOT) {
        if (wanted == 0 || wanted >= HOLDER_SLOTS || owner(h, wanted) || h->shared->owner[wanted] != c->pid)
            return -EBUSY;
        c->slot = wanted;
        return 0;
    }
    for (uint32_t s = 1; s < HOLDER_SLOTS; s++) {
        if (!is_free(h, s, c->pid))
            continue;
        empty(h, s);
        services_drop(&h->shared->services, s);
        wills_end(&h->shared->wills, s, own_socket, h);
        h->shared->owner[s] = c->pid;
        c->slot = s;
        return 0;
    }
    snprintf(answer->text, sizeof answer->text,
             "%u processes use uroce here already, which is the most: give this one an address of its own and set "
             "UROCE_HOLDER=off",
             HOLDER_SLOTS - 1);
    return -EUSERS;
}

static bool same_addr(const struct port_addr *a, const struct port_addr *b)
{
    return memcmp(&a->gid, &b->gid, sizeof a->gid) == 0 && a->scope_id == b->scope_id;
}

/* The keeper gets a copy of each socket, so that the group lives on when the worker dies. */
static int tell_keeper(struct holder *h, const struct held *held)
{
    for (uint32_t s = 0; s < HOLDER_SLOTS; s++) {
        struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_ADDRESS, .slot = s, .to = held->addr};
        int r;
        while ((r = holder_send(h->twin, &m, held->fd[s])) == -EAGAIN)
            poll(NULL, 0, 1);
        if (r)
            return r;
    }
    return 0;
}

static int hold_address(struct holder *h, const struct port_addr *addr, struct held **ret, char *text)
{
    char name[WIRE_GID_TEXT];
    wire_gid_text(&addr->gid, name);
    for (unsigned i = 0; i < h->nheld; i++)
        if (same_addr(&h->held[i].addr, addr)) {
            *ret = &h->held[i];
            return 0;
        }
    if (h->nheld == HOLDER_ADDRESSES) {
        snprintf(text, HOLDER_TEXT, "%s: the holder has %u addresses already, which is the most", name, h->nheld);
        return -ENOSPC;
    }
    struct held *n = &h->held[h->nheld];
    n->addr = *addr;
    n->addr.udp_port = PORT_UDP;
    int r = port_udp_share(&n->addr, HOLDER_SLOTS, n->fd);
    if (r == -EADDRINUSE)
        snprintf(text, HOLDER_TEXT,
                 "%s: UDP port 4791 is in use, by another program or user's uroce: set UROCE_ADDRESS for both, none "
                 "the same (unset: all are taken, loopback too), or start the system's holder",
                 name);
    else if (r)
        snprintf(text, HOLDER_TEXT, "%s: no sockets on UDP port 4791: %s", name, strerror(-r));
    if (r)
        return r;
    h->nheld++;
    *ret = n;
    return tell_keeper(h, n);
}

/* ---- the worker ---- */

static void drop_client(struct holder *h, struct client *c)
{
    close(c->sock);
    if (c->slot) {
        services_drop(&h->shared->services, c->slot);
        wills_end(&h->shared->wills, c->slot, c->left ? NULL : own_socket, h);
    }
    if (c->slot && !alive(c->pid))
        h->shared->owner[c->slot] = 0;
    free(c->queue);
    *c = (struct client){.sock = -1};
}

static void accept_client(struct holder *h)
{
    cleanup_close int s = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    uid_t uid;
    pid_t pid;
    if (s < 0 || holder_peer(s, &uid, &pid))
        return;
    struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_JOINED};
    if (!h->system && uid != geteuid()) {
        m.status = -EACCES;
        snprintf(
            m.text, sizeof m.text,
            "this holder serves uid %u alone, not uid %u: start the system's holder, or use an address of your own",
            (unsigned)geteuid(), (unsigned)uid);
        holder_send(s, &m, -1);
        return;
    }
    for (unsigned i = 0; i < HOLDER_SLOTS; i++)
        if (h->clients[i].sock < 0) {
            h->clients[i] = (struct client){.sock = s, .pid = pid};
            s = -1;
            return;
        }
    m.status = -EUSERS;
    snprintf(m.text, sizeof m.text, "the holder has %u clients, which is the most", HOLDER_SLOTS);
    holder_send(s, &m, -1);
}

static void serve_client(struct holder *h, struct client *c)
{
    struct holder_msg m;
    int fd = -1, r = holder_recv(c->sock, MSG_DONTWAIT, &m, &fd);
    if (fd >= 0)
        close(fd);
    if (r == -EAGAIN)
        return;
    struct holder_msg a = {.magic = HOLDER_MAGIC, .to = m.to, .seq = m.seq};
    int give = -1;
    if (!r && m.type == HOLDER_JOIN) {
        a.type = HOLDER_JOINED;
        a.status = take_slot(h, c, m.slot, &a);
        a.slot = c->slot;
    } else if (!r && m.type == HOLDER_ADDRESS && c->slot) {
        struct held *held;
        a.type = HOLDER_ADDRESS;
        a.status = hold_address(h, &m.to, &held, a.text);
        give = a.status ? -1 : held->fd[c->slot];
    } else if (!r && m.type == HOLDER_BIND && c->slot) {
        a.type = HOLDER_BIND;
        a.status = services_bind(&h->shared->services, c->slot, &m);
    } else if (!r && m.type == HOLDER_UNBIND && c->slot) {
        services_unbind(&h->shared->services, c->slot, &m);
        a.type = HOLDER_UNBIND;
    } else if (!r && m.type == HOLDER_LEAVE) {
        c->left = true;
        return;
    } else {
        drop_client(h, c);
        return;
    }
    if (holder_send(c->sock, &a, give))
        drop_client(h, c);
}

/* Sends what waits; true: nothing does any more. */
static bool flush_queue(struct client *c)
{
    struct queue *q = c->queue;
    while (q && q->n) {
        int r = holder_send(c->sock, &q->m[q->head], -1);
        if (r == -EAGAIN)
            return false;
        q->head = (q->head + 1) % QUEUE_MAX;
        q->n--;
    }
    return true;
}

static void send_packet(struct client *c, const struct holder_msg *m)
{
    if (flush_queue(c) && holder_send(c->sock, m, -1) != -EAGAIN)
        return;
    if (!c->queue)
        c->queue = calloc(1, sizeof *c->queue);
    if (c->queue && c->queue->n < QUEUE_MAX)
        c->queue->m[(c->queue->head + c->queue->n++) % QUEUE_MAX] = *m;
}

/* A packet to QPN 1: to one process, to any, or to all. */
static void deliver(struct holder *h, const struct holder_msg *m)
{
    uint32_t slot = services_slot_of(&h->shared->services, &m->to.gid, m->data, m->len);
    for (unsigned i = 0; slot != HOLDER_TO_NOBODY && i < HOLDER_SLOTS; i++) {
        struct client *c = &h->clients[i];
        if (c->sock < 0 || !c->slot || (slot < HOLDER_SLOTS && c->slot != slot))
            continue;
        wills_see(&h->shared->wills, c->slot, m);
        send_packet(c, m);
        if (slot != HOLDER_TO_ALL)
            return;
    }
}

static void pass_on(struct holder *h, const struct held *held)
{
    for (int i = 0; i < 64; i++) {
        struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_PACKET, .to = held->addr};
        struct sockaddr_storage from;
        socklen_t len = sizeof from;
        ssize_t n =
            recvfrom(held->fd[0], m.data, sizeof m.data, MSG_DONTWAIT | MSG_TRUNC, (struct sockaddr *)&from, &len);
        if (n < 0)
            return;
        if (n > (ssize_t)sizeof m.data)
            continue;
        m.len = (uint16_t)n;
        port_addr_from((struct sockaddr *)&from, &m.from);
        deliver(h, &m);
    }
}

static bool someone_is_there(struct holder *h)
{
    for (unsigned i = 0; i < HOLDER_SLOTS; i++)
        if (h->clients[i].sock >= 0)
            return true;
    /* After a worker's death its clients need a moment to come back. */
    for (unsigned i = 1; i < HOLDER_SLOTS; i++)
        if (h->shared->owner[i] && now_ns() - h->since < HOLDER_RESERVE_NS && alive(h->shared->owner[i]))
            return true;
    return false;
}

/* False: the keeper is dead. Ends the process when nobody needs it any more. */
static bool work_once(struct holder *h)
{
    struct pollfd p[2 + HOLDER_SLOTS + HOLDER_ADDRESSES];
    nfds_t n = 0;
    p[n++] = (struct pollfd){.fd = h->listener, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = h->twin, .events = POLLIN};
    for (unsigned i = 0; i < HOLDER_SLOTS; i++)
        p[n++] = (struct pollfd){.fd = h->clients[i].sock,
                                 .events = POLLIN | (h->clients[i].queue && h->clients[i].queue->n ? POLLOUT : 0)};
    unsigned nheld = h->nheld;
    for (unsigned i = 0; i < nheld; i++)
        p[n++] = (struct pollfd){.fd = h->held[i].fd[0], .events = POLLIN};
    if (poll(p, n, 1000) < 0 && errno != EINTR)
        return true;
    if (p[1].revents)
        return false;
    for (unsigned i = 0; i < HOLDER_SLOTS; i++) {
        if (p[2 + i].revents & POLLOUT)
            flush_queue(&h->clients[i]);
        if (p[2 + i].revents & ~POLLOUT && h->clients[i].sock == p[2 + i].fd)
            serve_client(h, &h->clients[i]);
    }
    for (unsigned i = 0; i < nheld; i++)
        if (p[2 + HOLDER_SLOTS + i].revents)
            pass_on(h, &h->held[i]);
    if (p[0].revents)
        accept_client(h);
    if (h->system || someone_is_there(h))
        h->alone = 0;
    else if (!h->alone)
        h->alone = now_ns();
    else if (now_ns() - h->alone > HOLDER_LINGER_NS)
        _exit(0);
    return true;
}

/* ---- the keeper ---- */

static void keep(struct holder *h, const struct holder_msg *m, int fd)
{
    struct held *k = NULL;
    for (unsigned i = 0; i < h->nheld; i++)
        if (same_addr(&h->held[i].addr, &m->to))
            k = &h->held[i];
    if (m->slot >= HOLDER_SLOTS || (!k && (m->slot != 0 || h->nheld == HOLDER_ADDRESSES))) {
        close(fd);
        return;
    }
    if (!k) {
        k = &h->held[h->nheld++];
        k->addr = m->to;
    }
    k->fd[m->slot] = fd;
}

/* A worker that died while it told of an address leaves half a group: that address is given up. */
static void forget_incomplete(struct holder *h)
{
    struct held *last = h->nheld ? &h->held[h->nheld - 1] : NULL;
    if (!last || last->fd[HOLDER_SLOTS - 1] > 0)
        return;
    for (unsigned s = 0; s < HOLDER_SLOTS; s++)
        if (last->fd[s] > 0)
            close(last->fd[s]);
    memset(last, 0, sizeof *last);
    h->nheld--;
}

/* Until the worker is dead. */
static void watch(struct holder *h)
{
    for (;;) {
        struct holder_msg m;
        int fd = -1, r = holder_recv(h->twin, 0, &m, &fd);
        if (!r && m.type == HOLDER_ADDRESS && fd >= 0)
            keep(h, &m, fd);
        else if (fd >= 0)
            close(fd);
        if (r && r != -EPROTO)
            return;
    }
}

static void new_pair(int fds[2])
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds))
        _exit(1);
}

/*
 * Makes a worker of a child (returns in it), and keeps the sockets meanwhile; another child when that one is killed.
 * Both the keeper's and a worker's process come here: a worker whose keeper died becomes the keeper.
 */
static void become_keeper(struct holder *h)
{
    uint64_t last = 0;
    for (int quick = 0; quick < 20;) {
        int fds[2];
        new_pair(fds);
        pid_t pid = fork();
        if (pid < 0)
            _exit(1);
        if (pid == 0) {
            close(fds[0]);
            h->twin = fds[1];
            h->since = now_ns();
            h->alone = 0;
            prctl(PR_SET_NAME, "uroce-holder");
            return;
        }
        close(fds[1]);
        h->twin = fds[0];
        prctl(PR_SET_NAME, "uroce-keeper");
        /* The clients' are the child's alone: its death is to be seen by them. */
        for (unsigned i = 0; i < HOLDER_SLOTS; i++) {
            if (h->clients[i].sock >= 0)
                close(h->clients[i].sock);
            free(h->clients[i].queue);
            h->clients[i] = (struct client){.sock = -1};
        }
        watch(h);
        close(h->twin);
        forget_incomplete(h);
        int status = 0;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (WIFEXITED(status))
            _exit(WEXITSTATUS(status));
        uint64_t now = now_ns();
        quick = now - last < NSEC_PER_SEC ? quick + 1 : 0;
        last = now;
    }
    _exit(1); /* it dies at once, again and again */
}

int holder_run(bool system)
{
    static struct holder h;
    struct sockaddr_un name;
    socklen_t len = holder_name(geteuid(), system, &name);
    struct rlimit files;
    h.system = system;
    h.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h.listener < 0)
        return -errno;
    if (bind(h.listener, (struct sockaddr *)&name, len) || listen(h.listener, 128))
        return -errno;
    h.shared = mmap(NULL, sizeof *h.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (h.shared == MAP_FAILED)
        return -errno;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    signal(SIGPIPE, SIG_IGN);
    for (unsigned i = 0; i < HOLDER_SLOTS; i++)
        h.clients[i].sock = -1;
    become_keeper(&h);
    for (;;) {
        if (work_once(&h))
            continue;
        close(h.twin);
        become_keeper(&h); /* the child has our clients, too; we only keep */
    }
}

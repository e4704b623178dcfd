/*
 * The hand-over of memory (fabric/export.h): whom the daemon believes, and what it takes. All in the thread of
 * export.c.
 */
#include "export.h"

#include "base/err.h"
#include "base/rng.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* ---- descriptors that came in ---- */

struct closer {
    struct exports *x;
    int fd;
};

static void *close_it(void *arg)
{
    struct closer c = *(struct closer *)arg;

    free(arg);
    close(c.fd);
    atomic_fetch_sub(&c.x->closers, 1);
    return NULL;
}

/*
 * Closing a foreign descriptor may ask its file system, which may be the client's own and never answer: not in this
 * thread. Once some hang nothing more is taken.
 */
static void close_elsewhere(struct exports *x, int fd)
{
    struct closer *c = malloc(sizeof *c);
    pthread_attr_t a;
    pthread_t t;
    int r = c ? 0 : -ENOMEM;

    if (r == 0) {
        *c = (struct closer){x, fd};
        atomic_fetch_add(&x->closers, 1);
        pthread_attr_init(&a);
        pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
        r = pthread_create(&t, &a, close_it, c);
        pthread_attr_destroy(&a);
    }
    if (r != 0) {
        if (c)
            atomic_fetch_sub(&x->closers, 1);
        free(c);
        log_error("export: no thread to close a descriptor: it stays open");
    }
}

/* A message of exactly `size` bytes, with one descriptor if ret_fd. 0, -EAGAIN, -EBADMSG, -ECONNRESET: the end. */
static int receive(struct exports *x, int fd, void *buf, size_t size, int *ret_fd)
{
    union {
        char room[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } ctl;
    char more[512];
    struct iovec iov[] = {{buf, size}, {more, sizeof more}};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
    int got[4], n = 0;
    ssize_t len;

    if (ret_fd) { /* else descriptors are dropped by the kernel */
        m.msg_control = ctl.room;
        m.msg_controllen = sizeof ctl.room;
    }
    len = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (len < 0)
        return errno == EAGAIN || errno == EINTR ? -EAGAIN : -EBADMSG;
    for (struct cmsghdr *c = ret_fd ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; CMSG_LEN((at + 1) * sizeof(int)) <= c->cmsg_len && n < 4; at++)
            memcpy(&got[n++], CMSG_DATA(c) + at * sizeof(int), sizeof(int));
    }
    if ((size_t)len == size && !(m.msg_flags & MSG_CTRUNC) && n == (ret_fd ? 1 : 0)) {
        if (ret_fd)
            *ret_fd = got[0];
        return 0;
    }
    while (n > 0)
        close_elsewhere(x, got[--n]);
    return len ? -EBADMSG : -ECONNRESET;
}

static int refuse(struct exports *x, enum refusal why, int err)
{
    ctl_refuse(x->srv->ctl, why);
    log_info("export: memory is not taken: %s (%s)", refusal_name(why), err_text(err));
    return err;
}

/* What receive said, for who hands on: nothing yet, or why it is over. */
static int not_received(struct exports *x, int r)
{
    return r == -EAGAIN ? 0 : r == -ECONNRESET ? r : refuse(x, REFUSE_EXPORT_PROOF, r);
}

static void say(int fd, const void *p, size_t n)
{
    if (send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        log_debug("export: a client did not wait for its answer");
}

/* ---- hand-over ---- */

void export_handing_free(struct exports *x, struct handing *h)
{
    list_del(&h->link);
    x->nhanding--;
    if (h->fd >= 0)
        close(h->fd);
    sess_put(h->sess);
    free(h);
}

/* The client has said which session it has; this proves that we know it too. */
static int answer_hello(struct exports *x, struct handing *h)
{
    struct export_answer a = {.uid = put_le32(geteuid())};
    struct export_hello in;
    int r = receive(x, h->fd, &in, sizeof in, NULL);

    if (r < 0)
        return not_received(x, r);
    if (get_le32(in.magic) != EXPORT_MAGIC || get_le32(in.zero))
        return refuse(x, REFUSE_EXPORT_PROOF, -EPROTO);
    h->sess = ctl_session_find(x->srv->ctl, in.session);
    if (!h->sess)
        return -ESTALE;
    memcpy(h->talk.session, in.session, sizeof in.session);
    memcpy(h->talk.client_nonce, in.nonce, sizeof in.nonce);
    rng_secret(h->talk.daemon_nonce, sizeof h->talk.daemon_nonce);
    memcpy(a.nonce, h->talk.daemon_nonce, sizeof a.nonce);
    r = export_mac(sess_data_key(h->sess), true, &h->talk, geteuid(), a.mac);
    if (r == 0)
        say(h->fd, &a, sizeof a);
    return r;
}

/* Room for one more of this tenant, credential and session? A tenant has half, a credential a quarter. lock held. */
static bool has_room(const struct exports *x, const struct sess *s, uint64_t bytes)
{
    const char *who = sess_ident(s)->credential;
    uint64_t all = x->srv->cfg->export_memory, of_one = 0, of_tenant = 0;
    uint32_t n = 0;

    list_for_each (it, &x->all) {
        const struct export *e = list_entry(it, struct export, link);
        if (!strcmp(e->credential, who))
            of_one += e->bytes;
        if (e->tenant == sess_ident(s)->tenant)
            of_tenant += e->bytes;
        n += memcmp(e->session, sess_id(s), sizeof e->session) == 0;
    }
    return x->n < EXPORTS_MAX && n < EXPORTS_OF_ONE && bytes <= all - min_u64(all, x->bytes) &&
           bytes <= all / 4 - min_u64(all / 4, of_one) &&
           (atomic_load(&x->srv->ntenants) == 1 || bytes <= all / 2 - min_u64(all / 2, of_tenant));
}

/* Maps what was checked, and enters it. Takes the connection from h. */
static int enter(struct exports *x, struct handing *h, int fd, uint64_t bytes, uint64_t *ret_id)
{
    struct export *e = calloc(1, sizeof *e);
    void *p;

    if (!e)
        return -ENOMEM;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        free(e);
        return -ENOMEM;
    }
    *e = (struct export){.x = x, .bytes = bytes, .base = p, .fd = h->fd};
    memcpy(e->session, h->talk.session, sizeof e->session);
    snprintf(e->credential, sizeof e->credential, "%s", sess_ident(h->sess)->credential);
    e->tenant = sess_ident(h->sess)->tenant;
    if (pst_store_moves_only(srv_tenant(x->srv, e->tenant)->store) && mem_add(p, bytes, true, &e->region) < 0)
        e->region = NULL;
    pthread_mutex_lock(&x->lock);
    e->id = ++x->last_id;
    x->n++;
    x->bytes += bytes;
    list_push_back(&x->all, &e->link);
    e->ended = !sess_alive(h->sess); /* who ends the session later meets it in the list */
    pthread_mutex_unlock(&x->lock);
    *ret_id = e->id;
    h->fd = -1;
    return 0;
}

static int take_memory(struct exports *x, struct handing *h)
{
    struct export_taken t = {0};
    struct export_give in;
    uint8_t mac[EXPORT_MAC];
    int fd = -1, conn = h->fd, r = receive(x, conn, &in, sizeof in, &fd);
    uint64_t bytes, id = 0;
    bool room;

    if (r < 0)
        return not_received(x, r);
    bytes = get_le64(in.bytes);
    r = export_mac(sess_data_key(h->sess), false, &h->talk, bytes, mac);
    if (r == 0 && !pst_equal_ct(mac, in.mac, sizeof mac))
        r = refuse(x, REFUSE_EXPORT_PROOF, -EACCES);
    if (r == 0) {
        r = bytes < EXPORT_BYTES_MIN || bytes > EXPORT_BYTES_MAX || bytes % EXPORT_BYTES_MIN ||
                    bytes % (uint64_t)sysconf(_SC_PAGESIZE)
                ? -EINVAL
                : export_memory_check(fd, bytes);
        if (r < 0)
            refuse(x, REFUSE_EXPORT_MEMORY, r);
    }
    if (r == 0) {
        pthread_mutex_lock(&x->lock);
        room = has_room(x, h->sess, bytes); /* only this thread enters any */
        pthread_mutex_unlock(&x->lock);
        r = room ? enter(x, h, fd, bytes, &id) : refuse(x, REFUSE_LIMIT, -ENOSPC);
    }
    t.status = put_le32((uint32_t)r);
    t.id = put_le64(id);
    say(conn, &t, sizeof t);
    if (r == 0) /* memory, of the kernel's own file system */
        close(fd);
    else
        close_elsewhere(x, fd);
    if (r == 0)
        log_debug("export %llu: %llu KiB of %s", (unsigned long long)id, (unsigned long long)(bytes / KiB),
                  sess_ident(h->sess)->credential);
    return r < 0 ? r : 1;
}

void export_hand_on(struct exports *x, struct handing *h)
{
    int r = h->sess ? take_memory(x, h) : answer_hello(x, h);

    if (r < 0 && !h->sess) {
        struct export_answer a = {.status = put_le32((uint32_t)r)};
        say(h->fd, &a, sizeof a);
    }
    if (r != 0)
        export_handing_free(x, h);
}

void export_accept(struct exports *x)
{
    int fd = accept4(x->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct handing *h;

    if (fd < 0)
        return;
    h = x->nhanding < HANDING_MAX && atomic_load(&x->closers) < CLOSERS_MAX ? calloc(1, sizeof *h) : NULL;
    if (!h) {
        ctl_refuse(x->srv->ctl, REFUSE_LIMIT);
        close(fd);
        return;
    }
    h->fd = fd;
    h->deadline_ns = now_ns() + HANDING_NS;
    list_push_back(&x->handing, &h->link);
    x->nhanding++;
}

/*
 * Exported memory: clients of this machine hand over memfds (fabric/export.h), requests name bytes in them, and stores
 * work there. One thread does the hand-overs and lets go of what has ended; shards only look up and count.
 *
 * An export ends when its client shuts the connection down or dies, with the session, and when the session's capabilities
 * are revoked. From then on no request finds it. It is unmapped when the last request that uses it is over, and when no
 * queue of a store has it registered any more; then its connection is closed, which tells the client.
 */
#include "data.h"

#include "base/err.h"
#include "base/rng.h"
#include "client/mem.h"
#include "fabric/export.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>

#define EXPORTS_MAX    1024u /* of all sessions */
#define EXPORTS_OF_ONE 128u  /* of a session */
#define HANDING_MAX    32u   /* hand-overs under way */
#define HANDING_NS     (5 * NSEC_PER_SEC)
#define RETRY_MS       10  /* registered memory that a queue has not let go of yet */
#define CLOSERS_MAX    16u

struct export {
    struct list link; /* exports.all */
    struct exports *x;
    uint64_t id, bytes;
    uint8_t session[SESS_ID_BYTES];
    char credential[SESS_NAME_MAX + 1];
    uint32_t tenant;
    uint8_t *base;
    struct mem_region *region; /* NULL: too many regions; stores copy */
    int fd;
    uint32_t uses; /* exports.lock, as is: */
    bool ended;
};

/* A hand-over under way; the thread's own. */
struct handing {
    struct list link;
    int fd;
    uint64_t deadline_ns;
    struct sess *sess; /* counted; NULL before the hello */
    struct export_talk talk;
};

struct exports {
    struct srv *srv;
    char path[EXPORT_PATH_MAX];
    int listen_fd, wake_fd;
    pthread_t thread;
    bool running;
    atomic_bool stop;
    atomic_uint closers;
    struct list handing;
    uint32_t nhanding;

    pthread_mutex_t lock; /* all below, and what the exports have */
    struct list all;
    uint32_t n;
    uint64_t bytes, last_id;
};

/* ---- for shards ---- */

int export_use(struct exports *x, const struct sess *s, const struct dp_seg *seg, struct export **ret, void **ret_at)
{
    if (!x)
        return -ENOENT;
    scoped_lock(&x->lock);
    list_for_each (it, &x->all) {
        struct export *e = list_entry(it, struct export, link);
        if (e->id != seg->key || e->ended || memcmp(e->session, sess_id(s), sizeof e->session) != 0)
            continue;
        if (seg->addr > e->bytes || seg->len > e->bytes - seg->addr)
            return -ERANGE;
        e->uses++;
        *ret = e;
        *ret_at = e->base + seg->addr;
        return 0;
    }
    return -ENOENT;
}

void export_put(struct export *e)
{
    struct exports *x = e->x;
    bool last;

    pthread_mutex_lock(&x->lock);
    last = --e->uses == 0 && e->ended;
    pthread_mutex_unlock(&x->lock); /* e may be gone */
    if (last)
        eventfd_write(x->wake_fd, 1);
}

void exports_end_session(struct exports *x, const uint8_t id[SESS_ID_BYTES])
{
    bool some = false;

    if (!x)
        return;
    pthread_mutex_lock(&x->lock);
    list_for_each (it, &x->all) {
        struct export *e = list_entry(it, struct export, link);
        if (memcmp(e->session, id, sizeof e->session) == 0)
            some = e->ended = true;
    }
    pthread_mutex_unlock(&x->lock);
    if (some)
        eventfd_write(x->wake_fd, 1);
}

void exports_count(struct exports *x, uint32_t *ret_n, uint64_t *ret_bytes)
{
    *ret_n = 0;
    *ret_bytes = 0;
    if (!x)
        return;
    scoped_lock(&x->lock);
    *ret_n = x->n;
    *ret_bytes = x->bytes;
}

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

static void handing_free(struct exports *x, struct handing *h)
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
           (x->srv->ntenants == 1 || bytes <= all / 2 - min_u64(all / 2, of_tenant));
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
    if (pst_store_moves_only(x->srv->tenants[e->tenant].store) && mem_add(p, bytes, true, &e->region) < 0)
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

/* Takes what a connection under way has brought, and ends it when that was the last. */
static void hand_on(struct exports *x, struct handing *h)
{
    int r = h->sess ? take_memory(x, h) : answer_hello(x, h);

    if (r < 0 && !h->sess) {
        struct export_answer a = {.status = put_le32((uint32_t)r)};
        say(h->fd, &a, sizeof a);
    }
    if (r != 0)
        handing_free(x, h);
}

static void accept_one(struct exports *x)
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

/* ---- the end of exports ---- */

/* Nobody uses it: gone, and the client knows. False: a queue has it registered still. */
static bool let_go(struct exports *x, struct export *e)
{
    if (e->region && mem_remove(e->region) < 0)
        return false;
    e->region = NULL;
    munmap(e->base, e->bytes);
    log_debug("export %llu is over", (unsigned long long)e->id);
    pthread_mutex_lock(&x->lock);
    list_del(&e->link);
    x->n--;
    x->bytes -= e->bytes;
    pthread_mutex_unlock(&x->lock);
    close(e->fd);
    free(e);
    return true;
}

/* Lets go of all that can go. False: something is to be tried again soon. */
static bool sweep(struct exports *x)
{
    bool all = true;

    list_for_each_safe (it, &x->all) { /* only this thread changes the list */
        struct export *e = list_entry(it, struct export, link);
        bool over;
        pthread_mutex_lock(&x->lock);
        over = e->ended && !e->uses;
        pthread_mutex_unlock(&x->lock);
        if (over && !let_go(x, e))
            all = false;
    }
    return all;
}

/* ---- the thread ---- */

struct watch {
    struct pollfd p[2 + HANDING_MAX + EXPORTS_MAX];
    struct handing *handing[HANDING_MAX];
    struct export *export[EXPORTS_MAX];
    nfds_t n;
    uint32_t nhanding, nexports;
};

static void fill_watch(struct exports *x, struct watch *w)
{
    w->n = w->nhanding = w->nexports = 0;
    w->p[w->n++] = (struct pollfd){.fd = x->wake_fd, .events = POLLIN};
    w->p[w->n++] = (struct pollfd){.fd = x->listen_fd, .events = POLLIN};
    list_for_each (it, &x->handing) {
        w->handing[w->nhanding] = list_entry(it, struct handing, link);
        w->p[w->n++] = (struct pollfd){.fd = w->handing[w->nhanding++]->fd, .events = POLLIN};
    }
    scoped_lock(&x->lock);
    list_for_each (it, &x->all) {
        struct export *e = list_entry(it, struct export, link);
        if (e->ended)
            continue;
        w->export[w->nexports++] = e;
        w->p[w->n++] = (struct pollfd){.fd = e->fd, .events = POLLIN | POLLRDHUP};
    }
}

static void look(struct exports *x, struct watch *w)
{
    uint64_t now = now_ns();
    eventfd_t v;

    if (w->p[0].revents)
        eventfd_read(x->wake_fd, &v);
    for (uint32_t i = 0; i < w->nhanding; i++) {
        if (w->p[2 + i].revents)
            hand_on(x, w->handing[i]);
        else if (now >= w->handing[i]->deadline_ns)
            handing_free(x, w->handing[i]);
    }
    pthread_mutex_lock(&x->lock);
    for (uint32_t i = 0; i < w->nexports; i++)
        if (w->p[2 + w->nhanding + i].revents)
            w->export[i]->ended = true;
    pthread_mutex_unlock(&x->lock);
    if (w->p[1].revents)
        accept_one(x);
}

static void *run(void *arg)
{
    struct exports *x = arg;
    struct watch *w = calloc(1, sizeof *w);

    while (w && !atomic_load(&x->stop)) {
        bool clean = sweep(x);
        fill_watch(x, w);
        poll(w->p, w->n, !clean ? RETRY_MS : list_empty(&x->handing) ? -1 : 1000);
        look(x, w);
    }
    free(w);
    return NULL;
}

/* ---- start and end ---- */

/* A name in a folder where nobody but us and root can put another thing in its place. */
static int check_folder(const char *path)
{
    char dir[EXPORT_PATH_MAX];
    struct stat st;

    snprintf(dir, sizeof dir, "%s", path);
    *strrchr(dir, '/') = 0;
    if (stat(dir[0] ? dir : "/", &st) < 0)
        return -errno;
    if ((st.st_uid != 0 && st.st_uid != geteuid()) || ((st.st_mode & 022) && !(st.st_mode & S_ISVTX)))
        return -EPERM;
    return 0;
}

/* A socket that a dead daemon left behind goes; anything else stays. */
static int clear_name(const struct sockaddr_un *sa)
{
    cleanup_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct stat st;

    if (lstat(sa->sun_path, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(st.st_mode) || (st.st_uid != geteuid() && geteuid() != 0))
        return -EEXIST;
    if (fd < 0 || connect(fd, (const struct sockaddr *)sa, sizeof *sa) == 0 || errno != ECONNREFUSED)
        return -EADDRINUSE;
    return unlink(sa->sun_path) < 0 ? -errno : 0;
}

static int listen_at(struct exports *x)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int r;

    memcpy(sa.sun_path, x->path, strlen(x->path) + 1);
    r = check_folder(x->path);
    if (r == 0)
        r = clear_name(&sa);
    if (r < 0)
        return r;
    x->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (x->listen_fd < 0)
        return -errno;
    if (bind(x->listen_fd, (struct sockaddr *)&sa, sizeof sa) < 0) {
        r = -errno;
        close(x->listen_fd);
        x->listen_fd = -1;
        return r;
    }
    /* Who may connect is decided by the proofs; the folder may say more. */
    return chmod(x->path, 0666) < 0 || listen(x->listen_fd, 64) < 0 ? -errno : 0;
}

int exports_start(struct srv *srv, struct exports **ret, char *err, size_t err_size)
{
    struct exports *x = calloc(1, sizeof *x);
    int r;

    if (!x)
        return -ENOMEM;
    x->srv = srv;
    x->listen_fd = -1;
    snprintf(x->path, sizeof x->path, "%s", srv->cfg->export_listen);
    list_init(&x->all);
    list_init(&x->handing);
    pthread_mutex_init(&x->lock, NULL);
    x->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = x->wake_fd < 0 ? -errno : listen_at(x);
    if (r == 0)
        r = -pthread_create(&x->thread, NULL, run, x);
    x->running = r == 0;
    if (r < 0) {
        snprintf(err, err_size, "%s (data.export_listen): %s%s", x->path, err_text(r),
                 r == -EPERM ? ": its folder must be root's or the daemon's own, and not for others to write" : "");
        exports_stop(x);
        return r;
    }
    pthread_setname_np(x->thread, "export");
    *ret = x;
    return 0;
}

void exports_stop(struct exports *x)
{
    if (!x)
        return;
    atomic_store(&x->stop, true);
    if (x->running) {
        eventfd_write(x->wake_fd, 1);
        pthread_join(x->thread, NULL);
    }
    list_for_each_safe (it, &x->handing)
        handing_free(x, list_entry(it, struct handing, link));
    list_for_each_safe (it, &x->all) /* shards and queues have stopped: nothing uses them */
        let_go(x, list_entry(it, struct export, link));
    if (x->listen_fd >= 0) {
        unlink(x->path);
        close(x->listen_fd);
    }
    for (int i = 0; atomic_load(&x->closers) && i < 1000; i++)
        usleep(1000);
    if (atomic_load(&x->closers)) /* a foreign file system hangs: the end does not wait for it */
        return;
    if (x->wake_fd >= 0)
        close(x->wake_fd);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

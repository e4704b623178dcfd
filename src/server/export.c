/*
 * Exported memory: clients of this machine hand over memfds (fabric/export.h), requests name bytes in them, and stores
 * work there. One thread does the hand-overs (export_take.c) and lets go of what has ended; shards only look up and
 * count.
 *
 * An export ends when its client shuts the connection down or dies, with the session, and when the session's
 * capabilities are revoked. From then on no request finds it. It is unmapped when the last request that uses it is
 * over, and when no queue of a store has it registered any more; then its connection is closed, which tells the client.
 */
#include "export.h"

#include "base/err.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>

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
            export_hand_on(x, w->handing[i]);
        else if (now >= w->handing[i]->deadline_ns)
            export_handing_free(x, w->handing[i]);
    }
    pthread_mutex_lock(&x->lock);
    for (uint32_t i = 0; i < w->nexports; i++)
        if (w->p[2 + w->nhanding + i].revents)
            w->export[i]->ended = true;
    pthread_mutex_unlock(&x->lock);
    if (w->p[1].revents)
        export_accept(x);
}

static void *run(void *arg)
{
    struct exports *x = arg;
    struct watch *w = x->watch;

    /* There are no sessions yet: who connects waits. */
    while (!atomic_load(&x->stop) && !atomic_load(&x->srv->ready))
        usleep(RETRY_MS * 1000);
    while (!atomic_load(&x->stop)) {
        bool clean = sweep(x);
        fill_watch(x, w);
        poll(w->p, w->n, !clean ? RETRY_MS : list_empty(&x->handing) ? -1 : 1000);
        look(x, w);
    }
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
    x->watch = calloc(1, sizeof *x->watch);
    if (r == 0 && !x->watch)
        r = -ENOMEM;
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
        export_handing_free(x, list_entry(it, struct handing, link));
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
    free(x->watch);
    free(x);
}

/*
 * The threads that serve the kernel's requests. Each reads from a clone of the connection's descriptor (see worker.c)
 * and answers there, since the kernel looks for a request where it was read. A further thread starts when none waits
 * for requests; they stay.
 *
 * libfuse's own loop would copy: here a write's bytes are read into memory of the client's, which is kept as it is for
 * sending, and a read's bytes are answered out of such memory. The head of a request is 80 bytes long for both, so one
 * readv brings the bytes to the start of that memory.
 */
#include "fm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#define HEAD    (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
#define SMALL   (4 * KiB) /* requests up to this are put together where their head is */
#define KICK_MS 20

_Static_assert(HEAD >= sizeof(struct fuse_in_header) + sizeof(struct fuse_read_in), "a read's request is a head");
_Static_assert(FM_IO_MAX <= CL_MEM, "a read and a write of the kernel have room in the client's memory");

struct server {
    struct list link; /* loop.servers */
    struct fm_loop *l;
    pthread_t id;
    int fd; /* a clone; the connection's own where there is none */
    _Atomic bool reading;
    struct cl_mem *mem;
    uint8_t head[SMALL] __attribute__((aligned(8)));
};

struct fm_loop {
    struct fm *m;
    uint32_t max;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list servers;
    uint32_t live;
    _Atomic uint32_t idle; /* that wait for a request, or are about to */
    bool ending;
    int err; /* the first */
};

static _Thread_local int answer_fd = -1;
static _Thread_local struct server *self;
static _Thread_local uint32_t init_flags; /* of the answer that libfuse is about to give */

int fm_answer_fd(void)
{
    return answer_fd;
}

int fm_answer_to(int fd)
{
    int was = answer_fd;

    answer_fd = fd;
    return was;
}

struct cl_mem **fm_mem(void)
{
    return self ? &self->mem : NULL;
}

bool fm_kills_setid(const struct fm *m)
{
    const struct fuse_in_header *in = (const struct fuse_in_header *)self->head;

    if (!m->told_setid)
        return true;
    if (in->opcode == FUSE_WRITE)
        return ((const struct fuse_write_in *)(in + 1))->write_flags & FUSE_WRITE_KILL_SUIDGID;
    return ((const struct fuse_setattr_in *)(in + 1))->valid & FATTR_KILL_SUIDGID;
}

/* ---- what libfuse calls ---- */

static ssize_t io_writev(int fd, struct iovec *iov, int count, void *user)
{
    (void)user;
    if (init_flags && count > 1 && iov[1].iov_len >= offsetof(struct fuse_init_out, max_background))
        ((struct fuse_init_out *)iov[1].iov_base)->flags |= init_flags;
    return writev(answer_fd >= 0 ? answer_fd : fd, iov, count);
}

static ssize_t io_read(int fd, void *buf, size_t len, void *user)
{
    (void)user;
    return read(fd, buf, len);
}

int fm_loop_io(struct fuse_session *se)
{
    static const struct fuse_custom_io io = {.writev = io_writev, .read = io_read};

    return fuse_session_custom_io(se, &io, fuse_session_fd(se));
}

void fm_loop_init(struct fm *m, const struct fuse_buf *init)
{
    const struct fuse_init_in *in = (const struct fuse_init_in *)((const struct fuse_in_header *)init->mem + 1);
    size_t least = sizeof(struct fuse_in_header) + offsetof(struct fuse_init_in, flags) + sizeof(in->flags);

    m->told_setid = init->size >= least && in->flags & FUSE_HANDLE_KILLPRIV_V2;
    init_flags = m->told_setid ? FUSE_HANDLE_KILLPRIV_V2 : 0;
    fuse_session_process_buf(m->se, init);
    init_flags = 0;
}

/* ---- one thread ---- */

/* Bytes of a request, or 0: there are no more; -errno. Those behind the head are in mem. */
static ssize_t receive(struct server *s)
{
    struct iovec iov[2] = {{s->head, HEAD}, {s->mem->data, s->mem->size}};
    struct fuse_session *se = s->l->m->se;
    ssize_t n = -1;
    int err = 0;

    do {
        s->reading = true;
        if (!fuse_session_exited(se)) {
            n = readv(s->fd, iov, 2);
            err = n < 0 ? errno : 0;
        }
        s->reading = false;
        if (fuse_session_exited(se))
            return 0;
    } while (err == EINTR || err == EAGAIN || err == ENOENT); /* ENOENT: it was interrupted before it was read */
    if (err == ENODEV) /* unmounted */
        return 0;
    if (err)
        return -err;
    return n < (ssize_t)sizeof(struct fuse_in_header) ? -EIO : n;
}

/* A request that is no write, in one piece. */
static void process_whole(struct server *s, size_t n)
{
    struct fuse_session *se = s->l->m->se;
    struct fuse_buf buf = {.size = n, .mem = s->head};
    cleanup_free uint8_t *large = NULL;

    if (n > sizeof(s->head)) { /* a long list of attributes, or of nodes to forget */
        while (!(large = malloc(n)))
            usleep(KICK_MS * 1000);
        memcpy(large, s->head, HEAD);
        buf.mem = large;
    }
    if (n > HEAD)
        memcpy((uint8_t *)buf.mem + HEAD, s->mem->data, n - HEAD);
    fuse_session_process_buf(se, &buf);
}

/* op_write takes the bytes from fm_mem(). */
static void process(struct server *s, size_t n)
{
    const struct fuse_in_header *in = (const struct fuse_in_header *)s->head;
    const struct fuse_write_in *w = (const struct fuse_write_in *)(in + 1);
    struct fuse_buf buf = {.size = n, .mem = s->head};

    if (in->opcode != FUSE_WRITE)
        process_whole(s, n);
    else if (n < HEAD || w->size != n - HEAD)
        fm_loop_stop(s->l, -EPROTO);
    else
        fuse_session_process_buf(s->l->m->se, &buf);
}

static int server_start(struct fm_loop *l);

static void *server_main(void *user)
{
    struct server *s = user;
    struct fm_loop *l = s->l;
    ssize_t n;

    self = s;
    answer_fd = s->fd;
    while ((n = receive(s)) > 0) {
        if (atomic_fetch_sub(&l->idle, 1) == 1)
            server_start(l); /* refused: those that are there go on */
        process(s, (size_t)n);
        atomic_fetch_add(&l->idle, 1);
    }
    fm_loop_stop(l, (int)n);
    return NULL;
}

static int clone_of(int master)
{
    uint32_t src = (uint32_t)master;
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    if (fd >= 0 && ioctl(fd, FUSE_DEV_IOC_CLONE, &src)) {
        close(fd);
        fd = -1;
    }
    if (fd < 0)
        log_warn("a descriptor of the FUSE connection could not be cloned (%s): requests under way will hang if this "
                 "process is killed", strerror(errno));
    return fd >= 0 ? fd : master;
}

static void server_free(struct server *s)
{
    int master = fuse_session_fd(s->l->m->se);

    if (s->mem)
        cl_mem_put(s->l->m->cl, s->mem);
    if (s->fd != master)
        close(s->fd);
    free(s);
}

static int server_start(struct fm_loop *l)
{
    struct server *s;
    int r = 0;

    scoped_lock(&l->lock);
    if (l->ending || l->live >= l->max)
        return 0;
    s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->l = l;
    s->fd = clone_of(fuse_session_fd(l->m->se));
    s->mem = cl_mem_get(l->m->cl);
    atomic_fetch_add(&l->idle, 1);
    r = s->mem ? -pthread_create(&s->id, NULL, server_main, s) : -ENOMEM;
    if (r) {
        atomic_fetch_sub(&l->idle, 1);
        server_free(s);
        return r;
    }
    list_push_back(&l->servers, &s->link);
    l->live++;
    return 0;
}

/* ---- all of them ---- */

struct fm_loop *fm_loop_new(struct fm *m, uint32_t max_threads)
{
    struct fm_loop *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    l->m = m;
    l->max = max_threads;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    list_init(&l->servers);
    return l;
}

void fm_loop_free(struct fm_loop *l)
{
    if (!l)
        return;
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    free(l);
}

void fm_loop_stop(struct fm_loop *l, int err)
{
    scoped_lock(&l->lock);
    l->ending = true;
    l->err = l->err ? l->err : err;
    fuse_session_exit(l->m->se);
    pthread_cond_broadcast(&l->changed);
}

/* Wakes out of its read, which may begin just after the signal: so again, until it is out. */
static void join(struct server *s)
{
    struct timespec until;

    for (;;) {
        if (s->reading)
            pthread_kill(s->id, SIGUSR1);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += KICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (!pthread_timedjoin_np(s->id, NULL, &until))
            return;
    }
}

int fm_loop_run(struct fm_loop *l)
{
    int r = server_start(l);
    struct list *link;

    if (r)
        return r;
    pthread_mutex_lock(&l->lock);
    while (!l->ending)
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
    /* No thread is added any more. Until all have ended, one may answer what another has read, on its descriptor. */
    list_for_each (it, &l->servers)
        join(list_entry(it, struct server, link));
    while ((link = list_pop_front(&l->servers)))
        server_free(list_entry(link, struct server, link));
    return l->err;
}

/*
 * One serving process: connects, mounts (or takes over a mount whose process died), serves.
 *
 * Taking over: the kernel keeps a FUSE connection as long as someone holds its descriptor, and does not start it anew.
 * So the first process's FUSE_INIT request is shown to libfuse again under a number that no request has: libfuse comes
 * to the same state, and the kernel drops the answer (ENOENT). Each thread reads from a clone of the descriptor
 * (loop.c), so that requests which a dead process had taken end with its clones (ECONNABORTED) and hang nobody.
 */
#include "fm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>

#define READAHEAD_KIB 1024

struct worker {
    const struct fm_config *cfg;
    struct fm m;
    struct fm_loop *loop;
    pthread_t signals;
    char dev[32]; /* of our mount, in the kernel's table; "" until known */
    _Atomic bool done; /* the loop has ended */
};

/* ---- session ---- */

static void op_init(void *user, struct fuse_conn_info *conn)
{
    const struct fm *m = user;

    conn->max_write = FM_IO_MAX;
    conn->max_readahead = FM_IO_MAX;
    conn->max_background = 64; /* read-ahead and asynchronous direct I/O on the way at once */
    conn->congestion_threshold = 48;
    conn->time_gran = 1;
    /* Data comes from and goes to our buffers: a pipe in between costs a copy. */
    conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
    /* Set-id bits go in the store: the kernel, which may not know of them, does not take them away by a setattr. */
    conn->want |= conn->capable & FUSE_CAP_HANDLE_KILLPRIV;
    conn->want &= ~(unsigned)FUSE_CAP_WRITEBACK_CACHE;
    conn->want |= conn->capable & FUSE_CAP_CACHE_SYMLINKS; /* a link's target never changes */
    if (m->exclusive) { /* all changes go through this kernel: a new mtime is no reason to drop pages */
        conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
        conn->want |= conn->capable & FUSE_CAP_EXPLICIT_INVAL_DATA;
    }
}

static int ctx_init(struct worker *w)
{
    const struct fuse_mount_opts *o = &w->cfg->opts;
    struct fm *m = &w->m;

    m->attr_timeout = o->attr_timeout;
    m->entry_timeout = o->entry_timeout;
    m->attr_ttl_ns = (uint64_t)(o->attr_timeout * (double)NSEC_PER_SEC);
    m->durable_close = !o->durability_fsync;
    m->exclusive = !strncmp(w->cfg->url, "local:", 6);
    m->cont = cl_cont(m->cl);
    m->nodes = fm_nodes_new(m->exclusive);
    m->files = fm_files_new(w->cfg->epoch);
    m->locks = m->exclusive ? NULL : lk_new();
    w->loop = fm_loop_new(m, o->max_threads);
    return w->loop && m->nodes && m->files && (m->exclusive || m->locks) ? 0 : -ENOMEM;
}

static void ctx_done(struct worker *w)
{
    fm_nodes_free(w->m.nodes);
    fm_files_free(w->m.files);
    lk_free(w->m.locks);
    fm_loop_free(w->loop);
}

/* Room for the option string. */
#define ARG_MAX_LEN 2048

static struct fuse_session *session_new(struct worker *w)
{
    const struct fuse_mount_opts *o = &w->cfg->opts;
    struct fuse_lowlevel_ops ops = {.init = op_init};
    char arg[ARG_MAX_LEN], name[256], *out = name;
    char *argv[] = {(char *)"penstock", (char *)"-o", arg};
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    struct fuse_session *se;

    fm_ops_name(&ops);
    fm_ops_attr(&ops);
    fm_ops_file(&ops);
    fm_ops_dir(&ops);
    if (w->m.locks)
        fm_ops_lock(&ops);
    /* The source in the mount table; a comma would end the option. */
    for (const char *u = w->cfg->url; *u && out < name + sizeof(name) - 2; u++) {
        if (*u == ',' || *u == '\\')
            *out++ = '\\';
        *out++ = *u;
    }
    *out = '\0';
    snprintf(arg, sizeof(arg), "default_permissions,subtype=penstock,fsname=%s%s%s%s%s", name,
             o->allow_other ? ",allow_other" : "", o->read_only ? ",ro" : "", o->mount_options ? "," : "",
             o->mount_options ? o->mount_options : "");
    se = fuse_session_new(&args, &ops, sizeof(ops), &w->m);
    fuse_opt_free_args(&args); /* fuse_session_new made it a copy */
    return se;
}

/* The first request of a new connection. Kept in ret for a successor. */
static int init_serve(struct fm *m, struct fm_report *ret)
{
    struct fuse_buf buf = {.mem = NULL};
    int n = fuse_session_receive_buf(m->se, &buf);
    cleanup_free void *mem = buf.mem;
    const struct fuse_in_header *in = mem;

    if (n <= 0)
        return n ? n : -ENODEV;
    if (n < (int)sizeof(*in) || n > FM_INIT_MAX || in->opcode != FUSE_INIT)
        return -EPROTO;
    memcpy(ret->init, mem, (size_t)n);
    ret->init_len = (uint32_t)n;
    buf.size = (size_t)n;
    fm_loop_init(m, &buf);
    return fuse_session_exited(m->se) ? -EPROTO : 0;
}

static int init_replay(struct fm *m, const struct fm_report *from)
{
    uint8_t copy[FM_INIT_MAX] __attribute__((aligned(8)));
    struct fuse_buf buf = {.mem = copy, .size = from->init_len};

    memcpy(copy, from->init, from->init_len);
    ((struct fuse_in_header *)copy)->unique = UINT64_MAX - 1; /* even: an odd one is an interruption's */
    fm_loop_init(m, &buf);
    return fuse_session_exited(m->se) ? -EPROTO : 0;
}

/* ---- signals ---- */

/* Wakes a thread out of its read. */
static void kicked(int sig)
{
    (void)sig;
}

/* A first SIGTERM unmounts in order, in a thread of its own so that a second one can cut it short. */
static void *stopper(void *user)
{
    struct worker *w = user;
    int r = fm_mnt_umount(w->cfg->dir, w->dev, true, true);

    if (r)
        log_warn("%s: could not be unmounted: %s", w->cfg->dir, strerror(-r));
    fm_loop_stop(w->loop, 0);
    return NULL;
}

static void *signal_main(void *user)
{
    struct worker *w = user;
    pthread_t stop;
    bool stopping = false;
    sigset_t set;
    int sig;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR2); /* the loop has ended by itself */
    while (!w->done) {
        if (sigwait(&set, &sig) || sig == SIGUSR2)
            continue;
        if (!stopping) {
            stopping = !pthread_create(&stop, NULL, stopper, w);
            continue;
        }
        log_warn("%s: stopped a second time: unmounting without waiting", w->cfg->dir);
        fm_mnt_umount(w->cfg->dir, w->dev, false, true);
        fm_loop_stop(w->loop, 0);
    }
    if (stopping)
        pthread_join(stop, NULL);
    return NULL;
}

/* ---- life ---- */

static int fail(int sock, int r, const char *text)
{
    struct fm_report rep = {.kind = FM_FAILED, .code = r};

    if (sock < 0)
        log_error("%s", text);
    else
        log_debug("%s", text);
    snprintf(rep.text, sizeof(rep.text), "%s", text);
    if (sock >= 0)
        fm_report_send(sock, &rep, -1);
    return FM_EXIT_FAILED;
}

/* What fuse_session_new and _mount say goes to the log; the last line also to whoever waits. */
static char fuse_said[256];

static void fuse_log_line(enum fuse_log_level level, const char *fmt, va_list ap)
{
    char line[256];
    size_t n;

    vsnprintf(line, sizeof(line), fmt, ap);
    n = strcspn(line, "\n");
    line[n] = '\0';
    snprintf(fuse_said, sizeof(fuse_said), "%s", line);
    log_at(level <= FUSE_LOG_ERR ? LOG_LVL_WARN : LOG_LVL_DEBUG, "%s", line);
}

static int attach(struct worker *w, int sock, int fuse_fd, const struct fm_report *init)
{
    struct fm_report rep = {.kind = FM_READY};
    char text[600], devfd[32];
    int r;

    w->m.se = session_new(w);
    if (!w->m.se) {
        snprintf(text, sizeof(text), "mount options refused: %s", fuse_said);
        return fail(sock, -EINVAL, text);
    }
    snprintf(devfd, sizeof(devfd), "/dev/fd/%d", fuse_fd);
    if (fuse_session_mount(w->m.se, fuse_fd >= 0 ? devfd : w->cfg->dir) || fm_loop_io(w->m.se)) {
        snprintf(text, sizeof(text), "cannot mount on %s: %s", w->cfg->dir, fuse_said[0] ? fuse_said : "see the log");
        return fail(sock, -EIO, text);
    }
    r = init ? init_replay(&w->m, init) : init_serve(&w->m, &rep);
    if (r) {
        snprintf(text, sizeof(text), "%s: the kernel's FUSE connection could not be set up: %s", w->cfg->dir,
                 strerror(-r));
        fuse_session_unmount(w->m.se);
        return fail(sock, r, text);
    }
    if (fm_mnt_find(w->cfg->dir, w->dev))
        w->dev[0] = '\0';
    else if (!init)
        fm_mnt_readahead(w->dev, READAHEAD_KIB);
    if (init)
        rep = *init;
    if (sock >= 0)
        fm_report_send(sock, &rep, fuse_session_fd(w->m.se));
    return 0;
}

/* The mount is gone: whatever is open still is flushed. The first error. */
static int close_all(struct fm *m)
{
    struct fm_file *file;
    int r = 0, e;

    while ((file = fm_files_drain(m->files))) {
        e = fm_file_close(m, file);
        r = r ? r : e;
    }
    return r;
}

static int serve(struct worker *w)
{
    struct sigaction sa = {.sa_handler = kicked}; /* no SA_RESTART */
    sigset_t set;
    int r;

    sigaction(SIGUSR1, &sa, NULL);
    if (pthread_create(&w->signals, NULL, signal_main, w))
        return -EAGAIN;
    /* For the loop's threads, which inherit the mask, and get it from the loop only. */
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    r = fm_loop_run(w->loop);
    w->done = true;
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_kill(w->signals, SIGUSR2);
    pthread_join(w->signals, NULL);
    return r;
}

static int finish(struct worker *w, int served)
{
    int r = close_all(&w->m), e;

    e = cl_disconnect(w->m.cl);
    r = r ? r : e;
    if (r)
        log_error("%s: written data could not be stored at the unmount: %s", w->cfg->dir, strerror(-r));
    else if (served < 0)
        log_error("%s: the kernel's FUSE connection failed: %s", w->cfg->dir, strerror(-served));
    return r || served < 0 ? FM_EXIT_DIRTY : 0;
}

int fm_worker(const struct fm_config *cfg, int sock, int fuse_fd, const struct fm_report *init)
{
    struct worker w = {.cfg = cfg};
    struct cl_options co = cfg->opts.client;
    char err[400] = "", text[600];
    int r;

    fuse_set_log_func(fuse_log_line);
    co.purpose = "mount";
    co.durable_close = !cfg->opts.durability_fsync;
    r = cl_connect(cfg->url, &co, &w.m.cl, err, sizeof(err));
    if (r) {
        snprintf(text, sizeof(text), "%s: %s", cfg->url, err[0] ? err : strerror(-r));
        fail(sock, r, text);
        return FM_EXIT_CONNECT;
    }
    r = ctx_init(&w);
    if (r) {
        fail(sock, r, "no memory for the mount");
        cl_disconnect(w.m.cl);
        return FM_EXIT_FAILED;
    }
    r = attach(&w, sock, fuse_fd, init);
    if (!r)
        r = finish(&w, serve(&w));
    else
        cl_disconnect(w.m.cl);
    if (w.m.se) {
        fuse_session_unmount(w.m.se);
        fuse_session_destroy(w.m.se);
    }
    ctx_done(&w);
    return r;
}

#include "control/audit.h"

#include "base/log.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES (256u << 10) /* about a thousand lines wait to be written */
#define LINE_MAX_    1024u
#define PATH_BYTES   4096u
#define GATHER_NS    (10 * NSEC_PER_MSEC) /* lines that come within this time are written at once */

struct audit {
    char *path;
    uint64_t max_bytes;
    unsigned keep;
    /* the thread's */
    int fd;
    uint64_t size;
    char *out;
    uint64_t told; /* of counts.lost, in the log itself */

    pthread_t thread;
    pthread_mutex_t mu; /* guards the rest */
    pthread_cond_t wake;
    char *in;
    size_t len;
    uint64_t waiting; /* lines in it */
    bool stop, reopen;
    struct audit_counts counts;
};

/* ---- lines ---- */

struct line {
    char text[LINE_MAX_];
    size_t len;
};

static void add(struct line *l, const char *s, size_t n)
{
    n = min_u64(n, sizeof l->text - 4 - l->len); /* room for the end */
    memcpy(l->text + l->len, s, n);
    l->len += n;
}

/* As JSON; what is not ASCII text becomes '?'. A value is cut where it would fill the line. */
static void add_field(struct line *l, const char *key, const char *value)
{
    if (!value || !*value || l->len + strlen(key) + 16 > sizeof l->text)
        return;
    add(l, ",\"", l->len > 1 ? 2 : 0);
    if (l->len == 1)
        add(l, "\"", 1);
    add(l, key, strlen(key));
    add(l, "\":\"", 3);
    for (const char *p = value; *p && l->len + 8 < sizeof l->text; p++) {
        char c = *p >= 0x20 && *p < 0x7f ? *p : '?';
        if (c == '"' || c == '\\')
            add(l, "\\", 1);
        add(l, &c, 1);
    }
    add(l, "\"", 1);
}

static void make_line(struct line *l, const struct audit_event *e)
{
    struct timespec t;
    struct tm tm;
    char day[24], stamp[40], request[20];

    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(stamp, sizeof stamp, "%s.%06ldZ", day, t.tv_nsec / 1000);
    l->len = 0;
    add(l, "{", 1);
    add_field(l, "time", stamp);
    add_field(l, "event", e->event);
    add_field(l, "tenant", e->tenant);
    add_field(l, "credential", e->credential);
    add_field(l, "peer", e->peer);
    add_field(l, "what", e->what);
    add_field(l, "error", e->error);
    snprintf(request, sizeof request, e->request ? "%llx" : "", (unsigned long long)e->request);
    add_field(l, "request", request);
    memcpy(l->text + l->len, "}\n", 2);
    l->len += 2;
}

/* Needs mu. Not waited on for more. */
static bool is_full(const struct audit *a)
{
    return a->len >= BUFFER_BYTES / 2;
}

void audit_put(struct audit *a, const struct audit_event *e)
{
    struct line l;

    if (!a)
        return;
    make_line(&l, e);
    pthread_mutex_lock(&a->mu);
    if (a->len + l.len > BUFFER_BYTES) {
        a->counts.lost++;
    } else {
        bool was_empty = !a->len, was_full = is_full(a);
        memcpy(a->in + a->len, l.text, l.len);
        a->len += l.len;
        a->waiting++;
        if (was_empty || (is_full(a) && !was_full))
            pthread_cond_signal(&a->wake);
    }
    pthread_mutex_unlock(&a->mu);
}

/* ---- the file ---- */

static int open_file(struct audit *a)
{
    struct stat st;
    int fd = open(a->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return -EINVAL;
    }
    if (a->fd >= 0)
        close(a->fd);
    a->fd = fd;
    a->size = (uint64_t)st.st_size;
    return 0;
}

static void rotate(struct audit *a)
{
    char from[PATH_BYTES + 16], to[PATH_BYTES + 16];

    for (unsigned i = a->keep; i > 0; i--) {
        snprintf(to, sizeof to, "%s.%u", a->path, i);
        if (i > 1)
            snprintf(from, sizeof from, "%s.%u", a->path, i - 1);
        else
            snprintf(from, sizeof from, "%s", a->path);
        rename(from, to); /* what is not there need not move */
    }
    if (a->keep == 0)
        unlink(a->path);
    open_file(a); /* on a failure the old one is written on */
}

/* All or nothing of these bytes: a line is never cut. */
static bool write_all(struct audit *a, const char *p, size_t n)
{
    size_t done = 0;

    if (a->fd < 0 && open_file(a) < 0)
        return false;
    if (a->size && a->size + n > a->max_bytes)
        rotate(a);
    while (done < n) {
        ssize_t k = write(a->fd, p + done, n - done);
        if (k <= 0) {
            if (k < 0 && errno == EINTR)
                continue;
            if (ftruncate(a->fd, (off_t)a->size) < 0) {
                close(a->fd); /* the next line begins where it can */
                a->fd = -1;
            }
            return false;
        }
        done += (size_t)k;
    }
    a->size += n;
    return true;
}

/* Says how many lines are missing, before the next one. */
static bool tell_lost(struct audit *a, uint64_t lost)
{
    struct line l;
    char n[32];

    if (lost == a->told)
        return true;
    snprintf(n, sizeof n, "%llu", (unsigned long long)(lost - a->told));
    make_line(&l, &(struct audit_event){.event = "lines_lost", .what = n});
    if (!write_all(a, l.text, l.len))
        return false;
    a->told = lost;
    return true;
}

/* Needs mu. There is something to do; lines that have just begun to come are joined by those that follow. */
static void wait_for_work(struct audit *a)
{
    uint64_t until;
    struct timespec t;

    while (!a->len && !a->stop && !a->reopen)
        pthread_cond_wait(&a->wake, &a->mu);
    until = now_ns() + GATHER_NS;
    t = (struct timespec){(time_t)(until / NSEC_PER_SEC), (long)(until % NSEC_PER_SEC)};
    while (!is_full(a) && !a->stop && !a->reopen)
        if (pthread_cond_timedwait(&a->wake, &a->mu, &t) == ETIMEDOUT)
            break;
}

static void *run(void *arg)
{
    struct audit *a = arg;
    bool full = false;

    pthread_setname_np(pthread_self(), "pst-audit");
    pthread_mutex_lock(&a->mu);
    for (;;) {
        size_t n;
        uint64_t lines, lost;
        bool ok, reopen;
        char *p;
        wait_for_work(a);
        if (!a->len && a->stop)
            break;
        p = a->in;
        a->in = a->out;
        a->out = p;
        n = a->len;
        lines = a->waiting;
        lost = a->counts.lost;
        reopen = a->reopen;
        a->len = 0;
        a->waiting = 0;
        a->reopen = false;
        pthread_mutex_unlock(&a->mu);
        if (reopen && open_file(a) < 0)
            log_warn("audit log %s cannot be opened anew: the old one is written on", a->path);
        ok = !n || (tell_lost(a, lost) && write_all(a, a->out, n));
        if (!ok && !full)
            log_error("audit log %s cannot be written: %s; events are lost, and counted", a->path, strerror(errno));
        full = !ok;
        pthread_mutex_lock(&a->mu);
        if (ok)
            a->counts.lines += lines;
        else
            a->counts.lost += lines;
    }
    pthread_mutex_unlock(&a->mu);
    return NULL;
}

static void destroy(struct audit *a)
{
    if (a->fd >= 0)
        close(a->fd);
    pthread_mutex_destroy(&a->mu);
    pthread_cond_destroy(&a->wake);
    free(a->in);
    free(a->out);
    free(a->path);
    free(a);
}

int audit_open(const char *path, uint64_t max_bytes, unsigned keep, struct audit **ret)
{
    struct audit *a = calloc(1, sizeof *a);
    pthread_condattr_t attr;
    int r;

    if (!a)
        return -ENOMEM;
    a->fd = -1;
    a->max_bytes = max_bytes;
    a->keep = keep;
    pthread_mutex_init(&a->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&a->wake, &attr);
    pthread_condattr_destroy(&attr);
    a->path = strlen(path) < PATH_BYTES ? strdup(path) : NULL;
    a->in = malloc(BUFFER_BYTES);
    a->out = malloc(BUFFER_BYTES);
    r = a->path && a->in && a->out ? open_file(a) : -ENOMEM;
    if (r == 0)
        r = -pthread_create(&a->thread, NULL, run, a);
    if (r < 0) {
        destroy(a);
        return r;
    }
    *ret = a;
    return 0;
}

void audit_reopen(struct audit *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->mu);
    a->reopen = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->mu);
}

void audit_close(struct audit *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->mu);
    a->stop = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->mu);
    pthread_join(a->thread, NULL);
    destroy(a);
}

struct audit_counts audit_counts(struct audit *a)
{
    struct audit_counts c;

    pthread_mutex_lock(&a->mu);
    c = a->counts;
    pthread_mutex_unlock(&a->mu);
    return c;
}

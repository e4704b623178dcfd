/* Offline check: every entry of the index, the space map, then what namespace and data path know. */
#include "parts.h"

#include "base/err.h"
#include "local/local_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>

struct check {
    const struct pst_check_opts *opts;
    int64_t problems;
    int to_parent; /* pipe of the forked child; -1: called in place */
};

/* ---- from the child to its parent: a letter, a length, bytes ---- */

/* A parent that is gone ends the child (SIGPIPE). */
static void tell(int fd, char kind, const void *p, size_t n)
{
    uint32_t len = (uint32_t)n;
    struct iovec iov[3] = {{&kind, 1}, {&len, sizeof len}, {(void *)(uintptr_t)p, n}};
    /* Messages are below PIPE_BUF, hence whole. */
    if (writev(fd, iov, 3) < 0)
        _exit(1);
}

static bool read_all(int fd, void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = read(fd, (char *)p + at, n - at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        at += (size_t)r;
    }
    return true;
}

/* ---- the check ---- */

void check_problem(struct check *c, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    c->problems++;
    if (c->to_parent >= 0)
        tell(c->to_parent, 'P', line, strlen(line));
    else if (c->opts->report)
        c->opts->report(c->opts->user, line);
}

bool check_repairs(const struct check *c)
{
    return c->opts->repair;
}

static int check_index(struct engine *e, struct check *c)
{
    struct key all = {.len = 0};
    struct idx_iter *it = idx_iter_new(e, NULL, &all, NULL);
    int r;
    if (!it)
        return -ENOMEM;
    while ((r = idx_iter_next(it))) {
        char text[200];
        size_t len;
        if (r == 1)
            continue;
        if (!idx_iter_key(it, &len)) {
            check_problem(c, "index: a table file cannot be read: entries behind that place are lost");
            break;
        }
        key_text(idx_iter_key(it, &len), len, text, sizeof text);
        check_problem(c, "index: entry \"%s\" is damaged", text);
    }
    idx_iter_free(it);
    return 0;
}

static int64_t run(const char *dir, struct check *c, const struct errmsg *m)
{
    struct eng_opts o;
    struct engine *e = NULL;
    int r;
    eng_default_opts(&o);
    o.bare = true;
    o.check_to = c;
    o.check_data = c->opts->data;
    o.rebuild_index = c->opts->rebuild_index;
    r = eng_open(dir, &o, &e, m);
    if (r)
        return r;
    r = check_index(e, c);
    if (!r)
        r = ns_check(e, c);
    if (!r)
        r = data_check(e, c);
    eng_close(e);
    if (r)
        return fail(m, r, "%s: the check did not get to its end: %s", dir, err_text(r));
    return c->problems;
}

/* What the child says until its end; true when it said how it ended. */
static bool listen_to(int fd, struct check *c, int64_t *ret, const struct errmsg *m)
{
    char kind, text[1024];
    uint32_t len;
    while (read_all(fd, &kind, 1) && read_all(fd, &len, sizeof len) && len < sizeof text && read_all(fd, text, len)) {
        text[len] = 0;
        if (kind == 'P') {
            c->problems++;
            if (c->opts->report)
                c->opts->report(c->opts->user, text);
        } else if (len >= sizeof *ret) {
            memcpy(ret, text, sizeof *ret);
            if (m->size)
                snprintf(m->p, m->size, "%s", text + sizeof *ret);
            return true;
        }
    }
    return false;
}

static void child(const char *dir, struct check *c)
{
    char end[sizeof(int64_t) + 512] = {0};
    struct errmsg m = {end + sizeof(int64_t), sizeof end - sizeof(int64_t)};
    int64_t r = run(dir, c, &m);
    memcpy(end, &r, sizeof r);
    tell(c->to_parent, 'R', end, sizeof r + strlen(m.p));
    _exit(0);
}

/* The index library reads damaged files here: if it dies of one, that is a finding and the caller lives on. */
static int64_t run_apart(const char *dir, struct check *c, const struct errmsg *m)
{
    int fd[2], status = 0;
    int64_t r = 0;
    if (pipe2(fd, O_CLOEXEC))
        return fail(m, -errno, "pipe: %s", err_text(errno));
    pid_t pid = fork();
    if (pid < 0) {
        r = fail(m, -errno, "fork: %s", err_text(errno));
        close(fd[0]);
        close(fd[1]);
        return r;
    }
    if (!pid) {
        close(fd[0]);
        c->to_parent = fd[1];
        child(dir, c);
    }
    close(fd[1]);
    bool ended = listen_to(fd[0], c, &r, m);
    close(fd[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (ended)
        return r;
    if (WIFSIGNALED(status))
        check_problem(c, "index: the check died of signal %d (%s) on what the store holds", WTERMSIG(status),
                      strsignal(WTERMSIG(status)));
    else
        check_problem(c, "index: the check ended early on what the store holds");
    return c->problems;
}

int64_t pst_local_check(const char *dir, const struct pst_check_opts *opts, char *err, size_t err_size)
{
    struct errmsg m = {err, err_size};
    struct check c = {.opts = opts, .to_parent = -1};
    /* Threads of the index library do not come along into a child. */
    return index_was_used() ? run(dir, &c, &m) : run_apart(dir, &c, &m);
}

int pst_local_upgrade(const char *dir, char *err, size_t err_size)
{
    struct errmsg m = {err, err_size};
    struct eng_opts o;
    struct engine *e = NULL;
    int r;
    eng_default_opts(&o);
    o.readonly = true;
    r = eng_open(dir, &o, &e, &m);
    if (r == -EROFS)
        return 0; /* of this layout, and not stopped cleanly: nothing that an upgrade would change */
    if (!r)
        eng_close(e);
    return r;
}

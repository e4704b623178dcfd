/* Offline check: every entry of the index, the space map, then what namespace and data path know. */
#include "parts.h"

#include "base/err.h"
#include "local/local_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

struct check {
    const struct pst_check_opts *opts;
    int64_t problems;
    int to_parent; /* pipe of the forked child; -1: called in place */
};

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
        apart_tell(c->to_parent, 'P', line, strlen(line));
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

/* ---- in a child ---- */

struct apart {
    const char *dir;
    struct check *c;
    const struct errmsg *m;
    int64_t result;
};

static void work(int fd, void *user)
{
    struct apart *a = user;
    char end[sizeof(int64_t) + 512] = {0};
    struct errmsg m = {end + sizeof(int64_t), sizeof end - sizeof(int64_t)};
    int64_t r;
    a->c->to_parent = fd;
    r = run(a->dir, a->c, &m);
    memcpy(end, &r, sizeof r);
    apart_tell(fd, 'R', end, sizeof r + strlen(m.p));
}

static bool take(void *user, char kind, const char *text, uint32_t len)
{
    struct apart *a = user;
    if (kind == 'P') {
        a->c->problems++;
        if (a->c->opts->report)
            a->c->opts->report(a->c->opts->user, text);
        return false;
    }
    if (len < sizeof a->result)
        return false;
    memcpy(&a->result, text, sizeof a->result);
    if (a->m->size)
        snprintf(a->m->p, a->m->size, "%s", text + sizeof a->result);
    return true;
}

/* If the index library dies of a damaged file, that is a finding and the caller lives on. */
static int64_t run_apart(const char *dir, struct check *c, const struct errmsg *m)
{
    struct apart a = {.dir = dir, .c = c, .m = m};
    char line[512] = "";
    int status = 0, r = apart_run(work, take, &a, &status);
    if (r < 0)
        return fail(m, r, "%s: the check cannot be run: fork: %s", dir, err_text(r));
    if (r == 0)
        return a.result;
    r = apart_died(status, &(struct errmsg){line, sizeof line}, "index: the check");
    if (r == -ENOMEM)
        return fail(m, r, "%s", line); /* of what was not looked at nothing is known */
    check_problem(c, "%s", line);
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

/* Offline check: every entry of the index, the space map, then what namespace and data path know. */
#include "parts.h"

#include "base/err.h"
#include "local/local_store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct check {
    const struct pst_check_opts *opts;
    int64_t problems;
};

void check_problem(struct check *c, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    c->problems++;
    if (c->opts->report)
        c->opts->report(c->opts->user, line);
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

int64_t pst_local_check(const char *dir, const struct pst_check_opts *opts, char *err, size_t err_size)
{
    struct errmsg m = {err, err_size};
    struct check c = {.opts = opts};
    struct eng_opts o;
    struct engine *e = NULL;
    int r;
    eng_default_opts(&o);
    o.bare = true;
    o.check_to = &c;
    o.check_data = opts->data;
    o.rebuild_index = opts->rebuild_index;
    r = eng_open(dir, &o, &e, &m);
    if (r)
        return r;
    r = check_index(e, &c);
    if (!r)
        r = ns_check(e, &c);
    if (!r)
        r = data_check(e, &c);
    eng_close(e);
    if (r)
        return fail(&m, r, "%s: the check did not get to its end: %s", dir, err_text(r));
    return c.problems;
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

/*
 * After an unclean stop the whole index is read and verified before the store serves, in a child process (apart.c):
 * what is damaged is counted and logged there, and a death of the index library is a refusal to open instead of a dead
 * daemon.
 *
 * The child sees the index's files. What the log adds to them has checksums of its own.
 */
#include "parts.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct verifying {
    struct engine *e;
    const struct errmsg *m;
    int err; /* the index cannot be opened */
    uint64_t damaged;
};

/* Every entry: the iterator counts and logs the damaged ones. */
static int read_all_entries(struct engine *e)
{
    struct key all = {.len = 0};
    struct idx_iter *it = idx_iter_new(e, NULL, &all, NULL);
    size_t len;
    int r;
    if (!it)
        return -ENOMEM;
    while ((r = idx_iter_next(it)))
        if (r < 0 && !idx_iter_key(it, &len))
            break;
    idx_iter_free(it);
    return 0;
}

static void work(int fd, void *user)
{
    struct verifying *v = user;
    struct engine x = {.dir = v->e->dir, .opt = v->e->opt};
    char end[2 * sizeof(uint64_t) + 512] = {0};
    struct errmsg m = {end + 2 * sizeof(uint64_t), sizeof end - 2 * sizeof(uint64_t)};
    int64_t r;
    uint64_t damaged;
    close(v->e->lock_fd); /* the lock ends with the parent */
    x.opt.readonly = true;
    r = index_open(&x, false, &m);
    if (!r)
        r = read_all_entries(&x);
    damaged = atomic_load(&x.index_errors);
    memcpy(end, &r, sizeof r);
    memcpy(end + sizeof r, &damaged, sizeof damaged);
    apart_tell(fd, 'R', end, 2 * sizeof(uint64_t) + strlen(m.p));
}

static bool take(void *user, char kind, const char *text, uint32_t len)
{
    struct verifying *v = user;
    int64_t r;
    if (kind != 'R' || len < 2 * sizeof(uint64_t))
        return false;
    memcpy(&r, text, sizeof r);
    memcpy(&v->damaged, text + sizeof r, sizeof v->damaged);
    v->err = (int)r;
    if (r)
        fail(v->m, v->err, "%s", text + 2 * sizeof(uint64_t));
    return true;
}

int verify_index_apart(struct engine *e, const struct errmsg *m)
{
    struct verifying v = {.e = e, .m = m};
    char what[300];
    int status = 0, r = apart_run(work, take, &v, &status);
    if (r < 0)
        return fail(m, r, "%s: the index cannot be verified: fork: %s", e->dir, err_text(r));
    if (r == 1) {
        snprintf(what, sizeof what, "%.200s is not opened: the verification of its index after an unclean stop",
                 e->dir);
        return apart_died(status, m, what);
    }
    if (v.damaged)
        log_error("%s: %llu entries of the index are damaged and answered with EIO; run `penstock check %s`", e->dir,
                  (unsigned long long)v.damaged, e->dir);
    atomic_fetch_add(&e->index_errors, v.damaged);
    return v.err;
}

int verify_index_here(struct engine *e)
{
    return read_all_entries(e);
}

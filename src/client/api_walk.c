/*
 * From paths to objects. A path without symbolic links goes to the server as it is; otherwise the library follows them,
 * one look-up for each name.
 */
#include "api.h"

#include "store/perm.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define LINKS_MAX  40 /* as Linux */
#define PATH_BYTES 4096

struct walk {
    struct pst_fs *fs;
    struct pst_ctx ctx;
    bool follow;
    bool name_only; /* the last name is not looked up */
    int links;
    uint64_t dir;
    char text[3 * PATH_BYTES]; /* what is left to resolve */
    char *rest;
};

static struct pst_cont *cont(const struct walk *w)
{
    return cl_cont(w->fs->k->c);
}

/* The link's target takes the place of its name. */
static int enter_link(struct walk *w, uint64_t ino)
{
    char target[PST_SYMLINK_MAX + 1];
    size_t left = strlen(w->rest);
    int n;

    if (++w->links > LINKS_MAX)
        return -ELOOP;
    n = pst_store_readlink(cont(w), &w->ctx, ino, target, sizeof target);
    if (n <= 0)
        return n < 0 ? n : -ENOENT;
    if ((size_t)n + left + 1 > sizeof w->text)
        return -ENAMETOOLONG;
    memmove(w->text + n, w->rest, left + 1);
    memcpy(w->text, target, (size_t)n);
    w->rest = w->text;
    if (target[0] == '/')
        w->dir = PST_ROOT_INO;
    return 0;
}

/* Cuts the next name off: its length, 0 at the end, or -ENAMETOOLONG. */
static int next_name(struct walk *w, char *ret_name)
{
    size_t n;

    w->rest += strspn(w->rest, "/");
    n = strcspn(w->rest, "/");
    if (n > PST_NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(ret_name, w->rest, n);
    ret_name[n] = '\0';
    w->rest += n;
    return (int)n;
}

/* ".." needs search permission in the directory that is left. */
static int go_up(struct walk *w)
{
    struct pst_attr a;
    int r = pst_store_getattr(cont(w), &w->ctx, w->dir, &a);

    if (r == 0)
        r = pst_perm_access(w->ctx.cred, &a, X_OK);
    return r < 0 ? r : pst_store_parent(cont(w), w->dir, &w->dir);
}

/* The path ended at a directory without naming it. */
static int at_dir(struct walk *w, struct api_where *ret)
{
    ret->parent = 0;
    ret->name[0] = '\0';
    ret->exists = true;
    return pst_store_getattr(cont(w), &w->ctx, w->dir, &ret->attr);
}

/* One name further: 1 to go on, 0 when *ret is the answer. */
static int step(struct walk *w, bool missing_ok, struct api_where *ret)
{
    bool last;
    int r = next_name(w, ret->name);

    if (r < 0)
        return r;
    if (r == 0)
        return at_dir(w, ret);
    if (!strcmp(ret->name, "."))
        return 1;
    if (!strcmp(ret->name, "..")) {
        r = go_up(w);
        return r < 0 ? r : 1;
    }
    ret->slash = w->rest[0] == '/';
    last = w->rest[strspn(w->rest, "/")] == '\0';
    ret->parent = w->dir;
    ret->exists = false;
    if (w->name_only && last && !ret->slash)
        return 0;
    r = pst_store_lookup(cont(w), &w->ctx, w->dir, ret->name, &ret->attr);
    ret->exists = r == 0;
    if (r == -ENOENT && last && missing_ok)
        return 0;
    if (r < 0)
        return r;
    if (S_ISLNK(ret->attr.mode) && (!last || ret->slash || w->follow)) {
        r = enter_link(w, ret->attr.ino);
        return r < 0 ? r : 1;
    }
    if (!last && !S_ISDIR(ret->attr.mode))
        return -ENOTDIR;
    if (last)
        return ret->slash && !S_ISDIR(ret->attr.mode) ? -ENOTDIR : 0;
    w->dir = ret->attr.ino;
    return 1;
}

static int run(struct walk *w, const char *path, bool missing_ok, struct api_where *ret)
{
    size_t n = strnlen(path, PATH_BYTES);
    struct api_where where = {0};
    int r;

    if (!api_mine(w->fs->k))
        return -ECHILD;
    if (n == 0 || n == PATH_BYTES)
        return n ? -ENAMETOOLONG : -ENOENT;
    memcpy(w->text, path, n + 1);
    w->rest = w->text;
    w->dir = path[0] == '/' ? PST_ROOT_INO : w->fs->dir;
    do {
        r = step(w, missing_ok, &where);
    } while (r == 1);
    if (r == 0)
        *ret = where;
    return r;
}

int api_walk(struct pst_fs *fs, const char *path, bool follow, bool missing_ok, struct api_where *ret)
{
    struct walk w = {.fs = fs, .ctx = {.cred = &fs->k->cred}, .follow = follow};

    return run(&w, path, missing_ok, ret);
}

int api_walk_name(struct pst_fs *fs, const char *path, bool missing_ok, struct api_where *ret)
{
    struct walk w = {.fs = fs, .ctx = {.cred = &fs->k->cred}, .name_only = true};

    return run(&w, path, missing_ok, ret);
}

bool api_split(struct pst_fs *fs, const char *path, struct api_where *ret)
{
    size_t way = 0, name = 0;
    char *to = ret->walk;

    if (strnlen(path, PATH_BYTES) == PATH_BYTES)
        return false;
    *ret = (struct api_where){.parent = path[0] == '/' ? PST_ROOT_INO : fs->dir};
    for (const char *p = path + strspn(path, "/"); *p; p += strspn(p, "/")) {
        size_t n = strcspn(p, "/");
        if (n > PST_NAME_MAX || (p[0] == '.' && (n == 1 || (n == 2 && p[1] == '.'))))
            return false;
        if (way + n + 1 > PST_WALK_MAX)
            return false;
        way += way ? 1 : 0; /* over the end of the name before */
        memcpy(to + way, p, n);
        name = way;
        way += n;
        to[way] = '/';
        p += n;
    }
    if (!way || path[strlen(path) - 1] == '/')
        return false;
    to[way] = '\0';
    memcpy(ret->name, to + name, way - name + 1);
    to[name ? name - 1 : 0] = '\0';
    return true;
}

bool api_walk_needed(int r)
{
    /* A symbolic link on the way; or a server that knows names only. */
    return r == -ELOOP || r == -EINVAL || r == -ENAMETOOLONG;
}

int api_look(struct pst_fs *fs, const char *path, bool follow, struct pst_attr *ret)
{
    struct api_where w;
    struct pst_attr a;
    int r = -ELOOP;

    if (!api_mine(fs->k))
        return -ECHILD;
    if (api_split(fs, path, &w)) {
        struct pst_ctx ctx = {.cred = &fs->k->cred, .walk = w.walk[0] ? w.walk : NULL};
        r = pst_store_lookup(cl_cont(fs->k->c), &ctx, w.parent, w.name, &a);
        if (r == 0 && follow && S_ISLNK(a.mode))
            r = -ELOOP;
    }
    if (api_walk_needed(r)) {
        r = api_walk(fs, path, follow, false, &w);
        a = w.attr;
    }
    if (r == 0)
        *ret = a;
    return r;
}

int api_find(struct pst_fs *fs, const char *path, bool follow, struct pst_attr *ret)
{
    struct pst_attr a;
    int r = api_look(fs, path, follow, &a);

    if (r < 0)
        return r;
    if (S_ISREG(a.mode) && cl_has_dirty(fs->k->c))
        return cl_getattr(fs->k->c, &fs->k->cred, a.ino, ret);
    *ret = a;
    return 0;
}

static struct timespec ts(int64_t ns)
{
    int64_t sec = ns / (int64_t)NSEC_PER_SEC, rest = ns % (int64_t)NSEC_PER_SEC;

    return rest < 0 ? (struct timespec){sec - 1, rest + (int64_t)NSEC_PER_SEC} : (struct timespec){sec, rest};
}

void api_stat(const struct client *c, const struct pst_attr *a, struct stat *ret)
{
    *ret = (struct stat){.st_dev = c->cont->info.id,
                         .st_ino = a->ino,
                         .st_mode = a->mode,
                         .st_nlink = a->nlink,
                         .st_uid = a->uid,
                         .st_gid = a->gid,
                         .st_rdev = a->rdev,
                         .st_size = (off_t)a->size,
                         .st_blksize = (blksize_t)(a->chunk_size ? a->chunk_size : PST_BLOCK),
                         .st_blocks = (blkcnt_t)(a->used / 512),
                         .st_atim = ts(a->atime_ns),
                         .st_mtim = ts(a->mtime_ns),
                         .st_ctim = ts(a->ctime_ns)};
}

static int one_time(const struct timespec *t, uint32_t set, uint32_t now, uint32_t *mask, int64_t *ret_ns)
{
    if (t->tv_nsec == UTIME_OMIT)
        return 0;
    if (t->tv_nsec == UTIME_NOW) {
        *mask |= now;
        return 0;
    }
    if (t->tv_nsec < 0 || t->tv_nsec >= (long)NSEC_PER_SEC || t->tv_sec > INT64_MAX / (int64_t)NSEC_PER_SEC - 1 ||
        t->tv_sec < INT64_MIN / (int64_t)NSEC_PER_SEC + 1)
        return -EINVAL;
    *mask |= set;
    *ret_ns = t->tv_sec * (int64_t)NSEC_PER_SEC + t->tv_nsec;
    return 0;
}

int api_times(const struct timespec *times, uint32_t *ret_mask, struct pst_attr *ret)
{
    uint32_t mask = PST_SET_ATIME_NOW | PST_SET_MTIME_NOW;
    struct pst_attr a = {0};
    int r = 0;

    if (times) {
        mask = 0;
        r = one_time(&times[0], PST_SET_ATIME, PST_SET_ATIME_NOW, &mask, &a.atime_ns);
        if (r == 0)
            r = one_time(&times[1], PST_SET_MTIME, PST_SET_MTIME_NOW, &mask, &a.mtime_ns);
    }
    if (r == 0) {
        *ret_mask = mask;
        *ret = a;
    }
    return r;
}

#include "walk.h"

#include <errno.h>
#include <string.h>

struct subdir {
    struct subdir *next;
    struct stat st;
    char name[];
};

struct level {
    struct walk *w;
    struct subdir *first, **last;
};

static const char *rel(const struct walk *w)
{
    const char *r = w->path + w->root_len;
    return r + strspn(r, "/");
}

/* Appends a name; the old length, or -ENAMETOOLONG. */
static int push(struct walk *w, const char *name, size_t *ret_old)
{
    size_t n = strlen(w->path), k = strlen(name);
    bool slash = n > 0 && w->path[n - 1] != '/';

    if (n + slash + k >= sizeof w->path)
        return -ENAMETOOLONG;
    if (slash)
        w->path[n] = '/';
    memcpy(w->path + n + slash, name, k + 1);
    *ret_old = n;
    return 0;
}

static int on_entry(void *user, const char *name, const struct stat *st)
{
    struct level *l = user;
    struct walk *w = l->w;
    struct subdir *d;
    size_t old;
    int r;

    if (S_ISDIR(st->st_mode)) {
        d = malloc(sizeof *d + strlen(name) + 1);
        if (!d)
            return -ENOMEM;
        d->next = NULL;
        d->st = *st;
        strcpy(d->name, name);
        *l->last = d;
        l->last = &d->next;
        return 0;
    }
    if (!w->entry)
        return 0;
    r = push(w, name, &old);
    if (r < 0)
        return w->failed ? w->failed(w->user, name, r) : r;
    r = w->entry(w->user, w->path, rel(w), st);
    w->path[old] = 0;
    return r;
}

static int visit_dir(struct walk *w, const struct stat *st)
{
    struct level l = {.w = w, .last = &l.first};
    struct subdir *next;
    size_t old;
    int r = w->dir_begin ? w->dir_begin(w->user, w->path, rel(w), st) : 0;

    if (r != 0)
        return r == 1 ? 0 : r;
    r = w->side->ops->list(w->side, w->path, on_entry, &l);
    if (r < 0 && r != -ECANCELED && w->failed)
        r = w->failed(w->user, w->path, r);
    for (struct subdir *d = l.first; d; d = next) {
        next = d->next;
        if (r == 0 && (r = push(w, d->name, &old)) < 0) {
            r = w->failed ? w->failed(w->user, d->name, r) : r;
        } else if (r == 0) {
            r = visit_dir(w, &d->st);
            w->path[old] = 0;
        }
        free(d);
    }
    return r == 0 && w->dir_end ? w->dir_end(w->user, w->path, rel(w), st) : r;
}

int walk_run(struct walk *w, const char *root)
{
    struct stat st;
    int r;

    if (strlen(root) >= sizeof w->path)
        return -ENAMETOOLONG;
    strcpy(w->path, root);
    w->root_len = strlen(root);
    r = w->side->ops->lstat(w->side, root, &st);
    if (r < 0)
        return w->failed ? w->failed(w->user, root, r) : r;
    if (S_ISDIR(st.st_mode))
        return visit_dir(w, &st);
    return w->entry ? w->entry(w->user, w->path, "", &st) : 0;
}

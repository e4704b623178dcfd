/* A new tenant key: all headers of a container, wrapped anew. */
#define LOG_COMPONENT "filter"
#include "cf.h"

#include "base/crypto.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static const struct pst_ctx trusted;

struct walk {
    struct cf *cf;
    struct pst_cont *c;
    struct filter_rewrapped *n;
    uint64_t *dirs; /* that are still to be read */
    size_t ndirs, cap;
    int err;
};

/* -EEXIST: it is by the current key already. */
static int rewrap_one(struct walk *w, uint64_t ino)
{
    uint8_t header[HEADER_BYTES + 1], now[HEADER_BYTES], key[SEAL_KEY];
    struct header_place at;
    int64_t n = pst_store_getxattr(w->c->next, &trusted, ino, HEADER_XATTR, header, sizeof header);
    bool old = false;
    int r;

    if (n < 0)
        return (int)n;
    at = cf_header_place(w->c, ino);
    {
        scoped_lock(&w->cf->keys_lock);
        r = header_open(&w->cf->secrets->ring, w->cf->keys_seal, &at, header, (size_t)n, key, &old);
        if (!r && old)
            r = header_wrap(&w->cf->secrets->ring, w->cf->keys_seal, &at, key, now);
        pst_wipe(key, sizeof key);
    }
    if (r || !old)
        return r ? r : -EEXIST;
    return pst_store_setxattr(w->c->next, &trusted, ino, HEADER_XATTR, now, sizeof now, PST_XATTR_REPLACE);
}

static void rewrap(struct walk *w, uint64_t ino)
{
    int r = rewrap_one(w, ino);

    if (r == 0) {
        w->n->changed++;
    } else if (r == -EEXIST) {
        w->n->current++;
    } else if (r != -ENODATA && r != -ENOENT) { /* never written to; or gone meanwhile */
        w->n->failed++;
        w->err = w->err ? w->err : r == -EBADMSG ? -EIO : r;
        log_error("%s/%s, object %llu: its key is not wrapped anew (error %d)", w->c->info.pool, w->c->info.label,
                  (unsigned long long)ino, -r);
    }
}

static int on_entry(const struct pst_dirent *de, void *user)
{
    struct walk *w = user;

    if (de->type == S_IFREG)
        rewrap(w, de->ino);
    if (de->type != S_IFDIR)
        return 0;
    if (w->ndirs == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 64;
        uint64_t *p = realloc(w->dirs, cap * sizeof *p);
        if (!p) {
            w->err = -ENOMEM;
            return 1;
        }
        w->dirs = p;
        w->cap = cap;
    }
    w->dirs[w->ndirs++] = de->ino;
    return 0;
}

int filter_rewrap(struct pst_cont *c, struct filter_rewrapped *ret)
{
    struct walk w = {.cf = cf_of(c->store), .c = c, .n = ret};
    uint64_t dir = PST_ROOT_INO;
    int r;

    *ret = (struct filter_rewrapped){0};
    if (!w.cf || !w.cf->codec.crypt)
        return -EINVAL;
    for (;;) {
        r = pst_store_readdir(c->next, &trusted, dir, 0, false, on_entry, &w);
        if (r && r != -ENOENT)
            w.err = w.err ? w.err : r;
        if (!w.ndirs || w.err == -ENOMEM)
            break;
        dir = w.dirs[--w.ndirs];
    }
    free(w.dirs);
    if (!w.err) /* last: until then who has the new key alone is refused at the door */
        rewrap(&w, PST_ROOT_INO);
    return w.err;
}

/* What the chunk filter does in the namespace: headers of objects, and that nobody else sees them. */
#define LOG_COMPONENT "filter"
#include "cf.h"

#include "base/crypto.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static const struct pst_ctx trusted;

static struct cf *owner(struct pst_cont *c)
{
    return container_of(c->store, struct cf, f.st);
}

/* ---- the container: its root has a header too, so that a wrong key is noticed at the door ---- */

static int note_entry(const struct pst_dirent *de, void *user)
{
    (void)de;
    *(bool *)user = true;
    return 1;
}

static int admit_with_key(struct cf *cf, struct pst_cont *c)
{
    uint8_t key[SEAL_KEY];
    bool entries = false;
    int r = cf_key_get(cf, c, PST_ROOT_INO, false, key);

    if (r == -ENODATA) {
        r = pst_store_readdir(c->next, &trusted, PST_ROOT_INO, 0, false, note_entry, &entries);
        if (!r && entries) {
            log_error("%s/%s has files that were written without the filter crypt: copy them into a new container; or "
                      "the filter is in its server already",
                      c->info.pool, c->info.label);
            r = -EKEYREJECTED;
        }
        if (!r)
            r = cf_key_get(cf, c, PST_ROOT_INO, true, key);
        if (r == -EROFS)
            r = 0; /* empty, and stays so */
    }
    pst_wipe(key, sizeof key);
    return r;
}

static int admit(struct cf *cf, struct pst_cont *c)
{
    int64_t n;

    if (cf->codec.crypt)
        return admit_with_key(cf, c);
    n = pst_store_getxattr(c->next, &trusted, PST_ROOT_INO, HEADER_XATTR, NULL, 0);
    if (n < 0)
        return n == -ENODATA || n == -EOPNOTSUPP ? 0 : (int)n;
    atomic_fetch_add(&cf->stats.refused[REFUSED_KEY], 1);
    log_error("%s/%s is encrypted: the filter crypt, with its key, is needed", c->info.pool, c->info.label);
    return -ENOKEY;
}

static int cf_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                        struct pst_cont **ret)
{
    struct pst_cont *c;
    int r = filter_cont_open(st, ctx, pool, label, &c);

    if (r)
        return r;
    r = admit(container_of(st, struct cf, f.st), c);
    if (r)
        pst_cont_close(c);
    else
        *ret = c;
    return r;
}

/* ---- objects ---- */

/*
 * A new file gets its header at once, so that the data path has not to wait for that. If it fails, the first write
 * makes it, or says why not. *a: as it is after that.
 */
static void new_file(struct pst_cont *c, struct pst_attr *a)
{
    struct pst_attr now;
    uint8_t key[SEAL_KEY];

    if (!owner(c)->codec.crypt || !S_ISREG(a->mode))
        return;
    if (!cf_key_get(owner(c), c, a->ino, true, key) && !pst_store_getattr(c->next, &trusted, a->ino, &now))
        *a = now;
    pst_wipe(key, sizeof key);
}

static int cf_make(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                   const struct pst_new *in, struct pst_attr *ret, bool *ret_created)
{
    bool created = false;
    struct pst_attr a;
    int r = pst_store_make(c->next, ctx, parent, name, in, &a, &created);

    if (r)
        return r;
    if (created)
        new_file(c, &a);
    *ret = a;
    if (ret_created)
        *ret_created = created;
    return 0;
}

/* Is its key one that can be used? Without a header there is nothing to read, and who writes makes one. */
static int check_key(struct pst_cont *c, const struct pst_attr *a)
{
    uint8_t key[SEAL_KEY];
    int r = 0;

    if (owner(c)->codec.crypt && S_ISREG(a->mode)) {
        r = cf_key_get(owner(c), c, a->ino, false, key);
        pst_wipe(key, sizeof key);
    }
    return r == -ENODATA ? 0 : r;
}

/* Who writes a part of a chunk reads the rest: the store below has to allow both, where the caller may. */
static int both(int accmode)
{
    return accmode & W_OK ? accmode | R_OK : accmode;
}

/*
 * It was opened for one who may write it and not read it: the filter reads the rest of what he writes a part of in its
 * own name, if it may; he sees nothing of it. Without that such writes are refused, as by the store below.
 */
static void read_for_itself(struct pst_cont *c, uint64_t ino, int accmode)
{
    struct pst_attr a;

    if (!pst_store_open(c->next, &trusted, ino, both(accmode), false, &a))
        pst_store_release(c->next, ino); /* opens are counted, and there are two now */
}

/*
 * Of a file that was just opened for writing: its key was checked first, so that who has another one destroys nothing.
 * The store sees the filter do it, not the caller, who takes set-id bits away if he is not root.
 */
static int empty(struct pst_cont *c, const struct pst_ctx *ctx, struct pst_attr *a)
{
    const struct pst_attr zero = {0};
    uint32_t setid = ctx->cred && ctx->cred->uid != 0 ? PST_SET_NO_SETID : 0;

    return pst_store_setattr(c->next, &trusted, a->ino, PST_SET_SIZE | setid, &zero, a);
}

static int cf_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                   struct pst_attr *ret)
{
    bool later = trunc && owner(c)->codec.crypt;
    struct pst_attr a;
    int r = pst_store_open(c->next, ctx, ino, both(accmode), trunc && !later, &a);

    if (r == -EACCES && both(accmode) != accmode) {
        r = pst_store_open(c->next, ctx, ino, accmode, trunc && !later, &a);
        if (!r)
            read_for_itself(c, ino, accmode);
    }
    if (r)
        return r;
    r = check_key(c, &a);
    if (!r && later)
        r = empty(c, ctx, &a);
    if (r)
        pst_store_release(c->next, ino);
    else
        *ret = a;
    return r;
}

static int cf_create(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                     const struct pst_new *in, int accmode, bool trunc, struct pst_attr *ret, bool *ret_created)
{
    bool created = false, later = trunc && owner(c)->codec.crypt;
    struct pst_attr a;
    int r = pst_store_create(c->next, ctx, parent, name, in, both(accmode), trunc && !later, &a, &created);

    if (r == -EACCES && both(accmode) != accmode) {
        r = pst_store_create(c->next, ctx, parent, name, in, accmode, trunc && !later, &a, &created);
        if (!r)
            read_for_itself(c, a.ino, accmode);
    }
    if (r)
        return r;
    if (created)
        new_file(c, &a);
    r = check_key(c, &a);
    if (!r && later && !created)
        r = empty(c, ctx, &a);
    if (r) {
        pst_store_release(c->next, a.ino);
        return r;
    }
    *ret = a;
    if (ret_created)
        *ret_created = created;
    return 0;
}

/* ---- the hidden attributes ---- */

static bool hidden(const char *name)
{
    return !strncmp(name, HIDDEN_XATTRS, strlen(HIDDEN_XATTRS));
}

static int cf_setxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name, const void *value,
                       size_t len, uint32_t flags)
{
    return hidden(name) ? -EPERM : pst_store_setxattr(c->next, ctx, ino, name, value, len, flags);
}

static int64_t cf_getxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                           void *ret_value, size_t size)
{
    return hidden(name) ? -ENODATA : pst_store_getxattr(c->next, ctx, ino, name, ret_value, size);
}

static int cf_removexattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name)
{
    return hidden(name) ? -ENODATA : pst_store_removexattr(c->next, ctx, ino, name);
}

/* Without the hidden names: a list of its own is asked for, since the caller's buffer may be too small for all. */
static int64_t cf_listxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size)
{
    cleanup_free char *all = malloc(PST_XATTR_SIZE_MAX);
    int64_t n = all ? pst_store_listxattr(c->next, ctx, ino, all, PST_XATTR_SIZE_MAX) : -ENOMEM;
    size_t sum = 0;

    if (n < 0)
        return n;
    for (const char *p = all, *end = all + n; p < end;) {
        size_t len = strnlen(p, (size_t)(end - p));
        const char *name = p;
        if (len == (size_t)(end - p))
            return -EIO;
        p += len + 1;
        if (hidden(name))
            continue;
        if (size) {
            if (len + 1 > size - sum)
                return -ERANGE;
            memcpy(ret_names + sum, name, len + 1);
        }
        sum += len + 1;
    }
    return (int64_t)sum;
}

void cf_name_ops(struct pst_store_ops *ops)
{
    ops->cont_open = cf_cont_open;
    ops->make = cf_make;
    ops->open = cf_open;
    ops->create = cf_create;
    ops->setxattr = cf_setxattr;
    ops->getxattr = cf_getxattr;
    ops->removexattr = cf_removexattr;
    ops->listxattr = cf_listxattr;
}

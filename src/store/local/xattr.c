/*
 * Extended attributes: one key each, under the inode's lock. user.* follows the file's permissions, security.* may be
 * read by everybody, the rest is root's, but for PST_XATTR_KEY. system.* (ACLs) is not supported.
 */
#include "ns.h"

#include "store/perm.h"

#include <errno.h>

/* First byte of the value. Of the first format no space was charged; it is written no more. */
#define XATTR_UNCHARGED 1u
#define XATTR_CHARGED   2u

static struct key xattr_key(uint64_t cont, uint64_t ino, const char *name)
{
    struct key k = key_begin(KEY_XATTR);
    key_u64(&k, cont);
    key_u64(&k, ino);
    key_bytes(&k, name, strlen(name));
    return k;
}

bool xattr_value_valid(const void *p, size_t n)
{
    return n >= 1 && n <= PST_XATTR_SIZE_MAX + 1 &&
           (*(const uint8_t *)p == XATTR_UNCHARGED || *(const uint8_t *)p == XATTR_CHARGED);
}

/* Whole blocks: sums of usage are. */
static int64_t space_of(size_t name_len, size_t value_len)
{
    return (int64_t)align_up(name_len + value_len, PST_BLOCK);
}

int64_t xattr_space(size_t klen, const void *value, size_t n)
{
    return n >= 1 && klen >= XATTR_KEY_PREFIX && *(const uint8_t *)value == XATTR_CHARGED
               ? space_of(klen - XATTR_KEY_PREFIX, n - 1)
               : 0;
}

static bool is_root(const struct pst_cred *cred)
{
    return !cred || cred->uid == 0;
}

static bool in_space(const char *name, const char *prefix, int *ret_err)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0)
        return false;
    if (!name[n])
        *ret_err = -EINVAL;
    return true;
}

/* Who may make an object's header: its owner, who may not be able to write it any more; of a file, who may write it. */
static bool may_make_key(const struct pst_cred *cred, const struct pst_attr *a)
{
    return cred->uid == a->uid || (S_ISREG(a->mode) && pst_perm_access(cred, a, W_OK) == 0);
}

/* As xattr(7): 0 or what getxattr, setxattr, removexattr answer. flags: of setxattr. */
static int xattr_access(const struct pst_cred *cred, const struct pst_attr *a, const char *name, bool write,
                        uint32_t flags)
{
    int err = 0;

    if (!is_root(cred) && !strcmp(name, PST_XATTR_KEY)) /* it is of no use without the tenant's key */
        return !write || (flags & PST_XATTR_CREATE && may_make_key(cred, a)) ? 0 : -EPERM;
    if (in_space(name, "user.", &err)) {
        if (err)
            return err;
        if (!S_ISREG(a->mode) && !S_ISDIR(a->mode))
            return write ? -EPERM : -ENODATA;
        if (write && S_ISDIR(a->mode) && (a->mode & S_ISVTX) && !is_root(cred) && cred->uid != a->uid)
            return -EPERM;
        return pst_perm_access(cred, a, write ? W_OK : R_OK);
    }
    if (in_space(name, "trusted.", &err))
        return err ? err : is_root(cred) ? 0 : write ? -EPERM : -ENODATA;
    if (in_space(name, "security.", &err))
        return err ? err : write && !is_root(cred) ? -EPERM : 0;
    return -EOPNOTSUPP;
}

int64_t local_getxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                       void *ret_value, size_t size)
{
    struct key k = xattr_key(c->info.id, ino, name);
    struct wbuf v = {0};
    struct pst_attr a;
    int64_t r = local_getattr(c, ctx, ino, &a);

    if (!r)
        r = xattr_access(ctx->cred, &a, name, false, 0);
    if (!r) {
        r = idx_get(engine_of_cont(c), NULL, &k, &v);
        r = r == -ENOENT ? -ENODATA : r;
    }
    if (r == 0 && !xattr_value_valid(v.data, v.len))
        r = -EIO;
    if (r == 0) {
        r = (int64_t)v.len - 1;
        if (size && (uint64_t)r > size)
            r = -ERANGE;
        else if (size && r > 0)
            memcpy(ret_value, v.data + 1, (size_t)r);
    }
    wbuf_done(&v);
    return r;
}

int64_t local_listxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, char *ret_names, size_t size)
{
    struct key prefix = key_begin(KEY_XATTR);
    struct pst_attr a;
    size_t sum = 0;
    int r = local_getattr(c, ctx, ino, &a);

    if (r)
        return r;
    key_u64(&prefix, c->info.id);
    key_u64(&prefix, ino);
    struct idx_iter *it = idx_iter_new(engine_of_cont(c), NULL, &prefix, NULL);
    if (!it)
        return -ENOMEM;
    while ((r = idx_iter_next(it)) > 0) {
        size_t klen;
        const uint8_t *k = idx_iter_key(it, &klen);
        if (klen <= 17 || klen > 17 + PST_XATTR_NAME_MAX) {
            r = -EIO;
            break;
        }
        size_t n = klen - 17;
        if (!is_root(ctx->cred) && n > 8 && !memcmp(k + 17, "trusted.", 8))
            continue;
        if (size) {
            if (n + 1 > size - sum) {
                r = -ERANGE;
                break;
            }
            memcpy(ret_names + sum, k + 17, n);
            ret_names[sum + n] = 0;
        }
        sum += n + 1;
    }
    idx_iter_free(it);
    return r ? r : (int64_t)sum;
}

/* The value's first byte and the value; len may be 0. */
static void put_value(struct txn *t, const struct key *k, const void *value, size_t len)
{
    struct wbuf w = {0};
    wbuf_u8(&w, XATTR_CHARGED);
    if (len)
        wbuf_put(&w, value, len);
    if (w.err)
        txn_fail(t, w.err);
    else
        txn_put(t, k, w.data, w.len);
    wbuf_done(&w);
}

/* Sets (value not NULL) or removes; the inode is locked. */
static int change_xattr(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, struct inode *i, const char *name,
                        const void *value, size_t len, uint32_t flags)
{
    struct key k = xattr_key(cont, i->a.ino, name);
    struct wbuf old = {0};
    int r = xattr_access(ctx->cred, &i->a, name, true, flags);

    if (r)
        return r;
    r = idx_get(e, NULL, &k, &old);
    bool have = r == 0;
    int64_t space = (value ? space_of(strlen(name), len) : 0) - (have ? xattr_space(k.len, old.data, old.len) : 0);
    wbuf_done(&old);
    if (r && r != -ENOENT)
        return r;
    if (have ? (flags & PST_XATTR_CREATE) != 0 : (flags & PST_XATTR_REPLACE) || !value)
        return have ? -EEXIST : -ENODATA;
    if (!have && i->xattrs >= NS_XATTRS_MAX)
        return -ENOSPC;
    if (!value && i->xattrs == 0)
        return -EIO;
    struct txn *t = txn_new(e);
    if (!t)
        return -ENOMEM;
    if (value) {
        put_value(t, &k, value, len);
        i->xattrs += !have;
    } else {
        txn_set_reserved(t);
        txn_del(t, &k);
        i->xattrs--;
    }
    r = space ? usage_add(t, cont, space, 0) : 0;
    if (r) {
        txn_drop(t);
        return r;
    }
    inode_touch(i, wall_ns(), TOUCH_C);
    inode_put(t, cont, i);
    reply_record(t, ctx, value ? REPLY_SETXATTR : REPLY_REMOVEXATTR, NULL);
    return txn_commit(t, NULL);
}

static int change_locked(struct engine *e, uint64_t cont, const struct pst_ctx *ctx, uint64_t ino, const char *name,
                         const void *value, size_t len, uint32_t flags)
{
    struct inode i;
    int r = reply_seen(e, ctx, value ? REPLY_SETXATTR : REPLY_REMOVEXATTR, NULL);

    if (r)
        return r < 0 ? r : 0;
    r = inode_get(e, cont, ino, &i);
    if (r)
        return r;
    if (i.a.nlink == 0 && !object_is_open(e->ns, cont, ino, false))
        r = -ENOENT;
    else
        r = change_xattr(e, cont, ctx, &i, name, value, len, flags);
    inode_done(&i);
    return r;
}

int local_setxattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name, const void *value,
                   size_t len, uint32_t flags)
{
    struct engine *e = engine_of_cont(c);

    eng_lock_inode(e, c->info.id, ino);
    int r = change_locked(e, c->info.id, ctx, ino, name, len ? value : "", len, flags);
    eng_unlock_inode(e, c->info.id, ino);
    return r;
}

int local_removexattr(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, const char *name)
{
    struct engine *e = engine_of_cont(c);

    eng_lock_inode(e, c->info.id, ino);
    int r = change_locked(e, c->info.id, ctx, ino, name, NULL, 0, 0);
    eng_unlock_inode(e, c->info.id, ino);
    return r;
}

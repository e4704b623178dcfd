/*
 * Directory entries: two keys each. KEY_DIRENT finds a name; KEY_COOKIE gives listings an order that stays, since a
 * cookie is the directory's counter at the time the name was made and is not used again.
 */
#include "ns.h"

#include "base/endian.h"

#include <errno.h>

#define DIRENT_FORMAT 1u

struct key dirent_key(uint64_t cont, uint64_t dir, const char *name)
{
    struct key k = key_begin(KEY_DIRENT);
    key_u64(&k, cont);
    key_u64(&k, dir);
    key_bytes(&k, name, strlen(name));
    return k;
}

struct key cookie_key(uint64_t cont, uint64_t dir, uint64_t cookie)
{
    struct key k = key_begin(KEY_COOKIE);
    key_u64(&k, cont);
    key_u64(&k, dir);
    key_u64(&k, cookie);
    return k;
}

static bool type_valid(uint32_t type)
{
    return type == S_IFREG || type == S_IFDIR || type == S_IFLNK || type == S_IFIFO || type == S_IFSOCK ||
           type == S_IFCHR || type == S_IFBLK;
}

int dirent_decode(const void *p, size_t n, struct dent *ret)
{
    struct rbuf r = rbuf_of(p, n);
    struct dent d;

    if (rbuf_u8(&r) != DIRENT_FORMAT)
        return -EBADMSG;
    d.ino = rbuf_u64(&r);
    d.cookie = rbuf_u64(&r);
    d.type = (uint32_t)rbuf_u8(&r) << 12;
    if (rbuf_end(&r) || d.ino == 0 || d.cookie == 0 || !type_valid(d.type))
        return -EBADMSG;
    *ret = d;
    return 0;
}

int cookie_decode(const void *p, size_t n, struct dent *ret, char *ret_name)
{
    struct rbuf r = rbuf_of(p, n);
    struct dent d = {0};

    if (rbuf_u8(&r) != DIRENT_FORMAT)
        return -EBADMSG;
    d.ino = rbuf_u64(&r);
    d.type = (uint32_t)rbuf_u8(&r) << 12;
    size_t len = rbuf_left(&r);
    const char *name = rbuf_take(&r, len);
    if (rbuf_end(&r) || d.ino == 0 || !type_valid(d.type) || len == 0 || len > PST_NAME_MAX || memchr(name, 0, len) ||
        memchr(name, '/', len))
        return -EBADMSG;
    *ret = d;
    memcpy(ret_name, name, len);
    ret_name[len] = 0;
    return 0;
}

void dirent_put(struct txn *t, uint64_t cont, uint64_t dir, const char *name, const struct dent *d)
{
    struct key k = dirent_key(cont, dir, name), ck = cookie_key(cont, dir, d->cookie);
    uint8_t v[18], cv[10 + PST_NAME_MAX];
    le64 ino = put_le64(d->ino), cookie = put_le64(d->cookie);
    size_t n = strlen(name);

    v[0] = cv[0] = DIRENT_FORMAT;
    memcpy(v + 1, ino.b, 8);
    memcpy(v + 9, cookie.b, 8);
    v[17] = (uint8_t)(d->type >> 12);
    memcpy(cv + 1, ino.b, 8);
    cv[9] = (uint8_t)(d->type >> 12);
    memcpy(cv + 10, name, n);
    txn_put(t, &k, v, sizeof v);
    txn_put(t, &ck, cv, 10 + n);
}

/* FNV-1a over name and fields, then a finaliser: a sum of these is a digest of the set. */
uint64_t dirent_hash(const char *name, const struct dent *d)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (const char *p = name; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001b3ull;
    h ^= d->ino * 0x9e3779b97f4a7c15ull;
    h = (h ^ (h >> 32)) * 0xff51afd7ed558ccdull;
    h ^= d->cookie + d->type;
    h = (h ^ (h >> 29)) * 0xc4ceb9fe1a85ec53ull;
    return h ^ (h >> 32);
}

int dir_find(struct engine *e, uint64_t cont, uint64_t dir, const char *name, struct dent *ret)
{
    struct key k = dirent_key(cont, dir, name);
    struct wbuf v = {0};
    int r = idx_get(e, NULL, &k, &v);

    if (r == 0 && dirent_decode(v.data, v.len, ret)) {
        log_error("container %llu, directory %llu: the entry '%s' is damaged", (unsigned long long)cont,
                  (unsigned long long)dir, name);
        e->index_errors++;
        r = -EIO;
    }
    wbuf_done(&v);
    return r;
}

void dir_add(struct txn *t, uint64_t cont, struct inode *dir, const char *name, uint64_t ino, uint32_t type)
{
    struct dent d = {.ino = ino, .type = type, .cookie = dir->next_cookie++};
    dirent_put(t, cont, dir->a.ino, name, &d);
    dir->entries++;
    dir->digest += dirent_hash(name, &d);
}

void dir_remove(struct txn *t, uint64_t cont, struct inode *dir, const char *name, const struct dent *d)
{
    struct key k = dirent_key(cont, dir->a.ino, name), ck = cookie_key(cont, dir->a.ino, d->cookie);
    txn_del(t, &k);
    txn_del(t, &ck);
    dir->entries--;
    dir->digest -= dirent_hash(name, d);
}

void dir_set(struct txn *t, uint64_t cont, struct inode *dir, const char *name, const struct dent *old, uint64_t ino,
             uint32_t type)
{
    struct dent d = {.ino = ino, .type = type, .cookie = old->cookie};
    dirent_put(t, cont, dir->a.ino, name, &d);
    dir->digest += dirent_hash(name, &d) - dirent_hash(name, old);
}

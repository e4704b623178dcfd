/*
 * One container: every entry names an object of its type, every object is named as often as it says, the two keys of
 * each entry agree, and what directories and the container count is what is there.
 *
 * The objects' records are read first, in order of their numbers, into 32 bytes each; then the keys that refer to them.
 */
#include "ns_check.h"

#include <errno.h>

struct ck_obj *ck_find(struct nsck *s, uint64_t ino)
{
    size_t lo = 0, hi = s->nobjs;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->objs[mid].ino == ino)
            return &s->objs[mid];
        if (s->objs[mid].ino < ino)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* ---- records ---- */

static int room(void **array, size_t *cap, size_t n, size_t size)
{
    if (n < *cap)
        return 0;
    size_t more = *cap ? *cap * 2 : 1024;
    void *bigger = realloc(*array, more * size);
    if (!bigger)
        return -ENOMEM;
    *array = bigger;
    *cap = more;
    return 0;
}

static int visit_inode(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    struct inode i;
    uint64_t ino = klen == 17 ? ck_number(k, 9) : 0;

    if (klen != 17 || inode_decode(ino, v, vlen, &i)) {
        ck_problem(s, "object %llu: its record is not valid", (unsigned long long)ino);
        return 0;
    }
    if (room((void **)&s->objs, &s->capobjs, s->nobjs, sizeof *s->objs) ||
        room((void **)&s->dirs, &s->capdirs, s->ndirs, sizeof *s->dirs)) {
        inode_done(&i);
        return -ENOMEM;
    }
    struct ck_obj *o = &s->objs[s->nobjs++];
    *o = (struct ck_obj){
        .ino = ino, .nlink = i.a.nlink, .xattrs = (uint16_t)i.xattrs, .type = (uint8_t)(i.a.mode >> 12)};
    if (S_ISDIR(i.a.mode)) {
        s->dirs[s->ndirs++] = (struct ck_dir){
            .parent = i.parent, .entries = i.entries, .digest = i.digest, .next_cookie = i.next_cookie};
        o->dir = (uint32_t)s->ndirs;
    }
    s->used += i.a.used;
    inode_done(&i);
    return ck_used(s, ino);
}

/* ---- entries ---- */

/* The directory that a key's number names; NULL with a finding if there is none. */
static struct ck_obj *entry_dir(struct nsck *s, uint64_t ino, const char *what)
{
    struct ck_obj *o = ck_find(s, ino);
    if (!o || !o->dir) {
        ck_problem(s, "%s '%s' lies in object %llu, which is %s", "entry", what, (unsigned long long)ino,
                   o ? "not a directory" : "missing");
        return NULL;
    }
    return o;
}

static int check_cookie_of(struct nsck *s, uint64_t dir, const char *name, const struct dent *d)
{
    struct key k = cookie_key(s->k->id, dir, d->cookie);
    struct wbuf v = {0};
    struct dent other;
    char other_name[PST_NAME_MAX + 1];
    int r = idx_get(s->e, NULL, &k, &v);

    bool good = r == 0 && cookie_decode(v.data, v.len, &other, other_name) == 0 && other.ino == d->ino &&
                other.type == d->type && !strcmp(other_name, name);
    wbuf_done(&v);
    if (good)
        return 0;
    ck_problem(s, "directory %llu: entry '%s' and its place in listings (%llu) differ", (unsigned long long)dir, name,
               (unsigned long long)d->cookie);
    return s->repair ? fix_entry(s, dir, name, d) : 0;
}

/* The entry says another type than its object: the object is right, it knows what it holds. */
static int check_type(struct nsck *s, uint64_t dir, const char *name, struct dent *d, const struct ck_obj *o)
{
    if (o->type == d->type >> 12)
        return 0;
    ck_problem(s, "directory %llu: entry '%s' says another type than object %llu", (unsigned long long)dir, name,
               (unsigned long long)d->ino);
    if (!s->repair)
        return 0;
    d->type = (uint32_t)o->type << 12;
    return fix_entry(s, dir, name, d);
}

/* The object that the entry names is there, is of that type, and a directory has its parent right. */
static int check_target(struct nsck *s, uint64_t dir, const char *name, struct dent *d, const uint8_t *k, size_t klen)
{
    struct ck_obj *o = ck_find(s, d->ino);

    if (!o) {
        ck_problem(s, "directory %llu: entry '%s' names object %llu, which is missing", (unsigned long long)dir, name,
                   (unsigned long long)d->ino);
        if (!s->repair)
            return 0;
        struct key ck = cookie_key(s->k->id, dir, d->cookie);
        int r = fix_drop(s, ck.b, ck.len);
        return r ? r : fix_drop(s, k, klen);
    }
    int r = check_type(s, dir, name, d, o);
    if (r)
        return r;
    o->refs++;
    if (o->dir) {
        struct ck_dir *sub = ck_dir(s, o);
        if (sub->found_in || o->ino == PST_ROOT_INO)
            ck_problem(s, "directory %llu: entry '%s' is a second name of directory %llu", (unsigned long long)dir,
                       name, (unsigned long long)d->ino);
        else if (sub->parent != dir)
            ck_problem(s, "directory %llu lies in %llu ('%s'), but says %llu", (unsigned long long)d->ino,
                       (unsigned long long)dir, name, (unsigned long long)sub->parent);
        if (!sub->found_in)
            sub->found_in = dir;
    }
    return 1;
}

static int visit_dirent(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    char name[PST_NAME_MAX + 1] = {0};
    struct dent d;

    if (klen > 17 && klen - 17 <= PST_NAME_MAX)
        memcpy(name, k + 17, klen - 17);
    if (!name[0] || strlen(name) != klen - 17 || dirent_decode(v, vlen, &d)) {
        ck_problem(s, "an entry '%s' is not valid", name);
        return 0;
    }
    struct ck_obj *o = entry_dir(s, ck_number(k, 9), name);
    if (!o)
        return s->repair ? fix_drop(s, k, klen) : 0; /* what it named gets a name in /lost+found */
    int r = check_target(s, o->ino, name, &d, k, klen);
    if (r < 0)
        return r;
    struct ck_dir *dir = ck_dir(s, o);
    if (r == 0 && s->repair)
        return 0; /* the entry is gone */
    dir->seen++;
    dir->seen_digest += dirent_hash(name, &d);
    dir->top_cookie = max_u64(dir->top_cookie, d.cookie);
    dir->subdirs += d.type == S_IFDIR;
    return check_cookie_of(s, o->ino, name, &d);
}

/* The other direction: a place in a listing without its entry is an entry that was lost. */
static int visit_cookie(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    struct dent d, there;
    char name[PST_NAME_MAX + 1];
    struct wbuf w = {0};

    if (klen != 25 || cookie_decode(v, vlen, &d, name)) {
        ck_problem(s, "a place in a listing is not valid");
        return s->repair ? fix_drop(s, k, klen) : 0;
    }
    d.cookie = ck_number(k, 17);
    struct ck_obj *o = entry_dir(s, ck_number(k, 9), name);
    if (!o)
        return s->repair ? fix_drop(s, k, klen) : 0;
    struct key dk = dirent_key(s->k->id, o->ino, name);
    int r = idx_get(s->e, NULL, &dk, &w);
    bool have = r == 0 && dirent_decode(w.data, w.len, &there) == 0;
    wbuf_done(&w);
    if (have && there.cookie == d.cookie)
        return 0; /* compared with the entry */
    if (have) {
        ck_problem(s, "directory %llu: '%s' has two places in listings", (unsigned long long)o->ino, name);
        return s->repair ? fix_drop(s, k, klen) : 0;
    }
    ck_problem(s, "directory %llu: entry '%s' is in listings, but cannot be found by its name",
               (unsigned long long)o->ino, name);
    struct ck_obj *target = ck_find(s, d.ino);
    if (!target)
        return 0;
    target->refs++; /* one half is enough to know the entry: it counts */
    struct ck_dir *dir = ck_dir(s, o);
    if (target->dir && !ck_dir(s, target)->found_in)
        ck_dir(s, target)->found_in = o->ino;
    dir->seen++;
    dir->seen_digest += dirent_hash(name, &d);
    dir->top_cookie = max_u64(dir->top_cookie, d.cookie);
    dir->subdirs += d.type == S_IFDIR;
    return s->repair ? fix_entry(s, o->ino, name, &d) : 0;
}

/* ---- the rest ---- */

static int visit_xattr(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    struct ck_obj *o = klen > 17 ? ck_find(s, ck_number(k, 9)) : NULL;

    if (!o) {
        ck_problem(s, "an extended attribute of object %llu, which is missing",
                   klen >= 17 ? (unsigned long long)ck_number(k, 9) : 0ull);
        return s->repair ? fix_drop(s, k, klen) : 0;
    }
    if (klen - 17 > PST_XATTR_NAME_MAX || !xattr_value_valid(v, vlen))
        ck_problem(s, "object %llu: an extended attribute is not valid", (unsigned long long)o->ino);
    o->seen_xattrs++;
    s->used += (uint64_t)xattr_space(klen, v, vlen);
    return 0;
}

/* Of a destroyed container: what is left of them counts, whoever they belonged to. */
static int visit_dead_xattr(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    (void)k;
    ((struct nsck *)user)->used += (uint64_t)xattr_space(klen, v, vlen);
    return 0;
}

static int visit_orphan(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    struct ck_obj *o = klen == 17 ? ck_find(s, ck_number(k, 9)) : NULL;

    (void)v, (void)vlen;
    if (!o) {
        ck_problem(s, "object %llu is to be deleted, but is missing",
                   klen == 17 ? (unsigned long long)ck_number(k, 9) : 0ull);
        return s->repair ? fix_drop(s, k, klen) : 0;
    }
    o->orphan = true;
    return 0;
}

enum { MARK_NONE, MARK_VISITED, MARK_ROOT, MARK_CUT, MARK_RING, MARK_OPENED };

/* Where the chain of directories above leads: the root, one without a name, or round; marks all on the way. */
static uint8_t chain_end(struct nsck *s, const struct ck_obj *o)
{
    const struct ck_obj *p = o;
    uint8_t end = MARK_NONE;

    while (!end) {
        struct ck_dir *d = ck_dir(s, p);
        if (p->ino == PST_ROOT_INO)
            end = MARK_ROOT;
        else if (d->mark)
            end = d->mark == MARK_VISITED ? MARK_RING : d->mark;
        else if (!d->found_in)
            end = MARK_CUT;
        else {
            d->mark = MARK_VISITED;
            p = ck_find(s, d->found_in);
            if (!p || !p->dir)
                end = MARK_CUT;
        }
    }
    for (p = o; p && p->dir && ck_dir(s, p)->mark == MARK_VISITED; p = ck_find(s, ck_dir(s, p)->found_in))
        ck_dir(s, p)->mark = end;
    return end;
}

/* Counts of a directory's record; true if one is wrong. */
static bool dir_wrong(struct nsck *s, const struct ck_obj *o)
{
    const struct ck_dir *d = ck_dir(s, o);
    bool wrong = false;

    if (d->entries != d->seen || d->digest != d->seen_digest) {
        ck_problem(s, "directory %llu: %llu entries are recorded, %llu were found%s", (unsigned long long)o->ino,
                   (unsigned long long)d->entries, (unsigned long long)d->seen,
                   d->entries == d->seen ? ", not the same" : "");
        wrong = true;
    }
    if (d->next_cookie <= d->top_cookie) {
        ck_problem(s, "directory %llu: its counter of places in listings is behind", (unsigned long long)o->ino);
        wrong = true;
    }
    if (o->nlink && o->nlink != 2 + d->subdirs) {
        ck_problem(s, "directory %llu: %u links are recorded, %u were found", (unsigned long long)o->ino, o->nlink,
                   2 + d->subdirs);
        wrong = true;
    }
    if (o->ino == PST_ROOT_INO ? d->parent != PST_ROOT_INO : d->found_in && d->parent != d->found_in)
        wrong = true; /* reported where it was found */
    return wrong;
}

static int check_object(struct nsck *s, const struct ck_obj *o)
{
    bool wrong = o->dir ? dir_wrong(s, o) : false;

    if (o->xattrs != o->seen_xattrs) {
        ck_problem(s, "object %llu: %u extended attributes are recorded, %u were found", (unsigned long long)o->ino,
                   o->xattrs, o->seen_xattrs);
        wrong = true;
    }
    if (!o->dir && o->refs && o->nlink != o->refs) {
        ck_problem(s, "object %llu: %u links are recorded, %u were found", (unsigned long long)o->ino, o->nlink,
                   o->refs);
        wrong = true;
    }
    if (o->orphan && o->refs) {
        ck_problem(s, "object %llu is to be deleted, but has a name", (unsigned long long)o->ino);
        struct key k = orphan_key(s->k->id, o->ino);
        int r = s->repair ? fix_drop(s, k.b, k.len) : 0; /* it stays */
        if (r)
            return r;
    }
    return wrong && s->repair ? fix_inode(s, o) : 0;
}

/* An object that no entry names. */
static int check_nameless(struct nsck *s, const struct ck_obj *o)
{
    if (o->nlink == 0) {
        if (o->orphan)
            return 0; /* it was open when the store stopped: the next open deletes it */
        ck_problem(s, "object %llu has no name and is not marked to be deleted", (unsigned long long)o->ino);
        return s->repair ? fix_orphan(s, o) : 0;
    }
    ck_problem(s, "object %llu has no name", (unsigned long long)o->ino);
    return s->repair ? fix_unreachable(s, o) : 0;
}

/* Is it on the ring itself, not below it? All of a ring is marked, so the walk stays in it. */
static bool on_ring(struct nsck *s, const struct ck_obj *o)
{
    const struct ck_obj *p = o;

    for (size_t steps = 0; steps <= s->ndirs && p && p->dir; steps++) {
        p = ck_find(s, ck_dir(s, p)->found_in);
        if (p == o)
            return true;
    }
    return false;
}

/*
 * A ring that does not reach the root is opened at one place: that directory moves to /lost+found, with all that lies
 * below it, which is the whole ring.
 */
static int check_ring(struct nsck *s, const struct ck_obj *o)
{
    int r;

    ck_problem(s, "directory %llu lies in a ring that does not reach the root", (unsigned long long)o->ino);
    if (!s->repair || !on_ring(s, o))
        return 0;
    for (const struct ck_obj *p = o; ck_dir(s, p)->mark == MARK_RING; p = ck_find(s, ck_dir(s, p)->found_in))
        ck_dir(s, p)->mark = MARK_OPENED; /* the others on it are all right then */
    r = fix_unname(s, ck_dir(s, o)->found_in, o);
    return r ? r : fix_unreachable(s, o);
}

/* Counts first: /lost+found changes while it takes in what has no name. */
static int check_objects(struct nsck *s)
{
    int r = 0;

    for (size_t i = 0; !r && i < s->nobjs; i++)
        r = check_object(s, &s->objs[i]);
    for (size_t i = 0; !r && i < s->nobjs; i++) {
        const struct ck_obj *o = &s->objs[i];
        if (o->refs == 0 && o->ino != PST_ROOT_INO)
            r = check_nameless(s, o);
        else if (o->dir && chain_end(s, o) == MARK_RING)
            r = check_ring(s, o);
    }
    if (!ck_find(s, PST_ROOT_INO))
        ck_problem(s, "the root directory is missing");
    return r;
}

static int check_usage(struct nsck *s)
{
    struct key k = usage_key(s->k->id);
    struct wbuf v = {0};
    int64_t bytes = -1, objects = -1;
    int r = idx_get(s->e, NULL, &k, &v);

    if (!r)
        r = usage_decode(v.data, v.len, &bytes, &objects);
    wbuf_done(&v);
    if (r)
        ck_problem(s, "its record of space in use is missing or not valid");
    else if ((uint64_t)bytes != s->used || (uint64_t)objects != s->nobjs)
        ck_problem(s, "%lld bytes in %lld objects are recorded as in use, %llu in %zu were found", (long long)bytes,
                   (long long)objects, (unsigned long long)s->used, s->nobjs);
    else if (!s->made)
        return 0;
    return s->repair ? fix_usage(s, (int64_t)s->used, (int64_t)s->nobjs + s->made) : 0;
}

int ck_container(struct nsck *s)
{
    static const struct {
        enum key_space space;
        idx_entry_fn fn;
    } walks[] = {{KEY_INODE, visit_inode}, {KEY_DIRENT, visit_dirent}, {KEY_COOKIE, visit_cookie},
                 {KEY_XATTR, visit_xattr}, {KEY_ORPHAN, visit_orphan}};

    s->nobjs = s->ndirs = 0;
    s->used = 0;
    s->made = 0;
    /* Of a destroyed one some keys are gone already; what is left is deleted in the background. */
    for (size_t i = 0; i < (s->k->dead ? 1 : ARRAY_SIZE(walks)); i++) {
        struct key prefix = key_begin(walks[i].space);
        key_u64(&prefix, s->k->id);
        int r = idx_each_whole(s->e, &prefix, walks[i].fn, s);
        if (r)
            return r;
    }
    struct key xattrs = key_begin(KEY_XATTR);
    key_u64(&xattrs, s->k->id);
    int r = s->k->dead ? idx_each_whole(s->e, &xattrs, visit_dead_xattr, s) : check_objects(s);
    return r ? r : check_usage(s);
}

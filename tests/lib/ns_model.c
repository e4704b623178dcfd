#include "ns_model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

void model_init(struct model *m, uint32_t root_mode)
{
    memset(m, 0, sizeof *m);
    m->o[0] = (struct model_obj){.used = true, .mode = S_IFDIR | root_mode, .nlink = 2, .ino = PST_ROOT_INO};
}

static bool is_dir(const struct model *m, int o)
{
    return S_ISDIR(m->o[o].mode);
}

/* Position of a name in a directory, or -1. */
static int find(const struct model *m, int dir, const char *name)
{
    for (int i = 0; i < m->o[dir].nents; i++)
        if (!strcmp(m->o[dir].ents[i].name, name))
            return i;
    return -1;
}

/* ---- random operations ---- */

static int pick(const struct model *m, struct rng *r, bool dirs)
{
    for (int tries = 0; tries < 400; tries++) {
        int o = (int)rng_below(r, MODEL_OBJECTS);
        /* now and then something that is not a directory where one is wanted */
        if (m->o[o].used && (!dirs || is_dir(m, o) || rng_below(r, 40) == 0))
            return o;
    }
    return 0;
}

static void pick_name(struct rng *r, char ret[8])
{
    snprintf(ret, 8, "%c", (char)('a' + rng_below(r, 9)));
}

static const uint32_t types[] = {S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFLNK, S_IFIFO};

void model_random_op(const struct model *m, struct rng *r, struct model_op *ret)
{
    static const uint8_t weights[MODEL_KINDS] = {30, 8, 12, 6, 25, 4, 5, 5, 3, 5, 6};
    uint64_t n = rng_below(r, 109);
    struct model_op op = {.kind = MODEL_MAKE};

    while (op.kind < MODEL_KINDS - 1 && n >= weights[op.kind])
        n -= weights[op.kind++];
    op.obj = pick(m, r, false);
    op.dir = pick(m, r, true);
    op.dir2 = rng_below(r, 3) ? pick(m, r, true) : op.dir;
    pick_name(r, op.name);
    pick_name(r, op.name2);
    op.mode = types[rng_below(r, 6)] | (uint32_t)rng_below(r, 01000);
    op.exclusive = rng_below(r, 2);
    op.size = rng_below(r, 5000000);
    switch (op.kind) {
    case MODEL_MAKE:
        snprintf(op.text, sizeof op.text, "target%u", (unsigned)rng_below(r, 1000));
        break;
    case MODEL_RENAME:
        op.flags = rng_below(r, 4) == 0 ? PST_RENAME_EXCHANGE : rng_below(r, 5) == 0 ? PST_RENAME_NOREPLACE : 0;
        break;
    case MODEL_SETXATTR:
    case MODEL_REMOVEXATTR:
        snprintf(op.name, sizeof op.name, "user.%c", (char)('a' + rng_below(r, 5)));
        snprintf(op.text, sizeof op.text, "v%u", (unsigned)rng_below(r, 1000));
        op.flags = rng_below(r, 3) == 0 ? (uint32_t)rng_below(r, 3) : 0;
        break;
    default:
        break;
    }
    *ret = op;
}

/* ---- effects ---- */

static int usable(const struct model *m, int dir)
{
    if (!is_dir(m, dir))
        return -ENOTDIR;
    return m->o[dir].nlink == 0 ? -ENOENT : 0;
}

static void put_entry(struct model *m, int dir, const char *name, int obj)
{
    int at = m->o[dir].nents++;
    strcpy(m->o[dir].ents[at].name, name);
    m->o[dir].ents[at].obj = obj;
}

static void cut_entry(struct model *m, int dir, int at)
{
    struct model_obj *d = &m->o[dir];
    memmove(&d->ents[at], &d->ents[at + 1], (size_t)(d->nents - at - 1) * sizeof d->ents[0]);
    d->nents--;
}

static void maybe_free(struct model *m, int o)
{
    if (m->o[o].nlink == 0 && m->o[o].opens == 0)
        m->o[o].used = false;
}

static int free_slot(const struct model *m)
{
    for (int i = 1; i < MODEL_OBJECTS; i++)
        if (!m->o[i].used)
            return i;
    return -1;
}

static int apply_make(struct model *m, struct model_op *op)
{
    int r = usable(m, op->dir), at;

    if (r)
        return r;
    at = find(m, op->dir, op->name);
    if (at >= 0) {
        int there = m->o[op->dir].ents[at].obj;
        if (!S_ISREG(op->mode) || op->exclusive)
            return -EEXIST;
        if (!S_ISREG(m->o[there].mode))
            return is_dir(m, there) ? -EISDIR : -EEXIST;
        op->made = there;
        op->created = false;
        return 0;
    }
    int n = free_slot(m);
    struct model_obj *o = &m->o[n];
    *o = (struct model_obj){.used = true, .mode = op->mode, .nlink = 1};
    if (S_ISDIR(op->mode)) {
        o->nlink = 2;
        o->parent = op->dir;
        m->o[op->dir].nlink++;
    } else if (S_ISLNK(op->mode)) {
        o->mode = S_IFLNK | 0777;
        strcpy(o->target, op->text);
        o->size = strlen(op->text);
    }
    put_entry(m, op->dir, op->name, n);
    op->made = n;
    op->created = true;
    return 0;
}

static int apply_link(struct model *m, const struct model_op *op)
{
    int r = usable(m, op->dir);

    if (r)
        return r;
    if (op->obj == op->dir)
        return -EPERM;
    if (find(m, op->dir, op->name) >= 0)
        return -EEXIST;
    if (is_dir(m, op->obj))
        return -EPERM;
    if (m->o[op->obj].nlink == 0)
        return -ENOENT;
    put_entry(m, op->dir, op->name, op->obj);
    m->o[op->obj].nlink++;
    return 0;
}

static int apply_remove(struct model *m, const struct model_op *op)
{
    int r = usable(m, op->dir), at;

    if (r)
        return r;
    at = find(m, op->dir, op->name);
    if (at < 0)
        return -ENOENT;
    int o = m->o[op->dir].ents[at].obj;
    if (op->kind == MODEL_UNLINK) {
        if (is_dir(m, o))
            return -EISDIR;
        m->o[o].nlink--;
    } else {
        if (!is_dir(m, o))
            return -ENOTDIR;
        if (m->o[o].nents)
            return -ENOTEMPTY;
        m->o[o].nlink = 0;
        m->o[op->dir].nlink--;
    }
    cut_entry(m, op->dir, at);
    maybe_free(m, o);
    return 0;
}

static bool is_above(const struct model *m, int o, int dir)
{
    for (;;) {
        if (dir == o)
            return true;
        if (dir == 0)
            return false;
        dir = m->o[dir].parent;
    }
}

static void reparent(struct model *m, int o, int from, int to)
{
    if (!is_dir(m, o) || from == to)
        return;
    m->o[o].parent = to;
    m->o[from].nlink--;
    m->o[to].nlink++;
}

static int rename_check(const struct model *m, const struct model_op *op, int src, int dst)
{
    if (op->dir != op->dir2 && is_dir(m, src) && is_above(m, src, op->dir2))
        return -EINVAL;
    if (op->dir != op->dir2 && dst >= 0 && is_dir(m, dst) && is_above(m, dst, op->dir))
        return op->flags & PST_RENAME_EXCHANGE ? -EINVAL : -ENOTEMPTY;
    if (dst < 0 || src == dst || (op->flags & PST_RENAME_EXCHANGE))
        return 0;
    if (is_dir(m, src) && !is_dir(m, dst))
        return -ENOTDIR;
    if (!is_dir(m, src) && is_dir(m, dst))
        return -EISDIR;
    return is_dir(m, dst) && m->o[dst].nents ? -ENOTEMPTY : 0;
}

static int apply_rename(struct model *m, const struct model_op *op)
{
    int r = usable(m, op->dir), from, to, src, dst;

    if (!r)
        r = usable(m, op->dir2);
    if (r)
        return r;
    from = find(m, op->dir, op->name);
    to = find(m, op->dir2, op->name2);
    if (from < 0)
        return -ENOENT;
    if (to >= 0 && (op->flags & PST_RENAME_NOREPLACE))
        return -EEXIST;
    if (to < 0 && (op->flags & PST_RENAME_EXCHANGE))
        return -ENOENT;
    src = m->o[op->dir].ents[from].obj;
    dst = to >= 0 ? m->o[op->dir2].ents[to].obj : -1;
    r = rename_check(m, op, src, dst);
    if (r || src == dst)
        return r;
    if (op->flags & PST_RENAME_EXCHANGE) {
        m->o[op->dir].ents[from].obj = dst;
        m->o[op->dir2].ents[to].obj = src;
        reparent(m, src, op->dir, op->dir2);
        reparent(m, dst, op->dir2, op->dir);
        return 0;
    }
    if (to >= 0) {
        m->o[op->dir2].ents[to].obj = src;
        if (is_dir(m, dst)) {
            m->o[dst].nlink = 0;
            m->o[op->dir2].nlink--;
        } else {
            m->o[dst].nlink--;
        }
        maybe_free(m, dst);
    }
    cut_entry(m, op->dir, from);
    if (to < 0)
        put_entry(m, op->dir2, op->name2, src);
    reparent(m, src, op->dir, op->dir2);
    return 0;
}

static int apply_xattr(struct model *m, const struct model_op *op)
{
    struct model_obj *o = &m->o[op->obj];
    int at = 0;

    if (!S_ISREG(o->mode) && !S_ISDIR(o->mode))
        return -EPERM;
    while (at < o->nx && strcmp(o->x[at].name, op->name))
        at++;
    bool have = at < o->nx;
    if (op->kind == MODEL_REMOVEXATTR) {
        if (!have)
            return -ENODATA;
        o->x[at] = o->x[--o->nx];
        return 0;
    }
    if (have && op->flags == PST_XATTR_CREATE)
        return -EEXIST;
    if (!have && op->flags == PST_XATTR_REPLACE)
        return -ENODATA;
    strcpy(o->x[at].name, op->name);
    strcpy(o->x[at].value, op->text);
    o->nx += !have;
    return 0;
}

/* The model's own bounds: such an operation is skipped on both sides. */
static bool no_room(const struct model *m, const struct model_op *op)
{
    bool grows = op->kind == MODEL_MAKE || op->kind == MODEL_LINK;
    if (op->kind == MODEL_MAKE && free_slot(m) < 0)
        return true;
    if (grows && m->o[op->dir].nents >= MODEL_ENTRIES)
        return true;
    if (op->kind == MODEL_RENAME && m->o[op->dir2].nents >= MODEL_ENTRIES)
        return true;
    return op->kind == MODEL_SETXATTR && m->o[op->obj].nx >= MODEL_XATTRS;
}

int model_apply(struct model *m, struct model_op *op)
{
    struct model_obj *o = &m->o[op->obj];

    if (no_room(m, op))
        return -EAGAIN;
    switch (op->kind) {
    case MODEL_MAKE:
        return apply_make(m, op);
    case MODEL_LINK:
        return apply_link(m, op);
    case MODEL_UNLINK:
    case MODEL_RMDIR:
        return apply_remove(m, op);
    case MODEL_RENAME:
        return apply_rename(m, op);
    case MODEL_CHMOD:
        if (S_ISLNK(o->mode))
            return -EOPNOTSUPP;
        o->mode = (o->mode & S_IFMT) | (op->mode & 0777);
        return 0;
    case MODEL_RESIZE:
        if (!S_ISREG(o->mode))
            return is_dir(m, op->obj) ? -EISDIR : -EINVAL;
        o->size = op->size;
        return 0;
    case MODEL_SETXATTR:
    case MODEL_REMOVEXATTR:
        return apply_xattr(m, op);
    case MODEL_OPEN:
        o->opens++;
        return 0;
    case MODEL_RELEASE:
        if (!o->opens)
            return -EAGAIN;
        o->opens--;
        maybe_free(m, op->obj);
        return 0;
    default:
        return -EINVAL;
    }
}

void model_drop_opens(struct model *m)
{
    for (int i = 0; i < MODEL_OBJECTS; i++) {
        m->o[i].opens = 0;
        if (m->o[i].used)
            maybe_free(m, i);
    }
}

int model_objects(const struct model *m)
{
    int n = 0;
    for (int i = 0; i < MODEL_OBJECTS; i++)
        n += m->o[i].used;
    return n;
}

/* ---- text ---- */

void model_format(struct wbuf *w, const struct model_line *l)
{
    char line[512];
    int n = snprintf(line, sizeof line, "%s #%d %o %u %llu '%s' %s\n", l->path, l->number, l->mode, l->nlink,
                     (unsigned long long)l->size, l->target, l->xattrs);
    wbuf_put(w, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

struct text_walk {
    const struct model *m;
    struct wbuf *w;
    int numbers[MODEL_OBJECTS], next;
};

static void xattr_text(const struct model_obj *o, char ret[128])
{
    bool done[MODEL_XATTRS] = {false};
    ret[0] = 0;
    for (int k = 0; k < o->nx; k++) {
        int least = -1;
        for (int i = 0; i < o->nx; i++)
            if (!done[i] && (least < 0 || strcmp(o->x[i].name, o->x[least].name) < 0))
                least = i;
        done[least] = true;
        strcat(strcat(strcat(strcat(ret, o->x[least].name), "="), o->x[least].value), ",");
    }
}

static void walk_text(struct text_walk *t, int o, const char *path)
{
    const struct model_obj *obj = &t->m->o[o];
    char xattrs[128], below[256];

    if (!t->numbers[o])
        t->numbers[o] = ++t->next;
    xattr_text(obj, xattrs);
    model_format(t->w,
                 &(struct model_line){path, t->numbers[o], obj->mode, obj->nlink, obj->size, obj->target, xattrs});
    for (char c = 'a'; is_dir(t->m, o) && c <= 'z'; c++) {
        char name[2] = {c, 0};
        int at = find(t->m, o, name);
        if (at < 0)
            continue;
        snprintf(below, sizeof below, "%s/%s", path, name);
        walk_text(t, obj->ents[at].obj, below);
    }
}

void model_text(const struct model *m, struct wbuf *w)
{
    struct text_walk t = {.m = m, .w = w};
    walk_text(&t, 0, "");
}

const char *model_op_text(const struct model_op *op)
{
    static const char *const names[] = {"make",   "link",     "unlink",      "rmdir", "rename", "chmod",
                                        "resize", "setxattr", "removexattr", "open",  "release"};
    static char text[160];
    snprintf(text, sizeof text, "%s obj %d dir %d name %s dir2 %d name2 %s mode %o flags %u excl %d", names[op->kind],
             op->obj, op->dir, op->name, op->dir2, op->name2, op->mode, op->flags, op->exclusive);
    return text;
}

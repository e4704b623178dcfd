#include "recfs_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define SECTOR 512u

/* ---- objects and names ---- */

uint32_t node_new(struct recfs *fs, bool dir, uint32_t mode)
{
    struct node *n = realloc(fs->nodes, (fs->nnodes + 1) * sizeof *n);
    if (!n)
        abort();
    fs->nodes = n;
    n[fs->nnodes] = (struct node){.used = true, .dir = dir, .mode = mode, .nlink = 1};
    return (uint32_t)fs->nnodes++;
}

struct dent *dent_find(struct recfs *fs, uint32_t parent, const char *name)
{
    for (size_t i = 0; i < fs->ndents; i++)
        if (fs->dents[i].used && fs->dents[i].parent == parent && !strcmp(fs->dents[i].name, name))
            return &fs->dents[i];
    return NULL;
}

void dent_add(struct recfs *fs, uint32_t parent, const char *name, uint32_t ino)
{
    struct dent *d = NULL;
    for (size_t i = 0; i < fs->ndents && !d; i++)
        if (!fs->dents[i].used)
            d = &fs->dents[i];
    if (!d) {
        d = realloc(fs->dents, (fs->ndents + 1) * sizeof *d);
        if (!d)
            abort();
        fs->dents = d;
        d = &fs->dents[fs->ndents++];
    }
    *d = (struct dent){.used = true, .parent = parent, .ino = ino};
    snprintf(d->name, sizeof d->name, "%s", name);
}

void node_resize(struct node *n, uint64_t size)
{
    if (size > n->cap) {
        uint64_t cap = max_u64(size, n->cap + n->cap / 2);
        uint8_t *d = calloc(1, cap); /* and no memset: what nobody writes takes no memory */
        if (!d)
            abort();
        if (n->size)
            memcpy(d, n->data, n->size);
        free(n->data);
        n->data = d;
        n->cap = cap;
    }
    if (size < n->size)
        memset(n->data + size, 0, n->size - size);
    n->size = size;
}

/* ---- the disk after a loss of power ---- */

static bool is_name(enum what w)
{
    return w <= T_LINK;
}

static void apply_name(struct recfs *d, const struct entry *e)
{
    struct dent *x;
    switch (e->what) {
    case T_CREATE:
    case T_MKDIR:
    case T_LINK:
        dent_add(d, e->parent, e->name, e->ino);
        break;
    case T_UNLINK:
    case T_RMDIR:
        x = dent_find(d, e->parent, e->name);
        if (x)
            x->used = false;
        break;
    default:
        x = dent_find(d, e->new_parent, e->new_name);
        if (x)
            x->used = false;
        x = dent_find(d, e->parent, e->name);
        if (x) {
            x->parent = e->new_parent;
            snprintf(x->name, sizeof x->name, "%s", e->new_name);
        }
    }
}

/* The block at this offset; NULL: zeroes. */
static const uint8_t *block(const struct node *n, uint64_t at)
{
    if (n->touched[at / RECFS_BLOCK])
        return n->data + at;
    return n->under && at < n->under->size ? block(n->under, at) : NULL;
}

/* data has the blocks of this range from now on. */
static void touch(struct node *n, uint64_t from, uint64_t to)
{
    for (uint64_t o = from / RECFS_BLOCK * RECFS_BLOCK; o < to; o += RECFS_BLOCK) {
        const uint8_t *old = block(n, o);
        if (old && old != n->data + o)
            memcpy(n->data + o, old, min_u64(RECFS_BLOCK, n->under->size - o));
        n->touched[o / RECFS_BLOCK] = 1;
    }
}

static void disk_resize(struct node *n, uint64_t size)
{
    uint64_t had = n->cap, blocks;

    if (size < n->size)
        touch(n, size, n->size);
    node_resize(n, size);
    if (n->cap == had)
        return;
    blocks = (n->cap + RECFS_BLOCK - 1) / RECFS_BLOCK;
    had = (had + RECFS_BLOCK - 1) / RECFS_BLOCK;
    n->touched = realloc(n->touched, blocks);
    if (!n->touched)
        abort();
    memset(n->touched + had, 0, blocks - had);
}

static void apply_part(struct node *n, const struct entry *e, uint64_t from, uint64_t to)
{
    disk_resize(n, max_u64(n->size, e->offset + to));
    touch(n, e->offset + from, e->offset + to);
    memcpy(n->data + e->offset + from, e->data + from, to - from);
}

/* Durable: all of it. Else each sector with the given chance in 256; sectors lie on the disk's grid. */
static void apply_write(struct node *n, const struct entry *e, struct rng *r, uint64_t chance)
{
    if (chance >= 256 && e->len)
        apply_part(n, e, 0, e->len);
    for (uint64_t o = 0, end; o < e->len && chance < 256; o = end) {
        end = min_u64(e->len, (e->offset + o) / SECTOR * SECTOR + SECTOR - e->offset);
        if (rng_below(r, 256) < chance)
            apply_part(n, e, o, end);
    }
}

/* How far each object's changes are durable: the index of its last flush before `at`. */
static size_t *last_syncs(const struct recfs *fs, size_t at, int ignore_flushes, size_t *ret_names)
{
    size_t *sync = calloc(fs->nnodes, sizeof *sync);
    *ret_names = 0;
    for (size_t i = 0; sync && i < at && !ignore_flushes; i++) {
        const struct entry *e = &fs->trace[i];
        if (e->what == T_SYNC || e->what == T_SYNC_DIR)
            sync[e->ino] = i;
        if (e->what == T_SYNC_DIR)
            *ret_names = i;
    }
    return sync;
}

/* Brings the base to moment `at`: all that is durable by the object's last flush. */
static void base_advance(struct recfs *fs, size_t at, size_t *sync)
{
    if (!fs->base || at < fs->base_at) {
        recfs_free(fs->base);
        free(fs->base_sync);
        fs->base = calloc(1, sizeof *fs->base);
        fs->base_sync = calloc(fs->nnodes, sizeof *fs->base_sync);
        if (!fs->base || !fs->base_sync)
            abort();
        for (size_t i = 0; i < fs->nnodes; i++)
            node_new(fs->base, fs->nodes[i].dir, fs->nodes[i].mode);
    }
    for (size_t i = 0; i < at; i++) {
        const struct entry *e = &fs->trace[i];
        if (i < fs->base_sync[e->ino] || i >= sync[e->ino])
            continue;
        if (e->what == T_WRITE)
            apply_write(&fs->base->nodes[e->ino], e, NULL, 256);
        else if (e->what == T_SIZE)
            disk_resize(&fs->base->nodes[e->ino], e->offset);
    }
    fs->base_at = at;
    memcpy(fs->base_sync, sync, fs->nnodes * sizeof *sync);
}

static void build(struct recfs *fs, struct recfs *disk, size_t at, struct rng *r, int ignore_flushes)
{
    static const uint64_t chances[] = {0, 16, 128, 240, 256};
    size_t names_synced, *sync = last_syncs(fs, at, ignore_flushes, &names_synced);
    size_t names_until = names_synced + rng_below(r, at - names_synced + 1);
    uint64_t chance = chances[rng_below(r, ARRAY_SIZE(chances))];

    for (size_t i = 0; i < fs->nnodes; i++)
        node_new(disk, fs->nodes[i].dir, fs->nodes[i].mode);
    if (!ignore_flushes)
        base_advance(fs, at, sync);
    for (size_t i = 0; i < fs->nnodes && !ignore_flushes; i++) {
        disk_resize(&disk->nodes[i], fs->base->nodes[i].size);
        disk->nodes[i].under = &fs->base->nodes[i];
    }
    for (size_t i = 0; i < at; i++) {
        const struct entry *e = &fs->trace[i];
        bool durable = e->durable && !ignore_flushes;
        if (is_name(e->what)) {
            if (i <= names_until)
                apply_name(disk, e);
        } else if (i < sync[e->ino]) {
            continue; /* is in the base */
        } else if (e->what == T_WRITE) {
            apply_write(&disk->nodes[e->ino], e, r, durable ? 256 : chance);
        } else if (e->what == T_SIZE && rng_below(r, 256) < chance) {
            disk_resize(&disk->nodes[e->ino], e->offset);
        }
    }
    free(sync);
}

/* The bytes of the block there if any is other than zero, else NULL. */
static const uint8_t *bytes_at(const struct node *n, uint64_t at)
{
    static const uint8_t zero[RECFS_BLOCK];
    const uint8_t *p = at < n->size ? block(n, at) : NULL;
    return p && memcmp(p, zero, min_u64(RECFS_BLOCK, n->size - at)) ? p : NULL;
}

/* Zero blocks stay holes: the stores are mostly empty. */
static int write_node(const struct node *n, int fd)
{
    for (uint64_t o = 0, len; o < n->size; o += len) {
        const uint8_t *p = bytes_at(n, o);
        for (len = RECFS_BLOCK; p && bytes_at(n, o + len) == p + len;)
            len += RECFS_BLOCK;
        if (p && pwrite(fd, p, min_u64(len, n->size - o), (off_t)o) != (ssize_t)min_u64(len, n->size - o))
            return -EIO;
    }
    return ftruncate(fd, (off_t)n->size) ? -errno : 0;
}

static int write_out(const struct recfs *d, uint32_t dir, const char *path)
{
    for (size_t i = 0; i < d->ndents; i++) {
        const struct dent *e = &d->dents[i];
        const struct node *n = &d->nodes[e->ino];
        char p[4096];
        if (!e->used || e->parent != dir)
            continue;
        snprintf(p, sizeof p, "%s/%s", path, e->name);
        if (n->dir) {
            int r = mkdir(p, 0755) ? -errno : write_out(d, e->ino, p);
            if (r)
                return r;
            continue;
        }
        cleanup_close int fd = open(p, O_CREAT | O_WRONLY | O_TRUNC, 0644);
        int r = fd < 0 ? -errno : write_node(n, fd);
        if (r)
            return r;
    }
    return 0;
}

int recfs_crash(struct recfs *fs, size_t at, struct rng *r, int ignore_flushes, const char *dir)
{
    struct recfs *disk = calloc(1, sizeof *disk);
    int err;

    if (!disk)
        return -ENOMEM;
    build(fs, disk, at, r, ignore_flushes);
    err = write_out(disk, 1, dir);
    recfs_free(disk);
    return err;
}

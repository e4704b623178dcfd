#define FUSE_USE_VERSION 314
#include "recfs_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define TRACE_MAX_BYTES (2048 * MiB)

static struct entry *trace_add(struct recfs *fs, enum what what, uint32_t ino)
{
    if (fs->len == fs->cap) {
        fs->cap = fs->cap ? fs->cap * 2 : 4096;
        fs->trace = realloc(fs->trace, fs->cap * sizeof *fs->trace);
        if (!fs->trace)
            abort();
    }
    fs->trace[fs->len] = (struct entry){.what = what, .ino = ino};
    return &fs->trace[fs->len++];
}

static void trace_name(struct recfs *fs, enum what what, uint32_t ino, uint32_t parent, const char *name)
{
    struct entry *e = trace_add(fs, what, ino);
    e->parent = parent;
    snprintf(e->name, sizeof e->name, "%s", name);
}

/* ---- FUSE ---- */

static struct recfs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

static void fill_stat(const struct recfs *fs, uint32_t ino, struct stat *st)
{
    const struct node *n = &fs->nodes[ino];
    *st = (struct stat){.st_ino = ino, .st_mode = n->mode, .st_nlink = n->nlink, .st_size = (off_t)n->size};
    st->st_blocks = (blkcnt_t)((n->size + 511) / 512);
    st->st_blksize = 4096;
    st->st_uid = getuid();
    st->st_gid = getgid();
}

static void reply_entry(fuse_req_t req, struct recfs *fs, uint32_t ino, struct fuse_file_info *fi)
{
    struct fuse_entry_param e = {.ino = ino, .attr_timeout = 0, .entry_timeout = 0};
    fill_stat(fs, ino, &e.attr);
    if (fi)
        fuse_reply_create(req, &e, fi);
    else
        fuse_reply_entry(req, &e);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct recfs *fs = fs_of(req);
    scoped_lock(&fs->lock);
    struct dent *d = dent_find(fs, (uint32_t)parent, name);
    if (d)
        reply_entry(req, fs, d->ino, NULL);
    else
        fuse_reply_err(req, ENOENT);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    struct stat st;
    (void)fi;
    scoped_lock(&fs->lock);
    fill_stat(fs, (uint32_t)ino, &st);
    fuse_reply_attr(req, &st, 0);
}

static void set_size(struct recfs *fs, uint32_t ino, uint64_t size)
{
    node_resize(&fs->nodes[ino], size);
    trace_add(fs, T_SIZE, ino)->offset = size;
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    struct stat st;
    (void)fi;
    scoped_lock(&fs->lock);
    if (to_set & FUSE_SET_ATTR_SIZE)
        set_size(fs, (uint32_t)ino, (uint64_t)attr->st_size);
    if (to_set & FUSE_SET_ATTR_MODE)
        fs->nodes[ino].mode = (fs->nodes[ino].mode & S_IFMT) | (attr->st_mode & 07777);
    fill_stat(fs, (uint32_t)ino, &st);
    fuse_reply_attr(req, &st, 0);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    scoped_lock(&fs->lock);
    if (strlen(name) >= NAME_LEN) {
        fuse_reply_err(req, ENAMETOOLONG);
        return;
    }
    struct dent *d = dent_find(fs, (uint32_t)parent, name);
    uint32_t ino = d ? d->ino : node_new(fs, false, S_IFREG | (mode & 07777));
    if (!d) {
        dent_add(fs, (uint32_t)parent, name, ino);
        trace_name(fs, T_CREATE, ino, (uint32_t)parent, name);
    }
    reply_entry(req, fs, ino, fi);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct recfs *fs = fs_of(req);
    scoped_lock(&fs->lock);
    if (dent_find(fs, (uint32_t)parent, name) || strlen(name) >= NAME_LEN) {
        fuse_reply_err(req, strlen(name) >= NAME_LEN ? ENAMETOOLONG : EEXIST);
        return;
    }
    uint32_t ino = node_new(fs, true, S_IFDIR | (mode & 07777));
    dent_add(fs, (uint32_t)parent, name, ino);
    trace_name(fs, T_MKDIR, ino, (uint32_t)parent, name);
    reply_entry(req, fs, ino, NULL);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    scoped_lock(&fs->lock);
    if (fi->flags & O_TRUNC)
        set_size(fs, (uint32_t)ino, 0);
    fuse_reply_open(req, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    (void)fi;
    scoped_lock(&fs->lock);
    const struct node *n = &fs->nodes[ino];
    if ((uint64_t)off >= n->size)
        fuse_reply_buf(req, NULL, 0);
    else
        fuse_reply_buf(req, (char *)n->data + off, min_u64(size, n->size - (uint64_t)off));
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    scoped_lock(&fs->lock);
    if (fs->bytes + size > TRACE_MAX_BYTES) {
        fuse_reply_err(req, ENOSPC);
        return;
    }
    struct entry *e = trace_add(fs, ino == ACK_INO ? T_ACK : T_WRITE, (uint32_t)ino);
    e->offset = (uint64_t)off;
    e->len = size;
    e->data = malloc(size + 1);
    e->durable = (fi->flags & (O_DSYNC | O_SYNC)) != 0;
    memcpy(e->data, buf, size);
    e->data[size] = 0;
    fs->bytes += size;
    if (ino != ACK_INO) {
        struct node *n = &fs->nodes[ino];
        node_resize(n, max_u64(n->size, (uint64_t)off + size));
        memcpy(n->data + off, buf, size);
    }
    fuse_reply_write(req, size);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    (void)datasync;
    (void)fi;
    scoped_lock(&fs->lock);
    trace_add(fs, T_SYNC, (uint32_t)ino);
    fuse_reply_err(req, 0);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    (void)datasync;
    (void)fi;
    scoped_lock(&fs->lock);
    trace_add(fs, T_SYNC_DIR, (uint32_t)ino);
    fuse_reply_err(req, 0);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    (void)fi;
    scoped_lock(&fs->lock);
    if (mode & ~FALLOC_FL_KEEP_SIZE) {
        fuse_reply_err(req, EOPNOTSUPP);
        return;
    }
    if (!(mode & FALLOC_FL_KEEP_SIZE) && (uint64_t)(off + len) > fs->nodes[ino].size)
        set_size(fs, (uint32_t)ino, (uint64_t)(off + len));
    fuse_reply_err(req, 0);
}

static bool has_names(const struct recfs *fs, uint32_t dir)
{
    for (size_t i = 0; i < fs->ndents; i++)
        if (fs->dents[i].used && fs->dents[i].parent == dir)
            return true;
    return false;
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, bool dir)
{
    struct recfs *fs = fs_of(req);
    scoped_lock(&fs->lock);
    struct dent *d = dent_find(fs, (uint32_t)parent, name);
    if (!d) {
        fuse_reply_err(req, ENOENT);
    } else if (dir && has_names(fs, d->ino)) {
        fuse_reply_err(req, ENOTEMPTY);
    } else {
        fs->nodes[d->ino].nlink--;
        trace_name(fs, dir ? T_RMDIR : T_UNLINK, d->ino, (uint32_t)parent, name);
        d->used = false;
        fuse_reply_err(req, 0);
    }
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    remove_name(req, parent, name, false);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    remove_name(req, parent, name, true);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent, const char *new_name,
                      unsigned flags)
{
    struct recfs *fs = fs_of(req);
    scoped_lock(&fs->lock);
    struct dent *d = dent_find(fs, (uint32_t)parent, name), *old;
    if (flags || !d || strlen(new_name) >= NAME_LEN) {
        fuse_reply_err(req, flags ? EINVAL : !d ? ENOENT : ENAMETOOLONG);
        return;
    }
    old = dent_find(fs, (uint32_t)new_parent, new_name);
    if (old && old != d) {
        fs->nodes[old->ino].nlink--;
        old->used = false;
    }
    struct entry *e = trace_add(fs, T_RENAME, d->ino);
    e->parent = (uint32_t)parent;
    e->new_parent = (uint32_t)new_parent;
    snprintf(e->name, sizeof e->name, "%s", name);
    snprintf(e->new_name, sizeof e->new_name, "%s", new_name);
    d->parent = (uint32_t)new_parent;
    snprintf(d->name, sizeof d->name, "%s", new_name);
    fuse_reply_err(req, 0);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    struct recfs *fs = fs_of(req);
    scoped_lock(&fs->lock);
    if (dent_find(fs, (uint32_t)parent, name)) {
        fuse_reply_err(req, EEXIST);
        return;
    }
    fs->nodes[ino].nlink++;
    dent_add(fs, (uint32_t)parent, name, (uint32_t)ino);
    trace_name(fs, T_LINK, (uint32_t)ino, (uint32_t)parent, name);
    reply_entry(req, fs, (uint32_t)ino, NULL);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct recfs *fs = fs_of(req);
    char *buf = malloc(size);
    size_t used = 0;
    (void)fi;
    scoped_lock(&fs->lock);
    for (size_t i = (size_t)off; i < fs->ndents; i++) {
        const struct dent *d = &fs->dents[i];
        struct stat st = {0};
        size_t n;
        if (!d->used || d->parent != ino)
            continue;
        fill_stat(fs, d->ino, &st);
        n = fuse_add_direntry(req, buf + used, size - used, d->name, &st, (off_t)i + 1);
        if (n > size - used)
            break;
        used += n;
    }
    fuse_reply_buf(req, buf, used);
    free(buf);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs st = {.f_bsize = 4096, .f_frsize = 4096, .f_blocks = 1 << 20, .f_bfree = 1 << 19,
                         .f_bavail = 1 << 19, .f_files = 1 << 20, .f_ffree = 1 << 19, .f_namemax = NAME_LEN - 1};
    (void)ino;
    fuse_reply_statfs(req, &st);
}

static const struct fuse_lowlevel_ops ops = {
    .lookup = op_lookup, .getattr = op_getattr, .setattr = op_setattr, .create = op_create, .mkdir = op_mkdir,
    .open = op_open, .read = op_read, .write = op_write, .fsync = op_fsync, .fsyncdir = op_fsyncdir,
    .fallocate = op_fallocate, .unlink = op_unlink, .rmdir = op_rmdir, .rename = op_rename, .link = op_link,
    .readdir = op_readdir, .statfs = op_statfs,
};

static void *serve(void *arg)
{
    struct recfs *fs = arg;
    fuse_session_loop(fs->se);
    return NULL;
}

struct recfs *recfs_mount(const char *dir)
{
    char *argv[] = {(char *)"recfs", (char *)"-o", (char *)"fsname=recfs"};
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    struct recfs *fs = calloc(1, sizeof *fs);

    if (!fs)
        return NULL;
    pthread_mutex_init(&fs->lock, NULL);
    node_new(fs, true, 0);                /* 0 is no inode */
    node_new(fs, true, S_IFDIR | 0755);   /* 1: the root */
    node_new(fs, false, S_IFREG | 0666);  /* ACK_INO */
    dent_add(fs, 1, "ack", ACK_INO);
    fs->se = fuse_session_new(&args, &ops, sizeof ops, fs);
    fuse_opt_free_args(&args);
    if (!fs->se || fuse_session_mount(fs->se, dir)) {
        recfs_free(fs);
        errno = EIO;
        return NULL;
    }
    pthread_create(&fs->thread, NULL, serve, fs);
    return fs;
}

void recfs_unmount(struct recfs *fs)
{
    fuse_session_exit(fs->se);
    fuse_session_unmount(fs->se);
    pthread_join(fs->thread, NULL);
    /* The trace has it all. A large process would be slow to fork. */
    for (size_t i = 0; i < fs->nnodes; i++) {
        free(fs->nodes[i].data);
        fs->nodes[i].data = NULL;
    }
}

void recfs_free(struct recfs *fs)
{
    if (!fs)
        return;
    if (fs->se)
        fuse_session_destroy(fs->se);
    for (size_t i = 0; i < fs->len; i++)
        free(fs->trace[i].data);
    for (size_t i = 0; i < fs->nnodes; i++) {
        free(fs->nodes[i].data);
        free(fs->nodes[i].touched);
    }
    recfs_free(fs->base);
    free(fs->base_sync);
    free(fs->trace);
    free(fs->nodes);
    free(fs->dents);
    free(fs);
}

size_t recfs_length(const struct recfs *fs)
{
    return fs->len;
}

void recfs_acks(const struct recfs *fs, size_t at, void (*fn)(void *user, const char *text), void *user)
{
    for (size_t i = 0; i < at; i++)
        if (fs->trace[i].what == T_ACK)
            fn(user, (const char *)fs->trace[i].data);
}

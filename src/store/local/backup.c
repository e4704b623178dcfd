/*
 * A consistent copy of a store in use. At a checkpoint the index's files are copied; then the blocks that this copy
 * names, while a read ticket, taken before, keeps them from being reused. The copy is a store of its own, with its own
 * id and an empty log. A file `creating` in it says that it is not complete yet.
 */
#include "parts.h"

#include "base/err.h"
#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define COPY_STEP (1 * MiB)

struct backup {
    struct engine *e;
    struct engine to; /* only what super.c and index.c look at is set */
    struct super super;
    void *buf;
};

/* At the checkpoint: *super says which LSN is flushed. */
static int copy_index(struct engine *e, void *user)
{
    struct backup *b = user;
    b->super = e->super;
    return copy_index_to(e, b->to.dir_fd, "index");
}

static int copy_extent(void *user, uint64_t block, uint32_t n)
{
    struct backup *b = user;
    if (!n || block > b->super.capacity / PST_BLOCK || n > b->super.capacity / PST_BLOCK - block)
        return -EIO;
    return copy_range(b->e->data_fd, b->to.data_fd, block * PST_BLOCK, (uint64_t)n * PST_BLOCK, b->buf, COPY_STEP);
}

static int copy_blocks(struct backup *b)
{
    struct key prefix = key_begin(KEY_CHUNK);
    struct idx_iter *it;
    struct stat st;
    int r = index_open(&b->to, false, NULL);
    if (r) {
        index_close(&b->to);
        return r;
    }
    it = idx_iter_new(&b->to, NULL, &prefix, NULL);
    r = it ? 0 : -ENOMEM;
    while (!r && (r = idx_iter_next(it)) == 1) {
        size_t len;
        const uint8_t *v = idx_iter_value(it, &len);
        r = chunk_for_each_extent(v, len, copy_extent, b);
    }
    idx_iter_free(it);
    index_close(&b->to);
    if (!r && (fstat(b->e->data_fd, &st) || ftruncate(b->to.data_fd, st.st_size) || fsync(b->to.data_fd)))
        r = -errno;
    return r;
}

static int backup_super(struct backup *b)
{
    b->to.super = b->super;
    b->to.super.clean = true;
    b->to.super.log_seq = b->to.super.log_off = 0;
    b->to.super.copy_lsn = COPY_NONE;
    rng_secret(b->to.super.uuid, sizeof b->to.super.uuid);
    return super_created(&b->to);
}

static int make_file(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

/* The folder, new or empty, with the mark that it is not complete. */
static int backup_begin(struct backup *b, const char *dir)
{
    struct engine *to = &b->to;
    int fd;
    if (mkdir(dir, 0700) && errno != EEXIST)
        return -errno;
    to->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to->dir_fd < 0)
        return -errno;
    if (folder_used(to) != 0)
        return -ENOTEMPTY;
    fd = make_file(to->dir_fd, "creating");
    if (fd < 0)
        return fd;
    close(fd);
    if (mkdirat(to->dir_fd, "log", 0700) || fsync(to->dir_fd))
        return -errno;
    if (sync_parent(to->dir_fd))
        return -EIO;
    to->data_fd = make_file(to->dir_fd, "data");
    to->super_fd = to->data_fd < 0 ? to->data_fd : make_file(to->dir_fd, "superblock");
    return to->super_fd < 0 ? to->super_fd : 0;
}

static int backup_run(struct backup *b)
{
    int r = sync_checkpoint_with(b->e, copy_index, b);
    if (!r)
        r = copy_blocks(b);
    return r ? r : backup_super(b);
}

int local_backup(struct pst_store *st, const char *dir)
{
    struct backup b = {.e = engine_of(st)};
    uint64_t ticket;
    int r;
    if (b.e->opt.readonly)
        return -EROFS;
    b.to.dir_fd = b.to.super_fd = b.to.data_fd = b.to.direct_fd = b.to.lock_fd = -1;
    eng_default_opts(&b.to.opt);
    b.to.opt.readonly = true;
    b.to.dir = strdup(dir);
    b.buf = malloc(COPY_STEP);
    r = b.to.dir && b.buf ? backup_begin(&b, dir) : -ENOMEM;
    if (!r) {
        ticket = alloc_read_begin(b.e);
        r = backup_run(&b);
        alloc_read_end(b.e, ticket);
        if (r) {
            wipe_half_made(&b.to);
            unlinkat(b.to.dir_fd, "creating", 0);
        }
    }
    super_close(&b.to);
    free(b.to.dir);
    free(b.buf);
    return r;
}
